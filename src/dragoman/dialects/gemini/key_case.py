"""Convert keys between snake_case and camelCase.

    to_camel(wire) -> wire, snake         known keys in camelCase, and the keys that were in snake_case
    restore_case(wire, snake) -> wire     the original keys

Invariant: objects that are not defined by the API (arguments, schemas, results) are never changed.
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.jsontext import expect_list

NAME: Final = "gemini"

_CAMEL: Final = {
    "system_instruction": "systemInstruction",
    "generation_config": "generationConfig",
    "tool_config": "toolConfig",
    "service_tier": "serviceTier",
    "top_p": "topP",
    "top_k": "topK",
    "max_output_tokens": "maxOutputTokens",
    "stop_sequences": "stopSequences",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "response_mime_type": "responseMimeType",
    "response_schema": "responseSchema",
    "response_json_schema": "responseJsonSchema",
    "thinking_config": "thinkingConfig",
    "include_thoughts": "includeThoughts",
    "thinking_budget": "thinkingBudget",
    "thinking_level": "thinkingLevel",
    "function_calling_config": "functionCallingConfig",
    "allowed_function_names": "allowedFunctionNames",
    "function_declarations": "functionDeclarations",
    "parameters_json_schema": "parametersJsonSchema",
    "inline_data": "inlineData",
    "mime_type": "mimeType",
    "file_data": "fileData",
    "file_uri": "fileUri",
    "function_call": "functionCall",
    "partial_args": "partialArgs",
    "will_continue": "willContinue",
    "function_response": "functionResponse",
    "thought_signature": "thoughtSignature",
    "finish_reason": "finishReason",
}
_SNAKE: Final = {camel: snake for snake, camel in _CAMEL.items()}
_NESTED_OBJECTS: Final = frozenset(  # objects of the API; all others contain user data
    {
        "generationConfig",
        "thinkingConfig",
        "toolConfig",
        "functionCallingConfig",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
    }
)


def to_camel(wire: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the object with known keys in camelCase, and the keys that were in snake_case."""
    result: dict[str, Any] = {}
    snake: list[str] = []
    for key, value in wire.items():
        name = _CAMEL.get(key, key)
        if name != key and name in wire:  # both spellings are present: keep this one unchanged
            name = key
        if name != key:
            snake.append(key)
        if name in _NESTED_OBJECTS and type(value) is dict:
            value, inner = to_camel(value)  # noqa: PLW2901
            snake.extend(inner)
        result[name] = value
    return result, snake


def restore_case(wire: dict[str, Any], snake: Any) -> dict[str, Any]:
    """Return the object with its original keys."""
    if not snake:
        return wire
    result: dict[str, Any] = {}
    for key, value in wire.items():
        name = _SNAKE.get(key, key)
        inner = restore_case(value, snake) if key in _NESTED_OBJECTS and type(value) is dict else value
        result[name if name in snake else key] = inner
    return result


def as_list(value: Any, where: str) -> list[Any]:
    """Return a list; the API accepts a single object in place of a list of one, and relays accept a text."""
    return [value] if type(value) is dict or (type(value) is str and value) else expect_list(value, where)
