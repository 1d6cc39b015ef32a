"""Filters for each kind of agent, completion, and chronological order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import entries
from dragoman.entries import Entry


def said(number: int, kind: str = "user_message", **more: Any) -> Entry:
    return {"type": kind, "content": str(number), **more}


# --- filters ---------------------------------------------------------------------------------------------------------


def test_an_orchestrator_sees_the_last_eight_entries_of_the_conversation() -> None:
    history = [said(number, kind) for number in range(12) for kind in ("user_message", "observation")]
    assert [entry["content"] for entry in entries.for_orchestrator(history)] == [str(n) for n in range(4, 12)]
    assert [entry["content"] for entry in entries.for_orchestrator(history, 2)] == ["10", "11"]
    assert entries.for_orchestrator(history, 0) == []
    assert len(entries.for_orchestrator(history, 100)) == 12


def test_a_manager_sees_the_syntheses_of_the_phase_before() -> None:
    history = [said(n, "synthesis", from_manager="m", phase_id=n) for n in range(3)] + [said(9, phase_id=0)]
    assert entries.for_manager(history, previous_phase_id=2) == [history[2]]
    assert entries.for_manager(history, phase_id=1) == [history[0]]
    assert entries.for_manager(history, phase_id=1, previous_phase_id=0) == [history[0]]
    assert entries.for_manager(history, phase_id=0) == []
    assert entries.for_manager(history) == []


def test_a_worker_sees_what_happened_since_the_last_task() -> None:
    kinds = ["task", "action", "task", "action", "observation", "error", "global_observation"]
    hidden = ["final", "synthesis", "delegation", "strategic_plan", "user_message"]
    history = [said(number, kind) for number, kind in enumerate(kinds + hidden)]
    assert [entry["type"] for entry in entries.for_worker(history)] == kinds[3:]
    assert entries.for_worker(history[1:2]) == []


# --- completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "is_complete"),
    [
        ({"type": "action", "tool": "complete_task", "args": {}}, True),
        ({"type": "action", "tool": "list_tables", "args": {"note": "done"}}, False),
        ({"type": "final", "content": "Task completed successfully"}, True),
        ({"type": "final", "content": {"human_readable_summary": "All done"}}, True),
        ({"type": "final", "content": "I gave up"}, False),
        ({"type": "observation", "content": "FINISHED"}, True),
        ({"type": "observation", "content": {"completed": True}}, True),
        ({"type": "observation", "content": {"completed": "yes"}}, False),
        ({"type": "observation", "content": {"result": {"completed": True}}}, True),
        ({"type": "observation", "content": {"result": {"response_validation": {"complete": True}}}}, True),
        ({"type": "observation", "content": {"result": "x"}}, False),
        ({"type": "user_message", "content": "done"}, False),
    ],
)
def test_an_entry_may_say_that_the_task_is_done(entry: Entry, is_complete: bool) -> None:
    assert entries.is_complete([said(0, "task"), entry]) is is_complete
    assert entries.is_complete([entry]) is is_complete, "without a task the whole history counts"
    assert entries.is_complete([entry, said(1, "task")]) is False, "what was done before this task does not"
    assert entries.is_complete([entry, *[said(n, "observation") for n in range(10)]]) is False


# --- the order of time -----------------------------------------------------------------------------------------------


def test_groups_are_merged_by_time_and_at_one_time_in_their_order() -> None:
    conversation = [said(1, timestamp=10.0), said(2, "assistant_message", timestamp=30)]
    own = [said(3, "task", timestamp=10.0), said(4, "final", timestamp=29.5)]
    told = [said(5, "synthesis", timestamp=0)]
    assert [entry["content"] for entry in entries.merge_entries(conversation, own, told)] == ["5", "1", "3", "4", "2"]


def test_an_entry_without_a_time_stays_behind_the_one_before_it() -> None:
    own = [said(1, "task"), said(2, "action", timestamp=20), said(3, "observation"), said(4, "final", timestamp=40)]
    assert [entry["content"] for entry in entries.merge_entries([said(0, timestamp=30)], own)] == [
        "1",
        "2",
        "3",
        "0",
        "4",
    ]
    timeless = [said(7), said(8)]
    assert entries.merge_entries(timeless, own)[-2:] == timeless


def test_a_clock_that_steps_back_moves_nothing() -> None:
    own = [said(1, timestamp=20), said(2, timestamp=5), said(3, timestamp=21)]
    assert [entry["content"] for entry in entries.merge_entries(own, [said(0, timestamp=20.5)])] == ["1", "2", "0", "3"]


times = st.none() | st.integers(0, 5) | st.floats(0, 5) | st.just("2026-01-01") | st.just(float("nan"))


@given(st.lists(st.lists(times, max_size=6), max_size=4))
def test_merging_loses_nothing_and_keeps_the_order_of_each_group(given_times: list[list[Any]]) -> None:
    groups = [[said(n, group=g, timestamp=t) for n, t in enumerate(ts)] for g, ts in enumerate(given_times)]
    one = entries.merge_entries(*groups)
    for number, group in enumerate(groups):
        assert [id(entry) for entry in one if entry["group"] == number] == [id(entry) for entry in group]
    assert len(one) == sum(map(len, groups))
