"""The Open Responses specification: every required field, every event in order, state, and compaction.

Its own suite is not published as a package. These tests follow its specification of 2026-04-24.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.gateway.sdk_clients import CLIENTS
from tests.server.conftest import ServerFixture
from tests.strict import call, say, think

FOREIGN = [name for name in CLIENTS if name != "openai_responses"]
NUMBER = (int, float)
NONE = type(None)
# Every field of a response, and its type.
FIELDS: dict[str, Any] = {
    "id": str,
    "object": str,
    "created_at": int,
    "completed_at": (int, NONE),
    "status": str,
    "incomplete_details": (dict, NONE),
    "model": str,
    "previous_response_id": (str, NONE),
    "instructions": (str, NONE),
    "output": list,
    "error": (dict, NONE),
    "tools": list,
    "tool_choice": (str, dict),
    "truncation": str,
    "parallel_tool_calls": bool,
    "text": dict,
    "top_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "top_logprobs": int,
    "temperature": NUMBER,
    "reasoning": (dict, NONE),
    "usage": (dict, NONE),
    "max_output_tokens": (int, NONE),
    "max_tool_calls": (int, NONE),
    "store": bool,
    "background": bool,
    "service_tier": str,
    "metadata": dict,
    "safety_identifier": (str, NONE),
    "prompt_cache_key": (str, NONE),
}
ITEM_FIELDS = {
    "message": {"id", "type", "status", "role", "content"},
    "function_call": {"id", "type", "status", "call_id", "name", "arguments"},
    "reasoning": {"id", "type", "summary"},
    "compaction": {"id", "type", "encrypted_content"},
}
EVENT_FIELDS = {
    "response.output_item.added": {"output_index", "item"},
    "response.output_item.done": {"output_index", "item"},
    "response.content_part.added": {"item_id", "output_index", "content_index", "part"},
    "response.content_part.done": {"item_id", "output_index", "content_index", "part"},
    "response.output_text.delta": {"item_id", "output_index", "content_index", "delta", "logprobs"},
    "response.output_text.done": {"item_id", "output_index", "content_index", "text", "logprobs"},
    "response.function_call_arguments.delta": {"item_id", "output_index", "delta"},
    "response.function_call_arguments.done": {"item_id", "output_index", "arguments"},
    "response.reasoning_summary_part.added": {"item_id", "output_index", "summary_index", "part"},
    "response.reasoning_summary_part.done": {"item_id", "output_index", "summary_index", "part"},
    "response.reasoning_summary_text.delta": {"item_id", "output_index", "summary_index", "delta"},
    "response.reasoning_summary_text.done": {"item_id", "output_index", "summary_index", "text"},
}
TOOL = {"type": "function", "name": "read_file", "parameters": {"type": "object"}}
IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def check_response(wire: dict[str, Any]) -> None:
    """A response has every field, with a value of its type."""
    wrong = {
        name: wire.get(name, "missing") for name, kind in FIELDS.items() if not isinstance(wire.get(name, ...), kind)
    }
    assert wrong == {}
    assert wire["object"] == "response"
    assert "type" in wire["text"]["format"]
    for tool in wire["tools"]:
        assert {"type", "name", "description", "parameters", "strict"} <= tool.keys()
    for item in wire["output"]:
        check_item(item)
    if wire["status"] == "completed":
        assert wire["completed_at"] >= wire["created_at"]
        assert {"input_tokens", "output_tokens", "total_tokens"} <= wire["usage"].keys()
        assert isinstance(wire["usage"]["input_tokens_details"]["cached_tokens"], int)
        assert isinstance(wire["usage"]["output_tokens_details"]["reasoning_tokens"], int)


def check_item(item: dict[str, Any]) -> None:
    assert ITEM_FIELDS[item["type"]] <= item.keys(), item
    for part in item.get("content") or ():
        if part["type"] == "output_text":
            assert {"text", "annotations", "logprobs"} <= part.keys()


def read_events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, checked frame by frame."""
    *frames, last = data.decode().removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    events = []
    for frame in frames:
        name, text = frame.split("\n")
        event = msgspec.json.decode(text.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


async def post(server: ServerFixture, path: str = "/v1/responses", **body: Any) -> tuple[int, bytes]:
    async with server.client.post(path, json=body) as response:
        return response.status, await response.read()


async def respond(server: ServerFixture, **body: Any) -> dict[str, Any]:
    status, data = await post(server, **body)
    assert status == 200, data
    wire: dict[str, Any] = msgspec.json.decode(data)
    check_response(wire)
    return wire


@pytest.mark.parametrize("model", FOREIGN)
async def test_a_response_has_all_fields(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    fake.answer_with(say("Hello."))
    wire = await respond(gateway_server, model=model, input="hi", instructions="Be brief.", tools=[TOOL])
    assert wire["status"] == "completed"
    fake.answer_with(call("read_file", {"path": "a"}))
    wire = await respond(gateway_server, model=model, input="hi", tools=[TOOL], metadata={"a": "b"}, temperature=0.5)
    assert (wire["output"][-1]["type"], wire["metadata"], wire["temperature"]) == ("function_call", {"a": "b"}, 0.5)
    fake.answer_with(say("A dot."))
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": IMAGE}]
    await respond(gateway_server, model=model, input=[{"type": "message", "role": "user", "content": parts}])
    assert fake.refused == []


@pytest.mark.parametrize("model", FOREIGN)
async def test_a_stream_has_all_events_with_all_fields(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    fake.answer_with(think("Hm."), say("Hello."), call("read_file", {"path": "a"}))
    _, data = await post(gateway_server, model=model, input="hi", tools=[TOOL], stream=True)
    events = read_events(data)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    for event in events:
        if "response" in event:
            check_response(event["response"])
        else:
            assert EVENT_FIELDS[event["type"]] <= event.keys(), event
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"] for item in done}


async def test_items_of_two_responses_have_different_ids(gateway_server: ServerFixture) -> None:
    fake = gateway_server.fakes["anthropic"]
    fake.answer_with(say("One."))
    fake.answer_with(say("Two."))
    wires = [await respond(gateway_server, model="anthropic", input="hi") for _ in range(2)]
    assert wires[0]["output"][0]["id"] != wires[1]["output"][0]["id"]


async def test_phases_of_messages_are_accepted(gateway_server: ServerFixture) -> None:
    fake = gateway_server.fakes["anthropic"]
    fake.answer_with(say("Three."))
    content = [{"type": "output_text", "text": "Two.", "annotations": [], "logprobs": []}]
    items = [
        {"type": "message", "role": "user", "content": "1?"},
        {"type": "message", "role": "assistant", "phase": "commentary", "content": content},
        {"type": "message", "role": "user", "content": "3?"},
    ]
    await respond(gateway_server, model="anthropic", input=items)
    assert fake.refused == []


@pytest.mark.parametrize("model", ["anthropic", "openai_chat"])
async def test_a_conversation_is_compacted_and_goes_on(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    fake.answer_with(say("The user likes quinces."))
    items = [{"type": "message", "role": "user", "content": "I like quinces."}]
    status, data = await post(gateway_server, "/v1/responses/compact", model=model, input=items)
    assert status == 200
    compaction = msgspec.json.decode(data)
    assert compaction["object"] == "response.compaction"
    assert {"id", "created_at", "usage"} <= compaction.keys()
    (item,) = compaction["output"]
    check_item(item)
    assert "quinces" not in item["encrypted_content"]
    fake.answer_with(say("Quinces."))
    await respond(gateway_server, model=model, input=[item, {"type": "message", "role": "user", "content": "What?"}])
    assert "The user likes quinces." in str(fake.bodies[1])
    assert fake.refused == []


@pytest.mark.parametrize("body", [{"input": "hi"}, {"model": "anthropic"}])
async def test_a_compaction_needs_a_model_and_input(gateway_server: ServerFixture, body: dict[str, Any]) -> None:
    status, data = await post(gateway_server, "/v1/responses/compact", **body)
    assert status == 400
    assert msgspec.json.decode(data)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_trigger_is_answered_with_a_compaction(gateway_server: ServerFixture, stream: bool) -> None:
    fake = gateway_server.fakes["anthropic"]
    fake.answer_with(say("A summary."))
    items = [{"type": "message", "role": "user", "content": "hi"}, {"type": "compaction_trigger"}]
    _, data = await post(gateway_server, model="anthropic", input=items, stream=stream)
    if stream:
        events = [msgspec.json.decode(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
        kinds = [event["type"] for event in events]
        assert kinds[-2:] == ["response.output_item.done", "response.completed"]
        wire = events[-1]["response"]
    else:
        wire = msgspec.json.decode(data)
    check_response(wire)
    (item,) = wire["output"]
    assert item["type"] == "compaction"
    assert fake.refused == []


async def test_a_missing_previous_response_has_its_code(gateway_server: ServerFixture) -> None:
    status, data = await post(gateway_server, model="anthropic", input="hi", previous_response_id="resp_none")
    error = msgspec.json.decode(data)["error"]
    assert (status, error["code"]) == (400, "previous_response_not_found")
