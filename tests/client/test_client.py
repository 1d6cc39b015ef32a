"""Tests of the client: requests, unexpected responses, the API key, logs and limits."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import ssl
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Self

import msgspec
import pytest

from dragoman import dialects
from dragoman.client import CallLog, Client, Limits
from dragoman.client.call import build_url, get_http_endpoint
from dragoman.event import MessageComplete
from dragoman.exchange import ErrorClass, Fault
from dragoman.message import TextBlock
from dragoman.settings import Secret
from tests import recordings
from tests.client.answers import STREAMED, WHOLE, both_modes, every_dialect, get_fault, get_reply, make_success
from tests.client.calls import KEY, ONCE, NoSleepClient, make_call, read_events, stream_reply, text_of
from tests.servers.faulty_server import (
    CLOSE,
    Answer,
    FaultyServer,
    ReceivedRequest,
    make_answer,
    make_stream,
)
from tests.servers.fixtures import LLAMA_TEXT

# --- requests --------------------------------------------------------------------------------------------------------


@every_dialect
def test_every_dialect_has_an_http_endpoint(dialect: str) -> None:
    assert get_http_endpoint(dialect).path.startswith("/")


@every_dialect
@both_modes
async def test_request_url_equals_that_of_the_providers_sdk(dialect: str, streamed: bool) -> None:
    async with FaultyServer([make_answer(b"{}", 400)]) as server, Client() as client:
        call = make_call(dialect, server.address, streamed=streamed)
        await get_reply(client, call, streamed=streamed)
    (request,) = server.requests
    assert request.path == recordings.cassette(dialect, "text-streamed" if streamed else "text").request.path
    assert request.json == call.wire
    key = {
        "anthropic": ("x-api-key", KEY),
        "gemini": ("x-goog-api-key", KEY),
        "ollama": None,
    }.get(dialect, ("authorization", f"Bearer {KEY}"))
    key_headers = [(name, value) for name, value in request.headers.items() if KEY in value]
    assert key_headers == ([key] if key else [])
    assert KEY not in request.path
    assert request.headers["user-agent"] == "dragoman"


def test_version_in_the_base_url_is_not_repeated() -> None:
    call = make_call("anthropic", "https://relay.example/v1", streamed=False)
    assert build_url(call.endpoint, "m", stream=False) == "https://relay.example/v1/messages"
    call = make_call("gemini", "https://relay.example/v1beta", streamed=False)
    url = build_url(call.endpoint, "models/gemini-2.5-pro", stream=False)
    assert url == "https://relay.example/v1beta/models/gemini-2.5-pro:generateContent"


def test_model_name_cannot_change_the_url() -> None:
    call = make_call("bedrock_converse", "https://aws.example", streamed=False)
    url = build_url(call.endpoint, "../../admin?x=#y", stream=False)
    assert url == "https://aws.example/model/..%2F..%2Fadmin%3Fx%3D%23y/converse"


async def test_stream_flag_mismatch_raises() -> None:
    async with Client() as client:
        with pytest.raises(ValueError, match="stream"):
            await client.send(make_call("openai_chat", "http://127.0.0.1:1", streamed=True))
        with pytest.raises(ValueError, match="complete reply"):
            await read_events(client, make_call("ollama", "http://127.0.0.1:1", streamed=False))


@both_modes
async def test_connection_is_reused(streamed: bool) -> None:
    async with FaultyServer([make_success(streamed=streamed)]) as server, Client() as client:
        for _ in range(5):
            call = make_call("openai_chat", server.address, streamed=streamed)
            assert text_of(await get_reply(client, call, streamed=streamed)) == LLAMA_TEXT
    assert server.connections == 1


async def test_stale_pooled_connection_costs_no_retry() -> None:
    async with FaultyServer([[*make_answer(WHOLE), 0.01, CLOSE]]) as server, NoSleepClient() as client:
        for _ in range(5):
            journal = CallLog()
            assert (await client.send(make_call("openai_chat", server.address, streamed=False), journal)).fault is None
            assert journal.attempts == 1
    assert client.waits == []


# --- unexpected responses --------------------------------------------------------------------------------------------


@every_dialect
@both_modes
async def test_html_with_status_200_is_a_fault(dialect: str, streamed: bool) -> None:
    page = f"<!doctype html><p>Sign in, {KEY}</p>".encode()
    async with FaultyServer([make_answer(page, content_type="text/html")]) as server, Client() as client:
        call = make_call(dialect, server.address, streamed=streamed, retries=ONCE)
        reply = await get_reply(client, call, streamed=streamed)
    assert reply.fault is not None
    assert reply.fault.code == "bad_content_type"
    assert KEY not in repr(reply)
    if not streamed:
        assert reply.provider_raw is not None
        assert "Sign in" in reply.provider_raw["head"]


@every_dialect
@both_modes
async def test_empty_body_with_status_200_is_a_fault(dialect: str, streamed: bool) -> None:
    async with FaultyServer([make_answer(b"")]) as server, Client() as client:
        fault = await get_fault(
            client, make_call(dialect, server.address, streamed=streamed, retries=ONCE), streamed=streamed
        )
    assert fault.code == "empty_response"


@every_dialect
@both_modes
async def test_error_with_status_200_is_a_fault(dialect: str, streamed: bool) -> None:
    wire = dialects.load(dialect).write_error(Fault(code="server_error", message="broken")).wire
    async with FaultyServer([make_answer(json.dumps(wire).encode())]) as server, Client() as client:
        call = make_call(dialect, server.address, streamed=streamed, retries=ONCE)
        reply = await get_reply(client, call, streamed=streamed)
    assert reply.fault is not None
    assert reply.content == ()


@both_modes
async def test_gzip_response_is_decoded_and_damaged_gzip_is_a_fault(streamed: bool) -> None:
    packed = gzip.compress(STREAMED if streamed else WHOLE)
    for data, is_good in ((packed, True), (packed[: len(packed) // 2], False), (b"\x1f\x8bno", False)):
        async with FaultyServer([make_answer(data, content_encoding="gzip")]) as server, Client() as client:
            call = make_call("openai_chat", server.address, streamed=streamed, retries=ONCE)
            reply = await get_reply(client, call, streamed=streamed)
        assert (reply.fault is None) == is_good
        assert reply.fault is None or reply.fault.code in ("stream_broken", "stream_incomplete", "bad_content_type")


@both_modes
async def test_response_beyond_the_limit_is_rejected(streamed: bool) -> None:
    bomb = make_answer(gzip.compress(b"data: " + b"x" * 50_000_000), content_encoding="gzip")
    limits = Limits(answer_bytes=200, stream_bytes=200)
    for response in (make_success(streamed=streamed), bomb):
        async with FaultyServer([response]) as server, Client(limits=limits) as client:
            fault = await get_fault(
                client, make_call("openai_chat", server.address, streamed=streamed), streamed=streamed
            )
        assert (fault.code, fault.retryable) == ("too_large", False)


async def test_non_http_response_is_a_broken_connection() -> None:
    for garbage in (b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 banana\r\n\r\n", b"\x00" * 64):
        async with FaultyServer([[garbage, CLOSE]]) as server, Client() as client:
            fault = await get_fault(
                client, make_call("openai_chat", server.address, streamed=True, retries=ONCE), streamed=True
            )
        assert (fault.code, fault.error_class) == ("stream_broken", ErrorClass.NETWORK)


async def test_refused_connection_is_unreachable() -> None:
    async with FaultyServer([[CLOSE]]) as server:
        closed_address = server.address
    for address in (closed_address, "http://no-such-host.invalid"):
        async with NoSleepClient() as client:
            fault = await get_fault(client, make_call("openai_chat", address, streamed=True), streamed=True)
        assert (fault.code, fault.error_class, fault.retryable) == ("unreachable", ErrorClass.NETWORK, True)
        assert len(client.waits) == 2


# --- API key ---------------------------------------------------------------------------------------------------------


@both_modes
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
                    call = make_call("openai_chat", server.address, streamed=streamed)
                    fault = await get_fault(client, call, streamed=streamed)
                assert (fault.code, fault.retryable) == ("bad_content_type", False)
    assert elsewhere.requests == []


async def test_redirect_within_origin_is_followed_if_method_is_preserved() -> None:
    def redirect(request: ReceivedRequest) -> Answer:
        return make_answer(WHOLE) if request.path == "/there" else make_answer(b"", 308, location="/there")

    async with FaultyServer(redirect) as server, Client() as client:
        assert (await client.send(make_call("openai_chat", server.address, streamed=False))).fault is None
    assert [request.path for request in server.requests] == ["/v1/chat/completions", "/there"]
    assert server.requests[1].json == server.requests[0].json
    for status, tries in ((302, 1), (308, 4)):  # another method, and an endless redirect
        async with FaultyServer([make_answer(b"", status, location="/there")]) as server, Client() as client:
            fault = await get_fault(client, make_call("openai_chat", server.address, streamed=False), streamed=False)
        assert (fault.code, len(server.requests)) == ("bad_content_type", tries)


@every_dialect
@both_modes
async def test_api_key_is_only_in_its_header(dialect: str, streamed: bool, caplog: pytest.LogCaptureFixture) -> None:
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "type": "auth"}, "message": KEY})
    with caplog.at_level(logging.DEBUG):
        async with FaultyServer([make_answer(echo.encode(), 401)]) as server, Client() as client:
            call = make_call(dialect, server.address, streamed=streamed)
            call = msgspec.structs.replace(
                call, endpoint=msgspec.structs.replace(call.endpoint, key=Secret(KEY), key_origin="test")
            )
            reply = await get_reply(client, call, streamed=streamed)
    assert reply.fault is not None
    assert reply.fault.code == "unauthorized"
    for output in (repr(reply), repr(call), str(call.endpoint), caplog.text):
        assert KEY not in output


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
    async with server, NoSleepClient() as client:
        port = server.sockets[0].getsockname()[1]
        call = make_call("openai_chat", f"https://localhost:{port}", streamed=True)
        fault = await get_fault(client, call, streamed=True)
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
        remote_call = make_call("openai_chat", "http://llm.example", streamed=False)
        assert (await client.send(remote_call)).fault is None
        assert (await client.send(make_call("openai_chat", direct.address, streamed=False))).fault is None
    (request,) = proxy.requests
    assert request.path == "http://llm.example/v1/chat/completions"
    assert request.headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert len(direct.requests) == 1


# --- logs, limits and concurrency ------------------------------------------------------------------------------------


async def test_rate_limits_and_request_ids_are_logged() -> None:
    headers = {"anthropic_ratelimit_requests_remaining": "7", "request_id": "req_1", "server": "x"}
    data = recordings.cassette("anthropic", "text-streamed").response.stream
    async with FaultyServer([make_stream([data], **headers)]) as server, Client() as client:
        journal = CallLog()
        events = [
            event async for event in client.stream(make_call("anthropic", server.address, streamed=True), journal)
        ]
    assert isinstance(events[-1], MessageComplete)
    assert journal.request_id == "req_1"
    assert journal.headers == {"anthropic-ratelimit-requests-remaining": "7", "request-id": "req_1"}
    assert journal.first_byte_ms is not None


async def test_stream_fault_contains_the_request_id() -> None:
    async with FaultyServer([make_stream([STREAMED[:900]], x_request_id="r-9")]) as server, Client() as client:
        fault = await get_fault(client, make_call("openai_chat", server.address, streamed=True), streamed=True)
    assert fault.request_id == "r-9"


def test_package_imports_no_http_library_before_the_first_call() -> None:
    script = "import sys, dragoman.client, dragoman.local, dragoman.settings; print('aiohttp' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "False"


async def test_concurrent_streams_are_independent() -> None:
    def answer_with_number(request: ReceivedRequest) -> Answer:
        number = request.headers["x-number"]
        pieces = [piece + b"\n\n" for piece in STREAMED.replace(b'" Foo"', f'" {number}"'.encode()).split(b"\n\n")[:-1]]
        return make_stream([part for piece in pieces for part in (piece[:9], piece[9:])])

    async def run_stream(client: Client, address: str, number: int) -> None:
        call = make_call("openai_chat", address, streamed=True)
        endpoint = msgspec.structs.replace(call.endpoint, headers={"x-number": str(number)})
        reply = await stream_reply(client, msgspec.structs.replace(call, endpoint=endpoint))
        assert text_of(reply) == LLAMA_TEXT.replace("Foo", str(number))

    async with FaultyServer(answer_with_number) as server, Client() as client:
        await asyncio.gather(*(run_stream(client, server.address, number) for number in range(150)))
    assert len(server.requests) == 150


async def test_closed_client_can_be_reused() -> None:
    async with FaultyServer([make_answer(WHOLE)]) as server:
        client = Client()
        for _ in range(2):
            assert (await client.send(make_call("openai_chat", server.address, streamed=False))).fault is None
            await client.close()
        await client.close()
    assert server.connections == 2


async def test_oversized_event_ends_stream_and_earlier_events_remain() -> None:
    def encode_event(text: str) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"

    response = make_stream([encode_event("Hello"), encode_event("x" * 500_000)])
    async with FaultyServer([response]) as server, Client(limits=Limits(line_bytes=100_000)) as client:
        reply = await stream_reply(client, make_call("openai_chat", server.address, streamed=True))
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
    response = BufferedResponse(*(data[at : at + size] for at in range(0, len(data), size)))
    iterations = 0

    async def count_iterations() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    async with Client() as client:
        monkeypatch.setattr(client, "transport", lambda: response)
        counter = asyncio.create_task(count_iterations())
        await stream_reply(client, make_call("openai_chat", "http://127.0.0.1:9", streamed=True, retries=ONCE))
        counter.cancel()
    assert iterations >= len(data) // (32 * 1024)
