"""Tests of ids of messages, sessions and tool calls."""

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
formats = st.sampled_from([*{provider.tool_ids for provider in catalog.builtin().providers.values()}])
canonical = st.integers(0, 2**128 - 1).map(lambda number: "tu_" + ulid(number >> 80, number % 2**80))


def test_ulid_matches_the_specification() -> None:
    # The example of the ULID specification.
    assert ulid(1469918176385, 0) == "01ARYZ6S410000000000000000"
    assert ulid_time_ms("01ARYZ6S41TSV4RRFFQ69G5FAV") == 1469918176385
    assert ulid(2**48 - 1, 2**80 - 1) == "7" + "Z" * 25


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1))
def test_ulids_sort_by_time_and_randomness(time_ms: int, randomness: int) -> None:
    value = ulid(time_ms, randomness)
    assert len(value) == 26
    assert ulid_time_ms(value) == time_ms
    if randomness:
        assert ulid(time_ms, randomness - 1) < value


@given(st.lists(st.integers(0, 2**47), min_size=1, max_size=50), st.randoms(use_true_random=False))
def test_ids_of_a_session_increase_for_any_clock(clock: list[int], chance: random.Random) -> None:
    ticks = iter(clock)
    source = UlidSource(lambda: next(ticks), lambda: chance.getrandbits(80))
    ids = [source.next() for _ in clock]
    assert ids == sorted(set(ids))


def test_ids_increase_after_a_restart_with_an_earlier_clock() -> None:
    before = UlidSource(lambda: 1_700_000_000_000, lambda: 7)
    last = [before.next() for _ in range(3)][-1]
    after = UlidSource(lambda: 1_700_000_000_000 - 3_600_000, lambda: 0, last=last)
    assert after.next() > last
    assert after.next_tool_id().startswith("tu_01")


def test_overflow_of_a_millisecond_continues_in_the_next() -> None:
    source = UlidSource(lambda: 5, lambda: 2**80 - 1)
    first, second = source.next(), source.next()
    assert (ulid_time_ms(first), ulid_time_ms(second)) == (5, 6)
    assert second > first


@pytest.mark.parametrize("randomness", [0, 1020, 1021, 2**80 - 2])
def test_next_many_equals_single_calls_in_one_millisecond(randomness: int) -> None:
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


def test_last_ulid_has_no_successor() -> None:
    source = UlidSource(lambda: 0, lambda: 0, last="7" + "Z" * 25)
    with pytest.raises(OverflowError):
        source.next()


def test_next_many_beyond_the_last_ulid_raises() -> None:
    source = UlidSource(lambda: 0, lambda: 0, last="7" + "Z" * 24 + "X")
    with pytest.raises(OverflowError):
        source.next_many(3)


@pytest.mark.parametrize("text", ["", "01", "8" + "0" * 25, "01ARYZ6S41TSV4RRFFQ69G5FAI", "01aryz6s41tsv4rrffq69g5fav"])
def test_invalid_ulid_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a ULID"):
        ulid_time_ms(text)


def test_derived_ids_depend_on_every_part() -> None:
    assert derive_ulid(5, "a", "b") == derive_ulid(5, "a", "b")
    assert (
        len({derive_ulid(5, "a", "b"), derive_ulid(5, "ab"), derive_ulid(5, "b", "a"), derive_ulid(6, "a", "b")}) == 4
    )


@given(canonical)
def test_own_tool_ids_have_the_documented_form(tool_id: str) -> None:
    assert TOOL_ID.fullmatch(tool_id)
    assert set(tool_id[3:]) <= set(ALPHABET)


@given(canonical, formats)
def test_formatted_id_is_accepted_and_deterministic(tool_id: str, id_format: IdFormat) -> None:
    provider_id = format_id(tool_id, id_format)
    assert id_format.accepts(provider_id)
    assert provider_id == format_id(tool_id, id_format)


def test_each_provider_gets_ids_in_its_format() -> None:
    rows = catalog.builtin()
    tool_id = "tu_01KR3ER9E00000000000000QQE"
    assert format_id(tool_id, rows.provider("anthropic").tool_ids) == tool_id
    assert format_id(tool_id, rows.provider("openai").tool_ids) == "call_01KR3ER9E00000000000000QQE"
    mistral_id = format_id(tool_id, rows.provider("mistral").tool_ids)
    assert len(mistral_id) == 9
    assert mistral_id.isalnum()


@given(st.lists(canonical, unique=True, max_size=40), formats)
def test_provider_ids_are_unique_and_map_back(tool_ids: list[str], id_format: IdFormat) -> None:
    ids = ToolIds()
    provider_ids = [ids.to_provider_id("p", tool_id, id_format) for tool_id in tool_ids]
    assert len(set(provider_ids)) == len(provider_ids)
    assert [ids.from_provider_id("p", provider_id) for provider_id in provider_ids] == tool_ids
    again = ToolIds(ids.entries)
    assert [again.to_provider_id("p", tool_id, id_format) for tool_id in tool_ids] == provider_ids


def test_entries_rebuild_the_map_in_order() -> None:
    ids = ToolIds()
    ids.add("q", "tu_A", "call_0")
    ids.add("q", "tu_B", "call_0")
    assert ids.to_provider_id("q", "tu_B") == "call_0"
    assert ids.to_provider_id("q", "tu_A") != "call_0"  # two calls never share an id
    for own_id, provider_id in [("tu_A", "x"), ("tu_B", "x"), ("tu_A", "x"), ("tu_A", "y"), ("tu_A", "y")]:
        ids.add("p", own_id, provider_id)
    again = ToolIds(ids.entries)
    for provider_id in ("x", "y"):
        assert again.from_provider_id("p", provider_id) == ids.from_provider_id("p", provider_id) == "tu_A"
    assert again.to_provider_id("p", "tu_A") == ids.to_provider_id("p", "tu_A") == "y"
    assert again.entries == ids.entries


def test_id_format_without_room_is_rejected_and_an_exhausted_one_raises() -> None:
    for fields in ({"alphabet": ""}, {"prefix": "call_", "max_length": 5}, {"prefix": "call_", "exact_length": 3}):
        with pytest.raises(ValueError, match="characters after its prefix"):
            IdFormat(**fields)
    assert len(format_id("tu_01", IdFormat(exact_length=50))) == 50
    ids = ToolIds()
    single = IdFormat(alphabet="a", exact_length=1)
    assert ids.to_provider_id("p", "tu_1", single) == "a"
    with pytest.raises(ValueError, match="no unused id"):
        ids.to_provider_id("p", "tu_2", single)


@pytest.mark.parametrize(("time_ms", "randomness"), [(2**48, 0), (-1, 0), (0, 2**80), (0, -1)])
def test_ulid_out_of_range_is_rejected(time_ms: int, randomness: int) -> None:
    with pytest.raises(ValueError, match="a ULID cannot hold"):
        ulid(time_ms, randomness)


def test_collision_is_resolved_and_the_resolution_is_stored() -> None:
    tiny = IdFormat(alphabet="ab", exact_length=2)
    ids = ToolIds()
    tool_ids = [f"tu_0{number}" for number in range(4)]
    provider_ids = [ids.to_provider_id("p", tool_id, tiny) for tool_id in tool_ids]
    assert sorted(provider_ids) == ["aa", "ab", "ba", "bb"]
    assert [ToolIds(ids.entries).to_provider_id("p", tool_id, tiny) for tool_id in tool_ids] == provider_ids


def test_provider_id_is_used_only_for_its_provider() -> None:
    ids = ToolIds()
    ids.add("anthropic", "tu_01HZ", "toolu_01ABC")
    assert ids.to_provider_id("anthropic", "tu_01HZ") == "toolu_01ABC"
    assert ids.from_provider_id("anthropic", "toolu_01ABC") == "tu_01HZ"
    assert ids.to_provider_id("openai", "tu_01HZ", IdFormat(prefix="call_")) == "call_01HZ"
    assert ids.from_provider_id("openai", "toolu_01ABC") is None


def test_formatted_id_never_equals_the_provider_id_of_another_call() -> None:
    ids = ToolIds()
    ids.add("openai", "tu_01A", "call_01B")
    assert ids.to_provider_id("openai", "tu_01B", IdFormat(prefix="call_")) != "call_01B"
