"""A strict /api/chat: it rejects what Ollama's server rejects, and what chat templates cannot render.

Sources: the API reference and the server's types (2026). The server accepts almost any order of messages. Chat templates
raise for a result without a call and a call without a result; the fake rejects both with the text of such a template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tests.fake_providers.rules import rule_problems
from tests.fake_providers.script import CallPart, IssuedSignatures, Part, TextPart, ThinkingPart, json_text, split_text
from tests.fake_providers.shape import decode_base64, detect_media_type, unknown_keys

NAME: Final = "ollama"
MODEL: Final = "ollama:qwen3-vl"
BASE_PATH: Final = ""
PATH: Final = re.compile(r"/api/chat")
KEY_HEADERS: Final = ()
STREAM_TYPE: Final = "application/x-ndjson"

_TOP: Final = frozenset(
    [
        "model",
        "messages",
        "stream",
        "format",
        "keep_alive",
        "tools",
        "options",
        "think",
        "truncate",
        "shift",
        "logprobs",
        "top_logprobs",
        "temperature",
    ]
)
_KEYS: Final = frozenset(["role", "content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id"])
_STRUCT: Final = "json: cannot unmarshal"


def refusals(body: Any, issued: IssuedSignatures | None = None, model: str = "") -> list[str]:
    """Return the reasons why the server rejects a request. Without ``issued``, any reasoning is accepted."""
    problems = list(_check_shape(body))
    if problems:
        return problems
    values = rule_problems(NAME, body, str(body["model"]))
    return [*_check_order(body["messages"]), *_check_tools(body), *_check_thinking(body["messages"], issued), *values]


def _check_shape(body: Any) -> Iterator[str]:
    if not isinstance(body, dict):
        yield f"{_STRUCT} array into Go value of type api.ChatRequest"
        return
    yield from (f"unknown field {key!r}" for key in unknown_keys(body, _TOP))
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "model is required"
    if not isinstance(body.get("messages"), list):
        yield f"{_STRUCT} object into Go struct field ChatRequest.messages of type []api.Message"
        return
    for index, message in enumerate(body["messages"]):
        yield from _check_message(message, f"messages[{index}]")


def _check_message(message: Any, where: str) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"{_STRUCT} into Go struct field ChatRequest.messages of type api.Message"
        return
    yield from (f"unknown field {key!r} in {where}" for key in unknown_keys(message, _KEYS))
    role = message.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        yield f'invalid role: "{role}", must be one of ["system", "user", "assistant", "tool"]'
    if not isinstance(message.get("content", ""), str):
        yield f"{_STRUCT} array into Go struct field ChatRequest.messages.content of type string"
    for data in message.get("images") or ():
        found = decode_base64(data)
        if found is None:
            yield "illegal base64 data at input byte 0"
        elif not str(detect_media_type(found)).startswith("image/"):
            yield "Failed to create new sequence: failed to process inputs: image: unknown format"
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
            yield f"{_STRUCT} string into Go struct field ToolCallFunction.messages.tool_calls.function.arguments of type api.ToolCallFunctionArguments"
        elif not function.get("name"):
            yield f"a call without a name in {where}"
    if role == "user" and not message.get("content") and not message.get("images"):
        yield f"nothing is said in {where}"
    if role == "assistant" and not any(message.get(key) for key in ("content", "tool_calls", "thinking", "images")):
        yield f"nothing is said in {where}"


def _check_order(messages: list[dict[str, Any]]) -> Iterator[str]:
    pending = 0
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if pending == 0:
                yield f"template: messages[{index}]: a tool message must follow the call that it answers"
            pending = max(0, pending - 1)
            continue
        if pending:
            yield f"template: messages[{index}]: {pending} calls before it have no result"
        pending = len(message.get("tool_calls") or ()) if message["role"] == "assistant" else 0
    if pending:
        yield f"template: {pending} calls have no result"


def _check_tools(body: dict[str, Any]) -> Iterator[str]:
    for index, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not function.get("name"):
            yield f"tools[{index}]: a tool is a function with a name"
        elif not isinstance(function.get("parameters", {}), dict):
            yield f"{_STRUCT} into Go struct field ToolFunction.tools.function.parameters"


def _check_thinking(messages: list[dict[str, Any]], issued: IssuedSignatures | None) -> Iterator[str]:
    for index, message in enumerate(messages):
        if issued is not None and message.get("thinking") and message["thinking"] not in issued.signatures.values():
            yield f"messages[{index}].thinking: this model never thought that"


# --- replies ---------------------------------------------------------------------------------------------------------


def refusal(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error response."""
    return {"error": message}


def is_streamed(path: str, body: dict[str, Any]) -> bool:
    """Return whether the request asks for a stream. That is the default."""
    return body.get("stream") is not False


def model_of(path: str, body: dict[str, Any]) -> str:
    """Return the model of a request."""
    return str(body.get("model", ""))


def write_reply(parts: list[Part], model: str, issued: IssuedSignatures) -> dict[str, Any]:
    """Return a reply that is not streamed. Tool calls of this API have no ids."""
    seed = issued.next_answer()
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for part in parts:
        match part:
            case TextPart(text):
                message["content"] += text
            case ThinkingPart(text):
                message["thinking"] = message.get("thinking", "") + text
            case CallPart(name, value):
                calls = message.setdefault("tool_calls", [])
                calls.append({"function": {"index": len(calls), "name": name, "arguments": value}})
    if "thinking" in message:
        issued.sign(message["thinking"], seed)
    return {**_top(model), "message": message, **_END}


_END: Final = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 3,
    "load_duration": 1,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 1,
    "eval_count": 7,
    "eval_duration": 1,
}


def _top(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": "2026-01-01T12:00:00Z"}


def write_stream(parts: list[Part], model: str, issued: IssuedSignatures) -> list[bytes]:
    """Return the chunks of a streamed reply, one JSON object per line."""
    message = write_reply(parts, model, issued)["message"]
    pieces: list[dict[str, Any]] = []
    if message.get("thinking"):
        pieces.extend({"content": "", "thinking": piece} for piece in split_text(message["thinking"]))
    if message["content"]:
        pieces.extend({"content": piece} for piece in split_text(message["content"]))
    pieces.extend({"content": "", "tool_calls": [call]} for call in message.get("tool_calls", ()))
    lines = [{**_top(model), "message": {"role": "assistant", **piece}, "done": False} for piece in pieces]
    lines.append({**_top(model), "message": {"role": "assistant", "content": ""}, **_END})
    return [f"{json_text(line)}\n".encode() for line in lines]
