"""Calls are stored in sessions: each message once, with usage and cost, for the owner of the key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.exchange import Reply, StopReason
from dragoman.gateway.recorder import title_from
from dragoman.message import MessageStatus, Role, TextBlock, TokenLogprob, ToolResultBlock, ToolUseBlock
from dragoman.store import Session
from dragoman.store.types import Owners
from tests.fake_providers import call_part, text_part
from tests.gateway.in_process import open_gateway
from tests.gateway.replies import write_stream, write_whole
from tests.server.conftest import ServerFixture, run_test_server
from tests.servers.faulty_server import make_answer, make_stream

TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}


async def chat(server: ServerFixture, model: str, messages: list[Any], **options: Any) -> dict[str, Any]:
    """Call Chat Completions and return the message."""
    headers = options.pop("headers", {})
    body = {"model": model, "messages": messages, **options}
    async with server.client.post("/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        if options.get("stream"):
            return {"raw": await response.read()}
        message: dict[str, Any] = (await response.json())["choices"][0]["message"]
        return {name: value for name, value in message.items() if value is not None}


async def list_sessions(server: ServerFixture) -> list[Session]:
    return sorted(await server.store.list_sessions(), key=lambda session: session.id)


async def read_texts(server: ServerFixture, session: Session) -> list[tuple[str, str]]:
    rows = await server.store.read(session.id, limit=100)
    return [
        (row.message.role.value, "".join(getattr(block, "text", "·") for block in row.message.content)) for row in rows
    ]


@pytest.mark.parametrize("model", ["anthropic", "gemini", "openai_chat"])
async def test_growing_transcript_is_one_session(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"}]
    fake.answer_with(text_part("First."))
    messages.append(await chat(gateway_server, model, messages))
    messages.append({"role": "user", "content": "Two?"})
    fake.answer_with(text_part("Second."))
    await chat(gateway_server, model, messages, stream=True)
    (session,) = await list_sessions(gateway_server)
    assert await read_texts(gateway_server, session) == [
        ("system", "Be brief."),
        ("user", "One?"),
        ("assistant", "First."),
        ("user", "Two?"),
        ("assistant", "Second."),
    ]
    assert session.title == "One?"
    assert session.metadata["gateway"]["dialect"] == "openai_chat"
    rows = await gateway_server.store.read(session.id)
    usage = rows[2].message.metadata.usage
    assert usage is not None
    assert usage.output_tokens > 0
    assert rows[2].message.metadata.model == f"fake-{model}:model"
    assert (await gateway_server.store.verify()).is_sound


async def test_edit_and_second_answer_fork_session(gateway_server: ServerFixture) -> None:
    fake = gateway_server.fakes["anthropic"]
    messages: list[Any] = [{"role": "user", "content": "One?"}]
    fake.answer_with(text_part("First."))
    messages.append(await chat(gateway_server, "anthropic", messages))
    for question in ("Two?", "Two, edited?", "Two?"):
        fake.answer_with(text_part(f"Answer to {question} number {len(fake.bodies)}"))
        await chat(gateway_server, "anthropic", [*messages, {"role": "user", "content": question}])
    first, edited, repeated = await list_sessions(gateway_server)
    assert (edited.parent_session_id, edited.parent_seq) == (first.id, 2)
    assert (repeated.parent_session_id, repeated.parent_seq) == (first.id, 3)
    assert [text for _, text in await read_texts(gateway_server, edited)] == [
        "One?",
        "First.",
        "Two, edited?",
        "Answer to Two, edited? number 2",
    ]


async def test_same_first_message_starts_another_session(gateway_server: ServerFixture) -> None:
    for _ in range(2):
        await chat(gateway_server, "anthropic", [{"role": "user", "content": "Hi"}])
    first, second = await list_sessions(gateway_server)
    assert (first.parent_session_id, second.parent_session_id) == (None, None)


@pytest.mark.parametrize("model", ["anthropic", "gemini", "ollama", "openai_responses"])
async def test_tool_results_refer_to_their_calls(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    messages: list[Any] = [{"role": "user", "content": "Compare."}]
    for number in range(2):
        fake.answer_with(call_part("read_file", {"path": f"a{number}"}), call_part("read_file", {"path": "b"}))
        answer = await chat(gateway_server, model, messages, tools=[TOOL])
        messages.append(answer)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": f"content {number}"}
            for call in answer["tool_calls"]
        ]
    fake.answer_with(text_part("Same."))
    await chat(gateway_server, model, messages, tools=[TOOL])
    (session,) = await list_sessions(gateway_server)
    blocks = [block for row in await gateway_server.store.read(session.id) for block in row.message.content]
    call_ids = [block.id for block in blocks if isinstance(block, ToolUseBlock)]
    result_ids = [block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock)]
    assert len(call_ids) == 4
    assert call_ids == result_ids
    assert {call.status for call in await gateway_server.store.tool_calls(session.id)} == {"succeeded"}
    assert fake.refusals == []


async def test_headers_name_session_and_worker(gateway_server: ServerFixture) -> None:
    session, worker = {"x-claude-code-session-id": "s1"}, {"x-claude-code-agent-id": "w1"}
    await chat(gateway_server, "anthropic", [{"role": "user", "content": "Hi"}], headers=session)
    await chat(gateway_server, "anthropic", [{"role": "user", "content": "Summarize"}], headers=session)
    await chat(gateway_server, "anthropic", [{"role": "user", "content": "Work"}], headers={**session, **worker})
    await chat(gateway_server, "anthropic", [{"role": "user", "content": "Hi"}])
    main, side, sub, other = await list_sessions(gateway_server)
    assert main.metadata["gateway"]["session"] == "s1"
    assert (side.parent_session_id, side.parent_seq) == (main.id, 0)
    assert (sub.parent_session_id, sub.parent_seq) == (main.id, 0)
    assert sub.metadata["gateway"]["worker"] == "w1"
    assert other.parent_session_id is None


@pytest.mark.parametrize("model", ["anthropic", "openai_chat"])
async def test_stream_header_contains_id_of_its_session(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    question, answer = {"role": "user", "content": "One?"}, {"role": "assistant", "content": "Yes."}
    edited = {"role": "user", "content": "Edited?"}
    names: list[str] = []
    for messages in ([question], [question, answer, question], [question, answer, edited]):
        fake.answer_with(text_part("Yes."))
        body = {"model": model, "messages": messages, "stream": True}
        async with gateway_server.client.post("/v1/chat/completions", json=body) as response:
            names.append(response.headers["x-dragoman-session"])
            await response.read()
    first, fork = await list_sessions(gateway_server)
    assert names == [first.id, first.id, fork.id]
    assert fork.parent_session_id == first.id


async def test_cut_stream_is_stored_with_estimated_usage(gateway_server: ServerFixture) -> None:
    gateway_server.fakes["openai_chat"].cut(700, text_part("word " * 300))
    messages = [{"role": "user", "content": "Hi"}]
    reply = await chat(gateway_server, "openai_chat", messages, stream=True)
    assert b'"error"' in reply["raw"]
    (session,) = await list_sessions(gateway_server)
    row = (await gateway_server.store.read(session.id))[-1]
    assert row.message.metadata.status is MessageStatus.ERROR
    usage = row.message.metadata.usage
    assert usage is not None
    assert usage.estimated
    text = row.message.content[0].text  # type: ignore[union-attr]
    assert text.startswith("word")
    assert 0 < usage.output_tokens <= len(text)


async def test_failed_call_without_content_creates_no_session(gateway_server: ServerFixture) -> None:
    gateway_server.fakes["anthropic"].fail(500, "oh")
    body = {"model": "anthropic", "messages": [{"role": "user", "content": "Hi"}]}
    async with gateway_server.client.post("/v1/chat/completions", json=body) as response:
        assert response.status == 500
    assert await list_sessions(gateway_server) == []


async def test_no_session_is_stored_if_recording_is_off(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, record="off") as server:
        await chat(server, "anthropic", [{"role": "user", "content": "Hi"}])
        assert await list_sessions(server) == []


async def test_concurrent_calls_are_all_stored(gateway_server: ServerFixture) -> None:
    messages: list[Any] = [{"role": "user", "content": "One?"}]
    messages.append(await chat(gateway_server, "anthropic", messages))
    questions = [[*messages, {"role": "user", "content": f"Two {number}?"}] for number in range(8)]
    await asyncio.gather(*(chat(gateway_server, "anthropic", question) for question in questions))
    found = [await read_texts(gateway_server, session) for session in await list_sessions(gateway_server)]
    stored = sorted(text for transcript in found for role, text in transcript[2:] if role == Role.USER.value)
    assert stored == sorted(question[-1]["content"] for question in questions)
    assert (await gateway_server.store.verify()).is_sound


async def test_same_transcript_of_another_user_is_another_session(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, require_keys=True) as server:
        ann, bob = await server.make_key("ann"), await server.make_key("bob")
        key = bob["Authorization"].removeprefix("Bearer ")
        messages: list[Any] = [{"role": "user", "content": "One?"}]
        messages.append(await chat(server, "anthropic", messages, headers={**ann, "x-session-id": "s"}))
        messages.append({"role": "user", "content": "Two?"})
        await chat(server, "anthropic", messages, headers={"x-api-key": key, "x-session-id": "s"})
        first, second = await list_sessions(server)
        assert (first.user_id, first.last_seq) == ("ann", 2)
        assert (second.user_id, second.last_seq, second.parent_session_id) == ("bob", 4, None)
        async with server.client.post("/v1/chat/completions", json={}, headers={"x-api-key": "sk-foreign"}) as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "invalid_api_key"


async def test_postgresql_stores_same_sessions(tmp_path: Path, postgres_server: str) -> None:
    async with run_test_server(tmp_path, store=f"{postgres_server}&schema=gateway_calls") as server:
        messages: list[Any] = [{"role": "user", "content": "One?"}]
        server.fake.answer_with(text_part("First."))
        messages.append(await chat(server, "anthropic", messages))
        for question in ("Two?", "Three?"):
            await chat(server, "anthropic", [*messages, {"role": "user", "content": question}])
        body = {"model": "anthropic", "input": "Hi"}
        async with server.client.post("/v1/responses", json=body) as response:
            name = (await response.json())["id"]
        async with server.client.post("/v1/responses", json={**body, "previous_response_id": name}) as response:
            assert response.status == 200
        first, fork, state = await list_sessions(server)
        assert (first.last_seq, fork.parent_session_id, fork.parent_seq, state.last_seq) == (4, first.id, 2, 4)
        assert (await server.store.verify()).is_sound
        await server.store.delete_session(state.id)
        async with server.client.get(f"/v1/responses/{name}") as response:
            assert response.status == 404


async def test_cost_of_call_belongs_to_caller(tmp_path: Path) -> None:
    answer = make_answer(
        b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":'
        b'"assistant","content":"Yes."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":5,'
        b'"completion_tokens":7,"total_tokens":12}}'
    )
    async with open_gateway(tmp_path, lambda _: answer, ("openai_chat",), "durable") as gateway:
        for text in ("One?", "Two?"):  # the second call uses the fast path
            body = {"model": "openai_chat:m", "messages": [{"role": "user", "content": text}]}
            assert (await gateway.send("/v1/chat/completions", body)).status == 200
        store = gateway.gateway.services.store
        (total,) = await store.costs.totals("user", owners=Owners("ann"))
        assert await store.costs.totals("user", owners=Owners("bob")) == []
    assert (total.group, total.messages, total.input_tokens, total.output_tokens) == ("ann", 2, 10, 14)


@pytest.mark.parametrize("space", [" ", "  ", "\n" * 90, " " * 79, "\u2003\t"])
@pytest.mark.parametrize("word", ["a", "word", "wörd", "w\u200b", "w" * 79, "w" * 80, "w" * 200])
def test_title_is_start_of_normalized_text(word: str, space: str) -> None:
    for count in (1, 2, 3, 100):
        text, title = space.join([word] * count), " ".join([word] * count)[:80]
        assert [title_from(((variant,),)) for variant in (text, space + text, text + space)] == [title] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_stored_reply_lists_losses_for_callers_api(tmp_path: Path, stream: bool) -> None:
    text = TextBlock("Hi", token_logprobs=(TokenLogprob("Hi", -0.1),))
    reply = Reply(content=(text,), stop_reason=StopReason.END_TURN, model="m")
    answer = (
        make_stream([write_stream("openai_chat", reply)]) if stream else make_answer(write_whole("openai_chat", reply))
    )
    async with open_gateway(tmp_path, lambda _: answer, record="durable") as gateway:
        question = {"role": "user", "content": "hi"}
        body = {"model": "openai_chat:m", "max_tokens": 5, "stream": stream, "messages": [question]}
        sent = await gateway.send("/v1/messages", body)
        rows = await gateway.gateway.services.store.read(sent.headers["x-dragoman-session"])
    assert rows[-1].message.metadata.extra["gateway"]["losses"] == ["text.token_logprobs"]
