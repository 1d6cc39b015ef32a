"""Shorter pauses of uvicorn: it polls for shutdown every 0.1 s, and then waits another 0.1 s.

    shorten()       set these pauses to 0.01 s in this process

Hundreds of tests start and stop a server. Programs that tests start have the pauses of uvicorn.
"""

from __future__ import annotations

import asyncio
import types
from typing import Any

import uvicorn.server

_LONGEST_S = 0.01


class _Asyncio(types.ModuleType):
    """The module asyncio with a shorter ``sleep``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(delay_s: float) -> None:
        await asyncio.sleep(min(delay_s, _LONGEST_S))


def shorten() -> None:
    """Shorten the pauses."""
    uvicorn.server.asyncio = _Asyncio("asyncio")  # type: ignore[assignment]
