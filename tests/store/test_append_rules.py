"""Tests of strict appends: invalid messages are rejected with a proposed repair."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from dragoman.errors import RuleViolationError
from dragoman.message import (
    Message,
    MessageStatus,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ToolResultBlock,
)
from dragoman.rules import check
from dragoman.store import Store, open_store
from dragoman.store.operation import Rows, Statement, operation
from tests.store.messages import answer_message, call_message, create_usage, message, text_message

CALL = "tu_01ARZ3NDEKTSV4RRFFQ69G5FAV"


WHOLE = {
    "model": "fake:model",
    "provider": "fake",
    "usage": create_usage(),
    "routing": RoutingDecisionRecord(mode=RoutingMode.DEFAULT, chosen_model="fake:model", reason="test"),
}


def result(text: str = "blue") -> Message:
    content = [ToolResultBlock(CALL, (TextBlock(text),))]
    return message(Role.TOOL, content, parent_tool_use_id=CALL)


async def read_stored(store: Store, session_id: str) -> list[Message]:
    return [row.message async for row in store.history(session_id)]


async def test_lenient_store_accepts_invalid_messages(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, result())
    assert check(await read_stored(store, session.id)) != ()


async def test_invalid_message_is_rejected_with_repair(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message("Hello"), strict=True)
    bare = answer_message("Hi")
    with pytest.raises(RuleViolationError) as caught:
        await store.append(session.id, bare, strict=True)
    error = caught.value
    assert {breach.rule for breach in error.violations} >= {"assistant-names-model", "assistant-has-usage"}
    assert error.code == "breaks_rules"
    assert len(await read_stored(store, session.id)) == 1, "nothing was stored"
    await store.append(session.id, error.repaired_messages, strict=True)
    stored_messages = await read_stored(store, session.id)
    assert [message.content for message in stored_messages] == [
        text_message("Hello").content,
        text_message("Hi").content,
    ]
    assert check(stored_messages) == ()


async def test_result_requires_open_call_of_session(store: Store) -> None:
    session = await store.create_session()
    with pytest.raises(RuleViolationError, match="result-has-call"):
        await store.append(session.id, [text_message("Look"), result()], strict=True)
    await store.append(session.id, [text_message("Look"), call_message(CALL, **WHOLE)], strict=True)
    (answer,) = await store.append(session.id, result(), strict=True)
    again = await store.append(session.id, answer.message, strict=True)
    assert [row.seq for row in again] == [answer.seq], "the same again changes nothing"
    with pytest.raises(RuleViolationError, match="one-result-per-call") as caught:
        await store.append(session.id, result("red"), strict=True)
    assert caught.value.repaired_messages == (), "no repaired message exists"
    fork = await store.fork(session.id, 2)
    await store.append(fork.id, result("green"), strict=True)
    assert [message.role for message in await read_stored(store, fork.id)][-1] is Role.TOOL


async def test_partial_message_may_be_invalid(store: Store) -> None:
    session = await store.create_session()
    partial = message(Role.ASSISTANT, [], status=MessageStatus.PARTIAL)
    await store.append(session.id, [text_message("Hello"), partial], strict=True)


async def test_strict_store_rejects_by_default(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'chats.db'}", strict=True) as store:
        session = await store.create_session()
        with pytest.raises(RuleViolationError):
            await store.append(session.id, result())
        await store.append(session.id, result(), strict=False)


async def test_specified_index_exists(store: Store) -> None:
    if store.engine == "sqlite":
        sql = "SELECT sql FROM sqlite_master WHERE name = 'idx_messages_session_created'"
    else:
        sql = "SELECT indexdef FROM pg_indexes WHERE indexname = 'idx_messages_session_created'"

    @operation
    def select() -> Generator[Statement, Rows, Rows]:
        return (yield sql, ())

    rows = await store._read(select())
    assert "(session_id, created_at)" in rows[0][0]
