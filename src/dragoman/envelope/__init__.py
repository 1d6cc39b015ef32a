"""Agent message envelopes: typed JSON messages that agent runtimes store and exchange.

    normalize, normalize_many                   convert a message of either shape to an envelope
    to_provider_message, to_provider_messages   convert an envelope to a row of role, content and metadata
    text, tool_call, tool_result, …             a builder for each type
    ConversationResult, run_conversation        a pluggable runner, and validation of its result
    envelopes_from_messages, messages_from_envelopes
                                                lossless conversion to canonical messages and back

All functions are pure. Envelopes are plain dicts, and models and tools are called through callables.
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
