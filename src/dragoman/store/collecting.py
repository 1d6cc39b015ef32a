"""Large content that nobody names any more is let go, and nothing else.

Content is put before the row that names it is stored, so there is a moment in which a name is missing only because it
is about to come. Two things keep it: what was put within the last hour is left alone, and the row of ``blob_states``
for a hash, which both who names it and who lets it go have to write first. It says ``kept``, ``going`` or ``gone``.
Who finds ``going`` waits; who finds ``gone`` puts the content again and says that it has.

The one rule: content is deleted only while its state is ``going``, and nobody names it in that state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from dragoman.blobs import FolderBlobs
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.rows import micros
from dragoman.store.writing import Draft, LetGoError

if TYPE_CHECKING:
    from dragoman.store.store import Store

_PAGE: Final = 200
_FEW: Final = 20
_PAUSE_S: Final = 0.02
_STALE: Final = timedelta(minutes=5)  # whoever lets something go is done with it long before, or has died


async def collect(store: Store, grace: timedelta) -> int:
    """Let go of what nobody names and nobody has put for so long; how many that were."""
    before = store.clock() - grace
    if isinstance(store.blobs, FolderBlobs):
        await store.blobs.tidy(grace.total_seconds())
    left = await store._read(_left_behind(store.clock() - _STALE))
    await finish(store, left)
    old: list[str] = []
    count = len(left)
    async for blob in store.blobs.list():
        if blob.touched_at < before.timestamp():
            old.append(blob.sha256)
        if len(old) >= _PAGE:
            count += await _let_go(store, old)
            old = []
    count += await _let_go(store, old)
    await store._write(_forgotten(store.clock() - max(grace, timedelta(hours=1))))
    return count


async def _let_go(store: Store, hashes: Sequence[str]) -> int:
    if not (unnamed := await store._read(_unnamed(hashes))):
        return 0
    going = await store._write(let_go(unnamed, store.clock()))
    await finish(store, going)
    return len(going)


async def finish(store: Store, going: Iterable[str]) -> None:
    """Delete content whose state is ``going``, a few at a time, so that nobody takes us for dead meanwhile."""
    hashes = list(going)
    for first in range(0, len(hashes), _FEW):
        for sha256 in await store._write(_still_going(hashes[first : first + _FEW], store.clock())):
            await store.blobs.delete(sha256)
            await store._write(_went(sha256, store.clock()))


async def settled(store: Store, gone: LetGoError) -> dict[str, int]:
    """Wait while content is going; once it has gone, its hash and when."""
    if gone.state == "gone":
        return {gone.sha256: gone.changed_at}
    if gone.changed_at < micros(store.clock() - _STALE):
        await finish(store, [gone.sha256])
    await asyncio.sleep(_PAUSE_S)
    return {}


async def after(store: Store, drafts: Sequence[Draft], gone: LetGoError) -> Sequence[Draft]:
    """What to store after content was found to be let go: it has gone, and will be put again."""
    renewed = await settled(store, gone)
    return [msgspec.structs.replace(draft, renewed=draft.renewed | renewed) for draft in drafts]


@operation
def _unnamed(hashes: Sequence[str]) -> Generator[Statement, Rows, list[str]]:
    """Those of these hashes that no row names."""
    marks = ", ".join("?" * len(hashes))
    if not hashes:
        return []
    rows = yield f"SELECT DISTINCT sha256 FROM blob_refs WHERE sha256 IN ({marks})", tuple(hashes)
    return sorted(set(hashes) - {row[0] for row in rows})


@operation
def let_go(hashes: Iterable[str], now: datetime) -> Generator[Statement, Rows, list[str]]:
    """Say of those of these hashes that no row names that they are going."""
    going: list[str] = []
    for sha256 in sorted(hashes):  # in one order, so that two who do so wait for each other at most once
        before = yield (
            "INSERT INTO blob_states (sha256, state, changed_at) VALUES (?, 'kept', 0)"
            " ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256 RETURNING state",
            (sha256,),
        )
        named = yield "SELECT 1 FROM blob_refs WHERE sha256 = ? LIMIT 1", (sha256,)
        if not named and before[0][0] != "going":
            going.append(sha256)
            yield (
                "UPDATE blob_states SET state = 'going', changed_at = ? WHERE sha256 = ?",
                (micros(now), sha256),
            )
    return going


@operation
def _left_behind(before: datetime) -> Generator[Statement, Rows, list[str]]:
    rows = yield "SELECT sha256 FROM blob_states WHERE state = 'going' AND changed_at < ?", (micros(before),)
    return [row[0] for row in rows]


@operation
def _still_going(hashes: Sequence[str], now: datetime) -> Generator[Statement, Rows, list[str]]:
    marks = ", ".join("?" * len(hashes))
    rows = yield (
        f"UPDATE blob_states SET changed_at = ? WHERE state = 'going' AND sha256 IN ({marks}) RETURNING sha256",
        (micros(now), *hashes),
    )
    return [row[0] for row in rows]


@operation
def _went(sha256: str, now: datetime) -> Generator[Statement, Rows, None]:
    yield (
        "UPDATE blob_states SET state = 'gone', changed_at = ? WHERE sha256 = ? AND state = 'going'",
        (micros(now), sha256),
    )


@operation
def _forgotten(before: datetime) -> Generator[Statement, Rows, None]:
    """Forget about what went so long ago that nobody can still be about to name it."""
    yield "DELETE FROM blob_states WHERE state = 'gone' AND changed_at < ?", (micros(before),)
