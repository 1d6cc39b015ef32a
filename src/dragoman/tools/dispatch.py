"""Dispatch: the calls of an answer become results, each in the same steps, several at a time.

    look up → validate → scope → confirm → run → result

    results = await dispatch(calls, registry, bench, events=emit)

``bench`` is what the calls of one session share: its workspace, who is asked, what was allowed for its duration, how
many run at once. ``events`` is told (type, payload) of every step, ``results`` gets each result as it comes, and
``late`` what a tool still gave after its time was over. Who does not want to wait for a consent asks ``needs_consent``
before, ``ask_later`` in place of a dispatch, and hands in the ``approvals`` when there are some. An approval may change
the input: the result then says with what the tool was run, for the call stays as the model made it. Nothing that a tool
does makes ``dispatch`` raise. If it is
cancelled, tools are told to stop and have a moment to end what they started, every call that is open gets its result
through ``results``, and only then is the caller cancelled; with ``stop`` set, the same is returned instead.

The one rule: one call, one result, in the order of the calls. What comes later is never a second answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dragoman.errors import ToolFailedError
from dragoman.exchange import SideEffects
from dragoman.message import InvalidToolUseBlock, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.tools.confirmation import Approval, Confirm, Confirmation, ConfirmationPolicy, ConfirmationRequest
from dragoman.tools.registry import ToolRegistry
from dragoman.tools.tool import Preview, Tool, ToolContext, ToolOutput, content_from, truncate_middle
from dragoman.tools.workspace import Workspace

Call = ToolUseBlock | InvalidToolUseBlock
Events = Callable[[str, dict[str, Any]], None]
Results = Callable[[ToolResultBlock], None]

MAX_PARALLEL: Final = 4
CONFIRM_TIMEOUT_S: Final = 300.0
TIMEOUT_S: Final = 60.0
LONG_TIMEOUT_S: Final = 600.0  # of tools that execute something or change something elsewhere
GRACE_S: Final = 3.0  # for a tool that was told to stop, to end what it started
_SLOW: Final = (SideEffects.EXECUTE, SideEffects.NETWORK)
_MAX_SUMMARY: Final = 1_000
_MAX_LIST: Final = 4_000

_log: Final = logging.getLogger("dragoman.tools")


class LateResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool gave after its call had been answered for it: to be recorded, never to be sent."""

    tool_use_id: str
    tool_name: str
    result: ToolResultBlock
    latency_ms: int


LateResults = Callable[[LateResult], None]


class ToolSession:
    """What the calls of one session share."""

    def __init__(
        self,
        session_id: str,
        *,
        workspace: Workspace | None = None,
        policy: ConfirmationPolicy | None = None,
        confirm: Confirm | None = None,
        confirm_timeout_s: float = CONFIRM_TIMEOUT_S,
        max_parallel: int = MAX_PARALLEL,
        user_id: str | None = None,
    ) -> None:
        self.session_id = session_id
        self.workspace = workspace
        self.policy = policy or ConfirmationPolicy()
        self.confirm = confirm
        self.confirm_timeout_s = confirm_timeout_s
        self.user_id = user_id
        self.slots = asyncio.Semaphore(max_parallel)
        self.confirm_lock = asyncio.Lock()  # one question at a time, in the order of the calls
        self.answers: dict[str, Confirmation] = {}  # by tool, until the session ends
        self._orphans: set[asyncio.Task[Any]] = set()
        self._in_use = 0  # dispatches that are not over

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be missed without it: nobody runs, nobody is asked, nothing was allowed for long."""
        return not (self.answers or self._orphans or self.confirm_lock.locked() or self._in_use)

    def add_orphan(self, task: asyncio.Task[Any]) -> None:
        """Nobody waits for this one any more; it may still end."""
        self._orphans.add(task)
        task.add_done_callback(self._orphans.discard)

    def begin_use(self) -> None:
        """Calls are dispatched here."""
        self._in_use += 1

    def end_use(self) -> None:
        """They have their results."""
        self._in_use -= 1

    async def aclose(self, wait_s: float = GRACE_S) -> None:
        """Wait a moment for tools that did not stop when they were told to, then let go of them."""
        orphans = [task for task in self._orphans if not task.done()]
        if orphans:
            _, unfinished = await asyncio.wait(orphans, timeout=wait_s)
            for task in unfinished:
                task.cancel()
            await asyncio.wait(orphans, timeout=wait_s)


async def dispatch(
    calls: Iterable[Call],
    registry: ToolRegistry,
    session: ToolSession,
    *,
    events: Events | None = None,
    results: Results | None = None,
    late_results: LateResults | None = None,
    stop: asyncio.Event | None = None,
    turn_id: str | None = None,
    approvals: Mapping[str, Approval] = MappingProxyType({}),
) -> tuple[ToolResultBlock, ...]:
    """The results of the calls, in their order. ``approvals`` are by the ids of the calls."""
    listeners = _Listeners(events, results, late_results)
    tool_calls = [
        _ToolCall(call, registry, session, listeners, turn_id, approval=approvals.get(call.id)) for call in calls
    ]
    if not tool_calls:
        return ()
    tasks = [asyncio.create_task(tool_call.execute()) for tool_call in tool_calls]
    stop_task = asyncio.create_task(stop.wait()) if stop is not None else None
    session.begin_use()
    try:
        await _wait_all_or_stop(tasks, stop_task)
        return await _collect_results(tool_calls, tasks)
    except asyncio.CancelledError:
        await _run_to_completion(_collect_results(tool_calls, tasks))
        raise
    finally:
        session.end_use()
        if stop_task is not None:
            stop_task.cancel()


def requires_approval(call: Call, registry: ToolRegistry, session: ToolSession) -> bool:
    """Whether a call that is in order would have to wait for somebody."""
    tool = registry.get(call.name)
    if tool is None or isinstance(call, InvalidToolUseBlock) or registry.problems(call.name, call.input):
        return False
    return session.policy.decision(tool.definition) == "prompt" and tool.name not in session.answers


def emit_approval_request(
    call: ToolUseBlock, registry: ToolRegistry, session: ToolSession, events: Events, turn_id: str
) -> None:
    """Tell that a call waits for somebody's consent. Nobody waits here, and silence is no answer."""
    _ToolCall(call, registry, session, _Listeners(events, None, None), turn_id).emit_approval_request()


async def _wait_all_or_stop(tasks: Sequence[asyncio.Task[Any]], stop_task: asyncio.Task[Any] | None) -> None:
    """Until all have their result, or somebody says stop."""
    all_results = asyncio.gather(*tasks)
    await asyncio.wait([all_results, *([stop_task] if stop_task else [])], return_when=asyncio.FIRST_COMPLETED)


async def _run_to_completion(coroutine: Coroutine[Any, Any, Any]) -> None:
    """To its end, however often the caller is cancelled meanwhile: it takes a moment at most."""
    task = asyncio.ensure_future(coroutine)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)


async def _collect_results(
    tool_calls: list[_ToolCall], tasks: list[asyncio.Task[ToolResultBlock]]
) -> tuple[ToolResultBlock, ...]:
    for task in tasks:
        task.cancel()  # nothing happens to those that are done
    await asyncio.wait(tasks)
    return tuple(
        tool_call.make_cancel_result() if task.cancelled() else task.result()
        for tool_call, task in zip(tool_calls, tasks, strict=True)
    )


class _Listeners(msgspec.Struct, frozen=True):
    """Who is told what happens. A listener that fails is a listener's problem."""

    events: Events | None
    results: Results | None
    late_results: LateResults | None

    def event(self, event_type: str, **payload: Any) -> None:
        self._call(self.events, event_type, payload)

    def result(self, result: ToolResultBlock) -> None:
        self._call(self.results, result)

    def late_result(self, result: LateResult) -> None:
        _log.info("%s gave a result %d ms after it was called, too late", result.tool_name, result.latency_ms)
        self._call(self.late_results, result)

    def _call(self, listener: Callable[..., None] | None, *arguments: Any) -> None:
        if listener is None:
            return
        try:
            listener(*arguments)
        except Exception:  # noqa: BLE001  somebody else's code
            _log.exception("a listener of dispatch failed")


class _ToolCall:
    """One call on its way to its one result."""

    def __init__(
        self,
        call: Call,
        registry: ToolRegistry,
        session: ToolSession,
        listeners: _Listeners,
        turn_id: str | None,
        *,
        approval: Approval | None = None,
    ) -> None:
        self._call = call
        self._approval = approval
        self._registry = registry
        self._session = session
        self._listeners = listeners
        self._started_at = time.monotonic()
        self._context = ToolContext(
            session_id=session.session_id,
            tool_use_id=call.id,
            turn_id=turn_id,
            user_id=session.user_id,
            workspace=session.workspace,
        )

    async def execute(self) -> ToolResultBlock:
        try:
            result = await self._steps()
        except asyncio.CancelledError:
            return self.make_cancel_result()
        except ToolFailedError as error:
            result = self._fail(error.error_class, str(error))
        except Exception:  # noqa: BLE001  a tool is somebody else's code
            _log.warning("the tool %s failed", self._call.name, exc_info=True)
            result = self._fail("execution_error", "Tool execution failed.")
        self._listeners.result(result)
        return result

    def make_cancel_result(self) -> ToolResultBlock:
        """The result of a call that was stopped. It may have done part of its work."""
        result = self._fail("cancelled", "The call was cancelled before it had a result.")
        self._listeners.result(result)
        return result

    async def _steps(self) -> ToolResultBlock:
        tool = self._registry.get(self._call.name)
        if tool is None:
            text = f"There is no tool {self._call.name!r}. There are: {self._registry.names}"
            raise ToolFailedError(truncate_middle(text, _MAX_LIST), error_class="not_found")
        problems = self._problems()
        if problems or isinstance(self._call, InvalidToolUseBlock):
            return self._reject_input(problems)
        edited_input = self._approval.edited_input if self._approval is not None else None
        tool_input = self._call.input if edited_input is None else edited_input
        self._check_scope(tool, tool_input)
        await self._confirm(tool, tool_input)
        async with self._session.slots:
            result = await self._run(tool, tool_input)
        return result if edited_input is None else result.replace(content=(_edit_note(edited_input), *result.content))

    # --- before it runs

    def _problems(self) -> tuple[str, ...]:
        if isinstance(self._call, InvalidToolUseBlock):
            return (f"$: {self._call.reason}",)
        edited_input = self._approval.edited_input if self._approval is not None else None
        return self._registry.problems(self._call.name, self._call.input if edited_input is None else edited_input)

    def _reject_input(self, problems: tuple[str, ...]) -> ToolResultBlock:
        name = self._call.name
        self._listeners.event(
            "tool_input_invalid", tool_name=name, validation_errors=list(problems), tool_use_id=self._call.id
        )
        return self._error_result(
            f"The input does not fit the tool {name!r}, which was not run:\n" + "\n".join(problems)
        )

    def _check_scope(self, tool: Tool, input: dict[str, Any]) -> None:  # noqa: A002
        if not tool.definition.requires_workspace:
            return
        workspace = self._context.files
        paths = [input.get("path"), *_list(input.get("paths"))]
        for path in paths:
            if isinstance(path, str):
                workspace.check_path(path)

    async def _confirm(self, tool: Tool, input: dict[str, Any]) -> None:  # noqa: A002
        match self._session.policy.decision(tool.definition):
            case "auto":
                return
            case "deny":
                raise ToolFailedError(f"The tool {tool.name!r} is not allowed here", error_class="permission_denied")
        if self._approval is not None:
            answer = self._apply_approval(tool, self._approval)
        else:
            async with self._session.confirm_lock:
                answer = self._session.answers.get(tool.name) or await self._request_confirmation(tool, input)
        if not answer.allow:
            because = f": {answer.reason}" if answer.reason else ""
            raise ToolFailedError(f"The user did not allow this call{because}", error_class="user_denied")

    def _apply_approval(self, tool: Tool, approval: Approval) -> Confirmation:
        """The answer of somebody who was not waited for."""
        self._listeners.event(
            "tool.confirmation_resolved",
            tool_use_id=self._call.id,
            tool_name=tool.name,
            confirmation_request_id=_approval_id(self._call),
            decision="allow" if approval.approved else "deny",
            scope="once",
        )
        return Confirmation(approval.approved, reason=approval.reason or "")

    def emit_approval_request(self) -> None:
        """Ask, and do not wait."""
        tool = self._registry[self._call.name]
        assert isinstance(self._call, ToolUseBlock)  # nobody asks about what cannot be run
        try:
            self._emit_confirmation_request(tool, self._call.input, _approval_id(self._call), None)
        except Exception:  # noqa: BLE001  a preview is somebody else's code
            _log.warning("what %s is about to do could not be told", tool.name, exc_info=True)

    async def _request_confirmation(self, tool: Tool, input: dict[str, Any]) -> Confirmation:  # noqa: A002
        confirm = self._session.confirm
        if confirm is None:
            text = f"The tool {tool.name!r} needs somebody's consent, and nobody is here to give it"
            raise ToolFailedError(text, error_class="permission_denied")
        expires_at = datetime.now(UTC) + timedelta(seconds=self._session.confirm_timeout_s)
        question = self._emit_confirmation_request(tool, input, f"confirm_{secrets.token_hex(10)}", expires_at)
        started_at = time.monotonic()
        try:
            async with asyncio.timeout(self._session.confirm_timeout_s):
                answer = await confirm(question)
        except TimeoutError:
            self._emit_resolution(question, "timeout", None, started_at)
            raise ToolFailedError("Nobody allowed this call in time", error_class="confirmation_timeout") from None
        except asyncio.CancelledError:
            self._emit_resolution(question, "deny", None, started_at)
            raise
        except Exception:  # noqa: BLE001  somebody else's code
            _log.exception("whoever should have been asked about %s could not be", tool.name)
            self._emit_resolution(question, "deny", None, started_at)
            raise ToolFailedError("Nobody could be asked about this call", error_class="permission_denied") from None
        self._emit_resolution(question, "allow" if answer.allow else "deny", answer.scope, started_at)
        if answer.scope == "session":
            self._session.answers[tool.name] = answer
        return answer

    def _emit_confirmation_request(
        self, tool: Tool, arguments: dict[str, Any], request_id: str, expires_at: datetime | None
    ) -> ConfirmationRequest:
        preview = tool.preview(arguments, self._context) if tool.preview is not None else Preview()
        question = ConfirmationRequest(
            id=request_id,
            session_id=self._session.session_id,
            tool_use_id=self._call.id,
            tool_name=tool.name,
            side_effects=tool.definition.side_effects,
            input=arguments,
            input_summary=truncate_middle(msgspec.json.encode(arguments).decode(), _MAX_SUMMARY),
            projected_modifications=preview.projected_modifications,
            command_summary=preview.command_summary,
            expires_at=expires_at,
        )
        self._listeners.event(
            "tool.confirmation_requested",
            tool_use_id=question.tool_use_id,
            tool_name=question.tool_name,
            side_effects=question.side_effects,
            confirmation_request_id=question.id,
            input_summary=question.input_summary,
            projected_modifications=list(question.projected_modifications) or None,
            command_summary=question.command_summary,
            expires_at=question.expires_at,
        )
        return question

    def _emit_resolution(
        self, question: ConfirmationRequest, decision: str, scope: str | None, started_at: float
    ) -> None:
        self._listeners.event(
            "tool.confirmation_resolved",
            tool_use_id=question.tool_use_id,
            tool_name=question.tool_name,
            confirmation_request_id=question.id,
            decision=decision,
            scope=scope,
            latency_ms=_ms_since(started_at),
        )

    # --- running

    async def _run(self, tool: Tool, input: dict[str, Any]) -> ToolResultBlock:  # noqa: A002
        canonical = msgspec.json.encode(input, order="sorted")
        self._started_at = time.monotonic()
        self._listeners.event(
            "tool.called",
            tool_use_id=self._call.id,
            tool_name=tool.name,
            input_hash=hashlib.sha256(canonical).hexdigest(),
            input_size_bytes=len(canonical),
            side_effects=tool.definition.side_effects,
        )
        output = await self._output(tool, input)
        output = output if isinstance(output, ToolOutput) else ToolOutput(content=output)
        result = ToolResultBlock(self._call.id, content_from(output.content), output.is_error)
        self._listeners.event(
            "tool.completed",
            tool_use_id=self._call.id,
            tool_name=tool.name,
            success=not output.is_error,
            output_size_bytes=len(msgspec.json.encode(result.content)),
            latency_ms=_ms_since(self._started_at),
            files_modified=list(output.files_modified) or None,
            command_executed=output.command_executed,
        )
        return result

    async def _output(self, tool: Tool, input: dict[str, Any]) -> Any:  # noqa: A002
        timeout_s = tool.timeout_s or (LONG_TIMEOUT_S if tool.definition.side_effects in _SLOW else TIMEOUT_S)
        task = asyncio.ensure_future(tool.run(input, self._context))
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            await self._abandon(task)
            raise
        if done:
            return task.result()
        await self._abandon(task)
        raise ToolFailedError(f"The tool {tool.name!r} took longer than {timeout_s:g} s", error_class="timeout")

    async def _abandon(self, task: asyncio.Future[Any]) -> None:
        """Tell a tool to stop, and give it a moment. What it gives from now on is late."""
        self._context.stop_event.set()
        task.add_done_callback(self._handle_late_end)
        task.cancel()
        if isinstance(task, asyncio.Task):
            self._session.add_orphan(task)
        await asyncio.wait({task}, timeout=GRACE_S)

    def _handle_late_end(self, task: asyncio.Future[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            result = self._late_block(task.result())
        else:
            text = str(error) if isinstance(error, ToolFailedError) else "Tool execution failed."
            result = self._error_result(text)
        name = self._call.name
        self._listeners.late_result(
            LateResult(tool_use_id=self._call.id, tool_name=name, result=result, latency_ms=_ms_since(self._started_at))
        )

    def _late_block(self, output: Any) -> ToolResultBlock:
        output = output if isinstance(output, ToolOutput) else ToolOutput(content=output)
        try:
            return ToolResultBlock(self._call.id, content_from(output.content), output.is_error)
        except (TypeError, ValueError):
            return self._error_result("Tool execution failed.")

    # --- the result of what failed

    def _fail(self, error_class: str, text: str) -> ToolResultBlock:
        self._listeners.event(
            "tool.failed",
            tool_use_id=self._call.id,
            tool_name=self._call.name,
            error_class=error_class,
            error_message=text,
            latency_ms=_ms_since(self._started_at),
        )
        return self._error_result(text)

    def _error_result(self, text: str) -> ToolResultBlock:
        return ToolResultBlock(self._call.id, content_from(text) or (TextBlock(text),), is_error=True)


def _approval_id(call: Call) -> str:
    """What the question about a call is called, whoever asks it and whoever hears the answer."""
    return f"confirm_{call.id}"


def _edit_note(input: dict[str, Any]) -> TextBlock:  # noqa: A002
    text = truncate_middle(msgspec.json.encode(input).decode(), _MAX_LIST)
    return TextBlock(f"The user changed the input of this call. It was run with: {text}")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _ms_since(started_at: float) -> int:
    return round((time.monotonic() - started_at) * 1000)
