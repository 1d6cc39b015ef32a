"""A strict generateContent API: it rejects what Google rejects, with the same error texts.

Sources: the API reference and the guides on function calling and thought signatures (2026), errors in recorded traffic,
and error texts in public issues. Keys may have either of the two styles.
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
from tests.fake_providers.shape import decode_base64, detect_media_type, unknown_keys

NAME: Final = "gemini"
MODEL: Final = "gemini:gemini-3-flash-preview"
BASE_PATH: Final = ""
PATH: Final = re.compile(r"/v1(?:beta)?/models/(?P<model>[^/:]+):(?P<verb>generateContent|streamGenerateContent)")
KEY_HEADERS: Final = ("x-goog-api-key", "authorization")
STREAM_TYPE: Final = "text/event-stream"

_TOP: Final = frozenset(
    [
        "contents",
        "generationConfig",
        "safetySettings",
        "systemInstruction",
        "toolConfig",
        "tools",
        "cachedContent",
        "model",
        "labels",
        "modelArmorConfig",
        "serviceTier",
        "store",
    ]
)
_DATA: Final = frozenset(
    [
        "text",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
    ]
)
_METADATA: Final = frozenset(["thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"])
_SCHEMA: Final = frozenset(
    [
        "type",
        "format",
        "title",
        "description",
        "nullable",
        "enum",
        "maxItems",
        "minItems",
        "properties",
        "required",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
        "pattern",
        "example",
        "anyOf",
        "propertyOrdering",
        "default",
        "items",
        "minimum",
        "maximum",
        "additionalProperties",
    ]
)
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_MEDIA: Final = re.compile(r"(?:image/(?:png|jpeg|webp|heic|heif)|audio/|video/|text/|application/(?:pdf|json)).*")
_SKIPS: Final = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")


def refusals(body: Any, issued: IssuedSignatures | None = None, model: str = "") -> list[str]:
    """Return the reasons why the API rejects a request. Without ``issued``, any signature is accepted."""
    if not isinstance(body, dict):
        return ["Invalid JSON payload received. Expected an object."]
    body = _to_camel_case(body)
    problems = list(_check_shape(body))
    if problems:
        return problems
    contents = [_content(content) for content in body["contents"]]
    values = rule_problems(NAME, body, model)
    return [*_check_order(contents), *_check_tools(body), *_check_signatures(contents, issued, model), *values]


def _to_camel_case(value: Any, key: str = "") -> Any:
    """Return a value with its keys in camel case. Arguments and results of tools are unchanged."""
    if isinstance(value, list):
        return [_to_camel_case(item, key) for item in value]
    if not isinstance(value, dict) or key in (
        "args",
        "response",
        "parametersJsonSchema",
        "responseJsonSchema",
        "properties",
    ):
        return value
    camel = {re.sub(r"(?<=[a-z])_([a-z])", lambda found: found[1].upper(), name): item for name, item in value.items()}
    return {name: _to_camel_case(item, name) for name, item in camel.items()}


def _content(content: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    parts = content["parts"]
    return content.get("role") or "user", [parts] if isinstance(parts, dict) else parts


def _check_shape(body: dict[str, Any]) -> Iterator[str]:
    for key in unknown_keys(body, _TOP):
        yield f'Invalid JSON payload received. Unknown name "{key}": Cannot find field.'
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        yield "* GenerateContentRequest.contents: contents is not specified\n"
        return
    system = body.get("systemInstruction")
    if isinstance(system, dict) and not system.get("parts"):
        yield "* GenerateContentRequest.system_instruction.parts: contents.parts must not be empty.\n"
    for index, content in enumerate(contents):
        where = f"contents[{index}]"
        parts = content.get("parts") if isinstance(content, dict) else None
        if not parts or not isinstance(parts, list | dict):
            yield f"* GenerateContentRequest.{where}.parts: contents.parts must not be empty.\n"
            continue
        if content.get("role") not in ("user", "model", "function", None):
            yield "Please use a valid role: user, model."
        for place, part in enumerate([parts] if isinstance(parts, dict) else parts):
            yield from _check_part(part, f"{where}.parts[{place}]")


def _check_part(part: Any, where: str) -> Iterator[str]:
    if not isinstance(part, dict):
        yield f"Invalid value at '{where}'"
        return
    for key in unknown_keys(part, _DATA | _METADATA):
        yield f"Invalid JSON payload received. Unknown name \"{key}\" at '{where}': Cannot find field."
    data_keys = [key for key in part if key in _DATA]
    if len(data_keys) > 1:
        yield f"Invalid value at '{where}' (oneof), oneof field 'data' is already set. Cannot set '{data_keys[1]}'"
    if not data_keys and not set(part) & {"thoughtSignature", "videoMetadata"}:
        yield f"* GenerateContentRequest.{where}.data: required oneof field 'data' must have one initialized field\n"
    match part:
        case {"text": text} if not isinstance(text, str):
            yield f"Invalid value at '{where}.text' (TYPE_STRING)"
        case {"inlineData": blob}:
            yield from _check_blob(blob, f"{where}.inline_data")
        case {"functionCall": call}:
            yield from _check_function(call, f"{where}.function_call", "args")
        case {"functionResponse": answer}:
            yield from _check_function(answer, f"{where}.function_response", "response")
            for place, inner in enumerate(answer.get("parts") or () if isinstance(answer, dict) else ()):
                yield from _check_part(inner, f"{where}.function_response.parts[{place}]")
        case _:
            return


def _check_blob(blob: Any, where: str) -> Iterator[str]:
    data = blob.get("data") if isinstance(blob, dict) else None
    media_type = blob.get("mimeType") if isinstance(blob, dict) else None
    found = decode_base64(_to_standard_base64(data)) if isinstance(data, str) else None
    if not isinstance(media_type, str) or not _MEDIA.fullmatch(media_type):
        yield f"Unsupported MIME type: {media_type}"
    elif found is None:
        yield f"Invalid value at '{where}.data' (TYPE_BYTES), Base64 decoding failed for \"{str(data)[:20]}\""
    elif media_type in ("image/png", "image/jpeg", "image/webp") and not str(detect_media_type(found)).startswith(
        "image/"
    ):
        yield "Unable to process input image. Please retry or report in https://developers.generativeai.google/guide/troubleshooting"
    elif media_type == "application/pdf" and detect_media_type(found) != media_type:
        yield "The document has no pages."


def _to_standard_base64(data: str) -> str:
    data = data.replace("-", "+").replace("_", "/")
    return data + "=" * (-len(data) % 4)


def _check_function(value: Any, where: str, key: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"Invalid value at '{where}'"
        return
    if not value.get("name"):
        yield f"* GenerateContentRequest.{where}.name: Name cannot be empty.\n"
    elif not _NAME.fullmatch(str(value["name"])):
        yield (
            f"* GenerateContentRequest.{where}.name: [FIELD_INVALID] Invalid function name. Must start with a letter or "
            "an underscore. Must be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-)\n"
        )
    if not isinstance(value.get(key, {}), dict):
        yield f"Invalid value at '{where}.{key}' (type.googleapis.com/google.protobuf.Struct)"


# --- order, tools and signatures -------------------------------------------------------------------------------------


def _check_order(contents: list[tuple[str, list[dict[str, Any]]]]) -> Iterator[str]:
    """The turn after a turn with calls has as many results. Consecutive contents of a role are one turn."""
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for role, parts in contents:
        side = "model" if role == "model" else "user"
        if turns and turns[-1][0] == side:
            turns[-1][1].extend(parts)
        else:
            turns.append((side, list(parts)))
    calls: list[dict[str, Any]] = []
    if turns[0][0] == "model" and any("functionCall" in part for part in turns[0][1]):
        yield "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
    for side, parts in turns:
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if calls and not results:
            yield "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
        elif results and not calls:
            yield "Please ensure that function response turn comes immediately after a function call turn."
        elif len(results) != len(calls):
            yield "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn."
        elif sorted(call["name"] for call in calls) != sorted(result["name"] for result in results):
            yield "Please ensure that the function response names match the function call names."
        elif sorted(call.get("id", "") for call in calls) != sorted(result.get("id", "") for result in results):
            yield "Please ensure that the function response ids match the function call ids."
        calls = [part["functionCall"] for part in parts if "functionCall" in part] if side == "model" else []
    if calls:
        yield "Please ensure that single turn requests end with a user role or the role field is empty."


def _check_tools(body: dict[str, Any]) -> Iterator[str]:
    for index, tool in enumerate(body.get("tools") or ()):
        if not isinstance(tool, dict):
            continue
        for place, function in enumerate(tool.get("functionDeclarations") or ()):
            where = f"tools[{index}].function_declarations[{place}]"
            yield from _check_function({"name": function.get("name")}, where, "args")
            if "parameters" in function:
                yield from _check_schema(function["parameters"], f"{where}.parameters")
            if "parameters" in function and "parametersJsonSchema" in function:
                yield f"Invalid value at '{where}' (oneof), parameters and parameters_json_schema are both set"


def _check_schema(schema: Any, where: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield f"Invalid value at '{where}'"
        return
    for key in unknown_keys(schema, _SCHEMA):
        yield f"Invalid JSON payload received. Unknown name \"{key}\" at '{where}': Cannot find field."
    if isinstance(schema.get("type"), list):
        yield f"Proto field is not repeating, cannot start list. ({where}.type)"
    if str(schema.get("type")).upper() == "ARRAY" and "items" not in schema:
        yield f"* GenerateContentRequest.{where}.items: missing field.\n"
    for name, inner in (schema.get("properties") or {}).items():
        yield from _check_schema(inner, f"{where}.properties[{name}]")
    if "items" in schema:
        yield from _check_schema(schema["items"], f"{where}.items")


def _check_signatures(
    contents: list[tuple[str, list[dict[str, Any]]]], issued: IssuedSignatures | None, model: str
) -> Iterator[str]:
    """The API accepts only its own signatures. In the current turn, Gemini 3 requires one on the first call of each step."""
    turn_start = max((place for place, content in enumerate(contents) if _is_question(*content)), default=0)
    position = 0
    for place, (_, parts) in enumerate(contents):
        first = True
        for part in parts:
            signature = part.get("thoughtSignature")
            if "functionCall" in part:
                position += 1
                if first and signature is None and place > turn_start and "gemini-3" in model:
                    yield (
                        "Function call is missing a thought_signature in functionCall parts. This is required for tools "
                        "to work correctly, and missing thought_signature may lead to degraded model performance. "
                        f"Additional data, function call `default_api:{part['functionCall']['name']}` , position {position}."
                    )
                first = False
            if signature in _SKIPS or signature is None or issued is None:
                continue
            if not issued.has_issued(signature):
                yield "Thought signature is not valid."


def _is_question(role: str, parts: list[dict[str, Any]]) -> bool:
    return role == "user" and not any("functionResponse" in part for part in parts)


def _signed_content(part: dict[str, Any]) -> str:
    """Return the content that the signature of a part covers."""
    call = part.get("functionCall")
    return json_text([call["name"], call.get("args", {})]) if call else str(part.get("text", ""))


# --- replies ---------------------------------------------------------------------------------------------------------


def refusal(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error response."""
    names = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
    name = names.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name}}


def is_streamed(path: str, body: dict[str, Any]) -> bool:
    """Return whether the request asks for a stream."""
    return ":streamGenerateContent" in path


def model_of(path: str, body: dict[str, Any]) -> str:
    """Return the model of a request."""
    found = PATH.search(path)
    return found["model"] if found else ""


def write_reply(parts: list[Part], model: str, issued: IssuedSignatures) -> dict[str, Any]:
    """Return a reply that is not streamed. Reasoning and the first call are signed, as by Gemini 3."""
    seed = issued.next_answer()
    return _answer(_parts(parts, seed, issued), model, seed, "STOP")


def _parts(parts: list[Part], seed: str, issued: IssuedSignatures) -> list[dict[str, Any]]:
    wires: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        match part:
            case TextPart(text):
                wires.append({"text": text})
            case ThinkingPart(text):
                wires.append({"text": text, "thought": True, "thoughtSignature": issued.sign(text, seed, str(index))})
            case CallPart(name, value):
                wire: dict[str, Any] = {
                    "functionCall": {"id": derive_id("", 8, seed, str(index)), "name": name, "args": value}
                }
                if not any("functionCall" in before for before in wires):
                    wire["thoughtSignature"] = issued.sign(_signed_content(wire), seed, str(index))
                wires.append(wire)
    return wires


def _answer(parts: list[dict[str, Any]], model: str, seed: str, reason: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": model,
        "responseId": derive_id("", 20, seed),
    }


def write_stream(parts: list[Part], model: str, issued: IssuedSignatures) -> list[bytes]:
    """Return the chunks of a streamed reply. A text is split, a call is not."""
    seed = issued.next_answer()
    chunks: list[dict[str, Any]] = []
    for part in _parts(parts, seed, issued):
        texts = split_text(part["text"]) if "text" in part else []
        if len(texts) > 1:
            unsigned = {key: value for key, value in part.items() if key != "thoughtSignature"}
            chunks.extend(_answer([{**unsigned, "text": text}], model, seed, None) for text in texts[:-1])
            chunks.append(_answer([{**part, "text": texts[-1]}], model, seed, None))
        else:
            chunks.append(_answer([part], model, seed, None))
    chunks[-1]["candidates"][0]["finishReason"] = "STOP"
    return [f"data: {json_text(chunk)}\r\n\r\n".encode() for chunk in chunks]
