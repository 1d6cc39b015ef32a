"""Store, read, sign and delete attachments, in any storage; blocks and headers for them.

Invariant: path, owner and content are validated here, in this order, before the storage is called. The metadata of a
message has bucket, path and type, never a URL. Attachments are served with our own type, without sniffing, and only
images inline.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from dragoman.attachments.file_types import EXTENSIONS, is_text_type, too_large_error, type_from_path, validate_type
from dragoman.attachments.folder import FolderStorage
from dragoman.attachments.heic import jpeg_from_heic
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
from dragoman.attachments.signed_urls import UrlSigner
from dragoman.attachments.signing_keys import SigningKeys
from dragoman.attachments.supabase import SupabaseStorage
from dragoman.attachments.types import MAX_BYTES, MAX_TTL_S, Location, OpenFile, Owner, SignedUrls, Storage, StoredFile
from dragoman.errors import StorageError, StoreUnusableError
from dragoman.ids import ulid
from dragoman.message import Attachment, AudioBlock, ContentBlock, DocumentBlock, ImageBlock, ImageSource, TextBlock

KEYS_VARIABLE: Final = "DRAGOMAN_SIGNING_KEYS"
DEFAULT_BUCKET: Final = "agent-files"
_DIRECT_TTL_S: Final = 60
_DIALECT: Final = "attachments"  # not a dialect: dialects ignore it
_INLINE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")


class Files:
    """Files of users, without URLs. Use it with ``async with``, or close it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def bucket(self) -> str:
        """The bucket of the storage."""
        return self._storage.bucket

    async def delete(self, bucket: str, path: str, owner: Owner) -> bool:
        """Delete a file. Returns whether it existed."""
        return await self._storage.delete(self._validate(bucket, path, owner))

    async def delete_all(self, owner: Owner, thread: str | None = None) -> int:
        """Delete all files of a user, or of one thread. Returns how many."""
        return await self._storage.delete_under(prefix_of(owner, thread))

    async def close(self) -> None:
        """Close all connections."""
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
        self.clock = clock  # seconds since 1970

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
        """Validate and store a file."""
        content = await _collect(data)
        mime_type = validate_type(content, declared_type)
        file_id = ulid(int(self.clock() * 1000), secrets.randbits(80))
        path = new_path(owner, thread, run, file_id, EXTENSIONS[mime_type])
        await self._storage.write(path, content, make_headers(path, mime_type, len(content)))
        return self._describe(path, mime_type, content, name)

    async def open(self, bucket: str, path: str, owner: Owner | None) -> OpenFile:
        """Open a file for its owner, or without an owner after its signed URL was verified.

        Its type is that of the extension. Send it with ``response_headers``. Read the chunks to the end, or close them.
        """
        path = self._validate(bucket, path, owner)
        size, chunks = await self._storage.stream(path)
        return OpenFile(path, type_from_path(path), size, chunks)

    async def read(
        self, bucket: str, path: str, owner: Owner, declared_type: str | None = None, name: str | None = None
    ) -> tuple[StoredFile, bytes]:
        """Read a whole file for a model. Its content is validated again, because others may write to the storage."""
        file = await self.open(bucket, path, owner)
        try:
            data = await _collect(file.chunks)
        finally:
            await file.chunks.close()
        if len(data) != file.size:
            raise StorageError("the storage sent an incomplete attachment")
        return self._describe(file.path, validate_type(data, declared_type or file.mime_type), data, name), data

    # --- signed URLs -------------------------------------------------------------------------------------------------

    async def signed_url(self, bucket: str, path: str, owner: Owner, ttl_s: int = MAX_TTL_S) -> str:
        """A URL to read a file of this owner, valid for at most 15 minutes."""
        path = self._validate(bucket, path, owner)
        await self._storage.size(path)
        return await self._urls.sign(path, owner, ttl_s, self.clock())

    def parse_signed_url(self, url: str) -> Location:
        """The location in a URL of our format. Does not verify the token."""
        return self._urls.locate(url)

    def verify(self, url: str, owner: Owner | None, now: float | None = None) -> Location:
        """The location in a URL, if its token is valid and it was signed for this owner.

        Without an owner anyone with the URL may read: only for the endpoint that serves it.
        """
        location, url_owner = self._urls.verify(url, self.clock() if now is None else now)
        return _check_owner(location, url_owner, owner)

    async def read_signed_url(
        self, url: str, owner: Owner, declared_type: str | None = None, name: str | None = None
    ) -> tuple[StoredFile, bytes]:
        """Read the file of a signed URL in a message, if it is this owner's.

        The host of the URL is never contacted. A token that only the storage can verify is sent to the configured
        storage, and only for a path of this owner.
        """
        location, url_owner = await self._urls.confirm(url, owner, self.clock())
        location = _check_owner(location, url_owner, owner)
        return await self.read(location.bucket, location.path, owner, declared_type, name)

    async def direct_url(self, bucket: str, path: str) -> str | None:
        """A URL of the storage itself, if it is configured to serve files: for a redirect after ``verify``."""
        return await self._storage.direct_url(self._validate(bucket, path, None), _DIRECT_TTL_S)

    def _describe(self, path: str, mime_type: str, data: bytes, name: str | None) -> StoredFile:
        digest = hashlib.sha256(data).hexdigest()
        return StoredFile(self.bucket, path, mime_type, len(data), digest, clean_name(name))


def _check_owner(location: Location, url_owner: Owner | None, owner: Owner | None) -> Location:
    """The location, if it is the owner's and the URL was signed for the owner; without an owner, any location."""
    if owner is not None:
        validate_owner(location.path, owner)
        if url_owner is not None and url_owner != owner:
            raise not_found_error()
    return location


async def _collect(data: AsyncIterable[bytes] | bytes) -> bytes:
    """Collect the data, up to ``MAX_BYTES``."""
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
    base_url: str | None,
    keys_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> Attachments:
    """Open a storage: ``file:///folder``, ``s3://bucket/prefix?…`` or ``supabase://host/bucket``.

    ``base_url`` is the URL of our server, with which signed URLs begin; without it, they are paths. ``keys_file`` has
    the signing keys; without it they are beside the folder of ``file:``, or in ``DRAGOMAN_SIGNING_KEYS``.
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
    """Open a storage for deletion only. It needs no signing key. Raises for an invalid URL."""
    return Files(_open_storage(url, os.environ if environment is None else environment))


class UserFiles:
    """All files of one user in a storage; calling it deletes them."""

    def __init__(self, url: str, owner: Owner, environment: Mapping[str, str] | None = None) -> None:
        self._files = open_files(url, environment)
        self._owner = owner

    async def __call__(self) -> int:
        """Delete all files. Returns how many."""
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
        "not a storage for attachments",
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
            "there are no signing keys",
            remedy=f"Set a keys file, or set {KEYS_VARIABLE} to kid:secret",
            code="unsafe_store",
        )
    return SigningKeys.in_file(file)


# --- blocks and metadata of a message --------------------------------------------------------------------------------


async def model_block(file: StoredFile, data: bytes) -> ImageBlock | AudioBlock | DocumentBlock | TextBlock:
    """The block of a file for a model. A HEIC image is converted to JPEG if the extra is installed."""
    if file.mime_type == "image/heic":
        jpeg = await asyncio.to_thread(jpeg_from_heic, data)
        if jpeg is not None:
            return ImageBlock(_source(jpeg), "image/jpeg")
    return attachment_block(file, data)


def attachment_block(file: StoredFile, data: bytes) -> ImageBlock | AudioBlock | DocumentBlock | TextBlock:
    """The block of a file for a model, without conversion."""
    if is_text_type(file.mime_type):
        text = f"{file.name or 'Attached text'}:\n\n{data.decode('utf-8-sig')}"
        return TextBlock(text, {"dialect": _DIALECT, "path": file.path})
    if file.mime_type.startswith("image/"):
        return ImageBlock(_source(data), file.mime_type)
    if file.mime_type.startswith("audio/"):
        return AudioBlock(_source(data), file.mime_type)
    return DocumentBlock(_source(data), file.mime_type, file.name)


def _source(data: bytes) -> ImageSource:
    return ImageSource("base64", base64.b64encode(data).decode("ascii"))


def is_attachment_text(block: ContentBlock) -> bool:
    """Whether a text block is the content of a file."""
    return isinstance(block, TextBlock) and (block.provider_raw or {}).get("dialect") == _DIALECT


def message_metadata(*files: StoredFile) -> Attachment | tuple[Attachment, ...] | None:
    """The value of ``user_message_attachments``: none, one attachment, or a tuple."""
    attachments = tuple(Attachment(file.bucket, file.path, file.mime_type) for file in files)
    return attachments if len(attachments) > 1 else attachments[0] if attachments else None


# --- headers of a response -------------------------------------------------------------------------------------------


def response_headers(attachment: StoredFile | OpenFile) -> dict[str, str]:
    """The headers of a response that sends a file, so that nothing in it runs."""
    return make_headers(attachment.path, attachment.mime_type, attachment.size)


def make_headers(path: str, mime_type: str, size: int) -> dict[str, str]:
    """The same from single values. The download name is our own."""
    media_type = (
        mime_type if mime_type in EXTENSIONS and mime_type == type_from_path(path) else "application/octet-stream"
    )
    disposition = "inline" if media_type in _INLINE_TYPES else "attachment"
    name = path.rpartition("/")[2].replace("\\", "").replace('"', "")
    return {
        "Content-Type": "text/plain; charset=utf-8" if is_text_type(media_type) else media_type,
        "Content-Length": str(size),
        "Content-Disposition": f'{disposition}; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "private, no-store",
    }
