"""The cost of a thread, with a receipt for each answer, and the caller's usage by day, model and thread.

    GET /threads/{id}/cost     by model and by answer
    GET /cost                  by day, model and thread; with ``people=all`` of everybody, also by person
    GET /cost/export           one line for each answer, as CSV

Invariant: only a key with the scope ``admin`` gets usage of other people.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman.errors import FormatError, UnknownPriceError
from dragoman.ids import name_from_id
from dragoman.pricing import ReceiptLine, cache_savings, receipt
from dragoman.server.auth.principal import Principal, find_session, get_owned_session, get_principal
from dragoman.server.auth.scopes import ADMIN
from dragoman.server.chat.history import day_param, seq_param, usage_to_json
from dragoman.server.http.endpoint import Media, Query, chat_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, int_param, text_param
from dragoman.server.http.responses import json_response
from dragoman.server.state import AppState
from dragoman.store import Owners, Session, Store, Totals
from dragoman.store.costs import COUNTS
from dragoman.store.types import PricedCall, TotalsBy, total_usd

_RECEIPT_LIMIT: Final = 200
_MAX_THREADS: Final = 100
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


class ThreadTotal(CostTotal, frozen=True, kw_only=True, rename="camel"):
    """Tokens and cost of a thread."""

    title: str | None  # null for deleted threads, and for threads of other people


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
    by_thread: list[ThreadTotal]  # the most expensive ones; deleted threads are one group
    by_person: list[CostTotal] | None  # of everybody, for the scope admin
    cache_saved_usd: str | None  # what prompt caches saved, at the current prices; null without a price


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
        receipts=[make_receipt(state, call) for call in calls],
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


def make_receipt(state: AppState, call: PricedCall) -> ReceiptResponse:
    """The cost of one answer, with its calculation."""
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
    """Return usage by day, model and thread."""
    state, owners = app_state(request), _owners_param(request)
    since, until = _range_params(request)

    async def totals(by: TotalsBy) -> list[Totals]:
        return await state.store.costs.totals(by, owners=owners, since=since, until=until)

    by_day, by_model = await totals("day"), await totals("model")
    by_person = await totals("user") if owners is None else None
    body = CostResponse(
        total_usd=_format_usd(total_usd(by_day)),
        unpriced=sum(total.unpriced for total in by_day),
        by_day=[_cost_total(total) for total in by_day],
        by_model=[_cost_total(total) for total in by_model],
        by_thread=await _thread_totals(request, await totals("session")),
        by_person=None if by_person is None else [_cost_total(total) for total in by_person],
        cache_saved_usd=_format_usd(_cache_savings(state, by_model)),
    )
    return json_response(body)


def _owners_param(request: Request) -> Owners | None:
    """The caller, or everybody (none) if an administrator asks for that."""
    people, principal = text_param(request, "people", "own", max_length=10), get_principal(request)
    if people not in ("own", "all"):
        raise ApiError(422, "invalid_parameter", "people must be own or all.")
    if people == "own":
        return principal.owners
    if ADMIN not in principal.scopes:
        raise ApiError(403, "missing_scope", f"The key does not have the scope {ADMIN}.")
    return None


def _range_params(request: Request) -> tuple[str | None, str | None]:
    since, until = day_param(request, "from"), day_param(request, "to")
    return (None if since is None else since.isoformat(), None if until is None else until.isoformat())


async def _thread_totals(request: Request, totals: Sequence[Totals]) -> list[ThreadTotal]:
    """The most expensive threads with the titles of the caller's own."""
    store, principal = app_state(request).store, get_principal(request)
    top = sorted(totals, key=lambda total: (total.cost_usd, total.messages), reverse=True)[:_MAX_THREADS]
    result = []
    for total in top:
        session = None if total.group is None else await find_session(store, principal, total.group)
        fields = msgspec.structs.asdict(_cost_total(total))
        fields["group"] = None if session is None else name_from_id(session.id)
        result.append(ThreadTotal(**fields, title=None if session is None else session.title))
    return result


def _cache_savings(state: AppState, by_model: Sequence[Totals]) -> Decimal | None:
    """Return the savings by prompt caches in all calls of models with a price."""
    amounts, services = [], state.agent.services
    for total in by_model:
        read, written = total.cached_input_tokens, total.cache_creation_input_tokens
        try:
            amounts.append(cache_savings(services.price_table, total.group or "", read, written, services.clock()))
        except (UnknownPriceError, FormatError):
            continue
    return sum(amounts, Decimal(0)) if amounts else None


# --- CSV -------------------------------------------------------------------------------------------------------------


async def export_cost(request: Request) -> Response:
    """Return one line of CSV for each answer, without those of deleted threads."""
    owners, (since, until) = _owners_param(request), _range_params(request)
    headers = {"content-disposition": 'attachment; filename="costs.csv"', "cache-control": "no-store"}
    lines = _stream_csv(request, owners, since, until)
    return StreamingResponse(lines, media_type="text/csv; charset=utf-8", headers=headers)


_COLUMNS: Final = ("time", "thread", "title", "model", *COUNTS, "cost_usd", "state", "latency_ms", "pricing_version")


async def _stream_csv(
    request: Request, owners: Owners | None, since: str | None, until: str | None
) -> AsyncIterator[bytes]:
    store, principal = app_state(request).store, get_principal(request)
    threads: dict[str, tuple[str, str]] = {}
    yield _csv_line(_COLUMNS)
    async for call in store.costs.calls(owners=owners, since=since, until=until):
        if call.session_id not in threads:
            session = await find_session(store, principal, call.session_id)
            threads[call.session_id] = ("", "") if session is None else (name_from_id(session.id), session.title or "")
        usage = call.usage
        counts = (str(getattr(usage, name)) for name in COUNTS)
        cost = _format_usd(usage.amount_usd) or ""
        yield _csv_line(
            (
                call.created_at.isoformat(),
                *threads[call.session_id],
                call.model or "",
                *counts,
                cost,
                usage.state,
                str(usage.latency_ms),
                usage.pricing_version,
            )
        )


def _csv_line(values: Sequence[str]) -> bytes:
    """A line of CSV. A spreadsheet would run a text that starts like a formula, so such a text starts with a quote."""
    cells = (f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value for value in values)
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode()


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


_RANGE: Final = (
    Query("from", _DATE, "First day, in UTC"),
    Query("to", _DATE, "Day after the last one"),
    Query("people", {"type": "string", "enum": ["own", "all"]}, "all: usage of everybody, for the scope admin"),
)

ENDPOINTS = (
    chat_endpoint(
        "GET",
        f"{_THREAD}/cost",
        get_thread_cost,
        "Cost of a thread by model and by answer",
        {200: ThreadCostResponse},
        name="thread_cost",
        query=(
            Query("limit", {"type": "integer", "minimum": 1}, "Maximum number of receipts, at most 1000"),
            Query("afterSeq", {"type": "integer", "minimum": 0}, "Answers after this position"),
        ),
    ),
    chat_endpoint(
        "GET",
        "/api/v1/agent/cost",
        get_cost,
        "Usage by day, model and thread",
        {200: CostResponse},
        name="cost",
        query=_RANGE,
    ),
    chat_endpoint(
        "GET",
        "/api/v1/agent/cost/export",
        export_cost,
        "One line of CSV for each answer",
        {200: Media("text/csv", {"type": "string"})},
        query=_RANGE,
    ),
)
