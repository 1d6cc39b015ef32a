"""Stored responses, conversations and sessions are visible only to the owner of the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.endpoints import ENDPOINTS, GatewayEndpoint
from tests.fake_providers import text_part
from tests.server.conftest import ServerFixture, run_test_server

OBJECTS = [endpoint for endpoint in ENDPOINTS if "{id}" in endpoint.path]  # includes new endpoints
ITEMS = [{"type": "message", "role": "user", "content": "Mine."}]


async def send(
    server: ServerFixture, headers: dict[str, str], method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    async with server.client.request(method, path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def make_callers(server: ServerFixture) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the owner and others: another user, the same user in a team, and a member of another team."""
    owner = await server.make_key("ann")
    others = [await server.make_key("bob"), await server.make_key("ann", team_id="red")]
    return owner, [*others, await server.make_key("eve", team_id="blue")]


async def create_objects(server: ServerFixture, owner: dict[str, str]) -> dict[str, str]:
    """Create a response and a conversation of the owner. Return their ids by the first part of their path."""
    server.fakes["anthropic"].answer_with(text_part("Yes."))
    _, response = await send(server, owner, "POST", "/v1/responses", {"model": "anthropic", "input": "Mine."})
    _, conversation = await send(server, owner, "POST", "/v1/conversations", {"items": ITEMS})
    return {"responses": response["id"], "conversations": conversation["id"]}


@pytest.mark.parametrize("endpoint", OBJECTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
async def test_object_of_another_owner_is_not_found(tmp_path: Path, endpoint: GatewayEndpoint) -> None:
    async with run_test_server(tmp_path, "anthropic", require_keys=True) as server:
        owner, others = await make_callers(server)
        ids = await create_objects(server, owner)
        kind = endpoint.path.split("/")[1]
        _, listed = await send(server, owner, "GET", f"/v1/conversations/{ids['conversations']}/items")
        with_item = endpoint.paths[0].replace("{item}", listed["data"][0]["id"])
        path = with_item.replace("{id}", ids[kind])
        missing = with_item.replace("{id}", ids[kind][:-3] + "XYZ")
        body = {"items": ITEMS, "metadata": {"by": "another"}} if endpoint.method == "POST" else None
        before = await send(server, owner, "GET", f"/v1/{kind}/{ids[kind]}")
        for other in others:
            status, answer = await send(server, other, endpoint.method, path, body)
            expected = await send(server, other, endpoint.method, missing, body)
            assert (status, expected[0]) == (404, 404)
            assert answer["error"]["code"] == expected[1]["error"]["code"]
        assert await send(server, owner, "GET", f"/v1/{kind}/{ids[kind]}") == before
        status, _ = await send(server, owner, endpoint.method, path, body)
        assert status == (400 if endpoint.path.endswith("/cancel") else 200)


async def test_state_of_another_owner_cannot_be_continued(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, "anthropic", require_keys=True) as server:
        owner, others = await make_callers(server)
        ids = await create_objects(server, owner)
        fake = server.fakes["anthropic"]
        count = len(fake.bodies)
        body = {"model": "anthropic", "input": "And?"}
        for other in others:
            for path in ("/v1/responses", "/v1/responses/compact"):
                fields = {**body, "previous_response_id": ids["responses"]}
                status, answer = await send(server, other, "POST", path, fields)
                assert (status, answer["error"]["code"]) == (400, "previous_response_not_found")
            fields = {**body, "conversation": ids["conversations"]}
            assert (await send(server, other, "POST", "/v1/responses", fields))[0] == 404
            async with server.client.ws_connect("/v1/responses", headers=other) as socket:
                request = {"type": "response.create", **body, "previous_response_id": ids["responses"]}
                await socket.send_json(request)
                event = await socket.receive_json(timeout=60)
                assert event["error"]["code"] == "previous_response_not_found"
        assert len(fake.bodies) == count, "a provider was called"


async def test_recorded_session_is_visible_only_to_owner(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, "anthropic", require_keys=True) as server:
        owner, others = await make_callers(server)
        await create_objects(server, owner)
        (session,) = [session for session in await server.store.list_sessions() if session.last_seq]
        path = f"/api/v1/agent/history?threadId={session.id}"
        assert (await send(server, owner, "GET", path))[0] == 200
        for other in others:
            assert (await send(server, other, "GET", path))[0] == 404
            _, threads = await send(server, other, "GET", "/api/v1/agent/threads")
            assert session.id not in str(threads)
