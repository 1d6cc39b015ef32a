"""The page as the server sends it, and the door that wants a key."""

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
    """A server that nobody enters without a key."""
    made = web_site.site(tmp_path_factory.mktemp("site"), require_keys=True)
    yield runner.run(made.__aenter__())
    runner.run(made.__aexit__(None, None, None))


async def test_the_page_lets_in_nothing_but_what_came_with_it(site: web_site.Site) -> None:
    async with aiohttp.ClientSession(site.base_url) as client, client.get("/") as answer:
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        text = await answer.text()
    assert (answer.status, answer.content_type, answer.headers["cache-control"]) == (200, "text/html", "no-cache")
    assert policy["default-src"] == "'none'"
    assert (policy["script-src"], policy["style-src"], policy["connect-src"]) == ("'self'", "'self'", "'self'")
    assert policy["img-src"] == "'self' data: blob:"
    assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'", "'none'", "'none'")
    assert not re.search(r"<style|\son\w+=|style=|https?:", text)
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [""]


async def test_what_the_page_is_made_of_is_kept_for_ever_and_its_names_say_its_content(site: web_site.Site) -> None:
    async with aiohttp.ClientSession(site.base_url, auto_decompress=False) as client:
        async with client.get("/", headers={"Accept-Encoding": "identity"}) as answer:
            parts = re.findall(r'(?:src|href)="(static/[^"]+)"', await answer.text())
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
async def test_there_is_nothing_else_to_be_had(name: str, site: web_site.Site) -> None:
    async with aiohttp.ClientSession() as client, client.get(f"{site.base_url}/static/{name}") as answer:
        assert answer.status in (400, 404)


def test_pictures_may_come_from_where_attachments_are_kept() -> None:
    assert (
        _image_sources(None)
        == _image_sources("file:///files")
        == _image_sources("s3://bucket?endpoint=https://a.example")
        == ""
    )
    assert _image_sources("supabase://p.supabase.co/b?also=f.example") == " https://p.supabase.co https://f.example"
    assert _image_sources("s3://bucket?endpoint=https://a.example:9000&direct=true") == " https://a.example:9000"


async def test_the_page_asks_for_a_key_and_forgets_it_with_its_tab(
    visitor: Visitor, site: web_site.Site, browser: Browser
) -> None:
    visitor.expected.append("401")
    made = new_key(site.doors.peppers)
    await site.doors.store.keys.create(made.public_id, made.secret_hash, user_id="ada", scopes=("chat",))
    await visitor.open()
    await visitor.sees("API key required")
    await visitor.page.get_by_label("Key", exact=True).fill("not-a-key")
    await visitor.press("Enter")
    await visitor.sees("The server rejected this key.")
    await visitor.page.get_by_label("Key", exact=True).fill(made.text)
    await visitor.press("Enter")
    await visitor.find("dialog").wait_for(state="detached")
    site.fakes["anthropic"].say("Come in.")
    await visitor.answered("May I?", "Come in.")
    await visitor.page.reload()
    await visitor.sees("Come in.")
    assert made.text not in str(await visitor.context.storage_state())
    another = await visitor.context.new_page()
    await another.goto(site.base_url)
    await another.get_by_text("API key required").wait_for()
