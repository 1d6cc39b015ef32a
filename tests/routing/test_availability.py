"""Availability of models and providers after call results."""

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

    def note(self, model: str, seconds: float, error_class: str | None = None, *, times: int = 1) -> Calls:
        for _ in range(times):
            self.state, changes = self.state.with_call_result(model.partition(":")[0], model, at(seconds), error_class)
            self.changes += changes
        return self

    def reaches(self, model: str, seconds: float) -> bool:
        return self.state.is_available(model.partition(":")[0], model, at(seconds))

    @property
    def told(self) -> list[tuple[str, str, tuple[str, ...]]]:
        return [(change.event_type, change.scope, change.models_affected) for change in self.changes]


def test_who_was_never_called_is_reachable() -> None:
    assert Calls().reaches("acme:a", 0)


def test_five_failures_in_a_row_make_a_model_unreachable_and_only_that_one() -> None:
    calls = Calls().note("acme:a", 0, "server_error", times=4)
    assert calls.reaches("acme:a", 1)
    calls.note("acme:a", 100, "rate_limit")
    assert not calls.reaches("acme:a", 101)
    assert calls.reaches("acme:b", 101)
    assert calls.told == [("routing.provider_unavailable", "model_specific", ("acme:a",))]
    assert calls.changes[0].payload() == {
        "provider": "acme",
        "scope": "model_specific",
        "models_affected": ["acme:a"],
        "trigger_reason": "5 consecutive failures within 120 s, the last one rate_limit",
    }


def test_a_success_in_between_begins_the_count_again() -> None:
    calls = Calls().note("acme:a", 0, "server_error", times=4).note("acme:a", 1)
    calls.note("acme:a", 2, "server_error", times=4)
    assert calls.reaches("acme:a", 3)
    assert calls.changes == []


def test_five_failures_have_to_lie_within_two_minutes() -> None:
    spread = Calls()
    for seconds in (0, 31, 62, 93, 124):
        spread.note("acme:a", seconds, "server_error")
    assert spread.reaches("acme:a", 125)
    spread.note("acme:a", 150, "server_error")  # the last five span 119 s
    assert not spread.reaches("acme:a", 151)


def test_a_gap_of_more_than_two_minutes_begins_the_count_at_one() -> None:
    calls = Calls().note("acme:a", 0, "server_error", times=4).note("acme:a", 121, "server_error")
    calls.note("acme:a", 122, "server_error", times=3)
    assert calls.reaches("acme:a", 123)
    calls.note("acme:a", 123, "server_error")
    assert not calls.reaches("acme:a", 124)


def test_three_unreachable_models_make_their_provider_unreachable() -> None:
    calls = Calls()
    for model in ("acme:a", "acme:b"):
        calls.note(model, 0, "server_error", times=5)
    assert calls.reaches("acme:d", 1)
    calls.note("acme:c", 60, "server_error", times=5)
    assert not calls.reaches("acme:d", 61)
    assert calls.reaches("bolt:a", 61)
    assert calls.told[-1] == ("routing.provider_unavailable", "provider_wide", ("acme:a", "acme:b", "acme:c"))
    assert calls.changes[-1].trigger_reason == "3 models unavailable within 120 s"


def test_models_that_failed_at_different_times_are_not_their_provider_s_fault() -> None:
    calls = Calls().note("acme:a", 0, "server_error", times=5)
    calls.note("acme:b", 100, "server_error", times=5).note("acme:c", 200, "server_error", times=5)
    assert calls.reaches("acme:d", 201)


def test_a_refused_key_makes_a_provider_unreachable_at_once() -> None:
    calls = Calls().note("acme:a", 0, "auth")
    assert not calls.reaches("acme:b", 1)
    assert [(change.scope, change.trigger_reason) for change in calls.changes] == [("provider_wide", "auth error")]


def test_two_network_errors_within_half_a_minute_make_a_provider_unreachable() -> None:
    calls = Calls().note("acme:a", 0, "network")
    assert calls.reaches("acme:a", 1)
    calls.note("acme:b", 30, "network")
    assert not calls.reaches("acme:a", 31)
    assert calls.changes[0].trigger_reason == "2 network errors within 30 s"


def test_network_errors_further_apart_only_count_for_their_model() -> None:
    calls = Calls()
    for seconds in (0, 31):
        calls.note("acme:a", seconds, "network")
    assert calls.reaches("acme:a", 32)
    calls.note("acme:a", 32, "server_error", times=3)
    assert not calls.reaches("acme:a", 33)
    assert calls.told == [("routing.provider_unavailable", "model_specific", ("acme:a",))]


def test_a_success_clears_the_provider_and_that_model() -> None:
    calls = Calls()
    for model in ("acme:a", "acme:b", "acme:c"):
        calls.note(model, 0, "server_error", times=5)
    calls.note("acme:a", 42)
    assert [calls.reaches(f"acme:{name}", 43) for name in "abcd"] == [True, False, False, True]
    assert calls.told[-2:] == [
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


def test_five_minutes_without_a_call_clear_everything() -> None:
    calls = Calls().note("acme:a", 0, "server_error", times=5).note("bolt:a", 0, "auth")
    assert (calls.reaches("acme:a", 299), calls.reaches("bolt:a", 299)) == (False, False)
    assert (calls.reaches("acme:a", 300), calls.reaches("bolt:a", 300)) == (True, True)
    unchanged, nothing = calls.state.with_time(at(299))
    assert (unchanged, nothing) == (calls.state, ())
    later, changes = calls.state.with_time(at(300))
    assert [(change.provider, change.scope, change.is_available) for change in changes] == [
        ("acme", "model_specific", True),
        ("bolt", "provider_wide", True),
    ]
    assert {change.trigger_reason for change in changes} == {"300 s without calls"}
    assert later.with_time(at(301)) == (later, ())


def test_a_failed_call_in_between_begins_the_five_minutes_again() -> None:
    calls = Calls().note("acme:a", 0, "auth").note("acme:b", 200, "server_error")
    assert not calls.reaches("acme:a", 300)
    assert calls.reaches("acme:a", 500)


def test_recovery_is_told_by_the_next_call_as_well() -> None:
    calls = Calls().note("acme:a", 0, "auth").note("bolt:a", 400)
    assert calls.told[-1] == ("routing.provider_recovered", "provider_wide", ("acme:a",))


@pytest.mark.parametrize("error_class", sorted(CALLER_ERRORS))
def test_what_is_not_the_provider_s_fault_counts_neither_for_nor_against_it(error_class: str) -> None:
    calls = Calls().note("acme:a", 0, error_class, times=10)
    assert calls.reaches("acme:a", 1)
    calls.note("acme:a", 1, "server_error", times=4).note("acme:a", 2, error_class).note("acme:a", 3, "server_error")
    assert not calls.reaches("acme:a", 4)


steps = st.lists(
    st.tuples(
        st.sampled_from(["acme:a", "acme:b", "acme:c", "bolt:a"]),
        st.none() | st.sampled_from([kind.value for kind in ErrorClass]),
        st.integers(0, 150),
    ),
    max_size=40,
)


@given(steps)
def test_every_change_is_told_once_and_in_turn(taken: list[tuple[str, str | None, int]]) -> None:
    calls, now = Calls(), 0
    for model, error_class, gap in taken:
        now += gap
        before = calls.state
        calls.note(model, now, error_class)
        assert before.with_call_result(model.partition(":")[0], model, at(now), error_class)[0] == calls.state
        if error_class is None:
            assert calls.reaches(model, now)
    down: set[tuple[str, str, str]] = set()
    for change in calls.changes:
        what = "" if change.scope == "provider_wide" else change.models_affected[0]
        key = (change.provider, change.scope, what)
        assert (key in down) is change.is_available
        down ^= {key}
        assert (change.downtime_seconds is None) is not change.is_available
