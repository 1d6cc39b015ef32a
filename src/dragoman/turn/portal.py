"""Agents for code without an event loop: scripts and notebooks.

    with Agent(model="gpt-5") as agent:
        print(agent.ask("What is a ULID?").text)
        for text in agent.stream("What is a ULID?"): ...
        rows = agent.wait_for(agent.store.read(session_id))         any other coroutine

One thread runs an event loop for all of them, so it also works where a loop is running, as in Jupyter. A blocking
method starts the asynchronous one in that loop and waits for its result. Invariant: if the wait is interrupted
(Ctrl-C), the coroutine is cancelled, and the call returns after its end, so that what it stored is complete.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import os
import queue
import re
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from dragoman.errors import InputError
from dragoman.exchange import Options
from dragoman.store import Store
from dragoman.turn.agent import Agent
from dragoman.turn.answer import Answer, AnswerStream
from dragoman.turn.types import TurnEvent

T = TypeVar("T")
P = ParamSpec("P")

_END: Final = object()  # after the last item of a stream
_EXIT_S: Final = 5.0


class _Portal:
    """A thread that runs an event loop until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.process_id = os.getpid()  # a forked process has no such thread
        self._thread = threading.Thread(target=self.loop.run_forever, name="dragoman-portal", daemon=True)
        self._thread.start()
        atexit.register(self._close)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> _Job[T]:
        """Start a coroutine in the loop."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise InputError("a blocking call would stop its own event loop", remedy="Await the asynchronous method")
        return _Job(self.loop, coroutine)

    def _close(self) -> None:
        if self.process_id == os.getpid():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_EXIT_S)
            if not self._thread.is_alive():
                if not asyncio.all_tasks(self.loop):
                    self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                self.loop.close()


class _Job(Generic[T]):
    """A coroutine that runs in the loop of the portal."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._result: concurrent.futures.Future[T] = concurrent.futures.Future()
        loop.call_soon_threadsafe(self._start, coroutine)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._result.set_exception(concurrent.futures.CancelledError())
        elif (error := task.exception()) is not None:
            self._result.set_exception(error)
        else:
            self._result.set_result(task.result())

    def wait(self) -> T:
        """Wait for the result. If the wait is interrupted, cancel the coroutine and wait for its end."""
        try:
            return self._result.result()
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel the coroutine and wait for its end, unless it is over."""
        if not self._result.done():
            self._loop.call_soon_threadsafe(lambda: self._task is not None and self._task.cancel())
            concurrent.futures.wait([self._result])


_lock: Final = threading.Lock()
_portal: _Portal | None = None


def _get_portal() -> _Portal:
    global _portal  # noqa: PLW0603  one thread for the whole process
    with _lock:
        if _portal is None or _portal.process_id != os.getpid():
            _portal = _Portal()
        return _portal


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop of the portal, and return its result."""
    return _get_portal().submit(coroutine).wait()


def iterate(source: AsyncIterable[T]) -> Iterator[T]:
    """The items of an asynchronous iterable. Leaving the loop closes it."""
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def pump() -> None:
        try:
            async for item in source:
                items.put(item)
        finally:
            items.put(_END)

    job = _get_portal().submit(pump())
    try:
        while (item := items.get()) is not _END:
            yield item
        job.wait()
    finally:
        job.cancel()


def block(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The blocking form of an asynchronous function."""

    @functools.wraps(method)
    def call(*args: P.args, **keywords: P.kwargs) -> T:
        with explain_keywords(call.__name__):
            coroutine = method(*args, **keywords)
        return wait_for(coroutine)

    return call


@contextlib.contextmanager
def explain_keywords(name: str) -> Iterator[None]:
    """Name this function in the error about an unknown keyword, and how to pass an option."""
    try:
        yield
    except TypeError as error:
        match = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if match is None:
            raise
        remedy = f". Pass options=dragoman.Options({match[1]}=…)" if match[1] in Options.__struct_fields__ else ""
        raise TypeError(f"{name}() got an {match[0]}{remedy}") from None


def _block_method(
    method: Callable[Concatenate[Agent, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingAgent, P], T]:
    @functools.wraps(method)
    def call(self: BlockingAgent, /, *args: P.args, **keywords: P.kwargs) -> T:
        with explain_keywords(method.__qualname__):
            coroutine = method(self.agent, *args, **keywords)
        return wait_for(coroutine)

    return call


def _block_stream(
    method: Callable[Concatenate[Agent, P], AnswerStream[T]],
) -> Callable[Concatenate[BlockingAgent, P], BlockingStream[T]]:
    @functools.wraps(method)
    def call(self: BlockingAgent, /, *args: P.args, **keywords: P.kwargs) -> BlockingStream[T]:
        with explain_keywords(method.__qualname__):
            stream = method(self.agent, *args, **keywords)
        return BlockingStream(stream)

    return call


class BlockingStream(Generic[T]):
    """An ``AnswerStream`` for a loop without ``async``."""

    def __init__(self, stream: AnswerStream[T]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        return iterate(self._stream)

    def events(self) -> Iterator[TurnEvent]:
        """The events of the turn as they happen."""
        return iterate(self._stream.events())

    def answer(self) -> Answer[T]:
        """The whole answer, after the rest has arrived."""
        return wait_for(self._stream.answer())


class BlockingAgent:
    """An open ``Agent`` whose methods wait for their results. ``agent`` is the asynchronous one."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        wait_for(agent.__aenter__())

    @property
    def store(self) -> Store:
        """The store. Its methods are asynchronous: pass their coroutines to ``wait_for``."""
        return self.agent.store

    ask = _block_method(Agent.ask)
    stream = _block_stream(Agent.stream)
    run = _block_method(Agent.run)
    pending_calls = _block_method(Agent.pending_calls)
    recover = _block_method(Agent.recover)
    close = _block_method(Agent.close)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the agent or of its store."""
        return wait_for(coroutine)
