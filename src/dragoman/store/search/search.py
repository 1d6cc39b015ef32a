"""Search messages by words.

    search(query, filters) -> hits            includes every message that was stored before the call
    schedule()                                index new messages soon
    reindex()                                 rebuild the index

The index is filled in the background shortly after messages are appended, in small transactions with pauses, which
limits the delay of writes. Several processes may index at once. If a process ends before it is done, the next process
that opens the store or searches continues.

The index is committed without a sync: entries that a power cut removes are indexed again. Invariant: a search first
indexes the messages that are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import CorruptDataError, DragomanError, InputError
from dragoman.message import (
    ContentBlock,
    DocumentBlock,
    InvalidToolUseBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.store.message_reader import MessageRow
from dragoman.store.message_rows import BlobSlice, message_from, message_hash
from dragoman.store.operation import from_micros, operation, volatile
from dragoman.store.search import index
from dragoman.store.search.backends import IndexEntry
from dragoman.store.search.index import IndexBatch, Match, PendingMessages, SearchFilters
from dragoman.store.search.tokenizer import Analysis, Term, analyze, excerpt, terms_from
from dragoman.store.sessions import lineage
from dragoman.store.types import Hit

if TYPE_CHECKING:
    from dragoman.store.store import Store

_QUIET_S: Final = 0.3  # pause after the last write before indexing
_MAX_DELAY_S: Final = 3.0  # maximum delay of indexing while there are writes
_PAUSE_FACTOR: Final = 2  # pause between transactions, as a multiple of the duration of the last one
_BUSY_PAUSE_FACTOR: Final = 20  # the same while there are writes
_SESSIONS_PER_PASS: Final = 50
_NO_LIMIT: Final = 2**31
_BACKGROUND_BATCH: Final = (50, 20_000)  # messages per read, characters per transaction
_FOREGROUND_BATCH: Final = (200, 200_000)  # the same while a search waits
_EMPTY: Final = Analysis([], [])


# --- texts of a message ----------------------------------------------------------------------------------------------


def searchable_text(message: Message) -> str:
    """Return the searchable text of a message: texts, calls with inputs, results, names of documents."""
    return "\n".join(_block_texts(message.content))


def _block_texts(blocks: Sequence[ContentBlock]) -> Iterator[str]:
    for block in blocks:
        match block:
            case TextBlock():
                yield block.text
            case ToolUseBlock():
                yield f"{block.name} {_flatten(block.input)}"
            case InvalidToolUseBlock():
                yield f"{block.name} {block.input_text}"
            case ToolResultBlock():
                yield from _block_texts(block.content)
            case DocumentBlock(name=str(name)):
                yield name


def _flatten(data: Any) -> str:
    match data:
        case dict():
            return ", ".join(f"{name}: {_flatten(value)}" for name, value in data.items())
        case list():
            return ", ".join(map(_flatten, data))
        case None:
            return ""
        case _:
            return str(data)


# --- searching -------------------------------------------------------------------------------------------------------


class SearchIndex:
    """The search index of one open store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._last_write = 0.0
        self._is_stopped = True
        self._is_checked = False

    async def search(self, query: str, filters: SearchFilters, limit: int, offset: int) -> list[Hit]:
        """Return the messages that match a query, the best first."""
        terms = terms_from(query)
        if not terms or limit < 1:
            return []
        await self.catch_up(filters.session_id)
        matches = await self._store._read(index.find_matches(self._store.engine, terms, filters, limit, offset))
        rows = await self._rows(matches)
        candidates = [
            (match, row, await self._read_blobs(row)) for match, row in zip(matches, rows, strict=True) if row
        ]
        return await asyncio.to_thread(_to_hits, candidates, terms)

    async def _rows(self, matches: Sequence[Match]) -> list[MessageRow | None]:
        """Return the row of each match; None if it cannot be read."""
        try:
            rows = await self._store._read(index.read_matches(matches))
        except CorruptDataError:
            rows = []
            for match in matches:
                with contextlib.suppress(CorruptDataError):
                    rows.extend(await self._store._read(index.read_matches([match])))
        by_place = {(row.session_id, row.seq): row for row in rows}
        return [by_place.get((match.session_id, match.seq)) for match in matches]

    async def reindex(self) -> None:
        """Rebuild the index."""
        await self._store._write_index(index.clear_index(self._store.engine))
        await self.catch_up()

    # --- filling -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start indexing in the background."""
        self._is_stopped = False
        self.schedule()

    def schedule(self) -> None:
        """Index new messages soon, unless the store is being closed."""
        if self._is_stopped:
            return
        self._last_write = monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop indexing; the next process continues."""
        self._is_stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        """Index after a pause in the writes, until there are no new ones."""
        started = -1.0
        while self._last_write > started:
            deadline = monotonic() + _MAX_DELAY_S
            while (pause := min(self._last_write + _QUIET_S, deadline) - monotonic()) > 0:
                await asyncio.sleep(
                    pause + random.uniform(0, _QUIET_S / 3)
                )  # so that processes do not wake at the same time
            started = monotonic()
            try:
                await self._fill()
            except DragomanError:
                return  # writes and searches report a failing disk

    async def _fill(self) -> None:
        """Index missing messages with pauses, unless another process does."""
        await self._repair_overrun()
        while targets := await self._store._read(index.find_behind(None, _SESSIONS_PER_PASS)):
            started = monotonic()
            while pending := await self._read_pending(targets, _BACKGROUND_BATCH[0]):
                for batch in await self._make_batches(pending, _BACKGROUND_BATCH[1]):
                    if not await self._put(batch):
                        return
                    is_quiet = monotonic() - self._last_write > _QUIET_S
                    await asyncio.sleep((monotonic() - started) * (_PAUSE_FACTOR if is_quiet else _BUSY_PAUSE_FACTOR))
                    started = monotonic()

    async def catch_up(self, session_id: str | None = None) -> None:
        """Index everything that is missing, or what one history lacks."""
        await self._repair_overrun()
        session_ids = None if session_id is None else await self._store._read(_lineage_ids(session_id))
        missing = await self._store._read(index.find_behind(session_ids, _NO_LIMIT))
        for first in range(0, len(missing), _SESSIONS_PER_PASS):
            targets = missing[first : first + _SESSIONS_PER_PASS]
            while pending := await self._read_pending(targets, _FOREGROUND_BATCH[0]):
                for batch in await self._make_batches(pending, _FOREGROUND_BATCH[1]):
                    await self._put(batch)

    async def _put(self, batch: Sequence[IndexBatch]) -> bool:
        self._store.listed.clear()
        return await self._store._write_index(volatile(index.put_batches(self._store.engine, batch)))

    async def _repair_overrun(self) -> None:
        """Reindex sessions with an ``indexed_seq`` beyond their end; checked once after the store is opened."""
        if self._is_checked:
            return
        if sessions := await self._store._read(index.find_overrun()):
            await self._store._write_index(index.reset_sessions(self._store.engine, sessions))
        self._is_checked = True

    async def _read_pending(self, targets: Sequence[tuple[str, int]], limit: int) -> list[PendingMessages]:
        """Read messages to index, skipping unreadable ones."""
        try:
            return await self._store._read(index.read_pending(targets, limit))
        except CorruptDataError:
            for target in targets:
                try:
                    pending = await self._store._read(index.read_pending([target], 1))
                except CorruptDataError:
                    pending = await self._store._read(index.read_unreadable(target[0]))
                if pending:
                    return pending
        return []

    async def _make_batches(self, pending: Sequence[PendingMessages], characters: int) -> list[list[IndexBatch]]:
        """Return the batches of small transactions."""
        blobs = {id(row): await self._read_blobs(row) for messages in pending for row in messages.rows}
        return await asyncio.to_thread(_split_batches, pending, blobs, characters)

    async def _read_blobs(self, row: MessageRow) -> dict[str, bytes] | None:
        """Return the large texts of a row by hash, empty for images; None if the row or a text is damaged."""
        blobs: dict[str, bytes] = {}
        content, blobs_json = row.columns.content_json, row.columns.blobs_json
        if blobs_json is not None:
            if message_hash(row.session_id, row.seq, row.columns) != row.hash:
                return None
            try:
                for blob in msgspec.json.decode(blobs_json, type=list[BlobSlice]):
                    is_image = blob.form == "base64" and content[: blob.offset].endswith('"data":')
                    blobs[blob.sha256] = b"" if is_image else await self._store.blobs.get(blob.sha256)
            except CorruptDataError:
                return None
        return blobs


@operation
def _lineage_ids(session_id: str) -> Any:
    return [stretch.session_id for stretch in (yield from lineage(session_id))]


def _text_from(row: MessageRow, blobs: Mapping[str, bytes] | None) -> str | None:
    """Return the text of a row; None if it is damaged or of a newer version."""
    if blobs is None:
        return None
    try:
        return searchable_text(message_from(row.session_id, row.seq, row.columns, row.hash, blobs))
    except (CorruptDataError, InputError):
        return None


def _split_batches(
    pending: Sequence[PendingMessages], blobs: Mapping[int, Mapping[str, bytes] | None], characters: int
) -> list[list[IndexBatch]]:
    batches: list[list[IndexBatch]] = [[]]
    remaining = characters
    for item in pending:
        after_seq, entries = item.after_seq, [IndexEntry(seq, hash_, _EMPTY) for seq, hash_ in item.unreadable]
        for row in item.rows:
            text = _text_from(row, blobs[id(row)])
            entries.append(IndexEntry(row.seq, row.hash, analyze(text) if text is not None else _EMPTY))
            remaining -= len(text or "") + 200
            if remaining < 0:
                batches[-1].append(IndexBatch(item.session_id, after_seq, row.seq, entries))
                batches.append([])
                after_seq, entries, remaining = row.seq, [], characters
        if entries or after_seq < item.last_seq:
            batches[-1].append(IndexBatch(item.session_id, after_seq, item.last_seq, entries))
    return [pieces for pieces in batches if pieces]


def _to_hits(
    candidates: Sequence[tuple[Match, MessageRow, Mapping[str, bytes] | None]], terms: list[Term]
) -> list[Hit]:
    """Return the hits of intact matches."""
    hits = []
    for match, row, blobs in candidates:
        text = _text_from(row, blobs)
        if text is not None:
            snippet = excerpt(text, terms)
            hits.append(
                Hit(
                    session_id=match.shown_in,
                    seq=row.seq,
                    message_id=row.columns.id,
                    role=row.columns.role,
                    score=match.score,
                    snippet=snippet.text,
                    highlights=snippet.highlights,
                    created_at=from_micros(row.columns.created_at),
                )
            )
    return hits
