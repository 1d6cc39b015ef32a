"""The cost of a thread, with a receipt for each answer, and the caller's usage by day and by model."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.errors import FormatError, UnknownPriceError
from dragoman.ids import name_from_id
from dragoman.pricing import ReceiptLine, receipt
from dragoman.server.auth.principal import Principal, find_session, get_owned_session, get_principal
from dragoman.server.chat.history import (
    day_param,
    seq_param,
    usage_to_json,
)
from dragoman.server.http.endpoint import Endpoint, Query
from dragoman.server.http.requests import app_state, int_param
from dragoman.server.http.responses import json_response
from dragoman.server.state import AppState
from dragoman.store import Session, Store, Totals
from dragoman.store.types import PricedCall, total_usd

_RECEIPT_LIMIT: Final = 200
_THREAD: Final = "/api/v1/agent/threads/{id}"
_DATE: Final = {"type": "string", "format": "date"}


class CostTotal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tokens and cost of a group of answers."""

    group: str | None  # model, or day in UTC
    messages: int
    input_tokens: int
    cached_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_usd: str | None  # of the answers with a price; null if none has one
    unpriced: int  # answers without a price, not included in the sum


class ReceiptResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The cost of one answer, with its calculation."""

    seq: int
    model: str | None
    cost_usd: str | None  # null without a price
    state: Literal["priced", "unpriced"]
    usage: dict[str, Any]
    lines: tuple[ReceiptLine, ...]  # empty if the prices of that time are not known any more
    cache_savings_usd: str | None  # by prompt caching; null without lines
    timestamp: datetime


class ThreadCostResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The cost of a thread. Messages shared with the thread that it was forked from count there."""

    thread_id: str
    total_usd: str | None  # of the answers with a price; null if none has one
    unpriced: int  # answers without a price
    by_model: list[CostTotal]
    shared_answers: int  # answers that it shares with the threads it was forked from
    shared_usd: str | None  # their cost, of the answers with a price
    receipts: list[ReceiptResponse]
    has_more: bool
    limit: int


class CostResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The caller's usage, including deleted threads."""

    total_usd: str | None  # of the answers with a price; null if none has one
    unpriced: int  # answers without a price
    by_day: list[CostTotal]
    by_model: list[CostTotal]


async def get_thread_cost(request: Request) -> Response:
    """Return the cost of a thread by model and by answer."""
    state = app_state(request)
    session = await get_owned_session(request, request.path_params["id"])
    limit = int_param(request, "limit", default=_RECEIPT_LIMIT, maximum=1_000)
    calls, has_more = await _read_priced_calls(state.store, session, seq_param(request, "afterSeq") or 0, limit)
    totals = await state.store.costs.totals("model", session=session.id)
    shared = await _read_shared_calls(state.store, get_principal(request), session)
    shared_amounts = [amount for call in shared if (amount := call.usage.amount_usd) is not None]
    body = ThreadCostResponse(
        thread_id=name_from_id(session.id),
        total_usd=_format_usd(total_usd(totals)),
        unpriced=sum(total.unpriced for total in totals),
        by_model=[_cost_total(total) for total in totals],
        shared_answers=len(shared),
        shared_usd=_format_usd(sum(shared_amounts, Decimal(0)) if shared_amounts else None),
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


async def _read_shared_calls(store: Store, principal: Principal, session: Session) -> list[PricedCall]:
    """The calls whose answers a thread shares with the threads that it was forked from."""
    shared: list[PricedCall] = []
    last_seq = session.parent_seq
    parent_id = session.parent_session_id
    while parent_id is not None and last_seq:
        parent = await find_session(store, principal, parent_id)
        if parent is None:  # deleted
            break
        shared += [call async for call in store.costs.calls(session=parent.id) if call.seq <= last_seq]
        last_seq, parent_id = min(last_seq, parent.parent_seq), parent.parent_session_id
    return shared


def _receipt_response(state: AppState, call: PricedCall) -> ReceiptResponse:
    lines: tuple[ReceiptLine, ...] = ()
    savings = None
    try:
        current = receipt(state.agent.services.price_table, call.model or "", call.usage, call.created_at)
        if current.total_usd == call.usage.amount_usd:
            lines, savings = current.lines, current.cache_savings_usd
    except (UnknownPriceError, FormatError):
        pass
    return ReceiptResponse(
        seq=call.seq,
        model=call.model,
        cost_usd=_format_usd(call.usage.amount_usd),
        state=call.usage.state,
        usage=usage_to_json(call.usage),
        lines=lines,
        cache_savings_usd=_format_usd(savings),
        timestamp=call.created_at,
    )


async def get_cost(request: Request) -> Response:
    """Return the caller's usage by day and by model."""
    store, owners = app_state(request).store, get_principal(request).owners
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


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{_THREAD}/cost",
        get_thread_cost,
        name="thread_cost",
        summary="Cost of a thread by model and by answer",
        scope="chat",
        responses={200: ThreadCostResponse},
        query=(
            Query("limit", {"type": "integer", "minimum": 1}, "Maximum number of receipts, at most 1000"),
            Query("afterSeq", {"type": "integer", "minimum": 0}, "Answers after this position"),
        ),
    ),
    Endpoint(
        "GET",
        "/api/v1/agent/cost",
        get_cost,
        name="cost",
        summary="The caller's usage by day and by model",
        scope="chat",
        responses={200: CostResponse},
        query=(Query("from", _DATE, "First day, in UTC"), Query("to", _DATE, "Day after the last one")),
    ),
)
