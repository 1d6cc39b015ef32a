"""What is said about letters over HTTP. The one rule: a letter here has ``***`` in place of what is sensitive."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from starlette.responses import Response

from dragoman.ids import name_from_id
from dragoman.letters import write_letter
from dragoman.letters.kept import DeadLetter, LetterState, Posted
from dragoman.mail import Mail
from dragoman.mail.posting import shown
from dragoman.mail.seen import seen
from dragoman.redaction import Redactor
from dragoman.server.answers import answer_large
from dragoman.server.refusing import Refusal
from dragoman.store.mail import Standing

_REDACTOR: Final = Redactor()
JsonObject = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


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
    leased_until: datetime | None = None  # somebody has it; if that is over, it is free
    retry_at: datetime | None = None  # it failed, and is tried again then
    error_class: str | None = None  # of its last failure
    waits_for: tuple[str, ...] = ()  # tasks that have not succeeded
    session_id: str | None = None
    turn_id: str | None = None
    letter: JsonObject


class Letters(msgspec.Struct, frozen=True, kw_only=True):
    """Letters: those of a task in the order in which they were taken, those of a mailbox the newest first."""

    letters: list[LetterTold]
    has_more: bool = False  # there are more: beyond the limit, or because this page is as large as one may be
    cursor: str | None = None  # where the next page begins


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


class DeadWhole(DeadTold, frozen=True, kw_only=True):
    """The same, with what came as a text."""

    raw: str | None  # without secrets; none where nothing could be kept
    raw_bytes: int  # how much came
    is_changed: bool  # secrets were taken out, it was cut, or it is no text


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
        leased_until=standing.leased_until,
        retry_at=standing.retry_at,
        error_class=standing.error_class,
        waits_for=standing.waits_for,
        session_id=None if posted.session_id is None else name_from_id(posted.session_id),
        turn_id=posted.turn_id,
        letter=plain_letter(posted, standing.attempts),
    )


async def answer_letters(found: list[Standing], cursor: str | None) -> Response:
    """A page of letters, and where the next one begins."""
    size = sum(len(one.posted.text) for one in found)

    def make() -> Letters:
        return Letters(letters=[letter_told(one) for one in found], has_more=cursor is not None, cursor=cursor)

    return await answer_large(size, make)


def invalid_cursor() -> Refusal:
    """The refusal of a cursor that no page of letters had."""
    return Refusal(400, "invalid_cursor", "The cursor is not one of this list. Begin again without one.")


def plain_letter(posted: Posted, attempts: int) -> msgspec.Raw:
    """A letter as JSON, with its secrets masked and the retries of so many attempts counted."""
    return msgspec.Raw(write_letter(shown(posted, attempts)))


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


def dead_whole(dead: DeadLetter, mail: Mail) -> DeadWhole:
    """A dead letter with what came, as a text without secrets."""
    told = msgspec.structs.asdict(dead_told(dead))
    raw = mail.raw_of(dead)
    if raw is None:
        return DeadWhole(**told, raw=None, raw_bytes=0, is_changed=False)
    made = seen(raw, _REDACTOR)
    return DeadWhole(**told, raw=made.text, raw_bytes=made.size, is_changed=made.is_changed)
