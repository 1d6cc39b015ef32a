"""Evaluations by hour, day and week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec

from dragoman.letters.statistics import split_by_step, step_for

NOON = datetime(2026, 11, 11, 12, tzinfo=UTC)  # a Wednesday


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    id: str = "e"
    created_at: datetime = NOON
    score: float | None = None
    success: bool | None = None
    duration_ms: float | None = None
    cost_usd: Decimal | None = None
    metrics: dict[str, float] | None = None


def test_a_day_has_what_was_judged_in_it_and_days_without_are_left_out() -> None:
    judged = [
        Judged(id="c", created_at=NOON + timedelta(days=2), success=False),
        Judged(id="a", score=0.5, success=True, duration_ms=100),
        Judged(id="b", score=1.0, success=False, duration_ms=300, created_at=NOON + timedelta(hours=11)),
    ]
    first, second = split_by_step(judged, "day")
    assert (first.at, first.count) == (NOON.replace(hour=0), 2)
    assert (first.average_score, first.success_rate, first.p50_ms, first.p95_ms) == (0.75, 0.5, 100, 300)
    assert second.at == datetime(2026, 11, 13, tzinfo=UTC)
    assert (second.average_score, second.success_rate, second.p50_ms, second.p95_ms) == (None, 0.0, None, None)


def test_hours_begin_with_the_hour_and_weeks_on_monday() -> None:
    judged = [Judged(created_at=NOON + timedelta(minutes=59), score=1)]
    assert [span.at for span in split_by_step(judged, "hour")] == [NOON]
    assert [span.at for span in split_by_step(judged, "week")] == [datetime(2026, 11, 9, tzinfo=UTC)]


def test_the_step_grows_with_the_time_that_there_is() -> None:
    def over(time: timedelta) -> str:
        return step_for([Judged(), Judged(created_at=NOON + time)])

    assert [over(timedelta(**time)) for time in ({}, {"hours": 72}, {"hours": 73}, {"days": 72}, {"days": 73})] == [
        "hour",
        "hour",
        "day",
        "day",
        "week",
    ]
    assert over(timedelta(days=5000)) == "week"
    assert step_for([]) == "hour"
    assert split_by_step([], "day") == ()
