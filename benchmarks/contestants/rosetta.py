"""llm-rosetta: its converters between provider formats."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from llm_rosetta import AnthropicConverter, OpenAIChatConverter, convert

from benchmarks import bodies
from benchmarks.worker import Operation


def operations() -> dict[str, Operation]:
    anthropic, chat = AnthropicConverter(), OpenAIChatConverter()
    operations_by_name: dict[str, Operation] = {
        f"request {size}": (
            lambda body=bodies.chat_request(size): copy.deepcopy(body),
            lambda body: convert(body, "anthropic", source_provider="openai_chat"),
            lambda wire, size=size: bodies.find_loss(wire, size),
        )
        for size in bodies.SIZES
    }
    operations_by_name["reply"] = (
        lambda: bodies.REPLY,
        lambda data: anthropic.response_from_provider(json.loads(data)),
        lambda reply: None if bodies.REPLY_TEXT in json.dumps(reply) else "the text is missing",
    )
    operations_by_name["stream anthropic"] = (bodies.anthropic_stream, _events(anthropic), _complaint)
    operations_by_name["stream openai"] = (bodies.chat_stream, _events(chat), _complaint)
    return operations_by_name


def _events(converter: Any) -> Callable[[list[bytes]], list[dict[str, Any]]]:
    def read(chunks: list[bytes]) -> list[dict[str, Any]]:
        context = converter.create_stream_context()
        events: list[dict[str, Any]] = []
        for chunk in chunks:
            data = chunk.partition(b"data: ")[2].strip()
            if data != b"[DONE]":
                events.extend(converter.stream_response_from_provider(json.loads(data), context=context))
        return events

    return read


def _complaint(events: list[dict[str, Any]]) -> str | None:
    text = "".join(event.get("text", "") for event in events if "text_delta" in str(event.get("type")))
    return None if text == bodies.STREAM_TEXT else "the text is not what was streamed"
