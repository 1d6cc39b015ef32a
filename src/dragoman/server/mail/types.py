"""Responses with letters, their pages, and the redaction of invalid letters.

Letters are read from the store in small slices, so that a request never holds much more than it returns. A page has at
least one letter, whatever its size.

Invariant: a letter in a response has ``***`` in place of secrets.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from starlette.responses import Response

from dragoman.errors import JsonError
from dragoman.ids import name_from_id
from dragoman.jsontext import read_json
from dragoman.letters import MASK, write_letter
from dragoman.letters.records import DeadLetter, LetterState, StoredLetter
from dragoman.mail import Mail
from dragoman.mail.dead_letters import get_raw
from dragoman.mail.stored_letter import to_masked
from dragoman.redaction import Redactor
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.responses import large_json_response
from dragoman.store.mailbox.mail_store import LetterStatus

PAGE_SIZE: Final = 4 * 1024 * 1024  # characters of the stored letters of a page
SLICE: Final = 16  # letters per read of the store
_REDACTOR: Final = Redactor()
_MAX_CHARS: Final = 20_000  # of a redacted text
_SECRET_START: Final = re.compile(r"inputs|default|sensitive", re.IGNORECASE)
_OMISSION: Final = "… [the rest is withheld: it is not JSON and may contain secrets]"
JsonObject = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
Item = TypeVar("Item")


class LetterResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A letter and its status."""

    letter_id: str
    recipient_id: str
    sender_id: str
    task_id: str
    type: str
    state: LetterState
    attempts: int
    taken_at: datetime | None
    ended_at: datetime | None = None
    leased_until: datetime | None = None  # end of the lease; the letter is available after it
    retry_at: datetime | None = None  # time of the next attempt after a failure
    error_class: str | None = None  # of the last failure
    waits_for: tuple[str, ...] = ()  # tasks that have not succeeded
    session_id: str | None = None
    turn_id: str | None = None
    letter: JsonObject


class Letters(msgspec.Struct, frozen=True, kw_only=True):
    """Letters: those of a task in the order of sending, those of a mailbox newest first."""

    letters: list[LetterResponse]
    has_more: bool = False  # the list continues, beyond the limit or the size of a page
    cursor: str | None = None  # start of the next page


class DeadLetterResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter."""

    id: str
    reason: str  # a code
    error: str  # without secrets
    died_at: datetime
    recipient_id: str | None
    sender_id: str | None
    task_id: str | None
    letter_id: str | None
    resent_at: datetime | None = None


class DeadLetterDetail(DeadLetterResponse, frozen=True, kw_only=True):
    """A dead letter with its bytes as text."""

    raw: str | None  # without secrets; none if the bytes were not stored
    raw_bytes: int  # size of the bytes
    is_changed: bool  # the text is redacted, truncated or not UTF-8


def to_letter_response(status: LetterStatus) -> LetterResponse:
    """Return the response of a letter."""
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
    """Return a page of letters."""
    size = sum(len(status.letter.text) for status in statuses)

    def make() -> Letters:
        letters = [to_letter_response(status) for status in statuses]
        return Letters(letters=letters, has_more=cursor is not None, cursor=cursor)

    return await large_json_response(size, make)


def invalid_cursor_error() -> ApiError:
    """Return the error of an invalid cursor."""
    return ApiError(400, "invalid_cursor", "The cursor does not belong to this list. Start again without a cursor.")


def encode_masked(stored: StoredLetter, attempts: int) -> msgspec.Raw:
    """Return a letter as JSON, with masked secrets and its number of retries."""
    return msgspec.Raw(write_letter(to_masked(stored, attempts)))


def to_dead_letter_response(dead: DeadLetter) -> DeadLetterResponse:
    """Return the response of a dead letter, without its bytes."""
    return DeadLetterResponse(**_dead_letter_fields(dead))


def to_dead_letter_detail(dead: DeadLetter, mail: Mail) -> DeadLetterDetail:
    """Return the response of a dead letter with its bytes as redacted text."""
    fields = _dead_letter_fields(dead)
    raw = get_raw(mail, dead)
    if raw is None:
        return DeadLetterDetail(**fields, raw=None, raw_bytes=0, is_changed=False)
    text = redact_invalid(raw, _REDACTOR)
    return DeadLetterDetail(**fields, raw=text, raw_bytes=len(raw), is_changed=text.encode() != raw)


def _dead_letter_fields(dead: DeadLetter) -> dict[str, Any]:
    fields = {name: getattr(dead, name) for name in DeadLetterResponse.__struct_fields__}
    return {**fields, "recipient_id": dead.recipient_id or None}


# --- pages -----------------------------------------------------------------------------------------------------------


class Page(NamedTuple, Generic[Item]):
    """Items of a list, and whether it continues."""

    items: list[Item]
    has_more: bool


async def read_page(
    read: Callable[[Item | None, int], Awaitable[Sequence[Item]]], limit: int, size: Callable[[Item], int]
) -> Page[Item]:
    """Read up to ``limit`` items; ``read`` returns the items after the last one, or the first ones."""
    items: list[Item] = []
    while len(items) <= limit:
        count = min(SLICE, limit + 1 - len(items))
        batch = await read(items[-1] if items else None, count)
        items.extend(batch)
        room = count_within_size(items, size)
        if room < len(items):
            return Page(items[: min(room, limit)], has_more=True)
        if len(batch) < count:
            break
    return Page(items[:limit], has_more=len(items) > limit)


def count_within_size(items: Sequence[Item], size: Callable[[Item], int]) -> int:
    """Return how many items from the front fit into ``PAGE_SIZE``; at least one, if there is one."""
    total = 0
    for count, item in enumerate(items):
        total += size(item)
        if count and total > PAGE_SIZE:
            return count
    return len(items)


# --- redaction of invalid letters ------------------------------------------------------------------------------------


def redact_invalid(raw: bytes, redactor: Redactor) -> str:
    """Return the bytes of an invalid letter as text without secrets.

    Every value of ``inputs`` and ``default`` is masked, and so is every text with the format of a key. If the bytes are
    not JSON, the text after the first word that may precede a secret is withheld.
    """
    text = redactor.text(_mask(raw.decode("utf-8", "backslashreplace")))
    return f"{text[:_MAX_CHARS]}…" if len(text) > _MAX_CHARS else text


def _mask(text: str) -> str:
    try:
        parsed = read_json(text.encode("utf-8", "backslashreplace"))
    except JsonError:
        match = _SECRET_START.search(text)
        return text if match is None else text[: match.end()] + _OMISSION
    masked = _mask_inputs(parsed)
    return text if masked == parsed else msgspec.json.format(msgspec.json.encode(masked), indent=2).decode()


def _mask_inputs(value: Any) -> Any:
    match value:
        case dict():
            return {name: _mask_field(name, inner) for name, inner in value.items()}
        case list():
            return [_mask_inputs(inner) for inner in value]
        case _:
            return value


def _mask_field(name: str, value: Any) -> Any:
    if name == "inputs" and isinstance(value, dict):
        return dict.fromkeys(value, MASK)
    return MASK if name in ("inputs", "default") else _mask_inputs(value)
