"""Streams of Chat Completions: bytes into events, and events into bytes.

The one rule: what was cut, damaged or out of order never looks complete.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dragoman.dialects.openai_chat.blocks import LEGACY_ID, NAME
from dragoman.dialects.openai_chat.chunks import Completion, Piece, Place, chunk_from, chunks_from
from dragoman.dialects.openai_chat.error import read_error, write_error
from dragoman.dialects.openai_chat.reply import UNUSABLE, read_usage, reply_from, write_reply
from dragoman.dialects.parts.conversation import Conversation
from dragoman.dialects.parts.framing import FramingError, splitter, sse_frame
from dragoman.dialects.parts.scalars import text_or_none
from dragoman.errors import FormatError
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
from dragoman.exchange import ErrorClass, Fault
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)


class StreamReader:
    """Bytes in, events out. The completion is put together as it stood on the wire, and read as a whole at its end.

    The quirk ``terminal_reason_optional`` is for those who end complete answers without a reason (Ollama): then
    ``[DONE]`` is the end. Everybody else's stream without a reason was cut.
    """

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        self._splitter = splitter(framing or "sse")
        self._reason_optional = "terminal_reason_optional" in quirks
        self._completion = Completion()
        self._conversation = Conversation()
        self._indexes: dict[Place, int] = {}
        self._opened: set[Place] = set()
        self._pending: dict[Place, str] = {}  # input of calls that have no name yet
        self._start: MessageStart | None = None
        self._usage: TokenUsage | None = None
        self._over = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        if not self._over:
            try:
                for frame in self._splitter.feed(data):
                    self._take(frame.data, events)
            except FramingError as error:
                self._fail("bad_event", str(error), events)
        return events

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        for frame in self._splitter.close() if not self._over else ():
            self._take(frame.data, events)
        if not self._over:
            if self._completion.first.finish_reason is not None:  # the reason came, [DONE] did not
                self._complete(events)
            else:
                tail = self._splitter.tail[:4096].decode("utf-8", "replace")
                self._fail("stream_incomplete", "the stream ended before the message did", events, tail=tail or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._over:
            return
        if data.strip() == b"[DONE]":
            self._done(events)
            return
        wire = chunk_from(data)
        if wire is None:
            self._fail("bad_event", "an event that is not a JSON object", events)
        elif wire.get("error"):
            self._completion.add({key: value for key, value in wire.items() if key != "choices"})
            self._update_usage(events)
            events.append(StreamError(read_error(None, {}, wire)))
            self._over = True
        else:
            self._chunk(wire, events)

    def _chunk(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        try:
            pieces = self._completion.add(wire)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)
            return
        if self._start is None and self._completion.choices:
            self._start = MessageStart(text_or_none(self._completion.top.get("model")))
            events.append(self._start)
        for piece in pieces:
            self._piece(piece, events)
        self._update_usage(events)

    def _piece(self, piece: Piece, events: list[StreamEvent]) -> None:
        index = self._indexes.setdefault(piece.place, len(self._indexes))
        match piece.kind:
            case "text" if piece.text:
                self._opened.add(piece.place)
                events.append(TextDelta(index, piece.text))
            case "thinking" if piece.text:
                self._opened.add(piece.place)
                events.append(ThinkingDelta(index, piece.text))
            case "call":
                self._call(piece, index, events)

    def _call(self, piece: Piece, index: int, events: list[StreamEvent]) -> None:
        """A call begins when its name is known; input that came earlier waits for it."""
        text = self._pending.pop(piece.place, "") + piece.text
        call = self._completion.first.call(piece.place)
        name = call["function"].get("name")
        if not isinstance(name, str) or not name:
            self._pending.update({piece.place: text} if text else {})
            return
        if piece.place not in self._opened:
            self._opened.add(piece.place)
            is_legacy = piece.place[0] == "function_call"
            provider_id = LEGACY_ID + name if is_legacy else text_or_none(call.get("id")) or ""
            events.append(ToolUseStart(index, self._conversation.call_id(provider_id), name))
        if text:
            events.append(ToolUseInputDelta(index, text))

    def _update_usage(self, events: list[StreamEvent]) -> None:
        usage = read_usage(self._completion.top)
        if usage is not None and usage != self._usage:
            self._usage = usage
            events.append(UsageUpdate(usage))

    def _done(self, events: list[StreamEvent]) -> None:
        is_enough = self._reason_optional and self._completion.choices
        if self._completion.first.finish_reason is not None or is_enough:
            self._complete(events)
        else:
            self._fail("stream_incomplete", "the message ended without a reason", events)

    def _complete(self, events: list[StreamEvent]) -> None:
        if self._pending:
            self._fail("protocol_violation", "a call that was never named", events)
            return
        first = self._completion.first
        model = self._start.model if self._start else None
        body = self._completion.wire()
        reply, placed = reply_from(body, Conversation(), first.origin, model=model, usage=self._usage)
        for place, block in placed:
            index = self._indexes.setdefault(place, len(self._indexes))
            self._close_block(index, block, events, is_open=place in self._opened)
        raw = reply.provider_raw
        if first.late:
            raw = {"dialect": NAME, **(raw or {}), "late": "".join(first.late)[:4096]}
        if reply.fault is not None:
            events.append(StreamError(reply.fault, raw))
        else:
            events.append(MessageComplete(reply.stop_reason, reply.stop_sequence, raw))
        self._over = True

    def _close_block(self, index: int, block: ContentBlock, events: list[StreamEvent], *, is_open: bool) -> None:
        raw: ProviderRaw | None = getattr(block, "provider_raw", None)
        match block:
            case ToolUseBlock() | InvalidToolUseBlock() if is_open:
                events.append(ToolUseEnd(index, raw))
            case TextBlock() if is_open:
                if raw is not None:
                    events.append(TextDelta(index, "", raw))
            case ThinkingBlock() if is_open:
                events.append(ThinkingDelta(index, "", block.signature, raw))
            case _:
                events.append(BlockComplete(index, block))

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._over = True


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:
    """A reader of this dialect's streams, as one who has these quirks sends them."""
    return StreamReader(framing, quirks)


class StreamWriter:
    """Events in, bytes out: chunks as the official SDKs expect them, and ``[DONE]``."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        self._events: list[StreamEvent] = []

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the message has ended."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        reply = fold(self._events)
        wire = write_reply(reply).wire
        if reply.fault is None or reply.fault.code in UNUSABLE:
            return b"".join([*map(sse_frame, chunks_from(wire)), b"data: [DONE]\n\n"])
        chunks = chunks_from(wire, finished=False) if wire.get("choices") else ()
        return b"".join([*map(sse_frame, chunks), sse_frame(write_error(reply.fault).wire)])


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
