"""Conversations as UI messages of the AI SDK."""

from __future__ import annotations

from typing import Any, Final

_USER: Final = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello."}]}
_SAID: Final = {"type": "text", "text": "Hi.", "state": "done"}


def _conversation(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [_USER, {"id": "m2", "role": "assistant", "parts": [{"type": "step-start"}, part, _SAID]}]


def _reasoning_part(text: str, **seal: str) -> dict[str, Any]:
    return {"type": "reasoning", "text": text, "providerMetadata": {"anthropic": seal}}


WIRES: Final[dict[str, Any]] = {
    "thinking": _conversation({"type": "reasoning", "text": "A greeting.", "state": "done"}),
    "signature of thinking": _conversation(_reasoning_part("A greeting.", signature="c2VhbGVk")),
    "redacted_thinking": _conversation(_reasoning_part("", redactedData="c2VhbGVk")),
    "opaque": _conversation({"type": "source-url", "sourceId": "s1", "url": "https://example.com/"}),
}
