"""Tests of Bedrock clients: ``invoke`` with and without a stream, and both ways to send a key."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import botocore.config
import botocore.exceptions
import botocore.session
import pytest

from tests.fake_providers import call_part, text_part
from tests.gateway.sdk_clients import CLIENTS
from tests.server.conftest import ServerFixture, run_test_server

BODY = {
    "anthropic_version": "bedrock-2023-05-31",
    "anthropic_beta": ["some-beta-2026-01-01"],
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "read_file", "description": "Read.", "input_schema": {"type": "object"}}],
}


def make_client(server: ServerFixture, key: str = "AKIDEXAMPLE") -> Any:
    return botocore.session.Session().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=server.base_url,
        aws_access_key_id=key,
        aws_secret_access_key="any",
        config=botocore.config.Config(retries={"max_attempts": 0}, read_timeout=60),
    )


def invoke(client: Any, model: str) -> dict[str, Any]:
    with contextlib.closing(client.invoke_model(modelId=model, body=json.dumps(BODY))["body"]) as body:
        message: dict[str, Any] = json.loads(body.read())
    return message


def invoke_stream(client: Any, model: str) -> list[dict[str, Any]]:
    response = client.invoke_model_with_response_stream(modelId=model, body=json.dumps(BODY))
    with contextlib.closing(response["body"]) as events:
        return [json.loads(event["chunk"]["bytes"]) for event in events]


@pytest.mark.parametrize("model", CLIENTS)
async def test_invoke_request_reaches_every_provider(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    with contextlib.closing(make_client(gateway_server)) as client:
        fake.answer_with(text_part("Hello."), call_part("read_file", {"path": "a"}))
        message = await asyncio.to_thread(invoke, client, model)
        assert (message["content"][0]["text"], message["stop_reason"]) == ("Hello.", "tool_use")
        fake.answer_with(text_part("Hello."))
        events = await asyncio.to_thread(invoke_stream, client, model)
        assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
        texts = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
        assert "".join(texts) == "Hello."
    assert fake.refusals == []
    if model == "anthropic":
        assert fake.received[0].headers["anthropic-beta"] == "some-beta-2026-01-01"


@pytest.mark.parametrize("model", ["anthropic", "gemini"])
async def test_errors_have_bedrock_shape(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    with contextlib.closing(make_client(gateway_server)) as client:
        fake.fail(429, "slow down")
        with pytest.raises(client.exceptions.ThrottlingException, match="slow down"):
            await asyncio.to_thread(invoke, client, model)
        fake.cut(700, text_part("word " * 200))
        with pytest.raises(botocore.exceptions.EventStreamError):
            await asyncio.to_thread(invoke_stream, client, model)


async def test_key_is_accepted_in_signature_or_as_bearer_token(tmp_path: Path) -> None:
    """The request with a bearer token does not use botocore, which sends bearer tokens over TLS only."""
    async with run_test_server(tmp_path, "anthropic", require_keys=True) as server:
        headers = await server.make_key()
        key = headers["Authorization"].removeprefix("Bearer ")
        question = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
        fake = server.fakes["anthropic"]
        with contextlib.closing(make_client(server, key)) as client:
            fake.answer_with(text_part("Hello."))
            answer = await asyncio.to_thread(client.converse, modelId="anthropic", **question)
            assert answer["output"]["message"]["content"][0]["text"] == "Hello."
            fake.answer_with(text_part("Hello."))
            assert (await asyncio.to_thread(invoke_stream, client, "anthropic"))[-1]["type"] == "message_stop"
        fake.answer_with(text_part("Hello."))
        async with server.client.post("/model/anthropic/converse", json=question, headers=headers) as response:
            assert (await response.json())["output"]["message"]["content"][0]["text"] == "Hello."
        with contextlib.closing(make_client(server, "AKIDEXAMPLE")) as client:
            with pytest.raises(botocore.exceptions.ClientError) as caught:
                await asyncio.to_thread(invoke, client, "anthropic")
            assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 401
