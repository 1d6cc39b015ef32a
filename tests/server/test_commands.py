"""Tests of the command ``dragoman keys``."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from dragoman.cli.keys import create, list_keys, revoke
from dragoman.errors import InputError, UnknownNameError
from dragoman.server.auth.api_keys import KeyRing, load_peppers
from dragoman.store import open_store


async def test_created_key_is_printed_alone_and_has_its_scopes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "chats.db")
    await create(user="ada", team="blue", scope=("mail", "chat", "chat"), expires=timedelta(days=1), store_url=file)
    output = capsys.readouterr()
    text = output.out.strip()
    assert output.out == f"{text}\n"
    assert "ada" in output.err
    url = f"sqlite:///{file}"
    async with open_store(url) as store:
        key = await KeyRing(store, load_peppers(url)).verify(text)
        assert key is not None
        assert (key.user_id, key.team_id, key.scopes) == ("ada", "blue", ("chat", "mail"))
        (event,) = await store.trace.events("system", types=["gateway.key_issued"])
        assert event.payload["gateway_key_id"] == key.public_id


async def test_key_without_user_gets_new_pseudonym(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = []
    for _ in range(2):
        await create(store_url=str(tmp_path / "chats.db"), json=True)
        keys.append(json.loads(capsys.readouterr().out))
    assert keys[0]["user_id"] != keys[1]["user_id"]
    assert len(keys[0]["user_id"]) == 26
    assert "secret_hash" not in keys[0]


async def test_list_shows_no_key_and_no_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "chats.db")
    await create(user="ada", name="laptop\x1b[31m", store_url=file, json=True)
    key = json.loads(capsys.readouterr().out)
    for is_json in (False, True):
        await list_keys(store_url=file, json=is_json)
        output = capsys.readouterr().out
        assert key["public_id"] in output
        assert key["key"].split("_", 3)[3][:43] not in output
        assert "secret_hash" not in output
        assert "\x1b[31m" not in output


async def test_key_is_revoked_by_id_or_by_full_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "chats.db")
    for by_full_key in (False, True):
        await create(user="ada", store_url=file, json=True)
        key = json.loads(capsys.readouterr().out)
        await revoke(key["key"] if by_full_key else key["public_id"], store_url=file, json=True)
        assert json.loads(capsys.readouterr().out)["revoked_at"] is not None
    with pytest.raises(UnknownNameError):
        await revoke("00000000", store_url=file)


@pytest.mark.parametrize(
    "options",
    [
        {"scope": ("everything",)},
        {"scope": ("agent:",)},
        {"user": "ada@example.org"},
        {"team": "the blue team"},
        {"expires": timedelta(days=-1)},
    ],
)
async def test_key_with_invalid_options_is_not_created(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        await create(store_url=str(tmp_path / "chats.db"), **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
