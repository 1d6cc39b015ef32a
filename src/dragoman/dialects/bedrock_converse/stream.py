"""Streams of Converse, both ways: frames of AWS in, events out, and the other way round.

The one rule: each block is read as it would have stood in a whole answer, so that both have the same residue.
"""

import base64
import binascii
import struct
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from dragoman.dialects.bedrock_converse.blocks import compact, id_note, natural_block, object_of, read_block
from dragoman.dialects.bedrock_converse.error import read_error
from dragoman.dialects.bedrock_converse.reply import read_reply, read_usage, write_reply
from dragoman.dialects.bedrock_converse.words import MALFORMED, NAME
from dragoman.dialects.parts.conversation import Conversation
from dragoman.dialects.parts.framing import Frame, FramingError, aws_frame, decoded_aws_frame, json_line, splitter
from dragoman.dialects.parts.residue import noted
from dragoman.event import (
    BlockComplete,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    fold,
)
from dragoman.exchange import (
    ErrorClass,
    Fault,
    Reply,
)
from dragoman.message import (
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)

_PADDING: Final = "p"  # of random length, against those who count the bytes on the line
_BEGUN: Final = ("toolUse", "toolResult", "image")  # blocks with a contentBlockStart; others begin with a delta


class _Arriving:
    """A block as far as it has arrived."""

    def __init__(self, kind: str | None, start: dict[str, Any]) -> None:
        self.kind = kind  # None as long as nothing has told
        self.start = start
        self.parts: list[str] = []  # of its text or its input
        self.items: list[Any] = []  # of its citations or its content
        self.signature: str | None = None
        self.is_open = True

    def wire(self) -> dict[str, Any]:
        """The block as it would have stood in a whole answer."""
        text = "".join(self.parts)
        match self.kind:
            case "text" if self.items:
                content = {"content": [{"text": text}]} if self.parts else {}
                return {"citationsContent": {**content, "citations": self.items}}
            case "text" | None:
                return {"text": text}
            case "reasoning":
                signed = {"signature": self.signature} if self.signature is not None else {}
                return {"reasoningContent": {"reasoningText": {"text": text, **signed}}}
            case "redacted":
                return {"reasoningContent": {"redactedContent": _joined_base64(self.parts)}}
            case "toolUse":
                return {"toolUse": {**self.start, "input": object_of(text) if text.strip() else {}}}
            case "toolResult":
                return {"toolResult": {**self.start, "content": self.items}}
            case "image":
                return {"image": {**self.start, **{key: part for item in self.items for key, part in item.items()}}}
            case kind:  # one that a newer version added
                return {kind: self.items[0] if len(self.items) == 1 else self.items}


def _joined_base64(parts: list[str]) -> str:
    """One blob out of several, each encoded by itself."""
    if len(parts) == 1:
        return parts[0]
    try:
        return base64.b64encode(b"".join(base64.b64decode(part, validate=True) for part in parts)).decode()
    except (binascii.Error, ValueError):
        return "".join(parts)


class StreamReader:
    """Bytes in, events out. Each block is put together as it would have stood in a whole answer, and read as one."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, *_FRAMES):
            raise LookupError(f"{NAME} streams are AWS event streams, not {framing!r}")
        self._framing = framing or "aws-eventstream"
        self._splitter = splitter(self._framing)
        self._message: dict[str, Any] | None = None  # what messageStart said
        self._blocks: dict[int, _Arriving] = {}
        self._stop: dict[str, Any] | None = None  # what messageStop said
        self._metadata: dict[str, Any] | None = None  # comes last
        self._conversation = Conversation()
        self._call_ids: dict[int, str] = {}
        self._ended = False  # properly or not: nothing more is read

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        pieces = _lines(data) if self._framing.endswith("decoded") else _aws_pieces(self._splitter.tail, data)
        for piece in pieces:
            if self._ended:
                break
            self._take_all(partial(self._splitter.feed, piece), events)
        return events

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        if not self._ended:
            self._take_all(self._splitter.close, events)
        if not self._ended and self._stop is not None:
            self._complete(events)  # what it cost did not come
        elif not self._ended:
            tail = self._splitter.tail[:4096].decode("utf-8", "replace")
            self._fail("stream_incomplete", "the stream ended before the message did", events, tail=tail or None)
        return events

    def _take_all(self, frames: Callable[[], list[Frame]], events: list[StreamEvent]) -> None:
        try:
            for frame in frames():
                if not self._ended:
                    self._take(frame, events)
        except (FramingError, IndexError, struct.error):
            self._fail("bad_event", "a damaged frame", events)

    def _take(self, frame: Frame, events: list[StreamEvent]) -> None:
        handler = _HANDLERS.get(frame.event or "")
        if handler is None and not _is_exception(frame.event):
            return  # an event that a newer version added
        try:
            wire = msgspec.json.decode(frame.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            wire = None
        if handler is None:
            fault = read_error(None, {"x-amzn-errortype": _upper_first(frame.event or "")}, wire)
            events.append(StreamError(fault))
            self._ended = True
        elif not isinstance(wire, dict):
            self._fail("bad_event", f"a {frame.event} that is not a JSON object", events)
        else:
            wire.pop(_PADDING, None)
            problem = handler(self, wire, events)
            if problem is not None:
                self._fail("protocol_violation", problem, events)

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._ended = True

    def _message_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._message is not None:
            return "messageStart came a second time"
        self._message = wire
        events.append(MessageStart())
        return None

    def _block_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._stop is not None:
            return None  # late
        index, start = _index(wire), wire.get("start")
        if not self._may_begin(index) or not isinstance(start, dict):
            return f"contentBlockStart for block {index}, which cannot begin here"
        kind = next((kind for kind in _BEGUN if isinstance(start.get(kind), dict)), None)
        block = self._blocks[index] = _Arriving(kind, start[kind] if kind else {})
        if kind == "toolUse":
            return self._call_start(index, block, events)
        return None

    def _call_start(self, index: int, block: _Arriving, events: list[StreamEvent]) -> str | None:
        match block.start:
            case {"toolUseId": str(provider_id), "name": str(name)}:
                if block.start.get("type") != "server_tool_use":
                    call_id = self._call_ids[index] = self._conversation.call_id(provider_id)
                    events.append(ToolUseStart(index, call_id, name))
                return None
            case _:
                return f"block {index} is a call without an id or a name"

    def _may_begin(self, index: int) -> bool:
        return self._message is not None and index >= 0 and all(index > other for other in self._blocks)

    def _block_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._stop is not None:
            return None  # late
        index, delta = _index(wire), wire.get("delta")
        if index not in self._blocks and self._may_begin(index):
            self._blocks[index] = _Arriving(None, {})  # texts and reasoning begin with their first delta
        block = self._blocks.get(index)
        if block is None or not block.is_open or not isinstance(delta, dict):
            return f"contentBlockDelta for block {index}, which is not open"
        kind = _kind_of(delta)
        if block.kind is None and kind not in _BEGUN:
            block.kind = kind
        if kind is None or block.kind != kind:
            return f"contentBlockDelta of kind {kind} for block {index}, which is another block"
        self._grow(index, block, delta, events)
        return None

    def _grow(self, index: int, block: _Arriving, delta: dict[str, Any], events: list[StreamEvent]) -> None:
        match delta:
            case {"text": str(text)}:
                block.parts.append(text)
                events.append(TextDelta(index, text))
            case {"citation": citation}:
                block.items.append(citation)
            case {"toolUse": {"input": str(text)}}:
                block.parts.append(text)
                if index in self._call_ids:
                    events.append(ToolUseInputDelta(index, text))
            case {"reasoningContent": {"text": str(text)}}:
                block.parts.append(text)
                events.append(ThinkingDelta(index, text))
            case {"reasoningContent": {"signature": str(signature)}}:
                block.signature = (block.signature or "") + signature
            case {"reasoningContent": {"redactedContent": str(data)}}:
                block.parts.append(data)
            case {"toolResult": [*items]}:
                block.items.extend(items)
            case {"image": dict(part)}:
                block.items.append(part)
            case _:
                block.items.append(delta.get(block.kind or ""))

    def _block_stop(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._stop is not None:
            return None  # late
        index = _index(wire)
        block = self._blocks.get(index)
        if block is None or not block.is_open:
            return f"contentBlockStop for block {index}, which is not open"
        block.is_open = False
        if index in self._call_ids:
            events.append(ToolUseEnd(index, self._call_residue(index, block)))
            return None
        whole = block.wire()
        if block.kind == "toolUse" and whole["toolUse"]["input"] is None:
            return f"the input of block {index} is not a JSON object"
        read = read_block(whole, Conversation())
        match read:
            case TextBlock(provider_raw=raw):
                events.append(TextDelta(index, "", raw))
            case ThinkingBlock(signature=signature, provider_raw=raw):
                events.append(ThinkingDelta(index, "", signature, raw))
            case _:
                events.append(BlockComplete(index, read))
        return None

    def _call_residue(self, index: int, block: _Arriving) -> dict[str, Any] | None:
        """What else the call said; its input is not looked at, that is for whoever folds the events."""
        call_id, wire = self._call_ids[index], {**block.start, "input": {}}
        notes = id_note(wire["toolUseId"], call_id)
        natural = natural_block(ToolUseBlock(call_id, wire["name"], {}), notes)
        return noted(NAME, natural, {"toolUse": wire}, **notes)

    def _message_stop(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._message is None:
            return "messageStop before messageStart"
        if self._stop is not None:
            return "messageStop came a second time"
        if any(block.is_open for block in self._blocks.values()):
            return "messageStop while a block is open"
        if not isinstance(wire.get("stopReason"), str):
            self._fail("stream_incomplete", "the message ended without a reason", events)
            return None
        self._stop = wire
        if self._metadata is not None:
            self._complete(events)
        return None

    def _take_metadata(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._message is None:
            return "metadata before messageStart"
        self._metadata = wire
        usage = read_usage(wire)
        if usage is not None:
            events.append(UsageUpdate(usage))
        if self._stop is not None:
            self._complete(events)
        return None

    def _complete(self, events: list[StreamEvent]) -> None:
        """What a whole answer would have said beside its blocks."""
        message = {**(self._message or {}), "content": []}
        whole = read_reply({**(self._stop or {}), **(self._metadata or {}), "output": {"message": message}})
        if whole.fault is not None:
            events.append(StreamError(whole.fault, whole.provider_raw))
        else:
            events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))
        self._ended = True


_HANDLERS: Final = {
    "messageStart": StreamReader._message_start,
    "contentBlockStart": StreamReader._block_start,
    "contentBlockDelta": StreamReader._block_delta,
    "contentBlockStop": StreamReader._block_stop,
    "messageStop": StreamReader._message_stop,
    "metadata": StreamReader._take_metadata,
}


def _lines(data: bytes) -> Iterator[bytes]:
    """Line by line: what stands before a damaged one is still good."""
    yield from data.splitlines(keepends=True)


def _aws_pieces(rest: bytes, data: bytes) -> Iterator[bytes]:
    """The data, cut where frames end: what stands before a damaged one is still good."""
    buffer, start, given = rest + data, 0, len(rest)
    while given < len(buffer):
        known = len(buffer) - start >= 12
        end = start + max(16, struct.unpack_from(">I", buffer, start)[0]) if known else len(buffer)
        yield buffer[given:end]
        start = given = end


def _is_exception(event: str | None) -> bool:
    """Whether a frame tells of a failure; AWS names no event at all in those that no service modelled."""
    return event is None or event.lower().endswith(("exception", "error"))


def _upper_first(name: str) -> str:
    return name[:1].upper() + name[1:]


def _index(wire: dict[str, Any]) -> int:
    index = wire.get("contentBlockIndex")
    return index if type(index) is int else -1


def _kind_of(delta: dict[str, Any]) -> str | None:
    """Which kind of block a delta belongs to; ``None`` if it is malformed."""
    match delta:
        case {"text": str()} | {"citation": dict()}:
            return "text"
        case {"reasoningContent": {"redactedContent": str()}}:
            return "redacted"
        case {"reasoningContent": {"text": str()} | {"signature": str()}}:
            return "reasoning"
        case {"toolUse": {"input": str()}} | {"toolResult": list()} | {"image": dict()}:
            return next(kind for kind in _BEGUN if kind in delta)
        case _:  # one that a newer version added
            return next((key for key in delta if key not in (*_BEGUN, "text", "citation", "reasoningContent")), None)


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out, in the order that the official SDKs expect: one block after the other."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, *_FRAMES):
            raise LookupError(f"{NAME} streams are AWS event streams, not {framing!r}")
        self._framing = framing or "aws-eventstream"
        self._events: list[StreamEvent] = []

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the message has ended."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        event_frame, exception_frame = _FRAMES[self._framing]
        reply = fold(self._events)
        out = [event_frame(wire, event) for event, wire in _written_stream(reply)]
        fault = _unsaid_fault(reply)
        if fault is not None:
            out.append(exception_frame({"message": fault.message}, _stream_exception(fault)))
        return b"".join(out)


def _unsaid_fault(reply: Reply) -> Fault | None:
    """How it failed, unless there is a stop reason that says so."""
    return None if reply.fault is None or reply.fault.provider_code in MALFORMED else reply.fault


def _written_stream(reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
    wire = write_reply(reply).wire
    output = wire.pop("output")["message"]
    content = output.pop("content")
    yield "messageStart", output
    parts = [_stream_parts(block) for block in content]
    for index, (start, deltas) in enumerate(part for part in parts if part[1]):
        if start is not None:
            yield "contentBlockStart", {"contentBlockIndex": index, "start": start}
        for delta in deltas:
            yield "contentBlockDelta", {"contentBlockIndex": index, "delta": delta}
        yield "contentBlockStop", {"contentBlockIndex": index}
    if _unsaid_fault(reply) is not None:
        return
    stop = {key: wire.pop(key) for key in ("stopReason", "additionalModelResponseFields") if key in wire}
    yield "messageStop", stop
    if wire:
        yield "metadata", wire


def _stream_parts(block: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """How a block begins, where that has to be said, and its deltas; nothing for a block that no stream can carry."""
    match block:
        case {"text": text}:
            return None, [{"text": text}]
        case {"citationsContent": dict(cited)}:
            deltas = [{"text": part["text"]} for part in cited.get("content") or []]
            return None, deltas + [{"citation": citation} for citation in cited.get("citations") or []]
        case {"reasoningContent": {"reasoningText": dict(said)}}:
            signature = said.get("signature")
            signed = [{"reasoningContent": {"signature": signature}}] if signature is not None else []
            return None, [{"reasoningContent": {"text": said["text"]}}, *signed]
        case {"reasoningContent": {"redactedContent": data}}:
            return None, [{"reasoningContent": {"redactedContent": data}}]
        case {"toolUse": dict(call)}:
            start = {key: value for key, value in call.items() if key != "input"}
            return {"toolUse": start}, [{"toolUse": {"input": compact(call.get("input"))}}]
        case {"toolResult": dict(result)}:
            start = {key: value for key, value in result.items() if key != "content"}
            return {"toolResult": start}, [{"toolResult": result.get("content") or []}]
        case {"image": dict(image)}:
            rest = {key: value for key, value in image.items() if key != "format"}
            return {"image": {"format": image.get("format")}}, [{"image": rest}]
        case _:
            return None, []


_STREAM_EXCEPTIONS: Final = (
    "internalServerException",
    "modelStreamErrorException",
    "serviceUnavailableException",
    "throttlingException",
    "validationException",
)


def _stream_exception(fault: Fault) -> str:
    """One of the few failures that a stream can tell of."""
    own = (fault.provider_code or "")[:1].lower() + (fault.provider_code or "")[1:]
    if own in _STREAM_EXCEPTIONS:
        return own
    match fault.error_class:
        case ErrorClass.RATE_LIMIT:
            return "throttlingException"
        case ErrorClass.INVALID_REQUEST | ErrorClass.CONTEXT_OVERFLOW | ErrorClass.AUTH:
            return "validationException"
        case ErrorClass.SERVER_ERROR:
            return "internalServerException"
        case _:
            return "modelStreamErrorException"


def _aws_exception_frame(wire: Any, name: str) -> bytes:
    """A frame that tells of a failure: the SDKs know it by its headers."""
    headers = b"".join(
        bytes([len(key)]) + key + b"\x07" + struct.pack(">H", len(value)) + value
        for key, value in (
            (b":exception-type", name.encode()),
            (b":content-type", b"application/json"),
            (b":message-type", b"exception"),
        )
    )
    payload = msgspec.json.encode(wire)
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    body = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return body + struct.pack(">I", binascii.crc32(body))


def _decoded_exception_frame(wire: Any, name: str) -> bytes:
    """The same as recorders keep it."""
    return json_line({"headers": {":exception-type": name, ":message-type": "exception"}, "payload": wire}) + b"\n"


_FRAMES: Final = {
    "aws-eventstream": (aws_frame, _aws_exception_frame),
    "aws-eventstream-decoded": (decoded_aws_frame, _decoded_exception_frame),
}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
