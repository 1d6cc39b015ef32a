"""The start of a turn: read the history, choose the model, store the question.

Answers that a crash left unfinished are closed first; the lease guarantees that no other turn writes them. Pending
calls are answered by the request, or cancelled by a new question. Invariant: a rejected turn changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Sequence
from datetime import UTC
from decimal import Decimal
from typing import Final

import msgspec

from dragoman import tokens
from dragoman.bus import Payload, Scope
from dragoman.bus.event_types import routing_events, turn_events
from dragoman.codec import content_hash
from dragoman.context_window import newest_turn, with_summary
from dragoman.errors import ConflictError, FormatError, RoutingError, SettingsError, StoreError
from dragoman.exchange import ErrorClass, ToolDefinition
from dragoman.ids import ToolIds, derive_ulid
from dragoman.message import NO_TIME, Message, MessageMetadata, MessageStatus, Role, TextBlock, ToolResultBlock
from dragoman.offload import LARGE, estimate_size, run_off_loop
from dragoman.redaction import redact
from dragoman.routing import Decision, Policy, TurnFacts, collect_facts, decide
from dragoman.rules import Call, calls_of
from dragoman.store import Row, Session
from dragoman.store.turns import SessionLease, TurnSnapshot
from dragoman.tools import ToolRegistry
from dragoman.turn.config import AgentConfig
from dragoman.turn.image_policy import image_policy
from dragoman.turn.model_call import begin_call
from dragoman.turn.pending_calls import PendingCalls
from dragoman.turn.services import AgentServices
from dragoman.turn.session_settings import settings_of
from dragoman.turn.state import TurnState, TurnUsage, find_calling_message, find_open_calls
from dragoman.turn.types import TurnJournal, TurnRequest, TurnStart
from dragoman.value import unvalidated

_Tools = tuple[ToolDefinition, ...]
_message: Final = unvalidated(Message)  # its parts are validated
_NO_METADATA: Final = MessageMetadata()
_INTERRUPTED_TEXT: Final = "The call was interrupted before it had a result. It may have done part of its work."


async def start_turn(
    services: AgentServices,
    config: AgentConfig,
    request: TurnRequest,
    lease: SessionLease,
    *,
    usage: TurnUsage | None = None,
    journal: TurnJournal | None = None,
) -> TurnState:
    """Read the session and choose the model. Stores nothing but the end of interrupted answers."""
    started_at = time.perf_counter()
    store = services.store
    snapshot = await _read_session(services, request)
    session, rows = snapshot.session, snapshot.rows
    imported = [row.message for row in store.turns.place(session, request.imported)]
    history = [
        *make_system_messages(config, request, session),
        *(_with_session(session, row.message) for row in rows),
        *imported,
    ]
    open_calls = await find_open_calls(store, session.id if request.new_session is None else None, history)
    tools = await make_turn_tools(config, request, session)
    pending_calls = None
    if open_calls or request.answers or request.approvals:
        pending_calls = PendingCalls(services, config, request, open_calls, tools)
        pending_calls.check_answers(history)
    _check_content(request, history, open_calls)
    usage = usage or TurnUsage(request.run_id or store.new_id())
    scope = services.bus.scope(session.id, usage.turn_id)
    decision = await _choose_model(services, config, request, session, history, tools=tools.definitions)
    _require_model(services, session, scope, decision)
    model = services.get_catalog_model(decision.chosen_model)
    usage.model = model.id
    turn = TurnState(
        services,
        config,
        request,
        session=session,
        history=history,
        adapter=services.adapter(model, ToolIds(snapshot.tool_ids)),
        decision=decision,
        scope=scope,
        usage=usage,
        lease=lease,
        tools=tools,
        pending_calls=pending_calls,
        journal=journal,
    )
    turn.imported = imported
    turn.routing_ms = (time.perf_counter() - started_at) * 1000
    return turn


async def _read_session(services: AgentServices, request: TurnRequest) -> TurnSnapshot:
    """The session without interrupted answers: these are closed, which needs the lease for a moment."""
    store = services.store
    if request.new_session is not None:
        return TurnSnapshot(request.new_session, [], ())
    snapshot = await store.turns.open(request.session_id)
    if any(row.message.metadata.status is MessageStatus.PARTIAL for row in snapshot.rows):
        async with store.turns.lease(request.session_id):
            await _close_partial_answers(services, snapshot.session, snapshot.rows)
    return snapshot


async def make_turn_tools(config: AgentConfig, request: TurnRequest, session: Session | None = None) -> ToolRegistry:
    """The tools that the model is offered. Schemas of the caller's tools are compiled in a thread."""
    tools = config.tools if request.may_use_tools else ToolRegistry()
    if session is not None and session.metadata and request.may_use_tools:
        tools = settings_of(session).filter_tools(tools)
    if not request.tools:
        return tools
    return await run_off_loop(len(request.tools) * LARGE, tools.with_foreign, request.tools)


def _check_content(request: TurnRequest, history: list[Message], open_calls: Sequence[Call]) -> None:
    where = f"session {request.session_id}"
    if request.content and all(isinstance(block, TextBlock) and not block.text.strip() for block in request.content):
        raise FormatError("the question is empty", where=where, remedy="Send a text")
    if request.content or open_calls:
        return
    last = next((message for message in reversed(history) if message.metadata.status is MessageStatus.COMPLETE), None)
    if last is None or last.role not in (Role.USER, Role.TOOL):
        raise FormatError("the session has nothing to answer", where=where, remedy="Send a text")


def _with_session(session: Session, message: Message) -> Message:
    """A message of the session. A fork shares messages with the session that it was forked from."""
    return message if message.session_id == session.id else message.replace(session_id=session.id)


def make_system_messages(config: AgentConfig, request: TurnRequest, session: Session) -> list[Message]:
    """The system prompts of the agent and of the session, and the context of the request."""
    own_prompt = settings_of(session).system_prompt if session.metadata else None
    prompts = (config.system_prompt, own_prompt, request.context)
    return system_messages("\n\n".join(text for text in prompts if text), session)


def system_messages(text: str | None, session: Session) -> list[Message]:
    """A system prompt as a message. It is sent and not stored, because it may change."""
    if not text:
        return []
    message_id = derive_ulid(0, session.id, "system prompt")
    return [Message(message_id, session.id, Role.SYSTEM, (TextBlock(text),), MessageMetadata(), session.created_at)]


async def recover_session(services: AgentServices, session_id: str) -> None:
    """Close what a crash left unfinished, as the next turn would; ``ConflictError`` while a turn may be running."""
    async with services.store.turns.lease(session_id):
        session = await services.store.get_session(session_id)
        rows = [row async for row in services.store.history(session_id)]
        await _close_partial_answers(services, session, rows)


async def _close_partial_answers(services: AgentServices, session: Session, rows: list[Row]) -> None:
    for index, row in enumerate(rows):
        if row.message.metadata.status is not MessageStatus.PARTIAL:
            continue
        extra = {**(row.message.metadata.extra or {}), "interrupted": True}
        metadata = row.message.metadata.replace(status=MessageStatus.ERROR, extra=extra)
        try:
            rows[index] = await services.store.update(session.id, row.message.replace(metadata=metadata))
        except StoreError:  # another session shares it, and a turn is running there
            continue
        for _, call in calls_of(row.message):
            await services.store.cancel_tool_call(session.id, call.id)


# --- the choice of the model -----------------------------------------------------------------------------------------


async def _choose_model(
    services: AgentServices,
    config: AgentConfig,
    request: TurnRequest,
    session: Session,
    history: list[Message],
    *,
    tools: _Tools,
) -> Decision:
    """Route the turn."""
    policy = services.policy(session)
    size = estimate_size(history)
    response_format = request.options.response_format if request.output is None else request.output.response_format
    policy_of_images = image_policy(config, session) if session.metadata else config.capability_policy
    gather = functools.partial(
        collect_facts,
        history,
        request.content,
        now=services.clock().astimezone(),
        tools=tools,
        output_schema=response_format is not None and response_format.kind != "text",
        shows_images=policy_of_images == "strict",
        may_name_model=not request.is_worker,
        override=request.model,
        sticky=_sticky_model(services, request, session, history),
        delegate_tier=request.tier,
        workspace_path=session.workspace_path,
        estimated_input_tokens=await run_off_loop(size, _estimate_tokens, history, request, tools),
        cost_today_usd=await _get_cost_today(services, policy, session),
        team_budget_remaining_usd=request.team_budget_remaining_usd,
    )
    facts = await run_off_loop(size, gather)
    services.availability, changes = services.availability.with_time(services.clock())
    for change in changes:
        services.bus.try_emit(change.event_type, change.payload(), session_id=session.id)
    samples = await services.samples(request.user_id)
    decision = decide(facts, policy, services.registry, availability=services.availability, samples=samples)
    if decision.is_rejected_for("exceeds_context_window"):
        least = await run_off_loop(size, functools.partial(_estimate_tokens, is_least=True), history, request, tools)
        facts = msgspec.structs.replace(facts, least_input_tokens=least)
        decision = decide(facts, policy, services.registry, availability=services.availability, samples=samples)
    if decision.is_rejected_for("provider_unavailable"):
        decision = decide(facts, policy, services.registry, samples=samples)  # a model that failed lately is better
    return decision


def _require_model(services: AgentServices, session: Session, scope: Scope, decision: Decision) -> None:
    """Raise ``RoutingError`` or ``SettingsError`` if no model can answer, and emit the turn that fails by it."""
    try:
        decision.raise_if_rejected()
        services.check_endpoint(services.get_catalog_model(decision.chosen_model).provider)
    except (RoutingError, SettingsError) as error:
        _emit_session_start(services, session, session.last_seq)
        _emit_decision(scope, decision, 0.0)
        scope.try_emit(_failure_event(error))
        raise


def _emit_decision(scope: Scope, decision: Decision, elapsed_ms: float) -> None:
    scope.try_emit(_start_event(decision.facts))
    scope.try_emit(
        routing_events.RouteDecided(
            chosen_model=decision.chosen_model,
            winner_index=decision.winner_index,
            elapsed_ms=elapsed_ms,
            chain=decision.chain,
        )
    )
    _emit_choice(scope, decision)
    if decision.rejection is not None and decision.rejection.code == "routing_constraint_failure":
        scope.try_emit("routing_constraint_failure", decision.rejection.payload())


def _start_event(facts: TurnFacts) -> turn_events.TurnStarted:
    message = _message("", "", Role.USER, facts.content, _NO_METADATA, NO_TIME)
    return turn_events.TurnStarted(
        user_message_hash=content_hash(message),
        estimated_input_tokens=facts.estimated_input_tokens,
        has_images=facts.has_images,
        has_tool_calls_in_history=facts.has_tool_calls_in_history,
    )


def _failure_event(error: RoutingError | SettingsError) -> turn_events.TurnFailed:
    return turn_events.TurnFailed(
        error_code=error.code,
        error_class=ErrorClass.INVALID_REQUEST,
        error_message_redacted=redact(str(error)),
        llm_call_count=0,
        tool_call_count=0,
        total_cost_usd=Decimal(0),
        wall_time_seconds=0.0,
    )


async def _get_cost_today(services: AgentServices, policy: Policy, session: Session) -> Decimal | None:
    """The cost since midnight UTC, if a rule of the policy needs it."""
    if not policy.for_workspace(session.workspace_path).uses_predicate("cost_today_exceeds_usd"):
        return None
    today = services.clock().astimezone(UTC).date().isoformat()
    return sum((day.cost_usd for day in await services.store.costs.totals("day", since=today)), Decimal(0))


def _sticky_model(
    services: AgentServices, request: TurnRequest, session: Session, history: list[Message]
) -> str | None:
    """The model chosen for the session; if the last answer continues, the model that started it."""
    message = None if request.content else find_calling_message(history)
    model = services.registry.find(message.metadata.model or "") if message is not None else None
    return model.id if model is not None and services.registry.is_configured(model) else session.active_model


def _estimate_tokens(history: list[Message], request: TurnRequest, tools: _Tools, *, is_least: bool = False) -> int:
    """Tokens of the input, or of its newest turn, roughly; the same for every model."""
    role = Role.USER if request.content else Role.TOOL
    message = _message("", "", role, (*request.content, *request.answers), _NO_METADATA, NO_TIME)
    messages = (*with_summary(history), message)
    return tokens.estimate(newest_turn(messages) if is_least else messages, tools)


def _emit_choice(scope: Scope, decision: Decision) -> None:
    """Emit a match of earlier turns, and a choice of the user against the routing."""
    if decision.winner_index < 0:
        return
    winner, alternative = decision.chain[decision.winner_index], decision.alternative
    if winner.policy == "pattern":
        best, *others = winner.pattern_alternatives or ()
        scope.try_emit(
            "pattern.matched",
            {
                "model": decision.chosen_model,
                "confidence": winner.confidence or 0.0,
                "sample_size": best.sample_size,
                "alternatives": msgspec.to_builtins(others),
            },
        )
    if alternative is None or alternative.candidate_model in (None, decision.chosen_model):
        return
    fields = {"previous_model": alternative.candidate_model, "chosen_model": decision.chosen_model}
    scope.try_emit("route.overridden", {**fields, "source": winner.policy})
    if alternative.policy == "pattern":
        scope.try_emit("pattern.override_dismissed", {"model": alternative.candidate_model})


def _emit_session_start(services: AgentServices, session: Session, message_count: int) -> None:
    """Emit that a session is created or resumed, at the agent's first turn in it."""
    if services.remember_session(session.id):
        return
    event: Payload
    if message_count == 0:
        path, policy = session.workspace_path, session.routing_policy
        event = turn_events.SessionCreated(
            workspace_path=path,
            workspace_hash=_hash(path.encode("utf-8", "replace")) if path else None,
            initial_active_model=session.active_model,
            routing_policy_version=None if policy is None else _hash(msgspec.json.encode(policy, order="sorted")),
        )
    else:
        event = turn_events.SessionResumed(
            message_count=message_count,
            active_model=session.active_model,
            idle_seconds=max(0.0, (services.clock() - session.updated_at).total_seconds()),
        )
    services.bus.try_emit(event, session_id=session.id)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- the question ----------------------------------------------------------------------------------------------------


async def store_question(turn: TurnState) -> TurnStart | None:
    """Acquire the lease and store the question, answers and a placeholder for the answer: one transaction.

    There is a placeholder if the model is called next; its request is sent while the transaction is synced. None, and
    nothing is stored, if the session has changed since it was read.
    """
    request, services, store = turn.request, turn.services, turn.services.store
    turn.answered_ids |= {answer.tool_use_id for answer in request.answers}
    closed_calls = _close_calls(turn)
    messages = _initial_messages(turn, closed_calls)
    calls_model = turn.should_continue and not turn.runnable_calls
    rows = store.turns.place(turn.session, [*messages, turn.answer_placeholder()] if calls_model else messages)
    stored = rows[:-1] if calls_model else rows
    question = stored[-1] if request.content else None
    answers = stored[len(turn.imported) :][: len(request.answers)]
    start = TurnStart(turn.turn_id, question, turn.decision, tuple(answers))
    part = turn.journal.open(start) if turn.journal is not None else None
    is_new = request.new_session is not None
    try:
        synced = await store.turns.start(turn.lease, turn.session, rows, is_new=is_new, part=part)
    except ConflictError as error:
        if error.code == "seq_conflict":
            return None
        raise
    turn.is_open = True
    turn.placeholder = rows[-1] if calls_model else None
    turn.history.extend(row.message for row in stored[len(turn.imported) :])
    if request.content:
        services.remove_late_notes(messages)
    _emit_session_start(services, turn.session, turn.session.last_seq)
    _emit_decision(turn.scope, turn.decision, turn.routing_ms)
    if not turn.config.summarize:  # a summary changes what the model receives
        await begin_call(turn)
    await synced
    if turn.journal is not None:
        turn.journal.confirm_open()
    for call in closed_calls:
        await store.cancel_tool_call(turn.session.id, call.id)  # does nothing if the call has its result
    return start


def _initial_messages(turn: TurnState, closed_calls: Sequence[Call]) -> list[Message]:
    """The messages that are stored before the model is called."""
    request, services = turn.request, turn.services
    messages = [*turn.imported, *(turn.result_message(answer) for answer in request.answers)]
    if request.content:
        return [*messages, *services.get_late_notes(turn.session.id), _question_message(turn)]
    return [*messages, *(turn.result_message(_interruption_result(call)) for call in closed_calls)]


def _close_calls(turn: TurnState) -> list[Call]:
    """The calls of an earlier turn that get no answer: interrupted, or cancelled by a new question."""
    open_calls = turn.open_calls
    if not open_calls:
        return []
    pending_calls = turn.pending_calls
    closed_calls = [call for call in open_calls if call.id not in pending_calls.approvals]
    if not turn.request.content:  # pending calls stay pending
        closed_calls = [call for call in closed_calls if pending_calls.reason_for(call) is None]
    turn.answered_ids |= {call.id for call in closed_calls}
    return closed_calls


def _question_message(turn: TurnState) -> Message:
    request = turn.request
    return turn.message(
        Role.USER,
        turn.decision.content,
        message_id=request.message_id,
        user_message_attachments=request.attachments or None,
        extra=request.extra,
    )


def _interruption_result(call: Call) -> ToolResultBlock:
    return ToolResultBlock(call.id, (TextBlock(_INTERRUPTED_TEXT),), is_error=True)
