"""An agent runs turns in the sessions of a store.

async with Agent(store) as agent:
    async for event in agent.turn(session.id, "Hello"): ...      the events as they happen
    end = await agent.ask(session.id, "Hello")                   the end of the turn
    task = agent.begin(session.id, "Hello"); task.cancel()       a task that others can follow and cancel
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from dragoman import settings as settings_module
from dragoman.bus import Bus
from dragoman.bus.trace_writer import TraceWriter
from dragoman.client import Client
from dragoman.exchange import Options
from dragoman.message import ContentBlock, TextBlock
from dragoman.settings import Settings
from dragoman.store import Store
from dragoman.tools import Tool, ToolRegistry, Workspace
from dragoman.turn.config import AgentConfig
from dragoman.turn.delegation import delegate_tool
from dragoman.turn.pending_calls import PendingCalls
from dragoman.turn.services import AgentServices
from dragoman.turn.start import make_turn_tools, recover_session
from dragoman.turn.state import TurnUsage, find_open_calls
from dragoman.turn.task import TurnTask
from dragoman.turn.turn import run
from dragoman.turn.types import PendingCall, TurnEnd, TurnEvent, TurnRequest

_PENDING_WINDOW: Final = 200  # messages; the calls of one answer and their results are fewer


class Agent:
    """Runs turns in the sessions of a store. ``config`` has the settings that few programs change."""

    def __init__(
        self,
        store: Store,
        *,
        settings: Settings | None = None,
        tools: Iterable[Tool] | ToolRegistry = (),
        workspace: Workspace | Path | str | None = None,
        system_prompt: str | None = None,
        options: Options = Options(),  # noqa: B008  an immutable value
        bus: Bus | None = None,
        client: Client | None = None,
        config: AgentConfig | None = None,
    ) -> None:
        config = config or AgentConfig()
        self.store = store
        self.bus = bus or Bus()
        self.services = AgentServices(
            store,
            config,
            settings=settings or settings_module.load(),
            workspace=workspace,
            bus=self.bus,
            client=client or Client(),
        )
        registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        if config.allow_delegation:
            registry = ToolRegistry((*registry, delegate_tool(self.services, lambda: self.config)))
        self.config = msgspec.structs.replace(config, tools=registry, system_prompt=system_prompt, options=options)
        self._turn_tasks: list[TurnTask] = []
        self._owns_bus, self._owns_client = bus is None, client is None
        records_trace = self._owns_bus if config.record_trace is None else config.record_trace
        self._trace = TraceWriter(store) if records_trace else None

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
        if self._owns_bus:
            self.bus.start()
        if self._trace is not None:
            self._trace.listen(self.bus)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel running turns and close what the agent opened itself. The store stays open."""
        for task in list(self._turn_tasks):
            await task.cancel_and_wait()
        await self.services.close()
        if self._owns_client:
            await self.services.client.close()
        if self.config.local_model is None:
            await self.services.local_model.close()
        if self._trace is not None:
            await self._trace.close()
        if self._owns_bus:
            await self.bus.close()

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn(
        self, session_id: str, content: str | Iterable[ContentBlock] = (), **fields: Any
    ) -> AsyncGenerator[TurnEvent, None]:
        """The events of one turn. ``fields`` are further fields of ``TurnRequest``. Closing it cancels the turn."""
        return run(self.services, self.config, _make_request(session_id, content, fields))

    async def ask(self, session_id: str, content: str | Iterable[ContentBlock] = (), **fields: Any) -> TurnEnd:
        """Run one turn to its end. Its answer is the newest message of the session."""
        end: TurnEnd | None = None
        async for event in self.turn(session_id, content, **fields):
            if isinstance(event, TurnEnd):
                end = event
        assert end is not None  # the last event of a turn that does not raise
        return end

    def begin(self, session_id: str, content: str | Iterable[ContentBlock] = (), **fields: Any) -> TurnTask:
        """Start one turn in a task of its own, which runs until the turn ends or is cancelled."""
        request = _make_request(session_id, content, fields)
        usage = TurnUsage(request.run_id or self.store.new_id())
        task = TurnTask(request, run(self.services, self.config, request, usage), usage)
        self._turn_tasks.append(task)
        task.task.add_done_callback(lambda _: self._turn_tasks.remove(task))
        return task

    def active_turn(self, session_id: str) -> TurnTask | None:
        """The task of ``begin`` that runs in a session, if there is one."""
        return next((task for task in self._turn_tasks if task.request.session_id == session_id), None)

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


def _make_request(session_id: str, content: str | Iterable[ContentBlock], fields: dict[str, Any]) -> TurnRequest:
    blocks = (TextBlock(content),) if isinstance(content, str) else tuple(content)
    return TurnRequest(session_id=session_id, content=blocks, **fields)
