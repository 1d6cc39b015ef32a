"""Tests of search on every engine: matches, snippets, filters and the index."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.errors import UnknownSessionError
from dragoman.message import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageStatus,
    OpaqueBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.store import Hit, Session, Store, open_store
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.search import index
from dragoman.store.search.tokenizer import analyze, terms_from
from tests.conftest import scale
from tests.store.conftest import Clock, StoreLocation
from tests.store.messages import answer_message, message, text_message
from tests.store.test_search_terms import FOUND, NOT_FOUND, TEXTS, matches_query, matches_term


@operation
def run_statement(sql: str, *arguments: Any) -> Generator[Statement, Rows, Rows]:
    return (yield sql, arguments)


async def create_session(store: Store, *texts: str, **fields: Any) -> Session:
    session = await store.create_session(**fields)
    await store.append(session.id, [text_message(text) for text in texts])
    return session


async def search_places(store: Store, query: str, **filters: Any) -> list[tuple[str, int]]:
    return sorted((hit.session_id, hit.seq) for hit in await store.search(query, limit=1000, **filters))


async def search_seqs(store: Store, query: str, **filters: Any) -> list[int]:
    return [seq for _, seq in await search_places(store, query, **filters)]


def list_marked_text(hit: Hit) -> list[str]:
    return [hit.snippet[begin:end] for begin, end in hit.highlights]


async def is_index_behind(store: Store) -> bool:
    return bool(await store._read(index.find_behind(None, 1)))


# --- matches ---------------------------------------------------------------------------------------------------------


async def test_search_finds_texts_of_every_script(store: Store) -> None:
    for text, query in FOUND:
        session = await create_session(store, text)
        (hit,) = await store.search(query, session_id=session.id)
        assert (hit.session_id, hit.seq, hit.role) == (session.id, 1, "user"), query
        assert hit.highlights, query


async def test_search_ignores_texts_that_do_not_match(store: Store) -> None:
    for text, query in NOT_FOUND:
        session = await create_session(store, text)
        assert await store.search(query, session_id=session.id) == [], query


MANY = [
    *(text for text, _ in (*FOUND, *NOT_FOUND)),
    "the " * 400 + "cat sat on the mat",  # more positions of a word than a tsvector stores
    "cat the mat the sat " * 100,
    " ".join(f"w{number}" for number in range(17_000)) + " behind everything else",  # more words than a tsvector stores
    "everything behind " + " ".join(f"w{number}" for number in range(16_500)),
    "的" * 300 + "机器学习",
    "use parseJson, then parse json",
]
QUERIES = [
    *(query for _, query in (*FOUND, *NOT_FOUND)),
    *("the cat", '"the cat"', '"sat on the"', '"mat the"', '"behind everything"', '"everything behind"', "w16900"),
    *(
        "w16",
        '"w15999 w16000 w16001"',
        "的机",
        "机器学习",
        "的的的",
        '"use parse"',
        '"then parse"',
        "parse_json",
        "use js",
    ),
]


@functools.cache
def reference_matches() -> dict[str, list[int]]:
    """Return the numbers of the messages of MANY that contain all terms of each query."""
    analyses = [analyze(text) for text in MANY]
    matches = {}
    for query in QUERIES:
        terms = terms_from(query)
        matches[query] = [
            seq for seq, one in enumerate(analyses, 1) if terms and all(matches_term(term, one) for term in terms)
        ]
    return matches


async def test_engines_match_reference_search(store: Store) -> None:
    session = await create_session(store, *MANY)
    for query, expected in reference_matches().items():
        assert await search_seqs(store, query) == expected, query
        assert await search_seqs(store, query, session_id=session.id) == expected, query


@settings(max_examples=scale(3, 15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_every_word_of_message_finds_it(store: Store, runner: asyncio.Runner, text: str) -> None:
    async def check() -> None:
        session = await create_session(store, text)
        for word in [word for word in text.split() if terms_from(word)][:5]:
            assert await search_places(store, word, session_id=session.id) == [(session.id, 1)], word

    runner.run(check())


@settings(max_examples=scale(5, 25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.one_of(TEXTS, st.text("ab \"'*:()-+^&|!<>\\/?%_{}[]~.,;NOTANDOR\0", max_size=30)))
def test_any_text_is_valid_query(store: Store, runner: asyncio.Runner, query: str) -> None:
    async def check() -> None:
        session = await create_session(store, query)
        assert bool(await store.search(query, session_id=session.id)) == matches_query(query, query)

    runner.run(check())


async def test_search_covers_all_texts_of_message(store: Store) -> None:
    session = await store.create_session()
    image = ImageSource("base64", "cGljdHVyZQ==")
    blocks: list[ContentBlock] = [
        TextBlock("alpha"),
        ThinkingBlock("bravo"),
        ToolUseBlock("tu_1", "read_file", {"path": "src/charlie.py", "lines": [12, {"delta": True}], "none": None}),
        InvalidToolUseBlock("tu_2", "broken", '{"echo": ', "cut off"),
        DocumentBlock(image, "application/pdf", "foxtrot.pdf"),
        ImageBlock(image, "image/png"),
        OpaqueBlock("anthropic", {"golf": 1}),
    ]
    await store.append(session.id, message(Role.ASSISTANT, blocks))
    inside = ToolResultBlock("tu_1", (TextBlock("hotel"), DocumentBlock(image, "application/pdf", "india.txt")))
    await store.append(session.id, message(Role.TOOL, [inside], parent_tool_use_id="tu_1"))
    for word in ("alpha", "read_file", "charlie.py", "path", "12", "delta", "echo", "foxtrot.pdf"):
        assert await search_seqs(store, word) == [1], word
    for word in ("hotel", "india"):
        assert await search_seqs(store, word) == [2], word
    for word in ("bravo", "tu_1", "golf", "cGljdHVyZQ", "png"):
        assert await search_seqs(store, word) == [], word


async def test_search_covers_text_blobs_and_skips_images(store: Store) -> None:
    session = await store.create_session()
    image = ImageBlock(ImageSource("base64", "A" * 40_000), "image/png")
    long = "lorem ipsum " * 3_000 + "needle in the middle " + "dolor sit amet " * 3_000
    await store.append(session.id, message(Role.USER, [TextBlock(long), image]))
    (row,) = await store._read(run_statement("SELECT blobs_json FROM messages"))
    assert row[0].count("base64") == 1
    for blob in [blob async for blob in store.blobs.list()]:
        if blob.size == 30_000:
            await store.blobs.delete(blob.sha256)
    (hit,) = await store.search('"needle in the middle"')
    assert list_marked_text(hit) == ["needle in the middle"]
    assert len(hit.snippet) <= 162


async def test_pages_of_hits_are_complete(store: Store) -> None:
    await create_session(store, *(f"apple number {number}" for number in range(25)))
    pages = [await store.search("apple", limit=10, offset=offset) for offset in (0, 10, 20, 30)]
    assert [len(page) for page in pages] == [10, 10, 5, 0]
    assert sorted(hit.seq for page in pages for hit in page) == list(range(1, 26))
    assert await store.search("apple", limit=0) == []


async def test_hits_are_ordered_by_rank(store: Store) -> None:
    filler = "It goes on about quite different things, and at length. " * 20
    session = await create_session(
        store,
        f"{filler} A migration was mentioned once. {filler} So was a database. {filler}",
        "The database migration failed; run the database migration again.",
        f"{filler} A database migration was mentioned. {filler}",
        "Nothing of the kind.",
        *(f"Small talk, number {number}" for number in range(20)),
    )
    hits = await store.search("database migration")
    assert [hit.seq for hit in hits] == [2, 3, 1]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert {hit.session_id for hit in hits} == {session.id}
    assert list_marked_text(hits[0]) == ["database", "migration", "database", "migration"]


async def test_snippet_contains_text_around_match(store: Store) -> None:
    session = await store.create_session()
    (row,) = await store.append(session.id, answer_message(f"{'Before. ' * 50}Here is the Straße.{' After.' * 50}"))
    (hit,) = await store.search("strasse")
    assert (hit.message_id, hit.role, hit.created_at) == (row.message.id, "assistant", row.message.created_at)
    assert list_marked_text(hit) == ["Straße"]
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert "Here is the Straße." in hit.snippet
    assert len(hit.snippet) <= 162


# --- filters ---------------------------------------------------------------------------------------------------------


async def test_filters_restrict_hits(store: Store, clock: Clock) -> None:
    store.clock = clock
    mine = await store.create_session(user_id="usr_1", team_id="team_1")
    theirs = await store.create_session(user_id="usr_2", team_id="team_1")
    nobodys = await store.create_session()
    await store.append(mine.id, text_message("apple"))
    clock.move(days=1)
    await store.append(mine.id, answer_message("apple", model="acme:one"))
    clock.move(days=1)
    await store.append(theirs.id, answer_message("apple", model="acme:two"))
    await store.append(nobodys.id, text_message("apple", user_id="usr_1", team_id="team_2"))
    places_of = {"mine": mine.id, "theirs": theirs.id, "nobodys": nobodys.id}
    day = timedelta(days=1)
    cases: list[tuple[dict[str, Any], list[tuple[str, int]]]] = [
        ({}, [("mine", 1), ("mine", 2), ("theirs", 1), ("nobodys", 1)]),
        ({"session_id": mine.id}, [("mine", 1), ("mine", 2)]),
        ({"role": "user"}, [("mine", 1), ("nobodys", 1)]),
        ({"role": Role.ASSISTANT}, [("mine", 2), ("theirs", 1)]),
        ({"model": "acme:one"}, [("mine", 2)]),
        ({"model": "acme"}, []),
        ({"user_id": "usr_1"}, [("mine", 1), ("mine", 2), ("nobodys", 1)]),
        ({"team_id": "team_1"}, [("mine", 1), ("mine", 2), ("theirs", 1)]),
        ({"user_id": "usr_2", "team_id": "team_1"}, [("theirs", 1)]),
        ({"user_id": "usr_1", "team_id": "team_2"}, [("nobodys", 1)]),
        ({"since": clock.now - day}, [("mine", 2), ("theirs", 1), ("nobodys", 1)]),
        ({"until": clock.now - day}, [("mine", 1)]),
        ({"since": clock.now - day, "until": clock.now, "session_id": mine.id, "role": "assistant"}, [("mine", 2)]),
    ]
    for filters, expected in cases:
        found = await search_places(store, "apple", **filters)
        assert found == sorted((places_of[name], seq) for name, seq in expected), filters


async def test_search_in_unknown_session_raises(store: Store) -> None:
    with pytest.raises(UnknownSessionError):
        await store.search("apple", session_id="sess_none")


async def test_fork_finds_shared_messages_once(store: Store) -> None:
    origin = await create_session(store, "apple one", "apple two", "apple three")
    fork = await store.fork(origin.id, at=2)
    await store.append(fork.id, text_message("apple of the fork"))
    second = await store.fork(fork.id, at=3)
    await store.append(second.id, text_message("apple of the second"))
    empty = await store.fork(origin.id, at=1)
    assert await search_places(store, "apple", session_id=fork.id) == [(fork.id, 1), (fork.id, 2), (fork.id, 3)]
    assert await search_places(store, "apple", session_id=second.id) == [(second.id, seq) for seq in (1, 2, 3, 4)]
    assert await search_places(store, "apple", session_id=empty.id) == [(empty.id, 1)]
    assert await search_places(store, "apple", session_id=(await store.fork(origin.id, at=0)).id) == []
    expected = [*((origin.id, seq) for seq in (1, 2, 3)), (fork.id, 3), (second.id, 4)]
    assert await search_places(store, "apple") == sorted(expected)


async def test_shared_message_is_found_in_fork_of_other_user(store: Store) -> None:
    origin = await create_session(store, "apple one", "apple two", "apple three", user_id="usr_1", team_id="team")
    fork = await store.fork(origin.id, at=2, user_id="usr_2")
    shorter = await store.fork(origin.id, at=1, user_id="usr_2")
    await store.append(fork.id, text_message("apple of the fork"))
    assert await search_places(store, "apple", user_id="usr_2") == [(fork.id, 1), (fork.id, 2), (fork.id, 3)]
    assert await search_places(store, "apple", user_id="usr_2", session_id=shorter.id) == [(shorter.id, 1)]
    assert await search_places(store, "apple", user_id="usr_2", team_id="team") == [(fork.id, seq) for seq in (1, 2, 3)]
    assert await search_places(store, "apple", user_id="usr_1") == [(origin.id, seq) for seq in (1, 2, 3)]


# --- index -----------------------------------------------------------------------------------------------------------


async def test_appended_message_is_found_immediately(store: Store) -> None:
    session = await store.create_session()
    for number in range(10):
        await store.append(session.id, text_message(f"apple{number}"))
        assert await search_seqs(store, f"apple{number}") == [number + 1]


async def test_index_is_updated_in_background(store: Store) -> None:
    await create_session(store, *(f"apple {number}" for number in range(300)))
    async with asyncio.timeout(60):
        while await is_index_behind(store):
            await asyncio.sleep(0.05)


async def test_opened_store_continues_indexing(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        await create_session(store, "apple")
    async with database_location.open() as store, asyncio.timeout(60):
        while await is_index_behind(store):
            await asyncio.sleep(0.05)
        assert len(await store.search("apple")) == 1


async def test_concurrent_indexing_adds_each_message_once(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        sessions = [await create_session(first_store, *(f"apple {number}" for number in range(40))) for _ in range(10)]
        found = await asyncio.gather(
            *(search_places(store, "apple") for store in (first_store, second_store, first_store, second_store))
        )
        expected = sorted((session.id, seq) for session in sessions for seq in range(1, 41))
        assert all(one_found == expected for one_found in found)


async def test_updated_message_is_found_by_current_text(store: Store) -> None:
    session = await create_session(store, "before")
    (row,) = await store.append(session.id, answer_message("apple", status=MessageStatus.PARTIAL))
    await store.append(session.id, text_message("behind"))
    assert await search_seqs(store, "apple") == [2]
    grown = row.message.replace(content=(TextBlock("pear"),))
    await store.update(session.id, grown)
    assert (await search_seqs(store, "apple"), await search_seqs(store, "pear")) == ([], [2])
    ended = grown.replace(
        content=(TextBlock("pear and plum"),), metadata=grown.metadata.replace(status=MessageStatus.COMPLETE)
    )
    await store.update(session.id, ended)
    assert (
        await search_seqs(store, "plum"),
        await search_seqs(store, "behind"),
        await search_seqs(store, "before"),
    ) == ([2], [3], [1])


async def test_message_changed_during_indexing_is_not_indexed_stale(store: Store) -> None:
    session = await store.create_session()
    rows = await store.append(
        session.id, [text_message("one"), answer_message("apple", status=MessageStatus.PARTIAL), text_message("three")]
    )
    await store.search_index.stop()
    found = await store._read(index.read_pending([(session.id, 3)], 100))
    pieces = await store.search_index._make_batches(found, 100_000)
    await store.update(session.id, rows[1].message.replace(content=(TextBlock("pear"),)))
    await store.search_index.stop()
    for piece in pieces:
        assert await store._write(index.put_batches(store.engine, piece))
    assert await store._read(run_statement("SELECT indexed_seq FROM sessions")) == [(1,)]
    assert (await search_seqs(store, "apple"), await search_seqs(store, "pear"), await search_seqs(store, "three")) == (
        [],
        [2],
        [3],
    )
    for piece in pieces:
        assert not await store._write(index.put_batches(store.engine, piece))  # already done by another process
    assert await search_seqs(store, "apple") == []


async def test_deleted_messages_are_not_found(store: Store) -> None:
    session = await create_session(store, "apple one", "apple two", "apple three")
    other = await create_session(store, "apple")
    assert len(await store.search("apple")) == 4
    await store._write(index.remove_messages(store.engine, session.id, 2, 2))
    assert await search_seqs(store, "apple", session_id=session.id) == [1, 3]
    await store._write(index.remove_messages(store.engine, session.id))
    await store._write(index.compact_index(store.engine))
    assert await search_places(store, "apple") == [(other.id, 1)]


async def test_inherited_message_is_found_only_in_fork(store: Store) -> None:
    origin = await create_session(store, "apple one", "apple two", "apple three")
    fork = await store.fork(origin.id, at=2)
    await store.append(fork.id, text_message("apple of the fork"))
    assert len(await store.search("apple")) == 4
    await store.delete_session(origin.id)
    expected = [(fork.id, 1), (fork.id, 2), (fork.id, 3)]
    assert await search_places(store, "apple") == await search_places(store, "apple", session_id=fork.id) == expected
    await store.delete_session(fork.id)
    assert await search_places(store, "apple") == []


async def test_deleted_words_are_removed_from_index_files(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        session = await create_session(store, "apple pineapple", "hiddenword pear", "plum")
        assert await search_seqs(store, "hiddenword") == [2]
        # The index keeps only the rest of a word that begins like the one before it: no other word may begin with h.
        blocks = run_statement("SELECT count(*) FROM search_data WHERE instr(block, CAST('hiddenword' AS BLOB)) > 0")
        assert await store._read(blocks) != [(0,)]
        await store._write(index.remove_messages(store.engine, session.id, 2, 2))
        await store._write(index.compact_index(store.engine))
        assert await store._read(blocks) == [(0,)]
        assert await search_seqs(store, "plum") == [3]


async def test_messages_of_erased_user_are_not_found(store: Store) -> None:
    await create_session(store, "apple one", user_id="usr_1")
    other = await create_session(store, "apple two", user_id="usr_2")
    await store.append(other.id, text_message("apple three", user_id="usr_1"))
    assert len(await store.search("apple")) == 3
    await store.erase_user("usr_1")
    assert await search_places(store, "apple") == [(other.id, 1)]
    await store.reindex()
    assert await search_places(store, "apple") == [(other.id, 1)]


async def test_reindex_rebuilds_index(store: Store) -> None:
    session = await create_session(store, "apple one", "apple two")
    fork = await store.fork(session.id, at=1)
    await store.append(fork.id, text_message("apple of the fork"))
    expected = await search_places(store, "apple")
    await store._write(index.remove_messages(store.engine, session.id))
    assert len(await search_places(store, "apple")) == 1
    await store.reindex()
    assert not await is_index_behind(store)
    assert await search_places(store, "apple") == expected


async def test_rows_of_earlier_version_are_indexed(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message("apple"))
    await store.search_index.stop()
    await store._write(index.remove_messages(store.engine, session.id))
    await store._write(run_statement("UPDATE sessions SET indexed_seq = 0, is_behind = 0, listed_at = 7"))
    assert len((await store.verify()).damage) == 2
    assert await search_places(store, "apple") == []
    await store.reindex()
    assert await search_places(store, "apple") == [(session.id, 1)]
    assert (await store.verify()).is_sound


async def test_damaged_message_is_skipped_by_index(store: Store) -> None:
    session = await create_session(store, "apple one", "apple two", "apple three")
    assert await search_seqs(store, "apple") == [1, 2, 3]
    await store._write(
        run_statement("UPDATE messages SET content_json = replace(content_json, 'two', 'twx') WHERE seq = 2")
    )
    assert await search_seqs(store, "apple") == [1, 3]
    await store._write(run_statement("UPDATE messages SET metadata_json = '{' WHERE seq = 3"))
    await store.reindex()
    await store.append(session.id, text_message("apple four"))
    assert await search_seqs(store, "apple") == [1, 4]
    assert await search_seqs(store, "apple", model="acme:one", user_id="usr_1") == []


async def test_missing_message_does_not_stop_index(store: Store) -> None:
    session = await create_session(store, "apple one", "apple two", "apple three")
    await store._write(run_statement("DELETE FROM messages WHERE seq = 2"))
    await store.append(session.id, text_message("apple four"))
    assert await search_seqs(store, "apple") == [1, 3, 4]
    assert not await is_index_behind(store)


async def test_undecodable_text_does_not_stop_index(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        session = await create_session(store, "apple one", "apple two", "apple three")
        spoil = "UPDATE messages SET content_json = CAST(CAST(content_json AS BLOB) || x'ff' AS TEXT) WHERE seq = ?"
        await store._write(run_statement(spoil, 2))
        assert await search_seqs(store, "apple") == [1, 3]
        assert not await is_index_behind(store)
        await store._write(run_statement(spoil, 3))
        assert await search_seqs(store, "apple", session_id=session.id) == [1]


async def test_missing_blob_does_not_stop_index(store: Store) -> None:
    session = await create_session(store, "apple " + "x " * 20_000, "apple behind it")
    for blob in [blob async for blob in store.blobs.list()]:
        await store.blobs.delete(blob.sha256)
    assert await search_seqs(store, "apple", session_id=session.id) == [2]


async def test_row_numbers_survive_vacuum(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        session = await create_session(store, "apple", "pear", "plum")
        assert await search_seqs(store, "plum") == [3]
        await store._write(index.remove_messages(store.engine, session.id, 1, 1))
        await store._write(run_statement("DELETE FROM messages WHERE seq = 1"))
        apsw.Connection(str(tmp_path / "store.db")).execute("VACUUM").fetchall()
        assert await search_seqs(store, "plum") == [3]
        await store.append(session.id, text_message("apple again"))
        assert await search_seqs(store, "apple") == [4]


# --- scale -----------------------------------------------------------------------------------------------------------


def create_long_message(number: int) -> Message:
    """Return a message of about thirty words, most of which are common."""
    common_words = [f"common{(number * step) % 97}" for step in range(1, 25)]
    return text_message(f"tale{number} {' '.join(common_words)} 机器{number}学习 read_file_{number % 500} the end")


@pytest.mark.slow
async def test_many_messages_are_indexed_and_searched(store: Store) -> None:
    count, each = scale(4_000, 20_000), 1_000
    sessions = [await store.create_session() for _ in range(count // each)]
    for number, session in enumerate(sessions):
        await store.append(session.id, [create_long_message(number * each + offset) for offset in range(each)])
    assert [hit.seq for hit in await store.search("tale2345")] == [346]
    assert not await is_index_behind(store)
    assert len(await store.search("common5", limit=20)) == 20
    assert len(await search_places(store, "read_file_77")) == count // 500
    assert [hit.session_id for hit in await store.search("机器2777学习")] == [sessions[2].id]
    assert len(await store.search("the end", session_id=sessions[3].id, limit=2_000)) == each
