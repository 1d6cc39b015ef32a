"""Words of pydantic-ai, version 2: every object that it writes, with all its keys in its order.

    request_shape, response_shape, usage_shape    messages
    system_shape, user_shape, return_shape, …     parts of them
    format_time, time_of                            times, as it writes and reads them

It writes every key, also of what is not there, so what we would have written has them all too: then the residue of a
message is empty, or short. The one rule: no key stands here in another place than where the package writes it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

NAME: Final = "pydantic_ai"
Wire = dict[str, Any]


def format_time(when: datetime) -> str:
    """A time, as the package writes it."""
    return msgspec.json.encode(when).decode().strip('"')


def parse_time(value: Any) -> datetime | None:
    """The time that a text says; without a time zone it is taken for UTC."""
    if not isinstance(value, str):
        return None
    try:
        when = datetime.fromisoformat(value)
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# --- messages --------------------------------------------------------------------------------------------------------


def request_shape(parts: list[Wire], **fields: Any) -> Wire:
    """What is sent to a model."""
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
    """What a model answers."""
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
    """What an answer consumed."""
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
    """What a user says."""
    return {"content": content, "timestamp": when, "part_kind": "user-prompt"}


def feedback_shape(content: Any, when: str) -> Wire:
    """That an answer could not be used, and why."""
    return {"content": content, "retry": None, "timestamp": when, "part_kind": "retry-feedback"}


def retry_shape(content: Any, when: str, name: str | None, call_id: str | None) -> Wire:
    """The same in the words of version 1, about a call or about an answer."""
    call_fields = {"tool_name": name, "tool_call_id": call_id}
    return {"content": content, **call_fields, "timestamp": when, "part_kind": "retry-prompt"}


def return_shape(content: Any, when: str, name: str, call_id: str, outcome: str) -> Wire:
    """What a tool answers."""
    call_fields = {"tool_name": name, "content": content, "tool_call_id": call_id}
    rest = {"tool_kind": None, "metadata": None, "timestamp": when, "outcome": outcome, "retry": None}
    return {**call_fields, **rest, "part_kind": "tool-return"}


# --- parts of both ---------------------------------------------------------------------------------------------------


def compaction_shape(text: str) -> Wire:
    """A summary of what was said before."""
    origin = {"id": None, "provider_name": None, "provider_details": None}
    return {"content": text, **origin, "metadata": None, "part_kind": "compaction"}


def speech_shape(speaker: str, transcript: str | None, audio: Wire | None) -> Wire:
    """Something spoken."""
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
    """What a model says."""
    origin = {"id": None, "provider_name": None, "provider_details": None}
    return {"content": text, **origin, "citations": None, "part_kind": "text"}


def thinking_shape(text: str, part_id: str | None, signature: str | None, provider: str | None) -> Wire:
    """What a model thinks."""
    origin = {"id": part_id, "signature": signature, "provider_name": provider, "provider_details": None}
    return {"content": text, **origin, "part_kind": "thinking"}


def call_shape(name: str, args: Any, call_id: str) -> Wire:
    """A call."""
    call_fields = {"tool_name": name, "args": args, "tool_call_id": call_id, "tool_kind": None}
    return {**call_fields, "id": None, "provider_name": None, "provider_details": None, "part_kind": "tool-call"}
