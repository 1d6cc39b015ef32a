"""The message store of the framework over ours, on every engine; and what is different from its example in SQL."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dragoman
from dragoman.agent_framework import (
    DragomanMessageStore,
    HierarchicalMessageStoreMemory,
    MessageStoreMemory,
    WorkerHistoryFilter,
    WritingMessageStoreMemory,
)
from dragoman.entries import Entry
from dragoman.errors import FormatError, InputError, StoreUnusableError
from tests.agent_framework.database import COLUMNS, DatabaseMessageStore, insert, open_database
from tests.store.conftest import StoreLocation
from tests.store.messages import answer_message, call_message, result_message, text_message

LOCATION = "job_123"
# Whose each entry is: two turns of an orchestrator with two workers.
DATA: list[tuple[str | None, Entry]] = [
    (None, {"type": "user_message", "content": "List all tables", "timestamp": 1.0, "turn_id": "turn_1"}),
    ("orchestrator", {"type": "task", "content": "List all tables", "timestamp": 2.0, "turn_id": "turn_1"}),
    ("orchestrator", {"type": "strategic_plan", "content": {"primary_worker": "w1"}, "timestamp": 3.0}),
    ("orchestrator", {"type": "action", "tool": "route", "args": {"to": "w1"}, "timestamp": 4.0, "turn_id": "turn_1"}),
    ("w1", {"type": "task", "content": "List", "timestamp": 5.0}),
    ("w1", {"type": "action", "tool": "list_tables", "args": {"schema": "public"}, "timestamp": 6.0}),
    ("w1", {"type": "observation", "content": {"tables": ["users"]}, "timestamp": 7.0}),
    ("w2", {"type": "error", "content": "Connection failed", "timestamp": 8.0}),
    (None, {"type": "global_observation", "content": "seen", "from_worker": "w1", "summary": "1", "timestamp": 9.0}),
    (None, {"type": "synthesis", "content": "one table", "from_manager": "m", "timestamp": 10.0}),
    ("orchestrator", {"type": "observation", "content": "one table", "timestamp": 11.0}),
    ("orchestrator", {"type": "final", "content": "One table", "timestamp": 12.0, "turn_id": "turn_1"}),
    (None, {"type": "assistant_message", "content": "One table", "timestamp": 13.0, "turn_id": "turn_1"}),
    (None, {"type": "user_message", "content": "And views?", "timestamp": 14.0, "turn_id": "turn_2"}),
    ("orchestrator", {"type": "task", "content": "And views?", "timestamp": 15.0, "turn_id": "turn_2"}),
]
VIEWS: dict[str, tuple[Any, ...]] = {
    "get_conversation_messages": (LOCATION,),
    "get_agent_messages": (LOCATION, "orchestrator"),
    "get_global_messages": (LOCATION,),
    "get_team_messages": (LOCATION, ["w1", "w2"]),
}


@pytest.fixture
def ours(store_location: StoreLocation) -> Iterator[DragomanMessageStore]:
    with DragomanMessageStore(store_location.url) as opened:
        yield opened


@pytest.fixture
def theirs() -> Iterator[Any]:
    """The store of the specification's example, over the standard library's SQLite."""
    connection = open_database()
    yield DatabaseMessageStore(connection)
    connection.close()


def fill(ours: DragomanMessageStore, theirs: Any, data: list[tuple[str | None, Entry]] = DATA) -> None:
    for agent_key, entry in data:
        ours.add_message(LOCATION, entry, agent_key)
        insert(theirs.db, LOCATION, agent_key, entry)


def as_row(entry: Entry, columns: tuple[str, ...]) -> Entry:
    """An entry as the example's table has it: its columns, and text for what is no text."""
    row = {name: entry.get(name) for name in columns}
    return {name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()}


# --- where they agree ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_the_example_in_sql_and_our_views_agree(ours: DragomanMessageStore, theirs: Any, view: str) -> None:
    fill(ours, theirs)
    rows: list[Entry] = getattr(theirs, view)(*VIEWS[view])
    found: list[Entry] = getattr(ours, view)(*VIEWS[view])
    assert len(rows) > 1
    assert [as_row(entry, COLUMNS[view]) for entry in found] == rows


def test_both_are_empty_where_nobody_has_written(ours: DragomanMessageStore, theirs: Any) -> None:
    for store in (ours, theirs):
        assert store.get_conversation_messages("elsewhere") == []
        assert store.get_team_messages(LOCATION, []) == []


# --- where they do not, and why --------------------------------------------------------------------------------------


def test_different_a_limit_takes_the_newest_and_not_the_oldest(ours: DragomanMessageStore, theirs: Any) -> None:
    fill(ours, theirs)
    assert [row["content"] for row in theirs.get_conversation_messages(LOCATION, 2)] == ["List all tables", "One table"]
    found = ours.get_conversation_messages(LOCATION, 2)
    assert [entry["content"] for entry in found] == ["One table", "And views?"]
    for view, arguments in VIEWS.items():
        whole = getattr(ours, view)(*arguments)
        assert getattr(ours, view)(*arguments, limit=2) == whole[-2:]


def test_different_a_limit_of_zero_is_nothing_and_not_everything(ours: DragomanMessageStore, theirs: Any) -> None:
    fill(ours, theirs)
    assert len(theirs.get_conversation_messages(LOCATION, 0)) == 3
    assert ours.get_conversation_messages(LOCATION, 0) == []
    with pytest.raises(InputError, match="limit"):
        ours.get_conversation_messages(LOCATION, -1)


def test_different_every_field_of_every_type_survives(ours: DragomanMessageStore, theirs: Any) -> None:
    made = [
        {"type": "delegation", "worker": "w1", "task": "List", "timestamp": 1.0},
        {"type": "error", "content": "x", "error_type": "ConnectionError", "timestamp": 2.0},
        {"type": "action", "tool": "t", "args": {"a": 1}, "timestamp": 3.0, "step": 1, "script": True},
        {"type": "synthesis", "content": "x", "from_manager": "m", "phase_id": 0, "timestamp": 4.0},
    ]
    fill(ours, theirs, [("m", entry) for entry in made])
    rows = theirs.get_agent_messages(LOCATION, "m")
    assert not {"worker", "task", "error_type", "step"} & {name for row in rows for name in row}
    assert not {"tool", "args"} & set(theirs.get_team_messages(LOCATION, ["m"])[2])
    assert "phase_id" not in theirs.get_global_messages(LOCATION)[0]
    assert ours.get_agent_messages(LOCATION, "m") == made[:3]
    assert ours.get_team_messages(LOCATION, ["m"]) == [{**entry, "agent_key": "m"} for entry in made]
    assert ours.get_global_messages(LOCATION) == made[3:]


def test_different_a_value_comes_back_as_itself_and_what_was_not_given_is_absent(
    ours: DragomanMessageStore, theirs: Any
) -> None:
    fill(ours, theirs)
    row, entry = theirs.get_agent_messages(LOCATION, "orchestrator")[1], DATA[3][1]
    assert (row["args"], row["content"]) == ('{"to": "w1"}', None)
    assert ours.get_agent_messages(LOCATION, "orchestrator")[1] == entry


def test_different_an_entry_without_a_time_stays_where_it_was_said(ours: DragomanMessageStore, theirs: Any) -> None:
    made: list[Entry] = [
        {"type": "user_message", "content": "first", "timestamp": 1.0},
        {"type": "assistant_message", "content": "second"},
    ]
    fill(ours, theirs, [(None, entry) for entry in made])
    assert [row["content"] for row in theirs.get_conversation_messages(LOCATION)] == ["second", "first"]
    assert ours.get_conversation_messages(LOCATION) == made


def test_different_a_clock_that_steps_back_moves_nothing(ours: DragomanMessageStore, theirs: Any) -> None:
    made: list[Entry] = [
        {"type": "user_message", "content": "first", "timestamp": 7200.0},
        {"type": "assistant_message", "content": "second", "timestamp": 3601.0},
    ]
    fill(ours, theirs, [(None, entry) for entry in made])
    assert [row["content"] for row in theirs.get_conversation_messages(LOCATION)] == ["second", "first"]
    assert ours.get_conversation_messages(LOCATION) == made


def test_different_a_timestamp_of_zero_is_the_time(ours: DragomanMessageStore) -> None:
    ours.add_message(LOCATION, {"type": "user_message", "content": "x", "timestamp": 0})
    (entry,) = ours.get_conversation_messages(LOCATION)
    assert entry["timestamp"] == 0


def test_different_a_history_is_in_the_order_of_time_and_not_group_after_group(
    ours: DragomanMessageStore, theirs: Any
) -> None:
    fill(ours, theirs)
    grouped = [
        *theirs.get_conversation_messages(LOCATION),
        *theirs.get_agent_messages(LOCATION, "orchestrator"),
        *theirs.get_global_messages(LOCATION),
    ]
    times = [row["timestamp"] for row in grouped]
    assert times != sorted(times)
    for store in (ours, theirs):  # whoever keeps the entries
        memory = MessageStoreMemory(message_store=store, location=LOCATION, agent_key="orchestrator")
        assert [entry["timestamp"] for entry in memory.get_history()] == sorted(times)


def test_different_a_worker_is_not_shown_broadcasts_of_an_earlier_turn(ours: DragomanMessageStore, theirs: Any) -> None:
    fill(ours, theirs)
    grouped = [*theirs.get_agent_messages(LOCATION, "orchestrator"), *theirs.get_global_messages(LOCATION)]
    shown = WorkerHistoryFilter().filter_for_prompt
    assert [entry["type"] for entry in shown(grouped, {})] == ["global_observation"]
    memory = MessageStoreMemory(ours, LOCATION, "orchestrator")
    assert shown(memory.get_history(), {}) == []


def test_different_an_entry_that_is_in_two_views_is_in_the_history_once(
    ours: DragomanMessageStore, theirs: Any
) -> None:
    made: Entry = {"type": "synthesis", "content": "x", "from_manager": "m", "timestamp": 1.0}
    fill(ours, theirs, [("m", made)])
    both = [HierarchicalMessageStoreMemory(store, LOCATION, "o", ["m"]).get_history() for store in (ours, theirs)]
    assert [len(history) for history in both] == [1, 2]


def test_different_what_is_no_entry_cannot_be_stored(ours: DragomanMessageStore, theirs: Any) -> None:
    bad: Entry = {"type": "action", "content": "x"}
    insert(theirs.db, LOCATION, "a", bad)
    with pytest.raises(FormatError, match="entry 0: tool: required for action; args: required for action"):
        ours.add_message(LOCATION, bad, "a")
    assert ours.get_team_messages(LOCATION, ["a"]) == []


# --- memories --------------------------------------------------------------------------------------------------------


def test_a_manager_sees_the_conversation_its_own_doing_its_team_and_broadcasts(
    ours: DragomanMessageStore, theirs: Any
) -> None:
    fill(ours, theirs)
    memory = HierarchicalMessageStoreMemory(ours, LOCATION, "orchestrator", subordinates=["w1", "w2"])
    # A plan is of no view but that of a team, as in the example.
    expected = [
        {**entry, "agent_key": agent_key} if agent_key in ("w1", "w2") else entry
        for agent_key, entry in DATA
        if entry["type"] != "strategic_plan"
    ]
    assert memory.get_history() == expected
    merged = HierarchicalMessageStoreMemory(theirs, LOCATION, "orchestrator", ["w1", "w2"]).get_history()
    assert [entry["timestamp"] for entry in merged] == [entry["timestamp"] for entry in expected]


def test_a_memory_that_reads_does_not_write_and_one_that_writes_does(ours: DragomanMessageStore) -> None:
    entry = {"type": "task", "content": "x", "timestamp": 0}
    reading = MessageStoreMemory(ours, LOCATION, "a")
    reading.add(entry)
    assert reading.get_history() == []
    writing = WritingMessageStoreMemory(ours, LOCATION, "a")
    writing.add(entry)
    writing.add_global({"type": "global_observation", "content": "y"})
    assert reading.get_history() == [entry, {"type": "global_observation", "content": "y"}]
    assert MessageStoreMemory(ours, LOCATION, "b").get_history() == [{"type": "global_observation", "content": "y"}]


def test_the_messages_of_a_session_can_be_shown_as_entries_of_an_agent(database_location: StoreLocation) -> None:
    async def talk() -> None:
        async with database_location.open() as store:
            await store.create_session(LOCATION)
            call = "tu_01K4Q2000000000000000000AA"
            await store.append(
                LOCATION, [text_message("Look"), call_message(call), result_message(call), answer_message("Seen")]
            )

    asyncio.run(talk())
    with DragomanMessageStore(database_location.url, messages_as="assistant") as store:
        store.add_message(LOCATION, {"type": "global_observation", "content": "later"})
        kinds = [entry["type"] for entry in MessageStoreMemory(store, LOCATION, "assistant").get_history()]
        assert kinds == [
            *("user_message", "task", "action", "observation", "assistant_message", "final"),
            "global_observation",
        ]
        assert [entry["content"] for entry in store.get_conversation_messages(LOCATION, 1)] == ["Seen"]
        assert len(store.get_team_messages(LOCATION, ["assistant"])) == 4
        assert [e["type"] for e in MessageStoreMemory(store, LOCATION, "other").get_history()] == [
            *("user_message", "assistant_message", "global_observation"),
        ]
        assert store.get_conversation_messages("elsewhere") == []


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_it_can_be_used_from_many_threads_and_inside_a_running_loop(ours: DragomanMessageStore) -> None:
    entry = {"type": "observation", "content": "x"}
    with ThreadPoolExecutor(8) as pool:
        places = list(pool.map(lambda number: ours.add_message(LOCATION, entry, f"w{number % 3}"), range(60)))
    assert sorted(places) == list(range(1, 61))

    async def inside() -> int:
        return len(ours.get_team_messages(LOCATION, ["w0", "w1", "w2"]))

    assert asyncio.run(inside()) == 60


def test_what_was_added_is_there_for_another_store_at_once(database_location: StoreLocation) -> None:
    with DragomanMessageStore(database_location.url) as first, DragomanMessageStore(database_location.url) as second:
        first.add_message(LOCATION, DATA[0][1])
        assert second.get_conversation_messages(LOCATION) == [DATA[0][1]]


def test_a_store_that_was_closed_says_so_and_closing_twice_is_fine(store_location: StoreLocation) -> None:
    store = DragomanMessageStore(store_location.open())
    store.close()
    store.close()
    with pytest.raises(StoreUnusableError, match="the store is closed"):
        store.get_global_messages(LOCATION)


def test_a_store_that_cannot_be_opened_says_so_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(StoreUnusableError):
        DragomanMessageStore("nowhere:")
    with pytest.raises(StoreUnusableError):
        DragomanMessageStore("sqlite:////dev/null/chats.db")
    assert threading.active_count() == before


def test_a_store_that_was_forgotten_ends_by_itself(database_location: StoreLocation) -> None:
    store = DragomanMessageStore(database_location.url)
    thread = store._thread._thread
    store.add_message(LOCATION, DATA[0][1])
    del store
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    with DragomanMessageStore(database_location.url) as again:
        assert again.get_conversation_messages(LOCATION) == [DATA[0][1]]


def test_the_same_entries_are_there_for_asynchronous_code(database_location: StoreLocation) -> None:
    with DragomanMessageStore(database_location.url) as store:
        for agent_key, entry in DATA:
            store.add_message(LOCATION, entry, agent_key)

    async def history() -> list[Entry]:
        async with dragoman.open_store(database_location.url) as opened:
            return await opened.entries.history(LOCATION, "orchestrator")

    with DragomanMessageStore(database_location.url) as store:
        assert asyncio.run(history()) == MessageStoreMemory(store, LOCATION, "orchestrator").get_history()


def test_the_standard_library_s_rows_are_taken_as_entries(ours: DragomanMessageStore) -> None:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    row = connection.execute("SELECT 'task' AS type, 'x' AS content, NULL AS turn_id").fetchone()
    ours.add_message(LOCATION, dict(row), "a")
    connection.close()
    assert ours.get_agent_messages(LOCATION, "a") == [{"type": "task", "content": "x", "turn_id": None}]
