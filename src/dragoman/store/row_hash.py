"""Hashes of rows whose content no message repeats.

A row of an earlier version has no hash and gets one when it changes. Invariant: a row whose hash does not match never
gets one that matches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dragoman.errors import CorruptDataError

_encode: Final = msgspec.msgpack.Encoder().encode
_encode_any: Final = json.JSONEncoder(default=str).encode  # also the values of a damaged row
_JSON_TEXTS: Final[Mapping[type, Callable[[Any], str]]] = {  # the same for the types of a valid row
    str: json.encoder.encode_basestring_ascii,
    int: str,
    type(None): lambda _: "null",
}
CALL_FIELDS: Final = (  # the columns of a row of tool_calls that its hash covers, in that order
    "id",
    "message_id",
    "seq",
    "name",
    "status",
    "result_message_id",
    "result_seq",
    "provider",
    "provider_id",
    "block",
    "created_at",
    "completed_at",
)
_IS_INTACT: Final = f"(hash IS NULL OR hash = call_hash({', '.join(CALL_FIELDS)}))"


def row_hash(*columns: Any) -> bytes:
    """SHA-256 over columns, in MessagePack, which has one way to write each value."""
    return hashlib.sha256(_encode(columns)).digest()


def json_hash(columns: Sequence[Any]) -> bytes:
    """SHA-256 over columns as JSON, which can encode any value of a damaged row."""
    try:
        text = f"[{', '.join([_JSON_TEXTS[type(column)](column) for column in columns])}]"
    except KeyError:
        text = _encode_any(columns)
    return hashlib.sha256(text.encode()).digest()


def check_row(stored_hash: bytes | None, *columns: Any, where: str) -> None:
    """Raise ``CorruptDataError`` if a row is not what was written."""
    if stored_hash is not None and bytes(stored_hash) != row_hash(*columns):
        raise CorruptDataError("its hash does not match its content", where=where, remedy="Run dragoman verify")


def call_hash(*columns: Any) -> bytes:
    """The hash of a row of ``tool_calls``, of the columns that ``CALL`` names.

    Both engines have the same function in SQL, because an UPDATE changes rows that no operation reads. The session is
    not hashed: a row moves to another session when the history that it belongs to does.
    """
    text = "\n".join("" if column is None else str(column) for column in columns)
    return hashlib.sha256(text.encode()).digest()


def rehash_sql(**new: str) -> str:
    """Return the SQL that updates the hash of a ``tool_calls`` row; ``new`` has the SQL of each changed column.

    Placeholders among them are bound in the order of ``CALL``.
    """
    columns = ", ".join(new.get(name, name) for name in CALL_FIELDS)
    return f"hash = CASE WHEN {_IS_INTACT} THEN call_hash({columns}) ELSE hash END"
