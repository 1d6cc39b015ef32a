"""The keys that our signed URLs are signed with: in a file that is made when it is first needed, or given as a text.

    SigningKeys.in_file(path)        kept beside the store; every process on this machine reads the same
    SigningKeys.from_text(text)      "kid:secret,kid:secret" for several machines; the first one signs
    keys.rotate(now)                 a new key signs from now on, and the old one is known until its last URL is over

A file is looked at again whenever it has changed, so a rotation by one process is seen by all. The one rule: a secret
is in this file and in memory, and nowhere else; a file that others can read is not used.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Final

import msgspec

from dragoman.attachments.types import MAX_TTL_S
from dragoman.errors import SettingsError
from dragoman.keyfile import KeyFile

_SECRET_BYTES: Final = 32
_NO_KEYS: Final = "it holds no signing keys"
_REMEDY: Final = "Delete it; a new one is made"
_KEY_PATTERN: Final = re.compile(r"(?P<kid>[A-Za-z0-9_-]{1,32}):(?P<secret>[!-+\--~]{32,})")


class SigningKey(msgspec.Struct, frozen=True):
    """One key. It does not show its secret."""

    kid: str
    secret: str
    retired_at: float | None = None  # when another one took its place

    def __repr__(self) -> str:
        return f"SigningKey({self.kid!r})"

    def can_have_signed(self, expires: int) -> bool:
        """Whether a URL that is over then can have been signed before this key was retired."""
        return self.retired_at is None or expires <= self.retired_at + MAX_TTL_S


class SigningKeys:
    """All keys that are known, by their names; the first one signs."""

    def __init__(self, keys: tuple[SigningKey, ...], file: Path | None = None) -> None:
        self._fixed_keys = keys
        self._file: KeyFile[SigningKey] | None = None
        if file is not None:
            self._file = KeyFile(file, SigningKey, _new_key, missing=_NO_KEYS, remedy=_REMEDY)

    @classmethod
    def in_file(cls, file: Path) -> SigningKeys:
        """The keys of a file, which is made when the first one is needed."""
        return cls((), file)

    @classmethod
    def from_text(cls, text: str, where: str = "the signing keys") -> SigningKeys:
        """Keys that somebody else keeps: ``kid:secret``, with commas between them."""
        matches = [_KEY_PATTERN.fullmatch(part.strip()) for part in text.split(",")]
        keys = tuple(SigningKey(match["kid"], match["secret"]) for match in matches if match is not None)
        if len(keys) != len(matches) or len({key.kid for key in keys}) != len(keys):
            raise SettingsError(
                "it is not a list of kid:secret, each with a name of its own and 32 characters or more",
                where=where,
                remedy="Make a secret with: openssl rand -hex 32",
                code="invalid_key",
            )
        return cls(keys)

    @property
    def current(self) -> SigningKey:
        """The key that signs now."""
        return self._load()[0]

    def get(self, kid: str) -> SigningKey | None:
        """The key of that name, if it is known."""
        return next((key for key in self._load() if key.kid == kid), None)

    def rotate(self, now: float, *, forget: bool = False) -> None:
        """Sign with a new key. The ones before are known as long as a URL of theirs may be good, or not any more."""
        if self._file is None:
            raise SettingsError("these keys are kept elsewhere", remedy="Change them there", code="invalid_key")
        old_keys = () if forget else tuple(_retire(key, now) for key in self._load())
        old_keys = tuple(key for key in old_keys if key.retired_at is None or key.retired_at + MAX_TTL_S > now)
        self._file.replace((_new_key(), *old_keys))

    def _load(self) -> tuple[SigningKey, ...]:
        return self._fixed_keys if self._file is None else self._file.keys()


def _new_key() -> SigningKey:
    return SigningKey(secrets.token_hex(4), secrets.token_urlsafe(_SECRET_BYTES))


def _retire(key: SigningKey, now: float) -> SigningKey:
    return key if key.retired_at is not None else SigningKey(key.kid, key.secret, now)
