"""Events that requests cause: keys that are not good, limits, evaluations, threads that are deleted, swaps."""

from __future__ import annotations

from typing import Any

from dragoman.bus import Event
from dragoman.bus.event_types.system_events import GatewayAuthFailed
from dragoman.server.admin.audit import MAX_EVENTS, WINDOW_S, AuditLog
from tests.server.conftest import ServerFixture
from tests.server.test_threads import API, make_message, make_thread


def subscribe(server: ServerFixture, *types: str) -> list[Event]:
    seen: list[Event] = []
    server.agent.bus.subscribe("test", seen.append, event_types=list(types))
    return seen


async def test_a_request_without_a_good_key_is_an_audit_event(keyed_server: ServerFixture) -> None:
    seen = subscribe(keyed_server, "gateway.auth_failed")
    for headers in ({}, {"Authorization": "Bearer ak_live_no"}, await keyed_server.make_key("usr_1")):
        async with keyed_server.client.get(f"{API}/threads", headers=headers) as answer:
            await answer.read()
    await keyed_server.agent.bus.drain()
    assert [event.payload.reason for event in seen] == ["unauthorized", "unauthorized"]  # type: ignore[attr-defined]


async def test_audit_events_are_bounded_however_many_bad_requests_come(keyed_server: ServerFixture) -> None:
    seen = subscribe(keyed_server, "gateway.auth_failed")
    now = [0.0]
    audit = AuditLog(keyed_server.agent.bus, lambda: now[0])
    for _ in range(3 * MAX_EVENTS):
        audit.emit(GatewayAuthFailed(reason="unauthorized"))
    await keyed_server.agent.bus.drain()
    assert len(seen) == MAX_EVENTS
    now[0] += WINDOW_S
    audit.emit(GatewayAuthFailed(reason="unauthorized"))
    await keyed_server.agent.bus.drain()
    assert len(seen) == MAX_EVENTS + 1


async def test_an_evaluation_is_told_once_and_a_refused_one_as_failed(chat_server: ServerFixture) -> None:
    seen = subscribe(chat_server, "eval.started", "eval.completed", "eval.failed", "pattern.recorded")
    judged = {"task_id": "TASK-1", "score": 0.5, "agent_id": "WA"}
    for _ in range(2):
        async with chat_server.client.post("/evaluate", json=judged, headers={"Idempotency-Key": "once"}) as answer:
            assert answer.status == 201
    await chat_server.agent.bus.drain()
    assert [event.type for event in seen] == ["eval.started", "eval.completed"]
    started, completed = (event.payload for event in seen)
    assert started.evaluation_id == completed.evaluation_id  # type: ignore[attr-defined]
    assert (completed.score, completed.task_id) == (0.5, "TASK-1")  # type: ignore[attr-defined]
    seen.clear()
    async with chat_server.client.post("/evaluate", json={"task_id": "TASK-1"}) as answer:
        assert answer.status == 422
    await chat_server.agent.bus.drain()
    assert [event.type for event in seen] == ["eval.failed"]


async def test_a_thread_that_is_deleted_has_ended_and_a_swap_is_feedback(chat_server: ServerFixture) -> None:
    seen = subscribe(chat_server, "session.ended", "feedback.implicit")
    name = await make_thread(chat_server, make_message("hi"), make_message("and?"))
    async with chat_server.client.patch(f"{API}/threads/{name}", json={"model": "anthropic"}) as answer:
        assert answer.status == 200
    async with chat_server.client.delete(f"{API}/threads/{name}") as answer:
        assert answer.status == 204
    await chat_server.agent.bus.drain()
    feedback, ended = seen
    assert feedback.payload.signal == "swap"  # type: ignore[attr-defined]
    payload: Any = ended.payload
    assert (ended.session_id, payload.disposition, payload.turn_count) == (name, "completed", 2)
