"""Tests of the mail pages in a browser, with letters that were sent through the mail of the server."""

from __future__ import annotations

import asyncio
import json

import pytest

from dragoman.letters import task_result_letter
from tests.web import letters
from tests.web.conftest import Visitor
from tests.web.site import Site

PATHS = (
    "#/mail",
    "#/mail/box/HUMAN",
    "#/mail/box/REVIEWER",
    "#/mail/box/NEWCOMER",
    "#/mail/task/TASK-12",
    "#/mail/dead",
    "#/mail/trends",
)


@pytest.fixture(scope="module")
def linked_session_id(runner: asyncio.Runner, site: Site) -> str:
    """The id of the session that a letter links to. All letters are sent."""
    runner.run(letters.send_letters(site))
    runner.run(letters.record_scores(site))
    return runner.run(letters.send_linked_letter(site))


async def send_result(site: Site, recipient: str, task: str, output: str, **fields: object) -> str:
    """Send a result letter and return its id."""
    now = site.state.store.clock()
    header = {"sender_id": "PLANNER", "recipient_id": recipient, "task_id": task, "timestamp": now}
    receipt = await site.state.mail.send(task_result_letter(**header, output=output, **fields))
    return receipt.letter_id


# --- mailboxes -------------------------------------------------------------------------------------------------------


async def test_mailboxes_show_counts_and_are_filtered_by_name(visitor: Visitor, linked_session_id: str) -> None:
    await visitor.open()
    await visitor.find(".page-link", "Mail").click()
    row = visitor.find(".boxes tbody tr", "REVIEWER")
    await row.wait_for()
    cells = await row.locator("td").all_inner_texts()
    assert cells[2:5] == ["1", "0", "1"]  # held, to be retried, dead
    assert "2 dead" in await visitor.find(".bar [role=status]").inner_text()  # one has no mailbox
    assert await visitor.find(".boxes tbody tr").first.locator("a").inner_text() == "HUMAN"
    await visitor.find(".mail .filter input").fill("build")
    assert await visitor.find(".boxes tbody th a").all_inner_texts() == ["BUILDER"]
    await visitor.find(".mail .filter input").fill("no such")
    await visitor.wait_for_text("No matching mailboxes.")


async def test_letters_are_reachable_by_keyboard(visitor: Visitor, linked_session_id: str) -> None:
    await visitor.open("#/mail")
    await visitor.find(".boxes tbody a").first.focus()
    await visitor.page.keyboard.press("Enter")
    await visitor.find("h1", "Mailbox of HUMAN").wait_for()
    await visitor.find(".letters .stretched").first.focus()
    await visitor.page.keyboard.press("Enter")
    await visitor.find("h1", "Letter to HUMAN").wait_for()
    await visitor.wait_until("document.activeElement.id === 'mail-title'")
    await visitor.find(".as-json summary").focus()
    await visitor.page.keyboard.press("Enter")
    await visitor.find(".as-json code", "protocol_version").wait_for()


async def test_new_letters_appear_without_reload(visitor: Visitor, site: Site, linked_session_id: str) -> None:
    await visitor.open("#/mail/box/WATCHED")
    await visitor.wait_for_text("No letters to WATCHED yet")
    await send_result(site, "WATCHED", "TASK-30", "It has just arrived")
    await visitor.wait_for_text("It has just arrived")
    await send_result(site, "WATCHED", "TASK-31", "And another one")
    await visitor.wait_for_text("And another one")
    await visitor.find(".mail .filter input").fill("another")
    assert await visitor.find(".letters > li").count() == 1


async def test_empty_mailbox_shows_how_to_send_letter(visitor: Visitor, site: Site) -> None:
    await visitor.open("#/mail/box/NEWCOMER-1")
    await visitor.wait_for_text("dragoman mail send letter.json")
    (command,) = [text for text in await visitor.find(".empty-state code").all_inner_texts() if text.startswith("cat")]
    letter = json.loads(command.partition("'END'\n")[2].partition("\nEND")[0])
    assert letter["recipient_id"] == "NEWCOMER-1"
    assert site.base_url in await visitor.find(".empty-state code").last.inner_text()
    await visitor.press("Send this letter")
    await visitor.wait_for_text("The first letter has arrived.")


# --- letters ---------------------------------------------------------------------------------------------------------


async def test_task_shows_its_letters_in_order(visitor: Visitor, site: Site, linked_session_id: str) -> None:
    await visitor.open("#/mail/task/TASK-12")
    await visitor.wait_for_text(letters.OUTPUT)
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


async def test_letter_state_is_shown_and_updated(visitor: Visitor, site: Site) -> None:
    await send_result(site, "KEEPER", "TASK-41", "Held for a while", depends_on=["TASK-40"])
    await send_result(site, "KEEPER", "TASK-45", "In hand for a while")
    (delivery,) = await site.state.mail.receive("KEEPER", lease_s=300)
    await visitor.open("#/mail/box/KEEPER")
    await visitor.find(".chip.wait", "held until TASK-40 has succeeded").wait_for()
    await visitor.find(".chip.busy", "leased until").wait_for()
    await send_result(site, "NOBODY", "TASK-40", "Done", success=True)
    await delivery.nack("The disk quota is reached", retry_after_s=600)
    await visitor.find(".chip.open", "waiting").wait_for()
    await visitor.find(".chip.wait", "retry at").wait_for()


async def test_request_is_answered_and_sensitive_input_is_masked(
    visitor: Visitor, site: Site, linked_session_id: str
) -> None:
    await visitor.open("#/mail/task/TASK-12")
    password = visitor.page.get_by_label("Password of the signing key")
    assert await password.get_attribute("type") == "password"
    await visitor.press("Answer BUILDER")
    await visitor.wait_for_text("This field is required.")
    await password.fill(letters.SECRET)
    await visitor.page.get_by_label("Where to").select_option(label="preview")
    await visitor.page.get_by_label("Minutes to wait").fill("soon")
    await visitor.press("Answer BUILDER")
    await visitor.wait_for_text("Enter a number.")
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
    (status,) = [status for status in await site.state.mail.thread("TASK-12") if status.letter.sender_id == "HUMAN"]
    assert letters.SECRET not in status.letter.text
    leased = await site.state.mail.receive("BUILDER", letter_id=status.letter.letter_id)
    for earlier in [] if leased else await site.state.mail.receive("BUILDER"):  # earlier letters of its task
        await earlier.ack()
    (delivery,) = leased or await site.state.mail.receive("BUILDER", letter_id=status.letter.letter_id)
    decrypted = await delivery.decrypt()
    assert decrypted.payload.result.inputs == {"password": letters.SECRET, "channel": "preview", "after_min": 10}


async def test_letter_to_human_is_marked_as_done(visitor: Visitor, site: Site) -> None:
    letter_id = await send_result(site, "HUMAN", "TASK-50", "Please read this")
    await visitor.open(f"#/mail/letter/HUMAN/{letter_id}")
    await visitor.press("Mark as done")
    await visitor.find(".chip.done").wait_for()
    (status,) = await site.state.mail.letters(recipient_id="HUMAN", letter_id=letter_id)
    assert status.state == "done"


async def test_letter_page_shows_its_session_and_evaluation(
    visitor: Visitor, site: Site, linked_session_id: str
) -> None:
    await visitor.open("#/mail/box/REVIEWER")
    await visitor.find(".letters .stretched", "The README says how a lantern is lit.").click()
    await visitor.find(".transcript strong", "lantern").wait_for()
    text = await visitor.find(".behind").inner_text()
    for fact in ("read_file", "22 → 14 tokens", "$0.00018", "0.88", "claude-sonnet-5-5", "WRITER"):
        assert fact in text, fact
    await visitor.find(".part a", "What is Lantern?").click()
    await visitor.find(".answer strong", "lantern").wait_for()
    assert linked_session_id in visitor.page.url


async def test_letter_content_is_rendered_as_text(visitor: Visitor, site: Site) -> None:
    bad = '<img src=x onerror="window.bad=1"><a href="javascript:window.bad=2">x</a>'
    artifact = {"type": bad, "path": "javascript:window.bad=3", "description": bad}
    letter_id = await send_result(site, "CAUTIOUS", "TASK-60", bad, notes=bad, artifacts=[artifact])
    await visitor.open(f"#/mail/letter/CAUTIOUS/{letter_id}")
    await visitor.wait_for_text(bad)
    await visitor.find(".as-json summary").click()
    assert await visitor.find("main img, main a[href^=javascript]").count() == 0
    assert await visitor.page.evaluate("window.bad") is None


# --- dead letters ----------------------------------------------------------------------------------------------------


async def test_dead_letter_shows_reason_and_content_and_is_resent(
    visitor: Visitor, site: Site, linked_session_id: str
) -> None:
    visitor.expected_errors.append("400|422")
    await visitor.open("#/mail/dead")
    invalid = visitor.find(".dead-letters > li", "Invalid letter")
    await invalid.get_by_text("Show raw content").click()
    await invalid.locator("pre", has_text="TASK-9").wait_for()
    await invalid.get_by_text("Resend").click()
    await invalid.locator(".banner.bad", has_text="must send a corrected letter").wait_for()  # it is still invalid
    rejected = visitor.find(".dead-letters > li", "PLANNER")
    assert "There is no design in it" in await rejected.inner_text()
    await rejected.get_by_text("Resend").click()
    await rejected.locator(".outcome", has_text="it is in the mailbox of REVIEWER").wait_for()
    (status,) = await site.state.mail.thread("TASK-17", 1)
    assert status.state == "ready"
    await rejected.locator(".outcome a").click()
    await visitor.wait_for_text("Please look at the design")


# --- trends ----------------------------------------------------------------------------------------------------------


async def test_trends_are_plotted_and_listed_in_table(visitor: Visitor, site: Site, linked_session_id: str) -> None:
    await visitor.open("#/mail/trends")
    await visitor.find(".lines canvas").nth(1).wait_for()
    labels = await visitor.find(".lines .plot").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert labels[0].startswith("Score and success over time: latest values average score 0.")
    assert labels[1].startswith("Durations over time: latest values p50 ")
    await visitor.find(".as-json summary").click()
    assert await visitor.find(".as-json tbody tr").count() >= 10
    await visitor.find(".mail .prose td a", "TESTER").click()
    await visitor.wait_for_text("average score of TESTER")
    await visitor.wait_until("document.querySelector('.mail .scroll').scrollTop === 0")
    assert await visitor.find(".as-json tbody tr").count() == 10
    await visitor.find(".by a", "By model").click()
    await visitor.page.get_by_label("Agent or model").select_option(label="flash")
    await visitor.wait_for_text("average score of flash")


async def test_plots_follow_colour_scheme(visitor: Visitor, linked_session_id: str) -> None:
    script = "() => document.querySelector('.lines canvas').toDataURL()"
    await visitor.open("#/mail/trends")
    await visitor.find(".lines canvas").first.wait_for()
    light = await visitor.page.evaluate(script)
    await visitor.page.emulate_media(color_scheme="dark")
    async with asyncio.timeout(60):
        while await visitor.page.evaluate(script) == light:
            await asyncio.sleep(0.05)


# --- all pages -------------------------------------------------------------------------------------------------------


async def test_every_page_fits_phone_with_longest_names(visitor: Visitor, site: Site, linked_session_id: str) -> None:
    name, task = "LONG-" * 25, "TASK_" * 25
    letter_id = await send_result(
        site, name, task, "x" * 500, depends_on=["NEEDED" * 20], notes="y" * 900, success=True
    )
    await visitor.page.set_viewport_size({"width": 360, "height": 740})
    long_paths = (f"#/mail/box/{name}", f"#/mail/task/{task}", f"#/mail/letter/{name}/{letter_id}")
    for path in (*PATHS, *long_paths):
        await visitor.open(path)
        await visitor.find(".mail .measure > :not(.hint)").first.wait_for()
        widths = await visitor.page.evaluate(
            "[document.documentElement, document.querySelector('.mail .scroll')].map(it => it.scrollWidth - it.clientWidth)"
        )
        assert widths == [0, 0], path
    await visitor.press("Conversations")
    await visitor.find(".page-link", "Costs").click()
    await visitor.find("h1", "Costs").wait_for()


async def test_mailboxes_are_list_on_tablet_with_unbroken_names(visitor: Visitor, linked_session_id: str) -> None:
    await visitor.page.set_viewport_size({"width": 834, "height": 900})
    await visitor.open("#/mail")
    name = visitor.find(".boxes tbody th a", "HUMAN")
    await name.wait_for()
    assert await name.evaluate("it => it.getClientRects().length") == 1
    assert await visitor.find(".boxes tbody th", "HUMAN").get_by_text("waiting").is_visible()


async def test_unreachable_server_is_reported_until_it_responds(
    visitor: Visitor, site: Site, linked_session_id: str
) -> None:
    visitor.expected_errors.append("ERR_|Failed to load|fetching the script")
    await visitor.open("#/mail")
    await visitor.find(".boxes tbody tr").first.wait_for()
    await site.wire.cut()
    await visitor.find(".banner.bad", "The server does not respond.").wait_for()
    assert await visitor.find(".boxes tbody tr").count() >= 4
    await site.wire.mend()
    await visitor.find(".banner.bad").wait_for(state="detached")


async def test_axe_finds_no_serious_violation(visitor: Visitor, linked_session_id: str, axe: str) -> None:
    violations: list[str] = []
    await visitor.open("#/mail")
    await visitor.page.evaluate(axe)
    for path in PATHS:
        await visitor.page.evaluate(f"location.hash = {path!r}")
        await visitor.find(".mail .measure > :not(.hint)").first.wait_for()
        for theme in ("light", "dark") if path in PATHS[4:] else ("light",):
            await visitor.page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            result = await visitor.page.evaluate("() => axe.run('main', { resultTypes: ['violations'] })")
            for violation in result["violations"]:
                if violation["impact"] in ("serious", "critical"):
                    violations.append(
                        f"{path} {theme}: {violation['id']} {[node['html'][:120] for node in violation['nodes'][:3]]}"
                    )
    assert violations == []
