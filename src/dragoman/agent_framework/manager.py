"""A manager: it calls a planner, delegates tasks to workers, and writes the results to a memory.

    manager = ManagerAgent(planner=planner, memory=memory, workers={"schema": worker}, policies=None)
    result = await manager.run("List all tables")      {"operation", "payload", "human_readable_summary"}

A planner is a ``dragoman.turn.Agent``, or any object with ``plan(task, history)``. It returns an ``Action`` whose
``tool_name`` is a worker, a list of actions (which run in parallel), or a ``FinalResponse``. A worker is a
``dragoman.turn.Agent``, any object with ``run(task)``, or a function. Each of these may be sync or async.

The memory receives a ``task``; for each delegation a ``delegation``, an ``observation`` and a ``global_observation``;
at the end a ``synthesis`` of the results and a ``final``. Invariant: a worker never gets the same task twice in one
run.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dragoman.agent_framework.utils import message_builder as build
from dragoman.entries import DELEGATE, Entry, describe_entry
from dragoman.errors import DragomanError, InputError, RemoteFaultError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.message import TextBlock, ToolResultBlock
from dragoman.turn import Agent, PendingCall
from dragoman.turn.delegation import MAX_PARALLEL, collect_answer

MAX_STEPS: Final = 25
Result = dict[str, Any]


class Action(msgspec.Struct, frozen=True):
    """A task for a worker: ``tool_name`` is the worker, ``tool_args["task"]`` the task."""

    tool_name: str
    tool_args: dict[str, Any] = {}


class FinalResponse(msgspec.Struct, frozen=True):
    """The answer of an agent."""

    operation: str
    payload: dict[str, Any]
    human_readable_summary: str = ""

    def model_dump(self) -> Result:
        """The response as a dict."""
        return msgspec.structs.asdict(self)


class ManagerAgent:
    """Runs a task with workers.

    ``policies`` may have ``completion``, whose ``is_complete(result, history, context)`` ends the run, and
    ``follow_up``, whose ``should_follow_up(result, phases, completed_phases, context)`` decides whether to call the
    planner again. Without them the planner decides.
    """

    def __init__(
        self,
        planner: Any,
        memory: Any,
        workers: Mapping[str, Any] | Iterable[Any],
        policies: Mapping[str, Any] | None = None,
        *,
        name: str = "ManagerAgent",
        max_steps: int = MAX_STEPS,
    ) -> None:
        _check_part("planner", planner, isinstance(planner, Agent) or _has(planner, "plan"), "plan(task, history)")
        _check_part("memory", memory, _has(memory, "add", "get_history"), "add(message) and get_history()")
        self.memory = memory
        self.workers = _by_name(workers)
        for worker_name, worker in self.workers.items():
            is_worker = isinstance(worker, Agent) or _has(worker, "run") or callable(worker)
            _check_part(f"worker {worker_name!r}", worker, is_worker, "run(task)")
        self.policies = policies or {}
        self.name = name
        self.max_steps = max_steps
        self.planner = planner

    async def run(self, task: str) -> Result:
        """Run a task, and return a dict with the three fields of ``FinalResponse``."""
        return await _Run(self, task).result()


class _Run:
    """One task of a manager."""

    def __init__(self, manager: ManagerAgent, task: str) -> None:
        self._manager = manager
        self._task = task
        planner = manager.planner
        self._planner = _AgentPlanner(planner, manager.workers) if isinstance(planner, Agent) else planner
        self._entries: list[Entry] = []
        self._started_tasks: set[tuple[str, str]] = set()
        self._results: list[tuple[str, Any]] = []

    async def result(self) -> Result:
        await self._add(build.create_task_entry(self._task))
        for _ in range(self._manager.max_steps):
            decision = await _resolve(self._planner.plan(self._task, await self._history()))
            if hasattr(decision, "human_readable_summary"):
                return await self._finish(_response_dict(decision))
            await self._delegate(decision if isinstance(decision, list | tuple) else [decision])
            if await self._is_complete():
                break
        return await self._finish(self._combine_results())

    async def _history(self) -> list[Entry]:
        """The history of the memory, and the entries of this run that the memory does not return."""
        stored = list(await _resolve(self._manager.memory.get_history()))
        return [*stored, *(entry for entry in self._entries if entry not in stored)]

    async def _delegate(self, actions: Iterable[Any]) -> None:
        """Write all delegations, run the workers in parallel, and write their results in order."""
        tasks: list[tuple[str, str, str | None]] = []
        for action in actions:
            worker, task = action.tool_name, str(action.tool_args.get("task") or self._task)
            call_id = action.tool_args.get("tool_use_id")
            fields = {"tool_use_id": call_id} if call_id else {}
            await self._add(build.create_delegation_entry(worker=worker, task=task, **fields))
            tasks.append((worker, task, call_id))
        limit = asyncio.Semaphore(MAX_PARALLEL)
        runs = [self._run_worker(worker, task, limit) for worker, task, _ in tasks]
        for (worker, _, call_id), (result, failure) in zip(tasks, await asyncio.gather(*runs), strict=True):
            fields = {"tool_use_id": call_id} if call_id else {}
            if failure is not None:
                await self._add(build.create_error_entry(str(failure), type(failure).__name__, **fields))
                continue
            await self._add(build.create_observation_entry(result, **fields))
            broadcast = build.create_global_observation_entry(result, from_worker=worker, summary=_summary(result))
            await self._add(broadcast, is_global=True)
            self._results.append((worker, result))

    async def _run_worker(self, name: str, task: str, limit: asyncio.Semaphore) -> tuple[Any, DragomanError | None]:
        """The result of a worker, or its ``DragomanError``. Other exceptions propagate."""
        try:
            if name not in self._manager.workers:
                names = ", ".join(self._manager.workers) or "none"
                raise InputError(f"there is no worker {name!r}; the workers are: {names}", where="delegation")
            if (name, task) in self._started_tasks:
                text = f"{name!r} already has this task; use its result or change the task"
                raise InputError(text, where="delegation")
            self._started_tasks.add((name, task))
            async with limit:
                return _to_json(await _run_worker(self._manager.workers[name], task)), None
        except DragomanError as error:
            return None, error

    async def _is_complete(self) -> bool:
        """Whether the policies end the run after the newest result."""
        if not self._results:
            return False
        policies, result = self._manager.policies, self._results[-1][1]
        context = {"task": self._task, "manager_name": self._manager.name}
        completion, follow_up = policies.get("completion"), policies.get("follow_up")
        if completion is not None and completion.is_complete(result, await self._history(), context):
            return True
        return follow_up is not None and not follow_up.should_follow_up(result, [], len(self._results), context)

    def _combine_results(self) -> Result:
        """The results of the workers, if the planner returns no final response."""
        summary = "\n\n".join(_summary(result) for _, result in self._results)
        return {
            "operation": "results" if self._results else "error",
            "payload": {"results": [{"worker": worker, "result": result} for worker, result in self._results]},
            "human_readable_summary": summary or "no worker returned a result",
        }

    async def _finish(self, response: Result) -> Result:
        if self._results:
            content = {"results": dict(self._results), "summary": response["human_readable_summary"]}
            await self._add(build.create_synthesis_entry(content, from_manager=self._manager.name), is_global=True)
        await self._add(build.create_final_entry(response["human_readable_summary"]))
        return response

    async def _add(self, entry: Entry, *, is_global: bool = False) -> None:
        memory = self._manager.memory
        add = getattr(memory, "add_global", memory.add) if is_global else memory.add
        await _resolve(add(entry))
        self._entries.append(entry)


# --- planners and workers --------------------------------------------------------------------------------------------


class _AgentPlanner:
    """A ``dragoman.turn.Agent`` as planner: its model delegates a task by calling the tool ``delegate``."""

    def __init__(self, agent: Agent, workers: Iterable[str]) -> None:
        self._agent = agent
        self._tools = (_delegate_definition(list(workers)),)
        self._session_id: str | None = None
        self._pending: tuple[PendingCall, ...] = ()

    async def plan(self, task: str, history: list[Entry]) -> list[Action] | FinalResponse:
        if self._session_id is None:
            self._session_id = (await self._agent.store.create_session(title=f"Manager: {task[:60]}")).id
            context = "\n\n".join(describe_entry(entry)[0] for entry in history[:-1])  # the last entry is the task
            texts = [task, f"What is known so far:\n\n{context}"] if context else [task]
            fields: dict[str, Any] = {"content": [TextBlock(text) for text in texts]}
        else:
            fields = {"answers": tuple(_answer(call.call_id, history) for call in self._pending)}
        end, text = await collect_answer(self._agent.turn(self._session_id, tools=self._tools, **fields))
        if end.fault is not None:
            raise RemoteFaultError(end.fault)
        self._pending = end.pending
        if not end.pending:
            return FinalResponse("display_message", {"message": text}, text)
        return [Action(call.input["worker"], {**call.input, "tool_use_id": call.call_id}) for call in end.pending]


def _delegate_definition(workers: list[str]) -> ToolDefinition:
    return ToolDefinition(
        name=DELEGATE,
        description="Give a task to a worker. It returns the worker's result.",
        input_schema={
            "type": "object",
            "properties": {
                "worker": {"type": "string", "enum": workers, "description": "The worker"},
                "task": {"type": "string", "description": "What to do, in full"},
            },
            "required": ["worker", "task"],
            "additionalProperties": False,
        },
        side_effects=SideEffects.NONE,
        requires_workspace=False,
    )


def _answer(call_id: str, history: list[Entry]) -> ToolResultBlock:
    """The result of a call from the history."""
    match = next(entry for entry in reversed(history) if entry.get("tool_use_id") == call_id)
    return ToolResultBlock(call_id, (TextBlock(_summary(match["content"])),), is_error=match["type"] == "error")


def _has(value: Any, *methods: str) -> bool:
    return all(callable(getattr(value, method, None)) for method in methods)


def _check_part(name: str, value: Any, is_right: bool, needed: str) -> None:
    """Raise ``InputError`` if a part of a manager lacks a method."""
    if not is_right:
        expected = "an object" if name == "memory" else "an Agent, or an object"
        raise InputError(
            f"{type(value).__name__} has not the required methods",
            where=f"{name} of a manager",
            remedy=f"Pass {expected} with {needed}",
        )


def _by_name(workers: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """Workers by name: the key of a mapping, its ``name``, its ``agent_key``, or its index."""
    if isinstance(workers, Mapping):
        return dict(workers)
    result: dict[str, Any] = {}
    for index, worker in enumerate(workers or ()):
        name = getattr(worker, "name", None) or getattr(worker, "agent_key", None)
        result[name if name and name not in result else f"worker{index}"] = worker
    return result


async def _run_worker(worker: Any, task: str) -> Any:
    """Run a worker."""
    if isinstance(worker, Agent):
        session = await worker.store.create_session(title=f"Task: {task[:60]}", metadata={"is_worker": True})
        end, text = await collect_answer(worker.turn(session.id, task, is_worker=True))
        if end.fault is not None:
            raise RemoteFaultError(end.fault)
        return text
    return await _resolve(worker.run(task) if hasattr(worker, "run") else worker(task))


async def _resolve(value: Any) -> Any:
    """A value, or the result of an awaitable."""
    return await value if inspect.isawaitable(value) else value


def _response_dict(response: Any) -> Result:
    """The three fields of a response as a dict."""
    return {name: getattr(response, name) for name in ("operation", "payload", "human_readable_summary")}


def _to_json(result: Any) -> Any:
    """A result as JSON: a response becomes a dict, and other values become text."""
    return (
        _response_dict(result)
        if hasattr(result, "human_readable_summary")
        else msgspec.to_builtins(result, enc_hook=str)
    )


def _summary(result: Any) -> str:
    """A result as text."""
    if isinstance(result, Mapping) and isinstance(result.get("human_readable_summary"), str):
        return str(result["human_readable_summary"])
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()
