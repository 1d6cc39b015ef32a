"""Context window: which messages are sent, and which messages a summary replaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate, groupby, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dragoman import (
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    check,
    repair,
)
from dragoman.context_window import (
    FittedHistory,
    SummaryPlan,
    fit,
    is_summary,
    newest_turn,
    plan_summary,
    summary_message,
    turn_starts,
    with_summary,
)
from dragoman.ids import ulid
from dragoman.rules import calls_of, results_of
from tests import strategies

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


SPOKEN = {
    "model": "local:small",
    "provider": "local",
    "routing": RoutingDecisionRecord(RoutingMode.DEFAULT, "local:small", "default"),
    "usage": Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal(0), pricing_version="1", latency_ms=1),
}


def estimate(messages: Sequence[Message]) -> int:
    """As an adapter does: a quarter of the characters, rounded down, and never nothing."""
    return max(1, sum(characters(block) for message in messages for block in message.content) // 4)


def characters(block: object) -> int:
    match block:
        case TextBlock(text):
            return len(text)
        case ToolUseBlock(_, name, value):
            return len(name) + len(str(value))
        case ToolResultBlock(_, content):
            return sum(characters(inner) for inner in content)
        case _:
            return 10


class Talk:
    """A conversation made step by step."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def say(self, role: Role, *blocks: object, **metadata: object) -> Message:
        made = Message(
            ulid(1, len(self.messages)),
            "sess_1",
            role,
            blocks,  # type: ignore[arg-type]
            MessageMetadata(**metadata),  # type: ignore[arg-type]
            NOON,
        )
        self.messages.append(made)
        return made

    def turn(self, size: int = 40, calls: int = 0) -> None:
        number = len(self.messages)
        self.say(Role.USER, TextBlock("u" * size))
        if calls:
            ids = [f"tu_{ulid(2, number * 100 + index)}" for index in range(calls)]
            self.say(Role.ASSISTANT, *(ToolUseBlock(name, "read_file", {"path": "a"}) for name in ids), **SPOKEN)
            for name in ids:
                result = ToolResultBlock(name, (TextBlock("r" * size),))
                self.say(Role.TOOL, result, parent_tool_use_id=name)
        self.say(Role.ASSISTANT, TextBlock("a" * size), **SPOKEN)


def talk(count: int, size: int = 40, calls: int = 0) -> list[Message]:
    made = Talk()
    made.say(Role.SYSTEM, TextBlock("You are kind."))
    for _ in range(count):
        made.turn(size, calls)
    return made.messages


# --- fitting ---------------------------------------------------------------------------------------------------------


def test_what_fits_is_sent_as_it_is() -> None:
    messages = talk(3)
    fitted = fit(messages, 1_000, estimate)
    assert fitted == FittedHistory(tuple(messages), (), estimate(messages), 1_000)
    assert fitted.over_by == 0


def test_whole_turns_are_left_out_from_the_oldest_and_the_system_prompt_stays() -> None:
    messages = talk(10, calls=1)
    fitted = fit(messages, 200, estimate)
    assert fitted.messages[0].role is Role.SYSTEM
    assert fitted.messages[1].role is Role.USER
    assert fitted.messages[1:] == tuple(messages[-len(fitted.messages) + 1 :])
    assert fitted.left_out == tuple(messages[1 : len(messages) - len(fitted.messages) + 1])
    assert fitted.tokens == estimate(fitted.messages) <= 200


def test_the_last_turns_stay_and_it_says_by_how_much_that_is_too_much() -> None:
    messages = talk(10, size=400)
    fitted = fit(messages, 300, estimate, keep_last_turns=3)
    assert turn_starts(fitted.messages) == [1, 3, 5]
    assert fitted.over_by == estimate(fitted.messages) - 300 > 0


def test_the_newest_turn_is_the_least_that_is_sent() -> None:
    messages = talk(10, calls=2)
    assert newest_turn(messages) == fit(messages, 1, estimate).messages
    assert newest_turn(messages[:2]) == tuple(messages[:2])


def test_a_growing_conversation_begins_the_same_for_many_turns() -> None:
    whole = talk(200, size=100)
    ends = [place - 1 for place in turn_starts(whole)[1:]]
    sent = [fit(whole[: end + 1], 2_000, estimate).messages for end in ends]
    beginnings = [messages[1].id for messages in sent if len(messages) > 1]
    assert all(estimate(messages) <= 2_000 for messages in sent)
    runs = [len(list(run)) for _, run in groupby(beginnings)]
    assert len(runs) == len(set(beginnings)), "a beginning that was given up never comes back"
    assert min(runs[1:-1]) >= 10, runs
    for before, after in pairwise(sent):
        assert after[: len(before)] == before or after[1].id > before[1].id


def test_a_call_that_is_answered_in_a_later_turn_is_not_parted_from_its_result() -> None:
    made = Talk()
    made.turn()
    made.say(Role.USER, TextBlock("u" * 40))
    made.say(Role.ASSISTANT, ToolUseBlock("tu_1", "wait", {}))
    made.say(Role.USER, TextBlock("meanwhile"))
    made.say(Role.TOOL, ToolResultBlock("tu_1", (TextBlock("done"),)), parent_tool_use_id="tu_1")
    for budget in (1, 10, 20, 30):
        kept = fit(made.messages, budget, estimate).messages
        assert kept == tuple(made.messages[2:])


def test_an_empty_history_fits() -> None:
    assert fit([], 10, estimate).messages == ()
    assert plan_summary([], estimate) is None
    assert with_summary([]) == ()


def pairs(messages: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """The ids of a message that calls, and of a later one that answers."""
    called: dict[str, str] = {}
    for message in messages:
        called.update({call.id: message.id for _, call in calls_of(message)})
        for _, result in (*results_of(message), *results_of(message, partial=True)):
            if result.tool_use_id in called:
                yield called[result.tool_use_id], message.id


@given(strategies.histories, st.integers(0, 60), st.integers(0, 4))
def test_whatever_is_left_out_the_rest_breaks_no_rule_and_fits_or_says_by_how_much_not(
    history: list[Message], budget: int, keep: int
) -> None:
    valid = repair(history).messages
    fitted = fit(valid, budget, estimate, keep_last_turns=keep)
    assert check(fitted.messages) == ()
    assert sorted(m.id for m in (*fitted.messages, *fitted.left_out)) == sorted(m.id for m in valid)
    assert [m for m in valid if m in fitted.messages] == list(fitted.messages)
    assert not any(m.role is Role.SYSTEM for m in fitted.left_out)
    staying = {m.id for m in fitted.messages}
    assert all((calling in staying) == (answering in staying) for calling, answering in pairs(valid))
    assert fitted.tokens == estimate(fitted.messages)
    assert fitted.over_by == max(0, fitted.tokens - budget)
    assert fit(fitted.messages, budget, estimate, keep_last_turns=keep).messages == fitted.messages


sizes = st.lists(st.tuples(st.integers(1, 200), st.integers(0, 2)), min_size=1, max_size=25)


@given(sizes, st.integers(50, 400), st.integers(1, 3))
def test_what_is_sent_only_ever_moves_on(shape: list[tuple[int, int]], budget: int, keep: int) -> None:
    made = Talk()
    made.say(Role.SYSTEM, TextBlock("You are kind."))
    first: list[str] = []
    for size, calls in shape:
        made.turn(size, calls)
        fitted = fit(made.messages, budget, estimate, keep_last_turns=keep)
        assert fitted.over_by == 0 or len(turn_starts(fitted.messages)) == min(keep, len(turn_starts(made.messages)))
        first.append(fitted.messages[1].id)
    assert first == list(accumulate(first, max))


# --- summaries -------------------------------------------------------------------------------------------------------


def plan_of(messages: Sequence[Message], above: int = 100, keep: int = 2) -> SummaryPlan:
    plan = plan_summary(messages, estimate, above_tokens=above, keep_last_turns=keep, hard_cap_tokens=1_000)
    assert plan is not None
    return plan


def test_a_short_history_needs_no_summary() -> None:
    assert plan_summary(talk(3), estimate) is None
    assert plan_summary(talk(3, size=100_000), estimate) is None, "these are the last turns, which stay"


def test_a_summary_stands_for_all_but_the_last_turns() -> None:
    messages = talk(6, calls=1)
    plan = plan_of(messages)
    assert plan.messages == tuple(messages[1:17])
    assert plan.covered == tuple(message.id for message in messages[1:17])
    assert not plan.is_urgent
    summary = summary_message(plan, " They spoke. ", id=ulid(9, 1), created_at=NOON)
    assert summary.role is Role.USER
    assert summary.content == (TextBlock("<conversation_summary>\nThey spoke.\n</conversation_summary>"),)
    shown = with_summary(messages, summary)
    assert shown == (messages[0], summary, *messages[17:])
    assert check(shown) == check(messages) == ()


def test_a_stored_summary_is_found_wherever_it_was_stored() -> None:
    made = Talk()
    for _ in range(6):
        made.turn()
    summary = summary_message(plan_of(made.messages), "They spoke.", id=ulid(9, 1), created_at=NOON)
    stored = [*made.messages, summary]
    assert with_summary(stored) == (summary, *made.messages[8:])
    assert turn_starts(with_summary(stored)) == [1, 3]


def test_a_newer_summary_is_made_of_the_older_one_and_takes_its_place() -> None:
    made = Talk()
    for _ in range(6):
        made.turn()
    first = summary_message(plan_of(made.messages), "They spoke.", id=ulid(9, 1), created_at=NOON)
    made.messages.append(first)
    for _ in range(6):
        made.turn()
    plan = plan_of(made.messages)
    assert plan.messages[0] == first
    assert plan.covered[0] == made.messages[0].id
    assert len(plan.covered) == 20
    second = summary_message(plan, "They spoke more.", id=ulid(9, 2), created_at=NOON)
    shown = with_summary([*made.messages, second])
    assert [message for message in shown if is_summary(message)] == [second]
    assert len(turn_starts(shown)) == 2


def test_a_summary_of_what_is_no_longer_there_does_not_hold() -> None:
    made = Talk()
    for _ in range(6):
        made.turn()
    summary = summary_message(plan_of(made.messages), "They spoke.", id=ulid(9, 1), created_at=NOON)
    kept = [*made.messages[:3], *made.messages[4:]]
    assert with_summary([*kept, summary]) == tuple(kept)
    assert with_summary(kept[5:], summary) == tuple(kept[5:])


def test_the_same_words_have_the_same_key_and_other_words_another() -> None:
    one, same, other = talk(6), talk(6), talk(6, size=41)
    assert plan_of(one).key == plan_of(same).key != plan_of(other).key


def test_a_history_above_the_hard_cap_is_urgent_and_can_be_cut_instead() -> None:
    messages = talk(6, size=1_500)
    plan = plan_of(messages)
    assert plan.is_urgent
    assert fit(messages, 1_000, estimate, keep_last_turns=1).over_by == 0


def test_a_summary_is_kept_when_turns_are_left_out() -> None:
    made = Talk()
    for _ in range(20):
        made.turn()
    summary = summary_message(plan_of(made.messages, keep=15), "They spoke.", id=ulid(9, 1), created_at=NOON)
    shown = with_summary(made.messages, summary)
    fitted = fit(shown, 150, estimate)
    assert fitted.messages[0] == summary
    assert fitted.left_out
    assert fitted.over_by == 0


@given(strategies.histories, st.integers(0, 40), st.integers(0, 4))
def test_a_history_with_a_summary_breaks_no_rule_and_loses_no_system_prompt(
    history: list[Message], above: int, keep: int
) -> None:
    valid = repair(history).messages
    assume(not any("\0" in message.id for message in valid))  # while it is streaming, a message may break that rule
    plan = plan_summary(valid, estimate, above_tokens=above, keep_last_turns=keep)
    if plan is None:
        return
    summary = summary_message(plan, "…", id=ulid(9, 1), created_at=NOON)
    shown = with_summary([*valid, summary])
    assert summary in shown
    assert [b for b in check(shown) if b.rule != "message-id-once"] == []
    assert [m for m in shown if m.role is Role.SYSTEM] == [m for m in valid if m.role is Role.SYSTEM]
    assert with_summary(shown, summary) == tuple(m for m in shown if m != summary)
    assert {m.id for m in shown} | set(plan.covered) == {m.id for m in valid} | {summary.id}


@pytest.mark.parametrize("keep", [0, 1, 5])
def test_a_plan_keeps_as_many_turns_as_it_was_told(keep: int) -> None:
    messages = talk(8, calls=2)
    plan = plan_of(messages, above=10, keep=keep)
    assert len(turn_starts(messages)) - len(turn_starts(plan.messages)) == keep
