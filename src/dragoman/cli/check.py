"""``dragoman check`` and ``dragoman repair``: what is wrong with conversations, and the same ones without it.

Both read any format that convert reads, one conversation after the other. What a format has no place for, such as which
model was asked and why, is not held against it. The one rule: a file is changed only by ``repair --in-place``, and then
what it was stays beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

import dragoman
from dragoman import converting, formats
from dragoman.cli.convert import FromOption, MaxLineOption
from dragoman.cli.store_option import JsonOption
from dragoman.cli.terminal import console, counted, print_json, safe_line
from dragoman.converting import Conversation, Source, Target
from dragoman.converting.targets import DocumentStream
from dragoman.converting.work import ORIGIN, breaches_of
from dragoman.errors import InputError
from dragoman.exchange import Loss, Request
from dragoman.formats import CANONICAL
from dragoman.rules import RULES

_INDEX: Final = re.compile(r"\$\[(\d+)\](.*)", re.DOTALL)


class Finding(msgspec.Struct, frozen=True):
    """One breach, or one thing that was done about one, with its place in a file."""

    place: str  # like history.jsonl:3
    where: str  # in the message or the conversation
    rule: str
    message_id: str
    what: str


class _Report(msgspec.Struct):
    """What was found in a file, and done about it."""

    format: str = ""
    why: str = ""
    messages: int = 0
    written: int = 0
    breaches: list[Finding] = []
    actions: list[Finding] = []
    losses: list[Loss] = []


def check_file(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    *,
    repair_to: Annotated[Path | None, Parameter(name="--repair-to")] = None,
    source_format: FromOption = None,
    max_line_mb: MaxLineOption = converting.MAX_LINE_MB,
    json: JsonOption = False,
) -> int:
    """Check a file of conversations, and repair it if asked.

    Prints every breach with its rule and its place. Exit code 0: nothing is wrong. 1: something is. 2: the file cannot
    be read.

    Parameters
    ----------
    file
        Conversations in any format that convert reads, or - for the standard input.
    repair_to
        Write the same without breaches to this file, in the same format. The checked file is never changed.
    """
    target = None if repair_to is None else _target(repair_to, file)
    report = _looked_through(file, source_format, max_line_mb, target, may_repair=target is not None)
    if json:
        print_json({"file": str(file), **msgspec.structs.asdict(report)})
        return 1 if report.breaches else 0
    out = console()
    _print_findings(out, report.breaches)
    for rule in dict.fromkeys(breach.rule for breach in report.breaches):
        _print(out, f"{rule}: {RULES[rule].statement}", "dim")
    said = "" if report.format == CANONICAL else f" ({report.format}{': ' if report.why else ''}{report.why})"
    _print(out, f"{counted(report.messages, 'message')}, {counted(len(report.breaches), 'breach', 'breaches')}{said}")
    if repair_to is not None:
        _print_findings(out, report.actions)
        _print(out, f"wrote {counted(report.written, 'message')} to {repair_to}")
    return 1 if report.breaches else 0


def repair_file(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    target: Annotated[Path | None, Parameter(name="OUT", allow_leading_hyphen=True)] = None,
    /,
    *,
    in_place: Annotated[bool, Parameter(name="--in-place", negative=(), show_default=False)] = False,
    source_format: FromOption = None,
    max_line_mb: MaxLineOption = converting.MAX_LINE_MB,
    json: JsonOption = False,
) -> int:
    """Make conversations that break no rule, and say what was done.

    Parameters
    ----------
    file
        Conversations in any format that convert reads, or - for the standard input.
    target
        The file to write, in the same format. Without it, and without --in-place, what would be done is only said.
    in_place
        Replace the file, and keep what it was beside it, under its name and .bak.
    """
    if in_place and (target is not None or str(file) == "-"):
        raise InputError("--in-place is for a file, and for no other one", remedy="Leave it out, or name one file")
    if json and str(target) == "-":
        raise InputError("--json and the conversations would both be printed", remedy="Name a file to write")
    backup = _free_name(file) if in_place else None
    to = Target(file, backup_to=backup) if in_place else None if target is None else _target(target, file)
    report = _looked_through(file, source_format, max_line_mb, to, may_repair=True)
    is_undone = bool(report.actions) and to is None
    if json:
        print_json({"file": str(file), **msgspec.structs.asdict(report)})
    else:
        _tell_repairs(report, to, backup)
    return 1 if is_undone else 0


def _tell_repairs(report: _Report, to: Target | None, backup: Path | None) -> None:
    """What was done, on the standard error if the standard output has the result."""
    out = Console(stderr=True, highlight=False) if to is not None and to.is_standard_output else console()
    _print_findings(out, report.actions)
    for (what, reason), count in Counter((loss.block_type, loss.reason) for loss in report.losses).items():
        _print(out, f"lost {count} × {what}: {reason}")
    if not report.actions:
        _print(out, f"{counted(report.messages, 'message')}, nothing to repair")
    if to is None and report.actions:
        _print(out, "nothing was written: name a file to write, or say --in-place")
    elif to is not None and (report.actions or backup is None):
        kept = "" if backup is None else f"; what it was is in {backup}"
        _print(out, f"wrote {counted(report.written, 'message')} to {to.path}{kept}")


# --- files -----------------------------------------------------------------------------------------------------------


def _target(path: Path, file: Path) -> Target:
    if str(path) != "-" and path.resolve() == file.resolve():
        raise InputError("is the file that is being checked", where=str(path), remedy="Name another file")
    return Target(path)


def _free_name(file: Path) -> Path:
    """A name for what a file was, that nothing has yet."""
    names = (file.with_name(f"{file.name}.bak{number or ''}") for number in itertools.count())
    return next(name for name in names if not name.exists())


def _looked_through(
    file: Path, source_format: str | None, max_line_mb: int, to: Target | None, *, may_repair: bool
) -> _Report:
    """Check each conversation of a file, and write what it becomes, where that is wanted."""
    report = _Report()
    with (
        converting.opened(file, source_format, max_line_mb=max_line_mb) as source,
        to.opened() if to is not None else contextlib.nullcontext() as out,
        _stream(out, source, to) as stream,
    ):
        report.format, report.why = source.format, source.why
        for conversation, request in converting.read_all(source):
            report.messages += len(request.messages)
            report.breaches += _breaches(source, conversation, request)
            if may_repair:
                stream.write(_mended(source, conversation, request, report))
        if to is not None and not report.actions:
            to.keep_what_is_there()
    return report


class _Nowhere:
    """A stream for what nobody wants."""

    def write(self, _data: bytes) -> None:
        """Forget it."""


@contextlib.contextmanager
def _stream(out: IO[bytes] | None, source: Source, to: Target | None) -> Iterator[Any]:
    """Where repaired conversations go: lines, or a document if that is what they came from, and what is asked for."""
    if out is None or to is None:
        yield _Nowhere()
    elif source.unit == "line" or ".jsonl" in to.path.suffixes:
        yield out
    else:
        document = DocumentStream(out, is_list=source.unit == "item")
        yield document
        document.close()


# --- one conversation ------------------------------------------------------------------------------------------------


def _breaches(source: Source, conversation: Conversation, request: Request) -> Iterator[Finding]:
    for breach in breaches_of(source.format, request):
        number, where = _place(source, conversation, breach.where)
        yield Finding(_named(source, number), where, breach.rule, breach.message_id, breach.what)


def _mended(source: Source, conversation: Conversation, request: Request, report: _Report) -> bytes:
    """The text of a conversation that breaks no rule: what it was, if it breaks none."""
    repaired = dragoman.repair(request.messages)
    numbers = {message.id: f"$[{index}]" for index, message in enumerate(request.messages)}
    done = [one for one in repaired.actions if source.format == CANONICAL or one.rule not in ORIGIN]
    if not done:
        report.written += len(request.messages)
        return b"".join(b" ".join(piece.data.splitlines()) + b"\n" for piece in conversation)
    for action in done:
        number, _ = _place(source, conversation, numbers.get(action.message_id, ""))
        report.actions.append(Finding(_named(source, number), "", action.rule, action.message_id, action.what))
    report.written += len(repaired.messages)
    text = formats.write(source.format, request.replace(messages=repaired.messages), by_message=source.by_message)
    report.losses += text.losses
    return text.data


def _place(source: Source, conversation: Conversation, where: str) -> tuple[int, str]:
    """The line of a message and the place in it, where each message is a line; else that of the conversation."""
    found = _INDEX.fullmatch(where)
    if found and source.format == CANONICAL and source.by_message:
        return conversation[int(found[1])].number, f"${found[2]}"
    return conversation[0].number, where


def _named(source: Source, number: int) -> str:
    match source.unit:
        case "line":
            return f"{source.name}:{number}"
        case "item":
            return f"{source.name}[{number}]"
        case _:
            return source.name


# --- telling ---------------------------------------------------------------------------------------------------------


def _print_findings(out: Console, findings: list[Finding]) -> None:
    for one in findings:
        line = Text(safe_line(one.place), "bold").append(f": {safe_line(one.what)}")
        about = ", ".join(part for part in (one.rule, one.where, f"message {one.message_id}") if part)
        out.print(line.append(f" ({safe_line(about)})", "dim"), soft_wrap=True)


def _print(out: Console, text: str, style: str = "") -> None:
    out.print(Text(safe_line(text), style), soft_wrap=True)
