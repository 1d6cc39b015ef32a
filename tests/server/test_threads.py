"""Tests of threads over a real socket: lists, titles, swaps, forks, deletion, search and versions."""

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
    """A server that requires no key, on each engine."""
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_chat_server")
        return
    context: AbstractAsyncContextManager[ServerFixture] = run_test_server(tmp_path)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


def make_message(text: str, role: Role = Role.USER, at: int = SOME_DAY, **metadata: Any) -> Message:
    return Message("", "", role, (TextBlock(text),), MessageMetadata(**metadata), from_micros(at))


async def make_thread(server: ServerFixture, *messages: Message, thread_id: str | None = None, **fields: Any) -> str:
    """Create a thread of the local user with these messages."""
    session = await server.store.create_session(thread_id, user_id="local", **fields)
    await server.store.append(session.id, messages)
    return session.id


async def read_json(request: Any, status: int = 200) -> Any:
    """Check the status of a response and return its body."""
    async with request as response:
        body = await response.text()
        assert response.status == status, body
        return await response.json() if body else None


async def read_error_code(request: Any, status: int) -> str:
    """Check the status of an error response and return its code."""
    body = await read_json(request, status)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "request_id"}
    return str(body["error"]["code"])


async def test_own_threads_are_listed_in_pages(server: ServerFixture) -> None:
    own_threads = [await make_thread(server, make_message(f"number {n}"), title=f"t{n}") for n in range(5)]
    ownerless_thread = (await server.store.create_session(title="of the command line")).id
    await server.store.create_session(title="foreign", user_id="somebody-else")
    listed: list[str] = []
    cursor: str | None = None
    while True:
        path = f"{API}/threads?limit=2" + (f"&cursor={cursor}" if cursor else "")
        page = await read_json(server.client.get(path))
        assert page["limit"] == 2
        assert len(page["threads"]) <= 2
        listed.extend(thread["id"] for thread in page["threads"])
        cursor = page["cursor"]
        assert page["hasMore"] == (cursor is not None)
        if cursor is None:
            break
    assert listed == [ownerless_thread, *reversed(own_threads)]


async def test_thread_has_snippet_of_newest_message(server: ServerFixture) -> None:
    name = await make_thread(
        server, make_message("hello"), make_message(f"a  long\nanswer {'x' * 300}", Role.ASSISTANT), title="T"
    )
    found = await read_json(server.client.get(f"{API}/threads/{name}"))
    assert found["snippet"].startswith("a long answer xxx")
    assert found["snippet"].endswith("…")
    assert len(found["snippet"]) == 160
    assert (found["title"], found["lastSeq"], found["parentId"], found["model"]) == ("T", 2, None, None)


@pytest.mark.parametrize("change", ["flip", "shorten", "other user", "nonsense"])
async def test_cursor_of_another_caller_is_rejected(tmp_path: Path, change: str) -> None:
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
        request = server.client.get(f"{API}/threads", params={"cursor": cursor}, headers=headers)
        assert await read_error_code(request, 400) == "invalid_cursor"


async def test_thread_is_renamed(server: ServerFixture) -> None:
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
async def test_invalid_change_is_rejected(chat_server: ServerFixture, body: Any, code: str) -> None:
    name = await make_thread(chat_server, make_message("hi"), title="T")
    assert await read_error_code(chat_server.client.patch(f"{API}/threads/{name}", json=body), 422) == code
    assert (await chat_server.store.get_session(name)).title == "T"


async def test_rejected_swap_keeps_active_model(chat_server: ServerFixture) -> None:
    image = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
    message = Message("", "", Role.USER, (TextBlock("look"), image), MessageMetadata(), from_micros(SOME_DAY))
    thread_id = await make_thread(chat_server, message)
    path = f"{API}/threads/{thread_id}"
    failures: list[Any] = []
    chat_server.agent.bus.subscribe("test", failures.append, event_types=["routing_constraint_failure"])
    assert (await read_json(chat_server.client.patch(path, json={"model": "anthropic"})))[
        "model"
    ] == "fake-anthropic:model"
    async with chat_server.client.patch(path, json={"model": "blind-anthropic"}) as response:
        error = (await response.json())["error"]
    assert error["code"] == "swap_refused"
    assert "contains images" in error["message"]
    await chat_server.agent.bus.drain()
    (event,) = failures
    assert event.session_id == thread_id
    assert (event.payload.source, event.payload.model) == ("swap", "fake-anthropic:blind")
    assert event.payload.validation_failure == "no_vision_support"
    assert (event.payload.active_model, event.payload.message) == ("fake-anthropic:model", error["message"])
    assert (await chat_server.store.get_session(thread_id)).active_model == "fake-anthropic:model"
    change = {"model": "blind-anthropic", "policy": "placeholder"}
    assert (await read_json(chat_server.client.patch(path, json=change)))["model"] == "fake-anthropic:blind"
    assert (await read_json(chat_server.client.patch(path, json={"model": None})))["model"] is None


async def test_image_is_described_for_model_without_vision(chat_server: ServerFixture) -> None:
    image = ImageBlock(ImageSource("base64", base64.b64encode(png()).decode()), "image/png")
    message = Message("", "", Role.USER, (TextBlock("look"), image), MessageMetadata(), from_micros(SOME_DAY))
    thread_id = await make_thread(chat_server, message)
    chat_server.fake.reply("a red square")
    change = {"model": "blind-anthropic", "policy": "describe"}
    changed = await read_json(chat_server.client.patch(f"{API}/threads/{thread_id}", json=change))
    assert changed["model"] == "fake-anthropic:blind"
    chat_server.fake.reply("Red.")
    await chat_server.agent.run(thread_id, "Which colour?")
    assert "a red square" in str(chat_server.fake.bodies[-1])
    assert chat_server.fake.refusals == []


async def test_fork_shares_earlier_messages(server: ServerFixture) -> None:
    name = await make_thread(server, *(make_message(f"m{n}", message_id=f"msg-{n}") for n in range(1, 6)), title="T")
    path = f"{API}/threads/{name}/fork"
    by_seq = await read_json(server.client.post(path, json={"atSeq": 2}), 201)
    assert (by_seq["lastSeq"], by_seq["parentId"], by_seq["parentSeq"], by_seq["title"]) == (2, name, 2, "T")
    by_message_id = await read_json(server.client.post(path, json={"messageId": "msg-3", "title": "F"}), 201)
    assert (by_message_id["lastSeq"], by_message_id["title"]) == (3, "F")
    full = await read_json(server.client.post(path, json={}), 201)
    assert full["lastSeq"] == 5
    history = await read_json(server.client.get(f"{API}/history?threadId={by_message_id['id']}&limit=10"))
    assert [row["content"] for row in history["messages"]] == ["m1", "m2", "m3"]
    of_fork = await read_json(
        server.client.post(f"{API}/threads/{by_message_id['id']}/fork", json={"messageId": "msg-1"}), 201
    )
    assert of_fork["lastSeq"] == 1
    assert await read_error_code(server.client.post(path, json={"atSeq": 6}), 404) == "not_found"
    assert await read_error_code(server.client.post(path, json={"messageId": "msg-9"}), 404) == "not_found"
    assert (
        await read_error_code(server.client.post(path, json={"atSeq": 1, "messageId": "msg-1"}), 422)
        == "invalid_request"
    )


# --- deletion --------------------------------------------------------------------------------------------------------


async def upload_file(server: ServerFixture, thread_id: str | None = None) -> dict[str, Any]:
    form = FormData()
    form.add_field("file", png(), filename="dot.png", content_type="image/png")
    if thread_id is not None:
        form.add_field("threadId", thread_id)
    return dict(await read_json(server.client.post(f"{API}/attachments", data=form)))


def message_with_files(*files: dict[str, Any]) -> Message:
    attachments = tuple(Attachment(file["bucket"], file["path"], file["mime_type"]) for file in files)
    return make_message("look", user_message_attachments=attachments)


async def is_stored(server: ServerFixture, file: dict[str, Any]) -> bool:
    location = {"bucket": file["bucket"], "path": file["path"]}
    async with server.client.get(f"{API}/attachments/signed-url", params=location) as response:
        assert response.status in (200, 404)
        return response.status == 200


async def test_thread_is_deleted_with_its_files(server: ServerFixture) -> None:
    of_thread, unsent, unsorted = [await upload_file(server, name) for name in ("t1", "t1", None)]
    of_other = await upload_file(server, "t2")
    await make_thread(server, message_with_files(of_thread, unsorted), thread_id="t1")
    await make_thread(server, message_with_files(of_other), thread_id="t2")
    assert await read_json(server.client.delete(f"{API}/threads/t1"), 204) is None
    assert [await is_stored(server, file) for file in (of_thread, unsent, unsorted, of_other)] == [False] * 3 + [True]
    assert await read_error_code(server.client.get(f"{API}/history?threadId=t1"), 404) == "not_found"
    assert await read_error_code(server.client.delete(f"{API}/threads/t1"), 404) == "not_found"


async def test_shared_file_is_deleted_with_its_last_thread(
    server: ServerFixture,
) -> None:
    shared, later, sent_elsewhere = [await upload_file(server, "t1") for _ in range(3)]
    await make_thread(server, message_with_files(shared), message_with_files(later), thread_id="t1")
    await make_thread(server, message_with_files(sent_elsewhere), thread_id="t2")
    fork = (await read_json(server.client.post(f"{API}/threads/t1/fork", json={"atSeq": 1}), 201))["id"]
    await read_json(server.client.delete(f"{API}/threads/t1"), 204)
    assert [await is_stored(server, file) for file in (shared, later, sent_elsewhere)] == [True, False, True]
    await read_json(server.client.delete(f"{API}/threads/{fork}"), 204)
    assert [await is_stored(server, file) for file in (shared, later, sent_elsewhere)] == [False, False, True]


async def test_thread_with_invalid_file_paths_is_deleted(server: ServerFixture) -> None:
    invalid_files = [
        {"bucket": "agent-files", "mime_type": "image/png", "path": f"agent-inputs/local/{path}"}
        for path in ("../x", "/")
    ]
    name = await make_thread(server, message_with_files(*invalid_files))
    await read_json(server.client.delete(f"{API}/threads/{name}"), 204)


async def test_thread_with_active_turn_is_not_deleted(server: ServerFixture) -> None:
    name = await make_thread(server, make_message("hi"))
    async with server.store.turns.lease(name):
        assert await read_error_code(server.client.delete(f"{API}/threads/{name}"), 409) == "turn_in_flight"
    await read_json(server.client.delete(f"{API}/threads/{name}"), 204)


# --- search ----------------------------------------------------------------------------------------------------------


async def test_search_finds_only_threads_of_caller(server: ServerFixture) -> None:
    name = await make_thread(server, make_message("the copper kettle 😀 sings", message_id="msg-7"), title="Kitchen")
    foreign = await server.store.create_session(user_id="somebody-else")
    await server.store.append(foreign.id, make_message("a copper coin", user_id="local"))
    found = await read_json(server.client.get(f"{API}/search?q=copper"))
    (hit,) = found["hits"]
    assert (hit["threadId"], hit["title"], hit["messageId"], hit["seq"]) == (name, "Kitchen", "msg-7", 1)
    assert (found["hasMore"], found["limit"]) == (False, 20)


async def test_highlights_are_utf16_offsets(server: ServerFixture) -> None:
    await make_thread(server, make_message("😀😀 copper"))
    (hit,) = (await read_json(server.client.get(f"{API}/search?q=copper")))["hits"]
    ((first, last),) = hit["highlights"]
    assert hit["snippet"].encode("utf-16-le")[first * 2 : last * 2].decode("utf-16-le") == "copper"


async def test_search_is_filtered(server: ServerFixture) -> None:
    day = 86_400_000_000
    first_thread = await make_thread(
        server, make_message("copper one"), make_message("copper two", Role.ASSISTANT, SOME_DAY + day, model="m:1")
    )
    await make_thread(server, make_message("copper three", at=SOME_DAY + 2 * day))

    async def search(**filters: str) -> set[str]:
        hits = (await read_json(server.client.get(f"{API}/search", params={"q": "copper", **filters})))["hits"]
        return {hit["snippet"].split()[-1] for hit in hits}

    assert await search() == {"one", "two", "three"}
    assert await search(threadId=first_thread) == {"one", "two"}
    assert await search(role="assistant") == {"two"}
    assert await search(model="m:1") == {"two"}
    assert await search(**{"from": "2026-03-14"}) == {"two", "three"}
    assert await search(to="2026-03-13") == {"one"}
    assert await search(to="9999-12-31") == await search()
    assert await search(to="2026-03-14T10:00:00Z") == {"one"}
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
async def test_invalid_search_is_rejected(chat_server: ServerFixture, query: str) -> None:
    assert await read_error_code(chat_server.client.get(f"{API}/search{query}"), 422)


# --- versions and positions ------------------------------------------------------------------------------------------


async def list_versions(server: ServerFixture, thread_id: str) -> list[tuple[int, list[str], int]]:
    body = await read_json(server.client.get(f"{API}/threads/{thread_id}/versions"))
    assert body["threadId"] == thread_id
    return [(row["seq"], row["threads"], row["current"]) for row in body["versions"]]


async def fork_at(server: ServerFixture, thread_id: str, seq: int, *texts: str) -> str:
    fork = await server.store.fork(thread_id, seq)
    await server.store.append(fork.id, [make_message(text) for text in texts])
    return fork.id


async def test_versions_of_message_are_original_and_forks(server: ServerFixture) -> None:
    original = await make_thread(server, *(make_message(text) for text in ("one", "two", "three")))
    assert await list_versions(server, original) == []
    second = await fork_at(server, original, 2, "another three")
    third = await fork_at(server, original, 2, "a further three", "four")
    await fork_at(server, original, 3)  # a fork without own messages is not a version
    expected = [original, second, third]
    for index, thread_id in enumerate(expected):
        assert await list_versions(server, thread_id) == [(3, expected, index)]
    nested = await fork_at(server, third, 3, "another four")
    assert await list_versions(server, nested) == [(3, expected, 2), (4, [third, nested], 1)]
    assert await list_versions(server, third) == [(3, expected, 2), (4, [third, nested], 0)]


async def test_fork_before_first_message_is_a_version(server: ServerFixture) -> None:
    original = await make_thread(server, make_message("one"), active_model="anthropic:claude-sonnet-5-5")
    edited = await read_json(server.client.post(f"{API}/threads/{original}/fork", json={"atSeq": 0}), 201)
    assert (edited["parentId"], edited["lastSeq"]) == (original, 0)
    assert edited["model"] == "anthropic:claude-sonnet-5-5"
    assert await list_versions(server, original) == []
    await server.store.append(edited["id"], [make_message("another one")])
    assert await list_versions(server, original) == [(1, [original, edited["id"]], 0)]
    assert await list_versions(server, edited["id"]) == [(1, [original, edited["id"]], 1)]


@pytest.mark.parametrize(
    ("around", "first", "last"), [(1, 1, 10), (6, 1, 10), (50, 45, 54), (99, 91, 100), (100, 91, 100), (5_000, 91, 100)]
)
async def test_messages_around_position_are_returned(server: ServerFixture, around: int, first: int, last: int) -> None:
    thread_id = await make_thread(server, *(make_message(str(number)) for number in range(1, 101)))
    page = await read_json(server.client.get(f"{API}/threads/{thread_id}/messages?limit=10&aroundSeq={around}"))
    assert [row["seq"] for row in page["messages"]] == list(range(first, last + 1))
    assert (page["hasMore"], page["hasLater"]) == (first > 1, last < 100)
    both = f"{API}/threads/{thread_id}/messages?aroundSeq=1&afterSeq=1"
    assert await read_error_code(server.client.get(both), 422) == "invalid_parameter"
