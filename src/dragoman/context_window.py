"""What of a history is sent: the newest part that fits the model's window, and what a summary stands for.

    turns(messages)                                    where each turn begins
    fit(messages, budget, estimate) -> Fitted          whole turns left out from the oldest until the rest fits
    plan_summary(messages, estimate) -> SummaryPlan    which span to have summarised, or None
    summary_message(plan, text, …) -> Message          the summary, to be stored like any message
    with_summary(messages)                             the history with its newest summary in place of its span

``estimate`` is the adapter's: given messages, roughly how many tokens. A turn is a user's message and everything up to
the next one. What is left out is left out in big steps, and the step depends on the history alone: while the
conversation grows, the same beginning is sent again for many turns, and a provider's prompt cache holds.

The one rule: a call and its result stay together, system prompts stay, and what is stored stays as it is.
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
_SHARE_AFTER_CUT: Final = 0.6  # of the room for turns: the rest is for growing before the next cut
# Looking a member up on its enum takes longer than comparing it (Python 3.11).
_USER, _ASSISTANT, _SYSTEM, _TOOL = Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.TOOL
_SUMMARY: Final = "summary"  # the key in a message's metadata.extra


class FittedHistory(msgspec.Struct, frozen=True):
    """What to send, and what of the history is not in it."""

    messages: tuple[Message, ...]
    left_out: tuple[Message, ...]
    tokens: int  # of what is sent, as estimated
    budget: int

    @property
    def over_by(self) -> int:
        """By how many tokens it does not fit, because no more can be left out. 0: it fits."""
        return max(0, self.tokens - self.budget)


def fit(messages: Iterable[Message], budget: int, estimate: Estimate, *, keep_last_turns: int = 1) -> FittedHistory:
    """The newest turns that fit. ``budget`` is for messages alone: take off the tools and the room for an answer."""
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


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """The place of each message that begins a turn: those of the user, but for summaries."""
    return [at for at, message in enumerate(messages) if message.role is _USER and not is_summary(message)]


class _History:
    """A history in pieces that can be left out: the places where it may be cut, and what each piece costs."""

    def __init__(self, messages: tuple[Message, ...], estimate: Estimate, keep: int) -> None:
        self._messages = messages
        self._estimate = estimate
        self._keep = keep  # so many of the last turns are never left out
        self._starts = turn_starts(messages)
        self._cuts = _possible_cuts(messages, self._starts)
        self._pinned = [_is_pinned(message) for message in messages]  # whatever is left out

    def candidate_cuts(self, budget: int) -> Iterable[int]:
        """Where to cut, and if that was not enough, the places further on.

        Found by growing the history turn by turn and cutting only when it no longer fits. Each cut depends on what
        came before it alone, so a longer history is cut at the same place until that does not suffice any more.
        """
        room = budget - self._estimate([*itertools.compress(self._messages, self._pinned)])
        cost_before = self._cost_before()
        next_cut = 0  # the first of the possible cuts that was not taken yet
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
        """How many of the possible cuts leave enough of the first turns."""
        if turns_so_far < self._keep:
            return 0
        return bisect.bisect_right(self._cuts, self._starts[turns_so_far - self._keep])

    def _cost_before(self) -> dict[int, int]:
        """What everything before a place costs, but for what always stays."""
        cost_before = {0: (total := 0)}
        for start, end in itertools.pairwise(sorted({0, *self._starts, len(self._messages)})):
            turn = [self._messages[at] for at in range(start, end) if not self._pinned[at]]
            total += self._estimate(turn) + 1 if turn else 0  # an estimate is rounded down, a sum of them more so
            cost_before[end] = total
        return cost_before


def _possible_cuts(messages: Sequence[Message], starts: Sequence[int]) -> list[int]:
    """The beginnings of turns where no call stands before, and its result after."""
    call_positions: dict[str, int] = {}
    result_positions = [-1] * len(messages)  # for each message, where its last result is
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
    """A span of a history that a summary should stand for."""

    messages: tuple[Message, ...]  # what to summarise: the span as it is sent today, an older summary included
    covered: tuple[str, ...]  # ids of the stored messages that the summary will stand for
    key: str  # over what those say: the same span needs no second summary
    tokens: int  # of the history as it is sent today
    is_urgent: bool  # above the hard cap: if no summary can be had, leave out the oldest turns with ``fit``


def plan_summary(
    messages: Iterable[Message],
    estimate: Estimate,
    *,
    above_tokens: int = SUMMARY_ABOVE_TOKENS,
    hard_cap_tokens: int = HARD_CAP_TOKENS,
    keep_last_turns: int = KEEP_LAST_TURNS,
) -> SummaryPlan | None:
    """What to summarise: everything but the last turns, once the history has grown above the threshold."""
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
    """The stored messages up to the end of a span: what an older summary stood for is covered by the newer one."""
    last = next(message.id for message in reversed(span) if not is_summary(message))
    end = next(at for at, message in enumerate(stored) if message.id == last) + 1
    return [message for message in stored[:end] if not _is_pinned(message)]


def _key(messages: Iterable[Message]) -> str:
    return hashlib.sha256("\n".join(content_hash(message) for message in messages).encode()).hexdigest()


def summary_message(plan: SummaryPlan, text: str, *, id: str, created_at: datetime) -> Message:  # noqa: A002
    """The summary as one message of the user, in tags, with what it stands for in ``metadata.extra``."""
    first = plan.messages[0]
    content = f"<conversation_summary>\n{text.strip()}\n</conversation_summary>"
    coverage = {"first": plan.covered[0], "last": plan.covered[-1], "count": len(plan.covered), "key": plan.key}
    metadata = MessageMetadata(extra={_SUMMARY: coverage}, user_id=first.metadata.user_id)
    return Message(id, first.session_id, Role.USER, (TextBlock(content),), metadata, created_at)


def is_summary(message: Message) -> bool:
    """Whether it is a summary that stands for older messages."""
    extra = message.metadata.extra
    return extra is not None and message.role is _USER and isinstance(extra.get(_SUMMARY), dict)


def with_summary(messages: Iterable[Message], summary: Message | None = None) -> tuple[Message, ...]:
    """The history with a summary in place of its span: the one given, else the newest one in it that still holds.

    A summary holds while all of what it stands for is there. Others are left out.
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
