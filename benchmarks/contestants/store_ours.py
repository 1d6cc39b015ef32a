"""Dragoman's store on SQLite, called through its own asynchronous methods."""

from __future__ import annotations

import asyncio
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.contestants.store_ground import PER_WRITER, operations_of, text
from benchmarks.worker import Operation
from dragoman import Message, MessageMetadata, Role, TextBlock, open_store

_LOOP = asyncio.new_event_loop()
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def _message(said: str) -> Message:
    return Message("", "", Role.USER, (TextBlock(said),), MessageMetadata(), _NEVER)


class OurStore:
    def __init__(self, path: Path) -> None:
        self._store = open_store(f"sqlite:///{path}")
        _LOOP.run_until_complete(self._store.open())
        self._known: set[str] = set()

    def seed(self, session: str, texts: list[str]) -> None:
        self._create(session)
        _LOOP.run_until_complete(self._store.append(session, map(_message, texts)))
        _LOOP.run_until_complete(self._store.search("nothing"))  # the index is not behind when measuring begins

    def append(self, session: str, said: str) -> None:
        self._create(session)
        _LOOP.run_until_complete(self._store.append(session, _message(said)))

    def append_in_a_row(self, texts: list[str]) -> None:
        _LOOP.run_until_complete(self._one_by_one(texts))

    async def _one_by_one(self, texts: list[str]) -> None:
        for said in texts:
            await self._store.append("one", _message(said))

    def _create(self, session: str) -> None:
        if session not in self._known:
            self._known.add(session)
            _LOOP.run_until_complete(self._store.create_session(session))

    def last(self, session: str, count: int) -> int:
        return len(_LOOP.run_until_complete(self._store.tail(session, count)))

    def close(self) -> None:
        _LOOP.run_until_complete(self._store.close())

    def written_by(self, writers: int) -> None:
        _LOOP.run_until_complete(self._all(writers))

    async def _all(self, writers: int) -> None:
        await asyncio.gather(*(self._one(number) for number in range(writers)))

    async def _one(self, number: int) -> None:
        for _ in range(PER_WRITER):
            await self._store.append(f"of {number}", _message(text()))

    def forked(self, session: str) -> None:
        """A fork of a session."""
        _LOOP.run_until_complete(self._store.fork(session))


def operations() -> dict[str, Operation]:
    made = operations_of(OurStore)
    folder = Path(tempfile.mkdtemp(prefix="store-bench-", dir=os.environ.get("BENCH_FOLDER")))
    store = OurStore(folder / "fork.db")
    for _ in range(10):
        store.seed("long", ["a short message"] * 10_000)
    made["fork"] = (lambda: "long", store.forked, lambda _: None)
    return made
