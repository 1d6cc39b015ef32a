"""Tests against the original packages: their output round-trips, and they accept the output of Dragoman."""

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
WITH_JUDGE = settings(
    FEWER, suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture]
)

# Environments and scripts by format.
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
def judge_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def name(judge_name: str) -> str:
    return judge_name.partition(" ")[0]


@pytest.fixture
def package(judge: Judges, judge_name: str) -> Judge:
    return judge(*JUDGES[judge_name])


def test_output_of_the_package_round_trips(package: Judge, name: str) -> None:
    conversations = package.ask("generate")
    assert conversations
    for title, wire in conversations.items():
        messages = read(name, wire)
        written = get_format(name).write_messages(messages)
        assert json.dumps(written.wire) == json.dumps(wire), title
        assert written.losses == (), title
        assert detect(wire) == name, title


def test_output_of_the_package_can_be_written_in_every_dialect(package: Judge, name: str) -> None:
    for title, wire in package.ask("generate").items():
        messages = read(name, wire)
        for dialect in dialects.callable_names():
            module = dialects.load(dialect)
            written = module.write_request(Request(model="m", messages=messages))
            module.read_request(written.wire)
            texts = [
                block.text
                for message in messages
                if message.role in (Role.USER, Role.ASSISTANT)
                for block in message.content
                if isinstance(block, TextBlock) and block.text.strip()
            ]
            encoded = json.dumps(written.wire)
            assert [text_of_block for text_of_block in texts if json.dumps(text_of_block)[1:-1] not in encoded] == [], (
                title,
                dialect,
            )


def to_doubles(value: Any) -> Any:
    """Return the value with its numbers as in JavaScript."""
    if isinstance(value, dict):
        return {key: to_doubles(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_doubles(item) for item in value]
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


def test_ai_sdk_converts_a_written_session_to_model_messages(judge: Judges) -> None:
    wire = get_format("vercel").write_messages(SESSION).wire
    converted = judge("vercel").ask("convert", wire)
    assert [message["role"] for message in converted] == ["system", "user", "assistant", "tool", "assistant"]
    assert [part["type"] for part in converted[1]["content"]] == ["text", "file", "file"]
    assert [part["type"] for part in converted[2]["content"]] == ["reasoning", "text", "tool-call", "tool-call"]
    results = {part["toolCallId"]: part["output"] for part in converted[3]["content"]}
    assert results == {
        "tu_01": {"type": "text", "value": "# Foo"},
        "tu_02": {"type": "error-text", "value": "no such file"},
    }


def test_langchain_reads_a_written_session(judge: Judges) -> None:
    wire = get_format("langchain").write_messages(SESSION).wire
    content = judge("langchain").ask("read_blocks", wire)
    assert [[block["type"] for block in blocks] for blocks in content] == [
        ["text"],
        ["text", "image", "file"],
        ["reasoning", "text", "tool_call", "tool_call"],
        ["text"],
        ["text"],
        ["text"],
    ]


@WITH_JUDGE
@given(history=histories)
def test_package_accepts_written_output(package: Judge, judge_name: str, history: list[Message]) -> None:
    wire = get_format(judge_name.partition(" ")[0]).write_messages(history).wire
    if judge_name == "ag_ui before 1.0":
        wire = [item for item in wire if is_valid_before_1(item)]
    if wire:
        assert to_doubles(package.ask("validate", wire)) == to_doubles(wire)
