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
