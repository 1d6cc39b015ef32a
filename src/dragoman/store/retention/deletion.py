"""What is done to sessions as a whole: they are deleted, forgotten with time, and erased with the person they are of.

Forks share messages with the session that they come from. When that one goes, its rows up to the last shared message
are handed on to the fork that shares most of them, and the other forks share with that one. A message that was handed
on says in ``unknown_json`` which session it was said in, so that whoever reads the fork reads what they read before.
What deleted sessions have cost stays in ``past_usage``, without the session; erasing a person takes the person out.

In sessions of others a message of a person who is erased becomes a tombstone: its place, id, role, time, counts and the
ids of its calls stay, what was said and who said it goes. The one rule: numbers stay without a gap, and a row that was
damaged is still damaged after it was handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from dragoman import value
from dragoman.errors import DragomanError
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.store import evaluations, runs, trace
from dragoman.store.costs import COUNTS, possible_count_sql
from dragoman.store.message_reader import MessageRow, read_at, read_rows
from dragoman.store.message_rows import Columns, columns_from, message_from, message_hash
from dragoman.store.operation import Rows, Statement, from_micros, operation, to_micros
from dragoman.store.retention import blob_gc
from dragoman.store.row_hash import rehash_sql
from dragoman.store.search import index
from dragoman.store.sessions import get_session, listed_at, unknown_session
from dragoman.store.tool_call_rows import REOPEN_CALL
from dragoman.store.turns import IS_HELD
from dragoman.store.types import ErasureReceipt, Session, SizeReport

Steps = Generator[Statement, Rows, None]
Ids = Callable[[], str]
_PAGE: Final = 200
_ERASED_TEXT: Final = "[erased]"
_FILES_PENDING: Final = "they were not deleted yet"


class Deletion(msgspec.Struct, kw_only=True):
    """What a deletion took away."""

    messages: int = 0
    tool_calls: int = 0
    forks: set[str] = set()  # that shared something of it
    blobs: set[str] = set()  # that it named


# --- deleting --------------------------------------------------------------------------------------------------------


@operation
def delete_session(engine: str, session_id: str, ids: Ids) -> Generator[Statement, Rows, Deletion]:
    """Delete a session; what its forks share is theirs from now on."""
    return (yield from _delete_session(engine, session_id, ids, erased_user_id=None))


_IS_INACTIVE: Final = (
    "listed_at <= ? AND updated_at < ? AND received_at < ? AND NOT EXISTS"
    f" (SELECT 1 FROM leases WHERE leases.session_id = sessions.id AND {IS_HELD} AND leases.owner <> ?)"
)


def _cutoff_arguments(before: datetime) -> tuple[int, int, int]:
    at = to_micros(before)
    return listed_at(at), at, at


@operation
def find_inactive_sessions(before: datetime, user_id: str | None) -> Generator[Statement, Rows, list[Session]]:
    """Sessions in which nothing happened since, the oldest first. One in which a turn is running is not among them."""
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
) -> Generator[Statement, Rows, bool]:
    """Delete a session, unless something happened in it after all, or somebody else than ``holder`` runs a turn."""
    rows = yield (
        f"UPDATE sessions SET last_seq = last_seq WHERE id = ? AND {_IS_INACTIVE} RETURNING id",
        (session_id, *_cutoff_arguments(before), lease_owner),
    )
    if rows:
        yield from _delete_session(engine, session_id, ids, erased_user_id=None)
    return bool(rows)


def _delete_session(
    engine: str, session_id: str, ids: Ids, *, erased_user_id: str | None
) -> Generator[Statement, Rows, Deletion]:
    """Delete a session, and if it is because a person is ``erased``, what forks share of that person as well."""
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
)


_USAGE_SUMS: Final = ", ".join(
    f"sum({possible_count_sql(name, '1')})" for name in COUNTS
)  # an impossible count adds nothing


def _keep_usage_totals(session_id: str, ids: Ids, *, with_user: bool) -> Steps:
    """What it has cost was paid, whatever becomes of the session."""
    rows = yield (
        f"SELECT day, model, provider, user_id, team_id, count(*), {_USAGE_SUMS}, sum(unpriced), decimal_sum(cost_usd)"
        " FROM usage WHERE session_id = ? GROUP BY day, model, provider, user_id, team_id",
        (session_id,),
    )
    for day, model, provider, user_id, team_id, *counts, cost in rows:
        yield (
            "INSERT INTO past_usage (id, day, model, provider, user_id, team_id, messages, input_tokens, output_tokens,"
            " cached_input_tokens, cache_creation_input_tokens, reasoning_tokens, unpriced, cost_usd)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                ids(),
                day,
                model,
                provider,
                user_id if with_user else None,
                team_id,
                *map(int, counts),
                _decimal_text(cost),
            ),
        )


def _decimal_text(cost: Any) -> str:
    return str(Decimal(str(cost)))


# --- handing on ------------------------------------------------------------------------------------------------------


def _transfer_to_fork(session: Session, deletion: Deletion, erased_user_id: str | None) -> Steps:
    """Give what forks share to the one that shares most; the others share with that one from now on."""
    forks = yield (  # and keep everybody else out of them
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
    elif forks:  # none of them shares a message
        yield "UPDATE sessions SET parent_session_id = NULL, parent_seq = 0 WHERE parent_session_id = ?", (session.id,)


def _find_forks_of_others(
    session_id: str, parent_seq: int, except_user_id: str
) -> Generator[Statement, Rows, set[str]]:
    """The sessions of others that share messages of a session, directly or through another fork."""
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
) -> Steps:
    after_seq = session.parent_seq
    while after_seq < last_seq and (
        page := (yield from read_rows(session.id, after_seq, min(_PAGE, last_seq - after_seq)))
    ):
        for row in page:
            is_intact = message_hash(session.id, row.seq, row.columns) == row.hash
            columns = row.columns
            if erased_user_id is not None and _author_id(columns) in (None, erased_user_id):
                is_intact, columns = True, tombstone(row)
                deletion.messages += 1
                yield from _anonymize_related_rows(session.id, row.seq)
            columns = with_origin_session(session.id, columns)
            hash_ = message_hash(heir, row.seq, columns) if is_intact else row.hash
            yield _update_message(row, heir, columns, hash_)
        after_seq = page[-1].seq


def with_origin_session(session_id: str, columns: Columns) -> Columns:
    """The columns of a message that stands in another session than the one it was said in."""
    unknown = msgspec.json.decode(columns.unknown_json, type=dict[str, msgspec.Raw]) if columns.unknown_json else {}
    unknown.setdefault("session_id", msgspec.Raw(msgspec.json.encode(session_id)))
    return msgspec.structs.replace(columns, unknown_json=msgspec.json.encode(unknown).decode())


def _update_message(row: MessageRow, session_id: str, columns: Columns, hash_: bytes) -> Statement:
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


def _transfer_related_rows(session: Session, heir: str, last_seq: int) -> Steps:
    """What stands in other tables about messages that are handed on. What the heir has of its own stays its own."""
    session_ids = (session.id, heir)
    yield (
        "DELETE FROM tool_calls WHERE session_id = ? AND id IN (SELECT id FROM tool_calls WHERE session_id = ?)",
        session_ids,
    )
    yield (  # the answer to a call of a history that is shared further up, given behind what is handed on
        "DELETE FROM tool_calls WHERE session_id = ? AND seq <= ? AND result_seq > ?",
        (session.id, session.parent_seq, last_seq),
    )
    yield (
        f"UPDATE tool_calls SET {REOPEN_CALL} WHERE session_id = ? AND result_seq > ?",
        (session.id, last_seq),
    )
    for table in ("tool_calls", "usage", "repricings", "blob_refs", "attachment_refs"):
        yield f"UPDATE {table} SET session_id = ? WHERE session_id = ? AND seq <= ?", (heir, session.id, last_seq)
    rows = yield "SELECT coalesce(max(number), 0) FROM tool_ids WHERE session_id = ?", (session.id,)
    first = yield "SELECT coalesce(min(number), 1) FROM tool_ids WHERE session_id = ?", (heir,)
    yield (  # before those that the heir has learned itself
        "UPDATE tool_ids SET session_id = ?, number = number + ? WHERE session_id = ?",
        (heir, first[0][0] - 1 - rows[0][0], session.id),
    )
    newest = yield "SELECT id, last_message_id FROM sessions WHERE id IN (?, ?)", session_ids
    yield "UPDATE sessions SET last_message_id = ? WHERE id = ?", (max(row[1] for row in newest), heir)


# --- erasing ---------------------------------------------------------------------------------------------------------


class ErasureResult(msgspec.Struct, frozen=True):
    """What was erased, and the large content that is still to be deleted."""

    receipt: ErasureReceipt
    blobs_to_delete: list[str]


@operation
def find_user_sessions(user_id: str) -> Generator[Statement, Rows, list[str]]:
    """The sessions of a person."""
    rows = yield "SELECT id FROM sessions WHERE user_id = ?", (user_id,)
    return [row[0] for row in rows]


@operation
def erase_user(
    engine: str, user_id: str, receipt_id: str, now: datetime, ids: Ids, *, has_files: bool
) -> Generator[Statement, Rows, ErasureResult]:
    """Erase a person: sessions, messages in sessions of others, and the name beside what was consumed.

    Whether there are files that are deleted afterwards, the receipt says until they are: nobody may be there to do it.
    """
    from dragoman.store.mailbox import letters  # noqa: PLC0415  only deletion needs it

    session_rows = yield "SELECT id FROM sessions WHERE user_id = ? ORDER BY created_at DESC, id DESC", (user_id,)
    total = Deletion(forks=set(), blobs=set())
    for (session_id,) in session_rows:
        deletion = yield from _delete_session(engine, session_id, ids, erased_user_id=user_id)
        total.messages += deletion.messages
        total.tool_calls += deletion.tool_calls
        total.forks |= deletion.forks
        total.blobs |= deletion.blobs
    yield from _erase_in_other_sessions(engine, user_id, total)
    for table in ("usage", "past_usage"):
        yield f"UPDATE {table} SET user_id = NULL WHERE user_id = ?", (user_id,)
    yield "DELETE FROM api_keys WHERE user_id = ?", (user_id,)
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
def update_receipt(receipt: ErasureReceipt) -> Steps:
    """Say what became of the files."""
    receipt_json = msgspec.json.encode(receipt).decode()
    yield "UPDATE erasures SET receipt_json = ? WHERE id = ?", (receipt_json, receipt.id)


@operation
def erasures() -> Generator[Statement, Rows, list[ErasureReceipt]]:
    """Every receipt, the oldest first."""
    rows = yield "SELECT receipt_json FROM erasures ORDER BY id", ()
    return [msgspec.json.decode(row[0], type=ErasureReceipt) for row in rows]


def _erase_in_other_sessions(engine: str, user_id: str, deletion: Deletion) -> Steps:
    """Messages of a person in sessions of others."""
    user_json = msgspec.json.encode(user_id).decode()
    pattern = "".join(f"!{letter}" if letter in "!%_" else letter for letter in f'"user_id":{user_json}')
    rows = yield (
        "SELECT session_id, seq FROM messages WHERE metadata_json LIKE ? ESCAPE '!' ORDER BY session_id, seq",
        (f"%{pattern}%",),
    )
    for session_id, seq in rows:
        yield "UPDATE sessions SET last_seq = last_seq WHERE id = ? RETURNING id", (session_id,)
        for row in (yield from read_at(session_id, [seq])):
            if _author_id(row.columns) == user_id:
                yield from _replace_with_tombstone(engine, row, deletion)


def _replace_with_tombstone(engine: str, message_row: MessageRow, deletion: Deletion) -> Steps:
    session_id, seq = message_row.session_id, message_row.seq
    deletion.messages += 1
    blob_rows = yield "SELECT sha256 FROM blob_refs WHERE session_id = ? AND seq = ?", (session_id, seq)
    deletion.blobs.update(row[0] for row in blob_rows)
    yield from index.remove_messages(engine, session_id, seq, seq)
    yield from _anonymize_related_rows(session_id, seq)
    yield (  # it tells, to whoever guesses right, what was said
        "DELETE FROM idempotency WHERE session_id = ? AND first_seq <= ? AND last_seq >= ?",
        (session_id, seq, seq),
    )
    yield from runs.delete_session_events(session_id)  # which may repeat it
    columns = tombstone(message_row)
    yield _update_message(message_row, session_id, columns, message_hash(session_id, seq, columns))


def _anonymize_related_rows(session_id: str, seq: int) -> Steps:
    """What stands in other tables about a message that becomes a tombstone."""
    key = (session_id, seq)
    yield "UPDATE usage SET user_id = NULL WHERE session_id = ? AND seq = ?", key
    without_id = f"provider_id = NULL, {rehash_sql(provider_id='NULL')}"
    yield f"UPDATE tool_calls SET {without_id} WHERE session_id = ? AND seq = ?", key
    for table in ("blob_refs", "attachment_refs"):
        yield f"DELETE FROM {table} WHERE session_id = ? AND seq = ?", key


class _Author(msgspec.Struct):
    user_id: str | None = None


def _author_id(columns: Columns) -> str | None:
    """Whose message it is, if it says so and can be read."""
    try:
        return msgspec.json.decode(columns.metadata_json, type=_Author).user_id
    except (msgspec.DecodeError, TypeError):
        return None


class NoBlobs(Mapping[str, bytes]):
    """In place of large content, where only what is around it matters."""

    def __getitem__(self, sha256: str) -> bytes:
        return b""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def tombstone(row: MessageRow) -> Columns:
    """The columns of what stays of a message when its person is erased."""
    key = (row.session_id, row.seq)
    try:
        message = message_from(*key, row.columns, row.hash, NoBlobs())
        content = tuple(_block_tombstone(block) for block in message.content if isinstance(block, _CALL_BLOCKS))
        metadata = _anonymous_metadata(message.metadata)
    except DragomanError:  # it cannot be read, and need not be
        message = Message(row.columns.id, key[0], Role.SYSTEM, (), MessageMetadata(), from_micros(0))
        content, metadata = (), MessageMetadata(extra={"erased": True})
    result = message.replace(
        content=content or (TextBlock(_ERASED_TEXT),), metadata=metadata, unknown_fields=value.UNSET
    )
    columns = columns_from(result)
    origin = {} if result.session_id == key[0] else {"session_id": result.session_id}
    return msgspec.structs.replace(
        columns,
        created_at=row.columns.created_at,
        unknown_json=msgspec.json.encode(origin).decode() if origin else None,
    )


_CALL_BLOCKS: Final = (ToolUseBlock, InvalidToolUseBlock, ToolResultBlock)


def _block_tombstone(block: ContentBlock) -> ContentBlock:
    """A block that others refer to, without what it says."""
    match block:
        case ToolUseBlock():
            return ToolUseBlock(block.id, block.name, {})
        case InvalidToolUseBlock():
            return InvalidToolUseBlock(block.id, block.name, "", _ERASED_TEXT)
        case ToolResultBlock():
            return ToolResultBlock(block.tool_use_id, (TextBlock(_ERASED_TEXT),), block.is_error)
        case _:
            return TextBlock(_ERASED_TEXT)


def _anonymous_metadata(metadata: MessageMetadata) -> MessageMetadata:
    is_partial = metadata.status is MessageStatus.PARTIAL
    return MessageMetadata(
        model=metadata.model,
        provider=metadata.provider,
        routing=metadata.routing.replace(reason=_ERASED_TEXT) if metadata.routing is not None else None,
        usage=metadata.usage,
        parent_tool_use_id=metadata.parent_tool_use_id,
        status=MessageStatus.CANCELLED if is_partial else metadata.status,  # nobody puts anything into it any more
        team_id=metadata.team_id,
        extra={"erased": True},
    )


# --- sizes -----------------------------------------------------------------------------------------------------------


@operation
def sizes(engine: str) -> Generator[Statement, Rows, SizeReport]:
    """How big everything is, but for what is kept outside."""
    session_rows = yield "SELECT count(*) FROM sessions", ()
    message_rows = yield (
        "SELECT count(*), coalesce(sum(octet_length(content_json) + octet_length(metadata_json)), 0) FROM messages",
        (),
    )
    table_rows = yield _TABLE_SIZES[engine], ()
    total_rows = yield _DATABASE_SIZE[engine], ()
    return SizeReport(
        engine=engine,
        sessions=session_rows[0][0],
        messages=message_rows[0][0],
        content_bytes=int(message_rows[0][1]),
        database_bytes=int(total_rows[0][0]),
        blobs=0,
        blob_bytes=0,
        tables={name: int(size) for name, size in table_rows},
    )


_TABLE_SIZES: Final = {
    "sqlite": "SELECT s.tbl_name, sum(d.pgsize) FROM dbstat AS d JOIN sqlite_schema AS s ON s.name = d.name"
    " WHERE d.aggregate = TRUE GROUP BY s.tbl_name ORDER BY s.tbl_name",
    "postgres": "SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class AS c"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = current_schema() AND c.relkind = 'r' ORDER BY c.relname",
}
_DATABASE_SIZE: Final = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgres": "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class AS c"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'",
}
