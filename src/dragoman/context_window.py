"""Select the part of a history that fits a model's context window, and replace turns with summaries.

    turn_starts(messages)                              the position of each turn
    fit(messages, budget, estimate) -> FittedHistory   remove whole turns, oldest first, until the rest fits
    newest_turn(messages)                              what ``fit`` never removes
    plan_summary(messages, estimate) -> SummaryPlan    the span to summarize, or None
    summary_message(plan, text, …) -> Message          the summary as a message to store
    with_summary(messages)                             the history with its newest summary in place of the span

``estimate`` returns the approximate number of tokens of messages; an adapter has one. A turn is a user message and
everything up to the next one. ``fit`` removes turns in large steps that depend on the history alone. While a
conversation grows, many turns therefore send the same beginning, and the provider's prompt cache stays valid.

Invariant: a call and its result stay together, system prompts stay, and stored messages do not change.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.codec import content_hash
from dragoman.message import Message, MessageMetadata, Role, TextBlock, ToolResultBlock
from dragoman.rules import calls_of

Estimate = Callable[[Sequence[Message]], int]

SUMMARY_ABOVE_TOKENS: Final = 30_000
HARD_CAP_TOKENS: Final = 80_000
KEEP_LAST_TURNS: Final = 5
_SHARE_AFTER_CUT: Final = 0.6  # share of the room for turns that is used after a cut; the rest is for growth
# Bound once: attribute access on an enum takes longer than a comparison (Python 3.11).
_USER, _ASSISTANT, _SYSTEM, _TOOL = Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.TOOL
_SUMMARY: Final = "summary"  # key in metadata.extra


class FittedHistory(msgspec.Struct, frozen=True):
    """The messages to send and the messages that are left out."""

    messages: tuple[Message, ...]
    left_out: tuple[Message, ...]
    tokens: int  # estimate for ``messages``
    budget: int

    @property
    def over_by(self) -> int:
        """The number of tokens above the budget; 0 if the messages fit."""
        return max(0, self.tokens - self.budget)


def fit(messages: Iterable[Message], budget: int, estimate: Estimate, *, keep_last_turns: int = 1) -> FittedHistory:
    """Return the newest turns that fit. ``budget`` is for messages only, without tools and the answer."""
    all_messages = tuple(messages)
    tokens = estimate(all_messages)
    if tokens <= budget:
        return FittedHistory(all_messages, (), tokens, budget)
    history = _History(all_messages, estimate, max(1, keep_last_turns))
    for cut in history.candidate_cuts(budget):
        result = history.from_cut(cut)
        tokens = estimate(result)
        if tokens <= budget:
            break
    kept_ids = {id(message) for message in result}
    return FittedHistory(
        result, tuple(message for message in all_messages if id(message) not in kept_ids), tokens, budget
    )


def newest_turn(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the last turn, with the system prompts and the summary."""
    all_messages = tuple(messages)
    cuts = _possible_cuts(all_messages, turn_starts(all_messages))
    cut = cuts[-1] if cuts else 0
    return (*filter(_is_pinned, all_messages[:cut]), *all_messages[cut:])


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the position of each user message that is not a summary."""
    return [at for at, message in enumerate(messages) if message.role is _USER and not is_summary(message)]


class _History:
    """A history with the positions at which it can be cut, and the cost of its parts."""

    def __init__(self, messages: tuple[Message, ...], estimate: Estimate, keep: int) -> None:
        self._messages = messages
        self._estimate = estimate
        self._keep = keep  # this number of last turns is kept
        self._starts = turn_starts(messages)
        self._cuts = _possible_cuts(messages, self._starts)
        self._pinned = [_is_pinned(message) for message in messages]  # always kept

    def candidate_cuts(self, budget: int) -> Iterable[int]:
        """Return the first cut to try, and the later ones in case it is not enough.

        The history is replayed turn by turn and cut only when it no longer fits. Each cut depends only on earlier
        messages, so a longer history is cut at the same position as long as that suffices.
        """
        room = budget - self._estimate([*itertools.compress(self._messages, self._pinned)])
        cost_before = self._cost_before()
        next_cut = 0  # index of the next possible cut
        cut = 0
        for turn in range(1, len(self._starts) + 1):
            end = self._starts[turn] if turn < len(self._starts) else len(self._messages)
            if cost_before[end] - cost_before[cut] <= room:
                continue
            last = self._last_cut(turn)
            while next_cut < last and cost_before[end] - cost_before[cut] > room * _SHARE_AFTER_CUT:
                cut = self._cuts[next_cut]
                next_cut += 1
        return (cut, *self._cuts[next_cut : self._last_cut(len(self._starts))])

    def from_cut(self, cut: int) -> tuple[Message, ...]:
        return (*itertools.compress(self._messages[:cut], self._pinned), *self._messages[cut:])

    def _last_cut(self, turns_so_far: int) -> int:
        """Return the number of possible cuts that keep enough turns."""
        if turns_so_far < self._keep:
            return 0
        return bisect.bisect_right(self._cuts, self._starts[turns_so_far - self._keep])

    def _cost_before(self) -> dict[int, int]:
        """Return the cost of everything before a position, without pinned messages."""
        cost_before = {0: (total := 0)}
        for start, end in itertools.pairwise(sorted({0, *self._starts, len(self._messages)})):
            turn = [self._messages[at] for at in range(start, end) if not self._pinned[at]]
            total += self._estimate(turn) + 1 if turn else 0  # estimates are rounded down
            cost_before[end] = total
        return cost_before


def _possible_cuts(messages: Sequence[Message], starts: Sequence[int]) -> list[int]:
    """Return the starts of turns that do not separate a call from its result."""
    call_positions: dict[str, int] = {}
    result_positions = [-1] * len(messages)  # for each message, the position of its last result
    for at, message in enumerate(messages):
        if message.role is _ASSISTANT:
            call_positions.update((call.id, at) for _, call in calls_of(message))
        elif message.role is _TOOL:
            for block in message.content:
                if isinstance(block, ToolResultBlock) and block.tool_use_id in call_positions:
                    result_positions[call_positions[block.tool_use_id]] = at
    last_results = list(itertools.accumulate(result_positions, max))
    return [start for start in starts if start > 0 and last_results[start - 1] < start]


def _is_pinned(message: Message) -> bool:
    return message.role is _SYSTEM or is_summary(message)


# --- summaries -------------------------------------------------------------------------------------------------------


class SummaryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A span of a history to summarize."""

    messages: tuple[Message, ...]  # the messages to summarize, as they are sent now, with an older summary
    covered: tuple[str, ...]  # ids of the stored messages that the summary replaces
    key: str  # hash over the covered messages; an equal span needs no second summary
    tokens: int  # estimate for the history as it is sent now
    is_urgent: bool  # above the hard cap: without a summary, leave out the oldest turns with ``fit``


def plan_summary(
    messages: Iterable[Message],
    estimate: Estimate,
    *,
    above_tokens: int = SUMMARY_ABOVE_TOKENS,
    hard_cap_tokens: int = HARD_CAP_TOKENS,
    keep_last_turns: int = KEEP_LAST_TURNS,
) -> SummaryPlan | None:
    """Return the span to summarize once the history exceeds the threshold: everything except the last turns."""
    all_messages = tuple(messages)
    visible = with_summary(all_messages)
    tokens = estimate(visible)
    starts = turn_starts(visible)
    if tokens <= above_tokens or len(starts) <= keep_last_turns:
        return None
    protected = starts[-keep_last_turns] if keep_last_turns else len(visible)
    cut = max((at for at in _possible_cuts(visible, starts) if at <= protected), default=0)
    if keep_last_turns == 0 and _are_calls_answered(visible):
        cut = len(visible)
    span = tuple(message for message in visible[:cut] if message.role is not Role.SYSTEM)
    if not any(not is_summary(message) for message in span):
        return None
    covered = _covered_messages(all_messages, span)
    return SummaryPlan(
        messages=span,
        covered=tuple(message.id for message in covered),
        key=_key(covered),
        tokens=tokens,
        is_urgent=tokens > hard_cap_tokens,
    )


def _are_calls_answered(messages: Sequence[Message]) -> bool:
    """Whether every call has its result."""
    call_ids = {call.id for message in messages for _, call in calls_of(message)}
    result_ids = {block.tool_use_id for m in messages for block in m.content if isinstance(block, ToolResultBlock)}
    return call_ids <= result_ids


def _covered_messages(stored: Sequence[Message], span: Sequence[Message]) -> list[Message]:
    """Return the stored messages up to the end of a span, including those of an older summary."""
    last = next(message.id for message in reversed(span) if not is_summary(message))
    end = next(at for at, message in enumerate(stored) if message.id == last) + 1
    return [message for message in stored[:end] if not _is_pinned(message)]


def _key(messages: Iterable[Message]) -> str:
    return hashlib.sha256("\n".join(content_hash(message) for message in messages).encode()).hexdigest()


def summary_message(plan: SummaryPlan, text: str, *, id: str, created_at: datetime) -> Message:  # noqa: A002
    """Return the summary as a user message, with the covered span in ``metadata.extra``."""
    first = plan.messages[0]
    content = f"<conversation_summary>\n{text.strip()}\n</conversation_summary>"
    coverage = {"first": plan.covered[0], "last": plan.covered[-1], "count": len(plan.covered), "key": plan.key}
    metadata = MessageMetadata(extra={_SUMMARY: coverage}, user_id=first.metadata.user_id)
    return Message(id, first.session_id, Role.USER, (TextBlock(content),), metadata, created_at)


def is_summary(message: Message) -> bool:
    """Whether a message is a summary."""
    extra = message.metadata.extra
    return extra is not None and message.role is _USER and isinstance(extra.get(_SUMMARY), dict)


def with_summary(messages: Iterable[Message], summary: Message | None = None) -> tuple[Message, ...]:
    """Return the history with a summary in place of its span: the argument, else the newest valid one of the history.

    A summary is valid while all messages that it covers exist. Other summaries are removed.
    """
    all_messages = tuple(messages)
    plain = tuple(message for message in all_messages if not is_summary(message))
    candidates = [summary] if summary is not None else [m for m in reversed(all_messages) if is_summary(m)]
    for candidate in candidates:
        result = _replace_span(plain, candidate)
        if result is not None:
            return result
    return plain


def _replace_span(messages: tuple[Message, ...], summary: Message) -> tuple[Message, ...] | None:
    coverage: dict[str, Any] = (summary.metadata.extra or {}).get(_SUMMARY, {})
    places = {message.id: at for at, message in enumerate(messages)}
    first, last = places.get(coverage.get("first", "")), places.get(coverage.get("last", ""))
    if first is None or last is None or first > last:
        return None
    span = messages[first : last + 1]
    system = tuple(message for message in span if message.role is Role.SYSTEM)
    if len(span) - len(system) != coverage.get("count"):
        return None
    return (*messages[:first], *system, summary, *messages[last + 1 :])
