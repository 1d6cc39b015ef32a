"""How far each session was acknowledged, in a small file beside a SQLite database: ``NAME-mark``.

    mark.start(ends, now)           the first line of a new mark, and every session that the file has
    mark.begin(session_id, seq)     a session is there, and ends so; written at once
    mark.note(session_id, seq)      a message was acknowledged; written within a second, and when the store is closed
    mark.forget(ids)                sessions are about to be deleted; written at once
    mark.read()                     what was acknowledged, by session; None if there is no such file

A database cannot tell that its end is missing: an older copy of it is sound, and so is one whose log was deleted. The
mark is outside the file, so ``verify`` can compare. It is written after the commit and never synced: a process that is
killed leaves out at most the last second, a power cut may leave out more.

Invariant: the mark never says more than was committed. A line that cannot be read says nothing, nor does one about a
session that was not begun, or was forgotten: another process may still note what it has added to it before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

try:
    import fcntl
except ImportError:  # not a POSIX system: processes that write at the same time may lose each other's lines
    fcntl = None  # type: ignore[assignment]

_EVERY_S: Final = 1.0
_LONG_BYTES: Final = 1024 * 1024  # of a file that is written anew when a store is opened
_START, _BEGIN, _NOTE, _FORGET = "start", "begin", "note", "forget"
_log: Final = logging.getLogger("dragoman.store")
_Line = tuple[str, str, int]  # what, of which session, its last message; of the first line, when that was


class Marked(msgspec.Struct, frozen=True):
    """What a mark says."""

    since: datetime | None  # when it was begun
    ends: dict[str, int]  # the last message that was acknowledged of each session


class HighWaterMark:
    """The mark of one database; without a path there is none, and nothing is written."""

    def __init__(self, database: Path | None) -> None:
        self.path = database.with_name(f"{database.name}-mark") if database is not None else None
        self._is_new = False
        self._noted: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, ends: Callable[[], Iterable[Any]], now: datetime) -> None:
        """Begin a mark where there is none. It tells nothing of what was lost before."""
        if self.path is not None and not self.path.exists():
            self._is_new = True
            begun = [(_BEGIN, session_id, seq) for session_id, seq in ends()]
            self._write([(_START, "", round(now.timestamp())), *begun])

    def begin(self, session_id: str, seq: int) -> None:
        """A session was made."""
        self._write([(_BEGIN, session_id, seq)])

    def note(self, session_id: str, seq: int) -> None:
        """A message was acknowledged."""
        if self.path is None:
            return
        self._noted[session_id] = max(seq, self._noted.get(session_id, 0))
        loop = asyncio.get_running_loop()
        if self._timer is None or self._loop is not loop:
            self._timer, self._loop = loop.call_later(_EVERY_S, self.flush), loop

    def forget(self, session_ids: Iterable[str]) -> None:
        """Sessions are about to be deleted."""
        gone = list(session_ids)
        for session_id in gone:
            self._noted.pop(session_id, None)
        self._write([(_FORGET, session_id, 0) for session_id in gone])

    def flush(self) -> None:
        """Write what was noted."""
        if self._timer is not None:
            self._timer.cancel()
        noted, self._noted, self._timer = self._noted, {}, None
        self._write([(_NOTE, session_id, seq) for session_id, seq in noted.items()])

    def read(self) -> Marked | None:
        """What the mark says; nothing if there was none when the store was opened."""
        if self.path is None or self._is_new:
            return None
        try:
            return _marked(self.path.read_bytes())
        except OSError:
            return None

    def shorten(self, *, is_any_length: bool = False) -> None:
        """Write a long file anew, with one line for each session."""
        if self.path is None or fcntl is None:
            return
        try:
            if self.path.stat().st_size < (0 if is_any_length else _LONG_BYTES):
                return
            with self._opened() as descriptor:
                marked = _marked(self.path.read_bytes())
                short = self.path.with_name(f"{self.path.name}.part")
                first = [] if marked.since is None else [(_START, "", round(marked.since.timestamp()))]
                begun = [(_BEGIN, session_id, seq) for session_id, seq in marked.ends.items()]
                short.write_bytes(b"".join(map(_line, [*first, *begun])))
                short.chmod(os.fstat(descriptor).st_mode & 0o777)
                short.replace(self.path)
        except FileNotFoundError:
            return  # nothing was ever acknowledged here
        except OSError as error:
            _log.warning("the mark beside the database could not be shortened: %s", error)

    def _write(self, lines: list[_Line]) -> None:
        if self.path is None or not lines:
            return
        try:
            with self._opened() as descriptor:
                os.write(descriptor, b"".join(map(_line, lines)))
        except OSError as error:
            _log.warning("the mark beside the database could not be written: %s", error)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, to be added to by this process alone."""
        assert self.path is not None
        while True:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                        continue  # somebody has written it anew
                yield descriptor
                return
            finally:
                os.close(descriptor)


def _line(line: _Line) -> bytes:
    said = msgspec.json.encode(line)
    return b"%08x %s\n" % (zlib.crc32(said), said)


def _marked(data: bytes) -> Marked:
    since: datetime | None = None
    ends: dict[str, int] = {}
    for line in data.split(b"\n"):
        checksum, _, said = line.partition(b" ")
        try:
            if not said or int(checksum, 16) != zlib.crc32(said):
                continue
            what, session_id, seq = msgspec.json.decode(said, type=_Line)
        except (ValueError, msgspec.DecodeError):
            continue
        if what == _START:
            since = datetime.fromtimestamp(seq, UTC)
        elif what == _BEGIN:
            ends[session_id] = seq
        elif what == _FORGET:
            ends.pop(session_id, None)
        elif session_id in ends:
            ends[session_id] = max(seq, ends[session_id])
    return Marked(since, ends)
