"""Searching: everything that was said, found by its words.

    search(query, filters) -> hits            never stale: what was stored before the call is found
    soon()                                    somebody stored something; the index follows before long
    reindex()                                 the index, built anew

The index is filled off the path of writing: a while after messages were added, in transactions of its own, each of them
small, with pauses between them, so that writers hardly notice. Several processes may do this at once. Where a process
ends before it is done, the next one that opens the store or searches goes on.

The one rule: a search fills what is missing first.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import DamagedError, DragomanError, InputError
from dragoman.message import (
    ContentBlock,
    DocumentBlock,
    InvalidToolUseBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.store import indexes
from dragoman.store.indexes import Entry, Filters, Match, Pending, Piece
from dragoman.store.lineage import lineage
from dragoman.store.operation import operation
from dragoman.store.reading import Found
from dragoman.store.rows import Large, hash_of, message_from, time_from
from dragoman.store.values import Hit
from dragoman.store.words import Analysis, Term, analysed, excerpt, terms_from

if TYPE_CHECKING:
    from dragoman.store.store import Store

_QUIET_S: Final = 0.3  # how long nothing was stored before the index follows,
_PATIENCE_S: Final = 3.0  # but it waits no longer than this
_REST: Final = 2  # pauses between transactions, as a multiple of the time that the last one took,
_LONG_REST: Final = 20  # and while somebody is storing
_SESSIONS_AT_ONCE: Final = 50
_ALL: Final = 2**31
_GENTLY: Final = (50, 20_000)  # messages that are read, and characters that are put in one transaction,
_AT_ONCE: Final = (200, 200_000)  # and the same when somebody waits for it
_NOTHING: Final = Analysis([], [])


# --- what is searched ------------------------------------------------------------------------------------------------


def text_of(message: Message) -> str:
    """What is said in a message, as one text: words, calls and their inputs, results, names of documents."""
    return "\n".join(_said(message.content))


def _said(blocks: Sequence[ContentBlock]) -> Iterator[str]:
    for block in blocks:
        match block:
            case TextBlock():
                yield block.text
            case ToolUseBlock():
                yield f"{block.name} {_flat(block.input)}"
            case InvalidToolUseBlock():
                yield f"{block.name} {block.input_text}"
            case ToolResultBlock():
                yield from _said(block.content)
            case DocumentBlock(name=str(name)):
                yield name


def _flat(given: Any) -> str:
    match given:
        case dict():
            return ", ".join(f"{name}: {_flat(value)}" for name, value in given.items())
        case list():
            return ", ".join(map(_flat, given))
        case None:
            return ""
        case _:
            return str(given)


# --- searching -------------------------------------------------------------------------------------------------------


class Searching:
    """The index of one open store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._stored_at = 0.0
        self._is_stopped = True
        self._is_checked = False

    async def search(self, query: str, filters: Filters, limit: int, offset: int) -> list[Hit]:
        """Messages in which everything is that a query asks for, the best first."""
        terms = terms_from(query)
        if not terms or limit < 1:
            return []
        await self.catch_up(filters.session_id)
        matches = await self._store._read(indexes.find(self._store.engine, terms, filters, limit, offset))
        rows = await self._rows(matches)
        given = [(match, row, await self._large(row)) for match, row in zip(matches, rows, strict=True) if row]
        return await asyncio.to_thread(_hits, given, terms)

    async def _rows(self, matches: Sequence[Match]) -> list[Found | None]:
        """The row of each match; none where there is no way to read it."""
        try:
            found = await self._store._read(indexes.rows_of(matches))
        except DamagedError:
            found = []
            for match in matches:
                with contextlib.suppress(DamagedError):
                    found.extend(await self._store._read(indexes.rows_of([match])))
        by_place = {(row.session_id, row.seq): row for row in found}
        return [by_place.get((match.session_id, match.seq)) for match in matches]

    async def reindex(self) -> None:
        """Build the index anew."""
        await self._store._write_index(indexes.forget_everything(self._store.engine))
        await self.catch_up()

    # --- filling -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Fill what whoever came before has left, and from now on whatever is stored."""
        self._is_stopped = False
        self.soon()

    def soon(self) -> None:
        """Fill the index before long, unless the store is being closed."""
        if self._is_stopped:
            return
        self._stored_at = monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Leave the rest to whoever comes next."""
        self._is_stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self) -> None:
        """Fill the index when nothing has been stored for a while, until nothing is stored meanwhile."""
        begun = -1.0
        while self._stored_at > begun:
            latest = monotonic() + _PATIENCE_S
            while (pause := min(self._stored_at + _QUIET_S, latest) - monotonic()) > 0:
                await asyncio.sleep(pause + random.uniform(0, _QUIET_S / 3))  # several processes need not wake at once
            begun = monotonic()
            try:
                await self._follow_up()
            except DragomanError:
                return  # whoever stores or searches hears of a disk that fails

    async def _follow_up(self) -> None:
        """Fill what is missing with pauses, unless somebody else is at it."""
        await self._check()
        while wanted := await self._store._read(indexes.behind(None, _SESSIONS_AT_ONCE)):
            begun = monotonic()
            while found := await self._pending(wanted, _GENTLY[0]):
                for pieces in await self._pieces(found, _GENTLY[1]):
                    if not await self._store._write_index(indexes.put(self._store.engine, pieces)):
                        return
                    is_quiet = monotonic() - self._stored_at > _QUIET_S
                    await asyncio.sleep((monotonic() - begun) * (_REST if is_quiet else _LONG_REST))
                    begun = monotonic()

    async def catch_up(self, session_id: str | None = None) -> None:
        """Fill what is missing now: of everything, or of one history."""
        await self._check()
        owners = None if session_id is None else await self._store._read(_owners(session_id))
        missing = await self._store._read(indexes.behind(owners, _ALL))
        for first in range(0, len(missing), _SESSIONS_AT_ONCE):
            wanted = missing[first : first + _SESSIONS_AT_ONCE]
            while found := await self._pending(wanted, _AT_ONCE[0]):
                for pieces in await self._pieces(found, _AT_ONCE[1]):
                    await self._store._write_index(indexes.put(self._store.engine, pieces))

    async def _check(self) -> None:
        """Index sessions anew that are noted as indexed beyond their end; looked for once after the store is opened."""
        if self._is_checked:
            return
        if sessions := await self._store._read(indexes.overrun()):
            await self._store._write_index(indexes.restart(self._store.engine, sessions))
        self._is_checked = True

    async def _pending(self, wanted: Sequence[tuple[str, int]], most: int) -> list[Pending]:
        """Messages for the index; what there is no way to read is passed over, one at a time."""
        try:
            return await self._store._read(indexes.pending(wanted, most))
        except DamagedError:
            for one in wanted:
                try:
                    found = await self._store._read(indexes.pending([one], 1))
                except DamagedError:
                    found = await self._store._read(indexes.unreadable(one[0]))
                if found:
                    return found
        return []

    async def _pieces(self, found: Sequence[Pending], characters: int) -> list[list[Piece]]:
        """What is to be put, in transactions that are not too large."""
        large = {id(row): await self._large(row) for one in found for row in one.rows}
        return await asyncio.to_thread(_cut, found, large, characters)

    async def _large(self, row: Found) -> dict[str, bytes] | None:
        """The large texts of a row, by their hashes, and nothing for its pictures; none if they are not to be had."""
        blobs: dict[str, bytes] = {}
        content, kept = row.columns.content_json, row.columns.blobs_json
        if kept is not None:
            if hash_of(row.session_id, row.seq, row.columns) != row.hash:
                return None
            try:
                for one in msgspec.json.decode(kept, type=list[Large]):
                    is_picture = one.form == "base64" and content[: one.at].endswith('"data":')
                    blobs[one.sha256] = b"" if is_picture else await self._store.blobs.get(one.sha256)
            except DamagedError:
                return None
        return blobs


@operation
def _owners(session_id: str) -> Any:
    return [stretch.session_id for stretch in (yield from lineage(session_id))]


def _text_from(row: Found, large: Mapping[str, bytes] | None) -> str | None:
    """What is said in a row; nothing if it is damaged, or of a version that we cannot read."""
    if large is None:
        return None
    try:
        return text_of(message_from(row.session_id, row.seq, row.columns, row.hash, large))
    except (DamagedError, InputError):
        return None


def _cut(
    found: Sequence[Pending], large: Mapping[int, Mapping[str, bytes] | None], characters: int
) -> list[list[Piece]]:
    made: list[list[Piece]] = [[]]
    room = characters
    for one in found:
        after, entries = one.after, [Entry(seq, hash_, _NOTHING) for seq, hash_ in one.unreadable]
        for row in one.rows:
            text = _text_from(row, large[id(row)])
            entries.append(Entry(row.seq, row.hash, analysed(text) if text is not None else _NOTHING))
            room -= len(text or "") + 200
            if room < 0:
                made[-1].append(Piece(one.session_id, after, row.seq, entries))
                made.append([])
                after, entries, room = row.seq, [], characters
        if entries or after < one.last:
            made[-1].append(Piece(one.session_id, after, one.last, entries))
    return [pieces for pieces in made if pieces]


def _hits(given: Sequence[tuple[Match, Found, Mapping[str, bytes] | None]], terms: list[Term]) -> list[Hit]:
    """What is shown of each match; nothing of what is damaged by now."""
    hits = []
    for match, row, large in given:
        text = _text_from(row, large)
        if text is not None:
            shown = excerpt(text, terms)
            hits.append(
                Hit(
                    session_id=match.shown_in,
                    seq=row.seq,
                    message_id=row.columns.id,
                    role=row.columns.role,
                    score=match.score,
                    snippet=shown.text,
                    highlights=shown.highlights,
                    created_at=time_from(row.columns.created_at),
                )
            )
    return hits
