"""Letters as they are kept and carried: values that a store, a mailbox and a transport hand to each other.

``Posted`` is a letter ready to be kept: its text with ``***`` in place of everything sensitive, what is needed to find
and order it, and its sensitive values, sealed. ``Handed`` is one that somebody has for a while. The one rule: no value
here holds a sensitive input that can be read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec


def personal_team(user_id: str) -> str:
    """What the mail of a person who is in no team is kept under: theirs alone, and gone with them."""
    return f"user:{user_id}"


class SealedValue(msgspec.Struct, frozen=True):
    """A sensitive input, encrypted."""

    input_id: str
    key_id: str  # which key opens it
    box: bytes


class StoredLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter as it is kept."""

    recipient_id: str
    team_id: str = ""  # "" where there is no team
    letter_id: str
    sender_id: str
    task_id: str
    type: str
    text: str  # its JSON, with *** in place of what is sensitive
    fingerprint: bytes  # of what makes it this letter and no other
    status: str | None = None  # of a task_result
    needs: tuple[str, ...] = ()  # tasks that have to succeed before it is handed out
    sealed: tuple[SealedValue, ...] = ()
    trace_id: str | None = None
    session_id: str | None = None  # what it came from
    message_id: str | None = None
    turn_id: str | None = None
    user_id: str | None = None
    created_at: datetime | None = None  # when it was taken; None before


LetterState = Literal["ready", "behind", "held", "done", "dead", "away"]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """That a letter was taken, and is safe."""

    letter_id: str
    recipient_id: str
    is_new: bool  # false if the same letter had been taken before
    state: LetterState  # away: on its way by a transport


class LeasedLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter that somebody has, until then."""

    letter: StoredLetter
    number: int  # its place in the mailbox
    attempts: int  # the how-manieth time it is handed out
    lease: str
    until: datetime


class FailureOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a letter that could not be handled."""

    retry_at: datetime | None  # None if it is given up
    attempts: int
    dead_letter_id: str | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter that nobody will get unless it is sent again, or something that was no letter."""

    id: str
    recipient_id: str  # "" where nobody can tell
    team_id: str = ""
    letter_id: str | None = None
    sender_id: str | None = None
    task_id: str | None = None
    reason: str  # a code
    error: str  # what went wrong, without secrets
    user_id: str | None = None
    died_at: datetime
    resent_at: datetime | None = None
    key_id: str | None = None  # of the key that raw is sealed with; None if raw can be read
    raw: bytes | None = None


class MailboxCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much is in a mailbox."""

    recipient_id: str
    team_id: str = ""
    ready: int = 0  # to be handed out now
    leased: int = 0  # in somebody's hands
    waiting: int = 0  # to be tried again later
    behind: int = 0  # behind another letter of the same task
    held: int = 0  # until other tasks have succeeded
    away: int = 0  # on its way by a transport
    done: int = 0
    dead: int = 0  # and not sent again
    retries: int = 0  # hand-outs beyond the first
    oldest_at: datetime | None = None  # of what is not done
    newest_at: datetime | None = None  # when the last one arrived
