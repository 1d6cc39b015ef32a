"""Everything behind a letter, in one answer: the conversation, its messages, tool calls, spend, evaluations, and the
other letters of its task.

    graph = await letter_graph(mail, "ARCH", letter_id)

The conversation is in it only if ``find_session`` returns it for the id that the letter names. The letter itself is of
the mail that was asked.
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

_MESSAGES: Final = 50  # of a session whose turn is not known
_LETTERS: Final = 200
FindSession = Callable[[str], Awaitable["Session | None"]]


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """What was consumed, and what it cost."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)  # of the calls that have a price
    unpriced: int = 0  # calls for which no price was known


class LetterGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A letter, and everything behind it."""

    letter: Any  # a store's Standing
    session: Any = None  # a store's Session
    messages: Sequence[Any] = ()  # a store's rows
    tool_calls: Sequence[Any] = ()
    spend: Spend | None = None
    evaluations: Sequence[Any] = ()
    thread: Sequence[Any] = ()  # the letters of its task, this one among them


async def letter_graph(
    mail: Mail, recipient: str, letter_id: str, find_session: FindSession | None = None
) -> LetterGraph:
    """A letter, and everything behind it; ``UnknownLetterError`` if there is none.

    ``find_session`` returns the session of the id that the letter names, or none if the caller must not see it.
    Without it, every session of the store is found.
    """
    matches = await mail.letters(recipient_id=recipient, letter_id=letter_id, limit=1)
    if not matches:
        raise UnknownLetterError("there is no such letter", where=f"letter {letter_id} to {recipient}")
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
    except UnknownSessionError:  # its sender says so, or it was deleted
        return None


async def _read_messages(mail: Mail, session: Session, turn_id: str | None) -> list[Row]:
    """The messages of a turn, or the newest ones where that is not known."""
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
        cost_usd=sum(costs, Decimal(0)),
        unpriced=len(usages) - len(costs),
    )
