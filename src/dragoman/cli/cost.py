"""``dragoman cost`` and ``dragoman reprice``: model costs, and costs with other prices."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman import pricing
from dragoman.cli.options import (
    CallFilters,
    GroupOption,
    JsonOption,
    Positive,
    StoreOption,
    UsageFilters,
    flag,
    open_store_at,
)
from dragoman.cli.price import price_table
from dragoman.cli.terminal import console, escape_line, format_cost, format_count, format_usd, print_json, print_table
from dragoman.cli.totals import print_chart, totals_json, totals_table
from dragoman.errors import FormatError, InputError, UnknownPriceError
from dragoman.store import Store, Totals
from dragoman.store.types import PricedCall, TotalsBy, cost_or_none, total_usd


async def cost(
    *,
    by: GroupOption = "model",
    filters: UsageFilters | None = None,
    days: Positive = 30,
    prices_version: str | None = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Print token usage and costs by session, model, user, team, provider or day.

    Parameters
    ----------
    days
        The number of days in the chart, up to the last day with usage.
    prices_version
        Use the amounts that reprice has stored for this version of prices.
    """
    async with open_store_at(store_url) as store:
        query = await (filters or UsageFilters()).resolve(store)
        groups = {
            group: await _read_totals(store, group, prices_version, query) for group in dict.fromkeys((by, "day"))
        }
    if json:
        day_totals = groups["day"]
        sums = {"total_usd": total_usd(day_totals), "unpriced": sum(row.unpriced for row in day_totals)}
        rows = {"totals": totals_json(groups[by]), "days": totals_json(day_totals)}
        print_json({"by": by, **sums, **rows, "prices_version": prices_version})
        return
    out = console()
    if not groups["day"]:
        out.print("no usage")
        return
    _print_sum(out, groups["day"], prices_version)
    if by != "day":
        out.print()
        print_table(out, totals_table(by, groups[by]))
    out.print()
    print_chart(out, groups["day"], days)


async def _read_totals(store: Store, by: TotalsBy, version: str | None, query: dict[str, Any]) -> list[Totals]:
    if version is None:
        return await store.costs.totals(by, **query)
    versions = await store.costs.versions()
    if version not in versions:
        version_list = ", ".join(versions) or "none"
        raise InputError(
            f"no amounts for prices version {version!r}; stored versions: {version_list}",
            remedy="Store them with dragoman reprice --keep",
        )
    return await store.costs.totals(by, version=version, **query)


def _print_sum(out: Console, days: Sequence[Totals], version: str | None) -> None:
    tokens = sum(day.input_tokens + day.cached_input_tokens + day.cache_creation_input_tokens for day in days)
    output_tokens = sum(day.output_tokens for day in days)
    replies, unpriced = sum(day.messages for day in days), sum(day.unpriced for day in days)
    line = Text(format_usd(total_usd(days)), "bold green")
    line.append(f" for {format_count(replies, 'reply', 'replies')}", "default")
    line.append(f" · {tokens:,} tokens in, {output_tokens:,} out", "dim")
    out.print(line)
    if unpriced:
        line = Text(f"not included: {format_count(unpriced, 'reply', 'replies')} without a price", "yellow")
        out.print(line.append("; set prices with dragoman reprice", "dim"))
    if version is not None:
        out.print(Text(f"with prices {escape_line(version)}", "dim"))


# --- reprice ---------------------------------------------------------------------------------------------------------


class Difference(msgspec.Struct, kw_only=True):
    """The costs of the calls of one model, before and after."""

    model: str
    calls: int = 0
    was_usd: Decimal = Decimal(0)  # sum of the priced calls
    would_be_usd: Decimal = Decimal(0)  # sum of the calls with a price now
    was_unpriced: int = 0  # calls without a price before
    would_be_unpriced: int = 0  # calls without a price now
    without_price: int = 0  # calls without a price in the new table; they keep their cost

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with null for unknown amounts."""
        was = cost_or_none(self.was_usd, self.was_unpriced, self.calls)
        would_be = cost_or_none(self.would_be_usd, self.would_be_unpriced, self.calls)
        return {**msgspec.structs.asdict(self), "was_usd": was, "would_be_usd": would_be}


KeepOption = Annotated[
    bool, flag("--keep", help="Store the new amounts beside the old ones. Without it, nothing is written.")
]


async def reprice(
    *,
    prices: Path | None = None,
    filters: CallFilters | None = None,
    keep: KeepOption = False,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Compute the costs of stored calls with other prices, and optionally store them.

    Parameters
    ----------
    prices
        A YAML or JSON price file that overrides the built-in table.
    """
    table = price_table(prices)
    by_model: dict[str, Difference] = {}
    amounts: list[tuple[str, int, Decimal]] = []
    versions: set[str] = set()
    async with open_store_at(store_url) as store:
        query = await (filters or CallFilters()).resolve(store)
        async for call in store.costs.calls(**query):
            versions.add(call.usage.pricing_version)
            difference = by_model.setdefault(call.model or "–", Difference(model=call.model or "–"))
            cost_usd = _reprice_call(table, call, difference)
            if cost_usd is not None:
                amounts.append((call.session_id, call.seq, cost_usd))
        if keep:
            await store.costs.save_repricing(table.version, amounts)
    differences = sorted(by_model.values(), key=lambda item: -abs(item.would_be_usd - item.was_usd))
    if json:
        models = [item.to_json() for item in differences]
        print_json({"prices_version": table.version, "kept": keep, "models": models, "was": sorted(versions)})
        return
    out = console()
    if not differences:
        out.print("no usage")
        return
    _print_differences(out, table.version, sorted(versions), differences)
    if keep:
        out.print("stored beside the receipts, which do not change:", style="dim")
        out.print(f"dragoman cost --prices-version {table.version}", style="dim", soft_wrap=True)
    else:
        out.print("nothing was written; --keep stores the new amounts beside the old ones", style="dim")


def _reprice_call(table: pricing.PriceTable, call: PricedCall, into: Difference) -> Decimal | None:
    """Return the cost of a call with a price table, and add it to its model's difference."""
    into.calls += 1
    old_usd = call.usage.amount_usd
    into.was_usd += old_usd or 0
    into.was_unpriced += old_usd is None
    try:
        if call.model is None:
            raise UnknownPriceError("no model")
        new_usd = pricing.receipt(table, call.model, call.usage, call.created_at).total_usd
    except (UnknownPriceError, FormatError):  # or inconsistent counts
        into.without_price += 1
        into.would_be_usd += old_usd or 0
        into.would_be_unpriced += old_usd is None
        return None
    into.would_be_usd += new_usd
    return new_usd


def _print_differences(out: Console, version: str, versions: Sequence[str], differences: Sequence[Difference]) -> None:
    out.print(
        Text(f"prices {escape_line(version)}", "bold").append(
            f", compared with {escape_line(', '.join(versions))}", "dim"
        )
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
            f"{format_count(without, 'reply', 'replies')} without a price in the new table keep their cost",
            style="yellow",
        )
    out.print()


def _cells(differences: Sequence[Difference]) -> tuple[Text, ...]:
    was = sum((item.was_usd for item in differences), Decimal(0))
    would = sum((item.would_be_usd for item in differences), Decimal(0))
    calls = sum(item.calls for item in differences)
    before, after = sum(item.was_unpriced for item in differences), sum(item.would_be_unpriced for item in differences)
    amounts = Text(format_cost(was, before, calls)), Text(format_cost(would, after, calls))
    if calls in (before, after):  # no comparison possible
        return Text(f"{calls:,}"), *amounts, Text("–", "dim")
    change = would - was
    sign = "+" if change > 0 else "-" if change < 0 else ""
    style = "red" if change > 0 else "green" if change < 0 else "dim"
    return Text(f"{calls:,}"), *amounts, Text(f"{sign}{format_usd(abs(change))}", style)
