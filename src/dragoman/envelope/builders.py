"""Builders: one for each type of envelope.

They take what the type is about and give the canonical envelope. The one rule: the payload holds what the type
means, the metadata what an extension or a provider adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.envelope.normalization import Envelope, build_envelope, default_role, infer_type

Content = str | list[Any]
Object = Mapping[str, Any]


def text(role: str, content: Content, metadata: Object | None = None) -> Envelope:
    """Words of anybody. A list of parts, or an error in the metadata, makes it a message of that type."""
    fields = metadata or {}
    return build_envelope(role, content, infer_type(content, fields), {}, fields)


def tool_call(content: str, tool_name: str, parameters: Object, turn: int, metadata: Object | None = None) -> Envelope:
    """The assistant calls a tool. ``tool_call_text`` makes the content that people see."""
    payload = {"tool_name": tool_name, "parameters": parameters, "turn": turn}
    return build_envelope("assistant", content, "tool_call", payload, metadata or {})


def tool_result(content: str, tool_name: str, payload: Object, metadata: Object | None = None) -> Envelope:
    """What a tool answered. It is said to the model by the user, which is how it is sent."""
    return build_envelope("user", content, "tool_result", {**payload, "tool_name": tool_name}, metadata or {})


def input_required(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """The agent cannot go on without an answer."""
    return _build("input_required", content, payload, metadata)


def approval_required(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """The agent cannot go on without a yes. The payload says what for: action_id, kind, summary, preview, …"""
    return _build("approval_required", content, payload, metadata)


def final_result(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """What all of it came to."""
    return _build("final_result", content, payload, metadata)


def error(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """Something failed, and the content says what."""
    return _build("error", content, payload, metadata)


def delta(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """A piece of an answer that is still arriving."""
    return _build("delta", content, payload, metadata)


def multimodal_part(
    role: str, content: Content, payload: Object | None = None, metadata: Object | None = None
) -> Envelope:
    """Parts of several kinds, said by anybody."""
    return build_envelope(role, content, "multimodal_part", payload or {}, metadata or {})


def _build(kind: str, content: Content, payload: Object | None, metadata: Object | None) -> Envelope:
    return build_envelope(default_role(kind), content, kind, payload or {}, metadata or {})
