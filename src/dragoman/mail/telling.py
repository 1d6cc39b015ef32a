"""Letters about letters: to whoever sent something that is none, and to whoever is asked when all else failed.

They come from ``POSTMASTER``. The one rule: nobody is told about a letter of the postmaster's own, so that there is no
circle.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Final

from dragoman.letters import ErrorLetter, Hints, error_letter
from dragoman.letters.kept import Posted

POSTMASTER: Final = "POSTMASTER"
GIVEN_UP: Final = "DELIVERY_FAILED"
_NO_TASK: Final = "UNKNOWN"


def refusal(hints: Hints, code: str, problem: str, name: str, now: datetime) -> ErrorLetter | None:
    """What the sender of something that is no letter is told, if it can be told who that is."""
    if hints.sender_id is None or hints.sender_id == POSTMASTER or hints.type == "error":
        return None
    details = {"recipient_id": hints.recipient_id, "message_id": hints.message_id}
    return error_letter(
        sender_id=POSTMASTER,
        recipient_id=hints.sender_id,
        task_id=hints.task_id or _NO_TASK,
        timestamp=now,
        code=code.upper(),
        message=f"A letter could not be taken: {problem}",
        details={key: value for key, value in details.items() if value is not None},
        retryable=False,
        trace_id=hints.trace_id,
        message_id=f"refused:{name}",
    )


def escalation(
    posted: Posted, to: str, *, error_class: str, error: str, attempts: int, is_dead: bool, now: datetime
) -> ErrorLetter | None:
    """What somebody is told when a letter was given up, or went wrong in a way that cannot wait."""
    if posted.sender_id == POSTMASTER:
        return None
    details: dict[str, Any] = {
        "letter_id": posted.letter_id,
        "type": posted.type,
        "sender_id": posted.sender_id,
        "recipient_id": posted.recipient_id,
        "attempts": attempts,
        "error_class": error_class,
    }
    what = "was given up" if is_dead else "failed, and is tried again"
    return error_letter(
        sender_id=POSTMASTER,
        recipient_id=to,
        task_id=posted.task_id,
        timestamp=now,
        code=GIVEN_UP,
        message=f"A letter from {posted.sender_id} to {posted.recipient_id} {what}: {error}",
        details=details,
        retryable=False,
        suggested_actions=["resend"] if is_dead else [],
        trace_id=posted.trace_id,
        message_id=f"escalation:{_name(posted, str(attempts), str(is_dead), str(now.timestamp()))}",
    )


def _name(posted: Posted, *when: str) -> str:
    said = "\n".join((posted.team_id, posted.recipient_id, posted.letter_id, *when))
    return hashlib.sha256(said.encode()).hexdigest()[:40]
