"""Every SDK reaches a model of every dialect: the same text, calls and arguments, whole and streamed."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from dragoman import dialects
from tests.gateway.sdk_clients import CLIENTS, KEY, SdkError, ask
from tests.server.conftest import ServerFixture
from tests.strict import call, say

PAIRS = list(itertools.product(dialects.callable_names(), dialects.callable_names()))
WORDS = "It is the readme – très bref! 😀"


def test_every_dialect_has_a_client() -> None:
    assert tuple(sorted(CLIENTS)) == tuple(sorted(dialects.callable_names()))


async def test_all_pairs_accumulate_what_the_provider_sent(gateway_server: ServerFixture) -> None:
    for client, upstream in PAIRS:
        fake = gateway_server.fakes[upstream]
        for stream in (False, True):
            fake.answer_with(say(WORDS))
            answer = await asyncio.to_thread(ask, client, gateway_server.base_url, upstream, "hi", stream=stream)
            assert (answer.text, answer.calls) == (WORDS, []), (client, upstream, stream)
            fake.answer_with(say("Two."), call("read_file", {"path": "a"}), call("read_file", {"path": "b é"}))
            answer = await asyncio.to_thread(
                ask, client, gateway_server.base_url, upstream, "hi", tools=True, stream=stream
            )
            expected = [("read_file", {"path": "a"}), ("read_file", {"path": "b é"})]
            assert (answer.text, answer.calls) == ("Two.", expected), (client, upstream, stream)
            assert len(set(answer.ids)) == len(answer.ids)
        assert fake.refused == [], (client, upstream)
        for received in fake.received:
            assert KEY not in str(received), "the caller's key reached a provider"


@pytest.mark.parametrize("client", dialects.callable_names())
async def test_an_error_has_the_shape_of_the_caller_s_api(gateway_server: ServerFixture, client: str) -> None:
    for upstream in dialects.callable_names():
        gateway_server.fakes[upstream].fail(429, "slow down", {"retry-after": "7"})
        with pytest.raises(SdkError, match="slow down") as caught:
            await asyncio.to_thread(ask, client, gateway_server.base_url, upstream, "hi")
        assert caught.value.status == 429, (client, upstream)


@pytest.mark.parametrize("client", dialects.callable_names())
async def test_a_stream_that_is_cut_is_an_error(gateway_server: ServerFixture, client: str) -> None:
    for upstream in dialects.callable_names():
        gateway_server.fakes[upstream].cut(400, say("word " * 200))
        with pytest.raises(Exception, match=r".") as caught:
            await asyncio.to_thread(ask, client, gateway_server.base_url, upstream, "hi", stream=True)
        assert not isinstance(caught.value, AssertionError), (client, upstream)
