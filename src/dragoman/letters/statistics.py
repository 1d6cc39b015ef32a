"""Statistics over evaluations.

    summarize(samples)                count, success rate, average score, durations, cost
    compute_trend(samples)            newer half against older half, and a rolling average
    split_by_step(samples, "day")     the same by hour, day or week
    summarize_newest(samples, 10)     the summary of the newest ten

Averages ignore missing values; without any value the average is ``None``. Invariant: the result does not depend on the
order of the samples, only on their times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal, Protocol, TypeVar

import msgspec

WINDOW: Final = 10  # number of evaluations of a rolling average
_STEADY: Final = 0.05  # a smaller change of the average score is steady


class EvaluationSample(Protocol):
    """The fields of an evaluation that statistics use."""

    @property
    def id(self) -> str: ...
    @property
    def score(self) -> float | None: ...
    @property
    def success(self) -> bool | None: ...
    @property
    def duration_ms(self) -> float | None: ...
    @property
    def cost_usd(self) -> Decimal | None: ...
    @property
    def metrics(self) -> Mapping[str, float] | None: ...
    @property
    def created_at(self) -> datetime: ...


AnySample = TypeVar("AnySample", bound=EvaluationSample)


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """Durations with percentiles."""

    count: int
    average_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    longest_ms: float


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a resource, over the tasks that reported it."""

    count: int
    average: float
    most: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics over many evaluations."""

    count: int
    average_score: float | None = None
    success_rate: float | None = None
    durations: Durations | None = None
    resources: dict[str, Usage] = {}  # by memory_usage_mb, cpu_usage_percent, network_io_mb, disk_usage_mb
    cost_usd: Decimal | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A score, and the rolling average up to it."""

    at: datetime
    score: float
    rolling_average: float


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """The trend of scores. ``change`` is the average of the newer half minus the older; ``None`` for fewer than two."""

    direction: Literal["up", "down", "steady", "unknown"]
    change: float | None
    points: tuple[Point, ...]


def summarize(samples: Iterable[EvaluationSample]) -> Summary:
    """Statistics over many evaluations."""
    ordered = _sort(samples)
    scores = [sample.score for sample in ordered if sample.score is not None]
    verdicts = [sample.success for sample in ordered if sample.success is not None]
    costs = [sample.cost_usd for sample in ordered if sample.cost_usd is not None]
    return Summary(
        count=len(ordered),
        average_score=_average(scores),
        success_rate=_average(list(map(float, verdicts))),
        durations=summarize_durations([sample.duration_ms for sample in ordered if sample.duration_ms is not None]),
        resources=summarize_resources(ordered),
        cost_usd=sum(costs, Decimal(0)) if costs else None,
        first_at=ordered[0].created_at if ordered else None,
        last_at=ordered[-1].created_at if ordered else None,
    )


def summarize_newest(samples: Iterable[EvaluationSample], newest: int = WINDOW) -> Summary:
    """Return statistics over the newest evaluations."""
    return summarize(_sort(samples)[-newest:])


def compute_trend(samples: Iterable[EvaluationSample], window: int = WINDOW) -> Trend:
    """Return the trend of scores. An evaluation with only a success flag counts as 1 or 0."""
    scores = [(sample.created_at, grade) for sample in _sort(samples) if (grade := _grade(sample)) is not None]
    points = tuple(
        Point(at=at, score=score, rolling_average=_mean([grade for _, grade in scores[max(0, n - window) : n]]))
        for n, (at, score) in enumerate(scores, 1)
    )
    if len(scores) < 2:
        return Trend(direction="unknown", change=None, points=points)
    middle = len(scores) // 2
    change = _mean([grade for _, grade in scores[middle:]]) - _mean([grade for _, grade in scores[:middle]])
    direction: Literal["up", "down", "steady"] = "steady"
    if abs(change) >= _STEADY:
        direction = "up" if change > 0 else "down"
    return Trend(direction=direction, change=round(change, 6), points=points)


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluations of an hour, a day or a week."""

    at: datetime  # start, in UTC
    count: int
    average_score: float | None = None
    success_rate: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None


Step = Literal["hour", "day", "week"]
_STEPS: Final[dict[Step, timedelta]] = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
}
_MAX_SPANS: Final = 72
_MONDAY: Final = datetime(1970, 1, 5, tzinfo=UTC)


def step_for(samples: Iterable[EvaluationSample]) -> Step:
    """Return the shortest step that splits the evaluations into at most 72 spans."""
    times = [sample.created_at for sample in samples]
    period = max(times) - min(times) if times else timedelta()
    return next((name for name, step in _STEPS.items() if period <= step * _MAX_SPANS), "week")


def split_by_step(samples: Iterable[EvaluationSample], step: Step) -> tuple[Span, ...]:
    """Return statistics for each hour, day or week with evaluations, in order. Weeks start on Monday."""
    width = _STEPS[step]
    by_span: dict[datetime, list[EvaluationSample]] = {}
    for sample in _sort(samples):
        by_span.setdefault(_MONDAY + (sample.created_at - _MONDAY) // width * width, []).append(sample)
    return tuple(_make_span(at, group) for at, group in by_span.items())


def _make_span(at: datetime, samples: Sequence[EvaluationSample]) -> Span:
    summary = summarize(samples)
    return Span(
        at=at,
        count=summary.count,
        average_score=summary.average_score,
        success_rate=summary.success_rate,
        p50_ms=None if summary.durations is None else summary.durations.p50_ms,
        p95_ms=None if summary.durations is None else summary.durations.p95_ms,
    )


def summarize_durations(milliseconds: Sequence[float]) -> Durations | None:
    """Return duration statistics, or ``None`` without durations."""
    if not milliseconds:
        return None
    ordered = sorted(milliseconds)
    return Durations(
        count=len(ordered),
        average_ms=_mean(ordered),
        p50_ms=percentile(ordered, 50),
        p95_ms=percentile(ordered, 95),
        p99_ms=percentile(ordered, 99),
        longest_ms=ordered[-1],
    )


def summarize_resources(samples: Iterable[EvaluationSample]) -> dict[str, Usage]:
    """Return the use of each reported resource."""
    reported: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in (sample.metrics or {}).items():
            reported.setdefault(name, []).append(value)
    return {
        name: Usage(count=len(values), average=_mean(values), most=max(values))
        for name, values in sorted(reported.items())
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this percentage of values does not exceed."""
    return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]


def _sort(samples: Iterable[EvaluationSample]) -> list[EvaluationSample]:
    return sorted(samples, key=lambda sample: (sample.created_at, sample.id))


def _grade(sample: EvaluationSample) -> float | None:
    if sample.score is not None:
        return sample.score
    return None if sample.success is None else float(sample.success)


def _average(numbers: Sequence[float]) -> float | None:
    return _mean(numbers) if numbers else None


def _mean(numbers: Sequence[float]) -> float:
    mean = math.fsum(number / len(numbers) for number in numbers)  # divided first, so that the sum cannot overflow
    return round(mean, 6)


def group_by(samples: Iterable[AnySample], field: str) -> dict[str, list[AnySample]]:
    """Group evaluations by ``agent_id``, ``model`` or ``evaluator``. Those without one are omitted."""
    named = [(name, sample) for sample in samples if isinstance(name := getattr(sample, field), str)]
    named.sort(key=lambda pair: pair[0])
    return {name: [sample for _, sample in group] for name, group in itertools.groupby(named, key=lambda pair: pair[0])}
