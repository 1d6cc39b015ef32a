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

from dragoman import formats, pages
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
from dragoman.server.answers import answer, owners_of
from dragoman.server.asking import text_param, whole_number
from dragoman.server.endpoint import Endpoint, Media, Query
from dragoman.server.history import MOST, PAGE, day_param, place_param, places, rows_of_page
from dragoman.server.principal import owned_session, principal_of
from dragoman.server.refusing import Refusal
from dragoman.server.rows import id_of, usage_of
from dragoman.server.state import Doors, doors_of
from dragoman.server.swapping import history_of, planned
from dragoman.store import Session, Store, Totals
from dragoman.store.values import PricedCall, total_usd
from dragoman.value import identity

_LARGEST_MEDIUM: Final = 256 * 1024  # characters of base64 that are sent with a message
_RECEIPTS: Final = 200
_PAGE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; sandbox"
_ENDINGS: Final = {"markdown": "md", "html": "html", "json": "json"}
_TYPES: Final = {"markdown": "text/markdown", "html": "text/html", "json": "application/json"}


# --- models ----------------------------------------------------------------------------------------------------------


class ModelTold(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """The models that are known; those that can be called come first."""

    models: list[ModelTold]
    default: str | None


async def models(request: Request) -> Response:
    """The models that are known."""
    doors = doors_of(request)
    agent = doors.agent
    found = agent.registry.find(agent.default_model) if agent.default_model else None
    default = found.id if found is not None else None
    told = [_model_told(doors, one, default) for one in agent.settings.catalog.models.values()]
    told.sort(key=lambda one: (not one.is_default, not one.is_configured))
    return answer(Models(models=told, default=default))


def _model_told(doors: Doors, model: Model, default: str | None) -> ModelTold:
    can, (input_usd, output_usd) = model.capabilities, _prices(doors, model)
    return ModelTold(
        id=model.id,
        name=model.name,
        provider=model.provider,
        aliases=doors.agent.registry.aliases_of(model.id),
        is_configured=doors.agent.registry.is_configured(model),
        is_default=model.id == default,
        context_tokens=can.max_context_tokens,
        output_tokens=can.max_output_tokens,
        images=can.supports_images,
        documents=can.supports_documents,
        audio=can.supports_audio,
        tools=can.supports_tools,
        thinking=can.supports_thinking,
        input_usd=input_usd,
        output_usd=output_usd,
    )


def _prices(doors: Doors, model: Model) -> tuple[str | None, str | None]:
    try:
        rates = doors.agent.prices.price(model.id, doors.agent.clock()).rates
    except UnknownPriceError:
        return None, None
    return f"{rates.input_per_mtok_usd:f}", f"{rates.output_per_mtok_usd:f}"


# --- a swap ----------------------------------------------------------------------------------------------------------


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
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


async def preflight(request: Request) -> Response:
    """What would become of a thread if another model went on with it."""
    doors = doors_of(request)
    session = await owned_session(request, request.path_params["id"])
    name, policy = text_param(request, "model", most=200), _policy_param(request)
    return answer(_told(session, await planned(doors, session, name, policy)))


def _policy_param(request: Request) -> Policy:
    match text_param(request, "policy", "strict", most=20):
        case "strict":
            return "strict"
        case "placeholder":
            return "placeholder"
        case "describe":
            return "describe"
        case _:
            raise Refusal(422, "invalid_parameter", "policy is strict, placeholder or describe.")


def _told(session: Session, plan: SwapPlan) -> Preflight:
    others = [block for block in plan.blocks if block.outcome != "kept"]
    return Preflight(
        thread_id=name_from_id(session.id),
        model=plan.model,
        is_possible=plan.is_possible,
        blockers=plan.blockers,
        fits=plan.fits,
        estimated_input_tokens=plan.estimated_input_tokens,
        first_turn_usd=None if plan.first_turn_usd is None else f"{plan.first_turn_usd:f}",
        kept=len(plan.blocks) - len(others),
        blocks=others,
    )


# --- messages --------------------------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """A message in its place."""

    seq: int
    message: dict[str, Any]  # in the canonical format, without what only one dialect can say


class Messages(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of a thread in the canonical format, in order."""

    thread_id: str
    messages: list[Place]
    has_more: bool
    limit: int


class LossTold(msgspec.Struct, frozen=True):
    """Something that a format cannot say."""

    block_type: str
    reason: str


class Shown(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message as a format has it."""

    thread_id: str
    message_id: str
    format: str
    wire: Any
    losses: list[LossTold]  # what the format cannot say


class Formats(msgspec.Struct, frozen=True):
    """The formats that a message can be shown as."""

    formats: tuple[str, ...]


async def messages(request: Request) -> Response:
    """A page of a thread, every block of it."""
    session = await owned_session(request, request.path_params["id"])
    limit = whole_number(request, "limit", default=PAGE, most=MOST)
    rows, has_more = await rows_of_page(request, session, limit)
    told = [{"seq": row.seq, "message": msgspec.Raw(identity(_light(row.message)))} for row in rows]
    return answer({"threadId": name_from_id(session.id), "messages": told, "hasMore": has_more, "limit": limit})


def _light(message: Message) -> Message:
    """A message without the bytes of what is kept as an attachment, or is large."""
    content = tuple(_light_block(block, message) for block in message.content)
    return _named(message.replace(content=content))


def _named(message: Message) -> Message:
    """A message that names its session as its owner does."""
    return message.replace(session_id=name_from_id(message.session_id))


def _light_block(block: ContentBlock, message: Message) -> ContentBlock:
    match block:
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock() if block.source.kind == "base64":
            if message.metadata.attachments or len(block.source.data) > _LARGEST_MEDIUM:
                return block.replace(source=ImageSource("base64", ""))
    return block


async def shown_as(request: Request) -> Response:
    """One message as the wire of a dialect, as a transcript, or in the canonical format."""
    session = await owned_session(request, request.path_params["id"])
    wanted = str(request.path_params["dialect"]).lower().replace("-", "_")
    if wanted not in formats.readable():
        raise Refusal(422, "unknown_format", f"There are {', '.join(formats.readable())}.")
    row = await doors_of(request).store.find_message(session.id, request.path_params["messageId"])
    data, losses = await asyncio.to_thread(_as, wanted, _named(row.message))
    made = Shown(
        thread_id=name_from_id(session.id),
        message_id=id_of(row.message),
        format=wanted,
        wire=msgspec.json.decode(data),
        losses=[LossTold(loss.block_type, loss.reason) for loss in losses],
    )
    return answer(made)


def _as(wanted: str, message: Message) -> tuple[bytes, tuple[Loss, ...]]:
    """A message in a format, and what that cannot say. ``provider_raw`` goes to the wire of its own dialect alone."""
    if wanted == formats.CANONICAL:
        return identity(message), ()
    written = formats.write(wanted, Conversation(model=None, messages=(_without_raw(message, wanted),)))
    return written.data, written.losses


def _without_raw(message: Message, dialect: str) -> Message:
    """A message without what other dialects keep in ``provider_raw``."""
    metadata = message.metadata
    if not _is_of(metadata.provider_raw, dialect):
        metadata = metadata.replace(provider_raw=None)
    return message.replace(metadata=metadata, content=_blocks_without_raw(message.content, dialect))


def _blocks_without_raw(blocks: Sequence[ContentBlock], dialect: str) -> tuple[ContentBlock, ...]:
    made: list[ContentBlock] = []
    for block in blocks:
        own = block if _is_of(getattr(block, "provider_raw", None), dialect) else block.replace(provider_raw=None)
        if isinstance(own, ToolResultBlock):
            own = own.replace(content=_blocks_without_raw(own.content, dialect))
        made.append(own)
    return tuple(made)


def _is_of(raw: ProviderRaw | None, dialect: str) -> bool:
    return raw is None or raw.get("dialect") == dialect


async def known_formats(_: Request) -> Response:
    """What a message can be shown as."""
    return answer(Formats(formats.readable()))


# --- costs -----------------------------------------------------------------------------------------------------------


class Sum(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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


class ReceiptTold(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one answer cost, and how that comes about."""

    seq: int
    model: str | None
    cost_usd: str | None  # null if no price was known
    state: Literal["priced", "unpriced"]
    usage: dict[str, Any]
    lines: tuple[ReceiptLine, ...]  # none where the prices of then are not known any more
    timestamp: datetime


class ThreadCost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a thread has cost. What it shares with the thread that it was forked from was paid there."""

    thread_id: str
    total_usd: str | None  # of the answers that have a price; null if none has one
    unpriced: int  # answers for which no price was known
    by_model: list[Sum]
    receipts: list[ReceiptTold]
    has_more: bool
    limit: int


class Cost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the caller has consumed, deleted threads included."""

    total_usd: str | None  # of the answers that have a price; null if none has one
    unpriced: int  # answers for which no price was known
    by_day: list[Sum]
    by_model: list[Sum]


async def thread_cost(request: Request) -> Response:
    """What a thread has cost, by model and by answer."""
    doors = doors_of(request)
    session = await owned_session(request, request.path_params["id"])
    limit = whole_number(request, "limit", default=_RECEIPTS, most=1_000)
    calls, has_more = await _calls(doors.store, session, place_param(request, "afterSeq") or 0, limit)
    sums = await doors.store.totals("model", session=session.id)
    told = ThreadCost(
        thread_id=name_from_id(session.id),
        total_usd=_dollars(total_usd(sums)),
        unpriced=sum(one.unpriced for one in sums),
        by_model=[_sum(one) for one in sums],
        receipts=[_receipt(doors, call) for call in calls],
        has_more=has_more,
        limit=limit,
    )
    return answer(told)


async def _calls(store: Store, session: Session, after: int, limit: int) -> tuple[list[PricedCall], bool]:
    found: list[PricedCall] = []
    async for call in store.priced_calls(session=session.id, after_seq=after):
        if len(found) == limit:
            return found, True
        found.append(call)
    return found, False


def _receipt(doors: Doors, call: PricedCall) -> ReceiptTold:
    lines: tuple[ReceiptLine, ...] = ()
    try:
        made = receipt(doors.agent.prices, call.model or "", call.usage, call.created_at)
        lines = made.lines if made.total_usd == call.usage.amount_usd else ()
    except (UnknownPriceError, FormatError):
        pass
    return ReceiptTold(
        seq=call.seq,
        model=call.model,
        cost_usd=_dollars(call.usage.amount_usd),
        state=call.usage.state,
        usage=usage_of(call.usage),
        lines=lines,
        timestamp=call.created_at,
    )


async def cost(request: Request) -> Response:
    """What the caller has consumed, by day and by model."""
    store, owners = doors_of(request).store, owners_of(principal_of(request))
    since, until = day_param(request, "from"), day_param(request, "to")
    first, last = (None if day is None else day.isoformat() for day in (since, until))
    by_day = await store.totals("day", owners=owners, since=first, until=last)
    by_model = await store.totals("model", owners=owners, since=first, until=last)
    told = Cost(
        total_usd=_dollars(total_usd(by_day)),
        unpriced=sum(one.unpriced for one in by_day),
        by_day=[_sum(one) for one in by_day],
        by_model=[_sum(one) for one in by_model],
    )
    return answer(told)


def _dollars(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"


def _sum(one: Totals) -> Sum:
    return Sum(
        group=one.group,
        messages=one.messages,
        input_tokens=one.input_tokens,
        cached_input_tokens=one.cached_input_tokens,
        cache_creation_input_tokens=one.cache_creation_input_tokens,
        output_tokens=one.output_tokens,
        reasoning_tokens=one.reasoning_tokens,
        cost_usd=_dollars(one.amount_usd),
        unpriced=one.unpriced,
    )


# --- a file ----------------------------------------------------------------------------------------------------------


async def export(request: Request) -> Response:
    """A thread as a file: a page for people, or every message in the canonical format."""
    session = await owned_session(request, request.path_params["id"])
    wanted = text_param(request, "format", "json", most=20)
    if wanted not in _ENDINGS:
        raise Refusal(422, "unknown_format", f"There are {', '.join(_ENDINGS)}.")
    name = re.sub(r"[^A-Za-z0-9_-]", "-", name_from_id(session.id))[:100]
    headers = {
        "content-disposition": f'attachment; filename="{name}.{_ENDINGS[wanted]}"',
        "content-security-policy": _PAGE_POLICY,
        "cache-control": "no-store",
    }
    store = doors_of(request).store
    if wanted == "json":
        return StreamingResponse(_as_json(store, session), media_type=_TYPES[wanted], headers=headers)
    made = await asyncio.to_thread(_as_page, wanted, session, await history_of(store, session))
    return Response(made, media_type=_TYPES[wanted], headers=headers)


def _as_page(wanted: str, session: Session, history: Sequence[Message]) -> bytes:
    history = [_named(message) for message in history]
    about = pages.About.of(history, session.title)
    return pages.begin(wanted, about.title) + pages.conversation(wanted, history, about) + pages.end(wanted)


async def _as_json(store: Store, session: Session) -> AsyncIterator[bytes]:
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
        yield comma + identity(_named(row.message))
        comma = b","
    yield b"]}\n"


_THREAD: Final = "/api/v1/agent/threads/{id}"
_DATE: Final = {"type": "string", "format": "date"}

ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/agent/models",
        models,
        name="list_models",
        summary="The models that may be named, and which of them can be called",
        scope="chat",
        answers={200: Models},
    ),
    Endpoint(
        "GET",
        "/api/v1/agent/formats",
        known_formats,
        name="list_formats",
        summary="The formats that a message can be shown as",
        scope="chat",
        answers={200: Formats},
    ),
    Endpoint(
        "GET",
        f"{_THREAD}/preflight",
        preflight,
        name="preflight",
        summary="What would become of a thread if another model went on with it",
        scope="chat",
        answers={200: Preflight},
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
        messages,
        name="list_messages",
        summary="A page of a thread in the canonical format, every block of it",
        scope="chat",
        answers={200: Messages},
        query=places(),
    ),
    Endpoint(
        "GET",
        f"{_THREAD}/messages/{{messageId}}/as/{{dialect}}",
        shown_as,
        name="show_message_as",
        summary="One message as the wire of a dialect, as a transcript, or in the canonical format",
        scope="chat",
        answers={200: Shown},
    ),
    Endpoint(
        "GET",
        f"{_THREAD}/cost",
        thread_cost,
        name="thread_cost",
        summary="What a thread has cost, by model and by answer",
        scope="chat",
        answers={200: ThreadCost},
        query=(
            Query("limit", {"type": "integer", "minimum": 1}, "At most so many receipts, 1000 if it is more"),
            Query("afterSeq", {"type": "integer", "minimum": 0}, "Those behind this place"),
        ),
    ),
    Endpoint(
        "GET",
        "/api/v1/agent/cost",
        cost,
        name="cost",
        summary="What the caller has consumed, by day and by model",
        scope="chat",
        answers={200: Cost},
        query=(Query("from", _DATE, "From this day on, in UTC"), Query("to", _DATE, "Before this day")),
    ),
    Endpoint(
        "GET",
        f"{_THREAD}/export",
        export,
        name="export_thread",
        summary="A thread as a file",
        scope="chat",
        answers={
            200: (
                Media("text/markdown", {"type": "string"}),
                Media("text/html", {"type": "string"}),
                {"type": "object"},
            )
        },
        query=(Query("format", {"type": "string", "enum": list(_ENDINGS)}, "json unless it is given"),),
    ),
)
