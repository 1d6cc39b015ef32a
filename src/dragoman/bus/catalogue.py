"""Every event that there is, as a struct.

    CATALOGUE[event_type]            the payload's class
    parse_payload(event_type, plain)  a payload from plain values, or ``EventError`` with everything that is wrong

A class says its type, who usually does it (``actor``) and how private it is (``floor``); an event may be emitted as
less private than that, never as more. Hashes are SHA-256 in hexadecimal, money is exact, times are ISO 8601 in UTC.

The one rule: a payload holds no text that a person or a model wrote, but where its field says ``redacted`` or
``summary``. Two names are spelled as the format's specification spells them, ``tool_input_invalid`` and
``routing_constraint_failure``; the spelling with a dot is accepted for both. Names that begin with ``message.``,
``text.``, ``thinking.`` or ``tool.use_`` are those of a reply's stream, and no event has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec

from dragoman.bus.types import Actor, Payload, Sensitivity
from dragoman.errors import EventError, UnknownEventError
from dragoman.exchange import ErrorClass, SideEffects, StopReason

AnyPayload = TypeVar("AnyPayload", bound=Payload)
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

_PRIVATE: Final = Sensitivity.PRIVATE
_USER_CONTROLLED: Final = Sensitivity.USER_CONTROLLED
_PSEUDONYMOUS: Final = Sensitivity.PSEUDONYMOUS
_AGGREGATABLE: Final = Sensitivity.AGGREGATABLE


# --- sessions --------------------------------------------------------------------------------------------------------


class SessionCreated(Payload, frozen=True, kw_only=True):
    """A session was made."""

    event_type: ClassVar = "session.created"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PRIVATE
    workspace_path: str  # where its tools work; may be empty
    workspace_hash: Sha256 | None = None  # of that path
    initial_active_model: str | None = None  # the model that was chosen for it
    routing_policy_version: Sha256 | None = None  # of the policy file's text


class SessionResumed(Payload, frozen=True, kw_only=True):
    """A session goes on after a while."""

    event_type: ClassVar = "session.resumed"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    message_count: Count  # how many messages it has
    active_model: str | None = None  # the model that is chosen for it
    idle_seconds: Seconds | None = None  # since something last happened in it


class SessionEnded(Payload, frozen=True, kw_only=True):
    """A session ended."""

    event_type: ClassVar = "session.ended"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PSEUDONYMOUS
    disposition: Literal["completed", "abandoned", "error"]  # how
    turn_count: Count  # how many turns it had
    total_cost_usd: Decimal  # what it cost
    duration_seconds: Seconds  # from its beginning


# --- turns -----------------------------------------------------------------------------------------------------------


class TurnStarted(Payload, frozen=True, kw_only=True):
    """A user's message came, and a turn begins."""

    event_type: ClassVar = "turn.started"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PRIVATE
    user_message_hash: Sha256  # of the message's role and content
    user_message_text_redacted: str | None = None  # what was said, without secrets; only when asked for
    estimated_input_tokens: Count  # of the whole history
    has_images: bool  # whether the model has to see
    has_tool_calls_in_history: bool  # whether it has to understand calls

    def sensitivity(self) -> Sensitivity:
        return self.floor if self.user_message_text_redacted is None else _USER_CONTROLLED


class TurnCompleted(Payload, frozen=True, kw_only=True):
    """A turn ended as it should."""

    event_type: ClassVar = "turn.completed"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _PSEUDONYMOUS
    stop_reason: StopReason  # why the last answer ended
    llm_call_count: Count  # how often a model was called
    tool_call_count: Count  # how often a tool was
    total_input_tokens: Count  # of every call, caches included
    total_output_tokens: Count  # of every call
    total_cost_usd: Decimal | None  # of every call that has a price; null if none has
    unpriced_calls: Count = 0  # calls for which no price was known
    wall_time_seconds: Seconds  # from its beginning to its end
    signals_extra: dict[str, Any] | None = None  # anything else that an application measures
    user_id: str | None = None  # whose it is, as a pseudonym
    team_id: str | None = None  # whose team's it is, as a pseudonym


class TurnCancelled(Payload, frozen=True, kw_only=True):
    """A turn was stopped."""

    event_type: ClassVar = "turn.cancelled"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    reason: Literal["user_cancel", "client_disconnect", "timeout"]  # why
    partial_llm_calls: Count  # calls of models that had begun
    partial_tool_calls: Count  # calls of tools that had begun


class TurnFailed(Payload, frozen=True, kw_only=True):
    """A turn ended without an answer."""

    event_type: ClassVar = "turn.failed"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _USER_CONTROLLED
    error_code: str  # of the error or the fault
    error_class: ErrorClass  # what kind
    error_message_redacted: str  # what happened, without secrets
    llm_call_count: Count = 0  # how often a model had been called
    tool_call_count: Count = 0  # how often a tool had been
    total_cost_usd: Decimal | None = Decimal(0)  # what it cost until then; null if no call has a price
    unpriced_calls: Count = 0  # calls for which no price was known
    wall_time_seconds: Seconds = 0.0  # from its beginning to its end


# --- calls of models -------------------------------------------------------------------------------------------------


class LlmCallStarted(Payload, frozen=True, kw_only=True):
    """A model is called."""

    event_type: ClassVar = "llm.call_started"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _PSEUDONYMOUS
    model: str  # canonical id
    provider: str  # who serves it
    estimated_input_tokens: Count  # of what is sent
    request_id: str  # ours, for this call
    is_worker: bool = False  # whether it is a call of an agent that was delegated to


class LlmCallCompleted(Payload, frozen=True, kw_only=True):
    """A model answered. The four counts of tokens are disjoint but for the output."""

    event_type: ClassVar = "llm.call_completed"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _PSEUDONYMOUS
    model: str  # canonical id
    provider: str  # who served it
    input_tokens: Count  # neither read from nor written to a cache
    output_tokens: Count  # everything generated
    cached_input_tokens: Count = 0  # read from a cache
    cache_creation_input_tokens: Count = 0  # written to a cache
    cost_usd: Decimal | None  # from our price table; null if it has no price
    pricing_version: str  # which table; "unpriced" if it has no price
    latency_ms: Milliseconds  # from the request to the last byte
    stop_reason: StopReason  # why it ended
    produced_tool_calls: Count = 0  # calls in the answer
    produced_thinking_blocks: Count = 0  # blocks of thinking in the answer
    request_id: str | None = None  # ours, for this call
    response_model: str | None = None  # the model that really answered, in the provider's words
    time_to_first_token_ms: Milliseconds | None = None  # where the answer was streamed
    retry_count: Count = 0  # attempts that failed before this one
    gateway_key_id: str | None = None  # the key that a caller came with, by its id
    inbound_shape: str | None = None  # the dialect that a caller spoke
    user_id: str | None = None  # whose it is, as a pseudonym
    team_id: str | None = None  # whose team's it is, as a pseudonym


class LlmCallFailed(Payload, frozen=True, kw_only=True):
    """A call of a model failed, every attempt of it."""

    event_type: ClassVar = "llm.call_failed"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _USER_CONTROLLED
    model: str  # canonical id
    provider: str  # who was asked
    error_class: ErrorClass  # what kind of failure
    error_message_redacted: str  # what the provider said, without secrets
    retry_count: Count  # attempts after the first one
    latency_ms: Milliseconds  # of all attempts
    request_id: str | None = None  # ours, for this call
    error_code: str | None = None  # the fault's


# --- tools -----------------------------------------------------------------------------------------------------------


class ToolCalled(Payload, frozen=True, kw_only=True):
    """A tool begins to work."""

    event_type: ClassVar = "tool.called"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _PSEUDONYMOUS
    tool_use_id: str  # the call
    tool_name: str  # the tool
    input_hash: Sha256  # of the input's canonical JSON
    input_size_bytes: Count  # of the same
    side_effects: SideEffects  # the most that the tool can do


class ToolCompleted(Payload, frozen=True, kw_only=True):
    """A tool gave a result."""

    event_type: ClassVar = "tool.completed"
    actor: ClassVar = Actor.TOOL
    floor: ClassVar = _PRIVATE
    tool_use_id: str  # the call
    tool_name: str | None = None  # the tool
    success: bool  # whether it did what was asked
    output_size_bytes: Count  # of its result
    latency_ms: Milliseconds  # from the call to the result
    files_modified: tuple[str, ...] | None = None  # paths in the workspace
    command_executed: str | None = None  # without secrets


class ToolCompletedLate(Payload, frozen=True, kw_only=True):
    """A tool ended after its call had been answered as failed or cancelled. No model is told in the same turn."""

    event_type: ClassVar = "tool.completed_late"
    actor: ClassVar = Actor.TOOL
    floor: ClassVar = _PRIVATE
    tool_use_id: str  # the call
    tool_name: str  # the tool
    success: bool  # whether it did what was asked
    output_size_bytes: Count  # of its result
    latency_ms: Milliseconds  # from the call to the result


ToolErrorClass = Literal[
    "timeout",
    "permission_denied",
    "not_found",
    "validation_error",
    "execution_error",
    "cancelled",
    "user_denied",
    "confirmation_timeout",
]


class ToolFailed(Payload, frozen=True, kw_only=True):
    """A tool gave no result."""

    event_type: ClassVar = "tool.failed"
    actor: ClassVar = Actor.TOOL
    floor: ClassVar = _PRIVATE
    tool_use_id: str  # the call
    tool_name: str | None = None  # the tool
    error_class: ToolErrorClass  # why not
    error_message: str  # what happened, without secrets
    latency_ms: Milliseconds  # from the call to the failure


class ToolInputInvalid(Payload, frozen=True, kw_only=True):
    """A model called a tool with something that does not fit its schema. The tool was not run."""

    event_type: ClassVar = "tool_input_invalid"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _PRIVATE
    tool_name: str  # the tool
    validation_errors: tuple[str, ...]  # each begins with its place
    tool_use_id: str | None = None  # the call


class ToolConfirmationRequested(Payload, frozen=True, kw_only=True):
    """Somebody is asked whether a tool may do it."""

    event_type: ClassVar = "tool.confirmation_requested"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _PRIVATE
    tool_use_id: str  # the call
    tool_name: str  # the tool
    side_effects: SideEffects | None = None  # the most that the tool can do
    confirmation_request_id: str  # what the answer names
    input_summary: str  # what it is about to do, without secrets
    projected_modifications: tuple[str, ...] | None = None  # paths that would change
    command_summary: str | None = None  # the command that would run, without secrets
    expires_at: datetime | None = None  # after which silence means no; none: whoever is asked has all the time


class ToolConfirmationResolved(Payload, frozen=True, kw_only=True):
    """Somebody said whether a tool may do it, or nobody did."""

    event_type: ClassVar = "tool.confirmation_resolved"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    tool_use_id: str  # the call
    tool_name: str | None = None  # the tool
    confirmation_request_id: str  # which question
    decision: Literal["allow", "deny", "timeout"]  # the answer
    scope: Literal["once", "session"] | None = None  # for how long it holds
    latency_ms: Milliseconds | None = None  # how long it took


# --- routing ---------------------------------------------------------------------------------------------------------

Policy = Literal[
    "per_message_override",
    "manual_sticky",
    "rule",
    "pattern",
    "delegate_request",
    "workspace_default",
    "global_default",
]


class PatternAlternative(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that earlier turns speak for."""

    model: str
    score: float
    sample_size: Count


class RouteStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One slot of the chain, and what came of it."""

    policy: Policy  # which slot
    verdict: Literal["not_applicable", "deferred", "rejected", "chose"]  # what came of it
    candidate_model: str | None = None  # the model that it proposed
    reason: str  # why
    rule_name: str | None = None  # the rule that fits
    confidence: Share | None = None  # of the pattern
    pattern_alternatives: tuple[PatternAlternative, ...] | None = None  # what else the pattern speaks for
    validation_failure: str | None = None  # why the candidate was rejected


class RouteDecided(Payload, frozen=True, kw_only=True):
    """Which model a turn uses, and why: exactly one in every turn."""

    event_type: ClassVar = "route.decided"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PSEUDONYMOUS
    chosen_model: str  # empty if none could be chosen
    winner_index: Annotated[int, msgspec.Meta(ge=-1)]  # of the step in the chain; -1 if none
    elapsed_ms: Milliseconds  # how long it took
    chain: tuple[RouteStep, ...]  # the steps up to the one that chose


class RouteOverridden(Payload, frozen=True, kw_only=True):
    """A person chose another model than the chain had."""

    event_type: ClassVar = "route.overridden"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    previous_model: str  # what the chain had chosen
    chosen_model: str  # what the person chose
    source: Literal["per_message_override", "manual_sticky"]  # how


class RoutingConstraintFailure(Payload, frozen=True, kw_only=True):
    """A model that was chosen explicitly cannot do this turn. Nothing was changed."""

    event_type: ClassVar = "routing_constraint_failure"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PSEUDONYMOUS
    source: Literal["per_message_override", "manual_sticky", "swap"]  # who chose it
    model: str  # the model that was refused
    validation_failure: str  # why
    active_model: str | None = None  # the model that stays
    would_fall_back_to: str | None = None  # what the chain would have chosen without it
    message: str | None = None  # what a person is told


class RoutingPolicyInvalid(Payload, frozen=True, kw_only=True):
    """The policy file has errors."""

    event_type: ClassVar = "routing.policy_invalid"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PRIVATE
    policy_path: str  # which file
    errors: tuple[str, ...]  # every one, with its place
    using_last_known_good: bool  # whether what it said before still holds


class RoutingProviderUnavailable(Payload, frozen=True, kw_only=True):
    """A provider, or some models of it, failed too often and is left out for a while."""

    event_type: ClassVar = "routing.provider_unavailable"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _AGGREGATABLE
    provider: str  # who
    scope: Literal["model_specific", "provider_wide"]  # some models, or all
    models_affected: tuple[str, ...]  # which
    trigger_reason: str  # what made it so


class RoutingProviderRecovered(Payload, frozen=True, kw_only=True):
    """A provider, or some models of it, can be chosen again."""

    event_type: ClassVar = "routing.provider_recovered"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _AGGREGATABLE
    provider: str  # who
    scope: Literal["model_specific", "provider_wide"]  # some models, or all
    models_affected: tuple[str, ...]  # which
    trigger_reason: str | None = None  # what made it so
    downtime_seconds: Seconds  # for how long it was left out


class ProviderDegraded(Payload, frozen=True, kw_only=True):
    """A provider is slow or fails often, and is still used."""

    event_type: ClassVar = "provider.degraded"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _AGGREGATABLE
    provider: str  # who
    models_affected: tuple[str, ...] = ()  # which
    error_rate: Share | None = None  # of its last calls
    latency_ms: Milliseconds | None = None  # of its last calls
    reason: str  # in words


# --- what is learned -------------------------------------------------------------------------------------------------


class PatternRecorded(Payload, frozen=True, kw_only=True):
    """A turn became a sample that later routing learns from."""

    event_type: ClassVar = "pattern.recorded"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PSEUDONYMOUS
    pattern_id: str  # the sample
    primary_model: str  # the model that did it
    success: Share  # how well
    sample_size: Count = 1  # how many turns it stands for
    cost_usd: Decimal | None = None  # what it cost


class PatternMatched(Payload, frozen=True, kw_only=True):
    """Earlier turns spoke for a model."""

    event_type: ClassVar = "pattern.matched"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PSEUDONYMOUS
    model: str  # the model
    confidence: Share  # how far ahead of the next one
    sample_size: Count  # how many turns speak for it
    alternatives: tuple[PatternAlternative, ...] = ()  # the other ones


class PatternEvicted(Payload, frozen=True, kw_only=True):
    """Samples were given up."""

    event_type: ClassVar = "pattern.evicted"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _AGGREGATABLE
    count: Count  # how many
    reason: str  # why


class PatternOverrideDismissed(Payload, frozen=True, kw_only=True):
    """A person declined what earlier turns spoke for."""

    event_type: ClassVar = "pattern.override_dismissed"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    model: str  # the model that was proposed


class SkillLoaded(Payload, frozen=True, kw_only=True):
    """A skill was put before the model."""

    event_type: ClassVar = "skill.loaded"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _USER_CONTROLLED
    skill_name: str  # which
    skill_hash: Sha256 | None = None  # of its text
    reason: str | None = None  # why


class SkillCreated(Payload, frozen=True, kw_only=True):
    """A skill was written."""

    event_type: ClassVar = "skill.created"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _USER_CONTROLLED
    skill_name: str  # which
    skill_hash: Sha256 | None = None  # of its text


class MemoryUpdated(Payload, frozen=True, kw_only=True):
    """Something was remembered, or remembered differently."""

    event_type: ClassVar = "memory.updated"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _USER_CONTROLLED
    memory_id: str  # which
    change: Literal["created", "changed", "deleted"]  # what was done
    size_bytes: Count | None = None  # of what is remembered now


class MemoryEviction(Payload, frozen=True, kw_only=True):
    """Something was forgotten to make room."""

    event_type: ClassVar = "memory.eviction"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _USER_CONTROLLED
    memory_ids: tuple[str, ...]  # which
    reason: str  # why


# --- evaluations and feedback ----------------------------------------------------------------------------------------


class EvalStarted(Payload, frozen=True, kw_only=True):
    """A turn or a task is being judged."""

    event_type: ClassVar = "eval.started"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PSEUDONYMOUS
    evaluation_id: str  # which evaluation
    evaluator: str  # who judges
    evaluator_model: str | None = None  # with which model
    task_id: str | None = None  # the task, where it is one


class EvalCompleted(Payload, frozen=True, kw_only=True):
    """A turn or a task was judged."""

    event_type: ClassVar = "eval.completed"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _USER_CONTROLLED
    evaluation_id: str  # which evaluation
    evaluator: str  # who judged
    score: Share | None = None  # from 0 to 1
    success: bool | None = None  # whether it is good enough
    rationale: str | None = None  # why, without secrets
    evaluator_model: str | None = None  # with which model
    cost_usd: Decimal | None = None  # of judging
    latency_ms: Milliseconds | None = None  # of judging
    task_id: str | None = None  # the task, where it is one

    def sensitivity(self) -> Sensitivity:
        return self.floor if self.rationale is not None else _PSEUDONYMOUS


class EvalFailed(Payload, frozen=True, kw_only=True):
    """Nobody could judge."""

    event_type: ClassVar = "eval.failed"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _USER_CONTROLLED
    evaluation_id: str  # which evaluation
    evaluator: str  # who should have
    error_message_redacted: str  # why not, without secrets
    task_id: str | None = None  # the task, where it is one


class FeedbackExplicit(Payload, frozen=True, kw_only=True):
    """A person said how good it was."""

    event_type: ClassVar = "feedback.explicit"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _USER_CONTROLLED
    score: Share  # from 0 to 1
    message_id: str | None = None  # what it is about
    comment_redacted: str | None = None  # what they said, without secrets


class FeedbackImplicit(Payload, frozen=True, kw_only=True):
    """A person did something that tells how good it was."""

    event_type: ClassVar = "feedback.implicit"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    signal: str  # what they did: "undo", "retry", "swap", "copied", …
    weight: Annotated[float, msgspec.Meta(ge=-1, le=1)] | None = None  # for or against
    message_id: str | None = None  # what it is about


# --- delegation ------------------------------------------------------------------------------------------------------


class DelegateStarted(Payload, frozen=True, kw_only=True):
    """An agent gave a task to another one."""

    event_type: ClassVar = "delegate.started"
    actor: ClassVar = Actor.AGENT
    floor: ClassVar = _PSEUDONYMOUS
    worker_session_id: str  # the session of the other one
    tool_use_id: str | None = None  # the call that did it
    tier: str | None = None  # fast, balanced or deep
    agent: str | None = None  # the other one's name
    model: str | None = None  # the model that it uses
    task_hash: Sha256 | None = None  # of what it is to do


class DelegateCompleted(Payload, frozen=True, kw_only=True):
    """The other agent is done."""

    event_type: ClassVar = "delegate.completed"
    actor: ClassVar = Actor.WORKER
    floor: ClassVar = _PSEUDONYMOUS
    worker_session_id: str  # the session of the other one
    tool_use_id: str | None = None  # the call that did it
    turn_count: Count = 1  # turns that it took
    total_cost_usd: Decimal | None = Decimal(0)  # what they cost; null if no call has a price
    unpriced_calls: Count = 0  # calls for which no price was known
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


class DelegateFailed(Payload, frozen=True, kw_only=True):
    """The other agent is not coming back with a result."""

    event_type: ClassVar = "delegate.failed"
    actor: ClassVar = Actor.WORKER
    floor: ClassVar = _USER_CONTROLLED
    worker_session_id: str | None = None  # the session of the other one, if there was one
    tool_use_id: str | None = None  # the call that did it
    failure_mode: DelegateFailure  # why
    error_message_redacted: str | None = None  # what happened, without secrets
    latency_ms: Milliseconds | None = None  # from the task to the failure


# --- keys and limits -------------------------------------------------------------------------------------------------


class GatewayKeyIssued(Payload, frozen=True, kw_only=True):
    """A key was made."""

    event_type: ClassVar = "gateway.key_issued"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    is_audit: ClassVar = True
    gateway_key_id: str  # which, by its id
    user_id: str | None = None  # whose it is, as a pseudonym
    team_id: str | None = None  # whose team's it is, as a pseudonym


class GatewayKeyRevoked(Payload, frozen=True, kw_only=True):
    """A key was taken back."""

    event_type: ClassVar = "gateway.key_revoked"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    is_audit: ClassVar = True
    gateway_key_id: str  # which, by its id
    reason: str | None = None  # why


class GatewayKeyRotated(Payload, frozen=True, kw_only=True):
    """A key was replaced by another one."""

    event_type: ClassVar = "gateway.key_rotated"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    is_audit: ClassVar = True
    gateway_key_id: str  # the old one, by its id
    new_gateway_key_id: str  # the new one, by its id


class GatewayQuotaExceeded(Payload, frozen=True, kw_only=True):
    """A request was refused because a limit is used up."""

    event_type: ClassVar = "gateway.quota_exceeded"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PSEUDONYMOUS
    is_audit: ClassVar = True
    scope: str  # whose limit: "key", "user", "team"
    limit_usd: Decimal | None = None  # the limit
    current_usd: Decimal | None = None  # what is used of it
    gateway_key_id: str | None = None  # the key that a caller came with, by its id
    user_id: str | None = None  # whose it is, as a pseudonym
    team_id: str | None = None  # whose team's it is, as a pseudonym


class GatewayAuthFailed(Payload, frozen=True, kw_only=True):
    """A request came with no key, or with one that is not good."""

    event_type: ClassVar = "gateway.auth_failed"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PSEUDONYMOUS
    is_audit: ClassVar = True
    reason: str  # why it was refused
    gateway_key_id: str | None = None  # the key, by its id, if it is known


class QuotaAlert(Payload, frozen=True, kw_only=True):
    """A limit is nearly used up."""

    event_type: ClassVar = "quota.alert"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _PSEUDONYMOUS
    scope: str  # whose limit: "key", "user", "team"
    threshold: Share  # how much of it was to be told
    limit_usd: Decimal  # the limit
    current_usd: Decimal  # what is used of it
    user_id: str | None = None  # whose it is, as a pseudonym
    team_id: str | None = None  # whose team's it is, as a pseudonym


# --- the bus and the trace -------------------------------------------------------------------------------------------


class TraceSwept(Payload, frozen=True, kw_only=True):
    """Old events were deleted from the trace."""

    event_type: ClassVar = "trace.swept"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _AGGREGATABLE
    is_audit: ClassVar = True
    deleted: Count  # how many
    older_than_days: Annotated[float, msgspec.Meta(ge=0)]  # how old


class BusSubscriberRegistered(Payload, frozen=True, kw_only=True):
    """Somebody listens."""

    event_type: ClassVar = "bus.subscriber_registered"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _AGGREGATABLE
    subscriber: str  # who
    event_types: tuple[str, ...] | None = None  # to what; everything if it is left out


class BusSubscriberUnregistered(Payload, frozen=True, kw_only=True):
    """Somebody listens no longer."""

    event_type: ClassVar = "bus.subscriber_unregistered"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _AGGREGATABLE
    subscriber: str  # who
    undelivered: Count = 0  # events that were waiting and never came to it


class BusGapDetected(Payload, frozen=True, kw_only=True):
    """A subscriber was too slow, and events are missing in what it was told. It stands where they are missing."""

    event_type: ClassVar = "bus.gap_detected"
    actor: ClassVar = Actor.SYSTEM
    floor: ClassVar = _AGGREGATABLE
    subscriber: str  # who
    missed: Count  # how many
    first_event_id: str  # the first one that is missing
    last_event_id: str  # the last one


class UsageRepaired(Payload, frozen=True, kw_only=True):
    """An operator has put a stored usage right."""

    event_type: ClassVar = "usage.repaired"
    actor: ClassVar = Actor.USER
    floor: ClassVar = _PSEUDONYMOUS
    is_audit: ClassVar = True
    repaired_session_id: str  # whose message it is; empty for what deleted sessions have left in the totals
    seq: Count | None = None  # the place of the message
    message_id: str | None = None  # its id
    user_id: str | None = None  # who it was counted for
    team_id: str | None = None  # whose team
    reason: str  # what was wrong
    before: dict[str, Any]  # the usage as it was
    after: dict[str, Any]  # and as it is


# --- the whole of it -------------------------------------------------------------------------------------------------

RESERVED_PREFIXES: Final = ("message.", "text.", "thinking.", "tool.use_")
ALIASES: Final = {
    "tool.input_invalid": "tool_input_invalid",
    "routing.constraint_failure": "routing_constraint_failure",
}


def index_event_types(payloads: Iterable[type[Payload]]) -> dict[str, type[Payload]]:
    """Payload classes by their type; ``EventError`` if a type is taken or reserved."""
    index: dict[str, type[Payload]] = {}
    for payload in payloads:
        name = payload.event_type
        if name.startswith(RESERVED_PREFIXES):
            raise EventError("names that begin so belong to the stream of a reply", where=f"event type {name!r}")
        if name in index or name in ALIASES:
            raise EventError("there is one of that name already", where=f"event type {name!r}")
        index[name] = payload
    return index


EVENT_TYPES: Final[Mapping[str, type[Payload]]] = index_event_types(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Payload) and value is not Payload
)
AUDIT: Final = frozenset(name for name, payload in EVENT_TYPES.items() if payload.is_audit)


def get_event_type(name: str, event_types: Mapping[str, type[Payload]] = EVENT_TYPES) -> type[Payload]:
    """The payload's class for an event type, or ``UnknownEventError``."""
    payload_type = event_types.get(ALIASES.get(name, name))
    if payload_type is None:
        raise UnknownEventError(f"no event type {name!r}", remedy="docs/events.md lists those that there are")
    return payload_type


def parse_payload(
    name: str, fields: Mapping[str, Any], event_types: Mapping[str, type[Payload]] = EVENT_TYPES
) -> Payload:
    """A payload from plain values, or ``EventError``."""
    payload_type = get_event_type(name, event_types)
    try:
        return msgspec.convert(dict(fields), payload_type)
    except msgspec.ValidationError as error:
        raise EventError(str(error), where=f"event {payload_type.event_type}") from None


def validate_payload(payload: AnyPayload) -> tuple[AnyPayload, bytes]:
    """The payload as its type has it, and as JSON; ``EventError`` if a field is not what its type says."""
    try:
        for place, number in enumerate(msgspec.structs.astuple(payload)):
            if isinstance(number, float) and not math.isfinite(number):  # JSON would have made it null
                raise ValueError(f"{number} is not a number - at `$.{payload.__struct_fields__[place]}`")
        data = msgspec.json.encode(payload)
        return msgspec.json.decode(data, type=type(payload)), data
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise EventError(str(error), where=f"event {payload.event_type}") from None
