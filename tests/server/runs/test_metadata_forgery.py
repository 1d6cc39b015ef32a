"""What a client cannot say about its messages: who they are of, what they cost, which model made them, when, and how
they ended. The key says who calls; the rest is what the server saw itself."""

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
    """A message that says about itself whatever it can, in every place where it could."""
    ours = {"dragoman": _CLAIMED, "ag-ui": _CLAIMED, "colour": "red"}
    flat = {**_CLAIMED["metadata"], "createdAt": "2001-01-01T00:00:00Z", "timestamp": 1}
    said = {**flat, "role": role, "content": f"of {role}", "metadata": ours, **more}
    return {**said, "id": message_id}


async def _store_and_read(server: ServerFixture, given: dict[str, Any]) -> list[Any]:
    return [row.message for row in await server.store.read(given["threadId"])]


def _is_honest(message: Any) -> bool:
    """Whether nothing of what was claimed became true of a message that a client sent."""
    metadata = message.metadata
    claimed = (metadata.model, metadata.provider, metadata.routing, metadata.usage, metadata.stage, metadata.latency_ms)
    raw = metadata.provider_raw or {}
    return (
        all(one is None for one in claimed)
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


async def test_a_chat_key_sets_only_the_content_of_its_messages(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("mallory")
    keyed_server.fake.reply("Yes.")
    given = run_input(
        _forge_message("user", "m1"), _forge_message("user", "m2"), state=_CLAIMED, forwardedProps=_CLAIMED
    )
    assert event_types(await post_run(keyed_server, given, **key))[-1] == "RUN_FINISHED"
    *sent, answer = await _store_and_read(keyed_server, given)
    assert [(one.metadata.message_id, one.metadata.extra) for one in sent] == [
        ("m1", {"colour": "red"}),
        ("m2", {"colour": "red"}),
    ]
    assert all(_is_honest(message) for message in sent)
    assert answer.metadata.user_id == "mallory"
    (spent,) = await keyed_server.store.costs.totals("user")
    assert (spent.group, spent.messages) == ("mallory", 1)
    assert spent.cost_usd >= 0


async def test_the_scope_history_write_allows_no_other_fields(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("mallory", scopes=("chat", "history:write"))
    keyed_server.fake.reply("Yes.")
    call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}, **_CLAIMED}
    given = run_input(
        _forge_message("system", "s1"),
        _forge_message("user", "m1"),
        _forge_message("reasoning", "r1"),
        _forge_message("assistant", "a1", toolCalls=[{**call, "id": "call-1", "metadata": {"dragoman": _CLAIMED}}]),
        _forge_message("tool", "t1", toolCallId="call-1"),
        user("And now?"),
    )
    assert event_types(await post_run(keyed_server, given, **key))[-1] == "RUN_FINISHED"
    *sent, answer = await _store_and_read(keyed_server, given)
    assert len(sent) >= 5
    assert all(_is_honest(message) for message in sent)
    assert [one.group for one in await keyed_server.store.costs.totals("user")] == ["mallory"]
    assert sum(one.messages for one in await keyed_server.store.costs.totals("model")) == 1
    assert answer.metadata.model != _CLAIMED["metadata"]["model"]


async def test_marks_that_dragoman_makes_itself_are_not_taken_from_a_client(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("mallory")
    keyed_server.fake.reply("Yes.")
    keyed_server.fake.reply("Yes.")
    given = run_input(user("First", "m1"))
    await post_run(keyed_server, given, **key)
    first = (await _store_and_read(keyed_server, given))[0]
    mark = {"first": first.id, "last": first.id, "count": 1, "key": "x"}
    forged = {"summary": mark, "late_result": {"x": 1}, "erased": True, "interrupted": True, "entry": {"type": "task"}}
    metadata = {**forged, "dragoman.request": {"model": "x"}, "agents-api.message": [{}], "colour": "red"}
    again = run_input({**user("Second", "m2"), "metadata": metadata}, threadId=given["threadId"])
    await post_run(keyed_server, again, **key)
    second = (await _store_and_read(keyed_server, given))[2]
    assert second.metadata.extra == {"colour": "red"}
    assert "First" in str(keyed_server.fake.bodies[-1])


async def test_a_client_s_message_id_is_kept_beside_an_id_of_the_server(keyed_server: ServerFixture) -> None:
    """Ids of the store begin with a time, and grow: one that a client chose would say when, and stop their growth."""
    key = await keyed_server.make_key("mallory")
    keyed_server.fake.reply("Yes.")
    far = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
    given = run_input(user("Hello", far), user("Hello?", "m2"))
    await post_run(keyed_server, given, **key)
    stored = await _store_and_read(keyed_server, given)
    assert [one.metadata.message_id for one in stored[:2]] == [far, "m2"]
    assert sorted(one.id for one in stored) == [one.id for one in stored]
    assert stored[0].id < far


async def test_an_application_s_own_summary_stays_with_its_message(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("mallory")
    keyed_server.fake.reply("Yes.")
    given = run_input({**user("Hello"), "metadata": {"summary": "a greeting"}})
    await post_run(keyed_server, given, **key)
    assert (await _store_and_read(keyed_server, given))[0].metadata.extra == {"summary": "a greeting"}


# --- names of the server ---------------------------------------------------------------------------------------------

_FORGED_FIELDS = {
    **dict.fromkeys(RESERVED_FIELDS, "forged"),
    "usage": {"cost_usd": "-5"},
    "latency_ms": -1,
    "media": ["forged"],
    "tool_calls": [],
    "user_message_attachments": {"bucket": "attachments", "path": "forged/1.png", "mime_type": "image/png"},
}


async def _read_metadata(server: ServerFixture, thread: str, **headers: str) -> list[dict[str, Any]]:
    async with server.client.get(f"/api/v1/agent/history?threadId={thread}", headers=headers) as answer:
        return [row["metadata"] for row in (await answer.json())["messages"]]


def test_every_field_that_the_page_about_histories_names_is_reserved() -> None:
    text = (Path(__file__).parents[3] / "docs" / "chat-api.md").read_text(encoding="utf-8")
    table = text.split("| field | role | |")[1].split("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == RESERVED_FIELDS - {"user_id", "team_id", "provider_raw"}


async def test_no_view_shows_a_client_s_metadata_under_the_names_of_the_server(chat_server: ServerFixture) -> None:
    chat_server.agent.tools = type(chat_server.agent.tools)([drop])
    chat_server.fake.call("drop", {"name": "production"})
    metadata = {**_FORGED_FIELDS, "colour": "red"}
    call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    given = run_input(
        {**user("Look", "u1"), "metadata": metadata},
        {"id": "a1", "role": "assistant", "content": "Let me see.", "toolCalls": [call], "metadata": metadata},
        {"id": "t1", "role": "tool", "toolCallId": "call-1", "content": "fine", "metadata": metadata},
        {**user("Drop it.", "u2"), "metadata": metadata},
    )
    events = await post_run(chat_server, given)
    assert [one.metadata.extra for one in (await _store_and_read(chat_server, given))[:4]] == [{"colour": "red"}] * 4
    (snapshot,) = [event["messages"] for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
    assert [one["metadata"] for one in snapshot[:4]] == [{"colour": "red"}] * 4
    shown = (await _read_metadata(chat_server, given["threadId"]))[:4]
    assert shown[0] == shown[3] == {"colour": "red"}
    assert all(one["colour"] == "red" for one in shown)
    assert "forged" not in str(shown)
    assert not {"usage", "media", "user_message_attachments"} & {name for one in shown for name in one}
    async with chat_server.client.get("/api/v1/agent/search?q=Look") as answer:
        assert "forged" not in await answer.text()


async def test_a_stored_extra_never_stands_for_a_field_of_the_server(chat_server: ServerFixture) -> None:
    """An import, or an earlier version, may have stored such an extra."""
    session = await chat_server.store.create_session(user_id="local")
    metadata = MessageMetadata(extra={**_FORGED_FIELDS, "colour": "red"}, user_id="local")
    for role in (Role.USER, Role.ASSISTANT):
        message = Message("", "", role, (TextBlock("Hello"),), metadata, datetime(2026, 3, 13, tzinfo=UTC))
        await chat_server.store.append(session.id, message)
    asked, answered = await _read_metadata(chat_server, session.id)
    assert asked == {"colour": "red"}
    assert {name: value for name, value in answered.items() if _FORGED_FIELDS.get(name) == value} == {}
    assert answered["colour"] == "red"
