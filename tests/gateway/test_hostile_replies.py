"""A damaged or unusual reply of a provider is a reply or an error of the API of the client."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import dialects
from dragoman.event import fold
from dragoman.exchange import Reply, StopReason
from dragoman.message import TextBlock, ThinkingBlock, TokenUsage, ToolUseBlock
from tests.conftest import scale
from tests.gateway.in_process import open_gateway
from tests.gateway.raw_gateway import QUESTION, make_request, run_raw_gateway
from tests.gateway.replies import write_stream, write_whole
from tests.gateway.sdk_clients import CLIENTS
from tests.gateway.test_hostile_requests import WRONG, has_own_shape, places, replace
from tests.gateway.test_stream_damage import BODIES
from tests.servers.faulty_server import CLOSE, Answer, ReceivedRequest, make_answer, make_stream

RICH = Reply(
    content=(ThinkingBlock("hm", "c2ln"), TextBlock("Hi"), ToolUseBlock("tu_01", "f", {"a": "b"})),
    stop_reason=StopReason.TOOL_USE,
    model="m",
    usage=TokenUsage(input_tokens=3, output_tokens=1),
)
SSE = ("anthropic", "cohere", "gemini", "openai_chat", "openai_responses")


def make_body(client: str, upstream: str, *, stream: bool) -> bytes:
    in_path = client in ("gemini", "bedrock_converse")
    return msgspec.json.encode({**BODIES[client], **({} if in_path else {"model": f"{upstream}:m", "stream": stream})})


def wrong_replies(upstream: str, portion: int) -> Iterator[tuple[str, bool, bytes]]:
    """Whole replies and streams with one wrong value each: a label, whether it is a stream, and the bytes."""
    whole = msgspec.json.decode(write_whole(upstream, RICH))
    for place, wrong in pick(whole, portion, upstream):
        yield f"{place} {wrong[:20]!r}", False, write(whole, place, wrong)
    if upstream == "bedrock_converse":  # of binary frames
        return
    end = b"\n" if upstream == "ollama" else b"\n\n"
    frames = [frame for frame in write_stream(upstream, RICH).split(end) if b"{" in frame]
    for number, frame in enumerate(frames):
        head, brace, rest = frame.partition(b"{")
        wire = msgspec.json.decode(brace + rest)
        for place, wrong in pick(wire, portion, f"{upstream} {number}"):
            changed = [*frames[:number], head + write(wire, place, wrong), *frames[number + 1 :], b""]
            yield f"{number} {place} {wrong[:20]!r}", True, end.join(changed)


def pick(wire: Any, portion: int, seed: str) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    for place in places(wire):
        for wrong in WRONG:
            if zlib.crc32(f"{seed} {place} {wrong[:20]!r}".encode()) % portion == 0:
                yield place, wrong


def write(wire: Any, place: tuple[Any, ...], wrong: bytes) -> bytes:
    return msgspec.json.encode(replace(wire, place, "?")).replace(b'"?"', wrong)


@pytest.mark.parametrize("upstream", CLIENTS)
async def test_invalid_value_in_reply_is_not_an_internal_error(
    tmp_path: Path, upstream: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    current: Answer = []
    bad = []
    async with open_gateway(tmp_path, lambda _: current, record="durable") as gateway:
        for number, (label, stream, data) in enumerate(wrong_replies(upstream, scale(60, 1))):
            current = make_stream([data]) if stream else make_answer(data)
            for client in (upstream, list(CLIENTS)[number % len(CLIENTS)]):
                body = make_body(client, upstream, stream=stream)
                sent = await gateway.post(client, f"{upstream}:m", body, stream=stream)
                if sent.status >= 400 and not has_own_shape(client, sent.body):
                    bad.append((label, client, sent.status, sent.body[:200]))
                bad += [(label, client, 0, record.getMessage().encode()) for record in caplog.records]
                caplog.clear()
    assert bad == []


@pytest.mark.parametrize(
    ("upstream", "name"),
    [("openai_chat", b'"model":"m"'), ("openai_responses", b'"name":"f"'), ("openai_chat", b'"f"')],
)
@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic"])
async def test_half_a_surrogate_pair_in_a_name_ends_a_stream_as_an_error(
    tmp_path: Path, upstream: str, name: bytes, client: str
) -> None:
    key, colon, _ = name.rpartition(b":")
    data = write_stream(upstream, RICH).replace(name, key + colon + b'"\\ud800"')
    async with open_gateway(tmp_path, lambda _: make_stream([data]), record="durable") as gateway:
        body = make_body(client, upstream, stream=True)
        sent = await gateway.post(client, f"{upstream}:m", body, stream=True)
    if sent.status == 200:
        reader = dialects.load(client).stream_reader()
        assert fold([*reader.feed(sent.body), *reader.close()]).fault is not None
    else:
        assert (sent.status, has_own_shape(client, sent.body)) == (502, True)


async def test_stream_with_invalid_final_response_is_unchanged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head, completed, end = write_stream("openai_responses").rpartition(b"event: response.completed")
    changes = [(b'"model":"m"', b'"model":"\\ud800"'), (b'"id":"resp_dragoman"', b'"id":"\\u0000"')]
    answers = [head + completed + end.replace(*change) for change in changes]
    sent = []
    async with open_gateway(tmp_path, lambda _: make_stream([answers[len(sent)]]), record="durable") as gateway:
        body = make_body("openai_responses", "openai_responses", stream=True)
        for _ in answers:
            sent.append(await gateway.post("openai_responses", "openai_responses:m", body, stream=True))
    assert [response.body for response in sent] == answers
    assert "not recorded" not in caplog.text


def sse_forms(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a stream in the forms that servers and proxies send."""
    yield "line ends of two characters", data.replace(b"\n", b"\r\n")
    yield "old line ends", data.replace(b"\n", b"\r")
    yield "a byte order mark", b"\xef\xbb\xbf" + data
    yield "comments", b": start\n\n" + data.replace(b"\n\n", b"\n\n: ping\n\n")
    yield "other fields", data.replace(b"data:", b":c\nid: 1\nretry: 5\ndata:")
    yield "no space", data.replace(b"data: ", b"data:").replace(b"event: ", b"event:")
    yield "data in several lines", data.replace(b",", b",\ndata: ")
    yield "more blank lines", data.replace(b"\n\n", b"\n\n\n\n")
    yield "no end of the last event", data.rstrip(b"\n")
    yield "a mark of the end", data + b"data: [DONE]\n\n"


@pytest.mark.parametrize("upstream", SSE)
async def test_every_form_of_events_is_read_by_every_client(tmp_path: Path, upstream: str) -> None:
    current: Answer = []
    async with open_gateway(tmp_path, lambda _: current) as gateway:
        for name, data in sse_forms(write_stream(upstream, RICH)):
            for step in (len(data), 7):
                pieces = [data[at : at + step] for at in range(0, len(data), step)]
                for client in (upstream, "anthropic", "bedrock_converse"):
                    current = make_stream(pieces)
                    body = make_body(client, upstream, stream=True)
                    sent = await gateway.post(client, f"{upstream}:m", body, stream=True)
                    reader = dialects.load(client).stream_reader()
                    reply = fold([*reader.feed(sent.body), *reader.close()])
                    assert (sent.status, reply.fault) == (200, None), (name, step, client)
                    texts = [block.text for block in reply.content if isinstance(block, TextBlock)]
                    calls = [block.input for block in reply.content if isinstance(block, ToolUseBlock)]
                    assert (texts, calls) == (["Hi"], [{"a": "b"}]), (name, step, client)


@pytest.mark.parametrize("form", ["no end of the last event", "a mark of the end"])
async def test_last_event_of_stream_is_terminated(tmp_path: Path, form: str) -> None:
    data = dict(sse_forms(write_stream("anthropic")))[form]
    async with open_gateway(tmp_path, lambda _: make_stream([data])) as gateway:
        body = make_body("anthropic", "anthropic", stream=True)
        sent = await gateway.post("anthropic", "anthropic:m", body, stream=True)
        assert sent.body.endswith(b"\n\n")
        path = "/model/anthropic:m/invoke-with-response-stream"
        framed = await gateway.send(path, {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]})
    assert framed.body.count(b":event-type") == write_stream("anthropic").count(b"data:")
    assert b'{"bytes":"eyJ0eXBlIjoibWVzc2FnZV9zdG9wIn0="}' in framed.body[-100:]


@pytest.mark.parametrize("status", ["304 Not Modified", "600 Odd", "999 Odd"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"])
async def test_unexpected_status_is_a_502(tmp_path: Path, status: str, path: str) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()
    question = b'{"model":"o","input":"hi"}' if path == "/v1/embeddings" else QUESTION
    async with run_raw_gateway(tmp_path, [[head]]) as served, served.connect() as client:
        response = await client.ask(make_request(path, question))
    assert response.status == 502
    assert has_own_shape("anthropic" if path == "/v1/messages" else "openai_chat", response.body)
    assert status[:3].encode() in response.body


PAGE = b"<html><body>Bad gateway</body></html>"
FAILURES = {
    "nothing": [CLOSE],
    "half a head": [b"HTTP/1.1 200 OK\r\nContent-Ty", CLOSE],
    "another protocol": [b"SSH-2.0-OpenSSH\r\n\r\n", CLOSE],
    "a bad chunk": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", CLOSE],
    "two lengths": [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}a", CLOSE],
    "no content": [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "a page": make_answer(PAGE, content_type="text/html"),
    "a list": make_answer(b"[]"),
    "a text": make_answer(b'"text"'),
    "another object": make_answer(b"{}"),
    "half a body": [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", CLOSE],
    "a body that is not compressed": make_answer(b"{}", content_encoding="gzip"),
    "a redirect": make_answer(b"", 302, location="http://example.com/login"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("stream", [False, True])
async def test_invalid_reply_is_a_502_in_every_api(tmp_path: Path, failure: str, stream: bool) -> None:
    async with open_gateway(tmp_path, lambda _: FAILURES[failure]) as gateway:
        for client in CLIENTS:
            for upstream in ("anthropic", "openai_responses"):
                body = make_body(client, upstream, stream=stream)
                sent = await gateway.post(client, f"{upstream}:m", body, stream=stream)
                assert sent.status == 502, (client, upstream, sent)
                assert has_own_shape(client, sent.body), (client, upstream, sent)


async def test_interim_responses_and_compressed_replies_are_read(tmp_path: Path) -> None:
    whole = write_whole("anthropic")
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    answers = [[interim, *make_answer(whole)], make_answer(gzip.compress(whole), content_encoding="gzip")]

    def play(_: ReceivedRequest) -> Answer:
        return answers.pop()

    async with open_gateway(tmp_path, play) as gateway:
        for _ in range(2):
            sent = await gateway.post("anthropic", "anthropic:m", make_body("anthropic", "anthropic", stream=False))
            assert (sent.status, sent.body) == (200, whole)
