"""What most traffic looks like has a short way in and out. It leads to the same place as the long one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from dragoman import dialects
from dragoman.cli.prove import read_records
from dragoman.dialects.anthropic import blocks as anthropic_blocks
from dragoman.dialects.anthropic import reply as anthropic_reply
from dragoman.dialects.openai_chat import plain as chat_plain
from dragoman.dialects.openai_chat import request as chat_request
from dragoman.errors import DragomanError
from dragoman.wire.message_builder import MessageBuilder
from tests.conftest import CORPUS, is_sampled


def recorded(dialect: str, part: str) -> Iterator[dict[str, Any]]:
    files = sorted(CORPUS.glob("*.jsonl.gz"))
    if not files:
        pytest.skip(f"no recorded traffic at {CORPUS}; DRAGOMAN_CORPUS names another place")
    for file in files:
        for record in read_records(file):
            if record["dialect"] == dialect and isinstance(record.get(part), dict) and is_sampled(record):
                yield record[part]


def never(*_: Any) -> None:
    return None


def long_way_for_all(listed: list[Any], conversation: MessageBuilder, long_way: chat_plain.GeneralReader) -> None:
    for index, wire in enumerate(listed):
        long_way(wire, f"$.messages[{index}]", conversation)


def told(read: Callable[[Any], Any], wire: Any) -> bytes:
    """All that was read, residue included; or why it was refused."""
    try:
        return msgspec.json.encode(read(wire))
    except (DragomanError, ValueError) as error:
        return repr(error).encode()


def test_chat_requests_are_read_alike_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = list(recorded("openai-chat", "request"))
    short = [told(chat_request.read_request, wire) for wire in wires]
    ways = Counter[str]()
    for wire in wires:
        ways.update("plain" if chat_plain.read_plain_tool(tool) else "long" for tool in wire.get("tools") or ())
    assert ways["plain"] > ways["long"] / 2  # else it is not worth its lines
    monkeypatch.setattr(chat_request, "read_messages", long_way_for_all)
    monkeypatch.setattr(chat_request, "read_plain_tool", never)
    monkeypatch.setattr(chat_request, "read_plain_options", never)
    assert [told(chat_request.read_request, wire) for wire in wires] == short


@pytest.mark.parametrize("part", ["request", "response"])
def test_what_anthropic_says_is_read_alike_either_way(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    anthropic = dialects.load("anthropic")
    read = anthropic.read_request if part == "request" else anthropic.read_reply
    wires = list(recorded("anthropic", part))
    short = [told(read, wire) for wire in wires]
    monkeypatch.setattr(anthropic_blocks, "_read_plain_block", never)
    monkeypatch.setattr(anthropic_reply, "_read_plain_reply", never)
    assert [told(read, wire) for wire in wires] == short


def test_what_anthropic_gets_is_written_alike_either_way() -> None:
    chat, anthropic = dialects.load("openai_chat"), dialects.load("anthropic")
    ways = Counter[str]()
    for name, read in (("openai-chat", chat.read_request), ("anthropic", anthropic.read_request)):
        for wire in recorded(name, "request"):
            try:
                request = read(wire)
            except DragomanError:
                continue  # a record that is broken itself
            for block in (block for message in request.messages for block in message.content):
                plain = anthropic_blocks._write_plain_block(block)
                ways["long" if plain is None else "plain"] += 1
                if plain is not None:
                    assert plain == anthropic_blocks.write_block(block)
    assert ways["plain"] > ways["long"]


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
def test_odd_messages_have_one_outcome(message: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = {"model": "m", "messages": [message]}
    short = told(chat_request.read_request, wire)
    monkeypatch.setattr(chat_request, "read_messages", long_way_for_all)
    assert told(chat_request.read_request, wire) == short
