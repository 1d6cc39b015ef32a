"""Damaged streams through a whole turn: never a success, no tool runs, and what had arrived is in the store."""

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

PATIENT = Timeouts(connect_s=20, first_byte_s=20, silence_s=20, whole_s=60)
ONCE = Retries(max_retries=0)
STEP = times(scale(59, 7), 1)  # of the lengths at which a stream is cut
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


class Damage:
    """An agent whose provider sends exactly the bytes of a case."""

    def __init__(self, agent: Agent, ran: list[str], play: Callable[[bytes], None]) -> None:
        self.agent = agent
        self.ran = ran
        self._play = play

    async def turn(self, data: bytes) -> tuple[TurnEnd, Message]:
        """One turn in a session of its own: how it ended, and the answer as it is stored."""
        self._play(data)
        session = await self.agent.store.create_session()
        ended = await self.agent.run(session.id, "Go on")
        rows = await self.agent.store.tail(session.id, 1)
        return ended, rows[0].message


def words(message: Message | Reply) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock | ThinkingBlock))


async def damaged(dialect: str, folder: Path, use: Callable[[Damage], object]) -> None:
    ran: list[str] = []
    sent: list[bytes] = []

    @tool(name="read_file")
    def read_file(path: str = "") -> str:
        """Read a file."""
        ran.append(path)
        return "read"

    def answer(_: ReceivedRequest) -> Answer:
        return make_stream([sent[-1]])

    async with FaultyServer(answer) as server, open_store("memory:") as store:
        file = folder / "config.toml"
        file.write_text(_SETTINGS.format(dialect=dialect, address=server.address))
        file.chmod(0o600)
        found = settings.load(environment={"FAKE_KEY": "x"}, file=file, keyring=lambda _: None)
        config = AgentConfig(retries=ONCE, timeouts=PATIENT, max_steps=1)
        async with Agent(store, settings=found, tools=[read_file], config=config) as agent:
            made = use(Damage(agent, ran, sent.append))
            assert hasattr(made, "__await__")
            await made  # type: ignore[misc]


@every_dialect
async def test_every_damaged_stream_ends_in_its_fault_with_what_had_arrived_stored(
    dialect: str, tmp_path: Path
) -> None:
    cases = [(name, data, code) for name, data, code in cases_of(dialect) if code is not None]
    assert len(cases) >= 16

    async def each(it: Damage) -> None:
        for name, data, _ in cases:
            ended, answer = await it.turn(data)
            expected = read_without_socket(dialect, data, ())
            it.agent.services.availability = type(
                it.agent.services.availability
            )()  # it breaks often enough to be given up
            assert ended.fault is not None, name
            assert (answer.role, answer.metadata.status) == (Role.ASSISTANT, MessageStatus.ERROR), name
            assert words(answer) == words(expected), name
        assert it.ran == []

    await damaged(dialect, tmp_path, each)


@every_dialect
@pytest.mark.slow
async def test_a_stream_cut_at_every_byte_is_no_success_and_loses_no_word_and_runs_no_tool(
    dialect: str, tmp_path: Path
) -> None:
    data = recordings.cassette(dialect, "call-streamed").response.stream
    reader = dialects.load(dialect).stream_reader
    complete = fold([*(one := reader(None, ())).feed(data), *one.close()])
    assert complete.fault is None

    async def each(it: Damage) -> None:
        ended_well = 0
        for length in range(0, len(data), STEP):
            ended, answer = await it.turn(data[:length])
            expected = read_without_socket(dialect, data[:length], ())
            it.agent.services.availability = type(it.agent.services.availability)()
            assert words(answer) == words(expected)
            if expected.fault is None:  # what is missing then is only what comes after the end
                ended_well += 1
                continue
            assert ended.fault is not None
            assert answer.metadata.status is MessageStatus.ERROR
            assert it.ran == []
        assert ended_well * STEP < len(data) / 4

    await damaged(dialect, tmp_path, each)


@every_dialect
async def test_an_exception_that_a_reader_did_not_foresee_keeps_what_it_read_before(
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

    async def each(it: Damage) -> None:
        _, whole = await it.turn(data)
        with monkeypatch.context() as patched:
            patched.setattr(reader, name, read_and_fail)
            ended, answer = await it.turn(data)
        assert ended.fault is not None
        assert ended.fault.code == "bad_event"
        assert answer.metadata.status is MessageStatus.ERROR
        assert words(answer) == words(whole) != ""

    await damaged(dialect, tmp_path, each)
