"""What settings are made of: keys that do not show themselves, choices, and endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import msgspec

from dragoman.catalog import Provider
from dragoman.errors import SettingsError

_LONG_KEY: Final = 12  # of a shorter one, four characters would be too much to show

Keyring = Callable[[str], str | None]


class Secret:
    """A key. What shows it shows its last four characters at most."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The key itself, for the header that carries it and nothing else."""
        return self._text

    def mask_in(self, text: str) -> str:
        """A text in which this key does not stand any more. Some providers repeat the key that they refuse."""
        return text.replace(self._text, str(self)) if self._text else text

    def __repr__(self) -> str:
        return "…" + self._text[-4:] if len(self._text) >= _LONG_KEY else "…"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not written down")


class Setting(msgspec.Struct, frozen=True):
    """One thing that was chosen, and where: the name of a variable, the path of a file, or ``nowhere``."""

    value: str | None = None
    origin: str = "nowhere"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider is called, and with which key. It may be shown: the key is not in its text."""

    provider: Provider
    base_url: str  # without a slash at its end
    base_url_origin: str
    key: Secret | None = None
    key_origin: str = "nowhere"
    is_token: bool = False  # it goes as a bearer token also where keys have a header of their own
    headers: Mapping[str, str] = {}  # further ones, from the file


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says about a provider besides its row."""

    api_key: Secret | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}


def validate_key(text: str, origin: str) -> Secret:
    """A key that can stand in a header. One with a line end or a letter beyond ASCII was not copied well."""
    text = text.strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError(
            "the key has a space, a line end or a sign that no key has",
            where=origin,
            remedy="Copy it again",
            code="invalid_key",
        )
    return Secret(text)
