"""Tests of prices and receipts."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import catalog
from dragoman.errors import FormatError, UnknownPriceError
from dragoman.message import TokenUsage
from dragoman.pricing import ModelPrice, PriceTable, Rates, library_prices, price_usage, prices_from_mapping, receipt
from tests.conftest import scale

# The example table of the specification.
SPECIFIED: dict[str, Any] = {
    "pricing_version": "2026-05-08",
    "models": {
        "anthropic:claude-sonnet-4-6": {
            "input_per_mtok_usd": 3.00,
            "output_per_mtok_usd": 15.00,
            "cached_read_per_mtok_usd": 0.30,
            "cache_write_per_mtok_usd": 3.75,
        },
        "openai:gpt-5": {"input_per_mtok_usd": 2.50, "output_per_mtok_usd": 10.00},
        "ollama:llama-3.3-70b": {"input_per_mtok_usd": 0.0, "output_per_mtok_usd": 0.0},
    },
}
SONNET = "anthropic:claude-sonnet-4-6"
MAY = datetime(2026, 5, 8, tzinfo=UTC)


def table_of(**rates: Any) -> PriceTable:
    full = {"input_per_mtok_usd": 1, "output_per_mtok_usd": 10, **rates}
    return prices_from_mapping({"pricing_version": "t", "models": {"a:b": full}})


def test_example_of_the_specification_is_priced_exactly() -> None:
    usage = price_usage(
        prices_from_mapping(SPECIFIED), SONNET, TokenUsage(input_tokens=8, output_tokens=42), MAY, latency_ms=820
    )
    assert str(usage.cost_usd) == "0.000654"
    assert usage.pricing_version == "2026-05-08"
    assert (usage.input_tokens, usage.output_tokens, usage.latency_ms) == (8, 42, 820)
    builtin = library_prices()
    assert str(receipt(builtin, SONNET, TokenUsage(input_tokens=8, output_tokens=42), MAY).total_usd) == "0.000654"


def test_usage_of_every_bucket_costs_the_hand_computed_amount() -> None:
    table = table_of(
        cached_read_per_mtok_usd="0.1",
        cache_write_per_mtok_usd="1.25",
        cache_write_1h_per_mtok_usd="2",
        reasoning_per_mtok_usd="7",
        input_audio_per_mtok_usd="40",
        output_audio_per_mtok_usd="80",
        requests_per_thousand_usd="5",
        server_tools_per_thousand_usd={"web_search": "10"},
    )
    usage = TokenUsage(
        input_tokens=1_100,
        output_tokens=700,
        cached_input_tokens=10_000,
        cache_creation_input_tokens=3_000,
        cache_creation_1h_input_tokens=1_000,
        reasoning_tokens=400,
        input_audio_tokens=100,
        output_audio_tokens=50,
        server_tool_calls={"web_search": 3},
    )
    bill = receipt(table, "a:b", usage, MAY)
    assert [(line.bucket, line.quantity, str(line.amount_usd)) for line in bill.lines] == [
        ("input", 1_000, "0.001"),
        ("input_audio", 100, "0.004"),
        ("cache_read", 10_000, "0.001"),
        ("cache_write_5m", 2_000, "0.0025"),
        ("cache_write_1h", 1_000, "0.002"),
        ("output", 250, "0.0025"),
        ("reasoning", 400, "0.0028"),
        ("output_audio", 50, "0.004"),
        ("request", 1, "0.005"),
        ("web_search", 3, "0.03"),
    ]
    assert str(bill.total_usd) == "0.0548"
    assert bill.tier == "standard"


def test_bucket_without_a_rate_is_charged_at_the_rate_of_its_parent() -> None:
    usage = TokenUsage(
        input_tokens=10,
        output_tokens=10,
        cached_input_tokens=10,
        cache_creation_input_tokens=20,
        cache_creation_1h_input_tokens=10,
        reasoning_tokens=4,
    )
    rates = {line.bucket: line.rate_usd for line in receipt(table_of(), "a:b", usage, MAY).lines}
    assert rates == dict.fromkeys(
        ["input", "cache_read", "cache_write_5m", "cache_write_1h"], Decimal(1)
    ) | dict.fromkeys(["output", "reasoning"], Decimal(10))
    only_5m_rate = receipt(table_of(cache_write_per_mtok_usd=2), "a:b", usage, MAY)
    assert {line.rate_usd for line in only_5m_rate.lines if line.bucket == "cache_write_1h"} == {Decimal(2)}


def test_zero_tokens_cost_nothing_and_have_no_line() -> None:
    price_tier = receipt(table_of(), "a:b", TokenUsage(input_tokens=0, output_tokens=0), MAY)
    assert price_tier.lines == ()
    assert str(price_tier.total_usd) == "0"


@given(
    st.lists(st.integers(0, 10**9), min_size=5, max_size=5),
    st.lists(st.decimals(0, 1000, places=6), min_size=5, max_size=5),
)
def test_total_is_exactly_the_sum_of_the_lines(counts: list[int], rates: list[Decimal]) -> None:
    fresh, read, write, hour, out = counts
    usage = TokenUsage(
        input_tokens=fresh,
        output_tokens=out,
        cached_input_tokens=read,
        cache_creation_input_tokens=write + hour,
        cache_creation_1h_input_tokens=hour,
    )
    names = ["input", "output", "cached_read", "cache_write", "cache_write_1h"]
    table = table_of(**{f"{name}_per_mtok_usd": str(rate) for name, rate in zip(names, rates, strict=True)})
    price_tier = receipt(table, "a:b", usage, MAY)
    expected = fresh * rates[0] + out * rates[1] + read * rates[2] + write * rates[3] + hour * rates[4]
    assert price_tier.total_usd * 1_000_000 == expected
    assert sum((line.amount_usd for line in price_tier.lines), Decimal(0)) == price_tier.total_usd
    assert sum(line.quantity for line in price_tier.lines) == sum(counts)


def test_unknown_model_raises_with_a_hint() -> None:
    for table in (prices_from_mapping(SPECIFIED), library_prices()):
        with pytest.raises(UnknownPriceError, match="price file") as caught:
            receipt(table, "nobody:knows", TokenUsage(input_tokens=1, output_tokens=1), MAY)
        assert caught.value.code == "unknown_price"
        assert not table.has_price("nobody:knows")


def test_model_priced_by_hour_or_page_is_not_free() -> None:
    with pytest.raises(UnknownPriceError):
        library_prices().price("openai:whisper-1", MAY)


def test_provider_tool_without_a_price_is_an_error() -> None:
    usage = TokenUsage(input_tokens=1, output_tokens=1, server_tool_calls={"code_execution": 1})
    with pytest.raises(UnknownPriceError, match="code_execution"):
        receipt(table_of(), "a:b", usage, MAY)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_tokens": 2},
        {"input_tokens": -1},
        {"cache_creation_1h_input_tokens": 1},
        {"server_tool_calls": {"x": -1}},
    ],
    ids=str,
)
def test_negative_counts_and_parts_larger_than_their_total_are_rejected(fields: dict) -> None:
    table = table_of(server_tools_per_thousand_usd={"x": 1})
    with pytest.raises(FormatError, match="negative"):
        # structs.replace skips the validation.
        receipt(table, "a:b", msgspec.structs.replace(TokenUsage(input_tokens=1, output_tokens=1), **fields), MAY)


def test_receipt_is_exact_in_any_decimal_context() -> None:
    import decimal

    rate = "3." + "1234567890" * 9
    with decimal.localcontext(decimal.Context(prec=3)):
        price_tier = receipt(
            table_of(input_per_mtok_usd=rate), "a:b", TokenUsage(input_tokens=123_456, output_tokens=0), MAY
        )
    with decimal.localcontext(decimal.Context(prec=200)):
        assert price_tier.total_usd == Decimal(rate) * 123_456 / 1_000_000


def test_local_models_cost_an_explicit_zero() -> None:
    rows = catalog.builtin()
    table = library_prices(rows.price_names, rows.is_free)
    for model in ("local:smollm2-135m", "ollama:llama-3.3-70b", "lmstudio:whatever"):
        price_tier = receipt(table, model, TokenUsage(input_tokens=5, output_tokens=5), MAY)
        assert price_tier.total_usd == 0
        assert len(price_tier.lines) == 2


def test_overlay_replaces_prices_and_extends_the_version() -> None:
    base, own = library_prices(), prices_from_mapping(SPECIFIED)
    both = base.overlay(own)
    assert both.version == f"{base.version}+2026-05-08"
    assert both.price("openai:gpt-5", MAY).rates.input_per_mtok_usd == Decimal("2.5")
    assert both.price("openai:gpt-4o", MAY) == base.price("openai:gpt-4o", MAY)
    assert base.price("openai:gpt-5", MAY).rates.input_per_mtok_usd == Decimal("1.25")


def test_price_is_valid_from_its_date() -> None:
    rows = [
        {"input_per_mtok_usd": 1, "output_per_mtok_usd": 1},
        {"input_per_mtok_usd": 2, "output_per_mtok_usd": 2, "effective_from": "2026-06-01"},
    ]
    table = prices_from_mapping({"pricing_version": "t", "models": {"a:b": rows}})
    before = datetime(2026, 5, 31, 23, 59, 59, tzinfo=UTC)
    assert table.price("a:b", before).rates.input_per_mtok_usd == 1
    assert table.price("a:b", before + timedelta(seconds=1)).rates.input_per_mtok_usd == 2
    # The day is a day in UTC in any time zone.
    east = datetime(2026, 6, 1, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    assert table.price("a:b", east).rates.input_per_mtok_usd == 1
    newest_first = prices_from_mapping({"pricing_version": "t", "models": {"a:b": rows[::-1]}})
    assert newest_first.price("a:b", before + timedelta(days=9)).rates.input_per_mtok_usd == 2
    only_later = prices_from_mapping({"pricing_version": "t", "models": {"a:b": [rows[1]]}})
    assert table_of().overlay(only_later).price("a:b", before).rates.input_per_mtok_usd == 1
    with pytest.raises(UnknownPriceError, match="2026-05-31"):
        only_later.price("a:b", before)
    with pytest.raises(ValueError, match="time zone"):
        table.price("a:b", before.replace(tzinfo=None))


def test_effective_dates_of_the_library_are_used() -> None:
    table = library_prices()
    usage = TokenUsage(input_tokens=300_000, output_tokens=1_000)
    before, after = (receipt(table, SONNET, usage, datetime(2026, 3, day, tzinfo=UTC)) for day in (12, 13))
    assert (before.tier, after.tier) == ("standard, prompt above 200000 tokens", "standard")
    assert before.total_usd > after.total_usd


def test_price_for_part_of_the_day_is_valid_in_that_part() -> None:
    from datetime import time

    def is_valid(start: int, end: int, hour: int) -> bool:
        rates = Rates(input_per_mtok_usd=Decimal(1), output_per_mtok_usd=Decimal(1))
        price = ModelPrice(rates=rates, daily_from=time(start), daily_until=time(end))
        return price.is_valid_at(MAY.replace(hour=hour))

    assert [is_valid(9, 17, hour) for hour in (8, 9, 16, 17)] == [False, True, True, False]
    assert [is_valid(22, 6, hour) for hour in (21, 22, 3, 6)] == [False, True, True, False]


def test_service_tier_determines_the_price() -> None:
    table = library_prices()
    november = datetime(2026, 11, 15, tzinfo=UTC)

    def price_tier(tier: str | None, at: datetime = november) -> tuple[str, Decimal]:
        usage = TokenUsage(input_tokens=1000, output_tokens=1000, service_tier=tier)
        price_tier = receipt(table, "openai:gpt-5.4", usage, at)
        return price_tier.tier, price_tier.total_usd

    assert price_tier(None) == ("standard", Decimal("0.0175"))
    assert price_tier("flex") == ("flex", Decimal("0.00875"))
    assert price_tier("priority") == ("priority", Decimal("0.035"))
    assert price_tier("batch") == ("batch", Decimal("0.00875"))
    assert price_tier("unheard-of") == price_tier(None)
    assert price_tier("flex", MAY) == price_tier(None)  # that tier has its own price only since October


def test_price_file_may_contain_tiers() -> None:
    rows = [
        {"input_per_mtok_usd": 1, "output_per_mtok_usd": 1},
        {"input_per_mtok_usd": 2, "output_per_mtok_usd": 2, "service_tier": "priority"},
    ]
    table = prices_from_mapping({"pricing_version": "t", "models": {"a:b": rows}})
    assert table.price("a:b", MAY).rates.input_per_mtok_usd == 1
    assert table.price("a:b", MAY, "priority").rates.input_per_mtok_usd == 2
    rows[0]["service_tier"] = "standard"
    assert (
        prices_from_mapping({"pricing_version": "t", "models": {"a:b": rows}})
        .price("a:b", MAY)
        .rates.input_per_mtok_usd
        == 1
    )


def test_totals_equal_those_of_the_library_for_token_prices() -> None:
    from genai_prices import Usage as LibraryUsage
    from genai_prices.data import providers

    table = library_prices()
    moments = [datetime(2025, 1, 1, 3, tzinfo=UTC), MAY, datetime(2026, 11, 15, 18, tzinfo=UTC)]
    compared = 0
    for provider in providers:
        for entry in provider.models[:: scale(6, 1)]:
            model = f"{provider.id}:{entry.id}"
            if not table.has_price(model):
                continue
            tiers = {tier for price in table._find(model) if (tier := price.service_tier)}
            for at, fresh, tier in itertools.product(moments, (1_000, 300_001), (None, *sorted(tiers))):
                usage = TokenUsage(input_tokens=fresh, output_tokens=500, cached_input_tokens=300, service_tier=tier)
                found = provider.find_model(entry.id)
                assert found is not None
                theirs = LibraryUsage(input_tokens=fresh + 300, cache_read_tokens=300, output_tokens=500)
                context = {"processing" if tier == "batch" else "service_tier": tier} if tier else None
                expected = found.calc_price(theirs, provider, genai_request_timestamp=at, price_context=context)
                assert receipt(table, model, usage, at).total_usd == expected.total_price, (model, at, fresh, tier)
                compared += 1
    assert compared > scale(1_500, 11_000)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"models": {"a:b": {"input_per_mtok_usd": "free", "output_per_mtok_usd": 1}}}, "input_per_mtok_usd"),
        ({"models": {"a:b": {"input_per_mtok_usd": -1, "output_per_mtok_usd": 1}}}, "from 0"),
        ({"models": {"a:b": {"input_per_mtok_usd": "NaN", "output_per_mtok_usd": 1}}}, "from 0"),
        ({"models": {"a:b": {"input_per_mtok_usd": "1e999999", "output_per_mtok_usd": 1}}}, "from 0"),
        ({"models": {"a:b": {"input_per_mtok_usd": 1}}}, "output_per_mtok_usd"),
        ({"models": {"a:b": {"input_per_mtok_usd": 1, "output_per_mtok_usd": 1, "inputt": 1}}}, "inputt"),
        ({"models": []}, "models"),
        ({"pricing_version": None}, "pricing_version"),
    ],
)
def test_invalid_price_file_is_rejected_with_its_location(change: dict, expected: str) -> None:
    with pytest.raises(FormatError, match=expected) as caught:
        prices_from_mapping({**SPECIFIED, **change})
    assert caught.value.code == "invalid_prices"
    if isinstance(change.get("models"), dict):
        assert "a:b" in str(caught.value)


def test_decimal_fraction_in_a_file_is_exact() -> None:
    assert table_of(cached_read_per_mtok_usd=0.1).price("a:b", MAY).rates.cached_read_per_mtok_usd == Decimal("0.1")
