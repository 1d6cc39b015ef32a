"""The client: what it sends, how often it asks, how long it waits, and what becomes of what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Self

import msgspec
import pytest

from dragoman import dialects
from dragoman.client import Call, CallLog, Client, Limits, Retries, Timeouts
from dragoman.client.call import build_url, get_http_endpoint
from dragoman.event import MessageComplete, StreamError, TextDelta, fold
from dragoman.exchange import ErrorClass, Fault, Reply
from dragoman.message import TextBlock
from dragoman.settings import Secret
from tests import recorded
from tests.client.calls import KEY, ONCE, Unhurried, call_to, heard, text_of, told
from tests.servers.faulty_server import (
    CLOSE,
    END,
    RESET,
    SILENCE,
    Answer,
    FaultyServer,
    ReceivedRequest,
    encode_chunk,
    make_answer,
    make_head,
    make_stream,
)
from tests.servers.fixtures import LLAMA_WORDS

every_dialect = pytest.mark.parametrize("dialect", dialects.callable_names())
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
WHOLE = json.dumps(recorded.cassette("openai_chat", "text").response.body).encode()
STREAMED = recorded.cassette("openai_chat", "text-streamed").response.stream
LIMITED = b'{"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}'


def good(*, streamed: bool, **headers: str) -> Answer:
    return make_stream([STREAMED], **headers) if streamed else make_answer(WHOLE, **headers)


async def reply_to(client: Client, call: Call, *, streamed: bool) -> Reply:
    return await told(client, call) if streamed else await client.send(call)


async def failed(client: Client, call: Call, *, streamed: bool) -> Fault:
    reply = await reply_to(client, call, streamed=streamed)
    assert reply.fault is not None
    assert reply.fault.provider == call.endpoint.provider.key
    return reply.fault


# --- what is sent ----------------------------------------------------------------------------------------------------


@every_dialect
def test_every_dialect_has_an_http_endpoint(dialect: str) -> None:
    assert get_http_endpoint(dialect).path.startswith("/")


@every_dialect
@both_ways
async def test_request_url_equals_that_of_the_providers_sdk(dialect: str, streamed: bool) -> None:
    async with FaultyServer([make_answer(b"{}", 400)]) as server, Client() as client:
        call = call_to(dialect, server.address, streamed=streamed)
        await reply_to(client, call, streamed=streamed)
    (asked,) = server.requests
    assert asked.path == recorded.cassette(dialect, "text-streamed" if streamed else "text").request.path
    assert asked.json == call.wire
    key = {
        "anthropic": ("x-api-key", KEY),
        "gemini": ("x-goog-api-key", KEY),
        "ollama": None,
    }.get(dialect, ("authorization", f"Bearer {KEY}"))
    carried = [(name, value) for name, value in asked.headers.items() if KEY in value]
    assert carried == ([key] if key else [])
    assert KEY not in asked.path
    assert asked.headers["user-agent"] == "dragoman"


def test_version_in_the_base_url_is_not_repeated() -> None:
    call = call_to("anthropic", "https://relay.example/v1", streamed=False)
    assert build_url(call.endpoint, "m", stream=False) == "https://relay.example/v1/messages"
    call = call_to("gemini", "https://relay.example/v1beta", streamed=False)
    where = build_url(call.endpoint, "models/gemini-2.5-pro", stream=False)
    assert where == "https://relay.example/v1beta/models/gemini-2.5-pro:generateContent"


def test_model_name_cannot_change_the_url() -> None:
    call = call_to("bedrock_converse", "https://aws.example", streamed=False)
    where = build_url(call.endpoint, "../../admin?x=#y", stream=False)
    assert where == "https://aws.example/model/..%2F..%2Fadmin%3Fx%3D%23y/converse"


async def test_stream_flag_mismatch_raises() -> None:
    async with Client() as client:
        with pytest.raises(ValueError, match="stream"):
            await client.send(call_to("openai_chat", "http://127.0.0.1:1", streamed=True))
        with pytest.raises(ValueError, match="complete reply"):
            await heard(client, call_to("ollama", "http://127.0.0.1:1", streamed=False))


@both_ways
async def test_connection_is_reused(streamed: bool) -> None:
    async with FaultyServer([good(streamed=streamed)]) as server, Client() as client:
        for _ in range(5):
            call = call_to("openai_chat", server.address, streamed=streamed)
            assert text_of(await reply_to(client, call, streamed=streamed)) == LLAMA_WORDS
    assert server.connections == 1


async def test_stale_pooled_connection_costs_no_retry() -> None:
    async with FaultyServer([[*make_answer(WHOLE), 0.01, CLOSE]]) as server, Unhurried() as client:
        for _ in range(5):
            journal = CallLog()
            assert (await client.send(call_to("openai_chat", server.address, streamed=False), journal)).fault is None
            assert journal.attempts == 1
    assert client.waits == []


# --- asking again ----------------------------------------------------------------------------------------------------


@both_ways
async def test_rate_limit_is_retried(streamed: bool) -> None:
    told_why: list[tuple[str, float]] = []
    answers = [
        make_answer(LIMITED, 429, retry_after="3", x_request_id="r-1"),
        good(streamed=streamed, x_request_id="r-2"),
    ]
    async with FaultyServer(answers) as server, Unhurried() as client:
        call = call_to(
            "openai_chat",
            server.address,
            streamed=streamed,
            on_retry=lambda fault, seconds: told_why.append((fault.code, seconds)),
        )
        journal = CallLog()
        if streamed:
            assert isinstance([event async for event in client.stream(call, journal)][-1], MessageComplete)
        else:
            assert (await client.send(call, journal)).fault is None
    assert told_why == [("rate_limited", 3.0)]
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
        Unhurried(random_source=lambda: 0.5, now=lambda: noon) as client,
    ):
        fault = await failed(client, call_to("openai_chat", server.address, streamed=False), streamed=False)
    assert (fault.code, fault.error_class) == ("rate_limited", ErrorClass.RATE_LIMIT)
    assert client.waits == waits


async def test_backoff_doubles_up_to_its_limit_with_jitter() -> None:
    retries = Retries(max_retries=7)
    for value, waits in ((0.0, [0.75, 1.5, 3, 6, 12, 24, 30]), (1.0, [1.25, 2.5, 5, 10, 20, 30, 30])):
        async with (
            FaultyServer([make_answer(b"", 503)]) as server,
            Unhurried(random_source=lambda value=value: value) as client,
        ):
            await client.send(call_to("openai_chat", server.address, streamed=False, retries=retries))
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
        async with FaultyServer([page]) as server, Unhurried() as client:
            fault = await failed(client, call_to(dialect, server.address, streamed=streamed), streamed=streamed)
        assert (fault.code, fault.status) == (code, status)
        assert len(server.requests) == tries


async def test_x_should_retry_overrides_the_status() -> None:
    async with (
        FaultyServer([make_answer(b"{}", 400, x_should_retry="true"), make_answer(WHOLE)]) as server,
        Unhurried() as client,
    ):
        assert (await client.send(call_to("openai_chat", server.address, streamed=False))).fault is None
    assert len(client.waits) == 1


async def test_no_retry_after_the_first_event() -> None:
    async with (
        FaultyServer([make_stream([STREAMED[:700]], CLOSE), make_stream([STREAMED])]) as server,
        Unhurried() as client,
    ):
        events = await heard(client, call_to("openai_chat", server.address, streamed=True))
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
    async with FaultyServer([first, make_stream([STREAMED])]) as server, Unhurried() as client:
        reply = await told(client, call_to("openai_chat", server.address, streamed=True))
    assert (text_of(reply), reply.fault, len(client.waits)) == (LLAMA_WORDS, None, 1)


async def test_buffered_bytes_are_read_after_the_connection_breaks() -> None:
    pieces = STREAMED.split(b"data: [DONE]")[0].rsplit(b'data: {"choices":[{"finish_reason":"stop"', 1)[0]
    half = pieces.index(b"Project")
    answers = [make_stream([pieces[:half]], 0.05, encode_chunk(pieces[half:]), CLOSE)]
    async with FaultyServer(answers) as server, Client() as client:
        events = []
        async for event in client.stream(call_to("openai_chat", server.address, streamed=True)):
            if not events:
                await asyncio.sleep(0.3)  # the rest comes meanwhile, and the end of the connection
            events.append(event)
    reply = fold(events)
    assert reply.fault is not None
    assert (reply.fault.code, text_of(reply)) == ("stream_broken", LLAMA_WORDS)


async def test_error_in_the_first_event_is_retried_and_later_ones_are_not() -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    data = recorded.cassette("anthropic", "text-streamed").response.stream
    async with (
        FaultyServer([make_stream([error]), make_stream([data[:900] + b"\n\n" + error])]) as server,
        Unhurried() as client,
    ):
        reply = await told(client, call_to("anthropic", server.address, streamed=True))
    assert reply.fault is not None
    assert len(client.waits) == 1
    assert len(server.requests) == 2


# --- timeouts --------------------------------------------------------------------------------------------------------

SHORT = Timeouts(connect_s=60, first_byte_s=1, silence_s=1, whole_s=60)


async def test_stream_without_first_byte_times_out() -> None:
    for silent in ([SILENCE], [make_head(transfer_encoding="chunked"), SILENCE]):
        async with FaultyServer([silent]) as server, Client() as client:
            call = call_to("openai_chat", server.address, streamed=True, retries=ONCE, timeouts=SHORT)
            fault = await failed(client, call, streamed=True)
            assert (fault.code, fault.error_class, fault.retryable) == ("timeout", ErrorClass.NETWORK, True)
            await server.disconnected.wait()


async def test_silent_stream_is_broken_and_its_text_kept() -> None:
    async with FaultyServer([make_stream([STREAMED[:1500]], SILENCE)]) as server, Client() as client:
        call = call_to("openai_chat", server.address, streamed=True, timeouts=SHORT)
        reply = await told(client, call)
        await server.disconnected.wait()
    assert reply.fault is not None
    assert reply.fault.code == "stream_broken"
    assert LLAMA_WORDS.startswith(text_of(reply))
    assert text_of(reply)


async def test_sse_comments_keep_a_stream_alive() -> None:
    beats = [part for _ in range(12) for part in (0.1, encode_chunk(b": still here\n\n"))]
    answers = [[make_head(transfer_encoding="chunked"), *beats, encode_chunk(STREAMED), END]]
    async with FaultyServer(answers) as server, Client() as client:
        timeouts = Timeouts(first_byte_s=1, silence_s=1)
        reply = await told(
            client, call_to("openai_chat", server.address, streamed=True, timeouts=timeouts, retries=ONCE)
        )
    assert (text_of(reply), reply.fault) == (LLAMA_WORDS, None)


async def test_slow_reader_does_not_time_out() -> None:
    half = len(STREAMED) // 2
    async with FaultyServer([make_stream([STREAMED[:half], STREAMED[half:]])]) as server, Client() as client:
        events = []
        async for event in client.stream(call_to("openai_chat", server.address, streamed=True, timeouts=SHORT)):
            events.append(event)
            if len(events) == 2:
                await asyncio.sleep(1.2)  # longer than the stream may be silent
    assert isinstance(events[-1], MessageComplete)


@both_ways
async def test_total_timeout_ends_the_call_without_retry(streamed: bool) -> None:
    drip = [part for byte in range(400) for part in (encode_chunk(STREAMED[byte : byte + 1]), 0.02)]
    async with FaultyServer([[make_head(transfer_encoding="chunked"), *drip]]) as server, Client() as client:
        timeouts = Timeouts(whole_s=0.3)
        call = call_to("openai_chat", server.address, streamed=streamed, timeouts=timeouts)
        fault = await failed(client, call, streamed=streamed)
        await server.disconnected.wait()
    assert fault.code == "timeout"
    assert len(server.requests) == 1


async def test_retry_delay_beyond_the_total_timeout_is_not_started() -> None:
    async with FaultyServer([make_answer(LIMITED, 429, retry_after="30")]) as server, Unhurried() as client:
        call = call_to("openai_chat", server.address, streamed=False, timeouts=Timeouts(whole_s=20))
        fault = await failed(client, call, streamed=False)
    assert (fault.retry_after_s, client.waits) == (30.0, [])


async def test_completed_stream_does_not_wait_for_the_connection() -> None:
    async with FaultyServer([make_stream([STREAMED], SILENCE)]) as server, Client() as client:
        reply = await told(client, call_to("openai_chat", server.address, streamed=True))
        await server.disconnected.wait()
    assert (text_of(reply), reply.fault) == (LLAMA_WORDS, None)


async def test_connect_timeout_is_unreachable() -> None:
    with socket.socket() as deaf, contextlib.ExitStack() as waiting:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):  # until nobody else gets into its queue
            knocking = waiting.enter_context(socket.socket())
            knocking.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                knocking.connect(deaf.getsockname())
        async with Client() as client:
            address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            call = call_to("openai_chat", address, streamed=True, retries=ONCE, timeouts=Timeouts(connect_s=0.2))
            fault = await failed(client, call, streamed=True)
    assert (fault.code, fault.retryable) == ("unreachable", True)


# --- cancelling ------------------------------------------------------------------------------------------------------


async def test_iterator_close_closes_the_connection() -> None:
    async with FaultyServer([make_stream([STREAMED[:1500]], SILENCE)]) as server, Client() as client:
        events = client.stream(call_to("openai_chat", server.address, streamed=True))
        async for event in events:
            if isinstance(event, TextDelta):
                break
        await events.aclose()
        await asyncio.wait_for(server.disconnected.wait(), 60)
        assert len(server.requests) == 1


@both_ways
async def test_task_cancellation_closes_the_connection(streamed: bool) -> None:
    async with (
        FaultyServer([[make_head(transfer_encoding="chunked"), encode_chunk(STREAMED[:1500]), SILENCE]]) as server,
        Client() as client,
    ):
        call = call_to("openai_chat", server.address, streamed=streamed)
        task = asyncio.ensure_future(reply_to(client, call, streamed=streamed))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.disconnected.wait(), 60)


async def test_call_can_be_cancelled_during_backoff() -> None:
    async with FaultyServer([make_answer(LIMITED, 429, retry_after="50")]) as server, Client() as client:
        task = asyncio.ensure_future(client.send(call_to("openai_chat", server.address, streamed=False)))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# --- what else can come ----------------------------------------------------------------------------------------------


@every_dialect
@both_ways
async def test_html_with_status_200_is_a_fault(dialect: str, streamed: bool) -> None:
    page = f"<!doctype html><p>Sign in, {KEY}</p>".encode()
    async with FaultyServer([make_answer(page, content_type="text/html")]) as server, Client() as client:
        call = call_to(dialect, server.address, streamed=streamed, retries=ONCE)
        reply = await reply_to(client, call, streamed=streamed)
    assert reply.fault is not None
    assert reply.fault.code == "bad_content_type"
    assert KEY not in repr(reply)
    if not streamed:
        assert reply.provider_raw is not None
        assert "Sign in" in reply.provider_raw["head"]


@every_dialect
@both_ways
async def test_empty_body_with_status_200_is_a_fault(dialect: str, streamed: bool) -> None:
    async with FaultyServer([make_answer(b"")]) as server, Client() as client:
        fault = await failed(
            client, call_to(dialect, server.address, streamed=streamed, retries=ONCE), streamed=streamed
        )
    assert fault.code == "empty_response"


@every_dialect
@both_ways
async def test_error_with_status_200_is_a_fault(dialect: str, streamed: bool) -> None:
    wire = dialects.load(dialect).write_error(Fault(code="server_error", message="broken")).wire
    async with FaultyServer([make_answer(json.dumps(wire).encode())]) as server, Client() as client:
        call = call_to(dialect, server.address, streamed=streamed, retries=ONCE)
        reply = await reply_to(client, call, streamed=streamed)
    assert reply.fault is not None
    assert reply.content == ()


@both_ways
async def test_compressed_response_is_decoded_and_damaged_one_is_a_fault(streamed: bool) -> None:
    packed = gzip.compress(STREAMED if streamed else WHOLE)
    for data, is_good in ((packed, True), (packed[: len(packed) // 2], False), (b"\x1f\x8bno", False)):
        async with FaultyServer([make_answer(data, content_encoding="gzip")]) as server, Client() as client:
            call = call_to("openai_chat", server.address, streamed=streamed, retries=ONCE)
            reply = await reply_to(client, call, streamed=streamed)
        assert (reply.fault is None) == is_good
        assert reply.fault is None or reply.fault.code in ("stream_broken", "stream_incomplete", "bad_content_type")


@both_ways
async def test_response_beyond_the_limit_is_rejected(streamed: bool) -> None:
    bomb = make_answer(gzip.compress(b"data: " + b"x" * 50_000_000), content_encoding="gzip")
    limits = Limits(answer_bytes=200, stream_bytes=200)
    for sent in (good(streamed=streamed), bomb):
        async with FaultyServer([sent]) as server, Client(limits=limits) as client:
            fault = await failed(client, call_to("openai_chat", server.address, streamed=streamed), streamed=streamed)
        assert (fault.code, fault.retryable) == ("too_large", False)


async def test_non_http_response_is_a_broken_connection() -> None:
    for garbage in (b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 banana\r\n\r\n", b"\x00" * 64):
        async with FaultyServer([[garbage, CLOSE]]) as server, Client() as client:
            fault = await failed(
                client, call_to("openai_chat", server.address, streamed=True, retries=ONCE), streamed=True
            )
        assert (fault.code, fault.error_class) == ("stream_broken", ErrorClass.NETWORK)


async def test_refused_connection_is_unreachable() -> None:
    async with FaultyServer([[CLOSE]]) as server:
        gone = server.address
    for address in (gone, "http://no-such-host.invalid"):
        async with Unhurried() as client:
            fault = await failed(client, call_to("openai_chat", address, streamed=True), streamed=True)
        assert (fault.code, fault.error_class, fault.retryable) == ("unreachable", ErrorClass.NETWORK, True)
        assert len(client.waits) == 2


# --- the key ---------------------------------------------------------------------------------------------------------


@both_ways
async def test_redirect_to_another_origin_is_not_followed(streamed: bool) -> None:
    async with FaultyServer([make_answer(WHOLE)]) as elsewhere, Client() as client:
        for status in (301, 302, 303, 307, 308):
            for location in (
                f"{elsewhere.address}/v1/chat/completions",
                "https://127.0.0.1:1/",
                "//evil.example/",
                "::",
            ):
                async with FaultyServer([make_answer(b"", status, location=location)]) as server:
                    call = call_to("openai_chat", server.address, streamed=streamed)
                    fault = await failed(client, call, streamed=streamed)
                assert (fault.code, fault.retryable) == ("bad_content_type", False)
    assert elsewhere.requests == []


async def test_redirect_within_the_origin_is_followed_if_the_method_is_preserved() -> None:
    def elsewhere(asked: ReceivedRequest) -> Answer:
        return make_answer(WHOLE) if asked.path == "/there" else make_answer(b"", 308, location="/there")

    async with FaultyServer(elsewhere) as server, Client() as client:
        assert (await client.send(call_to("openai_chat", server.address, streamed=False))).fault is None
    assert [asked.path for asked in server.requests] == ["/v1/chat/completions", "/there"]
    assert server.requests[1].json == server.requests[0].json
    for status, tries in ((302, 1), (308, 4)):  # another question, and one without end
        async with FaultyServer([make_answer(b"", status, location="/there")]) as server, Client() as client:
            fault = await failed(client, call_to("openai_chat", server.address, streamed=False), streamed=False)
        assert (fault.code, len(server.requests)) == ("bad_content_type", tries)


@every_dialect
@both_ways
async def test_api_key_is_only_in_its_header(dialect: str, streamed: bool, caplog: pytest.LogCaptureFixture) -> None:
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "type": "auth"}, "message": KEY})
    with caplog.at_level(logging.DEBUG):
        async with FaultyServer([make_answer(echo.encode(), 401)]) as server, Client() as client:
            call = call_to(dialect, server.address, streamed=streamed)
            call = msgspec.structs.replace(
                call, endpoint=msgspec.structs.replace(call.endpoint, key=Secret(KEY), key_origin="test")
            )
            reply = await reply_to(client, call, streamed=streamed)
    assert reply.fault is not None
    assert reply.fault.code == "unauthorized"
    for shown in (repr(reply), repr(call), str(call.endpoint), caplog.text):
        assert KEY not in shown


async def test_untrusted_certificate_is_rejected_without_retry(tmp_path: Any) -> None:
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "k.pem",
        "-out",
        "c.pem",
        *subject,
    ]
    try:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "localhost", 0, ssl=context)
    async with server, Unhurried() as client:
        port = server.sockets[0].getsockname()[1]
        call = call_to("openai_chat", f"https://localhost:{port}", streamed=True)
        fault = await failed(client, call, streamed=True)
    assert (fault.code, fault.retryable, client.waits) == ("unreachable", False, [])


async def test_environment_proxies_are_used_except_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        FaultyServer([make_answer(WHOLE)]) as proxy,
        FaultyServer([make_answer(WHOLE)]) as direct,
        Client() as client,
    ):
        monkeypatch.setenv("http_proxy", proxy.address.replace("//", "//me:secret@"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        far = call_to("openai_chat", "http://llm.example", streamed=False)
        assert (await client.send(far)).fault is None
        assert (await client.send(call_to("openai_chat", direct.address, streamed=False))).fault is None
    (asked,) = proxy.requests
    assert asked.path == "http://llm.example/v1/chat/completions"
    assert asked.headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert len(direct.requests) == 1


# --- the room --------------------------------------------------------------------------------------------------------


async def test_rate_limits_and_request_ids_are_logged() -> None:
    headers = {"anthropic_ratelimit_requests_remaining": "7", "request_id": "req_1", "server": "x"}
    data = recorded.cassette("anthropic", "text-streamed").response.stream
    async with FaultyServer([make_stream([data], **headers)]) as server, Client() as client:
        journal = CallLog()
        events = [event async for event in client.stream(call_to("anthropic", server.address, streamed=True), journal)]
    assert isinstance(events[-1], MessageComplete)
    assert journal.request_id == "req_1"
    assert journal.headers == {"anthropic-ratelimit-requests-remaining": "7", "request-id": "req_1"}
    assert journal.first_byte_ms is not None


async def test_stream_fault_contains_the_request_id() -> None:
    async with FaultyServer([make_stream([STREAMED[:900]], x_request_id="r-9")]) as server, Client() as client:
        fault = await failed(client, call_to("openai_chat", server.address, streamed=True), streamed=True)
    assert fault.request_id == "r-9"


def test_package_imports_no_http_library_before_the_first_call() -> None:
    script = "import sys, dragoman.client, dragoman.local, dragoman.settings; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_concurrent_streams_are_independent() -> None:
    def own_words(asked: ReceivedRequest) -> Answer:
        number = asked.headers["x-number"]
        pieces = [piece + b"\n\n" for piece in STREAMED.replace(b'" Foo"', f'" {number}"'.encode()).split(b"\n\n")[:-1]]
        return make_stream([part for piece in pieces for part in (piece[:9], piece[9:])])

    async def one(client: Client, address: str, number: int) -> None:
        call = call_to("openai_chat", address, streamed=True)
        endpoint = msgspec.structs.replace(call.endpoint, headers={"x-number": str(number)})
        reply = await told(client, msgspec.structs.replace(call, endpoint=endpoint))
        assert text_of(reply) == LLAMA_WORDS.replace("Foo", str(number))

    async with FaultyServer(own_words) as server, Client() as client:
        await asyncio.gather(*(one(client, server.address, number) for number in range(150)))
    assert len(server.requests) == 150


async def test_closed_client_can_be_reused() -> None:
    async with FaultyServer([make_answer(WHOLE)]) as server:
        client = Client()
        for _ in range(2):
            assert (await client.send(call_to("openai_chat", server.address, streamed=False))).fault is None
            await client.close()
        await client.close()
    assert server.connections == 2


async def test_oversized_event_ends_the_stream_and_earlier_events_are_kept() -> None:
    def event(text: str) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"

    sent = make_stream([event("Hello"), event("x" * 500_000)])
    async with FaultyServer([sent]) as server, Client(limits=Limits(line_bytes=100_000)) as client:
        reply = await told(client, call_to("openai_chat", server.address, streamed=True))
    assert reply.fault is not None
    assert (reply.fault.code, reply.fault.retryable) == ("too_large", False)
    assert [block.text for block in reply.content if isinstance(block, TextBlock)] == ["Hello"]


class BufferedResponse:
    """A response whose body has arrived completely, so that reading never waits."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = [*pieces, b""]

    async def post(self, *_: Any, **__: Any) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def read_chunk(self, _: float | None) -> bytes:
        return self._pieces.pop(0)


@pytest.mark.parametrize("size", [100, 500_000])
async def test_other_tasks_run_while_a_buffered_stream_is_read(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b": x\n\n" * 100_000
    arrived = BufferedResponse(*(data[at : at + size] for at in range(0, len(data), size)))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Client() as client:
        monkeypatch.setattr(client, "transport", lambda: arrived)
        counting = asyncio.create_task(count_turns())
        await told(client, call_to("openai_chat", "http://127.0.0.1:9", streamed=True, retries=ONCE))
        counting.cancel()
    assert turns >= len(data) // (32 * 1024)
