"""One call of a model: the request, the answer as it arrives, and its cost.

    history → summary → supported by the model → repaired → fits the window → wire → events → stored answer

An ``AnswerWriter`` saves the answer while it arrives: at most one second after an event, or when 8 KiB are unsaved, in
a task of its own, so that the stream does not wait for the disk.

Invariant: each call emits one start and one end event, and its row is finished once, with the content that arrived and
its cost. If the store rejects an answer (a count out of range, a lone surrogate), the content is stored without the
rejected part, as an answer with a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from dragoman import tokens
from dragoman.adapter import Adapter, RequestContext, message_budget
from dragoman.catalog import Model
from dragoman.client import Call, CallLog
from dragoman.context_window import FittedHistory, fit, with_summary
from dragoman.errors import DragomanError, InputError
from dragoman.event import (
    Accumulator,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseInputDelta,
    ToolUseStart,
    merge_deltas,
    storable_blocks,
    unfold,
)
from dragoman.exchange import ErrorClass, Fault, Loss, OpaqueTool, Options, Reply, StopReason, ToolDefinition, Written
from dragoman.handoff import project_history
from dragoman.message import (
    OMITTED_MESSAGES,
    InvalidToolUseBlock,
    Message,
    MessageStatus,
    TextBlock,
    TokenUsage,
    ToolUseBlock,
    Usage,
)
from dragoman.offload import estimate_size, run_off_loop
from dragoman.prompt_cache import place_cache_hints
from dragoman.redaction import redact
from dragoman.repair import Action, repair
from dragoman.rules import calls_of
from dragoman.settings import Endpoint
from dragoman.shield import run_to_completion
from dragoman.store import Row, Session, Store
from dragoman.store.operation import Part
from dragoman.tools import ToolRegistry
from dragoman.toolschema import output_problems
from dragoman.turn.answer_tool import AnswerTool
from dragoman.turn.config import AgentConfig
from dragoman.turn.events import emit_call_end, emit_call_start, emit_invalid_call
from dragoman.turn.image_policy import image_describer, image_policy, load_workspace_images
from dragoman.turn.services import AgentServices
from dragoman.turn.session_settings import settings_of
from dragoman.turn.state import TurnState, stage_of_answer
from dragoman.turn.types import AGENT_OPTIONS, AnswerEnd, AnswerStart

MAX_CALLS: Final = 128  # tool calls in one answer
FLUSH_S: Final = 1.0
FLUSH_CHARACTERS: Final = 8 * 1024
CANCELLED: Final = Fault(code="cancelled", message="the turn was cancelled", error_class=ErrorClass.CANCELLED)
_log: Final = logging.getLogger("dragoman.turn")


async def call_model(turn: TurnState) -> AsyncGenerator[AnswerStart | StreamEvent | AnswerEnd, None]:
    """Call the model with the history of a turn. Yields the events of its answer, then the stored answer."""
    call = await _take_call(turn)
    try:
        yield call.start
        while call.call_count <= MAX_CALLS and (events := await call.read_batch()) is not None:
            for event in call.accept(events):
                yield event
        await call.close_stream()
    except (asyncio.CancelledError, GeneratorExit):
        await run_to_completion(call.abort(CANCELLED))
        raise
    except Exception:
        await run_to_completion(call.abort(_internal_fault()))
        raise
    yield await run_to_completion(call.end(_too_many_calls_fault() if call.call_count > MAX_CALLS else None))


async def begin_call(turn: TurnState) -> None:
    """Send the request of the next call, while the question is synced. ``call_model`` reads the answer."""
    if turn.placeholder is None:
        return
    try:
        call = await _ModelCall.prepare(turn)
    except Exception as error:  # noqa: BLE001  ``call_model`` raises it
        turn.begun_call = error
    else:
        call.begin()
        turn.begun_call = call


async def _take_call(turn: TurnState) -> _ModelCall:
    call, turn.begun_call = turn.begun_call, None
    if isinstance(call, Exception):
        raise call
    return call if isinstance(call, _ModelCall) else await _ModelCall.prepare(turn)


async def drop_begun_call(turn: TurnState) -> None:
    """Undo ``begin_call``: the turn ends before its answer is read."""
    call, turn.begun_call = turn.begun_call, None
    if isinstance(call, _ModelCall):
        await call.close_stream()
        turn.placeholder = call.writer.row
        reply = Reply(stop_reason=StopReason.ERROR, fault=CANCELLED)
        emit_call_end(turn, call.start.message_id, reply, None, call.call_log)


def _too_many_calls_fault() -> Fault:
    text = f"the answer has more than {MAX_CALLS} tool calls; none of them was run"
    return Fault(code="too_many_tool_calls", message=text, error_class=ErrorClass.OTHER)


def _internal_fault() -> Fault:
    return Fault(
        code="unexplained_error", message="the turn failed with an internal error", error_class=ErrorClass.OTHER
    )


def _storage_fault(error: Exception) -> Fault:
    text = error.what if isinstance(error, InputError) else type(error).__name__
    return Fault(code="bad_event", message=f"the store rejects the answer: {text}")


def _with_fault(reply: Reply, fault: Fault) -> Reply:
    return reply.replace(fault=fault, stop_reason=StopReason.ERROR, stop_sequence=None)


class _Answer(msgspec.Struct, frozen=True):
    """A finished answer, ready to be stored."""

    provider_reply: Reply  # for the provider's availability and the receipt
    reply: Reply  # the same, validated against the requested format; this one is stored
    usage: Usage
    is_charged: bool
    message: Message


class _ModelCall:
    """A call in progress."""

    def __init__(
        self, turn: TurnState, call: Call, writer: AnswerWriter, start: AnswerStart, answer_tool: AnswerTool | None
    ) -> None:
        self.turn = turn
        self.call = call
        self._answer_tool = answer_tool
        self.writer = writer
        self.start = start
        self.whole_reply: Reply | None = None  # if the answer is not streamed
        self.call_count = 0  # tool calls that arrived
        self.call_log = CallLog()
        self._write_again: Callable[..., tuple[FittedHistory, Written]]  # ``_write_request`` of this call
        self._stream: AsyncGenerator[list[StreamEvent], None] | None = None  # of a call that has begun
        self._first_batch: asyncio.Task[list[StreamEvent] | None] | None = None

    @classmethod
    async def prepare(cls, turn: TurnState) -> _ModelCall:
        """Write the request and store the row of the answer."""
        endpoint = await turn.services.endpoint(turn.model.provider)
        await turn.services.token_ratios.load(turn.model.id, turn.tools.definitions)
        options = _options(turn)
        answer_tool = None
        if options.response_format is not None:
            answer_tool = AnswerTool.for_call(turn.model, options.response_format, turn.tools.definitions)
        size = estimate_size(turn.history)
        write = functools.partial(_write_request, turn, options, answer_tool)
        history, written = await run_off_loop(size, write)
        if turn.placeholder is None:
            await run_to_completion(_store_placeholder(turn))
        call = cls._with_row(turn, endpoint, history, written, answer_tool)
        call._write_again = write
        return call

    @classmethod
    def _with_row(
        cls,
        turn: TurnState,
        endpoint: Endpoint,
        history: FittedHistory,
        written: Written,
        answer_tool: AnswerTool | None,
    ) -> _ModelCall:
        row = turn.placeholder
        assert row is not None
        context = RequestContext(
            session_id=turn.session.id,
            message_id=row.message.id,
            created_at=row.message.created_at,
            routing=turn.decision.record,
        )
        call = make_call(turn, endpoint, written.wire, context)
        emit_call_start(turn, row.message.id, history.tokens, len(history.left_out))
        start = AnswerStart(
            row.message.id,
            row.seq,
            turn.model.id,
            history.tokens,
            written.losses,
            len(history.left_out),
            (*_trim_note(turn, history), *written.adjustments),
        )
        turn.placeholder = None
        turn.steps += 1
        turn.is_repair_due = False
        writer = AnswerWriter(turn.services.store, row, turn.adapter, context, len(history.left_out))
        return cls(turn, call, writer, start, answer_tool)

    def begin(self) -> None:
        """Send the request, and read the first events of the answer."""
        self._stream = self._read_batches()
        self._first_batch = asyncio.create_task(_read_first(self._stream), name="dragoman-call")

    async def close_stream(self) -> None:
        """Close the connection of a call that is not read to its end."""
        if self._first_batch is not None and not self._first_batch.done():
            self._first_batch.cancel()
            await asyncio.wait([self._first_batch])
        if self._stream is not None:
            await self._stream.aclose()

    async def abort(self, fault: Fault) -> None:
        """End a call whose answer is not read to its end."""
        await self.close_stream()
        await self.end(fault)

    async def read_batch(self) -> list[StreamEvent] | None:
        """The events of the next read from the provider; None after the last one."""
        if self._first_batch is not None:
            events = await self._first_batch
            self._first_batch = None
            return events
        if self._stream is None:
            self._stream = self._read_batches()
        return await anext(self._stream, None)

    async def _read_batches(self) -> AsyncGenerator[list[StreamEvent], None]:
        """The events of the answer; of an answer that is not streamed, the events that a stream would have.

        The call is repeated once if the provider does not know an item of the history any more, then without its items,
        or if the history exceeds the context of the model, then without more of its oldest turns.
        """
        for may_repeat in (True, False):
            written = None
            async with contextlib.aclosing(self._attempt()) as batches:
                async for events in batches:
                    written = await self._write_repeat(events) if may_repeat else None
                    if written is not None:
                        break
                    may_repeat = False  # noqa: PLW2901  the answer has begun
                    yield events
            if written is None:
                return
            self.whole_reply = None
            self.call = msgspec.structs.replace(self.call, wire=written.wire)

    async def _write_repeat(self, events: list[StreamEvent]) -> Written | None:
        """The request that replaces a rejected one, or None if the rejection stands."""
        fault = _rejection(events)
        if fault is None or fault.code not in ("unknown_item", "context_overflow"):
            return None
        is_overflow = fault.code == "context_overflow"
        size = estimate_size(self.turn.history)
        max_tokens = self.start.estimated_input_tokens * 3 // 4 if is_overflow else None
        history, written = await run_off_loop(size, self._write_again, not is_overflow, max_tokens)
        if is_overflow and len(history.left_out) == self.start.omitted_count:
            return None  # the newest turn alone is too long
        self.call_log.retries.append((fault, 0.0))
        self._note_history(history, written)
        return written

    def _note_history(self, history: FittedHistory, written: Written) -> None:
        """Record what the repeated request sends of the history."""
        count = len(history.left_out)
        adjustments = (*_trim_note(self.turn, history), *written.adjustments)
        self.start = msgspec.structs.replace(
            self.start, estimated_input_tokens=history.tokens, omitted_count=count, adjustments=adjustments
        )
        self.writer.set_omitted_count(count)

    def _attempt(self) -> AsyncGenerator[list[StreamEvent], None]:
        if self.turn.config.stream:
            return self.turn.services.client.stream_batches(self.call, self.call_log)
        return self._fetch_whole_reply()

    async def _fetch_whole_reply(self) -> AsyncGenerator[list[StreamEvent], None]:
        reply = await self.turn.services.client.send(self.call, self.call_log)
        if self._answer_tool is None:  # otherwise the converted events are the answer
            self.whole_reply = reply
        yield list(unfold(reply))

    def accept(self, events: list[StreamEvent]) -> list[StreamEvent]:
        """Add the events of one read to the answer; return them with joined deltas, up to the last allowed call."""
        accepted: list[StreamEvent] = []
        if self._answer_tool is not None:
            events = self._answer_tool.convert(events)
        for event in merge_deltas(events):
            self.call_count += type(event) is ToolUseStart
            if self.call_count > MAX_CALLS:
                break
            if self.whole_reply is None:
                self.writer.feed(event)
            accepted.append(event)
        return accepted

    async def end(self, fault: Fault | None = None) -> AnswerEnd:
        """Store the finished answer with its cost, and emit the end of the call."""
        turn = self.turn
        row, reply = await self._store(fault)
        turn.history.append(row.message)
        stop_reason = StopReason.CANCELLED if fault is CANCELLED else reply.stop_reason
        turn.answer = AnswerEnd(row, stop_reason, reply.fault)
        turn.answered_ids.clear()
        calls = [call for _, call in calls_of(row.message)]
        turn.calling_message = row.message if reply.fault is None and calls else None
        if reply.fault is not None and turn.may_repair(reply.fault):
            turn.request_repair(reply.fault)
        if reply.fault is not None:
            for call in calls:  # the calls of a failed answer are not run
                if isinstance(call, InvalidToolUseBlock):
                    emit_invalid_call(turn, call)
                await turn.services.store.cancel_tool_call(turn.session.id, call.id)
        return turn.answer

    async def _store(self, fault: Fault | None) -> tuple[Row, Reply]:
        """Store the answer. If the store rejects it, store its content as a failed answer."""
        try:
            answer = self._answer(self._reply(fault), fault)
            return await self._store_row(answer, self._store_end(answer)), answer.reply
        except Exception as error:
            if isinstance(error, DragomanError) and not isinstance(error, InputError):
                raise  # the store failed
            _log.exception("the store rejects an answer", extra={"session_id": self.turn.session.id})
            answer = self._answer(self._salvage(fault or _storage_fault(error)), fault, is_salvaged=True)
            return await self._store_row(answer, self.writer.finish(answer.message)), answer.reply

    def _reply(self, fault: Fault | None) -> Reply:
        reply = self.whole_reply or self.writer.accumulator.reply()
        return reply if fault is None else _with_fault(reply, fault)

    def _salvage(self, fault: Fault) -> Reply:
        """The content that arrived, without the other fields of the reply."""
        if self.whole_reply is not None:
            content = storable_blocks(self.whole_reply.content)
        else:
            content = self.writer.accumulator.storable_content()
        return Reply(content=content, stop_reason=StopReason.ERROR, fault=fault)

    def _answer(self, reply: Reply, fault: Fault | None, *, is_salvaged: bool = False) -> _Answer:
        turn, context = self.turn, self.call.context
        now = turn.services.clock()
        usage = turn.services.price_usage(turn.model, self._usage(reply), now, self.call_log.latency_ms or 0)
        is_charged = reply.usage is not None or reply.fault is None or (bool(reply.content) and not is_salvaged)
        if is_charged:
            context = msgspec.structs.replace(context, usage=usage)
        checked = _check_output(reply, turn)
        status = MessageStatus.CANCELLED if fault is CANCELLED else None
        stored_fault = None if fault is CANCELLED else checked.fault
        message = self.writer.message(checked, context, status, stored_fault)
        return _Answer(reply, checked, usage, is_charged, message)

    async def _store_row(self, answer: _Answer, row: Awaitable[Row]) -> Row:
        """Await the row of an answer, and emit the end of the call."""
        try:
            stored_row = await row
        except DragomanError as error:  # the call was made and charged, even if the store fails
            if not isinstance(error, InputError):
                self._emit_end(answer)
            raise
        self._emit_end(answer)
        return stored_row

    def _emit_end(self, answer: _Answer) -> None:
        turn = self.turn
        if answer.is_charged:
            turn.usage.add(answer.usage)
        turn.services.record_call(turn.model, answer.provider_reply.fault, session_id=turn.session.id)
        emit_call_end(turn, answer.message.id, answer.provider_reply, answer.usage, self.call_log)

    async def _store_end(self, answer: _Answer) -> Row:
        """Store the answer and its provider ids; with the last answer also the entries, and release the lease."""
        message, reply = answer.message, answer.reply
        turn, ids = self.turn, self.turn.adapter.ids.entries
        fields: dict[str, Any] = {"tool_ids": ids[turn.stored_id_count :]}
        is_paused = reply.stop_reason is StopReason.PAUSED
        is_last = not is_paused and not any(calls_of(message)) and not turn.may_repair(reply.fault)
        if is_last:
            fields |= {
                "entries": turn.entries(message),
                "agent_key": turn.config.agent_key,
                "owner": turn.lease.owner,
            }
        part = await self._close_journal(answer) if is_last and turn.journal is not None else None
        row = await self.writer.finish(message, part=part, **fields)
        turn.stored_id_count = len(ids)
        if is_last:
            turn.has_entries = True
            turn.lease.confirm_release()
        if part is not None and turn.journal is not None:
            turn.journal.confirm_close()
        return row

    async def _close_journal(self, answer: _Answer) -> Part[Any] | None:
        """The rows that the caller of the turn stores with the last answer."""
        turn, reply = self.turn, answer.reply
        assert turn.journal is not None
        is_cancelled = answer.message.metadata.status is MessageStatus.CANCELLED
        stop_reason = StopReason.CANCELLED if is_cancelled else reply.stop_reason
        usage = copy.copy(turn.usage)
        if answer.is_charged:
            usage.add(answer.usage)
        end = usage.make_end(stop_reason, None if is_cancelled else reply.fault)
        row = Row(self.writer.row.seq, answer.message)
        return await turn.journal.close(AnswerEnd(row, stop_reason, reply.fault), end)

    def _usage(self, reply: Reply) -> TokenUsage:
        """The provider's counts, or an estimate that is marked as one.

        Of an answer that ended early, providers have reported the counts at its start: the output is estimated.
        """
        is_reported = reply.usage is not None and not reply.usage.estimated  # a dialect marks impossible counts so
        if reply.usage is not None and is_reported and reply.fault is None:
            return reply.usage
        output_tokens = tokens.estimate_content(reply.content, self.turn.model.id)
        if reply.usage is not None and is_reported:
            is_complete = reply.usage.output_tokens >= output_tokens
            return reply.usage if is_complete else reply.usage.replace(output_tokens=output_tokens, estimated=True)
        return TokenUsage(input_tokens=self.start.estimated_input_tokens, output_tokens=output_tokens, estimated=True)


async def _read_first(batches: AsyncGenerator[list[StreamEvent], None]) -> list[StreamEvent] | None:
    return await anext(batches, None)


def _check_output(reply: Reply, turn: TurnState) -> Reply:
    """The reply, with a fault if it is a final answer that does not fit the requested format.

    The text is kept. The call itself succeeded, so the availability of the provider and the receipt do not change.
    """
    has_calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in reply.content)
    if reply.fault is not None or reply.stop_reason is StopReason.PAUSED or has_calls:
        return reply
    output = turn.request.output
    response_format = _options(turn).response_format
    if output is None and response_format is None:
        return reply
    text = "".join(block.text for block in reply.content if isinstance(block, TextBlock))
    problems = output_problems(response_format, text) if output is None else output.problems(text)
    if not problems:
        return reply
    code, message = "output_invalid", f"the answer does not fit the requested format: {'; '.join(problems)}"
    if reply.stop_reason is StopReason.MAX_TOKENS:
        code, message = "output_truncated", "the answer reached its token limit before the requested JSON was complete"
    return _with_fault(reply, Fault(code=code, message=message, error_class=ErrorClass.OTHER))


async def _store_placeholder(turn: TurnState) -> None:
    turn.placeholder = await turn.services.store.turns.add_placeholder(turn.session.id, turn.answer_placeholder())


def make_call(turn: TurnState, endpoint: Endpoint, wire: Any, context: RequestContext) -> Call:
    """A call of the model of a turn."""
    return Call(
        endpoint=endpoint,
        adapter=turn.adapter,
        wire=wire,
        context=context,
        timeouts=turn.config.timeouts,
        retries=turn.config.retries,
        gather_s=turn.config.gather_s,
    )


# --- the request -----------------------------------------------------------------------------------------------------


def _rejection(events: list[StreamEvent]) -> Fault | None:
    """The fault of a call without any content."""
    if any(isinstance(event, TextDelta | ThinkingDelta | ToolUseStart) for event in events):
        return None
    return next((event.fault for event in events if isinstance(event, StreamError)), None)


def _write_request(
    turn: TurnState,
    options: Options,
    answer_tool: AnswerTool | None,
    forget_items: bool = False,
    max_tokens: int | None = None,
) -> tuple[FittedHistory, Written]:
    history, tools = fit_history(turn, options, max_tokens), turn.tools.definitions
    if answer_tool is not None:
        tools, options = answer_tool.add_to(tools, options)
    messages: tuple[Message, ...] = history.messages
    all_tools: tuple[ToolDefinition | OpaqueTool, ...] = tools
    if turn.config.prompt_caching and options.cache_hint is None:
        adapter = turn.adapter
        messages, all_tools = place_cache_hints(messages, tools, adapter.model, adapter.provider)
    return history, turn.adapter.to_wire(messages, all_tools, options, forget_items=forget_items)


def _trim_note(turn: TurnState, history: FittedHistory) -> tuple[Loss, ...]:
    """The adjustment of a history that does not fit the context window."""
    if not history.left_out:
        return ()
    count, window = len(history.left_out), turn.model.capabilities.max_context_tokens
    subject = "the oldest message is" if count == 1 else f"the oldest {count:,} messages are"
    reason = f"{subject} not sent: the context window of {turn.model.id} has {window:,} tokens"
    return (Loss(turn.session.id, "", "history", turn.adapter.dialect.NAME, reason, "adjusted"),)


def fit_history(turn: TurnState, options: Options, max_tokens: int | None = None) -> FittedHistory:
    """The messages that the model receives: supported, repaired, and as many as fit its window, or fewer."""
    return prepare_history(
        turn.services,
        turn.config,
        turn.session,
        model=turn.model,
        history=turn.history,
        tools=turn.tools,
        options=options,
        max_tokens=max_tokens,
    ).fitted


class PreparedHistory(msgspec.Struct, frozen=True):
    """The messages that a model receives, and the changes that made the history valid."""

    fitted: FittedHistory
    repairs: tuple[Action, ...]


def prepare_history(
    services: AgentServices,
    config: AgentConfig,
    session: Session,
    *,
    model: Model,
    history: Sequence[Message],
    tools: ToolRegistry,
    options: Options,
    max_tokens: int | None = None,
) -> PreparedHistory:
    """The same for a history that is not part of a turn, with the changes that made it valid."""
    capabilities = model.capabilities
    policy = image_policy(config, session) if session.metadata else config.capability_policy
    describe = image_describer(config, session) if policy == "describe" else None
    visible = with_summary(history)
    if policy != "strict":  # then the routing has rejected what the model does not support
        visible = project_history(visible, capabilities, policy=policy, describe=describe)
    if services.workspace is not None:
        visible = load_workspace_images(visible, services.workspace)
    repaired = repair(visible, tools.problems)
    ratio = tokens.find_ratio(model.id, history, tools.definitions, view=with_summary)
    if ratio is not None:
        services.token_ratios.learn(model.id, ratio)
    usual_ratio = services.token_ratios.get(model.id)
    estimate = tokens.make_estimate(model.id, (), usual_ratio=ratio or usual_ratio)
    budget = message_budget(model, tools.definitions, options)
    if max_tokens is not None:
        budget = min(budget, max_tokens)
    return PreparedHistory(fit(repaired.messages, budget, estimate), repaired.actions)


def _options(turn: TurnState) -> Options:
    """The options of the agent, replaced by those of the session, and by those that the request sets."""
    own = settings_of(turn.session).options() if turn.session.metadata else {}
    overrides = turn.request.options
    fields = {} if overrides is AGENT_OPTIONS else msgspec.structs.asdict(overrides)
    values = {name: value for name, value in fields.items() if value not in (None, ())}
    if turn.request.output is not None:
        values["response_format"] = turn.request.output.response_format
    return turn.config.options.replace(**(own | values), stream=True if turn.config.stream else None)


# --- the row of the answer -------------------------------------------------------------------------------------------


class AnswerWriter:
    """Writes the row of one answer while the answer arrives."""

    def __init__(
        self, store: Store, row: Row, adapter: Adapter, context: RequestContext, omitted_count: int = 0
    ) -> None:
        self.row = row
        self.accumulator = Accumulator()
        self._store = store
        self._adapter = adapter
        self._context = context
        self.set_omitted_count(omitted_count)
        self._unsaved_chars = 0
        self._has_unsaved = False
        self._timer: asyncio.TimerHandle | None = None
        self._flush_task: asyncio.Task[None] | None = None
        self._is_closed = False

    def set_omitted_count(self, count: int) -> None:
        """Set the number of messages that the model did not receive."""
        self._extra = {OMITTED_MESSAGES: count} if count else {}

    def feed(self, event: StreamEvent) -> None:
        """Add an event of the stream. Called for every token, so it does as little as possible."""
        self.accumulator.add(event)
        kind = type(event)
        if kind is TextDelta or kind is ThinkingDelta:
            self._unsaved_chars += len(event.text)  # type: ignore[union-attr]
        elif kind is ToolUseInputDelta:
            self._unsaved_chars += len(event.partial_json)  # type: ignore[union-attr]
        if not self._has_unsaved:
            self._has_unsaved = True
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._start_flush)
        if self._unsaved_chars >= FLUSH_CHARACTERS and self._flush_task is None:
            self._start_flush()

    def _start_flush(self) -> None:
        self._cancel_timer()
        if self._flush_task is None and not self._is_closed:
            self._flush_task = asyncio.create_task(self._flush(), name="dragoman-answer")

    async def _flush(self) -> None:
        """Store the content so far; repeat if much arrives meanwhile."""
        while self._has_unsaved and not self._is_closed:
            self._cancel_timer()
            self._has_unsaved, self._unsaved_chars = False, 0
            with contextlib.suppress(DragomanError, ValueError):  # ``finish`` raises the error
                message = self.message(self.accumulator.reply(), self._context, MessageStatus.PARTIAL)
                await self._store.turns.save_partial(self._context.session_id, message)
            if self._unsaved_chars < FLUSH_CHARACTERS and self._timer is not None:
                break  # the timer stores the rest
        self._flush_task = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def message(
        self,
        reply: Reply,
        context: RequestContext,
        status: MessageStatus | None = None,
        fault: Fault | None = None,
    ) -> Message:
        """The answer as a message, with the reason of a failure. Without a status, the reply determines it."""
        metadata = self.row.message.metadata
        extra = self._extra if fault is None else self._extra | fault_fields(fault.code, fault.message)
        return self._adapter.make_message(
            reply,
            context,
            status,
            user_id=metadata.user_id,
            team_id=metadata.team_id,
            run_id=metadata.run_id,
            stage=stage_of_answer(reply.content),
            extra=extra or None,
        )

    async def finish(self, message: Message, **fields: Any) -> Row:
        """Write the finished answer. ``fields`` are those of ``store.turns.finish_answer``."""
        self._is_closed = True
        self._cancel_timer()
        if self._flush_task is not None:
            await asyncio.wait([self._flush_task])
        return await self._store.turns.finish_answer(self._context.session_id, message, **fields)


def fault_fields(code: str, message: str) -> dict[str, Any]:
    """The reason of a failure, as a field of ``metadata.extra``."""
    return {"fault": {"code": code, "message": redact(message)}}
