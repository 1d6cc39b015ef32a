"""A process that writes until it is killed, and reports the start and the acknowledgement of each append.

A line contains a keyword, the name of the append, the time and, for an acknowledgement, the message numbers:
``begun``, ``stored``, ``ended`` (the update of a partial message), ``refused`` (it must not be stored), ``disk_full`` and
``storage_failed`` (it is repeated if that is safe).
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

import dragoman.store.engines.sqlite  # noqa: F401  preloaded for forked writers
from dragoman import codec
from dragoman.errors import ConflictError, StorageError, StoreUnusableError
from dragoman.store import Store, open_store
from tests.store.faults.traffic import Append, Json, create_append, sessions

UNUSABLE = 3  # exit code if the store could not be opened
_PR_SET_PTRACER = 0x59616D61
_PAUSE_S = 0.005
_TRIES = 10  # retries of a repeatable append after a disk failure

Opened = Callable[[str], Store]
Send = Callable[[bytes], object]


@dataclass(frozen=True)
class Orders:
    """The configuration of a writer."""

    url: str
    writer: int
    first: int  # the number of its first new append
    repeated: tuple[str, ...] = ()  # appends with an unknown outcome that it repeats
    until: int | None = None  # it ends before this number; None writes until killed
    lanes: int = 3  # concurrent appends
    opened: Opened = open_store
    retries_without_key: bool = False  # negative control: retries without key and with new ids


def write(orders: Orders, pipe: Any) -> None:
    """Run the writer. Acknowledgements are sent to the pipe or socket."""
    send = pipe.send if isinstance(pipe, socket.socket) else functools.partial(os.write, pipe.fileno())
    try:
        asyncio.run(_write_all(orders, send))
    except (StoreUnusableError, StorageError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(UNUSABLE)


def write_under_strace(orders: Orders, pipe: Any) -> None:
    """Run the writer once strace is attached. It uses ``send``, which strace does not count as a write."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 % 2**64), 0, 0, 0)
    while "\nTracerPid:\t0\n" in Path("/proc/self/status").read_text():
        time.sleep(0.001)
    write(orders, socket.socket(fileno=os.dup(pipe.fileno())))


async def _write_all(orders: Orders, pipe: Send) -> None:
    async with orders.opened(orders.url) as store:
        there = {session.id for session in await store.list_sessions()}
        for session_id in sessions():
            if session_id in there:
                continue
            with contextlib.suppress(ConflictError):  # created by another writer
                await store.create_session(session_id, title=f"Session {session_id}")
        _send_line(pipe, "opened", "-")
        numbers = itertools.count(orders.first) if orders.until is None else range(orders.first, orders.until)
        names = itertools.chain(orders.repeated, (f"w{orders.writer}-{number}" for number in numbers))
        await asyncio.gather(*(_lane(store, pipe, names, orders) for _ in range(orders.lanes)))


async def _lane(store: Store, pipe: Send, names: Iterator[str], orders: Orders) -> None:
    for name in names:
        append = create_append(name)
        if orders.retries_without_key:
            append = dataclasses.replace(
                append, key=None, ends_as=(), messages=tuple(map(_without_id, append.messages))
            )
        for _ in range(_TRIES if append.may_be_repeated else 1):
            try:
                await _append(store, pipe, append)
                break
            except StorageError as error:
                _send_line(pipe, error.code, name)
                await asyncio.sleep(_PAUSE_S)


async def _append(store: Store, pipe: Send, append: Append) -> None:
    _send_line(pipe, "begun", append.name)
    expected = (await store.get_session(append.session_id)).last_seq if append.kind == "expected" else None
    try:
        rows = await store.append(
            append.session_id,
            [_message(message_item) for message_item in append.messages],
            expected_seq=expected,
            idempotency_key=append.key,
        )
        numbers = [row.seq for row in rows]
    except ConflictError as error:
        if append.ends_as and error.code == "id_conflict":  # an earlier process of this writer stored it
            numbers = [(await store.get_message(append.session_id, append.messages[0]["id"])).seq]
        elif append.kind == "expected":
            return _send_line(pipe, "refused", append.name)
        else:
            raise
    _send_line(pipe, "stored", append.name, *numbers)
    for message in append.ends_as:
        try:
            await store.update(append.session_id, _message(message))
        except ConflictError as error:
            if error.code != "message_ended":
                raise
        _send_line(pipe, "ended", append.name)


def _without_id(plain: Json) -> Json:
    """Return a message to which the store assigns an id."""
    return plain | {"session_id": ""}


def _message(plain: Json) -> Any:
    return codec.decode(json.dumps(plain).encode())


def _send_line(pipe: Send, keyword: str, name: str, *numbers: int) -> None:
    pipe(f"{keyword} {name} {time.monotonic_ns()} {','.join(map(str, numbers))}\n".encode())
