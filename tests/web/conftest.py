"""Fixtures for tests of the page: a browser, the server with the page, and a visitor.

    async def test_…(visitor, site)
        await visitor.open(); await visitor.ask("…"); await visitor.wait_for_text("…")

All modules share one browser. Each module has its own server. Visitors with a desktop browser share one tab, because a
new context costs as much CPU time as most tests. The tab's storage is cleared before each visit. An error in the browser
console fails the test unless the test expects it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.processes import find_browser
from tests.store.conftest import pytest_pyfunc_call
from tests.web import site as web_site

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Locator, Page, ViewportSize

__all__ = ["pytest_pyfunc_call"]

WAIT_MS = 60_000
DESKTOP: ViewportSize = {"width": 1280, "height": 860}


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of the servers, the browser and the tests."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def browser(runner: asyncio.Runner) -> Iterator[Browser]:
    """A Chromium browser."""
    from playwright.async_api import async_playwright

    context_manager = async_playwright()
    playwright = runner.run(context_manager.__aenter__())
    launched = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
    browser = runner.run(launched)
    yield browser
    runner.run(browser.close())
    runner.run(context_manager.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def site(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[web_site.Site]:
    """A server with the page."""
    context = web_site.open_site(tmp_path_factory.mktemp("site"))
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


class Visitor:
    """Opens the page, types into it and reads it."""

    def __init__(self, context: BrowserContext, page: Page, site: web_site.Site) -> None:
        self.context = context
        self.page = page
        self.site = site
        self.errors: list[str] = []
        self.expected_errors: list[str] = []  # patterns of console errors that the test expects
        self._listeners: list[tuple[str, Callable[..., None]]] = []
        self.listen("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.listen("pageerror", lambda error: self.errors.append(str(error)))

    def listen(self, event: str, listener: Callable[..., None]) -> None:
        """Call a function for each event of the page until the visit ends."""
        self.page.on(event, listener)
        self._listeners.append((event, listener))

    async def leave(self) -> None:
        """End the visit."""
        for event, listener in self._listeners:
            self.page.remove_listener(event, listener)
        for page in self.context.pages:
            if page is not self.page:
                await page.close()
        await self.page.goto("about:blank")

    async def open(self, place: str = "#/") -> None:
        """Load the page."""
        await self.page.goto(f"{self.site.base_url}/{place}")
        await self.page.wait_for_selector("#words, .page")

    def find(self, selector: str, text: str | re.Pattern[str] | None = None) -> Locator:
        """Return the elements that match a selector and contain a text."""
        locator = self.page.locator(selector)
        return locator if text is None else locator.filter(has_text=text)

    async def wait_for_text(self, text: str) -> None:
        """Wait until the text is shown outside the sidebar."""
        await self.page.locator("main, dialog, .notice").get_by_text(text).last.wait_for()

    async def wait_until(self, condition: str) -> None:
        """Wait until a JavaScript condition holds. The page's CSP blocks Playwright's ``wait_for_function``."""
        async with asyncio.timeout(WAIT_MS / 1000):
            while not await self.page.evaluate(condition):
                await asyncio.sleep(0.02)

    async def write(self, text: str) -> None:
        await self.page.locator("#words").fill(text)

    async def ask(self, text: str) -> None:
        """Write a message and send it."""
        await self.write(text)
        await self.page.keyboard.press("Enter")

    async def wait_until_idle(self) -> None:
        """Wait until no answer is streamed and the stored messages are shown."""
        await self.page.locator(".messages[aria-busy=false]").wait_for()
        await self.page.locator("#m-live").wait_for(state="detached")

    async def ask_and_wait(self, question: str, answer: str) -> None:
        """Send a question and wait until this answer is stored."""
        await self.ask(question)
        await self.wait_for_text(answer)
        await self.wait_until_idle()

    async def press(self, label: str) -> None:
        """Press the last button of that name."""
        await self.page.get_by_role("button", name=label, exact=True).last.click()


async def open_visitor(browser: Browser, site: web_site.Site, **options: Any) -> Visitor:
    """Open a visitor with its own browser context."""
    context = await browser.new_context(locale="en", **options)
    context.set_default_timeout(WAIT_MS)
    return Visitor(context, await context.new_page(), site)


@pytest.fixture(scope="session")
def tab(runner: asyncio.Runner, browser: Browser) -> Page:
    """The tab that all visitors with a desktop browser share."""

    async def open_tab() -> Page:
        context = await browser.new_context(locale="en", viewport=DESKTOP)
        context.set_default_timeout(WAIT_MS)
        return await context.new_page()

    return runner.run(open_tab())


async def clear_tab(tab: Page, origin: str) -> None:
    """Clear storage, cookies, permissions and emulation of earlier visitors."""
    await tab.goto(f"{origin}/service-worker.js")  # same origin, and runs no script
    await tab.evaluate("() => (localStorage.clear(), sessionStorage.clear())")
    await tab.goto("about:blank")
    session = await tab.context.new_cdp_session(tab)
    await session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    await session.detach()
    await tab.context.clear_cookies()
    await tab.context.clear_permissions()
    await tab.emulate_media(media="null", color_scheme="null", reduced_motion="null")
    await tab.set_viewport_size(DESKTOP)


async def visit(tab: Page, site: web_site.Site) -> Visitor:
    """Return a visitor in a cleared tab. Playwright requires a running event loop to add listeners."""
    await clear_tab(tab, site.base_url)
    return Visitor(tab.context, tab, site)


@pytest.fixture
def visitor(runner: asyncio.Runner, tab: Page, site: web_site.Site) -> Iterator[Visitor]:
    """A new visitor with a desktop browser."""
    visitor = runner.run(visit(tab, site))
    for name, fake in site.fakes.items():
        fake.clear_script()
        site.paces[name].release()
    (site.folder / "work" / "README.md").write_text(web_site.README, "utf-8")
    yield visitor
    runner.run(visitor.leave())
    unexpected = [
        error for error in visitor.errors if not any(re.search(pattern, error) for pattern in visitor.expected_errors)
    ]
    assert unexpected == []


@pytest.fixture
def axe() -> str:
    """The source of axe-core."""
    from scripts.build_page import install

    return (Path(install()) / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")
