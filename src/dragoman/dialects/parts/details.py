"""Details of an answer: why it ended, which word ended it, who answered, and what it consumed.

    lost_details(reply, dialect, said) -> losses

Wires differ in which of these they have words for. Each dialect says which it has; of an answer that came from another
one, the rest is named as lost. The one rule: what a dialect claims to say here, its reader finds on its wire again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from dragoman.dialects.parts.residue import notes_of
from dragoman.exchange import Loss, Reply, StopReason
from dragoman.message import TokenUsage

_EVERYWHERE: Final = ("input_tokens", "output_tokens", "estimated", "unknown_fields")


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The details that a wire has words for."""

    ends: tuple[str, ...]  # reasons to stop
    counts: tuple[str, ...] = ()  # fields of TokenUsage, beside what every wire counts
    tiers: Collection[str] = ()  # tiers of service; none means that any can be said
    word: bool = False  # the word that ended it
    model: bool = True


def lost_details(reply: Reply, dialect: str, said: Said) -> Iterator[Loss]:
    """A loss for each detail that this wire has no words for; none for an answer that came from it."""
    if notes_of(reply.provider_raw, dialect):
        return
    if reply.fault is None and reply.stop_reason not in (StopReason.UNKNOWN, *said.ends):
        yield Loss("", "", "stop_reason", dialect, f"this API has no word for {reply.stop_reason.value}")
    if reply.stop_sequence is not None and not said.word:
        yield Loss("", "", "stop_sequence", dialect, "this API does not say which word ended an answer")
    if reply.model is not None and not said.model:
        yield Loss("", "", "model", dialect, "an answer of this API does not say who gave it")
    if reply.usage is not None:
        for name in TokenUsage.__struct_fields__:
            if name not in (*_EVERYWHERE, *said.counts) and getattr(reply.usage, name):
                yield Loss("", "", f"usage.{name}", dialect, "this API has no such count")
        tier = reply.usage.service_tier
        if tier is not None and said.tiers and tier not in said.tiers:
            yield Loss("", "", "usage.service_tier", dialect, "this API has no such tier")
