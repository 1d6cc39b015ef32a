"""Credentials and certificates for a NATS server.

    BrokerAccess(nkey="/etc/dragoman/user.seed", ca="/etc/dragoman/ca.pem").options()     for nats.aio.client.Client
    is_loopback("nats://127.0.0.1:4222")

An nkey or a credentials file authenticates without sending a secret: the client signs a challenge of the server
(Ed25519). With ``ca``, ``cert``, ``tls_first`` or a ``tls://`` address, a server without TLS is rejected.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from dragoman.errors import SettingsError

_SEED_PREFIX: Final = 18 << 3  # prefix S of a seed
_USER_PREFIX: Final = 20 << 3  # prefix U of the public key of a user
_JWT: Final = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END")
_CREDENTIALS_SEED: Final = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END")


class BrokerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials and certificates. Files are paths."""

    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials: str | None = None  # a .creds file
    nkey: str | None = None  # a file with the seed of a user's nkey
    ca: str | None = None  # CA certificates; default: those of the system
    cert: str | None = None  # client certificate
    key: str | None = None  # key of the client certificate, unless in the same file
    tls_first: bool = False  # as the server's handshake_first

    @property
    def requires_tls(self) -> bool:
        """Whether a server without TLS is rejected."""
        return self.tls_first or self.ca is not None or self.cert is not None

    def options(self) -> dict[str, Any]:
        """Return the options of ``Client.connect``; ``SettingsError`` for an unusable file."""
        arguments: dict[str, Any] = {"user": self.user, "password": self.password, "token": self.token}
        if self.requires_tls:
            arguments |= {"tls": self._tls(), "tls_handshake_first": self.tls_first}
        if self.credentials is not None:
            text = _read_text(self.credentials)
            jwt, seed = _JWT.search(text), _CREDENTIALS_SEED.search(text)
            if jwt is None or seed is None:
                raise _file_error(self.credentials, "it contains no user JWT and nkey seed")
            token = jwt[1].encode()
            arguments |= {"signature_cb": read_seed(seed[1], self.credentials).sign, "user_jwt_cb": lambda: token}
        elif self.nkey is not None:
            arguments["signature_cb"] = self._nkey().sign
        return {name: value for name, value in arguments.items() if value is not None}

    def public_nkey(self) -> str | None:
        """Return the public key of the nkey, if one is used."""
        return None if self.nkey is None or self.credentials is not None else self._nkey().public

    def _nkey(self) -> Nkey:
        assert self.nkey is not None
        return read_seed(_read_text(self.nkey).strip(), self.nkey)

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            where = ", ".join(file for file in (self.ca, self.cert, self.key) if file is not None)
            raise _file_error(where, f"the certificates cannot be used ({error})") from None
        return context


class Nkey(msgspec.Struct, frozen=True):
    """A key of a NATS user. Its text representation does not contain the secret."""

    public: str
    sign: Callable[[str], bytes]  # signs a challenge; the result is base64

    def __repr__(self) -> str:
        return f"Nkey({self.public!r})"


def read_seed(text: str, where: str) -> Nkey:
    """Return the key of a seed (``SU…``); ``SettingsError`` if it is invalid."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  an extra
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415
    except ImportError:
        what = "the package for nkeys is not installed"
        raise SettingsError(what, remedy="Run pip install 'dragoman[nats]'", code="missing_package") from None
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        raw = b""
    if (
        len(raw) != 36
        or _checksum(raw[:-2]) != raw[-2:]
        or raw[:2] != bytes((_SEED_PREFIX | _USER_PREFIX >> 5, _USER_PREFIX << 3 & 0xFF))
    ):
        raise _file_error(where, "it contains no seed of a user nkey (SU…)")
    private = Ed25519PrivateKey.from_private_bytes(raw[2:-2])
    public = bytes((_USER_PREFIX,)) + private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return Nkey(
        base64.b32encode(public + _checksum(public)).decode().rstrip("="),
        lambda challenge: base64.b64encode(private.sign(challenge.encode())),
    )


def is_loopback(server: str) -> bool:
    """Whether a server address is a loopback address."""
    host = urlsplit(server if "//" in server else f"//{server}").hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checksum(data: bytes) -> bytes:
    return binascii.crc_hqx(data, 0).to_bytes(2, "little")


def _read_text(file: str) -> str:
    try:
        return Path(file).read_text("ascii")
    except (OSError, ValueError) as error:
        raise _file_error(file, f"it cannot be read ({type(error).__name__})") from None


def _file_error(where: str, what: str) -> SettingsError:
    return SettingsError(what, where=where, remedy="Correct the path or the file", code="invalid_config")
