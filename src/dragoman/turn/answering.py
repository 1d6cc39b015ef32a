"""One call of a model: what it is told, the answer as it arrives, and what it cost.

    history → summary → what the model may see → repaired → what fits → wire → events → the stored answer

Invariant: however the call ends, its row is ended once, with everything that had arrived and what it cost. If the store
refuses an answer (a count that it cannot hold, half of a character), the content is stored without what it refuses, and
the message ends as an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.adapter import RequestContext, estimated_tokens
from dragoman.client import Call, Journal
from dragoman.errors import DragomanError, InputError
from dragoman.event import StreamEvent, ToolUseStart, salvaged, unfold
from dragoman.exchange import ErrorClass, Fault, Options, Reply, ResponseFormat, StopReason, Written
from dragoman.handoff import projected
from dragoman.mending import repair
from dragoman.message import InvalidToolUseBlock, Message, MessageStatus, TextBlock, TokenUsage, ToolUseBlock, Usage
from dragoman.offload import off_loop, size_of
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

MOST_CALLS: Final = 128  # tools that one answer may ask for
_log: Final = logging.getLogger("dragoman.turn")


async def answered(turn: Turn) -> AsyncGenerator[AnswerBegan | StreamEvent | AnswerEnded, None]:
    """The answer to the history of a turn, as it arrives; at last, as it is stored."""
    store, asking = turn.agent.store, await _Asking.made(turn)
    try:
        yield asking.began
        async with aclosing(asking.events()) as events:
            async for event in events:
                if asking.has_too_many_calls(event):
                    break
                if asking.whole is None:
                    asking.growing.take(event)
                yield event
    except (asyncio.CancelledError, GeneratorExit):
        await store.unbroken(asking.end(CANCELLED))
        raise
    except Exception:
        await store.unbroken(asking.end(_broken()))
        raise
    yield await store.unbroken(asking.end(_too_many_calls() if asking.calls > MOST_CALLS else None))


def _too_many_calls() -> Fault:
    what = f"the answer asks for more than {MOST_CALLS} tools at once; none of them was run"
    return Fault(code="too_many_tool_calls", message=what, error_class=ErrorClass.OTHER)


def _broken() -> Fault:
    return Fault(code="unexplained_error", message="the turn broke off", error_class=ErrorClass.OTHER)


def _unstorable(error: Exception) -> Fault:
    what = error.what if isinstance(error, InputError) else type(error).__name__
    return Fault(code="bad_event", message=f"the answer cannot be stored as it came: {what}")


def _failed(reply: Reply, fault: Fault) -> Reply:
    return reply.replace(fault=fault, stop_reason=StopReason.ERROR, stop_sequence=None)


class _Answer(msgspec.Struct, frozen=True):
    """An answer that has ended, ready to be stored."""

    told: Reply  # what the provider answered: its health and the receipt are about this
    reply: Reply  # the same, held to the format that was asked for: this is stored
    usage: Usage
    is_charged: bool
    message: Message


class _Asking:
    """A call that is being made."""

    def __init__(self, turn: Turn, call: Call, growing: Growing, began: AnswerBegan) -> None:
        self.turn = turn
        self.call = call
        self.growing = growing
        self.began = began
        self.whole: Reply | None = None  # what was answered, if it came in one piece
        self.calls = 0  # of tools, that have arrived
        self.journal = Journal()

    @classmethod
    async def made(cls, turn: Turn) -> _Asking:
        """Everything that is needed, and the row, before anything is asked."""
        endpoint = await turn.agent.endpoint(turn.model.provider)
        options = _options(turn)
        fitted, written = await off_loop(size_of(turn.history), _written, turn, options)
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

    def has_too_many_calls(self, event: StreamEvent) -> bool:
        """Count a call, and say whether the answer may not go on."""
        self.calls += isinstance(event, ToolUseStart)
        return self.calls > MOST_CALLS

    async def end(self, fault: Fault | None = None) -> AnswerEnded:
        """Store the answer as it ended, with what it cost, and tell of it."""
        turn, is_cancelled = self.turn, fault is CANCELLED
        row, reply = await self._store(fault)
        turn.history.append(row.message)
        turn.answer = AnswerEnded(row, StopReason.CANCELLED if is_cancelled else reply.stop_reason, reply.fault)
        turn.settled.clear()
        turn.asking = row.message if reply.fault is None and any(calls_of(row.message)) else None
        if reply.fault is not None:
            await self._give_up_calls(row)
        return turn.answer

    async def _store(self, fault: Fault | None) -> tuple[Row, Reply]:
        """Store the answer as it came. If that is impossible, store the content that arrived, as a failed answer."""
        try:
            answer = self._answer(self._reply(fault), fault)
            return await self._stored(answer, self._ended(answer)), answer.reply
        except Exception as error:
            if isinstance(error, DragomanError) and not isinstance(error, InputError):
                raise  # the store failed, and not the answer
            _log.exception("an answer cannot be stored as it came", extra={"session_id": self.turn.session.id})
            answer = self._answer(self._salvaged(fault or _unstorable(error)), fault)
            return await self._stored(answer, self.growing.end(answer.message)), answer.reply

    def _reply(self, fault: Fault | None) -> Reply:
        reply = self.whole or self.growing.folding.reply()
        return reply if fault is None else _failed(reply, fault)

    def _salvaged(self, fault: Fault) -> Reply:
        """The content that arrived, and nothing else that the provider sent."""
        content = salvaged(self.whole.content) if self.whole is not None else self.growing.folding.salvage()
        return Reply(content=content, stop_reason=StopReason.ERROR, fault=fault)

    def _answer(self, reply: Reply, fault: Fault | None) -> _Answer:
        """The reply as a message, with what it cost."""
        turn, context = self.turn, self.call.context
        usage = turn.agent.priced(turn.model, self._usage(reply), self._now(), self.journal.latency_ms or 0)
        is_charged = reply.usage is not None or reply.fault is None
        if is_charged:
            context = msgspec.structs.replace(context, usage=usage)
        checked = _check_output(reply, _options(turn).response_format)
        status = MessageStatus.CANCELLED if fault is CANCELLED else None
        return _Answer(reply, checked, usage, is_charged, self.growing.message(checked, context, status))

    async def _stored(self, answer: _Answer, row: Awaitable[Row]) -> Row:
        """The row of an answer, once it is stored; and what is told of the call."""
        try:
            stored = await row
        except DragomanError as error:  # it was called and paid for, also if the store cannot keep it
            if not isinstance(error, InputError):
                self._tell(answer)
            raise
        self._tell(answer)
        return stored

    def _tell(self, answer: _Answer) -> None:
        turn = self.turn
        if answer.is_charged:
            turn.tally.add(answer.usage)
        turn.agent.note_call(turn.model, answer.told.fault, session_id=turn.session.id)
        tell_ended(turn, answer.message.id, answer.told, answer.usage, self.journal)

    async def _ended(self, answer: _Answer) -> Row:
        """Store the answer, what its calls are called by whom and, if it is the last one, what ends the turn."""
        message, reply = answer.message, answer.reply
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
        if reply.usage is not None and not reply.usage.estimated:  # by a dialect, which found it impossible
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


def _written(turn: Turn, options: Options) -> tuple[Fitted, Written]:
    """What the model is told, and the same as its provider wants it."""
    fitted = shown(turn, options)
    return fitted, turn.adapter.to_wire(fitted.messages, turn.waiting.tools.definitions, options)


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
