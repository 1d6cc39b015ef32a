"""Explain an answer: its route, its receipt, its trace, and the request and reply of its model call.

    GET /threads/{id}/messages/{answerId}/why     route, receipt, events of its turn, call through the gateway
    GET /threads/{id}/messages/{answerId}/wire    request and reply, rebuilt from the stored messages, with the losses

A call of the gateway is rebuilt with its own tools and options, an own turn with those that the server has now.
Secrets are redacted, long texts and media are shortened. The system prompt of the server is shown to its operator only.
Invariant: a caller receives events and messages of own threads only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman import dialects
from dragoman.exchange import Loss, OpaqueTool, Options, ToolDefinition, Written
from dragoman.exchange import Request as Conversation
from dragoman.gateway.request_record import part_hashes, restore_request
from dragoman.gateway.translation import translate_request
from dragoman.handoff import BlockPlan
from dragoman.ids import ToolIds, name_from_id, with_names
from dragoman.message import OMITTED_MESSAGES, Message, Role, RoutingDecisionRecord
from dragoman.redaction import redact_json
from dragoman.server.auth.principal import find_session, get_owned_session, get_principal
from dragoman.server.auth.scopes import TOOLS
from dragoman.server.chat.costs import ReceiptResponse, make_receipt
from dragoman.server.chat.history import client_message_id
from dragoman.server.chat.messages import LossResponse, with_client_name
from dragoman.server.http.endpoint import chat_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state
from dragoman.server.http.responses import json_response
from dragoman.server.state import AppState
from dragoman.store import Row, Session, Store
from dragoman.store.types import PricedCall, TraceEvent
from dragoman.tools import ToolRegistry
from dragoman.turn.replay import RebuiltCall, rebuild_call, write_reply
from dragoman.turn.session_settings import settings_of
from dragoman.turn.start import system_messages

_MESSAGE: Final = "/api/v1/agent/threads/{id}/messages/{answerId}"
_MAX_EVENTS: Final = 500
_MAX_HISTORY: Final = 2_000  # messages before an answer that its request is rebuilt from
_MAX_TEXT: Final = 20_000  # characters of one text in a wire
_MAX_ITEMS: Final = 200  # items of one list in a wire: the first and the last ones
_MAX_MEDIUM: Final = 200  # characters of a text without spaces, such as base64
_HIDDEN_PROMPT: Final = "(system prompt of the server)"


class EventResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event of the trace."""

    id: str
    parent_id: str | None
    type: str
    timestamp: datetime
    payload: Any


class GatewayOrigin(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The call of a gateway client."""

    dialect: str  # of the client
    client: str | None  # name of its library or program
    losses: list[str]  # of the translation


class RouteResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The routing decision that the answer records."""

    mode: str
    chosen_model: str
    reason: str
    rule_name: str | None
    confidence: float | None
    alternatives_considered: tuple[str, ...]


class WhyResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The origin of an answer."""

    thread_id: str
    message_id: str
    seq: int
    model: str | None
    provider: str | None
    status: str
    created_at: datetime
    route: RouteResponse | None
    receipt: ReceiptResponse | None
    omitted_messages: int  # oldest messages that did not fit the context window
    gateway: GatewayOrigin | None
    events: list[EventResponse]  # of its turn, in order
    has_more: bool  # the turn has more events


class WireExchange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request and its reply in one dialect."""

    dialect: str
    request: Any
    reply: Any


class ProjectionResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The history as the model received it."""

    kept: int
    blocks: tuple[BlockPlan, ...]
    losses: list[LossResponse]
    notes: list[LossResponse]
    repairs: list[str]
    left_out: int  # messages that do not fit the context window
    estimated_input_tokens: int
    context_tokens: int


class CallSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The tools and options that a gateway client sent."""

    tools: list[str]  # names
    options: dict[str, Any]


class WireResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The call of an answer, rebuilt from the stored messages."""

    thread_id: str
    message_id: str
    projection: ProjectionResponse | None  # null if the model is not in the catalog any more
    provider: WireExchange | None
    client: WireExchange | None  # of a gateway client, in its own dialect
    call: CallSettings | None  # of a gateway client, if they are stored
    is_shortened: bool  # only the last messages before the answer are considered


# --- why -------------------------------------------------------------------------------------------------------------


async def explain_answer(request: Request) -> Response:
    """Return the route, the receipt and the trace of an answer."""
    state = app_state(request)
    session = await get_owned_session(request, request.path_params["id"])
    row = await _find_answer(state.store, session, request.path_params["answerId"])
    metadata = row.message.metadata
    owner = await _find_owner(request, session, row.seq)
    events: list[TraceEvent] = []
    if owner is not None and metadata.run_id is not None:
        events = await state.store.trace.events(owner.id, limit=_MAX_EVENTS + 1, turn_id=metadata.run_id)
    receipt = None
    if metadata.usage is not None:
        call = PricedCall(
            session_id=session.id,
            seq=row.seq,
            model=metadata.model,
            usage=metadata.usage,
            created_at=row.message.created_at,
        )
        receipt = make_receipt(state, call)
    return json_response(
        WhyResponse(
            thread_id=name_from_id(session.id),
            message_id=client_message_id(row.message),
            seq=row.seq,
            model=metadata.model,
            provider=metadata.provider,
            status=metadata.status.value,
            created_at=row.message.created_at,
            route=None if metadata.routing is None else _route_response(metadata.routing),
            receipt=receipt,
            omitted_messages=(metadata.extra or {}).get(OMITTED_MESSAGES, 0),
            gateway=_gateway_origin(owner, row.message),
            events=[_event_response(event) for event in events[:_MAX_EVENTS]],
            has_more=len(events) > _MAX_EVENTS,
        )
    )


def _route_response(route: RoutingDecisionRecord) -> RouteResponse:
    return RouteResponse(**{name: getattr(route, name) for name in RouteResponse.__struct_fields__})


async def _find_answer(store: Store, session: Session, name: str) -> Row:
    row = await store.find_message(session.id, name)
    if row.message.role is not Role.ASSISTANT:
        raise ApiError(422, "not_an_answer", "The message is not an answer. Only answers have a model call.")
    return row


async def _find_owner(request: Request, session: Session, seq: int) -> Session | None:
    """The session that a message was stored in, which has its events: of a fork, perhaps one before it."""
    store = app_state(request).store
    for segment in await store.lineage(session.id):
        if segment.first <= seq <= segment.last:
            return await find_session(store, get_principal(request), segment.session_id)
    return session


def _gateway_origin(owner: Session | None, answer: Message) -> GatewayOrigin | None:
    details = (owner.metadata if owner is not None else {}).get("gateway")
    if not isinstance(details, dict) or not isinstance(details.get("dialect"), str):
        return None
    losses = ((answer.metadata.extra or {}).get("gateway") or {}).get("losses") or []
    return GatewayOrigin(
        dialect=details["dialect"], client=details.get("client"), losses=[str(loss) for loss in losses]
    )


def _event_response(event: TraceEvent) -> EventResponse:
    payload = msgspec.json.decode(with_names(msgspec.json.encode(event.payload).decode()))
    return EventResponse(
        id=event.id, parent_id=event.parent_event_id, type=event.type, timestamp=event.timestamp, payload=payload
    )


# --- wire ------------------------------------------------------------------------------------------------------------


async def show_wire(request: Request) -> Response:
    """Return the request and the reply of an answer, rebuilt from the stored messages."""
    state, principal = app_state(request), get_principal(request)
    session = await get_owned_session(request, request.path_params["id"])
    row = await _find_answer(state.store, session, request.path_params["answerId"])
    rows = await state.store.read_before(session.id, row.seq, _MAX_HISTORY)
    owner = await _find_owner(request, session, row.seq)
    gateway = _gateway_origin(owner, row.message)
    tools = state.agent.config.tools if TOOLS in principal.scopes and gateway is None else ToolRegistry()
    system = () if gateway is not None else _system_prompt(state, session, is_operator=principal.is_local)
    history = [*system, *(with_client_name(before.message) for before in rows)]
    tool_ids = await state.store.tool_ids(session.id)
    answer = with_client_name(row.message)
    sent = await _find_request(state.store, owner, answer, history) if gateway is not None else None

    def rebuild() -> RebuiltCall | None:
        services, config = state.agent.services, state.agent.config
        if gateway is not None:  # the options of the server are not those of its callers
            config = msgspec.structs.replace(config, options=Options(), stream=False)
        is_whole = gateway is not None
        call = rebuild_call(
            services, config, session, answer, history, tools=tools, tool_ids=tool_ids, is_whole=is_whole
        )
        if call is None or gateway is None or sent is None:
            return call
        written = _write_provider_request(state, gateway.dialect, answer, sent)
        return msgspec.structs.replace(call, request=written.wire, losses=written.losses, notes=written.notes)

    call = await asyncio.to_thread(rebuild)
    client = None
    if gateway is not None:
        client = await asyncio.to_thread(_client_exchange, gateway.dialect, answer, history, sent)
    has_options = gateway is None or sent is not None
    return json_response(
        WireResponse(
            thread_id=name_from_id(session.id),
            message_id=client_message_id(row.message),
            projection=None if call is None else _projection(call),
            provider=None if call is None else _provider_exchange(call, has_options=has_options),
            client=client,
            call=None if sent is None else _call_settings(sent),
            is_shortened=bool(rows) and rows[0].seq > 1,
        )
    )


def _system_prompt(state: AppState, session: Session, *, is_operator: bool) -> Sequence[Message]:
    prompt = state.agent.config.system_prompt
    prompts = (prompt if is_operator or not prompt else _HIDDEN_PROMPT, settings_of(session).system_prompt)
    return system_messages("\n\n".join(text for text in prompts if text), session)


async def _find_request(
    store: Store, owner: Session | None, answer: Message, history: Sequence[Message]
) -> Conversation | None:
    """The request of a gateway client; none if its tools and options are not stored."""
    fields = ((answer.metadata.extra or {}).get("gateway") or {}).get("request")
    if owner is None or not isinstance(fields, dict):
        return None
    parts = await store.gateway.read_parts(owner.id, part_hashes(fields))
    try:
        return restore_request(fields, parts, history)
    except (msgspec.ValidationError, TypeError, AttributeError):  # of an imported message
        return None


def _write_provider_request(state: AppState, dialect: str, answer: Message, request: Conversation) -> Written:
    """The request that the gateway sent to the provider: in the client's own dialect only the model differs."""
    services = state.agent.services
    model = services.registry.get(answer.metadata.model or "")
    provider = services.adapter(model, ToolIds()).provider
    if provider.dialect == dialect:
        written: Written = dialects.load(dialect).write_request(request.replace(model=model.name))
        return written
    with_caching = state.gateway.config.prompt_caching
    is_stream = request.options.stream is True
    return translate_request(request, dialect, model, provider, stream=is_stream, with_caching=with_caching)


def _call_settings(request: Conversation) -> CallSettings:
    options = redact_json(_shorten(msgspec.to_builtins(request.options)))
    return CallSettings(tools=[_tool_name(tool) for tool in request.tools], options=options)


def _tool_name(tool: ToolDefinition | OpaqueTool) -> str:
    match tool:
        case ToolDefinition():
            return tool.name
        case OpaqueTool():
            return str(tool.wire.get("name") or tool.wire.get("type") or tool.kind)


def _provider_exchange(call: RebuiltCall, *, has_options: bool) -> WireExchange:
    """The exchange with the provider."""
    request = call.request if has_options else _without_defaults(call.dialect, call.request)
    return _exchange(call.dialect, request, call.reply)


def _without_defaults(dialect: str, request: Any) -> Any:
    """A request without the limit that the API requires, for a call whose own limit is not stored."""
    if dialect != "anthropic":
        return request
    return {name: value for name, value in request.items() if name != "max_tokens"}


def _client_exchange(
    dialect: str, answer: Message, history: Sequence[Message], request: Conversation | None
) -> WireExchange:
    """The exchange with a gateway client."""
    write_request = dialects.load(dialect).write_request
    if request is not None:
        return _exchange(dialect, write_request(request).wire, write_reply(dialect, answer))
    wire = write_request(Conversation(model=answer.metadata.model, messages=tuple(history))).wire
    return _exchange(dialect, _without_defaults(dialect, wire), write_reply(dialect, answer))


def _exchange(dialect: str, request: Any, reply: Any) -> WireExchange:
    return WireExchange(dialect=dialect, request=redact_json(_shorten(request)), reply=redact_json(_shorten(reply)))


def _projection(call: RebuiltCall) -> ProjectionResponse:
    return ProjectionResponse(
        kept=call.kept,
        blocks=call.blocks,
        losses=[_loss_response(loss) for loss in call.losses],
        notes=[_loss_response(note) for note in call.notes],
        repairs=[action.what for action in call.repairs],
        left_out=call.left_out,
        estimated_input_tokens=call.estimated_input_tokens,
        context_tokens=call.context_tokens,
    )


def _loss_response(loss: Loss) -> LossResponse:
    return LossResponse(loss.block_type, loss.reason)


def _shorten(value: Any) -> Any:
    """A wire without the bytes of media, the ends of very long texts, and the middle of very long lists."""
    match value:
        case dict():
            return {name: _shorten(part) for name, part in value.items()}
        case list() | tuple():
            items = [_shorten(part) for part in value]
            if len(items) <= _MAX_ITEMS:
                return items
            half = _MAX_ITEMS // 2
            return [*items[:half], f"… {len(items) - _MAX_ITEMS} more …", *items[-half:]]
        case str():
            limit = _MAX_TEXT if " " in value[:_MAX_TEXT] or "\n" in value[:_MAX_TEXT] else _MAX_MEDIUM
            return value if len(value) <= limit else f"{value[:limit]}… ({len(value):,} characters)"
        case _:
            return value


ENDPOINTS = (
    chat_endpoint(
        "GET",
        f"{_MESSAGE}/why",
        explain_answer,
        "The route, the receipt and the trace of an answer",
        {200: WhyResponse},
    ),
    chat_endpoint(
        "GET",
        f"{_MESSAGE}/wire",
        show_wire,
        "The request and the reply of an answer, rebuilt from the stored messages",
        {200: WireResponse},
    ),
)
