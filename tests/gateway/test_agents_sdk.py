"""The OpenAI Agents SDK works with providers of other APIs, including ``previous_response_id``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.fake_providers import call_part, text_part
from tests.server.conftest import ServerFixture
from tests.transcripts.conftest import Judge, judge

__all__ = ["judge"]


@pytest.mark.parametrize("model", ["anthropic", "gemini"])
async def test_agents_sdk_runs_tool_and_continues_response(
    gateway_server: ServerFixture, judge: Callable[..., Judge], model: str
) -> None:
    fake = gateway_server.fakes[model]
    fake.answer_with(call_part("read_note", {"path": "a"}))
    fake.answer_with(text_part("Quinces."))
    fake.answer_with(call_part("read_note", {"path": "b"}))
    fake.answer_with(text_part("Still quinces."))
    arguments = {"base_url": f"{gateway_server.base_url}/v1", "model": model}
    result = await asyncio.to_thread(judge("openai-agents").ask, "run_turns", arguments)
    assert (result["first"], result["second"]) == ("Quinces.", "Still quinces.")
    assert "raw_response_event" in result["events"]
    assert fake.refusals == []
    last = str(fake.bodies[-1])
    assert last.count("is about quinces") == 2
    for text in ("Read note a.", "Quinces.", "And now?"):
        assert text in last
