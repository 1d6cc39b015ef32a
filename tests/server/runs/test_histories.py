"""Tests of conversations that a client sends: stored and sent in order, with the client's metadata."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman.message import ImageBlock, Role
from dragoman.server.runs import turn_request
from dragoman.turn import model_call, start
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import RUNS, event_types, post_error, post_run, run_input, user
from tests.server.runs.test_invalid_input import PNG, image_part
from tests.server.runs.test_runs import WEATHER, drop

ULID = "01M7H144X6ZZP2E8ZY2GQEP70G"


def make_call(message_id: str, *call_ids: str, name: str = "get_weather") -> dict[str, Any]:
    function = {"name": name, "arguments": '{"city":"Berlin"}'}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    return {"id": message_id, "role": "assistant", "toolCalls": calls}


def make_result(message_id: str, call_id: str, content: str = "21", **more: Any) -> dict[str, Any]:
    return {"id": message_id, "role": "tool", "toolCallId": call_id, "content": content, **more}


async def get_history(server: ServerFixture, thread: str, **headers: str) -> list[dict[str, Any]]:
    async with server.client.get(f"/api/v1/agent/history?threadId={thread}", headers=headers) as response:
        assert response.status == 200, await response.text()
        return list((await response.json())["messages"])


async def stored_rows(server: ServerFixture, thread: str) -> list[tuple[str, str]]:
    """Return the role and the client id of each message of a thread."""
    return [(row["role"], row["id"]) for row in await get_history(server, thread)]


async def test_history_that_ends_with_result_keeps_order_and_is_answered(
    chat_server: ServerFixture,
) -> None:
    chat_server.fake.reply("21 degrees.")
    messages = [user("How warm?", "u1"), make_call("a1", "call-1"), make_result("t1", "call-1")]
    events = await post_run(chat_server, run_input(*messages, threadId="t", tools=[WEATHER]))
    assert events[-1]["type"] == "RUN_FINISHED"
    assert (await stored_rows(chat_server, "t"))[:3] == [("user", "u1"), ("assistant", "a1"), ("tool", "t1")]
    (body,) = chat_server.fake.bodies
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][0]["content"] in ("How warm?", [{"type": "text", "text": "How warm?"}])
    assert (await chat_server.store.get_session("t")).title == "How warm?"
    assert chat_server.fake.refusals == []


async def test_open_call_of_history_waits_for_client(chat_server: ServerFixture) -> None:
    messages = [user("How warm?", "u1"), make_call("a1", "call-1", "call-2"), make_result("t1", "call-1")]
    events = await post_run(chat_server, run_input(*messages, threadId="t", tools=[WEATHER]))
    assert len(events[-1]["outcome"]["pendingToolCallIds"]) == 1
    assert chat_server.fake.bodies == []
    chat_server.fake.reply("21 degrees.")
    continued = [*messages, make_result("t2", events[-1]["outcome"]["pendingToolCallIds"][0])]
    assert (
        event_types(await post_run(chat_server, run_input(*continued, threadId="t", tools=[WEATHER])))[-1]
        == "RUN_FINISHED"
    )
    assert [role for role, _ in await stored_rows(chat_server, "t")] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert chat_server.fake.refusals == []


async def test_messages_with_many_parts_are_processed_off_event_loop(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}

    def record_thread(module: Any, name: str) -> None:
        call = getattr(module, name)

        def call_and_record(*arguments: Any, **keywords: Any) -> Any:
            threads[name] = threading.get_ident()
            return call(*arguments, **keywords)

        monkeypatch.setattr(module, name, call_and_record)

    for module, name in ((turn_request, "read_messages"), (start, "collect_facts"), (model_call, "_write_request")):
        record_thread(module, name)
    chat_server.fake.reply("Yes.")
    parts = [{"type": "text", "text": "a"}] * 250
    events = await post_run(chat_server, run_input(*[user(parts, f"m{number}") for number in range(4)], threadId="t"))
    assert events[-1]["type"] == "RUN_FINISHED"
    assert sorted(threads) == ["_write_request", "collect_facts", "read_messages"]
    assert threading.get_ident() not in threads.values()


@pytest.mark.parametrize(
    "last",
    [
        {"id": "a1", "role": "assistant", "content": "Yes."},
        make_call("a1", "call-1"),
        {"id": "r1", "role": "reasoning", "content": "Hm."},
        {"id": "s1", "role": "system", "content": "Be brief."},
    ],
    ids=["text", "call", "reasoning", "system"],
)
async def test_history_without_last_user_message_is_rejected(keyed_server: ServerFixture, last: dict[str, Any]) -> None:
    for scopes in (("chat",), ("chat", "history:write")):
        key = await keyed_server.make_key(scopes=scopes)
        assert await post_error(keyed_server, run_input("Hi", last), **key) == (422, "nothing_to_answer")
    assert keyed_server.fake.received == []


async def test_every_message_keeps_its_id_and_metadata(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Good.")
    messages = [
        {"id": "s1", "role": "system", "content": "Be brief.", "metadata": {"n": 1}},
        {**user("How warm?", ULID), "metadata": {"n": 2, "ag-ui": {"x": 1}}},
        {"id": "r1", "role": "reasoning", "content": "Hm.", "metadata": {"n": 3}},
        {**make_call("a1", "call-1"), "metadata": {"n": 4}},
        {**make_result("t1", "call-1"), "metadata": {"n": 5}},
        {"id": "a2", "role": "assistant", "content": "21.", "metadata": {"n": 6}},
        {**user("Thanks.", "u2"), "metadata": {"n": 7}},
    ]
    await post_run(chat_server, run_input(*messages, threadId="t"))
    stored = [(row["role"], row["id"], row["metadata"].get("n")) for row in await get_history(chat_server, "t")]
    assert stored[:-1] == [
        ("system", "s1", 1),
        ("user", ULID, 2),
        ("assistant", "a1", 4),
        ("tool", "t1", 5),
        ("assistant", "a2", 6),
        ("user", "u2", 7),
    ]
    chat_server.fake.reply("Bye.")
    await post_run(chat_server, run_input(*messages[:2], "More?", threadId="t"))
    assert len(await get_history(chat_server, "t")) == 9  # a ULID of the client is recognized as a known id


async def test_metadata_of_tool_result_is_stored(chat_server: ServerFixture) -> None:
    chat_server.fake.call("get_weather", {"city": "Berlin"})
    chat_server.fake.reply("21 degrees.")
    events = await post_run(chat_server, run_input("How warm?", threadId="t", tools=[WEATHER]))
    (call_id,) = events[-1]["outcome"]["pendingToolCallIds"]
    result = make_result("t1", call_id, "", metadata={"took": "long"})
    await post_run(chat_server, run_input(result, threadId="t", tools=[WEATHER]))
    row = (await get_history(chat_server, "t"))[2]
    assert (row["id"], row["content"], row["metadata"]["took"]) == ("t1", "", "long")
    assert chat_server.fake.refusals == []


async def test_snapshot_contains_metadata_of_messages(chat_server: ServerFixture) -> None:
    chat_server.agent.tools = type(chat_server.agent.tools)([drop])
    chat_server.fake.call("drop", {"name": "production"})
    messages = [
        {**user("Hi", "u1"), "metadata": {"n": 1}},
        {"id": "a1", "role": "assistant", "content": "Ho", "metadata": {"n": 2}},
        {**user("Drop it.", "u2"), "metadata": {"n": 3}},
    ]
    events = await post_run(chat_server, run_input(*messages, threadId="t"))
    (snapshot,) = [event["messages"] for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
    assert snapshot[:3] == messages
    assert "metadata" not in snapshot[3]


async def test_files_of_earlier_messages_are_stored(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("A dot.")
    await post_run(chat_server, run_input(user([image_part(PNG)], "u0"), threadId="other"))
    location = (await get_history(chat_server, "other"))[0]["metadata"]["user_message_attachments"]
    query = {"bucket": location["bucket"], "path": location["path"]}
    async with chat_server.client.get("/api/v1/agent/attachments/signed-url", params=query) as response:
        url = (await response.json())["url"]
    chat_server.fake.reply("Yes.")
    message = user([{"type": "text", "text": "Look."}, image_part(url, form="url"), image_part(PNG)], "u1")
    messages = [message, {"id": "a1", "role": "assistant", "content": "A dot."}, user("Sure?", "u2")]
    await post_run(chat_server, run_input(*messages, threadId="t"))
    first = (await chat_server.store.read("t"))[0].message
    assert [type(block) for block in first.content[1:]] == [ImageBlock, ImageBlock]
    assert len(first.metadata.attachments) == 2
    assert first.metadata.attachments[0].path == location["path"]
    assert "token=" not in repr(first)
    assert chat_server.fake.refusals == []


async def test_result_precedes_user_messages_after_the_call(chat_server: ServerFixture) -> None:
    chat_server.fake.call("get_weather", {"city": "Berlin"})
    events = await post_run(chat_server, run_input("How warm?", threadId="t", tools=[WEATHER]))
    (call_id,) = events[-1]["outcome"]["pendingToolCallIds"]
    chat_server.fake.reply("21 degrees.")
    messages = [user("Are you there?", "u2"), make_result("t1", call_id), user("Hello?", "u3")]
    assert (
        event_types(await post_run(chat_server, run_input(*messages, threadId="t", tools=[WEATHER])))[-1]
        == "RUN_FINISHED"
    )
    assert (await stored_rows(chat_server, "t"))[2:5] == [("tool", "t1"), ("user", "u2"), ("user", "u3")]
    assert chat_server.fake.refusals == []


async def test_result_of_call_not_pending_for_client_is_rejected(
    chat_server: ServerFixture,
) -> None:
    chat_server.agent.tools = type(chat_server.agent.tools)([drop])
    chat_server.fake.call("drop", {"name": "production"})
    events = await post_run(chat_server, run_input("Drop it.", threadId="t"))
    call_id = events[-1]["outcome"]["interrupts"][0]["toolCallId"]
    messages = [make_result("t1", call_id, "done"), user("Well?", "u2"), user("Hello?", "u3")]
    assert await post_error(chat_server, run_input(*messages, threadId="t")) == (422, "unknown_tool_use")
    assert len(await get_history(chat_server, "t")) == 2


async def test_earlier_messages_belong_to_caller(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("ann", scopes=("chat", "history:write"), team_id="team-1")
    keyed_server.fake.reply("Yes.")
    forged = {"dragoman": {"id": ULID, "metadata": {"user_id": "bob", "model": "x"}}, "mine": 1}
    messages = [
        user("Hi", "u1"),
        {"id": "a1", "role": "assistant", "content": "Ho", "metadata": forged},
        user("So?", "u2"),
    ]
    await post_run(keyed_server, run_input(*messages, threadId="t"), **key)
    rows = await keyed_server.store.read("t")
    assert {(row.message.metadata.user_id, row.message.metadata.team_id) for row in rows} == {("ann", "team-1")}
    assert [row.message.metadata.model for row in rows[:3]] == [None, None, None]
    assert (rows[1].message.metadata.extra, rows[1].message.role) == ({"mine": 1}, Role.ASSISTANT)


async def test_fields_may_be_in_snake_case(chat_server: ServerFixture) -> None:
    """As the protocol's Python types are serialized without aliases."""
    chat_server.fake.reply("21 degrees.")
    call = make_call("a1", "call-1")
    messages = [
        {**user([{"type": "binary", "mime_type": "image/png", "data": PNG}, {"type": "text", "text": "?"}], "u1")},
        {"id": "a1", "role": "assistant", "content": None, "tool_calls": call["toolCalls"], "encrypted_value": None},
        {"id": "t1", "role": "tool", "tool_call_id": "call-1", "content": "21", "error": None},
    ]
    image = {"type": "image", "source": {"type": "data", "value": PNG, "mime_type": "image/png"}}
    body = {
        "thread_id": "t",
        "run_id": "r",
        "parent_run_id": None,
        "protocol_version": "1.0",
        "forwarded_props": {"my_own": 1},
        "state": {"thread_id": "stays"},
        "messages": [*messages, user([image], "u2")],
    }
    events = await post_run(chat_server, body)
    assert (events[0]["threadId"], events[0]["runId"], events[-1]["type"]) == ("t", "r", "RUN_FINISHED")
    assert (await chat_server.store.get_session("t")).metadata["state"] == {"thread_id": "stays"}
    assert (await stored_rows(chat_server, "t"))[:4] == [
        ("user", "u1"),
        ("assistant", "a1"),
        ("tool", "t1"),
        ("user", "u2"),
    ]
    conflicting = {**run_input("Hi"), "thread_id": "another"}
    assert await post_error(chat_server, conflicting) == (422, "invalid_request")


async def test_reasoning_content_is_one_block_of_reasoning(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, "openai_chat") as server:
        server.fake.reply("Hello there.", thinking="Hm, let me think.")
        events = await post_run(server, run_input("Hi"))
    starts = [event["messageId"] for event in events if event["type"].endswith("_START")]
    assert len(starts) == 3  # the reasoning, its message, and the text
    assert event_types(events)[2:-2] == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
    ]


async def test_duplicate_ids_are_rejected_and_equal_messages_stored_once(
    chat_server: ServerFixture,
) -> None:
    body = run_input(user("One", "u1"), user("Two", "u1"), user("Three", "u2"), threadId="t")
    async with chat_server.client.post(RUNS, json=body) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (422, "invalid_message")
        assert "u1" in error["message"]
    assert chat_server.fake.bodies == []
    chat_server.fake.reply("Yes.")
    await post_run(chat_server, run_input(user("One", "u1"), user("One", "u1"), user("Two", "u2"), threadId="t"))
    assert (await stored_rows(chat_server, "t"))[:2] == [("user", "u1"), ("user", "u2")]
    assert len(await stored_rows(chat_server, "t")) == 3


async def test_new_message_before_known_message_is_skipped(
    chat_server: ServerFixture,
) -> None:
    chat_server.fake.reply("Yes.")
    chat_server.fake.reply("Yes.")
    await post_run(chat_server, run_input(user("One", "u1"), user("Two", "u2"), threadId="t"))
    messages = [user("One", "u1"), user("Refused", "u9"), user("Two", "u2"), user("Refused", "u10")]
    await post_run(chat_server, run_input(*messages, threadId="t"))
    ids = [name for role, name in await stored_rows(chat_server, "t") if role == "user"]
    assert ids == ["u1", "u2", "u10"]
