"""Calls for tests: whom to ask, what, and a client that does not really wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from dragoman import catalog, settings
from dragoman.adapter import Adapter, RequestContext
from dragoman.catalog import AdapterCapabilities, Model, Provider
from dragoman.client import Call, Client, Retries
from dragoman.event import MessageComplete, StreamError, StreamEvent, fold
from dragoman.exchange import Options, Reply, ToolDefinition
from dragoman.message import Message, TextBlock
from tests import recorded

KEY = "sk-canary-0123456789abcdef"
ONCE = Retries(max_retries=0)
CONTEXT = RequestContext(session_id=recorded.SESSION, message_id="01KE0000000000000000000009", created_at=recorded.NOON)


def provider_of(dialect: str) -> Provider:
    """The first provider that speaks a dialect."""
    return next(row for row in catalog.builtin().providers.values() if row.dialect == dialect)


def call_to(
    dialect: str,
    address: str,
    *,
    streamed: bool,
    messages: Iterable[Message] = recorded.SCENES["text"],
    tools: Iterable[ToolDefinition] = (),
    adapter: Adapter | None = None,
    options: Options | None = None,
    **more: Any,
) -> Call:
    """A call of a provider that speaks the dialect and is at that address."""
    provider = provider_of(dialect)
    model = Model(id=f"{provider.key}:tiny", provider=provider.key, name="tiny", capabilities=AdapterCapabilities())
    adapter = adapter or Adapter(provider, model)
    options = (options or Options(max_output_tokens=64)).replace(stream=streamed or None)
    found = settings.load(environment={}, keyring=lambda _: None)
    key = None if provider.runs_locally else KEY
    return Call(
        endpoint=found.endpoint(provider, api_key=key, base_url=address + urlsplit(provider.base_url or "").path),
        adapter=adapter,
        wire=adapter.to_wire(messages, tools, options).wire,
        context=CONTEXT,
        **more,
    )


class Unhurried(Client):
    """A client that notes how long it would wait, and does not."""

    def __init__(self, **arguments: Any) -> None:
        self.waits: list[float] = []
        super().__init__(sleep=self._note, **arguments)

    async def _note(self, seconds: float) -> None:
        self.waits.append(seconds)


async def heard(client: Client, call: Call) -> list[StreamEvent]:
    """The events of a stream, which ends as every stream has to: with one end, and nothing after it."""
    events = [event async for event in client.stream(call)]
    ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
    assert ends == events[-1:]
    return events


async def told(client: Client, call: Call) -> Reply:
    """The reply that a stream tells."""
    return fold(await heard(client, call))


def text_of(reply: Reply) -> str:
    return "".join(block.text for block in reply.content if isinstance(block, TextBlock))
