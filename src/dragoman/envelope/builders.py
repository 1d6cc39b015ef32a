"""Builders for each type of envelope.

The payload holds the fields of the type, the metadata the fields of an extension or a provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.envelope.normalization import Envelope, build_envelope, default_role, infer_type

Content = str | list[Any]
Object = Mapping[str, Any]


def text(role: str, content: Content, metadata: Object | None = None) -> Envelope:
    """A text of any role. A list of parts or an error in the metadata changes the type."""
    fields = metadata or {}
    return build_envelope(role, content, infer_type(content, fields), {}, fields)


def tool_call(content: str, tool_name: str, parameters: Object, turn: int, metadata: Object | None = None) -> Envelope:
    """A tool call of the assistant. ``tool_call_text`` returns the content for people."""
    payload = {"tool_name": tool_name, "parameters": parameters, "turn": turn}
    return build_envelope("assistant", content, "tool_call", payload, metadata or {})


def tool_result(content: str, tool_name: str, payload: Object, metadata: Object | None = None) -> Envelope:
    """The result of a tool. Its role is ``user``, because it is sent to the model as user input."""
    return build_envelope("user", content, "tool_result", {**payload, "tool_name": tool_name}, metadata or {})


def input_required(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """A question that the user must answer."""
    return _build("input_required", content, payload, metadata)


def approval_required(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """An action that the user must approve. The payload describes it: action_id, kind, summary, preview, …"""
    return _build("approval_required", content, payload, metadata)


def final_result(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """The result of the conversation."""
    return _build("final_result", content, payload, metadata)


def error(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """A failure with a description as content."""
    return _build("error", content, payload, metadata)


def delta(content: Content, payload: Object | None = None, metadata: Object | None = None) -> Envelope:
    """A fragment of a streamed answer."""
    return _build("delta", content, payload, metadata)


def multimodal_part(
    role: str, content: Content, payload: Object | None = None, metadata: Object | None = None
) -> Envelope:
    """Parts of several kinds, of any role."""
    return build_envelope(role, content, "multimodal_part", payload or {}, metadata or {})


def _build(kind: str, content: Content, payload: Object | None, metadata: Object | None) -> Envelope:
    return build_envelope(default_role(kind), content, kind, payload or {}, metadata or {})
