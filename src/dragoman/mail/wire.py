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

from dragoman.errors import CorruptDataError, LetterError, SettingsError
from dragoman.mail.encryption import KEYS_VARIABLE, Encryptor

ORIGIN: Final = "Dragoman-Origin"
MESSAGE_ID: Final = "Nats-Msg-Id"
SENT_AT: Final = "Dragoman-Sent-At"
KEY: Final = "Dragoman-Key"
SEAL: Final = "Dragoman-Seal"
SIGNATURE: Final = "Dragoman-Signature"
AES_GCM: Final = "aes-256-gcm"
HMAC_SHA256: Final = "hmac-sha-256"
LETTER_AGE: Final = timedelta(days=90)  # as long as an inbox knows a letter that is done: store.mail.RETENTION
RECEIPT_AGE: Final = timedelta(days=1)
UNTRUSTED_CODES: Final = frozenset(
    ("unsigned_letter", "unknown_mail_key", "forged_letter", "stale_letter", "wrong_mailbox")
)  # the codes of what nobody with a key is known to have sent here
Kind = Literal["letter", "receipt"]


class MessageCodec:
    """Writes and reads messages. ``encrypts`` is false where the broker may read what it carries."""

    def __init__(self, encryptor: Encryptor, clock: Callable[[], datetime], *, encrypt: bool = True) -> None:
        self._encryptor = encryptor
        self._clock = clock
        self._encrypt = encrypt

    @property
    def is_signed(self) -> bool:
        """Whether messages are signed and checked: if the mail keys are shared by all machines."""
        return self._encryptor.is_shared

    def encode(
        self, kind: Kind, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        """The headers and the bytes for the broker."""
        message_headers = dict(headers or {})
        if not self.is_signed:
            return message_headers, data
        message_headers[SENT_AT] = self._clock().isoformat()
        message_headers[SEAL] = AES_GCM if self._encrypt else HMAC_SHA256
        context = _message_context(kind, subject, message_headers)
        if self._encrypt:
            message_headers[KEY], data = self._encryptor.encrypt_bytes(data, *context)
            return message_headers, data
        message_headers[KEY], signature = self._encryptor.sign(data, *context)
        message_headers[SIGNATURE] = base64.b64encode(signature).decode()
        return message_headers, data

    def decode(self, kind: Kind, subject: str, headers: Mapping[str, str] | None, data: bytes) -> bytes:
        """What was given to ``write``; ``LetterError`` with a code of ``UNTRUSTED`` if it cannot be trusted."""
        fields = headers or {}
        name = fields.get(KEY)
        if not self.is_signed:
            if name is None:
                return data
            raise _make_error(
                f"it is signed, and this store has no mail keys ({KEYS_VARIABLE})", code="unknown_mail_key"
            )
        if name is None:
            raise _make_error("it is not signed", code="unsigned_letter")
        context = _message_context(kind, subject, fields)
        try:
            data = self._decrypt(name, fields, data, context)
        except SettingsError:
            raise _make_error(
                "this store does not have the key that it is signed with", code="unknown_mail_key"
            ) from None
        except (CorruptDataError, binascii.Error, ValueError):
            raise _make_error("its signature does not fit", code="forged_letter") from None
        self._require_fresh(kind, fields)
        return data

    def _decrypt(self, name: str, headers: Mapping[str, str], data: bytes, context: tuple[str, ...]) -> bytes:
        if headers.get(SEAL) == AES_GCM:
            return self._encryptor.decrypt_bytes(name, data, *context)
        self._encryptor.verify(name, base64.b64decode(headers.get(SIGNATURE, ""), validate=True), data, *context)
        return data

    def _require_fresh(self, kind: Kind, headers: Mapping[str, str]) -> None:
        age = LETTER_AGE if kind == "letter" else RECEIPT_AGE
        if self._clock() - datetime.fromisoformat(headers[SENT_AT]) > age:
            raise _make_error(f"it was sent more than {age.days} days ago", code="stale_letter")


def _message_context(kind: Kind, subject: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """What a message is bound to. The first word is no recipient, so this is never what a sealed value is bound to."""
    bound = (SEAL, MESSAGE_ID, ORIGIN, SENT_AT)
    return ("carried 1", kind, subject, *(headers.get(name, "") for name in bound))


def _make_error(what: str, *, code: str) -> LetterError:
    return LetterError((what,), code=code)
