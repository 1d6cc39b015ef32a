"""What is told of a call of a model: that it began, and how it ended. The one rule: of each that began, both."""

from __future__ import annotations

from typing import Final

from dragoman.bus.event_types import turn_events
from dragoman.client import CallLog
from dragoman.exchange import ErrorClass, Fault, Reply
from dragoman.message import InvalidToolUseBlock, ThinkingBlock, ToolUseBlock, Usage
from dragoman.redaction import redact
from dragoman.turn.start import TurnState

CANCELLED: Final = Fault(code="cancelled", message="somebody stopped it", error_class=ErrorClass.CANCELLED)


def emit_call_start(turn: TurnState, request_id: str, estimated_input_tokens: int) -> None:
    """A model is about to be called."""
    turn.usage.llm_calls += 1
    turn.emit(
        turn_events.LlmCallStarted(
            model=turn.model.id,
            provider=turn.model.provider,
            estimated_input_tokens=estimated_input_tokens,
            request_id=request_id,
            is_worker=turn.request.is_worker,
        )
    )


def emit_call_end(turn: TurnState, request_id: str, reply: Reply, usage: Usage | None, call_log: CallLog) -> None:
    """It has answered, or failed."""
    fields = {"model": turn.model.id, "provider": turn.model.provider, "request_id": request_id}
    if reply.fault is not None:
        turn.emit(
            turn_events.LlmCallFailed(
                **fields,
                error_class=reply.fault.error_class,
                error_code=reply.fault.code,
                error_message_redacted=redact(reply.fault.message),
                retry_count=call_log.retry_count,
                latency_ms=call_log.latency_ms or 0,
            )
        )
        return
    assert usage is not None  # of an answer without a fault
    turn.emit(
        turn_events.LlmCallCompleted(
            **fields,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_creation_input_tokens=usage.cache_creation_input_tokens,
            cost_usd=usage.amount_usd,
            pricing_version=usage.pricing_version,
            latency_ms=usage.latency_ms,
            stop_reason=reply.stop_reason,
            produced_tool_calls=sum(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in reply.content),
            produced_thinking_blocks=sum(isinstance(block, ThinkingBlock) for block in reply.content),
            response_model=reply.model,
            time_to_first_token_ms=call_log.first_byte_ms,
            retry_count=call_log.retry_count,
            user_id=turn.request.user_id,
            team_id=turn.request.team_id,
        )
    )
