"""Dragoman's store on SQLite, called through its own asynchronous methods."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.contestants.store_ground import LONGEST, PER_WRITER, of_size, operations_of, text
from benchmarks.worker import Operation
from dragoman import Message, MessageMetadata, Role, TextBlock, open_store

_LOOP = asyncio.new_event_loop()
_AT_ONCE = 10_000
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def _message(said: str) -> Message:
    return Message("", "", Role.USER, (TextBlock(said),), MessageMetadata(), _NEVER)


class OurStore:
    loop = _LOOP

    def __init__(self, path: Path) -> None:
        self._store = open_store(f"sqlite:///{path}")
        _LOOP.run_until_complete(self._store.open())

    def seed(self, session: str, texts: list[str]) -> None:
        _LOOP.run_until_complete(self._store.create_session(session))
        for first in range(0, len(texts), _AT_ONCE):
            _LOOP.run_until_complete(self._store.append(session, map(_message, texts[first : first + _AT_ONCE])))
        _LOOP.run_until_complete(self._store.search("nothing"))  # the index is not behind when measuring begins

    async def appended(self, session: str, said: str) -> None:
        """An append where a loop runs."""
        await self._store.append(session, _message(said))

    def append(self, session: str, said: str) -> None:
        _LOOP.run_until_complete(self.appended(session, said))

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
    ground, made = operations_of(OurStore, up_to=LONGEST)
    made["fork"] = (lambda: of_size(ground, LONGEST, 1), lambda store: store.forked("0"), lambda _: None)
    return made
