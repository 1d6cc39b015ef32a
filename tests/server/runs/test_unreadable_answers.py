"""Tests of answers that a reader or the store rejects after their text was streamed: the text is kept, and the run fails."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dragoman.errors import FormatError
from dragoman.message import Message, MessageStatus, TextBlock
from dragoman.store.turns import TurnStore
from tests.fake_providers import StrictProvider
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import event_types, post_run, run_input

TEXT = "All of these words were shown."
TEXT_PART = {"type": "output_text", "text": TEXT, "annotations": []}
MESSAGE_ITEM = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [TEXT_PART]}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"}
TEXT_EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "response.created", "response": {"id": "resp_1", "model": "m", "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**MESSAGE_ITEM, "content": []}},
    {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": {**TEXT_PART, "text": ""}},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": TEXT},
    {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE_ITEM},
)


def make_completed_event(input_tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": input_tokens, "output_tokens": 7, "total_tokens": input_tokens + 7}
    response = {"id": "resp_1", "model": "m", "status": "completed", "output": [MESSAGE_ITEM], "usage": usage}
    return {"type": "response.completed", "response": response}


def send_events(monkeypatch: pytest.MonkeyPatch, *events: dict[str, Any]) -> None:
    """Let the provider send these events for every request."""

    async def stream(_: StrictProvider, request: web.Request, *_more: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await response.write_eof()
        return response

    monkeypatch.setattr(StrictProvider, "_stream", stream)


async def run_and_read(server: ServerFixture) -> tuple[list[dict[str, Any]], Message]:
    """Run one turn, and return the received events and the stored answer."""
    body = run_input("Hello")
    events = await post_run(server, body)
    assert "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT") == TEXT
    (row,) = await server.store.tail(body["threadId"], 1)
    return events, row.message


def message_text(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


@pytest.mark.parametrize("count", [2**63, 2**64, 10**40])
async def test_text_is_stored_despite_invalid_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async with run_test_server(tmp_path, "openai_responses") as server:
        send_events(monkeypatch, *TEXT_EVENTS, make_completed_event(count))
        _, stored = await run_and_read(server)
        assert message_text(stored) == TEXT
        assert stored.metadata.status in (MessageStatus.COMPLETE, MessageStatus.ERROR)


async def test_call_without_id_fails_run_and_keeps_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_test_server(tmp_path, "openai_responses") as server:
        added = {"type": "response.output_item.added", "output_index": 1, "item": {**CALL, "arguments": ""}}
        item = {key: value for key, value in CALL.items() if key != "call_id"}
        send_events(
            monkeypatch, *TEXT_EVENTS, added, {"type": "response.output_item.done", "output_index": 1, "item": item}
        )
        events, stored = await run_and_read(server)
        assert event_types(events)[-1] == "RUN_ERROR"
        assert (message_text(stored), stored.metadata.status) == (TEXT, MessageStatus.ERROR)


async def test_unexpected_reader_error_fails_run_and_keeps_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setitem(get_handlers(), "response.completed", fail)
    async with run_test_server(tmp_path, "openai_responses") as server:
        send_events(monkeypatch, *TEXT_EVENTS, make_completed_event(1))
        events, stored = await run_and_read(server)
        assert event_types(events)[-1] == "RUN_ERROR"
        assert (message_text(stored), stored.metadata.status) == (TEXT, MessageStatus.ERROR)


def get_handlers() -> dict[str, Any]:
    module = importlib.import_module("dragoman.dialects.openai_responses.stream_reader")
    handlers: dict[str, Any] = module._HANDLERS
    return handlers


async def test_rejected_answer_is_stored_without_rejected_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish_answer = TurnStore.finish_answer

    async def reject_usage(turns: TurnStore, session_id: str, message: Message, **options: Any) -> Any:
        if message.metadata.usage is not None:
            raise FormatError("a number is too large to be stored")
        return await finish_answer(turns, session_id, message, **options)

    monkeypatch.setattr(TurnStore, "finish_answer", reject_usage)
    async with run_test_server(tmp_path, "openai_responses") as server:
        send_events(monkeypatch, *TEXT_EVENTS, make_completed_event(1))
        events, stored = await run_and_read(server)
        assert event_types(events)[-1] == "RUN_ERROR"
        assert "too large" in events[-1]["message"]
        assert (message_text(stored), stored.metadata.status) == (TEXT, MessageStatus.ERROR)
        monkeypatch.undo()
        assert event_types(await post_run(server, run_input("Go on", threadId=stored.session_id)))[-1] == "RUN_FINISHED"
