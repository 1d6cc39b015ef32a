"""What a client sends to begin a run, read strictly: AG-UI's RunAgentInput, of protocol 1.0 and of those before it.

    given = read_given(value)              or a refusal, before anything is stored
    given.messages                         each with its id, its role and its parts: texts, and files to be looked at

A JSON value comes in and values go out; whose thread it is, and what of it is new, is found out elsewhere. Fields that
we do not know are passed over. Invariant: no field of a message sets an identity, a usage, a cost, a model, a time, a
status or an origin; what a client may set is listed here, and everything else is dropped before it is read.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from dragoman.errors import SchemaSizeError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.schema_limits import SchemaSize, shorten_name
from dragoman.server.asking import identifier, read_as
from dragoman.server.refusing import Refusal
from dragoman.server.rows import application_fields
from dragoman.server.runs.field_names import camel_case
from dragoman.tools.easing import eased
from dragoman.value import check_plain

Role = Literal["user", "assistant", "system", "developer", "tool", "reasoning", "activity"]
MOST_MESSAGES: Final = 5_000
MOST_PARTS: Final = 256  # of one message
MOST_PARTS_OF_RUN: Final = 10_000  # of all messages together, calls of tools included
MOST_TOOLS: Final = 128
MOST_SCHEMA_VALUES: Final = 20_000  # of all tools together, references written out
MOST_PATTERNS: Final = 64  # of all tools together
_ROLES: Final = ("user", "assistant", "system", "developer", "tool", "reasoning", "activity")
_MAY_BE_SILENT: Final = ("assistant", "tool")  # a message that only calls tools, a tool that returns nothing
_OTHERS: Final = ("tool_use", "tool_result", "thinking", "redacted_thinking", "toolCall", "tool_call", "reasoning")
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
_KEPT_APART: Final = ("ag-ui", "dragoman")  # names under which others than the application keep things
_FIELDS: Final = ("id", "role", "name", "content", "toolCallId", "error", "encryptedValue")  # that a client may set
_TRUE_MARKS: Final = ("redacted", "empty", "blank")  # how one message is told in several pieces; see transcripts.ag_ui
# Keys of metadata.extra to which Dragoman gives a meaning of its own, and the type of value that has that meaning.
_OWN_EXTRA: Final[dict[str, type]] = {
    "summary": dict,
    "entry": dict,
    "late_result": object,
    "erased": object,
    "interrupted": object,
    "dragoman.request": object,
    "agents-api.message": object,
}


class ToolGiven(msgspec.Struct, frozen=True):
    """A tool that the client runs."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


class ContextGiven(msgspec.Struct, frozen=True):
    """Something that the model is to know."""

    description: str
    value: Any


class ResumeGiven(msgspec.Struct, frozen=True, rename="camel"):
    """What somebody decided about an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(msgspec.Struct, frozen=True, rename="camel"):
    """What is asked for. The conversation may come whole: what the thread has already is passed over."""

    thread_id: str
    run_id: str
    messages: list[dict[str, Any]]
    protocol_version: str | None = None
    parent_run_id: str | None = None
    state: Any = None
    tools: list[ToolGiven] | None = None
    context: list[ContextGiven] | None = None
    forwarded_props: Any = None
    resume: list[ResumeGiven] | None = None


class Words(msgspec.Struct, frozen=True):
    """A text."""

    text: str


class File(msgspec.Struct, frozen=True):
    """A file: its bytes, a signed URL, or the place where it is kept."""

    kind: Literal["image", "audio", "video", "document"]
    source: Literal["data", "url", "file"]
    value: str  # base64, a URL, or bucket/path
    media_type: str | None = None
    name: str | None = None


Part = Words | File


class MessageGiven(msgspec.Struct, frozen=True):
    """A message of the conversation."""

    id: str
    role: Role
    parts: tuple[Part, ...]  # of a user's message, and of a tool's
    wire: dict[str, Any]  # what the client may set, and nothing else
    call_id: str | None = None  # that a tool's message answers
    is_error: bool = False
    extra: dict[str, Any] | None = None  # what the application keeps with it

    @property
    def text(self) -> str:
        """Its words."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Words))

    @property
    def part_count(self) -> int:
        """How many parts it has, and calls of tools."""
        calls = self.wire.get("toolCalls")
        return max(1, len(self.parts)) + (len(calls) if isinstance(calls, list) else 0)

    @property
    def files(self) -> tuple[File, ...]:
        """Its files."""
        return tuple(part for part in self.parts if isinstance(part, File))


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for, read."""

    thread_id: str
    run_id: str
    messages: tuple[MessageGiven, ...]
    version: str | None = None  # of the protocol; none before 1.0
    parent_run_id: str | None = None
    state: Any = None
    tools: tuple[ToolDefinition, ...] = ()
    context: str | None = None
    model: str | None = None
    resume: tuple[ResumeGiven, ...] = ()


def read_given(value: object) -> Given:
    """What is asked for, or a refusal."""
    said = read_as(camel_case(value), RunAgentInput)
    if len(said.messages) > MOST_MESSAGES:
        what = f"messages has {len(said.messages)} items, more than the {MOST_MESSAGES} allowed. Send the newest ones."
        raise Refusal(422, "too_many_messages", what)
    state = _kept(said.state, "state")
    messages = tuple(_message(wire, f"messages[{at}]") for at, wire in enumerate(said.messages))
    if (count := sum(message.part_count for message in messages)) > MOST_PARTS_OF_RUN:
        what = f"messages have {count} parts together, more than the {MOST_PARTS_OF_RUN} allowed. Send the newest ones."
        raise Refusal(422, "too_many_blocks", what)
    return Given(
        thread_id=identifier(said.thread_id, "threadId"),
        run_id=identifier(said.run_id, "runId"),
        messages=messages,
        version=said.protocol_version,
        parent_run_id=None if said.parent_run_id is None else identifier(said.parent_run_id, "parentRunId"),
        state=None if state == {} else state,
        tools=_tools(said.tools or []),
        context=_context(said.context or []),
        model=_model(said.forwarded_props),
        resume=tuple(said.resume or ()),
    )


def _kept(value: Any, where: str) -> Any:
    try:
        check_plain({"it": value}, where)
    except ValueError as error:
        raise Refusal(422, "invalid_request", f"{error}.") from None
    if _has_nul(value):
        raise Refusal(422, "invalid_character", f"{where} holds a NUL.")
    return value


def _has_nul(value: Any) -> bool:
    match value:
        case str():
            return "\0" in value
        case dict():
            return any("\0" in key or _has_nul(item) for key, item in value.items())
        case list():
            return any(_has_nul(item) for item in value)
        case _:
            return False


def _tools(said: list[ToolGiven]) -> tuple[ToolDefinition, ...]:
    if len(said) > MOST_TOOLS:
        raise Refusal(422, "too_many_tools", f"tools has {len(said)} items, more than the {MOST_TOOLS} allowed.")
    definitions: list[ToolDefinition] = []
    values = patterns = 0
    for tool in said:
        definition, size = _tool(tool)
        definitions.append(definition)
        values, patterns = values + size.values, patterns + size.patterns
        if values > MOST_SCHEMA_VALUES or patterns > MOST_PATTERNS:
            limits = f"{MOST_SCHEMA_VALUES} values and {MOST_PATTERNS} patterns"
            raise Refusal(422, "schema_too_large", f"The parameters of all tools together have more than {limits}.")
    return tuple(definitions)


def _tool(said: ToolGiven) -> tuple[ToolDefinition, SchemaSize]:
    place = f"the parameters of {shorten_name(said.name)!r}"
    schema = _kept(said.parameters, place) or _NO_PARAMETERS
    try:
        made = eased(schema)  # the client checks what it is given; a model is told what every provider takes
    except SchemaSizeError as error:
        raise Refusal(422, error.code, f"{place}: {error}.") from None
    definition = ToolDefinition(said.name, said.description, made.schema, SideEffects.NONE, requires_workspace=False)
    return definition, made.size


def _context(said: list[ContextGiven]) -> str | None:
    """What the model is to know, as one text."""
    return "\n\n".join(f"{one.description}:\n{_plain_text(one.value)}" for one in said) or None


def _plain_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _model(forwarded: Any) -> str | None:
    """The model that was chosen for this run, if one was."""
    chosen = forwarded.get("model") if isinstance(forwarded, dict) else None
    if chosen is None or chosen == "":
        return None
    if not isinstance(chosen, str) or len(chosen) > 200 or "\0" in chosen:
        raise Refusal(422, "invalid_request", "forwardedProps.model has to be the name of a model.")
    return chosen


# --- messages --------------------------------------------------------------------------------------------------------


def _message(wire: dict[str, Any], where: str) -> MessageGiven:
    role = wire.get("role")
    if role not in _ROLES:
        raise _invalid(f"{where}.role has to be one of {', '.join(_ROLES)}")
    if not isinstance(wire.get("id"), str):
        raise _invalid(f"{where}.id has to be a text")
    _check_times(wire, where)
    parts: tuple[Part, ...] = ()
    content = wire.get("content")
    if role == "user" or (role == "tool" and content not in (None, "")):
        parts = _parts(content, f"{where}.content")
    elif not (isinstance(content, str) or role == "activity" or (content is None and role in _MAY_BE_SILENT)):
        raise _invalid(f"{where}.content has to be a text")
    return MessageGiven(
        id=identifier(wire["id"], f"{where}.id"),
        role=role,
        parts=parts,
        wire=_allowed_wire(wire),
        call_id=_call_id(wire, where) if role == "tool" else None,
        is_error=wire.get("error") is not None,
        extra=_extra(wire.get("metadata"), where),
    )


def _allowed_wire(wire: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message that a client may set."""
    allowed: dict[str, Any] = {name: wire[name] for name in _FIELDS if name in wire}
    if "toolCalls" in wire:
        calls = wire["toolCalls"]
        allowed["toolCalls"] = [_allowed_call(call) for call in calls] if isinstance(calls, list) else calls
    if (marks := _marks_of(wire)) is not None:
        named = {"part_of": marks["part_of"]} if isinstance(marks.get("part_of"), str) else {}
        allowed["metadata"] = {"dragoman": {**named, **{name: True for name in _TRUE_MARKS if marks.get(name) is True}}}
    return allowed


def _allowed_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    allowed = {name: call[name] for name in ("id", "type", "function", "encryptedValue") if name in call}
    invalid = (_marks_of(call) or {}).get("invalid")
    return {**allowed, "metadata": {"dragoman": {"invalid": invalid}}} if isinstance(invalid, str) else allowed


def _marks_of(wire: dict[str, Any]) -> dict[str, Any] | None:
    metadata = wire.get("metadata")
    marks = metadata.get("dragoman") if isinstance(metadata, dict) else None
    return marks if isinstance(marks, dict) else None


def _invalid(what: str) -> Refusal:
    return Refusal(422, "invalid_message", f"{what}.")


def _call_id(wire: dict[str, Any], where: str) -> str:
    said = wire.get("toolCallId")
    if not isinstance(said, str):
        raise _invalid(f"{where}.toolCallId has to be a text")
    return identifier(said, f"{where}.toolCallId")


def _extra(metadata: Any, where: str) -> dict[str, Any] | None:
    """What an application wants to keep with a message. It is never taken for what we say of it ourselves."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise _invalid(f"{where}.metadata has to be an object")
    kept = {
        key: value
        for key, value in application_fields(metadata).items()
        if key not in _KEPT_APART and not (key in _OWN_EXTRA and isinstance(value, _OWN_EXTRA[key]))
    }
    return _kept(kept, f"{where}.metadata") or None


def _check_times(wire: dict[str, Any], where: str) -> None:
    """A time that a client states has to be one, although it is ours that counts."""
    for name in ("created_at", "createdAt", "timestamp"):
        said = wire.get(name)
        if isinstance(said, str):
            try:
                datetime.fromisoformat(said)
            except ValueError:
                raise Refusal(422, "invalid_timestamp", f"{where}.{name} is no time.") from None


def _parts(content: Any, where: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        if not content:
            raise Refusal(422, "empty_content", f"{where} is empty.")
        return (Words(content),)
    if not isinstance(content, list):
        raise _invalid(f"{where} has to be a text or a list")
    if not content:
        raise Refusal(422, "empty_content", f"{where} is empty.")
    if len(content) > MOST_PARTS:
        raise Refusal(422, "too_many_blocks", f"{where} has more than {MOST_PARTS} parts.")
    return tuple(_part(part, f"{where}[{at}]") for at, part in enumerate(content))


def _part(part: Any, where: str) -> Part:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise _invalid(f"{where} has to be an object with a type")
    match part:
        case {"type": "text", "text": str(text)}:
            return Words(text)
        case {"type": "image" | "audio" | "video" | "document" as kind, "source": dict(source)}:
            return _file(kind, source, _name(part.get("metadata")), where)
        case {"type": "binary", "mimeType": str(media_type)}:
            return _binary(part, media_type, where)
        case {"type": "text" | "image" | "audio" | "video" | "document" | "binary" as kind}:
            raise _invalid(f"{where} is no part of type {kind}")
        case {"type": kind} if kind in _OTHERS:
            raise Refusal(422, "role_content_mismatch", f"{where}: a message of this role does not hold {kind}.")
        case _:
            raise Refusal(422, "unknown_block", f"{where} is of a type that is not known here.")


def _name(metadata: Any) -> str | None:
    named = metadata.get("filename") if isinstance(metadata, dict) else None
    return named if isinstance(named, str) else None


def _file(kind: str, source: dict[str, Any], name: str | None, where: str) -> File:
    form, value, media_type = source.get("type"), source.get("value"), source.get("mimeType")
    if form not in ("data", "url", "file") or not isinstance(value, str):
        raise _invalid(f"{where}.source has to be data, a url or a file, with a value")
    if not isinstance(media_type, str | None):
        raise _invalid(f"{where}.source.mimeType has to be a text")
    if form == "file" and source.get("provider") != "dragoman":
        raise Refusal(422, "foreign_attachment_url", f"{where}.source is a file of somebody else.")
    return msgspec.convert({"kind": kind, "source": form, "value": value, "media_type": media_type, "name": name}, File)


def _binary(part: dict[str, Any], media_type: str, where: str) -> File:
    """A part as clients before 1.0 send it: its kind is the beginning of its type."""
    kind = media_type.partition("/")[0]
    kind = kind if kind in ("image", "audio", "video") else "document"
    name = part.get("filename")
    for form, source in (("url", "url"), ("data", "data"), ("id", "file")):
        if isinstance(part.get(form), str):
            place = {"type": source, "value": part[form], "mimeType": media_type, "provider": "dragoman"}
            return _file(kind, place, name if isinstance(name, str) else None, where)
    raise _invalid(f"{where} needs a url, data or an id")


def bytes_of(file: File, where: str) -> bytes:
    """The bytes of a file that came with the message."""
    try:
        return base64.b64decode(file.value, validate=True)
    except (binascii.Error, ValueError):
        code = "invalid_image" if file.kind == "image" else "invalid_file"
        raise Refusal(422, code, f"{where} is not base64.") from None
