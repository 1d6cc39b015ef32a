"""Tests of delivery: order, leases, retries, dead letters, effects, dependencies and teams."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from dragoman.errors import ConflictError, FormatError, LetterError, UnknownLetterError
from dragoman.letters import read_stored_letter, write_letter
from dragoman.mail import POSTMASTER, AckResult, DeadLetter, Mail, RetryRule
from dragoman.mail.mail import MAX_DEPENDENCIES
from dragoman.mail.stored_letter import to_stored
from dragoman.store import Store
from dragoman.store.mailbox import dependencies
from dragoman.store.sessions import change_session
from tests.mail.conftest import Clock, failure, pass_time, result
from tests.store.conftest import StoreLocation


def list_ids(deliveries: list[Any]) -> list[str]:
    return [delivery.letter_id for delivery in deliveries]


async def test_letter_is_received_unchanged(mail: Mail) -> None:
    sent = result(message_id="L1", trace_id="abc", context={"environment": "staging"})
    receipt = await mail.send(sent)
    (delivery,) = await mail.receive("ARCH")
    assert write_letter(delivery.letter) == write_letter(sent)
    assert (receipt.letter_id, receipt.is_new, receipt.state) == ("L1", True, "ready")
    assert (delivery.letter_id, delivery.attempts) == ("L1", 1)


async def test_repeated_letter_with_higher_retry_count_is_stored_once(mail: Mail) -> None:
    receipts = [
        await mail.send(result(retry_count=count, timestamp=f"2026-11-15T12:00:0{count}Z")) for count in range(5)
    ]
    assert len({receipt.letter_id for receipt in receipts}) == 1
    assert [receipt.is_new for receipt in receipts] == [True, False, False, False, False]
    deliveries = await mail.receive("ARCH")
    assert len(deliveries) == 1
    assert (await deliveries[0].ack()).is_first
    assert (await mail.send(result(retry_count=5))).state == "done"
    assert await mail.receive("ARCH") == []


async def test_different_letter_with_the_same_id_is_a_conflict(mail: Mail) -> None:
    await mail.send(result(message_id="L1"))
    with pytest.raises(ConflictError) as caught:
        await mail.send(result(message_id="L1", output="something else"))
    assert caught.value.code == "letter_conflict"
    assert len(await mail.receive("ARCH")) == 1


async def test_sender_other_than_the_letters_sender_is_rejected(mail: Mail) -> None:
    with pytest.raises(LetterError) as caught:
        await mail.send(result(), sender="CC")
    assert caught.value.code == "sender_mismatch"
    assert await mail.receive("ARCH") == []


async def test_leased_letter_is_not_delivered_again_before_the_lease_ends(mail: Mail, clock: Clock) -> None:
    await mail.send(result())
    (first,) = await mail.receive("ARCH", lease_s=60)
    assert await mail.receive("ARCH") == []
    await pass_time(mail.store, clock, seconds=59)
    assert await mail.receive("ARCH") == []
    await pass_time(mail.store, clock, seconds=1)
    (second,) = await mail.receive("ARCH")
    assert (second.letter_id, second.attempts) == (first.letter_id, 2)


@pytest.mark.parametrize("step", [{"days": 1}, {"days": -1}, {"hours": 1}, {"hours": -1}], ids=str)
async def test_wall_clock_changes_do_not_affect_leases_or_retries(
    mail: Mail, clock: Clock, step: dict[str, float]
) -> None:
    await mail.send(result("A"))
    await mail.send(result("B"))
    first, second = await mail.receive("ARCH", lease_s=60)
    await second.nack("it broke")  # retried after 5 s
    clock.move(**step)
    assert await mail.receive("ARCH") == []
    assert [status.leased_until is not None for status in await mail.thread("A")] == [True]
    (waiting,) = await mail.thread("B")
    assert waiting.retry_at is not None
    assert 0 < (waiting.retry_at - clock.now).total_seconds() <= 5
    await pass_time(mail.store, seconds=5)
    clock.move(**step)
    assert list_ids(await mail.receive("ARCH")) == [second.letter_id]
    await pass_time(mail.store, seconds=55)
    assert list_ids(await mail.receive("ARCH")) == [first.letter_id]


async def test_decryption_does_not_change_the_lease(mail: Mail, clock: Clock) -> None:
    await mail.send(result())
    (delivery,) = await mail.receive("ARCH", lease_s=60)
    clock.move(days=1)
    await delivery.decrypt()
    await pass_time(mail.store, seconds=30)
    assert await mail.receive("ARCH") == []


async def test_only_the_holder_can_extend_a_lease(mail: Mail, clock: Clock) -> None:
    await mail.send(result())
    (first,) = await mail.receive("ARCH", lease_s=60)
    await first.extend(120)
    await pass_time(mail.store, clock, seconds=119)
    assert await mail.receive("ARCH") == []
    await pass_time(mail.store, clock, seconds=1)
    (second,) = await mail.receive("ARCH")
    for operation in (first.extend(), first.ack(), first.nack("too late")):
        with pytest.raises(ConflictError) as caught:
            await operation
        assert caught.value.code == "lease_lost"
    assert (await second.ack()).is_first


async def test_second_ack_changes_nothing(mail: Mail) -> None:
    await mail.send(result())
    (delivery,) = await mail.receive("ARCH")
    assert (await delivery.ack()).is_first
    assert not (await delivery.ack()).is_first
    assert await delivery.nack("after all") is None


async def test_letters_of_one_task_are_delivered_one_at_a_time_in_order(mail: Mail) -> None:
    for number in range(3):
        await mail.send(result("TASK-1", message_id=f"A{number}"))
        await mail.send(result("TASK-2", message_id=f"B{number}"))
    batches = []
    while deliveries := await mail.receive("ARCH"):
        batches.append(list_ids(deliveries))
        for delivery in deliveries:
            await delivery.ack()
    assert batches == [["A0", "B0"], ["A1", "B1"], ["A2", "B2"]]


async def test_letter_waits_while_an_earlier_letter_of_its_task_is_retried(mail: Mail, clock: Clock) -> None:
    await mail.send(result(message_id="A0"))
    await mail.send(result(message_id="A1"))
    (first,) = await mail.receive("ARCH")
    outcome = await first.nack("it broke")
    assert outcome is not None
    assert outcome.retry_at is not None
    assert await mail.receive("ARCH") == []
    await pass_time(mail.store, clock, seconds=(outcome.retry_at - clock.now).total_seconds())
    (retried,) = await mail.receive("ARCH")
    assert (retried.letter_id, retried.attempts) == ("A0", 2)
    await retried.ack()
    assert list_ids(await mail.receive("ARCH")) == ["A1"]


async def test_retries_back_off_and_end_with_a_dead_letter_and_an_escalation(mail: Mail, clock: Clock) -> None:
    await mail.send(result(message_id="A0", trace_id="t-1"))
    await mail.send(result(message_id="A1"))
    pauses = []
    while True:
        (delivery,) = await mail.receive("ARCH")
        outcome = await delivery.nack("connection refused")
        assert outcome is not None
        if outcome.retry_at is None:
            break
        pauses.append((outcome.retry_at - clock.now).total_seconds())
        await pass_time(mail.store, clock, seconds=(outcome.retry_at - clock.now).total_seconds())
    assert pauses == [5, 10, 20]
    (dead,) = await mail.dead_letters()
    assert (dead.id, dead.letter_id, dead.reason, dead.sender_id) == (
        outcome.dead_letter_id,
        "A0",
        "retries_exhausted",
        "CA",
    )
    assert dead.raw is not None
    assert b"TASK-1 is done" in dead.raw
    (escalation,) = await mail.receive("HUMAN")
    assert escalation.letter.sender_id == POSTMASTER
    assert escalation.letter.payload.details["letter_id"] == "A0"
    assert escalation.letter.trace_id == "t-1"
    assert list_ids(await mail.receive("ARCH")) == ["A1"]  # no longer blocked


async def test_number_of_retries_depends_on_the_error_class(mail: Mail, clock: Clock) -> None:
    tries = {}
    for name in (
        "error",
        "critical_error",
        "dependency_blocked",
        "resource_constraint",
        "needs_input",
        "not_retryable",
    ):
        await mail.send(result(f"T-{name.upper()}", to="CC"))
        attempts = 0
        while deliveries := await mail.receive("CC"):
            attempts += 1
            outcome = await deliveries[0].nack("broken", error_class=name)
            assert outcome is not None
            if outcome.retry_at is not None:
                await pass_time(mail.store, clock, seconds=(outcome.retry_at - clock.now).total_seconds())
        tries[name] = attempts
    assert tries == {
        "error": 4,
        "critical_error": 2,
        "dependency_blocked": 6,
        "resource_constraint": 4,
        "needs_input": 1,
        "not_retryable": 1,
    }


async def test_critical_error_is_escalated_immediately(mail: Mail) -> None:
    await mail.send(result())
    (delivery,) = await mail.receive("ARCH")
    outcome = await delivery.nack(RuntimeError("fatal: data loss"))
    assert outcome is not None
    assert outcome.retry_at is not None
    (escalation,) = await mail.receive("HUMAN")
    assert escalation.letter.payload.details["error_class"] == "critical_error"


async def test_failed_escalation_is_not_escalated(store: Store, clock: Clock) -> None:
    store.clock = clock
    mail = Mail(store, retry_rules={"error": RetryRule(0)}, escalate_to="BOSS")
    await mail.send(result())
    for recipient in ("ARCH", "BOSS"):
        (delivery,) = await mail.receive(recipient)
        await delivery.nack("no")
    assert await mail.receive("BOSS") == []
    assert [dead.recipient_id for dead in await mail.dead_letters()] == ["BOSS", "ARCH"]


async def test_resent_dead_letter_is_delivered_again(mail: Mail) -> None:
    await mail.send(result(message_id="A0"))
    (delivery,) = await mail.receive("ARCH")
    await delivery.nack("no", error_class="not_retryable")
    (dead,) = await mail.dead_letters()
    receipt = await mail.resend(dead.id)
    assert (receipt.letter_id, receipt.state) == ("A0", "ready")
    assert await mail.dead_letters() == []
    (redelivered,) = await mail.receive("ARCH")
    assert (redelivered.letter_id, redelivered.attempts) == ("A0", 1)
    assert (await redelivered.ack()).is_first
    assert (await mail.resend(dead.id)).state == "done"  # not delivered again
    assert await mail.receive("ARCH") == []


async def test_unknown_dead_letter_cannot_be_resent(mail: Mail) -> None:
    with pytest.raises(UnknownLetterError):
        await mail.resend("dead_0")


INVALID_LETTERS = {
    "no task": b'{"type":"task_result","protocol_version":"1.0","sender_id":"CA","recipient_id":"ARCH","timestamp":"2025-05-21T20:00:00Z","payload":{"status":"success","result":{"output":"x"}}}',
    "no payload": b'{"type":"task_result","protocol_version":"1.0","sender_id":"CA","recipient_id":"ARCH","timestamp":"2025-05-21T20:00:00Z","task_id":"T"}',
    "unknown type": b'{"type":"done","protocol_version":"1.0","sender_id":"CA","recipient_id":"ARCH","timestamp":"2025-05-21T20:00:00Z","task_id":"T","payload":{}}',
    "newer version": b'{"type":"task_result","protocol_version":"9.0","sender_id":"CA","recipient_id":"ARCH","timestamp":"2025-05-21T20:00:00Z","task_id":"T","payload":{"status":"success","result":{"output":"x"}}}',
    "inconsistent": b'{"type":"task_result","protocol_version":"1.0","sender_id":"CA","recipient_id":"ARCH","timestamp":"2025-05-21T20:00:00Z","task_id":"T","payload":{"status":"success","success":false,"result":{"output":"x"}}}',
    "score": b'{"type":"task_result","protocol_version":"1.0","sender_id":"CA","recipient_id":"ARCH","timestamp":"2025-05-21T20:00:00Z","task_id":"T","payload":{"status":"success","score":1.01,"result":{"output":"x"}}}',
    "no number": b'{"type":"task_result","protocol_version":"1.0","sender_id":"CA","recipient_id":"ARCH","timestamp":"2025-05-21T20:00:00Z","task_id":"T","payload":{"status":"success","score":NaN,"result":{"output":"x"}}}',
}


@pytest.mark.parametrize("data", INVALID_LETTERS.values(), ids=INVALID_LETTERS)
async def test_invalid_letter_becomes_dead_letter_and_sender_is_notified(mail: Mail, data: bytes) -> None:
    dead = await mail.accept(data)
    assert isinstance(dead, DeadLetter)
    assert dead.reason in (
        "invalid_letter",
        "unknown_letter_type",
        "unsupported_protocol_version",
        "inconsistent_result",
        "invalid_json",
    )
    assert await mail.receive("ARCH") == []
    (stored,) = await mail.dead_letters()
    assert stored.key_id is not None
    assert stored.raw is not None
    assert mail.encryptor.decrypt_bytes(stored.key_id, stored.raw, "dead letter", "") == data
    with pytest.raises(LetterError if dead.reason != "invalid_json" else Exception):
        await mail.resend(dead.id)
    notices = await mail.receive("CA")
    if dead.sender_id == "CA":
        assert notices[0].letter.payload.code == dead.reason.upper()
    else:
        assert notices == []  # the sender is unknown


async def test_unparsable_bytes_are_stored_without_a_notice(mail: Mail) -> None:
    for data in (b"", b"\xff\xfe", b"[]", b"null", b'{"sender_id":"nobody we know"}', b"{" * 100_000):
        assert isinstance(await mail.accept(data), DeadLetter)
    assert len(await mail.dead_letters()) == 6
    assert [counts.recipient_id for counts in await mail.counts()] == [""]


async def test_malformed_error_letter_causes_no_notice(mail: Mail) -> None:
    malformed = b'{"type":"error","protocol_version":"1.0","sender_id":"CA","recipient_id":"ARCH","timestamp":"2025-05-21T20:00:00Z","task_id":"T","payload":{}}'
    assert isinstance(await mail.accept(malformed), DeadLetter)
    assert await mail.receive("CA") == []


async def test_stored_letter_with_inconsistent_durations_is_delivered(mail: Mail) -> None:
    data = write_letter(result(duration_sec=12.34)).replace(b'"result":', b'"metrics":{"duration_ms":99999},"result":')
    with pytest.raises(LetterError):
        await mail.send(data)
    await mail.store.mail.post(to_stored(read_stored_letter(data), mail.encryptor))
    (delivery,) = await mail.receive("ARCH")
    assert delivery.letter.payload.metrics.duration_ms == 99999
    assert (await delivery.decrypt()).payload.duration_sec == 12.34


async def test_artifact_path_is_data(mail: Mail) -> None:
    paths = [{"type": "file", "path": path} for path in ("/etc/passwd", "../x")]
    await mail.send(result(artifacts=paths))
    (delivery,) = await mail.receive("ARCH")
    assert [artifact.path for artifact in delivery.letter.payload.result.artifacts] == ["/etc/passwd", "../x"]


async def test_send_all_is_atomic(mail: Mail) -> None:
    receipts = await mail.send_all([result("T", message_id="L0"), result("T", message_id="L1"), result("U")])
    assert [receipt.state for receipt in receipts] == ["ready", "behind", "ready"]
    with pytest.raises(ConflictError):
        await mail.send_all([result("V", message_id="L2"), result("T", message_id="L0", output="else")])
    with pytest.raises(LetterError):
        await mail.send_all([result("V", message_id="L2"), {"type": "done"}])
    assert len(await mail.letters()) == 3


async def test_ack_all_acknowledges_others_if_one_lease_is_lost(mail: Mail, clock: Clock) -> None:
    await mail.send_all([result(f"T{number}", message_id=f"L{number}") for number in range(3)])
    slow = await mail.receive("ARCH", lease_s=1)
    await pass_time(mail.store, clock, seconds=2)
    (quick,) = await mail.receive("ARCH", limit=1)
    await slow[1].ack()
    results = await mail.ack_all(slow)
    assert isinstance(results[0], ConflictError)
    assert [result.is_first for result in results[1:] if isinstance(result, AckResult)] == [False, True]
    assert (await quick.ack()).is_first


# --- effects ---------------------------------------------------------------------------------------------------------


def rename_session(session_id: str, title: str) -> Any:
    return change_session(session_id, {"title": title}, datetime.now(UTC))


async def test_effect_is_committed_with_its_letter(mail: Mail, store: Store) -> None:
    session = await store.create_session()
    await mail.send(result())
    (delivery,) = await mail.receive("ARCH")
    acked = await delivery.ack(rename_session(session.id, "done"))
    assert (acked.is_first, acked.result.title) == (True, "done")
    assert (await store.get_session(session.id)).title == "done"
    acked = await delivery.ack(rename_session(session.id, "twice"))
    assert not acked.is_first
    assert (await store.get_session(session.id)).title == "done"


async def test_failed_effect_leaves_its_letter_unacknowledged(mail: Mail, store: Store) -> None:
    session = await store.create_session(title="before")

    def fail_halfway(_: Any) -> Generator[Any, Any, None]:
        yield "UPDATE sessions SET title = ? WHERE id = ?", ("half", session.id)
        raise ValueError("no")

    await mail.send(result())
    (delivery,) = await mail.receive("ARCH")
    with pytest.raises(ValueError, match="no"):
        await delivery.ack(fail_halfway)
    assert (await store.get_session(session.id)).title == "before"
    assert (await delivery.ack()).is_first


async def test_effect_after_a_lost_lease_is_not_committed(mail: Mail, store: Store, clock: Clock) -> None:
    session = await store.create_session(title="before")
    await mail.send(result())
    (slow,) = await mail.receive("ARCH", lease_s=1)
    await pass_time(mail.store, clock, seconds=2)
    (quick,) = await mail.receive("ARCH")
    with pytest.raises(ConflictError):
        await slow.ack(rename_session(session.id, "slow"))
    await quick.ack(rename_session(session.id, "quick"))
    assert (await store.get_session(session.id)).title == "quick"


# --- dependencies ----------------------------------------------------------------------------------------------------


async def test_letter_is_held_until_its_dependencies_succeed(mail: Mail) -> None:
    receipt = await mail.send(result("TASK-3", to="CC", depends_on=["TASK-1", "TASK-2"]))
    assert receipt.state == "held"
    for task, status, held in (
        ("TASK-1", "success", True),
        ("TASK-2", "failed", True),
        ("TASK-2", "partial_success", True),
        ("TASK-2", "success", False),
    ):
        await mail.send(result(task, status=status))
        assert (await mail.receive("CC") == []) is held


async def test_succeeded_dependency_does_not_hold_a_letter(mail: Mail) -> None:
    await mail.send(result("TASK-1"))
    await mail.send(result("TASK-1", status="failed"))  # success is permanent
    assert (await mail.send(result("TASK-2", to="CC", depends_on=["TASK-1"]))).state == "ready"


async def test_held_letter_keeps_its_position_in_its_task(mail: Mail) -> None:
    await mail.send(result("TASK-2", to="CC", message_id="A0", depends_on=["TASK-1"]))
    await mail.send(result("TASK-2", to="CC", message_id="A1"))
    assert await mail.receive("CC") == []
    await mail.send(result("TASK-1"))
    (first,) = await mail.receive("CC")
    assert first.letter_id == "A0"
    await first.ack()
    assert list_ids(await mail.receive("CC")) == ["A1"]


async def test_dependency_cycle_is_rejected_with_its_path(mail: Mail) -> None:
    await mail.send(failure("A", depends_on=["B"]))
    await mail.send(failure("B", depends_on=["C"]))
    with pytest.raises(ConflictError, match="C → A → B → C") as caught:
        await mail.send(failure("C", depends_on=["X", "A"]))
    assert caught.value.code == "dependency_cycle"
    with pytest.raises(ConflictError, match="D → D"):
        await mail.send(failure("D", depends_on=["D"]))
    assert len(await mail.letters()) == 2  # the rejected letters left no rows


async def test_letter_with_too_many_dependencies_is_rejected(mail: Mail) -> None:
    task_ids = [f"T{at}" for at in range(MAX_DEPENDENCIES)]
    with pytest.raises(LetterError, match="1001 tasks are more than the limit of 1000") as caught:
        await mail.send(failure("A", depends_on=[*task_ids, "X"]))
    assert caught.value.code == "too_many_dependencies"
    assert (await mail.send(failure("A", depends_on=task_ids))).state == "held"


def test_cycle_search_visits_each_task_once() -> None:
    layers = {f"{layer}-{at}": [f"{layer + 1}-{to}" for to in range(10)] for layer in range(10) for at in range(10)}
    search = dependencies._find_path([f"0-{at}" for at in range(10)], "elsewhere", "")
    visited: list[Any] = []
    rows: list[tuple[str]] | None = None
    with contextlib.suppress(StopIteration):
        while True:
            _, (task, _) = search.send(rows)  # type: ignore[arg-type]
            visited.append(task)
            rows = [(needed,) for needed in layers.get(task, ())]
    assert len(visited) == len(set(visited)) == 110


async def test_answer_to_a_request_does_not_complete_the_task(mail: Mail) -> None:
    await mail.send(failure("B", to="CC", depends_on=["A"]))
    await mail.send(result("A", inputs={"x": 1}))
    assert await mail.receive("CC") == []


# --- teams, threads, counts ------------------------------------------------------------------------------------------


async def test_teams_are_isolated(mail: Mail) -> None:
    first, second = mail.for_team(team_id="us", user_id="ann"), mail.for_team(team_id="them")
    await first.send(result("TASK-1", message_id="L"))
    await second.send(result("TASK-1", message_id="L", output="theirs"))
    await second.send(failure("TASK-2", to="CC", depends_on=["TASK-1"]))
    await first.send(failure("TASK-3", to="CC", depends_on=["TASK-2"]))
    assert [item.letter.user_id for item in await first.thread("TASK-1")] == ["ann"]
    assert [item.letter.payload.result.output for item in await first.receive("ARCH")] == ["TASK-1 is done"]
    assert [item.letter.payload.result.output for item in await second.receive("ARCH")] == ["theirs"]
    assert list_ids(await mail.receive("ARCH")) == []
    assert {item.recipient_id: item.held for item in await first.counts()} == {"ARCH": 0, "CC": 1}


async def test_thread_lists_letters_of_a_task_in_order_with_status(mail: Mail, clock: Clock) -> None:
    await mail.send(result("T", message_id="L1"))
    await pass_time(mail.store, clock, seconds=1)
    await mail.send(failure("T", to="CC", message_id="L2"))
    (delivery,) = await mail.receive("ARCH")
    await delivery.ack()
    thread = await mail.thread("T")
    assert [(status.letter.letter_id, status.state) for status in thread] == [("L1", "done"), ("L2", "ready")]
    assert [status.letter.letter_id for status in await mail.letters(task_id="T", after=thread[0].letter)] == ["L2"]


async def test_counts_report_the_letters_of_each_mailbox(mail: Mail, clock: Clock) -> None:
    for number in range(6):
        await mail.send(result(f"T{number}"))
    await mail.send(result("T0", output="more"))
    await mail.send(result("T9", depends_on=["T8"]))
    first, second, third, fourth, *_ = await mail.receive("ARCH")
    await first.ack()
    await second.nack("later")
    await third.nack("never", error_class="not_retryable")
    counts = {mailbox.recipient_id: mailbox for mailbox in await mail.counts()}
    arch = counts["ARCH"]
    assert (arch.ready, arch.leased, arch.waiting, arch.held, arch.done, arch.dead) == (1, 3, 1, 1, 1, 1)
    await pass_time(mail.store, clock, seconds=90)
    assert fourth.letter_id in list_ids(redelivered := await mail.receive("ARCH"))
    counts = {mailbox.recipient_id: mailbox for mailbox in await mail.counts()}
    assert counts["ARCH"].retries == len(redelivered) - 1  # one of them is delivered for the first time


async def test_two_stores_on_one_database_deliver_each_letter_once(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        here, there = Mail(first_store), Mail(second_store)
        for number in range(20):
            await (here if number % 2 else there).send(result(f"T{number}"))
        first = await here.receive("ARCH", limit=7)
        second = await there.receive("ARCH", limit=20)
        assert len(first) == 7
        assert not set(list_ids(first)) & set(list_ids(second))
        assert len(first) + len(second) == 20


async def test_letter_is_posted_and_acknowledged_once(mail: Mail) -> None:
    assert (await mail.send(result("T1", to="A", message_id="L1"))).state == "ready"
    (delivery,) = await mail.receive("A")
    assert (await delivery.ack()).is_first
    assert not (await delivery.ack()).is_first
    assert not (await mail.send(result("T1", to="A", message_id="L1"))).is_new
    with pytest.raises(ConflictError, match="same id and different content"):
        await mail.send(result("T2", to="A", message_id="L1"))


async def test_letter_behind_another_waits_and_its_dependents_follow(mail: Mail) -> None:
    await mail.send(failure("T2", to="B", message_id="waits", depends_on=["T1"]))
    await mail.send(result("T1", to="A", message_id="first", status="failed"))
    assert (await mail.send(result("T1", to="A", message_id="second"))).state == "behind"
    (leading,) = await mail.receive("A", limit=5)
    await leading.ack()
    (following,) = await mail.receive("A", limit=5)
    assert (following.letter_id, [delivery.letter_id for delivery in await mail.receive("B")]) == ("second", ["waits"])


async def test_lost_lease_cannot_acknowledge(mail: Mail, clock: Clock) -> None:
    await mail.send(result("T1", to="A", message_id="L1"))
    (lost,) = await mail.receive("A", lease_s=1)
    await pass_time(mail.store, clock, seconds=2)
    (held,) = await mail.receive("A")
    with pytest.raises(ConflictError, match="leased again"):
        await lost.ack()
    assert (await held.ack()).is_first


async def test_name_that_an_engine_cannot_store_is_rejected(mail: Mail) -> None:
    posted = to_stored(result("T1", to="A", message_id="L1"), mail.encryptor)
    with pytest.raises(FormatError, match="NUL"):
        await mail.store.mail.post(msgspec.structs.replace(posted, task_id="T\0"))
