"""Browser tests of uploads: no uploaded file runs as code when the server serves it.

Each file is written to the storage directly, without the upload checks, under several accepted types. The browser opens
it by its signed URL: as a document, and in a page of the same origin as image, frame, object, style sheet, script and
worker. A file that runs changes the title of the page or requests ``/ran``. The test first proves that it detects this.
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
EXTENSIONS = ("gif", "txt", "pdf")  # one is displayed inline, two are downloads


async def store_files(server: ServerFixture) -> dict[str, dict[str, str]]:
    """Store files as every type, without the upload checks, and return their signed URLs."""
    urls: dict[str, dict[str, str]] = {}
    attachments = server.state.attachments
    for number, name in enumerate(SAMPLE):
        for extension in EXTENSIONS:
            path = new_path(OWNER, "t", "r", f"{number:026d}", extension)
            await attachments._storage.write(path, FILES[name], {})
            urls.setdefault(name, {})[extension] = await attachments.signed_url(attachments.bucket, path, OWNER)
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
async def test_uploaded_files_do_not_run_when_served(tmp_path: Path) -> None:
    from playwright.async_api import Error, async_playwright

    async with run_test_server(tmp_path) as server, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = await browser.new_page()
        executed: list[str] = []
        pages = {"/bare": PAGE.decode()}

        async def respond(route: Any) -> None:
            path = route.request.url.removeprefix(server.base_url)
            if path == "/ran":
                executed.append(page.url)
            await route.fulfill(body=pages.get(path, ""), content_type="text/html")

        for path in ("/bare", "/embedding", "/ran"):
            await page.route(f"{server.base_url}{path}", respond)
        await page.goto(f"{server.base_url}/bare", wait_until="networkidle")
        assert (await page.title(), len(executed)) == ("owned", 1)
        urls = await store_files(server)
        for name, by_extension in urls.items():
            pages["/embedding"] = embed_page(by_extension)
            await page.goto(f"{server.base_url}/embedding", wait_until="load")
            assert await page.title() == "clean", name
            await page.goto(by_extension["gif"], wait_until="load")  # only images are displayed
            assert await page.title() != "owned", name
        for extension in EXTENSIONS[1:]:
            with pytest.raises(Error, match=r"Download|ERR_ABORTED"):
                await page.goto(urls["page"][extension])
        await browser.close()
        assert len(executed) == 1


async def test_most_executable_files_are_rejected_on_upload(chat_server: ServerFixture) -> None:
    accepted = {}
    for name, data in FILES.items():
        for declared in (None, "image/png", "image/svg+xml", "text/html", "text/plain"):
            form = FormData()
            form.add_field("file", io.BytesIO(data), filename=f"{name}.png", content_type=declared)
            async with chat_server.client.post(f"{API}/attachments", data=form) as response:
                assert response.status in (200, 415), name
                if response.status == 200:
                    accepted[name] = (await response.json())["mime_type"]
    assert set(accepted.values()) <= {"image/png", "image/gif", "text/plain"}
    assert not {"page", "page with a byte order mark", "drawing", "pdf and page", "nothing but markup"} & set(accepted)
