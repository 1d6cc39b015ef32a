"""Tests of recommendations by evaluations of similar turns."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.routing import Fingerprint, PatternSample, PatternSettings, make_fingerprint, recommend
from dragoman.routing.pattern import INTENTS, similarity

EMPTY = Fingerprint()


def sample(
    model: str, success: float = 1.0, *, size: int = 1, cost: str | None = None, of: Fingerprint = EMPTY
) -> PatternSample:
    money = None if cost is None else Decimal(cost)
    return PatternSample(fingerprint=of, primary_model=model, success=success, sample_size=size, cost_usd=money)


# --- fingerprints ----------------------------------------------------------------------------------------------------


def test_fingerprint_contains_intents_files_tools_and_length() -> None:
    fingerprint = make_fingerprint(
        "Fix the crash in src/shop/cart.py and tests/test_cart.PY, then explain why. See ./docs/cart.md.",
        estimated_input_tokens=5_000,
        has_images=True,
        tool_names=["write_file", "read_file", "read_file"],
        side_effects=["write", "read"],
    )
    assert fingerprint == Fingerprint(
        intent_tags=("explain", "fix"),
        file_extensions=(".md", ".py"),
        tool_names=("read_file", "write_file"),
        path_buckets=("docs", "src", "tests"),
        side_effects=("read", "write"),
        token_bucket="<16k",
        has_images=True,
    )


def test_ordinary_sentence_names_no_files() -> None:
    for text in ("Is 3.14 bigger than 3? Yes... i.e. and/or so, e.g. v2.", "Version 2.0 of it."):
        fingerprint = make_fingerprint(text, estimated_input_tokens=1)
        assert (fingerprint.file_extensions, fingerprint.path_buckets) == ((), ())


def test_folders_are_found_with_and_without_a_file() -> None:
    fingerprint = make_fingerprint("look into ./src and /etc/app/conf.d and lib/a/b", estimated_input_tokens=1)
    assert fingerprint.path_buckets == ("etc", "lib")
    assert fingerprint.file_extensions == (".d",)


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [(0, "<1k"), (999, "<1k"), (1_000, "<4k"), (63_999, "<64k"), (255_999, "<256k"), (256_000, "256k+")],
)
def test_lengths_are_grouped_into_buckets(tokens: int, bucket: str) -> None:
    assert make_fingerprint("", estimated_input_tokens=tokens).token_bucket == bucket


def test_word_has_only_one_intent() -> None:
    words = [word for words_of_intent in INTENTS.values() for word in words_of_intent.split()]
    assert len(words) == len(set(words))


def test_fingerprint_is_json_and_ignores_fields_of_newer_versions() -> None:
    fingerprint = make_fingerprint("fix a.py", estimated_input_tokens=10)
    assert msgspec.json.decode(msgspec.json.encode(fingerprint), type=Fingerprint) == fingerprint
    assert msgspec.json.decode(b'{"token_bucket":"<1k","mood":"good"}', type=Fingerprint) == Fingerprint(
        token_bucket="<1k"
    )
    assert msgspec.json.encode(EMPTY) == b"{}"


def test_fingerprint_of_many_files_is_limited() -> None:
    listing = "\n".join(f"dir{n}/file.e{n}" for n in range(5_000))
    fingerprint = make_fingerprint(listing, estimated_input_tokens=10)
    assert len(fingerprint.file_extensions) == len(fingerprint.path_buckets) == 16


def test_text_without_breaks_is_read_once() -> None:
    assert make_fingerprint("a" * 2_000_000, estimated_input_tokens=10) == Fingerprint(token_bucket="<1k")
    assert make_fingerprint("a." * 100_000, estimated_input_tokens=10).file_extensions == (".a",)


# --- similarity ------------------------------------------------------------------------------------------------------

FULL = Fingerprint(
    intent_tags=("fix",),
    file_extensions=(".py",),
    tool_names=("read_file",),
    path_buckets=("src",),
    side_effects=("read",),
    token_bucket="<4k",
    has_images=True,
)


@pytest.mark.parametrize(
    ("field", "other", "weight"),
    [
        ("intent_tags", ("plan",), 0.30),
        ("file_extensions", (".md",), 0.20),
        ("tool_names", ("write_file",), 0.15),
        ("path_buckets", ("docs",), 0.10),
        ("side_effects", ("write",), 0.10),
        ("token_bucket", "<1k", 0.10),
        ("has_images", False, 0.05),
    ],
)
def test_each_field_has_its_weight(field: str, other: object, weight: float) -> None:
    changed = msgspec.structs.replace(FULL, **{field: other})
    assert similarity(FULL, changed) == pytest.approx(1 - weight)


def test_sets_are_compared_by_their_overlap() -> None:
    fingerprint = Fingerprint(intent_tags=("fix", "test", "plan"))
    assert similarity(fingerprint, Fingerprint(intent_tags=("fix", "write"))) == pytest.approx(0.70 + 0.30 / 4)
    assert similarity(fingerprint, EMPTY) == pytest.approx(0.70)


def test_two_empty_fingerprints_are_equal() -> None:
    assert similarity(EMPTY, EMPTY) == pytest.approx(1.0)


names = st.lists(st.sampled_from("abcd"), unique=True, max_size=4).map(lambda found: tuple(sorted(found)))
fingerprints = st.builds(
    Fingerprint,
    intent_tags=names,
    file_extensions=names,
    tool_names=names,
    path_buckets=names,
    side_effects=names,
    token_bucket=st.sampled_from(["<1k", "<4k"]),
    has_images=st.booleans(),
)


@given(fingerprints, fingerprints)
def test_similarity_is_symmetric_and_between_0_and_1(first: Fingerprint, second: Fingerprint) -> None:
    assert similarity(first, second) == pytest.approx(similarity(second, first))
    assert 0 <= similarity(first, second) <= 1
    assert similarity(first, first) == pytest.approx(1)


# --- recommendations -------------------------------------------------------------------------------------------------


def test_no_samples_give_no_recommendation() -> None:
    assert recommend(EMPTY, []) is None


def test_success_is_a_mean_weighted_by_sample_size() -> None:
    found = recommend(EMPTY, [sample("a:x", 1.0, size=3), sample("a:x", 0.0, size=1), sample("b:y", 0.5, size=2)])
    assert found is not None
    assert [(row.model, row.sample_size) for row in found.ranked] == [("a:x", 4), ("b:y", 2)]
    assert [row.score for row in found.ranked] == pytest.approx([0.95 * 0.75, 0.95 * 0.5])
    assert found.confidence == pytest.approx((0.75 - 0.5) / 0.75)


def test_cost_has_a_small_weight_and_only_between_different_prices() -> None:
    same = recommend(EMPTY, [sample("a:x", 0.8, cost="1"), sample("b:y", 0.8, cost="1.00")])
    assert same is not None
    assert [row.score for row in same.ranked] == pytest.approx([0.76, 0.76])
    assert same.confidence == 0
    costs = [sample("a:x", 0.8, cost="3"), sample("b:y", 0.8, cost="1"), sample("c:z", 0.8, cost="2")]
    found = recommend(EMPTY, costs)
    assert found is not None
    assert [row.model for row in found.ranked] == ["b:y", "c:z", "a:x"]
    assert [row.score for row in found.ranked] == pytest.approx([0.81, 0.785, 0.76])


def test_cost_is_weighted_by_sample_size_and_unknown_cost_is_not_cheap() -> None:
    known = [sample("a:x", cost="4", size=3), sample("a:x", cost="0", size=1), sample("b:y", cost="2"), sample("c:z")]
    found = recommend(EMPTY, known, PatternSettings(cost_weight=1.0))
    assert found is not None
    assert {row.model: row.score for row in found.ranked} == pytest.approx({"b:y": 1.0, "a:x": 0.0, "c:z": 0.0})


def test_single_model_is_certain_unless_it_never_succeeded() -> None:
    alone, failed = recommend(EMPTY, [sample("a:x", 0.4)]), recommend(EMPTY, [sample("a:x", 0.0)])
    assert alone is not None
    assert alone.confidence == 1
    assert failed is not None
    assert failed.confidence == 0


def test_only_the_ten_nearest_samples_count_and_earlier_ones_first() -> None:
    far = [sample("far:m", of=FULL)] * 20
    near = [sample("near:m", 0.5)] * 7
    found = recommend(EMPTY, [*far, *near])
    assert found is not None
    assert {row.model: row.sample_size for row in found.ranked} == {"near:m": 7, "far:m": 3}
    first = recommend(EMPTY, [sample("first:m")] * 10 + [sample("later:m")] * 10)
    assert first is not None
    assert [row.model for row in first.ranked] == ["first:m"]


@given(
    st.lists(
        st.builds(
            PatternSample,
            fingerprint=fingerprints,
            primary_model=st.sampled_from(["a:x", "b:y", "c:z"]),
            success=st.floats(0, 1),
            sample_size=st.integers(1, 1_000),
            cost_usd=st.none() | st.decimals(0, 100, places=4),
        ),
        min_size=1,
        max_size=30,
    ),
    st.floats(0, 1),
)
def test_scores_and_confidence_are_between_0_and_1_and_sorted(known: list[PatternSample], weight: float) -> None:
    found = recommend(EMPTY, known, PatternSettings(cost_weight=weight))
    assert found is not None
    scores = [row.score for row in found.ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(-1e-9 <= score <= 1 + 1e-9 for score in scores)
    assert 0 <= found.confidence <= 1
    assert found == recommend(EMPTY, known, PatternSettings(cost_weight=weight))
