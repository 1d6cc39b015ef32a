"""Tests of encryption: sensitive inputs are encrypted and not readable anywhere else."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import ConflictError, CorruptDataError, SettingsError
from dragoman.letters import MASK, TaskResultLetter, answer_letter
from dragoman.mail import Delivery, Encryptor, Mail
from dragoman.mail.encryption import KEYS_VARIABLE, make_encryptor
from dragoman.store import open_store
from tests.mail.conftest import TIMESTAMP, Clock, pass_time, request, result

KEY = "c2VhbGluZy1rZXktZm9yLXRlc3RzLW9mLW1haWwtMDE="  # 32 bytes
OTHER = "c2VhbGluZy1rZXktZm9yLXRlc3RzLW9mLW1haWwtMDI="


async def receive_request(mail: Mail, **more: Any) -> Delivery:
    await mail.send(request(message_id="ASK", **more))
    (delivery,) = await mail.receive("HUMAN")
    return delivery


async def test_answer_reaches_the_requester_with_a_secret_only_they_decrypt(mail: Mail) -> None:
    question = await receive_request(mail)
    receipt = await mail.answer(question, {"api_key": "s3cret-of-mine", "preference": "a"})
    await question.ack()
    assert receipt.recipient_id == "CA"
    (delivery,) = await mail.receive("CA")
    assert isinstance(delivery.letter, TaskResultLetter)
    assert delivery.letter.payload.result.inputs == {"api_key": MASK, "preference": "a"}
    assert delivery.letter.in_reply_to == "ASK"
    opened = await delivery.decrypt()
    assert opened.payload.result.inputs == {"api_key": "s3cret-of-mine", "preference": "a"}


async def test_request_has_one_answer(mail: Mail) -> None:
    question = await receive_request(mail)
    await mail.answer(question, {"api_key": "one", "preference": "a"})
    assert not (await mail.answer(question, {"api_key": "one", "preference": "a"})).is_new
    for conflicting in ({"api_key": "two", "preference": "a"}, {"api_key": "one", "preference": "b"}):
        with pytest.raises(ConflictError):
            await mail.answer(question, conflicting)


async def test_answer_to_another_recipient_is_rejected(mail: Mail) -> None:
    question = await receive_request(mail)
    context = {**(question.letter.context or {})}
    answer = answer_letter(question.letter.replace(context=context), inputs={"api_key": "x"}, timestamp=TIMESTAMP)
    with pytest.raises(Exception, match="the sender of the request"):
        await mail.send(answer.replace(recipient_id="CC"))


async def test_all_inputs_are_secret_without_a_known_request(mail: Mail) -> None:
    await mail.send(result(inputs={"a": "first-secret", "b": 271828}))
    (delivery,) = await mail.receive("ARCH")
    assert delivery.letter.payload.result.inputs == {"a": MASK, "b": MASK}
    assert (await delivery.decrypt()).payload.result.inputs == {"a": "first-secret", "b": 271828}


async def test_only_the_holder_can_decrypt_a_letter(mail: Mail, clock: Clock) -> None:
    await mail.send(result(inputs={"a": "first-secret"}))
    (slow,) = await mail.receive("ARCH", lease_s=1)
    await pass_time(mail.store, clock, seconds=2)
    (quick,) = await mail.receive("ARCH")
    with pytest.raises(ConflictError):
        await slow.decrypt()
    assert (await quick.decrypt()).payload.result.inputs == {"a": "first-secret"}
    forged = await mail.delivery("ARCH", quick.letter_id, "not the lease")
    with pytest.raises(ConflictError):
        await forged.decrypt()
    known = await mail.delivery("ARCH", quick.letter_id, quick.lease)
    assert (await known.decrypt()).payload.result.inputs == {"a": "first-secret"}


async def test_derived_id_does_not_reveal_the_secret(mail: Mail) -> None:
    """A hash of four digits would reveal them to a search of 10,000 values."""
    from dragoman.letters import derive_id

    letter = result(inputs={"pin": "4711"})
    receipt = await mail.send(letter)
    assert receipt.letter_id != derive_id(letter)
    assert (await mail.send(letter)).letter_id == receipt.letter_id
    assert (await mail.send(result(inputs={"pin": "4712"}))).letter_id != receipt.letter_id


# --- keys ------------------------------------------------------------------------------------------------------------


def test_ciphertext_is_bound_to_its_context() -> None:
    encryptor = Encryptor.in_memory()
    key, ciphertext = encryptor.encrypt({"x": 1}, "CA", "", "L1", "inputs/x")
    assert encryptor.decrypt(key, ciphertext, "CA", "", "L1", "inputs/x") == {"x": 1}
    for context in (("CA", "", "L2", "inputs/x"), ("CC", "", "L1", "inputs/x"), ()):
        with pytest.raises(CorruptDataError):
            encryptor.decrypt(key, ciphertext, *context)
    for at in range(len(ciphertext)):
        changed = bytes((*ciphertext[:at], ciphertext[at] ^ 1, *ciphertext[at + 1 :]))
        with pytest.raises(CorruptDataError):
            encryptor.decrypt(key, changed, "CA", "", "L1", "inputs/x")
    with pytest.raises(CorruptDataError):
        encryptor.decrypt(key, b"", "CA", "", "L1", "inputs/x")


def test_key_file_is_private(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key, ciphertext = Encryptor.in_file(file).encrypt("x")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Encryptor.in_file(file).decrypt(key, ciphertext) == "x"
    file.chmod(0o644)
    with pytest.raises(SettingsError) as caught:
        Encryptor.in_file(file).encrypt("x")
    assert caught.value.code == "unsafe_config"
    file.chmod(0o600)
    file.write_bytes(b"[]")
    with pytest.raises(SettingsError, match="no mail keys"):
        Encryptor.in_file(file).encrypt("x")


def test_rotation_encrypts_with_the_new_key_and_decrypts_with_the_old(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    encryptor, other = Encryptor.in_file(file), Encryptor.in_file(file)
    old, ciphertext = encryptor.encrypt("x")
    text_hash = encryptor.keyed_hash("text")
    assert other.rotate() != old
    assert encryptor.encrypt("x")[0] == other.key_names()[0]
    assert encryptor.decrypt(old, ciphertext) == "x"
    assert encryptor.keyed_hash("text") == text_hash


def test_keys_are_parsed_from_text() -> None:
    encryptor = Encryptor.from_text(f"b:{OTHER},a:{KEY}")
    assert encryptor.key_names() == ("b", "a")
    key, ciphertext = Encryptor.from_text(f"a:{KEY}").encrypt("x")
    assert encryptor.decrypt(key, ciphertext) == "x"
    assert KEY not in repr(encryptor._keys())
    for invalid in ("", "a", "a:short", f"a:{KEY},a:{OTHER}", f"a:{KEY},"):
        with pytest.raises(SettingsError) as caught:
            Encryptor.from_text(invalid)
        assert caught.value.code == "invalid_key"
    with pytest.raises(SettingsError) as caught:
        Encryptor.from_text(f"b:{OTHER}").decrypt(key, ciphertext)
    assert caught.value.code == "missing_key"


async def test_keys_are_next_to_the_database_or_in_the_variable(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'chats.db'}")
    make_encryptor(store, {}).encrypt("x")
    assert (tmp_path / "chats.db-mail-keys.json").exists()
    assert make_encryptor(store, {KEYS_VARIABLE: f"a:{KEY}"}).key_names() == ("a",)
    make_encryptor(
        open_store("postgresql://x/y"), {"XDG_CONFIG_HOME": str(tmp_path), "APPDATA": str(tmp_path)}
    ).encrypt("x")
    assert (tmp_path / "dragoman" / "mail-keys.json").exists()


async def test_rotate_keys_reencrypts_values_of_older_keys(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'chats.db'}") as store:
        mail = Mail(store)
        for number in range(3):
            await mail.send(result(f"T{number}", inputs={"a": f"secret-{number}"}))
        assert await mail.rotate_keys() == 0
        mail.encryptor.rotate()
        assert await mail.rotate_keys() == 3
        newest = Encryptor((mail.encryptor._keys()[0],))
        deliveries = await Mail(store, encryptor=newest).receive("ARCH")
        assert [(await delivery.decrypt()).payload.result.inputs["a"] for delivery in deliveries] == [
            f"secret-{number}" for number in range(3)
        ]


# --- plaintext -------------------------------------------------------------------------------------------------------

SECRETS: dict[str, tuple[str, Any, bytes]] = {
    "string": ("string", "correct horse battery staple", b"correct horse battery staple"),
    "number": ("number", 31415926535, b"31415926535"),
    "enum": ("enum", "the-hidden-option", b"the-hidden-option"),
    "file": ("file", "aGlkZGVuLWZpbGUtY29udGVudA==", b"aGlkZGVuLWZpbGUtY29udGVudA"),
    "object": ("file", {"user": "root", "password": "hunter2hunter2"}, b"hunter2hunter2"),
    "default": ("string", "a-secret-by-default", b"a-secret-by-default"),
    "malformed": ("string", "a-secret-in-what-is-no-letter", b"a-secret-in-what-is-no-letter"),
}


def find_files_with(folder: Path, content: bytes) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and content in path.read_bytes()]


async def test_planted_secrets_appear_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "store"
    outputs: list[bytes] = []
    async with open_store(f"sqlite:///{folder / 'chats.db'}") as store:
        session = await store.create_session()
        mail = Mail(store)
        inputs = [
            {"id": name, "type": kind, "description": name, "sensitive": True, "required": name != "malformed"}
            | ({"default": value} if name == "default" else {})
            for name, (kind, value, _) in SECRETS.items()
        ]
        question = request(requested_inputs=inputs, message_id="ASK")
        await mail.send(question, session_id=session.id)
        (request_delivery,) = await mail.receive("HUMAN")
        answer = {name: value for name, (_, value, _) in SECRETS.items() if name not in ("default", "malformed")}
        await mail.answer(request_delivery, answer, output=f"The password is {SECRETS['object'][1]['password']}")
        (delivery,) = await mail.receive("CA")
        opened = await delivery.decrypt()
        assert opened.payload.result.inputs == answer  # its recipient can read it
        malformed = msgspec.json.encode({"sender_id": "CA", "payload": {"result": {"inputs": SECRETS["malformed"][1]}}})
        dead = await mail.accept(malformed)
        await delivery.nack("broken", error_class="not_retryable")
        outputs.append(
            repr((dead, delivery, delivery.letter, await mail.letters(), await mail.dead_letters())).encode()
        )
        outputs.append(repr((await mail.counts(), await mail.health(), await mail.receive("HUMAN"))).encode())
        outputs.extend([line async for line in store.export(session.id)])
        outputs.extend([line async for line in store.export_store()])
        outputs.append(repr(await store.trace.events("system")).encode())
        await store.backup(tmp_path / "copy.db")
        for _, _, secret in SECRETS.values():
            assert find_files_with(tmp_path, secret) == []  # includes the write-ahead log
    outputs.append(caplog.text.encode())
    for name, (_, _, secret) in SECRETS.items():
        assert find_files_with(tmp_path, secret) == [], name
        assert not any(secret in line for line in outputs), name


async def test_secret_search_finds_a_planted_secret(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'chats.db'}") as store:
        await Mail(store).send(result(output="correct horse battery staple"))
        assert find_files_with(tmp_path, b"correct horse battery staple")


@pytest.mark.skipif(os.name != "posix", reason="this system has no file modes")
async def test_key_file_is_created_on_first_use(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'chats.db'}") as store:
        await Mail(store).send(result())
        assert not (tmp_path / "chats.db-mail-keys.json").exists()
        await Mail(store).send(result(inputs={"a": 1}))
        assert (tmp_path / "chats.db-mail-keys.json").exists()
