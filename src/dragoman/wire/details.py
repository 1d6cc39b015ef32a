"""Details of an answer: why it ended, which word ended it, who answered, and what it consumed.

    lost_details(reply, dialect, said) -> losses

Wires differ in which of these they have words for. Each dialect says which it has; of an answer that came from another
one, the rest is named as lost. The one rule: what a dialect claims to say here, its reader finds on its wire again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from dragoman.exchange import Loss, Reply, StopReason
from dragoman.message import TokenUsage
from dragoman.wire.residue import get_notes

_COMMON_FIELDS: Final = ("input_tokens", "output_tokens", "estimated", "unknown_fields")


class SupportedDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The details that a wire has words for."""

    stop_reasons: tuple[str, ...]  # reasons to stop
    usage_fields: tuple[str, ...] = ()  # fields of TokenUsage, beside what every wire counts
    service_tiers: Collection[str] = ()  # tiers of service; none means that any can be said
    stop_sequence: bool = False  # the word that ended it
    model: bool = True


def detail_losses(reply: Reply, dialect: str, supported: SupportedDetails) -> Iterator[Loss]:
    """A loss for each detail that this wire has no words for; none for an answer that came from it."""
    if get_notes(reply.provider_raw, dialect):
        return
    if reply.fault is None and reply.stop_reason not in (StopReason.UNKNOWN, *supported.stop_reasons):
        yield Loss("", "", "stop_reason", dialect, f"this API has no word for {reply.stop_reason.value}")
    if reply.stop_sequence is not None and not supported.stop_sequence:
        yield Loss("", "", "stop_sequence", dialect, "this API does not say which word ended an answer")
    if reply.model is not None and not supported.model:
        yield Loss("", "", "model", dialect, "an answer of this API does not say who gave it")
    if reply.usage is not None:
        for name in TokenUsage.__struct_fields__:
            if name not in (*_COMMON_FIELDS, *supported.usage_fields) and getattr(reply.usage, name):
                yield Loss("", "", f"usage.{name}", dialect, "this API has no such count")
        tier = reply.usage.service_tier
        if tier is not None and supported.service_tiers and tier not in supported.service_tiers:
            yield Loss("", "", "usage.service_tier", dialect, "this API has no such tier")
