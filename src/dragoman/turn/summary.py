"""Summarize a long history: the model writes a summary of the oldest turns.

The summary is stored as a message and replaces its turns in later requests (see ``context_window``); the turns stay in
the store. Invariant: a summary that fails does not stop the turn. Then messages that do not fit are left out, oldest
first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dragoman import tokens
from dragoman.adapter import RequestContext
from dragoman.client import CallLog
from dragoman.context_window import SummaryPlan, plan_summary, summary_message, with_summary
from dragoman.exchange import Options, Reply, StopReason
from dragoman.message import NO_TIME, Message, MessageMetadata, Role, TextBlock, TokenUsage, Usage
from dragoman.repair import repair
from dragoman.turn.events import emit_call_end, emit_call_start
from dragoman.turn.model_call import CANCELLED, make_call
from dragoman.turn.state import SUMMARY, TurnState

_MAX_TOKENS: Final = 2_000
_PROMPT: Final = (
    "Summarise the conversation above for somebody who will continue it and cannot read it: what was asked, decided,"
    " found and done, with every name, number, path and open question that matters. Write only the summary."
)
_log: Final = logging.getLogger("dragoman.turn")


async def summarize_history(turn: TurnState) -> None:
    """If the history is long, store a summary of its oldest turns."""
    if not turn.request.content:  # the turn continues an earlier one
        return
    usual_ratio = turn.services.token_ratios.get(turn.model.id)
    estimate = tokens.make_estimate(
        turn.model.id, turn.history, turn.tools.definitions, view=with_summary, usual_ratio=usual_ratio
    )
    plan = plan_summary(turn.history, estimate, above_tokens=turn.config.summarize_above_tokens)
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
        stage=SUMMARY,
    )
    (row,) = await turn.services.store.append(turn.session.id, summary.replace(session_id="", metadata=metadata))
    turn.history.append(row.message)


async def _request_summary(turn: TurnState, plan: SummaryPlan) -> tuple[str, Usage | None]:
    """The summary and its usage; an empty text if the call fails."""
    services = turn.services
    prompt = Message("", "", Role.USER, (TextBlock(_PROMPT),), MessageMetadata(), NO_TIME)
    messages = (*repair(plan.messages).messages, prompt)
    wire = turn.adapter.to_wire(messages, (), Options(max_output_tokens=_MAX_TOKENS)).wire
    request_id = services.store.new_id()
    context = RequestContext(session_id=turn.session.id, message_id=request_id, created_at=services.clock())
    call = make_call(turn, await services.endpoint(turn.model.provider), wire, context)
    call_log, input_tokens = CallLog(), tokens.estimate(messages, (), turn.model.id)
    emit_call_start(turn, request_id, input_tokens)
    try:
        reply = await services.client.send(call, call_log)
    except asyncio.CancelledError:
        emit_call_end(turn, request_id, Reply(stop_reason=StopReason.ERROR, fault=CANCELLED), None, call_log)
        raise
    counts = reply.usage
    if counts is None or counts.estimated:
        counts = TokenUsage(input_tokens=input_tokens, output_tokens=0, estimated=True)
    usage = services.price_usage(turn.model, counts, services.clock(), call_log.latency_ms or 0)
    emit_call_end(turn, request_id, reply, usage, call_log)
    if reply.usage is not None or reply.fault is None:
        turn.usage.add(usage)
    if reply.fault is not None:
        _log.warning("cannot summarize: %s", reply.fault.code, extra={"session_id": turn.session.id})
        return "", usage
    return "\n".join(block.text for block in reply.content if isinstance(block, TextBlock)).strip(), usage
