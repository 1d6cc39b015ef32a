"""A provider's key goes into the system's keyring, and comes out again."""

from __future__ import annotations

import io
from collections.abc import Iterator

import keyring
import pytest
from keyring.backend import KeyringBackend

from dragoman import settings
from dragoman.cli.login import login, logout
from dragoman.errors import InputError


class Drawer(KeyringBackend):
    """A keyring in memory."""

    priority = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture
def drawer() -> Iterator[Drawer]:
    before, made = keyring.get_keyring(), Drawer()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


def test_a_key_is_kept_used_and_forgotten(
    drawer: Drawer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("sk-ant-0123456789abcdef\n"))
    login("anthropic")
    assert drawer.kept == {("dragoman", "anthropic"): "sk-ant-0123456789abcdef"}
    endpoint = settings.load(environment={}).endpoint("anthropic")
    assert endpoint.key_origin == "keyring"
    assert endpoint.key is not None
    assert endpoint.key.reveal() == "sk-ant-0123456789abcdef"
    logout("anthropic")
    assert drawer.kept == {}
    logout("anthropic")
    said = capsys.readouterr().out
    assert "0123456789" not in said
    assert "was not in the keyring" in said


def test_nothing_is_no_key(drawer: Drawer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(InputError, match="no key"):
        login("openai")
    assert drawer.kept == {}
