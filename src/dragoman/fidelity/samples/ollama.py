"""Requests with fields of Ollama only."""

from __future__ import annotations

from typing import Any, Final

_USER: Final = {"role": "user", "content": "Hello."}


def _request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "some-model", "messages": [_USER, *messages], "stream": False, **more}


WIRES: Final[dict[str, Any]] = {
    "thinking": _request(
        {"role": "assistant", "content": "Hi.", "thinking": "A greeting."}, {"role": "user", "content": "Go on."}
    ),
    "in its own words": _request(keep_alive="5m"),
}
