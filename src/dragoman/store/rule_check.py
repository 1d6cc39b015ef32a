"""Strict appends: reject messages that violate a rule, and propose repaired ones.

    await store.append(session_id, messages, strict=True)     or ``open_store(url, strict=True)`` for every append

The check covers the appended messages, and whether their results belong to calls of the session without a result. Open
calls are no violation: a later message may answer them. It reads rows by key, so its cost does not depend on the length
of the session; only the proposal reads the whole history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dragoman.errors import RuleViolationError
from dragoman.message import Message
from dragoman.repair import Action, repair
from dragoman.rules import Violation, calls_of, check, results_of

if TYPE_CHECKING:
    from dragoman.store.store import Store
    from dragoman.store.tool_call_rows import CallInfo

# Rules about other messages: the first two are looked up; readers of a history check the others.
_HISTORY_RULES: Final = ("result-has-call", "one-result-per-call", "call-is-answered", "partial-is-last", "one-session")


async def reject_violations(
    store: Store, session_id: str, messages: Sequence[Message], *, is_new: bool = False
) -> None:
    """``RuleViolationError`` if adding these messages would break a rule; ``is_new``: to a session without others."""
    breaches = [breach for breach in check(messages) if breach.rule not in _HISTORY_RULES]
    breaches += await _find_invalid_results(store, session_id, messages, is_new=is_new)
    if breaches:
        proposal, actions = await _propose_repair(store, session_id, messages, is_new=is_new)
        raise RuleViolationError(tuple(breaches), proposal, actions, where=f"session {session_id}")


async def _find_invalid_results(
    store: Store, session_id: str, messages: Sequence[Message], *, is_new: bool
) -> list[Violation]:
    """Results without a call, and second results of a call."""
    call_ids = [result.tool_use_id for message in messages for _, result in results_of(message)]
    calls = {} if is_new else await store.find_calls(session_id, list(dict.fromkeys(call_ids)))
    new_calls: set[str] = set()
    result_ids: set[str] = set()
    breaches: list[Violation] = []
    for index, message in enumerate(messages):
        for block_index, result in results_of(message):
            call_id, path = result.tool_use_id, f"$[{index}].content[{block_index}]"
            if call_id not in new_calls and call_id not in calls:
                what = f"no call before it has the id {call_id!r}"
                breaches.append(Violation("result-has-call", path, what, message.id))
            elif call_id in result_ids or await _has_other_result(store, session_id, message, calls, call_id):
                what = f"the call {call_id!r} has its result already"
                breaches.append(Violation("one-result-per-call", path, what, message.id))
            result_ids.add(call_id)
        new_calls.update(call.id for _, call in calls_of(message))
    return breaches


async def _has_other_result(
    store: Store, session_id: str, message: Message, calls: dict[str, CallInfo], call_id: str
) -> bool:
    """Return whether another message has answered the call; the same message may be appended again."""
    call = calls.get(call_id)
    if call is None or call.result_seq is None:
        return False
    rows = await store.read(
        session_id, call.result_seq - 1, 1
    )  # a fork may end before it or have another message there
    messages = [row.message for row in rows if any(one.tool_use_id == call_id for _, one in results_of(row.message))]
    return any(other.id != message.id for other in messages)


async def _propose_repair(
    store: Store, session_id: str, messages: Sequence[Message], *, is_new: bool
) -> tuple[tuple[Message, ...], tuple[Action, ...]]:
    """Return repaired messages that could be appended instead, and the repairs."""
    stored = [] if is_new else [row.message async for row in store.history(session_id)]
    stored_ids = {message.id for message in stored}
    result = repair([*stored, *messages])
    last = max((place for place, message in enumerate(result.messages) if message.id in stored_ids), default=-1)
    new_ids = {message.id for message in messages}
    return result.messages[last + 1 :], tuple(action for action in result.actions if action.message_id in new_ids)
