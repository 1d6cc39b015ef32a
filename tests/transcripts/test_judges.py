"""Compare with the original packages: their output round-trips, and they accept ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dragoman import dialects
from dragoman.exchange import Request
from dragoman.message import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.transcripts import detect, get_format
from tests.transcripts.conftest import Judge
from tests.transcripts.test_laws import FEWER, histories

NOON = datetime(2026, 5, 8, 12, tzinfo=UTC)
ASKED = settings(FEWER, suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture])

# Environments and scripts, by the format that they judge.
JUDGES = {
    "ag_ui": ("ag-ui", "ag_ui"),
    "ag_ui before 1.0": ("ag-ui-before-1", "ag_ui"),
    "langchain": ("langchain", "langchain"),
    "vercel": ("vercel", "vercel"),
}
Judges = Callable[..., Judge]


def read(name: str, wire: Any) -> tuple[Message, ...]:
    messages: tuple[Message, ...] = get_format(name).read_messages(wire, session_id="sess_1", created_at=NOON)
    return messages


@pytest.fixture(params=JUDGES)
def whose(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def name(whose: str) -> str:
    return whose.partition(" ")[0]


@pytest.fixture
def asked(judge: Judges, whose: str) -> Judge:
    return judge(*JUDGES[whose])


def test_output_of_the_package_round_trips(asked: Judge, name: str) -> None:
    conversations = asked.ask("generate")
    assert conversations
    for title, wire in conversations.items():
        messages = read(name, wire)
        written = get_format(name).write_messages(messages)
        assert json.dumps(written.wire) == json.dumps(wire), title
        assert written.losses == (), title
        assert detect(wire) == name, title


def test_output_of_the_package_can_be_written_in_every_dialect(asked: Judge, name: str) -> None:
    for title, wire in asked.ask("generate").items():
        messages = read(name, wire)
        for dialect in dialects.callable_names():
            spoken = dialects.load(dialect)
            written = spoken.write_request(Request(model="m", messages=messages))
            spoken.read_request(written.wire)
            words = [
                block.text
                for message in messages
                if message.role in (Role.USER, Role.ASSISTANT)
                for block in message.content
                if isinstance(block, TextBlock) and block.text.strip()
            ]
            text = json.dumps(written.wire)
            assert [word for word in words if json.dumps(word)[1:-1] not in text] == [], (title, dialect)


def with_doubles(value: Any) -> Any:
    """Return the value with its numbers as in JavaScript."""
    if isinstance(value, dict):
        return {key: with_doubles(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_doubles(item) for item in value]
    return float(value) if type(value) is int else value


def is_valid_before_1(item: dict[str, Any]) -> bool:
    """Return whether a message is valid before 1.0: tool results were text only, and there were no file handles."""
    content = item.get("content")
    if not isinstance(content, list):
        return True
    return item["role"] != "tool" and all(part.get("source", {}).get("type") != "file" for part in content)


SESSION = [
    Message("01HZ0000000000000000000001", "s", Role.SYSTEM, [TextBlock("Be brief.")], MessageMetadata(), NOON),
    Message(
        "01HZ0000000000000000000002",
        "s",
        Role.USER,
        [
            TextBlock("Look."),
            ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png"),
            DocumentBlock(ImageSource("base64", "JVBERi0xLjQK"), "application/pdf", "a.pdf"),
        ],
        MessageMetadata(user_id="ann"),
        NOON,
    ),
    Message(
        "01HZ0000000000000000000003",
        "s",
        Role.ASSISTANT,
        [
            ThinkingBlock("Hm.", "c2ln"),
            TextBlock("I look."),
            ToolUseBlock("tu_01", "read_file", {"path": "a.pdf"}),
            ToolUseBlock("tu_02", "read_file", {}),
        ],
        MessageMetadata(model="anthropic:claude-sonnet-4-6", provider="anthropic"),
        NOON,
    ),
    Message(
        "01HZ0000000000000000000004",
        "s",
        Role.TOOL,
        [ToolResultBlock("tu_02", [TextBlock("no such file")], is_error=True)],
        MessageMetadata(parent_tool_use_id="tu_02"),
        NOON,
    ),
    Message(
        "01HZ0000000000000000000005",
        "s",
        Role.TOOL,
        [ToolResultBlock("tu_01", [TextBlock("# Foo")])],
        MessageMetadata(parent_tool_use_id="tu_01"),
        NOON,
    ),
    Message("01HZ0000000000000000000006", "s", Role.ASSISTANT, [TextBlock("It is Foo.")], MessageMetadata(), NOON),
]


def test_the_ai_sdk_converts_our_session_to_model_messages(judge: Judges) -> None:
    wire = get_format("vercel").write_messages(SESSION).wire
    asked = judge("vercel").ask("converted", wire)
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "tool", "assistant"]
    assert [part["type"] for part in asked[1]["content"]] == ["text", "file", "file"]
    assert [part["type"] for part in asked[2]["content"]] == ["reasoning", "text", "tool-call", "tool-call"]
    results = {part["toolCallId"]: part["output"] for part in asked[3]["content"]}
    assert results == {
        "tu_01": {"type": "text", "value": "# Foo"},
        "tu_02": {"type": "error-text", "value": "no such file"},
    }


def test_langchain_reads_our_session(judge: Judges) -> None:
    wire = get_format("langchain").write_messages(SESSION).wire
    found = judge("langchain").ask("blocks", wire)
    assert [[block["type"] for block in blocks] for blocks in found] == [
        ["text"],
        ["text", "image", "file"],
        ["reasoning", "text", "tool_call", "tool_call"],
        ["text"],
        ["text"],
        ["text"],
    ]


@ASKED
@given(history=histories)
def test_the_package_accepts_our_output(asked: Judge, whose: str, history: list[Message]) -> None:
    wire = get_format(whose.partition(" ")[0]).write_messages(history).wire
    if whose == "ag_ui before 1.0":
        wire = [item for item in wire if is_valid_before_1(item)]
    if wire:
        assert with_doubles(asked.ask("validate", wire)) == with_doubles(wire)
