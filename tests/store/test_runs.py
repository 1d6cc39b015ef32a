"""Tests of runs and their events on every engine: numbers, exclusivity, cancellation and deletion."""

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


async def start_run(store: Store, session: str, run: str, **fields: Any) -> Run:
    new_run = store.runs.new(session, run, **{"request_hash": HASH, "owner": "one", **fields})
    return await store.runs.start(new_run, alive_s=20)


async def append_events(store: Store, session: str, run: str, after: int, events: list[str], **fields: RunEnd) -> bool:
    found = await store.runs.get(session, run)
    assert found is not None
    if not fields:
        return await store.runs.append(found, after, events)
    return await store.runs.end(found, after, events, fields["end"])


def list_event_texts(page: RunEventPage) -> list[tuple[int, str, str]]:
    return [(event.number, event.run_id, event.json) for event in page.events]


async def test_events_are_numbered_across_runs_of_session(store: Store) -> None:
    session = (await store.create_session()).id
    started = await start_run(store, session, "a")
    assert (started.first_number, started.last_number) == (1, 0)
    assert await append_events(store, session, "a", 0, ["1", "2"])
    assert await append_events(store, session, "a", 2, ["3"], end=RunEnd("finished"))
    assert (await start_run(store, session, "b")).first_number == 4
    assert await append_events(store, session, "b", 3, ["4"])
    page = await store.runs.events(session)
    assert list_event_texts(page) == [(1, "a", "1"), (2, "a", "2"), (3, "a", "3"), (4, "b", "4")]
    assert page.latest is not None
    assert (page.latest.run_id, page.latest.is_running) == ("b", True)
    for after in range(6):
        assert [number for number, _, _ in list_event_texts(await store.runs.events(session, after))] == [
            *range(after + 1, 5)
        ]
    assert list_event_texts(await store.runs.events(session, 1, limit=1)) == [(2, "a", "2")]


async def test_late_and_repeated_events_are_not_stored(store: Store) -> None:
    session = (await store.create_session()).id
    await start_run(store, session, "a")
    assert await append_events(store, session, "a", 0, ["1"])
    assert not await append_events(store, session, "a", 0, ["1"])
    assert not await append_events(store, session, "a", 5, ["6"])
    assert await append_events(store, session, "a", 1, [], end=RunEnd("cancelled"))
    assert not await append_events(store, session, "a", 1, ["2"])
    assert list_event_texts(await store.runs.events(session)) == [(1, "a", "1")]


async def test_repeated_request_returns_same_run(store: Store) -> None:
    session = (await store.create_session()).id
    first = await start_run(store, session, "a", idempotency_key="k")
    for fields in ({"run": "a", "owner": "two"}, {"run": "other", "idempotency_key": "k"}):
        with pytest.raises(RunExistsError) as existing:
            await start_run(store, session, **fields)
        assert existing.value.run == first
    for named in ({"run": "a"}, {"run": "other", "idempotency_key": "k"}):
        with pytest.raises(ConflictError) as caught:
            await start_run(store, session, request_hash=b"x" * 32, **named)
        assert caught.value.code == "idempotency_key_reused"


async def test_session_has_one_run_at_a_time(store: Store) -> None:
    session = (await store.create_session()).id
    await start_run(store, session, "a")
    with pytest.raises(ConflictError) as caught:
        await start_run(store, session, "b")
    assert caught.value.code == "run_in_progress"
    assert await append_events(store, session, "a", 0, ["1"], end=RunEnd("finished"))
    await start_run(store, session, "b")
    assert await store.runs.get(session, "b") == await store.runs.latest(session) is not None
    with pytest.raises(UnknownSessionError):
        await start_run(store, "nobody", "a")


async def test_interrupts_of_run_are_stored(store: Store) -> None:
    session = (await store.create_session()).id
    await start_run(store, session, "a")
    await append_events(
        store, session, "a", 0, ["1"], end=RunEnd("interrupted", ({"id": "int-1", "reason": "tool_call"},))
    )
    run = await store.runs.latest(session)
    assert run is not None
    assert (run.status, run.interrupts) == ("interrupted", ({"id": "int-1", "reason": "tool_call"},))
    assert run.ended_at is not None


async def test_cancel_reaches_worker_through_store(store: Store) -> None:
    session = (await store.create_session()).id
    assert await store.runs.cancel(session) is None
    await start_run(store, session, "a")
    assert await store.runs.to_cancel("one") == []
    assert await store.runs.cancel(session, "other") is None
    cancelled = await store.runs.cancel(session)
    assert cancelled is not None
    assert cancelled.cancel_at is not None
    repeated = await store.runs.cancel(session, "a")
    assert repeated == cancelled
    assert await store.runs.to_cancel("one") == [(session, "a")]
    assert await store.runs.to_cancel("two") == []


async def test_run_of_silent_worker_can_be_ended(store: Store) -> None:
    store.clock = clock = Clock()
    session = (await store.create_session()).id
    run = await start_run(store, session, "a")
    await append_events(store, session, "a", 0, ["1"])
    await pass_time(store, seconds=15)
    await store.runs.heartbeat("one", 20)
    await pass_time(store, seconds=15)
    for step in (timedelta(days=1), timedelta(days=-2)):  # changes of the wall clock
        clock.now += step
        assert await store.runs.expired() == []
        assert not await store.runs.fail_expired(run, '"dead"')
    await pass_time(store, seconds=15)
    assert [run.run_id for run in await store.runs.expired()] == ["a"]
    assert await store.runs.fail_expired(run, '"dead"')
    assert not await store.runs.fail_expired(run, '"dead"')
    assert not await append_events(store, session, "a", 1, ["2"])
    assert list_event_texts(await store.runs.events(session)) == [(1, "a", "1"), (2, "a", '"dead"')]
    ended = await store.runs.get(session, "a")
    assert ended is not None
    assert ended.status == "error"
    assert (await start_run(store, session, "b")).first_number == 3


async def test_deleted_events_do_not_reset_numbers(store: Store) -> None:
    store.clock = clock = Clock()
    session = (await store.create_session()).id
    await start_run(store, session, "a")
    await append_events(store, session, "a", 0, ["1", "2"], end=RunEnd("finished"))
    clock.now += timedelta(days=8)
    await start_run(store, session, "b")
    await append_events(store, session, "b", 2, ["3"])
    assert await store.runs.delete_old_events() == 1
    assert await store.runs.delete_old_events() == 0
    assert list_event_texts(await store.runs.events(session)) == [(3, "b", "3")]
    clock.now += timedelta(days=8)
    assert await store.runs.delete_old_events() == 0  # the run has not ended


async def test_old_events_are_deleted_in_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.store.runs._OLD_RUN_PAGE", 2)
    store.clock = clock = Clock()
    session = (await store.create_session()).id
    for number in range(5):
        await start_run(store, session, f"r{number}")
        ends = {} if number == 4 else {"end": RunEnd("finished")}
        await append_events(store, session, f"r{number}", number, [str(number + 1)], **ends)
    clock.now += timedelta(days=8)
    assert await store.runs.delete_old_events() == 4
    assert list_event_texts(await store.runs.events(session)) == [(5, "r4", "5")]
    assert await append_events(store, session, "r4", 5, ["6"], end=RunEnd("finished"))
    clock.now += timedelta(days=8)
    assert await store.runs.delete_old_events() == 2
    assert await store.runs.delete_old_events() == 0


async def test_old_events_are_found_by_index(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    async with open_store(f"sqlite:///{path}"):
        pass
    connection = apsw.Connection(str(path))
    rows = connection.execute(f"EXPLAIN QUERY PLAN {OLD_RUNS.removesuffix(FOR_UPDATE)}", (0, 5)).fetchall()
    connection.close()
    assert [row[3] for row in rows] == ["SEARCH runs USING INDEX runs_by_end (ended_at<?)"]


async def test_runs_are_deleted_with_session_and_not_forked(store: Store) -> None:
    session = (await store.create_session()).id
    await store.append(session, create_message("x"))
    await start_run(store, session, "a")
    await append_events(store, session, "a", 0, ["1"])
    fork = await store.fork(session)
    assert (await store.runs.events(fork.id)).events == ()
    await store.delete_session(session)
    assert await store.runs.get(session, "a") is None
    assert (await store.runs.events(session)).events == ()
    assert (await store.verify()).is_sound


async def test_erasure_deletes_runs_of_user(store: Store) -> None:
    own = (await store.create_session(user_id="ann")).id
    others = (await store.create_session(user_id="bob")).id
    third = (await store.create_session(user_id="bob")).id
    await store.append(third, create_message("secret", user_id="ann"))
    for session, user in ((own, "ann"), (others, "ann"), (third, "bob")):
        await start_run(store, session, "a", user_id=user)
        await append_events(store, session, "a", 0, ["1"], end=RunEnd("finished"))
    await store.erase_user("ann")
    for session in (own, others, third):
        assert (await store.runs.events(session)).events == ()
    run = await store.runs.get(others, "a")
    assert run is not None
    assert run.user_id is None


async def test_changed_events_are_detected(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = (await store.create_session()).id
        await start_run(store, session, "a")
        await append_events(store, session, "a", 0, ["1"])
        assert (await store.verify()).is_sound
        await store._write(damage_events())
        (damage,) = (await store.verify()).damage
        assert (damage.session_id, damage.what) == (
            session,
            "events of runs from 1: its hash does not match its content",
        )
        with pytest.raises(DragomanError) as caught:
            await store.runs.events(session)
        assert caught.value.code == "damaged"


def damage_events() -> Any:
    yield "UPDATE run_events SET events_json = '2'", ()


def create_message(text: str, **metadata: Any) -> Message:
    return Message("", "", Role.USER, (TextBlock(text),), MessageMetadata(**metadata), datetime.now(UTC))


async def test_size_report_includes_runs(store: Store) -> None:
    assert {"runs", "run_events", "api_keys"} <= set((await store.sizes()).tables)
