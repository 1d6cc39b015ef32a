"""Tests of the page in a browser: conversations, images, models, keyboard and themes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from dragoman.server.auth import local_access, principal
from tests.fake_providers import call_part, text_part, thinking_part
from tests.web.conftest import Visitor, open_visitor
from tests.web.content import make_image, request_write
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


# --- conversations ---------------------------------------------------------------------------------------------------


async def test_first_answer_is_streamed_with_receipt(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply(MARKDOWN, thinking="It is short.")
    pace = site.paces["anthropic"]
    pace.hold(12)
    await visitor.open()
    await visitor.find(".suggestions button").first.wait_for()
    await visitor.ask("What is this?")
    await visitor.find("#m-live").wait_for()
    assert await visitor.find(".messages").get_attribute("aria-busy") == "true"
    pace.release()
    await visitor.wait_for_text("1.0")
    await visitor.wait_until_idle()
    assert await visitor.find(".answer strong").inner_text() == "timer"
    assert await visitor.find(".answer .hl-string").inner_text() == '"on"'
    assert await visitor.find(".answer td").last.get_attribute("align") == "right"
    assert re.fullmatch(r"11 → 7 tokens\s*\$0\.000092\s*\d.*", await visitor.find(".receipt").inner_text(), re.DOTALL)
    assert not await visitor.find(".thinking .prose").is_visible()
    await visitor.find(".thinking summary").click()
    assert await visitor.find(".thinking .prose").inner_text() == "It is short."
    assert await visitor.find(".thread.current .title").inner_text() == "What is this?"


async def test_another_local_user_opens_page_with_token(
    browser: Browser, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (local_access, principal):  # with tools, every user then needs the token
        monkeypatch.setattr(module, "can_find_users", lambda: False)
    visitor = await open_visitor(browser, site)  # a connection of another visitor is already assigned to its user
    site.fakes["anthropic"].clear_script()
    site.fakes["anthropic"].reply("Welcome.")
    await visitor.open(f"?token={site.state.token.text}#/")
    await visitor.ask_and_wait("May I?", "Welcome.")
    assert "token" not in visitor.page.url
    await visitor.context.close()  # before the patch ends
    assert visitor.errors == []


async def test_code_is_copied(visitor: Visitor, site: Site) -> None:
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    site.fakes["anthropic"].reply(MARKDOWN)
    await visitor.open()
    await visitor.ask_and_wait("Show me code", "1.0")
    await visitor.find("figure.code .copy").click()
    await visitor.wait_for_text("Copied")
    assert await visitor.page.evaluate("navigator.clipboard.readText()") == 'print("on")  # and off'


async def test_model_output_runs_no_script_and_loads_no_resource(visitor: Visitor, site: Site) -> None:
    urls: list[str] = []
    visitor.listen("request", lambda request: urls.append(request.url))
    site.fakes["anthropic"].reply(
        "<script>window.bad=1</script> <img src=x onerror='window.bad=2'>\n\n[a](javascript:window.bad=3) "
        "![b](https://example.com/b.png) <style>body{display:none}</style> <a href='//example.com' id='app'>c</a>\n\n"
        '<iframe srcdoc="<script>parent.bad=4</script>"></iframe>\n\n| <b onclick="bad=5">x</b> |\n|---|\n| y |\n\nEnd.'
    )
    await visitor.open()
    await visitor.ask_and_wait("Harm me", "End.")
    assert await visitor.page.evaluate("window.bad") is None
    assert await visitor.find(".answer img, .answer script, .answer style, .answer iframe, .answer b").count() == 0
    assert await visitor.find(".answer a").evaluate_all("all => all.map(one => one.href)") == [
        "https://example.com/b.png"
    ]
    assert [url for url in urls if not url.startswith(site.base_url)] == []


async def test_answer_is_stopped(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply("one two three four five six seven eight nine ten " * 5)
    site.paces["anthropic"].hold(5)
    await visitor.open()
    await visitor.ask("Count")
    await visitor.wait_for_text("one two")
    await visitor.page.keyboard.press("Escape")
    await visitor.wait_for_text("This answer was stopped.")
    await visitor.wait_until_idle()
    site.paces["anthropic"].release()
    site.fakes["anthropic"].reply("I am here.")
    await visitor.ask_and_wait("Still there?", "I am here.")


async def test_failure_is_shown_with_advice(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append("ERR_CONNECTION|ERR_EMPTY|422|fetching the script")
    await visitor.open()
    await visitor.ask("@nobody-knows-this-model hello")
    await visitor.find(".banner.bad").wait_for()
    site.fakes["anthropic"].fail(429, "slow down")
    await visitor.write("")
    await visitor.ask("Hello?")
    await visitor.wait_for_text("The rate limit of the provider is exceeded.")


# --- images ----------------------------------------------------------------------------------------------------------


async def test_picked_pasted_and_dropped_images_reach_model(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.set_input_files("input[multiple]", [make_image(10), make_image(20)])
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
            [kind, list(make_image(30 if kind == "paste" else 40)["buffer"])],
        )
    await visitor.wait_until("document.querySelectorAll('.upload:not(.sending) img').length === 4")
    site.fakes["anthropic"].reply("Four squares.")
    before = len(site.fakes["anthropic"].bodies)
    await visitor.ask_and_wait("What do you see?", "Four squares.")
    (body,) = site.fakes["anthropic"].bodies[before:]
    assert [part["type"] for part in body["messages"][-1]["content"]].count("image") == 4
    await visitor.page.reload()
    await visitor.wait_until(
        "[...document.querySelectorAll('.question img')].filter(one => one.naturalWidth === 8).length === 4"
    )


async def test_rejected_file_shows_reason_and_does_not_block_sending(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append("415|422")
    await visitor.open()
    svg = {"name": "a.svg", "mimeType": "image/svg+xml", "buffer": b"<svg xmlns='http://www.w3.org/2000/svg'/>"}
    await visitor.page.set_input_files("input[multiple]", [svg])
    await visitor.find(".upload.failed", "is not an accepted type").wait_for()
    site.fakes["anthropic"].reply("Without it.")
    await visitor.ask_and_wait("Go on", "Without it.")


# --- models ----------------------------------------------------------------------------------------------------------


async def test_swap_is_previewed_before_confirmation(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply("Thought through.", thinking="Hm.")
    await visitor.open()
    await visitor.ask_and_wait("Think", "Thought through.")
    await visitor.page.keyboard.press("Control+/")
    await visitor.page.get_by_label("Find a model").fill("gemini-3.8-flash")
    await visitor.page.keyboard.press("Enter")
    await visitor.find("dialog", "2 blocks unchanged, 1 converted or omitted").wait_for()
    assert "thinking omitted" in await visitor.find(".losses").inner_text()
    await visitor.press("Swap")
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    site.fakes["gemini"].reply("I go on.")
    await visitor.ask_and_wait("Go on", "I go on.")
    assert await visitor.find(".answer .who").last.inner_text() == "gemini-3.8-flash"
    assert "Hm." not in json.dumps(site.fakes["gemini"].bodies[-1])


async def test_swap_that_loses_image_is_disabled(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.set_input_files("input[multiple]", [make_image(50)])
    await visitor.find(".upload:not(.sending)").wait_for()
    site.fakes["anthropic"].reply("A square.")
    await visitor.ask_and_wait("What is it?", "A square.")
    await visitor.find(".model-button").click()
    await visitor.find("button.model", "blind").click()
    await visitor.find("dialog .banner.bad").wait_for()
    assert await visitor.page.get_by_role("button", name="Swap", exact=True).is_disabled()


async def test_model_is_chosen_before_first_message(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.find(".model-button").click()
    await visitor.find("button.model", "gemini-3.8-flash").first.click()
    site.fakes["gemini"].reply("At your service.")
    await visitor.ask_and_wait("Hello", "At your service.")
    await visitor.page.reload()
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()


# --- input, themes and keyboard------------------------------------------------------------------------------------------


async def test_enter_sends_nothing_during_ime_composition(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.locator("#words").focus()
    keyboard = await visitor.context.new_cdp_session(visitor.page)
    before = len(site.fakes["anthropic"].bodies)
    await keyboard.send("Input.imeSetComposition", {"text": "ni hao", "selectionStart": 6, "selectionEnd": 6})
    for kind in ("rawKeyDown", "keyUp"):
        event = {"type": kind, "key": "Process", "code": "Enter", "windowsVirtualKeyCode": 229}
        await keyboard.send("Input.dispatchKeyEvent", event)
    await visitor.page.evaluate(
        "document.querySelector('#words').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true }))"
    )
    await keyboard.send("Input.insertText", {"text": "你好世界"})
    assert await visitor.find("#words").input_value() == "你好世界"
    assert await visitor.find(".question").count() == 0
    site.fakes["anthropic"].reply("很高兴")
    await visitor.page.keyboard.press("Enter")
    await visitor.wait_for_text("很高兴")
    await visitor.wait_until_idle()
    (body,) = site.fakes["anthropic"].bodies[before:]
    assert body["messages"][-1]["content"] in ("你好世界", [{"type": "text", "text": "你好世界"}])


async def test_theme_follows_system_until_chosen(visitor: Visitor, site: Site) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    await visitor.page.emulate_media(color_scheme="dark")
    await visitor.open()
    dark = await visitor.page.evaluate(background)
    await visitor.press("Theme: system")
    light = await visitor.page.evaluate(background)
    assert dark != light
    await visitor.page.reload()
    await visitor.find("#words").wait_for()
    assert await visitor.page.evaluate(background) == light
    await visitor.press("Theme: light")
    assert await visitor.page.evaluate(background) == dark


async def test_phone_shows_list_as_drawer_without_overflow(visitor: Visitor, site: Site) -> None:
    await visitor.page.set_viewport_size({"width": 360, "height": 740})
    site.fakes["anthropic"].answer_with(
        thinking_part("Hm."), text_part(MARKDOWN + "\n" + "long" * 100), call_part("read_file", {"path": "README.md"})
    )
    site.fakes["anthropic"].reply("Small enough.")
    await visitor.open()
    await visitor.ask_and_wait("Does it fit?", "Small enough.")
    assert await visitor.page.evaluate("document.documentElement.scrollWidth") == 360
    assert not await visitor.find("#search").is_visible()
    await visitor.find(".head").get_by_label("Conversations").click()
    await visitor.find("#search").wait_for()
    await visitor.find(".thread", "Does it fit?").first.locator("a").click()
    await visitor.find("#search").wait_for(state="hidden")
    await visitor.wait_for_text("Small enough.")


async def test_keyboard_shortcuts_are_listed(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.locator("h1").click()
    await visitor.page.evaluate("document.activeElement.blur()")
    await visitor.page.keyboard.press("?")
    await visitor.find("dialog", "Search all conversations").wait_for()
    await visitor.page.keyboard.press("Escape")
    await visitor.find("dialog").wait_for(state="detached")
    await visitor.page.keyboard.press("/")
    await visitor.wait_until("document.activeElement.id === 'search'")


TRANSITIONS_END = """() => Promise.allSettled(document.getAnimations()
    .filter(each => Number.isFinite(each.effect.getComputedTiming().endTime)).map(each => each.finished))"""


async def test_axe_finds_no_serious_violation(visitor: Visitor, site: Site, axe: str) -> None:
    violations: list[str] = []

    async def run_axe(state: str) -> None:
        await visitor.page.evaluate(TRANSITIONS_END)
        result = await visitor.page.evaluate("() => axe.run({ resultTypes: ['violations'] })")
        for violation in result["violations"]:
            if violation["impact"] in ("serious", "critical"):
                violations.append(
                    f"{state}: {violation['id']} {[node['html'][:120] for node in violation['nodes'][:3]]}"
                )

    await visitor.open()
    await visitor.page.evaluate(axe)
    await run_axe("empty")
    request_write(site, "x\n")
    await visitor.ask("What is it?")
    await visitor.find(".approval").wait_for()
    await run_axe("approval")
    site.fakes["anthropic"].reply(MARKDOWN, thinking="Hm.")
    await visitor.press("Allow")
    await visitor.wait_for_text("1.0")
    await visitor.wait_until_idle()
    await visitor.find(".call summary").first.click()
    for theme in ("light", "dark"):
        await visitor.page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        await run_axe(theme)
    await visitor.find(".model-button").click()
    await run_axe("models")
    await visitor.page.keyboard.press("Escape")
    await visitor.press("Show in another format")
    await visitor.find("dialog code").wait_for()
    await run_axe("show as")
    await visitor.page.keyboard.press("Escape")
    await visitor.page.set_viewport_size({"width": 360, "height": 740})
    await run_axe("phone")
    await visitor.page.goto(f"{site.base_url}/#/costs")
    await visitor.find(".plot canvas").wait_for()
    await run_axe("costs")
    assert violations == []
