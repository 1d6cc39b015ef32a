"""Tests of mail over a real socket: delivery, leases, streams, answers, dead letters and access."""

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
    """Sends requests to a server with a key."""

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

    async def receive(self, recipient: str, **options: Any) -> list[dict[str, Any]]:
        found = await read_json(self.post(f"/inbox/{recipient}/receive", options))
        return list(found["deliveries"])


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    """A server that requires a key, on each engine."""
    store = None
    if request.param == "postgres":
        store = request.getfixturevalue("postgres_store")
    context: AbstractAsyncContextManager[ServerFixture] = run_test_server(tmp_path, store=store, require_keys=True)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def ops(server: ServerFixture, runner: asyncio.Runner) -> Caller:
    """A member of the team that owns the mail."""
    return Caller(server, runner.run(server.make_key("ada", scopes=("mail", "chat"), team_id="ops")))


def make_result(task_id: str = "T-1", **fields: Any) -> bytes:
    values = {"sender_id": "CA", "recipient_id": "ARCH", "timestamp": WHEN, "output": "done", **fields}
    return write_letter(task_result_letter(task_id=task_id, **values))


# --- sending and receiving -------------------------------------------------------------------------------------------


async def test_letter_is_stored_once_delivered_once_and_acknowledged(ops: Caller) -> None:
    sent = await read_json(ops.post("", EXAMPLES["complete"]), 201)
    assert (sent["is_new"], sent["state"], sent["recipient_id"]) == (True, "ready", "ARCH")
    for retry in range(5):
        repeated = await read_json(ops.post("", {**EXAMPLES["complete"], "retry_count": retry}))
        assert (repeated["letter_id"], repeated["is_new"]) == (sent["letter_id"], False)
    (delivery,) = await ops.receive("ARCH")
    assert delivery["letter"] == EXAMPLES["complete"]
    assert delivery["attempts"] == 1
    assert await ops.receive("ARCH") == []
    ack_path = f"/inbox/ARCH/{delivery['letter_id']}/ack"
    assert await read_json(ops.post(ack_path, {"lease": delivery["lease"]})) == {"is_first": True}
    assert await read_json(ops.post(ack_path, {"lease": delivery["lease"]})) == {"is_first": False}
    (listed,) = (await read_json(ops.get("/inbox/ARCH")))["letters"]
    assert (listed["state"], listed["attempts"]) == ("done", 1)


async def test_waiting_receiver_is_notified_immediately(ops: Caller) -> None:
    receiver = asyncio.create_task(ops.receive("ARCH", wait_s=20))
    await asyncio.sleep(0.2)
    assert not receiver.done()
    await read_json(ops.post("", make_result()), 201)
    (delivery,) = await asyncio.wait_for(receiver, 60)
    assert delivery["letter"]["task_id"] == "T-1"


async def test_failed_letter_is_retried_and_then_dead(ops: Caller) -> None:
    await read_json(ops.post("", make_result(message_id="m1")), 201)
    for attempt in range(1, 5):
        (delivery,) = await ops.receive("ARCH")
        assert delivery["attempts"] == attempt
        body = {"lease": delivery["lease"], "error": f"the key was {SECRET_KEY}", "retry_after_s": 0}
        outcome = await read_json(ops.post("/inbox/ARCH/m1/nack", body))
        assert outcome["attempts"] == attempt
    assert outcome["retry_at"] is None
    (dead,) = (await read_json(ops.get("/dead")))["dead_letters"]
    assert (dead["id"], dead["reason"], dead["letter_id"]) == (outcome["dead_letter_id"], "retries_exhausted", "m1")
    assert SECRET_KEY not in json.dumps(dead)
    (escalated,) = await ops.receive("HUMAN")
    assert escalated["letter"]["payload"]["details"]["letter_id"] == "m1"
    resent = await read_json(ops.post(f"/dead/{dead['id']}/resend"))
    assert resent["recipient_id"] == "ARCH"
    (delivery,) = await ops.receive("ARCH")
    assert delivery["letter_id"] == "m1"
    assert (await read_json(ops.get("/dead")))["dead_letters"] == []


SECRET_KEY = "sk-ant-api03-Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5"


async def test_lease_is_extended_released_and_lost(ops: Caller) -> None:
    await read_json(ops.post("", make_result(message_id="m1")), 201)
    (delivery,) = await ops.receive("ARCH", lease_s=1)
    extended = await read_json(ops.post("/inbox/ARCH/m1/extend", {"lease": delivery["lease"], "lease_s": 600}))
    assert extended["until"] > delivery["until"]
    assert await read_error_code(ops.post("/inbox/ARCH/m1/extend", {"lease": "another"}), 409) == "lease_lost"
    assert await read_error_code(ops.post("/inbox/ARCH/m1/ack", {"lease": "another"}), 409) == "lease_lost"
    async with ops.post("/inbox/ARCH/m1/give-back", {"lease": delivery["lease"]}) as response:
        assert response.status == 204
    (second,) = await ops.receive("ARCH")
    assert second["letter_id"] == "m1"
    assert second["lease"] != delivery["lease"]


async def test_letters_of_one_task_are_delivered_one_at_a_time(ops: Caller) -> None:
    for number in range(3):
        await read_json(ops.post("", make_result("T-1", output=f"n{number}")), 201)
    await read_json(ops.post("", make_result("T-2")), 201)
    first = await ops.receive("ARCH")
    assert [delivery["letter"]["task_id"] for delivery in first] == ["T-1", "T-2"]
    delivery = first[0]
    await read_json(ops.post(f"/inbox/ARCH/{delivery['letter_id']}/ack", {"lease": delivery["lease"]}))
    (second,) = await ops.receive("ARCH")
    assert second["letter"]["payload"]["result"]["output"] == "n1"


# --- invalid letters -------------------------------------------------------------------------------------------------

INVALID_LETTERS: list[tuple[Any, int, str]] = [
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


@pytest.mark.parametrize(
    ("body", "status", "code"), INVALID_LETTERS, ids=[f"{code}-{n}" for n, (_, _, code) in enumerate(INVALID_LETTERS)]
)
async def test_invalid_letter_is_rejected_stored_and_its_sender_notified(
    ops: Caller, body: Any, status: int, code: str
) -> None:
    async with ops.post("", body) as response:
        assert response.status == status
        assert (await response.json())["error"]["code"] == code
        dead_id = response.headers["x-dead-letter"]
    (dead,) = (await read_json(ops.get("/dead")))["dead_letters"]
    assert (dead["id"], dead["reason"], dead["sender_id"]) == (dead_id, code, "CA")
    (error,) = await ops.receive("CA")
    assert error["letter"]["type"] == "error"
    assert error["letter"]["payload"]["code"] == code.upper()
    assert await ops.receive("ARCH") == []
    assert await read_error_code(ops.post(f"/dead/{dead_id}/resend"), 422) == code


async def test_contradictory_durations_are_rejected_with_their_path(ops: Caller) -> None:
    letter = json.loads(make_result(duration_sec=12.34))
    letter["payload"]["metrics"] = {"duration_ms": 99999}
    async with ops.post("", letter) as response:
        assert response.status == 422
        error = (await response.json())["error"]
    assert error["code"] == "inconsistent_result"
    assert "$.payload.duration_sec: expected the 99999 ms" in error["message"]


async def test_redelivered_letter_counts_its_retries(ops: Caller) -> None:
    await read_json(ops.post("", make_result(message_id="m1", retry_count=2)), 201)
    await read_json(ops.post("", make_result("T-2", message_id="m2")), 201)
    for attempt in range(1, 4):
        deliveries = {row["letter_id"]: row for row in await ops.receive("ARCH")}
        assert deliveries["m1"]["letter"]["retry_count"] == 2 + attempt - 1
        assert deliveries["m2"]["letter"].get("retry_count", 0) == attempt - 1
        decrypted = await read_json(ops.post("/inbox/ARCH/m1/open", {"lease": deliveries["m1"]["lease"]}))
        assert decrypted["letter"]["retry_count"] == 2 + attempt - 1
        for name, row in deliveries.items():
            await read_json(ops.post(f"/inbox/ARCH/{name}/nack", {"lease": row["lease"], "retry_after_s": 0}))
    letters = {row["letter_id"]: row["letter"] for row in (await read_json(ops.get("/inbox/ARCH")))["letters"]}
    assert (letters["m1"]["retry_count"], letters["m2"]["retry_count"]) == (4, 2)


REQUESTED_INPUTS = [
    {"id": "name", "type": "string", "description": "a text"},
    {"id": "count", "type": "number", "description": "a number"},
    {"id": "is_sure", "type": "boolean", "description": "yes or no"},
    {"id": "way", "type": "enum", "options": ["left", 1, True], "description": "a choice"},
    {"id": "api-key", "type": "string", "description": "a secret", "sensitive": True},
    {"id": "colour", "type": "string", "description": "has a default", "default": "green"},
    {"id": "file", "type": "file", "description": "may be left out", "required": False},
]
VALID_INPUTS = {"name": "x", "count": 1.5, "is_sure": False, "way": 1.0, "api-key": SECRET}


@pytest.mark.parametrize("method", ["answer", "send"])
async def test_invalid_answer_is_rejected_with_every_problem(ops: Caller, method: str) -> None:
    header = {"sender_id": "CA", "recipient_id": "HUMAN", "task_id": "T-1", "timestamp": WHEN}
    request = needs_input_letter(**header, requested_inputs=REQUESTED_INPUTS, message_id="ask-1")  # type: ignore[arg-type]
    await read_json(ops.post("", write_letter(request)), 201)
    (delivery,) = await ops.receive("HUMAN")

    def send_inputs(inputs: dict[str, Any]) -> Any:
        if method == "answer":
            return ops.post("/inbox/HUMAN/ask-1/answer", {"lease": delivery["lease"], "inputs": inputs})
        header = {"sender_id": "HUMAN", "recipient_id": "CA", "context": {"in_reply_to": "ask-1"}}
        return ops.post("", make_result(inputs=inputs, **header))

    invalid_inputs = {
        "name": 5,
        "count": "5",
        "way": "right",
        "api-key": 471142,
        "colour": None,
        "file": [1],
        "SECRET": 1,
    }
    async with send_inputs(invalid_inputs) as response:
        assert response.status == 422
        error = (await response.json())["error"]
    assert error["code"] == "invalid_answer"
    prefix = "$.payload.result.inputs"
    for problem in (
        f"{prefix}.name: expected a text, got a number",
        f"{prefix}.count: expected a number, got a text",
        f"{prefix}.is_sure: is missing; expected true or false",
        f"{prefix}.way: expected one of the 3 options, got a text",
        f"{prefix}['api-key']: expected a text, got a number",
        f"{prefix}.colour: expected a text, got null",
        f"{prefix}.file: expected a text or an object, got a list",
        f"{prefix}: expected the ids that were asked for alone, got 1 other",
    ):
        assert problem in error["message"].split("; ") or problem in error["message"], problem
    assert "471142" not in error["message"]
    for inputs in (
        {**VALID_INPUTS, "way": "Left"},
        {**VALID_INPUTS, "way": False},
        {**VALID_INPUTS, "count": True},
        {**VALID_INPUTS, "is_sure": 0},
    ):
        assert await read_error_code(send_inputs(inputs), 422) == "invalid_answer"
    assert await ops.receive("CA") == []
    await read_json(send_inputs(VALID_INPUTS), 201)
    (reply,) = await ops.receive("CA")
    assert reply["letter"]["payload"]["result"]["inputs"] == {**VALID_INPUTS, "way": 1.0, "api-key": "***"}


async def test_artifact_path_is_data_over_http(ops: Caller) -> None:
    for path in ("/etc/passwd", "../../x"):
        await read_json(ops.post("", make_result(f"T-{len(path)}", artifacts=[{"type": "file", "path": path}])), 201)
    paths = [delivery["letter"]["payload"]["result"]["artifacts"][0]["path"] for delivery in await ops.receive("ARCH")]
    assert paths == ["/etc/passwd", "../../x"]


async def test_different_letter_with_the_same_id_is_a_conflict(ops: Caller) -> None:
    await read_json(ops.post("", make_result(message_id="m1")), 201)
    assert await read_error_code(ops.post("", make_result(message_id="m1", output="other")), 409) == "letter_conflict"


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
    async with ops.post(path, body) as response:
        assert response.status == status


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
    (request_delivery,) = await ops.receive("HUMAN")
    body = {"lease": request_delivery["lease"], "inputs": {"api_key": SECRET}, "output": f"it is {SECRET}"}
    assert await read_error_code(ops.post("/inbox/HUMAN/ask-1/answer", {**body, "lease": "x"}), 409) == "lease_lost"
    sent = await read_json(ops.post("/inbox/HUMAN/ask-1/answer", body), 201)
    assert sent["recipient_id"] == "CA"
    assert await ops.receive("HUMAN") == []
    (delivery,) = await ops.receive("CA")
    assert delivery["letter"]["payload"]["result"] == {"output": "it is ***", "inputs": {"api_key": "***"}}
    letter_id = delivery["letter_id"]
    decrypted = await read_json(ops.post(f"/inbox/CA/{letter_id}/open", {"lease": delivery["lease"]}))
    assert decrypted["letter"]["payload"]["result"]["inputs"] == {"api_key": SECRET}
    assert await read_error_code(ops.post(f"/inbox/CA/{letter_id}/open", {"lease": "another"}), 409) == "lease_lost"
    for path in ("/tasks/T-1", f"/letters/CA/{letter_id}", "/inbox/CA", "/dead", ""):
        async with ops.get(path) as response:
            assert SECRET not in await response.text()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file


# --- streams ---------------------------------------------------------------------------------------------------------


class Stream:
    """A stream of events, read one at a time."""

    def __init__(self, response: Any) -> None:
        self.response = response

    async def next_event(self) -> dict[str, str]:
        while True:
            lines = (
                (await asyncio.wait_for(self.response.content.readuntil(b"\n\n"), 60)).decode().strip("\n").split("\n")
            )
            fields = dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith(":"))
            if "data" in fields:
                return fields


async def test_stream_sends_arrivals_and_resumes_after_a_cut(ops: Caller) -> None:
    await read_json(ops.post("", make_result("BEFORE")), 201)
    async with ops.get("/inbox/ARCH/stream") as response:
        assert response.content_type == "text/event-stream"
        stream = Stream(response)
        for number in range(3):
            await read_json(ops.post("", make_result(f"T-{number}", notes="line\u2028end")), 201)
        events = [await stream.next_event() for _ in range(3)]
    assert [event["event"] for event in events] == ["letter"] * 3
    assert [json.loads(event["data"])["task_id"] for event in events] == ["T-0", "T-1", "T-2"]
    assert json.loads(events[0]["data"])["letter"]["payload"]["notes"] == "line\u2028end"
    await read_json(ops.post("", make_result("MEANWHILE")), 201)
    async with ops.get("/inbox/ARCH/stream", **{"last-event-id": events[1]["id"]}) as response:
        stream = Stream(response)
        resumed = [json.loads((await stream.next_event())["data"])["task_id"] for _ in range(2)]
    assert resumed == ["T-2", "MEANWHILE"]
    assert len(await ops.receive("ARCH", limit=100)) == 5  # reading a stream does not lease letters
    assert (
        await read_error_code(ops.get("/inbox/ARCH/stream", **{"last-event-id": "x"}), 422) == "invalid_last_event_id"
    )


async def test_server_shutdown_ends_its_streams(tmp_path: Path) -> None:
    async with run_test_server(tmp_path) as server:
        response = await server.client.get(f"{MAIL}/inbox/ARCH/stream")
        receiver = asyncio.create_task(server.client.post(f"{MAIL}/inbox/ARCH/receive", json={"wait_s": 30}))
        await asyncio.sleep(0.2)
        await server.state.runs.close()
        await asyncio.wait_for(response.content.read(), 60)
        assert (await asyncio.wait_for(receiver, 60)).status == 200


# --- access ----------------------------------------------------------------------------------------------------------


async def test_another_team_gets_not_found(server: ServerFixture, ops: Caller) -> None:
    sent = await read_json(ops.post("", make_result(message_id="m1")), 201)
    (delivery,) = await ops.receive("ARCH")
    await read_json(ops.post("", {**EXAMPLES["complete"], "type": "done"}), 422)
    (dead,) = (await read_json(ops.get("/dead")))["dead_letters"]
    assert sent["letter_id"] == "m1"
    for team in ("other", None):
        other = Caller(server, await server.make_key("ada", scopes=("mail",), team_id=team))
        for request in (
            other.get("/tasks/T-1"),
            other.get("/letters/ARCH/m1"),
            other.post("/inbox/ARCH/m1/ack", {"lease": delivery["lease"]}),
            other.post("/inbox/ARCH/m1/open", {"lease": delivery["lease"]}),
            other.post(f"/dead/{dead['id']}/resend"),
        ):
            error = await read_json(request, 404)
            assert error["error"]["code"] == "not_found"
        assert (await read_json(other.get("")))["mailboxes"] == []
        assert (await read_json(other.get("/dead")))["dead_letters"] == []
        assert (await read_json(other.get("/inbox/ARCH")))["letters"] == []
        assert await other.receive("ARCH") == []
        assert (await read_json(other.post("", make_result(message_id="m1", output="mine")), 201))["is_new"]


async def test_agent_key_is_limited_to_its_agent_and_mailbox(server: ServerFixture, ops: Caller) -> None:
    bot = Caller(server, await server.make_key("bot", scopes=("mail", "agent:CA"), team_id="ops"))
    await read_json(bot.post("", make_result()), 201)
    assert await read_error_code(bot.post("", make_result(sender_id="WA")), 403) == "sender_mismatch"
    invalid_letter = {**EXAMPLES["complete"], "sender_id": "WA", "type": "done"}
    async with bot.post("", invalid_letter) as response:
        assert response.status == 422
        assert "x-dead-letter" not in response.headers
    await read_json(ops.post("", make_result("T-2", sender_id="WA", recipient_id="ARCH")), 201)
    await read_json(ops.post("", make_result("T-3", sender_id="ARCH", recipient_id="CA")), 201)
    assert [delivery["letter"]["task_id"] for delivery in await bot.receive("CA")] == ["T-3"]
    for request in (
        bot.post("/inbox/ARCH/receive", {}),
        bot.get("/inbox/ARCH"),
        bot.get("/inbox/ARCH/stream"),
        bot.get("/tasks/T-2"),
    ):
        assert await read_error_code(request, 404) == "not_found"
    assert [box["recipient_id"] for box in (await read_json(bot.get("")))["mailboxes"]] == ["CA"]
    assert len((await read_json(bot.get("/tasks/T-1")))["letters"]) == 1


async def test_mail_requires_scope_and_key(server: ServerFixture) -> None:
    chat = Caller(server, await server.make_key("ada", scopes=("chat",), team_id="ops"))
    assert await read_error_code(chat.get(""), 403) == "missing_scope"
    assert await read_error_code(Caller(server, {}).get(""), 401) == "unauthorized"


# --- linked data -----------------------------------------------------------------------------------------------------


async def test_letter_response_contains_session_calls_spend_and_evaluations(server: ServerFixture, ops: Caller) -> None:
    session = await server.store.create_session(user_id="ada", team_id="ops", title="The report")
    server.fake.reply("The report is written.")
    await server.agent.run(session.id, "Write the report")
    letter = make_result(score=0.9, session_id=session.id, message_id="m1")
    await read_json(ops.post("", letter), 201)
    graph = await read_json(ops.get("/letters/ARCH/m1"))
    assert graph["letter"]["letter_id"] == "m1"
    assert (graph["session"]["id"], graph["session"]["title"]) == (session.id, "The report")
    assert [row["role"] for row in graph["messages"]] == ["user", "assistant"]
    assert graph["spend"]["calls"] == 1
    assert graph["spend"]["output_tokens"] > 0
    (evaluation,) = graph["evaluations"]
    assert (evaluation["score"], evaluation["model"]) == (0.9, "fake-anthropic:model")
    assert [row["letter_id"] for row in graph["thread"]] == ["m1"]
    teammate = Caller(server, await server.make_key("grace", scopes=("mail",), team_id="ops"))
    visible = await read_json(teammate.get("/letters/ARCH/m1"))
    assert (visible["session"], visible["messages"], visible["spend"]) == (None, [], None)
    assert visible["letter"]["letter_id"] == "m1"


async def test_schema_is_public(server: ServerFixture) -> None:
    async with server.client.get(f"{MAIL}/schema") as response:
        assert response.status == 200
        assert await response.read() == read_schema_file()


def test_every_mail_route_is_documented() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "docs" / "mail.md").read_text("utf-8"), flags=re.MULTILINE)
    documented = [part for row in rows for part in re.findall(r"`(?:(?:GET|POST) )?([^`]+)`", row)]
    for endpoint in endpoints():
        if endpoint.path.startswith((MAIL, "/evaluat", "/metrics")):
            path = (
                endpoint.path.removeprefix(MAIL)
                if "evaluat" in endpoint.path or "metrics" in endpoint.path
                else endpoint.path
            )
            endings = {path, *(f"…{path[index:]}" for index in range(len(path)) if path[index] == "/")}
            assert endings & set(documented), f"{endpoint.method} {endpoint.path}"
