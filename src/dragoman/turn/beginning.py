"""The beginning of a turn: the history, the model that will answer, and the question in the store.

What a crash has left half done is closed first: nobody else runs a turn in this session, so an answer that is still
arriving is not. The one rule: a turn that is refused changes nothing.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from dragoman.adapter import estimated_tokens
from dragoman.bus import Payload, Scope, catalogue
from dragoman.catalog import Model
from dragoman.codec import content_hash
from dragoman.errors import RoutingError, SettingsError, StoreError
from dragoman.exchange import ErrorClass, StopReason
from dragoman.ids import ToolIds, derived_ulid
from dragoman.message import (
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.routing import Decision, Policy, TurnFacts, decide, facts_of
from dragoman.rules import calls_of
from dragoman.store import Row, Session
from dragoman.turn.tally import Tally
from dragoman.turn.telling import tell, without_secrets
from dragoman.turn.values import AnswerEnded, Asked, TurnBegan
from dragoman.window import with_summary

if TYPE_CHECKING:
    from dragoman.turn.agent import Agent

NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # the store gives a message its time


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
        self.place: Row | None = None  # of the next answer, if it is stored already
        self.answer: AnswerEnded | None = None  # the last one
        self.is_over = False  # and everybody is told

    @property
    def turn_id(self) -> str:
        return self.tally.turn_id

    @property
    def calls(self) -> list[ToolUseBlock | InvalidToolUseBlock]:
        """What the last answer asks for."""
        if self.answer is None or self.answer.fault is not None:
            return []
        return [call for _, call in calls_of(self.answer.row.message)]

    @property
    def open_calls(self) -> list[ToolUseBlock | InvalidToolUseBlock]:
        """Those of them that have no result."""
        answered: set[str] = set()
        for message in reversed(self.history):
            if self.answer is None or message is self.answer.row.message:
                break
            answered.update(block.tool_use_id for block in message.content if isinstance(block, ToolResultBlock))
        return [call for call in self.calls if call.id not in answered]

    @property
    def goes_on(self) -> bool:
        """Whether the model waits for something, the results of its calls or to be asked again, and may have it."""
        is_paused = self.answer is not None and self.answer.stop_reason is StopReason.PAUSED
        return self.tally.llm_calls < self.agent.max_steps and (is_paused or bool(self.calls))

    def tell(self, what: Payload | str, payload: dict[str, Any] | None = None) -> None:
        """Say that something happened in this turn."""
        tell(self.scope, what, payload)

    def message(self, role: Role, content: Any, **metadata: Any) -> Message:
        """A message of this turn that is not stored yet. The store gives it its id and its time."""
        asked = self.asked
        told = MessageMetadata(user_id=asked.user_id, team_id=asked.team_id, run_id=self.turn_id, **metadata)
        return Message("", "", role, tuple(content), told, NO_TIME)


async def begun(agent: Agent, asked: Asked, tally: Tally | None) -> Turn:
    """A turn whose model is chosen, and nothing is stored yet. Once it is told that it began, nothing waits here."""
    session = await agent.store.get_session(asked.session_id)
    rows = [row async for row in agent.store.history(asked.session_id)]
    await _close_interrupted(agent, session, rows)
    history = [*_prompt(agent, session), *(row.message for row in rows)]
    ids = ToolIds(await agent.store.tool_ids(session.id))
    tally = tally or Tally(asked.run_id or agent.store.new_id())
    scope = agent.bus.scope(session.id, tally.turn_id)
    decision = await _decided(agent, asked, session, history, scope)
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
    )


def _prompt(agent: Agent, session: Session) -> list[Message]:
    """What the agent is, before everything that was said. It is sent, and not stored: it may change."""
    if not agent.system_prompt:
        return []
    made = derived_ulid(0, session.id, "system prompt")
    content = (TextBlock(agent.system_prompt),)
    return [Message(made, session.id, Role.SYSTEM, content, MessageMetadata(), session.created_at)]


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


async def _decided(agent: Agent, asked: Asked, session: Session, history: list[Message], scope: Scope) -> Decision:
    """Which model answers. It is told in any case; a refusal is raised."""
    began = time.perf_counter()
    policy = agent.policy(session)
    facts = facts_of(
        history,
        asked.content,
        now=agent.clock().astimezone(),
        tools=agent.tools.definitions,
        output_schema=asked.options.response_format is not None and asked.options.response_format.kind != "text",
        shows_images=agent.capability_policy == "strict",
        may_name_model=not asked.is_worker,
        override=asked.model,
        sticky=session.active_model,
        delegate_tier=asked.tier,
        workspace_path=session.workspace_path,
        estimated_input_tokens=_estimated(agent, history, asked),
        cost_today_usd=await _cost_today(agent, policy, session),
        team_budget_remaining_usd=asked.team_budget_remaining_usd,
    )
    agent.availability, changes = agent.availability.refreshed(agent.clock())
    for change in changes:
        tell(agent.bus, change.event_type, change.payload(), session_id=session.id)
    samples = await agent.samples()
    decision = decide(facts, policy, agent.registry, availability=agent.availability, samples=samples)
    if decision.refusal is not None and any(one["reason"] == "provider_unavailable" for one in decision.tried):
        decision = decide(facts, policy, agent.registry, samples=samples)  # rather one that failed lately than nobody
    tell(scope, _started(decision.facts))
    tell(scope, "route.decided", decision.payload((time.perf_counter() - began) * 1000))
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


def _estimated(agent: Agent, history: list[Message], asked: Asked) -> int:
    """How much the model will be told, roughly: the same for every model."""
    said = Message("", "", Role.USER, asked.content, MessageMetadata(), NO_TIME)
    return estimated_tokens((*with_summary(history), said), agent.tools.definitions)


def _started(facts: TurnFacts) -> catalogue.TurnStarted:
    said = Message("", "", Role.USER, facts.content, MessageMetadata(), NO_TIME)
    return catalogue.TurnStarted(
        user_message_hash=content_hash(said),
        estimated_input_tokens=facts.estimated_input_tokens,
        has_images=facts.has_images,
        has_tool_calls_in_history=facts.has_tool_calls_in_history,
    )


async def question_stored(turn: Turn) -> TurnBegan:
    """The question and a place for the answer, in one transaction."""
    asked = turn.asked
    question = turn.message(Role.USER, turn.decision.content, message_id=asked.message_id, extra=asked.extra)
    question_row, turn.place = await turn.agent.store.append(turn.session.id, [question, place_for_answer(turn)])
    turn.history.append(question_row.message)
    return TurnBegan(turn.turn_id, question_row, turn.decision)


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
