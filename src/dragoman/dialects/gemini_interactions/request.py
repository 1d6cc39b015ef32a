"""Convert requests: input, tools and options.

The input is a text, a list of items, a list of steps or, in earlier versions, a list of turns; it is written as steps,
unless it was read in another form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from dragoman.dialects.gemini_interactions.steps import (
    NAME,
    Wire,
    default_steps,
    read_item,
    read_result,
    read_step,
    unsupported_reason,
    unsupported_result_reason,
    write_item,
    write_result,
)
from dragoman.dialects.gemini_interactions.support import LIMITS, SUPPORT
from dragoman.errors import FormatError
from dragoman.exchange import (
    Loss,
    OpaqueTool,
    Options,
    Reasoning,
    Request,
    ResponseFormat,
    SideEffects,
    ToolChoice,
    ToolDefinition,
    Written,
)
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, text_or_none, text_tuple
from dragoman.message import (
    ContentBlock,
    DocumentBlock,
    InvalidToolUseBlock,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.wire.losses import option_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.preparation import Quirks, prepare_request
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import OptionFields, request_losses
from dragoman.wire.tool_definitions import EMPTY_SCHEMA, write_tools

if TYPE_CHECKING:
    from dragoman.catalog import Model

_ITEMS: Final = ("text", "image", "audio", "video", "document")
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none", "validated": "auto"}
_CHOICE_WORDS: Final = {"auto": "auto", "required": "any", "none": "none"}
_CONFIG_FIELDS: Final = OptionFields("max_output_tokens", "temperature", "top_p", "stop_sequences", "seed")
_FIELDS: Final = OptionFields("service_tier", "stream", "store")
_LEVELS: Final = ("minimal", "low", "medium", "high")
_JSON: Final = "application/json"


@accepts_json_text()
def read_request(body: Wire) -> Request:
    """Read a request of ``/interactions``."""
    builder = MessageBuilder()
    if isinstance(body.get("system_instruction"), str):
        builder.add(Role.SYSTEM, [TextBlock(body["system_instruction"])])
    _read_input(body.get("input"), builder)
    tools = expect_list(body.get("tools") or [], "$.tools")
    request = Request(
        model=text_or_none(body.get("model")),
        messages=tuple(builder.messages),
        tools=tuple(_read_tool(expect_object(tool, f"$.tools[{index}]")) for index, tool in enumerate(tools)),
        options=_read_options(body),
    )
    raw = make_notes(NAME, _default_request(request, []), body)
    return request.replace(provider_raw=raw or {"dialect": NAME})


def write_request(request: Request, quirks: Quirks = (), model: Model | None = None, *, fit: bool = True) -> Written:
    """Write a request of ``/interactions`` and report losses."""
    request, losses, adjustments, is_plain = prepare_request(request, LIMITS, _carries, model, quirks, fit=fit)
    losses.extend(_option_losses(request.options))
    wire = apply_diff(_default_request(request, losses), get_notes(request.provider_raw, NAME).get("residue"))
    losses.extend(request_losses(request, NAME, SUPPORT, is_plain=is_plain))
    return Written(wire, tuple(losses), tuple(adjustments))


def _carries(block: ContentBlock, _role: Role) -> bool:
    return isinstance(block, ToolResultBlock) or unsupported_reason(block) is None


# --- input -----------------------------------------------------------------------------------------------------------


def _read_input(value: Any, builder: MessageBuilder) -> None:
    if isinstance(value, str):
        builder.add(Role.USER, [TextBlock(value)])
        return
    entries = [value] if isinstance(value, dict) else expect_list(value if value is not None else [], "$.input")
    items: list[ContentBlock] = []  # items without a step around them
    steps: list[ContentBlock] = []  # of the model
    for index, item in enumerate(entries):
        where = f"$.input[{index}]"
        entry = expect_object(item, where)
        is_item = entry.get("type") in _ITEMS
        is_model_step = not is_item and _is_model_step(entry)
        if items and not is_item:
            builder.add(Role.USER, items)
            items = []
        if steps and not is_model_step:
            builder.add(Role.ASSISTANT, steps)
            steps = []
        if is_item:
            items.append(read_item(entry))
        elif is_model_step:
            steps.extend(read_step(entry, where, builder))
        else:
            _read_user_step(entry, where, builder)
    if items:
        builder.add(Role.USER, items)
    if steps:
        builder.add(Role.ASSISTANT, steps)


def _is_model_step(entry: Wire) -> bool:
    return "role" not in entry and entry.get("type") not in ("user_input", "function_result")


def _read_user_step(entry: Wire, where: str, builder: MessageBuilder) -> None:
    if entry.get("type") == "function_result":
        builder.add_result(read_result(entry, where, builder))
        return
    content = entry.get("content")
    if entry.get("role") == "model":
        builder.add(Role.ASSISTANT, _read_turn(content, where, builder))
        return
    if "role" in entry and entry["role"] != "user":
        raise FormatError(f"a role is user or model, not {entry['role']!r}", where=f"{where}.role")
    if isinstance(content, str):
        builder.add(Role.USER, [TextBlock(content)])
        return
    blocks: list[ContentBlock] = []
    for item in expect_list(content if content is not None else [], f"{where}.content"):
        wire = expect_object(item, f"{where}.content")
        if wire.get("type") == "function_result":
            builder.add_result(read_result(wire, where, builder))
        else:
            blocks.append(read_item(wire))
    if blocks or not content:
        builder.add(Role.USER, blocks or [TextBlock("")])


def _read_turn(content: Any, where: str, builder: MessageBuilder) -> list[ContentBlock]:
    if isinstance(content, str):
        return [TextBlock(content)]
    steps = expect_list(content if content is not None else [], f"{where}.content")
    return [block for step in steps for block in read_step(expect_object(step, where), where, builder)]


def _default_request(request: Request, losses: list[Loss]) -> Wire:
    system = [message for message in request.messages if message.role is Role.SYSTEM]
    rest = [message for message in request.messages if message.role is not Role.SYSTEM]
    wire: Wire = {"model": request.model} if request.model is not None else {}
    wire["input"] = list(_write_steps(rest, losses))
    texts = [block.text for message in system for block in _system_texts(message, losses)]
    if system:
        wire["system_instruction"] = "\n\n".join(texts)
    tools = write_tools(request.tools, _default_tool, NAME, losses)
    if tools:
        wire["tools"] = tools
    return {**wire, **_write_options(request.options)}


def _system_texts(message: Message, losses: list[Loss]) -> list[TextBlock]:
    def find_reason(block: ContentBlock) -> str | None:
        if isinstance(block, TextBlock):
            return None
        return unsupported_reason(block) or "a system instruction is a text"

    blocks = supported_blocks(message.content, find_reason, NAME, losses, message)
    return [block for block in blocks if isinstance(block, TextBlock)]


def _write_steps(messages: Iterable[Message], losses: list[Loss]) -> Iterator[Wire]:
    names: dict[str, str] = {}
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                supported_blocks(block.content, unsupported_result_reason, NAME, losses, message)
                yield write_result(block, names.get(block.tool_use_id))
        others = [block for block in message.content if not isinstance(block, ToolResultBlock)]
        blocks = supported_blocks(others, unsupported_reason, NAME, losses, message)
        losses.extend(_name_losses(blocks, message))
        names.update(
            (block.id, block.name) for block in blocks if isinstance(block, ToolUseBlock | InvalidToolUseBlock)
        )
        if message.role is Role.ASSISTANT:
            yield from default_steps(blocks)
        elif blocks or not message.content:
            yield {"type": "user_input", "content": [write_item(block) for block in blocks]}


def _name_losses(blocks: Iterable[ContentBlock], message: Message) -> Iterator[Loss]:
    for block in blocks:
        if isinstance(block, DocumentBlock) and block.name is not None:
            yield Loss(message.session_id, message.id, "document.name", NAME, "files have no name")


# --- tools and options -----------------------------------------------------------------------------------------------


def _read_tool(wire: Wire) -> ToolDefinition | OpaqueTool:
    name, schema = wire.get("name"), wire.get("parameters")
    if wire.get("type") != "function" or not isinstance(name, str):
        return OpaqueTool(NAME, wire)
    schema = schema if isinstance(schema, dict) else dict(EMPTY_SCHEMA)
    tool = ToolDefinition(name, text_or_none(wire.get("description")) or "", schema, SideEffects.EXECUTE)
    return tool.replace(provider_raw=make_notes(NAME, _default_tool(tool), wire))


def _default_tool(tool: ToolDefinition) -> Wire:
    description = {"description": tool.description} if tool.description else {}
    return {"type": "function", "name": tool.name, **description, "parameters": tool.input_schema}


def _read_options(body: Wire) -> Options:
    config = body.get("generation_config")
    config = config if isinstance(config, dict) else {}
    level = text_or_none(config.get("thinking_level"))
    return Options(
        **_CONFIG_FIELDS.read(config),
        **_FIELDS.read(body),
        tool_choice=_read_choice(config.get("tool_choice")),
        response_format=_read_format(body.get("response_format"), body.get("response_mime_type")),
        reasoning=Reasoning(effort=level) if level is not None else None,
    )


def _read_choice(choice: Any) -> ToolChoice | None:
    match choice:
        case str() if choice in _CHOICES:
            return ToolChoice(_CHOICES[choice])  # type: ignore[arg-type]
        case {"allowed_tools": {"mode": "any", "tools": [str(name)]}}:
            return ToolChoice("tool", name)
        case {"allowed_tools": {"mode": "any" | "auto" as mode, "tools": [*names]}} if text_tuple(names):
            return ToolChoice("required" if mode == "any" else "auto", allowed=text_tuple(names))
        case _:
            return None


def _read_format(value: Any, media_type: Any) -> ResponseFormat | None:
    match value:
        case [single]:
            return _read_format(single, media_type)
        case {"type": "text", "mime_type": str(kind)} if kind == _JSON:
            schema = value.get("schema")
            return ResponseFormat("json_schema", schema) if isinstance(schema, dict) else ResponseFormat("json")
        case {"type": "text"} | {"type": "image"} | {"type": "audio"} | {"type": "video"}:
            return None
        case dict() if value:
            return ResponseFormat("json_schema", value)
        case _:
            return ResponseFormat("json") if media_type == _JSON else None


def _write_options(options: Options) -> Wire:
    reasoning = options.reasoning or Reasoning()
    config = _CONFIG_FIELDS.write(options)
    if (choice := _write_choice(options.tool_choice)) is not None:
        config["tool_choice"] = choice
    if _has_level(reasoning):
        config["thinking_level"] = reasoning.effort
    wire: Wire = {"generation_config": config} if config else {}
    if options.response_format is not None and options.response_format.kind != "text":
        schema = options.response_format.json_schema
        format_wire: Wire = {"type": "text", "mime_type": _JSON}
        wire["response_format"] = {**format_wire, "schema": schema} if schema is not None else format_wire
    wire.update(_FIELDS.write(options))
    return wire


def _has_level(reasoning: Reasoning) -> bool:
    """Return whether this API has a level for the reasoning; it has none for reasoning that is off."""
    return reasoning.effort in _LEVELS and not reasoning.is_off


def _write_choice(choice: ToolChoice | None) -> Any:
    if choice is None:
        return None
    if choice.mode == "tool":
        return {"allowed_tools": {"mode": "any", "tools": [choice.name]}}
    if choice.allowed:
        return {
            "allowed_tools": {"mode": "any" if choice.mode == "required" else "auto", "tools": list(choice.allowed)}
        }
    return _CHOICE_WORDS[choice.mode]


def _option_losses(options: Options) -> list[Loss]:
    reasoning = options.reasoning or Reasoning()
    conditions = {
        "top_k": options.top_k is not None,
        "presence_penalty": options.presence_penalty is not None,
        "frequency_penalty": options.frequency_penalty is not None,
        "parallel_tool_calls": options.parallel_tool_calls is False,
        "response_format.name": options.response_format is not None and options.response_format.name is not None,
        "reasoning": reasoning != Reasoning() and not _has_level(reasoning),
        "reasoning.effort": reasoning.effort not in (None, *_LEVELS),
        "reasoning.budget_tokens": reasoning.budget_tokens is not None,
        "user": options.user is not None,
    }
    return option_losses(conditions, NAME)
