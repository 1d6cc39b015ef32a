"""Settings of a conversation, which apply to its turns, and what fits into the window."""

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


async def test_settings_apply_to_every_turn_of_a_thread(tmp_path: Any) -> None:
    async with run_test_server(tmp_path, agent_options={"tools": [look, shout], "system_prompt": "Be kind."}) as server:
        settings = {"systemPrompt": "Answer in French.", "temperature": 0.25, "disabledTools": ["shout"]}
        first = run_input(user("Hello", "m1"), threadId="t", forwardedProps={"settings": settings})
        server.fake.reply("Bonjour.")
        await post_run(server, first)
        body = server.fake.bodies[-1]
        assert "Be kind.\n\nAnswer in French." in str(body["system"]).replace("\\n", "\n")
        assert body["temperature"] == 0.25
        assert [offered["name"] for offered in body["tools"]] == ["look"]

        stored = await read_json(server.client.get(f"{API}/threads/t/settings"))
        assert stored["settings"] == settings
        assert (stored["images"], stored["routing"]) == ("strict", None)
        assert [offered["name"] for offered in stored["tools"]] == ["look", "shout"]
        changed = {"settings": {"effort": "low"}, "images": "placeholder"}
        after = await read_json(server.client.put(f"{API}/threads/t/settings", json=changed))
        assert (after["settings"], after["images"]) == ({"effort": "low"}, "placeholder")
        server.fake.reply("Hello.")
        await post_run(server, run_input(user("Again", "m2"), threadId="t", runId="r2"))
        body = server.fake.bodies[-1]
        assert "French" not in str(body)
        assert "temperature" not in body
        assert len(body["tools"]) == 2
        fork = await read_json(server.client.post(f"{API}/threads/t/fork", json={}), 201)
        copied = await read_json(server.client.get(f"{API}/threads/{fork['id']}/settings"))
        assert copied["settings"] == {"effort": "low"}


async def test_a_thread_has_its_own_routing_policy(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Hello.")
    await post_run(chat_server, run_input(user("Hello", "m1"), threadId="t"))
    where = f"{API}/threads/t/settings"
    policy = "schema_version: 1\nglobal_default: anthropic:claude-sonnet-5-5\n"
    stored = await read_json(chat_server.client.put(where, json={"routing": policy}))
    assert stored["routing"] == {"schema_version": 1, "global_default": "anthropic:claude-sonnet-5-5"}
    wrong = await read_json(chat_server.client.put(where, json={"routing": "rules: nothing"}), 422)
    assert wrong["error"]["code"] == "invalid_policy"
    assert "schema_version" in wrong["error"]["message"]
    assert (await read_json(chat_server.client.put(where, json={})))["routing"] is None


async def test_a_person_has_defaults_that_nobody_else_sees(keyed_server: ServerFixture) -> None:
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


async def test_values_that_are_none_are_rejected(chat_server: ServerFixture) -> None:
    for wrong in ({"temperature": 3}, {"effort": "enormous"}, {"systemPrompt": "a\0b"}, {"unknown": 1}):
        await read_json(chat_server.client.put(f"{API}/settings", json={"settings": wrong}), 422)
        given = run_input(user("Hello", "m1"), threadId="t", forwardedProps={"settings": wrong})
        async with chat_server.client.post(f"{API}/runs", json=given) as answer:
            assert answer.status == 422


async def test_the_context_names_what_will_be_left_out(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Hello.")
    await post_run(chat_server, run_input(user("Hello", "m1"), threadId="t"))
    whole = await read_json(chat_server.client.get(f"{API}/threads/t/context"))
    assert (whole["omittedMessages"], whole["firstSeq"], whole["toolTokens"]) == (0, None, 0)
    assert 0 < whole["messageTokens"] < 50
    for number in range(2, 8):
        chat_server.fake.reply("word " * 300)
        asked = run_input(user("word " * 300, f"m{number}"), threadId="t", runId=f"r{number}")
        await post_run(chat_server, asked)
    small = await read_json(chat_server.client.get(f"{API}/threads/t/context?model=my:tiny"), 422)
    assert small["error"]["code"] == "unknown_model"
    used = await read_json(chat_server.client.get(f"{API}/threads/t/context?model=ollama:anything"))
    assert used["contextTokens"] < 20_000
    assert used["omittedMessages"] > 0
    assert used["firstSeq"] == used["omittedMessages"] + 1
    assert used["messageTokens"] + used["answerTokens"] <= used["contextTokens"]


async def test_a_thread_longer_than_the_window_is_continued_and_the_run_says_what_is_left_out(tmp_path: Any) -> None:
    rows = '[models."fake-anthropic:small"]\naliases = ["small"]\nmax_context_tokens = 2000\n'
    async with run_test_server(tmp_path, rows=rows) as server:
        for number in range(6):
            server.fake.reply("word " * 300)
            await post_run(server, run_input(user("word " * 300, f"m{number}"), threadId="t", runId=f"r{number}"))
        preview = await read_json(server.client.get(f"{API}/threads/t/preflight?model=small"))
        assert (preview["is_possible"], preview["fits"], preview["omitted_messages"]) == (True, False, 10)
        used = await read_json(server.client.get(f"{API}/threads/t/context?model=small"))
        assert used["omittedMessages"] == 10
        server.fake.reply("Short.")
        asked = run_input(user("And?", "m7"), threadId="t", runId="r7", forwardedProps={"model": "small"})
        events = await post_run(server, asked)
        (step,) = [event for event in events if event["type"] == "STEP_STARTED"]
        assert step["metadata"]["dragoman"]["left_out"] == 10
        assert "the oldest 10 messages are not sent" in str(step["metadata"]["dragoman"]["adjustments"])
        answer = step["metadata"]["dragoman"]["message_id"]
        why = await read_json(server.client.get(f"{API}/threads/t/messages/{answer}/why"))
        assert why["omittedMessages"] == 10
        too_long = run_input(user("word " * 3000, "m8"), threadId="t", runId="r8", forwardedProps={"model": "small"})
        rejected = await read_json(server.client.post(f"{API}/runs", json=too_long), 422)
        assert rejected["error"]["reason"] == "exceeds_context_window"
