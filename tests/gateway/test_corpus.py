"""Recorded requests and replies pass the endpoint of their dialect unchanged."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import dialects
from dragoman.event import fold
from tests.corpus import records
from tests.gateway.in_process import open_gateway
from tests.gateway.sdk_clients import CLIENTS
from tests.servers.faulty_server import Answer, ReceivedRequest, make_answer, make_stream

STREAM_TYPES = {"bedrock_converse": "application/vnd.amazon.eventstream", "ollama": "application/x-ndjson"}
MODEL_IN_PATH = ("bedrock_converse", "gemini")  # the path contains the model and whether the reply is a stream


def is_stream(dialect: str, record: dict[str, Any]) -> bool:
    """Return whether a recorded request asks for a stream."""
    if dialect in MODEL_IN_PATH:
        return bool(record.get("stream"))
    value = record["request"].get("stream")
    return value is True or (dialect == "ollama" and value is None)


def make_reply(dialect: str, record: dict[str, Any]) -> tuple[Answer, bytes, int]:
    """Return the answer of the upstream, its bytes and its status."""
    if record.get("stream"):
        binary = record.get("stream_b64")
        data = base64.b64decode(binary) if binary else record["stream"].encode("utf-8", "surrogatepass")
        return make_stream([data], content_type=STREAM_TYPES.get(dialect, "text/event-stream")), data, 200
    status = record.get("status") or 200
    data = msgspec.json.encode(record["response"])
    return make_answer(data, status), data, status


def is_sound(dialect: str, data: bytes) -> bool:
    reader = dialects.load(dialect).stream_reader()
    return fold([*reader.feed(data), *reader.close()]).fault is None


def is_sparse(dialect: str, data: bytes) -> bool:
    """Return whether a response lacks fields that the gateway adds."""
    return (
        dialect == "openai_responses" and b'"object":"response"' in data.replace(b" ", b"") and b'"tools"' not in data
    )


@pytest.mark.parametrize("dialect", CLIENTS)
async def test_recorded_requests_and_replies_pass_unchanged(tmp_path: Path, dialect: str) -> None:
    current: Answer = []

    def play(_: ReceivedRequest) -> Answer:
        return current

    requests = replies = streams = 0
    async with open_gateway(tmp_path, play, [dialect]) as gateway:
        for _, record in records(dialect, part="request", sample=60):
            wire = record["request"]
            if not isinstance(record.get("response"), dict) and not record.get("stream"):
                continue
            current, data, status = make_reply(dialect, record)
            body = msgspec.json.encode(wire)
            name = str(wire.get("model") or "model-x")
            stream = is_stream(dialect, record)
            if stream is not bool(record.get("stream")) and status == 200:
                continue  # the recording has only the response or only the stream
            sent = await gateway.post(dialect, name if dialect not in MODEL_IN_PATH else "model-x", body, stream=stream)
            if not gateway.upstream.requests:
                assert sent.status == 400, (record["id"], sent)
                continue
            (received,) = gateway.upstream.requests
            gateway.upstream.requests.clear()
            assert received.body == body, record["id"]
            requests += 1
            if is_sparse(dialect, data):
                assert sent.status == status, record["id"]
            elif not stream or status != 200:
                replies += 1
                assert (sent.status, sent.body) == (status, data), record["id"]
            elif is_sound(dialect, data):
                streams += 1
                assert (sent.status, sent.body) == (200, data), record["id"]
    assert requests > 20
    assert replies
    assert streams
