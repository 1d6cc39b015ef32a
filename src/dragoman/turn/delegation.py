"""Delegation: a tool by which an agent gives a task to another one, in a session of its own, on a tier of its own.

    Agent(store, tools=[...], delegates=True)      offers the tool ``delegate`` to its models

The worker sees what it is given: the task, and either nothing else or the texts that were included. It has the same
workspace and those of the agent's tools that were allowed, but may not delegate further. Its session names the call
that made it. Whatever goes wrong comes back as an error result with one of seven names, and the turn that delegated
goes on. The one rule: a worker's words come back as a result, and nothing else of its session does.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.bus.event_types import turn_events
from dragoman.entries import DELEGATE
from dragoman.errors import (
    DragomanError,
    JsonError,
    RoutingFailedError,
    SchemaSizeError,
    ToolFailedError,
)
from dragoman.exchange import Options, ResponseFormat, SideEffects, StopReason, ToolDefinition
from dragoman.jsontext import read_json
from dragoman.message import TextBlock
from dragoman.routing import TIERS
from dragoman.schema_limits import measure_schema
from dragoman.tools import Tool, ToolContext
from dragoman.turn.types import AnswerEnd, TurnEnd

if TYPE_CHECKING:
    from dragoman.store import Session
    from dragoman.turn.agent import Agent

NAME: Final = DELEGATE
MAX_PARALLEL: Final = 4
TIMEOUT_S: Final = 300.0
_OUTPUT_FAULTS: Final = {  # faults of an answer that had to fit a schema, and the failure modes of the delegation
    "output_invalid": "output_schema_validation_failed",
    "output_truncated": "max_tokens_exceeded",
}
_INSUFFICIENT: Final = "INSUFFICIENT_CONTEXT"
_PROMPT: Final = (
    "You work on one task for another agent, which reads nothing but your last message. Do the task and answer with"
    f" its result alone. If what you were given does not suffice, answer {_INSUFFICIENT} and say what is missing."
)
_DEFINITION: Final = ToolDefinition(
    name=NAME,
    description=(
        "Give a task to a worker that has a model of another tier and starts without this conversation. It returns the"
        " worker's last message. Include in the context every text that the task needs."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "tier": {"type": "string", "enum": list(TIERS), "description": "How capable a model it needs"},
            "task": {"type": "string", "description": "What to do, in full"},
            "context": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Texts that the worker is given with the task",
            },
            "output_schema": {"type": "string", "description": "A JSON Schema, as text, that the result has to fit"},
            "allowed_tools": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Names of the tools that the worker may use; none if left out",
            },
            "max_tokens": {"type": "integer", "description": "At most so many tokens in each of its answers"},
        },
        "required": ["tier", "task"],
        "additionalProperties": False,
    },
    side_effects=SideEffects.NONE,
    requires_workspace=False,
)


def delegate_tool(agent: Agent) -> Tool:
    """The tool by which this agent delegates."""
    limit = asyncio.Semaphore(MAX_PARALLEL)

    async def run(input: dict[str, Any], context: ToolContext) -> Any:  # noqa: A002
        async with limit:
            return await _Delegation(agent, input, context).result()

    return Tool(definition=_DEFINITION, run=run, timeout_s=TIMEOUT_S + 10)


async def answer_task(agent: Agent, session_id: str, **fields: Any) -> tuple[TurnEnd, str]:
    """Run one turn of an agent. Return how it ended, and the words of its last answer."""
    text, end = "", None
    async for event in agent.turn(session_id, **fields):
        if isinstance(event, AnswerEnd):
            text = _text_of(event.row.message.content)
        elif isinstance(event, TurnEnd):
            end = event
    assert end is not None  # a turn that raises nothing ends so
    return end, text


class _DelegationError(Exception):
    def __init__(self, mode: str, text: str) -> None:
        super().__init__(text)
        self.mode = mode


class _Delegation:
    """One task that is given away."""

    def __init__(self, agent: Agent, input: dict[str, Any], context: ToolContext) -> None:  # noqa: A002
        self._agent = agent
        self._tier: str = input["tier"]
        self._task: str = input["task"]
        self._context_texts: list[str] = input.get("context") or []
        self._tool_names: list[str] = input.get("allowed_tools") or []
        self._schema = input.get("output_schema")
        self._max_tokens = input.get("max_tokens")
        self._context = context
        self._scope = agent.bus.scope(context.session_id, context.turn_id)
        self._started_at = time.perf_counter()
        self._session_id: str | None = None

    async def result(self) -> str:
        """The worker's last words; ``ToolFailedError`` names what went wrong."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._run_worker()
        except TimeoutError:
            raise self._fail("timeout", f"the worker was not done after {TIMEOUT_S:.0f} s") from None
        except asyncio.CancelledError:
            self._fail("cancelled_by_user", "the turn was cancelled")
            raise
        except _DelegationError as error:
            raise self._fail(error.mode, str(error)) from None

    def _fail(self, mode: str, text: str) -> ToolFailedError:
        fields = {"failure_mode": mode, "worker_session_id": self._session_id, "tool_use_id": self._context.tool_use_id}
        self._scope.try_emit("delegate.failed", {**fields, "latency_ms": self._latency_ms})
        return ToolFailedError(f"{mode}: {text}")

    @property
    def _latency_ms(self) -> float:
        return (time.perf_counter() - self._started_at) * 1000

    async def _run_worker(self) -> str:
        options = self._options()
        session = await self._create_session()
        worker = self._agent.worker(self._tool_names, _PROMPT)
        fields = {"tier": self._tier, "is_worker": True, "options": options, "user_id": self._context.user_id}
        end, text = await self._answer(worker, session, fields)
        if end.fault is not None and end.fault.code not in _OUTPUT_FAULTS:
            raise _DelegationError("worker_error", end.fault.message)
        if end.stop_reason is StopReason.MAX_TOKENS:
            raise _DelegationError("max_tokens_exceeded", "the worker's answer was cut off")
        if text.startswith(_INSUFFICIENT):
            raise _DelegationError(
                "insufficient_context", text.removeprefix(_INSUFFICIENT).strip(" :\n") or "it says no more"
            )
        if end.fault is not None:
            raise _DelegationError(_OUTPUT_FAULTS[end.fault.code], end.fault.message)
        self._scope.try_emit(
            turn_events.DelegateCompleted(
                worker_session_id=session,
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
            measure_schema(schema)  # before a worker is asked for something that cannot be checked
        except JsonError as error:
            raise _DelegationError("output_schema_validation_failed", f"output_schema is not JSON: {error}") from None
        except SchemaSizeError as error:
            raise _DelegationError("output_schema_validation_failed", f"output_schema is too large: {error}") from None
        if not isinstance(schema, dict):
            raise _DelegationError("output_schema_validation_failed", "output_schema is not an object")
        response_format = ResponseFormat("json_schema", schema, "result")
        return Options(max_output_tokens=self._max_tokens, response_format=response_format)

    async def _create_session(self) -> str:
        """The worker's session. It names the call that made it, and has the routing policy of its parent."""
        agent, context = self._agent, self._context
        parent = await agent.store.get_session(context.session_id)
        if not self._has_model(parent):
            raise _DelegationError("no_model_available_for_tier", f"no model is set up for tier {self._tier!r}")
        origin = {
            "is_worker": True,
            "parent_session_id": parent.id,
            "parent_tool_use_id": context.tool_use_id,
            "tier": self._tier,
        }
        session = await agent.store.create_session(
            title=f"Task: {self._task[:60]}",
            workspace_path=parent.workspace_path,
            routing_policy=parent.routing_policy,
            user_id=parent.user_id,
            team_id=parent.team_id,
            metadata=origin,
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
        tiers = self._agent.policy(parent).for_workspace(parent.workspace_path).tiers
        return self._tier in tiers or bool(self._agent.registry.find_by_tier(self._tier))

    async def _answer(self, worker: Agent, session_id: str, fields: dict[str, Any]) -> tuple[TurnEnd, str]:
        content = [TextBlock(text) for text in (*self._context_texts, self._task)]
        try:
            return await answer_task(worker, session_id, content=content, **fields)
        except RoutingFailedError as error:
            raise _DelegationError("no_model_available_for_tier", str(error)) from None
        except DragomanError as error:
            raise _DelegationError("worker_error", str(error)) from None


def _text_of(content: Iterable[msgspec.Struct]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextBlock)).strip()
