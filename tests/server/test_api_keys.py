"""Tests of API keys: a valid key is accepted, every other request is rejected."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from dragoman.server.auth.api_keys import KeyRing, NewKey, load_peppers, new_key
from dragoman.store import Store, open_store
from tests.server.conftest import ServerFixture

PATH = "/api/v1/agent/me"


async def _get(
    server: ServerFixture, headers: dict[str, str] | list[tuple[str, str]], path: str = PATH
) -> tuple[int, str]:
    async with server.client.get(path, headers=headers) as response:
        text = re.sub(r"req_[0-9a-f]+", "", await response.text())
        if response.status == 401:
            assert response.headers["www-authenticate"] == "Bearer"
        return response.status, text


async def test_valid_key_is_accepted_and_all_others_get_same_response(keyed_server: ServerFixture) -> None:
    headers = await keyed_server.make_key("ada")
    assert (await _get(keyed_server, headers))[0] == 200
    revoked, expired = (
        await keyed_server.make_key("ada"),
        await keyed_server.make_key("ada", expires_at=keyed_server.store.clock() - timedelta(seconds=1)),
    )
    (_, _, public_id, *_) = revoked["Authorization"].split("_")
    await keyed_server.store.keys.revoke(public_id)
    text = headers["Authorization"]
    foreign_key = new_key(load_peppers("memory:")).text
    invalid_headers = [
        {},
        revoked,
        expired,
        {"Authorization": f"Bearer {foreign_key}"},
        {"Authorization": text[:-1] + ("a" if text[-1] != "a" else "b")},
        {"Authorization": text.replace("Bearer", "Basic")},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer ' OR 1=1--"},
        {"Authorization": "Bearer " + "x" * 8_000},
        {"Authorization": "Bearer ключ"},
        {"X-User-Id": "ada"},
    ]
    responses = {await _get(keyed_server, candidate) for candidate in invalid_headers}
    assert len(responses) == 1
    assert responses.pop()[0] == 401


async def test_two_keys_in_one_request_are_rejected(keyed_server: ServerFixture) -> None:
    first, second = await keyed_server.make_key("ada"), await keyed_server.make_key("bob")
    assert (await _get(keyed_server, [*first.items(), *second.items()]))[0] == 400


async def test_secret_under_another_public_id_is_rejected(keyed_server: ServerFixture) -> None:
    """Both halves and the checksum are valid, but the pair was never issued."""
    from dragoman.server.auth.api_keys import _checksum

    first, second = (
        (await keyed_server.make_key("ada"))["Authorization"],
        (await keyed_server.make_key("bob"))["Authorization"],
    )
    mixed = first[: len("Bearer ak_live_12345678")] + second[len("Bearer ak_live_12345678") : -7]
    assert (await _get(keyed_server, {"Authorization": f"{mixed}_{_checksum(mixed.removeprefix('Bearer '))}"}))[
        0
    ] == 401


async def test_revoked_key_is_rejected_within_one_second(tmp_path: Path) -> None:
    now = 100.0
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with open_store(url) as store, open_store(url) as other_store:
        ring = KeyRing(store, load_peppers(url), lambda: now)
        key = await _create_key(store, url)
        assert await ring.verify(key.text) is not None
        await other_store.keys.revoke(key.public_id)
        now += 1.0
        assert await ring.verify(key.text) is None


async def _create_key(store: Store, url: str) -> NewKey:
    key = new_key(load_peppers(url))
    await store.keys.create(key.public_id, key.secret_hash, user_id="ada", scopes=("chat",))
    return key


async def test_key_and_secret_are_not_in_database(keyed_server: ServerFixture, tmp_path: Path) -> None:
    key = (await keyed_server.make_key("ada"))["Authorization"].removeprefix("Bearer ")
    assert (await _get(keyed_server, {"Authorization": f"Bearer {key}"}))[0] == 200
    secret = key.split("_", 3)[3][:43].encode()
    for file in tmp_path.glob("chats.db*"):
        if file.is_file():
            assert secret not in file.read_bytes(), file


async def test_pepper_file_is_readable_by_owner_only(keyed_server: ServerFixture, tmp_path: Path) -> None:
    await keyed_server.make_key("ada")
    assert (tmp_path / "chats.db-pepper.json").stat().st_mode & 0o077 == 0


async def test_use_of_key_is_recorded(keyed_server: ServerFixture) -> None:
    headers = await keyed_server.make_key("ada")
    for _ in range(2):
        await _get(keyed_server, headers)
    (stored,) = await keyed_server.store.keys.list(user_id="ada")
    assert stored.last_used_at is not None


async def test_request_fields_do_not_change_the_caller(keyed_server: ServerFixture) -> None:
    headers = {**await keyed_server.make_key("ada"), "X-User-Id": "bob", "X-Team-Id": "team", "Cookie": "user_id=bob"}
    status, text = await _get(keyed_server, headers, f"{PATH}?user_id=bob&scopes=admin&team_id=team")
    assert status == 200
    caller = json.loads(text)
    assert (caller["userId"], caller["teamId"], caller["scopes"]) == ("ada", None, ["chat"])


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1"])
async def test_host_must_be_local_without_key(chat_server: ServerFixture, host: str) -> None:
    assert (await _get(chat_server, {"Host": host}))[0] == 403


async def test_foreign_origin_is_rejected_without_key(chat_server: ServerFixture) -> None:
    own = chat_server.base_url
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", own.replace("127.0.0.1", "localhost")):
        assert (await _get(chat_server, {"Origin": origin}))[0] == 403, origin
    assert (await _get(chat_server, {"Origin": own}))[0] == 200


async def test_cross_site_fetch_is_rejected_without_key(chat_server: ServerFixture) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert (await _get(chat_server, {"Sec-Fetch-Site": site}))[0] == status, site


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Host"])
async def test_proxied_request_requires_key(chat_server: ServerFixture, header: str) -> None:
    assert (await _get(chat_server, {header: "127.0.0.1"}))[0] == 403
    assert (await _get(chat_server, {**await chat_server.make_key("ada"), header: "127.0.0.1"}))[0] == 200


async def test_key_is_checked_on_local_connection(chat_server: ServerFixture) -> None:
    assert (await _get(chat_server, await chat_server.make_key("ada")))[0] == 200
    assert (await _get(chat_server, {"Authorization": "Bearer nonsense"}))[0] == 401


@pytest.mark.parametrize("host", ["a/b?c#d", "x@y", "", "a b", "[::1", "host:port", "host:123456"])
async def test_malformed_host_is_rejected_on_every_path(chat_server: ServerFixture, host: str) -> None:
    for path in ("/healthz", PATH, "/nothing"):
        assert (await _get(chat_server, {"Host": host}, path))[0] == 400
