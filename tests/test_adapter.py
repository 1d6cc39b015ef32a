"""The adapter: a dialect, a provider row and the tool ids of a session."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import pytest

from dragoman import catalog, check
from dragoman.adapter import Adapter, RequestContext
from dragoman.errors import CriticalLossError
from dragoman.event import StreamEvent, fold
from dragoman.exchange import Options
from dragoman.ids import ToolIds, ulid_time_ms
from dragoman.message import (
    ContentBlock,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from tests.test_codec import NOW
from tests.test_rules import ANSWER_METADATA

ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [
        {"type": "thinking", "thinking": "I need the file.", "signature": "EqQB"},
        {"type": "text", "text": "I'll read it."},
        {"type": "tool_use", "id": "toolu_01ABC", "name": "read_file", "input": {"path": "README.md"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 8, "output_tokens": 42},
}
CONTEXT = RequestContext(
    session_id="sess_1",
    message_id="01HZ002",
    created_at=NOW,
    routing=ANSWER_METADATA.routing,
    usage=ANSWER_METADATA.usage,
)


def adapter(model: str, ids: ToolIds | None = None) -> Adapter:
    rows = catalog.builtin()
    return Adapter(rows.provider(rows.model(model).provider), rows.model(model), ids)


def user(*blocks: ContentBlock, **metadata: object) -> Message:
    return Message("01HZ001", "sess_1", Role.USER, blocks, MessageMetadata(**metadata), NOW)


def result(call_id: str) -> Message:
    content = (ToolResultBlock(call_id, (TextBlock("# Project Foo"),)),)
    return Message("01HZ003", "sess_1", Role.TOOL, content, MessageMetadata(parent_tool_use_id=call_id), NOW)


def test_reply_becomes_valid_message() -> None:
    message = adapter("anthropic:claude-sonnet-4-6").from_wire_response(ANSWER, CONTEXT)
    assert check(message) == ()
    assert message.metadata.model == "anthropic:claude-sonnet-4-6"
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]


def test_tool_ids_resolve_across_provider_swaps() -> None:
    ids = ToolIds()
    home = adapter("anthropic:claude-sonnet-4-6", ids)
    answer = home.from_wire_response(ANSWER, CONTEXT)
    history = [user(TextBlock("Summarize README.md")), answer, result(answer.content[2].id)]
    wires = {}
    for model in ("openai:gpt-5", "mistral:mistral-large-2512", "gemini:gemini-2.5-pro", "ollama:llama-3.3-70b"):
        away = adapter(model, ids)
        wire = away.to_wire(history, options=Options(max_output_tokens=5)).wire
        assert "EqQB" not in json.dumps(wire)
        assert "I need the file." not in json.dumps(wire)
        assert "Project Foo" in json.dumps(wire)
        wires[model] = json.dumps(wire)
        assert json.dumps(away.to_wire(history, options=Options(max_output_tokens=5)).wire) == wires[model]
    assert wires["openai:gpt-5"].count("call_") >= 2
    mistral_id = ids.to_provider_id("mistral", answer.content[2].id)
    assert len(mistral_id) == 9
    assert wires["mistral:mistral-large-2512"].count(f'"{mistral_id}"') == 2  # the call and its result
    # Back at the first provider, its own signature and its own id are sent again.
    wire = home.to_wire(history).wire
    assert wire["messages"][1]["content"] == ANSWER["content"]
    assert wire["messages"][2]["content"][0]["tool_use_id"] == "toolu_01ABC"


def test_result_matches_its_call_without_id_map() -> None:
    message = adapter("anthropic:claude-sonnet-4-6").from_wire_response(ANSWER, CONTEXT)
    wire = adapter("anthropic:claude-sonnet-4-6", ToolIds()).to_wire([message, result(message.content[2].id)]).wire
    assert wire["messages"][1]["content"][0]["tool_use_id"] == "toolu_01ABC"


def test_foreign_tool_id_is_sent_only_if_the_provider_accepts_it() -> None:
    answer = {
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "call_abc", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                    ],
                },
            }
        ],
    }
    ids = ToolIds()
    message = adapter("groq:openai/gpt-oss-20b", ids).from_wire_response(answer, CONTEXT)
    history = [user(TextBlock("Go.")), message, result(message.content[0].id)]
    for model, is_kept in {"deepseek:deepseek-chat": True, "mistral:mistral-large-2512": False}.items():
        called, answered = adapter(model, ids).to_wire(history).wire["messages"][1:]
        assert called["tool_calls"][0]["id"] == answered["tool_call_id"]
        assert (called["tool_calls"][0]["id"] == "call_abc") is is_kept
        assert len(answered["tool_call_id"]) == (8 if is_kept else 9)


def test_repeated_provider_ids_become_unique_call_ids() -> None:
    adapter_of_call = adapter("anthropic:claude-sonnet-4-6")
    later = RequestContext(session_id="sess_1", message_id="01HZ009", created_at=NOW)
    first, second = (adapter_of_call.from_wire_response(ANSWER, context).content[2] for context in (CONTEXT, later))
    assert first.id != second.id
    assert first == adapter_of_call.from_wire_response(ANSWER, CONTEXT).content[2]
    assert [ulid_time_ms(call.id.removeprefix("tu_")) for call in (first, second)] == [NOW.timestamp() * 1000] * 2


def test_reply_fields_are_not_sent_in_the_next_request() -> None:
    home = adapter("anthropic:claude-sonnet-4-6")
    message = home.from_wire_response({**ANSWER, "container": {"id": "container_1"}}, CONTEXT)
    assert "container_1" in str(message.metadata.provider_raw)
    wire = home.to_wire([message, result(message.content[2].id)]).wire
    assert wire["messages"][0] == {"role": "assistant", "content": ANSWER["content"]}


def test_longer_history_has_the_same_prompt_prefix() -> None:
    ids = ToolIds()
    message = adapter("anthropic:claude-sonnet-4-6", ids).from_wire_response(ANSWER, CONTEXT)
    history = [user(TextBlock("One.")), message, result(message.content[2].id), user(TextBlock("Two."))]
    for model in ("openai:gpt-5", "mistral:mistral-large-2512"):
        wires = [adapter(model, ids).to_wire(history[:count]).wire for count in (1, 3, 4)]
        lists = [wire.get("messages") or wire.get("input") for wire in wires]
        for shorter, longer in itertools.pairwise(lists):
            assert longer[: len(shorter)] == shorter


def test_loss_on_critical_message_raises() -> None:
    critical = ANSWER_METADATA.replace(critical=True)
    thought = Message(
        "01HZ002", "sess_1", Role.ASSISTANT, (ThinkingBlock("hm", "sig"), TextBlock("Hi.")), critical, NOW
    )
    with pytest.raises(CriticalLossError, match="marked critical") as caught:
        adapter("openai:gpt-5").to_wire([user(TextBlock("Hello.")), thought])
    assert caught.value.loss.block_type == "thinking"


def test_reply_streams_as_events() -> None:
    stream = (
        b'event: message_start\ndata: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":1,"output_tokens":0}}}\n\n'
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"H\xc3\xa9"}}\n\n'
        b'data: {"type":"content_block_stop","index":0}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\n'
        b'data: {"type":"message_stop"}\n\n'
    )

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(stream), 3):
            yield stream[start : start + 3]

    async def events() -> list[StreamEvent]:
        return [event async for event in adapter("anthropic:claude-sonnet-4-6").stream_response(chunks(), CONTEXT)]

    reply = fold(asyncio.run(events()))
    assert reply.fault is None
    assert reply.content == (TextBlock("Hé"),)


def test_token_estimate_increases_with_prompt() -> None:
    estimate = adapter("openai:gpt-5").estimate_input_tokens
    empty = estimate([])
    assert empty < 10
    assert 70 < estimate([user(TextBlock("one two three four five. " * 12))]) - empty < 90
    call = Message("01HZ002", "s", Role.ASSISTANT, (ToolUseBlock("tu_1", "f", {"a": "b" * 40}),), ANSWER_METADATA, NOW)
    assert estimate([call]) > 10


def stream_events(source: Adapter, *parts: bytes) -> list[StreamEvent]:
    async def chunks() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async def events() -> list[StreamEvent]:
        return [event async for event in source.stream_response(chunks(), CONTEXT)]

    return asyncio.run(events())


CHUNK = (
    b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hi.","tool_calls":'
    b'[{"index":0,"id":"call_7","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}\n\n'
)
REASON = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def test_ids_of_streamed_calls_are_learned_like_ids_of_whole_replies() -> None:
    source = adapter("groq:llama-3.3-70b-versatile")
    reply = fold(stream_events(source, CHUNK, REASON, DONE))
    assert reply.fault is None
    call = reply.content[1]
    assert isinstance(call, ToolUseBlock)
    assert source.ids.entries == (("groq", call.id, "call_7"),)
    assert source.make_message(reply, CONTEXT).content[1].id == call.id
    wire = source.to_wire([source.make_message(reply, CONTEXT), result(call.id)]).wire
    assert wire["messages"][1]["tool_call_id"] == "call_7"


def test_stream_is_read_with_provider_quirks(caplog: pytest.LogCaptureFixture) -> None:
    assert fold(stream_events(adapter("ollama-openai:llama3.2"), CHUNK, DONE)).fault is None
    assert caplog.records == []
    cut = fold(stream_events(adapter("groq:llama-3.3-70b-versatile"), CHUNK, DONE))
    assert cut.fault is not None
    (record,) = caplog.records
    assert (record.session_id, record.message_id, record.code) == ("sess_1", "01HZ002", "stream_incomplete")


def test_request_is_written_with_provider_quirks(caplog: pytest.LogCaptureFixture) -> None:
    options = Options(max_output_tokens=5, user="ann")
    written = adapter("mistral:mistral-large-2512").to_wire([user(TextBlock("Hi."))], options=options)
    assert written.wire["max_tokens"] == 5
    assert "user" not in written.wire
    (loss,) = written.losses
    assert (loss.block_type, loss.session_id, loss.message_id) == ("user", "sess_1", "")
    assert [record.session_id for record in caplog.records] == ["sess_1"]


def test_reasoning_is_sent_only_to_its_own_provider_within_a_dialect() -> None:
    wire_message = {"role": "assistant", "content": "Hi.", "reasoning_content": "hm", "refusal": None}
    wire_message["tool_calls"] = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "x": {"s": 1}}
    ]
    answer = {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": wire_message}],
    }
    home = adapter("deepseek:deepseek-chat")
    message = home.from_wire_response(answer, CONTEXT)
    history = [message, result(message.content[-1].id)]  # type: ignore[union-attr]
    assert home.to_wire(history).wire["messages"][0] == wire_message
    written = adapter("mistral:mistral-large-2512").to_wire(history)
    (call,) = written.wire["messages"][0].pop("tool_calls")
    assert written.wire["messages"][0] == {"role": "assistant", "content": "Hi."}
    assert set(call) == {"id", "type", "function"}
    assert [(loss.block_type, loss.reason) for loss in written.losses] == [
        ("thinking", "reasoning of another provider")
    ]
