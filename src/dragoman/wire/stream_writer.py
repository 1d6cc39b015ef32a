"""Base class of the stream writers of all dialects: events in, bytes out.

    class StreamWriter(BaseStreamWriter):
        write_start(start)                  the message starts
        write_text(index, text, raw)        more text; the first one opens the block
        write_thinking(index, text, raw)    the same for reasoning
        write_call_start(start)             a call; then its input, and its end
        write_call_input(index, text)
        write_call_end(end)
        write_block(index, block)           a block that arrives whole
        write_alternative(alternative)      a further answer; a loss by default
        write_end(end, usage)               the message is complete
        write_failure(error)                the message failed

Each returns bytes. With ``set_text_template`` a dialect sets the bytes around the next deltas of a block; the base then
writes these deltas itself. ``identity`` has the fields of the reply that events do not carry: its id and its time. With
``support``, ``details`` and ``find_loss`` a dialect declares what the wire has; the base records the rest in
``losses``. The base checks the order of events as ``fold`` does, joins surrogate pairs that two deltas split, and
writes the end when the usage is known.

Invariant: events that do not fold to a finished reply never yield a stream that looks finished.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Final

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
)
from dragoman.exchange import Loss, Reply, StopReason
from dragoman.jsontext import has_lone_surrogate, join_surrogates
from dragoman.message import Alternative, CallBlock, ContentBlock, ProviderRaw, TextBlock, ThinkingBlock, TokenUsage
from dragoman.wire.faults import early_end, stream_error
from dragoman.wire.frames import json_text, select_framing
from dragoman.wire.losses import SupportedDetails, detail_losses
from dragoman.wire.residue import foreign_fields
from dragoman.wire.support import Support, field_reason

_CLOSED: Final = "closed call"


class BaseStreamWriter:
    """Events in, bytes out."""

    open_call_stop_reasons: ClassVar[Collection[StopReason]] = ()  # with which the wire can end while a call is open
    starts_before_failure: ClassVar[bool] = True  # whether a failure is written after the start of a message
    support: ClassVar[Support | None] = None  # the shared fields of the API
    details: ClassVar[SupportedDetails | None] = None  # the details of an end that the wire has fields for
    find_loss: ClassVar[Any] = None  # a function that returns why the wire cannot carry a block; ``None`` if it can
    framings: ClassVar[tuple[str, ...]] = ("sse",)  # the first one is the default

    def __init__(self, dialect: str, framing: str | None = None) -> None:
        self._dialect = dialect
        self.framing = select_framing(dialect, framing, self.framings)
        self._block_kinds: dict[int, Any] = {}  # by index: the type of the event that opened the block
        self._pending_surrogates: dict[int, str] = {}
        self._has_lone_surrogate = False
        self._is_started = False
        self._template_key: tuple[type, int, ProviderRaw | None] | None = None  # the deltas that the template writes
        self._template: tuple[bytes, bytes] = (b"", b"")
        self._usage: TokenUsage | None = None
        self._end: MessageComplete | None = None
        self._losses: dict[Loss, None] = {}
        self._model_name: str | None = None
        self._seen_thinking: set[int] = set()
        self._has_call = False
        self._is_over = False
        self.identity: dict[str, Any] = {}  # top-level fields of the reply, in place of the dialect's placeholders

    # --- methods of a dialect ----------------------------------------------------------------------------------------

    def write_start(self, start: MessageStart) -> bytes:
        """Write the start of the message."""
        raise NotImplementedError

    def write_text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write more text of a block."""
        raise NotImplementedError

    def write_text_delta(self, delta: TextDelta, text: str) -> bytes:
        """Write more text, on a wire with citations or probabilities: the delta, and its text with pairs joined."""
        return self.write_text(delta.index, text, delta.provider_raw)

    def write_thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write more reasoning."""
        raise NotImplementedError

    def write_thinking_delta(self, delta: ThinkingDelta, text: str) -> bytes:
        """Write more reasoning, on a wire with signatures: the delta, and its text with surrogate pairs joined."""
        return self.write_thinking(delta.index, text, delta.provider_raw)

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write the start of a call."""
        raise NotImplementedError

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write more input of a call."""
        raise NotImplementedError

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the end of a call."""
        raise NotImplementedError

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """Write a whole block."""
        raise NotImplementedError

    def write_alternative(self, alternative: Alternative) -> bytes:  # noqa: ARG002
        """Write a further answer, on a wire that has several."""
        return b""

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Write the end of a complete message."""
        raise NotImplementedError

    def write_failure(self, error: StreamError) -> bytes:
        """Write the end of a failed message."""
        raise NotImplementedError

    @property
    def usage(self) -> TokenUsage | None:
        """The last usage."""
        return self._usage

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Losses of the events so far, each once."""
        return tuple(self._losses)

    def add_loss(self, name: str, reason: str) -> None:
        """Record that the wire cannot carry a part of the events."""
        self._losses.setdefault(Loss("", "", name, self._dialect, reason))

    def set_text_template(self, kind: type, index: int, raw: ProviderRaw | None, template: tuple[bytes, bytes]) -> None:
        """Set the bytes before and after the text of the next deltas of this kind and block."""
        if not self._pending_surrogates:
            self._template_key, self._template = (kind, index, raw), template

    # --- events

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes that the wire has for one event."""
        kind = type(event)
        if self._template_key is not None and (kind is TextDelta or kind is ThinkingDelta):
            data = self._fill_template(event)  # type: ignore[arg-type]
            if data is not None:
                return data
        self._template_key = None
        return self._write_event(event)

    def close(self) -> bytes:
        """Return the last bytes: the end, if it waits for the usage, or a failure if there is no end."""
        if self._is_over:
            return b""
        if self._end is not None:
            return self._finish()
        return self._fail(early_end(self._dialect, None, b""))

    def _fill_template(self, delta: TextDelta | ThinkingDelta) -> bytes | None:
        """Fast path: write a delta with the template; ``None`` if it needs the general path."""
        kind, index, raw = self._template_key or (None, -1, None)
        if delta.index != index or type(delta) is not kind or not delta.text or delta.provider_raw not in (None, raw):
            return None
        if type(delta) is TextDelta and (delta.citations or delta.token_logprobs):
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
            self._model_name = event.model
            return self.write_start(event)
        start = b"" if self._is_started else self._write_event(MessageStart())
        problem = self._order_problem(event)
        if problem is not None:
            return start + self._fail(stream_error(self._dialect, "protocol_violation", problem))
        return start + self._write_in_order(event)

    def _record_losses(self, event: StreamEvent) -> None:
        """Record the losses of an event."""
        match event:
            case TextDelta(provider_raw=raw):
                self._record_foreign(raw, "text")
                self._record_text_fields(event)
            case ThinkingDelta(index, _, signature, raw):
                self._record_foreign(raw, "thinking")
                if index not in self._seen_thinking:
                    self._seen_thinking.add(index)
                    self._record_block(ThinkingBlock("", signature, raw))
            case ToolUseStart(provider_raw=raw) | ToolUseEnd(provider_raw=raw):
                self._record_foreign(raw, "tool_use")
            case BlockComplete(block=block):
                self._record_foreign(getattr(block, "provider_raw", None), block.type)
                self._record_block(block)
                if isinstance(block, TextBlock):
                    self._record_text_fields(block)
            case AlternativeComplete(alternative):
                self._record_field("alternatives")
                for block in alternative.content if self._has_field("alternatives") else ():
                    self._record_block(block)
            case MessageComplete(stop_details=stop_details) if stop_details is not None:
                self._record_field("stop_details")

    def _record_text_fields(self, text: TextDelta | TextBlock) -> None:
        if text.citations:
            self._record_field("text.citations")
        if text.token_logprobs:
            self._record_field("text.token_logprobs")

    def _has_field(self, name: str) -> bool:
        return self.support is None or name in self.support.reply

    def _record_field(self, name: str) -> None:
        if self.support is not None and not self._has_field(name):
            self.add_loss(name, field_reason(name, self.support))

    def _record_foreign(self, raw: ProviderRaw | None, subject: str) -> None:
        """Record the fields of a block that only another dialect has, apart from hints."""
        for name, kind, reason in foreign_fields(raw, self._dialect, subject) if raw is not None else ():
            if kind == "loss":
                self.add_loss(name, reason)

    def _record_block(self, block: ContentBlock) -> None:
        reason = self.find_loss(block) if self.find_loss is not None else None
        if reason is not None:
            self.add_loss(block.type, reason)

    def _record_details(self, end: MessageComplete) -> None:
        """Record the details of the end that the wire has no field for."""
        if self.details is not None:
            reply = Reply(
                stop_reason=end.stop_reason,
                stop_sequence=end.stop_sequence,
                usage=self._usage,
                model=self._model_name,
                provider_raw=end.provider_raw,
            )
            for loss in detail_losses(reply, self._dialect, self.details, has_call=self._has_call):
                self._losses.setdefault(loss)

    def _write_in_order(self, event: StreamEvent) -> bytes:
        self._record_losses(event)
        match event:
            case TextDelta(index, text):
                return self.write_text_delta(event, self._join_text(index, text))
            case ThinkingDelta(index, text):
                return self.write_thinking_delta(event, self._join_text(index, text))
            case ToolUseStart():
                self._has_call = True
                return self.write_call_start(event)
            case ToolUseInputDelta(index, text):
                return self.write_call_input(index, self._join_text(index, text))
            case ToolUseEnd():
                return self.write_call_end(event)
            case BlockComplete(index, block):
                self._has_call = self._has_call or isinstance(block, CallBlock)
                return self.write_block(index, block)
            case AlternativeComplete(alternative):
                return self.write_alternative(alternative)
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
        self._record_details(self._end)
        return self.write_end(self._end, self._usage)

    def _fail(self, error: StreamError) -> bytes:
        needs_start = not self._is_started and self.starts_before_failure
        start = self.write_start(MessageStart()) if needs_start else b""
        self._is_over = True
        return start + self.write_failure(error)

    def _order_problem(self, event: StreamEvent) -> str | None:
        """Return the problem with the place of an event, by the rules of ``fold``."""
        match event:
            case TextDelta(index) | ThinkingDelta(index):
                if self._block_kinds.setdefault(index, type(event)) is not type(event):
                    return f"a delta for block {index}, which is another block"
            case ToolUseStart(index) | BlockComplete(index):
                if index in self._block_kinds:
                    return f"block {index} starts a second time"
                self._block_kinds[index] = type(event)
            case ToolUseInputDelta(index) | ToolUseEnd(index):
                if self._block_kinds.get(index) is not ToolUseStart:
                    return f"input for block {index}, which is not an open tool call"
                if isinstance(event, ToolUseEnd):
                    self._block_kinds[index] = _CLOSED
            case MessageStart():
                return "the message starts a second time"
        return None

    def _end_problem(self) -> StreamError | None:
        """Return why a message cannot end as complete; the rules are those of ``fold``."""
        reason = self._end.stop_reason if self._end is not None else None
        if self._end is not None and reason is StopReason.ERROR:
            message = "the provider ended the answer as failed without a reason"
            fault = stream_error(self._dialect, "unexplained_error", message).fault
            return StreamError(fault, self._end.provider_raw)
        if self._pending_surrogates or self._has_lone_surrogate:
            return stream_error(self._dialect, "bad_event", "a text contains a lone surrogate")
        if set(self._block_kinds) != set(range(len(self._block_kinds))):
            return stream_error(self._dialect, "protocol_violation", "a block index is missing")
        if ToolUseStart in self._block_kinds.values() and reason not in self.open_call_stop_reasons:
            return stream_error(self._dialect, "tool_input_truncated", "a call was cut off")
        return None

    def _join_text(self, index: int, text: str) -> str:
        """Return the text with surrogate pairs joined; a high surrogate at its end waits for the next delta."""
        if text.isascii() and not self._pending_surrogates:
            return text
        text = self._pending_surrogates.pop(index, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._pending_surrogates[index], text = text[-1], text[:-1]
        self._has_lone_surrogate = self._has_lone_surrogate or has_lone_surrogate(text)
        return join_surrogates(text)
