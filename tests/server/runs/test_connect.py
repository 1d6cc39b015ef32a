"""Tests of connecting to a thread: its messages, its state and its active run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import (
    CLIENTS,
    JUDGES,
    event_types,
    install_client,
    parse_events,
    post_run,
    run_input,
    run_node,
    user,
)
from tests.server.runs.test_agui_client import JPEG, upload_file
from tests.server.runs.test_runs import drop, slow_run

CONNECT = "/api/v1/agent/connect"
VERSIONS = ["1.0", None]


def connect_body(thread_id: str, version: str | None = "1.0") -> dict[str, Any]:
    return {"threadId": thread_id, "runId": "connect-1", "messages": [], "protocolVersion": version}


async def connect(server: ServerFixture, thread_id: str, version: str | None = "1.0", **headers: str) -> Any:
    async with server.client.post(CONNECT, json=connect_body(thread_id, version), headers=headers) as response:
        assert response.status == 200, await response.text()
        return parse_events(await response.text())


@pytest.mark.parametrize("version", VERSIONS)
async def test_thread_is_restored_with_messages_and_state(chat_server: ServerFixture, version: str | None) -> None:
    chat_server.fake.reply("One.", thinking="Hm.")
    request = run_input("First?", state={"count": 1})
    await post_run(chat_server, request)
    events = await connect(chat_server, request["threadId"], version)
    assert event_types(events) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    roles = [(message["role"], message["content"]) for message in events[1]["messages"]]
    assert roles == [("user", "First?"), ("reasoning", "Hm."), ("assistant", "One.")]
    assert events[2]["snapshot"] == {"count": 1}
    assert events[0]["runId"] == events[3]["runId"] == "connect-1"
    stored = await chat_server.store.runs.latest(request["threadId"])
    assert stored is not None
    assert {event["number"] for event in events} == {stored.last_number}  # a client may continue after it


async def test_missing_thread_has_empty_stream(keyed_server: ServerFixture) -> None:
    ann, bob = await keyed_server.make_key("ann"), await keyed_server.make_key("bob")
    keyed_server.fake.reply("One.")
    request = run_input("First?")
    await post_run(keyed_server, request, **ann)
    assert len(await connect(keyed_server, request["threadId"], **ann)) == 3
    assert await connect(keyed_server, request["threadId"], **bob) == []
    assert await connect(keyed_server, "nothing", **ann) == []


async def test_active_run_continues_after_earlier_messages(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("One.")
    first = run_input("First?")
    await post_run(chat_server, first)
    async with slow_run(chat_server, threadId=first["threadId"]) as (slow, request):
        response = await chat_server.client.post(CONNECT, json=connect_body(first["threadId"]))
        slow.may_end.set()
        events = parse_events(await response.text())
    kinds = event_types(events)
    assert kinds[:3] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STEP_STARTED"]
    assert (kinds[-1], events[0]["runId"]) == ("RUN_FINISHED", request["runId"])
    contents = [message["content"] for message in events[1]["messages"]]
    assert contents == ["First?", "One.", "Wait."]


@pytest.mark.parametrize("version", VERSIONS)
async def test_open_interrupt_is_the_outcome(chat_server: ServerFixture, version: str | None) -> None:
    chat_server.agent.tools = type(chat_server.agent.tools)([drop])
    chat_server.fake.call("drop", {"name": "users"})
    request = run_input("Drop it.", protocolVersion=version)
    interrupted = await post_run(chat_server, request)
    events = await connect(chat_server, request["threadId"], version)
    assert events[-1]["outcome"] == interrupted[-1]["outcome"]


async def test_call_abandoned_by_later_question_is_closed(chat_server: ServerFixture) -> None:
    tools = [{"name": "look", "description": "Look", "parameters": {"type": "object", "properties": {}}}]
    request = run_input("Look.", tools=tools)
    for number in range(2):
        chat_server.fake.call("look", {})
        await post_run(chat_server, {**request, "runId": f"run-{number}", "messages": [user("Look.")]})
    messages = (await connect(chat_server, request["threadId"]))[1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert messages[2]["error"] == "The call was cancelled by a later message."
    async with chat_server.client.get(f"/api/v1/agent/chat/{request['threadId']}/messages") as response:
        chat = (await response.json())["messages"]
    assert [chat[at]["parts"][-1]["state"] for at in (1, 3)] == ["output-error", "input-available"]


async def test_incomplete_answer_has_its_status(chat_server: ServerFixture) -> None:
    async with slow_run(chat_server) as (_, request):
        async with chat_server.client.post(f"/api/v1/agent/runs/{request['threadId']}/cancel") as response:
            assert response.status == 202
        while (run := await chat_server.store.runs.latest(request["threadId"])) is not None and run.is_running:
            await asyncio.sleep(0.01)
    events = await connect(chat_server, request["threadId"])
    rows = await chat_server.store.read(request["threadId"])
    statuses = [str(row.message.metadata.status) for row in rows if row.message.role == "assistant"]
    restored = [message for message in events[1]["messages"] if message["role"] == "assistant"]
    assert [message.get("metadata", {}).get("status", "complete") for message in restored] == statuses


async def test_attached_file_has_url(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("A dot.")
    url = await upload_file(chat_server)
    part = {"type": "image", "source": {"type": "url", "value": url, "mimeType": "image/jpeg"}}
    request = run_input(user([{"type": "text", "text": "What is it?"}, part]))
    await post_run(chat_server, request)
    events = await connect(chat_server, request["threadId"])
    source = events[1]["messages"][0]["content"][1]["source"]
    assert (source["type"], source["mimeType"]) == ("url", "image/jpeg")
    async with chat_server.client.get(source["value"]) as response:
        assert await response.read() == JPEG


async def test_long_thread_is_restored_from_a_question(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = run_input("First?")
    for number in range(4):
        chat_server.fake.reply(f"Answer {number}.")
        await post_run(chat_server, run_input(f"Question {number}?", threadId=request["threadId"]))
    monkeypatch.setattr("dragoman.server.runs.agui_snapshot.MAX_MESSAGES", 3)
    events = await connect(chat_server, request["threadId"])
    assert [message["content"] for message in events[1]["messages"]] == ["Question 3?", "Answer 3."]
    monkeypatch.setattr("dragoman.server.runs.agui_snapshot.MAX_MESSAGES", 100)
    monkeypatch.setattr("dragoman.server.runs.agui_snapshot.MAX_BYTES", 400)
    events = await connect(chat_server, request["threadId"])
    assert [message["content"] for message in events[1]["messages"]][:1] == ["Question 2?"]


@pytest.mark.parametrize("version", CLIENTS)
async def test_published_client_restores_thread_after_restart(tmp_path: Path, version: str) -> None:
    request = run_input("First?", threadId="thread-to-restore", state={"count": 1})
    async with run_test_server(tmp_path) as server:
        server.fake.reply("One.")
        await post_run(server, request)
    async with run_test_server(tmp_path) as server:
        server.fake.reply("Two.")
        base = f"{server.base_url}/api/v1/agent"
        status, output = await run_node(
            install_client(CLIENTS[version]), JUDGES / "connect.mjs", base, request["threadId"]
        )
        assert status == 0, output
        result = json.loads(output)
        assert (result["warnings"], result["state"]) == ([], {"count": 1})
        assert [message["content"] for message in result["restored"]] == ["First?", "One."]
        assert [message["content"] for message in result["messages"]] == ["First?", "One.", "And now?", "Two."]
        assert len(await server.store.read(request["threadId"])) == 4


# --- runtime of CopilotKit -------------------------------------------------------------------------------------------

RUNTIME = "/api/v1/copilotkit"


async def test_copilotkit_finds_one_agent(chat_server: ServerFixture) -> None:
    async with chat_server.client.get(f"{RUNTIME}/info") as response:
        info = await response.json()
    assert (list(info["agents"]), info["mode"]) == (["default"], "sse")


async def test_copilotkit_runs_connects_and_stops(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("One.")
    request, agent = run_input("First?", protocolVersion=None), f"{RUNTIME}/agent/default"
    async with chat_server.client.post(
        f"{agent}/run", json=request, headers={"accept": "text/event-stream"}
    ) as response:
        assert event_types(parse_events(await response.text()))[-1] == "RUN_FINISHED"
    async with chat_server.client.post(f"{agent}/connect", json=connect_body(request["threadId"])) as response:
        assert len(parse_events(await response.text())) == 3
    for body in (b"", json.dumps({"runId": request["runId"]}).encode()):
        async with chat_server.client.post(f"{agent}/stop/{request['threadId']}", data=body) as response:
            assert await response.json() == {"stopped": False}
    async with (
        slow_run(chat_server) as (_, slow),
        chat_server.client.post(f"{agent}/stop/{slow['threadId']}") as response,
    ):
        assert await response.json() == {"stopped": True}


async def test_copilotkit_receives_404_for_other_agents_and_threads(chat_server: ServerFixture) -> None:
    for path in ("agent/other/run", "agent/other/connect", "agent/other/stop/t", "agent/default/stop/nothing"):
        async with chat_server.client.post(f"{RUNTIME}/{path}", json=connect_body("t")) as response:
            assert response.status == 404
