"""Heads of requests that the fast path of the gateway accepts, and their repetition on a connection. Pure.

    head = read_head(url, pairs, routes, data)      of a parsed request; none if the application must check it
    length = head.find_length(data)                 of a request whose head is the same; none if it is another one

Clients repeat the head of a request on a connection, except the length of the body. A head whose bytes are those of
the last one is not parsed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dragoman.gateway import endpoints
from dragoman.gateway.headers import key_candidates
from dragoman.server.application import HOST
from dragoman.server.auth.api_keys import is_key
from dragoman.server.auth.principal import PROXY_HEADERS, strip_port
from dragoman.server.config import is_loopback
from dragoman.server.http.connection_limits import MAX_HEAD_BYTES

# Requests with one of these headers need a check or a step that only the application has.
_GENERAL_HEADERS: Final = frozenset(
    ("content-encoding", "expect", "origin", "sec-fetch-site", "transfer-encoding", "upgrade", *PROXY_HEADERS)
)
_LENGTH: Final = b"content-length"
_MAX_DIGITS: Final = 7  # of a length
_END: Final = b"\r\n\r\n"
Pairs = list[tuple[bytes, bytes]]


class Route(NamedTuple):
    """An endpoint, its path without the base path, and its name in counters and the log."""

    found: endpoints.Match
    path: str
    name: tuple[str, str]


class RequestHead:
    """A head without its length."""

    __slots__ = ("after", "before", "headers", "is_local", "key", "query", "route")

    def __init__(self, url: bytes, route: Route, headers: dict[str, str], parts: tuple[bytes, bytes] | None) -> None:
        self.route = route
        self.query = url.partition(b"?")[2].decode("latin-1")
        self.headers = headers
        self.key = next((key for key in key_candidates(headers, self.query) if is_key(key)), None)
        self.is_local = is_loopback(strip_port(headers["host"].lower()))
        self.before, self.after = parts or (b"", b"")  # the bytes around the length; empty if they are not known

    def find_length(self, data: bytes) -> bytes | None:
        """Return the length of a body, if the data begin with this head and any length."""
        at = len(self.before)
        if not at or not data.startswith(self.before):
            return None
        end = data.find(b"\r", at, at + _MAX_DIGITS + 1)
        length = data[at:end]
        return length if end > 0 and length.isdigit() and data.startswith(self.after, end) else None

    def size(self, length: bytes) -> int:
        """Return the number of bytes of the head with a length."""
        return len(self.before) + len(length) + len(self.after)


def read_head(url: bytes, pairs: Pairs, routes: Mapping[bytes, Route], data: bytes) -> RequestHead | None:
    """Return the head of a request; none if the application must check it.

    ``data`` are the bytes that were received last. They begin with the head, unless it arrived in pieces.
    """
    route = routes.get(url.partition(b"?")[0])
    if route is None:
        return None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    size = len(url) + sum(len(name) + len(value) + 4 for name, value in pairs)
    if len(headers) != len(pairs) or size > MAX_HEAD_BYTES or not _GENERAL_HEADERS.isdisjoint(headers):
        return None
    if "content-length" not in headers or not HOST.fullmatch(headers.get("host", "").encode("latin-1")):
        return None
    del headers["content-length"]
    return RequestHead(url, route, headers, _split_at_length(data, url, pairs))


def _split_at_length(data: bytes, url: bytes, pairs: Pairs) -> tuple[bytes, bytes] | None:
    """Return the bytes before and after the length, if the data are exactly the lines that were parsed."""
    head = data.partition(_END)[0]
    line, *fields = head.split(b"\r\n")
    split = [field.partition(b":") for field in fields]
    if line != b"POST %b HTTP/1.1" % url or [(name.lower(), value.lstrip(b" ")) for name, _, value in split] != pairs:
        return None
    at = next(at for at, pair in enumerate(pairs) if pair[0] == _LENGTH)
    length = pairs[at][1]
    before = b"\r\n".join((line, *fields[: at + 1])).removesuffix(length)
    return before, (head + _END)[len(before) + len(length) :]
