"""Tests of evaluations of teams: idempotency keys, hashes and totals."""

from __future__ import annotations

from decimal import Decimal

from dragoman.store import Store
from tests.store.conftest import Clock


async def test_evaluation_with_key_is_stored_once(store: Store, clock: Clock) -> None:
    store.clock = clock
    first = await store.evaluations.record(task_id="T", score=0.5, key="letter:1", team_id="a")
    clock.move(seconds=5)
    repeated = await store.evaluations.record(task_id="T", score=0.5, key="letter:1", team_id="a")
    other = await store.evaluations.record(task_id="T", score=0.5, key="letter:1", team_id="b")
    assert repeated == first
    assert other.id != first.id
    assert len(await store.evaluations.find(task_id="T")) == 2
    assert await store.evaluations.find(task_id="T", team_id="a") == [first]


async def test_hash_covers_team(store: Store) -> None:
    session = await store.create_session()
    await store.evaluations.record(session.id, score=1, team_id="a")
    await store.evaluations.record(session.id, score=1)
    assert (await store.verify()).is_sound
    assert {evaluation.team_id for evaluation in await store.evaluations.find(session.id)} == {"a", ""}


async def test_totals_count_recorded_values_by_agent_and_model(store: Store) -> None:
    for team, agent, model, score, success, cost in (
        ("a", "CA", "p:m", 0.5, True, "0.10"),
        ("a", "CA", "p:m", None, False, None),
        ("a", "WA", None, 1.0, None, "0.20"),
        ("b", "CA", "p:n", 0.1, False, None),
    ):
        await store.evaluations.record(
            task_id="T",
            agent_id=agent,
            model=model,
            score=score,
            success=success,
            cost_usd=None if cost is None else Decimal(cost),
            team_id=team,
        )
    ca, wa = await store.evaluations.totals("agent", team_id="a")
    assert (ca.group, ca.count, ca.tasks, ca.with_success, ca.succeeded) == ("CA", 2, 1, 2, 1)
    assert (ca.with_score, ca.score_sum, ca.cost_usd) == (1, 0.5, Decimal("0.10"))
    assert (wa.group, wa.with_success, wa.cost_usd) == ("WA", 0, Decimal("0.20"))
    assert [total.group for total in await store.evaluations.totals("model", team_id="a")] == ["p:m"]
    assert sum(total.count for total in await store.evaluations.totals("agent")) == 4
