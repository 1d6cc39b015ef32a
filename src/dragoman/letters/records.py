"""Stored letters: values that the store, mailboxes and transports exchange.

A ``StoredLetter`` has the text of a letter with ``***`` in place of secrets, the fields for lookup and order, and the
encrypted secrets. A ``LeasedLetter`` is one that a recipient holds for a limited time. Invariant: no value contains a
secret in plain text.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec


def personal_team(user_id: str) -> str:
    """The team of a user without a team. Its mail belongs to this user only and is deleted with them."""
    return f"user:{user_id}"


class SealedValue(msgspec.Struct, frozen=True):
    """An encrypted sensitive input."""

    input_id: str
    key_id: str  # the key for decryption
    box: bytes


class StoredLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter in the store."""

    recipient_id: str
    team_id: str = ""  # "" without a team
    letter_id: str
    sender_id: str
    task_id: str
    type: str
    text: str  # its JSON with *** in place of secrets
    fingerprint: bytes  # hash over the identifying fields
    status: str | None = None  # of a task_result
    needs: tuple[str, ...] = ()  # tasks that must succeed before delivery
    sealed: tuple[SealedValue, ...] = ()
    trace_id: str | None = None
    session_id: str | None = None  # the session it belongs to
    message_id: str | None = None
    turn_id: str | None = None
    user_id: str | None = None
    created_at: datetime | None = None  # time of acceptance; None before


LetterState = Literal["ready", "behind", "held", "done", "dead", "away"]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation that a letter is stored."""

    letter_id: str
    recipient_id: str
    is_new: bool  # false if the letter was already stored
    state: LetterState  # away: in transport


class LeasedLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter that a recipient holds until the lease ends."""

    letter: StoredLetter
    number: int  # its position in the mailbox
    attempts: int  # number of deliveries, this one included
    lease: str
    until: datetime


class FailureOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a failed delivery."""

    retry_at: datetime | None  # None if there is no further retry
    attempts: int
    dead_letter_id: str | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter that is not delivered unless it is sent again, or input that is not a letter."""

    id: str
    recipient_id: str  # "" if unknown
    team_id: str = ""
    letter_id: str | None = None
    sender_id: str | None = None
    task_id: str | None = None
    reason: str  # an error code
    error: str  # the error text without secrets
    user_id: str | None = None
    died_at: datetime
    resent_at: datetime | None = None
    key_id: str | None = None  # of the key that encrypts raw; None if raw is plain
    raw: bytes | None = None


class MailboxCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of letters of a mailbox by state."""

    recipient_id: str
    team_id: str = ""
    ready: int = 0  # available for delivery
    leased: int = 0  # leased by a recipient
    waiting: int = 0  # waiting for a retry
    behind: int = 0  # behind another letter of the same task
    held: int = 0  # waiting for other tasks
    away: int = 0  # in transport
    done: int = 0
    dead: int = 0  # not sent again
    retries: int = 0  # deliveries beyond the first
    oldest_at: datetime | None = None  # of letters that are not done
    newest_at: datetime | None = None  # time of the last arrival
