"""Tests with the SDK of Ollama: its client over a socket.

The recorded traffic is read where it lies, and never copied. The client puts every request into its types and sends
what these hold, so that what arrives is compared with what was written. It hands out each line of a stream by itself
and has no message that grows: the lines are put together here, from its models.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pydantic
import pytest

from dragoman import dialects
from dragoman.cli.prove import first_difference
from dragoman.errors import FormatError
from dragoman.event import StreamError, fold, unfold
from dragoman.exchange import Fault, StopReason
from dragoman.message import ImageBlock, ImageSource, TextBlock, ThinkingBlock, ToolUseBlock
from tests.corpus import records
from tests.dialects.test_every_dialect import CALLS, PIXEL
from tests.dialects.test_sdk import TEXT, as_floats, missing_texts, read_stream, unknown
from tests.import_proxy import LazyModule

ollama: Any = LazyModule("ollama")

OLLAMA = dialects.load("ollama")
OTHERS = [name for name in dialects.callable_names() if name != "ollama"]
QUESTION: Any = [{"role": "user", "content": "Hi."}]  # the answer of the server does not depend on it
ANSWER = b'{"model":"m","message":{"role":"assistant","content":"Hi."},"done":true}\n'


# --- server ----------------------------------------------------------------------------------------------------------


class Loopback:
    """A server on 127.0.0.1 that answers with scripted bytes, and a client of the SDK for it."""

    def __init__(self) -> None:
        self.body = ANSWER
        self.request_body: dict[str, Any] = {}
        loopback = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                assert self.path == "/api/chat"
                loopback.request_body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-type", "application/x-ndjson")
                self.send_header("content-length", str(len(loopback.body)))
                self.end_headers()
                self.wfile.write(loopback.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Write no log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.client = ollama.Client(host=f"http://127.0.0.1:{self.server.server_port}")

    def close(self) -> None:
        self.client.close()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def send_request(self, wire: dict[str, Any]) -> dict[str, Any]:
        """Return the body that the SDK sends for the parameters of a request."""
        self.body = ANSWER
        answer = self.client.chat(**wire)
        assert [part.message.content for part in (answer if wire.get("stream") else [answer])] == ["Hi."]
        return self.request_body

    def read_reply(self, wire: dict[str, Any]) -> dict[str, Any]:
        """Return a reply as the SDK reads it, as JSON."""
        self.body = json.dumps(wire).encode()
        return dump(self.client.chat(model="m", messages=QUESTION))

    def read_stream(self, data: bytes) -> dict[str, Any]:
        """Return a stream as the SDK reads it, joined from its lines."""
        self.body = data
        reply: dict[str, Any] = {"message": {}}
        for part in self.client.chat(model="m", messages=QUESTION, stream=True):
            line = dump(part)
            message = line.pop("message")
            if "logprobs" in line:
                line["logprobs"] = [*reply.get("logprobs", []), *line["logprobs"]]
            for key, value in message.items():
                known = reply["message"].get(key)
                is_grown = key != "role" and known is not None and value is not None
                reply["message"][key] = known + value if is_grown else value if value is not None else known
            reply.update(line)
        return reply


def dump(value: pydantic.BaseModel) -> dict[str, Any]:
    """Return a model of the SDK as JSON without defaults."""
    return dict(json.loads(value.model_dump_json(exclude_unset=True)))


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    server = Loopback()
    yield server
    server.close()


# --- requests --------------------------------------------------------------------------------------------------------

# Fields that the client does not send, with the reason.
OMITTED = {
    r"\$\.messages\[\d+\]\.tool_calls\[\d+\]\.id": "its types have no ids of calls; the server gives them, in recorded answers",
    r"\$\.messages\[\d+\]\.tool_call_id": "the same",
    r"\$\.tools\[\d+\]\.function\.parameters\..*": "of a schema its types know six words; recorded requests with others were answered",
}


def find_problems(wire: dict[str, Any], loopback: Loopback) -> Iterator[str]:
    """Yield the problems of a request: the SDK rejects it, or sends another one."""
    expected = {**wire, "messages": [{key: value for key, value in item.items() if value} for item in wire["messages"]]}
    try:
        sent = loopback.send_request(wire)
    except (pydantic.ValidationError, TypeError, ValueError) as error:
        yield f"{type(error).__name__}: {error}"
        return
    for problem in unknown(expected, sent, "$"):  # it omits empty fields of a message
        if not any(re.fullmatch(f"{known}: unknown", problem) for known in OMITTED):
            yield problem


@pytest.mark.slow
def test_sdk_sends_requests_of_every_dialect_unchanged(loopback: Loopback) -> None:
    found: dict[str, list[str]] = {}
    lost: list[tuple[str, str, str]] = []
    count: Counter[str] = Counter()
    for source, record in records(*OTHERS, part="request", sample=10):
        try:
            request = dialects.load(source).read_request(record["request"])
        except FormatError:
            assert record["status"] >= 400  # the provider rejected it too
            continue
        written = OLLAMA.write_request(request)
        wire = {"model": "some-model", **written.wire}  # if the source names its model in the URL
        count[source] += 1
        for problem in find_problems(wire, loopback) if record["status"] == 200 else ():
            found.setdefault(problem, []).append(record["id"])
        lost.extend((record["id"], *missing) for missing in missing_texts(request, written))
    assert set(count) == set(OTHERS)
    assert lost == []
    assert found == {}


# --- recorded replies ------------------------------------------------------------------------------------------------

# Streams that the SDK cannot read, with the reason.
UNREADABLE = {
    "sse": "lines that begin with data:, as a proxy sends them; the SDK reads JSON alone",
    "text": "an input that is a text, as another server writes it; the SDK takes an object alone",
}


def read_recorded_streams() -> Iterator[tuple[str, bytes, str]]:
    for _, record in records("ollama"):
        if record.get("stream") and record["status"] == 200:
            yield record["id"], record["stream"].encode(), record["stream_format"]


def without_bytes(token: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in token.items() if key != "bytes"}


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """Return the first difference, except fields that the types of the SDK do not have."""
    ours = {**ours, "message": dict(ours["message"])}
    if ours.get("logprobs"):
        ours["logprobs"] = [
            {**without_bytes(token), "top_logprobs": [without_bytes(top) for top in token["top_logprobs"]]}
            for token in ours["logprobs"]
        ]
        as_floats(ours["logprobs"], "logprob")
    if ours["message"].get("tool_calls"):
        ours["message"]["tool_calls"] = [
            {"function": {key: call["function"][key] for key in ("name", "arguments")}}
            for call in ours["message"]["tool_calls"]
        ]
    return first_difference(ours, theirs)


@pytest.mark.slow
def test_sdk_reads_recorded_streams_as_dialect_does(loopback: Loopback) -> None:
    refused: Counter[str] = Counter()
    equal = 0
    for record, data, framing in read_recorded_streams():
        reply = read_stream(OLLAMA, data, framing)
        try:
            theirs = loopback.read_stream(data)
        except (pydantic.ValidationError, json.JSONDecodeError):
            refused["sse" if framing == "sse" else "text"] += 1
            continue
        assert difference(OLLAMA.write_reply(reply).wire, theirs) is None, record
        equal += 1
    assert refused <= Counter({"sse": 2, "text": 1})
    assert refused.keys() <= UNREADABLE.keys()
    assert equal + refused.total() == 28


@pytest.mark.slow
def test_sdk_reads_rewritten_streams_like_original(loopback: Loopback) -> None:
    equal = 0
    for record, data, framing in read_recorded_streams():
        reader, writer = OLLAMA.stream_reader(framing), OLLAMA.stream_writer()
        events = [*reader.feed(data), *reader.close()]
        ours = OLLAMA.write_reply(fold(events)).wire
        if any(isinstance(call["function"]["arguments"], str) for call in ours["message"].get("tool_calls") or []):
            continue  # it is unchanged
        again = b"".join([*(writer.feed(event) for event in events), writer.close()])
        assert difference(ours, loopback.read_stream(again)) is None, record
        equal += 1
    assert equal == 27


@pytest.mark.slow
def test_sdk_reads_rewritten_replies_like_original(loopback: Loopback) -> None:
    count = 0
    for _, record in records("ollama"):
        if isinstance(record.get("response"), dict) and record["status"] == 200:
            written = OLLAMA.write_reply(OLLAMA.read_reply(record["response"])).wire
            assert difference(record["response"], loopback.read_reply(written)) is None, record["id"]
            count += 1
    assert count == 23


# --- written replies ---------------------------------------------------------------------------------------------------

IMAGE = ImageBlock(ImageSource("base64", PIXEL), "image/png")
OWN = {"dialect": "ollama", "own": True}
REPLIES = {
    "text": TEXT,
    "cut off": TEXT.replace(stop_reason=StopReason.MAX_TOKENS),
    "parallel calls": TEXT.replace(content=(TextBlock("I'll read them."), *CALLS), stop_reason=StopReason.TOOL_USE),
    "a call without input": TEXT.replace(
        content=(ToolUseBlock(CALLS[0].id, "now", {}),), stop_reason=StopReason.TOOL_USE
    ),
    "several texts": TEXT.replace(content=(TextBlock("One."), TextBlock("Two."))),
    "an image": TEXT.replace(content=(TextBlock("There."), IMAGE)),  # a loss: the API rejects a reply with an image
    "foreign thinking": TEXT.replace(
        content=(ThinkingBlock("Let me see.", "c2ln", provider_raw={"dialect": "anthropic"}), TextBlock("Done."))
    ),
    "own thinking": TEXT.replace(content=(ThinkingBlock("Let me see.", provider_raw=OWN), TextBlock("Done."))),
}


@pytest.mark.parametrize("name", REPLIES)
def test_sdk_reads_written_replies_and_streams(name: str, loopback: Loopback) -> None:
    reply = REPLIES[name]
    wire = OLLAMA.write_reply(reply).wire
    assert difference(wire, loopback.read_reply(wire)) is None
    writer = OLLAMA.stream_writer()
    streamed = loopback.read_stream(b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()]))
    assert difference(wire, streamed) is None
    assert ("Let me see." in str(streamed)) is (name == "own thinking")


def test_sdk_raises_for_failed_stream(loopback: Loopback) -> None:
    writer = OLLAMA.stream_writer()
    events = [*unfold(TEXT)[:2], StreamError(Fault(code="overloaded", message="too much to do"))]
    with pytest.raises(ollama.ResponseError, match="too much to do"):
        loopback.read_stream(b"".join([*(writer.feed(event) for event in events), writer.close()]))
    cut = OLLAMA.stream_writer()
    with pytest.raises(ollama.ResponseError, match="ended before"):
        loopback.read_stream(b"".join([*(cut.feed(event) for event in events[:2]), cut.close()]))


@pytest.mark.slow
@pytest.mark.parametrize("source", OTHERS)
def test_sdk_reads_converted_streams_of_other_dialects(source: str, loopback: Loopback) -> None:
    count = 0
    for _, record in records(source, part="stream", sample=8):
        if record["status"] not in (200, None):
            continue
        reader, writer = dialects.load(source).stream_reader(record["stream_format"]), OLLAMA.stream_writer()
        data = record["stream"].encode("utf-8", "surrogatepass")
        events = [*reader.feed(data), *reader.close()]
        reply = fold(events)
        sent = b"".join([*(writer.feed(event) for event in events), writer.close()])
        if reply.fault is not None and reply.fault.code != "empty_response":
            with pytest.raises(ollama.ResponseError):
                loopback.read_stream(sent)
            continue
        wire = OLLAMA.write_reply(reply).wire
        assert difference(wire, loopback.read_stream(sent)) is None, record["id"]
        assert OLLAMA.write_reply(read_stream(OLLAMA, sent, "ndjson")).wire.get("logprobs") == wire.get("logprobs")
        count += 1
    assert count >= 1
