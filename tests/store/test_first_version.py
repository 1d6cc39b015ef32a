"""Tests that this version opens a store of the first version with all its data."""

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


def contains_values(expected: Any, actual: Any) -> bool:
    """Return whether an answer contains the expected values. A later version may add values."""
    if isinstance(expected, dict):
        return all(name in actual and contains_values(value, actual[name]) for name, value in expected.items())
    if isinstance(expected, list):
        return len(expected) == len(actual) and all(map(contains_values, expected, actual))
    return bool(expected == actual)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a copy, because opening migrates the file."""
    copy = tmp_path / "store.db"
    shutil.copy(first_version.DATABASE, copy)
    shutil.copytree(first_version.BLOBS, f"{copy}-blobs")
    return f"sqlite:///{copy}"


async def test_old_store_returns_recorded_answers(url: str) -> None:
    expected = json.loads(first_version.ANSWERS.read_text("utf-8"))
    async with open_store(url) as store:
        assert contains_values(expected, await first_version.read_answers(store))
        verification = await store.verify()
    assert verification.is_sound
    assert verification.messages == 13
    assert verification.blobs == 2


async def test_recorded_answers_cover_every_feature() -> None:
    expected = json.loads(first_version.ANSWERS.read_text("utf-8"))
    calls = {call["status"] for calls in expected["tool_calls"].values() for call in calls}
    assert calls == {"pending", "succeeded", "failed", "cancelled"}
    assert all(expected["search"].values())
    assert expected["erasures"]
    assert len(expected["entries"][first_version.ENTRIES_SESSION]) == 2
    assert expected["totals"]["day"]
    assert [session["parent_session_id"] is not None for session in expected["sessions"]].count(True) == 2
    files = [path for path in first_version.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200_000


async def test_old_store_can_be_extended(url: str) -> None:
    async with open_store(url) as store:
        session = await store.get_session(first_version.CONVERSATION)
        repeated = await store.append(session.id, first_version.create_question(), idempotency_key=first_version.KEY)
        assert [row.seq for row in repeated] == [1, 2]
        await store.update(session.id, first_version.create_partial_message("It is being streamed, and has ended"))
        (row,) = await store.append(session.id, text_message("And now?"), expected_seq=session.last_seq)
        fork = await store.fork(session.id)
        history = [row async for row in store.history(fork.id)]
        assert history[-1] == row
        assert history[-2].message.content[0].text == "It is being streamed, and has ended"
        assert (await store.verify()).is_sound


async def test_newer_message_is_stored_unchanged(url: str) -> None:
    async with open_store(url) as store:
        newer = first_version.create_newer_message()
        row = await store.get_message(first_version.CONVERSATION, newer.id)
        assert row.message == newer
        assert isinstance(row.message.content[0], UnknownBlock)
        session = await store.create_session()
        (stored,) = await store.append(session.id, row.message.replace(session_id=session.id))
        assert (await store.read(session.id))[0].message == stored.message
        assert stored.message.replace(session_id=newer.session_id) == newer


async def test_migration_backs_up_and_adds_tables(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    async with open_store(url) as store:
        assert await store.trace.events(first_version.CONVERSATION) == []
        await store.evaluations.record(first_version.CONVERSATION, score=1)
        assert (await store.verify()).is_sound
    copy = path.with_name(f"{path.name}.schema-1")
    assert [read_version(file) for file in (first_version.DATABASE, copy, path)] == [1, 1, len(migrations("sqlite"))]


def read_version(path: Path) -> int:
    connection = apsw.Connection(str(path))
    try:
        return int(connection.pragma("user_version"))
    finally:
        connection.close()


async def test_rewritten_store_returns_same_answers(tmp_path: Path) -> None:
    expected = json.loads(first_version.ANSWERS.read_text("utf-8"))
    await first_version.write_store(tmp_path / "store.db")
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert contains_values(expected, await first_version.read_answers(store))
