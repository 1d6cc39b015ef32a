"""API keys: create and verify them, and load their pepper.

    key = new_key(peppers)                       key.text is shown once, key.secret_hash is stored
    load_peppers(store_url, …)                   the pepper, which is not in the database
    await KeyRing(store, peppers).verify(text)   the stored key, if it is valid

A key is ``ak_live_<public id>_<secret>_<checksum>``. The checksum detects a typo without a query; the public id finds
the row; the HMAC of the secret under the pepper is compared in constant time, also without a row, so that every invalid
key takes the same path. Invariants: a secret is never stored, and the cache is keyed by the SHA-256 of the whole key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from dragoman import settings
from dragoman.attachments import SigningKeys
from dragoman.signals import KEYS
from dragoman.store import ApiKey, Store

PEPPER_VARIABLE: Final = "DRAGOMAN_KEY_PEPPER"
CACHE_S: Final = 0.9  # a revoked key is rejected within a second
_LAST_USED_INTERVAL: Final = timedelta(minutes=10)
_MAX_CACHED: Final = 4_096
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KEY: Final = re.compile(r"(ak_[a-z]{1,8}_([0-9A-Za-z]{8})_([0-9A-Za-z_-]{43}))_([0-9A-Za-z]{6})", re.ASCII)


class NewKey(msgspec.Struct, frozen=True):
    """A new key."""

    text: str  # the key, shown once
    public_id: str
    secret_hash: bytes

    def __repr__(self) -> str:
        return f"NewKey({self.public_id!r})"


def new_key(peppers: SigningKeys) -> NewKey:
    """Create a random key."""
    public_id = "".join(secrets.choice(_ALPHABET) for _ in range(8))
    secret = secrets.token_urlsafe(32)
    text = f"ak_live_{public_id}_{secret}"
    pepper = peppers.current
    return NewKey(f"{text}_{_checksum(text)}", public_id, _hash_secret(secret, pepper.kid, pepper.secret))


def load_peppers(store_url: str, keys_file: str | None = None) -> SigningKeys:
    """The pepper of a store's keys: from the variable, the named file, a file beside the store, or the user's file."""
    if text := os.environ.get(PEPPER_VARIABLE, "").strip():
        return SigningKeys.from_text(text, PEPPER_VARIABLE)
    if keys_file is not None:
        return SigningKeys.in_file(Path(keys_file).expanduser())
    if store_url == "memory:":
        return SigningKeys.from_text(f"memory:{secrets.token_urlsafe(32)}")
    if store_url.startswith("sqlite:///"):
        file = Path(unquote(store_url.removeprefix("sqlite:///")))
        return SigningKeys.in_file(file.with_name(f"{file.name}-pepper.json"))
    return SigningKeys.in_file(settings.default_file(os.environ).with_name("pepper.json"))


def is_key(text: str) -> bool:
    """Whether a text has the form of a key, valid or not."""
    return text.startswith("ak_")


class KeyRing:
    """Verifies the keys of a store."""

    def __init__(self, store: Store, peppers: SigningKeys, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._peppers = peppers
        self._now = now
        self._cache: dict[bytes, tuple[float, ApiKey]] = {}
        store.signals.call(KEYS, "", self.clear)

    async def verify(self, text: str) -> ApiKey | None:
        """The stored key, if the text is a valid key."""
        match = _KEY.fullmatch(text) if len(text) <= 128 else None
        if match is None or not hmac.compare_digest(_checksum(match[1]), match[4]):
            return None
        digest = hashlib.sha256(text.encode()).digest()
        now_s = self._now()
        until, key = self._cache.get(digest, (0.0, None))
        if key is None or now_s >= until:
            key = await self._check_secret(match[2], match[3])
            self._cache_key(digest, now_s + CACHE_S, key)
        return key if key is not None and key.is_valid(self._store.clock()) else None

    def find_verified(self, text: str) -> ApiKey | None:
        """The stored key, if the text was verified less than ``CACHE_S`` seconds ago."""
        until, key = self._cache.get(hashlib.sha256(text.encode("utf-8", "replace")).digest(), (0.0, None))
        is_fresh = key is not None and self._now() < until and key.is_valid(self._store.clock())
        return key if is_fresh else None

    def clear(self) -> None:
        """Clear the cache."""
        self._cache.clear()

    async def _check_secret(self, public_id: str, secret: str) -> ApiKey | None:
        key = await self._store.keys.find(public_id)
        stored_hash = b":" if key is None else key.secret_hash
        kid = stored_hash.partition(b":")[0].decode("ascii", "replace")
        pepper = self._peppers.get(kid) or self._peppers.current
        is_same = hmac.compare_digest(_hash_secret(secret, kid, pepper.secret), stored_hash)
        if key is None or not is_same:
            return None
        now = self._store.clock()
        if key.is_valid(now) and (key.last_used_at is None or now - key.last_used_at > _LAST_USED_INTERVAL):
            await self._store.keys.touch(public_id)
        return key

    def _cache_key(self, digest: bytes, until: float, key: ApiKey | None) -> None:
        self._cache.pop(digest, None)
        if key is None:
            return
        while len(self._cache) >= _MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[digest] = (until, key)


def _hash_secret(secret: str, kid: str, pepper: str) -> bytes:
    return f"{kid}:".encode() + hmac.digest(pepper.encode(), secret.encode(), "sha256")


def _checksum(text: str) -> str:
    number = zlib.crc32(text.encode())
    digits = ""
    for _ in range(6):
        number, remainder = divmod(number, len(_ALPHABET))
        digits += _ALPHABET[remainder]
    return digits
