"""Calls that wait for somebody else: those of the caller's tools, and those that a person approves or answers.

A turn whose answer asks for such a call ends, and what is said about the call begins another turn, perhaps in another
process. Nothing is kept for that but the history: the calls of the last answer that have no result, if nobody has
spoken since. Of these, one whose tool the agent does not have is the caller's; one whose tool the agent has waits for
an answer, if the tool asks somebody, or for consent, if it needs any; what is left was interrupted by a crash and is
never run again. The one rule: a call is answered once, by whoever it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dragoman.errors import ConflictError, FormatError, ToolInputError
from dragoman.message import Message, MessageStatus, Role, ToolResultBlock, ToolUseBlock
from dragoman.offload import LARGE, run_off_loop
from dragoman.rules import RESULT_BLOCKS, Call, calls_of
from dragoman.tools import Approval, ToolRegistry, ToolSession, answer_schema, requires_approval
from dragoman.turn.late import is_late_note
from dragoman.turn.types import PendingCall, PendingReason, TurnRequest

if TYPE_CHECKING:
    from dragoman.store import Store
    from dragoman.turn.agent import Agent


def find_calling_message(history: Sequence[Message]) -> Message | None:
    """The answer whose calls may still be answered: the last one, if nobody has spoken since."""
    for message in reversed(history):
        if message.role is not Role.TOOL and not is_late_note(message):
            is_complete = message.metadata.status is MessageStatus.COMPLETE
            return message if is_complete and any(calls_of(message)) else None
    return None


def get_calls(message: Message | None) -> list[Call]:
    """What a message asks for."""
    return [] if message is None else [call for _, call in calls_of(message)]


async def find_open_calls(store: Store, session_id: str, history: Sequence[Message]) -> list[Call]:
    """The calls that an earlier turn has left without a result, and nobody has given up."""
    calls = get_calls(find_calling_message(history))
    closed_ids = _result_ids(history) if calls else set()
    if closed_ids.issuperset(call.id for call in calls):
        return []
    closed_ids.update(call.id for call in await store.tool_calls(session_id, "cancelled"))
    return [call for call in calls if call.id not in closed_ids]


def _result_ids(history: Iterable[Message]) -> set[str]:
    """The calls that have a result."""
    return {block.tool_use_id for message in history for block in message.content if isinstance(block, ToolResultBlock)}


async def make_turn_tools(agent: Agent, request: TurnRequest) -> ToolRegistry:
    """The tools that the model is offered. Those of the caller come with each run, and are compiled in a thread."""
    agent_tools = agent.tools if request.may_use_tools else ToolRegistry()
    return await run_off_loop(len(request.tools) * LARGE, agent_tools.with_foreign, request.tools)


class PendingCalls:
    """Who is waited for in one turn, and what they have said."""

    def __init__(self, agent: Agent, request: TurnRequest, open_calls: Sequence[Call], tools: ToolRegistry) -> None:
        self.tools = tools  # what the model is offered
        self.approvals: dict[str, Approval] = {}  # what was decided
        self._agent = agent
        self._session_id = request.session_id
        self._user_id = request.user_id
        self._caller_tools = {tool.name for tool in request.tools}
        self._caller_tools |= {call.name for call in open_calls if call.name not in agent.tools}

    @property
    def tool_session(self) -> ToolSession:
        return self._agent.tool_session(self._session_id, self._user_id)

    def reason_for(self, call: Call) -> PendingReason | None:
        """Whom a call waits for; nothing, if it can be run or is not in order."""
        if not isinstance(call, ToolUseBlock) or self.tools.problems(call.name, call.input):
            return None
        if call.name in self._caller_tools:
            return "caller"
        if self._agent.pause_for_approval and answer_schema(call, self.tools) is not None:
            return "input"
        lacks_decision = self._agent.pause_for_approval and call.id not in self.approvals
        return "approval" if lacks_decision and requires_approval(call, self.tools, self.tool_session) else None

    def filter_pending(self, calls: Iterable[Call]) -> tuple[PendingCall, ...]:
        """Those of the calls that wait."""
        reasons = [(call, self.reason_for(call)) for call in calls if isinstance(call, ToolUseBlock)]
        return tuple(self._to_pending(call, reason) for call, reason in reasons if reason is not None)

    def _to_pending(self, call: ToolUseBlock, reason: PendingReason) -> PendingCall:
        schema = answer_schema(call, self.tools) if reason == "input" else None
        return PendingCall(call.id, call.name, call.input, reason, schema)


def check_answers(
    request: TurnRequest, pending: Mapping[str, PendingCall], history: Sequence[Message], tools: ToolRegistry
) -> None:
    """Refuse what is said about calls that do not wait for it."""
    answered_ids: set[str] = set()
    answers: list[tuple[str, bool]] = [
        *((answer.tool_use_id, False) for answer in request.answers),
        *((approval.call_id, True) for approval in request.approvals),
    ]
    for call_id, is_approval in answers:
        if call_id in answered_ids:
            raise _conflict_error(call_id, "it is answered twice")
        answered_ids.add(call_id)
        call = pending.get(call_id)
        if call is None:
            raise _not_pending_error(call_id, history)
        if (call.reason == "approval") != is_approval:
            raise _unknown_call_error(call_id, "it waits for a result" if is_approval else "it waits for a consent")
    for answer in request.answers:
        _check_content(answer)
    for approval in request.approvals:
        name, edited_input = pending[approval.call_id].name, approval.edited_input
        if edited_input is not None and (problems := tools.problems(name, edited_input)):
            raise ToolInputError(name, problems)


def _check_content(answer: ToolResultBlock) -> None:
    for block in answer.content:
        if type(block) not in RESULT_BLOCKS:
            raise FormatError(f"a result cannot hold a {block.type} block", where=f"answer to {answer.tool_use_id}")


def _not_pending_error(call_id: str, history: Sequence[Message]) -> ConflictError | FormatError:
    if call_id in _result_ids(history):
        return _conflict_error(call_id, "it has its result")
    if any(call.id == call_id for message in history for _, call in calls_of(message)):
        return _conflict_error(call_id, "it was given up when the conversation went on")
    return _unknown_call_error(call_id, "there is no such call")


def _conflict_error(call_id: str, text: str) -> ConflictError:
    return ConflictError(text, where=f"call {call_id}", remedy="Say it as a new message", code="already_answered")


def _unknown_call_error(call_id: str, text: str) -> FormatError:
    return FormatError(text, where=f"call {call_id}", code="unknown_tool_use")
