"""Tests with botocore: its service model, and its client over a socket.

The recorded traffic is read where it lies, and never copied. botocore has no message that grows with a stream: it hands
out each event as its model knows it, so the events are put together here.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import EventStreamError
from botocore.model import OperationModel, Shape
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator

from dragoman import dialects
from dragoman.cli.prove import first_difference
from dragoman.dialects import bedrock_converse as dialect
from dragoman.errors import FormatError
from dragoman.event import StreamError, TextDelta, fold, unfold
from dragoman.exchange import Fault, Reply, StopReason
from dragoman.message import (
    ImageBlock,
    ImageSource,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from tests.conftest import IS_FULL
from tests.corpus import records
from tests.dialects.test_every_dialect import CALLS, PIXEL
from tests.dialects.test_sdk import missing_texts, read_stream

MODEL = "anthropic.claude-sonnet-4-6"
QUESTION: Any = [{"role": "user", "content": [{"text": "Hi."}]}]  # the answer of the server does not depend on it


# --- service model -------------------------------------------------------------------------------------------------


@cache
def operation(name: str) -> OperationModel:
    return botocore.session.Session().get_service_model("bedrock-runtime").operation_model(name)


def parameters(value: Any, shape: Shape, where: str, problems: list[str]) -> Any:
    """Return a value as botocore accepts it, with bytes for base64. Add the violations of its service model to ``problems``.

    botocore itself looks for required members, types and minima. Unknown members, maxima, patterns, enumerations and
    unions with two members are in its model, and left to the service.
    """
    match shape.type_name:
        case "structure" if shape.is_document_type:
            return value
        case "structure" if isinstance(value, dict):
            problems.extend(f"{where}.{key}: unknown" for key in value if key not in shape.members)
            if shape.is_tagged_union and len(value) != 1:
                problems.append(f"{where}: {len(value)} members of a union")
            known = {key: shape.members[key] for key in value if key in shape.members}
            return {key: parameters(value[key], known[key], f"{where}.{key}", problems) for key in known}
        case "list" if isinstance(value, list):
            limits(len(value), shape, where, problems)
            return [parameters(item, shape.member, f"{where}[]", problems) for item in value]
        case "map" if isinstance(value, dict):
            return {key: parameters(item, shape.value, f"{where}.*", problems) for key, item in value.items()}
        case "blob" if isinstance(value, str):
            return bytes_of(value, where, problems)
        case "string" if isinstance(value, str):
            limits(len(value), shape, where, problems)
            pattern = shape.metadata.get("pattern")
            if (shape.enum and value not in shape.enum) or (pattern and not re.fullmatch(pattern, value)):
                problems.append(f"{where}: {value!r} does not fit")
        case "integer" | "long" | "float" | "double" if type(value) in (int, float):
            limits(value, shape, where, problems)
    return value


def limits(size: float, shape: Shape, where: str, problems: list[str]) -> None:
    least, most = shape.metadata.get("min", size), shape.metadata.get("max", size)
    if not least <= size <= most:
        problems.append(f"{where}: {size} is not from {least} to {most}")


def bytes_of(text: str, where: str, problems: list[str]) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        problems.append(f"{where}: not base64")
        return b"?"


def find_problems(wire: dict[str, Any], name: str) -> list[str]:
    """Return the problems of a request for the service model, for botocore, and in what botocore would send."""
    operation_model, problems = operation(name), list[str]()
    arguments = parameters({"modelId": MODEL, **wire}, operation_model.input_shape, "$", problems)
    report = ParamValidator().validate(arguments, operation_model.input_shape)
    if report.has_errors():
        return [*problems, report.generate_report()]
    serializer = create_serializer(operation_model.service_model.protocol, include_validation=False)
    body = json.loads(serializer.serialize_to_request(arguments, operation_model)["body"])
    difference = first_difference(body, {key: value for key, value in wire.items() if key != "modelId"})
    return [*problems, *([f"sent: {difference}"] if difference and not problems else [])]


# --- requests --------------------------------------------------------------------------------------------------------

# Invalid image data; the provider rejected it too.
INVALID = {"$.messages[].content[].image.source.bytes: not base64": ["llamacpp-fc89347334cffd"]}


@pytest.mark.slow
def test_requests_of_every_dialect_match_service_model() -> None:
    found: dict[str, list[str]] = {}
    lost = []
    count: Counter[str] = Counter()
    for source, record in records(*dialects.callable_names(), part="request", sample=30):
        try:
            request = dialects.load(source).read_request(record["request"])
        except FormatError:
            assert record["status"] >= 400  # the provider rejected it too
            continue
        written = dialect.write_request(request)
        count[source] += 1
        for problem in find_problems(written.wire, "ConverseStream" if count[source] % 5 == 0 else "Converse"):
            found.setdefault(problem, []).append(record["id"])
        if source != dialect.NAME:  # test_corpus tests the same dialect
            lost.extend((record["id"], *missing) for missing in missing_texts(request, written))
    assert set(count) == set(dialects.callable_names())
    assert count.total() > (7_000 if IS_FULL else 250)
    assert lost == []
    assert found == INVALID if IS_FULL else found.items() <= INVALID.items()


# --- server ----------------------------------------------------------------------------------------------------------


class Loopback:
    """A server on 127.0.0.1 that answers with scripted bytes, and a client of botocore for it."""

    def __init__(self) -> None:
        self.status, self.body = 200, b""
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                streamed = self.path.endswith("converse-stream") and loopback.status == 200
                self.send_response(loopback.status)
                kind = "application/vnd.amazon.eventstream" if streamed else "application/json"
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(loopback.body)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(loopback.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Write no log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.client = botocore.session.Session().create_client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=f"http://127.0.0.1:{self.server.server_port}",
            aws_access_key_id="none",
            aws_secret_access_key="none",
            config=Config(retries={"total_max_attempts": 1}, proxies={}),
        )

    def close(self) -> None:
        self.client.close()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def read_reply(self, wire: Any, status: int = 200) -> dict[str, Any]:
        """Return a reply as the client reads it, as JSON."""
        self.status, self.body = status, json.dumps(wire).encode()
        answer = self.client.converse(modelId=MODEL, messages=QUESTION)
        return as_json({key: value for key, value in answer.items() if key != "ResponseMetadata"})

    def read_stream(self, body: bytes) -> dict[str, Any]:
        """Return the reply that is assembled from the events of the client."""
        self.status, self.body = 200, body
        with closing(self.client.converse_stream(modelId=MODEL, messages=QUESTION)["stream"]) as stream:
            return assemble(as_json(event) for event in stream)


def as_json(value: Any) -> Any:
    """Return a value of botocore with base64 for bytes."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {key: as_json(inner) for key, inner in value.items()}
        case list():
            return [as_json(inner) for inner in value]
        case _:
            return value


def assemble(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Return the reply of a stream, assembled as the service documents it."""
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {"output": {"message": message}}
    for event in events:
        ((name, wire),) = event.items()
        match name:
            case "messageStart":
                message.update(wire)
            case "contentBlockStart":
                blocks[wire["contentBlockIndex"]] = {"start": wire["start"], "deltas": []}
            case "contentBlockDelta":
                block = blocks.setdefault(wire["contentBlockIndex"], {"start": {}, "deltas": []})
                assert "stopped" not in block
                block["deltas"].append(wire["delta"])
            case "contentBlockStop":
                blocks[wire["contentBlockIndex"]]["stopped"] = True
            case "messageStop" | "metadata":
                whole.update(wire)
            case _:
                raise AssertionError(name)
    assert all(block["stopped"] for block in blocks.values())
    message["content"] = [assemble_block(**block) for _, block in sorted(blocks.items())]
    return whole


def assemble_block(start: dict[str, Any], deltas: list[dict[str, Any]], stopped: bool) -> dict[str, Any]:
    kind = next(iter(start or deltas[0]))
    parts = [delta[kind] for delta in deltas if kind in delta]
    match kind:
        case "text" | "citation":
            texts = [delta["text"] for delta in deltas if "text" in delta]
            cited = [delta["citation"] for delta in deltas if "citation" in delta]
            content = {"content": [{"text": "".join(texts)}]} if texts else {}
            return {"citationsContent": {**content, "citations": cited}} if cited else {"text": "".join(texts)}
        case "toolUse":
            text = "".join(part["input"] for part in parts)
            return {"toolUse": {**start[kind], "input": json.loads(text or "{}")}}
        case "toolResult":
            return {"toolResult": {**start[kind], "content": [item for part in parts for item in part]}}
        case "reasoningContent" if "redactedContent" in parts[0]:
            return {"reasoningContent": parts[0]}
        case "reasoningContent":
            text = {"text": "".join(part.get("text", "") for part in parts)}
            signatures = [part["signature"] for part in parts if "signature" in part]
            signed = {"signature": "".join(signatures)} if signatures else {}
            return {"reasoningContent": {"reasoningText": {**text, **signed}}}
        case _:
            return {kind: {**start[kind], **{key: value for part in parts for key, value in part.items()}}}


def drop_unknown(wire: Any, shape: Shape) -> Any:
    """Return the wire without fields that botocore's service model does not have."""
    match shape.type_name:
        case "structure" if not shape.is_document_type and isinstance(wire, dict):
            return {key: drop_unknown(wire[key], shape.members[key]) for key in wire if key in shape.members}
        case "list":
            return [drop_unknown(item, shape.member) for item in wire]
        case _:
            return wire


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    server = Loopback()
    yield server
    server.close()


# --- recorded replies ------------------------------------------------------------------------------------------------


def rewrite(data: bytes) -> bytes:
    reader, writer = dialect.stream_reader(), dialect.stream_writer()
    return b"".join([*map(writer.feed, [*reader.feed(data), *reader.close()]), writer.close()])


@pytest.mark.slow
def test_sdk_reads_recorded_replies_as_dialect_does(loopback: Loopback) -> None:
    shape = operation("Converse").output_shape
    count: Counter[str] = Counter()
    differences = {}
    for _, record in records(dialect.NAME, sample=80):
        if record["status"] != 200:
            continue
        if isinstance(record.get("response"), dict):
            reply, theirs = dialect.read_reply(record["response"]), loopback.read_reply(record["response"])
            count["whole"] += 1
        elif record.get("stream_b64"):
            data = base64.b64decode(record["stream_b64"])
            reply, theirs = read_stream(dialect, data), loopback.read_stream(data)
            count["streamed"] += 1
            assert loopback.read_stream(rewrite(data)) == theirs
        else:
            continue
        difference = first_difference(drop_unknown(dialect.write_reply(reply).wire, shape), theirs)
        if difference is not None:
            differences[record["id"]] = difference
    assert differences == {}
    assert count["whole"] > (150 if IS_FULL else 30)
    assert count["streamed"] > (30 if IS_FULL else 3)


# --- written replies -------------------------------------------------------------------------------------------------

OWN = {"dialect": dialect.NAME, "own": True}
USAGE = TokenUsage(input_tokens=8, output_tokens=42, cached_input_tokens=3)
TEXT = Reply(content=(TextBlock("Hello, é😀\u2028."),), stop_reason=StopReason.END_TURN, usage=USAGE)
REPLIES = {
    "text": TEXT,
    "cut off": TEXT.replace(stop_reason=StopReason.MAX_TOKENS),
    "a word that ends it": TEXT.replace(stop_reason=StopReason.STOP_SEQUENCE, stop_sequence="STOP"),
    "parallel calls": TEXT.replace(content=(TextBlock("I'll read them."), *CALLS), stop_reason=StopReason.TOOL_USE),
    "a call without input": TEXT.replace(
        content=(ToolUseBlock(CALLS[0].id, "now", {}),), stop_reason=StopReason.TOOL_USE
    ),
    "reasoning of its own": TEXT.replace(
        content=(ThinkingBlock("Let me see.", "c2ln", OWN), RedactedThinkingBlock("c2VjcmV0", OWN), TextBlock("Done."))
    ),
    "reasoning of another": TEXT.replace(content=(ThinkingBlock("Let me see.", "c2ln"), TextBlock("Done."))),
    "an image": TEXT.replace(content=(ImageBlock(ImageSource("base64", PIXEL), "image/png"), TextBlock("Here."))),
}


@pytest.mark.parametrize("name", REPLIES)
def test_sdk_reads_written_streams_and_replies(name: str, loopback: Loopback) -> None:
    ours = dialect.write_reply(REPLIES[name]).wire
    assert first_difference(loopback.read_reply(ours), ours) is None
    writer = dialect.stream_writer()
    data = b"".join([*map(writer.feed, unfold(REPLIES[name])), writer.close()])
    assert first_difference(loopback.read_stream(data), ours) is None


@pytest.mark.parametrize("source", dialects.callable_names())
def test_sdk_reads_converted_streams_of_other_providers(source: str, loopback: Loopback) -> None:
    other = dialects.load(source)
    theirs, ours = other.stream_writer(), dialect.stream_writer()
    reply = REPLIES["parallel calls"].replace(model="m")
    data = b"".join([*map(theirs.feed, unfold(reply)), theirs.close()])
    reader = other.stream_reader()
    events = [*reader.feed(data), *reader.close()]
    read_reply = loopback.read_stream(b"".join([*map(ours.feed, events), ours.close()]))
    content = read_reply["output"]["message"]["content"]
    assert [block["text"] for block in content if "text" in block] == ["I'll read them."]
    called = [block["toolUse"] for block in content if "toolUse" in block]
    assert [(call["name"], call["input"]) for call in called] == [(call.name, call.input) for call in CALLS]
    assert read_reply["stopReason"] == "tool_use"
    assert read_reply["usage"]["outputTokens"] == 42


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault(code="rate_limited", message="Slow down.", error_class="rate_limit"), "throttlingException"),  # type: ignore[arg-type]
        (Fault(code="stream_incomplete", message="Cut."), "modelStreamErrorException"),
        (
            Fault(code="server_error", message="Sorry.", provider_code="ModelStreamErrorException"),
            "modelStreamErrorException",
        ),
    ],
)
def test_sdk_raises_stream_failures(fault: Fault, code: str, loopback: Loopback) -> None:
    writer = dialect.stream_writer()
    data = b"".join([writer.feed(TextDelta(0, "Hé")), writer.feed(StreamError(fault)), writer.close()])
    with pytest.raises(EventStreamError) as raised:
        loopback.read_stream(data)
    assert raised.value.response["Error"] == {"Code": code, "Message": fault.message}


def test_sdk_raises_for_incomplete_stream(loopback: Loopback) -> None:
    writer = dialect.stream_writer()
    with pytest.raises(EventStreamError, match="modelStreamErrorException"):
        loopback.read_stream(writer.feed(TextDelta(0, "Hé")) + writer.close())


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Fault(code="rate_limited", message="Slow down."), 429, "ThrottlingException"),
        (Fault(code="invalid_request", message="No."), 400, "ValidationException"),
        (Fault(code="not_found", message="Where?"), 404, "ResourceNotFoundException"),
        (Fault(code="forbidden", message="No."), 403, "AccessDeniedException"),
        (Fault(code="server_error", message="Sorry."), 500, "InternalServerException"),
    ],
)
def test_sdk_raises_written_errors(fault: Fault, status: int, code: str, loopback: Loopback) -> None:
    with pytest.raises(loopback.client.exceptions.from_code(code)) as raised:
        loopback.read_reply(dialect.write_error(fault).wire, status)
    error = raised.value.response["Error"]
    assert (error["Code"], error["Message"]) == (code, fault.message)
    read = dialect.read_error(status, {"x-amzn-errortype": code}, {"message": fault.message})
    assert (read.code, read.message) == (fault.code, fault.message)


def test_folded_events_equal_reply_assembled_from_sdk(loopback: Loopback) -> None:
    writer = dialect.stream_writer()
    data = b"".join([*map(writer.feed, unfold(REPLIES["parallel calls"])), writer.close()])
    assert read_stream(dialect, data) == fold(unfold(dialect.read_reply(loopback.read_stream(data))))
