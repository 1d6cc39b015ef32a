"""The end of a turn: what is told of it, and the entries that its agent writes into the trace.

The one rule: every turn that began ends in exactly one of completed, failed and cancelled.
"""

from __future__ import annotations

import logging
from typing import Final

from dragoman.bus import Payload
from dragoman.bus.event_types import turn_events
from dragoman.errors import DragomanError
from dragoman.exchange import ErrorClass, Fault, StopReason
from dragoman.message import MessageStatus, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.redaction import redact
from dragoman.tools import emit_approval_request
from dragoman.turn.start import TurnState, with_status
from dragoman.turn.tool_calls import store_result
from dragoman.turn.types import PendingCall, TurnEnd

_log: Final = logging.getLogger("dragoman.turn")


async def finish_turn(turn: TurnState) -> TurnEnd:
    """Tell how a turn ended: with its last answer, what that waits for, or the fault that there is instead."""
    pending, answer = turn.blocking_calls, turn.answer
    if pending:
        return await _finish_pending(turn, pending)
    assert answer is not None  # of a turn that waits for nobody
    fault = answer.fault or _too_many_steps_fault(turn)
    await _answer_open_calls(turn, "There were too many steps: it was not run.")
    await _store_entries(turn)
    if fault is not None:
        _emit_failure(turn, fault.code, fault.error_class, fault.message)
        return turn.usage.make_end(StopReason.ERROR, fault)
    _emit_completion(turn, answer.stop_reason)
    return turn.usage.make_end(answer.stop_reason)


async def _finish_pending(turn: TurnState, pending: tuple[PendingCall, ...]) -> TurnEnd:
    """Tell what a turn waits for; somebody else goes on with it."""
    await _store_entries(turn)
    approval_ids = {item.call_id for item in pending if item.reason == "approval"}
    for call in turn.open_calls if turn.answer is not None else ():  # of an earlier answer it was told already
        if call.id in approval_ids and isinstance(call, ToolUseBlock):
            emit_approval_request(
                call, turn.pending_calls.tools, turn.pending_calls.tool_session, turn.emit, turn.turn_id
            )
    _emit_completion(turn, StopReason.TOOL_USE)
    return turn.usage.make_end(StopReason.TOOL_USE, pending=pending)


def _emit_completion(turn: TurnState, stop_reason: StopReason) -> None:
    usage = turn.usage
    _emit_once(
        turn,
        turn_events.TurnCompleted(
            stop_reason=stop_reason,
            llm_call_count=usage.llm_calls,
            tool_call_count=usage.tool_calls,
            total_input_tokens=usage.input_tokens,
            total_output_tokens=usage.output_tokens,
            total_cost_usd=usage.known_cost_usd,
            unpriced_calls=usage.unpriced_calls,
            wall_time_seconds=usage.wall_time_s,
            user_id=turn.request.user_id,
            team_id=turn.request.team_id,
        ),
    )


def _too_many_steps_fault(turn: TurnState) -> Fault | None:
    if turn.calling_message is None:
        return None
    text = f"the model still asks for tools after {turn.agent.max_steps} steps"
    return Fault(code="too_many_steps", message=text, error_class=ErrorClass.OTHER)


async def cancel_turn(turn: TurnState) -> None:
    """Tell that a turn was stopped. What had arrived is stored already."""
    await _close_open_work(turn, MessageStatus.CANCELLED, "The turn was cancelled: it was not run.")
    _emit_once(
        turn,
        turn_events.TurnCancelled(
            reason="user_cancel",
            partial_llm_calls=turn.usage.llm_calls,
            partial_tool_calls=turn.usage.tool_calls,
        ),
    )


async def fail_turn(turn: TurnState, error: Exception) -> None:
    """Tell that a turn broke off with an error of our own."""
    await _close_open_work(turn, MessageStatus.ERROR, "The turn broke off: it was not run.")
    code = error.code if isinstance(error, DragomanError) else "internal_error"
    _emit_failure(turn, code, ErrorClass.OTHER, str(error))


async def _close_open_work(turn: TurnState, status: MessageStatus, text: str) -> None:
    """End the row of an answer that nobody was asked for, answer the calls that nobody runs, and write the entries.

    A store that cannot do it has said so, or will; whatever is left open, the next turn closes.
    """
    if turn.is_over:
        return
    try:
        if turn.placeholder is not None:
            message, turn.placeholder = turn.placeholder.message, None
            await turn.agent.store.update(turn.session.id, with_status(message, status))
        await _answer_open_calls(turn, text)
        await _store_entries(turn)
    except DragomanError as error:
        _log.warning("a turn could not be closed: %s", error, extra={"session_id": turn.session.id})


async def _answer_open_calls(turn: TurnState, text: str) -> None:
    """A result for each call that is not run."""
    for call in turn.open_calls:
        failure = {"tool_use_id": call.id, "tool_name": call.name, "error_class": "cancelled", "error_message": text}
        turn.emit("tool.failed", {**failure, "latency_ms": 0})
        await store_result(turn, ToolResultBlock(call.id, (TextBlock(text),), is_error=True))


def _emit_once(turn: TurnState, event: Payload) -> None:
    if not turn.is_over:
        turn.is_over = True
        turn.emit(event)


def _emit_failure(turn: TurnState, code: str, error_class: ErrorClass, message: str) -> None:
    _emit_once(
        turn,
        turn_events.TurnFailed(
            error_code=code,
            error_class=error_class,
            error_message_redacted=redact(message),
            llm_call_count=turn.usage.llm_calls,
            tool_call_count=turn.usage.tool_calls,
            total_cost_usd=turn.usage.known_cost_usd,
            unpriced_calls=turn.usage.unpriced_calls,
            wall_time_seconds=turn.usage.wall_time_s,
        ),
    )


async def _store_entries(turn: TurnState) -> None:
    """Write what the agent did in this turn, unless that was stored with its last answer."""
    if not turn.has_entries:
        await turn.agent.store.entries.append(turn.session.id, turn.entries(), agent_key=turn.agent.agent_key)
