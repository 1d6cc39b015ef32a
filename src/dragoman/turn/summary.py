"""A long history, told shorter: the model itself writes down what the oldest turns came to.

The summary is stored as a message like any other and stands in the place of its turns whenever a model is told the
history (see ``window``); what was said stays in the store. The one rule: a summary that cannot be had stops no turn.
What does not fit is left out then, oldest first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dragoman.adapter import RequestContext, estimated_tokens
from dragoman.client import Call, Journal
from dragoman.exchange import Options, Reply, StopReason
from dragoman.mending import repair
from dragoman.message import Message, MessageMetadata, Role, TextBlock, TokenUsage, Usage
from dragoman.turn import stages
from dragoman.turn.beginning import Turn
from dragoman.turn.calling import CANCELLED, tell_begun, tell_ended
from dragoman.turn.values import NO_TIME
from dragoman.window import SummaryPlan, plan_summary, summary_message

_MOST_TOKENS: Final = 2_000
_ASK: Final = (
    "Summarise the conversation above for somebody who will continue it and cannot read it: what was asked, decided,"
    " found and done, with every name, number, path and open question that matters. Write only the summary."
)
_log: Final = logging.getLogger("dragoman.turn")


async def summarised(turn: Turn) -> None:
    """If the history has grown long, have its oldest turns summarised, and store that."""
    if not turn.asked.content:  # it goes on with what was sent before
        return
    plan = plan_summary(turn.history, estimated_tokens, above_tokens=turn.agent.summary_above_tokens)
    if plan is None:
        return
    text, usage = await _written(turn, plan)
    if not text:
        return
    made = summary_message(plan, text, id="", created_at=NO_TIME)
    told = made.metadata.replace(
        model=turn.model.id,
        provider=turn.model.provider,
        usage=usage,
        team_id=turn.asked.team_id,
        stage=stages.SUMMARY,
    )
    (row,) = await turn.agent.store.append(turn.session.id, made.replace(session_id="", metadata=told))
    turn.history.append(row.message)


async def _written(turn: Turn, plan: SummaryPlan) -> tuple[str, Usage | None]:
    """The summary, and what it consumed; no text if it cannot be had."""
    agent = turn.agent
    ask = Message("", "", Role.USER, (TextBlock(_ASK),), MessageMetadata(), NO_TIME)
    sent = (*repair(plan.messages).messages, ask)
    wire = turn.adapter.to_wire(sent, (), Options(max_output_tokens=_MOST_TOKENS)).wire
    context = RequestContext(session_id=turn.session.id, message_id=agent.store.new_id(), created_at=agent.clock())
    call = Call(
        endpoint=await agent.endpoint(turn.model.provider),
        adapter=turn.adapter,
        wire=wire,
        context=context,
        timeouts=agent.timeouts,
        retries=agent.retries,
    )
    journal, estimated = Journal(), estimated_tokens(sent)
    tell_begun(turn, context.message_id, estimated)
    try:
        reply = await agent.client.send(call, journal)
    except asyncio.CancelledError:
        tell_ended(turn, context.message_id, Reply(stop_reason=StopReason.ERROR, fault=CANCELLED), None, journal)
        raise
    counts = reply.usage
    if counts is None or counts.estimated:
        counts = TokenUsage(input_tokens=estimated, output_tokens=0, estimated=True)
    usage = agent.priced(turn.model, counts, agent.clock(), journal.latency_ms or 0)
    tell_ended(turn, context.message_id, reply, usage, journal)
    if reply.usage is not None or reply.fault is None:
        turn.tally.add(usage)
    if reply.fault is not None:
        _log.warning("no summary could be had: %s", reply.fault.code, extra={"session_id": turn.session.id})
        return "", usage
    return "\n".join(block.text for block in reply.content if isinstance(block, TextBlock)).strip(), usage
