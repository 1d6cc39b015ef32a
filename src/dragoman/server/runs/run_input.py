"""Parse AG-UI's RunAgentInput, of protocol 1.0 and earlier, strictly.

    run_input = parse_run_input(value)        or an error, before any data is stored
    run_input.messages                        each with id, role and parts: texts and files

Unknown fields are ignored. AG-UI uses camel case; the protocol's own fields are also accepted in snake case, as its
Python types write them without aliases. Fields of the application (``metadata``, ``state``, ``parameters``,
``forwardedProps``) are not renamed. Invariant: no field of a message sets an identity, usage, cost, model, time, status
or origin; only the fields listed here are read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from dragoman.errors import SchemaSizeError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.jsontext import validate_json
from dragoman.schema_limits import SchemaSize, shorten_name
from dragoman.server.chat.history import application_fields
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import parse_as, validate_id
from dragoman.tools.schema_compat import to_portable_schema
from dragoman.turn.session_settings import SessionSettings

Role = Literal["user", "assistant", "system", "developer", "tool", "reasoning", "activity"]
MAX_MESSAGES: Final = 5_000
MAX_PARTS: Final = 256  # of one message
MAX_RUN_PARTS: Final = 10_000  # of all messages, including tool calls
MAX_TOOLS: Final = 128
MAX_SCHEMA_VALUES: Final = 20_000  # of all tools, with references expanded
MAX_PATTERNS: Final = 64  # of all tools
_ROLES: Final = ("user", "assistant", "system", "developer", "tool", "reasoning", "activity")
_CONTENT_OPTIONAL: Final = ("assistant", "tool")  # an assistant message may only call tools, a tool may return nothing
_FOREIGN_PART_TYPES: Final = (
    "tool_use",
    "tool_result",
    "thinking",
    "redacted_thinking",
    "toolCall",
    "tool_call",
    "reasoning",
)
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
_RESERVED_METADATA: Final = ("ag-ui", "dragoman")  # used by others than the application
_CLIENT_FIELDS: Final = (
    "id",
    "role",
    "name",
    "content",
    "toolCallId",
    "error",
    "encryptedValue",
)  # that a client may set
_TRUE_MARKS: Final = ("redacted", "empty", "blank")  # pieces of one message, see transcripts.ag_ui
# Keys of metadata.extra that have a meaning in Dragoman, with the type of value that has it.
_RESERVED_EXTRA: Final[dict[str, type]] = {
    "summary": dict,
    "entry": dict,
    "late_result": object,
    "erased": object,
    "interrupted": object,
    "dragoman.request": object,
    "agents-api.message": object,
}


class InputTool(msgspec.Struct, frozen=True):
    """A tool that the client runs."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


class InputContext(msgspec.Struct, frozen=True):
    """Context for the model."""

    description: str
    value: Any


class InputResume(msgspec.Struct, frozen=True, rename="camel"):
    """A decision about an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(msgspec.Struct, frozen=True, rename="camel"):
    """The input of a run. The conversation may be complete: messages that the thread has are skipped."""

    thread_id: str
    run_id: str
    messages: list[dict[str, Any]]
    protocol_version: str | None = None
    parent_run_id: str | None = None
    state: Any = None
    tools: list[InputTool] | None = None
    context: list[InputContext] | None = None
    forwarded_props: Any = None
    resume: list[InputResume] | None = None


class TextPart(msgspec.Struct, frozen=True):
    """A text part."""

    text: str


class FilePart(msgspec.Struct, frozen=True):
    """A file: its bytes, a signed URL, or its location."""

    kind: Literal["image", "audio", "video", "document"]
    source: Literal["data", "url", "file"]
    value: str  # base64, a URL, or bucket/path
    media_type: str | None = None
    name: str | None = None


Part = TextPart | FilePart


class InputMessage(msgspec.Struct, frozen=True):
    """A message of the conversation."""

    id: str
    role: Role
    parts: tuple[Part, ...]  # of user and tool messages
    wire: dict[str, Any]  # only the fields that a client may set
    call_id: str | None = None  # that a tool message answers
    is_error: bool = False
    extra: dict[str, Any] | None = None  # the application's metadata

    @property
    def text(self) -> str:
        """The text of its parts."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def part_count(self) -> int:
        """The number of parts and tool calls."""
        calls = self.wire.get("toolCalls")
        return max(1, len(self.parts)) + (len(calls) if isinstance(calls, list) else 0)

    @property
    def files(self) -> tuple[FilePart, ...]:
        """Its files."""
        return tuple(part for part in self.parts if isinstance(part, FilePart))


class RunInput(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed input."""

    thread_id: str
    run_id: str
    messages: tuple[InputMessage, ...]
    version: str | None = None  # of the protocol; none before 1.0
    parent_run_id: str | None = None
    state: Any = None
    tools: tuple[ToolDefinition, ...] = ()
    context: str | None = None
    model: str | None = None
    settings: SessionSettings | Literal["default"] | None = None  # of a new thread; "default": those of the caller
    resume: tuple[InputResume, ...] = ()


def parse_run_input(value: object) -> RunInput:
    """The parsed input, or an error."""
    wire = parse_as(to_camel_case(value), RunAgentInput)
    if len(wire.messages) > MAX_MESSAGES:
        text = f"messages has {len(wire.messages)} items; the limit is {MAX_MESSAGES}. Send only the newest."
        raise ApiError(422, "too_many_messages", text)
    state = _validate_stored_json(wire.state, "state")
    messages = tuple(_parse_message(message_wire, f"messages[{at}]") for at, message_wire in enumerate(wire.messages))
    if (count := sum(message.part_count for message in messages)) > MAX_RUN_PARTS:
        text = f"messages have {count} parts together; the limit is {MAX_RUN_PARTS}. Send only the newest."
        raise ApiError(422, "too_many_blocks", text)
    return RunInput(
        thread_id=validate_id(wire.thread_id, "threadId"),
        run_id=validate_id(wire.run_id, "runId"),
        messages=messages,
        version=wire.protocol_version,
        parent_run_id=None if wire.parent_run_id is None else validate_id(wire.parent_run_id, "parentRunId"),
        state=None if state == {} else state,
        tools=parse_tools(wire.tools or []),
        context=_join_context(wire.context or []),
        model=_parse_model(wire.forwarded_props),
        settings=_parse_settings(wire.forwarded_props),
        resume=tuple(wire.resume or ()),
    )


def _validate_stored_json(value: Any, where: str) -> Any:
    try:
        validate_json({"it": value}, where)
    except ValueError as error:
        raise ApiError(422, "invalid_request", f"{error}.") from None
    if _has_nul(value):
        raise ApiError(422, "invalid_character", f"{where} contains a NUL.")
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


def parse_tools(tools: list[InputTool]) -> tuple[ToolDefinition, ...]:
    """The definitions of tools that a client runs, or an error."""
    if len(tools) > MAX_TOOLS:
        raise ApiError(422, "too_many_tools", f"tools has {len(tools)} items; the limit is {MAX_TOOLS}.")
    definitions: list[ToolDefinition] = []
    values = patterns = 0
    for tool in tools:
        definition, size = _parse_tool(tool)
        definitions.append(definition)
        values, patterns = values + size.values, patterns + size.patterns
        if values > MAX_SCHEMA_VALUES or patterns > MAX_PATTERNS:
            limits = f"{MAX_SCHEMA_VALUES} values and {MAX_PATTERNS} patterns"
            raise ApiError(422, "schema_too_large", f"The parameters of all tools have more than {limits}.")
    return tuple(definitions)


def _parse_tool(tool: InputTool) -> tuple[ToolDefinition, SchemaSize]:
    place = f"the parameters of {shorten_name(tool.name)!r}"
    schema = _validate_stored_json(tool.parameters, place) or _NO_PARAMETERS
    try:
        portable = to_portable_schema(schema)  # the client validates its inputs; a model gets the portable subset
    except SchemaSizeError as error:
        raise ApiError(422, error.code, f"{place}: {error}.") from None
    definition = ToolDefinition(
        tool.name, tool.description, portable.schema, SideEffects.NONE, requires_workspace=False
    )
    return definition, portable.size


def _join_context(items: list[InputContext]) -> str | None:
    """The context as one text."""
    return "\n\n".join(f"{item.description}:\n{_to_text(item.value)}" for item in items) or None


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _parse_model(forwarded: Any) -> str | None:
    """The model for this run, if one is set."""
    name = forwarded.get("model") if isinstance(forwarded, dict) else None
    if name is None or name == "":
        return None
    if not isinstance(name, str) or len(name) > 200 or "\0" in name:
        raise ApiError(422, "invalid_request", "forwardedProps.model must be the name of a model.")
    return name


def _parse_settings(forwarded: Any) -> SessionSettings | Literal["default"] | None:
    """The settings for the thread, if the run creates it."""
    value = forwarded.get("settings") if isinstance(forwarded, dict) else None
    if value == "default":
        return "default"
    return None if value is None else parse_as(value, SessionSettings)


# --- messages --------------------------------------------------------------------------------------------------------


def _parse_message(wire: dict[str, Any], where: str) -> InputMessage:
    role = wire.get("role")
    if role not in _ROLES:
        raise _message_error(f"{where}.role must be one of {', '.join(_ROLES)}")
    if not isinstance(wire.get("id"), str):
        raise _message_error(f"{where}.id must be a string")
    _validate_times(wire, where)
    parts: tuple[Part, ...] = ()
    content = wire.get("content")
    if role == "user" or (role == "tool" and content not in (None, "")):
        parts = _parse_parts(content, f"{where}.content")
    elif not (isinstance(content, str) or role == "activity" or (content is None and role in _CONTENT_OPTIONAL)):
        raise _message_error(f"{where}.content must be a string")
    return InputMessage(
        id=validate_id(wire["id"], f"{where}.id"),
        role=role,
        parts=parts,
        wire=_allowed_wire(wire),
        call_id=_parse_call_id(wire, where) if role == "tool" else None,
        is_error=wire.get("error") is not None,
        extra=_parse_extra(wire.get("metadata"), where),
    )


def _allowed_wire(wire: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message that a client may set."""
    allowed: dict[str, Any] = {name: wire[name] for name in _CLIENT_FIELDS if name in wire}
    if "toolCalls" in wire:
        calls = wire["toolCalls"]
        allowed["toolCalls"] = [_allowed_call(call) for call in calls] if isinstance(calls, list) else calls
    if (marks := _get_marks(wire)) is not None:
        part_of = {"part_of": marks["part_of"]} if isinstance(marks.get("part_of"), str) else {}
        allowed["metadata"] = {
            "dragoman": {**part_of, **{name: True for name in _TRUE_MARKS if marks.get(name) is True}}
        }
    return allowed


def _allowed_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    allowed = {name: call[name] for name in ("id", "type", "function", "encryptedValue") if name in call}
    invalid = (_get_marks(call) or {}).get("invalid")
    return {**allowed, "metadata": {"dragoman": {"invalid": invalid}}} if isinstance(invalid, str) else allowed


def _get_marks(wire: dict[str, Any]) -> dict[str, Any] | None:
    metadata = wire.get("metadata")
    marks = metadata.get("dragoman") if isinstance(metadata, dict) else None
    return marks if isinstance(marks, dict) else None


def _message_error(text: str) -> ApiError:
    return ApiError(422, "invalid_message", f"{text}.")


def _parse_call_id(wire: dict[str, Any], where: str) -> str:
    call_id = wire.get("toolCallId")
    if not isinstance(call_id, str):
        raise _message_error(f"{where}.toolCallId must be a string")
    return validate_id(call_id, f"{where}.toolCallId")


def _parse_extra(metadata: Any, where: str) -> dict[str, Any] | None:
    """The application's metadata without reserved keys."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise _message_error(f"{where}.metadata must be an object")
    extra = {
        key: value
        for key, value in application_fields(metadata).items()
        if key not in _RESERVED_METADATA and not (key in _RESERVED_EXTRA and isinstance(value, _RESERVED_EXTRA[key]))
    }
    return _validate_stored_json(extra, f"{where}.metadata") or None


def _validate_times(wire: dict[str, Any], where: str) -> None:
    """Reject an invalid time, although the server's time is stored."""
    for name in ("created_at", "createdAt", "timestamp"):
        value = wire.get(name)
        if isinstance(value, str):
            try:
                datetime.fromisoformat(value)
            except ValueError:
                raise ApiError(422, "invalid_timestamp", f"{where}.{name} is not a valid time.") from None


def _parse_parts(content: Any, where: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        if not content:
            raise ApiError(422, "empty_content", f"{where} is empty.")
        return (TextPart(content),)
    if not isinstance(content, list):
        raise _message_error(f"{where} must be a string or a list")
    if not content:
        raise ApiError(422, "empty_content", f"{where} is empty.")
    if len(content) > MAX_PARTS:
        raise ApiError(422, "too_many_blocks", f"{where} has more than {MAX_PARTS} parts.")
    return tuple(_parse_part(part, f"{where}[{at}]") for at, part in enumerate(content))


def _parse_part(part: Any, where: str) -> Part:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise _message_error(f"{where} must be an object with a type")
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "image" | "audio" | "video" | "document" as kind, "source": dict(source)}:
            return _parse_file(kind, source, _filename(part.get("metadata")), where)
        case {"type": "binary", "mimeType": str(media_type)}:
            return _parse_binary(part, media_type, where)
        case {"type": "text" | "image" | "audio" | "video" | "document" | "binary" as kind}:
            raise _message_error(f"{where} is not a valid part of type {kind}")
        case {"type": kind} if kind in _FOREIGN_PART_TYPES:
            raise ApiError(422, "role_content_mismatch", f"{where}: a message of this role cannot have {kind}.")
        case _:
            raise ApiError(422, "unknown_block", f"{where} has an unknown type.")


def _filename(metadata: Any) -> str | None:
    name = metadata.get("filename") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else None


def _parse_file(kind: str, source: dict[str, Any], name: str | None, where: str) -> FilePart:
    form, value, media_type = source.get("type"), source.get("value"), source.get("mimeType")
    if form not in ("data", "url", "file") or not isinstance(value, str):
        raise _message_error(f"{where}.source must be data, a url or a file, with a value")
    if not isinstance(media_type, str | None):
        raise _message_error(f"{where}.source.mimeType must be a string")
    if form == "file" and source.get("provider") != "dragoman":
        raise ApiError(422, "foreign_attachment_url", f"{where}.source is a file of another provider.")
    return msgspec.convert(
        {"kind": kind, "source": form, "value": value, "media_type": media_type, "name": name}, FilePart
    )


def _parse_binary(part: dict[str, Any], media_type: str, where: str) -> FilePart:
    """A part of clients before 1.0: its kind is the first half of its media type."""
    kind = media_type.partition("/")[0]
    kind = kind if kind in ("image", "audio", "video") else "document"
    name = part.get("filename")
    for form, source in (("url", "url"), ("data", "data"), ("id", "file")):
        if isinstance(part.get(form), str):
            place = {"type": source, "value": part[form], "mimeType": media_type, "provider": "dragoman"}
            return _parse_file(kind, place, name if isinstance(name, str) else None, where)
    raise _message_error(f"{where} needs a url, data or an id")


def decode_file(file: FilePart, where: str) -> bytes:
    """The bytes of an inline file."""
    try:
        return base64.b64decode(file.value, validate=True)
    except (binascii.Error, ValueError):
        code = "invalid_image" if file.kind == "image" else "invalid_file"
        raise ApiError(422, code, f"{where} is not base64.") from None


_Names = Mapping[str, str]


def _snake_to_camel(*camel: str) -> _Names:
    """Each name by its snake case spelling."""
    return {"".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name): name for name in camel}


_INPUT: Final = _snake_to_camel("threadId", "runId", "parentRunId", "protocolVersion", "forwardedProps")
_MESSAGE: Final = _snake_to_camel("toolCallId", "toolCalls", "encryptedValue", "activityType", "subagentRunId")
_PART: Final = _snake_to_camel("mimeType")
_RESUME: Final = _snake_to_camel("interruptId")


def to_camel_case(value: Any) -> Any:
    """A RunAgentInput in camel case. Another value is returned unchanged, for the parser to reject."""
    if not isinstance(value, dict):
        return value
    result = _rename_fields(value, _INPUT, "")
    for name, rename in (("messages", _rename_message), ("resume", _rename_resume)):
        if isinstance(result.get(name), list):
            result = {**result, name: [rename(item, f"{name}[{at}].") for at, item in enumerate(result[name])]}
    return result


def _rename_message(value: Any, where: str) -> Any:
    message = _rename_fields(value, _MESSAGE, where)
    if isinstance(message, dict) and isinstance(message.get("content"), list):
        parts = [_rename_part(part, f"{where}content[{at}].") for at, part in enumerate(message["content"])]
        message = {**message, "content": parts}
    return message


def _rename_part(value: Any, where: str) -> Any:
    part = _rename_fields(value, _PART, where)
    if isinstance(part, dict) and isinstance(part.get("source"), dict):
        part = {**part, "source": _rename_fields(part["source"], _PART, f"{where}source.")}
    return part


def _rename_resume(value: Any, where: str) -> Any:
    return _rename_fields(value, _RESUME, where)


def _rename_fields(value: Any, names: _Names, where: str) -> Any:
    """An object with renamed fields; the same object if it has no snake case field."""
    if not isinstance(value, dict) or names.keys().isdisjoint(value):
        return value
    result: dict[str, Any] = {}
    for key, item in value.items():
        name = names.get(key, key)
        if name in result and result[name] != item:
            raise ApiError(422, "invalid_request", f"{where}{name} and {where}{key} differ. Send one of them.")
        result[name] = item
    return result
