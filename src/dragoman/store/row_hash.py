"""Hashes of rows beside the messages: of what no message repeats, so that nothing else could tell what it was.

A row that an earlier version wrote has no hash, and gets one when it changes. Invariant: a row whose hash does not fit
is never given one that fits.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from dragoman.errors import DamagedError

_packed: Final = msgspec.msgpack.Encoder().encode
_FITS: Final = "(hash IS NULL OR hash = call_hash(id, provider, provider_id, block, created_at, completed_at))"


def row_hash(*columns: Any) -> bytes:
    """SHA-256 over columns, in MessagePack, which has one way to write each value."""
    return hashlib.sha256(_packed(columns)).digest()


def check_row(stored: bytes | None, *columns: Any, where: str) -> None:
    """Raise ``DamagedError`` if a row is not what was written."""
    if stored is not None and bytes(stored) != row_hash(*columns):
        raise DamagedError("its hash does not fit its content", where=where, remedy="Run dragoman verify")


def call_hash(*columns: Any) -> bytes:
    """The hash of a row of ``tool_calls``: id, provider, what that calls it, its block, when it was made and completed.

    The same is a function of both engines, because such a row changes where nobody reads it.
    """
    said = "\n".join("" if column is None else str(column) for column in columns)
    return hashlib.sha256(said.encode()).digest()


def rehashed(provider_id: str = "provider_id", completed_at: str = "completed_at") -> str:
    """What an UPDATE of ``tool_calls`` sets the hash to, with a new value for one of these columns."""
    new = f"call_hash(id, provider, {provider_id}, block, created_at, {completed_at})"
    return f"hash = CASE WHEN {_FITS} THEN {new} ELSE hash END"
