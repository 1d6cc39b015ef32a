"""Write streams: events to server-sent events, each as soon as possible. Every block is a step of its own.

Where the steps of the interaction are grouped in another way or have further fields, the last event repeats them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.dialects.gemini_interactions.reply import DETAILS, write_reply
from dragoman.dialects.gemini_interactions.steps import (
    NAME,
    Wire,
    is_item,
    unsupported_reason,
    write_call,
    write_item,
    write_step,
)
from dragoman.dialects.gemini_interactions.support import SUPPORT
from dragoman.event import (
    Accumulator,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from dragoman.exchange import StopReason
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.wire.frames import sse_frame
from dragoman.wire.residue import get_notes
from dragoman.wire.stream_writer import BaseStreamWriter

_DONE: Final = b"event: done\ndata: [DONE]\n\n"


class StreamWriter(BaseStreamWriter):
    """Convert events to the bytes of a stream."""

    open_call_stop_reasons = (StopReason.MAX_TOKENS,)
    support = SUPPORT
    details = DETAILS
    find_loss = staticmethod(unsupported_reason)

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing)
        self._accumulator = Accumulator()
        self._step_count = 0
        self._open_text: tuple[int, int] | None = None  # index of the open text or thought, and of its step
        self._calls: dict[int, int] = {}  # index of a call, and of its step
        self._native: set[int] = set()  # native reasoning

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        self._accumulator.add(event)
        return super().feed(event)

    def write_start(self, start: MessageStart) -> bytes:
        """Write interaction.created."""
        notes = get_notes(start.provider_raw, NAME)
        model = {"model": start.model} if start.model is not None else {}
        fields = notes.get("start") or {"id": "dragoman", **model, "object": "interaction", "status": "in_progress"}
        return _write_event({"event_type": "interaction.created", "interaction": fields})

    def write_text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write text, followed by its annotations."""
        opened = self._open(index, {"type": "model_output"})
        deltas = [{"type": "text", "text": text}] if text or opened else []
        annotations = write_item(TextBlock("", raw)).get("annotations")
        if annotations and get_notes(raw, NAME).get("residue"):
            deltas.append({"type": "text_annotation_delta", "annotations": annotations})
        return opened + b"".join(self._write_delta(delta) for delta in deltas)

    def write_thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write native reasoning without a signature."""
        return self.write_thinking_delta(ThinkingDelta(index, text, None, raw), text)

    def write_thinking_delta(self, delta: ThinkingDelta, text: str) -> bytes:
        """Write native reasoning. Its signature comes with its last delta."""
        index = delta.index
        if index not in self._native and not get_notes(delta.provider_raw, NAME):
            return b""
        self._native.add(index)
        data = self._open(index, {"type": "thought"})
        if text:
            data += self._write_delta({"type": "thought_summary", "content": {"type": "text", "text": text}})
        if delta.signature is not None:
            data += self._write_delta({"type": "thought_signature", "signature": delta.signature})
        return data

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write the start of a call."""
        call = write_call(ToolUseBlock(start.id, start.name, {}, start.provider_raw))
        closed = self._close_text()
        self._calls[start.index] = self._step_count
        return closed + self._start_step({**call, "arguments": {}})

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write more input of a call."""
        delta = {"type": "arguments_delta", "arguments": text}
        return _write_event({"event_type": "step.delta", "index": self._calls[index], "delta": delta}) if text else b""

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the end of a call."""
        return _write_event({"event_type": "step.stop", "index": self._calls[end.index]})

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """Write a whole block, if the API supports it."""
        if unsupported_reason(block) is not None:
            return b""
        match block:
            case TextBlock(text, raw):
                return self.write_text(index, text, raw)
            case ThinkingBlock(text, signature, raw):
                return self.write_thinking_delta(ThinkingDelta(index, text, signature, raw), text)
            case ToolUseBlock() | InvalidToolUseBlock():
                return self._write_whole_call(index, block)
            case _ if is_item(block) and not isinstance(block, OpaqueBlock):
                return self._open(index, {"type": "model_output"}) + self._write_delta(write_item(block))
            case _:
                step = {"type": "model_output", "content": [write_item(block)]} if is_item(block) else write_step(block)
                return self._open(index, step) + self._close_text()

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:  # noqa: ARG002  the accumulator has it
        """Write interaction.completed."""
        reply = self._accumulator.reply()
        wire = write_reply(reply).wire
        if wire.get("steps") == [_plain_step(block) for block in reply.content if unsupported_reason(block) is None]:
            wire = {key: value for key, value in wire.items() if key != "steps"}
        closed = self._close_text()
        return closed + _write_event({"event_type": "interaction.completed", "interaction": wire}) + _DONE

    def write_failure(self, error: StreamError) -> bytes:
        """Write an error event."""
        fault = error.fault
        code: Any = fault.provider_code or fault.code
        return _write_event({"event_type": "error", "error": {"code": code, "message": fault.message}})

    def _open(self, index: int, step: Wire) -> bytes:
        """Start the step of a text or a thought, unless it is open."""
        if self._open_text is not None and self._open_text[0] == index:
            return b""
        closed = self._close_text()
        self._open_text = (index, self._step_count)
        return closed + self._start_step(step)

    def _start_step(self, step: Wire) -> bytes:
        index, self._step_count = self._step_count, self._step_count + 1
        return _write_event({"event_type": "step.start", "index": index, "step": step})

    def _write_delta(self, delta: Wire) -> bytes:
        index = self._open_text[1] if self._open_text is not None else 0
        return _write_event({"event_type": "step.delta", "index": index, "delta": delta})

    def _close_text(self) -> bytes:
        opened, self._open_text = self._open_text, None
        return b"" if opened is None else _write_event({"event_type": "step.stop", "index": opened[1]})

    def _write_whole_call(self, index: int, block: ToolUseBlock | InvalidToolUseBlock) -> bytes:
        text = msgspec.json.encode(block.input).decode() if isinstance(block, ToolUseBlock) else block.input_text
        start = self.write_call_start(ToolUseStart(index, block.id, block.name, block.provider_raw))
        return start + self.write_call_input(index, text) + self.write_call_end(ToolUseEnd(index))


def _plain_step(block: ContentBlock) -> Wire:
    """Return the step of a block as the stream has it: the notes of a text or a thought are not in it."""
    if isinstance(block, TextBlock | ThinkingBlock):
        block = block.replace(provider_raw=None)
    return {"type": "model_output", "content": [write_item(block)]} if is_item(block) else write_step(block)


def _write_event(wire: Wire) -> bytes:
    return sse_frame(wire, wire["event_type"])


stream_writer = StreamWriter
