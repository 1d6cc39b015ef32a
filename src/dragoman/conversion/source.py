"""Read a file or standard input as conversations of a known format.

Lines are read one at a time, and a line longer than the limit is never loaded. A byte order mark, empty lines and
``\\r\\n`` are accepted. Errors contain the file and the line.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from dragoman import formats
from dragoman.errors import DragomanError, FormatError, InputError, JsonError
from dragoman.formats import CANONICAL, Detection, Fragment
from dragoman.formats.agent_logs import find_agent, read_log
from dragoman.formats.registry import resolve_name
from dragoman.jsontext import DECODE_ERRORS, OWN, read_json

MAX_LINE_MB: Final = 64
_SAMPLE_LINES: Final = 40
_SAMPLE_BYTES: Final = 2 * 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
_GZIP: Final = b"\x1f\x8b"
_ARCHIVE_HEADS: Final = (b'{"dragoman_session"', b'{"dragoman_store"')
_ARCHIVE_ENDS: Final = (b'{"messages"', b'{"sessions"')
_ARCHIVE_RECORDS: Final = (*_ARCHIVE_HEADS, *_ARCHIVE_ENDS, b'{"tool_ids"', b'{"entry"')

Conversation = tuple[Fragment, ...]


class _Session(msgspec.Struct, gc=False):
    session_id: str


_decode_session: Final = msgspec.json.Decoder(_Session).decode


class Source(msgspec.Struct):
    """The conversations of one file; they can be iterated once."""

    name: str
    format: str
    by_message: bool
    why: str  # the reason of the detection; empty if the format was given
    unit: str  # line, item or document
    size: int | None  # in bytes on disk, if known
    conversations: Iterator[Conversation]
    read_bytes: Callable[[], int]  # bytes that have been read
    entries: int = 0  # trace entries of an export, which are not converted
    is_export: bool = False  # whether it is an export of a store
    agent: str = ""  # the coding agent whose session file it is; only its conversation is read
    document: bytes = b""  # the whole text, unless it is read line by line
    mark: bytes = b""  # the byte order mark before the document
    tail: Callable[[], bytes] = bytes  # the empty lines after the last line

    def locate(self, number: int) -> str:
        """Return the place of a fragment."""
        return f"{self.name}, {self.unit} {number}"


@contextlib.contextmanager
def open_source(
    path: Path, format_name: str | None = None, *, max_line_mb: int = MAX_LINE_MB, skip_invalid: bool = False
) -> Iterator[Source]:
    """Open a file, or standard input for ``-``. Its format is detected unless ``format_name`` is given.

    ``skip_invalid``: invalid lines are ignored for detection.
    """
    name = "standard input" if str(path) == "-" else str(path)
    with _open_bytes(path, name) as (stream, size, read_bytes):
        try:
            yield _make_source(
                _LineReader(stream, name, max_line_mb), name, format_name, size, read_bytes, skip_invalid=skip_invalid
            )
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"the compressed file is incomplete ({error})", where=name) from None


@contextlib.contextmanager
def _open_bytes(path: Path, name: str) -> Iterator[tuple[IO[bytes], int | None, Callable[[], int]]]:
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
            is_compressed = raw.read(2) == _GZIP
            raw.seek(0)
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", where=name) from None
        with gzip.open(raw) if is_compressed else contextlib.nullcontext(raw) as stream:
            yield stream, size, raw.tell  # type: ignore[misc]


class _LineReader:
    """Numbered lines without empty ones. Lines that were read for detection can be returned."""

    def __init__(self, stream: IO[bytes], name: str, max_line_mb: int) -> None:
        self.name = name
        self.limit = max_line_mb * 1024 * 1024
        self.limit_mb = max_line_mb
        self._stream = stream
        self._number = 0
        self._returned: list[Fragment] = []
        self.mark = b""  # the byte order mark, if any
        self.empty_lines = b""  # empty lines since the last fragment
        self._buffer = b""  # everything so far, while it may be a document
        self._may_be_document = True  # whether it may be one document

    def __iter__(self) -> Iterator[Fragment]:
        while (fragment := self.next()) is not None:
            yield fragment

    def put_back(self, fragments: list[Fragment]) -> None:
        self._returned = fragments + self._returned
        self._may_be_document, self._buffer = False, b""

    def next(self) -> Fragment | None:
        if self._returned:
            return self._returned.pop(0)
        while line := self._stream.readline(self.limit + 1):
            self._number += 1
            if self._may_be_document:
                self._buffer += line
            data = (self._strip_mark(line) if self._number == 1 else line).strip()
            if len(line) > self.limit:
                raise _too_long_error(f"{self.name}, line {self._number}", "longer than", self.limit_mb)
            if data:
                start = line.index(data)
                before, self.empty_lines = self.empty_lines + line[:start], b""
                return Fragment(self._number, data, before, line[start + len(data) :])
            self.empty_lines += line
        return None

    def read_rest(self, fragments: list[Fragment]) -> bytes:
        """Return the whole text."""
        parts = [self._buffer.removeprefix(self.mark)]
        length = len(parts[0])
        while length <= self.limit and (chunk := self._stream.read(min(1 << 20, self.limit + 1 - length))):
            parts.append(chunk)
            length += len(chunk)
        if length > self.limit:
            first = fragments[0]
            try:
                read_json(first.data, OWN)
            except DragomanError as error:
                problem = f"not JSON ({error}), and the file as one document is longer than"
                raise _too_long_error(f"{self.name}, line {first.number}", problem, self.limit_mb) from None
        return b"".join(parts)

    def _strip_mark(self, line: bytes) -> bytes:
        if line.startswith(_UTF16):
            raise JsonError("UTF-16 instead of UTF-8", where=f"{self.name}, line 1", remedy="Save it as UTF-8")
        if line.startswith(_BYTE_ORDER_MARK):
            self.mark = _BYTE_ORDER_MARK
        return line.removeprefix(self.mark)


def _too_long_error(where: str, problem: str, limit_mb: int) -> InputError:
    remedy = "Raise the limit with --max-line-mb"
    return InputError(f"{problem} {limit_mb} MB", where=where, remedy=remedy, code="too_large")


# --- detection -------------------------------------------------------------------------------------------------------


def _make_source(
    lines: _LineReader,
    name: str,
    format_name: str | None,
    size: int | None,
    read_bytes: Callable[[], int],
    *,
    skip_invalid: bool = False,
) -> Source:
    format_name = None if format_name is None else resolve_name(format_name)
    sample = _read_sample(lines)
    if not sample:
        raise InputError("the file is empty", where=name)
    first = sample[0].data
    if first.startswith(_ARCHIVE_HEADS) and format_name in (None, CANONICAL):
        lines.put_back(sample)
        source = Source(name, CANONICAL, True, "a file of dragoman export", "line", size, iter(()), read_bytes)
        source.conversations = _group_by_session(_read_archive(lines, source))
        source.is_export = True
        return source
    document = _read_document(lines, sample)
    if document is not None:
        source = _source_from_document(document, name, format_name, size, read_bytes)
        source.mark = lines.mark
        return source
    lines.put_back(sample)
    valid = [fragment for fragment in sample if _is_json(fragment.data)] if skip_invalid else sample
    values = [
        _parse_fragment(fragment, name)
        for fragment in ((valid or sample) if format_name is None else (valid or sample)[:1])
    ]
    agent = find_agent(values) if format_name is None else None
    if agent is not None:
        lines_of_log = (fragment for fragment in lines if not skip_invalid or _is_json(fragment.data))
        log = [_parse_fragment(fragment, name) for fragment in lines_of_log]
        return _source_from_log(agent, log, name, size, read_bytes)
    detection = _detect_lines(values, format_name, name, sample[0])
    source = Source(name, detection.format, detection.by_message, detection.why, "line", size, iter(()), read_bytes)
    source.conversations = _group_lines(lines, detection)
    source.tail = lambda: lines.empty_lines
    return source


def _read_sample(lines: _LineReader) -> list[Fragment]:
    sample: list[Fragment] = []
    length = 0
    while len(sample) < _SAMPLE_LINES and length < _SAMPLE_BYTES and (fragment := lines.next()) is not None:
        sample.append(fragment)
        length += len(fragment.data)
        if len(sample) == 1 and not _is_json(fragment.data):
            break
    return sample


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except DECODE_ERRORS:
        return False
    return True


def _read_document(lines: _LineReader, sample: list[Fragment]) -> bytes | None:
    """Return the whole text if it is one JSON value instead of lines."""
    first = sample[0].data.lstrip()
    if len(sample) == 1 and first.startswith(b"["):
        return lines.read_rest(sample)
    if len(sample) == 1 and first.startswith(b"{") and not _is_json(first):
        return lines.read_rest(sample)
    return None


def _source_from_document(
    data: bytes, name: str, format_name: str | None, size: int | None, read_bytes: Callable[[], int]
) -> Source:
    value = _parse_fragment(Fragment(0, data), name, is_document=True)
    whole = Fragment(1, data)
    if isinstance(value, list) and not value:
        raise InputError("the file is empty", where=name)
    if format_name is None and (agent := find_agent([value])):
        return _source_from_log(agent, [value], name, size, read_bytes)
    items = (
        [Fragment(number, bytes(raw)) for number, raw in enumerate(_split_items(data))]
        if isinstance(value, list)
        else []
    )
    detection, has_many = _detect_document(value, format_name, name)
    source = Source(
        name, detection.format, detection.by_message, detection.why, "item", size, iter(()), read_bytes, document=data
    )
    if has_many or (detection.format == CANONICAL and items):
        is_flat = detection.format == CANONICAL and not isinstance(value[0], list)
        source.by_message = is_flat
        source.conversations = _group_by_session(iter(items)) if is_flat else ((item,) for item in items)
    elif detection.by_message:
        source.conversations = iter([tuple(items) or (whole,)])
    else:
        source.unit, source.conversations = "document", iter([(whole,)])
    return source


def _source_from_log(
    agent: str, values: list[Any], name: str, size: int | None, read_bytes: Callable[[], int]
) -> Source:
    """Return the conversation of a coding agent's session file as one document of another format."""
    try:
        log = read_log(agent, values)
    except FormatError as error:
        raise InputError(error.what, where=name, code=error.code) from None
    data = json.dumps(log.value, ensure_ascii=False).encode()
    conversations = iter([(Fragment(1, data),)])
    why = f"a session of {agent}"
    return Source(name, log.format, False, why, "document", size, conversations, read_bytes, document=data, agent=agent)


def _split_items(data: bytes) -> list[msgspec.Raw]:
    return msgspec.json.decode(data, type=list[msgspec.Raw])


def _detect_document(value: Any, format_name: str | None, name: str) -> tuple[Detection, bool]:
    """Return the format of a document, and whether it is a list of conversations."""
    if format_name is not None:
        has_many = isinstance(value, list) and (
            isinstance(value[0], list)
            or (isinstance(value[0], dict) and not formats.is_single_message(format_name, value[0]))
        )
        return Detection(format_name, not has_many and formats.is_single_message(format_name, value), ""), has_many
    try:
        return formats.detect([value]), False
    except InputError as error:
        if not isinstance(value, list) or not isinstance(value[0], dict | list):
            raise InputError(error.what, where=f"{name}, item 0", remedy=error.remedy, code=error.code) from None
        single_error = error  # why it is not a single conversation
    try:
        detection = _detect_values(value[:_SAMPLE_LINES])
    except InputError as error:
        reported = single_error if error.code == single_error.code and isinstance(value[0], dict) else error
        raise InputError(reported.what, where=name, remedy=reported.remedy, code=reported.code) from None
    return detection, not detection.by_message


def _detect_lines(values: list[Any], format_name: str | None, name: str, first: Fragment) -> Detection:
    if format_name is not None:
        return Detection(format_name, formats.is_single_message(format_name, values[0]), "")
    try:
        return _detect_values(values)
    except InputError as error:
        where = f"{name}, line {first.number}"
        raise InputError(error.what, where=where, remedy=error.remedy, code=error.code) from None


def _detect_values(values: list[Any]) -> Detection:
    try:
        return formats.detect(values)
    except InputError as error:
        if error.code != "unknown_format":
            raise
        return formats.detect(values[:1])  # a later value is invalid; reading reports it


def join_place(where: str, inner: str, *, is_line: bool) -> str:
    """Return a place within a file, or within a line of it, whose own number is then omitted."""
    if is_line and inner.startswith("line 1 "):
        return where + inner.removeprefix("line 1")
    return f"{where}, {inner}" if inner else where


def _parse_fragment(fragment: Fragment, name: str, *, is_document: bool = False) -> Any:
    try:
        return read_json(fragment.data, OWN)
    except DragomanError as error:
        where = name if is_document else f"{name}, line {fragment.number}"
        where = join_place(where, error.where, is_line=not is_document)
        raise JsonError(error.what, where=where, remedy=error.remedy, code=error.code) from None


# --- conversations ---------------------------------------------------------------------------------------------------


def _group_lines(lines: _LineReader, detection: Detection) -> Iterator[Conversation]:
    if not detection.by_message:
        return ((fragment,) for fragment in lines)
    if detection.format == CANONICAL:
        return _group_by_session(iter(lines))
    return iter([tuple(lines)])


def _group_by_session(fragments: Iterator[Fragment]) -> Iterator[Conversation]:
    """Yield consecutive messages of one session. A message without a session is read, and rejected, alone."""
    for _, group in itertools.groupby(fragments, _get_session_id):
        yield tuple(group)


def _get_session_id(fragment: Fragment) -> str:
    try:
        return _decode_session(fragment.data).session_id
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ""


def _read_archive(lines: _LineReader, source: Source) -> Iterator[Fragment]:
    """Yield the messages of an export and verify it: each session ends with the hash of its lines."""
    digest = hashlib.sha256()
    last = Fragment(0, b"")
    for fragment in lines:
        data = fragment.data + b"\n"
        if data.startswith(_ARCHIVE_HEADS[0]):
            digest = hashlib.sha256()
        if data.startswith(_ARCHIVE_ENDS[0]) and f'"{digest.hexdigest()}"'.encode() not in data:
            problem = "truncated or changed: the hash of a session does not match"
            raise FormatError(problem, where=source.locate(fragment.number), code="cut_export")
        digest.update(data)
        source.entries += data.startswith(b'{"entry"')
        last = fragment
        if not data.startswith(_ARCHIVE_RECORDS):
            yield fragment
    if not last.data.startswith(_ARCHIVE_ENDS):
        raise FormatError("truncated: its end is missing", where=source.locate(last.number), code="cut_export")
