"""Dragoman."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from benchmarks import bodies
from benchmarks.worker import Operation
from dragoman import dialects, repair
from dragoman.event import StreamEvent, fold
from dragoman.exchange import Request
from dragoman.message import TextBlock


def operations() -> dict[str, Operation]:
    anthropic, chat = dialects.load("anthropic"), dialects.load("openai_chat")
    operations_by_name: dict[str, Operation] = {
        f"request {size}": (
            lambda body=bodies.chat_request(size): body,
            lambda body: anthropic.write_request(chat.read_request(body)).wire,
            lambda wire, size=size: bodies.find_loss(wire, size),
        )
        for size in bodies.SIZES
    }
    operations_by_name["interrupted request"] = (
        bodies.request_without_result,
        lambda body: _repair_and_write(chat.read_request(body)),
        bodies.find_unanswered_call,
    )
    operations_by_name["reply"] = (lambda: bodies.REPLY, anthropic.read_reply, _complaint_about_reply)
    operations_by_name["reply openai"] = (bodies.chat_reply, chat.read_reply, _complaint_about_reply)
    operations_by_name["stream anthropic"] = (bodies.anthropic_stream, _events(anthropic), _complaint_about_stream)
    operations_by_name["stream openai"] = (bodies.chat_stream, _events(chat), _complaint_about_stream)
    return operations_by_name


def _repair_and_write(request: Request) -> Any:
    """Write a request as an agent does before a model call: repair the history, then translate it."""
    repaired = msgspec.structs.replace(request, messages=repair(request.messages).messages)
    return dialects.load("anthropic").write_request(repaired).wire


def _events(dialect: ModuleType) -> Callable[[list[bytes]], list[StreamEvent]]:
    def read(chunks: list[bytes]) -> list[StreamEvent]:
        reader = dialect.stream_reader()
        events = [event for chunk in chunks for event in reader.feed(chunk)]
        return [*events, *reader.close()]

    return read


def _complaint_about_reply(reply: Any) -> str | None:
    return None if any(block == TextBlock(bodies.REPLY_TEXT) for block in reply.content) else "the text is missing"


def _complaint_about_stream(events: list[StreamEvent]) -> str | None:
    return None if fold(events).content == (TextBlock(bodies.STREAM_TEXT),) else "the text is not what was streamed"
