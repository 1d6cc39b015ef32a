"""Tests of pins, tags, titles, filters, exports and shares on the page."""

from __future__ import annotations

import json
import zipfile

from tests.fake_providers import call_part, text_part
from tests.web.conftest import Visitor
from tests.web.site import Site


async def start_conversation(visitor: Visitor, site: Site, question: str, answer: str = "Yes.") -> None:
    """Start a conversation with one answer."""
    await visitor.open()
    await visitor.page.get_by_role("button", name="New conversation").click()
    site.fakes["anthropic"].reply(answer)
    await visitor.ask_and_wait(question, answer)


async def choose_action(visitor: Visitor, name: str, action: str) -> None:
    """Choose an action from the menu of a conversation."""
    await visitor.find(".thread", name).first.hover()
    await visitor.page.get_by_role("button", name=f"Actions for {name}", exact=True).first.click()
    await visitor.page.get_by_role("menuitem", name=action, exact=True).click()


async def test_conversations_are_pinned_tagged_and_navigated_with_arrows(visitor: Visitor, site: Site) -> None:
    await start_conversation(visitor, site, "Older lantern")
    await start_conversation(visitor, site, "Newer lantern")
    await choose_action(visitor, "Older lantern", "Pin")
    await visitor.find(".era", "Pinned").wait_for()
    assert "Older lantern" in await visitor.find(".list .thread").first.inner_text()
    await choose_action(visitor, "Newer lantern", "Tags")
    await visitor.page.get_by_label("Tags, separated by commas").fill("light, tools ")
    await visitor.press("Save")
    await visitor.find(".tag-bar button", "light").click()
    await visitor.wait_until("document.querySelectorAll('.list .thread').length === 1")
    assert "#light #tools" in await visitor.find(".list .thread").inner_text()
    await visitor.find(".tag-bar button", "light").click()
    await visitor.find(".list .thread > a").first.focus()
    await visitor.page.keyboard.press("ArrowDown")
    await visitor.page.keyboard.press("Enter")
    await visitor.wait_until("document.title.startsWith('Newer lantern')")
    await choose_action(visitor, "Older lantern", "Unpin")
    await visitor.find(".era", "Pinned").wait_for(state="detached")


async def test_search_is_filtered(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].answer_with(text_part("I read quokka."), call_part("read_file", {"path": "README.md"}))
    site.fakes["anthropic"].reply("The quokka is not in it.")
    await visitor.open()
    await visitor.ask_and_wait("Where is the quokka?", "The quokka is not in it.")
    await visitor.page.locator("#search").fill("quokka")
    await visitor.find(".list .hint", "3 messages").wait_for()
    await visitor.find(".list summary", "Filters").click()
    await visitor.page.get_by_label("Written by").select_option("user")
    await visitor.find(".list .hint", "1 message").wait_for()
    await visitor.page.get_by_label("Written by").select_option("")
    await visitor.page.get_by_label("With tools").check()
    await visitor.find(".list .hint", "1 message").wait_for()
    await visitor.page.get_by_label("From", exact=True).fill("2099-01-01")
    await visitor.find(".list .hint", "No results").wait_for()


async def test_conversations_are_exported_singly_and_together(visitor: Visitor, site: Site) -> None:
    await start_conversation(visitor, site, "First export", "One.")
    await start_conversation(visitor, site, "Second export", "Two.")
    await choose_action(visitor, "First export", "Export")
    await visitor.find("dialog select").select_option("openai_chat")
    async with visitor.page.expect_download() as download:
        await visitor.press("Export")
    wire = json.loads((await (await download.value).path()).read_text("utf-8"))
    assert wire["messages"][-1]["content"] == "One."
    await choose_action(visitor, "First export", "Select several")
    await visitor.page.get_by_label("Select Second export").check()
    await visitor.find(".selection-bar button", "Export").click()
    await visitor.wait_for_text("Export 2 conversations")
    async with visitor.page.expect_download() as download:
        await visitor.find("dialog button.primary").click()
    with zipfile.ZipFile(await (await download.value).path()) as archive:
        assert len(archive.namelist()) == 2


async def test_conversation_is_shared_and_link_revoked(visitor: Visitor, site: Site) -> None:
    await start_conversation(visitor, site, "Share me", "Shared answer.")
    await choose_action(visitor, "Share me", "Share")
    await visitor.press("Create a link")
    url = await visitor.page.get_by_label("Link, shown only now").input_value()
    other_page = await visitor.context.new_page()
    await other_page.goto(url)
    await other_page.get_by_text("Shared answer.").wait_for()
    await visitor.press("Revoke the link")
    await visitor.wait_for_text("The link does not work any more")
    response = await visitor.context.request.get(url)
    assert response.status == 404


async def test_model_writes_titles_only_on_request(visitor: Visitor, site: Site) -> None:
    fake = site.fakes["anthropic"]
    before = len(fake.bodies)
    await start_conversation(visitor, site, "Untitled question")
    assert len(fake.bodies) == before + 1  # a paid model writes no title without a request
    fake.reply("A fine title")
    await choose_action(visitor, "Untitled question", "Let the model write a title")
    await visitor.find(".thread .title", "A fine title").wait_for()
    await choose_action(visitor, "A fine title", "Rename")
    await visitor.page.get_by_label("Let the model write the titles of new conversations").check()
    await visitor.press("Cancel")
    await visitor.page.get_by_role("button", name="New conversation").click()
    await visitor.find(".welcome").wait_for()
    fake.reply("An answer.")
    fake.reply("An automatic title")
    await visitor.ask("Another question")
    await visitor.find(".thread .title", "An automatic title").wait_for()
