"""Exports, imports and copies of stores, on every engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.errors import ConflictError, CorruptDataError, DragomanError, FormatError, UnknownSessionError
from dragoman.message import MessageStatus, TextBlock
from dragoman.store import Session, Store, open_store
from tests.store.conftest import StoreLocation
from tests.store.messages import answer_message, call_message, result_message, text_message
from tests.store.test_retention import LARGE, calls, change, everything, history, paid


async def exported(store: Store, session_id: str) -> list[bytes]:
    return [line async for line in store.export(session_id)]


async def whole(store: Store) -> list[bytes]:
    return [line async for line in store.export_store()]


@pytest.fixture
def other(runner: asyncio.Runner) -> Iterator[Store]:
    """Another store, empty."""
    made = open_store("memory:")
    runner.run(made.open())
    yield made
    runner.run(made.close())


async def family(store: Store) -> list[Session]:
    """A session, a fork of it, a fork of that, and one that was handed what it shares."""
    first = await everything(store, title="first", metadata={"a": [1]}, user_id="ann", active_model="m")
    await store.entries.append(first.id, {"type": "task", "content": "look", "timestamp": 0}, agent_key="worker")
    await store.entries.append(first.id, {"type": "user_message", "content": "hello", "timestamp": 1.5})
    fork = await store.fork(first.id, 3, title="fork")
    await store.append(fork.id, [result_message("tu_1"), text_message(LARGE + "!"), call_message("tu_5")])
    await store.cancel_tool_call(fork.id, "tu_5")
    await store.save_tool_ids(fork.id, [("openai", "tu_5", "call_5")])
    deep = await store.fork(fork.id)
    await store.append(deep.id, [text_message("deep"), answer_message("still arr", status=MessageStatus.PARTIAL)])
    gone = await everything(store)
    heir = await store.fork(gone.id, 4)
    await store.append(heir.id, paid("mine now", "0.3"))
    await store.delete_session(gone.id)
    bare = await store.fork(first.id, 0, title="from the beginning")
    return [await store.get_session(one.id) for one in (first, fork, deep, heir, bare)]


async def traced(store: Store, session_id: str) -> list[tuple[str | None, dict[str, Any]]]:
    return [(row.agent_key, row.entry) for row in await store.entries.read(session_id)]


# --- one session -----------------------------------------------------------------------------------------------------


async def test_a_session_is_written_as_lines_of_canonical_messages(store: Store) -> None:
    session = await everything(store, title="first")
    head, *messages, beside, end = await exported(store, session.id)
    assert json.loads(head)["session"]["title"] == "first"
    assert messages == [dragoman.encode(row.message) + b"\n" for row in await history(store, session.id)]
    assert json.loads(beside)["tool_ids"] == [["openai", "tu_1", "call_1"]]
    assert json.loads(end)["messages"] == 5


async def test_a_session_that_is_carried_to_another_store_is_the_same_there(store: Store, other: Store) -> None:
    for session in await family(store):
        lines = await exported(store, session.id)
        made = await other.import_session(lines)
        assert await exported(other, session.id) == lines
        assert await history(other, session.id) == await history(store, session.id)
        assert await calls(other, session.id) == await calls(store, session.id)
        assert await traced(other, session.id) == await traced(store, session.id)
        assert await other.tool_ids(session.id) == await store.tool_ids(session.id)
        assert (made.title, made.metadata, made.created_at, made.updated_at, made.user_id) == (
            session.title, session.metadata, session.created_at, session.updated_at, session.user_id,
        )  # fmt: skip
        assert await other.import_session(lines) == made
        assert await store.import_session(lines) == session
    assert (await other.verify()).damage == ()
    assert len(await other.search("hello")) == len(await other.list_sessions()) - 1


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_however_the_bytes_are_cut_the_session_is_read(store: Store, other: Store, size: int) -> None:
    session = await everything(store)
    data = b"".join(await exported(store, session.id))

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    await other.import_session(pieces() if size > 1 else iter([data]))
    assert await history(other, session.id) == await history(store, session.id)


async def test_a_file_that_was_cut_is_refused_and_nothing_is_stored(store: Store, other: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message("one"), paid("two", "1"), text_message("three")])
    data = b"".join(await exported(store, session.id))
    for at in range(len(data) - 1):
        with pytest.raises(FormatError):
            await other.import_session([data[:at]])
    assert await other.list_sessions() == []
    assert [blob async for blob in other.blobs.list()] == []
    await other.import_session([data[:-1]])  # the last line is whole without its end


async def test_a_file_with_one_changed_byte_is_refused(store: Store, other: Store) -> None:
    session = await store.create_session(title="t")
    await store.append(session.id, [text_message("one"), paid("two", "1")])
    data = b"".join(await exported(store, session.id))
    end = data.rindex(b'{"messages"')
    for at in range(end):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(DragomanError):
            await other.import_session([bytes(changed)])
    lines = data.splitlines(keepends=True)
    for lines_changed in (lines[:2] + lines[3:], lines[:1] + lines[2:3] + lines[1:2] + lines[3:], lines + lines[1:2]):
        with pytest.raises(FormatError):
            await other.import_session(lines_changed)
    assert await other.list_sessions() == []


async def test_a_byte_that_is_no_text_is_refused_on_every_line(store: Store, other: Store) -> None:
    (first, *_) = await family(store)
    await store.entries.append(first.id, [{"type": "task", "content": "Look"}])
    lines = b"".join(await whole(store)).splitlines(keepends=True)
    for number, line in enumerate(lines):
        at = line.rindex(b'"')
        broken = [*lines[:number], line[:at] + b"\xff" + line[at:], *lines[number + 1 :]]
        with pytest.raises(FormatError) as caught:
            await other.import_store(broken)
        assert caught.value.code == "cut_export"


async def test_another_session_of_the_same_id_is_a_conflict(store: Store, other: Store) -> None:
    session = await everything(store)
    lines = await exported(store, session.id)
    await store.append(session.id, text_message("more"))
    with pytest.raises(ConflictError) as caught:
        await store.import_session(lines)
    assert caught.value.code == "session_exists"
    await other.import_session(lines)
    await other.rename_session(session.id, "another title")
    with pytest.raises(ConflictError):
        await other.import_session(lines)


async def test_a_session_may_be_imported_as_a_copy(store: Store) -> None:
    first, fork, *_ = await family(store)
    lines = await exported(store, fork.id)
    copy = await store.import_session(lines, session_id="sess_copy")
    assert (copy.id, copy.title, copy.parent_session_id) == ("sess_copy", "fork", None)
    rows = await history(store, "sess_copy")
    assert {row.message.session_id for row in rows} == {"sess_copy"}
    assert [row.message.content for row in rows] == [row.message.content for row in await history(store, fork.id)]
    assert await store.import_session(lines, session_id="sess_copy") == copy
    with pytest.raises(ConflictError):
        await store.import_session(lines, session_id=first.id)


async def test_messages_alone_are_a_session(store: Store, other: Store) -> None:
    session = await everything(store)
    rows = await history(store, session.id)
    bare = [dragoman.encode(row.message) + b"\n" for row in rows]
    made = await other.import_session([*bare[:3], b"\n", *bare[3:]])
    assert made.id == session.id
    assert await history(other, session.id) == rows
    assert await other.import_session(bare) == made
    assert (await other.import_session(bare, session_id="sess_x")).last_seq == 5
    nobody_s = [dragoman.encode(text_message(text)) + b"\n" for text in ("a", "b")]
    fresh = await other.import_session(nobody_s)
    assert [row.message.content for row in await history(other, fresh.id)] == [(TextBlock("a"),), (TextBlock("b"),)]
    mixed = [bare[0], dragoman.encode(rows[1].message.replace(session_id="sess_y")) + b"\n"]
    with pytest.raises(FormatError, match="several sessions"):
        await other.import_session(mixed)


async def test_a_file_of_a_newer_format_or_of_nothing_is_refused(store: Store) -> None:
    with pytest.raises(FormatError) as caught:
        await store.import_session(
            [
                b'{"dragoman_session":2,"session":{"id":"s","created_at":"2026-05-08T00:00:00Z","updated_at":"2026-05-08T00:00:00Z"}}\n'
            ]
        )
    assert caught.value.code == "newer_export"
    for nothing in ([], [b""], [b"\n\n"], [b"hello"], [b"[]"], [b"{}"], [b"\xff"]):
        with pytest.raises(DragomanError):
            await store.import_session(nothing)
    with pytest.raises(UnknownSessionError):
        await exported(store, "sess_nobody")


# --- everything ------------------------------------------------------------------------------------------------------


async def test_a_whole_store_is_carried_with_its_forks_as_forks(store: Store, other: Store) -> None:
    sessions = await family(store)
    lines = await whole(store)
    told: list[tuple[int, int]] = []
    made = await other.import_store(lines, progress=lambda done, of: told.append((done, of)))
    assert {one.id: one for one in made} == {one.id: one for one in sessions}
    assert told[-1][0] == told[-1][1] > 0
    for session in sessions:
        assert await history(other, session.id) == await history(store, session.id)
        assert await calls(other, session.id) == await calls(store, session.id)
        assert await traced(other, session.id) == await traced(store, session.id)
    assert await whole(other) == lines
    assert (await other.verify()).damage == ()
    assert await other.import_store(lines) == made
    await other.delete_session(sessions[0].id)
    assert (await other.verify()).damage == ()


async def test_a_file_of_a_whole_store_that_was_cut_between_two_sessions_is_refused(store: Store, other: Store) -> None:
    await family(store)
    lines = await whole(store)
    ends = [number for number, line in enumerate(lines, 1) if line.startswith(b'{"messages"')]
    for at in ends:
        with pytest.raises(FormatError):
            await other.import_store(lines[:at])
    with pytest.raises(FormatError, match="import_store"):
        await other.import_session(lines)
    assert await other.list_sessions() == []


async def test_where_one_session_conflicts_no_other_is_stored(store: Store, other: Store) -> None:
    sessions = await family(store)
    await other.create_session(sessions[2].id, title="mine")
    with pytest.raises(ConflictError):
        await other.import_store(await whole(store))
    assert len(await other.list_sessions()) == 1


# --- copies ----------------------------------------------------------------------------------------------------------


async def test_a_copy_of_a_store_is_a_store(store: Store, tmp_path: Path) -> None:
    sessions = await family(store)
    target = tmp_path / "copies" / "copy.db"
    told: list[tuple[int, int]] = []
    seen = await store.backup(target, progress=lambda done, of: told.append((done, of)))
    assert (seen.damage, seen.sessions) == ((), 5)
    assert told == sorted(told)
    assert sorted(path.name for path in target.parent.iterdir()) == ["copy.db", "copy.db-blobs"]
    async with open_store(f"sqlite:///{target}") as copy:
        assert await whole(copy) == await whole(store)
        assert await copy.costs.totals("day") == await store.costs.totals("day")
        assert len(await copy.search("hello")) == len(await store.search("hello"))
        (row,) = await copy.append(sessions[0].id, text_message("on"))
        assert row.seq == sessions[0].last_seq + 1
        keyed = await copy.append(
            sessions[0].id, [text_message("hello"), paid("hi", "0.10"), call_message("tu_1")], idempotency_key="k"
        )
        assert [row.seq for row in keyed] == [1, 2, 3]
    with pytest.raises(ConflictError) as caught:
        await store.backup(target)
    assert caught.value.code == "target_exists"


async def test_a_copy_is_made_while_others_write(database_location: StoreLocation, tmp_path: Path) -> None:
    async with database_location.open() as store, database_location.open() as busy:
        session = await store.create_session()
        await store.append(session.id, [text_message(f"{number} " + "x" * 500) for number in range(2_000)])
        is_over = False

        async def write() -> int:
            count = 0
            while not is_over:
                await busy.append(
                    session.id,
                    [call_message(f"tu_{count}"), result_message(f"tu_{count}"), text_message(LARGE + str(count))],
                )
                count += 1
            return count

        writing = asyncio.create_task(write())
        seen = await store.backup(tmp_path / "copy.db")
        is_over = True
        assert await writing > 0
        assert seen.damage == ()
        assert seen.messages >= 2_000
        assert (await store.verify()).damage == ()


async def test_a_copy_of_a_damaged_store_says_so_and_is_there(store: Store, tmp_path: Path) -> None:
    session = await everything(store)
    await change(store, "UPDATE messages SET content_json = replace(content_json, 'hello', 'hallo') WHERE seq = 1")
    with pytest.raises(CorruptDataError, match="problems were found in the copy"):
        await store.backup(tmp_path / "copy.db")
    async with open_store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert [found.seq for found in (await copy.verify()).damage] == [1]
        assert len(await copy.read(session.id, after_seq=1)) == 4
