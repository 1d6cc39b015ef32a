"""``dragoman stats``: print the size, token usage and costs of a store."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from dragoman.cli.options import (
    GroupOption,
    JsonOption,
    Positive,
    StoreOption,
    UsageFilters,
    mask_password,
    open_store_at,
    resolve_store_url,
)
from dragoman.cli.terminal import console, escape_line, format_count, format_size, print_json, print_table
from dragoman.cli.totals import print_chart, totals_json, totals_table
from dragoman.store import SizeReport


async def stats(
    *,
    by: GroupOption = "model",
    filters: UsageFilters | None = None,
    days: Positive = 14,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Print the size of a store, and its token usage and costs.

    Parameters
    ----------
    days
        The number of days in the chart, up to the last day with usage.
    """
    async with open_store_at(store_url) as store:
        sizes = await store.sizes()
        query = await (filters or UsageFilters()).resolve(store)
        totals_by = {group: await store.costs.totals(group, **query) for group in dict.fromkeys((by, "day"))}
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
    print_chart(out, totals_by["day"], days)


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
