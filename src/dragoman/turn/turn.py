"""One turn, from the question to the answer. Read this module first.

    choose a model, store the question
    until the model calls no more tools, or only tools whose results others provide:
        run the tools, store each result
        call the model, store its answer while it arrives
    finish the turn

A turn holds the lease of its session, and its model does not change. However it ends (answer, fault, cancellation,
crash), the next turn can use the history that it leaves. Invariants: an event is yielded after its message is stored,
and every started turn emits exactly one of ``turn.completed``, ``turn.failed`` and ``turn.cancelled``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from dragoman.bus import Payload
from dragoman.bus.event_types import turn_events
from dragoman.errors import DragomanError
from dragoman.exchange import ErrorClass, Fault, StopReason
from dragoman.message import MessageStatus, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.redaction import redact
from dragoman.shield import run_to_completion
from dragoman.tools import emit_approval_request
from dragoman.turn.config import AgentConfig
from dragoman.turn.model_call import call_model, drop_begun_call, fault_fields
from dragoman.turn.services import AgentServices
from dragoman.turn.start import start_turn, store_question
from dragoman.turn.state import TurnState, TurnUsage
from dragoman.turn.summary import summarize_history
from dragoman.turn.tool_calls import run_tools
from dragoman.turn.types import PendingCall, TurnEnd, TurnEvent, TurnJournal, TurnRequest

_log: Final = logging.getLogger("dragoman.turn")


async def run(
    services: AgentServices,
    config: AgentConfig,
    request: TurnRequest,
    usage: TurnUsage | None = None,
    journal: TurnJournal | None = None,
) -> AsyncGenerator[TurnEvent, None]:
    """Run one turn and yield its events. Closing the generator, or cancelling its task, cancels the turn."""
    async with services.store.turns.lease(request.session_id).until_end() as lease:
        turn = await start_turn(services, config, request, lease, usage=usage, journal=journal)
        try:
            while (start := await run_to_completion(store_question(turn))) is None:  # the session has changed meanwhile
                turn = await start_turn(services, config, request, lease, usage=usage, journal=journal)
            yield start
            if config.summarize:
                await summarize_history(turn)
            while True:
                lease.check()
                if turn.runnable_calls:  # in the first round, calls that were approved
                    async with aclosing(run_tools(turn)) as results:
                        async for result in results:
                            yield result
                if not turn.should_continue:
                    break
                lease.check()
                async with aclosing(call_model(turn)) as events:
                    async for event in events:
                        yield event
            end = await run_to_completion(_finish_turn(turn))
        except (asyncio.CancelledError, GeneratorExit):
            await run_to_completion(_cancel_turn(turn))
            raise
        except Exception as error:
            await run_to_completion(_fail_turn(turn, error))
            raise
    yield end


# --- the end of a turn -----------------------------------------------------------------------------------------------


async def _finish_turn(turn: TurnState) -> TurnEnd:
    """End a turn with its last answer, its pending calls, or its fault."""
    pending, answer = turn.all_pending, turn.answer
    if pending:
        return await _finish_pending(turn, pending)
    assert answer is not None  # of a turn without pending calls
    fault = answer.fault or _too_many_steps_fault(turn)
    await _answer_open_calls(turn, "The turn had too many steps: the call was not run.")
    await _store_entries(turn)
    if fault is not None:
        _emit_failure(turn, fault.code, fault.error_class, fault.message)
        return turn.usage.make_end(StopReason.ERROR, fault)
    _emit_completion(turn, answer.stop_reason)
    return turn.usage.make_end(answer.stop_reason)


async def _finish_pending(turn: TurnState, pending: tuple[PendingCall, ...]) -> TurnEnd:
    """End a turn with pending calls, and emit the approval requests of this turn's answer."""
    await _store_entries(turn)
    approval_ids = {call.call_id for call in pending if call.reason == "approval"}
    for call in turn.open_calls if turn.answer is not None else ():  # an earlier turn emitted those of its answer
        if call.id in approval_ids and isinstance(call, ToolUseBlock):
            emit_approval_request(call, turn.tools, turn.pending_calls.tool_session, turn.emit, turn.turn_id)
    _emit_completion(turn, StopReason.TOOL_USE)
    return turn.usage.make_end(StopReason.TOOL_USE, pending=pending)


def _too_many_steps_fault(turn: TurnState) -> Fault | None:
    if turn.calling_message is None:
        return None
    text = f"the model still calls tools after {turn.config.max_steps} steps"
    return Fault(code="too_many_steps", message=text, error_class=ErrorClass.OTHER)


async def _cancel_turn(turn: TurnState) -> None:
    """End a cancelled turn. The content that arrived is already stored."""
    await _close_open_work(turn, MessageStatus.CANCELLED, "The turn was cancelled: the call was not run.")
    usage = turn.usage
    _emit_once(
        turn,
        turn_events.TurnCancelled(
            reason="user_cancel", partial_llm_calls=usage.llm_calls, partial_tool_calls=usage.tool_calls
        ),
    )


async def _fail_turn(turn: TurnState, error: Exception) -> None:
    """End a turn that raised an error."""
    code = error.code if isinstance(error, DragomanError) else "internal_error"
    extra = fault_fields(code, str(error)) if isinstance(error, DragomanError) else None
    await _close_open_work(turn, MessageStatus.ERROR, "The turn failed: the call was not run.", extra)
    _emit_failure(turn, code, ErrorClass.OTHER, str(error))


async def _close_open_work(
    turn: TurnState, status: MessageStatus, text: str, extra: dict[str, Any] | None = None
) -> None:
    """Finish an unused placeholder, answer open calls and store the entries.

    If the store fails, the next turn closes the rest.
    """
    if turn.is_over or not turn.is_open:
        return
    try:
        await drop_begun_call(turn)
        if turn.placeholder is not None:
            message, turn.placeholder = turn.placeholder.message, None
            message = message.replace(metadata=message.metadata.replace(status=status, extra=extra))
            await turn.services.store.update(turn.session.id, message)
        await _answer_open_calls(turn, text)
        await _store_entries(turn)
    except DragomanError as error:
        _log.warning("cannot close a turn: %s", error, extra={"session_id": turn.session.id})


async def _answer_open_calls(turn: TurnState, text: str) -> None:
    """Store an error result for each call that is not run."""
    for call in turn.open_calls:
        failure = {"tool_use_id": call.id, "tool_name": call.name, "error_class": "cancelled", "error_message": text}
        turn.emit("tool.failed", {**failure, "latency_ms": 0})
        await turn.store_result(ToolResultBlock(call.id, (TextBlock(text),), is_error=True))


async def _store_entries(turn: TurnState) -> None:
    """Store the trace entries of a turn, unless its last answer did."""
    if not turn.has_entries:
        agent_key = turn.config.agent_key
        await turn.services.store.entries.append(turn.session.id, turn.entries(), agent_key=agent_key)


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
            total_cost_usd=usage.total_cost_usd,
            unpriced_calls=usage.unpriced_calls,
            wall_time_seconds=usage.wall_time_s,
            user_id=turn.request.user_id,
            team_id=turn.request.team_id,
        ),
    )


def _emit_failure(turn: TurnState, code: str, error_class: ErrorClass, message: str) -> None:
    usage = turn.usage
    _emit_once(
        turn,
        turn_events.TurnFailed(
            error_code=code,
            error_class=error_class,
            error_message_redacted=redact(message),
            llm_call_count=usage.llm_calls,
            tool_call_count=usage.tool_calls,
            total_cost_usd=usage.total_cost_usd,
            unpriced_calls=usage.unpriced_calls,
            wall_time_seconds=usage.wall_time_s,
        ),
    )


def _emit_once(turn: TurnState, event: Payload) -> None:
    if turn.is_open and not turn.is_over:
        turn.is_over = True
        turn.emit(event)
