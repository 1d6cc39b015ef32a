"""``POST /connect``: the messages of a thread for a client that opens it, then the events of its active run.

A client that knows only the id of a thread gets one MESSAGES_SNAPSHOT inside of a run that the server makes up for it,
as the protocol requires. If a run is active, the snapshot follows the first event of that run, and the run goes on in
the same stream. An interrupt that is still open is the outcome, so that the client can answer it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from dragoman.ids import name_from_id
from dragoman.server.auth.principal import find_thread, get_principal
from dragoman.server.http.endpoint import EventStream, chat_endpoint
from dragoman.server.http.requests import app_state, json_body, parse_as, validate_id
from dragoman.server.runs.agui_encoder import AguiEncoder
from dragoman.server.runs.agui_snapshot import make_restore_snapshot
from dragoman.server.runs.endpoints import ProtoStream
from dragoman.server.runs.run_input import to_camel_case
from dragoman.server.runs.stream_encoder import AguiSseEncoder, EventStreamResponse, agui_encoder_for, encode_event
from dragoman.store.runs import Run, RunEvent

if TYPE_CHECKING:
    from starlette.requests import Request

    from dragoman.server.state import AppState
    from dragoman.store import Session


class ConnectInput(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of RunAgentInput that name a thread; all others are ignored."""

    thread_id: str
    run_id: str
    protocol_version: str | None = None


async def post_connect(request: Request) -> Response:
    """Stream the messages of a thread, and its active run."""
    value = parse_as(to_camel_case(await json_body(request)), ConnectInput)
    validate_id(value.run_id, "runId")
    state = app_state(request)
    session = await find_thread(state.store, get_principal(request), validate_id(value.thread_id, "threadId"))
    encoder = agui_encoder_for(request.headers.get("accept", "")) or AguiSseEncoder()
    if session is None:  # a new thread: there is nothing to restore
        return Response(b"", 200, headers=dict(encoder.headers), media_type=encoder.media_type)
    run = await state.store.runs.latest(session.id)
    active = run if run is not None and run.is_running else None
    is_modern, active_id = value.protocol_version is not None, None if active is None else active.run_id
    messages = await make_restore_snapshot(request, session, active_id, is_modern=is_modern)
    if active is not None:
        return EventStreamResponse(_follow_run(state, active, messages), encoder, encoder.encode(()))
    events = [_make_event(run, event) for event in _make_restore_events(state, session, run, value, messages)]
    return EventStreamResponse(_yield_once(events), encoder, encoder.encode(()))


async def _follow_run(
    state: AppState, run: Run, messages: list[dict[str, Any]]
) -> AsyncGenerator[list[RunEvent], None]:
    """The events of an active run, with the messages before it after its first event."""
    snapshot = _make_event(run, {"type": "MESSAGES_SNAPSHOT", "messages": messages})
    is_first = True
    async with aclosing(state.runs.follow(run.session_id, run.first_number - 1, run_id=run.run_id)) as batches:
        async for events in batches:
            yield [events[0], snapshot, *events[1:]] if events and is_first else events
            is_first = is_first and not events


def _make_restore_events(
    state: AppState, session: Session, run: Run | None, value: ConnectInput, messages: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    encoder = AguiEncoder(name_from_id(session.id), value.run_id, version=value.protocol_version)
    now_ms = int(state.store.clock().timestamp() * 1000)
    interrupts = () if run is None else run.interrupts
    return encoder.encode_restored(messages, session.metadata.get("state"), interrupts, now_ms)


async def _yield_once(events: list[RunEvent]) -> AsyncGenerator[list[RunEvent], None]:
    yield events


def _make_event(run: Run | None, event: dict[str, Any]) -> RunEvent:
    """An event with the number of the last stored event before it, after which a client may continue."""
    number = 0 if run is None else run.first_number if run.is_running else run.last_number
    return RunEvent(number, "", encode_event(event))


ENDPOINTS = (
    chat_endpoint(
        "POST",
        "/api/v1/agent/connect",
        post_connect,
        "The messages of a thread as events, then its active run",
        {200: (EventStream, ProtoStream)},
        name="connect",
        request_body=ConnectInput,
        description="For clients that restore a thread. A thread that does not exist has an empty stream.",
    ),
)
