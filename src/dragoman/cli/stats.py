"""``dragoman stats``: how big a store is, what was consumed, and what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.cli.store_option import (
    JsonOption,
    Positive,
    StoreOption,
    opened,
    session_named,
    url_from,
    without_password,
)
from dragoman.cli.terminal import console, counted, print_json, print_table, safe_line, size, spent
from dragoman.store import SizeReport, Totals
from dragoman.store.values import TotalsBy

_PARTS: Final = " ▏▎▍▌▋▊▉█"


async def stats(
    *,
    by: TotalsBy = "model",
    session: str | None = None,
    user: str | None = None,
    team: str | None = None,
    model: str | None = None,
    since: date | None = None,
    until: date | None = None,
    days: Positive = 14,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show how big a store is, and what was consumed and what it cost.

    Parameters
    ----------
    by
        What to add up by.
    session
        Only this session.
    user
        Only what this user consumed.
    team
        Only what this team consumed.
    model
        Only this model.
    since
        Only from this day on, in UTC.
    until
        Only before this day.
    days
        Draw so many days, the newest that have anything.
    """
    async with opened(store) as kept:
        sizes = await kept.sizes()
        only = (await session_named(kept, session)).id if session is not None else None
        found = {}
        for group in dict.fromkeys((by, "day")):
            found[group] = await kept.totals(
                group,
                session=only,
                user=user,
                team=team,
                model=model,
                since=since.isoformat() if since is not None else None,
                until=until.isoformat() if until is not None else None,
            )
        durability = kept.durability
    where = without_password(url_from(store))
    if json:
        document = {"store": where, "durability": durability, "sizes": sizes}
        print_json({**document, "by": by, "totals": totals_json(found[by]), "days": totals_json(found["day"])})
        return
    out = console()
    _print_sizes(out, where, durability, sizes)
    if not found["day"]:
        out.print("\nnothing was consumed")
        return
    out.print()
    print_table(out, totals_table(by, found[by]))
    out.print()
    _plot(out, found["day"][-days:])


def _print_sizes(out: Console, where: str, durability: str, sizes: SizeReport) -> None:
    out.print(Text(safe_line(where), "bold").append(f"  {sizes.engine}, {durability}", "dim"), soft_wrap=True)
    held = f"{counted(sizes.sessions, 'session')}, {counted(sizes.messages, 'message')}, {size(sizes.content_bytes)}"
    out.print(f"{held} of content")
    line = f"{size(sizes.database_bytes)} in the database"
    if sizes.content_bytes:
        line += f", {sizes.database_bytes / sizes.content_bytes:.1f} times the content"
    out.print(f"{line}; {counted(sizes.blobs, 'large piece')} outside, {size(sizes.blob_bytes)}")
    tables = sorted(sizes.tables.items(), key=lambda table: -table[1])[:5]
    if tables:
        out.print("largest: " + ", ".join(f"{name} {size(held)}" for name, held in tables), style="dim")


def totals_json(totals: Sequence[Totals]) -> list[dict[str, Any]]:
    """Return totals for programs: a cost is null where no reply has a price."""
    return [{**msgspec.structs.asdict(one), "cost_usd": one.amount_usd} for one in totals]


def totals_table(by: str, totals: Sequence[Totals]) -> Table:
    """Totals for people, the dearest first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_footer=len(totals) > 1)
    table.add_column(by, "total", overflow="fold")
    for name in ("replies", "input", "cached", "output", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in sorted(totals, key=lambda one: -one.cost_usd):
        table.add_row(safe_line(one.group or "–"), *_cells([one]))
    for column, total in zip(table.columns[1:], _cells(totals), strict=True):
        column.footer = total
    return table


def _cells(totals: Sequence[Totals]) -> tuple[str, ...]:
    fresh = sum(one.input_tokens + one.cache_creation_input_tokens for one in totals)
    return (
        f"{sum(one.messages for one in totals):,}",
        f"{fresh:,}",
        f"{sum(one.cached_input_tokens for one in totals):,}",
        f"{sum(one.output_tokens for one in totals):,}",
        spent(
            sum((one.cost_usd for one in totals), Decimal(0)),
            sum(one.unpriced for one in totals),
            sum(one.messages for one in totals),
        ),
    )


def _plot(out: Console, days: Sequence[Totals]) -> None:
    """A bar for each day: of what it cost, or of its tokens where nothing has a price above 0."""
    amounts = [float(day.cost_usd) for day in days]
    labels = [spent(day.cost_usd, day.unpriced, day.messages) for day in days]
    if not any(amounts):
        amounts = [float(day.input_tokens + day.output_tokens) for day in days]
        labels = [counted(int(amount), "token") for amount in amounts]
    width = max(10, min(out.width, 100) - 14 - max(map(len, labels)))
    for day, amount, label in zip(days, amounts, labels, strict=True):
        line = Text(f"{day.group}  ", "dim").append(bar(amount / max(amounts, default=1), width), "green")
        out.print(line.append(f" {label}"))


def bar(share: float, width: int) -> str:
    """A bar as long as its share of a width, to an eighth of a character."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + _PARTS[eighths % 8].strip()
