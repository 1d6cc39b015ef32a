"""Take the screenshots of the web page in docs/images: ``python -m scripts.page_pictures``.

A browser shows the real page of the real server, with the strict fake providers of the tests under real model names.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.fake_providers import call_part, text_part, thinking_part
from tests.web import letters
from tests.web.site import README, Site, open_site

if TYPE_CHECKING:
    from playwright.async_api import Page

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
_ANSWER: Final = """\
Lantern is a **command-line timer for lamps**:

1. `lantern on` lights it,
2. it goes out after an hour.

```python
def lantern(minutes: int = 60) -> None:
    print("on")  # what it amounts to
    time.sleep(minutes * 60)
```
"""


async def main() -> None:
    """Take all screenshots."""
    from playwright.async_api import async_playwright

    with tempfile.TemporaryDirectory() as folder:
        async with open_site(Path(folder)) as it, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = await browser.new_page(viewport={"width": 1080, "height": 720}, locale="en")
            await page.goto(it.base_url)
            await _answer(page, it)
            await _swap(page)
            await _approval(page, it)
            await _mail(page, it)
            await browser.close()


async def _answer(page: Page, it: Site) -> None:
    fake = it.fakes["anthropic"]
    fake.answer_with(thinking_part("The README says what it is."), call_part("read_file", {"path": "README.md"}))
    fake.reply(_ANSWER)
    await _ask(page, "What is this project?", "what it amounts to")
    await _save(page, "web-chat")


async def _swap(page: Page) -> None:
    await page.emulate_media(color_scheme="dark")
    await page.keyboard.press("Control+/")
    await page.get_by_label("Find a model").fill("gemini-3.8-flash")
    await page.keyboard.press("Enter")
    await page.get_by_text("unchanged").wait_for()
    await _save(page, "web-swap")
    await page.keyboard.press("Escape")


async def _approval(page: Page, it: Site) -> None:
    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size({"width": 390, "height": 720})
    text = README + "\n`lantern off` puts it out before.\n"
    it.fakes["anthropic"].answer_with(
        text_part("I add a sentence on how to put it out."),
        call_part("write_file", {"path": "README.md", "content": text}),
    )
    await _ask(page, "Say in the README how to put it out earlier", "Allow write_file")
    await _save(page, "web-approval")


async def _mail(page: Page, it: Site) -> None:
    await page.set_viewport_size({"width": 1080, "height": 940})
    await letters.send_letters(it)
    await letters.record_scores(it)
    await page.goto(f"{it.base_url}/#/mail/task/TASK-12")
    await page.locator(".input-form").wait_for()
    await _save(page, "web-mail")
    await page.set_viewport_size({"width": 1080, "height": 780})
    await page.emulate_media(color_scheme="dark")
    await page.goto(f"{it.base_url}/#/mail/trends")
    await page.locator(".lines canvas").last.wait_for()
    await _save(page, "web-trends")


async def _ask(page: Page, question: str, expected: str) -> None:
    await page.locator("#words").fill(question)
    await page.keyboard.press("Enter")
    await page.get_by_text(expected).last.wait_for()
    await page.locator(".messages[aria-busy=false]").wait_for()
    await page.locator("#m-live").wait_for(state="detached")


async def _save(page: Page, name: str) -> None:
    await page.mouse.move(0, 0)
    await page.wait_for_timeout(400)  # until transitions have ended
    await page.screenshot(path=IMAGES / f"{name}.png", caret="hide")
    print(f"docs/images/{name}.png")


if __name__ == "__main__":
    asyncio.run(main())
