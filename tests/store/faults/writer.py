"""A process that writes until it is killed, and says of each append when it began and when it was acknowledged.

A line to the pipe is a word, the name of the append, the time, and for an acknowledgement the places:
``begun``, ``stored``, ``ended`` (the update of a message that was still arriving), ``refused`` (it must not be there).
The one rule: ``stored`` is said after the store has said so, and never before.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dragoman.store.sqlite  # noqa: F401  so that a forked writer has it at once
from dragoman import codec
from dragoman.errors import ConflictError
from dragoman.store import Store, open_store
from tests.store.faults.traffic import Append, Json, append_named, sessions

Opened = Callable[[str], Store]


@dataclass(frozen=True)
class Orders:
    """What a writer is to do."""

    url: str
    writer: int
    first: int  # the number of its first new append
    repeated: tuple[str, ...] = ()  # what it asks for again, since nobody knows what came of it
    until: int | None = None  # it ends by itself before this number; or else it is killed
    lanes: int = 3  # how many appends are under way at once
    opened: Opened = open_store


def write(orders: Orders, pipe: Any) -> None:
    """Do it. The pipe is what acknowledgements go to."""
    asyncio.run(_written(orders, pipe.fileno()))


async def _written(orders: Orders, pipe: int) -> None:
    async with orders.opened(orders.url) as store:
        there = {session.id for session in await store.list_sessions()}
        for session_id in sessions():
            if session_id in there:
                continue
            with contextlib.suppress(ConflictError):  # another writer was faster
                await store.create_session(session_id, title=f"Session {session_id}")
        _say(pipe, "opened", "-")
        numbers = itertools.count(orders.first) if orders.until is None else range(orders.first, orders.until)
        names = itertools.chain(orders.repeated, (f"w{orders.writer}-{number}" for number in numbers))
        await asyncio.gather(*(_lane(store, pipe, names) for _ in range(orders.lanes)))


async def _lane(store: Store, pipe: int, names: Iterator[str]) -> None:
    for name in names:
        await _append(store, pipe, append_named(name))


async def _append(store: Store, pipe: int, append: Append) -> None:
    _say(pipe, "begun", append.name)
    expected = (await store.get_session(append.session_id)).last_seq if append.kind == "expected" else None
    try:
        rows = await store.append(
            append.session_id, [_message(one) for one in append.messages], expected_seq=expected, idempotency_key=append.key
        )
        places = [row.seq for row in rows]
    except ConflictError as error:
        if append.ends_as and error.code == "id_conflict":  # an earlier life of this writer got further than it heard
            places = [(await store.get_message(append.session_id, append.messages[0]["id"])).seq]
        elif append.kind == "expected":
            return _say(pipe, "refused", append.name)
        else:
            raise
    _say(pipe, "stored", append.name, *places)
    for message in append.ends_as:
        try:
            await store.update(append.session_id, _message(message))
        except ConflictError as error:
            if error.code != "message_ended":
                raise
        _say(pipe, "ended", append.name)


def _message(plain: Json) -> Any:
    return codec.decode(json.dumps(plain).encode())


def _say(pipe: int, word: str, name: str, *places: int) -> None:
    os.write(pipe, f"{word} {name} {time.monotonic_ns()} {','.join(map(str, places))}\n".encode())
