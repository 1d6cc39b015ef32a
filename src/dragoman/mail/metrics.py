"""Metrics of the tasks and the mail of a team: counts, rates, durations, queue depth and dead letters.

    await get_metrics(store, team_id="ops")

Counts, rates and averages cover everything stored. Durations cover the newest evaluations, so that the cost of a query
does not grow with the store. Invariant: no number includes data of another team.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.letters.statistics import Durations, Usage, group_by, summarize_durations, summarize_resources

if TYPE_CHECKING:
    from dragoman.store import Evaluation, EvaluationTotals, Store

_NEWEST: Final = 10_000  # evaluations that durations are computed from


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """The performance of an agent or a model."""

    evaluations: int
    task_count: int
    average_score: float | None = None
    success_rate: float | None = None
    succeeded: int = 0
    durations: Durations | None = None
    resources: dict[str, Usage] = {}  # resources reported by tasks: memory_usage_mb and so on
    cost_usd: Decimal = Decimal(0)
    last_activity: datetime | None = None


class AgentMetrics(Performance, frozen=True, kw_only=True):
    """The performance of an agent."""

    agent_id: str


class ModelMetrics(Performance, frozen=True, kw_only=True):
    """The performance of a model."""

    model: str


class MailboxMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a mailbox."""

    recipient_id: str
    ready: int
    leased: int
    waiting: int
    behind: int
    held: int
    away: int
    done: int
    dead: int
    retries: int
    oldest_at: datetime | None
    newest_at: datetime | None


class MailMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of all mailboxes."""

    queue_depth: int  # neither acknowledged nor dead
    retries: int
    dead_letters: int
    delivered: int
    mailboxes: list[MailboxMetrics]


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a team."""

    tasks: Performance
    agents: list[AgentMetrics]
    models: list[ModelMetrics]
    mail: MailMetrics


async def get_metrics(store: Store, team_id: str | None = None) -> Metrics:
    """Return the metrics of a team, or of all teams."""
    newest = await store.evaluations.find(team_id=team_id, limit=_NEWEST)
    agents = await store.evaluations.totals("agent", team_id=team_id)
    models = await store.evaluations.totals("model", team_id=team_id)
    by_agent, by_model = group_by(newest, "agent_id"), group_by(newest, "model")
    return Metrics(
        tasks=_overall_performance(newest),
        agents=[
            AgentMetrics(agent_id=totals.group, **_performance(totals, by_agent.get(totals.group, [])))
            for totals in agents
        ],
        models=[
            ModelMetrics(model=totals.group, **_performance(totals, by_model.get(totals.group, [])))
            for totals in models
        ],
        mail=await _mail_metrics(store, team_id),
    )


def _performance(totals: EvaluationTotals, newest: list[Evaluation]) -> dict[str, Any]:
    return {
        "evaluations": totals.count,
        "task_count": totals.tasks,
        "average_score": totals.score_sum / totals.with_score if totals.with_score else None,
        "success_rate": totals.succeeded / totals.with_success if totals.with_success else None,
        "succeeded": totals.succeeded,
        "durations": _summarize_durations(newest),
        "resources": summarize_resources(newest),
        "cost_usd": totals.cost_usd,
        "last_activity": totals.last_at,
    }


def _overall_performance(newest: list[Evaluation]) -> Performance:
    scores = [row.score for row in newest if row.score is not None]
    verdicts = [row.success for row in newest if row.success is not None]
    return Performance(
        evaluations=len(newest),
        task_count=len({row.task_id for row in newest if row.task_id is not None}),
        average_score=sum(scores) / len(scores) if scores else None,
        success_rate=sum(verdicts) / len(verdicts) if verdicts else None,
        succeeded=sum(verdicts),
        durations=_summarize_durations(newest),
        resources=summarize_resources(newest),
        cost_usd=sum((row.cost_usd for row in newest if row.cost_usd is not None), Decimal(0)),
        last_activity=newest[0].created_at if newest else None,
    )


def _summarize_durations(newest: list[Evaluation]) -> Durations | None:
    return summarize_durations([row.duration_ms for row in newest if row.duration_ms is not None])


async def _mail_metrics(store: Store, team_id: str | None) -> MailMetrics:
    boxes = [
        MailboxMetrics(**{name: getattr(counts, name) for name in MailboxMetrics.__struct_fields__})
        for counts in await store.mail.counts(team_id)
    ]
    return MailMetrics(
        queue_depth=sum(box.ready + box.leased + box.waiting + box.behind + box.held + box.away for box in boxes),
        retries=sum(box.retries for box in boxes),
        dead_letters=sum(box.dead for box in boxes),
        delivered=sum(box.done for box in boxes),
        mailboxes=boxes,
    )
