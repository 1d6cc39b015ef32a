"""Answers that a reader or the store refuses after their words were streamed: the words stay, and the run ends as failed."""

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

WORDS = "All of these words were shown."
TEXT = {"type": "output_text", "text": WORDS, "annotations": []}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [TEXT]}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"}
SPOKEN: tuple[dict[str, Any], ...] = (
    {"type": "response.created", "response": {"id": "resp_1", "model": "m", "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**SAID, "content": []}},
    {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": {**TEXT, "text": ""}},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": WORDS},
    {"type": "response.output_item.done", "output_index": 0, "item": SAID},
)


def completed_event(input_tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": input_tokens, "output_tokens": 7, "total_tokens": input_tokens + 7}
    whole = {"id": "resp_1", "model": "m", "status": "completed", "output": [SAID], "usage": usage}
    return {"type": "response.completed", "response": whole}


def send_events(monkeypatch: pytest.MonkeyPatch, *events: dict[str, Any]) -> None:
    """Let the provider send these events, whatever is asked."""

    async def stream(_: StrictProvider, request: web.Request, *_more: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await response.write_eof()
        return response

    monkeypatch.setattr(StrictProvider, "_stream", stream)


async def run_and_read(server: ServerFixture) -> tuple[list[dict[str, Any]], Message]:
    """One run: what the client is told, and the answer as it is stored."""
    asked = run_input("Hello")
    told = await post_run(server, asked)
    assert "".join(event["delta"] for event in told if event["type"] == "TEXT_MESSAGE_CONTENT") == WORDS
    (row,) = await server.store.tail(asked["threadId"], 1)
    return told, row.message


def message_text(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


@pytest.mark.parametrize("count", [2**63, 2**64, 10**40])
async def test_words_are_stored_whatever_the_provider_says_about_its_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async with run_test_server(tmp_path, "openai_responses") as server:
        send_events(monkeypatch, *SPOKEN, completed_event(count))
        _, stored = await run_and_read(server)
        assert message_text(stored) == WORDS
        assert stored.metadata.status in (MessageStatus.COMPLETE, MessageStatus.ERROR)


async def test_a_call_without_its_id_ends_the_run_as_failed_and_keeps_the_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_test_server(tmp_path, "openai_responses") as server:
        begun = {"type": "response.output_item.added", "output_index": 1, "item": {**CALL, "arguments": ""}}
        done = {key: value for key, value in CALL.items() if key != "call_id"}
        send_events(monkeypatch, *SPOKEN, begun, {"type": "response.output_item.done", "output_index": 1, "item": done})
        told, stored = await run_and_read(server)
        assert event_types(told)[-1] == "RUN_ERROR"
        assert (message_text(stored), stored.metadata.status) == (WORDS, MessageStatus.ERROR)


async def test_an_exception_that_a_reader_did_not_foresee_ends_the_run_as_failed_and_keeps_the_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setitem(reader_fields(), "response.completed", fail)
    async with run_test_server(tmp_path, "openai_responses") as server:
        send_events(monkeypatch, *SPOKEN, completed_event(1))
        told, stored = await run_and_read(server)
        assert event_types(told)[-1] == "RUN_ERROR"
        assert (message_text(stored), stored.metadata.status) == (WORDS, MessageStatus.ERROR)


def reader_fields() -> dict[str, Any]:
    module = importlib.import_module("dragoman.dialects.openai_responses.stream_reader")
    handlers: dict[str, Any] = module._HANDLERS
    return handlers


async def test_an_answer_that_the_store_refuses_is_stored_without_what_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_answer = TurnStore.finish_answer

    async def refuse_usage(turns: TurnStore, session_id: str, message: Message, **beside: Any) -> Any:
        if message.metadata.usage is not None:
            raise FormatError("a number is too large to be stored")
        return await finish_answer(turns, session_id, message, **beside)

    monkeypatch.setattr(TurnStore, "finish_answer", refuse_usage)
    async with run_test_server(tmp_path, "openai_responses") as server:
        send_events(monkeypatch, *SPOKEN, completed_event(1))
        told, stored = await run_and_read(server)
        assert event_types(told)[-1] == "RUN_ERROR"
        assert "too large" in told[-1]["message"]
        assert (message_text(stored), stored.metadata.status) == (WORDS, MessageStatus.ERROR)
        monkeypatch.undo()
        assert event_types(await post_run(server, run_input("Go on", threadId=stored.session_id)))[-1] == "RUN_FINISHED"
