"""Terminal output and input: safe text, JSON, prompts, progress.

Invariant: conversation text is escaped before it is printed, because it may contain control characters.
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

_NAME_WIDTH: Final = 16  # minimum width of the first column
_HARMFUL: Final = re.compile(
    "[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)  # characters that JSON does not escape


class _StdoutConsole(Console):
    """Standard output. A closed pipe ends the command without an error."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console() -> Console:
    """Return a console for results. Square brackets are printed as text, not as markup."""
    return _StdoutConsole(highlight=False, markup=False)


def print_line(out: Console, line: Text) -> None:
    """Print a line that is cut at the edge of a terminal, and complete in a file."""
    if out.is_terminal:
        out.print(line, no_wrap=True, overflow="ellipsis")
    else:
        out.print(line, soft_wrap=True)


def print_table(out: Console, table: Table) -> None:
    """Print a table. On a narrow terminal the first column folds; the other columns are not cut."""
    first, *rest = table.columns
    first.min_width = min(_NAME_WIDTH, max(_widths(table, first)))
    for column in rest:
        column.min_width = max(_widths(table, column))
    out.print(table, crop=False)


def _widths(table: Table, column: Column) -> list[int]:
    cells = [column.header, *column.cells, *([column.footer] if table.show_footer else [])]
    return [cell_len(str(cell)) for cell in cells]


def print_json(document: Any) -> None:
    """Print the JSON document of ``--json``, indented on a terminal."""
    data = msgspec.json.encode(document)
    sys.stdout.buffer.write((escape_json_controls(msgspec.json.format(data)) if sys.stdout.isatty() else data) + b"\n")
    sys.stdout.buffer.flush()


def escape_json_controls(data: bytes) -> bytes:
    """Escape control characters in JSON."""
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()


# --- prompts and progress --------------------------------------------------------------------------------------------


def confirm(question: str, *, yes: bool) -> None:
    """Prompt for confirmation. Raise ``InputError`` if the answer is no, or standard input is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("this cannot be undone, and standard input is not a terminal", remedy="Use --yes to confirm")
    sys.stderr.write(f"{escape_line(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("cancelled; nothing was changed")


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error. Yields a function with the parameters done and total."""
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
    """Show a spinner on standard error during work of unknown length."""
    with Console(stderr=True).status(label) if sys.stderr.isatty() else nullcontext():
        yield
