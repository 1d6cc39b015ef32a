"""Strict appends: messages that break a rule are refused, with repaired ones offered in their place.

    await store.append(session_id, messages, strict=True)     or ``open_store(url, strict=True)`` for every append

What is checked are the messages that are added, and whether their results answer calls of the session that have no
result yet. Calls that stand open are no breach: what comes next may answer them. The check reads what it needs by key,
so it costs the same in a session of any length; only the offer of a refusal reads the whole history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dragoman.errors import BreachError
from dragoman.mending import Action, repair
from dragoman.message import Message
from dragoman.rules import Breach, calls_of, check, results_of

if TYPE_CHECKING:
    from dragoman.store.finding import Call
    from dragoman.store.store import Store

# What depends on the messages before and behind: the first two are looked up, the others are for who reads a history.
_BETWEEN: Final = ("result-has-call", "one-result-per-call", "call-is-answered", "partial-is-last", "one-session")


async def refuse_breaches(store: Store, session_id: str, messages: Sequence[Message]) -> None:
    """``BreachError`` if adding these messages would break a rule."""
    breaches = [breach for breach in check(messages) if breach.rule not in _BETWEEN]
    breaches += await _unfitting_results(store, session_id, messages)
    if breaches:
        offered, actions = await _offer(store, session_id, messages)
        raise BreachError(tuple(breaches), offered, actions, where=f"session {session_id}")


async def _unfitting_results(store: Store, session_id: str, messages: Sequence[Message]) -> list[Breach]:
    """Results without a call, and second results of a call."""
    wanted = [result.tool_use_id for message in messages for _, result in results_of(message)]
    known = await store.calls_of(session_id, list(dict.fromkeys(wanted)))
    called: set[str] = set()
    answered: set[str] = set()
    breaches: list[Breach] = []
    for index, message in enumerate(messages):
        for block_index, result in results_of(message):
            call_id, place = result.tool_use_id, f"$[{index}].content[{block_index}]"
            if call_id not in called and call_id not in known:
                what = f"no call before it has the id {call_id!r}"
                breaches.append(Breach("result-has-call", place, what, message.id))
            elif call_id in answered or await _is_answered_otherwise(store, session_id, message, known, call_id):
                what = f"the call {call_id!r} has its result already"
                breaches.append(Breach("one-result-per-call", place, what, message.id))
            answered.add(call_id)
        called.update(call.id for _, call in calls_of(message))
    return breaches


async def _is_answered_otherwise(
    store: Store, session_id: str, message: Message, known: dict[str, Call], call_id: str
) -> bool:
    """Whether another message than this one, which may come again, has answered the call."""
    call = known.get(call_id)
    if call is None or call.result_seq is None:
        return False
    rows = await store.read(session_id, call.result_seq - 1, 1)  # a fork may end before, or say something else there
    found = [row.message for row in rows if any(one.tool_use_id == call_id for _, one in results_of(row.message))]
    return any(one.id != message.id for one in found)


async def _offer(
    store: Store, session_id: str, messages: Sequence[Message]
) -> tuple[tuple[Message, ...], tuple[Action, ...]]:
    """What could be added in their place, and what was done to them."""
    stored = [row.message async for row in store.history(session_id)]
    there = {message.id for message in stored}
    repaired = repair([*stored, *messages])
    last = max((place for place, message in enumerate(repaired.messages) if message.id in there), default=-1)
    added = {message.id for message in messages}
    return repaired.messages[last + 1 :], tuple(one for one in repaired.actions if one.message_id in added)
