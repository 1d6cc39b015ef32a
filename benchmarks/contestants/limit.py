"""The limit: msgspec decodes and encodes the same bytes, or decodes them into the few fields that matter."""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks import bodies
from benchmarks.worker import Operation


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] | None = None


class _Reply(msgspec.Struct):
    id: str
    model: str
    content: list[_Block]
    stop_reason: str | None
    usage: dict[str, int | str]


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Message(msgspec.Struct):
    content: str | None
    tool_calls: list[_Call] = []


class _WholeChoice(msgspec.Struct):
    message: _Message
    finish_reason: str | None


class _Completion(msgspec.Struct):
    id: str
    model: str
    choices: list[_WholeChoice]
    usage: dict[str, int]


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    content: str | None = None


class _AnthropicEvent(msgspec.Struct):
    type: str
    index: int = 0
    delta: _Delta | None = None


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


def operations() -> dict[str, Operation]:
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    operations_by_name: dict[str, Operation] = {
        f"request {size}": (
            lambda data=encode(bodies.chat_request(size)): data,
            lambda data: encode(decode(data)),
            lambda _: None,
        )
        for size in bodies.SIZES
    }
    reply = msgspec.json.Decoder(_Reply).decode
    anthropic, chat = msgspec.json.Decoder(_AnthropicEvent).decode, msgspec.json.Decoder(_Chunk).decode
    operations_by_name["reply"] = (lambda: bodies.REPLY, reply, lambda _: None)
    completion = msgspec.json.Decoder(_Completion).decode
    operations_by_name["reply openai"] = (
        bodies.chat_reply,
        lambda data: [decode(call.function.arguments) for call in completion(data).choices[0].message.tool_calls],
        lambda _: None,
    )
    operations_by_name["stream anthropic"] = (
        bodies.anthropic_stream,
        lambda chunks: [anthropic(chunk[chunk.index(b"\ndata: ") + 7 :]) for chunk in chunks],
        lambda _: None,
    )
    operations_by_name["stream openai"] = (
        bodies.chat_stream,
        lambda chunks: [chat(chunk[6:]) for chunk in chunks[:-1]],
        lambda _: None,
    )
    return operations_by_name
