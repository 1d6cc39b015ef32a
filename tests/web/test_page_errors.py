"""Tests of errors on the page: their text, the offered actions and the preserved input."""

from __future__ import annotations

from tests.fake_providers import text_part
from tests.web.conftest import Visitor
from tests.web.content import make_image
from tests.web.site import Site


async def test_failed_answer_keeps_reason_and_is_retried_in_place(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].fail(429, "slow down")
    await visitor.open()
    await visitor.ask("Hello?")
    await visitor.find(".banner.bad", "The rate limit of the provider is exceeded.").wait_for()
    assert "slow down" in await visitor.find(".banner .details").inner_text()
    await visitor.page.reload()
    await visitor.find(".banner.bad", "The rate limit of the provider is exceeded.").wait_for()
    await visitor.find(".answer .unfinished", "slow down").wait_for()
    site.fakes["anthropic"].reply("Here I am.")
    await visitor.press("Retry")
    await visitor.wait_for_text("Here I am.")
    await visitor.wait_until_idle()
    assert await visitor.find(".question").count() == 1
    assert await visitor.find(".banner.bad").count() == 0
    assert await visitor.find(".answer .unfinished", "slow down").count() == 1


async def test_second_tab_follows_running_answer_and_stops_it(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply("First.")
    await visitor.open()
    await visitor.ask_and_wait("One", "First.")
    other = await visitor.context.new_page()
    await other.goto(visitor.page.url)
    await other.get_by_text("First.").last.wait_for()
    site.fakes["anthropic"].reply("one two three four five six seven eight nine ten " * 5)
    site.paces["anthropic"].hold(12)
    await visitor.ask("Count")
    await other.locator(".question", has_text="Count").wait_for()
    await other.locator("#m-live").wait_for()
    await other.get_by_role("button", name="Stop", exact=True).click()
    for page in (other, visitor.page):
        await page.get_by_text("This answer was stopped.").wait_for()
    # The provider reports one token at the start. The received tokens are estimated.
    receipt = visitor.find(".receipt").last
    await receipt.get_by_text("about").wait_for()
    assert "→ 1 tokens" not in await receipt.inner_text()
    site.paces["anthropic"].release()
    await other.close()


async def test_image_error_names_page_controls_and_note_replaces_image(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append("422|409")
    await visitor.open()
    await visitor.page.set_input_files("input[multiple]", [make_image(60)])
    await visitor.find(".upload:not(.sending)").wait_for()
    site.fakes["anthropic"].reply("A square.")
    await visitor.ask_and_wait("What is it?", "A square.")
    assert await visitor.find(".answer .who").get_attribute("title") == "The default model"
    await visitor.ask("@gemini:blind And now?")
    banner = visitor.find(".banner.bad", "This model cannot read the images of the conversation.")
    await banner.wait_for()
    for term in ("/model", "_default", "policy '", "dragoman "):
        assert term not in await banner.inner_text()
    await visitor.press("Switch the model")
    await visitor.find("button.model", "blind").click()
    await visitor.find("dialog .banner.bad", "This model cannot read the images").wait_for()
    await visitor.find("dialog select").select_option("placeholder")
    await visitor.press("Swap")
    await visitor.find(".model-button", "blind").wait_for()
    assert await banner.count() == 0
    site.fakes["gemini"].reply("I see a note.")
    await visitor.write("")
    await visitor.ask_and_wait("And now?", "I see a note.")


async def test_text_file_keeps_name_and_type_and_size_is_readable(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append("413")
    await visitor.open()
    large = {"name": "large.txt", "mimeType": "text/plain", "buffer": b"x" * 1_200_000}
    notes = {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"# Notes\n"}
    await visitor.page.set_input_files("input[multiple]", [notes, large])
    await visitor.find(".upload.failed", "MB").wait_for()
    site.fakes["anthropic"].reply("Short notes.")
    await visitor.ask_and_wait("Read them", "Short notes.")
    await visitor.page.reload()
    await visitor.find(".question .file", "notes.md").wait_for()
    thread = visitor.page.url.rsplit("/", 1)[1]
    rows = await visitor.page.evaluate(
        "fetch(`api/v1/agent/threads/${'" + thread + "'}/messages`).then(answer => answer.json())"
    )
    assert rows["messages"][0]["message"]["metadata"]["user_message_attachments"]["mime_type"] == "text/markdown"


async def test_cost_of_fork_includes_shared_answers(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply("Costly.")
    await visitor.open()
    await visitor.ask_and_wait("Cost?", "Costly.")
    await visitor.find(".answer").hover()
    await visitor.find(".answer").get_by_label("Fork here").click()
    await visitor.find(".titles", "forked from").wait_for()
    await visitor.find(".spent").click()
    await visitor.find("dialog", "1 answer shared with the original: $0.000092").wait_for()


async def test_messages_are_compressed_and_preflight_counts_tools(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].answer_with(text_part("A long answer. " * 500))
    await visitor.open()
    async with visitor.page.expect_response("**/messages?*") as response:
        await visitor.ask_and_wait("Tell me a lot", "A long answer.")
    assert (await (await response.value).all_headers())["content-encoding"] == "gzip"
    await visitor.page.keyboard.press("Control+/")
    await visitor.page.get_by_label("Find a model").fill("gemini-3.8-flash")
    await visitor.page.keyboard.press("Enter")
    plan = await visitor.find("dialog", "Fits the context window").inner_text()
    tools = site.state.agent.tools.definitions
    assert len(tools) == 3
    estimate = int(plan.split("about ")[1].split(" tokens")[0].replace(",", ""))
    assert estimate > 1_200 + 300  # the answer and the schemas of three tools


async def test_skip_link_focuses_content_of_each_page(visitor: Visitor, site: Site) -> None:
    del site
    for path, label, target in (("#/", "the message field", "#words"), ("#/costs", "the content", ".page .scroll")):
        await visitor.open(path)
        await visitor.page.locator(".skip", has_text=label).focus()
        await visitor.page.keyboard.press("Enter")
        await visitor.wait_until(f"document.activeElement.matches('{target}')")
