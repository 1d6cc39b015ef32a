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
from dragoman.offload import LARGE, off_loop
from dragoman.rules import IN_RESULT, Call, calls_of
from dragoman.tools import Approval, ToolRegistry, Workbench, answer_schema, needs_consent
from dragoman.turn.late import is_late_note
from dragoman.turn.values import Asked, Pending, Why

if TYPE_CHECKING:
    from dragoman.store import Store
    from dragoman.turn.agent import Agent


def calling(history: Sequence[Message]) -> Message | None:
    """The answer whose calls may still be answered: the last one, if nobody has spoken since."""
    for message in reversed(history):
        if message.role is not Role.TOOL and not is_late_note(message):
            is_complete = message.metadata.status is MessageStatus.COMPLETE
            return message if is_complete and any(calls_of(message)) else None
    return None


def calls_in(message: Message | None) -> list[Call]:
    """What a message asks for."""
    return [] if message is None else [call for _, call in calls_of(message)]


async def left_open(store: Store, session_id: str, history: Sequence[Message]) -> list[Call]:
    """The calls that an earlier turn has left without a result, and nobody has given up."""
    asked = calls_in(calling(history))
    settled = _results(history) if asked else set()
    if settled.issuperset(call.id for call in asked):
        return []
    settled.update(call.id for call in await store.tool_calls(session_id, "cancelled"))
    return [call for call in asked if call.id not in settled]


def _results(history: Iterable[Message]) -> set[str]:
    """The calls that have a result."""
    return {block.tool_use_id for one in history for block in one.content if isinstance(block, ToolResultBlock)}


async def offered_tools(agent: Agent, asked: Asked) -> ToolRegistry:
    """The tools that the model is offered. Those of the caller come with each run, and are compiled in a thread."""
    own = agent.tools if asked.may_use_tools else ToolRegistry()
    return await off_loop(len(asked.tools) * LARGE, own.beside, asked.tools)


class Waiting:
    """Who is waited for in one turn, and what they have said."""

    def __init__(self, agent: Agent, asked: Asked, left: Sequence[Call], tools: ToolRegistry) -> None:
        self.tools = tools  # what the model is offered
        self.approvals: dict[str, Approval] = {}  # what was decided
        self._agent = agent
        self._session_id = asked.session_id
        self._user_id = asked.user_id
        self._of_caller = {tool.name for tool in asked.tools}
        self._of_caller |= {call.name for call in left if call.name not in agent.tools}

    @property
    def bench(self) -> Workbench:
        return self._agent.bench(self._session_id, self._user_id)

    def why(self, call: Call) -> Why | None:
        """Whom a call waits for; nothing, if it can be run or is not in order."""
        if not isinstance(call, ToolUseBlock) or self.tools.problems(call.name, call.input):
            return None
        if call.name in self._of_caller:
            return "caller"
        if self._agent.parks and answer_schema(call, self.tools) is not None:
            return "input"
        is_undecided = self._agent.parks and call.id not in self.approvals
        return "approval" if is_undecided and needs_consent(call, self.tools, self.bench) else None

    def pending(self, calls: Iterable[Call]) -> tuple[Pending, ...]:
        """Those of the calls that wait."""
        found = [(call, self.why(call)) for call in calls if isinstance(call, ToolUseBlock)]
        return tuple(self._pending(call, why) for call, why in found if why is not None)

    def _pending(self, call: ToolUseBlock, why: Why) -> Pending:
        schema = answer_schema(call, self.tools) if why == "input" else None
        return Pending(call.id, call.name, call.input, why, schema)


def check(asked: Asked, waiting: Mapping[str, Pending], history: Sequence[Message], tools: ToolRegistry) -> None:
    """Refuse what is said about calls that do not wait for it."""
    said: set[str] = set()
    told: list[tuple[str, bool]] = [
        *((answer.tool_use_id, False) for answer in asked.answers),
        *((approval.call_id, True) for approval in asked.approvals),
    ]
    for call_id, is_approval in told:
        if call_id in said:
            raise _already_answered(call_id, "it is answered twice")
        said.add(call_id)
        found = waiting.get(call_id)
        if found is None:
            raise _not_waiting(call_id, history)
        if (found.why == "approval") != is_approval:
            raise _unknown(call_id, "it waits for a result" if is_approval else "it waits for a consent")
    for answer in asked.answers:
        _check_content(answer)
    for approval in asked.approvals:
        name, edited = waiting[approval.call_id].name, approval.edited_input
        if edited is not None and (problems := tools.problems(name, edited)):
            raise ToolInputError(name, problems)


def _check_content(answer: ToolResultBlock) -> None:
    for block in answer.content:
        if type(block) not in IN_RESULT:
            raise FormatError(f"a result cannot hold a {block.type} block", where=f"answer to {answer.tool_use_id}")


def _not_waiting(call_id: str, history: Sequence[Message]) -> ConflictError | FormatError:
    if call_id in _results(history):
        return _already_answered(call_id, "it has its result")
    if any(call.id == call_id for message in history for _, call in calls_of(message)):
        return _already_answered(call_id, "it was given up when the conversation went on")
    return _unknown(call_id, "there is no such call")


def _already_answered(call_id: str, what: str) -> ConflictError:
    return ConflictError(what, where=f"call {call_id}", remedy="Say it as a new message", code="already_answered")


def _unknown(call_id: str, what: str) -> FormatError:
    return FormatError(what, where=f"call {call_id}", code="unknown_tool_use")
