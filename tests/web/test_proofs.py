"""Tests of the whole page: accessibility with axe, keyboard navigation, and requests to its own server only."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tests.conftest import IS_FULL
from tests.web.conftest import Visitor
from tests.web.site import Site
from tests.web.test_insight import choose_models
from tests.web.test_organise import choose_action, start_conversation

DISPLAYS = (("light", 1280), ("dark", 390), ("dark", 1280))


async def run_axe(visitor: Visitor, state: str, displays: Iterable[tuple[str, int]]) -> list[str]:
    """Return the findings of axe with these colour schemes and widths."""
    violations = []
    for scheme, width in displays:
        await visitor.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        await visitor.page.set_viewport_size({"width": width, "height": 800})
        await visitor.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        result = await visitor.page.evaluate("() => axe.run({ resultTypes: ['violations'] })")
        violations += [
            f"{state}, {scheme}, {width}: {violation['id']} {[node['html'][:120] for node in violation['nodes'][:3]]}"
            for violation in result["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
    await visitor.page.set_viewport_size({"width": 1280, "height": 860})
    return violations


async def test_pages_pass_axe_and_request_no_other_host(visitor: Visitor, site: Site, axe: str) -> None:
    urls: list[str] = []
    visitor.listen("request", lambda request: urls.append(request.url))
    violations: list[str] = []
    await start_conversation(visitor, site, "What is a lantern?", "A lamp.")
    thread = visitor.page.url
    await visitor.page.evaluate(axe)

    next_display = itertools.cycle(DISPLAYS)

    async def check_state(state: str) -> None:
        """Run axe with every display; in the default run with one of them, which alternates between the states."""
        violations.extend(await run_axe(visitor, state, DISPLAYS if IS_FULL else [next(next_display)]))

    await visitor.press("Why this answer?")
    await visitor.find(".waterfall").wait_for()
    await visitor.find(".why summary", "Sent to the provider").click()
    await check_state("why")
    await visitor.page.goto(f"{site.base_url}/#/costs")
    await visitor.find(".costs .figure").wait_for()
    await check_state("costs")
    await visitor.page.goto(thread)
    for action in ("Tags", "Export", "Share"):
        await choose_action(visitor, "What is a lantern?", action)
        await visitor.find("dialog .dialog").wait_for()
        await check_state(action)
        await visitor.page.keyboard.press("Escape")
    await choose_action(visitor, "What is a lantern?", "Select several")
    await check_state("selection")
    await visitor.find(".selection-bar button", "Done").click()
    await visitor.page.locator("#search").fill("lamp")
    await visitor.find(".list summary", "Filters").click()
    await check_state("search")
    await visitor.page.locator("#search").fill("")
    site.fakes["anthropic"].reply("One.")
    site.fakes["gemini"].reply("Two.")
    await visitor.write("Again?")
    await visitor.press("Ask several models")
    await visitor.find("dialog .choices input").first.wait_for()
    await check_state("choose models")
    await choose_models(visitor, "claude-sonnet-5-5", "blind")
    await visitor.wait_for_text("Two.")
    await visitor.wait_for_text("One.")
    await check_state("compare")
    await visitor.page.get_by_role("button", name="New conversation").click()
    await visitor.press("Take the tour (two minutes)")
    await visitor.find(".tour").wait_for()
    await check_state("tour")
    assert not violations, "\n".join(violations)
    assert [url for url in urls if not url.startswith((site.base_url, "data:", "blob:"))] == []


async def press_until(visitor: Visitor, key: str, condition: str, limit: int = 60) -> None:
    """Press a key until a JavaScript condition holds."""
    for _ in range(limit):
        if await visitor.page.evaluate(condition):
            return
        await visitor.page.keyboard.press(key)
    raise AssertionError(f"{limit} times {key}, and still not: {condition}")


def has_focus(label: str) -> str:
    return f"document.activeElement?.getAttribute('aria-label') === {label!r}"


async def test_every_control_is_reachable_by_keyboard(visitor: Visitor, site: Site) -> None:
    keyboard = visitor.page.keyboard
    await visitor.open()
    await visitor.wait_until("document.activeElement.id === 'words'")
    site.fakes["anthropic"].reply("By keyboard.")
    await keyboard.type("Can I do this without a mouse?")
    await keyboard.press("Enter")
    await visitor.wait_for_text("By keyboard.")
    await visitor.wait_until_idle()
    await press_until(visitor, "Shift+Tab", has_focus("Why this answer?"))
    await keyboard.press("Enter")
    await visitor.find(".waterfall").wait_for()
    await press_until(visitor, "Tab", "document.activeElement?.textContent.trim() === 'Back to the answer'")
    await keyboard.press("Enter")
    await visitor.wait_for_text("By keyboard.")
    await keyboard.press("Control+/")
    await visitor.page.get_by_placeholder("Find a model").wait_for()
    await keyboard.type("blind")
    await keyboard.press("Enter")
    await visitor.wait_for_text("Fits the context window")
    await visitor.wait_until("document.activeElement?.textContent === 'Swap'")
    await keyboard.press("Enter")
    await visitor.find(".model-button", "blind").wait_for()
    await keyboard.press("Control+k")
    await visitor.wait_until("document.activeElement.id === 'search'")
    await keyboard.type("mouse")
    await visitor.find(".list mark").first.wait_for()
    await keyboard.press("Escape")
    await press_until(visitor, "Tab", "document.activeElement?.matches('.thread > a')")
    await keyboard.press("ArrowDown")
    await keyboard.press("Home")
    await keyboard.press("Tab")
    await keyboard.press("Enter")
    await visitor.wait_until("document.activeElement?.getAttribute('role') === 'menuitem'")
    await keyboard.press("ArrowDown")
    await keyboard.press("ArrowDown")
    await keyboard.press("ArrowDown")
    await keyboard.press("Enter")
    await visitor.page.get_by_label("Tags, separated by commas").wait_for()
    await keyboard.type("mouseless")
    await keyboard.press("Enter")
    await visitor.find(".tag-bar button", "mouseless").wait_for()
