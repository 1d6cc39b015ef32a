"""Requests are accepted with a valid API key and rejected without one."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from dragoman.server.auth.api_keys import KeyRing, NewKey, load_peppers, new_key
from dragoman.store import Store, open_store
from tests.server.conftest import ServerFixture

ASKED = "/api/v1/agent/me"


async def _get(
    server: ServerFixture, headers: dict[str, str] | list[tuple[str, str]], path: str = ASKED
) -> tuple[int, str]:
    async with server.client.get(path, headers=headers) as answer:
        text = re.sub(r"req_[0-9a-f]+", "", await answer.text())
        if answer.status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
        return answer.status, text


async def test_a_key_opens_and_everything_else_gets_the_same_answer(keyed_server: ServerFixture) -> None:
    good = await keyed_server.make_key("ada")
    assert (await _get(keyed_server, good))[0] == 200
    revoked, expired = (
        await keyed_server.make_key("ada"),
        await keyed_server.make_key("ada", expires_at=keyed_server.store.clock() - timedelta(seconds=1)),
    )
    (_, _, public_id, *_) = revoked["Authorization"].split("_")
    await keyed_server.store.keys.revoke(public_id)
    text = good["Authorization"]
    elsewhere = new_key(load_peppers("memory:")).text
    bad = [
        {},
        revoked,
        expired,
        {"Authorization": f"Bearer {elsewhere}"},
        {"Authorization": text[:-1] + ("a" if text[-1] != "a" else "b")},
        {"Authorization": text.replace("Bearer", "Basic")},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer ' OR 1=1--"},
        {"Authorization": "Bearer " + "x" * 8_000},
        {"Authorization": "Bearer ключ"},
        {"X-User-Id": "ada"},
    ]
    answers = {await _get(keyed_server, headers) for headers in bad}
    assert len(answers) == 1
    assert answers.pop()[0] == 401


async def test_two_keys_in_one_request_are_refused(keyed_server: ServerFixture) -> None:
    one, other = await keyed_server.make_key("ada"), await keyed_server.make_key("bob")
    assert (await _get(keyed_server, [*one.items(), *other.items()]))[0] == 400


async def test_a_secret_under_another_public_id_opens_nothing(keyed_server: ServerFixture) -> None:
    """Both halves are real, the checksum fits, and the pair was never issued."""
    from dragoman.server.auth.api_keys import _checksum

    one, other = (
        (await keyed_server.make_key("ada"))["Authorization"],
        (await keyed_server.make_key("bob"))["Authorization"],
    )
    mixed = one[: len("Bearer ak_live_12345678")] + other[len("Bearer ak_live_12345678") : -7]
    assert (await _get(keyed_server, {"Authorization": f"{mixed}_{_checksum(mixed.removeprefix('Bearer '))}"}))[
        0
    ] == 401


async def test_a_revoked_key_is_refused_within_a_second(tmp_path: Path) -> None:
    now = 100.0
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with open_store(url) as store, open_store(url) as elsewhere:
        ring = KeyRing(store, load_peppers(url), lambda: now)
        made = await _create_key(store, url)
        assert await ring.verify(made.text) is not None
        await elsewhere.keys.revoke(made.public_id)
        now += 1.0
        assert await ring.verify(made.text) is None


async def _create_key(store: Store, url: str) -> NewKey:
    made = new_key(load_peppers(url))
    await store.keys.create(made.public_id, made.secret_hash, user_id="ada", scopes=("chat",))
    return made


async def test_neither_the_key_nor_its_secret_is_in_the_database(keyed_server: ServerFixture, tmp_path: Path) -> None:
    key = (await keyed_server.make_key("ada"))["Authorization"].removeprefix("Bearer ")
    assert (await _get(keyed_server, {"Authorization": f"Bearer {key}"}))[0] == 200
    secret = key.split("_", 3)[3][:43].encode()
    for file in tmp_path.glob("chats.db*"):
        if file.is_file():
            assert secret not in file.read_bytes(), file


async def test_the_pepper_is_a_file_that_only_its_owner_can_read(keyed_server: ServerFixture, tmp_path: Path) -> None:
    await keyed_server.make_key("ada")
    assert (tmp_path / "chats.db-pepper.json").stat().st_mode & 0o077 == 0


async def test_a_key_is_marked_as_used_now_and_then(keyed_server: ServerFixture) -> None:
    headers = await keyed_server.make_key("ada")
    for _ in range(2):
        await _get(keyed_server, headers)
    (kept,) = await keyed_server.store.keys.list(user_id="ada")
    assert kept.last_used_at is not None


async def test_no_field_of_a_request_changes_who_asks(keyed_server: ServerFixture) -> None:
    headers = {**await keyed_server.make_key("ada"), "X-User-Id": "bob", "X-Team-Id": "team", "Cookie": "user_id=bob"}
    status, text = await _get(keyed_server, headers, f"{ASKED}?user_id=bob&scopes=admin&team_id=team")
    assert status == 200
    said = json.loads(text)
    assert (said["userId"], said["teamId"], said["scopes"]) == ("ada", None, ["chat"])


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1"])
async def test_without_a_key_the_host_has_to_be_this_machine(chat_server: ServerFixture, host: str) -> None:
    assert (await _get(chat_server, {"Host": host}))[0] == 403


async def test_without_a_key_a_page_of_somebody_else_may_not_ask(chat_server: ServerFixture) -> None:
    own = chat_server.base_url
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", own.replace("127.0.0.1", "localhost")):
        assert (await _get(chat_server, {"Origin": origin}))[0] == 403, origin
    assert (await _get(chat_server, {"Origin": own}))[0] == 200


async def test_without_a_key_a_page_of_somebody_else_may_not_even_fetch_in_silence(chat_server: ServerFixture) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert (await _get(chat_server, {"Sec-Fetch-Site": site}))[0] == status, site


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Host"])
async def test_what_a_proxy_passes_on_needs_a_key(chat_server: ServerFixture, header: str) -> None:
    assert (await _get(chat_server, {header: "127.0.0.1"}))[0] == 403
    assert (await _get(chat_server, {**await chat_server.make_key("ada"), header: "127.0.0.1"}))[0] == 200


async def test_a_key_counts_on_this_machine_as_well(chat_server: ServerFixture) -> None:
    assert (await _get(chat_server, await chat_server.make_key("ada")))[0] == 200
    assert (await _get(chat_server, {"Authorization": "Bearer nonsense"}))[0] == 401


@pytest.mark.parametrize("host", ["a/b?c#d", "x@y", "", "a b", "[::1", "host:port", "host:123456"])
async def test_a_malformed_host_is_refused_everywhere(chat_server: ServerFixture, host: str) -> None:
    for path in ("/healthz", ASKED, "/nothing"):
        assert (await _get(chat_server, {"Host": host}, path))[0] == 400
