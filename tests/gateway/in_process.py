"""A gateway in the loop of the test, without a server, over an upstream that sends given bytes.

    async with open_gateway(folder, answer) as gateway:
        response = await gateway.post("anthropic", "openai_chat", body, stream=True)

A provider of each dialect is called as the dialect is, and so is its one model.
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


class Sent(msgspec.Struct, frozen=True):
    """A response, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes


class OpenGateway:
    """The gateway, and its upstream."""

    def __init__(self, gateway: Gateway, upstream: FaultyServer) -> None:
        self.gateway = gateway
        self.upstream = upstream

    async def post(self, dialect: str, model: str, body: bytes, *, stream: bool = False, **headers: str) -> Sent:
        """One request in a dialect for a model."""
        path = PATHS[dialect][stream].replace("{model}", model)
        query = "alt=sse" if dialect == "gemini" and stream else ""
        return await self._send(path, body, query, headers)

    async def send(self, path: str, body: Any) -> Sent:
        """One request with a JSON body to a path."""
        return await self._send(path, msgspec.json.encode(body), "", {})

    async def _send(self, path: str, body: bytes, query: str, headers: dict[str, str]) -> Sent:
        found = endpoints.match("POST", path)
        assert found is not None
        caller = Caller("ann", None)
        request = GatewayRequest(method="POST", path=path, query=query, headers=headers, body=body, caller=caller)
        response = await self.gateway.handle(found, request)
        given: Any = response.body
        if not isinstance(given, bytes):
            given = b"".join([data async for data in given])
        return Sent(response.status, response.headers, given)


@contextlib.asynccontextmanager
async def open_gateway(
    folder: Path,
    answer: Callable[[ReceivedRequest], Answer],
    names: Iterable[str] = tuple(CLIENTS),
    record: Literal["off", "durable"] = "off",
) -> AsyncIterator[OpenGateway]:
    """A gateway whose providers of these dialects all answer with ``answer``."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FaultyServer(answer))
        rows = [
            f'[providers.{name}]\ndialect = "{name}"\nbase_url = "{upstream.address}"\napi_key = "sk-own-secret-key"\n'
            for name in names
        ]
        file = folder / "config.toml"
        defaults = "".join(f'{name} = "{name}"\n' for name in names)  # names as given reach the caller's dialect
        file.write_text("".join(rows) + f"[gateway.providers]\n{defaults}")
        file.chmod(0o600)
        loaded = settings.load(environment={}, file=file, keyring=lambda _: None)
        store = await stack.enter_async_context(open_store("memory:"))
        agent = await stack.enter_async_context(Agent(store, settings=loaded))
        gateway = make_gateway(agent.services, record)
        yield OpenGateway(gateway, upstream)
