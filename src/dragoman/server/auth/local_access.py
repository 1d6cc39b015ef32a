"""The token of a server without keys, for callers on this machine that are not the server's own user.

    token = LocalToken()
    token.url(address)               the address with the token in it, to be printed once
    token.is_bearer(header)          whether an Authorization header holds it
    token.cookie(uid)                what a browser of that user keeps after its first visit

A browser sends a cookie to every port of a host, so also to servers of other users. Therefore a cookie is not the
token: it is good only from the user to whom it was given.
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
    """The name of the cookie: servers at other ports of this machine have their own."""
    return f"dragoman_token_{port}"


class LocalToken:
    """A secret that is made when a server starts, and forgotten when it ends."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text or secrets.token_urlsafe(32)

    def __repr__(self) -> str:
        return "LocalToken(…)"

    def url(self, address: str) -> str:
        """The address of the page with the token in it."""
        return f"{address}/?{PARAMETER}={self.text}"

    def is_token(self, text: str) -> bool:
        """Whether a text is the token."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.text.encode())

    def is_bearer(self, authorization: str) -> bool:
        """Whether the value of an Authorization header holds the token."""
        scheme, _, text = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.is_token(text.strip())

    def cookie(self, uid: int | None) -> str:
        """What a browser of this user keeps."""
        return hmac.new(self.text.encode(), f"cookie of user {uid}".encode(), "sha256").hexdigest()

    def is_cookie(self, text: str | None, uid: int | None) -> bool:
        """Whether a browser of this user has been given this."""
        return text is not None and hmac.compare_digest(text.encode("utf-8", "replace"), self.cookie(uid).encode())


Address = tuple[str, int]
End = tuple[str, int | None]  # as servers tell it: without a port if it is no address
PEER: Final = "peer"  # its name in the state of a request
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_UID_MAP: Final = Path("/proc/self/uid_map")
_OVERFLOW: Final = Path("/proc/sys/kernel/overflowuid")
_EVERY_USER: Final = 2**32 - 1
_UID, _INODE = 4, 6  # among the fields of a row behind its two addresses


class Peer:
    """The other end of one connection."""

    def __init__(self, client: End | None, server: End | None) -> None:
        self._client, self._server = client, server
        self._uid: int | None = None

    async def uid(self) -> int | None:
        """The user of its socket, which stays the same as long as the connection lasts."""
        match self._client, self._server:
            case (str(host), int(port)), (str(server_host), int(server_port)) if self._uid is None and can_find_users():
                self._uid = await asyncio.to_thread(find_uid, (host, port), (server_host, server_port))
        return self._uid


@functools.cache
def can_find_users() -> bool:
    """Whether the kernel tells whose a socket is."""
    return any(os.access(table, os.R_OK) for table in _TABLES)


def find_uid(client: Address, server: Address) -> int | None:
    """The user of the socket whose own address is the client's, connected to the server's."""
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
    if len(fields) <= _INODE or fields[_INODE] == "0":  # closed by its process
        return None
    uid = int(fields[_UID])
    return None if uid == _ambiguous_uid() else uid


def _table_addresses(address: Address) -> tuple[str, ...]:
    """An address as the tables write it: as IPv4, empty if it is none, and as IPv6, mapped if it is none."""
    host, port = ipaddress.ip_address(address[0].partition("%")[0]), address[1]
    if isinstance(host, ipaddress.IPv6Address):
        ipv4 = host.ipv4_mapped
        ipv6 = host.packed
    else:
        ipv4, ipv6 = host, ipaddress.IPv6Address(f"::ffff:{host}").packed
    ipv4_text = "" if ipv4 is None else f"{_to_kernel_hex(ipv4.packed)}:{port:04X}"
    return ipv4_text, f"{_to_kernel_hex(ipv6)}:{port:04X}"


def _to_kernel_hex(packed: bytes) -> str:
    """Bytes as the kernel prints them: by four, in the order of this machine."""
    parts = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(part, sys.byteorder):08X}" for part in parts)


@functools.cache
def _ambiguous_uid() -> int | None:
    """The number that stands for every user whom this user namespace does not know; none if it knows all."""
    try:
        mapped_count = sum(int(line.split()[2]) for line in _UID_MAP.read_text().splitlines())
        return None if mapped_count >= _EVERY_USER else int(_OVERFLOW.read_text())
    except (OSError, ValueError, IndexError):
        return None
