"""The mark beside a SQLite file: whether messages that were acknowledged are missing at the end."""

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


async def _filled(path: Path, *texts: str, session_id: str = "s") -> None:
    async with open_store(_url(path)) as store:
        if session_id not in [one.id for one in await store.list_sessions()]:
            await store.create_session(session_id)
        for text in texts:
            await store.append(session_id, text_message(text))


def _ends(store: Store) -> dict[str, int]:
    """Return the ends of the sessions that the high-water mark records."""
    assert store.mark.path is not None
    return high_water._parse(store.mark.path.read_bytes()).ends


async def _damage(path: Path) -> list[str]:
    async with open_store(_url(path)) as store:
        return [f"{one.session_id}: {one.what.partition(':')[0]}" for one in (await store.verify()).damage]


def _copy(path: Path, target: Path, ends: Iterable[str]) -> Path:
    target.mkdir()
    for end in ends:
        shutil.copy(f"{path}{end}", target / f"{path.name}{end}")
    return target / path.name


async def test_an_older_copy_of_the_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _filled(path, "one", "two")
    older = tmp_path / "older.db"
    shutil.copy(path, older)
    await _filled(path, "three")
    await _filled(path, "x", session_id="new")
    assert await _damage(path) == []
    shutil.copy(older, path)
    assert await _damage(path) == [
        "s: acknowledged up to message 3, and the session ends at message 2",
        "new: acknowledged up to message 1, and the session is not in the file",
    ]


async def test_a_loss_is_named_until_it_is_accepted_even_if_the_session_grows(tmp_path: Path, caplog: Any) -> None:
    path, older = tmp_path / "store.db", tmp_path / "older.db"
    await _filled(path, "one", "two")
    shutil.copy(path, older)
    await _filled(path, "three", "four")
    newer = path.read_bytes()
    shutil.copy(older, path)
    await _filled(path, "three again", "four again", "five")
    assert "messages are missing at the end of 1 sessions" in caplog.text
    grown = ["s: acknowledged up to message 4, and its messages from 3 on are others"]
    assert await _damage(path) == grown
    async with open_store(_url(path)) as store:
        store.mark.compact(force=True)
    assert await _damage(path) == grown
    path.write_bytes(newer)  # what was lost is back, and what was said since is lost
    assert await _damage(path) == ["s: acknowledged up to message 5, and its messages from 3 on are others"]
    async with open_store(_url(path)) as store:
        await store.accept_loss()
        assert (await store.verify()).is_sound
    assert await _damage(path) == []


async def test_what_was_lost_and_is_back_is_no_longer_named(tmp_path: Path) -> None:
    path, older = tmp_path / "store.db", tmp_path / "older.db"
    await _filled(path, "one")
    shutil.copy(path, older)
    await _filled(path, "two")
    newer = path.read_bytes()
    shutil.copy(older, path)
    assert len(await _damage(path)) == 1
    path.write_bytes(newer)
    assert await _damage(path) == []


async def test_another_message_in_the_place_of_the_last_one_is_found(tmp_path: Path) -> None:
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    await _filled(path, "one")
    shutil.copy(path, other)
    await _filled(path, "two")
    await _filled(other, "another two")
    shutil.copy(other, path)
    assert await _damage(path) == ["s: acknowledged up to message 2, and its messages from 2 on are others"]
    await _filled(path, "three")
    assert len(await _damage(path)) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\x00noise" * 50, None])
async def test_a_damaged_mark_is_reported_until_it_is_begun_anew(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "store.db"
    await _filled(path, "one")
    mark = Path(f"{path}-mark")
    mark.write_bytes(mark.read_bytes().replace(b'"s"', b'"z"') if content is None else content)
    assert [one.partition(" (")[0] for one in await _damage(path)] == [": the mark beside the file is damaged"]
    async with open_store(_url(path)) as store:
        store.mark.compact(force=True)
        assert not (await store.verify()).is_sound
        await store.accept_loss()
        found = await store.verify()
        assert (found.is_sound, found.marked) == (True, 1)


async def test_the_command_names_a_loss_and_accepts_it(tmp_path: Path) -> None:
    path, older = tmp_path / "store.db", tmp_path / "older.db"
    await _filled(path, "one")
    shutil.copy(path, older)
    await _filled(path, "two")
    shutil.copy(older, path)
    for options, exit_code in (((), 1), ((), 1), (("--accept-loss",), 0), ((), 0)):
        done = cli_runner.run_text("verify", "--store", path, *options, environment=os.environ)
        assert (done.returncode, "acknowledged up to message 2" in done.stdout) == (exit_code, exit_code == 1)


async def test_a_deleted_log_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _filled(path, "one")
    async with open_store(_url(path)) as store:
        await store.append("s", [text_message("two"), text_message("three")])
        store.mark.flush()
        whole = _copy(path, tmp_path / "whole", ("", "-mark", "-wal"))
        without = _copy(path, tmp_path / "without", ("", "-mark"))
    assert await _damage(whole) == []
    assert await _damage(without) == ["s: acknowledged up to message 3, and the session ends at message 1"]


async def test_messages_that_were_taken_from_the_end_are_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _filled(path, "one", "two", "three")
    connection = apsw.Connection(str(path))
    connection.execute(
        "DELETE FROM messages WHERE seq = 3; UPDATE sessions SET last_seq = 2, indexed_seq = 2"
    ).fetchall()
    connection.close()
    assert await _damage(path) == ["s: acknowledged up to message 3, and the session ends at message 2"]
    async with open_store(_url(path)) as store:
        assert len((await store.verify("s")).damage) == 1


async def test_a_store_that_was_moved_without_its_mark_is_sound_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _filled(path, "one")
    async with open_store(_url(path)) as store:
        assert (await store.verify()).marked == 1
    moved = _copy(path, tmp_path / "moved", ("",))
    async with open_store(_url(moved)) as store:
        found = await store.verify()
    assert (found.is_sound, found.marked) == (True, None)
    await _filled(moved, "two")
    shutil.copy(path, moved)
    assert await _damage(moved) == [
        "s: acknowledged up to message 2, and the session ends at message 1"
    ]  # there is one again


async def test_what_is_deleted_is_not_missing(tmp_path: Path, clock: Clock) -> None:
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
        assert [one.id for one in await store.retain(timedelta(days=90))] == ["old"]
        await store.delete_session("again")
        await store.create_session("again")
        fork = await store.fork("hers", user_id="bob")
        await store.erase_user("ann")
        other.mark.flush()
        store.mark.flush()
        assert (await store.verify()).is_sound
        assert _ends(store) == {"kept": 2, "again": 0, fork.id: 2}
        assert b"hers" not in Path(f"{path}-mark").read_bytes()  # it may tell who it was


async def test_a_deletion_that_does_not_happen_leaves_the_mark_in_force(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.db"
    async with open_store(_url(path)) as store:
        store.clock = clock
        await store.create_session("s")
        await store.append("s", text_message("x"))
        assert not await store.delete_if_inactive("s", clock.now)
        assert _ends(store) == {"s": 1}


async def test_the_mark_is_for_its_owner_alone_and_follows_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(high_water, "_FLUSH_INTERVAL_S", 0.0)
    path = tmp_path / "store.db"
    async with open_store(_url(path)) as store:
        await store.create_session("s")
        await store.append("s", text_message("x"))
        while _ends(store) != {"s": 1}:
            await asyncio.sleep(0)
    assert stat.S_IMODE(Path(f"{path}-mark").stat().st_mode) == 0o600


async def test_imports_are_marked(store: Store, store_location: StoreLocation, tmp_path: Path) -> None:
    await store.create_session("s")
    await store.append("s", [text_message("x"), text_message("y")])
    exported = [line async for line in store.export("s")]
    async with open_store(_url(tmp_path / "other.db")) as other:
        await other.import_session(exported)
        assert _ends(other) == {"s": 2}


def test_lines_that_cannot_be_read_are_counted_and_have_no_effect(tmp_path: Path) -> None:
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


async def test_a_mark_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "store.db"
    Path(f"{path}-mark").mkdir()
    await _filled(path, "one")
    assert "the mark beside the database could not be written" in caplog.text
    assert await _damage(path) == []


async def test_erasing_names_the_copies_beside_a_store_and_deletes_what_migrations_have_left(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(_url(path)) as store:
        await store.create_session("s", user_id="ann")
        await store.append("s", text_message("a secret"))
        await store.backup(tmp_path / "backup.db")
        shutil.copy(tmp_path / "backup.db", tmp_path / "store.db.schema-8")
        (tmp_path / "notes.db").write_bytes(b"SQLite format 3\0 of something else")
        named = await store.erase_user("ann")
        assert (named.copies_deleted, named.copies_left) == ((), ("backup.db", "store.db.schema-8"))
        deleted = await store.erase_user("ann", delete_copies=True)
        assert (deleted.copies_deleted, deleted.copies_left) == (("store.db.schema-8",), ("backup.db",))
        assert await store.erasures() == [named, deleted]
    assert not (tmp_path / "store.db.schema-8").exists()
