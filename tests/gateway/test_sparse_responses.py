"""The gateway adds fields that a server omits from its responses. Complete responses are unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.gateway.in_process import open_gateway
from tests.gateway.open_responses import StreamChecker, check_response
from tests.servers.faulty_server import Answer, ReceivedRequest, make_answer, make_stream

DIALECT = "openai_responses"
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
TEXT = {"type": "output_text", "text": "Hi there"}
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "content": [TEXT]}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"}
REASONING = {"type": "reasoning", "id": "rs_1"}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "m",
    "tools": None,
    "output": [REASONING, MESSAGE, CALL],
    "usage": {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}, "own": 1},
    "timings": {"total": 1.5},
}
START = {"response": {"id": "resp_1", "object": "response", "status": "in_progress"}}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("response.created", START),
    ("response.in_progress", START),
    ("response.output_item.added", {"item": REASONING}),
    ("response.output_item.done", {"item": REASONING}),
    ("response.output_item.added", {"item": {**MESSAGE, "content": []}}),
    ("response.content_part.added", {"part": {**TEXT, "text": ""}}),
    ("response.output_text.delta", {"delta": "Hi "}),
    ("response.output_text.delta", {"item_id": "msg_1", "delta": "there"}),
    ("response.output_text.done", {"item_id": "msg_1", "text": "Hi there"}),
    ("response.content_part.done", {"item_id": "msg_1", "part": TEXT}),
    ("response.output_item.done", {"item": MESSAGE}),
    ("response.output_item.added", {"item": {**CALL, "arguments": ""}}),
    ("response.function_call_arguments.delta", {"item_id": "fc_1", "delta": "{}"}),
    ("response.function_call_arguments.done", {"item_id": "fc_1", "arguments": "{}"}),
    ("response.output_item.done", {"item": CALL}),
    ("response.completed", {"response": RESPONSE}),
]


def write_stream(events: list[tuple[str, dict[str, Any]]]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **fields}))
        for name, fields in events
    )


async def post(folder: Path, answer: Answer, **fields: Any) -> bytes:
    def play(_: ReceivedRequest) -> Answer:
        return answer

    body = msgspec.json.encode({"model": "m", "input": "hi", **fields})
    async with open_gateway(folder, play, [DIALECT]) as gateway:
        sent = await gateway.post(DIALECT, "m", body, stream=bool(fields.get("stream")))
    assert sent.status == 200, sent.body
    return sent.body


def select_sent_fields(wire: Any, sent: Any) -> Any:
    """Return the fields of a response that the server sent."""
    if isinstance(sent, dict):
        return {name: select_sent_fields(wire[name], value) for name, value in sent.items() if value is not None}
    return [select_sent_fields(*pair) for pair in zip(wire, sent, strict=True)] if isinstance(sent, list) else wire


async def test_missing_fields_of_response_are_added(tmp_path: Path) -> None:
    answer = make_answer(msgspec.json.encode(RESPONSE))
    wire = msgspec.json.decode(await post(tmp_path, answer, tools=[TOOL], instructions="Be brief.", temperature=0.5))
    check_response(wire)
    assert select_sent_fields(wire, RESPONSE) == {name: value for name, value in RESPONSE.items() if value is not None}
    assert (wire["instructions"], wire["temperature"], wire["tools"][0]["name"]) == ("Be brief.", 0.5, "look")
    assert wire["usage"]["total_tokens"] == 7


async def test_missing_fields_of_stream_are_added(tmp_path: Path) -> None:
    data = write_stream(EVENTS)
    answer = make_stream([data[at : at + 100] for at in range(0, len(data), 100)])
    stream = await post(tmp_path, answer, stream=True, tools=[TOOL])
    checker = StreamChecker()
    for frame in stream.decode().removesuffix("\n\n").split("\n\n"):
        checker.add(msgspec.json.decode(frame.partition("\ndata: ")[2]))
    assert checker.kinds == [name for name, _ in EVENTS]
    sent = [{"type": name, **fields} for name, fields in EVENTS[:-1]]
    assert [select_sent_fields(*pair) for pair in zip(checker.events, sent, strict=False)] == sent
    assert checker.response["timings"] == {"total": 1.5}


async def test_complete_response_is_unchanged(tmp_path: Path) -> None:
    complete = {**RESPONSE, "tools": [], "tool_choice": "auto"}
    body = msgspec.json.encode(complete)
    assert await post(tmp_path, make_answer(body)) == body
    events = [*EVENTS[:-1], ("response.completed", {"response": complete})]
    start = {"response": {**START["response"], "tools": [], "tool_choice": "auto"}}
    data = write_stream([("response.created", start), *events[1:]])
    assert await post(tmp_path, make_stream([data]), stream=True) == data
