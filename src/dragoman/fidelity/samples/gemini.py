"""Requests with fields of Gemini only."""

from __future__ import annotations

from typing import Any, Final


def _request(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    model = [{"role": "model", "parts": [*parts, {"text": "Hi."}]}] if parts else []
    asked = [{"role": "user", "parts": [{"text": "Go on."}]}] if parts else []
    return {"contents": [{"role": "user", "parts": [{"text": "Hello."}]}, *model, *asked], **more}


_THOUGHT: Final = {"text": "A greeting.", "thought": True, "thoughtSignature": "CiQB0e2Kb2Fr"}


def _reply_with_usage(**counts: Any) -> dict[str, Any]:
    """Return a reply with these token counts."""
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 50, "totalTokenCount": 150, **counts}
    candidate = {"content": {"role": "model", "parts": [{"text": "Hi."}]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "some-model"}


WIRES: Final[dict[str, Any]] = {
    "thinking": _request(_THOUGHT),
    "signature of thinking": _request(_THOUGHT),
    "opaque": _request({"executableCode": {"language": "PYTHON", "code": "print(1)"}}),
    "opaque tool": _request(tools=[{"googleSearch": {}}]),
    "model": {"model": "models/some-model", **_request()},
    "count: input_audio_tokens": _reply_with_usage(promptTokensDetails=[{"modality": "AUDIO", "tokenCount": 3}]),
    "count: output_audio_tokens": _reply_with_usage(candidatesTokensDetails=[{"modality": "AUDIO", "tokenCount": 2}]),
    "web search": _request(tools=[{"googleSearch": {}}]),
    "code execution": _request(tools=[{"codeExecution": {}}]),
    "web page as context": _request(tools=[{"urlContext": {}}]),
    "in its own words": _request(safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]),
}
