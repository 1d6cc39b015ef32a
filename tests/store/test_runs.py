"""Runs and what they tell, on every engine: numbers without a gap, one run at a time, nothing told by a dead worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from dragoman.errors import ConflictError, DragomanError, UnknownSessionError
from dragoman.message import Message, MessageMetadata, Role, TextBlock
from dragoman.store import Store, open_store
from dragoman.store.operation import FOR_UPDATE
from dragoman.store.runs import OLD_RUNS, Run, RunEnd, RunEventPage, RunExistsError
from tests.store.conftest import Clock, StoreLocation, pass_time

HASH = b"h" * 32


async def begin(store: Store, session: str, run: str, **given: Any) -> Run:
    wanted = store.runs.new(session, run, **{"request_hash": HASH, "owner": "one", **given})
    return await store.runs.start(wanted, alive_s=20)


async def append(store: Store, session: str, run: str, after: int, events: list[str], **given: RunEnd) -> bool:
    found = await store.runs.get(session, run)
    assert found is not None
    if not given:
        return await store.runs.append(found, after, events)
    return await store.runs.end(found, after, events, given["end"])


def texts(told: RunEventPage) -> list[tuple[int, str, str]]:
    return [(event.number, event.run_id, event.json) for event in told.events]


async def test_events_are_counted_through_a_session_whatever_run_they_are_of(store: Store) -> None:
    session = (await store.create_session()).id
    begun = await begin(store, session, "a")
    assert (begun.first_number, begun.last_number) == (1, 0)
    assert await append(store, session, "a", 0, ["1", "2"])
    assert await append(store, session, "a", 2, ["3"], end=RunEnd("finished"))
    assert (await begin(store, session, "b")).first_number == 4
    assert await append(store, session, "b", 3, ["4"])
    told = await store.runs.events(session)
    assert texts(told) == [(1, "a", "1"), (2, "a", "2"), (3, "a", "3"), (4, "b", "4")]
    assert told.latest is not None
    assert (told.latest.run_id, told.latest.is_running) == ("b", True)
    for after in range(6):
        assert [number for number, _, _ in texts(await store.runs.events(session, after))] == [*range(after + 1, 5)]
    assert texts(await store.runs.events(session, 1, limit=1)) == [(2, "a", "2")]


async def test_what_comes_too_late_or_twice_is_not_stored(store: Store) -> None:
    session = (await store.create_session()).id
    await begin(store, session, "a")
    assert await append(store, session, "a", 0, ["1"])
    assert not await append(store, session, "a", 0, ["1"])
    assert not await append(store, session, "a", 5, ["6"])
    assert await append(store, session, "a", 1, [], end=RunEnd("cancelled"))
    assert not await append(store, session, "a", 1, ["2"])
    assert texts(await store.runs.events(session)) == [(1, "a", "1")]


async def test_repeated_request_returns_same_run(store: Store) -> None:
    session = (await store.create_session()).id
    first = await begin(store, session, "a", idempotency_key="k")
    for given in ({"run": "a", "owner": "two"}, {"run": "other", "idempotency_key": "k"}):
        with pytest.raises(RunExistsError) as existing:
            await begin(store, session, **given)
        assert existing.value.run == first
    for named in ({"run": "a"}, {"run": "other", "idempotency_key": "k"}):
        with pytest.raises(ConflictError) as caught:
            await begin(store, session, request_hash=b"x" * 32, **named)
        assert caught.value.code == "idempotency_key_reused"


async def test_one_run_at_a_time(store: Store) -> None:
    session = (await store.create_session()).id
    await begin(store, session, "a")
    with pytest.raises(ConflictError) as caught:
        await begin(store, session, "b")
    assert caught.value.code == "run_in_progress"
    assert await append(store, session, "a", 0, ["1"], end=RunEnd("finished"))
    await begin(store, session, "b")
    assert await store.runs.get(session, "b") == await store.runs.latest(session) is not None
    with pytest.raises(UnknownSessionError):
        await begin(store, "nobody", "a")


async def test_what_an_interrupted_run_waits_for_is_kept(store: Store) -> None:
    session = (await store.create_session()).id
    await begin(store, session, "a")
    await append(store, session, "a", 0, ["1"], end=RunEnd("interrupted", ({"id": "int-1", "reason": "tool_call"},)))
    run = await store.runs.latest(session)
    assert run is not None
    assert (run.status, run.interrupts) == ("interrupted", ({"id": "int-1", "reason": "tool_call"},))
    assert run.ended_at is not None


async def test_a_cancel_reaches_the_worker_through_the_store(store: Store) -> None:
    session = (await store.create_session()).id
    assert await store.runs.cancel(session) is None
    await begin(store, session, "a")
    assert await store.runs.to_cancel("one") == []
    assert await store.runs.cancel(session, "other") is None
    asked = await store.runs.cancel(session)
    assert asked is not None
    assert asked.cancel_at is not None
    again = await store.runs.cancel(session, "a")
    assert again == asked
    assert await store.runs.to_cancel("one") == [(session, "a")]
    assert await store.runs.to_cancel("two") == []


async def test_a_run_whose_worker_fell_silent_may_be_ended_by_others(store: Store) -> None:
    store.clock = clock = Clock()
    session = (await store.create_session()).id
    run = await begin(store, session, "a")
    await append(store, session, "a", 0, ["1"])
    await pass_time(store, seconds=15)
    await store.runs.heartbeat("one", 20)
    await pass_time(store, seconds=15)
    for step in (timedelta(days=1), timedelta(days=-2)):  # which somebody sets the wall clock by
        clock.now += step
        assert await store.runs.expired() == []
        assert not await store.runs.fail_expired(run, '"dead"')
    await pass_time(store, seconds=15)
    assert [one.run_id for one in await store.runs.expired()] == ["a"]
    assert await store.runs.fail_expired(run, '"dead"')
    assert not await store.runs.fail_expired(run, '"dead"')
    assert not await append(store, session, "a", 1, ["2"])
    assert texts(await store.runs.events(session)) == [(1, "a", "1"), (2, "a", '"dead"')]
    ended = await store.runs.get(session, "a")
    assert ended is not None
    assert ended.status == "error"
    assert (await begin(store, session, "b")).first_number == 3


async def test_old_events_are_swept_and_numbers_go_on(store: Store) -> None:
    store.clock = clock = Clock()
    session = (await store.create_session()).id
    await begin(store, session, "a")
    await append(store, session, "a", 0, ["1", "2"], end=RunEnd("finished"))
    clock.now += timedelta(days=8)
    await begin(store, session, "b")
    await append(store, session, "b", 2, ["3"])
    assert await store.runs.delete_old_events() == 1
    assert await store.runs.delete_old_events() == 0
    assert texts(await store.runs.events(session)) == [(3, "b", "3")]
    clock.now += timedelta(days=8)
    assert await store.runs.delete_old_events() == 0  # it is running still


async def test_old_events_are_deleted_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.store.runs._OLD_RUN_PAGE", 2)
    store.clock = clock = Clock()
    session = (await store.create_session()).id
    for number in range(5):
        await begin(store, session, f"r{number}")
        ends = {} if number == 4 else {"end": RunEnd("finished")}
        await append(store, session, f"r{number}", number, [str(number + 1)], **ends)
    clock.now += timedelta(days=8)
    assert await store.runs.delete_old_events() == 4
    assert texts(await store.runs.events(session)) == [(5, "r4", "5")]
    assert await append(store, session, "r4", 5, ["6"], end=RunEnd("finished"))
    clock.now += timedelta(days=8)
    assert await store.runs.delete_old_events() == 2
    assert await store.runs.delete_old_events() == 0


async def test_old_events_are_found_by_the_end_of_their_run(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    async with open_store(f"sqlite:///{path}"):
        pass
    connection = apsw.Connection(str(path))
    rows = connection.execute(f"EXPLAIN QUERY PLAN {OLD_RUNS.removesuffix(FOR_UPDATE)}", (0, 5)).fetchall()
    connection.close()
    assert [row[3] for row in rows] == ["SEARCH runs USING INDEX runs_by_end (ended_at<?)"]


async def test_a_session_takes_its_runs_along_and_a_fork_has_none(store: Store) -> None:
    session = (await store.create_session()).id
    await store.append(session, said("x"))
    await begin(store, session, "a")
    await append(store, session, "a", 0, ["1"])
    fork = await store.fork(session)
    assert (await store.runs.events(fork.id)).events == ()
    await store.delete_session(session)
    assert await store.runs.get(session, "a") is None
    assert (await store.runs.events(session)).events == ()
    assert (await store.verify()).is_sound


async def test_a_person_who_is_erased_leaves_nothing_in_runs(store: Store) -> None:
    own = (await store.create_session(user_id="ann")).id
    others = (await store.create_session(user_id="bob")).id
    third = (await store.create_session(user_id="bob")).id
    await store.append(third, said("secret", user_id="ann"))
    for session, user in ((own, "ann"), (others, "ann"), (third, "bob")):
        await begin(store, session, "a", user_id=user)
        await append(store, session, "a", 0, ["1"], end=RunEnd("finished"))
    await store.erase_user("ann")
    for session in (own, others, third):
        assert (await store.runs.events(session)).events == ()
    run = await store.runs.get(others, "a")
    assert run is not None
    assert run.user_id is None


async def test_events_that_were_changed_are_found_out(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = (await store.create_session()).id
        await begin(store, session, "a")
        await append(store, session, "a", 0, ["1"])
        assert (await store.verify()).is_sound
        await store._write(changed())
        (damage,) = (await store.verify()).damage
        assert (damage.session_id, damage.what) == (
            session,
            "events of runs from 1: its hash does not match its content",
        )
        with pytest.raises(DragomanError) as caught:
            await store.runs.events(session)
        assert caught.value.code == "damaged"


def changed() -> Any:
    yield "UPDATE run_events SET events_json = '2'", ()


def said(text: str, **metadata: Any) -> Message:
    return Message("", "", Role.USER, (TextBlock(text),), MessageMetadata(**metadata), datetime.now(UTC))


async def test_runs_are_counted_in_the_sizes(store: Store) -> None:
    assert {"runs", "run_events", "api_keys"} <= set((await store.sizes()).tables)
