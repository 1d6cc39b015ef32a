"""Delegation: a tool with which a model starts a worker, in a new session, on a model of another tier.

    Agent(store, tools=[...], config=AgentConfig(allow_delegation=True))      offers the tool ``delegate``

The worker receives the task and the texts that the call includes, the same workspace, and the tools that the call
allows; it cannot delegate. The metadata of its session name the call. A failure is an error result with one of seven
names. Invariant: the last message of the worker is the result, and nothing else of its session reaches the caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterable, Callable
from typing import Any, Final

import msgspec

from dragoman.bus.event_types import turn_events
from dragoman.entries import DELEGATE
from dragoman.errors import DragomanError, JsonError, RoutingFailedError, SchemaSizeError, ToolFailedError
from dragoman.exchange import Options, ResponseFormat, SideEffects, StopReason, ToolDefinition
from dragoman.jsontext import read_json
from dragoman.message import TextBlock
from dragoman.routing import TIERS
from dragoman.schema_limits import measure_schema
from dragoman.store import Session
from dragoman.tools import Tool, ToolContext
from dragoman.turn.config import AgentConfig
from dragoman.turn.services import AgentServices
from dragoman.turn.turn import run as run_turn
from dragoman.turn.types import AnswerEnd, TurnEnd, TurnEvent, TurnRequest

MAX_PARALLEL: Final = 4
TIMEOUT_S: Final = 300.0
_OUTPUT_FAULTS: Final = {  # faults of an answer that must fit a schema, and the failure modes of the delegation
    "output_invalid": "output_schema_validation_failed",
    "output_truncated": "max_tokens_exceeded",
}
_INSUFFICIENT: Final = "INSUFFICIENT_CONTEXT"
_PROMPT: Final = (
    "You work on one task for another agent, which reads nothing but your last message. Do the task and answer with"
    f" its result alone. If what you were given does not suffice, answer {_INSUFFICIENT} and say what is missing."
)
_DEFINITION: Final = ToolDefinition(
    name=DELEGATE,
    description=(
        "Give a task to a worker that has a model of another tier and starts without this conversation. It returns the"
        " worker's last message. Include in the context every text that the task needs."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "tier": {"type": "string", "enum": list(TIERS), "description": "How capable the model must be"},
            "task": {"type": "string", "description": "What to do, in full"},
            "context": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Texts that the worker receives with the task",
            },
            "output_schema": {"type": "string", "description": "A JSON Schema, as text, that the result must fit"},
            "allowed_tools": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Names of the tools that the worker may use; none if left out",
            },
            "max_tokens": {"type": "integer", "description": "Maximum tokens of each of its answers"},
        },
        "required": ["tier", "task"],
        "additionalProperties": False,
    },
    side_effects=SideEffects.NONE,
    requires_workspace=False,
)


def delegate_tool(services: AgentServices, get_config: Callable[[], AgentConfig]) -> Tool:
    """The tool ``delegate`` of an agent. ``get_config`` returns the agent's configuration at the time of a call."""
    limit = asyncio.Semaphore(MAX_PARALLEL)

    async def run(input: dict[str, Any], context: ToolContext) -> Any:  # noqa: A002
        async with limit:
            return await _Delegation(services, get_config(), input, context).result()

    return Tool(definition=_DEFINITION, run=run, timeout_s=TIMEOUT_S + 10)


async def collect_answer(events: AsyncIterable[TurnEvent]) -> tuple[TurnEnd, str]:
    """Run a turn to its end. Returns the end, and the text of the last answer."""
    text, end = "", None
    async for event in events:
        if isinstance(event, AnswerEnd):
            content = event.row.message.content
            text = "\n".join(block.text for block in content if isinstance(block, TextBlock)).strip()
        elif isinstance(event, TurnEnd):
            end = event
    assert end is not None  # the last event of a turn that does not raise
    return end, text


class _DelegationError(Exception):
    def __init__(self, mode: str, text: str) -> None:
        super().__init__(text)
        self.mode = mode


class _Delegation:
    """One delegated task."""

    def __init__(
        self,
        services: AgentServices,
        config: AgentConfig,
        input: dict[str, Any],  # noqa: A002
        context: ToolContext,
    ) -> None:
        self._services = services
        self._config = config
        self._tier: str = input["tier"]
        self._task: str = input["task"]
        self._context_texts: list[str] = input.get("context") or []
        self._tool_names: list[str] = input.get("allowed_tools") or []
        self._schema = input.get("output_schema")
        self._max_tokens = input.get("max_tokens")
        self._context = context
        self._scope = services.bus.scope(context.session_id, context.turn_id)
        self._started_at = time.perf_counter()
        self._session_id: str | None = None

    async def result(self) -> str:
        """The worker's last message; ``ToolFailedError`` with the failure mode."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._run_worker()
        except TimeoutError:
            raise self._fail("timeout", f"the worker did not finish within {TIMEOUT_S:.0f} s") from None
        except asyncio.CancelledError:
            self._fail("cancelled_by_user", "the turn was cancelled")
            raise
        except _DelegationError as error:
            raise self._fail(error.mode, str(error)) from None

    def _fail(self, mode: str, text: str) -> ToolFailedError:
        fields = {"failure_mode": mode, "worker_session_id": self._session_id, "latency_ms": self._latency_ms}
        self._scope.try_emit("delegate.failed", {**fields, "tool_use_id": self._context.tool_use_id})
        return ToolFailedError(f"{mode}: {text}")

    @property
    def _latency_ms(self) -> float:
        return (time.perf_counter() - self._started_at) * 1000

    async def _run_worker(self) -> str:
        options = self._options()
        session_id = await self._create_session()
        end, text = await self._answer(session_id, options)
        if end.fault is not None and end.fault.code not in _OUTPUT_FAULTS:
            raise _DelegationError("worker_error", end.fault.message)
        if end.stop_reason is StopReason.MAX_TOKENS:
            raise _DelegationError("max_tokens_exceeded", "the worker's answer was cut off")
        if text.startswith(_INSUFFICIENT):
            reason = text.removeprefix(_INSUFFICIENT).strip(" :\n")
            raise _DelegationError("insufficient_context", reason or "the worker did not state what is missing")
        if end.fault is not None:
            raise _DelegationError(_OUTPUT_FAULTS[end.fault.code], end.fault.message)
        self._scope.try_emit(
            turn_events.DelegateCompleted(
                worker_session_id=session_id,
                tool_use_id=self._context.tool_use_id,
                total_cost_usd=end.cost_usd,
                unpriced_calls=end.unpriced_calls,
                latency_ms=self._latency_ms,
            ),
        )
        return text

    def _options(self) -> Options:
        if self._schema is None:
            return Options(max_output_tokens=self._max_tokens)
        try:
            schema = read_json(self._schema)
            measure_schema(schema)  # before a worker is asked for output that cannot be validated
        except JsonError as error:
            raise _DelegationError("output_schema_validation_failed", f"output_schema is not JSON: {error}") from None
        except SchemaSizeError as error:
            text = f"output_schema is too large: {error}"
            raise _DelegationError("output_schema_validation_failed", text) from None
        if not isinstance(schema, dict):
            raise _DelegationError("output_schema_validation_failed", "output_schema is not an object")
        response_format = ResponseFormat("json_schema", schema, "result")
        return Options(max_output_tokens=self._max_tokens, response_format=response_format)

    async def _create_session(self) -> str:
        """Create the worker's session, with the routing policy of its parent."""
        context, store = self._context, self._services.store
        parent = await store.get_session(context.session_id)
        if not self._has_model(parent):
            text = f"no model is configured for tier {self._tier!r}"
            raise _DelegationError("no_model_available_for_tier", text)
        session = await store.create_session(
            title=f"Task: {self._task[:60]}",
            workspace_path=parent.workspace_path,
            routing_policy=parent.routing_policy,
            user_id=parent.user_id,
            team_id=parent.team_id,
            metadata={
                "is_worker": True,
                "parent_session_id": parent.id,
                "parent_tool_use_id": context.tool_use_id,
                "tier": self._tier,
            },
        )
        self._session_id = session.id
        self._scope.try_emit(
            turn_events.DelegateStarted(
                worker_session_id=session.id,
                tool_use_id=context.tool_use_id,
                tier=self._tier,
                task_hash=hashlib.sha256(self._task.encode("utf-8", "replace")).hexdigest(),
            ),
        )
        return session.id

    def _has_model(self, parent: Session) -> bool:
        tiers = self._services.policy(parent).for_workspace(parent.workspace_path).tiers
        return self._tier in tiers or bool(self._services.registry.find_by_tier(self._tier))

    async def _answer(self, session_id: str, options: Options) -> tuple[TurnEnd, str]:
        request = TurnRequest(
            session_id=session_id,
            content=tuple(TextBlock(text) for text in (*self._context_texts, self._task)),
            tier=self._tier,
            is_worker=True,
            options=options,
            user_id=self._context.user_id,
        )
        try:
            return await collect_answer(run_turn(self._services, self._worker_config(), request))
        except RoutingFailedError as error:
            raise _DelegationError("no_model_available_for_tier", str(error)) from None
        except DragomanError as error:
            raise _DelegationError("worker_error", str(error)) from None

    def _worker_config(self) -> AgentConfig:
        tools = self._config.tools
        names = [name for name in self._tool_names if name != DELEGATE and name in tools]
        return msgspec.structs.replace(
            self._config,
            tools=tools.subset(names),
            system_prompt=_PROMPT,
            agent_key=f"{self._config.agent_key}.worker",
            pause_for_approval=False,  # no caller continues its session
        )
