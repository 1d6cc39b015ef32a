"""Nobody sees, changes or hears of what is somebody else's: every route, every kind of id, every kind of stranger.

The routes come from the server itself. One whose path has a kind of id, whose query has a name, or whose body has a
shape that is not known here fails these tests until it is. For each id of Ann's that a route takes: Ann is answered,
whoever is not Ann gets word for word what they get for an id that nobody has, and who has no good key gets the one 401.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from aiohttp import FormData

from dragoman.server.application import endpoints
from dragoman.server.copilotkit import AGENT
from dragoman.server.http.endpoint import Endpoint
from dragoman.store import Owners
from tests.attachments.samples import png
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import post_run, run_input, user
from tests.server.test_threads import API, read_json

SECRET: Final = "anns-secret"  # in everything that is Ann's
_NUMBERS = itertools.count(1)
STRANGERS: Final = ("other user", "same user in another team", "same user in no team")
KEYLESS: Final = ("no key", "revoked key", "expired key", "unknown key", "wrong checksum")

# What a query may name that is nobody's.
_NOT_IDS: Final = {
    *(
        "before",
        "limit",
        "beforeSeq",
        "afterSeq",
        "aroundSeq",
        "q",
        "role",
        "model",
        "from",
        "to",
        "offset",
        "policy",
        "format",
        "people",
        "pinned",
        "tag",
        "hasTool",
        "fromSeq",
        "toSeq",
    ),
    *("lastEventId", "last_event_id", "by", "newest", "bucket"),
}
_CONSTANTS: Final = {"dialect": "canonical", "agentId": AGENT}  # parts of a path that are nobody's
_MISSING: Final = "nobody-has-this"


class TenantData(msgspec.Struct, frozen=True):
    """The resources of one user: an id of each kind."""

    thread: str
    message: str
    answer: str
    run: str
    file: dict[str, str]
    cursor: str

    def ids(self) -> dict[str, str]:
        """Names of parameters, and what stands there."""
        return {
            "id": self.thread,
            "threadId": self.thread,
            "messageId": self.message,
            "answerId": self.answer,
            "runId": self.run,
            "path": self.file["path"],
            "cursor": self.cursor,
            "recipient": f"agent-of-{self.thread}",
            "letter_id": f"letter-of-{self.thread}",
            "task_id": f"task-of-{self.thread}",
            "dead_id": f"dead-of-{self.thread}",
            "provider": "anthropic",  # everybody's; only an administrator asks for one
        }


class Attempt(msgspec.Struct, frozen=True):
    """One request in which one id is to be tried."""

    endpoint: str
    method: str
    path: str  # with the ids in braces
    query: dict[str, str]
    body: Any  # texts in it that are {name} become ids
    tried: str  # the name of the id

    def asked(self, server: ServerFixture, ids: dict[str, str], headers: dict[str, str]) -> Any:
        place = re.sub(r"\{(\w+)(?::path)?\}", lambda found: ids[found[1]], self.path)
        query = {name: value.format(**ids) for name, value in self.query.items()}
        given: dict[str, Any] = {"params": query, "headers": headers}
        if self.body is not None:
            given["json"] = _fill_body(self.body, ids)
        return server.client.request(self.method, place, **given)


def _fill_body(body: Any, ids: dict[str, str]) -> Any:
    if isinstance(body, dict):
        return {name: _fill_body(value, ids) for name, value in body.items()}
    if isinstance(body, list):
        return [_fill_body(one, ids) for one in body]
    return ids.get(body[1:-1], body) if isinstance(body, str) and body.startswith("{") else body


_RUN: Final = {
    "threadId": "{fresh}",
    "runId": "{fresh}",
    "messages": [{"id": "m1", "role": "user", "content": [{"type": "text", "text": "hi"}]}],
}
_WITH_URL: Final = {
    **_RUN,
    "messages": [
        {
            "id": "m1",
            "role": "user",
            "content": [{"type": "text", "text": "hi"}, {"type": "binary", "mimeType": "image/png", "url": "{url}"}],
        }
    ],
}
_UI_MESSAGE: Final = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
# Bodies by the name of the route; with the ids that they name.
BODIES: Final[dict[str, list[tuple[Any, tuple[str, ...]]]]] = {
    "change_thread": [({"title": "mine now"}, ())],
    "replace_thread_settings": [({"settings": {"temperature": 1.0}}, ())],
    "replace_default_settings": [({"settings": {"temperature": 1.0}}, ())],
    "fork_thread": [({}, ()), ({"messageId": "{messageId}"}, ("messageId",))],
    "begin_run": [({**_RUN, "threadId": "{threadId}"}, ("threadId",)), (_WITH_URL, ("url",))],
    "upload_attachment": [],
    "connect": [({"threadId": "{threadId}", "runId": "{fresh}"}, ("threadId",))],
    "chat": [({"id": "{threadId}", "messages": [_UI_MESSAGE]}, ("threadId",))],
    "copilotkit_run": [({**_RUN, "threadId": "{threadId}"}, ("threadId",))],
    "copilotkit_connect": [({"threadId": "{threadId}", "runId": "{fresh}"}, ("threadId",))],
    "post_conversation": [
        ({"session_id": "{threadId}", "messages": [{"role": "user", "content": "hi"}]}, ("threadId",))
    ],
    "share_thread": [({}, ())],
    "export_threads": [({"ids": ["{id}"]}, ("id",))],
}
_QUERIES: Final[dict[str, dict[str, str]]] = {  # without which a route makes no sense
    "search": {"q": SECRET},
    "preflight": {"model": "anthropic"},
    "sign_attachment": {"bucket": "agent-files", "path": "{path}"},
}


def attempts() -> Iterator[Attempt]:
    """Every id of every route that needs to know who asks, each by itself."""
    for one in endpoints():
        if not one.public:
            yield from _attempts(one)


def _attempts(one: Endpoint) -> Iterator[Attempt]:
    in_path = re.findall(r"\{(\w+)", one.path)
    in_query = [query.name for query in one.query if query.name not in _NOT_IDS]
    query = _QUERIES.get(one.name, {})
    bodies = BODIES.get(one.name, [(None if one.request_body is None else {}, ())])
    for body, in_body in bodies:
        for tried in (*(name for name in in_path if name not in _CONSTANTS), *in_body):
            yield Attempt(one.name, one.method, one.path, query, body, tried)
        for tried in in_query:
            yield Attempt(one.name, one.method, one.path, {**query, tried: f"{{{tried}}}"}, body, tried)


def test_every_kind_of_id_that_a_route_takes_is_known_here() -> None:
    known = {*TenantData("", "", "", "", {"path": ""}, "").ids(), *_CONSTANTS}
    for one in endpoints():
        unknown = {*re.findall(r"\{(\w+)", one.path), *(query.name for query in one.query)} - _NOT_IDS - known
        assert one.public or not unknown, f"{one.method} {one.path}: whose is {unknown}?"
        has_row = one.request_body is None or one.name in BODIES or not one.path.startswith(API)
        assert has_row, f"{one.method} {one.path}: what is in its body?"
    tried = {(attempt.endpoint, attempt.tried) for attempt in attempts()}
    assert len(tried) >= 25


# --- the ground ------------------------------------------------------------------------------------------------------


class TenantFixture:
    """A server with Ann and Bob on it, and keys of every kind."""

    def __init__(
        self, server: ServerFixture, keys: dict[str, dict[str, str]], ann: TenantData, bob: TenantData
    ) -> None:
        self.server = server
        self.keys = keys
        self.ann = ann
        self.bob = bob

    async def answered(self, attempt: Attempt, who: str, ids: dict[str, str]) -> tuple[int, str]:
        """The status and the body of an answer; what differs from one request to the next is left out."""
        fresh = f"fresh-{next(_NUMBERS)}"
        async with attempt.asked(self.server, {**ids, "fresh": fresh}, self.keys[who]) as answer:
            is_endless = answer.content_type == "text/event-stream" and not attempt.path.startswith(API)
            text = (await answer.content.readany()).decode() if is_endless else await answer.text(errors="replace")
        text = re.sub(r"req_[0-9a-f]+", "REQUEST", text).replace(fresh, "FRESH")
        return answer.status, text.replace(ids[attempt.tried], "TRIED")


@pytest.fixture(params=["sqlite", "postgres"])
def ground(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path) -> Iterator[TenantFixture]:
    store = None
    if request.param == "postgres":
        store = request.getfixturevalue("postgres_store")
    opened = _open_tenants(tmp_path, store)
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


@asynccontextmanager
async def _open_tenants(folder: Path, store: str | None) -> AsyncIterator[TenantFixture]:
    async with run_test_server(folder, store=store, require_keys=True) as server:
        scopes = ("chat", "mail")
        keys = {
            "ann": await server.make_key("ann", scopes, team_id="red"),
            "other user": await server.make_key("bob", scopes, team_id="red"),
            "same user in another team": await server.make_key("ann", scopes, team_id="blue"),
            "same user in no team": await server.make_key("ann", scopes),
            "revoked key": await server.make_key("ann", scopes, team_id="red"),
            "expired key": await server.make_key(
                "ann", scopes, team_id="red", expires_at=server.store.clock() - timedelta(seconds=1)
            ),
            "no key": {},
            "unknown key": {},
            "wrong checksum": {},
        }
        good = keys["ann"]["Authorization"]
        keys["wrong checksum"] = {"Authorization": good[:-1] + ("A" if good[-1] != "A" else "B")}
        keys["unknown key"] = {"Authorization": (await server.make_key("gone"))["Authorization"]}
        for public_id in [one.public_id for one in await server.store.keys.list() if one.user_id == "gone"]:
            await server.store.keys.revoke(public_id)
        revoked = keys["revoked key"]["Authorization"].split("_")
        await server.store.keys.revoke(next(part for part in revoked if len(part) == 8 and part != "Bearer"))
        ann = await _create_data(server, keys["ann"], "ann", SECRET)
        bob = await _create_data(server, keys["other user"], "bob", "nothing")
        yield TenantFixture(server, keys, ann, bob)


async def _create_data(server: ServerFixture, headers: dict[str, str], name: str, words: str) -> TenantData:
    """A thread with a message, a run and a file, all made through the doors."""
    form = FormData()
    form.add_field("threadId", f"{name}-thread")
    form.add_field("file", io.BytesIO(png()), filename=f"{words}.png", content_type="image/png")
    file = await read_json(server.client.post(f"{API}/attachments", data=form, headers=headers))
    part = {"type": "binary", "mimeType": "image/png", "url": file["url"]}
    said = user([{"type": "text", "text": f"{words} is mine"}, part], f"{name}-message")
    server.fake.reply(f"{words}, indeed")
    given = run_input(said, threadId=f"{name}-thread", runId=f"{name}-run")
    await post_run(server, given, **headers)
    where = f"{API}/threads/{name}-thread"
    await read_json(server.client.patch(where, json={"title": f"{words} title"}, headers=headers))
    await read_json(server.client.post(f"{where}/fork", json={}, headers=headers), 201)
    cursor = (await read_json(server.client.get(f"{API}/threads?limit=1", headers=headers)))["cursor"]
    page = await read_json(server.client.get(f"{where}/messages", headers=headers))
    answer = page["messages"][-1]["message"]["id"]
    return TenantData(f"{name}-thread", f"{name}-message", answer, f"{name}-run", file, cursor)


def _make_ids(ground: TenantFixture, attempt: Attempt, value: str) -> dict[str, str]:
    """Bob's own ids, but for the one that is tried."""
    return {**ground.bob.ids(), **_CONSTANTS, "url": ground.bob.file["url"], attempt.tried: value}


def _foreign_ids(ground: TenantFixture, attempt: Attempt) -> dict[str, str]:
    theirs = {**ground.ann.ids(), "url": ground.ann.file["url"]}[attempt.tried]
    ids = _make_ids(ground, attempt, theirs)
    if attempt.tried in ("id", "threadId"):  # whose thread it is decides; the rest of it is Ann's as well
        ids |= {name: ground.ann.ids()[name] for name in ("messageId", "answerId", "runId")}
    return ids


def _missing_ids(ground: TenantFixture, attempt: Attempt) -> dict[str, str]:
    theirs = {**ground.ann.ids(), "url": ground.ann.file["url"]}[attempt.tried]
    named = {
        "path": ground.bob.file["path"].replace("bob-thread", "no-thread"),
        "cursor": "bm90aGluZw",
        "url": re.sub(r"[^/]+\.png", f"{'0' * 26}.png", theirs),
    }
    return _make_ids(ground, attempt, named.get(attempt.tried, _MISSING))


# --- what strangers get ----------------------------------------------------------------------------------------------

_CREATORS: Final = ("begin_run", "chat", "copilotkit_run", "post_conversation")  # a thread that is not there
_RESTORERS: Final = ("connect", "chat_stream", "chat_messages")  # an unknown thread is a new one, without messages
# What is not the caller's is not there; a place in another's list, and a URL that was signed for nobody, are told so.
_STATUSES: Final = {"cursor": 400, "url": 404}


async def test_no_route_shows_the_data_of_another_tenant(ground: TenantFixture) -> None:
    for attempt in attempts():
        if attempt.endpoint in _CREATORS and attempt.tried == "threadId":
            continue  # it makes a thread of the caller's own: see runs/test_foreign_ids.py
        is_chat = attempt.path.startswith(API) and attempt.endpoint not in _RESTORERS
        for who in STRANGERS if attempt.tried != "path" else STRANGERS[:1]:  # files are a user's, in whatever team
            status, body = await ground.answered(attempt, who, _foreign_ids(ground, attempt))
            where = f"{who}: {attempt.method} {attempt.path} by {attempt.tried}: {status} {body[:300]}"
            assert SECRET not in body, where
            assert status < 500, where
            if is_chat:
                assert status == _STATUSES.get(attempt.tried, 404), where
            if (attempt.endpoint, attempt.tried) == ("begin_run", "url"):
                assert '"not_found"' in body, where  # what is missing is a URL that nobody signed
                continue
            if who == "other user":
                missing = await ground.answered(attempt, who, _missing_ids(ground, attempt))
                assert (status, body) == missing, where
    await _check_unchanged(ground)


async def test_who_has_no_good_key_gets_the_one_answer(ground: TenantFixture) -> None:
    bodies: set[tuple[int, str]] = set()
    for attempt in attempts():
        for who in KEYLESS:
            for ids in (_foreign_ids(ground, attempt), _missing_ids(ground, attempt)):
                bodies.add(await ground.answered(attempt, who, ids))
    for one in endpoints():
        if not one.public and "{" not in one.path:
            for who in KEYLESS:
                async with ground.server.client.request(one.method, one.path, headers=ground.keys[who]) as answer:
                    assert answer.headers["WWW-Authenticate"] == "Bearer", one.path
                    bodies.add((answer.status, re.sub(r"req_[0-9a-f]+", "REQUEST", await answer.text())))
    ((status, body),) = bodies
    assert status == 401
    assert '"unauthorized"' in body
    await _check_unchanged(ground)


async def test_a_file_for_somebody_elses_thread_is_the_callers_own_and_says_nothing_of_it(
    ground: TenantFixture,
) -> None:
    for thread in (ground.ann.thread, _MISSING):
        form = FormData()
        form.add_field("threadId", thread)
        form.add_field("file", io.BytesIO(png()), filename="x.png", content_type="image/png")
        asked = ground.server.client.post(f"{API}/attachments", data=form, headers=ground.keys["other user"])
        assert (await read_json(asked))["path"].startswith(f"agent-inputs/bob/{thread}/")
    await read_json(ground.server.client.delete(f"{API}/threads/ann-thread", headers=ground.keys["other user"]), 404)
    await _check_unchanged(ground)


async def test_lists_searches_and_sums_hold_only_what_is_the_callers(ground: TenantFixture) -> None:
    for one in endpoints():
        if one.public or one.method != "GET" or "{" in one.path or not one.path.startswith(API):
            continue
        for who in STRANGERS:
            query = {name: value for name, value in _QUERIES.get(one.name, {}).items() if "{" not in value}
            async with ground.server.client.get(one.path, params=query, headers=ground.keys[who]) as answer:
                text = await answer.text()
            assert answer.status < 500
            assert SECRET not in text, f"{who}: {one.path}"
            assert "ann-thread" not in text, f"{who}: {one.path}"
    found = await read_json(ground.server.client.get(f"{API}/search?q={SECRET}", headers=ground.keys["ann"]))
    assert {hit["threadId"] for hit in found["hits"]} >= {"ann-thread"}


async def test_each_of_these_is_answered_to_ann(ground: TenantFixture) -> None:
    """Else a refusal of the others would say nothing."""
    url = {"url": ground.ann.file["url"], "dialect": "canonical"}
    last = [attempt for attempt in attempts() if attempt.endpoint == "delete_thread"]
    for attempt in (*(one for one in attempts() if one not in last), *last):
        if attempt.path.startswith(API):
            status, body = await ground.answered(attempt, "ann", {**ground.ann.ids(), **url})
            assert status in (200, 201, 202, 204), f"{attempt.method} {attempt.path} by {attempt.tried}: {body[:300]}"
            await _wait_until_idle(ground)


async def _wait_until_idle(ground: TenantFixture) -> None:
    """A run that was begun has ended, so that the next one may begin."""
    for session in await ground.server.store.list_sessions_of(Owners("ann", "red")):
        while (run := await ground.server.store.runs.latest(session.id)) is not None and run.is_running:
            await asyncio.sleep(0.01)


async def _check_unchanged(ground: TenantFixture) -> None:
    """Nothing of Ann's was changed or lost."""
    headers = ground.keys["ann"]
    found = await read_json(ground.server.client.get(f"{API}/history?threadId=ann-thread", headers=headers))
    assert [row["content"] for row in found["messages"]] == [f"{SECRET} is mine", f"{SECRET}, indeed"]
    thread = await read_json(ground.server.client.get(f"{API}/threads/ann-thread", headers=headers))
    assert thread["title"] == f"{SECRET} title"
    async with ground.server.client.get(ground.ann.file["url"]) as answer:
        assert await answer.read() == png()
