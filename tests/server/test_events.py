"""Tests of events that requests emit: failed authentication, limits, evaluations, deleted threads and swaps."""

from __future__ import annotations

from typing import Any

from dragoman.bus import Event
from dragoman.bus.event_types.system_events import GatewayAuthFailed
from dragoman.server.admin.audit import MAX_EVENTS, WINDOW_S, AuditLog
from tests.server.conftest import ServerFixture
from tests.server.test_threads import API, make_message, make_thread


def subscribe(server: ServerFixture, *types: str) -> list[Event]:
    events: list[Event] = []
    server.agent.bus.subscribe("test", events.append, event_types=list(types))
    return events


async def test_request_without_valid_key_is_an_audit_event(keyed_server: ServerFixture) -> None:
    events = subscribe(keyed_server, "gateway.auth_failed")
    for headers in ({}, {"Authorization": "Bearer ak_live_no"}, await keyed_server.make_key("usr_1")):
        async with keyed_server.client.get(f"{API}/threads", headers=headers) as response:
            await response.read()
    await keyed_server.agent.bus.drain()
    assert [event.payload.reason for event in events] == ["unauthorized", "unauthorized"]  # type: ignore[attr-defined]


async def test_audit_events_are_bounded(keyed_server: ServerFixture) -> None:
    events = subscribe(keyed_server, "gateway.auth_failed")
    now = [0.0]
    audit = AuditLog(keyed_server.agent.bus, lambda: now[0])
    for _ in range(3 * MAX_EVENTS):
        audit.emit(GatewayAuthFailed(reason="unauthorized"))
    await keyed_server.agent.bus.drain()
    assert len(events) == MAX_EVENTS
    now[0] += WINDOW_S
    audit.emit(GatewayAuthFailed(reason="unauthorized"))
    await keyed_server.agent.bus.drain()
    assert len(events) == MAX_EVENTS + 1


async def test_evaluation_is_emitted_once_and_rejection_as_failed(chat_server: ServerFixture) -> None:
    events = subscribe(chat_server, "eval.started", "eval.completed", "eval.failed", "pattern.recorded")
    evaluation = {"task_id": "TASK-1", "score": 0.5, "agent_id": "WA"}
    for _ in range(2):
        async with chat_server.client.post(
            "/evaluate", json=evaluation, headers={"Idempotency-Key": "once"}
        ) as response:
            assert response.status == 201
    await chat_server.agent.bus.drain()
    assert [event.type for event in events] == ["eval.started", "eval.completed"]
    started, completed = (event.payload for event in events)
    assert started.evaluation_id == completed.evaluation_id  # type: ignore[attr-defined]
    assert (completed.score, completed.task_id) == (0.5, "TASK-1")  # type: ignore[attr-defined]
    events.clear()
    async with chat_server.client.post("/evaluate", json={"task_id": "TASK-1"}) as response:
        assert response.status == 422
    await chat_server.agent.bus.drain()
    assert [event.type for event in events] == ["eval.failed"]


async def test_deleted_thread_ends_session_and_swap_is_feedback(chat_server: ServerFixture) -> None:
    events = subscribe(chat_server, "session.ended", "feedback.implicit")
    thread_id = await make_thread(chat_server, make_message("hi"), make_message("and?"))
    async with chat_server.client.patch(f"{API}/threads/{thread_id}", json={"model": "anthropic"}) as response:
        assert response.status == 200
    async with chat_server.client.delete(f"{API}/threads/{thread_id}") as response:
        assert response.status == 204
    await chat_server.agent.bus.drain()
    feedback, ended = events
    assert feedback.payload.signal == "swap"  # type: ignore[attr-defined]
    payload: Any = ended.payload
    assert (ended.session_id, payload.disposition, payload.turn_count) == (thread_id, "completed", 2)
