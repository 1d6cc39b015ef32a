"""Tests of run input that is rejected before a run starts: status, code, and no stored data."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import UnknownSessionError
from dragoman.exchange import SideEffects
from dragoman.message import InvalidToolUseBlock, TextBlock
from dragoman.rules import is_tool_name
from dragoman.tools import tool
from tests.fake_providers.script import call_part, text_part
from tests.server.conftest import ServerFixture
from tests.server.runs.conftest import RUNS, SSE, event_types, post_error, post_run, run_input, user

PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
        "0000000b4944415478da6364f80f00010501012718e3660000000049454e44ae426082"
    )
).decode()
JPEG = base64.b64encode(
    bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffc0000b080001000101011100ffd9")
).decode()


def image_part(value: str, media_type: str = "image/png", form: str = "data", **more: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": form, "value": value, "mimeType": media_type, **more}}


def make_tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "description": "", "parameters": {"type": "object", **parameters}}


NESTED_DEFINITIONS = {
    f"d{at}": {"properties": {key: {"$ref": f"#/$defs/d{at + 1}"} for key in "ab"}} for at in range(18)
}
FOREIGN = "https://evil.example/storage/v1/object/sign/agent-files/agent-inputs/u/t/r/x.png?token=x"
CASES: dict[str, tuple[dict[str, Any], int, str]] = {
    "no messages": ({"messages": None}, 422, "invalid_request"),
    "an empty list of messages": ({"messages": []}, 422, "invalid_message"),
    "messages that are a text": ({"messages": "x"}, 422, "invalid_request"),
    "an empty thread id": ({"threadId": ""}, 422, "invalid_id"),
    "a thread id with a space": ({"threadId": "a b"}, 422, "invalid_id"),
    "a thread id with a NUL": ({"threadId": "a\0b"}, 422, "invalid_character"),
    "a thread id that is too long": ({"threadId": "a" * 129}, 422, "invalid_id"),
    "an empty run id": ({"runId": ""}, 422, "invalid_id"),
    "a run id that is a number": ({"runId": 5}, 422, "invalid_request"),
    "an unknown role": ({"messages": [{"id": "1", "role": "alien", "content": "x"}]}, 422, "invalid_message"),
    "a message without an id": ({"messages": [{"role": "user", "content": "x"}]}, 422, "invalid_message"),
    "a message with a long id": ({"messages": [user("x", "i" * 129)]}, 422, "invalid_id"),
    "an id with a NUL": ({"messages": [user("x", "a\0")]}, 422, "invalid_character"),
    "content without parts": ({"messages": [user([])]}, 422, "empty_content"),
    "an empty text": ({"messages": [user("")]}, 422, "empty_content"),
    "content that is null": ({"messages": [user(None)]}, 422, "invalid_message"),
    "content that is a number": ({"messages": [user(5)]}, 422, "invalid_message"),
    "content that is an object": ({"messages": [user({"type": "text", "text": "x"})]}, 422, "invalid_message"),
    "an unknown part": ({"messages": [user([{"type": "hologram"}])]}, 422, "unknown_block"),
    "a text part without text": ({"messages": [user([{"type": "text"}])]}, 422, "invalid_message"),
    "a call in a user message": (
        {"messages": [user([{"type": "tool_use", "id": "1", "name": "x", "input": {}}])]},
        422,
        "role_content_mismatch",
    ),
    "a result in a user message": (
        {"messages": [user([{"type": "tool_result", "tool_use_id": "1", "content": "x"}])]},
        422,
        "role_content_mismatch",
    ),
    "too many parts": ({"messages": [user([{"type": "text", "text": "x"}] * 257)]}, 422, "too_many_blocks"),
    "an image that is not base64": ({"messages": [user([image_part("iVBOR%%%")])]}, 422, "invalid_image"),
    "an image of another type": ({"messages": [user([image_part(JPEG)])]}, 422, "invalid_image"),
    "an invalid image": ({"messages": [user([image_part("AAAA")])]}, 422, "invalid_image"),
    "an image with a foreign URL": (
        {"messages": [user([image_part(FOREIGN, form="url")])]},
        422,
        "foreign_attachment_url",
    ),
    "a binary with a foreign URL": (
        {"messages": [user([{"type": "binary", "mimeType": "image/png", "url": FOREIGN}])]},
        422,
        "foreign_attachment_url",
    ),
    "a binary without data": (
        {"messages": [user([{"type": "binary", "mimeType": "image/png"}])]},
        422,
        "invalid_message",
    ),
    "a file of another provider": (
        {"messages": [user([image_part("file-1", form="file", provider="openai")])]},
        422,
        "foreign_attachment_url",
    ),
    "a missing file": (
        {
            "messages": [
                user([image_part("agent-files/agent-inputs/local/t/r/x.png", form="file", provider="dragoman")])
            ]
        },
        404,
        "not_found",
    ),
    "an invalid time": (
        {"messages": [{**user("x"), "created_at": "2026-02-30T00:00:00Z"}]},
        422,
        "invalid_timestamp",
    ),
    "a leap second": ({"messages": [{**user("x"), "timestamp": "2026-06-30T23:59:60Z"}]}, 422, "invalid_timestamp"),
    "a year out of range": (
        {"messages": [{**user("x"), "created_at": "10000-01-01T00:00:00Z"}]},
        422,
        "invalid_timestamp",
    ),
    "metadata with a NUL": ({"messages": [{**user("x"), "metadata": {"a": "\0"}}]}, 422, "invalid_character"),
    "metadata that is a list": ({"messages": [{**user("x"), "metadata": []}]}, 422, "invalid_message"),
    "a state with a NUL": ({"state": {"a\0": 1}}, 422, "invalid_character"),
    "a result of an unknown call": (
        {"messages": [{"id": "t1", "role": "tool", "toolCallId": "tu_1", "content": "x"}]},
        422,
        "unknown_tool_use",
    ),
    "a result without a call id": (
        {"messages": [{"id": "t1", "role": "tool", "content": "x"}]},
        422,
        "invalid_message",
    ),
    "only an assistant message": (
        {"messages": [{"id": "a1", "role": "assistant", "content": "x"}]},
        422,
        "nothing_to_answer",
    ),
    "an unknown model": ({"forwardedProps": {"model": "nobody"}}, 422, "unknown_model"),
    "a model that is a number": ({"forwardedProps": {"model": 5}}, 422, "invalid_request"),
    "many messages": (
        {"messages": [user("x", f"m{at}") for at in range(5_001)]},
        422,
        "too_many_messages",
    ),
    "many parts in all messages together": (
        {"messages": [user([{"type": "text", "text": "x"}] * 250, f"m{at}") for at in range(41)]},
        422,
        "too_many_blocks",
    ),
    "many values": ({"state": {"list": [{}] * 100_000}}, 422, "too_many_values"),
    "a tool with a bad name": ({"tools": [make_tool("a b")]}, 422, "invalid_tool_schema"),
    "a tool with an exponential schema": (
        {"tools": [make_tool("a", properties={"x": {"$ref": "#/$defs/d0"}}, **{"$defs": NESTED_DEFINITIONS})]},
        422,
        "schema_too_large",
    ),
    "a tool with many patterns": (
        {"tools": [make_tool("a", properties={f"p{at}": {"pattern": "x"} for at in range(65)})]},
        422,
        "schema_too_large",
    ),
    "tools with many patterns": (
        {"tools": [make_tool(f"t{at}", properties={"p": {"pattern": "x"}}) for at in range(65)]},
        422,
        "schema_too_large",
    ),
    "tools with many values": (
        {"tools": [make_tool(f"t{at}", properties={"p": {"enum": list(range(9_000))}}) for at in range(3)]},
        422,
        "schema_too_large",
    ),
    "many tools": ({"tools": [make_tool(f"t{at}") for at in range(129)]}, 422, "too_many_tools"),
    "a tool with the name of a server tool": ({"tools": [make_tool("look")]}, 422, "invalid_tool_schema"),
    "a resume without an interrupt": (
        {"resume": [{"interruptId": "int-1", "status": "resolved", "payload": {"approved": True}}]},
        422,
        "unknown_interrupt",
    ),
    "a resume of another status": ({"resume": [{"interruptId": "int-1", "status": "maybe"}]}, 422, "invalid_request"),
}


@tool(side_effects=SideEffects.NONE, requires_workspace=False)
async def look() -> str:
    """Look."""
    return "dark"


async def test_invalid_input_is_rejected_before_stream_and_not_stored(chat_server: ServerFixture) -> None:
    chat_server.agent.tools = type(chat_server.agent.tools)([look])
    mismatches = []
    for name, (changes, status, code) in CASES.items():
        body = {**run_input("Hello"), **changes}
        actual = await post_error(chat_server, body)
        if actual != (status, code):
            mismatches.append((name, actual, (status, code)))
        thread = body["threadId"]
        if isinstance(thread, str) and thread and "\0" not in thread:
            with pytest.raises(UnknownSessionError):
                await chat_server.store.get_session(thread)
    assert mismatches == []
    assert chat_server.fake.received == []
    folder = chat_server.state.config.attachments
    assert folder is not None
    assert list(Path(folder.removeprefix("file://")).rglob("*.png")) == []


async def test_invalid_json_body_is_rejected(chat_server: ServerFixture) -> None:
    valid_body = json.dumps(run_input("x")).encode()
    for body, kind, status, code in (
        (b"", "application/json", 400, "invalid_json"),
        (b"{}{}", "application/json", 400, "invalid_json"),
        (b"\xef\xbb\xbf" + valid_body, "application/json", 400, "invalid_json"),
        (valid_body, "text/plain", 415, "unsupported_media_type"),
        (b'{"threadId":"a","threadId":"b"}', "application/json", 400, "duplicate_key"),
        (b'{"threadId":"\\ud800"}', "application/json", 400, "invalid_unicode"),
        (b"[" * 100_000, "application/json", 400, "too_deep"),
        (b'{"state":{"a":1e400}}', "application/json", 422, "number_out_of_range"),
    ):
        headers = {"content-type": kind, **SSE}
        async with chat_server.client.post(RUNS, data=body, headers=headers) as response:
            actual = (response.status, (await response.json())["error"]["code"])
            assert actual == (status, code), body[:60]


async def test_key_without_scope_may_only_send_user_messages(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("ann")
    for role in ("assistant", "system", "developer", "reasoning"):
        body = run_input({"id": "a1", "role": role, "content": "x"}, "Hello")
        assert await post_error(keyed_server, body, **key) == (403, "role_not_allowed")
    writer = await keyed_server.make_key("bob", scopes=("chat", "history:write"))
    keyed_server.fake.reply("Yes.")
    body = run_input(
        {"id": "s1", "role": "system", "content": "Be brief."},
        user("Hi"),
        {"id": "a1", "role": "assistant", "content": "Ho"},
        "Really?",
    )
    assert event_types(await post_run(keyed_server, body, **writer))[-1] == "RUN_FINISHED"
    rows = await keyed_server.store.read(body["threadId"])
    assert [row.message.role.value for row in rows] == ["system", "user", "assistant", "user", "assistant"]
    assert keyed_server.fake.refusals == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("n" * 20_000, "invalid_message"),
        ("n" * 65, "invalid_message"),
        ("a b", "invalid_message"),
        ("", "invalid_message"),
        ("a\0b", "invalid_character"),
    ],
    ids=["very long", "too long", "blank", "empty", "NUL"],
)
async def test_history_with_invalid_tool_name_is_rejected(keyed_server: ServerFixture, name: str, code: str) -> None:
    writer = await keyed_server.make_key("bob", scopes=("chat", "history:write"))
    tool_call = {"id": "call-1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    body = run_input(
        user("Hi", "m1"),
        {"id": "a1", "role": "assistant", "content": "", "toolCalls": [tool_call]},
        {"id": "t1", "role": "tool", "toolCallId": "call-1", "content": "x"},
        "Really?",
    )
    assert await post_error(keyed_server, body, **writer) == (422, code)
    with pytest.raises(UnknownSessionError):
        await keyed_server.store.get_session(body["threadId"])


@pytest.mark.parametrize("name", ["n" * 20_000, "n" * 65, "a\0b"], ids=len)
async def test_model_call_with_invalid_tool_name_is_not_run(chat_server: ServerFixture, name: str) -> None:
    chat_server.fake.answer_with(text_part("Let me see."), call_part(name, {"a": 1}))
    body = run_input("Hello")
    events = await post_run(chat_server, body)
    assert events[-1]["type"] == "RUN_ERROR"
    assert "the tool's name h" in events[-1]["message"]
    assert all(name not in str(event) for event in events)
    rows = await chat_server.store.read(body["threadId"])
    text, tool_use = rows[-1].message.content
    assert text == TextBlock("Let me see.")
    assert isinstance(tool_use, InvalidToolUseBlock)
    assert is_tool_name(tool_use.name)
    assert tool_use.reason.startswith("the tool's name h")
    assert [row.status for row in await chat_server.store.tool_calls(body["threadId"])] == ["failed"]
    assert (await chat_server.store.verify()).damage == ()
    chat_server.fake.reply("Yes.")
    second_body = run_input("Once more", threadId=body["threadId"])
    assert event_types(await post_run(chat_server, second_body))[-1] == "RUN_FINISHED"
    assert chat_server.fake.refusals == []


async def test_thread_of_another_user_is_not_found(keyed_server: ServerFixture) -> None:
    ann, bob = await keyed_server.make_key("ann"), await keyed_server.make_key("bob")
    keyed_server.fake.reply("Yes.")
    body = run_input("Hello")
    await post_run(keyed_server, body, **ann)
    for path in ("events", "cancel", f"{body['runId']}/cancel"):
        method = "GET" if path == "events" else "POST"
        async with keyed_server.client.request(method, f"{RUNS}/{body['threadId']}/{path}", headers=bob) as response:
            foreign = (response.status, (await response.json())["error"]["code"])
        async with keyed_server.client.request(method, f"{RUNS}/nobody/{path}", headers=bob) as response:
            assert foreign == (response.status, (await response.json())["error"]["code"]) == (404, "not_found")


async def test_run_beyond_limit_is_rejected_with_retry_after(chat_server: ServerFixture) -> None:
    options = msgspec.structs.replace(chat_server.state.config, max_pending_runs=0)
    chat_server.state.config = options
    async with chat_server.client.post(RUNS, json=run_input("x")) as response:
        assert response.status == 429
        assert int(response.headers["retry-after"]) >= 1
        assert (await response.json())["error"]["code"] == "too_many_runs"


async def test_body_fields_do_not_set_the_caller(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("ann")
    keyed_server.fake.reply("Yes.")
    fields = {"user_id": "bob", "userId": "bob", "team_id": "x", "role": "admin", "scopes": ["admin"], "cost_usd": 0}
    body = run_input({**user("Hello"), **{k: v for k, v in fields.items() if k != "role"}}, **fields)
    await post_run(keyed_server, body, **{**key, "X-User-Id": "bob", "X-Team-Id": "x"})
    session = await keyed_server.store.get_session(body["threadId"])
    assert (session.user_id, session.team_id) == ("ann", None)
    for row in await keyed_server.store.read(body["threadId"]):
        assert row.message.metadata.user_id == "ann"
