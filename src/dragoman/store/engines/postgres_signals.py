"""Signals between the servers of one PostgreSQL database, with LISTEN and NOTIFY.

One connection outside the pool listens, from the first subscription on. Signals are sent after the commit that they
announce, in a transaction of their own that is not synced: PostgreSQL commits one transaction with NOTIFY at a time, so
a NOTIFY within a synced transaction would end group commit. While one NOTIFY is sent, further signals are collected and
sent together.

Invariant: after the listening connection was lost and opened again, every receiver of this process is woken, so that
one poll finds what was missed. Behind a pooler that shares connections, LISTEN is impossible, and receivers poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]

from dragoman.signals import Callback, Signals

Connect = Callable[[], Awaitable[Any]]
Send = Callable[[str, str], Awaitable[None]]  # channel and payload

NOTIFY: Final = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
_MAX_PAYLOAD: Final = 7_900  # bytes; PostgreSQL allows less than 8,000
_SEPARATOR: Final = "\x1e"
_PROBE_S: Final = 10.0  # interval in which the listening connection is probed
_PAUSES_S: Final = (0.05, 0.2, 1.0, 2.0)  # before the connection is opened again
_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
_log: Final = logging.getLogger("dragoman.store")


class PostgresSignals(Signals):
    """The signals of one process and of the other servers of its database."""

    def __init__(self, connect: Connect, send: Send, place: str) -> None:
        super().__init__()
        self._connect = connect
        self._send = send
        self._channel = f"dragoman_{hashlib.sha256(place.encode()).hexdigest()[:16]}"
        self._unsent: dict[str, None] = {}  # payload lines, in order
        self._send_task: asyncio.Task[None] | None = None
        self._listen_task: asyncio.Task[None] | None = None
        self._is_lost = asyncio.Event()
        self._is_enabled = False

    def start(self) -> None:
        """Exchange signals with other servers from now on."""
        self._is_enabled = True
        if self._callbacks:
            self._start_to_listen()

    async def stop(self) -> None:
        """Send what is not sent yet, and close the listening connection."""
        self._is_enabled = self.is_shared = False
        if self._send_task is not None:
            await asyncio.wait([self._send_task])
        if self._listen_task is not None:
            task, self._listen_task = self._listen_task, None
            task.cancel()
            await asyncio.wait([task])

    def publish(self, topic: str, key: str) -> None:
        """Wake every receiver of a topic and key, here and on other servers."""
        self.deliver(topic, key)
        if not self._is_enabled:
            return
        line = f"{topic} {key}"
        if len(line.encode()) > _MAX_PAYLOAD:  # other servers find it with their next poll
            return
        self._unsent[line] = None
        if self._send_task is None:
            self._send_task = asyncio.create_task(self._send_all(), name="dragoman-signals-send")

    def call(self, topic: str, key: str, callback: Callback) -> None:
        """Call a function at every signal of a topic and key."""
        super().call(topic, key, callback)
        if self._is_enabled and self._listen_task is None:
            self._start_to_listen()

    # --- sending -----------------------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        try:
            while self._unsent:
                await self._send(self._channel, self._take_payload())
        except Exception as error:  # noqa: BLE001  a signal may be lost: its receivers poll
            _log.warning("signals to other servers were not sent: %s", error)
        finally:
            self._send_task = None

    def _take_payload(self) -> str:
        """As many lines as fit into one notification."""
        lines, size = list[str](), 0
        for line in self._unsent:
            size += len(line.encode()) + 1
            if lines and size > _MAX_PAYLOAD:
                break
            lines.append(line)
        for line in lines:
            del self._unsent[line]
        return _SEPARATOR.join(lines)

    # --- listening ---------------------------------------------------------------------------------------------------

    def _start_to_listen(self) -> None:
        self._listen_task = asyncio.create_task(self._listen(), name="dragoman-signals-listen")

    async def _listen(self) -> None:
        """Keep a listening connection open."""
        failures = 0
        while True:
            try:
                connection = await self._connect()
                try:
                    await connection.add_listener(self._channel, self._receive)
                    connection.add_termination_listener(self._report_loss)
                    self._is_lost.clear()
                    self.is_shared, failures = True, 0
                    self.deliver_all()  # earlier signals did not arrive here
                    await self._watch(connection)
                finally:
                    self.is_shared = False
                    connection.terminate()
            except _ERRORS as error:
                _log.warning("the connection that receives signals was lost: %s", error)
            await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
            failures += 1

    async def _watch(self, connection: Any) -> None:
        """Wait until the connection is lost."""
        while not self._is_lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_S):
                    await self._is_lost.wait()
            if not self._is_lost.is_set():
                await connection.execute("SELECT 1", timeout=_PROBE_S)

    def _report_loss(self, _: Any) -> None:
        self._is_lost.set()

    def _receive(self, _: Any, _pid: int, _channel: str, payload: str) -> None:
        for line in payload.split(_SEPARATOR):
            topic, _, key = line.partition(" ")
            self.deliver(topic, key)
