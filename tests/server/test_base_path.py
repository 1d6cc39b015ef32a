"""A server under a path: mounted in another application, or behind a proxy that keeps or takes off the path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import aiohttp
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

import dragoman
from dragoman.server import MountableApp
from dragoman.server.config import ServerConfig, base_path
from dragoman.server.server import bind_socket
from tests.attachments.samples import png
from tests.fake_providers import strict_provider
from tests.server.conftest import run_test_server
from tests.server.runs.conftest import parse_events, run_input
from tests.servers.fixtures import free_ports
from tests.turn.fake_agent import settings_for

AT = "/tools/dragoman"


@contextlib.asynccontextmanager
async def serve(application: Any) -> AsyncIterator[str]:
    """The address of an application in a server of its own."""
    listener, config = bind_socket(ServerConfig(store="memory:", port=0))
    server = uvicorn.Server(uvicorn.Config(application, log_config=None))
    task = asyncio.create_task(server._serve([listener]))
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{config.port}"
    finally:
        server.should_exit = True
        await task
        listener.close()


def mount_in_starlette(chat: MountableApp) -> Any:
    return Starlette(routes=[Mount(AT, chat)], lifespan=chat.lifespan)


def mount_in_fastapi(chat: MountableApp) -> Any:
    fastapi = pytest.importorskip("fastapi")
    api = fastapi.FastAPI(lifespan=chat.lifespan)
    api.mount(AT, chat)
    return api


@contextlib.asynccontextmanager
async def make_chat(folder: Path, **options: Any) -> AsyncIterator[MountableApp]:
    async with strict_provider("anthropic") as fake:
        fake.reply("Yes.")
        settings = settings_for(folder, {"anthropic": fake}, "anthropic")
        yield dragoman.server.app(folder / "chats.db", settings=settings, **options)


@contextlib.asynccontextmanager
async def run_behind_proxy(folder: Path, prefix: str) -> AsyncIterator[str]:
    """A server that knows its path from its base URL; what a proxy passes on begins with the prefix."""
    (port,) = free_ports(1)
    async with run_test_server(folder, port=port, base_url=f"http://127.0.0.1:{port}{AT}") as server:
        server.fake.reply("Yes.")
        yield f"http://127.0.0.1:{port}{prefix}"


async def check_page(address: str, given: str, server: str | None = None) -> None:
    """Ask for everything whose answer has an address in it, or depends on one. ``given`` is what clients know."""
    async with aiohttp.ClientSession() as client:

        async def told(path: str, method: str = "GET", **sent: Any) -> tuple[int, Any]:
            async with client.request(method, f"{address}{path}", **sent) as answer:
                is_json = answer.content_type == "application/json"
                return answer.status, await (answer.json() if is_json else answer.text())

        status, page = await told("/")
        assert status == 200
        script = page.partition('src="')[2].partition('"')[0]
        async with client.get(urljoin(f"{address}/", script)) as answer:
            assert (answer.status, answer.content_type) == (200, "text/javascript")
        status, described = await told("/api/v1/openapi.json")
        assert described["servers"] == [{"url": server or given}]
        status, text = await told(
            "/api/v1/agent/runs", "POST", json=run_input("Hello", threadId="t"), headers={"accept": "text/event-stream"}
        )
        assert (status, parse_events(text)[-1]["type"]) == (200, "RUN_FINISHED")
        assert (await told("/api/v1/agent/history?threadId=t"))[1]["messages"][0]["content"] == "Hello"
        form = aiohttp.FormData()
        form.add_field("file", png(), filename="dot.png", content_type="image/png")
        status, kept = await told("/api/v1/agent/attachments", "POST", data=form)
        assert kept["url"].startswith(f"{given}/storage/v1/object/sign/")
        async with client.get(kept["url"].replace(given, address)) as answer:
            assert (answer.status, await answer.read()) == (200, png())
        assert (await told("/api/v1/agent/nothing"))[0] == 404
        async with client.put(f"{address}/api/v1/agent/threads") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        async with client.get(f"{address}/?token=wrong", allow_redirects=False) as answer:
            assert (answer.status, urljoin(str(answer.url), answer.headers["location"])) == (303, f"{address}/")


@pytest.mark.parametrize("mount", [mount_in_starlette, mount_in_fastapi])
async def test_it_can_be_mounted_in_another_application(mount: Callable[[MountableApp], Any], tmp_path: Path) -> None:
    async with make_chat(tmp_path) as chat, serve(mount(chat)) as address:
        await check_page(f"{address}{AT}", f"{address}{AT}", server=AT)


async def test_a_mounted_application_with_a_base_url_writes_that_url(tmp_path: Path) -> None:
    async with (
        make_chat(tmp_path, base_url="http://localhost:1/x") as chat,
        serve(mount_in_starlette(chat)) as address,
        aiohttp.ClientSession() as client,
        client.get(f"{address}{AT}/api/v1/openapi.json") as answer,
    ):
        assert (await answer.json())["servers"] == [{"url": "http://localhost:1/x"}]


async def test_it_can_be_served_on_its_own(tmp_path: Path) -> None:
    async with make_chat(tmp_path) as chat, serve(chat) as address:
        await check_page(address, address, server="/")


async def test_a_mounted_application_without_its_lifespan_says_what_is_missing(tmp_path: Path) -> None:
    async with (
        make_chat(tmp_path) as chat,
        serve(Starlette(routes=[Mount(AT, chat)])) as address,
        aiohttp.ClientSession() as client,
        client.get(f"{address}{AT}/") as answer,
    ):
        assert answer.status == 503
        assert "lifespan=chat.lifespan" in (await answer.json())["error"]["message"]
    with pytest.raises(RuntimeError, match="lifespan"):
        _ = chat.state


async def test_the_users_of_a_mounted_application_are_those_of_the_other_one(tmp_path: Path) -> None:
    async def find_user(request: Request) -> str | None:
        return request.cookies.get("user")

    async with (
        make_chat(tmp_path, find_user=find_user) as chat,
        serve(mount_in_starlette(chat)) as address,
        aiohttp.ClientSession() as client,
    ):

        async def threads(user: str | None, **headers: str) -> tuple[int, int]:
            cookie = {"cookie": f"user={user}"} if user else {}
            url = f"{address}{AT}/api/v1/agent/threads"
            async with client.get(url, headers={**cookie, **headers}) as answer:
                return answer.status, len((await answer.json()).get("threads", ()))

        await chat.state.store.create_session(user_id="ada")
        assert await threads("ada") == (200, 1)
        assert await threads("bea") == (200, 0)
        assert await threads(None) == (401, 0)
        assert await threads("ada", origin="https://evil.example") == (403, 0)
        assert await threads("ada", origin=address) == (200, 1)


@pytest.mark.parametrize("prefix", ["", AT], ids=["the proxy takes the path off", "the proxy keeps the path"])
async def test_it_answers_under_the_path_of_its_base_url(tmp_path: Path, prefix: str) -> None:
    async with run_behind_proxy(tmp_path, prefix) as address:
        await check_page(address, address.removesuffix(AT) + AT)


async def test_the_path_without_a_slash_leads_to_the_page(tmp_path: Path) -> None:
    async with (
        run_behind_proxy(tmp_path, AT) as address,
        aiohttp.ClientSession() as client,
        client.get(address, allow_redirects=False) as answer,
    ):
        assert (answer.status, answer.headers["location"]) == (308, f"{AT}/")


async def test_a_path_that_is_also_the_beginning_of_a_route_is_no_trap(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with run_test_server(tmp_path, port=port, base_url=f"http://127.0.0.1:{port}/api") as server:
        for path in ("/api/v1/openapi.json", "/api/api/v1/openapi.json"):
            async with server.client.get(path) as answer:
                assert answer.status == 200, path
    assert base_path(ServerConfig(store="memory:")) == ""
