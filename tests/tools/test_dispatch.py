"""Dispatch: the steps of a call, who is asked, and that every call has one result whatever happens."""

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
    """Say it again."""
    return text


@tool
async def break_down() -> None:
    """Fail in a way that nobody should read about."""
    raise RuntimeError("password: 1234")


@tool
async def refuse() -> None:
    """Fail in a way that the model should read about."""
    raise ToolFailedError("There is no more tea")


@tool
async def half() -> ToolOutput:
    """Do only a part of it."""
    return ToolOutput(content="half", is_error=True, files_modified=("a.txt",), command_executed="half a")


@tool(side_effects=SideEffects.WRITE, requires_workspace=True)
async def touch(path: str = ".", paths: list[str] = []) -> str:  # noqa: B006
    """Touch some paths."""
    return f"{path} {paths}"


REGISTRY = ToolRegistry([echo, break_down, refuse, half, touch])


def assert_known(events: EventLog) -> None:
    """Every event has a known type and a valid payload."""
    for event_type, payload in events.events:
        msgspec.convert(payload, EVENT_TYPES[event_type], strict=True)


# --- the steps -------------------------------------------------------------------------------------------------------


async def test_results_come_in_the_order_of_the_calls_and_each_step_is_told() -> None:
    events = EventLog()
    calls = [make_call("echo", text="one"), make_call("half"), make_call("echo", text="two")]
    results = await dispatch(calls, REGISTRY, make_session(), events=events)
    assert [text_of(result) for result in results] == ["one", "half", "two"]
    assert [result.tool_use_id for result in results] == [call.id for call in calls]
    assert [result.is_error for result in results] == [False, True, False]
    assert_known(events)
    assert sorted(events.types) == ["tool.called"] * 3 + ["tool.completed"] * 3
    told = next(done for done in events.payloads("tool.completed") if not done["success"])
    assert (told["files_modified"], told["command_executed"]) == (["a.txt"], "half a")


async def test_the_same_input_has_the_same_hash_however_it_is_written() -> None:
    events = EventLog()
    registry = ToolRegistry([taking_anything()])
    calls = [make_call("anything", a=1, b={"c": 2, "d": 3}), make_call("anything", b={"d": 3, "c": 2}, a=1)]
    await dispatch(calls, registry, make_session(), events=events)
    assert len({payload["input_hash"] for payload in events.payloads("tool.called")}) == 1


def taking_anything() -> Tool:
    async def run(_input: dict[str, Any], _context: ToolContext) -> None:
        return None

    return Tool(definition=echo.definition.replace(name="anything", input_schema={"type": "object"}), run=run)


async def test_a_tool_that_there_is_not_fails_as_not_found_and_the_model_reads_which_there_are() -> None:
    events = EventLog()
    (result,) = await dispatch([make_call("ecko")], REGISTRY, make_session(), events=events)
    assert result.is_error
    assert "There are: break_down, echo" in text_of(result)
    assert events.types == ["tool.failed"]
    assert events.payloads("tool.failed")[0]["error_class"] == "not_found"
    assert_known(events)


@pytest.mark.parametrize(
    "call",
    [make_call("echo", text=7), make_call("echo"), make_call("echo", text="a", more=1)],
    ids=["wrong type", "missing", "one too many"],
)
async def test_an_input_that_does_not_fit_is_told_as_invalid_and_not_as_failed(call: Any) -> None:
    events = EventLog()
    (result,) = await dispatch([call], REGISTRY, make_session(), events=events)
    assert result.is_error
    assert "was not run" in text_of(result)
    assert "$" in text_of(result)
    assert events.types == ["tool_input_invalid"]
    assert_known(events)


async def test_a_call_that_arrived_broken_is_never_run() -> None:
    events = EventLog()
    broken = InvalidToolUseBlock("tu_1", "echo", '{"text": "a', "it ends in the middle of a text")
    (result,) = await dispatch([broken], REGISTRY, make_session(), events=events)
    assert result.is_error
    assert "it ends in the middle of a text" in text_of(result)
    assert events.types == ["tool_input_invalid"]


@pytest.mark.parametrize("given", [{"path": "../x"}, {"paths": ["a", "/etc/passwd"]}, {"path": "a\0b"}])
async def test_a_path_outside_of_the_workspace_is_denied_before_anybody_is_asked(
    workspace: Workspace, given: dict[str, Any]
) -> None:
    events = EventLog()
    asked = Asked(allow=True)
    session = make_session(workspace, policy=None, confirm=asked)
    (result,) = await dispatch([make_call("touch", **given)], REGISTRY, session, events=events)
    assert result.is_error
    assert events.types == ["tool.failed"]
    assert events.payloads("tool.failed")[0]["error_class"] == "permission_denied"
    assert asked.questions == []


async def test_a_tool_that_needs_a_workspace_fails_where_there_is_none() -> None:
    (result,) = await dispatch([make_call("touch", path="a")], REGISTRY, make_session())
    assert text_of(result) == "There is no workspace in this session"


async def test_of_an_error_that_is_not_for_its_eyes_the_model_reads_only_that_there_was_one() -> None:
    events = EventLog()
    results = await dispatch([make_call("break_down"), make_call("refuse")], REGISTRY, make_session(), events=events)
    assert [text_of(result) for result in results] == ["Tool execution failed.", "There is no more tea"]
    assert "1234" not in str(events.events)
    assert [told["error_class"] for told in events.payloads("tool.failed")] == ["execution_error"] * 2
    assert_known(events)


async def test_a_listener_that_fails_does_not_stop_anything() -> None:
    def fails(*_: Any) -> None:
        raise OverflowError

    (result,) = await dispatch([make_call("echo", text="a")], REGISTRY, make_session(), events=fails, results=fails)
    assert text_of(result) == "a"


async def test_no_calls_have_no_results() -> None:
    assert await dispatch([], REGISTRY, make_session()) == ()


# --- confirmation ----------------------------------------------------------------------------------------------------


class Asked:
    """A confirmation with a fixed answer."""

    def __init__(self, *, allow: bool, scope: Any = "once") -> None:
        self.questions: list[ConfirmationRequest] = []
        self._answer = Confirmation(allow, scope, "" if allow else "not today")
        self.at_once = 0

    async def __call__(self, question: ConfirmationRequest) -> Confirmation:
        self.questions.append(question)
        self.at_once += 1
        assert self.at_once == 1, "one question at a time"
        await asyncio.sleep(0)
        self.at_once -= 1
        return self._answer


@pytest.mark.parametrize(
    ("effects", "asks"),
    [("none", False), ("read", False), ("write", True), ("execute", True), ("network", True)],
)
async def test_what_changes_something_is_asked_about_unless_it_is_said_otherwise(effects: str, asks: bool) -> None:
    asked = Asked(allow=True)
    one = Tool(definition=echo.definition.replace(side_effects=SideEffects(effects)), run=echo.run)
    session = make_session(policy=None, confirm=asked)
    (result,) = await dispatch([make_call("echo", text="a")], ToolRegistry([one]), session)
    assert not result.is_error
    assert bool(asked.questions) is asks


async def test_the_question_says_what_is_about_to_happen(workspace: Workspace) -> None:
    asked, events = Asked(allow=True), EventLog()
    previewed = Tool(
        definition=touch.definition,
        run=touch.run,
        preview=lambda given, _: Preview(projected_modifications=(given["path"],), command_summary="touch"),
    )
    session = make_session(workspace, policy=None, confirm=asked)
    await dispatch([make_call("touch", path="a.txt")], ToolRegistry([previewed]), session, events=events)
    (question,) = asked.questions
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
    assert_known(events)


async def test_a_denial_is_told_to_the_model_with_its_reason(workspace: Workspace) -> None:
    events = EventLog()
    session = make_session(workspace, policy=None, confirm=Asked(allow=False))
    (result,) = await dispatch([make_call("touch", path="a")], REGISTRY, session, events=events)
    assert text_of(result) == "The user rejected this call: not today"
    assert events.payloads("tool.failed")[0]["error_class"] == "user_denied"
    assert "tool.called" not in events.types


@pytest.mark.parametrize(("scope", "questions"), [("once", 4), ("session", 1)])
async def test_an_answer_holds_once_or_for_the_session(workspace: Workspace, scope: str, questions: int) -> None:
    asked = Asked(allow=True, scope=scope)
    session = make_session(workspace, policy=None, confirm=asked)
    for _ in range(2):
        calls = [make_call("touch", path="a"), make_call("touch", path="b")]
        results = await dispatch(calls, REGISTRY, session)
        assert not any(result.is_error for result in results)
    assert len(asked.questions) == questions


async def test_where_nobody_answers_in_time_the_tool_does_not_run(workspace: Workspace) -> None:
    async def silence(_: ConfirmationRequest) -> Confirmation:
        await asyncio.sleep(3600)
        raise AssertionError

    events = EventLog()
    session = make_session(workspace, policy=None, confirm=silence, confirm_timeout_s=0.01)
    (result,) = await dispatch([make_call("touch", path="a")], REGISTRY, session, events=events)
    assert result.is_error
    assert events.payloads("tool.failed")[0]["error_class"] == "confirmation_timeout"
    assert events.payloads("tool.confirmation_resolved")[0]["decision"] == "timeout"
    assert_known(events)


async def test_where_nobody_can_be_asked_the_tool_does_not_run(workspace: Workspace) -> None:
    async def broken(_: ConfirmationRequest) -> Confirmation:
        raise OSError("the terminal is gone")

    for confirm in (None, broken):
        events = EventLog()
        session = make_session(workspace, policy=None, confirm=confirm)
        (result,) = await dispatch([make_call("touch", path="a")], REGISTRY, session, events=events)
        assert result.is_error
        assert events.payloads("tool.failed")[0]["error_class"] == "permission_denied"
        assert "tool.called" not in events.types


async def test_a_policy_can_deny_by_side_effects_and_allow_by_name(workspace: Workspace) -> None:
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
    assert {told["error_class"] for told in events.payloads("tool.failed")} == {"permission_denied"}


# --- time ------------------------------------------------------------------------------------------------------------


class Gate:
    """A tool that says when it began, and ends when it is let."""

    def __init__(self, *, stubborn: bool = False, **options: Any) -> None:
        self.running = 0
        self.most = 0
        self.began = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = 0

        @tool(name="gate", **options)
        async def gate() -> str:
            """Wait at the gate."""
            self.running += 1
            self.most = max(self.most, self.running)
            self.began.set()
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


async def test_at_most_four_run_at_once_in_a_session_whoever_dispatches() -> None:
    gate = Gate()
    registry, session = ToolRegistry([gate.tool]), make_session()
    every = [asyncio.create_task(dispatch([make_call("gate") for _ in range(5)], registry, session)) for _ in range(2)]
    await gate.began.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert gate.running == 4
    gate.open.set()
    for task in every:
        assert [text_of(result) for result in await task] == ["through"] * 5
    assert gate.most == 4


async def test_a_question_that_waits_does_not_hold_up_other_calls(workspace: Workspace) -> None:
    answered = asyncio.Event()

    async def confirm(_: ConfirmationRequest) -> Confirmation:
        await answered.wait()
        return Confirmation(True)

    done: list[ToolResultBlock] = []
    calls = [*(make_call("touch", path="a") for _ in range(5)), make_call("echo", text="quick")]
    session = make_session(workspace, policy=None, confirm=confirm)
    task = asyncio.create_task(dispatch(calls, REGISTRY, session, results=done.append))
    while not done:
        await asyncio.sleep(0)
    assert text_of(done[0]) == "quick"
    answered.set()
    assert len(await task) == 6


async def test_a_tool_that_is_too_slow_is_told_to_stop_and_answered_for() -> None:
    gate, events = Gate(timeout_s=0.01), EventLog()
    (result,) = await dispatch([make_call("gate")], ToolRegistry([gate.tool]), make_session(), events=events)
    assert text_of(result) == "The tool 'gate' took longer than 0.01 s"
    assert (gate.cancelled, gate.running) == (1, 0)
    assert events.types == ["tool.called", "tool.failed"]
    assert events.payloads("tool.failed")[0]["error_class"] == "timeout"
    assert_known(events)


async def test_what_comes_after_the_time_was_over_is_late_and_never_a_second_answer() -> None:
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
    assert [(one.tool_use_id, text_of(one.result)) for one in late] == [(call.id, "through")]
    assert answers == [result]
    assert events.types == ["tool.called", "tool.failed"]


async def test_a_thread_that_cannot_be_stopped_gives_a_late_result_too() -> None:
    go_on = threading.Event()
    told: list[bool] = []

    @tool(timeout_s=0.01)
    def block(context: ToolContext) -> str:
        """Hold a thread."""
        go_on.wait(30)
        told.append(context.stop_event.is_set())
        return "at last"

    late: list[LateResult] = []
    session = make_session(grace_s=0.01)
    (result,) = await dispatch([make_call("block")], ToolRegistry([block]), session, late_results=late.append)
    assert result.is_error
    go_on.set()
    await session.aclose()
    assert told == [True]
    assert [text_of(one.result) for one in late] == ["at last"]


# --- cancelling ------------------------------------------------------------------------------------------------------


async def test_when_it_is_told_to_stop_every_call_has_a_result(workspace: Workspace) -> None:
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
    assert [told["error_class"] for told in events.payloads("tool.failed")] == ["cancelled"] * 6
    assert gate.running == 0
    assert_known(events)


async def test_when_it_is_cancelled_every_call_has_a_result_before_the_caller_is_cancelled() -> None:
    gate, answers = Gate(), list[ToolResultBlock]()
    calls = [make_call("gate"), make_call("gate")]
    task = asyncio.create_task(dispatch(calls, ToolRegistry([gate.tool]), make_session(), results=answers.append))
    await gate.began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(result.tool_use_id for result in answers) == sorted(call.id for call in calls)
    assert all(result.is_error for result in answers)
    assert gate.running == 0


async def test_cancelled_before_anything_began_and_cancelled_twice_it_still_answers_once() -> None:
    gate, answers = Gate(stubborn=True), list[ToolResultBlock]()
    session = make_session(grace_s=0.05)
    calls = [make_call("gate") for _ in range(6)]
    task = asyncio.create_task(dispatch(calls, ToolRegistry([gate.tool]), session, results=answers.append))
    await gate.began.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(result.tool_use_id for result in answers) == sorted(call.id for call in calls)
    gate.open.set()
    await session.aclose()
    assert gate.running == 0


async def test_a_question_that_is_cancelled_is_resolved_as_denied(workspace: Workspace) -> None:
    asked, events, stop = asyncio.Event(), EventLog(), asyncio.Event()

    async def confirm(_: ConfirmationRequest) -> Confirmation:
        asked.set()
        await asyncio.sleep(3600)
        raise AssertionError

    session = make_session(workspace, policy=None, confirm=confirm)
    task = asyncio.create_task(dispatch([make_call("touch", path="a")], REGISTRY, session, events=events, stop=stop))
    await asked.wait()
    stop.set()
    (result,) = await task
    assert result.is_error
    assert events.types == ["tool.confirmation_requested", "tool.confirmation_resolved", "tool.failed"]
    assert events.payloads("tool.confirmation_resolved")[0]["decision"] == "deny"


# --- the law ---------------------------------------------------------------------------------------------------------


@tool
async def pause(steps: int) -> str:
    """Let others go on for some steps."""
    for _ in range(steps):
        await asyncio.sleep(0)
    return "rested"


@tool
async def cling(steps: int) -> str:
    """Go on for some steps although it is told to stop."""
    for _ in range(steps):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            continue
    return "clung"


@tool
async def give_up() -> str:
    """Cancel itself."""
    raise asyncio.CancelledError


EVERY_KIND = ToolRegistry([echo, break_down, refuse, half, touch, pause, cling, give_up])
some_calls = st.lists(
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
            ("cling", {"steps": 30}),
            ("give_up", {}),
            ("no_such_tool", {}),
        ]
    ),
    max_size=12,
)
ENDS = {"tool.completed", "tool.failed", "tool_input_invalid"}


@given(some_calls, st.integers(0, 60), st.sampled_from(["stop", "cancel", "both"]), st.booleans())
def test_whatever_is_called_and_whenever_it_is_stopped_every_call_has_one_result_and_one_end(
    wanted: list[tuple[str, dict[str, Any]]], after: int, how: str, asks: bool
) -> None:
    calls = [make_call(name, **given) for name, given in wanted]
    events, answers = EventLog(), list[ToolResultBlock]()

    async def run() -> None:
        stop = asyncio.Event()
        with tempfile.TemporaryDirectory() as folder:
            policy = None if asks else ALLOW_ALL
            session = make_session(Workspace(folder), policy=policy, confirm=Asked(allow=True))
            made = dispatch(calls, EVERY_KIND, session, events=events, results=answers.append, stop=stop)
            task = asyncio.create_task(made)
            for _ in range(after):
                await asyncio.sleep(0)
            if how != "cancel":
                stop.set()
            if how != "stop":
                task.cancel()
            try:
                assert [result.tool_use_id for result in await task] == [call.id for call in calls]
            except asyncio.CancelledError:
                assert how != "stop"
            await session.aclose()

    asyncio.run(run())
    never_begun = how != "stop" and after == 0  # then it was cancelled before its first step, and nothing was done
    assert sorted(result.tool_use_id for result in answers) == (
        [] if never_begun else sorted(call.id for call in calls)
    )
    ended = [payload["tool_use_id"] for event_type, payload in events.events if event_type in ENDS]
    assert sorted(ended) == sorted(result.tool_use_id for result in answers)
    called = [payload["tool_use_id"] for payload in events.payloads("tool.called")]
    assert len(set(called)) == len(called)
    assert_known(events)
