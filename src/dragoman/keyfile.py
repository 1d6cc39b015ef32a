"""A file of secret keys, for every process of one machine: made when the first key is needed, and kept to oneself.

    file = KeyFile(path, SigningKey, new_key, missing="…", remedy="…")
    file.keys()             the keys, read again whenever the file has changed
    file.replace(keys)      others, all at once

Two processes that make it at the same time have the same keys afterwards. The one rule: a file that others can read, or
that is somebody else's, is not used.
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
    """The keys of a file. ``new`` makes one; ``missing`` and ``remedy`` are said of a file that holds none."""

    def __init__(self, path: Path, kind: type[Key], new: Callable[[], Key], *, missing: str, remedy: str) -> None:
        self._path = path
        self._decode = msgspec.json.Decoder(tuple[kind, ...]).decode  # type: ignore[valid-type]
        self._new = new
        self._missing, self._remedy = missing, remedy
        self._keys: tuple[Key, ...] = ()
        self._stamp: tuple[int, ...] = ()

    def keys(self) -> tuple[Key, ...]:
        """What is in it."""
        try:
            self._read()
        except FileNotFoundError:
            self._create()
            self._read()
        return self._keys

    def replace(self, keys: tuple[Key, ...]) -> None:
        """Put these in place of what is in it."""
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
        """Write the first key, unless another process was faster."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._write_temporary((self._new(),))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self._path)
        finally:
            temporary.unlink()

    def _write_temporary(self, keys: tuple[Key, ...]) -> Path:
        """A file with these keys that nobody else can read, under a name of its own."""
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
                "others on this machine can read it, or it is somebody else's, and it holds keys",
                where=str(self._path),
                remedy=f"Run: chmod 600 {shlex.quote(str(self._path))}",
                code="unsafe_config",
            )
