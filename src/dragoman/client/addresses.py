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
from dragoman.dialects.parts.asking import BEARER, Asking
from dragoman.settings import Endpoint

_VERSION: Final = re.compile(r"/v\d\w*(?=/)")


@functools.cache
def asking_of(dialect: str) -> Asking:
    """How a dialect is asked."""
    asking = getattr(dialects.load(dialect), "OVER_HTTP", None)
    if not isinstance(asking, Asking):
        raise LookupError(f"the dialect {dialect!r} does not say how it is asked: it has no OVER_HTTP")
    return asking


def address_of(endpoint: Endpoint, model: str, *, streamed: bool) -> str:
    """The address that is asked."""
    asking = asking_of(endpoint.provider.dialect)
    path = (asking.streamed if streamed else None) or asking.whole
    version = _VERSION.match(path)  # some write it into the base URL as well
    base = endpoint.base_url.removesuffix(version[0]) if version else endpoint.base_url
    return base + path.replace("{model}", quote(model.removeprefix("models/"), safe=""))


def headers_of(endpoint: Endpoint, *, streamed: bool) -> dict[str, str]:
    """The headers of a request. What the user's own say comes last and counts."""
    asking = asking_of(endpoint.provider.dialect)
    headers = {
        "accept": asking.stream_type if streamed else "application/json",
        "content-type": "application/json",
        "user-agent": "dragoman",
        **dict(asking.headers),
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
    return BEARER if is_token else provider.key_header or asking_of(provider.dialect).key_header


def wants_stream(dialect: str, wire: Any) -> bool | None:
    """Whether a request asks for a stream; none where it does not say."""
    return wire.get("stream") is True if asking_of(dialect).says_stream and isinstance(wire, dict) else None
