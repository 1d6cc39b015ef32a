"""OpenAI Agents' SQLiteSession."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agents import SQLiteSession

from benchmarks.contestants.store_ground import PER_WRITER, make_operations, text
from benchmarks.worker import Operation

_LOOP = asyncio.new_event_loop()


class AgentsStore:
    loop = _LOOP

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sessions: dict[str, SQLiteSession] = {}

    def _session(self, name: str) -> SQLiteSession:
        if name not in self._sessions:
            self._sessions[name] = SQLiteSession(name, self._path)
        return self._sessions[name]

    def seed(self, session: str, texts: list[str]) -> None:
        items = [{"role": "assistant", "content": text_item} for text_item in texts]
        _LOOP.run_until_complete(self._session(session).add_items(items))

    async def append_async(self, session: str, content: str) -> None:
        """An append where a loop runs."""
        await self._session(session).add_items([{"role": "assistant", "content": content}])

    def append(self, session: str, content: str) -> None:
        _LOOP.run_until_complete(self.append_async(session, content))

    def last(self, session: str, count: int) -> int:
        return len(_LOOP.run_until_complete(self._session(session).get_items(limit=count)))

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def write_concurrently(self, writers: int) -> None:
        async def write(number: int) -> None:
            for _ in range(PER_WRITER):
                await self._session(f"of {number}").add_items([{"role": "assistant", "content": text()}])

        async def write_all() -> None:
            await asyncio.gather(*(write(number) for number in range(writers)))

        _LOOP.run_until_complete(write_all())


def operations() -> dict[str, Operation]:
    return make_operations(AgentsStore)[1]
