"""The tools and options of a call, in the form in which they are stored.

    record = record_request(canonical)              of a request; its messages are stored as messages
    request = restore_request(record.fields, record.parts, messages)

The metadata of an answer contains the fields of its request. A long field, such as the tools of a coding agent, is a
part: it is stored once in each session, compressed, and the metadata contains its hash. Clients repeat tools and
options with every call, so that most fields are found in a cache.

Invariant: credentials of other servers, such as the headers of an MCP server, are not stored.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dragoman.exchange import Options, Request
from dragoman.formats.request_metadata import request_from
from dragoman.message import Message
from dragoman.redaction import redact_json

_MAX_INLINE_BYTES: Final = 256  # of a field
_MAX_CACHED_FIELDS: Final = 64
_MAX_CACHED_BYTES: Final = 128 * 1024  # of a field
_PART: Final = "sha256:"
_CREDENTIALS: Final = ("headers", "authorization", "authorization_token")  # of MCP servers
_HIDDEN: Final = "[redacted]"
_DEFAULT_OPTIONS: Final = Options()
_encode: Final = msgspec.json.Encoder().encode


class RequestRecord(msgspec.Struct, frozen=True):
    """A request without its messages."""

    fields: dict[str, Any]  # in the metadata of the answer
    parts: dict[str, bytes] = {}  # compressed JSON texts by their SHA-256


class _Field(msgspec.Struct, frozen=True):
    """A field of a request: its value, or the name of its part."""

    value: Any
    part: tuple[str, bytes] | None = None  # its hash and its content


def record_request(request: Request) -> RequestRecord:
    """Return what is stored of a request beside its messages."""
    record = RequestRecord({"model": request.model}, {})
    if request.tools:
        _add_field(record, "tools", request.tools)
    if request.options != _DEFAULT_OPTIONS:
        _add_field(record, "options", request.options)
    if request.provider_raw is not None:
        _add_field(record, "provider_raw", request.provider_raw)
    return record


def _add_field(record: RequestRecord, name: str, value: Any) -> None:
    data = _encode(value)
    field = (_cached_field if len(data) <= _MAX_CACHED_BYTES else _make_field)(name, data)
    record.fields[name] = field.value
    if field.part is not None:
        digest, content = field.part
        record.parts[digest] = content


def _make_field(name: str, data: bytes) -> _Field:
    value = msgspec.json.decode(data)
    if name == "tools":
        value = [_redact(tool) if "wire" in tool else tool for tool in value]
    elif name == "provider_raw":
        value = _redact(value)
    text = _encode(value)
    if len(text) <= _MAX_INLINE_BYTES:
        return _Field(value)
    content = zlib.compress(text)
    digest = hashlib.sha256(content).hexdigest()
    return _Field(f"{_PART}{digest}", (digest, content))


_cached_field: Final = functools.lru_cache(maxsize=_MAX_CACHED_FIELDS)(_make_field)


def _redact(value: Any) -> Any:
    """Return a value of one dialect without credentials: texts below their names, and texts in their form."""
    return redact_json(_hide_credentials(value))


def _hide_credentials(value: Any, *, is_hidden: bool = False) -> Any:
    match value:
        case dict():
            return {
                name: _hide_credentials(part, is_hidden=is_hidden or name.lower() in _CREDENTIALS)
                for name, part in value.items()
            }
        case list():
            return [_hide_credentials(part, is_hidden=is_hidden) for part in value]
        case str() if is_hidden:
            return _HIDDEN
        case _:
            return value


def part_hashes(fields: Mapping[str, Any]) -> list[str]:
    """Return the hashes of the parts that stored fields refer to."""
    return [value.removeprefix(_PART) for name, value in fields.items() if _is_part(name, value)]


def restore_request(fields: Mapping[str, Any], parts: Mapping[str, bytes], messages: Sequence[Message]) -> Request:
    """Return the request of stored fields; a part that is not stored any more is left out."""
    restored: dict[str, Any] = {}
    for name, value in fields.items():
        if not _is_part(name, value):
            restored[name] = value
        elif (content := parts.get(value.removeprefix(_PART))) is not None:
            restored[name] = msgspec.json.decode(zlib.decompress(content))
    return request_from(restored, tuple(messages))


def _is_part(name: str, value: Any) -> bool:
    return name != "model" and isinstance(value, str)
