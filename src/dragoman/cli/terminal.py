"""What goes to a terminal, and what comes from it: words that are safe to print, JSON, questions, progress.

The one rule: no text of a conversation reaches a terminal as it is. A model, a tool or a stranger may have written
control characters into it, and a terminal obeys those.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NoReturn

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from dragoman.errors import InputError

_CONTROLS: Final = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_HARMFUL: Final = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")  # which JSON may hold as they are
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_AGES: Final = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (86400 * 60, 86400, "d"))


class _Out(Console):
    """The standard output. When whoever reads it has seen enough, that is no error."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console() -> Console:
    """Where results are printed."""
    return _Out(highlight=False)


def print_line(out: Console, line: Text) -> None:
    """A line that a terminal cuts at its edge, and a file gets whole."""
    if out.is_terminal:
        out.print(line, no_wrap=True, overflow="ellipsis")
    else:
        out.print(line, soft_wrap=True)


def safe(text: str) -> str:
    """A text whose control characters are shown and not obeyed; its lines and tabs stay."""
    return _CONTROLS.sub(_shown, text.replace("\r\n", "\n"))


def safe_line(text: str) -> str:
    """The same on one line."""
    return safe(" ".join(text.split()))


def same_length(text: str) -> str:
    """A text on one line that is safe to print, each character in its place."""
    return safe(re.sub(r"\s", " ", text))


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return chr(0x2400 + number) if number < 0x20 else "\u2421" if number == 0x7F else "\ufffd"


def print_json(document: Any) -> None:
    """The one document that ``--json`` promises; with line breaks where a person looks at it."""
    data = msgspec.json.encode(document)
    sys.stdout.buffer.write((for_terminals(msgspec.json.format(data)) if sys.stdout.isatty() else data) + b"\n")
    sys.stdout.buffer.flush()


def for_terminals(data: bytes) -> bytes:
    """JSON that says the same, with escapes for what a terminal would obey."""
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()


# --- numbers and times -----------------------------------------------------------------------------------------------


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number and what it counts: ``1 message``, ``2,000 messages``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """A number of bytes for people."""
    amount, unit = float(number), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{number} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def dollars(amount: Decimal) -> str:
    """An amount for people: to a millionth, without zeros at its end, cents at the least."""
    cents = amount.quantize(Decimal("0.01"))
    return f"${cents:,f}" if cents == amount else f"${amount.quantize(Decimal('0.000001')).normalize():,f}"


def moment(when: datetime) -> str:
    """A time to the minute, in UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def in_utc(when: datetime | None) -> datetime | None:
    """A time as a person gives it: in UTC unless it names a zone."""
    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when


def age(when: datetime, now: datetime) -> str:
    """How long ago something was, or its date if that is long."""
    seconds = max(0, int((now - when).total_seconds()))
    for below, unit, name in _AGES:
        if seconds < below:
            return f"{seconds // unit} {name} ago"
    return when.astimezone(UTC).strftime("%Y-%m-%d")


# --- asking and telling ----------------------------------------------------------------------------------------------


def ask(question: str, *, yes: bool) -> None:
    """Go on only if a person says so; ``InputError`` if there is nobody to ask, or the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("this cannot be undone, and there is nobody to ask", remedy="Say --yes if it is to be done")
    sys.stderr.write(f"{safe_line(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("nothing was done")


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show on the standard error how far long work has come: call it with how many are done, and of how many."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task(what, total=None)

        def tell(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        yield tell


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on the standard error that something is going on, where nobody knows how long."""
    with Console(stderr=True).status(what) if sys.stderr.isatty() else nullcontext():
        yield
