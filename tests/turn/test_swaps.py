"""Tests of a conversation that changes its provider with every turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.exchange import SideEffects
from dragoman.message import ImageBlock, ImageSource, MessageStatus, Role, TextBlock
from dragoman.rules import check
from dragoman.store import open_store
from dragoman.tools import tool
from tests.fake_providers import call_part, text_part, thinking_part
from tests.turn.fake_agent import DIALECTS, FakeAgent, open_fake_agent

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
IMAGE = ImageBlock(ImageSource("base64", PIXEL), "image/png")
TURNS = 30


@tool(side_effects=SideEffects.NONE)
def look_up(word: str) -> str:
    """Return the meaning of a word."""
    return f"{word} is a word"


async def run_turns(harness: FakeAgent, turns: range) -> None:
    """Run turns, each with the next provider: texts, images, thinking, one call, two parallel calls."""
    agent = await harness.agent(tools=[look_up], system_prompt="You know words.")
    for number in turns:
        name = DIALECTS[number % len(DIALECTS)]
        fake = harness.fakes[name]
        match number % 4:
            case 0:
                fake.answer_with(thinking_part(f"thought {number}"), call_part("look_up", {"word": f"a{number}"}))
            case 1:
                fake.answer_with(
                    call_part("look_up", {"word": f"a{number}"}), call_part("look_up", {"word": f"b{number}"})
                )
            case 2:
                fake.answer_with(thinking_part(f"thought {number}"), text_part(f"nothing to look up {number}"))
            case _:
                fake.answer_with(text_part(f"let me see {number}"), call_part("look_up", {"word": "c"}))
        if number % 4 != 2:
            fake.reply(f"answer {number}")
        content = [TextBlock(f"question {number}"), *([IMAGE] if number % 3 == 0 else [])]
        ended = await agent.run(harness.session, content, model=name)
        assert ended.fault is None, (number, name, ended.fault, fake.refusals)


def encode_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_thirty_turns_with_changing_providers_are_accepted_by_every_provider(url: str, tmp_path: Path) -> None:
    store_url = url if url == "memory:" else f"sqlite:///{tmp_path / 'talk.db'}"
    async with open_fake_agent(tmp_path, *DIALECTS, url=store_url) as harness:
        await run_turns(harness, range(TURNS))
        assert {name: fake.refusals for name, fake in harness.fakes.items()} == {name: [] for name in DIALECTS}
        stored = [row.message async for row in harness.store.history(harness.session)]
        assert check(stored) == ()
        assert all(message.metadata.status is MessageStatus.COMPLETE for message in stored)
        assert sum(message.role is Role.USER for message in stored) == TURNS
        for name, fake in harness.fakes.items():  # the whole history again, to every provider
            fake.reply("I have read it all.")
            ended = await (await harness.agent(tools=[look_up])).run(
                harness.session, "Have you read it all?", model=name
            )
            assert ended.fault is None, (name, fake.refusals)
            sent = encode_text(fake.bodies[-1])
            assert all(f"question {number}" in sent and f"answer {number}" in sent for number in (0, 1, 15, 29))


async def test_swap_back_sends_the_provider_its_own_signatures_and_ids(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *DIALECTS) as harness:
        await run_turns(harness, range(TURNS))
        first = harness.fakes[DIALECTS[0]]
        assert DIALECTS[0] == "anthropic"
        last_body = [body for body in first.bodies if "answer 28" in encode_text(body) or body is first.bodies[-1]][-1]
        issued_ids = {block["id"] for body in first.bodies for block in _blocks(body, "tool_use")}
        signatures = {block["signature"] for body in first.bodies for block in _blocks(body, "thinking")}
        first.reply("back again")
        await (await harness.agent(tools=[look_up])).run(harness.session, "Do you remember?", model=DIALECTS[0])
        again = first.bodies[-1]
        assert {block["id"] for block in _blocks(again, "tool_use")} >= issued_ids
        assert {block["signature"] for block in _blocks(again, "thinking")} >= signatures
        before = [message for message in last_body["messages"] if message["role"] == "assistant"]
        now = [message for message in again["messages"] if message["role"] == "assistant"]
        assert encode_text(now[: len(before)]) == encode_text(before)


def _blocks(body: Any, kind: str) -> list[dict[str, Any]]:
    return [
        block
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == kind
    ]


async def test_conversation_continues_after_its_store_was_closed(tmp_path: Path) -> None:
    store_url = f"sqlite:///{tmp_path / 'talk.db'}"
    async with open_fake_agent(tmp_path, *DIALECTS, url=store_url) as harness:
        await run_turns(harness, range(8))
        session = harness.session
        before = [row.message async for row in harness.store.history(session)]
        await harness.store.close()
        async with open_store(store_url) as again:
            reread = [row.message async for row in again.history(session)]
            assert reread == before
            other = FakeAgent(again, harness.settings, harness.fakes, session)
            await run_turns(other, range(8, 15))
            await other.close()
        assert {name: fake.refusals for name, fake in harness.fakes.items()} == {name: [] for name in DIALECTS}
