"""Local access without API keys: the token of the server, and the user at the other end of a connection.

    token = LocalToken()
    token.url(address)               the URL with the token, printed once
    token.is_bearer(header)          whether an Authorization header has it
    token.cookie(uid)                the cookie for a browser of that user
    await Peer(client, server).uid() the user who owns the client's socket; ``None`` if it is unknown
    can_find_users()                 whether the kernel reports socket owners; Linux does

A browser sends a cookie to every port of a host, and so to servers of other users. A cookie is therefore not the token:
it is valid only for the user who received it.

The kernel answers a netlink message about one socket of this network namespace within microseconds. If it has no
answer, the lists of all sockets in ``/proc/net/tcp`` and ``/proc/net/tcp6`` decide, which takes milliseconds. A socket
that its process has closed is root's, without an inode; it is ignored. Headers do not count, so a proxy is its own
user.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import ipaddress
import os
import secrets
import socket
import struct
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

    def quick_uid(self) -> int | None:
        """The owner of its socket, if it is found without delay."""
        if self._uid is not None:
            return self._uid
        match self._client, self._server:
            case (str(host), int(port)), (str(server_host), int(server_port)) if can_find_users():
                self._uid = ask_kernel((host, port), (server_host, server_port))
        return self._uid

    async def uid(self) -> int | None:
        """The owner of its socket, constant for the connection."""
        match self._client, self._server:
            case (str(host), int(port)), (str(server_host), int(server_port)) if (
                self.quick_uid() is None and can_find_users()
            ):
                self._uid = await asyncio.to_thread(find_uid, (host, port), (server_host, server_port))
        return self._uid


@functools.cache
def can_find_users() -> bool:
    """Whether the kernel reports the owners of sockets."""
    return any(os.access(table, os.R_OK) for table in _TABLES)


# Messages of netlink, from linux/netlink.h and linux/inet_diag.h: a header, the question or the answer, and the socket.
_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, number, sender
_QUESTION: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_SOCKET: Final = struct.Struct("!HH16s16s")  # ports and addresses of both ends
_REST: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, no cookie
_COUNTS: Final = struct.Struct("=IIIII")  # expiry, two queues, owner, inode


def ask_kernel(client: Address, server: Address) -> int | None:
    """The owner of the client's socket of a connection; none if the kernel does not answer."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        return None
    ends = [ipaddress.ip_address(end[0].partition("%")[0]) for end in (client, server)]
    versions = {socket.AF_INET if end.version == 4 else socket.AF_INET6 for end in ends}
    if len(versions) != 1:
        return None
    socket_id = _SOCKET.pack(client[1], server[1], *(end.packed.ljust(16, b"\0") for end in ends))
    question = _QUESTION.pack(*versions, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + socket_id + _REST
    message = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_REQUEST, 1, 0) + question
    try:
        with socket.socket(family, socket.SOCK_DGRAM, _SOCK_DIAG) as sock:
            sock.setblocking(False)
            sock.sendto(message, (0, 0))
            answer, (sender, _) = sock.recvfrom(4096)
    except OSError:
        return None
    return _uid_in_answer(answer, socket_id) if sender == 0 else None


def _uid_in_answer(answer: bytes, socket_id: bytes) -> int | None:
    """The owner in an answer of the kernel, if it is about this socket and its process has not closed it."""
    at = _HEADER.size + 4
    end = at + len(socket_id) + len(_REST)
    if len(answer) < end + _COUNTS.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    uid, inode = _COUNTS.unpack_from(answer, end)[3:]
    if answer[at : at + len(socket_id)] != socket_id or inode == 0 or uid == _ambiguous_uid():
        return None
    return int(uid)


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
