"""Tests of branches, the list of conversations, search and costs on the page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from dragoman.message import Message, MessageMetadata, Role, TextBlock
from tests.web.conftest import Visitor
from tests.web.content import make_image
from tests.web.site import Site


def make_user_message(text: str) -> Message:
    return Message("", "", Role.USER, (TextBlock(text),), MessageMetadata(), datetime(2026, 3, 13, tzinfo=UTC))


async def test_fork_at_message_keeps_original(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    for number in ("first", "second"):
        site.fakes["anthropic"].reply(f"The {number} answer.")
        await visitor.ask_and_wait(f"The {number} question", f"The {number} answer.")
    await visitor.find(".answer").first.hover()
    await visitor.find(".answer").first.get_by_label("Fork here").click()
    await visitor.find(".titles", "forked from The first question").wait_for()
    await visitor.wait_for_text("The first answer.")
    assert await visitor.find(".answer").count() == 1
    site.fakes["anthropic"].reply("Another way.")
    await visitor.ask_and_wait("Differently", "Another way.")
    await visitor.find(".titles a").click()
    await visitor.wait_for_text("The second answer.")
    assert await visitor.find(".messages", "Another way.").count() == 0


async def thread_ids(site: Site) -> list[str]:
    """Return the ids of all conversations, the last changed first."""
    return [session.id for session in await site.state.store.list_sessions(limit=100)]


async def choose_gemini(visitor: Visitor, site: Site) -> None:
    await visitor.find(".model-button").click()
    await visitor.find("button.model", "gemini-3.8-flash").first.click()


async def test_edited_question_becomes_version_when_sent(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    for number in ("one", "two"):
        site.fakes["anthropic"].reply(f"Said {number}.")
        await visitor.ask_and_wait(f"Say {number}", f"Said {number}.")
    before = await thread_ids(site)
    await visitor.page.keyboard.press("ArrowUp")
    await visitor.wait_until("document.querySelector('#words').value === 'Say two'")
    await visitor.find(".answer.replaced", "Said two.").wait_for()
    assert await thread_ids(site) == before  # nothing was sent, so there is no fork
    await visitor.page.keyboard.press("Escape")
    assert await visitor.find(".replaced").count() == 0
    assert await visitor.find("#words").input_value() == ""
    await visitor.page.keyboard.press("ArrowUp")
    await visitor.find(".answer.replaced").wait_for()
    site.fakes["anthropic"].reply("Said three.")
    await visitor.ask_and_wait("Say three", "Said three.")
    assert await visitor.find(".question .plain").all_inner_texts() == ["Say one", "Say three"]
    await visitor.find(".versions", "2/2").wait_for()
    await visitor.press("Previous version")
    await visitor.wait_for_text("Said two.")
    await visitor.find(".versions", "1/2").wait_for()


async def test_edited_first_question_keeps_model_images_and_origin(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await choose_gemini(visitor, site)
    await visitor.page.set_input_files("input[multiple]", [make_image(60)])
    await visitor.find(".upload:not(.sending)").wait_for()
    site.fakes["gemini"].reply("A square.")
    await visitor.ask_and_wait("What is it?", "A square.")
    await visitor.find(".question").hover()
    await visitor.find(".question").get_by_label("Edit").click()
    await visitor.find(".upload img").wait_for()
    before = len(site.fakes["gemini"].bodies)
    site.fakes["gemini"].reply("Still a square.")
    await visitor.ask_and_wait("And now?", "Still a square.")
    (body,) = site.fakes["gemini"].bodies[before:]
    assert "inlineData" in json.dumps(body)
    await visitor.find(".titles", "forked from What is it?").wait_for()
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    assert await visitor.find(".question .plain").all_inner_texts() == ["And now?"]


async def test_answer_is_regenerated_in_place_also_with_another_model(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].reply("First try.")
    await visitor.ask_and_wait("Try", "First try.")
    site.fakes["anthropic"].reply("Second try.")
    await visitor.press("Regenerate")
    await visitor.wait_for_text("Second try.")
    await visitor.wait_until_idle()
    await visitor.find(".versions", "2/2").wait_for()
    site.fakes["gemini"].reply("Third try.")
    await visitor.press("Regenerate with another model")
    await visitor.find("button.model", "gemini-3.8-flash").first.click()
    await visitor.wait_for_text("Third try.")
    await visitor.wait_until_idle()
    assert await visitor.find(".answer .who").inner_text() == "gemini-3.8-flash"
    assert await visitor.find(".question .plain").all_inner_texts() == ["Try"]
    await visitor.find(".versions", "3/3").wait_for()
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    await visitor.press("Previous version")
    await visitor.wait_for_text("Second try.")
    await visitor.find(".model-button", "sonnet").wait_for()


async def test_rejected_question_in_branch_leaves_no_fork(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append("422")
    await visitor.open()
    site.fakes["anthropic"].reply("Yes.")
    await visitor.ask_and_wait("Are you there?", "Yes.")
    before = await thread_ids(site)
    await visitor.page.keyboard.press("ArrowUp")
    await visitor.find(".answer.replaced").wait_for()
    await visitor.ask("@nobody-knows-this-model hello")
    await visitor.find(".banner.bad").wait_for()
    await visitor.wait_until("document.querySelector('#words').value === '@nobody-knows-this-model hello'")
    assert await thread_ids(site) == before
    await visitor.wait_for_text("Yes.")


async def test_unlisted_conversation_shows_its_model_and_title(visitor: Visitor, site: Site) -> None:
    store = site.state.store
    old = await store.create_session(title="An old one", active_model="gemini:gemini-3.8-flash", user_id="local")
    fork = await store.fork(old.id, 0, title="Its fork")
    for number in range(60):
        await store.create_session(title=f"Newer {number}", user_id="local")
    await visitor.open(f"#/thread/{fork.id}")
    await visitor.find(".titles h1", "Its fork").wait_for()
    await visitor.find(".titles", "forked from An old one").wait_for()
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    assert await visitor.page.title() == "Its fork · Dragoman"
    assert await visitor.find(".thread", "Its fork").count() == 0
    await visitor.find(".list button", "Show more").click()
    await visitor.find(".thread", "Its fork").wait_for()
    listed = await visitor.find(".thread").count()
    site.fakes["gemini"].reply("Here.")
    await visitor.ask_and_wait("Are you there?", "Here.")
    await visitor.wait_until("document.querySelector('.thread .title').textContent === 'Its fork'")
    assert await visitor.find(".thread").count() == listed
    for session_id in await thread_ids(site):
        await store.delete_session(session_id)


async def test_any_message_of_long_conversation_loads_with_few_requests(visitor: Visitor, site: Site) -> None:
    store = site.state.store
    session = await store.create_session(title="Long", user_id="local")
    for first in range(1, 3001, 500):
        texts = [f"message {number}\n" * 3 for number in range(first, first + 500)]
        await store.append(
            session.id,
            [make_user_message("needle 1234" if text.startswith("message 1234\n") else text) for text in texts],
        )
    await visitor.open()
    requests: list[str] = []
    visitor.listen("request", lambda request: requests.append(request.url))
    await visitor.page.keyboard.press("Control+k")
    await visitor.page.keyboard.type("needle")
    await visitor.find(".thread", "needle").locator("a").click()
    await visitor.find(".highlight", "needle 1234").wait_for()
    await visitor.page.wait_for_load_state("networkidle")
    assert len([url for url in requests if "/messages" in url]) <= 3
    assert [url for url in requests if "/events" in url] == []  # no run belongs to a question in the middle
    for _ in range(5):  # scrolling back loads more messages, and the document stays small
        first = await visitor.find("article").first.inner_text()
        await visitor.page.evaluate("document.querySelector('.scroll').scrollTop = 0")
        await visitor.wait_until(f"document.querySelector('article').innerText !== {json.dumps(first)}")
    assert await visitor.find("article").count() <= 150
    await visitor.find("article", re.compile("^message 1000\\b")).first.wait_for(state="attached")
    await visitor.find(".to-end").click()
    await visitor.find("article", "message 3000").wait_for()
    site.fakes["anthropic"].reply("At the end.")
    await visitor.ask_and_wait("Where are we?", "At the end.")
    await store.delete_session(session.id)


async def test_draft_and_chosen_model_survive_reload(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await choose_gemini(visitor, site)
    await visitor.write("Half a thou")
    await visitor.page.reload()
    await visitor.wait_until("document.querySelector('#words').value === 'Half a thou'")
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    site.fakes["gemini"].reply("A whole one.")
    await visitor.ask_and_wait("Half a thought", "A whole one.")
    await visitor.page.reload()
    await visitor.wait_for_text("A whole one.")
    assert await visitor.find("#words").input_value() == ""


async def test_long_question_is_collapsed(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].reply("Read.")
    await visitor.ask_and_wait("\n".join(f"line {number}" for number in range(600)), "Read.")
    assert "line 599" not in await visitor.find(".question .plain").inner_text()
    await visitor.press("Show all 600 lines")
    assert "line 599" in await visitor.find(".question .plain").inner_text()


async def test_conversation_is_renamed_and_deleted(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].reply("Yes.")
    await visitor.ask_and_wait("Will you be renamed?", "Yes.")
    row = visitor.find(".thread", "Will you be renamed?")
    await row.hover()
    await row.get_by_role("button").click()
    await visitor.page.get_by_role("menuitem", name="Rename").click()
    await visitor.page.get_by_label("Title", exact=True).fill("Renamed 😀")
    await visitor.page.keyboard.press("Enter")
    row = visitor.find(".thread", "Renamed 😀")
    await row.hover()
    await row.get_by_role("button").click()
    await visitor.page.get_by_role("menuitem", name="Delete").click()
    await visitor.page.get_by_role("button", name="Delete", exact=True).click()
    await row.wait_for(state="detached")
    await visitor.find(".welcome").wait_for()


async def test_search_shows_matches_and_opens_them(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].reply("The heron 😀 stands in the reeds.")
    await visitor.ask_and_wait("Tell me of birds", "The heron")
    for _ in range(3):
        site.fakes["anthropic"].reply("Something long.\n\n" * 12)
        await visitor.ask_and_wait("And something long", "Something long.")
    await visitor.page.keyboard.press("Control+k")
    await visitor.page.keyboard.type("reeds")
    await visitor.find("mark").wait_for()
    assert await visitor.find("mark").all_inner_texts() == ["reeds"]
    await visitor.find(".thread", "reeds").locator("a").click()
    await visitor.wait_until(
        "(() => { const found = document.querySelector('.highlight')?.getBoundingClientRect();"
        " return found && found.top > 0 && found.bottom < innerHeight; })()"
    )


async def test_message_is_shown_in_any_dialect(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply("Shown.", thinking="Hidden.")
    await visitor.open()
    await visitor.ask_and_wait("Show yourself", "Shown.")
    await visitor.press("Show in another format")
    code = visitor.find("dialog code")
    await visitor.find("dialog code", '"schema_version"').wait_for()
    await visitor.page.locator("dialog select").select_option("gemini")
    await visitor.find("dialog code", '"contents"').wait_for()
    assert json.loads(await code.inner_text())["contents"][0]["parts"][-1] == {"text": "Shown."}
    await visitor.page.keyboard.press("Escape")
    await visitor.find("dialog").wait_for(state="detached")


async def test_costs_are_plotted_by_day_and_listed_by_model(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply("Not free.")
    await visitor.open()
    await visitor.ask_and_wait("What do you cost?", "Not free.")
    await visitor.find(".spent", "$0.000092").click()
    await visitor.find("dialog table", "claude-sonnet-5-5").wait_for()
    await visitor.page.keyboard.press("Escape")
    await visitor.find(".page-link", "Costs").click()
    await visitor.find(".plot canvas").wait_for()
    assert "claude-sonnet-5-5" in await visitor.find(".page table").first.inner_text()
    await visitor.find(".page-link", "Chat").click()
    await visitor.wait_for_text("Not free.")
