"""Tests of runs in which a model asks the user, and of the answers of the user."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.tools import builtin_tools
from tests.fake_providers import call_part
from tests.server.conftest import ServerFixture
from tests.server.runs.conftest import post_error, post_run, run_input
from tests.server.runs.test_runs import drop, join_text, resume_entry

ORDER = {
    "question": "What shall I order?",
    "inputs": [
        {"id": "size", "prompt": "Which size?", "type": "choice", "choices": ["S", "M"]},
        {"id": "count", "prompt": "How many?", "type": "number"},
        {"id": "wrapped", "prompt": "As a present?", "type": "boolean", "required": False},
    ],
}


async def start_question(server: ServerFixture, *calls: Any, **fields: Any) -> list[dict[str, Any]]:
    """Start a run whose model makes these calls, and return its interrupts."""
    server.agent.tools = type(server.agent.tools)([drop, *builtin_tools(["ask_user"])])
    server.fake.answer_with(*calls)
    events = await post_run(server, run_input("Order some.", threadId="t", **fields))
    assert events[-1]["outcome"]["type"] == "interrupt"
    interrupts: list[dict[str, Any]] = events[-1]["outcome"]["interrupts"]
    return interrupts


@pytest.mark.parametrize("version", ["1.0", None])
async def test_question_is_an_interrupt_and_continues_with_answer(
    chat_server: ServerFixture, version: str | None
) -> None:
    (question,) = await start_question(chat_server, call_part("ask_user", ORDER), protocolVersion=version)
    assert (question["reason"], question["message"]) == ("input_required", "What shall I order?")
    assert question["responseSchema"] == {
        "type": "object",
        "properties": {
            "size": {"type": "string", "enum": ["S", "M"], "description": "Which size?"},
            "count": {"type": "number", "description": "How many?"},
            "wrapped": {"type": "boolean", "description": "As a present?"},
        },
        "required": ["size", "count"],
        "additionalProperties": False,
    }
    chat_server.fake.reply("Ordered.")
    inputs = {"size": "M", "count": 2.5}
    resumed = await post_run(
        chat_server, run_input(threadId="t", resume=[resume_entry(question, **inputs)], protocolVersion=version)
    )
    (result,) = [event for event in resumed if event["type"] == "TOOL_CALL_RESULT"]
    assert (result["toolCallId"], json.loads(result["content"])) == (question["toolCallId"], inputs)
    assert "metadata" not in result
    assert join_text(resumed) == "Ordered."
    assert "2.5" in str(chat_server.fake.bodies[-1])
    assert chat_server.fake.refusals == []


async def test_invalid_answer_is_rejected_and_question_stays_open(chat_server: ServerFixture) -> None:
    (question,) = await start_question(chat_server, call_part("ask_user", ORDER))
    before = len(chat_server.fake.bodies)
    for payload in (
        {},
        {"size": "M"},
        {"size": "L", "count": 1},
        {"size": "M", "count": "1"},
        {"size": "M", "count": 1, "wrapped": None},
        {"size": "M", "count": 1, "more": 1},
        {"approved": True},
    ):
        body = run_input(threadId="t", resume=[resume_entry(question, **payload)])
        assert await post_error(chat_server, body) == (422, "invalid_resume")
    for payload in ("M", ["M", 1], None):
        body = run_input(threadId="t", resume=[{**resume_entry(question), "payload": payload}])
        assert await post_error(chat_server, body) == (422, "invalid_resume")
    message = {"id": "past-the-check", "role": "tool", "toolCallId": question["toolCallId"], "content": "anything"}
    assert await post_error(chat_server, run_input(message, threadId="t")) == (422, "unknown_tool_use")
    assert len(chat_server.fake.bodies) == before
    chat_server.fake.reply("Ordered.")
    resumed = await post_run(chat_server, run_input(threadId="t", resume=[resume_entry(question, size="S", count=1)]))
    assert join_text(resumed) == "Ordered."


async def test_question_without_inputs_expects_text_and_may_be_declined(chat_server: ServerFixture) -> None:
    (question,) = await start_question(chat_server, call_part("ask_user", {"question": "Which?"}))
    assert question["responseSchema"]["required"] == ["answer"]
    assert question["responseSchema"]["properties"]["answer"]["type"] == "string"
    chat_server.fake.reply("As you like.")
    resumed = await post_run(chat_server, run_input(threadId="t", resume=[resume_entry(question, "cancelled")]))
    (result,) = [event for event in resumed if event["type"] == "TOOL_CALL_RESULT"]
    assert "declined" in result["content"]
    assert result["metadata"] == {"dragoman": {"is_error": True}}
    assert join_text(resumed) == "As you like."
    repeated = run_input(threadId="t", resume=[resume_entry(question, answer="this")])
    assert await post_error(chat_server, repeated) == (422, "unknown_interrupt")


async def test_questions_and_approvals_are_answered_together(chat_server: ServerFixture) -> None:
    calls = call_part("ask_user", {"question": "Which?"}), call_part("drop", {"name": "production"})
    question, approval = await start_question(chat_server, *calls)
    assert (question["reason"], approval["reason"]) == ("input_required", "tool_call")
    incomplete = run_input(threadId="t", resume=[resume_entry(question, answer="staging")])
    assert await post_error(chat_server, incomplete) == (422, "resume_incomplete")
    chat_server.fake.reply("Done.")
    entries = [resume_entry(approval, approved=True), resume_entry(question, answer="staging")]
    resumed = await post_run(chat_server, run_input(threadId="t", resume=entries))
    results = {event["toolCallId"]: event["content"] for event in resumed if event["type"] == "TOOL_CALL_RESULT"}
    assert results[question["toolCallId"]] == '{"answer":"staging"}'
    assert "production is gone" in results[approval["toolCallId"]]
    assert join_text(resumed) == "Done."
    assert chat_server.fake.refusals == []
