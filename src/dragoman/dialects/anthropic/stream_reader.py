"""Streams of the Messages API: bytes in, events out.

Most events are one more piece of the block that is open; these are recognised by their types and become an event at
once. Every other one is looked at key by key. What a block is beside its words is read when it begins and again when it
ends, so that nothing here grows with what was said.

The one rule: what was cut, damaged or out of order never looks complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from dragoman.dialects.anthropic.blocks import NAME, block_notes, read_block
from dragoman.dialects.anthropic.error import read_error
from dragoman.dialects.anthropic.reply import default_reply, make_reply, read_usage
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
from dragoman.jsontext import expect_object, storage_problem, text_or_none
from dragoman.message import ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock
from dragoman.wire.faults import HEAD_BYTES, early_end, stream_error
from dragoman.wire.frames import FramingError, make_splitter
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import fingerprint, make_notes
from dragoman.wire.stream_reader import EventReader, TrailingData

_PLACEHOLDER: Final = (TextBlock("…"),)  # in place of what was said, of which only the fact counts at the end


_DEFAULT_ID: Final = default_reply(Reply(stop_reason=StopReason.END_TURN))["id"]
_DEFAULT_ID_HASH: Final = fingerprint(_DEFAULT_ID)


# --- pieces ----------------------------------------------------------------------------------------------------------


class _TextDelta(msgspec.Struct, tag_field="type", tag="text_delta", forbid_unknown_fields=True, gc=False):
    text: str


class _ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta", forbid_unknown_fields=True, gc=False):
    text: str = msgspec.field(name="thinking")


class _InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta", forbid_unknown_fields=True, gc=False):
    text: str = msgspec.field(name="partial_json")


class _BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta", forbid_unknown_fields=True, gc=False):
    """One more piece of a block, and nothing else."""

    index: int
    delta: _TextDelta | _ThinkingDelta | _InputDelta


_decode_block_delta: Final = msgspec.json.Decoder(_BlockDelta).decode
_DELTA_TYPES: Final = {"text": _TextDelta, "thinking": _ThinkingDelta, "tool_use": _InputDelta}
_EVENTS: Final[dict[str, Callable[[int, Any], StreamEvent]]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_use": ToolUseInputDelta,
}


class _Block:
    """A block that has begun: what it is beside its words, and the words of those that only come whole."""

    def __init__(self, index: int, wire: dict[str, Any]) -> None:
        self.index = index
        self.wire = wire
        self.kind = str(wire.get("type"))
        self.delta_type = _DELTA_TYPES.get(self.kind)
        self.event = _EVENTS.get(self.kind, BlockComplete)
        self.has_text = False
        self.fragments: dict[str, list[Any]] = {}  # what came piece by piece, by the key that it stands under
        self.raw: ProviderRaw | None = None
        self.is_open = True


# --- the reader ------------------------------------------------------------------------------------------------------


class StreamReader(EventReader):
    """Bytes in, events out."""

    _dialect = NAME

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = make_splitter(framing or "sse")
        self._single_event = getattr(self._splitter, "single_event", _no_event)
        self._head: bytes | None = b""  # the first bytes, as long as no event has come
        self._message: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._current: _Block | None = None  # the one that the next piece most likely belongs to
        self._builder = MessageBuilder()
        self._trailing = TrailingData(NAME)
        self._is_complete = False
        self._is_over = False

    def read(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        current = self._current
        if current is not None:
            single = self._single_event(data)
            if single is not None and self._read_block_delta(single, current, events):
                return
        elif self._is_over:
            return
        if self._head is not None:
            self._head = (self._head + data)[:HEAD_BYTES]
        try:
            for frame in self._splitter.feed(data):
                self._head = None
                if not self._read_frame(frame.data, events):
                    break
        except FramingError as error:
            self._fail("bad_event", str(error), events)

    def finish(self, events: list[StreamEvent]) -> None:
        """Append the events at the end of the stream; a fault, if it ended too early."""
        if not self._is_over:
            for frame in self._splitter.close():
                self._head = None
                if not self._read_frame(frame.data, events):
                    break
        if not self._is_over and not self._is_complete:
            if self._message.get("stop_reason") is not None:  # message_delta came, message_stop did not
                self._complete(events)
            else:
                events.append(early_end(NAME, self._head, self._splitter.tail))
        self._is_over = True  # nothing is read after this
        self._current = None

    def _read_frame(self, data: bytes, events: list[StreamEvent]) -> bool:
        """Take one event; whether the next one is to be trusted."""
        current = self._current
        return (current is not None and self._read_block_delta(data, current, events)) or self._read_event(data, events)

    def _read_block_delta(self, data: bytes, current: _Block, events: list[StreamEvent]) -> bool:
        """Take one event that is one more piece of the open block and nothing else; whether it was that."""
        try:
            block_delta = _decode_block_delta(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        delta = block_delta.delta
        if block_delta.index != current.index or type(delta) is not current.delta_type:
            return False
        if delta.text:
            current.has_text = True
            events.append(current.event(current.index, delta.text))
        return True

    def _read_event(self, data: bytes, events: list[StreamEvent]) -> bool:
        if self._is_complete:
            if b"content_block_" in data:
                self._trailing.add("")
            return True
        try:
            wire = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._fail("bad_event", "an event that is not JSON", events, data)
            return False
        handler = _HANDLERS.get(str(wire.get("type"))) if isinstance(wire, dict) else None
        if handler is not None:  # a ping, or what is not known yet
            try:
                problem = handler(self, wire, events)
            except FormatError as error:
                problem = str(error)
            except (ValueError, RecursionError) as error:
                self._fail("bad_event", storage_problem(error)[1], events)
                return False
            if problem is not None:
                self._fail("protocol_violation", problem, events)
        return not self._is_over

    def _fail(self, code: str, message: str, events: list[StreamEvent], data: bytes = b"") -> None:
        events.append(stream_error(NAME, code, message, tail=data[:4096].decode("utf-8", "backslashreplace")))
        self._is_over = True
        self._current = None

    # --- the message

    def _start_message(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._message:
            return "message_start came a second time"
        self._message = dict(expect_object(wire.get("message"), "message_start"))
        events.append(MessageStart(text_or_none(self._message.get("model")), _make_start_notes(self._message)))
        self._emit_usage(events)
        return None

    def _update_message(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if not self._message:
            return "message_delta before message_start"
        delta, usage = wire.get("delta"), wire.get("usage")
        self._current = None  # what still comes is late
        self._message.update(delta if isinstance(delta, dict) else {})
        if isinstance(usage, dict):
            usage_so_far = self._message.get("usage")
            counts = {key: value for key, value in usage.items() if value is not None}
            self._message["usage"] = {**(usage_so_far if isinstance(usage_so_far, dict) else {}), **counts}
            self._emit_usage(events)
        if wire.get("context_management") is not None:
            self._message["context_management"] = wire["context_management"]
        return None

    def _emit_usage(self, events: list[StreamEvent]) -> None:
        usage = self._message.get("usage")
        if isinstance(usage, dict):
            events.append(UsageUpdate(read_usage(usage)))

    def _stop_message(self, _wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if not self._message:
            return "message_stop before message_start"
        if self._message.get("stop_reason") is None:
            self._fail("stream_incomplete", "the message ended without a reason", events)
        else:
            self._complete(events)
        return None

    def _complete(self, events: list[StreamEvent]) -> None:
        if any(block.is_open for block in self._blocks):
            self._fail("protocol_violation", "the message ended while a block was open", events)
            return
        has_content = any(block.kind != "text" or block.has_text for block in self._blocks)
        try:
            reply = make_reply(self._message, _PLACEHOLDER if has_content else ())
        except (ValueError, RecursionError) as error:
            self._fail("bad_event", storage_problem(error)[1], events)
            return
        events.append(
            MessageComplete(reply.stop_reason, reply.stop_sequence, self._trailing.add_to(reply.provider_raw))
        )
        self._is_complete = True

    def _read_error(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        events.append(StreamError(read_error(None, {}, wire)))
        self._is_over = True
        self._current = None
        return None

    # --- blocks

    def _start_block(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        index = _index(wire)
        if self._add_trailing(wire.get("content_block")):
            return None
        if not self._message or index != len(self._blocks):
            return f"content_block_start for block {index}, which cannot begin here"
        block = _Block(index, dict(expect_object(wire.get("content_block"), "content_block_start")))
        self._blocks.append(block)
        self._current = block if block.delta_type is not None else None
        match block.kind:
            case "tool_use":
                return self._start_call(block, events)
            case "text":
                block.has_text = self._start_text(block, events)
            case "thinking":
                thinking = read_block(block.wire, MessageBuilder())
                if not isinstance(thinking, ThinkingBlock):
                    return f"the thinking of block {index} is no text"
                events.append(ThinkingDelta(index, thinking.text, thinking.signature, thinking.provider_raw))
        return None

    def _start_text(self, block: _Block, events: list[StreamEvent]) -> bool:
        """A block of words begins, with something to remember or with the first words."""
        text_block = read_block(block.wire, MessageBuilder())
        if not isinstance(text_block, TextBlock):
            raise FormatError("a text belongs here", where="content_block_start.text")
        if text_block.text or text_block.provider_raw is not None:
            events.append(TextDelta(block.index, text_block.text, text_block.provider_raw))
        return bool(text_block.text)

    def _start_call(self, block: _Block, events: list[StreamEvent]) -> str | None:
        provider_id, name = block.wire.get("id"), block.wire.get("name")
        if not isinstance(provider_id, str) or not isinstance(name, str):
            return f"block {block.index} calls a tool without an id or a name"
        call = ToolUseBlock(self._builder.call_id(provider_id), name, {})
        block.raw = block_notes(call, {**block.wire, "input": {}})
        events.append(ToolUseStart(block.index, call.id, name, block.raw))
        return None

    def _update_block(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        delta = wire.get("delta")
        if self._add_trailing(delta):
            return None
        block = self._open_block(wire)
        if block is None or not isinstance(delta, dict):
            return f"content_block_delta for block {wire.get('index')}, which is not open"
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                return _add_fragment(block, "text", "text", text, events)
            case {"type": "input_json_delta", "partial_json": str(text)}:
                return _add_fragment(block, "tool_use", "input", text, events)
            case {"type": "thinking_delta", "thinking": str(text)}:
                return _add_fragment(block, "thinking", "thinking", text, events)
            case {"type": "signature_delta", "signature": str(signature)}:
                block.wire["signature"] = signature
            case {"type": "citations_delta", "citation": citation}:
                block.fragments.setdefault("citations", []).append(citation)
            case {"type": "compaction_delta", "content": str(content)}:
                block.fragments.setdefault("content", []).append(content)
        return None

    def _open_block(self, wire: dict[str, Any]) -> _Block | None:
        index = _index(wire)
        block = self._blocks[index] if 0 <= index < len(self._blocks) else None
        return block if block is not None and block.is_open else None

    def _add_trailing(self, content: Any) -> bool:
        """Whether the message has ended; what is said then is kept apart."""
        if self._message.get("stop_reason") is None:
            return False
        texts = (content.get(key) for key in ("text", "thinking", "partial_json")) if isinstance(content, dict) else ()
        self._trailing.add("".join(text for text in texts if isinstance(text, str)))
        return True

    def _stop_block(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        block = self._open_block(wire)
        if block is None:
            is_trailing = self._add_trailing(None)
            return None if is_trailing else f"content_block_stop for block {wire.get('index')}, which is not open"
        block.is_open = False
        self._current = None
        match block.kind:
            case "tool_use":
                if not block.has_text and block.wire.get("input"):  # it came whole with the beginning
                    events.append(ToolUseInputDelta(block.index, msgspec.json.encode(block.wire["input"]).decode()))
                events.append(ToolUseEnd(block.index, block.raw))
            case "text":
                if block.fragments:
                    block.wire["citations"] = _extend_list(block.wire.get("citations"), block.fragments["citations"])
                raw = block_notes(TextBlock(""), {**block.wire, "text": ""})
                events.append(TextDelta(block.index, "", raw))
            case "thinking":
                signature = text_or_none(block.wire.get("signature"))
                raw = block_notes(ThinkingBlock("", signature), {**block.wire, "thinking": ""})
                events.append(ThinkingDelta(block.index, "", signature, raw))
            case _:
                return _emit_whole_block(block, events)
        return None


_HANDLERS: Final = {
    "message_start": StreamReader._start_message,
    "content_block_start": StreamReader._start_block,
    "content_block_delta": StreamReader._update_block,
    "content_block_stop": StreamReader._stop_block,
    "message_delta": StreamReader._update_message,
    "message_stop": StreamReader._stop_message,
    "error": StreamReader._read_error,
}


def _index(wire: dict[str, Any]) -> int:
    index = wire.get("index")
    return index if type(index) is int else -1


def _no_event(_data: bytes) -> None:
    """Nothing: a framing whose events are only seen one after the other."""


def _make_start_notes(message: dict[str, Any]) -> ProviderRaw | None:
    """What the notes about the reply will be, as far as they are known, and what was consumed before it began."""
    match message:
        case {
            "id": str(provider_id),
            "type": "message",
            "role": "assistant",
            "model": str(),
            "content": _,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": dict(usage),
        } if len(message) == 8 and provider_id != _DEFAULT_ID:
            return {
                "dialect": NAME,
                "residue": {"in": {"id": {"is": provider_id, "was": _DEFAULT_ID_HASH}}},
                "usage": usage,
            }
        case _:
            return _make_any_start_notes(message)


def _make_any_start_notes(message: dict[str, Any]) -> ProviderRaw | None:
    default = default_reply(Reply(stop_reason=StopReason.END_TURN, model=text_or_none(message.get("model"))))
    default["stop_reason"] = None
    rest = {key: value for key, value in message.items() if key != "content"}
    usage = rest.get("usage")
    if isinstance(usage, dict):
        rest["usage"] = default["usage"]
    return make_notes(NAME, default, rest, usage=usage if isinstance(usage, dict) else None)


def _add_fragment(block: _Block, kind: str, key: str, text: str, events: list[StreamEvent]) -> str | None:
    """One more piece of a block; of one that only comes whole, to be put together at its end."""
    if block.delta_type is None:
        block.fragments.setdefault(key, []).append(text)
        return None
    if block.kind != kind:
        return f"a piece for block {block.index}, which is of another kind: {block.kind}"
    if text:
        block.has_text = True
        events.append(block.event(block.index, text))
    return None


def _extend_list(items: Any, more: list[Any]) -> list[Any]:
    return [*items, *more] if isinstance(items, list) else more


def _emit_whole_block(block: _Block, events: list[StreamEvent]) -> str | None:
    """A block that only comes whole: what runs on the provider's servers, or what is not known."""
    for key, parts in block.fragments.items():
        if key == "citations":
            block.wire[key] = _extend_list(block.wire.get(key), parts)
        elif key != "input":
            prefix = block.wire.get(key)
            block.wire[key] = (prefix if isinstance(prefix, str) else "") + "".join(parts)
        elif any(parts):
            try:
                block.wire[key] = msgspec.json.decode("".join(parts))
            except (msgspec.DecodeError, RecursionError):
                return f"the input of block {block.index} is not JSON"
    events.append(BlockComplete(block.index, read_block(block.wire, MessageBuilder())))
    return None


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)
