"""A request with the same head as the previous request of its connection is answered without parsing the head."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httptools
import msgspec
import pytest

from dragoman.gateway import endpoints
from dragoman.server.auth.api_keys import new_key
from dragoman.server.request_head import RequestHead, Route, read_head
from tests.gateway.raw_gateway import QUESTION, RawGateway, make_request, run_raw_gateway
from tests.server.raw import RawClient

PATH = "/v1/messages"
FOUND = endpoints.match("POST", PATH)
LINES = b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b\r\n"


class HeadRecorder:
    """Records the URL and the headers that a parser reports."""

    def __init__(self) -> None:
        self.url = b""
        self.pairs: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.pairs.append((name.lower(), value))


def parse_head(data: bytes) -> RequestHead | None:
    recorder = HeadRecorder()
    httptools.HttpRequestParser(recorder).feed_data(data)
    assert FOUND is not None
    routes = {PATH.encode(): Route(FOUND, PATH, ("POST", PATH))}
    return read_head(recorder.url, recorder.pairs, routes, data)


class SpyParser:
    """A parser that records its input."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.data: list[bytes] = []

    def feed_data(self, data: bytes) -> None:
        self.data.append(data)
        self._parser.feed_data(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


def spy_on_parser(served: RawGateway) -> tuple[Any, SpyParser]:
    """Replace the parser of the only connection of a server. Return the connection and the new parser."""
    (connection,) = served.server.server_state.connections
    connection.parser = SpyParser(connection.parser)
    return connection, connection.parser


async def ask(client: RawClient, *texts: str) -> None:
    for text in texts:
        body = QUESTION.replace(b'"hi"', f'"{text}"'.encode())
        assert (await client.ask(make_request(PATH, body))).status == 200


def upstream_texts(served: RawGateway) -> list[str]:
    return [msgspec.json.decode(request.body)["messages"][-1]["content"] for request in served.upstream.requests]


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (LINES + b"Content-Length: 5\r\n\r\n", b"5"),
        (LINES + b"Content-Length: 1234567\r\n\r\n{", b"1234567"),
        (LINES + b"Content-Length: 12345678\r\n\r\n{", None),
        (LINES + b"Content-Length: \r\n\r\n", None),
        (LINES + b"Content-Length: +5\r\n\r\n", None),
        (LINES + b"Content-Length: 5 \r\n\r\n", None),
        (LINES + b"Content-Length: 5, 5\r\n\r\n", None),
        (LINES + b"Content-Length: 5", None),
        (LINES + b"Content-Length: 5\r\n\r", None),
        (LINES + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n", None),
        (LINES + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", None),
        (LINES.replace(b"1.1\r", b"1.0\r") + b"Content-Length: 5\r\n\r\n", None),
        (LINES.replace(b"X-A", b"X-B") + b"Content-Length: 5\r\n\r\n", None),
        (b"\r\n" + LINES + b"Content-Length: 5\r\n\r\n", None),
        (b"", None),
    ],
)
def test_head_matches_if_only_content_length_differs(data: bytes, length: bytes | None) -> None:
    head = parse_head(LINES + b"Content-Length: 77\r\n\r\n")
    assert head is not None
    assert head.find_length(data) == length
    assert head.headers == {"host": "127.0.0.1", "x-a": "b"}
    if length is not None:
        assert data[head.size(length) :] == data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(LINES + b"Content-Length:5\r\nX-B: 5\r\n\r\n{}", id="no space"),
        pytest.param(LINES + b"content-length:   5\r\n\r\n", id="several spaces"),
        pytest.param(LINES + b"X-B: \r\nX-C: Content-Length: 5\r\nContent-Length: 5\r\n\r\n", id="the length twice"),
    ],
)
def test_head_of_any_layout_matches_itself(data: bytes) -> None:
    head = parse_head(data)
    assert head is not None
    assert head.find_length(data) == b"5"
    assert head.find_length(data.replace(b"5", b"6")) == (b"6" if data.count(b"5") == 1 else None)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(LINES + b"Content-Length: 5\t\r\n\r\n", id="a tab behind the length"),
        pytest.param(LINES + b"Content-Length:\t5\r\n\r\n", id="a tab before the length"),
        pytest.param(b"\r\n" + LINES + b"Content-Length: 5\r\n\r\n", id="an empty line before"),
    ],
)
def test_head_with_unusual_layout_is_always_parsed(data: bytes) -> None:
    head = parse_head(data)
    assert head is not None
    assert head.find_length(data) is None


async def test_repeated_head_is_not_parsed(tmp_path: Path) -> None:
    async with run_raw_gateway(tmp_path) as served, served.connect() as client:
        await ask(client, "one")
        _, parser = spy_on_parser(served)
        await ask(client, "two", "a longer text", "three" * 100)
        assert parser.data == []
        assert (await client.ask(make_request(PATH, b""))).status == 400
        assert parser.data == []
        assert (await client.ask(make_request(PATH, QUESTION, "user-agent: another"))).status == 200
        assert parser.data != []
        assert upstream_texts(served) == ["one", "two", "a longer text", "three" * 100, "hi"]


async def test_repeated_request_may_arrive_in_pieces(tmp_path: Path) -> None:
    async with run_raw_gateway(tmp_path, record="off") as served, served.connect() as client:
        await ask(client, "one")
        connection, parser = spy_on_parser(served)
        request = make_request(PATH, QUESTION)
        head_size = request.index(b"\r\n\r\n") + 4
        for at in reversed(range(1, len(request))):
            parser.data.clear()
            connection.data_received(request[:at])
            connection.data_received(request[at:])
            assert (await client.read_response()).status == 200
            assert (parser.data == []) == (at >= head_size)
        assert upstream_texts(served) == ["one", *["hi"] * (len(request) - 1)]


async def test_pipelined_repeated_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with run_raw_gateway(tmp_path) as served, served.connect() as client:
        await ask(client, "one")
        connection, _ = spy_on_parser(served)
        bodies = [QUESTION.replace(b'"hi"', f'"{word}"'.encode()) for word in ("two", "three", "four")]
        connection.data_received(b"".join(make_request(PATH, body) for body in bodies))
        assert [(await client.read_response()).status for _ in bodies] == [200] * 3
        await ask(client, "five")
        assert upstream_texts(served) == ["one", "two", "three", "four", "five"]


async def test_bytes_after_content_length_are_next_request(tmp_path: Path) -> None:
    async with run_raw_gateway(tmp_path) as served, served.connect() as client:
        await ask(client, "one")
        await client.send(make_request(PATH, QUESTION + b"0123456789"[:3], length=len(QUESTION)))
        assert client.reader is not None
        data = await asyncio.wait_for(client.reader.read(), 60)
        assert b"HTTP/1.1 400 Bad Request" in data
        assert len(served.upstream.requests) <= 2


async def test_repeated_head_is_authorized_again(tmp_path: Path) -> None:
    async with run_raw_gateway(tmp_path, require_keys=True) as served, served.connect() as client:
        key = new_key(served.state.peppers)
        await served.state.store.keys.create(key.public_id, key.secret_hash, user_id="ann", scopes=("chat",))
        request = make_request(PATH, QUESTION, f"x-api-key: {key.text}")
        for _ in range(3):
            assert (await client.ask(request)).status == 200
        connection, parser = spy_on_parser(served)
        served.state.keys.clear()  # the application verifies the key again
        assert (await client.ask(request)).status == 200
        assert parser.data == [request]
        assert connection.timeout_keep_alive_task is not None
        connection.data_received(request)
        assert connection.timeout_keep_alive_task is None  # otherwise it closes the connection during the call
        assert (await client.read_response()).status == 200
        assert parser.data == [request]
        await served.state.store.keys.revoke(key.public_id)
        served.state.keys.clear()
        assert (await client.ask(request)).status == 401
