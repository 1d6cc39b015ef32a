"""Headers and query parameters: keys of callers, and what passes between caller and provider. Pure.

    key_candidates(headers, query)        the keys that a request presents, in the order in which they count
    forward_query(query)                  the query without the caller's key
    request_headers(headers, dialect)     the caller's headers that a provider of the same dialect receives
    response_headers(headers)             the provider's headers that the caller receives

Invariant: no header or parameter that can contain the caller's key is forwarded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote_plus

_KEY_HEADERS: Final = ("x-api-key", "x-goog-api-key", "api-key")
_SIGV4: Final = re.compile(r"AWS4-HMAC-SHA256 +Credential=([^/,\s]+)")
# Prefixes of the protocol headers of each API; a provider of the same dialect receives them.
_REQUEST_PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "anthropic": ("anthropic-",),
    "openai_chat": ("openai-", "x-openai-", "x-stainless-", "x-codex-"),
    "openai_responses": ("openai-", "x-openai-", "x-stainless-", "x-codex-"),
    "gemini": ("x-goog-",),
    "cohere": ("x-client-",),
    "bedrock_converse": ("x-amzn-bedrock-",),
    "ollama": (),
}
_REQUEST_NAMES: Final = frozenset(("idempotency-key", "x-client-request-id", "session-id", "thread-id", "originator"))
_REFUSED: Final = frozenset((*_KEY_HEADERS, "authorization", "cookie", "x-goog-user-project"))
_RESPONSE_PREFIXES: Final = (
    "anthropic-",
    "openai-",
    "x-ratelimit-",
    "ratelimit-",
    "x-goog-",
    "x-amzn-",
    "x-codex-",
    "x-openai-",
)
_RESPONSE_NAMES: Final = frozenset(
    ("request-id", "x-request-id", "retry-after", "retry-after-ms", "x-should-retry", "server-timing")
)


def key_candidates(headers: Mapping[str, str], query: str) -> Iterator[str]:
    """Yield the keys of a request: the bearer token, the key headers of the APIs, ``?key=``, and an AWS key id."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        yield token.strip()
    for name in _KEY_HEADERS:
        if value := headers.get(name, "").strip():
            yield value
    for name, value in _parameters(query):
        if name == "key" and value:
            yield unquote_plus(value)
    if (signed := _SIGV4.match(headers.get("authorization", ""))) is not None:
        yield signed[1]


def forward_query(query: str) -> str:
    """Return the query as it arrived, without ``key``."""
    if "=" not in query:
        return query
    return "&".join(part for part in query.split("&") if unquote_plus(part.partition("=")[0]) != "key")


def request_headers(headers: Mapping[str, str], dialect: str) -> dict[str, str]:
    """Return the caller's protocol headers for a provider of the same dialect."""
    prefixes = _REQUEST_PREFIXES.get(dialect, ())
    return {
        name: value
        for name, value in headers.items()
        if name not in _REFUSED and (name in _REQUEST_NAMES or name.startswith(prefixes))
    }


def response_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the provider's headers for the caller: ids, limits, retry hints and those of the protocol."""
    return {
        name: value for name, value in headers.items() if name in _RESPONSE_NAMES or name.startswith(_RESPONSE_PREFIXES)
    }


def _parameters(query: str) -> Iterator[tuple[str, str]]:
    for part in query.split("&"):
        name, _, value = part.partition("=")
        yield unquote_plus(name), value
