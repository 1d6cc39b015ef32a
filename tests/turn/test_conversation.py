"""Tests of a conversation of envelopes that the built-in loop runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.envelope import ConversationCall, run_conversation
from dragoman.tools import tool
from tests.fake_providers import strict_provider
from tests.turn.fake_agent import settings_for

MESSAGES = [{"role": "user", "content": "Write it."}]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("FAKE_KEY", "sk-fake")
    return tmp_path


@tool
def wiki_upsert(title: str) -> str:
    """Write a page."""
    return f"{title} is written"


async def test_call_runs_the_model_and_the_tools(environment: Path) -> None:
    async with strict_provider("anthropic") as fake:
        settings_for(environment, {"anthropic": fake})
        fake.call("wiki_upsert", {"title": "Example"})
        fake.reply("Done.")
        call = ConversationCall(messages=MESSAGES, tools=[wiki_upsert], provider="fake-anthropic", model="model")
        result = await run_conversation(call)
        assert (result["completed"], result["final_content"], result["turn_count"]) == (True, "Done.", 2)
        assert [message["type"] for message in result["messages"]] == ["text", "tool_call", "tool_result", "text"]
        assert result["messages"][2]["payload"]["tool_data"] == "Example is written"
        (execution,) = result["tool_execution_results"]
        assert (execution["tool_name"], execution["parameters"]) == ("wiki_upsert", {"title": "Example"})
        assert result["usage"]["total_tokens"] > 0
        assert fake.refusals == []


@pytest.mark.parametrize("has_callable", [True, False])
async def test_described_tools_are_offered_and_run_if_callable(environment: Path, has_callable: bool) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    description: dict[str, Any] = {"description": "Write a page.", "parameters": schema}
    if has_callable:
        description["callable"] = lambda title: {"url": f"/{title}"}
    async with strict_provider("anthropic") as fake:
        settings_for(environment, {"anthropic": fake}, "anthropic")
        fake.call("wiki_upsert", {"title": "Example"})
        fake.reply("Done.")
        result = await run_conversation(ConversationCall(messages=MESSAGES, tools={"wiki_upsert": description}))
        payload = result["messages"][2]["payload"]
        assert payload["success"] is has_callable
        if has_callable:
            assert payload["tool_data"] == '{"url":"/Example"}'
        else:
            assert payload["error"] == "the tool 'wiki_upsert' has no callable"
        assert result["final_content"] == "Done."


async def test_fault_or_unknown_model_is_a_result_with_the_messages_of_the_caller(environment: Path) -> None:
    async with strict_provider("anthropic") as fake:
        settings_for(environment, {"anthropic": fake}, "anthropic")
        unknown = await run_conversation(ConversationCall(messages=MESSAGES, provider="no", model="such"))
        assert (unknown["completed"], unknown["messages"][0]["content"]) == (False, "Write it.")
        assert "such" in unknown["error"]
        for _ in range(3):
            fake.fail(400)
        failed = await run_conversation(ConversationCall(messages=MESSAGES))
        assert not failed["completed"]
        assert failed["error"]


def test_envelopes_import_no_turns() -> None:
    code = "import sys, dragoman.envelope; print('dragoman.turn' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
