"""Sensitive values under lock and key, with the key outside the database.

    Sealing.in_file(path)           keys in a file that is made when the first one is needed, for one machine
    Sealing.from_text(text)         "name:key,name:key" for several machines; the first one seals, each of them opens
    Sealing.in_memory()             a key that nobody has afterwards, for a store in memory
    sealing.seal(value, about)      the name of the key, and the value encrypted (AES-256-GCM)
    sealing.open(name, box, about)  the value; CorruptDataError if the box or what it is about was changed
    sealing.rotate()                a new key seals from now on
    sealing.sign(data, about)       the name of the key, and a signature (HMAC-SHA-256) of the data
    sealing.check(name, …)          CorruptDataError if the signature is another key's or of other data

``about`` is what the value belongs to. It is bound to the box, so that a box that was moved to another letter does not
open there. The one rule: a key is in its file or variable and in memory, and nowhere else; a file that others can read
is not used.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import settings
from dragoman.errors import CorruptDataError, SettingsError
from dragoman.keyfile import KeyFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEYS_VARIABLE: Final = "DRAGOMAN_MAIL_KEYS"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_MISSING: Final = "it holds no keys that letters are sealed with"
_REMEDY: Final = "Put the right file there; without its keys nothing that was sealed can be opened"
_KEY_ENTRY: Final = re.compile(r"(?P<name>[A-Za-z0-9_-]{1,32}):(?P<key>[A-Za-z0-9+/_-]{43}=?)")


class EncryptionKey(msgspec.Struct, frozen=True):
    """One key. It does not show itself."""

    name: str
    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != _KEY_BYTES:
            raise ValueError(f"a key has {_KEY_BYTES} bytes")

    def __repr__(self) -> str:
        return f"SealingKey({self.name!r})"


class Encryptor:
    """All keys that are known; the first one seals."""

    def __init__(self, keys: tuple[EncryptionKey, ...], file: Path | None = None, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared  # somebody gave these keys to every machine; else they are of this store alone
        self._fixed_keys = keys
        self._file: KeyFile[EncryptionKey] | None = None
        if file is not None:
            self._file = KeyFile(file, EncryptionKey, _new_key, missing=_MISSING, remedy=_REMEDY)

    @classmethod
    def in_file(cls, file: Path) -> Encryptor:
        """The keys of a file, which is made when the first one is needed."""
        return cls((), file)

    @classmethod
    def in_memory(cls) -> Encryptor:
        """A key of its own, which is gone with the process."""
        return cls((_new_key(),))

    @classmethod
    def from_text(cls, text: str, where: str = "the keys of mail") -> Encryptor:
        """Keys that somebody else keeps: ``name:key``, with commas between them; a key is 32 bytes in base64."""
        matches = [_KEY_ENTRY.fullmatch(part.strip()) for part in text.split(",")]
        keys = tuple(EncryptionKey(one["name"], _parse_key(one["key"])) for one in matches if one is not None)
        if len(keys) != len(matches) or len({key.name for key in keys}) != len(keys):
            raise SettingsError(
                "it is not a list of name:key, each with a name of its own and 32 bytes in base64",
                where=where,
                remedy="Make a key with: openssl rand -base64 32",
                code="invalid_key",
            )
        return cls(keys, is_shared=True)

    # --- sealing -----------------------------------------------------------------------------------------------------

    def encrypt(self, value: Any, *context: str) -> tuple[str, bytes]:
        """The name of the key, and a box with the value in it."""
        return self.encrypt_bytes(msgspec.json.encode(value), *context)

    def encrypt_bytes(self, data: bytes, *context: str) -> tuple[str, bytes]:
        """The same for bytes."""
        key = self._keys()[0]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return key.name, nonce + _cipher(key.key).encrypt(nonce, data, _encode_context(context))

    def decrypt(self, name: str, ciphertext: bytes, *context: str) -> Any:
        """The value in a box."""
        return msgspec.json.decode(self.decrypt_bytes(name, ciphertext, *context))

    def decrypt_bytes(self, name: str, ciphertext: bytes, *context: str) -> bytes:
        """The same for bytes."""
        key = self._get_key(name, context)
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  the cipher is there, or this is not reached

        try:
            return _cipher(key.key).decrypt(
                ciphertext[:_NONCE_BYTES], ciphertext[_NONCE_BYTES:], _encode_context(context)
            )
        except (InvalidTag, ValueError):
            raise CorruptDataError("what was sealed is not what was written", where=" ".join(context)) from None

    def sign(self, data: bytes, *context: str) -> tuple[str, bytes]:
        """The name of the key, and a signature of the data and of what it is about."""
        key = self._keys()[0]
        return key.name, _sign(key, data, context)

    def verify(self, name: str, signature: bytes, data: bytes, *context: str) -> None:
        """``CorruptDataError`` unless this key has signed this data."""
        if not hmac.compare_digest(signature, _sign(self._get_key(name, context), data, context)):
            raise CorruptDataError("what was signed is not what was written", where=" ".join(context))

    def _get_key(self, name: str, context: tuple[str, ...]) -> EncryptionKey:
        key = next((key for key in self._keys() if key.name == name), None)
        if key is None:
            raise SettingsError(
                f"it was sealed with the key {name!r}, which is not here",
                where=" ".join(context),
                remedy=f"Give this machine the keys of the one that sealed it: {KEYS_VARIABLE}",
                code="missing_key",
            )
        return key

    def key_names(self) -> tuple[str, ...]:
        """The names of the keys, the one that seals first."""
        return tuple(key.name for key in self._keys())

    def keyed_hash(self, text: str) -> str:
        """A name for a text with a secret in it, from which nobody without the key can guess the text."""
        oldest = self._keys()[-1]
        return hmac.new(oldest.key, text.encode(), "sha256").hexdigest()

    def rotate(self) -> str:
        """Seal with a new key; the ones before still open what they sealed. The name of the new one."""
        if self._file is None:
            raise SettingsError("these keys are kept elsewhere", remedy="Change them there", code="invalid_key")
        key = _new_key()
        self._file.replace((key, *self._keys()))
        return key.name

    def _keys(self) -> tuple[EncryptionKey, ...]:
        return self._fixed_keys if self._file is None else self._file.keys()


def make_encryptor(store: Any, environment: Mapping[str, str] = os.environ) -> Encryptor:
    """The keys for a store: from the variable, from a file beside the store's, or beside the configuration file."""
    if text := environment.get(KEYS_VARIABLE):
        return Encryptor.from_text(text, KEYS_VARIABLE)
    if store.durability == "memory":
        return Encryptor.in_memory()
    path: Path | None = getattr(store, "path", None)
    if path is not None:
        return Encryptor.in_file(path.with_name(f"{path.name}-mail-keys.json"))
    return Encryptor.in_file(settings.default_file(environment).with_name("mail-keys.json"))


def _new_key() -> EncryptionKey:
    return EncryptionKey(secrets.token_hex(4), secrets.token_bytes(_KEY_BYTES))


def _parse_key(text: str) -> bytes:
    try:
        return base64.b64decode(text.rstrip("=").replace("-", "+").replace("_", "/") + "=", validate=True)
    except binascii.Error:
        raise SettingsError("a key is not 32 bytes in base64", code="invalid_key") from None


def _sign(key: EncryptionKey, data: bytes, context: tuple[str, ...]) -> bytes:
    """A key of its own, so that a signature is never a name that ``named`` gives."""
    signing_key = hmac.new(key.key, b"dragoman mail signature", "sha256").digest()
    encoded_context = _encode_context((key.name, *context))
    return hmac.new(signing_key, len(encoded_context).to_bytes(8, "big") + encoded_context + data, "sha256").digest()


def _encode_context(context: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(context)


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  only what is sensitive needs it
    except ImportError:
        raise SettingsError(
            "sensitive values are sealed by a package that is not installed",
            remedy="Install dragoman[mail]",
            code="missing_package",
        ) from None
    return AESGCM(key)
