"""A strict Responses API: it rejects what OpenAI rejects, with the same error texts.

Sources: the API reference and its OpenAPI description (2026), errors in recorded traffic, and error texts in public
issues. References to earlier items (``previous_response_id``, ``item_reference``) are accepted unchecked.
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
from tests.fake_providers.shape import (
    TOOL_NAME,
    data_url,
    decode_base64,
    detect_media_type,
    schema_problems,
    unknown_keys,
)

NAME: Final = "openai_responses"
MODEL: Final = "openai:gpt-5"
BASE_PATH: Final = "/v1"
PATH: Final = re.compile(r"/v1/responses")
KEY_HEADERS: Final = ("authorization",)
STREAM_TYPE: Final = "text/event-stream"

_OPENAI: Final = ("", "openai-responses", "azure-openai-responses")
_TOP: Final = frozenset(
    [
        "model",
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "stream",
        "stream_options",
        "store",
        "include",
        "max_output_tokens",
        "max_tool_calls",
        "reasoning",
        "temperature",
        "top_p",
        "top_logprobs",
        "text",
        "parallel_tool_calls",
        "previous_response_id",
        "conversation",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
        "metadata",
        "truncation",
        "service_tier",
        "background",
        "context_management",
        "moderation",
    ]
)
_KEYS: Final = {
    "message": ("type", "role", "content", "id", "status", "phase"),
    "function_call": ("type", "call_id", "name", "arguments", "id", "status", "namespace", "caller"),
    "function_call_output": ("type", "call_id", "output", "id", "status", "caller"),
    "reasoning": ("type", "summary", "content", "encrypted_content", "id", "status"),
}
_ID_PREFIXES: Final = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_PARTS: Final = {"assistant": ("output_text", "refusal")}
_IN: Final = ("input_text", "input_image", "input_file", "input_audio")
_IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAX_ID: Final = 64
Item = dict[str, Any]


def refusals(body: Any, issued: IssuedSignatures | None = None, model: str = "", provider: str = "") -> list[str]:
    """Return the reasons why the API rejects a request. Without ``issued``, any reasoning is accepted."""
    is_openai = provider in _OPENAI
    problems = list(_check_shape(body, is_openai=is_openai))
    if problems:
        return problems
    items = body["input"] if isinstance(body.get("input"), list) else []
    found = [*_check_pairs(body, items), *_check_tools(body)]
    if not is_openai:
        return found
    values = rule_problems(NAME, body, str(body.get("model")))
    return [*found, *_check_ids(items), *_check_reasoning(body, items, issued), *values]


def _check_shape(body: Any, *, is_openai: bool) -> Iterator[str]:
    if not isinstance(body, dict):
        yield "We could not parse the JSON body of your request."
        return
    if is_openai:
        yield from (f"Unknown parameter: '{key}'." for key in unknown_keys(body, _TOP))
    input_value = body.get("input")
    if input_value is None:
        if not (body.get("prompt") or body.get("previous_response_id") or body.get("conversation")):
            yield "Missing required parameter: 'input'."
        return
    if isinstance(input_value, str):
        return
    if not isinstance(input_value, list):
        yield "Invalid type for 'input': expected one of a string or array of input items, but got an object instead."
        return
    for index, item in enumerate(input_value):
        yield from _check_item(item, f"input[{index}]", is_openai=is_openai)


def _check_item(item: Any, where: str, *, is_openai: bool) -> Iterator[str]:
    kind = _kind(item) if isinstance(item, dict) else None
    if kind is None:
        yield f"Invalid type for '{where}': expected an input item, but got {type(item).__name__} instead."
        return
    if kind in _KEYS and is_openai:
        yield from (f"Unknown parameter: '{where}.{key}'." for key in unknown_keys(item, _KEYS[kind]))
    match kind:
        case "message":
            yield from _check_message(item, where)
        case "function_call":
            yield from _check_call(item, where)
        case "function_call_output":
            yield from _check_output(item, where)
        case "reasoning" if not isinstance(item.get("summary"), list):
            yield f"Missing required parameter: '{where}.summary'."
        case _:
            return


def _kind(item: Item) -> str | None:
    return str(item["type"]) if "type" in item else "message" if "role" in item else None


def _check_message(item: Item, where: str) -> Iterator[str]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        yield f"Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', and 'user'."
        return
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        yield f"Missing required parameter: '{where}.content'."
        return
    for index, part in enumerate(content):
        yield from _check_part(part, _PARTS.get(role, _IN), f"{where}.content[{index}]")


def _check_part(part: Any, allowed: tuple[str, ...], where: str) -> Iterator[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in allowed:
        yield f"Invalid value: '{kind}'. Supported values are: {', '.join(repr(name) for name in allowed)}. ({where})"
        return
    match part:
        case {"type": "input_text" | "output_text"} if not isinstance(part.get("text"), str):
            yield f"Missing required parameter: '{where}.text'."
        case {"type": "input_image"} if part.get("file_id") is None:
            yield from _check_image(part.get("image_url"), where)
        case {"type": "input_file", "file_data": str(text)}:
            found = data_url(text)
            if found is None or decode_base64(found[1]) is None:
                yield f"Invalid file data: '{where}.file_data'. Expected a base64-encoded data URL with a valid file MIME type"
            elif "filename" not in part:
                yield f"Missing required parameter: '{where}.filename'."
        case _:
            return


def _check_image(url: Any, where: str) -> Iterator[str]:
    if not isinstance(url, str):
        yield f"Missing required parameter: '{where}.image_url'."
        return
    if not url.startswith("data:"):
        if not url.startswith(("https://", "http://")):
            yield f"Invalid '{where}.image_url'. Expected a valid URL, but got a value with an invalid format."
        return
    found = data_url(url)
    data = decode_base64(found[1]) if found else None
    if data is None:
        yield f"Invalid '{where}.image_url'. Expected a base64-encoded data URL with an image MIME type, but got invalid base64."
    elif detect_media_type(data) not in _IMAGE_TYPES:
        yield "The image data you provided does not represent a valid image. Please check your input and try again."


def _check_call(item: Item, where: str) -> Iterator[str]:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not call_id:
        yield f"Missing required parameter: '{where}.call_id'."
    elif len(call_id) > _MAX_ID:
        yield f"Invalid '{where}.call_id': string too long. Expected a string with maximum length {_MAX_ID}, but got a string with length {len(call_id)} instead."
    if not TOOL_NAME.fullmatch(str(item.get("name", ""))):
        yield f"Invalid '{where}.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
    if not isinstance(item.get("arguments"), str):
        yield f"Invalid type for '{where}.arguments': expected a string, but got an object instead."


def _check_output(item: Item, where: str) -> Iterator[str]:
    output = item.get("output")
    if not isinstance(item.get("call_id"), str):
        yield f"Missing required parameter: '{where}.call_id'."
    if isinstance(output, list):
        for index, part in enumerate(output):
            yield from _check_part(part, _IN, f"{where}.output[{index}]")
    elif not isinstance(output, str):
        yield f"Missing required parameter: '{where}.output'."


# --- pairs, ids and reasoning ----------------------------------------------------------------------------------------


def _check_pairs(body: dict[str, Any], items: list[Item]) -> Iterator[str]:
    """Each call has one output and each output one call. Other items may be between them."""
    is_unchecked = any(body.get(key) for key in ("previous_response_id", "conversation", "prompt")) or any(
        _kind(item) == "item_reference" for item in items
    )
    called: list[str] = []
    answered: list[str] = []
    for item in items:
        if _kind(item) == "function_call_output":
            if item["call_id"] not in called and not is_unchecked:
                yield f"No tool call found for function call output with call_id {item['call_id']}."
            if item["call_id"] in answered and called.count(item["call_id"]) <= answered.count(item["call_id"]):
                yield f"Duplicate function call output found for call_id {item['call_id']}."
            answered.append(item["call_id"])
        elif str(_kind(item)).endswith("_call") and isinstance(item.get("call_id"), str):
            called.append(item["call_id"])
    function_calls = [item["call_id"] for item in items if _kind(item) == "function_call"]
    for call_id in function_calls:
        if call_id not in answered and not is_unchecked:
            yield f"No tool output found for function call {call_id}."


def _check_ids(items: list[Item]) -> Iterator[str]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        name, kind = item.get("id"), str(_kind(item))
        if not isinstance(name, str) or kind == "item_reference":
            continue
        prefix = _ID_PREFIXES.get(kind)
        if prefix and not name.startswith(prefix):
            yield f"Invalid 'input[{index}].id': '{name}'. Expected an ID that begins with '{prefix}'."
        if len(name) > _MAX_ID:
            yield f"Invalid 'input[{index}].id': string too long. Expected a string with maximum length {_MAX_ID}, but got a string with length {len(name)} instead."
        if name in seen:
            yield f"Duplicate item found with id {name}. Remove duplicate items from your input and try again."
        seen.add(name)


def _check_reasoning(body: dict[str, Any], items: list[Item], issued: IssuedSignatures | None) -> Iterator[str]:
    for index, item in enumerate(items):
        if _kind(item) != "reasoning":
            continue
        following = items[index + 1] if index + 1 < len(items) else {}
        next_kind = _kind(following) if following else None
        is_stored = "id" in item and body.get("store") is not False  # then the next item is identified by its id
        if (
            next_kind is None
            or (is_stored and "id" not in following)
            or next_kind == "function_call_output"
            or following.get("role") in ("user", "system", "developer")
            or (issued and issued.reasoning_ids.get(str(following.get("id")), item.get("id")) != item.get("id"))
        ):
            yield f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
        if issued is not None:
            yield from _check_origin(item, body, issued)
    item_ids = {item.get("id") for item in items}
    for item in items:
        reasoning_id = issued.reasoning_ids.get(str(item.get("id"))) if issued is not None else None
        if reasoning_id is not None and reasoning_id not in item_ids:
            yield f"Item '{item['id']}' of type '{_kind(item)}' was provided without its required 'reasoning' item: '{reasoning_id}'."


def _check_origin(item: Item, body: dict[str, Any], issued: IssuedSignatures) -> Iterator[str]:
    name, encrypted = item.get("id"), item.get("encrypted_content")
    if encrypted is None:
        if body.get("store") is False or f"item:{name}" not in issued.signatures.values():
            yield f"Item with id '{name}' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input."
    elif not issued.covers(encrypted, f"item:{name}"):
        yield f"The encrypted content for item {name} could not be verified. Reason: Encrypted content could not be decrypted or parsed."


def _check_tools(body: dict[str, Any]) -> Iterator[str]:
    for index, tool in enumerate(body.get("tools") or ()):
        if tool.get("type") != "function":
            continue
        name, schema = tool.get("name", ""), tool.get("parameters")
        if not TOOL_NAME.fullmatch(str(name)):
            yield f"Invalid 'tools[{index}].name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        start = f"Invalid schema for function '{name}': "
        if schema is not None and (not isinstance(schema, dict) or (schema and schema.get("type") != "object")):
            kind = schema.get("type") if isinstance(schema, dict) else None
            yield f"{start}schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
            continue
        yield from (f"{start}In context={path}, {problem}." for path, problem in schema_problems(schema or {}))
        if tool.get("strict") is True and (schema or {}).get("additionalProperties") is not False:
            yield f"{start}In context=(), 'additionalProperties' is required to be supplied and to be false."


# --- replies ---------------------------------------------------------------------------------------------------------


def refusal(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error response."""
    kinds = {429: ("rate_limit_error", "rate_limit_exceeded"), 401: ("invalid_request_error", "invalid_api_key")}
    kind, code = kinds.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    return {"error": {"message": message, "type": kind, "param": "input" if status == 400 else None, "code": code}}


def is_streamed(path: str, body: dict[str, Any]) -> bool:
    """Return whether the request asks for a stream."""
    return body.get("stream") is True


def model_of(path: str, body: dict[str, Any]) -> str:
    """Return the model of a request."""
    return str(body.get("model", ""))


_ECHO = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
}


def write_reply(parts: list[Part], model: str, issued: IssuedSignatures) -> dict[str, Any]:
    """Return a reply that is not streamed. Only this fake can decrypt its reasoning."""
    seed = issued.next_answer()
    output: list[Item] = []
    for index, part in enumerate(parts):
        output.append(_item(part, seed, str(index), issued))
        if len(output) > 1 and output[-2]["type"] == "reasoning":
            issued.reasoning_ids[output[-1]["id"]] = output[-2]["id"]
    return {
        "id": derive_id("resp_", 48, seed),
        "object": "response",
        "created_at": 1767268800,
        "completed_at": 1767268801,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": output,
        **_ECHO,
        "usage": {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 18,
        },
    }


def _item(part: Part, seed: str, index: str, issued: IssuedSignatures) -> Item:
    match part:
        case TextPart(text):
            content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
            name = derive_id("msg_", 48, seed, index)
            return {"type": "message", "id": name, "status": "completed", "role": "assistant", "content": content}
        case CallPart(name, value):
            call = {"call_id": derive_id("call_", 24, seed, index), "name": name, "arguments": json_text(value)}
            return {"type": "function_call", "id": derive_id("fc_", 48, seed, index), "status": "completed", **call}
        case ThinkingPart(text):
            name = derive_id("rs_", 48, seed, index)
            encrypted = issued.sign(f"item:{name}", seed, index)
            summary = [{"type": "summary_text", "text": text}]
            return {"type": "reasoning", "id": name, "summary": summary, "encrypted_content": encrypted}


def write_stream(parts: list[Part], model: str, issued: IssuedSignatures) -> list[bytes]:
    """Return the chunks of a streamed reply."""
    answer = write_reply(parts, model, issued)
    start = {**answer, "status": "in_progress", "completed_at": None, "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": start},
        {"type": "response.in_progress", "response": start},
    ]
    for index, item in enumerate(answer["output"]):
        events.extend({**event, "output_index": index} for event in _item_events(item))
    events.append({"type": "response.completed", "response": answer})
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return [f"event: {event['type']}\ndata: {json_text(event)}\n\n".encode() for event in numbered]


def _item_events(item: Item) -> Iterator[dict[str, Any]]:
    item_id = {"item_id": item["id"]}
    match item:
        case {"type": "message", "content": [{"text": text} as part]}:
            yield {"type": "response.output_item.added", "item": {**item, "content": [], "status": "in_progress"}}
            at = {**item_id, "content_index": 0}
            yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
            for piece in split_text(text):
                yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **at, "text": text, "logprobs": []}
            yield {"type": "response.content_part.done", **at, "part": part}
        case {"type": "function_call", "arguments": arguments, "name": name}:
            yield {"type": "response.output_item.added", "item": {**item, "arguments": "", "status": "in_progress"}}
            for piece in split_text(arguments):
                yield {"type": "response.function_call_arguments.delta", **item_id, "delta": piece}
            yield {"type": "response.function_call_arguments.done", **item_id, "arguments": arguments, "name": name}
        case {"summary": [{"text": text} as part]}:
            yield {"type": "response.output_item.added", "item": {**item, "summary": []}}
            at = {**item_id, "summary_index": 0}
            yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
            for piece in split_text(text):
                yield {"type": "response.reasoning_summary_text.delta", **at, "delta": piece}
            yield {"type": "response.reasoning_summary_text.done", **at, "text": text}
            yield {"type": "response.reasoning_summary_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "item": item}
