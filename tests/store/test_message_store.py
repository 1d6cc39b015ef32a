"""Tests of the framework's message store on every engine, and of its differences from the SQL example."""

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
# Agent key and entry: two turns of an orchestrator with two workers.
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
def dragoman_store(store_location: StoreLocation) -> Iterator[DragomanMessageStore]:
    with DragomanMessageStore(store_location.url) as opened:
        yield opened


@pytest.fixture
def example_store() -> Iterator[Any]:
    """The store of the specification's example, on sqlite3."""
    connection = open_database()
    yield DatabaseMessageStore(connection)
    connection.close()


def fill(dragoman_store: DragomanMessageStore, example_store: Any, data: list[tuple[str | None, Entry]] = DATA) -> None:
    for agent_key, entry in data:
        dragoman_store.add_message(LOCATION, entry, agent_key)
        insert(example_store.db, LOCATION, agent_key, entry)


def to_row(entry: Entry, columns: tuple[str, ...]) -> Entry:
    """Return an entry as a row of the example's table, with objects as JSON text."""
    row = {name: entry.get(name) for name in columns}
    return {name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()}


# --- equal behaviour -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_views_equal_those_of_sql_example(dragoman_store: DragomanMessageStore, example_store: Any, view: str) -> None:
    fill(dragoman_store, example_store)
    rows: list[Entry] = getattr(example_store, view)(*VIEWS[view])
    result: list[Entry] = getattr(dragoman_store, view)(*VIEWS[view])
    assert len(rows) > 1
    assert [to_row(entry, COLUMNS[view]) for entry in result] == rows


def test_unknown_location_is_empty_in_both_stores(dragoman_store: DragomanMessageStore, example_store: Any) -> None:
    for store in (dragoman_store, example_store):
        assert store.get_conversation_messages("elsewhere") == []
        assert store.get_team_messages(LOCATION, []) == []


# --- differences -----------------------------------------------------------------------------------------------------


def test_difference_limit_returns_newest_entries(dragoman_store: DragomanMessageStore, example_store: Any) -> None:
    fill(dragoman_store, example_store)
    assert [row["content"] for row in example_store.get_conversation_messages(LOCATION, 2)] == [
        "List all tables",
        "One table",
    ]
    result = dragoman_store.get_conversation_messages(LOCATION, 2)
    assert [entry["content"] for entry in result] == ["One table", "And views?"]
    for view, arguments in VIEWS.items():
        whole = getattr(dragoman_store, view)(*arguments)
        assert getattr(dragoman_store, view)(*arguments, limit=2) == whole[-2:]


def test_difference_limit_zero_returns_no_entries(dragoman_store: DragomanMessageStore, example_store: Any) -> None:
    fill(dragoman_store, example_store)
    assert len(example_store.get_conversation_messages(LOCATION, 0)) == 3
    assert dragoman_store.get_conversation_messages(LOCATION, 0) == []
    with pytest.raises(InputError, match="limit"):
        dragoman_store.get_conversation_messages(LOCATION, -1)


def test_difference_every_field_is_stored(dragoman_store: DragomanMessageStore, example_store: Any) -> None:
    entries = [
        {"type": "delegation", "worker": "w1", "task": "List", "timestamp": 1.0},
        {"type": "error", "content": "x", "error_type": "ConnectionError", "timestamp": 2.0},
        {"type": "action", "tool": "t", "args": {"a": 1}, "timestamp": 3.0, "step": 1, "script": True},
        {"type": "synthesis", "content": "x", "from_manager": "m", "phase_id": 0, "timestamp": 4.0},
    ]
    fill(dragoman_store, example_store, [("m", entry) for entry in entries])
    rows = example_store.get_agent_messages(LOCATION, "m")
    assert not {"worker", "task", "error_type", "step"} & {name for row in rows for name in row}
    assert not {"tool", "args"} & set(example_store.get_team_messages(LOCATION, ["m"])[2])
    assert "phase_id" not in example_store.get_global_messages(LOCATION)[0]
    assert dragoman_store.get_agent_messages(LOCATION, "m") == entries[:3]
    assert dragoman_store.get_team_messages(LOCATION, ["m"]) == [{**entry, "agent_key": "m"} for entry in entries]
    assert dragoman_store.get_global_messages(LOCATION) == entries[3:]


def test_difference_values_keep_type_and_missing_ones_are_absent(
    dragoman_store: DragomanMessageStore, example_store: Any
) -> None:
    fill(dragoman_store, example_store)
    row, entry = example_store.get_agent_messages(LOCATION, "orchestrator")[1], DATA[3][1]
    assert (row["args"], row["content"]) == ('{"to": "w1"}', None)
    assert dragoman_store.get_agent_messages(LOCATION, "orchestrator")[1] == entry


def test_difference_entry_without_timestamp_keeps_position(
    dragoman_store: DragomanMessageStore, example_store: Any
) -> None:
    entries: list[Entry] = [
        {"type": "user_message", "content": "first", "timestamp": 1.0},
        {"type": "assistant_message", "content": "second"},
    ]
    fill(dragoman_store, example_store, [(None, entry) for entry in entries])
    assert [row["content"] for row in example_store.get_conversation_messages(LOCATION)] == ["second", "first"]
    assert dragoman_store.get_conversation_messages(LOCATION) == entries


def test_difference_backward_clock_step_keeps_order(dragoman_store: DragomanMessageStore, example_store: Any) -> None:
    entries: list[Entry] = [
        {"type": "user_message", "content": "first", "timestamp": 7200.0},
        {"type": "assistant_message", "content": "second", "timestamp": 3601.0},
    ]
    fill(dragoman_store, example_store, [(None, entry) for entry in entries])
    assert [row["content"] for row in example_store.get_conversation_messages(LOCATION)] == ["second", "first"]
    assert dragoman_store.get_conversation_messages(LOCATION) == entries


def test_difference_zero_timestamp_is_stored(dragoman_store: DragomanMessageStore) -> None:
    dragoman_store.add_message(LOCATION, {"type": "user_message", "content": "x", "timestamp": 0})
    (entry,) = dragoman_store.get_conversation_messages(LOCATION)
    assert entry["timestamp"] == 0


def test_difference_history_is_chronological(dragoman_store: DragomanMessageStore, example_store: Any) -> None:
    fill(dragoman_store, example_store)
    grouped = [
        *example_store.get_conversation_messages(LOCATION),
        *example_store.get_agent_messages(LOCATION, "orchestrator"),
        *example_store.get_global_messages(LOCATION),
    ]
    times = [row["timestamp"] for row in grouped]
    assert times != sorted(times)
    for store in (dragoman_store, example_store):  # with either store
        memory = MessageStoreMemory(message_store=store, location=LOCATION, agent_key="orchestrator")
        assert [entry["timestamp"] for entry in memory.get_history()] == sorted(times)


def test_difference_worker_receives_no_broadcasts_of_earlier_turn(
    dragoman_store: DragomanMessageStore, example_store: Any
) -> None:
    fill(dragoman_store, example_store)
    grouped = [
        *example_store.get_agent_messages(LOCATION, "orchestrator"),
        *example_store.get_global_messages(LOCATION),
    ]
    filter_history = WorkerHistoryFilter().filter_for_prompt
    assert [entry["type"] for entry in filter_history(grouped, {})] == ["global_observation"]
    memory = MessageStoreMemory(dragoman_store, LOCATION, "orchestrator")
    assert filter_history(memory.get_history(), {}) == []


def test_difference_entry_of_two_views_appears_once(dragoman_store: DragomanMessageStore, example_store: Any) -> None:
    entries: Entry = {"type": "synthesis", "content": "x", "from_manager": "m", "timestamp": 1.0}
    fill(dragoman_store, example_store, [("m", entries)])
    histories = [
        HierarchicalMessageStoreMemory(store, LOCATION, "o", ["m"]).get_history()
        for store in (dragoman_store, example_store)
    ]
    assert [len(history) for history in histories] == [1, 2]


def test_difference_invalid_entry_is_rejected(dragoman_store: DragomanMessageStore, example_store: Any) -> None:
    invalid: Entry = {"type": "action", "content": "x"}
    insert(example_store.db, LOCATION, "a", invalid)
    with pytest.raises(FormatError, match="entry 0: tool: required for action; args: required for action"):
        dragoman_store.add_message(LOCATION, invalid, "a")
    assert dragoman_store.get_team_messages(LOCATION, ["a"]) == []


# --- memories --------------------------------------------------------------------------------------------------------


def test_manager_history_contains_conversation_team_and_broadcasts(
    dragoman_store: DragomanMessageStore, example_store: Any
) -> None:
    fill(dragoman_store, example_store)
    memory = HierarchicalMessageStoreMemory(dragoman_store, LOCATION, "orchestrator", subordinates=["w1", "w2"])
    # A plan is only in the view of a team, as in the example.
    expected = [
        {**entry, "agent_key": agent_key} if agent_key in ("w1", "w2") else entry
        for agent_key, entry in DATA
        if entry["type"] != "strategic_plan"
    ]
    assert memory.get_history() == expected
    merged = HierarchicalMessageStoreMemory(example_store, LOCATION, "orchestrator", ["w1", "w2"]).get_history()
    assert [entry["timestamp"] for entry in merged] == [entry["timestamp"] for entry in expected]


def test_only_writing_memory_stores_entries(dragoman_store: DragomanMessageStore) -> None:
    entry = {"type": "task", "content": "x", "timestamp": 0}
    reader = MessageStoreMemory(dragoman_store, LOCATION, "a")
    reader.add(entry)
    assert reader.get_history() == []
    writer = WritingMessageStoreMemory(dragoman_store, LOCATION, "a")
    writer.add(entry)
    writer.add_global({"type": "global_observation", "content": "y"})
    assert reader.get_history() == [entry, {"type": "global_observation", "content": "y"}]
    assert MessageStoreMemory(dragoman_store, LOCATION, "b").get_history() == [
        {"type": "global_observation", "content": "y"}
    ]


def test_session_messages_are_read_as_entries(database_location: StoreLocation) -> None:
    async def write_messages() -> None:
        async with database_location.open() as store:
            await store.create_session(LOCATION)
            call = "tu_01K4Q2000000000000000000AA"
            await store.append(
                LOCATION, [text_message("Look"), call_message(call), result_message(call), answer_message("Seen")]
            )

    asyncio.run(write_messages())
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


# --- lifecycle -------------------------------------------------------------------------------------------------------


def test_store_works_in_threads_and_running_loop(dragoman_store: DragomanMessageStore) -> None:
    entry = {"type": "observation", "content": "x"}
    with ThreadPoolExecutor(8) as pool:
        numbers = list(
            pool.map(lambda number: dragoman_store.add_message(LOCATION, entry, f"w{number % 3}"), range(60))
        )
    assert sorted(numbers) == list(range(1, 61))

    async def count_entries() -> int:
        return len(dragoman_store.get_team_messages(LOCATION, ["w0", "w1", "w2"]))

    assert asyncio.run(count_entries()) == 60


def test_added_entry_is_visible_to_other_store(database_location: StoreLocation) -> None:
    with DragomanMessageStore(database_location.url) as first, DragomanMessageStore(database_location.url) as second:
        first.add_message(LOCATION, DATA[0][1])
        assert second.get_conversation_messages(LOCATION) == [DATA[0][1]]


def test_closed_store_raises_and_close_is_idempotent(store_location: StoreLocation) -> None:
    store = DragomanMessageStore(store_location.open())
    store.close()
    store.close()
    with pytest.raises(StoreUnusableError, match="the store is closed"):
        store.get_global_messages(LOCATION)


def test_failed_open_raises_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(StoreUnusableError):
        DragomanMessageStore("nowhere:")
    with pytest.raises(StoreUnusableError):
        DragomanMessageStore("sqlite:////dev/null/chats.db")
    assert threading.active_count() == before


def test_unreferenced_store_stops_its_thread(database_location: StoreLocation) -> None:
    store = DragomanMessageStore(database_location.url)
    thread = store._thread._thread
    store.add_message(LOCATION, DATA[0][1])
    del store
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    with DragomanMessageStore(database_location.url) as reopened:
        assert reopened.get_conversation_messages(LOCATION) == [DATA[0][1]]


def test_entries_are_visible_to_asynchronous_store(database_location: StoreLocation) -> None:
    with DragomanMessageStore(database_location.url) as store:
        for agent_key, entry in DATA:
            store.add_message(LOCATION, entry, agent_key)

    async def read_history() -> list[Entry]:
        async with dragoman.open_store(database_location.url) as opened:
            return await opened.entries.history(LOCATION, "orchestrator")

    with DragomanMessageStore(database_location.url) as store:
        assert asyncio.run(read_history()) == MessageStoreMemory(store, LOCATION, "orchestrator").get_history()


def test_sqlite3_rows_are_stored_as_entries(dragoman_store: DragomanMessageStore) -> None:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    row = connection.execute("SELECT 'task' AS type, 'x' AS content, NULL AS turn_id").fetchone()
    dragoman_store.add_message(LOCATION, dict(row), "a")
    connection.close()
    assert dragoman_store.get_agent_messages(LOCATION, "a") == [{"type": "task", "content": "x", "turn_id": None}]
