"""Streams, both ways: chunks that are each a response with a piece of the answer.

The one rule: a stream that has not ended properly never looks as if it had.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from dragoman.dialects.gemini.blocks import Turns, is_whole, natural_part, read_part
from dragoman.dialects.gemini.error import read_error, write_error
from dragoman.dialects.gemini.partial import PartialCall, raw_arguments
from dragoman.dialects.gemini.reply import finish_word, natural_rest, read_rest, read_usage, rest_notes, write_reply
from dragoman.dialects.gemini.spelling import NAME, in_camel
from dragoman.dialects.parts.conversation import a_list, an_object
from dragoman.dialects.parts.framing import FramingError, json_line, splitter, sse_frame
from dragoman.dialects.parts.residue import noted
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
from dragoman.exchange import ErrorClass, Fault, Reply
from dragoman.message import TextBlock, ThinkingBlock, ToolUseBlock

_OF_A_RESPONSE: Final = frozenset(
    {"candidates", "usageMetadata", "promptFeedback", "modelVersion", "responseId", "createTime"}
)


class StreamReader:
    """Bytes in, events out. Every chunk is a response with a piece of the answer; the pieces are put together here.

    There is no last chunk by name, and a finish reason may be followed by more of the answer (the model stops, its
    code is run, it goes on). So the end is the end of the stream, if the last piece of the answer had a reason.
    """

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "sse")
        self._before = b""  # white space, until it is clear what the stream is
        self._sniffed = False
        self._top: dict[str, Any] = {}
        self._first: dict[str, Any] = {}
        self._others: dict[int, dict[str, Any]] = {}
        self._turns = Turns()
        self._model: str | None = None
        self._open: dict[str, Any] | None = None  # the text that is still growing
        self._call: PartialCall | None = None  # the call whose arguments are still arriving
        self._arguments: list[str] = []  # of the calls in this chunk, as they stand there
        self._blocks = 0
        self._has_parts = False
        self._called = False
        self._begun = False
        self._finished = False
        self._done = False
        self._failed = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        if self._failed:
            return events
        data = self._sniff(data)
        try:
            for frame in self._splitter.feed(data):
                self._take(frame.data, events)
        except FramingError as error:
            self._fail("bad_event", str(error), events)
        return events

    def _sniff(self, data: bytes) -> bytes:
        """The API answers some errors with plain JSON where events were asked for; and a relay, with an array."""
        if self._sniffed:
            return data
        data = self._before + data
        begin = data.lstrip()[:1]
        self._sniffed, self._before = bool(begin), b"" if begin else data
        if begin in (b"[", b"{"):
            self._splitter = splitter("json-array")
            return b"[" + data if begin == b"{" else data
        return data if begin else b""

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        tail = b""
        if not self._failed:
            for frame in self._splitter.close():
                self._take(frame.data, events)
            tail = self._splitter.tail
            if _is_last_chunk(tail):  # only its empty line is missing
                self._take(tail, events)
                tail = b""
        if not self._failed and self._finished and (self._done or not tail.strip()):
            self._complete(events)
        elif not self._failed:
            kept = tail[:4096].decode("utf-8", "replace")
            self._fail("stream_incomplete", "the stream ended before the answer did", events, tail=kept or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._done or self._failed:
            return
        if data.strip() == b"[DONE]":  # not Google's, but that of relays
            self._done = True
            return
        try:
            wire = msgspec.json.decode(data)
            self._arguments = raw_arguments(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._fail("bad_event", "an event that is not JSON", events)
            return
        for chunk in wire if type(wire) is list else [wire]:
            if type(chunk) is not dict:
                self._fail("bad_event", "an event that is no object", events)
            elif not self._failed:
                self._take_chunk(chunk, events)

    def _take_chunk(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        if "error" in chunk:
            events.append(StreamError(read_error(None, {}, chunk)))
            self._failed = True
            return
        if not _OF_A_RESPONSE & set(chunk):
            return
        self._top.update((key, value) for key, value in chunk.items() if key != "candidates")
        if not self._begun:
            self._begun = True
            self._model = text_or_none(chunk.get("modelVersion"))
            self._turns = Turns(str(chunk.get("responseId", "")))
            events.append(MessageStart(self._model))
        try:
            for candidate in a_list(chunk.get("candidates") or [], "candidates"):
                self._take_candidate(an_object(candidate, "candidates"), events)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)
            return
        feedback = chunk.get("promptFeedback")
        if isinstance(feedback, dict) and feedback.get("blockReason") and not self._first:
            self._finished = True
        usage = read_usage(chunk.get("usageMetadata"))
        if usage is not None and not self._failed:
            events.append(UsageUpdate(usage))

    def _take_candidate(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = wire.get("index", 0)
        content = wire.get("content")
        content = content if isinstance(content, dict) else {}
        parts = a_list(content.get("parts") or [], "parts")
        if type(index) is int and index > 0:
            _merge_candidate(self._others.setdefault(index, {}), wire, parts)
            return
        self._first.update((key, value) for key, value in wire.items() if key != "content")
        if "content" in wire:
            known = self._first.get("content") or ({} if isinstance(wire["content"], dict) else None)
            more = {key: value for key, value in content.items() if key != "parts"}
            self._first["content"] = {**known, **more} if known is not None else None
        self._has_parts = self._has_parts or bool(parts)
        for part in parts:
            self._take_part(an_object(part, "parts"), events)
        if wire.get("finishReason") is not None:
            self._finished = True
        elif parts:
            self._finished = False

    def _take_part(self, item: dict[str, Any], events: list[StreamEvent]) -> None:
        part, _ = in_camel(item)
        call = part.get("functionCall")
        arguments = self._arguments.pop(0) if self._arguments and isinstance(call, dict) else None
        if isinstance(call, dict) and (self._call is not None or not is_whole(call)):
            self._take_partial(part, call, events)
            return
        said = part.get("text")
        if isinstance(said, str):
            if self._open is None and set(part) <= {"text", "thought"} and not said:
                return  # a chunk that has nothing to say
            self._take_text(item, said, is_thought=part.get("thought") is True, events=events)
            return
        self._close_text(events)
        block = read_part(item, "model", self._turns, "parts")
        index, self._blocks = self._blocks, self._blocks + 1
        if isinstance(block, ToolUseBlock):
            self._called = True
            events.append(ToolUseStart(index, block.id, block.name))
            text = arguments if block.input and arguments else msgspec.json.encode(block.input).decode()
            events.append(ToolUseInputDelta(index, text))
            events.append(ToolUseEnd(index, block.provider_raw))
        elif isinstance(block, ThinkingBlock):
            events.append(ThinkingDelta(index, block.text, block.signature, block.provider_raw))
        else:
            events.append(BlockComplete(index, block))

    def _take_text(self, item: dict[str, Any], text: str, *, is_thought: bool, events: list[StreamEvent]) -> None:
        """Texts of one kind that follow each other are one; its signature is the last one that came."""
        if self._open is not None and (self._open.get("thought") is True) is not is_thought:
            self._close_text(events)
            if not text and set(item) <= {"text", "thought"}:
                return
        self._open = {**self._open, **item, "text": self._open["text"] + text} if self._open else dict(item)
        made: type[TextDelta | ThinkingDelta] = ThinkingDelta if is_thought else TextDelta
        if text:
            events.append(made(self._blocks, text))

    def _close_text(self, events: list[StreamEvent]) -> None:
        if self._open is None:
            return
        block = read_part(self._open, "model", self._turns, "parts")
        match block:
            case TextBlock(text, raw) if raw is not None or not text:
                events.append(TextDelta(self._blocks, "", raw))
            case ThinkingBlock(_, signature, raw):
                events.append(ThinkingDelta(self._blocks, "", signature, raw))
        self._open = None
        self._blocks += 1

    def _take_partial(self, part: dict[str, Any], call: dict[str, Any], events: list[StreamEvent]) -> None:
        """Some of a call's arguments. It is a call when the last of them has come."""
        if self._call is None:
            self._close_text(events)
            self._call = PartialCall(self._blocks, part, call)
            self._blocks += 1
            self._call.id = self._turns.called(self._call.name, self._call.provider_id)
            events.append(ToolUseStart(self._call.index, self._call.id, self._call.name))
        if not self._call.take(part, call):
            return
        done, self._call, self._called = self._call, None, True
        whole = done.part()
        notes = {"id": done.provider_id if done.provider_id != done.id else None}
        block = ToolUseBlock(done.id, done.name, done.args)
        events.append(ToolUseInputDelta(done.index, msgspec.json.encode(done.args).decode()))
        events.append(ToolUseEnd(done.index, noted(NAME, natural_part(block, notes), whole, **notes)))

    def _complete(self, events: list[StreamEvent]) -> None:
        self._close_text(events)
        rest = dict(self._top)
        form: str | None = "none"
        if self._first:
            form = None if self._has_parts else "absent"
            rest["candidates"] = [self._first]
        others = [self._others[index] for index in sorted(self._others)] or None
        reply = read_rest(rest, self._model, called=self._called)
        notes = {"form": form, "others": others, **rest_notes(rest)}
        raw = noted(NAME, natural_rest(reply, notes), rest, **notes)
        if reply.fault is not None:
            events.append(StreamError(reply.fault, raw))
        else:
            events.append(MessageComplete(reply.stop_reason, None, raw))
        self._failed = True  # nothing more is taken

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._failed = True


def _is_last_chunk(tail: bytes) -> bool:
    """Whether what was left over is a whole chunk that ends the answer. JSON that is cut is not JSON."""
    try:
        wire = msgspec.json.decode(tail) if tail else None
        return bool(wire["candidates"][0]["finishReason"])  # type: ignore[index]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return False


def _merge_candidate(known: dict[str, Any], wire: dict[str, Any], parts: list[Any]) -> None:
    """Another candidate than the first: kept as it came, its parts in a row."""
    before = known.get("content") or {}
    content = wire.get("content")
    known.update(wire)
    if isinstance(content, dict) or before:
        merged = {**before, **(content if isinstance(content, dict) else {})}
        known["content"] = {**merged, "parts": [*before.get("parts", []), *parts]}


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out: one chunk for each part, the last one with all that is said about the whole."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse", "json-array"):
            raise LookupError(f"{NAME} streams are server-sent events or one JSON array, not {framing!r}")
        self._is_array = framing == "json-array"
        self._events: list[StreamEvent] = []

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the whole is known."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The stream."""
        chunks = _written_chunks(fold(self._events))
        if self._is_array:
            return b"[" + b",\n".join(json_line(chunk) for chunk in chunks) + b"]"
        return b"".join(sse_frame(chunk) for chunk in chunks)


def _written_chunks(reply: Reply) -> list[dict[str, Any]]:
    wire = write_reply(reply).wire
    candidates = wire.get("candidates") or [{}]
    first, content = candidates[0], candidates[0].get("content") or {}
    head = {key: wire[key] for key in ("modelVersion", "responseId") if key in wire}
    around = {key: first[key] for key in ("index",) if key in first}
    parts = content.get("parts") or []
    has_failed = reply.fault is not None and finish_word(reply) is None
    alone = parts if has_failed else parts[:-1]
    chunks = [{"candidates": [{"content": {**content, "parts": [part]}, **around}], **head} for part in alone]
    if has_failed and reply.fault is not None:
        return [*chunks, write_error(reply.fault).wire]
    if parts:
        last = {**first, "content": {**content, "parts": parts[-1:]}}
        wire = {**wire, "candidates": [last, *candidates[1:]]}
    return [*chunks, wire]


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
