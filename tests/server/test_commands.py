"""``dragoman keys``, as a user calls it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from dragoman.cli.keys import create, list_keys, revoke
from dragoman.errors import InputError, UnknownNameError
from dragoman.server.auth.api_keys import KeyRing, load_peppers
from dragoman.store import open_store


async def test_a_key_is_printed_alone_and_opens_what_it_was_made_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "chats.db")
    await create(user="ada", team="blue", scope=("mail", "chat", "chat"), expires=timedelta(days=1), store_url=file)
    printed = capsys.readouterr()
    text = printed.out.strip()
    assert printed.out == f"{text}\n"
    assert "ada" in printed.err
    url = f"sqlite:///{file}"
    async with open_store(url) as store:
        found = await KeyRing(store, load_peppers(url)).verify(text)
        assert found is not None
        assert (found.user_id, found.team_id, found.scopes) == ("ada", "blue", ("chat", "mail"))
        (event,) = await store.trace.events("system", types=["gateway.key_issued"])
        assert event.payload["gateway_key_id"] == found.public_id


async def test_who_is_not_named_is_a_new_pseudonym(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = []
    for _ in range(2):
        await create(store_url=str(tmp_path / "chats.db"), json=True)
        made.append(json.loads(capsys.readouterr().out))
    assert made[0]["user_id"] != made[1]["user_id"]
    assert len(made[0]["user_id"]) == 26
    assert "secret_hash" not in made[0]


async def test_a_list_shows_no_key_and_no_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "chats.db")
    await create(user="ada", name="laptop\x1b[31m", store_url=file, json=True)
    made = json.loads(capsys.readouterr().out)
    for is_json in (False, True):
        await list_keys(store_url=file, json=is_json)
        shown = capsys.readouterr().out
        assert made["public_id"] in shown
        assert made["key"].split("_", 3)[3][:43] not in shown
        assert "secret_hash" not in shown
        assert "\x1b[31m" not in shown


async def test_a_key_is_taken_back_by_its_id_or_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "chats.db")
    for as_a_whole in (False, True):
        await create(user="ada", store_url=file, json=True)
        made = json.loads(capsys.readouterr().out)
        await revoke(made["key"] if as_a_whole else made["public_id"], store_url=file, json=True)
        assert json.loads(capsys.readouterr().out)["revoked_at"] is not None
    with pytest.raises(UnknownNameError):
        await revoke("00000000", store_url=file)


@pytest.mark.parametrize(
    "given",
    [
        {"scope": ("everything",)},
        {"scope": ("agent:",)},
        {"user": "ada@example.org"},
        {"team": "the blue team"},
        {"expires": timedelta(days=-1)},
    ],
)
async def test_what_cannot_be_a_key_is_not_made(tmp_path: Path, given: dict[str, object]) -> None:
    with pytest.raises(InputError):
        await create(store_url=str(tmp_path / "chats.db"), **given)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
