"""Losses: the parts of a request or reply that a wire format cannot represent.

    supported_blocks(blocks, unsupported_reason, dialect, losses, message)   the blocks that the wire can carry
    option_losses(lost, dialect)                        options that the API does not have
    summary_changes(reasoning, dialect)                 the length of a summary, which most APIs choose themselves
    error_flag_losses(result, message, dialect)         the error flag of a result, on a wire without one
    detail_losses(reply, dialect, supported)            stop reason, model and counts that the wire has no field for
    drop_refused_options(options, quirks, dialect, losses)   options that a provider rejects

Invariant: everything that is left out is in ``losses``, once, with its message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from dragoman.exchange import Loss, Options, Reasoning, Reply, StopReason
from dragoman.message import CallBlock, ContentBlock, Message, TokenUsage, ToolResultBlock
from dragoman.wire.residue import get_notes


def supported_blocks(
    blocks: Iterable[ContentBlock],
    unsupported_reason: Callable[[ContentBlock], str | None],
    dialect: str,
    losses: list[Loss],
    message: Message | None = None,
) -> list[ContentBlock]:
    """Return the blocks that the wire can carry, and add a loss with ``unsupported_reason`` for each other block."""
    session_id, message_id = (message.session_id, message.id) if message is not None else ("", "")
    supported: list[ContentBlock] = []
    for block in blocks:
        reason = unsupported_reason(block)
        if reason is None:
            supported.append(block)
        else:
            losses.append(Loss(session_id, message_id, block.type, dialect, reason))
    return supported


def option_losses(lost: Mapping[str, bool], dialect: str) -> list[Loss]:
    """Return a loss for each option that is set and that the API does not have."""
    return [Loss("", "", name, dialect, "this API has no such option") for name, is_lost in lost.items() if is_lost]


def summary_changes(reasoning: Reasoning | None, dialect: str) -> Iterator[Loss]:
    """Return a note for a summary of a certain length, on a wire that has summaries and no length."""
    if reasoning is not None and reasoning.summary not in (None, "none", "auto"):
        reason = f"{reasoning.summary} becomes auto: this API has no length of a summary"
        yield Loss("", "", "reasoning.summary", dialect, reason, "adjusted")


def error_flag_losses(result: ToolResultBlock, message: Message, dialect: str) -> Iterator[Loss]:
    """Return a loss for the error flag of a result; the text of the result is kept."""
    if result.is_error:
        reason = "this API has no error flag for results; the text is kept"
        yield Loss(message.session_id, message.id, "is_error", dialect, reason)


_COMMON_FIELDS: Final = ("input_tokens", "output_tokens", "estimated", "unknown_fields")


class SupportedDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The details of a reply that a wire has fields for. Invariant: the reader of the dialect finds them again."""

    stop_reasons: tuple[str, ...]  # reasons to stop
    usage_fields: tuple[str, ...] = ()  # fields of TokenUsage, beside what every wire counts
    service_tiers: Collection[str] = ()  # tiers of service; empty: any
    stop_sequence: bool = False  # the matched stop sequence
    model: bool = True
    has_tool_use: bool = True  # a word for an end that waits for results; else a call is the only sign of it


def detail_losses(reply: Reply, dialect: str, supported: SupportedDetails, *, has_call: bool = False) -> Iterator[Loss]:
    """Return a loss for each detail that the wire has no field for; none for a reply that was read from this wire.

    ``has_call`` is true if the content is not in the reply and has a call, as in a stream.
    """
    if get_notes(reply.provider_raw, dialect):
        return
    if reply.fault is None and reply.stop_reason not in (StopReason.UNKNOWN, *supported.stop_reasons):
        yield Loss("", "", "stop_reason", dialect, f"this API has no word for {reply.stop_reason.value}")
    elif reply.stop_reason is StopReason.TOOL_USE and not (supported.has_tool_use or has_call or _has_call(reply)):
        yield Loss("", "", "stop_reason", dialect, "this API has no word for tool_use without a call")
    if reply.stop_sequence is not None and not supported.stop_sequence:
        yield Loss("", "", "stop_sequence", dialect, "this API does not report the stop sequence")
    if reply.model is not None and not supported.model:
        yield Loss("", "", "model", dialect, "answers of this API do not name the model")
    if reply.usage is not None:
        for name in _unsupported_counts(supported.usage_fields):
            if getattr(reply.usage, name):
                yield Loss("", "", f"usage.{name}", dialect, "this API has no such count")
        tier = reply.usage.service_tier
        if tier is not None and supported.service_tiers and tier not in supported.service_tiers:
            yield Loss("", "", "usage.service_tier", dialect, "this API has no such tier")


def _has_call(reply: Reply) -> bool:
    return any(isinstance(block, CallBlock) for block in reply.content)


@functools.lru_cache(maxsize=64)
def _unsupported_counts(usage_fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in TokenUsage.__struct_fields__ if name not in (*_COMMON_FIELDS, *usage_fields))


REFUSALS: Final = {
    "no_max_output_tokens": ("max_output_tokens",),
    "no_temperature": ("temperature",),
    "no_stop": ("stop_sequences",),
    "no_seed": ("seed",),
    "no_penalties": ("presence_penalty", "frequency_penalty"),
    "no_service_tier": ("service_tier",),
    "no_user": ("user",),
    "no_openai_options": ("store", "metadata", "verbosity", "safety_identifier", "prompt_cache_key", "modalities"),
}
_EMPTY_OPTIONS: Final = ("stop_sequences", "modalities")  # whose value for none is an empty tuple
_HINTS: Final = ("prompt_cache_key",)


def drop_refused_options(options: Options, quirks: Collection[str], dialect: str, losses: list[Loss]) -> Options:
    """Return the options without those that a provider with these quirks rejects; each is a loss.

    A quirk with the name of an option keeps it.
    """
    changes: dict[str, Any] = {}
    for quirk in quirks:
        for name in REFUSALS.get(quirk, ()):
            if name not in quirks and getattr(options, name) not in (None, ()):
                changes[name] = () if name in _EMPTY_OPTIONS else None
                if (name, getattr(options, name)) != ("store", False):  # which every other provider does anyway
                    kind: Literal["hint", "loss"] = "hint" if name in _HINTS else "loss"
                    losses.append(Loss("", "", name, dialect, "this provider has no such option", kind))
    return options.replace(**changes) if changes else options
