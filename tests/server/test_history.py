"""A history over a real socket: the rows that a seed's client knows, by day, by page, at the same cost in any thread."""

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
    """A server that needs no key, on each engine."""
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_chat_server")
        return
    opened = run_test_server(tmp_path)
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


async def get_history(server: ServerFixture, **asked: Any) -> dict[str, Any]:
    return dict(await read_json(server.client.get(f"{API}/history", params={k: str(v) for k, v in asked.items()})))


def list_seqs(found: dict[str, Any]) -> list[int]:
    return [row["seq"] for row in found["messages"]]


# --- rows ------------------------------------------------------------------------------------------------------------


def make_row(role: Role, *content: Any, **metadata: Any) -> dict[str, Any]:
    """Return a message as the API shows it."""
    message = Message("01M", "t", role, content, MessageMetadata(**metadata), from_micros(SOME_DAY))
    made = to_history_row(Row(7, message), {"tu_1": CallInfo("calendar_create_event", 7, 2_500)})
    return {name: getattr(made, name) for name in ("id", "seq", "role", "content", "metadata")}


ONE = Attachment("agent-files", "agent-inputs/u/t/r/img.jpg", "image/jpeg")
PICTURE = ImageBlock(ImageSource("base64", "aGk="), "image/jpeg")


def test_a_users_message_is_its_words_and_where_its_file_is() -> None:
    named = {"bucket": "agent-files", "path": "agent-inputs/u/t/r/img.jpg", "mime_type": "image/jpeg"}
    shown = make_row(
        Role.USER,
        TextBlock("帮我看看这张图"),
        PICTURE,
        message_id="msg-1",
        run_id="run-456",
        user_id="u",
        team_id="x",
        user_message_attachments=ONE,
    )
    assert shown == {
        "id": "msg-1",
        "seq": 7,
        "role": "user",
        "content": "帮我看看这张图",
        "metadata": {"user_message_attachments": named},
    }


def test_several_files_are_a_list() -> None:
    shown = make_row(Role.USER, TextBlock("two"), PICTURE, PICTURE, user_message_attachments=(ONE, ONE))
    files = shown["metadata"]["user_message_attachments"]
    assert [one["path"] for one in files] == ["agent-inputs/u/t/r/img.jpg"] * 2


def test_the_text_of_a_file_is_none_of_the_users_words() -> None:
    stored = StoredFile("agent-files", "agent-inputs/u/t/r/notes.txt", "text/plain", 5, "0" * 64, "notes.txt")
    content = (TextBlock("read:\n\nthis"), attachment_block(stored, b"hello"), TextBlock("please"))
    assert make_row(Role.USER, *content)["content"] == "read:\n\nthis\nplease"


def test_a_stage_tells_its_run_its_name_and_its_time() -> None:
    shown = make_row(
        Role.ASSISTANT,
        TextBlock("done"),
        run_id="run_1773286460762",
        stage="intent",
        latency_ms=2610,
        message_id="intent-run_1773286460762",
    )
    assert shown["metadata"] == {
        "run_id": "run_1773286460762",
        "stage": "intent",
        "latency_ms": 2610,
        "message_id": "intent-run_1773286460762",
    }


def test_a_result_tells_which_tool_it_is_of_and_what_else_was_kept_with_it() -> None:
    result = ToolResultBlock("tu_1", (TextBlock("created"), TextBlock("twice")), is_error=True)
    shown = make_row(
        Role.TOOL, result, run_id="r", stage="tool_execution", latency_ms=1500, extra={"team": [1], "run_id": "forged"}
    )
    assert shown["content"] == "created\ntwice"
    assert shown["metadata"] == {
        "run_id": "r",
        "message_id": "01M",
        "stage": "tool_execution",
        "latency_ms": 1500,
        "tool_call_id": "tu_1",
        "tool_name": "calendar_create_event",
        "is_error": True,
        "team": [1],
    }


def test_a_result_of_which_nobody_took_the_time_tells_how_long_its_call_was_open() -> None:
    result = ToolResultBlock("tu_1", (TextBlock("created"),))
    assert make_row(Role.TOOL, result)["metadata"]["latency_ms"] == 2_500
    elsewhere = Row(8, Message("01M", "t", Role.TOOL, (result,), MessageMetadata(), from_micros(SOME_DAY)))
    assert "latency_ms" not in to_history_row(elsewhere, {"tu_1": CallInfo("look", 7, 2_500)}).metadata


def test_an_answer_tells_its_model_its_cost_its_thoughts_and_its_calls_and_nothing_of_its_provider() -> None:
    usage = Usage(input_tokens=3, output_tokens=5, cost_usd=Decimal("0.000654"), pricing_version="1", latency_ms=12)
    shown = make_row(
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
    assert shown["content"] == "The grass is green.\n\nSo."
    metadata = shown["metadata"]
    assert metadata["usage"]["cost_usd"] == "0.000654"
    assert (metadata["model"], metadata["provider"], metadata["status"]) == ("a:b", "a", "error")
    assert (metadata["latency_ms"], metadata["thinking"]) == (12, "hmm")
    assert metadata["routing"] == {"mode": "rule", "reason": "because"}
    assert metadata["tool_calls"] == [
        {"id": "tu_2", "name": "look", "input": {"at": 1}},
        {"id": "tu_3", "name": "look", "input_text": "{", "reason": "no JSON"},
    ]
    assert "secret" not in repr(shown)
    assert "hidden-user" not in repr(shown)


def test_pictures_that_are_kept_in_the_message_itself_are_named() -> None:
    assert make_row(Role.USER, PICTURE)["metadata"] == {"media": [{"type": "image", "media_type": "image/jpeg"}]}


# --- by day ----------------------------------------------------------------------------------------------------------


async def three_days(server: ServerFixture) -> str:
    """Two messages on the 10th, three on the 12th, one on the 13th of March."""
    days = [0, 0, 2, 2, 2, 3]
    return await make_thread(server, *(make_message(f"d{day}", at=SOME_DAY - 3 * DAY + day * DAY) for day in days))


async def test_a_thread_is_shown_by_its_newest_day_and_then_by_the_days_before(server: ServerFixture) -> None:
    name = await three_days(server)
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
    nothing = await get_history(server, threadId=name, before="2026-03-10")
    assert (list_seqs(nothing), nothing["day"], nothing["hasMore"]) == ([], None, False)
    assert list_seqs(await get_history(server, threadId=name, before="2030-01-01")) == [6]
    assert list_seqs(await get_history(server, threadId=name, before="2026-03-12")) == [1, 2]


async def test_a_day_with_more_messages_than_a_page_goes_on_by_places(server: ServerFixture) -> None:
    name = await three_days(server)
    part = await get_history(server, threadId=name, before="2026-03-13", limit=2)
    assert (list_seqs(part), part["hasMore"], part["before"], part["beforeSeq"]) == ([4, 5], True, None, 4)
    whole = await get_history(server, threadId=name, before="2026-03-13", limit=3)
    assert (list_seqs(whole), whole["before"], whole["beforeSeq"]) == ([3, 4, 5], "2026-03-12", 3)


async def test_the_days_of_a_fork_are_those_of_what_it_shares(server: ServerFixture) -> None:
    name = await three_days(server)
    fork = (await server.store.fork(name, 4)).id
    await server.store.append(fork, make_message("fork", at=SOME_DAY))
    assert [
        list_seqs(await get_history(server, threadId=fork, before=day)) for day in ("2026-03-14", "2026-03-13")
    ] == [
        [5],
        [3, 4],
    ]


async def test_a_day_ends_at_midnight_in_utc(server: ServerFixture) -> None:
    midnight = SOME_DAY + 14 * 3_600_000_000
    name = await make_thread(server, make_message("a", at=midnight - 1), make_message("b", at=midnight))
    assert list_seqs(await get_history(server, threadId=name)) == [2]
    assert list_seqs(await get_history(server, threadId=name, before="2026-03-14")) == [1]


async def test_without_a_thread_it_is_the_one_in_which_something_happened_last(server: ServerFixture) -> None:
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


async def test_pages_go_back_and_forth_without_a_gap(server: ServerFixture) -> None:
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


async def test_a_limit_that_is_too_large_is_capped_and_said(chat_server: ServerFixture) -> None:
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
async def test_a_page_that_makes_no_sense_is_refused(chat_server: ServerFixture, query: str) -> None:
    await make_thread(chat_server, make_message("x"))
    assert await read_error_code(chat_server.client.get(f"{API}/history?{query}"), 422)


async def test_who_asks_is_decided_by_nothing_that_is_said(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, require_keys=True) as server:
        theirs = await server.store.create_session(user_id="bob", team_id="red")
        await server.store.append(theirs.id, make_message("secret"))
        ann = await server.make_key("ann", team_id="blue")
        forged = {"X-User-Id": "bob", "X-Team-Id": "red", "X-Forwarded-User": "bob", "user_id": "bob"}
        query = f"threadId={theirs.id}&user_id=bob&team_id=red&role=admin&scopes=admin"
        asked = server.client.get(f"{API}/history?{query}", headers={**ann, **forged})
        assert await read_error_code(asked, 404) == "not_found"


# --- cost ------------------------------------------------------------------------------------------------------------


class OperationCounter:
    """Counts the statements about a session and the rows that they return."""

    def __init__(self, store: Store, session_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements, self.rows = 0, 0
        self._session_id = session_id
        read = store._read
        monkeypatch.setattr(store, "_read", lambda operation: read(self._counted(operation)))

    def _counted(self, operation: Any) -> Generator[Any, Any, Any]:
        steps = iter(operation)
        answer = None
        while True:
            try:
                statement = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield statement
            if self._session_id in statement[1]:  # others read as well, whenever they want
                self.statements += 1
                self.rows += len(answer)


@pytest.mark.parametrize("query", ["limit=50", "limit=50&beforeSeq=60", "limit=50&afterSeq=5", ""])
async def test_a_page_costs_the_same_in_a_thread_of_any_length(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    costs = []
    await chat_server.store.search_index.stop()  # which reads as well
    for length in (60, 3_000):
        name = await make_thread(
            chat_server, *(make_message(f"m{n}", at=SOME_DAY + n * DAY // 30) for n in range(length))
        )
        with monkeypatch.context() as patch:
            counting = OperationCounter(chat_server.store, name, patch)
            found = await read_json(chat_server.client.get(f"{API}/history?threadId={name}&{query}"))
            costs.append((counting.statements, counting.rows, len(found["messages"]) > 0))
    assert costs[0] == costs[1]
    assert max(rows for _, rows, _ in costs) <= 120
    assert max(statements for statements, _, _ in costs) <= 6


async def test_a_day_is_found_in_as_many_looks_as_a_history_has_halves(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await make_thread(chat_server, *(make_message(f"m{n}", at=SOME_DAY + n * DAY // 30) for n in range(4_000)))
    await chat_server.store.search_index.stop()
    counting = OperationCounter(chat_server.store, name, monkeypatch)
    found = await get_history(chat_server, threadId=name, before="2026-04-01", limit=50)
    assert found["day"] == "2026-03-31"
    assert len(found["messages"]) == 30
    assert counting.statements <= 12 + 8
