"""Certificates and nkeys for the tests, created on demand.

Certificates(folder)        a CA, and a certificate of 127.0.0.1 for both sides
new_nkey()                  the seed and the public key of a NATS user
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from dragoman.mail.broker_access import read_seed


class Certificates:
    """Files of a CA and of a certificate that it signed."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.cert, self.key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        folder.mkdir(parents=True, exist_ok=True)
        ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        ca_name, name = _name("dragoman test CA"), _name("127.0.0.1")
        ca = _builder(ca_name, ca_name, ca_key).add_extension(x509.BasicConstraints(True, 0), True)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        cert = _builder(name, ca_name, key).add_extension(names, False)
        self.ca.write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM))
        self.cert.write_bytes(cert.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM))
        self.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )


def new_nkey() -> tuple[str, str]:
    """Return the seed and the public key of a new NATS user."""
    raw = bytes((0x95, 0x00)) + secrets.token_bytes(32)
    seed = base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")
    return seed, read_seed(seed, "here").public


class Operator:
    """A NATS operator with one account. Its users connect with a credentials file."""

    def __init__(self) -> None:
        self._operator, self._account = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        self._system = Ed25519PrivateKey.generate()
        self._limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}
        self._limits |= {"wildcards": True}
        self._stream_limits = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}

    def config(self) -> str:
        """Return the lines for the configuration of a server."""
        operator, account, system = map(_public_key, "OAA", (self._operator, self._account, self._system))
        accounts = {account: {"limits": self._limits | self._stream_limits}, system: {"limits": self._limits}}
        signed = [
            f"{name}: {_sign_jwt(self._operator, operator, name, 'account', claims)}"
            for name, claims in accounts.items()
        ]
        own = _sign_jwt(self._operator, operator, operator, "operator", {})
        return (
            f"operator: {own}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload {{ {', '.join(signed)} }}\n"
        )

    def credentials(self, seed: str, public: str) -> str:
        """Return the content of a user's credentials file."""
        claims = {"subs": -1, "data": -1, "payload": -1}
        jwt = _sign_jwt(self._account, _public_key("A", self._account), public, "user", claims)
        lines = ("-----BEGIN NATS USER JWT-----", jwt, "------END NATS USER JWT------", "")
        return "\n".join((*lines, "-----BEGIN USER NKEY SEED-----", seed, "------END USER NKEY SEED------", ""))


_KINDS = {"O": 14 << 3, "A": 0}


def _public_key(kind: str, key: Ed25519PrivateKey) -> str:
    raw = bytes((_KINDS[kind],)) + key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _sign_jwt(key: Ed25519PrivateKey, issuer: str, subject: str, kind: str, claims: dict[str, Any]) -> str:
    """Return a JWT in the format of NATS."""
    standard_claims = {
        "jti": secrets.token_hex(16),
        "iat": int(datetime.now(UTC).timestamp()),
        "iss": issuer,
        "name": kind,
    }
    body = {**standard_claims, "sub": subject, "nats": {**claims, "type": kind, "version": 2}}
    text = ".".join(_base64url(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body))
    return f"{text}.{_base64url(key.sign(text.encode()))}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
