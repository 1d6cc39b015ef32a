"""Streams of the Messages API: bytes in, events out.

A block is read when it starts and again when it stops, without its text, so memory does not grow with the answer.

Invariant: a stream that was cut, damaged or out of order never ends as complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from dragoman.dialects.anthropic.blocks import NAME, block_notes, read_block
from dragoman.dialects.anthropic.error import read_error
from dragoman.dialects.anthropic.reply import default_reply, make_reply
from dragoman.dialects.anthropic.usage import read_usage
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
from dragoman.jsontext import expect_object, text_or_none
from dragoman.message import ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock
from dragoman.wire.faults import stream_error
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import make_notes
from dragoman.wire.stream_reader import BaseStreamReader, EventOrderError

_PLACEHOLDER: Final = (TextBlock("…"),)  # replaces emitted content


class _TextDelta(msgspec.Struct, tag_field="type", tag="text_delta", forbid_unknown_fields=True, gc=False):
    text: str


class _ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta", forbid_unknown_fields=True, gc=False):
    text: str = msgspec.field(name="thinking")


class _InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta", forbid_unknown_fields=True, gc=False):
    text: str = msgspec.field(name="partial_json")


class _BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta", forbid_unknown_fields=True, gc=False):
    """An event that only adds text to a block."""

    index: int
    delta: _TextDelta | _ThinkingDelta | _InputDelta


_DELTA_TYPES: Final = {"text": _TextDelta, "thinking": _ThinkingDelta, "tool_use": _InputDelta}
_EVENTS: Final[dict[str, Callable[[int, Any], StreamEvent]]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_use": ToolUseInputDelta,
}


class _Block:
    """A started block: its fields beside its text, and the fragments of a block that is emitted whole."""

    def __init__(self, index: int, wire: dict[str, Any]) -> None:
        self.index = index
        self.wire = wire
        self.kind = str(wire.get("type"))
        self.delta_type = _DELTA_TYPES.get(self.kind)
        self.event = _EVENTS.get(self.kind, BlockComplete)
        self.has_text = False
        self.fragments: dict[str, list[Any]] = {}  # by key of the block
        self.raw: ProviderRaw | None = None
        self.is_open = True


class StreamReader(BaseStreamReader):
    """Bytes in, events out."""

    delta_type = _BlockDelta
    ends_at_once = True

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(NAME, framing or "sse", quirks)
        self._message: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._current: _Block | None = None  # most likely the block of the next delta
        self._builder = MessageBuilder()

    def read_delta(self, delta: _BlockDelta) -> StreamEvent | None:
        """Return the event of a delta for the current block."""
        block, piece = self._current, delta.delta
        if block is None or delta.index != block.index or type(piece) is not block.delta_type or not piece.text:
            return None
        block.has_text = True
        return block.event(block.index, piece.text)

    def repeat_delta(self, text: str) -> StreamEvent:
        """Return the event of another delta for the current block."""
        block = self._current
        assert block is not None
        return block.event(block.index, text)

    def read_event(self, wire: dict[str, Any], _name: str | None, events: list[StreamEvent]) -> None:
        """Append the events of one event; unknown types are ignored."""
        handler = _HANDLERS.get(str(wire.get("type")))
        if handler is not None:
            handler(self, wire, events)

    def end_stream(self, events: list[StreamEvent], *, is_done: bool) -> None:
        """Complete a message whose ``message_delta`` was read and whose ``message_stop`` is missing."""
        if self._message.get("stop_reason") is not None:
            self._complete_message(events)
        else:
            super().end_stream(events, is_done=is_done)

    def read_trailing(self, data: bytes) -> None:
        """Log content after ``message_stop``."""
        if b"content_block_" in data:
            self._trailing.add("")

    def _select(self, block: _Block | None) -> None:
        self._current = block
        self.expects_delta = block is not None

    # --- the message

    def _start_message(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._message:
            raise EventOrderError("a second message_start")
        self._message = dict(expect_object(wire.get("message"), "message_start"))
        events.append(MessageStart(text_or_none(self._message.get("model")), _make_start_notes(self._message)))
        self._emit_usage(events)

    def _update_message(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if not self._message:
            raise EventOrderError("message_delta before message_start")
        delta, usage = wire.get("delta"), wire.get("usage")
        self._select(None)  # text after this is trailing data
        self._message.update(delta if isinstance(delta, dict) else {})
        if isinstance(usage, dict):
            usage_so_far = self._message.get("usage")
            counts = {key: value for key, value in usage.items() if value is not None}
            self._message["usage"] = {**(usage_so_far if isinstance(usage_so_far, dict) else {}), **counts}
            self._emit_usage(events)
        if wire.get("context_management") is not None:
            self._message["context_management"] = wire["context_management"]

    def _emit_usage(self, events: list[StreamEvent]) -> None:
        usage = self._message.get("usage")
        if isinstance(usage, dict):
            events.append(UsageUpdate(read_usage(usage)))

    def _stop_message(self, _wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if not self._message:
            raise EventOrderError("message_stop before message_start")
        if self._message.get("stop_reason") is None:
            events.append(stream_error(NAME, "stream_incomplete", "the message ended without a stop reason"))
        else:
            self._complete_message(events)

    def _complete_message(self, events: list[StreamEvent]) -> None:
        if any(block.is_open for block in self._blocks):
            raise EventOrderError("the message ended while a block was open")
        has_content = any(block.kind != "text" or block.has_text for block in self._blocks)
        has_call = any(block.kind == "tool_use" for block in self._blocks)
        reply = make_reply(self._message, _PLACEHOLDER if has_content else (), has_call=has_call)
        end = MessageComplete(reply.stop_reason, reply.stop_sequence, reply.provider_raw, reply.stop_details)
        events.append(end)

    def _read_error(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        events.append(StreamError(read_error(None, {}, wire)))

    # --- blocks

    def _start_block(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _index(wire)
        if self._add_trailing(wire.get("content_block")):
            return
        if not self._message or index != len(self._blocks):
            raise EventOrderError(f"content_block_start for block {index} is out of order")
        block = _Block(index, _with_text(expect_object(wire.get("content_block"), "content_block_start")))
        self._blocks.append(block)
        self._select(block if block.delta_type is not None else None)
        match block.kind:
            case "tool_use":
                self._start_call(block, events)
            case "text":
                block.has_text = self._start_text(block, events)
            case "thinking":
                thinking = read_block(block.wire, MessageBuilder())
                if not isinstance(thinking, ThinkingBlock):
                    raise EventOrderError(f"the thinking of block {index} is not a text")
                events.append(ThinkingDelta(index, thinking.text, thinking.signature, thinking.provider_raw))

    def _start_text(self, block: _Block, events: list[StreamEvent]) -> bool:
        """Emit the first text and the notes of a text block, if it has any."""
        text_block = read_block(block.wire, MessageBuilder())
        if not isinstance(text_block, TextBlock):
            raise FormatError("expected text", where="content_block_start.text")
        if text_block.text or text_block.provider_raw is not None:
            events.append(TextDelta(block.index, text_block.text, text_block.provider_raw))
        return bool(text_block.text)

    def _start_call(self, block: _Block, events: list[StreamEvent]) -> None:
        provider_id, name = block.wire.get("id"), block.wire.get("name")
        if not isinstance(provider_id, str) or not isinstance(name, str):
            raise EventOrderError(f"block {block.index} calls a tool without an id or a name")
        call = ToolUseBlock(self._builder.call_id(provider_id), name, {})
        block.raw = block_notes(call, {**block.wire, "input": {}})
        events.append(ToolUseStart(block.index, call.id, name, block.raw))

    def _update_block(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        delta = wire.get("delta")
        if self._add_trailing(delta):
            return
        block = self._open_block(wire)
        if block is None or not isinstance(delta, dict):
            raise EventOrderError(f"content_block_delta for block {wire.get('index')}, which is not open")
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                _add_fragment(block, "text", "text", text, events)
            case {"type": "input_json_delta", "partial_json": str(text)}:
                _add_fragment(block, "tool_use", "input", text, events)
            case {"type": "thinking_delta", "thinking": str(text)}:
                _add_fragment(block, "thinking", "thinking", text, events)
            case {"type": "signature_delta", "signature": str(signature)}:
                block.wire["signature"] = signature
            case {"type": "citations_delta", "citation": citation}:
                block.fragments.setdefault("citations", []).append(citation)
            case _ if block.delta_type is None:
                _merge_delta(block, delta)

    def _open_block(self, wire: dict[str, Any]) -> _Block | None:
        index = _index(wire)
        block = self._blocks[index] if 0 <= index < len(self._blocks) else None
        return block if block is not None and block.is_open else None

    def _add_trailing(self, content: Any) -> bool:
        """Keep content that follows the stop reason apart; ``False`` if there is no stop reason yet."""
        if self._message.get("stop_reason") is None:
            return False
        texts = (content.get(key) for key in ("text", "thinking", "partial_json")) if isinstance(content, dict) else ()
        self._trailing.add("".join(text for text in texts if isinstance(text, str)))
        return True

    def _stop_block(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        block = self._open_block(wire)
        if block is None:
            if self._add_trailing(None):
                return
            raise EventOrderError(f"content_block_stop for block {wire.get('index')}, which is not open")
        block.is_open = False
        self._select(None)
        match block.kind:
            case "tool_use":
                if not block.has_text and block.wire.get("input"):  # content_block_start had the complete input
                    events.append(ToolUseInputDelta(block.index, msgspec.json.encode(block.wire["input"]).decode()))
                events.append(ToolUseEnd(block.index, block.raw))
            case "text":
                if block.fragments:
                    block.wire["citations"] = _extend_list(block.wire.get("citations"), block.fragments["citations"])
                text = read_block({**block.wire, "text": ""}, MessageBuilder())
                citations = text.citations if isinstance(text, TextBlock) else ()
                events.append(TextDelta(block.index, "", getattr(text, "provider_raw", None), citations))
            case "thinking":
                signature = text_or_none(block.wire.get("signature"))
                raw = block_notes(ThinkingBlock("", signature), {**block.wire, "thinking": ""})
                events.append(ThinkingDelta(block.index, "", signature, raw))
            case _:
                _emit_whole_block(block, events)


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


def _with_text(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block with its text; some compatible servers start a block without one."""
    kind = str(block.get("type"))
    is_bare = kind in ("text", "thinking") and block.get(kind) is None
    return {**block, kind: ""} if is_bare else dict(block)


def _make_start_notes(message: dict[str, Any]) -> ProviderRaw | None:
    """Return the notes about the reply as far as its start contains them, and the usage before its first token."""
    default = default_reply(Reply(stop_reason=StopReason.END_TURN, model=text_or_none(message.get("model"))))
    default["stop_reason"] = None
    rest = {key: value for key, value in message.items() if key != "content"}
    usage = rest.get("usage")
    if isinstance(usage, dict):
        rest["usage"] = default["usage"]
    return make_notes(NAME, default, rest, usage=usage if isinstance(usage, dict) else None)


def _add_fragment(block: _Block, kind: str, key: str, text: str, events: list[StreamEvent]) -> None:
    """Emit more text of a block, or collect it for a block that is emitted whole."""
    if block.delta_type is None:
        block.fragments.setdefault(key, []).append(text)
        return
    if block.kind != kind:
        raise EventOrderError(f"a {kind} delta for block {block.index}, which is a {block.kind} block")
    if text:
        block.has_text = True
        events.append(block.event(block.index, text))


def _merge_delta(block: _Block, delta: dict[str, Any]) -> None:
    """Add a delta to a block that is emitted whole: texts grow, other values replace what the block has.

    The delta of a compaction has a ``content`` and an ``encrypted_content``; either may be null.
    """
    for key, value in delta.items():
        if key == "type" or value is None:
            continue
        if isinstance(value, str):
            block.fragments.setdefault(key, []).append(value)
        else:
            block.wire[key] = value


def _extend_list(items: Any, more: list[Any]) -> list[Any]:
    return [*items, *more] if isinstance(items, list) else more


def _emit_whole_block(block: _Block, events: list[StreamEvent]) -> None:
    """Emit a block that cannot grow in events: a server-side tool call, or an unknown type."""
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
                raise EventOrderError(f"the input of block {block.index} is not JSON") from None
    events.append(BlockComplete(block.index, read_block(block.wire, MessageBuilder())))


stream_reader = StreamReader
