"""The letters of one recipient as an asynchronous loop.

    async with mail.mailbox("CA") as mailbox:
        async for delivery in mailbox:
            …                                   acknowledged when the body succeeds, retried later when it raises
            await delivery.ack(effect)          acknowledged already, together with its effect

The mailbox renews the leases of its letters while the body runs. An exception ends the loop;
``mailbox.work(function)`` calls a function for each letter and continues after a failure.

Invariant: after the ``async with`` block the mailbox holds no lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from dragoman.errors import ConflictError, DragomanError

if TYPE_CHECKING:
    from dragoman.mail.mail import Delivery, Mail

_log: Final = logging.getLogger("dragoman.mail")


class Mailbox:
    """A loop over the letters of a recipient. Use it with ``async with``."""

    def __init__(self, mail: Mail, recipient: str, *, lease_s: float, concurrency: int) -> None:
        self.recipient = recipient
        self._mail = mail
        self._lease_s = lease_s
        self._concurrency = concurrency
        self._ready: deque[Delivery] = deque()
        self._current: Delivery | None = None
        self._renewal_task: asyncio.Task[None] | None = None
        self._waiter = mail.notifier.waiter(f"{mail.team_id}/{recipient}")

    async def __aenter__(self) -> Self:
        self._waiter.__enter__()
        self._renewal_task = asyncio.create_task(self._renew_leases(), name=f"dragoman-mailbox-{self.recipient}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._waiter.__exit__()
        assert self._renewal_task is not None
        self._renewal_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._renewal_task
        current, self._current = self._current, None
        if current is not None:
            await self._finish(current, error)
        while self._ready:
            await self._mail.release(self._ready.popleft())

    async def _finish(self, current: Delivery, error: BaseException | None) -> None:
        """End the delivery that was current when the loop ended."""
        if current.is_ended:
            return
        with contextlib.suppress(ConflictError):
            if isinstance(error, Exception):
                await self._mail.nack(current, error)
            elif error is None:
                await self._mail.ack(current)
            else:  # cancelled
                await self._mail.release(current)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        await self._acknowledge_current()
        while not self._ready:
            deliveries = await self._mail.receive(self.recipient, lease_s=self._lease_s, limit=self._concurrency)
            self._ready.extend(deliveries)
            if deliveries:
                self._waiter.reset()
            else:
                await self._waiter.wait()
        self._current = self._ready.popleft()
        return self._current

    async def _acknowledge_current(self) -> None:
        current, self._current = self._current, None
        if current is None or current.is_ended:
            return
        try:
            await self._mail.ack(current)
        except ConflictError as error:
            _log.warning("letter %s was acknowledged too late: %s", current.letter_id, error)

    async def work(self, function: Callable[[Delivery], Awaitable[object]]) -> None:
        """Call a function for every letter, without end. If it raises, the letter is retried later."""
        async for delivery in self:
            try:
                await function(delivery)
            except Exception as error:  # noqa: BLE001  the entry point of a handler: the next letter is independent
                self._current = None
                with contextlib.suppress(ConflictError):
                    await self._mail.nack(delivery, error)

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            for delivery in [*self._ready, *([self._current] if self._current is not None else [])]:
                try:
                    await self._mail.extend(delivery, self._lease_s)
                except DragomanError as error:
                    _log.warning("the lease of letter %s could not be renewed: %s", delivery.letter_id, error)
