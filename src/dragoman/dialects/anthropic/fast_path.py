"""Fast path for blocks with nothing beyond the canonical fields and, of a call, the id of the provider.

    read_block(wire, builder) -> block       ``None``: the general path has to read it
    read_result(wire, builder) -> block      the same for a tool result
    read_tool(wire) -> ToolDefinition        the same for a tool
    write_blocks(message) -> wire blocks     ``None``: the general path has to write the message
    write_messages(messages) -> wire         the messages of a plain history
    read_reply(body) -> Reply | None         ``None``: the general path has to read it

Only ``request.py`` and ``reply.py`` enter it. Invariant: its results are equal to those of the general path; a test
compares them on recorded traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dragoman.dialects.anthropic.blocks import DEFAULT_ID, NAME
from dragoman.dialects.anthropic.usage import read_plain_usage, read_usage, write_usage
from dragoman.exchange import Reply, SideEffects, StopReason, ToolDefinition
from dragoman.ids import format_default_id
from dragoman.message import (
    ContentBlock,
    Message,
    ProviderRaw,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.value import unvalidated
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import diff, fingerprint
from dragoman.wire.tool_definitions import is_shallow_json, is_valid_schema

_TOOL: Final = Role.TOOL
_reply: Final = unvalidated(Reply)
_result: Final = unvalidated(ToolResultBlock)
_tool: Final = unvalidated(ToolDefinition)
_text: Final = unvalidated(TextBlock)
_tool_use: Final = unvalidated(ToolUseBlock)
_thinking: Final = unvalidated(ThinkingBlock)


def read_block(wire: Any, builder: MessageBuilder) -> ContentBlock | None:
    """Read a text, a call or signed thinking without further keys."""
    if type(wire) is not dict:
        return None
    kind, size = wire.get("type"), len(wire)
    if kind == "text" and size == 2:
        text = wire.get("text")
        return _text(text) if type(text) is str else None
    if kind == "tool_use" and size == 4:
        provider_id, name, value = wire.get("id"), wire.get("name"), wire.get("input")
        if type(provider_id) is not str or type(name) is not str or type(value) is not dict:
            return None
        if not provider_id or not is_shallow_json(value):
            return None
        call_id = builder.call_id(provider_id)
        return _tool_use(call_id, name, value, {"dialect": NAME, "id": provider_id} if provider_id != call_id else None)
    if kind == "thinking" and size == 3:
        text, signature = wire.get("thinking"), wire.get("signature")
        if type(text) is str and type(signature) is str:
            return _thinking(text, signature, {"dialect": NAME, "own": True})
    return None


def read_result(wire: dict[str, Any], builder: MessageBuilder) -> ToolResultBlock | None:
    """Read a result that is a text or a list of texts."""
    provider_id, content, is_error = wire["tool_use_id"], wire.get("content"), wire.get("is_error") is True
    if len(wire) != 3 + is_error or not provider_id or not content:
        return None
    if type(content) is str:
        parts: list[Any] = [content]
    elif type(content) is list:
        parts = [_plain_text(part) for part in content]
    else:
        return None
    if None in parts:
        return None
    tool_use_id = builder.result_id(provider_id)
    notes: ProviderRaw = {"dialect": NAME}
    if provider_id != tool_use_id:
        notes["id"] = provider_id
    if type(content) is str:
        notes["form"] = "string"
    blocks = tuple([_text(text) for text in parts])
    return _result(tool_use_id, blocks, is_error, notes if len(notes) > 1 else None)


def _plain_text(wire: Any) -> str | None:
    """Return the text of a block without further keys."""
    if type(wire) is not dict or len(wire) != 2 or wire.get("type") != "text":
        return None
    text = wire.get("text")
    return text if type(text) is str else None


def read_tool(wire: dict[str, Any]) -> ToolDefinition | None:
    """Read a tool with a name, a description and a schema."""
    name, description, schema = wire.get("name"), wire.get("description"), wire.get("input_schema")
    if len(wire) != 3 or type(name) is not str or type(description) is not str or type(schema) is not dict:
        return None
    return _tool(name, description, schema, SideEffects.EXECUTE) if description and is_valid_schema(schema) else None


def write_blocks(message: Message) -> list[dict[str, Any]] | None:
    """Write texts, calls, and results that contain texts only."""
    wire = []
    for block in message.content:
        plain = _write_block(block)
        if plain is None:
            return None
        wire.append(plain)
    return wire


def write_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Write the messages of a plain history. Results that follow each other become one message."""
    wire: list[dict[str, Any]] = []
    call_ids: dict[str, str | None] = {}  # ids on this wire, by our ids
    results: list[dict[str, Any]] | None = None
    for message in messages:
        if message.role is _TOOL:
            if results is None:
                results = []
                wire.append({"role": "user", "content": results})
            for result in message.content:
                results.append(_write_plain_result(result, call_ids))  # type: ignore[arg-type]
            continue
        results = None
        blocks: list[dict[str, Any]] = []
        for block in message.content:
            if type(block) is TextBlock:
                blocks.append({"type": "text", "text": block.text})
            else:
                call: ToolUseBlock = block  # type: ignore[assignment]
                call_ids[call.id] = call_id = _call_id(call.provider_raw, call.id)
                blocks.append({"type": "tool_use", "id": call_id, "name": call.name, "input": call.input})
        wire.append({"role": message.role._value_, "content": blocks})
    return wire


def _write_plain_result(result: ToolResultBlock, call_ids: Mapping[str, str | None]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for part in result.content:
        parts.append({"type": "text", "text": part.text})  # type: ignore[union-attr]
    wire: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_ids[result.tool_use_id], "content": parts}
    if result.is_error:
        wire["is_error"] = True
    return wire


def _write_block(block: ContentBlock) -> dict[str, Any] | None:
    kind = type(block)
    if kind is TextBlock:
        is_plain = _is_plain_text(block)  # type: ignore[arg-type]
        return {"type": "text", "text": block.text} if is_plain else None  # type: ignore[union-attr]
    if kind is ToolUseBlock and block.cache_hint is None:  # type: ignore[union-attr]
        provider_id = _call_id(block.provider_raw, block.id)  # type: ignore[union-attr]
        if provider_id is not None:
            return {"type": "tool_use", "id": provider_id, "name": block.name, "input": block.input}  # type: ignore[union-attr]
    elif kind is ToolResultBlock and block.cache_hint is None:  # type: ignore[union-attr]
        provider_id = _call_id(block.provider_raw, block.tool_use_id)  # type: ignore[union-attr]
        if provider_id is not None:
            return _write_result(block, provider_id)  # type: ignore[arg-type]
    return None


def _is_plain_text(block: TextBlock) -> bool:
    return block.cache_hint is None and not block.citations and _is_foreign(block.provider_raw)


def _is_foreign(raw: ProviderRaw | None) -> bool:
    return raw is None or raw.get("dialect") != NAME


def _call_id(raw: ProviderRaw | None, tool_use_id: str) -> str | None:
    """Return the id of the call on this wire, if the notes contain nothing else."""
    if raw is None or raw.get("dialect") != NAME:
        return format_default_id(tool_use_id)
    return raw.get("id") if len(raw) == 2 else None


def _write_result(result: ToolResultBlock, provider_id: str) -> dict[str, Any] | None:
    content = []
    for part in result.content:
        if type(part) is not TextBlock or not _is_plain_text(part):
            return None
        content.append({"type": "text", "text": part.text})
    wire: dict[str, Any] = {"type": "tool_result", "tool_use_id": provider_id, "content": content}
    return {**wire, "is_error": True} if result.is_error else wire


_ENDS: Final = {"end_turn": StopReason.END_TURN, "tool_use": StopReason.TOOL_USE}
_REPLY_KEYS: Final = {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
_ID_FINGERPRINT: Final = fingerprint(DEFAULT_ID)


def read_reply(body: dict[str, Any]) -> Reply | None:
    """Read an answer whose blocks are plain, with the fields that every answer has."""
    if body.keys() != _REPLY_KEYS or body["stop_sequence"] is not None:
        return None
    if body["type"] != "message" or body["role"] != "assistant":
        return None
    model, items, wire_usage = body["model"], body["content"], body["usage"]
    stop_reason = _ENDS.get(str(body["stop_reason"]))
    if type(body["id"]) is not str or type(model) is not str or not model or stop_reason is None:
        return None
    if type(items) is not list or type(wire_usage) is not dict:
        return None
    usage = read_plain_usage(wire_usage)
    if usage is None and not _is_flat(wire_usage):
        return None
    builder = MessageBuilder()
    blocks = [read_block(item, builder) for item in items]
    if None in blocks or not any(type(block) is not TextBlock or block.text for block in blocks):
        return None
    if stop_reason is StopReason.END_TURN and any(type(block) is ToolUseBlock for block in blocks):
        return None
    inside: dict[str, Any] = {}
    if body["id"] != DEFAULT_ID:
        inside["id"] = {"is": body["id"], "was": _ID_FINGERPRINT}
    if usage is None or write_usage(usage) != wire_usage:  # equal numbers of a plain usage have equal types
        usage = usage or read_usage(wire_usage)
        change = diff(write_usage(usage), wire_usage)
        if change is not None:
            inside["usage"] = change
    raw = {"dialect": NAME, "residue": {"in": inside}} if inside else None
    return _reply(content=tuple(blocks), stop_reason=stop_reason, usage=usage, model=model, provider_raw=raw)


def _is_flat(wire: dict[str, Any]) -> bool:
    """Whether an object holds scalars, and objects of scalars."""
    inner = [value for value in wire.values() if type(value) is dict]
    values = [*wire.values(), *(value for part in inner for value in part.values())]
    return sum(type(value) is dict or type(value) is list for value in values) == len(inner)
