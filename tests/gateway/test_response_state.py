"""The OpenAI SDK continues, retrieves and deletes responses although the providers have no state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.gateway.endpoints import ENDPOINTS
from dragoman.gateway.gateway import Gateway
from tests.fake_providers import call_part, text_part
from tests.gateway.in_process import open_gateway
from tests.gateway.replies import answer_call
from tests.gateway.sdk_clients import KEY
from tests.import_proxy import LazyModule
from tests.server.conftest import ServerFixture, run_test_server

openai: Any = LazyModule("openai")
UPSTREAMS = ["anthropic", "gemini", "openai_responses"]
TOOL: Any = {"type": "function", "name": "read_file", "parameters": {"type": "object"}, "strict": False}


def make_client(server: ServerFixture, key: str = KEY) -> Any:
    return openai.OpenAI(api_key=key, base_url=f"{server.base_url}/v1", max_retries=0, timeout=60)


def test_every_operation_has_a_handler(gateway_server: ServerFixture) -> None:
    gateway = gateway_server.state.gateway
    assert isinstance(gateway, Gateway)
    assert {endpoint.operation for endpoint in ENDPOINTS} == gateway.operations


@pytest.mark.parametrize("model", UPSTREAMS)
async def test_response_is_continued_on_any_provider(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    fake.answer_with(call_part("read_file", {"path": "README.md"}))
    fake.answer_with(text_part("It is Foo."))
    fake.answer_with(text_part("Yes, Foo."))

    def converse() -> list[Any]:
        with make_client(gateway_server) as client:
            first = client.responses.create(model=model, input="What is it?", tools=[TOOL])
            (call,) = [item for item in first.output if item.type == "function_call"]
            output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "# Foo"}
            with client.responses.stream(
                model=model, input=[output], previous_response_id=first.id, tools=[TOOL]
            ) as events:
                second = events.get_final_response()
            third = client.responses.create(model=model, input="Sure?", previous_response_id=second.id)
            retrieved = client.responses.retrieve(third.id)
            items = client.responses.input_items.list(third.id)
            return [second, third, retrieved, items]

    second, third, retrieved, items = await asyncio.to_thread(converse)
    assert (second.output_text, third.output_text) == ("It is Foo.", "Yes, Foo.")
    assert third.previous_response_id == second.id
    assert retrieved.output_text == "Yes, Foo."
    assert retrieved.previous_response_id == second.id
    assert [item.content[0].text for item in items.data] == ["Sure?"]
    assert fake.refusals == []
    sent = str(fake.bodies[-1])
    assert all(text in sent for text in ("What is it?", "README.md", "# Foo", "It is Foo.", "Sure?"))
    (session,) = await gateway_server.store.list_sessions()
    assert session.last_seq == 6


@pytest.mark.parametrize("model", ["anthropic", "openai_responses"])
async def test_conversation_contains_items_of_its_responses(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    fake.answer_with(text_part("First."))
    fake.answer_with(text_part("Second."))

    def converse() -> list[str]:
        with make_client(gateway_server) as client:
            conversation = client.conversations.create(metadata={"a": "b"})
            for question in ("One?", "Two?"):
                response = client.responses.create(model=model, input=question, conversation=conversation.id)
                assert response.conversation is not None
                assert response.conversation.id == conversation.id
            assert client.conversations.retrieve(conversation.id).metadata == {"a": "b"}
            items = client.conversations.items.list(conversation.id, order="asc").data
            texts = [item.content[0].text for item in items]  # type: ignore[union-attr]
            assert client.conversations.delete(conversation.id).deleted
            with pytest.raises(openai.NotFoundError):
                client.conversations.retrieve(conversation.id)
            return texts

    assert await asyncio.to_thread(converse) == ["One?", "First.", "Two?", "Second."]
    assert "First." in str(fake.bodies[-1])


async def test_items_are_listed_in_pages_and_order(gateway_server: ServerFixture) -> None:
    fake = gateway_server.fakes["openai_responses"]
    texts = [f"Item {number}" for number in range(5)]
    messages: Any = [{"role": "user", "content": text} for text in texts]

    def converse() -> None:
        with make_client(gateway_server) as client:
            response = client.responses.create(model="anthropic", input=messages)
            listed = list(client.responses.input_items.list(response.id, limit=2, order="asc"))
            assert [item.content[0].text for item in listed] == texts
            with pytest.raises(openai.BadRequestError, match="Retrieve it without stream"):
                client.responses.retrieve(response.id, stream=True)
            conversation = client.conversations.create(items=[*messages, {"role": "assistant", "content": "Said."}])
            items = list(client.conversations.items.list(conversation.id, limit=2))
            assert [item.content[0].text for item in items] == ["Said.", *reversed(texts)]
            assert items[0].content[0].type == "output_text"
            found = client.conversations.items.retrieve(items[1].id, conversation_id=conversation.id)
            assert found.content[0].text == "Item 4"
            remaining = client.conversations.items.delete(items[1].id, conversation_id=conversation.id)
            assert remaining.id == conversation.id
            for method in (client.conversations.items.retrieve, client.conversations.items.delete):
                with pytest.raises(openai.NotFoundError):
                    method(items[1].id, conversation_id=conversation.id)
            with pytest.raises(openai.BadRequestError, match="there is no item"):
                client.conversations.items.list(conversation.id, after=items[1].id)
            with pytest.raises(openai.BadRequestError, match="each item must be an object"):
                client.conversations.create(items=["text"])
            client.responses.create(model="openai_responses", input="More?", conversation=conversation.id)

    await asyncio.to_thread(converse)
    sent = fake.bodies[-1]["input"]
    assert [item["content"][0]["text"] for item in sent] == [*texts[:4], "Said.", "More?"]
    assert not any("id" in item for item in sent), "the provider does not know the ids of the gateway"


async def test_deleted_or_unstored_response_is_not_found(gateway_server: ServerFixture) -> None:
    def converse() -> None:
        with make_client(gateway_server) as client:
            stored = client.responses.create(model="anthropic", input="Hi")
            unstored = client.responses.create(model="anthropic", input="Hi", store=False)
            with pytest.raises(openai.BadRequestError):
                client.responses.cancel(stored.id)
            client.responses.delete(stored.id)
            for name in (stored.id, unstored.id, "resp_unknown"):
                with pytest.raises(openai.NotFoundError):
                    client.responses.retrieve(name)
                with pytest.raises(openai.BadRequestError) as caught:
                    client.responses.create(model="anthropic", input="Hi", previous_response_id=name)
                assert caught.value.code == "previous_response_not_found"

    await asyncio.to_thread(converse)


async def test_state_of_another_user_is_not_found(tmp_path: Path) -> None:
    """Each endpoint with an id returns the same error for an object of another user and for an unknown id."""
    async with run_test_server(tmp_path, require_keys=True) as server:
        keys = {user: (await server.make_key(user))["Authorization"].removeprefix("Bearer ") for user in ("ann", "bob")}

        def prepare() -> dict[str, str]:
            with make_client(server, keys["ann"]) as client:
                response = client.responses.create(model="anthropic", input="secret of ann")
                conversation = client.conversations.create(items=[{"role": "user", "content": "secret of ann"}])
                return {"responses": response.id, "conversations": conversation.id}

        ids = await asyncio.to_thread(prepare)
        count = 0
        for endpoint in ENDPOINTS:
            if "{id}" not in endpoint.path:
                continue
            name = ids[endpoint.path.split("/")[1]]
            answers = []
            for object_id in (name, "unknown"):
                path = endpoint.paths[0].replace("{id}", object_id)
                headers = {"Authorization": f"Bearer {keys['bob']}", "content-type": "application/json"}
                async with server.client.request(endpoint.method, path, headers=headers, data=b"{}") as response:
                    answers.append((response.status, (await response.text()).replace(object_id, "ID")))
            assert answers[0] == answers[1]
            assert answers[0][0] == 404
            count += 1
            async with server.client.request(endpoint.method, path, data=b"{}") as response:
                assert response.status == 401
        assert count == 11
        body = {"model": "anthropic", "input": "hi", "previous_response_id": ids["responses"]}
        headers = {"Authorization": f"Bearer {keys['bob']}"}
        async with server.client.post("/v1/responses", json=body, headers=headers) as response:
            assert response.status == 400
        body = {"model": "anthropic", "input": "hi", "conversation": ids["conversations"]}
        async with server.client.post("/v1/responses", json=body, headers=headers) as response:
            assert response.status == 404
        assert "secret" not in str(server.fake.bodies[1:])


@pytest.mark.parametrize("model", UPSTREAMS)
async def test_stream_contains_previous_response_and_conversation(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    for _ in range(3):
        fake.answer_with(text_part("Yes."))

    def converse() -> tuple[str, str, list[Any], list[Any]]:
        with make_client(gateway_server) as client:
            first = client.responses.create(model=model, input="Is it?")
            conversation = client.conversations.create()
            continued = client.responses.create(model=model, input="And?", previous_response_id=first.id, stream=True)
            events = [event.response for event in continued if hasattr(event, "response")]
            joined = client.responses.create(model=model, input="And?", conversation=conversation.id, stream=True)
            others = [event.response for event in joined if hasattr(event, "response")]
            return first.id, conversation.id, events, others

    first, conversation, events, others = await asyncio.to_thread(converse)
    assert len(events) >= 2
    assert {response.previous_response_id for response in events} == {first}
    assert {(response.conversation.id, response.previous_response_id) for response in others} == {(conversation, None)}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_unknown_previous_response_has_the_code_of_openai(tmp_path: Path, path: str) -> None:
    async with open_gateway(tmp_path, answer_call, record="durable") as gateway:
        body = {"model": "anthropic:m", "input": "Hi", "previous_response_id": "resp_unknown"}
        sent = await gateway.send(path, body)
    error = msgspec.json.decode(sent.body)["error"]
    assert (sent.status, error["code"]) == (400, "previous_response_not_found")
