"""What is said about letters over HTTP. The one rule: a letter here has ``***`` in place of what is sensitive."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from dragoman.letters import write_letter
from dragoman.letters.kept import DeadLetter, LetterState, Posted
from dragoman.mail.posting import shown
from dragoman.store.mail import Standing


class LetterTold(msgspec.Struct, frozen=True, kw_only=True):
    """A letter, and where it stands."""

    letter_id: str
    recipient_id: str
    sender_id: str
    task_id: str
    type: str
    state: LetterState
    attempts: int
    taken_at: datetime | None
    ended_at: datetime | None = None
    session_id: str | None = None
    turn_id: str | None = None
    letter: dict[str, Any]


class Letters(msgspec.Struct, frozen=True, kw_only=True):
    """Letters: those of a task in the order in which they were taken, those of a mailbox the newest first."""

    letters: list[LetterTold]


class DeadTold(msgspec.Struct, frozen=True, kw_only=True):
    """Something that nobody will get unless it is sent again."""

    id: str
    reason: str  # a code
    error: str  # what went wrong, without secrets
    died_at: datetime
    recipient_id: str | None
    sender_id: str | None
    task_id: str | None
    letter_id: str | None
    resent_at: datetime | None = None


def letter_told(standing: Standing) -> LetterTold:
    """A letter as its team sees it."""
    posted = standing.posted
    return LetterTold(
        letter_id=posted.letter_id,
        recipient_id=posted.recipient_id,
        sender_id=posted.sender_id,
        task_id=posted.task_id,
        type=posted.type,
        state=standing.state,
        attempts=standing.attempts,
        taken_at=posted.created_at,
        ended_at=standing.ended_at,
        session_id=posted.session_id,
        turn_id=posted.turn_id,
        letter=plain_letter(posted),
    )


def plain_letter(posted: Posted) -> dict[str, Any]:
    """A letter as JSON, with its secrets masked."""
    plain: dict[str, Any] = msgspec.json.decode(write_letter(shown(posted)))
    return plain


def dead_told(dead: DeadLetter) -> DeadTold:
    """A dead letter as its team sees it; never its bytes."""
    return DeadTold(
        id=dead.id,
        reason=dead.reason,
        error=dead.error,
        died_at=dead.died_at,
        recipient_id=dead.recipient_id or None,
        sender_id=dead.sender_id,
        task_id=dead.task_id,
        letter_id=dead.letter_id,
        resent_at=dead.resent_at,
    )
