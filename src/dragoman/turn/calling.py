"""What is told of a call of a model: that it began, and how it ended. The one rule: of each that began, both."""

from __future__ import annotations

from typing import Final

from dragoman.bus import catalogue
from dragoman.client import Journal
from dragoman.exchange import ErrorClass, Fault, Reply
from dragoman.message import InvalidToolUseBlock, ThinkingBlock, ToolUseBlock, Usage
from dragoman.turn.beginning import Turn
from dragoman.turn.telling import without_secrets

CANCELLED: Final = Fault(code="cancelled", message="somebody stopped it", error_class=ErrorClass.CANCELLED)


def tell_begun(turn: Turn, request_id: str, estimated_input_tokens: int) -> None:
    """A model is about to be called."""
    turn.tally.llm_calls += 1
    turn.tell(
        catalogue.LlmCallStarted(
            model=turn.model.id,
            provider=turn.model.provider,
            estimated_input_tokens=estimated_input_tokens,
            request_id=request_id,
            is_worker=turn.asked.is_worker,
        )
    )


def tell_ended(turn: Turn, request_id: str, reply: Reply, usage: Usage | None, journal: Journal) -> None:
    """It has answered, or failed."""
    told = {"model": turn.model.id, "provider": turn.model.provider, "request_id": request_id}
    if reply.fault is not None:
        turn.tell(
            catalogue.LlmCallFailed(
                **told,
                error_class=reply.fault.error_class,
                error_code=reply.fault.code,
                error_message_redacted=without_secrets(reply.fault.message),
                retry_count=journal.retry_count,
                latency_ms=journal.latency_ms or 0,
            )
        )
        return
    assert usage is not None  # of an answer without a fault
    turn.tell(
        catalogue.LlmCallCompleted(
            **told,
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
            time_to_first_token_ms=journal.first_byte_ms,
            retry_count=journal.retry_count,
            user_id=turn.asked.user_id,
            team_id=turn.asked.team_id,
        )
    )
