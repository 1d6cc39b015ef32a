"""Tests with the SDK of Cohere: its types, and its client over a socket.

The recorded traffic is read where it lies, and never copied. The SDK hands out each event of a stream by itself and has
no message that grows, so the events are put together here, from its models.
"""

from __future__ import annotations

import json
import threading
import typing
from collections import Counter
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pydantic
import pytest

from dragoman import dialects
from dragoman.cli.prove import first_difference
from dragoman.errors import FormatError
from dragoman.event import fold, unfold
from dragoman.exchange import StopReason
from dragoman.message import ImageBlock, ImageSource, Role, TextBlock, ThinkingBlock, ToolUseBlock
from dragoman.wire.tool_definitions import UNUSABLE
from tests.corpus import records
from tests.dialects.test_every_dialect import CALLS, PIXEL, REQUEST, message
from tests.dialects.test_sdk import TEXT, missing_texts, read_stream
from tests.import_proxy import LazyModule

cohere: Any = LazyModule("cohere")

COHERE = dialects.load("cohere")
OTHERS = [name for name in dialects.callable_names() if name != "cohere"]
QUESTION: Any = [{"role": "user", "content": "Hi."}]  # the answer of the server does not depend on it


# --- requests --------------------------------------------------------------------------------------------------------


@cache
def request_type(stream: bool) -> type[pydantic.BaseModel]:
    """Return the parameters of the SDK's method as a strict type."""
    client = cohere.ClientV2
    hints = typing.get_type_hints(client.chat_stream if stream else client.chat)
    known = {name: (kind, ...) for name, kind in hints.items() if name in ("model", "messages")}
    options = {name: (kind, None) for name, kind in hints.items() if name not in ("return", "request_options", *known)}
    fields: dict[str, Any] = {**known, **options}
    return pydantic.create_model("Asked", __config__=pydantic.ConfigDict(extra="forbid"), **fields)


def find_problems(wire: dict[str, Any]) -> Iterator[str]:
    """Yield the problems of a request: invalid values and undeclared keys."""
    body = {key: value for key, value in wire.items() if key != "stream"}  # the method of the SDK selects it
    try:
        parameters = request_type(bool(wire.get("stream"))).model_validate(body, strict=True)
    except pydantic.ValidationError as error:
        found = max(error.errors(), key=lambda error: len(error["loc"]))  # of the best matching type
        yield f"{'.'.join(str(step) for step in found['loc'])}: {found['msg']}"
        return
    yield from find_undeclared_keys(parameters, "$")


def find_undeclared_keys(value: Any, where: str) -> Iterator[str]:
    """Yield keys that a type does not declare; the SDK accepts them and stores them separately."""
    if isinstance(value, pydantic.BaseModel):
        yield from (f"{where}.{key}: unknown" for key in value.model_extra or ())
        for name in type(value).model_fields:
            yield from find_undeclared_keys(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from find_undeclared_keys(inner, f"{where}[]")


@pytest.mark.slow
def test_requests_of_every_dialect_match_published_types() -> None:
    found: dict[str, list[str]] = {}
    lost: list[tuple[str, str, str]] = []
    count: Counter[str] = Counter()
    for source, record in records(*OTHERS, part="request", sample=10):
        try:
            request = dialects.load(source).read_request(record["request"])
        except FormatError:
            assert record["status"] >= 400  # the provider rejected it too
            continue
        written = COHERE.write_request(request)
        count[source] += 1
        wire = {"model": "some-model", **written.wire}  # if the source names its model in the URL
        for problem in find_problems(wire):
            found.setdefault(problem, []).append(record["id"])
        lost.extend((record["id"], *missing) for missing in missing_texts(request, written))
    assert set(count) == set(OTHERS)
    assert lost == []
    assert found == {}


def test_type_check_detects_unknown_fields() -> None:
    parameters = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert list(find_problems(parameters)) == []
    assert list(find_problems({**parameters, "top_k": 1})) == ["top_k: Extra inputs are not permitted"]
    assert list(find_problems({**parameters, "messages": [{"role": "user", "content": "x", "name": "y"}]})) == [
        "$.messages[].name: unknown"
    ]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert list(find_problems({**parameters, "messages": [{"role": "assistant", "content": [image]}]}))


def test_assistant_image_is_a_loss() -> None:
    image = ImageBlock(ImageSource("base64", PIXEL), "image/png")
    history = (message(Role.USER, TextBlock("Draw."), image), message(Role.ASSISTANT, TextBlock("There."), image))
    written = COHERE.write_request(REQUEST.replace(messages=history))
    assert list(find_problems(written.wire)) == []
    assert [(loss.block_type, loss.reason) for loss in written.losses] == [
        ("image", "this API accepts images only from users")
    ]


# --- server ----------------------------------------------------------------------------------------------------------


class Loopback:
    """A server on 127.0.0.1 that answers with scripted bytes, and a client of the SDK for it."""

    def __init__(self) -> None:
        self.body = b""
        self.sdk_reply: list[Any] = []
        loopback = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                parameters = json.loads(self.rfile.read(int(self.headers["content-length"])))
                loopback.sdk_reply.append((self.path, parameters))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream" if parameters["stream"] else "application/json")
                self.send_header("content-length", str(len(loopback.body)))
                self.end_headers()
                self.wfile.write(loopback.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Write no log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.client = cohere.ClientV2(api_key="none", base_url=f"http://127.0.0.1:{self.server.server_port}")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def read_reply(self, wire: dict[str, Any]) -> dict[str, Any]:
        """Return a reply as the SDK reads it, as JSON."""
        self.body = json.dumps(wire).encode()
        return dump(self.client.chat(model="m", messages=QUESTION))

    def read_stream(self, data: bytes) -> dict[str, Any]:
        """Return a stream as the SDK reads it, joined from its events."""
        self.body = data
        reply: dict[str, Any] = {}
        for event in self.client.chat_stream(model="m", messages=QUESTION):
            add(event, reply)
        return reply


def dump(value: pydantic.BaseModel) -> dict[str, Any]:
    """Return a model of the SDK as JSON without defaults."""
    return dict(json.loads(value.model_dump_json(exclude_unset=True)))


def add(event: Any, reply: dict[str, Any]) -> None:
    """Add an event to its reply."""
    match event.type:
        case "message-start":
            reply.update(id=event.id, message=dump(event.delta.message))
        case "content-start":
            assert event.index == len(reply["message"]["content"])
            reply["message"]["content"].append(dump(event.delta.message.content))
        case "content-delta":
            for key, text in dump(event.delta.message.content).items():
                reply["message"]["content"][event.index][key] += text
        case "tool-plan-delta":
            reply["message"]["tool_plan"] += event.delta.message.tool_plan
        case "tool-call-start":
            assert event.index == len(reply["message"]["tool_calls"])
            reply["message"]["tool_calls"].append(dump(event.delta.message.tool_calls))
        case "tool-call-delta":
            call = reply["message"]["tool_calls"][event.index]
            call["function"]["arguments"] += event.delta.message.tool_calls.function.arguments
        case "citation-start":
            reply["message"]["citations"].append(dump(event.delta.message.citations))
        case "message-end":
            reply.update(dump(event.delta))
        case "content-end" | "tool-call-end" | "citation-end":
            pass
        case _:
            raise AssertionError(event)


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    server = Loopback()
    yield server
    server.close()


def with_numbers(value: Any) -> Any:
    """Return a value with all numbers as floats, as the SDK declares them."""
    if isinstance(value, dict):
        return {key: with_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_numbers(inner) for inner in value]
    return float(value) if type(value) is int else value


def without_empty(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without empty fields. A stream starts with empty fields; a reply omits them."""
    return {key: value for key, value in message.items() if value not in ("", [])}


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    return first_difference(with_numbers(ours), with_numbers(theirs))


# --- recorded replies ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sdk_reads_recorded_streams_as_dialect_does(loopback: Loopback) -> None:
    count = 0
    for _, record in records("cohere"):
        if record.get("stream") and record["status"] == 200:
            data = record["stream"].encode()
            ours = COHERE.write_reply(read_stream(COHERE, data, record["stream_format"])).wire
            assert difference(ours, loopback.read_stream(data)) is None, record["id"]
            count += 1
    assert count == 20


@pytest.mark.slow
def test_sdk_reads_rewritten_streams_like_original(loopback: Loopback) -> None:
    for _, record in records("cohere"):
        if record.get("stream") and record["status"] == 200:
            data = record["stream"].encode()
            reader, writer = COHERE.stream_reader(record["stream_format"]), COHERE.stream_writer()
            events = [*reader.feed(data), *reader.close()]
            again = b"".join([*(writer.feed(event) for event in events), writer.close()])
            assert difference(loopback.read_stream(again), loopback.read_stream(data)) is None, record["id"]


@pytest.mark.slow
def test_sdk_reads_rewritten_replies_like_original(loopback: Loopback) -> None:
    count = 0
    for _, record in records("cohere"):
        if isinstance(record.get("response"), dict) and record["status"] == 200:
            written = COHERE.write_reply(COHERE.read_reply(record["response"])).wire
            assert difference(loopback.read_reply(written), record["response"]) is None, record["id"]
            count += 1
    assert count == 63


# --- written replies ---------------------------------------------------------------------------------------------------

REPLIES = {
    "text": TEXT,
    "cut off": TEXT.replace(stop_reason=StopReason.MAX_TOKENS),
    "parallel calls": TEXT.replace(content=(TextBlock("I'll read them."), *CALLS), stop_reason=StopReason.TOOL_USE),
    "a call without input": TEXT.replace(
        content=(ToolUseBlock(CALLS[0].id, "now", {}),), stop_reason=StopReason.TOOL_USE
    ),
    "several texts": TEXT.replace(content=(TextBlock("One."), TextBlock("Two."))),
    "foreign thinking": TEXT.replace(
        content=(ThinkingBlock("Let me see.", "c2ln", provider_raw={"dialect": "anthropic"}), TextBlock("Done."))
    ),
    "own thinking": TEXT.replace(
        content=(
            ThinkingBlock("Let me see.", provider_raw={"dialect": "cohere", "form": "thinking"}),
            TextBlock("Done."),
        )
    ),
}


@pytest.mark.parametrize("name", REPLIES)
def test_sdk_reads_written_replies_and_streams(name: str, loopback: Loopback) -> None:
    reply = REPLIES[name]
    wire = COHERE.write_reply(reply).wire
    assert difference(wire, loopback.read_reply(wire)) is None
    assert loopback.sdk_reply[-1] == ("/v2/chat", {"model": "m", "messages": QUESTION, "stream": False})
    writer = COHERE.stream_writer()
    streamed = loopback.read_stream(b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()]))
    assert difference(wire, {**streamed, "message": without_empty(streamed["message"])}) is None
    assert ("Let me see." in str(streamed)) is (name == "own thinking")


@pytest.mark.slow
@pytest.mark.parametrize("source", OTHERS)
def test_sdk_reads_converted_streams_of_other_dialects(source: str, loopback: Loopback) -> None:
    count = 0
    for _, record in records(source, part="stream", sample=8):
        if record["status"] not in (200, None):
            continue
        reader, writer = dialects.load(source).stream_reader(record["stream_format"]), COHERE.stream_writer()
        data = record["stream"].encode("utf-8", "surrogatepass")
        events = [*reader.feed(data), *reader.close()]
        reply = fold(events)
        sdk_reply = loopback.read_stream(b"".join([*(writer.feed(event) for event in events), writer.close()]))
        if reply.fault is not None:
            assert sdk_reply["finish_reason"] == "ERROR" or reply.fault.code in UNUSABLE
            continue
        ours = COHERE.write_reply(reply).wire
        sdk_reply["message"] = without_empty(sdk_reply["message"])
        assert difference(as_values(ours), as_values(sdk_reply)) is None, record["id"]
        count += 1
    assert count >= 2


def as_values(wire: dict[str, Any]) -> dict[str, Any]:
    """Return a reply with parsed inputs, because a stream keeps the spelling of an input."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"] or "{}")}}
        for call in wire["message"].get("tool_calls") or []
    ]
    message = without_empty(wire["message"])
    return {**wire, "message": {**message, "tool_calls": calls} if calls else message}
