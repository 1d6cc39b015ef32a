"""The usage of the Messages API."""

from __future__ import annotations

from typing import Any, Final

from dragoman.dialects.anthropic.blocks import NAME
from dragoman.jsontext import count_or_zero, text_or_none
from dragoman.message import TokenUsage
from dragoman.value import unvalidated
from dragoman.wire.counts import MAX_CALL_TOKENS, Counts

TIERS: Final = ("standard", "priority", "batch")  # the tiers that an answer can name
_SERVER_TOOLS: Final = {"web_search_requests": "web_search", "web_fetch_requests": "web_fetch"}


_PLAIN_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_PLAIN_KEYS: Final = {*_PLAIN_COUNTS, "service_tier"}
_usage: Final = unvalidated(TokenUsage)


def read_plain_usage(wire: dict[str, Any]) -> TokenUsage | None:
    """Return the usage like ``read_usage``, if it has nothing but possible counts and a tier."""
    tier = wire.get("service_tier")
    if not wire.keys() <= _PLAIN_KEYS or (tier is not None and type(tier) is not str):
        return None
    counts = [wire.get(key, 0) for key in _PLAIN_COUNTS]
    for count in counts:
        if type(count) is not int or not 0 <= count <= MAX_CALL_TOKENS:
            return None
    return _usage(
        input_tokens=counts[0],
        output_tokens=counts[1],
        cached_input_tokens=counts[2],
        cache_creation_input_tokens=counts[3],
        service_tier=tier,
    )


def read_usage(wire: dict[str, Any]) -> TokenUsage:
    """Return the usage. Its counts of a prompt are disjoint already."""
    creation = wire.get("cache_creation")
    details = wire.get("output_tokens_details")
    server = wire.get("server_tool_use")
    calls = {
        ours: server[theirs]
        for theirs, ours in _SERVER_TOOLS.items()
        if isinstance(server, dict) and count_or_zero(server.get(theirs))
    }
    counts = Counts(NAME)
    token_usage = TokenUsage(
        input_tokens=counts.read(wire, "input_tokens"),
        output_tokens=counts.read(wire, "output_tokens"),
        cached_input_tokens=counts.read(wire, "cache_read_input_tokens"),
        cache_creation_input_tokens=counts.read(wire, "cache_creation_input_tokens"),
        cache_creation_1h_input_tokens=counts.read(creation, "ephemeral_1h_input_tokens"),
        reasoning_tokens=counts.read(details, "thinking_tokens"),
        server_tool_calls=calls or None,
        service_tier=text_or_none(wire.get("service_tier")),
    )
    return counts.drop_impossible(token_usage)


def write_usage(usage: TokenUsage) -> dict[str, Any]:
    """Return the wire of a usage."""
    wire: dict[str, Any] = {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
    }
    if usage.service_tier in TIERS:
        wire["service_tier"] = usage.service_tier
    return wire
