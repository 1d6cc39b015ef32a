"""``dragoman models``: list models with capabilities and prices, and whether they can be called."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from dragoman import settings as keys
from dragoman.catalog import AdapterCapabilities, Model, Provider
from dragoman.cli.options import JsonOption, Positive
from dragoman.cli.terminal import console, escape_line, format_count, print_json
from dragoman.errors import UnknownPriceError
from dragoman.pricing import PriceTable, Rates, library_prices
from dragoman.routing import Registry
from dragoman.settings import Settings
from dragoman.turn import make_registry

Skill = Literal["images", "documents", "audio", "video", "tools", "thinking", "schema", "caching"]
_SKILLS: Final[dict[Skill, str]] = {
    "images": "supports_images",
    "documents": "supports_documents",
    "audio": "supports_audio",
    "video": "supports_video",
    "tools": "supports_tools",
    "thinking": "supports_thinking",
    "schema": "supports_structured_output",
    "caching": "supports_prompt_caching",
}
_LETTERS: Final[dict[Skill, str]] = {
    "images": "I",
    "documents": "D",
    "audio": "A",
    "video": "V",
    "tools": "T",
    "thinking": "R",
    "schema": "S",
}
_CONNECT_S: Final = 1.0
_WIDE_COLUMNS: Final = 110  # columns; wide enough for words


def models(
    part: str | None = None,
    /,
    *,
    provider: str | None = None,
    can: Annotated[tuple[Skill, ...], Parameter(negative=(), show_default=False)] = (),
    min_context: Positive | None = None,
    ready: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    providers: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    json: JsonOption = False,
) -> None:
    """List models with their capabilities and prices, and whether you can call them.

    Parameters
    ----------
    part
        Only models with this text in their id or aliases.
    provider
        Only models of this provider.
    can
        Only models with this capability; repeatable.
    min_context
        Only models with a context window of at least this many tokens.
    ready
        Only models whose provider has an API key, or runs on this machine and accepts a connection.
    providers
        List providers instead, with the source of each API key and its environment variable.
    """
    settings = keys.load()
    registry = _drop_offline_providers(settings, make_registry(settings)) if ready else make_registry(settings)
    if providers:
        _print_providers(settings, registry, part, ready=ready, json=json)
        return
    only = settings.catalog.provider(provider).key if provider is not None else None
    matches = [
        model
        for model in settings.catalog.models.values()
        if only in (None, model.provider)
        and (part is None or any(part.lower() in name.lower() for name in (model.id, *model.aliases)))
        and all(getattr(model.capabilities, _SKILLS[skill]) for skill in can)
        and model.capabilities.max_context_tokens >= (min_context or 0)
        and (not ready or registry.is_configured(model))
    ]
    prices = prices_of(settings)
    if json:
        print_json({"models": [_to_json(model, registry, prices) for model in matches]})
        return
    out = console()
    if not matches:
        out.print("no matching models; use provider:model for a model that is not in the catalog")
        return
    is_narrow = out.width < _WIDE_COLUMNS
    out.print(_table(matches, registry, prices, is_narrow=is_narrow))
    ready_here = sum(registry.is_configured(model) for model in matches)
    summary = f"\n{format_count(len(matches), 'model')}, {ready_here} available (●). "
    summary += "Prices are in US dollars per million tokens. Use provider:model for models that are not in the catalog."
    if is_narrow:
        summary += f" {', '.join(f'{letter} {skill}' for skill, letter in _LETTERS.items())}."
    out.print(summary, style="dim")


# --- configuration ---------------------------------------------------------------------------------------------------


def _drop_offline_providers(settings: Settings, registry: Registry) -> Registry:
    """Return the registry without local providers, such as Ollama, whose server does not run."""
    with ThreadPoolExecutor() as pool:
        probes = pool.map(
            lambda key: (key, _accepts_connection(settings, settings.catalog.provider(key))), registry.configured
        )
        return Registry(settings.catalog, [key for key, accepts in probes if accepts])


def _accepts_connection(settings: Settings, row: Provider) -> bool:
    """Return whether a local server accepts a connection. Remote providers are not called."""
    if not row.runs_locally or row.key == keys.EMBEDDED:
        return True
    address = urlsplit(settings.endpoint(row).base_url)
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=_CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def prices_of(settings: Settings) -> PriceTable:
    """Return the price table for the configured catalog."""
    return library_prices(settings.catalog.price_names, settings.catalog.is_free)


# --- output ----------------------------------------------------------------------------------------------------------


def _rates(prices: PriceTable, model: str) -> Rates | None:
    try:
        return prices.price(model, datetime.now(UTC)).rates
    except UnknownPriceError:
        return None


def _to_json(model: Model, registry: Registry, prices: PriceTable) -> dict[str, Any]:
    return {
        "id": model.id,
        "aliases": registry.aliases_of(model.id),
        "is_configured": registry.is_configured(model),
        "capabilities": {name: getattr(model.capabilities, name) for name in model.capabilities.__struct_fields__},
        "prices": _rates(prices, model.id),
    }


def _table(matches: Sequence[Model], registry: Registry, prices: PriceTable, *, is_narrow: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("model", overflow="fold")
    table.add_column("alias")
    for name in ("context", "in", "out"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("can")
    for model in sorted(matches, key=lambda model: not registry.is_configured(model)):
        is_ready = registry.is_configured(model)
        rates = _rates(prices, model.id)
        amounts = (
            ("–", "–") if rates is None else (_amount(rates.input_per_mtok_usd), _amount(rates.output_per_mtok_usd))
        )
        table.add_row(
            Text("●", "green") if is_ready else Text("○", "dim"),
            Text(escape_line(model.id), "" if is_ready else "dim"),
            escape_line(", ".join(registry.aliases_of(model.id))),
            _tokens(model.capabilities.max_context_tokens),
            *amounts,
            Text(_skills_text(model.capabilities, is_narrow=is_narrow), "dim"),
        )
    return table


def _skills_text(capabilities: AdapterCapabilities, *, is_narrow: bool) -> str:
    """Return the capabilities of a model as words, or as letters on a narrow terminal."""
    able = {skill: getattr(capabilities, _SKILLS[skill]) for skill in _LETTERS}
    if is_narrow:
        return "".join(_LETTERS[skill] if can else "·" for skill, can in able.items())
    return " ".join(skill for skill, can in able.items() if can)


def _amount(rate: Decimal) -> str:
    return "free" if rate == 0 else f"{rate.quantize(Decimal('0.01')):f}" if rate >= Decimal("0.01") else f"{rate:f}"


def _tokens(count: int) -> str:
    return f"{count / 1_000_000:.3g}M" if count >= 1_000_000 else f"{count // 1000}k" if count >= 1000 else str(count)


def _print_providers(settings: Settings, registry: Registry, part: str | None, *, ready: bool, json: bool) -> None:
    rows = [
        row
        for row in settings.catalog.providers.values()
        if (part is None or part.lower() in f"{row.key} {row.title}".lower())
        and (not ready or row.key in registry.configured)
    ]
    if json:
        print_json({"providers": [_provider_to_json(settings, row) for row in rows]})
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "provider", "dialect", "key from", "set"):
        table.add_column(name, overflow="fold")
    for row in sorted(rows, key=lambda row: row.key not in registry.configured):
        origin = settings.access_source(row)
        table.add_row(
            Text("●", "green") if origin else Text("○", "dim"),
            escape_line(row.key),
            Text(row.dialect, "dim"),
            escape_line(origin or "–"),
            Text("" if origin else " or ".join((*row.key_variables, *row.token_variables)), "dim"),
        )
    console().print(table)


def _provider_to_json(settings: Settings, row: Provider) -> dict[str, Any]:
    origin = settings.access_source(row)
    return {
        "key": row.key,
        "title": row.title,
        "dialect": row.dialect,
        "is_configured": origin is not None,
        "key_origin": origin,
        "key_variables": (*row.key_variables, *row.token_variables),
    }
