"""Damaged streams over a socket: none looks like a success, none raises, and what had arrived is kept."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import msgspec
import pytest

from dragoman import dialects
from dragoman.client import Call, Client, Timeouts
from dragoman.event import fold
from dragoman.exchange import Reply
from tests import recorded
from tests.client.calls import ONCE, call_to, told
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
    """The names, bytes and fault codes of the cases of a dialect's own reader."""
    cases: dict[str, Case] = importlib.import_module(f"tests.dialects.stream_damage.{dialect}").CASES
    for name, case in cases.items():
        if case.framing is None and not case.quirks:
            yield name, case.data, case.code


def told_by_reader(dialect: str, data: bytes, quirks: tuple[str, ...]) -> Reply:
    """Read the bytes with the dialect's reader, without a socket."""
    reader = dialects.load(dialect).stream_reader(None, quirks)
    return fold([*reader.feed(data), *reader.close()])


@every_dialect
async def test_damaged_stream_over_a_socket_ends_like_its_reader(dialect: str) -> None:
    cases = list(cases_of(dialect))
    assert sum(code is not None for _, _, code in cases) >= 16
    said: dict[str, tuple[str | None, str | None]] = {}
    async with (
        FaultyServer(lambda asked: make_stream([cases[int(asked.headers["x-case"])][1]])) as server,
        Client() as client,
    ):
        for number, (name, data, code) in enumerate(cases):
            call = call_to(dialect, server.address, streamed=True, retries=ONCE, timeouts=PATIENT)
            call = numbered(call, number)
            reply = await told(client, call)
            expected = told_by_reader(dialect, data, call.endpoint.provider.quirks)
            assert text_of(reply) == text_of(expected), name
            assert calls_of(reply) == calls_of(expected), name
            got = reply.fault.code if reply.fault else None
            if got != code:
                said[name] = (got, code)
    assert said == {}


def numbered(call: Call, number: int) -> Call:
    """The call, with a header that tells the server which case it is."""
    endpoint = msgspec.structs.replace(call.endpoint, headers={"x-case": str(number)})
    return msgspec.structs.replace(call, endpoint=endpoint)


@every_dialect
@pytest.mark.slow
async def test_stream_cut_at_any_byte_fails_without_tool_call_or_lost_text(dialect: str) -> None:
    data = recorded.cassette(dialect, "call-streamed").response.stream
    quirks = call_to(dialect, "http://127.0.0.1:1", streamed=True).endpoint.provider.quirks
    whole = told_by_reader(dialect, data, quirks)
    assert calls_of(whole) == [("read_file", {"path": "README.md"})]
    complete: list[int] = []
    async with (
        FaultyServer(lambda asked: make_stream([data[: int(asked.headers["x-case"])]])) as server,
        Client() as client,
    ):
        call = call_to(dialect, server.address, streamed=True, retries=ONCE, timeouts=PATIENT)
        lengths = [*range(0, len(data), scale(37, 1)), len(data)]
        for length in lengths:
            reply = await told(client, numbered(call, length))
            expected = told_by_reader(dialect, data[:length], quirks)
            assert (text_of(reply), calls_of(reply)) == (text_of(expected), calls_of(expected))
            if reply.fault is None:
                complete.append(length)
                assert (text_of(reply), calls_of(reply)) == (text_of(whole), calls_of(whole))
            else:
                assert reply.fault.code in ("stream_incomplete", "empty_response", "bad_content_type")
    # Whole is only what has the provider's own sign of the end, behind which nothing of the message comes any more.
    assert complete == [length for length in lengths if length >= complete[0]]


@every_dialect
async def test_reset_connection_keeps_received_text(dialect: str) -> None:
    data = recorded.cassette(dialect, "text-streamed").response.stream
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
            reply = await told(client, call_to(dialect, server.address, streamed=True, retries=ONCE, timeouts=timeouts))
        assert reply.fault is not None, name
        assert reply.fault.code == "stream_broken", name
        assert reply.fault.retryable
        arrived = half[:-8] if name.startswith("cut within") else half
        assert text_of(reply) == text_of(told_by_reader(dialect, arrived, ())), name
