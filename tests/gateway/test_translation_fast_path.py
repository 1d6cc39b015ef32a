"""Plain text is translated on a fast path. Provider and caller receive the same bytes as from the general path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.gateway import chat_call, fast_path
from tests.gateway.in_process import CompleteResponse, open_gateway
from tests.servers.faulty_server import Answer, ReceivedRequest, make_answer

COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Yes.", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 70,
        "completion_tokens": 9,
        "total_tokens": 79,
        "prompt_tokens_details": {"cached_tokens": 12, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "accepted_prediction_tokens": 2},
    },
    "system_fingerprint": "fp",
}
CLAUDE_REPLY: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "Yes."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2},
}
REPLIES = {"openai_chat": COMPLETION, "anthropic": CLAUDE_REPLY}
TURNS = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Three?\n\nÄ \\ud83d\\ude00 </a>"},
]
Case = tuple[str, dict[str, Any], bool]
SYSTEM = {"role": "system", "content": "Be brief."}


def user(text: Any) -> list[Any]:
    return [{"role": "user", "content": text}]


# Requests of both dialects, and whether the second request with the same options is translated on the fast path.
REQUESTS: dict[str, Case] = {
    "a text": ("both", {"messages": user("hi")}, True),
    "turns": ("both", {"messages": TURNS}, True),
    "options": ("both", {"messages": user("hi"), "temperature": 0.25, "top_p": 1, "stream": False}, True),
    "a temperature that is too high": ("both", {"messages": user("hi"), "temperature": 1.5}, True),
    "an unknown type of an option": ("both", {"messages": user("hi"), "temperature": "hot"}, True),
    "stop strings": ("openai_chat", {"messages": user("hi"), "stop": ["a", " "]}, True),
    "no limit": ("openai_chat", {"messages": user("hi"), "max_tokens": None}, True),
    "the new limit": ("openai_chat", {"messages": user("hi"), "max_completion_tokens": 7}, True),
    "a system message": ("openai_chat", {"messages": [SYSTEM, *TURNS]}, True),
    "a system prompt": ("anthropic", {"messages": TURNS, "system": "Be brief."}, True),
    "stop sequences": ("anthropic", {"messages": user("hi"), "stop_sequences": ["x"], "top_k": 4}, True),
    "a system prompt of blocks": (
        "anthropic",
        {"messages": user("hi"), "system": [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}]},
        True,
    ),
    "space at the end": ("both", {"messages": user("hi ")}, False),
    "a blank text": ("both", {"messages": user(" ")}, False),
    "an empty text": ("both", {"messages": user("")}, False),
    "blocks": ("both", {"messages": user([{"type": "text", "text": "hi"}])}, False),
    "two questions": ("both", {"messages": [*user("a"), *user("b")]}, False),
    "an answer at the end": ("both", {"messages": TURNS[:2]}, False),
    "two system messages": ("openai_chat", {"messages": [SYSTEM, SYSTEM, *user("hi")]}, False),
    "a system message with space": ("openai_chat", {"messages": [{**SYSTEM, "content": " "}, *user("hi")]}, False),
    "a name": ("openai_chat", {"messages": [{"role": "user", "content": "hi", "name": "ann"}]}, False),
    "JSON as the answer": ("openai_chat", {"messages": user("hi"), "response_format": {"type": "json_object"}}, False),
    "an unknown option": ("both", {"messages": user("hi"), "x": 1}, False),
    "a long text": ("both", {"messages": user("word " * 1_200 + ".")}, False),
}
REPLY_CHANGES: dict[str, Case] = {
    "nothing": ("both", {}, True),
    "a tier": ("both", {"service_tier": "default"}, True),
    "another tier": ("both", {"service_tier": "priority"}, True),
    "an unknown tier": ("both", {"service_tier": "x"}, True),
    "no tier": ("both", {"service_tier": None}, True),
    "other characters": ("both", {"text": 'é "quoted" \U0001f600\n'}, True),
    "a cache creation": (
        "anthropic",
        {"usage": {"cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 0}}},
        True,
    ),
    "a cache for an hour": ("anthropic", {"usage": {"cache_creation": {"ephemeral_1h_input_tokens": 1}}}, False),
    "reasoning": ("openai_chat", {"usage": {"completion_tokens_details": {"reasoning_tokens": 4}}}, False),
    "more cached tokens than prompt tokens": (
        "openai_chat",
        {"usage": {"prompt_tokens_details": {"cached_tokens": 99}}},
        False,
    ),
    "negative counts": ("openai_chat", {"usage": {"prompt_tokens": -1}}, False),
    "a blank text": ("both", {"text": " "}, False),
    "no text": ("both", {"text": ""}, False),
    "an unknown field": ("both", {"x": {"y": 1}}, False),
    "no model": ("both", {"model": ""}, False),
}
PATHS = {"anthropic": "openai_chat", "openai_chat": "anthropic"}
VOLATILE = re.compile(rb'"(?:id|created)":(?:"[^"]*"|\d+)')


def cases(table: dict[str, Case]) -> list[Any]:
    return [
        pytest.param((dialect, value, is_fast), id=f"{name}, {dialect}")
        for name, (where, value, is_fast) in table.items()
        for dialect in (PATHS if where == "both" else (where,))
    ]


def make_body(dialect: str, fields: dict[str, Any]) -> bytes:
    model = PATHS[dialect] + ":m"
    return msgspec.json.encode({"model": model, "max_tokens": 64, **fields})


def change_texts(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a request with the same options and other texts."""
    messages = fields["messages"]
    other = [
        {**message, "content": f"another {message['content']}"}
        if type(message["content"]) is str and message["role"] != "system"
        else message
        for message in messages
    ]
    return {**fields, "messages": other}


class Outcome(msgspec.Struct, frozen=True):
    sent: Any  # to the provider
    status: int
    headers: dict[str, str]
    body: bytes


async def translate(folder: Path, dialect: str, bodies: list[bytes], answer: Answer) -> Outcome:
    """Send requests and return the outcome of the last request."""
    folder.mkdir()

    def respond(_: ReceivedRequest) -> Answer:
        return answer

    async with open_gateway(folder, respond, PATHS) as gateway:
        sent: CompleteResponse | None = None
        for body in bodies:
            sent = await gateway.post(dialect, "m", body)
        assert sent is not None
        requests = [
            (request.path, {**request.headers, "host": ""}, request.body) for request in gateway.upstream.requests
        ]
    return Outcome(requests[-1:], sent.status, sent.headers, VOLATILE.sub(b"", sent.body))


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that disables the fast path."""

    def turn_off() -> None:
        monkeypatch.setattr(fast_path, "read_plain", lambda _: None)
        monkeypatch.setattr(fast_path, "translate_reply", lambda *_: None)

    return turn_off


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    calls: list[Any] = []
    original = getattr(chat_call, name)
    monkeypatch.setattr(chat_call, name, lambda *args, **kwargs: calls.append(args) or original(*args, **kwargs))
    return calls


@pytest.mark.parametrize("case", cases(REQUESTS))
async def test_request_is_translated_as_on_general_path(
    tmp_path: Path, case: Case, general: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect, fields, is_fast = case
    translations = count_calls(monkeypatch, "translate_request")
    body, first = make_body(dialect, fields), make_body(dialect, change_texts(fields))
    answer = make_answer(msgspec.json.encode(REPLIES[PATHS[dialect]]))
    fast = await translate(tmp_path / "fast", dialect, [first, body], answer)
    assert (len(translations) == 1) is is_fast
    general()
    assert fast == await translate(tmp_path / "general", dialect, [body], answer)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            b'{"model":"anthropic:m","model":"anthropic:m","messages":[{"role":"user","content":"b"}]}', id="a field"
        ),
        pytest.param(
            b'{"model":"anthropic:m","mo\\u0064el":"anthropic:m","messages":[{"role":"user","content":"b"}]}',
            id="an escaped field",
        ),
        pytest.param(b'{"model":"anthropic:m","messages":[{"role":"user","content":"a","content":"b"}]}', id="a text"),
        pytest.param(
            b'{"model":"anthropic:m","messages":[{"role":"user","content":"a\\ud800"}]}', id="half a character"
        ),
        pytest.param(b'{"model":"anthropic:m","messages":[{"role":"user","content":"\xfa"}]}', id="not UTF-8"),
    ],
)
async def test_invalid_request_is_rejected(tmp_path: Path, body: bytes) -> None:
    first = b'{"model":"anthropic:m","messages":[{"role":"user","content":"a"}]}'
    answer = make_answer(msgspec.json.encode(CLAUDE_REPLY))
    outcome = await translate(tmp_path / "fast", "openai_chat", [first, body], answer)
    assert outcome.status == 400


@pytest.mark.parametrize("provider", PATHS.values())
@pytest.mark.parametrize("dialect", PATHS)
async def test_reply_that_is_not_utf_8_is_an_upstream_error(tmp_path: Path, dialect: str, provider: str) -> None:
    body = b'{"model":"%b:m","max_tokens":64,"messages":[{"role":"user","content":"a"}]}' % provider.encode()
    reply = msgspec.json.encode(REPLIES[provider])
    outcome = await translate(tmp_path / "fast", dialect, [body], make_answer(reply.replace(b"Yes", b"\xfa")))
    assert outcome.status == 502


MESSAGES = b'[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param((b'"stop":%b,"messages":%b', True), id="an option before with the same bytes"),
        pytest.param((b'"messages":%b,"stop":%b', True), id="an option behind with the same bytes"),
        pytest.param((b'"messages":%b,"messages":%b', False), id="messages twice"),
        pytest.param((b'"messages":[],"messages":%b', False), id="messages twice, first empty"),
        pytest.param((b'"stop":{"messages":%b},"messages":%b', False), id="messages inside an option before"),
        pytest.param((b'"messages":%b,"stop":{"messages":%b}', False), id="messages inside an option behind"),
        pytest.param((b'"stop":{"x":%b},"messages" : %b', True), id="the same bytes inside an option"),
        pytest.param((b'"stop":"messages","messages":%b', False), id="the name as an option"),
        pytest.param((rb'"stop":"\"messages\":[","messages":%b', True), id="the name inside a text"),
        pytest.param((b'"messages":%b,"system":[{"type":"text","text":"messages"}]', False), id="the name in a block"),
        pytest.param((b'"messages":{"messages":%b}', False), id="an object of messages"),
    ],
)
async def test_messages_are_located_as_on_general_path(
    tmp_path: Path, dialect: str, case: tuple[bytes, bool], general: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, is_fast = case
    text = b'{"model":"%b:m","max_tokens":64,%b}' % (PATHS[dialect].encode(), fields.replace(b"%b", MESSAGES))
    plain = b'{"model":"%b:m","max_tokens":64,"messages":%b}' % (PATHS[dialect].encode(), MESSAGES)
    other = text.replace(b'"messages":' + MESSAGES, b'"messages":' + MESSAGES.replace(b"hi", b"ho"))
    answer = make_answer(msgspec.json.encode(REPLIES[PATHS[dialect]]))
    translations = count_calls(monkeypatch, "translate_request")
    fast = await translate(tmp_path / "fast", dialect, [plain, other, text], answer)
    assert (len(translations) == 2) is is_fast
    general()
    assert fast == await translate(tmp_path / "general", dialect, [plain, other, text], answer)


@pytest.mark.parametrize("case", cases(REPLY_CHANGES))
async def test_reply_is_translated_as_on_general_path(
    tmp_path: Path, case: Case, general: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, changes, is_fast = case
    readings = count_calls(monkeypatch, "read_reply")
    dialect = PATHS[provider]
    body = make_body(dialect, {"messages": user("hi")})
    answer = make_answer(msgspec.json.encode(change_reply(provider, changes)))
    fast = await translate(tmp_path / "fast", dialect, [body], answer)
    assert (not readings) is is_fast
    general()
    assert fast == await translate(tmp_path / "general", dialect, [body], answer)


def change_reply(provider: str, changes: dict[str, Any]) -> dict[str, Any]:
    reply = msgspec.json.decode(msgspec.json.encode(REPLIES[provider]))
    for name, value in changes.items():
        if name == "usage":
            for key, part in value.items():
                reply["usage"][key] = {**reply["usage"].get(key, {}), **part} if isinstance(part, dict) else part
        elif name == "text" and provider == "anthropic":
            reply["content"][0]["text"] = value
        elif name == "text":
            reply["choices"][0]["message"]["content"] = value
        elif name == "service_tier" and provider == "anthropic":
            reply["usage"][name] = value
        else:
            reply[name] = value
    return reply


async def test_templates_are_not_shared_between_models(tmp_path: Path, general: Any) -> None:
    answer = make_answer(msgspec.json.encode(CLAUDE_REPLY))
    first = b'{"model":"anthropic:claude-3-5-haiku","messages":[{"role":"user","content":"a"}]}'
    body = first.replace(b"claude-3-5-haiku", b"claude-opus-4-1")
    fast = await translate(tmp_path / "fast", "openai_chat", [first, body], answer)
    general()
    assert fast == await translate(tmp_path / "general", "openai_chat", [body], answer)


@pytest.mark.parametrize("case", cases(REPLY_CHANGES))
async def test_reply_of_same_api_is_forwarded_as_on_general_path(
    tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect, changes, _ = case
    readings = count_calls(monkeypatch, "read_reply")
    body = msgspec.json.encode({"model": f"{dialect}:m", "max_tokens": 64, "messages": user("hi")})
    answer = make_answer(msgspec.json.encode(change_reply(dialect, changes)))
    fast = await translate(tmp_path / "fast", dialect, [body], answer)
    is_fast = not readings
    monkeypatch.setattr(fast_path, "is_plain_reply", lambda *_: False)
    assert fast == await translate(tmp_path / "general", dialect, [body], answer)
    assert len(readings) == (1 if is_fast else 2)
    if not changes:
        assert is_fast
