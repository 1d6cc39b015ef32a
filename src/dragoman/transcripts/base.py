"""Shared code of all transcript formats: reading, notes, extra fields and losses.

    read_transcript(wire, read, reader)             parse and read; input that cannot be stored raises FormatError
    TranscriptReader(name, session_id, created_at)  the messages read so far, with their ids and call ids
    make_notes(name, default, wire, **notes)        the value for provider_raw: residue and order of keys
    apply_notes(default, notes)                     the wire again, with its order of keys
    extra_fields(message, name, expressed)          the fields of a message that the format cannot express
    KEY                                             the key under which extra fields are stored
    LossCollector(name, messages)                   losses of a format

A message has a time, an id and metadata. A format expresses some of them in its own fields; the rest is stored in one
object under ``KEY``, in the place that the format reserves for applications. A message that was read from a format is
written back without that object, unless it was changed.

Invariant: apply_notes(w, make_notes(name, w, x)) equals x, including the order of keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from dragoman import codec
from dragoman import message as msg
from dragoman.errors import FormatError, InputError, JsonError
from dragoman.exchange import Loss
from dragoman.ids import ALPHABET, derive_ulid, ulid
from dragoman.jsontext import OWN, expect_object, read_json, storage_problem, validate_json
from dragoman.wire import losses, residue
from dragoman.wire.message_builder import tool_id_for
from dragoman.wire.residue import foreign_field_losses, get_notes

KEY: Final = "dragoman"
_ULID: Final = re.compile(rf"[0-7][{ALPHABET}]{{25}}")
_EMPTY_METADATA: Final = msg.MessageMetadata()
_EMPTY_FIELDS: Final = tuple(
    (name, getattr(_EMPTY_METADATA, name))
    for name in msg.MessageMetadata.__struct_fields__
    if name not in ("provider_raw", "parent_tool_use_id")
)
MEDIA_BLOCKS: Final[dict[str, type[msg.MediaBlock]]] = {
    "image": msg.ImageBlock,
    "audio": msg.AudioBlock,
    "video": msg.VideoBlock,
    "document": msg.DocumentBlock,
}
UNKNOWN_TYPES: Final = {"image": "image/*", "audio": "audio/*", "video": "video/*"}  # media types that a wire omits
KNOWN_ROLES: Final = frozenset(msg.Role)  # other roles are of a newer version
_SEPARATE_FIELDS: Final = ("session_id", "role", "content")  # expressed by the format, or passed by the caller


# --- reading ---------------------------------------------------------------------------------------------------------


class TranscriptReader:
    """The messages read so far from one conversation."""

    def __init__(self, name: str, session_id: str, created_at: datetime) -> None:
        self.name = name
        self.messages: list[msg.Message] = []
        self.path = "$"  # of the current item, for errors without a path
        self._session_id = session_id
        self._created_at = created_at.astimezone(UTC)
        self._tool_ids: dict[str, str] = {}
        self._id_uses: dict[str, int] = {}
        self._time_ms = max(0, int(self._created_at.timestamp() * 1000))
        self._id_prefix = int.from_bytes(derive_ulid(0, session_id).encode()[-6:])

    def make_message(
        self,
        role: msg.Role,
        blocks: Iterable[msg.ContentBlock],
        *,
        wire_id: Any = None,
        own_extra: Any = None,
        **metadata_fields: Any,
    ) -> msg.Message:
        """Create a message without adding it to ``messages``; the caller adds notes about its residue.

        ``wire_id`` is the id in the format, ``own_extra`` the object under ``KEY``, ``metadata_fields`` metadata that
        the format expresses in its own fields.
        """
        content = tuple(blocks)
        message_id = self._next_id()
        if isinstance(wire_id, str) and _ULID.fullmatch(wire_id):
            message_id = wire_id
        elif isinstance(wire_id, str) and wire_id:
            metadata_fields.setdefault("message_id", wire_id)
        if role is msg.Role.TOOL and content and isinstance(content[0], msg.ToolResultBlock):
            metadata_fields.setdefault("parent_tool_use_id", content[0].tool_use_id)
        if own_extra is not None:
            return self._make_from_extra(own_extra, message_id, role, content, metadata_fields)
        defaults = {"id": message_id, "at": self._created_at.isoformat()}
        metadata = msg.MessageMetadata(**metadata_fields, provider_raw={"dialect": self.name, "given": defaults})
        return msg.Message(message_id, self._session_id, role, content, metadata, self._created_at)

    def _make_from_extra(
        self,
        own_extra: Any,
        message_id: str,
        role: msg.Role,
        content: tuple[msg.ContentBlock, ...],
        metadata_fields: dict[str, Any],
    ) -> msg.Message:
        fields = {"id": message_id, "created_at": self._created_at.isoformat(), **expect_object(own_extra, self.path)}
        extra_metadata = expect_object(fields.pop("metadata", {}), self.path)
        wire = {**fields, "session_id": self._session_id, "role": str(role), "content": [], "metadata": extra_metadata}
        try:
            message = codec.decode(msgspec.json.encode(wire))
        except InputError as error:
            raise FormatError(f"the object under {KEY!r} is invalid ({error})", where=self.path) from None
        metadata = message.metadata.replace(
            **{name: value for name, value in metadata_fields.items() if name not in extra_metadata}
        )
        return message.replace(content=content, metadata=metadata)

    def _next_id(self) -> str:
        return ulid(self._time_ms, (self._id_prefix << 32) | len(self.messages))

    def call_id(self, wire_id: str) -> str:
        """Return our id for a call. A repeated id means another call."""
        if wire_id in self._tool_ids:
            self._id_uses[wire_id] = self._id_uses.get(wire_id, 1) + 1
        self._tool_ids[wire_id] = tool_id_for(wire_id, self._id_uses.get(wire_id, 1))
        return self._tool_ids[wire_id]

    def read_call_identity(
        self, part: dict[str, Any], name_field: str, id_field: str, notes: dict[str, Any]
    ) -> tuple[str, str]:
        """Return our id and the tool name of a call; a different wire id is noted."""
        name, wire_id = part.get(name_field), part.get(id_field)
        if not isinstance(name, str):
            raise FormatError("a call needs the name of its tool", where=f"{self.path}.{name_field}")
        call_id = self.call_id(wire_id if isinstance(wire_id, str) else self.path)
        if isinstance(wire_id, str) and wire_id != call_id:
            notes["id"] = wire_id
        return call_id, name

    def result_id(self, wire_id: str) -> str:
        """Return our id of the call that a result answers: the latest call with that id."""
        return self._tool_ids.get(wire_id) or tool_id_for(wire_id)


def read_transcript(
    wire: Any, read: Callable[[Any, TranscriptReader], None], reader: TranscriptReader
) -> tuple[msg.Message, ...]:
    """Return the messages that ``read`` adds to the reader. Input that cannot be stored raises ``FormatError``."""
    try:
        read(parse_wire(wire), reader)
    except (ValueError, RecursionError) as error:
        code, what = storage_problem(error)
        raise FormatError(what, where=reader.path, code=code) from error
    return tuple(reader.messages)


def is_list_of(wire: Any, predicate: Callable[[Any], bool]) -> bool:
    """Return whether a value is a list with at least one item, and all items match."""
    return isinstance(wire, list) and bool(wire) and all(map(predicate, wire))


def has_typed_parts(parts: list[Any]) -> bool:
    """Return whether every part of a message is an object with a type."""
    return all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts)


def parse_wire(wire: Any) -> Any:
    """Return the value, or the parsed JSON text."""
    if not isinstance(wire, bytes | str):
        return wire
    try:
        return read_json(wire, OWN)
    except JsonError as error:
        if error.code != "too_deep":
            raise
        raise FormatError(error.what, where="$", remedy=error.remedy, code=error.code) from None


# --- notes -----------------------------------------------------------------------------------------------------------


def make_notes(name: str, default: Any, wire: Any, **notes: Any) -> msg.ProviderRaw | None:
    """Return the value for ``provider_raw``: the difference from the default output, and the order of keys."""
    raw = residue.make_notes(name, default, wire, **notes)
    rebuilt = residue.apply_diff(default, (raw or {}).get("residue"))
    order = _key_order(rebuilt, wire)
    if order is None:
        return raw
    raw = {"dialect": name, **(raw or {}), "order": order}
    validate_json(raw, "provider_raw")
    return raw


def with_residue(
    name: str, block: msg.ContentBlock | None, part: Any, write_default: Callable[[msg.ContentBlock], Any], **notes: Any
) -> msg.ContentBlock:
    """Return the block with the residue of its part. A part without a block becomes an opaque block."""
    if block is None:
        return msg.OpaqueBlock(name, part)
    return block.replace(provider_raw=make_notes(name, write_default(block), part, **notes))


def apply_notes(default: Any, notes: msg.ProviderRaw) -> Any:
    """Return the original wire, with changes where the default output has changed since."""
    return _apply_order(residue.apply_diff(default, notes.get("residue")), notes.get("order"))


def add_residue(message: msg.Message, default: Any, wire: Any, name: str) -> msg.Message:
    """Return the message with the residue of its wire added to its notes."""
    notes = {key: note for key, note in message_notes(message, name).items() if key != "dialect"}
    return with_notes(message, make_notes(name, default, wire, **notes))


def with_notes(message: msg.Message, notes: msg.ProviderRaw | None) -> msg.Message:
    """Return the message with these notes in place of its own. Notes that JSON cannot express raise ``ValueError``."""
    if notes is not None:
        validate_json(notes, "provider_raw")
    metadata = msgspec.structs.replace(message.metadata, provider_raw=notes)
    return msgspec.structs.replace(message, metadata=metadata)


def add_notes(message: msg.Message, name: str, **notes: Any) -> msg.Message:
    """Return the message with these notes added to its own."""
    return with_notes(message, {"dialect": name, **message_notes(message, name), **notes}) if notes else message


def message_notes(message: msg.Message, name: str) -> msg.ProviderRaw:
    """Return the notes of a format about a message."""
    return get_notes(message.metadata.provider_raw, name)


def write_with_notes(block: msg.ContentBlock, name: str, write_default: Callable[[msg.ProviderRaw], Any]) -> Any:
    """Write a block with a function of its notes, and apply the notes to the result."""
    notes = get_notes(getattr(block, "provider_raw", None), name)
    return apply_notes(write_default(notes), notes)


def _key_order(rebuilt: Any, wire: Any) -> dict[str, Any] | None:
    """Return the order of keys where it differs from the rebuilt value."""
    if type(rebuilt) is dict and type(wire) is dict:
        order: dict[str, Any] = {} if list(rebuilt) == list(wire) else {"keys": list(wire)}
        nested = {key: part for key in wire if (part := _key_order(rebuilt.get(key), wire[key])) is not None}
    elif type(rebuilt) is list and type(wire) is list:
        order = {}
        pairs = enumerate(zip(rebuilt, wire, strict=False))
        nested = {str(index): part for index, (old, new) in pairs if (part := _key_order(old, new)) is not None}
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


# --- extra fields ----------------------------------------------------------------------------------------------------


def get_wire_id(message: msg.Message) -> str:
    """Return the id of a message in the format."""
    return message.metadata.message_id or message.id


def own_fields(container: Any) -> dict[str, Any] | None:
    """Return the object under our key, if any."""
    fields = container.get(KEY) if isinstance(container, dict) else None
    return fields if isinstance(fields, dict) else None


def extra_fields(
    message: msg.Message, name: str, expressed: Collection[str] = (), *, has_id: bool = True
) -> dict[str, Any] | None:
    """Return time, id and metadata that the format cannot express; ``None`` if reading restores them anyway.

    ``expressed`` are names of metadata that the format expresses; ``has_id`` is whether the format has message ids.
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
    metadata = _residual_metadata(message, expressed)
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
    if message.role is msg.Role.TOOL and _possible_parents(message) != {message.metadata.parent_tool_use_id}:
        extra["metadata"] = {**extra["metadata"], "parent_tool_use_id": message.metadata.parent_tool_use_id}
    if not extra["metadata"]:
        del extra["metadata"]
    return extra or None


def _has_no_extra(message: msg.Message, expressed: Collection[str]) -> bool:
    """Return whether there are no extra fields: a fast check."""
    metadata = message.metadata
    if message.schema_version != 1 or message.unknown_fields is not msgspec.UNSET:
        return False
    if {metadata.parent_tool_use_id} != (_possible_parents(message) if message.role is msg.Role.TOOL else {None}):
        return False
    return all(getattr(metadata, name) == value for name, value in _EMPTY_FIELDS if name not in expressed)


def _is_foreign_id(message_id: str | None) -> bool:
    """Return whether the id is not a ULID; a ULID is read as our own id."""
    return bool(message_id) and not _ULID.fullmatch(message_id or "")


def _residual_metadata(message: msg.Message, expressed: Collection[str]) -> msg.MessageMetadata:
    metadata = message.metadata
    reset: dict[str, Any] = {field: getattr(_EMPTY_METADATA, field) for field in expressed}
    if message.role is msg.Role.TOOL and metadata.parent_tool_use_id == _first_result_id(message):
        reset["parent_tool_use_id"] = None
    return metadata.replace(provider_raw=None, **reset)


def _possible_parents(message: msg.Message) -> set[str | None]:
    """Return the calls that a reader may take as the parent: that of the first block, or of the first result."""
    results = (block.tool_use_id for block in message.content if isinstance(block, msg.ToolResultBlock))
    return {_first_result_id(message), next(results, None)}


def _first_result_id(message: msg.Message) -> str | None:
    first = message.content[0] if message.content else None
    return first.tool_use_id if isinstance(first, msg.ToolResultBlock) else None


# --- media -----------------------------------------------------------------------------------------------------------


def media_kind(media_type: str) -> str:
    """Return the block type for a media type."""
    prefix = media_type.partition("/")[0]
    return prefix if prefix in MEDIA_BLOCKS else "document"


def make_medium(kind: str, source: msg.ImageSource, media_type: str, name: Any = None) -> msg.MediaBlock:
    """Return a media block; only a document has a name."""
    if kind == "document":
        return msg.DocumentBlock(source, media_type, name if isinstance(name, str) else None)
    return MEDIA_BLOCKS[kind](source, media_type)


# --- losses ----------------------------------------------------------------------------------------------------------


def unsupported_reason(block: msg.ContentBlock, role: msg.Role, name: str) -> str | None:
    """Return why a chat message of a role cannot carry a block; ``None`` if it can."""
    match block:
        case msg.TextBlock() if role is not msg.Role.TOOL:
            return None
        case _ if isinstance(block, msg.CallBlock | msg.ThinkingBlock | msg.RedactedThinkingBlock):
            return None if role is msg.Role.ASSISTANT else f"not supported in a message of the role {role}"
        case msg.ToolResultBlock():
            return None if role is msg.Role.TOOL else f"not supported in a message of the role {role}"
        case _ if isinstance(block, msg.MediaBlock):
            return None if role is msg.Role.USER else f"media are not supported in a message of the role {role}"
        case msg.OpaqueBlock(dialect=dialect):
            return None if dialect == name and role is not msg.Role.TOOL else f"a block of {dialect}"
        case msg.TextBlock():
            return "a tool message contains only results"
        case _:
            return "a block type of a newer version"


def unsupported_item_reason(block: msg.ContentBlock, name: str) -> str | None:
    """Return why a prompt or a result cannot contain a block, where workspace files are not supported."""
    match block:
        case msg.TextBlock():
            return None
        case msg.OpaqueBlock(dialect=dialect):
            return None if dialect == name else f"a block of {dialect}"
        case _ if isinstance(block, msg.MediaBlock):
            return "a workspace file that others cannot read" if block.source.kind == "file_ref" else None
        case _:
            return "this format has no such part"


class LossCollector:
    """Losses of a format."""

    def __init__(self, name: str, messages: Iterable[msg.Message] = ()) -> None:
        """Start with the losses of fields of these messages that only a provider has."""
        self.name = name
        self.losses: list[Loss] = list(foreign_field_losses(messages, name))

    def supported_blocks(
        self,
        message: msg.Message,
        blocks: Iterable[msg.ContentBlock],
        find_reason: Callable[[msg.ContentBlock], str | None],
    ) -> tuple[msg.ContentBlock, ...]:
        """Return the supported blocks. The others, optional fields and fields of newer versions are losses."""
        supported = tuple(losses.supported_blocks(blocks, find_reason, self.name, self.losses, message))
        for block in supported:
            for kind, reason in _field_losses(block):
                self.losses.append(Loss(message.session_id, message.id, block.type, self.name, reason, kind))
            source = getattr(block, "source", None)
            if isinstance(block, msg.UnknownBlock) or (
                _has_no_unknown_fields(block) and (source is None or _has_no_unknown_fields(source))
            ):
                continue
            self.add_loss(message, block.type, "fields of a newer version")
        return supported

    def supported_result(
        self,
        message: msg.Message,
        result: msg.ContentBlock,
        find_reason: Callable[[msg.ContentBlock], str | None],
        call_wire_ids: dict[str, str],
    ) -> msg.ToolResultBlock:
        """Return a result with its supported blocks, and with the wire id of its call if it has none."""
        assert isinstance(result, msg.ToolResultBlock)
        content = self.supported_blocks(message, result.content, find_reason)
        notes = get_notes(result.provider_raw, self.name)
        if "id" not in notes and result.tool_use_id in call_wire_ids:
            notes = {"dialect": self.name, **notes, "id": call_wire_ids[result.tool_use_id]}
        return result.replace(content=content, provider_raw=notes or None)

    def add_loss(self, message: msg.Message, block_type: str, reason: str) -> None:
        """Add a loss."""
        self.losses.append(Loss(message.session_id, message.id, block_type, self.name, reason))


_NO_FIELD: Final[dict[str, tuple[Literal["hint", "loss"], str]]] = {  # optional fields that no transcript has
    "cache_hint": ("hint", "this format has no cache hints"),
    "detail": ("loss", "this format has no detail of an image"),
    "citations": ("loss", "this format has no citations"),
    "context": ("loss", "this format has no context of a document"),
    "cite": ("loss", "this format has no request for citations"),
    "free_form": ("loss", "this format has no free-form calls; the call is a call of a function"),
}


def _field_losses(block: msg.ContentBlock) -> Iterator[tuple[Literal["hint", "loss"], str]]:
    for name, report in _NO_FIELD.items():
        if getattr(block, name, None) not in (None, (), False):
            yield report


def _has_no_unknown_fields(value: Any) -> bool:
    return value.unknown_fields is msgspec.UNSET


def wire_ids(messages: Iterable[msg.Message], name: str) -> dict[str, str]:
    """Return the wire id of each call by our id, for results that only have our id."""
    calls = (block for message in messages for block in message.content if isinstance(block, msg.CallBlock))
    return {call.id: notes["id"] for call in calls if "id" in (notes := get_notes(call.provider_raw, name))}
