"""A gateway in the event loop of the test, without a server. Its upstream sends scripted bytes.

    async with open_gateway(folder, answer) as gateway:
        response = await gateway.post("anthropic", "openai_chat", body, stream=True)

There is one provider per dialect, with the name of the dialect.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from dragoman import settings
from dragoman.gateway import Caller, Gateway, GatewayRequest, endpoints, make_gateway
from dragoman.store import open_store
from dragoman.turn import Agent
from tests.gateway.sdk_clients import CLIENTS
from tests.servers.faulty_server import Answer, FaultyServer, ReceivedRequest

PATHS = {
    "anthropic": ("/v1/messages", "/v1/messages"),
    "bedrock_converse": ("/model/{model}/converse", "/model/{model}/converse-stream"),
    "cohere": ("/v2/chat", "/v2/chat"),
    "gemini": ("/v1beta/models/{model}:generateContent", "/v1beta/models/{model}:streamGenerateContent"),
    "ollama": ("/api/chat", "/api/chat"),
    "openai_chat": ("/v1/chat/completions", "/v1/chat/completions"),
    "openai_responses": ("/v1/responses", "/v1/responses"),
}


class CompleteResponse(msgspec.Struct, frozen=True):
    """A response whose body was read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes


class OpenGateway:
    """A gateway and its upstream."""

    def __init__(self, gateway: Gateway, upstream: FaultyServer) -> None:
        self.gateway = gateway
        self.upstream = upstream

    async def post(
        self, dialect: str, model: str, body: bytes, *, stream: bool = False, **headers: str
    ) -> CompleteResponse:
        """Send a request in a dialect for a model."""
        path = PATHS[dialect][stream].replace("{model}", model)
        query = "alt=sse" if dialect == "gemini" and stream else ""
        return await self._send(path, body, query, headers)

    async def send(self, path: str, body: Any) -> CompleteResponse:
        """Send a request with a JSON body to a path."""
        return await self._send(path, msgspec.json.encode(body), "", {})

    async def _send(self, path: str, body: bytes, query: str, headers: dict[str, str]) -> CompleteResponse:
        match = endpoints.match("POST", path)
        assert match is not None
        caller = Caller("ann", None)
        request = GatewayRequest(method="POST", path=path, query=query, headers=headers, body=body, caller=caller)
        response = await self.gateway.handle(match, request)
        data: Any = response.body
        if not isinstance(data, bytes):
            data = b"".join([chunk async for chunk in data])
        return CompleteResponse(response.status, response.headers, data)


@contextlib.asynccontextmanager
async def open_gateway(
    folder: Path,
    answer: Callable[[ReceivedRequest], Answer],
    names: Iterable[str] = tuple(CLIENTS),
    record: Literal["off", "durable"] = "off",
) -> AsyncIterator[OpenGateway]:
    """Open a gateway whose providers of these dialects all answer with ``answer``."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FaultyServer(answer))
        rows = [
            f'[providers.{name}]\ndialect = "{name}"\nbase_url = "{upstream.address}"\napi_key = "sk-own-secret-key"\n'
            for name in names
        ]
        file = folder / "config.toml"
        # A model name without a provider uses the provider of the caller's dialect.
        defaults = "".join(f'{name} = "{name}"\n' for name in names)
        file.write_text("".join(rows) + f"[gateway.providers]\n{defaults}")
        file.chmod(0o600)
        loaded = settings.load(environment={}, file=file, keyring=lambda _: None)
        store = await stack.enter_async_context(open_store("memory:"))
        agent = await stack.enter_async_context(Agent(store, settings=loaded))
        gateway = make_gateway(agent.services, record)
        yield OpenGateway(gateway, upstream)
