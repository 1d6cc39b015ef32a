"""Fast path for requests: messages, tools and options that carry nothing beyond the canonical fields.

    read_message(wire, builder) -> bool            adds the message; ``False``: the general path has to read it
    read_tool(wire) -> ToolDefinition | None       ``None``: the general path has to read it
    read_options(body) -> (Options, keys) | None   the options, and the keys that are not the default ones

Only ``request.py`` enters it. Invariant: its results are equal to those of the general path; a test compares them on
recorded traffic.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.dialects.openai_chat.blocks import NAME
from dragoman.exchange import Options, SideEffects, ToolDefinition
from dragoman.message import ContentBlock, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.value import unvalidated
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.tool_definitions import MAX_BRACKETS, is_shallow_json

_text: Final = unvalidated(TextBlock)
_tool_use: Final = unvalidated(ToolUseBlock)
_tool_result: Final = unvalidated(ToolResultBlock)
_tool: Final = unvalidated(ToolDefinition)
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
_SEPARATE_KEYS: Final = ("messages", "tools")


def read_message(wire: Any, builder: MessageBuilder) -> bool:
    """Read a text, calls with or without a text, or a result that is a text."""
    if type(wire) is not dict:
        return False
    role, content = wire.get("role"), wire.get("content")
    if len(wire) == 2:
        message_role = _ROLES.get(role) if type(role) is str else None
        if message_role is None or type(content) is not str or not content:
            return False
        builder.add_message(message_role, (_text(content),))
        return True
    if len(wire) != 3:
        return False
    if role == "tool":
        return _read_result(wire.get("tool_call_id"), content, builder)
    return role == "assistant" and _read_calls(wire, content, builder)


def _read_result(provider_id: Any, content: Any, builder: MessageBuilder) -> bool:
    if type(provider_id) is not str or type(content) is not str or not content or ":" in provider_id:
        return False  # a colon may be part of the made-up id of a legacy call
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
        blocks.append(_text(content))
    fields = [_read_call(call) for call in calls]
    if None in fields:
        return False
    for provider_id, name, value in fields:  # type: ignore[misc]  # ids are drawn after the last check
        call_id = builder.call_id(provider_id)
        raw = {"dialect": NAME, "id": provider_id} if provider_id != call_id else None
        blocks.append(_tool_use(call_id, name, value, raw))
    builder.add_message(Role.ASSISTANT, tuple(blocks))
    return True


def _read_call(wire: Any) -> tuple[str, str, dict[str, Any]] | None:
    """Return id, name and input of a call whose arguments are encoded as we encode them."""
    try:
        provider_id, kind, function = wire["id"], wire["type"], wire["function"]
        name, arguments = function["name"], function["arguments"]
    except (LookupError, TypeError):
        return None
    if kind != "function" or type(wire) is not dict or len(wire) != 3 or len(function) != 2:
        return None
    if not type(provider_id) is type(name) is type(arguments) is str:
        return None
    if len(arguments) > 2 * MAX_BRACKETS and arguments.count("{") + arguments.count("[") > MAX_BRACKETS:
        return None
    try:
        value = _decode(arguments)
        if type(value) is dict and _encode(value) == arguments.encode():
            return provider_id, name, value
    except (msgspec.DecodeError, UnicodeError):
        pass  # the general path names the problem
    return None


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
    return _tool(name, description, schema, SideEffects.EXECUTE) if is_shallow_json(schema) else None


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
