"""What a store does, written once for every engine.

An operation is a generator. It yields statements, ``(sql, arguments)``, is sent the rows that each one gives, and
returns its result. An engine runs it: in a thread for SQLite, with ``await`` for PostgreSQL, in both cases inside one
transaction. So there is one logic, and no second copy of it for another way of waiting.

The SQL is what both engines understand; ``?`` marks an argument. The one rule: no text of a caller ever becomes part of
a statement.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Generic, ParamSpec, TypeVar

import msgspec

from dragoman.errors import (
    ConflictError,
    DamagedError,
    FormatError,
    StoreError,
    UnknownMessageError,
    UnknownSessionError,
)
from dragoman.message import InvalidToolUseBlock, Message, MessageStatus, Role, ToolResultBlock, ToolUseBlock
from dragoman.store.recent import Recent
from dragoman.store.rows import Columns, columns_from, hash_of, micros, time_from
from dragoman.store.values import Lease, Row, Session, ToolCall, Totals
from dragoman.value import check_plain

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]
LOCKED: Final = " FOR NO KEY UPDATE"  # rows to be changed; an engine that has one writer at a time leaves it out
Result = TypeVar("Result", covariant=True)  # noqa: PLC0105  it reads as a name
Given = ParamSpec("Given")


class Operation(Generic[Result]):
    """Something to be done. To iterate over it is to begin it, which an engine may do more than once."""

    def __init__(self, begin: Callable[[], Generator[Statement, Rows, Result]]) -> None:
        self._begin = begin

    def __iter__(self) -> Generator[Statement, Rows, Result]:
        return self._begin()


class Passing(Operation[Result]):
    """Something that matters only while the machine runs: it need not survive a power cut."""


def operation(steps: Callable[Given, Generator[Statement, Rows, Result]]) -> Callable[Given, Operation[Result]]:
    """Make a function whose steps are these."""

    @functools.wraps(steps)
    def made(*arguments: Given.args, **named: Given.kwargs) -> Operation[Result]:
        return Operation(functools.partial(steps, *arguments, **named))

    return made


def bindable(arguments: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a statement. Not every engine can hold a NUL in a text, so none is given one."""
    for argument in arguments:
        if type(argument) is str and "\0" in argument:
            raise FormatError("a name or an id holds a NUL", where=repr(argument[:80]), remedy="Leave it out")
    return arguments


# --- sessions --------------------------------------------------------------------------------------------------------

_SESSION: Final = (
    "id, title, workspace_path, active_model, routing_policy_json, user_id, team_id, metadata_json,"
    " parent_session_id, parent_seq, last_seq, created_at, updated_at, schema_version, hash"
)


def _session_hash(row: Sequence[Any]) -> bytes:
    """SHA-256 over what a row says of its session that nothing else says: not how long it is, nor what it shares."""
    said = (*row[:8], row[11], row[13])
    return hashlib.sha256(json.dumps(said, default=str).encode()).digest()  # which takes whatever a damaged row holds


def _session_from(row: tuple[Any, ...]) -> Session:
    if _session_hash(row) != row[14]:
        raise DamagedError("what is known about it is not what was written", where=f"session {row[0]}")
    policy, metadata = row[4], row[7]
    return Session(
        id=row[0],
        title=row[1],
        workspace_path=row[2],
        active_model=row[3],
        routing_policy=msgspec.json.decode(policy) if policy is not None else None,
        user_id=row[5],
        team_id=row[6],
        metadata=msgspec.json.decode(metadata) if metadata is not None else {},
        parent_session_id=row[8],
        parent_seq=row[9],
        last_seq=row[10],
        created_at=time_from(row[11]),
        updated_at=time_from(row[12]),
        schema_version=row[13],
    )


@operation
def create_session(session: Session) -> Generator[Statement, Rows, Session]:
    """Add a session; ``ConflictError`` if there is one of that id."""
    row = (
        session.id,
        session.title,
        session.workspace_path,
        session.active_model,
        _json(session.routing_policy),
        session.user_id,
        session.team_id,
        _json(session.metadata or None),
        session.parent_session_id,
        session.parent_seq,
        session.last_seq,
        micros(session.created_at),
        micros(session.updated_at),
        session.schema_version,
    )
    made = yield (
        f"INSERT INTO sessions ({_SESSION}, last_message_id, indexed_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?) ON CONFLICT (id) DO NOTHING RETURNING id",
        (*row, _session_hash(row), session.last_seq),
    )
    if not made:
        raise ConflictError("there is one already", where=f"session {session.id}", code="session_exists")
    return session


def _json(given: dict[str, Any] | None) -> str | None:
    if given is None:
        return None
    try:
        check_plain(given, "what is kept with a session")
    except ValueError as error:
        raise FormatError(str(error)) from None
    return msgspec.json.encode(given).decode()


@operation
def get_session(session_id: str) -> Generator[Statement, Rows, Session]:
    """A session, or ``UnknownSessionError``."""
    rows = yield f"SELECT {_SESSION} FROM sessions WHERE id = ?", (session_id,)
    if not rows:
        raise unknown_session(session_id)
    return _session_from(rows[0])


def unknown_session(session_id: str) -> UnknownSessionError:
    return UnknownSessionError(f"no session {session_id!r}", remedy="List the sessions to see which there are")


@operation
def list_sessions(
    user_id: str | None, team_id: str | None, before: tuple[datetime, str] | None, limit: int
) -> Generator[Statement, Rows, list[Session]]:
    """Sessions, the one that changed last first; ``before``: time and id of the last one of the page before."""
    conditions, arguments = ["1 = 1"], list[Any]()
    for column, wanted in (("user_id", user_id), ("team_id", team_id)):
        if wanted is not None:
            conditions.append(f"{column} = ?")
            arguments.append(wanted)
    if before is not None:
        conditions.append("(updated_at, id) < (?, ?)")
        arguments.extend((micros(before[0]), before[1]))
    rows = yield (
        f"SELECT {_SESSION} FROM sessions WHERE {' AND '.join(conditions)} ORDER BY updated_at DESC, id DESC LIMIT ?",
        (*arguments, limit),
    )
    return [_session_from(row) for row in rows]


@operation
def find_sessions(part: str, limit: int) -> Generator[Statement, Rows, list[Session]]:
    """Sessions whose id begins or ends so, whatever its letters' case; the one that changed last first."""
    wanted, length = part.lower(), len(part)
    rows = yield (
        f"SELECT {_SESSION} FROM sessions WHERE lower(substr(id, 1, ?)) = ? OR lower(substr(id, 6, ?)) = ?"
        " OR lower(substr(id, length(id) + 1 - ?)) = ? ORDER BY updated_at DESC, id DESC LIMIT ?",
        (length, wanted, length, wanted, length, wanted, limit),
    )
    return [_session_from(row) for row in rows]


_CHANGEABLE: Final = {
    "title": "title",
    "workspace_path": "workspace_path",
    "active_model": "active_model",
    "routing_policy": "routing_policy_json",
    "metadata": "metadata_json",
    "user_id": "user_id",
    "team_id": "team_id",
}


@operation
def change_session(session_id: str, changes: dict[str, Any], now: datetime) -> Generator[Statement, Rows, Session]:
    """Give some fields of a session new values."""
    columns = [f"{_CHANGEABLE[name]} = ?" for name in changes]
    values = [_json(given) if _CHANGEABLE[name].endswith("_json") else given for name, given in changes.items()]
    yield from _alone_in(session_id)
    yield from get_session(session_id)  # what is damaged is not given a hash that fits
    (row,) = yield (
        f"UPDATE sessions SET {', '.join((*columns, 'updated_at = ?'))} WHERE id = ? RETURNING {_SESSION}",
        (*values, micros(now), session_id),
    )
    row = (*row[:14], _session_hash(row))
    yield "UPDATE sessions SET hash = ? WHERE id = ?", (row[14], session_id)
    return _session_from(row)


@operation
def fork_session(session_id: str, at_seq: int, made: Session) -> Generator[Statement, Rows, Session]:
    """A session that shares the history of another one up to a message. Nothing is copied."""
    origin = yield from get_session(session_id)
    if not 0 <= at_seq <= origin.last_seq:
        raise UnknownMessageError(f"no message {at_seq} in session {session_id!r}; it has {origin.last_seq}")
    while at_seq <= origin.parent_seq and origin.parent_session_id is not None:  # it lies in what that one shares
        origin = yield from get_session(origin.parent_session_id)
    _, newest = yield from _alone_in(origin.id)  # so that it is not deleted meanwhile
    forked = msgspec.structs.replace(made, parent_session_id=origin.id, parent_seq=at_seq, last_seq=at_seq)
    yield from create_session(forked)
    yield "UPDATE sessions SET last_message_id = ? WHERE id = ?", (newest, forked.id)
    return forked


# --- lineage ---------------------------------------------------------------------------------------------------------


class Stretch(msgspec.Struct, frozen=True):
    """A part of a history: the messages of one session from ``first`` to ``last``."""

    session_id: str
    first: int
    last: int


@operation
def lineage(session_id: str) -> Generator[Statement, Rows, list[Stretch]]:
    """The stretches that make up a history, oldest first. The last one is the session's own, and may be empty."""
    rows = yield "SELECT parent_session_id, parent_seq, last_seq FROM sessions WHERE id = ?", (session_id,)
    if not rows:
        raise unknown_session(session_id)
    parent, parent_seq, last = rows[0]
    stretches = [Stretch(session_id, parent_seq + 1, last)]
    while parent is not None and parent_seq > 0:
        owner, last = parent, parent_seq
        rows = yield "SELECT parent_session_id, parent_seq FROM sessions WHERE id = ?", (owner,)
        if not rows:
            raise _gone(owner, "it shares the history of a session that is not there")
        parent, parent_seq = rows[0]
        stretches.append(Stretch(owner, parent_seq + 1, last))
    if parent_seq:
        raise _gone(stretches[-1].session_id, "the beginning of its history is not there")
    for stretch in stretches:
        if stretch.first > 1:  # nothing of its own may hide behind what it shares
            rows = yield "SELECT min(seq) FROM messages WHERE session_id = ?", (stretch.session_id,)
            if rows[0][0] not in (None, stretch.first):
                raise _gone(stretch.session_id, "it does not begin where the history that it shares ends")
    return stretches[::-1]


def _gone(session_id: str, what: str) -> DamagedError:
    return DamagedError(what, where=f"session {session_id}")


# --- messages: writing -----------------------------------------------------------------------------------------------

_INSERT: Final = (
    "INSERT INTO messages (session_id, seq, id, role, content_json, metadata_json, created_at, schema_version, status,"
    " unknown_json, blobs_json, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Places(msgspec.Struct, frozen=True):
    """Where messages are in their session."""

    seqs: list[int]
    are_new: bool  # false if they were there before


class Draft(msgspec.Struct, frozen=True):
    """A message that is about to be stored, with its columns."""

    message: Message
    columns: Columns
    renewed: dict[str, int] = {}  # large content that was let go, and put again since: its hash, and when it went


def drafts_from(messages: Sequence[Message]) -> list[Draft]:
    """The messages with their columns."""
    return [Draft(message, columns_from(message)) for message in messages]


@operation
def append(
    session_id: str,
    drafts: Sequence[Draft],
    *,
    now: datetime,
    expected_seq: int | None = None,
    idempotency_key: str | None = None,
) -> Generator[Statement, Rows, Places]:
    """Add messages at the end of a session, and say which places they have.

    With a key, or with the id of a message that is there already: the same again changes nothing and gives the same
    places; something else under that name is a ``ConflictError``.
    """
    last_seq, newest = yield from _alone_in(session_id)
    fingerprint = b""
    if idempotency_key is not None:
        fingerprint = _fingerprint(drafts)
        known = yield from _known_by_key(session_id, idempotency_key, fingerprint)
        if known is not None:
            return Places(known, are_new=False)
    known = yield from _known_by_id(session_id, drafts, newest)
    if known is not None:
        return Places(known, are_new=False)
    if expected_seq is not None and last_seq != expected_seq:
        what = f"it has {last_seq} messages, not {expected_seq}"
        raise ConflictError(what, where=f"session {session_id}", remedy="Read what is new, and try again")
    first = last_seq + 1
    for seq, draft in enumerate(drafts, first):
        yield _INSERT, _inserted(session_id, seq, draft.columns)
        yield from _beside(session_id, seq, draft)
    yield (
        "UPDATE sessions SET last_seq = ?, last_message_id = ?, updated_at = ? WHERE id = ?",
        (last_seq + len(drafts), max(newest, *(draft.columns.id for draft in drafts)), micros(now), session_id),
    )
    if idempotency_key is not None:
        yield (
            "INSERT INTO idempotency (session_id, key, fingerprint, first_seq, last_seq, created_at)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (session_id, idempotency_key, fingerprint, first, first + len(drafts) - 1, micros(now)),
        )
    return Places(list(range(first, first + len(drafts))), are_new=True)


def _alone_in(session_id: str) -> Generator[Statement, Rows, tuple[int, str]]:
    """Keep every other writer out of a session until we are done; its last place, and the greatest id in it."""
    rows = yield (
        f"SELECT last_seq, last_message_id FROM sessions WHERE id = ?{LOCKED}",
        (session_id,),
    )
    if not rows:
        raise unknown_session(session_id)
    last_seq, newest = rows[0]
    return last_seq, newest


def _inserted(session_id: str, seq: int, columns: Columns) -> tuple[Any, ...]:
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
        hash_of(session_id, seq, columns),
    )


def _fingerprint(drafts: Sequence[Draft]) -> bytes:
    """What was asked for, without ids and times, which a caller makes up anew when it asks again."""
    said = hashlib.sha256()
    for draft in drafts:
        said.update(f"{draft.columns.role}\n{draft.columns.content_json}\n{draft.columns.metadata_json}\n".encode())
    return said.digest()


def _known_by_key(session_id: str, key: str, fingerprint: bytes) -> Generator[Statement, Rows, list[int] | None]:
    rows = yield (
        "SELECT fingerprint, first_seq, last_seq FROM idempotency WHERE session_id = ? AND key = ?",
        (session_id, key),
    )
    if not rows:
        return None
    known, first, last = rows[0]
    if bytes(known) != fingerprint:
        raise ConflictError(
            "another append had this idempotency key",
            where=f"session {session_id}",
            remedy="Use a new key for something new",
            code="idempotency_key_reused",
        )
    return list(range(first, last + 1))


def _known_by_id(session_id: str, drafts: Sequence[Draft], newest: str) -> Generator[Statement, Rows, list[int] | None]:
    """The places of messages that are stored already, if it is all of them, and they say the same.

    Ids grow within a session, most often: one that is greater than every other is new.
    """
    if len(drafts) > 1 and len({draft.columns.id for draft in drafts}) < len(drafts):
        what = "two of these messages have the same id"
        raise ConflictError(what, where=f"session {session_id}", code="id_conflict")
    found: list[int] = []
    for draft in drafts:
        columns = draft.columns
        if columns.id > newest:
            newest = columns.id
            continue
        rows: Rows = []
        for stretch in (yield from lineage(session_id)):
            rows += yield (
                "SELECT seq, content_json, role FROM messages WHERE session_id = ? AND id = ? AND seq <= ?",
                (stretch.session_id, columns.id, stretch.last),
            )
        if not rows:
            continue
        seq, content_json, role = rows[-1]
        if (content_json, role) != (columns.content_json, columns.role):
            what = "another message has this id"
            raise ConflictError(what, where=f"session {session_id}, message {columns.id}", code="id_conflict")
        found.append(seq)
    if found and len(found) < len(drafts):
        what = "some of these messages are stored already, and some are not"
        raise ConflictError(what, where=f"session {session_id}", remedy="Append the new ones", code="id_conflict")
    return found or None


@operation
def end_message(session_id: str, draft: Draft, now: datetime) -> Generator[Statement, Rows, int]:
    """Give a message that is still arriving its new content; once it has ended, it stays as it is."""
    yield from _alone_in(session_id)
    rows = yield (
        "SELECT seq, status FROM messages WHERE session_id = ? AND id = ?",
        (session_id, draft.columns.id),
    )
    if not rows:
        raise unknown_message(session_id, draft.columns.id)
    seq, status = rows[0]
    if status != MessageStatus.PARTIAL.value:
        what = f"it has ended as {status}"
        raise ConflictError(what, where=f"message {draft.columns.id}", code="message_ended")
    columns = draft.columns
    yield (
        "UPDATE messages SET role = ?, content_json = ?, metadata_json = ?, created_at = ?, schema_version = ?,"
        " status = ?, unknown_json = ?, blobs_json = ?, hash = ? WHERE session_id = ? AND seq = ?",
        (*_inserted(session_id, seq, columns)[3:], session_id, seq),
    )
    for table in ("usage", "blob_refs"):
        yield f"DELETE FROM {table} WHERE session_id = ? AND seq = ?", (session_id, seq)
    yield (  # a call that was answered or given up meanwhile stays so
        "DELETE FROM tool_calls WHERE session_id = ? AND seq = ? AND result_seq IS NULL AND status <> 'cancelled'",
        (session_id, seq),
    )
    yield (
        "UPDATE tool_calls SET result_message_id = NULL, status = 'pending', completed_at = NULL, result_seq = NULL"
        " WHERE session_id = ? AND result_seq = ?",
        (session_id, seq),
    )
    yield (
        "UPDATE sessions SET updated_at = ?, indexed_seq = CASE WHEN indexed_seq >= ? THEN ? ELSE indexed_seq END"
        " WHERE id = ?",
        (micros(now), seq, seq - 1, session_id),
    )
    yield from _beside(session_id, seq, draft)
    return int(seq)


def unknown_message(session_id: str, message_id: str) -> UnknownMessageError:
    return UnknownMessageError(f"no message {message_id!r} in session {session_id!r}")


def _beside(session_id: str, seq: int, draft: Draft) -> Generator[Statement, Rows, None]:
    """What stands in other tables about a message: its calls, its result, what it consumed, what it keeps outside."""
    message = draft.message
    if message.role is Role.ASSISTANT:
        for number, block in enumerate(message.content):
            if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
                yield from _called(session_id, seq, message, number, block)
        if message.metadata.usage is not None:
            yield used(session_id, seq, message)
    elif message.role is Role.TOOL:
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                yield from _answered(session_id, seq, message, block)
    for sha256 in draft.columns.blobs:
        yield from _named(session_id, seq, sha256, draft.renewed.get(sha256))


class LetGoError(StoreError):
    """Large content that is about to be named is being let go, or was: it has to be put again. No caller sees it."""

    def __init__(self, sha256: str, state: str, changed_at: int) -> None:
        super().__init__(f"it is {state}", where=f"large content {sha256}")
        self.sha256 = sha256
        self.state = state
        self.changed_at = changed_at


def _named(session_id: str, seq: int, sha256: str, renewed: int | None) -> Generator[Statement, Rows, None]:
    """Name large content. Who lets it go writes the same row of ``blob_states`` first, so that one of both waits."""
    rows = yield (
        "INSERT INTO blob_states (sha256, state, changed_at) VALUES (?, 'kept', 0)"
        " ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256 RETURNING state, changed_at",
        (sha256,),
    )
    state, changed_at = rows[0]
    if state == "going" or (state == "gone" and changed_at != renewed):
        raise LetGoError(sha256, state, changed_at)
    if state == "gone":
        yield "UPDATE blob_states SET state = 'kept', changed_at = 0 WHERE sha256 = ?", (sha256,)
    yield "INSERT INTO blob_refs (session_id, seq, sha256) VALUES (?, ?, ?)", (session_id, seq, sha256)


def _called(
    session_id: str, seq: int, message: Message, number: int, block: ToolUseBlock | InvalidToolUseBlock
) -> Generator[Statement, Rows, None]:
    raw_id = (block.provider_raw or {}).get("id")
    status = "pending" if isinstance(block, ToolUseBlock) else "failed"  # what cannot be used is never made
    yield (
        "INSERT INTO tool_calls (id, session_id, message_id, name, status, provider_id, provider, created_at, seq,"
        " block) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session_id, id) DO NOTHING",
        (
            visible(block.id),
            session_id,
            message.id,
            visible(block.name),
            status,
            visible(raw_id) if isinstance(raw_id, str) else None,
            _maybe(message.metadata.provider),
            micros(message.created_at),
            seq,
            number,
        ),
    )


def visible(text: str) -> str:
    """A word of a message as a column beside it: with U+2400 for a NUL, which not every engine can hold there."""
    return text.replace("\0", "\u2400")


def _maybe(text: str | None) -> str | None:
    return None if text is None else visible(text)


def _answered(session_id: str, seq: int, message: Message, result: ToolResultBlock) -> Generator[Statement, Rows, None]:
    status = "failed" if result.is_error else "succeeded"
    call_id = visible(result.tool_use_id)
    answer = (message.id, status, micros(message.created_at), seq)
    change = (
        "UPDATE tool_calls SET result_message_id = ?, status = ?, completed_at = ?, result_seq = ?"
        " WHERE session_id = ? AND id = ? AND result_seq IS NULL RETURNING id",
        (*answer, session_id, call_id),
    )
    changed = yield change
    if not changed and (yield from _is_made_own(session_id, call_id)):
        yield change


def _is_made_own(session_id: str, call_id: str) -> Generator[Statement, Rows, bool]:
    """Give a fork a row of its own for a call that it shares, if the call is open where the history was shared."""
    for stretch in reversed((yield from lineage(session_id))):
        place = (stretch.session_id, call_id, stretch.last)
        rows = yield (
            "SELECT status, result_seq FROM tool_calls WHERE session_id = ? AND id = ? AND seq <= ?",
            place,
        )
        if rows:
            status, result_seq = rows[0]
            if stretch.session_id == session_id or (result_seq is not None and result_seq <= stretch.last):
                return False
            yield (
                "INSERT INTO tool_calls (id, session_id, message_id, name, status, provider_id, provider, created_at,"
                " seq, block) SELECT id, ?, message_id, name, ?, provider_id, provider, created_at, seq, block"
                " FROM tool_calls WHERE session_id = ? AND id = ? AND seq <= ?",
                (session_id, status if result_seq is None else "pending", *place),
            )
            return True
    return False


def used(session_id: str, seq: int, message: Message) -> Statement:
    metadata, usage = message.metadata, message.metadata.usage
    assert usage is not None
    return (
        "INSERT INTO usage (session_id, seq, day, model, provider, user_id, team_id, input_tokens, output_tokens,"
        " cached_input_tokens, cache_creation_input_tokens, reasoning_tokens, cost_usd)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            session_id,
            seq,
            message.created_at.date().isoformat(),
            _maybe(metadata.model),
            _maybe(metadata.provider),
            _maybe(metadata.user_id),
            _maybe(metadata.team_id),
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_input_tokens,
            usage.cache_creation_input_tokens,
            usage.reasoning_tokens,
            str(usage.cost_usd),
        ),
    )


# --- messages: reading -----------------------------------------------------------------------------------------------

COLUMNS: Final = (
    "session_id, seq, id, role, content_json, metadata_json, created_at, schema_version, status, unknown_json,"
    " blobs_json, hash"
)


_NO_PLACE: Final = 2**62  # greater than the number of any message


class Found(msgspec.Struct, frozen=True):
    """A row as it was read, not yet a message."""

    session_id: str
    seq: int
    columns: Columns
    hash: bytes


def found_from(row: tuple[Any, ...]) -> Found:
    return Found(row[0], row[1], Columns(*row[2:11]), row[11])


@operation
def read(session_id: str, after_seq: int, limit: int) -> Generator[Statement, Rows, list[Found]]:
    """The rows behind a place, in order."""
    page = yield from page_after(session_id, after_seq, limit, Recent())
    return [one for one in page if isinstance(one, Found)]


@operation
def page_after(
    session_id: str, after_seq: int, limit: int, recent: Recent
) -> Generator[Statement, Rows, list[Found | Row]]:
    """The messages behind a place, in order; those that were read lately as they are."""
    found: list[Found | Row] = []
    for stretch in (yield from lineage(session_id)):
        first, wanted = max(after_seq + 1, stretch.first), limit - len(found)
        is_own = stretch.session_id == session_id
        if (first <= stretch.last or is_own) and wanted > 0:
            last = first + wanted if is_own else stretch.last  # of its own there is nothing behind the last one
            page = Page(stretch.session_id, first, last, wanted)
            found.extend((yield from _page(page, range(first, min(first + wanted, stretch.last + 1)), recent)))
    return found


@operation
def page_before(
    session_id: str, before_seq: int | None, limit: int, recent: Recent
) -> Generator[Statement, Rows, list[Found | Row]]:
    """The messages before a place, or the newest ones, in order; those that were read lately as they are."""
    found: list[Found | Row] = []
    for stretch in reversed((yield from lineage(session_id))):
        last = stretch.last if before_seq is None else min(stretch.last, before_seq - 1)
        wanted = limit - len(found)
        is_newest = before_seq is None and stretch.session_id == session_id
        if (last >= stretch.first or is_newest) and wanted > 0:
            page = Page(stretch.session_id, stretch.first, _NO_PLACE if is_newest else last, wanted, backward=True)
            places = range(max(stretch.first, last - wanted + 1), last + 1)
            found[:0] = yield from _page(page, places, recent)
    return found


class Page(msgspec.Struct, frozen=True):
    """Messages of one session from ``first`` to ``last``, at most so many of them."""

    session_id: str
    first: int
    last: int
    limit: int
    backward: bool = False  # the last ones, rather than the first ones

    def statement(self, columns: str) -> Statement:
        order = "seq DESC" if self.backward else "seq"
        sql = f"SELECT {columns} FROM messages WHERE session_id = ? AND seq >= ? AND seq <= ? ORDER BY {order} LIMIT ?"
        return sql, (self.session_id, self.first, self.last, self.limit)


def _page(page: Page, places: range, recent: Recent) -> Generator[Statement, Rows, list[Found | Row]]:
    """What stands at these places, in order: exactly one message at each, or something is damaged."""
    if not recent.has_some_of(page.session_id):
        rows = yield page.statement(COLUMNS)
        _check_unbroken(page, rows, places)
        return [found_from(row) for row in (reversed(rows) if page.backward else rows)]
    rows = yield page.statement("hash, seq")
    _check_unbroken(page, rows, places)
    known = [(seq, recent.get(bytes(hash_))) for hash_, seq in (reversed(rows) if page.backward else rows)]
    missing = [seq for seq, message in known if message is None]
    others: Rows = []
    if missing:
        part = Page(page.session_id, missing[0], missing[-1], page.limit)
        others = yield part.statement(COLUMNS)
        _check_unbroken(part, others, range(missing[0], missing[-1] + 1))
    read_now = {row[1]: found_from(row) for row in others}
    return [read_now[seq] if message is None else Row(seq, message) for seq, message in known]


def _check_unbroken(page: Page, rows: Rows, places: range) -> None:
    """There is a row for each of these places, and no other."""
    if [row[1] for row in rows] != list(reversed(places) if page.backward else places):
        raise _gone(page.session_id, f"of the messages {places.start} to {places.stop - 1} some are not there")


@operation
def at(session_id: str, seqs: Sequence[int]) -> Generator[Statement, Rows, list[Found]]:
    """The messages of a history at these places."""
    found: list[Found] = []
    stretches = yield from lineage(session_id)
    for seq in seqs:
        owner = next((one.session_id for one in stretches if one.first <= seq <= one.last), session_id)
        rows = yield f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND seq = ?", (owner, seq)
        found.extend(map(found_from, rows))
    return found


@operation
def get_message(session_id: str, message_id: str) -> Generator[Statement, Rows, Found]:
    """The message of that id, or ``UnknownMessageError``."""
    for stretch in reversed((yield from lineage(session_id))):
        rows = yield (
            f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND id = ? AND seq <= ?",
            (stretch.session_id, message_id, stretch.last),
        )
        if rows:
            return found_from(rows[0])
    raise unknown_message(session_id, message_id)


@operation
def tool_calls(session_id: str, status: str | None) -> Generator[Statement, Rows, list[ToolCall]]:
    """The calls of a history in their order, as they stand in it."""
    calls: dict[str, ToolCall] = {}
    for stretch in (yield from lineage(session_id)):
        rows = yield (
            "SELECT id, session_id, message_id, seq, result_message_id, result_seq, name, status, provider,"
            " provider_id, created_at, completed_at FROM tool_calls WHERE session_id = ? AND seq <= ?"
            " ORDER BY seq, block",
            (stretch.session_id, stretch.last),
        )
        for row in rows:
            call = _call_from(row)
            if call.result_seq is not None and call.result_seq > stretch.last:  # answered behind the fork
                pending: Any = {"result_message_id": None, "result_seq": None, "completed_at": None}
                call = msgspec.structs.replace(call, status="pending", **pending)
            calls[call.id] = call
    return [call for call in calls.values() if status in (None, call.status)]


def _call_from(row: tuple[Any, ...]) -> ToolCall:
    return ToolCall(
        id=row[0],
        session_id=row[1],
        message_id=row[2],
        seq=row[3],
        result_message_id=row[4],
        result_seq=row[5],
        name=row[6],
        status=row[7],
        provider=row[8],
        provider_id=row[9],
        created_at=time_from(row[10]),
        completed_at=time_from(row[11]) if row[11] is not None else None,
    )


@operation
def cancel_tool_call(session_id: str, call_id: str, now: datetime) -> Generator[Statement, Rows, bool]:
    """Mark a call as given up, if nobody has answered it."""
    yield from _alone_in(session_id)
    call_id = visible(call_id)
    change = (
        "UPDATE tool_calls SET status = 'cancelled', completed_at = ? WHERE session_id = ? AND id = ?"
        " AND status = 'pending' RETURNING id",
        (micros(now), session_id, call_id),
    )
    rows = yield change
    if not rows and (yield from _is_made_own(session_id, call_id)):
        rows = yield change
    return bool(rows)


# --- tool ids --------------------------------------------------------------------------------------------------------


@operation
def tool_ids(session_id: str) -> Generator[Statement, Rows, list[tuple[str, str, str]]]:
    """What each provider calls the calls of a session, in the order in which it was learned."""
    learned: list[tuple[str, str, str]] = []
    for stretch in (yield from lineage(session_id)):
        rows = yield (
            "SELECT provider, tool_id, provider_id FROM tool_ids WHERE session_id = ? ORDER BY number",
            (stretch.session_id,),
        )
        learned.extend((provider, tool_id, provider_id) for provider, tool_id, provider_id in rows)
    return learned


@operation
def learn_tool_ids(session_id: str, entries: Sequence[tuple[str, str, str]]) -> Generator[Statement, Rows, None]:
    """Remember what providers call the calls of a session."""
    yield from _alone_in(session_id)
    rows = yield "SELECT coalesce(max(number), 0) FROM tool_ids WHERE session_id = ?", (session_id,)
    for number, entry in enumerate(entries, rows[0][0] + 1):
        yield (
            "INSERT INTO tool_ids (session_id, number, provider, tool_id, provider_id) VALUES (?, ?, ?, ?, ?)",
            (session_id, number, *entry),
        )


# --- leases ----------------------------------------------------------------------------------------------------------


def take_lease(session_id: str, owner: str, now: datetime, until: datetime) -> Passing[Lease]:
    """The right to run a turn, if nobody else has it; taking it again prolongs it."""
    return Passing(functools.partial(_taken, session_id, owner, now, until))


def release_lease(session_id: str, owner: str) -> Passing[None]:
    """Give the right back."""
    return Passing(functools.partial(_released, session_id, owner))


def _taken(session_id: str, owner: str, now: datetime, until: datetime) -> Generator[Statement, Rows, Lease]:
    rows = yield (
        "INSERT INTO leases (session_id, owner, expires_at) SELECT id, ?, ? FROM sessions WHERE id = ?"
        " ON CONFLICT (session_id) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at"
        " WHERE leases.owner = excluded.owner OR leases.expires_at <= ? RETURNING owner",
        (owner, micros(until), session_id, micros(now)),
    )
    if rows:
        return Lease(session_id=session_id, owner=owner, expires_at=until)
    held = yield "SELECT expires_at FROM leases WHERE session_id = ?", (session_id,)
    if not held:
        raise unknown_session(session_id)
    raise ConflictError(
        f"a turn is running, until {time_from(held[0][0]).isoformat()} at the latest",
        where=f"session {session_id}",
        remedy="Wait for it, or cancel it",
        code="turn_in_flight",
    )


def _released(session_id: str, owner: str) -> Generator[Statement, Rows, None]:
    yield "DELETE FROM leases WHERE session_id = ? AND owner = ?", (session_id, owner)


# --- totals ----------------------------------------------------------------------------------------------------------

_GROUPS: Final = {
    "session": "session_id",
    "user": "user_id",
    "team": "team_id",
    "model": "model",
    "provider": "provider",
    "day": "day",
}
_COUNTED: Final = (
    "day, model, provider, user_id, team_id, input_tokens, output_tokens, cached_input_tokens,"
    " cache_creation_input_tokens, reasoning_tokens, cost_usd"
)
_EVER_USED: Final = (  # what sessions that were deleted have cost was paid as well
    f"SELECT session_id, 1 AS messages, {_COUNTED} FROM usage"
    f" UNION ALL SELECT NULL, messages, {_COUNTED} FROM past_usage"
)


@operation
def totals(
    by: str, wanted: dict[str, str], since: str | None, until: str | None
) -> Generator[Statement, Rows, list[Totals]]:
    """What was consumed and what it cost, by group; days are in UTC, and ``until`` is the first day not counted."""
    group = _GROUPS[by]
    conditions, arguments = ["1 = 1"], list[Any]()
    for name, value in wanted.items():
        conditions.append(f"{_GROUPS[name]} = ?")
        arguments.append(value)
    for sign, day in ((">=", since), ("<", until)):
        if day is not None:
            conditions.append(f"day {sign} ?")
            arguments.append(day)
    rows = yield (
        f"SELECT {group}, sum(messages), sum(input_tokens), sum(output_tokens), sum(cached_input_tokens),"
        f" sum(cache_creation_input_tokens), sum(reasoning_tokens), decimal_sum(cost_usd) FROM ({_EVER_USED})"
        f" AS ever WHERE {' AND '.join(conditions)} GROUP BY {group}",
        arguments,
    )
    found = [
        Totals(
            group=row[0],
            messages=int(row[1]),
            input_tokens=int(row[2]),
            output_tokens=int(row[3]),
            cached_input_tokens=int(row[4]),
            cache_creation_input_tokens=int(row[5]),
            reasoning_tokens=int(row[6]),
            cost_usd=Decimal(str(row[7])),
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.group is not None, one.group or ""))  # engines sort each in their own way
