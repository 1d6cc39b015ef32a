"""What a person at work wants to know: models, what a swap loses, a message as any wire, costs, a thread as a file.

Everything here reads; nothing changes. The one rule: long work on a long history is done in a thread of its own, so
that others are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman import formats, renderers
from dragoman.catalog import Model
from dragoman.errors import FormatError, UnknownPriceError
from dragoman.exchange import Loss
from dragoman.exchange import Request as Conversation
from dragoman.handoff import BlockPlan, Policy, SwapPlan
from dragoman.ids import name_from_id
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    Message,
    ProviderRaw,
    ToolResultBlock,
    VideoBlock,
)
from dragoman.pricing import ReceiptLine, receipt
from dragoman.server.auth.principal import get_owned_session, get_principal
from dragoman.server.chat.history import MAX_PAGE_SIZE, PAGE_SIZE, day_param, page_params, read_page_rows, seq_param
from dragoman.server.chat.rows import client_message_id, usage_to_json
from dragoman.server.chat.swap import load_history, plan_thread_swap
from dragoman.server.http.endpoint import Endpoint, Media, Query
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import int_param, text_param
from dragoman.server.http.responses import get_owners, json_response
from dragoman.server.state import AppState, app_state
from dragoman.store import Session, Store, Totals
from dragoman.store.types import PricedCall, total_usd
from dragoman.value import identity

_MAX_MEDIUM_LENGTH: Final = 256 * 1024  # characters of base64 that are sent with a message
_RECEIPT_LIMIT: Final = 200
_PAGE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; sandbox"
_SUFFIXES: Final = {"markdown": "md", "html": "html", "json": "json"}
_MEDIA_TYPES: Final = {"markdown": "text/markdown", "html": "text/html", "json": "application/json"}


# --- models ----------------------------------------------------------------------------------------------------------


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model that may be named."""

    id: str
    name: str  # what its provider calls it
    provider: str
    aliases: tuple[str, ...]
    is_configured: bool  # whether it can be called from here
    is_default: bool  # whether it answers when nobody chose
    context_tokens: int
    output_tokens: int
    images: bool
    documents: bool
    audio: bool
    tools: bool
    thinking: bool
    input_usd: str | None  # for a million tokens; none if no price is known
    output_usd: str | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models that are known; those that can be called come first."""

    models: list[ModelResponse]
    default: str | None


async def list_models(request: Request) -> Response:
    """The models that are known."""
    state = app_state(request)
    agent = state.agent
    default_model = agent.registry.find(agent.default_model) if agent.default_model else None
    default_id = default_model.id if default_model is not None else None
    responses = [_model_response(state, model, default_id) for model in agent.settings.catalog.models.values()]
    responses.sort(key=lambda one: (not one.is_default, not one.is_configured))
    return json_response(ModelList(models=responses, default=default_id))


def _model_response(state: AppState, model: Model, default_id: str | None) -> ModelResponse:
    capabilities, (input_usd, output_usd) = model.capabilities, _prices(state, model)
    return ModelResponse(
        id=model.id,
        name=model.name,
        provider=model.provider,
        aliases=state.agent.registry.aliases_of(model.id),
        is_configured=state.agent.registry.is_configured(model),
        is_default=model.id == default_id,
        context_tokens=capabilities.max_context_tokens,
        output_tokens=capabilities.max_output_tokens,
        images=capabilities.supports_images,
        documents=capabilities.supports_documents,
        audio=capabilities.supports_audio,
        tools=capabilities.supports_tools,
        thinking=capabilities.supports_thinking,
        input_usd=input_usd,
        output_usd=output_usd,
    )


def _prices(state: AppState, model: Model) -> tuple[str | None, str | None]:
    try:
        rates = state.agent.price_table.price(model.id, state.agent.clock()).rates
    except UnknownPriceError:
        return None, None
    return f"{rates.input_per_mtok_usd:f}", f"{rates.output_per_mtok_usd:f}"


# --- a swap ----------------------------------------------------------------------------------------------------------


class SwapPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a swap would do; nothing is changed."""

    thread_id: str
    model: str
    is_possible: bool
    blockers: tuple[str, ...]  # for people: what stands in the way, and the ways out
    fits: bool
    estimated_input_tokens: int
    first_turn_usd: str | None
    kept: int  # blocks that the model is told as they are
    blocks: list[BlockPlan]  # those that it is not told, or told otherwise


async def preview_swap(request: Request) -> Response:
    """What would become of a thread if another model went on with it."""
    state = app_state(request)
    session = await get_owned_session(request, request.path_params["id"])
    name, policy = text_param(request, "model", max_length=200), _policy_param(request)
    return json_response(_swap_preview(session, await plan_thread_swap(state, session, name, policy)))


def _policy_param(request: Request) -> Policy:
    match text_param(request, "policy", "strict", max_length=20):
        case "strict":
            return "strict"
        case "placeholder":
            return "placeholder"
        case "describe":
            return "describe"
        case _:
            raise ApiError(422, "invalid_parameter", "policy is strict, placeholder or describe.")


def _swap_preview(session: Session, plan: SwapPlan) -> SwapPreview:
    changed_blocks = [block for block in plan.blocks if block.outcome != "kept"]
    return SwapPreview(
        thread_id=name_from_id(session.id),
        model=plan.model,
        is_possible=plan.is_possible,
        blockers=plan.blockers,
        fits=plan.fits,
        estimated_input_tokens=plan.estimated_input_tokens,
        first_turn_usd=None if plan.first_turn_usd is None else f"{plan.first_turn_usd:f}",
        kept=len(plan.blocks) - len(changed_blocks),
        blocks=changed_blocks,
    )


# --- messages --------------------------------------------------------------------------------------------------------


class PositionedMessage(msgspec.Struct, frozen=True):
    """A message in its place."""

    seq: int
    message: dict[str, Any]  # in the canonical format, without what only one dialect can say


class MessagePage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of a thread in the canonical format, in order."""

    thread_id: str
    messages: list[PositionedMessage]
    has_more: bool
    limit: int


class LossResponse(msgspec.Struct, frozen=True):
    """Something that a format cannot say."""

    block_type: str
    reason: str


class RenderedMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message as a format has it."""

    thread_id: str
    message_id: str
    format: str
    wire: Any
    losses: list[LossResponse]  # what the format cannot say


class FormatList(msgspec.Struct, frozen=True):
    """The formats that a message can be shown as."""

    formats: tuple[str, ...]


async def list_messages(request: Request) -> Response:
    """A page of a thread, every block of it."""
    session = await get_owned_session(request, request.path_params["id"])
    limit = int_param(request, "limit", default=PAGE_SIZE, maximum=MAX_PAGE_SIZE)
    rows, has_more = await read_page_rows(request, session, limit)
    items = [{"seq": row.seq, "message": msgspec.Raw(identity(_strip_media(row.message)))} for row in rows]
    return json_response({"threadId": name_from_id(session.id), "messages": items, "hasMore": has_more, "limit": limit})


def _strip_media(message: Message) -> Message:
    """A message without the bytes of what is kept as an attachment, or is large."""
    content = tuple(_strip_medium(block, message) for block in message.content)
    return _with_client_name(message.replace(content=content))


def _with_client_name(message: Message) -> Message:
    """A message that names its session as its owner does."""
    return message.replace(session_id=name_from_id(message.session_id))


def _strip_medium(block: ContentBlock, message: Message) -> ContentBlock:
    match block:
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock() if block.source.kind == "base64":
            if message.metadata.attachments or len(block.source.data) > _MAX_MEDIUM_LENGTH:
                return block.replace(source=ImageSource("base64", ""))
    return block


async def show_message_as(request: Request) -> Response:
    """One message as the wire of a dialect, as a transcript, or in the canonical format."""
    session = await get_owned_session(request, request.path_params["id"])
    format_name = str(request.path_params["dialect"]).lower().replace("-", "_")
    if format_name not in formats.readable():
        raise ApiError(422, "unknown_format", f"There are {', '.join(formats.readable())}.")
    row = await app_state(request).store.find_message(session.id, request.path_params["messageId"])
    data, losses = await asyncio.to_thread(_render_message, format_name, _with_client_name(row.message))
    body = RenderedMessage(
        thread_id=name_from_id(session.id),
        message_id=client_message_id(row.message),
        format=format_name,
        wire=msgspec.json.decode(data),
        losses=[LossResponse(loss.block_type, loss.reason) for loss in losses],
    )
    return json_response(body)


def _render_message(format_name: str, message: Message) -> tuple[bytes, tuple[Loss, ...]]:
    """A message in a format, and what that cannot say. ``provider_raw`` goes to the wire of its own dialect alone."""
    if format_name == formats.CANONICAL:
        return identity(message), ()
    written = formats.write(format_name, Conversation(model=None, messages=(_strip_foreign_raw(message, format_name),)))
    return written.data, written.losses


def _strip_foreign_raw(message: Message, dialect: str) -> Message:
    """A message without what other dialects keep in ``provider_raw``."""
    metadata = message.metadata
    if not _is_from_dialect(metadata.provider_raw, dialect):
        metadata = metadata.replace(provider_raw=None)
    return message.replace(metadata=metadata, content=_strip_foreign_block_raw(message.content, dialect))


def _strip_foreign_block_raw(blocks: Sequence[ContentBlock], dialect: str) -> tuple[ContentBlock, ...]:
    result: list[ContentBlock] = []
    for block in blocks:
        stripped = (
            block
            if _is_from_dialect(getattr(block, "provider_raw", None), dialect)
            else block.replace(provider_raw=None)
        )
        if isinstance(stripped, ToolResultBlock):
            stripped = stripped.replace(content=_strip_foreign_block_raw(stripped.content, dialect))
        result.append(stripped)
    return tuple(result)


def _is_from_dialect(raw: ProviderRaw | None, dialect: str) -> bool:
    return raw is None or raw.get("dialect") == dialect


async def list_formats(_: Request) -> Response:
    """What a message can be shown as."""
    return json_response(FormatList(formats.readable()))


# --- costs -----------------------------------------------------------------------------------------------------------


class CostTotal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a group of answers consumed and cost."""

    group: str | None  # the model, or the day in UTC
    messages: int
    input_tokens: int
    cached_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_usd: str | None  # of the answers that have a price; null if none has one
    unpriced: int  # answers for which no price was known: what they cost is not in the sum


class ReceiptResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one answer cost, and how that comes about."""

    seq: int
    model: str | None
    cost_usd: str | None  # null if no price was known
    state: Literal["priced", "unpriced"]
    usage: dict[str, Any]
    lines: tuple[ReceiptLine, ...]  # none where the prices of then are not known any more
    timestamp: datetime


class ThreadCostResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a thread has cost. What it shares with the thread that it was forked from was paid there."""

    thread_id: str
    total_usd: str | None  # of the answers that have a price; null if none has one
    unpriced: int  # answers for which no price was known
    by_model: list[CostTotal]
    receipts: list[ReceiptResponse]
    has_more: bool
    limit: int


class CostResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the caller has consumed, deleted threads included."""

    total_usd: str | None  # of the answers that have a price; null if none has one
    unpriced: int  # answers for which no price was known
    by_day: list[CostTotal]
    by_model: list[CostTotal]


async def get_thread_cost(request: Request) -> Response:
    """What a thread has cost, by model and by answer."""
    state = app_state(request)
    session = await get_owned_session(request, request.path_params["id"])
    limit = int_param(request, "limit", default=_RECEIPT_LIMIT, maximum=1_000)
    calls, has_more = await _read_priced_calls(state.store, session, seq_param(request, "afterSeq") or 0, limit)
    totals = await state.store.costs.totals("model", session=session.id)
    body = ThreadCostResponse(
        thread_id=name_from_id(session.id),
        total_usd=_format_usd(total_usd(totals)),
        unpriced=sum(total.unpriced for total in totals),
        by_model=[_cost_total(total) for total in totals],
        receipts=[_receipt_response(state, call) for call in calls],
        has_more=has_more,
        limit=limit,
    )
    return json_response(body)


async def _read_priced_calls(store: Store, session: Session, after: int, limit: int) -> tuple[list[PricedCall], bool]:
    calls: list[PricedCall] = []
    async for call in store.costs.calls(session=session.id, after_seq=after):
        if len(calls) == limit:
            return calls, True
        calls.append(call)
    return calls, False


def _receipt_response(state: AppState, call: PricedCall) -> ReceiptResponse:
    lines: tuple[ReceiptLine, ...] = ()
    try:
        current = receipt(state.agent.price_table, call.model or "", call.usage, call.created_at)
        lines = current.lines if current.total_usd == call.usage.amount_usd else ()
    except (UnknownPriceError, FormatError):
        pass
    return ReceiptResponse(
        seq=call.seq,
        model=call.model,
        cost_usd=_format_usd(call.usage.amount_usd),
        state=call.usage.state,
        usage=usage_to_json(call.usage),
        lines=lines,
        timestamp=call.created_at,
    )


async def get_cost(request: Request) -> Response:
    """What the caller has consumed, by day and by model."""
    store, owners = app_state(request).store, get_owners(get_principal(request))
    since, until = day_param(request, "from"), day_param(request, "to")
    first, last = (None if day is None else day.isoformat() for day in (since, until))
    by_day = await store.costs.totals("day", owners=owners, since=first, until=last)
    by_model = await store.costs.totals("model", owners=owners, since=first, until=last)
    body = CostResponse(
        total_usd=_format_usd(total_usd(by_day)),
        unpriced=sum(total.unpriced for total in by_day),
        by_day=[_cost_total(total) for total in by_day],
        by_model=[_cost_total(total) for total in by_model],
    )
    return json_response(body)


def _format_usd(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"


def _cost_total(totals: Totals) -> CostTotal:
    return CostTotal(
        group=totals.group,
        messages=totals.messages,
        input_tokens=totals.input_tokens,
        cached_input_tokens=totals.cached_input_tokens,
        cache_creation_input_tokens=totals.cache_creation_input_tokens,
        output_tokens=totals.output_tokens,
        reasoning_tokens=totals.reasoning_tokens,
        cost_usd=_format_usd(totals.amount_usd),
        unpriced=totals.unpriced,
    )


# --- a file ----------------------------------------------------------------------------------------------------------


async def export_thread(request: Request) -> Response:
    """A thread as a file: a page for people, or every message in the canonical format."""
    session = await get_owned_session(request, request.path_params["id"])
    format_name = text_param(request, "format", "json", max_length=20)
    if format_name not in _SUFFIXES:
        raise ApiError(422, "unknown_format", f"There are {', '.join(_SUFFIXES)}.")
    name = re.sub(r"[^A-Za-z0-9_-]", "-", name_from_id(session.id))[:100]
    headers = {
        "content-disposition": f'attachment; filename="{name}.{_SUFFIXES[format_name]}"',
        "content-security-policy": _PAGE_POLICY,
        "cache-control": "no-store",
    }
    store = app_state(request).store
    if format_name == "json":
        return StreamingResponse(_stream_json(store, session), media_type=_MEDIA_TYPES[format_name], headers=headers)
    data = await asyncio.to_thread(_render_page, format_name, session, await load_history(store, session))
    return Response(data, media_type=_MEDIA_TYPES[format_name], headers=headers)


def _render_page(format_name: str, session: Session, history: Sequence[Message]) -> bytes:
    history = [_with_client_name(message) for message in history]
    about = renderers.About.from_messages(history, session.title)
    return (
        renderers.write_head(format_name, about.title)
        + renderers.write_conversation(format_name, history, about)
        + renderers.write_foot(format_name)
    )


async def _stream_json(store: Store, session: Session) -> AsyncIterator[bytes]:
    """One document, a page of it at a time."""
    head = {
        "id": name_from_id(session.id),
        "title": session.title,
        "model": session.active_model,
        "created_at": session.created_at,
    }
    yield b'{"thread":' + msgspec.json.encode(head) + b',"messages":['
    comma = b""
    async for row in store.history(session.id):
        yield comma + identity(_with_client_name(row.message))
        comma = b","
    yield b"]}\n"


_THREAD: Final = "/api/v1/agent/threads/{id}"
_DATE: Final = {"type": "string", "format": "date"}

ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/agent/models",
        list_models,
        name="list_models",
        summary="The models that may be named, and which of them can be called",
        scope="chat",
        responses={200: ModelList},
    ),
    Endpoint(
        "GET",
        "/api/v1/agent/formats",
        list_formats,
        name="list_formats",
        summary="The formats that a message can be shown as",
        scope="chat",
        responses={200: FormatList},
    ),
    Endpoint(
        "GET",
        f"{_THREAD}/preflight",
        preview_swap,
        name="preflight",
        summary="What would become of a thread if another model went on with it",
        scope="chat",
        responses={200: SwapPreview},
        query=(
            Query("model", summary="The model, by its id or an alias", required=True),
            Query(
                "policy",
                {"type": "string", "enum": ["strict", "placeholder", "describe"]},
                "What becomes of a picture that it cannot see",
            ),
        ),
    ),
    Endpoint(
        "GET",
        f"{_THREAD}/messages",
        list_messages,
        name="list_messages",
        summary="A page of a thread in the canonical format, every block of it",
        scope="chat",
        responses={200: MessagePage},
        query=page_params(),
    ),
    Endpoint(
        "GET",
        f"{_THREAD}/messages/{{messageId}}/as/{{dialect}}",
        show_message_as,
        name="show_message_as",
        summary="One message as the wire of a dialect, as a transcript, or in the canonical format",
        scope="chat",
        responses={200: RenderedMessage},
    ),
    Endpoint(
        "GET",
        f"{_THREAD}/cost",
        get_thread_cost,
        name="thread_cost",
        summary="What a thread has cost, by model and by answer",
        scope="chat",
        responses={200: ThreadCostResponse},
        query=(
            Query("limit", {"type": "integer", "minimum": 1}, "At most so many receipts, 1000 if it is more"),
            Query("afterSeq", {"type": "integer", "minimum": 0}, "Those behind this place"),
        ),
    ),
    Endpoint(
        "GET",
        "/api/v1/agent/cost",
        get_cost,
        name="cost",
        summary="What the caller has consumed, by day and by model",
        scope="chat",
        responses={200: CostResponse},
        query=(Query("from", _DATE, "From this day on, in UTC"), Query("to", _DATE, "Before this day")),
    ),
    Endpoint(
        "GET",
        f"{_THREAD}/export",
        export_thread,
        name="export_thread",
        summary="A thread as a file",
        scope="chat",
        responses={
            200: (
                Media("text/markdown", {"type": "string"}),
                Media("text/html", {"type": "string"}),
                {"type": "object"},
            )
        },
        query=(Query("format", {"type": "string", "enum": list(_SUFFIXES)}, "json unless it is given"),),
    ),
)
