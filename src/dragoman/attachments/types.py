"""What attachments are made of: whose they are, where they lie, what is known of them; limits, and statuses for doors.

The one rule: nothing here holds a URL or a token, so that all of it may be stored, logged and shown.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, Protocol

import msgspec

MAX_BYTES: Final = 20 * 1024 * 1024
MAX_TEXT_BYTES: Final = 1024 * 1024  # a text goes into the message as it is
MAX_SIDE: Final = 16_384  # of a picture, in pixels
MAX_PIXELS: Final = 64_000_000
MAX_TTL_S: Final = 15 * 60  # how long a signed URL is good for, at most
SKEW_S: Final = 30  # how far two clocks may be apart

# What a door answers, by the code of the error.
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
    """Whose an attachment is, by the pseudonyms that a door found out."""

    user_id: str
    team_id: str | None = None


class Location(msgspec.Struct, frozen=True):
    """Where an attachment lies."""

    bucket: str
    path: str


class StoredFile(msgspec.Struct, frozen=True):
    """An attachment that is kept."""

    bucket: str
    path: str
    mime_type: str  # as its content tells
    size: int
    sha256: str
    name: str | None = None  # what its owner calls it; it is shown, and never a path


class Chunks:
    """Bytes on their way. Read them to their end, or close them: a generator that never began cannot do so itself."""

    def __init__(self, pieces: AsyncGenerator[bytes], release: Callable[[], object] = lambda: None) -> None:
        self._pieces = pieces
        self._release = release

    def __aiter__(self) -> AsyncGenerator[bytes]:
        return self._pieces

    async def close(self) -> None:
        """Let go of the file or the connection."""
        await self._pieces.aclose()
        self._release()


class OpenFile(msgspec.Struct, frozen=True):
    """An attachment on its way to somebody."""

    path: str
    mime_type: str
    size: int
    chunks: Chunks


class Storage(Protocol):
    """Where bytes are kept. Paths have been checked by whoever calls."""

    bucket: str

    async def write(self, path: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Keep it: all of it or nothing. ``headers`` are for who serves it without us."""

    async def size(self, path: str) -> int:
        """How many bytes it has; ``UnknownAttachmentError`` if there is none."""

    async def stream(self, path: str) -> tuple[int, Chunks]:
        """How many bytes it has, and the bytes."""

    async def delete(self, path: str) -> bool:
        """Let it go; whether it was there."""

    async def delete_under(self, prefix: str) -> int:
        """Let everything go whose path begins so, up to a slash; how many files that were."""

    async def direct_url(self, path: str, ttl_s: int) -> str | None:
        """A URL under which the storage itself serves it for a while, if it does so."""

    async def close(self) -> None:
        """Close every connection."""


class SignedUrls(Protocol):
    """Who makes signed URLs, and knows them again."""

    async def sign(self, path: str, owner: Owner, ttl_s: int, now: float) -> str:
        """A URL under which one attachment can be read for a while."""

    def locate(self, url: str) -> Location:
        """Where a URL leads, if it can be one of ours. It says nothing about whether it may be used."""

    def verify(self, url: str, now: float) -> tuple[Location, Owner | None]:
        """Where a URL leads, if it is ours, unchanged and not over; and for whom it was made, if it says so."""

    async def confirm(self, url: str, owner: Owner, now: float) -> tuple[Location, Owner | None]:
        """The same; a token that only the storage can verify is shown to it, if the path is this owner's."""
