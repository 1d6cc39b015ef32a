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
from dragoman.dialects.parts import losses, residue
from dragoman.dialects.parts.body import an_object, unkept
from dragoman.dialects.parts.conversation import tool_id_for
from dragoman.dialects.parts.residue import notes_of
from dragoman.errors import FormatError, InputError, JsonError
from dragoman.exchange import Loss
from dragoman.ids import ALPHABET, derived_ulid, ulid
from dragoman.jsontext import OWN, read_json
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
from dragoman.value import check_plain

KEY: Final = "dragoman"
_ULID: Final = re.compile(rf"[0-7][{ALPHABET}]{{25}}")
_NOTHING: Final = MessageMetadata()
_EMPTY: Final = tuple(
    (name, getattr(_NOTHING, name))
    for name in MessageMetadata.__struct_fields__
    if name not in ("provider_raw", "parent_tool_use_id")
)
KNOWN_ROLES: Final = frozenset(Role)  # others are of a newer version
_APART: Final = ("session_id", "role", "content")  # what is said in a format's own words, or by the caller


# --- reading ---------------------------------------------------------------------------------------------------------


class Reading:
    """Messages in the making, read from one conversation of some format."""

    def __init__(self, name: str, session_id: str, created_at: datetime) -> None:
        self.name = name
        self.messages: list[Message] = []
        self.place = "$"  # of what is being read, for an error that does not know better
        self._session_id = session_id
        self._created_at = created_at.astimezone(UTC)
        self._tool_ids: dict[str, str] = {}
        self._uses: dict[str, int] = {}
        self._time_ms = max(0, int(self._created_at.timestamp() * 1000))
        self._first = int.from_bytes(derived_ulid(0, session_id).encode()[-6:])

    def made(
        self,
        role: Role,
        blocks: Iterable[ContentBlock],
        *,
        wire_id: Any = None,
        carried: Any = None,
        **said: Any,
    ) -> Message:
        """A message, not yet among ``messages``; notes about its residue are still to be added to it.

        ``wire_id`` is the id that the format gives it, ``carried`` the object under ``KEY``, ``said`` metadata that the
        format says in its own words.
        """
        content = tuple(blocks)
        made_id = self._next_id()
        if isinstance(wire_id, str) and _ULID.fullmatch(wire_id):
            made_id = wire_id
        elif isinstance(wire_id, str) and wire_id:
            said.setdefault("message_id", wire_id)
        if role is Role.TOOL and content and isinstance(content[0], ToolResultBlock):
            said.setdefault("parent_tool_use_id", content[0].tool_use_id)
        if carried is not None:
            return self._with_carried(carried, made_id, role, content, said)
        given = {"id": made_id, "at": self._created_at.isoformat()}
        metadata = MessageMetadata(**said, provider_raw={"dialect": self.name, "given": given})
        return Message(made_id, self._session_id, role, content, metadata, self._created_at)

    def _with_carried(
        self, carried: Any, made_id: str, role: Role, content: tuple[ContentBlock, ...], said: dict[str, Any]
    ) -> Message:
        fields = {"id": made_id, "created_at": self._created_at.isoformat(), **an_object(carried, self.place)}
        told = an_object(fields.pop("metadata", {}), self.place)
        whole = {**fields, "session_id": self._session_id, "role": str(role), "content": [], "metadata": told}
        try:
            message = codec.decode(msgspec.json.encode(whole))
        except InputError as error:
            raise FormatError(f"what is carried under {KEY!r} is not ours ({error})", where=self.place) from None
        metadata = message.metadata.replace(**{name: value for name, value in said.items() if name not in told})
        return message.replace(content=content, metadata=metadata)

    def _next_id(self) -> str:
        return ulid(self._time_ms, (self._first << 32) | len(self.messages))

    def call_id(self, wire_id: str) -> str:
        """Our id for a call. An id that is used again means another call."""
        if wire_id in self._tool_ids:
            self._uses[wire_id] = self._uses.get(wire_id, 1) + 1
        self._tool_ids[wire_id] = tool_id_for(wire_id, self._uses.get(wire_id, 1))
        return self._tool_ids[wire_id]

    def answered_id(self, wire_id: str) -> str:
        """Our id for the call that a result answers: the latest one of that id."""
        return self._tool_ids.get(wire_id) or tool_id_for(wire_id)


def read_all(wire: Any, read: Callable[[Any, Reading], None], reading: Reading) -> tuple[Message, ...]:
    """What ``read`` puts among the messages of ``reading``. What cannot be kept is a ``FormatError`` with its place."""
    try:
        read(value_of(wire), reading)
    except (ValueError, RecursionError) as error:
        code, what = unkept(error)
        raise FormatError(what, where=reading.place, code=code) from error
    return tuple(reading.messages)


def value_of(wire: Any) -> Any:
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


def noted(name: str, written: Any, wire: Any, **notes: Any) -> ProviderRaw | None:
    """What to keep in ``provider_raw``: the difference to what we would have written, and the order of keys."""
    made = residue.noted(name, written, wire, **notes)
    again = residue.restored(written, (made or {}).get("residue"))
    order = _order(again, wire)
    if order is None:
        return made
    made = {"dialect": name, **(made or {}), "order": order}
    check_plain(made, "provider_raw")
    return made


def restored(written: Any, notes: ProviderRaw) -> Any:
    """What stood there, as far as what we would write now is still what we would have written then."""
    return _ordered(residue.restored(written, notes.get("residue")), notes.get("order"))


def settled(message: Message, written: Any, wire: Any, name: str) -> Message:
    """The message, with what is left over of its wire added to the notes that it has."""
    notes = {key: note for key, note in notes_on(message, name).items() if key != "dialect"}
    return with_notes(message, noted(name, written, wire, **notes))


def with_notes(message: Message, notes: ProviderRaw | None) -> Message:
    """The message, with these notes in place of those it has. Notes that JSON cannot express raise a ``ValueError``."""
    if notes is not None:
        check_plain(notes, "provider_raw")
    metadata = msgspec.structs.replace(message.metadata, provider_raw=notes)
    return msgspec.structs.replace(message, metadata=metadata)


def notes_on(message: Message, name: str) -> ProviderRaw:
    """What a format noted about a message."""
    return notes_of(message.metadata.provider_raw, name)


def _order(made: Any, wire: Any) -> dict[str, Any] | None:
    """How the keys of the wire stand, as far as they stand otherwise in what we made of it."""
    if type(made) is dict and type(wire) is dict:
        found: dict[str, Any] = {} if list(made) == list(wire) else {"keys": list(wire)}
        inside = {key: part for key in wire if (part := _order(made.get(key), wire[key])) is not None}
    elif type(made) is list and type(wire) is list:
        found = {}
        pairs = enumerate(zip(made, wire, strict=False))
        inside = {str(at): part for at, (ours, theirs) in pairs if (part := _order(ours, theirs)) is not None}
    else:
        return None
    return ({**found, "in": inside} if inside else found) or None


def _ordered(made: Any, order: dict[str, Any] | None) -> Any:
    if order is None or type(made) not in (dict, list):
        return made
    inside = order.get("in", {})
    if type(made) is list:
        return [_ordered(item, inside.get(str(at))) for at, item in enumerate(made)]
    keys = [key for key in order.get("keys", ()) if key in made]
    return {key: _ordered(made[key], inside.get(key)) for key in dict.fromkeys([*keys, *made])}


# --- what is carried -------------------------------------------------------------------------------------------------


def wire_id_of(message: Message) -> str:
    """The id under which others know a message."""
    return message.metadata.message_id or message.id


def carried(message: Message, name: str, said: Collection[str] = (), *, has_id: bool = True) -> dict[str, Any] | None:
    """What a format has no word for: time, id and metadata, as far as reading would not give them anyway.

    ``said`` are names of metadata that the format says in its own words; ``has_id`` is whether it has ids of messages.
    """
    given = notes_on(message, name).get("given", {})
    if has_id and _is_foreign(message.metadata.message_id):
        said = {*said, "message_id"}
    if given.get("id") == message.id and given.get("at") == message.created_at.isoformat() and _is_bare(message, said):
        return None
    metadata = _left(message, said)
    bare = message.replace(content=(), metadata=metadata)
    fields = msgspec.json.decode(codec.encode(bare))
    kept = {key: value for key, value in fields.items() if key not in _APART}
    if message.schema_version == 1:
        kept.pop("schema_version", None)
    if given.get("at") == message.created_at.isoformat():
        del kept["created_at"]
    if given.get("id") == message.id or (has_id and wire_id_of(message) == message.id and _ULID.fullmatch(message.id)):
        del kept["id"]
    if message.role is Role.TOOL and _may_answer(message) != {message.metadata.parent_tool_use_id}:
        kept["metadata"] = {**kept["metadata"], "parent_tool_use_id": message.metadata.parent_tool_use_id}
    if not kept["metadata"]:
        del kept["metadata"]
    return kept or None


def _is_bare(message: Message, said: Collection[str]) -> bool:
    """Whether there is nothing to carry, which is quickly seen."""
    metadata = message.metadata
    if message.schema_version != 1 or message.unknown_fields is not msgspec.UNSET:
        return False
    if {metadata.parent_tool_use_id} != (_may_answer(message) if message.role is Role.TOOL else {None}):
        return False
    return all(getattr(metadata, name) == value for name, value in _EMPTY if name not in said)


def _is_foreign(message_id: str | None) -> bool:
    """Whether it is an id of others: one that looks like ours is read as ours."""
    return bool(message_id) and not _ULID.fullmatch(message_id or "")


def _left(message: Message, said: Collection[str]) -> MessageMetadata:
    metadata = message.metadata
    unsaid: dict[str, Any] = {field: getattr(_NOTHING, field) for field in said}
    if message.role is Role.TOOL and metadata.parent_tool_use_id == _answered(message):
        unsaid["parent_tool_use_id"] = None
    return metadata.replace(provider_raw=None, **unsaid)


def _may_answer(message: Message) -> set[str | None]:
    """What a reader may take a message to answer: what it says first, or its first result, if the rest is left out."""
    results = (block.tool_use_id for block in message.content if isinstance(block, ToolResultBlock))
    return {_answered(message), next(results, None)}


def _answered(message: Message) -> str | None:
    first = message.content[0] if message.content else None
    return first.tool_use_id if isinstance(first, ToolResultBlock) else None


# --- what is lost ----------------------------------------------------------------------------------------------------


def cannot_say(block: ContentBlock, role: Role, name: str) -> str | None:
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


class Losing:
    """What a format cannot say, named as it is found."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.losses: list[Loss] = []

    def sayable(
        self, message: Message, blocks: Iterable[ContentBlock], cannot_say: Callable[[ContentBlock], str | None]
    ) -> tuple[ContentBlock, ...]:
        """The blocks that the format can carry; the others are lost, and so is what a newer version added to them."""
        kept = tuple(losses.sayable(blocks, cannot_say, self.name, self.losses, message))
        for block in kept:
            source = getattr(block, "source", None)
            if isinstance(block, UnknownBlock) or (_is_known(block) and (source is None or _is_known(source))):
                continue
            self.lose(message, block.type, "fields that a newer version added to it")
        return kept

    def lose(self, message: Message, what: str, reason: str) -> None:
        """One more loss."""
        self.losses.append(Loss(message.session_id, message.id, what, self.name, reason))


def _is_known(value: Any) -> bool:
    return value.unknown_fields is msgspec.UNSET


def wire_ids(messages: Iterable[Message], name: str) -> dict[str, str]:
    """What the format calls each call, by our id: a result that was just made knows our id alone."""
    calls = (block for message in messages for block in message.content if isinstance(block, CALL))
    return {call.id: notes["id"] for call in calls if "id" in (notes := notes_of(call.provider_raw, name))}


__all__ = [
    "KEY",
    "KNOWN_ROLES",
    "Losing",
    "Reading",
    "carried",
    "noted",
    "notes_of",
    "notes_on",
    "read_all",
    "restored",
    "settled",
    "value_of",
    "wire_id_of",
    "wire_ids",
    "with_notes",
]
