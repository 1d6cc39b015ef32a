"""Streams of Cohere Chat, both ways: a message begins, its parts and calls begin, grow and end, and it ends.

Content and calls are counted apart on this wire; in events, a block's index is its place among all of them, as they
came. The one rule: only a message-end with a reason ends a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Literal

import msgspec

from dragoman.dialects.cohere.blocks import (
    NAME,
    PLAN,
    Call,
    call_from,
    cannot_say,
    form_of,
    natural_message,
    read_call,
    read_part,
    written_call,
    written_part,
)
from dragoman.dialects.cohere.error import read_error
from dragoman.dialects.cohere.reply import NO_ID, natural_reply, reply_from
from dragoman.dialects.parts.body import a_list, an_object
from dragoman.dialects.parts.conversation import Conversation
from dragoman.dialects.parts.faults import stream_error
from dragoman.dialects.parts.framing import json_text, sse_frame
from dragoman.dialects.parts.reading import FrameReader
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import list_in
from dragoman.dialects.parts.writing import EventWriter
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
)
from dragoman.exchange import Reply, StopReason
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)

_GROWING: Final = ("content", "tool_plan", "tool_calls", "citations")
_TEXTS: Final = ("text", "thinking")  # parts that grow, and the key that they grow in
_OF_OURS: Final[ProviderRaw] = {"dialect": NAME, "form": "thinking"}


# --- reading ---------------------------------------------------------------------------------------------------------


class _OpenCall:
    """A call whose input is still arriving."""

    def __init__(self, place: int, call_id: str) -> None:
        self.place = place
        self.call_id = call_id
        self.pieces: list[str] = []


class StreamReader(FrameReader):
    """Bytes in, events out. The events are put together to the answer that would have come whole, without its words."""

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing or "sse")
        self._reply: dict[str, Any] = {}
        self._message: dict[str, Any] | None = None
        self._parts: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._citations: list[Any] = []
        self._open_parts: dict[int, int] = {}  # index on the wire to the place among all blocks
        self._open_calls: dict[int, _OpenCall] = {}
        self._said: set[int] = set()  # places that an event has opened
        self._plan: int | None = None
        self._places = 0
        self._conversation = Conversation()

    def take(self, wire: dict[str, Any], name: str | None, events: list[StreamEvent]) -> None:
        """One event."""
        self.understood()
        kind = wire.get("type") or name
        if kind == "error" or (kind is None and isinstance(wire.get("message"), str)):
            events.append(StreamError(read_error(None, {}, wire)))
            return
        taking = _TAKING.get(str(kind))
        if taking is None:
            return  # of a newer version
        if self._message is None and kind != "message-start":
            raise FormatError(f"{kind} before message-start", where="event")
        taking(self, wire, events)

    def words(self, data: bytes) -> StreamEvent | None:
        """The next words of a part that has begun to say some."""
        if not self._open_parts:
            return None
        try:
            event = _PLAIN.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        place, part = self._open_parts.get(event.index), self._parts.get(event.index, {})
        text, thought = event.delta.message.content.text, event.delta.message.content.thinking
        if place is None:
            return None
        if text and not thought and part.get("type") == "text" and part["text"]:
            return TextDelta(place, text)
        if thought and not text and part.get("type") == "thinking" and part["thinking"]:
            return ThinkingDelta(place, thought, None, dict(_OF_OURS))
        return None

    def _message_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._message is not None:
            raise FormatError("message-start came a second time", where="event")
        self._reply = {"id": wire["id"]} if "id" in wire else {}
        self._message = dict(an_object(_delta(wire).get("message"), "message-start"))
        if self._message.get("content") or self._message.get("tool_calls") or self._message.get("tool_plan"):
            raise FormatError("a message begins empty", where="message-start")
        self._citations = list(a_list(self._message.get("citations") or [], "message-start"))
        form = form_of(self._message)
        told = {**self._reply, "message": self._message}
        events.append(MessageStart(None, noted(NAME, _natural_start(form), told, form=form)))

    def _content_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _next_index(wire, self._parts)
        part = self._parts[index] = dict(an_object(_delta_part(wire, "content"), "content-start"))
        if part.get("type") in _TEXTS and part.get(part["type"]) is None:
            part[part["type"]] = ""
        place = self._open_parts[index] = self._next_place()
        match read_part(part):
            case TextBlock(text, raw) if part["type"] == "text" and (text or raw is not None):
                self._say(TextDelta(place, text, raw), events)
            case ThinkingBlock(text, _, raw) if text or raw != _OF_OURS:
                self._say(ThinkingDelta(place, text, None, raw), events)

    def _content_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _open_index(wire, self._open_parts)
        delta = an_object(_delta_part(wire, "content"), "content-delta")
        if isinstance(wire.get("logprobs"), dict):
            self._reply.setdefault("logprobs", []).append(wire["logprobs"])
        part = self._parts[index]
        kind = str(part.get("type"))
        text = delta.get(kind) if kind in _TEXTS else None
        if not isinstance(text, str) or not text:
            return
        part[kind] = part[kind] or text  # the first words stand for all of them: they are never noted at the end
        place = self._open_parts[index]
        made = TextDelta(place, text) if kind == "text" else ThinkingDelta(place, text, None, dict(_OF_OURS))
        self._say(made, events)

    def _content_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _open_index(wire, self._open_parts)
        place = self._open_parts.pop(index)
        if place in self._said:
            return
        part = self._parts[index]
        match read_part(part):
            case TextBlock(text, raw) if part["type"] == "text":
                self._say(TextDelta(place, text, raw), events)
            case ThinkingBlock(text, _, raw):
                self._say(ThinkingDelta(place, text, None, raw), events)
            case block:
                events.append(BlockComplete(place, block))

    def _plan_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        text = _delta_part(wire, "tool_plan")
        if not isinstance(text, str) or not text or self._message is None:
            return
        if self._plan is None:
            self._plan = self._next_place()
            self._message["tool_plan"] = text
        events.append(TextDelta(self._plan, text, dict(PLAN)))

    def _call_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _next_index(wire, self._calls)
        call = dict(an_object(_delta_part(wire, "tool_calls"), "tool-call-start"))
        function = call["function"] = dict(an_object(call.get("function"), "tool-call-start"))
        text = function.get("arguments")
        if isinstance(text, str):
            function["arguments"] = ""
        block = read_call(call, "tool-call-start", self._conversation)
        opened = _OpenCall(self._next_place(), block.id)
        self._calls[index], self._open_calls[index] = call, opened
        events.append(ToolUseStart(opened.place, block.id, block.name, block.provider_raw))
        if text:
            opened.pieces.append(text)
            events.append(ToolUseInputDelta(opened.place, text))

    def _call_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        call = self._open_calls[_open_index(wire, self._open_calls)]
        delta = an_object(_delta_part(wire, "tool_calls"), "tool-call-delta")
        text = an_object(delta.get("function"), "tool-call-delta").get("arguments")
        if isinstance(text, str) and text:
            call.pieces.append(text)
            events.append(ToolUseInputDelta(call.place, text))

    def _call_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _open_index(wire, self._open_calls)
        opened = self._open_calls.pop(index)
        block = call_from(self._joined_call(index, opened), "tool-call-end", opened.call_id)
        events.append(ToolUseEnd(opened.place, block.provider_raw))

    def _joined_call(self, index: int, opened: _OpenCall) -> dict[str, Any]:
        call = self._calls[index]
        if opened.pieces:
            call["function"]["arguments"] = "".join(opened.pieces)
        return call

    def _citation(self, wire: dict[str, Any], _events: list[StreamEvent]) -> None:
        self._citations.append(_delta_part(wire, "citations"))

    def _message_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        delta = _delta(wire)
        if self._open_parts:
            raise FormatError(f"message-end while content {min(self._open_parts)} is open", where="event")
        if delta.get("finish_reason") is None:
            events.append(stream_error(NAME, "stream_incomplete", "the message ended without a reason"))
            return
        whole = reply_from({**self._reply, "message": self._whole_message(), **delta})
        if whole.usage is not None:
            events.append(UsageUpdate(whole.usage))
        if whole.fault is not None:
            events.append(StreamError(whole.fault, whole.provider_raw))
        else:
            events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))

    def _whole_message(self) -> dict[str, Any]:
        message = dict(self._message or {})
        for index, opened in self._open_calls.items():
            self._joined_call(index, opened)
        if self._parts:
            message["content"] = list(self._parts.values())
        if self._calls:
            message["tool_calls"] = list(self._calls.values())
        if self._citations:
            message["citations"] = self._citations
        return message

    def _say(self, delta: TextDelta | ThinkingDelta, events: list[StreamEvent]) -> None:
        self._said.add(delta.index)
        events.append(delta)

    def _next_place(self) -> int:
        self._places += 1
        return self._places - 1


_TAKING: Final[dict[str, Callable[[StreamReader, dict[str, Any], list[StreamEvent]], None]]] = {
    "message-start": StreamReader._message_start,
    "content-start": StreamReader._content_start,
    "content-delta": StreamReader._content_delta,
    "content-end": StreamReader._content_end,
    "tool-plan-delta": StreamReader._plan_delta,
    "tool-call-start": StreamReader._call_start,
    "tool-call-delta": StreamReader._call_delta,
    "tool-call-end": StreamReader._call_end,
    "citation-start": StreamReader._citation,
    "message-end": StreamReader._message_end,
}


class _PlainContent(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    thinking: str = ""


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True):
    content: _PlainContent


class _PlainDelta(msgspec.Struct, forbid_unknown_fields=True):
    message: _PlainMessage


class _PlainEvent(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["content-delta"]
    index: int
    delta: _PlainDelta


_PLAIN: Final = msgspec.json.Decoder(_PlainEvent)


def _natural_start(form: str | None) -> dict[str, Any]:
    return {"id": NO_ID, "message": natural_message("assistant", (), form)}


def _delta(wire: dict[str, Any]) -> dict[str, Any]:
    return an_object(wire.get("delta"), str(wire.get("type")))


def _delta_part(wire: dict[str, Any], key: str) -> Any:
    return an_object(_delta(wire).get("message"), str(wire.get("type"))).get(key)


def _next_index(wire: dict[str, Any], begun: dict[int, Any]) -> int:
    """An index after all that have begun, which stand in their order."""
    index = wire.get("index")
    if type(index) is not int or index <= next(reversed(begun), -1):
        raise FormatError(f"{wire.get('type')} for {index}, which cannot begin here", where="event")
    return index


def _open_index(wire: dict[str, Any], opened: dict[int, Any]) -> int:
    index = wire.get("index")
    if type(index) is not int or index not in opened:
        raise FormatError(f"{wire.get('type')} for {index}, which is not open", where="event")
    return index


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)


# --- writing ---------------------------------------------------------------------------------------------------------


class StreamWriter(EventWriter):
    """Events in, bytes out. A part is open until another block begins; citations come last, when they are known."""

    may_end_in_a_call = True

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        super().__init__(NAME)
        self._parts: dict[int, int] = {}  # place among all blocks to the index on the wire
        self._part_count = 0
        self._open_part: int | None = None  # its place
        self._calls: dict[int, int] = {}
        self._plan: int | None = None

    def begun(self, start: MessageStart) -> bytes:
        """The message, still empty."""
        notes = notes_of(start.provider_raw, NAME)
        told = restored(_natural_start(notes.get("form")), notes.get("residue"))
        message = told["message"] if notes else {**told["message"], "tool_plan": "", "tool_calls": [], "citations": []}
        empty = {key: type(message[key])() for key in _GROWING if message.get(key)}
        if isinstance(message.get("content"), str):
            empty["content"] = []
        named = {"id": told["id"]} if "id" in told else {}
        return _frame({**named, "type": "message-start", "delta": {"message": {**message, **empty}}})

    def text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Words of the plan, or of a part."""
        is_plan = notes_of(raw, NAME).get("form") == "tool_plan" and index not in self._parts
        if index == self._plan or (is_plan and self._plan is None):
            self._plan = index
            return _frame({"type": "tool-plan-delta", "delta": {"message": {"tool_plan": text}}}) if text else b""
        return self._words("text", index, text, TextBlock("", raw))

    def thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Reasoning, if it is of this origin."""
        is_ours = bool(notes_of(raw, NAME)) or index in self._parts
        return self._words("thinking", index, text, ThinkingBlock("", None, raw)) if is_ours else b""

    def call_begun(self, start: ToolUseStart) -> bytes:
        """A call without its input."""
        call = written_call(ToolUseBlock(start.id, start.name, {}, start.provider_raw))
        if isinstance(call["function"].get("arguments"), str):
            call["function"] = {**call["function"], "arguments": ""}
        at = self._calls[start.index] = len(self._calls)
        return self._part_ended() + _framed("tool-call-start", at, "tool_calls", call)

    def call_input(self, index: int, text: str) -> bytes:
        """A piece of the input."""
        piece = {"function": {"arguments": text}}
        return _framed("tool-call-delta", self._calls[index], "tool_calls", piece) if text else b""

    def call_ended(self, end: ToolUseEnd) -> bytes:
        """The call is complete."""
        return _frame({"type": "tool-call-end", "index": self._calls[end.index]})

    def whole(self, index: int, block: ContentBlock) -> bytes:
        """A block in one piece, if this wire can say it."""
        match block:
            case TextBlock(text, raw):
                return self.text(index, text, raw)
            case ThinkingBlock(text, _, raw):
                return self.thinking(index, text, raw)
            case ToolUseBlock() | InvalidToolUseBlock():
                return self._whole_call(index, block)
            case _ if cannot_say(block) is None:
                return self._part_begun(index, written_part(block)) + self._part_ended()
            case _:
                return b""

    def completed(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """The end, with everything that was learned since the beginning."""
        return self._ended_as(Reply(stop_reason=end.stop_reason, usage=usage), end.provider_raw)

    def failed(self, error: StreamError) -> bytes:
        """The end of what failed: this API names an error where it would have named the reason."""
        reply = Reply(stop_reason=StopReason.ERROR, usage=self.usage, fault=error.fault)
        return self._ended_as(reply, error.provider_raw)

    def _ended_as(self, reply: Reply, raw: ProviderRaw | None) -> bytes:
        notes = notes_of(raw, NAME)
        wire = restored(natural_reply(reply, (), notes.get("form")), notes.get("residue"))
        frames = [self._part_ended()]
        for index, citation in enumerate(list_in(wire["message"].get("citations"))):
            frames.append(_framed("citation-start", index, "citations", citation))
            frames.append(_frame({"type": "citation-end", "index": index}))
        delta = {key: value for key, value in wire.items() if key not in ("id", "message")}
        frames.append(_frame({"type": "message-end", "delta": delta}))
        return b"".join(frames) + b"data: [DONE]\n\n"

    def _words(self, key: str, index: int, text: str, begun: TextBlock | ThinkingBlock) -> bytes:
        """More of a part. One that has ended goes on as another part: this wire opens none twice."""
        opened = b""
        if self._open_part != index:
            if not text and index in self._parts:
                return b""
            opened = self._part_begun(index, {**written_part(begun), "type": key, key: ""})
        before, after = around = self._around_words(key, index)
        self.grows(TextDelta if key == "text" else ThinkingDelta, index, begun.provider_raw, around)
        return opened + (before + json_text(text) + after if text else b"")

    def _around_words(self, key: str, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the words in an event."""
        before, _, after = _framed("content-delta", self._parts[index], "content", {key: ""}).rpartition(b'""')
        return before, after

    def _part_begun(self, index: int, part: dict[str, Any]) -> bytes:
        ended = self._part_ended()
        self._open_part = index
        self._parts[index] = self._part_count
        self._part_count += 1
        return ended + _framed("content-start", self._parts[index], "content", part)

    def _part_ended(self) -> bytes:
        index, self._open_part = self._open_part, None
        return b"" if index is None else _frame({"type": "content-end", "index": self._parts[index]})

    def _whole_call(self, index: int, block: Call) -> bytes:
        text = msgspec.json.encode(block.input).decode() if isinstance(block, ToolUseBlock) else block.input_text
        start = ToolUseStart(index, block.id, block.name, block.provider_raw)
        return self.call_begun(start) + self.call_input(index, text) + self.call_ended(ToolUseEnd(index))


def _framed(kind: str, index: int, key: str, value: Any) -> bytes:
    return _frame({"type": kind, "index": index, "delta": {"message": {key: value}}})


def _frame(wire: dict[str, Any]) -> bytes:
    return sse_frame(wire, wire["type"])


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
