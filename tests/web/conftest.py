"""A browser, the server with the page, and somebody in front of them.

    async def test_…(visitor, site)
        await visitor.open(); await visitor.ask("…"); await visitor.sees("…")

One browser for all modules, and one server for a module; a visitor is a browser that knows nothing yet. Whatever the browser complains of
in its console fails the test, unless the test expects it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.processes import find_browser
from tests.store.conftest import pytest_pyfunc_call
from tests.web import site as web_site

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Locator, Page

__all__ = ["pytest_pyfunc_call"]

WAIT_MS = 60_000


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
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

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
    """A page in a browser context of its own. Listeners are added in a running event loop, which playwright needs."""
    context = await browser.new_context(locale="en", **options)
    context.set_default_timeout(WAIT_MS)
    return Visitor(context, await context.new_page(), site)


@pytest.fixture
def visitor(runner: asyncio.Runner, browser: Browser, site: web_site.Site) -> Iterator[Visitor]:
    """A new visitor with a desktop browser."""
    made = runner.run(open_visitor(browser, site, viewport={"width": 1280, "height": 860}))
    for name, fake in site.fakes.items():
        fake.forget()
        site.paces[name].release()
    (site.folder / "work" / "README.md").write_text(web_site.README, "utf-8")
    yield made
    runner.run(made.context.close())
    left = [said for said in made.complaints if not any(re.search(one, said) for one in made.expected)]
    assert left == []


@pytest.fixture
def axe() -> str:
    """The source of axe-core."""
    from scripts.build_page import install

    return (Path(install()) / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")
