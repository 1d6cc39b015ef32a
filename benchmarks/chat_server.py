"""A chat server in a process of its own, with an empty handler beside its doors.

It listens on a free port, says which, and has two threads: ``long`` with as many messages as it is told, ``short`` with
fifty.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman import settings
from dragoman.message import Message, MessageMetadata, Role, TextBlock
from dragoman.server.endpoint import Endpoint, EventStream
from dragoman.server.options import ServeOptions
from dragoman.server.serving import allow_many_connections, bound, listening, opened_doors
from dragoman.store import Store

LONG, SHORT = "long", "short"
PAGE = 50
_SETTINGS = """
default_model = "fake:m"
[providers.fake]
base_url = "http://127.0.0.1:{port}/v1"
[models."fake:m"]
max_context_tokens = 100000
[models."fake:still"]
max_context_tokens = 100000
"""


async def empty(request: Request) -> Response:  # noqa: ARG001  there is nothing to look at
    return Response(b"{}", media_type="application/json")


async def empty_stream(request: Request) -> Response:  # noqa: ARG001
    async def still() -> AsyncIterator[bytes]:
        yield b": \n\n"
        await asyncio.sleep(3600)

    return StreamingResponse(still(), media_type="text/event-stream")


ALSO = (
    Endpoint("GET", "/empty", empty, name="empty", summary="Nothing", answers={200: {"type": "object"}}),
    Endpoint("GET", "/stream", empty_stream, name="stream", summary="Nothing, for long", answers={200: EventStream}),
)


async def filled(store: Store, session_id: str, count: int) -> None:
    """A thread with so many messages of about 300 characters."""
    await store.create_session(session_id, user_id="local")
    began = datetime.now(UTC) - timedelta(seconds=count)
    for start in range(0, count, 500):
        messages = [
            Message(
                id=store.new_id(),
                session_id=session_id,
                role=Role.ASSISTANT if number % 2 else Role.USER,
                content=(TextBlock(f"message {number} " + "with a few words in it " * 12),),
                metadata=MessageMetadata(),
                created_at=began + timedelta(seconds=number),
            )
            for number in range(start, min(start + 500, count))
        ]
        await store.append(session_id, messages)


async def serve(folder: Path, upstream: int, count: int) -> None:
    """Serve until whoever started this has gone."""
    file = folder / "config.toml"
    file.write_text(_SETTINGS.format(port=upstream))
    file.chmod(0o600)
    found = settings.load(environment={}, file=file, keyring=lambda _: None)
    asked = ServeOptions(store=f"sqlite:///{folder / 'chats.db'}", port=0, max_pending_runs=10_000, grace_s=1)
    listener, options = bound(asked)
    async with opened_doors(options, found) as doors:
        await filled(doors.store, SHORT, PAGE)
        await filled(doors.store, LONG, count)
        async with listening(doors, listener, ALSO):
            print(options.port, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    allow_many_connections()
    factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))


if __name__ == "__main__":
    main()
