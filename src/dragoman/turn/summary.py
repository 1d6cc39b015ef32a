"""A long history, told shorter: the model itself writes down what the oldest turns came to.

The summary is stored as a message like any other and stands in the place of its turns whenever a model is told the
history (see ``window``); what was said stays in the store. The one rule: a summary that cannot be had stops no turn.
What does not fit is left out then, oldest first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dragoman.adapter import RequestContext, estimate_tokens
from dragoman.client import Call, CallLog
from dragoman.context_window import SummaryPlan, plan_summary, summary_message
from dragoman.exchange import Options, Reply, StopReason
from dragoman.message import Message, MessageMetadata, Role, TextBlock, TokenUsage, Usage
from dragoman.repair import repair
from dragoman.turn import stages
from dragoman.turn.calling import CANCELLED, emit_call_end, emit_call_start
from dragoman.turn.start import TurnState
from dragoman.turn.types import NO_TIME

_MAX_TOKENS: Final = 2_000
_ASK: Final = (
    "Summarise the conversation above for somebody who will continue it and cannot read it: what was asked, decided,"
    " found and done, with every name, number, path and open question that matters. Write only the summary."
)
_log: Final = logging.getLogger("dragoman.turn")


async def summarize_history(turn: TurnState) -> None:
    """If the history has grown long, have its oldest turns summarised, and store that."""
    if not turn.request.content:  # it goes on with what was sent before
        return
    plan = plan_summary(turn.history, estimate_tokens, above_tokens=turn.agent.summarize_above_tokens)
    if plan is None:
        return
    text, usage = await _request_summary(turn, plan)
    if not text:
        return
    summary = summary_message(plan, text, id="", created_at=NO_TIME)
    metadata = summary.metadata.replace(
        model=turn.model.id,
        provider=turn.model.provider,
        usage=usage,
        team_id=turn.request.team_id,
        stage=stages.SUMMARY,
    )
    (row,) = await turn.agent.store.append(turn.session.id, summary.replace(session_id="", metadata=metadata))
    turn.history.append(row.message)


async def _request_summary(turn: TurnState, plan: SummaryPlan) -> tuple[str, Usage | None]:
    """The summary, and what it consumed; no text if it cannot be had."""
    agent = turn.agent
    prompt = Message("", "", Role.USER, (TextBlock(_ASK),), MessageMetadata(), NO_TIME)
    messages = (*repair(plan.messages).messages, prompt)
    wire = turn.adapter.to_wire(messages, (), Options(max_output_tokens=_MAX_TOKENS)).wire
    context = RequestContext(session_id=turn.session.id, message_id=agent.store.new_id(), created_at=agent.clock())
    call = Call(
        endpoint=await agent.endpoint(turn.model.provider),
        adapter=turn.adapter,
        wire=wire,
        context=context,
        timeouts=agent.timeouts,
        retries=agent.retries,
    )
    call_log, input_tokens = CallLog(), estimate_tokens(messages)
    emit_call_start(turn, context.message_id, input_tokens)
    try:
        reply = await agent.client.send(call, call_log)
    except asyncio.CancelledError:
        emit_call_end(turn, context.message_id, Reply(stop_reason=StopReason.ERROR, fault=CANCELLED), None, call_log)
        raise
    counts = reply.usage
    if counts is None or counts.estimated:
        counts = TokenUsage(input_tokens=input_tokens, output_tokens=0, estimated=True)
    usage = agent.price_usage(turn.model, counts, agent.clock(), call_log.latency_ms or 0)
    emit_call_end(turn, context.message_id, reply, usage, call_log)
    if reply.usage is not None or reply.fault is None:
        turn.usage.add(usage)
    if reply.fault is not None:
        _log.warning("no summary could be had: %s", reply.fault.code, extra={"session_id": turn.session.id})
        return "", usage
    return "\n".join(block.text for block in reply.content if isinstance(block, TextBlock)).strip(), usage
