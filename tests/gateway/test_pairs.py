"""Every SDK receives the same text and tool calls from a model of every dialect, with and without a stream."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from dragoman.gateway.endpoints import ENDPOINTS
from tests.conftest import IS_FULL
from tests.fake_providers import call_part, text_part, thinking_part
from tests.gateway.sdk_clients import CLIENTS, KEY, SdkError, ask
from tests.server.conftest import ServerFixture

DIALECTS = tuple(CLIENTS)
FOREIGN_PROVIDERS = {
    "openai_responses": "gemini"
}  # a provider that must not receive the reasoning; by default openai_responses
TEXT = "It is the readme – très bref! 😀"


def test_every_chat_endpoint_has_a_client() -> None:
    assert {*CLIENTS, "ollama_generate"} == {endpoint.dialect for endpoint in ENDPOINTS if endpoint.operation == "chat"}


@pytest.mark.parametrize("client", DIALECTS)
async def test_every_client_reads_reply_of_every_provider(gateway_server: ServerFixture, client: str) -> None:
    for number, upstream in enumerate(DIALECTS, DIALECTS.index(client)):
        fake = gateway_server.fakes[upstream]
        for stream in (False, True) if IS_FULL else (number % 2 == 0,):
            fake.answer_with(text_part(TEXT))
            answer = await asyncio.to_thread(ask, client, gateway_server.base_url, upstream, "hi", stream=stream)
            assert (answer.text, answer.calls) == (TEXT, []), (client, upstream, stream)
            fake.answer_with(
                text_part("Two."), call_part("read_file", {"path": "a"}), call_part("read_file", {"path": "b é"})
            )
            answer = await asyncio.to_thread(
                ask, client, gateway_server.base_url, upstream, "hi", tools=True, stream=stream
            )
            expected = [("read_file", {"path": "a"}), ("read_file", {"path": "b é"})]
            assert (answer.text, answer.calls) == ("Two.", expected), (client, upstream, stream)
            assert len(set(answer.ids)) == len(answer.ids)
        assert fake.refusals == [], (client, upstream)
        for received in fake.received:
            assert KEY not in str(received), "the caller's key reached a provider"


@pytest.mark.parametrize("client", DIALECTS)
async def test_error_has_shape_of_callers_api(gateway_server: ServerFixture, client: str) -> None:
    for upstream in DIALECTS:
        gateway_server.fakes[upstream].fail(429, "slow down", {"retry-after": "7"})
        with pytest.raises(SdkError, match="slow down") as caught:
            await asyncio.to_thread(ask, client, gateway_server.base_url, upstream, "hi")
        assert caught.value.status == 429, (client, upstream)


@pytest.mark.parametrize("client", DIALECTS)
async def test_cut_stream_is_an_error(gateway_server: ServerFixture, client: str) -> None:
    for upstream in DIALECTS:
        gateway_server.fakes[upstream].cut(400, text_part("word " * 200))
        with pytest.raises(Exception, match=r".") as caught:
            await asyncio.to_thread(ask, client, gateway_server.base_url, upstream, "hi", stream=True)
        assert not isinstance(caught.value, AssertionError), (client, upstream)


@pytest.mark.parametrize("upstream", ["gemini", "bedrock_converse", "openai_chat", "openai_responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_returns_only_to_its_provider(
    gateway_server: ServerFixture, upstream: str, stream: bool
) -> None:
    fake = gateway_server.fakes[upstream]
    fake.answer_with(thinking_part("Hm, well."), text_part("So."))
    question: list[Any] = [{"role": "user", "content": "hi"}]
    tool = {"name": "read_file", "description": "Read.", "input_schema": {"type": "object"}}
    options = {"max_tokens": 5000, "tools": [tool], "thinking": {"type": "enabled", "budget_tokens": 1024}}

    def ask_twice() -> list[Any]:
        import anthropic

        with anthropic.Anthropic(api_key=KEY, base_url=gateway_server.base_url, max_retries=0) as client:
            if stream:
                with client.messages.stream(model=upstream, messages=question, **options) as events:
                    content = events.get_final_message().content
            else:
                content = client.messages.create(model=upstream, messages=question, **options).content
            blocks = [block.model_dump(exclude_none=True) for block in content]
            more = [*question, {"role": "assistant", "content": blocks}, {"role": "user", "content": "more"}]
            client.messages.create(model=upstream, messages=more, **options)
            client.messages.create(model=FOREIGN_PROVIDERS.get(upstream, "openai_responses"), messages=more, **options)
        return blocks

    reasoning, answer = await asyncio.to_thread(ask_twice)
    assert (reasoning["type"], reasoning["thinking"], answer["text"]) == ("thinking", "Hm, well.", "So.")
    assert fake.refusals == []
    if upstream != "openai_chat":  # it has no signatures
        assert "Hm, well." in str(fake.bodies[1])
    other = gateway_server.fakes[FOREIGN_PROVIDERS.get(upstream, "openai_responses")]
    assert other.refusals == []
    assert "Hm, well." not in str(other.bodies)


@pytest.mark.parametrize("upstream", ["gemini", "bedrock_converse", "openai_chat", "openai_responses"])
async def test_messages_stream_has_one_open_block_at_a_time(gateway_server: ServerFixture, upstream: str) -> None:
    """Claude Code adds a block to the answer when it ends, so text must not start before reasoning has ended."""
    gateway_server.fakes[upstream].answer_with(
        thinking_part("Hm, well."), text_part("So."), call_part("read_file", {"path": "a"})
    )
    body = {
        "model": upstream,
        "max_tokens": 5000,
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "read_file", "description": "Read.", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    async with httpx.AsyncClient(base_url=gateway_server.base_url) as client:
        response = await client.post("/v1/messages", json=body, headers=headers)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    boundaries = [event for event in events if event["type"] in ("content_block_start", "content_block_stop")]
    assert [(event["type"], event["index"]) for event in boundaries] == [
        (f"content_block_{boundary}", index) for index in range(3) for boundary in ("start", "stop")
    ]
    kinds = [event["content_block"]["type"] for event in boundaries[::2]]
    assert kinds == ["thinking", "text", "tool_use"]


@pytest.mark.parametrize("stream", [False, True])
async def test_foreign_reasoning_is_not_sent_to_native_provider(gateway_server: ServerFixture, stream: bool) -> None:
    gateway_server.fakes["gemini"].answer_with(thinking_part("Hm, well."), text_part("So."))
    fake = gateway_server.fakes["anthropic"]
    fake.answer_with(text_part("Yes."))
    question: list[Any] = [{"role": "user", "content": "hi"}]
    body: dict[str, Any] = {"model": "gemini", "max_tokens": 5000, "messages": question}
    async with gateway_server.client.post("/v1/messages", json=body) as response:
        content = (await response.json())["content"]
    more = [*question, {"role": "assistant", "content": content}, {"role": "user", "content": "more"}]
    body = {"model": "anthropic", "max_tokens": 5000, "messages": more, "stream": stream, "top_k": 7}
    async with gateway_server.client.post("/v1/messages", json=body) as response:
        assert response.status == 200, await response.text()
        assert "Yes." in await response.text()
    assert fake.refusals == []
    assert "Hm, well." not in str(fake.bodies)
    assert fake.bodies[0]["top_k"] == 7


@pytest.mark.parametrize("upstream", ["ollama", "anthropic"])
async def test_ollama_generate_api_is_supported(gateway_server: ServerFixture, upstream: str) -> None:
    gateway_server.fakes[upstream].reply("Whole.")
    gateway_server.fakes[upstream].reply("In pieces.")

    def generate() -> tuple[str, str]:
        import ollama

        client = ollama.Client(host=gateway_server.base_url, timeout=60)
        try:
            whole = client.generate(model=upstream, prompt="hi", system="Be brief.").response
            pieces = "".join(part.response for part in client.generate(model=upstream, prompt="hi", stream=True))
        finally:
            client._client.close()
        return whole, pieces

    assert await asyncio.to_thread(generate) == ("Whole.", "In pieces.")
    assert "Be brief." in str(gateway_server.fakes[upstream].bodies[0])


@pytest.mark.parametrize("upstream", ["openai_chat", "openai_responses", "anthropic"])
async def test_responses_body_at_chat_path_returns_chat_chunks(gateway_server: ServerFixture, upstream: str) -> None:
    gateway_server.fakes[upstream].answer_with(call_part("read_file", {"path": "a"}))
    tool = {"type": "function", "name": "read_file", "parameters": {"type": "object"}}
    body = {"model": upstream, "stream": True, "input": [{"role": "user", "content": "hi"}], "tools": [tool]}
    async with gateway_server.client.post("/v1/chat/completions", json=body) as response:
        text = await response.text()
    assert response.status == 200, text
    assert '"object":"chat.completion.chunk"' in text
    assert '"finish_reason":"tool_calls"' in text
    assert text.endswith("data: [DONE]\n\n")
    assert gateway_server.fakes[upstream].refusals == []


@pytest.mark.parametrize("upstream", ["bedrock_converse", "cohere"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"])
async def test_reply_names_model_if_provider_does_not(gateway_server: ServerFixture, upstream: str, path: str) -> None:
    question = [{"role": "user", "content": "hi"}]
    body = {"model": upstream, "max_tokens": 50, "input" if "responses" in path else "messages": question}
    for stream in (False, True):
        gateway_server.fakes[upstream].answer_with(text_part("Hello."))
        async with gateway_server.client.post(path, json={**body, "stream": stream}) as response:
            text = await response.text()
        assert response.status == 200, text
        expected = upstream if path == "/v1/messages" else "model"
        assert set(re.findall(r'"model":\s?"([^"]*)"', text)) == {expected}


@pytest.mark.parametrize("stream", [False, True])
async def test_messages_reply_names_requested_model(gateway_server: ServerFixture, stream: bool) -> None:
    """Claude Code sends reasoning back only if the answer names the model that it requested."""
    gateway_server.fakes["openai_chat"].answer_with(thinking_part("Hm."), text_part("Hello."))
    body = {"model": "openai_chat", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    async with gateway_server.client.post("/v1/messages", json={**body, "stream": stream}) as response:
        text = await response.text()
    assert response.status == 200, text
    assert set(re.findall(r'"model":\s?"([^"]*)"', text)) == {"openai_chat"}
    assert response.headers["x-dragoman-model"] == "fake-openai_chat:model"
