"""Tests of session files of coding agents, which are read as conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import conversion
from dragoman.errors import InputError
from dragoman.exchange import Request
from dragoman.message import Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from tests.cli_runner import run_text

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def read(path: Path, *values: dict[str, Any]) -> Request:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), "utf-8")
    with conversion.open_source(path) as source:
        ((_, request),) = conversion.read_source(source)
    return request


def describe(message: Message) -> str:
    parts = []
    for block in message.content:
        match block:
            case TextBlock(text) | ThinkingBlock(text):
                parts.append(text)
            case ToolUseBlock(name=name):
                parts.append(f"calls {name}")
            case ToolResultBlock(content=content):
                parts.extend(f"returns {part.text}" for part in content)
    return f"{message.role.value}: {', '.join(parts)}"


def summary(request: Request) -> list[str]:
    return [describe(message) for message in request.messages]


# --- Claude Code -----------------------------------------------------------------------------------------------------


def turn(uuid: str, parent: str | None, content: Any, message_id: str | None = None, **fields: Any) -> dict[str, Any]:
    kind = "assistant" if message_id else "user"
    message = {"role": kind, "content": content}
    if message_id:
        message |= {"id": message_id, "model": "claude-sonnet-4-6", "type": "message"}
    line = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s1", "isSidechain": False}
    return {**line, "message": message, **fields}


def text(value: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value}]


def call(number: int) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": f"toolu_{number}", "name": f"tool_{number}", "input": {}}]


def result(number: int) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"result {number}"}]


def test_results_of_parallel_calls_belong_to_conversation(tmp_path: Path) -> None:
    request = read(
        tmp_path / "s.jsonl",
        {"type": "summary", "summary": "Files", "leafUuid": "u6"},
        turn("u1", None, "Look twice."),
        turn("u2", "u1", call(1), "msg_1"),
        turn("u3", "u2", result(1), toolUseResult={"stdout": "result 1"}),  # a branch: the next line continues u2
        turn("u4", "u2", call(2), "msg_1"),
        turn("u5", "u4", result(2)),
        turn("u6", "u5", text("Done."), "msg_2"),
    )
    assert request.model == "claude-sonnet-4-6"
    assert summary(request) == [
        "user: Look twice.",
        "assistant: calls tool_1, calls tool_2",
        "tool: returns result 1",
        "tool: returns result 2",
        "assistant: Done.",
    ]


def test_rewound_branches_and_workers_are_dropped_and_summaries_are_not(tmp_path: Path) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "c1", "parentUuid": None, "sessionId": "s1"}
    request = read(
        tmp_path / "s.jsonl",
        turn("u1", None, "Start."),
        turn("u2", "u1", text("Ready."), "msg_1"),
        turn("u3", "u2", "First attempt."),
        turn("u4", "u3", text("First answer."), "msg_2"),
        turn("u5", "u2", "Second attempt."),
        turn("w1", None, "A worker.", isSidechain=True),
        turn("u6", "u5", text("Second answer."), "msg_3"),
        {**boundary, "logicalParentUuid": "u6"},
        turn("u7", "c1", "The summary.", isCompactSummary=True),
        turn("u8", "u7", text("Last answer."), "msg_4"),
    )
    assert summary(request) == [
        "user: Start.",
        "assistant: Ready.",
        "user: Second attempt.",
        "assistant: Second answer.",
        "user: The summary.",
        "assistant: Last answer.",
    ]


def test_worker_file_is_a_conversation(tmp_path: Path) -> None:
    worker = turn("w1", None, "Search.", isSidechain=True), turn("w2", "w1", text("Found."), "m", isSidechain=True)
    assert summary(read(tmp_path / "agent-1.jsonl", *worker)) == ["user: Search.", "assistant: Found."]


# --- Codex -----------------------------------------------------------------------------------------------------------

QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List."}]}
CALL = {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "call_1"}
CALL_OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One file."}]}


def record(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


def test_codex_session_is_read_from_its_items(tmp_path: Path) -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "x"}
    request = read(
        tmp_path / "rollout-1.jsonl",
        record("session_meta", {"id": "t1", "base_instructions": {"text": "Be brief."}}),
        record("turn_context", {"model": "gpt-5.1-codex"}),
        record("event_msg", {"type": "user_message", "message": "List."}),
        *(record("response_item", item) for item in (QUESTION, reasoning, CALL, CALL_OUTPUT)),
        record("response_item", {"type": "ghost_snapshot", "ghost_commit": {}}),
        record("news", {"headline": "x"}),
        record("compacted", {"message": "So far: one file."}),
        record("response_item", ANSWER),
    )
    assert request.model == "gpt-5.1-codex"
    assert summary(request) == [
        "system: Be brief.",
        "user: List.",
        "assistant: Hm., calls shell",
        "tool: returns a.txt",
        "user: So far: one file.",
        "assistant: One file.",
    ]


def test_early_codex_session_is_read_from_its_lines(tmp_path: Path) -> None:
    head = {"id": "t1", "timestamp": "2025-05-01T00:00:00Z", "instructions": "Be brief."}
    lines = [head, QUESTION, {"record_type": "state"}, CALL, CALL_OUTPUT, ANSWER]
    assert summary(read(tmp_path / "rollout-1.jsonl", *lines)) == [
        "system: Be brief.",
        "user: List.",
        "assistant: calls shell",
        "tool: returns a.txt",
        "assistant: One file.",
    ]


# --- Gemini CLI ------------------------------------------------------------------------------------------------------

HEAD = {"sessionId": "s1", "projectHash": "h", "startTime": "2026-01-01T00:00:00Z"}
RESULT = [{"functionResponse": {"id": "c1", "name": "list_directory", "response": {"output": "a.txt"}}}]
TOOL_CALL = {"id": "c1", "name": "list_directory", "args": {"path": "."}, "status": "success"}
MESSAGES = [
    {"id": "m1", "type": "user", "content": [{"text": "List."}]},
    {"id": "m2", "type": "gemini", "content": "", "model": "gemini-3-pro", "toolCalls": [TOOL_CALL]},
    {"id": "m3", "type": "info", "content": "Update available."},
    {
        "id": "m2",
        "type": "gemini",
        "content": "",
        "model": "gemini-3-pro",
        "thoughts": [{"subject": "Look", "description": "I look."}],
        "toolCalls": [{**TOOL_CALL, "result": RESULT}],
    },
    {"id": "m4", "type": "gemini", "content": "One file."},
]
EXPECTED = [
    "user: List.",
    "assistant: **Look**\nI look., calls list_directory",
    "tool: returns a.txt",
    "assistant: One file.",
]


def test_gemini_cli_session_is_replayed(tmp_path: Path) -> None:
    rewound = [{"id": "m5", "type": "user", "content": "No."}, {"id": "m6", "type": "gemini", "content": "Sorry."}]
    lines = [HEAD, *MESSAGES, *rewound, {"$rewindTo": "m5"}, {"$set": {"summary": "Files"}}]
    assert summary(read(tmp_path / "session-1.jsonl", *lines)) == EXPECTED


def test_early_gemini_cli_session_is_one_document(tmp_path: Path) -> None:
    messages = [message for number, message in enumerate(MESSAGES) if number != 1]
    path = tmp_path / "session-1.json"
    assert summary(read(path, {**HEAD, "messages": messages})) == EXPECTED
    path.write_text(json.dumps({**HEAD, "messages": messages}, indent=2), "utf-8")
    with conversion.open_source(path) as source:
        assert source.why == "a session of Gemini CLI"


# --- opencode --------------------------------------------------------------------------------------------------------


def test_opencode_export_is_read_from_its_parts(tmp_path: Path) -> None:
    state = {"status": "completed", "input": {"command": "ls"}, "output": "a.txt", "title": "ls"}
    parts = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Hm."},
        {"type": "tool", "tool": "bash", "callID": "call_1", "state": state},
        {"type": "step-finish", "tokens": {}},
        {"type": "step-start"},
        {"type": "text", "text": "One file."},
        {"type": "patch", "hash": "x"},
    ]
    messages = [
        {"info": {"id": "msg_1", "role": "user"}, "parts": [{"type": "text", "text": "List."}]},
        {"info": {"id": "msg_2", "role": "assistant", "modelID": "m"}, "parts": parts},
    ]
    request = read(tmp_path / "export.json", {"info": {"id": "ses_1", "title": "Files"}, "messages": messages})
    assert summary(request) == [
        "user: List.",
        "assistant: Hm., calls bash",
        "tool: returns a.txt",
        "assistant: One file.",
    ]


# --- files -----------------------------------------------------------------------------------------------------------


def test_session_without_messages_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Codex has no messages"):
        read(tmp_path / "rollout-1.jsonl", record("session_meta", {"id": "t1"}), record("turn_context", {}))


def test_session_file_is_repaired_only_into_another_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    read(path, turn("u1", None, "Look."), turn("u2", "u1", call(1), "msg_1"), turn("u3", "u2", "Stop."))
    before = path.read_bytes()
    refused = run_text("repair", path, "--in-place", environment=ENVIRONMENT)
    assert "is a session file of Claude Code, which is read only" in refused.stderr
    assert path.read_bytes() == before
    repaired = tmp_path / "repaired.json"
    run_text("check", path, "--repair-to", repaired, environment=ENVIRONMENT)
    assert b"toolu_1" in repaired.read_bytes()
