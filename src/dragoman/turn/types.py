"""The request of a turn, and the events that a turn yields.

Events in order: ``TurnStart``; for each call of a model ``AnswerStart``, the events of its stream (``dragoman.event``)
and ``AnswerEnd``; for each tool ``ToolResultEvent``; last ``TurnEnd``. A turn can end with pending calls, which wait
for the caller or for a person; the answer to them starts another turn. Invariant: an event that names a message follows
the commit of the message.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final, Literal, Protocol, TypedDict

import msgspec

from dragoman.event import StreamEvent
from dragoman.exchange import Fault, Loss, Options, StopReason, ToolDefinition
from dragoman.message import Attachment, ContentBlock, Message, ToolResultBlock
from dragoman.output_format import Output
from dragoman.routing import Decision
from dragoman.store import Row, Session
from dragoman.store.operation import Part
from dragoman.tools import Approval

PendingReason = Literal["caller", "approval", "input"]
AGENT_OPTIONS: Final = Options()  # of a request that sets none


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a turn."""

    session_id: str
    content: tuple[ContentBlock, ...] = ()  # the user's message; may start with @model
    tools: tuple[ToolDefinition, ...] = ()  # of the caller: offered to the model, and run by the caller
    may_use_tools: bool = True  # offer the agent's own tools
    answers: tuple[ToolResultBlock, ...] = ()  # to pending calls: results of the caller's tools, answers of a person
    answer_ids: dict[str, str] = {}  # message ids of these answers, by call
    answer_extras: dict[str, dict[str, Any]] = {}  # ``metadata.extra`` of these answers, by call
    approvals: tuple[Approval, ...] = ()  # decisions about pending calls
    model: str | None = None  # for this turn alone; takes precedence over @model
    options: Options = AGENT_OPTIONS
    output: Output[Any] | None = None  # the format of the answer; an answer that does not fit is repaired
    user_id: str | None = None  # a pseudonym
    team_id: str | None = None
    run_id: str | None = None  # the id of the turn; none: a new id
    message_id: str | None = None  # the caller's id of the question
    team_budget_remaining_usd: Decimal | None = None
    extra: dict[str, object] | None = None  # ``metadata.extra`` of the question
    attachments: tuple[Attachment, ...] = ()  # locations of its files
    context: str | None = None  # added to the system prompt of this turn alone
    tier: str | None = None  # of a delegated turn: fast, balanced or deep
    is_worker: bool = False  # the turn is delegated
    new_session: Session | None = None  # created with the question, if the session does not exist yet
    imported: tuple[Message, ...] = ()  # of an earlier conversation; stored before the question


class TurnFields(TypedDict, total=False):
    """The optional fields of a ``TurnRequest``, as keywords of ``Agent.turn``, ``run`` and ``begin``."""

    tools: Iterable[ToolDefinition]
    may_use_tools: bool
    answers: Iterable[ToolResultBlock]
    answer_ids: dict[str, str]
    answer_extras: dict[str, dict[str, Any]]
    approvals: Iterable[Approval]
    model: str | None
    options: Options
    output: Output[Any] | None
    user_id: str | None
    team_id: str | None
    run_id: str | None
    message_id: str | None
    team_budget_remaining_usd: Decimal | None
    extra: dict[str, object] | None
    attachments: Iterable[Attachment]
    context: str | None
    tier: str | None
    is_worker: bool
    new_session: Session | None
    imported: Iterable[Message]


class TurnStart(msgspec.Struct, frozen=True, tag="turn_start"):
    """The model is chosen and the request is stored."""

    turn_id: str
    question: Row | None  # the user's message; none if the turn continues an earlier one
    decision: Decision
    answers: tuple[Row, ...] = ()  # results of the caller's tools


class AnswerStart(msgspec.Struct, frozen=True, tag="answer_start"):
    """A model is about to be called; a placeholder for its answer is stored."""

    message_id: str
    seq: int
    model: str
    estimated_input_tokens: int
    losses: tuple[Loss, ...] = ()  # parts of the history that this model cannot receive
    omitted_count: int = 0  # messages that did not fit
    adjustments: tuple[Loss, ...] = ()  # parts that were changed because this model rejects the original


class AnswerEnd(msgspec.Struct, frozen=True, tag="answer_end"):
    """The answer is stored, complete or not."""

    row: Row
    stop_reason: StopReason
    fault: Fault | None = None


class ToolResultEvent(msgspec.Struct, frozen=True, tag="tool_result"):
    """The result of a tool is stored."""

    row: Row


class PendingCall(msgspec.Struct, frozen=True):
    """A call that waits for the caller, who runs the tool, or for a person, who approves or answers it."""

    call_id: str
    name: str
    input: dict[str, Any]
    reason: PendingReason
    answer_schema: dict[str, Any] | None = None  # of the answer, if the reason is ``input``


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True, tag="turn_end"):
    """The turn is over."""

    turn_id: str
    stop_reason: StopReason
    model: str
    llm_calls: int
    tool_calls: int
    input_tokens: int  # of all calls, caches included
    output_tokens: int
    cost_usd: Decimal | None  # of the calls with a price; none if no call has a price
    wall_time_s: float
    unpriced_calls: int = 0  # calls without a known price, which ``cost_usd`` does not include
    fault: Fault | None = None  # why there is no answer
    pending: tuple[PendingCall, ...] = ()  # then the stop reason is ``TOOL_USE``

    @property
    def state(self) -> Literal["priced", "unpriced"]:
        """Whether the cost of every call is known."""
        return "unpriced" if self.unpriced_calls else "priced"


TurnEvent = TurnStart | AnswerStart | StreamEvent | AnswerEnd | ToolResultEvent | TurnEnd


class TurnJournal(Protocol):
    """Rows of a caller that are stored in the transactions of a turn: with its question, and with its last answer."""

    def open(self, start: TurnStart) -> Part[Any]:
        """The part of the transaction that stores the question. An error of the part rejects the turn."""

    def confirm_open(self) -> None:
        """Note that the question is stored."""

    async def close(self, answer: AnswerEnd, end: TurnEnd) -> Part[Any] | None:
        """The part of the transaction that stores the last answer; none: the caller stores its rows later."""

    def confirm_close(self) -> None:
        """Note that the last answer is stored."""
