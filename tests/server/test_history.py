"""Tests of the history over a real socket: rows, pages by day and by position, and their cost."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman.attachments import StoredFile, attachment_block
from dragoman.message import (
    Attachment,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.server.chat.history import to_history_row
from dragoman.store import Row, Store
from dragoman.store.operation import from_micros
from dragoman.store.tool_call_rows import CallInfo
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.test_threads import API, SOME_DAY, make_message, make_thread, read_error_code, read_json

DAY = 86_400_000_000


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    """A server that requires no key, on each engine."""
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_chat_server")
        return
    context = run_test_server(tmp_path)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


async def get_history(server: ServerFixture, **query: Any) -> dict[str, Any]:
    return dict(await read_json(server.client.get(f"{API}/history", params={k: str(v) for k, v in query.items()})))


def list_seqs(found: dict[str, Any]) -> list[int]:
    return [row["seq"] for row in found["messages"]]


# --- rows ------------------------------------------------------------------------------------------------------------


def make_row(role: Role, *content: Any, **metadata: Any) -> dict[str, Any]:
    """Return a message as the API shows it."""
    message = Message("01M", "t", role, content, MessageMetadata(**metadata), from_micros(SOME_DAY))
    row = to_history_row(Row(7, message), {"tu_1": CallInfo("calendar_create_event", 7, 2_500)})
    return {name: getattr(row, name) for name in ("id", "seq", "role", "content", "metadata")}


ATTACHMENT = Attachment("agent-files", "agent-inputs/u/t/r/img.jpg", "image/jpeg")
IMAGE = ImageBlock(ImageSource("base64", "aGk="), "image/jpeg")


def test_user_message_has_text_and_attachment_location() -> None:
    location = {"bucket": "agent-files", "path": "agent-inputs/u/t/r/img.jpg", "mime_type": "image/jpeg"}
    row = make_row(
        Role.USER,
        TextBlock("帮我看看这张图"),
        IMAGE,
        message_id="msg-1",
        run_id="run-456",
        user_id="u",
        team_id="x",
        user_message_attachments=ATTACHMENT,
    )
    assert row == {
        "id": "msg-1",
        "seq": 7,
        "role": "user",
        "content": "帮我看看这张图",
        "metadata": {"user_message_attachments": location},
    }


def test_several_attachments_are_a_list() -> None:
    row = make_row(Role.USER, TextBlock("two"), IMAGE, IMAGE, user_message_attachments=(ATTACHMENT, ATTACHMENT))
    files = row["metadata"]["user_message_attachments"]
    assert [file["path"] for file in files] == ["agent-inputs/u/t/r/img.jpg"] * 2


def test_text_of_attachment_is_not_in_user_text() -> None:
    stored = StoredFile("agent-files", "agent-inputs/u/t/r/notes.txt", "text/plain", 5, "0" * 64, "notes.txt")
    content = (TextBlock("read:\n\nthis"), attachment_block(stored, b"hello"), TextBlock("please"))
    assert make_row(Role.USER, *content)["content"] == "read:\n\nthis\nplease"


def test_stage_has_run_name_and_latency() -> None:
    row = make_row(
        Role.ASSISTANT,
        TextBlock("done"),
        run_id="run_1773286460762",
        stage="intent",
        latency_ms=2610,
        message_id="intent-run_1773286460762",
    )
    assert row["metadata"] == {
        "run_id": "run_1773286460762",
        "stage": "intent",
        "latency_ms": 2610,
        "message_id": "intent-run_1773286460762",
    }


def test_tool_result_has_tool_name_and_extra_metadata() -> None:
    result = ToolResultBlock("tu_1", (TextBlock("created"), TextBlock("twice")), is_error=True)
    row = make_row(
        Role.TOOL, result, run_id="r", stage="tool_execution", latency_ms=1500, extra={"team": [1], "run_id": "forged"}
    )
    assert row["content"] == "created\ntwice"
    assert row["metadata"] == {
        "run_id": "r",
        "message_id": "01M",
        "stage": "tool_execution",
        "latency_ms": 1500,
        "tool_call_id": "tu_1",
        "tool_name": "calendar_create_event",
        "is_error": True,
        "team": [1],
    }


def test_tool_result_without_latency_has_duration_of_its_call() -> None:
    result = ToolResultBlock("tu_1", (TextBlock("created"),))
    assert make_row(Role.TOOL, result)["metadata"]["latency_ms"] == 2_500
    other_row = Row(8, Message("01M", "t", Role.TOOL, (result,), MessageMetadata(), from_micros(SOME_DAY)))
    assert "latency_ms" not in to_history_row(other_row, {"tu_1": CallInfo("look", 7, 2_500)}).metadata


def test_answer_has_model_cost_thinking_and_calls_without_raw_data() -> None:
    usage = Usage(input_tokens=3, output_tokens=5, cost_usd=Decimal("0.000654"), pricing_version="1", latency_ms=12)
    row = make_row(
        Role.ASSISTANT,
        ThinkingBlock("hmm", "secret-signature"),
        TextBlock("The grass is "),
        TextBlock("green."),
        ToolUseBlock("tu_2", "look", {"at": 1}, {"dialect": "anthropic", "id": "toolu_secret"}),
        InvalidToolUseBlock("tu_3", "look", "{", "no JSON"),
        TextBlock("So."),
        model="a:b",
        provider="a",
        usage=usage,
        status=MessageStatus.ERROR,
        routing=RoutingDecisionRecord(RoutingMode.RULE, "a:b", "because"),
        provider_raw={"dialect": "anthropic", "secret": 1},
        user_id="hidden-user",
    )
    assert row["content"] == "The grass is green.\n\nSo."
    metadata = row["metadata"]
    assert metadata["usage"]["cost_usd"] == "0.000654"
    assert (metadata["model"], metadata["provider"], metadata["status"]) == ("a:b", "a", "error")
    assert (metadata["latency_ms"], metadata["thinking"]) == (12, "hmm")
    assert metadata["routing"] == {"mode": "rule", "reason": "because"}
    assert metadata["tool_calls"] == [
        {"id": "tu_2", "name": "look", "input": {"at": 1}},
        {"id": "tu_3", "name": "look", "input_text": "{", "reason": "no JSON"},
    ]
    assert "secret" not in repr(row)
    assert "hidden-user" not in repr(row)


def test_inline_images_are_listed_as_media() -> None:
    assert make_row(Role.USER, IMAGE)["metadata"] == {"media": [{"type": "image", "media_type": "image/jpeg"}]}


# --- by day ----------------------------------------------------------------------------------------------------------


async def make_three_days(server: ServerFixture) -> str:
    """Create a thread with two messages on March 10, three on March 12 and one on March 13."""
    days = [0, 0, 2, 2, 2, 3]
    return await make_thread(server, *(make_message(f"d{day}", at=SOME_DAY - 3 * DAY + day * DAY) for day in days))


async def test_history_is_paged_by_day_from_newest(server: ServerFixture) -> None:
    name = await make_three_days(server)
    newest = await get_history(server, threadId=name)
    assert (list_seqs(newest), newest["day"], newest["hasMore"], newest["before"]) == (
        [6],
        "2026-03-13",
        True,
        "2026-03-13",
    )
    second = await get_history(server, threadId=name, before=newest["before"])
    assert (list_seqs(second), second["day"], second["before"]) == ([3, 4, 5], "2026-03-12", "2026-03-12")
    first = await get_history(server, threadId=name, before=second["before"])
    assert (list_seqs(first), first["day"], first["hasMore"], first["before"]) == ([1, 2], "2026-03-10", False, None)
    empty = await get_history(server, threadId=name, before="2026-03-10")
    assert (list_seqs(empty), empty["day"], empty["hasMore"]) == ([], None, False)
    assert list_seqs(await get_history(server, threadId=name, before="2030-01-01")) == [6]
    assert list_seqs(await get_history(server, threadId=name, before="2026-03-12")) == [1, 2]


async def test_day_longer_than_page_continues_by_position(server: ServerFixture) -> None:
    name = await make_three_days(server)
    part = await get_history(server, threadId=name, before="2026-03-13", limit=2)
    assert (list_seqs(part), part["hasMore"], part["before"], part["beforeSeq"]) == ([4, 5], True, None, 4)
    full = await get_history(server, threadId=name, before="2026-03-13", limit=3)
    assert (list_seqs(full), full["before"], full["beforeSeq"]) == ([3, 4, 5], "2026-03-12", 3)


async def test_days_of_fork_include_shared_messages(server: ServerFixture) -> None:
    name = await make_three_days(server)
    fork = (await server.store.fork(name, 4)).id
    await server.store.append(fork, make_message("fork", at=SOME_DAY))
    assert [
        list_seqs(await get_history(server, threadId=fork, before=day)) for day in ("2026-03-14", "2026-03-13")
    ] == [
        [5],
        [3, 4],
    ]


async def test_day_ends_at_midnight_utc(server: ServerFixture) -> None:
    midnight = SOME_DAY + 14 * 3_600_000_000
    name = await make_thread(server, make_message("a", at=midnight - 1), make_message("b", at=midnight))
    assert list_seqs(await get_history(server, threadId=name)) == [2]
    assert list_seqs(await get_history(server, threadId=name, before="2026-03-14")) == [1]


async def test_history_without_thread_id_uses_last_changed_thread(server: ServerFixture) -> None:
    assert await get_history(server) == {
        "threadId": None,
        "messages": [],
        "hasMore": False,
        "limit": 1000,
        "day": None,
        "before": None,
        "beforeSeq": None,
        "afterSeq": None,
    }
    first = await make_thread(server, make_message("one"))
    second = await make_thread(server, make_message("two"))
    foreign = await server.store.create_session(user_id="somebody-else")
    await server.store.append(foreign.id, make_message("three"))
    assert (await get_history(server))["threadId"] == second
    await server.store.append(first, make_message("again"))
    assert (await get_history(server))["threadId"] == first


# --- by page ---------------------------------------------------------------------------------------------------------


async def test_pages_are_complete_in_both_directions(server: ServerFixture) -> None:
    name = await make_thread(server, *(make_message(f"m{n}") for n in range(1, 12)))
    page = await get_history(server, threadId=name, limit=4)
    back = list_seqs(page)
    assert (back, page["day"]) == ([8, 9, 10, 11], None)
    while page["hasMore"]:
        page = await get_history(server, threadId=name, limit=4, beforeSeq=page["beforeSeq"])
        back = list_seqs(page) + back
    assert (back, page["beforeSeq"]) == (list(range(1, 12)), None)
    page, forth = await get_history(server, threadId=name, limit=4, afterSeq=0), list[int]()
    forth.extend(list_seqs(page))
    while page["hasMore"]:
        page = await get_history(server, threadId=name, limit=4, afterSeq=page["afterSeq"])
        forth.extend(list_seqs(page))
    assert forth == list(range(1, 12))
    assert await get_history(server, threadId=name, afterSeq=11) == {
        **await get_history(server, threadId=name, afterSeq=11),
        "messages": [],
        "afterSeq": 11,
        "hasMore": False,
    }


async def test_too_large_limit_is_capped_and_reported(chat_server: ServerFixture) -> None:
    name = await make_thread(chat_server, *(make_message("x") for _ in range(201)))
    page = await get_history(chat_server, threadId=name, limit=1000)
    assert (len(page["messages"]), page["limit"], page["hasMore"]) == (200, 200, True)


@pytest.mark.parametrize(
    "query",
    [
        "limit=-1",
        "limit=0",
        "limit=1e9",
        "limit=abc",
        "limit=10;drop",
        "limit=",
        "limit=1&limit=2",
        "limit=%D9%A1",
        "beforeSeq=-1",
        "afterSeq=x",
        "beforeSeq=5&afterSeq=1",
        "before=2026-02-30",
        "before=yesterday",
        "before=20260313",
        "before=2026-03-13&beforeSeq=1",
        "threadId=a%00b",
        "threadId=a&threadId=b",
    ],
)
async def test_invalid_page_parameters_are_rejected(chat_server: ServerFixture, query: str) -> None:
    await make_thread(chat_server, make_message("x"))
    assert await read_error_code(chat_server.client.get(f"{API}/history?{query}"), 422)


async def test_request_fields_do_not_change_the_caller(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, require_keys=True) as server:
        session = await server.store.create_session(user_id="bob", team_id="red")
        await server.store.append(session.id, make_message("secret"))
        ann = await server.make_key("ann", team_id="blue")
        forged = {"X-User-Id": "bob", "X-Team-Id": "red", "X-Forwarded-User": "bob", "user_id": "bob"}
        query = f"threadId={session.id}&user_id=bob&team_id=red&role=admin&scopes=admin"
        request = server.client.get(f"{API}/history?{query}", headers={**ann, **forged})
        assert await read_error_code(request, 404) == "not_found"


# --- cost ------------------------------------------------------------------------------------------------------------


class OperationCounter:
    """Counts the statements about a session and the rows that they return."""

    def __init__(self, store: Store, session_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements, self.rows = 0, 0
        self._session_id = session_id
        read = store._read
        monkeypatch.setattr(store, "_read", lambda operation: read(self._count(operation)))

    def _count(self, operation: Any) -> Generator[Any, Any, Any]:
        steps = iter(operation)
        answer = None
        while True:
            try:
                statement = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield statement
            if self._session_id in statement[1]:  # other tasks read as well
                self.statements += 1
                self.rows += len(answer)


@pytest.mark.parametrize("query", ["limit=50", "limit=50&beforeSeq=60", "limit=50&afterSeq=5", ""])
async def test_cost_of_page_is_independent_of_thread_length(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    costs = []
    await chat_server.store.search_index.stop()  # it reads as well
    for length in (60, 3_000):
        name = await make_thread(
            chat_server, *(make_message(f"m{n}", at=SOME_DAY + n * DAY // 30) for n in range(length))
        )
        with monkeypatch.context() as patch:
            counter = OperationCounter(chat_server.store, name, patch)
            found = await read_json(chat_server.client.get(f"{API}/history?threadId={name}&{query}"))
            costs.append((counter.statements, counter.rows, len(found["messages"]) > 0))
    assert costs[0] == costs[1]
    assert max(rows for _, rows, _ in costs) <= 120
    assert max(statements for statements, _, _ in costs) <= 6


async def test_day_is_found_by_binary_search(chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await make_thread(chat_server, *(make_message(f"m{n}", at=SOME_DAY + n * DAY // 30) for n in range(4_000)))
    await chat_server.store.search_index.stop()
    counter = OperationCounter(chat_server.store, name, monkeypatch)
    found = await get_history(chat_server, threadId=name, before="2026-04-01", limit=50)
    assert found["day"] == "2026-03-31"
    assert len(found["messages"]) == 30
    assert counter.statements <= 12 + 8
