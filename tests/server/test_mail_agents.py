"""Tests of server agents that answer letters: runs, requests for input, resumed runs, tools and teams."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import LetterError, SettingsError
from dragoman.letters import HUMAN, ErrorLetter, Letter, NeedsInputLetter, TaskResultLetter, needs_input_letter
from dragoman.mail import Delivery, Mail
from dragoman.message import Role, TextBlock
from dragoman.server.mail.agents import MAX_HOPS, AgentWorker, Exchange, MailAgent, parse_mail_agent
from tests.mail.conftest import result
from tests.server.conftest import ServerFixture, run_test_server

WHEN = "2026-11-15T12:00:00Z"


@asynccontextmanager
async def run_mail_server(folder: Path, **options: Any) -> AsyncIterator[ServerFixture]:
    """Run a server with the agent ARCH."""
    options.setdefault("mail_agent", ("ARCH",))
    async with asyncio.timeout(60), run_test_server(folder, **options) as server:
        yield server


async def next_letter(mail: Mail, recipient: str) -> Letter:
    """Receive and acknowledge the next letter of a mailbox."""
    return (await next_delivery(mail, recipient)).letter


async def next_delivery(mail: Mail, recipient: str) -> Delivery:
    async with mail.mailbox(recipient) as mailbox:
        async for delivery in mailbox:
            await delivery.ack()
            return delivery
    raise AssertionError("unreachable")


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    return str(request.getfixturevalue("postgres_store"))


async def test_letter_starts_run_and_answer_is_a_letter(tmp_path: Path, store_url: str | None) -> None:
    async with run_mail_server(tmp_path, store=store_url) as server:
        mail = server.state.mail
        server.fake.reply("Deploy it on Friday.")
        await mail.send(result("TASK-7", message_id="L1", trace_id="trace-1", output="When do we deploy?"))
        delivery = await next_delivery(mail, "CA")
        answer, stored = delivery.letter, delivery.leased.letter
        assert isinstance(answer, TaskResultLetter)
        assert (answer.sender_id, answer.task_id, answer.trace_id) == ("ARCH", "TASK-7", "trace-1")
        assert (answer.in_reply_to, answer.payload.result.output) == ("L1", "Deploy it on Friday.")
        assert stored.session_id is not None
        rows = await server.store.read(stored.session_id)
        assert [row.message.role for row in rows] == [Role.USER, Role.ASSISTANT]
        assert rows[0].message.content == (TextBlock("When do we deploy?"),)
        assert rows[1].message.metadata.usage is not None
        assert rows[1].message.metadata.run_id == stored.turn_id == answer.turn_id
        run = await server.store.runs.latest(stored.session_id)
        assert run is not None
        assert run.status == "finished"
        threads = await (await server.client.get("/api/v1/agent/threads")).json()
        assert [thread["title"] for thread in threads["threads"]] == ["When do we deploy?"]
        (original,) = await mail.letters(recipient_id="ARCH")
        assert original.state == "done"


async def test_letters_of_task_share_a_thread(tmp_path: Path) -> None:
    async with run_mail_server(tmp_path) as server:
        mail = server.state.mail
        for number in range(3):
            server.fake.reply(f"Answer {number}")
            await mail.send(result("TASK-7", message_id=f"L{number}", output=f"Question {number}"))
            letter = await next_letter(mail, "CA")
            assert isinstance(letter, TaskResultLetter)
            assert letter.payload.result.output == f"Answer {number}"
        assert len(await server.store.list_sessions()) == 1
        assert len(server.fake.bodies[-1]["messages"]) == 5


async def test_question_of_model_requests_input_and_answer_resumes_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tool": ("ask_user",), "mail_agent_tools": True, "workspace": str(tmp_path)}
    async with run_mail_server(tmp_path, **options) as server:
        mail = server.state.mail
        inputs = [{"id": "day", "prompt": "Which day?", "type": "choice", "choices": ["Monday", "Friday"]}]
        server.fake.call("ask_user", {"question": "When?", "inputs": inputs})
        server.fake.reply("Friday it is.")
        await mail.send(result("TASK-7", message_id="L1", output="Plan the deployment."))
        async with mail.mailbox("CA") as mailbox:
            delivery = await anext(aiter(mailbox))
            request = delivery.letter
            assert isinstance(request, NeedsInputLetter)
            (requested,) = request.payload.requested_inputs
            assert (requested.id, requested.type, requested.options) == ("day", "enum", ("Monday", "Friday"))
            with pytest.raises(LetterError, match="one of the 2 options"):
                await mail.answer(delivery, {"day": "Sunday"})
            await mail.answer(delivery, {"day": "Friday"})
        answer = await next_letter(mail, "CA")
        assert isinstance(answer, TaskResultLetter)
        assert (answer.payload.result.output, answer.in_reply_to) == ("Friday it is.", "L1")
        (session,) = await server.store.list_sessions()
        roles = [row.message.role for row in await server.store.read(session.id)]
        assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


@pytest.mark.parametrize("approved", [True, False])
async def test_call_that_needs_approval_requests_input_from_human(tmp_path: Path, approved: bool) -> None:
    options: dict[str, Any] = {"tool": ("write_file",), "mail_agent_tools": True, "workspace": str(tmp_path / "work")}
    (tmp_path / "work").mkdir()
    async with run_mail_server(tmp_path, **options) as server:
        mail = server.state.mail
        server.fake.call("write_file", {"path": "note.txt", "content": "Hello"})
        server.fake.reply("Done.")
        await mail.send(result("TASK-7", message_id="L1", output="Write a note."))
        async with mail.mailbox(HUMAN) as mailbox:
            delivery = await anext(aiter(mailbox))
            request = delivery.letter
            assert isinstance(request, NeedsInputLetter)
            assert "write_file" in request.payload.requested_inputs[0].description
            assert not (tmp_path / "work" / "note.txt").exists()
            await mail.answer(delivery, {"approved": approved})
        answer = await next_letter(mail, "CA")
        assert isinstance(answer, TaskResultLetter)
        assert (tmp_path / "work" / "note.txt").exists() is approved


async def test_letter_uses_no_tools_without_option(tmp_path: Path) -> None:
    async with run_mail_server(tmp_path, tool=("ask_user",), workspace=str(tmp_path)) as server:
        server.fake.reply("No tools here.")
        await server.state.mail.send(result("TASK-7", output="Hello"))
        await next_letter(server.state.mail, "CA")
        assert "tools" not in server.fake.bodies[-1]


async def test_answer_to_letter_of_model_continues_the_thread(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tool": ("send_letter",), "mail_agent_tools": True, "workspace": str(tmp_path)}
    async with run_mail_server(tmp_path, **options) as server:
        mail = server.state.mail
        server.fake.call("send_letter", {"recipient_id": "QA", "task_id": "TASK-7", "text": "Is it tested?"})
        server.fake.reply("I asked QA.")
        await mail.send(result("TASK-7", message_id="L1", output="Is it ready?"))
        approval = await next_delivery(mail, HUMAN)
        await mail.answer(approval, {"approved": True})
        question = await next_delivery(mail, "QA")
        assert isinstance(question.letter, TaskResultLetter)
        assert (question.letter.sender_id, question.letter.payload.result.output) == ("ARCH", "Is it tested?")
        assert isinstance(await next_letter(mail, "CA"), TaskResultLetter)
        server.fake.reply("It is ready.")
        reply = result("TASK-7", sender_id="QA", output="Yes.", context={"in_reply_to": question.letter_id})
        await mail.send(reply)
        (session,) = await server.store.list_sessions()
        while len(rows := await server.store.read(session.id)) < 6 or rows[-1].message.metadata.status == "partial":
            await asyncio.sleep(0.01)
        assert rows[-1].message.content == (TextBlock("It is ready."),)
        counts = {box.recipient_id: box.ready for box in await mail.counts()}
        assert counts.get("QA", 0) == 0  # an answer is not answered


async def test_request_for_input_is_answered_with_inputs(tmp_path: Path) -> None:
    async with run_mail_server(tmp_path) as server:
        mail = server.state.mail
        requested = [
            {"id": "region", "type": "enum", "options": ["eu", "us"], "description": "Where?"},
            {"id": "count", "type": "number", "description": "How many?"},
        ]
        request = needs_input_letter(
            sender_id="CA", recipient_id="ARCH", task_id="TASK-7", timestamp=WHEN, requested_inputs=requested
        )
        server.fake.reply('Here: {"region": "eu", "count": 3}')
        await mail.send(request)
        answer = await next_letter(mail, "CA")
        assert isinstance(answer, TaskResultLetter)
        assert answer.payload.result.inputs == {"region": "eu", "count": 3}
        server.fake.reply("I do not know.")
        await mail.send(request.replace(task_id="TASK-8"))
        error = await next_letter(mail, "CA")
        assert isinstance(error, ErrorLetter)
        assert error.payload.code == "INVALID_ANSWER"


async def test_failed_run_sends_error_letter(tmp_path: Path) -> None:
    async with run_mail_server(tmp_path, mail_agent=("ARCH=nowhere:model",)) as server:
        await server.state.mail.send(result("TASK-7", message_id="L1", output="Hello"))
        answer = await next_letter(server.state.mail, "CA")
        assert isinstance(answer, ErrorLetter)
        assert answer.in_reply_to == "L1"


async def test_agents_stop_answering_each_other(tmp_path: Path) -> None:
    async with run_mail_server(tmp_path, mail_agent=("ARCH", "CA")) as server:
        mail = server.state.mail
        server.fake.reply("Hello")
        await mail.send(result("TASK-7", message_id="L1", output="Hello"))
        while {status.state for status in await mail.letters()} != {"done"} or len(await mail.letters()) < 2:
            await asyncio.sleep(0.01)
        assert len(await mail.letters()) == 2  # an answer is not answered
        await mail.send(result("TASK-8", message_id="L2", output="Hello", context={"hops": MAX_HOPS + 1}))
        while {status.state for status in await mail.letters()} != {"done"}:
            await asyncio.sleep(0.01)
        assert len(await mail.letters()) == 3


async def test_redelivered_letter_is_answered_once(tmp_path: Path) -> None:
    """The server stops after the run and before the acknowledgement."""
    async with run_mail_server(tmp_path, mail_agent=()) as server:
        mail = server.state.mail
        await mail.send(result("TASK-7", message_id="L1", output="Hello"))
        server.fake.reply("Once.")
        worker = AgentWorker(server.state, MailAgent("ARCH"))
        send, failures = Exchange._send, itertools.count()

        async def fail_first(self: Exchange, *arguments: Any, **links: Any) -> None:
            if next(failures) == 0:
                raise OSError("the server died here")
            await send(self, *arguments, **links)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Exchange, "_send", fail_first)
            (first,) = await mail.receive("ARCH")
            with pytest.raises(OSError, match="died here"):
                await worker.handle(first)
            await mail.release(first)
            (second,) = await mail.receive("ARCH")
            await worker.handle(second)
        answer = await next_letter(mail, "CA")
        assert isinstance(answer, TaskResultLetter)
        assert answer.payload.result.output == "Once."
        assert len(server.fake.bodies) == 1
        assert {status.state for status in await mail.letters()} == {"done"}


async def test_mail_of_another_team_is_not_answered(tmp_path: Path) -> None:
    async with run_mail_server(tmp_path, mail_agent=("blue/ARCH",)) as server:
        red = server.state.mail.for_team(team_id="red", user_id="ann")
        blue = server.state.mail.for_team(team_id="blue", user_id="bob")
        await red.send(result("TASK-7", output="Hello"))
        server.fake.reply("Blue.")
        await blue.send(result("TASK-7", output="Hello"))
        assert isinstance(await next_letter(blue, "CA"), TaskResultLetter)
        (session,) = await server.store.list_sessions()
        assert (session.user_id, session.team_id) == ("bob", "blue")
        (letter,) = await red.letters()
        assert letter.state == "ready"


@pytest.mark.parametrize(
    ("text", "agent"),
    [
        ("ARCH", MailAgent("ARCH")),
        ("blue/ARCH", MailAgent("ARCH", "blue")),
        ("user:ann/CA=openai:gpt-5", MailAgent("CA", "user:ann", "openai:gpt-5")),
    ],
)
def test_configured_agent_is_parsed(text: str, agent: MailAgent) -> None:
    assert parse_mail_agent(text) == agent


def test_agent_with_invalid_name_is_rejected() -> None:
    with pytest.raises(SettingsError, match="not the name of an agent"):
        parse_mail_agent("blue/arch")
