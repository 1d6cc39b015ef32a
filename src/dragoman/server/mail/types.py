"""What is said about letters over HTTP. The one rule: a letter here has ``***`` in place of what is sensitive."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from starlette.responses import Response

from dragoman.ids import name_from_id
from dragoman.letters import write_letter
from dragoman.letters.records import DeadLetter, LetterState, StoredLetter
from dragoman.mail import Mail
from dragoman.mail.seen import redact_invalid
from dragoman.mail.stored_letter import to_masked
from dragoman.redaction import Redactor
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.responses import large_json_response
from dragoman.store.mailbox.mail_store import LetterStatus

_REDACTOR: Final = Redactor()
JsonObject = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


class LetterResponse(msgspec.Struct, frozen=True, kw_only=True):
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
    leased_until: datetime | None = None  # somebody has it; if that is over, it is free
    retry_at: datetime | None = None  # it failed, and is tried again then
    error_class: str | None = None  # of its last failure
    waits_for: tuple[str, ...] = ()  # tasks that have not succeeded
    session_id: str | None = None
    turn_id: str | None = None
    letter: JsonObject


class Letters(msgspec.Struct, frozen=True, kw_only=True):
    """Letters: those of a task in the order in which they were taken, those of a mailbox the newest first."""

    letters: list[LetterResponse]
    has_more: bool = False  # there are more: beyond the limit, or because this page is as large as one may be
    cursor: str | None = None  # where the next page begins


class DeadLetterResponse(msgspec.Struct, frozen=True, kw_only=True):
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


class DeadLetterDetail(DeadLetterResponse, frozen=True, kw_only=True):
    """The same, with what came as a text."""

    raw: str | None  # without secrets; none where nothing could be kept
    raw_bytes: int  # how much came
    is_changed: bool  # secrets were taken out, it was cut, or it is no text


def to_letter_response(status: LetterStatus) -> LetterResponse:
    """A letter as its team sees it."""
    stored = status.letter
    return LetterResponse(
        letter_id=stored.letter_id,
        recipient_id=stored.recipient_id,
        sender_id=stored.sender_id,
        task_id=stored.task_id,
        type=stored.type,
        state=status.state,
        attempts=status.attempts,
        taken_at=stored.created_at,
        ended_at=status.ended_at,
        leased_until=status.leased_until,
        retry_at=status.retry_at,
        error_class=status.error_class,
        waits_for=status.waits_for,
        session_id=None if stored.session_id is None else name_from_id(stored.session_id),
        turn_id=stored.turn_id,
        letter=encode_masked(stored, status.attempts),
    )


async def letters_response(statuses: list[LetterStatus], cursor: str | None) -> Response:
    """A page of letters, and where the next one begins."""
    size = sum(len(one.letter.text) for one in statuses)

    def make() -> Letters:
        return Letters(
            letters=[to_letter_response(one) for one in statuses], has_more=cursor is not None, cursor=cursor
        )

    return await large_json_response(size, make)


def invalid_cursor_error() -> ApiError:
    """The refusal of a cursor that no page of letters had."""
    return ApiError(400, "invalid_cursor", "The cursor is not one of this list. Begin again without one.")


def encode_masked(stored: StoredLetter, attempts: int) -> msgspec.Raw:
    """A letter as JSON, with its secrets masked and the retries of so many attempts counted."""
    return msgspec.Raw(write_letter(to_masked(stored, attempts)))


def to_dead_letter_response(dead: DeadLetter) -> DeadLetterResponse:
    """A dead letter as its team sees it; never its bytes."""
    return DeadLetterResponse(
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


def to_dead_letter_detail(dead: DeadLetter, mail: Mail) -> DeadLetterDetail:
    """A dead letter with what came, as a text without secrets."""
    fields = msgspec.structs.asdict(to_dead_letter_response(dead))
    raw = mail.get_raw(dead)
    if raw is None:
        return DeadLetterDetail(**fields, raw=None, raw_bytes=0, is_changed=False)
    redacted = redact_invalid(raw, _REDACTOR)
    return DeadLetterDetail(**fields, raw=redacted.text, raw_bytes=redacted.size, is_changed=redacted.is_changed)
