"""Normalize messages to envelopes, and convert them to rows.

    normalize(message)             a row of role, content and metadata, or an envelope of version 1 -> the envelope
    to_provider_message(message)   the row, with type and payload merged into the metadata

An envelope is a plain dict, because hosts store and send it as JSON. Its keys have a fixed order, and other keys are
dropped. ``[]`` in place of an object means an empty object, as hosts written in PHP send it. Invariant:
``normalize(normalize(x)) == normalize(x)``, and the result shares no object with x.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dragoman.errors import EnvelopeError

Envelope = dict[str, Any]

SCHEMA: Final = "agents-api.message"
VERSION: Final = 1
SIDECAR_KEY: Final = "dragoman"  # key of the sidecar in the metadata
TYPES: Final = (
    "text",
    "tool_call",
    "tool_result",
    "input_required",
    "approval_required",
    "final_result",
    "error",
    "delta",
    "multimodal_part",
)

# Keys that a row has in its metadata and an envelope in its payload.
_PAYLOAD_KEYS: Final = {
    "tool_call": ("tool_name", "parameters", "turn"),
    "tool_result": ("tool_name", "success", "turn", "tool_data", "media", "error"),
}
_ROLE_TOOL: Final = ("tool_result", "input_required", "approval_required")
_OPTIONAL: Final = ("id", "created_at", "updated_at")
_MAX_DEPTH: Final = 256  # maximum depth of stored JSON
_PLACES_ABOVE: Final = 2  # the envelope, and its payload or metadata
_MAX_BITS: Final = 14_000  # about 4,200 digits: Python refuses to parse longer ones


def supported_types() -> list[str]:
    """The nine types of an envelope."""
    return list(TYPES)


def default_role(kind: str) -> str:
    """The role of a message without one."""
    return "tool" if kind in _ROLE_TOOL else "assistant"


def is_array(value: object) -> bool:
    """Whether a value is an object or a list, which PHP calls an array."""
    return isinstance(value, Mapping | list | tuple)


# --- in --------------------------------------------------------------------------------------------------------------


def normalize(message: Mapping[str, Any]) -> Envelope:
    """Return the envelope of a message in either shape, or raise ``EnvelopeError``."""
    if not isinstance(message, Mapping):
        raise EnvelopeError("message must be an array")
    return _from_envelope(message) if _is_envelope(message) else _from_row(message)


def normalize_many(messages: Iterable[Mapping[str, Any]]) -> list[Envelope]:
    """Return the envelopes of messages, in order. The first invalid one raises ``EnvelopeError``."""
    if not isinstance(messages, Iterable):
        raise EnvelopeError("messages must be a list")
    return [normalize(message) for message in messages]


def type_of(message: Mapping[str, Any]) -> str:
    """The type of a message in either shape."""
    return str(normalize(message)["type"])


def _is_envelope(message: Mapping[str, Any]) -> bool:
    if message.get("version") is None or message.get("type") is None:
        return False
    return message.get("schema") is not None or "payload" in message or "data" in message


def _from_envelope(message: Mapping[str, Any]) -> Envelope:
    if _whole_number(message["version"]) != VERSION:
        raise EnvelopeError("unsupported version")
    kind = message["type"]
    if not isinstance(kind, str) or kind not in TYPES:
        raise EnvelopeError("unsupported type")
    # An early draft called the payload data; it is read and never written.
    payload = _object(message.get("payload")) or _object(message.get("data"))
    return build_envelope(
        message.get("role"), message.get("content"), kind, payload, _object(message.get("metadata")), message
    )


def _from_row(message: Mapping[str, Any]) -> Envelope:
    metadata = _object(message.get("metadata"))
    kind = infer_type(message.get("content"), metadata)
    payload = {key: metadata[key] for key in _PAYLOAD_KEYS.get(kind, ()) if key in metadata}
    return build_envelope(message.get("role"), message.get("content"), kind, payload, metadata, message)


def infer_type(content: Any, metadata: Mapping[str, Any]) -> str:
    """Return the type of a message without an explicit one."""
    stated = metadata.get("type")
    if isinstance(stated, str) and stated in TYPES:
        return stated
    if stated == "multimodal" or is_array(content):
        return "multimodal_part"
    return "text" if metadata.get("error") is None else "error"


def build_envelope(  # noqa: PLR0917  the order in which an envelope has them
    role: Any,
    content: Any,
    kind: str,
    payload: Mapping[str, Any],
    metadata: Mapping[str, Any],
    source: Mapping[str, Any] | None = None,
) -> Envelope:
    """Return an envelope of these parts. Texts of id and times are copied from ``source``."""
    role = default_role(kind) if role is None else role
    content = "" if content is None else content
    if not isinstance(role, str) or not role:
        raise EnvelopeError("role must be a non-empty string")
    if not isinstance(content, str) and not is_array(content):
        raise EnvelopeError("content must be a string or array")
    envelope = {
        "schema": SCHEMA,
        "version": VERSION,
        "type": kind,
        "role": role,
        "content": content,
        "payload": payload,
        "metadata": metadata,
    }
    values = source or {}
    envelope |= {key: text for key in _OPTIONAL if isinstance(text := values.get(key), str) and text}
    result: Envelope = _to_json(envelope, _MAX_DEPTH)
    return result


def copy_json(value: Any) -> Any:
    """Return a copy of a part as JSON, or raise ``EnvelopeError`` if it is too deep for an envelope."""
    return _to_json(value, _MAX_DEPTH - _PLACES_ABOVE)


def _whole_number(version: Any) -> int:
    """Convert a version as PHP does: ``"1"`` and ``1.0`` are 1, and anything that is not a number is 0."""
    try:
        return int(float(version)) if isinstance(version, str) else int(version)
    except (TypeError, ValueError, OverflowError):
        return 0


def _object(value: Any) -> dict[str, Any]:
    """Return an object; for a list, its items by index, as PHP does; for anything else, an empty object."""
    if isinstance(value, Mapping):
        return dict(value)
    return {str(number): item for number, item in enumerate(value)} if isinstance(value, list | tuple) else {}


def _to_json(value: Any, depth: int) -> Any:
    """Return a copy as JSON."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() <= _MAX_BITS:
        return int(value)
    if isinstance(value, float) and value - value == 0:  # false of NaN and the infinities only
        return float(value)
    if depth > 0:
        if type(value) is dict or isinstance(value, Mapping):  # isinstance with an abstract class is slow
            return _object_to_json(value, depth - 1)
        if isinstance(value, list | tuple):
            return [_to_json(item, depth - 1) for item in value]
    raise EnvelopeError("envelope must be JSON serializable")


def _object_to_json(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        name = key if type(key) is str and key.isascii() else _key(key)
        kind = type(item)
        if kind is bool or item is None or (kind is str and item.isascii()):  # the usual case
            result[name] = item
        else:
            result[name] = _to_json(item, depth)
    return result


def _text(text: str) -> str:
    plain = str.__str__(text)  # a member of a StrEnum is a text too
    if not plain.isascii():
        try:
            plain.encode("utf-8")
        except UnicodeEncodeError:
            raise EnvelopeError("envelope must be JSON serializable") from None
    return plain


def _key(key: Any) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if not isinstance(key, str):
        raise EnvelopeError("envelope must be JSON serializable")
    return _text(key)


# --- out -------------------------------------------------------------------------------------------------------------


def to_provider_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return role, content and metadata for a provider's client. Metadata takes precedence over the payload."""
    envelope = normalize(message)
    metadata: dict[str, Any] = envelope["metadata"]
    if envelope["type"] != "text" or envelope["payload"] or metadata:
        metadata["type"] = envelope["type"]
    for key, item in envelope["payload"].items():
        metadata.setdefault(key, item)
    row = {"role": envelope["role"], "content": envelope["content"]}
    return {**row, "metadata": metadata} if metadata else row


def to_provider_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for a provider's client, in order."""
    return [to_provider_message(message) for message in messages]
