"""Convert requests.

Tool results are inside user messages on the wire and separate messages here. Roles alternate on the wire, so
consecutive messages of one role are written as one, unless they were separate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from dragoman.dialects.bedrock_converse.blocks import (
    SYSTEM_TOOLS,
    loss_recorder,
    read_hinted_blocks,
    read_result,
    unsupported_reason,
    write_blocks,
)
from dragoman.dialects.bedrock_converse.citations import read_cache_point, split_cache_points, write_cache_point
from dragoman.dialects.bedrock_converse.mappings import NAME
from dragoman.dialects.bedrock_converse.options import default_top, detect_family, read_options, record_option_losses
from dragoman.dialects.bedrock_converse.support import LIMITS, SUPPORT
from dragoman.errors import FormatError
from dragoman.exchange import Loss, OpaqueTool, Request, SideEffects, ToolDefinition, Written
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, flag_or_none, text_or_none
from dragoman.message import ContentBlock, InvalidToolUseBlock, Message, Role, ToolUseBlock
from dragoman.wire.losses import summary_changes
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.preparation import Quirks, prepare_request
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import request_losses
from dragoman.wire.tool_definitions import allowed_tools, write_tools

if TYPE_CHECKING:
    from dragoman.catalog import Model

_DOCUMENT_TEXT: Final = "(see the document)"


@accepts_json_text()
def read_request(body: dict[str, Any]) -> Request:
    """Read a request of Converse; the model is only present if the caller added ``modelId``."""
    builder = MessageBuilder()
    system = expect_list(body.get("system", []), "$.system")
    if system:
        items = [expect_object(item, f"$.system[{index}]") for index, item in enumerate(system)]
        builder.add(Role.SYSTEM, read_hinted_blocks(items, builder, "system"))
    for index, message in enumerate(expect_list(body.get("messages", []), "$.messages")):
        _read_message(expect_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", builder)
    config = expect_object(body.get("toolConfig", {}), "$.toolConfig")
    tools = expect_list(config.get("tools", []), "$.toolConfig.tools")
    request = Request(
        model=text_or_none(body.get("modelId")),
        messages=tuple(builder.messages),
        tools=_read_tools([expect_object(tool, f"$.toolConfig.tools[{index}]") for index, tool in enumerate(tools)]),
        options=read_options(body),
    )
    notes = {
        "family": detect_family(body),
        "named": True if request.model is not None else None,
        "empty": [key for key in ("messages", "system") if body.get(key) == []] or None,
        "no_tools": True if config.get("tools") == [] else None,
    }
    rest = {key: value for key, value in body.items() if key not in ("messages", "system")}
    if "toolConfig" in rest:
        rest["toolConfig"] = {key: value for key, value in config.items() if key != "tools"}
    raw = make_notes(NAME, default_top(request, notes), rest, **notes)
    return request.replace(provider_raw=raw or {"dialect": NAME})


def write_request(request: Request, quirks: Quirks = (), model: Model | None = None, *, fit: bool = True) -> Written:
    """Write a request of Converse and report losses. The model belongs in the URL."""
    request, losses, adjustments, is_plain = prepare_request(request, LIMITS, _carries, model, quirks, fit=fit)
    notes = get_notes(request.provider_raw, NAME)
    top = apply_diff(default_top(request, notes), notes.get("residue"))
    system = [block for message in request.messages for block in _write_system(message, losses)]
    messages = _write_messages(request.messages, losses)
    if not notes:
        _complete_documents(messages)
    tools = _write_tools(request, losses)
    if not tools and not notes:
        tools = _declare_tools(request.messages)
    empty = notes.get("empty", ())
    wire: dict[str, Any] = {}
    if messages or "messages" in empty:
        wire["messages"] = messages
    if system or "system" in empty:
        wire["system"] = system
    wire.update(top)
    if tools or (notes.get("no_tools") and "toolConfig" in top):
        wire["toolConfig"] = {"tools": tools, **top.get("toolConfig", {})}
    if request.options.cache_hint is not None and messages:
        messages[-1]["content"].append(write_cache_point(request.options.cache_hint))
        losses.append(Loss("", "", "cache_hint", NAME, "a cache point at the end of the last message", "adjusted"))
    record_option_losses(request, wire, loss_recorder(losses))
    losses.extend(request_losses(request, NAME, SUPPORT, is_plain=is_plain))
    summary = request.options.reasoning.summary if request.options.reasoning is not None else None
    if summary not in (None, "none") and "display" not in str(top.get("additionalModelRequestFields")):
        losses.append(Loss("", "", "reasoning.summary", NAME, "the models of this family have no such option"))
    else:
        losses.extend(summary_changes(request.options.reasoning, NAME))
    return Written(wire, tuple(losses), tuple(adjustments))


def _carries(block: ContentBlock, role: Role) -> bool:
    return unsupported_reason(block, "system" if role is Role.SYSTEM else "message") is None


def _declare_tools(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return declarations for all called tools: the API rejects a history with calls but without tools."""
    names = dict.fromkeys(
        block.name
        for message in messages
        for block in message.content
        if isinstance(block, ToolUseBlock | InvalidToolUseBlock)
    )
    return [{"toolSpec": {"name": name, "inputSchema": {"json": {"type": "object"}}}} for name in names]


def _write_system(message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    """Write system prompts to ``system``, except those that the API had in its message list."""
    if message.role is not Role.SYSTEM or get_notes(message.metadata.provider_raw, NAME).get("listed"):
        return []
    return write_blocks(message.content, "system", loss_recorder(losses, message))


def _complete_documents(messages: list[dict[str, Any]]) -> None:
    """Set a unique name on each document of a message, and add a text: the API requires both."""
    for message in messages:
        documents = [block["document"] for block in message["content"] if "document" in block]
        if documents and not any("text" in block for block in message["content"]):
            message["content"].append({"text": _DOCUMENT_TEXT})
        used: set[str] = set()
        for document in documents:
            if not isinstance(document, dict) or not isinstance(document.get("name"), str):
                continue  # as it came, from a request of this API
            name, count = document["name"], 2
            while document["name"] in used:
                document["name"], count = f"{name} ({count})", count + 1
            used.add(document["name"])


def _read_message(wire: dict[str, Any], where: str, builder: MessageBuilder) -> None:
    role = wire.get("role")
    if role not in ("user", "assistant", "system"):
        raise FormatError(f"expected the role user, assistant or system, not {role!r}", where=f"{where}.role")
    items = [
        expect_object(item, f"{where}.content[{index}]")
        for index, item in enumerate(expect_list(wire.get("content"), f"{where}.content"))
    ]
    extra = {key: value for key, value in wire.items() if key not in ("role", "content")}
    notes: dict[str, Any] = {"set": extra} if extra else {}
    if not items:
        notes["form"] = "empty"
    if role == "system":
        notes["listed"] = True  # in the message list instead of ``system``
    if builder.messages and _side(builder.messages[-1]) == role:
        notes["joined"] = False
    for kind, group in _group_items(items, role):
        raw = {"dialect": NAME, **notes} if notes else None
        notes = {}
        if kind == "tool":
            result = read_result(group[0]["toolResult"], group[0], builder)
            hint = read_cache_point(group[1]) if len(group) > 1 else None
            result = result if hint is None else result.replace(cache_hint=hint)
            builder.add(Role.TOOL, [result], raw, parent_id=result.tool_use_id)
        else:
            place = "system" if role == "system" else "message"
            builder.add(Role(role), read_hinted_blocks(group, builder, place), raw)


def _group_items(items: list[dict[str, Any]], role: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Split a user message at its results; each result is a group, with the cache point that follows it."""
    groups: list[tuple[str, list[dict[str, Any]]]] = []
    for item in items:
        match item:
            case {"toolResult": {"toolUseId": str(), "content": list()}} if role == "user":
                groups.append(("tool", [item]))
            case _ if groups and groups[-1][0] == "tool" and len(groups[-1][1]) == 1 and read_cache_point(item):
                groups[-1][1].append(item)
            case _ if groups and groups[-1][0] != "tool":
                groups[-1][1].append(item)
            case _:
                groups.append((role, [item]))
    return groups or [(role, [])]


def _side(message: Message) -> str:
    """Return the wire role: user, assistant or system."""
    if message.role is Role.SYSTEM:
        return "system"
    return "assistant" if message.role is Role.ASSISTANT else "user"


def _write_messages(messages: Iterable[Message], losses: list[Loss]) -> list[dict[str, Any]]:
    """Write messages with alternating roles, except where the source had separate messages."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        side, notes = _side(message), get_notes(message.metadata.provider_raw, NAME)
        if side == "system" and not notes.get("listed"):
            continue
        place = "system" if side == "system" else "message"
        blocks = write_blocks(message.content, place, loss_recorder(losses, message))
        if not blocks and (message.content or notes.get("form") != "empty"):
            continue  # nothing is supported; the losses are recorded
        if wire and wire[-1]["role"] == side and notes.get("joined") is not False:
            wire[-1]["content"].extend(blocks)
        else:
            wire.append({"role": side, "content": blocks, **notes.get("set", {})})
    return wire


def _read_tools(wires: list[dict[str, Any]]) -> tuple[ToolDefinition | OpaqueTool, ...]:
    """Read tools; a cache point is a hint of the tool before it."""
    tools: list[ToolDefinition | OpaqueTool] = []
    for wire, hint in split_cache_points(wires):
        tool = _read_tool(wire)
        if hint is None:
            tools.append(tool)
        elif isinstance(tool, OpaqueTool):
            tools += (tool, OpaqueTool(NAME, write_cache_point(hint), "cache_point"))
        else:
            tools.append(tool.replace(cache_hint=hint))
    return tuple(tools)


def _write_tools(request: Request, losses: list[Loss]) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    for tool in allowed_tools(request, NAME, losses):
        tools.extend(write_tools((tool,), _default_tool, NAME, losses, _write_server_tool))
        if isinstance(tool, ToolDefinition) and tool.cache_hint is not None:
            tools.append(write_cache_point(tool.cache_hint))
    return tools


def _write_server_tool(tool: OpaqueTool) -> dict[str, Any] | None:
    """Return this API's tool of the same kind, if it has one."""
    name = next((name for name, kind in SYSTEM_TOOLS.items() if kind == tool.kind), None)
    return None if name is None else {"systemTool": {"name": name}}


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    match wire:
        case {"toolSpec": {"name": str(name), "inputSchema": {"json": dict(schema)}} as spec}:
            tool = ToolDefinition(
                name,
                text_or_none(spec.get("description")) or "",
                schema,
                SideEffects.EXECUTE,
                strict=flag_or_none(spec.get("strict")),
            )
            return tool.replace(provider_raw=make_notes(NAME, _default_tool(tool), wire))
        case {"systemTool": {"name": str(name)}}:
            return OpaqueTool(NAME, wire, SYSTEM_TOOLS.get(name, name))
        case _:
            return OpaqueTool(NAME, wire, "cache_point" if "cachePoint" in wire else None)


def _default_tool(tool: ToolDefinition) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": tool.name}
    if tool.description:
        spec["description"] = tool.description
    spec["inputSchema"] = {"json": tool.input_schema}
    return {"toolSpec": spec if tool.strict is None else {**spec, "strict": tool.strict}}
