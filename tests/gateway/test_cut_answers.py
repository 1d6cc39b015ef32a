"""The received part of a cut stream is stored. Its estimated usage does not exceed it."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import tokens
from dragoman.message import MessageStatus, TextBlock
from tests.fake_providers import text_part
from tests.gateway.sdk_clients import CLIENTS
from tests.server.conftest import ServerFixture

TEXT = "word " * 400


async def read_stream(server: ServerFixture, path: str, body: dict[str, Any]) -> None:
    async with server.client.post(path, json=body) as response:
        await response.read()


@pytest.mark.parametrize("model", CLIENTS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_cut_reply_is_stored_with_usage_of_received_part(
    gateway_server: ServerFixture, model: str, path: str
) -> None:
    fake = gateway_server.fakes[model]
    size = len(b"".join(fake.fake.write_stream([text_part(TEXT)], "model", fake.issued)))
    fake.cut(size // 2, text_part(TEXT))
    body = {"model": model, "stream": True, "max_tokens": 900, "messages": [{"role": "user", "content": "hi"}]}
    await read_stream(gateway_server, path, body)
    (session,) = await gateway_server.store.list_sessions()
    answer = (await gateway_server.store.read(session.id))[-1].message
    text = "".join(block.text for block in answer.content if isinstance(block, TextBlock))
    assert 0 < len(text) < len(TEXT)
    assert TEXT.startswith(text)
    assert answer.metadata.status is MessageStatus.ERROR
    usage = answer.metadata.usage
    assert usage is not None
    assert usage.estimated
    received = tokens.estimate_content(answer.content, model)
    assert 0 < usage.output_tokens <= max(received, 8), (usage, received)  # 8: reported by a fake at its start
    assert (await gateway_server.store.verify()).is_sound
