"""Local access without API keys: the token of the server, and the user at the other end of a connection.

    token = LocalToken()
    token.url(address)               the URL with the token, printed once
    token.is_bearer(header)          whether an Authorization header has it
    token.cookie(uid)                the cookie for a browser of that user
    await Peer(client, server).uid() the user who owns the client's socket; ``None`` if it is unknown
    can_find_users()                 whether the kernel reports socket owners; Linux does

A browser sends a cookie to every port of a host, and so to servers of other users. A cookie is therefore not the token:
it is valid only for the user who received it.

The kernel lists the sockets of this network namespace with their owners in ``/proc/net/tcp`` and ``/proc/net/tcp6``. A
socket that its process has closed is listed as root's, without an inode; such a row is ignored. Headers do not count,
so a proxy is its own user.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import ipaddress
import os
import secrets
import sys
from pathlib import Path
from typing import Final

PARAMETER: Final = "token"


def cookie_name(port: int | None) -> str:
    """The name of the cookie, which differs for each port of this machine."""
    return f"dragoman_token_{port}"


class LocalToken:
    """A secret of one server process, valid until it ends."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text or secrets.token_urlsafe(32)

    def __repr__(self) -> str:
        return "LocalToken(…)"

    def url(self, address: str) -> str:
        """The URL of the page with the token."""
        return f"{address}/?{PARAMETER}={self.text}"

    def is_token(self, text: str) -> bool:
        """Whether a text is the token."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.text.encode())

    def is_bearer(self, authorization: str) -> bool:
        """Whether an Authorization header has the token."""
        scheme, _, text = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.is_token(text.strip())

    def cookie(self, uid: int | None) -> str:
        """The cookie for a browser of this user."""
        return hmac.new(self.text.encode(), f"cookie of user {uid}".encode(), "sha256").hexdigest()

    def is_cookie(self, text: str | None, uid: int | None) -> bool:
        """Whether a text is the cookie of this user."""
        return text is not None and hmac.compare_digest(text.encode("utf-8", "replace"), self.cookie(uid).encode())


Address = tuple[str, int]
End = tuple[str, int | None]  # no port if it is not an IP address
PEER: Final = "peer"  # key in the state of a request
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_UID_MAP: Final = Path("/proc/self/uid_map")
_OVERFLOW: Final = Path("/proc/sys/kernel/overflowuid")
_EVERY_USER: Final = 2**32 - 1
_UID, _INODE = 4, 6  # fields of a row after the two addresses


class Peer:
    """The other end of a connection."""

    def __init__(self, client: End | None, server: End | None) -> None:
        self._client, self._server = client, server
        self._uid: int | None = None

    @property
    def known_uid(self) -> int | None:
        """The owner of its socket, if it was found before."""
        return self._uid

    async def uid(self) -> int | None:
        """The owner of its socket, constant for the connection."""
        match self._client, self._server:
            case (str(host), int(port)), (str(server_host), int(server_port)) if self._uid is None and can_find_users():
                self._uid = await asyncio.to_thread(find_uid, (host, port), (server_host, server_port))
        return self._uid


@functools.cache
def can_find_users() -> bool:
    """Whether the kernel reports the owners of sockets."""
    return any(os.access(table, os.R_OK) for table in _TABLES)


def find_uid(client: Address, server: Address) -> int | None:
    """The owner of the client's socket of a connection."""
    for table in _TABLES:
        try:
            rows = table.read_text("ascii")
        except OSError:
            continue
        for local, remote in zip(_table_addresses(client), _table_addresses(server), strict=True):
            if local and remote and (uid := _uid_in(rows, f" {local} {remote} ")) is not None:
                return uid
    return None


def _uid_in(rows: str, ends: str) -> int | None:
    at = rows.find(ends)
    if at < 0:
        return None
    fields = rows[at + len(ends) : rows.find("\n", at)].split()
    if len(fields) <= _INODE or fields[_INODE] == "0":  # its process has closed it
        return None
    uid = int(fields[_UID])
    return None if uid == _ambiguous_uid() else uid


def _table_addresses(address: Address) -> tuple[str, ...]:
    """An address in the format of the tables: as IPv4 (empty if it has none), and as IPv6 (mapped if necessary)."""
    host, port = ipaddress.ip_address(address[0].partition("%")[0]), address[1]
    if isinstance(host, ipaddress.IPv6Address):
        ipv4 = host.ipv4_mapped
        ipv6 = host.packed
    else:
        ipv4, ipv6 = host, ipaddress.IPv6Address(f"::ffff:{host}").packed
    ipv4_text = "" if ipv4 is None else f"{_to_kernel_hex(ipv4.packed)}:{port:04X}"
    return ipv4_text, f"{_to_kernel_hex(ipv6)}:{port:04X}"


def _to_kernel_hex(packed: bytes) -> str:
    """Bytes as the kernel prints them: in words of four bytes, in native byte order."""
    parts = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(part, sys.byteorder):08X}" for part in parts)


@functools.cache
def _ambiguous_uid() -> int | None:
    """The number for all users outside this user namespace; ``None`` if the namespace has all users."""
    try:
        mapped_count = sum(int(line.split()[2]) for line in _UID_MAP.read_text().splitlines())
        return None if mapped_count >= _EVERY_USER else int(_OVERFLOW.read_text())
    except (OSError, ValueError, IndexError):
        return None
