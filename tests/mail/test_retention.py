"""Tests of letters in retention: verification, backups, sizes, erasure and sweeps."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from dragoman.errors import CorruptDataError
from dragoman.mail import Encryptor, Mail
from dragoman.mail.stored_letter import to_stored
from dragoman.store import Store, open_store
from tests.mail.conftest import Clock, result
from tests.mail.timeouts import time_limit
from tests.store.conftest import StoreLocation


async def test_letter_outlives_its_session(mail: Mail, store: Store) -> None:
    session = await store.create_session()
    await mail.send(result(), session_id=session.id, message_id="m1", turn_id="t1")
    (before,) = await mail.letters(session_id=session.id)
    assert (before.letter.message_id, before.letter.turn_id) == ("m1", "t1")
    await store.delete_session(session.id)
    (after,) = await mail.letters()
    assert (after.letter.session_id, after.letter.message_id, after.letter.turn_id) == (None, None, None)
    assert (await store.verify()).is_sound
    assert len(await mail.receive("ARCH")) == 1


async def test_letter_context_links_its_session(mail: Mail, store: Store) -> None:
    await mail.send(result(session_id="sess_1", turn_id="t1"))
    (status,) = await mail.letters(session_id="sess_1")
    assert status.letter.turn_id == "t1"


async def test_erasure_deletes_letters_of_a_user(mail: Mail, store: Store) -> None:
    ann, bob = mail.for_team(user_id="ann"), mail.for_team(user_id="bob")
    session = await store.create_session(user_id="ann")
    await ann.send(result("T", message_id="L1", output="a word of ann's", inputs={"a": "x"}))
    await bob.send(result("T", message_id="L2", output="a word of bob's"))
    await bob.send(result("U", message_id="L3", output="about ann's session"), session_id=session.id)
    await ann.accept(b'{"task_id":"T","sender_id":"CA"}')
    (delivery,) = await mail.receive("CA")
    await delivery.ack()
    await store.erase_user("ann")
    assert [item.letter.letter_id for item in await mail.letters()] == ["L2"]
    assert await mail.dead_letters(include_resent=True) == []
    assert [item.letter_id for item in await mail.receive("ARCH")] == ["L2"]  # was behind a letter of ann
    assert (await store.verify()).is_sound


async def test_damaged_letter_is_reported_and_not_delivered(mail: Mail, store: Store) -> None:
    await mail.send(result("T", message_id="L1"))
    await mail.send(result("T", message_id="L2"))

    def damage() -> object:
        yield "UPDATE letters SET letter_json = replace(letter_json, 'done', 'gone') WHERE letter_id = 'L1'", ()

    await store._write(damage())  # type: ignore[arg-type]
    report = await store.verify()
    assert [damage.what for damage in report.damage] == ["letter L1 to ARCH: its hash does not match its content"]
    assert await mail.receive("ARCH") == []
    assert [dead.reason for dead in await mail.dead_letters()] == ["damaged"]
    assert [delivery.letter_id for delivery in await mail.receive("ARCH")] == ["L2"]
    with pytest.raises(CorruptDataError):
        await mail.letters()


async def test_backup_contains_letters(mail: Mail, store: Store, tmp_path: Path) -> None:
    await mail.send(result("T", message_id="L1", inputs={"a": "x"}))
    await mail.send(result("U", message_id="L2", depends_on=["V"]))
    await store.backup(tmp_path / "copy.db")
    async with open_store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        copied = Mail(copy, encryptor=mail.encryptor)
        assert [status.letter.letter_id for status in await copied.letters()] == ["L1", "L2"]
        (delivery,) = await copied.receive("ARCH")
        assert (await delivery.decrypt()).payload.result.inputs == {"a": "x"}


async def test_store_size_includes_letters(mail: Mail, store: Store) -> None:
    await mail.send(result())
    assert (await store.sizes()).tables["letters"] > 0


async def test_sweep_deletes_confirmed_letters_and_keeps_dead_ones(mail: Mail, store: Store, clock: Clock) -> None:
    posted = [to_stored(result(f"T{number}", message_id=f"L{number}"), mail.encryptor) for number in range(3)]
    for item in posted:
        await store.mail.post(item, via_transport=True)
    await store.mail.confirm([("ARCH", "", "L0")])
    await store.mail.mark_undeliverable(posted[1], reason="letter_too_large", error="too large")
    clock.move(days=91)
    assert await store.mail.sweep() == 1
    assert [item.letter.letter_id for item in await mail.letters()] == ["L1", "L2"]


async def test_outbox_order_survives_concurrent_receipts(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        encryptor = Encryptor.in_memory()
        keys = [("ARCH", "", f"L{number}") for number in range(60)]
        for number in range(60):
            posted = to_stored(result("T", message_id=f"L{number}"), encryptor)
            await asyncio.gather(
                first_store.mail.post(posted, via_transport=True),
                second_store.mail.confirm(keys[max(0, number - 1) : number]),
            )
        async with time_limit(60, "an outbox that is empty"):
            while claimed := await first_store.mail.claim(60, 10):
                await second_store.mail.confirm([("ARCH", "", posted.letter_id) for posted, _, _ in claimed])
        assert [counts.away for counts in await first_store.mail.counts()] in ([], [0])


async def test_sweep_deletes_old_acknowledged_letters(mail: Mail, store: Store, clock: Clock) -> None:
    for number in range(3):
        await mail.send(result(f"T{number}", message_id=f"L{number}"))
    for delivery in await mail.receive("ARCH", limit=2):
        await delivery.ack()
    clock.move(days=91)
    assert await store.mail.sweep() == 2
    assert [status.letter.letter_id for status in await mail.letters()] == ["L2"]
    assert await store.mail.sweep(timedelta(0)) == 0
    assert (await mail.send(result("T0", message_id="L0"))).is_new
