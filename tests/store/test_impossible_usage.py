"""Tests of impossible usage: it is rejected, excluded from totals if stored, and repaired by an operator."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import pytest

import dragoman
from dragoman.errors import FormatError, InputError
from dragoman.message import MAX_TOKENS, NOT_RECORDED, UNPRICED, Usage, usage_problems
from dragoman.store import Store, message_writer, open_store
from tests.store.first_version import drop_additions_since
from tests.store.messages import answer_message, create_usage, text_message

FORGED: dict[str, Any] = {"input_tokens": 2**63 - 1, "cost_usd": Decimal(-1_000_000)}


def change_usage(**figures: Any) -> Usage:
    return create_usage(10, 4, "0.5").replace(**figures)


async def create_poisoned_session(store: Store, monkeypatch: pytest.MonkeyPatch, *usages: Usage) -> str:
    """Create a session with these usages of another user, as a version without limits stored them."""
    session = await store.create_session(user_id="mallory")
    with monkeypatch.context() as patch:
        patch.setattr(message_writer, "check_usage", lambda message: None)
        for usage in usages:
            await store.append(session.id, answer_message("x", model="a:x", user_id="victim", team_id="t", usage=usage))
    return session.id


@pytest.mark.parametrize(
    "figures",
    [
        {"input_tokens": MAX_TOKENS + 1},
        {"output_tokens": 2**63 - 1},
        {"cached_input_tokens": 10**100},
        {"latency_ms": 10**30},
        {"server_tool_calls": {"web_search": 2**63}},
        {"cost_usd": Decimal("-0.01")},
        {"cost_usd": Decimal("1E+10")},
        {"cost_usd": Decimal("1E-9999")},
        {"provider_cost_usd": Decimal(-1)},
    ],
    ids=str,
)
async def test_impossible_usage_is_rejected_without_rows(store: Store, figures: dict[str, Any]) -> None:
    session = await store.create_session()
    usage = change_usage(**figures)
    with pytest.raises(FormatError) as caught:
        await store.append(session.id, [text_message("Hello"), answer_message("x", usage=usage)])
    assert caught.value.code == "impossible_usage"
    assert next(iter(figures)) in str(caught.value)
    assert await store.read(session.id) == []


async def test_largest_possible_usage_is_stored_and_summed(store: Store) -> None:
    session = await store.create_session()
    largest = Usage(
        input_tokens=MAX_TOKENS, output_tokens=0, cost_usd=Decimal(10**9), pricing_version="v1", latency_ms=0
    )
    await store.append(session.id, [answer_message(str(n), usage=largest) for n in range(20)])
    (total,) = await store.costs.totals("session")
    assert (total.input_tokens, total.cost_usd) == (20 * MAX_TOKENS, 20 * Decimal(10**9))
    assert (await store.verify()).is_sound


async def test_import_with_impossible_usage_names_message(store: Store) -> None:
    message = answer_message("x", usage=change_usage(**FORGED)).replace(
        id="01ARZ3NDEKTSV4RRFFQ69G5FAV", session_id="s1"
    )
    with pytest.raises(FormatError, match="01ARZ3NDEKTSV4RRFFQ69G5FAV") as caught:
        await store.import_session([dragoman.encode(message) + b"\n"])
    assert caught.value.code == "impossible_usage"
    assert await store.list_sessions() == []


async def test_stored_impossible_usage_is_excluded_and_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = change_usage(cost_usd=Decimal("1E-9999"))
    session_id = await create_poisoned_session(
        store, monkeypatch, change_usage(**FORGED), change_usage(**FORGED), change_usage(), tiny
    )
    for by in ("user", "team", "model", "day", "session", "provider"):
        (total,) = await store.costs.totals(by)  # type: ignore[arg-type]
        assert (total.messages, total.input_tokens, total.output_tokens) == (4, 20, 16)
        assert total.cost_usd == Decimal("0.5")
    await store.costs.save_repricing("v2", [(session_id, 3, Decimal(1))])
    assert (await store.costs.totals("user", version="v2"))[0].cost_usd == 1
    report = await store.verify()
    assert not report.is_sound
    assert report.is_intact
    assert [(found_damage.session_id, found_damage.seq) for found_damage in report.damage] == [
        (session_id, 1),
        (session_id, 2),
        (session_id, 4),
    ]
    assert "input_tokens: 9223372036854775807" in report.damage[0].what


async def test_store_with_impossible_usage_is_backed_up(
    store_location: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_location.open() as store:
        await create_poisoned_session(store, monkeypatch, change_usage(**FORGED))
        await store.backup(tmp_path / "copy.db")
    async with open_store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert [found_damage.seq for found_damage in (await copy.verify()).damage] == [1]


async def test_repair_clears_impossible_usage_and_is_audited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = await create_poisoned_session(store, monkeypatch, change_usage(**FORGED), change_usage())
    (planned,) = await store.costs.repair(dry_run=True)
    assert (planned.session_id, planned.seq, planned.user_id, planned.team_id) == (session_id, 1, "victim", "t")
    assert not (await store.verify()).is_sound
    assert await store.costs.repair() == [planned]
    assert await store.costs.repair() == []
    assert (await store.verify()).is_sound
    message = (await store.read(session_id))[0].message
    assert message.metadata.usage is not None
    assert not usage_problems(message.metadata.usage)
    assert (message.metadata.usage.input_tokens, message.metadata.usage.output_tokens) == (0, 4)
    assert (message.metadata.usage.cost_usd, message.metadata.usage.state) == (None, "unpriced")
    (total,) = await store.costs.totals("user")
    assert (total.cost_usd, total.unpriced) == (Decimal("0.5"), 1)
    (event,) = await store.trace.events("system", types=["usage.repaired"])
    assert event.payload["before"]["input_tokens"] == 2**63 - 1
    assert event.payload["before"]["cost_usd"] == "-1000000"
    assert (event.payload["repaired_session_id"], event.payload["seq"]) == (session_id, 1)


async def test_repair_of_single_message_removes_possible_usage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = await create_poisoned_session(store, monkeypatch, change_usage(), change_usage())
    assert await store.costs.repair() == []
    (repaired,) = await store.costs.repair(session_id, 2)
    assert repaired.before["cost_usd"] == "0.5"
    totals = {total.group: (total.cost_usd, total.unpriced) for total in await store.costs.totals("user")}
    assert totals == {"victim": (Decimal("0.5"), 0), "mallory": (Decimal(0), 1)}
    message = (await store.read(session_id))[1].message
    assert (message.metadata.user_id, message.metadata.team_id) == ("mallory", None)
    assert (await store.verify()).is_sound
    with pytest.raises(InputError):
        await store.costs.repair(session_id, 9)


async def test_deleted_session_adds_no_impossible_usage_to_totals(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await create_poisoned_session(
        store, monkeypatch, change_usage(**FORGED), change_usage(**FORGED), change_usage(cost_usd=None)
    )
    await store.delete_session(session_id)
    (total,) = await store.costs.totals("user")
    assert (total.messages, total.input_tokens, total.cost_usd, total.unpriced) == (3, 10, 0, 1)
    assert (await store.verify()).is_sound


async def test_repair_includes_totals_of_deleted_sessions(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with open_store(f"sqlite:///{file}") as store:
        session = await store.create_session()
        await store.append(session.id, answer_message("x", user_id="victim", usage=change_usage()))
        await store.delete_session(session.id)
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE past_usage SET input_tokens = 9223372036854775807, cost_usd = '-5'")
    connection.close()
    async with open_store(f"sqlite:///{file}") as store:
        (total,) = await store.costs.totals("user")
        assert (total.input_tokens, total.cost_usd) == (0, 0)
        assert [found_damage.is_as_written for found_damage in (await store.verify()).damage] == [True]
        (repaired,) = await store.costs.repair()
        assert (repaired.session_id, repaired.user_id, repaired.before["cost_usd"]) == ("", "victim", "-5")
        assert (await store.verify()).is_sound


async def test_unpriced_calls_are_counted_separately(store: Store) -> None:
    session = await store.create_session(user_id="ann")
    usages = [change_usage(), change_usage(cost_usd=None, pricing_version=UNPRICED), change_usage(cost_usd=Decimal(0))]
    await store.append(session.id, [answer_message("x", model="a:x", user_id="ann", usage=item) for item in usages])
    (total,) = await store.costs.totals("model")
    assert (total.messages, total.cost_usd, total.unpriced) == (3, Decimal("0.5"), 1)
    await store.costs.save_repricing("v2", [(session.id, 2, Decimal("0.25"))])
    (repriced,) = await store.costs.totals("model", version="v2")
    assert (repriced.cost_usd, repriced.unpriced) == (Decimal("0.75"), 0)
    assert (await store.verify()).is_sound
    await store.delete_session(session.id)
    assert [(total.cost_usd, total.unpriced) for total in await store.costs.totals("model")] == [(Decimal("0.5"), 1)]


async def test_migration_counts_unpriced_zeros_separately(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with open_store(f"sqlite:///{file}") as store:
        session = await store.create_session()
        zero = change_usage(cost_usd=Decimal(0))
        usages = [zero, zero.replace(pricing_version=UNPRICED), zero.replace(pricing_version=NOT_RECORDED)]
        extra = {"usage": {"pricing_version": UNPRICED}}
        await store.append(session.id, [answer_message("x", usage=item, extra=extra) for item in usages])
    connection = apsw.Connection(str(file))
    drop_additions_since(connection, 10)
    connection.pragma("user_version", 10)
    connection.close()
    async with open_store(f"sqlite:///{file}") as store:
        (total,) = await store.costs.totals("session")
        assert (total.messages, total.unpriced) == (3, 2)
        assert [row.message.metadata.usage.state for row in await store.read(session.id)] == [  # type: ignore[union-attr]
            "priced",
            "unpriced",
            "unpriced",
        ]
        assert (await store.verify()).is_sound
