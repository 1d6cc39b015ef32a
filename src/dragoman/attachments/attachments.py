"""The room itself: every rule once, over whichever storage there is.

The one rule: whatever comes from outside is checked here, in the order path, owner, content, before a storage is asked.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from dragoman.attachments.file_types import EXTENSIONS, too_large_error, type_from_path, validate_type
from dragoman.attachments.folder import FolderStorage
from dragoman.attachments.paths import (
    clean_name,
    new_path,
    not_found_error,
    prefix_of,
    validate_bucket,
    validate_owner,
    validate_path,
)
from dragoman.attachments.s3 import S3Storage
from dragoman.attachments.serving import make_headers
from dragoman.attachments.signed_urls import UrlSigner
from dragoman.attachments.signing_keys import SigningKeys
from dragoman.attachments.supabase import SupabaseStorage
from dragoman.attachments.types import MAX_BYTES, MAX_TTL_S, Location, OpenFile, Owner, SignedUrls, Storage, StoredFile
from dragoman.errors import StorageError, StoreUnusableError
from dragoman.ids import ulid

KEYS_VARIABLE: Final = "DRAGOMAN_SIGNING_KEYS"
DEFAULT_BUCKET: Final = "agent-files"


class Files:
    """Files of users, for who lets them go and needs no URL. Use it with ``async with``, or close it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def bucket(self) -> str:
        """The one bucket that there is."""
        return self._storage.bucket

    async def delete(self, bucket: str, path: str, owner: Owner) -> bool:
        """Let a file go; whether it was there."""
        return await self._storage.delete(self._validate(bucket, path, owner))

    async def delete_all(self, owner: Owner, thread: str | None = None) -> int:
        """Let all files of a user go, or those of one thread; how many there were."""
        return await self._storage.delete_under(prefix_of(owner, thread))

    async def close(self) -> None:
        """Close every connection."""
        await self._storage.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _validate(self, bucket: str, path: str, owner: Owner | None) -> str:
        if validate_bucket(bucket) != self.bucket:
            raise not_found_error()
        path = validate_path(path)
        return path if owner is None else validate_owner(path, owner)


class Attachments(Files):
    """Files that users send with their messages. Use it with ``async with``, or close it."""

    def __init__(self, storage: Storage, urls: SignedUrls, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(storage)
        self._urls = urls
        self.clock = clock  # in seconds since 1970

    async def put(
        self,
        owner: Owner,
        thread: str,
        run: str,
        data: AsyncIterable[bytes] | bytes,
        *,
        declared_type: str | None = None,
        name: str | None = None,
    ) -> StoredFile:
        """Keep a file, if it is of a type that is taken, of the declared one, and not too large."""
        content = await _collect(data)
        mime_type = validate_type(content, declared_type)
        file_id = ulid(int(self.clock() * 1000), secrets.randbits(80))
        path = new_path(owner, thread, run, file_id, EXTENSIONS[mime_type])
        await self._storage.write(path, content, make_headers(path, mime_type, len(content)))
        return self._describe(path, mime_type, content, name)

    async def open(self, bucket: str, path: str, owner: Owner | None) -> OpenFile:
        """A file to be sent to somebody: its owner, or whoever has shown a signed URL (then ``owner`` is none).

        Its type is the one that its path ends in. Send it with ``response_headers``, and read its chunks to their end,
        or close them.
        """
        path = self._validate(bucket, path, owner)
        size, chunks = await self._storage.stream(path)
        return OpenFile(path, type_from_path(path), size, chunks)

    async def read(
        self, bucket: str, path: str, owner: Owner, declared_type: str | None = None, name: str | None = None
    ) -> tuple[StoredFile, bytes]:
        """A file whole, for a model. Its content is looked at again: a storage may hold what others put there."""
        file = await self.open(bucket, path, owner)
        try:
            data = await _collect(file.chunks)
        finally:
            await file.chunks.close()
        if len(data) != file.size:
            raise StorageError("the storage sent less of an attachment than there is")
        return self._describe(file.path, validate_type(data, declared_type), data, name), data

    # --- signed URLs -------------------------------------------------------------------------------------------------

    async def signed_url(self, bucket: str, path: str, owner: Owner, ttl_s: int = MAX_TTL_S) -> str:
        """A URL under which a file of this owner can be read for a while, 15 minutes at most."""
        path = self._validate(bucket, path, owner)
        await self._storage.size(path)
        return await self._urls.sign(path, owner, ttl_s, self.clock())

    def parse_signed_url(self, url: str) -> Location:
        """Where a URL leads, if it can be one of ours. Whether it may be used, ``verify`` tells."""
        return self._urls.locate(url)

    def verify(self, url: str, owner: Owner | None, now: float | None = None) -> Location:
        """Where a URL leads, if it is ours, unchanged, not over, and made for this owner and his own path.

        Without an owner it is who has the URL that may read: for the door that serves it, and for nothing else.
        """
        location, url_owner = self._urls.verify(url, self.clock() if now is None else now)
        return _check_owner(location, url_owner, owner)

    async def read_signed_url(
        self, url: str, owner: Owner, declared_type: str | None = None, name: str | None = None
    ) -> tuple[StoredFile, bytes]:
        """The file behind a signed URL that came with a message, if it is this owner's.

        The host that the URL names is never called. A token that only the storage can verify is shown to the storage
        that was configured, and only for a path of the owner's own.
        """
        location, url_owner = await self._urls.confirm(url, owner, self.clock())
        location = _check_owner(location, url_owner, owner)
        return await self.read(location.bucket, location.path, owner, declared_type, name)

    async def direct_url(self, bucket: str, path: str, ttl_s: int = 60) -> str | None:
        """Where the storage itself serves a file, if it was set up so: for a redirect after ``verify``."""
        return await self._storage.direct_url(self._validate(bucket, path, None), min(ttl_s, MAX_TTL_S))

    def _describe(self, path: str, mime_type: str, data: bytes, name: str | None) -> StoredFile:
        digest = hashlib.sha256(data).hexdigest()
        return StoredFile(self.bucket, path, mime_type, len(data), digest, clean_name(name))


def _check_owner(location: Location, url_owner: Owner | None, owner: Owner | None) -> Location:
    """The place, if it is the owner's and the URL was made for them; without an owner, any place."""
    if owner is not None:
        validate_owner(location.path, owner)
        if url_owner is not None and url_owner != owner:
            raise not_found_error()
    return location


async def _collect(data: AsyncIterable[bytes] | bytes) -> bytes:
    """All of it, as long as it is not too much."""
    if isinstance(data, bytes):
        return data
    chunks: list[bytes] = []
    size = 0
    async for chunk in data:
        size += len(chunk)
        if size > MAX_BYTES:
            raise too_large_error(MAX_BYTES)
        chunks.append(chunk)
    return b"".join(chunks)


def open_attachments(
    url: str,
    *,
    base_url: str,
    keys_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> Attachments:
    """The attachments that a URL names: ``file:///folder``, ``s3://bucket/prefix?…`` or ``supabase://host/bucket``.

    ``base_url`` is where our own server is reached; our signed URLs begin with it. ``keys_file`` is where the keys that
    sign them are kept; without it they lie beside the folder of ``file:``, or come from ``DRAGOMAN_SIGNING_KEYS``.
    """
    environment = os.environ if environment is None else environment
    storage = _open_storage(url, environment)
    if isinstance(storage, SupabaseStorage):
        return Attachments(storage, storage, clock=clock)
    folder = _folder_from(url) if isinstance(storage, FolderStorage) else None
    default_file = folder.with_name(f"{folder.name}-keys.json") if folder is not None else None
    keys = _open_keys(environment, keys_file or default_file)
    return Attachments(storage, UrlSigner(base_url, storage.bucket, keys), clock=clock)


def open_files(url: str, environment: Mapping[str, str] | None = None) -> Files:
    """The files that a URL names, for whoever lets some go and has no server. It takes no key to sign with.

    What is wrong with the URL is said here, before anything is deleted.
    """
    return Files(_open_storage(url, os.environ if environment is None else environment))


class UserFiles:
    """The files of one user at a URL, for whoever has to let all of them go; see ``open_files``."""

    def __init__(self, url: str, owner: Owner, environment: Mapping[str, str] | None = None) -> None:
        self._files = open_files(url, environment)
        self._owner = owner

    async def __call__(self) -> int:
        """Let all of them go; how many there were."""
        async with self._files as files:
            return await files.delete_all(self._owner)


def _open_storage(url: str, environment: Mapping[str, str]) -> Storage:
    if url.startswith("supabase://"):
        return SupabaseStorage(url, environment)
    if url.startswith("s3://"):
        return S3Storage(url)
    if url.startswith("file:///"):
        return FolderStorage(_folder_from(url), dict(parse_qsl(urlsplit(url).query)).get("bucket", DEFAULT_BUCKET))
    raise StoreUnusableError(
        "no attachments can be kept there",
        where=repr(url[:200]),
        remedy="Use file:///folder, s3://bucket/prefix or supabase://host/bucket",
        code="not_a_store",
    )


def _folder_from(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _open_keys(environment: Mapping[str, str], file: Path | None) -> SigningKeys:
    if text := environment.get(KEYS_VARIABLE, "").strip():
        return SigningKeys.from_text(text, KEYS_VARIABLE)
    if file is None:
        raise StoreUnusableError(
            "there is no place for the keys that sign URLs",
            remedy=f"Name a file for them, or set {KEYS_VARIABLE} to kid:secret",
            code="unsafe_store",
        )
    return SigningKeys.in_file(file)
