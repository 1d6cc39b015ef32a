"""Split texts and queries into words. Pure functions, the same for every engine.

    analyze(text) -> Analysis        the words of a text in order, and the parts by which some are found as well
    terms_from(query) -> [Term]      what must match: words, phrases, and a prefix for the last word
    excerpt(text, terms) -> …        about 160 characters around the best match, with the positions of the matches

A word is a run of letters, digits and marks, folded: case, diacritics, width and digits of other scripts make no
difference. Everything else separates words, so ``read_file``, ``search/index.py`` and ``3.12.4`` are phrases. A word in
camel case is also found by its parts. Scripts without spaces (Chinese, Japanese, Thai; Korean as well) have one word
per character, and each pair of neighbours as a part, so a search for two characters costs as much as one for a word. An
emoji is a word.

Invariant: a query is split exactly as a text is. After a change of these rules every store must be reindexed.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import unicodedata
from collections.abc import Iterator
from typing import Final

import msgspec

MAX_WORD_LENGTH: Final = 128  # characters; a longer word is found by its beginning
MAX_TEXT_LENGTH: Final = 4_000_000  # characters of a message that are analyzed
MAX_DISTINCT_BYTES: Final = 1_000_000  # bytes of the distinct words of a message; PostgreSQL has a limit

# Scripts that set no spaces between words, and Korean, whose words carry endings; from the charts of Unicode. Those
# beyond U+FFFF are separate, because a character class is fast only without them.
_NEAR: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u2e80-\u2fd5\u3005-\u3007"
    "\u3021-\u3029\u3031-\u3035\u303b\u303c\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u3131-\u318e"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c\ua960-\ua97c\uaa60-\uaadf\uac00-\ud7fb"
    "\uf900-\ufad9\uff66-\uff9f"
)
_FAR: Final = "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
_EMOJI: Final = "\u2600-\u27bf\U0001f000-\U0001f3fa\U0001f400-\U0001faff"
_IS_SPACELESS: Final = re.compile(f"[{_NEAR}]|[{_FAR}]")
_IS_APART: Final = re.compile(f"[{_NEAR}]|[{_FAR}{_EMOJI}]")
_ASCII_RUN: Final = re.compile("[A-Za-z0-9]+")
_ASCII_INNER_CAPITAL: Final = re.compile("(?<![A-Za-z0-9])[A-Za-z0-9]+[A-Z][A-Za-z0-9]*")  # may be in camel case
_COARSE: Final = re.compile(r"[^\x00-/:-@\[-`{-\x7f]+")  # most of these are words; the others are split again
_SEPARATOR: Final = re.compile(r"[\x00-/:-@\[-`{-\x7f]")  # not part of any word
_PIECE_LENGTH: Final = 64 * 1024  # characters
_QUOTATION: Final = re.compile('["“”„«»]([^"“”„«»]*)(?:["“”„«»]|$)')
_SOFT: Final = "\u00ad\u0640\ufe0f"  # soft hyphen, tatweel and the mark of coloured pictures only shape a word
_LETTERS: Final = str.maketrans(  # letters that Unicode does not decompose
    {"ø": "o", "đ": "d", "ħ": "h", "\u0131": "i", "ł": "l", "ŧ": "t", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th"}
)
# Combining classes that are folded away: the points of Hebrew, Arabic and Syriac, which most texts leave out, and
# marks through, above and below letters. The vowels of Indic scripts and the tones of Thai are in other classes.
_ORNAMENTS: Final = {1, *range(10, 37), *range(200, 241)}


class Analysis(msgspec.Struct, frozen=True):
    """The words and parts that a text is found by."""

    words: list[str]  # in their order
    parts: list[str]  # of words in camel case, and pairs of neighbours


class Term(msgspec.Struct, frozen=True):
    """A word or phrase that a query requires."""

    words: tuple[str, ...]  # in a row
    pairs: tuple[str, ...] = ()  # parts that a text with these words contains
    is_prefix: bool = False  # the last word is a prefix


class Excerpt(msgspec.Struct, frozen=True):
    """A piece of a text, and the positions of the matches in it."""

    text: str
    highlights: tuple[tuple[int, int], ...]


class _Word(msgspec.Struct, frozen=True):
    """A folded run of letters and its parts."""

    folded: str
    parts: tuple[str, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()  # the position of each part in the run


# --- analysis of a text ----------------------------------------------------------------------------------------------


@functools.cache
def _run_pattern() -> re.Pattern[str]:
    """Match a run: characters of a script without spaces, an emoji, or letters, digits and marks."""
    marks = (chr(code) for code in range(0x80, 0x20000) if unicodedata.category(chr(code)) in ("Mn", "Mc", "Me", "Co"))
    within = "".join(mark for mark in marks if not _IS_APART.match(mark))
    return re.compile(f"(?:[{_NEAR}]+|[{_FAR}]+)+|[{_EMOJI}]|(?:[^\\W_{_NEAR}{_FAR}{_EMOJI}]|[{_SOFT}{within}])+")


def analyze(text: str) -> Analysis:
    """Return the words and parts of a text; of a very long text, those of its beginning."""
    text = text[:MAX_TEXT_LENGTH]
    while True:
        analysis = _analyze(text)
        size = _size(analysis) if len(text) > MAX_DISTINCT_BYTES // 32 else 0  # a character yields less than 32 bytes
        if size <= MAX_DISTINCT_BYTES:
            return analysis
        text = text[: len(text) * MAX_DISTINCT_BYTES * 9 // (size * 10)]


def _size(analysis: Analysis) -> int:
    """Return the bytes of the distinct words, with the overhead of the index."""
    distinct: set[str] = set()
    for terms in (analysis.words, analysis.parts):
        for begin in range(0, len(terms), _PIECE_LENGTH):  # in short steps
            distinct.update(terms[begin : begin + _PIECE_LENGTH])
    return sum(len(word.encode()) + 5 for word in distinct)


def _analyze(text: str) -> Analysis:
    words: list[str] = []
    parts: list[str] = []
    for _, piece in _split_text(text):
        if piece.isascii():
            _add_ascii_words(piece, words, parts)
            continue
        for run in _find_runs(piece):
            if run[0] >= "\u0e00" and _IS_SPACELESS.match(run):
                row = fold(run)
                words.extend(row)
                parts.extend(map(operator.add, row, row[1:]))
            elif word := _word(run):
                words.append(word.folded)
                parts.extend(word.parts)
    return Analysis(words, parts)


def _add_ascii_words(text: str, words: list[str], parts: list[str]) -> None:
    """Fast path: the words are the runs in lower case, and only a word with a capital inside can have parts."""
    lower = text.lower()
    runs = _ASCII_RUN.findall(lower)
    if len(text) > _PIECE_LENGTH // 2:  # share equal words: to free a million of them takes long
        runs = list(map({}.setdefault, runs, runs))
    words.extend(runs if max(map(len, runs), default=0) <= MAX_WORD_LENGTH else [run[:MAX_WORD_LENGTH] for run in runs])
    if lower != text:
        for run in _ASCII_INNER_CAPITAL.findall(text):
            word = _word(run)
            parts.extend(word.parts if word is not None else ())


def _split_text(text: str) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a long text with their positions, so that no single step takes long.

    The text is split between words. A run of more than ``_PIECE_LENGTH`` characters is split anywhere.
    """
    begin = 0
    while len(text) - begin > 2 * _PIECE_LENGTH:
        limit = begin + 2 * _PIECE_LENGTH
        separator = _SEPARATOR.search(text, begin + _PIECE_LENGTH, limit)
        end = separator.start() if separator else limit
        yield begin, text[begin:end]
        begin = end
    yield begin, text[begin:] if begin else text


def _find_runs(text: str) -> list[str]:
    if text.isascii():
        return _ASCII_RUN.findall(text)
    runs: list[str] = []
    for run in _COARSE.findall(unicodedata.normalize("NFC", text)):
        if run.isascii():
            runs.append(run)
        else:
            runs.extend(_run_pattern().findall(run))
    return runs


@functools.lru_cache(maxsize=50_000)
def _word(run: str) -> _Word | None:
    """Return a run as a word, with its parts if it is in camel case; None if it contains only marks."""
    folded = fold(run)[:MAX_WORD_LENGTH]
    cuts = _camel_case_cuts(run)
    if not folded or len(cuts) == 2:
        return _Word(folded) if folded else None
    parts = [(fold(run[begin:end])[:MAX_WORD_LENGTH], (begin, end)) for begin, end in itertools.pairwise(cuts)]
    parts = [(part, span) for part, span in parts if part]
    return _Word(folded, tuple(part for part, _ in parts), tuple(span for _, span in parts))


def _camel_case_cuts(run: str) -> list[int]:
    """Return the start of each part of a camel-case word, and the end of the last one."""
    rest = run[1:]
    if rest == rest.lower() or run.isupper():
        return [0, len(run)]
    cuts = [0]
    for at in range(1, len(run)):
        follows = run[at + 1 : at + 2]
        if run[at].isupper() and (not run[at - 1].isupper() or follows.islower()):
            cuts.append(at)
    return [*cuts, len(run)]


# --- folding ---------------------------------------------------------------------------------------------------------


def fold(run: str) -> str:
    """Return a word without case, diacritics and width."""
    return run.lower() if run.isascii() else unicodedata.normalize("NFC", run.translate(_FOLD_TABLE))


class _FoldTable(dict[int, str]):
    """Folded characters, computed on first use."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = _fold_character(chr(code))
        return folded


_FOLD_TABLE: Final = _FoldTable()


def _fold_character(character: str) -> str:
    """Return a character without case, diacritics and width; the result may be several characters or none."""
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", character).casefold())
    bare = "".join(character for character in unicodedata.normalize("NFD", plain) if not _is_ornament(character))
    folded = unicodedata.normalize("NFC", bare).translate(_LETTERS)
    return "".join(character for character in folded if ord(character) > 127 or character.isalnum())


def _is_ornament(mark: str) -> bool:
    return unicodedata.combining(mark) in _ORNAMENTS or mark in _SOFT


# --- queries ---------------------------------------------------------------------------------------------------------


def terms_from(query: str) -> list[Term]:
    """Return the terms of a query. All of them must match."""
    chunks: list[tuple[str, bool]] = []  # consecutive words, and whether they are quoted
    position = 0
    for quotation in _QUOTATION.finditer(query):
        chunks.extend((chunk, False) for chunk in query[position : quotation.start()].split())
        chunks.append((quotation[1], True))
        position = quotation.end()
    chunks.extend((chunk, False) for chunk in query[position:].split())
    terms = [_term(chunk, is_last and not quotation) for is_last, (chunk, quotation) in _with_last_flag(chunks)]
    return list(dict.fromkeys(term for term in terms if term.words))


def _with_last_flag(chunks: list[tuple[str, bool]]) -> Iterator[tuple[bool, tuple[str, bool]]]:
    for number, chunk in enumerate(chunks, 1):
        yield number == len(chunks), chunk


def _term(chunk: str, is_last: bool) -> Term:
    words: list[str] = []
    pairs: list[str] = []
    is_prefix = False
    for run in _find_runs(chunk):
        analysis = _analyze(run)
        words.extend(analysis.words)
        is_prefix = is_last and not _IS_APART.match(run)
        if _IS_SPACELESS.match(run):
            pairs.extend(analysis.parts)
    return Term(tuple(words), tuple(dict.fromkeys(pairs)), is_prefix)


# --- excerpts --------------------------------------------------------------------------------------------------------


class _Place(msgspec.Struct, frozen=True):
    """A match: the index of the term, and its position in the text."""

    term: int
    begin: int
    end: int


_MAX_PLACES: Final = 500  # per term; later ones are ignored


def excerpt(text: str, terms: list[Term], length: int = 160) -> Excerpt:
    """Return the piece of a text that contains the most terms."""
    text = "".join(unicodedata.normalize("NFC", piece) for _, piece in _split_text(text[:MAX_TEXT_LENGTH]))
    places = _find_places(text, terms)
    begin, end = _excerpt_bounds(text, _best_range(places, length), length)
    before, behind = "…" if begin > 0 else "", "…" if end < len(text) else ""
    shown = f"{before}{_to_one_line(text[begin:end])}{behind}"
    moved = len(before) - begin
    inside = sorted({(place.begin, min(place.end, end)) for place in places if begin <= place.begin < end})
    return Excerpt(shown, tuple((first + moved, last + moved) for first, last in _merge_spans(inside)))


def _to_one_line(text: str) -> str:
    return "".join(" " if character.isspace() or ord(character) < 32 else character for character in text)


def _find_places(text: str, terms: list[Term]) -> list[_Place]:
    """Return the matches of the terms in the order of the text."""
    words: list[str] = []
    spans: list[tuple[int, int]] = []
    places: list[_Place] = []
    alone = [(number, term) for number, term in enumerate(terms) if len(term.words) == 1]
    for at, run in _find_spans(text):
        if _IS_SPACELESS.match(run):
            row = fold(run)
            words.extend(row)
            spans.extend(_row_spans(run, row, at))
        elif word := _word(run):
            words.append(word.folded)
            spans.append((at, at + len(run)))
            for part, (begin, end) in zip(word.parts, word.spans, strict=True):
                places.extend(_Place(number, at + begin, at + end) for number, term in alone if _matches(term, 0, part))
    for number, term in enumerate(terms):
        rows = itertools.islice(_find_phrases(term, words, spans), _MAX_PLACES)
        places.extend(_Place(number, begin, end) for begin, end in rows)
    return sorted(places, key=lambda place: (place.begin, -place.end))


def _find_spans(text: str) -> Iterator[tuple[int, str]]:
    """Yield the runs of a normalized text with their positions."""
    for begin, piece in _split_text(text):
        for run in (_ASCII_RUN if piece.isascii() else _run_pattern()).finditer(piece):
            yield begin + run.start(), run[0]


def _row_spans(run: str, row: str, at: int) -> list[tuple[int, int]]:
    """Return the positions of folded characters; the whole run for each if folding changed their number."""
    if len(run) == len(row):
        return [(at + number, at + number + 1) for number in range(len(row))]
    return [(at, at + len(run))] * len(row)


def _matches(term: Term, index: int, word: str) -> bool:
    expected = term.words[index]
    is_last = index == len(term.words) - 1
    return word == expected or (term.is_prefix and is_last and word.startswith(expected))


def _find_phrases(term: Term, words: list[str], spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    length = len(term.words)
    for at in range(len(words) - length + 1):
        if _matches(term, 0, words[at]) and all(_matches(term, index, words[at + index]) for index in range(1, length)):
            yield spans[at][0], spans[at + length - 1][1]


def _best_range(places: list[_Place], length: int) -> tuple[int, int]:
    """Return the first range in which the most terms are close together."""
    best, most, every = (0, 0), 0, len({place.term for place in places})
    for number, first in enumerate(places):
        if most == every:
            break
        near = [place for place in places[number : number + 50] if place.end - first.begin <= length]
        terms = len({first.term, *(place.term for place in near)})
        if terms > most:
            most = terms
            best = first.begin, max((place.end for place in near), default=first.begin + length)
    return best


def _excerpt_bounds(text: str, place: tuple[int, int], length: int) -> tuple[int, int]:
    """Return the bounds of about ``length`` characters around a range, at word boundaries."""
    spare = max(0, length - (place[1] - place[0]))
    begin = max(0, min(place[0] - spare // 2, len(text) - length))
    end = min(len(text), max(begin + length, place[1]))
    if begin > 0:
        blank = next((at for at in range(begin, min(begin + 20, place[0])) if text[at].isspace()), None)
        begin = begin if blank is None else blank + 1
    if end < len(text):
        blank = next((at for at in range(end, max(end - 20, place[1]), -1) if text[at].isspace()), None)
        end = end if blank is None else blank
    return begin, end


def _merge_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans without those that lie in another or overlap it."""
    merged: list[tuple[int, int]] = []
    for begin, end in spans:
        if merged and begin < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged
