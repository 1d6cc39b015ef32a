"""A strict Chat Completions API: it rejects what OpenAI rejects, with the same error texts.

Sources: the API reference and its OpenAPI description (2026), errors in recorded traffic, and error texts in public
issues. Other providers of the dialect accept additional fields; for their requests, ``provider`` names one of them, and
unknown fields are accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

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

NAME: Final = "openai_chat"
MODEL: Final = "openai-chat:gpt-4o"
BASE_PATH: Final = "/v1"
PATH: Final = re.compile(r"/v1/chat/completions")
KEY_HEADERS: Final = ("authorization",)
STREAM_TYPE: Final = "text/event-stream"

_OPENAI: Final = ("", "openai-chat", "azure-openai-chat")
_TOP: Final = frozenset(
    [
        "model",
        "messages",
        "n",
        "stream",
        "stream_options",
        "temperature",
        "max_tokens",
        "max_completion_tokens",
        "user",
        "tools",
        "tool_choice",
        "response_format",
        "stop",
        "frequency_penalty",
        "presence_penalty",
        "top_p",
        "reasoning_effort",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "parallel_tool_calls",
        "function_call",
        "functions",
        "store",
        "seed",
        "web_search_options",
        "audio",
        "service_tier",
        "modalities",
        "verbosity",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "metadata",
        "prediction",
    ]
)
_KEYS: Final = {
    "system": ("role", "content", "name"),
    "developer": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": (
        "role",
        "content",
        "name",
        "refusal",
        "audio",
        "annotations",
        "parsed",
        "tool_calls",
        "function_call",
    ),
    "tool": ("role", "content", "tool_call_id", "name"),
    "function": ("role", "content", "name"),
}
# Accepted although it is not documented: reasoning that some providers of the dialect return.
_REASONING: Final = ("reasoning_content",)
_PARTS: Final = {
    "system": ("text",),
    "developer": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
}
_IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAX_ID: Final = 40


def refusals(body: Any, issued: IssuedSignatures | None = None, model: str = "", provider: str = "") -> list[str]:
    """Return the reasons why the API rejects a request. Without ``issued``, any reasoning is accepted."""
    is_openai = provider in _OPENAI
    problems = list(_check_shape(body, is_openai=is_openai))
    if problems:
        return problems
    values = rule_problems(NAME, body, str(body.get("model"))) if is_openai else []
    return [
        *_check_order(body["messages"]),
        *_check_tools(body, is_openai=is_openai),
        *_check_reasoning(body, issued),
        *values,
    ]


def _check_shape(body: Any, *, is_openai: bool) -> Iterator[str]:
    if not isinstance(body, dict):
        yield "We could not parse the JSON body of your request."
        return
    if is_openai:
        yield from (f"Unrecognized request argument supplied: {key}" for key in unknown_keys(body, _TOP))
    messages = body.get("messages")
    if not isinstance(messages, list):
        yield "Missing required parameter: 'messages'."
        return
    if not messages:
        yield "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
    for index, message in enumerate(messages):
        yield from _check_message(message, f"messages[{index}]", is_openai=is_openai)


def _check_message(message: Any, where: str, *, is_openai: bool) -> Iterator[str]:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _KEYS:
        yield f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'."
        return
    if is_openai:
        for key in unknown_keys(message, (*_KEYS[role], *(_REASONING if role == "assistant" else ()))):
            yield f"Unrecognized request argument supplied: {where}.{key}"
    content = message.get("content")
    calls = message.get("tool_calls")
    if content is None and not (
        role == "assistant" and (calls or message.get("function_call") or message.get("audio"))
    ):
        yield f"Invalid value for 'content': expected a string, got null. ({where}.content)"
    if isinstance(content, list):
        if not content and is_openai:
            yield f"Invalid '{where}.content': empty array. Expected an array with minimum length 1, but got an empty array instead."
        for index, part in enumerate(content):
            yield from _check_part(part, role, f"{where}.content[{index}]", is_openai=is_openai)
    elif content is not None and not isinstance(content, str):
        yield f"Invalid type for '{where}.content': expected one of a string or array of objects, but got an object instead."
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield f"Missing required parameter: '{where}.tool_call_id'."
    if "tool_calls" in message and role == "assistant" and calls is not None:
        yield from _check_calls(calls, f"{where}.tool_calls", is_openai=is_openai)


def _check_part(part: Any, role: str, where: str, *, is_openai: bool) -> Iterator[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind is None:
        yield f"Missing required parameter: '{where}.type'."
    elif is_openai and kind not in _PARTS.get(role, ("text",)):
        allowed = ", ".join(f"'{name}'" for name in _PARTS.get(role, ("text",)))
        yield f"Invalid value: '{kind}'. Supported values are: {allowed}. ({where})"
    elif kind == "text" and not isinstance(part.get("text"), str):
        yield f"Missing required parameter: '{where}.text'."
    elif kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        yield from _check_image(url, where)
    elif kind == "file" and isinstance(part.get("file"), dict) and is_openai:
        file = part["file"]
        if "file_data" in file and data_url(str(file["file_data"])) is None:
            yield f"Invalid file data: '{where}.file.file_data'. Expected a base64-encoded data URL with a valid file MIME type"
        if "file_data" in file and "filename" not in file:
            yield f"Missing required parameter: '{where}.file.filename'."


def _check_image(url: Any, where: str) -> Iterator[str]:
    if not isinstance(url, str):
        yield f"Missing required parameter: '{where}.image_url.url'."
        return
    if not url.startswith("data:"):
        if not url.startswith(("https://", "http://")):
            yield f"Invalid '{where}.image_url.url'. Expected a valid URL, but got a value with an invalid format."
        return
    parts = data_url(url)
    data = decode_base64(parts[1]) if parts else None
    if data is None:
        yield "Invalid base64 image_url."
    elif detect_media_type(data) not in _IMAGE_TYPES:
        yield "You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png', 'jpeg', 'gif', 'webp']."


def _check_calls(calls: Any, where: str, *, is_openai: bool) -> Iterator[str]:
    if not isinstance(calls, list) or not calls:
        if calls == [] and not is_openai:
            return
        yield f"Invalid '{where}': empty array. Expected an array with minimum length 1, but got an empty array instead."
        return
    for index, call in enumerate(calls):
        place = f"{where}[{index}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(call.get("id"), str):
            yield f"Missing required parameter: '{place}.id'."
        elif is_openai and not 0 < len(call["id"]) <= _MAX_ID:
            yield (
                f"Invalid '{place}.id': string too long. Expected a string with maximum length {_MAX_ID}, but got a "
                f"string with length {len(call['id'])} instead."
            )
        if not isinstance(function, dict):
            if not isinstance(call, dict) or call.get("type") != "custom":
                yield f"Missing required parameter: '{place}.function'."
            continue
        if not TOOL_NAME.fullmatch(str(function.get("name", ""))):
            yield f"Invalid '{place}.function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        if not isinstance(function.get("arguments"), str):
            yield f"Invalid type for '{place}.function.arguments': expected a string, but got an object instead."


# --- order, tools and reasoning --------------------------------------------------------------------------------------


def _check_order(messages: list[dict[str, Any]]) -> Iterator[str]:
    pending: dict[str, int] = {}
    called: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            name = message["tool_call_id"]
            if name in pending:
                del pending[name]
            elif name in called:
                yield f"Invalid parameter: Duplicate value for 'tool_call_id' of '{name}' in messages.[{index}]."
            else:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                    f"'tool_calls'. (messages.[{index}].role)"
                )
            continue
        if pending:
            yield _missing_results_text(pending)
        calls = [call["id"] for call in message.get("tool_calls") or () if message["role"] == "assistant"]
        if len(set(calls)) != len(calls):
            yield f"Invalid parameter: Duplicate value for 'id' in messages.[{index}].tool_calls."
        pending, called = dict.fromkeys(calls, index), set(calls)
    if pending:
        yield _missing_results_text(pending)


def _missing_results_text(pending: dict[str, int]) -> str:
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(pending)}"
    )


def _check_tools(body: dict[str, Any], *, is_openai: bool) -> Iterator[str]:
    if body.get("tools") == [] and is_openai:
        yield "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead."
    for index, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function")
        if not isinstance(function, dict):
            continue  # custom tools, and tools of other providers
        name = function.get("name", "")
        if not TOOL_NAME.fullmatch(str(name)):
            yield f"Invalid 'tools[{index}].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        parameters = function.get("parameters")
        if parameters is not None and is_openai:
            yield from _check_schema(name, parameters, is_strict=function.get("strict") is True)


def _check_schema(name: str, schema: Any, *, is_strict: bool) -> Iterator[str]:
    start = f"Invalid schema for function '{name}': "
    if not isinstance(schema, dict) or (schema and schema.get("type") != "object" and "$ref" not in schema):
        kind = schema.get("type") if isinstance(schema, dict) else None
        yield f"{start}schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
        return
    for path, problem in schema_problems(schema):
        yield f"{start}In context={path}, {problem}."
    if is_strict and schema.get("additionalProperties") is not False:
        yield f"{start}In context=(), 'additionalProperties' is required to be supplied and to be false."
    elif is_strict and set(schema.get("required") or ()) != set(schema.get("properties") or ()):
        yield f"{start}In context=(), 'required' is required to be supplied and to be an array including every key in properties."


def _check_reasoning(body: dict[str, Any], issued: IssuedSignatures | None) -> Iterator[str]:
    for index, message in enumerate(body["messages"]):
        reasoning = message.get("reasoning_content")
        if issued is not None and reasoning and reasoning not in issued.signatures.values():
            yield f"Unrecognized request argument supplied: messages[{index}].reasoning_content"


# --- replies ---------------------------------------------------------------------------------------------------------


def refusal(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error response."""
    kinds = {429: ("rate_limit_error", "rate_limit_exceeded"), 401: ("invalid_request_error", "invalid_api_key")}
    kind, code = kinds.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def is_streamed(path: str, body: dict[str, Any]) -> bool:
    """Return whether the request asks for a stream."""
    return body.get("stream") is True


def model_of(path: str, body: dict[str, Any]) -> str:
    """Return the model of a request."""
    return str(body.get("model", ""))


def write_reply(parts: list[Part], model: str, issued: IssuedSignatures) -> dict[str, Any]:
    """Return a reply that is not streamed."""
    seed = issued.next_answer()
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    for index, part in enumerate(parts):
        match part:
            case TextPart(text):
                message["content"] = (message["content"] or "") + text
            case ThinkingPart(text):
                message["reasoning_content"] = message.get("reasoning_content", "") + text
            case CallPart(name, value):
                function = {"name": name, "arguments": json_text(value)}
                call = {"id": derive_id("call_", 24, seed, str(index)), "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
    if "reasoning_content" in message:
        issued.sign(message["reasoning_content"], seed)
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
    }
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    name = derive_id("chatcmpl-", 29, seed)
    return {
        "id": name,
        "object": "chat.completion",
        "created": 1767268800,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def write_stream(parts: list[Part], model: str, issued: IssuedSignatures) -> list[bytes]:
    """Return the chunks of a streamed reply, with usage at the end."""
    answer = write_reply(parts, model, issued)
    message, reason = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas.extend({"reasoning_content": piece} for piece in _pieces(message.get("reasoning_content")))
    deltas.extend({"content": piece} for piece in _pieces(message["content"]))
    for index, call in enumerate(message.get("tool_calls", ())):
        function = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]})
        for piece in split_text(call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    top = {"id": answer["id"], "object": "chat.completion.chunk", "created": answer["created"], "model": model}
    chunks = [{**top, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**top, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({**top, "choices": [], "usage": answer["usage"]})
    return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]


def _pieces(text: str | None) -> list[str]:
    return split_text(text) if text else []
