"""The protocol between CopilotKit's React packages and its runtime, so that they need no runtime of their own.

    GET  /api/v1/copilotkit/info
    POST /api/v1/copilotkit/agent/{agentId}/run              a run, as ``POST /runs``
    POST /api/v1/copilotkit/agent/{agentId}/connect          a thread, as ``POST /connect``
    POST /api/v1/copilotkit/agent/{agentId}/stop/{threadId}

The paths are those of the runtime 1.75 (npm ``@copilotkit/runtime``, November 2026), whose streams are AG-UI. There is
one agent, ``default``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

import dragoman
from dragoman.jsontext import read_json
from dragoman.server.auth.principal import get_owned_session
from dragoman.server.http.endpoint import EventStream, Handler, chat_endpoint
from dragoman.server.http.http_errors import not_found_error
from dragoman.server.http.requests import app_state, parse_as, read_body, validate_id
from dragoman.server.http.responses import json_response
from dragoman.server.runs.connect import ConnectInput, post_connect
from dragoman.server.runs.endpoints import post_run
from dragoman.server.runs.input_schema import RunAgentInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

AGENT: Final = "default"
_BASE: Final = "/api/v1/copilotkit"
_MAX_STOP_BYTES: Final = 4096


class RuntimeAgent(msgspec.Struct, frozen=True, rename="camel"):
    """An agent of the runtime."""

    name: str = AGENT
    description: str = "The agent of this server"
    class_name: str = "HttpAgent"


class RuntimeInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The agents and the features of a runtime."""

    version: str
    agents: dict[str, RuntimeAgent]
    mode: str = "sse"
    audio_file_transcription_enabled: bool = False
    suggestions: bool = False
    telemetry_disabled: bool = True


class StopRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The run to stop; without it the active one."""

    run_id: str | None = None


class StopResponse(msgspec.Struct, frozen=True):
    """Whether a run was active; it ends soon."""

    stopped: bool


async def get_info(_: Request) -> Response:
    """Describe the runtime."""
    return json_response(RuntimeInfo(dragoman.__version__, {AGENT: RuntimeAgent()}))


def _for_agent(handler: Handler) -> Handler:
    """A handler that rejects other agents."""

    async def handle(request: Request) -> Response:
        if request.path_params["agentId"] != AGENT:
            raise not_found_error()
        return await handler(request)

    return handle


async def post_stop(request: Request) -> Response:
    """Cancel the active run of a thread, or a certain one."""
    body = await read_body(request, _MAX_STOP_BYTES)
    stop = parse_as(read_json(body), StopRequest) if body.strip() else StopRequest()
    session = await get_owned_session(request, request.path_params["threadId"])
    run_id = None if stop.run_id is None else validate_id(stop.run_id, "runId")
    run = await app_state(request).runs.cancel(session.id, run_id)
    return json_response(StopResponse(run is not None))


ENDPOINTS: Final = (
    chat_endpoint(
        "GET", f"{_BASE}/info", get_info, "What CopilotKit may use", {200: RuntimeInfo}, name="copilotkit_info"
    ),
    chat_endpoint(
        "POST",
        f"{_BASE}/agent/{{agentId}}/run",
        _for_agent(post_run),
        "Start a run, as CopilotKit requests it",
        {200: EventStream},
        name="copilotkit_run",
        request_body=RunAgentInput,
    ),
    chat_endpoint(
        "POST",
        f"{_BASE}/agent/{{agentId}}/connect",
        _for_agent(post_connect),
        "Restore a thread, as CopilotKit requests it",
        {200: EventStream},
        name="copilotkit_connect",
        request_body=ConnectInput,
    ),
    chat_endpoint(
        "POST",
        f"{_BASE}/agent/{{agentId}}/stop/{{threadId}}",
        _for_agent(post_stop),
        "Cancel a run, as CopilotKit requests it",
        {200: StopResponse},
        name="copilotkit_stop",
        request_body=StopRequest,
    ),
)
