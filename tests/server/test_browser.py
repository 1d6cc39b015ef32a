"""Nothing that was uploaded runs in a browser that reads it from the server itself.

Every file, under several types that are taken, lies in the storage as if a look at it had failed, and is opened by its
signed URL: by itself, and in a page of the same origin as a picture, a frame, an object, a style, a script and a worker. One that
runs changes the title of the page or asks for ``/ran``; that this would be seen is shown first.
"""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData

from dragoman.attachments import Owner
from dragoman.attachments.paths import new_path
from tests.attachments.test_browser import FILES, PAGE, SAMPLE
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.test_threads import API
from tests.servers.processes import find_browser

OWNER = Owner("local")
ENDINGS = ("gif", "txt", "pdf")  # one that is shown, and both that are downloads


async def store_files(server: ServerFixture) -> dict[str, dict[str, str]]:
    """Signed URLs of files as every type, past all that looks at what is uploaded."""
    urls: dict[str, dict[str, str]] = {}
    attachments = server.state.attachments
    for number, name in enumerate(SAMPLE):
        for ending in ENDINGS:
            path = new_path(OWNER, "t", "r", f"{number:026d}", ending)
            await attachments._storage.write(path, FILES[name], {})
            urls.setdefault(name, {})[ending] = await attachments.signed_url(attachments.bucket, path, OWNER)
    return urls


def embed_page(urls: dict[str, str]) -> str:
    parts = "<!doctype html><title>clean</title>"
    for url in urls.values():
        source = html.escape(url)
        parts += (
            f'<img src="{source}"><iframe src="{source}"></iframe><object data="{source}"></object>'
            f'<embed src="{source}"><link rel="stylesheet" href="{source}"><script src="{source}"></script>'
            f'<script type="module" src="{source}"></script><script>try{{new Worker("{source}")}}catch(e){{}}</script>'
        )
    return parts


@pytest.mark.slow
async def test_nothing_that_was_uploaded_runs_when_the_server_serves_it(tmp_path: Path) -> None:
    from playwright.async_api import Error, async_playwright

    async with run_test_server(tmp_path) as server, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = await browser.new_page()
        ran: list[str] = []
        embedded = {"/bare": PAGE.decode()}

        async def stand_in(route: Any) -> None:
            place = route.request.url.removeprefix(server.base_url)
            if place == "/ran":
                ran.append(page.url)
            await route.fulfill(body=embedded.get(place, ""), content_type="text/html")

        for place in ("/bare", "/embedding", "/ran"):
            await page.route(f"{server.base_url}{place}", stand_in)
        await page.goto(f"{server.base_url}/bare", wait_until="networkidle")
        assert (await page.title(), len(ran)) == ("owned", 1)
        urls = await store_files(server)
        for name, by_ending in urls.items():
            embedded["/embedding"] = embed_page(by_ending)
            await page.goto(f"{server.base_url}/embedding", wait_until="load")
            assert await page.title() == "clean", name
            await page.goto(by_ending["gif"], wait_until="load")  # pictures are the only ones that open
            assert await page.title() != "owned", name
        for ending in ENDINGS[1:]:
            with pytest.raises(Error, match=r"Download|ERR_ABORTED"):
                await page.goto(urls["page"][ending])
        await browser.close()
        assert len(ran) == 1


async def test_what_would_run_elsewhere_is_mostly_not_even_taken(chat_server: ServerFixture) -> None:
    taken = {}
    for name, data in FILES.items():
        for declared in (None, "image/png", "image/svg+xml", "text/html", "text/plain"):
            form = FormData()
            form.add_field("file", io.BytesIO(data), filename=f"{name}.png", content_type=declared)
            async with chat_server.client.post(f"{API}/attachments", data=form) as answer:
                assert answer.status in (200, 415), name
                if answer.status == 200:
                    taken[name] = (await answer.json())["mime_type"]
    assert set(taken.values()) <= {"image/png", "image/gif", "text/plain"}
    assert not {"page", "page with a byte order mark", "drawing", "pdf and page", "nothing but markup"} & set(taken)
