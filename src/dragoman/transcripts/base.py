"""What every format of conversations has in common: reading in order, what is noted, and what is carried.

    read_all(wire, read, reading)          the value or its JSON text, read; whatever cannot be kept is a FormatError
    Reading(name, session_id, created_at)  messages in the making, with ids of calls and of messages
    noted(name, written, wire, **notes)    what to keep in provider_raw: the residue, and the order of keys
    restored(written, notes)               the wire again, its keys in order
    carried(message, name, said)           what a format has no word for, to be put where it lets others put things
    KEY                                    the name under which that is put there
    Losing(name)                           what a format cannot say, named

A message of ours has a time, an id and metadata. A format that has words for some of them is told in its own words;
the rest goes into one object under ``KEY``, where the format has a place for what applications want to add. A message
that came from a format gets no such object when it goes back, unless something about it was changed.

The one rule: restored(w, noted(name, w, x)) is x, the order of its keys included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dragoman import codec
from dragoman.errors import FormatError, InputError, JsonError
from dragoman.exchange import Loss
from dragoman.ids import ALPHABET, derive_ulid, ulid
from dragoman.jsontext import OWN, expect_object, read_json, storage_problem, validate_json
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    VideoBlock,
)
from dragoman.rules import CALL
from dragoman.wire import losses, residue
from dragoman.wire.message_builder import tool_id_for
from dragoman.wire.residue import get_notes

KEY: Final = "dragoman"
_ULID: Final = re.compile(rf"[0-7][{ALPHABET}]{{25}}")
_EMPTY_METADATA: Final = MessageMetadata()
_EMPTY_FIELDS: Final = tuple(
    (name, getattr(_EMPTY_METADATA, name))
    for name in MessageMetadata.__struct_fields__
    if name not in ("provider_raw", "parent_tool_use_id")
)
KNOWN_ROLES: Final = frozenset(Role)  # others are of a newer version
_SEPARATE_FIELDS: Final = ("session_id", "role", "content")  # what is said in a format's own words, or by the caller


# --- reading ---------------------------------------------------------------------------------------------------------


class TranscriptReader:
    """Messages in the making, read from one conversation of some format."""

    def __init__(self, name: str, session_id: str, created_at: datetime) -> None:
        self.name = name
        self.messages: list[Message] = []
        self.path = "$"  # of what is being read, for an error that does not know better
        self._session_id = session_id
        self._created_at = created_at.astimezone(UTC)
        self._tool_ids: dict[str, str] = {}
        self._id_uses: dict[str, int] = {}
        self._time_ms = max(0, int(self._created_at.timestamp() * 1000))
        self._id_prefix = int.from_bytes(derive_ulid(0, session_id).encode()[-6:])

    def make_message(
        self,
        role: Role,
        blocks: Iterable[ContentBlock],
        *,
        wire_id: Any = None,
        extra: Any = None,
        **metadata_fields: Any,
    ) -> Message:
        """A message, not yet among ``messages``; notes about its residue are still to be added to it.

        ``wire_id`` is the id that the format gives it, ``carried`` the object under ``KEY``, ``said`` metadata that the
        format says in its own words.
        """
        content = tuple(blocks)
        message_id = self._next_id()
        if isinstance(wire_id, str) and _ULID.fullmatch(wire_id):
            message_id = wire_id
        elif isinstance(wire_id, str) and wire_id:
            metadata_fields.setdefault("message_id", wire_id)
        if role is Role.TOOL and content and isinstance(content[0], ToolResultBlock):
            metadata_fields.setdefault("parent_tool_use_id", content[0].tool_use_id)
        if extra is not None:
            return self._make_from_extra(extra, message_id, role, content, metadata_fields)
        defaults = {"id": message_id, "at": self._created_at.isoformat()}
        metadata = MessageMetadata(**metadata_fields, provider_raw={"dialect": self.name, "given": defaults})
        return Message(message_id, self._session_id, role, content, metadata, self._created_at)

    def _make_from_extra(
        self,
        extra: Any,
        message_id: str,
        role: Role,
        content: tuple[ContentBlock, ...],
        metadata_fields: dict[str, Any],
    ) -> Message:
        fields = {"id": message_id, "created_at": self._created_at.isoformat(), **expect_object(extra, self.path)}
        extra_metadata = expect_object(fields.pop("metadata", {}), self.path)
        wire = {**fields, "session_id": self._session_id, "role": str(role), "content": [], "metadata": extra_metadata}
        try:
            message = codec.decode(msgspec.json.encode(wire))
        except InputError as error:
            raise FormatError(f"what is carried under {KEY!r} is not ours ({error})", where=self.path) from None
        metadata = message.metadata.replace(
            **{name: value for name, value in metadata_fields.items() if name not in extra_metadata}
        )
        return message.replace(content=content, metadata=metadata)

    def _next_id(self) -> str:
        return ulid(self._time_ms, (self._id_prefix << 32) | len(self.messages))

    def call_id(self, wire_id: str) -> str:
        """Our id for a call. An id that is used again means another call."""
        if wire_id in self._tool_ids:
            self._id_uses[wire_id] = self._id_uses.get(wire_id, 1) + 1
        self._tool_ids[wire_id] = tool_id_for(wire_id, self._id_uses.get(wire_id, 1))
        return self._tool_ids[wire_id]

    def result_id(self, wire_id: str) -> str:
        """Our id for the call that a result answers: the latest one of that id."""
        return self._tool_ids.get(wire_id) or tool_id_for(wire_id)


def read_transcript(
    wire: Any, read: Callable[[Any, TranscriptReader], None], reader: TranscriptReader
) -> tuple[Message, ...]:
    """What ``read`` puts among the messages of ``reading``. What cannot be kept is a ``FormatError`` with its place."""
    try:
        read(parse_wire(wire), reader)
    except (ValueError, RecursionError) as error:
        code, what = storage_problem(error)
        raise FormatError(what, where=reader.path, code=code) from error
    return tuple(reader.messages)


def parse_wire(wire: Any) -> Any:
    """The value, or what its JSON text says."""
    if not isinstance(wire, bytes | str):
        return wire
    try:
        return read_json(wire, OWN)
    except JsonError as error:
        if error.code != "too_deep":
            raise
        raise FormatError(error.what, where="$", remedy=error.remedy, code=error.code) from None


# --- what is noted ---------------------------------------------------------------------------------------------------


def make_notes(name: str, default: Any, wire: Any, **notes: Any) -> ProviderRaw | None:
    """What to keep in ``provider_raw``: the difference to what we would have written, and the order of keys."""
    raw = residue.make_notes(name, default, wire, **notes)
    rebuilt = residue.apply_diff(default, (raw or {}).get("residue"))
    order = _key_order(rebuilt, wire)
    if order is None:
        return raw
    raw = {"dialect": name, **(raw or {}), "order": order}
    validate_json(raw, "provider_raw")
    return raw


def apply_notes(default: Any, notes: ProviderRaw) -> Any:
    """What stood there, as far as what we would write now is still what we would have written then."""
    return _apply_order(residue.apply_diff(default, notes.get("residue")), notes.get("order"))


def add_residue(message: Message, default: Any, wire: Any, name: str) -> Message:
    """The message, with what is left over of its wire added to the notes that it has."""
    notes = {key: note for key, note in message_notes(message, name).items() if key != "dialect"}
    return with_notes(message, make_notes(name, default, wire, **notes))


def with_notes(message: Message, notes: ProviderRaw | None) -> Message:
    """The message, with these notes in place of those it has. Notes that JSON cannot express raise a ``ValueError``."""
    if notes is not None:
        validate_json(notes, "provider_raw")
    metadata = msgspec.structs.replace(message.metadata, provider_raw=notes)
    return msgspec.structs.replace(message, metadata=metadata)


def message_notes(message: Message, name: str) -> ProviderRaw:
    """What a format noted about a message."""
    return get_notes(message.metadata.provider_raw, name)


def _key_order(rebuilt: Any, wire: Any) -> dict[str, Any] | None:
    """How the keys of the wire stand, as far as they stand otherwise in what we made of it."""
    if type(rebuilt) is dict and type(wire) is dict:
        order: dict[str, Any] = {} if list(rebuilt) == list(wire) else {"keys": list(wire)}
        nested = {key: part for key in wire if (part := _key_order(rebuilt.get(key), wire[key])) is not None}
    elif type(rebuilt) is list and type(wire) is list:
        order = {}
        pairs = enumerate(zip(rebuilt, wire, strict=False))
        nested = {str(index): part for index, (ours, theirs) in pairs if (part := _key_order(ours, theirs)) is not None}
    else:
        return None
    return ({**order, "in": nested} if nested else order) or None


def _apply_order(value: Any, order: dict[str, Any] | None) -> Any:
    if order is None or type(value) not in (dict, list):
        return value
    nested = order.get("in", {})
    if type(value) is list:
        return [_apply_order(item, nested.get(str(index))) for index, item in enumerate(value)]
    keys = [key for key in order.get("keys", ()) if key in value]
    return {key: _apply_order(value[key], nested.get(key)) for key in dict.fromkeys([*keys, *value])}


# --- what is carried -------------------------------------------------------------------------------------------------


def get_wire_id(message: Message) -> str:
    """The id under which others know a message."""
    return message.metadata.message_id or message.id


def extra_fields(
    message: Message, name: str, expressed: Collection[str] = (), *, has_id: bool = True
) -> dict[str, Any] | None:
    """What a format has no word for: time, id and metadata, as far as reading would not give them anyway.

    ``said`` are names of metadata that the format says in its own words; ``has_id`` is whether it has ids of messages.
    """
    defaults = message_notes(message, name).get("given", {})
    if has_id and _is_foreign_id(message.metadata.message_id):
        expressed = {*expressed, "message_id"}
    if (
        defaults.get("id") == message.id
        and defaults.get("at") == message.created_at.isoformat()
        and _has_no_extra(message, expressed)
    ):
        return None
    metadata = _unexpressed_metadata(message, expressed)
    stripped = message.replace(content=(), metadata=metadata)
    fields = msgspec.json.decode(codec.encode(stripped))
    extra = {key: value for key, value in fields.items() if key not in _SEPARATE_FIELDS}
    if message.schema_version == 1:
        extra.pop("schema_version", None)
    if defaults.get("at") == message.created_at.isoformat():
        del extra["created_at"]
    if defaults.get("id") == message.id or (
        has_id and get_wire_id(message) == message.id and _ULID.fullmatch(message.id)
    ):
        del extra["id"]
    if message.role is Role.TOOL and _possible_parents(message) != {message.metadata.parent_tool_use_id}:
        extra["metadata"] = {**extra["metadata"], "parent_tool_use_id": message.metadata.parent_tool_use_id}
    if not extra["metadata"]:
        del extra["metadata"]
    return extra or None


def _has_no_extra(message: Message, expressed: Collection[str]) -> bool:
    """Whether there is nothing to carry, which is quickly seen."""
    metadata = message.metadata
    if message.schema_version != 1 or message.unknown_fields is not msgspec.UNSET:
        return False
    if {metadata.parent_tool_use_id} != (_possible_parents(message) if message.role is Role.TOOL else {None}):
        return False
    return all(getattr(metadata, name) == value for name, value in _EMPTY_FIELDS if name not in expressed)


def _is_foreign_id(message_id: str | None) -> bool:
    """Whether it is an id of others: one that looks like ours is read as ours."""
    return bool(message_id) and not _ULID.fullmatch(message_id or "")


def _unexpressed_metadata(message: Message, expressed: Collection[str]) -> MessageMetadata:
    metadata = message.metadata
    reset: dict[str, Any] = {field: getattr(_EMPTY_METADATA, field) for field in expressed}
    if message.role is Role.TOOL and metadata.parent_tool_use_id == _first_result_id(message):
        reset["parent_tool_use_id"] = None
    return metadata.replace(provider_raw=None, **reset)


def _possible_parents(message: Message) -> set[str | None]:
    """What a reader may take a message to answer: what it says first, or its first result, if the rest is left out."""
    results = (block.tool_use_id for block in message.content if isinstance(block, ToolResultBlock))
    return {_first_result_id(message), next(results, None)}


def _first_result_id(message: Message) -> str | None:
    first = message.content[0] if message.content else None
    return first.tool_use_id if isinstance(first, ToolResultBlock) else None


# --- what is lost ----------------------------------------------------------------------------------------------------


def unsupported_reason(block: ContentBlock, role: Role, name: str) -> str | None:
    """Why a message of a role cannot carry a block, where messages are those of a chat; ``None`` if it can."""
    match block:
        case TextBlock() if role is not Role.TOOL:
            return None
        case ToolUseBlock() | InvalidToolUseBlock() | ThinkingBlock() | RedactedThinkingBlock():
            return None if role is Role.ASSISTANT else f"a message of the {role} does not hold it here"
        case ToolResultBlock():
            return None if role is Role.TOOL else f"a message of the {role} does not hold it here"
        case ImageBlock() | AudioBlock() | VideoBlock() | DocumentBlock():
            return None if role is Role.USER else f"a message of the {role} does not show anything here"
        case OpaqueBlock(dialect=dialect):
            return None if dialect == name and role is not Role.TOOL else f"a block that only {dialect} understands"
        case TextBlock():
            return "a tool's message holds results only"
        case _:
            return "a block that this version does not know"


class LossCollector:
    """What a format cannot say, named as it is found."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.losses: list[Loss] = []

    def supported_blocks(
        self, message: Message, blocks: Iterable[ContentBlock], find_reason: Callable[[ContentBlock], str | None]
    ) -> tuple[ContentBlock, ...]:
        """The blocks that the format can carry; the others are lost, and so is what a newer version added to them."""
        supported = tuple(losses.supported_blocks(blocks, find_reason, self.name, self.losses, message))
        for block in supported:
            source = getattr(block, "source", None)
            if isinstance(block, UnknownBlock) or (
                _has_no_unknown_fields(block) and (source is None or _has_no_unknown_fields(source))
            ):
                continue
            self.add_loss(message, block.type, "fields that a newer version added to it")
        return supported

    def add_loss(self, message: Message, block_type: str, reason: str) -> None:
        """One more loss."""
        self.losses.append(Loss(message.session_id, message.id, block_type, self.name, reason))


def _has_no_unknown_fields(value: Any) -> bool:
    return value.unknown_fields is msgspec.UNSET


def wire_ids(messages: Iterable[Message], name: str) -> dict[str, str]:
    """What the format calls each call, by our id: a result that was just made knows our id alone."""
    calls = (block for message in messages for block in message.content if isinstance(block, CALL))
    return {call.id: notes["id"] for call in calls if "id" in (notes := get_notes(call.provider_raw, name))}


__all__ = [
    "KEY",
    "KNOWN_ROLES",
    "LossCollector",
    "TranscriptReader",
    "add_residue",
    "apply_notes",
    "extra_fields",
    "get_notes",
    "get_wire_id",
    "make_notes",
    "message_notes",
    "parse_wire",
    "read_transcript",
    "wire_ids",
    "with_notes",
]
