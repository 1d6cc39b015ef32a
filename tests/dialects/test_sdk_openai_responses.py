"""Tests with the SDK of OpenAI: it reads written replies and streams of the Responses API over a socket.

``test_sdk.py`` tests recorded streams and requests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from dragoman import dialects
from dragoman.cli.prove import first_difference
from dragoman.dialects import openai_responses
from dragoman.event import (
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ToolUseInputDelta,
    ToolUseStart,
    fold,
    unfold,
)
from dragoman.exchange import FAULT_CODES, Fault, Reply, StopReason
from dragoman.message import RedactedThinkingBlock, TextBlock, ThinkingBlock, ToolUseBlock
from tests.corpus import Part, records
from tests.dialects.test_every_dialect import CALLS
from tests.dialects.test_sdk import INPUT_KEYS, REPLIES, delta_texts, normalize_responses, response_of
from tests.import_proxy import LazyModule

openai: Any = LazyModule("openai")
responses: Any = LazyModule("openai.types.responses")

# Pydantic warns about values that do not match the models of the SDK.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")


# --- server ----------------------------------------------------------------------------------------------------------


class Loopback:
    """A server on 127.0.0.1 that answers with scripted bytes, and a client of the SDK for it."""

    def __init__(self) -> None:
        self.body, self.content_type = b"", ""
        held = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-type", held.content_type)
                self.send_header("content-length", str(len(held.body)))
                self.end_headers()
                self.wfile.write(held.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Write no log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        url = f"http://127.0.0.1:{self.server.server_port}"
        self.client = openai.OpenAI(api_key="none", base_url=url, max_retries=0)

    def close(self) -> None:
        self.client.close()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def read_stream(self, data: bytes) -> dict[str, Any]:
        """Return the response that the SDK joins from a stream."""
        self.body, self.content_type = data, "text/event-stream"
        with self.client.responses.stream(model="m", input="Hi.") as stream:
            return response_of(stream)

    def read_reply(self, wire: dict[str, Any]) -> Any:
        """Return a reply as the SDK reads it."""
        self.body, self.content_type = json.dumps(wire).encode(), "application/json"
        return self.client.responses.create(model="m", input="Hi.")


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    server = Loopback()
    yield server
    server.close()


# --- records ---------------------------------------------------------------------------------------------------------


def read_records(name: str, part: Part) -> Iterator[dict[str, Any]]:
    sample = 8 if part == "stream" else 12
    return (record for _, record in records(name, part=part, sample=sample) if record["status"] in (200, None))


def read(name: str, record: dict[str, Any]) -> list[StreamEvent]:
    reader = dialects.load(name).stream_reader(record["stream_format"])
    return [*reader.feed(record["stream"].encode("utf-8", "surrogatepass")), *reader.close()]


def write_events(events: list[StreamEvent] | tuple[StreamEvent, ...]) -> bytes:
    writer = openai_responses.stream_writer()
    return b"".join([*(writer.feed(event) for event in events), writer.close()])


def frames_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: ")]


# --- written streams ---------------------------------------------------------------------------------------------------

NAMES = dialects.callable_names()


def text_and_calls(reply: Reply) -> list[Any]:
    calls = [(block.name, block.input) for block in reply.content if isinstance(block, ToolUseBlock)]
    return ["".join(block.text for block in reply.content if isinstance(block, TextBlock)), calls]


def text_and_calls_of_response(response: dict[str, Any]) -> list[Any]:
    """Return text and calls of the response that the SDK assembles."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    text = "".join(part.get("text") or part.get("refusal") or "" for part in parts)
    return [text, [(item["name"], input_of(item)) for item in response["output"] if item["type"] in INPUT_KEYS]]


def input_of(item: dict[str, Any]) -> dict[str, Any]:
    """Return the input of a call; that of a custom call is a text."""
    if item["type"] == "custom_tool_call":
        return {"input": item["input"]}
    return dict(json.loads(item["arguments"] or "{}"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sdk_reads_converted_streams_of_every_dialect(name: str, loopback: Loopback) -> None:
    count = 0
    for record in read_records(name, "stream"):
        events = read(name, record)
        reply = fold(events)
        if reply.fault is not None:
            continue
        theirs = loopback.read_stream(write_events(events))
        count += 1
        assert text_and_calls_of_response(theirs) == text_and_calls(reply), record["id"]
        assert "".join(theirs["joined"]) == "".join(delta_texts(theirs)), record["id"]
        if reply.usage is not None:
            usage = reply.usage
            fresh = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
            assert theirs["usage"]["input_tokens"] == fresh
            assert theirs["usage"]["output_tokens"] == usage.output_tokens
    assert count >= 3


# Error codes that OpenAI sends and its types do not list.
UNLISTED = {
    "server_is_overloaded",
    "invalid_api_key",
    "insufficient_quota",
    "model_not_found",
    "context_length_exceeded",
}


@cache
def event_kinds() -> dict[str, type[BaseModel]]:
    """Return the published types of events by their name."""
    kinds = get_args(get_args(responses.ResponseStreamEvent)[0])
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in kinds}


def problems(kind: type[BaseModel], wire: dict[str, Any]) -> list[str]:
    try:
        kind.model_validate(wire)
    except ValidationError as error:
        return [f"{wire.get('type')}: {'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()][
            :3
        ]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "openai_responses"])
def test_written_events_and_replies_match_published_types(name: str) -> None:
    """test_corpus tests the same dialect."""
    dialect = dialects.load(name)
    found: dict[str, list[str]] = {}
    count = 0
    for record in read_records(name, "stream"):
        for frame in frames_of(write_events(read(name, record))):
            count += 1
            for problem in problems(event_kinds()[frame["type"]], frame):
                found.setdefault(problem, []).append(record["id"])
    for record in read_records(name, "response"):
        wire = openai_responses.write_reply(dialect.read_reply(record["response"])).wire
        count += 1
        for problem in problems(responses.Response, wire):
            found.setdefault(problem, []).append(record["id"])
    assert found == {}
    assert count > 50


@pytest.mark.parametrize("code", FAULT_CODES)
def test_sdk_does_not_read_failure_as_complete(code: str, loopback: Loopback) -> None:
    fault = Fault(code=code, message="what happened")
    started: list[StreamEvent] = [
        MessageStart("m"),
        TextDelta(0, "so far"),
        ToolUseStart(1, CALLS[0].id, "read_file"),
        ToolUseInputDelta(1, '{"path"'),
    ]
    data = write_events([*started, StreamError(fault)])
    for frame in frames_of(data):
        unlisted = frame.get("response", {}).get("error") or {}
        assert unlisted.get("code") in UNLISTED or problems(event_kinds()[frame["type"]], frame) == []
    loopback.body, loopback.content_type = data, "text/event-stream"
    with loopback.client.responses.stream(model="m", input="Hi.") as stream:
        seen = list(stream)
        assert [event.type for event in seen][-1] == "response.failed"
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            stream.get_final_response()
    last: Any = seen[-1]
    assert last.response.error.message == "what happened"
    assert last.response.output_text == "so far"


def test_sdk_raises_for_error_before_first_event(loopback: Loopback) -> None:
    loopback.body = write_events([StreamError(Fault(code="overloaded", message="busy"))])
    loopback.content_type = "text/event-stream"
    (event,) = loopback.client.responses.create(model="m", input="Hi.", stream=True)
    assert event.type == "error"
    assert (event.code, event.message) == ("server_is_overloaded", "busy")


# --- written replies ---------------------------------------------------------------------------------------------------

OWN = {"dialect": "openai_responses"}
ITEM = {"id": "msg_1", "type": "message", "status": "completed"}
REPLIES = {
    **REPLIES,
    "reasoning of its own": Reply(
        content=(
            ThinkingBlock("Hm.\n\nSo.", "c2VjcmV0", {**OWN, "cuts": [3, 3], "residue": {"set": {"id": "rs_1"}}}),
            RedactedThinkingBlock("c2VjcmV0", {**OWN, "residue": {"set": {"id": "rs_2"}}}),
            TextBlock("Done.", {**OWN, "item": {"set": ITEM}, "residue": {"set": {"annotations": []}}}),
        ),
        stop_reason=StopReason.END_TURN,
        model="some-model",
        provider_raw={**OWN, "residue": {"set": {"completed_at": 7}}},
    ),
    "refused": Reply(
        content=(TextBlock("No.", {**OWN, "form": "refusal", "item": {"set": ITEM}}),),
        stop_reason=StopReason.REFUSAL,
        model="some-model",
        provider_raw={**OWN, "residue": {"set": {"completed_at": 7}}},
    ),
}


@pytest.mark.parametrize("name", REPLIES)
def test_sdk_reads_same_reply_with_and_without_stream(name: str, loopback: Loopback) -> None:
    wire = json.loads(json.dumps(openai_responses.write_reply(REPLIES[name]).wire))
    whole = loopback.read_reply(wire).to_dict(mode="json")
    ours, theirs = normalize_responses(wire, dict(whole))
    del ours["joined"]
    assert first_difference(ours, theirs) is None
    assert problems(responses.Response, wire) == []
    streamed = loopback.read_stream(write_events(unfold(REPLIES[name])))
    del streamed["joined"]
    assert first_difference(*without_sdk_fields(ours, streamed)) is None


def without_sdk_fields(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[Any, Any]:
    ours, theirs = normalize_responses(ours, theirs)
    return {key: value for key, value in ours.items() if key != "joined"}, theirs


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sdk_reads_converted_replies_of_every_dialect(name: str, loopback: Loopback) -> None:
    count = 0
    for record in read_records(name, "response"):
        reply = dialects.load(name).read_reply(record["response"])
        if reply.fault is not None:
            continue
        count += 1
        theirs = loopback.read_reply(openai_responses.write_reply(reply).wire)
        refusals = [
            part for item in theirs.output if item.type == "message" for part in item.content if part.type == "refusal"
        ]
        assert theirs.output_text + "".join(part.refusal for part in refusals) == text_and_calls(reply)[0], record["id"]
        assert text_and_calls_of_response(theirs.to_dict(mode="json")) == text_and_calls(reply), record["id"]
    assert count >= 3
