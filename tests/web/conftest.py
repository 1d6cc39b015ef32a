"""A browser, the server with the page, and somebody in front of them.

    async def test_…(visitor, site)
        await visitor.open(); await visitor.ask("…"); await visitor.sees("…")

One browser for all modules, and one server for a module. Visitors with a desktop browser share one tab, because a new
context takes as much CPU time as most tests; after a visit, the browser forgets what the page has stored. Whatever the
browser complains of in its console fails the test, unless the test expects it.
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
    """The loop in which the servers, the browser and the tests run."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="session")
def browser(runner: asyncio.Runner) -> Iterator[Browser]:
    """A browser that is there."""
    from playwright.async_api import async_playwright

    made = async_playwright()
    playwright = runner.run(made.__aenter__())
    launched = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
    found = runner.run(launched)
    yield found
    runner.run(found.close())
    runner.run(made.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def site(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[web_site.Site]:
    """The server."""
    made = web_site.site(tmp_path_factory.mktemp("site"))
    yield runner.run(made.__aenter__())
    runner.run(made.__aexit__(None, None, None))


class Visitor:
    """A visitor of the page."""

    def __init__(self, context: BrowserContext, page: Page, site: web_site.Site) -> None:
        self.context = context
        self.page = page
        self.site = site
        self.complaints: list[str] = []
        self.expected: list[str] = []  # complaints that belong to the test, as patterns
        self._listeners: list[tuple[str, Callable[..., None]]] = []
        self.listen("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.listen("pageerror", lambda error: self.complaints.append(str(error)))

    def listen(self, event: str, listener: Callable[..., None]) -> None:
        """Call a function for each event of the page, as long as the visit lasts."""
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
        found = self.page.locator(selector)
        return found if text is None else found.filter(has_text=text)

    async def sees(self, text: str) -> None:
        """Wait until it is there to be read, the list at the side left aside."""
        await self.page.locator("main, dialog, .notice").get_by_text(text).last.wait_for()

    async def until(self, condition: str) -> None:
        """Wait until something holds in the page. The policy of the page does not let the browser's own waiting in."""
        async with asyncio.timeout(WAIT_MS / 1000):
            while not await self.page.evaluate(condition):
                await asyncio.sleep(0.02)

    async def write(self, text: str) -> None:
        await self.page.locator("#words").fill(text)

    async def ask(self, text: str) -> None:
        """Write something and send it."""
        await self.write(text)
        await self.page.keyboard.press("Enter")

    async def settled(self) -> None:
        """Wait until nothing runs, and what is stored is shown."""
        await self.page.locator(".messages[aria-busy=false]").wait_for()
        await self.page.locator("#m-live").wait_for(state="detached")

    async def answered(self, question: str, answer: str) -> None:
        """Ask, and wait until this answer is stored."""
        await self.ask(question)
        await self.sees(answer)
        await self.settled()

    async def press(self, label: str) -> None:
        """Press the last button of that name."""
        await self.page.get_by_role("button", name=label, exact=True).last.click()


async def open_visitor(browser: Browser, site: web_site.Site, **options: Any) -> Visitor:
    """A visitor with a browser context of its own."""
    context = await browser.new_context(locale="en", **options)
    context.set_default_timeout(WAIT_MS)
    return Visitor(context, await context.new_page(), site)


@pytest.fixture(scope="session")
def tab(runner: asyncio.Runner, browser: Browser) -> Page:
    """The tab of all visitors with a desktop browser, one after the other."""

    async def open_tab() -> Page:
        context = await browser.new_context(locale="en", viewport=DESKTOP)
        context.set_default_timeout(WAIT_MS)
        return await context.new_page()

    return runner.run(open_tab())


async def clear_tab(tab: Page, origin: str) -> None:
    """Let the browser forget what earlier visitors have stored, chosen and allowed."""
    await tab.goto(f"{origin}/service-worker.js")  # of the same origin, and nothing runs there
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
    """A visitor in a tab that knows nothing. Listeners are added in a running event loop, which playwright needs."""
    await clear_tab(tab, site.base_url)
    return Visitor(tab.context, tab, site)


@pytest.fixture
def visitor(runner: asyncio.Runner, tab: Page, site: web_site.Site) -> Iterator[Visitor]:
    """A new visitor with a desktop browser."""
    made = runner.run(visit(tab, site))
    for name, fake in site.fakes.items():
        fake.forget()
        site.paces[name].release()
    (site.folder / "work" / "README.md").write_text(web_site.README, "utf-8")
    yield made
    runner.run(made.leave())
    left = [said for said in made.complaints if not any(re.search(one, said) for one in made.expected)]
    assert left == []


@pytest.fixture
def axe() -> str:
    """The source of axe-core."""
    from scripts.build_page import install

    return (Path(install()) / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")
