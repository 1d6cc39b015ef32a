"""A letter with its session, messages, tool calls, spend, evaluations, and the other letters of its task.

    graph = await letter_graph(mail, "ARCH", letter_id)

The session is included only if ``find_session`` returns it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import UnknownLetterError, UnknownSessionError

if TYPE_CHECKING:
    from dragoman.mail.mail import Mail
    from dragoman.store import Evaluation, Row, Session, ToolCall
    from dragoman.store.mailbox.mail_store import LetterStatus

_MESSAGES: Final = 50  # read if the turn is unknown
_LETTERS: Final = 200
FindSession = Callable[[str], Awaitable["Session | None"]]


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """Token usage and cost."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = Decimal(0)  # of priced calls; none if no call has a price
    unpriced: int = 0  # calls without a known price


class LetterGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A letter and its context."""

    letter: Any  # a store's Standing
    session: Any = None  # a store's Session
    messages: Sequence[Any] = ()  # a store's rows
    tool_calls: Sequence[Any] = ()
    spend: Spend | None = None
    evaluations: Sequence[Any] = ()
    thread: Sequence[Any] = ()  # the letters of its task, including this one


async def letter_graph(
    mail: Mail, recipient: str, letter_id: str, find_session: FindSession | None = None
) -> LetterGraph:
    """Return a letter and its context; ``UnknownLetterError`` if the letter does not exist.

    ``find_session`` returns the session of an id, or none if the caller has no access. The default finds every session
    of the store.
    """
    matches = await mail.letters(recipient_id=recipient, letter_id=letter_id, limit=1)
    if not matches:
        raise UnknownLetterError("the letter does not exist", where=f"letter {letter_id} to {recipient}")
    status: LetterStatus = matches[0]
    task_id = status.letter.task_id
    evaluations: list[Evaluation] = await mail.store.evaluations.find(task_id=task_id, team_id=mail.team_id)
    thread = await mail.thread(task_id, _LETTERS)
    session = await _find_session(mail, status.letter.session_id, find_session)
    if session is None:
        return LetterGraph(letter=status, evaluations=evaluations, thread=thread)
    rows = await _read_messages(mail, session, status.letter.turn_id)
    message_ids = {row.message.id for row in rows}
    calls: list[ToolCall] = [call for call in await mail.store.tool_calls(session.id) if call.message_id in message_ids]
    return LetterGraph(
        letter=status,
        session=session,
        messages=rows,
        tool_calls=calls,
        spend=_sum_spend(rows),
        evaluations=evaluations,
        thread=thread,
    )


async def _find_session(mail: Mail, session_id: str | None, find_session: FindSession | None) -> Session | None:
    if session_id is None:
        return None
    try:
        return await (find_session or mail.store.get_session)(session_id)
    except UnknownSessionError:  # deleted, or invented by the sender
        return None


async def _read_messages(mail: Mail, session: Session, turn_id: str | None) -> list[Row]:
    """Return the messages of a turn, or the newest ones if the turn is unknown."""
    if turn_id is not None:
        rows = [row async for row in mail.store.history(session.id) if row.message.metadata.run_id == turn_id]
        if rows:
            return rows
    return await mail.store.tail(session.id, _MESSAGES)


def _sum_spend(rows: Sequence[Row]) -> Spend:
    usages = [row.message.metadata.usage for row in rows if row.message.metadata.usage is not None]
    costs = [usage.amount_usd for usage in usages if usage.amount_usd is not None]
    return Spend(
        calls=len(usages),
        input_tokens=sum(
            usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens for usage in usages
        ),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cost_usd=sum(costs, Decimal(0)) if costs or not usages else None,
        unpriced=len(usages) - len(costs),
    )
