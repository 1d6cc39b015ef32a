"""The endpoints of runs. A stream ends when no run is active, never during one."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from dragoman.ids import name_from_id
from dragoman.jsontext import read_json
from dragoman.offload import LARGE, run_off_loop
from dragoman.server.auth.principal import get_owned_session, get_principal
from dragoman.server.http.endpoint import EventStream, Media, Query, chat_endpoint
from dragoman.server.http.http_errors import ApiError, not_found_error
from dragoman.server.http.requests import app_state, json_bytes, text_param, validate_id
from dragoman.server.runs import agui_proto
from dragoman.server.runs.input_schema import RunAgentInput
from dragoman.server.runs.registry import RunRequest, run_in_progress_error
from dragoman.server.runs.run_input import RunInput, parse_run_input
from dragoman.server.runs.stream_encoder import AguiSseEncoder, EventStreamResponse, agui_encoder_for
from dragoman.store.runs import Run

if TYPE_CHECKING:
    from starlette.requests import Request

    from dragoman.server.runs.registry import RunRegistry

ProtoStream: Final = Media(agui_proto.MEDIA_TYPE, {"type": "string", "format": "binary"})
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_sorted_encoder: Final = msgspec.json.Encoder(order="sorted")


class RunResponse(msgspec.Struct, frozen=True, rename="camel"):
    """A run in the background; its events are at ``/runs/{threadId}/events``."""

    task_id: str  # the same as runId
    thread_id: str
    run_id: str
    created: bool  # whether the thread is new


class CancelResponse(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result of a cancel request."""

    thread_id: str
    cancelled: bool  # whether a run was active; it ends soon
    run_id: str | None = None


async def post_run(request: Request) -> Response:
    """Begin a run."""
    key = _idempotency_key(request)
    data = await json_bytes(request)
    value = await run_off_loop(len(data), read_json, data)
    has_tools = isinstance(value, dict) and bool(
        value.get("tools")
    )  # schemas take longer to check than their size suggests
    run_input, digest = await run_off_loop(LARGE if has_tools else len(data), _parse_run, value)
    runs: RunRegistry = app_state(request).runs
    result = await runs.start_run(RunRequest(get_principal(request), run_input, digest, key))
    run = result.run
    encoder = agui_encoder_for(request.headers.get("accept", ""))
    if encoder is not None:
        events = runs.follow(run.session_id, run.first_number - 1, run_id=run.run_id)
        first = await anext(events, None)
        if first is None:  # the request that started it was rejected
            raise run_in_progress_error()
        return EventStreamResponse(events, encoder, encoder.encode(first))
    body = RunResponse(run.run_id, name_from_id(run.session_id), run.run_id, result.is_new_thread)
    return Response(msgspec.json.encode(body), 202, media_type="application/json")


def _parse_run(value: Any) -> tuple[RunInput, bytes]:
    """The parsed input, and the hash that identifies a repeated request."""
    return parse_run_input(value), hashlib.sha256(_sorted_encoder.encode(value)).digest()


def _idempotency_key(request: Request) -> str | None:
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        raise ApiError(400, "invalid_idempotency_key", "Idempotency-Key must be 1 to 255 visible ASCII characters.")
    return values[0]


async def get_events(request: Request) -> Response:
    """Stream the events of a thread."""
    runs: RunRegistry = app_state(request).runs
    session = await get_owned_session(request, request.path_params["threadId"])
    run_id = text_param(request, "runId", None)
    store = app_state(request).store
    run = await store.runs.latest(session.id) if run_id is None else await _get_run(request, session.id, run_id)
    after = _last_event_id(request)
    if run is None:
        if after:
            raise _event_id_error()
        return Response(status_code=204)
    after = run.first_number - 1 if after is None else after
    _require_known_event(after, run, is_one_run=run_id is not None)
    if not run.is_running and after >= run.last_number:
        return Response(status_code=204)  # a browser then stops reconnecting
    await _require_stored_events(request, run, after)
    encoder = agui_encoder_for(request.headers.get("accept", "")) or AguiSseEncoder()
    events = runs.follow(session.id, after, run_id=run_id)
    return EventStreamResponse(events, encoder, encoder.encode(()), is_one_run=run_id is not None)


async def _get_run(request: Request, session_id: str, run_id: str) -> Run:
    run = await app_state(request).store.runs.get(session_id, validate_id(run_id, "runId"))
    if run is None:
        raise not_found_error()
    return run


def _last_event_id(request: Request) -> int | None:
    """The number of the last event that the client received."""
    text = request.headers.get("last-event-id") or text_param(request, "lastEventId", None)
    if text is None or text == "":
        return None
    if not _NUMBER.fullmatch(text):
        raise _event_id_error()
    return int(text)


def _event_id_error() -> ApiError:
    return ApiError(422, "invalid_last_event_id", "Last-Event-ID is not the id of an event of this thread.")


def _require_known_event(after: int, run: Run, *, is_one_run: bool) -> None:
    """Reject a number above the last event."""
    if after > run.last_number and not (is_one_run and after < run.first_number):
        raise _event_id_error()


async def _require_stored_events(request: Request, run: Run, after: int) -> None:
    """Reject a position after which events were deleted: a gap would look like the complete stream."""
    page = await app_state(request).store.runs.events(run.session_id, after, limit=1)
    is_missing = not page.events and run.last_number > after
    if is_missing or (page.events and page.events[0].number != after + 1):
        raise ApiError(410, "events_gone", "The events after this id are deleted. Read the history instead.")


async def post_cancel(request: Request) -> Response:
    """Cancel a run, or the active one."""
    session = await get_owned_session(request, request.path_params["threadId"])
    run_id = request.path_params.get("runId")
    if run_id is not None:
        await _get_run(request, session.id, run_id)
    runs: RunRegistry = app_state(request).runs
    run = await runs.cancel(session.id, run_id)
    body = CancelResponse(name_from_id(session.id), run is not None, run.run_id if run is not None else run_id)
    return Response(msgspec.json.encode(body), 202 if run is not None else 200, media_type="application/json")


ENDPOINTS: Final = (
    chat_endpoint(
        "POST",
        "/api/v1/agent/runs",
        post_run,
        "Start a run: one turn of a conversation",
        {200: (EventStream, ProtoStream), 202: RunResponse},
        name="begin_run",
        request_body=RunAgentInput,
        description="With Accept: text/event-stream, or the protobuf type of AG-UI, the response streams the run's"
        " events; otherwise it is 202 and the ids."
        " The same request with the same runId is the same run.",
    ),
    chat_endpoint(
        "GET",
        "/api/v1/agent/runs/{threadId}/events",
        get_events,
        "Events of the runs of a thread",
        {200: (EventStream, ProtoStream), 204: None},
        name="run_events",
        query=(
            Query("runId", summary="One run only"),
            Query("lastEventId", {"type": "string"}, "Instead of the header, for clients that cannot set it"),
        ),
        description="With Last-Event-ID all events after that one, otherwise the newest run from its start. The stream"
        " ends when no run is active; 204 if there are no events.",
    ),
    chat_endpoint(
        "POST",
        "/api/v1/agent/runs/{threadId}/cancel",
        post_cancel,
        "Cancel the active run of a thread",
        {200: CancelResponse, 202: CancelResponse},
        name="cancel_runs",
    ),
    chat_endpoint(
        "POST",
        "/api/v1/agent/runs/{threadId}/{runId}/cancel",
        post_cancel,
        "Cancel a run",
        {200: CancelResponse, 202: CancelResponse},
        name="cancel_run",
    ),
)
