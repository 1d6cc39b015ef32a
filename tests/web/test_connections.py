"""Tests of the page while connections break, servers restart and other tabs write."""

from __future__ import annotations

import asyncio

from tests.web.conftest import Visitor
from tests.web.site import Site


async def test_lost_connection_is_shown_and_missed_text_arrives_once(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append("ERR_CONNECTION|ERR_EMPTY|ERR_INCOMPLETE|ERR_SOCKET|fetching the script")
    text = " ".join(f"word{number}" for number in range(80))
    site.fakes["anthropic"].reply(text)
    pace = site.paces["anthropic"]
    pace.hold(15)
    await visitor.open()
    await visitor.ask("Many words")
    await visitor.wait_for_text("word1 ")
    await site.wire.cut()
    await visitor.wait_for_text("The connection is lost.")
    button = await visitor.page.get_by_role("button", name="Reconnect now").element_handle()
    assert button is not None
    pace.release()
    await asyncio.sleep(0.3)  # the run continues without a client
    await site.wire.mend()
    await button.evaluate("button => button.click()")  # the page may reconnect first and remove the button
    await visitor.wait_for_text("word79")
    await visitor.wait_until_idle()
    assert await visitor.find(".answer .prose").inner_text() == text


async def test_page_continues_after_server_restart(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append("ERR_CONNECTION|ERR_EMPTY|ERR_INCOMPLETE|ERR_SOCKET|fetching the script")
    site.fakes["anthropic"].reply(" ".join(f"word{number}" for number in range(80)))
    pace = site.paces["anthropic"]
    pace.hold(15)
    await visitor.open()
    await visitor.ask("Many words")
    await visitor.wait_for_text("word1 ")
    await site.wire.cut()
    await site.stop()
    await visitor.wait_for_text("The connection is lost.")
    shown = await visitor.find("#m-live .prose").inner_text()
    pace.release()
    await site.start()
    await site.wire.mend()
    await visitor.wait_for_text("The server was stopped during this answer.")
    await visitor.wait_until_idle()
    stored = await visitor.find(".answer .prose").inner_text()
    assert stored.startswith(shown)
    assert stored.count("word1 ") == 1
    site.fakes["anthropic"].reply("Here again.")
    await visitor.ask_and_wait("Are you back?", "Here again.")
    assert await visitor.find(".banner").count() == 0


async def test_page_loaded_during_answer_shows_complete_answer(visitor: Visitor, site: Site) -> None:
    text = " ".join(f"word{number}" for number in range(40))
    site.fakes["anthropic"].reply(text, thinking="Hm.")
    pace = site.paces["anthropic"]
    pace.hold(14)
    await visitor.open()
    await visitor.ask("Many words")
    await visitor.wait_for_text("word1 ")
    await visitor.page.reload()
    await visitor.find(".messages[aria-busy=true]", "word1 ").wait_for()
    pace.release()
    await visitor.wait_for_text("word39")
    await visitor.wait_until_idle()
    assert await visitor.find(".answer > .prose").inner_text() == text


async def test_messages_of_another_tab_appear_immediately(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].reply("Said here.")
    await visitor.ask_and_wait("Here", "Said here.")
    other = Visitor(visitor.context, await visitor.context.new_page(), site)
    await other.page.goto(visitor.page.url)
    await other.wait_for_text("Said here.")
    site.fakes["anthropic"].reply("Said there.")
    await other.ask_and_wait("There", "Said there.")
    await visitor.wait_for_text("Said there.")
    await visitor.wait_until_idle()
    assert await visitor.find(".question .plain").all_inner_texts() == ["Here", "There"]
