"""Tests of runs over a real socket: streams, idempotency, reconnection, cancellation, tools and approvals."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from dragoman.errors import StorageError
from dragoman.exchange import SideEffects
from dragoman.message import ImageBlock, MessageStatus, TextBlock
from dragoman.server.runs import registry
from dragoman.server.runs.run_input import InputMessage, TextPart
from dragoman.server.runs.turn_request import _require_same_text
from dragoman.tools import tool
from tests.fake_providers.script import text_part
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import RUNS, SSE, event_types, parse_events, post_error, post_run, run_input, user
from tests.server.runs.test_invalid_input import JPEG, PNG, image_part


def join_text(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


async def get_events(server: ServerFixture, thread: str, last: str | None = None, **query: str) -> tuple[int, Any]:
    """Return the events of a thread, or the code of an error."""
    headers = {} if last is None else {"Last-Event-ID": last}
    async with server.client.get(f"{RUNS}/{thread}/events", headers=headers, params=query) as response:
        if response.status == 200:
            return 200, parse_events(await response.text())
        return response.status, (await response.json())["error"]["code"] if response.status != 204 else None


class BlockingTool:
    """A tool that runs until the test releases it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()

    def tool(self) -> Any:
        @tool(side_effects=SideEffects.NONE, requires_workspace=False)
        async def wait() -> str:
            """Wait."""
            self.started.set()
            await self.may_end.wait()
            return "done"

        return wait


@asynccontextmanager
async def slow_run(server: ServerFixture, **fields: Any) -> AsyncIterator[tuple[BlockingTool, dict[str, Any]]]:
    """Start a run and wait until it is inside a tool."""
    slow = BlockingTool()
    server.agent.tools = type(server.agent.tools)([slow.tool()])
    server.fake.call("wait")
    server.fake.reply("It was long.")
    body = run_input("Wait.", **fields)
    async with server.client.post(RUNS, json=body) as response:
        assert response.status == 202, await response.text()
    await asyncio.wait_for(slow.started.wait(), 60)
    yield slow, body
    slow.may_end.set()


async def test_run_emits_all_events_in_order(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("It is fine.", thinking="Hm.")
    body = run_input("How is it?")
    events = await post_run(chat_server, body)
    assert event_types(events) == [
        "RUN_STARTED",
        "STEP_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_ENCRYPTED_VALUE",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    assert [event["number"] for event in events] == [*range(1, len(events) + 1)]
    assert (events[0]["threadId"], events[0]["runId"]) == (body["threadId"], body["runId"])
    assert events[-1]["outcome"] == {"type": "success"}
    assert join_text(events) == "It is fine."
    question, answer = await chat_server.store.read(body["threadId"])
    assert question.message.metadata.message_id == body["messages"][0]["id"]
    assert question.message.metadata.run_id == answer.message.metadata.run_id == body["runId"]
    assert (await chat_server.store.get_session(body["threadId"])).title == "How is it?"


async def test_run_without_stream_is_accepted_and_followed_later(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    body = run_input("Is it?")
    async with chat_server.client.post(RUNS, json=body) as response:
        assert response.status == 202
        accepted = await response.json()
        ids = {"taskId": body["runId"], "threadId": body["threadId"], "runId": body["runId"]}
        assert accepted == {**ids, "created": True}
    status, events = await get_events(chat_server, body["threadId"])
    assert (status, join_text(events)) == (200, "Yes.")
    async with chat_server.client.post(RUNS, json=body) as response:
        assert (await response.json()) == {**ids, "created": False}


async def test_repeated_request_returns_same_run(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    body = run_input("Is it?")
    first = await post_run(chat_server, body)
    assert await post_run(chat_server, body) == first
    assert await post_run(chat_server, dict(reversed(body.items()))) == first  # the order of keys is ignored
    assert len(chat_server.fake.received) == 1
    changed = {**body, "messages": [user("Something else")]}
    assert await post_error(chat_server, changed) == (422, "idempotency_key_reused")


async def test_idempotency_key_identifies_run(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    body = run_input("Is it?")
    first = await post_run(chat_server, body, **{"Idempotency-Key": "k1"})
    assert await post_run(chat_server, body, **{"Idempotency-Key": "k1"}) == first
    changed = {**body, "runId": "another"}
    assert await post_error(chat_server, changed, **{"Idempotency-Key": "k1"}) == (422, "idempotency_key_reused")
    error = await post_error(chat_server, changed, **{"Idempotency-Key": "k" * 256})
    assert error == (400, "invalid_idempotency_key")


async def test_thread_has_one_run_at_a_time(chat_server: ServerFixture) -> None:
    async with slow_run(chat_server) as (slow, body):
        second_body = run_input("Me too", threadId=body["threadId"])
        async with chat_server.client.post(RUNS, json=second_body) as response:
            assert response.status == 409
            assert response.headers["retry-after"] == "1"
            assert (await response.json())["error"]["code"] == "run_in_progress"
        slow.may_end.set()
        _, events = await get_events(chat_server, body["threadId"])
        assert events[-1]["type"] == "RUN_FINISHED"
    assert event_types(await post_run(chat_server, second_body))[-1] == "RUN_FINISHED"


async def test_concurrent_equal_requests_start_one_run(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    body = run_input("Is it?")
    first, second = await asyncio.gather(post_run(chat_server, body), post_run(chat_server, body))
    assert first == second
    assert len(chat_server.fake.received) == 1


async def test_run_continues_after_client_disconnects(chat_server: ServerFixture) -> None:
    slow = BlockingTool()
    chat_server.agent.tools = type(chat_server.agent.tools)([slow.tool()])
    chat_server.fake.call("wait")
    chat_server.fake.reply("I am still here.")
    body = run_input("Wait.")
    response = await chat_server.client.post(RUNS, json=body, headers=SSE)
    await asyncio.wait_for(slow.started.wait(), 60)
    response.close()
    slow.may_end.set()
    _, events = await get_events(chat_server, body["threadId"])
    assert join_text(events) == "I am still here."
    assert events[-1]["type"] == "RUN_FINISHED"


async def test_client_receives_missed_events_after_reconnect(chat_server: ServerFixture) -> None:
    thread = "t-1"
    events = []
    for text in ("First.", "Second."):
        chat_server.fake.reply(text)
        events += await post_run(chat_server, run_input("Go on.", threadId=thread))
    numbers = [event["number"] for event in events]
    assert numbers == [*range(1, len(events) + 1)]
    for last in range(len(events)):
        assert await get_events(chat_server, thread, str(last)) == (200, events[last:])
    assert await get_events(chat_server, thread, str(len(events))) == (204, None)
    second = [event for event in events if event["number"] > len(events) // 2]
    assert await get_events(chat_server, thread) == (200, second)  # the latest run
    first_run = events[0]["runId"]
    assert await get_events(chat_server, thread, runId=first_run) == (200, events[: len(events) // 2])
    assert await get_events(chat_server, thread, "3", runId=first_run) == (200, events[3 : len(events) // 2])
    assert await get_events(chat_server, thread, lastEventId="3") == (200, events[3:])
    for invalid in (str(len(events) + 1), "x", "-1", "1e3", "9" * 30):
        assert await get_events(chat_server, thread, invalid) == (422, "invalid_last_event_id")
    assert await get_events(chat_server, thread, runId="nobody") == (404, "not_found")


async def test_followers_of_a_run_without_events_are_kept_alive(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "KEEP_ALIVE_S", 0.05)
    async with slow_run(chat_server) as (slow, body):
        all_followers = asyncio.Barrier(3)

        async def follow() -> str:
            async with chat_server.client.get(f"{RUNS}/{body['threadId']}/events") as response:
                text = ""
                while text.count(": keep-alive") < 3:
                    text += (await response.content.readline()).decode()
                await all_followers.wait()
                slow.may_end.set()
                return text + await response.text()

        for text in await asyncio.gather(follow(), follow(), follow()):
            assert event_types(parse_events(text))[-1] == "RUN_FINISHED"


async def test_thread_without_runs_has_no_events(chat_server: ServerFixture) -> None:
    session = await chat_server.store.create_session()
    assert await get_events(chat_server, session.id) == (204, None)
    assert await get_events(chat_server, session.id, "5") == (422, "invalid_last_event_id")


async def test_deleted_events_return_410(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    body = run_input("Is it?")
    await post_run(chat_server, body)
    await asyncio.sleep(0.01)
    assert await chat_server.store.runs.delete_old_events(timedelta(0)) > 0
    assert await get_events(chat_server, body["threadId"]) == (410, "events_gone")


async def test_events_are_kept_for_configured_days(tmp_path: Path) -> None:
    old, young = run_input("Is it?"), run_input("Is it?")
    async with run_test_server(tmp_path) as server:
        for body, days in ((old, 20), (young, 19)):
            server.fake.reply("Yes.")
            server.store.clock = lambda days=days: datetime.now(UTC) - timedelta(days=days)
            await post_run(server, body)
    async with run_test_server(tmp_path, keep_run_events_days=19.5) as server:  # deletes old events at start-up
        status = 200
        while status == 200:
            with suppress(ClientPayloadError):  # the events were deleted while they were read
                status, _ = await get_events(server, old["threadId"])
        assert await get_events(server, old["threadId"]) == (410, "events_gone")
        status, events = await get_events(server, young["threadId"])
        assert (status, join_text(events)) == (200, "Yes.")


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", None])
@pytest.mark.parametrize("with_run_id", [False, True])
async def test_run_is_cancelled(chat_server: ServerFixture, version: str | None, with_run_id: bool) -> None:
    async with slow_run(chat_server, **({} if version else {"protocolVersion": None})) as (_, body):
        path = f"{RUNS}/{body['threadId']}/{body['runId'] + '/' if with_run_id else ''}cancel"
        async with chat_server.client.post(path) as response:
            assert response.status == 202
            result = await response.json()
            assert result == {"threadId": body["threadId"], "runId": body["runId"], "cancelled": True}
        _, events = await get_events(chat_server, body["threadId"])
        if version:
            assert events[-1]["outcome"] == {"type": "cancelled"}
        else:
            assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "cancelled")
        async with chat_server.client.post(path) as response:
            assert (response.status, (await response.json())["cancelled"]) == (200, False)
    chat_server.fake.clear_script()
    chat_server.fake.reply("Go on.")
    assert (
        event_types(await post_run(chat_server, run_input("And now?", threadId=body["threadId"])))[-1] == "RUN_FINISHED"
    )
    assert chat_server.fake.refusals == []


async def test_provider_failure_ends_run_with_error_and_can_be_retried(
    chat_server: ServerFixture,
) -> None:
    chat_server.fake.fail(500, "broken")
    body = run_input("Hello")
    events = await post_run(chat_server, body)
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "server_error")
    chat_server.fake.reply("Here I am.")
    retried = await post_run(chat_server, {**body, "runId": "again"})
    assert join_text(retried) == "Here I am."
    assert "asked" not in retried[0].get("metadata", {}).get("dragoman", {})  # there is no new message
    users = [row for row in await chat_server.store.read(body["threadId"]) if row.message.role.value == "user"]
    assert len(users) == 1


async def test_broken_stream_keeps_received_text(chat_server: ServerFixture) -> None:
    chat_server.fake.cut(900, text_part("A long answer. " * 20))
    body = run_input("Hello")
    events = await post_run(chat_server, body)
    assert events[-1]["type"] == "RUN_ERROR"
    rows = await chat_server.store.read(body["threadId"])
    assert rows[-1].message.metadata.status is MessageStatus.ERROR
    stored_text = "".join(getattr(block, "text", "") for block in rows[-1].message.content)
    assert stored_text == join_text(events) != ""


async def test_server_shutdown_ends_runs_with_error(chat_server: ServerFixture) -> None:
    async with slow_run(chat_server) as (_, body):
        await chat_server.state.runs.close(0.05)
        page = await chat_server.store.runs.events(body["threadId"])
        last = json.loads(page.events[-1].json)
        assert (last["type"], last["code"]) == ("RUN_ERROR", "server_stopping")
        assert await post_error(chat_server, run_input("Hello")) == (503, "server_stopping")


# --- messages --------------------------------------------------------------------------------------------------------


async def test_client_may_send_whole_conversation_every_time(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("One.", thinking="Hm.")
    chat_server.fake.reply("Two.")
    first, second = user("1?"), user("2?")
    events = await post_run(chat_server, run_input(first, threadId="t"))
    message_id = next(event["messageId"] for event in events if event["type"] == "TEXT_MESSAGE_START")
    history = [
        {"id": "local-system", "role": "system", "content": "The client's own."},
        first,
        {"id": f"{message_id}.0", "role": "reasoning", "content": "Hm."},
        {"id": message_id, "role": "assistant", "content": "One."},
    ]
    # Client messages before the known messages are ignored, whatever their role.
    await post_run(chat_server, run_input(*history, second, threadId="t"))
    rows = await chat_server.store.read("t")
    assert [row.message.role.value for row in rows] == ["user", "assistant", "user", "assistant"]
    assert chat_server.fake.refusals == []
    conflicting = {**second, "content": "Something else"}
    assert await post_error(chat_server, run_input(conflicting, threadId="t")) == (409, "id_conflict")


async def test_model_is_selected_by_mention_or_property(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    first = user("@anthropic Are you there?")
    events = await post_run(chat_server, run_input(first, threadId="t"))
    assert events[1]["metadata"]["dragoman"]["model"] == "fake-anthropic:model"
    chat_server.fake.reply("Still.")
    await post_run(chat_server, run_input(first, "And now?", threadId="t", forwardedProps={"model": "blind-anthropic"}))
    assert [body["model"] for body in chat_server.fake.bodies] == ["model", "blind"]


async def test_images_reach_model_and_are_stored(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Two dots.")
    binary = {"type": "binary", "mimeType": "image/jpeg", "data": JPEG}
    parts = [{"type": "text", "text": "看看"}, image_part(PNG), binary]
    body = run_input(user(parts))
    await post_run(chat_server, body)
    row, _ = await chat_server.store.read(body["threadId"])
    assert [type(block) for block in row.message.content[1:]] == [ImageBlock, ImageBlock]
    attachments = row.message.metadata.attachments
    assert [attachment.mime_type for attachment in attachments] == ["image/png", "image/jpeg"]
    assert all(attachment.path.startswith(f"agent-inputs/local/{body['threadId']}/") for attachment in attachments)
    sources = [
        part["source"] for part in chat_server.fake.bodies[0]["messages"][0]["content"] if part["type"] == "image"
    ]
    assert [source["media_type"] for source in sources] == ["image/png", "image/jpeg"]
    chat_server.fake.reply("One.")
    location = f"{attachments[0].bucket}/{attachments[0].path}"
    second_message = user([{"type": "image", "source": {"type": "file", "value": location, "provider": "dragoman"}}])
    await post_run(chat_server, run_input(second_message, threadId=body["threadId"]))
    assert chat_server.fake.refusals == []


async def test_context_reaches_model_and_is_not_stored(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Noted.")
    body = run_input("Hello", context=[{"description": "The page", "value": "checkout"}])
    await post_run(chat_server, body)
    assert "The page:\ncheckout" in json.dumps(chat_server.fake.bodies[0]["system"], ensure_ascii=False).replace(
        "\\n", "\n"
    )
    assert len(await chat_server.store.read(body["threadId"])) == 2


async def test_metadata_of_message_is_stored(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    metadata = {"mood": "calm", "big": 9007199254740993, "ag-ui": {"x": 1}}
    body = run_input({**user("Hello"), "metadata": metadata})
    await post_run(chat_server, body)
    row, _ = await chat_server.store.read(body["threadId"])
    assert row.message.metadata.extra == {"mood": "calm", "big": 9007199254740993}


# --- client tools and approval ---------------------------------------------------------------------------------------

WEATHER = {
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def test_client_tool_is_answered_by_client(chat_server: ServerFixture) -> None:
    chat_server.fake.call("get_weather", {"city": "Berlin"})
    chat_server.fake.reply("21 degrees.")
    question = user("How warm?")
    events = await post_run(chat_server, run_input(question, threadId="t", tools=[WEATHER]))
    (call_id,) = events[-1]["outcome"]["pendingToolCallIds"]
    parent = next(event["parentMessageId"] for event in events if event["type"] == "TOOL_CALL_START")
    function = {"name": "get_weather", "arguments": '{"city":"Berlin"}'}
    call_message = {
        "id": parent,
        "role": "assistant",
        "toolCalls": [{"id": call_id, "type": "function", "function": function}],
    }
    result = {"id": "tool-1", "role": "tool", "toolCallId": call_id, "content": "21"}
    resumed = await post_run(chat_server, run_input(question, call_message, result, threadId="t", tools=[WEATHER]))
    assert join_text(resumed) == "21 degrees."
    assert "TOOL_CALL_RESULT" not in event_types(resumed)  # the client already has the result
    late_result = {**result, "id": "tool-2", "content": "22"}
    assert await post_error(chat_server, run_input(late_result, threadId="t")) == (409, "already_answered")
    assert chat_server.fake.refusals == []


async def test_tool_result_of_failed_run_can_be_sent_again(chat_server: ServerFixture) -> None:
    chat_server.fake.call("get_weather", {"city": "Berlin"})
    chat_server.fake.fail(500)
    chat_server.fake.reply("21 degrees.")
    events = await post_run(chat_server, run_input("How warm?", threadId="t", tools=[WEATHER]))
    (call_id,) = events[-1]["outcome"]["pendingToolCallIds"]
    result = {"id": "tool-1", "role": "tool", "toolCallId": call_id, "content": "21"}
    failed = await post_run(chat_server, run_input(result, threadId="t", tools=[WEATHER]))
    assert failed[-1]["type"] == "RUN_ERROR"
    retried = await post_run(chat_server, run_input(result, threadId="t", tools=[WEATHER]))
    assert join_text(retried) == "21 degrees."


@tool(side_effects=SideEffects.EXECUTE, requires_workspace=False)
async def drop(name: str) -> str:
    """Drop something."""
    return f"{name} is gone"


async def start_interrupted(server: ServerFixture, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    server.agent.tools = type(server.agent.tools)([drop])
    server.fake.call("drop", {"name": "production"})
    events = await post_run(
        server, run_input(user([{"type": "text", "text": "Drop it."}, image_part(PNG)]), threadId="t", **fields)
    )
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    return events, interrupt


def resume_entry(interrupt: dict[str, Any], status: str = "resolved", **payload: Any) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": status, **({"payload": payload} if payload else {})}


@pytest.mark.parametrize(
    ("payload", "expected", "is_error"),
    [
        ({"approved": True}, "production is gone", False),
        ({"approved": True, "editedArgs": {"name": "staging"}}, "staging is gone", False),
        ({"approved": False, "reason": "not today"}, "not today", True),
    ],
)
async def test_call_that_needs_approval_waits(
    chat_server: ServerFixture, payload: Any, expected: str, is_error: bool
) -> None:
    events, interrupt = await start_interrupted(chat_server, state={"step": 1})
    assert interrupt["reason"] == "tool_call"
    snapshot = next(event["messages"] for event in events if event["type"] == "MESSAGES_SNAPSHOT")
    assert [message["role"] for message in snapshot] == ["user", "assistant"]
    assert snapshot[0]["content"][1]["source"]["type"] == "file"  # neither a URL with a token nor the bytes
    assert next(event["snapshot"] for event in events if event["type"] == "STATE_SNAPSHOT") == {"step": 1}
    chat_server.fake.reply("So be it.")
    resumed = await post_run(chat_server, run_input(threadId="t", resume=[resume_entry(interrupt, **payload)]))
    (result_event,) = [event for event in resumed if event["type"] == "TOOL_CALL_RESULT"]
    assert expected in json.dumps(result_event["content"])
    assert ("metadata" in result_event) == is_error
    assert result_event["toolCallId"] == interrupt["toolCallId"]
    assert join_text(resumed) == "So be it."
    assert chat_server.fake.refusals == []


async def test_resume_must_answer_exactly_the_open_interrupts(chat_server: ServerFixture) -> None:
    _, interrupt = await start_interrupted(chat_server)
    for entries, code in (
        ([{"interruptId": "int-other", "status": "cancelled"}], "unknown_interrupt"),
        ([resume_entry(interrupt, approved=True), resume_entry(interrupt, approved=True)], "invalid_resume"),
        ([resume_entry(interrupt)], "invalid_resume"),
        ([resume_entry(interrupt, approved="yes")], "invalid_resume"),
        ([resume_entry(interrupt, approved=True, editedArgs={"name": 5})], "tool_input_invalid"),
    ):
        assert await post_error(chat_server, run_input(threadId="t", resume=entries)) == (422, code)
    chat_server.fake.reply("Well.")
    resumed = await post_run(chat_server, run_input(threadId="t", resume=[resume_entry(interrupt, "cancelled")]))
    assert join_text(resumed) == "Well."
    error = await post_error(chat_server, run_input(threadId="t", resume=[resume_entry(interrupt, "cancelled")]))
    assert error == (422, "unknown_interrupt")


async def test_new_question_abandons_pending_approval(chat_server: ServerFixture) -> None:
    await start_interrupted(chat_server)
    chat_server.fake.reply("As you like.")
    events = await post_run(chat_server, run_input("Never mind.", threadId="t"))
    assert join_text(events) == "As you like."
    assert chat_server.fake.refusals == []


async def test_resume_follow_and_cancel_on_postgresql(postgres_chat_server: ServerFixture) -> None:
    server = postgres_chat_server
    _, interrupt = await start_interrupted(server)
    server.fake.reply("Nul \0 and \U0001f600.")
    resumed = await post_run(server, run_input(threadId="t", resume=[resume_entry(interrupt, approved=True)]))
    assert join_text(resumed) == "Nul \0 and \U0001f600."
    status, events = await get_events(server, "t", "0")
    assert status == 200
    assert [event["number"] for event in events] == [*range(1, len(events) + 1)]
    async with slow_run(server) as (_, body):
        async with server.client.post(f"{RUNS}/{body['threadId']}/cancel") as response:
            assert response.status == 202
        _, events = await get_events(server, body["threadId"])
        assert events[-1]["outcome"] == {"type": "cancelled"}


# --- failures --------------------------------------------------------------------------------------------------------


def fail_store(server: ServerFixture, monkeypatch: pytest.MonkeyPatch, times: int, *, after: bool = False) -> None:
    """Let the store fail this number of times, before or after it stores events."""
    append, remaining = server.store.runs.append, times
    monkeypatch.setattr("dragoman.server.runs.publisher._RETRIES_S", (0.0, 0.0, 0.0))

    async def append_or_fail(*arguments: Any, **keywords: Any) -> bool:
        nonlocal remaining
        if remaining == 0:
            return await append(*arguments, **keywords)
        remaining -= 1
        if after:
            await append(*arguments, **keywords)
        raise StorageError("the disk failed")

    server.store.runs.append = append_or_fail  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [False, True])
async def test_transient_store_failure_loses_no_event(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    chat_server.fake.reply("It is fine.")
    fail_store(chat_server, monkeypatch, 3, after=after)
    body = run_input("How is it?")
    events = await post_run(chat_server, body)
    assert join_text(events) == "It is fine."
    assert [event["number"] for event in events] == [*range(1, len(events) + 1)]
    assert await get_events(chat_server, body["threadId"], "0") == (200, events)


async def test_run_is_ended_after_store_recovers(chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow_run(chat_server) as (slow, body):
        fail_store(chat_server, monkeypatch, 8)  # the end event cannot be stored either
        slow.may_end.set()
        while chat_server.state.runs._publishers:
            await asyncio.sleep(0.01)
        await chat_server.state.runs._send_heartbeat()
        status, events = await get_events(chat_server, body["threadId"], "0")
        assert (status, events[-1]["type"], events[-1]["code"]) == (200, "RUN_ERROR", "interrupted")


async def test_deletion_of_thread_ends_its_run(chat_server: ServerFixture) -> None:
    async with slow_run(chat_server) as (slow, body):
        await chat_server.store.delete_session(body["threadId"])
        slow.may_end.set()
        while chat_server.state.runs._publishers:
            await asyncio.sleep(0.01)
    assert await get_events(chat_server, body["threadId"]) == (404, "not_found")


async def test_naughty_strings_are_streamed_and_stored_unchanged(chat_server: ServerFixture, suites: Path) -> None:
    naughty = json.loads((suites / "blns.json").read_text("utf-8"))
    parts = [{"type": "text", "text": text} for text in naughty if text]
    for index in range(0, len(parts), 250):
        body = run_input(user(parts[index : index + 250]))
        chat_server.fake.reply("".join(part["text"] for part in parts[index : index + 250]))
        events = await post_run(chat_server, body)
        texts = [part["text"] for part in parts[index : index + 250]]
        question, answer = await chat_server.store.read(body["threadId"])
        assert [block.text for block in question.message.content if isinstance(block, TextBlock)] == texts
        assert join_text(events) == "".join(texts)
        assert "".join(block.text for block in answer.message.content if isinstance(block, TextBlock)) == "".join(texts)


async def test_invalid_thread_ids_are_rejected(chat_server: ServerFixture, suites: Path) -> None:
    naughty = json.loads((suites / "blns.json").read_text("utf-8"))
    for thread_id in naughty:
        if re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", thread_id):
            continue
        status, code = await post_error(chat_server, run_input("x", threadId=thread_id))
        assert (status, code) in ((422, "invalid_id"), (422, "invalid_character"))
    assert chat_server.fake.received == []


async def test_erased_message_of_client_is_skipped(keyed_server: ServerFixture) -> None:
    ann = await keyed_server.make_key("ann")
    keyed_server.fake.reply("Yes.")
    first = user("My name is Bob.")
    await post_run(keyed_server, run_input(first, threadId="t"), **ann)
    row, _ = await keyed_server.store.read("t")
    erased = row.message.replace(
        content=(TextBlock("[erased]"),), metadata=row.message.metadata.replace(extra={"erased": True})
    )
    _require_same_text(
        InputMessage(id=first["id"], role="user", parts=(TextPart(first["content"]),), wire=first), erased
    )
    keyed_server.fake.reply("Still.")
    events = await post_run(keyed_server, run_input(first, "And now? Write to me @home soon.", threadId="t"), **ann)
    assert join_text(events) == "Still."
