"""A process that runs one turn and is killed during it: python -m tests.turn.turn_process STORE CONFIG SESSION."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from dragoman import settings
from dragoman.event import TextDelta
from dragoman.store import open_store
from dragoman.turn import Agent


async def main(store_url: str, config: str, session_id: str) -> None:
    loaded = settings.load(environment={"FAKE_KEY": "x"}, file=Path(config), keyring=lambda _: None)
    async with open_store(store_url) as store, Agent(store, settings=loaded) as agent:
        async for event in agent.turn(session_id, "Tell me a long story"):
            if isinstance(event, TextDelta):
                os.write(1, f"{len(event.text)}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
