"""Write messages: append them at the end of a session, all or none, and end a partial message once.

Invariant: writing the same again changes nothing, and other content under the same id or key is rejected.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.errors import ConflictError, FormatError, InputError, StoreError
from dragoman.message import (
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    ToolResultBlock,
    ToolUseBlock,
    usage_problems,
)
from dragoman.offload import LARGE, estimate_size
from dragoman.store.message_reader import MESSAGE_COLUMNS, File, unknown_message
from dragoman.store.message_rows import Columns, columns_from, message_hash
from dragoman.store.operation import (
    NO_GATHER,
    AnyOp,
    Gather,
    Rows,
    Statement,
    Steps,
    insert_chunks,
    operation,
    optional_column_text,
    quick,
    to_micros,
    values_clause,
)
from dragoman.store.row_hash import check_row, row_hash
from dragoman.store.sessions import TOUCH, create_session, lineage, lock_session, touch_arguments, unknown_session
from dragoman.store.tool_call_rows import REOPEN_CALL, insert_call, record_result
from dragoman.store.types import Session

CALL_BLOCKS: Final = (ToolUseBlock, InvalidToolUseBlock)
USAGE_COLUMNS: Final = (
    "session_id, seq, day, model, provider, user_id, team_id, input_tokens, output_tokens, cached_input_tokens,"
    " cache_creation_input_tokens, reasoning_tokens, cost_usd, unpriced"
)
KEY_COLUMNS: Final = "session_id, key, fingerprint, first_seq, last_seq, created_at, hash"
MOVE_END: Final = f"UPDATE sessions SET last_seq = ?, last_message_id = ?, {TOUCH}, is_behind = 1 WHERE id = ?"
_MOVE_FROM_END: Final = f"{MOVE_END} AND last_seq = ? AND last_message_id = ? RETURNING 1"
_MOVE_LISTED: Final = (  # the same for a session whose indexed columns stay: SQLite would rewrite both indexes
    "UPDATE sessions SET last_seq = ?, last_message_id = ?,"
    " updated_at = CASE WHEN updated_at > ? THEN updated_at ELSE ? END"
    " WHERE id = ? AND last_seq = ? AND last_message_id = ? AND +is_behind = 1 AND listed_at >= ? RETURNING 1"
)
_PARTIAL_COLUMNS: Final = (  # of a message that is replaced
    "seq, status,"
    " EXISTS (SELECT 1 FROM usage AS u WHERE u.session_id = messages.session_id AND u.seq = messages.seq),"
    " EXISTS (SELECT 1 FROM attachment_refs AS f WHERE f.session_id = messages.session_id AND f.seq = messages.seq),"
    " content_json = '[]'"
)

_FEW_MESSAGES: Final = 8

SessionEnd = tuple[int, str]  # last seq and greatest message id of a session


class MessageRange(msgspec.Struct, frozen=True):
    """The seqs of written messages."""

    seqs: list[int]
    end: SessionEnd | None  # the new end of the session; None if they were stored before


class Draft(msgspec.Struct, frozen=True):
    """A message to store, with its columns."""

    message: Message
    columns: Columns
    gone_at: dict[str, int] = {}  # blobs that were collected and put again: hash, and time of the deletion


def drafts_from(messages: Sequence[Message]) -> list[Draft]:
    """Return messages with their columns; ``FormatError`` for an impossible usage."""
    for message in messages:
        check_usage(message)
    return [Draft(message, columns_from(message)) for message in messages]


def quick_if_small(operation: AnyOp, drafts: Sequence[Draft], gather: Gather = NO_GATHER, size: int = 0) -> AnyOp:
    """An operation on messages, marked as quick if these are few and short, with ``size`` bytes that it also stores."""
    size += sum(len(draft.columns.content_json) + len(draft.columns.metadata_json) for draft in drafts)
    return quick(operation, gather) if size < LARGE and len(drafts) <= _FEW_MESSAGES else operation


async def make_drafts(messages: Sequence[Message]) -> list[Draft]:
    """Do the same as ``drafts_from``, in a thread if the messages are large."""
    if _is_small(messages):
        return drafts_from(messages)
    return await asyncio.to_thread(drafts_from, messages)


def _is_small(messages: Sequence[Message]) -> bool:
    """Whether encoding takes a short time."""
    size = estimate_size(messages)
    for message in messages:
        for block in message.content:
            size += len(getattr(block, "text", ""))
    return size < LARGE


def check_usage(message: Message) -> None:
    """Raise ``FormatError`` for an impossible usage, which would spoil the totals."""
    usage = message.metadata.usage
    problems = usage_problems(usage) if usage is not None else {}
    if problems:
        raise FormatError(
            "; ".join(problems.values()),
            where=f"message {message.id}, metadata.usage",
            remedy="Correct these figures, or leave the usage out",
            code="impossible_usage",
        )


@operation
def append_messages(
    session_id: str,
    drafts: Sequence[Draft],
    *,
    now: datetime,
    expected_seq: int | None = None,
    idempotency_key: str | None = None,
    end: SessionEnd | None = None,
    is_listed: bool = False,
) -> Steps[MessageRange]:
    """Append messages to a session and return their seqs.

    A repetition under the same key, or with ids of stored messages, changes nothing and returns the same seqs; other
    content raises ``ConflictError``. ``end`` is the presumed end of the session, which saves a query. ``is_listed``:
    presumably no indexed column of the session changes.
    """
    if end is not None and idempotency_key is None and expected_seq in (None, end[0]) and are_after(drafts, end[1]):
        new_end = end[0] + len(drafts), drafts[-1].columns.id
        times = touch_arguments(now)
        rows: Rows = []
        if is_listed:
            rows = yield _MOVE_LISTED, (*new_end, *times[:2], session_id, *end, times[2])
        if rows or (yield _MOVE_FROM_END, (*new_end, *times, session_id, *end)):
            return (yield from insert_messages(session_id, end[0] + 1, drafts, new_end))
    last_seq, last_message_id = yield from lock_session(session_id)
    digest = b""
    if idempotency_key is not None:
        digest = fingerprint(drafts)
        known_seqs = yield from _find_by_key(session_id, idempotency_key, digest)
        if known_seqs is not None:
            return MessageRange(known_seqs, end=None)
    known_seqs = yield from _find_by_id(session_id, drafts, last_message_id)
    if known_seqs is not None:
        return MessageRange(known_seqs, end=None)
    if expected_seq is not None and last_seq != expected_seq:
        what = f"it has {last_seq} messages, not {expected_seq}"
        raise ConflictError(what, where=f"session {session_id}", remedy="Read the newer messages, and retry")
    new_end = last_seq + len(drafts), max(last_message_id, *(draft.columns.id for draft in drafts))
    yield MOVE_END, (*new_end, *touch_arguments(now), session_id)
    places = yield from insert_messages(session_id, last_seq + 1, drafts, new_end)
    if idempotency_key is not None:
        key_columns = idempotency_key, digest, places.seqs[0], places.seqs[-1], to_micros(now)
        yield (
            f"INSERT INTO idempotency ({KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (session_id, *key_columns, row_hash(*key_columns)),
        )
    return places


def are_after(drafts: Sequence[Draft], last_message_id: str) -> bool:
    """Whether each id is greater than the previous one, so that none is stored already."""
    for draft in drafts:
        if draft.columns.id <= last_message_id:
            return False
        last_message_id = draft.columns.id
    return True


def create_with_messages(session: Session, drafts: Sequence[Draft]) -> Steps[MessageRange]:
    """Insert a session and its first messages, whose ids increase; ``ConflictError`` if the session exists."""
    end = len(drafts), drafts[-1].columns.id
    yield from create_session(msgspec.structs.replace(session, last_seq=end[0]), end[1])
    return (yield from insert_messages(session.id, 1, drafts, end))


def insert_messages(session_id: str, first: int, drafts: Sequence[Draft], end: SessionEnd) -> Steps[MessageRange]:
    """Insert messages at their seqs. The session has this end already."""
    if len(drafts) == 1:
        yield messages_insert_sql(1), message_values(session_id, first, drafts[0].columns)
        if has_related_rows(drafts[0]):
            yield from _insert_related_rows(session_id, first, drafts[0])
        return MessageRange([first], end)
    for chunk in insert_chunks(list(enumerate(drafts, first))):
        rows = [message_values(session_id, seq, draft.columns) for seq, draft in chunk]
        yield messages_insert_sql(len(rows)), tuple(itertools.chain.from_iterable(rows))
        for seq, draft in chunk:
            yield from _insert_related_rows(session_id, seq, draft)
    return MessageRange(list(range(first, first + len(drafts))), end)


def has_related_rows(draft: Draft) -> bool:
    """Whether other tables may have rows about a message."""
    message = draft.message
    if message.role is Role.TOOL or draft.columns.blobs:
        return True
    metadata = message.metadata
    if metadata.usage is not None or metadata.user_message_attachments is not None:
        return True
    return any(isinstance(block, CALL_BLOCKS) for block in message.content)


@functools.cache
def messages_insert_sql(rows: int) -> str:
    """Return the statement that inserts so many messages."""
    return f"INSERT INTO messages ({MESSAGE_COLUMNS}) VALUES {values_clause(12, rows)}"


def message_values(session_id: str, seq: int, columns: Columns) -> tuple[Any, ...]:
    """The columns of a message at a seq."""
    return (
        session_id,
        seq,
        columns.id,
        columns.role,
        columns.content_json,
        columns.metadata_json,
        columns.created_at,
        columns.schema_version,
        columns.status,
        columns.unknown_json,
        columns.blobs_json,
        message_hash(session_id, seq, columns),
    )


def fingerprint(drafts: Sequence[Draft]) -> bytes:
    """Return a hash of the content without ids and times, which differ in a retry."""
    sha256 = hashlib.sha256()
    for draft in drafts:
        sha256.update(f"{draft.columns.role}\n{draft.columns.content_json}\n{draft.columns.metadata_json}\n".encode())
    return sha256.digest()


def _find_by_key(session_id: str, key: str, digest: bytes) -> Steps[list[int] | None]:
    rows = yield (
        "SELECT fingerprint, first_seq, last_seq, created_at, hash FROM idempotency WHERE session_id = ? AND key = ?",
        (session_id, key),
    )
    if not rows:
        return None
    stored, first, last, at, hash_ = rows[0]
    check_row(hash_, key, bytes(stored), first, last, at, where=f"session {session_id}, an idempotency key")
    if bytes(stored) != digest:
        raise ConflictError(
            "another append had this idempotency key",
            where=f"session {session_id}",
            remedy="Use a new key for something new",
            code="idempotency_key_reused",
        )
    return list(range(first, last + 1))


def _find_by_id(session_id: str, drafts: Sequence[Draft], last_message_id: str) -> Steps[list[int] | None]:
    """Return the seqs of messages that are all stored already with the same content.

    Ids grow within a session, most often: one that is greater than every other is new.
    """
    if len(drafts) > 1 and len({draft.columns.id for draft in drafts}) < len(drafts):
        what = "two of these messages have the same id"
        raise ConflictError(what, where=f"session {session_id}", code="id_conflict")
    seqs: list[int] = []
    for draft in drafts:
        columns = draft.columns
        if columns.id > last_message_id:
            last_message_id = columns.id
            continue
        rows: Rows = []
        for segment in (yield from lineage(session_id)):
            rows += yield (
                "SELECT seq, content_json, role FROM messages WHERE session_id = ? AND id = ? AND seq <= ?",
                (segment.session_id, columns.id, segment.last),
            )
        if not rows:
            continue
        seq, content_json, role = rows[-1]
        if (content_json, role) != (columns.content_json, columns.role):
            what = "another message has this id"
            raise ConflictError(what, where=f"session {session_id}, message {columns.id}", code="id_conflict")
        seqs.append(seq)
    if seqs and len(seqs) < len(drafts):
        what = "some of these messages are stored already, and some are not"
        raise ConflictError(what, where=f"session {session_id}", remedy="Append the new ones", code="id_conflict")
    return seqs or None


@operation
def update_message(session_id: str, draft: Draft, now: datetime) -> Steps[int]:
    """Replace the content of a partial message; ``ConflictError`` if it has ended."""
    rows = yield (  # locks the session as well
        f"UPDATE sessions SET {TOUCH}, is_behind = 1 WHERE id = ? RETURNING indexed_seq",
        (*touch_arguments(now), session_id),
    )
    if not rows:
        raise unknown_session(session_id)
    indexed_seq = rows[0][0]
    rows = yield (
        f"SELECT {_PARTIAL_COLUMNS} FROM messages WHERE session_id = ? AND id = ?",
        (session_id, draft.columns.id),
    )
    if not rows:
        raise unknown_message(session_id, draft.columns.id)
    seq, status, has_usage, has_files, was_empty = rows[0]
    if status != MessageStatus.PARTIAL.value:
        what = f"it has ended as {status}"
        raise ConflictError(what, where=f"message {draft.columns.id}", code="message_ended")
    columns = draft.columns
    yield (
        "UPDATE messages SET role = ?, content_json = ?, metadata_json = ?, created_at = ?, schema_version = ?,"
        " status = ?, unknown_json = ?, blobs_json = ?, hash = ? WHERE session_id = ? AND seq = ?",
        (*message_values(session_id, seq, columns)[3:], session_id, seq),
    )
    if has_usage:
        yield "DELETE FROM usage WHERE session_id = ? AND seq = ?", (session_id, seq)
    if has_files:
        yield "DELETE FROM attachment_refs WHERE session_id = ? AND seq = ?", (session_id, seq)
    if not was_empty:  # most answers were empty until now
        yield from _delete_related_rows(session_id, seq)
    if indexed_seq >= seq:
        yield "UPDATE sessions SET indexed_seq = ? WHERE id = ?", (seq - 1, session_id)
    yield from _insert_related_rows(session_id, seq, draft)
    return int(seq)


def _delete_related_rows(session_id: str, seq: int) -> Steps[None]:
    """Delete the rows of other tables about the old content of a message."""
    yield "DELETE FROM blob_refs WHERE session_id = ? AND seq = ?", (session_id, seq)
    yield (  # an answered or cancelled call stays
        "DELETE FROM tool_calls WHERE session_id = ? AND seq = ? AND result_seq IS NULL AND status <> 'cancelled'",
        (session_id, seq),
    )
    yield (
        f"UPDATE tool_calls SET {REOPEN_CALL} WHERE session_id = ? AND result_seq = ?",
        (session_id, seq),
    )


def _insert_related_rows(session_id: str, seq: int, draft: Draft) -> Steps[None]:
    """Insert the rows of other tables about a message: calls, results, usage, blobs, attachments."""
    message = draft.message
    if message.role is Role.ASSISTANT:
        for block_index, block in enumerate(message.content):
            if isinstance(block, CALL_BLOCKS):
                yield from insert_call(session_id, seq, message, block_index, block)
    elif message.role is Role.TOOL:
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                yield from record_result(session_id, seq, message, block)
    if message.metadata.usage is not None:  # of an answer, or of a summary that a model wrote
        yield usage_insert(session_id, seq, message)
    for sha256 in draft.columns.blobs:
        yield from _insert_blob_ref(session_id, seq, sha256, draft.gone_at.get(sha256))
    if message.metadata.user_message_attachments is not None:
        yield from insert_attachment_refs(session_id, seq, message)


class BlobCollectedError(StoreError):
    """A blob that a message refers to is being deleted and has to be put again. Callers never receive this error."""

    def __init__(self, sha256: str, state: str, changed_at: int) -> None:
        super().__init__(f"it is {state}", where=f"large content {sha256}")
        self.sha256 = sha256
        self.state = state
        self.changed_at = changed_at


def _insert_blob_ref(session_id: str, seq: int, sha256: str, gone_at: int | None) -> Steps[None]:
    """Insert a reference to a blob. The collector writes the same row of ``blob_states`` first, so one waits."""
    rows = yield (
        "INSERT INTO blob_states (sha256, state, changed_at) VALUES (?, 'kept', 0)"
        " ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256 RETURNING state, changed_at",
        (sha256,),
    )
    state, changed_at = rows[0]
    if state == "going" or (state == "gone" and changed_at != gone_at):
        raise BlobCollectedError(sha256, state, changed_at)
    if state == "gone":
        yield "UPDATE blob_states SET state = 'kept', changed_at = 0 WHERE sha256 = ?", (sha256,)
    yield "INSERT INTO blob_refs (session_id, seq, sha256) VALUES (?, ?, ?)", (session_id, seq, sha256)


def usage_insert(session_id: str, seq: int, message: Message) -> Statement:
    """Insert the usage of a message."""
    return usage_insert_sql(1), usage_values(session_id, seq, message)


@functools.cache
def usage_insert_sql(rows: int) -> str:
    """Return the statement that inserts so many usages."""
    return f"INSERT INTO usage ({USAGE_COLUMNS}) VALUES {values_clause(14, rows)}"


def usage_values(session_id: str, seq: int, message: Message) -> tuple[Any, ...]:
    """The columns of a message that has a usage."""
    return usage_columns(session_id, seq, message.created_at, message.metadata)


def usage_columns(session_id: str, seq: int, created_at: datetime, metadata: MessageMetadata) -> tuple[Any, ...]:
    """The columns of the usage in the metadata of a message."""
    usage = metadata.usage
    assert usage is not None
    return (
        session_id,
        seq,
        created_at.date().isoformat(),
        optional_column_text(metadata.model),
        optional_column_text(metadata.provider),
        optional_column_text(metadata.user_id),
        optional_column_text(metadata.team_id),
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
        usage.cache_creation_input_tokens,
        usage.reasoning_tokens,
        "0" if usage.amount_usd is None else str(usage.amount_usd),
        int(usage.amount_usd is None),
    )


_MAX_LENGTHS: Final = (100, 1_024)  # of buckets and paths, limited by the index


def attachment_files(message: Message) -> set[File]:
    """Return the attachments of a message, without invalid names."""
    files = {(attachment.bucket, attachment.path) for attachment in message.metadata.attachments}
    return {file for file in files if all(map(_is_valid_name, file, _MAX_LENGTHS))}


def _is_valid_name(text: str, max_length: int) -> bool:
    return 0 < len(text) <= max_length and text.isascii() and text.isprintable()


def insert_attachment_refs(session_id: str, seq: int, message: Message) -> Steps[None]:
    """Insert the attachments of a message."""
    for file in sorted(attachment_files(message)):
        yield (
            "INSERT INTO attachment_refs (session_id, seq, bucket, path) VALUES (?, ?, ?, ?)",
            (session_id, seq, *file),
        )


def expect_messages(argument: Any) -> list[Message]:
    """Return the messages to append as a list; ``InputError`` if an item is not a message."""
    is_single = isinstance(argument, str | bytes | Mapping) or not isinstance(argument, Iterable)
    messages = [argument] if is_single else list(argument)
    for message in messages:
        if not isinstance(message, Message):
            raise InputError(
                f"{type(message).__name__} is not a message",
                where="append",
                remedy="Append a dragoman.Message or several; dragoman.decode reads one from JSON",
            )
    return messages
