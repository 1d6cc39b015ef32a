"""Events of model routing, provider availability and learned patterns."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from dragoman.bus.types import Actor, Count, Milliseconds, Payload, Seconds, Sensitivity, Share, event
from dragoman.routing.chain import ChainEntry
from dragoman.routing.pattern import PatternAlternative

AvailabilityScope = Literal["model_specific", "provider_wide"]


@event("route.decided", Actor.SYSTEM, Sensitivity.PSEUDONYMOUS)
class RouteDecided(Payload, frozen=True, kw_only=True):
    """Routing selected the model of a turn. Every turn emits exactly one."""

    chosen_model: str  # empty if no model is possible
    winner_index: Annotated[int, msgspec.Meta(ge=-1)]  # index of the winner in the chain; -1 if there is none
    elapsed_ms: Milliseconds  # duration of the decision
    chain: tuple[ChainEntry, ...]  # steps up to the winner


@event("route.overridden", Actor.USER, Sensitivity.PSEUDONYMOUS)
class RouteOverridden(Payload, frozen=True, kw_only=True):
    """A person selected another model than the chain."""

    previous_model: str  # model that the chain selected
    chosen_model: str  # model that the person selected
    source: Literal["per_message_override", "manual_sticky"]  # kind of selection


@event("routing_constraint_failure", Actor.SYSTEM, Sensitivity.PSEUDONYMOUS)
class RoutingConstraintFailure(Payload, frozen=True, kw_only=True):
    """An explicitly selected model cannot run this turn. The selection did not change."""

    source: Literal["per_message_override", "manual_sticky", "swap"]  # kind of selection
    model: str  # rejected model
    validation_failure: str  # reason of the rejection
    active_model: str | None = None  # model that stays active
    would_fall_back_to: str | None = None  # model that the chain would select instead
    message: str | None = None  # text for the user


@event("routing.policy_invalid", Actor.SYSTEM, Sensitivity.PRIVATE)
class RoutingPolicyInvalid(Payload, frozen=True, kw_only=True):
    """The policy file has errors."""

    policy_path: str  # path of the file
    errors: tuple[str, ...]  # every error with its path
    using_last_known_good: bool  # the last valid policy stays in effect


@event("routing.provider_unavailable", Actor.SYSTEM, Sensitivity.AGGREGATABLE)
class RoutingProviderUnavailable(Payload, frozen=True, kw_only=True):
    """A provider or some of its models failed too often; routing skips them for a while."""

    provider: str  # name of the provider
    scope: AvailabilityScope  # some models, or all
    models_affected: tuple[str, ...]  # these models
    trigger_reason: str  # cause of the change


@event("routing.provider_recovered", Actor.SYSTEM, Sensitivity.AGGREGATABLE)
class RoutingProviderRecovered(Payload, frozen=True, kw_only=True):
    """A provider or some of its models are available again."""

    provider: str  # name of the provider
    scope: AvailabilityScope  # some models, or all
    models_affected: tuple[str, ...]  # these models
    trigger_reason: str | None = None  # cause of the change
    downtime_seconds: Seconds  # duration of the outage


@event("provider.degraded", Actor.SYSTEM, Sensitivity.AGGREGATABLE)
class ProviderDegraded(Payload, frozen=True, kw_only=True):
    """A provider is slow or fails often; routing still uses it."""

    provider: str  # name of the provider
    models_affected: tuple[str, ...] = ()  # these models
    error_rate: Share | None = None  # share of failures among its last calls
    latency_ms: Milliseconds | None = None  # latency of its last calls
    reason: str  # explanation


# --- patterns --------------------------------------------------------------------------------------------------------


@event("pattern.recorded", Actor.SYSTEM, Sensitivity.PSEUDONYMOUS)
class PatternRecorded(Payload, frozen=True, kw_only=True):
    """A turn became a sample for pattern routing."""

    pattern_id: str  # id of the sample
    primary_model: str  # model of the turn
    success: Share  # score of the turn
    sample_size: Count = 1  # turns in the sample
    cost_usd: Decimal | None = None  # cost of the turn


@event("pattern.matched", Actor.SYSTEM, Sensitivity.PSEUDONYMOUS)
class PatternMatched(Payload, frozen=True, kw_only=True):
    """Routing selected a model by the results of similar turns."""

    model: str  # selected model
    confidence: Share  # distance to the next model
    sample_size: Count  # samples of the model
    alternatives: tuple[PatternAlternative, ...] = ()  # other models


@event("pattern.evicted", Actor.SYSTEM, Sensitivity.AGGREGATABLE)
class PatternEvicted(Payload, frozen=True, kw_only=True):
    """Samples were discarded."""

    count: Count  # number of samples
    reason: str  # cause


@event("pattern.override_dismissed", Actor.USER, Sensitivity.PSEUDONYMOUS)
class PatternOverrideDismissed(Payload, frozen=True, kw_only=True):
    """A person declined the model that a pattern proposed."""

    model: str  # proposed model
