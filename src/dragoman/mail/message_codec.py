"""Encodes and decodes messages on a broker: signed and encrypted with the mail keys.

    codec = MessageCodec(mail.encryptor, clock)
    headers, data = codec.encode("letter", subject, data, headers)
    data = codec.decode("letter", subject, headers, data)             LetterError unless a holder of the keys encoded it

Every machine has the same keys (``DRAGOMAN_MAIL_KEYS``); the first one signs and encrypts, all are accepted. A message
is bound to its direction (letter or receipt), its subject (team and mailbox), its message id, the store that sent it
and the time of sending. Changing one of them, or moving the message to another subject, is detected. A replayed message
changes nothing, because the inbox has the letter; the inbox may forget it after ``LETTER_AGE``, so an older message is
rejected. The sender signs again whenever it sends.

Without shared keys nothing is signed, and signed messages cannot be verified: see ``MessageCodec.is_signed``.

Invariant: with shared keys, ``decode`` returns only bytes that a holder of the keys passed to ``encode``.
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
LETTER_AGE: Final = timedelta(days=90)  # equals the retention of the inbox
RECEIPT_AGE: Final = timedelta(days=1)
UNTRUSTED_CODES: Final = frozenset(  # error codes of messages whose sender is not authenticated
    ("unsigned_letter", "unknown_mail_key", "forged_letter", "stale_letter", "wrong_mailbox")
)
Kind = Literal["letter", "receipt"]


class MessageCodec:
    """Encodes and decodes messages. With ``encrypt=False`` the broker can read them."""

    def __init__(self, encryptor: Encryptor, clock: Callable[[], datetime], *, encrypt: bool = True) -> None:
        self._encryptor = encryptor
        self._clock = clock
        self._encrypt = encrypt

    @property
    def is_signed(self) -> bool:
        """Whether messages are signed and verified: the mail keys are shared by all machines."""
        return self._encryptor.is_shared

    def encode(
        self, kind: Kind, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        """Return the headers and the bytes for the broker."""
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
        """Return the bytes passed to ``encode``; ``LetterError`` with a code of ``UNTRUSTED_CODES`` otherwise."""
        fields = headers or {}
        name = fields.get(KEY)
        if not self.is_signed:
            if name is None:
                return data
            what = f"the message is signed, and this store has no mail keys ({KEYS_VARIABLE})"
            raise LetterError((what,), code="unknown_mail_key")
        if name is None:
            raise LetterError(("the message is not signed",), code="unsigned_letter")
        context = _message_context(kind, subject, fields)
        try:
            data = self._decrypt(name, fields, data, context)
        except SettingsError:
            what = "this store does not have the key of the signature"
            raise LetterError((what,), code="unknown_mail_key") from None
        except (CorruptDataError, binascii.Error, ValueError):
            raise LetterError(("the signature does not match",), code="forged_letter") from None
        self._require_fresh(kind, fields)
        return data

    def _decrypt(self, name: str, headers: Mapping[str, str], data: bytes, context: tuple[str, ...]) -> bytes:
        if headers.get(SEAL) == AES_GCM:
            return self._encryptor.decrypt_bytes(name, data, *context)
        signature = base64.b64decode(headers.get(SIGNATURE, ""), validate=True)
        self._encryptor.verify(name, signature, data, *context)
        return data

    def _require_fresh(self, kind: Kind, headers: Mapping[str, str]) -> None:
        age = LETTER_AGE if kind == "letter" else RECEIPT_AGE
        if self._clock() - datetime.fromisoformat(headers[SENT_AT]) > age:
            raise LetterError((f"the message is older than {age.days} days",), code="stale_letter")


def _message_context(kind: Kind, subject: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the fields that a message is bound to. The first one is not an agent name, so it never equals the
    context of a sealed value."""
    names = (SEAL, MESSAGE_ID, ORIGIN, SENT_AT)
    return ("carried 1", kind, subject, *(headers.get(name, "") for name in names))
