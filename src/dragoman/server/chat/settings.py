"""Settings of a thread, the caller's defaults for new threads, and the use of the context window.

A run of a new thread gets its settings with ``forwardedProps.settings``; ``"default"`` are those of the caller. They
apply to every turn of the thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman import tokens
from dragoman.adapter import answer_reserve
from dragoman.errors import PolicyError
from dragoman.exchange import Options
from dragoman.handoff import Policy as ImagePolicy
from dragoman.jsontext import validate_json
from dragoman.message import Role
from dragoman.offload import estimate_size, run_off_loop
from dragoman.routing import read_policy
from dragoman.server.auth.principal import Principal, get_owned_session, get_principal
from dragoman.server.auth.scopes import TOOLS
from dragoman.server.http.endpoint import Query, chat_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, json_body, parse_as, text_param
from dragoman.server.http.responses import json_response
from dragoman.settings.policy_file import MAX_BYTES, parse_yaml
from dragoman.store import Row, Session, Store
from dragoman.turn.image_policy import image_policy, with_policy
from dragoman.turn.model_call import prepare_history
from dragoman.turn.session_settings import SessionSettings, settings_of, with_settings
from dragoman.turn.start import make_system_messages, make_turn_tools
from dragoman.turn.types import TurnRequest

_THREAD: Final = "/api/v1/agent/threads/{id}"
_DEFAULTS: Final = "settings"  # name of the preference
_NO_SETTINGS: Final = SessionSettings()


class ToolResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool of the server."""

    name: str
    description: str
    side_effects: str


class ThreadSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of a thread."""

    settings: SessionSettings
    images: ImagePolicy  # how images are sent to a model that cannot read them
    routing: dict[str, Any] | None  # own routing policy
    tools: list[ToolResponse]  # which the caller may use


class ThreadSettingsUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New settings of a thread, in place of all earlier ones."""

    settings: SessionSettings = _NO_SETTINGS
    images: ImagePolicy = "strict"
    routing: Annotated[str, msgspec.Meta(max_length=MAX_BYTES)] | None = None  # a policy in YAML or JSON


class DefaultSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's settings for new threads."""

    settings: SessionSettings
    tools: list[ToolResponse]


class DefaultSettingsUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New settings for new threads."""

    settings: SessionSettings = _NO_SETTINGS


class ContextUse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The use of a model's context window by the next question. All counts are estimates."""

    model: str
    context_tokens: int  # size of the window
    system_tokens: int  # system prompts
    tool_tokens: int  # schemas of the tools
    message_tokens: int  # messages that are sent
    answer_tokens: int  # reserved for the answer
    omitted_messages: int  # oldest messages, which do not fit
    first_seq: int | None  # first message that is sent, if some are omitted


async def get_thread_settings(request: Request) -> Response:
    """Return the settings of a thread."""
    session = await get_owned_session(request, request.path_params["id"])
    return json_response(_describe(request, session))


def _describe(request: Request, session: Session) -> ThreadSettings:
    return ThreadSettings(
        settings=settings_of(session),
        images=image_policy(app_state(request).agent.config, session),
        routing=session.routing_policy,
        tools=_list_tools(request),
    )


def _list_tools(request: Request) -> list[ToolResponse]:
    if TOOLS not in get_principal(request).scopes:
        return []
    definitions = app_state(request).agent.tools.definitions
    return [
        ToolResponse(name=tool.name, description=tool.description or "", side_effects=str(tool.side_effects))
        for tool in definitions
    ]


async def replace_thread_settings(request: Request) -> Response:
    """Replace the settings of a thread."""
    store = app_state(request).store
    session = await get_owned_session(request, request.path_params["id"])
    update = parse_as(await json_body(request), ThreadSettingsUpdate)
    metadata = with_policy(with_settings(session.metadata, update.settings), update.images)
    policy = None if not update.routing or not update.routing.strip() else _parse_policy(request, update.routing)
    session = await store.change_session(session.id, metadata=metadata, routing_policy=policy)
    return json_response(_describe(request, session))


def _parse_policy(request: Request, text: str) -> dict[str, Any]:
    """The document of a valid routing policy."""
    try:
        document: dict[str, Any] = parse_yaml(text.encode("utf-8", "replace"))
        read_policy(document, app_state(request).agent.services.registry, home=str(Path.home()))
        validate_json(document, "routing")
    except PolicyError as error:
        raise ApiError(422, error.code, str(error)) from None
    except ValueError as error:  # a value that only YAML has, such as a date
        raise ApiError(422, "invalid_policy", f"{error}.") from None
    return document


async def get_defaults(request: Request) -> Response:
    """Return the caller's settings for new threads."""
    settings = await find_default_settings(app_state(request).store, get_principal(request))
    return json_response(DefaultSettings(settings=settings, tools=_list_tools(request)))


async def find_default_settings(store: Store, principal: Principal) -> SessionSettings:
    """The settings of a user for new threads."""
    stored = await store.preferences.find(principal.user_id, principal.team_id, _DEFAULTS)
    return _NO_SETTINGS if stored is None else msgspec.convert(stored, SessionSettings)


async def replace_defaults(request: Request) -> Response:
    """Replace the caller's settings for new threads."""
    principal, store = get_principal(request), app_state(request).store
    update = parse_as(await json_body(request), DefaultSettingsUpdate)
    await store.preferences.set(principal.user_id, principal.team_id, _DEFAULTS, msgspec.to_builtins(update.settings))
    return json_response(DefaultSettings(settings=update.settings, tools=_list_tools(request)))


async def get_context(request: Request) -> Response:
    """Return how the next question uses the context window."""
    store = app_state(request).store
    session = await get_owned_session(request, request.path_params["id"])
    rows = [row async for row in store.history(session.id)]
    size = estimate_size([row.message for row in rows])
    agent = app_state(request).agent
    turn = TurnRequest(session_id=session.id, may_use_tools=TOOLS in get_principal(request).scopes)
    tools = await make_turn_tools(agent.config, turn, session)
    name = text_param(request, "model", None, max_length=200) or session.active_model or agent.services.default_model
    model = agent.services.registry.find(name) if name else None
    if model is None:
        raise ApiError(422, "unknown_model", "Unknown model. GET /api/v1/agent/models lists them.")
    system = make_system_messages(agent.config, turn, session)

    def measure() -> ContextUse:
        history = [*system, *(row.message for row in rows)]
        fitted = prepare_history(
            agent.services, agent.config, session, model=model, history=history, tools=tools, options=Options()
        ).fitted
        sent = [message for message in fitted.messages if message.role is not Role.SYSTEM]
        prompts = [message for message in fitted.messages if message.role is Role.SYSTEM]
        return ContextUse(
            model=model.id,
            context_tokens=model.capabilities.max_context_tokens,
            system_tokens=tokens.estimate(prompts, (), model.id) if prompts else 0,
            tool_tokens=tokens.estimate((), tools.definitions, model.id) if tools.definitions else 0,
            message_tokens=tokens.estimate(sent, (), model.id) if sent else 0,
            answer_tokens=answer_reserve(model),
            omitted_messages=len(fitted.left_out),
            first_seq=_first_seq(rows, {message.id for message in sent}) if fitted.left_out else None,
        )

    return json_response(await run_off_loop(size, measure))


def _first_seq(rows: list[Row], sent_ids: set[str]) -> int | None:
    return next((row.seq for row in rows if row.message.id in sent_ids), None)


ENDPOINTS = (
    chat_endpoint(
        "GET",
        f"{_THREAD}/settings",
        get_thread_settings,
        "The settings of a thread",
        {200: ThreadSettings},
        name="thread_settings",
    ),
    chat_endpoint(
        "PUT",
        f"{_THREAD}/settings",
        replace_thread_settings,
        "Replace the settings of a thread",
        {200: ThreadSettings},
        request_body=ThreadSettingsUpdate,
    ),
    chat_endpoint(
        "GET",
        f"{_THREAD}/context",
        get_context,
        "How the next question uses the context window",
        {200: ContextUse},
        name="thread_context",
        query=(Query("model", summary="The model, by id or alias; by default that of the thread"),),
    ),
    chat_endpoint(
        "GET",
        "/api/v1/agent/settings",
        get_defaults,
        "The caller's settings for new threads",
        {200: DefaultSettings},
        name="default_settings",
    ),
    chat_endpoint(
        "PUT",
        "/api/v1/agent/settings",
        replace_defaults,
        "Replace the caller's settings for new threads",
        {200: DefaultSettings},
        name="replace_default_settings",
        request_body=DefaultSettingsUpdate,
    ),
)
