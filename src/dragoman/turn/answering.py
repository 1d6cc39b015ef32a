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

from dragoman.adapter import RequestContext, estimate_tokens
from dragoman.client import Call, CallLog
from dragoman.context_window import FittedHistory, fit, with_summary
from dragoman.errors import DragomanError, InputError
from dragoman.event import StreamEvent, ToolUseStart, storable_blocks, unfold
from dragoman.exchange import ErrorClass, Fault, Options, Reply, ResponseFormat, StopReason, Written
from dragoman.handoff import project_history
from dragoman.message import InvalidToolUseBlock, Message, MessageStatus, TextBlock, TokenUsage, ToolUseBlock, Usage
from dragoman.offload import estimate_size, run_off_loop
from dragoman.repair import repair
from dragoman.rules import calls_of
from dragoman.settings import Endpoint
from dragoman.shield import run_to_completion
from dragoman.store import Row
from dragoman.toolschema import output_problems
from dragoman.turn.calling import CANCELLED, emit_call_end, emit_call_start
from dragoman.turn.image_policy import image_describer, image_policy
from dragoman.turn.model_call import AnswerWriter
from dragoman.turn.start import TurnState, make_answer_placeholder
from dragoman.turn.types import AGENT_OPTIONS, AnswerEnd, AnswerStart

MAX_CALLS: Final = 128  # tools that one answer may ask for
_log: Final = logging.getLogger("dragoman.turn")


async def call_model(turn: TurnState) -> AsyncGenerator[AnswerStart | StreamEvent | AnswerEnd, None]:
    """The answer to the history of a turn, as it arrives; at last, as it is stored."""
    call = await _ModelCall.prepare(turn)
    try:
        yield call.start
        async with aclosing(call.events()) as events:
            async for event in events:
                if call.has_too_many_calls(event):
                    break
                if call.whole_reply is None:
                    call.writer.feed(event)
                yield event
    except (asyncio.CancelledError, GeneratorExit):
        await run_to_completion(call.end(CANCELLED))
        raise
    except Exception:
        await run_to_completion(call.end(_internal_fault()))
        raise
    yield await run_to_completion(call.end(_too_many_calls_fault() if call.calls > MAX_CALLS else None))


def _too_many_calls_fault() -> Fault:
    text = f"the answer asks for more than {MAX_CALLS} tools at once; none of them was run"
    return Fault(code="too_many_tool_calls", message=text, error_class=ErrorClass.OTHER)


def _internal_fault() -> Fault:
    return Fault(code="unexplained_error", message="the turn broke off", error_class=ErrorClass.OTHER)


def _storage_fault(error: Exception) -> Fault:
    text = error.what if isinstance(error, InputError) else type(error).__name__
    return Fault(code="bad_event", message=f"the answer cannot be stored as it came: {text}")


def _with_fault(reply: Reply, fault: Fault) -> Reply:
    return reply.replace(fault=fault, stop_reason=StopReason.ERROR, stop_sequence=None)


class _Answer(msgspec.Struct, frozen=True):
    """An answer that has ended, ready to be stored."""

    provider_reply: Reply  # what the provider answered: its health and the receipt are about this
    reply: Reply  # the same, held to the format that was asked for: this is stored
    usage: Usage
    is_charged: bool
    message: Message


class _ModelCall:
    """A call that is being made."""

    def __init__(self, turn: TurnState, call: Call, writer: AnswerWriter, start: AnswerStart) -> None:
        self.turn = turn
        self.call = call
        self.writer = writer
        self.start = start
        self.whole_reply: Reply | None = None  # what was answered, if it came in one piece
        self.calls = 0  # of tools, that have arrived
        self.call_log = CallLog()

    @classmethod
    async def prepare(cls, turn: TurnState) -> _ModelCall:
        """Everything that is needed, and the row, before anything is asked."""
        endpoint = await turn.agent.endpoint(turn.model.provider)
        options = _options(turn)
        history, written = await run_off_loop(estimate_size(turn.history), _write_request, turn, options)
        if turn.placeholder is None:
            await run_to_completion(_store_placeholder(turn))
        return cls._with_row(turn, endpoint, history, written)

    @classmethod
    def _with_row(cls, turn: TurnState, endpoint: Endpoint, history: FittedHistory, written: Written) -> _ModelCall:
        agent, row = turn.agent, turn.placeholder
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
        emit_call_start(turn, row.message.id, history.tokens)
        start = AnswerStart(
            row.message.id, row.seq, turn.model.id, history.tokens, written.losses, len(history.left_out)
        )
        turn.placeholder = None
        turn.steps += 1
        return cls(turn, call, AnswerWriter(agent.store, row, turn.adapter, context), start)

    def events(self) -> AsyncGenerator[StreamEvent, None]:
        """What the provider says, streamed or as if it were."""
        if self.turn.agent.stream:
            return self.turn.agent.client.stream(self.call, self.call_log)
        return self._stream_whole_reply()

    async def _stream_whole_reply(self) -> AsyncGenerator[StreamEvent, None]:
        self.whole_reply = await self.turn.agent.client.send(self.call, self.call_log)
        for event in unfold(self.whole_reply):
            yield event

    def has_too_many_calls(self, event: StreamEvent) -> bool:
        """Count a call, and say whether the answer may not go on."""
        self.calls += isinstance(event, ToolUseStart)
        return self.calls > MAX_CALLS

    async def end(self, fault: Fault | None = None) -> AnswerEnd:
        """Store the answer as it ended, with what it cost, and tell of it."""
        turn, is_cancelled = self.turn, fault is CANCELLED
        row, reply = await self._store(fault)
        turn.history.append(row.message)
        turn.answer = AnswerEnd(row, StopReason.CANCELLED if is_cancelled else reply.stop_reason, reply.fault)
        turn.answered_ids.clear()
        turn.calling_message = row.message if reply.fault is None and any(calls_of(row.message)) else None
        if reply.fault is not None:
            await self._cancel_calls(row)
        return turn.answer

    async def _store(self, fault: Fault | None) -> tuple[Row, Reply]:
        """Store the answer as it came. If that is impossible, store the content that arrived, as a failed answer."""
        try:
            answer = self._answer(self._reply(fault), fault)
            return await self._store_row(answer, self._store_end(answer)), answer.reply
        except Exception as error:
            if isinstance(error, DragomanError) and not isinstance(error, InputError):
                raise  # the store failed, and not the answer
            _log.exception("an answer cannot be stored as it came", extra={"session_id": self.turn.session.id})
            answer = self._answer(self._salvage(fault or _storage_fault(error)), fault)
            return await self._store_row(answer, self.writer.finish(answer.message)), answer.reply

    def _reply(self, fault: Fault | None) -> Reply:
        reply = self.whole_reply or self.writer.accumulator.reply()
        return reply if fault is None else _with_fault(reply, fault)

    def _salvage(self, fault: Fault) -> Reply:
        """The content that arrived, and nothing else that the provider sent."""
        content = (
            storable_blocks(self.whole_reply.content)
            if self.whole_reply is not None
            else self.writer.accumulator.storable_content()
        )
        return Reply(content=content, stop_reason=StopReason.ERROR, fault=fault)

    def _answer(self, reply: Reply, fault: Fault | None) -> _Answer:
        """The reply as a message, with what it cost."""
        turn, context = self.turn, self.call.context
        usage = turn.agent.price_usage(turn.model, self._usage(reply), self._now(), self.call_log.latency_ms or 0)
        is_charged = reply.usage is not None or reply.fault is None
        if is_charged:
            context = msgspec.structs.replace(context, usage=usage)
        reply_to_store = _check_output(reply, _options(turn).response_format)
        status = MessageStatus.CANCELLED if fault is CANCELLED else None
        return _Answer(reply, reply_to_store, usage, is_charged, self.writer.message(reply_to_store, context, status))

    async def _store_row(self, answer: _Answer, storing_row: Awaitable[Row]) -> Row:
        """The row of an answer, once it is stored; and what is told of the call."""
        try:
            stored_row = await storing_row
        except DragomanError as error:  # it was called and paid for, also if the store cannot keep it
            if not isinstance(error, InputError):
                self._emit_end(answer)
            raise
        self._emit_end(answer)
        return stored_row

    def _emit_end(self, answer: _Answer) -> None:
        turn = self.turn
        if answer.is_charged:
            turn.usage.add(answer.usage)
        turn.agent.record_call(turn.model, answer.provider_reply.fault, session_id=turn.session.id)
        emit_call_end(turn, answer.message.id, answer.provider_reply, answer.usage, self.call_log)

    async def _store_end(self, answer: _Answer) -> Row:
        """Store the answer, what its calls are called by whom and, if it is the last one, what ends the turn."""
        message, reply = answer.message, answer.reply
        turn, ids = self.turn, self.turn.adapter.ids.entries
        fields: dict[str, Any] = {"tool_ids": ids[turn.stored_id_count :]}
        is_last = reply.stop_reason is not StopReason.PAUSED and not any(calls_of(message))
        if is_last:
            fields |= {"entries": turn.entries(message), "agent_key": turn.agent.agent_key, "owner": turn.lease.owner}
        row = await self.writer.finish(message, **fields)
        turn.stored_id_count = len(ids)
        if is_last:
            turn.has_entries = True
            turn.lease.confirm_release()
        return row

    async def _cancel_calls(self, row: Row) -> None:
        """Nobody runs what an answer asks for that is none."""
        for _, call in calls_of(row.message):
            await self.turn.agent.store.cancel_tool_call(self.turn.session.id, call.id)

    def _usage(self, reply: Reply) -> TokenUsage:
        """What the provider says it consumed; else our estimate, which says that it is one."""
        if reply.usage is not None and not reply.usage.estimated:  # by a dialect, which found it impossible
            return reply.usage
        message = self.writer.row.message.replace(content=reply.content)
        return TokenUsage(
            input_tokens=self.start.estimated_input_tokens,
            output_tokens=estimate_tokens([message]) if reply.content else 0,
            estimated=True,
        )

    def _now(self) -> datetime:
        return self.turn.agent.clock()


def _check_output(reply: Reply, response_format: ResponseFormat | None) -> Reply:
    """Return the reply with a fault if it is a final answer that does not fit the format that was asked for.

    The text is kept. The call itself did not fail, so the provider's health and its receipt do not change.
    """
    has_calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in reply.content)
    if reply.fault is not None or reply.stop_reason is StopReason.PAUSED or has_calls:
        return reply
    text = "".join(block.text for block in reply.content if isinstance(block, TextBlock))
    problems = output_problems(response_format, text)
    if not problems:
        return reply
    code, message = "output_invalid", f"the answer does not fit the requested format: {'; '.join(problems)}"
    if reply.stop_reason is StopReason.MAX_TOKENS:
        code, message = "output_truncated", "the answer reached its token limit before the requested JSON was complete"
    fault = Fault(code=code, message=message, error_class=ErrorClass.OTHER)
    return reply.replace(fault=fault, stop_reason=StopReason.ERROR, stop_sequence=None)


async def _store_placeholder(turn: TurnState) -> None:
    (turn.placeholder,) = await turn.agent.store.append(turn.session.id, make_answer_placeholder(turn))


def _write_request(turn: TurnState, options: Options) -> tuple[FittedHistory, Written]:
    """What the model is told, and the same as its provider wants it."""
    history = fit_history(turn, options)
    return history, turn.adapter.to_wire(history.messages, turn.pending_calls.tools.definitions, options)


def fit_history(turn: TurnState, options: Options) -> FittedHistory:
    """What of the history the model is told: what it may see, in good order, as much as fits."""
    agent, capabilities = turn.agent, turn.model.capabilities
    history = with_summary(turn.history)
    describe = image_describer(agent, turn.session)
    visible = project_history(history, capabilities, policy=image_policy(agent, turn.session), describe=describe)
    registry = turn.pending_calls.tools
    valid = repair(visible, registry.problems).messages
    tool_tokens = estimate_tokens((), registry.definitions) if len(registry) else 0
    answer_tokens = options.max_output_tokens or min(capabilities.max_output_tokens or 4096, 4096)
    token_limit = max(
        1, capabilities.max_context_tokens - tool_tokens - min(answer_tokens, capabilities.max_context_tokens // 2)
    )
    return fit(valid, token_limit, estimate_tokens)


def _options(turn: TurnState) -> Options:
    """How to answer: as this turn asks for, or else the agent."""
    overrides, defaults = turn.request.options, turn.agent.options
    fields = {} if overrides is AGENT_OPTIONS else msgspec.structs.asdict(overrides)
    values = {name: value for name, value in fields.items() if value not in (None, ())}
    return defaults.replace(**values, stream=True if turn.agent.stream else None)
