"""Calls for tests, and a client that records its retry delays without sleeping."""

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
from tests import recordings

KEY = "sk-canary-0123456789abcdef"
ONCE = Retries(max_retries=0)
CONTEXT = RequestContext(
    session_id=recordings.SESSION, message_id="01KE0000000000000000000009", created_at=recordings.NOON
)


def provider_of(dialect: str) -> Provider:
    """Return the first provider of a dialect."""
    return next(row for row in catalog.builtin().providers.values() if row.dialect == dialect)


def make_call(
    dialect: str,
    address: str,
    *,
    streamed: bool,
    messages: Iterable[Message] = recordings.SCENES["text"],
    tools: Iterable[ToolDefinition] = (),
    adapter: Adapter | None = None,
    options: Options | None = None,
    **more: Any,
) -> Call:
    """Build a call of a provider with this dialect at this address."""
    provider = provider_of(dialect)
    model = Model(id=f"{provider.key}:tiny", provider=provider.key, name="tiny", capabilities=AdapterCapabilities())
    adapter = adapter or Adapter(provider, model)
    options = (options or Options(max_output_tokens=64)).replace(stream=streamed or None)
    loaded = settings.load(environment={}, keyring=lambda _: None)
    key = None if provider.runs_locally else KEY
    return Call(
        endpoint=loaded.endpoint(provider, api_key=key, base_url=address + urlsplit(provider.base_url or "").path),
        adapter=adapter,
        wire=adapter.to_wire(messages, tools, options).wire,
        context=CONTEXT,
        **more,
    )


class NoSleepClient(Client):
    """Records its retry delays and does not sleep."""

    def __init__(self, **arguments: Any) -> None:
        self.waits: list[float] = []
        super().__init__(sleep=self._record, **arguments)

    async def _record(self, seconds: float) -> None:
        self.waits.append(seconds)


async def read_events(client: Client, call: Call) -> list[StreamEvent]:
    """Return the events of a stream. Only the last event may end it."""
    events = [event async for event in client.stream(call)]
    ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
    assert ends == events[-1:]
    return events


async def stream_reply(client: Client, call: Call) -> Reply:
    """Return the reply of a stream."""
    return fold(await read_events(client, call))


def text_of(reply: Reply) -> str:
    return "".join(block.text for block in reply.content if isinstance(block, TextBlock))
