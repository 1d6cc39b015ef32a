"""Trace entries in a store: every field, every view, every engine."""

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
one_store = settings(suppress_health_check=[*HealthCheck], max_examples=settings().max_examples // 2)


@operation
def asked(sql: str, *arguments: Any) -> Any:
    return (yield sql, arguments)


async def changed(store: Store, sql: str, *arguments: Any) -> Rows:
    rows: Rows = await store._write(asked(sql, *arguments))
    return rows


@one_store
@given(st.lists(random_entries(), max_size=8))
def test_every_entry_comes_back_with_every_field(store: Store, runner: asyncio.Runner, made: list[Entry]) -> None:
    async def law() -> None:
        place = f"job_{next(_numbers)}"
        assert await store.entries.append(place, made, create=True) == list(range(1, len(made) + 1))
        rows = await store.entries.read(place)
        assert [row.entry for row in rows] == made
        assert [[type(value) for value in row.entry.values()] for row in rows] == [
            [type(value) for value in entry.values()] for entry in made
        ]
        assert [row.agent_key for row in rows] == [entry.get("agent_key") for entry in made]
        assert await store.entries.conversation(place) == [e for e in made if e["type"] in CONVERSATION_TYPES]
        assert await store.entries.broadcast(place) == [e for e in made if e["type"] in GLOBAL_TYPES]
        assert await store.entries.team(place, ["a", "b"]) == [e for e in made if "agent_key" in e]
        own = [e for e in made if e.get("agent_key") == "a" and e["type"] in AGENT_TYPES]
        assert await store.entries.agent(place, "a") == own
        for limit in (0, 1, 3):
            assert await store.entries.agent(place, "a", limit) == own[max(0, len(own) - limit) :]
        history = await store.entries.history(place, "a", ["b"])
        assert history == [
            e
            for e in made
            if e["type"] in (*CONVERSATION_TYPES, *GLOBAL_TYPES) or e in own or e.get("agent_key") == "b"
        ]

    runner.run(law())


async def test_the_examples_survive_closing_and_opening(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        await store.entries.append("job_123", ALL_EXAMPLES, create=True)
    async with database_location.open() as store:
        assert [row.entry for row in await store.entries.read("job_123")] == ALL_EXAMPLES
        assert (await store.verify()).is_sound


async def test_entries_keep_the_order_in_which_they_were_stored(store: Store) -> None:
    times: list[Any] = [5, None, 3, 0]
    made = [{"type": "task", "content": n, "timestamp": time} for n, time in enumerate(times)]
    for entry in made:
        await store.entries.append("job_1", entry, agent_key="a", create=True)
    assert await store.entries.agent("job_1", "a") == made
    assert await store.entries.agent("job_1", "a", 2) == made[2:]


async def test_the_agent_is_the_one_that_is_named_or_that_the_entry_names(store: Store) -> None:
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


async def test_what_is_no_entry_is_refused_and_nothing_is_stored(store: Store) -> None:
    fine = {"type": "task", "content": "x"}
    for bad, code in (
        ({"type": "thought", "content": "x"}, "unknown_entry_type"),
        ({"type": "action", "tool": "x"}, "invalid_entry"),
        ({"type": "task", "content": "x", "agent_key": 7}, "invalid_entry"),
    ):
        with pytest.raises(FormatError, match="entry 1") as raised:
            await store.entries.append("job_1", [fine, bad], create=True)
        assert raised.value.code == code
    with pytest.raises(FormatError, match="NUL"):
        await store.entries.append("job_1", fine, agent_key="a\0b", create=True)
    with pytest.raises(UnknownSessionError):
        await store.entries.append("job_1", fine)
    assert await store.list_sessions() == []
    with pytest.raises(InputError, match="limit"):
        await store.entries.conversation("job_1", -1)


async def test_a_view_of_nothing_is_empty(store: Store) -> None:
    assert await store.entries.append("job_1", [], create=True) == []
    assert await store.entries.history("job_1", "a", ["b"]) == []
    assert await store.entries.team("job_1", []) == []


async def test_a_team_may_be_large(store: Store) -> None:
    keys = [f"w{number}" for number in range(700)]
    made = [{"type": "task", "content": key, "agent_key": key} for key in keys]
    await store.entries.append("job_1", made, create=True)
    assert await store.entries.team("job_1", keys + keys) == made
    assert await store.entries.team("job_1", keys, 3) == made[-3:]
    assert await store.entries.history("job_1", "w0", keys[1:], 3) == made[-3:]


async def test_writers_at_once_lose_nothing_and_share_no_place(store: Store) -> None:
    async def write(number: int) -> list[int]:
        made = [{"type": "observation", "content": [number, n]} for n in range(3)]
        return await store.entries.append("job_1", made, agent_key=f"w{number}", create=True)

    places = await asyncio.gather(*map(write, range(20)))
    assert sorted(place for some in places for place in some) == list(range(1, 61))
    assert all(some == list(range(some[0], some[0] + 3)) for some in places)
    assert len(await store.entries.read("job_1")) == 60


async def test_entries_go_with_their_session_and_a_fork_begins_without(store: Store, clock: Clock) -> None:
    store.clock = clock
    session = await store.create_session(user_id="u_1")
    await store.append(session.id, text_message("hello"))
    clock.move(hours=1)
    await store.entries.append(session.id, ALL_EXAMPLES)
    assert (await store.get_session(session.id)).updated_at == clock.now, "something happened in it"
    fork = await store.fork(session.id)
    assert await store.entries.read(fork.id) == []
    await store.erase_user("u_1")
    assert await changed(store, "SELECT count(*) FROM entries") == [(0,)]


async def test_an_entry_that_was_damaged_is_never_served(store: Store) -> None:
    await store.entries.append("job_1", ALL_EXAMPLES, create=True)
    await changed(store, "UPDATE entries SET entry_json = replace(entry_json, 'Found 5', 'Found 6') WHERE seq = 2")
    with pytest.raises(CorruptDataError, match="session job_1, entry 2"):
        await store.entries.conversation("job_1")
    assert len(await store.entries.conversation("job_1", 0)) == 0
    await changed(store, "DELETE FROM entries WHERE seq = 5")
    assert [damage.what for damage in (await store.verify()).damage] == [
        "entry 2: its hash does not match its content",
        "entry 5 is not there",
    ]
