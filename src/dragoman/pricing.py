"""Prices of models and receipts for calls.

    PriceTable                    a version, and the prices of each model with the dates from which they are valid
    library_prices()              the table of the maintained library; loaded on first use
    prices_from_mapping(mapping)  your own table, in the shape below; base.overlay(own) combines both
    receipt(…)                    one line per bucket, and the total: the exact sum of its lines

    pricing_version: "2026-05-08"
    models:
      anthropic:claude-sonnet-4-6:
        input_per_mtok_usd: 3.00
        output_per_mtok_usd: 15.00
        cached_read_per_mtok_usd: 0.30
        cache_write_per_mtok_usd: 3.75

Amounts are Decimal and never rounded. A model without a price raises an error; a free model has an explicit price of
zero. Costs that a provider reports are not used. Invariant: buckets are disjoint, so no token is charged twice; a
bucket without its own rate is charged at the rate of its whole.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, localcontext
from typing import Any, Final, TypeVar

import msgspec

from dragoman.errors import FormatError, UnknownPriceError
from dragoman.message import MAX_USD, TokenUsage, Usage, is_possible_cost
from dragoman.value import Value, unvalidated

MILLION: Final = Decimal(1_000_000)
THOUSAND: Final = Decimal(1_000)


class Rates(Value, frozen=True, kw_only=True, omit_defaults=True):
    """US dollars per million tokens of each bucket, per thousand requests and per thousand calls of server tools."""

    input_per_mtok_usd: Decimal
    output_per_mtok_usd: Decimal
    cached_read_per_mtok_usd: Decimal | None = None
    cache_write_per_mtok_usd: Decimal | None = None
    cache_write_1h_per_mtok_usd: Decimal | None = None
    reasoning_per_mtok_usd: Decimal | None = None
    input_audio_per_mtok_usd: Decimal | None = None
    output_audio_per_mtok_usd: Decimal | None = None
    requests_per_thousand_usd: Decimal | None = None
    server_tools_per_thousand_usd: dict[str, Decimal] | None = None


class LongPrompt(Value, frozen=True, kw_only=True):
    """Rates for the whole call if its prompt is longer."""

    above_input_tokens: int
    rates: Rates


class ModelPrice(Value, frozen=True, kw_only=True):
    """The price of a model for one tier from a date on."""

    rates: Rates
    long_prompts: tuple[LongPrompt, ...] = ()  # shortest first
    service_tier: str | None = None  # ``None`` is the standard tier
    effective_from: date | None = None  # in UTC; ``None``: no start
    daily_from: time | None = None  # in UTC: valid only between these times of day
    daily_until: time | None = None

    def is_valid_at(self, at: datetime) -> bool:
        """Whether the price is valid at that time."""
        at = at.astimezone(UTC)
        if self.effective_from is not None and at.date() < self.effective_from:
            return False
        if self.daily_from is None or self.daily_until is None:
            return True
        clock = at.time()
        if self.daily_from <= self.daily_until:
            return self.daily_from <= clock < self.daily_until
        return clock >= self.daily_from or clock < self.daily_until

    def rates_for(self, prompt_tokens: int) -> tuple[Rates, str]:
        """Return the rates for one call and their name on the receipt."""
        tier = self.service_tier or STANDARD
        for longer in reversed(self.long_prompts):
            if prompt_tokens > longer.above_input_tokens:
                return longer.rates, f"{tier}, prompt above {longer.above_input_tokens} tokens"
        return self.rates, tier


STANDARD: Final = "standard"


class PriceTable:
    """Prices of models with a version. ``find`` returns the prices of a model; the last valid one applies."""

    def __init__(self, version: str, find: Callable[[str], tuple[ModelPrice, ...]]) -> None:
        self.version = version
        self._find = functools.lru_cache(maxsize=4096)(find)

    def price(self, model: str, at: datetime, service_tier: str | None = None) -> ModelPrice:
        """Return the price at that time, or raise ``UnknownPriceError``. A tier without a price is standard."""
        if at.tzinfo is None:
            raise ValueError("at: a time without a time zone")
        valid = [price for price in self._find(model) if price.is_valid_at(at)]
        for tier in (service_tier, None):
            matches = [price for price in valid if price.service_tier == tier]
            if matches:
                return matches[-1]
        raise UnknownPriceError(
            f"no price for {model!r} at {at.astimezone(UTC):%Y-%m-%d}",
            where=f"price table {self.version}",
            remedy="Add the model to a price file; if it is free, with rates of 0",
        )

    def has_price(self, model: str) -> bool:
        """Whether the model has any price."""
        return bool(self._find(model))

    def overlay(self, other: PriceTable) -> PriceTable:
        """Return this table with the valid prices of another table in place of its own."""
        return PriceTable(f"{self.version}+{other.version}", lambda model: self._find(model) + other._find(model))


# --- receipts --------------------------------------------------------------------------------------------------------


class ReceiptLine(Value, frozen=True):
    """One bucket of a receipt."""

    bucket: str  # input, cache_read, cache_write_5m, cache_write_1h, output, reasoning, input_audio, …
    quantity: int
    rate_usd: Decimal
    per: int  # the rate applies to this quantity
    amount_usd: Decimal


class Receipt(Value, frozen=True, kw_only=True):
    """The cost of one call with its calculation."""

    model: str
    lines: tuple[ReceiptLine, ...]
    total_usd: Decimal
    pricing_version: str
    tier: str  # the rates that were applied
    priced_at: datetime  # the time of the applied prices
    cache_savings_usd: Decimal = Decimal(0)  # by prompt caching; negative if more was written than read


def receipt(table: PriceTable, model: str, usage: TokenUsage, at: datetime) -> Receipt:
    """Return the receipt for one call of a model at that time."""
    rates, tier = _find_rates(table, model, usage, at)
    with localcontext(_EXACT):
        lines = tuple(
            ReceiptLine(bucket, quantity, rate, int(per), _to_shortest(quantity * rate / per))
            for bucket, quantity, rate, per in _charges(rates, usage, model)
        )
        total = _to_shortest(sum((line.amount_usd for line in lines), Decimal(0)))
        savings = _to_shortest(sum((_cache_discount(line, rates) for line in lines), Decimal(0)))
    return Receipt(
        model=model,
        lines=lines,
        total_usd=total,
        pricing_version=table.version,
        tier=tier,
        priced_at=at.astimezone(UTC),
        cache_savings_usd=savings,
    )


def _find_rates(table: PriceTable, model: str, usage: TokenUsage, at: datetime) -> tuple[Rates, str]:
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    return table.price(model, at, usage.service_tier).rates_for(prompt)


def _cache_discount(line: ReceiptLine, rates: Rates) -> Decimal:
    """Return how much less a line costs than the same tokens without a cache."""
    if not line.bucket.startswith("cache_"):
        return Decimal(0)
    return line.quantity * (rates.input_per_mtok_usd - line.rate_usd) / MILLION


def cache_savings(table: PriceTable, model: str, read: int, written: int, at: datetime) -> Decimal:
    """Return what prompt caches saved: tokens read at a lower price, less the surcharge for tokens written.

    The tokens may be sums of many calls, so the standard rates apply, without those of long prompts.
    """
    rates = table.price(model, at).rates
    fresh = rates.input_per_mtok_usd
    read_rate = fresh if rates.cached_read_per_mtok_usd is None else rates.cached_read_per_mtok_usd
    write_rate = fresh if rates.cache_write_per_mtok_usd is None else rates.cache_write_per_mtok_usd
    with localcontext(_EXACT):
        return _to_shortest((read * (fresh - read_rate) - written * (write_rate - fresh)) / MILLION)


def price_usage(table: PriceTable, model: str, usage: TokenUsage, at: datetime, latency_ms: int) -> Usage:
    """Return the usage of a message with its cost. An impossible cost raises ``FormatError``."""
    rates, _ = _find_rates(table, model, usage, at)
    with localcontext(_EXACT):
        amounts = (quantity * rate / per for _, quantity, rate, per in _charges(rates, usage, model))
        total = _to_shortest(sum(amounts, Decimal(0)))
    if not is_possible_cost(total):
        raise FormatError(f"a cost of ${total:.3e} is not between 0 and ${MAX_USD}", where=f"usage of {model}")
    return add_cost(usage, total, table.version, latency_ms)


_make_usage: Final = unvalidated(Usage)  # its counts were validated with the usage


def add_cost(usage: TokenUsage, cost_usd: Decimal | None, pricing_version: str, latency_ms: int) -> Usage:
    """Return a usage with a cost; ``None`` if the price is unknown."""
    cost = {"cost_usd": cost_usd, "pricing_version": pricing_version, "latency_ms": latency_ms}
    return _make_usage(**(msgspec.structs.asdict(usage) | cost))


def _charges(rates: Rates, usage: TokenUsage, model: str) -> Iterable[tuple[str, int, Decimal, Decimal]]:
    """Yield disjoint buckets with quantity, rate and unit: tokens with their own line are subtracted from the whole."""
    read = rates.cached_read_per_mtok_usd
    write = rates.cache_write_per_mtok_usd
    write_1h = rates.cache_write_1h_per_mtok_usd
    plain_input, plain_output = rates.input_per_mtok_usd, rates.output_per_mtok_usd
    cache_write_5m = usage.cache_creation_input_tokens - usage.cache_creation_1h_input_tokens
    text_input = usage.input_tokens - usage.input_audio_tokens
    text_output = usage.output_tokens - usage.reasoning_tokens - usage.output_audio_tokens
    buckets: tuple[tuple[str, int, tuple[Decimal | None, ...]], ...] = (
        ("input", text_input, (plain_input,)),
        ("input_audio", usage.input_audio_tokens, (rates.input_audio_per_mtok_usd, plain_input)),
        ("cache_read", usage.cached_input_tokens, (read, plain_input)),
        ("cache_write_5m", cache_write_5m, (write, plain_input)),
        ("cache_write_1h", usage.cache_creation_1h_input_tokens, (write_1h, write, plain_input)),
        ("output", text_output, (plain_output,)),
        ("reasoning", usage.reasoning_tokens, (rates.reasoning_per_mtok_usd, plain_output)),
        ("output_audio", usage.output_audio_tokens, (rates.output_audio_per_mtok_usd, plain_output)),
    )
    for bucket, tokens, candidates in buckets:
        if tokens < 0:
            raise FormatError(f"the {bucket} tokens are negative, or a part is larger than its whole", where="usage")
        if tokens:
            rate = next(candidate for candidate in candidates if candidate is not None)
            yield bucket, tokens, rate, MILLION
    if rates.requests_per_thousand_usd is not None:
        yield "request", 1, rates.requests_per_thousand_usd, THOUSAND
    for tool, calls in (usage.server_tool_calls or {}).items():
        if calls == 0:
            continue
        if calls < 0:
            raise FormatError(f"the calls of {tool} are negative", where="usage")
        tool_rate = (rates.server_tools_per_thousand_usd or {}).get(tool)
        if tool_rate is None:
            raise UnknownPriceError(
                f"no price for calls of the provider's tool {tool!r}",
                where=model,
                remedy="Add server_tools_per_thousand_usd to the model in a price file; 0 if it is free",
            )
        yield tool, calls, tool_rate, THOUSAND


_EXACT: Final = Context(prec=1_000)  # more digits than any price has, independent of the caller's context


def _to_shortest(amount: Decimal) -> Decimal:
    """Return the amount without trailing zeros: 0.000654, not 0.00065400."""
    return Decimal(format(amount.normalize(), "f"))


# --- tables ----------------------------------------------------------------------------------------------------------


class _Row(Rates, frozen=True, kw_only=True):
    """A model in a price file. Amounts are numbers or texts."""

    service_tier: str | None = None
    effective_from: date | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    pricing_version: str
    models: dict[str, Any]


def prices_from_mapping(mapping: Mapping[str, Any]) -> PriceTable:
    """Return a table of a mapping. A model may have a list of prices with ``effective_from`` or ``service_tier``."""
    file = _convert(mapping, _File, "price file")
    prices = {model: _prices(model, rows) for model, rows in file.models.items()}
    return PriceTable(file.pricing_version, lambda model: prices.get(model, ()))


Shape = TypeVar("Shape")


def _convert(value: Any, shape: type[Shape], where: str) -> Shape:
    try:
        return msgspec.convert(value, shape, strict=False)
    except msgspec.ValidationError as error:
        remedy = "See the pricing page of the documentation"
        raise FormatError(str(error), where=where, code="invalid_prices", remedy=remedy) from None


def _prices(model: str, rows: Any) -> tuple[ModelPrice, ...]:
    where = f"price file, {model}"
    price_rows = _convert(_amounts_to_text(rows if isinstance(rows, list) else [rows]), list[_Row], where)
    return tuple(_price(row, where) for row in sorted(price_rows, key=lambda row: row.effective_from or date.min))


def _price(row: _Row, where: str) -> ModelPrice:
    amounts = {name: getattr(row, name) for name in Rates.__struct_fields__}
    all_rates = [amount for amount in amounts.values() if isinstance(amount, Decimal)]
    all_rates.extend((row.server_tools_per_thousand_usd or {}).values())
    if any(not amount.is_finite() or not 0 <= amount <= MILLION for amount in all_rates):
        raise FormatError("a rate is a number from 0 to a million", where=where, code="invalid_prices")
    tier = None if row.service_tier == STANDARD else row.service_tier
    return ModelPrice(rates=Rates(**amounts), service_tier=tier, effective_from=row.effective_from)


def _amounts_to_text(value: Any) -> Any:
    """Convert numbers to the text that a person wrote: 0.1 is exactly one tenth."""
    if isinstance(value, Mapping):
        return {key: _amounts_to_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_amounts_to_text(item) for item in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(value) if is_number else value.isoformat() if isinstance(value, date) else value


def library_prices(names: Mapping[str, str] | None = None, is_free: Callable[[str], bool] | None = None) -> PriceTable:
    """Return the prices of the library ``genai-prices``, and a price of zero for free models.

    ``names`` maps provider keys to those of the library where they differ; ``is_free`` identifies models that run
    locally. The catalog has both. The library is loaded for the first price, because the import takes 0.3 s.
    """

    def find(model: str) -> tuple[ModelPrice, ...]:
        return (FREE,) if is_free is not None and is_free(model) else _find_library_prices(names or {}, model)

    return PriceTable(f"genai-prices-{_library_version()}", find)


@functools.cache
def _library_version() -> str:
    import importlib.metadata  # noqa: PLC0415

    return importlib.metadata.version("genai-prices")


FREE: Final = ModelPrice(rates=Rates(input_per_mtok_usd=Decimal(0), output_per_mtok_usd=Decimal(0)))


def _find_library_prices(names: Mapping[str, str], model: str) -> tuple[ModelPrice, ...]:
    from genai_prices.data import providers  # noqa: PLC0415

    key, _, name = model.partition(":")
    provider_id = names.get(key, key)
    provider = next((provider for provider in providers if provider.id == provider_id), None)
    library_model = provider.find_model(name, all_providers=providers) if provider and name else None
    if library_model is None:
        return ()
    prices = library_model.prices if isinstance(library_model.prices, list) else [library_model]
    variants, has_output = library_model.price_variants or (), _EMBEDDING_NAME.search(library_model.id) is None
    return tuple(entry for price in prices for entry in _prices_from_library(price, variants, has_output=has_output))


_LIBRARY_RATES: Final = {
    "input_mtok": "input_per_mtok_usd",
    "output_mtok": "output_per_mtok_usd",
    "cache_read_mtok": "cached_read_per_mtok_usd",
    "cache_write_mtok": "cache_write_per_mtok_usd",
    "cache_write_1h_mtok": "cache_write_1h_per_mtok_usd",
    "output_reasoning_mtok": "reasoning_per_mtok_usd",
    "input_audio_mtok": "input_audio_per_mtok_usd",
    "output_audio_mtok": "output_audio_per_mtok_usd",
    "requests_kcount": "requests_per_thousand_usd",
}
_EMBEDDING_NAME: Final = re.compile(r"embed|^voyage-|\b(?:bge|gte)-(?!reranker)", re.IGNORECASE)  # no output tokens
_LIBRARY_TOOLS: Final = {"web_searches_kcount": "web_search", "storage_searches_kcount": "file_search"}


def _prices_from_library(price: Any, variants: Sequence[Any], *, has_output: bool) -> Iterable[ModelPrice]:
    """Yield a price of the library, and one for each tier that changes it."""
    amounts = _amounts(price) if has_output else {"output_mtok": Decimal(0), **_amounts(price)}
    if "input_mtok" not in amounts or "output_mtok" not in amounts:
        return  # charged by the hour, the page or the character: tokens would be free
    constraint = getattr(price, "constraint", None)
    start = getattr(constraint, "start_date", None)
    base = ModelPrice(
        rates=_library_rates(amounts, 0),
        long_prompts=_long_prompts(amounts),
        effective_from=start,
        daily_from=_utc_time(getattr(constraint, "start_time", None)),
        daily_until=_utc_time(getattr(constraint, "end_time", None)),
    )
    yield base
    for variant in reversed(variants):  # in the library the first variant applies, in this table the last
        if set(variant.when) <= {"service_tier", "processing"} and len(variant.when) == 1:
            (tier,) = variant.when.values()
            tier_amounts = {**amounts, **_amounts(variant)}
            starts = [day for day in (start, getattr(variant.constraint, "start_date", None)) if day is not None]
            yield base.replace(
                rates=_library_rates(tier_amounts, 0),
                long_prompts=_long_prompts(tier_amounts),
                service_tier=tier,
                effective_from=max(starts, default=None),
            )


def _amounts(price: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(price.prices).items() if value is not None}


def _long_prompts(amounts: Mapping[str, Any]) -> tuple[LongPrompt, ...]:
    starts = sorted({tier.start for value in amounts.values() for tier in getattr(value, "tiers", ())})
    return tuple(LongPrompt(above_input_tokens=start, rates=_library_rates(amounts, start + 1)) for start in starts)


def _utc_time(clock: time | None) -> time | None:
    if clock is None or clock.tzinfo is None:
        return clock
    return datetime.combine(date(2000, 1, 2), clock).astimezone(UTC).time()


def _library_rates(amounts: Mapping[str, Any], prompt_tokens: int) -> Rates:
    def amount(value: Any) -> Decimal:
        tier_prices = [tier.price for tier in getattr(value, "tiers", ()) if prompt_tokens > tier.start]
        result: Decimal = tier_prices[-1] if tier_prices else getattr(value, "base", value)
        return result

    rates = {ours: amount(amounts[theirs]) for theirs, ours in _LIBRARY_RATES.items() if theirs in amounts}
    tools = {ours: amount(amounts[theirs]) for theirs, ours in _LIBRARY_TOOLS.items() if theirs in amounts}
    return Rates(**rates, server_tools_per_thousand_usd=tools or None)
