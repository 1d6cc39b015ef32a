"""Tests of the page on a phone: costs, drawers, pickers, installation and the tour."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.web import site as web_site
from tests.web.conftest import Visitor, open_visitor

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest.fixture
def phone(runner: asyncio.Runner, browser: Browser, site: web_site.Site) -> Iterator[Visitor]:
    """A new visitor with a phone."""
    size = {"width": 390, "height": 780}
    visitor = runner.run(
        open_visitor(browser, site, viewport=size, has_touch=True, is_mobile=True, color_scheme="dark")
    )
    for name, fake in site.fakes.items():
        fake.clear_script()
        site.paces[name].release()
    yield visitor
    runner.run(visitor.context.close())
    assert visitor.errors == []


async def test_phone_shows_costs_and_closes_drawers_with_escape_and_back(phone: Visitor, site: web_site.Site) -> None:
    site.fakes["anthropic"].reply("Small screen.")
    await phone.open()
    await phone.ask_and_wait("Where am I?", "Small screen.")
    assert "$" in await phone.find(".head .spent").inner_text()
    url = phone.page.url
    await phone.page.get_by_role("button", name="Conversations").first.click()
    await phone.find(".drawer-open").wait_for()
    await phone.page.keyboard.press("Escape")
    await phone.find(".drawer-open").wait_for(state="detached")
    await phone.page.get_by_role("button", name="Conversations").first.click()
    await phone.find(".drawer-open").wait_for()
    await phone.page.go_back()
    await phone.find(".drawer-open").wait_for(state="detached")
    await phone.find(".head .spent").click()
    await phone.wait_for_text("Cost of this conversation")
    await phone.page.go_back()
    await phone.find("dialog").wait_for(state="detached")
    assert phone.page.url == url


async def test_phone_offers_camera_and_files(phone: Visitor) -> None:
    await phone.open()
    assert await phone.page.get_by_role("button", name="Take a photo").is_visible()
    inputs = phone.page.locator("input[type=file]")
    assert await inputs.evaluate_all("all => all.map(one => one.getAttribute('capture'))") == [None, "environment"]


async def test_installed_page_opens_offline_and_caches_no_conversation(phone: Visitor, site: web_site.Site) -> None:
    site.fakes["anthropic"].reply("A private answer.")
    await phone.open()
    await phone.ask_and_wait("A private question", "A private answer.")
    manifest = await phone.context.request.get(
        f"{site.base_url}/{await phone.find('link[rel=manifest]').get_attribute('href')}"
    )
    content = json.loads(await manifest.text())
    assert (content["display"], content["start_url"], len(content["icons"])) == ("standalone", "../", 2)
    await phone.page.evaluate(
        "navigator.serviceWorker.register('service-worker.js').then(() => navigator.serviceWorker.ready)"
    )
    await phone.page.reload()
    await phone.wait_for_text("A private answer.")
    keys = "caches.keys().then(names => Promise.all(names.map(name => caches.open(name).then(c => c.keys()))))"
    urls = await phone.page.evaluate(f"{keys}.then(all => all.flat().map(one => one.url))")
    assert f"{site.base_url}/" in urls
    assert [url for url in urls if url != f"{site.base_url}/" and "/static/" not in url] == []
    await site.wire.cut()
    await phone.page.reload()
    await phone.find("#words").wait_for()
    await site.wire.mend()
    phone.errors.clear()


async def test_tour_covers_swap_formats_and_search(visitor: Visitor, site: web_site.Site) -> None:
    site.fakes["anthropic"].reply("A lantern is a lamp in a case.")
    await visitor.open()
    await visitor.wait_for_text("Dragoman is one page for every model")
    await visitor.press("Take the tour (two minutes)")
    await visitor.find(".tour").wait_for()
    await visitor.press("Write the question")
    await visitor.wait_until("document.querySelector('#words').value.includes('lantern')")
    await visitor.find("#words").press("Enter")
    await visitor.wait_for_text("A lantern is a lamp in a case.")
    await visitor.wait_until_idle()
    await visitor.press("Next")
    await visitor.press("Choose a model")
    await visitor.page.get_by_placeholder("Find a model").fill("blind")
    await visitor.page.keyboard.press("Enter")
    await visitor.wait_for_text("Fits the context window")
    await visitor.page.keyboard.press("Escape")
    await visitor.press("Next")
    await visitor.press("Show the last answer")
    await visitor.find("dialog .wire").wait_for()
    await visitor.page.keyboard.press("Escape")
    await visitor.press("Next")
    await visitor.press("Search for “lantern”")
    await visitor.find(".list mark").first.wait_for()
    await visitor.press("Next")
    await visitor.find(".tour", "Add a key").wait_for()
    await visitor.press("Finish")
    await visitor.find(".tour").wait_for(state="detached")
    await visitor.open()
    await visitor.press("New conversation")
    await visitor.press("Take the tour (two minutes)")
    await visitor.find(".tour", "The model at the top right answers").wait_for()
    await visitor.page.keyboard.press("Escape")
    await visitor.find(".tour").wait_for(state="detached")
