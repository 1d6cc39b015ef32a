"""Who waits for what, within one process: a mailbox that waits is told at once when a letter is put into it.

Other processes look from time to time. The one rule: whoever waits looks again after it was told, and after a while in
any case; nothing relies on being told.
"""

from __future__ import annotations

import asyncio
from typing import Final

SOONEST_S: Final = 0.05
LATEST_S: Final = 0.5


class Waking:
    """Everybody in this process who waits."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self.busy: set[str] = set()  # mailboxes that had something when they were last asked

    def wake(self, name: str) -> None:
        """Tell whoever waits for that."""
        for event in self._waiting.get(name, ()):
            event.set()

    def wait_for(self, name: str) -> Wait:
        """A wait, to be used with ``with``."""
        return Wait(self._waiting, name)


class Wait:
    """One who waits, again and again: after longer and longer, and at once when told."""

    def __init__(self, waiting: dict[str, set[asyncio.Event]], name: str) -> None:
        self._waiting = waiting
        self._name = name
        self._event = asyncio.Event()
        self._pause_s = SOONEST_S

    def __enter__(self) -> Wait:
        self._waiting.setdefault(self._name, set()).add(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        others = self._waiting.get(self._name, set())
        others.discard(self._event)
        if not others:
            self._waiting.pop(self._name, None)

    def found(self) -> None:
        """There was something: the next wait is a short one."""
        self._pause_s = SOONEST_S

    async def pause(self, most_s: float = LATEST_S) -> None:
        """Wait until told, or for a while. (``asyncio.wait_for`` of Python 3.11 may forget that it was cancelled.)"""
        was_told = True

        def over() -> None:
            nonlocal was_told
            was_told = False
            self._event.set()

        timer = asyncio.get_running_loop().call_later(min(self._pause_s, most_s), over)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
            self._event.clear()
        self._pause_s = SOONEST_S if was_told else min(2 * self._pause_s, LATEST_S)
