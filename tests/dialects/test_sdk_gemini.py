"""Tests with the SDK of Google: its types, and how it reads recorded and written streams.

The SDK is fed over a real socket. The recorded traffic is read where it lies, and never copied. The SDK asks for
server-sent events alone; the items of an array are held to its types one by one.
"""

from __future__ import annotations

import base64
import json
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter, ValidationError

from dragoman import dialects
from dragoman.cli.prove import first_difference
from dragoman.dialects import gemini
from dragoman.errors import FormatError
from dragoman.event import StreamEvent, fold, unfold
from dragoman.exchange import Fault, Reply, StopReason
from dragoman.message import (
    Alternative,
    ContentBlock,
    ImageBlock,
    ImageSource,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from tests.conftest import IS_FULL
from tests.corpus import records
from tests.dialects.test_every_dialect import CALLS, PIXEL
from tests.import_proxy import LazyModule

genai: Any = LazyModule("google.genai")
errors: Any = LazyModule("google.genai.errors")
types: Any = LazyModule("google.genai.types")

OTHERS = [name for name in dialects.callable_names() if name != gemini.NAME]


# --- server ----------------------------------------------------------------------------------------------------------


class Loopback:
    """A server on 127.0.0.1 that answers with scripted bytes and stores requests, and a client of the SDK for it."""

    def __init__(self) -> None:
        self.body = b""
        self.request_body = b""
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                loopback.request_body = self.rfile.read(int(self.headers["content-length"]))
                streamed = ":streamGenerateContent" in self.path
                self.send_response(200)
                self.send_header("content-type", "text/event-stream" if streamed else "application/json")
                self.send_header("content-length", str(len(loopback.body)))
                self.end_headers()
                self.wfile.write(loopback.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Write no log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        options = types.HttpOptions(base_url=f"http://127.0.0.1:{self.server.server_port}")
        self.client = genai.Client(api_key="none", http_options=options)

    def close(self) -> None:
        self.client.close()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def read_stream(self, body: bytes) -> dict[str, Any]:
        """Return the chunks that the SDK reads from a stream, joined."""
        self.body = body
        return assemble(dump(one) for one in self.client.models.generate_content_stream(model="m", contents="Hi."))

    def read(self, body: bytes) -> dict[str, Any]:
        """Return a response as the SDK reads it."""
        self.body = body
        return dump(self.client.models.generate_content(model="m", contents="Hi."))


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    server = Loopback()
    yield server
    server.close()


def dump(response: Any) -> dict[str, Any]:
    merged = response.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {
        key: value for key, value in merged.items() if key not in ("sdkHttpResponse", "automaticFunctionCallingHistory")
    }


def assemble(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the response that is assembled from chunks. The SDK does not assemble them."""
    whole: dict[str, Any] = {}
    candidates: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for more in chunk.pop("candidates", ()):
            candidate = candidates.setdefault(more.get("index", 0), {"content": {"parts": []}})
            content = more.pop("content", {})
            candidate["content"]["parts"] += content.pop("parts", ())
            candidate["content"].update(content)
            candidate.update(more)
        whole.update(chunk)
    for candidate in candidates.values():
        candidate["content"]["parts"] = join_texts(candidate["content"]["parts"])
    return {**whole, "candidates": [candidates[index] for index in sorted(candidates)]} if candidates else whole


def join_texts(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join consecutive texts of one kind; empty texts are dropped."""
    merged: list[dict[str, Any]] = []
    for part in parts:
        is_text = "text" in part
        if is_text and merged and "text" in merged[-1] and merged[-1].get("thought") == part.get("thought"):
            merged[-1] = {**merged[-1], **part, "text": merged[-1]["text"] + part["text"]}
        elif not is_text or part["text"] or part.keys() - {"text", "thought"}:
            merged.append(part)
    return merged


def normalize(value: Any, key: str = "") -> Any:
    """Return one spelling: bytes as the SDK writes them, without nulls."""
    if isinstance(value, dict):
        return {name: normalize(inner, name) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [normalize(inner) for inner in value]
    if key in ("thoughtSignature", "data") and isinstance(value, str):
        return base64.urlsafe_b64encode(base64.b64decode(value.translate(str.maketrans("-_", "+/")) + "==")).decode()
    return value


def response_of(reply: Reply) -> dict[str, Any]:
    """Return the written response in the form of an assembled stream."""
    wire: dict[str, Any] = json.loads(json.dumps(gemini.write_reply(reply).wire))
    for candidate in wire.get("candidates", ()):
        content = candidate.get("content", {})
        content["parts"] = join_texts(content.get("parts", ()))
        candidate["content"] = content
    return wire


# --- recorded streams and replies ------------------------------------------------------------------------------------


# Fields that the SDK ignores in replies of the Gemini API.
IGNORED_FIELDS = frozenset({"finishMessage", "serviceTier", "createTime"})


def drop_unknown(ours: Any, theirs: Any) -> Any:
    """Return the written response without fields that the SDK does not have."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        kept = {key: value for key, value in ours.items() if key in theirs or key not in IGNORED_FIELDS}
        return {key: drop_unknown(value, theirs.get(key)) for key, value in kept.items()}
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [drop_unknown(one, other) for one, other in zip(ours, theirs, strict=True)]
    return ours


def test_sdk_reads_recorded_streams_as_dialect_does(loopback: Loopback) -> None:
    differences = {}
    count = 0
    for _, record in records(gemini.NAME, part="stream", sample=25):
        if record["status"] not in (200, None) or record["stream_format"] != "sse":
            continue
        data = record["stream"].encode("utf-8", "surrogatepass")
        reader = gemini.stream_reader()
        reply = fold([*reader.feed(data), *reader.close()])
        if reply.fault is not None:
            continue
        count += 1
        theirs = normalize(loopback.read_stream(data))
        difference = first_difference(drop_unknown(normalize(response_of(reply)), theirs), theirs)
        if difference is not None:
            differences[record["id"]] = difference
    assert differences == {}
    assert count > (150 if IS_FULL else 20)


def test_sdk_reads_rewritten_replies_like_original(loopback: Loopback) -> None:
    differences = {}
    count = 0
    for _, record in records(gemini.NAME, part="response", sample=25):
        body = record["response"]
        if record["status"] not in (200, None):
            continue
        again = gemini.write_reply(gemini.read_reply(body)).wire
        if any(type(one.get("finishReason")) is int for one in body.get("candidates") or ()):
            continue  # a finish reason as a number, from another client; the SDK fails
        theirs, written = (loopback.read(json.dumps(one).encode()) for one in (body, again))
        count += 1
        difference = first_difference(written, theirs)
        if difference is not None:
            differences[record["id"]] = difference
    assert differences == {}
    assert count > (500 if IS_FULL else 20)


# --- written streams and replies ---------------------------------------------------------------------------------------

TEXT = Reply(
    content=(TextBlock("Hello, é😀\u2028."),),
    stop_reason=StopReason.END_TURN,
    usage=TokenUsage(input_tokens=8, output_tokens=42),
    model="some-model",
)
OWN = {"dialect": "gemini", "form": "thought"}
REPLIES = {
    "text": TEXT,
    "cut off": TEXT.replace(stop_reason=StopReason.MAX_TOKENS),
    "refused": TEXT.replace(stop_reason=StopReason.REFUSAL),
    "parallel calls": TEXT.replace(content=(TextBlock("I'll read them."), *CALLS), stop_reason=StopReason.TOOL_USE),
    "a call without input": TEXT.replace(
        content=(ToolUseBlock(CALLS[0].id, "now", {}),), stop_reason=StopReason.TOOL_USE
    ),
    "an image": TEXT.replace(
        content=(ImageBlock(ImageSource("base64", PIXEL), "image/png"), TextBlock("There it is."))
    ),
    "several answers": TEXT.replace(
        alternatives=(
            Alternative(content=(TextBlock("Hi."), TextBlock(" There.")), stop_reason=StopReason.MAX_TOKENS),
            Alternative(content=(TextBlock("Ho."), CALLS[0]), stop_reason=StopReason.TOOL_USE),
        )
    ),
    "thinking": TEXT.replace(content=(ThinkingBlock("Let me see.", "c2lnbg==", provider_raw=OWN), TextBlock("Done."))),
    "thinking of another origin": TEXT.replace(
        content=(ThinkingBlock("Let me see.", "c2lnbg==", provider_raw={"dialect": "anthropic"}), TextBlock("Done."))
    ),
}


def write(events: Iterable[StreamEvent], framing: str | None = None) -> bytes:
    writer = gemini.stream_writer(framing)
    return b"".join([*map(writer.feed, events), writer.close()])


@pytest.mark.parametrize("name", REPLIES)
def test_sdk_reads_written_streams_and_replies(name: str, loopback: Loopback) -> None:
    reply = REPLIES[name]
    wire = gemini.write_reply(reply).wire
    assert (
        first_difference(normalize(response_of(reply)), normalize(loopback.read_stream(write(unfold(reply))))) is None
    )
    assert first_difference(normalize(wire), normalize(loopback.read(json.dumps(wire).encode()))) is None
    parts = loopback.read_stream(write(unfold(reply)))["candidates"][0]["content"]["parts"]
    says = "\0".join(part.get("text", "") for part in parts)
    for block in reply.content:
        match block:
            case TextBlock(text):
                assert text in says
            case ThinkingBlock(text):  # only native reasoning is written
                assert (text in says) is (name == "thinking")


@pytest.mark.parametrize("name", REPLIES)
def test_sdk_reads_array_items_as_responses(name: str) -> None:
    items = json.loads(write(unfold(REPLIES[name]), "json-array"))
    chunks = [dump(types.GenerateContentResponse.model_validate_json(json.dumps(item))) for item in items]
    assert first_difference(normalize(response_of(REPLIES[name])), normalize(assemble(chunks))) is None


def test_sdk_chat_accepts_streamed_reply(loopback: Loopback) -> None:
    loopback.body = write(unfold(TEXT))
    chat = loopback.client.chats.create(model="m")
    assert "".join(chunk.text or "" for chunk in chat.send_message_stream("Hi.")) == TEXT.content[0].text
    roles = [content.role for content in chat.get_history(curated=True)]
    assert roles[0] == "user"
    assert set(roles[1:]) == {"model"}


@pytest.mark.parametrize(
    ("fault", "kind", "status"),
    [
        (Fault(code="overloaded", message="busy"), "ServerError", 503),
        (Fault(code="rate_limited", message="slow down", retry_after_s=3), "ClientError", 429),
        (Fault(code="stream_incomplete", message="cut"), "ServerError", 500),
    ],
)
def test_sdk_raises_for_failed_stream(fault: Fault, kind: str, status: int, loopback: Loopback) -> None:
    failed = TEXT.replace(stop_reason=StopReason.ERROR, fault=fault)
    with pytest.raises(getattr(errors, kind), match=fault.message) as raised:
        loopback.read_stream(write(unfold(failed)))
    assert raised.value.code == status


def parts_of(content: Sequence[ContentBlock]) -> list[Any]:
    """Return texts, calls and images of a reply in order, as the SDK has them."""
    parts: list[dict[str, Any]] = []
    for block in content:
        match block:
            case TextBlock(text):
                parts.append({"text": text})
            case ToolUseBlock(name=name, input=value):
                parts.append({"call": [name, value]})
            case ImageBlock(source, media_type):
                parts.append(normalize({"inlineData": {"data": source.data, "mimeType": media_type}}))
    return join_texts(parts)


def parts_with_calls(parts: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the parts of a candidate with their calls in the same form."""
    return [
        {"call": [called["name"], called.get("args", {})]} if (called := part.get("functionCall")) else part
        for part in parts
    ]


def test_sdk_reads_converted_streams_of_every_dialect(loopback: Loopback) -> None:
    differences = {}
    seen = set()
    for name, record in records(*OTHERS, part="stream", sample=8):
        if record["status"] not in (200, None):
            continue
        reader = dialects.load(name).stream_reader(record["stream_format"])
        events = [*reader.feed(record["stream"].encode("utf-8", "surrogatepass")), *reader.close()]
        reply = fold(events)
        if reply.fault is not None:
            continue
        seen.add(name)
        candidates = loopback.read_stream(write(events))["candidates"]
        theirs = [parts_with_calls(candidate["content"]["parts"]) for candidate in candidates]
        ours = [parts_of(answer.content) for answer in (reply, *reply.alternatives)]
        difference = first_difference(ours, theirs)
        if difference is not None:
            differences[record["id"]] = difference
    assert differences == {}
    assert seen == set(OTHERS)


# --- requests --------------------------------------------------------------------------------------------------------


@cache
def request_types() -> dict[str, TypeAdapter[Any]]:
    """Return the published types by the key of a request."""
    return {
        "contents": TypeAdapter(list[types.Content]),
        "systemInstruction": TypeAdapter(types.Content),
        "tools": TypeAdapter(list[types.Tool]),
        "toolConfig": TypeAdapter(types.ToolConfig),
        "generationConfig": TypeAdapter(types.GenerationConfig),
        "serviceTier": TypeAdapter(types.ServiceTier),
    }


# Requests with invalid content: the data of an image is not base64.
INVALID = {"llamacpp-fc89347334cffd"}


def problems(wire: dict[str, Any]) -> Iterator[str]:
    """Yield the differences between a body and the published types: wrong values, unknown keys and members."""
    for key, value in wire.items():
        if key not in request_types():
            yield f"{key}: unknown"
            continue
        with warnings.catch_warnings(record=True) as warnings_found:
            warnings.simplefilter("always")
            try:
                request_types()[key].validate_json(json.dumps(value), strict=True)
            except ValidationError as error:
                yield from (f"{key}.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        yield from (f"{key}: {one.message}" for one in warnings_found)


def test_requests_of_every_dialect_match_published_types() -> None:
    found: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for source, record in records(*OTHERS, part="request", sample=30):
        if record["id"] in INVALID:
            continue
        try:
            request = dialects.load(source).read_request(record["request"])
        except FormatError:
            assert record["status"] >= 400  # the provider rejected it too
            continue
        counts[source] = counts.get(source, 0) + 1
        for problem in problems(gemini.write_request(request).wire):
            found.setdefault(problem, []).append(record["id"])
    assert found == {}
    assert counts.keys() == set(OTHERS)


def test_type_check_detects_invalid_requests() -> None:
    assert list(problems({"contents": [{"role": "user", "parts": [{"text": 1}]}]}))
    assert list(problems({"contents": [{"role": "user", "parts": [{"texts": "a"}]}]}))
    assert list(problems({"generationConfig": {"thinkingConfig": {"thinkingLevel": "enormous"}}}))
    assert list(problems({"prompt": "a"}))


def test_sdk_requests_round_trip(loopback: Loopback) -> None:
    function = types.FunctionDeclaration(
        name="read_file",
        description="Read a file.",
        parameters=types.Schema(type=types.Type.OBJECT, properties={"path": types.Schema(type=types.Type.STRING)}),
    )
    loopback.read(json.dumps(gemini.write_reply(TEXT).wire).encode())
    loopback.client.models.generate_content(
        model="m",
        contents=[
            types.Content(
                role="user",
                parts=[
                    types.Part(text="Look."),
                    types.Part.from_bytes(data=base64.b64decode(PIXEL), mime_type="image/png"),
                ],
            ),
            types.Content(role="model", parts=[types.Part.from_function_call(name="read_file", args={"path": "a"})]),
            types.Content(
                role="user", parts=[types.Part.from_function_response(name="read_file", response={"output": "b"})]
            ),
        ],
        config=types.GenerateContentConfig(
            system_instruction="Be brief.",
            temperature=0.5,
            max_output_tokens=100,
            tools=[types.Tool(function_declarations=[function])],
            tool_config=types.ToolConfig(
                function_calling_config=types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
            ),
            thinking_config=types.ThinkingConfig(thinking_level=types.ThinkingLevel.LOW),
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        ),
    )
    wire = msgspec.json.decode(loopback.request_body)
    request = gemini.read_request(wire)
    written = gemini.write_request(request)
    assert (written.wire, written.losses) == (wire, ())
    assert [message.role for message in request.messages] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL]
    assert isinstance(request.messages[1].content[1], ImageBlock)
    assert request.messages[1].content[1].source.data == PIXEL
    assert request.messages[3].metadata.parent_tool_use_id == request.messages[2].content[0].id
    assert request.tools[0].input_schema == {"type": "object", "properties": {"path": {"type": "string"}}}
    assert (request.options.reasoning.effort, request.options.tool_choice.mode) == ("low", "required")
