"""Tests of entries: filters for each kind of agent, completion, and chronological order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import entries
from dragoman.entries import Entry


def create_entry(number: int, kind: str = "user_message", **more: Any) -> Entry:
    return {"type": kind, "content": str(number), **more}


# --- filters ---------------------------------------------------------------------------------------------------------


def test_orchestrator_receives_last_eight_conversation_entries() -> None:
    history = [create_entry(number, kind) for number in range(12) for kind in ("user_message", "observation")]
    assert [entry["content"] for entry in entries.for_orchestrator(history)] == [str(n) for n in range(4, 12)]
    assert [entry["content"] for entry in entries.for_orchestrator(history, 2)] == ["10", "11"]
    assert entries.for_orchestrator(history, 0) == []
    assert len(entries.for_orchestrator(history, 100)) == 12


def test_manager_receives_syntheses_of_previous_phase() -> None:
    history = [create_entry(n, "synthesis", from_manager="m", phase_id=n) for n in range(3)] + [
        create_entry(9, phase_id=0)
    ]
    assert entries.for_manager(history, previous_phase_id=2) == [history[2]]
    assert entries.for_manager(history, phase_id=1) == [history[0]]
    assert entries.for_manager(history, phase_id=1, previous_phase_id=0) == [history[0]]
    assert entries.for_manager(history, phase_id=0) == []
    assert entries.for_manager(history) == []


def test_worker_receives_entries_since_last_task() -> None:
    kinds = ["task", "action", "task", "action", "observation", "error", "global_observation"]
    hidden = ["final", "synthesis", "delegation", "strategic_plan", "user_message"]
    history = [create_entry(number, kind) for number, kind in enumerate(kinds + hidden)]
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
def test_entry_completes_task(entry: Entry, is_complete: bool) -> None:
    assert entries.is_complete([create_entry(0, "task"), entry]) is is_complete
    assert entries.is_complete([entry]) is is_complete, "without a task the whole history counts"
    assert entries.is_complete([entry, create_entry(1, "task")]) is False, "entries before this task do not count"
    assert entries.is_complete([entry, *[create_entry(n, "observation") for n in range(10)]]) is False


# --- order -----------------------------------------------------------------------------------------------------------


def test_groups_are_merged_by_time_then_by_order() -> None:
    conversation = [create_entry(1, timestamp=10.0), create_entry(2, "assistant_message", timestamp=30)]
    own = [create_entry(3, "task", timestamp=10.0), create_entry(4, "final", timestamp=29.5)]
    shared = [create_entry(5, "synthesis", timestamp=0)]
    assert [entry["content"] for entry in entries.merge_entries(conversation, own, shared)] == ["5", "1", "3", "4", "2"]


def test_entry_without_timestamp_follows_its_predecessor() -> None:
    own = [
        create_entry(1, "task"),
        create_entry(2, "action", timestamp=20),
        create_entry(3, "observation"),
        create_entry(4, "final", timestamp=40),
    ]
    assert [entry["content"] for entry in entries.merge_entries([create_entry(0, timestamp=30)], own)] == [
        "1",
        "2",
        "3",
        "0",
        "4",
    ]
    timeless = [create_entry(7), create_entry(8)]
    assert entries.merge_entries(timeless, own)[-2:] == timeless


def test_backward_clock_step_keeps_order() -> None:
    own = [create_entry(1, timestamp=20), create_entry(2, timestamp=5), create_entry(3, timestamp=21)]
    assert [entry["content"] for entry in entries.merge_entries(own, [create_entry(0, timestamp=20.5)])] == [
        "1",
        "2",
        "0",
        "3",
    ]


random_times = st.none() | st.integers(0, 5) | st.floats(0, 5) | st.just("2026-01-01") | st.just(float("nan"))


@given(st.lists(st.lists(random_times, max_size=6), max_size=4))
def test_merge_keeps_every_entry_and_order_of_each_group(times: list[list[Any]]) -> None:
    groups = [[create_entry(n, group=g, timestamp=t) for n, t in enumerate(ts)] for g, ts in enumerate(times)]
    merged = entries.merge_entries(*groups)
    for number, group in enumerate(groups):
        assert [id(entry) for entry in merged if entry["group"] == number] == [id(entry) for entry in group]
    assert len(merged) == sum(map(len, groups))
