"""Tests of tenant isolation: every route, every kind of id, every kind of unauthorized caller.

The routes come from the server itself. A route with an unknown kind of id, query parameter or body fails these tests. For
each id of Ann that a route accepts: Ann gets a response, other users get exactly the response of an unknown id, and
callers without a valid key get the same 401.
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

SECRET: Final = "anns-secret"  # in all data of Ann
_NUMBERS = itertools.count(1)
OTHER_CALLERS: Final = ("other user", "same user in another team", "same user in no team")
KEYLESS: Final = ("no key", "revoked key", "expired key", "unknown key", "wrong checksum")

# Query parameters that are not ids.
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
_CONSTANTS: Final = {"dialect": "canonical", "agentId": AGENT}  # path parameters that are not ids
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
        """Return the ids by parameter name."""
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
            "provider": "anthropic",  # shared; only an administrator may request it
        }


class Attempt(msgspec.Struct, frozen=True):
    """One request that tests one id."""

    endpoint: str
    method: str
    path: str  # with the ids in braces
    query: dict[str, str]
    body: Any  # texts of the form {name} become ids
    tested: str  # the name of the id

    def request(self, server: ServerFixture, ids: dict[str, str], headers: dict[str, str]) -> Any:
        path = re.sub(r"\{(\w+)(?::path)?\}", lambda match: ids[match[1]], self.path)
        query = {name: value.format(**ids) for name, value in self.query.items()}
        options: dict[str, Any] = {"params": query, "headers": headers}
        if self.body is not None:
            options["json"] = _fill_body(self.body, ids)
        return server.client.request(self.method, path, **options)


def _fill_body(body: Any, ids: dict[str, str]) -> Any:
    if isinstance(body, dict):
        return {name: _fill_body(value, ids) for name, value in body.items()}
    if isinstance(body, list):
        return [_fill_body(part, ids) for part in body]
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
# Bodies by route, with the ids that they contain.
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
_QUERIES: Final[dict[str, dict[str, str]]] = {  # required parameters of routes
    "search": {"q": SECRET},
    "preflight": {"model": "anthropic"},
    "sign_attachment": {"bucket": "agent-files", "path": "{path}"},
}


def attempts() -> Iterator[Attempt]:
    """Yield an attempt for every id of every route that requires a key."""
    for endpoint in endpoints():
        if not endpoint.public:
            yield from _attempts(endpoint)


def _attempts(endpoint: Endpoint) -> Iterator[Attempt]:
    in_path = re.findall(r"\{(\w+)", endpoint.path)
    in_query = [query.name for query in endpoint.query if query.name not in _NOT_IDS]
    query = _QUERIES.get(endpoint.name, {})
    bodies = BODIES.get(endpoint.name, [(None if endpoint.request_body is None else {}, ())])
    for body, in_body in bodies:
        for tested in (*(name for name in in_path if name not in _CONSTANTS), *in_body):
            yield Attempt(endpoint.name, endpoint.method, endpoint.path, query, body, tested)
        for tested in in_query:
            yield Attempt(
                endpoint.name, endpoint.method, endpoint.path, {**query, tested: f"{{{tested}}}"}, body, tested
            )


def test_every_id_and_body_of_routes_is_covered() -> None:
    known = {*TenantData("", "", "", "", {"path": ""}, "").ids(), *_CONSTANTS}
    for endpoint in endpoints():
        unknown = {*re.findall(r"\{(\w+)", endpoint.path), *(query.name for query in endpoint.query)} - _NOT_IDS - known
        assert endpoint.public or not unknown, f"{endpoint.method} {endpoint.path}: unknown parameters {unknown}"
        has_row = endpoint.request_body is None or endpoint.name in BODIES or not endpoint.path.startswith(API)
        assert has_row, f"{endpoint.method} {endpoint.path}: its body is not listed in BODIES"
    tested = {(attempt.endpoint, attempt.tested) for attempt in attempts()}
    assert len(tested) >= 25


# --- fixture ---------------------------------------------------------------------------------------------------------


class TenantFixture:
    """A server with the users Ann and Bob, and keys of every kind."""

    def __init__(
        self, server: ServerFixture, keys: dict[str, dict[str, str]], ann: TenantData, bob: TenantData
    ) -> None:
        self.server = server
        self.keys = keys
        self.ann = ann
        self.bob = bob

    async def send(self, attempt: Attempt, caller: str, ids: dict[str, str]) -> tuple[int, str]:
        """Return the status and the body of a response, without the parts that differ between requests."""
        fresh = f"fresh-{next(_NUMBERS)}"
        async with attempt.request(self.server, {**ids, "fresh": fresh}, self.keys[caller]) as response:
            is_endless = response.content_type == "text/event-stream" and not attempt.path.startswith(API)
            text = (await response.content.readany()).decode() if is_endless else await response.text(errors="replace")
        text = re.sub(r"req_[0-9a-f]+", "REQUEST", text).replace(fresh, "FRESH")
        return response.status, text.replace(ids[attempt.tested], "TRIED")


@pytest.fixture(params=["sqlite", "postgres"])
def tenants(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path) -> Iterator[TenantFixture]:
    store = None
    if request.param == "postgres":
        store = request.getfixturevalue("postgres_store")
    context = _open_tenants(tmp_path, store)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


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
        valid = keys["ann"]["Authorization"]
        keys["wrong checksum"] = {"Authorization": valid[:-1] + ("A" if valid[-1] != "A" else "B")}
        keys["unknown key"] = {"Authorization": (await server.make_key("gone"))["Authorization"]}
        for public_id in [row.public_id for row in await server.store.keys.list() if row.user_id == "gone"]:
            await server.store.keys.revoke(public_id)
        revoked = keys["revoked key"]["Authorization"].split("_")
        await server.store.keys.revoke(next(part for part in revoked if len(part) == 8 and part != "Bearer"))
        ann = await _create_data(server, keys["ann"], "ann", SECRET)
        bob = await _create_data(server, keys["other user"], "bob", "nothing")
        yield TenantFixture(server, keys, ann, bob)


async def _create_data(server: ServerFixture, headers: dict[str, str], name: str, text: str) -> TenantData:
    """Create a thread with a message, a run and a file through the API."""
    form = FormData()
    form.add_field("threadId", f"{name}-thread")
    form.add_field("file", io.BytesIO(png()), filename=f"{text}.png", content_type="image/png")
    file = await read_json(server.client.post(f"{API}/attachments", data=form, headers=headers))
    part = {"type": "binary", "mimeType": "image/png", "url": file["url"]}
    message = user([{"type": "text", "text": f"{text} is mine"}, part], f"{name}-message")
    server.fake.reply(f"{text}, indeed")
    body = run_input(message, threadId=f"{name}-thread", runId=f"{name}-run")
    await post_run(server, body, **headers)
    path = f"{API}/threads/{name}-thread"
    await read_json(server.client.patch(path, json={"title": f"{text} title"}, headers=headers))
    await read_json(server.client.post(f"{path}/fork", json={}, headers=headers), 201)
    cursor = (await read_json(server.client.get(f"{API}/threads?limit=1", headers=headers)))["cursor"]
    page = await read_json(server.client.get(f"{path}/messages", headers=headers))
    answer = page["messages"][-1]["message"]["id"]
    return TenantData(f"{name}-thread", f"{name}-message", answer, f"{name}-run", file, cursor)


def _make_ids(tenants: TenantFixture, attempt: Attempt, value: str) -> dict[str, str]:
    """Return Bob's ids, except for the tested id."""
    return {**tenants.bob.ids(), **_CONSTANTS, "url": tenants.bob.file["url"], attempt.tested: value}


def _foreign_ids(tenants: TenantFixture, attempt: Attempt) -> dict[str, str]:
    value = {**tenants.ann.ids(), "url": tenants.ann.file["url"]}[attempt.tested]
    ids = _make_ids(tenants, attempt, value)
    if attempt.tested in ("id", "threadId"):  # access depends on the thread; its other ids are Ann's as well
        ids |= {name: tenants.ann.ids()[name] for name in ("messageId", "answerId", "runId")}
    return ids


def _missing_ids(tenants: TenantFixture, attempt: Attempt) -> dict[str, str]:
    value = {**tenants.ann.ids(), "url": tenants.ann.file["url"]}[attempt.tested]
    missing_values = {
        "path": tenants.bob.file["path"].replace("bob-thread", "no-thread"),
        "cursor": "bm90aGluZw",
        "url": re.sub(r"[^/]+\.png", f"{'0' * 26}.png", value),
    }
    return _make_ids(tenants, attempt, missing_values.get(attempt.tested, _MISSING))


# --- isolation -------------------------------------------------------------------------------------------------------

_CREATORS: Final = ("begin_run", "chat", "copilotkit_run", "post_conversation")  # they create a missing thread
_RESTORERS: Final = ("connect", "chat_stream", "chat_messages")  # an unknown thread is a new thread without messages
# Statuses for ids of other users, if they differ from 404.
_STATUSES: Final = {"cursor": 400, "url": 404}


async def test_no_route_shows_data_of_another_tenant(tenants: TenantFixture) -> None:
    for attempt in attempts():
        if attempt.endpoint in _CREATORS and attempt.tested == "threadId":
            continue  # it creates a thread of the caller: see runs/test_foreign_ids.py
        is_chat = attempt.path.startswith(API) and attempt.endpoint not in _RESTORERS
        for caller in (
            OTHER_CALLERS if attempt.tested != "path" else OTHER_CALLERS[:1]
        ):  # files belong to a user in every team
            status, body = await tenants.send(attempt, caller, _foreign_ids(tenants, attempt))
            context = f"{caller}: {attempt.method} {attempt.path} by {attempt.tested}: {status} {body[:300]}"
            assert SECRET not in body, context
            assert status < 500, context
            if is_chat:
                assert status == _STATUSES.get(attempt.tested, 404), context
            if (attempt.endpoint, attempt.tested) == ("begin_run", "url"):
                assert '"not_found"' in body, context  # the missing URL is unsigned, so the responses differ
                continue
            if caller == "other user":
                missing = await tenants.send(attempt, caller, _missing_ids(tenants, attempt))
                assert (status, body) == missing, context
    await _check_unchanged(tenants)


async def test_callers_without_valid_key_get_same_401(tenants: TenantFixture) -> None:
    responses: set[tuple[int, str]] = set()
    for attempt in attempts():
        for caller in KEYLESS:
            for ids in (_foreign_ids(tenants, attempt), _missing_ids(tenants, attempt)):
                responses.add(await tenants.send(attempt, caller, ids))
    for endpoint in endpoints():
        if not endpoint.public and "{" not in endpoint.path:
            for caller in KEYLESS:
                async with tenants.server.client.request(
                    endpoint.method, endpoint.path, headers=tenants.keys[caller]
                ) as response:
                    assert response.headers["WWW-Authenticate"] == "Bearer", endpoint.path
                    responses.add((response.status, re.sub(r"req_[0-9a-f]+", "REQUEST", await response.text())))
    ((status, body),) = responses
    assert status == 401
    assert '"unauthorized"' in body
    await _check_unchanged(tenants)


async def test_file_for_foreign_thread_belongs_to_caller(
    tenants: TenantFixture,
) -> None:
    for thread in (tenants.ann.thread, _MISSING):
        form = FormData()
        form.add_field("threadId", thread)
        form.add_field("file", io.BytesIO(png()), filename="x.png", content_type="image/png")
        request = tenants.server.client.post(f"{API}/attachments", data=form, headers=tenants.keys["other user"])
        assert (await read_json(request))["path"].startswith(f"agent-inputs/bob/{thread}/")
    await read_json(tenants.server.client.delete(f"{API}/threads/ann-thread", headers=tenants.keys["other user"]), 404)
    await _check_unchanged(tenants)


async def test_lists_searches_and_sums_contain_only_data_of_caller(tenants: TenantFixture) -> None:
    for endpoint in endpoints():
        if endpoint.public or endpoint.method != "GET" or "{" in endpoint.path or not endpoint.path.startswith(API):
            continue
        for caller in OTHER_CALLERS:
            query = {name: value for name, value in _QUERIES.get(endpoint.name, {}).items() if "{" not in value}
            async with tenants.server.client.get(endpoint.path, params=query, headers=tenants.keys[caller]) as response:
                text = await response.text()
            assert response.status < 500
            assert SECRET not in text, f"{caller}: {endpoint.path}"
            assert "ann-thread" not in text, f"{caller}: {endpoint.path}"
    found = await read_json(tenants.server.client.get(f"{API}/search?q={SECRET}", headers=tenants.keys["ann"]))
    assert {hit["threadId"] for hit in found["hits"]} >= {"ann-thread"}


async def test_every_attempt_succeeds_for_ann(tenants: TenantFixture) -> None:
    """Otherwise the rejection of other callers would prove nothing."""
    extra_ids = {"url": tenants.ann.file["url"], "dialect": "canonical"}
    last = [attempt for attempt in attempts() if attempt.endpoint == "delete_thread"]
    for attempt in (*(attempt for attempt in attempts() if attempt not in last), *last):
        if attempt.path.startswith(API):
            status, body = await tenants.send(attempt, "ann", {**tenants.ann.ids(), **extra_ids})
            assert status in (200, 201, 202, 204), f"{attempt.method} {attempt.path} by {attempt.tested}: {body[:300]}"
            await _wait_until_idle(tenants)


async def _wait_until_idle(tenants: TenantFixture) -> None:
    """Wait until all runs of Ann have ended."""
    for session in await tenants.server.store.list_sessions_of(Owners("ann", "red")):
        while (run := await tenants.server.store.runs.latest(session.id)) is not None and run.is_running:
            await asyncio.sleep(0.01)


async def _check_unchanged(tenants: TenantFixture) -> None:
    """Check that Ann's data is unchanged."""
    headers = tenants.keys["ann"]
    found = await read_json(tenants.server.client.get(f"{API}/history?threadId=ann-thread", headers=headers))
    assert [row["content"] for row in found["messages"]] == [f"{SECRET} is mine", f"{SECRET}, indeed"]
    thread = await read_json(tenants.server.client.get(f"{API}/threads/ann-thread", headers=headers))
    assert thread["title"] == f"{SECRET} title"
    async with tenants.server.client.get(tenants.ann.file["url"]) as response:
        assert await response.read() == png()
