"""``dragoman export``, ``import`` and ``backup``.

An export is JSON Lines (see ``dragoman.store.archive``); a backup is a SQLite store. Invariant: an output file is
either complete or absent.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import os
import re
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Annotated, Final, cast

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from dragoman import formats, permissions, renderers
from dragoman.cli.convert import BY_SUFFIX, document_or_lines, print_losses
from dragoman.cli.options import JsonOption, StoreOption, find_session, flag, open_store_at, sqlite_file
from dragoman.cli.terminal import (
    console,
    escape_json_controls,
    escape_line,
    format_count,
    format_size,
    print_json,
    print_line,
    progress,
)
from dragoman.conversion import LossCount, Summary, Target
from dragoman.conversion.target import check_target
from dragoman.errors import InputError
from dragoman.formats.registry import resolve_name
from dragoman.message import Message
from dragoman.store import Session, Store

_MAX_ROWS: Final = 20
_PAGE: Final = 500
_STORE_HEAD: Final = b'{"dragoman_store"'  # first bytes of the export of a store


# --- export ----------------------------------------------------------------------------------------------------------


async def export(
    session: str | None = None,
    /,
    *,
    all_sessions: Annotated[bool, flag("--all")] = False,
    to: str | None = None,
    out: Path | None = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Export one session or all sessions as JSON Lines, or one session in another format.

    Parameters
    ----------
    session
        The session: its id, a unique prefix or suffix of the id, or last.
    all_sessions
        Export every session of the store, with forks as forks.
    to
        A format that convert writes, or the file to write. Default: JSON Lines that import reads.
    out
        The file to write if --to names a format; compressed if it ends in .gz. Default: standard output.
    """
    if (session is None) != all_sessions:
        raise InputError("need either a session or --all", remedy="Name a session, or use --all")
    target_format, file_to = _target_from(to, out)
    if json and file_to is None:
        raise InputError("--json needs an output file", remedy="Name one with --to")
    if target_format is not None and all_sessions:
        raise InputError("--all cannot be combined with a format", remedy="Name one session, or omit the format")
    if file_to is not None:
        check_target(file_to)  # rejects a store file: --to and --store are easily confused
    if target_format is not None and session is not None:
        await _export_as(target_format, session, file_to, store_url, json=json)
        return
    async with open_store_at(store_url) as store:
        with _open_target(file_to) as file, progress("exporting") as report:
            count, length = 0, 0
            async for line in await _lines(store, session, report):
                file.write(line if file_to is not None or not sys.stdout.isatty() else escape_json_controls(line))
                length += len(line)
                count += line.startswith(b'{"dragoman_session"')
    if json:
        print_json({"file": str(file_to), "sessions": count, "bytes": length})
    elif file_to is not None:
        text = f"wrote {format_count(count, 'session')}, {format_size(length)}, to {file_to}"
        console().print(text, markup=False, soft_wrap=True)


def _target_from(to: str | None, out: Path | None) -> tuple[str | None, Path | None]:
    """Return the target format and file. A name with a dot or a slash is a file."""
    if to is None:
        return (None, None) if out is None else (BY_SUFFIX.get(out.suffix.lower()), out)
    if not re.search(r"[./\\]", to):
        return resolve_name(to, to_write=True), out
    if out is not None:
        raise InputError("--to and --out both name a file", remedy="Name a format with --to")
    return BY_SUFFIX.get(Path(to).suffix.lower()), Path(to)


async def _export_as(to: str, session: str, path: Path | None, store_url: str | None, *, json: bool) -> None:
    """Export one session in a format."""
    async with open_store_at(store_url) as store:
        current = await find_session(store, session)
        messages: list[Message] = []
        with progress("reading") as report:
            while rows := await store.read(current.id, len(messages), _PAGE):
                messages.extend(row.message for row in rows)
                report(len(messages), current.last_seq)
    target = Target(path or Path("-"))
    with target.open() as file, document_or_lines(file, target.path, to) as stream:
        if to in formats.PAGES:
            about = renderers.About.from_messages(messages, current.title)
            document = formats.Text(renderers.write_conversation(to, messages, about))
            stream.write(formats.write_header(to, about.title))
        else:
            document = formats.write(to, formats.restore_request(tuple(messages)))
        is_terminal = target.is_standard_output and sys.stdout.isatty()
        length = stream.write(escape_json_controls(document.data) if is_terminal else document.data)
        stream.write(formats.write_footer(to))
    loss_counts = Counter((loss.block_type, loss.reason) for loss in document.losses).most_common()
    losses = [LossCount(block_type, reason, count) for (block_type, reason), count in loss_counts]
    if json:
        result = {"file": str(path), "sessions": 1, "bytes": length, "format": to, "losses": losses}
        print_json(result)
        return
    err = Console(stderr=True, highlight=False)
    if path is not None:
        text = f"wrote {format_count(len(messages), 'message')}, {format_size(length)}, to {path} as {to}"
        console().print(text, markup=False, soft_wrap=True)
    print_losses(err, Summary(losses=losses))


async def _lines(store: Store, session: str | None, report: Callable[[int, int], None]) -> AsyncIterator[bytes]:
    if session is None:
        return store.export_store(report)
    current = await find_session(store, session)
    return _report_lines(store.export(current.id), current.last_seq, report)


async def _report_lines(
    lines: AsyncIterator[bytes], total: int, report: Callable[[int, int], None]
) -> AsyncIterator[bytes]:
    number = 0
    async for line in lines:
        yield line
        number += 1
        report(min(number, total), total)


@contextlib.contextmanager
def _open_target(to: Path | None) -> Iterator[IO[bytes]]:
    """Open the target of an export. A file gets its name when it is complete and synced."""
    if to is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = to.with_name(f".{to.name}.part")
    try:
        part.unlink(missing_ok=True)  # left by an interrupted export
        with permissions.open_new(part) as raw:
            if to.suffix == ".gz":
                with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as gzip_file:
                    yield gzip_file  # type: ignore[misc]
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        if to.exists():
            part.chmod(to.stat().st_mode & 0o777)
        part.replace(to)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", where=str(to)) from None
    finally:
        part.unlink(missing_ok=True)


# --- import ----------------------------------------------------------------------------------------------------------


async def import_file(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    as_session: Annotated[str | None, Parameter(name="--as")] = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Import the sessions of an export, or canonical messages as JSON Lines.

    Parameters
    ----------
    file
        The file, or - for standard input; optionally compressed with gzip.
    as_session
        Import the session as a copy with this id.
    """
    with _open_source(file) as lines:
        if as_session is not None and lines.peek(len(_STORE_HEAD)).startswith(_STORE_HEAD):
            raise InputError(
                "is the export of a store, and --as is for one session", where=str(file), remedy="Omit --as"
            )
        sessions = await _import_lines(lines, file, as_session, store_url)
    if json:
        print_json({"sessions": sessions})
    else:
        _print_sessions(sessions)


async def _import_lines(
    lines: BufferedReader | gzip.GzipFile, file: Path, as_session: str | None, store_url: str | None
) -> list[Session]:
    """Import a file. If that fails and nothing was imported, a SQLite store that did not exist is not left behind."""
    path = sqlite_file(store_url)
    other_files = None if path is None or path.exists() else set(_files_of(path))
    has_sessions = True
    try:
        async with open_store_at(store_url, create=True) as store:
            try:
                with progress("importing") as report:
                    if as_session is not None:
                        return [await store.import_session(lines, as_session)]
                    return list(await store.import_store(lines, report))
            except (InputError, EOFError, gzip.BadGzipFile, zlib.error):
                has_sessions = bool(await store.list_sessions(limit=1))
                raise
    except InputError as error:
        raise InputError(str(error), where=str(file), code=error.code) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"is truncated ({error})", where=str(file), code="cut_export") from None
    finally:
        if path is not None and other_files is not None and not has_sessions:
            for item in set(_files_of(path)) - other_files:
                shutil.rmtree(item) if item.is_dir() else item.unlink(missing_ok=True)


def _files_of(path: Path) -> list[Path]:
    """The file of a SQLite store and those beside it that start with its name."""
    return list(path.parent.glob(f"{glob.escape(path.name)}*"))


@contextlib.contextmanager
def _open_source(file: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    if str(file) == "-":
        yield cast("BufferedReader", sys.stdin.buffer)
        return
    try:
        raw = file.open("rb")
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(file)) from None
    with raw, gzip.open(raw) if is_gzip else contextlib.nullcontext(raw) as lines:
        yield lines


def _print_sessions(sessions: list[Session]) -> None:
    out = console()
    for session in sessions[:_MAX_ROWS]:
        line = Text(session.id).append(f"  {session.last_seq:>7,}  ", "dim").append(escape_line(session.title or ""))
        print_line(out, line)
    if len(sessions) > _MAX_ROWS:
        out.print(f"… {len(sessions) - _MAX_ROWS:,} more", style="dim")
    out.print(f"imported {format_count(len(sessions), 'session')}")


# --- backup ----------------------------------------------------------------------------------------------------------


async def backup(
    target: Path,
    /,
    *,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a store that is in use to a SQLite file, and verify the copy.

    Parameters
    ----------
    target
        The file to create, with a folder for large objects beside it. It must not exist.
    """
    async with open_store_at(store_url) as store:
        with progress("copying") as report:
            copy = await store.backup(target, report)
    size_bytes = target.stat().st_size
    if json:
        print_json({"file": str(target), "bytes": size_bytes, **msgspec.structs.asdict(copy)})
        return
    counts = ", ".join(
        (format_count(copy.sessions, "session"), format_count(copy.messages, "message"), format_size(size_bytes))
    )
    console().print(f"copied to {target} and verified", markup=False, soft_wrap=True)
    console().print(counts, style="dim")
