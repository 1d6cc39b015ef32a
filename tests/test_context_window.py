"""Tests of the context window: which messages are sent, and which messages a summary replaces."""

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


ANSWER_METADATA = {
    "model": "local:small",
    "provider": "local",
    "routing": RoutingDecisionRecord(RoutingMode.DEFAULT, "local:small", "default"),
    "usage": Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal(0), pricing_version="1", latency_ms=1),
}


def estimate(messages: Sequence[Message]) -> int:
    """Return a quarter of the characters, rounded down, and at least 1, as an adapter does."""
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


class Conversation:
    """A conversation that is built step by step."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def append(self, role: Role, *blocks: object, **metadata: object) -> Message:
        message = Message(
            ulid(1, len(self.messages)),
            "sess_1",
            role,
            blocks,  # type: ignore[arg-type]
            MessageMetadata(**metadata),  # type: ignore[arg-type]
            NOON,
        )
        self.messages.append(message)
        return message

    def append_turn(self, size: int = 40, calls: int = 0) -> None:
        number = len(self.messages)
        self.append(Role.USER, TextBlock("u" * size))
        if calls:
            ids = [f"tu_{ulid(2, number * 100 + index)}" for index in range(calls)]
            self.append(
                Role.ASSISTANT, *(ToolUseBlock(name, "read_file", {"path": "a"}) for name in ids), **ANSWER_METADATA
            )
            for name in ids:
                result = ToolResultBlock(name, (TextBlock("r" * size),))
                self.append(Role.TOOL, result, parent_tool_use_id=name)
        self.append(Role.ASSISTANT, TextBlock("a" * size), **ANSWER_METADATA)


def make_conversation(count: int, size: int = 40, calls: int = 0) -> list[Message]:
    conversation = Conversation()
    conversation.append(Role.SYSTEM, TextBlock("You are kind."))
    for _ in range(count):
        conversation.append_turn(size, calls)
    return conversation.messages


# --- limit -----------------------------------------------------------------------------------------------------------


def test_history_within_the_budget_is_unchanged() -> None:
    messages = make_conversation(3)
    fitted = fit(messages, 1_000, estimate)
    assert fitted == FittedHistory(tuple(messages), (), estimate(messages), 1_000)
    assert fitted.over_by == 0


def test_oldest_whole_turns_are_dropped_and_system_prompt_stays() -> None:
    messages = make_conversation(10, calls=1)
    fitted = fit(messages, 200, estimate)
    assert fitted.messages[0].role is Role.SYSTEM
    assert fitted.messages[1].role is Role.USER
    assert fitted.messages[1:] == tuple(messages[-len(fitted.messages) + 1 :])
    assert fitted.left_out == tuple(messages[1 : len(messages) - len(fitted.messages) + 1])
    assert fitted.tokens == estimate(fitted.messages) <= 200


def test_last_turns_stay_and_over_by_is_the_excess() -> None:
    messages = make_conversation(10, size=400)
    fitted = fit(messages, 300, estimate, keep_last_turns=3)
    assert turn_starts(fitted.messages) == [1, 3, 5]
    assert fitted.over_by == estimate(fitted.messages) - 300 > 0


def test_newest_turn_is_always_sent() -> None:
    messages = make_conversation(10, calls=2)
    assert newest_turn(messages) == fit(messages, 1, estimate).messages
    assert newest_turn(messages[:2]) == tuple(messages[:2])


def test_longer_conversation_has_the_same_prefix_for_many_turns() -> None:
    whole = make_conversation(200, size=100)
    ends = [place - 1 for place in turn_starts(whole)[1:]]
    sent = [fit(whole[: end + 1], 2_000, estimate).messages for end in ends]
    beginnings = [messages[1].id for messages in sent if len(messages) > 1]
    assert all(estimate(messages) <= 2_000 for messages in sent)
    runs = [len(list(run)) for _, run in groupby(beginnings)]
    assert len(runs) == len(set(beginnings)), "a dropped prefix is never sent again"
    assert min(runs[1:-1]) >= 10, runs
    for before, after in pairwise(sent):
        assert after[: len(before)] == before or after[1].id > before[1].id


def test_call_and_result_of_different_turns_stay_together() -> None:
    conversation = Conversation()
    conversation.append_turn()
    conversation.append(Role.USER, TextBlock("u" * 40))
    conversation.append(Role.ASSISTANT, ToolUseBlock("tu_1", "wait", {}))
    conversation.append(Role.USER, TextBlock("meanwhile"))
    conversation.append(Role.TOOL, ToolResultBlock("tu_1", (TextBlock("done"),)), parent_tool_use_id="tu_1")
    for budget in (1, 10, 20, 30):
        fitted = fit(conversation.messages, budget, estimate).messages
        assert fitted == tuple(conversation.messages[2:])


def test_empty_history_fits() -> None:
    assert fit([], 10, estimate).messages == ()
    assert plan_summary([], estimate) is None
    assert with_summary([]) == ()


def pairs(messages: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """Yield the ids of each message with a call and of the later message with its result."""
    message_of_call: dict[str, str] = {}
    for message in messages:
        message_of_call.update({call.id: message.id for _, call in calls_of(message)})
        for _, result in (*results_of(message), *results_of(message, partial=True)):
            if result.tool_use_id in message_of_call:
                yield message_of_call[result.tool_use_id], message.id


@given(strategies.histories, st.integers(0, 60), st.integers(0, 4))
def test_fitted_history_breaks_no_rule_and_reports_its_excess(history: list[Message], budget: int, keep: int) -> None:
    valid = repair(history).messages
    fitted = fit(valid, budget, estimate, keep_last_turns=keep)
    assert check(fitted.messages) == ()
    assert sorted(m.id for m in (*fitted.messages, *fitted.left_out)) == sorted(m.id for m in valid)
    assert [m for m in valid if m in fitted.messages] == list(fitted.messages)
    assert not any(m.role is Role.SYSTEM for m in fitted.left_out)
    kept_ids = {m.id for m in fitted.messages}
    assert all((call_id in kept_ids) == (result_id in kept_ids) for call_id, result_id in pairs(valid))
    assert fitted.tokens == estimate(fitted.messages)
    assert fitted.over_by == max(0, fitted.tokens - budget)
    assert fit(fitted.messages, budget, estimate, keep_last_turns=keep).messages == fitted.messages


sizes = st.lists(st.tuples(st.integers(1, 200), st.integers(0, 2)), min_size=1, max_size=25)


@given(sizes, st.integers(50, 400), st.integers(1, 3))
def test_first_sent_message_only_moves_forward(shape: list[tuple[int, int]], budget: int, keep: int) -> None:
    conversation = Conversation()
    conversation.append(Role.SYSTEM, TextBlock("You are kind."))
    first: list[str] = []
    for size, calls in shape:
        conversation.append_turn(size, calls)
        fitted = fit(conversation.messages, budget, estimate, keep_last_turns=keep)
        assert fitted.over_by == 0 or len(turn_starts(fitted.messages)) == min(
            keep, len(turn_starts(conversation.messages))
        )
        first.append(fitted.messages[1].id)
    assert first == list(accumulate(first, max))


# --- summaries -------------------------------------------------------------------------------------------------------


def make_plan(messages: Sequence[Message], above: int = 100, keep: int = 2) -> SummaryPlan:
    plan = plan_summary(messages, estimate, above_tokens=above, keep_last_turns=keep, hard_cap_tokens=1_000)
    assert plan is not None
    return plan


def test_short_history_needs_no_summary() -> None:
    assert plan_summary(make_conversation(3), estimate) is None
    assert plan_summary(make_conversation(3, size=100_000), estimate) is None, "the last turns stay"


def test_summary_replaces_all_but_the_last_turns() -> None:
    messages = make_conversation(6, calls=1)
    plan = make_plan(messages)
    assert plan.messages == tuple(messages[1:17])
    assert plan.covered == tuple(message.id for message in messages[1:17])
    assert not plan.is_urgent
    summary = summary_message(plan, " They spoke. ", id=ulid(9, 1), created_at=NOON)
    assert summary.role is Role.USER
    assert summary.content == (TextBlock("<conversation_summary>\nThey spoke.\n</conversation_summary>"),)
    sent = with_summary(messages, summary)
    assert sent == (messages[0], summary, *messages[17:])
    assert check(sent) == check(messages) == ()


def test_stored_summary_is_found_at_any_position() -> None:
    conversation = Conversation()
    for _ in range(6):
        conversation.append_turn()
    summary = summary_message(make_plan(conversation.messages), "They spoke.", id=ulid(9, 1), created_at=NOON)
    stored = [*conversation.messages, summary]
    assert with_summary(stored) == (summary, *conversation.messages[8:])
    assert turn_starts(with_summary(stored)) == [1, 3]


def test_newer_summary_includes_and_replaces_the_older_summary() -> None:
    conversation = Conversation()
    for _ in range(6):
        conversation.append_turn()
    first = summary_message(make_plan(conversation.messages), "They spoke.", id=ulid(9, 1), created_at=NOON)
    conversation.messages.append(first)
    for _ in range(6):
        conversation.append_turn()
    plan = make_plan(conversation.messages)
    assert plan.messages[0] == first
    assert plan.covered[0] == conversation.messages[0].id
    assert len(plan.covered) == 20
    second = summary_message(plan, "They spoke more.", id=ulid(9, 2), created_at=NOON)
    sent = with_summary([*conversation.messages, second])
    assert [message for message in sent if is_summary(message)] == [second]
    assert len(turn_starts(sent)) == 2


def test_summary_of_missing_messages_is_ignored() -> None:
    conversation = Conversation()
    for _ in range(6):
        conversation.append_turn()
    summary = summary_message(make_plan(conversation.messages), "They spoke.", id=ulid(9, 1), created_at=NOON)
    remaining = [*conversation.messages[:3], *conversation.messages[4:]]
    assert with_summary([*remaining, summary]) == tuple(remaining)
    assert with_summary(remaining[5:], summary) == tuple(remaining[5:])


def test_summary_key_depends_on_content() -> None:
    first, same, other = make_conversation(6), make_conversation(6), make_conversation(6, size=41)
    assert make_plan(first).key == make_plan(same).key != make_plan(other).key


def test_history_above_the_hard_cap_is_urgent_and_can_be_cut() -> None:
    messages = make_conversation(6, size=1_500)
    plan = make_plan(messages)
    assert plan.is_urgent
    assert fit(messages, 1_000, estimate, keep_last_turns=1).over_by == 0


def test_summary_stays_if_turns_are_dropped() -> None:
    conversation = Conversation()
    for _ in range(20):
        conversation.append_turn()
    summary = summary_message(make_plan(conversation.messages, keep=15), "They spoke.", id=ulid(9, 1), created_at=NOON)
    sent = with_summary(conversation.messages, summary)
    fitted = fit(sent, 150, estimate)
    assert fitted.messages[0] == summary
    assert fitted.left_out
    assert fitted.over_by == 0


@given(strategies.histories, st.integers(0, 40), st.integers(0, 4))
def test_history_with_summary_breaks_no_rule_and_keeps_system_prompts(
    history: list[Message], above: int, keep: int
) -> None:
    valid = repair(history).messages
    assume(not any("\0" in message.id for message in valid))  # a streaming message may break that rule
    plan = plan_summary(valid, estimate, above_tokens=above, keep_last_turns=keep)
    if plan is None:
        return
    summary = summary_message(plan, "…", id=ulid(9, 1), created_at=NOON)
    sent = with_summary([*valid, summary])
    assert summary in sent
    assert [b for b in check(sent) if b.rule != "message-id-once"] == []
    assert [m for m in sent if m.role is Role.SYSTEM] == [m for m in valid if m.role is Role.SYSTEM]
    assert with_summary(sent, summary) == tuple(m for m in sent if m != summary)
    assert {m.id for m in sent} | set(plan.covered) == {m.id for m in valid} | {summary.id}


@pytest.mark.parametrize("keep", [0, 1, 5])
def test_plan_keeps_the_requested_number_of_turns(keep: int) -> None:
    messages = make_conversation(8, calls=2)
    plan = make_plan(messages, above=10, keep=keep)
    assert len(turn_starts(messages)) - len(turn_starts(plan.messages)) == keep
