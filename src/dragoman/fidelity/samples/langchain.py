"""Conversations in LangChain's own words."""

from __future__ import annotations

from typing import Any, Final


def _answered(block: dict[str, Any]) -> list[dict[str, Any]]:
    said = {"content": [block, {"type": "text", "text": "Hi."}], "type": "ai", "tool_calls": []}
    return [{"type": "human", "data": {"content": "Hello.", "type": "human"}}, {"type": "ai", "data": said}]


WIRES: Final[dict[str, Any]] = {
    "thinking": _answered({"type": "reasoning", "reasoning": "A greeting."}),
    "signature of thinking": _answered({"type": "thinking", "thinking": "A greeting.", "signature": "c2VhbGVk"}),
    "redacted_thinking": _answered({"type": "redacted_thinking", "data": "c2VhbGVk"}),
    "opaque": _answered({"type": "server_tool_call", "id": "srv_1", "name": "web_search", "args": {"query": "x"}}),
}
