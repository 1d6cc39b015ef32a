"""The index for searching: what is in it, how it is filled, and how it is asked, on each engine.

    behind, pending -> put                    which sessions have messages that it lacks; those messages; add them
    find                                      the places that fit a query, best first
    forget, forget_everything, compact        take messages out of it; empty it; leave nothing of what was taken out

A session's ``indexed_seq`` says up to where the index has its messages, so that nobody has to remember anything:
whoever finds it behind ``last_seq`` may fill it, several at once as well, and the first one wins. Both engines are
given the words that ``words`` makes, and change nothing about them: SQLite in a contentless FTS5 table under
``messages.number``, PostgreSQL in a tsvector. What these two do differently is in ``Fts5`` and ``Tsvector`` alone.

The one rule: what is put is compared with what is stored, in the transaction that puts it; a message that has changed
since it was read is not put, and ``indexed_seq`` stays before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from dragoman.errors import DamagedError
from dragoman.store.lineage import Stretch, lineage
from dragoman.store.operation import Rows, Statement, bulk, operation
from dragoman.store.reading import COLUMNS, Found, found_from
from dragoman.store.rows import micros
from dragoman.store.sessions import LISTED_AT
from dragoman.store.values import Owners
from dragoman.store.words import Analysis, Term

Steps = Generator[Statement, Rows, None]
_SESSIONS_TOO: Final = " JOIN sessions AS s ON s.id = m.session_id"


class Entry(msgspec.Struct, frozen=True):
    """A message for the index."""

    seq: int
    hash: bytes  # of the row that it was made from
    analysis: Analysis


class Piece(msgspec.Struct, frozen=True):
    """Messages of one session for the index: everything behind ``after`` and up to ``last``."""

    session_id: str
    after: int
    last: int
    entries: Sequence[Entry]


class Pending(msgspec.Struct, frozen=True):
    """What the index lacks of a session, as it was read."""

    session_id: str
    after: int
    last: int
    rows: Sequence[Found]
    unreadable: Sequence[tuple[int, bytes]] = ()  # places and hashes of rows that the engine cannot give


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Where to search."""

    session_id: str | None = None
    role: str | None = None
    model: str | None = None
    user_id: str | None = None
    team_id: str | None = None
    owners: Owners | None = None  # only sessions of theirs, and what their forks share; not messages that name them
    since: datetime | None = None
    until: datetime | None = None


class Match(msgspec.Struct, frozen=True):
    """A message that fits, and the session to show it in."""

    session_id: str
    seq: int
    score: float
    shown_in: str


# --- what engines do differently -------------------------------------------------------------------------------------


class Index(Protocol):
    """An index as one engine has it."""

    model: str  # the model of a message, as an expression
    owner: str  # the user of a message, as an expression
    team: str  # and the team
    place: str  # the alias of the table that has session_id and seq

    def put(self, session_id: str, entries: Sequence[Entry]) -> Steps:
        """Add messages, or replace them."""

    def forget(self, session_id: str, first: int, last: int) -> Steps:
        """Take messages of a session out."""

    def empty(self) -> Steps:
        """Take everything out."""

    def compact(self) -> Steps:
        """Leave no trace of what was taken out."""

    def query(self, terms: Sequence[Term], sessions: Sequence[str], joined: str) -> tuple[str, str, list[Any]]:
        """A statement up to the words in its WHERE, its order, and its arguments.

        ``sessions`` are those that matter, if not all do; ``joined`` says which tables conditions will be about:
        none, ``messages`` (as m), or ``sessions`` (as s) as well.
        """


class Fts5:
    """SQLite. The session of a message is a word of its own column, so that a search in one session reads no other."""

    model = "CASE WHEN json_valid(m.metadata_json) THEN json_extract(m.metadata_json, '$.model') END"
    owner = "CASE WHEN json_valid(m.metadata_json) THEN json_extract(m.metadata_json, '$.user_id') END"
    team = "CASE WHEN json_valid(m.metadata_json) THEN json_extract(m.metadata_json, '$.team_id') END"
    place = "m"

    def put(self, session_id: str, entries: Sequence[Entry]) -> Steps:
        for entry in entries:
            said = entry.analysis
            yield (
                "INSERT OR REPLACE INTO search (rowid, words, parts, session)"
                " SELECT number, ?, ?, ? FROM messages WHERE session_id = ? AND seq = ?",
                (" ".join(said.words), " ".join(said.parts), _session_word(session_id), session_id, entry.seq),
            )

    def forget(self, session_id: str, first: int, last: int) -> Steps:
        yield (
            "DELETE FROM search WHERE rowid IN"
            " (SELECT number FROM messages WHERE session_id = ? AND seq BETWEEN ? AND ?)",
            (session_id, first, last),
        )

    def empty(self) -> Steps:
        yield "INSERT INTO search (search) VALUES ('delete-all')", ()

    def compact(self) -> Steps:
        yield "INSERT INTO search (search) VALUES ('optimize')", ()

    def query(self, terms: Sequence[Term], sessions: Sequence[str], joined: str) -> tuple[str, str, list[Any]]:
        asked = [f"({self._asked(term)})" for term in terms]
        if sessions:
            asked.append(f"session : ({' OR '.join(_session_word(one) for one in sessions)})")
        return (
            "SELECT m.session_id, m.seq, -bm25(search, 1.0, 0.5, 0.0) AS score, m.number AS newest FROM search"
            " CROSS JOIN messages AS m ON m.number = search.rowid"  # in this order, whatever the conditions
            f"{' CROSS' + _SESSIONS_TOO if joined == 'sessions' else ''}"
            " WHERE search MATCH ?",
            "score DESC, newest DESC",
            [" AND ".join(asked)],
        )

    def _asked(self, term: Term) -> str:
        star = " *" if term.begins else ""
        if len(term.words) == 1:
            return f'{{words parts}} : "{term.words[0]}"{star}'
        pairs = [f'parts : "{pair}"' for pair in term.pairs]
        row = [] if _is_pair(term) else [f'words : "{" ".join(term.words)}"{star}']
        return " AND ".join((*pairs, *row))


class Tsvector:
    """PostgreSQL. Words are of weight D, parts of weight C, at about the place of what they are a part of.

    A tsvector has places for so many words, and for so many of one word; where there are more, every word stands once,
    and the words in their order stand beside it as a text.
    """

    model = "m.metadata ->> 'model'"
    owner = "m.metadata ->> 'user_id'"
    team = "m.metadata ->> 'team_id'"
    place = "f"
    _LAST: Final = 16_000  # it has places up to 16,383
    _MOST: Final = 250  # and 255 of one word

    def put(self, session_id: str, entries: Sequence[Entry]) -> Steps:
        made = [self._vector(entry.analysis) for entry in entries]
        yield (
            "INSERT INTO search (session_id, seq, words, stream)"
            " SELECT ?, given.seq, CAST(given.words AS tsvector), given.stream"
            " FROM unnest(CAST(? AS bigint[]), CAST(? AS text[]), CAST(? AS text[])) AS given (seq, words, stream)"
            " ON CONFLICT (session_id, seq) DO UPDATE SET words = excluded.words, stream = excluded.stream",
            (
                session_id,
                [entry.seq for entry in entries],
                [vector for vector, _ in made],
                [stream for _, stream in made],
            ),
        )

    def _vector(self, analysis: Analysis) -> tuple[str, str | None]:
        words, parts = analysis.words, analysis.parts
        places: dict[str, list[int]] = {}
        for place, word in enumerate(words, 1):
            places.setdefault(word, []).append(place)
        if len(words) > self._LAST or max(map(len, places.values()), default=0) > self._MOST:
            once = {word: f"{min(at[0], self._LAST)}" for word, at in places.items()}
            return _vector_text({**dict.fromkeys(parts, "1C"), **once}), f" {' '.join(words)} "
        told = {word: [str(place) for place in at] for word, at in places.items()}
        for number, part in enumerate(parts):
            place = 1 + number * len(words) // len(parts)
            mine = told.setdefault(part, [])
            if len(mine) < self._MOST and place not in places.get(part, ()):
                mine.append(f"{place}C")
        return _vector_text({word: ",".join(at) for word, at in told.items()}), None

    def forget(self, session_id: str, first: int, last: int) -> Steps:
        yield "DELETE FROM search WHERE session_id = ? AND seq BETWEEN ? AND ?", (session_id, first, last)

    def empty(self) -> Steps:
        yield "TRUNCATE search", ()

    def compact(self) -> Steps:
        yield from ()  # VACUUM is the server's, as it is for every other table

    def query(self, terms: Sequence[Term], _: Sequence[str], joined: str) -> tuple[str, str, list[Any]]:
        exact = " & ".join(self._asked(term, in_a_row=True) for term in terms)
        matches, arguments = "f.words @@ CAST(CAST(? AS text) AS tsquery)", [exact, exact]
        rows = [term for term in terms if len(term.words) > 1 and not _is_pair(term)]
        if rows:
            matches += " OR (f.stream IS NOT NULL AND f.words @@ CAST(CAST(? AS text) AS tsquery)"
            matches += " AND strpos(f.stream, CAST(? AS text)) > 0" * len(rows) + ")"
            arguments.append(" & ".join(self._asked(term, in_a_row=False) for term in terms))
            arguments.extend(f" {' '.join(term.words)}{'' if term.begins else ' '}" for term in rows)
        messages = " JOIN messages AS m ON m.session_id = f.session_id AND m.seq = f.seq" if joined else ""
        return (
            "SELECT f.session_id, f.seq,"
            " ts_rank_cd('{1.0, 0.5, 1.0, 1.0}', f.words, CAST(CAST(? AS text) AS tsquery), 1) AS score"
            f" FROM search AS f{messages}{_SESSIONS_TOO if joined == 'sessions' else ''} WHERE ({matches})",
            "score DESC, f.session_id DESC, f.seq DESC",
            arguments,
        )

    def _asked(self, term: Term, *, in_a_row: bool) -> str:
        star = ":*" if term.begins else ""
        if len(term.words) == 1:
            return f"{_lexeme(term.words[0])}{star}"
        pairs = [_lexeme(pair) for pair in term.pairs]
        if _is_pair(term):
            return pairs[0]
        *first, last = map(_lexeme, term.words)
        if in_a_row:
            row = " <-> ".join((*(f"{word}:D" for word in first), f"{last}:{'*' if term.begins else ''}D"))
        else:
            row = " & ".join((*first, f"{last}{star}"))
        return " & ".join((*pairs, f"({row})"))


def _vector_text(places: dict[str, str]) -> str:
    return " ".join(f"{_lexeme(word)}:{at}" for word, at in places.items())


def _lexeme(word: str) -> str:
    quoted = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{quoted}'"


def _is_pair(term: Term) -> bool:
    """Whether two characters of a script without spaces are asked for: they are one part."""
    return len(term.words) == 2 and len(term.pairs) == 1


def _session_word(session_id: str) -> str:
    return "s" + hashlib.sha256(session_id.encode()).hexdigest()[:20]


INDEXES: Final[dict[str, Index]] = {"sqlite": Fts5(), "postgres": Tsvector()}


# --- filling ---------------------------------------------------------------------------------------------------------


@operation
def behind(sessions: Sequence[str] | None, limit: int) -> Generator[Statement, Rows, list[tuple[str, int]]]:
    """Sessions that have messages which the index lacks, and up to where they go; of those, if some are named."""
    if sessions is None:
        found = yield (
            "SELECT id, last_seq FROM sessions WHERE is_behind = 1 AND indexed_seq < last_seq ORDER BY id LIMIT ?",
            (limit,),
        )
        return [(session_id, last) for session_id, last in found]
    named: list[tuple[str, int]] = []
    for session_id in sessions:
        found = yield "SELECT id, last_seq FROM sessions WHERE indexed_seq < last_seq AND id = ?", (session_id,)
        named.extend((session_id, last) for session_id, last in found)
    return named


@operation
def overrun() -> Generator[Statement, Rows, list[str]]:
    """Sessions that are noted as indexed beyond their end, which only damage can do."""
    return [row[0] for row in (yield "SELECT id FROM sessions WHERE indexed_seq > last_seq", ())]


@operation
def restart(engine: str, sessions: Sequence[str]) -> Generator[Statement, Rows, None]:
    """Take sessions out of the index, so that it is filled with them anew."""
    for session_id in sessions:
        yield from INDEXES[engine].forget(session_id, 1, 2**62)
        yield "UPDATE sessions SET indexed_seq = parent_seq, is_behind = 1 WHERE id = ?", (session_id,)


@operation
def pending(wanted: Iterable[tuple[str, int]], most: int) -> Generator[Statement, Rows, list[Pending]]:
    """Messages that the index lacks of these sessions, each up to a place; so many of them at once."""
    made: list[Pending] = []
    for session_id, last in wanted:
        found = yield "SELECT indexed_seq, last_seq FROM sessions WHERE id = ?", (session_id,)
        if most > 0 and found and found[0][0] < min(last, found[0][1]):
            after = found[0][0]
            rows = yield (
                f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
                (session_id, after, most),
            )
            until = rows[-1][1] if len(rows) == most else found[0][1]
            made.append(Pending(session_id, after, until, list(map(found_from, rows))))
            most -= len(rows)
    return made


@operation
def unreadable(session_id: str) -> Generator[Statement, Rows, list[Pending]]:
    """The next message that the index lacks of a session, without a look into it."""
    rows = yield (
        "SELECT s.indexed_seq, m.seq, m.hash FROM sessions AS s JOIN messages AS m ON m.session_id = s.id"
        " WHERE s.id = ? AND m.seq > s.indexed_seq ORDER BY m.seq LIMIT 1",
        (session_id,),
    )
    return [Pending(session_id, after, seq, (), [(seq, hash_)]) for after, seq, hash_ in rows]


_INDEXED: Final = (
    "UPDATE sessions SET indexed_seq = ?, is_behind = CASE WHEN last_seq > ? THEN 1 ELSE 0 END WHERE id = ?"
)


@bulk
def put(engine: str, pieces: Iterable[Piece]) -> Generator[Statement, Rows, bool]:
    """Add messages to the index; false if somebody else had done so with some of them."""
    was_first = True
    for piece in pieces:
        moved = yield (
            f"{_INDEXED} AND indexed_seq = ? RETURNING id",
            (piece.last, piece.last, piece.session_id, piece.after),
        )
        if moved:
            yield from _put(engine, piece)
        else:
            was_first = False
    return was_first


def _put(engine: str, piece: Piece) -> Steps:
    rows = yield (
        "SELECT seq, hash FROM messages WHERE session_id = ? AND seq > ? AND seq <= ? ORDER BY seq",
        (piece.session_id, piece.after, piece.last),
    )
    stored: dict[int, bytes] = dict(rows)
    entries = {entry.seq: entry for entry in piece.entries}
    changed = [seq for seq, hash_ in stored.items() if seq not in entries or entries[seq].hash != hash_]
    last = changed[0] - 1 if changed else piece.last
    if changed:
        yield _INDEXED, (last, last, piece.session_id)
    kept = [entry for entry in piece.entries if entry.seq in stored and entry.seq <= last]
    if kept:
        yield from INDEXES[engine].put(piece.session_id, kept)


# --- emptying --------------------------------------------------------------------------------------------------------


@operation
def forget(engine: str, session_id: str, first: int = 1, last: int = 2**62) -> Generator[Statement, Rows, None]:
    """Take a session's own messages out of the index, before they are deleted."""
    yield from INDEXES[engine].forget(session_id, first, last)


@bulk
def forget_everything(engine: str) -> Generator[Statement, Rows, None]:
    """Empty the index, so that it is built anew, and put right what sessions are listed by."""
    yield from INDEXES[engine].empty()
    yield (
        "UPDATE sessions SET indexed_seq = parent_seq, is_behind = 1"
        " WHERE last_seq > parent_seq OR indexed_seq <> parent_seq",
        (),
    )
    yield f"UPDATE sessions SET listed_at = {LISTED_AT} WHERE listed_at <> {LISTED_AT}", ()


@operation
def compact(engine: str) -> Generator[Statement, Rows, None]:
    """Leave no word of what was taken out in the files of the index. It takes as long as the index is large."""
    yield from INDEXES[engine].compact()


# --- asking ----------------------------------------------------------------------------------------------------------


@operation
def find(
    engine: str, terms: Sequence[Term], filters: Filters, limit: int, offset: int
) -> Generator[Statement, Rows, list[Match]]:
    """The messages in which everything is that was asked for, the best first."""
    index = INDEXES[engine]
    within = (yield from lineage(filters.session_id)) if filters.session_id is not None else []
    borrowed = yield from _borrowed(filters)
    conditions, arguments = _conditions(index, filters, within, borrowed)
    statement, order, asked = index.query(terms, [stretch.session_id for stretch in within], _joined(filters))
    places = yield (
        f"{statement}{''.join(f' AND {one}' for one in conditions)} ORDER BY {order} LIMIT ? OFFSET ?",
        (*asked, *arguments, limit, offset),
    )
    return [
        Match(session_id, seq, score, filters.session_id or borrowed.get(session_id, (session_id, 0))[0])
        for session_id, seq, score, *_ in places
    ]


@operation
def rows_of(matches: Sequence[Match]) -> Generator[Statement, Rows, list[Found]]:
    """The rows of these messages, in no order."""
    found: list[Found] = []
    for first in range(0, len(matches), _AT_ONCE):
        some = [(match.session_id, match.seq) for match in matches[first : first + _AT_ONCE]]
        some.extend([some[-1]] * (_AT_ONCE - len(some)))  # one statement, however many there are
        rows = yield (
            f"SELECT {COLUMNS} FROM messages WHERE (session_id, seq) IN ({_VALUES})",
            [value for place in some for value in place],
        )
        found.extend(map(found_from, rows))
    return found


_AT_ONCE: Final = 20
_VALUES: Final = f"VALUES {', '.join(['(CAST(? AS text), CAST(? AS bigint))'] * _AT_ONCE)}"


def _joined(filters: Filters) -> str:
    if (filters.user_id, filters.team_id, filters.owners) != (None, None, None):
        return "sessions"
    is_about_messages = (filters.role, filters.model, filters.since, filters.until) != (None, None, None, None)
    return "messages" if is_about_messages else ""


def _conditions(
    index: Index, filters: Filters, within: Sequence[Stretch], borrowed: dict[str, tuple[str, int]]
) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    arguments: list[Any] = []
    if within:
        stretch = f"({index.place}.session_id = ? AND {index.place}.seq BETWEEN ? AND ?)"
        conditions.append(f"({' OR '.join([stretch] * len(within))})")
        arguments.extend(value for one in within for value in (one.session_id, one.first, one.last))
    for expression, wanted in (("m.role", filters.role), (index.model, filters.model)):
        if wanted is not None:
            conditions.append(f"{expression} = ?")
            arguments.append(wanted)
    for sign, when in ((">=", filters.since), ("<", filters.until)):
        if when is not None:
            conditions.append(f"m.created_at {sign} ?")
            arguments.append(micros(when))
    for column, expression, wanted in (
        ("s.user_id", index.owner, filters.user_id),
        ("s.team_id", index.team, filters.team_id),
    ):
        if wanted is not None:
            shared = f" OR ({index.place}.session_id = ? AND {index.place}.seq <= ?)" * len(borrowed)
            conditions.append(f"({column} = ? OR {expression} = ?{shared})")
            arguments.extend((wanted, wanted))
            arguments.extend(value for owner, (_, last) in borrowed.items() for value in (owner, last))
    if filters.owners is not None:
        mine, whose = filters.owners.condition("s")
        shared = f" OR ({index.place}.session_id = ? AND {index.place}.seq <= ?)" * len(borrowed)
        conditions.append(f"({mine}{shared})")
        arguments.extend(whose)
        arguments.extend(value for owner, (_, last) in borrowed.items() for value in (owner, last))
    return conditions, arguments


def _borrowed(filters: Filters) -> Generator[Statement, Rows, dict[str, tuple[str, int]]]:
    """Sessions of others whose messages somebody's forks share: in which fork they are shown, and up to where."""
    if filters.owners is not None:
        mine, arguments = filters.owners.condition("c")
        others = f"NOT coalesce({filters.owners.condition('p')[0]}, false)"
    else:
        wanted = {"user_id": filters.user_id, "team_id": filters.team_id}
        given = {column: value for column, value in wanted.items() if value is not None}
        if not given:
            return {}
        mine, arguments = " AND ".join(f"c.{column} = ?" for column in given), tuple(given.values())
        others = " OR ".join(f"p.{column} IS DISTINCT FROM ?" for column in given)
    forks = yield (
        "SELECT c.id, p.id FROM sessions AS c JOIN sessions AS p ON p.id = c.parent_session_id"
        f" WHERE {mine} AND ({others}) ORDER BY c.parent_seq, c.id",
        (*arguments, *arguments),
    )
    longest = {parent: fork for fork, parent in forks}
    shown: dict[str, tuple[str, int]] = {}
    for fork in longest.values():
        try:
            stretches = yield from lineage(fork)
        except DamagedError:
            continue  # which is no reason to find nothing elsewhere
        for stretch in stretches:
            if stretch.session_id != fork and stretch.last > shown.get(stretch.session_id, ("", 0))[1]:
                shown[stretch.session_id] = fork, stretch.last
    return shown
