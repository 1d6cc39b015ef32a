"""Tests of dispatch: the steps of a call, approval, and the invariant that every call has one result."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import InvalidToolUseBlock, SideEffects, ToolResultBlock
from dragoman.bus import EVENT_TYPES
from dragoman.errors import ToolFailedError
from dragoman.tools import (
    Confirmation,
    ConfirmationPolicy,
    ConfirmationRequest,
    LateResult,
    Preview,
    Tool,
    ToolContext,
    ToolOutput,
    ToolRegistry,
    Workspace,
    dispatch,
    tool,
)
from tests.tools.tool_fixtures import ALLOW_ALL, EventLog, make_call, make_session, text_of


@tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@tool
async def break_down() -> None:
    """Fail with an error that must not be sent to the model."""
    raise RuntimeError("password: 1234")


@tool
async def refuse() -> None:
    """Fail with an error that is sent to the model."""
    raise ToolFailedError("There is no more tea")


@tool
async def half() -> ToolOutput:
    """Return an error with a partial result."""
    return ToolOutput(content="half", is_error=True, files_modified=("a.txt",), command_executed="half a")


@tool(side_effects=SideEffects.WRITE, requires_workspace=True)
async def touch(path: str = ".", paths: list[str] = []) -> str:  # noqa: B006
    """Touch some paths."""
    return f"{path} {paths}"


REGISTRY = ToolRegistry([echo, break_down, refuse, half, touch])


def assert_valid(events: EventLog) -> None:
    """Assert that every event has a known type and a valid payload."""
    for event_type, payload in events.events:
        msgspec.convert(payload, EVENT_TYPES[event_type], strict=True)


# --- steps -----------------------------------------------------------------------------------------------------------


async def test_results_have_the_order_of_the_calls_and_each_step_is_an_event() -> None:
    events = EventLog()
    calls = [make_call("echo", text="one"), make_call("half"), make_call("echo", text="two")]
    results = await dispatch(calls, REGISTRY, make_session(), events=events)
    assert [text_of(result) for result in results] == ["one", "half", "two"]
    assert [result.tool_use_id for result in results] == [call.id for call in calls]
    assert [result.is_error for result in results] == [False, True, False]
    assert_valid(events)
    assert sorted(events.types) == ["tool.called"] * 3 + ["tool.completed"] * 3
    failed = next(payload for payload in events.payloads("tool.completed") if not payload["success"])
    assert (failed["files_modified"], failed["command_executed"]) == (["a.txt"], "half a")


async def test_equal_inputs_have_equal_hashes() -> None:
    events = EventLog()
    registry = ToolRegistry([make_any_tool()])
    calls = [make_call("anything", a=1, b={"c": 2, "d": 3}), make_call("anything", b={"d": 3, "c": 2}, a=1)]
    await dispatch(calls, registry, make_session(), events=events)
    assert len({payload["input_hash"] for payload in events.payloads("tool.called")}) == 1


def make_any_tool() -> Tool:
    async def run(_input: dict[str, Any], _context: ToolContext) -> None:
        return None

    return Tool(definition=echo.definition.replace(name="anything", input_schema={"type": "object"}), run=run)


async def test_unknown_tool_fails_as_not_found_and_lists_the_tools() -> None:
    events = EventLog()
    (result,) = await dispatch([make_call("ecko")], REGISTRY, make_session(), events=events)
    assert result.is_error
    assert "There are: break_down, echo" in text_of(result)
    assert events.types == ["tool.failed"]
    assert events.payloads("tool.failed")[0]["error_class"] == "not_found"
    assert_valid(events)


@pytest.mark.parametrize(
    "call",
    [make_call("echo", text=7), make_call("echo"), make_call("echo", text="a", more=1)],
    ids=["wrong type", "missing", "one too many"],
)
async def test_invalid_input_is_not_run_and_not_reported_as_failed(call: Any) -> None:
    events = EventLog()
    (result,) = await dispatch([call], REGISTRY, make_session(), events=events)
    assert result.is_error
    assert "was not run" in text_of(result)
    assert "$" in text_of(result)
    assert events.types == ["tool_input_invalid"]
    assert_valid(events)


async def test_call_with_truncated_input_is_never_run() -> None:
    events = EventLog()
    truncated = InvalidToolUseBlock("tu_1", "echo", '{"text": "a', "it ends in the middle of a text")
    (result,) = await dispatch([truncated], REGISTRY, make_session(), events=events)
    assert result.is_error
    assert "it ends in the middle of a text" in text_of(result)
    assert events.types == ["tool_input_invalid"]


@pytest.mark.parametrize("arguments", [{"path": "../x"}, {"paths": ["a", "/etc/passwd"]}, {"path": "a\0b"}])
async def test_path_outside_of_the_workspace_is_denied_before_approval(
    workspace: Workspace, arguments: dict[str, Any]
) -> None:
    events = EventLog()
    approver = FixedApprover(allow=True)
    session = make_session(workspace, policy=None, confirm=approver)
    (result,) = await dispatch([make_call("touch", **arguments)], REGISTRY, session, events=events)
    assert result.is_error
    assert events.types == ["tool.failed"]
    assert events.payloads("tool.failed")[0]["error_class"] == "permission_denied"
    assert approver.questions == []


async def test_tool_that_needs_a_workspace_fails_without_one() -> None:
    (result,) = await dispatch([make_call("touch", path="a")], REGISTRY, make_session())
    assert text_of(result) == "There is no workspace in this session"


async def test_internal_error_is_hidden_from_the_model() -> None:
    events = EventLog()
    results = await dispatch([make_call("break_down"), make_call("refuse")], REGISTRY, make_session(), events=events)
    assert [text_of(result) for result in results] == ["Tool execution failed.", "There is no more tea"]
    assert "1234" not in str(events.events)
    assert [payload["error_class"] for payload in events.payloads("tool.failed")] == ["execution_error"] * 2
    assert_valid(events)


async def test_listener_that_raises_does_not_stop_the_dispatch() -> None:
    def raise_overflow(*_: Any) -> None:
        raise OverflowError

    (result,) = await dispatch(
        [make_call("echo", text="a")], REGISTRY, make_session(), events=raise_overflow, results=raise_overflow
    )
    assert text_of(result) == "a"


async def test_no_calls_have_no_results() -> None:
    assert await dispatch([], REGISTRY, make_session()) == ()


# --- approval --------------------------------------------------------------------------------------------------------


class FixedApprover:
    """An approver with a fixed answer."""

    def __init__(self, *, allow: bool, scope: Any = "once") -> None:
        self.questions: list[ConfirmationRequest] = []
        self._answer = Confirmation(allow, scope, "" if allow else "not today")
        self.concurrent = 0

    async def __call__(self, question: ConfirmationRequest) -> Confirmation:
        self.questions.append(question)
        self.concurrent += 1
        assert self.concurrent == 1, "the questions are not concurrent"
        await asyncio.sleep(0)
        self.concurrent -= 1
        return self._answer


@pytest.mark.parametrize(
    ("effects", "needs_approval"),
    [("none", False), ("read", False), ("write", True), ("execute", True), ("network", True)],
)
async def test_tools_with_side_effects_need_approval_by_default(effects: str, needs_approval: bool) -> None:
    approver = FixedApprover(allow=True)
    tool_with_effects = Tool(definition=echo.definition.replace(side_effects=SideEffects(effects)), run=echo.run)
    session = make_session(policy=None, confirm=approver)
    (result,) = await dispatch([make_call("echo", text="a")], ToolRegistry([tool_with_effects]), session)
    assert not result.is_error
    assert bool(approver.questions) is needs_approval


async def test_approval_request_describes_the_call(workspace: Workspace) -> None:
    approver, events = FixedApprover(allow=True), EventLog()
    tool_with_preview = Tool(
        definition=touch.definition,
        run=touch.run,
        preview=lambda arguments, _: Preview(projected_modifications=(arguments["path"],), command_summary="touch"),
    )
    session = make_session(workspace, policy=None, confirm=approver)
    await dispatch([make_call("touch", path="a.txt")], ToolRegistry([tool_with_preview]), session, events=events)
    (question,) = approver.questions
    assert question.input == {"path": "a.txt"}
    assert question.input_summary == '{"path":"a.txt"}'
    assert question.projected_modifications == ("a.txt",)
    assert events.types == [
        "tool.confirmation_requested",
        "tool.confirmation_resolved",
        "tool.called",
        "tool.completed",
    ]
    assert events.payloads("tool.confirmation_resolved")[0]["confirmation_request_id"] == question.id
    assert_valid(events)


async def test_denial_is_sent_to_the_model_with_its_reason(workspace: Workspace) -> None:
    events = EventLog()
    session = make_session(workspace, policy=None, confirm=FixedApprover(allow=False))
    (result,) = await dispatch([make_call("touch", path="a")], REGISTRY, session, events=events)
    assert text_of(result) == "The user rejected this call: not today"
    assert events.payloads("tool.failed")[0]["error_class"] == "user_denied"
    assert "tool.called" not in events.types


@pytest.mark.parametrize(("scope", "questions"), [("once", 4), ("session", 1)])
async def test_approval_is_valid_once_or_for_the_session(workspace: Workspace, scope: str, questions: int) -> None:
    approver = FixedApprover(allow=True, scope=scope)
    session = make_session(workspace, policy=None, confirm=approver)
    for _ in range(2):
        calls = [make_call("touch", path="a"), make_call("touch", path="b")]
        results = await dispatch(calls, REGISTRY, session)
        assert not any(result.is_error for result in results)
    assert len(approver.questions) == questions


async def test_tool_does_not_run_if_the_approval_times_out(workspace: Workspace) -> None:
    async def wait_forever(_: ConfirmationRequest) -> Confirmation:
        await asyncio.sleep(3600)
        raise AssertionError

    events = EventLog()
    session = make_session(workspace, policy=None, confirm=wait_forever, confirm_timeout_s=0.01)
    (result,) = await dispatch([make_call("touch", path="a")], REGISTRY, session, events=events)
    assert result.is_error
    assert events.payloads("tool.failed")[0]["error_class"] == "confirmation_timeout"
    assert events.payloads("tool.confirmation_resolved")[0]["decision"] == "timeout"
    assert_valid(events)


async def test_tool_does_not_run_without_an_approver(workspace: Workspace) -> None:
    async def raise_os_error(_: ConfirmationRequest) -> Confirmation:
        raise OSError("the terminal is closed")

    for confirm in (None, raise_os_error):
        events = EventLog()
        session = make_session(workspace, policy=None, confirm=confirm)
        (result,) = await dispatch([make_call("touch", path="a")], REGISTRY, session, events=events)
        assert result.is_error
        assert events.payloads("tool.failed")[0]["error_class"] == "permission_denied"
        assert "tool.called" not in events.types


async def test_policy_denies_by_side_effects_and_allows_by_name(workspace: Workspace) -> None:
    events = EventLog()
    policy = ConfirmationPolicy(
        side_effects={SideEffects.WRITE: "deny", SideEffects.NONE: "deny"}, tools={"echo": "auto"}
    )
    calls = [make_call("touch", path="a"), make_call("echo", text="a"), make_call("half")]
    results = await dispatch(calls, REGISTRY, make_session(workspace, policy=policy), events=events)
    assert [text_of(result) for result in results] == [
        "The tool 'touch' is not allowed here",
        "a",
        "The tool 'half' is not allowed here",
    ]
    assert {payload["error_class"] for payload in events.payloads("tool.failed")} == {"permission_denied"}


# --- timeouts --------------------------------------------------------------------------------------------------------


class Gate:
    """A tool that signals its start, and ends when it is opened."""

    def __init__(self, *, stubborn: bool = False, **options: Any) -> None:
        self.running = 0
        self.max_running = 0
        self.started = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = 0

        @tool(name="gate", **options)
        async def gate() -> str:
            """Wait at the gate."""
            self.running += 1
            self.max_running = max(self.max_running, self.running)
            self.started.set()
            try:
                while not self.open.is_set():
                    try:
                        await self.open.wait()
                    except asyncio.CancelledError:
                        self.cancelled += 1
                        if not stubborn:
                            raise
            finally:
                self.running -= 1
            return "through"

        self.tool = gate


async def test_at_most_four_calls_of_a_session_run_concurrently() -> None:
    gate = Gate()
    registry, session = ToolRegistry([gate.tool]), make_session()
    tasks = [asyncio.create_task(dispatch([make_call("gate") for _ in range(5)], registry, session)) for _ in range(2)]
    await gate.started.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert gate.running == 4
    gate.open.set()
    for task in tasks:
        assert [text_of(result) for result in await task] == ["through"] * 5
    assert gate.max_running == 4


async def test_pending_approval_does_not_block_other_calls(workspace: Workspace) -> None:
    is_answered = asyncio.Event()

    async def confirm(_: ConfirmationRequest) -> Confirmation:
        await is_answered.wait()
        return Confirmation(True)

    results: list[ToolResultBlock] = []
    calls = [*(make_call("touch", path="a") for _ in range(5)), make_call("echo", text="quick")]
    session = make_session(workspace, policy=None, confirm=confirm)
    task = asyncio.create_task(dispatch(calls, REGISTRY, session, results=results.append))
    while not results:
        await asyncio.sleep(0)
    assert text_of(results[0]) == "quick"
    is_answered.set()
    assert len(await task) == 6


async def test_slow_tool_is_cancelled_and_gets_an_error_result() -> None:
    gate, events = Gate(timeout_s=0.01), EventLog()
    (result,) = await dispatch([make_call("gate")], ToolRegistry([gate.tool]), make_session(), events=events)
    assert text_of(result) == "The tool 'gate' took longer than 0.01 s"
    assert (gate.cancelled, gate.running) == (1, 0)
    assert events.types == ["tool.called", "tool.failed"]
    assert events.payloads("tool.failed")[0]["error_class"] == "timeout"
    assert_valid(events)


async def test_result_after_the_timeout_is_a_late_result_only() -> None:
    gate, events = Gate(timeout_s=0.01, stubborn=True), EventLog()
    late: list[LateResult] = []
    answers: list[ToolResultBlock] = []
    session = make_session(grace_s=0.01)
    call = make_call("gate")
    (result,) = await dispatch(
        [call], ToolRegistry([gate.tool]), session, events=events, results=answers.append, late_results=late.append
    )
    assert result.is_error
    assert late == []
    gate.open.set()
    await session.aclose()
    assert [(item.tool_use_id, text_of(item.result)) for item in late] == [(call.id, "through")]
    assert answers == [result]
    assert events.types == ["tool.called", "tool.failed"]


async def test_thread_that_cannot_be_stopped_has_a_late_result() -> None:
    resume = threading.Event()
    stop_flags: list[bool] = []

    @tool(timeout_s=0.01)
    def hold_thread(context: ToolContext) -> str:
        """Block a thread."""
        resume.wait(30)
        stop_flags.append(context.stop_event.is_set())
        return "at last"

    late: list[LateResult] = []
    session = make_session(grace_s=0.01)
    (result,) = await dispatch(
        [make_call("hold_thread")], ToolRegistry([hold_thread]), session, late_results=late.append
    )
    assert result.is_error
    resume.set()
    await session.aclose()
    assert stop_flags == [True]
    assert [text_of(item.result) for item in late] == ["at last"]


# --- cancellation ----------------------------------------------------------------------------------------------------


async def test_every_call_has_a_result_after_stop(workspace: Workspace) -> None:
    gate, events, stop = Gate(), EventLog(), asyncio.Event()
    registry = ToolRegistry([gate.tool, echo])
    calls = [make_call("echo", text="done"), *(make_call("gate") for _ in range(6))]
    task = asyncio.create_task(dispatch(calls, registry, make_session(workspace), events=events, stop=stop))
    while events.types.count("tool.called") < 5:
        await asyncio.sleep(0)
    stop.set()
    results = await task
    assert [result.tool_use_id for result in results] == [call.id for call in calls]
    assert [result.is_error for result in results] == [False] + [True] * 6
    assert [payload["error_class"] for payload in events.payloads("tool.failed")] == ["cancelled"] * 6
    assert gate.running == 0
    assert_valid(events)


async def test_every_call_has_a_result_before_the_cancellation_is_raised() -> None:
    gate, answers = Gate(), list[ToolResultBlock]()
    calls = [make_call("gate"), make_call("gate")]
    task = asyncio.create_task(dispatch(calls, ToolRegistry([gate.tool]), make_session(), results=answers.append))
    await gate.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(result.tool_use_id for result in answers) == sorted(call.id for call in calls)
    assert all(result.is_error for result in answers)
    assert gate.running == 0


async def test_repeated_cancellation_adds_one_result_per_call() -> None:
    gate, answers = Gate(stubborn=True), list[ToolResultBlock]()
    session = make_session(grace_s=0.05)
    calls = [make_call("gate") for _ in range(6)]
    task = asyncio.create_task(dispatch(calls, ToolRegistry([gate.tool]), session, results=answers.append))
    await gate.started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(result.tool_use_id for result in answers) == sorted(call.id for call in calls)
    gate.open.set()
    await session.aclose()
    assert gate.running == 0


async def test_cancelled_approval_is_resolved_as_denied(workspace: Workspace) -> None:
    is_asked, events, stop = asyncio.Event(), EventLog(), asyncio.Event()

    async def confirm(_: ConfirmationRequest) -> Confirmation:
        is_asked.set()
        await asyncio.sleep(3600)
        raise AssertionError

    session = make_session(workspace, policy=None, confirm=confirm)
    task = asyncio.create_task(dispatch([make_call("touch", path="a")], REGISTRY, session, events=events, stop=stop))
    await is_asked.wait()
    stop.set()
    (result,) = await task
    assert result.is_error
    assert events.types == ["tool.confirmation_requested", "tool.confirmation_resolved", "tool.failed"]
    assert events.payloads("tool.confirmation_resolved")[0]["decision"] == "deny"


# --- invariant -------------------------------------------------------------------------------------------------------


@tool
async def pause(steps: int) -> str:
    """Yield to other tasks for some steps."""
    for _ in range(steps):
        await asyncio.sleep(0)
    return "rested"


@tool
async def ignore_cancellation(steps: int) -> str:
    """Continue for some steps after the cancellation."""
    for _ in range(steps):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            continue
    return "continued"


@tool
async def cancel_itself() -> str:
    """Cancel itself."""
    raise asyncio.CancelledError


EVERY_KIND = ToolRegistry([echo, break_down, refuse, half, touch, pause, ignore_cancellation, cancel_itself])
call_lists = st.lists(
    st.sampled_from(
        [
            ("echo", {"text": "a"}),
            ("echo", {"text": 1}),
            ("break_down", {}),
            ("refuse", {}),
            ("half", {}),
            ("touch", {"path": "a"}),
            ("touch", {"path": "../a"}),
            ("pause", {"steps": 3}),
            ("pause", {"steps": 10_000}),
            ("ignore_cancellation", {"steps": 30}),
            ("cancel_itself", {}),
            ("no_such_tool", {}),
        ]
    ),
    max_size=12,
)
ENDS = {"tool.completed", "tool.failed", "tool_input_invalid"}


@given(call_lists, st.integers(0, 60), st.sampled_from(["stop", "cancel", "both"]), st.booleans())
def test_every_call_has_one_result_and_one_end_after_any_stop(
    named_calls: list[tuple[str, dict[str, Any]]], after: int, stop_kind: str, needs_approval: bool
) -> None:
    calls = [make_call(name, **arguments) for name, arguments in named_calls]
    events, answers = EventLog(), list[ToolResultBlock]()

    async def run() -> None:
        stop = asyncio.Event()
        with tempfile.TemporaryDirectory() as folder:
            policy = None if needs_approval else ALLOW_ALL
            session = make_session(Workspace(folder), policy=policy, confirm=FixedApprover(allow=True))
            coroutine = dispatch(calls, EVERY_KIND, session, events=events, results=answers.append, stop=stop)
            task = asyncio.create_task(coroutine)
            for _ in range(after):
                await asyncio.sleep(0)
            if stop_kind != "cancel":
                stop.set()
            if stop_kind != "stop":
                task.cancel()
            try:
                assert [result.tool_use_id for result in await task] == [call.id for call in calls]
            except asyncio.CancelledError:
                assert stop_kind != "stop"
            await session.aclose()

    asyncio.run(run())
    never_begun = stop_kind != "stop" and after == 0  # it was cancelled before its first step
    assert sorted(result.tool_use_id for result in answers) == (
        [] if never_begun else sorted(call.id for call in calls)
    )
    ended = [payload["tool_use_id"] for event_type, payload in events.events if event_type in ENDS]
    assert sorted(ended) == sorted(result.tool_use_id for result in answers)
    called = [payload["tool_use_id"] for payload in events.payloads("tool.called")]
    assert len(set(called)) == len(called)
    assert_valid(events)
