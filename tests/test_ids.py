"""Ids of messages, sessions and tool calls."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import catalog
from dragoman.ids import (
    ALPHABET,
    TOOL_ID,
    IdFormat,
    ToolIds,
    UlidSource,
    derive_ulid,
    format_id,
    ulid,
    ulid_time_ms,
)

MISTRAL = IdFormat(alphabet="".join(map(chr, [*range(48, 58), *range(65, 91), *range(97, 123)])), exact_length=9)
spellings = st.sampled_from([*{provider.tool_ids for provider in catalog.builtin().providers.values()}])
canonical = st.integers(0, 2**128 - 1).map(lambda number: "tu_" + ulid(number >> 80, number % 2**80))


def test_a_ulid_is_the_published_one() -> None:
    # The example of the ULID specification: this time, these random bits.
    assert ulid(1469918176385, 0) == "01ARYZ6S410000000000000000"
    assert ulid_time_ms("01ARYZ6S41TSV4RRFFQ69G5FAV") == 1469918176385
    assert ulid(2**48 - 1, 2**80 - 1) == "7" + "Z" * 25


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1))
def test_ulids_sort_like_their_numbers(time_ms: int, randomness: int) -> None:
    made = ulid(time_ms, randomness)
    assert len(made) == 26
    assert ulid_time_ms(made) == time_ms
    if randomness:
        assert ulid(time_ms, randomness - 1) < made


@given(st.lists(st.integers(0, 2**47), min_size=1, max_size=50), st.randoms(use_true_random=False))
def test_ids_of_a_session_grow_whatever_the_clock_does(clock: list[int], chance: random.Random) -> None:
    ticks = iter(clock)
    source = UlidSource(lambda: next(ticks), lambda: chance.getrandbits(80))
    made = [source.next() for _ in clock]
    assert made == sorted(set(made))


def test_ids_go_on_growing_after_a_restart_with_the_clock_an_hour_back() -> None:
    before = UlidSource(lambda: 1_700_000_000_000, lambda: 7)
    last = [before.next() for _ in range(3)][-1]
    after = UlidSource(lambda: 1_700_000_000_000 - 3_600_000, lambda: 0, last=last)
    assert after.next() > last
    assert after.next_tool_id().startswith("tu_01")


def test_a_full_millisecond_runs_over_into_the_next() -> None:
    source = UlidSource(lambda: 5, lambda: 2**80 - 1)
    first, second = source.next(), source.next()
    assert (ulid_time_ms(first), ulid_time_ms(second)) == (5, 6)
    assert second > first


@pytest.mark.parametrize("randomness", [0, 1020, 1021, 2**80 - 2])
def test_many_ids_are_those_of_single_calls_in_one_millisecond(randomness: int) -> None:
    single, many = (UlidSource(lambda: 5, lambda: randomness) for _ in range(2))
    expected = [single.next() for _ in range(6)]
    assert [*many.next_many(4), *many.next_many(1), many.next()] == expected


def test_a_thread_that_shares_a_source_waits_for_the_id_of_another_one() -> None:
    ids: list[str] = []
    other = threading.Thread(target=lambda: ids.append(source.next()))

    def randomness() -> int:
        if other.ident is None:
            other.start()
            other.join(0.05)
            return 1
        return 2

    source = UlidSource(lambda: 5, randomness)
    ids.append(source.next())
    other.join()
    ids.append(source.next())
    assert sorted(set(ids)) == ids


def test_the_last_ulid_has_no_successor() -> None:
    source = UlidSource(lambda: 0, lambda: 0, last="7" + "Z" * 25)
    with pytest.raises(OverflowError):
        source.next()


def test_more_ids_than_there_are_raise_an_error() -> None:
    source = UlidSource(lambda: 0, lambda: 0, last="7" + "Z" * 24 + "X")
    with pytest.raises(OverflowError):
        source.next_many(3)


@pytest.mark.parametrize("text", ["", "01", "8" + "0" * 25, "01ARYZ6S41TSV4RRFFQ69G5FAI", "01aryz6s41tsv4rrffq69g5fav"])
def test_what_is_no_ulid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a ULID"):
        ulid_time_ms(text)


def test_derived_ids_depend_on_every_word_and_on_nothing_else() -> None:
    assert derive_ulid(5, "a", "b") == derive_ulid(5, "a", "b")
    assert (
        len({derive_ulid(5, "a", "b"), derive_ulid(5, "ab"), derive_ulid(5, "b", "a"), derive_ulid(6, "a", "b")}) == 4
    )


@given(canonical)
def test_our_tool_ids_have_their_form(tool_id: str) -> None:
    assert TOOL_ID.fullmatch(tool_id)
    assert set(tool_id[3:]) <= set(ALPHABET)


@given(canonical, spellings)
def test_a_spelling_is_accepted_and_always_the_same(tool_id: str, spelling: IdFormat) -> None:
    spelled = format_id(tool_id, spelling)
    assert spelling.accepts(spelled)
    assert spelled == format_id(tool_id, spelling)


def test_each_provider_gets_the_id_as_it_likes_it() -> None:
    rows = catalog.builtin()
    tool_id = "tu_01KR3ER9E00000000000000QQE"
    assert format_id(tool_id, rows.provider("anthropic").tool_ids) == tool_id
    assert format_id(tool_id, rows.provider("openai").tool_ids) == "call_01KR3ER9E00000000000000QQE"
    nine = format_id(tool_id, rows.provider("mistral").tool_ids)
    assert len(nine) == 9
    assert nine.isalnum()


@given(st.lists(canonical, unique=True, max_size=40), spellings)
def test_no_two_calls_of_a_session_are_spelled_the_same_and_each_is_found_again(
    tool_ids: list[str], spelling: IdFormat
) -> None:
    ids = ToolIds()
    theirs = [ids.to_provider_id("p", tool_id, spelling) for tool_id in tool_ids]
    assert len(set(theirs)) == len(theirs)
    assert [ids.from_provider_id("p", spelled) for spelled in theirs] == tool_ids
    again = ToolIds(ids.entries)
    assert [again.to_provider_id("p", tool_id, spelling) for tool_id in tool_ids] == theirs


def test_what_was_learned_is_rebuilt_in_its_order() -> None:
    ids = ToolIds()
    ids.add("q", "tu_A", "call_0")
    ids.add("q", "tu_B", "call_0")
    assert ids.to_provider_id("q", "tu_B") == "call_0"
    assert ids.to_provider_id("q", "tu_A") != "call_0"  # two calls never go by one name
    for ours, theirs in [("tu_A", "x"), ("tu_B", "x"), ("tu_A", "x"), ("tu_A", "y"), ("tu_A", "y")]:
        ids.add("p", ours, theirs)
    again = ToolIds(ids.entries)
    for theirs in ("x", "y"):
        assert again.from_provider_id("p", theirs) == ids.from_provider_id("p", theirs) == "tu_A"
    assert again.to_provider_id("p", "tu_A") == ids.to_provider_id("p", "tu_A") == "y"
    assert again.entries == ids.entries


def test_an_id_format_without_room_is_rejected_and_one_without_unused_ids_raises() -> None:
    for wrong in ({"alphabet": ""}, {"prefix": "call_", "max_length": 5}, {"prefix": "call_", "exact_length": 3}):
        with pytest.raises(ValueError, match="characters after its prefix"):
            IdFormat(**wrong)
    assert len(format_id("tu_01", IdFormat(exact_length=50))) == 50
    ids = ToolIds()
    single = IdFormat(alphabet="a", exact_length=1)
    assert ids.to_provider_id("p", "tu_1", single) == "a"
    with pytest.raises(ValueError, match="no unused id"):
        ids.to_provider_id("p", "tu_2", single)


@pytest.mark.parametrize(("time_ms", "randomness"), [(2**48, 0), (-1, 0), (0, 2**80), (0, -1)])
def test_what_does_not_fit_a_ulid_is_refused(time_ms: int, randomness: int) -> None:
    with pytest.raises(ValueError, match="a ULID cannot hold"):
        ulid(time_ms, randomness)


def test_a_collision_is_resolved_and_the_resolution_is_kept() -> None:
    tiny = IdFormat(alphabet="ab", exact_length=2)
    ids = ToolIds()
    tool_ids = [f"tu_0{number}" for number in range(4)]
    theirs = [ids.to_provider_id("p", tool_id, tiny) for tool_id in tool_ids]
    assert sorted(theirs) == ["aa", "ab", "ba", "bb"]
    assert [ToolIds(ids.entries).to_provider_id("p", tool_id, tiny) for tool_id in tool_ids] == theirs


def test_an_id_that_the_provider_issued_is_used_toward_it_and_nobody_else() -> None:
    ids = ToolIds()
    ids.add("anthropic", "tu_01HZ", "toolu_01ABC")
    assert ids.to_provider_id("anthropic", "tu_01HZ") == "toolu_01ABC"
    assert ids.from_provider_id("anthropic", "toolu_01ABC") == "tu_01HZ"
    assert ids.to_provider_id("openai", "tu_01HZ", IdFormat(prefix="call_")) == "call_01HZ"
    assert ids.from_provider_id("openai", "toolu_01ABC") is None


def test_a_spelling_never_takes_an_id_that_the_provider_issued_for_another_call() -> None:
    ids = ToolIds()
    ids.add("openai", "tu_01A", "call_01B")
    assert ids.to_provider_id("openai", "tu_01B", IdFormat(prefix="call_")) != "call_01B"
