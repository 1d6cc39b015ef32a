"""A gateway server for clients that send raw bytes. Its upstream sends scripted bytes.

    async with run_raw_gateway(folder, answer) as served:
        async with served.connect() as client:            a RawClient whose calls use the fast path
            response = await client.ask(make_request("/v1/messages", body))

The providers ``up-a`` (Anthropic) and ``up-o`` (OpenAI) have the models ``claude`` and ``gpt``, with the aliases ``a``
and ``o``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from dragoman import settings
from dragoman.server.config import ServerConfig
from dragoman.server.server import ChatServer, bind_socket, open_app_state, run_server
from dragoman.server.state import AppState
from tests.server.raw import RawClient
from tests.servers.faulty_server import Answer, FaultyServer, ReceivedRequest, make_answer

CHAT = b'{"id":"c1","object":"chat.completion","created":1,"model":"gpt","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}'
MESSAGE = b'{"id":"m1","type":"message","role":"assistant","model":"claude","content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":1}}'
QUESTION = b'{"model":"o","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}'
GENERAL = "sec-fetch-site: none"  # a header that the fast path leaves to the application


def answer_without_stream(request: ReceivedRequest) -> Answer:
    """Return a reply in the dialect of the request, without a stream."""
    return make_answer(MESSAGE if request.path.startswith("/v1/messages") else CHAT)


def make_request(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """Return the bytes of a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class RawGateway:
    """A gateway server and its upstream."""

    def __init__(self, state: AppState, server: ChatServer, upstream: FaultyServer, port: int) -> None:
        self.state = state
        self.server = server
        self.upstream = upstream
        self.port = port

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[RawClient]:
        """Connect a client whose calls use the fast path. Its first request creates its user."""
        async with RawClient(f"http://127.0.0.1:{self.port}") as client:
            await client.ask(make_request("/v1/chat/completions", b"{}"))
            yield client


@contextlib.asynccontextmanager
async def run_raw_gateway(
    folder: Path,
    answers: Sequence[Answer] | Callable[[ReceivedRequest], Answer] = answer_without_stream,
    **options: Any,
) -> AsyncIterator[RawGateway]:
    """Run a gateway server until the block ends. ``options`` are those of the server."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FaultyServer(answers))
        file = folder / "config.toml"
        file.write_text(
            f'[providers.up-a]\ndialect = "anthropic"\nbase_url = "{upstream.address}"\napi_key = "sk-own-secret-key"\n'
            f'[providers.up-o]\ndialect = "openai_chat"\nbase_url = "{upstream.address}/v1"\napi_key = "sk-own-secret-key"\n'
            '[models."up-a:claude"]\naliases = ["a"]\n[models."up-o:gpt"]\naliases = ["o"]\n'
        )
        file.chmod(0o600)
        loaded = settings.load(environment={}, file=file, keyring=lambda _: None)
        options.setdefault("store", "memory:")
        options.setdefault("grace_s", 2.0)
        listener, config = bind_socket(ServerConfig(port=0, attachments=f"file://{folder}", **options))
        state = await stack.enter_async_context(open_app_state(config, loaded))
        server = await stack.enter_async_context(run_server(state, listener))
        assert config.port is not None
        yield RawGateway(state, server, upstream, config.port)
