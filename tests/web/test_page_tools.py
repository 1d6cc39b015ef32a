"""Tests of tool approval and questions of the model on the page."""

from __future__ import annotations

import json

from tests.fake_providers import call_part
from tests.web.conftest import Visitor
from tests.web.content import request_write
from tests.web.site import README, Site


async def test_tool_waits_for_approval_also_after_reload(visitor: Visitor, site: Site) -> None:
    readme = site.folder / "work" / "README.md"
    await visitor.open()
    request_write(site, "allowed\n")
    await visitor.ask("Write it")
    await visitor.find(".approval", "write_file").wait_for()
    assert readme.read_text("utf-8") == README
    await visitor.page.reload()
    await visitor.find(".approval .arguments", "allowed").wait_for()
    site.fakes["anthropic"].reply("Written.")
    await visitor.press("Allow")
    await visitor.wait_for_text("Written.")
    await visitor.wait_until_idle()
    assert readme.read_text("utf-8") == "allowed\n"
    assert await visitor.find(".call .state").inner_text() == "done"
    assert await visitor.find(".approval").count() == 0


async def test_arguments_are_edited_before_approval(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    request_write(site, "as the model wants\n")
    await visitor.ask("Write it")
    await visitor.find(".approval button", "Edit").click()
    await visitor.find(".approval textarea").fill("{not JSON")
    await visitor.press("Allow")
    await visitor.wait_for_text("This is not valid JSON.")
    changed = {"path": "README.md", "content": "as I want\n"}
    await visitor.find(".approval textarea").fill(json.dumps(changed))
    site.fakes["anthropic"].reply("Changed.")
    await visitor.press("Allow")
    await visitor.wait_for_text("Changed.")
    await visitor.wait_until_idle()
    assert (site.folder / "work" / "README.md").read_text("utf-8") == "as I want\n"


async def test_tool_is_declined(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    request_write(site, "never\n")
    await visitor.ask("Write it")
    await visitor.find(".approval").wait_for()
    site.fakes["anthropic"].reply("Then not.")
    await visitor.press("Decline")
    await visitor.wait_for_text("Then not.")
    await visitor.wait_until_idle()
    assert (site.folder / "work" / "README.md").read_text("utf-8") == README
    assert await visitor.find(".call .state").inner_text() == "failed"


async def test_question_of_model_is_answered_in_form(visitor: Visitor, site: Site) -> None:
    size = {"id": "size", "prompt": "Which size?", "type": "choice", "choices": ["S", "M"]}
    count = {"id": "count", "prompt": "How many?", "type": "number"}
    gift = {"id": "gift", "prompt": "As a present?", "type": "boolean", "required": False}
    await visitor.open()
    question = {"question": "What shall I order?", "inputs": [size, count, gift]}
    site.fakes["anthropic"].answer_with(call_part("ask_user", question))
    await visitor.ask("Order some")
    await visitor.find(".approval", "What shall I order?").wait_for()
    await visitor.page.reload()
    await visitor.page.get_by_label("How many?").fill("many")
    await visitor.press("Answer")
    await visitor.wait_for_text("Enter a number.")
    await visitor.page.get_by_label("How many?").fill("3")
    await visitor.page.get_by_label("Which size?").select_option("M")
    site.fakes["anthropic"].reply("Ordered.")
    await visitor.press("Answer")
    await visitor.wait_for_text("Ordered.")
    await visitor.wait_until_idle()
    request = json.dumps(site.fakes["anthropic"].bodies[-1])
    assert json.dumps('{"size":"M","count":3}') in request
    assert await visitor.find(".approval").count() == 0


async def test_two_calls_are_decided_in_sequence(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    files = ("a.txt", "b.txt")
    site.fakes["anthropic"].answer_with(*(call_part("write_file", {"path": name, "content": name}) for name in files))
    await visitor.ask("Write both")
    await visitor.find(".approval", "1 of 2").wait_for()
    await visitor.press("Allow")
    await visitor.find(".approval", "2 of 2").wait_for()
    site.fakes["anthropic"].reply("One of them.")
    await visitor.press("Decline")
    await visitor.wait_for_text("One of them.")
    await visitor.wait_until_idle()
    assert [(site.folder / "work" / name).exists() for name in files] == [True, False]
