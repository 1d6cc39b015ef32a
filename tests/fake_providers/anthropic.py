"""A strict Messages API: it rejects what Anthropic rejects, with the same error texts.

Sources: the API reference and the guides on tool use, vision and extended thinking (2026), and error texts in public
issues. Consecutive messages of one role are one turn.
"""

from __future__ import annotations

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
from tests.fake_providers.shape import PLAIN_ID, decode_base64, detect_media_type, schema_problems, unknown_keys

NAME: Final = "anthropic"
MODEL: Final = "anthropic:claude-sonnet-4-6"
BASE_PATH: Final = ""
PATH: Final = re.compile(r"/v1/messages")
KEY_HEADERS: Final = ("x-api-key", "authorization")
STREAM_TYPE: Final = "text/event-stream"

_TOP: Final = frozenset(
    [
        "model",
        "messages",
        "max_tokens",
        "system",
        "tools",
        "tool_choice",
        "stream",
        "stop_sequences",
        "temperature",
        "top_p",
        "top_k",
        "metadata",
        "thinking",
        "output_config",
        "output_format",
        "cache_control",
        "mcp_servers",
        "service_tier",
        "context_management",
        "container",
        "inference_geo",
        "betas",
    ]
)
_KEYS: Final = {  # required and optional keys of the blocks that a client writes
    "text": (("text",), ("citations", "cache_control")),
    "image": (("source",), ("cache_control",)),
    "document": (("source",), ("title", "context", "citations", "cache_control")),
    "tool_use": (("id", "name", "input"), ("cache_control", "caller")),
    "tool_result": (("tool_use_id",), ("content", "is_error", "cache_control")),
    "thinking": (("thinking", "signature"), ()),
    "redacted_thinking": (("data",), ()),
}
_IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_RESULT_BLOCKS: Final = ("text", "image", "document", "search_result", "tool_reference")
_THINKING: Final = ("thinking", "redacted_thinking")
_MAX_IMAGE: Final = 5 * 1024 * 1024
_NO_PREFILL: Final = re.compile(r"-[a-z]+-(?:4-[6-9]|[5-9])(?:-|$)")  # models without support for prefill
_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def refusals(body: Any, issued: IssuedSignatures | None = None, model: str = "") -> list[str]:
    """Return the reasons why the API rejects a request. Without ``issued``, any signature is accepted."""
    problems = list(_check_shape(body))
    if problems:
        return problems
    values = rule_problems(NAME, body, str(body["model"]))
    return [
        *_check_turns(body["messages"], str(body["model"])),
        *_check_thinking(body, issued),
        *_check_options(body),
        *values,
    ]


def _check_shape(body: Any) -> Iterator[str]:
    if not isinstance(body, dict):
        yield "Input should be a valid dictionary"
        return
    yield from (f"{key}: Extra inputs are not permitted" for key in unknown_keys(body, _TOP))
    yield from (f"{key}: Field required" for key in ("model", "messages", "max_tokens") if key not in body)
    if type(body.get("max_tokens", 1)) is not int or body.get("max_tokens", 1) < 1:
        yield "max_tokens: Input should be greater than or equal to 1"
    system = body.get("system", "")
    if isinstance(system, list):
        for index, block in enumerate(system):
            yield from _check_block(block, f"system.{index}", ("text",))
    elif not isinstance(system, str):
        yield "system: Input should be a valid array"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "messages: at least one message is required"
        return
    for index, message in enumerate(messages):
        yield from _check_message(message, f"messages.{index}", is_last=index == len(messages) - 1)


def _check_message(message: Any, where: str, *, is_last: bool) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"{where}: Input does not match the expected shape."
        return
    yield from (f"{where}.{key}: Extra inputs are not permitted" for key in unknown_keys(message, ("role", "content")))
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        yield f"{where}.role: Input should be 'user' or 'assistant'"
    if not isinstance(content, str | list):
        yield f"{where}.content: Input should be a valid list"
        return
    if not content and not (is_last and role == "assistant"):
        yield f"{where}: all messages must have non-empty content except for the optional final assistant message"
    if isinstance(content, str):
        if content and not content.strip():
            yield "messages: text content blocks must contain non-whitespace text"
        return
    kinds = {
        "user": ("text", "image", "document", "tool_result", "search_result", "container_upload"),
        "system": ("text", "tool_addition"),
    }
    for index, block in enumerate(content):
        yield from _check_block(block, f"{where}.content.{index}", kinds.get(str(role)))


def _check_block(block: Any, where: str, kinds: tuple[str, ...] | None) -> Iterator[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        yield f"{where}.type: Field required"
        return
    if (kinds is not None and kind not in kinds) or (kinds is None and kind in ("image", "document", "tool_result")):
        yield f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
        return
    if kind not in _KEYS:
        return  # a block of a server tool, whose keys are not published
    required, optional = _KEYS[kind]
    yield from (f"{where}.{kind}.{key}: Field required" for key in required if key not in block)
    for key in unknown_keys(block, ("type", *required, *optional)):
        yield f"{where}.{kind}.{key}: Extra inputs are not permitted"
    if all(key in block for key in required):
        yield from _check_content(block, kind, where)


def _check_content(block: dict[str, Any], kind: str, where: str) -> Iterator[str]:
    match kind:
        case "text" if not isinstance(block["text"], str):
            yield f"{where}.text.text: Input should be a valid string"
        case "text" if not block["text"]:
            yield "messages: text content blocks must be non-empty"
        case "text" if not block["text"].strip():
            yield "messages: text content blocks must contain non-whitespace text"
        case "image" | "document":
            yield from _check_source(block["source"], kind, f"{where}.{kind}.source")
        case "tool_use":
            yield from _check_call(block, where)
        case "tool_result":
            content = block.get("content", "")
            if not PLAIN_ID.fullmatch(str(block["tool_use_id"])):
                yield f"{where}.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            for index, inner in enumerate(content if isinstance(content, list) else ()):
                yield from _check_block(inner, f"{where}.tool_result.content.{index}", _RESULT_BLOCKS)
        case _:
            return


def _check_call(block: dict[str, Any], where: str) -> Iterator[str]:
    if not PLAIN_ID.fullmatch(str(block["id"])):
        yield f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if not _TOOL_NAME.fullmatch(str(block["name"])):
        yield f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
    if not isinstance(block["input"], dict):
        yield f"{where}.tool_use.input: Input should be a valid dictionary"


def _check_source(source: Any, kind: str, where: str) -> Iterator[str]:
    match source:
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            allowed = _IMAGE_TYPES if kind == "image" else ("application/pdf",)
            found = decode_base64(data)
            if media_type not in allowed:
                expected = " or ".join(f"'{name}'" for name in allowed)
                yield f"{where}.base64.media_type: Input should be {expected}"
            elif found is None:
                yield f"{where}.base64: invalid base64 data"
            elif kind == "image" and detect_media_type(found) is None:
                yield "Could not process image"
            elif detect_media_type(found) != media_type:
                yield f"{where}.base64.data: The image was specified using the {media_type} media type, but the image appears to be another"
            elif kind == "image" and len(found) > _MAX_IMAGE:
                yield f"{where}.base64: image exceeds 5 MB maximum: {len(found)} bytes > {_MAX_IMAGE} bytes"
        case {"type": "url", "url": str(url)} if not url.startswith(("https://", "http://")):
            yield f"{where}.url.url: Only HTTPS URLs are supported."
        case {"type": "text", "media_type": "text/plain", "data": str()} if kind == "document":
            return
        case {"type": "url", "url": str()} | {"type": "file", "file_id": str()} | {"type": "content"}:
            return
        case _:
            yield f"{where}: Input tag '{source.get('type') if isinstance(source, dict) else source}' does not match"


# --- turns -----------------------------------------------------------------------------------------------------------


def _turns(messages: list[dict[str, Any]]) -> list[tuple[int, str, list[dict[str, Any]]]]:
    """Return the first index, the role and the blocks of each turn."""
    turns: list[tuple[int, str, list[dict[str, Any]]]] = []
    for index, message in enumerate(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        if message["role"] == "system":
            continue
        if turns and turns[-1][1] == message["role"]:
            turns[-1][2].extend(blocks)
        else:
            turns.append((index, message["role"], blocks))
    return turns


def _check_turns(messages: list[dict[str, Any]], model: str) -> Iterator[str]:
    turns = _turns(messages)
    calls: list[str] = []
    for place, (index, role, blocks) in enumerate(turns):
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        yield from _check_results(blocks, results, calls, index)
        missing = [name for name in calls if name not in results]
        if missing:
            yield (
                f"messages.{turns[place - 1][0]}: `tool_use` ids were found without `tool_result` blocks immediately "
                f"after: {', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in "
                "the next message."
            )
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(calls)) != len(calls):
            yield f"messages.{index}: `tool_use` ids must be unique"
        if role == "assistant" and blocks and blocks[-1]["type"] in _THINKING:
            yield f"messages.{index}: The final block in an assistant message cannot be `{blocks[-1]['type']}`."
    if calls:
        yield f"messages.{turns[-1][0]}: `tool_use` ids were found without `tool_result` blocks immediately after"
    last = messages[-1]
    if last["role"] == "assistant" and _NO_PREFILL.search(model):
        yield "This model does not support assistant message prefill. The conversation must end with a user message."
    text = last["content"] if isinstance(last["content"], str) else (last["content"] or [{}])[-1].get("text", "")
    if last["role"] == "assistant" and text != text.rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"


def _check_results(blocks: list[dict[str, Any]], results: list[str], calls: list[str], index: int) -> Iterator[str]:
    for place, block in enumerate(blocks):
        if block["type"] == "tool_result" and block["tool_use_id"] not in calls:
            yield (
                f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` block in the "
                "previous message."
            )
    for name in sorted({name for name in results if results.count(name) > 1}):
        yield f"messages.{index}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {name}"
    kinds = [block["type"] for block in blocks]
    if calls and "tool_result" in kinds and any(kind != "tool_result" for kind in kinds[: len(results)]):
        yield f"messages.{index}: `tool_result` blocks must come first in the content of the message"


# --- thinking and options --------------------------------------------------------------------------------------------


def _check_thinking(body: dict[str, Any], issued: IssuedSignatures | None) -> Iterator[str]:
    for index, message in enumerate(body["messages"]):
        for place, block in enumerate(message["content"] if isinstance(message["content"], list) else ()):
            where = f"messages.{index}.content.{place}"
            if issued is None or block["type"] not in _THINKING:
                continue
            if block["type"] == "redacted_thinking":
                if not issued.has_issued(block["data"]):
                    yield f"{where}: Invalid `data` in `redacted_thinking` block"
            elif not issued.has_issued(block["signature"]):
                yield f"{where}: Invalid `signature` in `thinking` block"
            elif not issued.covers(block["signature"], block["thinking"]):
                yield (
                    f"{where}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
                    "modified. These blocks must remain as they were in the original response."
                )
    thinking = body.get("thinking") or {}
    if thinking.get("type") != "enabled":
        return
    if type(thinking.get("budget_tokens")) is not int:
        yield "thinking.enabled.budget_tokens: Field required"
    turns = _turns(body["messages"])
    last_reply = next((turn for turn in reversed(turns) if turn[1] == "assistant"), None)
    if last_reply and turns[-1][1] == "user" and any(block["type"] == "tool_result" for block in turns[-1][2]):
        first = last_reply[2][0]["type"]
        if first not in _THINKING:
            yield (
                f"messages.{last_reply[0]}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`. "
                "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
            )


def _check_options(body: dict[str, Any]) -> Iterator[str]:
    tools = body.get("tools") or []
    names = [tool.get("name") for tool in tools if isinstance(tool, dict)]
    if len({name for name in names if name}) != len([name for name in names if name]):
        yield "tools: Tool names must be unique."
    for index, tool in enumerate(tools):
        if tool.get("type", "custom") == "custom":
            yield from _check_tool(tool, f"tools.{index}.custom")
    choice = body.get("tool_choice")
    if choice and choice.get("type") == "tool" and choice.get("name") not in names:
        yield f"Tool '{choice.get('name')}' not found in provided tools"


def _check_tool(tool: dict[str, Any], where: str) -> Iterator[str]:
    schema = tool.get("input_schema")
    if not _TOOL_NAME.fullmatch(str(tool.get("name", ""))):
        yield f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
    if not isinstance(schema, dict) or "type" not in schema:
        yield f"{where}.input_schema.type: Field required"
        return
    if schema["type"] != "object":
        yield f"{where}.input_schema.type: Input should be 'object'"
    if {"oneOf", "allOf", "anyOf"} & set(schema):
        yield f"{where}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
    for path, problem in schema_problems(schema):
        if "missing items" not in problem:
            yield f"{where}.input_schema{'.'.join(('', *path))}: JSON schema is invalid ({problem})"


# --- replies ---------------------------------------------------------------------------------------------------------


def refusal(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error response."""
    kinds = {401: "authentication_error", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}
    error = {"type": kinds.get(status, "invalid_request_error"), "message": message}
    return {"type": "error", "error": error, "request_id": "req_011Fake"}


def is_streamed(path: str, body: dict[str, Any]) -> bool:
    """Return whether the request asks for a stream."""
    return body.get("stream") is True


def model_of(path: str, body: dict[str, Any]) -> str:
    """Return the model of a request."""
    return str(body["model"])


def write_reply(parts: list[Part], model: str, issued: IssuedSignatures) -> dict[str, Any]:
    """Return a reply that is not streamed."""
    seed = issued.next_answer()
    content = [_block(part, index, seed, issued) for index, part in enumerate(parts)]
    stop = "tool_use" if any(isinstance(part, CallPart) for part in parts) else "end_turn"
    return {
        "id": derive_id("msg_01", 22, seed),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }


def _block(part: Part, index: int, seed: str, issued: IssuedSignatures) -> dict[str, Any]:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case CallPart(name, value):
            return {"type": "tool_use", "id": derive_id("toolu_01", 22, seed, str(index)), "name": name, "input": value}
        case ThinkingPart(text):
            return {"type": "thinking", "thinking": text, "signature": issued.sign(text, seed, str(index))}


def write_stream(parts: list[Part], model: str, issued: IssuedSignatures) -> list[bytes]:
    """Return the chunks of a streamed reply."""
    message = write_reply(parts, model, issued)
    start = {**message, "content": [], "stop_reason": None, "usage": {"input_tokens": 11, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        events.extend({**event, "index": index} for event in _block_events(block))
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}})
    events.append({"type": "message_stop"})
    return [f"event: {event['type']}\ndata: {json_text(event)}\n\n".encode() for event in events]


def _block_events(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    empty = {"text": {"text": ""}, "tool_use": {"input": {}}, "thinking": {"thinking": "", "signature": ""}}
    yield {"type": "content_block_start", "content_block": {**block, **empty[block["type"]]}}
    match block:
        case {"type": "text", "text": text}:
            deltas = [{"type": "text_delta", "text": piece} for piece in split_text(text)]
        case {"type": "tool_use", "input": value}:
            deltas = [
                {"type": "input_json_delta", "partial_json": piece} for piece in ("", *split_text(json_text(value)))
            ]
        case {"thinking": text, "signature": signature}:
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in split_text(text)]
            deltas.append({"type": "signature_delta", "signature": signature})
        case _:
            deltas = []
    yield from ({"type": "content_block_delta", "delta": delta} for delta in deltas)
    yield {"type": "content_block_stop"}
