"""``GET /metrics``: what is measured of the caller's team and of the server, as JSON or as Prometheus reads it.

Which of the two, the Accept header says; without a wish it is JSON. Runs and requests are counted over all workers and
all teams, so only a key with the scope ``admin`` is told them. Invariant: what one team does is in no number that
another one is told, unless it has that scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import dragoman
from dragoman.mail.evaluation import RESOURCES
from dragoman.mail.measures import AgentMeasures, MailMeasures, Measures, ModelMeasures, Performance, measures_of
from dragoman.server.answers import answer, owners_of
from dragoman.server.counters import RUN_ENDS, HttpMeasures, RunMeasures, WorkerMeasures
from dragoman.server.endpoint import Endpoint, Media
from dragoman.server.mailroom import SCOPE, tenant_of
from dragoman.server.principal import principal_of
from dragoman.server.scopes import ADMIN
from dragoman.server.state import doors_of
from dragoman.store import Totals

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_JSON: Final = "application/json"
_PLAIN: Final = "text/plain"
_OPEN: Final = "application/openmetrics-text"


class SystemMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """The process that answered."""

    version: str
    worker: int
    uptime_sec: float
    cpu_sec: float
    memory_mb: float  # the most that it ever had
    durability: str


class CostMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller's own conversations have cost."""

    total_usd: Decimal
    by_model: dict[str, Decimal]
    unpriced: dict[str, int]  # answers for which no price was known, by model: not in the sums
    input_tokens: int
    output_tokens: int


class DeliveryMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """How safe letters are, in words."""

    transport: str  # embedded, or what carries letters to other stores
    durability: str  # of the store, which has every letter until it is done
    state: str  # ok, not connected, or failing: a task that sends or receives letters does not work
    broker: str | None = None  # connected, or not connected
    delivery_durability: str | None = None  # of what is on its way


class AllMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is measured."""

    timestamp: datetime
    system: SystemMeasures
    tasks: Performance
    agents: list[AgentMeasures]
    models: list[ModelMeasures]
    mail: MailMeasures
    delivery: DeliveryMeasures
    cost: CostMeasures
    workers: list[WorkerMeasures] | None = None  # these three are of all workers and all teams: for the scope admin
    runs: RunMeasures | None = None
    http: HttpMeasures | None = None


async def metrics(request: Request) -> Response:
    """Measure, and tell it as it was asked for."""
    doors, principal = doors_of(request), principal_of(request)
    measured = await measures_of(doors.store, tenant_of(principal))
    spent = await doors.store.totals("model", owners=owners_of(principal))
    told = await doors.mail.health()
    delivery = msgspec.convert(told, DeliveryMeasures)
    made = _all(measured, _cost(spent), delivery, doors.counters.own(), doors.store.clock())
    if ADMIN in principal.scopes:
        counted = {"workers": doors.counters.workers(), "runs": doors.counters.runs(), "http": doors.counters.http()}
        made = msgspec.structs.replace(made, **counted)
    accept = ", ".join(request.headers.getlist("accept"))
    if wants_text(accept):
        return _as_text(made, accept)
    return answer(made, headers={"vary": "Accept"})


def _all(
    measured: Measures, cost: CostMeasures, delivery: DeliveryMeasures, worker: WorkerMeasures, now: datetime
) -> AllMeasures:
    return AllMeasures(
        timestamp=now,
        system=_system(worker, delivery.durability),
        tasks=measured.tasks,
        agents=measured.agents,
        models=measured.models,
        mail=measured.mail,
        delivery=delivery,
        cost=cost,
    )


def _system(worker: WorkerMeasures, durability: str) -> SystemMeasures:
    return SystemMeasures(
        version=dragoman.__version__,
        worker=worker.worker,
        uptime_sec=worker.uptime_sec,
        cpu_sec=worker.cpu_sec,
        memory_mb=worker.memory_mb,
        durability=durability,
    )


def _cost(spent: list[Totals]) -> CostMeasures:
    return CostMeasures(
        total_usd=sum((one.cost_usd for one in spent), Decimal(0)),
        by_model={one.group or "unknown": one.cost_usd for one in spent},
        unpriced={one.group or "unknown": one.unpriced for one in spent if one.unpriced},
        input_tokens=sum(one.input_tokens for one in spent),
        output_tokens=sum(one.output_tokens for one in spent),
    )


# --- which form ------------------------------------------------------------------------------------------------------


def wants_text(accept: str) -> bool:
    """Whether an Accept header would rather have text than JSON."""
    weights = dict(_weights(accept))
    return max(weights.get(_PLAIN, 0.0), weights.get(_OPEN, 0.0)) > weights.get(_JSON, 0.0)


def _weights(accept: str) -> Iterator[tuple[str, float]]:
    for part in accept.split(",")[:100]:
        name, *said = (piece.strip().lower() for piece in part.split(";"))
        weight = next((one.removeprefix("q=") for one in said if one.startswith("q=")), "1")
        try:
            yield name, float(weight)
        except ValueError:
            yield name, 0.0


# --- for Prometheus --------------------------------------------------------------------------------------------------


def _as_text(made: AllMeasures, accept: str) -> Response:
    from prometheus_client import CollectorRegistry, exposition  # noqa: PLC0415  only who scrapes needs it
    from prometheus_client.openmetrics import exposition as openmetrics  # noqa: PLC0415

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(made))
    weights = dict(_weights(accept))
    if weights.get(_OPEN, 0.0) > weights.get(_PLAIN, 0.0):
        data, media_type = openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
    else:
        data, media_type = exposition.generate_latest(registry), exposition.CONTENT_TYPE_PLAIN_0_0_4
    return Response(data, headers={"content-type": media_type, "cache-control": "no-store", "vary": "Accept"})


class _Collector:
    """What was measured, as a collector has to give it."""

    def __init__(self, made: AllMeasures) -> None:
        self._made = made

    def collect(self) -> Iterable[Metric]:
        """Every metric."""
        made = self._made
        yield from _of_workers([made.system] if made.workers is None else made.workers)
        if made.runs is not None:
            yield from _of_runs(made.runs)
        if made.http is not None:
            yield from _of_http(made.http)
        yield from _of_groups("agent", [(one.agent_id, one) for one in made.agents])
        yield from _of_groups("model", [(one.model, one) for one in made.models])
        yield from _of_mail(made.mail)
        is_well = made.delivery.state == "ok"
        yield _gauge("mail_delivery_ok", "Whether letters are sent and received.", (), [((), is_well)])
        if made.delivery.broker is not None:
            is_there = made.delivery.broker == "connected"
            yield _gauge("broker_connected", "Whether a broker is there.", (), [((), is_there)])
        yield _gauge("cost_usd", "What conversations have cost.", ("model",), made.cost.by_model.items())
        unpriced = "Answers for which no price was known: not in cost_usd."
        yield _gauge("unpriced_answers", unpriced, ("model",), made.cost.unpriced.items())

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: what there is depends on what there was."""
        return ()


def _counter(name: str, what: str, labels: tuple[str, ...], values: Iterable[tuple[Any, float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415

    family = CounterMetricFamily(f"dragoman_{name}", what, labels=labels)
    for key, value in values:
        family.add_metric(key if isinstance(key, tuple) else (key,), float(value))
    return family


def _gauge(name: str, what: str, labels: tuple[str, ...], values: Iterable[tuple[Any, Any]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

    family = GaugeMetricFamily(f"dragoman_{name}", what, labels=labels)
    for key, value in values:
        if value is not None:
            family.add_metric(key if isinstance(key, tuple) else (key,), float(value))
    return family


def _of_workers(workers: Sequence[SystemMeasures | WorkerMeasures]) -> Iterator[Metric]:
    for name, what, field in (
        ("uptime_seconds", "How long the process runs.", "uptime_sec"),
        ("cpu_seconds", "What the process has used of a processor.", "cpu_sec"),
        ("memory_megabytes", "The most memory that the process ever had.", "memory_mb"),
    ):
        yield _gauge(name, what, ("worker",), [(str(one.worker), getattr(one, field)) for one in workers])


def _of_runs(runs: RunMeasures) -> Iterator[Metric]:
    yield _gauge("runs_in_progress", "Runs that go on.", (), [((), runs.running)])
    yield _counter("runs_begun", "Runs that have begun.", (), [((), runs.begun)])
    ends = [(end, getattr(runs, end)) for end in RUN_ENDS]
    yield _counter("runs_ended", "Runs that have ended, by how.", ("end",), ends)


def _of_http(http: HttpMeasures) -> Iterator[Metric]:
    yield _gauge("http_requests_in_progress", "Requests that are being answered.", (), [((), http.in_progress)])
    counts = [
        ((one.method, one.route, status), count) for one in http.routes for status, count in one.by_status.items()
    ]
    yield _counter("http_requests", "Requests, by status.", ("method", "route", "status"), counts)
    seconds = [((one.method, one.route), one.seconds) for one in http.routes]
    yield _counter("http_request_seconds", "How long requests took, in all.", ("method", "route"), seconds)


def _of_groups(by: str, groups: list[tuple[str, Performance]]) -> Iterator[Metric]:
    for name, what, field in (
        ("evaluations", "How often it was judged.", "evaluations"),
        ("tasks", "How many tasks of it were judged.", "task_count"),
        ("success_rate", "The share that was good enough.", "success_rate"),
        ("average_score", "The average score, from 0 to 1.", "average_score"),
        ("cost_usd", "What the judged turns have cost.", "cost_usd"),
    ):
        values = [(group, getattr(one, field)) for group, one in groups]
        yield _gauge(f"{by}_{name}", what, (by,), values)
    shares = (("0.5", "p50_ms"), ("0.95", "p95_ms"), ("0.99", "p99_ms"))
    took = [
        ((group, share), getattr(one.durations, field) / 1000)
        for group, one in groups
        if one.durations is not None
        for share, field in shares
    ]
    yield _gauge(f"{by}_duration_seconds", "How long its tasks took.", (by, "quantile"), took)
    for name in RESOURCES:
        used = [
            ((group, statistic), value)
            for group, one in groups
            if (usage := one.resources.get(name)) is not None
            for statistic, value in (("average", usage.average), ("max", usage.most))
        ]
        yield _gauge(f"{by}_{name}", "What its tasks used, as reported.", (by, "statistic"), used)


def _of_mail(mail: MailMeasures) -> Iterator[Metric]:
    states = ("ready", "leased", "waiting", "behind", "held", "away", "done", "dead")
    letters = [((box.recipient_id, state), getattr(box, state)) for box in mail.mailboxes for state in states]
    yield _gauge("mailbox_letters", "Letters by where they stand.", ("recipient", "state"), letters)
    retries = [(box.recipient_id, box.retries) for box in mail.mailboxes]
    yield _gauge("mailbox_retries", "How often letters were handed out again.", ("recipient",), retries)
    for name, what, value in (
        ("queue_depth", "Letters that are neither done nor dead.", mail.queue_depth),
        ("dead_letters", "Letters that were given up.", mail.dead_letters),
        ("retries", "How often letters were handed out again, in all.", mail.retries),
    ):
        yield _gauge(f"mail_{name}", what, (), [((), value)])


def _at(path: str, name: str) -> Endpoint:
    return Endpoint(
        "GET",
        path,
        metrics,
        name=name,
        summary="What is measured: tasks, agents, models, mail, cost, and of all workers runs and requests",
        description="JSON, or Prometheus' text where Accept would rather have that.",
        answers={200: (AllMeasures, Media("text/plain", {"type": "string"}))},
        scope=SCOPE,
    )


ENDPOINTS = (_at("/metrics", "metrics"), _at("/api/v1/mail/metrics", "metrics_of_mail"))
