"""Fixtures for front ends: the examples of docs/front-ends.md in a browser, and a model that calls a weather tool.

async with run_weather_server(folder, "--port", "0") as address
async with open_page(chromium, address, "use-chat=1") as page
    await ask(page, "use-chat-1")                           waits for the answer
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.conftest import IS_FULL, ROOT
from tests.server.runs.conftest import install_packages
from tests.server.test_server_process import run_process, wait_for_worker
from tests.servers.faulty_server import Answer, FaultyServer, ReceivedRequest, encode_chunk, make_head
from tests.store.conftest import pytest_pyfunc_call, runner
from tests.store.faults.conftest import program
from tests.transcripts.conftest import NODE

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

__all__ = ["program", "pytest_pyfunc_call", "runner"]

needs_front_ends = pytest.mark.skipif(
    not (IS_FULL or os.environ.get("DRAGOMAN_TESTS") == "front-ends"),
    reason="the packages of the front ends have 600 MB; make front-ends installs and runs them",
)
JUDGES = Path(__file__).parent / "judges"
KINDS = ("use-chat", "copilotkit", "assistant-ui", "assistant-ui-ag-ui")
QUESTION = "What is the weather in Berlin?"
ANSWER = "21 degrees in Berlin at this hour."  # the end of the sentence: without it, the answer is incomplete
_SETTINGS = """
default_model = "fake:model"
[providers.fake]
dialect = "ollama"
base_url = "{address}"
[models."fake:model"]
max_context_tokens = 100000
"""
_WORD_S = 0.01
_HTML = '<!doctype html><meta charset="utf-8"><body><script type="module" src="/front-ends/page.js"></script>'


# --- model -----------------------------------------------------------------------------------------------------------


def _line(*, is_done: bool = False, **message: Any) -> bytes:
    head = {
        "model": "m",
        "created_at": "2026-01-01T00:00:00Z",
        "message": {"role": "assistant", "content": "", **message},
    }
    return encode_chunk(
        msgspec.json.encode({**head, "done": is_done, **({"done_reason": "stop"} if is_done else {})}) + b"\n"
    )


def answer_weather(request: ReceivedRequest) -> Answer:
    """Return a tool call, or after its result a sentence, word by word."""
    last = request.json["messages"][-1]
    if last["role"] == "user":
        call = {"function": {"name": "get_weather", "arguments": {"city": "Berlin"}}}
        pieces: list[Any] = [_line(tool_calls=[call])]
    else:
        words = f"I looked it up, as you asked, and it is {ANSWER}".split(" ")
        pieces = [piece for word in words for piece in (_line(content=f"{word} "), _WORD_S)]
    head = make_head(200, **{"content-type": "application/x-ndjson", "transfer-encoding": "chunked"})
    return [head, *pieces, _line(is_done=True), encode_chunk(b"")]


# --- server ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def run_weather_server(folder: Path, *options: str) -> AsyncIterator[str]:
    """Run a server whose model calls the weather tool, and yield its address."""
    async with FaultyServer(answer_weather) as upstream:
        file = folder / "dragoman" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(_SETTINGS.format(address=upstream.address))
        file.chmod(0o600)
        server = run_process(folder, "--store", str(folder / "chats.db"), *options)
        _, address = await asyncio.to_thread(server.__enter__)
        try:
            await asyncio.to_thread(wait_for_worker, address)
            yield address
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)


# --- page ------------------------------------------------------------------------------------------------------------


def read_examples() -> dict[str, str]:
    """Return the examples of the documentation by file name."""
    text = (ROOT / "docs" / "front-ends.md").read_text("utf-8")
    return dict(re.findall(r'^```jsx? title="([^"]+)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL))


def build_page() -> Path:
    """Return a folder with the page of all examples, which is bundled once per version of sources and packages."""
    folder = install_packages("front-ends", JUDGES / "front-ends")
    sources = {**read_examples(), "page.jsx": (JUDGES / "page.jsx").read_text("utf-8")}
    digest = hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()[:16]
    result = folder / f"page-{digest}"
    with (folder / "page.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers start at the same time
        if not result.exists():
            _bundle_page(folder, sources, result)
    return result


def _bundle_page(folder: Path, sources: dict[str, str], result: Path) -> None:
    app = folder / "app"
    shutil.rmtree(app, ignore_errors=True)
    app.mkdir()
    for name, source in sources.items():
        (app / name).write_text(source, "utf-8")
    temporary = folder / "page.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    flags = ["--bundle", "--splitting", "--format=esm", "--jsx=automatic", "--loader:.css=empty"]
    defines = ['--define:process.env.NODE_ENV="production"', "--log-level=error", f"--outdir={temporary}"]
    esbuild = [str(NODE), str(folder / "node_modules" / "esbuild" / "bin" / "esbuild")]
    subprocess.run([*esbuild, str(app / "page.jsx"), *flags, *defines], check=True)
    temporary.rename(result)


@asynccontextmanager
async def open_page(chromium: str, address: str, query: str) -> AsyncIterator[Page]:
    """Open a browser with the front ends in a query, as a page of the server."""
    from playwright.async_api import async_playwright

    bundle = await asyncio.to_thread(build_page)

    async def respond(route: Route) -> None:
        name = route.request.url.partition("?")[0].rpartition("/")[2]
        if name:
            await route.fulfill(path=bundle / name, content_type="text/javascript")
        else:
            await route.fulfill(body=_HTML, content_type="text/html")

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page()
        await page.route(f"{address}/front-ends/**", respond)
        await page.goto(f"{address}/front-ends/?{query}")
        await page.wait_for_selector("body[data-ready]", timeout=60_000)
        yield page
        await browser.close()


async def ask(page: Page, name: str, keyboard: asyncio.Lock | None = None, *, timeout_s: float = 30.0) -> None:
    """Send the question to a front end and wait for one more answer. The front ends of a page share the keyboard."""
    section = page.locator(f"#{name}")
    before = await count_answers(page, name)
    box = section.locator("textarea, input").first
    async with keyboard or asyncio.Lock():
        await box.fill(QUESTION)
        await box.press("Enter")
    await wait_for_answers(page, name, before + 1, timeout_s=timeout_s)


async def count_answers(page: Page, name: str) -> int:
    """Return the number of answers that a front end shows."""
    return (await page.locator(f"#{name}").inner_text()).count(ANSWER)


async def wait_for_answers(page: Page, name: str, expected: int, *, timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while await count_answers(page, name) < expected:
            await asyncio.sleep(0.05)
