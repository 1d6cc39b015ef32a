"""Tests of the store that a command uses by default."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman.cli.options import open_store_at, resolve_store_url
from dragoman.errors import SettingsError


def test_configuration_file_names_the_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_STORE", raising=False)
    monkeypatch.delenv("DRAGOMAN_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert resolve_store_url(None) == f"sqlite:///{tmp_path}/data/dragoman/store.db"
    file = tmp_path / "dragoman" / "config.toml"
    file.parent.mkdir()
    file.write_text('store = "postgresql://localhost/chats"\n')
    file.chmod(0o600)
    assert resolve_store_url(None) == "postgresql://localhost/chats"
    assert resolve_store_url("mine.db") == "sqlite:///mine.db"
    other = tmp_path / "other.toml"
    other.write_text('store = "notes.db"\n')
    other.chmod(0o600)
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(other))
    assert resolve_store_url(None) == "sqlite:///notes.db"


def test_environment_or_configuration_file_makes_store_strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def is_strict() -> bool:
        async def read_strict() -> bool:
            async with open_store_at("memory:") as store:
                return store.strict

        return asyncio.run(read_strict())

    assert not is_strict()
    file = tmp_path / "dragoman" / "config.toml"
    file.parent.mkdir()
    file.write_text('strict_append = "true"\n')
    file.chmod(0o600)
    assert is_strict()
    monkeypatch.setenv("DRAGOMAN_STRICT_APPEND", "0")
    assert not is_strict()
    monkeypatch.setenv("DRAGOMAN_STRICT_APPEND", "perhaps")
    with pytest.raises(SettingsError, match="neither true nor false"):
        is_strict()
