"""Servers in the process of a test stop soon: uvicorn looks every 0.1 s whether it is to stop, and then waits 0.1 s.

    shorten()       its pauses take 0.01 s from now on, in this process

Hundreds of tests start and stop a server. The programs that tests start have the pauses of uvicorn.
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
