"""Prepare a request for writing: the steps that every dialect takes before it writes.

    prepare_request(request, table, carries, …) -> Preparation   drops failed turns, fits limits, fills ids
    fit_request(request, table, losses, carries, …)              the request that the target accepts, and adjustments
    is_plain_history(messages, dialect)                          whether messages need none of these steps

The limits are data: the table of the dialect, with the families of its models, and the row of the model if the caller
has one. What changes is an adjustment; what is left out is a loss. Invariant: a request that was read in the target's
own dialect is not changed, except by the row of a model.

One pass over the messages decides whether any step on messages is necessary. Most histories are plain: texts, and
calls with their results. Invariant: preparing the messages of a plain history one step at a time changes and reports
nothing, apart from their order and roles, which depend on the limits of the target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dragoman.exchange import Loss, Request
from dragoman.message import ContentBlock, Message, ProviderRaw, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.wire.limits.history import EMPTY, Carries, fit_history
from dragoman.wire.limits.options import fit_options, fit_tools
from dragoman.wire.limits.table import LimitTable, Report, find_limits
from dragoman.wire.message_builder import drop_failed_turns, fill_result_ids, make_message
from dragoman.wire.residue import foreign_field_losses

if TYPE_CHECKING:
    from dragoman.catalog import Model

Quirks = Collection[str]  # deviations of a provider from its API, by name
OpenCalls = dict[str, ProviderRaw | None]  # notes of the calls without their result so far, by id
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


class Preparation(NamedTuple):
    """A request that can be written."""

    request: Request
    losses: list[Loss]  # the dialect appends its own
    adjustments: list[Loss]
    is_plain: bool  # whether its messages are a plain history


def prepare_request(
    request: Request,
    table: LimitTable,
    carries: Carries,
    model: Model | None,
    quirks: Quirks,
    *,
    fit: bool,
) -> Preparation:
    """Return the request that a dialect writes, with the losses so far."""
    dialect = table.dialect
    losses: list[Loss] = []
    is_plain = is_plain_history(request.messages, dialect)
    if not is_plain:
        losses.extend(foreign_field_losses(request.messages, dialect))  # of what the next steps remove, too
        request = drop_failed_turns(request, dialect, losses, may_end_in_reasoning=table.may_end_in_reasoning)
    adjustments: list[Loss] = []
    if fit:
        request, adjustments = fit_request(
            request, table, losses, carries, model=model, quirks=quirks, is_plain=is_plain
        )
    if table.has_result_ids and not is_plain:
        request = fill_result_ids(request, dialect)
    return Preparation(request, losses, adjustments, is_plain)


def fit_request(
    request: Request,
    table: LimitTable,
    losses: list[Loss],
    carries: Carries,
    *,
    model: Model | None = None,
    quirks: Quirks = (),
    is_plain: bool = False,
) -> tuple[Request, list[Loss]]:
    """Return a request that the target accepts. Losses are added to ``losses``.

    ``is_plain`` is whether the messages are a plain history, whose blocks need no change.
    """
    dialect, raw = table.dialect, request.provider_raw
    is_native = raw is not None and raw.get("dialect") == dialect
    if is_native and model is None:
        return request, []
    report = Report(dialect)
    limits = find_limits(table, request.model, model, quirks)
    options = fit_options(request, limits, report)
    messages = request.messages
    if not is_native:
        messages = fit_history(messages, limits, carries, report, is_plain=is_plain)
    if not messages and raw is not None and not is_native:
        report.adjust("messages", "a user message is added: the request has none")
        messages = (make_message(Role.USER, EMPTY),)
    tools = request.tools
    if tools and not is_native:
        tools = fit_tools(tools, limits, report)
    if options is request.options and messages is request.messages and tools is request.tools:
        return request, []
    losses.extend(report.losses)
    return msgspec.structs.replace(request, options=options, messages=messages, tools=tools), report.adjustments


def is_plain_history(messages: Iterable[Message], dialect: str) -> bool:
    """Whether messages hold only texts that are not blank, and calls, each followed by its result as texts.

    No optional field is set, this dialect has no notes but equal ids of a call and its result, and other dialects have
    none but forms and ids.
    """
    open_calls: OpenCalls = {}
    for message in messages:
        content, role, raw = message.content, message.role, message.metadata.provider_raw
        if not content or (raw is not None and _is_noted(raw, dialect)):
            return False
        if role is _TOOL:
            if not _are_plain_results(content, open_calls, dialect):
                return False
            continue
        if open_calls or not (role is _USER or role is _ASSISTANT or role is _SYSTEM):
            return False
        for block in content:
            if type(block) is TextBlock:
                text, raw = block.text, block.provider_raw
                if not text or text.isspace() or block.citations or block.cache_hint is not None:
                    return False
                if raw is not None and _is_noted(raw, dialect):
                    return False
            elif role is _ASSISTANT and type(block) is ToolUseBlock:
                if block.cache_hint is not None or block.free_form or block.id in open_calls:
                    return False
                open_calls[block.id] = raw = block.provider_raw
                if _find_id(raw, dialect) is None:
                    return False
            else:
                return False
    return not open_calls


def _are_plain_results(content: Iterable[ContentBlock], open_calls: OpenCalls, dialect: str) -> bool:
    """Whether blocks are plain results of these calls; removes the calls from ``open_calls``."""
    for block in content:
        if type(block) is not ToolResultBlock or block.cache_hint is not None or block.tool_use_id not in open_calls:
            return False
        raw, call_raw = block.provider_raw, open_calls.pop(block.tool_use_id)
        if raw != call_raw and _find_id(raw, dialect) != _find_id(call_raw, dialect):
            return False
        for part in block.content:
            if type(part) is not TextBlock or not _is_plain_text(part, dialect):
                return False
    return True


def _is_plain_text(block: TextBlock, dialect: str) -> bool:
    text = block.text
    if not text or text.isspace() or block.citations or block.cache_hint is not None:
        return False
    raw = block.provider_raw
    return raw is None or not _is_noted(raw, dialect)


def _find_id(raw: ProviderRaw | None, dialect: str) -> str | None:
    """Return the id that this dialect has noted, empty if it has no notes; ``None`` if there are other notes."""
    if raw is None:
        return ""
    origin, own_id = raw.get("dialect"), raw.get("id")
    has_only_id = len(raw) == 2 and origin is not None and type(own_id) is str
    if origin == dialect:
        return own_id if has_only_id and own_id else None
    return "" if has_only_id or not _has_fields(raw) else None


def _is_noted(raw: ProviderRaw, dialect: str) -> bool:
    """Whether this dialect has notes, or another one has notes about fields that only it has."""
    return raw.get("dialect") == dialect or _has_fields(raw)


def _has_fields(raw: ProviderRaw) -> bool:
    for note in raw.values():  # noqa: SIM110  a generator takes twice as long
        if type(note) is dict:
            return True
    return False
