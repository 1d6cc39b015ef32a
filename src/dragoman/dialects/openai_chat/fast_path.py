"""Fast path for messages, tools, options and replies with few fields beyond the canonical ones.

    read_messages(wires, builder, read_other)      adds the messages; ``read_other`` is the general path
    read_tool(wire) -> ToolDefinition | None       ``None``: the general path must read it
    read_options(body) -> (Options, keys) | None   the options, and the keys that are not the default ones
    write_messages(messages) -> wire               the messages of a plain history
    read_reply(body) -> Reply | None               ``None``: the general path must read it

Only ``request.py`` and ``reply.py`` enter it. Messages and tools need not be valid JSON values: it validates the values
that it reads. Invariant: its results are equal to those of the general path; a test compares them on recorded traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from dragoman.dialects.openai_chat.blocks import DEFAULT_ID, LEGACY_ID, NAME, TIERS
from dragoman.dialects.openai_chat.usage import read_plain_usage, write_usage
from dragoman.exchange import Options, Reply, SideEffects, StopReason, ToolDefinition
from dragoman.ids import format_default_id
from dragoman.jsontext import validate_text
from dragoman.message import (
    ContentBlock,
    Message,
    ProviderRaw,
    Role,
    TextBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.value import unvalidated
from dragoman.wire.message_builder import MessageBuilder, tool_id_for
from dragoman.wire.residue import diff, fingerprint
from dragoman.wire.tool_definitions import MAX_BRACKETS, is_valid_schema

MessageReader = Callable[[Any, str, MessageBuilder], None]  # the message, its path, and what it is added to
_ASSISTANT, _TOOL, _EXECUTE = Role.ASSISTANT, Role.TOOL, SideEffects.EXECUTE
_text: Final = unvalidated(TextBlock)
_tool_use: Final = unvalidated(ToolUseBlock)
_tool_result: Final = unvalidated(ToolResultBlock)
_tool: Final = unvalidated(ToolDefinition)
_reply: Final = unvalidated(Reply)
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_TYPES: Final = {
    "model": (str,),
    "max_tokens": (int,),
    "max_completion_tokens": (int,),
    "temperature": (int, float),
    "top_p": (int, float),
    "stream": (bool,),
}
_MAX_SHALLOW: Final = 2 * MAX_BRACKETS  # a shorter text is not nested too deep
_SEPARATE_KEYS: Final = ("messages", "tools")


def read_messages(wires: list[Any], builder: MessageBuilder, read_other: MessageReader) -> None:
    """Read messages that are a text, calls with or without a text, or a result that is a text, and the others."""
    for index, wire in enumerate(wires):
        if type(wire) is dict:
            role, content, size = wire.get("role"), wire.get("content"), len(wire)
            if size == 2:
                if type(content) is str and content and type(role) is str and role in _ROLES:
                    if not content.isascii():
                        validate_text(content, "$")
                    builder.add_message(_ROLES[role], (_text(content),))
                    continue
            elif size == 3:
                if role == "tool" and _read_result(wire.get("tool_call_id"), content, builder):
                    continue
                if role == "assistant" and _read_calls(wire, content, builder):
                    continue
        read_other(wire, f"$.messages[{index}]", builder)


def _read_result(provider_id: Any, content: Any, builder: MessageBuilder) -> bool:
    if type(provider_id) is not str or type(content) is not str or not content or ":" in provider_id:
        return False  # a colon may be part of a generated id of a legacy call
    if not provider_id.isascii():
        return False
    if not content.isascii():
        validate_text(content, "$")
    tool_use_id = builder.result_id(provider_id)
    raw = {"dialect": NAME, "id": provider_id} if provider_id != tool_use_id else None
    builder.add_result(_tool_result(tool_use_id, (_text(content),), False, raw))
    return True


def _read_calls(wire: dict[str, Any], content: Any, builder: MessageBuilder) -> bool:
    calls = wire.get("tool_calls")
    if type(calls) is not list or not calls or (content is None and "content" not in wire):
        return False
    blocks: list[ContentBlock] = []
    if content is not None:
        if type(content) is not str or not content:
            return False
        if not content.isascii():
            validate_text(content, "$")
        blocks.append(_text(content))
    fields = _read_fields(calls)
    if fields is None:
        return False
    for provider_id, name, value in fields:  # ids are drawn after the last check
        call_id = builder.call_id(provider_id)
        raw = {"dialect": NAME, "id": provider_id} if provider_id != call_id else None
        blocks.append(_tool_use(call_id, name, value, raw))
    builder.add_message(_ASSISTANT, tuple(blocks))
    return True


def _read_fields(calls: list[Any]) -> list[tuple[str, str, dict[str, Any]]] | None:
    """Return id, name and input of calls whose arguments are encoded as we encode them."""
    fields = []
    for wire in calls:
        try:
            provider_id, kind, function = wire["id"], wire["type"], wire["function"]
            name, arguments = function["name"], function["arguments"]
        except (LookupError, TypeError):
            return None
        if kind != "function" or type(wire) is not dict or len(wire) != 3 or len(function) != 2:
            return None
        if not type(provider_id) is type(name) is type(arguments) is str:
            return None
        if not provider_id.isascii() or not name.isascii():
            return None
        if len(arguments) > _MAX_SHALLOW and arguments.count("{") + arguments.count("[") > MAX_BRACKETS:
            return None
        try:
            value = _decode(arguments)
            if type(value) is not dict or _encode(value) != arguments.encode():
                return None
        except (msgspec.DecodeError, UnicodeError):
            return None  # the general path raises the error
        fields.append((provider_id, name, value))
    return fields


def write_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Write the messages of a plain history. Several texts of one message are a list."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        if message.role is _TOOL:
            wire.extend([_write_result(block) for block in message.content])  # type: ignore[arg-type]
            continue
        texts = [block.text for block in message.content if type(block) is TextBlock]
        content = _write_texts(texts) if texts or message.role is _ASSISTANT else ""
        wire_message: dict[str, Any] = {"role": message.role._value_, "content": content}
        if len(texts) != len(message.content):
            wire_message["tool_calls"] = [_write_call(b) for b in message.content if type(b) is ToolUseBlock]
        wire.append(wire_message)
    return wire


def _write_texts(texts: list[str]) -> Any:
    if len(texts) < 2:
        return texts[0] if texts else None
    return [{"type": "text", "text": text} for text in texts]


def _write_call(call: ToolUseBlock) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _encode(call.input).decode()}
    return {"id": _wire_id(call.provider_raw, call.id), "type": "function", "function": function}


def _write_result(result: ToolResultBlock) -> dict[str, Any]:
    texts = [part.text for part in result.content]  # type: ignore[union-attr]
    content = _write_texts(texts) if texts else ""
    provider_id = _wire_id(result.provider_raw, result.tool_use_id)
    if provider_id.startswith(LEGACY_ID):
        return {"role": "function", "name": provider_id.removeprefix(LEGACY_ID), "content": content}
    return {"role": "tool", "tool_call_id": provider_id, "content": content}


def _wire_id(raw: ProviderRaw | None, tool_id: str) -> str:
    """Return the id of a call on this wire: the noted one, else the default."""
    return raw["id"] if raw is not None and raw.get("dialect") == NAME else format_default_id(tool_id)


def read_tool(wire: Any) -> ToolDefinition | None:
    """Read a function with a name, a description and parameters."""
    if type(wire) is not dict or len(wire) != 2 or wire.get("type") != "function":
        return None
    function = wire.get("function")
    if type(function) is not dict or len(function) != 3:
        return None
    name, description, schema = function.get("name"), function.get("description"), function.get("parameters")
    if type(name) is not str or type(description) is not str or not description or type(schema) is not dict:
        return None
    if not name.isascii() or not description.isascii():
        validate_text(name + description, "$")
    return _tool(name, description, schema, _EXECUTE) if is_valid_schema(schema) else None


def read_options(body: dict[str, Any]) -> tuple[Options, dict[str, str]] | None:
    """Read the most frequent options, if the request has no others."""
    for key, value in body.items():
        if key not in _SEPARATE_KEYS and type(value) not in _TYPES.get(key, ()):
            return None
    limit, option_keys = body.get("max_completion_tokens"), {}
    if "max_tokens" in body:
        if limit is not None:
            return None
        limit, option_keys = body["max_tokens"], {"max_output_tokens": "max_tokens"}
    if "tools" in body and not body["tools"]:
        return None
    options = Options(
        max_output_tokens=limit,
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        stream=body.get("stream"),
    )
    return options, option_keys


_ENDS: Final = {"stop": StopReason.END_TURN, "tool_calls": StopReason.TOOL_USE}
_EMPTY_FIELDS: Final[dict[str, Any]] = {
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
}  # empty fields of a message
_TEXT: Final = (str,)
_TEXT_OR_NULL: Final = (str, type(None))
_REPLY_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "id": _TEXT,
    "object": _TEXT,
    "created": (int,),
    "model": _TEXT,
    "usage": (dict,),
    "choices": (list,),
    "service_tier": _TEXT_OR_NULL,
    "system_fingerprint": _TEXT_OR_NULL,
}
_DEFAULTS: Final = {"id": DEFAULT_ID, "created": 0}
_FINGERPRINTS: Final = {key: fingerprint(value) for key, value in _DEFAULTS.items()}


def read_reply(body: dict[str, Any]) -> Reply | None:
    """Read an answer of one choice with a text, calls, or both, and with plain counts."""
    for key, value in body.items():
        if type(value) not in _REPLY_TYPES.get(key, ()):
            return None
    choices = body.get("choices")
    if not choices or len(choices) != 1 or body.get("object") != "chat.completion":
        return None
    answer, usage = _read_choice(choices[0]), read_plain_usage(body)
    if answer is None or usage is None or not body.get("model") or "id" not in body or "created" not in body:
        return None
    blocks, stop_reason, message_fields = answer
    raw: dict[str, Any] = {"dialect": NAME}
    if message_fields:
        raw["message"] = {"dialect": NAME, "residue": {"set": message_fields}}
    residue = _find_residue(body, usage)
    if residue:
        raw["residue"] = residue
    return _reply(
        content=blocks,
        stop_reason=stop_reason,
        usage=usage,
        model=body["model"],
        provider_raw=raw if len(raw) > 1 else None,
    )


def _read_choice(choice: Any) -> tuple[tuple[ContentBlock, ...], StopReason, dict[str, Any]] | None:
    """Return the blocks of a choice, why it ended, and the other fields of its message."""
    if type(choice) is not dict or len(choice) != 4 or choice.get("logprobs", 0) is not None:
        return None
    index, message, word = choice.get("index"), choice.get("message"), choice.get("finish_reason")
    stop_reason = _ENDS.get(word) if type(word) is str else None
    if type(index) is not int or index or type(message) is not dict or stop_reason is None:
        return None
    if message.get("role") != "assistant":
        return None
    fields = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls")}
    for key, value in fields.items():
        if key not in _EMPTY_FIELDS or value != _EMPTY_FIELDS[key]:
            return None
    content, calls = message.get("content"), message.get("tool_calls", ())
    if type(content) is not str or not content or ("tool_calls" in message) != (stop_reason is StopReason.TOOL_USE):
        return None
    blocks: list[ContentBlock] = [_text(content)]
    if calls:
        call_blocks = _make_calls(calls)
        if call_blocks is None:
            return None
        blocks.extend(call_blocks)
    elif "tool_calls" in message:
        return None
    return tuple(blocks), stop_reason, fields


def _make_calls(calls: Any) -> list[ContentBlock] | None:
    fields = _read_fields(calls) if type(calls) is list else None
    if fields is None or len({call[0] for call in fields}) != len(fields):
        return None
    blocks: list[ContentBlock] = []
    for provider_id, name, value in fields:
        call_id = tool_id_for(provider_id)
        raw = {"dialect": NAME, "id": provider_id} if provider_id != call_id else None
        blocks.append(_tool_use(call_id, name, value, raw))
    return blocks


def _find_residue(body: dict[str, Any], usage: TokenUsage) -> dict[str, Any]:
    """Return the difference between the default wire around the choices and this one."""
    residue: dict[str, Any] = {}
    added = {key: body[key] for key in body if key == "system_fingerprint"}
    if "service_tier" in body and body["service_tier"] not in TIERS:
        added["service_tier"] = body["service_tier"]
    if added:
        residue["set"] = added
    inside: dict[str, Any] = {
        key: {"is": body[key], "was": _FINGERPRINTS[key]} for key, default in _DEFAULTS.items() if body[key] != default
    }
    usage_residue = _find_usage_residue(usage, body["usage"])
    if usage_residue is not None:
        inside["usage"] = usage_residue
    if inside:
        residue["in"] = inside
    return residue


_NO_DETAILS: Final = {
    "prompt_tokens_details": fingerprint({"cached_tokens": 0}),
    "completion_tokens_details": fingerprint({"reasoning_tokens": 0}),
}


def _find_usage_residue(usage: TokenUsage, wire: dict[str, Any]) -> dict[str, Any] | None:
    """Return the difference between the default wire of a usage and this one."""
    if len(wire) == 3 and wire["total_tokens"] == wire["prompt_tokens"] + wire["completion_tokens"]:
        return {"drop": dict(_NO_DETAILS)}  # many providers send only these counts
    if len(wire) != 5 or usage.input_audio_tokens or usage.output_audio_tokens:
        return diff(write_usage(usage), wire)
    details, output_details = wire["prompt_tokens_details"], wire["completion_tokens_details"]
    has_total = wire["total_tokens"] == wire["prompt_tokens"] + wire["completion_tokens"]
    if not has_total or "cached_tokens" not in details or "reasoning_tokens" not in output_details:
        return diff(write_usage(usage), wire)
    inside: dict[str, Any] = {}  # OpenAI sends further details
    if len(details) > 1:
        added = {name: count for name, count in details.items() if name != "cached_tokens"}
        inside["prompt_tokens_details"] = {"set": added}
    if len(output_details) > 1:
        added = {name: count for name, count in output_details.items() if name != "reasoning_tokens"}
        inside["completion_tokens_details"] = {"set": added}
    return {"in": inside} if inside else None
