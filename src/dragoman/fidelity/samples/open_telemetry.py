"""Conversations in OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

from typing import Any, Final


def _conversation(part: dict[str, Any]) -> list[dict[str, Any]]:
    asked = {"role": "user", "parts": [{"type": "text", "content": "Hello."}]}
    return [asked, {"role": "assistant", "parts": [part, {"type": "text", "content": "Hi."}], "finish_reason": "stop"}]


WIRES: Final[dict[str, Any]] = {
    "thinking": _conversation({"type": "reasoning", "content": "A greeting."}),
    "opaque": _conversation({"type": "server_tool_call", "id": "srv_1", "name": "web_search", "server_tool_call": {}}),
}
