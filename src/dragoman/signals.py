"""Signals: wake a task when something in a store has changed.

    signals.publish(RUN, session_id)                      after the commit
    with signals.subscribe(RUN, session_id) as changes:   before the first query
        await changes.wait(timeout_s)                     true after a signal, false after the time-out
    signals.call(KEYS, "", cache.clear)                   a function that runs at every signal

A signal carries no content: its receiver queries the store. These signals stay within the process; an engine whose
``signals.is_shared`` is true also exchanges them with other processes. Invariant: a signal may be lost, so its receiver
also polls; after an interruption of the exchange, every receiver is woken once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Self

RUN: Final = "run"  # new events or the end of a run; the key is the session
CANCEL: Final = "cancel"  # the end of a run was requested; the key is the worker that runs it
MAIL: Final = "mail"  # a letter for a mailbox, or in the outbox
KEYS: Final = "keys"  # an API key was revoked; the key is empty

Address = tuple[str, str]  # topic and key
Callback = Callable[[], None]


class Signals:
    """The signals of one process."""

    is_shared = False  # whether the signals of other processes arrive now

    def __init__(self) -> None:
        self._callbacks: dict[Address, set[Callback]] = {}

    def publish(self, topic: str, key: str) -> None:
        """Wake every receiver of a topic and key."""
        self.deliver(topic, key)

    def deliver(self, topic: str, key: str) -> None:
        """Wake the receivers of this process."""
        for callback in tuple(self._callbacks.get((topic, key), ())):
            callback()

    def deliver_all(self) -> None:
        """Wake every receiver of this process."""
        for address in tuple(self._callbacks):
            self.deliver(*address)

    def call(self, topic: str, key: str, callback: Callback) -> None:
        """Call a function at every signal of a topic and key."""
        self._callbacks.setdefault((topic, key), set()).add(callback)

    def drop(self, topic: str, key: str, callback: Callback) -> None:
        """End ``call``."""
        callbacks = self._callbacks.get((topic, key), set())
        callbacks.discard(callback)
        if not callbacks:
            self._callbacks.pop((topic, key), None)

    def subscribe(self, topic: str, key: str) -> Subscription:
        """Return a subscription, to be used with ``with``."""
        return Subscription(self, topic, key)


class Subscription:
    """Waits for the signals of a topic and key."""

    __slots__ = ("_address", "_event", "_signals")

    def __init__(self, signals: Signals, topic: str, key: str) -> None:
        self._signals = signals
        self._address = topic, key
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Receive signals from now on. It may be called more than once."""
        self._signals.call(*self._address, self._event.set)

    def close(self) -> None:
        """Receive no more signals."""
        self._signals.drop(*self._address, self._event.set)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a signal; false after a time-out. (``asyncio.wait_for`` of Python 3.11 may lose a cancellation.)"""
        has_signal = True

        def on_timeout() -> None:
            nonlocal has_signal
            has_signal = False
            self._event.set()

        timer = asyncio.get_running_loop().call_later(timeout_s, on_timeout)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
            self._event.clear()
        return has_signal
