"""Every storage behaves alike: what is put is read by its owner, and by nobody else."""

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
from tests.attachments.samples import REFUSED, TAKEN, TEXT, png
from tests.attachments.supabase_server import KEY
from tests.servers.fixtures import free_ports


def test_every_storage_that_there_is_is_tested() -> None:
    (folder,) = room.__path__
    found = {path.stem for path in Path(folder).glob("*.py") if "async def direct_url" in path.read_text()}
    assert found == {*STORAGES, "types", "attachments"}


async def pieces(data: bytes, size: int = 1_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def all_of(attachments: Attachments, bucket: str, path: str, owner: Owner | None) -> bytes:
    opened = await attachments.open(bucket, path, owner)
    data = b"".join([chunk async for chunk in opened.chunks])
    assert len(data) == opened.size
    return data


@pytest.mark.parametrize("mime_type", TAKEN)
async def test_what_is_put_is_read_as_it_was(attachments: Attachments, mime_type: str) -> None:
    data = TAKEN[mime_type]
    stored = await attachments.put(ANN, "thread-123", "run-456", pieces(data, 7), declared_type=mime_type, name="a/猫")
    assert stored.bucket == attachments.bucket
    assert stored.path.startswith("agent-inputs/ann/thread-123/run-456/")
    assert (stored.mime_type, stored.size, stored.name) == (mime_type, len(data), "猫")
    assert stored.sha256 == hashlib.sha256(data).hexdigest()
    assert await all_of(attachments, stored.bucket, stored.path, ANN) == data
    assert await all_of(attachments, stored.bucket, stored.path, None) == data
    assert await attachments.read(stored.bucket, stored.path, ANN, mime_type, "猫") == (stored, data)


async def test_the_largest_file_goes_in_and_comes_back(attachments: Attachments) -> None:
    data = png() + random.Random(1).randbytes(MAX_BYTES - len(png()))
    stored = await attachments.put(ANN, "t", "r", pieces(data, 64 * 1024), declared_type="image/png")
    assert stored.size == MAX_BYTES
    assert (await attachments.read(stored.bucket, stored.path, ANN))[1] == data


async def test_what_is_too_large_is_refused_while_it_comes(attachments: Attachments) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield bytes(1024 * 1024)

    with pytest.raises(AttachmentError) as caught:
        await attachments.put(ANN, "t", "r", endless(), declared_type="image/png")
    assert caught.value.code == "attachment_too_large"
    assert taken == 21


async def test_what_is_refused_leaves_nothing(in_folder: Attachments, tmp_path: Path) -> None:
    for data in REFUSED.values():
        with pytest.raises(AttachmentError):
            await in_folder.put(ANN, "t", "r", data)
    assert list(tmp_path.iterdir()) == []


async def test_two_files_of_one_run_are_two(attachments: Attachments) -> None:
    one = await attachments.put(ANN, "t", "r", TEXT)
    other = await attachments.put(ANN, "t", "r", png())
    assert one.path != other.path
    assert (await attachments.read(one.bucket, one.path, ANN))[1] == TEXT
    assert (await attachments.read(other.bucket, other.path, ANN))[1] == png()


async def test_what_is_deleted_is_gone_and_may_be_deleted_again(attachments: Attachments) -> None:
    stored = await attachments.put(ANN, "t", "r", png())
    url = await attachments.signed_url(stored.bucket, stored.path, ANN)
    await attachments.delete(stored.bucket, stored.path, ANN)
    await attachments.delete(stored.bucket, stored.path, ANN)
    for asked in (
        attachments.open(stored.bucket, stored.path, ANN),
        attachments.read(stored.bucket, stored.path, ANN),
        attachments.signed_url(stored.bucket, stored.path, ANN),
        attachments.read_signed_url(url, ANN),
    ):
        with pytest.raises(UnknownAttachmentError):
            await asked


async def test_everything_of_a_thread_or_of_a_user_can_be_let_go(attachments: Attachments) -> None:
    kept = [await attachments.put(ANN, "t", f"r{number}", png()) for number in range(3)]
    other_thread = await attachments.put(ANN, "tt", "r", png())
    annie = await attachments.put(Owner("annie"), "t", "r", png())
    assert await attachments.delete_all(ANN, "t") == 3
    for one in kept:
        with pytest.raises(UnknownAttachmentError):
            await attachments.open(one.bucket, one.path, ANN)
    assert await all_of(attachments, other_thread.bucket, other_thread.path, ANN) == png()
    assert await attachments.delete_all(ANN) == 1
    assert await attachments.delete_all(ANN) == 0
    assert await all_of(attachments, annie.bucket, annie.path, Owner("annie")) == png()


@pytest.fixture(params=STORAGES)
def kept_at(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Attachments, str]:
    """Attachments, and the URL of where they are."""
    attachments: Attachments = request.getfixturevalue(f"in_{request.param}")
    if request.param == "supabase":
        return attachments, f"supabase://{request.getfixturevalue('supabase').url}/agent-files?scheme=http"
    return attachments, request.getfixturevalue("bucket") if request.param == "s3" else (tmp_path / "files").as_uri()


async def test_who_erases_a_user_needs_no_key_that_signs(kept_at: tuple[Attachments, str]) -> None:
    attachments, url = kept_at
    kept = [await attachments.put(one, "t", "r", png()) for one in (ANN, ANN, BOB)]
    environment = {"SUPABASE_SERVICE_ROLE_KEY": KEY}
    assert await UserFiles(url, Owner("ann"), environment)() == 2
    assert await UserFiles(url, Owner("ann"), environment)() == 0
    assert await all_of(attachments, kept[2].bucket, kept[2].path, BOB) == png()


async def test_what_is_somebody_else_s_is_told_in_the_words_for_what_is_missing(attachments: Attachments) -> None:
    stored = await attachments.put(ANN, "t", "r", png())
    url = await attachments.signed_url(stored.bucket, stored.path, ANN)
    gone = stored.path.replace("ann", "bob")
    said = set()
    for asked in (
        attachments.open(stored.bucket, stored.path, BOB),
        attachments.read(stored.bucket, stored.path, BOB),
        attachments.delete(stored.bucket, stored.path, BOB),
        attachments.signed_url(stored.bucket, stored.path, BOB),
        attachments.read_signed_url(url, BOB),
        attachments.open(stored.bucket, gone, BOB),
        attachments.read(stored.bucket, gone, BOB),
        attachments.signed_url(stored.bucket, gone, BOB),
        attachments.open("other", stored.path, ANN),
    ):
        with pytest.raises(UnknownAttachmentError) as caught:
            await asked
        said.add(str(caught.value))
    assert len(said) == 1
    assert await all_of(attachments, stored.bucket, stored.path, ANN) == png()


async def test_a_url_that_came_with_a_message_is_read_for_the_model(attachments: Attachments) -> None:
    stored = await attachments.put(ANN, "t", "r", png(), name="x.png")
    url = await attachments.signed_url(stored.bucket, stored.path, ANN)
    assert "/storage/v1/object/sign/" in url
    assert attachments.parse_signed_url(url) == attachments.verify(url, ANN)
    assert await attachments.read_signed_url(url, ANN, "image/png", "x.png") == (stored, png())
    with pytest.raises(AttachmentError) as caught:
        await attachments.read_signed_url(url, ANN, "image/jpeg")
    assert caught.value.code == "type_mismatch"


async def test_a_foreign_url_is_refused_and_not_called(attachments: Attachments) -> None:
    with pytest.raises(AttachmentUrlError) as caught:
        await attachments.read_signed_url(
            "https://evil/storage/v1/object/sign/agent-files/agent-inputs/ann/x?token=x", ANN
        )
    assert caught.value.code == "foreign_attachment_url"


async def test_a_file_that_nobody_reads_can_be_let_go(attachments: Attachments) -> None:
    stored = await attachments.put(ANN, "t", "r", png())
    opened = await attachments.open(stored.bucket, stored.path, ANN)
    await opened.chunks.close()
    opened = await attachments.open(stored.bucket, stored.path, ANN)
    async for _ in opened.chunks:
        break
    await opened.chunks.close()
    assert await all_of(attachments, stored.bucket, stored.path, ANN) == png()


# --- S3 --------------------------------------------------------------------------------------------------------------


async def test_s3_serves_a_file_itself_under_a_url_that_it_signs(in_s3: Attachments) -> None:
    stored = await in_s3.put(ANN, "t", "r", TEXT, declared_type="text/plain")
    url = await in_s3.direct_url(stored.bucket, stored.path)
    assert url is not None
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert (answer.status, await answer.read()) == (200, TEXT)
            kept = response_headers(stored)
            for name in ("Content-Type", "Content-Disposition", "Cache-Control"):
                assert answer.headers[name] == kept[name]
        async with session.get(url[:-1] + ("0" if url[-1] != "0" else "1")) as answer:
            assert answer.status == 403
        async with session.get(url.partition("?")[0]) as answer:
            assert answer.status == 403
        async with session.put(url, data=b"x") as answer:
            assert answer.status == 403


async def test_without_being_told_so_s3_serves_nothing_itself(
    bucket: str, in_folder: Attachments, tmp_path: Path
) -> None:
    plain = open_attachments(bucket, base_url=BASE, keys_file=tmp_path / "keys.json", environment={})
    stored = await plain.put(ANN, "t", "r", png())
    assert await plain.direct_url(stored.bucket, stored.path) is None
    stored = await in_folder.put(ANN, "t", "r", png())
    assert await in_folder.direct_url(stored.bucket, stored.path) is None


async def test_an_s3_server_that_is_not_there_is_a_failure_of_storage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    (port,) = free_ports(1)
    url = f"s3://tests/x?endpoint=http://127.0.0.1:{port}"
    made = open_attachments(url, base_url=BASE, keys_file=tmp_path / "keys.json", environment={})
    with pytest.raises(StorageError) as caught:
        await made.open("tests", "agent-inputs/ann/t/r/x.png", ANN)
    assert "very-secret" not in str(caught.value)


# --- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "x", "memory:", "file://x", "http://x", "s3://", "s3://a:b@c", "s3://b?key=x"])
def test_a_url_that_names_no_storage_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        open_attachments(url, base_url=BASE, keys_file=tmp_path / "keys.json", environment={})
    assert caught.value.code == "not_a_store"


def test_without_a_place_for_keys_no_bucket_is_opened() -> None:
    with pytest.raises(StoreUnusableError) as caught:
        open_attachments("s3://tests", base_url=BASE, environment={})
    assert caught.value.code == "unsafe_store"


async def test_keys_may_come_from_the_environment(tmp_path: Path) -> None:
    environment = {"DRAGOMAN_SIGNING_KEYS": f"k:{'s' * 32}"}
    urls = []
    for _ in range(2):
        async with open_attachments((tmp_path / "f").as_uri(), base_url=BASE, environment=environment) as made:
            stored = await made.put(ANN, "t", "r", png())
            urls.append(await made.signed_url(stored.bucket, stored.path, ANN))
            for url in urls:
                made.verify(url, ANN)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


async def test_a_bucket_may_be_named(tmp_path: Path) -> None:
    async with open_attachments(f"file://{tmp_path}/a%20b?bucket=mine", base_url=BASE, environment={}) as made:
        assert (await made.put(ANN, "t", "r", png())).bucket == "mine"
    assert (tmp_path / "a b" / "mine" / "agent-inputs" / "ann").is_dir()


def test_every_error_of_this_room_has_a_status() -> None:
    (folder,) = room.__path__
    source = "".join(path.read_text() for path in Path(folder).glob("*.py"))
    raised = {AttachmentError, AttachmentUrlError, UnknownAttachmentError, StorageError}
    assert {cls.code for cls in raised} <= set(STATUSES)
    for cls in (AttachmentError, AttachmentUrlError):
        for code in inspect.getdoc(cls).partition("Codes: ")[2].partition(".")[0].replace("\n", " ").split(", "):  # type: ignore[union-attr]
            assert 400 <= STATUSES[code.strip()] < 500
            assert f'"{code.strip()}"' in source
    assert issubclass(UnknownAttachmentError, DragomanError)
