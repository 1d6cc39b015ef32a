"""Tests that payloads of routing events match the event types."""

from __future__ import annotations

import pytest

from dragoman.bus import EVENT_TYPES
from dragoman.bus.event_types.routing_events import RouteDecided, RoutingConstraintFailure, RoutingPolicyInvalid
from dragoman.bus.types import parse_payload
from dragoman.routing import SLOTS, Availability, Policy, decide
from dragoman.settings.policy_file import PolicyStatus
from tests.routing.models import IMAGE, NOW, REGISTRY, policy, turn
from tests.routing.test_chain import samples


@pytest.mark.parametrize(
    ("text", "index"), [("@big hello", 0), ("a bug", 2), ("hello", 3), ("@gone hello", -1)], ids=str
)
def test_decision_is_a_route_decided_event(text: str, index: int) -> None:
    rules = policy(rules=[{"when": {"message_matches": "bug"}, "use": "deep"}])
    decision = decide(turn(text), rules, REGISTRY, samples=samples("bolt:quick"))
    event = parse_payload("route.decided", decision.payload(0.5), EVENT_TYPES)
    assert isinstance(event, RouteDecided)
    assert (event.chosen_model, event.winner_index) == (decision.chosen_model, index)
    assert [step.policy for step in event.chain] == list(SLOTS[: len(decision.chain)])
    assert [step.verdict for step in event.chain] == [entry.verdict for entry in decision.chain]


def test_decision_without_a_model_is_a_route_decided_event() -> None:
    event = parse_payload("route.decided", decide(turn("hello"), Policy(), REGISTRY).payload(0.5), EVENT_TYPES)
    assert isinstance(event, RouteDecided)
    assert len(event.chain) == len(SLOTS)


def test_rejected_choice_is_a_routing_constraint_failure_event() -> None:
    rejection = decide(turn("@text look", IMAGE), policy(global_default="big"), REGISTRY).rejection
    assert rejection is not None
    event = parse_payload("routing_constraint_failure", rejection.payload(), EVENT_TYPES)
    assert isinstance(event, RoutingConstraintFailure)
    assert (event.source, event.would_fall_back_to) == ("per_message_override", "acme:big")


def test_invalid_policy_and_availability_changes_are_events() -> None:
    status = PolicyStatus(policy=Policy(), path="routing.yaml", errors=("$: a mapping is expected",))
    assert isinstance(
        parse_payload("routing.policy_invalid", status.invalid_payload(), EVENT_TYPES), RoutingPolicyInvalid
    )
    state, down = Availability().with_call_result("acme", "acme:big", NOW, "auth")
    _, up = state.with_call_result("acme", "acme:big", NOW)
    payloads = [parse_payload(change.event_type, change.payload(), EVENT_TYPES) for change in (*down, *up)]
    assert [payload.event_type for payload in payloads] == [
        "routing.provider_unavailable",
        "routing.provider_recovered",
    ]
