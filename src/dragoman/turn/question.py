"""One question to a model, without an agent.

    print(dragoman.ask("What is a ULID?", model="gpt-5").text)
    for text in dragoman.stream("What is a ULID?", model="gpt-5"): ...
    answer = await dragoman.ask_async("What is a ULID?", model="gpt-5")

Each call opens an agent without a store and closes it: nothing is written to disk. The calls of one event loop share
the connections to providers. They are closed with the loop (``asyncio.run``), or, for code without a loop, when the
process ends. The embedded model keeps running until the process ends. To continue a conversation, to store it, or to
ask often, use an ``Agent``.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

from dragoman.client import Client
from dragoman.exchange import Options
from dragoman.local import LocalModel
from dragoman.message import Message
from dragoman.settings import Settings
from dragoman.tools import ToolRegistry
from dragoman.turn.agent import Agent, AnyTool, Question
from dragoman.turn.answer import Answer, AnswerStream
from dragoman.turn.config import AgentConfig
from dragoman.turn.portal import BlockingStream, block, explain_keywords
from dragoman.turn.types import TurnEvent

T = TypeVar("T")

_clients: Final = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[AsyncGenerator[Client, None], Client]]()


class AskFields(TypedDict, total=False):
    """The keywords of ``ask`` besides ``output``."""

    history: Iterable[Message]
    model: str | None
    system_prompt: str | None
    tools: Iterable[AnyTool] | ToolRegistry
    options: Options
    settings: Settings | None


@overload
async def ask_async(question: Question, *, output: None = ..., **fields: Unpack[AskFields]) -> Answer[None]: ...
@overload
async def ask_async(question: Question, *, output: type[T], **fields: Unpack[AskFields]) -> Answer[T]: ...
@overload
async def ask_async(question: Question, *, output: dict[str, Any], **fields: Unpack[AskFields]) -> Answer[Any]: ...
async def ask_async(
    question: Question,
    *,
    output: Any = None,
    history: Iterable[Message] = (),
    model: str | None = None,
    system_prompt: str | None = None,
    tools: Iterable[AnyTool] | ToolRegistry = (),
    options: Options = Options(),  # noqa: B008  an immutable value
    settings: Settings | None = None,
) -> Answer[Any]:
    """Ask a model one question, and return its answer. Nothing is stored.

    Without a ``model`` the default model of the settings answers. ``history`` are earlier messages of the conversation.
    ``output`` is a type or a JSON Schema that the answer must fit. Raises ``AnswerError`` if the model does not answer.
    """
    fields: AskFields = {"system_prompt": system_prompt, "tools": tools, "options": options, "settings": settings}
    async with _open_agent(fields, await _get_client()) as agent:
        answer: Answer[Any] = await agent.ask(question, output=output, history=history, model=model)
        return answer


def stream_async(
    question: Question,
    *,
    history: Iterable[Message] = (),
    model: str | None = None,
    system_prompt: str | None = None,
    tools: Iterable[AnyTool] | ToolRegistry = (),
    options: Options = Options(),  # noqa: B008  an immutable value
    settings: Settings | None = None,
) -> AnswerStream[None]:
    """Ask a model one question, and return its answer as it arrives: iterate over the text, or over its ``events()``.

    The keywords are those of ``ask``, without ``output``.
    """
    fields: AskFields = {"system_prompt": system_prompt, "tools": tools, "options": options, "settings": settings}
    return AnswerStream(_stream_events(question, history, model, fields), None)


async def _stream_events(
    question: Question, history: Iterable[Message], model: str | None, fields: AskFields
) -> AsyncGenerator[TurnEvent, None]:
    async with _open_agent(fields, await _get_client()) as agent:
        async for event in agent.stream(question, history=history, model=model).events():
            yield event


def stream(question: Question, **fields: Unpack[AskFields]) -> BlockingStream[None]:
    """Ask a model one question, and return its answer as it arrives, for code without an event loop."""
    with explain_keywords("stream"):
        return BlockingStream(stream_async(question, **fields))


ask = block(ask_async)
ask.__name__ = ask.__qualname__ = "ask"


def _open_agent(fields: AskFields, client: Client) -> Agent:
    return Agent(
        system_prompt=fields.get("system_prompt"),
        tools=fields.get("tools", ()),
        options=fields.get("options", Options()),
        settings=fields.get("settings"),
        client=client,
        config=AgentConfig(local_model=_local_model(), record_trace=False),
    )


async def _get_client() -> Client:
    """The client of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        generator = _hold_client()
        _clients[loop] = generator, await anext(generator)
    return _clients[loop][1]


async def _hold_client() -> AsyncGenerator[Client, None]:
    """Yield a client that is closed with the event loop: ``asyncio.run`` closes suspended generators at its end."""
    async with Client() as client:
        yield client


@functools.cache
def _local_model() -> LocalModel:
    """The embedded model of all questions. Its process ends with this one."""
    return LocalModel()
