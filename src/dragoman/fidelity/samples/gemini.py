"""Requests in Gemini's own words."""

from __future__ import annotations

from typing import Any, Final


def _said(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    model = [{"role": "model", "parts": [*parts, {"text": "Hi."}]}] if parts else []
    asked = [{"role": "user", "parts": [{"text": "Go on."}]}] if parts else []
    return {"contents": [{"role": "user", "parts": [{"text": "Hello."}]}, *model, *asked], **more}


_THOUGHT: Final = {"text": "A greeting.", "thought": True, "thoughtSignature": "CiQB0e2Kb2Fr"}

WIRES: Final[dict[str, Any]] = {
    "thinking": _said(_THOUGHT),
    "signature of thinking": _said(_THOUGHT),
    "opaque": _said({"executableCode": {"language": "PYTHON", "code": "print(1)"}}),
    "opaque tool": _said(tools=[{"googleSearch": {}}]),
    "model": {"model": "models/some-model", **_said()},
    "in its own words": _said(safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]),
}
