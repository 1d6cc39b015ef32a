"""How a NATS server is reached: who connects, and with which certificates.

    BrokerAccess(nkey="/etc/dragoman/user.seed", ca="/etc/dragoman/ca.pem").options()     for nats.aio.client.Client
    is_this_machine("nats://127.0.0.1:4222")

An nkey or a credentials file proves who connects without sending a secret: the server's challenge is signed (Ed25519).
Give ``ca``, ``cert`` or ``tls_first``, or a ``tls://`` address, and a server that offers no TLS is refused.
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

_SEED_PREFIX: Final = 18 << 3  # what the first letter of a seed, S, stands for
_USER_PREFIX: Final = 20 << 3  # and of the public key of a user, U
_JWT: Final = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END")
_CREDENTIALS_SEED: Final = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END")


class BrokerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """What a NATS server asks of those who connect. Files are given by their path."""

    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials: str | None = None  # a .creds file
    nkey: str | None = None  # a file with the seed of a user's nkey
    ca: str | None = None  # certificates that the server's is checked with; else those of the system
    cert: str | None = None  # this side's certificate
    key: str | None = None  # and its key, unless that is in the same file
    tls_first: bool = False  # as the server's handshake_first

    @property
    def requires_tls(self) -> bool:
        """Whether a server without TLS is refused."""
        return self.tls_first or self.ca is not None or self.cert is not None

    def options(self) -> dict[str, Any]:
        """The options of the client's ``connect``; ``SettingsError`` if a file cannot be used."""
        arguments: dict[str, Any] = {"user": self.user, "password": self.password, "token": self.token}
        if self.requires_tls:
            arguments |= {"tls": self._tls(), "tls_handshake_first": self.tls_first}
        if self.credentials is not None:
            text = _read_text(self.credentials)
            jwt, seed = _JWT.search(text), _CREDENTIALS_SEED.search(text)
            if jwt is None or seed is None:
                raise _file_error(self.credentials, "it holds no user JWT and nkey seed")
            token = jwt[1].encode()
            arguments |= {"signature_cb": read_seed(seed[1], self.credentials).sign, "user_jwt_cb": lambda: token}
        elif self.nkey is not None:
            arguments["signature_cb"] = self._nkey().sign
        return {name: value for name, value in arguments.items() if value is not None}

    def public_nkey(self) -> str | None:
        """The public key that the server knows, if an nkey is used."""
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
    """A key of a NATS user. It does not show its secret."""

    public: str
    sign: Callable[[str], bytes]  # a server's challenge, in base64

    def __repr__(self) -> str:
        return f"Nkey({self.public!r})"


def read_seed(text: str, where: str) -> Nkey:
    """The key of a seed (``SU…``); ``SettingsError`` if it is none."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  an extra
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415
    except ImportError:
        what = "nkeys need a package that is not installed"
        raise SettingsError(what, remedy="Install dragoman[nats]", code="missing_package") from None
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        raw = b""
    if (
        len(raw) != 36
        or _checksum(raw[:-2]) != raw[-2:]
        or raw[:2] != bytes((_SEED_PREFIX | _USER_PREFIX >> 5, _USER_PREFIX << 3 & 0xFF))
    ):
        raise _file_error(where, "it holds no seed of a user's nkey (SU…)")
    private = Ed25519PrivateKey.from_private_bytes(raw[2:-2])
    public = bytes((_USER_PREFIX,)) + private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return Nkey(
        base64.b32encode(public + _checksum(public)).decode().rstrip("="),
        lambda challenge: base64.b64encode(private.sign(challenge.encode())),
    )


def is_loopback(server: str) -> bool:
    """Whether the address of a server is on a loopback interface."""
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
    return SettingsError(what, where=where, remedy="Name the right file", code="invalid_config")
