"""Stream events, and their conversion to replies.

    fold(events) -> Reply           the reply; it has a fault unless the events end properly
    unfold(reply) -> events         the shortest stream for a reply: fold(unfold(x)) == x
    Accumulator()                   incremental ``fold``: ``add(event)``, and ``reply()`` at any time
    mark_unusable(reply) -> Reply   apply the checks of ``fold`` to a reply that was not streamed
    storable_blocks(content)        the blocks of a content that can be stored
    merge_deltas(events)            fewer events that fold to the same reply

Stream readers of dialects emit these events, and stream writers receive them. The ``index`` of an event identifies its
block; deltas of several blocks may interleave. The input of a tool call arrives as raw fragments and is parsed once,
strictly, when the call is complete. An input that cannot be parsed becomes an ``InvalidToolUseBlock`` and a fault.
Invariant: a stream that is incomplete, damaged or out of order never folds to a reply without a fault.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from dragoman.errors import InputError, JsonError
from dragoman.exchange import ErrorClass, Fault, Reply, StopReason
from dragoman.jsontext import OWN, has_lone_surrogate, join_surrogates, read_json
from dragoman.message import (
    Alternative,
    Citation,
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    StopDetails,
    TextBlock,
    ThinkingBlock,
    TokenLogprob,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.value import UNSET, Value, encode


class Event(Value, frozen=True):
    """Base of all events."""

    @property
    def type(self) -> str:
        """The type of the event, as the specification names it."""
        return str(self.__struct_config__.tag)


class MessageStart(Event, frozen=True, tag_field="type", tag="message_start"):
    """The model starts to answer."""

    model: str | None = None  # the model that answers, as the provider names it
    provider_raw: ProviderRaw | None = None  # ``provider_raw`` of the reply as far as known: a hint for writers


class TextDelta(Event, frozen=True, tag_field="type", tag="text_delta"):
    """A fragment of a text block. The first one opens the block. Citations and probabilities of fragments add up."""

    index: int
    text: str
    provider_raw: ProviderRaw | None = None
    citations: tuple[Citation, ...] = ()  # further sources of the block
    token_logprobs: tuple[TokenLogprob, ...] = ()  # probabilities of further tokens


class ThinkingDelta(Event, frozen=True, tag_field="type", tag="thinking_delta"):
    """A fragment of a thinking block. The last one has the signature."""

    index: int
    text: str
    signature: str | None = None
    provider_raw: ProviderRaw | None = None
    is_summary: bool = False  # the text is a summary that the provider made; of the first fragment


class ToolUseStart(Event, frozen=True, tag_field="type", tag="tool_use_start"):
    """The start of a tool call."""

    index: int
    id: str  # canonical id, tu_<ulid>
    name: str
    provider_raw: ProviderRaw | None = None  # ``provider_raw`` of the call as far as known: a hint for writers


class ToolUseInputDelta(Event, frozen=True, tag_field="type", tag="tool_use_input_delta"):
    """A raw fragment of the input of a call. A single fragment is not JSON."""

    index: int
    partial_json: str


class ToolUseEnd(Event, frozen=True, tag_field="type", tag="tool_use_end"):
    """The end of a tool call."""

    index: int
    provider_raw: ProviderRaw | None = None


class BlockComplete(Event, frozen=True, tag_field="type", tag="block_complete"):
    """A block that is not streamed: redacted thinking, an opaque block, an image."""

    index: int
    block: ContentBlock


class AlternativeComplete(Event, frozen=True, tag_field="type", tag="alternative_complete"):
    """A further answer to a request for several. It is not streamed: it arrives whole, before the end of the first."""

    alternative: Alternative


class UsageUpdate(Event, frozen=True, tag_field="type", tag="usage_update"):
    """The usage so far. The last one counts, also if it follows the end."""

    usage: TokenUsage


class MessageComplete(Event, frozen=True, tag_field="type", tag="message_complete"):
    """The proper end of an answer."""

    stop_reason: StopReason
    stop_sequence: str | None = None
    provider_raw: ProviderRaw | None = None
    stop_details: StopDetails | None = None


class StreamError(Event, frozen=True, tag_field="type", tag="error"):
    """The stream failed. Later events are ignored."""

    fault: Fault
    provider_raw: ProviderRaw | None = None


StreamEvent = (
    MessageStart
    | TextDelta
    | ThinkingDelta
    | ToolUseStart
    | ToolUseInputDelta
    | ToolUseEnd
    | BlockComplete
    | AlternativeComplete
    | UsageUpdate
    | MessageComplete
    | StreamError
)


# --- unfold ----------------------------------------------------------------------------------------------------------


def unfold(reply: Reply) -> tuple[StreamEvent, ...]:
    """Return the events that fold to this reply."""
    events: list[StreamEvent] = [MessageStart(reply.model, reply.provider_raw)]
    for index, block in enumerate(reply.content):
        events.extend(_block_events(index, block))
    events.extend(AlternativeComplete(alternative) for alternative in reply.alternatives)
    if reply.usage is not None:
        events.append(UsageUpdate(reply.usage))
    if reply.fault is not None:
        events.append(StreamError(reply.fault, reply.provider_raw))
    else:
        end = MessageComplete(reply.stop_reason, reply.stop_sequence, reply.provider_raw, reply.stop_details)
        events.append(end)
    return tuple(events)


def _block_events(index: int, block: ContentBlock) -> tuple[StreamEvent, ...]:
    is_whole = getattr(block, "cache_hint", None) is not None or getattr(block, "free_form", False)
    if is_whole or getattr(block, "unknown_fields", UNSET) is not UNSET:  # fields that only the whole block can carry
        return (BlockComplete(index, block),)
    match block:
        case TextBlock():
            return (TextDelta(index, block.text, block.provider_raw, block.citations, block.token_logprobs),)
        case ThinkingBlock():
            return (ThinkingDelta(index, block.text, block.signature, block.provider_raw, block.is_summary),)
        case ToolUseBlock():
            return (
                ToolUseStart(index, block.id, block.name, block.provider_raw),
                ToolUseInputDelta(index, msgspec.json.encode(block.input).decode()),
                ToolUseEnd(index, block.provider_raw),
            )
        case _:
            return (BlockComplete(index, block),)


# --- fold ------------------------------------------------------------------------------------------------------------


def fold(events: Iterable[StreamEvent]) -> Reply:
    """Return the reply of these events. It has a fault unless the events end properly."""
    accumulator = Accumulator()
    for event in events:
        accumulator.add(event)
    return accumulator.reply()


def merge_deltas(events: Sequence[Any]) -> list[Any]:
    """Join neighbouring deltas of one block. Other values, and deltas with notes or a signature, stay as they are."""
    if len(events) < 2:
        return list(events)
    result: list[Any] = []
    for (kind, index), group in itertools.groupby(events, _delta_key):
        deltas = list(group)
        if kind is None or len(deltas) == 1:
            result.extend(deltas)
        else:
            result.append(kind(index, "".join(map(_DELTA_TEXT[kind], deltas))))
    return result


_DELTA_TEXT: Final[dict[Any, Callable[[Any], str]]] = {
    TextDelta: operator.attrgetter("text"),
    ThinkingDelta: operator.attrgetter("text"),
    ToolUseInputDelta: operator.attrgetter("partial_json"),
}


def _delta_key(event: Any) -> tuple[Any, int]:
    """Type and block of a delta that can be joined with its neighbours; ``None`` for anything else."""
    kind = type(event)
    if kind is TextDelta:
        is_plain = event.provider_raw is None and not event.citations and not event.token_logprobs
    elif kind is ThinkingDelta:
        is_plain = event.provider_raw is None and event.signature is None and not event.is_summary
    else:
        is_plain = kind is ToolUseInputDelta
    return (kind, event.index) if is_plain else (None, -1)


def _protocol_fault(what: str) -> Fault:
    return Fault(code="protocol_violation", message=what, error_class=ErrorClass.SERVER_ERROR, retryable=True)


_INCOMPLETE: Final = Fault(
    code="stream_incomplete",
    message="the stream ended before the answer",
    error_class=ErrorClass.NETWORK,
    retryable=True,
)


_UNEXPLAINED: Final = Fault(
    code="unexplained_error",
    message="the provider reported a failure without a reason",
    error_class=ErrorClass.SERVER_ERROR,
    retryable=True,
)


_EMPTY: Final = Fault(
    code="empty_response",
    message="the answer is empty",
    error_class=ErrorClass.SERVER_ERROR,
    retryable=True,
)
_PROPER_ENDS: Final = (StopReason.END_TURN, StopReason.STOP_SEQUENCE, StopReason.UNKNOWN)


def _is_empty(content: Iterable[ContentBlock], stop_reason: StopReason) -> bool:
    return stop_reason in _PROPER_ENDS and all(isinstance(block, TextBlock) and not block.text for block in content)


def _invalid_call_fault(call: InvalidToolUseBlock, *, is_truncated: bool) -> Fault:
    return Fault(
        code="tool_input_truncated" if is_truncated else "tool_input_invalid",
        message=f"a call of {call.name!r} cannot be used and was not made: {call.reason}",
        retryable=True,
    )


def mark_unusable(reply: Reply) -> Reply:
    """Return a reply with a fault if ``fold`` would report one: an invalid call, or no content."""
    if reply.fault is not None:
        return reply
    for block in reply.content:
        if type(block) is InvalidToolUseBlock:
            return _with_fault(
                reply, _invalid_call_fault(block, is_truncated=reply.stop_reason is StopReason.MAX_TOKENS)
            )
    return _with_fault(reply, _EMPTY) if _is_empty(reply.content, reply.stop_reason) else reply


def _with_fault(reply: Reply, fault: Fault) -> Reply:
    return reply.replace(stop_reason=StopReason.ERROR, stop_sequence=None, fault=fault)


def storable_blocks(content: Iterable[ContentBlock]) -> tuple[ContentBlock, ...]:
    """Return the blocks that can be stored, without ``provider_raw``."""
    blocks = []
    for block in content:
        try:
            blocks.append(_to_storable(block))
        except (ValueError, InputError):
            continue
    return tuple(blocks)


def _to_storable(block: ContentBlock) -> ContentBlock:
    """Return the block without ``provider_raw``. ``ValueError`` or ``InputError`` if it cannot be encoded."""
    bare = block if getattr(block, "provider_raw", None) is None else block.replace(provider_raw=None)
    encode(bare)
    return bare


class _OpenText:
    """An incomplete text or thinking block."""

    def __init__(self, kind: type[TextDelta | ThinkingDelta]) -> None:
        self.kind = kind
        self.parts: list[str] = []
        self.signature: str | None = None
        self.provider_raw: ProviderRaw | None = None
        self.is_summary = False
        self.citations: list[Citation] = []
        self.token_logprobs: list[TokenLogprob] = []

    def block(self) -> ContentBlock:
        text = join_surrogates("".join(self.parts))
        if self.kind is TextDelta:
            return TextBlock(text, self.provider_raw, tuple(self.citations), tuple(self.token_logprobs))
        return ThinkingBlock(text, self.signature, self.provider_raw, self.is_summary)


class _OpenCall:
    """A tool call whose input is incomplete."""

    def __init__(self, start: ToolUseStart) -> None:
        self.start = start
        self.parts: list[str] = []

    def block(self, provider_raw: ProviderRaw | None) -> ContentBlock:
        """Return the call if its input is a JSON object. Providers send an empty text for a call without arguments."""
        text = "".join(self.parts)
        if not text.isascii():
            if has_lone_surrogate(text):
                return self.invalid("a lone surrogate", provider_raw)
            text = join_surrogates(text)
        try:
            value: Any = read_json(text, OWN) if text.strip() else {}
            if not isinstance(value, dict):
                raise JsonError(f"a tool's input is a JSON object, not {type(value).__name__}")
            return ToolUseBlock(self.start.id, self.start.name, value, provider_raw)
        except (JsonError, ValueError) as error:
            return self.invalid(str(error), provider_raw)

    def invalid(self, reason: str, provider_raw: ProviderRaw | None = None) -> InvalidToolUseBlock:
        return InvalidToolUseBlock(
            self.start.id, self.start.name, join_surrogates("".join(self.parts)), reason, provider_raw
        )


def later_usage(earlier: TokenUsage | None, later: TokenUsage) -> TokenUsage:
    """Return the later usage, unless only the earlier one counts tokens."""
    return earlier if earlier is not None and _has_tokens(earlier) and not _has_tokens(later) else later


def _has_tokens(usage: TokenUsage) -> bool:
    parts = (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens)
    return any(parts)


class Accumulator:
    """Incremental ``fold``: the state of each block, and the end."""

    def __init__(self) -> None:
        self.blocks: dict[int, _OpenText | _OpenCall | ContentBlock] = {}
        self.start: MessageStart | None = None
        self.end: MessageComplete | None = None
        self.provider_raw: ProviderRaw | None = None
        self.calls_without_input: dict[
            int, InvalidToolUseBlock
        ] = {}  # calls without input, as they are if the output limit cut them off
        self.invalid_call: InvalidToolUseBlock | None = None  # the first call with an invalid input
        self.usage: TokenUsage | None = None
        self.alternatives: list[Alternative] = []
        self.fault: Fault | None = None
        self.has_late_events = False

    def add(self, event: StreamEvent) -> None:
        """Add one event."""
        if type(event) is UsageUpdate:  # also after the end and after a fault: consumed tokens are charged
            self.usage = later_usage(self.usage, event.usage)
        elif self.fault is not None:
            return
        elif self.end is not None:
            self._log_late_event(event)
        else:
            problem = self._add_content(event)
            if problem is not None:
                self.fault = _protocol_fault(problem)

    def _add_content(self, event: StreamEvent) -> str | None:
        """Add one event. Return a description if it violates the order of events."""
        match event:
            case TextDelta() | ThinkingDelta():
                return self._add_text(event)
            case ToolUseInputDelta(index, fragment):
                call = self.blocks.get(index)
                if type(call) is not _OpenCall:
                    return f"a fragment of input for block {index}, which is no open tool call"
                call.parts.append(fragment)
            case ToolUseStart(index) | BlockComplete(index):
                if index in self.blocks:
                    return f"block {index} begins a second time"
                self._open_block(index, event)
            case ToolUseEnd(index, provider_raw):
                call = self.blocks.get(index)
                if type(call) is not _OpenCall:
                    return f"the end of block {index}, which is no open tool call"
                block = self.blocks[index] = call.block(provider_raw)
                if isinstance(block, InvalidToolUseBlock):
                    self.invalid_call = self.invalid_call or block
                elif not "".join(call.parts).strip():
                    self.calls_without_input[index] = call.invalid(
                        "the output limit was reached before its input", provider_raw
                    )
            case AlternativeComplete(alternative):
                self.alternatives.append(alternative)
            case MessageStart():
                if self.start is not None:
                    return "the message starts twice"
                self.start = event
            case MessageComplete(provider_raw=provider_raw):
                self.end, self.provider_raw = event, provider_raw
            case StreamError(fault, provider_raw):
                self.fault, self.provider_raw = fault, provider_raw
            case _:
                raise TypeError(f"{type(event).__name__} is not a stream event")
        return None

    def _open_block(self, index: int, event: ToolUseStart | BlockComplete) -> None:
        if isinstance(event, ToolUseStart):
            self.blocks[index] = _OpenCall(event)
            return
        self.blocks[index] = event.block
        if isinstance(event.block, InvalidToolUseBlock):
            self.invalid_call = self.invalid_call or event.block

    def _add_text(self, delta: TextDelta | ThinkingDelta) -> str | None:
        index, kind = delta.index, type(delta)
        block = self.blocks.get(index)
        if block is None:
            block = self.blocks[index] = _OpenText(kind)
        if type(block) is not _OpenText or block.kind is not kind:
            return f"a {kind.__struct_config__.tag} for block {index}, which is another block"
        block.parts.append(delta.text)
        if delta.provider_raw is not None:
            block.provider_raw = {**(block.provider_raw or {}), **delta.provider_raw}
        if isinstance(delta, ThinkingDelta):
            block.signature = block.signature if delta.signature is None else delta.signature
            block.is_summary = block.is_summary or delta.is_summary
        else:
            if delta.citations:
                block.citations.extend(delta.citations)
            if delta.token_logprobs:
                block.token_logprobs.extend(delta.token_logprobs)
        return None

    def _log_late_event(self, event: StreamEvent) -> None:
        if not self.has_late_events:
            import logging  # noqa: PLC0415  a fifth of the time that importing this package takes

            log = logging.getLogger("dragoman.stream")
            log.warning("ignored events after the end of a message, from %s on", type(event).__name__)
        self.has_late_events = True

    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks so far, in order."""
        return tuple(self._to_block(self.blocks[index]) for index in sorted(self.blocks))

    def storable_content(self) -> tuple[ContentBlock, ...]:
        """The blocks so far that can be stored; of any other block, its text."""
        blocks = (self.blocks[index] for index in sorted(self.blocks))
        return tuple(stored for block in blocks if (stored := self._to_storable_block(block)) is not None)

    def _to_storable_block(self, block: _OpenText | _OpenCall | ContentBlock) -> ContentBlock | None:
        try:
            return _to_storable(self._to_block(block))
        except (ValueError, InputError):
            text = join_surrogates("".join(getattr(block, "parts", ())))
            return TextBlock(text) if text else None

    def reply(self) -> Reply:
        """Return the reply so far. It has a fault until the end has arrived."""
        if self.end is not None and self.end.stop_reason is StopReason.MAX_TOKENS:
            for index, call in self.calls_without_input.items():
                self.blocks[index] = call
                self.invalid_call = self.invalid_call or call
        content = self.content()
        fault = self.fault or self._find_fault(content)
        completion = self.end if fault is None else None
        return Reply(
            content=content,
            stop_reason=completion.stop_reason if completion else StopReason.ERROR,
            stop_sequence=completion.stop_sequence if completion else None,
            usage=self.usage,
            model=self.start.model if self.start else None,
            fault=fault,
            provider_raw=self.provider_raw,
            stop_details=completion.stop_details if completion else None,
            alternatives=tuple(self.alternatives),
        )

    def _to_block(self, block: _OpenText | _OpenCall | ContentBlock) -> ContentBlock:
        if isinstance(block, _OpenText):
            return block.block()
        if isinstance(block, _OpenCall):
            return block.invalid("the call was cut off", block.start.provider_raw)
        return block

    def _find_fault(self, content: tuple[ContentBlock, ...]) -> Fault | None:
        """Find a fault that no event has reported: no end, no content, or an invalid call."""
        if self.end is None:
            return _INCOMPLETE
        if self.end.stop_reason is StopReason.ERROR:
            return _UNEXPLAINED
        texts = ["".join(block.parts) for block in self.blocks.values() if isinstance(block, _OpenText)]
        if any(has_lone_surrogate(text) for text in texts):
            return Fault(code="bad_event", message="a lone surrogate in a text", retryable=True)
        if set(self.blocks) != set(range(len(self.blocks))):
            return _protocol_fault("a block is missing between the others")
        open_call = next((block for block in self.blocks.values() if isinstance(block, _OpenCall)), None)
        call = open_call.invalid("it was cut off") if open_call is not None else self.invalid_call
        if call is None:
            return _EMPTY if _is_empty(content, self.end.stop_reason) else None
        return _invalid_call_fault(
            call, is_truncated=open_call is not None or self.end.stop_reason is StopReason.MAX_TOKENS
        )
