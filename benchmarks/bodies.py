"""Inputs of the contestants: histories with tools, a reply and streams, the same in every run.

Standard library only: every contestant imports this module in its own interpreter.
"""

from __future__ import annotations

import json
from typing import Any

SIZES = (8, 64, 256)
DELTAS = tuple(f"word{number:03d} " for number in range(200))
STREAM_TEXT = "".join(DELTAS)
CLAUDE, GPT = "claude-sonnet-4-6", "gpt-5.4"
_SUBJECTS = (
    "The store the router the catalog a dialect one session every block each message some events no reader".split()
)
_VERBS = "keeps finds writes reads sends counts moves names folds prices holds checks".split()
_OBJECTS = "the bytes of a turn|its own residue|what the model said|a signature and an id|the order of calls".split("|")
_ARGUMENTS = {"path": "", "limit": 0, "mode": "read"}


def prose(length: int, seed: int) -> str:
    """Return about this many characters of plain English; the seed selects the text."""
    sentences, total, at = [], 0, seed
    while total < length:
        at += 1
        words = (_SUBJECTS[at % len(_SUBJECTS)], _VERBS[at * 5 % len(_VERBS)], _OBJECTS[at * 3 % len(_OBJECTS)])
        sentences.append(" ".join(words) + ".")
        total += len(sentences[-1]) + 1
    return " ".join(sentences)


def chat_request(messages: int) -> dict[str, Any]:
    """Return an OpenAI chat request with eight tools; a quarter of the messages are calls and a quarter are results."""
    history: list[dict[str, Any]] = [{"role": "system", "content": prose(80, 1)}]
    for at in range(messages - 1):
        call_id = f"call_{at // 4:024d}"
        history.append(
            (
                {"role": "user", "content": prose(500, at)},
                {"role": "assistant", "content": prose(500, at), "tool_calls": [_call(call_id, at)]},
                {"role": "tool", "tool_call_id": call_id, "content": prose(1900, at)},
                {"role": "assistant", "content": prose(1000, at)},
            )[at % 4]
        )
    history.append({"role": "user", "content": prose(240, messages)})
    tools = [{"type": "function", "function": _tool(number)} for number in range(8)]
    return {"model": GPT, "messages": history, "tools": tools, "max_tokens": 1024, "temperature": 0.2}


def _call(call_id: str, at: int) -> dict[str, Any]:
    arguments = json.dumps({**_ARGUMENTS, "path": f"/src/part_{at}/file.py", "limit": at}, separators=(",", ":"))
    return {"id": call_id, "type": "function", "function": {"name": f"tool_{at % 8}", "arguments": arguments}}


def _tool(number: int) -> dict[str, Any]:
    pair = {"type": "object", "properties": {"key": {"type": "string"}, "value": {"type": "string"}}}
    properties = {
        "path": {"type": "string", "description": prose(50, number)},
        "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
        "mode": {"type": "string", "enum": ["read", "write", "append"]},
        "filters": {"type": "array", "items": {**pair, "required": ["key"]}},
    }
    schema = {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
    return {"name": f"tool_{number}", "description": prose(150, number), "parameters": schema}


def find_loss(request: Any, messages: int) -> str | None:
    """Return what an Anthropic request lacks, compared with ``chat_request(messages)``; a lossy result is not
    measured."""
    wire = request if isinstance(request, dict) else json.loads(request)
    source_messages = chat_request(messages)["messages"]
    text = json.dumps(wire["messages"])
    calls = sum(len(message.get("tool_calls", ())) for message in source_messages)
    counts = text.count('"tool_use_id"'), text.count('"tool_use"')
    if counts != (calls, calls):
        return f"{calls} calls became {counts[1]}, with {counts[0]} results"
    lost_texts = [
        message["content"] for message in source_messages[1:] if json.dumps(message["content"])[1:-1] not in text
    ]
    return f"{len(lost_texts)} texts are missing" if lost_texts else None


def request_without_result() -> dict[str, Any]:
    """Return a chat request whose history was interrupted: one of two parallel tool calls has no result."""
    request = chat_request(8)
    history = request["messages"]
    at = next(number for number, message in enumerate(history) if message.get("tool_calls"))
    history[at]["tool_calls"].append(_call("call_without_result", 3))
    return request


def find_unanswered_call(request: Any) -> str | None:
    """Return the first tool call without a result in the next message: the Messages API rejects such a request."""
    wire = request if isinstance(request, dict) else json.loads(request)
    messages = json.loads(json.dumps(wire["messages"], default=vars))
    for at, message in enumerate(messages):
        following = messages[at + 1]["content"] if at + 1 < len(messages) else []
        results = {part.get("tool_use_id") for part in following if isinstance(part, dict)}
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "tool_use" and part["id"] not in results:
                return f"the call {part['id']} has no result"
    return None


_USAGE = {"input_tokens": 1200, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 800}
REPLY_TEXT = prose(600, 7)
REPLY = json.dumps(
    {
        "id": "msg_01KR3ER9E0",
        "type": "message",
        "role": "assistant",
        "model": CLAUDE,
        "content": [
            {"type": "thinking", "thinking": prose(500, 5), "signature": "EqQBCgIYAhIM" * 28},
            {"type": "text", "text": REPLY_TEXT},
            {"type": "tool_use", "id": "toolu_01", "name": "tool_1", "input": {**_ARGUMENTS, "path": "/src/a.py"}},
            {
                "type": "tool_use",
                "id": "toolu_02",
                "name": "tool_2",
                "input": {"path": "/b", "filters": [{"key": "k"}]},
            },
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {**_USAGE, "output_tokens": 220, "service_tier": "standard"},
    },
    separators=(",", ":"),
).encode()


def chat_reply() -> bytes:
    """Return a chat completion with a text and two calls."""
    message = {"role": "assistant", "content": REPLY_TEXT, "refusal": None, "annotations": []}
    message["tool_calls"] = [_call(f"call_{number:024d}", number) for number in range(2)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 812, "completion_tokens": 96, "total_tokens": 908}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1778226600, "model": "gpt-5"}
    return _compact({**head, "choices": [choice], "usage": usage, "system_fingerprint": "fp_1"})


def anthropic_stream() -> list[bytes]:
    """Return a streamed answer of 200 text deltas of the Messages API, one event per chunk."""
    message = {"id": "msg_01", "type": "message", "role": "assistant", "model": CLAUDE, "content": []}
    ends = {"stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, **ends, "usage": {**_USAGE, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": d}} for d in DELTAS),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {**ends, "stop_reason": "end_turn"}, "usage": {"output_tokens": 200}},
        {"type": "message_stop"},
    ]
    return [b"event: %s\ndata: %s\n\n" % (event["type"].encode(), _compact(event)) for event in events]


def chat_stream() -> list[bytes]:
    """Return the same answer as a chat completion stream."""
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1790000000, "model": GPT}
    first = {"role": "assistant", "content": "", "refusal": None}
    deltas = [(first, None), *(({"content": delta}, None) for delta in DELTAS), ({}, "stop")]
    chunks: list[dict[str, Any]] = []
    for delta, reason in deltas:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunks.append({**envelope, "choices": [choice], "usage": None})
    usage = {"prompt_tokens": 70, "completion_tokens": 200, "total_tokens": 270}
    chunks.append({**envelope, "choices": [], "usage": usage})
    return [*(b"data: %s\n\n" % _compact(chunk) for chunk in chunks), b"data: [DONE]\n\n"]


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
