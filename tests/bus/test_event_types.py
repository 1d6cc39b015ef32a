"""Tests of the event types: every specified type exists and its payload round-trips through JSON."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.bus import EVENT_TYPES, Payload, Sensitivity
from dragoman.bus.event_types.system_events import EvalCompleted
from dragoman.bus.event_types.tool_events import ToolErrorClass
from dragoman.bus.event_types.turn_events import TurnStarted
from dragoman.bus.types import ALIASES, RESERVED_PREFIXES, get_event_type, parse_payload, validate_payload
from dragoman.errors import EventError, UnknownEventError
from dragoman.routing import SLOTS
from dragoman.routing.chain import Slot

SPECIFIED = [
    "session.created",
    "session.resumed",
    "session.ended",
    "turn.started",
    "turn.completed",
    "turn.cancelled",
    "llm.call_started",
    "llm.call_completed",
    "llm.call_failed",
    "tool.called",
    "tool.completed",
    "tool.failed",
    "tool.input_invalid",
    "tool.confirmation_requested",
    "tool.confirmation_resolved",
    "route.decided",
    "route.overridden",
    "routing.policy_invalid",
    "routing.provider_unavailable",
    "routing.provider_recovered",
    "routing_constraint_failure",
    "tool_input_invalid",
    "skill.loaded",
    "skill.created",
    "memory.updated",
    "memory.eviction",
    "pattern.recorded",
    "pattern.matched",
    "pattern.evicted",
    "pattern.override_dismissed",
    "eval.started",
    "eval.completed",
    "eval.failed",
    "delegate.started",
    "delegate.completed",
    "delegate.failed",
    "feedback.explicit",
    "feedback.implicit",
    "gateway.key_issued",
    "gateway.key_revoked",
    "gateway.key_rotated",
    "gateway.quota_exceeded",
    "gateway.auth_failed",
    "quota.alert",
    "trace.swept",
    "bus.subscriber_registered",
    "bus.subscriber_unregistered",
    "bus.gap_detected",
    "provider.degraded",
]


@pytest.mark.parametrize("name", SPECIFIED)
def test_every_specified_event_type_exists(name: str) -> None:
    assert get_event_type(name, EVENT_TYPES).event_type == ALIASES.get(name, name)


def test_no_event_type_has_a_stream_prefix() -> None:
    assert [name for name in EVENT_TYPES if name.startswith(RESERVED_PREFIXES)] == []


def test_literals_equal_those_of_the_emitting_packages() -> None:
    assert get_args(Slot) == tuple(SLOTS)
    assert len(get_args(ToolErrorClass)) == 8


def random_payloads(payload: type[Payload]) -> st.SearchStrategy[Payload]:
    hints = get_type_hints(payload, include_extras=True)
    fields = {field.name: random_values(hints[field.name]) for field in msgspec.structs.fields(payload)}
    return st.fixed_dictionaries(fields).map(lambda values: payload(**values))


def random_values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type within the limits of its annotation."""
    if get_origin(hint) is tuple:
        return st.lists(random_values(get_args(hint)[0]), max_size=2).map(tuple)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = get_type_hints(hint, include_extras=True)
        fields = {field.name: random_values(hints[field.name]) for field in msgspec.structs.fields(hint)}
        return st.fixed_dictionaries(fields).map(lambda values: hint(**values))
    arguments = get_args(hint)
    if type(None) in arguments:
        return st.none() | st.one_of(*[random_values(part) for part in arguments if part is not type(None)])
    if hasattr(hint, "__metadata__"):
        meta = hint.__metadata__[0]
        if meta.pattern is not None:
            return st.text("0123456789abcdef", min_size=64, max_size=64)
        make = st.integers if arguments[0] is int else st.floats
        limits = {"min_value": meta.ge, "max_value": meta.le if meta.le is not None else 10**9}
        return make(**limits)
    if hint == dict[str, Any]:
        return st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text(), max_size=3)
    if hint.__name__ == "Decimal":
        return st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=0, max_value=10**6)
    if hint.__name__ == "datetime":
        return st.datetimes(timezones=st.timezones())
    return st.floats(allow_nan=False, allow_infinity=False) if hint is float else st.from_type(hint)


@pytest.mark.parametrize("name", sorted(EVENT_TYPES))
def test_payload_round_trips_through_json(name: str) -> None:
    @given(random_payloads(EVENT_TYPES[name]))
    def check(payload: Payload) -> None:
        validated, data = validate_payload(payload)
        assert msgspec.json.decode(data, type=EVENT_TYPES[name]) == validated
        assert parse_payload(name, msgspec.json.decode(data), EVENT_TYPES) == validated

    check()


def test_turn_started_is_private_without_redacted_text() -> None:
    plain = TurnStarted(
        user_message_hash="0" * 64, estimated_input_tokens=1, has_images=False, has_tool_calls_in_history=False
    )
    assert plain.sensitivity() is Sensitivity.PRIVATE
    with_text = msgspec.structs.replace(plain, user_message_text_redacted="hello")
    assert with_text.sensitivity() is Sensitivity.USER_CONTROLLED


def test_evaluation_without_rationale_is_pseudonymous() -> None:
    plain = EvalCompleted(evaluation_id="e", evaluator="judge", score=1)
    assert plain.sensitivity() is Sensitivity.PSEUDONYMOUS
    assert msgspec.structs.replace(plain, rationale="good").sensitivity() is Sensitivity.USER_CONTROLLED


def test_payload_errors_name_their_path() -> None:
    with pytest.raises(EventError, match=r"event tool_input_invalid.*\$\.validation_errors\[0\]") as caught:
        parse_payload("tool.input_invalid", {"tool_name": "t", "validation_errors": [3]}, EVENT_TYPES)
    assert caught.value.code == "invalid_event"
    with pytest.raises(UnknownEventError):
        parse_payload("no.such_thing", {}, EVENT_TYPES)
