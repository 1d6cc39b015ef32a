"""Tests of the graph of a letter, and of the erasure of a user's mail."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from dragoman.errors import UnknownLetterError
from dragoman.letters.records import personal_team
from dragoman.mail import Mail
from dragoman.mail.evaluation import TaskRating, record_rating
from dragoman.mail.graph import letter_graph
from dragoman.message import Message, MessageMetadata, Role, TextBlock, ToolResultBlock, ToolUseBlock, Usage
from dragoman.store import Store
from tests.mail.conftest import result

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CALL = "tu_01KR3ER9E00000000000000QQE"


def create_message(role: Role, *blocks: Any, run_id: str = "turn-1", **metadata: Any) -> Message:
    return Message("", "", role, blocks, MessageMetadata(run_id=run_id, **metadata), NOW)


def create_usage(cost: str) -> Usage:
    return Usage(input_tokens=10, output_tokens=5, cost_usd=Decimal(cost), pricing_version="1", latency_ms=7)


async def create_conversation(store: Store) -> str:
    session = await store.create_session(title="The report")
    await store.append(session.id, create_message(Role.USER, TextBlock("An earlier question"), run_id="turn-0"))
    await store.append(
        session.id, create_message(Role.ASSISTANT, TextBlock("Yes"), run_id="turn-0", usage=create_usage("5"))
    )
    await store.append(session.id, create_message(Role.USER, TextBlock("Write it")))
    await store.append(
        session.id, create_message(Role.ASSISTANT, ToolUseBlock(CALL, "write_file", {}), usage=create_usage("0.10"))
    )
    await store.append(session.id, create_message(Role.TOOL, ToolResultBlock(CALL, (TextBlock("ok"),))))
    await store.append(session.id, create_message(Role.ASSISTANT, TextBlock("Written"), usage=create_usage("0.25")))
    return session.id


async def test_graph_contains_messages_calls_and_spend_of_the_turn(store: Store) -> None:
    mail = Mail(store)
    session_id = await create_conversation(store)
    await mail.send(result(message_id="m1", session_id=session_id, turn_id="turn-1", score=0.8))
    await mail.send(result(message_id="m2", output="more"))
    graph = await letter_graph(mail, "ARCH", "m1")
    assert graph.letter.letter.letter_id == "m1"
    assert graph.session.title == "The report"
    assert [row.seq for row in graph.messages] == [3, 4, 5, 6]
    assert [(call.id, call.name, call.status) for call in graph.tool_calls] == [(CALL, "write_file", "succeeded")]
    assert graph.spend is not None
    assert (graph.spend.calls, graph.spend.cost_usd, graph.spend.output_tokens) == (2, Decimal("0.35"), 10)
    assert [(item.score, item.turn_id) for item in graph.evaluations] == [(0.8, "turn-1")]
    assert [item.letter.letter_id for item in graph.thread] == ["m1", "m2"]


async def test_graph_omits_inaccessible_and_deleted_sessions(store: Store) -> None:
    mail = Mail(store)
    session_id = await create_conversation(store)
    await mail.send(result(message_id="m1", session_id=session_id))

    async def find_no_session(_: str) -> None:
        return None

    hidden = await letter_graph(mail, "ARCH", "m1", find_no_session)
    assert (hidden.session, hidden.messages, hidden.spend) == (None, (), None)
    await mail.send(result("T-2", message_id="m2", session_id="sess_nothing"))
    assert (await letter_graph(mail, "ARCH", "m2")).session is None
    with pytest.raises(UnknownLetterError):
        await letter_graph(mail.for_team(team_id="other"), "ARCH", "m1")


async def test_erasure_deletes_the_mail_of_a_user_without_team(store: Store) -> None:
    team = personal_team("usr_ada")
    mail = Mail(store).for_team(team_id=team, user_id="usr_ada")
    await mail.send(result(message_id="m1", score=0.5, depends_on=["T-0"]))
    await mail.send(result("T-0", message_id="m0"))
    await record_rating(store, TaskRating(task_id="T-1", score=1), evaluator="usr_ada", team_id=team)
    others = Mail(store).for_team(team_id="ops", user_id="usr_grace")
    await others.send(result(message_id="m1", score=0.5))
    await store.erase_user("usr_ada")
    assert await mail.letters() == []
    assert await mail.counts() == []
    assert await store.evaluations.find(team_id=team) == []
    assert len(await others.letters()) == len(await store.evaluations.find(team_id="ops")) == 1
    assert (await store.verify()).is_sound
    for table in ("letters", "mailboxes", "inbox", "dead_letters", "task_states", "task_needs", "evaluations"):
        rows = await store._read(_select_all(table))
        assert not [row for row in rows if "usr_ada" in str(row)], table


def _select_all(table: str) -> Any:
    from dragoman.store.operation import operation

    @operation
    def read() -> Any:
        return (yield f"SELECT * FROM {table}", ())

    return read()


async def test_spend_of_turn_without_price_is_unknown(store: Store) -> None:
    session = (await store.create_session()).id
    unpriced = Usage(input_tokens=10, output_tokens=5, cost_usd=None, pricing_version="unpriced", latency_ms=7)
    await store.append(session, create_message(Role.ASSISTANT, TextBlock("Yes"), usage=unpriced))
    mail = Mail(store)
    receipt = await mail.send(result(), session_id=session, turn_id="turn-1")
    graph = await letter_graph(mail, "ARCH", receipt.letter_id)
    assert graph.spend is not None
    assert (graph.spend.cost_usd, graph.spend.unpriced, graph.spend.calls) == (None, 1, 1)
