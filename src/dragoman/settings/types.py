"""Values of the settings: secrets, choices and endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import msgspec

from dragoman.catalog import Provider
from dragoman.errors import SettingsError

_LONG_KEY: Final = 12  # only a key of this length shows its last four characters

Keyring = Callable[[str], str | None]


class Secret:
    """An API key. Its text representation contains at most its last four characters."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the key, for the request header only."""
        return self._text

    def mask_in(self, text: str) -> str:
        """Replace the key in a text; some providers repeat a rejected key in their error."""
        return text.replace(self._text, str(self)) if self._text else text

    def __repr__(self) -> str:
        return "…" + self._text[-4:] if len(self._text) >= _LONG_KEY else "…"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be serialized")


class Setting(msgspec.Struct, frozen=True):
    """A choice and its origin: the name of a variable, the path of a file, or ``nowhere``."""

    value: str | None = None
    origin: str = "nowhere"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """URL and API key of a provider. Its text representation does not contain the key."""

    provider: Provider
    base_url: str  # without a trailing slash
    base_url_origin: str
    key: Secret | None = None
    key_origin: str = "nowhere"
    is_token: bool = False  # sent as a bearer token, also where keys have their own header
    headers: Mapping[str, str] = {}  # additional headers from the file


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys and headers of a provider in the file."""

    api_key: Secret | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}


def validate_key(text: str, origin: str) -> Secret:
    """Return a key that is valid in a header; ``SettingsError`` for spaces, line ends and non-ASCII characters."""
    text = text.strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError(
            "the key contains a space, a line end or a character that is not ASCII",
            where=origin,
            remedy="Copy it again",
            code="invalid_key",
        )
    return Secret(text)
