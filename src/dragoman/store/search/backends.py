"""The full-text index on each engine: FTS5 on SQLite, tsvector on PostgreSQL. Both store the words of ``tokenizer``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from dragoman.store.operation import Steps
from dragoman.store.search.tokenizer import Analysis, Term

_JOIN_SESSIONS: Final = " JOIN sessions AS s ON s.id = m.session_id"


class IndexEntry(msgspec.Struct, frozen=True):
    """A message to index."""

    seq: int
    hash: bytes  # of the indexed row
    analysis: Analysis


class IndexBackend(Protocol):
    """The search index of one engine."""

    model: str  # SQL expression: the model of a message
    owner: str  # SQL expression: its user
    team: str  # SQL expression: its team
    place: str  # the alias of the table that has session_id and seq

    def put(self, session_id: str, entries: Sequence[IndexEntry]) -> Steps[None]:
        """Add messages, or replace them."""

    def remove(self, session_id: str, first: int, last: int) -> Steps[None]:
        """Remove messages of a session."""

    def clear(self) -> Steps[None]:
        """Remove all messages."""

    def compact(self) -> Steps[None]:
        """Remove deleted words from the files of the index."""

    def query(self, terms: Sequence[Term], sessions: Sequence[str], tables: str) -> tuple[str, str, list[Any]]:
        """Return a statement up to the match in its WHERE, its order, and its arguments.

        ``sessions`` restricts the search, if not empty. ``tables`` names the table that conditions use: ``""``,
        ``"messages"`` (as m), or ``"sessions"`` (as s, and messages as m).
        """


class Fts5:
    """FTS5. A column contains the session as a word, so that a search in one session reads no other session."""

    model = "CASE WHEN json_valid(m.metadata_json) THEN json_extract(m.metadata_json, '$.model') END"
    owner = "CASE WHEN json_valid(m.metadata_json) THEN json_extract(m.metadata_json, '$.user_id') END"
    team = "CASE WHEN json_valid(m.metadata_json) THEN json_extract(m.metadata_json, '$.team_id') END"
    place = "m"

    def put(self, session_id: str, entries: Sequence[IndexEntry]) -> Steps[None]:
        for entry in entries:
            analysis = entry.analysis
            yield (
                "INSERT OR REPLACE INTO search (rowid, words, parts, session)"
                " SELECT number, ?, ?, ? FROM messages WHERE session_id = ? AND seq = ?",
                (" ".join(analysis.words), " ".join(analysis.parts), _session_token(session_id), session_id, entry.seq),
            )

    def remove(self, session_id: str, first: int, last: int) -> Steps[None]:
        yield (
            "DELETE FROM search WHERE rowid IN"
            " (SELECT number FROM messages WHERE session_id = ? AND seq BETWEEN ? AND ?)",
            (session_id, first, last),
        )

    def clear(self) -> Steps[None]:
        yield "INSERT INTO search (search) VALUES ('delete-all')", ()

    def compact(self) -> Steps[None]:
        yield "INSERT INTO search (search) VALUES ('optimize')", ()

    def query(self, terms: Sequence[Term], sessions: Sequence[str], tables: str) -> tuple[str, str, list[Any]]:
        expressions = [f"({self._match_expression(term)})" for term in terms]
        if sessions:
            expressions.append(f"session : ({' OR '.join(_session_token(session) for session in sessions)})")
        return (
            "SELECT m.session_id, m.seq, -bm25(search, 1.0, 0.5, 0.0) AS score, m.number AS newest FROM search"
            " CROSS JOIN messages AS m ON m.number = search.rowid"  # CROSS fixes the join order
            f"{' CROSS' + _JOIN_SESSIONS if tables == 'sessions' else ''}"
            " WHERE search MATCH ?",
            "score DESC, newest DESC",
            [" AND ".join(expressions)],
        )

    def _match_expression(self, term: Term) -> str:
        star = " *" if term.is_prefix else ""
        if len(term.words) == 1:
            return f'{{words parts}} : "{term.words[0]}"{star}'
        pairs = [f'parts : "{pair}"' for pair in term.pairs]
        phrase = [] if _is_pair(term) else [f'words : "{" ".join(term.words)}"{star}']
        return " AND ".join((*pairs, *phrase))


class Tsvector:
    """tsvector. Words have weight D; parts have weight C and about the position of their word.

    A tsvector limits positions and positions per word. A text beyond the limits stores every word once, and its words
    in order in the column ``stream``.
    """

    model = "m.metadata ->> 'model'"
    owner = "m.metadata ->> 'user_id'"
    team = "m.metadata ->> 'team_id'"
    place = "f"
    _MAX_POSITION: Final = 16_000  # the limit is 16,383
    _MAX_PER_WORD: Final = 250  # the limit is 255

    def put(self, session_id: str, entries: Sequence[IndexEntry]) -> Steps[None]:
        vectors = [self._vector(entry.analysis) for entry in entries]
        yield (
            "INSERT INTO search (session_id, seq, words, stream)"
            " SELECT ?, given.seq, CAST(given.words AS tsvector), given.stream"
            " FROM unnest(CAST(? AS bigint[]), CAST(? AS text[]), CAST(? AS text[])) AS given (seq, words, stream)"
            " ON CONFLICT (session_id, seq) DO UPDATE SET words = excluded.words, stream = excluded.stream",
            (
                session_id,
                [entry.seq for entry in entries],
                [vector for vector, _ in vectors],
                [stream for _, stream in vectors],
            ),
        )

    def _vector(self, analysis: Analysis) -> tuple[str, str | None]:
        words, parts = analysis.words, analysis.parts
        places: dict[str, list[int]] = {}
        for place, word in enumerate(words, 1):
            places.setdefault(word, []).append(place)
        if len(words) > self._MAX_POSITION or max(map(len, places.values()), default=0) > self._MAX_PER_WORD:
            once = {word: f"{min(at[0], self._MAX_POSITION)}" for word, at in places.items()}
            return _vector_text({**dict.fromkeys(parts, "1C"), **once}), f" {' '.join(words)} "
        entries = {word: [str(place) for place in at] for word, at in places.items()}
        for number, part in enumerate(parts):
            place = 1 + number * len(words) // len(parts)
            positions = entries.setdefault(part, [])
            if len(positions) < self._MAX_PER_WORD and place not in places.get(part, ()):
                positions.append(f"{place}C")
        return _vector_text({word: ",".join(at) for word, at in entries.items()}), None

    def remove(self, session_id: str, first: int, last: int) -> Steps[None]:
        yield "DELETE FROM search WHERE session_id = ? AND seq BETWEEN ? AND ?", (session_id, first, last)

    def clear(self) -> Steps[None]:
        yield "TRUNCATE search", ()

    def compact(self) -> Steps[None]:
        yield from ()  # VACUUM does this

    def query(self, terms: Sequence[Term], _: Sequence[str], tables: str) -> tuple[str, str, list[Any]]:
        exact = " & ".join(self._tsquery(term, as_phrase=True) for term in terms)
        matches, arguments = "f.words @@ CAST(CAST(? AS text) AS tsquery)", [exact, exact]
        phrases = [term for term in terms if len(term.words) > 1 and not _is_pair(term)]
        if phrases:
            matches += " OR (f.stream IS NOT NULL AND f.words @@ CAST(CAST(? AS text) AS tsquery)"
            matches += " AND strpos(f.stream, CAST(? AS text)) > 0" * len(phrases) + ")"
            arguments.append(" & ".join(self._tsquery(term, as_phrase=False) for term in terms))
            arguments.extend(f" {' '.join(term.words)}{'' if term.is_prefix else ' '}" for term in phrases)
        messages = " JOIN messages AS m ON m.session_id = f.session_id AND m.seq = f.seq" if tables else ""
        return (
            "SELECT f.session_id, f.seq,"
            " ts_rank_cd('{1.0, 0.5, 1.0, 1.0}', f.words, CAST(CAST(? AS text) AS tsquery), 1) AS score"
            f" FROM search AS f{messages}{_JOIN_SESSIONS if tables == 'sessions' else ''} WHERE ({matches})",
            "score DESC, f.session_id DESC, f.seq DESC",
            arguments,
        )

    def _tsquery(self, term: Term, *, as_phrase: bool) -> str:
        star = ":*" if term.is_prefix else ""
        if len(term.words) == 1:
            return f"{_lexeme(term.words[0])}{star}"
        pairs = [_lexeme(pair) for pair in term.pairs]
        if _is_pair(term):
            return pairs[0]
        *first, last = map(_lexeme, term.words)
        if as_phrase:
            phrase = " <-> ".join((*(f"{word}:D" for word in first), f"{last}:{'*' if term.is_prefix else ''}D"))
        else:
            phrase = " & ".join((*first, f"{last}{star}"))
        return " & ".join((*pairs, f"({phrase})"))


def _vector_text(places: dict[str, str]) -> str:
    return " ".join(f"{_lexeme(word)}:{at}" for word, at in places.items())


def _lexeme(word: str) -> str:
    quoted = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{quoted}'"


def _is_pair(term: Term) -> bool:
    """Return whether the term is two characters of a script without spaces, which are indexed as one part."""
    return len(term.words) == 2 and len(term.pairs) == 1


def _session_token(session_id: str) -> str:
    return "s" + hashlib.sha256(session_id.encode()).hexdigest()[:20]


BACKENDS: Final[dict[str, IndexBackend]] = {"sqlite": Fts5(), "postgres": Tsvector()}
