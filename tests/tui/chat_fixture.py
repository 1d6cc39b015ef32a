"""FakeAgent for the terminal chat: the app without a terminal, an agent behind it, and strict fakes behind that.

async with chat(tmp_path, "anthropic") as it:
    it.fakes["anthropic"].say("Yes.")
    await it.write("Is it?")
    await it.shows("Yes.")
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.screen import ModalScreen

from dragoman.message import Message
from dragoman.store import Session, Store
from dragoman.tui import ChatApp
from dragoman.tui.input_line import InputLine
from tests.strict import StrictProvider
from tests.turn.fake_agent import FakeAgent, open_fake_agent

PATIENCE_S = 60.0
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000100000001080600000"
    "01f15c4890000000d49444154789c6364f8ff1f0003030200ef8db54b0000000049454e44ae426082"
)


class Chat:
    """A person before the chat."""

    def __init__(self, it: FakeAgent, app: ChatApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot
        self.store: Store = it.store
        self.fakes: dict[str, StrictProvider] = it.fakes

    @property
    def line(self) -> InputLine:
        return self.app.screen_stack[0].query_one(InputLine)

    @property
    def screen(self) -> str:
        """Return the visible text, of the dialog if there is one."""
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    @property
    def notices(self) -> list[str]:
        """Return the visible notifications."""
        return [notice.message for notice in self.app._notifications]

    @property
    def has_dialog(self) -> bool:
        return isinstance(self.app.screen, ModalScreen)

    async def write(self, text: str) -> None:
        """Write a line and press Enter."""
        self.line.text = text
        await self.press("enter")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, holds: Callable[[], bool], what: str = "") -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            raise AssertionError(f"{what or 'it'} did not come about; the screen:\n{self.screen}") from None

    async def shows(self, *words: str) -> None:
        """Wait until all of this is to be seen, wherever its lines break."""
        for word in words:
            await self.until(lambda word=word: word in " ".join(self.screen.split()), repr(word))  # type: ignore[misc]

    async def is_asked(self) -> None:
        """Wait for a dialog, and until it has the focus."""
        await self.until(lambda: self.has_dialog and self.app.focused is not None, "a dialog")

    async def is_over(self) -> None:
        """Wait until nothing is running."""
        await self.until(lambda: not self.app.is_answering and not self.has_dialog, "the end of the turn")
        await self.pilot.pause()

    async def kept(self, session: Session | None = None) -> list[Message]:
        """Return the stored messages of the open conversation, or of another one."""
        return [row.message async for row in self.store.history((session or self.app.session).id)]


@contextlib.asynccontextmanager
async def chat(folder: Path, *names: str, size: tuple[int, int] = (100, 50), **given: Any) -> AsyncIterator[Chat]:
    """The chat in an empty session, with fakes of these dialects, the first of which answers by default."""
    async with open_fake_agent(folder, *names) as it:
        agent = await it.agent(**given)
        app = ChatApp(agent, await it.store.get_session(it.session))
        async with app.run_test(size=size) as pilot:
            yield Chat(it, app, pilot)
