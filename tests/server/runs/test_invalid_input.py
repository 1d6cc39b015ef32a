"""What is refused before a run begins, each with its status and its code, and that nothing is left of it."""

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


def tool_named(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "description": "", "parameters": {"type": "object", **parameters}}


DOUBLED = {f"d{at}": {"properties": {key: {"$ref": f"#/$defs/d{at + 1}"} for key in "ab"}} for at in range(18)}
FOREIGN = "https://evil.example/storage/v1/object/sign/agent-files/agent-inputs/u/t/r/x.png?token=x"
CASES: dict[str, tuple[dict[str, Any], int, str]] = {
    "no messages": ({"messages": None}, 422, "invalid_request"),
    "no message at all": ({"messages": []}, 422, "invalid_message"),
    "messages that are a text": ({"messages": "x"}, 422, "invalid_request"),
    "a thread without a name": ({"threadId": ""}, 422, "invalid_id"),
    "a thread with a space": ({"threadId": "a b"}, 422, "invalid_id"),
    "a thread with a NUL": ({"threadId": "a\0b"}, 422, "invalid_character"),
    "a thread with a long name": ({"threadId": "a" * 129}, 422, "invalid_id"),
    "a run without a name": ({"runId": ""}, 422, "invalid_id"),
    "a run that is a number": ({"runId": 5}, 422, "invalid_request"),
    "an unknown role": ({"messages": [{"id": "1", "role": "alien", "content": "x"}]}, 422, "invalid_message"),
    "a message without an id": ({"messages": [{"role": "user", "content": "x"}]}, 422, "invalid_message"),
    "a message with a long id": ({"messages": [user("x", "i" * 129)]}, 422, "invalid_id"),
    "an id with a NUL": ({"messages": [user("x", "a\0")]}, 422, "invalid_character"),
    "nothing said": ({"messages": [user([])]}, 422, "empty_content"),
    "an empty text": ({"messages": [user("")]}, 422, "empty_content"),
    "null said": ({"messages": [user(None)]}, 422, "invalid_message"),
    "a number said": ({"messages": [user(5)]}, 422, "invalid_message"),
    "an object said": ({"messages": [user({"type": "text", "text": "x"})]}, 422, "invalid_message"),
    "an unknown part": ({"messages": [user([{"type": "hologram"}])]}, 422, "unknown_block"),
    "a text without words": ({"messages": [user([{"type": "text"}])]}, 422, "invalid_message"),
    "a call said by a user": (
        {"messages": [user([{"type": "tool_use", "id": "1", "name": "x", "input": {}}])]},
        422,
        "role_content_mismatch",
    ),
    "a result said by a user": (
        {"messages": [user([{"type": "tool_result", "tool_use_id": "1", "content": "x"}])]},
        422,
        "role_content_mismatch",
    ),
    "too many parts": ({"messages": [user([{"type": "text", "text": "x"}] * 257)]}, 422, "too_many_blocks"),
    "a picture that is no base64": ({"messages": [user([image_part("iVBOR%%%")])]}, 422, "invalid_image"),
    "a picture of another type": ({"messages": [user([image_part(JPEG)])]}, 422, "invalid_image"),
    "a picture that is none": ({"messages": [user([image_part("AAAA")])]}, 422, "invalid_image"),
    "a picture elsewhere": ({"messages": [user([image_part(FOREIGN, form="url")])]}, 422, "foreign_attachment_url"),
    "a binary elsewhere": (
        {"messages": [user([{"type": "binary", "mimeType": "image/png", "url": FOREIGN}])]},
        422,
        "foreign_attachment_url",
    ),
    "a binary of nothing": (
        {"messages": [user([{"type": "binary", "mimeType": "image/png"}])]},
        422,
        "invalid_message",
    ),
    "a file of somebody else": (
        {"messages": [user([image_part("file-1", form="file", provider="openai")])]},
        422,
        "foreign_attachment_url",
    ),
    "a file that is not there": (
        {
            "messages": [
                user([image_part("agent-files/agent-inputs/local/t/r/x.png", form="file", provider="dragoman")])
            ]
        },
        404,
        "not_found",
    ),
    "a time that is none": (
        {"messages": [{**user("x"), "created_at": "2026-02-30T00:00:00Z"}]},
        422,
        "invalid_timestamp",
    ),
    "a leap second": ({"messages": [{**user("x"), "timestamp": "2026-06-30T23:59:60Z"}]}, 422, "invalid_timestamp"),
    "a year that is too far": (
        {"messages": [{**user("x"), "created_at": "10000-01-01T00:00:00Z"}]},
        422,
        "invalid_timestamp",
    ),
    "metadata with a NUL": ({"messages": [{**user("x"), "metadata": {"a": "\0"}}]}, 422, "invalid_character"),
    "metadata that is a list": ({"messages": [{**user("x"), "metadata": []}]}, 422, "invalid_message"),
    "a state with a NUL": ({"state": {"a\0": 1}}, 422, "invalid_character"),
    "an answer to no call": (
        {"messages": [{"id": "t1", "role": "tool", "toolCallId": "tu_1", "content": "x"}]},
        422,
        "unknown_tool_use",
    ),
    "an answer without a call": ({"messages": [{"id": "t1", "role": "tool", "content": "x"}]}, 422, "invalid_message"),
    "only what an assistant said": (
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
    "a tool with a bad name": ({"tools": [tool_named("a b")]}, 422, "invalid_tool_schema"),
    "a tool with a schema that grows without end": (
        {"tools": [tool_named("a", properties={"x": {"$ref": "#/$defs/d0"}}, **{"$defs": DOUBLED})]},
        422,
        "schema_too_large",
    ),
    "a tool with many patterns": (
        {"tools": [tool_named("a", properties={f"p{at}": {"pattern": "x"} for at in range(65)})]},
        422,
        "schema_too_large",
    ),
    "tools with many patterns": (
        {"tools": [tool_named(f"t{at}", properties={"p": {"pattern": "x"}}) for at in range(65)]},
        422,
        "schema_too_large",
    ),
    "tools with many values": (
        {"tools": [tool_named(f"t{at}", properties={"p": {"enum": list(range(9_000))}}) for at in range(3)]},
        422,
        "schema_too_large",
    ),
    "many tools": ({"tools": [tool_named(f"t{at}") for at in range(129)]}, 422, "too_many_tools"),
    "a tool of a name that the agent has": ({"tools": [tool_named("look")]}, 422, "invalid_tool_schema"),
    "a resume of nothing": (
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


async def test_bad_input_is_refused_before_a_stream_and_leaves_nothing(chat_server: ServerFixture) -> None:
    chat_server.agent.tools = type(chat_server.agent.tools)([look])
    wrong = []
    for name, (given, status, code) in CASES.items():
        body = {**run_input("Hello"), **given}
        found = await post_error(chat_server, body)
        if found != (status, code):
            wrong.append((name, found, (status, code)))
        thread = body["threadId"]
        if isinstance(thread, str) and thread and "\0" not in thread:
            with pytest.raises(UnknownSessionError):
                await chat_server.store.get_session(thread)
    assert wrong == []
    assert chat_server.fake.received == []
    folder = chat_server.state.config.attachments
    assert folder is not None
    assert list(Path(folder.removeprefix("file://")).rglob("*.png")) == []


async def test_bodies_that_are_no_json_are_refused(chat_server: ServerFixture) -> None:
    good = json.dumps(run_input("x")).encode()
    for body, kind, status, code in (
        (b"", "application/json", 400, "invalid_json"),
        (b"{}{}", "application/json", 400, "invalid_json"),
        (b"\xef\xbb\xbf" + good, "application/json", 400, "invalid_json"),
        (good, "text/plain", 415, "unsupported_media_type"),
        (b'{"threadId":"a","threadId":"b"}', "application/json", 400, "duplicate_key"),
        (b'{"threadId":"\\ud800"}', "application/json", 400, "invalid_unicode"),
        (b"[" * 100_000, "application/json", 400, "too_deep"),
        (b'{"state":{"a":1e400}}', "application/json", 422, "number_out_of_range"),
    ):
        headers = {"content-type": kind, **SSE}
        async with chat_server.client.post(RUNS, data=body, headers=headers) as answer:
            found = (answer.status, (await answer.json())["error"]["code"])
            assert found == (status, code), body[:60]


async def test_a_key_without_the_right_may_only_say_what_users_say(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("ann")
    for role in ("assistant", "system", "developer", "reasoning"):
        said = run_input({"id": "a1", "role": role, "content": "x"}, "Hello")
        assert await post_error(keyed_server, said, **key) == (403, "role_not_allowed")
    writer = await keyed_server.make_key("bob", scopes=("chat", "history:write"))
    keyed_server.fake.reply("Yes.")
    said = run_input(
        {"id": "s1", "role": "system", "content": "Be brief."},
        user("Hi"),
        {"id": "a1", "role": "assistant", "content": "Ho"},
        "Really?",
    )
    assert event_types(await post_run(keyed_server, said, **writer))[-1] == "RUN_FINISHED"
    rows = await keyed_server.store.read(said["threadId"])
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
async def test_a_history_calls_tools_by_names_that_tools_can_have(
    keyed_server: ServerFixture, name: str, code: str
) -> None:
    writer = await keyed_server.make_key("bob", scopes=("chat", "history:write"))
    made = {"id": "call-1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    said = run_input(
        user("Hi", "m1"),
        {"id": "a1", "role": "assistant", "content": "", "toolCalls": [made]},
        {"id": "t1", "role": "tool", "toolCallId": "call-1", "content": "x"},
        "Really?",
    )
    assert await post_error(keyed_server, said, **writer) == (422, code)
    with pytest.raises(UnknownSessionError):
        await keyed_server.store.get_session(said["threadId"])


@pytest.mark.parametrize("name", ["n" * 20_000, "n" * 65, "a\0b"], ids=len)
async def test_a_model_that_calls_a_name_no_tool_can_have_calls_nothing(chat_server: ServerFixture, name: str) -> None:
    chat_server.fake.answer_with(text_part("Let me see."), call_part(name, {"a": 1}))
    given = run_input("Hello")
    events = await post_run(chat_server, given)
    assert events[-1]["type"] == "RUN_ERROR"
    assert "the tool's name h" in events[-1]["message"]
    assert all(name not in str(event) for event in events)
    rows = await chat_server.store.read(given["threadId"])
    text, used = rows[-1].message.content
    assert text == TextBlock("Let me see.")
    assert isinstance(used, InvalidToolUseBlock)
    assert is_tool_name(used.name)
    assert used.reason.startswith("the tool's name h")
    assert [one.status for one in await chat_server.store.tool_calls(given["threadId"])] == ["failed"]
    assert (await chat_server.store.verify()).damage == ()
    chat_server.fake.reply("Yes.")
    again = run_input("Once more", threadId=given["threadId"])
    assert event_types(await post_run(chat_server, again))[-1] == "RUN_FINISHED"
    assert chat_server.fake.refusals == []


async def test_a_thread_of_somebody_else_is_not_there(keyed_server: ServerFixture) -> None:
    ann, bob = await keyed_server.make_key("ann"), await keyed_server.make_key("bob")
    keyed_server.fake.reply("Yes.")
    given = run_input("Hello")
    await post_run(keyed_server, given, **ann)
    for path in ("events", "cancel", f"{given['runId']}/cancel"):
        method = "GET" if path == "events" else "POST"
        async with keyed_server.client.request(method, f"{RUNS}/{given['threadId']}/{path}", headers=bob) as answer:
            foreign = (answer.status, (await answer.json())["error"]["code"])
        async with keyed_server.client.request(method, f"{RUNS}/nobody/{path}", headers=bob) as answer:
            assert foreign == (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")


async def test_one_run_too_many_is_put_off(chat_server: ServerFixture) -> None:
    options = msgspec.structs.replace(chat_server.state.config, max_pending_runs=0)
    chat_server.state.config = options
    async with chat_server.client.post(RUNS, json=run_input("x")) as answer:
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert (await answer.json())["error"]["code"] == "too_many_runs"


async def test_no_field_of_the_body_says_who_the_caller_is(keyed_server: ServerFixture) -> None:
    key = await keyed_server.make_key("ann")
    keyed_server.fake.reply("Yes.")
    fields = {"user_id": "bob", "userId": "bob", "team_id": "x", "role": "admin", "scopes": ["admin"], "cost_usd": 0}
    given = run_input({**user("Hello"), **{k: v for k, v in fields.items() if k != "role"}}, **fields)
    await post_run(keyed_server, given, **{**key, "X-User-Id": "bob", "X-Team-Id": "x"})
    session = await keyed_server.store.get_session(given["threadId"])
    assert (session.user_id, session.team_id) == ("ann", None)
    for row in await keyed_server.store.read(given["threadId"]):
        assert row.message.metadata.user_id == "ann"
