"""Conversations in the format of LangChain."""

from __future__ import annotations

from typing import Any, Final


def _conversation(block: dict[str, Any]) -> list[dict[str, Any]]:
    answer = {"content": [block, {"type": "text", "text": "Hi."}], "type": "ai", "tool_calls": []}
    return [{"type": "human", "data": {"content": "Hello.", "type": "human"}}, {"type": "ai", "data": answer}]


WIRES: Final[dict[str, Any]] = {
    "thinking": _conversation({"type": "reasoning", "reasoning": "A greeting."}),
    "signature of thinking": _conversation({"type": "thinking", "thinking": "A greeting.", "signature": "c2VhbGVk"}),
    "redacted_thinking": _conversation({"type": "redacted_thinking", "data": "c2VhbGVk"}),
    "opaque": _conversation({"type": "server_tool_call", "id": "srv_1", "name": "web_search", "args": {"query": "x"}}),
}
