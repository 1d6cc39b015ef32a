"""Tests of the high-water mark of a SQLite file, which detects missing acknowledged messages."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from dragoman.store import Store, high_water, open_store
from dragoman.store.high_water import HighWaterMark, MarkState
from tests import cli_runner
from tests.store.conftest import Clock, StoreLocation
from tests.store.messages import text_message


def _url(path: Path) -> str:
    return f"sqlite:///{path}"


async def _append_texts(path: Path, *texts: str, session_id: str = "s") -> None:
    async with open_store(_url(path)) as store:
        if session_id not in [session.id for session in await store.list_sessions()]:
            await store.create_session(session_id)
        for text in texts:
            await store.append(session_id, text_message(text))


def _read_ends(store: Store) -> dict[str, int]:
    """Return the ends of the sessions that the high-water mark records."""
    assert store.mark.path is not None
    return high_water._parse(store.mark.path.read_bytes()).ends


async def _list_damage(path: Path) -> list[str]:
    async with open_store(_url(path)) as store:
        return [
            f"{found_damage.session_id}: {found_damage.what.partition(':')[0]}"
            for found_damage in (await store.verify()).damage
        ]


def _copy_files(path: Path, target: Path, suffixes: Iterable[str]) -> Path:
    target.mkdir()
    for suffix in suffixes:
        shutil.copy(f"{path}{suffix}", target / f"{path.name}{suffix}")
    return target / path.name


async def test_older_copy_of_file_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _append_texts(path, "one", "two")
    older = tmp_path / "older.db"
    shutil.copy(path, older)
    await _append_texts(path, "three")
    await _append_texts(path, "x", session_id="new")
    assert await _list_damage(path) == []
    shutil.copy(older, path)
    assert await _list_damage(path) == [
        "s: acknowledged up to message 3, and the session ends at message 2",
        "new: acknowledged up to message 1, and the session is not in the file",
    ]


async def test_loss_is_reported_until_accepted(tmp_path: Path, caplog: Any) -> None:
    path, older = tmp_path / "store.db", tmp_path / "older.db"
    await _append_texts(path, "one", "two")
    shutil.copy(path, older)
    await _append_texts(path, "three", "four")
    newer = path.read_bytes()
    shutil.copy(older, path)
    await _append_texts(path, "three again", "four again", "five")
    assert "messages are missing at the end of 1 sessions" in caplog.text
    expected = ["s: acknowledged up to message 4, and its messages from 3 on are others"]
    assert await _list_damage(path) == expected
    async with open_store(_url(path)) as store:
        store.mark.compact(force=True)
    assert await _list_damage(path) == expected
    path.write_bytes(newer)  # restores the lost messages and loses the later ones
    assert await _list_damage(path) == ["s: acknowledged up to message 5, and its messages from 3 on are others"]
    async with open_store(_url(path)) as store:
        await store.accept_loss()
        assert (await store.verify()).is_sound
    assert await _list_damage(path) == []


async def test_restored_messages_are_no_longer_reported(tmp_path: Path) -> None:
    path, older = tmp_path / "store.db", tmp_path / "older.db"
    await _append_texts(path, "one")
    shutil.copy(path, older)
    await _append_texts(path, "two")
    newer = path.read_bytes()
    shutil.copy(older, path)
    assert len(await _list_damage(path)) == 1
    path.write_bytes(newer)
    assert await _list_damage(path) == []


async def test_replaced_last_message_is_detected(tmp_path: Path) -> None:
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    await _append_texts(path, "one")
    shutil.copy(path, other)
    await _append_texts(path, "two")
    await _append_texts(other, "another two")
    shutil.copy(other, path)
    assert await _list_damage(path) == ["s: acknowledged up to message 2, and its messages from 2 on are others"]
    await _append_texts(path, "three")
    assert len(await _list_damage(path)) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\x00noise" * 50, None])
async def test_damaged_mark_is_reported_until_accepted(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "store.db"
    await _append_texts(path, "one")
    mark = Path(f"{path}-mark")
    mark.write_bytes(mark.read_bytes().replace(b'"s"', b'"z"') if content is None else content)
    assert [item.partition(" (")[0] for item in await _list_damage(path)] == [": the mark beside the file is damaged"]
    async with open_store(_url(path)) as store:
        store.mark.compact(force=True)
        assert not (await store.verify()).is_sound
        await store.accept_loss()
        report = await store.verify()
        assert (report.is_sound, report.marked) == (True, 1)


async def test_verify_command_reports_and_accepts_loss(tmp_path: Path) -> None:
    path, older = tmp_path / "store.db", tmp_path / "older.db"
    await _append_texts(path, "one")
    shutil.copy(path, older)
    await _append_texts(path, "two")
    shutil.copy(older, path)
    for options, exit_code in (((), 1), ((), 1), (("--accept-loss",), 0), ((), 0)):
        done = cli_runner.run_text("verify", "--store", path, *options, environment=os.environ)
        assert (done.returncode, "acknowledged up to message 2" in done.stdout) == (exit_code, exit_code == 1)


async def test_deleted_log_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _append_texts(path, "one")
    async with open_store(_url(path)) as store:
        await store.append("s", [text_message("two"), text_message("three")])
        store.mark.flush()
        whole = _copy_files(path, tmp_path / "whole", ("", "-mark", "-wal"))
        without = _copy_files(path, tmp_path / "without", ("", "-mark"))
    assert await _list_damage(whole) == []
    assert await _list_damage(without) == ["s: acknowledged up to message 3, and the session ends at message 1"]


async def test_messages_deleted_at_end_are_detected(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _append_texts(path, "one", "two", "three")
    connection = apsw.Connection(str(path))
    connection.execute(
        "DELETE FROM messages WHERE seq = 3; UPDATE sessions SET last_seq = 2, indexed_seq = 2"
    ).fetchall()
    connection.close()
    assert await _list_damage(path) == ["s: acknowledged up to message 3, and the session ends at message 2"]
    async with open_store(_url(path)) as store:
        assert len((await store.verify("s")).damage) == 1


async def test_store_moved_without_mark_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _append_texts(path, "one")
    async with open_store(_url(path)) as store:
        assert (await store.verify()).marked == 1
    moved = _copy_files(path, tmp_path / "moved", ("",))
    async with open_store(_url(moved)) as store:
        report = await store.verify()
    assert (report.is_sound, report.marked) == (True, None)
    await _append_texts(moved, "two")
    shutil.copy(path, moved)
    assert await _list_damage(moved) == [
        "s: acknowledged up to message 2, and the session ends at message 1"
    ]  # a new mark exists


async def test_deleted_sessions_are_not_missing(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.db"
    async with open_store(_url(path)) as store, open_store(_url(path)) as other:
        store.clock = clock
        for name, user in (("deleted", None), ("old", None), ("hers", "ann"), ("kept", None), ("again", None)):
            await store.create_session(name, user_id=user)
            await store.append(name, text_message("x"))
        await other.append("deleted", text_message("by another process, which writes the mark later"))
        await store.delete_session("deleted")
        clock.move(days=100)
        for name in ("hers", "kept", "again"):
            await store.append(name, text_message("y"))
        assert [session.id for session in await store.retain(timedelta(days=90))] == ["old"]
        await store.delete_session("again")
        await store.create_session("again")
        fork = await store.fork("hers", user_id="bob")
        await store.erase_user("ann")
        other.mark.flush()
        store.mark.flush()
        assert (await store.verify()).is_sound
        assert _read_ends(store) == {"kept": 2, "again": 0, fork.id: 2}
        assert b"hers" not in Path(f"{path}-mark").read_bytes()  # the id may identify a person


async def test_refused_deletion_keeps_mark(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.db"
    async with open_store(_url(path)) as store:
        store.clock = clock
        await store.create_session("s")
        await store.append("s", text_message("x"))
        assert not await store.delete_if_inactive("s", clock.now)
        assert _read_ends(store) == {"s": 1}


async def test_mark_is_private_and_flushed_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(high_water, "_FLUSH_INTERVAL_S", 0.0)
    path = tmp_path / "store.db"
    async with open_store(_url(path)) as store:
        await store.create_session("s")
        await store.append("s", text_message("x"))
        while _read_ends(store) != {"s": 1}:
            await asyncio.sleep(0)
    assert stat.S_IMODE(Path(f"{path}-mark").stat().st_mode) == 0o600


async def test_import_updates_mark(store: Store, store_location: StoreLocation, tmp_path: Path) -> None:
    await store.create_session("s")
    await store.append("s", [text_message("x"), text_message("y")])
    exported = [line async for line in store.export("s")]
    async with open_store(_url(tmp_path / "other.db")) as other:
        await other.import_session(exported)
        assert _read_ends(other) == {"s": 2}


def test_unreadable_lines_are_counted_and_ignored(tmp_path: Path) -> None:
    mark = HighWaterMark(tmp_path / "store.db")
    assert mark.read() is None
    mark.add_session("a", 3)
    mark.add_session("b", 1)
    assert mark.read() == MarkState(None, {"a": 3, "b": 1})
    file = Path(tmp_path / "store.db-mark")
    whole = file.read_bytes()
    file.write_bytes(whole + b'\0\0\0\n00000000 ["note","a",9]\nzz\n' + whole[: len(whole) // 2 - 3])
    damaged = MarkState(None, {"a": 3, "b": 1}, damaged_lines=4)
    assert mark.read() == damaged
    mark.compact(force=True)
    assert (mark.read(), stat.S_IMODE(file.stat().st_mode)) == (damaged, 0o600)


async def test_unwritable_mark_does_not_block_writes(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "store.db"
    Path(f"{path}-mark").mkdir()
    await _append_texts(path, "one")
    assert "the mark beside the database could not be written" in caplog.text
    assert await _list_damage(path) == []


async def test_erasure_lists_copies_and_deletes_migration_backups(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(_url(path)) as store:
        await store.create_session("s", user_id="ann")
        await store.append("s", text_message("a secret"))
        await store.backup(tmp_path / "backup.db")
        shutil.copy(tmp_path / "backup.db", tmp_path / "store.db.schema-8")
        (tmp_path / "notes.db").write_bytes(b"SQLite format 3\0 of something else")
        receipt = await store.erase_user("ann")
        assert (receipt.copies_deleted, receipt.copies_left) == ((), ("backup.db", "store.db.schema-8"))
        deleted = await store.erase_user("ann", delete_copies=True)
        assert (deleted.copies_deleted, deleted.copies_left) == (("store.db.schema-8",), ("backup.db",))
        assert await store.erasures() == [receipt, deleted]
    assert not (tmp_path / "store.db.schema-8").exists()
