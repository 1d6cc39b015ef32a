"""The fast paths of requests give the results of the general path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from dragoman import dialects
from dragoman.dialects.anthropic import fast_path as anthropic_fast_path
from dragoman.dialects.openai_chat import fast_path as chat_fast_path
from dragoman.errors import DragomanError
from tests.corpus import records

ANTHROPIC, CHAT = dialects.load("anthropic"), dialects.load("openai_chat")


def recorded_requests(name: str) -> Iterator[dict[str, Any]]:
    return (record["request"] for _, record in records(name, part="request", sample=150))


def skip_fast_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_fast_path, "read_message", lambda *_: False)
    for module, name in (
        (chat_fast_path, "read_tool"),
        (chat_fast_path, "read_options"),
        (anthropic_fast_path, "read_block"),
        (anthropic_fast_path, "write_blocks"),
    ):
        monkeypatch.setattr(module, name, lambda *_: None)


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
def test_recorded_requests_have_the_same_result_on_both_paths(
    source: str, function: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = list(recorded_requests(source))
    fast = [encode_result(function, wire) for wire in wires]
    skip_fast_paths(monkeypatch)
    assert [encode_result(function, wire) for wire in wires] == fast


def test_most_recorded_messages_and_tools_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: Counter[str] = Counter()
    for name in ("read_message", "read_tool"):
        function = getattr(chat_fast_path, name)

        def count(*args: Any, function: Any = function, name: str = name) -> Any:
            result = function(*args)
            paths[f"{name} fast" if result else f"{name} general"] += 1
            return result

        monkeypatch.setattr(chat_fast_path, name, count)
    for wire in recorded_requests("openai_chat"):
        encode_result(CHAT.read_request, wire)
    assert paths["read_tool fast"] > paths["read_tool general"] / 2
    assert paths["read_message fast"] > paths["read_message general"] / 2


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a lone \ud800"},
        {"role": ["user"], "content": "a role that is none"},
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
def test_invalid_messages_have_the_same_result_on_both_paths(message: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = {"model": "m", "messages": [message]}
    fast = encode_result(CHAT.read_request, wire)
    skip_fast_paths(monkeypatch)
    assert encode_result(CHAT.read_request, wire) == fast
