"""Delete sessions, on request or by age.

Forks share messages with their parent. When the parent is deleted, its rows up to the last shared message move to the
fork that shares most of them, and the other forks share with that one. A message that moved records its original
session in ``unknown_json``, so that readers of the fork read what they read before. The usage of deleted sessions stays
in ``past_usage``, without the session.

Invariants: seqs stay without a gap. A damaged row is still damaged after it has moved.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Final

import msgspec

from dragoman.store.costs import COUNTS, insert_past_usage, possible_count_sql
from dragoman.store.message_reader import MessageRow, read_rows
from dragoman.store.message_rows import Columns, message_hash
from dragoman.store.operation import Statement, Steps, operation, to_micros
from dragoman.store.retention.tombstones import anonymize_related_rows, author_id, tombstone
from dragoman.store.search import index
from dragoman.store.sessions import get_session, list_bucket, unknown_session
from dragoman.store.tool_call_rows import REOPEN_CALL
from dragoman.store.turns import IS_HELD
from dragoman.store.types import Session

Ids = Callable[[], str]
_PAGE: Final = 200


class Deletion(msgspec.Struct, kw_only=True):
    """Counts of a deletion."""

    messages: int = 0
    tool_calls: int = 0
    forks: set[str] = set()  # that shared its messages
    blobs: set[str] = set()  # that it referred to


# --- deletion --------------------------------------------------------------------------------------------------------


@operation
def delete_session(engine: str, session_id: str, ids: Ids) -> Steps[Deletion]:
    """Delete a session; its forks keep what they share."""
    return (yield from delete_with_forks(engine, session_id, ids, erased_user_id=None))


_IS_INACTIVE: Final = (
    "listed_at <= ? AND updated_at < ? AND received_at < ? AND NOT EXISTS"
    f" (SELECT 1 FROM leases WHERE leases.session_id = sessions.id AND {IS_HELD} AND leases.owner <> ?)"
)


def _cutoff_arguments(before: datetime) -> tuple[int, int, int]:
    at = to_micros(before)
    return list_bucket(at), at, at


@operation
def find_inactive_sessions(before: datetime, user_id: str | None) -> Steps[list[Session]]:
    """Read the sessions that have not changed since, the oldest first, without those of a running turn."""
    user_sql, user_arguments = (" AND user_id = ?", (user_id,)) if user_id is not None else ("", ())
    rows = yield (
        f"SELECT id FROM sessions WHERE {_IS_INACTIVE}{user_sql} ORDER BY updated_at, id",
        (*_cutoff_arguments(before), "", *user_arguments),
    )
    sessions: list[Session] = []
    for (session_id,) in rows:
        sessions.append((yield from get_session(session_id)))
    return sessions


@operation
def delete_inactive_session(
    engine: str, session_id: str, before: datetime, ids: Ids, *, lease_owner: str = ""
) -> Steps[bool]:
    """Delete a session unless it has changed, or another owner than ``lease_owner`` holds its lease."""
    rows = yield (
        f"UPDATE sessions SET last_seq = last_seq WHERE id = ? AND {_IS_INACTIVE} RETURNING id",
        (session_id, *_cutoff_arguments(before), lease_owner),
    )
    if rows:
        yield from delete_with_forks(engine, session_id, ids, erased_user_id=None)
    return bool(rows)


def delete_with_forks(engine: str, session_id: str, ids: Ids, *, erased_user_id: str | None) -> Steps[Deletion]:
    """Delete a session; for an erased user, what forks share of the user becomes tombstones."""
    from dragoman.store.mailbox import letters  # noqa: PLC0415  only deletion needs it

    deletion = Deletion(forks=set(), blobs=set())
    if not (yield "UPDATE sessions SET last_seq = last_seq WHERE id = ? RETURNING id", (session_id,)):
        raise unknown_session(session_id)
    session = yield from get_session(session_id)
    blob_rows = yield "SELECT DISTINCT sha256 FROM blob_refs WHERE session_id = ?", (session_id,)
    deletion.blobs.update(row[0] for row in blob_rows)
    yield from index.remove_messages(engine, session_id)
    yield from _transfer_to_fork(session, deletion, erased_user_id)
    yield from _keep_usage_totals(session_id, ids, with_user=erased_user_id is None)
    for table in ("messages", "tool_calls"):
        rows = yield f"SELECT count(*) FROM {table} WHERE session_id = ?", (session_id,)
        setattr(deletion, table, getattr(deletion, table) + rows[0][0])
    for table in _SESSION_TABLES:
        yield f"DELETE FROM {table} WHERE session_id = ?", (session_id,)
    yield "DELETE FROM sessions WHERE id = ?", (session_id,)
    for table in ("events", "evaluations"):  # after the session: writers lock its row first
        yield f"DELETE FROM {table} WHERE session_id = ?", (session_id,)
    yield from (letters.unlink_session if erased_user_id is None else letters.erase_session)(session_id)
    return deletion


_SESSION_TABLES: Final = (
    "messages",
    "tool_calls",
    "usage",
    "repricings",
    "tool_ids",
    "idempotency",
    "leases",
    "blob_refs",
    "attachment_refs",
    "entries",
    "run_events",
    "runs",
    "gateway_transcripts",
    "gateway_objects",
    "request_parts",
    "shares",
)


_USAGE_SUMS: Final = ", ".join(
    f"sum({possible_count_sql(name, '1')})" for name in COUNTS
)  # impossible counts add nothing


def _keep_usage_totals(session_id: str, ids: Ids, *, with_user: bool) -> Steps[None]:
    """Keep the usage of a session in the totals."""
    rows = yield (
        f"SELECT day, model, provider, user_id, team_id, count(*), {_USAGE_SUMS}, sum(unpriced), decimal_sum(cost_usd)"
        " FROM usage WHERE session_id = ? GROUP BY day, model, provider, user_id, team_id",
        (session_id,),
    )
    for day, model, provider, user_id, team_id, *counts, cost in rows:
        origin = (model, provider, user_id if with_user else None, team_id)
        yield insert_past_usage(ids(), day, origin, map(int, counts), Decimal(str(cost)))


# --- transfer to forks -----------------------------------------------------------------------------------------------


def _transfer_to_fork(session: Session, deletion: Deletion, erased_user_id: str | None) -> Steps[None]:
    """Move shared messages to the fork that shares most; the other forks share with that one."""
    forks = yield (  # locks them
        "UPDATE sessions SET last_seq = last_seq WHERE parent_session_id = ? RETURNING id, parent_seq",
        (session.id,),
    )
    heir, last_seq = max(sorted(forks), key=lambda fork: fork[1], default=("", 0))
    if last_seq > session.parent_seq:
        if erased_user_id is not None:
            deletion.forks |= yield from _find_forks_of_others(session.id, session.parent_seq, erased_user_id)
        yield from _transfer_messages(session, heir, last_seq, deletion, erased_user_id)
        yield from _transfer_related_rows(session, heir, last_seq)
        yield "UPDATE sessions SET parent_session_id = ? WHERE parent_session_id = ?", (heir, session.id)
        yield (
            "UPDATE sessions SET parent_session_id = ?, parent_seq = ?, indexed_seq = ?, is_behind = 1 WHERE id = ?",
            (session.parent_session_id, session.parent_seq, session.parent_seq, heir),
        )
    elif forks:  # no fork shares a message
        yield "UPDATE sessions SET parent_session_id = NULL, parent_seq = 0 WHERE parent_session_id = ?", (session.id,)


def _find_forks_of_others(session_id: str, parent_seq: int, except_user_id: str) -> Steps[set[str]]:
    """Return the sessions of others that share messages of a session, directly or through another fork."""
    rows = yield (
        "SELECT id, user_id FROM sessions WHERE parent_session_id = ? AND parent_seq > ?",
        (session_id, parent_seq),
    )
    found = {fork for fork, user_id in rows if user_id != except_user_id}
    for fork, _ in rows:
        found |= yield from _find_forks_of_others(fork, 0, except_user_id)
    return found


def _transfer_messages(
    session: Session, heir: str, last_seq: int, deletion: Deletion, erased_user_id: str | None
) -> Steps[None]:
    after_seq = session.parent_seq
    while after_seq < last_seq and (
        page := (yield from read_rows(session.id, after_seq, min(_PAGE, last_seq - after_seq)))
    ):
        for row in page:
            is_intact = message_hash(session.id, row.seq, row.columns) == row.hash
            columns = row.columns
            if erased_user_id is not None and author_id(columns) in (None, erased_user_id):
                is_intact, columns = True, tombstone(row)
                deletion.messages += 1
                yield from anonymize_related_rows(session.id, row.seq)
            columns = with_origin_session(session.id, columns)
            hash_ = message_hash(heir, row.seq, columns) if is_intact else row.hash
            yield update_message_row(row, heir, columns, hash_)
        after_seq = page[-1].seq


def with_origin_session(session_id: str, columns: Columns) -> Columns:
    """Return the columns of a message that moved to another session, with its original session."""
    unknown = msgspec.json.decode(columns.unknown_json, type=dict[str, msgspec.Raw]) if columns.unknown_json else {}
    unknown.setdefault("session_id", msgspec.Raw(msgspec.json.encode(session_id)))
    return msgspec.structs.replace(columns, unknown_json=msgspec.json.encode(unknown).decode())


def update_message_row(row: MessageRow, session_id: str, columns: Columns, hash_: bytes) -> Statement:
    return (
        "UPDATE messages SET session_id = ?, role = ?, content_json = ?, metadata_json = ?, schema_version = ?,"
        " status = ?, unknown_json = ?, blobs_json = ?, hash = ? WHERE session_id = ? AND seq = ?",
        (
            session_id,
            columns.role,
            columns.content_json,
            columns.metadata_json,
            columns.schema_version,
            columns.status,
            columns.unknown_json,
            columns.blobs_json,
            hash_,
            row.session_id,
            row.seq,
        ),
    )


def _transfer_related_rows(session: Session, heir: str, last_seq: int) -> Steps[None]:
    """Move the rows of other tables about moved messages. Rows of the heir stay."""
    session_ids = (session.id, heir)
    yield (
        "DELETE FROM tool_calls WHERE session_id = ? AND id IN (SELECT id FROM tool_calls WHERE session_id = ?)",
        session_ids,
    )
    yield (  # the result, after the moved messages, of a call from further up
        "DELETE FROM tool_calls WHERE session_id = ? AND seq <= ? AND result_seq > ?",
        (session.id, session.parent_seq, last_seq),
    )
    yield (
        f"UPDATE tool_calls SET {REOPEN_CALL} WHERE session_id = ? AND result_seq > ?",
        (session.id, last_seq),
    )
    yield (
        "DELETE FROM request_parts WHERE session_id = ?"
        " AND sha256 IN (SELECT sha256 FROM request_parts WHERE session_id = ?)",
        session_ids,
    )
    for table in ("tool_calls", "usage", "repricings", "blob_refs", "attachment_refs", "request_parts"):
        yield f"UPDATE {table} SET session_id = ? WHERE session_id = ? AND seq <= ?", (heir, session.id, last_seq)
    rows = yield "SELECT coalesce(max(number), 0) FROM tool_ids WHERE session_id = ?", (session.id,)
    first = yield "SELECT coalesce(min(number), 1) FROM tool_ids WHERE session_id = ?", (heir,)
    yield (  # before those of the heir
        "UPDATE tool_ids SET session_id = ?, number = number + ? WHERE session_id = ?",
        (heir, first[0][0] - 1 - rows[0][0], session.id),
    )
    newest = yield "SELECT id, last_message_id FROM sessions WHERE id IN (?, ?)", session_ids
    yield "UPDATE sessions SET last_message_id = ? WHERE id = ?", (max(row[1] for row in newest), heir)
