"""Who waits for what, within one process: a mailbox that waits is told at once when a letter is put into it.

Other processes look from time to time. The one rule: whoever waits looks again after it was told, and after a while in
any case; nothing relies on being told.
"""

from __future__ import annotations

import asyncio
from typing import Final

MIN_WAIT_S: Final = 0.05
MAX_WAIT_S: Final = 0.5


class MailboxNotifier:
    """Everybody in this process who waits."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}
        self.busy: set[str] = set()  # mailboxes that had something when they were last asked

    def notify(self, name: str) -> None:
        """Tell whoever waits for that."""
        for event in self._events.get(name, ()):
            event.set()

    def waiter(self, name: str) -> Waiter:
        """A wait, to be used with ``with``."""
        return Waiter(self._events, name)


class Waiter:
    """One who waits, again and again: after longer and longer, and at once when told."""

    def __init__(self, events: dict[str, set[asyncio.Event]], name: str) -> None:
        self._events = events
        self._name = name
        self._event = asyncio.Event()
        self._pause_s = MIN_WAIT_S

    def __enter__(self) -> Waiter:
        self._events.setdefault(self._name, set()).add(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        others = self._events.get(self._name, set())
        others.discard(self._event)
        if not others:
            self._events.pop(self._name, None)

    def reset(self) -> None:
        """There was something: the next wait is a short one."""
        self._pause_s = MIN_WAIT_S

    async def wait(self, max_s: float = MAX_WAIT_S) -> None:
        """Wait until told, or for a while. (``asyncio.wait_for`` of Python 3.11 may forget that it was cancelled.)"""
        was_notified = True

        def on_timeout() -> None:
            nonlocal was_notified
            was_notified = False
            self._event.set()

        timer = asyncio.get_running_loop().call_later(min(self._pause_s, max_s), on_timeout)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
            self._event.clear()
        self._pause_s = MIN_WAIT_S if was_notified else min(2 * self._pause_s, MAX_WAIT_S)
