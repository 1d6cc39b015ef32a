"""Convert a message to the columns of a row, and back.

    columns_from(message) -> Columns          its canonical JSON in columns, without its large texts
    message_from(session_id, seq, columns, …) the message; CorruptDataError if a single bit has changed

A text of more than ``MAX_INLINE_BYTES`` (an image, a document, a long result) is stored once outside the row, under its
hash, and the row contains ``"sha256:…"``; base64 is stored as the bytes that it encodes. The hash of a row covers every
column and its place.

Invariant: a message is read byte for byte as it was written.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from dragoman import codec, value
from dragoman.errors import CorruptDataError
from dragoman.jsontext import DECODE_ERRORS
from dragoman.message import SCHEMA_VERSION, ContentBlock, Message, MessageMetadata, Role
from dragoman.store.operation import from_micros, to_micros
from dragoman.value import UNSET

MAX_INLINE_BYTES: Final = 16 * 1024
_PLACEHOLDER: Final = '"sha256:'

_make_message: Final = value.unvalidated(Message)
_content_from: Final = msgspec.json.Decoder(tuple[ContentBlock, ...]).decode
_metadata_from: Final = msgspec.json.Decoder(MessageMetadata).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_ROLES: Final = {role.value: role for role in Role}
_FAST_PATH_ERRORS: Final = (*DECODE_ERRORS, KeyError)


class BlobSlice(msgspec.Struct, frozen=True, array_like=True):
    """A text that was moved out of a row: its position in the JSON, its hash, and its encoding."""

    offset: int  # character of content_json where its placeholder starts
    sha256: str
    form: str  # "text", "base64" for bytes, or "json" for a literal that our encoder writes differently


class Columns(msgspec.Struct, frozen=True):
    """The columns of a message, in the order of the SELECT."""

    id: str
    role: str
    content_json: str
    metadata_json: str
    created_at: int
    schema_version: int
    status: str
    unknown_json: str | None = None
    blobs_json: str | None = None
    blobs: dict[str, bytes] = {}  # moved out, by hash; not a column


# --- writing ---------------------------------------------------------------------------------------------------------


def columns_from(message: Message) -> Columns:
    """Return the columns of a message."""
    unknown: dict[str, msgspec.Raw] = {}
    try:
        content, metadata = value.encode_fast(message.content), value.encode_fast(message.metadata)
        if message.unknown_fields is not UNSET:
            raise value.SlowPathRequired
    except (value.SlowPathRequired, UnicodeEncodeError):
        parts: dict[str, msgspec.Raw] = msgspec.json.decode(codec.encode(message), type=dict[str, msgspec.Raw])
        content, metadata = bytes(parts.pop("content")), bytes(parts.pop("metadata"))
        if message.unknown_fields is not UNSET:
            unknown = {name: parts[name] for name in message.unknown_fields if name in parts}
    text = content.decode()
    slices: tuple[BlobSlice, ...] = ()
    blobs: dict[str, bytes] = {}
    if len(content) > MAX_INLINE_BYTES:
        text, slices, blobs = _extract_blobs(text)
    return Columns(
        id=message.id,
        role=message.role._value_,
        content_json=text,
        metadata_json=metadata.decode(),
        created_at=to_micros(message.created_at),
        schema_version=message.schema_version,
        status=message.metadata.status._value_,
        unknown_json=msgspec.json.encode(unknown).decode() if unknown else None,
        blobs_json=msgspec.json.encode(slices).decode() if slices else None,
        blobs=blobs,
    )


def _extract_blobs(text: str) -> tuple[str, tuple[BlobSlice, ...], dict[str, bytes]]:
    """Return the JSON text with its long strings replaced by their hashes."""
    parts: list[str] = []
    slices: list[BlobSlice] = []
    blobs: dict[str, bytes] = {}
    length = position = 0
    for start, end in _find_long_strings(text):
        data, form = _blob_bytes(text[start:end])
        name = sha256(data).hexdigest()
        length += start - position
        parts.extend((text[position:start], f'{_PLACEHOLDER}{name}"'))
        slices.append(BlobSlice(length, name, form))
        length += len(parts[-1])
        blobs[name] = data
        position = end
    parts.append(text[position:])
    return "".join(parts), tuple(slices), blobs


def _find_long_strings(text: str) -> list[tuple[int, int]]:
    """Return the spans of long strings in a JSON text, with their quotes."""
    spans: list[tuple[int, int]] = []
    position = 0
    while True:
        start = text.find('"', position)
        if start < 0:
            return spans
        end = text.find('"', start + 1)
        while text[end - 1] == "\\" and _is_escaped(text, end):
            end = text.find('"', end + 1)
        position = end + 1
        if position - start > MAX_INLINE_BYTES and text[position : position + 1] != ":":  # keys stay
            spans.append((start, position))


def _is_escaped(text: str, quote: int) -> bool:
    slashes = quote - 1
    while text[slashes] == "\\":
        slashes -= 1
    return (quote - slashes) % 2 == 0


def _blob_bytes(literal: str) -> tuple[bytes, str]:
    """Return the bytes to store for a string: its base64-decoded bytes, or its own."""
    text: str = msgspec.json.decode(literal)
    if msgspec.json.encode(text).decode() != literal:  # in a block that only a newer version knows
        return literal.encode(), "json"
    if len(text) % 4 == 0:
        try:
            data = base64.b64decode(text, validate=True)
            if base64.b64encode(data).decode() == text:
                return data, "base64"
        except (binascii.Error, ValueError):
            pass
    return text.encode(), "text"


# --- reading ---------------------------------------------------------------------------------------------------------


def message_hash(session_id: str, seq: int, columns: Columns) -> bytes:
    """Return the SHA-256 of all columns in MessagePack, which encodes each value in one way."""
    c = columns
    fields = (session_id, seq, c.id, c.role, c.created_at, c.schema_version, c.status, c.unknown_json, c.blobs_json)
    return sha256(_encode((*fields, c.metadata_json, c.content_json))).digest()


def message_from(session_id: str, seq: int, columns: Columns, hash_: bytes, blobs: Mapping[str, bytes]) -> Message:
    """Return the message of a row; ``CorruptDataError`` if its hash does not match."""
    if message_hash(session_id, seq, columns) != hash_:
        raise CorruptDataError("its hash does not match its content", where=f"session {session_id}, message {seq}")
    content = columns.content_json
    if columns.blobs_json is not None:
        content = _insert_blobs(content, msgspec.json.decode(columns.blobs_json, type=list[BlobSlice]), blobs)
    try:
        if columns.schema_version == SCHEMA_VERSION and columns.unknown_json is None:
            return _make_message(
                columns.id,
                session_id,
                _ROLES[columns.role],
                _content_from(content),
                _metadata_from(columns.metadata_json),
                from_micros(columns.created_at),
            )
    except _FAST_PATH_ERRORS:
        pass  # a newer version wrote something that this one does not know
    return codec.decode(_canonical_json(session_id, columns, content))


def _canonical_json(session_id: str, columns: Columns, content: str) -> bytes:
    """Return the canonical JSON of a message."""
    head = {"id": columns.id, "session_id": session_id, "role": columns.role}
    created_at = from_micros(columns.created_at).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
    fields: dict[str, Any] = {
        **head,
        "content": msgspec.Raw(content.encode()),
        "metadata": msgspec.Raw(columns.metadata_json.encode()),
        "created_at": created_at,
        "schema_version": columns.schema_version,
    }
    if columns.unknown_json is not None:
        fields |= msgspec.json.decode(columns.unknown_json, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(fields)


def _insert_blobs(content: str, slices: list[BlobSlice], blobs: Mapping[str, bytes]) -> str:
    parts: list[str] = []
    position = 0
    for blob in slices:
        data = blobs[blob.sha256]
        parts.extend((content[position : blob.offset], _json_literal(data, blob.form)))
        position = blob.offset + len(_PLACEHOLDER) + len(blob.sha256) + 1
    return "".join([*parts, content[position:]])


def _json_literal(data: bytes, form: str) -> str:
    """Return the JSON string of stored bytes."""
    if form == "json":
        return data.decode()
    text = base64.b64encode(data).decode() if form == "base64" else data.decode()
    return msgspec.json.encode(text).decode()
