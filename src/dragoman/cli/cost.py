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
from dragoman.cli.price import price_table
from dragoman.cli.stats import bar, totals_json, totals_table
from dragoman.cli.store_option import JsonOption, Positive, StoreOption, opened, session_named
from dragoman.cli.terminal import console, counted, dollars, print_json, print_table, safe_line, spent
from dragoman.errors import FormatError, InputError, UnknownPriceError
from dragoman.store import Store, Totals
from dragoman.store.values import PricedCall, TotalsBy, known_usd, total_usd

_LONGEST: Final = 366  # days in one plot


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
    store: StoreOption = None,
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
    async with opened(store) as kept:
        wanted = {
            "session": (await session_named(kept, session)).id if session is not None else None,
            "user": user,
            "team": team,
            "model": model,
            "since": since.isoformat() if since is not None else None,
            "until": until.isoformat() if until is not None else None,
        }
        groups = {group: await _totals(kept, group, prices_version, wanted) for group in dict.fromkeys((by, "day"))}
    if json:
        days_found = groups["day"]
        sums = {"total_usd": total_usd(days_found), "unpriced": sum(one.unpriced for one in days_found)}
        rows = {"totals": totals_json(groups[by]), "days": totals_json(days_found)}
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
    _plot(out, groups["day"], days)


async def _totals(store: Store, by: TotalsBy, version: str | None, wanted: dict[str, Any]) -> list[Totals]:
    if version is None:
        return await store.totals(by, **wanted)
    known = await store.pricing_versions()
    if version not in known:
        listed = ", ".join(known) or "none yet"
        raise InputError(f"nothing was repriced under {version!r}; there is {listed}", remedy="See dragoman reprice")
    return await store.repriced_totals(by, version, **wanted)


def _print_sum(out: Console, days: Sequence[Totals], version: str | None) -> None:
    tokens = sum(day.input_tokens + day.cached_input_tokens + day.cache_creation_input_tokens for day in days)
    said = sum(day.output_tokens for day in days)
    replies, unpriced = sum(day.messages for day in days), sum(day.unpriced for day in days)
    line = Text(dollars(total_usd(days)), "bold green")
    line.append(f" for {counted(replies, 'reply', 'replies')}", "default")
    line.append(f" · {tokens:,} tokens in, {said:,} out", "dim")
    out.print(line)
    if unpriced:
        which = "that has" if unpriced == 1 else "which have"
        line = Text(f"without {counted(unpriced, 'reply', 'replies')} {which} no price", "yellow")
        out.print(line.append("; dragoman reprice can give them one", "dim"))
    if version is not None:
        out.print(Text(f"under the prices {safe_line(version)}", "dim"))


def _plot(out: Console, found: Sequence[Totals], days: int) -> None:
    """A bar for each day, those without anything included; of tokens where nothing has a price above 0."""
    shown = _every_day(found, min(days, _LONGEST))
    by_tokens = not any(one.cost_usd for _, one in shown if one is not None)
    amounts = [0.0 if one is None else _amount(one, by_tokens=by_tokens) for _, one in shown]
    labels = ["" if one is None else _label(one, by_tokens=by_tokens) for _, one in shown]
    width = max(10, min(out.width, 100) - 17 - max(map(len, labels)))
    most = max(amounts) or 1.0
    for (day, _), amount, label in zip(shown, amounts, labels, strict=True):
        line = Text(f"{day:%a} {day.isoformat()}  ", "dim")
        if not label:
            out.print(line.append("·", "dim"))
            continue
        drawn = bar(amount / most, width) or ("▏" if amount else "")
        out.print(line.append(drawn, "green").append(f" {label}" if drawn else label, "default"))


def _every_day(found: Sequence[Totals], days: int) -> list[tuple[date, Totals | None]]:
    known = {date.fromisoformat(one.group): one for one in found if one.group is not None}
    last = max(known)
    first = last - timedelta(days=min(days - 1, (last - min(known)).days))
    return [(day, known.get(day)) for day in (first + timedelta(days=n) for n in range((last - first).days + 1))]


def _amount(one: Totals, *, by_tokens: bool) -> float:
    return float(one.input_tokens + one.output_tokens) if by_tokens else float(one.cost_usd)


def _label(one: Totals, *, by_tokens: bool) -> str:
    if by_tokens:
        return counted(one.input_tokens + one.output_tokens, "token")
    return spent(one.cost_usd, one.unpriced, one.messages)


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
        was = known_usd(self.was_usd, self.was_unpriced, self.calls)
        would_be = known_usd(self.would_be_usd, self.would_be_unpriced, self.calls)
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
    store: StoreOption = None,
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
    found: dict[str, Difference] = {}
    amounts: list[tuple[str, int, Decimal]] = []
    versions: set[str] = set()
    async with opened(store) as kept:
        only = (await session_named(kept, session)).id if session is not None else None
        async for call in kept.priced_calls(
            session=only,
            model=model,
            since=since.isoformat() if since is not None else None,
            until=until.isoformat() if until is not None else None,
        ):
            versions.add(call.usage.pricing_version)
            difference = found.setdefault(call.model or "–", Difference(model=call.model or "–"))
            cost_usd = _repriced(table, call, difference)
            if cost_usd is not None:
                amounts.append((call.session_id, call.seq, cost_usd))
        if keep:
            await kept.keep_repricing(table.version, amounts)
    differences = sorted(found.values(), key=lambda one: -abs(one.would_be_usd - one.was_usd))
    if json:
        models = [one.to_json() for one in differences]
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


def _repriced(table: pricing.PriceTable, call: PricedCall, into: Difference) -> Decimal | None:
    """What a call costs under a table; its model's difference is told."""
    into.calls += 1
    was = call.usage.amount_usd
    into.was_usd += was or 0
    into.was_unpriced += was is None
    try:
        if call.model is None:
            raise UnknownPriceError("no model")
        made = pricing.receipt(table, call.model, call.usage, call.created_at).total_usd
    except (UnknownPriceError, FormatError):  # also counts that contradict each other
        into.without_price += 1
        into.would_be_usd += was or 0
        into.would_be_unpriced += was is None
        return None
    into.would_be_usd += made
    return made


def _print_differences(out: Console, version: str, versions: Sequence[str], found: Sequence[Difference]) -> None:
    out.print(Text(f"prices {safe_line(version)}", "bold").append(f", against {safe_line(', '.join(versions))}", "dim"))
    out.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_footer=len(found) > 1)
    table.add_column("model", "total", overflow="fold")
    for name in ("replies", "was", "would be", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        table.add_row(safe_line(one.model), *_cells([one]))
    for column, total in zip(table.columns[1:], _cells(found), strict=True):
        column.footer = total
    print_table(out, table)
    if before := sum(one.was_unpriced for one in found):
        out.print(f"{counted(before, 'reply', 'replies')} had no price before", style="dim")
    if without := sum(one.without_price for one in found):
        out.print(
            f"{counted(without, 'reply', 'replies')} without a price under these stay as they were", style="yellow"
        )
    out.print()


def _cells(found: Sequence[Difference]) -> tuple[Text, ...]:
    was = sum((one.was_usd for one in found), Decimal(0))
    would = sum((one.would_be_usd for one in found), Decimal(0))
    calls = sum(one.calls for one in found)
    before, after = sum(one.was_unpriced for one in found), sum(one.would_be_unpriced for one in found)
    amounts = Text(spent(was, before, calls)), Text(spent(would, after, calls))
    if calls in (before, after):  # nothing to compare
        return Text(f"{calls:,}"), *amounts, Text("–", "dim")
    change = would - was
    sign = "+" if change > 0 else "-" if change < 0 else ""
    style = "red" if change > 0 else "green" if change < 0 else "dim"
    return Text(f"{calls:,}"), *amounts, Text(f"{sign}{dollars(abs(change))}", style)
