"""Tests of sessions on every engine: creation, lookup, changes and lists."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from dragoman.errors import (
    ConflictError,
    FormatError,
    InputError,
    UnknownSessionError,
)
from dragoman.store import Session, Store
from dragoman.store.sessions import list_sessions
from tests.store.conftest import Clock, StoreLocation
from tests.store.faults.conftest import rng
from tests.store.messages import text_message
from tests.store.test_attachment_refs import measure_costs

__all__ = ["rng"]


async def test_session_fields_are_stored(store: Store, clock: Clock) -> None:
    store.clock = clock
    session = await store.create_session(
        title="Ärger 🎉",
        workspace_path="/srv/work",
        active_model="a:b",
        routing_policy={"rules": [{"when": "code", "use": "a:c"}]},
        user_id="u",
        team_id="t",
        metadata={"n": 1.5, "big": 10**30, "deep": [{"x": None}]},
    )
    assert session.id.startswith("sess_")
    assert session.created_at == session.updated_at == clock.now
    assert await store.get_session(session.id) == session


async def test_unknown_session_raises(store: Store) -> None:
    for operation in (
        store.get_session("none"),
        store.read("none"),
        store.tail("none"),
        store.append("none", text_message("x")),
        store.rename_session("none", "x"),
        store.fork("none"),
        store.tool_calls("none"),
        store.tool_ids("none"),
        store.save_tool_ids("none", [("a", "b", "c")]),
        store.turns.acquire("none", "me"),
    ):
        with pytest.raises(UnknownSessionError):
            await operation


async def test_custom_session_id_is_unique(store: Store) -> None:
    assert (await store.create_session("mine")).id == "mine"
    with pytest.raises(ConflictError) as caught:
        await store.create_session("mine", title="again")
    assert caught.value.code == "session_exists"
    assert (await store.get_session("mine")).title is None


async def test_one_of_concurrent_creates_succeeds(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        outcomes = await asyncio.gather(
            *(store.create_session("mine") for store in (first_store, second_store) * 4), return_exceptions=True
        )
    assert sum(isinstance(outcome, Session) for outcome in outcomes) == 1
    assert {type(outcome) for outcome in outcomes} == {Session, ConflictError}


async def test_change_session_updates_passed_fields_only(store: Store, clock: Clock) -> None:
    store.clock = clock
    session = await store.create_session(title="old", active_model="a:b", metadata={"k": 1}, user_id="u")
    clock.move(seconds=1)
    renamed = await store.rename_session(session.id, "new")
    assert (renamed.title, renamed.active_model, renamed.metadata) == ("new", "a:b", {"k": 1})
    assert renamed.updated_at == clock.now
    changed = await store.change_session(
        session.id, active_model=None, metadata={}, team_id="t", routing_policy={"a": []}
    )
    assert (changed.active_model, changed.metadata, changed.team_id) == (None, {}, "t")
    assert (changed.user_id, changed.routing_policy) == ("u", {"a": []})
    assert await store.get_session(session.id) == changed


async def test_sessions_are_listed_by_last_change(store: Store, clock: Clock) -> None:
    store.clock = clock
    created = []
    for number in range(7):
        created.append(await store.create_session(user_id="ab"[number % 2], team_id="t" if number > 4 else None))
        clock.move(seconds=number % 3)  # some with equal times
    clock.move(seconds=1)
    await store.append(created[2].id, text_message("x"))
    everything = await store.list_sessions()
    assert everything[0].id == created[2].id
    order = [(session.updated_at, session.id) for session in everything]
    assert order == sorted(order, reverse=True)
    pages, last = list[str](), None
    while page := await store.list_sessions(limit=3, before=last):
        pages += [session.id for session in page]
        last = page[-1]
    assert pages == [session.id for session in everything]
    assert {session.id for session in await store.list_sessions(user_id="b")} == {
        created[1].id,
        created[3].id,
        created[5].id,
    }
    assert [session.id for session in await store.list_sessions(user_id="b", team_id="t")] == [created[5].id]
    assert await store.list_sessions(user_id="c") == []


async def test_pages_are_ordered_with_equal_times(store: Store, clock: Clock, rng: random.Random) -> None:
    store.clock = clock
    created = [await store.create_session(user_id=rng.choice("ab")) for _ in range(12)]
    for _ in range(40):
        clock.move(seconds=rng.choice((-3, 0, 0.001, 4, 11)))
        session = rng.choice(created)
        if rng.random() < 0.5:
            await store.append(session.id, text_message("more"))
        else:
            await store.rename_session(session.id, "another title")
    wanted = sorted([await store.get_session(item.id) for item in created], key=_sort_key, reverse=True)
    for size in (1, 2, 5, 12, 50):
        for user_id in (None, "a"):
            pages = [item async for item in _list_pages(store, size, user_id)]
            assert pages == [item for item in wanted if user_id in (None, item.user_id)]
    assert (await store.verify()).is_sound


def _sort_key(session: Session) -> tuple[datetime, str]:
    return session.updated_at, session.id


async def _list_pages(store: Store, size: int, user_id: str | None) -> AsyncIterator[Session]:
    last = None
    while page := await store.list_sessions(limit=size, user_id=user_id, before=last):
        assert len(page) <= size
        for last in page:
            yield last


async def test_page_cost_is_independent_of_session_count(database_location: StoreLocation) -> None:
    costs = []
    async with database_location.open() as store:
        clock = store.clock = Clock()
        made: list[Session] = []
        for count in (60, 1_000):
            while len(made) < count:
                clock.move(seconds=20)
                made.append(await store.create_session(user_id="ann"))
            before = (made[-5].updated_at, made[-5].id)
            asked = (list_sessions(None, None, None, 10), list_sessions("ann", None, before, 10))
            costs.append([sum(await measure_costs(database_location, store, item)) for item in asked])
    assert [round(many / few) for few, many in zip(*costs, strict=True)] == [1, 1]


@pytest.mark.parametrize("invalid", [{"a": float("nan")}, {1: "a"}, {"a": "\ud800"}, {"a": {1, 2}}], ids=repr)
async def test_metadata_that_is_not_json_is_rejected(store: Store, invalid: Any) -> None:
    with pytest.raises(FormatError):
        await store.create_session("s", metadata=invalid)
    await store.create_session("s")
    with pytest.raises(FormatError):
        await store.change_session("s", routing_policy=invalid)


@pytest.mark.parametrize("invalid", ["a\0b", "a\ud800b"], ids=ascii)
async def test_unsupported_names_are_rejected_by_every_engine(store: Store, invalid: str) -> None:
    session = await store.create_session()
    for asked in (
        store.create_session(invalid),
        store.create_session(title=invalid),
        store.rename_session(session.id, invalid),
        store.get_session(invalid),
        store.append(session.id, text_message("x"), idempotency_key=invalid),
        store.turns.acquire(session.id, invalid),
        store.save_tool_ids(session.id, [("a", "b", invalid)]),
        store.list_sessions(user_id=invalid),
    ):
        with pytest.raises(FormatError):
            await asked
    assert await store.read(session.id) == []
    assert (await store.list_sessions()) == [session]


async def test_session_is_found_by_id_prefix_or_suffix(store: Store) -> None:
    made = await store.create_session()
    other = await store.create_session("of-my-own")
    for part in (made.id, made.id[:20], made.id[5:20], made.id[-6:], made.id[-6:].lower()):
        assert [session.id for session in await store.find_sessions(part)] == [made.id]
    assert [session.id for session in await store.find_sessions("OF-MY")] == [other.id]
    assert [session.id for session in await store.find_sessions("own")] == [other.id]


async def test_id_substring_and_wildcards_find_no_session(store: Store) -> None:
    await store.create_session("of-my-own")
    for part in ("my", "%", "_", "of%", "o'r", "of-my-own-and-more"):
        assert await store.find_sessions(part) == []


async def test_matching_sessions_are_newest_first_and_limited(store: Store) -> None:
    made = [(await store.create_session(f"like-{number}")).id for number in range(5)]
    await store.rename_session(made[2], "changed last")
    found = [session.id for session in await store.find_sessions("like-", limit=3)]
    assert found[0] == made[2]
    assert len(found) == 3


async def test_id_with_control_character_is_rejected(store: Store) -> None:
    for invalid in ("a/b\n", "a\x1b[2J", "\x7f", "a\u2028b"):
        with pytest.raises(FormatError, match="control character"):
            await store.create_session(invalid)
        with pytest.raises(FormatError, match="control character"):
            await store.entries.append(invalid, {"type": "final", "content": "x"}, create=True)
    assert await store.list_sessions() == []


async def test_negative_limit_is_rejected(store: Store) -> None:
    await store.create_session("sess_1")
    assert await store.list_sessions(limit=0) == []
    for asked in (store.list_sessions(limit=-1), store.find_sessions("sess", limit=-1)):
        with pytest.raises(InputError, match="limit is -1"):
            await asked


async def test_invalid_arguments_are_rejected_with_hint(store: Store) -> None:
    await store.create_session("sess_1")
    wrong: list[Any] = ["hello", 5, None, {"role": "user"}, [text_message("x"), "hello"]]
    for given in wrong:
        with pytest.raises(InputError, match=r"is not a message\. Append a dragoman\.Message"):
            await store.append("sess_1", given)
    group: Any = "nothing"
    for asked in (store.costs.totals(group), store.costs.totals(group, version="v")):
        with pytest.raises(InputError, match="Group by one of session, user"):
            await asked
