"""Tests of a server under a path: mounted in another application, or behind a proxy that keeps or strips the path."""

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

BASE_PATH = "/tools/dragoman"


@contextlib.asynccontextmanager
async def serve(application: Any) -> AsyncIterator[str]:
    """Run an application in its own server and yield its address."""
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
    return Starlette(routes=[Mount(BASE_PATH, chat)], lifespan=chat.lifespan)


def mount_in_fastapi(chat: MountableApp) -> Any:
    fastapi = pytest.importorskip("fastapi")
    api = fastapi.FastAPI(lifespan=chat.lifespan)
    api.mount(BASE_PATH, chat)
    return api


@contextlib.asynccontextmanager
async def make_chat(folder: Path, **options: Any) -> AsyncIterator[MountableApp]:
    async with strict_provider("anthropic") as fake:
        fake.reply("Yes.")
        settings = settings_for(folder, {"anthropic": fake}, "anthropic")
        yield dragoman.server.app(folder / "chats.db", settings=settings, **options)


@contextlib.asynccontextmanager
async def run_behind_proxy(folder: Path, prefix: str) -> AsyncIterator[str]:
    """Run a server whose base URL has a path. Requests of the proxy begin with the prefix."""
    (port,) = free_ports(1)
    async with run_test_server(folder, port=port, base_url=f"http://127.0.0.1:{port}{BASE_PATH}") as server:
        server.fake.reply("Yes.")
        yield f"http://127.0.0.1:{port}{prefix}"


async def check_page(address: str, public_url: str, server: str | None = None) -> None:
    """Check every response that contains or depends on an address. ``public_url`` is the address that clients know."""
    async with aiohttp.ClientSession() as client:

        async def request(path: str, method: str = "GET", **options: Any) -> tuple[int, Any]:
            async with client.request(method, f"{address}{path}", **options) as response:
                is_json = response.content_type == "application/json"
                return response.status, await (response.json() if is_json else response.text())

        status, page = await request("/")
        assert status == 200
        script = page.partition('src="')[2].partition('"')[0]
        async with client.get(urljoin(f"{address}/", script)) as response:
            assert (response.status, response.content_type) == (200, "text/javascript")
        status, document = await request("/api/v1/openapi.json")
        assert document["servers"] == [{"url": server or public_url}]
        status, text = await request(
            "/api/v1/agent/runs", "POST", json=run_input("Hello", threadId="t"), headers={"accept": "text/event-stream"}
        )
        assert (status, parse_events(text)[-1]["type"]) == (200, "RUN_FINISHED")
        assert (await request("/api/v1/agent/history?threadId=t"))[1]["messages"][0]["content"] == "Hello"
        form = aiohttp.FormData()
        form.add_field("file", png(), filename="dot.png", content_type="image/png")
        status, file = await request("/api/v1/agent/attachments", "POST", data=form)
        assert file["url"].startswith(f"{public_url}/storage/v1/object/sign/")
        async with client.get(file["url"].replace(public_url, address)) as response:
            assert (response.status, await response.read()) == (200, png())
        assert (await request("/api/v1/agent/nothing"))[0] == 404
        async with client.put(f"{address}/api/v1/agent/threads") as response:
            assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")
        async with client.get(f"{address}/?token=wrong", allow_redirects=False) as response:
            assert (response.status, urljoin(str(response.url), response.headers["location"])) == (303, f"{address}/")


@pytest.mark.parametrize("mount", [mount_in_starlette, mount_in_fastapi])
async def test_app_can_be_mounted_in_another_application(mount: Callable[[MountableApp], Any], tmp_path: Path) -> None:
    async with make_chat(tmp_path) as chat, serve(mount(chat)) as address:
        await check_page(f"{address}{BASE_PATH}", f"{address}{BASE_PATH}", server=BASE_PATH)


async def test_mounted_app_uses_its_base_url(tmp_path: Path) -> None:
    async with (
        make_chat(tmp_path, base_url="http://localhost:1/x") as chat,
        serve(mount_in_starlette(chat)) as address,
        aiohttp.ClientSession() as client,
        client.get(f"{address}{BASE_PATH}/api/v1/openapi.json") as response,
    ):
        assert (await response.json())["servers"] == [{"url": "http://localhost:1/x"}]


async def test_app_can_be_served_alone(tmp_path: Path) -> None:
    async with make_chat(tmp_path) as chat, serve(chat) as address:
        await check_page(address, address, server="/")


async def test_mounted_app_without_lifespan_reports_missing_lifespan(tmp_path: Path) -> None:
    async with (
        make_chat(tmp_path) as chat,
        serve(Starlette(routes=[Mount(BASE_PATH, chat)])) as address,
        aiohttp.ClientSession() as client,
        client.get(f"{address}{BASE_PATH}/") as response,
    ):
        assert response.status == 503
        assert "lifespan=chat.lifespan" in (await response.json())["error"]["message"]
    with pytest.raises(RuntimeError, match="lifespan"):
        _ = chat.state


async def test_mounted_app_uses_users_of_outer_application(tmp_path: Path) -> None:
    async def find_user(request: Request) -> str | None:
        return request.cookies.get("user")

    async with (
        make_chat(tmp_path, find_user=find_user) as chat,
        serve(mount_in_starlette(chat)) as address,
        aiohttp.ClientSession() as client,
    ):

        async def list_threads(user: str | None, **headers: str) -> tuple[int, int]:
            cookie = {"cookie": f"user={user}"} if user else {}
            url = f"{address}{BASE_PATH}/api/v1/agent/threads"
            async with client.get(url, headers={**cookie, **headers}) as response:
                return response.status, len((await response.json()).get("threads", ()))

        await chat.state.store.create_session(user_id="ada")
        assert await list_threads("ada") == (200, 1)
        assert await list_threads("bea") == (200, 0)
        assert await list_threads(None) == (401, 0)
        assert await list_threads("ada", origin="https://evil.example") == (403, 0)
        assert await list_threads("ada", origin=address) == (200, 1)


@pytest.mark.parametrize("prefix", ["", BASE_PATH], ids=["proxy strips path", "proxy keeps path"])
async def test_server_responds_under_path_of_base_url(tmp_path: Path, prefix: str) -> None:
    async with run_behind_proxy(tmp_path, prefix) as address:
        await check_page(address, address.removesuffix(BASE_PATH) + BASE_PATH)


async def test_path_without_slash_redirects_to_page(tmp_path: Path) -> None:
    async with (
        run_behind_proxy(tmp_path, BASE_PATH) as address,
        aiohttp.ClientSession() as client,
        client.get(address, allow_redirects=False) as response,
    ):
        assert (response.status, response.headers["location"]) == (308, f"{BASE_PATH}/")


async def test_base_path_equal_to_route_prefix_is_resolved(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with run_test_server(tmp_path, port=port, base_url=f"http://127.0.0.1:{port}/api") as server:
        for path in ("/api/v1/openapi.json", "/api/api/v1/openapi.json"):
            async with server.client.get(path) as response:
                assert response.status == 200, path
    assert base_path(ServerConfig(store="memory:")) == ""
