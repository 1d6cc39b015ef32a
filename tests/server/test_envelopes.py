"""Tests of agent message envelopes over a real socket: both input shapes, client tools, and access."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.envelope import SCHEMA, TYPES
from dragoman.envelope import text as text_envelope
from dragoman.message import Role
from tests.server.conftest import ServerFixture
from tests.server.test_threads import read_error_code, read_json

URL = "/api/v1/envelopes"
ROW = {"role": "user", "content": "Is it raining?"}
WEATHER = {"name": "weather", "description": "The weather", "parameters": {"type": "object", "properties": {}}}


async def converse(server: ServerFixture, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Post a conversation and check that every returned message is an envelope."""
    headers = fields.pop("headers", None)
    result: dict[str, Any] = await read_json(
        server.client.post(URL, json={"messages": messages, **fields}, headers=headers)
    )
    for envelope in result["messages"]:
        assert (envelope["schema"], envelope["version"]) == (SCHEMA, 1)
        assert envelope["type"] in TYPES
        assert "dragoman" not in envelope["metadata"]
    return result


@pytest.mark.parametrize("question", [ROW, text_envelope("user", "Is it raining?")], ids=["row", "envelope"])
async def test_conversation_in_either_shape_returns_envelopes(
    chat_server: ServerFixture, question: dict[str, Any]
) -> None:
    chat_server.fake.reply("It is.")
    result = await converse(chat_server, [question])
    assert [(message["type"], message["role"], message["content"]) for message in result["messages"]] == [
        ("text", "user", "Is it raining?"),
        ("text", "assistant", "It is."),
    ]
    assert (result["final_content"], result["completed"], result["turn_count"]) == ("It is.", True, 1)
    assert result["usage"][0]["total_tokens"] > 0
    rows = await chat_server.store.read(result["session_id"])
    assert [row.message.role for row in rows] == [Role.USER, Role.ASSISTANT]
    assert rows[1].message.metadata.usage is not None
    reread = await read_json(chat_server.client.get(f"{URL}/{result['session_id']}"))
    assert reread == {"session_id": result["session_id"], "messages": result["messages"]}


async def test_conversation_continues_with_returned_messages(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("It is.")
    first = await converse(chat_server, [ROW], session_id="talk")
    chat_server.fake.reply("Tomorrow, too.")
    follow_up = {"role": "user", "content": "And tomorrow?"}
    second = await converse(chat_server, [*first["messages"], follow_up], session_id="talk")
    assert [message["content"] for message in second["messages"]] == [
        "Is it raining?",
        "It is.",
        "And tomorrow?",
        "Tomorrow, too.",
    ]
    assert len(await chat_server.store.read("talk")) == 4
    changed = [{**first["messages"][0], "content": "Is it snowing?"}, *second["messages"][1:], follow_up]
    response = chat_server.client.post(URL, json={"messages": changed, "session_id": "talk"})
    assert await read_error_code(response, 409) == "history_differs"
    assert len(await chat_server.store.read("talk")) == 4


async def test_client_tools_are_called_with_envelopes(chat_server: ServerFixture) -> None:
    chat_server.fake.call("weather", {"city": "Bern"})
    first = await converse(chat_server, [ROW], session_id="talk", tools=[WEATHER])
    assert not first["completed"]
    (call,) = first["last_tool_calls"]
    assert (call["name"], call["parameters"]) == ("weather", {"city": "Bern"})
    call_message = first["messages"][-1]
    assert (call_message["type"], call_message["payload"]["tool_name"]) == ("tool_call", "weather")
    tool_result = {
        "role": "user",
        "content": "Rain",
        "metadata": {"type": "tool_result", "tool_name": "weather", "success": True},
    }
    chat_server.fake.reply("It rains in Bern.")
    second = await converse(chat_server, [*first["messages"], tool_result], session_id="talk", tools=[WEATHER])
    assert (second["final_content"], second["completed"]) == ("It rains in Bern.", True)
    assert [message["type"] for message in second["messages"]] == ["text", "tool_call", "tool_result", "text"]
    assert chat_server.fake.refusals == []


async def test_client_cannot_set_identity_usage_or_time(chat_server: ServerFixture) -> None:
    usage = {"input_tokens": 9, "output_tokens": 9, "cost_usd": "-5", "pricing_version": "1", "latency_ms": 1}
    forged = {
        **text_envelope("user", "Is it raining?"),
        "created_at": "1999-01-01 00:00:00",
        "metadata": {"dragoman": {"metadata": {"usage": usage, "user_id": "bob", "model": "m"}}, "user_id": "bob"},
    }
    chat_server.fake.reply("It is.")
    result = await converse(chat_server, [forged])
    question = (await chat_server.store.read(result["session_id"]))[0].message
    assert (question.metadata.user_id, question.metadata.usage, question.metadata.model) == ("local", None, None)
    assert question.created_at.year > 1999


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], (422, "nothing_to_answer")),
        ([{"role": "assistant", "content": "Hello"}], (422, "nothing_to_answer")),
        ([{"schema": SCHEMA, "version": 99, "type": "text", "role": "user", "content": "x"}], (422, "invalid_message")),
        ([{"role": "user", "content": "x", "metadata": {"type": "delta"}}], (422, "invalid_message")),
        (["text"], (422, "invalid_request")),
    ],
)
async def test_invalid_conversation_is_rejected_and_not_stored(
    chat_server: ServerFixture, messages: list[Any], error: tuple[int, str]
) -> None:
    status, code = error
    assert await read_error_code(chat_server.client.post(URL, json={"messages": messages}), status) == code
    assert await chat_server.store.list_sessions() == []


async def test_rejected_turn_stores_no_imported_messages(chat_server: ServerFixture) -> None:
    history = [ROW, {"role": "assistant", "content": "It is."}, {"role": "user", "content": "And tomorrow?"}]
    for path, body in (
        (URL, {"messages": history, "model": "nowhere:model"}),
        ("/api/v1/agent/runs", {"threadId": "t", "runId": "r", "forwardedProps": {"model": "nowhere:model"}}),
    ):
        wire = [{"id": f"m{index}", **message} for index, message in enumerate(history)]
        async with chat_server.client.post(path, json={"messages": wire, **body}) as response:
            assert response.status in (404, 422), await response.text()
    assert await chat_server.store.list_sessions() == []


async def test_earlier_messages_require_import_scope(keyed_server: ServerFixture) -> None:
    history = [ROW, {"role": "assistant", "content": "It is."}, {"role": "user", "content": "And tomorrow?"}]
    chat_key = await keyed_server.make_key("ann", ("chat",))
    response = keyed_server.client.post(URL, json={"messages": history}, headers=chat_key)
    assert await read_error_code(response, 403) == "role_not_allowed"
    import_key = await keyed_server.make_key("ann", ("chat", "history:write"))
    keyed_server.fake.reply("Tomorrow, too.")
    result = await converse(keyed_server, history, headers=import_key)
    assert [message["content"] for message in result["messages"]][1:3] == ["It is.", "And tomorrow?"]


async def test_thread_of_another_user_is_not_found(keyed_server: ServerFixture) -> None:
    ann, bob = await keyed_server.make_key("ann", ("chat",)), await keyed_server.make_key("bob", ("chat",))
    keyed_server.fake.reply("It is.")
    await converse(keyed_server, [ROW], session_id="talk", headers=ann)
    assert await read_error_code(keyed_server.client.get(f"{URL}/talk", headers=bob), 404) == "not_found"
    keyed_server.fake.reply("For Bob.")
    result = await converse(keyed_server, [ROW], session_id="talk", headers=bob)  # Bob's own thread
    assert len(result["messages"]) == 2
    anns = await read_json(keyed_server.client.get(f"{URL}/talk", headers=ann))
    assert [message["content"] for message in anns["messages"]] == ["Is it raining?", "It is."]
