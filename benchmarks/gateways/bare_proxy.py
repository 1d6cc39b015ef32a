"""The least that a proxy in Python can do: ``python -m … forward|translate PORT PROVIDER_PORT``.

Both are protocols of the event loop with httptools and a pool of connections. ``forward`` passes the bytes of whole
replies. ``translate`` also decodes the request, writes it for the other API if its model belongs to that, and
translates the reply back: text only, without streams, errors, checks or limits.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
import msgspec

from benchmarks.gateways import bodies

_decode = msgspec.json.decode
_encode = msgspec.json.encode


class ProviderConnection(asyncio.Protocol):
    """A connection to the provider."""

    pool: list[ProviderConnection] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)

    def start(self, caller: CallerConnection, data: bytes) -> None:
        """Send a request for a caller."""
        self.caller, self.body = caller, b""
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.pool.append(self)
        self.caller.respond(self.body)


class CallerConnection(asyncio.Protocol):
    """A connection of a caller."""

    provider = ("127.0.0.1", 0)
    translates = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url, self.body = b"", b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        path, body = self.url.decode(), self.body
        self.api = bodies.ANTHROPIC if path.endswith("/messages") else bodies.OPENAI
        self.target = self.api
        if self.translates and body:
            request = _decode(body)
            self.target = bodies.ANTHROPIC if request["model"] == bodies.CLAUDE else bodies.OPENAI
            path, body = bodies.PATHS[self.target], _encode(_write_request(request, self.target))
        head = f"POST {path} HTTP/1.1\r\nhost: provider\r\ncontent-length: {len(body)}\r\n\r\n"
        self._send(head.encode() + body)

    def _send(self, data: bytes) -> None:
        if ProviderConnection.pool:
            ProviderConnection.pool.pop().start(self, data)
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.create_connection(ProviderConnection, *self.provider))
        task.add_done_callback(lambda done: done.result()[1].start(self, data))

    def respond(self, body: bytes) -> None:
        """Send a reply to the caller."""
        if self.target != self.api:
            body = _encode(_write_reply(_decode(body), self.api))
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )


def _write_request(request: dict[str, Any], api: str) -> dict[str, Any]:
    """Return a request of text messages for an API; the fields of both are the same."""
    del api
    return {name: request[name] for name in ("model", "max_tokens", "messages") if name in request}


def _write_reply(reply: dict[str, Any], api: str) -> dict[str, Any]:
    usage = reply["usage"]
    if api == bodies.ANTHROPIC:
        text = reply["choices"][0]["message"]["content"]
        counts = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
        fields = {"id": reply["id"], "type": "message", "role": "assistant", "model": reply["model"]}
        return {**fields, "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": counts}
    text = "".join(block["text"] for block in reply["content"])
    counts = {"prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {
        "id": reply["id"],
        "object": "chat.completion",
        "model": reply["model"],
        "choices": [choice],
        "usage": counts,
    }


async def main(kind: str, port: int, provider: int) -> None:
    """Serve until the process ends."""
    CallerConnection.translates = kind == "translate"
    CallerConnection.provider = ("127.0.0.1", provider)
    server = await asyncio.get_running_loop().create_server(CallerConnection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    arguments = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    try:
        import uvloop
    except ImportError:  # not on every system
        asyncio.run(main(*arguments))
    else:
        uvloop.run(main(*arguments))
