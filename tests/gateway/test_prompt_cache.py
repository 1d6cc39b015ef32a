"""Prompts are marked for caching if the provider caches marked prompts. Nothing else changes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from dragoman.message import TokenUsage
from dragoman.pricing import prices_from_mapping, receipt
from tests.fake_providers import text_part
from tests.server.conftest import ServerFixture, run_test_server
from tests.test_pricing import MAY, SONNET, SPECIFIED
from tests.turn.fake_agent import make_agent

LONG = "A rule of the house. " * 300
CACHED = (
    '[models."fake-anthropic:cached"]\naliases = ["cached"]\nsupports_prompt_caching = true\nsupports_tools = true\n'
)
TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}


async def chat(server: ServerFixture, **body: Any) -> None:
    async with server.client.post("/v1/chat/completions", json={"model": "cached", **body}) as response:
        assert response.status == 200, await response.text()


def count_marks(body: Any) -> int:
    return str(body).count("'cache_control'")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_translated_prompt_is_marked(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, "anthropic", "openai_chat", rows=CACHED) as server:
        fake = server.fakes["anthropic"]
        for _ in range(3):
            fake.answer_with(text_part("Yes."))
        system = {"role": "system", "content": LONG}
        await chat(server, messages=[system, user("1?")], tools=[TOOL])
        more = [system, user("1?"), {"role": "assistant", "content": "Yes."}, user("2?")]
        await chat(server, messages=more, tools=[TOOL])
        await chat(server, messages=[user("short")])
        first, second, short = fake.bodies
        assert [count_marks(body) for body in (first, second, short)] == [3, 4, 0]
        assert "cache_control" in first["tools"][-1]
        assert "cache_control" in first["system"][-1]
        assert "cache_control" in second["messages"][0]["content"][-1]
        assert "cache_control" in second["messages"][-1]["content"][-1]
        assert fake.refusals == []


async def test_prompt_of_same_dialect_is_not_marked(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, "anthropic", rows=CACHED) as server:
        fake = server.fakes["anthropic"]
        fake.answer_with(text_part("Yes."))
        body = {"model": "cached", "max_tokens": 10, "system": LONG, "messages": [user("1?")]}
        async with server.client.post("/v1/messages", json=body) as response:
            assert response.status == 200
        assert count_marks(fake.bodies[0]) == 0


async def test_setting_disables_prompt_caching(tmp_path: Path) -> None:
    rows = CACHED + "[gateway]\nprompt_caching = false\n"
    async with run_test_server(tmp_path, "anthropic", rows=rows) as server:
        fake = server.fakes["anthropic"]
        fake.answer_with(text_part("Yes."))
        await chat(server, messages=[user(LONG)])
        assert count_marks(fake.bodies[0]) == 0


async def test_turns_are_marked_unless_agent_disables_it(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, "anthropic", rows=CACHED) as server:
        fake = server.fakes["anthropic"]
        for caching in (True, False):
            fake.answer_with(text_part("Yes."))
            session = await server.store.create_session()
            async with make_agent(server.store, server.agent.services.settings, prompt_caching=caching) as agent:
                await agent.run(session.id, LONG, model="cached")
        assert [count_marks(body) for body in fake.bodies] == [1, 0]


def test_receipt_contains_cache_savings() -> None:
    table = prices_from_mapping(SPECIFIED)
    at = MAY
    usage = TokenUsage(input_tokens=10, output_tokens=1, cached_input_tokens=1_000_000)
    assert receipt(table, SONNET, usage, at).cache_savings_usd == Decimal("2.7")
    first = TokenUsage(input_tokens=10, output_tokens=1, cache_creation_input_tokens=1_000_000)
    assert receipt(table, SONNET, first, at).cache_savings_usd == Decimal("-0.75")
    assert (
        msgspec.to_builtins(receipt(table, SONNET, TokenUsage(input_tokens=1, output_tokens=1), at))[
            "cache_savings_usd"
        ]
        == "0"
    )
