"""Uploaded files do not run in a browser, neither accepted ones nor those that validation should have rejected.

A page of the same origin embeds every file, served as every accepted type, as an image, a frame, an object, a style
and a script. The browser also opens the file itself. A file that runs changes the title of the page or requests
``/ran``. A file served without Dragoman's headers proves first that the test detects this.
"""

from __future__ import annotations

import html
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest
from aiohttp import web

from dragoman.attachments import response_headers
from dragoman.attachments.file_types import EXTENSIONS
from dragoman.attachments.types import StoredFile
from tests.attachments.samples import INVALID_FILES, POLYGLOT_FILES, SVG, gif, png
from tests.conftest import IS_FULL
from tests.servers.processes import find_browser

SCRIPT = b"fetch('/ran').catch(()=>0);document.title='owned';"
PAGE = b"<!doctype html><script>" + SCRIPT + b"</script>"
FILES = {
    **POLYGLOT_FILES,
    "page": PAGE,
    "page with a byte order mark": b"\xef\xbb\xbf" + PAGE,
    "drawing": SVG.replace(b"document.title='owned'", SCRIPT),
    "gif that is a script": b"GIF89a/*" + gif()[8:] + b"*/=1;" + SCRIPT,
    "gif that is a script by its size": b"GIF89a=1;" + SCRIPT,
    "png and page": png() + PAGE,
    "pdf and page": b"%PDF-1.4\n" + PAGE,
    "script": SCRIPT,
    "nothing but markup": INVALID_FILES["html with a byte order mark"],
}
SAMPLE = list(FILES) if IS_FULL else list(FILES)[4::3]  # with "page", which runs when it is served without headers


class FileServer:
    """Serves every file as every accepted type."""

    def __init__(self) -> None:
        self.run_count = 0
        self.served: set[str] = set()
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[FileServer]:
        app = web.Application()
        app.router.add_get("/ran", self._count_run)
        app.router.add_get("/bare/{name}", self._bare)
        app.router.add_get("/page/{name}", self._page)
        app.router.add_get("/file/{name}/{ending}", self._file)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _count_run(self, request: web.Request) -> web.Response:
        self.run_count += 1
        return web.Response(text="")

    async def _bare(self, request: web.Request) -> web.Response:
        return web.Response(body=FILES[request.match_info["name"]], headers={"Content-Type": "text/html"})

    async def _page(self, request: web.Request) -> web.Response:
        parts = ""
        for ending in EXTENSIONS.values():
            source = html.escape(f"/file/{quote(request.match_info['name'])}/{ending}")
            parts += (
                f'<img src="{source}"><iframe src="{source}"></iframe><object data="{source}"></object>'
                f'<embed src="{source}"><link rel="stylesheet" href="{source}"><script src="{source}"></script>'
            )
        return web.Response(text=f"<!doctype html><title>clean</title>{parts}", content_type="text/html")

    async def _file(self, request: web.Request) -> web.Response:
        name, ending = request.match_info["name"], request.match_info["ending"]
        mime_type = next(mime for mime, extension in EXTENSIONS.items() if extension == ending)
        self.served.add(f"{name}/{ending}")
        stored = StoredFile("b", f"agent-inputs/u/t/r/x.{ending}", mime_type, len(FILES[name]), "0" * 64)
        return web.Response(body=FILES[name], headers=response_headers(stored))


@pytest.mark.slow
async def test_uploaded_files_do_not_run_in_browser() -> None:
    from playwright.async_api import Error, async_playwright

    async with FileServer().open() as server, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(f"{server.url}/bare/page", wait_until="networkidle")
        assert (await page.title(), server.run_count) == ("owned", 1)
        for name in SAMPLE:
            await page.goto(f"{server.url}/page/{quote(name)}", wait_until="load")
            assert await page.title() == "clean", name
            for ending in ("png", "gif"):  # images open in the browser, all other types are downloads
                await page.goto(f"{server.url}/file/{quote(name)}/{ending}", wait_until="load")
                assert await page.title() != "owned", f"{name} as {ending}"
        for ending in ("txt", "pdf"):
            with pytest.raises(Error, match=r"Download|ERR_ABORTED"):
                await page.goto(f"{server.url}/file/page/{ending}")
        await browser.close()
        assert server.run_count == 1
        assert len(server.served) == len(SAMPLE) * len(EXTENSIONS)
