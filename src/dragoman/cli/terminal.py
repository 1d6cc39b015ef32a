"""What goes to a terminal, and what comes from it: words that are safe to print, JSON, questions, progress.

The one rule: no text of a conversation reaches a terminal as it is. A model, a tool or a stranger may have written
control characters into it, and a terminal obeys those.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NoReturn

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from dragoman.errors import InputError
from dragoman.humanize import (
    escape_controls,
    escape_in_place,
    escape_line,
    format_age,
    format_cost,
    format_count,
    format_size,
    format_time,
    format_usd,
    to_utc,
)

__all__ = [
    "confirm",
    "console",
    "escape_controls",
    "escape_in_place",
    "escape_json_controls",
    "escape_line",
    "format_age",
    "format_cost",
    "format_count",
    "format_size",
    "format_time",
    "format_usd",
    "print_json",
    "print_line",
    "print_table",
    "progress",
    "show_spinner",
    "to_utc",
]

_NAME_WIDTH: Final = 16  # characters that a name keeps on each of its lines
_HARMFUL: Final = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")  # which JSON may hold as they are


class _StdoutConsole(Console):
    """The standard output. When whoever reads it has seen enough, that is no error."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console() -> Console:
    """Where results are printed. Square brackets in a text are text, not markup."""
    return _StdoutConsole(highlight=False, markup=False)


def print_line(out: Console, line: Text) -> None:
    """A line that a terminal cuts at its edge, and a file gets whole."""
    if out.is_terminal:
        out.print(line, no_wrap=True, overflow="ellipsis")
    else:
        out.print(line, soft_wrap=True)


def print_table(out: Console, table: Table) -> None:
    """Print a table whose first column folds where the terminal is narrow; the other columns are never cut."""
    first, *rest = table.columns
    first.min_width = min(_NAME_WIDTH, max(_widths(table, first)))
    for column in rest:
        column.min_width = max(_widths(table, column))
    out.print(table, crop=False)


def _widths(table: Table, column: Column) -> list[int]:
    cells = [column.header, *column.cells, *([column.footer] if table.show_footer else [])]
    return [cell_len(str(cell)) for cell in cells]


def print_json(document: Any) -> None:
    """The one document that ``--json`` promises; with line breaks where a person looks at it."""
    data = msgspec.json.encode(document)
    sys.stdout.buffer.write((escape_json_controls(msgspec.json.format(data)) if sys.stdout.isatty() else data) + b"\n")
    sys.stdout.buffer.flush()


def escape_json_controls(data: bytes) -> bytes:
    """JSON that says the same, with escapes for what a terminal would obey."""
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()


# --- asking and telling ----------------------------------------------------------------------------------------------


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if a person says so; ``InputError`` if there is nobody to ask, or the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("this cannot be undone, and there is nobody to ask", remedy="Say --yes if it is to be done")
    sys.stderr.write(f"{escape_line(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("nothing was done")


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show on the standard error how far long work has come: call it with how many are done, and of how many."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report


@contextmanager
def show_spinner(label: str) -> Iterator[None]:
    """Show on the standard error that something is going on, where nobody knows how long."""
    with Console(stderr=True).status(label) if sys.stderr.isatty() else nullcontext():
        yield
