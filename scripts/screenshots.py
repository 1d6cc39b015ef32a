"""Take the screenshots of the terminal chat in docs/images: ``python -m scripts.screenshots``.

The chat runs without a terminal, with the strict fake providers of the tests under real model names, so that prices are
real and the output is reproducible.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from textual.screen import ModalScreen

from dragoman import settings
from dragoman.store import open_store
from dragoman.tools import builtin_tools
from dragoman.tui import ChatApp
from dragoman.tui.input_line import InputLine
from dragoman.turn import Agent
from tests.fake_providers import StrictProvider, call_part, strict_provider, text_part, thinking_part

_FONTS: Final = re.compile(r"\s*@font-face \{[^}]*\}|<!-- .*? -->")  # pages load no external fonts
IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
SIZE: Final = (90, 28)
_CONFIG: Final = """
default_model = "sonnet"
[providers.anthropic]
base_url = "{anthropic}"
api_key = "sk-not-a-real-key"
[providers.gemini]
base_url = "{gemini}"
api_key = "not-a-real-key"
"""
_README: Final = "# Lantern\n\nA lantern is lit with `lantern on`, and out after an hour.\n"
_ANSWER: Final = """\
Lantern is a **command-line timer for lamps**:

1. `lantern on` lights it,
2. it goes out after an hour.

```sh
lantern on && sleep 3600   # what it amounts to
```
"""


class Scene:
    """The chat with a simulated user."""

    def __init__(self, app: ChatApp, fakes: dict[str, StrictProvider]) -> None:
        self.app = app
        self.fakes = fakes

    async def write(self, text: str) -> None:
        """Submit a line, and wait for the answer or a dialog."""
        self.app.query_one(InputLine).post_message(InputLine.Submit(text))
        await self.wait_for_answer()

    async def wait_for_answer(self) -> None:
        """Wait until the turn has ended, or a dialog is open."""
        await asyncio.sleep(0.5)
        while self.app.is_answering and not isinstance(self.app.screen, ModalScreen):
            await asyncio.sleep(0.05)
        await self.wait_for_drawing()

    async def wait_for_drawing(self) -> None:
        """Wait until everything is drawn."""
        for _ in range(10):
            await asyncio.sleep(0.1)

    def save(self, name: str) -> None:
        """Save a screenshot."""
        text = _FONTS.sub("", self.app.export_screenshot(title="dragoman chat"))
        (IMAGES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")
        print(f"docs/images/{name}.svg")


async def main() -> None:
    """Take all screenshots."""
    IMAGES.mkdir(exist_ok=True)
    async with _open_scene() as scene:
        await _confirmation(scene)
        await _swap(scene)
        await _cost(scene)


async def _confirmation(scene: Scene) -> None:
    anthropic = scene.fakes["anthropic"]
    anthropic.answer_with(thinking_part("The README says what it is."), call_part("read_file", {"path": "README.md"}))
    anthropic.reply(_ANSWER)
    await scene.write("What is this project?")
    anthropic.answer_with(
        text_part("I add a sentence on how to put it out."),
        call_part("write_file", {"path": "README.md", "content": _README + "\n`lantern off` puts it out before.\n"}),
    )
    anthropic.reply("Done: the README says now how to put it out.")
    await scene.write("Say in the README how to put it out earlier")
    scene.save("chat-confirmation")
    await scene.app.run_action("screen.dismiss('once')")
    await scene.wait_for_answer()


async def _swap(scene: Scene) -> None:
    await scene.write("/model gemini-flash")
    scene.save("chat-swap")
    await scene.app.run_action("screen.dismiss('yes')")
    await scene.wait_for_drawing()


async def _cost(scene: Scene) -> None:
    scene.fakes["gemini"].reply("It has one more sentence, on `lantern off`.")
    await scene.write("What has changed in the README?")
    await scene.write("/cost")
    scene.save("chat-cost")


@contextlib.asynccontextmanager
async def _open_scene() -> AsyncIterator[Scene]:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "work").mkdir()
        (folder / "work" / "README.md").write_text(_README, "utf-8")
        fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in ("anthropic", "gemini")}
        config = folder / "config.toml"
        config.write_text(_CONFIG.format(**{name: fake.base_url for name, fake in fakes.items()}), "utf-8")
        config.chmod(0o600)
        user_settings = settings.load(environment={}, file=config, keyring=lambda _: None)
        store = await stack.enter_async_context(open_store("memory:"))
        tools = builtin_tools(("read_file", "write_file"))
        agent = await stack.enter_async_context(
            Agent(store, settings=user_settings, tools=tools, workspace=folder / "work")
        )
        app = ChatApp(agent, await store.create_session())
        await stack.enter_async_context(app.run_test(size=SIZE))
        app.query_one(InputLine).cursor_blink = False
        yield Scene(app, fakes)


if __name__ == "__main__":
    asyncio.run(main())
