"""Tests that every storage behaves alike, and tests of S3 and of opening a storage."""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from dragoman import attachments as room
from dragoman.attachments import MAX_BYTES, STATUSES, Attachments, Owner, UserFiles, open_attachments, response_headers
from dragoman.errors import (
    AttachmentError,
    AttachmentUrlError,
    DragomanError,
    StorageError,
    StoreUnusableError,
    UnknownAttachmentError,
)
from tests.attachments.conftest import ANN, BASE, BOB, STORAGES
from tests.attachments.samples import INVALID_FILES, TEXT, VALID_FILES, png
from tests.attachments.supabase_server import KEY
from tests.servers.fixtures import free_ports


def test_storages_lists_every_storage() -> None:
    (folder,) = room.__path__
    found = {path.stem for path in Path(folder).glob("*.py") if "async def direct_url" in path.read_text()}
    assert found == {*STORAGES, "types", "attachments"}


async def split_chunks(data: bytes, size: int = 1_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read_all(attachments: Attachments, bucket: str, path: str, owner: Owner | None) -> bytes:
    opened = await attachments.open(bucket, path, owner)
    data = b"".join([chunk async for chunk in opened.chunks])
    assert len(data) == opened.size
    return data


@pytest.mark.parametrize("mime_type", VALID_FILES)
async def test_stored_file_is_read_unchanged(attachments: Attachments, mime_type: str) -> None:
    data = VALID_FILES[mime_type]
    stored = await attachments.put(
        ANN, "thread-123", "run-456", split_chunks(data, 7), declared_type=mime_type, name="a/猫"
    )
    assert stored.bucket == attachments.bucket
    assert stored.path.startswith("agent-inputs/ann/thread-123/run-456/")
    assert (stored.mime_type, stored.size, stored.name) == (mime_type, len(data), "猫")
    assert stored.sha256 == hashlib.sha256(data).hexdigest()
    assert await read_all(attachments, stored.bucket, stored.path, ANN) == data
    assert await read_all(attachments, stored.bucket, stored.path, None) == data
    assert await attachments.read(stored.bucket, stored.path, ANN, mime_type, "猫") == (stored, data)


async def test_largest_file_is_stored_and_read(attachments: Attachments) -> None:
    data = png() + random.Random(1).randbytes(MAX_BYTES - len(png()))
    stored = await attachments.put(ANN, "t", "r", split_chunks(data, 64 * 1024), declared_type="image/png")
    assert stored.size == MAX_BYTES
    assert (await attachments.read(stored.bucket, stored.path, ANN))[1] == data


async def test_oversized_upload_is_rejected_while_streaming(attachments: Attachments) -> None:
    chunk_count = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal chunk_count
        while True:
            chunk_count += 1
            yield bytes(1024 * 1024)

    with pytest.raises(AttachmentError) as caught:
        await attachments.put(ANN, "t", "r", endless(), declared_type="image/png")
    assert caught.value.code == "attachment_too_large"
    assert chunk_count == 21


async def test_rejected_upload_leaves_no_file(in_folder: Attachments, tmp_path: Path) -> None:
    for data in INVALID_FILES.values():
        with pytest.raises(AttachmentError):
            await in_folder.put(ANN, "t", "r", data)
    assert list(tmp_path.iterdir()) == []


async def test_files_of_one_run_have_different_paths(attachments: Attachments) -> None:
    text = await attachments.put(ANN, "t", "r", TEXT)
    image = await attachments.put(ANN, "t", "r", png())
    assert text.path != image.path
    assert (await attachments.read(text.bucket, text.path, ANN))[1] == TEXT
    assert (await attachments.read(image.bucket, image.path, ANN))[1] == png()


async def test_delete_is_idempotent(attachments: Attachments) -> None:
    stored = await attachments.put(ANN, "t", "r", png())
    url = await attachments.signed_url(stored.bucket, stored.path, ANN)
    await attachments.delete(stored.bucket, stored.path, ANN)
    await attachments.delete(stored.bucket, stored.path, ANN)
    for operation in (
        attachments.open(stored.bucket, stored.path, ANN),
        attachments.read(stored.bucket, stored.path, ANN),
        attachments.signed_url(stored.bucket, stored.path, ANN),
        attachments.read_signed_url(url, ANN),
    ):
        with pytest.raises(UnknownAttachmentError):
            await operation


async def test_delete_all_removes_files_of_thread_or_user(attachments: Attachments) -> None:
    files = [await attachments.put(ANN, "t", f"r{number}", png()) for number in range(3)]
    other_thread = await attachments.put(ANN, "tt", "r", png())
    annie = await attachments.put(Owner("annie"), "t", "r", png())
    assert await attachments.delete_all(ANN, "t") == 3
    for file in files:
        with pytest.raises(UnknownAttachmentError):
            await attachments.open(file.bucket, file.path, ANN)
    assert await read_all(attachments, other_thread.bucket, other_thread.path, ANN) == png()
    assert await attachments.delete_all(ANN) == 1
    assert await attachments.delete_all(ANN) == 0
    assert await read_all(attachments, annie.bucket, annie.path, Owner("annie")) == png()


@pytest.fixture(params=STORAGES)
def attachments_and_url(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Attachments, str]:
    """Attachments and the URL of their storage."""
    attachments: Attachments = request.getfixturevalue(f"in_{request.param}")
    if request.param == "supabase":
        return attachments, f"supabase://{request.getfixturevalue('supabase').url}/agent-files?scheme=http"
    return attachments, request.getfixturevalue("bucket") if request.param == "s3" else (tmp_path / "files").as_uri()


async def test_user_files_are_erased_without_signing_key(attachments_and_url: tuple[Attachments, str]) -> None:
    attachments, url = attachments_and_url
    files = [await attachments.put(owner, "t", "r", png()) for owner in (ANN, ANN, BOB)]
    environment = {"SUPABASE_SERVICE_ROLE_KEY": KEY}
    assert await UserFiles(url, Owner("ann"), environment)() == 2
    assert await UserFiles(url, Owner("ann"), environment)() == 0
    assert await read_all(attachments, files[2].bucket, files[2].path, BOB) == png()


async def test_file_of_other_user_raises_same_error_as_missing_file(attachments: Attachments) -> None:
    stored = await attachments.put(ANN, "t", "r", png())
    url = await attachments.signed_url(stored.bucket, stored.path, ANN)
    missing = stored.path.replace("ann", "bob")
    errors = set()
    for operation in (
        attachments.open(stored.bucket, stored.path, BOB),
        attachments.read(stored.bucket, stored.path, BOB),
        attachments.delete(stored.bucket, stored.path, BOB),
        attachments.signed_url(stored.bucket, stored.path, BOB),
        attachments.read_signed_url(url, BOB),
        attachments.open(stored.bucket, missing, BOB),
        attachments.read(stored.bucket, missing, BOB),
        attachments.signed_url(stored.bucket, missing, BOB),
        attachments.open("other", stored.path, ANN),
    ):
        with pytest.raises(UnknownAttachmentError) as caught:
            await operation
        errors.add(str(caught.value))
    assert len(errors) == 1
    assert await read_all(attachments, stored.bucket, stored.path, ANN) == png()


async def test_signed_url_is_read_with_declared_type(attachments: Attachments) -> None:
    stored = await attachments.put(ANN, "t", "r", png(), name="x.png")
    url = await attachments.signed_url(stored.bucket, stored.path, ANN)
    assert "/storage/v1/object/sign/" in url
    assert attachments.parse_signed_url(url) == attachments.verify(url, ANN)
    assert await attachments.read_signed_url(url, ANN, "image/png", "x.png") == (stored, png())
    with pytest.raises(AttachmentError) as caught:
        await attachments.read_signed_url(url, ANN, "image/jpeg")
    assert caught.value.code == "type_mismatch"


async def test_foreign_url_is_rejected(attachments: Attachments) -> None:
    with pytest.raises(AttachmentUrlError) as caught:
        await attachments.read_signed_url(
            "https://evil/storage/v1/object/sign/agent-files/agent-inputs/ann/x?token=x", ANN
        )
    assert caught.value.code == "foreign_attachment_url"


async def test_unread_file_can_be_closed(attachments: Attachments) -> None:
    stored = await attachments.put(ANN, "t", "r", png())
    opened = await attachments.open(stored.bucket, stored.path, ANN)
    await opened.chunks.close()
    opened = await attachments.open(stored.bucket, stored.path, ANN)
    async for _ in opened.chunks:
        break
    await opened.chunks.close()
    assert await read_all(attachments, stored.bucket, stored.path, ANN) == png()


# --- S3 --------------------------------------------------------------------------------------------------------------


async def test_s3_serves_file_at_presigned_url(in_s3: Attachments) -> None:
    stored = await in_s3.put(ANN, "t", "r", TEXT, declared_type="text/plain")
    url = await in_s3.direct_url(stored.bucket, stored.path)
    assert url is not None
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as response:
            assert (response.status, await response.read()) == (200, TEXT)
            expected = response_headers(stored)
            for name in ("Content-Type", "Content-Disposition", "Cache-Control"):
                assert response.headers[name] == expected[name]
        async with session.get(url[:-1] + ("0" if url[-1] != "0" else "1")) as response:
            assert response.status == 403
        async with session.get(url.partition("?")[0]) as response:
            assert response.status == 403
        async with session.put(url, data=b"x") as response:
            assert response.status == 403


async def test_direct_url_is_opt_in(bucket: str, in_folder: Attachments, tmp_path: Path) -> None:
    in_s3 = open_attachments(bucket, base_url=BASE, keys_file=tmp_path / "keys.json", environment={})
    stored = await in_s3.put(ANN, "t", "r", png())
    assert await in_s3.direct_url(stored.bucket, stored.path) is None
    stored = await in_folder.put(ANN, "t", "r", png())
    assert await in_folder.direct_url(stored.bucket, stored.path) is None


async def test_unreachable_s3_server_raises_storage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    (port,) = free_ports(1)
    url = f"s3://tests/x?endpoint=http://127.0.0.1:{port}"
    opened = open_attachments(url, base_url=BASE, keys_file=tmp_path / "keys.json", environment={})
    with pytest.raises(StorageError) as caught:
        await opened.open("tests", "agent-inputs/ann/t/r/x.png", ANN)
    assert "very-secret" not in str(caught.value)


# --- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "x", "memory:", "file://x", "http://x", "s3://", "s3://a:b@c", "s3://b?key=x"])
def test_invalid_storage_url_is_rejected(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        open_attachments(url, base_url=BASE, keys_file=tmp_path / "keys.json", environment={})
    assert caught.value.code == "not_a_store"


def test_bucket_requires_keys_file() -> None:
    with pytest.raises(StoreUnusableError) as caught:
        open_attachments("s3://tests", base_url=BASE, environment={})
    assert caught.value.code == "unsafe_store"


async def test_signing_keys_are_read_from_environment(tmp_path: Path) -> None:
    environment = {"DRAGOMAN_SIGNING_KEYS": f"k:{'s' * 32}"}
    urls = []
    for _ in range(2):
        async with open_attachments((tmp_path / "f").as_uri(), base_url=BASE, environment=environment) as opened:
            stored = await opened.put(ANN, "t", "r", png())
            urls.append(await opened.signed_url(stored.bucket, stored.path, ANN))
            for url in urls:
                opened.verify(url, ANN)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


async def test_bucket_name_is_read_from_url(tmp_path: Path) -> None:
    async with open_attachments(f"file://{tmp_path}/a%20b?bucket=mine", base_url=BASE, environment={}) as opened:
        assert (await opened.put(ANN, "t", "r", png())).bucket == "mine"
    assert (tmp_path / "a b" / "mine" / "agent-inputs" / "ann").is_dir()


def test_every_attachment_error_has_http_status() -> None:
    (folder,) = room.__path__
    source = "".join(path.read_text() for path in Path(folder).glob("*.py"))
    raised = {AttachmentError, AttachmentUrlError, UnknownAttachmentError, StorageError}
    assert {cls.code for cls in raised} <= set(STATUSES)
    for cls in (AttachmentError, AttachmentUrlError):
        for code in inspect.getdoc(cls).partition("Codes: ")[2].partition(".")[0].replace("\n", " ").split(", "):  # type: ignore[union-attr]
            assert 400 <= STATUSES[code.strip()] < 500
            assert f'"{code.strip()}"' in source
    assert issubclass(UnknownAttachmentError, DragomanError)
