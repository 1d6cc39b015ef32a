"""Conversations in the format of Pydantic AI."""

from __future__ import annotations

from typing import Any, Final

_WHEN: Final = "2026-05-08T09:30:00Z"
_CALL: Final = {"tool_name": "read_file", "args": '{"path": ', "tool_call_id": "call_1", "part_kind": "tool-call"}
_SEARCH: Final = {"tool_name": "web_search", "args": {"query": "x"}, "tool_call_id": "srv_1"}


def _conversation(part: dict[str, Any]) -> list[dict[str, Any]]:
    question = {"content": "Hello.", "timestamp": _WHEN, "part_kind": "user-prompt"}
    answer = [part, {"content": "Hi.", "part_kind": "text"}]
    return [{"parts": [question], "kind": "request"}, {"parts": answer, "timestamp": _WHEN, "kind": "response"}]


def _thinking_part(content: str, **more: Any) -> dict[str, Any]:
    return {"content": content, **more, "part_kind": "thinking"}


WIRES: Final[dict[str, Any]] = {
    "thinking": _conversation(_thinking_part("A greeting.")),
    "signature of thinking": _conversation(
        _thinking_part("A greeting.", signature="c2VhbGVk", provider_name="anthropic")
    ),
    "redacted_thinking": _conversation(
        _thinking_part("", id="redacted_thinking", signature="c2VhbGVk", provider_name="anthropic")
    ),
    "invalid_tool_use": _conversation(_CALL),
    "opaque": _conversation({**_SEARCH, "provider_name": "openai", "part_kind": "builtin-tool-call"}),
}
