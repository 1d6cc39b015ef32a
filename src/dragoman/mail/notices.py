"""Error letters of the mail system: to the sender of an invalid letter, and to the escalation address.

They are sent by ``POSTMASTER``. A letter of ``POSTMASTER`` causes no notice, so notices cannot loop.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Final

from dragoman.letters import ErrorLetter, Hints, error_letter
from dragoman.letters.records import StoredLetter

POSTMASTER: Final = "POSTMASTER"
DELIVERY_FAILED: Final = "DELIVERY_FAILED"
_NO_TASK: Final = "UNKNOWN"


def make_rejection_notice(hints: Hints, code: str, problem: str, name: str, now: datetime) -> ErrorLetter | None:
    """Return the notice to the sender of an invalid letter, if the sender is known."""
    if hints.sender_id is None or hints.sender_id == POSTMASTER or hints.type == "error":
        return None
    details = {"recipient_id": hints.recipient_id, "message_id": hints.message_id}
    return error_letter(
        sender_id=POSTMASTER,
        recipient_id=hints.sender_id,
        task_id=hints.task_id or _NO_TASK,
        timestamp=now,
        code=code.upper(),
        message=f"The letter was rejected: {problem}",
        details={key: value for key, value in details.items() if value is not None},
        retryable=False,
        trace_id=hints.trace_id,
        message_id=f"refused:{name}",
    )


def make_escalation(
    stored: StoredLetter, to: str, *, error_class: str, error: str, attempts: int, is_dead: bool, now: datetime
) -> ErrorLetter | None:
    """Return the notice about a letter that is undeliverable or failed critically."""
    if stored.sender_id == POSTMASTER:
        return None
    details: dict[str, Any] = {
        "letter_id": stored.letter_id,
        "type": stored.type,
        "sender_id": stored.sender_id,
        "recipient_id": stored.recipient_id,
        "attempts": attempts,
        "error_class": error_class,
    }
    outcome = "is undeliverable" if is_dead else "failed and is retried"
    return error_letter(
        sender_id=POSTMASTER,
        recipient_id=to,
        task_id=stored.task_id,
        timestamp=now,
        code=DELIVERY_FAILED,
        message=f"A letter from {stored.sender_id} to {stored.recipient_id} {outcome}: {error}",
        details=details,
        retryable=False,
        suggested_actions=["resend"] if is_dead else [],
        trace_id=stored.trace_id,
        message_id=f"escalation:{_make_notice_id(stored, str(attempts), str(is_dead), str(now.timestamp()))}",
    )


def _make_notice_id(stored: StoredLetter, *parts: str) -> str:
    text = "\n".join((stored.team_id, stored.recipient_id, stored.letter_id, *parts))
    return hashlib.sha256(text.encode()).hexdigest()[:40]
