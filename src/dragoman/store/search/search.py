"""Search messages by words.

    search(query, filters) -> hits            includes every message that was stored before the call
    schedule()                                index new messages soon
    reindex()                                 build the index anew

The index is filled in the background, shortly after messages were appended, in small transactions with pauses, so that
writers hardly notice. Several processes may do this at once. If a process ends before it is done, the next one that
opens the store or searches continues.

Invariant: a search indexes what is missing first.
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
from dragoman.store.operation import from_micros, operation
from dragoman.store.search import index
from dragoman.store.search.backends import IndexEntry
from dragoman.store.search.index import IndexBatch, Match, PendingMessages, SearchFilters
from dragoman.store.search.tokenizer import Analysis, Term, analyze, excerpt, terms_from
from dragoman.store.sessions import lineage
from dragoman.store.types import Hit

if TYPE_CHECKING:
    from dragoman.store.store import Store

_QUIET_S: Final = 0.3  # how long nothing was stored before the index follows,
_MAX_DELAY_S: Final = 3.0  # but it waits no longer than this
_PAUSE_FACTOR: Final = 2  # pauses between transactions, as a multiple of the time that the last one took,
_BUSY_PAUSE_FACTOR: Final = 20  # and while somebody is storing
_SESSIONS_PER_PASS: Final = 50
_NO_LIMIT: Final = 2**31
_BACKGROUND_BATCH: Final = (50, 20_000)  # messages that are read, and characters that are put in one transaction,
_FOREGROUND_BATCH: Final = (200, 200_000)  # and the same when somebody waits for it
_EMPTY: Final = Analysis([], [])


# --- what is searched ------------------------------------------------------------------------------------------------


def searchable_text(message: Message) -> str:
    """What is said in a message, as one text: words, calls and their inputs, results, names of documents."""
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
    """The index of one open store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._last_write = 0.0
        self._is_stopped = True
        self._is_checked = False

    async def search(self, query: str, filters: SearchFilters, limit: int, offset: int) -> list[Hit]:
        """Messages in which everything is that a query asks for, the best first."""
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
        """The row of each match; none where there is no way to read it."""
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
        """Build the index anew."""
        await self._store._write_index(index.clear_index(self._store.engine))
        await self.catch_up()

    # --- filling -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Fill what whoever came before has left, and from now on whatever is stored."""
        self._is_stopped = False
        self.schedule()

    def schedule(self) -> None:
        """Fill the index before long, unless the store is being closed."""
        if self._is_stopped:
            return
        self._last_write = monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Leave the rest to whoever comes next."""
        self._is_stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        """Fill the index when nothing has been stored for a while, until nothing is stored meanwhile."""
        started = -1.0
        while self._last_write > started:
            deadline = monotonic() + _MAX_DELAY_S
            while (pause := min(self._last_write + _QUIET_S, deadline) - monotonic()) > 0:
                await asyncio.sleep(pause + random.uniform(0, _QUIET_S / 3))  # several processes need not wake at once
            started = monotonic()
            try:
                await self._fill()
            except DragomanError:
                return  # whoever stores or searches hears of a disk that fails

    async def _fill(self) -> None:
        """Fill what is missing with pauses, unless somebody else is at it."""
        await self._repair_overrun()
        while targets := await self._store._read(index.find_behind(None, _SESSIONS_PER_PASS)):
            started = monotonic()
            while pending := await self._read_pending(targets, _BACKGROUND_BATCH[0]):
                for batch in await self._make_batches(pending, _BACKGROUND_BATCH[1]):
                    if not await self._store._write_index(index.put_batches(self._store.engine, batch)):
                        return
                    is_quiet = monotonic() - self._last_write > _QUIET_S
                    await asyncio.sleep((monotonic() - started) * (_PAUSE_FACTOR if is_quiet else _BUSY_PAUSE_FACTOR))
                    started = monotonic()

    async def catch_up(self, session_id: str | None = None) -> None:
        """Fill what is missing now: of everything, or of one history."""
        await self._repair_overrun()
        session_ids = None if session_id is None else await self._store._read(_lineage_ids(session_id))
        missing = await self._store._read(index.find_behind(session_ids, _NO_LIMIT))
        for first in range(0, len(missing), _SESSIONS_PER_PASS):
            targets = missing[first : first + _SESSIONS_PER_PASS]
            while pending := await self._read_pending(targets, _FOREGROUND_BATCH[0]):
                for batch in await self._make_batches(pending, _FOREGROUND_BATCH[1]):
                    await self._store._write_index(index.put_batches(self._store.engine, batch))

    async def _repair_overrun(self) -> None:
        """Index sessions anew that are noted as indexed beyond their end; looked for once after the store is opened."""
        if self._is_checked:
            return
        if sessions := await self._store._read(index.find_overrun()):
            await self._store._write_index(index.reset_sessions(self._store.engine, sessions))
        self._is_checked = True

    async def _read_pending(self, targets: Sequence[tuple[str, int]], limit: int) -> list[PendingMessages]:
        """Messages for the index; what there is no way to read is passed over, one at a time."""
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
        """What is to be put, in transactions that are not too large."""
        blobs = {id(row): await self._read_blobs(row) for one in pending for row in one.rows}
        return await asyncio.to_thread(_split_batches, pending, blobs, characters)

    async def _read_blobs(self, row: MessageRow) -> dict[str, bytes] | None:
        """The large texts of a row, by their hashes, and nothing for its pictures; none if they are not to be had."""
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
    """What is said in a row; nothing if it is damaged, or of a version that we cannot read."""
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
    """What is shown of each match; nothing of what is damaged by now."""
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
