"""Tests of messages between stores: only messages signed with a shared key for their destination are accepted."""

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
HEADERS = {MESSAGE_ID: "m1", ORIGIN: "store-1"}
both_modes = pytest.mark.parametrize("encrypts", [True, False])


def create_codec(keys: str = f"a:{TEXT}", *, encrypts: bool = True, now: datetime = NOW) -> MessageCodec:
    return MessageCodec(Encryptor.from_text(keys), lambda: now, encrypt=encrypts)


def get_error_code(
    reader: MessageCodec, headers: dict[str, str], data: bytes, kind: Kind = "letter", subject: str = SUBJECT
) -> str:
    with pytest.raises(LetterError) as caught:
        reader.decode(kind, subject, headers, data)
    assert caught.value.code in UNTRUSTED_CODES
    return caught.value.code


@both_modes
def test_decoded_message_equals_the_encoded_one(encrypts: bool) -> None:
    headers, data = create_codec(encrypts=encrypts).encode("letter", SUBJECT, b"hello", HEADERS)
    assert (b"hello" in data) is not encrypts
    assert create_codec().decode("letter", SUBJECT, headers, data) == b"hello"


@both_modes
@pytest.mark.parametrize("name", [MESSAGE_ID, ORIGIN, SENT_AT, SEAL])
def test_changed_header_is_detected(encrypts: bool, name: str) -> None:
    headers, data = create_codec(encrypts=encrypts).encode("letter", SUBJECT, b"hello", HEADERS)
    for changed in ({**headers, name: "2027-01-01T00:00:00+00:00"}, {k: v for k, v in headers.items() if k != name}):
        assert get_error_code(create_codec(), changed, data) == "forged_letter"


@both_modes
def test_every_changed_byte_is_detected(encrypts: bool) -> None:
    headers, data = create_codec(encrypts=encrypts).encode("letter", SUBJECT, b"hello", HEADERS)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        assert get_error_code(create_codec(), headers, bytes(changed)) == "forged_letter"
    for resized in (data[:-1], data + b"x", b""):
        assert get_error_code(create_codec(), headers, resized) == "forged_letter"


@both_modes
def test_message_is_bound_to_subject_and_direction(encrypts: bool) -> None:
    headers, data = create_codec(encrypts=encrypts).encode("letter", SUBJECT, b"hello", HEADERS)
    assert get_error_code(create_codec(), headers, data, subject="dragoman.mail._.CA") == "forged_letter"
    assert (
        get_error_code(create_codec(), headers, data, subject=f"dragoman.mail.{b'ops'.hex()}.ARCH") == "forged_letter"
    )
    assert get_error_code(create_codec(), headers, data, kind="receipt") == "forged_letter"


@both_modes
def test_different_key_with_the_same_name_is_rejected(encrypts: bool) -> None:
    headers, data = create_codec(f"a:{OTHER}", encrypts=encrypts).encode("letter", SUBJECT, b"hello", HEADERS)
    assert get_error_code(create_codec(), headers, data) == "forged_letter"


def test_unsigned_and_unknown_key_messages_are_rejected() -> None:
    assert get_error_code(create_codec(), {}, b"hello") == "unsigned_letter"
    assert get_error_code(create_codec(), dict(HEADERS), b"hello") == "unsigned_letter"
    headers, data = create_codec(f"b:{OTHER}").encode("letter", SUBJECT, b"hello", HEADERS)
    assert get_error_code(create_codec(), headers, data) == "unknown_mail_key"
    assert get_error_code(create_codec(), {**headers, KEY: ""}, data) == "unknown_mail_key"


def test_first_key_signs_and_every_key_is_accepted() -> None:
    headers, data = create_codec(f"b:{OTHER},a:{TEXT}").encode("letter", SUBJECT, b"hello", HEADERS)
    assert headers[KEY] == "b"
    assert create_codec(f"a:{TEXT},b:{OTHER}").decode("letter", SUBJECT, headers, data) == b"hello"


@pytest.mark.parametrize(("kind", "age"), [("letter", LETTER_AGE), ("receipt", RECEIPT_AGE)])
def test_stale_message_is_rejected(kind: Kind, age: timedelta) -> None:
    headers, data = create_codec().encode(kind, SUBJECT, b"hello", HEADERS)
    assert create_codec(now=NOW + age).decode(kind, SUBJECT, headers, data) == b"hello"
    assert get_error_code(create_codec(now=NOW + age + timedelta(seconds=1)), headers, data, kind) == "stale_letter"


def test_inbox_retention_covers_the_accepted_message_age() -> None:
    assert LETTER_AGE <= RETENTION


def test_without_shared_keys_messages_are_unsigned_and_signed_ones_rejected() -> None:
    unsigned = MessageCodec(Encryptor.in_memory(), lambda: NOW)
    assert not unsigned.is_signed
    assert unsigned.encode("letter", SUBJECT, b"hello", HEADERS) == (HEADERS, b"hello")
    assert unsigned.decode("letter", SUBJECT, None, b"hello") == b"hello"
    headers, data = create_codec().encode("letter", SUBJECT, b"hello", HEADERS)
    assert get_error_code(unsigned, headers, data) == "unknown_mail_key"
