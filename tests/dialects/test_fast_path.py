"""The fast paths of requests and replies have the same results as the general path."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from dragoman import catalog, dialects
from dragoman.dialects.anthropic import fast_path as anthropic_fast_path
from dragoman.dialects.openai_chat import fast_path as chat_fast_path
from dragoman.dialects.openai_chat import request as chat_request
from dragoman.errors import DragomanError
from dragoman.gateway.translation import translate_request
from dragoman.wire import preparation
from tests.corpus import records

ANTHROPIC, CHAT = dialects.load("anthropic"), dialects.load("openai_chat")


def read_recorded_requests(name: str) -> Iterator[dict[str, Any]]:
    return (record["request"] for _, record in records(name, part="request", sample=75))


def read_every_message(wires: list[Any], builder: Any, read: Callable[..., None]) -> None:
    """Read messages with the general path."""
    for index, wire in enumerate(wires):
        read(wire, f"$.messages[{index}]", builder)


def skip_fast_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_fast_path, "read_messages", read_every_message)
    for module, name in (
        (chat_fast_path, "read_tool"),
        (chat_fast_path, "read_options"),
        (anthropic_fast_path, "read_block"),
        (anthropic_fast_path, "read_result"),
        (anthropic_fast_path, "read_tool"),
        (chat_fast_path, "read_reply"),
        (anthropic_fast_path, "write_blocks"),
        (anthropic_fast_path, "read_reply"),
    ):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(preparation, "is_plain_history", lambda *_: False)


def encode_result(read: Callable[[Any], Any], wire: Any) -> bytes:
    """Return the result with its residue as JSON, or the error."""
    try:
        return msgspec.json.encode(read(wire))
    except (DragomanError, ValueError) as error:
        return repr(error).encode()


def convert(wire: Any) -> Any:
    return ANTHROPIC.write_request(CHAT.read_request(wire))


def read_and_write(wire: Any) -> Any:
    request = ANTHROPIC.read_request(wire)
    return request, ANTHROPIC.write_request(request)


@pytest.mark.parametrize(
    ("source", "function"),
    [("openai_chat", CHAT.read_request), ("openai_chat", convert), ("anthropic", read_and_write)],
    ids=["chat is read", "chat becomes anthropic", "anthropic is read and written"],
)
def test_recorded_requests_have_same_result_on_both_paths(
    source: str, function: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = list(read_recorded_requests(source))
    fast = [encode_result(function, wire) for wire in wires]
    skip_fast_paths(monkeypatch)
    assert [encode_result(function, wire) for wire in wires] == fast


@pytest.mark.parametrize("name", ["openai_chat", "anthropic"])
def test_recorded_replies_have_same_result_on_both_paths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = dialects.load(name)
    wires = [record["response"] for _, record in records(name, part="response", sample=150)]
    fast = [encode_result(dialect.read_reply, wire) for wire in wires]
    skip_fast_paths(monkeypatch)
    assert [encode_result(dialect.read_reply, wire) for wire in wires] == fast


CHAT_MESSAGE = {"role": "assistant", "content": "Hm.", "refusal": None}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
CHAT_CHOICE = {"index": 0, "message": CHAT_MESSAGE, "logprobs": None, "finish_reason": "stop"}
CHAT_USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
CHAT_DETAILS = {
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {"audio_tokens": 0, "reasoning_tokens": 0, "accepted_prediction_tokens": 0},
}
CHAT_REPLY = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [CHAT_CHOICE]}
CALLS_MESSAGE = {**CHAT_MESSAGE, "tool_calls": [CHAT_CALL]}
CALLS_CHOICE = {**CHAT_CHOICE, "message": CALLS_MESSAGE, "finish_reason": "tool_calls"}


def chat_reply(choice: Any = CHAT_CHOICE, **fields: Any) -> dict[str, Any]:
    return {**CHAT_REPLY, "choices": [choice], "usage": CHAT_USAGE, **fields}


CHAT_REPLIES = [
    chat_reply(),
    chat_reply(CALLS_CHOICE),
    chat_reply({**CALLS_CHOICE, "message": {**CALLS_MESSAGE, "content": None}}),
    chat_reply({**CALLS_CHOICE, "message": {**CALLS_MESSAGE, "tool_calls": [CHAT_CALL, CHAT_CALL]}}),
    chat_reply({**CALLS_CHOICE, "message": {**CALLS_MESSAGE, "tool_calls": []}}),
    chat_reply({**CALLS_CHOICE, "finish_reason": "stop"}),
    chat_reply({**CHAT_CHOICE, "finish_reason": "tool_calls"}),
    chat_reply({**CHAT_CHOICE, "index": 0.0}),
    chat_reply({**CHAT_CHOICE, "index": False}),
    chat_reply({**CHAT_CHOICE, "logprobs": {}}),
    chat_reply({**CHAT_CHOICE, "message": {**CHAT_MESSAGE, "content": ""}}),
    chat_reply({**CHAT_CHOICE, "message": {**CHAT_MESSAGE, "annotations": [], "audio": None, "function_call": None}}),
    chat_reply({**CHAT_CHOICE, "message": {**CHAT_MESSAGE, "refusal": False}}),
    chat_reply(id="chatcmpl-dragoman", created=0),
    chat_reply(created=True),
    chat_reply(service_tier="default", system_fingerprint="fp"),
    chat_reply(system_fingerprint=None, service_tier=None),
    chat_reply(service_tier="fast"),
    chat_reply(service_tier=""),
    chat_reply(model=""),
    chat_reply(further={"deep": [1]}),
    *(
        chat_reply(usage=usage)
        for usage in (
            {},
            {"prompt_tokens": 9},
            {**CHAT_USAGE, "prompt_tokens": 9.0},
            {**CHAT_USAGE, "prompt_tokens": -1},
            {**CHAT_USAGE, "prompt_tokens": 10**9},
            {**CHAT_USAGE, "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 8}},
            {**CHAT_USAGE, "prompt_tokens_details": {"cached_tokens": 10}},
            {**CHAT_USAGE, "prompt_tokens_details": None},
            {**CHAT_USAGE, "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 2}},
            {**CHAT_USAGE, "completion_tokens_details": {"reasoning_tokens": 6}},
            {**CHAT_USAGE, "total_tokens": 17, "completion_tokens_details": {"reasoning_tokens": 3}},
            {**CHAT_USAGE, **CHAT_DETAILS},
            {**CHAT_USAGE, **CHAT_DETAILS, "total_tokens": 15},
            {**CHAT_USAGE, **CHAT_DETAILS, "prompt_tokens_details": {"cached_tokens": 4}},
            {**CHAT_USAGE, **CHAT_DETAILS, "prompt_tokens_details": {"audio_tokens": 0}},
            {**CHAT_USAGE, **CHAT_DETAILS, "prompt_tokens_details": {"cached_tokens": 9, "audio_tokens": 8}},
            {**CHAT_USAGE, **CHAT_DETAILS, "completion_tokens_details": {"reasoning_tokens": 2}},
            {**CHAT_USAGE, **CHAT_DETAILS, "completion_tokens_details": {}},
            {**CHAT_USAGE, **CHAT_DETAILS, "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 1}},
        )
    ),
]
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hm."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 4},
}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
MESSAGES = [
    MESSAGE,
    {**MESSAGE, "id": "msg_dragoman"},
    {**MESSAGE, "content": [TOOL_USE], "stop_reason": "tool_use"},
    {**MESSAGE, "content": [TOOL_USE, TOOL_USE], "stop_reason": "tool_use"},
    {**MESSAGE, "content": []},
    {**MESSAGE, "content": [{"type": "text", "text": ""}]},
    {**MESSAGE, "content": [{"type": "text", "text": "Hm.", "citations": None}]},
    {**MESSAGE, "stop_reason": "max_tokens"},
    {**MESSAGE, "stop_sequence": "x"},
    {**MESSAGE, "model": ""},
    {**MESSAGE, "container": None},
    *(
        {**MESSAGE, "usage": usage}
        for usage in (
            {},
            None,
            {"input_tokens": 1, "output_tokens": 2, "service_tier": "standard"},
            {"input_tokens": 1, "output_tokens": 2, "service_tier": "slow"},
            {"input_tokens": True, "output_tokens": 2},
            {**MESSAGE["usage"], "input_tokens": True},
            {**MESSAGE["usage"], "input_tokens": 1.0},
            {**MESSAGE["usage"], "service_tier": "standard"},
            {**MESSAGE["usage"], "service_tier": None},
            {"input_tokens": 1, "output_tokens": 2, "cache_creation": {"ephemeral_1h_input_tokens": 0}},
            {"input_tokens": 1, "output_tokens": 2, "server_tool_use": {"web_search_requests": 2}},
            {"input_tokens": 1, "output_tokens": 2, "iterations": [{"deep": [1]}]},
        )
    ),
]


@pytest.mark.parametrize(("name", "wires"), [("openai_chat", CHAT_REPLIES), ("anthropic", MESSAGES)])
def test_unusual_replies_have_same_result_on_both_paths(
    name: str, wires: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = dialects.load(name)
    fast = [encode_result(dialect.read_reply, wire) for wire in wires]
    skip_fast_paths(monkeypatch)
    assert [encode_result(dialect.read_reply, wire) for wire in wires] == fast


def write_in_every_dialect(wire: Any) -> Any:
    request = CHAT.read_request(wire)
    return [dialects.load(name).write_request(request) for name in dialects.names()]


def write_anthropic_in_every_dialect(wire: Any) -> Any:
    request = ANTHROPIC.read_request(wire)
    return [dialects.load(name).write_request(request) for name in dialects.names()]


def translate_to_every_dialect(source: str, wire: Any) -> Any:
    """Write a request as the gateway does, with ids that the provider issued."""
    request = dialects.load(source).read_request(wire)
    model = catalog.builtin().model("openai:gpt-5")
    return [
        translate_request(request, source, model, catalog.Provider(key="p", title="P", dialect=name), stream=False)
        for name in dialects.names()
    ]


@pytest.mark.parametrize(
    ("source", "function"),
    [
        ("openai_chat", write_in_every_dialect),
        ("anthropic", write_anthropic_in_every_dialect),
        ("openai_chat", functools.partial(translate_to_every_dialect, "openai_chat")),
        ("anthropic", functools.partial(translate_to_every_dialect, "anthropic")),
    ],
)
def test_plain_histories_have_same_result_on_both_paths(
    source: str, function: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = list(read_recorded_requests(source))[:60]
    fast = [encode_result(function, wire) for wire in wires]
    monkeypatch.setattr(preparation, "is_plain_history", lambda *_: False)
    assert [encode_result(function, wire) for wire in wires] == fast


def test_most_recorded_messages_and_tools_use_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    general: Counter[str] = Counter()
    for name in ("_read_message", "_read_tool"):
        function = getattr(chat_request, name)

        def count(*args: Any, function: Any = function, name: str = name) -> Any:
            general[name] += 1
            return function(*args)

        monkeypatch.setattr(chat_request, name, count)
    messages = tools = 0
    for wire in read_recorded_requests("openai_chat"):
        request = read_or_none(wire)
        if request is not None:
            messages, tools = messages + len(request.messages), tools + len(request.tools)
    assert messages > general["_read_message"] * 1.5
    assert tools > general["_read_tool"] * 1.5


def read_or_none(wire: Any) -> Any:
    try:
        return CHAT.read_request(wire)
    except DragomanError:
        return None


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a lone \ud800"},
        {"role": ["user"], "content": "an invalid role"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": 1}]},
        {"role": "tool", "tool_call_id": None, "content": "no id"},
        "no object",
        *(
            {
                "role": "assistant",
                "content": "Hm.",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}],
            }
            for arguments in (
                "",
                "[1]",
                '{"a":1,"a":2}',
                '{"a":NaN}',
                '{"a": 1}',
                '{"a":1e400}',
                '"\\ud800"',
                "[" * 300,
            )
        ),
    ],
)
def test_invalid_messages_have_same_result_on_both_paths(message: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = {"model": "m", "messages": [message]}
    fast = encode_result(CHAT.read_request, wire)
    skip_fast_paths(monkeypatch)
    assert encode_result(CHAT.read_request, wire) == fast


def make_result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Hm.", **fields}


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"name": "f", "description": "Reads.", "input_schema": SCHEMA}
CALLS: dict[str, Any] = {"role": "assistant", "content": [TOOL_USE]}
RESULTS: list[dict[str, Any]] = [
    make_result(),
    make_result(content=""),
    make_result(content=[]),
    make_result(content=None),
    make_result(content={}),
    make_result(content=[{"type": "text", "text": "a"}, {"type": "text", "text": ""}]),
    make_result(content=[{"type": "text", "text": "a", "citations": []}]),
    make_result(content=[{"type": "text", "text": 1}]),
    make_result(content=["a"]),
    make_result(content=[{"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}]),
    make_result(tool_use_id=""),
    make_result(tool_use_id="tu_01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    make_result(tool_use_id="other"),
    make_result(tool_use_id="function_call:f"),
    *(make_result(is_error=flag) for flag in (True, False, None, 1)),
    make_result(cache_control={"type": "ephemeral"}),
    make_result(further=1),
]
TOOLS = [
    TOOL,
    {**TOOL, "description": ""},
    {**TOOL, "description": None},
    {**TOOL, "type": "custom"},
    {**TOOL, "type": "bash_20250124"},
    {**TOOL, "strict": True},
    {**TOOL, "cache_control": {"type": "ephemeral"}},
    {**TOOL, "input_schema": {"a": float("nan")}},
    {**TOOL, "input_schema": None},
    {"name": "f", "input_schema": SCHEMA},
    {"name": 1, "description": "Reads.", "input_schema": SCHEMA},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
]
CALL_REQUESTS = [
    *({"messages": [CALLS, {"role": "user", "content": [result]}]} for result in RESULTS),
    *({"messages": [CALLS, {"role": "user", "content": [make_result(), part]}]} for part in (make_result(), TOOL_USE)),
    *({"messages": [{"role": "user", "content": "Hi."}], "tools": [tool]} for tool in TOOLS),
]


@pytest.mark.parametrize(
    "function", [read_and_write, functools.partial(translate_to_every_dialect, "anthropic")], ids=["read", "translate"]
)
def test_unusual_results_and_tools_have_same_result_on_both_paths(
    function: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = [{"model": "m", "max_tokens": 9, **fields} for fields in CALL_REQUESTS]
    fast = [encode_result(function, wire) for wire in wires]
    skip_fast_paths(monkeypatch)
    assert [encode_result(function, wire) for wire in wires] == fast
