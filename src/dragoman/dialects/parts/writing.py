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

from dragoman.dialects.parts.faults import early_end, stream_error
from dragoman.dialects.parts.framing import json_text
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

_CLOSED: Final = "closed call"


class EventWriter:
    """Events in, bytes out."""

    may_end_in_a_call = False  # whether the wire can end at the limit while a call is open

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._blocks: dict[int, Any] = {}  # what each block is: the kind of its events
        self._halves: dict[int, str] = {}
        self._is_torn = False  # half of a character stood alone
        self._is_begun = False
        self._growing: tuple[type, int, ProviderRaw | None] | None = None  # the deltas that only add words
        self._around: tuple[bytes, bytes] = (b"", b"")
        self._usage: TokenUsage | None = None
        self._end: MessageComplete | None = None
        self._is_over = False

    def begun(self, start: MessageStart) -> bytes:
        """The message begins."""
        raise NotImplementedError

    def text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """More words of a text."""
        raise NotImplementedError

    def thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """More reasoning."""
        raise NotImplementedError

    def reasoning(self, delta: ThinkingDelta, text: str) -> bytes:
        """The same, for a wire that says a signature while it goes on: the whole delta, and the words to write."""
        return self.thinking(delta.index, text, delta.provider_raw)

    def call_begun(self, start: ToolUseStart) -> bytes:
        """A call begins."""
        raise NotImplementedError

    def call_input(self, index: int, text: str) -> bytes:
        """More of the input of a call."""
        raise NotImplementedError

    def call_ended(self, end: ToolUseEnd) -> bytes:
        """A call is complete."""
        raise NotImplementedError

    def whole(self, index: int, block: ContentBlock) -> bytes:
        """A block in one piece."""
        raise NotImplementedError

    def completed(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """The proper end of the message."""
        raise NotImplementedError

    def failed(self, error: StreamError) -> bytes:
        """The end of a message that has failed."""
        raise NotImplementedError

    @property
    def usage(self) -> TokenUsage | None:
        """What was consumed, as far as it is known."""
        return self._usage

    def grows(self, kind: type, index: int, raw: ProviderRaw | None, around: tuple[bytes, bytes]) -> None:
        """More words of this block, if they come next, are written between these bytes: most events are such."""
        if not self._halves:
            self._growing, self._around = (kind, index, raw), around

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event, as far as the wire can say it by itself."""
        kind = type(event)
        if self._growing is not None and (kind is TextDelta or kind is ThinkingDelta):
            more = self._more(event)  # type: ignore[arg-type]
            if more is not None:
                return more
        self._growing = None
        return self._fed(event)

    def _more(self, delta: TextDelta | ThinkingDelta) -> bytes | None:
        """The next words of a block that grows; ``None`` if there is more to do."""
        kind, index, raw = self._growing or (None, -1, None)
        if delta.index != index or type(delta) is not kind or not delta.text or delta.provider_raw not in (None, raw):
            return None
        before, after = self._around
        try:
            return before + json_text(delta.text) + after
        except UnicodeEncodeError:
            return None

    def _fed(self, event: StreamEvent) -> bytes:
        if self._is_over:
            return b""
        if isinstance(event, UsageUpdate):
            self._usage = event.usage
            return self._ended() if self._end is not None else b""
        if self._end is not None:
            return b""
        if isinstance(event, StreamError):
            return self._failing(event)
        if isinstance(event, MessageStart) and not self._is_begun:
            self._is_begun = True
            return self.begun(event)
        opened = b"" if self._is_begun else self._fed(MessageStart())
        problem = self._problem(event)
        if problem is not None:
            return opened + self._failing(stream_error(self._dialect, "protocol_violation", problem))
        return opened + self._written(event)

    def close(self) -> bytes:
        """What is still owed: the end, if it waited, or that there was none."""
        if self._is_over:
            return b""
        if self._end is not None:
            return self._ended()
        return self._failing(early_end(self._dialect, None, b""))

    def _written(self, event: StreamEvent) -> bytes:
        match event:
            case TextDelta(index, text, raw):
                return self.text(index, self._whole(index, text), raw)
            case ThinkingDelta(index, text):
                return self.reasoning(event, self._whole(index, text))
            case ToolUseStart():
                return self.call_begun(event)
            case ToolUseInputDelta(index, text):
                return self.call_input(index, self._whole(index, text))
            case ToolUseEnd():
                return self.call_ended(event)
            case BlockComplete(index, block):
                return self.whole(index, block)
            case MessageComplete():
                self._end = event
                return self._ended() if self._usage is not None else b""
            case _:
                raise TypeError(f"{type(event).__name__} is not a stream event")

    def _ended(self) -> bytes:
        problem = self._problem_at_the_end()
        if self._end is None or problem is not None:
            return self._failing(problem or early_end(self._dialect, None, b""))
        self._is_over = True
        return self.completed(self._end, self._usage)

    def _failing(self, error: StreamError) -> bytes:
        opened = b"" if self._is_begun else self.begun(MessageStart())
        self._is_begun = self._is_over = True
        return opened + self.failed(error)

    def _problem(self, event: StreamEvent) -> str | None:
        """What an event breaks of the order of events; the same that ``fold`` finds."""
        match event:
            case TextDelta(index) | ThinkingDelta(index):
                if self._blocks.setdefault(index, type(event)) is not type(event):
                    return f"a delta for block {index}, which is another block"
            case ToolUseStart(index) | BlockComplete(index):
                if index in self._blocks:
                    return f"block {index} begins a second time"
                self._blocks[index] = type(event)
            case ToolUseInputDelta(index) | ToolUseEnd(index):
                if self._blocks.get(index) is not ToolUseStart:
                    return f"input for block {index}, which is no open tool call"
                if isinstance(event, ToolUseEnd):
                    self._blocks[index] = _CLOSED
            case MessageStart():
                return "the message begins a second time"
        return None

    def _problem_at_the_end(self) -> StreamError | None:
        """Why a message cannot be ended as complete although it was told to be; the same that ``fold`` finds."""
        reason = self._end.stop_reason if self._end is not None else None
        if self._end is not None and reason is StopReason.ERROR:
            what = "the provider ended the answer as failed and did not say why"
            fault = stream_error(self._dialect, "unexplained_error", what).fault
            return StreamError(fault, self._end.provider_raw)
        if self._halves or self._is_torn:
            return stream_error(self._dialect, "bad_event", "half of a character in a text")
        if set(self._blocks) != set(range(len(self._blocks))):
            return stream_error(self._dialect, "protocol_violation", "a block is missing between the others")
        may_be_open = self.may_end_in_a_call and reason is StopReason.MAX_TOKENS
        if ToolUseStart in self._blocks.values() and not may_be_open:
            return stream_error(self._dialect, "tool_input_truncated", "a call was cut off")
        return None

    def _whole(self, index: int, text: str) -> str:
        """The text as far as its characters are whole. Half of one waits for the other half."""
        text = self._halves.pop(index, "") + text if self._halves else text
        try:
            text.encode()
            return text
        except UnicodeEncodeError:
            if "\ud800" <= text[-1] <= "\udbff":
                self._halves[index], text = text[-1], text[:-1]
            units = text.encode("utf-16-le", "surrogatepass")
            made = units.decode("utf-16-le", "ignore")
            self._is_torn = self._is_torn or made.encode("utf-16-le") != units
            return made


__all__ = ["EventWriter"]
