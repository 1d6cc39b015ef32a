"""Tests of trace entries on every engine: fields, views, order and damage."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.entries import AGENT_TYPES, CONVERSATION_TYPES, GLOBAL_TYPES, Entry
from dragoman.errors import CorruptDataError, FormatError, InputError, UnknownSessionError
from dragoman.store import Store
from dragoman.store.operation import Rows, operation
from tests.entries.examples import ALL_EXAMPLES
from tests.entries.test_bridge import random_entries
from tests.store.conftest import Clock, StoreLocation
from tests.store.messages import text_message

_numbers = itertools.count()
shared_store_settings = settings(suppress_health_check=[*HealthCheck], max_examples=settings().max_examples // 2)


@operation
def run_statement(sql: str, *arguments: Any) -> Any:
    return (yield sql, arguments)


async def execute(store: Store, sql: str, *arguments: Any) -> Rows:
    rows: Rows = await store._write(run_statement(sql, *arguments))
    return rows


@shared_store_settings
@given(st.lists(random_entries(), max_size=8))
def test_random_entries_round_trip_in_every_view(store: Store, runner: asyncio.Runner, entries: list[Entry]) -> None:
    async def check() -> None:
        location = f"job_{next(_numbers)}"
        assert await store.entries.append(location, entries, create=True) == list(range(1, len(entries) + 1))
        rows = await store.entries.read(location)
        assert [row.entry for row in rows] == entries
        assert [[type(value) for value in row.entry.values()] for row in rows] == [
            [type(value) for value in entry.values()] for entry in entries
        ]
        assert [row.agent_key for row in rows] == [entry.get("agent_key") for entry in entries]
        assert await store.entries.conversation(location) == [e for e in entries if e["type"] in CONVERSATION_TYPES]
        assert await store.entries.broadcast(location) == [e for e in entries if e["type"] in GLOBAL_TYPES]
        assert await store.entries.team(location, ["a", "b"]) == [e for e in entries if "agent_key" in e]
        own = [e for e in entries if e.get("agent_key") == "a" and e["type"] in AGENT_TYPES]
        assert await store.entries.agent(location, "a") == own
        for limit in (0, 1, 3):
            assert await store.entries.agent(location, "a", limit) == own[max(0, len(own) - limit) :]
        history = await store.entries.history(location, "a", ["b"])
        assert history == [
            e
            for e in entries
            if e["type"] in (*CONVERSATION_TYPES, *GLOBAL_TYPES) or e in own or e.get("agent_key") == "b"
        ]

    runner.run(check())


async def test_examples_survive_reopen(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        await store.entries.append("job_123", ALL_EXAMPLES, create=True)
    async with database_location.open() as store:
        assert [row.entry for row in await store.entries.read("job_123")] == ALL_EXAMPLES
        assert (await store.verify()).is_sound


async def test_entries_keep_insertion_order(store: Store) -> None:
    times: list[Any] = [5, None, 3, 0]
    entries = [{"type": "task", "content": n, "timestamp": time} for n, time in enumerate(times)]
    for entry in entries:
        await store.entries.append("job_1", entry, agent_key="a", create=True)
    assert await store.entries.agent("job_1", "a") == entries
    assert await store.entries.agent("job_1", "a", 2) == entries[2:]


async def test_agent_key_is_read_from_argument_or_entry(store: Store) -> None:
    await store.entries.append("job_1", {"type": "task", "content": 1, "agent_key": "b"}, create=True)
    await store.entries.append("job_1", {"type": "task", "content": 2}, agent_key="b")
    await store.entries.append("job_1", {"type": "task", "content": 3})
    assert [entry["content"] for entry in await store.entries.agent("job_1", "b")] == [1, 2]
    assert await store.entries.team("job_1", ["b"]) == [
        {"type": "task", "content": 1, "agent_key": "b"},
        {"type": "task", "content": 2, "agent_key": "b"},
    ]
    with pytest.raises(FormatError, match="it is of 'b', and was to be stored as of 'a'"):
        await store.entries.append("job_1", {"type": "task", "content": 4, "agent_key": "b"}, agent_key="a")


async def test_invalid_entry_is_rejected_without_rows(store: Store) -> None:
    fine = {"type": "task", "content": "x"}
    for invalid, code in (
        ({"type": "thought", "content": "x"}, "unknown_entry_type"),
        ({"type": "action", "tool": "x"}, "invalid_entry"),
        ({"type": "task", "content": "x", "agent_key": 7}, "invalid_entry"),
    ):
        with pytest.raises(FormatError, match="entry 1") as raised:
            await store.entries.append("job_1", [fine, invalid], create=True)
        assert raised.value.code == code
    with pytest.raises(FormatError, match="NUL"):
        await store.entries.append("job_1", fine, agent_key="a\0b", create=True)
    with pytest.raises(UnknownSessionError):
        await store.entries.append("job_1", fine)
    assert await store.list_sessions() == []
    with pytest.raises(InputError, match="limit"):
        await store.entries.conversation("job_1", -1)


async def test_empty_view_returns_no_entries(store: Store) -> None:
    assert await store.entries.append("job_1", [], create=True) == []
    assert await store.entries.history("job_1", "a", ["b"]) == []
    assert await store.entries.team("job_1", []) == []


async def test_large_team_is_supported(store: Store) -> None:
    keys = [f"w{number}" for number in range(700)]
    entries = [{"type": "task", "content": key, "agent_key": key} for key in keys]
    await store.entries.append("job_1", entries, create=True)
    assert await store.entries.team("job_1", keys + keys) == entries
    assert await store.entries.team("job_1", keys, 3) == entries[-3:]
    assert await store.entries.history("job_1", "w0", keys[1:], 3) == entries[-3:]


async def test_concurrent_writers_get_distinct_numbers(store: Store) -> None:
    async def write(number: int) -> list[int]:
        entries = [{"type": "observation", "content": [number, n]} for n in range(3)]
        return await store.entries.append("job_1", entries, agent_key=f"w{number}", create=True)

    numbers = await asyncio.gather(*map(write, range(20)))
    assert sorted(number for batch in numbers for number in batch) == list(range(1, 61))
    assert all(batch == list(range(batch[0], batch[0] + 3)) for batch in numbers)
    assert len(await store.entries.read("job_1")) == 60


async def test_entries_are_deleted_with_session_and_not_forked(store: Store, clock: Clock) -> None:
    store.clock = clock
    session = await store.create_session(user_id="u_1")
    await store.append(session.id, text_message("hello"))
    clock.move(hours=1)
    await store.entries.append(session.id, ALL_EXAMPLES)
    assert (await store.get_session(session.id)).updated_at == clock.now, "an entry updates the session"
    fork = await store.fork(session.id)
    assert await store.entries.read(fork.id) == []
    await store.erase_user("u_1")
    assert await execute(store, "SELECT count(*) FROM entries") == [(0,)]


async def test_damaged_entry_is_never_returned(store: Store) -> None:
    await store.entries.append("job_1", ALL_EXAMPLES, create=True)
    await execute(store, "UPDATE entries SET entry_json = replace(entry_json, 'Found 5', 'Found 6') WHERE seq = 2")
    with pytest.raises(CorruptDataError, match="session job_1, entry 2"):
        await store.entries.conversation("job_1")
    assert len(await store.entries.conversation("job_1", 0)) == 0
    await execute(store, "DELETE FROM entries WHERE seq = 5")
    assert [damage.what for damage in (await store.verify()).damage] == [
        "entry 2: its hash does not match its content",
        "entry 5 is missing",
    ]
