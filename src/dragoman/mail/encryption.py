"""Encryption of sensitive values, with the key outside the database.

    Encryptor.in_file(path)               keys in a file, created on first use, for one machine
    Encryptor.from_text(text)             "name:key,name:key" for several machines; the first key encrypts, all decrypt
    Encryptor.in_memory()                 a temporary key, for a store in memory
    encryptor.encrypt(value, context)     key name and ciphertext (AES-256-GCM)
    encryptor.decrypt(name, …, context)   the value; CorruptDataError if ciphertext or context was changed
    encryptor.rotate()                    encrypts with a new key from now on
    encryptor.sign(data, context)         key name and signature (HMAC-SHA-256)
    encryptor.verify(name, …)             CorruptDataError if the signature does not match

``context`` identifies the owner of a value. It is authenticated, so a ciphertext that is moved to another letter does
not decrypt.

Invariant: a key exists only in memory and in its file or variable. A file that others can read is rejected.
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
_MISSING: Final = "the file contains no mail keys"
_REMEDY: Final = "Restore the file; without its keys no encrypted value can be read"
_KEY_ENTRY: Final = re.compile(r"(?P<name>[A-Za-z0-9_-]{1,32}):(?P<key>[A-Za-z0-9+/_-]{43}=?)")


class EncryptionKey(msgspec.Struct, frozen=True):
    """A key. Its text representation contains only its name."""

    name: str
    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != _KEY_BYTES:
            raise ValueError(f"a key has {_KEY_BYTES} bytes")

    def __repr__(self) -> str:
        return f"EncryptionKey({self.name!r})"


class Encryptor:
    """Encrypts with the first of its keys and decrypts with each of them."""

    def __init__(self, keys: tuple[EncryptionKey, ...], file: Path | None = None, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared  # the keys are configured on every machine, rather than local to this store
        self._fixed_keys = keys
        self._file: KeyFile[EncryptionKey] | None = None
        if file is not None:
            self._file = KeyFile(file, EncryptionKey, _new_key, missing=_MISSING, remedy=_REMEDY)

    @classmethod
    def in_file(cls, file: Path) -> Encryptor:
        """Use the keys of a file, which is created on first use."""
        return cls((), file)

    @classmethod
    def in_memory(cls) -> Encryptor:
        """Use a temporary key."""
        return cls((_new_key(),))

    @classmethod
    def from_text(cls, text: str, where: str = "the mail keys") -> Encryptor:
        """Use keys from a text: ``name:key`` pairs separated by commas; a key is 32 bytes in base64."""
        matches = [_KEY_ENTRY.fullmatch(entry.strip()) for entry in text.split(",")]
        keys = tuple(EncryptionKey(match["name"], _parse_key(match["key"])) for match in matches if match is not None)
        if len(keys) != len(matches) or len({key.name for key in keys}) != len(keys):
            raise SettingsError(
                "it is not a list of name:key pairs with unique names and keys of 32 bytes in base64",
                where=where,
                remedy="Create a key with: openssl rand -base64 32",
                code="invalid_key",
            )
        return cls(keys, is_shared=True)

    def encrypt(self, value: Any, *context: str) -> tuple[str, bytes]:
        """Encrypt a JSON value; return the key name and the ciphertext."""
        return self.encrypt_bytes(msgspec.json.encode(value), *context)

    def encrypt_bytes(self, data: bytes, *context: str) -> tuple[str, bytes]:
        """Encrypt bytes; return the key name and the ciphertext."""
        key = self._keys()[0]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return key.name, nonce + _cipher(key.key).encrypt(nonce, data, _encode_context(context))

    def decrypt(self, name: str, ciphertext: bytes, *context: str) -> Any:
        """Decrypt a JSON value."""
        return msgspec.json.decode(self.decrypt_bytes(name, ciphertext, *context))

    def decrypt_bytes(self, name: str, ciphertext: bytes, *context: str) -> bytes:
        """Decrypt bytes."""
        cipher = _cipher(self._get_key(name, context).key)
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  an extra

        nonce, data = ciphertext[:_NONCE_BYTES], ciphertext[_NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, data, _encode_context(context))
        except (InvalidTag, ValueError):
            raise CorruptDataError("an encrypted value was changed", where=" ".join(context)) from None

    def sign(self, data: bytes, *context: str) -> tuple[str, bytes]:
        """Sign bytes and their context; return the key name and the signature."""
        key = self._keys()[0]
        return key.name, _sign(key, data, context)

    def verify(self, name: str, signature: bytes, data: bytes, *context: str) -> None:
        """Raise ``CorruptDataError`` if the signature does not match."""
        if not hmac.compare_digest(signature, _sign(self._get_key(name, context), data, context)):
            raise CorruptDataError("the signature does not match", where=" ".join(context))

    def _get_key(self, name: str, context: tuple[str, ...]) -> EncryptionKey:
        key = next((key for key in self._keys() if key.name == name), None)
        if key is None:
            raise SettingsError(
                f"the key {name!r} is not available",
                where=" ".join(context),
                remedy=f"Add the keys of the machine that encrypted the value to {KEYS_VARIABLE}",
                code="missing_key",
            )
        return key

    def key_names(self) -> tuple[str, ...]:
        """Return the names of the keys; the first one encrypts."""
        return tuple(key.name for key in self._keys())

    def keyed_hash(self, text: str) -> str:
        """Return a hash of a text that does not reveal the text without the key."""
        oldest = self._keys()[-1]
        return hmac.new(oldest.key, text.encode(), "sha256").hexdigest()

    def rotate(self) -> str:
        """Encrypt with a new key from now on and return its name; older keys still decrypt."""
        if self._file is None:
            raise SettingsError(
                "the keys are not in a file", remedy=f"Change {KEYS_VARIABLE} instead", code="invalid_key"
            )
        key = _new_key()
        self._file.replace((key, *self._keys()))
        return key.name

    def _keys(self) -> tuple[EncryptionKey, ...]:
        return self._fixed_keys if self._file is None else self._file.keys()


def make_encryptor(store: Any, environment: Mapping[str, str] = os.environ) -> Encryptor:
    """Return the encryptor of a store: keys in the variable, next to its file, or next to the configuration file."""
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
    """Sign with a derived key, so that a signature never equals a ``keyed_hash``."""
    signing_key = hmac.new(key.key, b"dragoman mail signature", "sha256").digest()
    encoded_context = _encode_context((key.name, *context))
    return hmac.new(signing_key, len(encoded_context).to_bytes(8, "big") + encoded_context + data, "sha256").digest()


def _encode_context(context: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(context)


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  an extra
    except ImportError:
        raise SettingsError(
            "the package for encryption is not installed",
            remedy="Run pip install 'dragoman[mail]'",
            code="missing_package",
        ) from None
    return AESGCM(key)
