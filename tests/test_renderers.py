"""Tests of the renderers: Markdown and HTML, with every text escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import renderers
from dragoman.cli.tour import example_conversation
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
)
from dragoman.value import RawJson
from tests import strategies

NOON = datetime(2026, 4, 28, 12, tzinfo=UTC)
HARMFUL = (
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1) 'x')",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "![a](https://elsewhere.example/picture.png)",
    '<https://elsewhere.example/>\n\n```html" onload=alert(1)\n</code></pre><script>\n```',
    "</article></main><iframe src=//elsewhere.example>",
    '"><svg onload=alert(1)>',
    "&lt;script&gt; \x00 \x1b[31m \u202e",
)
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "article", "div", "p", "span", "b", "i"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "small", "details", "summary", "pre", "code", "a", "img", "audio", "video"),
    *("ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "blockquote", "em", "strong", "s", "hr", "br"),
}


class Page(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def message(*blocks: ContentBlock, role: Role = Role.ASSISTANT, **metadata: Any) -> Message:
    return Message("m", "sess_1", role, blocks, MessageMetadata(**metadata), NOON)


def html(*messages: Message) -> str:
    data = (
        renderers.write_head("html", "A page")
        + renderers.write_conversation("html", messages)
        + renderers.write_foot("html")
    )
    return data.decode()


def is_harmless(page: Page) -> bool:
    sources = [value for tag, name, value in page.attributes if name in ("src", "srcset", "data", "action", "style")]
    links = [value for _, name, value in page.attributes if name == "href"]
    return (
        set(page.tags) <= TAGS
        and not any(name.startswith("on") for _, name, _ in page.attributes)
        and all(value.startswith(("data:image/", "data:audio/", "data:video/")) for value in sources)
        and all(value.lower().startswith(("http://", "https://", "mailto:", "#")) for value in links)
    )


@pytest.mark.parametrize("text", HARMFUL)
def test_html_in_a_conversation_is_escaped(text: str) -> None:
    page = html(
        message(TextBlock(text), ThinkingBlock(text), ToolUseBlock("tu_1", text, {text: text})),
        message(InvalidToolUseBlock("tu_2", text, text, text)),
        message(ToolResultBlock("tu_1", (TextBlock(text),)), role=Role.TOOL),
        message(ImageBlock(ImageSource("base64", text), text), ImageBlock(ImageSource("url", text), "image/png")),
        message(TextBlock(text), role=Role.unknown(text), model=text),
    )
    assert is_harmless(Page(page)), page


@given(st.lists(strategies.messages, max_size=3))
def test_every_conversation_is_rendered_as_html_and_markdown(messages: list[Message]) -> None:
    assert is_harmless(Page(html(*messages)))
    assert renderers.write_conversation("markdown", messages).decode().startswith("# ")


def test_page_loads_nothing_and_forbids_scripts() -> None:
    page = Page(html(*example_conversation()))
    (policy,) = [value for _, name, value in page.attributes if value.startswith("default-src")]
    assert policy.startswith("default-src 'none';")
    assert "script-src" not in policy
    assert [tag for tag in page.tags if tag in ("script", "link", "iframe")] == []


def test_page_contains_roles_calls_results_and_cost() -> None:
    page = html(*example_conversation())
    text = " ".join(Page(page).texts)
    for expected in (
        "user",
        "assistant",
        "Summarize README.md",
        "→ read_file",
        "Project Foo",
        "$0.001308",
        "4 messages",
    ):
        assert expected in text
    assert page.count("<article") == 3  # the result is shown with its call
    assert page.index("→ read_file") < page.index("Project Foo") < page.index("The README describes")
    assert '<details class="thinking">' in page


def test_markdown_is_rendered_and_images_are_embedded() -> None:
    image = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
    page = html(message(TextBlock("**bold** and\n\n- a list"), image, role=Role.USER))
    assert "<strong>bold</strong>" in page
    assert "<li>a list</li>" in page
    assert 'src="data:image/png;base64,iVBORw0KGgo="' in page
    linked = html(message(ImageBlock(ImageSource("url", "https://elsewhere.example/a.png"), "image/png")))
    assert "<img" not in linked
    assert "https://elsewhere.example/a.png" in linked


def test_formula_is_preserved_and_an_amount_is_not_a_formula() -> None:
    text = r"It is $e^{i\pi}\,$ for $5 to $10, \(a*b*c\) and \[d_1 < d_2\]." + "\n\n$$\n\\int_0^1 x\\,dx\n$$"
    page = html(message(TextBlock(text)))
    assert r"<code>$e^{i\pi}\,$</code>" in page
    assert r"\int_0^1 x\,dx" in page
    assert "for $5 to $10," in page
    assert r"<code>\(a*b*c\)</code>" in page
    assert r"<code>\[d_1 &lt; d_2\]</code>" in page


def test_long_results_are_folded() -> None:
    long = message(ToolResultBlock("tu_1", (TextBlock("line\n" * 40),)), role=Role.TOOL)
    assert "<details" in html(long)
    assert "<details" not in html(message(ToolResultBlock("tu_1", (TextBlock("line"),)), role=Role.TOOL))


def test_block_without_text_is_rendered_as_a_note() -> None:
    blocks: tuple[ContentBlock, ...] = (
        ThinkingBlock("", "signature"),
        RedactedThinkingBlock("data"),
        OpaqueBlock("anthropic", {"a": 1}),
        UnknownBlock(RawJson(b'{"type":"hologram"}')),
    )
    text = renderers.write_conversation("markdown", [message(*blocks)]).decode()
    assert text.strip().split("\n\n")[-4:] == [
        "*[thinking]*",
        "*[thinking, encrypted by the provider]*",
        "*[anthropic: native block]*",
        "*[hologram: from a newer version]*",
    ]


def test_content_never_closes_a_markdown_fence() -> None:
    text = renderers.write_conversation(
        "markdown", [message(ToolUseBlock("tu_1", "look", {"at": "```\n# not a heading"}))]
    )
    assert b"````json\n" in text
    assert b"\n````\n" in text
