"""Shapes of providers with few recorded exchanges, from their documentation.

Each comes back as it was, is read for what it says, and is converted to every other dialect without a silent change.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman import dialects
from dragoman.event import fold, unfold
from dragoman.exchange import Reply, StopReason, Written
from dragoman.fidelity import measure_conversion
from dragoman.fidelity.reply_comparison import compare_replies
from dragoman.message import ImageBlock, TextBlock, ThinkingBlock, ToolUseBlock
from tests.dialects.test_further_shapes import check, stream_of
from tests.fake_providers import refusals
from tests.fake_providers.test_pairs import MODELS

CHAT = dialects.load("openai_chat")
COUNTS = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
TOP = {"id": "c", "created": 1, "model": "m"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}, "index": 0}


def completion(message: dict[str, Any], finish_reason: Any = "stop", **top: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi.", **message}, "finish_reason": finish_reason}
    return {**TOP, "object": "chat.completion", "choices": [choice], "usage": COUNTS, **top}


def chunk(delta: dict[str, Any], finish_reason: str | None = None, *, choice: Any = None, **top: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason, **(choice or {})}]
    return {**TOP, "object": "chat.completion.chunk", "choices": choices, **top}


def detail(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0, **fields}


def text_thinking_and_calls(reply: Reply) -> tuple[str, str, list[tuple[str, Any]]]:
    text = "".join(block.text for block in reply.content if isinstance(block, TextBlock))
    thinking = "".join(block.text for block in reply.content if isinstance(block, ThinkingBlock))
    return text, thinking, [(block.name, block.input) for block in reply.content if isinstance(block, ToolUseBlock)]


def silent_losses(value: Any, source: str) -> list[Any]:
    others = [dialects.load(name) for name in dialects.names() if name != source]
    findings = [(other.NAME, found) for other in others for found in measure_conversion(value, other)]
    return [finding for finding in findings if finding[1].outcome == "silent"]


def silent_stream_losses(events: list[Any], reply: Reply, source: str) -> list[Any]:
    found = []
    for name in dialects.names():
        if name != source:
            writer, reader = dialects.load(name).stream_writer(), dialects.load(name).stream_reader()
            data = b"".join([*(writer.feed(event) for event in events), writer.close()])
            again = fold([*reader.feed(data), *reader.close()])
            written = Written(None, tuple(writer.losses) * len(reply.content))  # a stream reports each loss once
            found += [
                (name, finding)
                for finding in compare_replies(reply, written, again, name)
                if finding.outcome == "silent"
            ]
    return found


# --- streams of Chat Completions -------------------------------------------------------------------------------------

FILTER = {"hate": {"filtered": False, "severity": "safe"}}
LATE = {"content_filter_offsets": {"check_offset": 1}, "content_filter_results": FILTER, "finish_reason": None}
STREAMS: dict[str, tuple[list[dict[str, Any]], tuple[str, str, list[Any]]]] = {
    "reasoning_content and reasoning_details": (
        [
            chunk({"role": "assistant", "content": "", "reasoning_content": "H", "reasoning_details": [detail("H")]}),
            chunk({"content": "", "reasoning_content": "m.", "reasoning_details": [detail("m.")]}),
            chunk({"content": "Hi."}, "stop", usage=COUNTS),
        ],
        ("Hi.", "Hm.", []),
    ),
    "three keys and a late signature": (
        [
            chunk({"reasoning_content": "Hm.", "reasoning": "Hm.", "reasoning_details": [detail("Hm.")]}),
            chunk({"reasoning_details": [detail("", signature="sig")]}),
            chunk({"content": "Hi."}, "stop"),
        ],
        ("Hi.", "Hm.", []),
    ),
    "reasoning_content and encrypted details": (
        [
            chunk({"role": "assistant", "reasoning_content": "Hm", "reasoning_details": []}),
            chunk({"reasoning_content": ".", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}),
            chunk({"content": "Hi."}, "stop"),
        ],
        ("Hi.", "Hm.", []),
    ),
    "reasoning_details after reasoning_content, with another text": (
        [
            chunk({"reasoning_content": "Hm."}),
            chunk({"reasoning_details": [detail("Well.")]}),
            chunk({"content": "Hi."}, "stop"),
        ],
        ("Hi.", "Hm.", []),
    ),
    "usage in the choice (Moonshot)": (
        [chunk({"role": "assistant", "content": "Hi."}), chunk({}, "stop", choice={"usage": COUNTS})],
        ("Hi.", "", []),
    ),
    "usage in every chunk (vLLM)": (
        [
            chunk({"role": "assistant", "content": ""}, usage={**COUNTS, "completion_tokens": 0}),
            chunk({"content": "Hi."}, usage=COUNTS),
            chunk({"content": ""}, "stop", choice={"stop_reason": None}, usage=COUNTS),
        ],
        ("Hi.", "", []),
    ),
    "a filter that reports late (Azure)": (
        [
            {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": []},
            chunk({"role": "assistant", "content": "Hi."}, choice={"content_filter_results": FILTER}),
            chunk({}, "stop", choice={"content_filter_results": {}}),
            {"choices": [{"index": 0, **LATE}], "created": 0, "id": "", "model": "", "object": ""},
        ],
        ("Hi.", "", []),
    ),
    "a last chunk that repeats the message (MiniMax)": (
        [chunk({"role": "assistant", "content": "Hi"}), chunk({"content": "."}), completion({})],
        ("Hi.", "", []),
    ),
    "calls without an index (Gemini)": (
        [chunk({"tool_calls": [CALL]}), chunk({"tool_calls": [{**CALL, "id": "c2"}]}), chunk({}, "stop")],
        ("", "", [("f", {"a": 1}), ("f", {"a": 1})]),
    ),
    "an empty legacy call (Snowflake)": (
        [
            chunk({"role": "assistant", "content": None, "function_call": {"name": "", "arguments": ""}}),
            chunk({"content": "Hi.", "function_call": {"name": "", "arguments": ""}}, "stop"),
        ],
        ("Hi.", "", []),
    ),
    "images (OpenRouter)": (
        [
            chunk({"role": "assistant", "content": "Hi."}),
            chunk({"content": "", "images": [IMAGE]}),
            chunk({"images": [{**IMAGE, "index": 1}]}, "stop"),
        ],
        ("Hi.", "", []),
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_provider_stream_has_same_content_in_every_dialect(name: str) -> None:
    wires, expected = STREAMS[name]
    stream = stream_of(wires, done=True)
    check(CHAT, "stream", stream)
    reader = CHAT.stream_reader()
    events = [*reader.feed(stream.encode()), *reader.close()]
    reply = fold(events)
    assert reply.fault is None
    assert text_thinking_and_calls(reply) == expected
    assert ("usage" in str(wires)) == (reply.usage is not None)
    assert sum(isinstance(block, ImageBlock) for block in reply.content) == str(wires).count("'image_url':")
    assert silent_losses(reply, "openai_chat") == []
    assert silent_stream_losses(events, reply, "openai_chat") == []


# --- replies ---------------------------------------------------------------------------------------------------------

FINISH_REASONS = {
    "STOP": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "sensitive": StopReason.REFUSAL,
    "SAFETY": StopReason.REFUSAL,
    "network_error": StopReason.ERROR,
    "insufficient_system_resource": StopReason.ERROR,
    "a_newer_word": StopReason.UNKNOWN,
}


@pytest.mark.parametrize("finish_reason", FINISH_REASONS)
def test_finish_reason_of_gateway_is_known(finish_reason: str) -> None:
    wire = completion({}, finish_reason)
    check(CHAT, "response", wire)
    reply = CHAT.read_reply(wire)
    assert reply.stop_reason is FINISH_REASONS[finish_reason]
    assert (reply.fault is not None) == (reply.stop_reason is StopReason.ERROR)


def test_reply_emptied_by_filter_is_a_refusal() -> None:
    wire = completion({"content": None}, "sensitive", content_filter=[{"role": "assistant", "level": 0}])
    check(CHAT, "response", wire)
    assert (CHAT.read_reply(wire).stop_reason, CHAT.read_reply(wire).fault) == (StopReason.REFUSAL, None)


@pytest.mark.parametrize(
    "wire",
    [
        completion({"tool_calls": [{"index": None, **CALL}, {"index": None, **CALL, "id": "c2"}]}, "tool_calls"),
        completion({"tool_calls": [CALL]}, ""),
        completion({"tool_calls": [CALL]}, None),
        completion({"function_call": {"name": "", "arguments": ""}}),
    ],
    ids=["calls without an index (Writer)", "no finish reason", "null as the finish reason", "an empty legacy call"],
)
def test_whole_reply_streams_with_same_content(wire: dict[str, Any]) -> None:
    check(CHAT, "response", wire)
    reply = CHAT.read_reply(wire)
    writer, reader = CHAT.stream_writer(), CHAT.stream_reader()
    data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
    again = fold([*reader.feed(data), *reader.close()])
    assert (again.fault, again.stop_reason) == (None, reply.stop_reason)
    assert text_thinking_and_calls(again) == text_thinking_and_calls(reply)
    frames = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    ends = [choice["finish_reason"] for frame in frames for choice in frame["choices"] if choice["finish_reason"]]
    assert ends == ["tool_calls" if reply.stop_reason is StopReason.TOOL_USE else "stop"]


def test_whole_reply_without_finish_reason_streams_as_complete() -> None:
    wire = completion({}, "")
    absent = {**wire, "choices": [{key: wire["choices"][0][key] for key in ("index", "message")}]}
    for body in (wire, absent):
        check(CHAT, "response", body)
        reply = CHAT.read_reply(body)
        writer, reader = CHAT.stream_writer(), CHAT.stream_reader()
        data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
        again = fold([*reader.feed(data), *reader.close()])
        assert (reply.stop_reason, again.stop_reason, again.fault) == (StopReason.UNKNOWN, StopReason.END_TURN, None)


def test_images_of_reply_round_trip() -> None:
    wire = completion({"content": None, "images": [IMAGE]})
    check(CHAT, "response", wire)
    reply = CHAT.read_reply(wire)
    assert [type(block) for block in reply.content] == [ImageBlock]
    assert silent_losses(reply, "openai_chat") == []
    messages = [
        {"role": "user", "content": "Draw."},
        {"role": "assistant", "content": "", "images": [IMAGE]},
        {"role": "user", "content": "Again."},
    ]
    request = {"model": "m", "messages": messages}
    check(CHAT, "request", request)
    assert silent_losses(CHAT.read_request(request), "openai_chat") == []
    check(CHAT, "response", completion({"images": [IMAGE, {"type": "a_newer_image"}]}))


@pytest.mark.parametrize(("code", "expected"), [(1004, "unauthorized"), (1002, "rate_limited"), (1, "server_error")])
def test_failed_minimax_status_is_a_fault(code: int, expected: str) -> None:
    wire = {"id": "c", "choices": None, "base_resp": {"status_code": code, "status_msg": "no"}}
    check(CHAT, "response", wire)
    fault = CHAT.read_reply(wire).fault
    assert fault is not None
    assert (fault.code, fault.message, fault.provider_code) == (expected, "no", str(code))
    reader = CHAT.stream_reader()
    streamed = fold([*reader.feed(stream_of([wire]).encode()), *reader.close()]).fault
    assert streamed is not None
    assert streamed.code == expected
    complete = completion({}, base_resp={"status_code": 0, "status_msg": ""})
    assert CHAT.read_reply(complete).fault is None


def test_tier_without_counts_round_trips() -> None:
    wire = completion({}, usage={}, service_tier="default")
    check(CHAT, "response", wire)
    assert silent_losses(CHAT.read_reply(wire), "openai_chat") == []


def test_ollama_generate_stream_has_each_logprob_once() -> None:
    generate = dialects.load("ollama_generate")
    tokens = [
        {"token": finish_reason, "logprob": -0.5, "bytes": None, "top_logprobs": []} for finish_reason in ("Hi", ".")
    ]
    lines: list[dict[str, Any]] = [
        {"model": "m", "created_at": "t", "response": each["token"], "done": False, "logprobs": [each]}
        for each in tokens
    ]
    lines.append({"model": "m", "created_at": "t", "response": "", "done": True, "done_reason": "stop"})
    reader = generate.stream_reader()
    events = [*reader.feed("".join(json.dumps(line) + "\n" for line in lines).encode()), *reader.close()]
    writer, again = generate.stream_writer(), generate.stream_reader()
    data = b"".join([*(writer.feed(event) for event in events), writer.close()])
    for reply in (fold(events), fold([*again.feed(data), *again.close()])):
        (text,) = reply.content
        assert isinstance(text, TextBlock)
        assert [item.token for item in text.token_logprobs] == ["Hi", "."]


def test_anthropic_error_with_status_200_is_a_fault() -> None:
    anthropic = dialects.load("anthropic")
    wire = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}, "request_id": None}
    check(anthropic, "response", wire)
    fault = anthropic.read_reply(wire).fault
    assert fault is not None
    assert (fault.code, fault.message) == ("overloaded", "busy")


USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [USE]}
ENDS: dict[str, dict[str, Any]] = {
    "anthropic": {
        **MESSAGE,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 5},
    },
    "bedrock_converse": {
        "output": {
            "message": {
                "role": "assistant",
                "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}],
            }
        },
        "stopReason": "end_turn",
        "usage": {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8},
    },
    "cohere": {
        "id": "i",
        "finish_reason": "COMPLETE",
        "message": {"role": "assistant", "tool_calls": [CALL]},
    },
}
CONVERSE_EVENTS: list[dict[str, Any]] = [
    {"messageStart": {"role": "assistant"}},
    {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t", "name": "f"}}, "contentBlockIndex": 0}},
    {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}, "contentBlockIndex": 0}},
    {"contentBlockStop": {"contentBlockIndex": 0}},
    {"messageStop": {"stopReason": "end_turn"}},
    {"metadata": {"usage": {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8}}},
]
ANTHROPIC_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**ENDS["anthropic"], "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": USE},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]


@pytest.mark.parametrize("name", ENDS)
def test_reply_with_calls_stops_for_tool_use(name: str) -> None:
    check(dialects.load(name), "response", ENDS[name])
    reply = dialects.load(name).read_reply(ENDS[name])
    assert reply.stop_reason is StopReason.TOOL_USE
    assert silent_losses(reply, name) == []


def test_stream_with_calls_stops_for_tool_use() -> None:
    check(dialects.load("anthropic"), "stream", stream_of(ANTHROPIC_EVENTS, named=True))
    for name, framing, data in (
        ("anthropic", None, stream_of(ANTHROPIC_EVENTS, named=True)),
        ("bedrock_converse", "ndjson", "".join(json.dumps(event) + "\n" for event in CONVERSE_EVENTS)),
    ):
        reader = dialects.load(name).stream_reader(framing)
        assert fold([*reader.feed(data.encode()), *reader.close()]).stop_reason is StopReason.TOOL_USE


@pytest.mark.parametrize("started", ["", '{"a":1}', "{}"])
def test_arguments_of_call_start_may_repeat_in_deltas(started: str) -> None:
    responses = dialects.load("openai_responses")
    item = {"type": "function_call", "id": "f1", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
    response = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": []}
    place = {"item_id": "f1", "output_index": 0}
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": started}},
        {"type": "response.function_call_arguments.delta", **place, "delta": '{"a":'},
        {"type": "response.function_call_arguments.delta", **place, "delta": "1}"},
        {"type": "response.function_call_arguments.done", **place, "arguments": '{"a":1}'},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**response, "status": "completed", "output": [item]}},
    ]
    check(responses, "stream", stream_of(events, named=True))
    reader = responses.stream_reader()
    reply = fold([*reader.feed(stream_of(events, named=True).encode()), *reader.close()])
    assert text_thinking_and_calls(reply) == ("", "", [("f", {"a": 1})])


# --- requests --------------------------------------------------------------------------------------------------------

ASK = {"role": "user", "content": "Hi."}
SERVER_TOOLS = [{"type": "web_search", "filters": {"allowed_domains": ["a"]}}, {"type": "web_search_preview"}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a function without a schema type": ("openai_chat", {"functions": [{"name": "f", "parameters": {}}]}),
    "a tool without a schema type": (
        "openai_chat",
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}]},
    ),
    "audio as a data URL (Alibaba Cloud)": (
        "openai_chat",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_audio", "input_audio": {"data": "data:;base64,UklGRg==", "format": "mp3"}},
                        {"type": "text", "text": "What is it?"},
                    ],
                }
            ]
        },
    ),
    "results without ids": (
        "openai_chat",
        {
            "messages": [
                ASK,
                {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": ""}]},
                {"role": "tool", "content": "r"},
            ]
        },
    ),
    "options of vLLM": ("openai_chat", {"chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1}),
    "options of Z.ai": ("openai_chat", {"thinking": {"type": "enabled"}, "do_sample": False, "tool_stream": True}),
    "tools of Z.ai": ("openai_chat", {"tools": [{"type": "web_search", "web_search": {"enable": True}}]}),
    "nulls": ("openai_chat", {"tools": None, "tool_choice": None, "stop": None, "n": None, "reasoning_effort": None}),
    "nulls of Anthropic": ("anthropic", {"system": None, "tools": None, "thinking": None, "metadata": None}),
    "an empty message": ("anthropic", {"messages": [ASK, {"role": "assistant", "content": []}, ASK]}),
    "a user and a safety identifier": ("openai_chat", {"user": "u", "safety_identifier": "s"}),
    "two searches": ("openai_responses", {"tools": SERVER_TOOLS}),
    "a summary of a certain length": ("openai_responses", {"reasoning": {"effort": "high", "summary": "detailed"}}),
    "a summary of a newer kind": ("openai_responses", {"reasoning": {"effort": "high", "summary": "a_newer_kind"}}),
    "an empty effort": ("openai_chat", {"reasoning_effort": ""}),
    "a prompt for Claude 2 with the version of Messages": (
        "bedrock_invoke",
        {
            "prompt": "\n\nHuman: Hi.\n\nAssistant:",
            "max_tokens_to_sample": 10,
            "anthropic_version": "bedrock-2023-05-31",
        },
    ),
    "a file without a type": (
        "gemini",
        {
            "contents": [
                {
                    "role": "user",
                    "parts": [{"text": "See."}, {"inlineData": {"mimeType": "", "data": "JVBERg=="}}],
                }
            ]
        },
    ),
}
BASES: dict[str, dict[str, Any]] = {
    "bedrock_invoke": {},
    "gemini": {},
    "openai_chat": {"model": "m", "messages": [ASK]},
    "anthropic": {"model": "m", "max_tokens": 100, "messages": [ASK]},
    "openai_responses": {"model": "m", "input": "Hi."},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_provider_request_is_accepted_by_every_dialect(name: str) -> None:
    source, fields = REQUESTS[name]
    wire = {**BASES[source], **fields}
    check(dialects.load(source), "request", wire)
    request = dialects.load(source).read_request(wire)
    assert silent_losses(request, source) == []
    for target, models in MODELS.items():
        for model in models if target != source else ():
            written = dialects.load(target).write_request(request.replace(model=model))
            assert refusals(target, written.wire, None, model) == []


FLAG_LOGPROBS: dict[str, dict[str, Any]] = {
    "openai_chat": {
        **TOP,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi."},
                "logprobs": {"content": [{"token": "Hi.", "logprob": True, "bytes": None, "top_logprobs": []}]},
                "finish_reason": "stop",
            }
        ],
        "usage": COUNTS,
    },
    "gemini": {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": "Hi."}]},
                "finishReason": "STOP",
                "logprobsResult": {"chosenCandidates": [{"token": "Hi.", "logProbability": True}]},
            }
        ]
    },
}


@pytest.mark.parametrize("name", FLAG_LOGPROBS)
def test_boolean_is_not_a_logprob(name: str) -> None:
    """The store could not read a boolean in place of a number."""
    dialect = dialects.load(name)
    check(dialect, "response", FLAG_LOGPROBS[name])
    (block,) = dialect.read_reply(FLAG_LOGPROBS[name]).content
    assert isinstance(block, TextBlock)
    assert block.token_logprobs == ()
