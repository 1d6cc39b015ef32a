"""Token usage and costs as JSON, as a table, and as a chart of days: for ``stats`` and ``cost``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.cli.terminal import escape_line, format_cost, format_count
from dragoman.store import Totals

_MAX_DAYS: Final = 366  # days in one chart
_PARTS: Final = " ▏▎▍▌▋▊▉█"


def totals_json(totals: Sequence[Totals]) -> list[dict[str, Any]]:
    """Return totals for JSON output, with a null cost if no reply has a price."""
    return [{**msgspec.structs.asdict(row), "cost_usd": row.amount_usd} for row in totals]


def totals_table(by: str, totals: Sequence[Totals]) -> Table:
    """Format totals as a table, highest cost first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_footer=len(totals) > 1)
    table.add_column(by, "total", overflow="fold")
    for name in ("replies", "input", "cached", "output", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sorted(totals, key=lambda group: -group.cost_usd):
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


def print_chart(out: Console, totals: Sequence[Totals], days: int) -> None:
    """Print a bar per day: the cost, or the tokens if nothing has a price above 0."""
    for row in totals:
        if row.group is None:
            label = _label(row, by_tokens=not row.cost_usd)
            out.print(Text("without a date  ", "dim").append(label, "default"))
    if all(row.group is None for row in totals):
        return
    rows = _every_day(totals, min(days, _MAX_DAYS))
    by_tokens = not any(row.cost_usd for _, row in rows if row is not None)
    amounts = [0.0 if row is None else _amount(row, by_tokens=by_tokens) for _, row in rows]
    labels = ["" if row is None else _label(row, by_tokens=by_tokens) for _, row in rows]
    width = max(10, min(out.width, 100) - 17 - max(map(len, labels)))
    maximum = max(amounts) or 1.0
    for (day, _), amount, label in zip(rows, amounts, labels, strict=True):
        line = Text(f"{day:%a} {day.isoformat()}  ", "dim")
        if not label:
            out.print(line.append("·", "dim"))
            continue
        bar_text = bar(amount / maximum, width) or ("▏" if amount else "")
        out.print(line.append(bar_text, "green").append(f" {label}" if bar_text else label, "default"))


def _every_day(totals: Sequence[Totals], days: int) -> list[tuple[date, Totals | None]]:
    by_day = {date.fromisoformat(row.group): row for row in totals if row.group is not None}
    last = max(by_day)
    first = last - timedelta(days=min(days - 1, (last - min(by_day)).days))
    return [(day, by_day.get(day)) for day in (first + timedelta(days=n) for n in range((last - first).days + 1))]


def _amount(row: Totals, *, by_tokens: bool) -> float:
    return float(row.input_tokens + row.output_tokens) if by_tokens else float(row.cost_usd)


def _label(row: Totals, *, by_tokens: bool) -> str:
    if by_tokens:
        return format_count(row.input_tokens + row.output_tokens, "token")
    return format_cost(row.cost_usd, row.unpriced, row.messages)


def bar(share: float, width: int) -> str:
    """Return a bar for a share of a width, with a resolution of an eighth of a character."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + _PARTS[eighths % 8].strip()
