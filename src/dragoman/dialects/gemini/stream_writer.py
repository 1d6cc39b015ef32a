"""Write streams. Every chunk is a response with one part of the answer, written as soon as possible.

Text is written immediately. A call is written complete at its end, and later blocks wait for it. The last chunk
contains the finish reason, usage and the other fields of the reply. A failure ends with a failure reason, or with an
error in place of the last chunk.

Invariant: only a complete message gets the finish reason of a complete message.
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.dialects.gemini.blocks import unsupported_reason, write_part
from dragoman.dialects.gemini.error import write_error
from dragoman.dialects.gemini.key_case import NAME
from dragoman.dialects.gemini.reply import (
    default_rest,
    default_usage,
    drop_finish_reason,
    write_finish_reason,
    write_with_parts,
)
from dragoman.dialects.gemini.stream_reader import NATIVE_THINKING, REPEATED_FIELDS
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
    fold,
)
from dragoman.exchange import ErrorClass, Fault, Reply, StopReason
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
)
from dragoman.wire.frames import json_line, sse_frame
from dragoman.wire.residue import apply_diff, get_notes

_Part = dict[str, Any]
_EMPTY_TEXT: Final[_Part] = {"text": ""}


class _OpenCall:
    """A call whose input is incomplete."""

    def __init__(self, start: ToolUseStart) -> None:
        self.start = start
        self.fragments: list[str] = []
        self.end: ToolUseEnd | None = None

    def has_no_input(self) -> bool:
        return not any(fragment.strip() for fragment in self.fragments)

    def to_block(self) -> ContentBlock:
        """Return the call as ``fold`` would: valid or invalid."""
        text = ToolUseInputDelta(self.start.index, "".join(self.fragments))
        return fold((self.start, text, self.end or ToolUseEnd(self.start.index))).content[0]


class StreamWriter:
    """Convert events to the bytes of a stream."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse", "json-array"):
            raise LookupError(f"{NAME} streams are server-sent events or one JSON array, not {framing!r}")
        self._is_array = framing == "json-array"
        self._has_items = False  # whether the array has an item
        self._model: str | None = None
        self._repeated_fields: _Part = {}  # fields that every chunk repeats
        self._content: _Part = {"role": "model"}
        self._candidate: _Part = {"index": 0}
        self._usage: TokenUsage | None = None
        self._is_usage_written = True
        self._kinds: dict[int, type[StreamEvent]] = {}  # the event type that opened each block
        self._calls: dict[int, _OpenCall] = {}
        self._pending_parts: dict[int, list[_Part]] = {}  # parts that wait for an earlier call
        self._native_thinking: set[int] = set()  # reasoning blocks of this dialect
        self._halves: dict[int, str] = {}  # high surrogates that wait for the low one
        self._has_content = False
        self._fault: Fault | None = None
        self._end: Reply | None = None
        self._is_over = False

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        if self._is_over:
            return self._write_late_usage(event)
        match event:
            case MessageStart():
                return self._start(event)
            case UsageUpdate(usage):  # written with the next chunk
                self._usage, self._is_usage_written = usage, False
                return b""
            case MessageComplete():
                return self._complete(event)
            case StreamError(fault, raw):
                return self._fail(fault, raw)
        self._fault = self._fault or self._find_violation(event)
        if self._fault is not None:
            return b""  # ignore events after a violation
        self._pending_parts.setdefault(event.index, []).extend(self._to_parts(event))
        return self._write_ready()

    def close(self) -> bytes:
        """Return the remaining bytes: an error if the message is incomplete, and the end of the array."""
        data = b"" if self._is_over else self._fail(self._fault or _fold_fault(), None)
        return data + b"]" if self._is_array else data

    # --- the parts of an event ---------------------------------------------------------------------------------------

    def _to_parts(self, event: StreamEvent) -> list[_Part]:
        match event:
            case TextDelta(index, text, None):
                complete_text = self._join_surrogates(index, text)
                return [{"text": complete_text}] if complete_text else []
            case TextDelta(index, text, raw):
                return _part_if_any(TextBlock(self._join_surrogates(index, text), raw))
            case ThinkingDelta(index, text, signature, raw):
                if get_notes(raw, NAME):
                    self._native_thinking.add(index)
                if index not in self._native_thinking:  # reasoning of other providers is never written
                    return []
                return _part_if_any(
                    ThinkingBlock(self._join_surrogates(index, text), signature, raw or NATIVE_THINKING)
                )
            case ToolUseStart(index):
                self._calls[index] = _OpenCall(event)
            case ToolUseInputDelta(index, fragment):
                self._calls[index].fragments.append(fragment)
            case ToolUseEnd(index):
                return self._end_call(index, event)
            case BlockComplete(_, block):
                return self._block_parts(block)
        return []

    def _end_call(self, index: int, end: ToolUseEnd) -> list[_Part]:
        self._calls[index].end = end
        if self._calls[index].has_no_input():  # the end of the message shows whether it was truncated
            return []
        return self._block_parts(self._calls.pop(index).to_block())

    def _block_parts(self, block: ContentBlock) -> list[_Part]:
        if isinstance(block, InvalidToolUseBlock):
            self._fault = self._fault or _fold_fault(BlockComplete(0, block), MessageComplete(StopReason.TOOL_USE))
            return []
        return [] if unsupported_reason(block) is not None else [write_part(block)]

    def _join_surrogates(self, index: int, text: str) -> str:
        """Return the text without a trailing high surrogate, which waits for its low surrogate."""
        if text.isascii() and index not in self._halves:
            return text
        text = self._halves.pop(index, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[index], text = text[-1], text[:-1]
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
        if joined.encode("utf-16-le") != text.encode("utf-16-le", "surrogatepass"):
            self._fault = self._fault or _HALF_CHARACTER
        return joined

    def _find_violation(self, event: StreamEvent) -> Fault | None:
        """Return the fault of an event that is out of order, as ``fold`` would find it."""
        kind = ToolUseStart if isinstance(event, ToolUseInputDelta | ToolUseEnd) else type(event)
        index: int = event.index  # type: ignore[union-attr]
        opened_by = self._kinds.get(index)
        if isinstance(event, ToolUseInputDelta | ToolUseEnd):
            is_right = index in self._calls and self._calls[index].end is None
        elif isinstance(event, ToolUseStart | BlockComplete):
            is_right = opened_by is None
        else:
            is_right = opened_by in (None, kind)
        self._kinds.setdefault(index, kind)
        return None if is_right else _make_violation(f"{event.type} for block {index}, which is not open for it")

    # --- chunks ------------------------------------------------------------------------------------------------------

    def _start(self, start: MessageStart) -> bytes:
        notes = get_notes(start.provider_raw, NAME)
        reply = Reply(stop_reason=StopReason.UNKNOWN, model=start.model)
        wire = apply_diff(default_rest(reply, {**notes, "unsaid": True}), notes.get("residue"))
        self._model = start.model
        self._repeated_fields = {key: wire[key] for key in REPEATED_FIELDS if key in wire}
        first: _Part = next(iter(wire.get("candidates") or ()), {})
        content = first.get("content")
        self._content = {key: content[key] for key in content if key != "parts"} if isinstance(content, dict) else {}
        self._candidate = {"index": first["index"]} if "index" in first else {}
        return b""

    def _write_ready(self, *, is_end: bool = False) -> bytes:
        """Return the chunks of all blocks that do not wait for a call."""
        limit = min(self._calls, default=None) if not is_end else None
        ready = sorted(index for index in self._pending_parts if limit is None or index < limit)
        return b"".join([self._write_chunk(part) for index in ready for part in self._pending_parts.pop(index)])

    def _write_chunk(self, part: _Part) -> bytes:
        self._has_content = True
        candidate = {"content": {"parts": [part], **self._content}, **self._candidate}
        return self._write_frame({"candidates": [candidate], **self._pending_usage(), **self._repeated_fields})

    def _pending_usage(self) -> _Part:
        """Return usage that no chunk has contained yet."""
        if self._usage is None or self._is_usage_written:
            return {}
        self._is_usage_written = True
        return {"usageMetadata": default_usage(self._usage, 0)}

    def _write_frame(self, wire: _Part) -> bytes:
        if not self._is_array:
            return sse_frame(wire)
        separator, self._has_items = b",\n" if self._has_items else b"[", True
        return separator + json_line(wire)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _complete(self, end: MessageComplete) -> bytes:
        fault = self._fault or self._find_end_fault(end)
        if fault is not None:
            return self._fail(fault, end.provider_raw)
        for index in sorted(self._calls):
            self._pending_parts.setdefault(index, []).extend(self._block_parts(self._calls[index].to_block()))
        data = self._write_ready(is_end=True)
        raw = {name: note for name, note in (end.provider_raw or {}).items() if name != "unsaid"}  # required here
        return data + self._write_last(
            Reply(stop_reason=end.stop_reason, usage=self._usage, model=self._model, provider_raw=raw or None)
        )

    def _find_end_fault(self, end: MessageComplete) -> Fault | None:
        """Return a fault that no event reported. An empty message is visible as such."""
        if end.stop_reason is StopReason.ERROR:
            return _fold_fault(end)
        if self._halves:
            return _HALF_CHARACTER
        if set(self._kinds) != set(range(len(self._kinds))):
            return _make_violation("a block index is missing")
        is_limit = end.stop_reason is StopReason.MAX_TOKENS
        open_call = next((call for call in self._calls.values() if is_limit or call.end is None), None)
        return _fold_fault(open_call.start.replace(index=0), end) if open_call is not None else None

    def _fail(self, fault: Fault, raw: ProviderRaw | None) -> bytes:
        data = self._write_ready(is_end=True)
        reply = Reply(stop_reason=StopReason.ERROR, fault=fault, usage=self._usage, model=self._model, provider_raw=raw)
        if self._has_content or fault.code != "empty_response":
            reply = drop_finish_reason(reply)
        if write_finish_reason(reply, get_notes(reply.provider_raw, NAME)) is not None:
            return data + self._write_last(reply)
        if not self._is_usage_written:
            data += self._write_frame({**self._pending_usage(), **self._repeated_fields})
        self._is_over = True
        return data + self._write_frame(write_error(fault).wire)

    def _write_last(self, reply: Reply) -> bytes:
        self._end, self._is_over, self._is_usage_written = reply, True, True
        return self._write_frame({**self._repeated_fields, **self._last_response(reply)})

    def _last_response(self, reply: Reply) -> _Part:
        """Return the response without the written parts, with an empty text, as the API ends its streams."""
        has_parts = self._has_content or get_notes(reply.provider_raw, NAME).get("form") is None
        return write_with_parts(reply, [_EMPTY_TEXT] if has_parts else [])

    def _write_late_usage(self, event: StreamEvent) -> bytes:
        """Write usage that arrives after the end; other events are ignored."""
        if self._end is None or not isinstance(event, UsageUpdate):
            return b""
        wire = self._last_response(self._end.replace(usage=event.usage))
        return self._write_frame({"usageMetadata": wire["usageMetadata"], **self._repeated_fields})


_HALF_CHARACTER: Final = Fault(code="bad_event", message="a lone surrogate in a text", retryable=True)


def _make_violation(message: str) -> Fault:
    return Fault(code="protocol_violation", message=message, error_class=ErrorClass.SERVER_ERROR, retryable=True)


def _fold_fault(*events: StreamEvent) -> Fault:
    """Return the fault that these events fold to."""
    fault = fold(events).fault
    assert fault is not None
    return fault


def _part_if_any(block: TextBlock | ThinkingBlock) -> list[_Part]:
    """Return the part of a text in a list, or an empty list if it has no content."""
    part = write_part(block)
    return [part] if part.get("text") or part.keys() - {"text", "thought"} else []


def stream_writer(framing: str | None = None) -> StreamWriter:
    """Return a writer for streams of this dialect."""
    return StreamWriter(framing)
