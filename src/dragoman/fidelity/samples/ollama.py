"""Requests in Ollama's own words."""

from __future__ import annotations

from typing import Any, Final

_USER: Final = {"role": "user", "content": "Hello."}


def _said(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "some-model", "messages": [_USER, *messages], "stream": False, **more}


WIRES: Final[dict[str, Any]] = {
    "thinking": _said(
        {"role": "assistant", "content": "Hi.", "thinking": "A greeting."}, {"role": "user", "content": "Go on."}
    ),
    "in its own words": _said(keep_alive="5m"),
}
