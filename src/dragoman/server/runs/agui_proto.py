"""Encode AG-UI events as protobuf frames, for clients that accept ``application/vnd.ag-ui.event+proto``.

    encode_frame(event) -> bytes        four bytes of length, then the event as the protobuf message ``Event``

The protocol publishes no ``.proto`` file. The numbers are those of ``@ag-ui/proto`` 1.0.0 (npm, September 2026), whose
decoder reads every frame in the tests. Events that the server never emits are not in the tables. A JSON number becomes
a double, as in every ``google.protobuf.Value``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

MEDIA_TYPE: Final = "application/vnd.ag-ui.event+proto"
_VARINT, _DOUBLE, _BYTES = 0, 1, 2  # wire types
_Encode = Callable[[Any], bytes]  # of a field's value, without its tag
_Field = tuple[int, int, _Encode]  # number, wire type, encoder
_Fields = Mapping[str, _Field]


def encode_frame(event: Mapping[str, Any]) -> bytes:
    """An event as a frame."""
    data = encode_event(event)
    return len(data).to_bytes(4, "big") + data


def encode_event(event: Mapping[str, Any]) -> bytes:
    """An event as a protobuf message."""
    number, type_number, fields = _EVENTS[event["type"]]
    base = {"type": type_number, **{name: event[name] for name in ("timestamp", "metadata") if name in event}}
    content = _write_field((1, _BYTES, _message(_BASE)), base)
    content += _write_fields(_SPREAD.get(event["type"], dict)(event), fields)
    return _tag(number, _BYTES) + _with_length(content)


# --- wire format -----------------------------------------------------------------------------------------------------


def _write_fields(value: Mapping[str, Any], fields: _Fields) -> bytes:
    """The known fields of an object. A list is a repeated field."""
    result = bytearray()
    for name, field in fields.items():
        item = value.get(name)
        if item is not None or (name in value and field[2] is _value):
            for each in item if isinstance(item, list) and field[2] is not _value else (item,):
                result += _write_field(field, each)
    return bytes(result)


def _write_field(field: _Field, value: Any) -> bytes:
    number, wire_type, encode = field
    return _tag(number, wire_type) + encode(value)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    value &= 0xFFFF_FFFF_FFFF_FFFF  # negative numbers are in two's complement
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _with_length(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _text(value: str) -> bytes:
    return _with_length(value.encode())


def _message(fields: _Fields) -> _Encode:
    return lambda value: _with_length(_write_fields(value, fields))


def _struct(value: Mapping[str, Any]) -> bytes:
    """A JSON object as ``google.protobuf.Struct``."""
    entries = (_write_field((1, _BYTES, _text), key) + _write_field((2, _BYTES, _value), value[key]) for key in value)
    return _with_length(b"".join(_tag(1, _BYTES) + _with_length(entry) for entry in entries))


def _value(value: Any) -> bytes:
    """A JSON value as ``google.protobuf.Value``."""
    match value:
        case None:
            data = _write_field((1, _VARINT, _varint), 0)
        case bool():
            data = _write_field((4, _VARINT, _varint), int(value))
        case int() | float():
            data = _write_field((2, _DOUBLE, lambda number: struct.pack("<d", number)), value)
        case str():
            data = _write_field((3, _BYTES, _text), value)
        case dict():
            data = _write_field((5, _BYTES, _struct), value)
        case _:
            items = b"".join(_write_field((1, _BYTES, _value), item) for item in value)
            data = _tag(6, _BYTES) + _with_length(items)
    return _with_length(data)


# --- messages of the protocol ----------------------------------------------------------------------------------------


def _texts(**numbers: int) -> dict[str, _Field]:
    return {name: (number, _BYTES, _text) for name, number in numbers.items()}


_BASE: Final[_Fields] = {
    "type": (1, _VARINT, _varint),
    "timestamp": (2, _VARINT, _varint),
    "metadata": (4, _BYTES, _struct),
}
_SOURCE: Final[_Fields] = {
    "data": (1, _BYTES, _message(_texts(value=1, mimeType=2))),
    "url": (2, _BYTES, _message(_texts(value=1, mimeType=2))),
    "file": (3, _BYTES, _message(_texts(value=1, provider=2, mimeType=3))),
}
_MEDIUM: Final = _message({"source": (1, _BYTES, _message(_SOURCE)), "metadata": (2, _BYTES, _value)})
_PART: Final[_Fields] = {
    "text": (1, _BYTES, _message({**_texts(text=1), "metadata": (3, _BYTES, _value)})),
    "image": (2, _BYTES, _MEDIUM),
    "audio": (3, _BYTES, _MEDIUM),
    "video": (4, _BYTES, _MEDIUM),
    "document": (5, _BYTES, _MEDIUM),
}
_CALL: Final[_Fields] = {
    **_texts(id=1, type=2, encryptedValue=5),
    "function": (3, _BYTES, _message(_texts(name=1, arguments=2))),
    "metadata": (4, _BYTES, _struct),
}
_MESSAGE: Final[_Fields] = {
    **_texts(id=1, role=2, content=3, name=4, toolCallId=6, error=7, encryptedValue=11, activityType=12),
    "toolCalls": (5, _BYTES, _message(_CALL)),
    "contentParts": (8, _BYTES, _message(_PART)),
    "metadata": (9, _BYTES, _struct),
    "activityContent": (13, _BYTES, _struct),
}
_INTERRUPT: Final[_Fields] = {
    **_texts(id=1, reason=2, message=3, toolCallId=4, expiresAt=6),
    "responseSchema": (5, _BYTES, _value),
    "metadata": (7, _BYTES, _value),
}
_TOKEN_COUNTS: Final = (
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "reasoningTokens",
    "cachedInputTokens",
    "cacheWriteInputTokens",
)
_USAGE: Final[_Fields] = {
    **_texts(provider=1, model=2),
    **{name: (number, _VARINT, _varint) for number, name in enumerate(_TOKEN_COUNTS, 3)},
}
# By type: the number in the message Event, the number of the type, and the fields.
_EVENTS: Final[Mapping[str, tuple[int, int, _Fields]]] = {
    "TEXT_MESSAGE_START": (1, 0, _texts(messageId=2, role=3)),
    "TEXT_MESSAGE_CONTENT": (2, 1, _texts(messageId=2, delta=3)),
    "TEXT_MESSAGE_END": (3, 2, _texts(messageId=2)),
    "TOOL_CALL_START": (4, 3, _texts(toolCallId=2, toolCallName=3, parentMessageId=4)),
    "TOOL_CALL_ARGS": (5, 4, _texts(toolCallId=2, delta=3)),
    "TOOL_CALL_END": (6, 5, _texts(toolCallId=2)),
    "STATE_SNAPSHOT": (7, 6, {"snapshot": (2, _BYTES, _value)}),
    "MESSAGES_SNAPSHOT": (9, 8, {"messages": (2, _BYTES, _message(_MESSAGE))}),
    "CUSTOM": (11, 10, {**_texts(name=2), "value": (3, _BYTES, _value)}),
    "RUN_STARTED": (12, 11, _texts(threadId=2, runId=3, parentRunId=4, protocolVersion=6)),
    "RUN_FINISHED": (
        13,
        12,
        {
            **_texts(threadId=2, runId=3, outcome=5, pendingToolCallIds=8),
            "interrupts": (6, _BYTES, _message(_INTERRUPT)),
            "usage": (7, _BYTES, _message(_USAGE)),
        },
    ),
    "RUN_ERROR": (14, 13, {**_texts(code=2, message=3), "usage": (4, _BYTES, _message(_USAGE))}),
    "STEP_STARTED": (15, 14, _texts(stepName=2)),
    "STEP_FINISHED": (16, 15, _texts(stepName=2)),
    "TOOL_CALL_RESULT": (
        22,
        21,
        {**_texts(messageId=3, toolCallId=4, content=5, role=6), "contentParts": (7, _BYTES, _message(_PART))},
    ),
    "REASONING_START": (25, 24, _texts(messageId=3)),
    "REASONING_MESSAGE_START": (26, 25, _texts(messageId=3, role=4)),
    "REASONING_MESSAGE_CONTENT": (27, 26, _texts(messageId=3, delta=4)),
    "REASONING_MESSAGE_END": (28, 27, _texts(messageId=3)),
    "REASONING_END": (30, 29, _texts(messageId=3)),
    "REASONING_ENCRYPTED_VALUE": (31, 30, _texts(subtype=3, entityId=4, encryptedValue=5)),
}
EVENT_TYPES: Final = frozenset(_EVENTS)


# --- fields that protobuf spreads ------------------------------------------------------------------------------------


def _spread_outcome(event: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of a run is one object in JSON, and fields of the event in protobuf."""
    outcome = event.get("outcome")
    if outcome is None:
        return dict(event)
    return {**event, **{name: outcome[name] for name in outcome if name != "type"}, "outcome": outcome["type"]}


def _spread_messages(event: Mapping[str, Any]) -> dict[str, Any]:
    return {**event, "messages": [_spread_content(message) for message in event["messages"]]}


def _spread_content(value: Mapping[str, Any]) -> dict[str, Any]:
    """Text, parts and the object of an activity are one field in JSON, and three in protobuf."""
    content = value.get("content")
    rest = {name: item for name, item in value.items() if name != "content"}
    match content:
        case list():
            return {**rest, "contentParts": [_spread_part(part) for part in content]}
        case dict():
            return {**rest, "activityContent": content}
        case _:
            return dict(value)


def _spread_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part as the member of its type. ``binary``, of clients before 1.0, is a document with marks."""
    kind, fields = part["type"], {name: item for name, item in part.items() if name not in ("type", "id")}
    if kind == "binary":
        place = {"value": part.get("url") or part.get("data") or part.get("id"), "mimeType": part["mimeType"]}
        marks = {"legacyBinary": True, **{name: part[name] for name in ("filename", "id") if name in part}}
        return {"document": {"source": {"data" if "data" in part else "url": place}, "metadata": marks}}
    if "source" in fields:
        fields["source"] = {fields["source"]["type"]: fields["source"]}
    return {kind: fields}


_SPREAD: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "RUN_FINISHED": _spread_outcome,
    "MESSAGES_SNAPSHOT": _spread_messages,
    "TOOL_CALL_RESULT": _spread_content,
}
