"""What travels between stores by a broker: signed and encrypted with the mail keys, and checked when it arrives.

    wire = Wire(mail.sealing, clock)
    headers, data = wire.write("letter", subject, data, headers)      for the broker
    data = wire.read("letter", subject, headers, data)                LetterError unless a holder of the keys wrote it

The keys are those that every machine was given (``DRAGOMAN_MAIL_KEYS``); the first one signs and encrypts, each of them
is accepted. A message is bound to its direction (letter or receipt), its subject, which names the team and the mailbox,
its message id, the store that it comes from and the time of sending: changing any of these, or moving the message to
another subject, is noticed. A message that is sent again as it is changes nothing, because the inbox knows the letter;
after ``LETTER_AGE`` it may have forgotten it, so an older message is refused. The sender signs anew whenever it sends.

Without shared keys nothing is signed, and nothing that is signed can be checked: see ``Wire.is_signed``.

Invariant: with shared keys, ``read`` returns only what ``write`` of a holder of the keys was given.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

from dragoman.errors import DamagedError, LetterError, SettingsError
from dragoman.mail.sealing import KEYS_VARIABLE, Sealing

ORIGIN: Final = "Dragoman-Origin"
MESSAGE_ID: Final = "Nats-Msg-Id"
SENT_AT: Final = "Dragoman-Sent-At"
KEY: Final = "Dragoman-Key"
SEAL: Final = "Dragoman-Seal"
SIGNATURE: Final = "Dragoman-Signature"
ENCRYPTED: Final = "aes-256-gcm"
SIGNED: Final = "hmac-sha-256"
LETTER_AGE: Final = timedelta(days=90)  # as long as an inbox knows a letter that is done: store.mail.RETENTION
RECEIPT_AGE: Final = timedelta(days=1)
UNTRUSTED: Final = frozenset(
    ("unsigned_letter", "unknown_mail_key", "forged_letter", "stale_letter", "wrong_mailbox")
)  # the codes of what nobody with a key is known to have sent here
Kind = Literal["letter", "receipt"]


class Wire:
    """Writes and reads messages. ``encrypts`` is false where the broker may read what it carries."""

    def __init__(self, sealing: Sealing, clock: Callable[[], datetime], *, encrypts: bool = True) -> None:
        self._sealing = sealing
        self._clock = clock
        self._encrypts = encrypts

    @property
    def is_signed(self) -> bool:
        """Whether messages are signed and checked: if the mail keys are shared by all machines."""
        return self._sealing.is_shared

    def write(
        self, kind: Kind, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        """The headers and the bytes for the broker."""
        made = dict(headers or {})
        if not self.is_signed:
            return made, data
        made[SENT_AT] = self._clock().isoformat()
        made[SEAL] = ENCRYPTED if self._encrypts else SIGNED
        about = _about(kind, subject, made)
        if self._encrypts:
            made[KEY], data = self._sealing.seal_bytes(data, *about)
            return made, data
        made[KEY], signature = self._sealing.sign(data, *about)
        made[SIGNATURE] = base64.b64encode(signature).decode()
        return made, data

    def read(self, kind: Kind, subject: str, headers: Mapping[str, str] | None, data: bytes) -> bytes:
        """What was given to ``write``; ``LetterError`` with a code of ``UNTRUSTED`` if it cannot be trusted."""
        said = headers or {}
        name = said.get(KEY)
        if not self.is_signed:
            if name is None:
                return data
            raise _refusal(f"it is signed, and this store has no mail keys ({KEYS_VARIABLE})", code="unknown_mail_key")
        if name is None:
            raise _refusal("it is not signed", code="unsigned_letter")
        about = _about(kind, subject, said)
        try:
            data = self._opened(name, said, data, about)
        except SettingsError:
            raise _refusal("this store does not have the key that it is signed with", code="unknown_mail_key") from None
        except (DamagedError, binascii.Error, ValueError):
            raise _refusal("its signature does not fit", code="forged_letter") from None
        self._refuse_if_stale(kind, said)
        return data

    def _opened(self, name: str, said: Mapping[str, str], data: bytes, about: tuple[str, ...]) -> bytes:
        if said.get(SEAL) == ENCRYPTED:
            return self._sealing.open_bytes(name, data, *about)
        self._sealing.check(name, base64.b64decode(said.get(SIGNATURE, ""), validate=True), data, *about)
        return data

    def _refuse_if_stale(self, kind: Kind, said: Mapping[str, str]) -> None:
        age = LETTER_AGE if kind == "letter" else RECEIPT_AGE
        if self._clock() - datetime.fromisoformat(said[SENT_AT]) > age:
            raise _refusal(f"it was sent more than {age.days} days ago", code="stale_letter")


def _about(kind: Kind, subject: str, said: Mapping[str, str]) -> tuple[str, ...]:
    """What a message is bound to. The first word is no recipient, so this is never what a sealed value is bound to."""
    bound = (SEAL, MESSAGE_ID, ORIGIN, SENT_AT)
    return ("carried 1", kind, subject, *(said.get(name, "") for name in bound))


def _refusal(what: str, *, code: str) -> LetterError:
    return LetterError((what,), code=code)
