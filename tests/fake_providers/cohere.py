"""A strict v2 chat API: it rejects what Cohere rejects, with the same error texts.

Sources: the API reference (2026) and error texts in public issues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tests.fake_providers.rules import rule_problems
from tests.fake_providers.script import (
    CallPart,
    IssuedSignatures,
    Part,
    TextPart,
    ThinkingPart,
    derive_id,
    json_text,
    split_text,
)
from tests.fake_providers.shape import (
    TOOL_NAME,
    data_url,
    decode_base64,
    detect_media_type,
    schema_problems,
    unknown_keys,
)

NAME: Final = "cohere"
MODEL: Final = "cohere:command-a-reasoning-08-2025"
BASE_PATH: Final = ""
PATH: Final = re.compile(r"/v2/chat")
KEY_HEADERS: Final = ("authorization",)
STREAM_TYPE: Final = "text/event-stream"

_TOP: Final = frozenset(
    [
        "model",
        "messages",
        "stream",
        "tools",
        "strict_tools",
        "documents",
        "citation_options",
        "response_format",
        "safety_mode",
        "max_tokens",
        "stop_sequences",
        "temperature",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "k",
        "p",
        "logprobs",
        "tool_choice",
        "thinking",
        "priority",
        "raw_prompting",
    ]
)
_KEYS: Final = {
    "system": ("role", "content"),
    "user": ("role", "content"),
    "assistant": ("role", "content", "tool_calls", "tool_plan", "citations"),
    "tool": ("role", "content", "tool_call_id"),
}
_PARTS: Final = {
    "system": ("text",),
    "user": ("text", "image_url"),
    "assistant": ("text", "thinking"),
    "tool": ("text", "document"),
}


def refusals(body: Any, issued: IssuedSignatures | None = None, model: str = "") -> list[str]:
    """Return the reasons why the API rejects a request. Without ``issued``, any reasoning is accepted."""
    problems = list(_check_shape(body))
    if problems:
        return problems
    values = rule_problems(NAME, body, str(body["model"]))
    return [*_check_order(body["messages"]), *_check_tools(body), *_check_thinking(body["messages"], issued), *values]


def _check_shape(body: Any) -> Iterator[str]:
    if not isinstance(body, dict):
        yield "invalid request: the body is not an object"
        return
    yield from (
        f"invalid request: unknown field: parameter '{key}' is not a valid field" for key in unknown_keys(body, _TOP)
    )
    if not isinstance(body.get("model"), str):
        yield "invalid request: model is required"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "invalid request: at least one message must be provided"
        return
    for index, message in enumerate(messages):
        yield from _check_message(message, f"messages[{index}]")


def _check_message(message: Any, where: str) -> Iterator[str]:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _KEYS:
        yield f"invalid request: {where}: role must be one of 'user', 'assistant', 'system' or 'tool', got {role!r}"
        return
    yield from (f"invalid request: {where}: unknown field '{key}'" for key in unknown_keys(message, _KEYS[role]))
    content = message.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            yield from _check_part(part, role, f"{where}.content[{index}]")
    elif content is not None and not isinstance(content, str):
        yield f"invalid request: {where}.content must be a string or a list"
    is_blank = not content or (isinstance(content, str) and not content.strip())
    if is_blank and role != "tool" and not (role == "assistant" and message.get("tool_calls")):
        yield f"invalid request: all elements in history must have a message ({where})."
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield f"invalid request: {where}: tool_call_id is required in a tool message"
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield from _check_call(call, f"{where}.tool_calls[{index}]")


def _check_part(part: Any, role: str, where: str) -> Iterator[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _PARTS[role]:
        yield f"invalid request: {where}: content of type {kind!r} is not allowed in a message of role '{role}'"
        return
    match part:
        case {"type": "text", "text": str(text)} if not text and role != "assistant":
            yield f"invalid request: {where}: text must not be empty"
        case {"type": "text"} if not isinstance(part.get("text"), str):
            yield f"invalid request: {where}: text is required"
        case {"type": "image_url"}:
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, dict) else None
            found = data_url(url) if isinstance(url, str) and url.startswith("data:") else None
            data = decode_base64(found[1]) if found else None
            if not isinstance(url, str) or (url.startswith("data:") and data is None):
                yield f"invalid request: {where}: invalid base64 image"
            elif data is not None and not str(detect_media_type(data)).startswith("image/"):
                yield f"invalid request: {where}: unsupported image format"
        case {"type": "document"} if not isinstance(part.get("document"), dict):
            yield f"invalid request: {where}: document is required"
        case _:
            return


def _check_call(call: Any, where: str) -> Iterator[str]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(call.get("id"), str) or not call["id"]:
        yield f"invalid request: {where}: a tool call has an id and a function"
        return
    if call.get("type") != "function":
        yield f"invalid request: {where}: type must be 'function'"
    if not TOOL_NAME.fullmatch(str(function.get("name", ""))):
        yield f"invalid request: {where}: tool name must only contain letters, digits, underscores and dashes"
    try:
        is_object = isinstance(msgspec.json.decode(function.get("arguments", "")), dict)
    except (msgspec.DecodeError, TypeError):
        is_object = False
    if not is_object:
        yield f"invalid request: {where}: arguments must be a valid JSON object"


def _check_order(messages: list[dict[str, Any]]) -> Iterator[str]:
    pending: list[str] = []
    called: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            name = message["tool_call_id"]
            if name not in called:
                yield f"invalid request: messages[{index}]: tool_call_id '{name}' not found in the previous tool calls"
            elif name not in pending:
                yield f"invalid request: messages[{index}]: more than one tool message for tool_call_id '{name}'"
            pending = [other for other in pending if other != name]
            continue
        if pending:
            yield _missing_results_text(pending)
        called = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(called)) != len(called):
            yield f"invalid request: messages[{index}]: tool call ids must be unique"
        pending = list(called)
    if pending:
        yield _missing_results_text(pending)
    if messages[-1]["role"] not in ("user", "tool"):
        yield "invalid request: the last message must be a user or a tool message"


def _missing_results_text(pending: list[str]) -> str:
    return (
        "invalid request: An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(pending)}"
    )


def _check_tools(body: dict[str, Any]) -> Iterator[str]:
    for index, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not TOOL_NAME.fullmatch(str(function.get("name", ""))):
            yield f"invalid request: tools[{index}]: a tool is a function with a name of letters, digits and underscores"
            continue
        parameters = function.get("parameters", {})
        if parameters and (not isinstance(parameters, dict) or parameters.get("type") != "object"):
            yield f"invalid request: tools[{index}]: parameters must be a JSON schema of type object"
        elif any(True for _, problem in schema_problems(parameters) if "items" not in problem):
            yield f"invalid request: tools[{index}]: parameters are no valid JSON schema"


def _check_thinking(messages: list[dict[str, Any]], issued: IssuedSignatures | None) -> Iterator[str]:
    for index, message in enumerate(messages):
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if part["type"] == "thinking" and issued is not None and part["thinking"] not in issued.signatures.values():
                yield f"invalid request: messages[{index}]: thinking that this model never had"


# --- replies ---------------------------------------------------------------------------------------------------------


def refusal(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error response."""
    return {"id": "5c8b1f1e-0000-4000-8000-000000000000", "message": message}


def is_streamed(path: str, body: dict[str, Any]) -> bool:
    """Return whether the request asks for a stream."""
    return body.get("stream") is True


def model_of(path: str, body: dict[str, Any]) -> str:
    """Return the model of a request."""
    return str(body.get("model", ""))


_USAGE: Final = {
    "billed_units": {"input_tokens": 11, "output_tokens": 7},
    "tokens": {"input_tokens": 11, "output_tokens": 7},
}


def write_reply(parts: list[Part], model: str, issued: IssuedSignatures) -> dict[str, Any]:
    """Return a reply that is not streamed."""
    seed = issued.next_answer()
    message: dict[str, Any] = {"role": "assistant"}
    has_calls = any(isinstance(part, CallPart) for part in parts)
    for index, part in enumerate(parts):
        match part:
            case TextPart(text) if has_calls:
                message["tool_plan"] = message.get("tool_plan", "") + text
            case TextPart(text):
                message.setdefault("content", []).append({"type": "text", "text": text})
            case ThinkingPart(text):
                issued.sign(text, seed, str(index))
                message.setdefault("content", []).append({"type": "thinking", "thinking": text})
            case CallPart(name, value):
                function = {"name": name, "arguments": json_text(value)}
                call = {"id": derive_id(f"{name}_", 12, seed, str(index)), "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
    reason = "TOOL_CALL" if has_calls else "COMPLETE"
    return {"id": derive_id("", 36, seed), "finish_reason": reason, "message": message, "usage": _USAGE}


def write_stream(parts: list[Part], model: str, issued: IssuedSignatures) -> list[bytes]:
    """Return the chunks of a streamed reply."""
    answer = write_reply(parts, model, issued)
    message = answer["message"]
    empty = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    events: list[dict[str, Any]] = [{"type": "message-start", "id": answer["id"], "delta": {"message": empty}}]
    for index, part in enumerate(message.get("content", ())):
        kind = part["type"]
        start = {"message": {"content": {"type": kind, kind: ""}}}
        events.append({"type": "content-start", "index": index, "delta": start})
        for piece in split_text(part[kind]):
            events.append({"type": "content-delta", "index": index, "delta": {"message": {"content": {kind: piece}}}})
        events.append({"type": "content-end", "index": index})
    for piece in split_text(message["tool_plan"]) if "tool_plan" in message else ():
        events.append({"type": "tool-plan-delta", "delta": {"message": {"tool_plan": piece}}})
    for index, call in enumerate(message.get("tool_calls", ())):
        start_call = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
        events.append({"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": start_call}}})
        for piece in split_text(call["function"]["arguments"]):
            delta = {"message": {"tool_calls": {"function": {"arguments": piece}}}}
            events.append({"type": "tool-call-delta", "index": index, "delta": delta})
        events.append({"type": "tool-call-end", "index": index})
    end = {"finish_reason": answer["finish_reason"], "usage": _USAGE}
    events.append({"type": "message-end", "id": answer["id"], "delta": end})
    return [f"event: {event['type']}\ndata: {json_text(event)}\n\n".encode() for event in events]
