"""Tests of traces and evaluations: idempotency, order, redaction, retention and the writer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import apsw
import msgspec
import pytest

from dragoman.bus import AUDIT, Bus
from dragoman.bus.event_types.system_events import GatewayKeyIssued, SkillLoaded
from dragoman.bus.event_types.turn_events import TurnCompleted, TurnStarted
from dragoman.bus.trace_writer import TraceWriter
from dragoman.errors import CorruptDataError, FormatError, StorageError, UnknownSessionError
from dragoman.exchange import StopReason
from dragoman.redaction import Redactor, Rule
from dragoman.routing.pattern import Fingerprint, PatternSample
from dragoman.store import Store, TraceEvent, open_store
from dragoman.store.trace import AUDIT_TYPES, SYSTEM, _old_events
from tests.store.conftest import Clock, StoreLocation
from tests.store.first_version import _metadata
from tests.store.messages import answer_message, text_message
from tests.test_redaction import KEYS


class BusEvent(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    timestamp_us: int
    session_id: str
    turn_id: str | None
    parent_event_id: str | None
    type: str
    actor: str
    sensitivity: str
    payload_json: bytes


def create_event(
    number: int, session_id: str, kind: str = "skill.loaded", at_us: int = 1_800_000_000_000_000, **payload: Any
) -> BusEvent:
    return BusEvent(
        id=f"01K{number:023d}",
        timestamp_us=at_us + number,
        session_id=session_id,
        turn_id=f"turn_{number // 10}",
        parent_event_id=None if number == 0 else f"01K{number - 1:023d}",
        type=kind,
        actor="system",
        sensitivity="private",
        payload_json=msgspec.json.encode(payload or {"n": number}),
    )


# --- events ----------------------------------------------------------------------------------------------------------


async def test_events_are_read_in_order_by_page(store: Store) -> None:
    session = await store.create_session()
    assert await store.trace.append([create_event(number, session.id) for number in range(120)]) == 120
    found: list[TraceEvent] = []
    while page := await store.trace.events(session.id, found[-1].id if found else "", 50):
        found += page
    assert [item.payload for item in found] == [{"n": number} for number in range(120)]
    first = found[1]
    assert (first.turn_id, first.type, first.actor, first.sensitivity) == (
        "turn_0",
        "skill.loaded",
        "system",
        "private",
    )
    assert first.parent_event_id == found[0].id
    assert first.timestamp.isoformat() == "2027-01-15T08:00:00.000001+00:00"


async def test_events_are_filtered_by_type_and_turn(store: Store) -> None:
    session = await store.create_session()
    kinds = ["turn.started", "llm.call_started", "turn.completed"]
    await store.trace.append([create_event(number, session.id, kinds[number % 3]) for number in range(30)])
    chosen = await store.trace.events(session.id, types=["turn.started", "turn.completed"], turn_id="turn_1")
    assert [item.payload["n"] for item in chosen] == [11, 12, 14, 15, 17, 18]
    assert await store.trace.events(session.id, types=[]) == []


async def test_repeated_events_are_stored_once(store: Store) -> None:
    session = await store.create_session()
    events = [create_event(number, session.id) for number in range(3)]
    assert await store.trace.append(events) == 3
    assert await store.trace.append([*events, create_event(3, session.id)]) == 1
    assert len(await store.trace.events(session.id)) == 4


async def test_events_of_deleted_session_are_not_stored(store: Store) -> None:
    session = await store.create_session()
    await store.delete_session(session.id)
    assert (
        await store.trace.append([create_event(0, SYSTEM), create_event(1, session.id), create_event(2, "sess_never")])
        == 1
    )
    assert [item.payload for item in await store.trace.events(SYSTEM)] == [{"n": 0}]
    assert await store.trace.events(session.id) == []


async def test_secrets_are_redacted_before_write(store: Store) -> None:
    session = await store.create_session()
    key = "gsk_" + "a1B2c3D4e5" * 5
    await store.trace.append(
        [
            create_event(0, session.id, error_message=f"the key {key} is wrong", password="hunter2"),
            create_event(1, session.id, x="badge 7"),
        ],
        Redactor(rules=[Rule("badge", r"badge (\d)")]),
    )
    first, second = await store.trace.events(session.id)
    assert first.payload == {"error_message": "the key [redacted:groq_key] is wrong", "password": "[redacted:password]"}
    assert second.payload == {"x": "badge [redacted:badge]"}


async def test_json_payload_round_trips(store: Store) -> None:
    session = await store.create_session()
    payload = {"nul": "a\0b", "emoji": "🎉", "big": 2**63, "list": [None, 1.5, True, {}], "quote": "'\";--"}
    await store.trace.append([create_event(0, session.id, **payload)])
    (found,) = await store.trace.events(session.id)
    assert found.payload == payload


async def test_trace_is_deleted_with_session(store: Store) -> None:
    deleted, kept = await store.create_session(), await store.create_session()
    for session in (deleted, kept):
        await store.trace.append([create_event(0, session.id)])
        await store.evaluations.record(session.id, score=1)
    await store.delete_session(deleted.id)
    assert await store.trace.events(deleted.id) == []
    assert await store.evaluations.find(deleted.id) == []
    assert len(await store.trace.events(kept.id)) == 1
    assert len(await store.evaluations.find()) == 1


async def test_fork_starts_without_trace(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message("Hello"))
    await store.trace.append([create_event(0, session.id)])
    fork = await store.fork(session.id)
    assert await store.trace.events(fork.id) == []


async def test_sweep_keeps_recent_and_audit_events(store: Store, clock: Clock) -> None:
    session = await store.create_session()
    store.clock = clock
    now_us = int(clock.now.timestamp() * 1_000_000)
    day_us = 86_400_000_000
    await store.trace.append(
        [
            *(create_event(number, session.id, at_us=now_us - 91 * day_us) for number in range(1_200)),
            create_event(2_000, session.id, at_us=now_us - 89 * day_us),
            create_event(2_001, SYSTEM, "gateway.key_issued", at_us=now_us - 500 * day_us),
            create_event(2_002, SYSTEM, "bus.subscriber_registered", at_us=now_us - 500 * day_us),
        ]
    )
    assert await store.trace.delete_old_events(dry_run=True) == 1_201
    assert await store.trace.delete_old_events() == 1_201
    assert [item.payload["n"] for item in await store.trace.events(session.id, limit=5_000)] == [2_000]
    assert [item.type for item in await store.trace.events(SYSTEM)] == ["gateway.key_issued"]
    assert await store.trace.delete_old_events(timedelta(days=1)) == 1


async def test_old_events_are_found_by_index(tmp_path: Any) -> None:
    path = tmp_path / "chats.db"
    async with open_store(f"sqlite:///{path}"):
        pass
    connection = apsw.Connection(str(path))
    condition, arguments = _old_events(datetime.now(UTC), AUDIT_TYPES)
    sql = f"EXPLAIN QUERY PLAN SELECT session_id, id FROM events WHERE {condition} ORDER BY timestamp_us LIMIT 5"
    steps = [row[3] for row in connection.execute(sql, arguments).fetchall()]
    connection.close()
    assert steps == ["SEARCH events USING INDEX events_by_time (timestamp_us<?)"]


def test_audit_events_equal_those_of_catalogue() -> None:
    assert frozenset(AUDIT_TYPES) == AUDIT


# --- evaluations -----------------------------------------------------------------------------------------------------

FINGERPRINT = Fingerprint(intent_tags=("fix",), file_extensions=(".py",), token_bucket="<1k")


async def test_evaluation_round_trips(store: Store) -> None:
    session = await store.create_session()
    evaluation = await store.evaluations.record(
        session.id,
        score=0.75,
        success=True,
        evaluator="judge",
        turn_id="turn_1",
        message_id="01M",
        task_id="TASK-1",
        agent_id="scout",
        plan_id="plan",
        model="anthropic:claude-sonnet-4-6",
        cost_usd=Decimal("0.000654"),
        duration_ms=12.5,
        notes="fine\0, password=hunter2",
        fingerprint=FINGERPRINT,
    )
    assert evaluation.notes == "fine␀, password=[redacted:password]"
    assert await store.evaluations.find(session.id) == [evaluation]
    assert await store.evaluations.find(task_id="TASK-1") == [evaluation]
    assert await store.evaluations.find(agent_id="scout", limit=1) == [evaluation]
    assert await store.evaluations.find(agent_id="nobody") == []


async def test_task_without_session_is_evaluated(store: Store) -> None:
    evaluation = await store.evaluations.record(task_id="TASK-1", success=False, evaluator="judge")
    assert evaluation.session_id == SYSTEM
    assert await store.evaluations.find(task_id="TASK-1") == [evaluation]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"score": 1.01},
        {"score": -0.1},
        {"score": float("nan")},
        {"score": 1, "duration_ms": float("inf")},
        {"score": 1, "duration_ms": -1},
        {"score": 1, "cost_usd": Decimal("NaN")},
        {"score": 1, "evaluator": ""},
    ],
)
async def test_invalid_evaluation_is_rejected(store: Store, wrong: dict[str, Any]) -> None:
    session = await store.create_session()
    with pytest.raises(FormatError):
        await store.evaluations.record(session.id, **wrong)
    assert await store.evaluations.find() == []


async def test_evaluation_of_unknown_session_raises(store: Store) -> None:
    with pytest.raises(UnknownSessionError):
        await store.evaluations.record("sess_never", score=1)


async def test_latest_evaluation_of_turn_is_used(store: Store, clock: Clock) -> None:
    store.clock = clock
    mine, other = await store.create_session(user_id="ada"), await store.create_session(user_id="grace")
    await store.evaluations.record(mine.id, score=0.1, turn_id="t1", model="a:m", fingerprint=FINGERPRINT)
    clock.move(seconds=1)
    await store.evaluations.record(
        mine.id, score=0.9, turn_id="t1", model="a:m", fingerprint=FINGERPRINT, cost_usd=Decimal("0.5")
    )
    clock.move(seconds=1)
    await store.evaluations.record(other.id, success=False, turn_id="t1", model="b:m", fingerprint=FINGERPRINT)
    await store.evaluations.record(mine.id, score=1, turn_id="t2", model="a:m")
    first = PatternSample(fingerprint=FINGERPRINT, primary_model="b:m", success=0.0)
    second = PatternSample(fingerprint=FINGERPRINT, primary_model="a:m", success=0.9, cost_usd=Decimal("0.5"))
    assert await store.evaluations.samples() == [first, second]
    assert await store.evaluations.samples(user_id="ada") == [second]
    assert await store.evaluations.samples(limit=1) == [first]


# --- retention--------------------------------------------------------------------------------------------------------


async def test_erasure_removes_user_from_other_traces(store: Store) -> None:
    own, others = await store.create_session(user_id="usr_1"), await store.create_session(user_id="usr_2")
    for session in (own, others):
        await store.trace.append(
            [create_event(0, session.id, user_id="usr_1", team_id="team_1", deep=[{"who": "usr_1"}])]
        )
        await store.trace.append([create_event(1, session.id, user_id="usr_11")])
        await store.evaluations.record(session.id, score=1, evaluator="usr_1", notes="from me")
    await store.erase_user("usr_1")
    assert await store.trace.events(own.id) == []
    first, second = await store.trace.events(others.id)
    assert first.payload == {"team_id": "team_1", "deep": [{}]}
    assert second.payload == {"user_id": "usr_11"}
    (judged,) = await store.evaluations.find()
    assert (judged.session_id, judged.evaluator, judged.notes, judged.score) == (others.id, "[erased]", None, 1.0)
    assert (await store.verify()).is_sound


async def test_export_contains_trace(store: Store, store_location: StoreLocation) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message("Hello"))
    await store.trace.append([create_event(number, session.id) for number in range(3)])
    await store.trace.append([create_event(9, SYSTEM)])
    evaluation = await store.evaluations.record(
        session.id, score=0.5, fingerprint=FINGERPRINT, cost_usd=Decimal("1E-7")
    )
    lines = [line async for line in store.export(session.id)]
    async with open_store("memory:") as target:
        await target.import_session(lines)
        await target.import_session(lines)
        assert await target.trace.events(session.id) == await store.trace.events(session.id)
        assert await target.evaluations.find(session.id) == [evaluation]
        copy = await target.import_session(lines, "sess_copy")
        assert [item.payload for item in await target.trace.events(copy.id)] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert [evaluation.session_id for evaluation in await target.evaluations.find(copy.id)] == ["sess_copy"]
        assert (await target.verify()).is_sound
        assert await target.trace.events(SYSTEM) == []


async def test_backup_contains_trace(store: Store, tmp_path: Any) -> None:
    session = await store.create_session()
    await store.trace.append([create_event(0, session.id), create_event(1, SYSTEM)])
    evaluation = await store.evaluations.record(session.id, score=0.5)
    await store.backup(tmp_path / "copy.db")
    async with open_store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert await copy.trace.events(session.id) == await store.trace.events(session.id)
        assert await copy.trace.events(SYSTEM) == await store.trace.events(SYSTEM)
        assert await copy.evaluations.find() == [evaluation]


@pytest.mark.parametrize("table", ["events", "evaluations"])
@pytest.mark.parametrize("of", ["session", SYSTEM])
async def test_changed_row_is_detected_and_never_returned(tmp_path: Any, table: str, of: str) -> None:
    path = tmp_path / "store.db"
    async with open_store(f"sqlite:///{path}") as store:
        name = (await store.create_session()).id if of == "session" else SYSTEM
        await store.trace.append([create_event(0, name)])
        await store.evaluations.record(name, score=0.5)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE events SET actor = 'user'" if table == "events" else "UPDATE evaluations SET score = 1")
    connection.close()
    async with open_store(f"sqlite:///{path}") as store:
        with pytest.raises(CorruptDataError):
            await (store.trace.events(name) if table == "events" else store.evaluations.find())
        found = await store.verify()
        assert ["its hash does not match its content" in damage.what for damage in found.damage] == [True]


async def test_size_report_includes_trace(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        report = await store.sizes()
    assert {"events", "evaluations"} <= set(report.tables)


async def test_orphaned_trace_rows_are_reported(tmp_path: Any) -> None:
    path = tmp_path / "store.db"
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        await store.trace.append([create_event(0, session.id)])
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM sessions")
    connection.close()
    async with open_store(f"sqlite:///{path}") as store:
        found = [damage.what for damage in (await store.verify()).damage]
        assert f"there are events of session {session.id}, which does not exist" in found


async def test_trace_is_not_written_during_deletion(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as other:
        for number in range(20):
            session = await first_store.create_session()
            await asyncio.gather(
                first_store.trace.append([create_event(number, session.id) for number in range(60)]),
                other.delete_session(session.id),
                other.trace.append([create_event(100 + number, session.id)]),
                first_store.trace.delete_old_events(dry_run=True),
            )
        assert (await first_store.verify()).damage == ()
        assert (await first_store.verify()).sessions == 0


async def test_api_keys_are_not_written_to_disk(tmp_path: Any) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        session = await store.create_session()
        async with Bus(strict=True) as bus:
            TraceWriter(store).listen(bus)
            for name, key in KEYS.items():
                bus.emit(SkillLoaded(skill_name=name, reason=f"because of {key}"), session_id=session.id)
        await store.evaluations.record(session.id, score=1, notes=" ".join(KEYS.values()))
        assert len(await store.trace.events(session.id)) == len(KEYS)
        written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"[redacted:" in written
    assert [name for name, key in KEYS.items() if key.encode() in written] == []


# --- the writer ------------------------------------------------------------------------------------------------------


def create_turn_start() -> TurnStarted:
    return TurnStarted(
        user_message_hash="0" * 64, estimated_input_tokens=3, has_images=False, has_tool_calls_in_history=False
    )


async def test_bus_events_are_stored_before_close(store: Store) -> None:
    session = await store.create_session()
    writer = TraceWriter(store)
    async with Bus(strict=True) as bus:
        writer.listen(bus)
        turn = bus.scope(session.id, "turn_1")
        turn.emit(create_turn_start())
        turn.emit(SkillLoaded(skill_name="token=" + "a1B2c3D4" * 4))
        turn.emit(
            TurnCompleted(
                stop_reason=StopReason.END_TURN,
                llm_call_count=1,
                tool_call_count=0,
                total_input_tokens=1,
                total_output_tokens=1,
                total_cost_usd=Decimal("0.000654"),
                wall_time_seconds=0.5,
            )
        )
    first, second, third = await store.trace.events(session.id)
    assert second.payload == {"skill_name": "token=[redacted:secret]"}
    assert third.payload["total_cost_usd"] == "0.000654"
    assert (second.parent_event_id, third.parent_event_id) == (first.id, first.id)
    assert [item.type for item in await store.trace.events(SYSTEM)] == ["bus.subscriber_registered"]


async def test_writer_can_be_drained_and_closed_before_bus(store: Store) -> None:
    session = await store.create_session()
    writer = TraceWriter(store, max_delay_s=60)
    async with Bus(strict=True) as bus:
        writer.listen(bus)
        bus.emit(create_turn_start(), session_id=session.id)
        await writer.flush()
        assert len(await store.trace.events(session.id)) == 1
        bus.emit(create_turn_start(), session_id=session.id)
        await writer.close()
        assert len(await store.trace.events(session.id)) == 2
        bus.emit(create_turn_start(), session_id=session.id)
    assert len(await store.trace.events(session.id)) == 2


async def test_writer_sweeps_daily_and_emits_event(store: Store, clock: Clock) -> None:
    store.clock = clock
    old_us = int(clock.now.timestamp() * 1_000_000) - 100 * 86_400_000_000
    await store.trace.append([create_event(number, SYSTEM, at_us=old_us) for number in range(5)])
    seconds = iter([0.0, 10.0, 90_000.0])
    writer = TraceWriter(store, max_delay_s=0, clock_s=lambda: next(seconds, 90_000.0))
    async with Bus(strict=True) as bus:
        writer.listen(bus)
        await writer.flush()
        await store.trace.append([create_event(number, SYSTEM, at_us=old_us) for number in range(5)])
        bus.emit(GatewayKeyIssued(gateway_key_id="key"))
        await writer.flush()
        bus.emit(GatewayKeyIssued(gateway_key_id="key"))
        await writer.flush()
    swept = await store.trace.events(SYSTEM, types=["trace.swept"])
    assert [item.payload for item in swept] == [{"deleted": 5, "older_than_days": 90.0}] * 2


async def test_writer_retries_after_storage_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.bus.trace_writer._RETRY_DELAYS_S", (0.0, 0.0))
    session = await store.create_session()
    append, failures = store.trace.append, iter([True, True])

    async def fail_once(*arguments: Any) -> int:
        if next(failures, False):
            raise StorageError("the disk is tired")
        return await append(*arguments)

    monkeypatch.setattr(store.trace, "append", fail_once)
    async with Bus(strict=True) as bus:
        TraceWriter(store).listen(bus)
        bus.emit(create_turn_start(), session_id=session.id)
    assert len(await store.trace.events(session.id)) == 1


# --- repricing -------------------------------------------------------------------------------------------------------


async def test_repricing_is_stored_beside_original_costs(store: Store) -> None:
    session = await store.create_session()
    await store.append(
        session.id,
        [answer_message("A", **_metadata("0.5")), text_message("B"), answer_message("C", **_metadata("0.25"))],
    )
    calls = [call async for call in store.costs.calls()]
    assert [(call.seq, call.model, call.usage.cost_usd) for call in calls] == [
        (1, "anthropic:claude-sonnet-4-6", Decimal("0.5")),
        (3, "anthropic:claude-sonnet-4-6", Decimal("0.25")),
    ]
    assert [call async for call in store.costs.calls(model="other")] == []
    assert await store.costs.save_repricing("v2", [(session.id, 1, Decimal("0.1")), ("sess_never", 1, Decimal(9))]) == 2
    await store.costs.save_repricing("v2", [(session.id, 1, Decimal("0.3"))])
    assert await store.costs.versions() == ["v2"]
    (total,) = await store.costs.totals("model", version="v2")
    assert total.cost_usd == Decimal("0.55")
    (as_charged,) = await store.costs.totals("model")
    assert as_charged.cost_usd == Decimal("0.75")
    assert [call async for call in store.costs.calls()] == calls
    assert (await store.verify()).is_sound
    fork = await store.fork(session.id)
    await store.append(fork.id, text_message("D"))
    await store.delete_session(session.id)
    (total,) = await store.costs.totals("session", version="v2", session=fork.id)
    assert total.cost_usd == Decimal("0.55")
    await store.delete_session(fork.id)
    assert await store.costs.versions() == []
