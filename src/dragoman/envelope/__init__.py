"""Agent message envelopes: the typed, JSON-friendly messages that agent runtimes keep and hand to each other.

    normalize, normalize_many                   a message in either shape as the canonical envelope
    to_provider_message, to_provider_messages   the envelope as a row of role, content and metadata
    text, tool_call, tool_result, …             a builder for each type
    ConversationResult, run_conversation        a pluggable runner, and the contract of what it returns
    envelopes_from_messages, messages_from_envelopes
                                                canonical sessions, without loss in either direction

Everything here is pure: envelopes are plain dicts, and what runs a model or a tool comes in as a callable.
"""

from dragoman.envelope.builders import (
    approval_required,
    delta,
    error,
    final_result,
    input_required,
    multimodal_part,
    text,
    tool_call,
    tool_result,
)
from dragoman.envelope.converter import envelope_groups, envelopes_from_messages, messages_from_envelopes
from dragoman.envelope.normalization import (
    SCHEMA,
    TYPES,
    VERSION,
    Envelope,
    normalize,
    normalize_many,
    supported_types,
    to_provider_message,
    to_provider_messages,
    type_of,
)
from dragoman.envelope.runner import ConversationCall, ConversationResult, Runner, run_conversation
from dragoman.envelope.tool_loop import ToolLoop, tool_call_text, tool_result_text

__all__ = [
    "SCHEMA",
    "TYPES",
    "VERSION",
    "ConversationCall",
    "ConversationResult",
    "Envelope",
    "Runner",
    "ToolLoop",
    "approval_required",
    "delta",
    "envelope_groups",
    "envelopes_from_messages",
    "error",
    "final_result",
    "input_required",
    "messages_from_envelopes",
    "multimodal_part",
    "normalize",
    "normalize_many",
    "run_conversation",
    "supported_types",
    "text",
    "to_provider_message",
    "to_provider_messages",
    "tool_call",
    "tool_call_text",
    "tool_result",
    "tool_result_text",
    "type_of",
]
