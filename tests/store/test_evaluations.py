"""Evaluations of teams: kept once under a key, seen by their team alone, and counted."""

from __future__ import annotations

from decimal import Decimal

from dragoman.store import Store
from tests.store.conftest import Clock


async def test_what_has_a_key_is_kept_once(store: Store, clock: Clock) -> None:
    store.clock = clock
    first = await store.evaluations.record(task_id="T", score=0.5, key="letter:1", team_id="a")
    clock.move(seconds=5)
    again = await store.evaluations.record(task_id="T", score=0.5, key="letter:1", team_id="a")
    other = await store.evaluations.record(task_id="T", score=0.5, key="letter:1", team_id="b")
    assert again == first
    assert other.id != first.id
    assert len(await store.evaluations.find(task_id="T")) == 2
    assert await store.evaluations.find(task_id="T", team_id="a") == [first]


async def test_a_team_is_part_of_what_the_hash_is_over(store: Store) -> None:
    session = await store.create_session()
    await store.evaluations.record(session.id, score=1, team_id="a")
    await store.evaluations.record(session.id, score=1)
    assert (await store.verify()).is_sound
    assert {made.team_id for made in await store.evaluations.find(session.id)} == {"a", ""}


async def test_totals_by_agent_and_by_model_count_what_is_said(store: Store) -> None:
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
    assert [one.group for one in await store.evaluations.totals("model", team_id="a")] == ["p:m"]
    assert sum(one.count for one in await store.evaluations.totals("agent")) == 4
