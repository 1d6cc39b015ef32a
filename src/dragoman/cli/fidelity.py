"""The part of ``dragoman prove`` that translates: each request into every other dialect, and the table of it.

The measuring is ``dragoman.fidelity``'s; here records come in, and two files and a few lines go out. The one rule: a
translation that fails is counted as one that fell short, and the next one is tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dragoman import dialects
from dragoman.errors import InputError
from dragoman.fidelity import Cell, Dialect, Shortfall, Tally, cells, findings_of
from dragoman.fidelity.table import markdown_of_cells, markdown_of_tally, plain, summary_of_cells


def tally_record(record: dict[str, Any], source: str, spoken: Mapping[str, Dialect], tally: Tally) -> None:
    """Write the request of a record in every other dialect, read it there, and count what became of it."""
    wire = record.get("request")
    if not isinstance(wire, dict):
        return
    try:
        request = spoken[source].read_request(wire)
    except Exception:  # what is no request is told by the part that proves it
        return
    tally.requests[source] += 1
    for target, dialect in spoken.items():
        if target == source:
            continue
        try:
            tally.add(record["id"], source, target, findings_of(request, dialect))
        except Exception as error:  # whatever it is, it belongs to this pair and not to the next one
            tally.shortfalls.append(
                Shortfall(record["id"], source, target, "request", f"{type(error).__name__}: {error}")
            )


def made_folder(folder: Path) -> Path:
    """The folder for the table, made if it is not there: before the work begins, not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"no folder can be made here ({error.strerror})", where=str(folder)) from None
    return folder


def write_table(folder: Path, tally: Tally) -> tuple[Cell, ...]:
    """Measure the constructed requests too, and write ``fidelity.md`` and ``fidelity.json``."""
    measured = cells(dialects.load(name) for name in dialects.names())
    (folder / "fidelity.md").write_text("\n".join(page(measured, tally)), "utf-8")
    (folder / "fidelity.json").write_bytes(msgspec.json.format(msgspec.json.encode(plain(measured, tally)), indent=1))
    return measured


def page(measured: tuple[Cell, ...], tally: Tally) -> Iterable[str]:
    """The whole table as Markdown."""
    yield from ("# Fidelity", "", "## Recorded requests", "")
    yield from markdown_of_tally(tally)
    yield from ("## Constructed requests", "", "kept / changed / lost", "")
    yield from summary_of_cells(measured)
    yield ""
    yield from markdown_of_cells(measured)


def show(console: Console, measured: tuple[Cell, ...], tally: Tally, limit: int) -> bool:
    """Print what became of the recorded requests, and what fell short; whether nothing did."""
    console.print(_table(tally))
    short = [f"{cell.source} → {cell.target}  {cell.case}: {cell.verdict}" for cell in measured if cell.is_short]
    found = [
        f"{one.record} {one.source} → {one.target} {one.place}  {one.kind}: {one.note}" for one in tally.shortfalls
    ]
    for line in [*short, *found][:limit]:
        console.print(f"[red]{escape(line)}[/red]", soft_wrap=True, highlight=False)
    count = len(short) + len(found)
    if count:
        console.print(f"{count} left out without a word{f', {limit} of them shown' if count > limit else ''}")
    return count == 0


def _table(tally: Tally) -> Table:
    names = ("kept", "changed", "loss", "silent")
    table = Table("from", "to", *names, title="Translated into every other dialect", title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    counts: Counter[tuple[str, str, str]] = Counter()
    for (source, target, _, outcome), count in tally.counts.items():
        counts[source, target, outcome] += count
    for source, target in sorted({key[:2] for key in counts}):
        cells_shown = [f"{counts[source, target, name]:,}" for name in names]
        if counts[source, target, "silent"]:
            cells_shown[-1] = f"[red]{cells_shown[-1]}[/red]"
        table.add_row(source, target, *cells_shown)
    return table
