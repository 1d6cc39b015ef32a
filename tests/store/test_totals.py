"""Tests that totals of usage and cost are exact on every engine."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from dragoman.message import Message, MessageMetadata, Role, Usage
from dragoman.store import Store
from dragoman.store.operation import UNKNOWN_TIME
from tests.store.messages import answer_message, create_usage, text_message


async def test_totals_are_exact_in_every_group(store: Store) -> None:
    one, two = await store.create_session("s1"), await store.create_session("s2")
    spent = [
        (one, "2026-05-08T23:59:59", "a:x", "a", "u1", "t1", "0.1"),
        (one, "2026-05-09T00:00:00", "a:y", "a", "u1", "t1", "0.2"),
        (two, "2026-05-09T12:00:00", "b:z", "b", "u2", "t1", "1E-25"),
        (two, "2026-05-10T12:00:00", "b:z", "b", "u2", None, "100000.000000000000000000000001"),
        (two, "2026-05-10T13:00:00", None, None, None, None, "0"),
    ]
    for session, when, model, provider, user, team, cost in spent:
        usage = create_usage(10, 4, cost)
        new = answer_message("x", model=model, provider=provider, user_id=user, team_id=team, usage=usage)
        await store.append(session.id, new.replace(created_at=datetime.fromisoformat(f"{when}+00:00")))
    await store.append(one.id, [text_message("asks"), answer_message("no usage")])

    async def costs(by: Any, **filters: Any) -> dict[str | None, Decimal]:
        return {total.group: total.cost_usd for total in await store.costs.totals(by, **filters)}

    high = Decimal("100000.0000000000000000000000011")  # more digits than the default Decimal precision
    last = Decimal("100000.000000000000000000000001")
    tiny = Decimal("1E-25")
    assert await costs("session") == {"s1": Decimal("0.3"), "s2": high}
    assert await costs("user") == {None: Decimal(0), "u1": Decimal("0.3"), "u2": high}
    assert await costs("team") == {None: last, "t1": Decimal("0.3000000000000000000000001")}
    assert await costs("model") == {None: 0, "a:x": Decimal("0.1"), "a:y": Decimal("0.2"), "b:z": high}
    assert await costs("provider") == {None: 0, "a": Decimal("0.3"), "b": high}
    days = {"2026-05-08": Decimal("0.1"), "2026-05-09": Decimal("0.2000000000000000000000001"), "2026-05-10": last}
    assert await costs("day") == days
    assert await costs("model", session="s2", until="2026-05-10") == {"b:z": tiny}
    assert await costs("day", since="2026-05-09", until="2026-05-10") == {"2026-05-09": days["2026-05-09"]}
    assert await costs("user", team="t1", model="a:y") == {"u1": Decimal("0.2")}
    assert await costs("day", user="nobody") == {}
    assert list(await costs("model")) == [None, "a:x", "a:y", "b:z"]
    (total,) = await store.costs.totals("session", session="s1")
    assert (total.messages, total.input_tokens, total.output_tokens) == (2, 20, 8)
    assert (total.cached_input_tokens, total.cache_creation_input_tokens, total.reasoning_tokens) == (40, 60, 4)


async def test_group_order_is_same_on_every_engine(store: Store) -> None:
    session = await store.create_session()
    names = ["b", "B", "a", "ä", "Z", "_", "🎉", "\uffff", "é", ""]
    await store.append(session.id, [answer_message("x", model=name, usage=create_usage()) for name in names])
    assert [total.group for total in await store.costs.totals("model")] == sorted(names)


async def test_usage_without_time_has_no_day(store: Store) -> None:
    session = (await store.create_session()).id
    usage = Usage(input_tokens=10, output_tokens=5, cost_usd=Decimal(1), pricing_version="1", latency_ms=7)
    undated = Message(
        "01ARZ3NDEKTSV4RRFFQ69G5FAV", session, Role.ASSISTANT, (), MessageMetadata(usage=usage), UNKNOWN_TIME
    )
    await store.append(session, undated)
    assert [(total.group, total.cost_usd) for total in await store.costs.totals("day")] == [(None, Decimal(1))]


async def test_call_without_message_counts_for_day_model_and_user(store: Store) -> None:
    await store.costs.add_call(create_usage(10, 4, "0.25"), model="a:x", provider="a", user_id="u1", team_id="t1")
    unpriced = Usage(input_tokens=3, output_tokens=1, cost_usd=None, pricing_version="unpriced", latency_ms=1)
    await store.costs.add_call(unpriced, model="a:x", provider="a")
    (by_model,) = await store.costs.totals("model")
    assert (by_model.messages, by_model.input_tokens, by_model.cost_usd) == (2, 13, Decimal("0.25"))
    assert by_model.unpriced == 1
    assert [(total.group, total.messages) for total in await store.costs.totals("user")] == [(None, 1), ("u1", 1)]
    assert [total.group for total in await store.costs.totals("day")] == [store.clock().date().isoformat()]
    await store.erase_user("u1")
    assert [(total.group, total.messages) for total in await store.costs.totals("user")] == [(None, 2)]


async def test_recent_session_with_answer_is_found(store: Store) -> None:
    for name in ("s1", "s2", "s3"):
        await store.create_session(name)
    await store.append("s1", answer_message("x", model="a:x", usage=create_usage()))
    await store.append("s2", [text_message("asks"), answer_message("x", model="a:x", usage=create_usage())])
    await store.append("s3", answer_message("x", model="b:z", usage=create_usage()))
    assert await store.costs.find_session("a:x", max_seq=50) == "s2"
    assert await store.costs.find_session("a:x", max_seq=1) == "s1"
    assert await store.costs.find_session("b:z", max_seq=50) == "s3"
    assert await store.costs.find_session("c:y", max_seq=50) is None
