"""Dispatch: run the tool calls of an answer, several in parallel, and return their results.

    look up → validate → check scope → confirm → run → result

    results = await dispatch(calls, registry, session, events=emit)

A ``ToolSession`` has the state that the calls of one session share: workspace, approvals, limits. ``events`` receives
(type, payload) of every step, ``results`` each result when it is ready, ``late_results`` the output of a tool that
returns after its time-out. For an approval that takes long, call ``requires_approval`` first,
``emit_approval_request`` instead of ``dispatch``, and pass the ``approvals`` later. An approval may change the input:
then the result states the input that was used.

If ``dispatch`` is cancelled, running tools are cancelled and get ``grace_s`` to stop, every open call gets its result
through ``results``, and then the cancellation is raised. If ``stop`` is set, the same results are returned instead.

Invariant: one call, one result, in the order of the calls. No exception of a tool leaves ``dispatch``.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dragoman.errors import ToolFailedError
from dragoman.exchange import SideEffects
from dragoman.message import InvalidToolUseBlock, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.shield import run_to_completion
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
LONG_TIMEOUT_S: Final = 600.0  # of tools with the side effects execute and network
GRACE_S: Final = 3.0  # for a cancelled tool to stop
_SLOW: Final = (SideEffects.EXECUTE, SideEffects.NETWORK)
_MAX_SUMMARY: Final = 1_000
_MAX_LIST: Final = 4_000
_FAILED_TEXT: Final = "Tool execution failed."

_log: Final = logging.getLogger("dragoman.tools")


class LateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a tool after its call got an error result. It is recorded, and is not the result of the call."""

    tool_use_id: str
    tool_name: str
    result: ToolResultBlock
    latency_ms: int


LateResults = Callable[[LateResult], None]


class ToolSession:
    """The state that the calls of one session share."""

    def __init__(
        self,
        session_id: str,
        *,
        workspace: Workspace | None = None,
        policy: ConfirmationPolicy | None = None,
        confirm: Confirm | None = None,
        confirm_timeout_s: float = CONFIRM_TIMEOUT_S,
        max_parallel: int = MAX_PARALLEL,
        grace_s: float = GRACE_S,
        user_id: str | None = None,
    ) -> None:
        self.session_id = session_id
        self.workspace = workspace
        self.policy = policy or ConfirmationPolicy()
        self.confirm = confirm
        self.confirm_timeout_s = confirm_timeout_s
        self.grace_s = grace_s
        self.user_id = user_id
        self.slots = asyncio.Semaphore(max_parallel)
        self.confirm_lock = asyncio.Lock()  # one question at a time, in the order of the calls
        self.answers: dict[str, Confirmation] = {}  # by tool, until the session ends
        self._orphans: set[asyncio.Task[Any]] = set()  # tools that did not stop in time
        self._dispatch_count = 0

    @property
    def is_idle(self) -> bool:
        """Whether it has no state to lose: no running tool, no question, no approval for the session."""
        return not (self.answers or self._orphans or self.confirm_lock.locked() or self._dispatch_count)

    def add_orphan(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to a tool that did not stop in time."""
        self._orphans.add(task)
        task.add_done_callback(self._orphans.discard)

    def begin_use(self) -> None:
        """Count a dispatch that starts."""
        self._dispatch_count += 1

    def end_use(self) -> None:
        """Count a dispatch that ended."""
        self._dispatch_count -= 1

    async def aclose(self, wait_s: float = GRACE_S) -> None:
        """Wait for tools that did not stop in time, then cancel them again."""
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
    """Run the calls and return their results in the same order. ``approvals`` are by call id."""
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
        await run_to_completion(_collect_results(tool_calls, tasks))
        raise
    finally:
        session.end_use()
        if stop_task is not None:
            stop_task.cancel()


def requires_approval(call: Call, registry: ToolRegistry, session: ToolSession) -> bool:
    """Whether a valid call requires an approval that the session does not have."""
    tool = registry.get(call.name)
    if tool is None or isinstance(call, InvalidToolUseBlock) or registry.problems(call.name, call.input):
        return False
    return session.policy.decision(tool.definition) == "prompt" and tool.name not in session.answers


def emit_approval_request(
    call: ToolUseBlock, registry: ToolRegistry, session: ToolSession, events: Events, turn_id: str
) -> None:
    """Emit that a call is pending until it is approved. The request does not expire."""
    _ToolCall(call, registry, session, _Listeners(events, None, None), turn_id).emit_approval_request()


async def _wait_all_or_stop(tasks: Sequence[asyncio.Task[Any]], stop_task: asyncio.Task[Any] | None) -> None:
    all_results = asyncio.gather(*tasks)
    await asyncio.wait([all_results, *([stop_task] if stop_task else [])], return_when=asyncio.FIRST_COMPLETED)


async def _collect_results(
    tool_calls: list[_ToolCall], tasks: list[asyncio.Task[ToolResultBlock]]
) -> tuple[ToolResultBlock, ...]:
    for task in tasks:
        task.cancel()  # does nothing if it is done
    await asyncio.wait(tasks)
    return tuple(
        tool_call.make_cancel_result() if task.cancelled() else task.result()
        for tool_call, task in zip(tool_calls, tasks, strict=True)
    )


class _Listeners(msgspec.Struct, frozen=True):
    """The callbacks of a dispatch. An exception of a callback is logged."""

    events: Events | None
    results: Results | None
    late_results: LateResults | None

    def event(self, event_type: str, **payload: Any) -> None:
        self._call(self.events, event_type, payload)

    def result(self, result: ToolResultBlock) -> None:
        self._call(self.results, result)

    def late_result(self, result: LateResult) -> None:
        _log.info("%s returned %d ms after the call, too late", result.tool_name, result.latency_ms)
        self._call(self.late_results, result)

    def _call(self, listener: Callable[..., None] | None, *arguments: Any) -> None:
        if listener is None:
            return
        try:
            listener(*arguments)
        except Exception:  # noqa: BLE001  code of the caller
            _log.exception("a listener of dispatch failed")


class _ToolCall:
    """One call, from look-up to its result."""

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
        self._edited_input = approval.edited_input if approval is not None else None
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

    def _emit(self, event_type: str, **payload: Any) -> None:
        self._listeners.event(event_type, tool_use_id=self._call.id, tool_name=self._call.name, **payload)

    async def execute(self) -> ToolResultBlock:
        try:
            result = await self._run_steps()
        except asyncio.CancelledError:
            return self.make_cancel_result()
        except ToolFailedError as error:
            result = self._fail(error.error_class, str(error))
        except Exception:  # noqa: BLE001  code of a tool
            _log.warning("the tool %s failed", self._call.name, exc_info=True)
            result = self._fail("execution_error", _FAILED_TEXT)
        self._listeners.result(result)
        return result

    def make_cancel_result(self) -> ToolResultBlock:
        """The result of a cancelled call, which may have done part of its work."""
        result = self._fail("cancelled", "The call was cancelled before it had a result.")
        self._listeners.result(result)
        return result

    async def _run_steps(self) -> ToolResultBlock:
        call, registry = self._call, self._registry
        tool = registry.get(call.name)
        if tool is None:
            text = f"There is no tool {call.name!r}. There are: {registry.names}"
            raise ToolFailedError(truncate_middle(text, _MAX_LIST), error_class="not_found")
        if isinstance(call, InvalidToolUseBlock):
            return self._reject_input((f"$: {call.reason}",))
        tool_input = call.input if self._edited_input is None else self._edited_input
        if problems := registry.problems(call.name, tool_input):
            return self._reject_input(problems)
        self._check_scope(tool, tool_input)
        await self._confirm(tool, tool_input)
        async with self._session.slots:
            result = await self._run(tool, tool_input)
        if self._edited_input is not None:
            result = result.replace(content=(_edit_note(self._edited_input), *result.content))
        return result

    # --- before the tool runs

    def _reject_input(self, problems: tuple[str, ...]) -> ToolResultBlock:
        self._emit("tool_input_invalid", validation_errors=list(problems))
        text = f"The input does not fit the tool {self._call.name!r}, which was not run:\n"
        return self._error_result(text + "\n".join(problems))

    def _check_scope(self, tool: Tool, input: dict[str, Any]) -> None:  # noqa: A002
        if not tool.definition.requires_workspace:
            return
        workspace, paths = self._context.files, input.get("paths")
        for path in (input.get("path"), *(paths if isinstance(paths, list) else ())):
            if isinstance(path, str):
                workspace.check_path(path)

    async def _confirm(self, tool: Tool, input: dict[str, Any]) -> None:  # noqa: A002
        match self._session.policy.decision(tool.definition):
            case "auto":
                return
            case "deny":
                raise ToolFailedError(f"The tool {tool.name!r} is not allowed here", error_class="permission_denied")
        if self._approval is not None:
            answer = self._apply_approval(self._approval)
        else:
            async with self._session.confirm_lock:
                answer = self._session.answers.get(tool.name) or await self._request_confirmation(tool, input)
        if not answer.allow:
            reason = f": {answer.reason}" if answer.reason else ""
            raise ToolFailedError(f"The user rejected this call{reason}", error_class="user_denied")

    def _apply_approval(self, approval: Approval) -> Confirmation:
        self._emit(
            "tool.confirmation_resolved",
            confirmation_request_id=_approval_id(self._call),
            decision="allow" if approval.approved else "deny",
            scope="once",
        )
        return Confirmation(approval.approved, reason=approval.reason or "")

    def emit_approval_request(self) -> None:
        """Emit the confirmation request and do not wait."""
        tool = self._registry[self._call.name]
        assert isinstance(self._call, ToolUseBlock)  # an invalid call is never pending
        try:
            self._emit_confirmation_request(tool, self._call.input, _approval_id(self._call), None)
        except Exception:  # noqa: BLE001  code of a tool
            _log.warning("the preview of %s failed", tool.name, exc_info=True)

    async def _request_confirmation(self, tool: Tool, input: dict[str, Any]) -> Confirmation:  # noqa: A002
        confirm = self._session.confirm
        if confirm is None:
            text = f"The tool {tool.name!r} requires approval, and no approver is configured"
            raise ToolFailedError(text, error_class="permission_denied")
        expires_at = datetime.now(UTC) + timedelta(seconds=self._session.confirm_timeout_s)
        request = self._emit_confirmation_request(tool, input, f"confirm_{secrets.token_hex(10)}", expires_at)
        started_at = time.monotonic()
        try:
            async with asyncio.timeout(self._session.confirm_timeout_s):
                answer = await confirm(request)
        except TimeoutError:
            self._emit_resolution(request, "timeout", None, started_at)
            raise ToolFailedError("The call was not approved in time", error_class="confirmation_timeout") from None
        except asyncio.CancelledError:
            self._emit_resolution(request, "deny", None, started_at)
            raise
        except Exception:  # noqa: BLE001  code of the caller
            _log.exception("the confirmation of %s failed", tool.name)
            self._emit_resolution(request, "deny", None, started_at)
            raise ToolFailedError("The approval request failed", error_class="permission_denied") from None
        self._emit_resolution(request, "allow" if answer.allow else "deny", answer.scope, started_at)
        if answer.scope == "session":
            self._session.answers[tool.name] = answer
        return answer

    def _emit_confirmation_request(
        self,
        tool: Tool,
        input: dict[str, Any],  # noqa: A002
        request_id: str,
        expires_at: datetime | None,
    ) -> ConfirmationRequest:
        preview = tool.preview(input, self._context) if tool.preview is not None else Preview()
        request = ConfirmationRequest(
            id=request_id,
            session_id=self._session.session_id,
            tool_use_id=self._call.id,
            tool_name=tool.name,
            side_effects=tool.definition.side_effects,
            input=input,
            input_summary=truncate_middle(msgspec.json.encode(input).decode(), _MAX_SUMMARY),
            projected_modifications=preview.projected_modifications,
            command_summary=preview.command_summary,
            expires_at=expires_at,
        )
        self._emit(
            "tool.confirmation_requested",
            side_effects=request.side_effects,
            confirmation_request_id=request.id,
            input_summary=request.input_summary,
            projected_modifications=list(request.projected_modifications) or None,
            command_summary=request.command_summary,
            expires_at=request.expires_at,
        )
        return request

    def _emit_resolution(
        self, request: ConfirmationRequest, decision: str, scope: str | None, started_at: float
    ) -> None:
        self._emit(
            "tool.confirmation_resolved",
            confirmation_request_id=request.id,
            decision=decision,
            scope=scope,
            latency_ms=_ms_since(started_at),
        )

    # --- while it runs

    async def _run(self, tool: Tool, input: dict[str, Any]) -> ToolResultBlock:  # noqa: A002
        canonical = msgspec.json.encode(input, order="sorted")
        self._started_at = time.monotonic()
        self._emit(
            "tool.called",
            input_hash=hashlib.sha256(canonical).hexdigest(),
            input_size_bytes=len(canonical),
            side_effects=tool.definition.side_effects,
        )
        output = _to_output(await self._run_in_time(tool, input))
        result = self._result(output)
        self._emit(
            "tool.completed",
            success=not output.is_error,
            output_size_bytes=len(msgspec.json.encode(result.content)),
            latency_ms=_ms_since(self._started_at),
            files_modified=list(output.files_modified) or None,
            command_executed=output.command_executed,
        )
        return result

    async def _run_in_time(self, tool: Tool, input: dict[str, Any]) -> Any:  # noqa: A002
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
        """Cancel a tool and wait ``grace_s``. What it returns from now on is a late result."""
        self._context.stop_event.set()
        task.add_done_callback(self._handle_late_end)
        task.cancel()
        if isinstance(task, asyncio.Task):
            self._session.add_orphan(task)
        await asyncio.wait({task}, timeout=self._session.grace_s)

    def _handle_late_end(self, task: asyncio.Future[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            try:
                result = self._result(_to_output(task.result()))
            except (TypeError, ValueError):
                result = self._error_result(_FAILED_TEXT)
        else:
            result = self._error_result(str(error) if isinstance(error, ToolFailedError) else _FAILED_TEXT)
        latency_ms = _ms_since(self._started_at)
        self._listeners.late_result(
            LateResult(tool_use_id=self._call.id, tool_name=self._call.name, result=result, latency_ms=latency_ms)
        )

    # --- results

    def _result(self, output: ToolOutput) -> ToolResultBlock:
        return ToolResultBlock(self._call.id, content_from(output.content), output.is_error)

    def _fail(self, error_class: str, text: str) -> ToolResultBlock:
        latency_ms = _ms_since(self._started_at)
        self._emit("tool.failed", error_class=error_class, error_message=text, latency_ms=latency_ms)
        return self._error_result(text)

    def _error_result(self, text: str) -> ToolResultBlock:
        return ToolResultBlock(self._call.id, content_from(text) or (TextBlock(text),), is_error=True)


def _to_output(value: Any) -> ToolOutput:
    return value if isinstance(value, ToolOutput) else ToolOutput(content=value)


def _approval_id(call: Call) -> str:
    """The id of the approval request for a pending call: the same in every process."""
    return f"confirm_{call.id}"


def _edit_note(input: dict[str, Any]) -> TextBlock:  # noqa: A002
    text = truncate_middle(msgspec.json.encode(input).decode(), _MAX_LIST)
    return TextBlock(f"The user changed the input of this call. It was run with: {text}")


def _ms_since(started_at: float) -> int:
    return round((time.monotonic() - started_at) * 1000)
