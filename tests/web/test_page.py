"""The page, driven in a browser against the real server: conversations, pictures, models, keyboard and themes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from dragoman.server.auth import local_access, principal
from tests.strict import call, say, think
from tests.web.conftest import Visitor, open_visitor
from tests.web.content import asks_to_write, picture
from tests.web.site import Site

if TYPE_CHECKING:
    from playwright.async_api import Browser

MARKDOWN = """Lantern is a **timer**:

```python
print("on")  # and off
```

| command | since |
|---|---:|
| `on` | 1.0 |
"""


# --- talking ---------------------------------------------------------------------------------------------------------


async def test_the_first_message_is_answered_as_it_arrives_with_a_receipt(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].say(MARKDOWN, thinking="It is short.")
    pace = site.paces["anthropic"]
    pace.hold(12)
    await visitor.open()
    await visitor.find(".suggestions button").first.wait_for()
    await visitor.ask("What is this?")
    await visitor.find("#m-live").wait_for()
    assert await visitor.find(".messages").get_attribute("aria-busy") == "true"
    pace.release()
    await visitor.sees("1.0")
    await visitor.settled()
    assert await visitor.find(".answer strong").inner_text() == "timer"
    assert await visitor.find(".answer .hl-string").inner_text() == '"on"'
    assert await visitor.find(".answer td").last.get_attribute("align") == "right"
    assert re.fullmatch(r"11 → 7 tokens\s*\$0\.000092\s*\d.*", await visitor.find(".receipt").inner_text(), re.DOTALL)
    assert not await visitor.find(".thinking .prose").is_visible()
    await visitor.find(".thinking summary").click()
    assert await visitor.find(".thinking .prose").inner_text() == "It is short."
    assert await visitor.find(".thread.current .title").inner_text() == "What is this?"


async def test_another_user_of_the_machine_opens_the_page_with_the_token(
    browser: Browser, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (local_access, principal):  # with tools on, as here, everybody then needs the token
        monkeypatch.setattr(module, "can_find_users", lambda: False)
    visitor = await open_visitor(browser, site)  # a connection of other visitors has its user already
    site.fakes["anthropic"].forget()
    site.fakes["anthropic"].say("Welcome.")
    await visitor.open(f"?token={site.doors.token.text}#/")
    await visitor.answered("May I?", "Welcome.")
    assert "token" not in visitor.page.url
    await visitor.context.close()  # before the patch ends
    assert visitor.complaints == []


async def test_code_is_copied(visitor: Visitor, site: Site) -> None:
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    site.fakes["anthropic"].say(MARKDOWN)
    await visitor.open()
    await visitor.answered("Show me code", "1.0")
    await visitor.find("figure.code .copy").click()
    await visitor.sees("Copied")
    assert await visitor.page.evaluate("navigator.clipboard.readText()") == 'print("on")  # and off'


async def test_what_a_model_says_runs_nothing_and_asks_nobody(visitor: Visitor, site: Site) -> None:
    asked: list[str] = []
    visitor.listen("request", lambda request: asked.append(request.url))
    site.fakes["anthropic"].say(
        "<script>window.bad=1</script> <img src=x onerror='window.bad=2'>\n\n[a](javascript:window.bad=3) "
        "![b](https://example.com/b.png) <style>body{display:none}</style> <a href='//example.com' id='app'>c</a>\n\n"
        '<iframe srcdoc="<script>parent.bad=4</script>"></iframe>\n\n| <b onclick="bad=5">x</b> |\n|---|\n| y |\n\nEnd.'
    )
    await visitor.open()
    await visitor.answered("Harm me", "End.")
    assert await visitor.page.evaluate("window.bad") is None
    assert await visitor.find(".answer img, .answer script, .answer style, .answer iframe, .answer b").count() == 0
    assert await visitor.find(".answer a").evaluate_all("all => all.map(one => one.href)") == [
        "https://example.com/b.png"
    ]
    assert [url for url in asked if not url.startswith(site.base_url)] == []


async def test_an_answer_is_stopped(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].say("one two three four five six seven eight nine ten " * 5)
    site.paces["anthropic"].hold(5)
    await visitor.open()
    await visitor.ask("Count")
    await visitor.sees("one two")
    await visitor.page.keyboard.press("Escape")
    await visitor.sees("This answer was stopped.")
    await visitor.settled()
    site.paces["anthropic"].release()
    site.fakes["anthropic"].say("I am here.")
    await visitor.answered("Still there?", "I am here.")


async def test_a_failure_says_what_to_do_and_nothing_written_is_lost(visitor: Visitor, site: Site) -> None:
    visitor.expected.append("ERR_CONNECTION|ERR_EMPTY|422|fetching the script")
    await visitor.open()
    await visitor.ask("@nobody-knows-this-model hello")
    await visitor.find(".banner.bad").wait_for()
    site.fakes["anthropic"].fail(429, "slow down")
    await visitor.write("")
    await visitor.ask("Hello?")
    await visitor.sees("The rate limit of the provider is exceeded.")


# --- pictures --------------------------------------------------------------------------------------------------------


async def test_pictures_are_picked_pasted_and_dropped_and_reach_the_model(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.set_input_files("input[multiple]", [picture(10), picture(20)])
    for kind in ("paste", "drop"):
        await visitor.page.evaluate(
            """([kind, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], kind + ".png", { type: "image/png" }));
                const event = kind === "paste"
                    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
                    : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
                document.querySelector("#words").dispatchEvent(event);
            }""",
            [kind, list(picture(30 if kind == "paste" else 40)["buffer"])],
        )
    await visitor.until("document.querySelectorAll('.upload:not(.sending) img').length === 4")
    site.fakes["anthropic"].say("Four squares.")
    before = len(site.fakes["anthropic"].bodies)
    await visitor.answered("What do you see?", "Four squares.")
    (body,) = site.fakes["anthropic"].bodies[before:]
    assert [part["type"] for part in body["messages"][-1]["content"]].count("image") == 4
    await visitor.page.reload()
    await visitor.until(
        "[...document.querySelectorAll('.question img')].filter(one => one.naturalWidth === 8).length === 4"
    )


async def test_a_file_that_is_not_taken_says_why_and_stands_in_nobodys_way(visitor: Visitor, site: Site) -> None:
    visitor.expected.append("415|422")
    await visitor.open()
    drawing = {"name": "a.svg", "mimeType": "image/svg+xml", "buffer": b"<svg xmlns='http://www.w3.org/2000/svg'/>"}
    await visitor.page.set_input_files("input[multiple]", [drawing])
    await visitor.find(".upload.failed", "is not an accepted type").wait_for()
    site.fakes["anthropic"].say("Without it.")
    await visitor.answered("Go on", "Without it.")


# --- models ----------------------------------------------------------------------------------------------------------


async def test_a_swap_is_shown_before_it_is_made(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].say("Thought through.", thinking="Hm.")
    await visitor.open()
    await visitor.answered("Think", "Thought through.")
    await visitor.page.keyboard.press("Control+/")
    await visitor.page.get_by_label("Find a model").fill("gemini-3.8-flash")
    await visitor.page.keyboard.press("Enter")
    await visitor.find("dialog", "2 blocks unchanged, 1 converted or omitted").wait_for()
    assert "thinking omitted" in await visitor.find(".losses").inner_text()
    await visitor.press("Swap")
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    site.fakes["gemini"].say("I go on.")
    await visitor.answered("Go on", "I go on.")
    assert await visitor.find(".answer .who").last.inner_text() == "gemini-3.8-flash"
    assert "Hm." not in json.dumps(site.fakes["gemini"].bodies[-1])


async def test_a_swap_that_would_lose_a_picture_is_not_offered(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.set_input_files("input[multiple]", [picture(50)])
    await visitor.find(".upload:not(.sending)").wait_for()
    site.fakes["anthropic"].say("A square.")
    await visitor.answered("What is it?", "A square.")
    await visitor.find(".model-button").click()
    await visitor.find("button.model", "blind").click()
    await visitor.find("dialog .banner.bad").wait_for()
    assert await visitor.page.get_by_role("button", name="Swap", exact=True).is_disabled()


async def test_a_model_is_chosen_before_the_first_message(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.find(".model-button").click()
    await visitor.find("button.model", "gemini-3.8-flash").first.click()
    site.fakes["gemini"].say("At your service.")
    await visitor.answered("Hello", "At your service.")
    await visitor.page.reload()
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()


# --- for everybody ---------------------------------------------------------------------------------------------------


async def test_enter_sends_nothing_while_a_word_is_composed(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.locator("#words").focus()
    keyboard = await visitor.context.new_cdp_session(visitor.page)
    before = len(site.fakes["anthropic"].bodies)
    await keyboard.send("Input.imeSetComposition", {"text": "ni hao", "selectionStart": 6, "selectionEnd": 6})
    for kind in ("rawKeyDown", "keyUp"):
        pressed = {"type": kind, "key": "Process", "code": "Enter", "windowsVirtualKeyCode": 229}
        await keyboard.send("Input.dispatchKeyEvent", pressed)
    await visitor.page.evaluate(
        "document.querySelector('#words').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true }))"
    )
    await keyboard.send("Input.insertText", {"text": "你好世界"})
    assert await visitor.find("#words").input_value() == "你好世界"
    assert await visitor.find(".question").count() == 0
    site.fakes["anthropic"].say("很高兴")
    await visitor.page.keyboard.press("Enter")
    await visitor.sees("很高兴")
    await visitor.settled()
    (body,) = site.fakes["anthropic"].bodies[before:]
    assert body["messages"][-1]["content"] in ("你好世界", [{"type": "text", "text": "你好世界"}])


async def test_dark_is_as_the_system_has_it_until_somebody_chooses(visitor: Visitor, site: Site) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    await visitor.page.emulate_media(color_scheme="dark")
    await visitor.open()
    dark = await visitor.page.evaluate(paper)
    await visitor.press("Theme: system")
    light = await visitor.page.evaluate(paper)
    assert dark != light
    await visitor.page.reload()
    await visitor.find("#words").wait_for()
    assert await visitor.page.evaluate(paper) == light
    await visitor.press("Theme: light")
    assert await visitor.page.evaluate(paper) == dark


async def test_on_a_phone_the_list_is_a_drawer_and_nothing_is_too_wide(visitor: Visitor, site: Site) -> None:
    await visitor.page.set_viewport_size({"width": 360, "height": 740})
    site.fakes["anthropic"].answer_with(
        think("Hm."), say(MARKDOWN + "\n" + "long" * 100), call("read_file", {"path": "README.md"})
    )
    site.fakes["anthropic"].say("Small enough.")
    await visitor.open()
    await visitor.answered("Does it fit?", "Small enough.")
    assert await visitor.page.evaluate("document.documentElement.scrollWidth") == 360
    assert not await visitor.find("#search").is_visible()
    await visitor.find(".head").get_by_label("Conversations").click()
    await visitor.find("#search").wait_for()
    await visitor.find(".thread", "Does it fit?").first.locator("a").click()
    await visitor.find("#search").wait_for(state="hidden")
    await visitor.sees("Small enough.")


async def test_keys_are_told(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.locator("h1").click()
    await visitor.page.evaluate("document.activeElement.blur()")
    await visitor.page.keyboard.press("?")
    await visitor.find("dialog", "Search all conversations").wait_for()
    await visitor.page.keyboard.press("Escape")
    await visitor.find("dialog").wait_for(state="detached")
    await visitor.page.keyboard.press("/")
    await visitor.until("document.activeElement.id === 'search'")


async def test_axe_finds_nothing_serious(visitor: Visitor, site: Site, axe: str) -> None:
    found: list[str] = []

    async def look(where: str) -> None:
        await visitor.page.wait_for_timeout(200)  # until nothing fades any more
        result = await visitor.page.evaluate("() => axe.run({ resultTypes: ['violations'] })")
        for one in result["violations"]:
            if one["impact"] in ("serious", "critical"):
                found.append(f"{where}: {one['id']} {[node['html'][:120] for node in one['nodes'][:3]]}")

    await visitor.open()
    await visitor.page.evaluate(axe)
    await look("empty")
    asks_to_write(site, "x\n")
    await visitor.ask("What is it?")
    await visitor.find(".approval").wait_for()
    await look("approval")
    site.fakes["anthropic"].say(MARKDOWN, thinking="Hm.")
    await visitor.press("Allow")
    await visitor.sees("1.0")
    await visitor.settled()
    await visitor.find(".call summary").first.click()
    for theme in ("light", "dark"):
        await visitor.page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        await look(theme)
    await visitor.find(".model-button").click()
    await look("models")
    await visitor.page.keyboard.press("Escape")
    await visitor.press("Show in another format")
    await visitor.find("dialog code").wait_for()
    await look("show as")
    await visitor.page.keyboard.press("Escape")
    await visitor.page.set_viewport_size({"width": 360, "height": 740})
    await look("phone")
    await visitor.page.goto(f"{site.base_url}/#/costs")
    await visitor.find(".plot canvas").wait_for()
    await look("costs")
    assert found == []
