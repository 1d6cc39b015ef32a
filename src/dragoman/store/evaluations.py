"""What is known of a turn when somebody judges it: who answered, for how much, how long, and what it looked like.

    await store.judged_turn(session_id)             the last turn of a session
    await store.judged_turn(session_id, turn_id)    that one

The result is what ``store.record_evaluation`` takes, so that routing learns from the judgement. The one rule: nothing
of what was said is in it, only what it looked like.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from dragoman.errors import InputError
from dragoman.message import Message, Role, TextBlock, usage_problems

if TYPE_CHECKING:
    from dragoman.store.store import Store


async def describe_turn(store: Store, session_id: str, turn_id: str | None = None) -> dict[str, Any]:
    """What is known of a turn; ``InputError`` if there is none, or nobody has answered."""
    from dragoman.routing import collect_facts  # noqa: PLC0415  only who judges needs routing

    history = [row.message async for row in store.history(session_id)]
    start, end = _bounds(history, session_id, turn_id)
    answers = [message for message in history[start + 1 : end] if message.role is Role.ASSISTANT]
    if not answers:
        raise InputError("nobody has answered its last message", where=f"session {session_id}")
    usages = [answer.metadata.usage for answer in answers if answer.metadata.usage is not None]
    valid_usages = [usage for usage in usages if not usage_problems(usage)]
    costs = [usage.amount_usd for usage in valid_usages if usage.amount_usd is not None]
    prompt_tokens = (
        valid_usages[0].input_tokens + valid_usages[0].cached_input_tokens + valid_usages[0].cache_creation_input_tokens
        if valid_usages
        else 0
    )
    question, last = history[start], answers[-1]
    facts = collect_facts(
        history[:start], question.content, now=question.created_at, estimated_input_tokens=prompt_tokens
    )
    return {
        "turn_id": last.metadata.run_id,
        "message_id": last.id,
        "model": last.metadata.model,
        "cost_usd": sum(costs, Decimal(0)) if costs else None,
        "duration_ms": float(sum(usage.latency_ms for usage in valid_usages)) if valid_usages else None,
        "fingerprint": facts.fingerprint(),
    }


def _bounds(history: list[Message], session_id: str, turn_id: str | None) -> tuple[int, int]:
    """Where a turn's question stands, and where the next one does."""
    end = len(history)
    if turn_id is not None:
        end = next((at + 1 for at in range(end - 1, -1, -1) if history[at].metadata.run_id == turn_id), 0)
    start = next((at for at in range(end - 1, -1, -1) if _is_question(history[at])), None)
    if start is None:
        raise InputError("there is no turn in it yet", where=f"session {session_id}", remedy="Ask something first")
    return start, end


def _is_question(message: Message) -> bool:
    return message.role is Role.USER and any(
        not isinstance(block, TextBlock) or block.text for block in message.content
    )
