"""Tests of chats over HTTP: streams, ends, resumption, branches, imports, files and owners."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.server.runs.stream_encoder import BrokenStreamError
from dragoman.server.ui_messages.ui_message_encoder import UiMessageEncoder
from dragoman.store.runs import RunEvent
from tests.fake_providers.script import call_part, text_part
from tests.server.conftest import ServerFixture
from tests.server.runs.conftest import RUNS, post_run, run_input, user
from tests.server.runs.test_runs import BlockingTool, drop
from tests.server.ui_messages.conftest import CHAT, chat_body, parse_chunks, post_chat, ui_message

WEATHER = {"get_weather": {"description": "The weather", "parameters": {"type": "object", "properties": {}}}}


def chunk_types(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["type"] for chunk in chunks]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


async def post_error(server: ServerFixture, body: Any, **headers: str) -> tuple[int, str]:
    async with server.client.post(CHAT, json=body, headers=headers) as answer:
        return answer.status, (await answer.json())["error"]["code"]


async def get_chat(server: ServerFixture, chat_id: str, **headers: str) -> list[dict[str, Any]]:
    async with server.client.get(f"{CHAT}/{chat_id}/messages", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        messages: list[dict[str, Any]] = (await answer.json())["messages"]
        return messages


async def start_slow_chat(server: ServerFixture, body: dict[str, Any]) -> tuple[BlockingTool, Any]:
    """Start a chat, wait until it is inside a tool, and return the tool and the response."""
    slow = BlockingTool()
    server.agent.tools = type(server.agent.tools)([slow.tool(), drop])
    server.fake.answer_with(text_part("Let me see."), call_part("wait"))
    server.fake.reply("It was long.")
    response = await server.client.post(CHAT, json=body)
    assert response.status == 200, await response.text()
    await asyncio.wait_for(slow.started.wait(), 60)
    return slow, response


async def test_answer_is_a_step_of_a_message(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("It is fine.", thinking="Hm.")
    chunks = await post_chat(chat_server, chat_body("How is it?"))
    types = [kind for at, kind in enumerate(chunk_types(chunks)) if chunk_types(chunks)[at - 1 : at] != [kind]]
    assert types == [
        "start",
        "start-step",
        "reasoning-start",
        "reasoning-delta",
        "reasoning-end",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]
    assert text_of(chunks) == "It is fine."
    (end,) = [chunk for chunk in chunks if chunk["type"] == "reasoning-end"]
    assert end["providerMetadata"]["dragoman"]["signature"]
    metadata = chunks[-1]["messageMetadata"]
    assert (metadata["status"], metadata["stopReason"], metadata["usage"]["totalTokens"]) == (
        "complete",
        "end_turn",
        18,
    )


async def test_server_tool_runs_within_a_step(chat_server: ServerFixture) -> None:
    slow, response = await start_slow_chat(chat_server, chat_body("Wait."))
    slow.may_end.set()
    chunks = parse_chunks(await response.text())
    types = chunk_types(chunks)
    assert types.index("tool-input-available") < types.index("tool-output-available") < types.index("finish-step")
    assert types.count("start-step") == types.count("finish-step") == 2
    assert text_of(chunks) == "Let me see.It was long."


async def test_failed_run_ends_with_error_and_is_incomplete(chat_server: ServerFixture) -> None:
    chat_server.fake.fail(400, "no such thing")
    chunks = await post_chat(chat_server, chat_body("Hello"))
    assert chunk_types(chunks)[-1] == "error"
    assert "finish" not in chunk_types(chunks)
    assert chunks[-2]["messageMetadata"]["status"] == "error"


async def test_cancelled_run_ends_with_abort_and_is_incomplete(chat_server: ServerFixture) -> None:
    body = chat_body("Wait.")
    _, response = await start_slow_chat(chat_server, body)
    async with chat_server.client.post(f"{CHAT}/{body['id']}/cancel") as answer:
        assert (answer.status, await answer.json()) == (202, {"id": body["id"], "cancelled": True})
    chunks = parse_chunks(await response.text())
    assert chunk_types(chunks)[-1] == "abort"
    assert "finish" not in chunk_types(chunks)
    assert chunks[-2]["messageMetadata"]["status"] == "cancelled"
    async with chat_server.client.post(f"{CHAT}/{body['id']}/cancel") as answer:
        assert (answer.status, await answer.json()) == (200, {"id": body["id"], "cancelled": False})


@pytest.mark.parametrize("stop", [None, "cancelled", "error"])
def test_text_and_calls_of_incomplete_answer_stay_open(stop: str | None) -> None:
    encoder = UiMessageEncoder()
    details = {} if stop is None else {"metadata": {"dragoman": {"stop_reason": stop}}}
    events: list[dict[str, Any]] = [
        {"type": "STEP_STARTED"},
        {"type": "TOOL_CALL_START", "toolCallId": "tu_1", "toolCallName": "drop"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "tu_1", "delta": "{}"},
        {"type": "TOOL_CALL_END", "toolCallId": "tu_1"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "It"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m"},
        {"type": "STEP_FINISHED", **details},
        {"type": "RUN_ERROR", "message": "It broke.", "code": "interrupted"},
    ]
    chunks = [chunk for event in events for chunk in encoder.encode_event(event)]
    assert chunk_types(chunks) == [
        "start",
        "start-step",
        "tool-input-start",
        "tool-input-delta",
        "text-start",
        "text-delta",
        "message-metadata",
        "error",
    ]


def test_stream_that_ends_before_its_run_is_broken() -> None:
    encoder = UiMessageEncoder()
    encoder.encode([RunEvent(1, "r", '{"type":"RUN_STARTED","threadId":"t","runId":"r"}')])
    with pytest.raises(BrokenStreamError):
        encoder.close()
    encoder.encode([RunEvent(2, "r", '{"type":"RUN_ERROR","message":"It broke.","code":"x"}')])
    encoder.close()
    assert encoder.has_ended


def test_blocks_sources_and_invalid_inputs_have_chunks() -> None:
    encoder = UiMessageEncoder()
    image = {"type": "image", "source": {"kind": "base64", "data": "AAAA"}, "media_type": "image/png"}
    details = {"stop_reason": "end_turn", "sources": [{"id": "s", "url": "https://example.com", "title": "Example"}]}
    events: list[dict[str, Any]] = [
        {"type": "STEP_STARTED"},
        {"type": "CUSTOM", "name": "dragoman.block", "value": {"message_id": "m", "block": image}},
        {"type": "CUSTOM", "name": "dragoman.block", "value": {"message_id": "m", "block": {"type": "opaque"}}},
        {"type": "TOOL_CALL_START", "toolCallId": "tu_1", "toolCallName": "drop"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "tu_1", "delta": "[1]"},
        {"type": "TOOL_CALL_START", "toolCallId": "tu_2", "toolCallName": "drop"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "tu_2", "delta": '{"a":'},
        {"type": "STEP_FINISHED", "metadata": {"dragoman": details}},
    ]
    chunks = [chunk for event in events for chunk in encoder.encode_event(event)]
    assert {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"} in chunks
    assert {"type": "data-dragoman-block", "data": {"type": "opaque"}} in chunks
    assert chunks[-1] == {"type": "source-url", "sourceId": "s", "url": "https://example.com", "title": "Example"}
    assert [chunk["input"] for chunk in chunks if chunk["type"] == "tool-input-error"] == ["[1]", '{"a":']


# --- resumption ------------------------------------------------------------------------------------------------------


async def test_reconnecting_client_receives_message_from_its_start(chat_server: ServerFixture) -> None:
    body = chat_body("Wait.")
    slow, response = await start_slow_chat(chat_server, body)
    async with chat_server.client.get(f"{CHAT}/{body['id']}/messages") as history_response:
        history = await history_response.json()
    assert history["isRunning"]
    assert [message["role"] for message in history["messages"]] == ["user"]
    resumed = await chat_server.client.get(f"{CHAT}/{body['id']}/stream")
    slow.may_end.set()
    assert parse_chunks(await resumed.text()) == parse_chunks(await response.text())
    async with chat_server.client.get(f"{CHAT}/{body['id']}/stream") as history_response:
        assert history_response.status == 204


async def test_resumed_message_contains_parts_of_earlier_runs(chat_server: ServerFixture) -> None:
    fake, body = chat_server.fake, chat_body("How warm is it?", tools=WEATHER)
    fake.answer_with(text_part("I will look."), call_part("get_weather", {}))
    chunks = await post_chat(chat_server, body)
    (tool_call,) = [chunk for chunk in chunks if chunk["type"] == "tool-input-available"]
    part = {"type": "tool-get_weather", **tool_call, "state": "output-available", "output": {"warm": 21}}
    answer = {"id": chunks[0]["messageId"], "role": "assistant", "parts": [{**part, "type": "tool-get_weather"}]}
    slow, response = await start_slow_chat(chat_server, {**body, "messages": [*body["messages"], answer]})
    resumed_response = await chat_server.client.get(f"{CHAT}/{body['id']}/stream")
    slow.may_end.set()
    resumed, rest = parse_chunks(await resumed_response.text()), parse_chunks(await response.text())
    assert resumed[0]["messageId"] == rest[0]["messageId"] == answer["id"]
    assert text_of(resumed) == "I will look." + text_of(rest)
    assert {"type": "tool-output-available", "toolCallId": tool_call["toolCallId"], "output": {"warm": 21}} in resumed
    (message,) = [wire for wire in await get_chat(chat_server, body["id"]) if wire["role"] == "assistant"]
    assert [part["type"] for part in message["parts"]] == [
        "step-start",
        "text",
        "tool-get_weather",
        "step-start",
        "text",
        "tool-wait",
        "step-start",
        "text",
    ]


async def test_missing_chat_has_no_stream_and_no_messages(chat_server: ServerFixture) -> None:
    assert await get_chat(chat_server, "nothing") == []
    for method, path, status in (("GET", "stream", 204), ("POST", "cancel", 404)):
        async with chat_server.client.request(method, f"{CHAT}/nothing/{path}") as answer:
            assert answer.status == status


async def test_pending_approval_is_in_history(chat_server: ServerFixture) -> None:
    chat_server.agent.tools = type(chat_server.agent.tools)([drop])
    chat_server.fake.call("drop", {"name": "users"})
    body = chat_body("Drop it.")
    chunks = await post_chat(chat_server, body)
    (request,) = [chunk for chunk in chunks if chunk["type"] == "tool-approval-request"]
    part = (await get_chat(chat_server, body["id"]))[-1]["parts"][-1]
    assert (part["state"], part["approval"]) == ("approval-requested", {"id": request["approvalId"]})


# --- branches --------------------------------------------------------------------------------------------------------


async def test_regenerated_answer_is_in_fork_and_first_is_kept(chat_server: ServerFixture) -> None:
    for text in ("One.", "Two.", "Three.", "Four."):
        chat_server.fake.reply(text)
    first, second = ui_message("First?"), ui_message("Second?")
    body = chat_body(first)
    answer = {"id": (await post_chat(chat_server, body))[0]["messageId"], "role": "assistant", "parts": []}
    await post_chat(chat_server, {**body, "messages": [first, answer, second]})
    regenerate = {**body, "messages": [first, answer, second], "trigger": "regenerate-message"}
    assert text_of(await post_chat(chat_server, regenerate)) == "Three."
    messages = await get_chat(chat_server, body["id"])
    texts = [part["text"] for message in messages for part in message["parts"] if part["type"] == "text"]
    assert texts == ["First?", "One.", "Second?", "Three."]
    edited = {**first, "parts": [{"type": "text", "text": "Edited?"}]}
    assert text_of(await post_chat(chat_server, {**body, "messages": [edited]})) == "Four."
    texts = [part["text"] for message in await get_chat(chat_server, body["id"]) for part in message["parts"][-1:]]
    assert texts == ["Edited?", "Four."]
    rows = await chat_server.store.read(body["id"])
    assert [row.message.text for row in rows] == ["First?", "One.", "Second?", "Two."]


async def test_rejected_edit_leaves_no_fork(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("One.")
    body = chat_body("First?")
    await post_chat(chat_server, body)
    foreign = {"type": "file", "mediaType": "image/png", "url": "https://example.com/a.png"}
    for parts in ([], [foreign]):
        edited = {**body["messages"][0], "parts": parts}
        status, _ = await post_error(chat_server, {**body, "messages": [edited]})
        assert status == 422
    async with chat_server.client.get("/api/v1/agent/threads") as answer:
        assert [thread["id"] for thread in (await answer.json())["threads"]] == [body["id"]]
    assert (await get_chat(chat_server, body["id"]))[-1]["parts"][-1]["text"] == "One."


async def test_chat_continues_in_first_thread_after_fork_is_deleted(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("One.")
    chat_server.fake.reply("Two.")
    body = chat_body("First?")
    await post_chat(chat_server, body)
    await post_chat(chat_server, {**body, "trigger": "regenerate-message"})
    async with chat_server.client.get("/api/v1/agent/threads") as answer:
        threads = [thread["id"] for thread in (await answer.json())["threads"]]
    (fork,) = [thread for thread in threads if thread != body["id"]]
    async with chat_server.client.delete(f"/api/v1/agent/threads/{fork}") as answer:
        assert answer.status == 204
    assert (await get_chat(chat_server, body["id"]))[-1]["parts"][-1]["text"] == "One."


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"messages": []}, (422, "nothing_to_answer")),
        ({"messages": [{"id": "a", "role": "robot", "parts": []}]}, (422, "invalid_message")),
        ({"messages": [{"id": "a", "role": "user", "parts": [{"no": "type"}]}]}, (422, "invalid_message")),
        ({"messages": [{"id": "a", "role": "user", "parts": []}]}, (422, "empty_content")),
        ({"messages": [{"id": "a b", "role": "user", "parts": [{"type": "text", "text": "x"}]}]}, (422, "invalid_id")),
        ({"messages": [{"id": "a", "role": "assistant", "parts": []}]}, (422, "nothing_to_answer")),
        ({"trigger": "something"}, (422, "invalid_request")),
        ({"id": "a/b"}, (422, "invalid_id")),
        ({"model": 3}, (422, "invalid_request")),
        ({"tools": {"x": {"parameters": 3}}}, (422, "invalid_request")),
    ],
)
async def test_invalid_request_is_rejected_before_stream_opens(
    chat_server: ServerFixture, change: dict[str, Any], expected: tuple[int, str]
) -> None:
    body = {**chat_body("Hello"), **change}
    assert await post_error(chat_server, body) == expected
    assert await chat_server.store.find_session(str(body["id"]).replace("/", "-")) is None


async def test_second_question_is_rejected_during_active_run(chat_server: ServerFixture) -> None:
    body = chat_body("Wait.")
    slow, response = await start_slow_chat(chat_server, body)
    for messages in ([ui_message("And?")], body["messages"]):
        assert await post_error(chat_server, {**body, "messages": messages}) == (409, "run_in_progress")
    slow.may_end.set()
    await response.text()


async def test_earlier_messages_are_imported_with_import_scope(keyed_server: ServerFixture) -> None:
    tool_part = {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "input": {}, "output": "Rain."}
    earlier = [
        ui_message("Weather?"),
        {
            "id": "a1",
            "role": "assistant",
            "parts": [tool_part, {"type": "step-start"}, {"type": "text", "text": "Rain."}],
        },
    ]
    body = chat_body(*earlier, "Thank you.")
    chat_only = await keyed_server.make_key("ann")
    assert await post_error(keyed_server, body, **chat_only) == (403, "role_not_allowed")
    headers = await keyed_server.make_key("ann", scopes=("chat", "history:write"))
    keyed_server.fake.reply("You are welcome.")
    async with keyed_server.client.post(CHAT, json=body, headers=headers) as answer:
        assert text_of(parse_chunks(await answer.text())) == "You are welcome."
    messages = await get_chat(keyed_server, body["id"], **headers)
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert [part["type"] for part in messages[1]["parts"]] == ["step-start", "tool-look", "step-start", "text"]


async def test_chat_id_of_another_user_is_a_separate_chat(keyed_server: ServerFixture) -> None:
    body = chat_body("Hello")
    for name in ("ann", "bob"):
        keyed_server.fake.reply(f"Hello, {name}.")
        headers = await keyed_server.make_key(name)
        async with keyed_server.client.post(CHAT, json=body, headers=headers) as answer:
            assert text_of(parse_chunks(await answer.text())) == f"Hello, {name}."
        assert (await get_chat(keyed_server, body["id"], **headers))[-1]["parts"][-1]["text"] == f"Hello, {name}."
    assert await get_chat(keyed_server, body["id"], **await keyed_server.make_key("cyd")) == []


async def test_agui_client_and_chat_share_a_thread(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("One.")
    chat_server.fake.reply("Two.")
    body = chat_body("First?")
    await post_chat(chat_server, body)
    await post_run(chat_server, run_input(user("Second?"), threadId=body["id"]))
    texts = [message["parts"][-1]["text"] for message in await get_chat(chat_server, body["id"])]
    assert texts == ["First?", "One.", "Second?", "Two."]
    async with chat_server.client.get(f"{RUNS}/{body['id']}/events", headers={"Last-Event-ID": "0"}) as answer:
        assert (await answer.text()).count("RUN_STARTED") >= 2
