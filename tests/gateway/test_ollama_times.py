"""Ollama replies from another provider contain only times that the gateway measured."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.gateway import Caller, GatewayRequest, endpoints
from tests.gateway.in_process import open_gateway
from tests.gateway.replies import answer_call, write_stream
from tests.servers.faulty_server import END, Answer, ReceivedRequest, encode_chunk, make_head

BODIES: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}]},
    "/api/generate": {"prompt": "hi"},
}
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.mark.parametrize("path", BODIES)
async def test_reply_has_total_duration(tmp_path: Path, path: str) -> None:
    async with open_gateway(tmp_path, answer_call) as gateway:
        sent = await gateway.send(path, {"model": "anthropic:m", "stream": False, **BODIES[path]})
    wire = msgspec.json.decode(sent.body)
    assert [name for name in TIMES if name in wire] == ["total_duration"]
    assert wire["total_duration"] > 0


@pytest.mark.parametrize("path", BODIES)
async def test_stream_has_eval_duration(tmp_path: Path, path: str) -> None:
    head, end = write_stream("anthropic").split(b"event: content_block_stop")
    is_read = asyncio.Event()

    def play(_: ReceivedRequest) -> Answer:
        start = make_head(content_type="text/event-stream", transfer_encoding="chunked")
        return [start, encode_chunk(head), is_read, encode_chunk(b"event: content_block_stop" + end), END]

    async with open_gateway(tmp_path, play) as gateway:
        found = endpoints.match("POST", path)
        assert found is not None
        body = msgspec.json.encode({"model": "anthropic:m", **BODIES[path]})
        request = GatewayRequest(method="POST", path=path, body=body, caller=Caller("ann", None))
        response = await gateway.gateway.handle(found, request)
        assert not isinstance(response.body, bytes)
        lines = b""
        async for data in response.body:
            lines += data
            is_read.set()
    first, *_, last = map(msgspec.json.decode, lines.splitlines())
    assert [name for name in TIMES if name in first] == []
    assert [name for name in TIMES if name in last] == ["total_duration", "eval_duration"]
    assert 0 < last["eval_duration"] <= last["total_duration"]
    assert first["created_at"] == last["created_at"] > "2026"
