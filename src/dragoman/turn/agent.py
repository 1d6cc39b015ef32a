"""An agent answers questions. It runs turns in the sessions of a store.

async with Agent(model="gpt-5", tools=[weather]) as agent:
    answer = await agent.ask("Is it raining in Bern?")           the answer; ``AnswerError`` if there is none
    async for text in agent.stream("Is it raining?"): ...        its text as it arrives

    async for event in agent.turn(session.id, "Hello"): ...      one turn of a session: the events as they happen
    end = await agent.run(session.id, "Hello")                   the end of the turn, also if it failed
    task = agent.begin(session.id, "Hello"); task.cancel()       a task that others can follow and cancel

``with Agent(...) as agent`` is for code without an event loop: see ``portal``.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypedDict, TypeVar, Unpack, overload

import msgspec

from dragoman import settings as settings_module
from dragoman.bus import Bus
from dragoman.bus.trace_writer import TraceWriter
from dragoman.client import Client
from dragoman.errors import DragomanError, FormatError
from dragoman.exchange import Options, ToolDefinition
from dragoman.message import Block, ContentBlock, Message, TextBlock, ToolResultBlock, UnknownBlock
from dragoman.output_format import output_from
from dragoman.settings import Setting, Settings
from dragoman.store import Session, Store, open_store
from dragoman.tools import Approval, Tool, ToolRegistry, Workspace
from dragoman.turn.answer import Answer, AnswerStream
from dragoman.turn.config import AgentConfig
from dragoman.turn.delegation import delegate_tool
from dragoman.turn.image_policy import image_from_file
from dragoman.turn.pending_calls import PendingCalls
from dragoman.turn.services import AgentServices
from dragoman.turn.start import make_turn_tools, recover_session
from dragoman.turn.state import TurnUsage, find_open_calls
from dragoman.turn.task import TurnTask
from dragoman.turn.turn import run
from dragoman.turn.types import AGENT_OPTIONS, PendingCall, TurnEnd, TurnEvent, TurnFields, TurnRequest

if TYPE_CHECKING:
    from dragoman.tools.mcp import McpServer, McpTools
    from dragoman.turn.portal import BlockingAgent

AnyTool: TypeAlias = "Tool | McpServer | Callable[..., Any]"

T = TypeVar("T")
Question = str | Iterable[str | Path | ContentBlock]  # a text, or texts, paths of images and blocks

_TITLE_LENGTH: Final = 60  # of a session that a question creates
_LISTS: Final = (
    "tools",
    "answers",
    "approvals",
    "attachments",
    "imported",
)  # fields of a turn that may be any iterable
_PENDING_WINDOW: Final = 200  # messages; the calls of one answer and their results are fewer


class QuestionFields(TypedDict, total=False):
    """The keywords of ``Agent.ask`` besides ``output``; its docstring explains them."""

    session: Session | Answer[Any] | str | None
    history: Iterable[Message]
    model: str | None
    options: Options
    context: str | None
    tools: Iterable[ToolDefinition]
    answers: Iterable[ToolResultBlock]
    approvals: Iterable[Approval]
    user_id: str | None


class Agent:
    """Answers questions, and runs turns in the sessions of a store.

    ``store`` is a store, its URL, or the path of a SQLite file; without one, nothing is written to disk. ``model`` is
    the default model. ``tools`` are functions, tools, or MCP servers (``McpServer``), which run while the agent is
    open. ``config`` has the settings that few programs change.
    """

    def __init__(
        self,
        store: Store | Path | str | None = None,
        *,
        model: str | None = None,
        settings: Settings | None = None,
        tools: Iterable[AnyTool] | ToolRegistry = (),
        workspace: Workspace | Path | str | None = None,
        system_prompt: str | None = None,
        options: Options = Options(),  # noqa: B008  an immutable value
        bus: Bus | None = None,
        client: Client | None = None,
        config: AgentConfig | None = None,
    ) -> None:
        _check_type("options", options, Options, "Pass dragoman.Options(…)")
        config = config or AgentConfig()
        settings = settings or settings_module.load()
        if model is not None:
            settings = msgspec.structs.replace(settings, default_model=Setting(model, "model"))
        self._owns_store = not isinstance(store, Store)
        self.store = store if isinstance(store, Store) else open_store(store or "memory:", strict=settings.is_strict)
        self.bus = bus or Bus()
        self.services = AgentServices(
            self.store, config, settings=settings, workspace=workspace, bus=self.bus, client=client or Client()
        )
        if model is not None:
            self.services.get_model(model)  # raises for an unknown name
        servers: list[McpServer] = []
        if not isinstance(tools, ToolRegistry):
            servers, tools = _split_servers(tools)
        self._mcp_servers = servers
        self._mcp_tools: McpTools | None = None
        registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        if config.allow_delegation:
            registry = ToolRegistry((*registry, delegate_tool(self.services, lambda: self.config)))
        self.config = msgspec.structs.replace(config, tools=registry, system_prompt=system_prompt, options=options)
        self._turn_tasks: list[TurnTask] = []
        self._owns_bus, self._owns_client = bus is None, client is None
        records_trace = self._owns_bus if config.record_trace is None else config.record_trace
        self._trace = TraceWriter(self.store) if records_trace else None

    @property
    def agent_key(self) -> str:
        """The key of its trace entries."""
        return self.config.agent_key

    @property
    def tools(self) -> ToolRegistry:
        """The tools that its models are offered."""
        return self.config.tools

    @tools.setter
    def tools(self, registry: ToolRegistry) -> None:
        self.config = msgspec.structs.replace(self.config, tools=registry)

    async def __aenter__(self) -> Self:
        if self._owns_store:
            await self.store.__aenter__()
        if self._mcp_servers:
            await self._open_mcp_servers()
        if self._owns_bus:
            self.bus.start()
        if self._trace is not None:
            self._trace.listen(self.bus)
        return self

    async def _open_mcp_servers(self) -> None:
        """Start the MCP servers, and add their tools. Raises the error of a server that does not start."""
        from dragoman.tools.mcp import McpTools  # noqa: PLC0415  an extra

        self._mcp_tools = await McpTools(self._mcp_servers).__aenter__()
        for failure in self._mcp_tools.failures.values():
            await self.close()
            raise failure
        self.tools = ToolRegistry((*self.tools, *self._mcp_tools.tools))

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> BlockingAgent:
        """Open the agent for code without an event loop."""
        from dragoman.turn.portal import BlockingAgent  # noqa: PLC0415  it wraps this class

        return BlockingAgent(self)

    def __exit__(self, *_: object) -> None:
        from dragoman.turn.portal import wait_for  # noqa: PLC0415

        wait_for(self.close())

    async def close(self) -> None:
        """Cancel running turns and close what the agent opened itself. A store that you opened stays open."""
        for task in list(self._turn_tasks):
            await task.cancel_and_wait()
        await self.services.close()
        if self._mcp_tools is not None:
            await self._mcp_tools.aclose()
        if self._owns_client:
            await self.services.client.close()
        if self.config.local_model is None:
            await self.services.local_model.close()
        if self._trace is not None:
            await self._trace.close()
        if self._owns_bus:
            await self.bus.close()
        if self._owns_store:
            await self.store.__aexit__(None, None, None)

    # --- questions ---------------------------------------------------------------------------------------------------

    @overload
    async def ask(
        self, question: Question = ..., *, output: None = ..., **fields: Unpack[QuestionFields]
    ) -> Answer[None]: ...
    @overload
    async def ask(
        self, question: Question = ..., *, output: type[T], **fields: Unpack[QuestionFields]
    ) -> Answer[T]: ...
    @overload
    async def ask(
        self, question: Question = ..., *, output: dict[str, Any], **fields: Unpack[QuestionFields]
    ) -> Answer[Any]: ...
    async def ask(
        self,
        question: Question = (),
        *,
        output: Any = None,
        session: Session | Answer[Any] | str | None = None,
        history: Iterable[Message] = (),
        model: str | None = None,
        options: Options = AGENT_OPTIONS,
        context: str | None = None,
        tools: Iterable[ToolDefinition] = (),
        answers: Iterable[ToolResultBlock] = (),
        approvals: Iterable[Approval] = (),
        user_id: str | None = None,
    ) -> Answer[Any]:
        """Ask a question, and return the answer. Raises ``AnswerError`` if the model does not answer.

        ``session`` is the session to continue: its id, or an answer in it. Without one, the question starts a new
        session. ``history`` are messages to store before the question. ``output`` is the type or the JSON Schema of the
        answer, which is validated and ``parsed``. ``context`` is added to the system prompt. ``tools`` are definitions
        of tools that you run; ``answers`` and ``approvals`` are for calls that an earlier answer left ``pending``.
        """
        stream = self.stream(
            question,
            output=output,
            session=session,
            history=history,
            model=model,
            options=options,
            context=context,
            tools=tools,
            answers=answers,
            approvals=approvals,
            user_id=user_id,
        )
        return await stream.answer()

    def stream(
        self,
        question: Question = (),
        *,
        output: Any = None,
        session: Session | Answer[Any] | str | None = None,
        history: Iterable[Message] = (),
        model: str | None = None,
        options: Options = AGENT_OPTIONS,
        context: str | None = None,
        tools: Iterable[ToolDefinition] = (),
        answers: Iterable[ToolResultBlock] = (),
        approvals: Iterable[Approval] = (),
        user_id: str | None = None,
    ) -> AnswerStream[Any]:
        """Ask a question, and return its answer as it arrives: iterate over the text, or over its ``events()``."""
        content = _blocks_from(question)
        fields: TurnFields = {
            "output": None if output is None else output_from(output),
            "model": model,
            "options": options,
            "context": context,
            "tools": tools,
            "answers": answers,
            "approvals": approvals,
            "user_id": user_id,
            "imported": _read_history(history),
        }
        if session is not None:
            session_id = _get_session_id(session)
            return AnswerStream(self.turn(session_id, content, **fields), fields["output"], session_id)
        if not content:
            raise FormatError("the question is empty", where="ask", remedy="Pass a text, or the session to continue")
        return AnswerStream(self._turn_in_new_session(content, fields), fields["output"])

    async def _turn_in_new_session(
        self, content: tuple[ContentBlock, ...], fields: TurnFields
    ) -> AsyncGenerator[TurnEvent, None]:
        """The events of one turn in a new session, which is deleted if the turn is rejected."""
        text = " ".join(block.text for block in content if isinstance(block, TextBlock))
        title = " ".join(text.split())[:_TITLE_LENGTH] or None
        session = await self.store.create_session(title=title, user_id=fields["user_id"])
        is_rejected = True
        try:
            async with aclosing(self.turn(session.id, content, **fields)) as events:
                async for event in events:
                    is_rejected = False
                    yield event
        except DragomanError:
            if is_rejected:
                await self.store.delete_session(session.id)
            raise

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn(
        self, session_id: str, content: Question = (), **fields: Unpack[TurnFields]
    ) -> AsyncGenerator[TurnEvent, None]:
        """The events of one turn. The keywords are fields of ``TurnRequest``. Closing it cancels the turn."""
        return run(self.services, self.config, _make_request(session_id, content, fields))

    async def run(self, session_id: str, content: Question = (), **fields: Unpack[TurnFields]) -> TurnEnd:
        """Run one turn to its end, which has its fault if it failed. The answer is the newest message."""
        end: TurnEnd | None = None
        async for event in self.turn(session_id, content, **fields):
            if isinstance(event, TurnEnd):
                end = event
        assert end is not None  # the last event of a turn that does not raise
        return end

    def begin(self, session_id: str, content: Question = (), **fields: Unpack[TurnFields]) -> TurnTask:
        """Start one turn in a task of its own, which runs until the turn ends or is cancelled."""
        request = _make_request(session_id, content, fields)
        usage = TurnUsage(request.run_id or self.store.new_id())
        task = TurnTask(request, run(self.services, self.config, request, usage), usage)
        self._turn_tasks.append(task)
        task.task.add_done_callback(lambda _: self._turn_tasks.remove(task))
        return task

    async def pending_calls(self, session_id: str) -> tuple[PendingCall, ...]:
        """The pending calls of the last answer of a session, from its stored history."""
        history = [row.message for row in await self.store.tail(session_id, _PENDING_WINDOW)]
        open_calls = await find_open_calls(self.store, session_id, history)
        request = TurnRequest(session_id=session_id)
        tools = await make_turn_tools(self.config, request)
        return PendingCalls(self.services, self.config, request, open_calls, tools).filter_pending(open_calls)

    async def recover(self, session_id: str) -> None:
        """Close what a crash left unfinished in a session, without a new turn.

        Raises ``ConflictError`` (``turn_in_flight``) while a turn may be running there.
        """
        await recover_session(self.services, session_id)


def _split_servers(tools: Iterable[AnyTool]) -> tuple[list[McpServer], list[Tool | Callable[..., Any]]]:
    """The MCP servers and the other tools of a list. Only a program that has servers has loaded their module."""
    module = sys.modules.get("dragoman.tools.mcp")
    servers: list[Any] = []
    others: list[Any] = []
    for item in tools:
        (servers if module is not None and isinstance(item, module.McpServer) else others).append(item)
    return servers, others


def _blocks_from(question: Question) -> tuple[ContentBlock, ...]:
    """The blocks of a question. Raises ``FormatError`` for a text without a character."""
    blocks = _to_blocks(question)
    if blocks and all(isinstance(block, TextBlock) and not block.text.strip() for block in blocks):
        raise FormatError("the question is empty", where="ask", remedy="Pass a text")
    return blocks


def _to_blocks(question: Question) -> tuple[ContentBlock, ...]:
    _check_type("question", question, Iterable, "Pass a text, or a list of texts, blocks and paths of images")
    return tuple(_to_block(part) for part in ((question,) if isinstance(question, str) else question))


def _to_block(part: str | Path | ContentBlock) -> ContentBlock:
    match part:
        case str():
            return TextBlock(part)
        case Path():
            return image_from_file(part)
    remedy = "Pass texts, blocks and paths of images; pass earlier messages as history"
    _check_type("question", part, (Block, UnknownBlock), remedy)
    return part


def _get_session_id(session: Session | Answer[Any] | str) -> str:
    match session:
        case str():
            return session
        case Answer():
            return session.session_id
    return session.id


def _make_request(session_id: str, content: Question, fields: TurnFields) -> TurnRequest:
    values: dict[str, Any] = {"session_id": session_id, "content": _to_blocks(content)}
    for name, value in fields.items():
        values[name] = tuple(typing.cast("Iterable[Any]", value)) if name in _LISTS else value
    request = TurnRequest(**values)
    _check_type("options", request.options, Options, "Pass dragoman.Options(…)")
    _check_type("model", request.model, (str, NoneType), "Pass one id or alias")
    for tool in request.tools:
        remedy = "Pass functions to Agent(tools=[…]); tools of a question are definitions of tools that you run"
        _check_type("tools", tool, ToolDefinition, remedy)
    return request


def _read_history(history: Iterable[Message]) -> list[Message]:
    """The messages, without the session that they were read from."""
    messages = list(history)
    for message in messages:
        remedy = 'Read messages of an API with dragoman.dialects.load("openai_chat").read_request(…)'
        _check_type("history", message, Message, remedy)
    return [message.replace(session_id="") for message in messages]


def _check_type(name: str, value: object, types: type | tuple[type, ...], remedy: str) -> None:
    """Raise ``FormatError`` if an argument has another type: structs do not check theirs."""
    if not isinstance(value, types):
        raise FormatError(f"a value of type {type(value).__name__} is not accepted", where=name, remedy=remedy)
