"""Requests with fields of the Responses API only."""

from __future__ import annotations

from typing import Any, Final

_USER: Final = {"role": "user", "content": "Hello."}


def _request(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    turn = [*items, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Go on."}] if items else []
    return {"model": "some-model", "input": [_USER, *turn], **more}


_SUMMARY: Final = [{"type": "summary_text", "text": "A greeting."}]
_THOUGHT: Final = {"type": "reasoning", "id": "rs_1", "summary": _SUMMARY, "encrypted_content": "gAAAAABo"}
_SECRET: Final = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABo"}
_SEARCH: Final = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "ULID"},
}

WIRES: Final[dict[str, Any]] = {
    "thinking": _request(_THOUGHT),
    "signature of thinking": _request(_THOUGHT),
    "redacted_thinking": _request(_SECRET),
    "opaque": _request(_SEARCH),
    "opaque tool": _request(tools=[{"type": "web_search"}]),
    "web search": _request(tools=[{"type": "web_search"}]),
    "code execution": _request(tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]),
    "file id": {
        "model": "some-model",
        "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}],
    },
    "in its own words": _request(previous_response_id="resp_1"),
}
