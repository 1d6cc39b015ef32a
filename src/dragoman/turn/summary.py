"""A long history, told shorter: the model itself writes down what the oldest turns came to.

The summary is stored as a message like any other and stands in the place of its turns whenever a model is told the
history (see ``window``); what was said stays in the store. The one rule: a summary that cannot be had stops no turn.
What does not fit is left out then, oldest first.
"""

from __future__ import annotations

import logging
from typing import Final

from dragoman.adapter import RequestContext, estimated_tokens
from dragoman.client import Call
from dragoman.exchange import Options
from dragoman.mending import repair
from dragoman.message import Message, MessageMetadata, Role, TextBlock
from dragoman.turn.beginning import NO_TIME, Turn
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
    text = await _written(turn, plan)
    if not text:
        return
    made = summary_message(plan, text, id="", created_at=NO_TIME).replace(session_id="")
    (row,) = await turn.agent.store.append(turn.session.id, made)
    turn.history.append(row.message)


async def _written(turn: Turn, plan: SummaryPlan) -> str:
    agent = turn.agent
    ask = Message("", "", Role.USER, (TextBlock(_ASK),), MessageMetadata(), NO_TIME)
    wire = turn.adapter.to_wire(
        (*repair(plan.messages).messages, ask), (), Options(max_output_tokens=_MOST_TOKENS)
    ).wire
    context = RequestContext(session_id=turn.session.id, message_id=agent.store.new_id(), created_at=agent.clock())
    call = Call(
        endpoint=await agent.endpoint(turn.model.provider),
        adapter=turn.adapter,
        wire=wire,
        context=context,
        timeouts=agent.timeouts,
        retries=agent.retries,
    )
    reply = await agent.client.send(call)
    if reply.usage is not None:
        turn.tally.add(agent.priced(turn.model, reply.usage, agent.clock(), 0))
    if reply.fault is not None:
        _log.warning("no summary could be had: %s", reply.fault.code, extra={"session_id": turn.session.id})
        return ""
    return "\n".join(block.text for block in reply.content if isinstance(block, TextBlock)).strip()
