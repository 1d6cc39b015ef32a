"""Streams of Chat Completions: bytes in, events out.

The completion is put together as it stood on the wire, and read as a whole at its end. Most chunks repeat the one
before them but for a few words: these are recognised by their types, and only the words are looked at. Every other
chunk is looked at key by key.

The one rule: what was cut, damaged or out of order never looks complete.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from dragoman.dialects.openai_chat.blocks import ABSENT, LEGACY_ID, NAME, notes_of_message, read_blocks
from dragoman.dialects.openai_chat.chunks import THINKING_FIELDS, Completion, Piece, Place, chunk_from
from dragoman.dialects.openai_chat.error import read_error
from dragoman.dialects.openai_chat.repeats import EVENTS, Pattern, taken_out, typed_chunk
from dragoman.dialects.openai_chat.reply import natural_reply, read_usage, reply_from
from dragoman.dialects.parts.body import unkept
from dragoman.dialects.parts.conversation import Conversation
from dragoman.dialects.parts.faults import HEAD_BYTES, early_end, stream_error
from dragoman.dialects.parts.framing import FramingError, splitter
from dragoman.dialects.parts.late import Late
from dragoman.dialects.parts.reading import EventReader
from dragoman.dialects.parts.residue import fingerprint, noted
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
    later_usage,
)
from dragoman.exchange import Reply, StopReason
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)

_HALF: Final = "half of a character in a text"
_TRIES: Final = 16  # of chunks that have another shape, before none is looked at any more


class StreamReader(EventReader):
    """Bytes in, events out.

    The quirk ``terminal_reason_optional`` is for those who end complete answers without a reason (Ollama): then
    ``[DONE]`` is the end. Everybody else's stream without a reason was cut.
    """

    _dialect = NAME

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        self._splitter = splitter(framing or "sse")
        self._only = getattr(self._splitter, "only", _none)
        self._head: bytes | None = b""  # the first bytes, as long as no event has come
        self._reason_optional = "terminal_reason_optional" in quirks
        self._completion = Completion()
        self._conversation = Conversation()
        self._indexes: dict[Place, int] = {}
        self._opened: set[Place] = set()
        self._whole: set[Place] = set()  # blocks that came at once and were told already
        self._waiting: set[str] = set()  # keys with a block that is told at the end
        self._signatures: dict[int, str] = {}  # of reasoning details, as they were told
        self._halves: dict[Place, str] = {}  # half of a character, whose other half may follow
        self._pending: dict[Place, str] = {}  # input of calls that have no name yet
        self._pattern: Pattern | None = None
        self._tries = _TRIES
        self._start: MessageStart | None = None
        self._usage: TokenUsage | None = None
        self._late = Late(NAME)
        self._is_complete = False
        self._over = False

    def read(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        pattern = self._pattern
        if pattern is not None and pattern.before and data.startswith(pattern.before):
            words = pattern.words_in(data)
            if words:
                pattern.words.append(words)
                events.append(pattern.event(pattern.index, words))
                return
        only = self._only(data) if pattern is not None else None
        if pattern is not None and only is not None and self._take_words(only, pattern, events):
            if pattern.tries > 0:
                pattern.learn(data, only, pattern.words[-1])
            return
        if pattern is not None:
            pattern.before = b""  # what comes next may be the rest of an event
        if self._head is not None:
            self._head = (self._head + data)[:HEAD_BYTES]
        try:
            for frame in self._splitter.feed(data):
                self._head = None
                self._take(frame.data, events)
        except FramingError as error:
            self._fail("bad_event", str(error), events)

    def finish(self, events: list[StreamEvent]) -> None:
        """Append the events at the end of the stream; a fault, if it ended too early."""
        for frame in self._splitter.close():
            self._head = None
            self._take(frame.data, events)
        if not self._over:
            if self._completion.first.finish_reason is not None:  # the reason came, [DONE] did not
                self._complete(events)
            else:
                self._end(early_end(NAME, self._head, self._splitter.tail), events)

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._over:
            if self._is_complete and b'"delta"' in data:
                self._late.add("")
        elif self._pattern is None or not self._take_words(data, self._pattern, events):
            self._take_any(data, events)

    def _take_words(self, data: bytes, pattern: Pattern, events: list[StreamEvent]) -> bool:
        """Take a chunk that repeats the one before but for a few words; whether it was that."""
        try:
            chunk = typed_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        (choice,) = chunk.choices
        words = taken_out(choice.delta, pattern.key)
        if not words or not pattern.repeats(chunk, choice):
            return False
        pattern.words.append(words)
        events.append(pattern.event(pattern.index, words))
        return True

    def _take_any(self, data: bytes, events: list[StreamEvent]) -> None:
        self._pattern = None
        if data.strip() == b"[DONE]":
            self._done(events)
            return
        wire = chunk_from(data)
        if wire is None:
            self._fail("bad_event", "an event that is not a JSON object", events, data)
        elif wire.get("error"):
            self._completion.add({key: value for key, value in wire.items() if key != "choices"})
            self._update_usage(events)
            self._end(StreamError(read_error(None, {}, wire)), events)
        else:
            try:
                self._chunk(wire, events)
            except (ValueError, RecursionError) as error:
                self._fail("bad_event", unkept(error)[1], events)
            self._learn(data)

    def _learn(self, data: bytes) -> None:
        """Look whether the next chunk may repeat this one."""
        first = self._completion.first
        if self._tries <= 0 or self._over or first.finish_reason is not None or self._halves or self._pending:
            return
        self._tries -= 1
        try:
            chunk = typed_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        (choice,) = chunk.choices
        said = [key for key in EVENTS if getattr(choice.delta, key)]
        if len(said) != 1 or choice.index or not self._completion.is_settled:
            return
        (key,) = said
        calls = choice.delta.tool_calls
        at = first.position(calls[0].index) if calls else 0
        if at is None or not taken_out(choice.delta, key):
            return
        place = (key, at)
        is_other = (key in THINKING_FIELDS and key != first.origin) or (key == "content" and first.part(0) is not None)
        if place in self._opened and not is_other:
            self._tries = _TRIES
            self._pattern = Pattern(key, chunk, choice, self._indexes[place], first.words[place], EVENTS[key])

    def _chunk(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        try:
            pieces = self._completion.add(wire)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)
            return
        if self._start is None and self._completion.choices:
            self._start = MessageStart(text_or_none(self._completion.top.get("model")), self._start_notes())
            events.append(self._start)
        try:
            for piece in pieces:
                self._piece(piece, events)
        except FormatError as error:
            self._fail("bad_event", str(error), events)
            return
        late = self._completion.first.late
        if late:
            self._late.add("".join(late))
            late.clear()
        self._update_usage(events)

    def _start_notes(self) -> ProviderRaw | None:
        """What the notes about the reply will be, as far as they are known."""
        top, first = self._completion.top, self._completion.first
        message = {key: value for key, value in first.message.items() if not value or key not in _HOLDS_BLOCKS}
        message = {key: value for key, value in message.items() if key == "content" or (key, 0) not in first.words}
        if ("content", 0) in first.words or isinstance(message.get("content"), list):
            message["content"] = None
        return _plain_start_notes(top, message) or _start_notes(top, message)

    def _update_usage(self, events: list[StreamEvent]) -> None:
        top = self._completion.top
        usage = read_usage(top) if "usage" in top or "x_groq" in top else None
        if usage is not None and (usage := later_usage(self._usage, usage)) != self._usage:
            self._usage = usage
            events.append(UsageUpdate(usage))

    # --- pieces

    def _piece(self, piece: Piece, events: list[StreamEvent]) -> None:
        key, at = place = piece.place
        index = self._indexes.setdefault(place, len(self._indexes))
        match piece.kind:
            case "call":
                self._call(piece, index, events)
            case "text" | "thinking":
                self._words(piece, index, events)
            case "whole" if key not in self._waiting:
                self._whole.add(place)
                first = self._completion.first
                wire = first.part(at) if key == "content" else first.detail(at)
                events.append(BlockComplete(index, _block_from(key, [wire])))
            case _:  # told at the end, and so are those that stand behind it
                self._waiting.add(key)

    def _words(self, piece: Piece, index: int, events: list[StreamEvent]) -> None:
        key, at = place = piece.place
        text = self._whole_characters(place, piece.text)
        signature = self._completion.first.detail(at).get("signature") if key == "reasoning_details" else None
        signature = signature if isinstance(signature, str) and self._signatures.get(at) != signature else None
        is_open = place in self._opened
        if not text and (signature is None or not is_open):
            if not is_open:
                self._waiting.add(key)
            return
        raw = None if is_open else self._first_notes(place, piece.text)
        self._opened.add(place)
        if signature is not None:
            self._signatures[at] = signature
        if piece.kind == "text":
            events.append(TextDelta(index, text, raw))
        else:
            events.append(ThinkingDelta(index, text, signature, raw))

    def _whole_characters(self, place: Place, text: str) -> str:
        """The text as far as its characters are whole. Half of one waits for its other half, which may follow."""
        text = self._halves.pop(place, "") + text
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            self._halves[place] = text[-1]
            text = text[:-1]
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise FormatError(_HALF, where="choices") from None

    def _first_notes(self, place: Place, text: str) -> ProviderRaw | None:
        """What to know of a block that begins: where it stands, and the fields that repeat its words beside it."""
        key, at = place
        first = self._completion.first
        raw: ProviderRaw = {"dialect": NAME, "at": key}
        match key:
            case "content":
                part = first.part(at)
                if part is None:
                    return None
                raw.update(_notes_about(_block_from(key, [part])))
            case "reasoning_details":
                raw.update(_notes_about(_block_from(key, [first.detail(at)])))
        others = [other for other in THINKING_FIELDS if other != key and key in (*THINKING_FIELDS, "reasoning_details")]
        beside = [other for other in others if first.words.get((other, 0), [""])[-1] == text]
        return {**raw, "beside": beside} if beside else raw

    def _call(self, piece: Piece, index: int, events: list[StreamEvent]) -> None:
        """A call begins when its name is known; input that came earlier waits for it."""
        place = piece.place
        text = self._pending.pop(place, "") + self._whole_characters(place, piece.text)
        call = self._completion.first.call(place)
        name = call["function"].get("name")
        if not isinstance(name, str) or not name:
            self._pending.update({place: text} if text else {})
            return
        if place not in self._opened:
            self._opened.add(place)
            is_legacy = place[0] == "function_call"
            provider_id = LEGACY_ID + name if is_legacy else text_or_none(call.get("id")) or ""
            function = dict(call["function"])
            if isinstance(function.get("arguments"), str):
                function["arguments"] = "{}"  # what they say comes piece by piece
            wire = function if is_legacy else [{**call, "function": function}]
            raw = _notes_about(_block_from(place[0], wire)) or None
            events.append(ToolUseStart(index, self._conversation.call_id(provider_id), name, raw))
        if text:
            events.append(ToolUseInputDelta(index, text))

    # --- the end

    def _done(self, events: list[StreamEvent]) -> None:
        if 0 not in self._completion.choices:
            self._fail("empty_response", "the stream ended and nothing was said", events)
        elif self._completion.first.finish_reason is not None or self._reason_optional:
            self._complete(events)
        else:
            self._fail("stream_incomplete", "the message ended without a reason", events)

    def _complete(self, events: list[StreamEvent]) -> None:
        if self._pending:
            self._fail("protocol_violation", "a call that was never named", events)
            return
        if self._halves:
            self._fail("bad_event", _HALF, events)
            return
        model = self._start.model if self._start else None
        body, origin = self._completion.wire(), self._completion.first.origin
        try:
            reply, placed = reply_from(body, Conversation(), origin, model=model, usage=self._usage)
        except (ValueError, RecursionError) as error:
            self._fail("bad_event", unkept(error)[1], events)
            return
        for place, block in placed:
            if place not in self._whole:
                index = self._indexes.setdefault(place, len(self._indexes))
                self._close_block(index, block, events, is_open=place in self._opened)
        raw = self._late.noted(reply.provider_raw)
        if reply.fault is not None:
            self._end(StreamError(reply.fault, raw), events)
        else:
            self._end(MessageComplete(reply.stop_reason, reply.stop_sequence, raw), events)

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

    def _fail(self, code: str, message: str, events: list[StreamEvent], data: bytes = b"") -> None:
        tail = data[:4096].decode("utf-8", "backslashreplace")
        self._end(stream_error(NAME, code, message, tail=tail), events)

    def _end(self, event: StreamEvent, events: list[StreamEvent]) -> None:
        events.append(event)
        self._is_complete = isinstance(event, MessageComplete)
        self._over = True
        self._pattern = None


_NATURAL: Final = natural_reply(Reply(stop_reason=StopReason.END_TURN))
_MADE_UP: Final = {key: fingerprint(_NATURAL[key]) for key in ("id", "created")}


def _start_notes(top: dict[str, Any], message: dict[str, Any]) -> ProviderRaw | None:
    natural = natural_reply(Reply(stop_reason=StopReason.END_TURN, model=text_or_none(top.get("model"))))
    rest = {key: value for key, value in top.items() if key != "usage"}
    notes = notes_of_message(Role.ASSISTANT, [], message, reply=True)
    return noted(NAME, natural, {**rest, "object": natural["object"]}, message=notes)


def _plain_start_notes(top: dict[str, Any], message: dict[str, Any]) -> ProviderRaw | None:
    """The same for what most streams begin with: an id, a time, a model and a role."""
    provider_id, created, content = top.get("id"), top.get("created"), message.get("content", ABSENT)
    if type(provider_id) is not str or type(created) is not int or type(top.get("model")) is not str:
        return None
    if provider_id == _NATURAL["id"] or created == _NATURAL["created"] or message.get("role") != "assistant":
        return None
    if content is not None and content != "":
        return None
    numbers = {"id": {"is": provider_id, "was": _MADE_UP["id"]}, "created": {"is": created, "was": _MADE_UP["created"]}}
    added = {key: value for key, value in top.items() if key not in _NATURAL and key != "usage"}
    beside = {key: value for key, value in message.items() if key not in ("role", "content")}
    notes: dict[str, Any] = {"form": "empty"} if content == "" else {}
    if beside:
        notes["residue"] = {"set": beside}
    raw: ProviderRaw = {"dialect": NAME, "residue": {"set": added, "in": numbers} if added else {"in": numbers}}
    return {**raw, "message": {"dialect": NAME, **notes}} if notes else raw


_HOLDS_BLOCKS: Final = (
    *THINKING_FIELDS,
    "refusal",
    "reasoning_opaque",
    "reasoning_details",
    "tool_calls",
    "function_call",
)


def _block_from(key: str, wire: Any) -> ContentBlock:
    """The block that stands alone under a key of a message."""
    origin = key if key in THINKING_FIELDS else "reasoning_details"
    ((_, block),) = read_blocks({key: wire}, "$", Conversation(), is_answer=True, origin=origin)
    return block


def _notes_about(block: ContentBlock) -> ProviderRaw:
    return getattr(block, "provider_raw", None) or {}


def _none(_data: bytes) -> None:
    """Nothing: a framing whose events are only seen one after the other."""


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:
    """A reader of this dialect's streams, as one who has these quirks sends them."""
    return StreamReader(framing, quirks)
