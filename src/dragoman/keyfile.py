"""A file of secret keys that all processes of a machine share. It is created when the first key is needed.

    file = KeyFile(path, SigningKey, new_key, missing="…", remedy="…")
    file.keys()             the keys, read again if the file has changed
    file.replace(keys)      replace all keys atomically

Two processes that create it at the same time use the same keys. Invariant: a file that other users can read, or that
belongs to another user, is rejected.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from dragoman.errors import SettingsError

Key = TypeVar("Key", bound=msgspec.Struct)


class KeyFile(Generic[Key]):
    """The keys of a file. ``new`` creates a key; ``missing`` and ``remedy`` are the error texts for a file without
    keys.
    """

    def __init__(self, path: Path, kind: type[Key], new: Callable[[], Key], *, missing: str, remedy: str) -> None:
        self._path = path
        self._decode = msgspec.json.Decoder(tuple[kind, ...]).decode  # type: ignore[valid-type]
        self._new = new
        self._missing, self._remedy = missing, remedy
        self._keys: tuple[Key, ...] = ()
        self._stamp: tuple[int, ...] = ()

    def keys(self) -> tuple[Key, ...]:
        """Return the keys."""
        try:
            self._read()
        except FileNotFoundError:
            self._create()
            self._read()
        return self._keys

    def replace(self, keys: tuple[Key, ...]) -> None:
        """Replace all keys."""
        self._write_temporary(keys).replace(self._path)

    def _read(self) -> None:
        status = self._path.stat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        with self._path.open("rb") as file:
            self._require_private(os.fstat(file.fileno()))
            text = file.read()
        try:
            self._keys = self._decode(text)
        except (msgspec.MsgspecError, ValueError):
            self._keys = ()
        if not self._keys:
            raise SettingsError(self._missing, where=str(self._path), remedy=self._remedy, code="invalid_key")
        self._stamp = stamp

    def _create(self) -> None:
        """Create the file with one key, unless another process has created it."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._write_temporary((self._new(),))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self._path)
        finally:
            temporary.unlink()

    def _write_temporary(self, keys: tuple[Key, ...]) -> Path:
        """Write the keys to a temporary file with mode 0600."""
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(keys))
            file.flush()
            os.fsync(descriptor)
        return temporary

    def _require_private(self, status: os.stat_result) -> None:
        if os.name == "posix" and (status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0)):
            raise SettingsError(
                "it contains keys, and other users can read it or own it",
                where=str(self._path),
                remedy=f"Run: chmod 600 {shlex.quote(str(self._path))}",
                code="unsafe_config",
            )
