"""Erase a user: the sessions of the user, the messages in sessions of others, and the name beside usage and runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from dragoman.errors import DragomanError
from dragoman.store import evaluations, runs, trace
from dragoman.store.message_reader import MessageRow, read_at
from dragoman.store.message_rows import message_hash
from dragoman.store.operation import Steps, operation
from dragoman.store.retention import blob_gc
from dragoman.store.retention.deletion import Deletion, Ids, delete_with_forks, update_message_row
from dragoman.store.retention.tombstones import anonymize_related_rows, author_id, tombstone
from dragoman.store.search import index
from dragoman.store.types import ErasureReceipt

if TYPE_CHECKING:
    from dragoman.store.store import Store

_FILES_PENDING: Final = "the files are not deleted yet"


class ErasureResult(msgspec.Struct, frozen=True):
    """The receipt, and the blobs that are still to be deleted."""

    receipt: ErasureReceipt
    blobs_to_delete: list[str]


async def erase(
    store: Store, user_id: str, delete_files: Callable[[], Awaitable[int]] | None, *, delete_copies: bool
) -> ErasureReceipt:
    """Erase a user from the database, its copies and the files; see ``Store.erase_user``."""
    store.mark.forget(await store._read(find_user_sessions(user_id)))
    receipt_id, has_files = f"era_{store.new_id()}", delete_files is not None
    result = await store._write(
        erase_user(store.engine, user_id, receipt_id, store.clock(), store.new_id, has_files=has_files)
    )
    store._message_cache.clear()
    await blob_gc.finish_deletion(store, result.blobs_to_delete)
    await store._scrub()
    receipt = await _record_copies(store, result.receipt, delete=delete_copies)
    return receipt if delete_files is None else await _record_files(store, receipt, delete_files)


async def _record_copies(store: Store, receipt: ErasureReceipt, *, delete: bool) -> ErasureReceipt:
    deleted, remaining = await asyncio.to_thread(store._find_copies, delete=delete)
    if deleted or remaining:
        receipt = msgspec.structs.replace(receipt, copies_deleted=deleted, copies_left=remaining)
        await store._write(update_receipt(receipt))
    return receipt


async def _record_files(
    store: Store, receipt: ErasureReceipt, delete_files: Callable[[], Awaitable[int]]
) -> ErasureReceipt:
    count, fault = None, None
    try:
        count = await delete_files()
    except DragomanError as error:
        fault = str(error)
    receipt = msgspec.structs.replace(receipt, attachments=count, attachments_fault=fault)
    await store._write(update_receipt(receipt))
    return receipt


@operation
def find_user_sessions(user_id: str) -> Steps[list[str]]:
    """Read the ids of the sessions of a user."""
    rows = yield "SELECT id FROM sessions WHERE user_id = ?", (user_id,)
    return [row[0] for row in rows]


@operation
def erase_user(
    engine: str, user_id: str, receipt_id: str, now: datetime, ids: Ids, *, has_files: bool
) -> Steps[ErasureResult]:
    """Erase a user: sessions, messages in sessions of others, and the user id of usage.

    With ``has_files``, the receipt names the files as pending until they are deleted.
    """
    from dragoman.store.mailbox import letters  # noqa: PLC0415  only deletion needs it

    session_rows = yield "SELECT id FROM sessions WHERE user_id = ? ORDER BY created_at DESC, id DESC", (user_id,)
    total = Deletion(forks=set(), blobs=set())
    for (session_id,) in session_rows:
        deletion = yield from delete_with_forks(engine, session_id, ids, erased_user_id=user_id)
        total.messages += deletion.messages
        total.tool_calls += deletion.tool_calls
        total.forks |= deletion.forks
        total.blobs |= deletion.blobs
    yield from _erase_in_other_sessions(engine, user_id, total)
    for table in ("usage", "past_usage"):
        yield f"UPDATE {table} SET user_id = NULL WHERE user_id = ?", (user_id,)
    yield "DELETE FROM api_keys WHERE user_id = ?", (user_id,)
    yield "DELETE FROM preferences WHERE user_id = ?", (user_id,)
    yield from runs.anonymize(user_id)
    yield from trace.anonymize(user_id)
    yield from evaluations.anonymize(user_id)
    yield from letters.erase_user(user_id)
    yield from index.compact_index(engine)
    blobs_to_delete = yield from blob_gc.mark_for_deletion(total.blobs, now)
    receipt = ErasureReceipt(
        id=receipt_id,
        user_id=user_id,
        sessions=len(session_rows),
        messages=total.messages,
        tool_calls=total.tool_calls,
        blobs=len(blobs_to_delete),
        forks_cut=len(total.forks - {row[0] for row in session_rows}),
        erased_at=now,
        attachments_fault=_FILES_PENDING if has_files else None,
    )
    receipt_json = msgspec.json.encode(receipt).decode()
    yield "INSERT INTO erasures (id, receipt_json) VALUES (?, ?)", (receipt_id, receipt_json)
    return ErasureResult(receipt, blobs_to_delete)


@operation
def update_receipt(receipt: ErasureReceipt) -> Steps[None]:
    """Replace a receipt."""
    receipt_json = msgspec.json.encode(receipt).decode()
    yield "UPDATE erasures SET receipt_json = ? WHERE id = ?", (receipt_json, receipt.id)


@operation
def erasures() -> Steps[list[ErasureReceipt]]:
    """Read all receipts, the oldest first."""
    rows = yield "SELECT receipt_json FROM erasures ORDER BY id", ()
    return [msgspec.json.decode(row[0], type=ErasureReceipt) for row in rows]


def _erase_in_other_sessions(engine: str, user_id: str, deletion: Deletion) -> Steps[None]:
    """Replace the messages of a user in sessions of others by tombstones."""
    user_json = msgspec.json.encode(user_id).decode()
    pattern = "".join(f"!{letter}" if letter in "!%_" else letter for letter in f'"user_id":{user_json}')
    rows = yield (
        "SELECT session_id, seq FROM messages WHERE metadata_json LIKE ? ESCAPE '!' ORDER BY session_id, seq",
        (f"%{pattern}%",),
    )
    for session_id, seq in rows:
        yield "UPDATE sessions SET last_seq = last_seq WHERE id = ? RETURNING id", (session_id,)
        for row in (yield from read_at(session_id, [seq])):
            if author_id(row.columns) == user_id:
                yield from _replace_with_tombstone(engine, row, deletion)


def _replace_with_tombstone(engine: str, message_row: MessageRow, deletion: Deletion) -> Steps[None]:
    session_id, seq = message_row.session_id, message_row.seq
    deletion.messages += 1
    blob_rows = yield "SELECT sha256 FROM blob_refs WHERE session_id = ? AND seq = ?", (session_id, seq)
    deletion.blobs.update(row[0] for row in blob_rows)
    yield from index.remove_messages(engine, session_id, seq, seq)
    yield from anonymize_related_rows(session_id, seq)
    yield (  # its hash would confirm a guess of the content
        "DELETE FROM idempotency WHERE session_id = ? AND first_seq <= ? AND last_seq >= ?",
        (session_id, seq, seq),
    )
    yield from runs.delete_session_events(session_id)  # which may repeat the message
    columns = tombstone(message_row)
    yield update_message_row(message_row, session_id, columns, message_hash(session_id, seq, columns))
