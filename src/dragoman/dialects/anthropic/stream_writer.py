"""Streams of the Messages API: events in, bytes out, each event as soon as the wire allows it.

Blocks on this wire are consecutive: a block starts after the one before it stopped. Text that continues an earlier
block starts a new one; a call that another block interrupts stays open until its end. ``message_delta`` has what the
start did not contain.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.dialects.anthropic.blocks import NAME, unsupported_in_answer, write_block
from dragoman.dialects.anthropic.error import write_error
from dragoman.dialects.anthropic.reply import DETAILS, default_reply
from dragoman.dialects.anthropic.support import SUPPORT
from dragoman.event import (
    MessageComplete,
    MessageStart,
    StreamError,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    mark_unusable,
)
from dragoman.exchange import Reply, StopReason
from dragoman.message import (
    Citation,
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.wire.faults import stream_error
from dragoman.wire.frames import json_text, sse_frame
from dragoman.wire.residue import apply_diff, get_notes
from dragoman.wire.stream_writer import BaseStreamWriter

_PLACEHOLDER: Final = (TextBlock("…"),)  # replaces written text: the end needs only its presence
_DELTA_KEYS: Final[dict[type, tuple[str, str]]] = {  # type of a delta, and the key of its text
    TextDelta: ("text_delta", "text"),
    ThinkingDelta: ("thinking_delta", "thinking"),
    ToolUseInputDelta: ("input_json_delta", "partial_json"),
}


class _Block:
    """A block on the wire, and the bytes around each piece of its text."""

    def __init__(self, kind: type, index: int, begin: dict[str, Any]) -> None:
        self.kind = kind
        self.index = index
        self.signature = begin.get("signature")
        self.citations = 0  # number of written citations
        self.cited: tuple[Citation, ...] = ()  # citations received so far
        self.inputs: list[str] = []  # of a call, to detect whether it is complete when another block starts
        self.is_open = True
        name, key = _DELTA_KEYS[kind]
        delta = f'{{"type":"content_block_delta","index":{index},"delta":{{"type":"{name}","{key}":'
        self.template = (b"event: content_block_delta\ndata: " + delta.encode(), b"}}\n\n")

    def write_text(self, text: str) -> bytes:
        """Write a piece of text."""
        return self.template[0] + json_text(text) + self.template[1] if text else b""

    def write_delta(self, **delta: Any) -> bytes:
        """Write a delta that is not text."""
        return sse_frame({"type": "content_block_delta", "index": self.index, "delta": delta}, "content_block_delta")

    def close(self) -> bytes:
        """Write the end of the block, if it is open."""
        if not self.is_open:
            return b""
        self.is_open = False
        return sse_frame({"type": "content_block_stop", "index": self.index}, "content_block_stop")


def _can_close(block: _Block) -> bool:
    """Whether a block can be closed when another starts; a call only if its input is a whole object.

    Some servers send the signature of a thought after the start of the next block.
    """
    if block.kind is ThinkingDelta:
        return bool(block.signature)
    if block.kind is not ToolUseInputDelta:
        return True
    try:
        return isinstance(msgspec.json.decode("".join(block.inputs)), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


class StreamWriter(BaseStreamWriter):
    """Events in, bytes out, in the order that the official SDKs expect."""

    support = SUPPORT
    details = DETAILS
    find_loss = staticmethod(unsupported_in_answer)

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing)
        self._model: str | None = None
        self._start_message: dict[str, Any] = {}  # the message of the start event
        self._wire_blocks: dict[
            int, _Block
        ] = {}  # by the index of the events; the index on the wire counts written blocks
        self._count = 0
        self._has_content = False

    # --- the message

    def write_start(self, start: MessageStart) -> bytes:
        """Write the start. Fields that are known at the end only are zero or null."""
        notes = get_notes(start.provider_raw, NAME)
        default = default_reply(Reply(stop_reason=StopReason.END_TURN, model=start.model))
        default["stop_reason"] = None
        message = {**apply_diff(default, notes.get("residue")), **self.identity}
        message.update({key: None for key in ("stop_reason", "stop_sequence") if key in message})
        if "usage" in notes:
            message["usage"] = notes["usage"]
        self._model, self._start_message = start.model, message
        return sse_frame({"type": "message_start", "message": {**message, "content": []}}, "message_start")

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Write the end, with everything that the start did not contain."""
        reply = Reply(
            content=_PLACEHOLDER if self._has_content else (),
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=usage,
            model=self._model,
            stop_details=end.stop_details,
        )
        residue = get_notes(end.provider_raw, NAME).get("residue")
        message = {**apply_diff(default_reply(mark_unusable(reply)), residue), **self.identity}
        out = b"".join(block.close() for block in self._wire_blocks.values()) + self._write_message_delta(message)
        return out + sse_frame({"type": "message_stop"}, "message_stop")

    def write_failure(self, error: StreamError) -> bytes:
        """Write the usage so far and an error."""
        out = b""
        if self.usage is not None:
            usage = default_reply(Reply(stop_reason=StopReason.END_TURN, usage=self.usage))["usage"]
            out = self._write_message_delta({"stop_reason": None, "stop_sequence": None, "usage": usage})
        return out + sse_frame(write_error(error.fault).wire, "error")

    def _write_message_delta(self, message: dict[str, Any]) -> bytes:
        frame: dict[str, Any] = {"type": "message_delta", "delta": {}}
        for key, value in message.items():
            if key == "usage" and isinstance(value, dict):
                frame[key] = {name: count for name, count in value.items() if count is not None}
            elif key in ("stop_reason", "stop_sequence"):
                frame["delta"][key] = value
            elif key not in self._start_message or self._start_message[key] != value:
                (frame if key == "context_management" and value is not None else frame["delta"])[key] = value
        return sse_frame(frame, "message_delta")

    # --- blocks

    def write_text_delta(self, delta: TextDelta, text: str) -> bytes:
        """Write more text and its citations. An empty text of this dialect closes an open block after its notes."""
        return self._write_text(delta.index, text, delta.provider_raw, delta.citations)

    def _write_text(self, index: int, text: str, raw: ProviderRaw | None, cited: tuple[Citation, ...]) -> bytes:
        out, block = b"", self._open_block(index)
        is_native = bool(get_notes(raw, NAME))
        is_end = block is not None and not text and is_native
        if block is None:
            is_foreign = raw is not None and not is_native
            if not text and not cited and (is_foreign or index in self._wire_blocks):
                return b""
            start = write_block(TextBlock("", raw, cited))
            out, block = self._open(index, TextDelta, {**start, "citations": []} if _get_citations(start) else start)
        out += block.write_text(text)
        block.cited = (*block.cited, *cited)
        if raw is not None or cited:
            citations = _get_citations(write_block(TextBlock("", raw, block.cited)))
            out += b"".join(
                block.write_delta(type="citations_delta", citation=citation)
                for citation in citations[block.citations :]
            )
            block.citations = max(block.citations, len(citations))
        if is_end:
            return out + block.close()
        if text:
            self._has_content = True
            self.set_text_template(TextDelta, index, raw, block.template)
        return out

    def write_thinking_delta(self, delta: ThinkingDelta, text: str) -> bytes:
        """Write more thinking of this dialect; other thinking is never written. An empty text closes an open block."""
        index, signature, raw = delta.index, delta.signature, delta.provider_raw
        out, block = b"", self._open_block(index)
        is_end = block is not None and not text
        if block is None:
            opening = ThinkingBlock("", signature, raw)
            if unsupported_in_answer(opening) is not None or (not text and index in self._wire_blocks):
                return b""
            start = write_block(opening)
            out, block = self._open(index, ThinkingDelta, {**start, "signature": ""} if "signature" in start else start)
        out += block.write_text(text)
        if signature is not None and signature != block.signature:
            block.signature = signature
            out += block.write_delta(type="signature_delta", signature=signature)
        if is_end:
            return out + block.close()
        if text and signature is None:
            self.set_text_template(ThinkingDelta, index, raw, block.template)
        return out

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write the start of a call."""
        call = ToolUseBlock(start.id, start.name, {}, start.provider_raw)
        return self._open(start.index, ToolUseInputDelta, {**write_block(call), "input": {}})[0]

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write more input of a call."""
        block = self._wire_blocks[index]
        if not block.is_open and text.strip():
            return self._fail(stream_error(NAME, "tool_input_invalid", "the input of a call went on after its end"))
        block.inputs.append(text)
        return block.write_text(text) if block.is_open else b""

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the end of a call."""
        return self._wire_blocks[end.index].close()

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """Write a whole block: start, content and stop."""
        if unsupported_in_answer(block) is not None:
            return b""
        match block:
            case TextBlock(text, raw, citations):
                out = self._write_text(index, text, raw, citations)
            case ThinkingBlock(text, signature, raw):
                out = self.write_thinking_delta(ThinkingDelta(index, text, signature, raw), text)
            case _:
                wire = write_block(block)
                input_text = _input_text(block, wire)
                out, wire_block = self._open(
                    index, ToolUseInputDelta, wire if input_text is None else {**wire, "input": {}}
                )
                out += wire_block.write_text(input_text or "")
        return out + self._wire_blocks[index].close() if index in self._wire_blocks else out

    def _open(self, index: int, kind: type, start: dict[str, Any]) -> tuple[bytes, _Block]:
        out = b"".join(block.close() for block in self._wire_blocks.values() if block.is_open and _can_close(block))
        block = self._wire_blocks[index] = _Block(kind, self._count, start)
        self._count += 1
        self._has_content = self._has_content or kind is not TextDelta
        frame = {"type": "content_block_start", "index": block.index, "content_block": start}
        return out + sse_frame(frame, "content_block_start"), block

    def _open_block(self, index: int) -> _Block | None:
        block = self._wire_blocks.get(index)
        return block if block is not None and block.is_open else None


def _get_citations(wire: dict[str, Any]) -> list[Any]:
    citations = wire.get("citations")
    return citations if isinstance(citations, list) else []


def _input_text(block: ContentBlock, wire: dict[str, Any]) -> str | None:
    """Return the input of a call as text, as it was received if it is invalid; ``None`` if the block is not a call."""
    if isinstance(block, InvalidToolUseBlock):
        return block.input_text
    is_call = wire.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use") and "input" in wire
    return msgspec.json.encode(wire["input"]).decode() if is_call else None


stream_writer = StreamWriter
