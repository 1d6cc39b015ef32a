"""Tests of local users: the owner of the server needs no token, other users of the machine do."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import encodings.idna  # noqa: F401  another user could not read the file of this module
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from pathlib import Path

import pytest

from dragoman.exchange import SideEffects
from dragoman.server.auth import local_access, principal
from dragoman.tools import ToolRegistry, tool
from tests.server.conftest import ServerFixture
from tests.server.raw import RawClient, RawResponse
from tests.server.test_server_process import get_json, run_process

ME = "/api/v1/agent/me"
ANN, BOB = 61_001, 61_002  # users of this machine that do not own the server
requires_root = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="only root on Linux can be several users"
)


@contextlib.asynccontextmanager
async def connect_as(server: ServerFixture, uid: int, host: str = "127.0.0.1") -> AsyncIterator[RawClient]:
    """Connect with a socket that belongs to another user of this machine."""
    libc = ctypes.CDLL(None)
    libc.setfsuid(uid)  # applies to this thread only
    try:
        connection = socket.create_connection((host, int(server.base_url.rpartition(":")[2])))
    finally:
        libc.setfsuid(0)
    async with RawClient(server.base_url) as client:
        client.reader, client.writer = await asyncio.open_connection(sock=connection)
        yield client


def get_cookie(response: RawResponse) -> str:
    assert (response.status, response.headers["location"]) == (303, "./")
    (cookie,) = SimpleCookie(response.headers["set-cookie"]).values()
    assert cookie["httponly"]
    assert cookie["samesite"] == "strict"
    return f"Cookie: {cookie.key}={cookie.value}"


@requires_root
@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
async def test_another_local_user_needs_token(chat_server: ServerFixture, host: str) -> None:
    token = chat_server.state.token.text
    async with connect_as(chat_server, ANN, host) as ann:
        for headers in (
            [],
            ["Authorization: Bearer " + "x" * 43],
            ["Cookie: dragoman_token=x"],
            ["X-Forwarded-User: root"],
        ):
            assert (await ann.get(ME, *headers)).code == "unauthorized"
        assert (await ann.get("/api/v1/agent/threads")).status == 401
        assert (await ann.get("/healthz")).status == 200
        assert (await ann.get(ME, f"Authorization: Bearer {token}")).status == 200
        assert (await ann.get(ME)).status == 401  # the connection still belongs to Ann
    async with connect_as(chat_server, 0, host) as own:
        assert (await own.get(ME)).status == 200


@requires_root
async def test_token_visit_sets_cookie_bound_to_user(chat_server: ServerFixture) -> None:
    token = chat_server.state.token.text
    async with connect_as(chat_server, ANN) as ann, connect_as(chat_server, BOB) as bob:
        cookie = get_cookie(await ann.get(f"/?token={token}"))
        assert token not in cookie
        assert (await ann.get(ME, cookie)).status == 200
        assert (await bob.get(ME, cookie)).status == 401
        assert (await ann.get(ME, cookie, "Origin: http://127.0.0.1:1")).code == "origin_not_allowed"
        wrong = await bob.get("/?token=wrong")
        assert (wrong.status, "set-cookie" in wrong.headers) == (303, False)


@requires_root
def test_process_of_another_user_is_distinguished(tmp_path: Path) -> None:
    program = (
        "import encodings.idna, http.client, os, sys\n"
        "uid, port, path, *headers = sys.argv[1:]\n"
        "os.setgroups([]), os.setgid(int(uid)), os.setuid(int(uid))\n"
        "connection = http.client.HTTPConnection('127.0.0.1', int(port))\n"
        "connection.request('GET', path, headers=dict(one.split(': ') for one in headers))\n"
        "print(connection.getresponse().status)\n"
    )

    def get_status(address: str, *headers: str) -> str:
        call = [sys.executable, "-I", "-c", program, str(ANN), address.rpartition(":")[2], ME, *headers]
        return subprocess.run(call, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    store = str(tmp_path / "chats.db")
    with run_process(tmp_path, "--port", "0", "--workers", "2", "--store", store) as (process, address):
        assert process.stdout is not None
        match = re.fullmatch(
            r"URL for other users of this machine: (http://\S+)/\?token=(\S+)\n", process.stdout.readline()
        )
        assert match is not None
        assert match[1] == address
        assert get_json(address, ME)["isLocal"]
        assert get_status(address) == "401"
        assert {get_status(address, f"Authorization: Bearer {match[2]}") for _ in range(3)} == {"200"}


@tool(side_effects=SideEffects.NONE, requires_workspace=False)
async def look() -> str:
    """Look."""
    return "dark"


async def test_token_is_required_only_for_tools_if_user_is_unknown(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (local_access, principal):
        monkeypatch.setattr(module, "can_find_users", lambda: False)
    async with RawClient(chat_server.base_url) as client:
        assert (await client.get(ME)).status == 200
        chat_server.agent.tools = ToolRegistry([look])
        assert (await client.get(ME)).status == 401
        cookie = get_cookie(await client.get(f"/?token={chat_server.state.token.text}"))
        assert (await client.get(ME, cookie)).status == 200
        assert (await client.get(ME, f"Authorization: Bearer {chat_server.state.token.text}")).status == 200


async def test_token_is_rejected_if_keys_are_required(keyed_server: ServerFixture) -> None:
    token = keyed_server.state.token.text
    async with RawClient(keyed_server.base_url) as client:
        assert (await client.get(ME, f"Authorization: Bearer {token}")).status == 401
        assert "set-cookie" not in (await client.get(f"/?token={token}")).headers


ROW = "   3: 0100007F:C350 0100007F:1F40 {state} 00000000:00000000 00:00000000 00000000 {uid:>5}        0 {inode} 1 0000\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux answers")
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_kernel_reports_owner_of_socket(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        server = listener.getsockname()[:2]
        with socket.create_connection(server) as client:
            ends = client.getsockname()[:2], server
            assert local_access.ask_kernel(*ends) == local_access.find_uid(*ends) == os.geteuid()
            assert local_access.ask_kernel(server, ends[0]) is None  # not accepted yet
            assert local_access.ask_kernel((host, 1), server) is None
            assert local_access.ask_kernel(server, (host, 1)) is None  # listening, not connected
        assert local_access.ask_kernel(*ends) is None  # closed


@requires_root
async def test_fast_path_checks_owner(chat_server: ServerFixture) -> None:
    async with connect_as(chat_server, ANN) as ann:
        body = b'{"model":"x","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}'
        head = f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        assert (await ann.ask(head.encode() + body)).status == 401


@pytest.mark.parametrize(
    ("row", "uid"),
    [
        (ROW.format(state="01", uid=1000, inode=4711), 1000),
        (ROW.format(state="04", uid=0, inode=0), None),  # closed by its process: the kernel reports root
        (ROW.format(state="06", uid=0, inode=0), None),
        ("", None),
    ],
)
def test_socket_closed_by_its_process_has_no_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, uid: int | None
) -> None:
    table = tmp_path / "tcp"
    table.write_text(f"  sl  local_address rem_address   st\n{row}")
    monkeypatch.setattr(local_access, "_TABLES", (table, tmp_path / "missing"))
    monkeypatch.setattr(local_access, "_to_kernel_hex", lambda packed: packed[::-1].hex().upper())  # little-endian
    assert local_access.find_uid(("127.0.0.1", 50_000), ("127.0.0.1", 8_000)) == uid


@pytest.mark.parametrize(
    "headers", [["Origin: {own}", "Origin: {own}"], ["Origin: {own}", "Origin: https://evil.example"]]
)
async def test_second_origin_header_is_rejected(
    chat_server: ServerFixture, keyed_server: ServerFixture, headers: list[str]
) -> None:
    key = (await keyed_server.make_key("ann"))["Authorization"]
    for server, more in ((chat_server, []), (keyed_server, [f"Authorization: {key}"])):
        async with RawClient(server.base_url) as client:
            formatted = [header.format(own=server.base_url) for header in headers]
            for ordered in (formatted, formatted[::-1]):
                response = await client.get(ME, *ordered, *more)
                assert (response.status, response.code) == (400, "invalid_header")
