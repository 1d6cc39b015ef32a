"""Ids and times of replies that are written in another dialect than the provider's. Pure.

    reply_identity("anthropic", new_id, created_at)     {"id": "msg_…"}

``echo`` adds what the Responses API repeats from the request.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

_ECHO: Final = (
    "background",
    "frequency_penalty",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "presence_penalty",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "store",
    "temperature",
    "tool_choice",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
)


def reply_identity(dialect: str, new_id: str, created_at: datetime) -> dict[str, Any]:
    """Return the top-level fields that identify a reply in a dialect."""
    match dialect:
        case "anthropic":
            return {"id": f"msg_{new_id}"}
        case "openai_chat":
            return {"id": f"chatcmpl-{new_id}", "created": int(created_at.timestamp())}
        case "openai_responses":
            return {"id": f"resp_{new_id}", "created_at": int(created_at.timestamp()), "completed_at": None}
        case "cohere":
            return {"id": new_id}
        case "ollama" | "ollama_generate":
            return {"created_at": created_at.isoformat().replace("+00:00", "Z")}
        case "gemini":
            return {"responseId": new_id}
        case _:
            return {}


def end_fields(dialect: str, now: datetime) -> dict[str, Any]:
    """Return the top-level fields that a reply has at its end only."""
    return {"completed_at": int(now.timestamp())} if dialect == "openai_responses" else {}


def call_times(dialect: str, total_s: float, output_s: float | None) -> dict[str, Any]:
    """Return the times of a call that its reply has at its end; ``output_s`` is the time since the first token."""
    if dialect not in ("ollama", "ollama_generate"):
        return {}
    fields = {"total_duration": round(total_s * 1e9)}  # nanoseconds
    return fields if output_s is None else {**fields, "eval_duration": round(output_s * 1e9)}


def echo_request(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Responses request that its response repeats."""
    echo = {name: body[name] for name in _ECHO if body.get(name) is not None}
    echo["store"] = body.get("store") is not False
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        echo["tools"] = [_complete_tool(tool) for tool in tools]
    text = body.get("text")
    if isinstance(text, dict):
        echo["text"] = _complete_text(text)
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict):
        echo["reasoning"] = {"effort": None, "summary": None, **reasoning}
    return echo


def _complete_text(text: dict[str, Any]) -> dict[str, Any]:
    fields = {"format": {"type": "text"}, **{name: value for name, value in text.items() if value is not None}}
    if isinstance(fields["format"], dict) and fields["format"].get("type") == "json_schema":
        fields["format"] = {"description": None, **fields["format"]}
        fields["format"]["strict"] = fields["format"].get("strict") is True
    return fields


def _complete_tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}
