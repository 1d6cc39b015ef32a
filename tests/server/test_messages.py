"""Tests of models, preflights, messages as wires, costs and exports over a real socket."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman import decode, transcripts
from dragoman.errors import FormatError
from dragoman.formats import readable
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.pricing import prices_from_mapping
from dragoman.store.operation import from_micros
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import post_run, run_input
from tests.server.test_threads import API, SOME_DAY, make_message, make_thread, read_error_code, read_json
from tests.store.messages import create_usage

SECRET = "signature-of-the-provider"
CALL = ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAV", "look", {"at": "sky"})


def build_message(role: Role, *content: Any, **metadata: Any) -> Message:
    return Message("", "", role, content, MessageMetadata(**metadata), from_micros(SOME_DAY))


async def make_conversation(server: ServerFixture) -> str:
    """Create a thread with an image, thinking, a tool call and its result."""
    image = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
    raw = {"dialect": "anthropic", "secret": SECRET}
    return await make_thread(
        server,
        build_message(Role.USER, TextBlock("look"), image, message_id="msg-1"),
        build_message(Role.ASSISTANT, ThinkingBlock("hmm", SECRET, raw), TextBlock("I look."), CALL, provider_raw=raw),
        build_message(Role.TOOL, ToolResultBlock(CALL.id, (TextBlock("blue"),)), parent_tool_use_id=CALL.id),
        build_message(Role.ASSISTANT, TextBlock("It is *blue* <script>alert(1)</script>.")),
        title="Sky",
    )


async def test_models_have_capabilities_and_a_default(chat_server: ServerFixture) -> None:
    found = await read_json(chat_server.client.get(f"{API}/models"))
    assert found["default"] == "fake-anthropic:model"
    first, *others = found["models"]
    assert first["isDefault"]
    assert not any(row["isDefault"] for row in others)
    assert (first["id"], first["aliases"], first["isConfigured"]) == ("fake-anthropic:model", ["anthropic"], True)
    assert (first["contextTokens"], first["images"], first["tools"]) == (200_000, True, True)
    known = {row["id"]: row for row in found["models"]}
    assert known["fake-anthropic:blind"]["images"] is False
    priced = next(row for row in others if row["inputUsd"] not in (None, "0"))
    assert Decimal(priced["outputUsd"]) > 0
    ready = [row["isConfigured"] for row in found["models"]]
    assert ready == sorted(ready, reverse=True)


async def test_preflight_lists_losses_of_swap_and_changes_nothing(chat_server: ServerFixture) -> None:
    name = await make_conversation(chat_server)
    path = f"{API}/threads/{name}/preflight"
    blind_plan = await read_json(chat_server.client.get(f"{path}?model=blind-anthropic"))
    assert not blind_plan["is_possible"]
    assert "contains images" in blind_plan["blockers"][0]
    outcomes = {(row["block_type"], row["outcome"]) for row in blind_plan["blocks"]}
    assert ("image", "left_out") in outcomes
    placeholder_plan = await read_json(chat_server.client.get(f"{path}?model=blind-anthropic&policy=placeholder"))
    assert placeholder_plan["is_possible"]
    assert {("image", "projected")} <= {(row["block_type"], row["outcome"]) for row in placeholder_plan["blocks"]}
    vision_plan = await read_json(chat_server.client.get(f"{path}?model=anthropic"))
    assert (vision_plan["is_possible"], vision_plan["fits"], vision_plan["model"]) == (
        True,
        True,
        "fake-anthropic:model",
    )
    assert vision_plan["kept"] + len(vision_plan["blocks"]) == 8
    assert (await chat_server.store.get_session(name)).active_model is None


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "missing_parameter"),
        ("model=nobody:nothing", "unknown_model"),
        ("model=anthropic&policy=guess", "invalid_parameter"),
        ("model=anthropic&model=x", "duplicate_parameter"),
    ],
)
async def test_invalid_preflight_is_rejected(chat_server: ServerFixture, query: str, code: str) -> None:
    name = await make_conversation(chat_server)
    assert await read_error_code(chat_server.client.get(f"{API}/threads/{name}/preflight?{query}"), 422) == code


async def test_messages_have_every_block_and_no_provider_data(chat_server: ServerFixture) -> None:
    name = await make_conversation(chat_server)
    found = await read_json(chat_server.client.get(f"{API}/threads/{name}/messages?limit=3"))
    assert ([row["seq"] for row in found["messages"]], found["hasMore"], found["limit"]) == ([2, 3, 4], True, 3)
    kinds = [block["type"] for block in found["messages"][0]["message"]["content"]]
    assert kinds == ["thinking", "text", "tool_use"]
    assert "provider_raw" not in str(found)
    first = await read_json(chat_server.client.get(f"{API}/threads/{name}/messages?beforeSeq=2"))
    assert first["messages"][0]["message"]["content"][1]["source"]["data"] == "iVBORw0KGgo="
    later = await read_json(chat_server.client.get(f"{API}/threads/{name}/messages?afterSeq=3"))
    assert [row["seq"] for row in later["messages"]] == [4]


async def test_large_image_is_listed_without_its_data(chat_server: ServerFixture) -> None:
    large = ImageBlock(ImageSource("base64", "A" * 400_000), "image/png")
    name = await make_thread(chat_server, build_message(Role.USER, large))
    (row,) = (await read_json(chat_server.client.get(f"{API}/threads/{name}/messages")))["messages"]
    assert row["message"]["content"] == [
        {"type": "image", "source": {"kind": "base64", "data": ""}, "media_type": "image/png"}
    ]


async def test_message_is_shown_in_every_format(chat_server: ServerFixture) -> None:
    name = await make_conversation(chat_server)
    formats = (await read_json(chat_server.client.get(f"{API}/formats")))["formats"]
    assert tuple(formats) == readable()
    ids = [row.message.metadata.message_id or row.message.id for row in await chat_server.store.read(name)]
    for format_name in formats:
        for message_id in ids:
            shown = await read_json(
                chat_server.client.get(f"{API}/threads/{name}/messages/{message_id}/as/{format_name}")
            )
            assert (shown["format"], shown["threadId"], shown["messageId"]) == (format_name, name, message_id)
            assert shown["wire"] not in (None, "", {})
            assert all(set(loss) == {"block_type", "reason"} for loss in shown["losses"])
    anthropic = await read_json(chat_server.client.get(f"{API}/threads/{name}/messages/msg-1/as/anthropic"))
    assert anthropic["wire"]["messages"][0]["content"][1]["source"]["media_type"] == "image/png"
    chat = await read_json(chat_server.client.get(f"{API}/threads/{name}/messages/{ids[1]}/as/openai-chat"))
    assert chat["format"] == "openai_chat"
    assert chat["wire"]["messages"][0]["tool_calls"][0]["function"]["name"] == "look"
    assert "thinking" in {loss["block_type"] for loss in chat["losses"]}
    canonical = await read_json(chat_server.client.get(f"{API}/threads/{name}/messages/{ids[3]}/as/canonical"))
    assert canonical["wire"]["content"][0]["text"].startswith("It is *blue*")
    thought = await read_json(chat_server.client.get(f"{API}/threads/{name}/messages/{ids[1]}/as/canonical"))
    assert [block["type"] for block in thought["wire"]["content"]] == ["thinking", "text", "tool_use"]
    assert "provider_raw" not in str(thought)


async def test_residue_is_returned_only_in_wire_of_its_dialect(chat_server: ServerFixture) -> None:
    residue = {"dialect": "anthropic", "residue": {"set": {"stop_sequence": "of the provider alone"}}}
    nested_text = TextBlock("blue", provider_raw=residue)
    name = await make_thread(
        chat_server,
        build_message(Role.USER, TextBlock("look", provider_raw=residue), provider_raw=residue),
        build_message(Role.ASSISTANT, TextBlock("I look.", provider_raw=residue), CALL, provider_raw=residue),
        build_message(
            Role.TOOL, ToolResultBlock(CALL.id, (nested_text,), provider_raw=residue), parent_tool_use_id=CALL.id
        ),
    )
    found = await read_json(chat_server.client.get(f"{API}/threads/{name}/messages"))
    ids = [row["message"]["id"] for row in found["messages"]]
    others = [row for row in readable() if row != "anthropic"]
    views = [f"history?threadId={name}", f"threads/{name}/messages", f"threads/{name}"]
    views += [f"threads/{name}/export?format={row}" for row in ("json", "markdown", "html", "ag_ui", "vercel")]
    views += [f"threads/{name}/messages/{row}/as/{wanted}" for row in ids for wanted in others]
    for view in views:
        async with chat_server.client.get(f"{API}/{view}") as response:
            assert response.status == 200, view
            text = await response.text()
        assert "of the provider alone" not in text, view
        assert "provider_raw" not in text, view
    own = await read_json(chat_server.client.get(f"{API}/threads/{name}/messages/{ids[1]}/as/anthropic"))
    assert "of the provider alone" in str(own), "the wire of its own dialect contains the residue"


async def test_unknown_format_or_message_is_rejected(chat_server: ServerFixture) -> None:
    name = await make_conversation(chat_server)
    path = f"{API}/threads/{name}/messages"
    assert await read_error_code(chat_server.client.get(f"{path}/msg-1/as/html"), 422) == "unknown_format"
    assert await read_error_code(chat_server.client.get(f"{path}/msg-1/as/nothing"), 422) == "unknown_format"
    assert await read_error_code(chat_server.client.get(f"{path}/msg-2/as/canonical"), 404) == "not_found"


# --- costs -----------------------------------------------------------------------------------------------------------


async def test_thread_cost_is_listed_by_model_and_answer(tmp_path: Path) -> None:
    async with run_test_server(tmp_path) as server:
        name = await make_thread(
            server,
            make_message("a"),
            make_message("b", Role.ASSISTANT, model="m:1", provider="m", usage=create_usage(10, 5, "0.5")),
            make_message("c", Role.ASSISTANT, model="m:2", provider="m", usage=create_usage(1, 1, "0.25")),
            make_message("d", Role.ASSISTANT, model="m:1", provider="m", usage=create_usage(10, 5, "0.125")),
        )
        found = await read_json(server.client.get(f"{API}/threads/{name}/cost"))
        assert found["totalUsd"] == "0.875"
        sums = [(row["group"], row["messages"], row["costUsd"]) for row in found["byModel"]]
        assert sums == [("m:1", 2, "0.625"), ("m:2", 1, "0.25")]
        receipts = [(row["seq"], row["model"], row["costUsd"]) for row in found["receipts"]]
        assert receipts == [(2, "m:1", "0.5"), (3, "m:2", "0.25"), (4, "m:1", "0.125")]
        part = await read_json(server.client.get(f"{API}/threads/{name}/cost?limit=1&afterSeq=2"))
        assert ([row["seq"] for row in part["receipts"]], part["hasMore"], part["totalUsd"]) == ([3], True, "0.875")


async def test_receipt_has_line_for_each_priced_bucket(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("hello")
    await post_run(chat_server, run_input("hi", threadId="t", runId="r"))
    found = await read_json(chat_server.client.get(f"{API}/threads/t/cost"))
    (row,) = found["receipts"]
    assert row["usage"]["output_tokens"] > 0
    assert (row["costUsd"], row["state"], row["lines"]) == (None, "unpriced", [])
    assert (found["totalUsd"], found["unpriced"]) == (None, 1)
    prices = {"input_per_mtok_usd": "3", "output_per_mtok_usd": "15"}
    table = {"pricing_version": "by-hand", "models": {"fake-anthropic:model": prices}}
    chat_server.agent.services.price_table = prices_from_mapping(table)
    chat_server.fake.reply("hello again")
    await post_run(chat_server, run_input("hi again", threadId="t", runId="r2"))
    found = await read_json(chat_server.client.get(f"{API}/threads/t/cost"))
    row = found["receipts"][1]
    assert (found["totalUsd"], found["unpriced"], row["state"]) == (row["costUsd"], 1, "priced")
    assert sum((Decimal(line["amount_usd"]) for line in row["lines"]), Decimal(0)) == Decimal(row["costUsd"])


async def test_unpriced_answer_is_marked_in_every_view(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("hello")
    events = await post_run(chat_server, run_input("hi", threadId="t", runId="r"))
    last = next(event for event in events if event["type"] == "RUN_FINISHED")
    summary = str(last)
    assert "'cost_usd': None" in summary
    assert "'state': 'unpriced'" in summary
    step = next(event for event in reversed(events) if event["type"] == "STEP_FINISHED")
    assert "'cost_usd': None" in str(step)
    found = await read_json(chat_server.client.get(f"{API}/cost"))
    sums = [(row["costUsd"], row["unpriced"]) for row in (*found["byDay"], *found["byModel"])]
    assert (found["totalUsd"], found["unpriced"], sums) == (None, 1, [(None, 1), (None, 1)])
    history = await read_json(chat_server.client.get(f"{API}/history?thread_id=t"))
    assert "'state': 'unpriced'" in str(history)
    metrics = await read_json(chat_server.client.get("/metrics"))
    assert metrics["cost"]["unpriced"] == {"fake-anthropic:model": 1}
    assert metrics["cost"]["by_model"] == {"fake-anthropic:model": None}


async def test_cost_includes_only_usage_of_caller(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, require_keys=True) as server:
        ann, bob = await server.make_key("ann"), await server.make_key("bob")
        for user, cost in (("ann", "0.5"), ("bob", "8"), ("ann", "0.25")):
            session = await server.store.create_session(user_id=user)
            usage = create_usage(1, 1, cost)
            await server.store.append(
                session.id, make_message("x", Role.ASSISTANT, model="m:1", usage=usage, user_id=user)
            )
        own_cost = await read_json(server.client.get(f"{API}/cost", headers=ann))
        assert (own_cost["totalUsd"], [day["group"] for day in own_cost["byDay"]]) == ("0.75", ["2026-03-13"])
        assert (await read_json(server.client.get(f"{API}/cost", headers=bob)))["totalUsd"] == "8"
        empty = await read_json(server.client.get(f"{API}/cost?from=2026-03-14", headers=ann))
        assert (empty["totalUsd"], empty["byDay"]) == ("0", [])
        await read_json(server.client.delete(f"{API}/threads/{session.id}", headers=ann), 204)
        assert (await read_json(server.client.get(f"{API}/cost?to=2026-03-14", headers=ann)))["totalUsd"] == "0.75"


async def test_costs_are_grouped_by_thread_and_person_and_exported(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, require_keys=True) as server:
        ann, admin = await server.make_key("ann"), await server.make_key("root", ("chat", "admin"))
        model = "anthropic:claude-sonnet-4-6"
        for user, title, cost in (("ann", "=1+1", "0.5"), ("ann", None, "0.25"), ("bob", "secret of bob", "8")):
            session = await server.store.create_session(user_id=user, title=title)
            usage = create_usage(10, 1, cost).replace(cached_input_tokens=1_000_000, cache_creation_input_tokens=0)
            await server.store.append(
                session.id, make_message("x", Role.ASSISTANT, model=model, usage=usage, user_id=user)
            )
        own_cost = await read_json(server.client.get(f"{API}/cost", headers=ann))
        assert [(row["title"], row["costUsd"]) for row in own_cost["byThread"]] == [("=1+1", "0.5"), (None, "0.25")]
        assert own_cost["byPerson"] is None
        assert Decimal(own_cost["cacheSavedUsd"]) == Decimal("5.4")  # two million tokens for $0.30 instead of $3
        assert await read_error_code(server.client.get(f"{API}/cost?people=all", headers=ann), 403) == "missing_scope"
        total_cost = await read_json(server.client.get(f"{API}/cost?people=all", headers=admin))
        assert [(row["group"], row["costUsd"]) for row in total_cost["byPerson"]] == [("ann", "0.75"), ("bob", "8")]
        assert "secret of bob" not in str(total_cost)
        async with server.client.get(f"{API}/cost/export?from=2026-03-13", headers=ann) as response:
            lines = (await response.text()).splitlines()
            assert (response.content_type, len(lines)) == ("text/csv", 3)
        assert any(",'=1+1," in line for line in lines)  # escaped, so that a spreadsheet does not run it
        assert all("bob" not in line for line in lines)


# --- exports ---------------------------------------------------------------------------------------------------------


async def test_thread_is_exported_as_document(chat_server: ServerFixture) -> None:
    name = await make_conversation(chat_server)
    for format_name, content_type, extension in (
        ("markdown", "text/markdown", "md"),
        ("html", "text/html", "html"),
        ("json", "application/json", "json"),
    ):
        async with chat_server.client.get(f"{API}/threads/{name}/export?format={format_name}") as response:
            text = await response.text()
            assert (response.status, response.content_type) == (200, content_type)
            disposition = response.headers["Content-Disposition"]
            assert re.fullmatch(rf'attachment; filename="[\w-]+\.{extension}"', disposition)
            assert "sandbox" in response.headers["Content-Security-Policy"]
            assert "script-src" not in response.headers["Content-Security-Policy"]
        if format_name == "json":
            document = await read_json(chat_server.client.get(f"{API}/threads/{name}/export"))
            assert document["thread"]["title"] == "Sky"
            messages = [decode(json.dumps(row).encode()) for row in document["messages"]]
            assert "provider_raw" not in text
            assert messages == [row.message for row in await chat_server.store.read(name)]
        else:
            assert "Sky" in text
            assert "<script>" not in text or format_name == "markdown"
    assert (
        await read_error_code(chat_server.client.get(f"{API}/threads/{name}/export?format=exe"), 422)
        == "unknown_format"
    )


@pytest.mark.parametrize("name", ["ag_ui", "vercel"])
async def test_thread_is_exported_as_messages_of_front_end(chat_server: ServerFixture, name: str) -> None:
    thread = await make_conversation(chat_server)
    async with chat_server.client.get(f"{API}/threads/{thread}/export?format={name}") as response:
        assert (response.status, response.content_type) == (200, "application/json")
        wires = await response.json()
    transcript_format = transcripts.get_format(name)
    assert transcript_format.looks_like(wires)
    restored = transcript_format.read_messages(wires, session_id=thread, created_at=datetime.now(UTC))
    stored = [row.message for row in await chat_server.store.read(thread)]
    contents = [[strip_notes(block) for block in message.content] for message in stored]
    assert [[strip_notes(block) for block in message.content] for message in restored] == contents
    assert [message.id for message in restored] == [message.id for message in stored]


def strip_notes(block: ContentBlock) -> ContentBlock:
    return block.replace(provider_raw=None)


async def test_special_thread_id_does_not_break_headers(chat_server: ServerFixture) -> None:
    with pytest.raises(FormatError, match="control character"):
        await chat_server.store.create_session('a"\r\nX-Evil: 1', user_id="local")
    await chat_server.store.create_session('a"; X-Evil: 1', user_id="local")
    async with chat_server.client.get(f"{API}/threads/a%22%3B%20X-Evil%3A%201/export?format=json") as response:
        assert response.status == 200
        assert response.headers["Content-Disposition"] == 'attachment; filename="a---X-Evil--1.json"'
        assert "X-Evil" not in response.headers
