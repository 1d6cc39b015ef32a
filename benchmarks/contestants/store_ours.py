"""Dragoman's store on SQLite, called through its own asynchronous methods."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.contestants.store_ground import LONGEST, PER_WRITER, make_operations, store_of_size, text
from benchmarks.worker import Operation
from dragoman import Message, MessageMetadata, Role, TextBlock, open_store

_LOOP = asyncio.new_event_loop()
_BATCH_SIZE = 10_000
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def _message(content: str) -> Message:
    return Message("", "", Role.USER, (TextBlock(content),), MessageMetadata(), _NEVER)


class OurStore:
    loop = _LOOP

    def __init__(self, path: Path) -> None:
        self._store = open_store(f"sqlite:///{path}")
        _LOOP.run_until_complete(self._store.open())

    def seed(self, session: str, texts: list[str]) -> None:
        _LOOP.run_until_complete(self._store.create_session(session))
        for first in range(0, len(texts), _BATCH_SIZE):
            _LOOP.run_until_complete(self._store.append(session, map(_message, texts[first : first + _BATCH_SIZE])))
        _LOOP.run_until_complete(self._store.search("nothing"))  # the index is not behind when measuring begins

    async def append_async(self, session: str, content: str) -> None:
        """An append where a loop runs."""
        await self._store.append(session, _message(content))

    def append(self, session: str, content: str) -> None:
        _LOOP.run_until_complete(self.append_async(session, content))

    def last(self, session: str, count: int) -> int:
        return len(_LOOP.run_until_complete(self._store.tail(session, count)))

    def close(self) -> None:
        _LOOP.run_until_complete(self._store.close())

    def write_concurrently(self, writers: int) -> None:
        _LOOP.run_until_complete(self._write_all(writers))

    async def _write_all(self, writers: int) -> None:
        await asyncio.gather(*(self._write_share(number) for number in range(writers)))

    async def _write_share(self, number: int) -> None:
        for _ in range(PER_WRITER):
            await self._store.append(f"of {number}", _message(text()))

    def fork(self, session: str) -> None:
        """A fork of a session."""
        _LOOP.run_until_complete(self._store.fork(session))


def operations() -> dict[str, Operation]:
    bench, operations_by_name = make_operations(OurStore, up_to=LONGEST)
    operations_by_name["fork"] = (
        lambda: store_of_size(bench, LONGEST, 1),
        lambda store: store.fork("0"),
        lambda _: None,
    )
    return operations_by_name
