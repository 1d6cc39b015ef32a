"""Tests of damaged streams over a socket: each ends with a fault and keeps the received text."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import msgspec
import pytest

from dragoman import dialects
from dragoman.client import Call, Client, Timeouts
from dragoman.event import fold
from dragoman.exchange import Reply
from tests import recordings
from tests.client.calls import ONCE, make_call, stream_reply
from tests.conftest import scale
from tests.dialects.stream_damage.case import Case, calls_of, text_of
from tests.servers.faulty_server import (
    CLOSE,
    RESET,
    SILENCE,
    Answer,
    FaultyServer,
    encode_chunk,
    make_head,
    make_stream,
)

every_dialect = pytest.mark.parametrize("dialect", dialects.callable_names())
PATIENT = Timeouts(connect_s=20, first_byte_s=20, silence_s=20, whole_s=60)


def cases_of(dialect: str) -> Iterator[tuple[str, bytes, str | None]]:
    """Yield the name, bytes and fault code of each case of a dialect's reader."""
    cases: dict[str, Case] = importlib.import_module(f"tests.dialects.stream_damage.{dialect}").CASES
    for name, case in cases.items():
        if case.framing is None and not case.quirks:
            yield name, case.data, case.code


def read_without_socket(dialect: str, data: bytes, quirks: tuple[str, ...]) -> Reply:
    """Read the bytes with the dialect's reader, without a socket."""
    reader = dialects.load(dialect).stream_reader(None, quirks)
    return fold([*reader.feed(data), *reader.close()])


@every_dialect
async def test_damaged_stream_over_socket_ends_like_its_reader(dialect: str) -> None:
    cases = list(cases_of(dialect))
    assert sum(code is not None for _, _, code in cases) >= 16
    mismatches: dict[str, tuple[str | None, str | None]] = {}
    async with (
        FaultyServer(lambda request: make_stream([cases[int(request.headers["x-case"])][1]])) as server,
        Client() as client,
    ):
        for number, (name, data, code) in enumerate(cases):
            call = make_call(dialect, server.address, streamed=True, retries=ONCE, timeouts=PATIENT)
            call = with_case_header(call, number)
            reply = await stream_reply(client, call)
            expected = read_without_socket(dialect, data, call.endpoint.provider.quirks)
            assert text_of(reply) == text_of(expected), name
            assert calls_of(reply) == calls_of(expected), name
            actual = reply.fault.code if reply.fault else None
            if actual != code:
                mismatches[name] = (actual, code)
    assert mismatches == {}


def with_case_header(call: Call, number: int) -> Call:
    """Return the call with the header by which the server selects the case."""
    endpoint = msgspec.structs.replace(call.endpoint, headers={"x-case": str(number)})
    return msgspec.structs.replace(call, endpoint=endpoint)


@every_dialect
@pytest.mark.slow
async def test_stream_cut_at_any_byte_fails_without_tool_call_or_lost_text(dialect: str) -> None:
    data = recordings.cassette(dialect, "call-streamed").response.stream
    quirks = make_call(dialect, "http://127.0.0.1:1", streamed=True).endpoint.provider.quirks
    whole = read_without_socket(dialect, data, quirks)
    assert calls_of(whole) == [("read_file", {"path": "README.md"})]
    complete: list[int] = []
    async with (
        FaultyServer(lambda request: make_stream([data[: int(request.headers["x-case"])]])) as server,
        Client() as client,
    ):
        call = make_call(dialect, server.address, streamed=True, retries=ONCE, timeouts=PATIENT)
        lengths = [*range(0, len(data), scale(37, 1)), len(data)]
        for length in lengths:
            reply = await stream_reply(client, with_case_header(call, length))
            expected = read_without_socket(dialect, data[:length], quirks)
            assert (text_of(reply), calls_of(reply)) == (text_of(expected), calls_of(expected))
            if reply.fault is None:
                complete.append(length)
                assert (text_of(reply), calls_of(reply)) == (text_of(whole), calls_of(whole))
            else:
                assert reply.fault.code in ("stream_incomplete", "empty_response", "bad_content_type")
    # A stream is complete only with the end marker of its provider, after which no content follows.
    assert complete == [length for length in lengths if length >= complete[0]]


@every_dialect
async def test_reset_connection_keeps_received_text(dialect: str) -> None:
    data = recordings.cassette(dialect, "text-streamed").response.stream
    half = data[: len(data) // 2]
    endings: dict[str, Answer] = {
        "reset": make_stream([half], 0.05, RESET),
        "closed without the last chunk": make_stream([half], CLOSE),
        "cut within a chunk": [make_head(transfer_encoding="chunked"), encode_chunk(half)[:-10], CLOSE],
        "shorter than its head says": [make_head(content_length=str(len(data))), half, CLOSE],
        "silent": make_stream([half], SILENCE),
    }
    for name, ending in endings.items():
        async with FaultyServer([ending]) as server, Client() as client:
            timeouts = Timeouts(silence_s=0.2)
            reply = await stream_reply(
                client, make_call(dialect, server.address, streamed=True, retries=ONCE, timeouts=timeouts)
            )
        assert reply.fault is not None, name
        assert reply.fault.code == "stream_broken", name
        assert reply.fault.retryable
        received = half[:-8] if name.startswith("cut within") else half
        assert text_of(reply) == text_of(read_without_socket(dialect, received, ())), name
