"""Encode, decode and hash messages.

    encode(message) -> bytes          deterministic: equal messages have equal bytes, except for ``provider_raw``
    decode(bytes) -> Message          strict about known parts; keeps parts that a newer version has added
    content_hash, message_hash        SHA-256; both ignore ``provider_raw``

``decode`` keeps unknown parts with their bytes and logs one line at WARN. ``encode`` writes them again.
Invariant: ``encode(decode(data)) == data`` for all output of ``encode``.
"""

from __future__ import annotations

import hashlib
from datetime import UTC
from typing import Any, Final

import msgspec

from dragoman import value
from dragoman.errors import FormatError, InputError, NewerVersionError
from dragoman.jsontext import DECODE_ERRORS, OWN, encode_utf8, read_json
from dragoman.message import Message, Usage
from dragoman.versions import FORMAT, Format

# Bound once: every message passes through these functions.
_decode_fast: Final = msgspec.json.Decoder(Message).decode
_encode_fast: Final = value.encode_fast


def encode(message: Message) -> bytes:
    """Return the canonical JSON of a message."""
    try:
        data = _encode_fast(message)
    except (value.SlowPathRequired, UnicodeEncodeError):
        data = value.encode(message)
    return data if message.created_at.microsecond else _with_microseconds(data, message)


def decode(data: bytes | str, schema: Format = FORMAT) -> Message:
    """Return the message of a JSON text. An ``InputError`` names the path of the problem."""
    try:
        message = _decode_fast(data)
        usage = message.metadata.usage
        if (
            encode(message) == data
            and message.schema_version == schema.current
            and message.created_at.tzinfo is UTC
            and (usage is None or _has_finite_cost(usage))
        ):
            return message
    except DECODE_ERRORS:
        pass
    return _decode_general(encode_utf8(data) if isinstance(data, str) else data, schema)


def _has_finite_cost(usage: Usage) -> bool:
    """Whether the cost is finite and there is no cost reported by the provider."""
    return usage.provider_cost_usd is None and (usage.cost_usd is None or usage.cost_usd.is_finite())


def content_hash(message: Message) -> str:
    """SHA-256 over role and content. Equal content has the same hash in every session."""
    content = _HashedContent(role=message.role, content=message.content)
    return hashlib.sha256(value.identity(content)).hexdigest()


def message_hash(message: Message) -> str:
    """SHA-256 over the whole message except ``provider_raw``."""
    data = value.identity(message)
    return hashlib.sha256(data if message.created_at.microsecond else _with_microseconds(data, message)).hexdigest()


class _HashedContent(value.Value, frozen=True):
    role: Any
    content: Any


def _with_microseconds(data: bytes, message: Message) -> bytes:
    """Add the fraction that msgspec omits if it is zero. Six digits make the text sort like the time."""
    end = len(data)
    if message.unknown_fields is not msgspec.UNSET:  # unknown fields are last and may contain a created_at
        end -= sum(len(msgspec.json.encode(name)) + len(raw) + 2 for name, raw in message.unknown_fields.items())
    at = data.rindex(b'"created_at":"', 0, end) + len(b'"created_at":"2026-05-08T12:30:15')
    return data[:at] + b".000000" + data[at:]


def _decode_general(data: bytes, schema: Format) -> Message:
    plain = read_json(data, OWN)
    if not isinstance(plain, dict):
        raise FormatError(f"a message is a JSON object, not {type(plain).__name__}", where="$")
    version = plain.get("schema_version", 1)
    if type(version) is not int or version < 1:
        raise FormatError("schema_version is a whole number from 1", where="$.schema_version")
    if version < schema.current:
        data = msgspec.json.encode(schema.upgrade(plain, version))
    unknown_parts = value.UnknownParts(lenient=version > schema.current)
    try:
        message = value.decode_lenient(Message, data, unknown_parts)
    except InputError as error:
        if not unknown_parts.lenient:
            raise
        what = f"schema version {version}; this Dragoman supports up to {schema.current} and cannot read it ({error})"
        raise NewerVersionError(what, data=data, version=version, where="$.schema_version") from None
    usage = message.metadata.usage
    if usage is not None and not usage.is_finite():
        raise FormatError("an amount that is not finite", where="$.metadata.usage.cost_usd")
    if unknown_parts.places:
        _log_unknown_parts(message, unknown_parts)
    try:
        return message.replace()  # converts the time to UTC
    except ValueError as error:
        raise FormatError(str(error), where="$.created_at") from None


def _log_unknown_parts(message: Message, unknown_parts: value.UnknownParts) -> None:
    import logging  # noqa: PLC0415  a fifth of the time that importing this package takes

    logging.getLogger("dragoman.format").warning(
        "kept unknown parts of message %s: %s",
        message.id,
        ", ".join(unknown_parts.places)
        + (f" and {more} more" if (more := unknown_parts.count - len(unknown_parts.places)) else ""),
        extra={"session_id": message.session_id, "message_id": message.id, "places": tuple(unknown_parts.places)},
    )
