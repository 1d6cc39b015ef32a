"""Calls of providers: one request, its status and headers, and its body in chunks.

    request = build_request(target, body, stream=…, caller_headers=…, query=…)
    response = await open_response(client, request, timeouts)     status and headers; then read() and close()

Every failure of the connection is raised as ``NetworkError`` with its fault. Invariant: an API key is sent only to the
origin of its endpoint, and the caller's key never is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.catalog import Model, Provider
from dragoman.client import Client, Timeouts
from dragoman.client.call import NetworkError, build_headers, build_url, get_http_endpoint, network_fault
from dragoman.exchange import ErrorClass, Fault
from dragoman.settings import Endpoint

_MAX_ERROR_BYTES: Final = 256 * 1024
_MAX_TEMPLATES: Final = 256


class Target(msgspec.Struct, frozen=True):
    """A model and how its provider is reached."""

    model: Model
    provider: Provider
    endpoint: Endpoint


class UpstreamRequest(msgspec.Struct, frozen=True):
    """A request to a provider."""

    url: str
    headers: dict[str, str]
    body: bytes
    stream: bool


def build_request(
    target: Target,
    body: bytes,
    *,
    stream: bool,
    caller_headers: Mapping[str, str] | None = None,
    query: str | None = None,
) -> UpstreamRequest:
    """Return the request to a provider. The configured headers override those of the caller."""
    template = _find_template(target, stream=stream)
    url = template.url
    if query is not None:
        path = url.partition("?")[0]
        url = f"{path}?{query}" if query else path
    headers = {**template.protocol, **caller_headers, **template.own} if caller_headers else template.headers
    return UpstreamRequest(url, headers, body, stream)


class _Template(msgspec.Struct, frozen=True):
    """The parts that all requests to a model share."""

    endpoint: Endpoint
    url: str
    protocol: dict[str, str]  # headers of the API, which those of the caller replace
    own: dict[str, str]  # headers that the caller cannot replace
    headers: dict[str, str]  # both


_templates: Final[dict[tuple[int, str, bool], _Template]] = {}


def _find_template(target: Target, *, stream: bool) -> _Template:
    endpoint = target.endpoint
    key = (id(endpoint), target.model.name, stream)
    template = _templates.get(key)
    if template is None or template.endpoint is not endpoint:
        if len(_templates) >= _MAX_TEMPLATES:
            _templates.clear()
        template = _templates[key] = _make_template(target, stream=stream)
    return template


def _make_template(target: Target, *, stream: bool) -> _Template:
    endpoint = target.endpoint
    headers = build_headers(endpoint, stream=stream)
    protocol = dict(get_http_endpoint(target.provider.dialect).headers)
    configured = {name.lower() for name in endpoint.headers}
    own = {name: value for name, value in headers.items() if name not in protocol or name in configured}
    url = build_url(endpoint, target.model.name, stream=stream)
    return _Template(endpoint, url, protocol, own, {**protocol, **own})


class UpstreamResponse:
    """A response of a provider. ``read`` returns chunks, and nothing at the end."""

    def __init__(self, response: Any, timeouts: Timeouts, *, stream: bool, started_at: float) -> None:
        self._response = response
        self._timeouts = timeouts
        self._stream = stream
        self._started_at = started_at
        self._has_bytes = False
        self._silent_until_s: float | None = None  # while a chunk is waited for
        self.status: int = response.status
        self.headers: dict[str, str] = response.headers

    async def read(self) -> bytes:
        """Return the next chunk; ``NetworkError`` if the connection breaks or is silent for too long."""
        chunk = await self.read_within(math.inf)
        assert chunk is not None
        return chunk

    async def read_within(self, patience_s: float) -> bytes | None:
        """Return the next chunk, or none after ``patience_s`` seconds of silence; errors as those of ``read``."""
        now_s = time.monotonic()
        if self._silent_until_s is None:
            self._silent_until_s = now_s + self._limit_s(now_s)
        left_s = self._silent_until_s - now_s
        try:
            if left_s <= 0:
                raise TimeoutError
            chunk: bytes = await self._response.read_chunk(left_s if left_s < patience_s else patience_s)
        except TimeoutError:
            if patience_s < left_s:
                return None
            code = "stream_broken" if self._has_bytes else "timeout"
            raise NetworkError(network_fault(code, "no data of the provider within the time-out")) from None
        self._silent_until_s = None
        self._has_bytes = self._has_bytes or bool(chunk)
        return chunk

    def _limit_s(self, now_s: float) -> float:
        """Return how long the provider may be silent."""
        timeouts = self._timeouts
        left_s = self._started_at + timeouts.whole_s - now_s
        if not self._stream:
            return left_s
        silence_s = timeouts.silence_s if self._has_bytes else timeouts.first_byte_s
        return silence_s if silence_s < left_s else left_s

    async def read_all(self, limit: int) -> bytes:
        """Return the whole body; ``NetworkError`` if it is larger than the limit."""
        body: bytes | None = self._response.take_body()  # of most replies: they are short
        if body is not None:
            return body
        chunks, size = [], 0
        while chunk := await self.read():
            size += len(chunk)
            if size > limit:
                fault = Fault(
                    code="too_large", message=f"response of more than {limit} bytes", error_class=ErrorClass.OTHER
                )
                raise NetworkError(fault)
            chunks.append(chunk)
            if self._response.is_complete:
                break
        return b"".join(chunks)

    async def read_error(self) -> bytes:
        """Return the body of an error response, as far as it arrives and fits the limit."""
        chunks, size = [], 0
        try:
            while size < _MAX_ERROR_BYTES and (chunk := await self.read()):
                size += len(chunk)
                chunks.append(chunk)
        except NetworkError:
            pass  # the status is known
        return b"".join(chunks)

    def close(self) -> None:
        """Return the connection to the pool if the body was read, else close it."""
        self._response.__exit__(None, None, None)


async def open_response(client: Client, request: UpstreamRequest, timeouts: Timeouts) -> UpstreamResponse:
    """Send a request and return its response when the headers have arrived: a success, or an error of the provider."""
    started_at = time.monotonic()
    head_s = timeouts.first_byte_s if request.stream else timeouts.whole_s
    response = await client.transport().post(
        request.url, request.headers, request.body, connect_s=timeouts.connect_s, head_s=head_s
    )
    if not (200 <= response.status < 300 or 400 <= response.status < 600):
        response.__exit__(None, None, None)
        raise NetworkError(
            Fault(
                code="bad_content_type",
                message=f"the provider's response has the status {response.status}",
                error_class=ErrorClass.SERVER_ERROR,
                retryable=True,
            )
        )
    return UpstreamResponse(response, timeouts, stream=request.stream, started_at=started_at)
