"""The part of ``dragoman prove`` that translates: each request and answer into every other dialect, and the table.

The measuring is ``dragoman.fidelity``'s; here records come in, and two files and a few lines go out. The one rule: a
translation that fails is counted as one that fell short, and the next one is tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dragoman import dialects
from dragoman.errors import InputError
from dragoman.exchange import Reply, Request
from dragoman.fidelity import Cell, Shortfall, Tally, cells, conversations, findings_of
from dragoman.fidelity.table import markdown_of_cells, markdown_of_tally, plain, summary_of_cells


def tally_record(record: dict[str, Any], source: str, spoken: Mapping[str, Any], tally: Tally) -> None:
    """Write the request and the whole answer of a record in every other dialect, and count what became of them."""
    if isinstance(record.get("request"), dict):
        request = _read(spoken[source].read_request, record["request"])
        if request is not None:
            tally.requests[source] += 1
            _translate(request, record["id"], source, spoken, tally)
    if isinstance(record.get("response"), dict) and record.get("status") in (200, None):
        reply = _read(spoken[source].read_reply, record["response"])
        if reply is not None and reply.fault is None:
            tally.answers[source] += 1
            _translate(reply, record["id"], source, spoken, tally)


def _read(read: Callable[[Any], Any], wire: Any) -> Any:
    try:
        return read(wire)
    except Exception:  # what cannot be read is told by the part that proves it
        return None


def _translate(said: Request | Reply, record: str, source: str, spoken: Mapping[str, Any], tally: Tally) -> None:
    for target, dialect in spoken.items():
        if target == source:
            continue
        try:
            tally.add(record, source, target, findings_of(said, dialect))
        except Exception as error:  # whatever it is, it belongs to this pair and not to the next one
            kind = type(said).__name__.lower()
            tally.shortfalls.append(Shortfall(record, source, target, kind, f"{type(error).__name__}: {error}"))


def made_folder(folder: Path) -> Path:
    """The folder for the table, made if it is not there: before the work begins, not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"no folder can be made here ({error.strerror})", where=str(folder)) from None
    return folder


def write_table(folder: Path, tally: Tally) -> tuple[Cell, ...]:
    """Measure the constructed requests too, and write ``fidelity.md`` and ``fidelity.json``."""
    measured = cells((*(dialects.load(name) for name in dialects.names()), *conversations()))
    (folder / "fidelity.md").write_text("\n".join(page(measured, tally)), "utf-8")
    (folder / "fidelity.json").write_bytes(msgspec.json.format(msgspec.json.encode(plain(measured, tally)), indent=1))
    return measured


def page(measured: tuple[Cell, ...], tally: Tally) -> Iterable[str]:
    """The whole table as Markdown."""
    yield from ("# Fidelity", "", "## Recorded traffic", "")
    yield from markdown_of_tally(tally)
    yield from ("## Constructed cases", "", "kept / changed / lost", "")
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
