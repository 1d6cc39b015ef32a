"""``dragoman price``: print the receipt of a model call."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dragoman import catalog, pricing
from dragoman.cli.options import TokenCount
from dragoman.errors import InputError, JsonError
from dragoman.jsontext import read_json
from dragoman.message import TokenUsage
from dragoman.pricing import Receipt


def price(
    model: str,
    /,
    *,
    input_tokens: TokenCount = 0,
    output_tokens: TokenCount = 0,
    cached_input_tokens: TokenCount = 0,
    cache_write_tokens: TokenCount = 0,
    cache_write_1h_tokens: TokenCount = 0,
    reasoning_tokens: TokenCount = 0,
    service_tier: str | None = None,
    at: datetime | None = None,
    prices: Path | None = None,
) -> None:
    """Print the receipt of a model call.

    Parameters
    ----------
    model
        An id such as anthropic:claude-sonnet-4-6, or an alias such as sonnet.
    input_tokens
        Prompt tokens that were neither read from nor written to a cache.
    output_tokens
        Generated tokens, including reasoning.
    cached_input_tokens
        Prompt tokens read from a cache.
    cache_write_tokens
        Prompt tokens written to a cache for five minutes.
    cache_write_1h_tokens
        Prompt tokens written to a cache for one hour.
    reasoning_tokens
        The output tokens that were reasoning.
    service_tier
        The service tier, such as priority or flex. Default: the standard tier.
    at
        The time of the prices; UTC unless it has a time zone. Default: now.
    prices
        A YAML or JSON price file that overrides the built-in table.
    """
    usage = TokenUsage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=cached_input_tokens,
        cache_creation_input_tokens=cache_write_tokens + cache_write_1h_tokens,
        cache_creation_1h_input_tokens=cache_write_1h_tokens,
        reasoning_tokens=reasoning_tokens,
        service_tier=service_tier,
    )
    moment = at or datetime.now(UTC)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    model_id = model if ":" in model else catalog.builtin().model(model).id
    result = pricing.receipt(price_table(prices), model_id, usage, moment)
    Console().print(receipt_table(result))


def price_table(overlay: Path | None = None) -> pricing.PriceTable:
    """Return the built-in prices with zero prices for local models, overridden by a price file."""
    rows = catalog.builtin()
    table = pricing.library_prices(rows.price_names, rows.is_free)
    return table if overlay is None else table.overlay(pricing.prices_from_mapping(_read_mapping(overlay)))


def _read_mapping(file: Path) -> dict[str, object]:
    import yaml  # noqa: PLC0415

    try:
        data = file.read_bytes()
        mapping = read_json(data) if file.suffix == ".json" else yaml.safe_load(data)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(file)) from None
    except yaml.YAMLError as error:
        raise InputError(f"not YAML ({' '.join(str(error).split())})", where=str(file)) from None
    except JsonError as error:
        raise InputError(str(error), where=str(file), code=error.code) from None
    if not isinstance(mapping, dict):
        raise InputError("not a price file: pricing_version and models are missing", where=str(file))
    return mapping


def receipt_table(receipt: Receipt) -> Table:
    """Format a receipt as a table."""
    title = f"{receipt.model}, {receipt.tier}, prices {receipt.pricing_version}"
    table = Table(
        "bucket", "quantity", "rate (USD)", "amount (USD)", title=title, title_justify="left", show_footer=True
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for line in receipt.lines:
        per = "million" if line.per == int(pricing.MILLION) else "thousand"
        table.add_row(line.bucket, f"{line.quantity:,}", f"{line.rate_usd} / {per}", str(line.amount_usd))
    table.columns[0].footer = "total"
    table.columns[3].footer = str(receipt.total_usd)
    return table
