"""Tests of forged metadata: a client cannot set owner, cost, model, time or status of its messages.

The key identifies the caller. All other values come from the server.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman.message import Message, MessageMetadata, MessageStatus, Role, TextBlock
from dragoman.server.chat.history import RESERVED_FIELDS
from tests.server.conftest import ServerFixture
from tests.server.runs.conftest import event_types, post_run, run_input, user
from tests.server.runs.test_runs import drop

_CLAIMED: dict[str, Any] = {
    "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "created_at": "2001-01-01T00:00:00.000000Z",
    "schema_version": 1,
    "metadata": {
        "user_id": "victim",
        "team_id": "victims",
        "model": "anthropic:claude-opus-4-7",
        "provider": "anthropic",
        "run_id": "run-of-another",
        "stage": "intent",
        "latency_ms": 1,
        "message_id": "other",
        "status": "partial",
        "critical": True,
        "provider_raw": {"dialect": "anthropic", "origin": {"provider": "anthropic"}},
        "extra": {"summary": {"first": "m1", "last": "m1", "count": 1}},
        "routing": {"mode": "manual", "chosen_model": "x", "reason": "y"},
        "user_message_attachments": {"bucket": "attachments", "path": "victim/1.png", "mime_type": "image/png"},
        "usage": {
            "input_tokens": 9223372036854775807,
            "output_tokens": 1,
            "cost_usd": "-1000000",
            "pricing_version": "x",
            "latency_ms": 1,
        },
    },
}


def _forge_message(role: str, message_id: str, **more: Any) -> dict[str, Any]:
    """Build a message with forged values in every possible place."""
    metadata = {"dragoman": _CLAIMED, "ag-ui": _CLAIMED, "colour": "red"}
    forged = {**_CLAIMED["metadata"], "createdAt": "2001-01-01T00:00:00Z", "timestamp": 1}
    fields = {**forged, "role": role, "content": f"of {role}", "metadata": metadata, **more}
    return {**fields, "id": message_id}


async def _read_messages(server: ServerFixture, body: dict[str, Any]) -> list[Any]:
    return [row.message for row in await server.store.read(body["threadId"])]


def _has_no_forged_value(message: Any) -> bool:
    """Return whether a stored message has none of the forged values."""
    metadata = message.metadata
    values = (metadata.model, metadata.provider, metadata.routing, metadata.usage, metadata.stage, metadata.latency_ms)
    raw = metadata.provider_raw or {}
    return (
        all(value is None for value in values)
        and (metadata.user_id, metadata.team_id) == ("mallory", None)
        and metadata.status is MessageStatus.COMPLETE
        and not metadata.critical
        and not metadata.attachments
        and metadata.run_id != "run-of-another"
        and message.created_at.year > 2001
        and message.id != _CLAIMED["id"]
        and "victim" not in str(raw)
        and "origin" not in raw
    )


async def test_chat_key_sets_only_content_of_its_messages(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("mallory")
    keyed_server.fake.reply("Yes.")
    body = run_input(
        _forge_message("user", "m1"), _forge_message("user", "m2"), state=_CLAIMED, forwardedProps=_CLAIMED
    )
    assert event_types(await post_run(keyed_server, body, **key))[-1] == "RUN_FINISHED"
    *sent, response = await _read_messages(keyed_server, body)
    assert [(message.metadata.message_id, message.metadata.extra) for message in sent] == [
        ("m1", {"colour": "red"}),
        ("m2", {"colour": "red"}),
    ]
    assert all(_has_no_forged_value(message) for message in sent)
    assert response.metadata.user_id == "mallory"
    (spent,) = await keyed_server.store.costs.totals("user")
    assert (spent.group, spent.messages) == ("mallory", 1)
    assert spent.cost_usd >= 0


async def test_history_write_scope_allows_no_other_fields(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("mallory", scopes=("chat", "history:write"))
    keyed_server.fake.reply("Yes.")
    call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}, **_CLAIMED}
    body = run_input(
        _forge_message("system", "s1"),
        _forge_message("user", "m1"),
        _forge_message("reasoning", "r1"),
        _forge_message("assistant", "a1", toolCalls=[{**call, "id": "call-1", "metadata": {"dragoman": _CLAIMED}}]),
        _forge_message("tool", "t1", toolCallId="call-1"),
        user("And now?"),
    )
    assert event_types(await post_run(keyed_server, body, **key))[-1] == "RUN_FINISHED"
    *sent, response = await _read_messages(keyed_server, body)
    assert len(sent) >= 5
    assert all(_has_no_forged_value(message) for message in sent)
    assert [message.group for message in await keyed_server.store.costs.totals("user")] == ["mallory"]
    assert sum(message.messages for message in await keyed_server.store.costs.totals("model")) == 1
    assert response.metadata.model != _CLAIMED["metadata"]["model"]


async def test_internal_marks_of_client_are_dropped(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("mallory")
    keyed_server.fake.reply("Yes.")
    keyed_server.fake.reply("Yes.")
    body = run_input(user("First", "m1"))
    await post_run(keyed_server, body, **key)
    first = (await _read_messages(keyed_server, body))[0]
    mark = {"first": first.id, "last": first.id, "count": 1, "key": "x"}
    forged = {"summary": mark, "late_result": {"x": 1}, "erased": True, "interrupted": True, "entry": {"type": "task"}}
    metadata = {**forged, "dragoman.request": {"model": "x"}, "agents-api.message": [{}], "colour": "red"}
    second_body = run_input({**user("Second", "m2"), "metadata": metadata}, threadId=body["threadId"])
    await post_run(keyed_server, second_body, **key)
    second = (await _read_messages(keyed_server, body))[2]
    assert second.metadata.extra == {"colour": "red"}
    assert "First" in str(keyed_server.fake.bodies[-1])


async def test_client_message_id_is_stored_beside_server_id(keyed_server: ServerFixture) -> None:
    """Ids of the store begin with a time and increase. An id of a client would break both."""
    key = await keyed_server.make_key("mallory")
    keyed_server.fake.reply("Yes.")
    largest_id = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
    body = run_input(user("Hello", largest_id), user("Hello?", "m2"))
    await post_run(keyed_server, body, **key)
    stored = await _read_messages(keyed_server, body)
    assert [message.metadata.message_id for message in stored[:2]] == [largest_id, "m2"]
    assert sorted(message.id for message in stored) == [message.id for message in stored]
    assert stored[0].id < largest_id


async def test_summary_of_application_is_stored_with_its_message(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("mallory")
    keyed_server.fake.reply("Yes.")
    body = run_input({**user("Hello"), "metadata": {"summary": "a greeting"}})
    await post_run(keyed_server, body, **key)
    assert (await _read_messages(keyed_server, body))[0].metadata.extra == {"summary": "a greeting"}


# --- reserved fields -------------------------------------------------------------------------------------------------

_FORGED_FIELDS = {
    **dict.fromkeys(RESERVED_FIELDS, "forged"),
    "usage": {"cost_usd": "-5"},
    "latency_ms": -1,
    "media": ["forged"],
    "tool_calls": [],
    "user_message_attachments": {"bucket": "attachments", "path": "forged/1.png", "mime_type": "image/png"},
}


async def _read_metadata(server: ServerFixture, thread: str, **headers: str) -> list[dict[str, Any]]:
    async with server.client.get(f"/api/v1/agent/history?threadId={thread}", headers=headers) as response:
        return [row["metadata"] for row in (await response.json())["messages"]]


def test_every_documented_history_field_is_reserved() -> None:
    text = (Path(__file__).parents[3] / "docs" / "chat-api.md").read_text(encoding="utf-8")
    table = text.split("| field | role | |")[1].split("\n\n")[0]
    documented = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert documented == RESERVED_FIELDS - {"user_id", "team_id", "provider_raw"}


async def test_no_view_shows_client_metadata_in_reserved_fields(chat_server: ServerFixture) -> None:
    chat_server.agent.tools = type(chat_server.agent.tools)([drop])
    chat_server.fake.call("drop", {"name": "production"})
    metadata = {**_FORGED_FIELDS, "colour": "red"}
    call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    body = run_input(
        {**user("Look", "u1"), "metadata": metadata},
        {"id": "a1", "role": "assistant", "content": "Let me see.", "toolCalls": [call], "metadata": metadata},
        {"id": "t1", "role": "tool", "toolCallId": "call-1", "content": "fine", "metadata": metadata},
        {**user("Drop it.", "u2"), "metadata": metadata},
    )
    events = await post_run(chat_server, body)
    assert [message.metadata.extra for message in (await _read_messages(chat_server, body))[:4]] == [
        {"colour": "red"}
    ] * 4
    (snapshot,) = [event["messages"] for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
    assert [message["metadata"] for message in snapshot[:4]] == [{"colour": "red"}] * 4
    listed = (await _read_metadata(chat_server, body["threadId"]))[:4]
    assert listed[0] == listed[3] == {"colour": "red"}
    assert all(message["colour"] == "red" for message in listed)
    assert "forged" not in str(listed)
    assert not {"usage", "media", "user_message_attachments"} & {name for message in listed for name in message}
    async with chat_server.client.get("/api/v1/agent/search?q=Look") as response:
        assert "forged" not in await response.text()


async def test_stored_extra_does_not_replace_server_field(chat_server: ServerFixture) -> None:
    """An import or an earlier version may have stored such an extra."""
    session = await chat_server.store.create_session(user_id="local")
    metadata = MessageMetadata(extra={**_FORGED_FIELDS, "colour": "red"}, user_id="local")
    for role in (Role.USER, Role.ASSISTANT):
        message = Message("", "", role, (TextBlock("Hello"),), metadata, datetime(2026, 3, 13, tzinfo=UTC))
        await chat_server.store.append(session.id, message)
    user_metadata, answer_metadata = await _read_metadata(chat_server, session.id)
    assert user_metadata == {"colour": "red"}
    assert {name: value for name, value in answer_metadata.items() if _FORGED_FIELDS.get(name) == value} == {}
    assert answer_metadata["colour"] == "red"
