"""Large content is kept once, outside, and let go when nobody names it: in every place there is."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import CorruptDataError, StorageError, StoreUnusableError
from dragoman.store import Store, open_store
from dragoman.store.blobs import Blob, Blobs, FolderBlobs, MemoryBlobs, S3Blobs, blobs_from_url
from tests.servers.fixtures import free_ports
from tests.store.conftest import StoreLocation
from tests.store.messages import text_message

LARGE = "the whole report, at length. " * 1_000


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, runner: asyncio.Runner) -> str:
    """The URL of an empty place in a bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    url = f"s3://tests/{secrets.token_hex(4)}?endpoint={s3_server}"
    runner.run(_until_it_is_up(S3Blobs(url)))
    return url


async def _until_it_is_up(blobs: S3Blobs) -> None:
    give_up = time.monotonic() + 60
    while True:
        try:
            await blobs.put(name(b"up"), b"up")
            await blobs.delete(name(b"up"))
            return
        except StorageError:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.2)


def name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(params=["memory", "folder", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    match request.param:
        case "memory":
            return MemoryBlobs()
        case "folder":
            return FolderBlobs(tmp_path / "blobs")
        case _:
            return S3Blobs(request.getfixturevalue("bucket"))


async def listed(blobs: Blobs) -> list[Blob]:
    return [blob async for blob in blobs.list()]


# --- places ----------------------------------------------------------------------------------------------------------


async def test_what_is_put_is_got_until_it_is_let_go(blobs: Blobs) -> None:
    data = bytes(range(256)) * 500
    assert await listed(blobs) == []
    await blobs.put(name(data), data)
    assert await blobs.get(name(data)) == data
    (kept,) = await listed(blobs)
    assert (kept.sha256, kept.size) == (name(data), len(data))
    assert abs(kept.touched_at - time.time()) < 60
    await blobs.delete(name(data))
    await blobs.delete(name(data))
    assert await listed(blobs) == []
    with pytest.raises(CorruptDataError, match="missing"):
        await blobs.get(name(data))


async def test_what_is_not_what_its_name_says_is_never_given(blobs: Blobs) -> None:
    await blobs.put(name(b"one"), b"two")
    with pytest.raises(CorruptDataError, match="does not match its hash"):
        await blobs.get(name(b"one"))


@pytest.mark.parametrize(
    "bad", ["", "..", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 63 + "/", "/" + "a" * 63, "a" * 64 + "\n", "é" * 64]
)
async def test_a_name_that_is_no_hash_leads_nowhere(blobs: Blobs, bad: str) -> None:
    for asked in (blobs.put(bad, b"x"), blobs.get(bad)):
        with pytest.raises(CorruptDataError):
            await asked
    assert await listed(blobs) == []


async def test_putting_again_touches_and_mends(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    await blobs.put(name(b"one"), b"one")
    (path,) = (tmp_path / "blobs").glob("??/*")
    os.utime(path, (1, 1))
    await blobs.put(name(b"one"), b"one")
    assert time.time() - path.stat().st_mtime < 60
    path.write_bytes(b"on")
    await blobs.put(name(b"one"), b"one")
    assert await blobs.get(name(b"one")) == b"one"


@pytest.mark.parametrize(
    "url", ["", "x", "file://x", "http://x", "s3:", "s3://", "s3:///x", "s3://key:secret@bucket", "s3://bucket?key=x"]
)
def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        blobs_from_url(url)
    assert caught.value.code == "not_a_store"


async def test_a_server_that_is_not_there_is_a_failure_of_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    (port,) = free_ports(1)
    blobs = S3Blobs(f"s3://tests/x?endpoint=http://127.0.0.1:{port}")
    with pytest.raises(StorageError) as caught:
        await blobs.get(name(b"x"))
    assert "very-secret" not in str(caught.value)


async def test_every_engine_keeps_large_content_in_a_bucket(
    store_location: StoreLocation, bucket: str, tmp_path: Path
) -> None:
    async with open_store(store_location.url, blobs=bucket) as store:
        session = await store.create_session(user_id="ann")
        rows = await store.append(session.id, text_message(LARGE))
        assert await store.read(session.id) == rows
        assert [blob.sha256 async for blob in S3Blobs(bucket).list()] == [name(LARGE.encode())]
        assert (await store.verify()).blobs == 1
        assert (await store.sizes()).blob_bytes == len(LARGE)
        assert (await store.backup(tmp_path / "copy.db")).is_sound
        assert (await store.erase_user("ann")).blobs == 1
        assert await listed(S3Blobs(bucket)) == []


async def test_a_folder_may_be_named(tmp_path: Path) -> None:
    async with open_store("memory:", blobs=f"file://{tmp_path}/some%20where") as store:
        session = await store.create_session()
        await store.append(session.id, text_message(LARGE))
    assert len(list((tmp_path / "some where").glob("??/*"))) == 1


# --- collecting ------------------------------------------------------------------------------------------------------


def later(**by: float) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) + timedelta(**by)


async def test_what_nobody_names_is_let_go_after_an_hour(store: Store) -> None:
    session = await store.create_session()
    other = await store.create_session()
    await store.append(session.id, [text_message(LARGE), text_message(LARGE + "1")])
    (row,) = await store.append(other.id, text_message(LARGE))
    await store.blobs.put(name(b"nobody's"), b"nobody's")
    await store.delete_session(session.id)
    assert await store.collect_blobs() == 0
    assert len(await listed(store.blobs)) == 3
    store.clock = later(hours=2)
    assert await store.collect_blobs() == 2
    assert await store.read(other.id) == [row]
    assert (await store.verify()).is_sound
    assert await store.collect_blobs() == 0


async def test_what_interrupted_writes_left_is_let_go_too(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        session = await store.create_session()
        await store.append(session.id, text_message(LARGE))
        (kept,) = (tmp_path / "store.db-blobs").glob("??/*")
        half = kept.with_name(".0123456789abcdef")
        half.write_bytes(b"half")
        await store.collect_blobs()
        assert half.exists()
        os.utime(half, (1, 1))
        await store.collect_blobs()
        assert list(kept.parent.iterdir()) == [kept]


class Gate:
    """Blobs that stop at one of their methods until they are told to go on."""

    def __init__(self, blobs: Blobs, method: str, *, before: bool) -> None:
        self._blobs = blobs
        self._method = method
        self._before = before
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    def __getattr__(self, asked: str) -> Any:
        found = getattr(self._blobs, asked)
        return self._gated(found) if asked == self._method else found

    def _gated(self, found: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def gated(*arguments: Any) -> Any:
            given = None if self._before else await found(*arguments)
            self.reached.set()
            await self.open.wait()
            return await found(*arguments) if self._before else given

        return gated


async def test_content_that_is_put_again_while_it_is_let_go_is_there_in_the_end(
    database_location: StoreLocation,
) -> None:
    async with database_location.open() as writer, database_location.open() as collector:
        await writer.blobs.put(name(LARGE.encode()), LARGE.encode())
        session = await writer.create_session()
        collector.clock = later(hours=2)
        gate = collector.blobs = Gate(collector.blobs, "delete", before=True)
        collecting = asyncio.create_task(collector.collect_blobs())
        await gate.reached.wait()  # nobody names it, and in a moment it is gone
        writing = asyncio.create_task(writer.append(session.id, text_message(LARGE)))
        done, _ = await asyncio.wait([writing], timeout=0.2)
        assert not done  # it is not named before it has gone
        gate.open.set()
        assert await collecting == 1
        rows = await writing
        assert await writer.read(session.id) == rows
        assert (await writer.verify()).is_sound


async def test_content_that_is_put_and_not_named_yet_may_go_and_comes_back(database_location: StoreLocation) -> None:
    async with database_location.open() as writer, database_location.open() as collector:
        session = await writer.create_session()
        gate = writer.blobs = Gate(writer.blobs, "put", before=False)
        writing = asyncio.create_task(writer.append(session.id, text_message(LARGE)))
        await gate.reached.wait()  # it is there, and the row that names it is not
        collector.clock = later(hours=2)
        assert await collector.collect_blobs() == 1
        assert await listed(collector.blobs) == []
        gate.open.set()
        rows = await writing
        assert await writer.read(session.id) == rows
        assert (await writer.verify()).is_sound


async def test_without_the_states_of_large_content_a_writer_would_lose_it(
    database_location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(session_id: str, seq: int, sha256: str, renewed: int | None) -> Any:
        yield "INSERT INTO blob_refs (session_id, seq, sha256) VALUES (?, ?, ?)", (session_id, seq, sha256)

    monkeypatch.setattr("dragoman.store.message_writer._insert_blob_ref", named)  # the control: the race is really run
    with pytest.raises(CorruptDataError, match="missing"):
        await test_content_that_is_put_and_not_named_yet_may_go_and_comes_back(database_location)


async def test_a_collector_that_died_on_the_way_holds_nobody_up_for_long(database_location: StoreLocation) -> None:
    async with database_location.open() as writer, database_location.open() as collector:
        session = await writer.create_session()
        await writer.blobs.put(name(LARGE.encode()), LARGE.encode())
        collector.clock = later(hours=2)
        gate = collector.blobs = Gate(collector.blobs, "delete", before=True)
        collecting = asyncio.create_task(collector.collect_blobs())
        await gate.reached.wait()
        collecting.cancel()
        writer.clock = later(hours=3)
        rows = await writer.append(session.id, text_message(LARGE))
        assert await writer.read(session.id) == rows
        assert (await writer.verify()).is_sound


async def test_many_who_write_and_many_who_collect_lose_nothing(database_location: StoreLocation) -> None:
    async with database_location.open() as first, database_location.open() as second:
        sessions = [await first.create_session() for _ in range(4)]
        first.clock = second.clock = later(hours=2)

        async def write(store: Store, session_id: str) -> None:
            for number in range(12):
                await store.append(session_id, text_message(f"{number % 3} {LARGE}"))

        async def collect(store: Store) -> None:
            for _ in range(12):
                await store.collect_blobs()
                await asyncio.sleep(0.005)

        async def delete() -> None:
            for _ in range(6):
                await write_and_delete(second)

        writers = [write(store, one.id) for store, one in zip((first, second) * 2, sessions, strict=True)]
        await asyncio.gather(*writers, collect(first), collect(second), delete())
        for one in sessions:
            assert len(await first.read(one.id)) == 12
        assert (await first.verify()).damage == ()


async def write_and_delete(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message(f"1 {LARGE}"))
    await store.delete_session(session.id)
