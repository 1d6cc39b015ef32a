"""Runs over a real socket: told as they come, kept, come back to, answered, ended."""

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


def texts(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


async def get_events(server: ServerFixture, thread: str, last: str | None = None, **query: str) -> tuple[int, Any]:
    """Return the events of a thread, or the code of an error."""
    headers = {} if last is None else {"Last-Event-ID": last}
    async with server.client.get(f"{RUNS}/{thread}/events", headers=headers, params=query) as answer:
        if answer.status == 200:
            return 200, parse_events(await answer.text())
        return answer.status, (await answer.json())["error"]["code"] if answer.status != 204 else None


class SlowProvider:
    """A tool that a test lets go on."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

    def tool(self) -> Any:
        @tool(side_effects=SideEffects.NONE, requires_workspace=False)
        async def wait() -> str:
            """Wait."""
            self.began.set()
            await self.may_end.wait()
            return "done"

        return wait


@asynccontextmanager
async def slow_run(server: ServerFixture, **given: Any) -> AsyncIterator[tuple[SlowProvider, dict[str, Any]]]:
    """A run that is in the middle of a tool."""
    slow = SlowProvider()
    server.agent.tools = type(server.agent.tools)([slow.tool()])
    server.fake.call("wait")
    server.fake.reply("It was long.")
    body = run_input("Wait.", **given)
    async with server.client.post(RUNS, json=body) as answer:
        assert answer.status == 202, await answer.text()
    await asyncio.wait_for(slow.began.wait(), 60)
    yield slow, body
    slow.may_end.set()


async def test_a_run_is_told_from_its_beginning_to_its_end(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("It is fine.", thinking="Hm.")
    given = run_input("How is it?")
    told = await post_run(chat_server, given)
    assert event_types(told) == [
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
    assert [event["number"] for event in told] == [*range(1, len(told) + 1)]
    assert (told[0]["threadId"], told[0]["runId"]) == (given["threadId"], given["runId"])
    assert told[-1]["outcome"] == {"type": "success"}
    assert texts(told) == "It is fine."
    asked, answered = await chat_server.store.read(given["threadId"])
    assert asked.message.metadata.message_id == given["messages"][0]["id"]
    assert asked.message.metadata.run_id == answered.message.metadata.run_id == given["runId"]
    assert (await chat_server.store.get_session(given["threadId"])).title == "How is it?"


async def test_without_a_wish_for_events_a_run_is_accepted_and_told_elsewhere(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    given = run_input("Is it?")
    async with chat_server.client.post(RUNS, json=given) as answer:
        assert answer.status == 202
        told = await answer.json()
        ids = {"taskId": given["runId"], "threadId": given["threadId"], "runId": given["runId"]}
        assert told == {**ids, "created": True}
    status, found = await get_events(chat_server, given["threadId"])
    assert (status, texts(found)) == (200, "Yes.")
    async with chat_server.client.post(RUNS, json=given) as answer:
        assert (await answer.json()) == {**ids, "created": False}


async def test_the_same_request_again_is_the_same_run(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    given = run_input("Is it?")
    first = await post_run(chat_server, given)
    assert await post_run(chat_server, given) == first
    assert await post_run(chat_server, dict(reversed(given.items()))) == first  # whatever the order of its keys
    assert len(chat_server.fake.received) == 1
    other = {**given, "messages": [user("Something else")]}
    assert await post_error(chat_server, other) == (422, "idempotency_key_reused")


async def test_a_key_of_a_request_is_as_good_as_the_id_of_its_run(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    given = run_input("Is it?")
    first = await post_run(chat_server, given, **{"Idempotency-Key": "k1"})
    assert await post_run(chat_server, given, **{"Idempotency-Key": "k1"}) == first
    other = {**given, "runId": "another"}
    assert await post_error(chat_server, other, **{"Idempotency-Key": "k1"}) == (422, "idempotency_key_reused")
    long = await post_error(chat_server, other, **{"Idempotency-Key": "k" * 256})
    assert long == (400, "invalid_idempotency_key")


async def test_a_thread_has_one_run_at_a_time(chat_server: ServerFixture) -> None:
    async with slow_run(chat_server) as (slow, given):
        other = run_input("Me too", threadId=given["threadId"])
        async with chat_server.client.post(RUNS, json=other) as answer:
            assert answer.status == 409
            assert answer.headers["retry-after"] == "1"
            assert (await answer.json())["error"]["code"] == "run_in_progress"
        slow.may_end.set()
        _, told = await get_events(chat_server, given["threadId"])
        assert told[-1]["type"] == "RUN_FINISHED"
    assert event_types(await post_run(chat_server, other))[-1] == "RUN_FINISHED"


async def test_two_requests_at_once_begin_one_run(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    given = run_input("Is it?")
    first, second = await asyncio.gather(post_run(chat_server, given), post_run(chat_server, given))
    assert first == second
    assert len(chat_server.fake.received) == 1


async def test_a_run_goes_on_when_its_client_is_gone(chat_server: ServerFixture) -> None:
    slow = SlowProvider()
    chat_server.agent.tools = type(chat_server.agent.tools)([slow.tool()])
    chat_server.fake.call("wait")
    chat_server.fake.reply("I am still here.")
    given = run_input("Wait.")
    answer = await chat_server.client.post(RUNS, json=given, headers=SSE)
    await asyncio.wait_for(slow.began.wait(), 60)
    answer.close()
    slow.may_end.set()
    _, told = await get_events(chat_server, given["threadId"])
    assert texts(told) == "I am still here."
    assert told[-1]["type"] == "RUN_FINISHED"


async def test_whoever_comes_back_is_told_what_they_missed(chat_server: ServerFixture) -> None:
    thread = "t-1"
    whole = []
    for words in ("First.", "Second."):
        chat_server.fake.reply(words)
        whole += await post_run(chat_server, run_input("Go on.", threadId=thread))
    numbers = [event["number"] for event in whole]
    assert numbers == [*range(1, len(whole) + 1)]
    for last in range(len(whole)):
        assert await get_events(chat_server, thread, str(last)) == (200, whole[last:])
    assert await get_events(chat_server, thread, str(len(whole))) == (204, None)
    second = [event for event in whole if event["number"] > len(whole) // 2]
    assert await get_events(chat_server, thread) == (200, second)  # the newest run
    first_run = whole[0]["runId"]
    assert await get_events(chat_server, thread, runId=first_run) == (200, whole[: len(whole) // 2])
    assert await get_events(chat_server, thread, "3", runId=first_run) == (200, whole[3 : len(whole) // 2])
    assert await get_events(chat_server, thread, lastEventId="3") == (200, whole[3:])
    for bad in (str(len(whole) + 1), "x", "-1", "1e3", "9" * 30):
        assert await get_events(chat_server, thread, bad) == (422, "invalid_last_event_id")
    assert await get_events(chat_server, thread, runId="nobody") == (404, "not_found")


async def test_followers_of_a_run_without_events_are_kept_alive(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "KEEP_ALIVE_S", 0.05)
    async with slow_run(chat_server) as (slow, body):
        all_followers = asyncio.Barrier(3)

        async def follow() -> str:
            async with chat_server.client.get(f"{RUNS}/{body['threadId']}/events") as answer:
                text = ""
                while text.count(": keep-alive") < 3:
                    text += (await answer.content.readline()).decode()
                await all_followers.wait()
                slow.may_end.set()
                return text + await answer.text()

        for text in await asyncio.gather(follow(), follow(), follow()):
            assert event_types(parse_events(text))[-1] == "RUN_FINISHED"


async def test_a_thread_without_runs_has_nothing_to_tell(chat_server: ServerFixture) -> None:
    session = await chat_server.store.create_session()
    assert await get_events(chat_server, session.id) == (204, None)
    assert await get_events(chat_server, session.id, "5") == (422, "invalid_last_event_id")


async def test_what_was_swept_is_said_to_be_gone(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    given = run_input("Is it?")
    await post_run(chat_server, given)
    await asyncio.sleep(0.01)
    assert await chat_server.store.runs.delete_old_events(timedelta(0)) > 0
    assert await get_events(chat_server, given["threadId"]) == (410, "events_gone")


async def test_what_a_run_has_told_is_kept_for_as_long_as_the_server_was_told(tmp_path: Path) -> None:
    old, young = run_input("Is it?"), run_input("Is it?")
    async with run_test_server(tmp_path) as server:
        for given, days in ((old, 20), (young, 19)):
            server.fake.reply("Yes.")
            server.store.clock = lambda days=days: datetime.now(UTC) - timedelta(days=days)
            await post_run(server, given)
    async with run_test_server(tmp_path, keep_run_events_days=19.5) as server:  # which sweeps when it begins
        status = 200
        while status == 200:
            with suppress(ClientPayloadError):  # they were deleted while they were read
                status, _ = await get_events(server, old["threadId"])
        assert await get_events(server, old["threadId"]) == (410, "events_gone")
        status, told = await get_events(server, young["threadId"])
        assert (status, texts(told)) == (200, "Yes.")


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", None])
@pytest.mark.parametrize("named", [False, True])
async def test_a_run_can_be_cancelled(chat_server: ServerFixture, version: str | None, named: bool) -> None:
    async with slow_run(chat_server, **({} if version else {"protocolVersion": None})) as (_, given):
        path = f"{RUNS}/{given['threadId']}/{given['runId'] + '/' if named else ''}cancel"
        async with chat_server.client.post(path) as answer:
            assert answer.status == 202
            told = await answer.json()
            assert told == {"threadId": given["threadId"], "runId": given["runId"], "cancelled": True}
        _, found = await get_events(chat_server, given["threadId"])
        if version:
            assert found[-1]["outcome"] == {"type": "cancelled"}
        else:
            assert (found[-1]["type"], found[-1]["code"]) == ("RUN_ERROR", "cancelled")
        async with chat_server.client.post(path) as answer:
            assert (answer.status, (await answer.json())["cancelled"]) == (200, False)
    chat_server.fake.clear_script()
    chat_server.fake.reply("Go on.")
    assert (
        event_types(await post_run(chat_server, run_input("And now?", threadId=given["threadId"])))[-1]
        == "RUN_FINISHED"
    )
    assert chat_server.fake.refusals == []


async def test_a_provider_that_fails_ends_the_run_as_an_error_and_it_can_be_tried_again(
    chat_server: ServerFixture,
) -> None:
    chat_server.fake.fail(500, "broken")
    given = run_input("Hello")
    told = await post_run(chat_server, given)
    assert (told[-1]["type"], told[-1]["code"]) == ("RUN_ERROR", "server_error")
    chat_server.fake.reply("Here I am.")
    again = await post_run(chat_server, {**given, "runId": "again"})
    assert texts(again) == "Here I am."
    assert "asked" not in again[0].get("metadata", {}).get("dragoman", {})  # nothing new was said
    users = [row for row in await chat_server.store.read(given["threadId"]) if row.message.role.value == "user"]
    assert len(users) == 1


async def test_a_stream_that_breaks_leaves_what_had_arrived(chat_server: ServerFixture) -> None:
    chat_server.fake.cut(900, text_part("A long answer. " * 20))
    given = run_input("Hello")
    told = await post_run(chat_server, given)
    assert told[-1]["type"] == "RUN_ERROR"
    rows = await chat_server.store.read(given["threadId"])
    assert rows[-1].message.metadata.status is MessageStatus.ERROR
    kept = "".join(getattr(block, "text", "") for block in rows[-1].message.content)
    assert kept == texts(told) != ""


async def test_a_server_that_stops_ends_runs_as_errors(chat_server: ServerFixture) -> None:
    async with slow_run(chat_server) as (_, given):
        await chat_server.state.runs.close(0.05)
        told = await chat_server.store.runs.events(given["threadId"])
        last = json.loads(told.events[-1].json)
        assert (last["type"], last["code"]) == ("RUN_ERROR", "server_stopping")
        assert await post_error(chat_server, run_input("Hello")) == (503, "server_stopping")


# --- what is said ----------------------------------------------------------------------------------------------------


async def test_a_conversation_may_come_whole_every_time(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("One.", thinking="Hm.")
    chat_server.fake.reply("Two.")
    first, second = user("1?"), user("2?")
    told = await post_run(chat_server, run_input(first, threadId="t"))
    name = next(event["messageId"] for event in told if event["type"] == "TEXT_MESSAGE_START")
    history = [
        {"id": "local-system", "role": "system", "content": "The client's own."},
        first,
        {"id": f"{name}.0", "role": "reasoning", "content": "Hm."},
        {"id": name, "role": "assistant", "content": "One."},
    ]
    # What the client has before what the thread knows is its own affair, whoever may say what.
    await post_run(chat_server, run_input(*history, second, threadId="t"))
    rows = await chat_server.store.read("t")
    assert [row.message.role.value for row in rows] == ["user", "assistant", "user", "assistant"]
    assert chat_server.fake.refusals == []
    other = {**second, "content": "Something else"}
    assert await post_error(chat_server, run_input(other, threadId="t")) == (409, "id_conflict")


async def test_a_model_may_be_named_in_the_words_or_beside_them(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    first = user("@anthropic Are you there?")
    told = await post_run(chat_server, run_input(first, threadId="t"))
    assert told[1]["metadata"]["dragoman"]["model"] == "fake-anthropic:model"
    chat_server.fake.reply("Still.")
    await post_run(chat_server, run_input(first, "And now?", threadId="t", forwardedProps={"model": "blind-anthropic"}))
    assert [body["model"] for body in chat_server.fake.bodies] == ["model", "blind"]


async def test_pictures_reach_the_model_and_are_kept(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Two dots.")
    binary = {"type": "binary", "mimeType": "image/jpeg", "data": JPEG}
    said = [{"type": "text", "text": "看看"}, image_part(PNG), binary]
    given = run_input(user(said))
    await post_run(chat_server, given)
    row, _ = await chat_server.store.read(given["threadId"])
    assert [type(block) for block in row.message.content[1:]] == [ImageBlock, ImageBlock]
    kept = row.message.metadata.attachments
    assert [one.mime_type for one in kept] == ["image/png", "image/jpeg"]
    assert all(one.path.startswith(f"agent-inputs/local/{given['threadId']}/") for one in kept)
    sources = [
        part["source"] for part in chat_server.fake.bodies[0]["messages"][0]["content"] if part["type"] == "image"
    ]
    assert [source["media_type"] for source in sources] == ["image/png", "image/jpeg"]
    chat_server.fake.reply("One.")
    place = f"{kept[0].bucket}/{kept[0].path}"
    again = user([{"type": "image", "source": {"type": "file", "value": place, "provider": "dragoman"}}])
    await post_run(chat_server, run_input(again, threadId=given["threadId"]))
    assert chat_server.fake.refusals == []


async def test_what_the_model_is_to_know_is_told_and_not_kept(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Noted.")
    given = run_input("Hello", context=[{"description": "The page", "value": "checkout"}])
    await post_run(chat_server, given)
    assert "The page:\ncheckout" in json.dumps(chat_server.fake.bodies[0]["system"], ensure_ascii=False).replace(
        "\\n", "\n"
    )
    assert len(await chat_server.store.read(given["threadId"])) == 2


async def test_what_an_application_keeps_with_a_message_is_kept(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    metadata = {"mood": "calm", "big": 9007199254740993, "ag-ui": {"x": 1}}
    given = run_input({**user("Hello"), "metadata": metadata})
    await post_run(chat_server, given)
    row, _ = await chat_server.store.read(given["threadId"])
    assert row.message.metadata.extra == {"mood": "calm", "big": 9007199254740993}


# --- tools of the client, and consent --------------------------------------------------------------------------------

WEATHER = {
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def test_a_tool_of_the_client_is_answered_by_the_client(chat_server: ServerFixture) -> None:
    chat_server.fake.call("get_weather", {"city": "Berlin"})
    chat_server.fake.reply("21 degrees.")
    asked = user("How warm?")
    told = await post_run(chat_server, run_input(asked, threadId="t", tools=[WEATHER]))
    (call_id,) = told[-1]["outcome"]["pendingToolCallIds"]
    parent = next(event["parentMessageId"] for event in told if event["type"] == "TOOL_CALL_START")
    function = {"name": "get_weather", "arguments": '{"city":"Berlin"}'}
    called = {
        "id": parent,
        "role": "assistant",
        "toolCalls": [{"id": call_id, "type": "function", "function": function}],
    }
    answer = {"id": "tool-1", "role": "tool", "toolCallId": call_id, "content": "21"}
    again = await post_run(chat_server, run_input(asked, called, answer, threadId="t", tools=[WEATHER]))
    assert texts(again) == "21 degrees."
    assert "TOOL_CALL_RESULT" not in event_types(again)  # the client has it
    late = {**answer, "id": "tool-2", "content": "22"}
    assert await post_error(chat_server, run_input(late, threadId="t")) == (409, "already_answered")
    assert chat_server.fake.refusals == []


async def test_an_answer_whose_run_failed_can_be_sent_again(chat_server: ServerFixture) -> None:
    chat_server.fake.call("get_weather", {"city": "Berlin"})
    chat_server.fake.fail(500)
    chat_server.fake.reply("21 degrees.")
    told = await post_run(chat_server, run_input("How warm?", threadId="t", tools=[WEATHER]))
    (call_id,) = told[-1]["outcome"]["pendingToolCallIds"]
    answer = {"id": "tool-1", "role": "tool", "toolCallId": call_id, "content": "21"}
    failed = await post_run(chat_server, run_input(answer, threadId="t", tools=[WEATHER]))
    assert failed[-1]["type"] == "RUN_ERROR"
    again = await post_run(chat_server, run_input(answer, threadId="t", tools=[WEATHER]))
    assert texts(again) == "21 degrees."


@tool(side_effects=SideEffects.EXECUTE, requires_workspace=False)
async def drop(name: str) -> str:
    """Drop something."""
    return f"{name} is gone"


async def start_interrupted(server: ServerFixture, **given: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    server.agent.tools = type(server.agent.tools)([drop])
    server.fake.call("drop", {"name": "production"})
    told = await post_run(
        server, run_input(user([{"type": "text", "text": "Drop it."}, image_part(PNG)]), threadId="t", **given)
    )
    (interrupt,) = told[-1]["outcome"]["interrupts"]
    return told, interrupt


def resume_entry(interrupt: dict[str, Any], status: str = "resolved", **payload: Any) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": status, **({"payload": payload} if payload else {})}


@pytest.mark.parametrize(
    ("payload", "result", "is_error"),
    [
        ({"approved": True}, "production is gone", False),
        ({"approved": True, "editedArgs": {"name": "staging"}}, "staging is gone", False),
        ({"approved": False, "reason": "not today"}, "not today", True),
    ],
)
async def test_what_needs_consent_waits_for_it(
    chat_server: ServerFixture, payload: Any, result: str, is_error: bool
) -> None:
    told, interrupt = await start_interrupted(chat_server, state={"step": 1})
    assert interrupt["reason"] == "tool_call"
    snapshot = next(event["messages"] for event in told if event["type"] == "MESSAGES_SNAPSHOT")
    assert [message["role"] for message in snapshot] == ["user", "assistant"]
    assert snapshot[0]["content"][1]["source"]["type"] == "file"  # and never a URL with a token, nor the bytes
    assert next(event["snapshot"] for event in told if event["type"] == "STATE_SNAPSHOT") == {"step": 1}
    chat_server.fake.reply("So be it.")
    again = await post_run(chat_server, run_input(threadId="t", resume=[resume_entry(interrupt, **payload)]))
    (came,) = [event for event in again if event["type"] == "TOOL_CALL_RESULT"]
    assert result in json.dumps(came["content"])
    assert ("metadata" in came) == is_error
    assert came["toolCallId"] == interrupt["toolCallId"]
    assert texts(again) == "So be it."
    assert chat_server.fake.refusals == []


async def test_a_resume_answers_every_interrupt_and_nothing_else(chat_server: ServerFixture) -> None:
    _, interrupt = await start_interrupted(chat_server)
    for given, code in (
        ([{"interruptId": "int-other", "status": "cancelled"}], "unknown_interrupt"),
        ([resume_entry(interrupt, approved=True), resume_entry(interrupt, approved=True)], "invalid_resume"),
        ([resume_entry(interrupt)], "invalid_resume"),
        ([resume_entry(interrupt, approved="yes")], "invalid_resume"),
        ([resume_entry(interrupt, approved=True, editedArgs={"name": 5})], "tool_input_invalid"),
    ):
        assert await post_error(chat_server, run_input(threadId="t", resume=given)) == (422, code)
    chat_server.fake.reply("Well.")
    again = await post_run(chat_server, run_input(threadId="t", resume=[resume_entry(interrupt, "cancelled")]))
    assert texts(again) == "Well."
    done = await post_error(chat_server, run_input(threadId="t", resume=[resume_entry(interrupt, "cancelled")]))
    assert done == (422, "unknown_interrupt")


async def test_a_new_question_gives_up_what_waited(chat_server: ServerFixture) -> None:
    await start_interrupted(chat_server)
    chat_server.fake.reply("As you like.")
    told = await post_run(chat_server, run_input("Never mind.", threadId="t"))
    assert texts(told) == "As you like."
    assert chat_server.fake.refusals == []


async def test_the_same_on_postgresql(postgres_chat_server: ServerFixture) -> None:
    server = postgres_chat_server
    _, interrupt = await start_interrupted(server)
    server.fake.reply("Nul \0 and \U0001f600.")
    again = await post_run(server, run_input(threadId="t", resume=[resume_entry(interrupt, approved=True)]))
    assert texts(again) == "Nul \0 and \U0001f600."
    status, found = await get_events(server, "t", "0")
    assert status == 200
    assert [event["number"] for event in found] == [*range(1, len(found) + 1)]
    async with slow_run(server) as (_, given):
        async with server.client.post(f"{RUNS}/{given['threadId']}/cancel") as answer:
            assert answer.status == 202
        _, found = await get_events(server, given["threadId"])
        assert found[-1]["outcome"] == {"type": "cancelled"}


# --- what goes wrong here --------------------------------------------------------------------------------------------


def fail_store(server: ServerFixture, monkeypatch: pytest.MonkeyPatch, times: int, *, after: bool = False) -> None:
    """Let the store fail so often when it is told something: before it did it, or after."""
    real, left = server.store.runs.append, times
    monkeypatch.setattr("dragoman.server.runs.publisher._RETRIES_S", (0.0, 0.0, 0.0))

    async def told(*given: Any, **more: Any) -> bool:
        nonlocal left
        if left == 0:
            return await real(*given, **more)
        left -= 1
        if after:
            await real(*given, **more)
        raise StorageError("the disk is tired")

    server.store.runs.append = told  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [False, True])
async def test_a_store_that_fails_for_a_moment_loses_no_event(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    chat_server.fake.reply("It is fine.")
    fail_store(chat_server, monkeypatch, 3, after=after)
    given = run_input("How is it?")
    told = await post_run(chat_server, given)
    assert texts(told) == "It is fine."
    assert [event["number"] for event in told] == [*range(1, len(told) + 1)]
    assert await get_events(chat_server, given["threadId"], "0") == (200, told)


async def test_a_run_that_cannot_be_told_is_ended_when_the_store_works_again(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow_run(chat_server) as (slow, given):
        fail_store(chat_server, monkeypatch, 8)  # and the end cannot be told either
        slow.may_end.set()
        while chat_server.state.runs._publishers:
            await asyncio.sleep(0.01)
        await chat_server.state.runs._send_heartbeat()
        status, told = await get_events(chat_server, given["threadId"], "0")
        assert (status, told[-1]["type"], told[-1]["code"]) == (200, "RUN_ERROR", "interrupted")


async def test_a_thread_that_is_deleted_ends_its_run(chat_server: ServerFixture) -> None:
    async with slow_run(chat_server) as (slow, given):
        await chat_server.store.delete_session(given["threadId"])
        slow.may_end.set()
        while chat_server.state.runs._publishers:
            await asyncio.sleep(0.01)
    assert await get_events(chat_server, given["threadId"]) == (404, "not_found")


async def test_naughty_strings_are_said_and_kept_as_they_are(chat_server: ServerFixture, suites: Path) -> None:
    naughty = json.loads((suites / "blns.json").read_text("utf-8"))
    parts = [{"type": "text", "text": one} for one in naughty if one]
    for at in range(0, len(parts), 250):
        given = run_input(user(parts[at : at + 250]))
        chat_server.fake.reply("".join(part["text"] for part in parts[at : at + 250]))
        told = await post_run(chat_server, given)
        said = [part["text"] for part in parts[at : at + 250]]
        asked, answered = await chat_server.store.read(given["threadId"])
        assert [block.text for block in asked.message.content if isinstance(block, TextBlock)] == said
        assert texts(told) == "".join(said)
        assert "".join(block.text for block in answered.message.content if isinstance(block, TextBlock)) == "".join(
            said
        )


async def test_only_plain_names_are_names_of_threads(chat_server: ServerFixture, suites: Path) -> None:
    naughty = json.loads((suites / "blns.json").read_text("utf-8"))
    for name in naughty:
        if re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", name):
            continue
        status, code = await post_error(chat_server, run_input("x", threadId=name))
        assert (status, code) in ((422, "invalid_id"), (422, "invalid_character"))
    assert chat_server.fake.received == []


async def test_what_was_erased_is_passed_over_when_a_client_still_has_it(keyed_server: ServerFixture) -> None:
    ann = await keyed_server.make_key("ann")
    keyed_server.fake.reply("Yes.")
    first = user("My name is Bob.")
    await post_run(keyed_server, run_input(first, threadId="t"), **ann)
    row, _ = await keyed_server.store.read("t")
    buried = row.message.replace(
        content=(TextBlock("[erased]"),), metadata=row.message.metadata.replace(extra={"erased": True})
    )
    _require_same_text(
        InputMessage(id=first["id"], role="user", parts=(TextPart(first["content"]),), wire=first), buried
    )
    keyed_server.fake.reply("Still.")
    told = await post_run(keyed_server, run_input(first, "And now? Write to me @home soon.", threadId="t"), **ann)
    assert texts(told) == "Still."
