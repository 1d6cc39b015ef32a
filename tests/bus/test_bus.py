"""Tests of the bus: order, filters, validation, limits, subscribers that fail, and parents of events."""

from __future__ import annotations

import asyncio
import itertools
import logging
from decimal import Decimal
from typing import Any, ClassVar

import pytest

from dragoman.bus import SYSTEM, Actor, Bus, Event, Payload, Sensitivity
from dragoman.bus import bus as room
from dragoman.bus.event_types.system_events import BusGapDetected, EvalCompleted, MemoryEviction, SkillLoaded
from dragoman.bus.event_types.tool_events import ToolCalled, ToolCompleted
from dragoman.bus.event_types.turn_events import (
    LlmCallCompleted,
    LlmCallStarted,
    TurnCancelled,
    TurnCompleted,
    TurnStarted,
)
from dragoman.errors import BusError, EventError, UnknownEventError
from dragoman.exchange import SideEffects, StopReason

HASH = "0" * 64
EVENT_TYPES = ["turn.started", "turn.cancelled", "skill.loaded"]


def create_skill_event(name: str = "x") -> SkillLoaded:
    return SkillLoaded(skill_name=name)


def create_turn_start() -> TurnStarted:
    return TurnStarted(
        user_message_hash=HASH, estimated_input_tokens=3, has_images=False, has_tool_calls_in_history=False
    )


class Listener:
    """Records the events that it receives."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        return [event.payload.skill_name for event in self.events if isinstance(event.payload, SkillLoaded)]


async def test_events_are_delivered_in_order() -> None:
    listener = Listener()
    async with Bus(strict=True) as bus:
        bus.subscribe("listener", listener, event_types=EVENT_TYPES)
        for number in range(100):
            bus.emit(create_skill_event(str(number)), session_id="sess_1")
        await bus.drain()
        assert listener.names == [str(number) for number in range(100)]
    ids = [event.id for event in listener.events]
    assert ids == sorted(ids)
    assert len(set(ids)) == 100


async def test_event_contains_time_session_and_actor() -> None:
    ticks = itertools.count(1_700_000_000_000_000)
    bus = Bus(strict=True, clock_us=lambda: next(ticks), ids=iter(["A", "B"]).__next__)
    first = bus.emit(create_turn_start(), session_id="sess_1", turn_id="T")
    second = bus.emit(create_skill_event(), session_id="sess_1", turn_id="T", parent=first, actor="worker")
    assert first is not None
    assert second is not None
    assert (first.id, first.timestamp_us, first.turn_id, first.actor) == ("A", 1_700_000_000_000_000, "T", Actor.USER)
    assert (second.parent_event_id, second.actor) == ("A", Actor.WORKER)
    assert second.to_dict() == {
        "id": "B",
        "timestamp": "2023-11-14T22:13:20.000001Z",
        "session_id": "sess_1",
        "turn_id": "T",
        "parent_event_id": "A",
        "type": "skill.loaded",
        "actor": "worker",
        "sensitivity": "user_controlled",
        "payload": {"skill_name": "x"},
    }
    await bus.close()


async def test_events_emitted_before_start_are_delivered() -> None:
    listener = Listener()
    bus = Bus(strict=True)
    bus.subscribe("listener", listener, event_types=EVENT_TYPES)
    bus.emit(create_skill_event("early"))
    async with bus:
        bus.emit(create_skill_event("late"))
    assert listener.names == ["early", "late"]


# --- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"event_types": EVENT_TYPES}, ["a", "b", "c"]),
        ({"event_types": EVENT_TYPES, "session_ids": ["sess_1"]}, ["a", "c"]),
        ({"event_types": EVENT_TYPES, "actors": ["worker"]}, ["c"]),
        ({"event_types": EVENT_TYPES, "session_ids": ["sess_2"], "actors": [Actor.WORKER]}, []),
        ({"event_types": ["turn.started"]}, []),
        ({"session_ids": []}, []),
    ],
)
async def test_all_filter_conditions_must_match(filters: dict[str, Any], expected: list[str]) -> None:
    listener = Listener()
    async with Bus(strict=True) as bus:
        bus.subscribe("listener", listener, **filters)
        bus.emit(create_skill_event("a"), session_id="sess_1")
        bus.emit(create_skill_event("b"), session_id="sess_2")
        bus.emit(create_skill_event("c"), session_id="sess_1", actor="worker")
    assert listener.names == expected


async def test_filter_with_unknown_type_is_rejected() -> None:
    bus = Bus()
    with pytest.raises(UnknownEventError, match=r"text\.delta"):
        bus.subscribe("listener", Listener(), event_types=["text.delta"])
    await bus.close()


async def test_both_spellings_of_a_type_are_accepted() -> None:
    listener = Listener()
    async with Bus(strict=True) as bus:
        bus.subscribe("listener", listener, event_types=["tool.input_invalid"])
        bus.emit("tool.input_invalid", {"tool_name": "read", "validation_errors": ["$: wrong"]})
        bus.emit("tool_input_invalid", {"tool_name": "read", "validation_errors": ["$: wrong"]})
    assert [event.type for event in listener.events] == ["tool_input_invalid"] * 2


# --- invalid events --------------------------------------------------------------------------------------------------

INVALID_EVENTS: list[tuple[Any, dict[str, Any] | None]] = [
    ("no.such_thing", {}),
    ("text.delta", {"text": "x"}),
    ("skill.loaded", {}),
    ("skill.loaded", {"skill_name": "x", "more": 1}),
    ("skill.loaded", {"skill_name": 3}),
    ("turn.started", {"user_message_hash": "short"}),
    (SkillLoaded(skill_name=3), None),  # type: ignore[arg-type]
    (SkillLoaded(skill_name="\ud800"), None),
    (MemoryEviction(memory_ids=("a",), reason=object()), None),  # type: ignore[arg-type]
    (TurnCancelled(reason="bored", partial_llm_calls=0, partial_tool_calls=0), None),  # type: ignore[arg-type]
    (TurnCancelled(reason="timeout", partial_llm_calls=-1, partial_tool_calls=0), None),
    (EvalCompleted(evaluation_id="e", evaluator="me", score=float("nan")), None),
]


@pytest.mark.parametrize(("event", "payload"), INVALID_EVENTS)
async def test_invalid_event_raises_when_strict_and_is_dropped_otherwise(
    event: Any, payload: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener()
    async with Bus(strict=True) as bus:
        with pytest.raises((EventError, UnknownEventError)):
            bus.emit(event, payload)
    async with Bus() as bus:
        bus.subscribe("listener", listener, event_types=EVENT_TYPES)
        with caplog.at_level(logging.WARNING, "dragoman.bus"):
            assert bus.emit(event, payload) is None
    assert listener.events == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_invalid_actor_and_empty_session_are_rejected() -> None:
    async with Bus(strict=True) as bus:
        with pytest.raises(EventError, match="nobody"):
            bus.emit(create_skill_event(), actor="nobody")
        with pytest.raises(EventError, match="no session"):
            bus.emit(create_skill_event(), session_id="")


async def test_sensitivity_can_only_become_less_private() -> None:
    async with Bus(strict=True) as bus:
        event = bus.emit(create_skill_event(), sensitivity="aggregatable")
        assert event is not None
        assert event.sensitivity is Sensitivity.AGGREGATABLE
        with pytest.raises(EventError, match="cannot be private"):
            bus.emit(create_skill_event(), sensitivity=Sensitivity.PRIVATE)
        with pytest.raises(EventError, match="secret"):
            bus.emit(create_skill_event(), sensitivity="secret")


async def test_application_can_register_its_own_events() -> None:
    class HelloPayload(Payload, frozen=True, kw_only=True):
        event_type: ClassVar = "app.greeted"
        actor: ClassVar = Actor.USER
        floor: ClassVar = Sensitivity.PRIVATE
        name: str

    listener = Listener()
    async with Bus(strict=True, payloads=[HelloPayload]) as bus:
        bus.subscribe("listener", listener, event_types=["app.greeted"])
        bus.emit(HelloPayload(name="Ada"))
        bus.emit("app.greeted", {"name": "Grace"})
    assert [event.payload for event in listener.events] == [HelloPayload(name="Ada"), HelloPayload(name="Grace")]
    async with Bus(strict=True) as bus:
        with pytest.raises(UnknownEventError):
            bus.emit(HelloPayload(name="Ada"))


@pytest.mark.parametrize("name", ["text.mine", "message.mine", "thinking.x", "tool.use_x", "turn.started"])
def test_application_cannot_reuse_an_event_type(name: str) -> None:
    class ReservedPayload(Payload, frozen=True, kw_only=True):
        event_type: ClassVar = name
        actor: ClassVar = Actor.USER
        floor: ClassVar = Sensitivity.PRIVATE

    with pytest.raises(EventError):
        Bus(payloads=[ReservedPayload])


# --- limits ----------------------------------------------------------------------------------------------------------


async def test_full_bus_raises_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(limit=3)
    for _ in range(3):
        bus.emit(create_skill_event())
    with caplog.at_level(logging.ERROR, "dragoman.bus"), pytest.raises(BusError) as caught:
        bus.emit(create_skill_event())
    assert caught.value.code == "bus_overflow"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    await bus.drain()
    assert bus.emit(create_skill_event()) is not None
    await bus.close()


async def test_bus_queues_ten_thousand_events() -> None:
    bus = Bus()
    for _ in range(10_000):
        bus.emit(create_skill_event())
    with pytest.raises(BusError):
        bus.emit(create_skill_event())
    await bus.close()


async def test_slow_subscriber_receives_a_gap_event_at_its_position() -> None:
    released = asyncio.Event()
    slow, other = Listener(), Listener()

    async def receive_when_released(event: Event) -> None:
        await released.wait()
        slow(event)

    async with Bus(strict=True) as bus:
        bus.subscribe("slow", receive_when_released, event_types=EVENT_TYPES, limit=4)
        bus.subscribe("other", other)
        await wait_until_dispatched(bus)
        emitted = [bus.emit(create_skill_event(str(number))) for number in range(10)]
        await wait_until_dispatched(bus)
        assert other.names == [str(number) for number in range(10)]
        released.set()
        await bus.drain()
        bus.emit(create_skill_event("after"))
    gap = slow.events[4]
    assert slow.names == ["0", "1", "2", "3", "after"]
    assert emitted[4] is not None
    assert emitted[9] is not None
    assert gap.payload == BusGapDetected(
        subscriber="slow", missed=6, first_event_id=emitted[4].id, last_event_id=emitted[9].id
    )
    assert gap.session_id == SYSTEM
    assert gap in other.events


async def wait_until_dispatched(bus: Bus) -> None:
    """Wait until the bus has queued every event for its subscribers."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_burst_loses_no_event_of_a_fast_subscriber() -> None:
    listener = Listener()
    async with Bus(strict=True) as bus:
        subscription = bus.subscribe("listener", listener, event_types=EVENT_TYPES, limit=100)
        for number in range(9_000):
            bus.emit(create_skill_event(str(number)))
    assert subscription.missed_count == 0
    assert len(listener.events) == 9_000


async def test_exception_in_a_subscriber_loses_only_that_event(caplog: pytest.LogCaptureFixture) -> None:
    raising, sound = Listener(), Listener()

    async def receive(event: Event) -> None:
        if event.payload == create_skill_event("bad"):
            raise RuntimeError("no")
        raising(event)

    async with Bus(strict=True) as bus:
        subscription = bus.subscribe("raising", receive, event_types=EVENT_TYPES)
        bus.subscribe("raising fast", receive, event_types=EVENT_TYPES, fast=True)
        bus.subscribe("sound", sound, event_types=EVENT_TYPES)
        for name in ("a", "bad", "b"):
            bus.emit(create_skill_event(name))
        await bus.drain()
        assert subscription.failed_count == 1
    assert sound.names == ["a", "bad", "b"]
    assert sorted(raising.names) == ["a", "a", "b", "b"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


async def test_subscriber_stays_after_an_inner_cancellation() -> None:
    listener = Listener()

    async def receive(event: Event) -> None:
        if event.payload == create_skill_event("bad"):
            raise asyncio.CancelledError
        listener(event)

    async with Bus(strict=True) as bus:
        bus.subscribe("listener", receive, event_types=EVENT_TYPES)
        for name in ("bad", "good"):
            bus.emit(create_skill_event(name))
    assert listener.names == ["good"]


async def test_fast_subscribers_run_before_queued_ones() -> None:
    calls: list[str] = []

    async def fast(event: Event) -> None:
        await asyncio.sleep(0.01)
        calls.append("fast")

    async with Bus(strict=True) as bus:
        bus.subscribe("slow", lambda _: calls.append("slow"), event_types=EVENT_TYPES)
        bus.subscribe("fast", fast, event_types=EVENT_TYPES, fast=True)
        bus.emit(create_skill_event())
        bus.emit(create_skill_event())
    assert calls[0] == "fast"
    assert sorted(calls) == ["fast", "fast", "slow", "slow"]


async def test_slow_subscriber_cannot_be_fast() -> None:
    bus = Bus()
    with pytest.raises(EventError, match="slow"):
        bus.subscribe("listener", Listener(), fast=True, slow=True)
    await bus.close()


async def test_fast_subscriber_that_blocks_is_demoted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, "_FAST_TIMEOUT_S", 0.01)
    hanging, other = Listener(), Listener()

    async def hang_once(event: Event) -> None:
        if not hanging.events:
            hanging(event)
            await asyncio.Event().wait()
        hanging(event)

    async with Bus(strict=True) as bus:
        subscription = bus.subscribe("hanging", hang_once, event_types=EVENT_TYPES, fast=True)
        bus.subscribe("other", other, event_types=EVENT_TYPES)
        for name in ("a", "b", "c"):
            bus.emit(create_skill_event(name))
        await bus.drain()
        assert not subscription.is_fast
    assert other.names == ["a", "b", "c"]
    assert hanging.names == ["a", "b", "c"]
    assert "it has a queue from now on" in caplog.text


# --- close -----------------------------------------------------------------------------------------------------------


async def test_close_delivers_queued_events() -> None:
    listener = Listener()

    async def receive(event: Event) -> None:
        await asyncio.sleep(0)
        listener(event)

    async with Bus(strict=True) as bus:
        bus.subscribe("listener", receive, event_types=EVENT_TYPES)
        for number in range(500):
            bus.emit(create_skill_event(str(number)))
    assert len(listener.events) == 500
    with pytest.raises(BusError) as caught:
        bus.emit(create_skill_event())
    assert caught.value.code == "bus_closed"
    with pytest.raises(BusError):
        bus.subscribe("late", listener)
    await bus.close()


async def test_close_times_out(caplog: pytest.LogCaptureFixture) -> None:
    async def hang(event: Event) -> None:
        await asyncio.Event().wait()

    bus = Bus(strict=True)
    bus.subscribe("hanging", hang, event_types=EVENT_TYPES)
    bus.emit(create_skill_event())
    bus.emit(create_skill_event())
    await bus.close(timeout_s=0.05)
    assert "undelivered events" in caplog.text


async def test_unsubscribe_delivers_queued_events_only() -> None:
    listener, other = Listener(), Listener()
    async with Bus(strict=True) as bus:
        bus.subscribe("other", other)
        subscription = bus.subscribe("listener", listener, event_types=EVENT_TYPES)
        bus.emit(create_skill_event("before"))
        await wait_until_dispatched(bus)
        await bus.unsubscribe(subscription)
        await bus.unsubscribe(subscription)
        bus.emit(create_skill_event("after"))
    assert listener.names == ["before"]
    assert [event.type for event in other.events] == [
        "bus.subscriber_registered",
        "bus.subscriber_registered",
        "skill.loaded",
        "bus.subscriber_unregistered",
        "skill.loaded",
    ]


async def test_subscriber_can_unsubscribe_itself() -> None:
    listener = Listener()
    async with Bus(strict=True) as bus:

        async def once(event: Event) -> None:
            listener(event)
            await bus.unsubscribe(subscription)

        subscription = bus.subscribe("listener", once, event_types=EVENT_TYPES)
        bus.emit(create_skill_event("a"))
        await bus.drain()
        bus.emit(create_skill_event("b"))
    assert listener.names == ["a"]


async def test_batches_contain_queued_events() -> None:
    batches: list[list[str]] = []

    async def receive(events: Any) -> None:
        batches.append([event.payload.skill_name for event in events])

    bus = Bus(strict=True)
    bus.subscribe_batches("listener", receive, event_types=EVENT_TYPES, max_batch=4)
    for number in range(10):
        bus.emit(create_skill_event(str(number)))
    await bus.close()
    assert [name for batch in batches for name in batch] == [str(number) for number in range(10)]
    assert max(len(batch) for batch in batches) == 4


# --- parents ---------------------------------------------------------------------------------------------------------


async def test_scope_derives_the_parents_of_a_turn() -> None:
    async with Bus(strict=True) as bus:
        turn = bus.scope("sess_1", "turn_1")
        emitted: dict[str, Event] = {}

        def emit(name: str, payload: Payload) -> None:
            event = turn.emit(payload)
            assert event is not None
            emitted[name] = event

        emit("turn", create_turn_start())
        decided = turn.emit("route.decided", {"chosen_model": "m", "winner_index": 0, "elapsed_ms": 0.1, "chain": []})
        emit("call 1", create_call_start())
        emit("answer 1", create_call_end(StopReason.TOOL_USE))
        requested = turn.emit(
            "tool.confirmation_requested",
            {
                "tool_use_id": "tu_a",
                "tool_name": "t",
                "confirmation_request_id": "c",
                "input_summary": "{}",
                "expires_at": "2026-11-15T12:00:00Z",
            },
        )
        allowed = turn.emit(
            "tool.confirmation_resolved", {"tool_use_id": "tu_a", "confirmation_request_id": "c", "decision": "allow"}
        )
        emit("tool a", create_tool_start("tu_a"))
        emit("tool b", create_tool_start("tu_b"))
        emit("result b", create_tool_end("tu_b"))
        emit("result a", create_tool_end("tu_a"))
        emit("call 2", create_call_start())
        emit("answer 2", create_call_end(StopReason.END_TURN))
        emit("end", create_turn_end())
    parents = {name: event.parent_event_id for name, event in emitted.items()}
    names = {event.id: name for name, event in emitted.items()}
    assert requested is not None
    assert requested.parent_event_id == emitted["answer 1"].id
    assert allowed is not None
    assert allowed.parent_event_id == requested.id
    assert decided is not None
    assert decided.parent_event_id == emitted["turn"].id
    assert {name: names.get(parent or "") for name, parent in parents.items()} == {
        "turn": None,
        "call 1": "turn",
        "answer 1": "call 1",
        "tool a": "answer 1",
        "tool b": "answer 1",
        "result b": "tool b",
        "result a": "tool a",
        "call 2": "result a",
        "answer 2": "call 2",
        "end": "turn",
    }
    assert {event.turn_id for event in emitted.values()} == {"turn_1"}


async def test_explicit_parent_wins() -> None:
    async with Bus(strict=True) as bus:
        turn = bus.scope("sess_1", "turn_1", actor="worker")
        turn.emit(create_turn_start())
        event = turn.emit(create_skill_event(), parent="somebody")
        assert event is not None
        assert (event.parent_event_id, event.actor) == ("somebody", Actor.WORKER)


async def test_scopes_of_one_turn_share_parents() -> None:
    async with Bus(strict=True) as bus:
        turn = bus.scope("sess_1", "turn_1")
        first = turn.emit(create_turn_start())
        second = bus.scope("sess_1", "turn_1").emit(create_call_start())
        unrelated = bus.scope("sess_1", "turn_2").emit(create_call_start())
        assert first is not None
        assert second is not None
        assert unrelated is not None
        assert second.parent_event_id == first.id
        assert unrelated.parent_event_id is None


def create_call_start() -> LlmCallStarted:
    return LlmCallStarted(model="m", provider="p", estimated_input_tokens=1, request_id="r")


def create_call_end(stop_reason: StopReason) -> LlmCallCompleted:
    return LlmCallCompleted(
        model="m",
        provider="p",
        input_tokens=1,
        output_tokens=1,
        cost_usd=Decimal("0.000654"),
        pricing_version="v",
        latency_ms=1,
        stop_reason=stop_reason,
    )


def create_tool_start(tool_use_id: str) -> ToolCalled:
    return ToolCalled(
        tool_use_id=tool_use_id, tool_name="t", input_hash=HASH, input_size_bytes=2, side_effects=SideEffects.NONE
    )


def create_tool_end(tool_use_id: str) -> ToolCompleted:
    return ToolCompleted(tool_use_id=tool_use_id, success=True, output_size_bytes=1, latency_ms=1)


def create_turn_end() -> TurnCompleted:
    return TurnCompleted(
        stop_reason=StopReason.END_TURN,
        llm_call_count=2,
        tool_call_count=2,
        total_input_tokens=2,
        total_output_tokens=2,
        total_cost_usd=Decimal("0.001308"),
        wall_time_seconds=1.5,
    )
