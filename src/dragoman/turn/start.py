"""The beginning of a turn: the history, the model that will answer, and what the caller says in the store.

What a crash has left half done is closed first: nobody else runs a turn in this session, so an answer that is still
arriving is not. Calls that wait for somebody (see ``waiting``) are answered by what the caller says, or given up by a
new question. The one rule: a turn that is refused changes nothing.
"""

from __future__ import annotations

import functools
import time
from datetime import UTC
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from dragoman.adapter import estimate_tokens
from dragoman.bus import Payload, Scope
from dragoman.bus.event_types import routing_events, turn_events
from dragoman.catalog import Model
from dragoman.codec import content_hash
from dragoman.context_window import with_summary
from dragoman.entries import DELEGATE, Entry, entries_from_messages
from dragoman.errors import FormatError, RoutingError, SettingsError, StoreError
from dragoman.exchange import ErrorClass, StopReason, ToolDefinition
from dragoman.ids import ToolIds, derive_ulid
from dragoman.message import Message, MessageMetadata, MessageStatus, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.offload import estimate_size, run_off_loop
from dragoman.redaction import redact
from dragoman.routing import Decision, Policy, TurnFacts, collect_facts, decide
from dragoman.rules import Call, calls_of
from dragoman.store import Row, Session
from dragoman.store.turns import SessionLease
from dragoman.tools import answer_schema
from dragoman.turn import stages
from dragoman.turn.events import emit_choice, emit_session_start
from dragoman.turn.image_policy import image_policy
from dragoman.turn.pending_calls import (
    PendingCalls,
    check_answers,
    find_calling_message,
    find_open_calls,
    get_calls,
    make_turn_tools,
)
from dragoman.turn.tally import TurnUsage
from dragoman.turn.types import NO_TIME, AnswerEnd, PendingCall, TurnRequest, TurnStart
from dragoman.value import unvalidated

if TYPE_CHECKING:
    from dragoman.turn.agent import Agent

_Tools = tuple[ToolDefinition, ...]
_message: Final = unvalidated(Message)  # of parts that were looked at when they were made
_NO_METADATA: Final = MessageMetadata()
_INTERRUPTED_TEXT: Final = "The call was interrupted before it had a result. It may have done part of its work."


class TurnState:
    """A turn that has begun: what is known of it, and what it has said so far."""

    def __init__(
        self,
        agent: Agent,
        request: TurnRequest,
        *,
        session: Session,
        history: list[Message],
        model: Model,
        decision: Decision,
        ids: ToolIds,
        scope: Scope,
        usage: TurnUsage,
        lease: SessionLease,
        pending_calls: PendingCalls,
        earlier_calls: list[Call],
    ) -> None:
        self.agent = agent
        self.request = request
        self.session = session
        self.history = history  # what the model is told; it grows
        self.model = model
        self.decision = decision
        self.adapter = agent.adapter(model, ids)
        self.scope = scope
        self.usage = usage
        self.stored_id_count = len(ids.entries)  # of calls, as stored
        self.lease = lease
        self.pending_calls = pending_calls
        self.earlier_calls = earlier_calls  # calls of an earlier turn that have no result
        self.calling_message: Message | None = (
            find_calling_message(history) if earlier_calls else None
        )  # whose calls are to be answered
        self.answered_ids = {call.id for call in get_calls(self.calling_message)} - {call.id for call in earlier_calls}
        self._indexed_message: Message | None = None  # whose calls stand below
        self._calls_by_id: dict[str, Call] = {}  # by id
        self.steps = 0  # how often the model was asked to answer
        self.placeholder: Row | None = None  # of the next answer, if it is stored already
        self.answer: AnswerEnd | None = None  # the last one of this turn
        self.has_entries = False  # its entries are written
        self.is_over = False  # and everybody is told

    @property
    def turn_id(self) -> str:
        return self.usage.turn_id

    @property
    def open_calls(self) -> list[Call]:
        """What the last answer asks for and has not got."""
        if self.calling_message is None:
            return []
        return [call for call in get_calls(self.calling_message) if call.id not in self.answered_ids]

    @property
    def runnable_calls(self) -> list[Call]:
        """Those of them that nobody else is waited for, while there are steps left to tell the model of it."""
        if self.calling_message is None or self.steps >= self.agent.max_steps:
            return []
        return [call for call in self.open_calls if self.pending_calls.reason_for(call) is None]

    @property
    def blocking_calls(self) -> tuple[PendingCall, ...]:
        """What it waits for, if that is all that is open."""
        if self.calling_message is None:
            return ()
        open_calls = self.open_calls
        pending = self.pending_calls.filter_pending(open_calls)
        return pending if len(pending) == len(open_calls) else ()

    @property
    def should_continue(self) -> bool:
        """Whether the model waits for something, the results of its calls or to be asked again, and may have it."""
        if self.answer is None:
            return not self.blocking_calls
        is_paused = self.answer.stop_reason is StopReason.PAUSED
        has_steps_left = self.steps < self.agent.max_steps
        return (is_paused or self.calling_message is not None) and has_steps_left and not self.blocking_calls

    def entries(self, *extra_messages: Message) -> list[Entry]:
        """What the agent did in this turn, as entries of its own."""
        messages = [message for message in self.history if message.metadata.run_id == self.turn_id]
        result = entries_from_messages(
            (*messages, *extra_messages), agent_key=self.agent.agent_key, delegate_tool=DELEGATE
        )
        entries: list[Entry] = result.wire
        return entries

    def emit(self, event: Payload | str, payload: dict[str, Any] | None = None) -> None:
        """Say that something happened in this turn."""
        self.scope.try_emit(event, payload)

    def result_message(self, result: ToolResultBlock, latency_ms: int | None = None) -> Message:
        """The result of a call, as a message of this turn, and how long it took to come by, if that is known."""
        message_id = self.request.answer_ids.get(result.tool_use_id)
        extra = self.request.answer_extras.get(result.tool_use_id)
        metadata = {
            "parent_tool_use_id": result.tool_use_id,
            "message_id": message_id,
            "latency_ms": latency_ms,
            "extra": extra,
        }
        return self.message(Role.TOOL, (result,), stage=self._stage_of_result(result), **metadata)

    def _stage_of_result(self, result: ToolResultBlock) -> str:
        if self._indexed_message is not self.calling_message:  # an answer may have many calls, so they are listed once
            self._indexed_message, self._calls_by_id = (
                self.calling_message,
                {call.id: call for call in get_calls(self.calling_message)},
            )
        call = self._calls_by_id.get(result.tool_use_id)
        if call is None:
            return stages.TOOL_EXECUTION
        if call.name == DELEGATE and DELEGATE in self.agent.tools:
            return stages.DELEGATION
        asks = isinstance(call, ToolUseBlock) and answer_schema(call, self.pending_calls.tools) is not None
        return stages.INPUT if asks else stages.TOOL_EXECUTION

    def message(self, role: Role, content: Any, **metadata: Any) -> Message:
        """A message of this turn that is not stored yet. The store gives it its id and its time."""
        request = self.request
        fields = MessageMetadata(user_id=request.user_id, team_id=request.team_id, run_id=self.turn_id, **metadata)
        return Message("", "", role, tuple(content), fields, NO_TIME)


async def start_turn(agent: Agent, request: TurnRequest, lease: SessionLease, usage: TurnUsage | None) -> TurnState:
    """A turn whose model is chosen, and nothing is stored yet. Once it is told that it began, nothing waits here."""
    snapshot = await agent.store.turns.open(request.session_id)
    session, rows = snapshot.session, snapshot.rows
    await _close_partial_answers(agent, session, rows)
    history = [*_system_messages(agent, request, session), *(_with_session(session, row.message) for row in rows)]
    open_calls = await find_open_calls(agent.store, session.id, history)
    pending_calls = PendingCalls(agent, request, open_calls, await make_turn_tools(agent, request))
    _check_request(request, history, open_calls, pending_calls)
    ids = ToolIds(snapshot.tool_ids)
    usage = usage or TurnUsage(request.run_id or agent.store.new_id())
    scope = agent.bus.scope(session.id, usage.turn_id)
    emit_session_start(agent, session, len(rows))
    decision = await _choose_model(agent, request, session, history, scope=scope, tools=pending_calls.tools.definitions)
    model = agent.registry.catalog.model(decision.chosen_model)
    usage.model = model.id
    return TurnState(
        agent,
        request,
        session=session,
        history=history,
        model=model,
        decision=decision,
        ids=ids,
        scope=scope,
        usage=usage,
        lease=lease,
        pending_calls=pending_calls,
        earlier_calls=open_calls,
    )


def _check_request(
    request: TurnRequest, history: list[Message], open_calls: list[Call], pending_calls: PendingCalls
) -> None:
    """Refuse what cannot be said here."""
    check_answers(
        request, {call.call_id: call for call in pending_calls.filter_pending(open_calls)}, history, pending_calls.tools
    )
    pending_calls.approvals.update((call.call_id, call) for call in request.approvals)
    if request.content and all(isinstance(block, TextBlock) and not block.text.strip() for block in request.content):
        raise FormatError("the question is empty", where=f"session {request.session_id}", remedy="Write a question")
    if request.content or open_calls:
        return
    last = next((message for message in reversed(history) if message.metadata.status is MessageStatus.COMPLETE), None)
    if last is None or last.role not in (Role.USER, Role.TOOL):
        raise FormatError("there is nothing to answer", where=f"session {request.session_id}", remedy="Say something")


def _with_session(session: Session, message: Message) -> Message:
    """A message that a fork shares with the session it comes from, as one of the fork: a history is of one session."""
    return message if message.session_id == session.id else message.replace(session_id=session.id)


def _system_messages(agent: Agent, request: TurnRequest, session: Session) -> list[Message]:
    """What the agent is, before everything that was said. It is sent, and not stored: it may change."""
    texts = [text for text in (agent.system_prompt, request.context) if text]
    if not texts:
        return []
    message_id = derive_ulid(0, session.id, "system prompt")
    content = (TextBlock("\n\n".join(texts)),)
    return [Message(message_id, session.id, Role.SYSTEM, content, MessageMetadata(), session.created_at)]


async def recover_session(agent: Agent, session_id: str) -> None:
    """End what a crash has left half done, as the next turn would; ``ConflictError`` while somebody may run one."""
    async with agent.store.turns.lease(session_id):
        session = await agent.store.get_session(session_id)
        rows = [row async for row in agent.store.history(session_id)]
        await _close_partial_answers(agent, session, rows)


async def _close_partial_answers(agent: Agent, session: Session, rows: list[Row]) -> None:
    """End what a crash has left: answers that were arriving, and calls that nobody will answer."""
    for at, row in enumerate(rows):
        if row.message.metadata.status is not MessageStatus.PARTIAL:
            continue
        extra = {**(row.message.metadata.extra or {}), "interrupted": True}
        metadata = row.message.metadata.replace(status=MessageStatus.ERROR, extra=extra)
        try:
            rows[at] = await agent.store.update(session.id, row.message.replace(metadata=metadata))
        except StoreError:  # it is shared with another session, in which a turn is running
            continue
        for _, call in calls_of(row.message):
            await agent.store.cancel_tool_call(session.id, call.id)


async def _choose_model(
    agent: Agent, request: TurnRequest, session: Session, history: list[Message], *, scope: Scope, tools: _Tools
) -> Decision:
    """Which model answers. It is told in any case; a refusal is raised."""
    started_at = time.perf_counter()
    policy = agent.policy(session)
    size = estimate_size(history)
    gather = functools.partial(
        collect_facts,
        history,
        request.content,
        now=agent.clock().astimezone(),
        tools=tools,
        output_schema=request.options.response_format is not None and request.options.response_format.kind != "text",
        shows_images=image_policy(agent, session) == "strict",
        may_name_model=not request.is_worker,
        override=request.model,
        sticky=_sticky_model(agent, request, session, history),
        delegate_tier=request.tier,
        workspace_path=session.workspace_path,
        estimated_input_tokens=await run_off_loop(size, _estimate_tokens, history, request, tools),
        cost_today_usd=await _get_cost_today(agent, policy, session),
        team_budget_remaining_usd=request.team_budget_remaining_usd,
    )
    facts = await run_off_loop(size, gather)
    agent.availability, changes = agent.availability.with_time(agent.clock())
    for change in changes:
        agent.bus.try_emit(change.event_type, change.payload(), session_id=session.id)
    samples = await agent.samples(request.user_id)
    decision = decide(facts, policy, agent.registry, availability=agent.availability, samples=samples)
    if decision.rejection is not None and any(
        attempt["reason"] == "provider_unavailable" for attempt in decision.tried
    ):
        decision = decide(facts, policy, agent.registry, samples=samples)  # rather one that failed lately than nobody
    scope.try_emit(_start_event(decision.facts))
    scope.try_emit(_route_event(decision, (time.perf_counter() - started_at) * 1000))
    emit_choice(scope, decision)
    if decision.rejection is not None and decision.rejection.code == "routing_constraint_failure":
        scope.try_emit("routing_constraint_failure", decision.rejection.payload())
    try:
        decision.raise_if_rejected()
        agent.check_endpoint(agent.registry.catalog.model(decision.chosen_model).provider)
    except (RoutingError, SettingsError) as error:
        scope.try_emit(_failure_event(error))
        raise
    return decision


def _failure_event(error: RoutingError | SettingsError) -> turn_events.TurnFailed:
    """How a turn ends that nobody answers."""
    return turn_events.TurnFailed(
        error_code=error.code,
        error_class=ErrorClass.INVALID_REQUEST,
        error_message_redacted=redact(str(error)),
        llm_call_count=0,
        tool_call_count=0,
        total_cost_usd=Decimal(0),
        wall_time_seconds=0.0,
    )


async def _get_cost_today(agent: Agent, policy: Policy, session: Session) -> Decimal | None:
    """What was spent since midnight in UTC, if a rule wants to know."""
    if not policy.for_workspace(session.workspace_path).uses_predicate("cost_today_exceeds_usd"):
        return None
    today = agent.clock().astimezone(UTC).date().isoformat()
    return sum((day.cost_usd for day in await agent.store.costs.totals("day", since=today)), Decimal(0))


def _sticky_model(agent: Agent, request: TurnRequest, session: Session, history: list[Message]) -> str | None:
    """The model that was chosen for the session; if its last answer goes on, the one that began it."""
    calling_message = None if request.content else find_calling_message(history)
    model = agent.registry.find(calling_message.metadata.model or "") if calling_message is not None else None
    return model.id if model is not None and agent.registry.is_configured(model) else session.active_model


def _estimate_tokens(history: list[Message], request: TurnRequest, tools: _Tools) -> int:
    """How much the model will be told, roughly: the same for every model."""
    message = _message("", "", Role.USER, (*request.content, *request.answers), _NO_METADATA, NO_TIME)
    return estimate_tokens((*with_summary(history), message), tools)


def _start_event(facts: TurnFacts) -> turn_events.TurnStarted:
    message = _message("", "", Role.USER, facts.content, _NO_METADATA, NO_TIME)
    return turn_events.TurnStarted(
        user_message_hash=content_hash(message),
        estimated_input_tokens=facts.estimated_input_tokens,
        has_images=facts.has_images,
        has_tool_calls_in_history=facts.has_tool_calls_in_history,
    )


def _route_event(decision: Decision, elapsed_ms: float) -> routing_events.RouteDecided:
    """Written down, the slots of a decision are the steps of the event."""
    return routing_events.RouteDecided(
        chosen_model=decision.chosen_model,
        winner_index=decision.winner_index,
        elapsed_ms=elapsed_ms,
        chain=decision.chain,  # type: ignore[arg-type]
    )


async def store_question(turn: TurnState) -> TurnStart:
    """What the caller says and, if a model is asked at once, a place for the answer, in one transaction."""
    request, store = turn.request, turn.agent.store
    closed_calls = _close_calls(turn)
    messages = [turn.result_message(answer) for answer in request.answers]
    if request.content:
        messages.extend((*turn.agent.late_notes(turn.session.id), _question_message(turn)))
    else:
        messages.extend(turn.result_message(_interruption_result(call)) for call in closed_calls)
    calls_model = turn.should_continue and not turn.runnable_calls
    rows = await store.append(turn.session.id, [*messages, make_answer_placeholder(turn)] if calls_model else messages)
    turn.placeholder = rows.pop() if calls_model else None
    turn.history.extend(row.message for row in rows)
    if request.content:
        turn.agent.remove_late_notes(messages)
    for call in closed_calls:
        await store.cancel_tool_call(turn.session.id, call.id)  # nothing happens to one that has its result
    question = rows[-1] if request.content else None
    return TurnStart(turn.turn_id, question, turn.decision, tuple(rows[: len(request.answers)]))


def _close_calls(turn: TurnState) -> list[Call]:
    """Calls of an earlier turn that nobody will answer: interrupted, or given up by a new question."""
    turn.answered_ids |= {answer.tool_use_id for answer in turn.request.answers}
    closed_calls = [call for call in turn.open_calls if call.id not in turn.pending_calls.approvals]
    if not turn.request.content:  # what waits for somebody goes on waiting
        closed_calls = [call for call in closed_calls if turn.pending_calls.reason_for(call) is None]
    turn.answered_ids |= {call.id for call in closed_calls}
    return closed_calls


def _question_message(turn: TurnState) -> Message:
    request = turn.request
    files = request.attachments or None
    fields = {"message_id": request.message_id, "user_message_attachments": files, "extra": request.extra}
    return turn.message(Role.USER, turn.decision.content, **fields)


def _interruption_result(call: Call) -> ToolResultBlock:
    return ToolResultBlock(call.id, (TextBlock(_INTERRUPTED_TEXT),), is_error=True)


def make_answer_placeholder(turn: TurnState) -> Message:
    """The answer before its first byte."""
    return turn.message(
        Role.ASSISTANT,
        (),
        model=turn.model.id,
        provider=turn.model.provider,
        routing=turn.decision.record,
        status=MessageStatus.PARTIAL,
    )


def with_status(message: Message, status: MessageStatus) -> Message:
    """A message that ended so."""
    return message.replace(metadata=message.metadata.replace(status=status))
