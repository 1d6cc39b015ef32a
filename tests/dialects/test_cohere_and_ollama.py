"""Tests of Cohere and Ollama: fields that are known at the start of a stream, and errors with HTTP 200."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from dragoman import dialects
from dragoman.event import MessageStart, TextDelta, ToolUseStart, fold
from dragoman.exchange import StopReason
from tests.dialects.stream_damage.case import events_of
from tests.dialects.stream_damage.cohere import CLOSE, OPEN, end, event, frame

COHERE, OLLAMA = dialects.load("cohere"), dialects.load("ollama")
LINE = {"model": "llama3.2", "created_at": "2026-05-08T09:30:00Z", "done": False}


def rewrite(dialect: ModuleType, data: bytes) -> list[bytes]:
    writer = dialect.stream_writer()
    return [writer.feed(item) for item in events_of(dialect, [data])]


def test_cohere_stream_starts_with_its_id() -> None:
    wire = {"id": "ad61ac19", "type": "message-start", "delta": {"message": {"role": "assistant", "content": []}}}
    data = frame(wire) + event("content-start", 0, content={"type": "text", "text": "Hi."}) + CLOSE + end()
    start, *_ = events_of(COHERE, [data])
    assert isinstance(start, MessageStart)
    assert start.provider_raw is not None
    assert json.loads(rewrite(COHERE, data)[0].split(b"data: ")[1]) == wire


def test_cohere_content_part_starts_with_its_notes() -> None:
    part = {"type": "text", "text": "", "language": "en"}
    data = OPEN.replace(b'{"type": "text", "text": ""}', json.dumps(part).encode())
    data += event("content-delta", 0, content={"text": "Hi."}) + CLOSE + end()
    opened = events_of(COHERE, [data])[1]
    assert isinstance(opened, TextDelta)
    assert (opened.text, opened.provider_raw is None) == ("", False)
    assert b'"language":"en"' in rewrite(COHERE, data)[1]


def test_call_starts_with_its_id() -> None:
    call = {"id": "call_7", "type": "function", "function": {"name": "f", "arguments": ""}}
    data = OPEN + CLOSE + event("tool-call-start", 0, tool_calls=call) + event("tool-call-end", 0) + end("TOOL_CALL")
    line = {**LINE, "message": {"role": "assistant", "content": "", "tool_calls": [{"id": "call_7", **FUNCTION}]}}
    for dialect, stream in ((COHERE, data), (OLLAMA, json.dumps(line).encode() + b"\n")):
        (started,) = [entry for entry in events_of(dialect, [stream]) if isinstance(entry, ToolUseStart)]
        assert started.id.startswith("tu_")
        assert started.provider_raw is not None
        assert started.provider_raw["id"] == "call_7"
        assert b'"call_7"' in b"".join(rewrite(dialect, stream))


FUNCTION: dict[str, Any] = {"function": {"name": "f", "arguments": {}}}


def test_every_ollama_line_has_model_and_start_time() -> None:
    lines = [{**LINE, "message": {"role": "assistant", "content": text}} for text in ("One ", "two.")]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert [json.loads(piece) for piece in rewrite(OLLAMA, data)[1:3]] == lines


def test_ollama_line_has_content_unless_source_omits_it() -> None:
    line: dict[str, Any] = {**LINE, "message": {"role": "assistant", "thinking": "Hm."}}
    assert json.loads(rewrite(OLLAMA, json.dumps(line).encode() + b"\n")[1]) == line
    line["message"]["content"] = ""
    assert json.loads(rewrite(OLLAMA, json.dumps(line).encode() + b"\n")[1]) == line


def test_cohere_stream_logprobs_are_in_reply() -> None:
    items = [{"text": text, "token_ids": [number], "logprobs": [-0.5]} for number, text in enumerate(("One ", "two."))]
    deltas = [
        {
            "type": "content-delta",
            "index": 0,
            "delta": {"message": {"content": {"text": item["text"]}}},
            "logprobs": item,
        }
        for item in items
    ]
    data = OPEN + b"".join(frame(delta) for delta in deltas) + CLOSE + end()
    wire = COHERE.write_reply(fold(events_of(COHERE, [data]))).wire
    assert wire["logprobs"] == items
    again = b"".join(rewrite(COHERE, data))
    assert COHERE.write_reply(fold(events_of(COHERE, [again]))).wire == wire


@pytest.mark.parametrize(
    ("dialect", "body", "code"),
    [
        (COHERE, {"id": "r1", "message": "invalid request: too many tokens"}, "context_overflow"),
        (COHERE, {"message": "internal", "data": None}, "server_error"),
        (OLLAMA, {"error": "model requires more system memory"}, "server_error"),
        (OLLAMA, {"error": {"message": "no", "code": 1}}, "server_error"),
    ],
)
def test_error_body_with_status_200_is_a_fault(dialect: ModuleType, body: dict[str, Any], code: str) -> None:
    reply = dialect.read_reply(body)
    assert (reply.stop_reason, reply.content) == (StopReason.ERROR, ())
    assert reply.fault is not None
    assert reply.fault.code == code
    assert dialect.write_reply(reply).wire == body
