"""Tests of pins, tags, titles, exports and shared pages of threads."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dragoman.bus import Event
from dragoman.formats import writable
from dragoman.message import (
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.server.chat.titles import clean_title
from dragoman.store.operation import from_micros
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.test_threads import API, SOME_DAY, make_thread, read_error_code, read_json

CALL = ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAV", "look", {"at": "argument-of-the-tool"})


def build_message(role: Role, *content: Any, **metadata: Any) -> Message:
    return Message("", "", role, content, MessageMetadata(**metadata), from_micros(SOME_DAY))


async def make_conversation(server: ServerFixture) -> str:
    """Create a thread with content that a shared page hides by default."""
    image = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
    return await make_thread(
        server,
        build_message(Role.SYSTEM, TextBlock("words of the system")),
        build_message(Role.USER, TextBlock("look at <b>this</b>"), image),
        build_message(Role.ASSISTANT, ThinkingBlock("secret thought"), TextBlock("I look."), CALL, model="anthropic:m"),
        build_message(
            Role.TOOL, ToolResultBlock(CALL.id, (TextBlock("output of the tool"),)), parent_tool_use_id=CALL.id
        ),
        build_message(Role.ASSISTANT, TextBlock("It is blue."), model="anthropic:m"),
        title="Sky",
    )


async def read_page(server: ServerFixture, url: str) -> tuple[int, str]:
    async with server.client.get(url) as response:
        return response.status, await response.text()


# --- pins and tags ---------------------------------------------------------------------------------------------------


async def test_pinned_and_tagged_threads_keep_their_list_order(tmp_path: Path) -> None:
    async with run_test_server(tmp_path) as server:
        await check_labels(server)


async def test_threads_are_pinned_and_tagged_on_postgres(postgres_chat_server: ServerFixture) -> None:
    await check_labels(postgres_chat_server)


async def check_labels(server: ServerFixture) -> None:
    first, second = await make_thread(server, title="one"), await make_thread(server, title="two")
    changed = await read_json(server.client.patch(f"{API}/threads/{first}", json={"pinned": True}))
    assert (changed["pinned"], changed["tags"]) == (True, [])
    tags = {"tags": ["work", " to  do ", "work"]}
    changed = await read_json(server.client.patch(f"{API}/threads/{first}", json=tags))
    assert (changed["pinned"], changed["tags"]) == (True, ["work", "to do"])
    await read_json(server.client.patch(f"{API}/threads/{second}", json={"tags": ["work"]}))
    listed = await read_json(server.client.get(f"{API}/threads"))
    assert [row["title"] for row in listed["threads"]] == ["two", "one"]
    pinned = await read_json(server.client.get(f"{API}/threads?pinned=true"))
    assert [row["title"] for row in pinned["threads"]] == ["one"]
    tagged = await read_json(server.client.get(f"{API}/threads?tag=work"))
    assert [row["title"] for row in tagged["threads"]] == ["two", "one"]
    counted = await read_json(server.client.get(f"{API}/tags"))
    assert counted == {"tags": [{"tag": "to do", "threads": 1}, {"tag": "work", "threads": 2}]}
    forked = await read_json(server.client.post(f"{API}/threads/{first}/fork", json={}), 201)
    assert (forked["pinned"], forked["tags"], forked["shared"]) == (False, [], None)
    await read_json(server.client.patch(f"{API}/threads/{first}", json={"pinned": False, "tags": []}))
    assert (await read_json(server.client.get(f"{API}/threads?pinned=true")))["threads"] == []
    assert (await server.store.get_session(first)).metadata == {}


async def test_search_filters_messages_with_tools(chat_server: ServerFixture) -> None:
    await make_conversation(chat_server)
    all_hits = await read_json(chat_server.client.get(f"{API}/search?q=look"))
    with_tool = await read_json(chat_server.client.get(f"{API}/search?q=look&hasTool=true"))
    assert [hit["role"] for hit in all_hits["hits"]].count("user") == 1
    assert [hit["role"] for hit in with_tool["hits"]] == ["assistant"]
    output = await read_json(chat_server.client.get(f"{API}/search?q=output&hasTool=true"))
    assert [hit["role"] for hit in output["hits"]] == ["tool"]


# --- shares ----------------------------------------------------------------------------------------------------------


async def test_shared_page_has_texts_only_until_revoked(chat_server: ServerFixture) -> None:
    thread = await make_conversation(chat_server)
    share = await read_json(chat_server.client.post(f"{API}/threads/{thread}/share", json={}), 201)
    await chat_server.store.append(thread, build_message(Role.USER, TextBlock("said later")))
    async with chat_server.client.get(share["url"]) as response:
        text = await response.text()
        headers = response.headers
    assert (response.status, response.content_type) == (200, "text/html")
    assert ("sandbox" in headers["content-security-policy"], headers["x-robots-tag"]) == (True, "noindex, nofollow")
    assert "It is blue." in text
    assert "&lt;b&gt;this&lt;/b&gt;" in text
    hidden = ("words of the system", "secret thought", "output of the tool", "argument-of", "iVBOR", "said later")
    assert [part for part in hidden if part in text] == []
    assert thread not in text
    thread_json = await read_json(chat_server.client.get(f"{API}/threads/{thread}"))
    assert (thread_json["shared"]["lastSeq"], thread_json["shared"]["include"]) == (5, [])
    second = await read_json(chat_server.client.post(f"{API}/threads/{thread}/share", json={}), 201)
    assert (await read_page(chat_server, share["url"]))[0] == 404  # only the newest link is valid
    assert "said later" in (await read_page(chat_server, second["url"]))[1]
    async with chat_server.client.delete(f"{API}/threads/{thread}/share") as response:
        assert response.status == 204
    assert (await read_page(chat_server, second["url"]))[0] == 404


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("system", "words of the system"),
        ("thinking", "secret thought"),
        ("tools", "output of the tool"),
        ("attachments", "iVBOR"),
    ],
)
async def test_owner_selects_additional_shared_content(part: str, text: str, chat_server: ServerFixture) -> None:
    thread = await make_conversation(chat_server)
    body = {"include": [part]}
    share = await read_json(chat_server.client.post(f"{API}/threads/{thread}/share", json=body), 201)
    assert text in (await read_page(chat_server, share["url"]))[1]


async def test_forged_share_links_are_not_found(keyed_server: ServerFixture) -> None:
    ann, bob = await keyed_server.make_key("ann"), await keyed_server.make_key("bob")
    session = await keyed_server.store.create_session(user_id="ann", title="mine")
    await keyed_server.store.append(session.id, build_message(Role.USER, TextBlock("private words")))
    path = f"{API}/threads/{session.id}/share"
    assert await read_error_code(keyed_server.client.post(path, json={}, headers=bob), 404) == "not_found"
    share = await read_json(keyed_server.client.post(path, json={}, headers=ann), 201)
    token = share["url"].rpartition("/")[2]
    name, _, secret = token.partition(".")
    for forged in ("x", ".", f"{name}.", f"{name}.{secret}x", f"{name}.{'0' * len(secret)}", f"eHg.{secret}", "ÿ.x"):
        assert (await read_page(keyed_server, f"/share/{forged}"))[0] == 404
    async with keyed_server.client.delete(path, headers=bob) as response:
        assert response.status == 404
    status, text = await read_page(keyed_server, f"/share/{token}")  # the link is sufficient
    assert (status, "private words" in text, "ann" in text) == (200, True, False)


# --- exports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({"json", *writable()}))
async def test_thread_is_exported_in_every_transcript_format(name: str, chat_server: ServerFixture) -> None:
    thread = await make_conversation(chat_server)
    async with chat_server.client.get(f"{API}/threads/{thread}/export?format={name}") as response:
        assert response.status == 200
        assert b"It is blue." in await response.read()


async def test_range_and_selection_are_exported(chat_server: ServerFixture) -> None:
    thread, other = await make_conversation(chat_server), await make_conversation(chat_server)
    status, text = await read_page(chat_server, f"{API}/threads/{thread}/export?format=markdown&fromSeq=5&toSeq=5")
    assert (status, "It is blue." in text, "I look." in text) == (200, True, False)
    body = {"ids": [thread, other], "format": "markdown"}
    async with chat_server.client.post(f"{API}/threads/export", json=body) as response:
        archive = zipfile.ZipFile(io.BytesIO(await response.read()))
    assert [name[:3] for name in archive.namelist()] == ["001", "002"]
    assert all("It is blue." in archive.read(name).decode() for name in archive.namelist())


async def test_export_with_one_message_per_line_is_jsonl(chat_server: ServerFixture) -> None:
    thread = await make_conversation(chat_server)
    for query, lines in (("", 5), ("&fromSeq=100", 0)):
        async with chat_server.client.get(f"{API}/threads/{thread}/export?format=canonical{query}") as response:
            assert (response.status, response.content_type) == (200, "application/jsonl")
            assert response.headers["content-disposition"].endswith('.jsonl"')
            assert len((await response.text()).splitlines()) == lines


# --- titles ----------------------------------------------------------------------------------------------------------


async def test_model_writes_title(chat_server: ServerFixture) -> None:
    thread = await make_conversation(chat_server)
    chat_server.fake.reply('"Colour of the sky."\n\nI hope this helps!')
    titled = await read_json(chat_server.client.post(f"{API}/threads/{thread}/title"))
    assert titled["title"] == "Colour of the sky"


async def test_title_call_is_counted_in_costs(chat_server: ServerFixture) -> None:
    thread = await make_conversation(chat_server)
    before = await read_json(chat_server.client.get(f"{API}/cost"))
    events: list[Event] = []
    chat_server.agent.bus.subscribe("test", events.append, event_types=["llm.call_started", "llm.call_completed"])
    chat_server.fake.reply("A title")
    await read_json(chat_server.client.post(f"{API}/threads/{thread}/title"))
    await chat_server.agent.bus.drain()
    after = await read_json(chat_server.client.get(f"{API}/cost"))
    assert [event.type for event in events] == ["llm.call_started", "llm.call_completed"]
    completed = events[-1].payload
    for group in ("byDay", "byModel"):
        assert before[group] == []
        (total,) = after[group]
        assert (total["messages"], total["unpriced"]) == (1, 1)  # a fake has no price
        assert (total["inputTokens"], total["outputTokens"]) == (completed.input_tokens, completed.output_tokens)
    assert (await chat_server.store.verify()).is_sound


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("**Title: A day**", "A day"),
        ("# Heading", "Heading"),
        ("", ""),
        ("“Quoted”", "Quoted"),
        ("x" * 99, f"{'x' * 79}…"),
    ],
)
def test_title_is_one_plain_line(text: str, title: str) -> None:
    assert clean_title(text) == title
