"""Tests of statistics and trends of evaluations."""

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


def create_evaluation(number: int, **fields: Any) -> Evaluation:
    return Evaluation(
        id=f"evl_{number:04d}",
        session_id="system",
        evaluator=fields.pop("evaluator", "user"),
        created_at=BEGIN + timedelta(minutes=number),
        **fields,
    )


def test_averages_ignore_missing_values() -> None:
    evaluations = [
        create_evaluation(1, score=0.5),
        create_evaluation(2, success=True),
        create_evaluation(3, success=False, score=1.0, cost_usd=Decimal("0.1")),
    ]
    summary = summarize(evaluations)
    assert (summary.count, summary.average_score, summary.success_rate) == (3, 0.75, 0.5)
    assert (summary.cost_usd, summary.durations) == (Decimal("0.1"), None)
    assert (summary.first_at, summary.last_at) == (evaluations[0].created_at, evaluations[2].created_at)
    assert summarize([]) == Summary(count=0)


def test_rolling_summary_uses_newest_evaluations() -> None:
    evaluations = [create_evaluation(number, score=0.0 if number < 20 else 1.0) for number in range(30)]
    assert summarize_newest(evaluations).average_score == 1.0
    assert summarize_newest(evaluations, 20).average_score == 0.5
    assert summarize_newest(evaluations, 100).count == 30


def test_percentiles_are_measured_values() -> None:
    durations = [float(number) for number in range(1, 101)]
    assert [percentile(durations, share) for share in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert [percentile([7.0], share) for share in (50, 99)] == [7, 7]
    spread = summarize_durations(list(reversed(durations)))
    assert spread is not None
    assert (spread.p50_ms, spread.p95_ms, spread.p99_ms, spread.longest_ms, spread.average_ms) == (
        50,
        95,
        99,
        100,
        50.5,
    )
    assert summarize_durations([]) is None


def test_trend_compares_newer_and_older_half() -> None:
    rising = [create_evaluation(number, score=number / 10) for number in range(10)]
    assert (compute_trend(rising).direction, compute_trend(rising).change) == ("up", 0.5)
    assert compute_trend([create_evaluation(n, score=0.9 - n / 10) for n in range(9)]).direction == "down"
    assert compute_trend([create_evaluation(n, score=0.5 + n % 2 / 100) for n in range(9)]).direction == "steady"
    assert compute_trend([create_evaluation(1, score=0.5)]).direction == "unknown"
    assert compute_trend([create_evaluation(1, success=True), create_evaluation(2, success=False)]).direction == "down"


def test_trend_points_contain_rolling_average() -> None:
    points = compute_trend(
        [
            create_evaluation(1, score=1.0),
            create_evaluation(2, score=0.0),
            create_evaluation(3),
            create_evaluation(4, score=0.5),
        ],
        window=2,
    ).points
    assert [(point.score, point.rolling_average) for point in points] == [(1.0, 1.0), (0.0, 0.5), (0.5, 0.25)]


def test_evaluations_are_grouped_by_agent_or_evaluator() -> None:
    evaluations = [
        create_evaluation(1, agent_id="A"),
        create_evaluation(2, agent_id="B", evaluator="E"),
        create_evaluation(3, agent_id="A"),
        create_evaluation(4),
    ]
    assert {name: len(group) for name, group in group_by(evaluations, "agent_id").items()} == {"A": 2, "B": 1}
    assert {name: len(group) for name, group in group_by(evaluations, "evaluator").items()} == {"E": 1, "user": 3}


scores = st.lists(st.none() | st.floats(0, 1), max_size=40)


@given(scores=scores, order=st.randoms())
def test_statistics_ignore_input_order(scores: list[float | None], order: Any) -> None:
    evaluations = [create_evaluation(number, score=score) for number, score in enumerate(scores)]
    shuffled = list(evaluations)
    order.shuffle(shuffled)
    assert (summarize(evaluations), compute_trend(evaluations), summarize_newest(evaluations)) == (
        summarize(shuffled),
        compute_trend(shuffled),
        summarize_newest(shuffled),
    )
    average = summarize(evaluations).average_score
    assert average is None or 0 <= average <= 1
