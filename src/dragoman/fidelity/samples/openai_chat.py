"""Requests with fields of Chat Completions, and of providers that extend it: DeepSeek's and OpenRouter's reasoning,
Mistral's documents.
"""

from __future__ import annotations

from typing import Any, Final

_USER: Final = {"role": "user", "content": "Hello."}


def _request(assistant: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    turn: list[dict[str, Any]] = []
    if assistant is not None:
        turn = [{"role": "assistant", "content": "Hi.", **assistant}, {"role": "user", "content": "Go on."}]
    return {"model": "some-model", "messages": [_USER, *turn], **more}


def _image_request(part: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": "Look."}, part]
    return {"model": "some-model", "messages": [{"role": "user", "content": content}]}


_DETAIL: Final = {"type": "reasoning.text", "text": "A greeting.", "signature": "EqQBCkYIAxgC"}

WIRES: Final[dict[str, Any]] = {
    "thinking": _request({"reasoning_content": "A greeting."}),
    "signature of thinking": _request({"reasoning_details": [_DETAIL]}),
    "redacted_thinking": _request({"reasoning_details": [{"type": "reasoning.encrypted", "data": "EmwKAhgBEgy3"}]}),
    "opaque": _image_request({"type": "file", "file": {"file_id": "file-1"}}),
    "document, url": _image_request({"type": "document_url", "document_url": "https://example.com/a.pdf"}),
    "opaque tool": _request(tools=[{"type": "openrouter:web_search"}]),
    "top_k": _request(top_k=40),
    "reasoning on": _request(thinking={"type": "enabled"}),
    "reasoning off": _request(thinking={"type": "disabled"}),
    "reasoning budget": _request(reasoning={"max_tokens": 2048}),
    "effort and budget": _request(reasoning={"effort": "high", "max_tokens": 2048}),
    "in its own words": _request(logit_bias={"50256": -100}),
}
