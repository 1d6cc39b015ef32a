"""The pages of the mail, driven in a browser against the real server, with letters that went through its mail."""

from __future__ import annotations

import asyncio
import json

import pytest

from dragoman.letters import task_result_letter
from tests.web import letters
from tests.web.conftest import Visitor
from tests.web.site import Site

PLACES = (
    "#/mail",
    "#/mail/box/HUMAN",
    "#/mail/box/REVIEWER",
    "#/mail/box/NEWCOMER",
    "#/mail/task/TASK-12",
    "#/mail/dead",
    "#/mail/trends",
)


@pytest.fixture(scope="module")
def worked(runner: asyncio.Runner, site: Site) -> str:
    """The letters are sent; the id of the conversation that one of them came from."""
    runner.run(letters.work(site))
    runner.run(letters.weeks(site))
    return runner.run(letters.behind(site))


async def sent(site: Site, recipient: str, task: str, output: str, **said: object) -> str:
    """A result that somebody sends meanwhile; its id."""
    now = site.doors.store.clock()
    ends = {"sender_id": "PLANNER", "recipient_id": recipient, "task_id": task, "timestamp": now}
    receipt = await site.doors.mail.send(task_result_letter(**ends, output=output, **said))
    return receipt.letter_id


# --- mailboxes -------------------------------------------------------------------------------------------------------


async def test_mailboxes_say_how_much_is_in_them_and_are_found_by_name(visitor: Visitor, worked: str) -> None:
    await visitor.open()
    await visitor.find(".page-link", "Mail").click()
    row = visitor.find(".boxes tbody tr", "REVIEWER")
    await row.wait_for()
    cells = await row.locator("td").all_inner_texts()
    assert cells[2:5] == ["1", "0", "1"]  # held, to be tried again, dead
    assert "2 dead" in await visitor.find(".bar [role=status]").inner_text()  # one names no mailbox
    assert await visitor.find(".boxes tbody tr").first.locator("a").inner_text() == "HUMAN"
    await visitor.find(".mail .filter input").fill("build")
    assert await visitor.find(".boxes tbody th a").all_inner_texts() == ["BUILDER"]
    await visitor.find(".mail .filter input").fill("no such")
    await visitor.sees("No matching mailboxes.")


async def test_letters_are_reached_by_keys_alone(visitor: Visitor, worked: str) -> None:
    await visitor.open("#/mail")
    await visitor.find(".boxes tbody a").first.focus()
    await visitor.page.keyboard.press("Enter")
    await visitor.find("h1", "Mailbox of HUMAN").wait_for()
    await visitor.find(".letters .stretched").first.focus()
    await visitor.page.keyboard.press("Enter")
    await visitor.find("h1", "Letter to HUMAN").wait_for()
    await visitor.until("document.activeElement.id === 'mail-title'")
    await visitor.find(".as-json summary").focus()
    await visitor.page.keyboard.press("Enter")
    await visitor.find(".as-json code", "protocol_version").wait_for()


async def test_what_arrives_is_there_without_asking(visitor: Visitor, site: Site, worked: str) -> None:
    await visitor.open("#/mail/box/WATCHED")
    await visitor.sees("No letters to WATCHED yet")
    await sent(site, "WATCHED", "TASK-30", "It has just arrived")
    await visitor.sees("It has just arrived")
    await sent(site, "WATCHED", "TASK-31", "And another one")
    await visitor.sees("And another one")
    await visitor.find(".mail .filter input").fill("another")
    assert await visitor.find(".letters > li").count() == 1


async def test_an_empty_mailbox_teaches_how_to_fill_it(visitor: Visitor, site: Site) -> None:
    await visitor.open("#/mail/box/NEWCOMER-1")
    await visitor.sees("dragoman mail send letter.json")
    (told,) = [text for text in await visitor.find(".empty-state code").all_inner_texts() if text.startswith("cat")]
    letter = json.loads(told.partition("'END'\n")[2].partition("\nEND")[0])
    assert letter["recipient_id"] == "NEWCOMER-1"
    assert site.base_url in await visitor.find(".empty-state code").last.inner_text()
    await visitor.press("Send this letter")
    await visitor.sees("The first letter has arrived.")


# --- letters ---------------------------------------------------------------------------------------------------------


async def test_a_task_shows_its_letters_in_their_order(visitor: Visitor, site: Site, worked: str) -> None:
    await visitor.open("#/mail/task/TASK-12")
    await visitor.sees(letters.OUTPUT)
    lines = await visitor.find(".task .who").all_inner_texts()
    assert [" ".join(line.split()) for line in lines[:3]] == [
        "BUILDER → TESTER",
        "TESTER → BUILDER",
        "BUILDER → HUMAN",
    ]
    first, second = visitor.find(".task > li").nth(0), visitor.find(".task > li").nth(1)
    assert "success" in await first.inner_text()
    assert "score 0.92" in await first.inner_text()
    assert "dist/lantern-1.3.tar.gz" in await first.inner_text()
    assert "TESTS_FAILED" in await second.inner_text()
    assert await first.locator("a").evaluate_all("all => all.every(one => one.hash.startsWith('#/mail'))")


async def test_a_letter_says_where_it_stands_and_says_it_anew(visitor: Visitor, site: Site) -> None:
    await sent(site, "KEEPER", "TASK-41", "Held for a while", depends_on=["TASK-40"])
    await sent(site, "KEEPER", "TASK-45", "In hand for a while")
    (delivery,) = await site.doors.mail.receive("KEEPER", lease_s=300)
    await visitor.open("#/mail/box/KEEPER")
    await visitor.find(".chip.wait", "held until TASK-40 has succeeded").wait_for()
    await visitor.find(".chip.busy", "leased until").wait_for()
    await sent(site, "NOBODY", "TASK-40", "Done", success=True)
    await delivery.nack("The disk quota is reached", retry_after_s=600)
    await visitor.find(".chip.open", "waiting").wait_for()
    await visitor.find(".chip.wait", "retry at").wait_for()


async def test_a_question_is_answered_and_what_is_sensitive_is_never_shown_again(
    visitor: Visitor, site: Site, worked: str
) -> None:
    await visitor.open("#/mail/task/TASK-12")
    password = visitor.page.get_by_label("Password of the signing key")
    assert await password.get_attribute("type") == "password"
    await visitor.press("Answer BUILDER")
    await visitor.sees("This field is required.")
    await password.fill(letters.SECRET)
    await visitor.page.get_by_label("Where to").select_option(label="preview")
    await visitor.page.get_by_label("Minutes to wait").fill("soon")
    await visitor.press("Answer BUILDER")
    await visitor.sees("Enter a number.")
    await visitor.page.get_by_label("Minutes to wait").fill("10")
    await visitor.press("Answer BUILDER")
    answer = visitor.find(".task > li", "HUMAN → BUILDER")
    await answer.wait_for()
    assert "***" in await answer.inner_text()
    assert "preview" in await answer.inner_text()
    assert await visitor.find(".input-form").count() == 0
    assert letters.SECRET not in await visitor.page.content()
    values = "[...document.querySelectorAll('input')].map((one) => one.value).join()"
    assert letters.SECRET not in await visitor.page.evaluate(values)
    (standing,) = [one for one in await site.doors.mail.thread("TASK-12") if one.letter.sender_id == "HUMAN"]
    assert letters.SECRET not in standing.letter.text
    handed = await site.doors.mail.receive("BUILDER", letter_id=standing.letter.letter_id)
    for before in [] if handed else await site.doors.mail.receive("BUILDER"):  # what stands before it of its task
        await before.ack()
    (delivery,) = handed or await site.doors.mail.receive("BUILDER", letter_id=standing.letter.letter_id)
    opened = await delivery.decrypt()
    assert opened.payload.result.inputs == {"password": letters.SECRET, "channel": "preview", "after_min": 10}


async def test_a_letter_to_people_is_done_when_somebody_has_read_it(visitor: Visitor, site: Site) -> None:
    letter_id = await sent(site, "HUMAN", "TASK-50", "Please read this")
    await visitor.open(f"#/mail/letter/HUMAN/{letter_id}")
    await visitor.press("Mark as done")
    await visitor.find(".chip.done").wait_for()
    (standing,) = await site.doors.mail.letters(recipient_id="HUMAN", letter_id=letter_id)
    assert standing.state == "done"


async def test_everything_behind_a_letter_is_on_one_page(visitor: Visitor, site: Site, worked: str) -> None:
    await visitor.open("#/mail/box/REVIEWER")
    await visitor.find(".letters .stretched", "The README says how a lantern is lit.").click()
    await visitor.find(".transcript strong", "lantern").wait_for()
    text = await visitor.find(".behind").inner_text()
    for fact in ("read_file", "22 → 14 tokens", "$0.00018", "0.88", "claude-sonnet-5-5", "WRITER"):
        assert fact in text, fact
    await visitor.find(".part a", "What is Lantern?").click()
    await visitor.find(".answer strong", "lantern").wait_for()
    assert worked in visitor.page.url


async def test_nothing_in_a_letter_becomes_more_than_text(visitor: Visitor, site: Site) -> None:
    bad = '<img src=x onerror="window.bad=1"><a href="javascript:window.bad=2">x</a>'
    artifact = {"type": bad, "path": "javascript:window.bad=3", "description": bad}
    letter_id = await sent(site, "CAUTIOUS", "TASK-60", bad, notes=bad, artifacts=[artifact])
    await visitor.open(f"#/mail/letter/CAUTIOUS/{letter_id}")
    await visitor.sees(bad)
    await visitor.find(".as-json summary").click()
    assert await visitor.find("main img, main a[href^=javascript]").count() == 0
    assert await visitor.page.evaluate("window.bad") is None


# --- dead letters ----------------------------------------------------------------------------------------------------


async def test_a_dead_letter_says_why_shows_what_came_and_is_sent_again(
    visitor: Visitor, site: Site, worked: str
) -> None:
    visitor.expected.append("400|422")
    await visitor.open("#/mail/dead")
    broken = visitor.find(".dead-letters > li", "Invalid letter")
    await broken.get_by_text("Show raw content").click()
    await broken.locator("pre", has_text="TASK-9").wait_for()
    await broken.get_by_text("Resend").click()
    await broken.locator(".banner.bad", has_text="must send a corrected letter").wait_for()  # it still is none
    given_up = visitor.find(".dead-letters > li", "PLANNER")
    assert "There is no design in it" in await given_up.inner_text()
    await given_up.get_by_text("Resend").click()
    await given_up.locator(".outcome", has_text="it is in the mailbox of REVIEWER").wait_for()
    (standing,) = await site.doors.mail.thread("TASK-17", 1)
    assert standing.state == "ready"
    await given_up.locator(".outcome a").click()
    await visitor.sees("Please look at the design")


# --- trends ----------------------------------------------------------------------------------------------------------


async def test_trends_are_drawn_and_stand_in_a_table(visitor: Visitor, site: Site, worked: str) -> None:
    await visitor.open("#/mail/trends")
    await visitor.find(".lines canvas").nth(1).wait_for()
    said = await visitor.find(".lines .plot").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert said[0].startswith("Score and success over time: latest values average score 0.")
    assert said[1].startswith("Durations over time: latest values p50 ")
    await visitor.find(".as-json summary").click()
    assert await visitor.find(".as-json tbody tr").count() >= 10
    await visitor.find(".mail .prose td a", "TESTER").click()
    await visitor.sees("average score of TESTER")
    await visitor.until("document.querySelector('.mail .scroll').scrollTop === 0")
    assert await visitor.find(".as-json tbody tr").count() == 10
    await visitor.find(".by a", "By model").click()
    await visitor.page.get_by_label("Agent or model").select_option(label="flash")
    await visitor.sees("average score of flash")


async def test_plots_have_the_colours_of_the_page(visitor: Visitor, worked: str) -> None:
    drawn = "() => document.querySelector('.lines canvas').toDataURL()"
    await visitor.open("#/mail/trends")
    await visitor.find(".lines canvas").first.wait_for()
    light = await visitor.page.evaluate(drawn)
    await visitor.page.emulate_media(color_scheme="dark")
    async with asyncio.timeout(60):
        while await visitor.page.evaluate(drawn) == light:
            await asyncio.sleep(0.05)


# --- everywhere ------------------------------------------------------------------------------------------------------


async def test_every_page_fits_a_phone_with_the_longest_names_too(visitor: Visitor, site: Site, worked: str) -> None:
    name, task = "LONG-" * 25, "TASK_" * 25
    letter_id = await sent(site, name, task, "x" * 500, depends_on=["NEEDED" * 20], notes="y" * 900, success=True)
    await visitor.page.set_viewport_size({"width": 360, "height": 740})
    long = (f"#/mail/box/{name}", f"#/mail/task/{task}", f"#/mail/letter/{name}/{letter_id}")
    for place in (*PLACES, *long):
        await visitor.open(place)
        await visitor.find(".mail .measure > :not(.hint)").first.wait_for()
        widths = await visitor.page.evaluate(
            "[document.documentElement, document.querySelector('.mail .scroll')].map(it => it.scrollWidth - it.clientWidth)"
        )
        assert widths == [0, 0], place
    await visitor.press("Conversations")
    await visitor.find(".page-link", "Costs").click()
    await visitor.find("h1", "Costs").wait_for()


async def test_mailboxes_are_a_list_on_a_tablet_with_names_in_one_line(visitor: Visitor, worked: str) -> None:
    await visitor.page.set_viewport_size({"width": 834, "height": 900})
    await visitor.open("#/mail")
    name = visitor.find(".boxes tbody th a", "HUMAN")
    await name.wait_for()
    assert await name.evaluate("it => it.getClientRects().length") == 1
    assert await visitor.find(".boxes tbody th", "HUMAN").get_by_text("waiting").is_visible()


async def test_a_server_that_goes_away_is_said_and_comes_back(visitor: Visitor, site: Site, worked: str) -> None:
    visitor.expected.append("ERR_|Failed to load|fetching the script")
    await visitor.open("#/mail")
    await visitor.find(".boxes tbody tr").first.wait_for()
    await site.wire.cut()
    await visitor.find(".banner.bad", "The server does not respond.").wait_for()
    assert await visitor.find(".boxes tbody tr").count() >= 4
    await site.wire.mend()
    await visitor.find(".banner.bad").wait_for(state="detached")


async def test_axe_finds_nothing_serious(visitor: Visitor, worked: str, axe: str) -> None:
    found: list[str] = []
    await visitor.open("#/mail")
    await visitor.page.evaluate(axe)
    for place in PLACES:
        await visitor.page.evaluate(f"location.hash = {place!r}")
        await visitor.find(".mail .measure > :not(.hint)").first.wait_for()
        for theme in ("light", "dark") if place in PLACES[4:] else ("light",):
            await visitor.page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            result = await visitor.page.evaluate("() => axe.run('main', { resultTypes: ['violations'] })")
            for one in result["violations"]:
                if one["impact"] in ("serious", "critical"):
                    found.append(f"{place} {theme}: {one['id']} {[node['html'][:120] for node in one['nodes'][:3]]}")
    assert found == []
