"""A look at everything that is kept: is it still what was written?

Of every session, on one consistent view of it: the hash of every row, numbers without a gap, the last number, what
other tables say about its messages, where its history comes from; then all large content that is named, by its hash;
and what the engine finds wrong with its own files.

The one rule: what cannot be read is listed, and the look goes on behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import DamagedError, DragomanError, NewerVersionError, UnknownSessionError
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    Role,
    ToolResultBlock,
    ToolUseBlock,
    usage_problems,
)
from dragoman.store import entries, high_water, runs, trace, usage_repair
from dragoman.store.attached import files_of
from dragoman.store.calls import STATUSES, is_sound, visible
from dragoman.store.care import Nothing
from dragoman.store.high_water import Loss, Marked
from dragoman.store.lineage import lineage
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.reading import Found, at, read
from dragoman.store.row_hash import CALL, check_row
from dragoman.store.rows import message_from
from dragoman.store.sessions import get_session, listed_at
from dragoman.store.values import Damage, Session, Verification
from dragoman.store.writing import used

if TYPE_CHECKING:
    from dragoman.store.store import Store

Progress = Callable[[int, int], None]  # how many messages were seen, and how many there are
_PAGE: Final = 200


async def verify(store: Store, session_id: str | None, progress: Progress | None) -> Verification:
    """Look at a session and those that it shares a history with, or at everything."""
    if session_id is not None:
        names = await store._read(_history(session_id))
    else:
        names = await store._read(_every())
    total = sum(count for _, count in names)
    loop = asyncio.get_running_loop()
    seen = messages = 0

    def step(count: int) -> None:
        nonlocal seen
        seen += count
        if progress is not None:
            loop.call_soon_threadsafe(progress, seen, max(seen, total))

    damage = await _engine_s_own(store) if session_id is None else []
    marked = store.mark.read()
    if marked is not None:
        damage += await _lost_tails(store, marked, None if session_id is None else {name for name, _ in names})
    blobs: dict[str, Damage | None] = {}
    for name, _ in names:
        try:
            look = await _look_at_session(store, name, step)
        except UnknownSessionError:
            continue  # somebody has deleted it
        except DamagedError as error:
            look = await _bit_by_bit(store, name, error)
        messages += look.messages
        damage += look.damage
        damage += await _blobs_of(store, look, blobs)
    return Verification(
        sessions=len(names),
        messages=messages,
        blobs=len(blobs),
        damage=tuple(damage),
        marked=None if marked is None else len(marked.ends),
        marked_since=None if marked is None else marked.since,
    )


async def _engine_s_own(store: Store) -> list[Damage]:
    """What the engine finds wrong itself. PostgreSQL tells when it reads a page."""
    from dragoman.store import letters  # noqa: PLC0415  only who looks at everything pays for it

    found: list[str] = []
    if store.engine == "sqlite":
        try:
            found = await store._read(_integrity())
        except DamagedError as error:
            found = [error.what]
    found += await store._read(trace.look(trace.SYSTEM))  # what belongs to no session
    found += await store._read(trace.left_behind())
    found += await store._read(letters.look())
    impossible = await store._read(usage_repair.impossible_sums())
    return [
        *(Damage(session_id="", seq=None, what=what) for what in found),
        *(Damage(session_id="", seq=None, what=row.what, is_as_written=True) for row in impossible),
    ]


async def _lost_tails(store: Store, marked: Marked, only: set[str] | None) -> list[Damage]:
    """Sessions that end before what was acknowledged of them, or are gone; and whether all of them were compared."""
    damage = [_damaged_mark(marked)] if marked.is_damaged else []
    try:
        losses = await store._read(high_water.missing(marked))
        ends = await store._read(high_water.session_ends())
    except DamagedError as error:
        return [*damage, Damage(session_id="", seq=None, what=f"it cannot be compared with its mark: {error.what}")]
    lost = {name: loss for name, loss in losses.items() if only is None or name in only}
    if lost:
        still = store.mark.read()  # without what was deleted meanwhile
        known = still.ends.keys() | still.losses.keys() if still is not None else set()
        damage += [_lost_tail(name, loss, ends.get(name)) for name, loss in lost.items() if name in known]
    return damage


def _damaged_mark(marked: Marked) -> Damage:
    what = f"{marked.damaged_lines} lines of it cannot be read" if marked.damaged_lines else "its first line is missing"
    return Damage(
        session_id="",
        seq=None,
        what=f"the mark beside the file is damaged ({what}): messages that are missing at the end may not be noticed;"
        " dragoman verify --accept-loss begins it anew",
    )


def _lost_tail(session_id: str, loss: Loss, last: int | None) -> Damage:
    if last is None:
        found = "it is not in the file"
    elif last <= loss.end:
        found = f"it ends at message {last}"
    else:
        found = f"from message {loss.end + 1} on it holds others"
    why = "the file is older than the mark beside it, or its log (-wal) is gone"
    what = f"acknowledged up to message {loss.acknowledged}, and {found}: {why}"
    return Damage(session_id=session_id, seq=None, what=what)


@operation
def _integrity() -> Generator[Statement, Rows, list[str]]:
    rows = yield "PRAGMA integrity_check", ()
    broken = yield "PRAGMA foreign_key_check", ()
    return [str(row[0]) for row in rows if row[0] != "ok"] + [f"a row of {row[0]} is of no session" for row in broken]


@operation
def _every() -> Generator[Statement, Rows, list[tuple[str, int]]]:
    rows = yield "SELECT id, last_seq - parent_seq FROM sessions ORDER BY id", ()
    return [(name, count) for name, count in rows]


@operation
def _history(session_id: str) -> Generator[Statement, Rows, list[tuple[str, int]]]:
    stretches = yield from lineage(session_id)
    return [(one.session_id, max(0, one.last - one.first + 1)) for one in stretches]


# --- a session -------------------------------------------------------------------------------------------------------


class _Look:
    """What a look at a session has found so far."""

    def __init__(self, session_id: str, large: Mapping[str, bytes] | None = None) -> None:
        self.session_id = session_id
        self.large = Nothing() if large is None else _Known(large)
        self.wanted: set[str] = set()  # large content that may hold the name or the id of a call
        self.messages = 0
        self.damage: list[Damage] = []
        self.newest = ""
        self.is_whole = True  # every message could be read
        self.usage: set[tuple[Any, ...]] = set()
        self.blobs: set[tuple[int, str]] = set()
        self.files: set[tuple[int, str, str]] = set()
        self.calls: dict[str, tuple[str, int, str | None]] = {}  # a name that was erased is None
        self.unusable: set[str] = set()  # calls that cannot be made
        self.results: dict[str, dict[tuple[int, str], bool]] = {}  # by call and place, whether it is an error

    def wrong(self, seq: int | None, what: str) -> None:
        self.damage.append(Damage(session_id=self.session_id, seq=seq, what=what))

    def impossible(self, seq: int, what: str) -> None:
        what = f"its usage is impossible ({what}); dragoman repair-usage puts it right"
        self.damage.append(Damage(session_id=self.session_id, seq=seq, what=what, is_as_written=True))

    def take(self, found: Found) -> None:
        """Look at a message."""
        self.messages += 1
        try:
            message = message_from(found.session_id, found.seq, found.columns, found.hash, self.large)
        except NewerVersionError:
            self.is_whole = False
            return
        except (DragomanError, msgspec.DecodeError, ValueError, TypeError, OverflowError) as error:
            self.is_whole = False
            self.wrong(found.seq, error.what if isinstance(error, DragomanError) else "it cannot be read")
            return
        self.newest = max(self.newest, found.columns.id)
        self._derive(found, message)

    def _derive(self, found: Found, message: Message) -> None:
        if message.role is Role.ASSISTANT:
            is_erased = (message.metadata.extra or {}).get("erased") is True
            for block in message.content:
                if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
                    name = None if is_erased and not block.name else visible(block.name)
                    call_id, made = visible(block.id), (message.id, found.seq, name)
                    if call_id not in self.calls and isinstance(block, InvalidToolUseBlock):
                        self.unusable.add(call_id)
                    self.calls.setdefault(call_id, made)
        elif message.role is Role.TOOL:
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    answers = self.results.setdefault(visible(block.tool_use_id), {})
                    answers.setdefault((found.seq, message.id), bool(block.is_error))
        if message.metadata.usage is not None:
            self.usage.add(tuple(used(found.session_id, found.seq, message)[1]))
            problems = usage_problems(message.metadata.usage)
            if problems:
                self.impossible(found.seq, "; ".join(problems.values()))
        if found.columns.blobs_json is not None:
            names = [one[1] for one in msgspec.json.decode(found.columns.blobs_json)]
            self.blobs.update((found.seq, name) for name in names)
            if any(_lacks_word(block) for block in message.content):
                self.wanted.update(names)
        if message.metadata.user_message_attachments is not None:
            self.files.update((found.seq, *file) for file in files_of(message))


class _Known(Nothing):
    """Large content of which some is known."""

    def __init__(self, known: Mapping[str, bytes]) -> None:
        self._known = known

    def __getitem__(self, sha256: str) -> bytes:
        return self._known.get(sha256, b"")


def _lacks_word(block: ContentBlock) -> bool:
    """Whether the name or the id of a call is empty, as it is where it was moved out and is not known."""
    match block:
        case ToolUseBlock(id=call_id, name=name) | InvalidToolUseBlock(id=call_id, name=name):
            return not call_id or not name
        case ToolResultBlock(tool_use_id=call_id):
            return not call_id
        case _:
            return False


async def _look_at_session(store: Store, session_id: str, step: Callable[[int], None]) -> _Look:
    """Look at everything about a session; a second time if a name or an id of a call is in large content."""
    look = await store._read(_look(session_id, step))
    known: dict[str, bytes] = {}
    while unknown := look.wanted - known.keys():
        for sha256 in unknown:
            try:
                known[sha256] = await store.blobs.get(sha256)
            except DamagedError:  # which is reported where all large content is read
                known[sha256] = b""
        look = await store._read(_look(session_id, lambda _: None, known))
    return look


@operation
def _look(
    session_id: str, step: Callable[[int], None], large: Mapping[str, bytes] | None = None
) -> Generator[Statement, Rows, _Look]:
    """Look at everything about a session. ``large`` is the large content that is known."""
    look = _Look(session_id, large)
    session = yield from get_session(session_id)
    yield from _look_at_lineage(look, session)
    after = session.parent_seq
    while page := (yield from read(session_id, after, _PAGE)):
        for found in page:
            look.take(found)
        after = page[-1].seq
        step(len(page))
    yield from _look_at_numbers(look, session)
    if look.is_whole:
        yield from _look_beside(look, session)
    for what in (yield from entries.look(session_id)):
        look.wrong(None, what)
    for what in (yield from trace.look(session_id)):
        look.wrong(None, what)
    for what in (yield from runs.look(session_id)):
        look.wrong(None, what)
    return look


def _look_at_lineage(look: _Look, session: Session) -> Generator[Statement, Rows, None]:
    if session.parent_session_id is None:
        if session.parent_seq != 0:
            look.wrong(None, f"it shares {session.parent_seq} messages with no session")
        return
    rows = yield "SELECT parent_seq, last_seq FROM sessions WHERE id = ?", (session.parent_session_id,)
    if not rows:
        look.wrong(None, f"the session {session.parent_session_id} that it was forked from is gone")
    elif not (session.parent_seq == 0 or rows[0][0] < session.parent_seq <= rows[0][1]):
        look.wrong(None, f"the session that it was forked from has no message {session.parent_seq} of its own")


def _look_at_numbers(look: _Look, session: Session) -> Generator[Statement, Rows, None]:
    rows = yield (
        "SELECT count(*), coalesce(min(seq), 0), coalesce(max(seq), 0) FROM messages WHERE session_id = ?",
        (session.id,),
    )
    count, first, last = rows[0]
    wanted = session.last_seq - session.parent_seq
    if count != wanted or (wanted and (first, last) != (session.parent_seq + 1, session.last_seq)):
        look.wrong(
            None,
            f"it should have the messages {session.parent_seq + 1} to {session.last_seq},"
            f" and has {count} from {first} to {last}",
        )
    rows = yield (
        "SELECT last_message_id, updated_at, listed_at, is_behind, indexed_seq, last_seq FROM sessions WHERE id = ?",
        (session.id,),
    )
    newest, updated, listed, is_behind, indexed, last = rows[0]
    if newest < look.newest:
        look.wrong(None, "its greatest message id is not the one that it remembers")
    if listed != listed_at(updated):
        look.wrong(None, "it is listed as of another time")
    if indexed > last:
        what = f"the index for searching counts {indexed} messages of it, and it has {last}"
        look.wrong(None, f"{what}; it is indexed anew when the store is opened and searched")
    if indexed < last and not is_behind:
        look.wrong(None, "the index for searching lacks messages of it, and does not know")


def _look_beside(look: _Look, session: Session) -> Generator[Statement, Rows, None]:
    """Compare other tables with what the messages say."""
    place = (session.id,)
    rows = yield (
        "SELECT session_id, seq, day, model, provider, user_id, team_id, input_tokens, output_tokens,"
        " cached_input_tokens, cache_creation_input_tokens, reasoning_tokens, cost_usd, unpriced FROM usage"
        " WHERE session_id = ?",
        place,
    )
    for row in look.usage.symmetric_difference(map(tuple, rows)):
        look.wrong(row[1], "what it consumed is not what the totals count")
    rows = yield "SELECT seq, sha256 FROM blob_refs WHERE session_id = ?", place
    for seq, sha256 in look.blobs.symmetric_difference((seq, sha256) for seq, sha256 in rows):
        look.wrong(seq, f"the large content {sha256} that it names is not noted, or is noted and not named")
    rows = yield "SELECT seq, bucket, path FROM attachment_refs WHERE session_id = ?", place
    for seq, _, path in look.files.symmetric_difference((seq, bucket, path) for seq, bucket, path in rows):
        look.wrong(seq, f"the file {path} that it names is not noted, or is noted and not named")
    rows = yield (
        f"SELECT {', '.join(CALL)}, hash FROM tool_calls WHERE session_id = ?",
        place,
    )
    _look_at_calls(look, session, rows)
    rows = yield "SELECT provider, tool_id, provider_id, hash FROM tool_ids WHERE session_id = ?", place
    _look_at_hashes(look, rows, "what a provider calls a call")
    rows = yield (
        "SELECT key, fingerprint, first_seq, last_seq, created_at, hash FROM idempotency WHERE session_id = ?",
        place,
    )
    _look_at_hashes(look, rows, "an idempotency key")


def _look_at_hashes(look: _Look, rows: Iterable[tuple[Any, ...]], what: str) -> None:
    for *columns, hash_ in rows:
        try:
            check_row(hash_, *columns, where="")
        except DamagedError as error:
            look.wrong(None, f"{what}: {error.what}")


def _look_at_calls(look: _Look, session: Session, rows: Iterable[tuple[Any, ...]]) -> None:
    noted: set[str] = set()
    for *columns, hash_ in rows:
        call_id, message_id, seq, name, status, answer_id, answer_seq, *_ = columns
        noted.add(call_id)
        if not is_sound(tuple(columns), hash_):
            look.wrong(seq, f"the call {call_id}: its hash does not fit its content")
        is_shared = seq <= session.parent_seq
        made = look.calls.get(call_id)
        is_settled = answer_seq is not None or status == "cancelled"
        is_as_made = made in ((message_id, seq, name), (message_id, seq, None))
        if not is_shared and not is_as_made and not (made is None and is_settled):
            look.wrong(seq, f"the call {call_id} is noted otherwise than it was made")
        answers = look.results.get(call_id, {})
        if answer_seq is not None and (answer_seq, answer_id) not in answers:
            look.wrong(answer_seq, f"the call {call_id} is noted as answered, and is not")
        if answer_seq is None and any(place > seq for place, _ in answers):
            look.wrong(seq, f"the call {call_id} was answered, and is not noted so")
        if status not in _statuses(look, call_id, (answer_seq, answer_id)):
            look.wrong(seq, f"the call {call_id} has the status {status!r}, which does not fit its messages")
    for call_id in look.calls.keys() - noted:
        look.wrong(look.calls[call_id][1], f"the call {call_id} is not noted")


def _statuses(look: _Look, call_id: str, answer: tuple[int | None, str | None]) -> Sequence[str]:
    """What the status of a call may be, by what the messages say."""
    is_error = look.results.get(call_id, {}).get(answer)  # type: ignore[arg-type]
    if is_error is not None:
        return ("failed",) if is_error else ("succeeded",)
    if answer[0] is not None:
        return STATUSES  # an answer that is not there: listed already
    if call_id in look.unusable:
        return "failed", "cancelled"
    return ("pending", "cancelled") if call_id in look.calls else ("pending", "cancelled", "failed")


# --- what cannot be read at once -------------------------------------------------------------------------------------


async def _bit_by_bit(store: Store, session_id: str, error: DamagedError) -> _Look:
    """Look at a session of which something cannot even be read, to find what it is."""
    look = _Look(session_id)
    try:
        session = await store.get_session(session_id)
    except DragomanError:
        look.wrong(None, error.what)
        return look
    for after in range(session.parent_seq, session.last_seq, _PAGE):
        count = min(_PAGE, session.last_seq - after)
        try:
            for found in await store._read(read(session_id, after, count)):
                look.take(found)
        except DamagedError:
            await _one_by_one(store, look, range(after + 1, after + count + 1))
    if not look.damage:
        look.wrong(None, error.what)
    return look


async def _one_by_one(store: Store, look: _Look, seqs: range) -> None:
    for seq in seqs:
        try:
            for found in await store._read(at(look.session_id, [seq])):
                look.take(found)
        except DamagedError as error:
            look.wrong(seq, error.what)


async def _blobs_of(store: Store, look: _Look, known: dict[str, Damage | None]) -> list[Damage]:
    """Look at large content that a session names; each only once, and not again if somebody else names it too."""
    damage: list[Damage] = []
    for seq, sha256 in sorted(look.blobs):
        if sha256 not in known:
            known[sha256] = None
            try:
                await store.blobs.get(sha256)
            except DamagedError as error:
                if await store._read(_is_named(look.session_id, seq, sha256)):  # and nobody has deleted it meanwhile
                    known[sha256] = Damage(session_id=look.session_id, seq=seq, what=f"{error.what} ({sha256})")
        if (found := known[sha256]) is not None:
            damage.append(msgspec.structs.replace(found, session_id=look.session_id, seq=seq))
    return damage


@operation
def _is_named(session_id: str, seq: int, sha256: str) -> Generator[Statement, Rows, bool]:
    place = (session_id, seq, sha256)
    return bool((yield "SELECT 1 FROM blob_refs WHERE session_id = ? AND seq = ? AND sha256 = ?", place))
