"""Which store a command works on when nobody names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.cli.store_option import url_from


def test_the_configuration_file_names_the_store_unless_somebody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAGOMAN_STORE", raising=False)
    monkeypatch.delenv("DRAGOMAN_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert url_from(None) == f"sqlite:///{tmp_path}/data/dragoman/store.db"
    file = tmp_path / "dragoman" / "config.toml"
    file.parent.mkdir()
    file.write_text('store = "postgresql://localhost/chats"\n')
    file.chmod(0o600)
    assert url_from(None) == "postgresql://localhost/chats"
    assert url_from("mine.db") == "sqlite:///mine.db"
    elsewhere = tmp_path / "other.toml"
    elsewhere.write_text('store = "notes.db"\n')
    elsewhere.chmod(0o600)
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(elsewhere))
    assert url_from(None) == "sqlite:///notes.db"
