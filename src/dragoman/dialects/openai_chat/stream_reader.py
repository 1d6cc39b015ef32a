"""Streams of Chat Completions: bytes in, events out.

The reader assembles the completion as it stands on the wire and reads the whole of it at the end. Most chunks differ
from the chunk before them in one text only; the delta struct recognizes them, and only that text is read.

Invariant: a stream that was cut, damaged or out of order never ends as complete.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.dialects.openai_chat.blocks import LEGACY_ID, NAME, make_message_notes, read_blocks
from dragoman.dialects.openai_chat.chunks import THINKING_FIELDS, Completion, PartialChoice, Piece, Place, decode_chunk
from dragoman.dialects.openai_chat.error import CLOUDFLARE, is_cloudflare, is_error, read_error
from dragoman.dialects.openai_chat.reply import default_head, make_reply
from dragoman.dialects.openai_chat.usage import read_plain_usage, read_usage
from dragoman.errors import FormatError
from dragoman.event import (
    AlternativeComplete,
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
from dragoman.jsontext import has_lone_surrogate, join_surrogates, text_or_none
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
from dragoman.wire.faults import stream_error
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import diff, wrap_residue
from dragoman.wire.stream_reader import BaseStreamReader, EventOrderError

_THINKING_PART_KEYS: Final = frozenset({"type", "thinking"})
_MAX_TRIES: Final = 16  # chunks of other shapes before the reader stops searching for a repeated shape
_PLAIN_START_KEYS: Final = {"role", "content"}
_USAGE_KEYS: Final = frozenset({"usage", "x_groq"})
_LONE_SURROGATE: Final = "a lone surrogate in a text"

# --- chunks that only add text ---------------------------------------------------------------------------------------

_Text = str | UnsetType | None


class _Arguments(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    arguments: str


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    index: int
    function: _Arguments


class _Delta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: _Text = UNSET
    role: _Text = UNSET
    reasoning_content: _Text = UNSET
    reasoning: _Text = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: tuple[_Call] | UnsetType | None = UNSET


class _Choice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    delta: _Delta
    index: int = 0
    finish_reason: UnsetType | None = UNSET
    logprobs: UnsetType | None = UNSET
    native_finish_reason: UnsetType | None = UNSET


class _Chunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk with one unfinished choice. The first four fields count only in the first chunk that has them."""

    choices: tuple[_Choice]
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    system_fingerprint: _Text = UNSET
    service_tier: _Text = UNSET
    provider: _Text = UNSET
    usage: None = None
    obfuscation: str = ""  # padding of OpenAI
    p: str = ""  # padding of Mistral


_EVENTS: Final[dict[str, Callable[[int, str], StreamEvent]]] = {
    "content": TextDelta,
    "reasoning_content": ThinkingDelta,
    "reasoning": ThinkingDelta,
    "tool_calls": ToolUseInputDelta,
}


_repeated_fields: Final = operator.attrgetter("system_fingerprint", "service_tier", "provider")


class _Pattern:
    """The last chunk without its text. A chunk that is equal to it adds text to the same place."""

    def __init__(self, key: str, chunk: _Chunk, index: int, texts: list[str]) -> None:
        self.key = key
        self.choice = chunk.choices[0]
        self.fields = _repeated_fields(chunk)
        self.index = index
        self.texts = texts
        self.event = _EVENTS[key]


def _pop_text(delta: _Delta, key: str) -> Any:
    """Remove and return the text under a key; false if there is none."""
    if key != "tool_calls":
        text = getattr(delta, key)
        setattr(delta, key, None)
        return text
    if not delta.tool_calls:
        return None
    function = delta.tool_calls[0].function
    text, function.arguments = function.arguments, ""
    return text


# --- the reader ------------------------------------------------------------------------------------------------------


class StreamReader(BaseStreamReader):
    """Bytes in, events out.

    With the quirk ``terminal_reason_optional`` (Ollama), ``[DONE]`` ends an answer without a finish reason. Without the
    quirk, such a stream counts as cut.
    """

    delta_type = _Chunk
    ends_at_once = True

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(NAME, framing or "sse", quirks)
        self._completion = Completion()
        self._builder = MessageBuilder()
        self._indexes: dict[Place, int] = {}
        self._open_places: set[Place] = set()
        self._complete_places: set[Place] = set()  # places of blocks emitted as one event
        self._deferred_keys: set[str] = set()  # keys of blocks that are emitted at the end
        self._signatures: dict[int, str] = {}  # emitted signatures of reasoning details
        self._pending_surrogates: dict[Place, str] = {}
        self._unnamed_inputs: dict[Place, str] = {}  # input of calls without a name so far
        self._pattern: _Pattern | None = None
        self._tries = _MAX_TRIES
        self._start: MessageStart | None = None
        self._usage: TokenUsage | None = None

    def read_delta(self, delta: _Chunk) -> StreamEvent | None:
        """Return the event of a chunk that is equal to the last one but for its text."""
        pattern, choice = self._pattern, delta.choices[0]
        if pattern is None:
            return None
        text = _pop_text(choice.delta, pattern.key)
        if not text or choice != pattern.choice or _repeated_fields(delta) != pattern.fields:
            return None
        pattern.texts.append(text)
        return pattern.event(pattern.index, text)

    def repeat_delta(self, text: str) -> StreamEvent:
        """Return the event of another chunk that is equal to the last one but for its text."""
        pattern = self._pattern
        assert pattern is not None
        pattern.texts.append(text)
        return pattern.event(pattern.index, text)

    def decode_event(self, data: bytes) -> Any:
        """Return the chunk; an unpaired surrogate is allowed, because its other half may be in the next chunk."""
        return decode_chunk(data)

    def read_event(self, wire: dict[str, Any], _name: str | None, events: list[StreamEvent]) -> None:
        """Append the events of one chunk."""
        self._set_pattern(None)
        if is_error(wire):
            self._completion.add({key: value for key, value in wire.items() if key != "choices"})
            self._emit_usage(events)
            events.append(StreamError(read_error(None, {}, wire)))
        else:
            self._read_chunk(wire, events)
            self._learn_pattern(wire)

    def read_trailing(self, data: bytes) -> None:
        """Log a delta after the end."""
        if b'"delta"' in data:
            self._trailing.add("")

    def _set_pattern(self, pattern: _Pattern | None) -> None:
        self._pattern = pattern
        self.expects_delta = pattern is not None

    def _learn_pattern(self, wire: dict[str, Any]) -> None:
        """Set the pattern if the next chunk may be equal to this one but for its text."""
        first = self._completion.first
        if self._tries <= 0 or first.finish_reason is not None or self._pending_surrogates or self._unnamed_inputs:
            return
        self._tries -= 1
        try:
            chunk = msgspec.convert(wire, _Chunk)
        except msgspec.ValidationError:
            return
        (choice,) = chunk.choices
        keys = [key for key in _EVENTS if getattr(choice.delta, key)]
        if len(keys) != 1 or choice.index or not self._completion.has_stable_keys:
            return
        (key,) = keys
        calls = choice.delta.tool_calls
        at = first.find_call(calls[0].index) if calls else 0
        if at is None or not _pop_text(choice.delta, key):
            return
        place = (key, at)
        is_other = (key in THINKING_FIELDS and key != first.origin) or (
            key == "content" and first.get_part(0) is not None
        )
        if place in self._open_places and not is_other:
            self._tries = _MAX_TRIES
            self._set_pattern(_Pattern(key, chunk, self._indexes[place], first.texts[place]))

    def _read_chunk(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        pieces = self._completion.add(wire)
        if self._start is None and self._completion.choices:
            self._start = MessageStart(text_or_none(self._completion.top.get("model")), self._make_start_notes())
            events.append(self._start)
        try:
            for piece in pieces:
                self._read_piece(piece, events)
        except FormatError as error:
            raise ValueError(str(error)) from error
        trailing = self._completion.first.trailing
        if trailing:
            self._trailing.add("".join(trailing))
            trailing.clear()
        self._emit_usage(events)

    def _make_start_notes(self) -> ProviderRaw | None:
        """Return the notes about the reply as far as the first chunk contains them."""
        top, first = self._completion.top, self._completion.first
        default = default_head(text_or_none(top.get("model")))
        rest = {**top, "object": default["object"]}
        rest.pop("usage", None)
        return wrap_residue(NAME, diff(default, rest), message=_message_start_notes(first))

    def _emit_usage(self, events: list[StreamEvent]) -> None:
        top = self._completion.top
        usage = (read_plain_usage(top) or read_usage(top)) if not _USAGE_KEYS.isdisjoint(top) else None
        if usage is None and "usage" in self._completion.first.rest:  # Moonshot
            usage = read_usage({"usage": self._completion.first.rest["usage"]})
        if usage is not None and (usage := later_usage(self._usage, usage)) != self._usage:
            self._usage = usage
            events.append(UsageUpdate(usage))

    # --- pieces

    def _read_piece(self, piece: Piece, events: list[StreamEvent]) -> None:
        key, at = place = piece.place
        index = self._indexes.setdefault(place, len(self._indexes))
        match piece.kind:
            case "call" if place in self._open_places or key not in self._deferred_keys:
                self._read_call(piece, index, events)
            case "text" | "thinking":
                self._read_text(piece, index, events)
            case "whole" if key not in self._deferred_keys:
                self._complete_places.add(place)
                first = self._completion.first
                wire = first.get_part(at) if key == "content" else first.get_detail(at)
                events.append(BlockComplete(index, _read_single_block(key, [wire])))
            case _:  # emitted at the end, with all later blocks
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
        raw = self._later_part_notes(piece) if is_open else self._make_block_notes(place, piece.text)
        self._open_places.add(place)
        if signature is not None:
            self._signatures[at] = signature
        if piece.kind == "text":
            events.append(TextDelta(index, text, raw))
        else:
            events.append(ThinkingDelta(index, text, signature, raw))

    def _join_text(self, place: Place, text: str) -> str:
        """Return the text with its surrogate pairs joined; a high surrogate at its end waits for the next piece."""
        text = self._pending_surrogates.pop(place, "") + text
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            self._pending_surrogates[place] = text[-1]
            text = text[:-1]
        if has_lone_surrogate(text):
            raise ValueError("a lone surrogate in a text")
        return join_surrogates(text)

    def _make_block_notes(self, place: Place, text: str) -> ProviderRaw | None:
        """Return the notes about a block that starts: its key, and the other keys that repeat its text."""
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

    def _later_part_notes(self, piece: Piece) -> ProviderRaw | None:
        """Return the notes of a thinking part that has other fields than at its start, such as ``closed``."""
        key, at = piece.place
        part = self._completion.first.get_part(at) if key == "content" and piece.kind == "thinking" else None
        if part is None or part.keys() <= _THINKING_PART_KEYS:
            return None
        return {"dialect": NAME, "at": key, **_block_notes(_read_single_block(key, [part]))}

    def _read_call(self, piece: Piece, index: int, events: list[StreamEvent]) -> None:
        """Emit a call once its name is known; input that was read before it waits."""
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
                function["arguments"] = "{}"  # the text follows in deltas
            wire = function if is_legacy else [{**call, "function": function}]
            raw = _block_notes(_read_single_block(place[0], wire)) or None
            events.append(ToolUseStart(index, self._builder.call_id(provider_id), name, raw))
        if text:
            events.append(ToolUseInputDelta(index, text))

    # --- the end

    def end_stream(self, events: list[StreamEvent], *, is_done: bool) -> None:
        """Complete the message if it has a finish reason. Without ``[DONE]``, every choice needs one."""
        choices = self._completion.choices.values()
        has_end = is_done or self._completion.has_common_end
        is_cut = not has_end and any(choice.finish_reason is None for choice in choices)
        if self._completion.first.finish_reason is not None and not is_cut:
            self._complete_message(events)
        elif not is_done:
            super().end_stream(events, is_done=False)
        elif 0 not in self._completion.choices and is_cloudflare(self._completion.top):
            events.append(stream_error(NAME, "bad_content_type", CLOUDFLARE))
        elif 0 not in self._completion.choices:
            events.append(stream_error(NAME, "empty_response", "the stream ended without content"))
        elif self._is_reason_optional:
            self._complete_message(events)
        else:
            events.append(stream_error(NAME, "stream_incomplete", "the message ended without a finish reason"))

    def _complete_message(self, events: list[StreamEvent]) -> None:
        if self._unnamed_inputs:
            raise EventOrderError("a call has no name")
        if self._pending_surrogates:
            events.append(stream_error(NAME, "bad_event", _LONE_SURROGATE))
            return
        model = self._start.model if self._start else None
        body, origin = self._completion.to_wire(), self._completion.first.origin
        reply, placed_blocks = make_reply(body, MessageBuilder(), origin, model=model, usage=self._usage)
        for place, block in placed_blocks:
            if place not in self._complete_places:
                index = self._indexes.setdefault(place, len(self._indexes))
                _close_block(index, block, events, is_open=place in self._open_places)
        events.extend(AlternativeComplete(alternative) for alternative in reply.alternatives)
        if reply.fault is not None:
            events.append(StreamError(reply.fault, self._trailing.add_to(reply.provider_raw)))
        else:
            events.append(MessageComplete(reply.stop_reason, reply.stop_sequence, reply.provider_raw))


def _message_start_notes(choice: PartialChoice) -> ProviderRaw | None:
    """Return the notes about the message as far as the first chunk contains them."""
    message, texts = choice.message, choice.texts
    if message.keys() == _PLAIN_START_KEYS and message["role"] == "assistant" and message["content"] in ("", None):
        plain_notes = _plain_start_notes("" if not texts and message["content"] == "" else None)
        return None if plain_notes is None else {**plain_notes}
    message = {key: value for key, value in message.items() if not value or key not in _BLOCK_KEYS}
    message = {key: value for key, value in message.items() if key == "content" or (key, 0) not in texts}
    if ("content", 0) in texts or isinstance(message.get("content"), list):
        message["content"] = None
    notes: ProviderRaw | None = make_message_notes(Role.ASSISTANT, [], message, reply=True)
    return notes


@functools.cache
def _plain_start_notes(content: str | None) -> ProviderRaw | None:
    """Return the notes about a message of a role and an empty content, as most streams start."""
    wire = {"role": "assistant", "content": content}
    notes: ProviderRaw | None = make_message_notes(Role.ASSISTANT, [], wire, reply=True)
    return notes


def _close_block(index: int, block: ContentBlock, events: list[StreamEvent], *, is_open: bool) -> None:
    raw: ProviderRaw | None = getattr(block, "provider_raw", None)
    match block:
        case ToolUseBlock() | InvalidToolUseBlock() if is_open:
            events.append(ToolUseEnd(index, raw))
        case TextBlock() if is_open:
            if raw is not None or block.citations or block.token_logprobs:
                events.append(TextDelta(index, "", raw, block.citations, block.token_logprobs))
        case ThinkingBlock() if is_open:
            events.append(ThinkingDelta(index, "", block.signature, raw))
        case _:
            events.append(BlockComplete(index, block))


_BLOCK_KEYS: Final = (
    *THINKING_FIELDS,
    "refusal",
    "reasoning_opaque",
    "reasoning_details",
    "tool_calls",
    "function_call",
    "audio",
    "images",
    "annotations",
)


def _read_single_block(key: str, wire: Any) -> ContentBlock:
    """Return the block that is the only one under a key of a message."""
    origin = key if key in THINKING_FIELDS else "reasoning_details"
    ((_, block),) = read_blocks({key: wire}, "$", MessageBuilder(), is_answer=True, origin=origin)
    return block


def _block_notes(block: ContentBlock) -> ProviderRaw:
    return getattr(block, "provider_raw", None) or {}


stream_reader = StreamReader
