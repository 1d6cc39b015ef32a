"""Requests with fields of Anthropic only."""

from __future__ import annotations

from typing import Any, Final

_USER: Final = {"role": "user", "content": "Hello."}


def _request(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    assistant = [{"role": "assistant", "content": list(blocks)}] if blocks else []
    asked = [{"role": "user", "content": "Go on."}] if blocks else []
    return {"model": "some-model", "max_tokens": 100, "messages": [_USER, *assistant, *asked], **more}


_SPOKEN: Final = {"type": "text", "text": "Hi."}
_THOUGHT: Final = {"type": "thinking", "thinking": "A greeting.", "signature": "EqQBCkYIAxgC"}
_SEARCH: Final = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "ULID"}}


def _reply_with_usage(**counts: Any) -> dict[str, Any]:
    """Return a reply with these token counts."""
    usage = {"input_tokens": 100, "output_tokens": 50, **counts}
    end = {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [_SPOKEN], **end}


WIRES: Final[dict[str, Any]] = {
    "thinking": _request(_THOUGHT, _SPOKEN),
    "signature of thinking": _request(_THOUGHT, _SPOKEN),
    "redacted_thinking": _request({"type": "redacted_thinking", "data": "EmwKAhgBEgy3"}, _SPOKEN),
    "opaque": _request(_SEARCH, _SPOKEN),
    "opaque tool": _request(tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]),
    "web search": _request(tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]),
    "web page as context": _request(tools=[{"type": "web_fetch_20250910", "name": "web_fetch"}]),
    "code execution": _request(tools=[{"type": "code_execution_20260521", "name": "code_execution"}]),
    "file id": _request(
        messages=[{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]}]
    ),
    "service_tier": _request(service_tier="standard_only"),
    "in its own words": _request(container="container_1"),
    "count: server_tool_calls": _reply_with_usage(server_tool_use={"web_search_requests": 1}),
    "count: reasoning_tokens": _reply_with_usage(output_tokens_details={"thinking_tokens": 5}),
    "count: cached for an hour": _reply_with_usage(
        cache_creation_input_tokens=10,
        cache_read_input_tokens=0,
        cache_creation={"ephemeral_5m_input_tokens": 6, "ephemeral_1h_input_tokens": 4},
    ),
}
