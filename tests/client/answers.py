"""Responses of a server for the tests of the client, and calls that expect a reply or a fault."""

from __future__ import annotations

import json

import pytest

from dragoman import dialects
from dragoman.client import Call, Client
from dragoman.exchange import Fault, Reply
from tests import recordings
from tests.client.calls import stream_reply
from tests.servers.faulty_server import (
    Answer,
    make_answer,
    make_stream,
)

every_dialect = pytest.mark.parametrize("dialect", dialects.callable_names())
both_modes = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
WHOLE = json.dumps(recordings.cassette("openai_chat", "text").response.body).encode()
STREAMED = recordings.cassette("openai_chat", "text-streamed").response.stream
LIMITED = b'{"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}'


def make_success(*, streamed: bool, **headers: str) -> Answer:
    return make_stream([STREAMED], **headers) if streamed else make_answer(WHOLE, **headers)


async def get_reply(client: Client, call: Call, *, streamed: bool) -> Reply:
    return await stream_reply(client, call) if streamed else await client.send(call)


async def get_fault(client: Client, call: Call, *, streamed: bool) -> Fault:
    reply = await get_reply(client, call, streamed=streamed)
    assert reply.fault is not None
    assert reply.fault.provider == call.endpoint.provider.key
    return reply.fault
