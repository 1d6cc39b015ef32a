"""FakeAgent for turns: strict fake providers, settings that name them, and an agent that calls them.

    async with open_fake_agent(folder, "anthropic", "gemini") as harness:
        harness.fakes["anthropic"].reply("…")
        (await harness.agent(tools=[…])).run(harness.session, "…", model="anthropic")

A fake has the name of its dialect, as a provider and as the alias of its model. ``blind-…`` is the same model without
support for images.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dragoman import dialects, settings
from dragoman.client import Retries
from dragoman.settings import Settings
from dragoman.store import Store, open_store
from dragoman.turn import Agent, AgentConfig
from tests.fake_providers import StrictProvider, strict_provider

DIALECTS = dialects.callable_names()
_MODEL = """
[providers.fake-{name}]
dialect = "{dialect}"
base_url = "{url}"
api_key_env = "FAKE_KEY"

[models."fake-{name}:model"]
aliases = ["{name}"]
max_context_tokens = 200000
supports_images = true
supports_tools = true
supports_thinking = true
supports_structured_output = true

[models."fake-{name}:blind"]
aliases = ["blind-{name}"]
max_context_tokens = 200000
supports_images = false
"""


class FakeAgent:
    """Fake providers, a store with an empty session, and the agents of a test."""

    def __init__(self, store: Store, settings: Settings, fakes: dict[str, StrictProvider], session: str) -> None:
        self.store = store
        self.settings = settings
        self.fakes = fakes
        self.session = session
        self._agents = contextlib.AsyncExitStack()

    async def agent(self, **fields: Any) -> Agent:
        """Create an agent with these parameters and these fields of its configuration."""
        return await self._agents.enter_async_context(make_agent(self.store, self.settings, **fields))

    async def close(self) -> None:
        await self._agents.aclose()


def make_agent(store: Store, settings: Settings, **fields: Any) -> Agent:
    """Create an agent without retries, with parameters of ``Agent`` and fields of ``AgentConfig``."""
    fields.setdefault("retries", Retries(max_retries=0))
    parameters = inspect.signature(Agent).parameters
    config = AgentConfig(**{name: value for name, value in fields.items() if name not in parameters})
    arguments = {name: value for name, value in fields.items() if name in parameters}
    return Agent(store, settings=settings, config=config, **arguments)


def settings_for(folder: Path, fakes: dict[str, StrictProvider], default: str = "", further_rows: str = "") -> Settings:
    """Return settings in which each fake is a provider."""
    rows = [_MODEL.format(name=name, dialect=fake.dialect, url=fake.base_url) for name, fake in fakes.items()]
    file = folder / "config.toml"
    file.write_text((f'default_model = "{default}"\n' if default else "") + "".join(rows) + further_rows)
    file.chmod(0o600)
    return settings.load(environment={"FAKE_KEY": "sk-fake"}, file=file, keyring=lambda _: None)


@contextlib.asynccontextmanager
async def open_fake_agent(folder: Path, *names: str, url: str = "memory:") -> AsyncIterator[FakeAgent]:
    """Open fakes of these dialects, the first of which answers by default, and an empty session."""
    async with contextlib.AsyncExitStack() as stack:
        fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in names}
        store = await stack.enter_async_context(open_store(url))
        session = await store.create_session()
        harness = FakeAgent(store, settings_for(folder, fakes, names[0]), fakes, session.id)
        stack.push_async_callback(harness.close)
        yield harness
