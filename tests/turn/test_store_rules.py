"""Tests of turns on a strict store: the messages of an agent follow the rules after every outcome."""

from __future__ import annotations

from pathlib import Path

from dragoman.exchange import SideEffects
from dragoman.message import Message
from dragoman.rules import check
from dragoman.store import Store
from dragoman.tools import builtin_tools, tool
from tests.fake_providers import call_part, text_part, thinking_part
from tests.turn.fake_agent import open_fake_agent


@tool(side_effects=SideEffects.NONE)
def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return str(a + b)


async def read_messages(store: Store, session_id: str) -> list[Message]:
    return [row.message async for row in store.history(session_id)]


async def test_turns_with_tools_faults_and_cancelled_questions_pass_a_strict_store(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        harness.store.strict = True
        fake = harness.fakes["anthropic"]
        agent = await harness.agent(tools=[add, *builtin_tools(["ask_user"])], pause_for_approval=True)
        fake.answer_with(
            thinking_part("Hm."),
            text_part("Let me add."),
            call_part("add", {"a": 1, "b": 2}),
            call_part("add", {"a": "x"}),
        )
        fake.reply("Three.")
        assert (await agent.run(harness.session, "Add")).fault is None
        fake.fail(500)
        assert (await agent.run(harness.session, "Again")).fault is not None
        fake.call("ask_user", {"question": "How many?", "fields": [{"name": "count", "type": "number"}]})
        await agent.run(harness.session, "Order some")
        fake.reply("Forget it.")
        assert (await agent.run(harness.session, "Never mind")).fault is None
        rules = {violation.rule for violation in check(await read_messages(harness.store, harness.session))}
        assert rules <= {"call-is-answered"}, "a cancelled question has no result in the store"
