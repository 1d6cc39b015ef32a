"""Writing a stream event by event: what is the same whatever the wire says.

    class StreamWriter(EventWriter):
        begun(start)                    the message begins
        text(index, text, raw)          more words of a text; the first ones open it
        thinking(index, text, raw)      the same for reasoning
        call_begun(start)               a call; then its input, and its end
        call_input(index, text)
        call_ended(end)
        whole(index, block)             a block that comes in one piece
        completed(end, usage)           the proper end
        failed(error)                   the end of what has failed

Each gives the bytes for what it is told, and may say with ``grows`` how the next words are to be written. Here is seen
to it that they are called in order and only while the message goes on, that a character is written whole whose halves
came apart, and that the end waits for what was consumed.

The one rule: events that do not fold to a finished reply never give a stream that looks finished.
"""

from __future__ import annotations

from typing import Any, Final

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
from dragoman.exchange import StopReason
from dragoman.message import ContentBlock, ProviderRaw, TokenUsage
from dragoman.wire.faults import early_end, stream_error
from dragoman.wire.frames import json_text

_CLOSED: Final = "closed call"


class BaseStreamWriter:
    """Events in, bytes out."""

    can_end_with_open_call = False  # whether the wire can end at the limit while a call is open

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._block_kinds: dict[int, Any] = {}  # what each block is: the kind of its events
        self._pending_surrogates: dict[int, str] = {}
        self._has_lone_surrogate = False  # half of a character stood alone
        self._is_started = False
        self._template_key: tuple[type, int, ProviderRaw | None] | None = None  # the deltas that only add words
        self._template: tuple[bytes, bytes] = (b"", b"")
        self._usage: TokenUsage | None = None
        self._end: MessageComplete | None = None
        self._is_over = False

    def write_start(self, start: MessageStart) -> bytes:
        """The message begins."""
        raise NotImplementedError

    def write_text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """More words of a text."""
        raise NotImplementedError

    def write_thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """More reasoning."""
        raise NotImplementedError

    def write_thinking_delta(self, delta: ThinkingDelta, text: str) -> bytes:
        """The same, for a wire that says a signature while it goes on: the whole delta, and the words to write."""
        return self.write_thinking(delta.index, text, delta.provider_raw)

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """A call begins."""
        raise NotImplementedError

    def write_call_input(self, index: int, text: str) -> bytes:
        """More of the input of a call."""
        raise NotImplementedError

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """A call is complete."""
        raise NotImplementedError

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """A block in one piece."""
        raise NotImplementedError

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """The proper end of the message."""
        raise NotImplementedError

    def write_failure(self, error: StreamError) -> bytes:
        """The end of a message that has failed."""
        raise NotImplementedError

    @property
    def usage(self) -> TokenUsage | None:
        """What was consumed, as far as it is known."""
        return self._usage

    def set_text_template(self, kind: type, index: int, raw: ProviderRaw | None, template: tuple[bytes, bytes]) -> None:
        """More words of this block, if they come next, are written between these bytes: most events are such."""
        if not self._pending_surrogates:
            self._template_key, self._template = (kind, index, raw), template

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event, as far as the wire can say it by itself."""
        kind = type(event)
        if self._template_key is not None and (kind is TextDelta or kind is ThinkingDelta):
            data = self._fill_template(event)  # type: ignore[arg-type]
            if data is not None:
                return data
        self._template_key = None
        return self._write_event(event)

    def _fill_template(self, delta: TextDelta | ThinkingDelta) -> bytes | None:
        """The next words of a block that grows; ``None`` if there is more to do."""
        kind, index, raw = self._template_key or (None, -1, None)
        if delta.index != index or type(delta) is not kind or not delta.text or delta.provider_raw not in (None, raw):
            return None
        prefix, suffix = self._template
        try:
            return prefix + json_text(delta.text) + suffix
        except UnicodeEncodeError:
            return None

    def _write_event(self, event: StreamEvent) -> bytes:
        if self._is_over:
            return b""
        if isinstance(event, UsageUpdate):
            self._usage = event.usage
            return self._finish() if self._end is not None else b""
        if self._end is not None:
            return b""
        if isinstance(event, StreamError):
            return self._fail(event)
        if isinstance(event, MessageStart) and not self._is_started:
            self._is_started = True
            return self.write_start(event)
        start = b"" if self._is_started else self._write_event(MessageStart())
        problem = self._order_problem(event)
        if problem is not None:
            return start + self._fail(stream_error(self._dialect, "protocol_violation", problem))
        return start + self._write_in_order(event)

    def close(self) -> bytes:
        """What is still owed: the end, if it waited, or that there was none."""
        if self._is_over:
            return b""
        if self._end is not None:
            return self._finish()
        return self._fail(early_end(self._dialect, None, b""))

    def _write_in_order(self, event: StreamEvent) -> bytes:
        match event:
            case TextDelta(index, text, raw):
                return self.write_text(index, self._join_text(index, text), raw)
            case ThinkingDelta(index, text):
                return self.write_thinking_delta(event, self._join_text(index, text))
            case ToolUseStart():
                return self.write_call_start(event)
            case ToolUseInputDelta(index, text):
                return self.write_call_input(index, self._join_text(index, text))
            case ToolUseEnd():
                return self.write_call_end(event)
            case BlockComplete(index, block):
                return self.write_block(index, block)
            case MessageComplete():
                self._end = event
                return self._finish() if self._usage is not None else b""
            case _:
                raise TypeError(f"{type(event).__name__} is not a stream event")

    def _finish(self) -> bytes:
        problem = self._end_problem()
        if self._end is None or problem is not None:
            return self._fail(problem or early_end(self._dialect, None, b""))
        self._is_over = True
        return self.write_end(self._end, self._usage)

    def _fail(self, error: StreamError) -> bytes:
        start = b"" if self._is_started else self.write_start(MessageStart())
        self._is_started = self._is_over = True
        return start + self.write_failure(error)

    def _order_problem(self, event: StreamEvent) -> str | None:
        """What an event breaks of the order of events; the same that ``fold`` finds."""
        match event:
            case TextDelta(index) | ThinkingDelta(index):
                if self._block_kinds.setdefault(index, type(event)) is not type(event):
                    return f"a delta for block {index}, which is another block"
            case ToolUseStart(index) | BlockComplete(index):
                if index in self._block_kinds:
                    return f"block {index} begins a second time"
                self._block_kinds[index] = type(event)
            case ToolUseInputDelta(index) | ToolUseEnd(index):
                if self._block_kinds.get(index) is not ToolUseStart:
                    return f"input for block {index}, which is no open tool call"
                if isinstance(event, ToolUseEnd):
                    self._block_kinds[index] = _CLOSED
            case MessageStart():
                return "the message begins a second time"
        return None

    def _end_problem(self) -> StreamError | None:
        """Why a message cannot be ended as complete although it was told to be; the same that ``fold`` finds."""
        reason = self._end.stop_reason if self._end is not None else None
        if self._end is not None and reason is StopReason.ERROR:
            message = "the provider ended the answer as failed and did not say why"
            fault = stream_error(self._dialect, "unexplained_error", message).fault
            return StreamError(fault, self._end.provider_raw)
        if self._pending_surrogates or self._has_lone_surrogate:
            return stream_error(self._dialect, "bad_event", "half of a character in a text")
        if set(self._block_kinds) != set(range(len(self._block_kinds))):
            return stream_error(self._dialect, "protocol_violation", "a block is missing between the others")
        may_be_open = self.can_end_with_open_call and reason is StopReason.MAX_TOKENS
        if ToolUseStart in self._block_kinds.values() and not may_be_open:
            return stream_error(self._dialect, "tool_input_truncated", "a call was cut off")
        return None

    def _join_text(self, index: int, text: str) -> str:
        """The text as far as its characters are whole. Half of one waits for the other half."""
        text = self._pending_surrogates.pop(index, "") + text if self._pending_surrogates else text
        try:
            text.encode()
            return text
        except UnicodeEncodeError:
            if "\ud800" <= text[-1] <= "\udbff":
                self._pending_surrogates[index], text = text[-1], text[:-1]
            units = text.encode("utf-16-le", "surrogatepass")
            joined = units.decode("utf-16-le", "ignore")
            self._has_lone_surrogate = self._has_lone_surrogate or joined.encode("utf-16-le") != units
            return joined


__all__ = ["BaseStreamWriter"]
