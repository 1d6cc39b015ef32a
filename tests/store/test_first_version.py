"""A store that the first version wrote is opened by this one: everything is in it, and it goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from dragoman.message import UnknownBlock
from dragoman.store import open_store
from dragoman.store.engines.tables import migrations
from tests.store import first_version
from tests.store.messages import text_message


def is_there(then: Any, now: Any) -> bool:
    """Whether an answer holds what it held then. A later version may say more."""
    if isinstance(then, dict):
        return all(name in now and is_there(held, now[name]) for name, held in then.items())
    if isinstance(then, list):
        return len(then) == len(now) and all(map(is_there, then, now))
    return bool(then == now)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A copy, since to open it is to change it."""
    copy = tmp_path / "store.db"
    shutil.copy(first_version.DATABASE, copy)
    shutil.copytree(first_version.BLOBS, f"{copy}-blobs")
    return f"sqlite:///{copy}"


async def test_everything_in_it_is_what_it_was(url: str) -> None:
    expected = json.loads(first_version.ANSWERS.read_text("utf-8"))
    async with open_store(url) as store:
        assert is_there(expected, await first_version.answers(store))
        verification = await store.verify()
    assert verification.is_sound
    assert verification.messages == 13
    assert verification.blobs == 2


async def test_the_answers_hold_something_of_everything() -> None:
    expected = json.loads(first_version.ANSWERS.read_text("utf-8"))
    calls = {call["status"] for calls in expected["tool_calls"].values() for call in calls}
    assert calls == {"pending", "succeeded", "failed", "cancelled"}
    assert all(expected["search"].values())
    assert expected["erasures"]
    assert len(expected["entries"][first_version.QUIET]) == 2
    assert expected["totals"]["day"]
    assert [session["parent_session_id"] is not None for session in expected["sessions"]].count(True) == 2
    files = [path for path in first_version.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200_000


async def test_it_goes_on(url: str) -> None:
    async with open_store(url) as store:
        session = await store.get_session(first_version.TALK)
        again = await store.append(session.id, first_version.question(), idempotency_key=first_version.KEY)
        assert [row.seq for row in again] == [1, 2]
        await store.update(session.id, first_version.arriving("It is being streamed, and has ended"))
        (row,) = await store.append(session.id, text_message("And now?"), expected_seq=session.last_seq)
        fork = await store.fork(session.id)
        history = [one async for one in store.history(fork.id)]
        assert history[-1] == row
        assert history[-2].message.content[0].text == "It is being streamed, and has ended"
        assert (await store.verify()).is_sound


async def test_what_a_newer_version_wrote_is_kept_when_it_is_stored_again(url: str) -> None:
    async with open_store(url) as store:
        newer = first_version.newer()
        row = await store.get_message(first_version.TALK, newer.id)
        assert row.message == newer
        assert isinstance(row.message.content[0], UnknownBlock)
        session = await store.create_session()
        (stored,) = await store.append(session.id, row.message.replace(session_id=session.id))
        assert (await store.read(session.id))[0].message == stored.message
        assert stored.message.replace(session_id=newer.session_id) == newer


async def test_it_was_copied_before_it_was_changed_and_has_what_later_versions_added(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    async with open_store(url) as store:
        assert await store.trace.events(first_version.TALK) == []
        await store.evaluations.record(first_version.TALK, score=1)
        assert (await store.verify()).is_sound
    copy = path.with_name(f"{path.name}.schema-1")
    assert [version_of(file) for file in (first_version.DATABASE, copy, path)] == [1, 1, len(migrations("sqlite"))]


def version_of(path: Path) -> int:
    connection = apsw.Connection(str(path))
    try:
        return int(connection.pragma("user_version"))
    finally:
        connection.close()


async def test_the_same_is_made_again(tmp_path: Path) -> None:
    expected = json.loads(first_version.ANSWERS.read_text("utf-8"))
    await first_version.make(tmp_path / "store.db")
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert is_there(expected, await first_version.answers(store))
