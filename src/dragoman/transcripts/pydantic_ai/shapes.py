"""Shapes of pydantic-ai, version 2: every object that it writes, with all keys in its order.

    request_shape, response_shape, usage_shape    messages
    system_shape, user_shape, return_shape, …     parts
    format_time, parse_time                       times

The package writes every key, also of absent values. Default output with all keys keeps the residue empty or short.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

NAME: Final = "pydantic_ai"
Wire = dict[str, Any]


def format_time(when: datetime) -> str:
    """Format a time like the package."""
    return msgspec.json.encode(when).decode().strip('"')


def parse_time(value: Any) -> datetime | None:
    """Return the time of a text; UTC without a time zone."""
    if not isinstance(value, str):
        return None
    try:
        when = datetime.fromisoformat(value)
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# --- messages --------------------------------------------------------------------------------------------------------


def request_shape(parts: list[Wire], **fields: Any) -> Wire:
    """A request."""
    defaults = {
        "timestamp": None,
        "instructions": None,
        "kind": "request",
        "run_id": None,
        "conversation_id": None,
        "metadata": None,
        "state": "complete",
    }
    return {"parts": parts, **defaults, **fields}


def response_shape(parts: list[Wire], **fields: Any) -> Wire:
    """A response."""
    defaults = {
        "usage": None,
        "model_name": None,
        "model_id": None,
        "timestamp": None,
        "kind": "response",
        "provider_name": None,
        "provider_url": None,
        "canonical_system": None,
        "provider_details": None,
        "provider_response_id": None,
        "finish_reason": None,
        "run_id": None,
        "conversation_id": None,
        "metadata": None,
        "workspace_ref": None,
        "history_digest": None,
        "failed_attempts": None,
        "state": "complete",
    }
    return {"parts": parts, **defaults, **fields}


def usage_shape(**fields: Any) -> Wire:
    """Token counts."""
    defaults = {
        "input_tokens": 0,
        "cache_write_tokens": 0,
        "cache_write_1h_tokens": 0,
        "cache_read_tokens": 0,
        "output_tokens": 0,
        "output_reasoning_tokens": 0,
        "input_audio_tokens": 0,
        "cache_audio_read_tokens": 0,
        "output_audio_tokens": 0,
        "audio_seconds": 0.0,
        "details": {},
        "cost": None,
    }
    return {**defaults, **fields}


# --- parts of a request ----------------------------------------------------------------------------------------------


def system_shape(text: str, when: str) -> Wire:
    """A system prompt."""
    rest = {"dynamic_ref": None, "context_id": None, "scope": "conversation", "metadata": None}
    return {"content": text, "timestamp": when, **rest, "part_kind": "system-prompt"}


def instruction_delta_shape(text: str) -> Wire:
    """A change of the instructions."""
    return {"id": None, "content": text, "base_hash": None, "part_kind": "instruction-delta"}


def user_shape(content: Any, when: str) -> Wire:
    """A user prompt."""
    return {"content": content, "timestamp": when, "part_kind": "user-prompt"}


def feedback_shape(content: Any, when: str) -> Wire:
    """Feedback on an unusable response."""
    return {"content": content, "retry": None, "timestamp": when, "part_kind": "retry-feedback"}


def retry_shape(content: Any, when: str, name: str | None, call_id: str | None) -> Wire:
    """Feedback of version 1, on a call or on a response."""
    call_fields = {"tool_name": name, "tool_call_id": call_id}
    return {"content": content, **call_fields, "timestamp": when, "part_kind": "retry-prompt"}


def return_shape(content: Any, when: str, name: str, call_id: str, outcome: str) -> Wire:
    """A tool return."""
    call_fields = {"tool_name": name, "content": content, "tool_call_id": call_id}
    rest = {"tool_kind": None, "metadata": None, "timestamp": when, "outcome": outcome, "retry": None}
    return {**call_fields, **rest, "part_kind": "tool-return"}


# --- parts of both ---------------------------------------------------------------------------------------------------


def compaction_shape(text: str) -> Wire:
    """A summary of earlier messages."""
    origin = {"id": None, "provider_name": None, "provider_details": None}
    return {"content": text, **origin, "metadata": None, "part_kind": "compaction"}


def speech_shape(speaker: str, transcript: str | None, audio: Wire | None) -> Wire:
    """Speech."""
    speech_fields = {"speaker": speaker, "transcript": transcript, "audio": audio}
    times = {"interrupted_at_ms": None, "timestamps": None}
    return {
        **speech_fields,
        **times,
        "id": None,
        "provider_name": None,
        "provider_details": None,
        "part_kind": "speech",
    }


# --- parts of a response ---------------------------------------------------------------------------------------------


def text_shape(text: str) -> Wire:
    """Text of a model."""
    origin = {"id": None, "provider_name": None, "provider_details": None}
    return {"content": text, **origin, "citations": None, "part_kind": "text"}


def thinking_shape(text: str, part_id: str | None, signature: str | None, provider: str | None) -> Wire:
    """Reasoning of a model."""
    origin = {"id": part_id, "signature": signature, "provider_name": provider, "provider_details": None}
    return {"content": text, **origin, "part_kind": "thinking"}


def call_shape(name: str, args: Any, call_id: str) -> Wire:
    """A call."""
    call_fields = {"tool_name": name, "args": args, "tool_call_id": call_id, "tool_kind": None}
    return {**call_fields, "id": None, "provider_name": None, "provider_details": None, "part_kind": "tool-call"}
