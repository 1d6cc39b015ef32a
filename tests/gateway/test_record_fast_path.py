"""A question and an answer of plain text are recording on a fast path, with the same rows as on the general path."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import ConflictError
from dragoman.gateway import record_fast_path
from dragoman.ids import UlidSource
from dragoman.message import MessageMetadata, Usage
from dragoman.store import Store, open_store, sessions
from dragoman.store.engines import loop_writer
from dragoman.store.engines.sqlite import SqliteStore
from dragoman.store.gateway_calls import GatewayRow, PlainSession
from dragoman.store.message_rows import Columns
from dragoman.store.operation import Gather, Steps, operation, to_micros
from dragoman.value import SlowPathRequired
from tests.gateway.in_process import OpenGateway, open_gateway
from tests.gateway.test_translation_fast_path import (
    PATHS,
    REPLIES,
    REPLY_CHANGES,
    REQUESTS,
    Case,
    cases,
    change_reply,
    change_texts,
    user,
)
from tests.servers.faulty_server import Answer, ReceivedRequest, make_answer

SESSION_COLUMNS = f"{sessions._SESSION_COLUMNS}, last_message_id, listed_at"  # without the columns of the search index
TABLES = {
    "sessions": "id",
    "messages": "session_id, seq",
    "usage": "session_id, seq",
    "gateway_transcripts": "hash",
    "tool_calls": "session_id, id",
    "blob_refs": "session_id, seq",
    "request_parts": "session_id, sha256",
}
NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
Rows = dict[str, list[tuple[Any, ...]]]
Respond = Answer | Callable[[ReceivedRequest], Answer]


@operation
def read_tables() -> Steps[Rows]:
    rows: Rows = {}
    for table, order in TABLES.items():
        columns = SESSION_COLUMNS if table == "sessions" else "*"
        rows[table] = yield f"SELECT {columns} FROM {table} ORDER BY {order}", ()
    return rows


def fix_time_and_ids(gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    services = gateway.gateway.services
    monkeypatch.setattr(services.store, "clock", lambda: NOW)
    monkeypatch.setattr(services.store, "_ids", UlidSource(lambda: 1, lambda: 0))
    monkeypatch.setattr(services, "clock", lambda: NOW)
    monkeypatch.setattr(services.client, "clock", lambda: 0.0)


class RecordResult(msgspec.Struct):
    rows: Rows
    statuses: list[int]
    plain: int  # calls that the fast path recording


async def record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dialect: str, bodies: list[bytes], answer: Respond, **headers: str
) -> RecordResult:
    """Send requests and return all rows."""
    folder.mkdir()

    def respond(request: ReceivedRequest) -> Answer:
        return answer(request) if callable(answer) else answer

    sessions_made: list[Any] = []
    with monkeypatch.context() as patch:
        make_session = record_fast_path.make_session
        patch.setattr(
            record_fast_path,
            "make_session",
            lambda *args: sessions_made.append(make_session(*args)) or sessions_made[-1],
        )
        async with open_gateway(folder, respond, PATHS, "durable") as gateway:
            fix_time_and_ids(gateway, patch)
            statuses = [(await gateway.post(dialect, "m", body, **headers)).status for body in bodies]
            store = gateway.gateway.services.store
            rows = await store._read(read_tables())
            assert (await store.verify()).is_sound
    return RecordResult(rows, statuses, sum(session is not None for session in sessions_made))


async def compare(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dialect: str, bodies: list[bytes], answer: Respond, **headers: str
) -> RecordResult:
    """Record the same calls on both paths, and compare every column of every row."""
    fast = await record(folder / "fast", monkeypatch, dialect, bodies, answer, **headers)
    monkeypatch.setattr(record_fast_path, "make_session", lambda *_: None)
    general = await record(folder / "general", monkeypatch, dialect, bodies, answer, **headers)
    assert general.plain == 0
    assert (fast.statuses, fast.rows) == (general.statuses, general.rows)
    return fast


def make_body(provider: str, fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"model": f"{provider}:m", "max_tokens": 64, **fields})


def reply_of(provider: str, **changes: Any) -> Answer:
    return make_answer(msgspec.json.encode(change_reply(provider, changes)))


@pytest.mark.parametrize("provider", PATHS)
@pytest.mark.parametrize("case", cases(REQUESTS))
async def test_request_has_rows_of_general_path(
    tmp_path: Path, case: Case, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect, fields, is_plain = case
    bodies = [make_body(provider, change_texts(fields)), make_body(provider, fields)]
    recording = await compare(tmp_path, monkeypatch, dialect, bodies, reply_of(provider))
    roles = [message["role"] for message in fields["messages"] if message["role"] != "system"]
    assert recording.plain == (1 if is_plain and roles == ["user"] else 0)


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("system", [True, False])
async def test_system_prompt_has_rows_of_general_path(
    tmp_path: Path, dialect: str, system: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"messages": user("Wie heißt du?\n<b>x</b>")}
    if system and dialect == "anthropic":
        fields["system"] = "Be brief.\nAnd kind."
    elif system:
        fields["messages"].insert(0, {"role": "system", "content": "Be brief.\nAnd kind."})
    bodies = [make_body(dialect, change_texts(fields)), make_body(dialect, fields)]
    recording = await compare(tmp_path, monkeypatch, dialect, bodies, reply_of(dialect))
    assert recording.plain == 1
    assert len(recording.rows["messages"]) == (6 if system else 4)


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("case", cases(REPLY_CHANGES))
async def test_reply_has_rows_of_general_path(
    tmp_path: Path, case: Case, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, changes, _ = case
    bodies = [make_body(provider, {"messages": user(text)}) for text in ("Hi", "Hello")]
    await compare(tmp_path, monkeypatch, dialect, bodies, reply_of(provider, **changes))


async def test_long_reply_uses_general_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [make_body("openai_chat", {"messages": user(text)}) for text in ("Hi", "Hello")]
    long = await compare(tmp_path, monkeypatch, "openai_chat", bodies, reply_of("openai_chat", text="word " * 5_000))
    assert long.plain == 0


async def test_reply_without_usage_uses_general_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [make_body("openai_chat", {"messages": user(text)}) for text in ("Hi", "Hello")]
    reply = {name: value for name, value in REPLIES["openai_chat"].items() if name != "usage"}
    answer = make_answer(msgspec.json.encode(reply))
    assert (await compare(tmp_path, monkeypatch, "openai_chat", bodies, answer)).plain == 0


async def test_session_named_by_client_uses_general_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [make_body("openai_chat", {"messages": user(text)}) for text in ("Hi", "Hello")]
    headers = {"x-session-id": "s1"}
    recording = await compare(tmp_path, monkeypatch, "openai_chat", bodies, reply_of("openai_chat"), **headers)
    assert recording.plain == 0


async def test_next_call_continues_session_of_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = user("Hello")
    bodies = [make_body("openai_chat", {"messages": messages}) for messages in (user("Hi"), first)]
    continued = [*first, {"role": "assistant", "content": "Yes."}, *user("And?")]
    bodies.append(make_body("openai_chat", {"messages": continued}))
    recording = await compare(tmp_path, monkeypatch, "openai_chat", bodies, reply_of("openai_chat"))
    assert recording.plain == 1
    assert len(recording.rows["sessions"]) == 2
    assert len(recording.rows["messages"]) == 6


async def test_reply_with_repeated_key_is_rejected_on_both_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = msgspec.json.encode(change_reply("openai_chat", {}))

    def respond(request: ReceivedRequest) -> Answer:
        is_first = b"Hi" in request.body
        return make_answer(reply if is_first else reply.replace(b'"created":', b'"created":1,"created":'))

    bodies = [make_body("openai_chat", {"messages": user(text)}) for text in ("Hi", "Hello")]
    recording = await compare(tmp_path, monkeypatch, "openai_chat", bodies, respond)
    assert recording.statuses == [200, 502]
    assert len(recording.rows["sessions"]) == 1


def make_plain(number: int) -> PlainSession:
    """Return a call. Two of three have the same transcript."""
    at = to_micros(NOW)
    rows = [
        Columns(f"{number}-{role}", role, f'[{{"type":"text","text":"{number}"}}]', "{}", at, 1, "complete")
        for role in ("user", "assistant")
    ]
    usage = Usage(input_tokens=number, output_tokens=2, cost_usd=None, pricing_version="unpriced", latency_ms=3)
    return PlainSession(
        id=f"sess_{number:02}",
        title=f"call {number}",
        user_id="ann",
        team_id=None,
        metadata_json="{}",
        created_at=NOW,
        messages=tuple(rows),
        answer=MessageMetadata(model="m", provider="p", usage=usage),
        hash=bytes([number - (number % 3 == 1)]),
        system_hash=None,
    )


@pytest.mark.parametrize("count", [2, 7, 21])
async def test_calls_of_shared_commit_have_rows_of_single_calls(tmp_path: Path, count: int) -> None:
    calls = [functools.partial(make_plain, number) for number in range(count)]
    async with open_store(f"sqlite:///{tmp_path}/single.db") as store:
        for call in calls:
            await store.gateway.record_plain(call)
        single = await store._read(read_tables())
    async with open_store(f"sqlite:///{tmp_path}/shared.db") as store:
        gather = Gather(size=count, timeout_s=3600)
        await wait_for_loop_writer(store)
        rows = await asyncio.gather(*(store.gateway.record_plain(call, gather) for call in calls))
        assert await store._read(read_tables()) == single
        assert [row.session_id for row in rows] == [call().id for call in calls]
        assert (await store.find_session("sess_01")) is not None
    assert len(single["sessions"]) == count


async def test_rows_of_shared_commit_are_made_together(tmp_path: Path) -> None:
    sessions_made: list[int] = []

    def make(number: int) -> PlainSession:
        sessions_made.append(number)
        return make_plain(number)

    async with open_store(f"sqlite:///{tmp_path}/chats.db") as store:
        await wait_for_loop_writer(store)
        gather = Gather(size=2, timeout_s=3600)
        first = asyncio.create_task(store.gateway.record_plain(lambda: make(0), gather))
        for _ in range(2 * loop_writer._TURNS):
            await asyncio.sleep(0)
        assert sessions_made == []
        await asyncio.gather(first, store.gateway.record_plain(lambda: make(1), gather))
    assert sessions_made == [0, 1]


async def test_slow_path_call_does_not_fail_other_calls_of_commit(tmp_path: Path) -> None:
    def refuse() -> PlainSession:
        raise SlowPathRequired

    async with open_store(f"sqlite:///{tmp_path}/chats.db") as store:
        calls = [store.gateway.record_plain(make) for make in (lambda: make_plain(1), refuse, lambda: make_plain(2))]
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(second, SlowPathRequired)
        assert [row.session_id for row in (first, third) if isinstance(row, GatewayRow)] == ["sess_01", "sess_02"]


async def test_conflict_does_not_fail_other_calls_of_commit(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/chats.db") as store:
        await store.gateway.record_plain(lambda: make_plain(1))
        calls = [store.gateway.record_plain(functools.partial(make_plain, number)) for number in range(3)]
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(second, ConflictError)
        assert "sess_01" in str(second)
        assert [row.session_id for row in (first, third) if isinstance(row, GatewayRow)] == ["sess_00", "sess_02"]
        assert len((await store._read(read_tables()))["messages"]) == 6


async def test_call_is_stored_if_its_caller_is_cancelled(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/chats.db") as store:
        task = asyncio.create_task(store.gateway.record_plain(lambda: make_plain(1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await store.get_session("sess_01")).last_seq == 2
    async with open_store(f"sqlite:///{tmp_path}/chats.db") as store:
        state = store.mark.read()
        assert state is not None
        assert state.ends == {"sess_01": 2}


async def wait_for_loop_writer(store: Store) -> None:
    assert isinstance(store, SqliteStore)
    while store._loop_writer is None or not store._loop_writer.is_ready:
        await asyncio.sleep(0.001)
