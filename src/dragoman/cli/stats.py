"""``dragoman stats``: print the size, token usage and costs of a store."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.cli.options import (
    GroupOption,
    JsonOption,
    ModelFilter,
    Positive,
    SessionFilter,
    SinceFilter,
    StoreOption,
    TeamFilter,
    UntilFilter,
    UserFilter,
    mask_password,
    open_store_at,
    resolve_store_url,
    usage_filters,
)
from dragoman.cli.terminal import console, escape_line, format_cost, format_count, format_size, print_json, print_table
from dragoman.store import SizeReport, Totals

_PARTS: Final = " ▏▎▍▌▋▊▉█"


async def stats(
    *,
    by: GroupOption = "model",
    session: SessionFilter = None,
    user: UserFilter = None,
    team: TeamFilter = None,
    model: ModelFilter = None,
    since: SinceFilter = None,
    until: UntilFilter = None,
    days: Positive = 14,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Print the size of a store, and its token usage and costs.

    Parameters
    ----------
    days
        The number of days in the chart, the last ones with usage.
    """
    async with open_store_at(store_url) as store:
        sizes = await store.sizes()
        filters = await usage_filters(
            store, session=session, user=user, team=team, model=model, since=since, until=until
        )
        totals_by = {group: await store.costs.totals(group, **filters) for group in dict.fromkeys((by, "day"))}
        durability = store.durability
    where = mask_password(resolve_store_url(store_url))
    if json:
        document = {"store": where, "durability": durability, "sizes": sizes}
        print_json({**document, "by": by, "totals": totals_json(totals_by[by]), "days": totals_json(totals_by["day"])})
        return
    out = console()
    _print_sizes(out, where, durability, sizes)
    if not totals_by["day"]:
        out.print("\nno usage")
        return
    out.print()
    print_table(out, totals_table(by, totals_by[by]))
    out.print()
    _print_chart(out, totals_by["day"][-days:])


def _print_sizes(out: Console, where: str, durability: str, sizes: SizeReport) -> None:
    out.print(Text(escape_line(where), "bold").append(f"  {sizes.engine}, {durability}", "dim"), soft_wrap=True)
    sessions, messages = format_count(sizes.sessions, "session"), format_count(sizes.messages, "message")
    counts = f"{sessions}, {messages}, {format_size(sizes.content_bytes)}"
    out.print(f"{counts} of content")
    line = f"{format_size(sizes.database_bytes)} in the database"
    if sizes.content_bytes:
        line += f", {sizes.database_bytes / sizes.content_bytes:.1f} times the content"
    out.print(f"{line}; {format_count(sizes.blobs, 'large object')} outside, {format_size(sizes.blob_bytes)}")
    tables = sorted(sizes.tables.items(), key=lambda table: -table[1])[:5]
    if tables:
        out.print("largest: " + ", ".join(f"{name} {format_size(counts)}" for name, counts in tables), style="dim")


def totals_json(totals: Sequence[Totals]) -> list[dict[str, Any]]:
    """Return totals for JSON output, with a null cost if no reply has a price."""
    return [{**msgspec.structs.asdict(row), "cost_usd": row.amount_usd} for row in totals]


def totals_table(by: str, totals: Sequence[Totals]) -> Table:
    """Format totals as a table, highest cost first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_footer=len(totals) > 1)
    table.add_column(by, "total", overflow="fold")
    for name in ("replies", "input", "cached", "output", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sorted(totals, key=lambda one: -one.cost_usd):
        table.add_row(escape_line(row.group or "–"), *_cells([row]))
    for column, total in zip(table.columns[1:], _cells(totals), strict=True):
        column.footer = total
    return table


def _cells(totals: Sequence[Totals]) -> tuple[str, ...]:
    fresh = sum(row.input_tokens + row.cache_creation_input_tokens for row in totals)
    return (
        f"{sum(row.messages for row in totals):,}",
        f"{fresh:,}",
        f"{sum(row.cached_input_tokens for row in totals):,}",
        f"{sum(row.output_tokens for row in totals):,}",
        format_cost(
            sum((row.cost_usd for row in totals), Decimal(0)),
            sum(row.unpriced for row in totals),
            sum(row.messages for row in totals),
        ),
    )


def _print_chart(out: Console, days: Sequence[Totals]) -> None:
    """Print a bar per day: the cost, or the tokens if nothing has a price above 0."""
    amounts = [float(day.cost_usd) for day in days]
    labels = [format_cost(day.cost_usd, day.unpriced, day.messages) for day in days]
    if not any(amounts):
        amounts = [float(day.input_tokens + day.output_tokens) for day in days]
        labels = [format_count(int(amount), "token") for amount in amounts]
    width = max(10, min(out.width, 100) - 14 - max(map(len, labels)))
    for day, amount, label in zip(days, amounts, labels, strict=True):
        line = Text(f"{day.group}  ", "dim").append(bar(amount / max(amounts, default=1), width), "green")
        out.print(line.append(f" {label}"))


def bar(share: float, width: int) -> str:
    """Return a bar for a share of a width, with a resolution of an eighth of a character."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + _PARTS[eighths % 8].strip()
