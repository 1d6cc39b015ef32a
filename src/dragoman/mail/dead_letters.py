"""Dead letters: invalid or undeliverable letters, stored to be inspected and sent again.

The functions are the implementation of the methods of ``Mail`` with the same names. The bytes of an invalid letter may
contain secrets, so they are encrypted; without a key they are not stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, SettingsError, UnknownLetterError
from dragoman.letters import hints_from, read_letter
from dragoman.letters.records import DeadLetter, Receipt
from dragoman.mail.notices import make_rejection_notice
from dragoman.mail.stored_letter import to_stored
from dragoman.offload import run_off_loop

if TYPE_CHECKING:
    from dragoman.mail.mail import Mail

_CONTEXT = "dead letter"


async def reject(
    mail: Mail,
    data: bytes,
    error: DragomanError,
    *,
    recipient_id: str | None = None,
    dead_id: str | None = None,
    is_trusted: bool = True,
) -> DeadLetter:
    """Store an invalid letter as a dead letter and notify its sender."""
    hints = await run_off_loop(len(data), hints_from, data)
    reason = mail.redactor.text(error.what)
    now = mail.store.clock()
    notice = None
    if is_trusted:
        notice = make_rejection_notice(hints, error.code, reason, mail.store.new_id(), now)
    notices = () if notice is None else (to_stored(notice, mail.encryptor, team_id=mail.team_id, user_id=mail.user_id),)
    key_id, raw = _encrypt(mail, data)
    dead = DeadLetter(
        id=dead_id or mail.store.mail.new_dead_id(),
        recipient_id=recipient_id or hints.recipient_id or "",
        team_id=mail.team_id,
        letter_id=hints.message_id,
        sender_id=hints.sender_id,
        task_id=hints.task_id,
        reason=error.code,
        error=reason,
        user_id=mail.user_id,
        died_at=now,
        key_id=key_id,
        raw=raw,
    )
    await mail.store.mail.insert_dead_letter(dead, notices, via_transport=mail.uses_transport)
    for stored in notices:
        mail.notify(stored)
    return dead


def _encrypt(mail: Mail, data: bytes) -> tuple[str | None, bytes | None]:
    try:
        return mail.encryptor.encrypt_bytes(data, _CONTEXT, mail.team_id)
    except SettingsError:
        return None, None


def get_raw(mail: Mail, dead: DeadLetter) -> bytes | None:
    """Return the bytes of a dead letter, or none if they were not stored."""
    if dead.key_id is None or dead.raw is None:
        return dead.raw
    return mail.encryptor.decrypt_bytes(dead.key_id, dead.raw, _CONTEXT, mail.team_id)


async def resend(mail: Mail, dead_id: str) -> Receipt:
    """Send a dead letter again; ``LetterError`` if it is an invalid letter."""
    matches = await mail.dead_letters(dead_id=dead_id, include_resent=True)
    if not matches:
        raise UnknownLetterError("the dead letter does not exist", where=dead_id)
    dead = matches[0]
    stored = None
    if dead.key_id is not None and (data := get_raw(mail, dead)) is not None:
        letter = read_letter(data)
        ids = await mail.requested_secrets(letter)
        stored = to_stored(letter, mail.encryptor, ids=ids, team_id=mail.team_id)
    receipt = await mail.store.mail.resend(dead, stored, via_transport=mail.uses_transport)
    mail.notify_all(receipt.recipient_id)
    return receipt
