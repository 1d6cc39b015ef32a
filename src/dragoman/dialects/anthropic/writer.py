"""Streams of the Messages API: events in, bytes out, each event as soon as the wire allows it.

Blocks stand one after the other there: one begins when the words of another are over. Words that go on later begin a
block of their own; a call that another one interrupts stays open until it has ended.

The one rule: what the beginning could not say yet is said with the end.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.dialects.anthropic.blocks import NAME, cannot_say, written_block
from dragoman.dialects.anthropic.error import write_error
from dragoman.dialects.anthropic.reply import natural_reply
from dragoman.dialects.parts.faults import stream_error
from dragoman.dialects.parts.framing import json_text, sse_frame
from dragoman.dialects.parts.residue import notes_of, restored
from dragoman.dialects.parts.writing import EventWriter
from dragoman.event import (
    MessageComplete,
    MessageStart,
    StreamError,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    judged,
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

_SOMETHING: Final = (TextBlock("…"),)  # in place of what was said, of which only the fact counts at the end
_KEYS: Final[dict[type, tuple[str, str]]] = {  # the type of a delta, and under which key its words stand
    TextDelta: ("text_delta", "text"),
    ThinkingDelta: ("thinking_delta", "thinking"),
    ToolUseInputDelta: ("input_json_delta", "partial_json"),
}


class _Block:
    """A block on the wire: what was said of it, and the bytes that stand around each piece of its words."""

    def __init__(self, kind: type, index: int, begin: dict[str, Any]) -> None:
        self.kind = kind
        self.index = index
        self.signature = begin.get("signature")
        self.citations = 0
        self.inputs: list[str] = []  # of a call, to see whether it is over when another block begins
        self.is_open = True
        name, key = _KEYS[kind]
        delta = f'{{"type":"content_block_delta","index":{index},"delta":{{"type":"{name}","{key}":'
        self.around = (b"event: content_block_delta\ndata: " + delta.encode(), b"}}\n\n")

    def words(self, text: str) -> bytes:
        """One more piece."""
        return self.around[0] + json_text(text) + self.around[1] if text else b""

    def delta(self, **delta: Any) -> bytes:
        """What comes piece by piece and is no words."""
        return sse_frame({"type": "content_block_delta", "index": self.index, "delta": delta}, "content_block_delta")

    def close(self) -> bytes:
        """The end of the block, if it has not ended."""
        if not self.is_open:
            return b""
        self.is_open = False
        return sse_frame({"type": "content_block_stop", "index": self.index}, "content_block_stop")


def _is_over(block: _Block) -> bool:
    """Whether a block is over when another begins. A call is, once its input is a whole object."""
    if block.kind is not ToolUseInputDelta:
        return True
    try:
        return isinstance(msgspec.json.decode("".join(block.inputs)), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


class StreamWriter(EventWriter):
    """Events in, bytes out, in the order that the official SDKs expect."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        super().__init__(NAME)
        self._model: str | None = None
        self._said: dict[str, Any] = {}  # the message as it was said when it began
        self._opened: dict[int, _Block] = {}  # by the index of the events; that on the wire counts what was written
        self._count = 0
        self._has_words = False

    # --- the message

    def begun(self, start: MessageStart) -> bytes:
        """The beginning. What only its end will know is zero or null for now."""
        notes = notes_of(start.provider_raw, NAME)
        natural = natural_reply(Reply(stop_reason=StopReason.END_TURN, model=start.model))
        natural["stop_reason"] = None
        said = restored(natural, notes.get("residue"))
        said.update({key: None for key in ("stop_reason", "stop_sequence") if key in said})
        if "usage" in notes:
            said["usage"] = notes["usage"]
        self._model, self._said = start.model, said
        return sse_frame({"type": "message_start", "message": {**said, "content": []}}, "message_start")

    def completed(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """The end, with everything that the beginning did not say."""
        reply = Reply(
            content=_SOMETHING if self._has_words else (),
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=usage,
            model=self._model,
        )
        whole = restored(natural_reply(judged(reply)), notes_of(end.provider_raw, NAME).get("residue"))
        out = b"".join(block.close() for block in self._opened.values()) + self._message_delta(whole)
        return out + sse_frame({"type": "message_stop"}, "message_stop")

    def failed(self, error: StreamError) -> bytes:
        """An error. What was consumed is said before it."""
        out = b""
        if self.usage is not None:
            usage = natural_reply(Reply(stop_reason=StopReason.END_TURN, usage=self.usage))["usage"]
            out = self._message_delta({"stop_reason": None, "stop_sequence": None, "usage": usage})
        return out + sse_frame(write_error(error.fault).wire, "error")

    def _message_delta(self, whole: dict[str, Any]) -> bytes:
        frame: dict[str, Any] = {"type": "message_delta", "delta": {}}
        for key, value in whole.items():
            if key == "usage" and isinstance(value, dict):
                frame[key] = {name: count for name, count in value.items() if count is not None}
            elif key in ("stop_reason", "stop_sequence"):
                frame["delta"][key] = value
            elif key not in self._said or self._said[key] != value:
                (frame if key == "context_management" and value is not None else frame["delta"])[key] = value
        return sse_frame(frame, "message_delta")

    # --- blocks

    def text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """More words. Without any, an open block is over; what was learnt about it is said before."""
        out, block = b"", self._open_block(index)
        is_over = block is not None and not text
        if block is None:
            is_foreign = raw is not None and not notes_of(raw, NAME)
            if not text and (is_foreign or index in self._opened):
                return b""
            begin = written_block(TextBlock("", raw))
            out, block = self._open(index, TextDelta, {**begin, "citations": []} if _citations(begin) else begin)
        out += block.words(text)
        if raw is not None:
            citations = _citations(written_block(TextBlock("", raw)))
            out += b"".join(block.delta(type="citations_delta", citation=one) for one in citations[block.citations :])
            block.citations = max(block.citations, len(citations))
        if is_over:
            return out + block.close()
        if text:
            self._has_words = True
            self.grows(TextDelta, index, raw, block.around)
        return out

    def reasoning(self, delta: ThinkingDelta, text: str) -> bytes:
        """More thinking, if it is this dialect's own; another's is never said. Without any, an open block is over."""
        index, signature, raw = delta.index, delta.signature, delta.provider_raw
        out, block = b"", self._open_block(index)
        is_over = block is not None and not text
        if block is None:
            begins = ThinkingBlock("", signature, raw)
            if cannot_say(begins) is not None or (not text and index in self._opened):
                return b""
            begin = written_block(begins)
            out, block = self._open(index, ThinkingDelta, {**begin, "signature": ""} if "signature" in begin else begin)
        out += block.words(text)
        if signature and signature != block.signature:
            block.signature = signature
            out += block.delta(type="signature_delta", signature=signature)
        if is_over:
            return out + block.close()
        if text and signature is None:
            self.grows(ThinkingDelta, index, raw, block.around)
        return out

    def call_begun(self, start: ToolUseStart) -> bytes:
        """A call begins."""
        call = ToolUseBlock(start.id, start.name, {}, start.provider_raw)
        return self._open(start.index, ToolUseInputDelta, {**written_block(call), "input": {}})[0]

    def call_input(self, index: int, text: str) -> bytes:
        """More of the input of a call."""
        block = self._opened[index]
        if not block.is_open and text.strip():
            return self._failing(stream_error(NAME, "tool_input_invalid", "the input of a call went on after its end"))
        block.inputs.append(text)
        return block.words(text) if block.is_open else b""

    def call_ended(self, end: ToolUseEnd) -> bytes:
        """A call is complete."""
        return self._opened[end.index].close()

    def whole(self, index: int, block: ContentBlock) -> bytes:
        """A block that comes whole is begun, said and ended at once."""
        if cannot_say(block) is not None:
            return b""
        match block:
            case TextBlock(text, raw):
                out = self.text(index, text, raw)
            case ThinkingBlock(text, signature, raw):
                out = self.reasoning(ThinkingDelta(index, text, signature, raw), text)
            case _:
                wire = written_block(block)
                words = _input_of(block, wire)
                out, opened = self._open(index, ToolUseInputDelta, wire if words is None else {**wire, "input": {}})
                out += opened.words(words or "")
        return out + self._opened[index].close() if index in self._opened else out

    def _open(self, index: int, kind: type, begin: dict[str, Any]) -> tuple[bytes, _Block]:
        out = b"".join(block.close() for block in self._opened.values() if block.is_open and _is_over(block))
        block = self._opened[index] = _Block(kind, self._count, begin)
        self._count += 1
        self._has_words = self._has_words or kind is not TextDelta
        frame = {"type": "content_block_start", "index": block.index, "content_block": begin}
        return out + sse_frame(frame, "content_block_start"), block

    def _open_block(self, index: int) -> _Block | None:
        block = self._opened.get(index)
        return block if block is not None and block.is_open else None


def _citations(wire: dict[str, Any]) -> list[Any]:
    citations = wire.get("citations")
    return citations if isinstance(citations, list) else []


def _input_of(block: ContentBlock, wire: dict[str, Any]) -> str | None:
    """The input of a call as text; ``None`` if the block is no call. One that cannot be used stays as it came."""
    if isinstance(block, InvalidToolUseBlock):
        return block.input_text
    is_call = wire.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use") and "input" in wire
    return msgspec.json.encode(wire["input"]).decode() if is_call else None


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
