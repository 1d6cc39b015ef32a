"""The plain shapes of a request, which most traffic has, read the short way.

    read_messages(listed, conversation, long_way)  the plain ones here, the others the long way
    plain_tool(wire) -> ToolDefinition | None
    plain_options(body) -> Options, spelled | None

A plain shape says nothing but what the canonical fields say, so there is no difference to look for, and its parts are
looked at here once. Everything else takes the long way. The one rule: what is read here, the long way reads alike; a
test compares the two on recorded traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from dragoman.dialects.openai_chat.blocks import NAME
from dragoman.exchange import Options, SideEffects, ToolDefinition
from dragoman.message import ContentBlock, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.value import unvalidated
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.plainness import is_encodable, is_json

_text: Final = unvalidated(TextBlock)
_tool_use: Final = unvalidated(ToolUseBlock)
_tool_result: Final = unvalidated(ToolResultBlock)
_tool: Final = unvalidated(ToolDefinition)
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_MAX_BRACKETS: Final = 64  # brackets, so that nothing is nested too deep
_TYPES: Final = {
    "model": (str,),
    "max_tokens": (int,),
    "max_completion_tokens": (int,),
    "temperature": (int, float),
    "top_p": (int, float),
    "stream": (bool,),
}
_SEPARATE_KEYS: Final = ("messages", "tools")
GeneralReader = Callable[[Any, str, MessageBuilder], None]


def read_messages(items: list[Any], builder: MessageBuilder, read_message: GeneralReader) -> None:
    """Read the list of messages: a text, a text with calls, calls alone, a result in words here, the rest elsewhere."""
    add_message = builder.add_message
    for index, wire in enumerate(items):
        if type(wire) is dict:
            role, content, size = wire.get("role"), wire.get("content"), len(wire)
            if size == 2:
                if type(content) is str and content and (content.isascii() or is_encodable(content)):
                    message_role = _ROLES.get(role) if type(role) is str else None
                    if message_role is not None:
                        add_message(message_role, (_text(content),))
                        continue
            elif size == 3:
                if role == "tool":
                    if _read_result(wire.get("tool_call_id"), content, builder):
                        continue
                elif role == "assistant" and _read_calls(wire, content, builder):
                    continue
        read_message(wire, f"$.messages[{index}]", builder)


def _read_result(provider_id: Any, content: Any, builder: MessageBuilder) -> bool:
    if type(provider_id) is not str or type(content) is not str or not content:
        return False
    if not (content.isascii() or is_encodable(content)) or not provider_id.isascii() or ":" in provider_id:
        return False  # a colon may be that of a call without an id
    tool_use_id = builder.result_id(provider_id)
    raw = {"dialect": NAME, "id": provider_id} if provider_id != tool_use_id else None
    builder.add_result(_tool_result(tool_use_id, (_text(content),), False, raw))
    return True


def _read_calls(wire: dict[str, Any], content: Any, builder: MessageBuilder) -> bool:
    calls = wire.get("tool_calls")
    if type(calls) is not list or not calls:
        return False
    blocks: list[ContentBlock] = []
    if type(content) is str:
        if not content or not (content.isascii() or is_encodable(content)):
            return False
        blocks.append(_text(content))
    elif content is not None or "content" not in wire:
        return False
    fields = []
    for call in calls:
        call_fields = _read_call(call)
        if call_fields is None:
            return False
        fields.append(call_fields)
    for provider_id, name, value in fields:  # no id is given before
        call_id = builder.call_id(provider_id)
        raw = {"dialect": NAME, "id": provider_id} if provider_id != call_id else None
        blocks.append(_tool_use(call_id, name, value, raw))
    builder.add_message(Role.ASSISTANT, tuple(blocks))
    return True


def _read_call(wire: Any) -> tuple[str, str, dict[str, Any]] | None:
    """Id, name and input of a call whose arguments are spelled as we would spell them."""
    try:
        provider_id, kind, function = wire["id"], wire["type"], wire["function"]
        name, arguments = function["name"], function["arguments"]
    except (LookupError, TypeError):
        return None
    if kind != "function" or type(wire) is not dict or len(wire) != 3 or len(function) != 2:
        return None
    if not type(provider_id) is type(name) is type(arguments) is str or not (provider_id + name).isascii():
        return None
    if len(arguments) > 2 * _MAX_BRACKETS and arguments.count("{") + arguments.count("[") > _MAX_BRACKETS:
        return None
    try:
        value = _decode(arguments)
        if type(value) is dict and _encode(value) == arguments.encode():
            return provider_id, name, value
    except (msgspec.DecodeError, UnicodeError):
        pass  # the long way knows what to say about it
    return None


def read_plain_tool(wire: Any) -> ToolDefinition | None:
    """A function with a name, a description and parameters."""
    if type(wire) is not dict or len(wire) != 2 or wire.get("type") != "function":
        return None
    function = wire.get("function")
    if type(function) is not dict or len(function) != 3:
        return None
    name, description, schema = function.get("name"), function.get("description"), function.get("parameters")
    if type(name) is not str or type(description) is not str or not description or type(schema) is not dict:
        return None
    if not is_encodable(name) or not is_encodable(description) or not is_json(schema):
        return None
    return _tool(name, description, schema, SideEffects.EXECUTE)


def read_plain_options(body: dict[str, Any]) -> tuple[Options, dict[str, str]] | None:
    """The options, if they are few and usual, and how the limit on tokens is spelled."""
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
