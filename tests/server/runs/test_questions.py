"""Runs in which a model asks the user, and what the user says to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.tools import builtin_tools
from tests.fake_providers import call_part
from tests.server.conftest import ServerFixture
from tests.server.runs.conftest import post_error, post_run, run_input
from tests.server.runs.test_runs import drop, resume_entry, texts

ORDER = {
    "question": "What shall I order?",
    "inputs": [
        {"id": "size", "prompt": "Which size?", "type": "choice", "choices": ["S", "M"]},
        {"id": "count", "prompt": "How many?", "type": "number"},
        {"id": "wrapped", "prompt": "As a present?", "type": "boolean", "required": False},
    ],
}


async def start_question(server: ServerFixture, *calls: Any, **terms: Any) -> list[dict[str, Any]]:
    """The interrupts of a run whose model makes these calls."""
    server.agent.tools = type(server.agent.tools)([drop, *builtin_tools(["ask_user"])])
    server.fake.answer_with(*calls)
    told = await post_run(server, run_input("Order some.", threadId="t", **terms))
    assert told[-1]["outcome"]["type"] == "interrupt"
    interrupts: list[dict[str, Any]] = told[-1]["outcome"]["interrupts"]
    return interrupts


@pytest.mark.parametrize("version", ["1.0", None])
async def test_a_question_is_an_interrupt_and_goes_on_with_what_the_user_says(
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
    said = {"size": "M", "count": 2.5}
    again = await post_run(
        chat_server, run_input(threadId="t", resume=[resume_entry(question, **said)], protocolVersion=version)
    )
    (came,) = [event for event in again if event["type"] == "TOOL_CALL_RESULT"]
    assert (came["toolCallId"], json.loads(came["content"])) == (question["toolCallId"], said)
    assert "metadata" not in came
    assert texts(again) == "Ordered."
    assert "2.5" in str(chat_server.fake.bodies[-1])
    assert chat_server.fake.refusals == []


async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(chat_server: ServerFixture) -> None:
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
        bad = run_input(threadId="t", resume=[resume_entry(question, **payload)])
        assert await post_error(chat_server, bad) == (422, "invalid_resume")
    for whole in ("M", ["M", 1], None):
        bad = run_input(threadId="t", resume=[{**resume_entry(question), "payload": whole}])
        assert await post_error(chat_server, bad) == (422, "invalid_resume")
    message = {"id": "past-the-check", "role": "tool", "toolCallId": question["toolCallId"], "content": "anything"}
    assert await post_error(chat_server, run_input(message, threadId="t")) == (422, "unknown_tool_use")
    assert len(chat_server.fake.bodies) == before
    chat_server.fake.reply("Ordered.")
    again = await post_run(chat_server, run_input(threadId="t", resume=[resume_entry(question, size="S", count=1)]))
    assert texts(again) == "Ordered."


async def test_a_question_without_inputs_wants_a_text_and_may_be_declined(chat_server: ServerFixture) -> None:
    (question,) = await start_question(chat_server, call_part("ask_user", {"question": "Which?"}))
    assert question["responseSchema"]["required"] == ["answer"]
    assert question["responseSchema"]["properties"]["answer"]["type"] == "string"
    chat_server.fake.reply("As you like.")
    again = await post_run(chat_server, run_input(threadId="t", resume=[resume_entry(question, "cancelled")]))
    (came,) = [event for event in again if event["type"] == "TOOL_CALL_RESULT"]
    assert "declined" in came["content"]
    assert came["metadata"] == {"dragoman": {"is_error": True}}
    assert texts(again) == "As you like."
    done = run_input(threadId="t", resume=[resume_entry(question, answer="this")])
    assert await post_error(chat_server, done) == (422, "unknown_interrupt")


async def test_questions_and_approvals_are_answered_together(chat_server: ServerFixture) -> None:
    calls = call_part("ask_user", {"question": "Which?"}), call_part("drop", {"name": "production"})
    question, consent = await start_question(chat_server, *calls)
    assert (question["reason"], consent["reason"]) == ("input_required", "tool_call")
    one = run_input(threadId="t", resume=[resume_entry(question, answer="staging")])
    assert await post_error(chat_server, one) == (422, "resume_incomplete")
    chat_server.fake.reply("Done.")
    both = [resume_entry(consent, approved=True), resume_entry(question, answer="staging")]
    again = await post_run(chat_server, run_input(threadId="t", resume=both))
    came = {event["toolCallId"]: event["content"] for event in again if event["type"] == "TOOL_CALL_RESULT"}
    assert came[question["toolCallId"]] == '{"answer":"staging"}'
    assert "production is gone" in came[consent["toolCallId"]]
    assert texts(again) == "Done."
    assert chat_server.fake.refusals == []
