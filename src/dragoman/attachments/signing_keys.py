"""The keys that sign URLs: in a file that is created when it is first needed, or from a text.

    SigningKeys.in_file(path)        a file beside the store, shared by all processes on this machine
    SigningKeys.from_text(text)      "kid:secret,kid:secret" for several machines; the first one signs
    keys.rotate(now)                 sign with a new key; the old one is valid until its last URL expires

A changed file is read again, so all processes use a rotated key. Invariant: secrets are only in this file and in
memory; a file that other users can read is rejected.
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
_NO_KEYS: Final = "the file has no signing keys"
_REMEDY: Final = "Delete the file; a new one is created"
_KEY_PATTERN: Final = re.compile(r"(?P<kid>[A-Za-z0-9_-]{1,32}):(?P<secret>[!-+\--~]{32,})")


class SigningKey(msgspec.Struct, frozen=True):
    """One key. Its repr does not have the secret."""

    kid: str
    secret: str
    retired_at: float | None = None  # when it was replaced

    def __repr__(self) -> str:
        return f"SigningKey({self.kid!r})"

    def can_have_signed(self, expires: int) -> bool:
        """Whether a URL with this expiry can have been signed before the key was retired."""
        return self.retired_at is None or expires <= self.retired_at + MAX_TTL_S


class SigningKeys:
    """All keys by id; the first one signs."""

    def __init__(self, keys: tuple[SigningKey, ...], file: Path | None = None) -> None:
        self._fixed_keys = keys
        self._file: KeyFile[SigningKey] | None = None
        if file is not None:
            self._file = KeyFile(file, SigningKey, _new_key, missing=_NO_KEYS, remedy=_REMEDY)

    @classmethod
    def in_file(cls, file: Path) -> SigningKeys:
        """The keys of a file, which is created when it is first needed."""
        return cls((), file)

    @classmethod
    def from_text(cls, text: str, where: str = "the signing keys") -> SigningKeys:
        """Keys from a comma-separated list of ``kid:secret``."""
        matches = [_KEY_PATTERN.fullmatch(part.strip()) for part in text.split(",")]
        keys = tuple(SigningKey(match["kid"], match["secret"]) for match in matches if match is not None)
        if len(keys) != len(matches) or len({key.kid for key in keys}) != len(keys):
            raise SettingsError(
                "not a list of kid:secret with unique ids and secrets of at least 32 characters",
                where=where,
                remedy="Create a secret with: openssl rand -hex 32",
                code="invalid_key",
            )
        return cls(keys)

    @property
    def current(self) -> SigningKey:
        """The key that signs."""
        return self._load()[0]

    def get(self, kid: str) -> SigningKey | None:
        """The key with that id, if there is one."""
        return next((key for key in self._load() if key.kid == kid), None)

    def rotate(self, now: float, *, forget: bool = False) -> None:
        """Sign with a new key. Old keys stay valid until their URLs expire; with ``forget`` they become invalid."""
        if self._file is None:
            raise SettingsError(
                "the keys are not in a file", remedy="Change them where they are configured", code="invalid_key"
            )
        old_keys = () if forget else tuple(_retire(key, now) for key in self._load())
        old_keys = tuple(key for key in old_keys if key.retired_at is None or key.retired_at + MAX_TTL_S > now)
        self._file.replace((_new_key(), *old_keys))

    def _load(self) -> tuple[SigningKey, ...]:
        return self._fixed_keys if self._file is None else self._file.keys()


def _new_key() -> SigningKey:
    return SigningKey(secrets.token_hex(4), secrets.token_urlsafe(_SECRET_BYTES))


def _retire(key: SigningKey, now: float) -> SigningKey:
    return key if key.retired_at is not None else SigningKey(key.kid, key.secret, now)
