"""Tests of evaluations grouped by hour, day and week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec

from dragoman.letters.statistics import split_by_step, step_for

NOON = datetime(2026, 11, 11, 12, tzinfo=UTC)  # a Wednesday


class SampleEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    id: str = "e"
    created_at: datetime = NOON
    score: float | None = None
    success: bool | None = None
    duration_ms: float | None = None
    cost_usd: Decimal | None = None
    metrics: dict[str, float] | None = None


def test_days_summarize_evaluations_and_empty_days_are_omitted() -> None:
    evaluations = [
        SampleEvaluation(id="c", created_at=NOON + timedelta(days=2), success=False),
        SampleEvaluation(id="a", score=0.5, success=True, duration_ms=100),
        SampleEvaluation(id="b", score=1.0, success=False, duration_ms=300, created_at=NOON + timedelta(hours=11)),
    ]
    first, second = split_by_step(evaluations, "day")
    assert (first.at, first.count) == (NOON.replace(hour=0), 2)
    assert (first.average_score, first.success_rate, first.p50_ms, first.p95_ms) == (0.75, 0.5, 100, 300)
    assert second.at == datetime(2026, 11, 13, tzinfo=UTC)
    assert (second.average_score, second.success_rate, second.p50_ms, second.p95_ms) == (None, 0.0, None, None)


def test_hours_start_at_full_hour_and_weeks_on_monday() -> None:
    evaluations = [SampleEvaluation(created_at=NOON + timedelta(minutes=59), score=1)]
    assert [span.at for span in split_by_step(evaluations, "hour")] == [NOON]
    assert [span.at for span in split_by_step(evaluations, "week")] == [datetime(2026, 11, 9, tzinfo=UTC)]


def test_step_grows_with_time_range() -> None:
    def step_over(time: timedelta) -> str:
        return step_for([SampleEvaluation(), SampleEvaluation(created_at=NOON + time)])

    assert [
        step_over(timedelta(**time)) for time in ({}, {"hours": 72}, {"hours": 73}, {"days": 72}, {"days": 73})
    ] == [
        "hour",
        "hour",
        "day",
        "day",
        "week",
    ]
    assert step_over(timedelta(days=5000)) == "week"
    assert step_for([]) == "hour"
    assert split_by_step([], "day") == ()
