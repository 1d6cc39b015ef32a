"""The fakes reject invalid bodies and accept recorded valid ones."""

from __future__ import annotations

import base64
import copy
import json
import re
from typing import Any

import aiohttp
import pytest

from dragoman import dialects
from dragoman.event import StreamEvent, fold
from dragoman.message import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from tests.corpus import records
from tests.fake_providers import (
    IssuedSignatures,
    Part,
    StrictProvider,
    call_part,
    fakes,
    refusals,
    strict_provider,
    text_part,
    thinking_part,
)

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(24)).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(24)).decode()
NOT_AN_IMAGE = base64.b64encode(b"these are no pictures").decode()
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ARGUMENTS = {"path": "a"}

# One valid request per dialect: an image, tool calls with results, and tool definitions.
VALID: dict[str, dict[str, Any]] = {
    "anthropic": {
        "model": "claude-sonnet-4-6",
        "max_tokens": 64,
        "system": "Be brief.",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look."},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": ARGUMENTS},
                    {"type": "tool_use", "id": "toolu_2", "name": "read_file", "input": ARGUMENTS},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "b"},
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a"},
                    {"type": "text", "text": "Well?"},
                ],
            },
        ],
        "tools": [{"name": "read_file", "description": "Read.", "input_schema": SCHEMA}],
    },
    "openai_chat": {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look."},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
                    {"id": "call_2", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "call_2", "content": "b"},
            {"role": "tool", "tool_call_id": "call_1", "content": "a"},
        ],
        "tools": [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}],
    },
    "openai_responses": {
        "model": "gpt-5",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look."},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
                ],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read_file", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "a"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Foo."}]},
            {"role": "user", "content": "Well?"},
        ],
        "tools": [{"type": "function", "name": "read_file", "parameters": SCHEMA}],
    },
    "gemini": {
        "contents": [
            {"role": "user", "parts": [{"text": "Look."}, {"inlineData": {"mimeType": "image/png", "data": PNG}}]},
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"name": "read_file", "args": ARGUMENTS}, "thoughtSignature": "c2ln"},
                    {"functionCall": {"name": "read_file", "args": ARGUMENTS}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "read_file", "response": {"output": "a"}}},
                    {"functionResponse": {"name": "read_file", "response": {"output": "b"}}},
                ],
            },
        ],
        "tools": [{"functionDeclarations": [{"name": "read_file", "parameters": SCHEMA}]}],
    },
    "ollama": {
        "model": "llama3.2",
        "messages": [
            {"role": "user", "content": "Look.", "images": [PNG]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "read_file", "arguments": ARGUMENTS}}],
            },
            {"role": "tool", "tool_name": "read_file", "content": "a"},
        ],
        "tools": [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}],
    },
    "cohere": {
        "model": "command-a-03-2025",
        "messages": [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "tool_plan": "I will read.",
                "tool_calls": [{"id": "r_1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "r_1", "content": "a"},
        ],
        "tools": [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}],
    },
    "bedrock_converse": {
        "messages": [
            {"role": "user", "content": [{"text": "Look."}, {"image": {"format": "png", "source": {"bytes": PNG}}}]},
            {
                "role": "assistant",
                "content": [{"toolUse": {"toolUseId": "t_1", "name": "read_file", "input": ARGUMENTS}}],
            },
            {"role": "user", "content": [{"toolResult": {"toolUseId": "t_1", "content": [{"text": "a"}]}}]},
        ],
        "toolConfig": {"tools": [{"toolSpec": {"name": "read_file", "inputSchema": {"json": SCHEMA}}}]},
    },
}
DROP = object()  # as a value: the key is removed
APPEND = "+"  # at the end of a path: the value is appended
M, C, T = "messages", "content", "tools"
LONG = "x" * 65
# Edits of the valid request (a path and its new value), and a part of the error text of the provider.
INVALID_EDITS: dict[str, list[tuple[tuple[str | int, ...], Any, str]]] = {
    "anthropic": [
        (("max_tokens",), DROP, "max_tokens: Field required"),
        (("max_tokens",), 0, "greater than or equal to 1"),
        (("seed",), 1, "seed: Extra inputs are not permitted"),
        ((M,), [], "at least one message is required"),
        ((M, 0, "role"), "tool", "Input should be 'user' or 'assistant'"),
        ((M, 0, "name"), "ann", "messages.0.name: Extra inputs are not permitted"),
        ((M, 0, C), [], "messages.0: all messages must have non-empty content"),
        ((M, 0, C, 0, "text"), "", "text content blocks must be non-empty"),
        ((M, 0, C, 0, "text"), " \n", "text content blocks must contain non-whitespace text"),
        ((M, 0, C, 0, "id"), "x", "messages.0.content.0.text.id: Extra inputs are not permitted"),
        ((M, 0, C, 1, "source", "data"), "###", "invalid base64 data"),
        ((M, 0, C, 1, "source", "data"), NOT_AN_IMAGE, "Could not process image"),
        ((M, 0, C, 1, "source", "data"), JPEG, "image/png media type"),
        ((M, 0, C, 1, "source", "media_type"), "image/bmp", "media_type: Input should be 'image/jpeg'"),
        ((M, 1, C, 0, "id"), "a.b", "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"),
        ((M, 1, C, 0, "id"), "toolu_2", "`tool_use` ids must be unique"),
        ((M, 1, C, 0, "name"), "read file", "tool_use.name: String should match pattern"),
        ((M, 1, C, 0, "input"), "{}", "tool_use.input: Input should be a valid dictionary"),
        (
            (M, 1, C, APPEND),
            {"type": "tool_result", "tool_use_id": "toolu_1"},
            "does not match any of the expected tags",
        ),
        (
            (M, 1, C, APPEND),
            {"type": "thinking", "thinking": "hm"},
            "messages.1.content.2.thinking.signature: Field required",
        ),
        (
            (M, 1, C, APPEND),
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            "The final block in an assistant message cannot be `thinking`",
        ),
        (
            (M, 2, C, 0),
            DROP,
            "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_2",
        ),
        ((M, 2), DROP, "`tool_use` ids were found without `tool_result` blocks immediately after"),
        ((M, 2, C, 0, "tool_use_id"), "toolu_9", "messages.2.content.0: unexpected `tool_use_id`"),
        (
            (M, 2, C, 2),
            {"type": "tool_result", "tool_use_id": "toolu_1"},
            "each tool_use must have a single result. Found multiple `tool_result` blocks with id: toolu_1",
        ),
        ((M, 2, C, 0), {"type": "text", "text": "First."}, "`tool_result` blocks must come first"),
        ((M, 2, C, 0, "content"), [{"type": "text", "text": ""}], "text content blocks must be non-empty"),
        ((M, APPEND), {"role": "assistant", "content": "So"}, "does not support assistant message prefill"),
        ((T, 0, "name"), "read file", "tools.0.custom.name: String should match pattern"),
        ((T, 0, "input_schema"), {"properties": {}}, "tools.0.custom.input_schema.type: Field required"),
        ((T, 0, "input_schema"), {"type": "object", "anyOf": []}, "does not support oneOf, allOf, or anyOf"),
        ((T, APPEND), {"name": "read_file", "input_schema": SCHEMA}, "Tool names must be unique"),
        (("thinking",), {"type": "enabled", "budget_tokens": 32}, "thinking.budget_tokens must be between 1024"),
        (
            ("thinking",),
            {"type": "enabled", "budget_tokens": 1024},
            "thinking.budget_tokens must be less than max_tokens",
        ),
        (
            ("thinking",),
            {"type": "enabled", "budget_tokens": 1024},
            "Expected `thinking` or `redacted_thinking`, but found",
        ),
        (("tool_choice",), {"type": "tool", "name": "write_file"}, "not found in provided tools"),
    ],
    "openai_chat": [
        ((M,), [], "Invalid 'messages': empty array"),
        (("top_k",), 1, "Unrecognized request argument supplied: top_k"),
        ((M, 0, "role"), "model", "Supported values are: 'system', 'assistant', 'user'"),
        ((M, 1, C), None, "expected a string, got null"),
        ((M, 1, C), [], "Invalid 'messages[1].content': empty array"),
        ((M, 1, C, 0, "type"), DROP, "Missing required parameter: 'messages[1].content[0].type'"),
        ((M, 0, C), [{"type": "image_url", "image_url": {"url": "https://a/b"}}], "Invalid value: 'image_url'"),
        ((M, 1, C, 1, "image_url", "url"), "data:image/png;base64,###", "Invalid base64 image_url"),
        ((M, 1, C, 1, "image_url", "url"), f"data:image/png;base64,{NOT_AN_IMAGE}", "unsupported image"),
        ((M, 1, C, 1, "image_url", "url"), "blob", "Expected a valid URL"),
        ((M, 2, "tool_calls"), [], "Invalid 'messages[2].tool_calls': empty array"),
        ((M, 2, "tool_calls", 0, "id"), "call_2", "Duplicate value for 'id'"),
        ((M, 2, "tool_calls", 0, "id"), LONG, "string too long. Expected a string with maximum length 40"),
        ((M, 2, "tool_calls", 0, "function", "name"), "read file", "does not match pattern"),
        ((M, 2, "tool_calls", 0, "function", "arguments"), {}, "expected a string, but got an object"),
        ((M, 3), DROP, "tool_call_ids did not have response messages: call_2"),
        ((M, 3), {"role": "user", "content": "Wait."}, "must be followed by tool messages"),
        ((M, 2), DROP, "must be a response to a preceeding message with 'tool_calls'"),
        ((M, APPEND), {"role": "tool", "tool_call_id": "call_1", "content": "a"}, "Duplicate value for 'tool_call_id'"),
        ((M, 3, "tool_call_id"), DROP, "Missing required parameter: 'messages[3].tool_call_id'"),
        ((T, 0, "function", "name"), "a b", "Invalid 'tools[0].function.name'"),
        ((T, 0, "function", "parameters"), {"type": "string"}, "schema must be a JSON Schema of 'type: \"object\"'"),
        ((T, 0, "function", "parameters", "properties", "path"), {"type": "array"}, "array schema missing items"),
        ((T, 0, "function", "strict"), True, "'additionalProperties' is required to be supplied and to be false"),
        ((M, 2, "reasoning"), "hm", "messages[2].reasoning"),
    ],
    "openai_responses": [
        (("input",), DROP, "Missing required parameter: 'input'"),
        (("messages",), [], "Unknown parameter: 'messages'"),
        (("input", 0, "role"), "tool", "Supported values are: 'assistant', 'system', 'developer', and 'user'"),
        (("input", 0, "content", 0, "type"), "output_text", "Supported values are: 'input_text'"),
        (("input", 4, "content", 0, "type"), "input_text", "Supported values are: 'output_text', 'refusal'"),
        (("input", 0, "content", 1, "image_url"), "data:image/png;base64,###", "invalid base64"),
        (
            ("input", 0, "content", 1, "image_url"),
            f"data:image/png;base64,{NOT_AN_IMAGE}",
            "does not represent a valid image",
        ),
        (("input", 2, "call_id"), LONG, "maximum length 64"),
        (("input", 2, "name"), "a b", "does not match pattern"),
        (("input", 2, "id"), "toolu_1", "Expected an ID that begins with 'fc'"),
        (("input", 2, "arguments"), {}, "expected a string, but got an object"),
        (("input", 3), DROP, "No tool output found for function call call_1"),
        (("input", 3, "call_id"), "call_9", "No tool call found for function call output with call_id call_9"),
        (
            ("input", APPEND),
            {"type": "function_call_output", "call_id": "call_1", "output": "a"},
            "Duplicate function call output",
        ),
        (("input", 3, "output"), DROP, "Missing required parameter: 'input[3].output'"),
        (("input", 2), DROP, "Item 'rs_1' of type 'reasoning' was provided without its required following item"),
        (("input", 2, "id"), DROP, "without its required following item"),
        (
            ("input", APPEND),
            {"type": "reasoning", "id": "rs_1", "summary": []},
            "Duplicate item found with id rs_1",
        ),
        ((T, 0, "parameters"), {"type": "string"}, "schema must be a JSON Schema of 'type: \"object\"'"),
        ((T, 0, "name"), "a b", "Invalid 'tools[0].name'"),
    ],
    "gemini": [
        (("contents",), [], "contents is not specified"),
        (("messages",), [], 'Unknown name "messages"'),
        (("contents", 0, "role"), "assistant", "Please use a valid role: user, model"),
        (("contents", 0, "parts"), [], "contents.parts must not be empty"),
        (("contents", 0, "parts", 0), {}, "required oneof field 'data' must have one initialized field"),
        (("contents", 0, "parts", 0, "type"), "text", "Unknown name \"type\" at 'contents[0].parts[0]'"),
        (("contents", 0, "parts", 1, "text"), "x", "oneof field 'data' is already set"),
        (("contents", 0, "parts", 1, "inlineData", "mimeType"), "image/bmp", "Unsupported MIME type: image/bmp"),
        (("contents", 0, "parts", 1, "inlineData", "data"), "###", "Base64 decoding failed"),
        (("contents", 0, "parts", 1, "inlineData", "data"), NOT_AN_IMAGE, "Unable to process input image"),
        (("contents", 1, "parts", 0, "functionCall", "name"), "1 a", "Must start with a letter or an underscore"),
        (("contents", 1, "parts", 0, "functionCall", "args"), "{}", "google.protobuf.Struct"),
        (("contents", 1, "parts", 0, "thoughtSignature"), DROP, "missing a thought_signature"),
        (("contents", 2, "parts", 0), DROP, "number of function response parts is equal"),
        (("contents", 2, "parts"), [{"text": "Wait."}], "function call turn comes immediately after a user turn"),
        (("contents", 0), DROP, "comes immediately after a user turn"),
        (("contents", 1), DROP, "function response turn comes immediately after a function call turn"),
        (("contents", 2), DROP, "end with a user role"),
        (("contents", 2, "parts", 0, "functionResponse", "name"), "write_file", "names match"),
        (("contents", 2, "parts", 0, "functionResponse", "response"), "a", "google.protobuf.Struct"),
        ((T, 0, "functionDeclarations", 0, "parameters", "$ref"), "#", 'Unknown name "$ref" at \'tools[0]'),
        (("systemInstruction",), {"parts": []}, "system_instruction.parts"),
    ],
    "ollama": [
        (("model",), DROP, "model is required"),
        ((M, 0, "role"), "developer", 'invalid role: "developer"'),
        ((M, 0, C), [{"type": "text", "text": "x"}], "of type string"),
        ((M, 0, "images"), ["###"], "illegal base64 data"),
        ((M, 0, "images"), [NOT_AN_IMAGE], "unknown format"),
        ((M, 0), {"role": "user", "content": ""}, "nothing is said in messages[0]"),
        ((M, 1, "tool_calls", 0, "function", "arguments"), "{}", "of type api.ToolCallFunctionArguments"),
        ((M, 1), DROP, "a tool message must follow the call that it answers"),
        ((M, 2), {"role": "user", "content": "Wait."}, "calls before it have no result"),
        ((M, APPEND), {"role": "tool", "content": "a"}, "a tool message must follow the call that it answers"),
        ((M, 1, "refusal"), None, "unknown field 'refusal'"),
        ((T, 0, "function", "name"), "", "a tool is a function with a name"),
    ],
    "cohere": [
        (("model",), DROP, "model is required"),
        (("top_p",), 1, "parameter 'top_p' is not a valid field"),
        ((M,), [], "at least one message must be provided"),
        ((M, 0, "role"), "developer", "role must be one of"),
        ((M, 0, C), "", "all elements in history must have a message"),
        ((M, 0, C), [{"type": "text", "text": ""}], "text must not be empty"),
        ((M, 0, C), [{"type": "image_url", "image_url": {"url": "data:image/png;base64,###"}}], "invalid base64 image"),
        (
            (M, 0, C),
            [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{NOT_AN_IMAGE}"}}],
            "unsupported image format",
        ),
        ((M, 1, "tool_calls", 0, "id"), "", "a tool call has an id and a function"),
        ((M, 1, "tool_calls", 0, "function", "arguments"), '{"a', "arguments must be a valid JSON object"),
        ((M, 1, "tool_calls", 0, "function", "name"), "a b", "tool name must only contain"),
        ((M, 2), DROP, "did not have response messages: r_1"),
        ((M, 1), DROP, "not found in the previous tool calls"),
        ((M, APPEND), {"role": "tool", "tool_call_id": "r_1", "content": "a"}, "more than one tool message"),
        ((M, APPEND), {"role": "assistant", "content": "So"}, "the last message must be a user or a tool message"),
        ((M, 2, "name"), "read_file", "unknown field 'name'"),
        ((T, 0, "function", "parameters"), {"type": "string"}, "must be a JSON schema of type object"),
    ],
    "bedrock_converse": [
        (("modelId",), "x", "extraneous key [modelId] is not permitted"),
        ((M, 0, C), [], "The content field in the Message object at messages.0 is empty"),
        ((M, 0, C, 0, "text"), " ", "The text field in the ContentBlock object at messages.0.content.0 is blank"),
        ((M, 0, "role"), "system", "Member must satisfy enum value set: [user, assistant]"),
        ((M,), [{"role": "assistant", "content": [{"text": "Hi."}]}], "A conversation must start with a user message"),
        ((M, APPEND), {"role": "user", "content": [{"text": "Well?"}]}, "must alternate between user and assistant"),
        ((M, 0, C, 1, "image", "format"), "bmp", "enum value set: [png, jpeg, gif, webp]"),
        ((M, 0, C, 1, "image", "source", "bytes"), "###", "not base64"),
        ((M, 0, C, 1, "image", "source", "bytes"), NOT_AN_IMAGE, "Could not process image"),
        ((M, 0, C, 1, "image", "source", "bytes"), JPEG, "Image does not match the provided media type image/png"),
        ((M, 1, C, 0, "toolUse", "toolUseId"), "a b", "regular expression pattern: [a-zA-Z0-9_.:-]+"),
        ((M, 1, C, 0, "toolUse", "toolUseId"), LONG, "regular expression pattern"),
        ((M, 1, C, 0, "toolUse", "input"), "{}", "Provide a json object"),
        ((M, 2), {"role": "user", "content": [{"text": "Wait."}]}, "Expected toolResult blocks at messages.2.content"),
        ((M, 2), DROP, "Expected toolResult blocks"),
        ((M, 2, C, APPEND), {"toolResult": {"toolUseId": "t_1", "content": []}}, "duplicate Ids: t_1"),
        (
            (M, 2, C, APPEND),
            {"toolResult": {"toolUseId": "t_2", "content": []}},
            "exceeds the number of toolUse blocks",
        ),
        ((M, 2, C, 0, "toolResult", "toolUseId"), "t_9", "Ids that no toolUse block of the previous turn has"),
        (
            (M, 2, C, 0, "toolResult"),
            {"toolUseId": "t_1", "content": [], "status": "error"},
            "cannot be empty when status",
        ),
        ((M, 2, C, 0, "toolResult", "content", 0, "text"), "", "is blank"),
        (("toolConfig",), DROP, "The toolConfig field must be defined when using toolUse and toolResult"),
        (("toolConfig", T), [], "length greater than or equal to 1"),
        (("toolConfig", T, 0, "toolSpec", "description"), "", "valid min length: 1"),
        ((M, 0, C, APPEND), {"type": "text", "text": "x"}, "extraneous key"),
        (
            (M, 0, C),
            [{"document": {"format": "txt", "name": "a", "source": {"bytes": NOT_AN_IMAGE}}}],
            "A text block must be included when using documents",
        ),
        (
            (M, 0, C, 1),
            {"document": {"format": "txt", "name": "a/b", "source": {"bytes": NOT_AN_IMAGE}}},
            "The document file name can only contain",
        ),
        ((M, APPEND), {"role": "assistant", "content": [{"text": "So"}]}, "does not support assistant message prefill"),
    ],
}
# Recorded requests that were served and that the fake rejects, with the reason.
OLD = "a model of 2024; the API is stricter today"
ID_AS_NAME = "the result has the id of its call in place of the function name; the API accepts and ignores it"
WITHOUT_IDS = "Writer accepts calls and results without ids"
MODEL_DEPENDENT = "only some models of this API accept it; the fake is as strict as the strictest model"
EXPECTED_REFUSALS: dict[str, dict[str, str]] = {
    "anthropic": {
        "anthropic-1c6797165885ed": OLD,
        "anthropic-60fa57514549d0": OLD,
        "anthropic-3fe7062b76ae2e": OLD,
    },
    "gemini": {"gemini-5326e445ee5dec": ID_AS_NAME},
    "openai_chat": {"writer-ad3855129ee1f5": WITHOUT_IDS},
    "bedrock_converse": {
        "bedrock-d0624cb54667c1": MODEL_DEPENDENT,
        "bedrock-7faac93bbcb181": MODEL_DEPENDENT,
        "bedrock-276c3acbe9d756": MODEL_DEPENDENT,
        "bedrock-ee317fad66c77c": MODEL_DEPENDENT,
        "bedrock-6536730a0e0648": MODEL_DEPENDENT,
    },
}


def edit_body(body: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """Return a copy of a request with another value at a path."""
    copied = copy.deepcopy(body)
    at: Any = copied
    for step in path[:-1]:
        at = at[step]
    if path[-1] == APPEND:
        at.append(value)
    elif value is DROP:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return copied


def model_of(dialect: str) -> str:
    return str(fakes()[dialect].MODEL).partition(":")[2]


# --- rejections ------------------------------------------------------------------------------------------------------


def test_every_callable_dialect_has_a_fake() -> None:
    assert tuple(sorted(fakes())) == dialects.callable_names()
    assert {name: fake.NAME for name, fake in fakes().items()} == {name: name for name in dialects.callable_names()}
    assert VALID.keys() == INVALID_EDITS.keys() == set(dialects.callable_names())


@pytest.mark.parametrize("dialect", dialects.callable_names())
def test_valid_request_is_accepted(dialect: str) -> None:
    assert refusals(dialect, VALID[dialect], None, model_of(dialect)) == []


@pytest.mark.parametrize(
    ("dialect", "path", "value", "error_text"),
    [
        pytest.param(dialect, path, value, error_text, id=f"{dialect}-{'.'.join(map(str, path))}-{index}")
        for dialect, cases in INVALID_EDITS.items()
        for index, (path, value, error_text) in enumerate(cases)
        if error_text
    ],
)
def test_invalid_request_is_rejected_with_error_text_of_provider(
    dialect: str, path: tuple[str | int, ...], value: Any, error_text: str
) -> None:
    found = refusals(dialect, edit_body(VALID[dialect], path, value), None, model_of(dialect))
    assert any(error_text in text for text in found), found


@pytest.mark.parametrize("dialect", dialects.callable_names())
@pytest.mark.parametrize("body", [None, [], "text", 3, {}, {"messages": 3}, {"messages": [3], "contents": [3]}])
def test_body_that_is_not_a_request_is_rejected(dialect: str, body: Any) -> None:
    assert refusals(dialect, body)


@pytest.mark.parametrize("dialect", dialects.callable_names())
def test_recorded_served_requests_are_accepted(dialect: str) -> None:
    refused, count = {}, 0
    expected = EXPECTED_REFUSALS.get(dialect, {})
    for _, record in records(dialect, part="request", sample=100, always=expected):
        if record.get("status") not in (200, None):
            continue
        model_match = re.search(r"/models?/([^/:]+)", record.get("endpoint") or "")
        arguments = {"provider": record["provider"]} if dialect.startswith("openai") else {}
        found = fakes()[dialect].refusals(record["request"], None, model_match[1] if model_match else "", **arguments)
        count += 1
        if found:
            refused[record["id"]] = found
    assert count > 40
    assert {name: refused[name] for name in refused if name not in expected} == {}
    assert refused.keys() == expected.keys()


# --- replies ---------------------------------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[Part, ...]] = {
    "text": (text_part("Foo is très bref. 😀"),),
    "call": (call_part("read_file", {"path": "README.md"}),),
    "text and two calls": (
        text_part("I look."),
        call_part("read_file", ARGUMENTS),
        call_part("list_files", {"deep": True, "n": 3}),
    ),
    "thinking and call": (thinking_part("First I have to look."), call_part("read_file", ARGUMENTS)),
    "thinking and text": (thinking_part("That is easy."), text_part("Foo.")),
}


def parts_from_content(content: tuple[ContentBlock, ...]) -> list[Part]:
    """Return an answer in the form of a script."""
    found: list[Part] = []
    for block in content:
        match block:
            case TextBlock(text):
                found.append(text_part(text))
            case ThinkingBlock(text):
                found.append(thinking_part(text))
            case ToolUseBlock(_, name, value):
                found.append(call_part(name, value))
            case _:
                raise AssertionError(block)
    return found


async def ask(fake: StrictProvider, body: dict[str, Any], *, stream: bool = False) -> tuple[int, bytes]:
    """Return the response of the fake to a request."""
    paths = {
        "anthropic": "/v1/messages",
        "openai_chat": "/chat/completions",
        "openai_responses": "/responses",
        "gemini": f"/v1beta/models/{model_of('gemini')}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}",
        "ollama": "/api/chat",
        "cohere": "/v2/chat",
        "bedrock_converse": f"/model/{model_of('bedrock_converse')}/converse{'-stream' if stream else ''}",
    }
    if fake.dialect not in ("gemini", "bedrock_converse"):
        body = {**body, "stream": stream}
    headers = dict.fromkeys(fake.fake.KEY_HEADERS[:1], "key")
    async with (
        aiohttp.ClientSession() as session,
        session.post(fake.base_url + paths[fake.dialect], json=body, headers=headers) as response,
    ):
        return response.status, await response.read()


def read_stream(dialect: str, data: bytes) -> list[StreamEvent]:
    reader = dialects.load(dialect).stream_reader()
    return [*reader.feed(data), *reader.close()]


@pytest.mark.parametrize("dialect", dialects.callable_names())
@pytest.mark.parametrize("name", ANSWERS)
async def test_scripted_reply_is_sent_with_and_without_stream(dialect: str, name: str) -> None:
    parts = list(ANSWERS[name])
    module = dialects.load(dialect)
    async with strict_provider(dialect, signatures="any") as fake:
        fake.answer_with(*parts)
        fake.answer_with(*parts)
        status, body = await ask(fake, VALID[dialect])
        assert status == 200
        reply = module.read_reply(body)
        assert reply.fault is None
        assert parts_from_content(reply.content) == parts
        status, data = await ask(fake, VALID[dialect], stream=True)
        assert status == 200
        streamed = fold(read_stream(dialect, data))
        assert streamed.fault is None
        assert parts_from_content(streamed.content) == parts
        assert streamed.stop_reason == reply.stop_reason
    assert len(fake.received) == 2
    assert fake.refusals == []


@pytest.mark.parametrize("dialect", dialects.callable_names())
async def test_default_reply_is_deterministic(dialect: str) -> None:
    answers = []
    for _ in range(2):
        async with strict_provider(dialect, signatures="any") as fake:
            answers.append(await ask(fake, VALID[dialect]))
    assert answers[0] == answers[1]
    assert dialects.load(dialect).read_reply(answers[0][1]).content


@pytest.mark.parametrize("dialect", dialects.callable_names())
async def test_rejection_has_error_shape_of_provider(dialect: str) -> None:
    path, value, error_text = next(case for case in INVALID_EDITS[dialect] if case[2])
    async with strict_provider(dialect, signatures="any") as fake:
        status, body = await ask(fake, edit_body(VALID[dialect], path, value))
        assert status == 400
        fault = dialects.load(dialect).read_error(status, {}, body)
        assert fault.code == "invalid_request"
        assert error_text in fault.message
        fake.fail(429, "slow down", {"retry-after": "3"})
        status, body = await ask(fake, VALID[dialect])
        assert (status, dialects.load(dialect).read_error(status, {}, body).code) == (429, "rate_limited")
    assert error_text in fake.refusals[0]


@pytest.mark.parametrize("dialect", dialects.callable_names())
async def test_cut_ends_stream_without_last_chunk(dialect: str) -> None:
    async with strict_provider(dialect, signatures="any") as fake:
        fake.cut(40, text_part("This will not be said to its end."))
        with pytest.raises(aiohttp.ClientPayloadError):
            await ask(fake, VALID[dialect], stream=True)


@pytest.mark.parametrize("dialect", [name for name in dialects.callable_names() if name != "ollama"])
async def test_request_without_key_is_rejected(dialect: str) -> None:
    async with strict_provider(dialect) as fake:
        path = "/v1/messages" if dialect == "anthropic" else "/"
        async with aiohttp.ClientSession() as session, session.post(fake.base_url + path, json={}) as response:
            assert response.status in (401, 404)
    assert fake.received[0].refusals


# --- signatures ------------------------------------------------------------------------------------------------------


def signed_body(dialect: str, issued: IssuedSignatures) -> dict[str, Any]:
    """Return a valid request with reasoning that the fake issued."""
    body = copy.deepcopy(VALID[dialect])
    answer = fakes()[dialect].write_reply([thinking_part("hm"), call_part("read_file", ARGUMENTS)], "m", issued)
    match dialect:
        case "anthropic":
            body["messages"][1]["content"].insert(0, answer["content"][0])
        case "openai_chat":
            body["messages"][2]["reasoning_content"] = answer["choices"][0]["message"]["reasoning_content"]
        case "openai_responses":
            body["input"][1:4] = [*answer["output"], {**body["input"][3], "call_id": answer["output"][1]["call_id"]}]
        case "gemini":
            body["contents"][1]["parts"] = [
                *answer["candidates"][0]["content"]["parts"],
                *body["contents"][1]["parts"][1:],
            ]
            first_call = answer["candidates"][0]["content"]["parts"][1]["functionCall"]
            body["contents"][2]["parts"][0]["functionResponse"]["id"] = first_call["id"]
        case "ollama":
            body["messages"][1]["thinking"] = answer["message"]["thinking"]
        case "cohere":
            body["messages"][1]["content"] = answer["message"]["content"]
        case "bedrock_converse":
            body["messages"][1]["content"].insert(0, answer["output"]["message"]["content"][0])
    return body


@pytest.mark.parametrize("dialect", dialects.callable_names())
def test_only_own_unaltered_reasoning_is_accepted(dialect: str) -> None:
    issued = IssuedSignatures("one")
    body = signed_body(dialect, issued)
    assert refusals(dialect, body, issued, model_of(dialect)) == []
    assert refusals(dialect, body, IssuedSignatures("another"), model_of(dialect))
    altered = json.loads(json.dumps(body).replace('"hm"', '"hm, no"'))
    if dialect == "openai_responses":  # the text is a summary; the encrypted content is checked
        altered = json.loads(json.dumps(body).replace(body["input"][1]["encrypted_content"], "c2VhbGVk"))
    if dialect == "gemini":  # only the signature is checked
        signature = body["contents"][1]["parts"][0]["thoughtSignature"]
        altered = json.loads(json.dumps(body).replace(signature, f"A{signature[1:]}"))
    assert refusals(dialect, altered, issued, model_of(dialect))


def test_call_requires_its_reasoning_item() -> None:
    issued = IssuedSignatures("one")
    body = signed_body("openai_responses", issued)
    without_reasoning = edit_body(body, ("input", 1), DROP)
    assert any(
        "without its required 'reasoning' item" in text
        for text in refusals("openai_responses", without_reasoning, issued)
    )
