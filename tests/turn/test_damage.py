"""Tests of damaged streams in a whole turn: no success, no tool runs, and the received text is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import dialects, settings
from dragoman.client import Retries, Timeouts
from dragoman.event import StreamEvent, fold
from dragoman.exchange import Reply
from dragoman.message import Message, MessageStatus, Role, TextBlock, ThinkingBlock
from dragoman.store import open_store
from dragoman.tools import tool
from dragoman.turn import Agent, AgentConfig, TurnEnd
from tests import recordings
from tests.client.test_stream_damage import cases_of, read_without_socket
from tests.conftest import scale
from tests.servers.faulty_server import Answer, FaultyServer, ReceivedRequest, make_stream
from tests.store.faults.conftest import times

LONG_TIMEOUTS = Timeouts(connect_s=20, first_byte_s=20, silence_s=20, whole_s=60)
NO_RETRIES = Retries(max_retries=0)
STEP = times(scale(59, 7), 1)  # step between the lengths of the truncated streams
every_dialect = pytest.mark.parametrize("dialect", dialects.callable_names())
_SETTINGS = """
default_model = "fake:model"
[providers.fake]
dialect = "{dialect}"
base_url = "{address}"
api_key_env = "FAKE_KEY"
[models."fake:model"]
max_context_tokens = 100000
supports_tools = true
"""


class DamagedAgent:
    """An agent whose provider sends exactly the bytes of a case."""

    def __init__(self, agent: Agent, ran: list[str], play: Callable[[bytes], None]) -> None:
        self.agent = agent
        self.ran = ran
        self.roles_after_answer: list[Role] = []  # in the last turn
        self._play = play

    async def turn(self, data: bytes) -> tuple[TurnEnd, Message]:
        """Run one turn in a new session, and return its end and the stored answer."""
        self._play(data)
        session = await self.agent.store.create_session()
        ended = await self.agent.run(session.id, "Go on")
        _, answer, *later = [row.message for row in await self.agent.store.tail(session.id, 9)]
        self.roles_after_answer = [message.role for message in later]
        return ended, answer


def join_texts(message: Message | Reply) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock | ThinkingBlock))


async def with_damaged_agent(dialect: str, folder: Path, use: Callable[[DamagedAgent], object]) -> None:
    runs: list[str] = []
    sent: list[bytes] = []

    @tool(name="read_file")
    def read_file(path: str = "") -> str:
        """Read a file."""
        runs.append(path)
        return "read"

    def answer(_: ReceivedRequest) -> Answer:
        return make_stream([sent[-1]])

    async with FaultyServer(answer) as server, open_store("memory:") as store:
        file = folder / "config.toml"
        file.write_text(_SETTINGS.format(dialect=dialect, address=server.address))
        file.chmod(0o600)
        loaded = settings.load(environment={"FAKE_KEY": "x"}, file=file, keyring=lambda _: None)
        config = AgentConfig(retries=NO_RETRIES, timeouts=LONG_TIMEOUTS, max_steps=1)
        async with Agent(store, settings=loaded, tools=[read_file], config=config) as agent:
            result = use(DamagedAgent(agent, runs, sent.append))
            assert hasattr(result, "__await__")
            await result  # type: ignore[misc]


@every_dialect
async def test_every_damaged_stream_ends_in_its_fault_with_the_received_text_stored(
    dialect: str, tmp_path: Path
) -> None:
    cases = [(name, data, code) for name, data, code in cases_of(dialect) if code is not None]
    assert len(cases) >= 16

    async def check_exception(damaged: DamagedAgent) -> None:
        for name, data, _ in cases:
            ended, answer = await damaged.turn(data)
            expected = read_without_socket(dialect, data, ())
            damaged.agent.services.availability = type(
                damaged.agent.services.availability
            )()  # otherwise the provider is skipped after so many faults
            assert ended.fault is not None, name
            assert (answer.role, answer.metadata.status) == (Role.ASSISTANT, MessageStatus.ERROR), name
            assert join_texts(answer) == join_texts(expected), name
            assert damaged.roles_after_answer == [], name
        assert damaged.ran == []

    await with_damaged_agent(dialect, tmp_path, check_exception)


@every_dialect
@pytest.mark.slow
async def test_stream_truncated_at_any_byte_fails_keeps_its_text_and_runs_no_tool(dialect: str, tmp_path: Path) -> None:
    data = recordings.cassette(dialect, "call-streamed").response.stream
    reader = dialects.load(dialect).stream_reader
    complete = fold([*(reader_of_whole := reader(None, ())).feed(data), *reader_of_whole.close()])
    assert complete.fault is None

    async def check_exception(damaged: DamagedAgent) -> None:
        ended_well = 0
        for length in (*range(0, len(data) - 1, STEP), len(data) - 1):
            ended, answer = await damaged.turn(data[:length])
            expected = read_without_socket(dialect, data[:length], ())
            damaged.agent.services.availability = type(damaged.agent.services.availability)()
            assert join_texts(answer) == join_texts(expected)
            if expected.fault is None:  # only bytes after the end are missing
                ended_well += 1
                assert damaged.roles_after_answer == [Role.TOOL]
                continue
            assert damaged.roles_after_answer == []
            assert ended.fault is not None
            assert answer.metadata.status is MessageStatus.ERROR
            assert damaged.ran == []
        assert ended_well * STEP < len(data) / 4

    await with_damaged_agent(dialect, tmp_path, check_exception)


@every_dialect
async def test_unexpected_exception_of_a_reader_keeps_the_text_read_before(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = recordings.cassette(dialect, "text-streamed").response.stream
    reader = type(dialects.load(dialect).stream_reader())
    name = "read_bytes" if hasattr(reader, "read_bytes") else "read"
    read = getattr(reader, name)

    def read_and_fail(self: Any, piece: bytes, events: list[StreamEvent]) -> None:
        read(self, piece, events)
        if data.endswith(piece):
            raise KeyError("unforeseen")

    async def check_exception(damaged: DamagedAgent) -> None:
        _, whole = await damaged.turn(data)
        with monkeypatch.context() as patched:
            patched.setattr(reader, name, read_and_fail)
            ended, answer = await damaged.turn(data)
        assert ended.fault is not None
        assert ended.fault.code == "bad_event"
        assert answer.metadata.status is MessageStatus.ERROR
        assert join_texts(answer) == join_texts(whole) != ""

    await with_damaged_agent(dialect, tmp_path, check_exception)
