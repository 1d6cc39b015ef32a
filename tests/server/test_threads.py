"""Threads over a real socket: listed page by page, renamed, swapped, forked, deleted with their files, searched."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData

from dragoman.message import (
    Attachment,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
)
from dragoman.store.operation import from_micros
from tests.attachments.samples import png
from tests.server.conftest import ServerFixture, run_test_server

API = "/api/v1/agent"
SOME_DAY = 1_773_396_000_000_000  # 2026-03-13T10:00:00Z, in microseconds


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    """A server that needs no key, on each engine."""
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_chat_server")
        return
    opened: AbstractAsyncContextManager[ServerFixture] = run_test_server(tmp_path)
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


def make_message(text: str, role: Role = Role.USER, at: int = SOME_DAY, **metadata: Any) -> Message:
    return Message("", "", role, (TextBlock(text),), MessageMetadata(**metadata), from_micros(at))


async def make_thread(server: ServerFixture, *messages: Message, thread_id: str | None = None, **given: Any) -> str:
    """A thread of the one person of this machine, with these messages in it."""
    session = await server.store.create_session(thread_id, user_id="local", **given)
    await server.store.append(session.id, messages)
    return session.id


async def read_json(asked: Any, status: int = 200) -> Any:
    """Check the status of a response and return its body."""
    async with asked as answer:
        body = await answer.text()
        assert answer.status == status, body
        return await answer.json() if body else None


async def read_error_code(asked: Any, status: int) -> str:
    """The code of a refusal of this status."""
    refusal = await read_json(asked, status)
    assert set(refusal) == {"error"}
    assert set(refusal["error"]) == {"code", "message", "request_id"}
    return str(refusal["error"]["code"])


async def test_threads_are_listed_page_by_page_and_nobody_elses_is_among_them(server: ServerFixture) -> None:
    mine = [await make_thread(server, make_message(f"number {n}"), title=f"t{n}") for n in range(5)]
    nobodys = (await server.store.create_session(title="of the command line")).id
    await server.store.create_session(title="foreign", user_id="somebody-else")
    seen: list[str] = []
    cursor: str | None = None
    while True:
        asked = f"{API}/threads?limit=2" + (f"&cursor={cursor}" if cursor else "")
        page = await read_json(server.client.get(asked))
        assert page["limit"] == 2
        assert len(page["threads"]) <= 2
        seen.extend(one["id"] for one in page["threads"])
        cursor = page["cursor"]
        assert page["hasMore"] == (cursor is not None)
        if cursor is None:
            break
    assert seen == [nobodys, *reversed(mine)]


async def test_a_thread_tells_how_its_newest_words_begin(server: ServerFixture) -> None:
    name = await make_thread(
        server, make_message("hello"), make_message(f"a  long\nanswer {'x' * 300}", Role.ASSISTANT), title="T"
    )
    found = await read_json(server.client.get(f"{API}/threads/{name}"))
    assert found["snippet"].startswith("a long answer xxx")
    assert found["snippet"].endswith("…")
    assert len(found["snippet"]) == 160
    assert (found["title"], found["lastSeq"], found["parentId"], found["model"]) == ("T", 2, None, None)


@pytest.mark.parametrize("change", ["flip", "shorten", "other user", "nonsense"])
async def test_a_cursor_that_is_not_the_callers_is_refused(tmp_path: Path, change: str) -> None:
    async with run_test_server(tmp_path, require_keys=True) as server:
        ann, bob = await server.make_key("ann"), await server.make_key("bob")
        for _ in range(3):
            await server.store.create_session(user_id="ann")
        cursor = (await read_json(server.client.get(f"{API}/threads?limit=1", headers=ann)))["cursor"]
        headers = bob if change == "other user" else ann
        if change == "flip":
            cursor = cursor[:20] + ("A" if cursor[20] != "A" else "B") + cursor[21:]
        elif change != "other user":
            cursor = {"shorten": cursor[:-1], "nonsense": "x%00y"}[change]
        asked = server.client.get(f"{API}/threads", params={"cursor": cursor}, headers=headers)
        assert await read_error_code(asked, 400) == "invalid_cursor"


async def test_a_thread_is_renamed(server: ServerFixture) -> None:
    name = await make_thread(server, make_message("hi"))
    changed = await read_json(server.client.patch(f"{API}/threads/{name}", json={"title": "An image, 图"}))
    assert changed["title"] == "An image, 图"
    assert (await read_json(server.client.patch(f"{API}/threads/{name}", json={"title": None})))["title"] is None


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"title": ""}, "invalid_request"),
        ({"title": "x" * 501}, "invalid_request"),
        ({"title": 1}, "invalid_request"),
        ({"title": "a\0b"}, "invalid_character"),
        ({"user_id": "bob"}, "invalid_request"),
        ({"model": "nobody:nothing"}, "unknown_model"),
        ([], "invalid_request"),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused(chat_server: ServerFixture, body: Any, code: str) -> None:
    name = await make_thread(chat_server, make_message("hi"), title="T")
    assert await read_error_code(chat_server.client.patch(f"{API}/threads/{name}", json=body), 422) == code
    assert (await chat_server.store.get_session(name)).title == "T"


async def test_a_model_that_cannot_go_on_is_refused_and_the_active_one_stays(chat_server: ServerFixture) -> None:
    picture = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
    seen = Message("", "", Role.USER, (TextBlock("look"), picture), MessageMetadata(), from_micros(SOME_DAY))
    name = await make_thread(chat_server, seen)
    where = f"{API}/threads/{name}"
    refused: list[Any] = []
    chat_server.agent.bus.subscribe("test", refused.append, event_types=["routing_constraint_failure"])
    assert (await read_json(chat_server.client.patch(where, json={"model": "anthropic"})))[
        "model"
    ] == "fake-anthropic:model"
    async with chat_server.client.patch(where, json={"model": "blind-anthropic"}) as answer:
        refusal = (await answer.json())["error"]
    assert refusal["code"] == "swap_refused"
    assert "contains images" in refusal["message"]
    await chat_server.agent.bus.drain()
    (event,) = refused
    assert event.session_id == name
    assert (event.payload.source, event.payload.model) == ("swap", "fake-anthropic:blind")
    assert event.payload.validation_failure == "no_vision_support"
    assert (event.payload.active_model, event.payload.message) == ("fake-anthropic:model", refusal["message"])
    assert (await chat_server.store.get_session(name)).active_model == "fake-anthropic:model"
    placed = {"model": "blind-anthropic", "policy": "placeholder"}
    assert (await read_json(chat_server.client.patch(where, json=placed)))["model"] == "fake-anthropic:blind"
    assert (await read_json(chat_server.client.patch(where, json={"model": None})))["model"] is None


async def test_a_picture_is_described_for_a_model_that_cannot_see_it(chat_server: ServerFixture) -> None:
    picture = ImageBlock(ImageSource("base64", base64.b64encode(png()).decode()), "image/png")
    seen = Message("", "", Role.USER, (TextBlock("look"), picture), MessageMetadata(), from_micros(SOME_DAY))
    name = await make_thread(chat_server, seen)
    chat_server.fake.reply("a red square")
    asked = {"model": "blind-anthropic", "policy": "describe"}
    changed = await read_json(chat_server.client.patch(f"{API}/threads/{name}", json=asked))
    assert changed["model"] == "fake-anthropic:blind"
    chat_server.fake.reply("Red.")
    await chat_server.agent.run(name, "Which colour?")
    assert "a red square" in str(chat_server.fake.bodies[-1])
    assert chat_server.fake.refusals == []


async def test_a_fork_shares_what_came_before(server: ServerFixture) -> None:
    name = await make_thread(server, *(make_message(f"m{n}", message_id=f"msg-{n}") for n in range(1, 6)), title="T")
    where = f"{API}/threads/{name}/fork"
    by_place = await read_json(server.client.post(where, json={"atSeq": 2}), 201)
    assert (by_place["lastSeq"], by_place["parentId"], by_place["parentSeq"], by_place["title"]) == (2, name, 2, "T")
    by_name = await read_json(server.client.post(where, json={"messageId": "msg-3", "title": "F"}), 201)
    assert (by_name["lastSeq"], by_name["title"]) == (3, "F")
    whole = await read_json(server.client.post(where, json={}), 201)
    assert whole["lastSeq"] == 5
    history = await read_json(server.client.get(f"{API}/history?threadId={by_name['id']}&limit=10"))
    assert [row["content"] for row in history["messages"]] == ["m1", "m2", "m3"]
    of_fork = await read_json(
        server.client.post(f"{API}/threads/{by_name['id']}/fork", json={"messageId": "msg-1"}), 201
    )
    assert of_fork["lastSeq"] == 1
    assert await read_error_code(server.client.post(where, json={"atSeq": 6}), 404) == "not_found"
    assert await read_error_code(server.client.post(where, json={"messageId": "msg-9"}), 404) == "not_found"
    assert (
        await read_error_code(server.client.post(where, json={"atSeq": 1, "messageId": "msg-1"}), 422)
        == "invalid_request"
    )


# --- deleting --------------------------------------------------------------------------------------------------------


async def upload_file(server: ServerFixture, thread_id: str | None = None) -> dict[str, Any]:
    form = FormData()
    form.add_field("file", png(), filename="dot.png", content_type="image/png")
    if thread_id is not None:
        form.add_field("threadId", thread_id)
    return dict(await read_json(server.client.post(f"{API}/attachments", data=form)))


def message_with_files(*files: dict[str, Any]) -> Message:
    named = tuple(Attachment(one["bucket"], one["path"], one["mime_type"]) for one in files)
    return make_message("look", user_message_attachments=named)


async def exists(server: ServerFixture, file: dict[str, Any]) -> bool:
    place = {"bucket": file["bucket"], "path": file["path"]}
    async with server.client.get(f"{API}/attachments/signed-url", params=place) as answer:
        assert answer.status in (200, 404)
        return answer.status == 200


async def test_a_thread_goes_with_its_files(server: ServerFixture) -> None:
    of_thread, unsent, unsorted = [await upload_file(server, name) for name in ("t1", "t1", None)]
    of_other = await upload_file(server, "t2")
    await make_thread(server, message_with_files(of_thread, unsorted), thread_id="t1")
    await make_thread(server, message_with_files(of_other), thread_id="t2")
    assert await read_json(server.client.delete(f"{API}/threads/t1"), 204) is None
    assert [await exists(server, one) for one in (of_thread, unsent, unsorted, of_other)] == [False] * 3 + [True]
    assert await read_error_code(server.client.get(f"{API}/history?threadId=t1"), 404) == "not_found"
    assert await read_error_code(server.client.delete(f"{API}/threads/t1"), 404) == "not_found"


async def test_a_file_that_a_fork_or_another_thread_shows_stays_until_the_last_of_them_goes(
    server: ServerFixture,
) -> None:
    shared, behind, sent_elsewhere = [await upload_file(server, "t1") for _ in range(3)]
    await make_thread(server, message_with_files(shared), message_with_files(behind), thread_id="t1")
    await make_thread(server, message_with_files(sent_elsewhere), thread_id="t2")
    fork = (await read_json(server.client.post(f"{API}/threads/t1/fork", json={"atSeq": 1}), 201))["id"]
    await read_json(server.client.delete(f"{API}/threads/t1"), 204)
    assert [await exists(server, one) for one in (shared, behind, sent_elsewhere)] == [True, False, True]
    await read_json(server.client.delete(f"{API}/threads/{fork}"), 204)
    assert [await exists(server, one) for one in (shared, behind, sent_elsewhere)] == [False, False, True]


async def test_a_thread_whose_messages_name_what_can_be_no_file_is_deleted(server: ServerFixture) -> None:
    odd = [
        {"bucket": "agent-files", "mime_type": "image/png", "path": f"agent-inputs/local/{path}"}
        for path in ("../x", "/")
    ]
    name = await make_thread(server, message_with_files(*odd))
    await read_json(server.client.delete(f"{API}/threads/{name}"), 204)


async def test_a_thread_in_which_a_turn_runs_is_not_deleted(server: ServerFixture) -> None:
    name = await make_thread(server, make_message("hi"))
    async with server.store.turns.lease(name):
        assert await read_error_code(server.client.delete(f"{API}/threads/{name}"), 409) == "turn_in_flight"
    await read_json(server.client.delete(f"{API}/threads/{name}"), 204)


# --- searching -------------------------------------------------------------------------------------------------------


async def test_a_search_finds_words_of_the_callers_threads_alone(server: ServerFixture) -> None:
    name = await make_thread(server, make_message("the copper kettle 😀 sings", message_id="msg-7"), title="Kitchen")
    foreign = await server.store.create_session(user_id="somebody-else")
    await server.store.append(foreign.id, make_message("a copper coin", user_id="local"))
    found = await read_json(server.client.get(f"{API}/search?q=copper"))
    (hit,) = found["hits"]
    assert (hit["threadId"], hit["title"], hit["messageId"], hit["seq"]) == (name, "Kitchen", "msg-7", 1)
    assert (found["hasMore"], found["limit"]) == (False, 20)


async def test_highlights_are_counted_as_a_browser_counts(server: ServerFixture) -> None:
    await make_thread(server, make_message("😀😀 copper"))
    (hit,) = (await read_json(server.client.get(f"{API}/search?q=copper")))["hits"]
    ((first, last),) = hit["highlights"]
    assert hit["snippet"].encode("utf-16-le")[first * 2 : last * 2].decode("utf-16-le") == "copper"


async def test_a_search_is_narrowed(server: ServerFixture) -> None:
    day = 86_400_000_000
    one = await make_thread(
        server, make_message("copper one"), make_message("copper two", Role.ASSISTANT, SOME_DAY + day, model="m:1")
    )
    await make_thread(server, make_message("copper three", at=SOME_DAY + 2 * day))

    async def found(**asked: str) -> set[str]:
        hits = (await read_json(server.client.get(f"{API}/search", params={"q": "copper", **asked})))["hits"]
        return {hit["snippet"].split()[-1] for hit in hits}

    assert await found() == {"one", "two", "three"}
    assert await found(threadId=one) == {"one", "two"}
    assert await found(role="assistant") == {"two"}
    assert await found(model="m:1") == {"two"}
    assert await found(**{"from": "2026-03-14"}) == {"two", "three"}
    assert await found(to="2026-03-13") == {"one"}
    assert await found(to="9999-12-31") == await found()
    assert await found(to="2026-03-14T10:00:00Z") == {"one"}
    first = await read_json(server.client.get(f"{API}/search?q=copper&limit=2"))
    rest = await read_json(server.client.get(f"{API}/search?q=copper&limit=2&offset=2"))
    assert [len(first["hits"]), first["hasMore"], len(rest["hits"]), rest["hasMore"]] == [2, True, 1, False]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?q=a&q=b",
        "?q=a%00b",
        "?q=a&from=2026-02-30",
        "?q=a&to=soon",
        "?q=a&from=2026-03-13T25:00:00Z",
        "?q=a&limit=0",
    ],
)
async def test_a_search_that_makes_no_sense_is_refused(chat_server: ServerFixture, query: str) -> None:
    assert await read_error_code(chat_server.client.get(f"{API}/search{query}"), 422)


# --- versions and positions ------------------------------------------------------------------------------------------


async def versions(server: ServerFixture, thread_id: str) -> list[tuple[int, list[str], int]]:
    body = await read_json(server.client.get(f"{API}/threads/{thread_id}/versions"))
    assert body["threadId"] == thread_id
    return [(one["seq"], one["threads"], one["current"]) for one in body["versions"]]


async def fork_at(server: ServerFixture, thread_id: str, seq: int, *texts: str) -> str:
    fork = await server.store.fork(thread_id, seq)
    await server.store.append(fork.id, [make_message(text) for text in texts])
    return fork.id


async def test_versions_of_a_message_are_the_original_and_its_forks(server: ServerFixture) -> None:
    original = await make_thread(server, *(make_message(text) for text in ("one", "two", "three")))
    assert await versions(server, original) == []
    second = await fork_at(server, original, 2, "another three")
    third = await fork_at(server, original, 2, "a further three", "four")
    await fork_at(server, original, 3)  # without a message of its own it is no version
    expected = [original, second, third]
    for place, thread_id in enumerate(expected):
        assert await versions(server, thread_id) == [(3, expected, place)]
    nested = await fork_at(server, third, 3, "another four")
    assert await versions(server, nested) == [(3, expected, 2), (4, [third, nested], 1)]
    assert await versions(server, third) == [(3, expected, 2), (4, [third, nested], 0)]


async def test_a_fork_before_the_first_message_is_a_version_of_it(server: ServerFixture) -> None:
    original = await make_thread(server, make_message("one"), active_model="anthropic:claude-sonnet-5-5")
    edited = await read_json(server.client.post(f"{API}/threads/{original}/fork", json={"atSeq": 0}), 201)
    assert (edited["parentId"], edited["lastSeq"]) == (original, 0)
    assert edited["model"] == "anthropic:claude-sonnet-5-5"
    assert await versions(server, original) == []
    await server.store.append(edited["id"], [make_message("another one")])
    assert await versions(server, original) == [(1, [original, edited["id"]], 0)]
    assert await versions(server, edited["id"]) == [(1, [original, edited["id"]], 1)]


@pytest.mark.parametrize(
    ("around", "first", "last"), [(1, 1, 10), (6, 1, 10), (50, 45, 54), (99, 91, 100), (100, 91, 100), (5_000, 91, 100)]
)
async def test_messages_around_a_position(server: ServerFixture, around: int, first: int, last: int) -> None:
    thread_id = await make_thread(server, *(make_message(str(number)) for number in range(1, 101)))
    page = await read_json(server.client.get(f"{API}/threads/{thread_id}/messages?limit=10&aroundSeq={around}"))
    assert [row["seq"] for row in page["messages"]] == list(range(first, last + 1))
    assert (page["hasMore"], page["hasLater"]) == (first > 1, last < 100)
    both = f"{API}/threads/{thread_id}/messages?aroundSeq=1&afterSeq=1"
    assert await read_error_code(server.client.get(both), 422) == "invalid_parameter"
