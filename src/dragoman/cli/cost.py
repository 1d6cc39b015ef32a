"""``dragoman cost`` and ``dragoman reprice``: what models have cost, and what they would have under other prices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman import pricing
from dragoman.cli.options import JsonOption, Positive, StoreOption, find_session, open_store_at
from dragoman.cli.price import price_table
from dragoman.cli.stats import bar, totals_json, totals_table
from dragoman.cli.terminal import console, escape_line, format_cost, format_count, format_usd, print_json, print_table
from dragoman.errors import FormatError, InputError, UnknownPriceError
from dragoman.store import Store, Totals
from dragoman.store.types import PricedCall, TotalsBy, cost_or_none, total_usd

_MAX_DAYS: Final = 366  # days in one plot


async def cost(
    *,
    by: TotalsBy = "model",
    session: str | None = None,
    user: str | None = None,
    team: str | None = None,
    model: str | None = None,
    since: date | None = None,
    until: date | None = None,
    days: Positive = 30,
    prices_version: str | None = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show what was consumed and what it cost, by session, model, user, team, provider or day.

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
        Draw so many days, up to the newest that has anything.
    prices_version
        With the amounts that reprice has kept under this version of prices.
    """
    async with open_store_at(store_url) as store:
        filters = {
            "session": (await find_session(store, session)).id if session is not None else None,
            "user": user,
            "team": team,
            "model": model,
            "since": since.isoformat() if since is not None else None,
            "until": until.isoformat() if until is not None else None,
        }
        groups = {
            group: await _read_totals(store, group, prices_version, filters) for group in dict.fromkeys((by, "day"))
        }
    if json:
        day_totals = groups["day"]
        sums = {"total_usd": total_usd(day_totals), "unpriced": sum(row.unpriced for row in day_totals)}
        rows = {"totals": totals_json(groups[by]), "days": totals_json(day_totals)}
        print_json({"by": by, **sums, **rows, "prices_version": prices_version})
        return
    out = console()
    if not groups["day"]:
        out.print("nothing was consumed")
        return
    _print_sum(out, groups["day"], prices_version)
    if by != "day":
        out.print()
        print_table(out, totals_table(by, groups[by]))
    out.print()
    _print_chart(out, groups["day"], days)


async def _read_totals(store: Store, by: TotalsBy, version: str | None, filters: dict[str, Any]) -> list[Totals]:
    if version is None:
        return await store.costs.totals(by, **filters)
    versions = await store.costs.versions()
    if version not in versions:
        version_list = ", ".join(versions) or "none yet"
        raise InputError(
            f"nothing was repriced under {version!r}; there is {version_list}", remedy="See dragoman reprice"
        )
    return await store.costs.totals(by, version=version, **filters)


def _print_sum(out: Console, days: Sequence[Totals], version: str | None) -> None:
    tokens = sum(day.input_tokens + day.cached_input_tokens + day.cache_creation_input_tokens for day in days)
    output_tokens = sum(day.output_tokens for day in days)
    replies, unpriced = sum(day.messages for day in days), sum(day.unpriced for day in days)
    line = Text(format_usd(total_usd(days)), "bold green")
    line.append(f" for {format_count(replies, 'reply', 'replies')}", "default")
    line.append(f" · {tokens:,} tokens in, {output_tokens:,} out", "dim")
    out.print(line)
    if unpriced:
        which = "that has" if unpriced == 1 else "which have"
        line = Text(f"without {format_count(unpriced, 'reply', 'replies')} {which} no price", "yellow")
        out.print(line.append("; dragoman reprice can give them one", "dim"))
    if version is not None:
        out.print(Text(f"under the prices {escape_line(version)}", "dim"))


def _print_chart(out: Console, totals: Sequence[Totals], days: int) -> None:
    """A bar for each day, those without anything included; of tokens where nothing has a price above 0."""
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


# --- reprice ---------------------------------------------------------------------------------------------------------


class Difference(msgspec.Struct, kw_only=True):
    """What the calls of a model cost, and would cost."""

    model: str
    calls: int = 0
    was_usd: Decimal = Decimal(0)  # of the calls that had a price
    would_be_usd: Decimal = Decimal(0)  # of the calls that have one now
    was_unpriced: int = 0  # calls that had no price
    would_be_unpriced: int = 0  # calls that have no price now either
    without_price: int = 0  # calls that these prices do not cover; they stay as they were

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with null for an amount that is unknown."""
        was = cost_or_none(self.was_usd, self.was_unpriced, self.calls)
        would_be = cost_or_none(self.would_be_usd, self.would_be_unpriced, self.calls)
        return {**msgspec.structs.asdict(self), "was_usd": was, "would_be_usd": would_be}


KeepOption = Annotated[
    bool,
    Parameter(
        name="--keep",
        negative=(),
        show_default=False,
        help="Keep the new amounts beside the old ones. Without it, nothing is written.",
    ),
]


async def reprice(
    *,
    prices: Path | None = None,
    session: str | None = None,
    model: str | None = None,
    since: date | None = None,
    until: date | None = None,
    keep: KeepOption = False,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show what the calls in a store would have cost under other prices; keep that if asked.

    Parameters
    ----------
    prices
        A YAML or JSON file of prices that goes over the built-in table.
    session
        Only this session.
    model
        Only this model.
    since
        Only from this day on, in UTC.
    until
        Only before this day.
    """
    table = price_table(prices)
    by_model: dict[str, Difference] = {}
    amounts: list[tuple[str, int, Decimal]] = []
    versions: set[str] = set()
    async with open_store_at(store_url) as store:
        session_id = (await find_session(store, session)).id if session is not None else None
        async for call in store.costs.calls(
            session=session_id,
            model=model,
            since=since.isoformat() if since is not None else None,
            until=until.isoformat() if until is not None else None,
        ):
            versions.add(call.usage.pricing_version)
            difference = by_model.setdefault(call.model or "–", Difference(model=call.model or "–"))
            cost_usd = _reprice_call(table, call, difference)
            if cost_usd is not None:
                amounts.append((call.session_id, call.seq, cost_usd))
        if keep:
            await store.costs.save_repricing(table.version, amounts)
    differences = sorted(by_model.values(), key=lambda one: -abs(one.would_be_usd - one.was_usd))
    if json:
        models = [item.to_json() for item in differences]
        print_json({"prices_version": table.version, "kept": keep, "models": models, "was": sorted(versions)})
        return
    out = console()
    if not differences:
        out.print("nothing was consumed")
        return
    _print_differences(out, table.version, sorted(versions), differences)
    if keep:
        out.print("kept beside the receipts, which stay as they are:", style="dim")
        out.print(f"dragoman cost --prices-version {table.version}", style="dim", soft_wrap=True)
    else:
        out.print("nothing was written; --keep keeps the new amounts beside the old ones", style="dim")


def _reprice_call(table: pricing.PriceTable, call: PricedCall, into: Difference) -> Decimal | None:
    """What a call costs under a table; its model's difference is told."""
    into.calls += 1
    old_usd = call.usage.amount_usd
    into.was_usd += old_usd or 0
    into.was_unpriced += old_usd is None
    try:
        if call.model is None:
            raise UnknownPriceError("no model")
        new_usd = pricing.receipt(table, call.model, call.usage, call.created_at).total_usd
    except (UnknownPriceError, FormatError):  # also counts that contradict each other
        into.without_price += 1
        into.would_be_usd += old_usd or 0
        into.would_be_unpriced += old_usd is None
        return None
    into.would_be_usd += new_usd
    return new_usd


def _print_differences(out: Console, version: str, versions: Sequence[str], differences: Sequence[Difference]) -> None:
    out.print(
        Text(f"prices {escape_line(version)}", "bold").append(f", against {escape_line(', '.join(versions))}", "dim")
    )
    out.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_footer=len(differences) > 1)
    table.add_column("model", "total", overflow="fold")
    for name in ("replies", "was", "would be", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in differences:
        table.add_row(escape_line(item.model), *_cells([item]))
    for column, total in zip(table.columns[1:], _cells(differences), strict=True):
        column.footer = total
    print_table(out, table)
    if before := sum(item.was_unpriced for item in differences):
        out.print(f"{format_count(before, 'reply', 'replies')} had no price before", style="dim")
    if without := sum(item.without_price for item in differences):
        out.print(
            f"{format_count(without, 'reply', 'replies')} without a price under these stay as they were", style="yellow"
        )
    out.print()


def _cells(differences: Sequence[Difference]) -> tuple[Text, ...]:
    was = sum((item.was_usd for item in differences), Decimal(0))
    would = sum((item.would_be_usd for item in differences), Decimal(0))
    calls = sum(item.calls for item in differences)
    before, after = sum(item.was_unpriced for item in differences), sum(item.would_be_unpriced for item in differences)
    amounts = Text(format_cost(was, before, calls)), Text(format_cost(would, after, calls))
    if calls in (before, after):  # nothing to compare
        return Text(f"{calls:,}"), *amounts, Text("–", "dim")
    change = would - was
    sign = "+" if change > 0 else "-" if change < 0 else ""
    style = "red" if change > 0 else "green" if change < 0 else "dim"
    return Text(f"{calls:,}"), *amounts, Text(f"{sign}{format_usd(abs(change))}", style)
