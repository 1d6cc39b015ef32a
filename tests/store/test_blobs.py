"""Tests of blobs: large content is stored once in every kind of storage and collected when unreferenced."""

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
    """The URL of an empty prefix in a bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    url = f"s3://tests/{secrets.token_hex(4)}?endpoint={s3_server}"
    runner.run(_wait_for_server(S3Blobs(url)))
    return url


async def _wait_for_server(blobs: S3Blobs) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            await blobs.put(hash_of(b"up"), b"up")
            await blobs.delete(hash_of(b"up"))
            return
        except StorageError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


def hash_of(data: bytes) -> str:
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


async def list_blobs(blobs: Blobs) -> list[Blob]:
    return [blob async for blob in blobs.list()]


# --- storages --------------------------------------------------------------------------------------------------------


async def test_blob_is_returned_until_deleted(blobs: Blobs) -> None:
    data = bytes(range(256)) * 500
    assert await list_blobs(blobs) == []
    await blobs.put(hash_of(data), data)
    assert await blobs.get(hash_of(data)) == data
    (stored,) = await list_blobs(blobs)
    assert (stored.sha256, stored.size) == (hash_of(data), len(data))
    assert abs(stored.touched_at - time.time()) < 60
    await blobs.delete(hash_of(data))
    await blobs.delete(hash_of(data))
    assert await list_blobs(blobs) == []
    with pytest.raises(CorruptDataError, match="missing"):
        await blobs.get(hash_of(data))


async def test_blob_with_wrong_hash_is_not_returned(blobs: Blobs) -> None:
    await blobs.put(hash_of(b"one"), b"two")
    with pytest.raises(CorruptDataError, match="does not match its hash"):
        await blobs.get(hash_of(b"one"))


@pytest.mark.parametrize(
    "invalid",
    ["", "..", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 63 + "/", "/" + "a" * 63, "a" * 64 + "\n", "é" * 64],
)
async def test_invalid_blob_name_is_rejected(blobs: Blobs, invalid: str) -> None:
    for operation in (blobs.put(invalid, b"x"), blobs.get(invalid)):
        with pytest.raises(CorruptDataError):
            await operation
    assert await list_blobs(blobs) == []


async def test_repeated_put_touches_and_repairs(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    await blobs.put(hash_of(b"one"), b"one")
    (path,) = (tmp_path / "blobs").glob("??/*")
    os.utime(path, (1, 1))
    await blobs.put(hash_of(b"one"), b"one")
    assert time.time() - path.stat().st_mtime < 60
    path.write_bytes(b"on")
    await blobs.put(hash_of(b"one"), b"one")
    assert await blobs.get(hash_of(b"one")) == b"one"


@pytest.mark.parametrize(
    "url", ["", "x", "file://x", "http://x", "s3:", "s3://", "s3:///x", "s3://key:secret@bucket", "s3://bucket?key=x"]
)
def test_invalid_blob_url_is_rejected(url: str) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        blobs_from_url(url)
    assert caught.value.code == "not_a_store"


async def test_unreachable_server_raises_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    (port,) = free_ports(1)
    blobs = S3Blobs(f"s3://tests/x?endpoint=http://127.0.0.1:{port}")
    with pytest.raises(StorageError) as caught:
        await blobs.get(hash_of(b"x"))
    assert "very-secret" not in str(caught.value)


async def test_every_engine_stores_large_content_in_bucket(
    store_location: StoreLocation, bucket: str, tmp_path: Path
) -> None:
    async with open_store(store_location.url, blobs=bucket) as store:
        session = await store.create_session(user_id="ann")
        rows = await store.append(session.id, text_message(LARGE))
        assert await store.read(session.id) == rows
        assert [blob.sha256 async for blob in S3Blobs(bucket).list()] == [hash_of(LARGE.encode())]
        assert (await store.verify()).blobs == 1
        assert (await store.sizes()).blob_bytes == len(LARGE)
        assert (await store.backup(tmp_path / "copy.db")).is_sound
        assert (await store.erase_user("ann")).blobs == 1
        assert await list_blobs(S3Blobs(bucket)) == []


async def test_blob_folder_is_configurable(tmp_path: Path) -> None:
    async with open_store("memory:", blobs=f"file://{tmp_path}/some%20where") as store:
        session = await store.create_session()
        await store.append(session.id, text_message(LARGE))
    assert len(list((tmp_path / "some where").glob("??/*"))) == 1


# --- collection ------------------------------------------------------------------------------------------------------


def clock_after(**by: float) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) + timedelta(**by)


async def test_unreferenced_blob_is_collected_after_an_hour(store: Store) -> None:
    session = await store.create_session()
    other = await store.create_session()
    await store.append(session.id, [text_message(LARGE), text_message(LARGE + "1")])
    (row,) = await store.append(other.id, text_message(LARGE))
    await store.blobs.put(hash_of(b"nobody's"), b"nobody's")
    await store.delete_session(session.id)
    assert await store.collect_blobs() == 0
    assert len(await list_blobs(store.blobs)) == 3
    store.clock = clock_after(hours=2)
    assert await store.collect_blobs() == 2
    assert await store.read(other.id) == [row]
    assert (await store.verify()).is_sound
    assert await store.collect_blobs() == 0


async def test_partial_files_are_collected(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        session = await store.create_session()
        await store.append(session.id, text_message(LARGE))
        (stored,) = (tmp_path / "store.db-blobs").glob("??/*")
        half = stored.with_name(".0123456789abcdef")
        half.write_bytes(b"half")
        await store.collect_blobs()
        assert half.exists()
        os.utime(half, (1, 1))
        await store.collect_blobs()
        assert list(stored.parent.iterdir()) == [stored]


class Gate:
    """Blobs that block at one of their methods until the gate opens."""

    def __init__(self, blobs: Blobs, method: str, *, before: bool) -> None:
        self._blobs = blobs
        self._method = method
        self._before = before
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._blobs, attribute)
        return self._wrap(value) if attribute == self._method else value

    def _wrap(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wait_at_gate(*arguments: Any) -> Any:
            result = None if self._before else await method(*arguments)
            self.reached.set()
            await self.open.wait()
            return await method(*arguments) if self._before else result

        return wait_at_gate


async def test_blob_written_during_its_collection_survives(
    database_location: StoreLocation,
) -> None:
    async with database_location.open() as writer, database_location.open() as collector:
        await writer.blobs.put(hash_of(LARGE.encode()), LARGE.encode())
        session = await writer.create_session()
        collector.clock = clock_after(hours=2)
        gate = collector.blobs = Gate(collector.blobs, "delete", before=True)
        collecting = asyncio.create_task(collector.collect_blobs())
        await gate.reached.wait()  # it is unreferenced and about to be deleted
        writing = asyncio.create_task(writer.append(session.id, text_message(LARGE)))
        done, _ = await asyncio.wait([writing], timeout=0.2)
        assert not done  # the reference waits for the deletion
        gate.open.set()
        assert await collecting == 1
        rows = await writing
        assert await writer.read(session.id) == rows
        assert (await writer.verify()).is_sound


async def test_blob_collected_before_its_reference_is_restored(database_location: StoreLocation) -> None:
    async with database_location.open() as writer, database_location.open() as collector:
        session = await writer.create_session()
        gate = writer.blobs = Gate(writer.blobs, "put", before=False)
        writing = asyncio.create_task(writer.append(session.id, text_message(LARGE)))
        await gate.reached.wait()  # the blob exists, its reference does not
        collector.clock = clock_after(hours=2)
        assert await collector.collect_blobs() == 1
        assert await list_blobs(collector.blobs) == []
        gate.open.set()
        rows = await writing
        assert await writer.read(session.id) == rows
        assert (await writer.verify()).is_sound


async def test_without_blob_states_content_is_lost(
    database_location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def insert_reference_only(session_id: str, seq: int, sha256: str, renewed: int | None) -> Any:
        yield "INSERT INTO blob_refs (session_id, seq, sha256) VALUES (?, ?, ?)", (session_id, seq, sha256)

    monkeypatch.setattr(
        "dragoman.store.message_writer._insert_blob_ref", insert_reference_only
    )  # control: the race really happens
    with pytest.raises(CorruptDataError, match="missing"):
        await test_blob_collected_before_its_reference_is_restored(database_location)


async def test_dead_collector_does_not_block_writers(database_location: StoreLocation) -> None:
    async with database_location.open() as writer, database_location.open() as collector:
        session = await writer.create_session()
        await writer.blobs.put(hash_of(LARGE.encode()), LARGE.encode())
        collector.clock = clock_after(hours=2)
        gate = collector.blobs = Gate(collector.blobs, "delete", before=True)
        collecting = asyncio.create_task(collector.collect_blobs())
        await gate.reached.wait()
        collecting.cancel()
        writer.clock = clock_after(hours=3)
        rows = await writer.append(session.id, text_message(LARGE))
        assert await writer.read(session.id) == rows
        assert (await writer.verify()).is_sound


async def test_concurrent_writers_and_collectors_lose_no_blob(database_location: StoreLocation) -> None:
    async with database_location.open() as first, database_location.open() as second:
        sessions = [await first.create_session() for _ in range(4)]
        first.clock = second.clock = clock_after(hours=2)

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
        for session_item in sessions:
            assert len(await first.read(session_item.id)) == 12
        assert (await first.verify()).damage == ()


async def write_and_delete(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message(f"1 {LARGE}"))
    await store.delete_session(session.id)
