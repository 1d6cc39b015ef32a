"""The shape of an agent message envelope: what is taken in, and the one form that comes out.

    normalize(message)             a row of role, content and metadata, or an envelope of version 1: the envelope
    to_provider_message(message)   the row again, with the envelope's type and payload folded into its metadata

An envelope is a plain dict, because it is what hosts keep and send as JSON. Its keys stand in one order; what is not
part of the shape is left out. Two shapes of JSON mean the same here: a host written in PHP says ``[]`` for an empty
object. The one rule: normalize(normalize(x)) is normalize(x), and nothing in it is shared with x.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dragoman.errors import EnvelopeError

Envelope = dict[str, Any]

SCHEMA: Final = "agents-api.message"
VERSION: Final = 1
SIDECAR_KEY: Final = "dragoman"  # where in an envelope's metadata stands what it cannot say of a message
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

# What a row keeps in its metadata and an envelope in its payload.
_PAYLOAD_KEYS: Final = {
    "tool_call": ("tool_name", "parameters", "turn"),
    "tool_result": ("tool_name", "success", "turn", "tool_data", "media", "error"),
}
_ROLE_TOOL: Final = ("tool_result", "input_required", "approval_required")
_OPTIONAL: Final = ("id", "created_at", "updated_at")
_MAX_DEPTH: Final = 256  # as deep as our own JSON is read
_PLACES_ABOVE: Final = 2  # the envelope, and its payload or its metadata
_MAX_BITS: Final = 14_000  # some 4,200 digits: Python refuses to read longer ones


def supported_types() -> list[str]:
    """The nine types of an envelope."""
    return list(TYPES)


def default_role(kind: str) -> str:
    """Who speaks, where a message does not say."""
    return "tool" if kind in _ROLE_TOOL else "assistant"


def is_array(value: object) -> bool:
    """Whether PHP would call it an array: an object or a list."""
    return isinstance(value, Mapping | list | tuple)


# --- in --------------------------------------------------------------------------------------------------------------


def normalize(message: Mapping[str, Any]) -> Envelope:
    """The canonical envelope of a message in either shape; ``EnvelopeError`` says what is wrong with it."""
    if not isinstance(message, Mapping):
        raise EnvelopeError("message must be an array")
    return _from_envelope(message) if _is_envelope(message) else _from_row(message)


def normalize_many(messages: Iterable[Mapping[str, Any]]) -> list[Envelope]:
    """Every message as an envelope, in order; the first one that is none is an ``EnvelopeError``."""
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
    # An early draft called the payload data; it is read, and never written.
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
    """The type of a message that does not state one where an envelope does."""
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
    """An envelope of these parts. ``source`` may have an id and times, which are kept if they are texts."""
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
    """A copy of a part of an envelope, as JSON has it, if it is not too deep to stand in one."""
    return _to_json(value, _MAX_DEPTH - _PLACES_ABOVE)


def _whole_number(version: Any) -> int:
    """A version as PHP reads a number: ``"1"`` and ``1.0`` are 1, and what is no number is 0."""
    try:
        return int(float(version)) if isinstance(version, str) else int(version)
    except (TypeError, ValueError, OverflowError):
        return 0


def _object(value: Any) -> dict[str, Any]:
    """An object; of a list its items under their numbers, which is what PHP calls them. Of anything else, nothing."""
    if isinstance(value, Mapping):
        return dict(value)
    return {str(number): item for number, item in enumerate(value)} if isinstance(value, list | tuple) else {}


def _to_json(value: Any, depth: int) -> Any:
    """A copy, as JSON has it."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() <= _MAX_BITS:
        return int(value)
    if isinstance(value, float) and value - value == 0:  # false of NaN and the infinities only
        return float(value)
    if depth > 0:
        if type(value) is dict or isinstance(value, Mapping):  # an abstract class takes its time to say so
            return _object_to_json(value, depth - 1)
        if isinstance(value, list | tuple):
            return [_to_json(item, depth - 1) for item in value]
    raise EnvelopeError("envelope must be JSON serializable")


def _object_to_json(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        name = key if type(key) is str and key.isascii() else _key(key)
        kind = type(item)
        if kind is bool or item is None or (kind is str and item.isascii()):  # what most are
            result[name] = item
        else:
            result[name] = _to_json(item, depth)
    return result


def _text(text: str) -> str:
    plain = str.__str__(text)  # a member of a StrEnum is a text as well
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
    """Role, content and metadata, as a provider's client takes them. What the metadata says wins over the payload."""
    envelope = normalize(message)
    metadata: dict[str, Any] = envelope["metadata"]
    if envelope["type"] != "text" or envelope["payload"] or metadata:
        metadata["type"] = envelope["type"]
    for key, item in envelope["payload"].items():
        metadata.setdefault(key, item)
    row = {"role": envelope["role"], "content": envelope["content"]}
    return {**row, "metadata": metadata} if metadata else row


def to_provider_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every message as a provider's client takes it, in order."""
    return [to_provider_message(message) for message in messages]
