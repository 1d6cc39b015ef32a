"""``dragoman check`` and ``dragoman repair``: find and repair violations in files of conversations.

Invariant: a repaired file keeps its layout, key order and ids, and its text is not changed.
"""

from __future__ import annotations

import contextlib
import itertools
import json as json_text
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

import dragoman
from dragoman import conversion, formats
from dragoman.cli.convert import FromOption, MaxLineOption
from dragoman.cli.options import JsonOption, flag
from dragoman.cli.terminal import console, escape_line, format_count, print_json
from dragoman.conversion import Target
from dragoman.conversion.changes import Change, open_output
from dragoman.conversion.pipeline import find_violations
from dragoman.conversion.places import SourceMap
from dragoman.errors import InputError
from dragoman.exchange import Loss
from dragoman.formats import CANONICAL
from dragoman.jsontext import OWN, read_json
from dragoman.repair import RemovedContent
from dragoman.rules import RULES


class Finding(msgspec.Struct, frozen=True):
    """A violation or a repair, with its place in a file."""

    place: str  # like history.jsonl:3
    where: str  # path in the message or the conversation
    rule: str
    message_id: str
    what: str


class _Report(msgspec.Struct):
    """The violations of a file, and the repairs."""

    format: str = ""
    why: str = ""
    messages: int = 0
    written: int = 0
    breaches: list[Finding] = []
    actions: list[Finding] = []
    losses: list[Loss] = []
    set_aside: str = ""  # file with the removed content


def check_file(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    repair_to: Annotated[Path | None, Parameter(name="--repair-to")] = None,
    source_format: FromOption = None,
    max_line_mb: MaxLineOption = conversion.MAX_LINE_MB,
    json: JsonOption = False,
) -> int:
    """Check a file of conversations against the rules, and optionally repair it.

    Parameters
    ----------
    file
        Conversations in any format that convert reads, or - for standard input.
    repair_to
        Write the repaired conversations to this file, in the same format. The input file is not changed.
    """
    target = None if repair_to is None else _target(repair_to, file)
    report = _check(file, source_format, max_line_mb, target, may_repair=target is not None)
    if json:
        print_json({"file": str(file), **msgspec.structs.asdict(report)})
        return 1 if report.breaches else 0
    out = console()
    _print_findings(out, report.breaches)
    for rule in dict.fromkeys(breach.rule for breach in report.breaches):
        _print(out, f"{rule}: {RULES[rule].statement}", "dim")
    note = "" if report.format == CANONICAL else f" ({report.format}{': ' if report.why else ''}{report.why})"
    _print(
        out,
        f"{format_count(report.messages, 'message')}, {format_count(len(report.breaches), 'violation')}{note}",
    )
    if repair_to is not None:
        _print_findings(out, report.actions)
        _print(out, f"wrote {format_count(report.written, 'message')} to {repair_to}")
    return 1 if report.breaches else 0


def repair_file(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    target: Annotated[Path | None, Parameter(name="OUT", allow_leading_hyphen=True)] = None,
    /,
    *,
    in_place: Annotated[bool, flag("--in-place")] = False,
    source_format: FromOption = None,
    max_line_mb: MaxLineOption = conversion.MAX_LINE_MB,
    json: JsonOption = False,
) -> int:
    """Repair conversations that violate a rule, and report each change.

    Parameters
    ----------
    file
        Conversations in any format that convert reads, or - for standard input.
    target
        The file to write, in the same format. Without it and without --in-place, the command only reports.
    in_place
        Replace the file. The original becomes FILE.bak, removed content is written to FILE.set-aside.jsonl.
    """
    if in_place and (target is not None or str(file) == "-"):
        raise InputError("--in-place needs exactly one file", remedy="Remove --in-place or OUT")
    if json and str(target) == "-":
        raise InputError("--json and the output both use standard output", remedy="Name a file to write")
    if in_place and file.is_symlink():
        file = file.resolve()  # repair the target of the link; the link remains
    backup = _free_name(file, ".bak") if in_place else None
    to = Target(file, backup_to=backup) if in_place else None if target is None else _target(target, file)
    report = _check(file, source_format, max_line_mb, to, may_repair=True, in_place=in_place)
    is_undone = bool(report.actions) and to is None
    if json:
        print_json({"file": str(file), **msgspec.structs.asdict(report)})
    else:
        _print_repairs(report, to, backup)
    return 1 if is_undone else 0


def _print_repairs(report: _Report, to: Target | None, backup: Path | None) -> None:
    """Print the repairs; on standard error if standard output has the result."""
    out = Console(stderr=True, highlight=False) if to is not None and to.is_standard_output else console()
    _print_findings(out, report.actions)
    for (block_type, reason), count in Counter((loss.block_type, loss.reason) for loss in report.losses).items():
        _print(out, f"lost {count} × {block_type}: {reason}")
    if not report.actions:
        _print(out, f"{format_count(report.messages, 'message')}, nothing to repair")
    if to is None and report.actions:
        _print(out, "nothing was written: name a file to write, or use --in-place")
    elif to is not None and (report.actions or backup is None):
        backup_note = "" if backup is None else f"; the original is in {backup}"
        _print(out, f"wrote {format_count(report.written, 'message')} to {to.path}{backup_note}")
        if report.set_aside:
            _print(out, f"removed content is in {report.set_aside}")


# --- files -----------------------------------------------------------------------------------------------------------


def _target(path: Path, file: Path) -> Target:
    if str(path) != "-" and path.resolve() == file.resolve():
        raise InputError("is the input file", where=str(path), remedy="Name another file")
    return Target(path)


def _free_name(file: Path, ending: str, suffix: str = "") -> Path:
    """Return a file name beside a file that does not exist yet."""
    names = (file.with_name(f"{file.name}{ending}{number or ''}{suffix}") for number in itertools.count())
    return next(name for name in names if not name.exists())


def _check(
    file: Path,
    source_format: str | None,
    max_line_mb: int,
    to: Target | None,
    *,
    may_repair: bool,
    in_place: bool = False,
) -> _Report:
    """Check each conversation of a file, and write the repaired ones to a target."""
    report = _Report()
    dropped: list[bytes] = []
    with (
        conversion.open_source(file, source_format, max_line_mb=max_line_mb) as source,
        to.open() if to is not None else contextlib.nullcontext() as out,
    ):
        report.format, report.why = source.format, source.why
        output = open_output(source, to, out)
        for conversation, request in conversion.read_source(source):
            places = SourceMap(source, conversation, request)
            report.messages += len(request.messages)
            report.breaches += _find_breaches(places)
            if may_repair:
                output.add(conversation, _repair(places, report, dropped))
        output.close()
        remedy = "Repair it into another file"
        if in_place and report.actions and source.agent:
            raise InputError(
                f"is a session file of {source.agent}, which is read only", where=source.name, remedy=remedy
            )
        if in_place and report.actions and source.is_export:
            raise InputError("is an export with a hash of its messages", where=source.name, remedy=remedy)
        if in_place and dropped:
            report.set_aside = str(_write_set_aside(file, dropped))
        if to is not None and not report.actions:
            to.discard()
    return report


def _write_set_aside(file: Path, lines: list[bytes]) -> Path:
    path = _free_name(file, ".set-aside", ".jsonl")
    with Target(path, mode_of=file).open() as out:
        out.writelines(lines)
    return path


# --- conversations ---------------------------------------------------------------------------------------------------


def _find_breaches(places: SourceMap) -> Iterator[Finding]:
    for breach in find_violations(places.source.format, places.request):
        place, where = places.find(breach.where)
        yield Finding(
            place, where, breach.rule, places.get_file_id(breach.message_id), places.replace_call_ids(breach.what)
        )


def _repair(places: SourceMap, report: _Report, dropped: list[bytes]) -> Change | None:
    """Return the change that makes a conversation valid; None if it is valid."""
    source, request = places.source, places.request
    result = dragoman.repair(request.messages, fill_origin=source.format == CANONICAL)
    report.written += len(result.messages)
    if not result.actions:
        return None
    for action in result.actions:
        place, where = places.find_message(action.message_id)
        message_id, text = places.get_file_id(action.message_id), places.replace_call_ids(action.what)
        report.actions.append(Finding(place, where, action.rule, message_id, text))
    dropped += [_set_aside_line(places, item) for item in result.set_aside]
    original = None if source.by_message else read_json(places.conversation[0].data, OWN)
    before, _ = formats.write_like(source.format, request, original, by_message=source.by_message)
    new_request = request.replace(messages=result.messages)
    after, losses = formats.write_like(source.format, new_request, original, by_message=source.by_message)
    report.losses += losses
    return Change(before, after)


def _set_aside_line(places: SourceMap, item: RemovedContent) -> bytes:
    """Encode removed content in the format of the file, with its place and the reason."""
    place, where = places.find_message(item.message.id)
    place_fields = {"place": place, "where": where, "message_id": places.get_file_id(item.message.id)}
    fields = {key: value for key, value in place_fields.items() if value}
    fields |= {"rule": item.rule, "what": places.replace_call_ids(item.what)}
    message = formats.write_message(places.source.format, item.message)
    return json_text.dumps({**fields, "message": message}, ensure_ascii=False).encode() + b"\n"


# --- output ----------------------------------------------------------------------------------------------------------


def _print_findings(out: Console, findings: list[Finding]) -> None:
    for finding in findings:
        line = Text(escape_line(finding.place), "bold").append(f": {escape_line(finding.what)}")
        message = f"message {finding.message_id}" if finding.message_id else ""
        about = ", ".join(part for part in (finding.rule, finding.where, message) if part)
        out.print(line.append(f" ({escape_line(about)})", "dim"), soft_wrap=True)


def _print(out: Console, text: str, style: str = "") -> None:
    out.print(Text(escape_line(text), style), soft_wrap=True)
