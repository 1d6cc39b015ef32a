"""Tests of the explanation of an answer: route, receipt, events and the rebuilt call."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import post_run, run_input, user
from tests.server.test_threads import API, read_error_code, read_json

SECRET = "sk-ant-api03-" + "A1b2C3d4" * 10


async def ask(server: ServerFixture, text: str, thread: str = "t1", run: str = "r1") -> str:
    """Post a run and return the id of the answer."""
    await post_run(server, run_input(user(text), threadId=thread, runId=run))
    page = await read_json(server.client.get(f"{API}/threads/{thread}/messages?limit=1"))
    return str(page["messages"][0]["message"]["id"])


async def test_answer_has_route_receipt_and_events_of_turn(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Hello.")
    answer_id = await ask(chat_server, "hi")
    await chat_server.agent.bus.drain()
    why = await read_json(chat_server.client.get(f"{API}/threads/t1/messages/{answer_id}/why"))
    assert (why["seq"], why["model"], why["status"], why["gateway"]) == (2, "fake-anthropic:model", "complete", None)
    assert why["route"]["chosen_model"] == "fake-anthropic:model"
    assert why["receipt"]["usage"]["output_tokens"] > 0
    types = [event["type"] for event in why["events"]]
    assert {"turn.started", "route.decided", "llm.call_started", "llm.call_completed", "turn.completed"} <= {*types}
    (decided,) = [event["payload"] for event in why["events"] if event["type"] == "route.decided"]
    assert [step["verdict"] for step in decided["chain"]][-1] == "chose"


async def test_rebuilt_request_equals_sent_request(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("One.")
    await ask(chat_server, "first")
    chat_server.fake.reply("Two.")
    answer_id = await ask(chat_server, "second", run="r2")
    wire = await read_json(chat_server.client.get(f"{API}/threads/t1/messages/{answer_id}/wire"))
    assert wire["provider"]["dialect"] == "anthropic"
    assert wire["provider"]["request"] == chat_server.fake.bodies[-1]
    assert wire["provider"]["reply"]["content"] == [{"type": "text", "text": "Two."}]
    assert (wire["projection"]["losses"], wire["projection"]["leftOut"], wire["client"]) == ([], 0, None)
    assert not wire["isShortened"]


async def test_secrets_in_wire_are_redacted_and_media_shortened(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Noted.")
    answer_id = await ask(chat_server, f"my key is {SECRET} and " + "x" * 30_000)
    text = json.dumps(await read_json(chat_server.client.get(f"{API}/threads/t1/messages/{answer_id}/wire")))
    assert SECRET not in text
    assert len(text) < 30_000


async def test_question_has_no_explanation(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Hello.")
    await ask(chat_server, "hi")
    page = await read_json(chat_server.client.get(f"{API}/threads/t1/messages?limit=2"))
    question = page["messages"][0]["message"]["id"]
    for view in ("why", "wire"):
        path = f"{API}/threads/t1/messages/{question}/{view}"
        assert await read_error_code(chat_server.client.get(path), 422) == "not_an_answer"


async def test_gateway_answer_shows_both_sides_of_translation(tmp_path: Path) -> None:
    async with run_test_server(tmp_path) as server:
        server.fake.reply("Through the gateway.")
        body = {"model": "fake-anthropic:model", "messages": [{"role": "user", "content": "hi"}], "n": 1}
        async with server.client.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
        (thread,) = (await read_json(server.client.get(f"{API}/threads")))["threads"]
        page = await read_json(server.client.get(f"{API}/threads/{thread['id']}/messages"))
        path = f"{API}/threads/{thread['id']}/messages/{page['messages'][-1]['message']['id']}"
        why = await read_json(server.client.get(f"{path}/why"))
        wire = await read_json(server.client.get(f"{path}/wire"))
    assert why["gateway"]["dialect"] == "openai_chat"
    assert wire["client"]["request"] == body
    assert wire["client"]["reply"]["choices"][0]["message"]["content"] == "Through the gateway."
    assert wire["provider"]["reply"]["content"] == [{"type": "text", "text": "Through the gateway."}]
    assert wire["provider"]["request"] == server.fake.bodies[-1]
    assert wire["call"] == {"tools": [], "options": {"n": 1}}


# --- tools and options of gateway calls ------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "The path. " * 30}},
    "required": ["path"],
}
MESSAGES: Any = [{"role": "user", "content": "hi"}]
OPENAI: Any = {
    "model": "fake-anthropic:model",
    "messages": MESSAGES,
    "tools": [{"type": "function", "function": {"name": "read_file", "description": "Read.", "parameters": SCHEMA}}],
    "tool_choice": "auto",
    "temperature": 0.5,
    "max_tokens": 64,
    "metadata": {"purpose": "test"},
}
ANTHROPIC: Any = {
    "model": "fake-anthropic:model",
    "max_tokens": 64,
    "messages": MESSAGES,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "read_file", "description": "Read.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
    "metadata": {"user_id": "u"},
}


def send_with_sdk(base_url: str, dialect: str, body: Any) -> None:
    """Send a request with the official SDK of its API."""
    if dialect == "openai_chat":
        import openai

        with openai.OpenAI(api_key="none", base_url=f"{base_url}/v1", max_retries=0) as client:
            client.chat.completions.create(**body)
    else:
        import anthropic

        with anthropic.Anthropic(api_key="none", base_url=base_url, max_retries=0) as other:
            other.messages.create(**body)


async def read_wires(server: ServerFixture, headers: Any = None) -> list[Any]:
    """The wires of all answers of the only thread."""
    (thread,) = (await read_json(server.client.get(f"{API}/threads", headers=headers)))["threads"]
    path = f"{API}/threads/{thread['id']}/messages"
    page = await read_json(server.client.get(path, headers=headers))
    answers = [row["message"]["id"] for row in page["messages"] if row["message"]["role"] == "assistant"]
    return [await read_json(server.client.get(f"{path}/{answer}/wire", headers=headers)) for answer in answers]


async def count_parts(server: ServerFixture) -> int:
    def steps() -> Any:
        return (yield "SELECT count(*) FROM request_parts", ())

    return int((await server.store._read(steps()))[0][0])


@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic"])
async def test_gateway_call_shows_tools_and_options_of_client(chat_server: ServerFixture, dialect: str) -> None:
    await check_tools_and_options(chat_server, dialect)


async def test_gateway_call_shows_tools_and_options_on_postgres(postgres_chat_server: ServerFixture) -> None:
    await check_tools_and_options(postgres_chat_server, "openai_chat")


async def check_tools_and_options(server: ServerFixture, dialect: str) -> None:
    """Two calls of one conversation show their own tools and options, which are stored once."""
    first = OPENAI if dialect == "openai_chat" else ANTHROPIC
    answer: Any = "Yes." if dialect == "openai_chat" else [{"type": "text", "text": "Yes."}]
    turns = [*MESSAGES, {"role": "assistant", "content": answer}, {"role": "user", "content": "And?"}]
    bodies = [first, {**first, "messages": turns, "max_tokens": 32}]
    for body in bodies:
        server.fake.reply("Yes.")
        await asyncio.to_thread(send_with_sdk, server.base_url, dialect, body)
    wires = await read_wires(server)
    assert [wire["client"]["request"] for wire in wires] == bodies
    assert [wire["provider"]["request"] for wire in wires] == server.fake.bodies
    assert [wire["call"]["tools"] for wire in wires] == [["read_file"], ["read_file"]]
    assert [wire["call"]["options"]["max_output_tokens"] for wire in wires] == [64, 32]
    assert await count_parts(server) == 1, "the same tools of two calls are stored once"
    assert (await server.store.verify()).is_sound
    (session,) = await server.store.list_sessions()
    await server.store.delete_session(session.id)
    assert await count_parts(server) == 0


async def test_plain_gateway_call_shows_options_on_both_recorder_paths(chat_server: ServerFixture) -> None:
    for text in ("general", "fast"):
        body = {**OPENAI, "messages": [{"role": "user", "content": text}], "stop": ["END"]}
        plain = {name: value for name, value in body.items() if name not in ("tools", "tool_choice", "metadata")}
        chat_server.fake.reply("Yes.")
        async with chat_server.client.post("/v1/chat/completions", json=plain) as response:
            assert response.status == 200, await response.text()
        (wire,) = await read_wires(chat_server)
        assert wire["client"]["request"] == plain
        (session,) = await chat_server.store.list_sessions()
        await chat_server.store.delete_session(session.id)


async def test_stream_requested_by_path_is_shown_as_stream(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], "generationConfig": {"maxOutputTokens": 9}}
    path = "/v1beta/models/fake-anthropic:model:streamGenerateContent?alt=sse"
    async with chat_server.client.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        await response.read()
    (wire,) = await read_wires(chat_server)
    assert wire["provider"]["request"] == chat_server.fake.bodies[-1]
    assert wire["client"]["request"] == body


@pytest.mark.parametrize("scope", ["record:redacted", "record:off"])
async def test_tools_and_options_are_not_stored_for_a_key_without_recording(tmp_path: Path, scope: str) -> None:
    async with run_test_server(tmp_path, require_keys=True) as server:
        headers = await server.make_key("ann", scopes=("chat", scope))
        server.fake.reply("Yes.")
        async with server.client.post("/v1/chat/completions", json=OPENAI, headers=headers) as response:
            assert response.status == 200, await response.text()
        assert await count_parts(server) == 0
        sessions = await server.store.list_sessions()
        rows = [row for session in sessions for row in await server.store.read(session.id)]
        assert "read_file" not in str(rows)
        assert "purpose" not in str(rows)
        assert len(rows) == (2 if scope == "record:redacted" else 0)
        if rows:
            (wire,) = await read_wires(server, headers)
            assert wire["call"] is None
            assert wire["provider"]["request"].keys() == {"model", "messages"}, "an option that is not stored"


async def test_long_gateway_call_is_shown_in_full(tmp_path: Path) -> None:
    """The gateway forwards all messages. Only own turns omit messages that do not fit."""
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": "1 2 3 4 " * 38_000} for role in roles]
    async with run_test_server(tmp_path) as server:
        server.fake.reply("Read.")
        async with server.client.post(
            "/v1/messages", json={"model": "fake-anthropic:model", "max_tokens": 9, "messages": messages}
        ) as response:
            assert response.status == 200, await response.text()
            thread = response.headers["x-dragoman-session"]
        sent = server.fake.bodies[-1]["messages"]
        page = await read_json(server.client.get(f"{API}/threads/{thread}/messages"))
        path = f"{API}/threads/{thread}/messages/{page['messages'][-1]['message']['id']}"
        wire = await read_json(server.client.get(f"{path}/wire"))
    assert wire["projection"]["estimatedInputTokens"] > wire["projection"]["contextTokens"]
    assert wire["projection"]["leftOut"] == 0
    assert len(wire["provider"]["request"]["messages"]) == len(sent) == 3


async def test_system_prompt_of_server_is_hidden_from_users(tmp_path: Path) -> None:
    options = {"system_prompt": "The word is xyzzy."}
    async with run_test_server(tmp_path, require_keys=True, agent_options=options) as server:
        headers = await server.make_key("ann")
        server.fake.reply("Hello.")
        await post_run(server, run_input(user("hi"), threadId="t1", runId="r1"), **headers)
        page = await read_json(server.client.get(f"{API}/threads/t1/messages", headers=headers))
        path = f"{API}/threads/t1/messages/{page['messages'][-1]['message']['id']}/wire"
        text = json.dumps(await read_json(server.client.get(path, headers=headers)))
    assert "xyzzy" in json.dumps(server.fake.bodies)
    assert "xyzzy" not in text
    assert "(system prompt of the server)" in text
