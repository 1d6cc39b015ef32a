"""The end of a turn: what is told of it, and the entries that its agent writes into the trace.

The one rule: every turn that began ends in exactly one of completed, failed and cancelled.
"""

from __future__ import annotations

import logging
from typing import Final

from dragoman.bus import Payload, catalogue
from dragoman.errors import DragomanError
from dragoman.exchange import ErrorClass, Fault, StopReason
from dragoman.message import MessageStatus, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.tools import ask_later
from dragoman.turn.beginning import Turn, ended_as
from dragoman.turn.telling import without_secrets
from dragoman.turn.using import result_stored
from dragoman.turn.values import Pending, TurnEnded

_log: Final = logging.getLogger("dragoman.turn")


async def ended(turn: Turn) -> TurnEnded:
    """Tell how a turn ended: with its last answer, what that waits for, or the fault that there is instead."""
    pending, answer = turn.pending, turn.answer
    if pending:
        return await _parked(turn, pending)
    assert answer is not None  # of a turn that waits for nobody
    fault = answer.fault or _too_many_steps(turn)
    await _answer_open_calls(turn, "There were too many steps: it was not run.")
    await _trace(turn)
    if fault is not None:
        _tell_failure(turn, fault.code, fault.error_class, fault.message)
        return turn.tally.ended(StopReason.ERROR, fault)
    _tell_completed(turn, answer.stop_reason)
    return turn.tally.ended(answer.stop_reason)


async def _parked(turn: Turn, pending: tuple[Pending, ...]) -> TurnEnded:
    """Tell what a turn waits for; somebody else goes on with it."""
    await _trace(turn)
    wanted = {one.call_id for one in pending if one.why == "approval"}
    for call in turn.open_calls if turn.answer is not None else ():  # of an earlier answer it was told already
        if call.id in wanted and isinstance(call, ToolUseBlock):
            ask_later(call, turn.waiting.tools, turn.waiting.bench, turn.tell, turn.turn_id)
    _tell_completed(turn, StopReason.TOOL_USE)
    return turn.tally.ended(StopReason.TOOL_USE, pending=pending)


def _tell_completed(turn: Turn, stop_reason: StopReason) -> None:
    tally = turn.tally
    _tell_once(
        turn,
        catalogue.TurnCompleted(
            stop_reason=stop_reason,
            llm_call_count=tally.llm_calls,
            tool_call_count=tally.tool_calls,
            total_input_tokens=tally.input_tokens,
            total_output_tokens=tally.output_tokens,
            total_cost_usd=tally.known_cost_usd,
            unpriced_calls=tally.unpriced_calls,
            wall_time_seconds=tally.wall_time_s,
            user_id=turn.asked.user_id,
            team_id=turn.asked.team_id,
        ),
    )


def _too_many_steps(turn: Turn) -> Fault | None:
    if turn.asking is None:
        return None
    what = f"the model still asks for tools after {turn.agent.max_steps} steps"
    return Fault(code="too_many_steps", message=what, error_class=ErrorClass.OTHER)


async def cancelled(turn: Turn) -> None:
    """Tell that a turn was stopped. What had arrived is stored already."""
    await _leave_nothing_open(turn, MessageStatus.CANCELLED, "The turn was cancelled: it was not run.")
    _tell_once(
        turn,
        catalogue.TurnCancelled(
            reason="user_cancel",
            partial_llm_calls=turn.tally.llm_calls,
            partial_tool_calls=turn.tally.tool_calls,
        ),
    )


async def failed(turn: Turn, error: Exception) -> None:
    """Tell that a turn broke off with an error of our own."""
    await _leave_nothing_open(turn, MessageStatus.ERROR, "The turn broke off: it was not run.")
    code = error.code if isinstance(error, DragomanError) else "internal_error"
    _tell_failure(turn, code, ErrorClass.OTHER, str(error))


async def _leave_nothing_open(turn: Turn, status: MessageStatus, why: str) -> None:
    """End the row of an answer that nobody was asked for, answer the calls that nobody runs, and write the entries.

    A store that cannot do it has said so, or will; whatever is left open, the next turn closes.
    """
    if turn.is_over:
        return
    try:
        if turn.place is not None:
            message, turn.place = turn.place.message, None
            await turn.agent.store.update(turn.session.id, ended_as(message, status))
        await _answer_open_calls(turn, why)
        await _trace(turn)
    except DragomanError as error:
        _log.warning("a turn could not be closed: %s", error, extra={"session_id": turn.session.id})


async def _answer_open_calls(turn: Turn, why: str) -> None:
    """A result for each call that is not run."""
    for call in turn.open_calls:
        failure = {"tool_use_id": call.id, "tool_name": call.name, "error_class": "cancelled", "error_message": why}
        turn.tell("tool.failed", {**failure, "latency_ms": 0})
        await result_stored(turn, ToolResultBlock(call.id, (TextBlock(why),), is_error=True))


def _tell_once(turn: Turn, how: Payload) -> None:
    if not turn.is_over:
        turn.is_over = True
        turn.tell(how)


def _tell_failure(turn: Turn, code: str, error_class: ErrorClass, message: str) -> None:
    _tell_once(
        turn,
        catalogue.TurnFailed(
            error_code=code,
            error_class=error_class,
            error_message_redacted=without_secrets(message),
            llm_call_count=turn.tally.llm_calls,
            tool_call_count=turn.tally.tool_calls,
            total_cost_usd=turn.tally.known_cost_usd,
            unpriced_calls=turn.tally.unpriced_calls,
            wall_time_seconds=turn.tally.wall_time_s,
        ),
    )


async def _trace(turn: Turn) -> None:
    """Write what the agent did in this turn, unless that was stored with its last answer."""
    if not turn.is_traced:
        await turn.agent.store.entries.append(turn.session.id, turn.entries(), agent_key=turn.agent.agent_key)
