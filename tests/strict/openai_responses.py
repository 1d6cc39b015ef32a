"""A strict Responses API: it rejects what OpenAI rejects, with the same error texts.

Sources: the API reference and its OpenAPI description (2026), errors in recorded traffic, and error texts in public
issues. References to earlier items (``previous_response_id``, ``item_reference``) are accepted unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tests.strict.rules import rule_problems
from tests.strict.script import Call, Issued, Part, Say, Think, json_text, made_id, pieces_of
from tests.strict.shape import TOOL_NAME, data_url, decoded, looks_like, schema_problems, unknown_keys

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
_BEGINNINGS: Final = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_PARTS: Final = {"assistant": ("output_text", "refusal")}
_IN: Final = ("input_text", "input_image", "input_file", "input_audio")
_PICTURES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAX_ID: Final = 64
Item = dict[str, Any]


def refusals(body: Any, issued: Issued | None = None, model: str = "", provider: str = "") -> list[str]:
    """Why the API would refuse the request. Without ``issued`` any reasoning is taken for its own."""
    is_openai = provider in _OPENAI
    wrong = list(_of_shape(body, is_openai=is_openai))
    if wrong:
        return wrong
    items = body["input"] if isinstance(body.get("input"), list) else []
    found = [*_of_pairs(body, items), *_of_tools(body)]
    if not is_openai:
        return found
    values = rule_problems(NAME, body, str(body.get("model")))
    return [*found, *_of_ids(items), *_of_reasoning(body, items, issued), *values]


def _of_shape(body: Any, *, is_openai: bool) -> Iterator[str]:
    if not isinstance(body, dict):
        yield "We could not parse the JSON body of your request."
        return
    if is_openai:
        yield from (f"Unknown parameter: '{key}'." for key in unknown_keys(body, _TOP))
    given = body.get("input")
    if given is None:
        if not (body.get("prompt") or body.get("previous_response_id") or body.get("conversation")):
            yield "Missing required parameter: 'input'."
        return
    if isinstance(given, str):
        return
    if not isinstance(given, list):
        yield "Invalid type for 'input': expected one of a string or array of input items, but got an object instead."
        return
    for index, item in enumerate(given):
        yield from _of_item(item, f"input[{index}]", is_openai=is_openai)


def _of_item(item: Any, where: str, *, is_openai: bool) -> Iterator[str]:
    kind = _kind(item) if isinstance(item, dict) else None
    if kind is None:
        yield f"Invalid type for '{where}': expected an input item, but got {type(item).__name__} instead."
        return
    if kind in _KEYS and is_openai:
        yield from (f"Unknown parameter: '{where}.{key}'." for key in unknown_keys(item, _KEYS[kind]))
    match kind:
        case "message":
            yield from _of_message(item, where)
        case "function_call":
            yield from _of_call(item, where)
        case "function_call_output":
            yield from _of_output(item, where)
        case "reasoning" if not isinstance(item.get("summary"), list):
            yield f"Missing required parameter: '{where}.summary'."
        case _:
            return


def _kind(item: Item) -> str | None:
    return str(item["type"]) if "type" in item else "message" if "role" in item else None


def _of_message(item: Item, where: str) -> Iterator[str]:
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
        yield from _of_part(part, _PARTS.get(role, _IN), f"{where}.content[{index}]")


def _of_part(part: Any, allowed: tuple[str, ...], where: str) -> Iterator[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in allowed:
        yield f"Invalid value: '{kind}'. Supported values are: {', '.join(repr(name) for name in allowed)}. ({where})"
        return
    match part:
        case {"type": "input_text" | "output_text"} if not isinstance(part.get("text"), str):
            yield f"Missing required parameter: '{where}.text'."
        case {"type": "input_image"} if part.get("file_id") is None:
            yield from _of_picture(part.get("image_url"), where)
        case {"type": "input_file", "file_data": str(text)}:
            found = data_url(text)
            if found is None or decoded(found[1]) is None:
                yield f"Invalid file data: '{where}.file_data'. Expected a base64-encoded data URL with a valid file MIME type"
            elif "filename" not in part:
                yield f"Missing required parameter: '{where}.filename'."
        case _:
            return


def _of_picture(url: Any, where: str) -> Iterator[str]:
    if not isinstance(url, str):
        yield f"Missing required parameter: '{where}.image_url'."
        return
    if not url.startswith("data:"):
        if not url.startswith(("https://", "http://")):
            yield f"Invalid '{where}.image_url'. Expected a valid URL, but got a value with an invalid format."
        return
    found = data_url(url)
    data = decoded(found[1]) if found else None
    if data is None:
        yield f"Invalid '{where}.image_url'. Expected a base64-encoded data URL with an image MIME type, but got invalid base64."
    elif looks_like(data) not in _PICTURES:
        yield "The image data you provided does not represent a valid image. Please check your input and try again."


def _of_call(item: Item, where: str) -> Iterator[str]:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not call_id:
        yield f"Missing required parameter: '{where}.call_id'."
    elif len(call_id) > _MAX_ID:
        yield f"Invalid '{where}.call_id': string too long. Expected a string with maximum length {_MAX_ID}, but got a string with length {len(call_id)} instead."
    if not TOOL_NAME.fullmatch(str(item.get("name", ""))):
        yield f"Invalid '{where}.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
    if not isinstance(item.get("arguments"), str):
        yield f"Invalid type for '{where}.arguments': expected a string, but got an object instead."


def _of_output(item: Item, where: str) -> Iterator[str]:
    output = item.get("output")
    if not isinstance(item.get("call_id"), str):
        yield f"Missing required parameter: '{where}.call_id'."
    if isinstance(output, list):
        for index, part in enumerate(output):
            yield from _of_part(part, _IN, f"{where}.output[{index}]")
    elif not isinstance(output, str):
        yield f"Missing required parameter: '{where}.output'."


# --- pairs, ids and reasoning ----------------------------------------------------------------------------------------


def _of_pairs(body: dict[str, Any], items: list[Item]) -> Iterator[str]:
    """Each call has one output and each output one call, wherever they stand behind each other."""
    on_trust = any(body.get(key) for key in ("previous_response_id", "conversation", "prompt")) or any(
        _kind(item) == "item_reference" for item in items
    )
    called: list[str] = []
    answered: list[str] = []
    for item in items:
        if _kind(item) == "function_call_output":
            if item["call_id"] not in called and not on_trust:
                yield f"No tool call found for function call output with call_id {item['call_id']}."
            if item["call_id"] in answered and called.count(item["call_id"]) <= answered.count(item["call_id"]):
                yield f"Duplicate function call output found for call_id {item['call_id']}."
            answered.append(item["call_id"])
        elif str(_kind(item)).endswith("_call") and isinstance(item.get("call_id"), str):
            called.append(item["call_id"])
    ours = [item["call_id"] for item in items if _kind(item) == "function_call"]
    for call_id in ours:
        if call_id not in answered and not on_trust:
            yield f"No tool output found for function call {call_id}."


def _of_ids(items: list[Item]) -> Iterator[str]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        name, kind = item.get("id"), str(_kind(item))
        if not isinstance(name, str) or kind == "item_reference":
            continue
        beginning = _BEGINNINGS.get(kind)
        if beginning and not name.startswith(beginning):
            yield f"Invalid 'input[{index}].id': '{name}'. Expected an ID that begins with '{beginning}'."
        if len(name) > _MAX_ID:
            yield f"Invalid 'input[{index}].id': string too long. Expected a string with maximum length {_MAX_ID}, but got a string with length {len(name)} instead."
        if name in seen:
            yield f"Duplicate item found with id {name}. Remove duplicate items from your input and try again."
        seen.add(name)


def _of_reasoning(body: dict[str, Any], items: list[Item], issued: Issued | None) -> Iterator[str]:
    for index, item in enumerate(items):
        if _kind(item) != "reasoning":
            continue
        following = items[index + 1] if index + 1 < len(items) else {}
        spoke = _kind(following) if following else None
        is_stored = "id" in item and body.get("store") is not False  # then what it led to is recognised by its id
        if (
            spoke is None
            or (is_stored and "id" not in following)
            or spoke == "function_call_output"
            or following.get("role") in ("user", "system", "developer")
            or (issued and issued.beside.get(str(following.get("id")), item.get("id")) != item.get("id"))
        ):
            yield f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
        if issued is not None:
            yield from _of_origin(item, body, issued)
    here = {item.get("id") for item in items}
    for item in items:
        beside = issued.beside.get(str(item.get("id"))) if issued is not None else None
        if beside is not None and beside not in here:
            yield f"Item '{item['id']}' of type '{_kind(item)}' was provided without its required 'reasoning' item: '{beside}'."


def _of_origin(item: Item, body: dict[str, Any], issued: Issued) -> Iterator[str]:
    name, sealed = item.get("id"), item.get("encrypted_content")
    if sealed is None:
        if body.get("store") is False or f"item:{name}" not in issued.signatures.values():
            yield f"Item with id '{name}' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input."
    elif not issued.fits(sealed, f"item:{name}"):
        yield f"The encrypted content for item {name} could not be verified. Reason: Encrypted content could not be decrypted or parsed."


def _of_tools(body: dict[str, Any]) -> Iterator[str]:
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


# --- what it answers -------------------------------------------------------------------------------------------------


def refusal(status: int, message: str) -> dict[str, Any]:
    """An error as this API says it."""
    kinds = {429: ("rate_limit_error", "rate_limit_exceeded"), 401: ("invalid_request_error", "invalid_api_key")}
    kind, code = kinds.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    return {"error": {"message": message, "type": kind, "param": "input" if status == 400 else None, "code": code}}


def is_streamed(path: str, body: dict[str, Any]) -> bool:
    """Whether the answer is to be streamed."""
    return body.get("stream") is True


def model_of(path: str, body: dict[str, Any]) -> str:
    """The model that is asked."""
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


def whole(parts: list[Part], model: str, issued: Issued) -> dict[str, Any]:
    """The answer at once. Its reasoning can be read by nobody but this fake."""
    seed = issued.next_answer()
    output: list[Item] = []
    for index, part in enumerate(parts):
        output.append(_item(part, seed, str(index), issued))
        if len(output) > 1 and output[-2]["type"] == "reasoning":
            issued.beside[output[-1]["id"]] = output[-2]["id"]
    return {
        "id": made_id("resp_", 48, seed),
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


def _item(part: Part, seed: str, index: str, issued: Issued) -> Item:
    match part:
        case Say(text):
            content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
            name = made_id("msg_", 48, seed, index)
            return {"type": "message", "id": name, "status": "completed", "role": "assistant", "content": content}
        case Call(name, value):
            made = {"call_id": made_id("call_", 24, seed, index), "name": name, "arguments": json_text(value)}
            return {"type": "function_call", "id": made_id("fc_", 48, seed, index), "status": "completed", **made}
        case Think(text):
            name = made_id("rs_", 48, seed, index)
            sealed = issued.sign(f"item:{name}", seed, index)
            summary = [{"type": "summary_text", "text": text}]
            return {"type": "reasoning", "id": name, "summary": summary, "encrypted_content": sealed}


def streamed(parts: list[Part], model: str, issued: Issued) -> list[bytes]:
    """The same answer in pieces."""
    answer = whole(parts, model, issued)
    begun = {**answer, "status": "in_progress", "completed_at": None, "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(answer["output"]):
        events.extend({**event, "output_index": index} for event in _item_events(item))
    events.append({"type": "response.completed", "response": answer})
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return [f"event: {event['type']}\ndata: {json_text(event)}\n\n".encode() for event in numbered]


def _item_events(item: Item) -> Iterator[dict[str, Any]]:
    about = {"item_id": item["id"]}
    match item:
        case {"type": "message", "content": [{"text": text} as part]}:
            yield {"type": "response.output_item.added", "item": {**item, "content": [], "status": "in_progress"}}
            at = {**about, "content_index": 0}
            yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
            for piece in pieces_of(text):
                yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **at, "text": text, "logprobs": []}
            yield {"type": "response.content_part.done", **at, "part": part}
        case {"type": "function_call", "arguments": arguments, "name": name}:
            yield {"type": "response.output_item.added", "item": {**item, "arguments": "", "status": "in_progress"}}
            for piece in pieces_of(arguments):
                yield {"type": "response.function_call_arguments.delta", **about, "delta": piece}
            yield {"type": "response.function_call_arguments.done", **about, "arguments": arguments, "name": name}
        case {"summary": [{"text": text} as part]}:
            yield {"type": "response.output_item.added", "item": {**item, "summary": []}}
            at = {**about, "summary_index": 0}
            yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
            for piece in pieces_of(text):
                yield {"type": "response.reasoning_summary_text.delta", **at, "delta": piece}
            yield {"type": "response.reasoning_summary_text.done", **at, "text": text}
            yield {"type": "response.reasoning_summary_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "item": item}
