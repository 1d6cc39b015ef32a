"""A chat server in its own process, with an empty handler beside its endpoints.

It listens on a free port, prints the port, and has two threads: ``long`` with the requested number of messages,
``short`` with fifty.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman import settings
from dragoman.client.transport import Transport
from dragoman.message import Message, MessageMetadata, Role, TextBlock
from dragoman.server.config import ServerConfig
from dragoman.server.http.endpoint import Endpoint, EventStream
from dragoman.server.server import bind_socket, freeze_loaded_objects, open_app_state, raise_file_limit, run_server
from dragoman.store import Store

LONG, SHORT = "long", "short"
PAGE = 50
_SETTINGS = """
default_model = "fake:m"
[providers.fake]
base_url = "http://127.0.0.1:{port}/v1"
[models."fake:m"]
max_context_tokens = 100000000
[models."fake:late"]
max_context_tokens = 100000000
[models."fake:still"]
max_context_tokens = 100000000
[models."fake:calls-{calls}"]
max_context_tokens = 100000000
[models."fake:delta-4000000"]
max_context_tokens = 100000000
[models."fake:letters-30000"]
max_context_tokens = 100000000
"""


async def empty(request: Request) -> Response:  # noqa: ARG001  there is nothing to look at
    return Response(b"{}", media_type="application/json")


class LoopWatch:
    """The lag of the event loop: the longest time that a ready task had to wait.

    The busy lag includes only the CPU time of this process. The two differ if other processes use the machine, or if
    the loop waits for a disk.
    """

    def __init__(self) -> None:
        self._lag_s = self._busy_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def read_and_reset(self) -> tuple[float, float]:
        """Return the largest lag and the largest busy lag since the last call, in milliseconds."""
        self._task = self._task or asyncio.create_task(self._watch())
        result = self._lag_s * 1000, self._busy_s * 1000
        self._lag_s = self._busy_s = 0.0
        return result

    async def _watch(self) -> None:
        while True:
            start, cpu_start = time.perf_counter(), time.process_time()
            await asyncio.sleep(_TICK_S)
            lag_s = time.perf_counter() - start - _TICK_S
            self._lag_s = max(self._lag_s, lag_s)
            self._busy_s = max(self._busy_s, min(lag_s, time.process_time() - cpu_start))


_TICK_S = 0.001
_WATCH = LoopWatch()


async def lag(request: Request) -> Response:  # noqa: ARG001
    return Response(json.dumps(_WATCH.read_and_reset()), media_type="application/json")


async def empty_stream(request: Request) -> Response:  # noqa: ARG001
    async def still() -> AsyncIterator[bytes]:
        yield b": \n\n"
        await asyncio.sleep(3600)

    return StreamingResponse(still(), media_type="text/event-stream")


class _Chunk(msgspec.Struct):
    """The fields of a provider's event that the floor reads."""

    class Choice(msgspec.Struct):
        class Delta(msgspec.Struct):
            content: str = ""

        delta: Delta

    choices: list[Choice]


class Floor:
    """A run with nothing but Starlette, msgspec and SQLite: two synced transactions, a provider call and a few events.

    It has no sessions, leases, routing, tools, prices, trace, errors or resumption.
    """

    def __init__(self, folder: Path, provider: int) -> None:
        self._connection = apsw.Connection(str(folder / "floor.db"))
        self._connection.execute(
            "PRAGMA journal_mode=wal; PRAGMA synchronous=NORMAL; CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)"
        ).fetchall()
        self._log = os.open(folder / "floor.db-wal", os.O_RDONLY)
        self._transport = Transport()
        self._url = f"http://127.0.0.1:{provider}/v1/chat/completions"
        self._decode = msgspec.json.Decoder(_Chunk).decode

    def _store(self, text: str) -> None:
        self._connection.execute("INSERT INTO rows (text) VALUES (?)", (text,))

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        self._store(msgspec.json.decode(body)["messages"][0]["content"])
        return StreamingResponse(self._frames(), media_type="text/event-stream")

    async def _frames(self) -> AsyncIterator[bytes]:
        wire = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        sync = asyncio.create_task(asyncio.to_thread(os.fdatasync, self._log))
        headers = {"content-type": "application/json"}
        data = msgspec.json.encode(wire)
        texts: list[str] = []
        with await self._transport.post(self._url, headers, data, connect_s=5, head_s=5) as response:
            await sync
            yield b'event: RUN_STARTED\ndata: {"type":"RUN_STARTED"}\n\n'
            while chunk := await response.read_chunk(5):
                frames = [frame[6:] for frame in chunk.split(b"\n\n") if frame[:7] == b"data: {" and frame[-1:] == b"}"]
                text = "".join(self._decode(frame).choices[0].delta.content for frame in frames)
                texts.append(text)
                event = msgspec.json.encode({"type": "TEXT_MESSAGE_CONTENT", "delta": text})
                self._store(event.decode())
                yield b"event: TEXT_MESSAGE_CONTENT\ndata: %b\n\n" % event
                await response.pause(0.005)
        self._store("".join(texts))
        await asyncio.to_thread(os.fdatasync, self._log)
        yield b'event: RUN_FINISHED\ndata: {"type":"RUN_FINISHED"}\n\n'


EXTRA_ENDPOINTS = (
    Endpoint("GET", "/empty", empty, name="empty", summary="Nothing", responses={200: {"type": "object"}}),
    Endpoint("GET", "/lag", lag, name="lag", summary="The largest lag since the last call", responses={200: {}}),
    Endpoint("GET", "/stream", empty_stream, name="stream", summary="Nothing, for long", responses={200: EventStream}),
)


async def fill_thread(store: Store, session_id: str, count: int) -> None:
    """Create a thread with this many messages of about 300 characters."""
    await store.create_session(session_id, user_id="local")
    first_time = datetime.now(UTC) - timedelta(seconds=count)
    for start in range(0, count, 500):
        messages = [
            Message(
                id=store.new_id(),
                session_id=session_id,
                role=Role.ASSISTANT if number % 2 else Role.USER,
                content=(TextBlock(f"message {number} " + "with a few words in it " * 12),),
                metadata=MessageMetadata(),
                created_at=first_time + timedelta(seconds=number),
            )
            for number in range(start, min(start + 500, count))
        ]
        await store.append(session_id, messages)


@contextlib.asynccontextmanager
async def open_server(folder: Path, upstream: int, *, messages: int, calls: int) -> AsyncIterator[int]:
    """Serve while the block lasts; the port."""
    file = folder / "config.toml"
    file.write_text(_SETTINGS.format(port=upstream, calls=calls))
    file.chmod(0o600)
    user_settings = settings.load(environment={}, file=file, keyring=lambda _: None)
    config = ServerConfig(store=f"sqlite:///{folder / 'chats.db'}", port=0, max_pending_runs=10_000, grace_s=1)
    listener, options = bind_socket(config)
    async with open_app_state(options, user_settings) as state:
        await fill_thread(state.store, SHORT, PAGE)
        await fill_thread(state.store, LONG, messages)
        freeze_loaded_objects()
        floor = Endpoint(
            "POST",
            "/floor",
            Floor(folder, upstream),
            name="floor",
            summary="A run without Dragoman",
            responses={200: EventStream},
        )
        async with run_server(state, listener, (*EXTRA_ENDPOINTS, floor)):
            assert options.port is not None
            yield options.port


async def serve(folder: Path, upstream: int, count: int, calls: int) -> None:
    """Serve until standard input is closed."""
    async with open_server(folder, upstream, messages=count, calls=calls) as port:
        print(port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, as the server uses it, if it is installed."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def main() -> None:
    raise_file_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        folder, upstream, count, *calls = sys.argv[1:]
        runner.run(serve(Path(folder), int(upstream), int(count), int(calls[0]) if calls else 1))


if __name__ == "__main__":
    main()
