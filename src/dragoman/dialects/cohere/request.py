"""Convert requests: messages, tools and options.

Invariant: a result is written with the id that its call was read with.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dragoman.dialects.cohere.blocks import (
    NAME,
    default_message,
    read_content,
    read_part,
    unsupported_reason,
    unsupported_result_reason,
    write_part,
)
from dragoman.dialects.cohere.support import LIMITS, SUPPORT
from dragoman.errors import FormatError
from dragoman.exchange import Loss, Options, Reasoning, Request, ResponseFormat, ToolChoice, ToolDefinition, Written
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, integer_or_none, text_or_none
from dragoman.message import ContentBlock, Message, Role, TextBlock, ToolResultBlock
from dragoman.wire.losses import error_flag_losses, option_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.preparation import Quirks, prepare_request
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import OptionFields, request_losses
from dragoman.wire.tool_definitions import Tool, allowed_tools, default_tool, read_tool, write_tools

if TYPE_CHECKING:
    from dragoman.catalog import Model

_CHOICES: Final = {"REQUIRED": "required", "NONE": "none"}
_CHOICE_NAMES: Final = {"required": "REQUIRED", "tool": "REQUIRED", "none": "NONE"}
_FIELDS: Final = OptionFields(
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    max_output_tokens="max_tokens",
    top_p="p",
    top_k="k",
)
_LAST_FIELDS: Final = OptionFields("stream", "logprobs")
_OTHER_SCHEMA_KEY: Final = "schema"  # the key of version 1
_SEPARATE_FIELDS: Final = ("messages", "tools")  # fields that are read separately


@accepts_json_text()
def read_request(body: dict[str, Any]) -> Request:
    """Read a request of ``/v2/chat``."""
    builder = MessageBuilder()
    for index, message in enumerate(expect_list(body.get("messages"), "$.messages")):
        _read_message(expect_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", builder)
    tools = expect_list(body.get("tools") or [], "$.tools")
    request = Request(
        model=text_or_none(body.get("model")),
        messages=tuple(builder.messages),
        tools=tuple(
            _mark_strict(read_tool(expect_object(tool, f"$.tools[{index}]"), NAME), body)
            for index, tool in enumerate(tools)
        ),
        options=_read_options(body),
    )
    rest = {key: value for key, value in body.items() if key not in _SEPARATE_FIELDS}
    empty = {"tools": body["tools"]} if "tools" in body and not body["tools"] else None
    form = _find_schema_key(body.get("response_format"))
    raw = make_notes(NAME, _write_options(request, form), rest, empty=empty, form=form)
    return request.replace(provider_raw=raw or {"dialect": NAME})


def write_request(request: Request, quirks: Quirks = (), model: Model | None = None, *, fit: bool = True) -> Written:
    """Write a request of ``/v2/chat`` and report losses."""
    request, losses, adjustments, is_plain = prepare_request(request, LIMITS, _carries, model, quirks, fit=fit)
    losses.extend(_option_losses(request.options))
    notes = get_notes(request.provider_raw, NAME)
    top = apply_diff(_write_options(request, notes.get("form")), notes.get("residue"))
    wire = {key: top[key] for key in ("model",) if key in top}
    wire["messages"] = _write_messages(request.messages, losses)
    tools = write_tools(allowed_tools(request, NAME, losses), default_tool, NAME, losses)
    if tools:
        wire["tools"] = tools
    elif "empty" in notes:
        wire.update(notes["empty"])
    wire.update(top)
    losses.extend(request_losses(request, NAME, SUPPORT, is_plain=is_plain))
    return Written(wire, tuple(losses), tuple(adjustments))


def _carries(block: ContentBlock, role: Role) -> bool:
    return isinstance(block, ToolResultBlock) or unsupported_reason(block, role) is None


def _mark_strict(tool: Tool, body: dict[str, Any]) -> Tool:
    is_strict = body.get("strict_tools") is True and isinstance(tool, ToolDefinition)
    return tool.replace(strict=True) if is_strict else tool


def _read_message(wire: dict[str, Any], where: str, builder: MessageBuilder) -> None:
    role = wire.get("role")
    if role == "tool":
        result = _read_result(wire, where, builder)
        builder.add(Role.TOOL, [result], parent_id=result.tool_use_id)
        return
    if role not in ("user", "assistant", "system"):
        raise FormatError(f"expected the role user, assistant, system or tool, not {role!r}", where=f"{where}.role")
    blocks, form = read_content(wire, where, builder)
    raw = make_notes(NAME, default_message(role, blocks, form), wire, form=form)
    builder.add(Role(role), blocks, raw)


def _read_result(wire: dict[str, Any], where: str, builder: MessageBuilder) -> ToolResultBlock:
    provider_id, content = wire.get("tool_call_id"), wire.get("content")
    if not isinstance(provider_id, str):
        raise FormatError("a result needs the id of its call", where=f"{where}.tool_call_id")
    blocks: list[ContentBlock] = []
    if isinstance(content, str):
        blocks.append(TextBlock(content))
    elif content is not None:
        for index, part in enumerate(expect_list(content, f"{where}.content")):
            blocks.append(read_part(expect_object(part, f"{where}.content[{index}]")))
    call_id = builder.result_id(provider_id)
    result = ToolResultBlock(call_id, tuple(blocks))
    note = provider_id if provider_id != call_id else None
    form = "list" if isinstance(content, list) else "absent" if "content" not in wire else None
    return result.replace(provider_raw=make_notes(NAME, _default_result(result, note, form), wire, id=note, form=form))


def _default_result(result: ToolResultBlock, provider_id: str | None, form: str | None) -> dict[str, Any]:
    parts = [write_part(block) for block in result.content if unsupported_result_reason(block) is None]
    content: Any = parts
    if form != "list" and (not parts or (len(parts) == 1 and set(parts[0]) == {"type", "text"})):
        content = parts[0]["text"] if parts else ""
    wire = {"role": "tool", "tool_call_id": provider_id or format_id(result.tool_use_id, DEFAULT_ID_FORMAT)}
    return wire if form == "absent" and not parts else {**wire, "content": content}


def _write_messages(messages: tuple[Message, ...], losses: list[Loss]) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    for message in messages:
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        wire.extend(_write_result(result, message, losses) for result in results)
        others = [block for block in message.content if not isinstance(block, ToolResultBlock)]
        blocks = supported_blocks(others, partial(unsupported_reason, role=message.role), NAME, losses, message)
        if blocks or not message.content:  # otherwise nothing is supported; the losses are recorded
            notes = get_notes(message.metadata.provider_raw, NAME)
            default = default_message(message.role.value, blocks, notes.get("form"))
            wire.append(apply_diff(default, notes.get("residue")))
    return wire


def _write_result(result: ToolResultBlock, message: Message, losses: list[Loss]) -> dict[str, Any]:
    losses.extend(error_flag_losses(result, message, NAME))
    supported_blocks(result.content, unsupported_result_reason, NAME, losses, message)
    notes = get_notes(result.provider_raw, NAME)
    default = _default_result(result, notes.get("id"), notes.get("form"))
    wire: dict[str, Any] = apply_diff(default, notes.get("residue"))
    return wire


def _read_options(body: dict[str, Any]) -> Options:
    mode = _CHOICES.get(str(body.get("tool_choice")))
    return Options(
        **_FIELDS.read(body),
        **_LAST_FIELDS.read(body),
        tool_choice=ToolChoice(mode) if mode else None,  # type: ignore[arg-type]
        response_format=_read_format(body.get("response_format")),
        reasoning=_read_reasoning(body.get("thinking")),
    )


def _read_format(response_format: Any) -> ResponseFormat | None:
    match response_format:
        case {"type": "json_object", "json_schema": dict(schema)} | {"type": "json_object", "schema": dict(schema)}:
            return ResponseFormat("json_schema", schema)
        case {"type": "json_object"}:
            return ResponseFormat("json")
        case {"type": "text"}:
            return ResponseFormat("text")
        case _:
            return None


def _find_schema_key(response_format: Any) -> str | None:
    """Return the key of the schema, if it is that of version 1."""
    match response_format:
        case {"json_schema": dict()}:
            return None
        case {"type": "json_object", "schema": dict()}:
            return _OTHER_SCHEMA_KEY
        case _:
            return None


def _read_reasoning(thinking: Any) -> Reasoning | None:
    if not isinstance(thinking, dict):
        return None
    enabled = {"enabled": True, "disabled": False}.get(str(thinking.get("type")))
    return Reasoning(enabled=enabled, budget_tokens=integer_or_none(thinking.get("token_budget")))


def _write_options(request: Request, form: str | None = None) -> dict[str, Any]:
    options = request.options
    wire: dict[str, Any] = {"model": request.model} if request.model is not None else {}
    wire.update(_FIELDS.write(options))
    if (thinking := _write_thinking(options.reasoning)) is not None:
        wire["thinking"] = thinking
    wire.update(_LAST_FIELDS.write(options))
    if (strict := _write_strict(request)) is not None:
        wire["strict_tools"] = strict
    if options.tool_choice is not None and options.tool_choice.mode != "auto":
        wire["tool_choice"] = _CHOICE_NAMES[options.tool_choice.mode]
    match options.response_format:
        case ResponseFormat(kind="text"):
            wire["response_format"] = {"type": "text"}
        case ResponseFormat(json_schema=dict(schema)):
            wire["response_format"] = {"type": "json_object", form or "json_schema": schema}
        case ResponseFormat():
            wire["response_format"] = {"type": "json_object"}
    return wire


def _write_strict(request: Request) -> bool | None:
    """Return whether all tools are strict: the API has one switch for all of them."""
    return True if any(isinstance(tool, ToolDefinition) and tool.strict for tool in request.tools) else None


def _write_thinking(reasoning: Reasoning | None) -> dict[str, Any] | None:
    if reasoning is None or reasoning == Reasoning():
        return None
    if reasoning.is_off:
        return {"type": "disabled"}
    wire: dict[str, Any] = {"type": "enabled"}
    return wire if reasoning.budget_tokens is None else {**wire, "token_budget": reasoning.budget_tokens}


def _option_losses(options: Options) -> list[Loss]:
    reasoning = options.reasoning or Reasoning()
    conditions = {
        "tool_choice.name": options.tool_choice is not None and options.tool_choice.name is not None,
        "parallel_tool_calls": options.parallel_tool_calls is False,
        "response_format.name": options.response_format is not None and options.response_format.name is not None,
        "reasoning.effort": reasoning.effort not in (None, "none"),
        "service_tier": options.service_tier is not None,
        "user": options.user is not None,
    }
    return option_losses(conditions, NAME)
