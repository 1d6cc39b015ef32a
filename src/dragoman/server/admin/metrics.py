"""``GET /metrics``: measures of the caller's team and of the server, as JSON or in the Prometheus format.

The Accept header selects the format; the default is JSON. Runs and requests are counted over all workers and all teams,
so only a key with the scope ``admin`` gets them. Invariant: without that scope, no value depends on another team.
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
from dragoman.letters.types import RESOURCES
from dragoman.mail.metrics import AgentMetrics, MailMetrics, Metrics, ModelMetrics, Performance, get_metrics
from dragoman.server.admin.counters import RUN_ENDS, HttpMeasures, RunMeasures, WorkerMeasures
from dragoman.server.auth.principal import get_principal
from dragoman.server.auth.scopes import ADMIN
from dragoman.server.http.endpoint import Endpoint, Media
from dragoman.server.http.requests import app_state
from dragoman.server.http.responses import json_response
from dragoman.server.mail.access import mail_endpoint, mail_team
from dragoman.store import Totals

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_OPENMETRICS: Final = "application/openmetrics-text"


class SystemMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """The process that answered."""

    version: str
    worker: int
    uptime_sec: float
    cpu_sec: float
    memory_mb: float  # peak
    durability: str


class CostMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of the caller's own conversations."""

    total_usd: Decimal
    by_model: dict[str, Decimal | None]  # none if no answer of the model has a price
    unpriced: dict[str, int]  # answers without a price, by model; not included in the sums
    input_tokens: int
    output_tokens: int


class DeliveryMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Durability and state of mail."""

    transport: str  # embedded, or the transport to other stores
    durability: str  # of the store, which holds every letter until it is done
    state: str  # ok, not connected, or failing (a mail task fails)
    broker: str | None = None  # connected, or not connected
    delivery_durability: str | None = None  # of letters in transit


class AllMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """All measures."""

    timestamp: datetime
    system: SystemMeasures
    tasks: Performance
    agents: list[AgentMetrics]
    models: list[ModelMetrics]
    mail: MailMetrics
    delivery: DeliveryMeasures
    cost: CostMeasures
    workers: list[WorkerMeasures] | None = None  # this and the next two: of all workers and teams, for the scope admin
    runs: RunMeasures | None = None
    http: HttpMeasures | None = None


async def show_metrics(request: Request) -> Response:
    """Return the measures in the requested format."""
    state, principal = app_state(request), get_principal(request)
    measures = await get_metrics(state.store, mail_team(principal))
    totals = await state.store.costs.totals("model", owners=principal.owners)
    mail_health = await state.mail.health()
    delivery = msgspec.convert(mail_health, DeliveryMeasures)
    result = _combine(measures, _cost_measures(totals), delivery, state.counters.this_worker(), state.store.clock())
    if ADMIN in principal.scopes:
        server_measures = {
            "workers": state.counters.workers(),
            "runs": state.counters.runs(),
            "http": state.counters.http(),
        }
        result = msgspec.structs.replace(result, **server_measures)
    accept = ", ".join(request.headers.getlist("accept"))
    if prefers_text(accept):
        return _to_prometheus(result, accept)
    return json_response(result, headers={"vary": "Accept"})


def _combine(
    measures: Metrics, cost: CostMeasures, delivery: DeliveryMeasures, worker: WorkerMeasures, now: datetime
) -> AllMeasures:
    return AllMeasures(
        timestamp=now,
        system=_system_measures(worker, delivery.durability),
        tasks=measures.tasks,
        agents=measures.agents,
        models=measures.models,
        mail=measures.mail,
        delivery=delivery,
        cost=cost,
    )


def _system_measures(worker: WorkerMeasures, durability: str) -> SystemMeasures:
    return SystemMeasures(
        version=dragoman.__version__,
        worker=worker.worker,
        uptime_sec=worker.uptime_sec,
        cpu_sec=worker.cpu_sec,
        memory_mb=worker.memory_mb,
        durability=durability,
    )


def _cost_measures(totals: list[Totals]) -> CostMeasures:
    return CostMeasures(
        total_usd=sum((total.cost_usd for total in totals), Decimal(0)),
        by_model={
            total.group or "unknown": None if total.unpriced >= total.messages else total.cost_usd for total in totals
        },
        unpriced={total.group or "unknown": total.unpriced for total in totals if total.unpriced},
        input_tokens=sum(total.input_tokens for total in totals),
        output_tokens=sum(total.output_tokens for total in totals),
    )


# --- which form ------------------------------------------------------------------------------------------------------


def prefers_text(accept: str) -> bool:
    """Whether an Accept header prefers text to JSON."""
    weights = dict(_accept_weights(accept))
    return max(weights.get(_TEXT, 0.0), weights.get(_OPENMETRICS, 0.0)) > weights.get(_JSON, 0.0)


def _accept_weights(accept: str) -> Iterator[tuple[str, float]]:
    for part in accept.split(",")[:100]:
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = next((parameter.removeprefix("q=") for parameter in parameters if parameter.startswith("q=")), "1")
        try:
            yield name, float(weight)
        except ValueError:
            yield name, 0.0


# --- for Prometheus --------------------------------------------------------------------------------------------------


def _to_prometheus(measures: AllMeasures, accept: str) -> Response:
    from prometheus_client import CollectorRegistry, exposition  # noqa: PLC0415  loaded only for Prometheus
    from prometheus_client.openmetrics import exposition as openmetrics  # noqa: PLC0415

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(measures))
    weights = dict(_accept_weights(accept))
    if weights.get(_OPENMETRICS, 0.0) > weights.get(_TEXT, 0.0):
        data, media_type = openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
    else:
        data, media_type = exposition.generate_latest(registry), exposition.CONTENT_TYPE_PLAIN_0_0_4
    return Response(data, headers={"content-type": media_type, "cache-control": "no-store", "vary": "Accept"})


class _Collector:
    """A Prometheus collector of the measures."""

    def __init__(self, measures: AllMeasures) -> None:
        self._measures = measures

    def collect(self) -> Iterable[Metric]:
        """All metrics."""
        measures = self._measures
        yield from _worker_metrics([measures.system] if measures.workers is None else measures.workers)
        if measures.runs is not None:
            yield from _run_metrics(measures.runs)
        if measures.http is not None:
            yield from _http_metrics(measures.http)
        yield from _performance_metrics("agent", [(group.agent_id, group) for group in measures.agents])
        yield from _performance_metrics("model", [(group.model, group) for group in measures.models])
        yield from _mail_metrics(measures.mail)
        is_ok = measures.delivery.state == "ok"
        yield _gauge("mail_delivery_ok", "Whether mail works.", (), [((), is_ok)])
        if measures.delivery.broker is not None:
            is_connected = measures.delivery.broker == "connected"
            yield _gauge("broker_connected", "Whether a broker is connected.", (), [((), is_connected)])
        priced = [(model, cost) for model, cost in measures.cost.by_model.items() if cost is not None]
        yield _gauge("cost_usd", "Cost of conversations.", ("model",), priced)
        unpriced = "Answers without a price, not included in cost_usd."
        yield _gauge("unpriced_answers", unpriced, ("model",), measures.cost.unpriced.items())

    def describe(self) -> Iterable[Metric]:
        """No metrics in advance: their labels depend on the data."""
        return ()


def _counter(name: str, help_text: str, labels: tuple[str, ...], values: Iterable[tuple[Any, float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415

    family = CounterMetricFamily(f"dragoman_{name}", help_text, labels=labels)
    for key, value in values:
        family.add_metric(key if isinstance(key, tuple) else (key,), float(value))
    return family


def _gauge(name: str, help_text: str, labels: tuple[str, ...], values: Iterable[tuple[Any, Any]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

    family = GaugeMetricFamily(f"dragoman_{name}", help_text, labels=labels)
    for key, value in values:
        if value is not None:
            family.add_metric(key if isinstance(key, tuple) else (key,), float(value))
    return family


def _worker_metrics(workers: Sequence[SystemMeasures | WorkerMeasures]) -> Iterator[Metric]:
    for name, help_text, field in (
        ("uptime_seconds", "Uptime of the process.", "uptime_sec"),
        ("cpu_seconds", "CPU time of the process.", "cpu_sec"),
        ("memory_megabytes", "Peak memory of the process.", "memory_mb"),
    ):
        yield _gauge(name, help_text, ("worker",), [(str(worker.worker), getattr(worker, field)) for worker in workers])


def _run_metrics(runs: RunMeasures) -> Iterator[Metric]:
    yield _gauge("runs_in_progress", "Active runs.", (), [((), runs.running)])
    yield _counter("runs_begun", "Started runs.", (), [((), runs.begun)])
    ends = [(end, getattr(runs, end)) for end in RUN_ENDS]
    yield _counter("runs_ended", "Finished runs by end.", ("end",), ends)


def _http_metrics(http: HttpMeasures) -> Iterator[Metric]:
    yield _gauge("http_requests_in_progress", "Requests in progress.", (), [((), http.in_progress)])
    counts = [
        ((route.method, route.route, status), count)
        for route in http.routes
        for status, count in route.by_status.items()
    ]
    yield _counter("http_requests", "Requests by status.", ("method", "route", "status"), counts)
    seconds = [((route.method, route.route), route.seconds) for route in http.routes]
    yield _counter("http_request_seconds", "Total duration of requests.", ("method", "route"), seconds)


def _performance_metrics(by: str, groups: list[tuple[str, Performance]]) -> Iterator[Metric]:
    for name, help_text, field in (
        ("evaluations", "Number of evaluations.", "evaluations"),
        ("tasks", "Number of evaluated tasks.", "task_count"),
        ("success_rate", "Share of successful tasks.", "success_rate"),
        ("average_score", "Average score, from 0 to 1.", "average_score"),
        ("cost_usd", "Cost of the evaluated turns.", "cost_usd"),
    ):
        values = [(group, getattr(performance, field)) for group, performance in groups]
        yield _gauge(f"{by}_{name}", help_text, (by,), values)
    shares = (("0.5", "p50_ms"), ("0.95", "p95_ms"), ("0.99", "p99_ms"))
    durations = [
        ((group, share), getattr(performance.durations, field) / 1000)
        for group, performance in groups
        if performance.durations is not None
        for share, field in shares
    ]
    yield _gauge(f"{by}_duration_seconds", "Duration of tasks.", (by, "quantile"), durations)
    for name in RESOURCES:
        usages = [
            ((group, statistic), value)
            for group, performance in groups
            if (usage := performance.resources.get(name)) is not None
            for statistic, value in (("average", usage.average), ("max", usage.most))
        ]
        yield _gauge(f"{by}_{name}", "Reported resource usage of tasks.", (by, "statistic"), usages)


def _mail_metrics(mail: MailMetrics) -> Iterator[Metric]:
    states = ("ready", "leased", "waiting", "behind", "held", "away", "done", "dead")
    letters = [((box.recipient_id, state), getattr(box, state)) for box in mail.mailboxes for state in states]
    yield _gauge("mailbox_letters", "Letters by status.", ("recipient", "state"), letters)
    retries = [(box.recipient_id, box.retries) for box in mail.mailboxes]
    yield _gauge("mailbox_retries", "Repeated deliveries.", ("recipient",), retries)
    for name, help_text, value in (
        ("queue_depth", "Letters that are neither done nor dead.", mail.queue_depth),
        ("dead_letters", "Dead letters.", mail.dead_letters),
        ("retries", "Repeated deliveries of all mailboxes.", mail.retries),
    ):
        yield _gauge(f"mail_{name}", help_text, (), [((), value)])


def _metrics_endpoint(path: str, name: str) -> Endpoint:
    return mail_endpoint(
        "GET",
        path,
        show_metrics,
        "Measures of tasks, agents, models, mail and cost; with the scope admin also runs and requests",
        {200: (AllMeasures, Media("text/plain", {"type": "string"}))},
        name=name,
        description="JSON, or the Prometheus text format if Accept prefers it.",
    )


ENDPOINTS = (_metrics_endpoint("/metrics", "metrics"), _metrics_endpoint("/api/v1/mail/metrics", "metrics_of_mail"))
