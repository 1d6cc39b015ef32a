"""Why an answer is what it is: route, receipt, trace, and the rebuilt call."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import post_run, run_input, user
from tests.server.test_threads import API, read_error_code, read_json

SECRET = "sk-ant-api03-" + "A1b2C3d4" * 10


async def ask(server: ServerFixture, text: str, thread: str = "t1", run: str = "r1") -> str:
    """Ask something; return the id of the answer."""
    await post_run(server, run_input(user(text), threadId=thread, runId=run))
    page = await read_json(server.client.get(f"{API}/threads/{thread}/messages?limit=1"))
    return str(page["messages"][0]["message"]["id"])


async def test_an_answer_has_its_route_its_receipt_and_the_events_of_its_turn(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Hello.")
    answer = await ask(chat_server, "hi")
    await chat_server.agent.bus.drain()
    why = await read_json(chat_server.client.get(f"{API}/threads/t1/messages/{answer}/why"))
    assert (why["seq"], why["model"], why["status"], why["gateway"]) == (2, "fake-anthropic:model", "complete", None)
    assert why["route"]["chosen_model"] == "fake-anthropic:model"
    assert why["receipt"]["usage"]["output_tokens"] > 0
    types = [event["type"] for event in why["events"]]
    assert {"turn.started", "route.decided", "llm.call_started", "llm.call_completed", "turn.completed"} <= {*types}
    (decided,) = [event["payload"] for event in why["events"] if event["type"] == "route.decided"]
    assert [step["verdict"] for step in decided["chain"]][-1] == "chose"


async def test_the_rebuilt_request_is_the_one_that_the_provider_received(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("One.")
    await ask(chat_server, "first")
    chat_server.fake.reply("Two.")
    answer = await ask(chat_server, "second", run="r2")
    wire = await read_json(chat_server.client.get(f"{API}/threads/t1/messages/{answer}/wire"))
    assert wire["provider"]["dialect"] == "anthropic"
    assert wire["provider"]["request"] == chat_server.fake.bodies[-1]
    assert wire["provider"]["reply"]["content"] == [{"type": "text", "text": "Two."}]
    assert (wire["projection"]["losses"], wire["projection"]["leftOut"], wire["client"]) == ([], 0, None)
    assert not wire["isShortened"]


async def test_secrets_in_a_wire_are_redacted_and_media_shortened(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Noted.")
    answer = await ask(chat_server, f"my key is {SECRET} and " + "x" * 30_000)
    text = json.dumps(await read_json(chat_server.client.get(f"{API}/threads/t1/messages/{answer}/wire")))
    assert SECRET not in text
    assert len(text) < 30_000


async def test_a_question_has_no_call(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Hello.")
    await ask(chat_server, "hi")
    page = await read_json(chat_server.client.get(f"{API}/threads/t1/messages?limit=2"))
    question = page["messages"][0]["message"]["id"]
    for view in ("why", "wire"):
        place = f"{API}/threads/t1/messages/{question}/{view}"
        assert await read_error_code(chat_server.client.get(place), 422) == "not_an_answer"


async def test_an_answer_of_the_gateway_shows_both_sides_of_its_translation(tmp_path: Path) -> None:
    async with run_test_server(tmp_path) as server:
        server.fake.reply("Through the gateway.")
        body = {"model": "fake-anthropic:model", "messages": [{"role": "user", "content": "hi"}], "n": 1}
        async with server.client.post("/v1/chat/completions", json=body) as answered:
            assert answered.status == 200, await answered.text()
        (thread,) = (await read_json(server.client.get(f"{API}/threads")))["threads"]
        page = await read_json(server.client.get(f"{API}/threads/{thread['id']}/messages"))
        place = f"{API}/threads/{thread['id']}/messages/{page['messages'][-1]['message']['id']}"
        why = await read_json(server.client.get(f"{place}/why"))
        wire = await read_json(server.client.get(f"{place}/wire"))
    assert why["gateway"]["dialect"] == "openai_chat"
    assert wire["client"]["request"]["messages"] == [{"role": "user", "content": "hi"}]
    assert wire["client"]["reply"]["choices"][0]["message"]["content"] == "Through the gateway."
    assert wire["provider"]["reply"]["content"] == [{"type": "text", "text": "Through the gateway."}]
    assert wire["provider"]["request"].keys() == {"model", "messages"}, "an option that was not sent"


async def test_a_long_call_of_the_gateway_is_shown_whole(tmp_path: Path) -> None:
    """The gateway sends what its caller sent; only own turns leave out messages that do not fit."""
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": "1 2 3 4 " * 38_000} for role in roles]
    async with run_test_server(tmp_path) as server:
        server.fake.reply("Read.")
        async with server.client.post(
            "/v1/messages", json={"model": "fake-anthropic:model", "max_tokens": 9, "messages": messages}
        ) as answered:
            assert answered.status == 200, await answered.text()
            thread = answered.headers["x-dragoman-session"]
        sent = server.fake.bodies[-1]["messages"]
        page = await read_json(server.client.get(f"{API}/threads/{thread}/messages"))
        place = f"{API}/threads/{thread}/messages/{page['messages'][-1]['message']['id']}"
        wire = await read_json(server.client.get(f"{place}/wire"))
    assert wire["projection"]["estimatedInputTokens"] > wire["projection"]["contextTokens"]
    assert wire["projection"]["leftOut"] == 0
    assert len(wire["provider"]["request"]["messages"]) == len(sent) == 3


async def test_the_system_prompt_of_the_server_is_hidden_from_its_users(tmp_path: Path) -> None:
    options = {"system_prompt": "The word is xyzzy."}
    async with run_test_server(tmp_path, require_keys=True, agent_options=options) as server:
        headers = await server.make_key("ann")
        server.fake.reply("Hello.")
        await post_run(server, run_input(user("hi"), threadId="t1", runId="r1"), **headers)
        page = await read_json(server.client.get(f"{API}/threads/t1/messages", headers=headers))
        place = f"{API}/threads/t1/messages/{page['messages'][-1]['message']['id']}/wire"
        text = json.dumps(await read_json(server.client.get(place, headers=headers)))
    assert "xyzzy" in json.dumps(server.fake.bodies)
    assert "xyzzy" not in text
    assert "(system prompt of the server)" in text
