"""Tests of exports, imports and backups on every engine."""

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
from tests.store.test_retention import LARGE, answer_with_cost, create_full_session, execute, list_calls, read_history


async def export_lines(store: Store, session_id: str) -> list[bytes]:
    return [line async for line in store.export(session_id)]


async def export_store_lines(store: Store) -> list[bytes]:
    return [line async for line in store.export_store()]


@pytest.fixture
def other(runner: asyncio.Runner) -> Iterator[Store]:
    """Another, empty store."""
    imported = open_store("memory:")
    runner.run(imported.open())
    yield imported
    runner.run(imported.close())


async def create_family(store: Store) -> list[Session]:
    """Create a session, a fork, a fork of the fork, and a fork of a deleted session."""
    first = await create_full_session(store, title="first", metadata={"a": [1]}, user_id="ann", active_model="m")
    await store.entries.append(first.id, {"type": "task", "content": "look", "timestamp": 0}, agent_key="worker")
    await store.entries.append(first.id, {"type": "user_message", "content": "hello", "timestamp": 1.5})
    fork = await store.fork(first.id, 3, title="fork")
    await store.append(fork.id, [result_message("tu_1"), text_message(LARGE + "!"), call_message("tu_5")])
    await store.cancel_tool_call(fork.id, "tu_5")
    await store.save_tool_ids(fork.id, [("openai", "tu_5", "call_5")])
    deep = await store.fork(fork.id)
    await store.append(deep.id, [text_message("deep"), answer_message("still arr", status=MessageStatus.PARTIAL)])
    deleted = await create_full_session(store)
    heir = await store.fork(deleted.id, 4)
    await store.append(heir.id, answer_with_cost("mine now", "0.3"))
    await store.delete_session(deleted.id)
    bare = await store.fork(first.id, 0, title="from the beginning")
    return [await store.get_session(item.id) for item in (first, fork, deep, heir, bare)]


async def read_entries(store: Store, session_id: str) -> list[tuple[str | None, dict[str, Any]]]:
    return [(row.agent_key, row.entry) for row in await store.entries.read(session_id)]


# --- sessions --------------------------------------------------------------------------------------------------------


async def test_export_contains_canonical_messages(store: Store) -> None:
    session = await create_full_session(store, title="first")
    head, *messages, beside, end = await export_lines(store, session.id)
    assert json.loads(head)["session"]["title"] == "first"
    assert messages == [dragoman.encode(row.message) + b"\n" for row in await read_history(store, session.id)]
    assert json.loads(beside)["tool_ids"] == [["openai", "tu_1", "call_1"]]
    assert json.loads(end)["messages"] == 5


async def test_imported_session_equals_exported_session(store: Store, other: Store) -> None:
    for session in await create_family(store):
        lines = await export_lines(store, session.id)
        imported = await other.import_session(lines)
        assert await export_lines(other, session.id) == lines
        assert await read_history(other, session.id) == await read_history(store, session.id)
        assert await list_calls(other, session.id) == await list_calls(store, session.id)
        assert await read_entries(other, session.id) == await read_entries(store, session.id)
        assert await other.tool_ids(session.id) == await store.tool_ids(session.id)
        assert (imported.title, imported.metadata, imported.created_at, imported.updated_at, imported.user_id) == (
            session.title, session.metadata, session.created_at, session.updated_at, session.user_id,
        )  # fmt: skip
        assert await other.import_session(lines) == imported
        assert await store.import_session(lines) == session
    assert (await other.verify()).damage == ()
    assert len(await other.search("hello")) == len(await other.list_sessions()) - 1


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_import_accepts_any_chunk_size(store: Store, other: Store, size: int) -> None:
    session = await create_full_session(store)
    data = b"".join(await export_lines(store, session.id))

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    await other.import_session(chunks() if size > 1 else iter([data]))
    assert await read_history(other, session.id) == await read_history(store, session.id)


async def test_truncated_file_is_rejected_without_rows(store: Store, other: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message("one"), answer_with_cost("two", "1"), text_message("three")])
    data = b"".join(await export_lines(store, session.id))
    for at in range(len(data) - 1):
        with pytest.raises(FormatError):
            await other.import_session([data[:at]])
    assert await other.list_sessions() == []
    assert [blob async for blob in other.blobs.list()] == []
    await other.import_session([data[:-1]])  # the last line is complete without its line break


async def test_file_with_changed_byte_is_rejected(store: Store, other: Store) -> None:
    session = await store.create_session(title="t")
    await store.append(session.id, [text_message("one"), answer_with_cost("two", "1")])
    data = b"".join(await export_lines(store, session.id))
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


async def test_invalid_utf8_is_rejected_on_every_line(store: Store, other: Store) -> None:
    (first, *_) = await create_family(store)
    await store.entries.append(first.id, [{"type": "task", "content": "Look"}])
    lines = b"".join(await export_store_lines(store)).splitlines(keepends=True)
    for number, line in enumerate(lines):
        at = line.rindex(b'"')
        broken = [*lines[:number], line[:at] + b"\xff" + line[at:], *lines[number + 1 :]]
        with pytest.raises(FormatError) as caught:
            await other.import_store(broken)
        assert caught.value.code == "cut_export"


async def test_other_session_with_same_id_is_conflict(store: Store, other: Store) -> None:
    session = await create_full_session(store)
    lines = await export_lines(store, session.id)
    await store.append(session.id, text_message("more"))
    with pytest.raises(ConflictError) as caught:
        await store.import_session(lines)
    assert caught.value.code == "session_exists"
    await other.import_session(lines)
    await other.rename_session(session.id, "another title")
    with pytest.raises(ConflictError):
        await other.import_session(lines)


async def test_session_is_imported_as_copy(store: Store) -> None:
    first, fork, *_ = await create_family(store)
    lines = await export_lines(store, fork.id)
    copy = await store.import_session(lines, session_id="sess_copy")
    assert (copy.id, copy.title, copy.parent_session_id) == ("sess_copy", "fork", None)
    rows = await read_history(store, "sess_copy")
    assert {row.message.session_id for row in rows} == {"sess_copy"}
    assert [row.message.content for row in rows] == [row.message.content for row in await read_history(store, fork.id)]
    assert await store.import_session(lines, session_id="sess_copy") == copy
    with pytest.raises(ConflictError):
        await store.import_session(lines, session_id=first.id)


async def test_import_accepts_messages_without_header(store: Store, other: Store) -> None:
    session = await create_full_session(store)
    rows = await read_history(store, session.id)
    bare = [dragoman.encode(row.message) + b"\n" for row in rows]
    imported = await other.import_session([*bare[:3], b"\n", *bare[3:]])
    assert imported.id == session.id
    assert await read_history(other, session.id) == rows
    assert await other.import_session(bare) == imported
    assert (await other.import_session(bare, session_id="sess_x")).last_seq == 5
    without_session = [dragoman.encode(text_message(text)) + b"\n" for text in ("a", "b")]
    fresh = await other.import_session(without_session)
    assert [row.message.content for row in await read_history(other, fresh.id)] == [
        (TextBlock("a"),),
        (TextBlock("b"),),
    ]
    mixed = [bare[0], dragoman.encode(rows[1].message.replace(session_id="sess_y")) + b"\n"]
    with pytest.raises(FormatError, match="several sessions"):
        await other.import_session(mixed)


async def test_newer_and_empty_files_are_rejected(store: Store) -> None:
    with pytest.raises(FormatError) as caught:
        await store.import_session(
            [
                b'{"dragoman_session":2,"session":{"id":"s","created_at":"2026-05-08T00:00:00Z","updated_at":"2026-05-08T00:00:00Z"}}\n'
            ]
        )
    assert caught.value.code == "newer_export"
    for empty in ([], [b""], [b"\n\n"], [b"hello"], [b"[]"], [b"{}"], [b"\xff"]):
        with pytest.raises(DragomanError):
            await store.import_session(empty)
    with pytest.raises(UnknownSessionError):
        await export_lines(store, "sess_nobody")


# --- whole store -----------------------------------------------------------------------------------------------------


async def test_imported_store_keeps_forks(store: Store, other: Store) -> None:
    sessions = await create_family(store)
    lines = await export_store_lines(store)
    progress_calls: list[tuple[int, int]] = []
    imported = await other.import_store(lines, progress=lambda done, of: progress_calls.append((done, of)))
    assert {item.id: item for item in imported} == {session_item.id: session_item for session_item in sessions}
    assert progress_calls[-1][0] == progress_calls[-1][1] > 0
    for session in sessions:
        assert await read_history(other, session.id) == await read_history(store, session.id)
        assert await list_calls(other, session.id) == await list_calls(store, session.id)
        assert await read_entries(other, session.id) == await read_entries(store, session.id)
    assert await export_store_lines(other) == lines
    assert (await other.verify()).damage == ()
    assert await other.import_store(lines) == imported
    await other.delete_session(sessions[0].id)
    assert (await other.verify()).damage == ()


async def test_store_file_truncated_between_sessions_is_rejected(store: Store, other: Store) -> None:
    await create_family(store)
    lines = await export_store_lines(store)
    ends = [number for number, line in enumerate(lines, 1) if line.startswith(b'{"messages"')]
    for at in ends:
        with pytest.raises(FormatError):
            await other.import_store(lines[:at])
    with pytest.raises(FormatError, match="import_store"):
        await other.import_session(lines)
    assert await other.list_sessions() == []


async def test_conflict_of_one_session_stores_no_session(store: Store, other: Store) -> None:
    sessions = await create_family(store)
    await other.create_session(sessions[2].id, title="mine")
    with pytest.raises(ConflictError):
        await other.import_store(await export_store_lines(store))
    assert len(await other.list_sessions()) == 1


# --- backups ---------------------------------------------------------------------------------------------------------


async def test_backup_is_complete_store(store: Store, tmp_path: Path) -> None:
    sessions = await create_family(store)
    target = tmp_path / "copies" / "copy.db"
    progress_calls: list[tuple[int, int]] = []
    report = await store.backup(target, progress=lambda done, of: progress_calls.append((done, of)))
    assert (report.damage, report.sessions) == ((), 5)
    assert progress_calls == sorted(progress_calls)
    assert sorted(path.name for path in target.parent.iterdir()) == ["copy.db", "copy.db-blobs"]
    async with open_store(f"sqlite:///{target}") as copy:
        assert await export_store_lines(copy) == await export_store_lines(store)
        assert await copy.costs.totals("day") == await store.costs.totals("day")
        assert len(await copy.search("hello")) == len(await store.search("hello"))
        (row,) = await copy.append(sessions[0].id, text_message("on"))
        assert row.seq == sessions[0].last_seq + 1
        keyed = await copy.append(
            sessions[0].id,
            [text_message("hello"), answer_with_cost("hi", "0.10"), call_message("tu_1")],
            idempotency_key="k",
        )
        assert [row.seq for row in keyed] == [1, 2, 3]
    with pytest.raises(ConflictError) as caught:
        await store.backup(target)
    assert caught.value.code == "target_exists"


async def test_backup_runs_during_writes(database_location: StoreLocation, tmp_path: Path) -> None:
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
        report = await store.backup(tmp_path / "copy.db")
        is_over = True
        assert await writing > 0
        assert report.damage == ()
        assert report.messages >= 2_000
        assert (await store.verify()).damage == ()


async def test_backup_of_damaged_store_raises_and_remains(store: Store, tmp_path: Path) -> None:
    session = await create_full_session(store)
    await execute(store, "UPDATE messages SET content_json = replace(content_json, 'hello', 'hallo') WHERE seq = 1")
    with pytest.raises(CorruptDataError, match="problems were found in the copy"):
        await store.backup(tmp_path / "copy.db")
    async with open_store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert [found.seq for found in (await copy.verify()).damage] == [1]
        assert len(await copy.read(session.id, after_seq=1)) == 4
