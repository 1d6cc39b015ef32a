"""Events of evaluations, feedback, skills, memory, keys, limits, the trace and the bus."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from dragoman.bus.types import Actor, Count, Milliseconds, Payload, Sensitivity, Sha256, Share, event

# --- evaluations and feedback ----------------------------------------------------------------------------------------


@event("eval.started", Actor.SYSTEM, Sensitivity.PSEUDONYMOUS)
class EvalStarted(Payload, frozen=True, kw_only=True):
    """The evaluation of a turn or a task started."""

    evaluation_id: str  # id of the evaluation
    evaluator: str  # name of the evaluator
    evaluator_model: str | None = None  # model of the evaluator
    task_id: str | None = None  # id of the task, if it is a task


@event(
    "eval.completed",
    Actor.SYSTEM,
    Sensitivity.USER_CONTROLLED,
    text_field="rationale",
    without_text=Sensitivity.PSEUDONYMOUS,
)
class EvalCompleted(Payload, frozen=True, kw_only=True):
    """The evaluation of a turn or a task completed."""

    evaluation_id: str  # id of the evaluation
    evaluator: str  # name of the evaluator
    score: Share | None = None  # from 0 to 1
    success: bool | None = None  # the result is good enough
    rationale: str | None = None  # explanation without secrets
    evaluator_model: str | None = None  # model of the evaluator
    cost_usd: Decimal | None = None  # cost of the evaluation
    latency_ms: Milliseconds | None = None  # duration of the evaluation
    task_id: str | None = None  # id of the task, if it is a task


@event("eval.failed", Actor.SYSTEM, Sensitivity.USER_CONTROLLED)
class EvalFailed(Payload, frozen=True, kw_only=True):
    """The evaluation of a turn or a task failed."""

    evaluation_id: str  # id of the evaluation
    evaluator: str  # name of the evaluator
    error_message_redacted: str  # message without secrets
    task_id: str | None = None  # id of the task, if it is a task


@event("feedback.explicit", Actor.USER, Sensitivity.USER_CONTROLLED)
class FeedbackExplicit(Payload, frozen=True, kw_only=True):
    """A person rated an answer."""

    score: Share  # from 0 to 1
    message_id: str | None = None  # id of the rated message
    comment_redacted: str | None = None  # comment without secrets


@event("feedback.implicit", Actor.USER, Sensitivity.PSEUDONYMOUS)
class FeedbackImplicit(Payload, frozen=True, kw_only=True):
    """An action of a person indicates how good an answer was."""

    signal: str  # the action: "undo", "retry", "swap", "copied", …
    weight: Annotated[float, msgspec.Meta(ge=-1, le=1)] | None = None  # positive or negative
    message_id: str | None = None  # id of the message


# --- skills and memory -----------------------------------------------------------------------------------------------


@event("skill.loaded", Actor.SYSTEM, Sensitivity.USER_CONTROLLED)
class SkillLoaded(Payload, frozen=True, kw_only=True):
    """A skill was added to the prompt."""

    skill_name: str  # name of the skill
    skill_hash: Sha256 | None = None  # hash of its text
    reason: str | None = None  # cause


@event("skill.created", Actor.AGENT, Sensitivity.USER_CONTROLLED)
class SkillCreated(Payload, frozen=True, kw_only=True):
    """A skill was created."""

    skill_name: str  # name of the skill
    skill_hash: Sha256 | None = None  # hash of its text


@event("memory.updated", Actor.AGENT, Sensitivity.USER_CONTROLLED)
class MemoryUpdated(Payload, frozen=True, kw_only=True):
    """A memory was created, changed or deleted."""

    memory_id: str  # id of the memory
    change: Literal["created", "changed", "deleted"]  # kind of change
    size_bytes: Count | None = None  # size after the change


@event("memory.eviction", Actor.SYSTEM, Sensitivity.USER_CONTROLLED)
class MemoryEviction(Payload, frozen=True, kw_only=True):
    """Memories were discarded to free space."""

    memory_ids: tuple[str, ...]  # ids of the memories
    reason: str  # cause


# --- keys and limits -------------------------------------------------------------------------------------------------


@event("gateway.key_issued", Actor.USER, Sensitivity.PSEUDONYMOUS, is_audit=True)
class GatewayKeyIssued(Payload, frozen=True, kw_only=True):
    """An API key was created."""

    gateway_key_id: str  # id of the key
    user_id: str | None = None  # owner, as a pseudonym
    team_id: str | None = None  # team of the owner, as a pseudonym


@event("gateway.key_revoked", Actor.USER, Sensitivity.PSEUDONYMOUS, is_audit=True)
class GatewayKeyRevoked(Payload, frozen=True, kw_only=True):
    """An API key was revoked."""

    gateway_key_id: str  # id of the key
    reason: str | None = None  # cause


@event("gateway.key_rotated", Actor.USER, Sensitivity.PSEUDONYMOUS, is_audit=True)
class GatewayKeyRotated(Payload, frozen=True, kw_only=True):
    """An API key was replaced by a new one."""

    gateway_key_id: str  # id of the old key
    new_gateway_key_id: str  # id of the new key


@event("gateway.quota_exceeded", Actor.SYSTEM, Sensitivity.PSEUDONYMOUS, is_audit=True)
class GatewayQuotaExceeded(Payload, frozen=True, kw_only=True):
    """A request was rejected because a limit is exhausted."""

    scope: str  # owner of the limit: "key", "user", "team"
    limit_usd: Decimal | None = None  # the limit
    current_usd: Decimal | None = None  # amount used
    gateway_key_id: str | None = None  # id of the caller's key
    user_id: str | None = None  # owner, as a pseudonym
    team_id: str | None = None  # team of the owner, as a pseudonym


@event("gateway.auth_failed", Actor.SYSTEM, Sensitivity.PSEUDONYMOUS, is_audit=True)
class GatewayAuthFailed(Payload, frozen=True, kw_only=True):
    """A request without a valid key was rejected."""

    reason: str  # reason of the rejection
    gateway_key_id: str | None = None  # id of the key, if it is known


@event("quota.alert", Actor.SYSTEM, Sensitivity.PSEUDONYMOUS)
class QuotaAlert(Payload, frozen=True, kw_only=True):
    """A limit is nearly exhausted."""

    scope: str  # owner of the limit: "key", "user", "team"
    threshold: Share  # share that triggers the alert
    limit_usd: Decimal  # the limit
    current_usd: Decimal  # amount used
    user_id: str | None = None  # owner, as a pseudonym
    team_id: str | None = None  # team of the owner, as a pseudonym


# --- trace, bus and store --------------------------------------------------------------------------------------------


@event("trace.swept", Actor.SYSTEM, Sensitivity.AGGREGATABLE, is_audit=True)
class TraceSwept(Payload, frozen=True, kw_only=True):
    """Old events were deleted from the trace."""

    deleted: Count  # number of events
    older_than_days: Annotated[float, msgspec.Meta(ge=0)]  # retention in days


@event("bus.subscriber_registered", Actor.SYSTEM, Sensitivity.AGGREGATABLE)
class BusSubscriberRegistered(Payload, frozen=True, kw_only=True):
    """A subscriber was registered."""

    subscriber: str  # name of the subscriber
    event_types: tuple[str, ...] | None = None  # types it receives; absent means all


@event("bus.subscriber_unregistered", Actor.SYSTEM, Sensitivity.AGGREGATABLE)
class BusSubscriberUnregistered(Payload, frozen=True, kw_only=True):
    """A subscriber was removed."""

    subscriber: str  # name of the subscriber
    undelivered: Count = 0  # events that were queued and not delivered


@event("bus.gap_detected", Actor.SYSTEM, Sensitivity.AGGREGATABLE)
class BusGapDetected(Payload, frozen=True, kw_only=True):
    """A slow subscriber missed events. It receives this event in their place."""

    subscriber: str  # name of the subscriber
    missed: Count  # number of events
    first_event_id: str  # first missed event
    last_event_id: str  # last missed event


@event("usage.repaired", Actor.USER, Sensitivity.PSEUDONYMOUS, is_audit=True)
class UsageRepaired(Payload, frozen=True, kw_only=True):
    """An operator corrected a stored usage."""

    repaired_session_id: str  # session of the message; empty for totals of deleted sessions
    seq: Count | None = None  # position of the message
    message_id: str | None = None  # id of the message
    user_id: str | None = None  # user whose totals changed
    team_id: str | None = None  # team whose totals changed
    reason: str  # reason of the correction
    before: dict[str, Any]  # usage before
    after: dict[str, Any]  # usage after
