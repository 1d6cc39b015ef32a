"""Events of sessions, turns, model calls and delegation."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

from dragoman.bus.types import Actor, Count, Milliseconds, Payload, Seconds, Sensitivity, Sha256, event
from dragoman.exchange import ErrorClass, StopReason

# --- sessions --------------------------------------------------------------------------------------------------------


@event("session.created", Actor.USER, Sensitivity.PRIVATE)
class SessionCreated(Payload, frozen=True, kw_only=True):
    """A session was created."""

    workspace_path: str  # working directory of its tools; may be empty
    workspace_hash: Sha256 | None = None  # hash of that path
    initial_active_model: str | None = None  # model selected for the session
    routing_policy_version: Sha256 | None = None  # hash of the policy file


@event("session.resumed", Actor.USER, Sensitivity.PSEUDONYMOUS)
class SessionResumed(Payload, frozen=True, kw_only=True):
    """A session with earlier messages was continued."""

    message_count: Count  # messages in the session
    active_model: str | None = None  # model selected for the session
    idle_seconds: Seconds | None = None  # time since its last change


@event("session.ended", Actor.SYSTEM, Sensitivity.PSEUDONYMOUS)
class SessionEnded(Payload, frozen=True, kw_only=True):
    """A session ended."""

    disposition: Literal["completed", "abandoned", "error"]  # how it ended
    turn_count: Count  # turns in the session
    total_cost_usd: Decimal  # cost of the session
    duration_seconds: Seconds  # time since its creation


# --- turns -----------------------------------------------------------------------------------------------------------


@event(
    "turn.started",
    Actor.USER,
    Sensitivity.PRIVATE,
    text_field="user_message_text_redacted",
    with_text=Sensitivity.USER_CONTROLLED,
)
class TurnStarted(Payload, frozen=True, kw_only=True):
    """A turn started with a user message."""

    user_message_hash: Sha256  # hash of role and content of the message
    user_message_text_redacted: str | None = None  # text of the message without secrets; only on request
    estimated_input_tokens: Count  # estimate for the whole history
    has_images: bool  # the model must support images
    has_tool_calls_in_history: bool  # the model must support tool calls


@event("turn.completed", Actor.AGENT, Sensitivity.PSEUDONYMOUS)
class TurnCompleted(Payload, frozen=True, kw_only=True):
    """A turn completed successfully."""

    stop_reason: StopReason  # stop reason of the last answer
    llm_call_count: Count  # model calls
    tool_call_count: Count  # tool calls
    total_input_tokens: Count  # sum over all calls, caches included
    total_output_tokens: Count  # sum over all calls
    total_cost_usd: Decimal | None  # sum over all priced calls; null if none has a price
    unpriced_calls: Count = 0  # calls without a known price
    wall_time_seconds: Seconds  # duration of the turn
    signals_extra: dict[str, Any] | None = None  # further measurements of an application
    user_id: str | None = None  # owner, as a pseudonym
    team_id: str | None = None  # team of the owner, as a pseudonym


@event("turn.cancelled", Actor.USER, Sensitivity.PSEUDONYMOUS)
class TurnCancelled(Payload, frozen=True, kw_only=True):
    """A turn was cancelled."""

    reason: Literal["user_cancel", "client_disconnect", "timeout"]  # cause of the cancellation
    partial_llm_calls: Count  # model calls started before
    partial_tool_calls: Count  # tool calls started before


@event("turn.failed", Actor.SYSTEM, Sensitivity.USER_CONTROLLED)
class TurnFailed(Payload, frozen=True, kw_only=True):
    """A turn failed without an answer."""

    error_code: str  # code of the error or the fault
    error_class: ErrorClass  # kind of failure
    error_message_redacted: str  # message without secrets
    llm_call_count: Count = 0  # model calls before the failure
    tool_call_count: Count = 0  # tool calls before the failure
    total_cost_usd: Decimal | None = Decimal(0)  # cost before the failure; null if no call has a price
    unpriced_calls: Count = 0  # calls without a known price
    wall_time_seconds: Seconds = 0.0  # duration of the turn


# --- model calls -----------------------------------------------------------------------------------------------------


@event("llm.call_started", Actor.AGENT, Sensitivity.PSEUDONYMOUS)
class LlmCallStarted(Payload, frozen=True, kw_only=True):
    """A model call started."""

    model: str  # canonical id
    provider: str  # provider of the model
    estimated_input_tokens: Count  # estimate for the request
    request_id: str  # own id of this call
    is_worker: bool = False  # a delegated agent makes the call
    omitted_messages: Count = 0  # oldest messages, which do not fit the context window


class RetryRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attempt of a model call that failed and was retried."""

    error_code: str  # code of the fault
    error_class: ErrorClass  # kind of failure
    delay_ms: Milliseconds  # pause before the next attempt


@event("llm.call_completed", Actor.AGENT, Sensitivity.PSEUDONYMOUS)
class LlmCallCompleted(Payload, frozen=True, kw_only=True):
    """A model call completed. The three counts of input tokens are disjoint."""

    model: str  # canonical id
    provider: str  # provider of the model
    input_tokens: Count  # neither read from nor written to a cache
    output_tokens: Count  # all generated tokens
    cached_input_tokens: Count = 0  # read from a cache
    cache_creation_input_tokens: Count = 0  # written to a cache
    cost_usd: Decimal | None  # cost by the price table; null if the model has no price
    pricing_version: str  # version of the price table; "unpriced" without a price
    latency_ms: Milliseconds  # from the request to the last byte
    stop_reason: StopReason  # stop reason of the answer
    produced_tool_calls: Count = 0  # tool calls in the answer
    produced_thinking_blocks: Count = 0  # thinking blocks in the answer
    request_id: str | None = None  # own id of this call
    response_model: str | None = None  # model that answered, as the provider names it
    time_to_first_token_ms: Milliseconds | None = None  # only for streamed answers
    retry_count: Count = 0  # failed attempts before this one
    retries: tuple[RetryRecord, ...] = ()  # these attempts
    gateway_key_id: str | None = None  # id of the caller's key
    inbound_shape: str | None = None  # dialect of the caller
    user_id: str | None = None  # owner, as a pseudonym
    team_id: str | None = None  # team of the owner, as a pseudonym


@event("llm.call_failed", Actor.AGENT, Sensitivity.USER_CONTROLLED)
class LlmCallFailed(Payload, frozen=True, kw_only=True):
    """A model call failed in every attempt."""

    model: str  # canonical id
    provider: str  # provider of the model
    error_class: ErrorClass  # kind of failure
    error_message_redacted: str  # message of the provider without secrets
    retry_count: Count  # attempts after the first one
    retries: tuple[RetryRecord, ...] = ()  # failed attempts before the last one
    latency_ms: Milliseconds  # duration of all attempts
    request_id: str | None = None  # own id of this call
    error_code: str | None = None  # code of the fault


# --- delegation ------------------------------------------------------------------------------------------------------


@event("delegate.started", Actor.AGENT, Sensitivity.PSEUDONYMOUS)
class DelegateStarted(Payload, frozen=True, kw_only=True):
    """An agent delegated a task to a worker."""

    worker_session_id: str  # session of the worker
    tool_use_id: str | None = None  # tool call that delegated the task
    tier: str | None = None  # fast, balanced or deep
    agent: str | None = None  # name of the worker
    model: str | None = None  # model of the worker
    task_hash: Sha256 | None = None  # hash of the task


@event("delegate.completed", Actor.WORKER, Sensitivity.PSEUDONYMOUS)
class DelegateCompleted(Payload, frozen=True, kw_only=True):
    """A worker completed its task."""

    worker_session_id: str  # session of the worker
    tool_use_id: str | None = None  # tool call that delegated the task
    turn_count: Count = 1  # turns of the worker
    total_cost_usd: Decimal | None = Decimal(0)  # cost of these turns; null if no call has a price
    unpriced_calls: Count = 0  # calls without a known price
    latency_ms: Milliseconds  # from the task to the result


DelegateFailure = Literal[
    "worker_error",
    "max_tokens_exceeded",
    "insufficient_context",
    "output_schema_validation_failed",
    "no_model_available_for_tier",
    "cancelled_by_user",
    "timeout",
]


@event("delegate.failed", Actor.WORKER, Sensitivity.USER_CONTROLLED)
class DelegateFailed(Payload, frozen=True, kw_only=True):
    """A worker failed."""

    worker_session_id: str | None = None  # session of the worker, if it has one
    tool_use_id: str | None = None  # tool call that delegated the task
    failure_mode: DelegateFailure  # cause of the failure
    error_message_redacted: str | None = None  # message without secrets
    latency_ms: Milliseconds | None = None  # from the task to the failure
