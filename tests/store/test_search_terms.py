# ruff: noqa: RUF001  these tests need letters of other scripts that resemble Latin ones
"""Tests of search terms and excerpts in every script."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.store.search import tokenizer
from dragoman.store.search.tokenizer import (
    MAX_DISTINCT_BYTES,
    MAX_WORD_LENGTH,
    Analysis,
    Term,
    analyze,
    excerpt,
    fold,
    terms_from,
)

# Texts with letters, marks and signs that are error-prone, among arbitrary others.
TEXTS = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from(
            "aA1_-./'\"“ \n ßİıŁéÅ\u0301\u0327\u00ad\u0640\u3099ｶﾞ机器学习かガ가\u1100\u1161ที่ไहिन्दी👍🏽🇪🇺①½ﬁ㍿ﷺ𠀀𝒳"
        ),
    ),
    max_size=60,
)


def matches_term(term: Term, analysis: Analysis) -> bool:
    """Return whether a text matches a term by definition."""
    *first, last = term.words
    tokenizer = analysis.words

    def is_last(word: str) -> bool:
        return word.startswith(last) if term.is_prefix else word == last

    if not first:
        return any(map(is_last, (*tokenizer, *analysis.parts)))
    places = range(len(tokenizer) - len(first))
    in_a_row = any(tokenizer[at : at + len(first)] == first and is_last(tokenizer[at + len(first)]) for at in places)
    return in_a_row and set(term.pairs) <= set(analysis.parts)


def matches_query(text: str, query: str) -> bool:
    terms = terms_from(query)
    return bool(terms) and all(matches_term(term, analyze(text)) for term in terms)


FOUND = [
    ("call read_file now", "read_file"),
    ("call read_file now", "file"),
    ("call read_file now", "READ_FI"),
    ("let x = parseJson(y)", "parse"),
    ("let x = parseJson(y)", "parsejson"),
    ("let x = parsejson(y)", "parseJson"),
    ("class HTTPServerError", "server"),
    ("class HTTPServerError", "http"),
    ("open src/dragoman/store/search/tokenizer.py", "store/search/tokenizer.py"),
    ("open src/dragoman/store/search/tokenizer.py", "tokenizer"),
    ("np.linalg.norm(a)", "linalg.norm"),
    ("Python 3.12.4", "3.12"),
    ("Python 3.12.4", "python"),
    ("--no-verify", "no-verify"),
    ("E_ACCESS: sha256 deadbeef", "sha256"),
    ("naïve café Ångström", "cafe naive angstrom"),
    ("cafe", "CAFÉ"),
    ("e\u0301cole", "école"),
    ("Straße", "STRASSE"),
    ("İstanbul", "istanbul"),
    ("Łódź, smørrebrød", "lodz smorrebrod"),
    ("ΟΔΥΣΣΕΥΣ", "οδυσσεύς"),
    ("Ёлка", "елка"),
    ("مُحَمَّد", "محمد"),
    ("שָׁלוֹם", "שלום"),
    ("हिन्दी में लिखो", "हिन्दी"),
    ("சென்னை", "சென்னை"),
    ("１２３ Ｆｕｌｌｗｉｄｔｈ", "123 fullwidth"),
    ("١٢٣", "123"),
    ("机器学习是人工智能的一个分支", "机"),
    ("机器学习是人工智能的一个分支", "学习"),
    ("机器学习是人工智能的一个分支", "人工智能"),
    ("机器学习是人工智能的一个分支", "分支 机器"),
    ("用Python写代码", "python写"),
    ("東京タワーへ行く", "タワー"),
    ("ﾀﾞｲﾔ", "ダイヤ"),
    ("한국어를 검색합니다", "한국"),
    ("한국어를 검색합니다", "검색"),
    (unicodedata.normalize("NFD", "한국어"), "국어"),
    ("ภาษาไทยไม่มีช่องว่าง", "ไทย"),
    ("ភាសាខ្មែរ", "ខ្មែរ"),
    ("𠀀𠀁𠀂", "𠀁"),
    ("done 🎉!", "🎉"),
    ("to be or not to be", '"or not to"'),
    ("to be or not to be", "not be"),
    ("a " + "x" * 500, "x" * 500),
]
NOT_FOUND = [
    ("read the file", "read_file"),
    ("files", '"file"'),
    ("files are here", "file here"),
    ("to be or not to be", '"not or"'),
    ("机器学习", "器机"),
    ("机器学习", "机学"),
    ("机 器", "机器"),
    ("Python 3.1", "3.12"),
    ("anything", "->"),
    ("anything", ""),
]


@pytest.mark.parametrize(("text", "query"), FOUND)
def test_text_matches_query(text: str, query: str) -> None:
    assert matches_query(text, query), (analyze(text), terms_from(query))


@pytest.mark.parametrize(("text", "query"), NOT_FOUND)
def test_text_does_not_match_query(text: str, query: str) -> None:
    assert not matches_query(text, query), (analyze(text), terms_from(query))


@given(TEXTS)
def test_every_word_of_text_matches_it(text: str) -> None:
    analysis = analyze(text)
    for chunk in text.split():
        for term in terms_from(chunk):
            assert matches_term(term, analysis), (chunk, term)


@given(TEXTS)
def test_quoted_text_matches_itself(text: str) -> None:
    text = text.translate(str.maketrans('"“”„«»', "      "))
    assert all(matches_term(term, analyze(text)) for term in terms_from(f'"{text}"'))


@given(TEXTS)
def test_match_ignores_unicode_composition(text: str) -> None:
    assert analyze(unicodedata.normalize("NFD", text)) == analyze(unicodedata.normalize("NFC", text))


@given(TEXTS)
def test_words_contain_no_separators_of_engines(text: str) -> None:
    analysis = analyze(text)
    for word in (*analysis.words, *analysis.parts):
        assert word
        assert len(word) <= MAX_WORD_LENGTH
        assert all(ord(character) > 127 or character.isalnum() for character in word)
        assert word.isascii() <= (word == word.lower())


@given(TEXTS)
def test_folding_is_idempotent(text: str) -> None:
    for word in analyze(text).words:
        assert fold(fold(word)) == fold(word)


def test_only_beginning_of_huge_text_is_analyzed() -> None:
    analysis = analyze(" ".join(f"word{number}" for number in range(200_000)))
    assert analysis.words[0] == "word0"
    distinct = {*analysis.words, *analysis.parts}
    assert MAX_DISTINCT_BYTES // 2 < sum(len(word) + 5 for word in distinct) <= MAX_DISTINCT_BYTES


# --- excerpts --------------------------------------------------------------------------------------------------------


def mark_excerpt(text: str, query: str) -> tuple[str, list[str]]:
    made = excerpt(text, terms_from(query))
    return made.text, [made.text[begin:end] for begin, end in made.highlights]


def test_excerpt_marks_positions_of_words() -> None:
    assert mark_excerpt("Call read_file, then write_file.", "file") == (
        "Call read_file, then write_file.",
        ["file", "file"],
    )
    assert mark_excerpt("Call read_file.", "read_file") == ("Call read_file.", ["read_file"])
    assert mark_excerpt("Ein Straßenfest", "strasse") == ("Ein Straßenfest", ["Straßenfest"])
    assert mark_excerpt("let parseJson = 1", "json") == ("let parseJson = 1", ["Json"])
    assert mark_excerpt("机器学习是分支", "学习") == ("机器学习是分支", ["学习"])
    assert mark_excerpt("one\ntwo\tthree", "two") == ("one two three", ["two"])


def test_excerpt_shows_densest_match() -> None:
    text = f"apples are red. {'Nothing to see here. ' * 40}Here apples and pears are together. {'More of it. ' * 40}"
    piece, marked = mark_excerpt(text, "apples pears")
    assert "Here apples and pears are together." in piece
    assert marked == ["apples", "pears"]
    assert piece.startswith("…")
    assert piece.endswith("…")
    assert len(piece) <= 162


@given(TEXTS, TEXTS, TEXTS)
def test_excerpt_marks_query(before: str, query: str, behind: str) -> None:
    text = f"{before} {query} {behind}"
    terms = [term for chunk in query.split() for term in terms_from(chunk)]
    made = excerpt(text, terms)
    assert bool(made.highlights) == bool(terms)
    end = 0
    for begin, until in made.highlights:
        assert end <= begin < until <= len(made.text)
        end = until


def test_repeated_word_is_compared_at_first_positions_only() -> None:
    terms = terms_from("word text")
    text = "word " * 5_000 + "text"
    assert len(tokenizer._find_places(text, terms)) <= 2 * tokenizer._MAX_PLACES
    assert excerpt(text, terms).highlights[0] == (0, 4)


@given(st.text(st.characters(codec="ascii")))
@example("readFile HTTPServer x" + "y" * 200 + "Z9 ABC a1B2")
def test_ascii_fast_path_equals_general_path(text: str) -> None:
    alone, among_others = analyze(text), analyze(f"é {text}")  # the second text uses the general path
    assert ["e", *alone.words] == among_others.words
    assert alone.parts == among_others.parts


@pytest.mark.parametrize("letter", ["x", "界", "é"])
def test_very_long_run_is_analyzed_in_pieces(letter: str) -> None:
    text = f"first {letter * 300_000} last"
    words = analyze(text).words
    assert words[0] == "first"
    assert words[-1] == "last"
    assert max(map(len, words)) <= MAX_WORD_LENGTH
    found = excerpt(text, terms_from("last"))
    assert [found.text[begin:end] for begin, end in found.highlights] == ["last"]
