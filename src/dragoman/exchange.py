"""What is asked and what is answered, in nobody's wire format: tools, replies and faults.

A ``Reply`` is what came back from a model, whole or folded from a stream. It is not yet a message: the turn adds the
id, the reason for the model and the price. A ``Fault`` is a failure of the other side as a value, so that it can
travel in a stream, be stored, and be written out in another dialect. The one rule: a reply with a fault never looks
finished.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from dragoman.message import ContentBlock, ProviderRaw, TokenUsage, blocks_from
from dragoman.value import MadeByHand, Value, check_plain


class SideEffects(enum.StrEnum):
    """The most that a tool can do. It decides about confirmation, routing and how a call is traced."""

    NONE = "none"  # pure read or computation
    READ = "read"  # filesystem or network read
    WRITE = "write"  # filesystem write
    EXECUTE = "execute"  # shell or arbitrary code execution
    NETWORK = "network"  # outbound network mutation (POST, etc.)


class ToolDefinition(Value, metaclass=MadeByHand, frozen=True):
    """A tool that a model may call."""

    name: str  # canonical, snake_case, globally unique
    description: str  # what the model is told about it
    input_schema: dict[str, Any]  # JSON Schema, in the subset that every provider accepts
    side_effects: SideEffects  # the most that it can do, declared honestly
    requires_workspace: bool = True  # it works on files of a workspace

    def check_made(self) -> None:
        check_plain(self.input_schema, "input_schema")


class StopReason(enum.StrEnum):
    """Why a model stopped."""

    END_TURN = "end_turn"  # it was done
    MAX_TOKENS = "max_tokens"  # the limit on its output was reached
    STOP_SEQUENCE = "stop_sequence"  # it said one of the words that end it
    TOOL_USE = "tool_use"  # it waits for the results of its calls
    REFUSAL = "refusal"  # it, or a filter of its provider, declined
    PAUSED = "paused"  # the provider wants the same request again, to go on
    CANCELLED = "cancelled"  # we stopped it
    ERROR = "error"  # it failed; the fault says how
    UNKNOWN = "unknown"  # it ended properly and did not say why


class ErrorClass(enum.StrEnum):
    """What kind of failure, so far as it matters for what to do next."""

    RATE_LIMIT = "rate_limit"
    AUTH = "auth"
    SERVER_ERROR = "server_error"
    NETWORK = "network"
    CONTEXT_OVERFLOW = "context_overflow"
    INVALID_REQUEST = "invalid_request"
    CANCELLED = "cancelled"
    OTHER = "other"


class Fault(Value, frozen=True, kw_only=True):
    """A failure of the other side."""

    code: str  # stable, ours: stream_incomplete, overloaded, tool_input_invalid, …
    message: str  # what happened, for people
    error_class: ErrorClass = ErrorClass.OTHER  # what kind
    retryable: bool = False  # whether the same request may work later
    retry_after_s: float | None = None  # how long the other side asked us to wait
    status: int | None = None  # HTTP status, if there was one
    provider: str | None = None  # who failed
    provider_code: str | None = None  # what the provider calls it
    request_id: str | None = None  # the provider's name for the request, to ask them about it


class Reply(Value, metaclass=MadeByHand, frozen=True, kw_only=True):
    """What a model answered."""

    content: tuple[ContentBlock, ...] = ()  # blocks, in order
    stop_reason: StopReason  # why it stopped
    stop_sequence: str | None = None  # the word that ended it
    usage: TokenUsage | None = None  # what it consumed, if the provider said
    model: str | None = None  # the model that really answered, in the provider's words
    fault: Fault | None = None  # set if, and only if, it did not end well; the content is what arrived before
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about it

    def check_made(self) -> None:
        msgspec.structs.force_setattr(self, "content", blocks_from(self.content))
        if (self.fault is not None) != (self.stop_reason is StopReason.ERROR):
            raise ValueError("stop_reason: a reply has a fault if, and only if, it stops with 'error'")
        if self.fault is not None and self.stop_sequence is not None:
            raise ValueError("stop_sequence: a reply that failed was not ended by a word")
