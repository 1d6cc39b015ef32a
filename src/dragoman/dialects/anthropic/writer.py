"""Streams of the Messages API: events in, bytes out, each event as soon as the wire allows it.

Blocks stand one after the other there: one begins when the words of another are over. Words that go on later begin a
block of their own; a call that another one interrupts stays open until it has ended. What a stream has consumed is said
with its end, so an end waits for it if nothing of it is known yet.

The one rule: only a message that was told to be complete is ended like one; everything else ends as an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from dragoman.dialects.anthropic.blocks import NAME, cannot_say, written_block
from dragoman.dialects.anthropic.error import write_error
from dragoman.dialects.anthropic.reply import natural_reply
from dragoman.dialects.parts.faults import stream_error
from dragoman.dialects.parts.framing import json_text, sse_frame
from dragoman.dialects.parts.residue import notes_of, restored
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
    judged,
)
from dragoman.exchange import Reply, StopReason
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
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
_AFTER_WORDS: Final = b"}}\n\n"


class _Block:
    """A block on the wire: what was said of it, and the bytes that stand before each piece of its words."""

    def __init__(self, kind: type, index: int, begin: dict[str, Any]) -> None:
        self.kind = kind
        self.index = index
        self.signature = begin.get("signature")
        self.citations = 0
        self.inputs: list[str] = []  # of a call, to see whether it is over when another block begins
        self.is_open = True
        name, key = _KEYS[kind]
        delta = f'{{"type":"content_block_delta","index":{index},"delta":{{"type":"{name}","{key}":'
        self.before_words = b"event: content_block_delta\ndata: " + delta.encode()

    def words(self, text: str) -> bytes:
        """One more piece."""
        return self.before_words + json_text(text) + _AFTER_WORDS

    def delta(self, **delta: Any) -> bytes:
        """What comes piece by piece and is no words."""
        return sse_frame({"type": "content_block_delta", "index": self.index, "delta": delta}, "content_block_delta")

    def close(self) -> bytes:
        """The end of the block, if it has not ended."""
        if not self.is_open:
            return b""
        self.is_open = False
        return sse_frame({"type": "content_block_stop", "index": self.index}, "content_block_stop")


class StreamWriter:
    """Events in, bytes out, in the order that the official SDKs expect."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        self._model: str | None = None
        self._said: dict[str, Any] | None = None  # the message as it was said when it began
        self._blocks: dict[int, _Block] = {}  # by the index of the events; that on the wire counts what was written
        self._count = 0
        self._current: _Block | None = None  # the one that the next words most likely belong to
        self._current_index = -1
        self._has_words = False
        self._usage: TokenUsage | None = None
        self._end: MessageComplete | None = None
        self._over = False

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        if self._over:
            return b""
        try:
            current = self._current
            if (
                type(event) is TextDelta
                and current is not None
                and event.index == self._current_index
                and event.text
                and event.provider_raw is None
                and current.kind is TextDelta
            ):
                self._has_words = True
                return current.words(event.text)
            return _WRITES[type(event)](self, event)
        except UnicodeEncodeError:
            return self._fail("bad_event", "half of a character in a text")

    def close(self) -> bytes:
        """The rest of the stream: its end if that was told, else an error."""
        if self._over:
            return b""
        if self._end is not None:
            return self._finish(self._end)
        return self._fail("stream_incomplete", "the stream ended before the model did")

    # --- the message

    def _begin(self, start: MessageStart) -> bytes:
        """The beginning. What only its end will know is zero or null for now."""
        if self._said is not None:
            return self._fail("protocol_violation", "the message begins a second time")
        notes = notes_of(start.provider_raw, NAME)
        natural = natural_reply(Reply(stop_reason=StopReason.END_TURN, model=start.model))
        natural["stop_reason"] = None
        said = restored(natural, notes.get("residue"))
        said.update({key: None for key in ("stop_reason", "stop_sequence") if key in said})
        if "usage" in notes:
            said["usage"] = notes["usage"]
        self._model, self._said = start.model, said
        return sse_frame({"type": "message_start", "message": {**said, "content": []}}, "message_start")

    def _begun(self) -> bytes:
        return b"" if self._said is not None else self._begin(MessageStart())

    def _update_usage(self, event: UsageUpdate) -> bytes:
        self._usage = event.usage
        return self._finish(self._end) if self._end is not None else b""

    def _complete(self, end: MessageComplete) -> bytes:
        if self._end is not None:
            return b""
        if any(block.kind is ToolUseInputDelta and block.is_open for block in self._blocks.values()):
            return self._fail("tool_input_truncated", "the message ended inside a call")
        if end.stop_reason is StopReason.ERROR:
            return self._fail("unexplained_error", "the model ended as failed and did not say why")
        self._end = end
        out = self._begun() + b"".join(self._closed(block) for block in self._blocks.values())
        return out if self._usage is None else out + self._finish(end)

    def _finish(self, end: MessageComplete) -> bytes:
        """The end, with everything that the beginning did not say."""
        self._over = True
        reply = Reply(
            content=_SOMETHING if self._has_words else (),
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=self._usage,
            model=self._model,
        )
        whole = restored(natural_reply(judged(reply)), notes_of(end.provider_raw, NAME).get("residue"))
        return self._message_delta(whole) + sse_frame({"type": "message_stop"}, "message_stop")

    def _message_delta(self, whole: dict[str, Any]) -> bytes:
        said = self._said or {}
        frame: dict[str, Any] = {"type": "message_delta", "delta": {}}
        for key, value in whole.items():
            if key == "usage" and isinstance(value, dict):
                frame[key] = {name: count for name, count in value.items() if count is not None}
            elif key in ("stop_reason", "stop_sequence"):
                frame["delta"][key] = value
            elif key not in said or said[key] != value:
                (frame if key == "context_management" and value is not None else frame["delta"])[key] = value
        return sse_frame(frame, "message_delta")

    def _error(self, event: StreamError) -> bytes:
        """The end of a stream that is not complete. What it has consumed is said before it."""
        self._over = True
        out = b""
        if self._said is not None and self._usage is not None:
            usage = natural_reply(Reply(stop_reason=StopReason.END_TURN, usage=self._usage))["usage"]
            out = self._message_delta({"stop_reason": None, "stop_sequence": None, "usage": usage})
        return out + sse_frame(write_error(event.fault).wire, "error")

    def _fail(self, code: str, message: str) -> bytes:
        return self._error(stream_error(NAME, code, message))

    # --- blocks

    def _open(self, index: int, kind: type, begin: dict[str, Any]) -> bytes:
        over = [block for block in self._blocks.values() if block.is_open and _is_over(block)]
        out = self._begun() + b"".join(map(self._closed, over))
        block = self._blocks[index] = _Block(kind, self._count, begin)
        self._count += 1
        self._current, self._current_index = block, index
        self._has_words = self._has_words or kind is not TextDelta
        frame = {"type": "content_block_start", "index": block.index, "content_block": begin}
        return out + sse_frame(frame, "content_block_start")

    def _closed(self, block: _Block) -> bytes:
        if block is self._current:
            self._current = None
        return block.close()

    def _open_block(self, index: int, kind: type) -> _Block | None:
        block = self._blocks.get(index)
        return block if block is not None and block.is_open and block.kind is kind else None

    def _text(self, delta: TextDelta) -> bytes:
        """More words. Without any, an open block is over; what was learnt about it is said before."""
        raw, out, block = delta.provider_raw, b"", self._open_block(delta.index, TextDelta)
        is_over = block is not None and not delta.text
        if block is None:
            is_foreign = raw is not None and not notes_of(raw, NAME)
            if self._end is not None or (not delta.text and (is_foreign or delta.index in self._blocks)):
                return b""
            begin = written_block(TextBlock("", raw))
            out = self._open(delta.index, TextDelta, {**begin, "citations": []} if begin.get("citations") else begin)
            block = self._blocks[delta.index]
        if delta.text:
            self._has_words = True
            out += block.words(delta.text)
        if raw is not None:
            citations = written_block(TextBlock("", raw)).get("citations") or []
            out += b"".join(block.delta(type="citations_delta", citation=one) for one in citations[block.citations :])
            block.citations = max(block.citations, len(citations))
        return out + self._closed(block) if is_over else out

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        """More thinking, if it is this dialect's own; another's is never said."""
        out, block = b"", self._open_block(delta.index, ThinkingDelta)
        is_over = block is not None and not delta.text
        if block is None:
            begins = ThinkingBlock("", delta.signature, delta.provider_raw)
            is_said = self._end is not None or (not delta.text and delta.index in self._blocks)
            if is_said or cannot_say(begins) is not None:
                return b""
            begin = written_block(begins)
            out = self._open(delta.index, ThinkingDelta, {**begin, "signature": ""} if "signature" in begin else begin)
            block = self._blocks[delta.index]
        if delta.text:
            out += block.words(delta.text)
        if delta.signature and delta.signature != block.signature:
            block.signature = delta.signature
            out += block.delta(type="signature_delta", signature=delta.signature)
        return out + self._closed(block) if is_over else out

    def _call(self, start: ToolUseStart) -> bytes:
        if self._end is not None:
            return b""
        call = ToolUseBlock(start.id, start.name, {}, start.provider_raw)
        return self._open(start.index, ToolUseInputDelta, {**written_block(call), "input": {}})

    def _input(self, delta: ToolUseInputDelta) -> bytes:
        block = self._blocks.get(delta.index)
        if self._end is not None:
            return b""
        if block is None or block.kind is not ToolUseInputDelta:
            return self._fail("protocol_violation", f"a piece of input for block {delta.index}, which is no call")
        if block.is_open:
            block.inputs.append(delta.partial_json)
            return block.words(delta.partial_json)
        if delta.partial_json.strip():
            return self._fail("tool_input_invalid", "the input of a call went on after its end")
        return b""

    def _call_end(self, end: ToolUseEnd) -> bytes:
        block = self._blocks.get(end.index)
        return b"" if block is None else self._closed(block)

    def _whole(self, event: BlockComplete) -> bytes:
        """A block that comes whole is begun, said and ended at once."""
        index, whole = event.index, event.block
        if self._end is not None or cannot_say(whole) is not None:
            return b""
        match whole:
            case TextBlock(text, raw):
                out = self._text(TextDelta(index, text, raw))
            case ThinkingBlock(text, signature, raw):
                out = self._thinking(ThinkingDelta(index, text, signature, raw))
            case _:
                wire = written_block(whole)
                words = _input_of(whole, wire)
                out = self._open(index, ToolUseInputDelta, wire if words is None else {**wire, "input": {}})
                out += b"" if words is None else self._blocks[index].words(words)
        return out + self._closed(self._blocks[index])


_WRITES: Final[dict[type, Callable[[StreamWriter, Any], bytes]]] = {
    MessageStart: StreamWriter._begin,
    TextDelta: StreamWriter._text,
    ThinkingDelta: StreamWriter._thinking,
    ToolUseStart: StreamWriter._call,
    ToolUseInputDelta: StreamWriter._input,
    ToolUseEnd: StreamWriter._call_end,
    BlockComplete: StreamWriter._whole,
    UsageUpdate: StreamWriter._update_usage,
    MessageComplete: StreamWriter._complete,
    StreamError: StreamWriter._error,
}


def _input_of(block: ContentBlock, wire: dict[str, Any]) -> str | None:
    """The input of a call as text; ``None`` if the block is no call. One that cannot be used stays as it came."""
    if isinstance(block, InvalidToolUseBlock):
        return block.input_text
    is_call = wire.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use") and "input" in wire
    return msgspec.json.encode(wire["input"]).decode() if is_call else None


def _is_over(block: _Block) -> bool:
    """Whether a block is over when another begins. A call is, once its input is a whole object."""
    if block.kind is not ToolUseInputDelta:
        return True
    try:
        return isinstance(msgspec.json.decode("".join(block.inputs)), dict)
    except msgspec.DecodeError:
        return False


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
