"""A team cannot access another team's mail and evaluations: every route, every kind of id.

The routes come from the server itself; one whose path or body is not known here fails until it is. For each: Ann's team
is answered, and whoever is not of it gets word for word what they get for an id that nobody has.
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
# What a route is asked with; texts in braces become ids.
BODIES: Final[dict[str, Any]] = {
    "receive_letters": {},
    "ack_letter": {"lease": "{lease}"},
    "nack_letter": {"lease": "{lease}", "retry_after_s": 0},
    "extend_letter": {"lease": "{lease}"},
    "give_back_letter": {"lease": "{lease}"},
    "open_letter": {"lease": "{lease}"},
    "answer_letter": {"lease": "{lease}", "inputs": {"colour": "red"}},
    "resend_letter": None,
    "send_letter": None,  # which takes nothing of anybody's
    "evaluate": None,
    "evaluate_of_mail": None,
}
ENDS: Final = ("ack_letter", "nack_letter", "give_back_letter", "answer_letter", "resend_letter", "receive_letters")


class Theirs(msgspec.Struct, frozen=True):
    """The resources of a team: an id of each kind."""

    recipient: str
    letter_id: str
    task_id: str
    dead_id: str
    lease: str


class Ground(msgspec.Struct, frozen=True):
    """A server with Ann's team on it, and others."""

    server: ServerFixture
    ann: dict[str, str]
    strangers: dict[str, dict[str, str]]
    theirs: Theirs


def routes() -> Iterator[Endpoint]:
    """Every route of mail that needs to know who asks."""
    for one in endpoints():
        if one.path.startswith((MAIL, "/evaluat", "/metrics")) and not one.public:
            yield one


def filled(body: Any, ids: dict[str, str]) -> Any:
    if isinstance(body, dict):
        return {name: filled(value, ids) for name, value in body.items()}
    return ids.get(body[1:-1], body) if isinstance(body, str) and body.startswith("{") else body


async def answered(ground: Ground, one: Endpoint, ids: dict[str, str], headers: dict[str, str]) -> tuple[int, str]:
    place = re.sub(r"\{(\w+)\}", lambda found: ids[found[1]], one.path)
    given = {"json": filled(BODIES.get(one.name), ids)} if BODIES.get(one.name) is not None else {}
    async with ground.server.client.request(one.method, place, headers=headers, **given) as answer:
        if answer.content_type == "text/event-stream":
            text = (await answer.content.readuntil(b"\n\n")).decode()
        else:
            text = await answer.text()
    text = re.sub(r"req_[0-9a-f]+", "REQUEST", text)
    for value in ids.values():
        text = text.replace(value, "ID")
    return answer.status, text


@pytest.fixture(params=["sqlite", "postgres"])
def ground(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path) -> Iterator[Ground]:
    store = None
    if request.param == "postgres":
        store = request.getfixturevalue("postgres_store")
    opened = _ground(tmp_path, store)
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


@asynccontextmanager
async def _ground(folder: Path, store: str | None) -> AsyncIterator[Ground]:
    async with run_test_server(folder, store=store, require_keys=True) as server:
        ann = await server.make_key("ann", ("mail",), team_id="red")
        strangers = {
            "same user in another team": await server.make_key("ann", ("mail",), team_id="blue"),
            "same user in no team": await server.make_key("ann", ("mail",)),
            "other user in no team": await server.make_key("bob", ("mail",)),
        }
        yield Ground(server, ann, strangers, await _things(server, ann))


async def _things(server: ServerFixture, ann: dict[str, str]) -> Theirs:
    headers = {**ann, "content-type": "application/json"}
    asking = needs_input_letter(
        sender_id="CA",
        recipient_id="ARCH",
        task_id="T-1",
        timestamp=WHEN,
        requested_inputs=[{"id": "colour", "type": "string", "description": SECRET}],
        message_id="anns-letter",
    )
    await read_json(server.client.post(MAIL, data=write_letter(asking), headers=headers), 201)
    judged = task_result_letter(
        sender_id="CA", recipient_id="ARCH", task_id="T-1", timestamp=WHEN, output=SECRET, score=0.7, notes=SECRET
    )
    await read_json(server.client.post("/evaluate", data=write_letter(judged), headers=headers), 201)
    wrong = {**EXAMPLES["complete"], "type": "done", "context": {SECRET: SECRET}}
    await read_json(server.client.post(MAIL, json=wrong, headers=ann), 422)
    (dead,) = (await read_json(server.client.get(f"{MAIL}/dead", headers=ann)))["dead_letters"]
    received = await read_json(server.client.post(f"{MAIL}/inbox/ARCH/receive", json={}, headers=ann))
    (held,) = received["deliveries"]
    return Theirs("ARCH", "anns-letter", "T-1", dead["id"], held["lease"])


def test_every_id_and_body_is_covered() -> None:
    known = set(Theirs.__struct_fields__)
    for one in routes():
        assert set(re.findall(r"\{(\w+)", one.path)) <= known, one.path
        assert one.request_body is None or one.name in BODIES, f"{one.method} {one.path}: what is in its body?"
    assert len(list(routes())) >= 18


async def test_mail_of_a_team_is_not_found_by_another(ground: Ground) -> None:
    theirs = msgspec.structs.asdict(ground.theirs)
    for one in routes():
        for who, headers in ground.strangers.items():
            status, body = await answered(ground, one, theirs, headers)
            where = f"{who}: {one.method} {one.path}: {status} {body[:300]}"
            assert status < 500, where
            assert SECRET not in body, where
            assert "T-1" not in body, where
            if "{" in one.path:
                assert (status, body) == await answered(ground, one, _MISSING, headers), where
    standing = await ground.server.state.mail.for_team(team_id="red").letters(letter_id="anns-letter")
    assert [(one.state, one.attempts) for one in standing] == [("ready", 1)]
    assert len(await ground.server.state.mail.for_team(team_id="red").dead_letters()) == 1


async def test_letters_of_other_agents_are_not_found_by_an_agent_key(ground: Ground) -> None:
    """Evaluations and queue lengths belong to the whole team."""
    theirs = msgspec.structs.asdict(ground.theirs)
    agent = await ground.server.make_key("bot", ("mail", "agent:WA"), team_id="red")
    for one in routes():
        if re.search(r"/(inbox|letters|tasks|dead)", one.path):
            status, body = await answered(ground, one, theirs, agent)
            assert SECRET not in body, one.path
            if "{" in one.path:
                assert (status, body) == await answered(ground, one, _MISSING, agent), one.path
                assert status == 404, one.path


async def test_every_request_succeeds_for_its_owner(ground: Ground) -> None:
    """Else a refusal of the others would say nothing."""
    theirs = msgspec.structs.asdict(ground.theirs)
    for one in sorted(routes(), key=lambda one: one.name in ENDS):
        if one.name in ("send_letter", "evaluate", "evaluate_of_mail"):
            continue
        status, body = await answered(ground, one, theirs, ground.ann)
        # The letter is held once: of what ends that, the first is answered and the others are told so.
        expected = (200, 201, 204, 409, 422) if one.name in ENDS else (200,)
        assert status in expected, f"{one.method} {one.path}: {status} {body[:300]}"
