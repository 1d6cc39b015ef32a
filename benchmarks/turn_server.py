"""A provider in its own process that replies immediately: a complete reply, or a stream of words.

The model ``late`` sends its first words after 50 ms, about as soon as the fastest providers do. ``still`` sends its
first words and then nothing, until the client disconnects. ``calls-N`` requests N tools in one reply, and replies with
text to their results. ``delta-N`` sends N characters in one event, ``letters-N`` one character in each of N events.
"""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

WORDS = 200
_LATE_S = 0.05
_CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_USAGE = {"prompt_tokens": 5, "completion_tokens": WORDS, "total_tokens": WORDS + 5}


def _data(delta: dict[str, object], finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({**_CHUNK, "choices": [choice], **more}).encode() + b"\n\n"


_STREAM = [
    _data({"role": "assistant", "content": ""}),
    *(_data({"content": f"word{number} "}) for number in range(WORDS)),
    _data({}, "stop", usage=_USAGE),
    b"data: [DONE]\n\n",
]
_MESSAGE = {"role": "assistant", "content": "".join(f"word{number} " for number in range(WORDS))}
_REPLY = json.dumps(
    {
        **_CHUNK,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
        "usage": _USAGE,
    }
).encode()


def _calls(count: int) -> bytes:
    """Return a stream with this many tool calls."""
    pieces = [
        _data({"tool_calls": [{"index": at, "id": f"call_{at}", "function": {"name": "look", "arguments": "{}"}}]})
        for at in range(count)
    ]
    return b"".join((*pieces, _data({}, "tool_calls", usage=_USAGE), b"data: [DONE]\n\n"))


def _text(size: int, count: int) -> bytes:
    """Return a stream with this many events of this many characters."""
    pieces = [_data({"role": "assistant", "content": ""}), *[_data({"content": "x" * size})] * count]
    return b"".join((*pieces, _data({}, "stop", usage=_USAGE), b"data: [DONE]\n\n"))


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if not body.get("stream"):
        return web.Response(body=_REPLY, content_type="application/json")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    kind, _, count = body["model"].partition("-")
    if kind == "calls" and body["messages"][-1]["role"] != "tool":
        await response.write(_calls(int(count)))
        await response.write_eof()
        return response
    if kind in ("delta", "letters"):
        await response.write(_text(int(count), 1) if kind == "delta" else _text(1, int(count)))
        await response.write_eof()
        return response
    if body["model"] == "still":
        await response.write(b"".join(_STREAM[:5]))
        await asyncio.sleep(3600)
    if body["model"] == "late":
        await asyncio.sleep(_LATE_S)
    for piece in _STREAM:
        await response.write(piece)
    await response.write_eof()
    return response


def main() -> None:
    """Listen on a free port, and print the port."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", answer)

    async def serve() -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(site._server.sockets[0].getsockname()[1], flush=True)  # type: ignore[union-attr]
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent closes its pipe

    asyncio.run(serve())


if __name__ == "__main__":
    main()
