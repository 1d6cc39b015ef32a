"""Tests of rich answers: formulas, diffs, diagrams, HTML, footnotes and images."""

from __future__ import annotations

from playwright.async_api import Request

from tests.web.conftest import Visitor
from tests.web.content import make_image
from tests.web.site import Site

MATH = r"""Euler wrote $e^{i\pi} + 1 = 0$, which costs from $5 to $10:

$$
\int_0^1 \frac{x^2}{\color{red}2}\,dx = \tfrac16
$$

Wrong is $\frac{1$. End of math."""

DIFF = "```diff\n@@ -1,2 +1,2 @@\n-old <b>\n+new <b>\n same\n```\n\nEnd of diff."

DIAGRAM = "```mermaid\nflowchart LR\n  A[Start] --> B{Done?} --> C[The end of a long and wide diagram]\n```\n\n```mermaid\nnot a diagram\n```\n\nEnd of diagrams."

HTML = """```html
<h1>Title</h1>
<script>
  document.title = String(window.origin);
  try { parent.document.title = "broken"; } catch (error) { document.body.append("no parent; "); }
  fetch("https://example.com/").catch(() => document.body.append("no network; "));
  try { localStorage.length } catch (error) { document.body.append("no storage; "); }
</script>
<img src="https://example.com/pixel.png">
```

End of HTML."""

NOTES = "Water is wet[^1].\n\n| " + " | ".join(f"a wide column {n}" for n in range(20)) + " |\n|" + "---|" * 20 + "\n| "
NOTES += (
    " | ".join("value" for _ in range(20))
    + " |\n\n"
    + "Text in between.\n\n" * 60
    + "[^1]: By a *survey*.\n\nEnd of notes."
)


async def test_formulas_render_without_inline_styles_and_load_lazily(visitor: Visitor, site: Site) -> None:
    urls: list[str] = []
    visitor.listen("request", lambda request: urls.append(request.url))
    site.fakes["anthropic"].reply("No formula.")
    await visitor.open()
    await visitor.ask_and_wait("Hello", "No formula.")
    before = len([url for url in urls if "/static/" in url])
    site.fakes["anthropic"].reply(MATH)
    await visitor.ask_and_wait("Formulas, please", "End of math.")
    await visitor.find(".answer .math.display math").wait_for()
    assert await visitor.find(".answer math").count() == 2
    assert "from $5 to $10" in await visitor.find(".answer").last.inner_text()
    assert await visitor.find(".answer math [style]").count() == 0
    assert await visitor.find(".answer math annotation").count() == 0
    assert await visitor.find(".answer .math.wrong").count() == 1
    box = await visitor.find(".answer .math.display math").bounding_box()
    assert box is not None
    assert box["height"] > 30
    assert len([url for url in urls if "/static/" in url]) == before + 1


async def test_diff_is_coloured(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply(DIFF)
    await visitor.open()
    await visitor.ask_and_wait("What changed?", "End of diff.")
    assert await visitor.find(".diff-removed").inner_text() == "-old <b>"
    assert await visitor.find(".diff-added").inner_text() == "+new <b>"
    assert await visitor.find(".diff-hunk").count() == 1


async def test_diagram_renders_in_sandbox_and_invalid_diagram_shows_error(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply(DIAGRAM)
    await visitor.open()
    await visitor.ask_and_wait("Draw it", "End of diagrams.")
    frame = visitor.page.frame_locator('figure:has-text("flowchart") iframe')
    await frame.locator("svg").get_by_text("Start", exact=True).wait_for()
    assert await visitor.find("iframe.preview").first.get_attribute("sandbox") == "allow-scripts"
    await visitor.find(".preview-fault", "The diagram cannot be drawn").wait_for()
    height = "document.querySelector('iframe.preview').clientHeight"
    before = await visitor.page.evaluate(height)
    await visitor.page.set_viewport_size({"width": 390, "height": 500})
    await visitor.wait_until(f"{height} < {before}")
    box = "document.querySelector('.scroll')"
    await visitor.wait_until(f"{box}.scrollTop > 0 && {box}.scrollHeight - {box}.scrollTop - {box}.clientHeight < 2")
    await visitor.page.set_viewport_size({"width": 1280, "height": 860})
    await visitor.wait_until(f"{height} === {before}")
    await visitor.page.emulate_media(color_scheme="dark")  # the diagram follows
    await frame.locator('html[style*="dark"] svg').get_by_text("Start", exact=True).wait_for()
    await visitor.find("figure.previewed [data-preview]").click()
    assert await visitor.find("iframe.preview.mermaid").count() == 0
    assert await visitor.find("figure pre").first.is_visible()


async def test_html_runs_without_origin_network_and_storage(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append(
        "Content Security Policy|Content-Security-Policy|Refused|violates|ERR_FAILED|Blocked"
    )
    urls: list[str] = []

    def on_request(request: Request) -> None:
        urls.append(request.url)

    visitor.listen("request", on_request)
    site.fakes["anthropic"].reply(HTML)
    await visitor.open()
    await visitor.ask_and_wait("A page", "End of HTML.")
    assert await visitor.find("iframe").count() == 0  # only on request
    title = await visitor.page.title()
    await visitor.press("Preview")
    frame = visitor.page.frame_locator("iframe.preview.html")
    await frame.get_by_role("heading", name="Title").wait_for()
    for text in ("no parent;", "no network;", "no storage;"):
        await frame.get_by_text(text).wait_for()
    assert await frame.locator(":root").evaluate("() => document.title") == "null"
    assert await visitor.page.title() == title
    external = [url for url in urls if not url.startswith((site.base_url, "blob:", "data:"))]
    assert [url for url in external if "pixel" not in url and url != "https://example.com/"] == []


async def test_footnotes_wide_tables_copy_and_print(visitor: Visitor, site: Site) -> None:
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    site.fakes["anthropic"].reply(NOTES)
    await visitor.open()
    await visitor.ask_and_wait("Notes", "End of notes.")
    await visitor.page.get_by_role("button", name="Footnote 1").click()
    await visitor.wait_until("document.activeElement.matches('.footnote-text')")
    table = visitor.find(".answer .table")
    assert await table.evaluate("box => box.scrollWidth > box.clientWidth + 100")
    assert await visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await visitor.press("Copy as Markdown")
    await visitor.wait_for_text("Copied")
    assert "[^1]: By a *survey*." in await visitor.page.evaluate("navigator.clipboard.readText()")
    await visitor.page.emulate_media(media="print")
    assert not await visitor.find(".sidebar").is_visible()
    assert not await visitor.find(".composer").is_visible()
    assert await visitor.find(".scroll").evaluate("box => getComputedStyle(box).overflowY") == "visible"


async def test_image_is_enlarged(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.set_input_files("input[type=file]", [make_image(70)])
    await visitor.find(".upload:not(.sending)").wait_for()
    site.fakes["anthropic"].reply("A square.")
    await visitor.ask_and_wait("What is it?", "A square.")
    await visitor.find(".question img").click()
    await visitor.find("dialog.lightbox img").wait_for()
    await visitor.page.keyboard.press("Escape")
    await visitor.find("dialog.lightbox").wait_for(state="detached")
