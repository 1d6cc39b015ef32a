"""Statistics and trends of evaluations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.letters.statistics import (
    Summary,
    compute_trend,
    group_by,
    percentile,
    summarize,
    summarize_durations,
    summarize_newest,
)
from dragoman.store import Evaluation

BEGIN = datetime(2026, 11, 15, tzinfo=UTC)


def judged(number: int, **fields: Any) -> Evaluation:
    return Evaluation(
        id=f"evl_{number:04d}",
        session_id="system",
        evaluator=fields.pop("evaluator", "user"),
        created_at=BEGIN + timedelta(minutes=number),
        **fields,
    )


def test_averages_leave_out_what_is_not_said_and_are_none_where_nobody_says_it() -> None:
    some = [judged(1, score=0.5), judged(2, success=True), judged(3, success=False, score=1.0, cost_usd=Decimal("0.1"))]
    summary = summarize(some)
    assert (summary.count, summary.average_score, summary.success_rate) == (3, 0.75, 0.5)
    assert (summary.cost_usd, summary.durations) == (Decimal("0.1"), None)
    assert (summary.first_at, summary.last_at) == (some[0].created_at, some[2].created_at)
    assert summarize([]) == Summary(count=0)


def test_the_rolling_summary_is_of_the_newest_few() -> None:
    many = [judged(number, score=0.0 if number < 20 else 1.0) for number in range(30)]
    assert summarize_newest(many).average_score == 1.0
    assert summarize_newest(many, 20).average_score == 0.5
    assert summarize_newest(many, 100).count == 30


def test_percentiles_are_values_that_were_there() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert [percentile(hundred, share) for share in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert [percentile([7.0], share) for share in (50, 99)] == [7, 7]
    spread = summarize_durations(list(reversed(hundred)))
    assert spread is not None
    assert (spread.p50_ms, spread.p95_ms, spread.p99_ms, spread.longest_ms, spread.average_ms) == (
        50,
        95,
        99,
        100,
        50.5,
    )
    assert summarize_durations([]) is None


def test_a_trend_says_whether_the_newer_half_is_better() -> None:
    rising = [judged(number, score=number / 10) for number in range(10)]
    assert (compute_trend(rising).direction, compute_trend(rising).change) == ("up", 0.5)
    assert compute_trend([judged(n, score=0.9 - n / 10) for n in range(9)]).direction == "down"
    assert compute_trend([judged(n, score=0.5 + n % 2 / 100) for n in range(9)]).direction == "steady"
    assert compute_trend([judged(1, score=0.5)]).direction == "unknown"
    assert compute_trend([judged(1, success=True), judged(2, success=False)]).direction == "down"


def test_each_point_has_the_average_of_it_and_those_before() -> None:
    points = compute_trend(
        [judged(1, score=1.0), judged(2, score=0.0), judged(3), judged(4, score=0.5)], window=2
    ).points
    assert [(point.score, point.rolling_average) for point in points] == [(1.0, 1.0), (0.0, 0.5), (0.5, 0.25)]


def test_evaluations_are_grouped_by_who_did_or_judged_it() -> None:
    some = [judged(1, agent_id="A"), judged(2, agent_id="B", evaluator="E"), judged(3, agent_id="A"), judged(4)]
    assert {name: len(found) for name, found in group_by(some, "agent_id").items()} == {"A": 2, "B": 1}
    assert {name: len(found) for name, found in group_by(some, "evaluator").items()} == {"E": 1, "user": 3}


scores = st.lists(st.none() | st.floats(0, 1), max_size=40)


@given(scores=scores, order=st.randoms())
def test_the_order_in_which_they_are_given_does_not_matter(scores: list[float | None], order: Any) -> None:
    some = [judged(number, score=score) for number, score in enumerate(scores)]
    other = list(some)
    order.shuffle(other)
    assert (summarize(some), compute_trend(some), summarize_newest(some)) == (
        summarize(other),
        compute_trend(other),
        summarize_newest(other),
    )
    average = summarize(some).average_score
    assert average is None or 0 <= average <= 1
