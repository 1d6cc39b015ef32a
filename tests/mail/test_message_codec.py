"""Messages between stores: a message is accepted only from a holder of the keys and at its destination."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dragoman.errors import LetterError
from dragoman.mail import Encryptor
from dragoman.mail.message_codec import (
    KEY,
    LETTER_AGE,
    MESSAGE_ID,
    ORIGIN,
    RECEIPT_AGE,
    SEAL,
    SENT_AT,
    UNTRUSTED_CODES,
    Kind,
    MessageCodec,
)
from dragoman.store.mailbox.mail_store import RETENTION
from tests.mail.test_encryption import KEY as TEXT
from tests.mail.test_encryption import OTHER

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SUBJECT = "dragoman.mail._.ARCH"
NAMED = {MESSAGE_ID: "m1", ORIGIN: "store-1"}
both = pytest.mark.parametrize("encrypts", [True, False])


def wire(keys: str = f"a:{TEXT}", *, encrypts: bool = True, now: datetime = NOW) -> MessageCodec:
    return MessageCodec(Encryptor.from_text(keys), lambda: now, encrypt=encrypts)


def code(
    reader: MessageCodec, headers: dict[str, str], data: bytes, kind: Kind = "letter", subject: str = SUBJECT
) -> str:
    with pytest.raises(LetterError) as caught:
        reader.decode(kind, subject, headers, data)
    assert caught.value.code in UNTRUSTED_CODES
    return caught.value.code


@both
def test_decoded_message_equals_the_encoded_one(encrypts: bool) -> None:
    headers, data = wire(encrypts=encrypts).encode("letter", SUBJECT, b"hello", NAMED)
    assert (b"hello" in data) is not encrypts
    assert wire().decode("letter", SUBJECT, headers, data) == b"hello"


@both
@pytest.mark.parametrize("name", [MESSAGE_ID, ORIGIN, SENT_AT, SEAL])
def test_changed_header_is_detected(encrypts: bool, name: str) -> None:
    headers, data = wire(encrypts=encrypts).encode("letter", SUBJECT, b"hello", NAMED)
    for changed in ({**headers, name: "2027-01-01T00:00:00+00:00"}, {k: v for k, v in headers.items() if k != name}):
        assert code(wire(), changed, data) == "forged_letter"


@both
def test_every_changed_byte_is_detected(encrypts: bool) -> None:
    headers, data = wire(encrypts=encrypts).encode("letter", SUBJECT, b"hello", NAMED)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        assert code(wire(), headers, bytes(changed)) == "forged_letter"
    for cut in (data[:-1], data + b"x", b""):
        assert code(wire(), headers, cut) == "forged_letter"


@both
def test_message_is_bound_to_subject_and_direction(encrypts: bool) -> None:
    headers, data = wire(encrypts=encrypts).encode("letter", SUBJECT, b"hello", NAMED)
    assert code(wire(), headers, data, subject="dragoman.mail._.CA") == "forged_letter"
    assert code(wire(), headers, data, subject=f"dragoman.mail.{b'ops'.hex()}.ARCH") == "forged_letter"
    assert code(wire(), headers, data, kind="receipt") == "forged_letter"


@both
def test_different_key_with_the_same_name_is_rejected(encrypts: bool) -> None:
    headers, data = wire(f"a:{OTHER}", encrypts=encrypts).encode("letter", SUBJECT, b"hello", NAMED)
    assert code(wire(), headers, data) == "forged_letter"


def test_unsigned_and_unknown_key_messages_are_rejected() -> None:
    assert code(wire(), {}, b"hello") == "unsigned_letter"
    assert code(wire(), dict(NAMED), b"hello") == "unsigned_letter"
    headers, data = wire(f"b:{OTHER}").encode("letter", SUBJECT, b"hello", NAMED)
    assert code(wire(), headers, data) == "unknown_mail_key"
    assert code(wire(), {**headers, KEY: ""}, data) == "unknown_mail_key"


def test_first_key_signs_and_every_key_is_accepted() -> None:
    headers, data = wire(f"b:{OTHER},a:{TEXT}").encode("letter", SUBJECT, b"hello", NAMED)
    assert headers[KEY] == "b"
    assert wire(f"a:{TEXT},b:{OTHER}").decode("letter", SUBJECT, headers, data) == b"hello"


@pytest.mark.parametrize(("kind", "age"), [("letter", LETTER_AGE), ("receipt", RECEIPT_AGE)])
def test_stale_message_is_rejected(kind: Kind, age: timedelta) -> None:
    headers, data = wire().encode(kind, SUBJECT, b"hello", NAMED)
    assert wire(now=NOW + age).decode(kind, SUBJECT, headers, data) == b"hello"
    assert code(wire(now=NOW + age + timedelta(seconds=1)), headers, data, kind) == "stale_letter"


def test_inbox_retention_covers_the_accepted_message_age() -> None:
    assert LETTER_AGE <= RETENTION


def test_without_shared_keys_messages_are_unsigned_and_signed_ones_rejected() -> None:
    alone = MessageCodec(Encryptor.in_memory(), lambda: NOW)
    assert not alone.is_signed
    assert alone.encode("letter", SUBJECT, b"hello", NAMED) == (NAMED, b"hello")
    assert alone.decode("letter", SUBJECT, None, b"hello") == b"hello"
    headers, data = wire().encode("letter", SUBJECT, b"hello", NAMED)
    assert code(alone, headers, data) == "unknown_mail_key"
