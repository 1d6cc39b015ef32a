"""Tests of retries, timeouts and cancellation of the client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from datetime import UTC, datetime

import pytest

from dragoman.client import CallLog, Client, Retries, Timeouts
from dragoman.event import MessageComplete, StreamError, TextDelta, fold
from dragoman.exchange import ErrorClass
from tests import recordings
from tests.client.answers import LIMITED, STREAMED, WHOLE, both_modes, every_dialect, get_fault, get_reply, make_success
from tests.client.calls import ONCE, NoSleepClient, make_call, read_events, stream_reply, text_of
from tests.servers.faulty_server import (
    CLOSE,
    END,
    RESET,
    SILENCE,
    Answer,
    FaultyServer,
    encode_chunk,
    make_answer,
    make_head,
    make_stream,
)
from tests.servers.fixtures import LLAMA_TEXT

# --- retries ---------------------------------------------------------------------------------------------------------


@both_modes
async def test_rate_limit_is_retried(streamed: bool) -> None:
    retries: list[tuple[str, float]] = []
    answers = [
        make_answer(LIMITED, 429, retry_after="3", x_request_id="r-1"),
        make_success(streamed=streamed, x_request_id="r-2"),
    ]
    async with FaultyServer(answers) as server, NoSleepClient() as client:
        call = make_call(
            "openai_chat",
            server.address,
            streamed=streamed,
            on_retry=lambda fault, seconds: retries.append((fault.code, seconds)),
        )
        journal = CallLog()
        if streamed:
            assert isinstance([event async for event in client.stream(call, journal)][-1], MessageComplete)
        else:
            assert (await client.send(call, journal)).fault is None
    assert retries == [("rate_limited", 3.0)]
    assert client.waits == [3.0]
    assert (journal.attempts, journal.retry_count, journal.status, journal.request_id) == (2, 1, 200, "r-2")
    assert [(fault.request_id, seconds) for fault, seconds in journal.retries] == [("r-1", 3.0)]
    assert journal.latency_ms is not None


@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ({}, [1.0, 2.0]),
        ({"retry_after": "0.2"}, [1.0, 2.0]),
        ({"retry_after": "45"}, [45.0, 45.0]),
        ({"retry_after": "61"}, []),
        ({"retry_after": "86400"}, []),
        ({"retry_after_ms": "2500"}, [2.5, 2.5]),
        ({"retry_after": "soon"}, [1.0, 2.0]),
        ({"retry_after": "-5"}, [1.0, 2.0]),
        ({"retry_after": "Sun, 15 Nov 2026 12:00:20 GMT"}, [20.0, 20.0]),
        ({"retry_after": "Sun, 15 Nov 2026 11:00:00 GMT"}, [1.0, 2.0]),
        ({"retry_after": "Sun, 15 Nov 2099 11:00:00 GMT"}, []),
        ({"x_should_retry": "false"}, []),
        ({"x_should_retry": "true"}, [1.0, 2.0]),
    ],
)
async def test_retry_after_is_respected(headers: dict[str, str], waits: list[float]) -> None:
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    async with (
        FaultyServer([make_answer(LIMITED, 429, **headers)]) as server,
        NoSleepClient(random_source=lambda: 0.5, now=lambda: noon) as client,
    ):
        fault = await get_fault(client, make_call("openai_chat", server.address, streamed=False), streamed=False)
    assert (fault.code, fault.error_class) == ("rate_limited", ErrorClass.RATE_LIMIT)
    assert client.waits == waits


async def test_backoff_doubles_up_to_its_limit_with_jitter() -> None:
    retries = Retries(max_retries=7)
    for value, waits in ((0.0, [0.75, 1.5, 3, 6, 12, 24, 30]), (1.0, [1.25, 2.5, 5, 10, 20, 30, 30])):
        async with (
            FaultyServer([make_answer(b"", 503)]) as server,
            NoSleepClient(random_source=lambda value=value: value) as client,
        ):
            await client.send(make_call("openai_chat", server.address, streamed=False, retries=retries))
        assert client.waits == waits
        assert len(server.requests) == 8


@pytest.mark.parametrize(
    ("status", "code", "tries"),
    [
        (400, "invalid_request", 1),
        (401, "unauthorized", 1),
        (403, "forbidden", 1),
        (404, "not_found", 1),
        (408, "timeout", 3),
        (413, "context_overflow", 1),
        (429, "rate_limited", 3),
        (500, "server_error", 3),
        (502, "server_error", 3),
        (503, "overloaded", 3),
        (529, "overloaded", 3),
    ],
)
@every_dialect
async def test_only_transient_faults_are_retried(dialect: str, status: int, code: str, tries: int) -> None:
    for streamed in (False, True):
        page = make_answer(b"<html>no</html>", status, content_type="text/html")
        async with FaultyServer([page]) as server, NoSleepClient() as client:
            fault = await get_fault(client, make_call(dialect, server.address, streamed=streamed), streamed=streamed)
        assert (fault.code, fault.status) == (code, status)
        assert len(server.requests) == tries


async def test_x_should_retry_overrides_the_status() -> None:
    async with (
        FaultyServer([make_answer(b"{}", 400, x_should_retry="true"), make_answer(WHOLE)]) as server,
        NoSleepClient() as client,
    ):
        assert (await client.send(make_call("openai_chat", server.address, streamed=False))).fault is None
    assert len(client.waits) == 1


async def test_no_retry_after_the_first_event() -> None:
    async with (
        FaultyServer([make_stream([STREAMED[:700]], CLOSE), make_stream([STREAMED])]) as server,
        NoSleepClient() as client,
    ):
        events = await read_events(client, make_call("openai_chat", server.address, streamed=True))
    assert any(isinstance(event, TextDelta) for event in events)
    assert isinstance(events[-1], StreamError)
    assert (len(server.requests), client.waits) == (1, [])


@pytest.mark.parametrize(
    "first",
    [
        [CLOSE],
        [RESET],
        make_stream([b""], CLOSE),
        make_stream([]),
        [make_head(content_length="9"), CLOSE],
        make_stream([b": hi\n\n"], RESET),
    ],
    ids=["closed", "reset", "cut before a byte", "empty", "short", "reset after a comment"],
)
async def test_connection_that_breaks_before_an_event_is_retried(first: Answer) -> None:
    async with FaultyServer([first, make_stream([STREAMED])]) as server, NoSleepClient() as client:
        reply = await stream_reply(client, make_call("openai_chat", server.address, streamed=True))
    assert (text_of(reply), reply.fault, len(client.waits)) == (LLAMA_TEXT, None, 1)


async def test_buffered_bytes_are_read_after_the_connection_breaks() -> None:
    pieces = STREAMED.split(b"data: [DONE]")[0].rsplit(b'data: {"choices":[{"finish_reason":"stop"', 1)[0]
    half = pieces.index(b"Project")
    answers = [make_stream([pieces[:half]], 0.05, encode_chunk(pieces[half:]), CLOSE)]
    async with FaultyServer(answers) as server, Client() as client:
        events = []
        async for event in client.stream(make_call("openai_chat", server.address, streamed=True)):
            if not events:
                await asyncio.sleep(0.3)  # meanwhile the rest arrives and the connection ends
            events.append(event)
    reply = fold(events)
    assert reply.fault is not None
    assert (reply.fault.code, text_of(reply)) == ("stream_broken", LLAMA_TEXT)


async def test_error_in_first_event_is_retried_and_later_errors_are_not() -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    data = recordings.cassette("anthropic", "text-streamed").response.stream
    async with (
        FaultyServer([make_stream([error]), make_stream([data[:900] + b"\n\n" + error])]) as server,
        NoSleepClient() as client,
    ):
        reply = await stream_reply(client, make_call("anthropic", server.address, streamed=True))
    assert reply.fault is not None
    assert len(client.waits) == 1
    assert len(server.requests) == 2


# --- timeouts --------------------------------------------------------------------------------------------------------

SHORT = Timeouts(connect_s=60, first_byte_s=1, silence_s=1, whole_s=60)


async def test_stream_without_first_byte_times_out() -> None:
    for silent in ([SILENCE], [make_head(transfer_encoding="chunked"), SILENCE]):
        async with FaultyServer([silent]) as server, Client() as client:
            call = make_call("openai_chat", server.address, streamed=True, retries=ONCE, timeouts=SHORT)
            fault = await get_fault(client, call, streamed=True)
            assert (fault.code, fault.error_class, fault.retryable) == ("timeout", ErrorClass.NETWORK, True)
            await server.disconnected.wait()


async def test_silent_stream_breaks_and_keeps_its_text() -> None:
    async with FaultyServer([make_stream([STREAMED[:1500]], SILENCE)]) as server, Client() as client:
        call = make_call("openai_chat", server.address, streamed=True, timeouts=SHORT)
        reply = await stream_reply(client, call)
        await server.disconnected.wait()
    assert reply.fault is not None
    assert reply.fault.code == "stream_broken"
    assert LLAMA_TEXT.startswith(text_of(reply))
    assert text_of(reply)


async def test_sse_comments_keep_a_stream_alive() -> None:
    beats = [part for _ in range(12) for part in (0.1, encode_chunk(b": still here\n\n"))]
    answers = [[make_head(transfer_encoding="chunked"), *beats, encode_chunk(STREAMED), END]]
    async with FaultyServer(answers) as server, Client() as client:
        timeouts = Timeouts(first_byte_s=1, silence_s=1)
        reply = await stream_reply(
            client, make_call("openai_chat", server.address, streamed=True, timeouts=timeouts, retries=ONCE)
        )
    assert (text_of(reply), reply.fault) == (LLAMA_TEXT, None)


async def test_slow_reader_does_not_time_out() -> None:
    half = len(STREAMED) // 2
    async with FaultyServer([make_stream([STREAMED[:half], STREAMED[half:]])]) as server, Client() as client:
        events = []
        async for event in client.stream(make_call("openai_chat", server.address, streamed=True, timeouts=SHORT)):
            events.append(event)
            if len(events) == 2:
                await asyncio.sleep(1.2)  # longer than the stream may be silent
    assert isinstance(events[-1], MessageComplete)


@both_modes
async def test_total_timeout_ends_the_call_without_retry(streamed: bool) -> None:
    drip = [part for byte in range(400) for part in (encode_chunk(STREAMED[byte : byte + 1]), 0.02)]
    async with FaultyServer([[make_head(transfer_encoding="chunked"), *drip]]) as server, Client() as client:
        timeouts = Timeouts(whole_s=0.3)
        call = make_call("openai_chat", server.address, streamed=streamed, timeouts=timeouts)
        fault = await get_fault(client, call, streamed=streamed)
        await server.disconnected.wait()
    assert fault.code == "timeout"
    assert len(server.requests) == 1


async def test_retry_delay_beyond_the_total_timeout_is_not_started() -> None:
    async with FaultyServer([make_answer(LIMITED, 429, retry_after="30")]) as server, NoSleepClient() as client:
        call = make_call("openai_chat", server.address, streamed=False, timeouts=Timeouts(whole_s=20))
        fault = await get_fault(client, call, streamed=False)
    assert (fault.retry_after_s, client.waits) == (30.0, [])


async def test_completed_stream_does_not_wait_for_the_connection() -> None:
    async with FaultyServer([make_stream([STREAMED], SILENCE)]) as server, Client() as client:
        reply = await stream_reply(client, make_call("openai_chat", server.address, streamed=True))
        await server.disconnected.wait()
    assert (text_of(reply), reply.fault) == (LLAMA_TEXT, None)


async def test_connect_timeout_is_unreachable() -> None:
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # fill its backlog
            pending = stack.enter_context(socket.socket())
            pending.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                pending.connect(listener.getsockname())
        async with Client() as client:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            call = make_call("openai_chat", address, streamed=True, retries=ONCE, timeouts=Timeouts(connect_s=0.2))
            fault = await get_fault(client, call, streamed=True)
    assert (fault.code, fault.retryable) == ("unreachable", True)


# --- cancellation ----------------------------------------------------------------------------------------------------


async def test_iterator_close_closes_the_connection() -> None:
    async with FaultyServer([make_stream([STREAMED[:1500]], SILENCE)]) as server, Client() as client:
        events = client.stream(make_call("openai_chat", server.address, streamed=True))
        async for event in events:
            if isinstance(event, TextDelta):
                break
        await events.aclose()
        await asyncio.wait_for(server.disconnected.wait(), 60)
        assert len(server.requests) == 1


@both_modes
async def test_task_cancellation_closes_the_connection(streamed: bool) -> None:
    async with (
        FaultyServer([[make_head(transfer_encoding="chunked"), encode_chunk(STREAMED[:1500]), SILENCE]]) as server,
        Client() as client,
    ):
        call = make_call("openai_chat", server.address, streamed=streamed)
        task = asyncio.ensure_future(get_reply(client, call, streamed=streamed))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.disconnected.wait(), 60)


async def test_call_can_be_cancelled_during_backoff() -> None:
    async with FaultyServer([make_answer(LIMITED, 429, retry_after="50")]) as server, Client() as client:
        task = asyncio.ensure_future(client.send(make_call("openai_chat", server.address, streamed=False)))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
