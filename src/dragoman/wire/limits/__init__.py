"""Fit a request to the limits of its target, so that the target accepts it.

    fit_request(request, table, losses, carries, model, quirks) -> Request, adjustments

A dialect calls this before it writes a request. The limits are data: a table for each dialect, with the families of
its models, and the row of the model if the caller has one. What changes is an adjustment; what is left out is a
loss.

Invariant: a request that was read in the target's own dialect is not changed, except by the row of a model.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from dragoman.exchange import Loss, Request
from dragoman.message import Role
from dragoman.wire.limits import claude
from dragoman.wire.limits.history import EMPTY, Carries, fit_history
from dragoman.wire.limits.options import fit_options
from dragoman.wire.limits.table import Limits, LimitTable, Report, find_limits
from dragoman.wire.limits.tools import fit_tools
from dragoman.wire.message_builder import make_message

if TYPE_CHECKING:
    from dragoman.catalog import Model

__all__ = ["Carries", "LimitTable", "Limits", "claude", "fit_request"]


def fit_request(
    request: Request,
    table: LimitTable,
    losses: list[Loss],
    carries: Carries,
    *,
    model: Model | None = None,
    quirks: Collection[str] = (),
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
