"""Calls that wait for the caller or for a person: calls of the caller's tools, and calls to approve or to answer.

A turn whose answer has such a call ends. The answer to the call starts another turn, possibly in another process; the
only state in between is the stored history. Of the open calls of the last answer:

    caller      the agent does not have the tool, so the caller runs it
    input       the tool asks the user a question
    approval    the tool requires approval
    none        a crash interrupted the call; it is not run again

Invariant: a call gets one result, from the party that it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dragoman.errors import ConflictError, FormatError, ToolInputError
from dragoman.message import Message, ToolResultBlock, ToolUseBlock
from dragoman.rules import RESULT_BLOCKS, Call, calls_of
from dragoman.tools import Approval, ToolRegistry, ToolSession, answer_schema, requires_approval
from dragoman.turn.config import AgentConfig
from dragoman.turn.services import AgentServices
from dragoman.turn.types import PendingCall, PendingReason, TurnRequest


class PendingCalls:
    """Which calls of one turn wait, and for whom."""

    def __init__(
        self,
        services: AgentServices,
        config: AgentConfig,
        request: TurnRequest,
        open_calls: Sequence[Call],
        tools: ToolRegistry,
    ) -> None:
        self.tools = tools  # that the model is offered
        self.open_calls = open_calls  # of an earlier turn
        self.approvals: dict[str, Approval] = {}  # by call
        self._services = services
        self._config = config
        self._request = request
        self._caller_tools = {tool.name for tool in request.tools}
        self._caller_tools |= {call.name for call in open_calls if call.name not in config.tools}

    @property
    def tool_session(self) -> ToolSession:
        return self._services.tool_session(self._config, self._request.session_id, self._request.user_id)

    def reason_for(self, call: Call) -> PendingReason | None:
        """Why a call waits; none if it can be run, or is invalid."""
        if not isinstance(call, ToolUseBlock) or self.tools.problems(call.name, call.input):
            return None
        if call.name in self._caller_tools:
            return "caller"
        if not self._config.pause_for_approval:
            return None
        if answer_schema(call, self.tools) is not None:
            return "input"
        is_undecided = call.id not in self.approvals
        return "approval" if is_undecided and requires_approval(call, self.tools, self.tool_session) else None

    def filter_pending(self, calls: Iterable[Call]) -> tuple[PendingCall, ...]:
        """The calls that wait."""
        reasons = [(call, self.reason_for(call)) for call in calls if isinstance(call, ToolUseBlock)]
        return tuple(self._to_pending(call, reason) for call, reason in reasons if reason is not None)

    def _to_pending(self, call: ToolUseBlock, reason: PendingReason) -> PendingCall:
        schema = answer_schema(call, self.tools) if reason == "input" else None
        return PendingCall(call.id, call.name, call.input, reason, schema)

    def check_answers(self, history: Sequence[Message]) -> None:
        """Check the answers and approvals of the request, and keep the approvals.

        Raises ``FormatError`` for an unknown call and ``ConflictError`` for a call that has its result.
        """
        request = self._request
        pending = {call.call_id: call for call in self.filter_pending(self.open_calls)}
        for call_id, is_approval in _answers_by_call(request).items():
            call = pending.get(call_id)
            if call is None:
                raise _not_pending_error(call_id, history)
            if (call.reason == "approval") != is_approval:
                expected = "a result" if is_approval else "an approval"
                raise _unknown_call_error(call_id, f"the call waits for {expected}")
        for answer in request.answers:
            _check_content(answer)
        for approval in request.approvals:
            self._check_edited_input(pending[approval.call_id].name, approval)
        self.approvals.update((approval.call_id, approval) for approval in request.approvals)

    def _check_edited_input(self, name: str, approval: Approval) -> None:
        edited_input = approval.edited_input
        if edited_input is not None and (problems := self.tools.problems(name, edited_input)):
            raise ToolInputError(name, problems)


def result_ids(history: Iterable[Message]) -> set[str]:
    """The ids of the calls that have a result."""
    return {block.tool_use_id for message in history for block in message.content if isinstance(block, ToolResultBlock)}


def _answers_by_call(request: TurnRequest) -> Mapping[str, bool]:
    """The ids of the calls that a request answers, and whether the answer is an approval."""
    answered: dict[str, bool] = {}
    for call_id, is_approval in (
        *((answer.tool_use_id, False) for answer in request.answers),
        *((approval.call_id, True) for approval in request.approvals),
    ):
        if call_id in answered:
            raise _conflict_error(call_id, "the request answers the call twice")
        answered[call_id] = is_approval
    return answered


def _check_content(answer: ToolResultBlock) -> None:
    for block in answer.content:
        if type(block) not in RESULT_BLOCKS:
            where = f"answer to {answer.tool_use_id}"
            raise FormatError(f"a tool result cannot have a {block.type} block", where=where)


def _not_pending_error(call_id: str, history: Sequence[Message]) -> ConflictError | FormatError:
    if call_id in result_ids(history):
        return _conflict_error(call_id, "the call has its result")
    if any(call.id == call_id for message in history for _, call in calls_of(message)):
        return _conflict_error(call_id, "the call was cancelled by a later message")
    return _unknown_call_error(call_id, "there is no such call")


def _conflict_error(call_id: str, text: str) -> ConflictError:
    return ConflictError(text, where=f"call {call_id}", remedy="Send a new message instead", code="already_answered")


def _unknown_call_error(call_id: str, text: str) -> FormatError:
    return FormatError(text, where=f"call {call_id}", code="unknown_tool_use")
