"""Tests of ``dragoman login`` and ``logout``, which store keys in the system's keyring."""

from __future__ import annotations

import io
from collections.abc import Iterator

import keyring
import pytest
from keyring.backend import KeyringBackend

from dragoman import settings
from dragoman.cli.login import login, logout
from dragoman.errors import InputError


class MemoryKeyring(KeyringBackend):
    """A keyring in memory."""

    priority = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.entries[service, username]


@pytest.fixture
def memory_keyring() -> Iterator[MemoryKeyring]:
    before, memory = keyring.get_keyring(), MemoryKeyring()
    keyring.set_keyring(memory)
    yield memory
    keyring.set_keyring(before)


def test_key_is_stored_used_and_deleted(
    memory_keyring: MemoryKeyring, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("sk-ant-0123456789abcdef\n"))
    login("anthropic")
    assert memory_keyring.entries == {("dragoman", "anthropic"): "sk-ant-0123456789abcdef"}
    endpoint = settings.load(environment={}).endpoint("anthropic")
    assert endpoint.key_origin == "keyring"
    assert endpoint.key is not None
    assert endpoint.key.reveal() == "sk-ant-0123456789abcdef"
    logout("anthropic")
    assert memory_keyring.entries == {}
    logout("anthropic")
    output = capsys.readouterr().out
    assert "0123456789" not in output
    assert "was not in the keyring" in output


def test_empty_key_is_rejected(memory_keyring: MemoryKeyring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(InputError, match="no key"):
        login("openai")
    assert memory_keyring.entries == {}
