"""Tests of the Open Responses specification: the cases of its conformance suite, with a provider of each dialect.

The suite is not published as a package. Each response is checked against the types in ``open_responses``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.fake_providers import call_part, text_part, thinking_part
from tests.fake_providers.server import StrictProvider
from tests.gateway.open_responses import Client, StreamChecker
from tests.gateway.sdk_clients import CLIENTS
from tests.server.conftest import ServerFixture

NATIVE = "openai_responses"
FOREIGN = [name for name in CLIENTS if name != NATIVE]
THREE_MODELS = ["anthropic", "openai_chat", NATIVE]
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
PDF = "data:application/pdf;base64,JVBERi0xLjEKdHJhaWxlcgo8PCAvUm9vdCAxIDAgUiA+PgolJUVPRg=="
ORPHAN_OUTPUT = {"type": "function_call_output", "call_id": "call_nobody_made", "output": "18"}
MakeClient = Callable[[str], tuple[Client, StrictProvider]]


def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **fields}


def get_text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


@pytest.fixture
def make_client(gateway_server: ServerFixture) -> MakeClient:
    """A function that makes the client of a model and returns its provider."""

    def make(model: str) -> tuple[Client, StrictProvider]:
        return Client(gateway_server.client, "/v1", model), gateway_server.fakes[model]

    return make


# --- responses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", CLIENTS)
async def test_response_answers_message(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    inputs: list[Any] = [
        "hi",
        [message("user", "hi")],
        [message("system", "Speak like a pirate."), message("user", "hi")],
        [message("developer", [{"type": "input_text", "text": "Be brief."}]), message("user", "hi")],
        [message("user", "I am Ada."), message("assistant", "Hello."), message("user", "Who am I?")],
        [message("user", [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": IMAGE}])],
        [
            message(
                "user",
                [
                    {"type": "input_text", "text": "Its title?"},
                    {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
                ],
            )
        ],
        [
            message("user", "2 + 2?"),
            message("assistant", "I add.", phase="commentary"),
            message("assistant", "Four.", phase="final_answer"),
            message("user", "Repeat it."),
        ],
    ]
    for items in inputs:
        fake.answer_with(text_part("Hello."))
        response = await client.create(input=items, stream=False)
        assert (response["status"], get_text(response)) == ("completed", "Hello.")
    assert fake.refusals == []


@pytest.mark.parametrize("model", CLIENTS)
async def test_conversation_may_start_with_assistant(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    fake.answer_with(text_part("Four."))
    await client.create(
        input=[message("assistant", "It is four.", phase="final_answer"), message("user", "Repeat it.")]
    )
    assert fake.refusals == []


@pytest.mark.parametrize("model", CLIENTS)
async def test_tool_call_and_its_output(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    fake.answer_with(call_part("get_weather", {"place": "Oslo"}))
    fake.answer_with(text_part("Rain."))
    question = message("user", "The weather in Oslo?")
    choice = {"type": "function", "name": "get_weather"}
    response = await client.create(input=[question], tools=[TOOL], tool_choice=choice)
    (item,) = [item for item in response["output"] if item["type"] == "function_call"]
    assert (item["name"], msgspec.json.decode(item["arguments"])) == ("get_weather", {"place": "Oslo"})
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
    response = await client.create(input=[question, *response["output"], output], tools=[TOOL])
    assert get_text(response) == "Rain."
    assert fake.refusals == []


@pytest.mark.parametrize("model", FOREIGN)
async def test_response_repeats_settings_of_request(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    fake.answer_with(text_part('{"n": 1}'))
    text = {"format": {"type": "json_schema", "name": "count", "schema": SCHEMA}, "verbosity": None}
    settings: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 100,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "u",
        "store": False,
        "temperature": 0.5,
        "tool_choice": "auto",
        "top_p": 0.5,
        "truncation": "auto",
    }
    response = await client.create(input="hi", tools=[TOOL], text=text, **settings)
    assert {name: response[name] for name in settings} == settings
    assert response["tools"] == [{"description": None, "strict": None, **TOOL}]
    assert response["text"] == {
        "format": {"type": "json_schema", "name": "count", "schema": SCHEMA, "description": None, "strict": False}
    }


async def test_items_of_two_responses_have_different_ids(make_client: MakeClient) -> None:
    client, fake = make_client("anthropic")
    fake.answer_with(text_part("One."))
    fake.answer_with(text_part("Two."))
    responses = [await client.create(input="hi") for _ in range(2)]
    assert responses[0]["output"][0]["id"] != responses[1]["output"][0]["id"]


@pytest.mark.parametrize("model", CLIENTS)
async def test_response_is_continued(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    fake.answer_with(call_part("get_weather", {"place": "Oslo"}))
    fake.answer_with(text_part("Rain."))
    first = await client.create(input="The weather in Oslo?", tools=[TOOL])
    call_id = next(item["call_id"] for item in first["output"] if item["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call_id, "output": "rain"}
    second = await client.create(input=[output], previous_response_id=first["id"], tools=[TOOL])
    assert (second["previous_response_id"], get_text(second)) == (first["id"], "Rain.")
    assert fake.refusals == []


async def test_missing_previous_response_has_error_code(make_client: MakeClient) -> None:
    client, _ = make_client("anthropic")
    status, wire = await client.post(model="anthropic", input="hi", previous_response_id="resp_none")
    assert (status, wire["error"]["code"]) == (400, "previous_response_not_found")


async def test_output_without_call_is_rejected(make_client: MakeClient) -> None:
    client, fake = make_client("openai_chat")
    fake.answer_with(text_part("One."))
    first = await client.create(input="1?")
    status, wire = await client.post(model="openai_chat", input=[ORPHAN_OUTPUT], previous_response_id=first["id"])
    assert (status, wire["error"]["type"]) == (400, "invalid_request_error")
    assert "call_nobody_made" in wire["error"]["message"]
    assert len(fake.bodies) == 1


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", FOREIGN)
async def test_stream_has_all_events_in_order(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    fake.answer_with(thinking_part("Hm."), text_part("Hello."), call_part("get_weather", {"place": "Oslo"}))
    stream = await client.stream(input="hi", tools=[TOOL])
    assert stream.kinds[:2] == ["response.created", "response.in_progress"]
    assert stream.kinds[-1] == "response.completed"
    for kind in ("output_text.delta", "output_text.done", "function_call_arguments.delta"):
        assert f"response.{kind}" in stream.kinds
    assert get_text(stream.response) == "Hello."


async def test_native_stream_has_all_events_in_order(make_client: MakeClient) -> None:
    client, fake = make_client(NATIVE)
    fake.answer_with(text_part("Hello."), call_part("get_weather", {"place": "Oslo"}))
    stream = await client.stream(input="hi", tools=[TOOL], has_end=False)
    assert stream.kinds[-1] == "response.completed"
    assert get_text(stream.response) == "Hello."


@pytest.mark.parametrize("model", ["anthropic", "openai_chat"])
async def test_cut_stream_ends_with_failed_response(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    fake.cut(600, text_part("A long text. " * 50))
    stream = await client.stream(input="hi", has_end=False)
    assert stream.kinds[-1] == "response.failed"
    assert stream.response["error"]["message"]


# --- WebSockets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", THREE_MODELS)
async def test_requests_of_connection_are_answered_in_order(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    fake.answer_with(text_part("One."))
    fake.answer_with(text_part("Two."))
    async with client.connect() as socket:
        for text in ("One.", "Two."):
            response = await socket.ask(input="hi")
            assert (response["status"], get_text(response)) == ("completed", text)


@pytest.mark.parametrize("model", THREE_MODELS)
async def test_connection_continues_response_that_is_not_stored(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    for text in ("One.", "Two.", "Three."):
        fake.answer_with(text_part(text))
    async with client.connect() as socket:
        first = await socket.ask(input="1?")
        second = await socket.ask(input="2?", previous_response_id=first["id"])
        assert get_text(second) == "Two."
    assert "One." in str(fake.bodies[1])
    async with client.connect() as socket:
        missing = await socket.ask(input="3?", previous_response_id=second["id"])
        assert missing["error"]["code"] == "previous_response_not_found"
        assert get_text(await socket.ask(input=[message("user", "3?")])) == "Three."
    assert fake.refusals == []


async def test_unknown_response_is_not_continued(make_client: MakeClient) -> None:
    client, _ = make_client("anthropic")
    async with client.connect() as socket:
        missing = await socket.ask(input="hi", previous_response_id="resp_none")
    assert (missing["status"], missing["error"]["code"]) == (400, "previous_response_not_found")


@pytest.mark.parametrize("model", THREE_MODELS)
async def test_failed_continuation_removes_previous_response(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    fake.answer_with(text_part("One."))
    async with client.connect() as socket:
        first = await socket.ask(input="1?")
        failed = await socket.ask(input=[ORPHAN_OUTPUT], previous_response_id=first["id"])
        assert (failed["type"], failed["status"]) == ("error", 400)
        again = await socket.ask(input="2?", previous_response_id=first["id"])
        assert again["error"]["code"] == "previous_response_not_found"
    assert len(fake.bodies) == 1


async def test_upstream_failure_is_an_error_event_with_status(make_client: MakeClient) -> None:
    client, fake = make_client(NATIVE)
    fake.fail(502, "no gateway")
    async with client.connect() as socket:
        failed = await socket.ask(input="1?")
    assert failed["status"] == 502


# --- compaction ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", THREE_MODELS)
async def test_conversation_continues_after_compaction(make_client: MakeClient, model: str) -> None:
    client, fake = make_client(model)
    fake.answer_with(text_part("The user likes quinces."))
    items = [message("user", "I like quinces."), message("assistant", "Noted.")]
    compacted = await client.compact(input=items, prompt_cache_key="k")
    (item,) = [item for item in compacted["output"] if item["type"] == "compaction"]
    assert "quinces" not in item["encrypted_content"]
    for text in ("Quinces.", "Still quinces."):
        fake.answer_with(text_part(text))
    response = await client.create(input=[*compacted["output"], message("user", "What?")])
    assert get_text(response) == "Quinces."
    async with client.connect() as socket:
        response = await socket.ask(input=[*compacted["output"], message("user", "What?")], tools=[])
    assert get_text(response) == "Still quinces."
    assert fake.refusals == (["Not found: /v1/responses/compact"] if model == NATIVE else [])


@pytest.mark.parametrize("body", [{"input": "hi"}, {"model": "anthropic"}])
async def test_compaction_requires_model_and_input(make_client: MakeClient, body: dict[str, Any]) -> None:
    client, _ = make_client("anthropic")
    status, wire = await client.post("/responses/compact", **body)
    assert (status, wire["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_compaction_trigger_returns_compaction(make_client: MakeClient, stream: bool) -> None:
    client, fake = make_client("anthropic")
    fake.answer_with(text_part("A summary."))
    items = [message("user", "hi"), {"type": "compaction_trigger"}]
    if stream:
        checker: StreamChecker = await client.stream(input=items, has_end=False)
        assert checker.kinds[-2:] == ["response.output_item.done", "response.completed"]
        response = checker.response
    else:
        response = await client.create(input=items)
    (item,) = response["output"]
    assert item["type"] == "compaction"
    assert fake.refusals == []
