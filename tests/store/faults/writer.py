"""A process that writes until it is killed, and says of each append when it began and when it was acknowledged.

A line to the pipe is a word, the name of the append, the time, and for an acknowledgement the places:
``begun``, ``stored``, ``ended`` (the update of a message that was still arriving), ``refused`` (it must not be there),
``disk_full`` and ``storage_failed`` (it is asked for again where that is safe).
Invariant: ``stored`` is printed only after the store has acknowledged the write.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import functools
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dragoman.store.engines.sqlite  # noqa: F401  so that a forked writer has it at once
from dragoman import codec
from dragoman.errors import ConflictError, StorageError, StoreUnusableError
from dragoman.store import Store, open_store
from tests.store.faults.traffic import Append, Json, append_named, sessions

UNUSABLE = 3  # how a writer ends that could not open the store
_PR_SET_PTRACER = 0x59616D61
_PAUSE_S = 0.005
_TRIES = 10  # after a failure of the disk, of something that may be asked for again

Opened = Callable[[str], Store]
Send = Callable[[bytes], object]


@dataclass(frozen=True)
class Orders:
    """The task of a writer."""

    url: str
    writer: int
    first: int  # the number of its first new append
    repeated: tuple[str, ...] = ()  # what it asks for again, since nobody knows what came of it
    until: int | None = None  # it ends by itself before this number; or else it is killed
    lanes: int = 3  # how many appends are under way at once
    opened: Opened = open_store
    is_careless: bool = False  # it asks again under no key and with new ids: what should never be done


def write(orders: Orders, pipe: Any) -> None:
    """Do it. The pipe, or the socket, is what acknowledgements go to."""
    send = pipe.send if isinstance(pipe, socket.socket) else functools.partial(os.write, pipe.fileno())
    try:
        asyncio.run(_written(orders, send))
    except (StoreUnusableError, StorageError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(UNUSABLE)


def write_once_traced(orders: Orders, pipe: Any) -> None:
    """Do it as soon as another process watches. Acknowledgements go by ``send``, so that they count as no write."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 % 2**64), 0, 0, 0)
    while "\nTracerPid:\t0\n" in Path("/proc/self/status").read_text():
        time.sleep(0.001)
    write(orders, socket.socket(fileno=os.dup(pipe.fileno())))


async def _written(orders: Orders, pipe: Send) -> None:
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
        await asyncio.gather(*(_lane(store, pipe, names, orders) for _ in range(orders.lanes)))


async def _lane(store: Store, pipe: Send, names: Iterator[str], orders: Orders) -> None:
    for name in names:
        append = append_named(name)
        if orders.is_careless:
            append = dataclasses.replace(append, key=None, ends_as=(), messages=tuple(map(_nobodys, append.messages)))
        for _ in range(_TRIES if append.may_be_repeated else 1):
            try:
                await _append(store, pipe, append)
                break
            except StorageError as error:
                _say(pipe, error.code, name)
                await asyncio.sleep(_PAUSE_S)


async def _append(store: Store, pipe: Send, append: Append) -> None:
    _say(pipe, "begun", append.name)
    expected = (await store.get_session(append.session_id)).last_seq if append.kind == "expected" else None
    try:
        rows = await store.append(
            append.session_id,
            [_message(one) for one in append.messages],
            expected_seq=expected,
            idempotency_key=append.key,
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


def _nobodys(plain: Json) -> Json:
    """A message that the store is to give an id."""
    return plain | {"session_id": ""}


def _message(plain: Json) -> Any:
    return codec.decode(json.dumps(plain).encode())


def _say(pipe: Send, word: str, name: str, *places: int) -> None:
    pipe(f"{word} {name} {time.monotonic_ns()} {','.join(map(str, places))}\n".encode())
