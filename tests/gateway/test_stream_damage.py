"""Damaged streams of every dialect are errors for clients of every dialect. Complete streams are not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dragoman import dialects
from dragoman.event import fold
from tests.client.test_stream_damage import cases_of
from tests.conftest import scale
from tests.gateway.in_process import CompleteResponse, OpenGateway, open_gateway
from tests.gateway.sdk_clients import CLIENTS
from tests.servers.faulty_server import CLOSE, Answer, ReceivedRequest, make_stream

BODIES = {
    "anthropic": {"max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]},
    "bedrock_converse": {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
    "cohere": {"messages": [{"role": "user", "content": "hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    "ollama": {"messages": [{"role": "user", "content": "hi"}]},
    "openai_chat": {"messages": [{"role": "user", "content": "hi"}]},
    "openai_responses": {"input": "hi"},
}


# Ollama has no refusals, so a refusal without content is an error for its clients.
EXPECTED_ERRORS = [("a refusal of the prompt", "ollama", None)]


def make_body(dialect: str, model: str) -> bytes:
    names = {} if dialect in ("gemini", "bedrock_converse") else {"model": model, "stream": True}
    return msgspec.json.encode({**BODIES[dialect], **names})


async def ask(gateway: OpenGateway, client: str, upstream: str) -> CompleteResponse:
    model = f"{upstream}:model"
    return await gateway.post(client, model, make_body(client, model), stream=True)


def is_complete(dialect: str, sent: CompleteResponse) -> bool:
    """Return whether a client of a dialect reads a response as a complete reply."""
    if sent.status != 200:
        assert dialects.load(dialect).read_error(sent.status, {}, sent.body).message
        return False
    reader = dialects.load(dialect).stream_reader()
    return fold([*reader.feed(sent.body), *reader.close()]).fault is None


@pytest.mark.parametrize("upstream", CLIENTS)
async def test_damaged_stream_is_an_error_for_every_client(tmp_path: Path, upstream: str) -> None:
    cases = list(cases_of(upstream))
    assert sum(code is not None for _, _, code in cases) >= 16
    current = b""

    def play(_: ReceivedRequest) -> Answer:
        return make_stream([current])

    unexpected = []
    every = scale(3, 1)
    async with open_gateway(tmp_path, play) as gateway:
        for number, (name, data, code) in enumerate(cases):
            current = data
            for client in list(CLIENTS)[number % every :: every]:
                if is_complete(client, await ask(gateway, client, upstream)) is (code is not None):
                    unexpected.append((name, client, code))
    assert unexpected == [case for case in unexpected if case in EXPECTED_ERRORS]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("upstream", CLIENTS)
async def test_stream_cut_at_any_event_ends_with_error(tmp_path: Path, upstream: str, client: str) -> None:
    data = next(data for _, data, code in cases_of(upstream) if code is None)
    cuts = [at for at in range(len(data)) if data[at - 2 : at] == b"\n\n" or at % 97 == 1]
    current = b""

    def play(_: ReceivedRequest) -> Answer:
        return make_stream([current], CLOSE)

    async with open_gateway(tmp_path, play) as gateway:
        for at in cuts:
            current = data[:at]
            reader = dialects.load(upstream).stream_reader()
            if fold([*reader.feed(current), *reader.close()]).fault is not None:
                assert not is_complete(client, await ask(gateway, client, upstream)), at
