"""Tests of the settings of threads and users, and of the context window."""

from __future__ import annotations

from typing import Any

from dragoman.tools import tool
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import post_run, run_input, user
from tests.server.test_threads import API, read_json


@tool
def look(path: str) -> str:
    """Read a file."""
    return path


@tool
def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()


async def test_settings_apply_to_every_turn_of_thread(tmp_path: Any) -> None:
    async with run_test_server(tmp_path, agent_options={"tools": [look, shout], "system_prompt": "Be kind."}) as server:
        settings = {"systemPrompt": "Answer in French.", "temperature": 0.25, "disabledTools": ["shout"]}
        first = run_input(user("Hello", "m1"), threadId="t", forwardedProps={"settings": settings})
        server.fake.reply("Bonjour.")
        await post_run(server, first)
        body = server.fake.bodies[-1]
        assert "Be kind.\n\nAnswer in French." in str(body["system"]).replace("\\n", "\n")
        assert body["temperature"] == 0.25
        assert [tool["name"] for tool in body["tools"]] == ["look"]

        stored = await read_json(server.client.get(f"{API}/threads/t/settings"))
        assert stored["settings"] == settings
        assert (stored["images"], stored["routing"]) == ("strict", None)
        assert [tool["name"] for tool in stored["tools"]] == ["look", "shout"]
        changed = {"settings": {"effort": "low"}, "images": "placeholder"}
        updated = await read_json(server.client.put(f"{API}/threads/t/settings", json=changed))
        assert (updated["settings"], updated["images"]) == ({"effort": "low"}, "placeholder")
        server.fake.reply("Hello.")
        await post_run(server, run_input(user("Again", "m2"), threadId="t", runId="r2"))
        body = server.fake.bodies[-1]
        assert "French" not in str(body)
        assert "temperature" not in body
        assert len(body["tools"]) == 2
        fork = await read_json(server.client.post(f"{API}/threads/t/fork", json={}), 201)
        copied = await read_json(server.client.get(f"{API}/threads/{fork['id']}/settings"))
        assert copied["settings"] == {"effort": "low"}


async def test_thread_has_own_routing_policy(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Hello.")
    await post_run(chat_server, run_input(user("Hello", "m1"), threadId="t"))
    path = f"{API}/threads/t/settings"
    policy = "schema_version: 1\nglobal_default: anthropic:claude-sonnet-5-5\n"
    stored = await read_json(chat_server.client.put(path, json={"routing": policy}))
    assert stored["routing"] == {"schema_version": 1, "global_default": "anthropic:claude-sonnet-5-5"}
    error = await read_json(chat_server.client.put(path, json={"routing": "rules: nothing"}), 422)
    assert error["error"]["code"] == "invalid_policy"
    assert "schema_version" in error["error"]["message"]
    assert (await read_json(chat_server.client.put(path, json={})))["routing"] is None


async def test_default_settings_are_private_to_user(keyed_server: ServerFixture) -> None:
    ann, bob = await keyed_server.make_key("ann"), await keyed_server.make_key("bob")
    defaults = {"settings": {"systemPrompt": "Be brief.", "effort": "high"}}
    await read_json(keyed_server.client.put(f"{API}/settings", json=defaults, headers=ann))
    assert (await read_json(keyed_server.client.get(f"{API}/settings", headers=ann)))["settings"] == defaults[
        "settings"
    ]
    assert (await read_json(keyed_server.client.get(f"{API}/settings", headers=bob)))["settings"] == {}
    keyed_server.fake.reply("Brief.")
    await post_run(keyed_server, run_input(user("Hi", "m1"), forwardedProps={"settings": "default"}), **ann)
    assert "Be brief." in str(keyed_server.fake.bodies[-1]["system"])
    await keyed_server.store.erase_user("ann")
    assert await keyed_server.store.preferences.find("ann", None, "settings") is None


async def test_invalid_settings_are_rejected(chat_server: ServerFixture) -> None:
    for settings in ({"temperature": 3}, {"effort": "enormous"}, {"systemPrompt": "a\0b"}, {"unknown": 1}):
        await read_json(chat_server.client.put(f"{API}/settings", json={"settings": settings}), 422)
        body = run_input(user("Hello", "m1"), threadId="t", forwardedProps={"settings": settings})
        async with chat_server.client.post(f"{API}/runs", json=body) as response:
            assert response.status == 422


async def test_context_reports_omitted_messages(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Hello.")
    await post_run(chat_server, run_input(user("Hello", "m1"), threadId="t"))
    context = await read_json(chat_server.client.get(f"{API}/threads/t/context"))
    assert (context["omittedMessages"], context["firstSeq"], context["toolTokens"]) == (0, None, 0)
    assert 0 < context["messageTokens"] < 50
    for number in range(2, 8):
        chat_server.fake.reply("word " * 300)
        body = run_input(user("word " * 300, f"m{number}"), threadId="t", runId=f"r{number}")
        await post_run(chat_server, body)
    error = await read_json(chat_server.client.get(f"{API}/threads/t/context?model=my:tiny"), 422)
    assert error["error"]["code"] == "unknown_model"
    limited = await read_json(chat_server.client.get(f"{API}/threads/t/context?model=ollama:anything"))
    assert limited["contextTokens"] < 20_000
    assert limited["omittedMessages"] > 0
    assert limited["firstSeq"] == limited["omittedMessages"] + 1
    assert limited["messageTokens"] + limited["answerTokens"] <= limited["contextTokens"]


async def test_thread_beyond_window_continues_and_reports_omissions(tmp_path: Any) -> None:
    rows = '[models."fake-anthropic:small"]\naliases = ["small"]\nmax_context_tokens = 2000\n'
    async with run_test_server(tmp_path, rows=rows) as server:
        for number in range(6):
            server.fake.reply("word " * 300)
            await post_run(server, run_input(user("word " * 300, f"m{number}"), threadId="t", runId=f"r{number}"))
        preview = await read_json(server.client.get(f"{API}/threads/t/preflight?model=small"))
        assert (preview["is_possible"], preview["fits"], preview["omitted_messages"]) == (True, False, 10)
        context = await read_json(server.client.get(f"{API}/threads/t/context?model=small"))
        assert context["omittedMessages"] == 10
        server.fake.reply("Short.")
        body = run_input(user("And?", "m7"), threadId="t", runId="r7", forwardedProps={"model": "small"})
        events = await post_run(server, body)
        (step,) = [event for event in events if event["type"] == "STEP_STARTED"]
        assert step["metadata"]["dragoman"]["left_out"] == 10
        assert "the oldest 10 messages are not sent" in str(step["metadata"]["dragoman"]["adjustments"])
        message_id = step["metadata"]["dragoman"]["message_id"]
        why = await read_json(server.client.get(f"{API}/threads/t/messages/{message_id}/why"))
        assert why["omittedMessages"] == 10
        too_long = run_input(user("word " * 3000, "m8"), threadId="t", runId="r8", forwardedProps={"model": "small"})
        rejected = await read_json(server.client.post(f"{API}/runs", json=too_long), 422)
        assert rejected["error"]["reason"] == "exceeds_context_window"
