"""The WebSocket of the Responses API: authentication, messages, and the time limit of a connection.

Invariant: a handshake without a valid key is refused before the connection is accepted.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final

from starlette.types import Receive, Send

from dragoman.gateway.response_socket import LIMIT_REACHED, MAX_CONNECTION_S, ResponseConnection

_POLICY_VIOLATION: Final = 1008


async def refuse(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    """Answer a handshake with an HTTP response."""
    head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "websocket.http.response.start", "status": status, "headers": head})
    await send({"type": "websocket.http.response.body", "body": body})


async def serve_connection(connection: ResponseConnection, receive: Receive, send: Send) -> None:
    """Answer the messages of an accepted connection until the client leaves or the time is over."""
    await send({"type": "websocket.accept"})
    loop = asyncio.get_running_loop()
    end_s = loop.time() + MAX_CONNECTION_S
    while True:
        try:
            async with asyncio.timeout_at(end_s):
                event = await receive()
        except TimeoutError:
            await send({"type": "websocket.send", "text": LIMIT_REACHED})
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        if event["type"] == "websocket.disconnect":
            return
        async with aclosing(connection.answer(_read_message(event))) as events:
            async for text in events:
                await send({"type": "websocket.send", "text": text})


def _read_message(event: Any) -> str | bytes:
    text: str | None = event.get("text")
    data: bytes | None = event.get("bytes")
    return text if text is not None else data or b""
