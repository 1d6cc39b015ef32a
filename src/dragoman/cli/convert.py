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

from dragoman import converting, formats
from dragoman.cli.store_option import JsonOption
from dragoman.cli.terminal import counted, print_json, progress, safe_line, size
from dragoman.converting import Summary, Target
from dragoman.converting.targets import DocumentStream, check_target
from dragoman.errors import InputError
from dragoman.formats.registry import known

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
_SHOWN: Final = 12


class _Converted(msgspec.Struct):
    """One file, for ``--json``."""

    file: str
    format: str
    why: str
    written: str
    to: str
    summary: Summary


class _Asked(msgspec.Struct):
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
    max_line_mb: MaxLineOption = converting.MAX_LINE_MB,
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
    wanted = known(to, to_write=True) if to else BY_SUFFIX.get(target.suffix.lower(), formats.CANONICAL)
    if json and str(target) == "-":
        raise InputError("--json and the conversations would both be printed", remedy="Name a file to write")
    pairs = list(_pairs(source, target, wanted))
    done: list[_Converted] = []
    failed: list[str] = []
    if losses is not None:
        check_target(losses, *(path for pair in pairs for path in pair))
    with _opened_losses(losses) as kept:
        asked = _Asked(source_format, wanted, strict, processes, max_line_mb, skip_invalid, kept)
        for one, other in pairs:
            try:
                done.append(_convert_file(one, other, asked))
            except InputError as error:
                if not source.is_dir():
                    raise
                failed.append(f"{error} [{error.code}]")
    _tell(done, failed, json=json)
    return 1 if failed or any(one.summary.skipped for one in done) else 0


@contextlib.contextmanager
def _opened_losses(path: Path | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    with Target(path).opened() as stream:
        yield stream


# --- files -----------------------------------------------------------------------------------------------------------


def _pairs(source: Path, target: Path, to: str) -> Iterator[tuple[Path, Path]]:
    """Each file that is to be read, and the one to be written for it."""
    if not source.is_dir():
        written = target / _renamed(source.name, to) if target.is_dir() else target
        if str(target) != "-":
            check_target(written, source)
        yield source, written
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
        yield file, target / place.with_name(_renamed(place.name, to))


def _renamed(name: str, to: str) -> str:
    """The same name, with the ending of a page where it becomes one."""
    if to not in formats.PAGES:
        return name
    stem = next(name.removesuffix(suffix) for suffix in (*reversed(_SUFFIXES), "") if name.endswith(suffix))
    return f"{stem}.{'md' if to == 'markdown' else to}"


def _convert_file(source: Path, target: Path, asked: _Asked) -> _Converted:
    if str(target) != "-":
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror})", where=str(target)) from None
    with (
        progress(f"converting {safe_line(source.name)}") as shown,
        converting.opened(source, asked.source_format, max_line_mb=asked.max_line_mb, skips=asked.skips) as given,
        Target(target).opened() as out,
        document_or_lines(out, target, asked.to) as stream,
    ):
        summary = converting.convert(
            given,
            stream,
            asked.to,
            losses_to=asked.losses,
            is_strict=asked.is_strict,
            skips=asked.skips,
            processes=asked.processes,
            progress=lambda read, total: shown(read, total or 0),
            title=target.stem if str(target) != "-" else given.name,
        )
    return _Converted(given.name, given.format, given.why, str(target), asked.to, summary)


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


def _tell(done: list[_Converted], failed: list[str], *, json: bool) -> None:
    if json:
        print_json({"files": done, "failed": failed})
    told = Console(stderr=True, highlight=False)
    for one in done if not json else ():
        why = f" ({one.why})" if one.why else ""
        told.print(safe_line(f"{one.file} is {one.format}{why}"), markup=False, soft_wrap=True, style="dim")
        counts = (counted(one.summary.conversations, "conversation"), counted(one.summary.messages, "message"))
        where = "the standard output" if one.written == "-" else one.written
        what = f"wrote {', '.join((*counts, size(one.summary.bytes)))}, to {where} as {one.to}"
        told.print(safe_line(what), markup=False, soft_wrap=True)
        tell_losses(told, one.summary)
        _tell_breaches(told, one)
    for line in failed:
        sys.stderr.write(f"dragoman: {safe_line(line)}\n")


def _tell_breaches(told: Console, one: _Converted) -> None:
    """Which records were left out, and which rules are broken."""
    for what in one.summary.skipped[:_SHOWN]:
        told.print(safe_line(f"skipped {what}"), markup=False, soft_wrap=True)
    if len(one.summary.skipped) > _SHOWN:
        told.print(f"and {len(one.summary.skipped) - _SHOWN} more skipped; --json lists all of them")
    for breach in one.summary.breaches:
        told.print(safe_line(f"warning: {breach.rule} is broken {breach.count:,} ×"), markup=False, soft_wrap=True)
    if one.summary.breaches:
        told.print(safe_line(f"dragoman check {one.file} names each place"), markup=False, soft_wrap=True)


def tell_losses(told: Console, summary: Summary) -> None:
    """What was lost, by kind, the most frequent first."""
    for loss in summary.losses[:_SHOWN]:
        told.print(safe_line(f"lost {loss.count:,} × {loss.what}: {loss.reason}"), markup=False, soft_wrap=True)
    if len(summary.losses) > _SHOWN:
        told.print(f"and {len(summary.losses) - _SHOWN} kinds more; --losses FILE lists all of them")


__all__ = ["BY_SUFFIX", "FromOption", "MaxLineOption", "convert", "document_or_lines", "tell_losses"]
