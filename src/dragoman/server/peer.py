"""The process at the other end of a connection from this machine: which user it belongs to, as the kernel reports it.

    peer = Peer(client, server)      both addresses of a connection, as (host, port)
    await peer.uid()                 the user of its socket; none if that cannot be found out
    can_find_users()                 whether this system tells at all; Linux does

The kernel lists the sockets of this network namespace with their users in ``/proc/net/tcp`` and ``/proc/net/tcp6``. A
socket that its process has closed is listed as root's, without an inode: such a row is not believed. No header of a
request is looked at, so a proxy is its own user and nobody else.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import sys
from pathlib import Path
from typing import Final

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
            case (str(host), int(port)), (str(here), int(at)) if self._uid is None and can_find_users():
                self._uid = await asyncio.to_thread(find_uid, (host, port), (here, at))
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
        for local, remote in zip(_spellings(client), _spellings(server), strict=True):
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


def _spellings(address: Address) -> tuple[str, ...]:
    """An address as the tables write it: as IPv4, empty if it is none, and as IPv6, mapped if it is none."""
    host, port = ipaddress.ip_address(address[0].partition("%")[0]), address[1]
    if isinstance(host, ipaddress.IPv6Address):
        plain = host.ipv4_mapped
        whole = host.packed
    else:
        plain, whole = host, ipaddress.IPv6Address(f"::ffff:{host}").packed
    short = "" if plain is None else f"{_words(plain.packed)}:{port:04X}"
    return short, f"{_words(whole)}:{port:04X}"


def _words(packed: bytes) -> str:
    """Bytes as the kernel prints them: by four, in the order of this machine."""
    parts = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(part, sys.byteorder):08X}" for part in parts)


@functools.cache
def _ambiguous_uid() -> int | None:
    """The number that stands for every user whom this user namespace does not know; none if it knows all."""
    try:
        known = sum(int(line.split()[2]) for line in _UID_MAP.read_text().splitlines())
        return None if known >= _EVERY_USER else int(_OVERFLOW.read_text())
    except (OSError, ValueError, IndexError):
        return None
