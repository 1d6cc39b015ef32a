"""The state of a running turn: its history, its open calls, its usage and its answer.

``TurnState`` is created by ``start_turn`` and changed by the modules that run a step of the turn. ``find_open_calls``
reads from a history which calls an earlier turn left without a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from time import perf_counter
from typing import Any, Final

from dragoman.adapter import Adapter
from dragoman.bus import Payload, Scope
from dragoman.catalog import Model
from dragoman.entries import DELEGATE, Entry, entries_from_messages
from dragoman.exchange import Fault, StopReason
from dragoman.ids import derive_ulid
from dragoman.message import (
    NO_TIME,
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.routing import Decision
from dragoman.rules import Call, calls_of
from dragoman.store import Row, Session, Store
from dragoman.store.turns import SessionLease
from dragoman.tools import ToolRegistry, answer_schema
from dragoman.turn.config import AgentConfig
from dragoman.turn.pending_calls import PendingCalls, result_ids
from dragoman.turn.services import AgentServices
from dragoman.turn.types import AnswerEnd, PendingCall, TurnEnd, TurnJournal, TurnRequest

# ``metadata.stage`` of the messages of a turn. A question has no stage.
SUMMARY: Final = "summary"  # a summary of the oldest turns
INTENT: Final = "intent"  # an answer that calls tools
TOOL_EXECUTION: Final = "tool_execution"  # a tool result
DELEGATION: Final = "delegation"  # the result of a worker
INPUT: Final = "input"  # the user's answer to a question of a tool
LATE_RESULT: Final = "late_result"  # output of a tool after its time-out
ANSWER: Final = "answer"  # an answer without tool calls
LATE_KEY: Final = "late_result"  # in ``metadata.extra`` of the note about a late result


class TurnState:
    """A turn that has started."""

    def __init__(
        self,
        services: AgentServices,
        config: AgentConfig,
        request: TurnRequest,
        *,
        session: Session,
        history: list[Message],
        adapter: Adapter,
        decision: Decision,
        scope: Scope,
        usage: TurnUsage,
        lease: SessionLease,
        tools: ToolRegistry,
        pending_calls: PendingCalls | None,
        journal: TurnJournal | None = None,
    ) -> None:
        self.services = services
        self.config = config
        self.request = request
        self.session = session
        self.history = history  # what the model receives; grows during the turn
        self.adapter = adapter
        self.decision = decision
        self.scope = scope
        self.usage = usage
        self.lease = lease
        self.tools = tools  # that the model is offered
        self._pending_calls = pending_calls
        self.journal = journal
        self.is_open = False  # its question is stored
        self.imported: list[Message] = []  # of the request, with their ids
        self.routing_ms = 0.0  # that the choice of the model took
        self.stored_id_count = len(adapter.ids.entries)  # provider ids of calls that are stored
        open_calls = pending_calls.open_calls if pending_calls is not None else ()
        self.calling_message = find_calling_message(history) if open_calls else None  # whose calls need results
        self.answered_ids = {call.id for call in get_calls(self.calling_message)} - {call.id for call in open_calls}
        self.steps = 0  # calls of the model
        self.repairs = 0  # of answers that did not fit the requested output
        self.is_repair_due = False  # the model is to be called again, with the problems of its answer
        self.placeholder: Row | None = None  # of the next answer, if it is stored
        self.begun_call: object | None = None  # of ``model_call.begin_call``
        self.answer: AnswerEnd | None = None  # the last one of this turn
        self.has_entries = False  # its trace entries are stored
        self.is_over = False  # its end event is emitted
        self._indexed_message: Message | None = None  # whose calls are in _calls_by_id
        self._calls_by_id: dict[str, Call] = {}

    @property
    def turn_id(self) -> str:
        return self.usage.turn_id

    @property
    def model(self) -> Model:
        return self.adapter.model

    @property
    def pending_calls(self) -> PendingCalls:
        """Which calls wait for the caller or a person; created when a call is open."""
        if self._pending_calls is None:
            self._pending_calls = PendingCalls(self.services, self.config, self.request, (), self.tools)
        return self._pending_calls

    @property
    def open_calls(self) -> list[Call]:
        """The calls of the last answer that have no result."""
        if self.calling_message is None:
            return []
        return [call for call in get_calls(self.calling_message) if call.id not in self.answered_ids]

    @property
    def runnable_calls(self) -> list[Call]:
        """The open calls that are not pending, while the model can still be called with their results."""
        if self.calling_message is None or self.steps >= self.config.max_steps:
            return []
        return [call for call in self.open_calls if self.pending_calls.reason_for(call) is None]

    @property
    def all_pending(self) -> tuple[PendingCall, ...]:
        """The pending calls, if every open call is pending."""
        if self.calling_message is None:
            return ()
        open_calls = self.open_calls
        pending = self.pending_calls.filter_pending(open_calls)
        return pending if len(pending) == len(open_calls) else ()

    @property
    def should_continue(self) -> bool:
        """Whether the model is to be called: with results of its calls, after a pause, or for the first time."""
        if self.answer is None:
            return not self.all_pending
        if self.is_repair_due:
            return True
        is_paused = self.answer.stop_reason is StopReason.PAUSED
        has_steps_left = self.steps < self.config.max_steps
        return (is_paused or self.calling_message is not None) and has_steps_left and not self.all_pending

    def may_repair(self, fault: Fault | None) -> bool:
        """Whether the model may correct an answer with this fault."""
        is_invalid = self.request.output is not None and fault is not None and fault.code == "output_invalid"
        return is_invalid and self.repairs < self.config.output_repairs and self.steps < self.config.max_steps

    def request_repair(self, fault: Fault) -> None:
        """Add the problems of the last answer to the history of this turn. They are sent and not stored."""
        self.repairs += 1
        self.is_repair_due = True
        text = f"{fault.message}. Write the whole answer again, only as JSON that fits the format."
        message_id = derive_ulid(0, self.session.id, "repair", str(self.repairs))
        content = (TextBlock(text),)
        self.history.append(Message(message_id, self.session.id, Role.USER, content, MessageMetadata(), NO_TIME))

    def entries(self, *extra_messages: Message) -> list[Entry]:
        """The messages of this turn as trace entries of the agent."""
        messages = [message for message in self.history if message.metadata.run_id == self.turn_id]
        result = entries_from_messages(
            (*messages, *extra_messages), agent_key=self.config.agent_key, delegate_tool=DELEGATE
        )
        entries: list[Entry] = result.wire
        return entries

    def emit(self, event: Payload | str, payload: dict[str, Any] | None = None) -> None:
        """Emit an event of this turn."""
        self.scope.try_emit(event, payload)

    def result_message(self, result: ToolResultBlock, latency_ms: int | None = None) -> Message:
        """The message of a tool result."""
        metadata = {
            "parent_tool_use_id": result.tool_use_id,
            "message_id": self.request.answer_ids.get(result.tool_use_id),
            "latency_ms": latency_ms,
            "extra": self.request.answer_extras.get(result.tool_use_id),
        }
        return self.message(Role.TOOL, (result,), stage=self._stage_of_result(result), **metadata)

    async def store_result(self, result: ToolResultBlock, latency_ms: int | None = None) -> Row:
        """Store the result of a call."""
        (row,) = await self.services.store.append(self.session.id, self.result_message(result, latency_ms))
        self.history.append(row.message)
        self.answered_ids.add(result.tool_use_id)
        return row

    def _stage_of_result(self, result: ToolResultBlock) -> str:
        if self._indexed_message is not self.calling_message:  # an answer may have many calls: index them once
            self._indexed_message = self.calling_message
            self._calls_by_id = {call.id: call for call in get_calls(self.calling_message)}
        call = self._calls_by_id.get(result.tool_use_id)
        if call is None:
            return TOOL_EXECUTION
        if call.name == DELEGATE and DELEGATE in self.config.tools:
            return DELEGATION
        is_question = isinstance(call, ToolUseBlock) and answer_schema(call, self.tools) is not None
        return INPUT if is_question else TOOL_EXECUTION

    def message(self, role: Role, content: Iterable[ContentBlock], **metadata: Any) -> Message:
        """A new message of this turn. The store sets its id and its time."""
        request = self.request
        fields = MessageMetadata(user_id=request.user_id, team_id=request.team_id, run_id=self.turn_id, **metadata)
        return Message("", "", role, tuple(content), fields, NO_TIME)

    def answer_placeholder(self) -> Message:
        """The answer before its first byte arrives."""
        return self.message(
            Role.ASSISTANT,
            (),
            model=self.model.id,
            provider=self.model.provider,
            routing=self.decision.record,
            status=MessageStatus.PARTIAL,
        )


class TurnUsage:
    """Calls, tokens, cost and time of one turn. Invariant: every charged call counts, even if it failed."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.model = ""
        self.llm_calls = 0
        self.tool_calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_usd: Decimal | None = None  # of the calls with a price; none if there is no such call
        self.unpriced_calls = 0
        self._started_at = perf_counter()
        self.end: TurnEnd | None = None

    def add(self, usage: Usage) -> None:
        """Add the usage of one call."""
        self.input_tokens += usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        self.output_tokens += usage.output_tokens
        if usage.amount_usd is None:
            self.unpriced_calls += 1
        else:
            self.cost_usd = (self.cost_usd or Decimal(0)) + usage.amount_usd

    @property
    def total_cost_usd(self) -> Decimal | None:
        """The cost of the calls with a price: 0 before the first call, none if no call has a price."""
        return self.cost_usd if self.cost_usd is not None or self.unpriced_calls else Decimal(0)

    @property
    def wall_time_s(self) -> float:
        """Seconds since the turn started."""
        return perf_counter() - self._started_at

    def make_end(
        self, stop_reason: StopReason, fault: Fault | None = None, pending: tuple[PendingCall, ...] = ()
    ) -> TurnEnd:
        """The last event of the turn."""
        self.end = TurnEnd(
            turn_id=self.turn_id,
            stop_reason=stop_reason,
            model=self.model,
            llm_calls=self.llm_calls,
            tool_calls=self.tool_calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cost_usd=self.total_cost_usd,
            unpriced_calls=self.unpriced_calls,
            wall_time_s=self.wall_time_s,
            fault=fault,
            pending=pending,
        )
        return self.end


# --- open calls of a history -----------------------------------------------------------------------------------------


def find_calling_message(history: Sequence[Message]) -> Message | None:
    """The answer whose calls can still get results: the last one, if no user message follows it."""
    for message in reversed(history):
        if message.role is not Role.TOOL and not is_late_note(message):
            is_complete = message.metadata.status is MessageStatus.COMPLETE
            return message if is_complete and any(calls_of(message)) else None
    return None


def get_calls(message: Message | None) -> list[Call]:
    """The tool calls of a message."""
    return [] if message is None else [call for _, call in calls_of(message)]


async def find_open_calls(store: Store, session_id: str | None, history: Sequence[Message]) -> list[Call]:
    """The calls of an earlier turn that have no result and were not cancelled. A new session has no id yet."""
    calls = get_calls(find_calling_message(history))
    closed_ids = result_ids(history) if calls else set()
    if closed_ids.issuperset(call.id for call in calls):
        return []
    if session_id is not None:
        closed_ids.update(call.id for call in await store.tool_calls(session_id, "cancelled"))
    return [call for call in calls if call.id not in closed_ids]


def is_late_note(message: Message) -> bool:
    """Whether a message is the note about a late result."""
    return message.role is Role.USER and LATE_KEY in (message.metadata.extra or {})


# --- stages of messages ----------------------------------------------------------------------------------------------


def stage_of_answer(content: Iterable[ContentBlock]) -> str:
    """The stage of an answer with this content."""
    return INTENT if any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in content) else ANSWER


def stage_of(message: Message) -> str | None:
    """The stage of a message, also if it was stored without one; none if no turn made it."""
    metadata = message.metadata
    if metadata.stage is not None:
        return metadata.stage
    if message.role is Role.TOOL and metadata.run_id is not None:
        return TOOL_EXECUTION
    is_answer = message.role is Role.ASSISTANT and metadata.model is not None
    return stage_of_answer(message.content) if is_answer else None
