"""Runs over a real socket: told as they come, kept, come back to, ended."""

from __future__ import annotations

from tests.server.conftest import Serving
from tests.server.runs.conftest import post, run_input, types


async def test_a_run_is_told_from_its_beginning_to_its_end(chat_server: Serving) -> None:
    chat_server.fake.say("It is fine.", thinking="Hm.")
    given = run_input("How is it?")
    events = await post(chat_server, given)
    assert types(events) == [
        "RUN_STARTED",
        "STEP_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_ENCRYPTED_VALUE",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    assert [event["number"] for event in events] == [*range(1, len(events) + 1)]
    assert events[0]["threadId"] == given["threadId"]
    assert events[-1]["outcome"] == {"type": "success"}
