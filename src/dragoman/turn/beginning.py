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

from dragoman.adapter import estimated_tokens
from dragoman.bus import Payload, Scope, catalogue
from dragoman.catalog import Model
from dragoman.codec import content_hash
from dragoman.entries import DELEGATE, Entry, entries_from_messages
from dragoman.errors import FormatError, RoutingError, SettingsError, StoreError
from dragoman.exchange import ErrorClass, StopReason, ToolDefinition
from dragoman.ids import ToolIds, derived_ulid
from dragoman.message import Message, MessageMetadata, MessageStatus, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.offload import off_loop, size_of
from dragoman.routing import Decision, Policy, TurnFacts, decide, facts_of
from dragoman.rules import Call, calls_of
from dragoman.store import Row, Session
from dragoman.store.tenure import Tenure
from dragoman.tools import answer_schema
from dragoman.turn import stages
from dragoman.turn.events import tell_choice, tell_session
from dragoman.turn.seeing import policy_of
from dragoman.turn.tally import Tally
from dragoman.turn.telling import tell, without_secrets
from dragoman.turn.values import NO_TIME, AnswerEnded, Asked, Pending, TurnBegan
from dragoman.turn.waiting import Waiting, calling, calls_in, check, left_open, offered_tools
from dragoman.value import unchecked
from dragoman.window import with_summary

if TYPE_CHECKING:
    from dragoman.turn.agent import Agent

_Tools = tuple[ToolDefinition, ...]
_message: Final = unchecked(Message)  # of parts that were looked at when they were made
_NOTHING: Final = MessageMetadata()
_INTERRUPTED: Final = "The call was interrupted before it had a result. It may have done part of its work."


class Turn:
    """A turn that has begun: what is known of it, and what it has said so far."""

    def __init__(
        self,
        agent: Agent,
        asked: Asked,
        *,
        session: Session,
        history: list[Message],
        model: Model,
        decision: Decision,
        ids: ToolIds,
        scope: Scope,
        tally: Tally,
        tenure: Tenure,
        waiting: Waiting,
        left: list[Call],
    ) -> None:
        self.agent = agent
        self.asked = asked
        self.session = session
        self.history = history  # what the model is told; it grows
        self.model = model
        self.decision = decision
        self.adapter = agent.adapter(model, ids)
        self.scope = scope
        self.tally = tally
        self.known_ids = len(ids.entries)  # of calls, as stored
        self.tenure = tenure
        self.waiting = waiting
        self.left = left  # calls of an earlier turn that have no result
        self.asking: Message | None = calling(history) if left else None  # whose calls are to be answered
        self.settled = {call.id for call in calls_in(self.asking)} - {call.id for call in left}
        self._calls_of: Message | None = None  # whose calls stand below
        self._calls: dict[str, Call] = {}  # by id
        self.steps = 0  # how often the model was asked to answer
        self.place: Row | None = None  # of the next answer, if it is stored already
        self.answer: AnswerEnded | None = None  # the last one of this turn
        self.is_traced = False  # its entries are written
        self.is_over = False  # and everybody is told

    @property
    def turn_id(self) -> str:
        return self.tally.turn_id

    @property
    def open_calls(self) -> list[Call]:
        """What the last answer asks for and has not got."""
        if self.asking is None:
            return []
        return [call for call in calls_in(self.asking) if call.id not in self.settled]

    @property
    def runnable(self) -> list[Call]:
        """Those of them that nobody else is waited for, while there are steps left to tell the model of it."""
        if self.asking is None or self.steps >= self.agent.max_steps:
            return []
        return [call for call in self.open_calls if self.waiting.why(call) is None]

    @property
    def pending(self) -> tuple[Pending, ...]:
        """What it waits for, if that is all that is open."""
        if self.asking is None:
            return ()
        open_calls = self.open_calls
        found = self.waiting.pending(open_calls)
        return found if len(found) == len(open_calls) else ()

    @property
    def goes_on(self) -> bool:
        """Whether the model waits for something, the results of its calls or to be asked again, and may have it."""
        if self.answer is None:
            return not self.pending
        is_paused = self.answer.stop_reason is StopReason.PAUSED
        may = self.steps < self.agent.max_steps
        return (is_paused or self.asking is not None) and may and not self.pending

    def entries(self, *more: Message) -> list[Entry]:
        """What the agent did in this turn, as entries of its own."""
        said = [message for message in self.history if message.metadata.run_id == self.turn_id]
        written = entries_from_messages((*said, *more), agent_key=self.agent.agent_key, delegate_tool=DELEGATE)
        made: list[Entry] = written.wire
        return made

    def tell(self, what: Payload | str, payload: dict[str, Any] | None = None) -> None:
        """Say that something happened in this turn."""
        tell(self.scope, what, payload)

    def result_message(self, result: ToolResultBlock, latency_ms: int | None = None) -> Message:
        """The result of a call, as a message of this turn, and how long it took to come by, if that is known."""
        name = self.asked.answer_ids.get(result.tool_use_id)
        extra = self.asked.answer_extras.get(result.tool_use_id)
        told = {"parent_tool_use_id": result.tool_use_id, "message_id": name, "latency_ms": latency_ms, "extra": extra}
        return self.message(Role.TOOL, (result,), stage=self._stage_of_result(result), **told)

    def _stage_of_result(self, result: ToolResultBlock) -> str:
        if self._calls_of is not self.asking:  # an answer may have many calls, so they are listed once
            self._calls_of, self._calls = self.asking, {call.id: call for call in calls_in(self.asking)}
        call = self._calls.get(result.tool_use_id)
        if call is None:
            return stages.TOOL_EXECUTION
        if call.name == DELEGATE and DELEGATE in self.agent.tools:
            return stages.DELEGATION
        asks = isinstance(call, ToolUseBlock) and answer_schema(call, self.waiting.tools) is not None
        return stages.INPUT if asks else stages.TOOL_EXECUTION

    def message(self, role: Role, content: Any, **metadata: Any) -> Message:
        """A message of this turn that is not stored yet. The store gives it its id and its time."""
        asked = self.asked
        told = MessageMetadata(user_id=asked.user_id, team_id=asked.team_id, run_id=self.turn_id, **metadata)
        return Message("", "", role, tuple(content), told, NO_TIME)


async def begun(agent: Agent, asked: Asked, tenure: Tenure, tally: Tally | None) -> Turn:
    """A turn whose model is chosen, and nothing is stored yet. Once it is told that it began, nothing waits here."""
    found = await agent.store.open_turn(asked.session_id)
    session, rows = found.session, found.rows
    await _close_interrupted(agent, session, rows)
    history = [*_prompt(agent, asked, session), *(_in_session(session, row.message) for row in rows)]
    left = await left_open(agent.store, session.id, history)
    waiting = Waiting(agent, asked, left, await offered_tools(agent, asked))
    _check(asked, history, left, waiting)
    ids = ToolIds(found.tool_ids)
    tally = tally or Tally(asked.run_id or agent.store.new_id())
    scope = agent.bus.scope(session.id, tally.turn_id)
    tell_session(agent, session, len(rows))
    decision = await _decided(agent, asked, session, history, scope=scope, tools=waiting.tools.definitions)
    model = agent.registry.catalog.model(decision.chosen_model)
    tally.model = model.id
    return Turn(
        agent,
        asked,
        session=session,
        history=history,
        model=model,
        decision=decision,
        ids=ids,
        scope=scope,
        tally=tally,
        tenure=tenure,
        waiting=waiting,
        left=left,
    )


def _check(asked: Asked, history: list[Message], left: list[Call], waiting: Waiting) -> None:
    """Refuse what cannot be said here."""
    check(asked, {one.call_id: one for one in waiting.pending(left)}, history, waiting.tools)
    waiting.approvals.update((one.call_id, one) for one in asked.approvals)
    if asked.content and all(isinstance(block, TextBlock) and not block.text.strip() for block in asked.content):
        raise FormatError("the question is empty", where=f"session {asked.session_id}", remedy="Write a question")
    if asked.content or left:
        return
    said = next((message for message in reversed(history) if message.metadata.status is MessageStatus.COMPLETE), None)
    if said is None or said.role not in (Role.USER, Role.TOOL):
        raise FormatError("there is nothing to answer", where=f"session {asked.session_id}", remedy="Say something")


def _in_session(session: Session, message: Message) -> Message:
    """A message that a fork shares with the session it comes from, as one of the fork: a history is of one session."""
    return message if message.session_id == session.id else message.replace(session_id=session.id)


def _prompt(agent: Agent, asked: Asked, session: Session) -> list[Message]:
    """What the agent is, before everything that was said. It is sent, and not stored: it may change."""
    said = [text for text in (agent.system_prompt, asked.context) if text]
    if not said:
        return []
    made = derived_ulid(0, session.id, "system prompt")
    content = (TextBlock("\n\n".join(said)),)
    return [Message(made, session.id, Role.SYSTEM, content, MessageMetadata(), session.created_at)]


async def recovered(agent: Agent, session_id: str) -> None:
    """End what a crash has left half done, as the next turn would; ``ConflictError`` while somebody may run one."""
    async with agent.store.turn(session_id):
        session = await agent.store.get_session(session_id)
        rows = [row async for row in agent.store.history(session_id)]
        await _close_interrupted(agent, session, rows)


async def _close_interrupted(agent: Agent, session: Session, rows: list[Row]) -> None:
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


async def _decided(
    agent: Agent, asked: Asked, session: Session, history: list[Message], *, scope: Scope, tools: _Tools
) -> Decision:
    """Which model answers. It is told in any case; a refusal is raised."""
    began = time.perf_counter()
    policy = agent.policy(session)
    size = size_of(history)
    gather = functools.partial(
        facts_of,
        history,
        asked.content,
        now=agent.clock().astimezone(),
        tools=tools,
        output_schema=asked.options.response_format is not None and asked.options.response_format.kind != "text",
        shows_images=policy_of(agent, session) == "strict",
        may_name_model=not asked.is_worker,
        override=asked.model,
        sticky=_sticky(agent, asked, session, history),
        delegate_tier=asked.tier,
        workspace_path=session.workspace_path,
        estimated_input_tokens=await off_loop(size, _estimated, history, asked, tools),
        cost_today_usd=await _cost_today(agent, policy, session),
        team_budget_remaining_usd=asked.team_budget_remaining_usd,
    )
    facts = await off_loop(size, gather)
    agent.availability, changes = agent.availability.refreshed(agent.clock())
    for change in changes:
        tell(agent.bus, change.event_type, change.payload(), session_id=session.id)
    samples = await agent.samples(asked.user_id)
    decision = decide(facts, policy, agent.registry, availability=agent.availability, samples=samples)
    if decision.refusal is not None and any(one["reason"] == "provider_unavailable" for one in decision.tried):
        decision = decide(facts, policy, agent.registry, samples=samples)  # rather one that failed lately than nobody
    tell(scope, _started(decision.facts))
    tell(scope, _route(decision, (time.perf_counter() - began) * 1000))
    tell_choice(scope, decision)
    if decision.refusal is not None and decision.refusal.code == "routing_constraint_failure":
        tell(scope, "routing_constraint_failure", decision.refusal.payload())
    try:
        decision.raise_if_refused()
        agent.check_endpoint(agent.registry.catalog.model(decision.chosen_model).provider)
    except (RoutingError, SettingsError) as error:
        tell(scope, _refused(error))
        raise
    return decision


def _refused(error: RoutingError | SettingsError) -> catalogue.TurnFailed:
    """How a turn ends that nobody answers."""
    return catalogue.TurnFailed(
        error_code=error.code,
        error_class=ErrorClass.INVALID_REQUEST,
        error_message_redacted=without_secrets(str(error)),
        llm_call_count=0,
        tool_call_count=0,
        total_cost_usd=Decimal(0),
        wall_time_seconds=0.0,
    )


async def _cost_today(agent: Agent, policy: Policy, session: Session) -> Decimal | None:
    """What was spent since midnight in UTC, if a rule wants to know."""
    if not policy.at(session.workspace_path).asks_for("cost_today_exceeds_usd"):
        return None
    today = agent.clock().astimezone(UTC).date().isoformat()
    return sum((day.cost_usd for day in await agent.store.totals("day", since=today)), Decimal(0))


def _sticky(agent: Agent, asked: Asked, session: Session, history: list[Message]) -> str | None:
    """The model that was chosen for the session; if its last answer goes on, the one that began it."""
    asking = None if asked.content else calling(history)
    model = agent.registry.find(asking.metadata.model or "") if asking is not None else None
    return model.id if model is not None and agent.registry.is_configured(model) else session.active_model


def _estimated(history: list[Message], asked: Asked, tools: _Tools) -> int:
    """How much the model will be told, roughly: the same for every model."""
    said = _message("", "", Role.USER, (*asked.content, *asked.answers), _NOTHING, NO_TIME)
    return estimated_tokens((*with_summary(history), said), tools)


def _started(facts: TurnFacts) -> catalogue.TurnStarted:
    said = _message("", "", Role.USER, facts.content, _NOTHING, NO_TIME)
    return catalogue.TurnStarted(
        user_message_hash=content_hash(said),
        estimated_input_tokens=facts.estimated_input_tokens,
        has_images=facts.has_images,
        has_tool_calls_in_history=facts.has_tool_calls_in_history,
    )


def _route(decision: Decision, elapsed_ms: float) -> catalogue.RouteDecided:
    """Written down, the slots of a decision are the steps of the event."""
    return catalogue.RouteDecided(
        chosen_model=decision.chosen_model,
        winner_index=decision.winner_index,
        elapsed_ms=elapsed_ms,
        chain=decision.chain,  # type: ignore[arg-type]
    )


async def question_stored(turn: Turn) -> TurnBegan:
    """What the caller says and, if a model is asked at once, a place for the answer, in one transaction."""
    asked, store = turn.asked, turn.agent.store
    lost = _settled(turn)
    said = [turn.result_message(answer) for answer in asked.answers]
    if asked.content:
        said.extend((*turn.agent.late(turn.session.id), _question(turn)))
    else:
        said.extend(turn.result_message(_interrupted(call)) for call in lost)
    is_asked = turn.goes_on and not turn.runnable
    rows = await store.append(turn.session.id, [*said, place_for_answer(turn)] if is_asked else said)
    turn.place = rows.pop() if is_asked else None
    turn.history.extend(row.message for row in rows)
    if asked.content:
        turn.agent.forget_late(said)
    for call in lost:
        await store.cancel_tool_call(turn.session.id, call.id)  # nothing happens to one that has its result
    question = rows[-1] if asked.content else None
    return TurnBegan(turn.turn_id, question, turn.decision, tuple(rows[: len(asked.answers)]))


def _settled(turn: Turn) -> list[Call]:
    """Calls of an earlier turn that nobody will answer: interrupted, or given up by a new question."""
    turn.settled |= {answer.tool_use_id for answer in turn.asked.answers}
    lost = [call for call in turn.open_calls if call.id not in turn.waiting.approvals]
    if not turn.asked.content:  # what waits for somebody goes on waiting
        lost = [call for call in lost if turn.waiting.why(call) is None]
    turn.settled |= {call.id for call in lost}
    return lost


def _question(turn: Turn) -> Message:
    asked = turn.asked
    files = asked.attachments or None
    told = {"message_id": asked.message_id, "user_message_attachments": files, "extra": asked.extra}
    return turn.message(Role.USER, turn.decision.content, **told)


def _interrupted(call: Call) -> ToolResultBlock:
    return ToolResultBlock(call.id, (TextBlock(_INTERRUPTED),), is_error=True)


def place_for_answer(turn: Turn) -> Message:
    """The answer before its first byte."""
    return turn.message(
        Role.ASSISTANT,
        (),
        model=turn.model.id,
        provider=turn.model.provider,
        routing=turn.decision.record,
        status=MessageStatus.PARTIAL,
    )


def ended_as(message: Message, status: MessageStatus) -> Message:
    """A message that ended so."""
    return message.replace(metadata=message.metadata.replace(status=status))
