"""A call to a provider: its values, its URL and its headers. Nothing here does I/O.

A call is immutable, since it may be sent several times. The API key is only in one header and never in the URL, which
logs and proxies store.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from dragoman import dialects
from dragoman.adapter import Adapter, RequestContext
from dragoman.catalog import Provider
from dragoman.exchange import ErrorClass, Fault
from dragoman.settings import Endpoint
from dragoman.wire.http_endpoint import BEARER, HttpEndpoint

REDIRECTS: Final = (301, 302, 303, 307, 308)
_VERSION: Final = re.compile(r"/v\d\w*(?=/)")


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts in seconds. The time that the consumer of a stream needs does not count."""

    connect_s: float = 10.0  # to connect
    first_byte_s: float = 180.0  # of a stream, from the request to the first byte of the response
    silence_s: float = 60.0  # between two chunks of a stream
    whole_s: float = 1800.0  # from the first attempt to the end of the response


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """Number of retries and the delays before them."""

    max_retries: int = 2  # after the first attempt
    first_wait_s: float = 1.0  # doubles with each retry
    longest_wait_s: float = 30.0
    jitter: float = 0.25  # random share added or subtracted
    max_retry_after_s: float = 60.0  # a longer delay requested by the provider ends the call; the fault contains it


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Maximum sizes in bytes, after decompression."""

    answer_bytes: int = 64 * 2**20  # a complete reply
    stream_bytes: int = 256 * 2**20  # a streamed reply
    line_bytes: int = 16 * 2**20  # one line of a stream, which is one event and may contain an image
    error_bytes: int = 256 * 2**10  # an error response; the rest is not read


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a provider.

    ``wire`` is the output of ``adapter.to_wire``, written with ``Options(stream=True)`` for ``Client.stream`` and
    without for ``Client.send``; a mismatch raises ``ValueError``.
    """

    endpoint: Endpoint  # URL and API key
    adapter: Adapter  # dialect and model
    wire: Any  # the request
    context: RequestContext  # ids of the reply
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    gather_s: float = 0.0  # after the first text, receive at most every so many seconds: many words per read cost less
    on_retry: Callable[[Fault, float], None] | None = None  # called with the fault and the delay in seconds


class CallLog:
    """The course of a call. Pass a new one to ``send`` or ``stream``, which fills it."""

    __slots__ = ("attempts", "first_byte_ms", "headers", "latency_ms", "request_id", "retries", "status")

    def __init__(self) -> None:
        self.attempts = 0
        self.retries: list[tuple[Fault, float]] = []  # each retried fault, with the delay after it
        self.status: int | None = None  # of the last response
        self.request_id: str | None = None  # assigned by the provider
        self.headers: dict[str, str] = {}  # rate limits and ids of the last response
        self.first_byte_ms: int | None = None  # of a stream: from the last attempt to its first byte
        self.latency_ms: int | None = None  # from the first attempt to the end

    @property
    def retry_count(self) -> int:
        """Number of retries."""
        return max(0, self.attempts - 1)


class NetworkError(Exception):
    """The connection failed. The client converts it to a fault; it never leaves this package."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.code)
        self.fault = fault


def network_fault(code: str, message: str, *, retryable: bool = True) -> Fault:
    """Return the fault of a failed connection."""
    return Fault(code=code, message=message, error_class=ErrorClass.NETWORK, retryable=retryable)


# --- URL and headers -------------------------------------------------------------------------------------------------


@functools.cache
def get_http_endpoint(dialect: str) -> HttpEndpoint:
    """Return the HTTP endpoint of a dialect."""
    endpoint = getattr(dialects.load(dialect), "HTTP", None)
    if not isinstance(endpoint, HttpEndpoint):
        raise LookupError(f"the dialect {dialect!r} has no HTTP endpoint")
    return endpoint


def build_url(endpoint: Endpoint, model: str, *, stream: bool) -> str:
    """Return the URL of a request."""
    http_endpoint = get_http_endpoint(endpoint.provider.dialect)
    path = (http_endpoint.stream_path if stream else None) or http_endpoint.path
    version = _VERSION.match(path)  # some base URLs contain it as well
    base = endpoint.base_url.removesuffix(version[0]) if version else endpoint.base_url
    return base + path.replace("{model}", quote(model.removeprefix("models/"), safe=""))


def build_headers(endpoint: Endpoint, *, stream: bool) -> dict[str, str]:
    """Return the headers of a request. Headers of the user override the others."""
    http_endpoint = get_http_endpoint(endpoint.provider.dialect)
    headers = {
        "accept": http_endpoint.stream_type if stream else "application/json",
        "content-type": "application/json",
        "user-agent": "dragoman",
        **dict(http_endpoint.headers),
    }
    if stream:
        headers["accept-encoding"] = "identity"  # compression delays the chunks of a stream
    if endpoint.key is not None:
        name = get_key_header(endpoint.provider, is_token=endpoint.is_token)
        secret = endpoint.key.reveal()
        headers[name] = f"Bearer {secret}" if name == BEARER else secret
    return headers | {name.lower(): value for name, value in endpoint.headers.items()}


def get_key_header(provider: Provider, *, is_token: bool = False) -> str:
    """Return the name of the header that contains the API key."""
    return BEARER if is_token else provider.key_header or get_http_endpoint(provider.dialect).key_header


def is_stream_request(dialect: str, wire: Any) -> bool | None:
    """Whether a request asks for a stream; none if the dialect has no field for it."""
    has_field = get_http_endpoint(dialect).has_stream_field and isinstance(wire, dict)
    return wire.get("stream") is True if has_field else None
