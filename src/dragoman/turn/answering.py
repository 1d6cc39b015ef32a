"""One call of a model: what it is told, the answer as it arrives, and what it cost.

    history → summary → what the model may see → repaired → what fits → wire → events → the stored answer

The one rule: however the call ends, its row is ended once, with everything that had arrived and what it cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Any

import msgspec

from dragoman.adapter import RequestContext, estimated_tokens
from dragoman.client import Call, Journal
from dragoman.event import StreamEvent, unfold
from dragoman.exchange import ErrorClass, Fault, Options, Reply, ResponseFormat, StopReason, Written
from dragoman.handoff import projected
from dragoman.mending import repair
from dragoman.message import InvalidToolUseBlock, Message, MessageStatus, TextBlock, TokenUsage, ToolUseBlock
from dragoman.rules import calls_of
from dragoman.settings import Endpoint
from dragoman.store import Row
from dragoman.toolschema import output_problems
from dragoman.turn.beginning import Turn, place_for_answer
from dragoman.turn.calling import CANCELLED, tell_begun, tell_ended
from dragoman.turn.growing import Growing
from dragoman.turn.seeing import describe_in, policy_of
from dragoman.turn.values import AS_THE_AGENT, AnswerBegan, AnswerEnded
from dragoman.window import Fitted, fit, with_summary


async def answered(turn: Turn) -> AsyncGenerator[AnswerBegan | StreamEvent | AnswerEnded, None]:
    """The answer to the history of a turn, as it arrives; at last, as it is stored."""
    store, asking = turn.agent.store, await _Asking.made(turn)
    try:
        yield asking.began
        async with aclosing(asking.events()) as events:
            async for event in events:
                if asking.whole is None:
                    asking.growing.take(event)
                yield event
    except (asyncio.CancelledError, GeneratorExit):
        await store.unbroken(asking.end(CANCELLED))
        raise
    except Exception:
        await store.unbroken(asking.end(_broken()))
        raise
    yield await store.unbroken(asking.end())


def _broken() -> Fault:
    return Fault(code="unexplained_error", message="the turn broke off", error_class=ErrorClass.OTHER)


class _Asking:
    """A call that is being made."""

    def __init__(self, turn: Turn, call: Call, growing: Growing, began: AnswerBegan) -> None:
        self.turn = turn
        self.call = call
        self.growing = growing
        self.began = began
        self.whole: Reply | None = None  # what was answered, if it came in one piece
        self.journal = Journal()

    @classmethod
    async def made(cls, turn: Turn) -> _Asking:
        """Everything that is needed, and the row, before anything is asked."""
        endpoint = await turn.agent.endpoint(turn.model.provider)
        options = _options(turn)
        fitted = shown(turn, options)
        written = turn.adapter.to_wire(fitted.messages, turn.waiting.tools.definitions, options)
        if turn.place is None:
            await turn.agent.store.unbroken(_make_place(turn))
        return cls._with_row(turn, endpoint, fitted, written)

    @classmethod
    def _with_row(cls, turn: Turn, endpoint: Endpoint, fitted: Fitted, written: Written) -> _Asking:
        agent, row = turn.agent, turn.place
        assert row is not None
        context = RequestContext(
            session_id=turn.session.id,
            message_id=row.message.id,
            created_at=row.message.created_at,
            routing=turn.decision.record,
        )
        call = Call(
            endpoint=endpoint,
            adapter=turn.adapter,
            wire=written.wire,
            context=context,
            timeouts=agent.timeouts,
            retries=agent.retries,
        )
        tell_begun(turn, row.message.id, fitted.tokens)
        began = AnswerBegan(row.message.id, row.seq, turn.model.id, fitted.tokens, written.losses, len(fitted.left_out))
        turn.place = None
        turn.steps += 1
        return cls(turn, call, Growing(agent.store, row, turn.adapter, context), began)

    def events(self) -> AsyncGenerator[StreamEvent, None]:
        """What the provider says, streamed or as if it were."""
        if self.turn.agent.streamed:
            return self.turn.agent.client.stream(self.call, self.journal)
        return self._unfolded()

    async def _unfolded(self) -> AsyncGenerator[StreamEvent, None]:
        self.whole = await self.turn.agent.client.send(self.call, self.journal)
        for event in unfold(self.whole):
            yield event

    async def end(self, fault: Fault | None = None) -> AnswerEnded:
        """Store the answer as it ended, with what it cost, and tell of it."""
        turn, context = self.turn, self.call.context
        reply = self.whole or self.growing.folding.reply()
        if fault is not None:
            reply = reply.replace(fault=fault, stop_reason=StopReason.ERROR, stop_sequence=None)
        is_cancelled = fault is CANCELLED
        is_charged = reply.usage is not None or reply.fault is None
        usage = turn.agent.priced(turn.model, self._usage(reply), self._now(), self.journal.latency_ms or 0)
        if is_charged:
            turn.tally.add(usage)
            context = msgspec.structs.replace(context, usage=usage)
        checked = _check_output(reply, _options(turn).response_format)
        status = MessageStatus.CANCELLED if is_cancelled else None
        message = self.growing.message(checked, context, status)
        turn.agent.note_call(turn.model, reply.fault, session_id=turn.session.id)
        try:
            row = await self._ended(message, checked)
        finally:  # it was called and paid for, also if that cannot be stored
            tell_ended(turn, message.id, reply, usage, self.journal)
        turn.history.append(row.message)
        turn.answer = AnswerEnded(row, StopReason.CANCELLED if is_cancelled else checked.stop_reason, checked.fault)
        turn.settled.clear()
        turn.asking = row.message if checked.fault is None and any(calls_of(row.message)) else None
        if checked.fault is not None:
            await self._give_up_calls(row)
        return turn.answer

    async def _ended(self, message: Message, reply: Reply) -> Row:
        """Store the answer, what its calls are called by whom and, if it is the last one, what ends the turn."""
        turn, known = self.turn, self.turn.adapter.ids.entries
        beside: dict[str, Any] = {"tool_ids": known[turn.known_ids :]}
        is_last = reply.stop_reason is not StopReason.PAUSED and not any(calls_of(message))
        if is_last:
            beside |= {"entries": turn.entries(message), "agent_key": turn.agent.agent_key, "owner": turn.tenure.owner}
        row = await self.growing.end(message, **beside)
        turn.known_ids = len(known)
        if is_last:
            turn.is_traced = True
            turn.tenure.was_given_back()
        return row

    async def _give_up_calls(self, row: Row) -> None:
        """Nobody runs what an answer asks for that is none."""
        for _, call in calls_of(row.message):
            await self.turn.agent.store.cancel_tool_call(self.turn.session.id, call.id)

    def _usage(self, reply: Reply) -> TokenUsage:
        """What the provider says it consumed; else our estimate, which says that it is one."""
        if reply.usage is not None:
            return reply.usage
        said = self.growing.row.message.replace(content=reply.content)
        return TokenUsage(
            input_tokens=self.began.estimated_input_tokens,
            output_tokens=estimated_tokens([said]) if reply.content else 0,
            estimated=True,
        )

    def _now(self) -> datetime:
        return self.turn.agent.clock()


def _check_output(reply: Reply, wanted: ResponseFormat | None) -> Reply:
    """Return the reply with a fault if it is a final answer that does not fit the format that was asked for.

    The text is kept. The call itself did not fail, so the provider's health and its receipt do not change.
    """
    has_calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in reply.content)
    if reply.fault is not None or reply.stop_reason is StopReason.PAUSED or has_calls:
        return reply
    text = "".join(block.text for block in reply.content if isinstance(block, TextBlock))
    problems = output_problems(wanted, text)
    if not problems:
        return reply
    code, what = "output_invalid", f"the answer does not fit the requested format: {'; '.join(problems)}"
    if reply.stop_reason is StopReason.MAX_TOKENS:
        code, what = "output_truncated", "the answer reached its token limit before the requested JSON was complete"
    fault = Fault(code=code, message=what, error_class=ErrorClass.OTHER)
    return reply.replace(fault=fault, stop_reason=StopReason.ERROR, stop_sequence=None)


async def _make_place(turn: Turn) -> None:
    (turn.place,) = await turn.agent.store.append(turn.session.id, place_for_answer(turn))


def shown(turn: Turn, options: Options) -> Fitted:
    """What of the history the model is told: what it may see, in good order, as much as fits."""
    agent, capabilities = turn.agent, turn.model.capabilities
    history = with_summary(turn.history)
    describe = describe_in(agent, turn.session)
    seen = projected(history, capabilities, policy=policy_of(agent, turn.session), describe=describe)
    offered = turn.waiting.tools
    sound = repair(seen, offered.problems).messages
    tools = estimated_tokens((), offered.definitions) if len(offered) else 0
    answer = options.max_output_tokens or min(capabilities.max_output_tokens or 4096, 4096)
    room = max(1, capabilities.max_context_tokens - tools - min(answer, capabilities.max_context_tokens // 2))
    return fit(sound, room, estimated_tokens)


def _options(turn: Turn) -> Options:
    """How to answer: as this turn asks for, or else the agent."""
    asked, own = turn.asked.options, turn.agent.options
    told = {} if asked is AS_THE_AGENT else msgspec.structs.asdict(asked)
    given = {name: value for name, value in told.items() if value not in (None, ())}
    return own.replace(**given, stream=True if turn.agent.streamed else None)
