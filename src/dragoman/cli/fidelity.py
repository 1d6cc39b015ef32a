"""The fidelity table of ``dragoman prove``: translate each request and reply to every other dialect, and count the
outcomes.

A translation that raises an error counts as a shortfall, and the next one is tried.
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
from dragoman.fidelity import Cell, Shortfall, Tally, make_cells, measure_conversion, transcript_dialects
from dragoman.fidelity.table import cells_to_markdown, cells_to_summary, tally_to_markdown, tally_to_summary, to_plain


def tally_record(record: dict[str, Any], source: str, modules: Mapping[str, Any], tally: Tally) -> None:
    """Translate the request and the complete reply of a record to every other dialect, and count the outcomes."""
    if isinstance(record.get("request"), dict):
        request = _try_read(modules[source].read_request, record["request"])
        if request is not None:
            tally.requests[source] += 1
            _translate(request, record["id"], source, modules, tally)
    if isinstance(record.get("response"), dict) and record.get("status") in (200, None):
        reply = _try_read(modules[source].read_reply, record["response"])
        if reply is not None and reply.fault is None:
            tally.answers[source] += 1
            _translate(reply, record["id"], source, modules, tally)


def _try_read(read: Callable[[Any], Any], wire: Any) -> Any:
    try:
        return read(wire)
    except Exception:  # reported by prove
        return None


def _translate(value: Request | Reply, record: str, source: str, modules: Mapping[str, Any], tally: Tally) -> None:
    for target, dialect in modules.items():
        if target == source:
            continue
        try:
            tally.add(record, source, target, measure_conversion(value, dialect))
        except Exception as error:  # recorded for this pair; the next pair is tried
            kind = type(value).__name__.lower()
            tally.shortfalls.append(Shortfall(record, source, target, kind, f"{type(error).__name__}: {error}"))


def make_folder(folder: Path) -> Path:
    """Create the folder for the table before the measurement starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder ({error.strerror})", where=str(folder)) from None
    return folder


def write_table(folder: Path, tally: Tally) -> tuple[Cell, ...]:
    """Measure the constructed cases as well, and write ``fidelity.md`` and ``fidelity.json``."""
    results = make_cells((*(dialects.load(name) for name in dialects.callable_names()), *transcript_dialects()))
    (folder / "fidelity.md").write_text("\n".join(page_lines(results, tally)), "utf-8")
    (folder / "fidelity.json").write_bytes(msgspec.json.format(msgspec.json.encode(to_plain(results, tally)), indent=1))
    return results


def page_lines(results: tuple[Cell, ...], tally: Tally) -> Iterable[str]:
    """Yield the lines of the Markdown page."""
    yield from ("# Fidelity", "", "## Recorded traffic", "")
    yield from tally_to_summary(tally)
    yield ""
    yield from tally_to_markdown(tally)
    yield from ("## Constructed cases", "", "kept / changed / lost", "")
    yield from cells_to_summary(results)
    yield ""
    yield from cells_to_markdown(results)


def print_result(console: Console, results: tuple[Cell, ...], tally: Tally, limit: int) -> bool:
    """Print the outcomes of recorded traffic and the shortfalls; return whether there are none."""
    console.print(_table(tally))
    short = [f"{cell.source} → {cell.target}  {cell.case}: {cell.verdict}" for cell in results if cell.is_defect]
    shortfalls = [
        f"{item.record} {item.source} → {item.target} {item.place}  {item.kind}: {item.note}"
        for item in tally.shortfalls
    ]
    for line in [*short, *shortfalls][:limit]:
        console.print(f"[red]{escape(line)}[/red]", soft_wrap=True, highlight=False)
    count = len(short) + len(shortfalls)
    if count:
        console.print(f"{count} omissions without a reported loss{f', {limit} shown' if count > limit else ''}")
    return count == 0


def _table(tally: Tally) -> Table:
    names = ("kept", "changed", "loss", "silent")
    table = Table("from", "to", *names, title="Translations to every other dialect", title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    counts: Counter[tuple[str, str, str]] = Counter()
    for (source, target, _, outcome), count in tally.counts.items():
        counts[source, target, outcome] += count
    for source, target in sorted({key[:2] for key in counts}):
        values = [f"{counts[source, target, name]:,}" for name in names]
        if counts[source, target, "silent"]:
            values[-1] = f"[red]{values[-1]}[/red]"
        table.add_row(source, target, *values)
    return table
