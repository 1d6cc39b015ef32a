"""``dragoman convert``: conversations from one format to another, a file or a folder of them.

What was lost is counted on the standard error, and listed in a file if asked. The one rule: nothing is lost without a
word, and no file is half-written.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Final

import msgspec
from cyclopts import Parameter, validators
from rich.console import Console

from dragoman import conversion, formats
from dragoman.cli.options import JsonOption
from dragoman.cli.terminal import escape_line, format_count, format_size, print_json, progress
from dragoman.conversion import Summary, Target
from dragoman.conversion.target import DocumentStream, check_target
from dragoman.errors import InputError
from dragoman.formats.registry import resolve_name

FromOption = Annotated[
    str | None,
    Parameter(name="--from", help="The format that it is in; found out unless given."),
]
MaxLineOption = Annotated[
    int,
    Parameter(
        name="--max-line-mb",
        validator=validators.Number(gte=1),
        help="The longest line, or document that is not in lines, that is taken into memory.",
    ),
]
_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
BY_SUFFIX: Final = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html"}
_MAX_ROWS: Final = 12


class _FileReport(msgspec.Struct):
    """One file, for ``--json``."""

    file: str
    format: str
    why: str
    written: str
    to: str
    summary: Summary


class _ConvertOptions(msgspec.Struct):
    """What is wanted of every file."""

    source_format: str | None
    to: str
    is_strict: bool
    processes: int | None
    max_line_mb: int
    skips: bool
    losses: IO[bytes] | None


def convert(
    source: Annotated[Path, Parameter(name="IN", allow_leading_hyphen=True)],
    target: Annotated[Path, Parameter(name="OUT", allow_leading_hyphen=True)],
    /,
    *,
    source_format: FromOption = None,
    to: str | None = None,
    losses: Path | None = None,
    strict: Annotated[bool, Parameter(name="--strict", negative=(), show_default=False)] = False,
    skip_invalid: Annotated[bool, Parameter(name="--skip-invalid", negative=(), show_default=False)] = False,
    processes: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    max_line_mb: MaxLineOption = conversion.MAX_LINE_MB,
    json: JsonOption = False,
) -> int:
    """Write conversations in another format.

    Messages that break a rule are written as they are, and the broken rules are counted on the standard error.

    Parameters
    ----------
    source
        A file, a folder of them, or - for the standard input. JSON Lines or JSON, and either compressed with gzip.
    target
        The file or folder to write, or - for the standard output. A name that ends in .json becomes one document.
    to
        The format to write: canonical unless given, or unless the name of the file says a page.
    losses
        Write everything that is lost to this file, one a line.
    strict
        Refuse to lose anything.
    skip_invalid
        Leave out lines or items that cannot be read, and name each on the standard error. Exit code 1 if there are any.
    processes
        How many processes work on a long file; as many as there are cores unless given.
    """
    target_format = resolve_name(to, to_write=True) if to else BY_SUFFIX.get(target.suffix.lower(), formats.CANONICAL)
    if json and str(target) == "-":
        raise InputError("--json and the conversations would both be printed", remedy="Name a file to write")
    pairs = list(_pairs(source, target, target_format))
    done: list[_FileReport] = []
    errors: list[str] = []
    if losses is not None:
        check_target(losses, *(path for pair in pairs for path in pair))
    with _open_losses(losses) as losses_stream:
        options = _ConvertOptions(
            source_format, target_format, strict, processes, max_line_mb, skip_invalid, losses_stream
        )
        for file, target_file in pairs:
            try:
                done.append(_convert_file(file, target_file, options))
            except InputError as error:
                if not source.is_dir():
                    raise
                errors.append(f"{error} [{error.code}]")
    _print_reports(done, errors, json=json)
    return 1 if errors or any(file.summary.skipped for file in done) else 0


@contextlib.contextmanager
def _open_losses(path: Path | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    with Target(path).open() as stream:
        yield stream


# --- files -----------------------------------------------------------------------------------------------------------


def _pairs(source: Path, target: Path, to: str) -> Iterator[tuple[Path, Path]]:
    """Each file that is to be read, and the one to be written for it."""
    if not source.is_dir():
        target_file = target / _target_name(source.name, to) if target.is_dir() else target
        if str(target) != "-":
            check_target(target_file, source)
        yield source, target_file
        return
    if str(target) == "-" or target.is_file():
        raise InputError("a folder is converted into a folder", where=str(target), remedy="Name a folder")
    if target.resolve().is_relative_to(source.resolve()):
        raise InputError("it is in the folder that is read", where=str(target), remedy="Name a folder elsewhere")
    files = sorted(file for file in source.rglob("*") if file.is_file() and file.name.endswith(_SUFFIXES))
    if not files:
        raise InputError(f"no files that end in {', '.join(_SUFFIXES[:3])} are in it", where=str(source))
    for file in files:
        place = file.relative_to(source)
        yield file, target / place.with_name(_target_name(place.name, to))


def _target_name(name: str, to: str) -> str:
    """The same name, with the ending of a page where it becomes one."""
    if to not in formats.PAGES:
        return name
    stem = next(name.removesuffix(suffix) for suffix in (*reversed(_SUFFIXES), "") if name.endswith(suffix))
    return f"{stem}.{'md' if to == 'markdown' else to}"


def _convert_file(source: Path, target: Path, options: _ConvertOptions) -> _FileReport:
    if str(target) != "-":
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror})", where=str(target)) from None
    with (
        progress(f"converting {escape_line(source.name)}") as report,
        conversion.open_source(
            source, options.source_format, max_line_mb=options.max_line_mb, skip_invalid=options.skips
        ) as input_source,
        Target(target).open() as out,
        document_or_lines(out, target, options.to) as stream,
    ):
        summary = conversion.convert(
            input_source,
            stream,
            options.to,
            losses_to=options.losses,
            is_strict=options.is_strict,
            skip_invalid=options.skips,
            processes=options.processes,
            progress=lambda read, total: report(read, total or 0),
            title=target.stem if str(target) != "-" else input_source.name,
        )
    return _FileReport(input_source.name, input_source.format, input_source.why, str(target), options.to, summary)


@contextlib.contextmanager
def document_or_lines(out: IO[bytes], target: Path, to: str, *, is_list: bool = False) -> Iterator[Any]:
    """The stream for a target: lines, unless its name says that it is one document."""
    if to in formats.PAGES or not target.name.removesuffix(".gz").endswith(".json"):
        yield out
        return
    document = DocumentStream(out, is_list=is_list or to == formats.CANONICAL)
    yield document
    document.close()


# --- telling ---------------------------------------------------------------------------------------------------------


def _print_reports(reports: list[_FileReport], errors: list[str], *, json: bool) -> None:
    if json:
        print_json({"files": reports, "failed": errors})
    out = Console(stderr=True, highlight=False)
    for report in reports if not json else ():
        why = f" ({report.why})" if report.why else ""
        out.print(escape_line(f"{report.file} is {report.format}{why}"), markup=False, soft_wrap=True, style="dim")
        counts = (
            format_count(report.summary.conversations, "conversation"),
            format_count(report.summary.messages, "message"),
        )
        where = "the standard output" if report.written == "-" else report.written
        text = f"wrote {', '.join((*counts, format_size(report.summary.bytes)))}, to {where} as {report.to}"
        out.print(escape_line(text), markup=False, soft_wrap=True)
        print_losses(out, report.summary)
        _print_breaches(out, report)
    for line in errors:
        sys.stderr.write(f"dragoman: {escape_line(line)}\n")


def _print_breaches(out: Console, report: _FileReport) -> None:
    """Which records were left out, and which rules are broken."""
    for record in report.summary.skipped[:_MAX_ROWS]:
        out.print(escape_line(f"skipped {record}"), markup=False, soft_wrap=True)
    if len(report.summary.skipped) > _MAX_ROWS:
        out.print(f"and {len(report.summary.skipped) - _MAX_ROWS} more skipped; --json lists all of them")
    for breach in report.summary.breaches:
        out.print(escape_line(f"warning: {breach.rule} is broken {breach.count:,} ×"), markup=False, soft_wrap=True)
    if report.summary.breaches:
        out.print(escape_line(f"dragoman check {report.file} names each place"), markup=False, soft_wrap=True)


def print_losses(out: Console, summary: Summary) -> None:
    """What was lost, by kind, the most frequent first."""
    for loss in summary.losses[:_MAX_ROWS]:
        out.print(escape_line(f"lost {loss.count:,} × {loss.what}: {loss.reason}"), markup=False, soft_wrap=True)
    if len(summary.losses) > _MAX_ROWS:
        out.print(f"and {len(summary.losses) - _MAX_ROWS} kinds more; --losses FILE lists all of them")


__all__ = ["BY_SUFFIX", "FromOption", "MaxLineOption", "convert", "document_or_lines", "print_losses"]
