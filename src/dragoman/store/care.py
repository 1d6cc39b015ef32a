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
from types import ModuleType
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
from dragoman.store import collecting, indexes, runs, trace
from dragoman.store.calls import REOPENED
from dragoman.store.leases import IS_HELD
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.reading import Found, at, read
from dragoman.store.row_hash import rehashed
from dragoman.store.rows import Columns, columns_from, hash_of, message_from, micros, time_from
from dragoman.store.sessions import get_session, listed_at, unknown_session
from dragoman.store.totals import COUNTS, possible
from dragoman.store.values import ErasureReceipt, Session, SizeReport

Steps = Generator[Statement, Rows, None]
Ids = Callable[[], str]
_PAGE: Final = 200
_ERASED: Final = "[erased]"
_NOT_YET: Final = "they were not deleted yet"


class Gone(msgspec.Struct, kw_only=True):
    """What a deletion took away."""

    messages: int = 0
    tool_calls: int = 0
    forks: set[str] = set()  # that shared something of it
    blobs: set[str] = set()  # that it named


# --- deleting --------------------------------------------------------------------------------------------------------


@operation
def delete_session(engine: str, session_id: str, ids: Ids) -> Generator[Statement, Rows, Gone]:
    """Delete a session; what its forks share is theirs from now on."""
    return (yield from _deleted(engine, session_id, ids, erased=None))


_UNTOUCHED: Final = (
    "listed_at <= ? AND updated_at < ? AND received_at < ? AND NOT EXISTS"
    f" (SELECT 1 FROM leases WHERE leases.session_id = sessions.id AND {IS_HELD} AND leases.owner <> ?)"
)


def _at(before: datetime) -> tuple[int, int, int]:
    at = micros(before)
    return listed_at(at), at, at


@operation
def untouched(before: datetime, user_id: str | None) -> Generator[Statement, Rows, list[Session]]:
    """Sessions in which nothing happened since, the oldest first. One in which a turn is running is not among them."""
    whose, who = (" AND user_id = ?", (user_id,)) if user_id is not None else ("", ())
    rows = yield (
        f"SELECT id FROM sessions WHERE {_UNTOUCHED}{whose} ORDER BY updated_at, id",
        (*_at(before), "", *who),
    )
    found: list[Session] = []
    for (session_id,) in rows:
        found.append((yield from get_session(session_id)))
    return found


@operation
def delete_untouched(
    engine: str, session_id: str, before: datetime, ids: Ids, *, holder: str = ""
) -> Generator[Statement, Rows, bool]:
    """Delete a session, unless something happened in it after all, or somebody else than ``holder`` runs a turn."""
    rows = yield (
        f"UPDATE sessions SET last_seq = last_seq WHERE id = ? AND {_UNTOUCHED} RETURNING id",
        (session_id, *_at(before), holder),
    )
    if rows:
        yield from _deleted(engine, session_id, ids, erased=None)
    return bool(rows)


def _deleted(engine: str, session_id: str, ids: Ids, *, erased: str | None) -> Generator[Statement, Rows, Gone]:
    """Delete a session, and if it is because a person is ``erased``, what forks share of that person as well."""
    gone = Gone(forks=set(), blobs=set())
    if not (yield "UPDATE sessions SET last_seq = last_seq WHERE id = ? RETURNING id", (session_id,)):
        raise unknown_session(session_id)
    session = yield from get_session(session_id)
    named = yield "SELECT DISTINCT sha256 FROM blob_refs WHERE session_id = ?", (session_id,)
    gone.blobs.update(row[0] for row in named)
    yield from indexes.forget(engine, session_id)
    yield from _hand_on(session, gone, erased)
    yield from _keep_the_sum(session_id, ids, with_user=erased is None)
    for table in ("messages", "tool_calls"):
        rows = yield f"SELECT count(*) FROM {table} WHERE session_id = ?", (session_id,)
        setattr(gone, table, getattr(gone, table) + rows[0][0])
    for table in _BESIDE:
        yield f"DELETE FROM {table} WHERE session_id = ?", (session_id,)
    yield "DELETE FROM sessions WHERE id = ?", (session_id,)
    yield from trace.delete(session_id)
    yield from (_letters().unlink(session_id) if erased is None else _letters().erase_of_session(session_id))
    return gone


def _letters() -> ModuleType:
    """The letters of a store, which not everybody has."""
    from dragoman.store import letters  # noqa: PLC0415  only who deletes pays for it

    return letters


_BESIDE: Final = (
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


_SUMMED: Final = ", ".join(f"sum({possible(name, '1')})" for name in COUNTS)  # an impossible count adds nothing


def _keep_the_sum(session_id: str, ids: Ids, *, with_user: bool) -> Steps:
    """What it has cost was paid, whatever becomes of the session."""
    rows = yield (
        f"SELECT day, model, provider, user_id, team_id, count(*), {_SUMMED}, sum(unpriced), decimal_sum(cost_usd)"
        " FROM usage WHERE session_id = ? GROUP BY day, model, provider, user_id, team_id",
        (session_id,),
    )
    for day, model, provider, user_id, team_id, *counts, cost in rows:
        yield (
            "INSERT INTO past_usage (id, day, model, provider, user_id, team_id, messages, input_tokens, output_tokens,"
            " cached_input_tokens, cache_creation_input_tokens, reasoning_tokens, unpriced, cost_usd)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (ids(), day, model, provider, user_id if with_user else None, team_id, *map(int, counts), _money(cost)),
        )


def _money(cost: Any) -> str:
    return str(Decimal(str(cost)))


# --- handing on ------------------------------------------------------------------------------------------------------


def _hand_on(session: Session, gone: Gone, erased: str | None) -> Steps:
    """Give what forks share to the one that shares most; the others share with that one from now on."""
    forks = yield (  # and keep everybody else out of them
        "UPDATE sessions SET last_seq = last_seq WHERE parent_session_id = ? RETURNING id, parent_seq",
        (session.id,),
    )
    heir, last = max(sorted(forks), key=lambda fork: fork[1], default=("", 0))
    if last > session.parent_seq:
        if erased is not None:
            gone.forks |= yield from _sharing(session.id, session.parent_seq, erased)
        yield from _hand_on_messages(session, heir, last, gone, erased)
        yield from _hand_on_beside(session, heir, last)
        yield "UPDATE sessions SET parent_session_id = ? WHERE parent_session_id = ?", (heir, session.id)
        yield (
            "UPDATE sessions SET parent_session_id = ?, parent_seq = ?, indexed_seq = ?, is_behind = 1 WHERE id = ?",
            (session.parent_session_id, session.parent_seq, session.parent_seq, heir),
        )
    elif forks:  # none of them shares a message
        yield "UPDATE sessions SET parent_session_id = NULL, parent_seq = 0 WHERE parent_session_id = ?", (session.id,)


def _sharing(session_id: str, parent_seq: int, not_of: str) -> Generator[Statement, Rows, set[str]]:
    """The sessions of others that share messages of a session, directly or through another fork."""
    rows = yield (
        "SELECT id, user_id FROM sessions WHERE parent_session_id = ? AND parent_seq > ?",
        (session_id, parent_seq),
    )
    found = {fork for fork, user_id in rows if user_id != not_of}
    for fork, _ in rows:
        found |= yield from _sharing(fork, 0, not_of)
    return found


def _hand_on_messages(session: Session, heir: str, last: int, gone: Gone, erased: str | None) -> Steps:
    after = session.parent_seq
    while after < last and (page := (yield from read(session.id, after, min(_PAGE, last - after)))):
        for found in page:
            is_sound = hash_of(session.id, found.seq, found.columns) == found.hash
            columns = found.columns
            if erased is not None and _author(columns) in (None, erased):
                is_sound, columns = True, tombstone(found)
                gone.messages += 1
                yield from _without_the_person(session.id, found.seq)
            columns = said_in(session.id, columns)
            hash_ = hash_of(heir, found.seq, columns) if is_sound else found.hash
            yield _rewritten(found, heir, columns, hash_)
        after = page[-1].seq


def said_in(session_id: str, columns: Columns) -> Columns:
    """The columns of a message that stands in another session than the one it was said in."""
    unknown = msgspec.json.decode(columns.unknown_json, type=dict[str, msgspec.Raw]) if columns.unknown_json else {}
    unknown.setdefault("session_id", msgspec.Raw(msgspec.json.encode(session_id)))
    return msgspec.structs.replace(columns, unknown_json=msgspec.json.encode(unknown).decode())


def _rewritten(found: Found, session_id: str, columns: Columns, hash_: bytes) -> Statement:
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
            found.session_id,
            found.seq,
        ),
    )


def _hand_on_beside(session: Session, heir: str, last: int) -> Steps:
    """What stands in other tables about messages that are handed on. What the heir has of its own stays its own."""
    both = (session.id, heir)
    yield (
        "DELETE FROM tool_calls WHERE session_id = ? AND id IN (SELECT id FROM tool_calls WHERE session_id = ?)",
        both,
    )
    yield (  # the answer to a call of a history that is shared further up, given behind what is handed on
        "DELETE FROM tool_calls WHERE session_id = ? AND seq <= ? AND result_seq > ?",
        (session.id, session.parent_seq, last),
    )
    yield (
        f"UPDATE tool_calls SET {REOPENED} WHERE session_id = ? AND result_seq > ?",
        (session.id, last),
    )
    for table in ("tool_calls", "usage", "repricings", "blob_refs", "attachment_refs"):
        yield f"UPDATE {table} SET session_id = ? WHERE session_id = ? AND seq <= ?", (heir, session.id, last)
    rows = yield "SELECT coalesce(max(number), 0) FROM tool_ids WHERE session_id = ?", (session.id,)
    first = yield "SELECT coalesce(min(number), 1) FROM tool_ids WHERE session_id = ?", (heir,)
    yield (  # before those that the heir has learned itself
        "UPDATE tool_ids SET session_id = ?, number = number + ? WHERE session_id = ?",
        (heir, first[0][0] - 1 - rows[0][0], session.id),
    )
    newest = yield "SELECT id, last_message_id FROM sessions WHERE id IN (?, ?)", both
    yield "UPDATE sessions SET last_message_id = ? WHERE id = ?", (max(row[1] for row in newest), heir)


# --- erasing ---------------------------------------------------------------------------------------------------------


class Erased(msgspec.Struct, frozen=True):
    """What was erased, and the large content that is still to be deleted."""

    receipt: ErasureReceipt
    going: list[str]


@operation
def sessions_of(user_id: str) -> Generator[Statement, Rows, list[str]]:
    """The sessions of a person."""
    rows = yield "SELECT id FROM sessions WHERE user_id = ?", (user_id,)
    return [row[0] for row in rows]


@operation
def erase_user(
    engine: str, user_id: str, receipt_id: str, now: datetime, ids: Ids, *, has_files: bool
) -> Generator[Statement, Rows, Erased]:
    """Erase a person: sessions, messages in sessions of others, and the name beside what was consumed.

    Whether there are files that are deleted afterwards, the receipt says until they are: nobody may be there to do it.
    """
    own = yield "SELECT id FROM sessions WHERE user_id = ? ORDER BY created_at DESC, id DESC", (user_id,)
    sum_ = Gone(forks=set(), blobs=set())
    for (session_id,) in own:
        gone = yield from _deleted(engine, session_id, ids, erased=user_id)
        sum_.messages += gone.messages
        sum_.tool_calls += gone.tool_calls
        sum_.forks |= gone.forks
        sum_.blobs |= gone.blobs
    yield from _erase_among_others(engine, user_id, sum_)
    for table in ("usage", "past_usage"):
        yield f"UPDATE {table} SET user_id = NULL WHERE user_id = ?", (user_id,)
    yield "DELETE FROM api_keys WHERE user_id = ?", (user_id,)
    yield from runs.without_person(user_id)
    yield from trace.without_person(user_id)
    yield from _letters().erase(user_id)
    yield from indexes.compact(engine)
    going = yield from collecting.let_go(sum_.blobs, now)
    receipt = ErasureReceipt(
        id=receipt_id,
        user_id=user_id,
        sessions=len(own),
        messages=sum_.messages,
        tool_calls=sum_.tool_calls,
        blobs=len(going),
        forks_cut=len(sum_.forks - {row[0] for row in own}),
        erased_at=now,
        attachments_fault=_NOT_YET if has_files else None,
    )
    said = msgspec.json.encode(receipt).decode()
    yield "INSERT INTO erasures (id, receipt_json) VALUES (?, ?)", (receipt_id, said)
    return Erased(receipt, going)


@operation
def change_receipt(receipt: ErasureReceipt) -> Steps:
    """Say what became of the files."""
    said = msgspec.json.encode(receipt).decode()
    yield "UPDATE erasures SET receipt_json = ? WHERE id = ?", (said, receipt.id)


@operation
def erasures() -> Generator[Statement, Rows, list[ErasureReceipt]]:
    """Every receipt, the oldest first."""
    rows = yield "SELECT receipt_json FROM erasures ORDER BY id", ()
    return [msgspec.json.decode(row[0], type=ErasureReceipt) for row in rows]


def _erase_among_others(engine: str, user_id: str, gone: Gone) -> Steps:
    """Messages of a person in sessions of others."""
    said = msgspec.json.encode(user_id).decode()
    pattern = "".join(f"!{letter}" if letter in "!%_" else letter for letter in f'"user_id":{said}')
    places = yield (
        "SELECT session_id, seq FROM messages WHERE metadata_json LIKE ? ESCAPE '!' ORDER BY session_id, seq",
        (f"%{pattern}%",),
    )
    for session_id, seq in places:
        yield "UPDATE sessions SET last_seq = last_seq WHERE id = ? RETURNING id", (session_id,)
        for found in (yield from at(session_id, [seq])):
            if _author(found.columns) == user_id:
                yield from _bury(engine, found, gone)


def _bury(engine: str, found: Found, gone: Gone) -> Steps:
    session_id, seq = found.session_id, found.seq
    gone.messages += 1
    named = yield "SELECT sha256 FROM blob_refs WHERE session_id = ? AND seq = ?", (session_id, seq)
    gone.blobs.update(row[0] for row in named)
    yield from indexes.forget(engine, session_id, seq, seq)
    yield from _without_the_person(session_id, seq)
    yield (  # it tells, to whoever guesses right, what was said
        "DELETE FROM idempotency WHERE session_id = ? AND first_seq <= ? AND last_seq >= ?",
        (session_id, seq, seq),
    )
    yield from runs.without_events(session_id)  # which may repeat it
    columns = tombstone(found)
    yield _rewritten(found, session_id, columns, hash_of(session_id, seq, columns))


def _without_the_person(session_id: str, seq: int) -> Steps:
    """What stands in other tables about a message that becomes a tombstone."""
    place = (session_id, seq)
    yield "UPDATE usage SET user_id = NULL WHERE session_id = ? AND seq = ?", place
    without_id = f"provider_id = NULL, {rehashed(provider_id='NULL')}"
    yield f"UPDATE tool_calls SET {without_id} WHERE session_id = ? AND seq = ?", place
    for table in ("blob_refs", "attachment_refs"):
        yield f"DELETE FROM {table} WHERE session_id = ? AND seq = ?", place


class _Who(msgspec.Struct):
    user_id: str | None = None


def _author(columns: Columns) -> str | None:
    """Whose message it is, if it says so and can be read."""
    try:
        return msgspec.json.decode(columns.metadata_json, type=_Who).user_id
    except (msgspec.DecodeError, TypeError):
        return None


class Nothing(Mapping[str, bytes]):
    """In place of large content, where only what is around it matters."""

    def __getitem__(self, sha256: str) -> bytes:
        return b""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def tombstone(found: Found) -> Columns:
    """The columns of what stays of a message when its person is erased."""
    place = (found.session_id, found.seq)
    try:
        message = message_from(*place, found.columns, found.hash, Nothing())
        content = tuple(_buried(block) for block in message.content if isinstance(block, _WITH_ID))
        metadata = _impersonal(message.metadata)
    except DragomanError:  # it cannot be read, and need not be
        message = Message(found.columns.id, place[0], Role.SYSTEM, (), MessageMetadata(), time_from(0))
        content, metadata = (), MessageMetadata(extra={"erased": True})
    kept = message.replace(content=content or (TextBlock(_ERASED),), metadata=metadata, unknown_fields=value.UNSET)
    columns = columns_from(kept)
    elsewhere = {} if kept.session_id == place[0] else {"session_id": kept.session_id}
    return msgspec.structs.replace(
        columns,
        created_at=found.columns.created_at,
        unknown_json=msgspec.json.encode(elsewhere).decode() if elsewhere else None,
    )


_WITH_ID: Final = (ToolUseBlock, InvalidToolUseBlock, ToolResultBlock)


def _buried(block: ContentBlock) -> ContentBlock:
    """A block that others refer to, without what it says."""
    match block:
        case ToolUseBlock():
            return ToolUseBlock(block.id, block.name, {})
        case InvalidToolUseBlock():
            return InvalidToolUseBlock(block.id, block.name, "", _ERASED)
        case ToolResultBlock():
            return ToolResultBlock(block.tool_use_id, (TextBlock(_ERASED),), block.is_error)
        case _:
            return TextBlock(_ERASED)


def _impersonal(metadata: MessageMetadata) -> MessageMetadata:
    is_partial = metadata.status is MessageStatus.PARTIAL
    return MessageMetadata(
        model=metadata.model,
        provider=metadata.provider,
        routing=metadata.routing.replace(reason=_ERASED) if metadata.routing is not None else None,
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
    counted = yield "SELECT count(*) FROM sessions", ()
    told = yield (
        "SELECT count(*), coalesce(sum(octet_length(content_json) + octet_length(metadata_json)), 0) FROM messages",
        (),
    )
    tables = yield _SIZES[engine], ()
    whole = yield _WHOLE_SIZE[engine], ()
    return SizeReport(
        engine=engine,
        sessions=counted[0][0],
        messages=told[0][0],
        content_bytes=int(told[0][1]),
        database_bytes=int(whole[0][0]),
        blobs=0,
        blob_bytes=0,
        tables={name: int(size) for name, size in tables},
    )


_SIZES: Final = {
    "sqlite": "SELECT s.tbl_name, sum(d.pgsize) FROM dbstat AS d JOIN sqlite_schema AS s ON s.name = d.name"
    " WHERE d.aggregate = TRUE GROUP BY s.tbl_name ORDER BY s.tbl_name",
    "postgres": "SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class AS c"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = current_schema() AND c.relkind = 'r' ORDER BY c.relname",
}
_WHOLE_SIZE: Final = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgres": "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class AS c"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'",
}
