"""Requests of Converse, both ways.

Results stand inside user messages there and are messages of their own here. The one rule: the two sides take turns, so
what stands next to each other on one side is written as one message, unless it came apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from dragoman.dialects.bedrock_converse.blocks import loss_recorder, read_block, read_result, write_blocks
from dragoman.dialects.bedrock_converse.mappings import NAME
from dragoman.dialects.bedrock_converse.options import default_top, detect_family, read_options, record_option_losses
from dragoman.errors import FormatError
from dragoman.exchange import Loss, OpaqueTool, Request, SideEffects, ToolDefinition, Written
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, text_or_none
from dragoman.message import InvalidToolUseBlock, Message, Role, ToolUseBlock
from dragoman.wire.message_builder import MessageBuilder, drop_failed_turns, fill_result_ids
from dragoman.wire.residue import apply_diff, foreign_option_losses, get_notes, make_notes
from dragoman.wire.tool_definitions import write_tools


@accepts_json_text
def read_request(body: dict[str, Any]) -> Request:
    """A request as Converse takes it; the model is there only if the caller put ``modelId`` into it."""
    builder = MessageBuilder()
    system = expect_list(body.get("system", []), "$.system")
    if system:
        items = (expect_object(item, f"$.system[{index}]") for index, item in enumerate(system))
        builder.add(Role.SYSTEM, [read_block(item, builder, "system") for item in items])
    for index, message in enumerate(expect_list(body.get("messages", []), "$.messages")):
        _read_message(expect_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", builder)
    config = expect_object(body.get("toolConfig", {}), "$.toolConfig")
    tools = expect_list(config.get("tools", []), "$.toolConfig.tools")
    request = Request(
        model=text_or_none(body.get("modelId")),
        messages=tuple(builder.messages),
        tools=tuple(
            _read_tool(expect_object(tool, f"$.toolConfig.tools[{index}]")) for index, tool in enumerate(tools)
        ),
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
    return request.replace(provider_raw=make_notes(NAME, default_top(request, notes), rest, **notes))


def write_request(request: Request, quirks: Collection[str] = ()) -> Written:  # noqa: ARG001  no quirks
    """The request as Converse takes it, and what it cannot take. The model belongs into the URL."""
    losses: list[Loss] = []
    request = drop_failed_turns(fill_result_ids(request, NAME), NAME, losses)
    notes = get_notes(request.provider_raw, NAME)
    top = apply_diff(default_top(request, notes), notes.get("residue"))
    system = [block for message in request.messages for block in _write_system(message, losses)]
    messages = _write_messages(request.messages, losses)
    tools = write_tools(request.tools, _default_tool, NAME, losses)
    if not tools:
        tools = _called_tools(request.messages)
    empty = notes.get("empty", ())
    wire: dict[str, Any] = {}
    if messages or "messages" in empty:
        wire["messages"] = messages
    if system or "system" in empty:
        wire["system"] = system
    wire.update(top)
    if tools or (notes.get("no_tools") and "toolConfig" in top):
        wire["toolConfig"] = {"tools": tools, **top.get("toolConfig", {})}
    record_option_losses(request, wire, loss_recorder(losses))
    losses.extend(foreign_option_losses(request, NAME))
    return Written(wire, tuple(losses))


def _called_tools(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The tools that a session has called: it is refused without them, also where none is offered any more."""
    names = dict.fromkeys(
        block.name
        for message in messages
        for block in message.content
        if isinstance(block, ToolUseBlock | InvalidToolUseBlock) and message.session_id  # none: read from a wire
    )
    return [{"toolSpec": {"name": name, "inputSchema": {"json": {"type": "object"}}}} for name in names]


def _write_system(message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    """System prompts stand beside the list, wherever they stood, unless this API itself had one in it."""
    if message.role is not Role.SYSTEM or get_notes(message.metadata.provider_raw, NAME).get("listed"):
        return []
    return write_blocks(message.content, "system", loss_recorder(losses, message))


def _read_message(wire: dict[str, Any], where: str, builder: MessageBuilder) -> None:
    role = wire.get("role")
    if role not in ("user", "assistant", "system"):
        raise FormatError(f"a role is user, assistant or system, not {role!r}", where=f"{where}.role")
    items = [
        expect_object(item, f"{where}.content[{index}]")
        for index, item in enumerate(expect_list(wire.get("content"), f"{where}.content"))
    ]
    extra = {key: value for key, value in wire.items() if key not in ("role", "content")}
    notes: dict[str, Any] = {"set": extra} if extra else {}
    if not items:
        notes["form"] = "empty"
    if role == "system":
        notes["listed"] = True  # among the others, and not beside them
    if builder.messages and _side(builder.messages[-1]) == role:
        notes["joined"] = False
    for kind, group in _group_items(items, role):
        raw = {"dialect": NAME, **notes} if notes else None
        notes = {}
        if kind == "tool":
            result = read_result(group[0]["toolResult"], group[0], builder)
            builder.add(Role.TOOL, [result], raw, parent_id=result.tool_use_id)
        else:
            place = "system" if role == "system" else "message"
            builder.add(Role(role), [read_block(item, builder, place) for item in group], raw)


def _group_items(items: list[dict[str, Any]], role: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """A user message is cut where results begin and end; each result is a group of its own."""
    groups: list[tuple[str, list[dict[str, Any]]]] = []
    for item in items:
        match item:
            case {"toolResult": {"toolUseId": str(), "content": list()}} if role == "user":
                groups.append(("tool", [item]))
            case _ if groups and groups[-1][0] != "tool":
                groups[-1][1].append(item)
            case _:
                groups.append((role, [item]))
    return groups or [(role, [])]


def _side(message: Message) -> str:
    """Who speaks, for a wire that knows two sides only."""
    if message.role is Role.SYSTEM:
        return "system"
    return "assistant" if message.role is Role.ASSISTANT else "user"


def _write_messages(messages: Iterable[Message], losses: list[Loss]) -> list[dict[str, Any]]:
    """The two sides take turns, but for messages that came apart from the one before."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        side, notes = _side(message), get_notes(message.metadata.provider_raw, NAME)
        if side == "system" and not notes.get("listed"):
            continue
        place = "system" if side == "system" else "message"
        blocks = write_blocks(message.content, place, loss_recorder(losses, message))
        if not blocks and (message.content or notes.get("form") != "empty"):
            continue  # nothing of it can be said here; the losses name it
        if wire and wire[-1]["role"] == side and notes.get("joined") is not False:
            wire[-1]["content"].extend(blocks)
        else:
            wire.append({"role": side, "content": blocks, **notes.get("set", {})})
    return wire


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    match wire:
        case {"toolSpec": {"name": str(name), "inputSchema": {"json": dict(schema)}} as spec}:
            tool = ToolDefinition(name, text_or_none(spec.get("description")) or "", schema, SideEffects.EXECUTE)
            return tool.replace(provider_raw=make_notes(NAME, _default_tool(tool), wire))
        case _:
            return OpaqueTool(NAME, wire)


def _default_tool(tool: ToolDefinition) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": tool.name}
    if tool.description:
        spec["description"] = tool.description
    return {"toolSpec": {**spec, "inputSchema": {"json": tool.input_schema}}}
