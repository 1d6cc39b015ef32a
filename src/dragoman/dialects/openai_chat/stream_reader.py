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

from dragoman.dialects.openai_chat.blocks import ABSENT, LEGACY_ID, NAME, make_message_notes, read_blocks
from dragoman.dialects.openai_chat.chunks import THINKING_FIELDS, Completion, Piece, Place, decode_chunk
from dragoman.dialects.openai_chat.error import read_error
from dragoman.dialects.openai_chat.repeats import EVENTS, Pattern, decode_plain_chunk, pop_text
from dragoman.dialects.openai_chat.reply import default_reply, make_reply, read_usage
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
from dragoman.jsontext import storage_problem, text_or_none
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
from dragoman.wire.faults import HEAD_BYTES, early_end, stream_error
from dragoman.wire.frames import FramingError, make_splitter
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import fingerprint, make_notes
from dragoman.wire.stream_reader import EventReader, TrailingData

_LONE_SURROGATE: Final = "half of a character in a text"
_MAX_TRIES: Final = 16  # of chunks that have another shape, before none is looked at any more


class StreamReader(EventReader):
    """Bytes in, events out.

    The quirk ``terminal_reason_optional`` is for those who end complete answers without a reason (Ollama): then
    ``[DONE]`` is the end. Everybody else's stream without a reason was cut.
    """

    _dialect = NAME

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        self._splitter = make_splitter(framing or "sse")
        self._single_event = getattr(self._splitter, "single_event", _no_event)
        self._head: bytes | None = b""  # the first bytes, as long as no event has come
        self._is_reason_optional = "terminal_reason_optional" in quirks
        self._completion = Completion()
        self._builder = MessageBuilder()
        self._indexes: dict[Place, int] = {}
        self._open_places: set[Place] = set()
        self._complete_places: set[Place] = set()  # blocks that came at once and were told already
        self._deferred_keys: set[str] = set()  # keys with a block that is told at the end
        self._signatures: dict[int, str] = {}  # of reasoning details, as they were told
        self._pending_surrogates: dict[Place, str] = {}  # half of a character, whose other half may follow
        self._unnamed_inputs: dict[Place, str] = {}  # input of calls that have no name yet
        self._pattern: Pattern | None = None
        self._tries = _MAX_TRIES
        self._start: MessageStart | None = None
        self._usage: TokenUsage | None = None
        self._trailing = TrailingData(NAME)
        self._is_complete = False
        self._is_over = False

    def read(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        pattern = self._pattern
        if pattern is not None and pattern.before and data.startswith(pattern.before):
            text = pattern.find_text(data)
            if text:
                pattern.texts.append(text)
                events.append(pattern.event(pattern.index, text))
                return
        single = self._single_event(data) if pattern is not None else None
        if pattern is not None and single is not None and self._read_repeat(single, pattern, events):
            if pattern.tries > 0:
                pattern.learn(data, single, pattern.texts[-1])
            return
        if pattern is not None:
            pattern.before = b""  # what comes next may be the rest of an event
        if self._head is not None:
            self._head = (self._head + data)[:HEAD_BYTES]
        try:
            for frame in self._splitter.feed(data):
                self._head = None
                self._read_frame(frame.data, events)
        except FramingError as error:
            self._fail("bad_event", str(error), events)

    def finish(self, events: list[StreamEvent]) -> None:
        """Append the events at the end of the stream; a fault, if it ended too early."""
        for frame in self._splitter.close():
            self._head = None
            self._read_frame(frame.data, events)
        if not self._is_over:
            if self._completion.first.finish_reason is not None:  # the reason came, [DONE] did not
                self._complete(events)
            else:
                self._end(early_end(NAME, self._head, self._splitter.tail), events)

    def _read_frame(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._is_over:
            if self._is_complete and b'"delta"' in data:
                self._trailing.add("")
        elif self._pattern is None or not self._read_repeat(data, self._pattern, events):
            self._read_event(data, events)

    def _read_repeat(self, data: bytes, pattern: Pattern, events: list[StreamEvent]) -> bool:
        """Take a chunk that repeats the one before but for a few words; whether it was that."""
        try:
            chunk = decode_plain_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        (choice,) = chunk.choices
        text = pop_text(choice.delta, pattern.key)
        if not text or not pattern.matches(chunk, choice):
            return False
        pattern.texts.append(text)
        events.append(pattern.event(pattern.index, text))
        return True

    def _read_event(self, data: bytes, events: list[StreamEvent]) -> None:
        self._pattern = None
        if data.strip() == b"[DONE]":
            self._handle_done(events)
            return
        wire = decode_chunk(data)
        if wire is None:
            self._fail("bad_event", "an event that is not a JSON object", events, data)
        elif wire.get("error"):
            self._completion.add({key: value for key, value in wire.items() if key != "choices"})
            self._emit_usage(events)
            self._end(StreamError(read_error(None, {}, wire)), events)
        else:
            try:
                self._read_chunk(wire, events)
            except (ValueError, RecursionError) as error:
                self._fail("bad_event", storage_problem(error)[1], events)
            self._learn_pattern(data)

    def _learn_pattern(self, data: bytes) -> None:
        """Look whether the next chunk may repeat this one."""
        first = self._completion.first
        if (
            self._tries <= 0
            or self._is_over
            or first.finish_reason is not None
            or self._pending_surrogates
            or self._unnamed_inputs
        ):
            return
        self._tries -= 1
        try:
            chunk = decode_plain_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        (choice,) = chunk.choices
        keys = [key for key in EVENTS if getattr(choice.delta, key)]
        if len(keys) != 1 or choice.index or not self._completion.has_stable_keys:
            return
        (key,) = keys
        calls = choice.delta.tool_calls
        at = first.find_call(calls[0].index) if calls else 0
        if at is None or not pop_text(choice.delta, key):
            return
        place = (key, at)
        is_other = (key in THINKING_FIELDS and key != first.origin) or (
            key == "content" and first.get_part(0) is not None
        )
        if place in self._open_places and not is_other:
            self._tries = _MAX_TRIES
            self._pattern = Pattern(key, chunk, choice, self._indexes[place], first.texts[place], EVENTS[key])

    def _read_chunk(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        try:
            pieces = self._completion.add(wire)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)
            return
        if self._start is None and self._completion.choices:
            self._start = MessageStart(text_or_none(self._completion.top.get("model")), self._make_start_notes())
            events.append(self._start)
        try:
            for piece in pieces:
                self._read_piece(piece, events)
        except FormatError as error:
            self._fail("bad_event", str(error), events)
            return
        trailing = self._completion.first.trailing
        if trailing:
            self._trailing.add("".join(trailing))
            trailing.clear()
        self._emit_usage(events)

    def _make_start_notes(self) -> ProviderRaw | None:
        """What the notes about the reply will be, as far as they are known."""
        top, first = self._completion.top, self._completion.first
        message = {key: value for key, value in first.message.items() if not value or key not in _BLOCK_KEYS}
        message = {key: value for key, value in message.items() if key == "content" or (key, 0) not in first.texts}
        if ("content", 0) in first.texts or isinstance(message.get("content"), list):
            message["content"] = None
        return _make_plain_start_notes(top, message) or _make_any_start_notes(top, message)

    def _emit_usage(self, events: list[StreamEvent]) -> None:
        top = self._completion.top
        usage = read_usage(top) if "usage" in top or "x_groq" in top else None
        if usage is not None and (usage := later_usage(self._usage, usage)) != self._usage:
            self._usage = usage
            events.append(UsageUpdate(usage))

    # --- pieces

    def _read_piece(self, piece: Piece, events: list[StreamEvent]) -> None:
        key, at = place = piece.place
        index = self._indexes.setdefault(place, len(self._indexes))
        match piece.kind:
            case "call":
                self._read_call(piece, index, events)
            case "text" | "thinking":
                self._read_text(piece, index, events)
            case "whole" if key not in self._deferred_keys:
                self._complete_places.add(place)
                first = self._completion.first
                wire = first.get_part(at) if key == "content" else first.get_detail(at)
                events.append(BlockComplete(index, _read_single_block(key, [wire])))
            case _:  # told at the end, and so are those that stand behind it
                self._deferred_keys.add(key)

    def _read_text(self, piece: Piece, index: int, events: list[StreamEvent]) -> None:
        key, at = place = piece.place
        text = self._join_text(place, piece.text)
        signature = self._completion.first.get_detail(at).get("signature") if key == "reasoning_details" else None
        signature = signature if isinstance(signature, str) and self._signatures.get(at) != signature else None
        is_open = place in self._open_places
        if not text and (signature is None or not is_open):
            if not is_open:
                self._deferred_keys.add(key)
            return
        raw = None if is_open else self._make_block_notes(place, piece.text)
        self._open_places.add(place)
        if signature is not None:
            self._signatures[at] = signature
        if piece.kind == "text":
            events.append(TextDelta(index, text, raw))
        else:
            events.append(ThinkingDelta(index, text, signature, raw))

    def _join_text(self, place: Place, text: str) -> str:
        """The text as far as its characters are whole. Half of one waits for its other half, which may follow."""
        text = self._pending_surrogates.pop(place, "") + text
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            self._pending_surrogates[place] = text[-1]
            text = text[:-1]
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise FormatError(_LONE_SURROGATE, where="choices") from None

    def _make_block_notes(self, place: Place, text: str) -> ProviderRaw | None:
        """What to know of a block that begins: where it stands, and the fields that repeat its words beside it."""
        key, at = place
        first = self._completion.first
        raw: ProviderRaw = {"dialect": NAME, "at": key}
        match key:
            case "content":
                part = first.get_part(at)
                if part is None:
                    return None
                raw.update(_block_notes(_read_single_block(key, [part])))
            case "reasoning_details":
                raw.update(_block_notes(_read_single_block(key, [first.get_detail(at)])))
        others = [other for other in THINKING_FIELDS if other != key and key in (*THINKING_FIELDS, "reasoning_details")]
        repeated_keys = [other for other in others if first.texts.get((other, 0), [""])[-1] == text]
        return {**raw, "beside": repeated_keys} if repeated_keys else raw

    def _read_call(self, piece: Piece, index: int, events: list[StreamEvent]) -> None:
        """A call begins when its name is known; input that came earlier waits for it."""
        place = piece.place
        text = self._unnamed_inputs.pop(place, "") + self._join_text(place, piece.text)
        call = self._completion.first.get_call(place)
        name = call["function"].get("name")
        if not isinstance(name, str) or not name:
            self._unnamed_inputs.update({place: text} if text else {})
            return
        if place not in self._open_places:
            self._open_places.add(place)
            is_legacy = place[0] == "function_call"
            provider_id = LEGACY_ID + name if is_legacy else text_or_none(call.get("id")) or ""
            function = dict(call["function"])
            if isinstance(function.get("arguments"), str):
                function["arguments"] = "{}"  # what they say comes piece by piece
            wire = function if is_legacy else [{**call, "function": function}]
            raw = _block_notes(_read_single_block(place[0], wire)) or None
            events.append(ToolUseStart(index, self._builder.call_id(provider_id), name, raw))
        if text:
            events.append(ToolUseInputDelta(index, text))

    # --- the end

    def _handle_done(self, events: list[StreamEvent]) -> None:
        if 0 not in self._completion.choices:
            self._fail("empty_response", "the stream ended and nothing was said", events)
        elif self._completion.first.finish_reason is not None or self._is_reason_optional:
            self._complete(events)
        else:
            self._fail("stream_incomplete", "the message ended without a reason", events)

    def _complete(self, events: list[StreamEvent]) -> None:
        if self._unnamed_inputs:
            self._fail("protocol_violation", "a call that was never named", events)
            return
        if self._pending_surrogates:
            self._fail("bad_event", _LONE_SURROGATE, events)
            return
        model = self._start.model if self._start else None
        body, origin = self._completion.to_wire(), self._completion.first.origin
        try:
            reply, placed_blocks = make_reply(body, MessageBuilder(), origin, model=model, usage=self._usage)
        except (ValueError, RecursionError) as error:
            self._fail("bad_event", storage_problem(error)[1], events)
            return
        for place, block in placed_blocks:
            if place not in self._complete_places:
                index = self._indexes.setdefault(place, len(self._indexes))
                self._close_block(index, block, events, is_open=place in self._open_places)
        raw = self._trailing.add_to(reply.provider_raw)
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
        self._is_over = True
        self._pattern = None


_DEFAULT_REPLY: Final = default_reply(Reply(stop_reason=StopReason.END_TURN))
_DEFAULT_HASHES: Final = {key: fingerprint(_DEFAULT_REPLY[key]) for key in ("id", "created")}


def _make_any_start_notes(top: dict[str, Any], message: dict[str, Any]) -> ProviderRaw | None:
    natural = default_reply(Reply(stop_reason=StopReason.END_TURN, model=text_or_none(top.get("model"))))
    rest = {key: value for key, value in top.items() if key != "usage"}
    notes = make_message_notes(Role.ASSISTANT, [], message, reply=True)
    return make_notes(NAME, natural, {**rest, "object": natural["object"]}, message=notes)


def _make_plain_start_notes(top: dict[str, Any], message: dict[str, Any]) -> ProviderRaw | None:
    """The same for what most streams begin with: an id, a time, a model and a role."""
    provider_id, created, content = top.get("id"), top.get("created"), message.get("content", ABSENT)
    if type(provider_id) is not str or type(created) is not int or type(top.get("model")) is not str:
        return None
    if (
        provider_id == _DEFAULT_REPLY["id"]
        or created == _DEFAULT_REPLY["created"]
        or message.get("role") != "assistant"
    ):
        return None
    if content is not None and content != "":
        return None
    replacements = {
        "id": {"is": provider_id, "was": _DEFAULT_HASHES["id"]},
        "created": {"is": created, "was": _DEFAULT_HASHES["created"]},
    }
    added = {key: value for key, value in top.items() if key not in _DEFAULT_REPLY and key != "usage"}
    other_fields = {key: value for key, value in message.items() if key not in ("role", "content")}
    notes: dict[str, Any] = {"form": "empty"} if content == "" else {}
    if other_fields:
        notes["residue"] = {"set": other_fields}
    raw: ProviderRaw = {
        "dialect": NAME,
        "residue": {"set": added, "in": replacements} if added else {"in": replacements},
    }
    return {**raw, "message": {"dialect": NAME, **notes}} if notes else raw


_BLOCK_KEYS: Final = (
    *THINKING_FIELDS,
    "refusal",
    "reasoning_opaque",
    "reasoning_details",
    "tool_calls",
    "function_call",
)


def _read_single_block(key: str, wire: Any) -> ContentBlock:
    """The block that stands alone under a key of a message."""
    origin = key if key in THINKING_FIELDS else "reasoning_details"
    ((_, block),) = read_blocks({key: wire}, "$", MessageBuilder(), is_answer=True, origin=origin)
    return block


def _block_notes(block: ContentBlock) -> ProviderRaw:
    return getattr(block, "provider_raw", None) or {}


def _no_event(_data: bytes) -> None:
    """Nothing: a framing whose events are only seen one after the other."""


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:
    """A reader of this dialect's streams, as one who has these quirks sends them."""
    return StreamReader(framing, quirks)
