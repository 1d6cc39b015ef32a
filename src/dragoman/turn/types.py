"""What goes into a turn and what comes out of it: the question, and the steps on the way to the answer.

A turn is told as it happens: ``TurnStart``, then for each call of a model ``AnswerStart``, the events of its stream
(``dragoman.event``) and ``AnswerEnd``, for each tool ``ToolResultStored``, and at last ``TurnEnd``. A turn may end
while calls of its last answer are pending: they wait for the caller, whose tools they name, or for somebody's consent.
What is said about them begins another turn. The one rule: what says that a message is stored is told after it is.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from dragoman.event import StreamEvent
from dragoman.exchange import Fault, Loss, Options, StopReason, ToolDefinition
from dragoman.message import Attachment, ContentBlock, ToolResultBlock
from dragoman.routing import Decision
from dragoman.store import Row
from dragoman.tools import Approval

PendingReason = Literal["caller", "approval", "input"]
AGENT_OPTIONS: Final = Options()
NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # of what is not stored yet: the store gives a message its time


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of an agent, and on which terms."""

    session_id: str
    content: tuple[ContentBlock, ...] = ()  # what the user says; it may begin with @model
    tools: tuple[ToolDefinition, ...] = ()  # of the caller: offered to the model, and never run here
    may_use_tools: bool = True  # whether the model is offered the agent's own tools
    answers: tuple[
        ToolResultBlock, ...
    ] = ()  # to calls that are pending: what the caller's tools gave, what a person said
    answer_ids: dict[str, str] = {}  # what the caller calls the messages of these answers, by call
    answer_extras: dict[str, dict[str, Any]] = {}  # what the caller wants to keep with these messages, by call
    approvals: tuple[Approval, ...] = ()  # what somebody decided about calls that are pending
    model: str | None = None  # the model for this turn alone; goes before an @model
    options: Options = AGENT_OPTIONS  # how to answer
    user_id: str | None = None  # who asks, as a pseudonym
    team_id: str | None = None
    run_id: str | None = None  # what the caller calls this turn; one is made if there is none
    message_id: str | None = None  # what the caller calls the message
    team_budget_remaining_usd: Decimal | None = None  # what the team may still spend, if the caller knows
    extra: dict[str, object] | None = None  # what the caller wants to keep with the message
    attachments: tuple[Attachment, ...] = ()  # where the files are kept that came with it
    context: str | None = None  # what the model is told beside the agent's own prompt, in this turn alone
    tier: str | None = None  # of a turn that another agent delegated: fast, balanced or deep
    is_worker: bool = False  # it was delegated


class TurnStart(msgspec.Struct, frozen=True, tag="turn_start"):
    """The model is chosen, and what the caller says is stored."""

    turn_id: str
    question: Row | None  # the user's message; none if the turn goes on without one
    decision: Decision
    answers: tuple[Row, ...] = ()  # what the caller's tools gave


class AnswerStart(msgspec.Struct, frozen=True, tag="answer_start"):
    """A model is about to be called; a place for its answer is stored."""

    message_id: str
    seq: int
    model: str
    estimated_input_tokens: int
    losses: tuple[Loss, ...] = ()  # what of the history this model is not told
    omitted_count: int = 0  # messages that did not fit


class AnswerEnd(msgspec.Struct, frozen=True, tag="answer_end"):
    """The answer is stored as it is, however it ended."""

    row: Row
    stop_reason: StopReason
    fault: Fault | None = None


class ToolResultStored(msgspec.Struct, frozen=True, tag="tool_result_stored"):
    """The result of a tool is stored."""

    row: Row


class PendingCall(msgspec.Struct, frozen=True):
    """A call that waits for somebody else: the caller, whose tool it names, or a person to approve or answer it."""

    call_id: str
    name: str
    input: dict[str, Any]
    reason: PendingReason
    answer_schema: dict[str, Any] | None = None  # of what a person is asked for


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True, tag="turn_end"):
    """The turn is over."""

    turn_id: str
    stop_reason: StopReason
    model: str
    llm_calls: int
    tool_calls: int
    input_tokens: int  # of every call, caches included
    output_tokens: int
    cost_usd: Decimal | None  # of the calls that have a price; none if no call has one
    wall_time_s: float
    unpriced_calls: int = 0  # calls for which no price was known: what they cost is not in cost_usd
    fault: Fault | None = None  # why there is no answer
    pending: tuple[PendingCall, ...] = ()  # what the last answer waits for; the stop reason is then ``TOOL_USE``

    @property
    def state(self) -> Literal["priced", "unpriced"]:
        """Whether everything that it cost is known."""
        return "unpriced" if self.unpriced_calls else "priced"


TurnEvent = TurnStart | AnswerStart | StreamEvent | AnswerEnd | ToolResultStored | TurnEnd
