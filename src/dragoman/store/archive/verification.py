"""Verify stored rows against their hashes.

Each session is checked on one consistent view: the hash of every row, seqs without a gap, related tables and lineage;
then all blobs by their hashes, and the integrity check of the engine.

Invariant: an unreadable row is reported, and the verification continues after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import CorruptDataError, DragomanError, NewerVersionError, UnknownSessionError
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    Role,
    ToolResultBlock,
    ToolUseBlock,
    usage_problems,
)
from dragoman.store import entries, evaluations, high_water, runs, trace, usage_repair
from dragoman.store.gateway_calls import is_part_intact
from dragoman.store.high_water import Loss, MarkState
from dragoman.store.message_reader import MessageRow, read_at, read_rows
from dragoman.store.message_rows import message_from
from dragoman.store.message_writer import attachment_files, usage_insert
from dragoman.store.operation import Steps, column_text, operation
from dragoman.store.retention.tombstones import NoBlobs
from dragoman.store.row_hash import CALL_FIELDS, check_row
from dragoman.store.sessions import get_session, lineage, list_bucket
from dragoman.store.tool_call_rows import CALL_STATUSES, is_call_intact
from dragoman.store.types import Damage, Session, Verification

if TYPE_CHECKING:
    from dragoman.store.store import Store

Progress = Callable[[int, int], None]  # messages checked so far, and the total
_PAGE: Final = 200


async def verify(store: Store, session_id: str | None, progress: Progress | None) -> Verification:
    """Verify a session and the sessions it shares a history with, or the whole store."""
    if session_id is not None:
        sessions = await store._read(_list_lineage(session_id))
    else:
        sessions = await store._read(_list_sessions())
    total = sum(count for _, count in sessions)
    loop = asyncio.get_running_loop()
    seen = messages = 0

    def step(count: int) -> None:
        nonlocal seen
        seen += count
        if progress is not None:
            loop.call_soon_threadsafe(progress, seen, max(seen, total))

    damage = await _check_engine(store) if session_id is None else []
    state = store.mark.read()
    if state is not None:
        damage += await _find_losses(store, state, None if session_id is None else {name for name, _ in sessions})
    blobs: dict[str, Damage | None] = {}
    for name, _ in sessions:
        try:
            check = await _check_session(store, name, step)
        except UnknownSessionError:
            continue  # deleted meanwhile
        except CorruptDataError as error:
            check = await _check_by_page(store, name, error)
        messages += check.messages
        damage += check.damage
        damage += await _check_blobs(store, check, blobs)
    return Verification(
        sessions=len(sessions),
        messages=messages,
        blobs=len(blobs),
        damage=tuple(damage),
        marked=None if state is None else len(state.ends),
        marked_since=None if state is None else state.since,
    )


async def _check_engine(store: Store) -> list[Damage]:
    """Return the damage that the engine reports. PostgreSQL reports a damaged page when it reads it."""
    from dragoman.store.mailbox import letters  # noqa: PLC0415  only a full verification needs it

    problems: list[str] = []
    if store.engine == "sqlite":
        try:
            problems = await store._read(_check_integrity())
        except CorruptDataError as error:
            problems = [error.what]
    problems += await store._read(trace.find_damage(trace.SYSTEM))
    problems += await store._read(evaluations.find_damage(trace.SYSTEM))
    problems += await store._read(trace.find_orphans())
    problems += await store._read(letters.find_damage())
    impossible = await store._read(usage_repair.find_impossible_sums())
    return [
        *(Damage(session_id="", seq=None, what=what) for what in problems),
        *(Damage(session_id="", seq=None, what=row.what, is_as_written=True, kind="usage") for row in impossible),
    ]


async def _find_losses(store: Store, state: MarkState, only: set[str] | None) -> list[Damage]:
    """Return sessions that end before their acknowledged position or are missing, and damage of the mark itself."""
    damage = [_mark_damage(state)] if state.is_damaged else []
    try:
        losses = await store._read(high_water.find_losses(state))
        ends = await store._read(high_water.session_ends())
    except CorruptDataError as error:
        return [*damage, Damage(session_id="", seq=None, what=f"it cannot be compared with the mark: {error.what}")]
    lost = {name: loss for name, loss in losses.items() if only is None or name in only}
    if lost:
        still = store.mark.read()  # without sessions that were deleted meanwhile
        known = still.ends.keys() | still.losses.keys() if still is not None else set()
        damage += [_loss_damage(name, loss, ends.get(name)) for name, loss in lost.items() if name in known]
    return damage


def _mark_damage(state: MarkState) -> Damage:
    what = f"{state.damaged_lines} lines of it cannot be read" if state.damaged_lines else "its first line is missing"
    return Damage(
        session_id="",
        seq=None,
        what=f"the mark beside the file is damaged ({what}): missing last messages may stay undetected;"
        " dragoman verify --accept-loss starts a new one",
        kind="mark",
    )


def _loss_damage(session_id: str, loss: Loss, last: int | None) -> Damage:
    if last is None:
        extent = "the session is not in the file"
    elif last <= loss.end:
        extent = f"the session ends at message {last}"
    else:
        extent = f"its messages from {loss.end + 1} on are others"
    why = "the file is older than the mark beside it, or its log (-wal) is missing"
    what = f"acknowledged up to message {loss.acknowledged}, and {extent}: {why}"
    return Damage(session_id=session_id, seq=None, what=what, kind="lost")


@operation
def _check_integrity() -> Steps[list[str]]:
    rows = yield "PRAGMA integrity_check", ()
    broken = yield "PRAGMA foreign_key_check", ()
    return [str(row[0]) for row in rows if row[0] != "ok"] + [
        f"a row of {row[0]} belongs to no session" for row in broken
    ]


@operation
def _list_sessions() -> Steps[list[tuple[str, int]]]:
    rows = yield "SELECT id, last_seq - parent_seq FROM sessions ORDER BY id", ()
    return [(name, count) for name, count in rows]


@operation
def _list_lineage(session_id: str) -> Steps[list[tuple[str, int]]]:
    segments = yield from lineage(session_id)
    return [(segment.session_id, max(0, segment.last - segment.first + 1)) for segment in segments]


# --- a session -------------------------------------------------------------------------------------------------------


class _SessionCheck:
    """The state and the findings of the check of one session."""

    def __init__(self, session_id: str, blob_data: Mapping[str, bytes] | None = None) -> None:
        self.session_id = session_id
        self.blob_data = NoBlobs() if blob_data is None else _PartialBlobs(blob_data)
        self.missing_blobs: set[str] = set()  # blobs that may contain the name or the id of a call
        self.messages = 0
        self.damage: list[Damage] = []
        self.newest = ""
        self.is_readable = True  # every message could be read
        self.usage: set[tuple[Any, ...]] = set()
        self.blobs: set[tuple[int, str]] = set()
        self.files: set[tuple[int, str, str]] = set()
        self.calls: dict[str, tuple[str, int, str | None]] = {}  # an erased name is None
        self.unusable: set[str] = set()  # calls that cannot be made
        self.results: dict[str, dict[tuple[int, str], bool]] = {}  # by call and place, whether it is an error

    def add_damage(self, seq: int | None, what: str) -> None:
        self.damage.append(Damage(session_id=self.session_id, seq=seq, what=what))

    def add_impossible_usage(self, seq: int, what: str) -> None:
        what = f"its usage is impossible ({what}); dragoman repair-usage corrects it"
        self.damage.append(Damage(session_id=self.session_id, seq=seq, what=what, is_as_written=True, kind="usage"))

    def check_message(self, row: MessageRow) -> None:
        """Check a message and collect its references."""
        self.messages += 1
        try:
            message = message_from(row.session_id, row.seq, row.columns, row.hash, self.blob_data)
        except NewerVersionError:
            self.is_readable = False
            return
        except (DragomanError, msgspec.DecodeError, ValueError, TypeError, OverflowError) as error:
            self.is_readable = False
            self.add_damage(row.seq, error.what if isinstance(error, DragomanError) else "it cannot be read")
            return
        self.newest = max(self.newest, row.columns.id)
        self._collect_references(row, message)

    def _collect_references(self, row: MessageRow, message: Message) -> None:
        if message.role is Role.ASSISTANT:
            is_erased = (message.metadata.extra or {}).get("erased") is True
            for block in message.content:
                if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
                    name = None if is_erased and not block.name else column_text(block.name)
                    call_id, call = column_text(block.id), (message.id, row.seq, name)
                    if call_id not in self.calls and isinstance(block, InvalidToolUseBlock):
                        self.unusable.add(call_id)
                    self.calls.setdefault(call_id, call)
        elif message.role is Role.TOOL:
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    answers = self.results.setdefault(column_text(block.tool_use_id), {})
                    answers.setdefault((row.seq, message.id), bool(block.is_error))
        if message.metadata.usage is not None:
            self.usage.add(tuple(usage_insert(row.session_id, row.seq, message)[1]))
            problems = usage_problems(message.metadata.usage)
            if problems:
                self.add_impossible_usage(row.seq, "; ".join(problems.values()))
        if row.columns.blobs_json is not None:
            names = [blob[1] for blob in msgspec.json.decode(row.columns.blobs_json)]
            self.blobs.update((row.seq, name) for name in names)
            if any(_lacks_id_or_name(block) for block in message.content):
                self.missing_blobs.update(names)
        if message.metadata.user_message_attachments is not None:
            self.files.update((row.seq, *file) for file in attachment_files(message))


class _PartialBlobs(NoBlobs):
    """Blobs of which some are loaded."""

    def __init__(self, known: Mapping[str, bytes]) -> None:
        self._known = known

    def __getitem__(self, sha256: str) -> bytes:
        return self._known.get(sha256, b"")


def _lacks_id_or_name(block: ContentBlock) -> bool:
    """Return whether the name or the id of a call is empty, because it is in a blob that is not loaded."""
    match block:
        case ToolUseBlock(id=call_id, name=name) | InvalidToolUseBlock(id=call_id, name=name):
            return not call_id or not name
        case ToolResultBlock(tool_use_id=call_id):
            return not call_id
        case _:
            return False


async def _check_session(store: Store, session_id: str, step: Callable[[int], None]) -> _SessionCheck:
    """Check a session; check it again with blobs if they contain the name or the id of a call."""
    check = await store._read(_run_checks(session_id, step))
    known: dict[str, bytes] = {}
    while unknown := check.missing_blobs - known.keys():
        for sha256 in unknown:
            try:
                known[sha256] = await store.blobs.get(sha256)
            except CorruptDataError:  # _check_blobs reports it
                known[sha256] = b""
        check = await store._read(_run_checks(session_id, lambda _: None, known))
    return check


@operation
def _run_checks(
    session_id: str, step: Callable[[int], None], blob_data: Mapping[str, bytes] | None = None
) -> Steps[_SessionCheck]:
    """Check a session with the blobs in ``blob_data``."""
    check = _SessionCheck(session_id, blob_data)
    session = yield from get_session(session_id)
    yield from _check_lineage(check, session)
    after_seq = session.parent_seq
    while page := (yield from read_rows(session_id, after_seq, _PAGE)):
        for row in page:
            check.check_message(row)
        after_seq = page[-1].seq
        step(len(page))
    yield from _check_sequence(check, session)
    if check.is_readable:
        yield from _check_related_rows(check, session)
    for module in (entries, trace, evaluations, runs):
        for what in (yield from module.find_damage(session_id)):
            check.add_damage(None, what)
    return check


def _check_lineage(check: _SessionCheck, session: Session) -> Steps[None]:
    if session.parent_session_id is None:
        if session.parent_seq != 0:
            check.add_damage(None, f"it shares {session.parent_seq} messages and has no parent session")
        return
    rows = yield "SELECT parent_seq, last_seq FROM sessions WHERE id = ?", (session.parent_session_id,)
    if not rows:
        check.add_damage(None, f"the session {session.parent_session_id} that it was forked from is missing")
    elif not (session.parent_seq == 0 or rows[0][0] < session.parent_seq <= rows[0][1]):
        check.add_damage(None, f"the session that it was forked from has no message {session.parent_seq} of its own")


def _check_sequence(check: _SessionCheck, session: Session) -> Steps[None]:
    rows = yield (
        "SELECT count(*), coalesce(min(seq), 0), coalesce(max(seq), 0) FROM messages WHERE session_id = ?",
        (session.id,),
    )
    count, first, last = rows[0]
    expected = session.last_seq - session.parent_seq
    if count != expected or (expected and (first, last) != (session.parent_seq + 1, session.last_seq)):
        check.add_damage(
            None,
            f"it should have the messages {session.parent_seq + 1} to {session.last_seq},"
            f" and has {count} from {first} to {last}",
        )
    rows = yield (
        "SELECT last_message_id, updated_at, listed_at, is_behind, indexed_seq, last_seq FROM sessions WHERE id = ?",
        (session.id,),
    )
    newest, updated, listed, is_behind, indexed, last = rows[0]
    if newest < check.newest:
        check.add_damage(None, "its recorded greatest message id is too small")
    if listed != list_bucket(updated):
        check.add_damage(None, "its place in the list does not match its time")
    if indexed > last:
        what = f"the search index counts {indexed} messages, and the session has {last}"
        check.add_damage(None, f"{what}; it is reindexed when the store is opened and searched")
    if indexed < last and not is_behind:
        check.add_damage(None, "messages are missing from the search index, and it is not marked as incomplete")


def _check_related_rows(check: _SessionCheck, session: Session) -> Steps[None]:
    """Compare the related tables with the messages."""
    key = (session.id,)
    rows = yield (
        "SELECT session_id, seq, day, model, provider, user_id, team_id, input_tokens, output_tokens,"
        " cached_input_tokens, cache_creation_input_tokens, reasoning_tokens, cost_usd, unpriced FROM usage"
        " WHERE session_id = ?",
        key,
    )
    for row in check.usage.symmetric_difference(map(tuple, rows)):
        check.add_damage(row[1], "its usage differs from the usage table")
    rows = yield "SELECT seq, sha256 FROM blob_refs WHERE session_id = ?", key
    for seq, sha256 in check.blobs.symmetric_difference((seq, sha256) for seq, sha256 in rows):
        check.add_damage(seq, f"the blob {sha256} is in only one of the message and the table blob_refs")
    rows = yield "SELECT seq, bucket, path FROM attachment_refs WHERE session_id = ?", key
    for seq, _, path in check.files.symmetric_difference((seq, bucket, path) for seq, bucket, path in rows):
        check.add_damage(seq, f"the file {path} is in only one of the message and the table attachment_refs")
    rows = yield (
        f"SELECT {', '.join(CALL_FIELDS)}, hash FROM tool_calls WHERE session_id = ?",
        key,
    )
    _check_calls(check, session, rows)
    rows = yield "SELECT provider, tool_id, provider_id, hash FROM tool_ids WHERE session_id = ?", key
    _check_hashes(check, rows, "the provider's id of a call")
    rows = yield (
        "SELECT key, fingerprint, first_seq, last_seq, created_at, hash FROM idempotency WHERE session_id = ?",
        key,
    )
    _check_hashes(check, rows, "an idempotency key")
    rows = yield "SELECT seq, sha256, content FROM request_parts WHERE session_id = ?", key
    for seq, sha256, content in rows:
        if not is_part_intact(sha256, content):
            check.add_damage(seq, f"the part {sha256} of a request does not match its hash")


def _check_hashes(check: _SessionCheck, rows: Iterable[tuple[Any, ...]], what: str) -> None:
    for *columns, hash_ in rows:
        try:
            check_row(hash_, *columns, where="")
        except CorruptDataError as error:
            check.add_damage(None, f"{what}: {error.what}")


def _check_calls(check: _SessionCheck, session: Session, rows: Iterable[tuple[Any, ...]]) -> None:
    call_ids: set[str] = set()
    for *columns, hash_ in rows:
        call_id, message_id, seq, name, status, answer_id, answer_seq, *_ = columns
        call_ids.add(call_id)
        if not is_call_intact(tuple(columns), hash_):
            check.add_damage(seq, f"the call {call_id}: its hash does not match its content")
        is_shared = seq <= session.parent_seq
        call = check.calls.get(call_id)
        is_settled = answer_seq is not None or status == "cancelled"
        is_as_made = call in ((message_id, seq, name), (message_id, seq, None))
        if not is_shared and not is_as_made and not (call is None and is_settled):
            check.add_damage(seq, f"the call {call_id} differs between its message and the table tool_calls")
        answers = check.results.get(call_id, {})
        if answer_seq is not None and (answer_seq, answer_id) not in answers:
            check.add_damage(answer_seq, f"the call {call_id} is recorded as answered, and no message answers it")
        if answer_seq is None and any(place > seq for place, _ in answers):
            check.add_damage(seq, f"the call {call_id} is answered by a message and not recorded as answered")
        if status not in _possible_statuses(check, call_id, (answer_seq, answer_id)):
            check.add_damage(seq, f"the call {call_id} has the status {status!r}, which does not fit its messages")
    for call_id in check.calls.keys() - call_ids:
        check.add_damage(check.calls[call_id][1], f"the call {call_id} is missing in the table tool_calls")


def _possible_statuses(check: _SessionCheck, call_id: str, answer: tuple[int | None, str | None]) -> Sequence[str]:
    """Return the statuses of a call that fit the messages."""
    is_error = check.results.get(call_id, {}).get(answer)  # type: ignore[arg-type]
    if is_error is not None:
        return ("failed",) if is_error else ("succeeded",)
    if answer[0] is not None:
        return CALL_STATUSES  # a missing answer, reported above
    if call_id in check.unusable:
        return "failed", "cancelled"
    return ("pending", "cancelled") if call_id in check.calls else ("pending", "cancelled", "failed")


# --- unreadable sessions ---------------------------------------------------------------------------------------------


async def _check_by_page(store: Store, session_id: str, error: CorruptDataError) -> _SessionCheck:
    """Check an unreadable session page by page to find the damaged rows."""
    check = _SessionCheck(session_id)
    try:
        session = await store.get_session(session_id)
    except DragomanError:
        check.add_damage(None, error.what)
        return check
    for after_seq in range(session.parent_seq, session.last_seq, _PAGE):
        count = min(_PAGE, session.last_seq - after_seq)
        try:
            for row in await store._read(read_rows(session_id, after_seq, count)):
                check.check_message(row)
        except CorruptDataError:
            await _check_by_message(store, check, range(after_seq + 1, after_seq + count + 1))
    if not check.damage:
        check.add_damage(None, error.what)
    return check


async def _check_by_message(store: Store, check: _SessionCheck, seqs: range) -> None:
    for seq in seqs:
        try:
            for row in await store._read(read_at(check.session_id, [seq])):
                check.check_message(row)
        except CorruptDataError as error:
            check.add_damage(seq, error.what)


async def _check_blobs(store: Store, check: _SessionCheck, known: dict[str, Damage | None]) -> list[Damage]:
    """Verify the blobs that a session refers to, each only once per run."""
    damage: list[Damage] = []
    for seq, sha256 in sorted(check.blobs):
        if sha256 not in known:
            known[sha256] = None
            try:
                await store.blobs.get(sha256)
            except CorruptDataError as error:
                if await store._read(_has_reference(check.session_id, seq, sha256)):  # not deleted meanwhile
                    known[sha256] = Damage(session_id=check.session_id, seq=seq, what=f"{error.what} ({sha256})")
        if (blob_damage := known[sha256]) is not None:
            damage.append(msgspec.structs.replace(blob_damage, session_id=check.session_id, seq=seq))
    return damage


@operation
def _has_reference(session_id: str, seq: int, sha256: str) -> Steps[bool]:
    key = (session_id, seq, sha256)
    return bool((yield "SELECT 1 FROM blob_refs WHERE session_id = ? AND seq = ? AND sha256 = ?", key))
