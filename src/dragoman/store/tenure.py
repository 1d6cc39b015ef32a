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
from dragoman.store.unbroken import unbroken

if TYPE_CHECKING:
    from dragoman.store.store import Store

_log: Final = logging.getLogger("dragoman.store")


class Tenure:
    """A lease that is kept up."""

    def __init__(self, store: Store, session_id: str, owner: str, seconds: float) -> None:
        self.session_id = session_id
        self.owner = owner
        self._store = store
        self._seconds = seconds
        self._renewing: asyncio.Task[None] | None = None
        self._waiting: asyncio.TimerHandle | None = None  # most turns end before there is something to renew
        self._is_given_back = False

    async def __aenter__(self) -> Self:
        try:
            await self._store.take_lease(self.session_id, self.owner, self._seconds)
        except asyncio.CancelledError:  # it may have been given all the same
            await unbroken(self._store.release_lease(self.session_id, self.owner))
            raise
        self._waiting = asyncio.get_running_loop().call_later(self._seconds / 3, self._begin_to_renew)
        return self

    def _begin_to_renew(self) -> None:
        self._renewing = asyncio.create_task(self._renew(), name=f"dragoman-lease-{self.session_id}")

    async def __aexit__(self, *_: object) -> None:
        if self._waiting is not None and self._is_given_back and self._renewing is None:
            self._waiting.cancel()
        else:
            await unbroken(self._given_back())

    def was_given_back(self) -> None:
        """The right was given back with the last thing that the turn has stored."""
        self._is_given_back = True

    def check(self) -> None:
        """Raise what the right was lost to: ``ConflictError`` or ``UnknownSessionError``."""
        if self._renewing is not None and self._renewing.done():
            self._renewing.result()

    async def _given_back(self) -> None:
        assert self._waiting is not None
        self._waiting.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
            if not self._renewing.cancelled():
                self._renewing.exception()  # whoever wanted to know has asked
        if not self._is_given_back or self._renewing is not None:  # which may have taken it again behind that
            await self._store.release_lease(self.session_id, self.owner)

    async def _renew(self) -> None:
        while True:
            try:
                await self._store.take_lease(self.session_id, self.owner, self._seconds)
            except StorageError as error:  # of the disk or the connection: the next time may be in time
                _log.warning("the lease of session %s could not be renewed: %s", self.session_id, error)
            await asyncio.sleep(self._seconds / 3)
