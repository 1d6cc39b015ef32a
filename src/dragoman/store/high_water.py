"""The last acknowledged position of each session, in a small file beside a SQLite database: ``NAME-mark``.

    mark.start(ends, now)              write the first line of a new mark, and the end of every session
    mark.add_session(session_id, seq)  a session was created; written immediately
    mark.note_session(session_id, seq) the same; written within a second, and on close
    mark.acknowledge(session_id, …)    a message was acknowledged; written within a second, and on close
    mark.forget(ids)                   sessions are about to be deleted; written immediately
    mark.record_losses(losses)         acknowledged messages are missing; kept until the loss is accepted
    mark.accept_losses(ends, now)      drop the recorded losses and continue from the file
    mark.read()                        the acknowledged ends by session; None without a mark
    compare_ends(state)                the acknowledged messages that a database lacks

A database does not show that its last messages are missing: an older copy is consistent, and so is a file whose log was
deleted. The mark is outside the file, so ``verify`` can compare. It is written after the commit and never synced: a
killed process loses at most its last second, a power cut may lose more.

Invariant: the mark never claims more than was committed. An unreadable line is counted and ignored. A line about
an unknown or forgotten session is ignored: another process may still write earlier acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from dragoman.store.operation import Steps, operation

try:
    import fcntl
except ImportError:  # not a POSIX system: processes that write at the same time may lose each other's lines
    fcntl = None  # type: ignore[assignment]

_FLUSH_INTERVAL_S: Final = 1.0
_COMPACT_ABOVE_BYTES: Final = 1024 * 1024  # a longer file is compacted when a store is opened
_ABSENT: Final = -1  # the end of a session that is not in the file
_START, _BEGIN, _NOTE, _FORGET = "start", "begin", "note", "forget"
_LOST, _ACCEPT, _DAMAGED = "lost", "accept", "damaged"
_log: Final = logging.getLogger("dragoman.store")


class _Line(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    kind: str
    session_id: str
    number: int  # the last message; of start and accept, the time; of damaged, how many lines
    message_id: str = ""
    end: int = _ABSENT  # of a loss


class Loss(msgspec.Struct, frozen=True):
    """Acknowledged messages that are missing."""

    acknowledged: int  # the last message that was acknowledged
    message_id: str  # its id, or ""
    end: int  # the last message that is still present


class MarkState(msgspec.Struct, frozen=True):
    """The content of a mark."""

    since: datetime | None  # the time of its first line
    ends: dict[str, int]  # the last acknowledged message of each session
    message_ids: dict[str, str] = {}  # and its id, if recorded
    losses: dict[str, Loss] = {}  # recorded when the store was opened, and not accepted
    damaged_lines: int = 0

    @property
    def is_damaged(self) -> bool:
        """Whether lines are unreadable, or the first line is missing."""
        return self.since is None or self.damaged_lines > 0


class HighWaterMark:
    """The mark of one database. Without a path nothing is written."""

    def __init__(self, database: Path | None) -> None:
        self.path = database.with_name(f"{database.name}-mark") if database is not None else None
        self._is_new = False
        self._pending: dict[str, tuple[int, str]] = {}
        self._new_sessions: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, ends: Callable[[], Iterable[Any]], now: datetime) -> None:
        """Create a mark if there is none. It does not show earlier losses."""
        if self.path is not None and not self.path.exists():
            self._is_new = True
            lines = [_Line(_BEGIN, session_id, seq) for session_id, seq in ends()]
            self._write([_Line(_START, "", round(now.timestamp())), *lines])

    def add_session(self, session_id: str, seq: int) -> None:
        """Record a new session."""
        self._write([_Line(_BEGIN, session_id, seq)])

    def note_session(self, session_id: str, seq: int) -> None:
        """Record a new session with the next acknowledgements."""
        if self.path is not None:
            self._new_sessions[session_id] = seq
            self._schedule()

    def acknowledge(self, session_id: str, seq: int, message_id: str) -> None:
        """Record an acknowledged message."""
        if self.path is None:
            return
        self._pending[session_id] = max((seq, message_id), self._pending.get(session_id, (0, "")))
        self._schedule()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is None or self._loop is not loop:
            self._timer, self._loop = loop.call_later(_FLUSH_INTERVAL_S, self.flush), loop

    def forget(self, session_ids: Iterable[str]) -> None:
        """Remove sessions that are about to be deleted."""
        ids = list(session_ids)
        for session_id in ids:
            self._pending.pop(session_id, None)
            self._new_sessions.pop(session_id, None)
        self._write([_Line(_FORGET, session_id, 0) for session_id in ids])

    def record_losses(self, losses: Mapping[str, Loss]) -> None:
        """Record missing messages. The sessions continue from their present ends."""
        self._write([_loss_line(session_id, loss) for session_id, loss in losses.items()])

    def accept_losses(self, ends: Mapping[str, int], now: datetime) -> None:
        """Drop the recorded losses and unreadable lines; every session continues from its end in the file."""
        lines = [_Line(_BEGIN, session_id, seq) for session_id, seq in ends.items()]
        self._write([_Line(_ACCEPT, "", round(now.timestamp())), *lines], is_after_damage=True)

    def flush(self) -> None:
        """Write pending acknowledgements."""
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending, self._timer = self._pending, {}, None
        sessions, self._new_sessions = self._new_sessions, {}
        lines = [
            _Line(_BEGIN, session_id, *max((seq, ""), pending.pop(session_id, (0, ""))))
            for session_id, seq in sessions.items()
        ]
        lines += [_Line(_NOTE, session_id, *position) for session_id, position in pending.items()]
        self._write(lines)

    def read(self) -> MarkState | None:
        """Return the content of the mark; None if there was none when the store was opened."""
        if self.path is None or self._is_new:
            return None
        try:
            return _parse(self.path.read_bytes())
        except OSError:
            return None

    def compact(self, *, force: bool = False) -> None:
        """Rewrite a long file with one line per session."""
        if self.path is None or fcntl is None:
            return
        try:
            if self.path.stat().st_size < (0 if force else _COMPACT_ABOVE_BYTES):
                return
            with self._open_file() as descriptor:
                state = _parse(self.path.read_bytes())
                compacted = self.path.with_name(f"{self.path.name}.part")
                compacted.write_bytes(b"".join(map(_encode, _lines_from(state))))
                compacted.chmod(os.fstat(descriptor).st_mode & 0o777)
                compacted.replace(self.path)
        except FileNotFoundError:
            return  # nothing was ever acknowledged here
        except OSError as error:
            _log.warning("the mark beside the database could not be shortened: %s", error)

    def _write(self, lines: list[_Line], *, is_after_damage: bool = False) -> None:
        if self.path is None or not lines:
            return
        try:
            with self._open_file() as descriptor:
                data = b"".join(map(_encode, lines))
                os.write(descriptor, b"\n" + data if is_after_damage else data)  # the last line may have no end
        except OSError as error:
            _log.warning("the mark beside the database could not be written: %s", error)

    @contextlib.contextmanager
    def _open_file(self) -> Iterator[int]:
        """Open the file to append, with an exclusive lock."""
        assert self.path is not None
        while True:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                        continue  # another process has rewritten it
                yield descriptor
                return
            finally:
                os.close(descriptor)


_encode_line: Final = msgspec.json.Encoder().encode


def _encode(line: _Line) -> bytes:
    payload = _encode_line(line)
    return b"%08x %s\n" % (zlib.crc32(payload), payload)


def _decode(line: bytes) -> _Line | None:
    checksum, _, payload = line.partition(b" ")
    try:
        if int(checksum, 16) == zlib.crc32(payload):
            return msgspec.json.decode(payload, type=_Line)
    except (ValueError, msgspec.DecodeError):
        pass
    return None


def _loss_line(session_id: str, loss: Loss) -> _Line:
    return _Line(_LOST, session_id, loss.acknowledged, loss.message_id, loss.end)


def _lines_from(state: MarkState) -> Iterator[_Line]:
    if state.since is not None:
        yield _Line(_START, "", round(state.since.timestamp()))
    if state.damaged_lines:
        yield _Line(_DAMAGED, "", state.damaged_lines)
    for session_id, loss in state.losses.items():
        yield _loss_line(session_id, loss)
    for session_id, seq in state.ends.items():
        yield _Line(_BEGIN, session_id, seq, state.message_ids.get(session_id, ""))


def _parse(data: bytes) -> MarkState:
    since: datetime | None = None
    acknowledged: dict[str, tuple[int, str]] = {}
    losses: dict[str, Loss] = {}
    damaged = 0
    for text in filter(None, data.split(b"\n")):
        line = _decode(text)
        if line is None:
            damaged += 1
            continue
        session_id, position = line.session_id, (line.number, line.message_id)
        match line.kind:
            case "start":
                since = datetime.fromtimestamp(line.number, UTC)
            case "begin":
                acknowledged[session_id] = position
            case "note" if session_id in acknowledged:
                acknowledged[session_id] = max(position, acknowledged[session_id])
            case "forget":
                acknowledged.pop(session_id, None)
                losses.pop(session_id, None)
            case "lost":
                acknowledged.pop(session_id, None)
                if line.end != _ABSENT:
                    acknowledged[session_id] = line.end, ""
                losses[session_id] = _add_loss(losses.get(session_id), Loss(*position, line.end))
            case "accept":
                since, damaged = since or datetime.fromtimestamp(line.number, UTC), 0
                losses.clear()
            case "damaged":
                damaged += line.number
    return MarkState(
        since,
        {session_id: seq for session_id, (seq, _) in acknowledged.items()},
        {session_id: message_id for session_id, (_, message_id) in acknowledged.items() if message_id},
        losses,
        damaged,
    )


def _add_loss(previous: Loss | None, loss: Loss) -> Loss:
    """Merge two losses of one session."""
    if previous is None:
        return loss
    last = max(previous, loss, key=lambda each: each.acknowledged)
    return Loss(last.acknowledged, last.message_id, min(previous.end, loss.end))


# --- comparison with a database ---------------------------------------------------------------------------------------


@operation
def session_ends() -> Steps[dict[str, int]]:
    """Return the last seq of every session."""
    return dict((yield "SELECT id, last_seq FROM sessions", ()))


@operation
def compare_ends(state: MarkState) -> Steps[dict[str, Loss]]:
    """Return losses: sessions that end too early, are missing, or have another message at the acknowledged seq."""
    ends = yield from session_ends()
    losses: dict[str, Loss] = {}
    for session_id, seq in state.ends.items():
        end = ends.get(session_id, _ABSENT)
        message_id = state.message_ids.get(session_id, "")
        if end >= seq and message_id and not (yield from _is_message_at(session_id, seq, message_id)):
            end = seq - 1
        if end < seq:
            losses[session_id] = Loss(seq, message_id, end)
    return losses


@operation
def find_losses(state: MarkState) -> Steps[dict[str, Loss]]:
    """Return present and recorded losses, except recorded ones whose last message is present again."""
    losses = yield from compare_ends(state)
    for session_id, loss in state.losses.items():
        message_id = loss.message_id
        if not message_id or not (yield from _is_message_at(session_id, loss.acknowledged, message_id, default=False)):
            losses[session_id] = _add_loss(losses.get(session_id), loss)
    return losses


def _is_message_at(session_id: str, seq: int, message_id: str, *, default: bool = True) -> Steps[bool]:
    """Return whether a message has its seq; ``default`` if no message has that seq."""
    rows = yield "SELECT id FROM messages WHERE session_id = ? AND seq = ?", (session_id, seq)
    return bool(rows[0][0] == message_id) if rows else default
