"""Tests of tenant isolation of mail and evaluations: every route, every kind of id.

The routes come from the server itself. A route with an unknown path parameter or body fails these tests. For each route,
Ann's team gets a response, and other callers get exactly the response of an unknown id.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from dragoman.letters import needs_input_letter, task_result_letter, write_letter
from dragoman.server.application import endpoints
from dragoman.server.http.endpoint import Endpoint
from tests.letters.examples import EXAMPLES
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.test_threads import read_json

MAIL: Final = "/api/v1/mail"
SECRET: Final = "anns-secret"
WHEN: Final = "2026-11-15T12:00:00Z"
_MISSING: Final = {
    "recipient": "NOBODY",
    "letter_id": "nobody-has-this",
    "task_id": "NONE",
    "dead_id": "dead_nobody",
    "lease": "nobody-has-this",
}
# Request bodies by route. Texts in braces become ids.
BODIES: Final[dict[str, Any]] = {
    "receive_letters": {},
    "ack_letter": {"lease": "{lease}"},
    "nack_letter": {"lease": "{lease}", "retry_after_s": 0},
    "extend_letter": {"lease": "{lease}"},
    "give_back_letter": {"lease": "{lease}"},
    "open_letter": {"lease": "{lease}"},
    "answer_letter": {"lease": "{lease}", "inputs": {"colour": "red"}},
    "resend_letter": None,
    "send_letter": None,  # it uses no existing resource
    "evaluate": None,
    "evaluate_of_mail": None,
}
FINAL_ENDPOINTS: Final = (
    "ack_letter",
    "nack_letter",
    "give_back_letter",
    "answer_letter",
    "resend_letter",
    "receive_letters",
)


class TeamData(msgspec.Struct, frozen=True):
    """An id of each kind of resource of a team."""

    recipient: str
    letter_id: str
    task_id: str
    dead_id: str
    lease: str


class MailFixture(msgspec.Struct, frozen=True):
    """A server with Ann's team, and keys of other callers."""

    server: ServerFixture
    ann: dict[str, str]
    strangers: dict[str, dict[str, str]]
    data: TeamData


def mail_endpoints() -> Iterator[Endpoint]:
    """Yield every mail route that requires a key."""
    for endpoint in endpoints():
        if endpoint.path.startswith((MAIL, "/evaluat", "/metrics")) and not endpoint.public:
            yield endpoint


def fill_body(body: Any, ids: dict[str, str]) -> Any:
    if isinstance(body, dict):
        return {name: fill_body(value, ids) for name, value in body.items()}
    return ids.get(body[1:-1], body) if isinstance(body, str) and body.startswith("{") else body


async def send_request(
    mail_fixture: MailFixture, endpoint: Endpoint, ids: dict[str, str], headers: dict[str, str]
) -> tuple[int, str]:
    path = re.sub(r"\{(\w+)\}", lambda match: ids[match[1]], endpoint.path)
    options = {"json": fill_body(BODIES.get(endpoint.name), ids)} if BODIES.get(endpoint.name) is not None else {}
    async with mail_fixture.server.client.request(endpoint.method, path, headers=headers, **options) as response:
        if response.content_type == "text/event-stream":
            text = (await response.content.readuntil(b"\n\n")).decode()
        else:
            text = await response.text()
    text = re.sub(r"req_[0-9a-f]+", "REQUEST", text)
    for value in ids.values():
        text = text.replace(value, "ID")
    return response.status, text


@pytest.fixture(params=["sqlite", "postgres"])
def mail_fixture(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path) -> Iterator[MailFixture]:
    store = None
    if request.param == "postgres":
        store = request.getfixturevalue("postgres_store")
    context = _open_fixture(tmp_path, store)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


@asynccontextmanager
async def _open_fixture(folder: Path, store: str | None) -> AsyncIterator[MailFixture]:
    async with run_test_server(folder, store=store, require_keys=True) as server:
        ann = await server.make_key("ann", ("mail",), team_id="red")
        strangers = {
            "same user in another team": await server.make_key("ann", ("mail",), team_id="blue"),
            "same user in no team": await server.make_key("ann", ("mail",)),
            "other user in no team": await server.make_key("bob", ("mail",)),
        }
        yield MailFixture(server, ann, strangers, await _create_data(server, ann))


async def _create_data(server: ServerFixture, ann: dict[str, str]) -> TeamData:
    headers = {**ann, "content-type": "application/json"}
    request = needs_input_letter(
        sender_id="CA",
        recipient_id="ARCH",
        task_id="T-1",
        timestamp=WHEN,
        requested_inputs=[{"id": "colour", "type": "string", "description": SECRET}],
        message_id="anns-letter",
    )
    await read_json(server.client.post(MAIL, data=write_letter(request), headers=headers), 201)
    evaluation = task_result_letter(
        sender_id="CA", recipient_id="ARCH", task_id="T-1", timestamp=WHEN, output=SECRET, score=0.7, notes=SECRET
    )
    await read_json(server.client.post("/evaluate", data=write_letter(evaluation), headers=headers), 201)
    invalid_letter = {**EXAMPLES["complete"], "type": "done", "context": {SECRET: SECRET}}
    await read_json(server.client.post(MAIL, json=invalid_letter, headers=ann), 422)
    (dead,) = (await read_json(server.client.get(f"{MAIL}/dead", headers=ann)))["dead_letters"]
    received = await read_json(server.client.post(f"{MAIL}/inbox/ARCH/receive", json={}, headers=ann))
    (delivery,) = received["deliveries"]
    return TeamData("ARCH", "anns-letter", "T-1", dead["id"], delivery["lease"])


def test_every_id_and_body_is_covered() -> None:
    known = set(TeamData.__struct_fields__)
    for endpoint in mail_endpoints():
        assert set(re.findall(r"\{(\w+)", endpoint.path)) <= known, endpoint.path
        assert endpoint.request_body is None or endpoint.name in BODIES, (
            f"{endpoint.method} {endpoint.path}: its body is not listed in BODIES"
        )
    assert len(list(mail_endpoints())) >= 18


async def test_mail_of_team_is_not_found_by_another_team(mail_fixture: MailFixture) -> None:
    ids = msgspec.structs.asdict(mail_fixture.data)
    for endpoint in mail_endpoints():
        for caller, headers in mail_fixture.strangers.items():
            status, body = await send_request(mail_fixture, endpoint, ids, headers)
            context = f"{caller}: {endpoint.method} {endpoint.path}: {status} {body[:300]}"
            assert status < 500, context
            assert SECRET not in body, context
            assert "T-1" not in body, context
            if "{" in endpoint.path:
                assert (status, body) == await send_request(mail_fixture, endpoint, _MISSING, headers), context
    statuses = await mail_fixture.server.state.mail.for_team(team_id="red").letters(letter_id="anns-letter")
    assert [(endpoint.state, endpoint.attempts) for endpoint in statuses] == [("ready", 1)]
    assert len(await mail_fixture.server.state.mail.for_team(team_id="red").dead_letters()) == 1


async def test_letters_of_other_agents_are_not_found_by_an_agent_key(mail_fixture: MailFixture) -> None:
    """Evaluations and queue lengths belong to the whole team."""
    ids = msgspec.structs.asdict(mail_fixture.data)
    agent = await mail_fixture.server.make_key("bot", ("mail", "agent:WA"), team_id="red")
    for endpoint in mail_endpoints():
        if re.search(r"/(inbox|letters|tasks|dead)", endpoint.path):
            status, body = await send_request(mail_fixture, endpoint, ids, agent)
            assert SECRET not in body, endpoint.path
            if "{" in endpoint.path:
                assert (status, body) == await send_request(mail_fixture, endpoint, _MISSING, agent), endpoint.path
                assert status == 404, endpoint.path


async def test_every_request_succeeds_for_its_owner(mail_fixture: MailFixture) -> None:
    """Otherwise the rejection of other callers would prove nothing."""
    ids = msgspec.structs.asdict(mail_fixture.data)
    for endpoint in sorted(mail_endpoints(), key=lambda endpoint: endpoint.name in FINAL_ENDPOINTS):
        if endpoint.name in ("send_letter", "evaluate", "evaluate_of_mail"):
            continue
        status, body = await send_request(mail_fixture, endpoint, ids, mail_fixture.ann)
        # The letter is leased once. The first request that ends the lease succeeds, the others fail.
        expected = (200, 201, 204, 409, 422) if endpoint.name in FINAL_ENDPOINTS else (200,)
        assert status in expected, f"{endpoint.method} {endpoint.path}: {status} {body[:300]}"
