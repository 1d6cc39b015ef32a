"""What comes in: a file, or the standard input, as conversations of a known format.

Lines are read one at a time, and none is taken into memory that is longer than the limit. A byte order mark at the
beginning, empty lines and ``\\r\\n`` are taken as they are meant. The one rule: an error names the file and the line.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from dragoman import formats
from dragoman.errors import DragomanError, FormatError, InputError, JsonError
from dragoman.formats import CANONICAL, Detected, Piece
from dragoman.formats.registry import known
from dragoman.jsontext import OWN, read_json

MAX_LINE_MB: Final = 64
_SAMPLE_LINES: Final = 40
_SAMPLE_BYTES: Final = 2 * 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
_GZIP: Final = b"\x1f\x8b"
_ARCHIVE_HEADS: Final = (b'{"dragoman_session"', b'{"dragoman_store"')
_ARCHIVE_ENDS: Final = (b'{"messages"', b'{"sessions"')
_ARCHIVE_BESIDE: Final = (*_ARCHIVE_HEADS, *_ARCHIVE_ENDS, b'{"tool_ids"', b'{"entry"')

Conversation = tuple[Piece, ...]


class _Session(msgspec.Struct, gc=False):
    session_id: str


_session_of: Final = msgspec.json.Decoder(_Session).decode


class Source(msgspec.Struct):
    """Conversations of one file, to be taken once."""

    name: str
    format: str
    by_message: bool
    why: str  # how the format was found out; empty if it was given
    unit: str  # what a piece is: a line, or an item
    size: int | None  # in bytes as they are on the disk, where known
    conversations: Iterator[Conversation]
    read_bytes: Callable[[], int]  # how many of them have been read
    entries: int = 0  # trace entries of an archive, which are none of the messages
    is_export: bool = False  # whether it is such an archive
    document: bytes = b""  # the whole text, unless it is read line by line
    mark: bytes = b""  # the byte order mark before the document
    tail: Callable[[], bytes] = bytes  # the empty lines after the last one, when all are read

    def at(self, number: int) -> str:
        """Where a piece is."""
        return f"{self.name}, {self.unit} {number}"


@contextlib.contextmanager
def opened(
    path: Path, given: str | None = None, *, max_line_mb: int = MAX_LINE_MB, skips: bool = False
) -> Iterator[Source]:
    """A file, or the standard input for ``-``, ready to be read. Its format is found out unless it is given.

    ``skips``: lines that cannot be read are not looked at to find it out.
    """
    name = "standard input" if str(path) == "-" else str(path)
    with _bytes_of(path, name) as (stream, size, told):
        try:
            yield _source(_Lines(stream, name, max_line_mb), name, given, size, told, skips=skips)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"the compressed file is not whole ({error})", where=name) from None


@contextlib.contextmanager
def _bytes_of(path: Path, name: str) -> Iterator[tuple[IO[bytes], int | None, Callable[[], int]]]:
    if str(path) == "-":
        yield sys.stdin.buffer, None, lambda: 0
        return
    try:
        raw = path.open("rb")
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=name) from None
    with raw:
        try:
            size = path.stat().st_size
            is_packed = raw.read(2) == _GZIP
            raw.seek(0)
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", where=name) from None
        with gzip.open(raw) if is_packed else contextlib.nullcontext(raw) as stream:
            yield stream, size, raw.tell  # type: ignore[misc]


class _Lines:
    """Lines with their numbers, empty ones left out. What was looked at can be put back."""

    def __init__(self, stream: IO[bytes], name: str, max_line_mb: int) -> None:
        self.name = name
        self.limit = max_line_mb * 1024 * 1024
        self.limit_mb = max_line_mb
        self._stream = stream
        self._number = 0
        self._back: list[Piece] = []
        self.mark = b""  # the byte order mark, if there is one
        self.blank = b""  # empty lines since the last piece
        self._read = b""  # everything so far, until it is known whether it is a document
        self._is_document = True  # as long as it may be one

    def __iter__(self) -> Iterator[Piece]:
        while (piece := self.next()) is not None:
            yield piece

    def put_back(self, pieces: list[Piece]) -> None:
        self._back = pieces + self._back
        self._is_document, self._read = False, b""

    def next(self) -> Piece | None:
        if self._back:
            return self._back.pop(0)
        while line := self._stream.readline(self.limit + 1):
            self._number += 1
            if self._is_document:
                self._read += line
            data = (self._first(line) if self._number == 1 else line).strip()
            if len(line) > self.limit:
                raise _too_long(f"{self.name}, line {self._number}", "it is longer than", self.limit_mb)
            if data:
                start = line.index(data)
                before, self.blank = self.blank + line[:start], b""
                return Piece(self._number, data, before, line[start + len(data) :])
            self.blank += line
        return None

    def rest(self, begun: list[Piece]) -> bytes:
        """Everything, as one text."""
        parts = [self._read.removeprefix(self.mark)]
        length = len(parts[0])
        while length <= self.limit and (more := self._stream.read(min(1 << 20, self.limit + 1 - length))):
            parts.append(more)
            length += len(more)
        if length > self.limit:
            first = begun[0]
            try:
                read_json(first.data, OWN)
            except DragomanError as error:
                what = f"it is not JSON by itself ({error}), and all of the file as one document is longer than"
                raise _too_long(f"{self.name}, line {first.number}", what, self.limit_mb) from None
        return b"".join(parts)

    def _first(self, line: bytes) -> bytes:
        if line.startswith(_UTF16):
            raise JsonError("it is UTF-16, and not UTF-8", where=f"{self.name}, line 1", remedy="Save it as UTF-8")
        if line.startswith(_BYTE_ORDER_MARK):
            self.mark = _BYTE_ORDER_MARK
        return line.removeprefix(self.mark)


def _too_long(where: str, what: str, limit_mb: int) -> InputError:
    remedy = "Raise the limit with --max-line-mb if that is meant"
    return InputError(f"{what} {limit_mb} MB", where=where, remedy=remedy, code="too_large")


# --- what it is ------------------------------------------------------------------------------------------------------


def _source(
    lines: _Lines, name: str, given: str | None, size: int | None, told: Callable[[], int], *, skips: bool = False
) -> Source:
    given = None if given is None else known(given)
    sample = _sample(lines)
    if not sample:
        raise InputError("there is nothing in it", where=name)
    first = sample[0].data
    if first.startswith(_ARCHIVE_HEADS) and given in (None, CANONICAL):
        lines.put_back(sample)
        source = Source(name, CANONICAL, True, "it is what dragoman export wrote", "line", size, iter(()), told)
        source.conversations = _by_session(_unpacked(lines, source))
        source.is_export = True
        return source
    document = _document(lines, sample)
    if document is not None:
        source = _of_document(document, name, given, size, told)
        source.mark = lines.mark
        return source
    lines.put_back(sample)
    seen = [piece for piece in sample if _is_json(piece.data)] if skips else sample
    values = [_read(piece, name) for piece in ((seen or sample) if given is None else (seen or sample)[:1])]
    found = _found(values, given, name, sample[0])
    source = Source(name, found.format, found.by_message, found.why, "line", size, iter(()), told)
    source.conversations = _grouped(lines, found)
    source.tail = lambda: lines.blank
    return source


def _sample(lines: _Lines) -> list[Piece]:
    sample: list[Piece] = []
    length = 0
    while len(sample) < _SAMPLE_LINES and length < _SAMPLE_BYTES and (piece := lines.next()) is not None:
        sample.append(piece)
        length += len(piece.data)
        if len(sample) == 1 and not _is_json(piece.data):
            break
    return sample


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _document(lines: _Lines, sample: list[Piece]) -> bytes | None:
    """The whole text, if it is one JSON value and not lines of them."""
    first = sample[0].data.lstrip()
    if len(sample) == 1 and first.startswith(b"["):
        return lines.rest(sample)
    if len(sample) == 1 and first.startswith(b"{") and not _is_json(first):
        return lines.rest(sample)
    return None


def _of_document(data: bytes, name: str, given: str | None, size: int | None, told: Callable[[], int]) -> Source:
    value = _read(Piece(0, data), name, is_document=True)
    whole = Piece(1, data)
    if isinstance(value, list) and not value:
        raise InputError("there is nothing in it", where=name)
    items = [Piece(number, bytes(raw)) for number, raw in enumerate(_items(data))] if isinstance(value, list) else []
    found, is_many = _found_in_document(value, given, name)
    source = Source(name, found.format, found.by_message, found.why, "item", size, iter(()), told, document=data)
    if is_many or (found.format == CANONICAL and items):
        is_flat = found.format == CANONICAL and not isinstance(value[0], list)
        source.by_message = is_flat
        source.conversations = _by_session(iter(items)) if is_flat else ((item,) for item in items)
    elif found.by_message:
        source.conversations = iter([tuple(items) or (whole,)])
    else:
        source.unit, source.conversations = "document", iter([(whole,)])
    return source


def _items(data: bytes) -> list[msgspec.Raw]:
    return msgspec.json.decode(data, type=list[msgspec.Raw])


def _found_in_document(value: Any, given: str | None, name: str) -> tuple[Detected, bool]:
    """What a document is: a conversation, the messages of one, or a list of conversations."""
    if given is not None:
        is_many = isinstance(value, list) and (
            isinstance(value[0], list) or (isinstance(value[0], dict) and not formats.layout_of(given, value[0]))
        )
        return Detected(given, not is_many and formats.layout_of(given, value), ""), is_many
    try:
        return formats.detect([value]), False
    except InputError as error:
        if not isinstance(value, list) or not isinstance(value[0], dict | list):
            raise InputError(error.what, where=f"{name}, item 0", remedy=error.remedy, code=error.code) from None
        as_one = error  # why it is no single conversation
    try:
        found = _detected(value[:_SAMPLE_LINES])
    except InputError as error:
        told = as_one if error.code == as_one.code and isinstance(value[0], dict) else error
        raise InputError(told.what, where=name, remedy=told.remedy, code=told.code) from None
    return found, not found.by_message


def _found(values: list[Any], given: str | None, name: str, first: Piece) -> Detected:
    if given is not None:
        return Detected(given, formats.layout_of(given, values[0]), "")
    try:
        return _detected(values)
    except InputError as error:
        where = f"{name}, line {first.number}"
        raise InputError(error.what, where=where, remedy=error.remedy, code=error.code) from None


def _detected(values: list[Any]) -> Detected:
    try:
        return formats.detect(values)
    except InputError as error:
        if error.code != "unknown_format":
            raise
        return formats.detect(values[:1])  # then it is a later one that is wrong, and reading names it


def place_within(where: str, inner: str, *, is_line: bool) -> str:
    """Return a place within a file, or within a line of it, whose own number is then not named again."""
    if is_line and inner.startswith("line 1 "):
        return where + inner.removeprefix("line 1")
    return f"{where}, {inner}" if inner else where


def _read(piece: Piece, name: str, *, is_document: bool = False) -> Any:
    try:
        return read_json(piece.data, OWN)
    except DragomanError as error:
        where = name if is_document else f"{name}, line {piece.number}"
        where = place_within(where, error.where, is_line=not is_document)
        raise JsonError(error.what, where=where, remedy=error.remedy, code=error.code) from None


# --- conversations ---------------------------------------------------------------------------------------------------


def _grouped(lines: _Lines, found: Detected) -> Iterator[Conversation]:
    if not found.by_message:
        return ((piece,) for piece in lines)
    if found.format == CANONICAL:
        return _by_session(iter(lines))
    return iter([tuple(lines)])


def _by_session(pieces: Iterator[Piece]) -> Iterator[Conversation]:
    """Messages that stand together and are of one session. What names none is read, and refused, by itself."""
    for _, group in itertools.groupby(pieces, _session_id):
        yield tuple(group)


def _session_id(piece: Piece) -> str:
    try:
        return _session_of(piece.data).session_id
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ""


def _unpacked(lines: _Lines, source: Source) -> Iterator[Piece]:
    """The messages of an export, if it is whole: each session's hash is that of what stands before it."""
    said = hashlib.sha256()
    last = Piece(0, b"")
    for piece in lines:
        data = piece.data + b"\n"
        if data.startswith(_ARCHIVE_HEADS[0]):
            said = hashlib.sha256()
        if data.startswith(_ARCHIVE_ENDS[0]) and f'"{said.hexdigest()}"'.encode() not in data:
            what = "it was cut or changed: the hash of what stands before is another one"
            raise FormatError(what, where=source.at(piece.number), code="cut_export")
        said.update(data)
        source.entries += data.startswith(b'{"entry"')
        last = piece
        if not data.startswith(_ARCHIVE_BESIDE):
            yield piece
    if not last.data.startswith(_ARCHIVE_ENDS):
        raise FormatError("it was cut: its end is missing", where=source.at(last.number), code="cut_export")
