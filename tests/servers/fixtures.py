"""Servers that are started once for each process of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.servers.processes import run_aimock, run_llama

WORDS: Final = "It is the readme of Project Foo – très bref! 😀"
LLAMA_WORDS: Final = WORDS.replace("Foo –", "Foo\u00a0–")  # the same, with a space that does not break
THOUGHT: Final = "The user wants it short."
COUNTS: Final = {
    "input_tokens": 40,
    "output_tokens": 12,
    "promptTokenCount": 40,
    "candidatesTokenCount": 12,
    "totalTokenCount": 52,
}


def call(number: int, **arguments: str) -> dict[str, Any]:
    """A call of read_file as aimock makes it."""
    import json

    return {"id": f"theirs-{number}", "name": "read_file", "arguments": json.dumps(arguments)}


# What aimock answers, by what the last message of the user contains. The first one that matches counts.
ANSWERS: Final[list[dict[str, Any]]] = [
    {
        "match": {"userMessage": "limited"},
        "response": {
            "error": {"message": "Too many requests.", "type": "rate_limit_error"},
            "status": 429,
            "retryAfter": 7,
        },
    },
    {
        "match": {"userMessage": "broken"},
        "response": {"error": {"message": "Oh.", "type": "server_error"}, "status": 500},
    },
    {
        "match": {"userMessage": "refused"},
        "response": {"error": {"message": "No.", "type": "invalid_request_error"}, "status": 400},
    },
    {"match": {"userMessage": "cut"}, "response": {"content": WORDS}, "truncateAfterChunks": 3, "latency": 20},
    {"match": {"userMessage": "slow"}, "response": {"content": WORDS}, "latency": 50},
    {"match": {"hasToolResult": True}, "response": {"content": WORDS, "usage": COUNTS}},
    {
        "match": {"userMessage": "Compare"},
        "response": {"toolCalls": [call(1, path="README.md"), call(2, path="LICENSE")], "usage": COUNTS},
    },
    {"match": {"userMessage": "Summarize"}, "response": {"toolCalls": [call(1, path="README.md")], "usage": COUNTS}},
    {"match": {"userMessage": "think"}, "response": {"content": WORDS, "reasoning": THOUGHT, "usage": COUNTS}},
    {"match": {}, "response": {"content": WORDS, "usage": COUNTS}},
]


@pytest.fixture(scope="session")
def llama_server() -> Iterator[str]:
    """The address of a llama.cpp server, without a path. It says LLAMA_WORDS, calls read_file if it may, and thinks if asked to "think"."""
    with run_llama() as address:
        yield address


@pytest.fixture(scope="session")
def aimock_server() -> Iterator[str]:
    """The address of an aimock server that gives ``ANSWERS``, without a path."""
    with run_aimock(ANSWERS) as address:
        yield address
