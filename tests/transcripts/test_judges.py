"""The packages that conversations come from, as judges: what they make is given back, and they accept what we write."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dragoman import dialects
from dragoman.exchange import Request
from dragoman.message import Message, Role, TextBlock
from dragoman.transcripts import detect, format_named
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
    messages: tuple[Message, ...] = format_named(name).read_messages(wire, session_id="sess_1", created_at=NOON)
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


def test_what_the_package_makes_is_read_and_given_back(asked: Judge, name: str) -> None:
    conversations = asked.ask("generate")
    assert conversations
    for title, wire in conversations.items():
        messages = read(name, wire)
        written = format_named(name).write_messages(messages)
        assert json.dumps(written.wire) == json.dumps(wire), title
        assert written.losses == (), title
        assert detect(wire) == name, title


def test_what_the_package_makes_can_be_said_in_every_dialect(asked: Judge, name: str) -> None:
    for title, wire in asked.ask("generate").items():
        messages = read(name, wire)
        for dialect in dialects.names():
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


def could_be_said_before_1(item: dict[str, Any]) -> bool:
    """Tools answered with texts only, and there were no handles of files."""
    content = item.get("content")
    if not isinstance(content, list):
        return True
    return item["role"] != "tool" and all(part.get("source", {}).get("type") != "file" for part in content)


@ASKED
@given(history=histories)
def test_the_package_accepts_what_we_write(asked: Judge, whose: str, history: list[Message]) -> None:
    wire = format_named(whose.partition(" ")[0]).write_messages(history).wire
    if whose == "ag_ui before 1.0":
        wire = [item for item in wire if could_be_said_before_1(item)]
    if wire:
        assert asked.ask("validate", wire) == wire
