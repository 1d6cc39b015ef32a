"""Tests of turns against third-party servers: llama.cpp, aimock, and the embedded model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dragoman import dialects, settings
from dragoman.exchange import Options, StopReason
from dragoman.message import Message, MessageStatus, Role, TextBlock, ThinkingBlock, ToolResultBlock
from dragoman.rules import check
from dragoman.store import Store, open_store
from dragoman.tools import tool
from dragoman.turn import Agent
from tests.client.calls import provider_of
from tests.servers.fixtures import ANSWER_TEXT, LLAMA_TEXT, THOUGHT
from tests.turn.fake_agent import make_agent

_SETTINGS = """
default_model = "tiny:tiny"
[providers.tiny]
dialect = "{dialect}"
base_url = "{address}"
api_key_env = "TINY_KEY"
[models."tiny:tiny"]
max_context_tokens = 2000
supports_tools = true
supports_thinking = true
"""
of_llama = pytest.mark.parametrize("dialect", ["anthropic", "openai_chat", "openai_responses"])
of_aimock = pytest.mark.parametrize("dialect", dialects.callable_names())
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
SHORT = Options(max_output_tokens=64)


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"# {path}"


@contextlib.asynccontextmanager
async def open_agent_at(address: str, dialect: str, folder: Path, **options: object) -> AsyncIterator[Agent]:
    """Open an agent whose only model is at that address."""
    path = urlsplit(provider_of(dialect).base_url or "").path
    file = folder / "config.toml"
    file.write_text(_SETTINGS.format(dialect=dialect, address=address + path))
    file.chmod(0o600)
    loaded = settings.load(environment={"TINY_KEY": "sk-tiny"}, file=file, keyring=lambda _: None)
    async with (
        open_store("memory:") as store,
        make_agent(store, loaded, options=SHORT, **options) as agent,
    ):
        yield agent


async def read_messages(store: Store, session_id: str) -> list[Message]:
    return [row.message async for row in store.history(session_id)]


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


@of_llama
@both_ways
async def test_llama_cpp_answers_a_turn(dialect: str, streamed: bool, llama_server: str, tmp_path: Path) -> None:
    async with open_agent_at(llama_server, dialect, tmp_path, stream=streamed) as agent:
        session = await agent.store.create_session()
        ended = await agent.run(session.id, "Hello")
        assert (ended.fault, ended.stop_reason) == (None, StopReason.END_TURN)
        question, answer = await read_messages(agent.store, session.id)
        assert (text_of(question), text_of(answer)) == ("Hello", LLAMA_TEXT)
        assert answer.metadata.usage is not None
        assert not answer.metadata.usage.estimated


@of_aimock
@both_ways
async def test_aimock_runs_two_tools_in_parallel_and_answers(
    dialect: str, streamed: bool, aimock_server: str, tmp_path: Path
) -> None:
    async with open_agent_at(aimock_server, dialect, tmp_path, stream=streamed, tools=[read_file]) as agent:
        session = await agent.store.create_session()
        ended = await agent.run(session.id, "Compare the two files.")
        assert (ended.fault, ended.llm_calls, ended.tool_calls) == (None, 2, 2)
        stored = await read_messages(agent.store, session.id)
        results = [block for message in stored for block in message.content if isinstance(block, ToolResultBlock)]
        assert {result.content for result in results} == {(TextBlock("# README.md"),), (TextBlock("# LICENSE"),)}
        assert text_of(stored[-1]) == ANSWER_TEXT
        assert check(stored) == ()


@pytest.mark.parametrize("dialect", ["anthropic", "gemini", "openai_responses"])
async def test_aimock_sends_thinking_before_text(dialect: str, aimock_server: str, tmp_path: Path) -> None:
    async with open_agent_at(aimock_server, dialect, tmp_path) as agent:
        session = await agent.store.create_session()
        await agent.run(session.id, "Please think.")
        thought, text = (await read_messages(agent.store, session.id))[-1].content
        assert isinstance(thought, ThinkingBlock)
        assert (thought.text, text) == (THOUGHT, TextBlock(ANSWER_TEXT))


@of_aimock
@pytest.mark.parametrize(
    ("question", "code"),
    [("limited", "rate_limited"), ("broken", "server_error"), ("refused", "invalid_request"), ("cut", None)],
)
async def test_error_of_aimock_is_the_fault_of_the_turn(
    dialect: str, question: str, code: str | None, aimock_server: str, tmp_path: Path
) -> None:
    async with open_agent_at(aimock_server, dialect, tmp_path) as agent:
        session = await agent.store.create_session()
        ended = await agent.run(session.id, question)
        assert ended.fault is not None
        assert code in (None, ended.fault.code)
        stored = await read_messages(agent.store, session.id)
        assert [message.metadata.status for message in stored] == [MessageStatus.COMPLETE, MessageStatus.ERROR]
        if (
            dialect != "bedrock_converse"
        ):  # its dialect joins both questions into one message, and aimock answers the first again
            assert (await agent.run(session.id, "Hello")).fault is None


async def test_local_model_answers_without_a_key(tmp_path: Path) -> None:
    loaded = settings.load(environment={"XDG_CONFIG_HOME": str(tmp_path)}, keyring=lambda _: None)
    async with (
        open_store(f"sqlite:///{tmp_path / 'talk.db'}") as store,
        Agent(store, settings=loaded, options=Options(max_output_tokens=12, temperature=0)) as agent,
    ):
        session = await store.create_session()
        ended = await agent.run(session.id, "Say hello.")
        assert ended.fault is None
        assert ended.model.startswith("local:")
        question, answer = await read_messages(store, session.id)
        assert (question.role, answer.role) == (Role.USER, Role.ASSISTANT)
        assert text_of(answer).strip()
        assert answer.metadata.usage is not None
        assert answer.metadata.usage.cost_usd == 0
