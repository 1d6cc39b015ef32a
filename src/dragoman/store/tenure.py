"""The right to run a turn, held for as long as the turn takes.

    async with store.turn(session_id) as tenure:
        …
        tenure.check()      raises if the right is lost: another has it, or the session is gone

It is renewed in the background and given back at the end; a process that dies gives it back when it expires. The one
rule: whoever is cancelled holds nothing afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Self

from dragoman.errors import StorageError
from dragoman.shield import run_to_completion

if TYPE_CHECKING:
    from dragoman.store.store import Store

_log: Final = logging.getLogger("dragoman.store")


class SessionLease:
    """A lease that is kept up."""

    def __init__(self, store: Store, session_id: str, owner: str, seconds: float) -> None:
        self.session_id = session_id
        self.owner = owner
        self._store = store
        self._seconds = seconds
        self._renewal: asyncio.Task[None] | None = None
        self._renewal_timer: asyncio.TimerHandle | None = None  # most turns end before there is something to renew
        self._is_released = False

    async def __aenter__(self) -> Self:
        try:
            await self._store.take_lease(self.session_id, self.owner, self._seconds)
        except asyncio.CancelledError:  # it may have been given all the same
            await run_to_completion(self._store.release_lease(self.session_id, self.owner))
            raise
        self._renewal_timer = asyncio.get_running_loop().call_later(self._seconds / 3, self._start_renewal)
        return self

    def _start_renewal(self) -> None:
        self._renewal = asyncio.create_task(self._renew(), name=f"dragoman-lease-{self.session_id}")

    async def __aexit__(self, *_: object) -> None:
        if self._renewal_timer is not None and self._is_released and self._renewal is None:
            self._renewal_timer.cancel()
        else:
            await run_to_completion(self._release())

    def confirm_release(self) -> None:
        """The right was given back with the last thing that the turn has stored."""
        self._is_released = True

    def check(self) -> None:
        """Raise what the right was lost to: ``ConflictError`` or ``UnknownSessionError``."""
        if self._renewal is not None and self._renewal.done():
            self._renewal.result()

    async def _release(self) -> None:
        assert self._renewal_timer is not None
        self._renewal_timer.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
            if not self._renewal.cancelled():
                self._renewal.exception()  # whoever wanted to know has asked
        if not self._is_released or self._renewal is not None:  # which may have taken it again behind that
            await self._store.release_lease(self.session_id, self.owner)

    async def _renew(self) -> None:
        while True:
            try:
                await self._store.take_lease(self.session_id, self.owner, self._seconds)
            except StorageError as error:  # of the disk or the connection: the next time may be in time
                _log.warning("the lease of session %s could not be renewed: %s", self.session_id, error)
            await asyncio.sleep(self._seconds / 3)
