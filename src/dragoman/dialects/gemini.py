"""Gemini generateContent: https://ai.google.dev/api/generate-content (read November 2026); Vertex speaks the same.

The model stands in the URL, so a request may name none. Results stand inside user contents there and are messages of
their own here; system prompts stand beside the list. Keys come in camelCase and in snake_case: they are read alike, and
which of them were spelled the second way is noted. A call may have no id; then its name and its place are its id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.conversation import Conversation, a_list, an_object, lost_fault
from dragoman.dialects.parts.framing import FramingError, json_line, splitter, sse_frame
from dragoman.dialects.parts.headers import retry_after_s
from dragoman.dialects.parts.residue import difference, noted, notes_of, restored
from dragoman.dialects.parts.scalars import count_of, integer_or_none, number_or_none, text_or_none, texts_of
from dragoman.errors import FormatError
from dragoman.event import (
    BlockComplete,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    fold,
)
from dragoman.exchange import (
    ErrorClass,
    Fault,
    Loss,
    OpaqueTool,
    Options,
    Reasoning,
    Reply,
    Request,
    ResponseFormat,
    SideEffects,
    StopReason,
    ToolChoice,
    ToolDefinition,
    Written,
)
from dragoman.ids import AS_IT_IS, spell
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    OpaqueBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)

NAME: Final = "gemini"
FINISH_REASONS: Final = {
    "STOP": StopReason.END_TURN,
    "MAX_TOKENS": StopReason.MAX_TOKENS,
    "SAFETY": StopReason.REFUSAL,
    "RECITATION": StopReason.REFUSAL,
    "LANGUAGE": StopReason.REFUSAL,
    "BLOCKLIST": StopReason.REFUSAL,
    "PROHIBITED_CONTENT": StopReason.REFUSAL,
    "SPII": StopReason.REFUSAL,
    "IMAGE_SAFETY": StopReason.REFUSAL,
    "IMAGE_PROHIBITED_CONTENT": StopReason.REFUSAL,
    "IMAGE_RECITATION": StopReason.REFUSAL,
    "CONTINUATION": StopReason.PAUSED,
}
_NUMBERED: Final = {1: "STOP", 2: "MAX_TOKENS", 3: "SAFETY", 4: "RECITATION"}  # as protocol buffers number them
_FAILURES: Final = {
    "MALFORMED_FUNCTION_CALL": "tool_input_invalid",
    "UNEXPECTED_TOOL_CALL": "tool_input_invalid",
    "TOO_MANY_TOOL_CALLS": "server_error",
    "MISSING_THOUGHT_SIGNATURE": "invalid_request",
    "MALFORMED_RESPONSE": "server_error",
}
_FINISH_WORDS: Final = {
    StopReason.MAX_TOKENS: "MAX_TOKENS",
    StopReason.REFUSAL: "SAFETY",
    StopReason.CANCELLED: "OTHER",
    StopReason.UNKNOWN: "OTHER",
}
_CHOICES: Final = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}
_CHOICE_WORDS: Final = {"auto": "AUTO", "required": "ANY", "none": "NONE", "tool": "ANY"}
_APART: Final = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig")  # read one by one


# --- spelling --------------------------------------------------------------------------------------------------------

_CAMEL: Final = {
    "system_instruction": "systemInstruction",
    "generation_config": "generationConfig",
    "tool_config": "toolConfig",
    "service_tier": "serviceTier",
    "top_p": "topP",
    "top_k": "topK",
    "max_output_tokens": "maxOutputTokens",
    "stop_sequences": "stopSequences",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "response_mime_type": "responseMimeType",
    "response_schema": "responseSchema",
    "response_json_schema": "responseJsonSchema",
    "thinking_config": "thinkingConfig",
    "include_thoughts": "includeThoughts",
    "thinking_budget": "thinkingBudget",
    "thinking_level": "thinkingLevel",
    "function_calling_config": "functionCallingConfig",
    "allowed_function_names": "allowedFunctionNames",
    "function_declarations": "functionDeclarations",
    "parameters_json_schema": "parametersJsonSchema",
    "inline_data": "inlineData",
    "mime_type": "mimeType",
    "file_data": "fileData",
    "file_uri": "fileUri",
    "function_call": "functionCall",
    "partial_args": "partialArgs",
    "will_continue": "willContinue",
    "function_response": "functionResponse",
    "thought_signature": "thoughtSignature",
    "finish_reason": "finishReason",
}
_SNAKE: Final = {camel: snake for snake, camel in _CAMEL.items()}
_DEEPER: Final = frozenset(  # objects of the API itself; in all others the keys are somebody's own
    {
        "generationConfig",
        "thinkingConfig",
        "toolConfig",
        "functionCallingConfig",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
    }
)


def _in_camel(wire: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The object with the keys that we know in camelCase, and those that were in snake_case."""
    made: dict[str, Any] = {}
    snake: list[str] = []
    for key, value in wire.items():
        known = _CAMEL.get(key, key)
        if known != key and known in wire:  # both spellings at once: the second is not ours to read
            known = key
        if known != key:
            snake.append(key)
        if known in _DEEPER and type(value) is dict:
            value, inner = _in_camel(value)  # noqa: PLW2901
            snake.extend(inner)
        made[known] = value
    return made, snake


def _respelled(wire: dict[str, Any], snake: Any) -> dict[str, Any]:
    """The object with its keys as they were spelled."""
    if not snake:
        return wire
    made: dict[str, Any] = {}
    for key, value in wire.items():
        spelled = _SNAKE.get(key, key)
        inner = _respelled(value, snake) if key in _DEEPER and type(value) is dict else value
        made[spelled if spelled in snake else key] = inner
    return made


def _listed(value: Any, where: str) -> list[Any]:
    """A list; the API also takes a single object in place of a list of one."""
    return [value] if type(value) is dict else a_list(value, where)


# --- request ---------------------------------------------------------------------------------------------------------


class _Turns(Conversation):
    """A conversation that finds the call of a result also by its name, in order, because a call may have no id."""

    def __init__(self, seed: str = "") -> None:
        super().__init__()
        self.calls: dict[str, tuple[str, str]] = {}
        self._seed = seed
        self._waiting: list[tuple[str, str, str]] = []  # name, their id or "", our id

    def called(self, name: str, provider_id: str) -> str:
        """Our id for a call."""
        made = self.call_id(provider_id or f"{self._seed} call of {name}")
        self._waiting.append((name, provider_id, made))
        self.calls[made] = (name, provider_id)
        return made

    def answered(self, name: str, provider_id: str) -> str:
        """Our id for the call that a result answers: the one of that id, else the first of that name, or at all."""
        of_that_id = [call for call in self._waiting if provider_id and call[1] == provider_id]
        if not of_that_id and provider_id in self._tool_ids:
            return self.answered_id(provider_id)
        of_that_name = [call for call in self._waiting if call[0] == name and not (provider_id and call[1])]
        of_any_name = self._waiting if not provider_id else []  # some clients answer under a name of their own
        for call in of_that_id or of_that_name or of_any_name:
            self._waiting.remove(call)
            return call[2]
        return self.answered_id(provider_id or f"{self._seed} call of {name}")


def read_request(wire: Any) -> Request:
    """A request as generateContent takes it."""
    body, snake = _in_camel(an_object(wire, "$"))
    turns = _Turns()
    if body.get("systemInstruction"):
        _read_system(body["systemInstruction"], turns)
    for index, content in enumerate(_listed(body.get("contents"), "$.contents")):
        _read_content(an_object(content, f"$.contents[{index}]"), f"$.contents[{index}]", turns)
    config = an_object(body.get("generationConfig") or {}, "$.generationConfig")
    choice = an_object(body.get("toolConfig") or {}, "$.toolConfig")
    request = Request(
        model=text_or_none(body.get("model")),
        messages=tuple(turns.messages),
        tools=_read_tools(_listed(body.get("tools") or [], "$.tools")),
        options=_read_options(config, choice, body),
    )
    notes: dict[str, Any] = {
        "snake": snake or None,
        "model": True if request.model is not None else None,
        "objects": [key for key in ("contents", "tools") if type(body.get(key)) is dict] or None,
        "empty": {key: body[key] for key in _APART if key in body and not body[key]} or None,
        "schema": "responseSchema" if isinstance(config.get("responseSchema"), dict) else None,
        "allowed": _allowed(choice) or None,
    }
    notes["config"] = difference(_natural_config(request.options, notes), config)
    notes["choice"] = difference(_natural_choice(request.options, notes), choice)
    rest = {key: value for key, value in body.items() if key not in _APART}
    return request.replace(provider_raw=noted(NAME, _natural_top(request, notes), rest, **notes))


def write_request(request: Request) -> Written:
    """The request as generateContent takes it, and what it cannot take. The model belongs in the URL."""
    losses: list[Loss] = []
    notes = notes_of(request.provider_raw, NAME)
    wire: dict[str, Any] = {"contents": _written_contents(request.messages, losses)}
    system = _written_system(request.messages, losses)
    if system is not None:
        wire["systemInstruction"] = system
    tools = _written_tools(request.tools, losses)
    if tools:
        wire["tools"] = tools
    choice = restored(_natural_choice(request.options, notes), notes.get("choice"))
    if choice:
        wire["toolConfig"] = choice
    config = restored(_natural_config(request.options, notes), notes.get("config"))
    if config:
        wire["generationConfig"] = config
    for key in notes.get("objects", ()):
        if len(wire.get(key, ())) == 1:
            wire[key] = wire[key][0]
    wire.update((key, value) for key, value in notes.get("empty", {}).items() if not wire.get(key))
    wire.update(restored(_natural_top(request, notes), notes.get("residue")))
    losses.extend(_lost_options(request.options))
    return Written(_respelled(wire, notes.get("snake")), tuple(losses))


def _natural_top(request: Request, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if request.model is not None and notes.get("model"):
        wire["model"] = request.model
    if request.options.service_tier is not None:
        wire["serviceTier"] = request.options.service_tier
    return wire


def _lost_options(options: Options) -> list[Loss]:
    lost = [name for name in ("user",) if getattr(options, name) is not None]
    if options.parallel_tool_calls is False:
        lost.append("parallel_tool_calls")
    return [Loss("", "", name, NAME, "this API has no such option") for name in lost]


def _read_system(system: Any, turns: _Turns) -> None:
    if isinstance(system, str):
        turns.add(Role.SYSTEM, [TextBlock(system)], {"dialect": NAME, "form": "string"})
        return
    wire = an_object(system, "$.systemInstruction")
    parts, form = _parts_of(wire, "$.systemInstruction")
    blocks = [_read_part(part, "user", turns, "$.systemInstruction.parts") for part in parts]
    rest = {key: value for key, value in wire.items() if key != "parts"}
    turns.add(Role.SYSTEM, blocks, noted(NAME, {}, rest, form=form or "hoisted"))


def _parts_of(wire: dict[str, Any], where: str) -> tuple[list[Any], str | None]:
    """The parts of a content, and how they were given if not as a list."""
    if "parts" not in wire:
        return [], "absent"
    if type(wire["parts"]) is dict:
        return [wire["parts"]], "object"
    return a_list(wire["parts"], f"{where}.parts"), None


def _written_system(messages: tuple[Message, ...], losses: list[Loss]) -> Any:
    """System prompts stand beside the list, all of them in one."""
    system = [message for message in messages if message.role is Role.SYSTEM]
    parts = [part for message in system for part in _written_parts(message, {}, losses)]
    notes = notes_of(system[0].metadata.provider_raw, NAME) if system else {}
    if not parts and "form" not in notes:
        return None
    if notes.get("form") == "string" and len(parts) == 1 and set(parts[0]) == {"text"}:
        return parts[0]["text"]
    return restored(_with_parts({}, parts, notes.get("form")), notes.get("residue"))


def _with_parts(wire: dict[str, Any], parts: list[dict[str, Any]], form: str | None) -> dict[str, Any]:
    if form == "absent" and not parts:
        return wire
    return {**wire, "parts": parts[0] if form == "object" and len(parts) == 1 else parts}


def _read_content(wire: dict[str, Any], where: str, turns: _Turns) -> None:
    role = wire.get("role") or "user"
    if role not in ("user", "model", "function"):
        raise FormatError(f"a role is user, model or function, not {role!r}", where=f"{where}.role")
    parts, form = _parts_of(wire, where)
    rest = {key: value for key, value in wire.items() if key != "parts"}
    raw = noted(NAME, {"role": "model" if role == "model" else "user"}, rest, form=form) or {"dialect": NAME}
    groups = _groups(parts, role)
    for index, (kind, group) in enumerate(groups):
        notes: dict[str, Any] = dict(raw) if index == 0 else {"dialect": NAME}
        if index and "tool" in (kind, groups[index - 1][0]) and kind != groups[index - 1][0]:
            notes["joined"] = True
        if index == 0 and kind == "tool" and turns.messages and turns.messages[-1].role is Role.TOOL:
            notes["joined"] = False
        kept = notes if len(notes) > 1 else None
        if kind == "tool":
            result = _read_result(group[0], turns, f"{where}.parts")
            turns.add(Role.TOOL, [result], kept, answers=result.tool_use_id)
        else:
            blocks = [_read_part(part, role, turns, f"{where}.parts") for part in group]
            turns.add(Role.ASSISTANT if role == "model" else Role.USER, blocks, kept)


def _groups(parts: list[Any], role: str) -> list[tuple[str, list[Any]]]:
    """A user's content is cut where results begin and end; each result is a group of its own."""
    groups: list[tuple[str, list[Any]]] = []
    for part in parts:
        if role != "model" and _is_result(part):
            groups.append(("tool", [part]))
        elif groups and groups[-1][0] != "tool":
            groups[-1][1].append(part)
        else:
            groups.append((role, [part]))
    return groups or [(role, [])]


def _is_result(part: Any) -> bool:
    answer = part.get("functionResponse", part.get("function_response")) if type(part) is dict else None
    return (
        type(answer) is dict
        and isinstance(answer.get("name"), str)
        and type(answer.get("response", {})) is dict
        and isinstance(answer.get("id", ""), str)
    )


def _written_contents(messages: tuple[Message, ...], losses: list[Loss]) -> list[dict[str, Any]]:
    calls = {
        block.id: (block.name, _wire_id(block.id, notes_of(block.provider_raw, NAME)).get("id", ""))
        for message in messages
        for block in message.content
        if isinstance(block, ToolUseBlock | InvalidToolUseBlock)
    }
    wire: list[dict[str, Any]] = []
    previous: Message | None = None
    for message in messages:
        if message.role is Role.SYSTEM:
            continue
        notes = notes_of(message.metadata.provider_raw, NAME)
        parts = _written_parts(message, calls, losses)
        joins = previous is not None and _joins(previous, message, notes)
        previous = message
        if not parts and message.content:
            continue  # nothing of it can be said here; the losses name it
        if joins and wire:
            known = wire[-1].get("parts", [])
            wire[-1]["parts"] = [*([known] if type(known) is dict else known), *parts]
            continue
        content = restored({"role": "model" if message.role is Role.ASSISTANT else "user"}, notes.get("residue"))
        wire.append(_with_parts(content, parts, notes.get("form")))
    return wire


def _joins(previous: Message, message: Message, notes: Mapping[str, Any]) -> bool:
    """Whether two messages are one on the wire: results next to each other are, unless they came apart."""
    if "joined" in notes:
        return bool(notes["joined"]) and previous.role in (Role.TOOL, Role.USER)
    return previous.role is Role.TOOL and message.role is Role.TOOL


# --- tools -----------------------------------------------------------------------------------------------------------

_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def _read_tools(items: list[Any]) -> tuple[ToolDefinition | OpaqueTool, ...]:
    """Each function of each group is a tool. What else stands in a group is noted at its first function."""
    tools: list[ToolDefinition | OpaqueTool] = []
    for index, item in enumerate(items):
        wire, snake = _in_camel(an_object(item, f"$.tools[{index}]"))
        functions = wire.get("functionDeclarations")
        if not isinstance(functions, list) or not functions or not all(_is_function(item) for item in functions):
            tools.append(OpaqueTool(NAME, item))
            continue
        beside = {key: value for key, value in wire.items() if key != "functionDeclarations"}
        group = {
            "begins": True if tools and isinstance(tools[-1], ToolDefinition) else None,
            "group_snake": snake or None,
            "beside": {key: value for key, value in beside.items() if not value and value != {}} or None,
        }
        others = {key: value for key, value in beside.items() if value or value == {}}
        if others:
            group["absorbs"] = True
        tools.append(_read_tool(functions[0], group))
        tools.extend(_read_tool(function, {}) for function in functions[1:])
        if others:
            tools.append(OpaqueTool(NAME, others))
    return tuple(tools)


def _is_function(wire: Any) -> bool:
    return type(wire) is dict and isinstance(wire.get("name"), str)


def _read_tool(item: dict[str, Any], group: dict[str, Any]) -> ToolDefinition:
    wire, snake = _in_camel(item)
    description = wire.get("description")
    key: str | None = "absent"
    schema: dict[str, Any] = _NO_PARAMETERS
    if isinstance(wire.get("parametersJsonSchema"), dict):
        key, schema = None, wire["parametersJsonSchema"]
    elif isinstance(wire.get("parameters"), dict):
        key, schema = "parameters", _lowered(wire["parameters"])
    said = description if isinstance(description, str) else ""
    tool = ToolDefinition(wire["name"], said, schema, SideEffects.EXECUTE)
    notes = {"schema": key, "snake": snake or None, **group}
    return tool.replace(provider_raw=noted(NAME, _natural_tool(tool, notes), wire, **notes))


def _natural_tool(tool: ToolDefinition, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {"name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    match notes.get("schema"):
        case "parameters":
            wire["parameters"] = _raised(tool.input_schema)
        case "absent" if tool.input_schema == _NO_PARAMETERS:
            pass
        case _:
            wire["parametersJsonSchema"] = tool.input_schema
    return wire


def _written_tools(tools: tuple[ToolDefinition | OpaqueTool, ...], losses: list[Loss]) -> list[dict[str, Any]]:
    """Functions next to each other are one group, unless they came apart."""
    wire: list[dict[str, Any]] = []
    group: dict[str, Any] | None = None
    group_notes: Mapping[str, Any] = {}
    for tool in tools:
        if isinstance(tool, OpaqueTool):
            if tool.dialect != NAME:
                losses.append(Loss("", "", "tool", NAME, f"a tool that only {tool.dialect} understands"))
            elif group is not None and group_notes.get("absorbs"):
                group.update(tool.wire)
                group = None
            else:
                wire.append(tool.wire)
                group = None
            continue
        notes = notes_of(tool.provider_raw, NAME)
        made = _respelled(restored(_natural_tool(tool, notes), notes.get("residue")), notes.get("snake"))
        if group is None or notes.get("begins"):
            key = "function_declarations" if notes.get("group_snake") else "functionDeclarations"
            functions: list[Any] = []
            group, group_notes = {key: functions, **notes.get("beside", {})}, notes
            wire.append(group)
        functions.append(made)
    return wire


_TYPES: Final = {1: "string", 2: "number", 3: "integer", 4: "boolean", 5: "array", 6: "object", 7: "null"}
_OPENAPI_FORMATS: Final = frozenset({"enum", "int32", "int64", "float", "double"})
_NOT_JSON_SCHEMA: Final = frozenset({"nullable", "propertyOrdering", "property_ordering"})
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_NAMED_SCHEMAS: Final = frozenset({"properties", "$defs", "defs", "definitions"})
_ONE_SCHEMA: Final = frozenset({"items", "additionalProperties", "not"})
_MORE_SCHEMAS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})


def _lowered(schema: Any) -> Any:
    """JSON Schema for a schema of Google's, which is OpenAPI's with other words: STRING, nullable, int64 as a text."""
    if type(schema) is not dict:
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type" and type(value) in (str, int):
            made[key] = _TYPES.get(value, value) if type(value) is int else value.lower()
        elif key in _COUNTS and isinstance(value, str) and value.isascii() and value.isdigit():
            made[key] = int(value)
        elif key not in _NOT_JSON_SCHEMA and not (key == "format" and str(value) in _OPENAPI_FORMATS):
            known = "anyOf" if key == "any_of" else key
            made[known] = _inside(known, value, _lowered)
    if schema.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


def _raised(schema: Any) -> Any:
    """The schema in Google's words, as far as they differ."""
    if type(schema) is not dict:
        return schema
    made = {key: _inside(key, value, _raised) for key, value in schema.items()}
    match made.get("type"):
        case str(kind):
            made["type"] = kind.upper()
        case [str(kind), "null"] | ["null", str(kind)]:
            made["type"], made["nullable"] = kind.upper(), True
    return made


def _inside(key: str, value: Any, change: Any) -> Any:
    """The value of a schema's keyword, with the schemas in it changed."""
    if key in _NAMED_SCHEMAS and type(value) is dict:
        return {name: change(part) for name, part in value.items()}
    if key in _MORE_SCHEMAS and type(value) is list:
        return [change(part) for part in value]
    return change(value) if key in _ONE_SCHEMA else value


# --- options ---------------------------------------------------------------------------------------------------------


def _read_options(config: dict[str, Any], choice: dict[str, Any], body: dict[str, Any]) -> Options:
    return Options(
        max_output_tokens=integer_or_none(config.get("maxOutputTokens")),
        temperature=number_or_none(config.get("temperature")),
        top_p=number_or_none(config.get("topP")),
        top_k=integer_or_none(config.get("topK")),
        stop_sequences=texts_of(config.get("stopSequences")),
        seed=integer_or_none(config.get("seed")),
        presence_penalty=number_or_none(config.get("presencePenalty")),
        frequency_penalty=number_or_none(config.get("frequencyPenalty")),
        tool_choice=_read_choice(choice),
        response_format=_read_format(config),
        reasoning=_read_reasoning(config.get("thinkingConfig")),
        service_tier=text_or_none(body.get("serviceTier")),
    )


def _allowed(choice: dict[str, Any]) -> list[str]:
    """The functions that may be called, if there are several to choose from."""
    config = choice.get("functionCallingConfig")
    names = list(texts_of(config.get("allowedFunctionNames"))) if isinstance(config, dict) else []
    return names if len(names) > 1 else []


def _read_choice(choice: dict[str, Any]) -> ToolChoice | None:
    config = choice.get("functionCallingConfig")
    config = config if isinstance(config, dict) else {}
    mode, names = (
        _CHOICES.get((text_or_none(config.get("mode")) or "").upper()),
        texts_of(config.get("allowedFunctionNames")),
    )
    if mode is None:
        return None
    if mode == "required" and len(names) == 1:
        return ToolChoice("tool", names[0])
    return ToolChoice(mode)  # type: ignore[arg-type]


def _natural_choice(options: Options, notes: Mapping[str, Any]) -> dict[str, Any]:
    if options.tool_choice is None:
        return {}
    config: dict[str, Any] = {"mode": _CHOICE_WORDS[options.tool_choice.mode]}
    if options.tool_choice.name is not None:
        config["allowedFunctionNames"] = [options.tool_choice.name]
    elif options.tool_choice.mode == "required" and notes.get("allowed"):
        config["allowedFunctionNames"] = notes["allowed"]
    return {"functionCallingConfig": config}


def _read_format(config: dict[str, Any]) -> ResponseFormat | None:
    kind = config.get("responseMimeType", "application/json")
    if kind == "text/plain":
        return ResponseFormat("text")
    if kind != "application/json":
        return None
    if isinstance(config.get("responseSchema"), dict):
        return ResponseFormat("json_schema", _lowered(config["responseSchema"]))
    if isinstance(config.get("responseJsonSchema"), dict):
        return ResponseFormat("json_schema", config["responseJsonSchema"])
    return ResponseFormat("json") if "responseMimeType" in config else None


def _natural_format(asked: ResponseFormat, notes: Mapping[str, Any]) -> dict[str, Any]:
    if asked.kind == "text":
        return {"responseMimeType": "text/plain"}
    wire: dict[str, Any] = {"responseMimeType": "application/json"}
    if asked.kind == "json_schema" and asked.json_schema is not None:
        if notes.get("schema") == "responseSchema":
            wire["responseSchema"] = _raised(asked.json_schema)
        else:
            wire["responseJsonSchema"] = asked.json_schema
    return wire


def _read_reasoning(config: Any) -> Reasoning | None:
    """A budget of 0 is off, one of -1 as much as the model likes."""
    if not isinstance(config, dict):
        return None
    budget, level = integer_or_none(config.get("thinkingBudget")), text_or_none(config.get("thinkingLevel"))
    enabled = True if budget or config.get("includeThoughts") is True else None
    return Reasoning(
        enabled=False if budget == 0 else enabled,
        effort=level.lower() if level else None,
        budget_tokens=budget if budget is not None and budget > 0 else None,
    )


_LEVELS: Final = {"xhigh": "high", "max": "high"}  # others say more than this API has levels for


def _natural_thinking(reasoning: Reasoning) -> dict[str, Any]:
    if reasoning.enabled is False or reasoning.effort == "none":
        return {"thinkingBudget": 0}
    wire: dict[str, Any] = {"includeThoughts": True} if reasoning.enabled else {}
    if reasoning.budget_tokens is not None:  # never both: the API refuses a level beside a budget
        wire["thinkingBudget"] = reasoning.budget_tokens
    elif reasoning.effort is not None:
        wire["thinkingLevel"] = _LEVELS.get(reasoning.effort, reasoning.effort)
    return wire


def _natural_config(options: Options, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    for key, value in (
        ("temperature", options.temperature),
        ("topP", options.top_p),
        ("topK", options.top_k),
        ("maxOutputTokens", options.max_output_tokens),
        ("stopSequences", list(options.stop_sequences) or None),
        ("seed", options.seed),
        ("presencePenalty", options.presence_penalty),
        ("frequencyPenalty", options.frequency_penalty),
    ):
        if value is not None:
            wire[key] = value
    if options.response_format is not None:
        wire.update(_natural_format(options.response_format, notes))
    thinking = _natural_thinking(options.reasoning) if options.reasoning is not None else {}
    return {**wire, "thinkingConfig": thinking} if thinking else wire


# --- blocks ----------------------------------------------------------------------------------------------------------

_URLSAFE: Final = str.maketrans("+/", "-_")
_STANDARD: Final = str.maketrans("-_", "+/")
_MEDIA: Final = {"image": ImageBlock, "audio": AudioBlock, "video": VideoBlock}
_BY_ENDING: Final = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
}
_YOUTUBE: Final = re.compile(r"https?://(www\.|m\.)?(youtube\.com|youtu\.be)/")  # the one address without a media type
_Calls = Mapping[str, tuple[str, str]]  # our id of a call: its name, and its id on the wire or ""
_RESULT_KEYS: Final = ("output", "result", "content")  # the API itself calls it "output", and a failure "error"


def _read_part(item: Any, role: str, turns: _Turns, where: str) -> ContentBlock:
    """A part as we know it, with what is left over; else the whole of it, opaque."""
    part, snake = _in_camel(an_object(item, where))
    notes: dict[str, Any] = {"snake": snake or None}
    block = _known_part(part, role, turns, notes)
    if block is None:
        return OpaqueBlock(NAME, item)
    return block.replace(provider_raw=noted(NAME, _natural_part(block, notes), part, **notes))


def _known_part(part: dict[str, Any], role: str, turns: _Turns, notes: dict[str, Any]) -> ContentBlock | None:
    is_thought = part.get("thought") is True
    match part:
        case {"functionCall": {"name": str(name)} as call} if role == "model" and _is_whole(call):
            provider_id = call.get("id", "")
            made = turns.called(name, provider_id)
            notes["id"] = provider_id if provider_id != made else None
            notes["form"] = "absent" if "args" not in call else None
            return ToolUseBlock(made, name, call.get("args") or {})
        case {"text": str(text)} if is_thought and role == "model":
            notes["form"] = "thought"  # proof of where it came from
            return ThinkingBlock(text, text_or_none(part.get("thoughtSignature")))
        case {"thoughtSignature": str(signature), "thought": True} if role == "model" and len(part) == 2:
            notes["form"] = "absent"
            return ThinkingBlock("", signature)
        case {"text": str(text)} if not is_thought:
            return TextBlock(text)
        case {"inlineData": dict()} | {"fileData": dict()} if role != "model":
            return _read_media(part, notes)
        case _:
            return None


def _is_whole(call: dict[str, Any]) -> bool:
    """Whether a call can be made: one whose arguments are still arriving cannot."""
    return (
        type(call.get("args") or {}) is dict
        and isinstance(call.get("id", ""), str)
        and not call.get("willContinue")
        and "partialArgs" not in call
    )


def _read_media(part: dict[str, Any], notes: dict[str, Any]) -> ContentBlock | None:
    match part:
        case {"inlineData": {"mimeType": str(media_type), "data": str(data)}}:
            source = ImageSource("base64", _standard(data, notes))
        case {"fileData": {"fileUri": str(address), "mimeType": str(media_type)}}:
            source = ImageSource("url", address)
        case {"fileData": {"fileUri": str(address)}} if _YOUTUBE.match(address):
            media_type, source = "video/*", ImageSource("url", address)
        case _:
            return None
    kind: Any = _MEDIA.get(media_type.partition("/")[0], DocumentBlock)
    made: ContentBlock = kind(source, media_type)
    return made


def _standard(data: str, notes: dict[str, Any]) -> str:
    """Base64 in the usual alphabet; the API takes and Google's own clients send the one for URLs as well."""
    if "-" not in data and "_" not in data:
        return data
    notes["alphabet"] = "urlsafe"
    made = data.translate(_STANDARD)
    if len(made) % 4:
        notes["alphabet"] = "urlsafe, unpadded"
        made += "=" * (-len(made) % 4)
    return made


def _read_result(item: dict[str, Any], turns: _Turns, where: str) -> ToolResultBlock:
    part, snake = _in_camel(item)
    wire = part["functionResponse"]
    name, provider_id, response = wire["name"], wire.get("id", ""), wire.get("response", {})
    tool_use_id = turns.answered(name, provider_id)
    text, is_error, form = _read_response(response)
    form = form if "response" in wire else "absent"
    content: list[ContentBlock] = [] if text is None else [TextBlock(text)]
    for inner in wire["parts"] if isinstance(wire.get("parts"), list) else []:
        block = _read_part(inner, "user", turns, f"{where}.parts")
        content.append(OpaqueBlock(NAME, inner) if isinstance(block, TextBlock) else block)
    result = ToolResultBlock(tool_use_id, tuple(content), is_error)
    called, known_id = turns.calls.get(tool_use_id, ("", tool_use_id))
    notes = {
        "snake": snake or None,
        "id": provider_id if provider_id != known_id else None,
        "name": name if name != called else None,
        "form": form,
    }
    return result.replace(provider_raw=noted(NAME, _natural_result(result, notes, turns.calls), part, **notes))


def _read_response(response: dict[str, Any]) -> tuple[str | None, bool, str | None]:
    """What a result says, whether it is a failure, and how it was said."""
    if not response:
        return None, False, None
    is_error = set(response) == {"error"}
    if len(response) == 1:
        key, value = next(iter(response.items()))
        if isinstance(value, str) and (is_error or key in _RESULT_KEYS):
            return value, is_error, None if key in ("output", "error") else key
    return json.dumps(response, ensure_ascii=False, separators=(",", ":")), is_error, "json"


def _natural_response(result: ToolResultBlock, form: str | None) -> dict[str, Any]:
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    if not texts and not result.is_error:
        return {}
    text = "\n".join(texts)
    if form == "json":
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if type(value) is dict and (set(value) == {"error"}) == result.is_error:
            return value
    key = "error" if result.is_error else form if form in _RESULT_KEYS else "output"
    return {str(key): text}


def _natural_result(result: ToolResultBlock, notes: Mapping[str, Any], calls: _Calls) -> dict[str, Any]:
    """A result has the name and the id of its call, unless it came with others."""
    called, known_id = calls.get(result.tool_use_id, (spell(result.tool_use_id, AS_IT_IS), None))
    identified = _wire_id(result.tool_use_id, {"id": notes["id"] if notes.get("id") is not None else known_id})
    wire: dict[str, Any] = {**identified, "name": notes.get("name") or called}
    response = _natural_response(result, notes.get("form"))
    if response or notes.get("form") != "absent":
        wire["response"] = response
    parts = [
        _written_part(block)
        for block in result.content
        if not isinstance(block, TextBlock) and _cannot_say(block) is None
    ]
    return {"functionResponse": {**wire, "parts": parts} if parts else wire}


def _wire_id(tool_id: str, notes: Mapping[str, Any]) -> dict[str, str]:
    """The id on the wire; a call that came without one goes without one."""
    known = notes.get("id")
    if known == "":
        return {}
    return {"id": known or spell(tool_id, AS_IT_IS)}


def _written_parts(message: Message, calls: _Calls, losses: list[Loss]) -> list[dict[str, Any]]:
    parts = []
    for block in message.content:
        inner = block.content if isinstance(block, ToolResultBlock) else ()
        for each in (block, *inner):
            reason = _cannot_say(each)
            if reason is not None:
                losses.append(Loss(message.session_id, message.id, each.type, NAME, reason))
        if _cannot_say(block) is None:
            parts.append(_written_part(block, calls))
    return parts


def _cannot_say(block: ContentBlock) -> str | None:
    """Why this wire cannot carry a block; ``None`` if it can."""
    match block:
        case OpaqueBlock(dialect=dialect):
            return f"a block that only {dialect} understands" if dialect != NAME else None
        case ThinkingBlock(provider_raw=raw):
            return None if notes_of(raw, NAME) else "reasoning of another origin"
        case ImageBlock(source) | DocumentBlock(source) | AudioBlock(source) | VideoBlock(source):
            return "a file of the workspace, which the provider cannot read" if source.kind == "file_ref" else None
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock() | ToolResultBlock():
            return None
        case _:
            return "this API takes no such block"


def _written_part(block: ContentBlock, calls: _Calls | None = None) -> dict[str, Any]:
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made = restored(_natural_part(block, notes, calls or {}), notes.get("residue"))
    return _respelled(made, notes.get("snake"))


def _natural_part(block: ContentBlock, notes: Mapping[str, Any], calls: _Calls | None = None) -> dict[str, Any]:
    """What we would write for a block if nobody had noted more than its form about it."""
    match block:
        case TextBlock(text):
            return {"text": text}
        case ToolUseBlock(call_id, name, value):
            args = {"args": value} if value or notes.get("form") != "absent" else {}
            return {"functionCall": {**_wire_id(call_id, notes), "name": name, **args}}
        case InvalidToolUseBlock(call_id, name, input_text):
            return {"functionCall": {**_wire_id(call_id, notes), "name": name, "args": {"invalid_input": input_text}}}
        case ThinkingBlock(text, signature):
            signed = {"thoughtSignature": signature} if signature is not None else {}
            said = {"text": text} if text or notes.get("form") != "absent" else {}
            return {**said, "thought": True, **signed}
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock():
            return _natural_media(block.source, block.media_type, notes)
        case ToolResultBlock():
            return _natural_result(block, notes, calls or {})
        case _:
            return {"text": f"[{block.type}]"}


def _natural_media(source: ImageSource, media_type: str, notes: Mapping[str, Any]) -> dict[str, Any]:
    data = source.data
    if source.kind == "url" and data.startswith("data:") and ";base64," in data:
        head, _, data = data.partition(";base64,")
        media_type = head.removeprefix("data:") or media_type
    elif source.kind == "url":
        typed = {"mimeType": media_type}
        if media_type.endswith("/*"):  # nobody said which kind of picture; the API wants to know
            known = _BY_ENDING.get(data.partition("?")[0].rpartition(".")[2].lower(), "image/jpeg")
            typed = {"mimeType": known} if media_type == "image/*" else {}
        return {"fileData": {"fileUri": data, **typed}}
    alphabet = notes.get("alphabet")
    if alphabet:
        data = data.translate(_URLSAFE)
        data = data.rstrip("=") if alphabet != "urlsafe" else data
    return {"inlineData": {"mimeType": media_type, "data": data}}


# --- reply -----------------------------------------------------------------------------------------------------------


def read_reply(wire: Any) -> Reply:
    """A response of generateContent. Its first candidate is the reply."""
    body = an_object(wire, "$")
    rest, parts, notes = _reply_apart(body)
    turns = _Turns(str(body.get("responseId", "")))
    content = tuple(_read_part(part, "model", turns, "$.candidates[0].content.parts") for part in parts)
    called = any(isinstance(block, ToolUseBlock) for block in content)
    reply = _read_rest(rest, text_or_none(body.get("modelVersion")), called=called).replace(content=content)
    return reply.replace(provider_raw=noted(NAME, _natural_rest(reply, notes), rest, **notes))


def _reply_apart(body: dict[str, Any]) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """A response without the parts of its first candidate and without the others; the parts; what to note."""
    candidates = a_list(body.get("candidates") or [], "$.candidates")
    if not candidates:
        return body, [], {"form": "none", **_rest_notes(body)}
    first = an_object(candidates[0], "$.candidates[0]")
    content = first.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    notes = {"form": None if isinstance(parts, list) else "absent", "others": candidates[1:] or None}
    if isinstance(content, dict) and isinstance(parts, list):
        first = {**first, "content": {key: value for key, value in content.items() if key != "parts"}}
    rest = {**body, "candidates": [first]}
    return rest, parts if isinstance(parts, list) else [], {**notes, **_rest_notes(rest)}


def _rest_notes(rest: dict[str, Any]) -> dict[str, Any]:
    """What to note beside the residue: what the provider's tools read, and whether no reason was given."""
    candidates, usage = rest.get("candidates") or [{}], rest.get("usageMetadata")
    return {
        "tool_use": (count_of(usage.get("toolUsePromptTokenCount")) or None) if isinstance(usage, dict) else None,
        "unsaid": True if candidates[0].get("finishReason") is None else None,
    }


def _read_rest(rest: dict[str, Any], model: str | None, *, called: bool) -> Reply:
    """All of a reply but its content."""
    candidates = rest.get("candidates") or [{}]
    stop_reason, fault = _read_end(candidates[0], rest.get("promptFeedback"), called=called)
    return Reply(stop_reason=stop_reason, usage=_read_usage(rest.get("usageMetadata")), model=model, fault=fault)


def _read_end(candidate: dict[str, Any], feedback: Any, *, called: bool) -> tuple[StopReason, Fault | None]:
    said = candidate.get("finishReason")
    reason = _NUMBERED.get(said, "OTHER") if type(said) is int else str(said)
    if called and reason in ("STOP", "UNEXPECTED_TOOL_CALL"):  # unexpected: of a tool that was not offered
        return StopReason.TOOL_USE, None
    if reason in _FAILURES:
        fault = Fault(
            code=_FAILURES[reason],
            message=str(candidate.get("finishMessage") or f"the model's answer ended with {reason}"),
            error_class=ErrorClass.SERVER_ERROR,
            retryable=True,
            provider=NAME,
            provider_code=reason,
        )
        return StopReason.ERROR, fault
    if said is None and isinstance(feedback, dict) and feedback.get("blockReason"):
        return StopReason.REFUSAL, None
    return FINISH_REASONS.get(reason, StopReason.UNKNOWN), None


def write_reply(reply: Reply) -> Written:
    """A response of generateContent, and what it cannot say. A call that cannot be made is not handed on as one."""
    losses: list[Loss] = []
    parts = []
    for block in reply.content:
        reason = _cannot_say(block)
        if isinstance(block, InvalidToolUseBlock):
            reason = f"a call that cannot be made: {block.reason}"
        if reason is None:
            parts.append(_written_part(block))
        else:
            losses.append(Loss("", "", block.type, NAME, reason))
    losses.extend(lost_fault(reply, NAME))
    notes = notes_of(reply.provider_raw, NAME)
    form = notes.get("form")
    natural = _natural_rest(reply, {**notes, "form": None} if parts else notes)
    wire = restored(natural, notes.get("residue"))
    candidates = wire.get("candidates")
    if candidates and (parts or form is None):
        content = candidates[0].get("content")
        content = content if isinstance(content, dict) else {"role": "model"}
        candidates[0] = {**candidates[0], "content": {"parts": parts, **content}}
    if candidates and notes.get("others"):
        candidates.extend(notes["others"])
    return Written(wire, tuple(losses))


def _natural_rest(reply: Reply, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if notes.get("form") != "none":
        first: dict[str, Any] = {"content": {"role": "model"}}
        reason = _finish_word(reply)
        if reason is not None and not (notes.get("unsaid") and reply.stop_reason is StopReason.UNKNOWN):
            first["finishReason"] = reason
        wire["candidates"] = [{**first, "index": 0}]
    if reply.usage is not None:
        wire["usageMetadata"] = _natural_usage(reply.usage, notes.get("tool_use") or 0)
    if reply.model is not None:
        wire["modelVersion"] = reply.model
    return wire


def _finish_word(reply: Reply) -> str | None:
    """Why it stopped; nothing, if it did not: a reply that failed must not look finished."""
    if reply.fault is None:
        return _FINISH_WORDS.get(reply.stop_reason, "STOP")
    return reply.fault.provider_code if reply.fault.provider_code in _FAILURES else None


_COUNTED: Final = (
    "promptTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "cachedContentTokenCount",
    "toolUsePromptTokenCount",
)


def _read_usage(wire: Any) -> TokenUsage | None:
    """The prompt's count has the cached tokens in it, and has not what the provider's own tools read."""
    if not isinstance(wire, dict) or not any(key in wire for key in _COUNTED):
        return None
    prompt, generated, thoughts, cached, tools = (count_of(wire.get(key)) for key in _COUNTED)
    heard = _audio(wire.get("promptTokensDetails")) + _audio(wire.get("toolUsePromptTokensDetails"))
    return TokenUsage(
        input_tokens=max(0, prompt - cached) + tools,
        output_tokens=generated + thoughts,
        cached_input_tokens=cached,
        reasoning_tokens=thoughts,
        input_audio_tokens=max(0, heard - _audio(wire.get("cacheTokensDetails"))),
        output_audio_tokens=_audio(wire.get("candidatesTokensDetails")),
        service_tier=text_or_none(wire.get("serviceTier")),
    )


def _audio(details: Any) -> int:
    items = details if isinstance(details, list) else []
    return sum(
        count_of(item.get("tokenCount")) for item in items if isinstance(item, dict) and item.get("modality") == "AUDIO"
    )


def _natural_usage(usage: TokenUsage, tool_use: int) -> dict[str, Any]:
    tool_use = tool_use if tool_use <= usage.input_tokens else 0
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    counts = {
        "promptTokenCount": prompt - tool_use,
        "candidatesTokenCount": max(0, usage.output_tokens - usage.reasoning_tokens),
        "cachedContentTokenCount": usage.cached_input_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "toolUsePromptTokenCount": tool_use,
    }
    wire: dict[str, Any] = {key: count for key, count in counts.items() if count}  # as the API: what is 0 is not said
    wire["totalTokenCount"] = prompt + usage.output_tokens
    if usage.service_tier is not None:
        wire["serviceTier"] = usage.service_tier
    return wire


# --- stream ----------------------------------------------------------------------------------------------------------

_OF_A_RESPONSE: Final = frozenset(
    {"candidates", "usageMetadata", "promptFeedback", "modelVersion", "responseId", "createTime"}
)


class StreamReader:
    """Bytes in, events out. Every chunk is a response with a piece of the answer; the pieces are put together here.

    There is no last chunk by name, and a finish reason may be followed by more of the answer (the model stops, its
    code is run, it goes on). So the end is the end of the stream, if the last piece of the answer had a reason.
    """

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "sse")
        self._before = b""  # white space, until it is clear what the stream is
        self._sniffed = False
        self._top: dict[str, Any] = {}
        self._first: dict[str, Any] = {}
        self._others: dict[int, dict[str, Any]] = {}
        self._turns = _Turns()
        self._model: str | None = None
        self._open: dict[str, Any] | None = None  # the text that is still growing
        self._call: _PartialCall | None = None  # the call whose arguments are still arriving
        self._arguments: list[str] = []  # of the calls in this chunk, as they stand there
        self._blocks = 0
        self._has_parts = False
        self._called = False
        self._begun = False
        self._finished = False
        self._done = False
        self._failed = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        if self._failed:
            return events
        data = self._sniff(data)
        try:
            for frame in self._splitter.feed(data):
                self._take(frame.data, events)
        except FramingError as error:
            self._fail("bad_event", str(error), events)
        return events

    def _sniff(self, data: bytes) -> bytes:
        """The API answers some errors with plain JSON where events were asked for; and a relay, with an array."""
        if self._sniffed:
            return data
        data = self._before + data
        begin = data.lstrip()[:1]
        self._sniffed, self._before = bool(begin), b"" if begin else data
        if begin in (b"[", b"{"):
            self._splitter = splitter("json-array")
            return b"[" + data if begin == b"{" else data
        return data if begin else b""

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        tail = b""
        if not self._failed:
            for frame in self._splitter.close():
                self._take(frame.data, events)
            tail = self._splitter.tail
            if _is_last_chunk(tail):  # only its empty line is missing
                self._take(tail, events)
                tail = b""
        if not self._failed and self._finished and (self._done or not tail.strip()):
            self._complete(events)
        elif not self._failed:
            kept = tail[:4096].decode("utf-8", "replace")
            self._fail("stream_incomplete", "the stream ended before the answer did", events, tail=kept or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._done or self._failed:
            return
        if data.strip() == b"[DONE]":  # not Google's, but that of relays
            self._done = True
            return
        try:
            wire = msgspec.json.decode(data)
            self._arguments = _raw_arguments(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._fail("bad_event", "an event that is not JSON", events)
            return
        for chunk in wire if type(wire) is list else [wire]:
            if type(chunk) is not dict:
                self._fail("bad_event", "an event that is no object", events)
            elif not self._failed:
                self._take_chunk(chunk, events)

    def _take_chunk(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        if "error" in chunk:
            events.append(StreamError(read_error(None, {}, chunk)))
            self._failed = True
            return
        if not _OF_A_RESPONSE & set(chunk):
            return
        self._top.update((key, value) for key, value in chunk.items() if key != "candidates")
        if not self._begun:
            self._begun = True
            self._model = text_or_none(chunk.get("modelVersion"))
            self._turns = _Turns(str(chunk.get("responseId", "")))
            events.append(MessageStart(self._model))
        try:
            for candidate in a_list(chunk.get("candidates") or [], "candidates"):
                self._take_candidate(an_object(candidate, "candidates"), events)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)
            return
        feedback = chunk.get("promptFeedback")
        if isinstance(feedback, dict) and feedback.get("blockReason") and not self._first:
            self._finished = True
        usage = _read_usage(chunk.get("usageMetadata"))
        if usage is not None and not self._failed:
            events.append(UsageUpdate(usage))

    def _take_candidate(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = wire.get("index", 0)
        content = wire.get("content")
        content = content if isinstance(content, dict) else {}
        parts = a_list(content.get("parts") or [], "parts")
        if type(index) is int and index > 0:
            _merge_candidate(self._others.setdefault(index, {}), wire, parts)
            return
        self._first.update((key, value) for key, value in wire.items() if key != "content")
        if "content" in wire:
            known = self._first.get("content") or ({} if isinstance(wire["content"], dict) else None)
            more = {key: value for key, value in content.items() if key != "parts"}
            self._first["content"] = {**known, **more} if known is not None else None
        self._has_parts = self._has_parts or bool(parts)
        for part in parts:
            self._take_part(an_object(part, "parts"), events)
        if wire.get("finishReason") is not None:
            self._finished = True
        elif parts:
            self._finished = False

    def _take_part(self, item: dict[str, Any], events: list[StreamEvent]) -> None:
        part, _ = _in_camel(item)
        call = part.get("functionCall")
        arguments = self._arguments.pop(0) if self._arguments and isinstance(call, dict) else None
        if isinstance(call, dict) and (self._call is not None or not _is_whole(call)):
            self._take_partial(part, call, events)
            return
        said = part.get("text")
        if isinstance(said, str):
            if self._open is None and set(part) <= {"text", "thought"} and not said:
                return  # a chunk that has nothing to say
            self._take_text(item, said, is_thought=part.get("thought") is True, events=events)
            return
        self._close_text(events)
        block = _read_part(item, "model", self._turns, "parts")
        index, self._blocks = self._blocks, self._blocks + 1
        if isinstance(block, ToolUseBlock):
            self._called = True
            events.append(ToolUseStart(index, block.id, block.name))
            text = arguments if block.input and arguments else msgspec.json.encode(block.input).decode()
            events.append(ToolUseInputDelta(index, text))
            events.append(ToolUseEnd(index, block.provider_raw))
        elif isinstance(block, ThinkingBlock):
            events.append(ThinkingDelta(index, block.text, block.signature, block.provider_raw))
        else:
            events.append(BlockComplete(index, block))

    def _take_text(self, item: dict[str, Any], text: str, *, is_thought: bool, events: list[StreamEvent]) -> None:
        """Texts of one kind that follow each other are one; its signature is the last one that came."""
        if self._open is not None and (self._open.get("thought") is True) is not is_thought:
            self._close_text(events)
            if not text and set(item) <= {"text", "thought"}:
                return
        self._open = {**self._open, **item, "text": self._open["text"] + text} if self._open else dict(item)
        made: type[TextDelta | ThinkingDelta] = ThinkingDelta if is_thought else TextDelta
        if text:
            events.append(made(self._blocks, text))

    def _close_text(self, events: list[StreamEvent]) -> None:
        if self._open is None:
            return
        block = _read_part(self._open, "model", self._turns, "parts")
        match block:
            case TextBlock(text, raw) if raw is not None or not text:
                events.append(TextDelta(self._blocks, "", raw))
            case ThinkingBlock(_, signature, raw):
                events.append(ThinkingDelta(self._blocks, "", signature, raw))
        self._open = None
        self._blocks += 1

    def _take_partial(self, part: dict[str, Any], call: dict[str, Any], events: list[StreamEvent]) -> None:
        """Some of a call's arguments. It is a call when the last of them has come."""
        if self._call is None:
            self._close_text(events)
            self._call = _PartialCall(self._blocks, part, call)
            self._blocks += 1
            self._call.id = self._turns.called(self._call.name, self._call.provider_id)
            events.append(ToolUseStart(self._call.index, self._call.id, self._call.name))
        if not self._call.take(part, call):
            return
        done, self._call, self._called = self._call, None, True
        whole = done.part()
        notes = {"id": done.provider_id if done.provider_id != done.id else None}
        block = ToolUseBlock(done.id, done.name, done.args)
        events.append(ToolUseInputDelta(done.index, msgspec.json.encode(done.args).decode()))
        events.append(ToolUseEnd(done.index, noted(NAME, _natural_part(block, notes), whole, **notes)))

    def _complete(self, events: list[StreamEvent]) -> None:
        self._close_text(events)
        rest = dict(self._top)
        form: str | None = "none"
        if self._first:
            form = None if self._has_parts else "absent"
            rest["candidates"] = [self._first]
        others = [self._others[index] for index in sorted(self._others)] or None
        reply = _read_rest(rest, self._model, called=self._called)
        notes = {"form": form, "others": others, **_rest_notes(rest)}
        raw = noted(NAME, _natural_rest(reply, notes), rest, **notes)
        if reply.fault is not None:
            events.append(StreamError(reply.fault, raw))
        else:
            events.append(MessageComplete(reply.stop_reason, None, raw))
        self._failed = True  # nothing more is taken

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._failed = True


class _RawCall(msgspec.Struct):
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _RawPart(msgspec.Struct):
    functionCall: _RawCall | None = None  # noqa: N815
    function_call: _RawCall | None = None


class _RawContent(msgspec.Struct):
    parts: list[_RawPart] | None = None


class _RawCandidate(msgspec.Struct):
    content: _RawContent | None = None
    index: int = 0


class _RawChunk(msgspec.Struct):
    candidates: list[_RawCandidate] | None = None


_read_raw: Final = msgspec.json.Decoder(_RawChunk).decode


def _raw_arguments(data: bytes) -> list[str]:
    """The arguments of the calls in a chunk, as text: two equal keys in them are for the strict reader to refuse."""
    if b"functionCall" not in data and b"function_call" not in data:
        return []
    try:
        chunk = _read_raw(data)
    except msgspec.DecodeError:
        return []
    parts = [
        part
        for candidate in chunk.candidates or ()
        if candidate.index <= 0 and candidate.content is not None
        for part in candidate.content.parts or ()
    ]
    calls = [part.functionCall or part.function_call for part in parts]
    return [bytes(call.args).decode() for call in calls if call is not None]


def _is_last_chunk(tail: bytes) -> bool:
    """Whether what was left over is a whole chunk that ends the answer. JSON that is cut is not JSON."""
    try:
        wire = msgspec.json.decode(tail) if tail else None
        return bool(wire["candidates"][0]["finishReason"])  # type: ignore[index]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return False


def _merge_candidate(known: dict[str, Any], wire: dict[str, Any], parts: list[Any]) -> None:
    """Another candidate than the first: kept as it came, its parts in a row."""
    before = known.get("content") or {}
    content = wire.get("content")
    known.update(wire)
    if isinstance(content, dict) or before:
        merged = {**before, **(content if isinstance(content, dict) else {})}
        known["content"] = {**merged, "parts": [*before.get("parts", []), *parts]}


_STEP: Final = re.compile(r"\.([^.\[\]]+)|\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\d{1,6})\]")


class _PartialCall:
    """A call whose arguments arrive one by one, each with its JSON path (Vertex, streamFunctionCallArguments)."""

    def __init__(self, index: int, part: dict[str, Any], call: dict[str, Any]) -> None:
        if not isinstance(call.get("name"), str) or not isinstance(call.get("id", ""), str):
            raise FormatError("a piece of a call that has not begun", where="functionCall")
        self.index, self.name, self.provider_id, self.id = index, call["name"], call.get("id", ""), ""
        self.args: dict[str, Any] = {}
        self._part = {key: value for key, value in part.items() if key != "functionCall"}
        self._continued: str | None = None

    def take(self, part: dict[str, Any], call: dict[str, Any]) -> bool:
        """Take a piece; whether it was the last one."""
        self._part.update((key, value) for key, value in part.items() if key != "functionCall")
        if isinstance(call.get("args"), dict):
            self.args.update(call["args"])
        for piece in a_list(call.get("partialArgs") or [], "partialArgs"):
            self._place(an_object(piece, "partialArgs"))
        return not call.get("willContinue")

    def _place(self, piece: dict[str, Any]) -> None:
        path = str(piece.get("jsonPath", ""))
        steps = [
            int(match[4]) if match[4] else match[1] or match[2] or match[3] or "" for match in _STEP.finditer(path)
        ]
        if not path.startswith("$") or not steps or "".join(match[0] for match in _STEP.finditer(path)) != path[1:]:
            raise FormatError(f"no path of an argument: {path!r}", where="partialArgs")
        kinds = ("stringValue", "numberValue", "boolValue")
        value = next((piece[kind] for kind in kinds if kind in piece), None)
        holder: Any = self.args
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            _make_room(holder, step, path)
            if following is None:
                known = holder[step]
                continues = self._continued == path and isinstance(known, str) and isinstance(value, str)
                holder[step] = known + value if continues else value
            elif holder[step] is None:
                holder[step] = [] if type(following) is int else {}
            holder = holder[step]
        self._continued = path if piece.get("willContinue") else None

    def part(self) -> dict[str, Any]:
        """The whole call, as it would have come in one piece."""
        identified = {"id": self.provider_id} if self.provider_id else {}
        return {"functionCall": {**identified, "name": self.name, "args": self.args}, **self._part}


def _make_room(holder: Any, step: int | str, path: str) -> None:
    if type(holder) is list and type(step) is int and step <= len(holder):
        holder.extend([None] * (step + 1 - len(holder)))
    elif type(holder) is dict and type(step) is str:
        holder.setdefault(step, None)
    else:
        raise FormatError(f"an argument that fits nowhere: {path!r}", where="partialArgs")


def stream_reader(framing: str | None = None) -> StreamReader:
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out: one chunk for each part, the last one with all that is said about the whole."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse", "json-array"):
            raise LookupError(f"{NAME} streams are server-sent events or one JSON array, not {framing!r}")
        self._is_array = framing == "json-array"
        self._events: list[StreamEvent] = []

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the whole is known."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The stream."""
        chunks = _written_chunks(fold(self._events))
        if self._is_array:
            return b"[" + b",\n".join(json_line(chunk) for chunk in chunks) + b"]"
        return b"".join(sse_frame(chunk) for chunk in chunks)


def _written_chunks(reply: Reply) -> list[dict[str, Any]]:
    wire = write_reply(reply).wire
    candidates = wire.get("candidates") or [{}]
    first, content = candidates[0], candidates[0].get("content") or {}
    head = {key: wire[key] for key in ("modelVersion", "responseId") if key in wire}
    around = {key: first[key] for key in ("index",) if key in first}
    parts = content.get("parts") or []
    has_failed = reply.fault is not None and _finish_word(reply) is None
    alone = parts if has_failed else parts[:-1]
    chunks = [{"candidates": [{"content": {**content, "parts": [part]}, **around}], **head} for part in alone]
    if has_failed and reply.fault is not None:
        return [*chunks, write_error(reply.fault).wire]
    if parts:
        last = {**first, "content": {**content, "parts": parts[-1:]}}
        wire = {**wire, "candidates": [last, *candidates[1:]]}
    return [*chunks, wire]


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)


# --- error -----------------------------------------------------------------------------------------------------------

_STATUSES: Final = {
    "RESOURCE_EXHAUSTED": ("rate_limited", ErrorClass.RATE_LIMIT, 429),
    "UNAVAILABLE": ("overloaded", ErrorClass.RATE_LIMIT, 503),
    "UNAUTHENTICATED": ("unauthorized", ErrorClass.AUTH, 401),
    "PERMISSION_DENIED": ("forbidden", ErrorClass.AUTH, 403),
    "NOT_FOUND": ("not_found", ErrorClass.INVALID_REQUEST, 404),
    "INVALID_ARGUMENT": ("invalid_request", ErrorClass.INVALID_REQUEST, 400),
    "FAILED_PRECONDITION": ("invalid_request", ErrorClass.INVALID_REQUEST, 400),
    "OUT_OF_RANGE": ("invalid_request", ErrorClass.INVALID_REQUEST, 400),
    "ALREADY_EXISTS": ("invalid_request", ErrorClass.INVALID_REQUEST, 409),
    "UNIMPLEMENTED": ("invalid_request", ErrorClass.INVALID_REQUEST, 501),
    "DEADLINE_EXCEEDED": ("timeout", ErrorClass.NETWORK, 504),
    "CANCELLED": ("cancelled", ErrorClass.CANCELLED, 499),
    "INTERNAL": ("server_error", ErrorClass.SERVER_ERROR, 500),
    "ABORTED": ("server_error", ErrorClass.SERVER_ERROR, 409),
    "UNKNOWN": ("server_error", ErrorClass.SERVER_ERROR, 500),
    "DATA_LOSS": ("server_error", ErrorClass.SERVER_ERROR, 500),
}
_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})
_SECONDS: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_TOO_LONG: Final = re.compile(
    r"exceeds the maximum number of tokens|context (window|length)|input.{0,20}too long", re.I
)


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side."""
    if isinstance(body, bytes | str):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = None
    if isinstance(body, list) and body:  # streams that are one JSON array fail in one, too
        body = body[0]
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    kind, message = str(error.get("status", "")), str(error.get("message", "no message"))
    status = status if status is not None else integer_or_none(error.get("code"))
    code, error_class, _ = _STATUSES.get(kind) or _by_status(status)
    said = error.get("details")
    details = [item for item in said if isinstance(item, dict)] if isinstance(said, list) else []
    if any(item.get("reason") in ("API_KEY_INVALID", "API_KEY_EXPIRED") for item in details):
        code, error_class = "unauthorized", ErrorClass.AUTH
    if error_class is ErrorClass.INVALID_REQUEST and _TOO_LONG.search(message):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    return Fault(
        code=code,
        message=message,
        error_class=error_class,
        retryable=error_class in _RETRYABLE,
        retry_after_s=_retry_after(details, headers),
        status=status,
        provider=NAME,
        provider_code=kind or None,
    )


def _retry_after(details: list[dict[str, Any]], headers: Mapping[str, str]) -> float | None:
    for item in details:
        delay = _SECONDS.fullmatch(str(item.get("retryDelay", "")))
        if delay:
            return float(delay[1])
    return retry_after_s(headers)


def _by_status(status: int | None) -> tuple[str, ErrorClass, int]:
    match status:
        case 401 | 403:
            return "unauthorized", ErrorClass.AUTH, status
        case 404:
            return "not_found", ErrorClass.INVALID_REQUEST, status
        case 408 | 504:
            return "timeout", ErrorClass.NETWORK, status
        case 413:
            return "context_overflow", ErrorClass.CONTEXT_OVERFLOW, status
        case 429:
            return "rate_limited", ErrorClass.RATE_LIMIT, status
        case 503:
            return "overloaded", ErrorClass.RATE_LIMIT, status
        case int() if status >= 500:
            return "server_error", ErrorClass.SERVER_ERROR, status
        case int() if status >= 400:
            return "invalid_request", ErrorClass.INVALID_REQUEST, status
        case _:
            return "server_error", ErrorClass.OTHER, 500


def write_error(fault: Fault) -> Written:
    """The fault as this API says it."""
    kinds = {code: kind for kind, (code, _, _) in reversed(_STATUSES.items())}
    kinds["context_overflow"] = "INVALID_ARGUMENT"
    kind = fault.provider_code if fault.provider_code in _STATUSES else kinds.get(fault.code, "INTERNAL")
    error: dict[str, Any] = {"code": fault.status or _STATUSES[kind][2], "message": fault.message, "status": kind}
    if fault.retry_after_s is not None:
        delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{fault.retry_after_s:g}s"}
        error["details"] = [delay]
    return Written({"error": error})


__all__ = [
    "NAME",
    "read_error",
    "read_reply",
    "read_request",
    "stream_reader",
    "stream_writer",
    "write_error",
    "write_reply",
    "write_request",
]
