"""A driver of the terminal chat: the app without a terminal, its agent, and strict fakes of providers.

async with open_chat(tmp_path, "anthropic") as chat:
    chat.fakes["anthropic"].reply("Yes.")
    await chat.submit("Is it?")
    await chat.wait_for_text("Yes.")
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
from tests.fake_providers import StrictProvider
from tests.turn.fake_agent import FakeAgent, open_fake_agent

PATIENCE_S = 60.0
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000100000001080600000"
    "01f15c4890000000d49444154789c6364f8ff1f0003030200ef8db54b0000000049454e44ae426082"
)


class ChatDriver:
    """Types into the chat and reads its screen."""

    def __init__(self, fake: FakeAgent, app: ChatApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot
        self.store: Store = fake.store
        self.fakes: dict[str, StrictProvider] = fake.fakes

    @property
    def line(self) -> InputLine:
        return self.app.screen_stack[0].query_one(InputLine)

    @property
    def screen(self) -> str:
        """Return the visible text, of the dialog if one is open."""
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    @property
    def notices(self) -> list[str]:
        """Return the visible notifications."""
        return [notice.message for notice in self.app._notifications]

    @property
    def has_dialog(self) -> bool:
        return isinstance(self.app.screen, ModalScreen)

    async def submit(self, text: str) -> None:
        """Write a line and press Enter."""
        self.line.text = text
        await self.press("enter")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def wait_until(self, holds: Callable[[], bool], description: str = "") -> None:
        """Wait until a condition holds."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            raise AssertionError(
                f"timed out waiting for {description or 'the condition'}; the screen:\n{self.screen}"
            ) from None

    async def wait_for_text(self, *texts: str) -> None:
        """Wait until the screen shows all texts, regardless of line breaks."""
        for text in texts:
            await self.wait_until(lambda text=text: text in " ".join(self.screen.split()), repr(text))  # type: ignore[misc]

    async def wait_for_dialog(self) -> None:
        """Wait until a dialog has the focus."""
        await self.wait_until(lambda: self.has_dialog and self.app.focused is not None, "a dialog")

    async def wait_until_idle(self) -> None:
        """Wait until no answer is running and no dialog is open."""
        await self.wait_until(lambda: not self.app.is_answering and not self.has_dialog, "the end of the turn")
        await self.pilot.pause()

    async def read_messages(self, session: Session | None = None) -> list[Message]:
        """Return the stored messages of the open session, or of another session."""
        return [row.message async for row in self.store.history((session or self.app.session).id)]


@contextlib.asynccontextmanager
async def open_chat(
    folder: Path, *names: str, size: tuple[int, int] = (100, 50), **options: Any
) -> AsyncIterator[ChatDriver]:
    """Open the chat in an empty session, with fakes of these dialects. The first answers by default."""
    async with open_fake_agent(folder, *names) as fake:
        agent = await fake.agent(**options)
        app = ChatApp(agent, await fake.store.get_session(fake.session))
        async with app.run_test(size=size) as pilot:
            yield ChatDriver(fake, app, pilot)
