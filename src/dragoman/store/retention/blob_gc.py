"""Delete blobs without a reference.

A blob is put before the row that refers to it is stored, so a reference may be missing for a moment. Two rules protect
such a blob: blobs of the last hour are not deleted, and both a writer that adds a reference and the collector write the
row of the hash in ``blob_states`` first. Its state is ``kept``, ``going`` or ``gone``. A writer that finds ``going``
waits; a writer that finds ``gone`` puts the blob again.

Invariant: a blob is deleted only in the state ``going``, and no reference is added in that state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from dragoman.store.blobs import FolderBlobs
from dragoman.store.message_writer import BlobCollectedError, Draft
from dragoman.store.operation import Steps, operation, to_micros

if TYPE_CHECKING:
    from dragoman.store.store import Store

_PAGE: Final = 200
_DELETE_BATCH: Final = 20
_PAUSE_S: Final = 0.02
_STALE_AFTER: Final = timedelta(minutes=5)  # an older deletion belongs to a dead process


async def collect_blobs(store: Store, grace: timedelta) -> int:
    """Delete blobs without a reference that were not put within ``grace``; return their number."""
    cutoff = store.clock() - grace
    if isinstance(store.blobs, FolderBlobs):
        await store.blobs.remove_partial_files(grace.total_seconds())
    stale = await store._read(_find_stale_deletions(store.clock() - _STALE_AFTER))
    await finish_deletion(store, stale)
    hashes: list[str] = []
    count = len(stale)
    async for blob in store.blobs.list():
        if blob.touched_at < cutoff.timestamp():
            hashes.append(blob.sha256)
        if len(hashes) >= _PAGE:
            count += await _delete_orphans(store, hashes)
            hashes = []
    count += await _delete_orphans(store, hashes)
    await store._write(_delete_old_states(store.clock() - max(grace, timedelta(hours=1))))
    return count


async def _delete_orphans(store: Store, hashes: Sequence[str]) -> int:
    if not (orphans := await store._read(_find_orphans(hashes))):
        return 0
    to_delete = await store._write(mark_for_deletion(orphans, store.clock()))
    await finish_deletion(store, to_delete)
    return len(to_delete)


async def finish_deletion(store: Store, to_delete: Iterable[str]) -> None:
    """Delete blobs in the state ``going``, a few at a time, so that the deletion does not become stale."""
    hashes = list(to_delete)
    for first in range(0, len(hashes), _DELETE_BATCH):
        for sha256 in await store._write(_renew_deletions(hashes[first : first + _DELETE_BATCH], store.clock())):
            await store.blobs.delete(sha256)
            await store._write(_mark_gone(sha256, store.clock()))


async def await_deletion(store: Store, error: BlobCollectedError) -> dict[str, int]:
    """Wait while a blob is ``going``; once it is ``gone``, return its hash and the time."""
    if error.state == "gone":
        return {error.sha256: error.changed_at}
    if error.changed_at < to_micros(store.clock() - _STALE_AFTER):
        await finish_deletion(store, [error.sha256])
    await asyncio.sleep(_PAUSE_S)
    return {}


async def prepare_retry(store: Store, drafts: Sequence[Draft], error: BlobCollectedError) -> Sequence[Draft]:
    """Return the drafts for a retry after a blob was deleted."""
    gone_at = await await_deletion(store, error)
    return [msgspec.structs.replace(draft, gone_at=draft.gone_at | gone_at) for draft in drafts]


@operation
def _find_orphans(hashes: Sequence[str]) -> Steps[list[str]]:
    """Return the hashes without a reference."""
    placeholders = ", ".join("?" * len(hashes))
    if not hashes:
        return []
    rows = yield f"SELECT DISTINCT sha256 FROM blob_refs WHERE sha256 IN ({placeholders})", tuple(hashes)
    return sorted(set(hashes) - {row[0] for row in rows})


@operation
def mark_for_deletion(hashes: Iterable[str], now: datetime) -> Steps[list[str]]:
    """Set the state ``going`` for the hashes without a reference, and return them."""
    to_delete: list[str] = []
    for sha256 in sorted(hashes):  # in one order, to avoid deadlocks
        state_rows = yield (
            "INSERT INTO blob_states (sha256, state, changed_at) VALUES (?, 'kept', 0)"
            " ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256 RETURNING state",
            (sha256,),
        )
        references = yield "SELECT 1 FROM blob_refs WHERE sha256 = ? LIMIT 1", (sha256,)
        if not references and state_rows[0][0] != "going":
            to_delete.append(sha256)
            yield (
                "UPDATE blob_states SET state = 'going', changed_at = ? WHERE sha256 = ?",
                (to_micros(now), sha256),
            )
    return to_delete


@operation
def _find_stale_deletions(before: datetime) -> Steps[list[str]]:
    rows = yield "SELECT sha256 FROM blob_states WHERE state = 'going' AND changed_at < ?", (to_micros(before),)
    return [row[0] for row in rows]


@operation
def _renew_deletions(hashes: Sequence[str], now: datetime) -> Steps[list[str]]:
    placeholders = ", ".join("?" * len(hashes))
    rows = yield (
        f"UPDATE blob_states SET changed_at = ? WHERE state = 'going' AND sha256 IN ({placeholders}) RETURNING sha256",
        (to_micros(now), *hashes),
    )
    return [row[0] for row in rows]


@operation
def _mark_gone(sha256: str, now: datetime) -> Steps[None]:
    yield (
        "UPDATE blob_states SET state = 'gone', changed_at = ? WHERE sha256 = ? AND state = 'going'",
        (to_micros(now), sha256),
    )


@operation
def _delete_old_states(before: datetime) -> Steps[None]:
    """Delete the states of blobs whose deletion is too old for a writer to refer to them."""
    yield "DELETE FROM blob_states WHERE state = 'gone' AND changed_at < ?", (to_micros(before),)
