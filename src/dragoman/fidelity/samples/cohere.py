"""Requests with fields of Cohere only."""

from __future__ import annotations

from typing import Any, Final

_USER: Final = {"role": "user", "content": "Hello."}
_TOOL: Final = {
    "type": "function",
    "function": {"name": "read_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
}


def _request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "some-model", "messages": [_USER, *messages], **more}


WIRES: Final[dict[str, Any]] = {
    "thinking": _request(
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "A greeting."}, {"type": "text", "text": "Hi."}],
        },
        {"role": "user", "content": "Go on."},
    ),
    "invalid_tool_use": _request(
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": '}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "It is not an object."},
        tools=[_TOOL],
    ),
    "in its own words": _request(documents=[{"id": "doc-1", "data": {"text": "A ULID is an identifier."}}]),
}
