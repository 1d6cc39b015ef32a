"""Values of attachments: owners, locations, files, limits and HTTP statuses.

Invariant: no value has a URL or a token, so all of them can be stored and logged.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, Protocol

import msgspec

MAX_BYTES: Final = 20 * 1024 * 1024
MAX_TEXT_BYTES: Final = 1024 * 1024  # a text becomes part of the message
MAX_SIDE: Final = 16_384  # of an image, in pixels
MAX_PIXELS: Final = 64_000_000
MAX_TTL_S: Final = 15 * 60  # maximum lifetime of a signed URL
SKEW_S: Final = 30  # tolerance between clocks

# HTTP statuses by error code.
STATUSES: Final[Mapping[str, int]] = {
    "attachment_not_found": 404,
    "attachment_too_large": 413,
    "attachments_left": 503,
    "bad_signature": 403,
    "disk_full": 507,
    "empty_attachment": 422,
    "foreign_attachment_url": 422,
    "image_too_large": 422,
    "invalid_path": 400,
    "storage_failed": 503,
    "type_mismatch": 415,
    "type_not_allowed": 415,
    "url_expired": 403,
}


class Owner(msgspec.Struct, frozen=True):
    """The owner of an attachment, by pseudonyms."""

    user_id: str
    team_id: str | None = None


class Location(msgspec.Struct, frozen=True):
    """The location of an attachment."""

    bucket: str
    path: str


class StoredFile(msgspec.Struct, frozen=True):
    """A stored attachment."""

    bucket: str
    path: str
    mime_type: str  # detected from its content
    size: int
    sha256: str
    name: str | None = None  # the client's file name, for display only


class Chunks:
    """A stream of bytes. Read it to the end, or close it: an unstarted generator does not release the connection."""

    def __init__(self, pieces: AsyncGenerator[bytes], release: Callable[[], object] = lambda: None) -> None:
        self._pieces = pieces
        self._release = release

    def __aiter__(self) -> AsyncGenerator[bytes]:
        return self._pieces

    async def close(self) -> None:
        """Release the file or the connection."""
        await self._pieces.aclose()
        self._release()


class OpenFile(msgspec.Struct, frozen=True):
    """An attachment that is open for reading."""

    path: str
    mime_type: str
    size: int
    chunks: Chunks


class Storage(Protocol):
    """A storage of bytes. The caller validates paths."""

    bucket: str

    async def write(self, path: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Write a file atomically. ``headers`` are for storages that serve files themselves."""

    async def size(self, path: str) -> int:
        """The size in bytes; ``UnknownAttachmentError`` if the file does not exist."""

    async def stream(self, path: str) -> tuple[int, Chunks]:
        """The size in bytes, and the content."""

    async def delete(self, path: str) -> bool:
        """Delete a file. Returns whether it existed."""

    async def delete_under(self, prefix: str) -> int:
        """Delete all files under a prefix that ends in a slash. Returns how many."""

    async def direct_url(self, path: str, ttl_s: int) -> str | None:
        """A temporary URL of the storage itself, if it serves files."""

    async def close(self) -> None:
        """Close all connections."""


class SignedUrls(Protocol):
    """Signs and verifies URLs."""

    async def sign(self, path: str, owner: Owner, ttl_s: int, now: float) -> str:
        """A URL to read one attachment for a limited time."""

    def locate(self, url: str) -> Location:
        """The location in a URL of our format. Does not verify the token."""

    def verify(self, url: str, now: float) -> tuple[Location, Owner | None]:
        """The location in a URL with a valid token, and its owner, if the token has one."""

    async def confirm(self, url: str, owner: Owner, now: float) -> tuple[Location, Owner | None]:
        """The same, but send a token that only the storage can verify to it, if the path is this owner's."""
