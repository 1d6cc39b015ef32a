"""Mail over a real socket: sent once, handed out with a lease, streamed, answered, dead and sent again."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from dragoman.letters import needs_input_letter, read_schema_file, task_result_letter, write_letter
from dragoman.server.application import endpoints
from tests.conftest import ROOT
from tests.letters.examples import EXAMPLES
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.test_threads import read_error_code, read_json

MAIL = "/api/v1/mail"
WHEN = "2026-11-15T12:00:00Z"
SECRET = "tr0ub4dor-and-3-horses"


class Caller:
    """A server, as somebody with a key sees it."""

    def __init__(self, server: ServerFixture, headers: dict[str, str]) -> None:
        self.server = server
        self.headers = headers

    def post(self, path: str, body: Any = None) -> Any:
        data = {"data": body} if isinstance(body, bytes | str) else {"json": body}
        return self.server.client.post(
            f"{MAIL}{path}", headers={"content-type": "application/json", **self.headers}, **data
        )

    def get(self, path: str, **headers: str) -> Any:
        return self.server.client.get(f"{MAIL}{path}", headers={**self.headers, **headers})

    async def receive(self, recipient: str, **asked: Any) -> list[dict[str, Any]]:
        found = await read_json(self.post(f"/inbox/{recipient}/receive", asked))
        return list(found["deliveries"])


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    """A server that lets in nobody without a key, on each engine."""
    store = None
    if request.param == "postgres":
        store = request.getfixturevalue("postgres_store")
    opened: AbstractAsyncContextManager[ServerFixture] = run_test_server(tmp_path, store=store, require_keys=True)
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
def ops(server: ServerFixture, runner: asyncio.Runner) -> Caller:
    """A member of the team that has the mail."""
    return Caller(server, runner.run(server.make_key("ada", scopes=("mail", "chat"), team_id="ops")))


def result(task_id: str = "T-1", **fields: Any) -> bytes:
    given = {"sender_id": "CA", "recipient_id": "ARCH", "timestamp": WHEN, "output": "done", **fields}
    return write_letter(task_result_letter(task_id=task_id, **given))


# --- sending and receiving -------------------------------------------------------------------------------------------


async def test_letter_is_stored_once_delivered_once_and_acknowledged(ops: Caller) -> None:
    sent = await read_json(ops.post("", EXAMPLES["complete"]), 201)
    assert (sent["is_new"], sent["state"], sent["recipient_id"]) == (True, "ready", "ARCH")
    for retry in range(5):
        again = await read_json(ops.post("", {**EXAMPLES["complete"], "retry_count": retry}))
        assert (again["letter_id"], again["is_new"]) == (sent["letter_id"], False)
    (held,) = await ops.receive("ARCH")
    assert held["letter"] == EXAMPLES["complete"]
    assert held["attempts"] == 1
    assert await ops.receive("ARCH") == []
    done = f"/inbox/ARCH/{held['letter_id']}/ack"
    assert await read_json(ops.post(done, {"lease": held["lease"]})) == {"is_first": True}
    assert await read_json(ops.post(done, {"lease": held["lease"]})) == {"is_first": False}
    (seen,) = (await read_json(ops.get("/inbox/ARCH")))["letters"]
    assert (seen["state"], seen["attempts"]) == ("done", 1)


async def test_waiting_receiver_is_notified_immediately(ops: Caller) -> None:
    waiting = asyncio.create_task(ops.receive("ARCH", wait_s=20))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await read_json(ops.post("", result()), 201)
    (held,) = await asyncio.wait_for(waiting, 60)
    assert held["letter"]["task_id"] == "T-1"


async def test_failed_letter_is_retried_and_then_dead(ops: Caller) -> None:
    await read_json(ops.post("", result(message_id="m1")), 201)
    for attempt in range(1, 5):
        (held,) = await ops.receive("ARCH")
        assert held["attempts"] == attempt
        said = {"lease": held["lease"], "error": f"the key was {SECRET_KEY}", "retry_after_s": 0}
        outcome = await read_json(ops.post("/inbox/ARCH/m1/nack", said))
        assert outcome["attempts"] == attempt
    assert outcome["retry_at"] is None
    (dead,) = (await read_json(ops.get("/dead")))["dead_letters"]
    assert (dead["id"], dead["reason"], dead["letter_id"]) == (outcome["dead_letter_id"], "retries_exhausted", "m1")
    assert SECRET_KEY not in json.dumps(dead)
    (escalated,) = await ops.receive("HUMAN")
    assert escalated["letter"]["payload"]["details"]["letter_id"] == "m1"
    again = await read_json(ops.post(f"/dead/{dead['id']}/resend"))
    assert again["recipient_id"] == "ARCH"
    (held,) = await ops.receive("ARCH")
    assert held["letter_id"] == "m1"
    assert (await read_json(ops.get("/dead")))["dead_letters"] == []


SECRET_KEY = "sk-ant-api03-Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5"


async def test_lease_is_extended_released_and_lost(ops: Caller) -> None:
    await read_json(ops.post("", result(message_id="m1")), 201)
    (held,) = await ops.receive("ARCH", lease_s=1)
    longer = await read_json(ops.post("/inbox/ARCH/m1/extend", {"lease": held["lease"], "lease_s": 600}))
    assert longer["until"] > held["until"]
    assert await read_error_code(ops.post("/inbox/ARCH/m1/extend", {"lease": "another"}), 409) == "lease_lost"
    assert await read_error_code(ops.post("/inbox/ARCH/m1/ack", {"lease": "another"}), 409) == "lease_lost"
    async with ops.post("/inbox/ARCH/m1/give-back", {"lease": held["lease"]}) as answer:
        assert answer.status == 204
    (again,) = await ops.receive("ARCH")
    assert again["letter_id"] == "m1"
    assert again["lease"] != held["lease"]


async def test_letters_of_one_task_are_delivered_one_at_a_time(ops: Caller) -> None:
    for number in range(3):
        await read_json(ops.post("", result("T-1", output=f"n{number}")), 201)
    await read_json(ops.post("", result("T-2")), 201)
    first = await ops.receive("ARCH")
    assert [held["letter"]["task_id"] for held in first] == ["T-1", "T-2"]
    held = first[0]
    await read_json(ops.post(f"/inbox/ARCH/{held['letter_id']}/ack", {"lease": held["lease"]}))
    (second,) = await ops.receive("ARCH")
    assert second["letter"]["payload"]["result"]["output"] == "n1"


# --- what is no letter -----------------------------------------------------------------------------------------------

WRONG: list[tuple[Any, int, str]] = [
    ({key: value for key, value in EXAMPLES["complete"].items() if key != "task_id"}, 422, "invalid_letter"),
    ({key: value for key, value in EXAMPLES["complete"].items() if key != "payload"}, 422, "invalid_letter"),
    ({**EXAMPLES["complete"], "type": "done"}, 422, "unknown_letter_type"),
    ({**EXAMPLES["complete"], "protocol_version": "9.0"}, 422, "unsupported_protocol_version"),
    (
        {**EXAMPLES["evaluated"], "payload": {**EXAMPLES["evaluated"]["payload"], "success": False}},
        422,
        "inconsistent_result",
    ),
    (
        {**EXAMPLES["evaluated"], "payload": {**EXAMPLES["evaluated"]["payload"], "score": 1.01}},
        422,
        "inconsistent_result",
    ),
    (
        {**EXAMPLES["evaluated"], "payload": {**EXAMPLES["evaluated"]["payload"], "score": -0.1}},
        422,
        "inconsistent_result",
    ),
    (json.dumps(EXAMPLES["evaluated"]).replace("0.95", "NaN"), 422, "inconsistent_result"),
]


@pytest.mark.parametrize(("body", "status", "code"), WRONG, ids=[f"{code}-{n}" for n, (_, _, code) in enumerate(WRONG)])
async def test_invalid_letter_is_rejected_stored_and_its_sender_notified(
    ops: Caller, body: Any, status: int, code: str
) -> None:
    async with ops.post("", body) as answer:
        assert answer.status == status
        assert (await answer.json())["error"]["code"] == code
        name = answer.headers["x-dead-letter"]
    (dead,) = (await read_json(ops.get("/dead")))["dead_letters"]
    assert (dead["id"], dead["reason"], dead["sender_id"]) == (name, code, "CA")
    (error,) = await ops.receive("CA")
    assert error["letter"]["type"] == "error"
    assert error["letter"]["payload"]["code"] == code.upper()
    assert await ops.receive("ARCH") == []
    assert await read_error_code(ops.post(f"/dead/{name}/resend"), 422) == code


async def test_contradictory_durations_are_rejected_with_their_path(ops: Caller) -> None:
    letter = json.loads(result(duration_sec=12.34))
    letter["payload"]["metrics"] = {"duration_ms": 99999}
    async with ops.post("", letter) as answer:
        assert answer.status == 422
        said = (await answer.json())["error"]
    assert said["code"] == "inconsistent_result"
    assert "$.payload.duration_sec: expected the 99999 ms" in said["message"]


async def test_redelivered_letter_counts_its_retries(ops: Caller) -> None:
    await read_json(ops.post("", result(message_id="m1", retry_count=2)), 201)
    await read_json(ops.post("", result("T-2", message_id="m2")), 201)
    for attempt in range(1, 4):
        held = {one["letter_id"]: one for one in await ops.receive("ARCH")}
        assert held["m1"]["letter"]["retry_count"] == 2 + attempt - 1
        assert held["m2"]["letter"].get("retry_count", 0) == attempt - 1
        opened = await read_json(ops.post("/inbox/ARCH/m1/open", {"lease": held["m1"]["lease"]}))
        assert opened["letter"]["retry_count"] == 2 + attempt - 1
        for name, one in held.items():
            await read_json(ops.post(f"/inbox/ARCH/{name}/nack", {"lease": one["lease"], "retry_after_s": 0}))
    seen = {one["letter_id"]: one["letter"] for one in (await read_json(ops.get("/inbox/ARCH")))["letters"]}
    assert (seen["m1"]["retry_count"], seen["m2"]["retry_count"]) == (4, 2)


ASKED = [
    {"id": "name", "type": "string", "description": "a text"},
    {"id": "count", "type": "number", "description": "a number"},
    {"id": "is_sure", "type": "boolean", "description": "yes or no"},
    {"id": "way", "type": "enum", "options": ["left", 1, True], "description": "a choice"},
    {"id": "api-key", "type": "string", "description": "a secret", "sensitive": True},
    {"id": "colour", "type": "string", "description": "has a default", "default": "green"},
    {"id": "file", "type": "file", "description": "may be left out", "required": False},
]
FITS = {"name": "x", "count": 1.5, "is_sure": False, "way": 1.0, "api-key": SECRET}


@pytest.mark.parametrize("way", ["answer", "send"])
async def test_invalid_answer_is_rejected_with_every_problem(ops: Caller, way: str) -> None:
    ends = {"sender_id": "CA", "recipient_id": "HUMAN", "task_id": "T-1", "timestamp": WHEN}
    asked = needs_input_letter(**ends, requested_inputs=ASKED, message_id="ask-1")  # type: ignore[arg-type]
    await read_json(ops.post("", write_letter(asked)), 201)
    (held,) = await ops.receive("HUMAN")

    def given(inputs: dict[str, Any]) -> Any:
        if way == "answer":
            return ops.post("/inbox/HUMAN/ask-1/answer", {"lease": held["lease"], "inputs": inputs})
        ends = {"sender_id": "HUMAN", "recipient_id": "CA", "context": {"in_reply_to": "ask-1"}}
        return ops.post("", result(inputs=inputs, **ends))

    wrong = {"name": 5, "count": "5", "way": "right", "api-key": 471142, "colour": None, "file": [1], "SECRET": 1}
    async with given(wrong) as answer:
        assert answer.status == 422
        said = (await answer.json())["error"]
    assert said["code"] == "invalid_answer"
    where = "$.payload.result.inputs"
    for problem in (
        f"{where}.name: expected a text, got a number",
        f"{where}.count: expected a number, got a text",
        f"{where}.is_sure: is missing; expected true or false",
        f"{where}.way: expected one of the 3 options, got a text",
        f"{where}['api-key']: expected a text, got a number",
        f"{where}.colour: expected a text, got null",
        f"{where}.file: expected a text or an object, got a list",
        f"{where}: expected the ids that were asked for alone, got 1 other",
    ):
        assert problem in said["message"].split("; ") or problem in said["message"], problem
    assert "471142" not in said["message"]
    for almost in ({**FITS, "way": "Left"}, {**FITS, "way": False}, {**FITS, "count": True}, {**FITS, "is_sure": 0}):
        assert await read_error_code(given(almost), 422) == "invalid_answer"
    assert await ops.receive("CA") == []
    await read_json(given(FITS), 201)
    (answered,) = await ops.receive("CA")
    assert answered["letter"]["payload"]["result"]["inputs"] == {**FITS, "way": 1.0, "api-key": "***"}


async def test_artifact_path_is_data_over_http(ops: Caller) -> None:
    for path in ("/etc/passwd", "../../x"):
        await read_json(ops.post("", result(f"T-{len(path)}", artifacts=[{"type": "file", "path": path}])), 201)
    paths = [held["letter"]["payload"]["result"]["artifacts"][0]["path"] for held in await ops.receive("ARCH")]
    assert paths == ["/etc/passwd", "../../x"]


async def test_different_letter_with_the_same_id_is_a_conflict(ops: Caller) -> None:
    await read_json(ops.post("", result(message_id="m1")), 201)
    assert await read_error_code(ops.post("", result(message_id="m1", output="other")), 409) == "letter_conflict"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/inbox/ARCH/receive", {"limit": 0}, 422),
        ("/inbox/ARCH/receive", {"lease_s": 0}, 422),
        ("/inbox/ARCH/receive", {"more": 1}, 422),
        ("/inbox/ARCH/nothing/ack", {"lease": "x"}, 404),
        ("/inbox/ARCH/nothing/ack", {}, 422),
        ("/dead/dead_nothing/resend", {}, 404),
    ],
)
async def test_invalid_requests_are_rejected(ops: Caller, path: str, body: Any, status: int) -> None:
    async with ops.post(path, body) as answer:
        assert answer.status == status


# --- secrets ---------------------------------------------------------------------------------------------------------


async def test_holder_answers_a_request_and_secrets_are_masked_for_others(ops: Caller, tmp_path: Path) -> None:
    request = needs_input_letter(
        sender_id="CA",
        recipient_id="HUMAN",
        task_id="T-1",
        timestamp=WHEN,
        requested_inputs=[{"id": "api_key", "type": "string", "description": "the key", "sensitive": True}],
        message_id="ask-1",
    )
    await read_json(ops.post("", write_letter(request)), 201)
    (asked,) = await ops.receive("HUMAN")
    said = {"lease": asked["lease"], "inputs": {"api_key": SECRET}, "output": f"it is {SECRET}"}
    assert await read_error_code(ops.post("/inbox/HUMAN/ask-1/answer", {**said, "lease": "x"}), 409) == "lease_lost"
    sent = await read_json(ops.post("/inbox/HUMAN/ask-1/answer", said), 201)
    assert sent["recipient_id"] == "CA"
    assert await ops.receive("HUMAN") == []
    (held,) = await ops.receive("CA")
    assert held["letter"]["payload"]["result"] == {"output": "it is ***", "inputs": {"api_key": "***"}}
    name = held["letter_id"]
    opened = await read_json(ops.post(f"/inbox/CA/{name}/open", {"lease": held["lease"]}))
    assert opened["letter"]["payload"]["result"]["inputs"] == {"api_key": SECRET}
    assert await read_error_code(ops.post(f"/inbox/CA/{name}/open", {"lease": "another"}), 409) == "lease_lost"
    for path in ("/tasks/T-1", f"/letters/CA/{name}", "/inbox/CA", "/dead", ""):
        async with ops.get(path) as answer:
            assert SECRET not in await answer.text()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file


# --- streams ---------------------------------------------------------------------------------------------------------


class Stream:
    """A stream of events, read one at a time."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def event(self) -> dict[str, str]:
        while True:
            lines = (
                (await asyncio.wait_for(self.answer.content.readuntil(b"\n\n"), 60)).decode().strip("\n").split("\n")
            )
            found = dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith(":"))
            if "data" in found:
                return found


async def test_stream_sends_arrivals_and_resumes_after_a_cut(ops: Caller) -> None:
    await read_json(ops.post("", result("BEFORE")), 201)
    async with ops.get("/inbox/ARCH/stream") as answer:
        assert answer.content_type == "text/event-stream"
        stream = Stream(answer)
        for number in range(3):
            await read_json(ops.post("", result(f"T-{number}", notes="line\u2028end")), 201)
        seen = [await stream.event() for _ in range(3)]
    assert [event["event"] for event in seen] == ["letter"] * 3
    assert [json.loads(event["data"])["task_id"] for event in seen] == ["T-0", "T-1", "T-2"]
    assert json.loads(seen[0]["data"])["letter"]["payload"]["notes"] == "line\u2028end"
    await read_json(ops.post("", result("MEANWHILE")), 201)
    async with ops.get("/inbox/ARCH/stream", **{"last-event-id": seen[1]["id"]}) as answer:
        stream = Stream(answer)
        again = [json.loads((await stream.event())["data"])["task_id"] for _ in range(2)]
    assert again == ["T-2", "MEANWHILE"]
    assert len(await ops.receive("ARCH", limit=100)) == 5  # to look is not to take
    assert (
        await read_error_code(ops.get("/inbox/ARCH/stream", **{"last-event-id": "x"}), 422) == "invalid_last_event_id"
    )


async def test_server_shutdown_ends_its_streams(tmp_path: Path) -> None:
    async with run_test_server(tmp_path) as server:
        answer = await server.client.get(f"{MAIL}/inbox/ARCH/stream")
        waiting = asyncio.create_task(server.client.post(f"{MAIL}/inbox/ARCH/receive", json={"wait_s": 30}))
        await asyncio.sleep(0.2)
        await server.state.runs.close()
        await asyncio.wait_for(answer.content.read(), 60)
        assert (await asyncio.wait_for(waiting, 60)).status == 200


# --- who sees what ---------------------------------------------------------------------------------------------------


async def test_another_team_gets_not_found(server: ServerFixture, ops: Caller) -> None:
    sent = await read_json(ops.post("", result(message_id="m1")), 201)
    (held,) = await ops.receive("ARCH")
    await read_json(ops.post("", {**EXAMPLES["complete"], "type": "done"}), 422)
    (dead,) = (await read_json(ops.get("/dead")))["dead_letters"]
    assert sent["letter_id"] == "m1"
    for team in ("other", None):
        other = Caller(server, await server.make_key("ada", scopes=("mail",), team_id=team))
        for asked in (
            other.get("/tasks/T-1"),
            other.get("/letters/ARCH/m1"),
            other.post("/inbox/ARCH/m1/ack", {"lease": held["lease"]}),
            other.post("/inbox/ARCH/m1/open", {"lease": held["lease"]}),
            other.post(f"/dead/{dead['id']}/resend"),
        ):
            refused = await read_json(asked, 404)
            assert refused["error"]["code"] == "not_found"
        assert (await read_json(other.get("")))["mailboxes"] == []
        assert (await read_json(other.get("/dead")))["dead_letters"] == []
        assert (await read_json(other.get("/inbox/ARCH")))["letters"] == []
        assert await other.receive("ARCH") == []
        assert (await read_json(other.post("", result(message_id="m1", output="mine")), 201))["is_new"]


async def test_agent_key_is_limited_to_its_agent_and_mailbox(server: ServerFixture, ops: Caller) -> None:
    bot = Caller(server, await server.make_key("bot", scopes=("mail", "agent:CA"), team_id="ops"))
    await read_json(bot.post("", result()), 201)
    assert await read_error_code(bot.post("", result(sender_id="WA")), 403) == "sender_mismatch"
    wrong = {**EXAMPLES["complete"], "sender_id": "WA", "type": "done"}
    async with bot.post("", wrong) as answer:
        assert answer.status == 422
        assert "x-dead-letter" not in answer.headers
    await read_json(ops.post("", result("T-2", sender_id="WA", recipient_id="ARCH")), 201)
    await read_json(ops.post("", result("T-3", sender_id="ARCH", recipient_id="CA")), 201)
    assert [held["letter"]["task_id"] for held in await bot.receive("CA")] == ["T-3"]
    for asked in (
        bot.post("/inbox/ARCH/receive", {}),
        bot.get("/inbox/ARCH"),
        bot.get("/inbox/ARCH/stream"),
        bot.get("/tasks/T-2"),
    ):
        assert await read_error_code(asked, 404) == "not_found"
    assert [box["recipient_id"] for box in (await read_json(bot.get("")))["mailboxes"]] == ["CA"]
    assert len((await read_json(bot.get("/tasks/T-1")))["letters"]) == 1


async def test_mail_requires_scope_and_key(server: ServerFixture) -> None:
    chat = Caller(server, await server.make_key("ada", scopes=("chat",), team_id="ops"))
    assert await read_error_code(chat.get(""), 403) == "missing_scope"
    assert await read_error_code(Caller(server, {}).get(""), 401) == "unauthorized"


# --- one graph -------------------------------------------------------------------------------------------------------


async def test_letter_response_contains_session_calls_spend_and_evaluations(server: ServerFixture, ops: Caller) -> None:
    session = await server.store.create_session(user_id="ada", team_id="ops", title="The report")
    server.fake.reply("The report is written.")
    await server.agent.run(session.id, "Write the report")
    letter = result(score=0.9, session_id=session.id, message_id="m1")
    await read_json(ops.post("", letter), 201)
    graph = await read_json(ops.get("/letters/ARCH/m1"))
    assert graph["letter"]["letter_id"] == "m1"
    assert (graph["session"]["id"], graph["session"]["title"]) == (session.id, "The report")
    assert [row["role"] for row in graph["messages"]] == ["user", "assistant"]
    assert graph["spend"]["calls"] == 1
    assert graph["spend"]["output_tokens"] > 0
    (judged,) = graph["evaluations"]
    assert (judged["score"], judged["model"]) == (0.9, "fake-anthropic:model")
    assert [one["letter_id"] for one in graph["thread"]] == ["m1"]
    mate = Caller(server, await server.make_key("grace", scopes=("mail",), team_id="ops"))
    seen = await read_json(mate.get("/letters/ARCH/m1"))
    assert (seen["session"], seen["messages"], seen["spend"]) == (None, [], None)
    assert seen["letter"]["letter_id"] == "m1"


async def test_schema_is_public(server: ServerFixture) -> None:
    async with server.client.get(f"{MAIL}/schema") as answer:
        assert answer.status == 200
        assert await answer.read() == read_schema_file()


def test_every_mail_route_is_documented() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "docs" / "mail.md").read_text("utf-8"), flags=re.MULTILINE)
    shown = [part for row in rows for part in re.findall(r"`(?:(?:GET|POST) )?([^`]+)`", row)]
    for one in endpoints():
        if one.path.startswith((MAIL, "/evaluat", "/metrics")):
            path = one.path.removeprefix(MAIL) if "evaluat" in one.path or "metrics" in one.path else one.path
            endings = {path, *(f"…{path[at:]}" for at in range(len(path)) if path[at] == "/")}
            assert endings & set(shown), f"{one.method} {one.path}"
