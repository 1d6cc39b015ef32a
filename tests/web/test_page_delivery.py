"""Tests of the delivery of the page by the server, and of the API key prompt."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import aiohttp
import pytest

from dragoman.server.auth.api_keys import new_key
from dragoman.server.web_page import _image_sources
from tests.web import site as web_site
from tests.web.conftest import Visitor

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest.fixture(scope="module")
def site(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[web_site.Site]:
    """A server that requires a key."""
    context = web_site.open_site(tmp_path_factory.mktemp("site"), require_keys=True)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


async def test_page_policy_allows_only_own_resources(site: web_site.Site) -> None:
    async with aiohttp.ClientSession(site.base_url) as client, client.get("/") as response:
        policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
        text = await response.text()
    assert (response.status, response.content_type, response.headers["cache-control"]) == (200, "text/html", "no-cache")
    assert policy["default-src"] == "'none'"
    assert (policy["script-src"], policy["style-src"], policy["connect-src"]) == ("'self'", "'self'", "'self'")
    assert policy["img-src"] == "'self' data: blob:"
    assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'", "'none'", "'none'")
    assert not re.search(r"<style|\son\w+=|style=|https?:", text)
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [""]


async def test_static_files_are_hashed_immutable_and_compressed(site: web_site.Site) -> None:
    async with aiohttp.ClientSession(site.base_url, auto_decompress=False) as client:
        async with client.get("/", headers={"Accept-Encoding": "identity"}) as response:
            parts = re.findall(r'(?:src|href)="(static/[^"]+)"', await response.text())
        assert len(parts) >= 3
        for part in parts:
            assert re.search(r"-[A-Z0-9]{8}\.(js|css|svg|webmanifest)$", part)
            async with client.get(f"/{part}", headers={"Accept-Encoding": "gzip"}) as packed:
                data = await packed.read()
            async with client.get(f"/{part}", headers={"Accept-Encoding": "identity"}) as plain:
                assert gzip.decompress(data) == await plain.read()
            assert "immutable" in packed.headers["cache-control"]
            assert packed.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["index.html", "nothing.js", "..%2f..%2fpyproject.toml", "%00", "app.js/x"])
async def test_unknown_static_path_is_rejected(name: str, site: web_site.Site) -> None:
    async with aiohttp.ClientSession() as client, client.get(f"{site.base_url}/static/{name}") as response:
        assert response.status in (400, 404)


def test_image_policy_includes_attachment_storage() -> None:
    assert (
        _image_sources(None)
        == _image_sources("file:///files")
        == _image_sources("s3://bucket?endpoint=https://a.example")
        == ""
    )
    assert _image_sources("supabase://p.supabase.co/b?also=f.example") == " https://p.supabase.co https://f.example"
    assert _image_sources("s3://bucket?endpoint=https://a.example:9000&direct=true") == " https://a.example:9000"


async def test_page_prompts_for_key_and_keeps_it_in_its_tab_only(
    visitor: Visitor, site: web_site.Site, browser: Browser
) -> None:
    visitor.expected_errors.append("401")
    key = new_key(site.state.peppers)
    await site.state.store.keys.create(key.public_id, key.secret_hash, user_id="ada", scopes=("chat",))
    await visitor.open()
    await visitor.wait_for_text("API key required")
    await visitor.page.get_by_label("Key", exact=True).fill("not-a-key")
    await visitor.press("Enter")
    await visitor.wait_for_text("The server rejected this key.")
    await visitor.page.get_by_label("Key", exact=True).fill(key.text)
    await visitor.press("Enter")
    await visitor.find("dialog").wait_for(state="detached")
    site.fakes["anthropic"].reply("Come in.")
    await visitor.ask_and_wait("May I?", "Come in.")
    await visitor.page.reload()
    await visitor.wait_for_text("Come in.")
    assert key.text not in str(await visitor.context.storage_state())
    other_page = await visitor.context.new_page()
    await other_page.goto(site.base_url)
    await other_page.get_by_text("API key required").wait_for()
