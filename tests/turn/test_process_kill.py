"""Tests of a process that is killed during an answer: the flushed text is stored, and the next turn works."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import msgspec

from dragoman import settings
from dragoman.client import Retries
from dragoman.message import MessageStatus, TextBlock
from dragoman.rules import check
from dragoman.store import open_store
from dragoman.turn import Agent, AgentConfig
from tests.servers.faulty_server import Answer, FaultyServer, ReceivedRequest, encode_chunk, make_head, make_stream
from tests.store.faults.conftest import times

_SETTINGS = """
default_model = "fake:model"
[providers.fake]
dialect = "ollama"
base_url = "{address}"
[models."fake:model"]
max_context_tokens = 100000
"""
_WORD = "once upon a time there was a word, "
_WORDS = 600  # about 20 KiB
_EVERY_S = 0.01


def _line(text: str, *, is_done: bool = False) -> bytes:
    chunk = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", "content": text}}
    return msgspec.json.encode({**chunk, "done": is_done, **({"done_reason": "stop"} if is_done else {})}) + b"\n"


def _answer_story(request: ReceivedRequest) -> Answer:
    if "Go on" in request.body.decode():
        return make_stream([_line("The end.", is_done=True)], content_type="application/x-ndjson")
    pieces = [piece for _ in range(_WORDS) for piece in (encode_chunk(_line(_WORD)), _EVERY_S)]
    return [make_head(200, **{"content-type": "application/x-ndjson", "transfer-encoding": "chunked"}), *pieces]


async def test_killed_turn_keeps_the_flushed_text_and_the_next_turn_works(tmp_path: Path) -> None:
    chance = random.Random(7)
    url = f"sqlite:///{tmp_path / 'talk.db'}"
    async with FaultyServer(_answer_story) as server, open_store(url) as store:
        file = tmp_path / "config.toml"
        file.write_text(_SETTINGS.format(address=server.address))
        file.chmod(0o600)
        loaded = settings.load(environment={}, file=file, keyring=lambda _: None)
        for _ in range(times(3, 50)):
            session = await store.create_session()
            received = await _run_and_kill(url, file, session.id, after_characters=chance.randrange(1, 18_000))
            rows = await store.read(session.id)
            assert rows[1].message.metadata.status is MessageStatus.PARTIAL
            stored = sum(len(block.text) for block in rows[1].message.content if isinstance(block, TextBlock))
            assert stored >= min(received - 8 * 1024, received - int(len(_WORD) * 1.5 / _EVERY_S))
            await _expire_lease(store, session.id)
            async with Agent(store, settings=loaded, config=AgentConfig(retries=Retries(max_retries=0))) as agent:
                ended = await agent.run(session.id, "Go on")
            assert ended.fault is None
            stored_messages = [row.message async for row in store.history(session.id)]
            assert [message.metadata.status.value for message in stored_messages] == [
                "complete",
                "error",
                "complete",
                "complete",
            ]
            assert stored_messages[1].metadata.extra == {"interrupted": True}
            assert check(stored_messages) == ()


async def _run_and_kill(url: str, file: Path, session_id: str, after_characters: int) -> int:
    """Run a turn in another process, kill it after so many characters, and return the number received."""
    command = [sys.executable, "-m", "tests.turn.turn_process", url, str(file), session_id]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    received = 0
    while received < after_characters and (line := await process.stdout.readline()):
        received += int(line)
    process.kill()
    rest = await process.stdout.read()
    await process.wait()
    return received + sum(map(int, rest.split()))


async def _expire_lease(store: object, session_id: str) -> None:
    """End the lease now. Otherwise it expires half a minute after the death of its owner."""

    def expire() -> object:
        return (yield "UPDATE leases SET expires_at = lease_now() WHERE session_id = ?", (session_id,))

    await store._write(expire())  # type: ignore[attr-defined]
