"""Requests and replies of the gateway benchmark in two APIs, whole and streamed, the same in every run."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.bodies import prose

GPT, CLAUDE = "gpt-4o", "claude-sonnet-4-20250514"
QUESTION, ANSWER = prose(240, 3), prose(600, 5)
WORDS = tuple(f"word{number:03d} " for number in range(100))
OPENAI, ANTHROPIC = "openai", "anthropic"
PATHS = {OPENAI: "/v1/chat/completions", ANTHROPIC: "/v1/messages"}


def encode(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def request_body(api: str, model: str, *, stream: bool) -> bytes:
    """Return a short question."""
    body: dict[str, Any] = {"model": model, "max_tokens": 256, "messages": [{"role": "user", "content": QUESTION}]}
    if stream:
        body["stream"] = True
        if api == OPENAI:
            body["stream_options"] = {"include_usage": True}
    return encode(body)


def whole_reply(api: str) -> bytes:
    """Return a reply."""
    if api == ANTHROPIC:
        usage = {"input_tokens": 60, "output_tokens": 120}
        content = [{"type": "text", "text": ANSWER}]
        return encode({**_message("end_turn"), "content": content, "usage": usage})
    message = {"role": "assistant", "content": ANSWER, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return encode({**_chat("chat.completion"), "choices": [choice], "usage": _chat_usage()})


def stream_events(api: str) -> list[bytes]:
    """Return the events of a streamed reply."""
    if api == ANTHROPIC:
        usage = {"input_tokens": 60, "output_tokens": 1}
        start = {**_message(None), "content": [], "usage": usage}
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        deltas = [{"index": 0, "delta": {"type": "text_delta", "text": word}} for word in WORDS]
        events = [
            ("message_start", {"message": start}),
            ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
            *(("content_block_delta", delta) for delta in deltas),
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": end, "usage": {"output_tokens": 120}}),
            ("message_stop", {}),
        ]
        return [f"event: {name}\ndata: ".encode() + encode({"type": name, **data}) + b"\n\n" for name, data in events]
    chunks = [{"role": "assistant", "content": ""}, *({"content": word} for word in WORDS)]
    base = _chat("chat.completion.chunk")
    values: list[Any] = [{**base, "choices": [_choice(delta)]} for delta in chunks]
    values += [{**base, "choices": [_choice({}, "stop")]}, {**base, "choices": [], "usage": _chat_usage()}]
    return [*(b"data: " + encode(value) + b"\n\n" for value in values), b"data: [DONE]\n\n"]


def _message(stop_reason: str | None) -> dict[str, Any]:
    fields = {"id": "msg_bench", "type": "message", "role": "assistant", "model": CLAUDE}
    return {**fields, "stop_reason": stop_reason, "stop_sequence": None}


def _chat(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-bench", "object": kind, "created": 1_760_000_000, "model": GPT}


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _chat_usage() -> dict[str, int]:
    return {"prompt_tokens": 60, "completion_tokens": 120, "total_tokens": 180}


def read_text(api: str, body: bytes, *, stream: bool) -> str:
    """Return the text of a response, to compare it with the provider's."""
    if not stream:
        reply = json.loads(body)
        if api == OPENAI:
            return str(reply["choices"][0]["message"]["content"])
        return "".join(block.get("text", "") for block in reply["content"])
    data = [line[5:].strip() for line in body.decode().splitlines() if line.startswith("data:")]
    events = [json.loads(text) for text in data if text != "[DONE]"]
    if api == OPENAI:
        deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
        return "".join(delta.get("content") or "" for delta in deltas)
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
