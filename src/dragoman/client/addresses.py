"""Where each dialect is asked, and what its headers are: one table, and the address and the headers of a call.

The path stands behind the base URL as the providers' own SDKs understand it: OpenAI's ends in a version, the others'
do not. The one rule: the key stands in one header and never in the address, where logs and proxies would keep it.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

import msgspec

from dragoman.catalog import Provider
from dragoman.settings import Endpoint

BEARER: Final = "authorization"
_VERSION: Final = re.compile(r"/v\d\w*(?=/)")


class Spoken(msgspec.Struct, frozen=True):
    """How a dialect is asked over HTTP."""

    whole: str  # the path
    streamed: str | None = None  # the same, where it differs for a stream
    key_header: str = BEARER
    headers: tuple[tuple[str, str], ...] = ()
    says_stream: bool = True  # whether a request says itself that it wants a stream
    stream_type: str = "text/event-stream"


SPOKEN: Final = {
    "anthropic": Spoken("/v1/messages", key_header="x-api-key", headers=(("anthropic-version", "2023-06-01"),)),
    "bedrock_converse": Spoken(
        "/model/{model}/converse",
        "/model/{model}/converse-stream",
        says_stream=False,
        stream_type="application/vnd.amazon.eventstream",
    ),
    "cohere": Spoken("/v2/chat"),
    "gemini": Spoken(
        "/v1beta/models/{model}:generateContent",
        "/v1beta/models/{model}:streamGenerateContent?alt=sse",
        key_header="x-goog-api-key",
        says_stream=False,
    ),
    "ollama": Spoken("/api/chat", stream_type="application/x-ndjson"),
    "openai_chat": Spoken("/chat/completions"),
    "openai_responses": Spoken("/responses"),
}


def address_of(endpoint: Endpoint, model: str, *, streamed: bool) -> str:
    """The address that is asked."""
    spoken = SPOKEN[endpoint.provider.dialect]
    path = (spoken.streamed if streamed else None) or spoken.whole
    version = _VERSION.match(path)  # some write it into the base URL as well
    base = endpoint.base_url.removesuffix(version[0]) if version else endpoint.base_url
    return base + path.replace("{model}", quote(model.removeprefix("models/"), safe=""))


def headers_of(endpoint: Endpoint, *, streamed: bool) -> dict[str, str]:
    """The headers of a request. What the user's own say comes last and counts."""
    spoken = SPOKEN[endpoint.provider.dialect]
    headers = {
        "accept": spoken.stream_type if streamed else "application/json",
        "content-type": "application/json",
        "user-agent": "dragoman",
        **dict(spoken.headers),
    }
    if streamed:
        headers["accept-encoding"] = "identity"  # what is compressed arrives in larger pieces, and later
    if endpoint.key is not None:
        name = key_header_of(endpoint.provider, is_token=endpoint.is_token)
        secret = endpoint.key.reveal()
        headers[name] = f"Bearer {secret}" if name == BEARER else secret
    return headers | {name.lower(): value for name, value in endpoint.headers.items()}


def key_header_of(provider: Provider, *, is_token: bool = False) -> str:
    """The header that carries the key."""
    return BEARER if is_token else provider.key_header or SPOKEN[provider.dialect].key_header


def wants_stream(dialect: str, wire: Any) -> bool | None:
    """Whether a request asks for a stream; none where it does not say."""
    return wire.get("stream") is True if SPOKEN[dialect].says_stream and isinstance(wire, dict) else None
