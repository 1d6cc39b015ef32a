"""A server under a path: mounted in another application, or behind a proxy that keeps or takes off the path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import aiohttp
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from dragoman.server.app import make_app
from dragoman.server.config import ServerConfig, base_path
from dragoman.server.server import bind_socket, open_app_state
from tests.attachments.samples import png
from tests.server.conftest import run_test_server
from tests.server.runs.conftest import parse_events, run_input
from tests.store.test_blobs import free_ports
from tests.strict import strict_provider
from tests.turn.fake_agent import settings_for

AT = "/tools/dragoman"


@contextlib.asynccontextmanager
async def run_mounted(folder: Path) -> AsyncIterator[str]:
    """The address of a server that another application has mounted, in a server of that application's own."""
    listener, options = bind_socket(ServerConfig(store=f"sqlite:///{folder / 'chats.db'}", port=0))
    host = f"http://127.0.0.1:{options.port}"
    options = ServerConfig(store=options.store, port=options.port, base_url=f"{host}{AT}")
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(listener.close)
        fake = await stack.enter_async_context(strict_provider("anthropic"))
        fake.say("Yes.")
        settings = settings_for(folder, {"anthropic": fake}, "anthropic")
        doors = await stack.enter_async_context(open_app_state(options, settings))
        outer = Starlette(routes=[Mount(AT, make_app(doors))])
        server = uvicorn.Server(uvicorn.Config(outer, log_config=None, lifespan="off"))
        task = asyncio.create_task(server._serve([listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield f"{host}{AT}"
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def run_behind_proxy(folder: Path, prefix: str) -> AsyncIterator[str]:
    """A server that knows its path from its base URL; what a proxy passes on begins with the prefix."""
    (port,) = free_ports(1)
    async with run_test_server(folder, port=port, base_url=f"http://127.0.0.1:{port}{AT}") as server:
        server.fake.say("Yes.")
        yield f"http://127.0.0.1:{port}{prefix}"


async def check_page(address: str, given: str) -> None:
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
        assert described["servers"] == [{"url": given}]
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


async def test_it_can_be_mounted_in_another_application(tmp_path: Path) -> None:
    async with run_mounted(tmp_path) as address:
        await check_page(address, address)


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
