"""The usage of Chat Completions.

    read_usage(body) -> usage        of a completion or a chunk
    read_plain_usage(body) -> usage  the same for plain counts, faster; ``None``: ``read_usage`` has to read it
    write_usage(usage) -> wire

Invariant: ``read_plain_usage`` and ``read_usage`` return the same usage.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, Final

from dragoman.dialects.openai_chat.blocks import NAME
from dragoman.jsontext import count_or_zero, text_or_none
from dragoman.message import TokenUsage
from dragoman.value import unvalidated
from dragoman.wire.counts import MAX_CALL_TOKENS, Counts

_CACHED_KEYS: Final = ("prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens", "cache_read_input_tokens")


_PLAIN_KEYS: Final = {
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
}
_PLAIN_DETAILS: Final = {
    "cached_tokens",
    "audio_tokens",
    "reasoning_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
}
_usage: Final = unvalidated(TokenUsage)


def read_plain_usage(body: dict[str, Any]) -> TokenUsage | None:
    """Return a usage whose counts are possible numbers under the keys of OpenAI."""
    usage, tier = body.get("usage"), body.get("service_tier")
    if type(usage) is not dict or not usage.keys() <= _PLAIN_KEYS or (tier is not None and type(tier) is not str):
        return None
    details, output_details = usage.get("prompt_tokens_details", {}), usage.get("completion_tokens_details", {})
    if type(details) is not dict or type(output_details) is not dict:
        return None
    if not details.keys() <= _PLAIN_DETAILS or not output_details.keys() <= _PLAIN_DETAILS:
        return None
    prompt: Any = usage.get("prompt_tokens")
    completion: Any = usage.get("completion_tokens")
    total: Any = usage.get("total_tokens")
    for count in (prompt, completion, total, *details.values(), *output_details.values()):
        if type(count) is not int or not 0 <= count <= MAX_CALL_TOKENS:
            return None
    cached, reasoning = details.get("cached_tokens", 0), output_details.get("reasoning_tokens", 0)
    audio = output_details.get("audio_tokens", 0)
    if cached > prompt or reasoning > completion or audio > completion:
        return None
    if reasoning and total == prompt + completion + reasoning:
        return None  # xAI does not include reasoning in the output
    return _usage(
        input_tokens=prompt - cached,
        output_tokens=completion,
        cached_input_tokens=cached,
        reasoning_tokens=reasoning,
        input_audio_tokens=min(prompt - cached, details.get("audio_tokens", 0)),
        output_audio_tokens=audio,
        service_tier=tier or None,
    )


def read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """Return the usage. The prompt includes tokens read from and written to a cache, so these are subtracted."""
    usage, groq = body.get("usage"), body.get("x_groq")
    usage = usage if isinstance(usage, dict) or not isinstance(groq, dict) else groq.get("usage")
    if not isinstance(usage, dict):
        return None
    details, output_details = (
        _object_or_empty(usage.get("prompt_tokens_details")),
        _object_or_empty(usage.get("completion_tokens_details")),
    )
    counts = Counts(NAME)
    prompt, completion = counts.read(usage, "prompt_tokens"), counts.read(usage, "completion_tokens")
    fresh, cached, created = counts.split_prompt(
        prompt,
        counts.read(details, "cached_tokens") or counts.read(usage, *_CACHED_KEYS),
        counts.read(details, "cache_write_tokens") or counts.read(usage, "cache_creation_input_tokens"),
    )
    reasoning = counts.read(output_details, "reasoning_tokens") or counts.read(usage, "reasoning_tokens")
    is_separate = reasoning and count_or_zero(usage.get("total_tokens")) == prompt + completion + reasoning  # xAI
    searches = count_or_zero(_object_or_empty(usage.get("server_tool_use_details")).get("web_search_requests"))
    token_usage = TokenUsage(
        input_tokens=fresh,
        output_tokens=completion + reasoning if is_separate else completion,
        cached_input_tokens=cached,
        cache_creation_input_tokens=created,
        cache_creation_1h_input_tokens=min(
            created, counts.read(usage.get("cache_creation"), "ephemeral_1h_input_tokens")
        ),
        reasoning_tokens=reasoning,
        input_audio_tokens=min(
            fresh, counts.read(details, "audio_tokens") or counts.read(usage, "audio_prompt_tokens")
        ),
        output_audio_tokens=counts.read(output_details, "audio_tokens"),
        server_tool_calls={"web_search": searches} if searches else None,
        service_tier=text_or_none(body.get("service_tier")) or text_or_none(usage.get("service_tier")) or None,
        provider_cost_usd=_read_cost(usage.get("cost")),
    )
    return counts.drop_impossible(token_usage)


def _object_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_cost(value: Any) -> Decimal | None:
    """Return the price: a number (OpenRouter), or an object with a total (Perplexity)."""
    amount = value.get("total_cost") if isinstance(value, dict) else value
    if type(amount) not in (int, float, str):
        return None
    try:
        cost = Decimal(str(amount))
    except InvalidOperation:
        return None
    return cost if cost.is_finite() else None


def write_usage(usage: TokenUsage) -> dict[str, Any]:
    """Return the wire of a usage."""
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    details = {"cached_tokens": usage.cached_input_tokens}
    if usage.cache_creation_input_tokens:
        details["cache_write_tokens"] = usage.cache_creation_input_tokens
    if usage.input_audio_tokens:
        details["audio_tokens"] = usage.input_audio_tokens
    output_details = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.output_audio_tokens:
        output_details["audio_tokens"] = usage.output_audio_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": details,
        "completion_tokens_details": output_details,
    }
