"""The address and the headers of a call.

The one rule: the key stands in one header and never in the address, where logs and proxies would keep it.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final
from urllib.parse import quote

from dragoman import dialects
from dragoman.catalog import Provider
from dragoman.settings import Endpoint
from dragoman.wire.http_endpoint import BEARER, HttpEndpoint

_VERSION: Final = re.compile(r"/v\d\w*(?=/)")


@functools.cache
def get_http_endpoint(dialect: str) -> HttpEndpoint:
    """How a dialect is asked."""
    http_endpoint = getattr(dialects.load(dialect), "HTTP", None)
    if not isinstance(http_endpoint, HttpEndpoint):
        raise LookupError(f"the dialect {dialect!r} does not say how it is asked: it has no HTTP")
    return http_endpoint


def build_url(endpoint: Endpoint, model: str, *, stream: bool) -> str:
    """The address that is asked."""
    http_endpoint = get_http_endpoint(endpoint.provider.dialect)
    path = (http_endpoint.stream_path if stream else None) or http_endpoint.path
    version = _VERSION.match(path)  # some write it into the base URL as well
    base = endpoint.base_url.removesuffix(version[0]) if version else endpoint.base_url
    return base + path.replace("{model}", quote(model.removeprefix("models/"), safe=""))


def build_headers(endpoint: Endpoint, *, stream: bool) -> dict[str, str]:
    """The headers of a request. What the user's own say comes last and counts."""
    http_endpoint = get_http_endpoint(endpoint.provider.dialect)
    headers = {
        "accept": http_endpoint.stream_type if stream else "application/json",
        "content-type": "application/json",
        "user-agent": "dragoman",
        **dict(http_endpoint.headers),
    }
    if stream:
        headers["accept-encoding"] = "identity"  # what is compressed arrives in larger pieces, and later
    if endpoint.key is not None:
        name = get_key_header(endpoint.provider, is_token=endpoint.is_token)
        secret = endpoint.key.reveal()
        headers[name] = f"Bearer {secret}" if name == BEARER else secret
    return headers | {name.lower(): value for name, value in endpoint.headers.items()}


def get_key_header(provider: Provider, *, is_token: bool = False) -> str:
    """The header that carries the key."""
    return BEARER if is_token else provider.key_header or get_http_endpoint(provider.dialect).key_header


def is_stream_request(dialect: str, wire: Any) -> bool | None:
    """Whether a request asks for a stream; none where it does not say."""
    return (
        wire.get("stream") is True if get_http_endpoint(dialect).has_stream_field and isinstance(wire, dict) else None
    )
