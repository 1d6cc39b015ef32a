"""Tests of the availability of models and providers after call results."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.exchange import ErrorClass
from dragoman.routing import Availability, Change
from dragoman.routing.model_registry import CALLER_ERRORS
from tests.routing.models import NOW


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


class Calls:
    """A series of calls and the state after them."""

    def __init__(self) -> None:
        self.state = Availability()
        self.changes: list[Change] = []

    def record(self, model: str, seconds: float, error_class: str | None = None, *, times: int = 1) -> Calls:
        for _ in range(times):
            self.state, changes = self.state.with_call_result(model.partition(":")[0], model, at(seconds), error_class)
            self.changes += changes
        return self

    def is_available(self, model: str, seconds: float) -> bool:
        return self.state.is_available(model.partition(":")[0], model, at(seconds))

    @property
    def events(self) -> list[tuple[str, str, tuple[str, ...]]]:
        return [(change.event_type, change.scope, change.models_affected) for change in self.changes]


def test_model_without_calls_is_available() -> None:
    assert Calls().is_available("acme:a", 0)


def test_five_consecutive_failures_make_only_that_model_unavailable() -> None:
    calls = Calls().record("acme:a", 0, "server_error", times=4)
    assert calls.is_available("acme:a", 1)
    calls.record("acme:a", 100, "rate_limit")
    assert not calls.is_available("acme:a", 101)
    assert calls.is_available("acme:b", 101)
    assert calls.events == [("routing.provider_unavailable", "model_specific", ("acme:a",))]
    assert calls.changes[0].payload() == {
        "provider": "acme",
        "scope": "model_specific",
        "models_affected": ["acme:a"],
        "trigger_reason": "5 consecutive failures within 120 s, the last one rate_limit",
    }


def test_success_resets_the_count_of_failures() -> None:
    calls = Calls().record("acme:a", 0, "server_error", times=4).record("acme:a", 1)
    calls.record("acme:a", 2, "server_error", times=4)
    assert calls.is_available("acme:a", 3)
    assert calls.changes == []


def test_five_failures_count_only_within_two_minutes() -> None:
    calls = Calls()
    for seconds in (0, 31, 62, 93, 124):
        calls.record("acme:a", seconds, "server_error")
    assert calls.is_available("acme:a", 125)
    calls.record("acme:a", 150, "server_error")  # the last five span 119 s
    assert not calls.is_available("acme:a", 151)


def test_gap_of_two_minutes_resets_the_count_of_failures() -> None:
    calls = Calls().record("acme:a", 0, "server_error", times=4).record("acme:a", 121, "server_error")
    calls.record("acme:a", 122, "server_error", times=3)
    assert calls.is_available("acme:a", 123)
    calls.record("acme:a", 123, "server_error")
    assert not calls.is_available("acme:a", 124)


def test_three_unavailable_models_make_their_provider_unavailable() -> None:
    calls = Calls()
    for model in ("acme:a", "acme:b"):
        calls.record(model, 0, "server_error", times=5)
    assert calls.is_available("acme:d", 1)
    calls.record("acme:c", 60, "server_error", times=5)
    assert not calls.is_available("acme:d", 61)
    assert calls.is_available("bolt:a", 61)
    assert calls.events[-1] == ("routing.provider_unavailable", "provider_wide", ("acme:a", "acme:b", "acme:c"))
    assert calls.changes[-1].trigger_reason == "3 models unavailable within 120 s"


def test_failures_at_different_times_do_not_make_the_provider_unavailable() -> None:
    calls = Calls().record("acme:a", 0, "server_error", times=5)
    calls.record("acme:b", 100, "server_error", times=5).record("acme:c", 200, "server_error", times=5)
    assert calls.is_available("acme:d", 201)


def test_rejected_key_makes_a_provider_unavailable_immediately() -> None:
    calls = Calls().record("acme:a", 0, "auth")
    assert not calls.is_available("acme:b", 1)
    assert [(change.scope, change.trigger_reason) for change in calls.changes] == [("provider_wide", "auth error")]


def test_two_network_errors_within_30_seconds_make_a_provider_unavailable() -> None:
    calls = Calls().record("acme:a", 0, "network")
    assert calls.is_available("acme:a", 1)
    calls.record("acme:b", 30, "network")
    assert not calls.is_available("acme:a", 31)
    assert calls.changes[0].trigger_reason == "2 network errors within 30 s"


def test_distant_network_errors_count_only_for_their_model() -> None:
    calls = Calls()
    for seconds in (0, 31):
        calls.record("acme:a", seconds, "network")
    assert calls.is_available("acme:a", 32)
    calls.record("acme:a", 32, "server_error", times=3)
    assert not calls.is_available("acme:a", 33)
    assert calls.events == [("routing.provider_unavailable", "model_specific", ("acme:a",))]


def test_success_recovers_the_provider_and_that_model() -> None:
    calls = Calls()
    for model in ("acme:a", "acme:b", "acme:c"):
        calls.record(model, 0, "server_error", times=5)
    calls.record("acme:a", 42)
    assert [calls.is_available(f"acme:{name}", 43) for name in "abcd"] == [True, False, False, True]
    assert calls.events[-2:] == [
        ("routing.provider_recovered", "provider_wide", ("acme:a", "acme:b", "acme:c")),
        ("routing.provider_recovered", "model_specific", ("acme:a",)),
    ]
    assert calls.changes[-1].payload() == {
        "provider": "acme",
        "scope": "model_specific",
        "models_affected": ["acme:a"],
        "trigger_reason": "success",
        "downtime_seconds": 42.0,
    }


def test_five_minutes_without_calls_recover_everything() -> None:
    calls = Calls().record("acme:a", 0, "server_error", times=5).record("bolt:a", 0, "auth")
    assert (calls.is_available("acme:a", 299), calls.is_available("bolt:a", 299)) == (False, False)
    assert (calls.is_available("acme:a", 300), calls.is_available("bolt:a", 300)) == (True, True)
    unchanged, no_changes = calls.state.with_time(at(299))
    assert (unchanged, no_changes) == (calls.state, ())
    later, changes = calls.state.with_time(at(300))
    assert [(change.provider, change.scope, change.is_available) for change in changes] == [
        ("acme", "model_specific", True),
        ("bolt", "provider_wide", True),
    ]
    assert {change.trigger_reason for change in changes} == {"300 s without calls"}
    assert later.with_time(at(301)) == (later, ())


def test_failed_call_restarts_the_five_minutes() -> None:
    calls = Calls().record("acme:a", 0, "auth").record("acme:b", 200, "server_error")
    assert not calls.is_available("acme:a", 300)
    assert calls.is_available("acme:a", 500)


def test_next_call_reports_the_recovery_too() -> None:
    calls = Calls().record("acme:a", 0, "auth").record("bolt:a", 400)
    assert calls.events[-1] == ("routing.provider_recovered", "provider_wide", ("acme:a",))


@pytest.mark.parametrize("error_class", sorted(CALLER_ERRORS))
def test_errors_of_the_caller_do_not_count(error_class: str) -> None:
    calls = Calls().record("acme:a", 0, error_class, times=10)
    assert calls.is_available("acme:a", 1)
    calls.record("acme:a", 1, "server_error", times=4).record("acme:a", 2, error_class).record(
        "acme:a", 3, "server_error"
    )
    assert not calls.is_available("acme:a", 4)


steps = st.lists(
    st.tuples(
        st.sampled_from(["acme:a", "acme:b", "acme:c", "bolt:a"]),
        st.none() | st.sampled_from([kind.value for kind in ErrorClass]),
        st.integers(0, 150),
    ),
    max_size=40,
)


@given(steps)
def test_every_change_is_reported_once_in_alternation(series: list[tuple[str, str | None, int]]) -> None:
    calls, now = Calls(), 0
    for model, error_class, gap in series:
        now += gap
        before = calls.state
        calls.record(model, now, error_class)
        assert before.with_call_result(model.partition(":")[0], model, at(now), error_class)[0] == calls.state
        if error_class is None:
            assert calls.is_available(model, now)
    down: set[tuple[str, str, str]] = set()
    for change in calls.changes:
        model_name = "" if change.scope == "provider_wide" else change.models_affected[0]
        key = (change.provider, change.scope, model_name)
        assert (key in down) is change.is_available
        down ^= {key}
        assert (change.downtime_seconds is None) is not change.is_available
