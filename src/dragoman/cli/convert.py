"""``dragoman convert``: convert a file or a folder of conversations to another format.

Invariants: every loss is counted, and an output file is either complete or absent.
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
from dragoman.cli.options import JsonOption, flag
from dragoman.cli.terminal import escape_line, format_count, format_size, print_json, progress
from dragoman.conversion import Summary, Target
from dragoman.conversion.target import DocumentStream, check_target
from dragoman.errors import InputError
from dragoman.formats.registry import resolve_name

FromOption = Annotated[
    str | None,
    Parameter(name="--from", help="The input format. Default: detected from the content."),
]
MaxLineOption = Annotated[
    int,
    Parameter(
        name="--max-line-mb",
        validator=validators.Number(gte=1),
        help="The maximum size of a line, or of a document that is not in lines, in MB.",
    ),
]
_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
BY_SUFFIX: Final = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html"}
_MAX_ROWS: Final = 12


class _FileReport(msgspec.Struct):
    """The result for one file, as ``--json`` prints it."""

    file: str
    format: str
    why: str
    written: str
    to: str
    summary: Summary


class _ConvertOptions(msgspec.Struct):
    """The options that apply to all files."""

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
    strict: Annotated[bool, flag("--strict")] = False,
    skip_invalid: Annotated[bool, flag("--skip-invalid")] = False,
    processes: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    max_line_mb: MaxLineOption = conversion.MAX_LINE_MB,
    json: JsonOption = False,
) -> int:
    """Convert conversations to another format.

    Messages that violate a rule are converted as they are, and the violations are counted on standard error.

    Parameters
    ----------
    source
        A file, a folder, or - for standard input. JSON Lines or JSON, optionally compressed with gzip.
    target
        The file or folder to write, or - for standard output. A name that ends in .json becomes one document.
    to
        The target format. Default: canonical, or the format of the file name (.md, .html).
    losses
        Write each loss and each adjustment to this file, as JSON Lines.
    strict
        Fail if anything would be lost.
    skip_invalid
        Skip records that cannot be read, and print each on standard error. Exit code 1 if there are any.
    processes
        The number of processes for a large file. Default: the number of cores.
    """
    target_format = resolve_name(to, to_write=True) if to else BY_SUFFIX.get(target.suffix.lower(), formats.CANONICAL)
    if json and str(target) == "-":
        raise InputError("--json and the output both use standard output", remedy="Name a file to write")
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
    """Yield each input file with its output file."""
    if not source.is_dir():
        target_file = target / _target_name(source.name, to) if target.is_dir() else target
        if str(target) != "-":
            check_target(target_file, source)
        yield source, target_file
        return
    if str(target) == "-" or target.is_file():
        raise InputError("not a folder, but the input is one", where=str(target), remedy="Name a folder")
    if target.resolve().is_relative_to(source.resolve()):
        raise InputError("is inside the input folder", where=str(target), remedy="Name another folder")
    files = sorted(file for file in source.rglob("*") if file.is_file() and file.name.endswith(_SUFFIXES))
    if not files:
        raise InputError(f"no files that end in {', '.join(_SUFFIXES[:3])}", where=str(source))
    for file in files:
        place = file.relative_to(source)
        yield file, target / place.with_name(_target_name(place.name, to))


def _target_name(name: str, to: str) -> str:
    """Return the file name with the suffix of the target format."""
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
def document_or_lines(out: IO[bytes], target: Path, to: str) -> Iterator[Any]:
    """Return the output stream of a target: JSON Lines, or one document if the file name ends in .json."""
    if to in formats.PAGES or not target.name.removesuffix(".gz").endswith(".json"):
        yield out
        return
    document = DocumentStream(out, is_list=to == formats.CANONICAL)
    yield document
    document.close()


# --- output ----------------------------------------------------------------------------------------------------------


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
        where = "standard output" if report.written == "-" else report.written
        text = f"wrote {', '.join((*counts, format_size(report.summary.bytes)))}, to {where} as {report.to}"
        out.print(escape_line(text), markup=False, soft_wrap=True)
        print_losses(out, report.summary)
        _print_breaches(out, report)
    for line in errors:
        sys.stderr.write(f"dragoman: {escape_line(line)}\n")


def _print_breaches(out: Console, report: _FileReport) -> None:
    """Print the skipped records, and the violated rules."""
    for record in report.summary.skipped[:_MAX_ROWS]:
        out.print(escape_line(f"skipped {record}"), markup=False, soft_wrap=True)
    if len(report.summary.skipped) > _MAX_ROWS:
        out.print(f"and {len(report.summary.skipped) - _MAX_ROWS} more skipped; --json lists all of them")
    for breach in report.summary.breaches:
        out.print(escape_line(f"warning: {breach.rule} is violated {breach.count:,} ×"), markup=False, soft_wrap=True)
    if report.summary.breaches:
        out.print(escape_line(f"dragoman check {report.file} lists each violation"), markup=False, soft_wrap=True)


def print_losses(out: Console, summary: Summary) -> None:
    """Print the losses and adjustments by kind, most frequent first."""
    for loss in summary.losses[:_MAX_ROWS]:
        out.print(escape_line(f"lost {loss.count:,} × {loss.what}: {loss.reason}"), markup=False, soft_wrap=True)
    if len(summary.losses) > _MAX_ROWS:
        out.print(f"and {len(summary.losses) - _MAX_ROWS} more kinds; --losses FILE lists all of them")
    for item in summary.adjustments[:_MAX_ROWS]:
        out.print(escape_line(f"adjusted {item.count:,} × {item.what}: {item.reason}"), markup=False, soft_wrap=True)
    if len(summary.adjustments) > _MAX_ROWS:
        out.print(f"and {len(summary.adjustments) - _MAX_ROWS} more kinds; --losses FILE lists all of them")


__all__ = ["BY_SUFFIX", "FromOption", "MaxLineOption", "convert", "document_or_lines", "print_losses"]
