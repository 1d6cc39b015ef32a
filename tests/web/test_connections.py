"""The page while connections break, servers restart and other tabs write."""

from __future__ import annotations

import asyncio

from tests.web.conftest import Visitor
from tests.web.site import Site


async def test_a_lost_connection_is_told_and_what_was_missed_comes_once(visitor: Visitor, site: Site) -> None:
    visitor.expected.append("ERR_CONNECTION|ERR_EMPTY|ERR_INCOMPLETE|ERR_SOCKET|fetching the script")
    text = " ".join(f"word{number}" for number in range(80))
    site.fakes["anthropic"].say(text)
    pace = site.paces["anthropic"]
    pace.hold(15)
    await visitor.open()
    await visitor.ask("Many words")
    await visitor.sees("word1 ")
    await site.wire.cut()
    await visitor.sees("The connection is lost.")
    button = await visitor.page.get_by_role("button", name="Reconnect now").element_handle()
    assert button is not None
    pace.release()
    await asyncio.sleep(0.3)  # the run goes on, and nobody listens
    await site.wire.mend()
    await button.evaluate("button => button.click()")  # the page may reconnect by itself first, and remove it
    await visitor.sees("word79")
    await visitor.settled()
    assert await visitor.find(".answer .prose").inner_text() == text


async def test_after_the_server_was_restarted_the_page_goes_on(visitor: Visitor, site: Site) -> None:
    visitor.expected.append("ERR_CONNECTION|ERR_EMPTY|ERR_INCOMPLETE|ERR_SOCKET|fetching the script")
    site.fakes["anthropic"].say(" ".join(f"word{number}" for number in range(80)))
    pace = site.paces["anthropic"]
    pace.hold(15)
    await visitor.open()
    await visitor.ask("Many words")
    await visitor.sees("word1 ")
    await site.wire.cut()
    await site.stop()
    await visitor.sees("The connection is lost.")
    seen = await visitor.find("#m-live .prose").inner_text()
    pace.release()
    await site.start()
    await site.wire.mend()
    await visitor.sees("The server was stopped during this answer.")
    await visitor.settled()
    kept = await visitor.find(".answer .prose").inner_text()
    assert kept.startswith(seen)
    assert kept.count("word1 ") == 1
    site.fakes["anthropic"].say("Here again.")
    await visitor.answered("Are you back?", "Here again.")
    assert await visitor.find(".banner").count() == 0


async def test_a_page_that_is_loaded_while_an_answer_arrives_shows_it_whole(visitor: Visitor, site: Site) -> None:
    text = " ".join(f"word{number}" for number in range(40))
    site.fakes["anthropic"].say(text, thinking="Hm.")
    pace = site.paces["anthropic"]
    pace.hold(14)
    await visitor.open()
    await visitor.ask("Many words")
    await visitor.sees("word1 ")
    await visitor.page.reload()
    await visitor.find(".messages[aria-busy=true]", "word1 ").wait_for()
    pace.release()
    await visitor.sees("word39")
    await visitor.settled()
    assert await visitor.find(".answer > .prose").inner_text() == text


async def test_what_was_said_in_another_tab_is_there_at_once(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].say("Said here.")
    await visitor.answered("Here", "Said here.")
    other = Visitor(visitor.context, await visitor.context.new_page(), site)
    await other.page.goto(visitor.page.url)
    await other.sees("Said here.")
    site.fakes["anthropic"].say("Said there.")
    await other.answered("There", "Said there.")
    await visitor.sees("Said there.")
    await visitor.settled()
    assert await visitor.find(".question .plain").all_inner_texts() == ["Here", "There"]
