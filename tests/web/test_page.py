"""The page, driven in a browser against the real server."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest

from dragoman.message import Message, MessageMetadata, Role, TextBlock
from dragoman.server.auth import local_access, principal
from tests.strict import call, say, think
from tests.web.conftest import Visitor
from tests.web.site import README, Site

MARKDOWN = """Lantern is a **timer**:

```python
print("on")  # and off
```

| command | since |
|---|---:|
| `on` | 1.0 |
"""


def picture(red: int) -> dict[str, Any]:
    """A small picture, as a browser is given a file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = b"".join(b"\0" + bytes((red, 80, 120)) * 8 for _ in range(8))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
    return {
        "name": f"{red}.png",
        "mimeType": "image/png",
        "buffer": data + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b""),
    }


def user_message(text: str) -> Message:
    return Message("", "", Role.USER, (TextBlock(text),), MessageMetadata(), datetime(2026, 3, 13, tzinfo=UTC))


# --- talking ---------------------------------------------------------------------------------------------------------


async def test_the_first_message_is_answered_as_it_arrives_with_a_receipt(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].say(MARKDOWN, thinking="It is short.")
    pace = site.paces["anthropic"]
    pace.hold(12)
    await visitor.open()
    await visitor.find(".suggestions button").first.wait_for()
    await visitor.ask("What is this?")
    await visitor.find("#m-live").wait_for()
    assert await visitor.find(".messages").get_attribute("aria-busy") == "true"
    pace.release()
    await visitor.sees("1.0")
    await visitor.settled()
    assert await visitor.find(".answer strong").inner_text() == "timer"
    assert await visitor.find(".answer .hl-string").inner_text() == '"on"'
    assert await visitor.find(".answer td").last.get_attribute("align") == "right"
    assert re.fullmatch(r"11 → 7 tokens\s*\$0\.000092\s*\d.*", await visitor.find(".receipt").inner_text(), re.DOTALL)
    assert not await visitor.find(".thinking .prose").is_visible()
    await visitor.find(".thinking summary").click()
    assert await visitor.find(".thinking .prose").inner_text() == "It is short."
    assert await visitor.find(".thread.current .title").inner_text() == "What is this?"


async def test_another_user_of_the_machine_opens_the_page_with_the_token(
    visitor: Visitor, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (local_access, principal):  # with tools on, as here, everybody then needs the token
        monkeypatch.setattr(module, "can_find_users", lambda: False)
    site.fakes["anthropic"].say("Welcome.")
    await visitor.open(f"?token={site.doors.token.text}#/")
    await visitor.answered("May I?", "Welcome.")
    assert "token" not in visitor.page.url
    await visitor.page.goto("about:blank")  # on this connection, requests after the patch get a 401


async def test_code_is_copied(visitor: Visitor, site: Site) -> None:
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    site.fakes["anthropic"].say(MARKDOWN)
    await visitor.open()
    await visitor.answered("Show me code", "1.0")
    await visitor.find("figure.code .copy").click()
    await visitor.sees("Copied")
    assert await visitor.page.evaluate("navigator.clipboard.readText()") == 'print("on")  # and off'


async def test_what_a_model_says_runs_nothing_and_asks_nobody(visitor: Visitor, site: Site) -> None:
    asked: list[str] = []
    visitor.listen("request", lambda request: asked.append(request.url))
    site.fakes["anthropic"].say(
        "<script>window.bad=1</script> <img src=x onerror='window.bad=2'>\n\n[a](javascript:window.bad=3) "
        "![b](https://example.com/b.png) <style>body{display:none}</style> <a href='//example.com' id='app'>c</a>\n\n"
        '<iframe srcdoc="<script>parent.bad=4</script>"></iframe>\n\n| <b onclick="bad=5">x</b> |\n|---|\n| y |\n\nEnd.'
    )
    await visitor.open()
    await visitor.answered("Harm me", "End.")
    assert await visitor.page.evaluate("window.bad") is None
    assert await visitor.find(".answer img, .answer script, .answer style, .answer iframe, .answer b").count() == 0
    assert await visitor.find(".answer a").evaluate_all("all => all.map(one => one.href)") == [
        "https://example.com/b.png"
    ]
    assert [url for url in asked if not url.startswith(site.base_url)] == []


async def test_an_answer_is_stopped(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].say("one two three four five six seven eight nine ten " * 5)
    site.paces["anthropic"].hold(5)
    await visitor.open()
    await visitor.ask("Count")
    await visitor.sees("one two")
    await visitor.page.keyboard.press("Escape")
    await visitor.sees("This answer was stopped.")
    await visitor.settled()
    site.paces["anthropic"].release()
    site.fakes["anthropic"].say("I am here.")
    await visitor.answered("Still there?", "I am here.")


async def test_a_failure_says_what_to_do_and_nothing_written_is_lost(visitor: Visitor, site: Site) -> None:
    visitor.expected.append("ERR_CONNECTION|ERR_EMPTY|422|fetching the script")
    await visitor.open()
    await visitor.ask("@nobody-knows-this-model hello")
    await visitor.find(".banner.bad").wait_for()
    site.fakes["anthropic"].fail(429, "slow down")
    await visitor.write("")
    await visitor.ask("Hello?")
    await visitor.sees("The rate limit of the provider is exceeded.")


# --- pictures --------------------------------------------------------------------------------------------------------


async def test_pictures_are_picked_pasted_and_dropped_and_reach_the_model(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.set_input_files("input[multiple]", [picture(10), picture(20)])
    for kind in ("paste", "drop"):
        await visitor.page.evaluate(
            """([kind, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], kind + ".png", { type: "image/png" }));
                const event = kind === "paste"
                    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
                    : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
                document.querySelector("#words").dispatchEvent(event);
            }""",
            [kind, list(picture(30 if kind == "paste" else 40)["buffer"])],
        )
    await visitor.until("document.querySelectorAll('.upload:not(.sending) img').length === 4")
    site.fakes["anthropic"].say("Four squares.")
    before = len(site.fakes["anthropic"].bodies)
    await visitor.answered("What do you see?", "Four squares.")
    (body,) = site.fakes["anthropic"].bodies[before:]
    assert [part["type"] for part in body["messages"][-1]["content"]].count("image") == 4
    await visitor.page.reload()
    await visitor.until(
        "[...document.querySelectorAll('.question img')].filter(one => one.naturalWidth === 8).length === 4"
    )


async def test_a_file_that_is_not_taken_says_why_and_stands_in_nobodys_way(visitor: Visitor, site: Site) -> None:
    visitor.expected.append("415|422")
    await visitor.open()
    drawing = {"name": "a.svg", "mimeType": "image/svg+xml", "buffer": b"<svg xmlns='http://www.w3.org/2000/svg'/>"}
    await visitor.page.set_input_files("input[multiple]", [drawing])
    await visitor.find(".upload.failed", "is not an accepted type").wait_for()
    site.fakes["anthropic"].say("Without it.")
    await visitor.answered("Go on", "Without it.")


# --- tools -----------------------------------------------------------------------------------------------------------


def asks_to_write(site: Site, text: str) -> None:
    site.fakes["anthropic"].answer_with(say("I write it."), call("write_file", {"path": "README.md", "content": text}))


async def test_a_tool_waits_to_be_allowed_also_after_the_page_was_loaded_anew(visitor: Visitor, site: Site) -> None:
    readme = site.folder / "work" / "README.md"
    await visitor.open()
    asks_to_write(site, "allowed\n")
    await visitor.ask("Write it")
    await visitor.find(".approval", "write_file").wait_for()
    assert readme.read_text("utf-8") == README
    await visitor.page.reload()
    await visitor.find(".approval .arguments", "allowed").wait_for()
    site.fakes["anthropic"].say("Written.")
    await visitor.press("Allow")
    await visitor.sees("Written.")
    await visitor.settled()
    assert readme.read_text("utf-8") == "allowed\n"
    assert await visitor.find(".call .state").inner_text() == "done"
    assert await visitor.find(".approval").count() == 0


async def test_arguments_are_changed_before_a_tool_is_allowed(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    asks_to_write(site, "as the model wants\n")
    await visitor.ask("Write it")
    await visitor.find(".approval button", "Edit").click()
    await visitor.find(".approval textarea").fill("{not JSON")
    await visitor.press("Allow")
    await visitor.sees("This is not valid JSON.")
    changed = {"path": "README.md", "content": "as I want\n"}
    await visitor.find(".approval textarea").fill(json.dumps(changed))
    site.fakes["anthropic"].say("Changed.")
    await visitor.press("Allow")
    await visitor.sees("Changed.")
    await visitor.settled()
    assert (site.folder / "work" / "README.md").read_text("utf-8") == "as I want\n"


async def test_a_tool_is_declined(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    asks_to_write(site, "never\n")
    await visitor.ask("Write it")
    await visitor.find(".approval").wait_for()
    site.fakes["anthropic"].say("Then not.")
    await visitor.press("Decline")
    await visitor.sees("Then not.")
    await visitor.settled()
    assert (site.folder / "work" / "README.md").read_text("utf-8") == README
    assert await visitor.find(".call .state").inner_text() == "failed"


async def test_a_question_of_the_model_is_answered_in_a_form(visitor: Visitor, site: Site) -> None:
    size = {"id": "size", "prompt": "Which size?", "type": "choice", "choices": ["S", "M"]}
    count = {"id": "count", "prompt": "How many?", "type": "number"}
    gift = {"id": "gift", "prompt": "As a present?", "type": "boolean", "required": False}
    await visitor.open()
    question = {"question": "What shall I order?", "inputs": [size, count, gift]}
    site.fakes["anthropic"].answer_with(call("ask_user", question))
    await visitor.ask("Order some")
    await visitor.find(".approval", "What shall I order?").wait_for()
    await visitor.page.reload()
    await visitor.page.get_by_label("How many?").fill("many")
    await visitor.press("Answer")
    await visitor.sees("Enter a number.")
    await visitor.page.get_by_label("How many?").fill("3")
    await visitor.page.get_by_label("Which size?").select_option("M")
    site.fakes["anthropic"].say("Ordered.")
    await visitor.press("Answer")
    await visitor.sees("Ordered.")
    await visitor.settled()
    told = json.dumps(site.fakes["anthropic"].bodies[-1])
    assert json.dumps('{"size":"M","count":3}') in told
    assert await visitor.find(".approval").count() == 0


async def test_two_calls_are_decided_one_after_the_other(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    files = ("a.txt", "b.txt")
    site.fakes["anthropic"].answer_with(*(call("write_file", {"path": name, "content": name}) for name in files))
    await visitor.ask("Write both")
    await visitor.find(".approval", "1 of 2").wait_for()
    await visitor.press("Allow")
    await visitor.find(".approval", "2 of 2").wait_for()
    site.fakes["anthropic"].say("One of them.")
    await visitor.press("Decline")
    await visitor.sees("One of them.")
    await visitor.settled()
    assert [(site.folder / "work" / name).exists() for name in files] == [True, False]


# --- models ----------------------------------------------------------------------------------------------------------


async def test_a_swap_is_shown_before_it_is_made(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].say("Thought through.", thinking="Hm.")
    await visitor.open()
    await visitor.answered("Think", "Thought through.")
    await visitor.page.keyboard.press("Control+/")
    await visitor.page.get_by_label("Find a model").fill("gemini-3.8-flash")
    await visitor.page.keyboard.press("Enter")
    await visitor.find("dialog", "2 blocks unchanged, 1 converted or omitted").wait_for()
    assert "thinking omitted" in await visitor.find(".losses").inner_text()
    await visitor.press("Swap")
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    site.fakes["gemini"].say("I go on.")
    await visitor.answered("Go on", "I go on.")
    assert await visitor.find(".answer .who").last.inner_text() == "gemini-3.8-flash"
    assert "Hm." not in json.dumps(site.fakes["gemini"].bodies[-1])


async def test_a_swap_that_would_lose_a_picture_is_not_offered(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.set_input_files("input[multiple]", [picture(50)])
    await visitor.find(".upload:not(.sending)").wait_for()
    site.fakes["anthropic"].say("A square.")
    await visitor.answered("What is it?", "A square.")
    await visitor.find(".model-button").click()
    await visitor.find("button.model", "blind").click()
    await visitor.find("dialog .banner.bad").wait_for()
    assert await visitor.page.get_by_role("button", name="Swap", exact=True).is_disabled()


async def test_a_model_is_chosen_before_the_first_message(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.find(".model-button").click()
    await visitor.find("button.model", "gemini-3.8-flash").first.click()
    site.fakes["gemini"].say("At your service.")
    await visitor.answered("Hello", "At your service.")
    await visitor.page.reload()
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()


# --- branches and the list -------------------------------------------------------------------------------------------


async def test_a_conversation_is_forked_at_a_message_and_the_original_stays(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    for number in ("first", "second"):
        site.fakes["anthropic"].say(f"The {number} answer.")
        await visitor.answered(f"The {number} question", f"The {number} answer.")
    await visitor.find(".answer").first.hover()
    await visitor.find(".answer").first.get_by_label("Fork here").click()
    await visitor.find(".titles", "forked from The first question").wait_for()
    await visitor.sees("The first answer.")
    assert await visitor.find(".answer").count() == 1
    site.fakes["anthropic"].say("Another way.")
    await visitor.answered("Differently", "Another way.")
    await visitor.find(".titles a").click()
    await visitor.sees("The second answer.")
    assert await visitor.find(".messages", "Another way.").count() == 0


async def thread_ids(site: Site) -> list[str]:
    """The ids of all conversations, the last changed first."""
    return [session.id for session in await site.doors.store.list_sessions(limit=100)]


async def choose_gemini(visitor: Visitor, site: Site) -> None:
    await visitor.find(".model-button").click()
    await visitor.find("button.model", "gemini-3.8-flash").first.click()


async def test_an_edited_question_becomes_a_version_once_it_is_sent(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    for number in ("one", "two"):
        site.fakes["anthropic"].say(f"Said {number}.")
        await visitor.answered(f"Say {number}", f"Said {number}.")
    before = await thread_ids(site)
    await visitor.page.keyboard.press("ArrowUp")
    await visitor.until("document.querySelector('#words').value === 'Say two'")
    await visitor.find(".answer.replaced", "Said two.").wait_for()
    assert await thread_ids(site) == before  # nothing was sent, so there is no fork
    await visitor.page.keyboard.press("Escape")
    assert await visitor.find(".replaced").count() == 0
    assert await visitor.find("#words").input_value() == ""
    await visitor.page.keyboard.press("ArrowUp")
    await visitor.find(".answer.replaced").wait_for()
    site.fakes["anthropic"].say("Said three.")
    await visitor.answered("Say three", "Said three.")
    assert await visitor.find(".question .plain").all_inner_texts() == ["Say one", "Say three"]
    await visitor.find(".versions", "2/2").wait_for()
    await visitor.press("Previous version")
    await visitor.sees("Said two.")
    await visitor.find(".versions", "1/2").wait_for()


async def test_an_edited_first_question_keeps_the_model_the_pictures_and_its_origin(
    visitor: Visitor, site: Site
) -> None:
    await visitor.open()
    await choose_gemini(visitor, site)
    await visitor.page.set_input_files("input[multiple]", [picture(60)])
    await visitor.find(".upload:not(.sending)").wait_for()
    site.fakes["gemini"].say("A square.")
    await visitor.answered("What is it?", "A square.")
    await visitor.find(".question").hover()
    await visitor.find(".question").get_by_label("Edit").click()
    await visitor.find(".upload img").wait_for()
    before = len(site.fakes["gemini"].bodies)
    site.fakes["gemini"].say("Still a square.")
    await visitor.answered("And now?", "Still a square.")
    (body,) = site.fakes["gemini"].bodies[before:]
    assert "inlineData" in json.dumps(body)
    await visitor.find(".titles", "forked from What is it?").wait_for()
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    assert await visitor.find(".question .plain").all_inner_texts() == ["And now?"]


async def test_an_answer_is_regenerated_in_place_also_with_another_model(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].say("First try.")
    await visitor.answered("Try", "First try.")
    site.fakes["anthropic"].say("Second try.")
    await visitor.press("Regenerate")
    await visitor.sees("Second try.")
    await visitor.settled()
    await visitor.find(".versions", "2/2").wait_for()
    site.fakes["gemini"].say("Third try.")
    await visitor.press("Regenerate with another model")
    await visitor.find("button.model", "gemini-3.8-flash").first.click()
    await visitor.sees("Third try.")
    await visitor.settled()
    assert await visitor.find(".answer .who").inner_text() == "gemini-3.8-flash"
    assert await visitor.find(".question .plain").all_inner_texts() == ["Try"]
    await visitor.find(".versions", "3/3").wait_for()
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    await visitor.press("Previous version")
    await visitor.sees("Second try.")
    await visitor.find(".model-button", "sonnet").wait_for()


async def test_a_question_that_the_server_rejects_in_a_branch_leaves_no_fork(visitor: Visitor, site: Site) -> None:
    visitor.expected.append("422")
    await visitor.open()
    site.fakes["anthropic"].say("Yes.")
    await visitor.answered("Are you there?", "Yes.")
    before = await thread_ids(site)
    await visitor.page.keyboard.press("ArrowUp")
    await visitor.find(".answer.replaced").wait_for()
    await visitor.ask("@nobody-knows-this-model hello")
    await visitor.find(".banner.bad").wait_for()
    await visitor.until("document.querySelector('#words').value === '@nobody-knows-this-model hello'")
    assert await thread_ids(site) == before
    await visitor.sees("Yes.")


async def test_a_conversation_outside_of_the_list_shows_its_own_model_and_title(visitor: Visitor, site: Site) -> None:
    store = site.doors.store
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
    site.fakes["gemini"].say("Here.")
    await visitor.answered("Are you there?", "Here.")
    await visitor.until("document.querySelector('.thread .title').textContent === 'Its fork'")
    assert await visitor.find(".thread").count() == listed
    for session_id in await thread_ids(site):
        await store.delete_session(session_id)


async def test_any_message_of_a_long_conversation_is_shown_with_few_requests(visitor: Visitor, site: Site) -> None:
    store = site.doors.store
    session = await store.create_session(title="Long", user_id="local")
    for first in range(1, 3001, 500):
        texts = [f"message {number}\n" * 3 for number in range(first, first + 500)]
        await store.append(
            session.id, [user_message("needle 1234" if text.startswith("message 1234\n") else text) for text in texts]
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
    for _ in range(5):  # scroll back: more messages are loaded, and the document stays small
        first = await visitor.find("article").first.inner_text()
        await visitor.page.evaluate("document.querySelector('.scroll').scrollTop = 0")
        await visitor.until(f"document.querySelector('article').innerText !== {json.dumps(first)}")
    assert await visitor.find("article").count() <= 150
    await visitor.find("article", re.compile("^message 1000\\b")).first.wait_for(state="attached")
    await visitor.find(".to-end").click()
    await visitor.find("article", "message 3000").wait_for()
    site.fakes["anthropic"].say("At the end.")
    await visitor.answered("Where are we?", "At the end.")
    await store.delete_session(session.id)


async def test_a_draft_and_the_chosen_model_survive_a_reload(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await choose_gemini(visitor, site)
    await visitor.write("Half a thou")
    await visitor.page.reload()
    await visitor.until("document.querySelector('#words').value === 'Half a thou'")
    await visitor.find(".model-button", "gemini-3.8-flash").wait_for()
    site.fakes["gemini"].say("A whole one.")
    await visitor.answered("Half a thought", "A whole one.")
    await visitor.page.reload()
    await visitor.sees("A whole one.")
    assert await visitor.find("#words").input_value() == ""


async def test_a_long_question_is_folded(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].say("Read.")
    await visitor.answered("\n".join(f"line {number}" for number in range(600)), "Read.")
    assert "line 599" not in await visitor.find(".question .plain").inner_text()
    await visitor.press("Show all 600 lines")
    assert "line 599" in await visitor.find(".question .plain").inner_text()


async def test_a_conversation_is_renamed_and_deleted(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].say("Yes.")
    await visitor.answered("Will you be renamed?", "Yes.")
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


async def test_a_search_across_conversations_shows_where_and_leads_there(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].say("The heron 😀 stands in the reeds.")
    await visitor.answered("Tell me of birds", "The heron")
    for _ in range(3):
        site.fakes["anthropic"].say("Something long.\n\n" * 12)
        await visitor.answered("And something long", "Something long.")
    await visitor.page.keyboard.press("Control+k")
    await visitor.page.keyboard.type("reeds")
    await visitor.find("mark").wait_for()
    assert await visitor.find("mark").all_inner_texts() == ["reeds"]
    await visitor.find(".thread", "reeds").locator("a").click()
    await visitor.until(
        "(() => { const found = document.querySelector('.highlight')?.getBoundingClientRect();"
        " return found && found.top > 0 && found.bottom < innerHeight; })()"
    )


async def test_a_message_is_shown_as_any_dialect(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].say("Shown.", thinking="Hidden.")
    await visitor.open()
    await visitor.answered("Show yourself", "Shown.")
    await visitor.press("Show in another format")
    shown = visitor.find("dialog code")
    await visitor.find("dialog code", '"schema_version"').wait_for()
    await visitor.page.locator("dialog select").select_option("gemini")
    await visitor.find("dialog code", '"contents"').wait_for()
    assert json.loads(await shown.inner_text())["contents"][0]["parts"][-1] == {"text": "Shown."}
    await visitor.page.keyboard.press("Escape")
    await visitor.find("dialog").wait_for(state="detached")


async def test_costs_are_drawn_by_day_and_listed_by_model(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].say("Not free.")
    await visitor.open()
    await visitor.answered("What do you cost?", "Not free.")
    await visitor.find(".spent", "$0.000092").click()
    await visitor.find("dialog table", "claude-sonnet-5-5").wait_for()
    await visitor.page.keyboard.press("Escape")
    await visitor.find(".page-link", "Costs").click()
    await visitor.find(".plot canvas").wait_for()
    assert "claude-sonnet-5-5" in await visitor.find(".page table").first.inner_text()
    await visitor.find(".page-link", "Chat").click()
    await visitor.sees("Not free.")


# --- connections -----------------------------------------------------------------------------------------------------


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
    pace.release()
    await asyncio.sleep(0.3)  # the run goes on, and nobody listens
    await site.wire.mend()
    await visitor.press("Reconnect now")
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


# --- for everybody ---------------------------------------------------------------------------------------------------


async def test_enter_sends_nothing_while_a_word_is_composed(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.locator("#words").focus()
    keyboard = await visitor.context.new_cdp_session(visitor.page)
    before = len(site.fakes["anthropic"].bodies)
    await keyboard.send("Input.imeSetComposition", {"text": "ni hao", "selectionStart": 6, "selectionEnd": 6})
    for kind in ("rawKeyDown", "keyUp"):
        pressed = {"type": kind, "key": "Process", "code": "Enter", "windowsVirtualKeyCode": 229}
        await keyboard.send("Input.dispatchKeyEvent", pressed)
    await visitor.page.evaluate(
        "document.querySelector('#words').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true }))"
    )
    await keyboard.send("Input.insertText", {"text": "你好世界"})
    assert await visitor.find("#words").input_value() == "你好世界"
    assert await visitor.find(".question").count() == 0
    site.fakes["anthropic"].say("很高兴")
    await visitor.page.keyboard.press("Enter")
    await visitor.sees("很高兴")
    await visitor.settled()
    (body,) = site.fakes["anthropic"].bodies[before:]
    assert body["messages"][-1]["content"] in ("你好世界", [{"type": "text", "text": "你好世界"}])


async def test_dark_is_as_the_system_has_it_until_somebody_chooses(visitor: Visitor, site: Site) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    await visitor.page.emulate_media(color_scheme="dark")
    await visitor.open()
    dark = await visitor.page.evaluate(paper)
    await visitor.press("Theme: system")
    light = await visitor.page.evaluate(paper)
    assert dark != light
    await visitor.page.reload()
    await visitor.find("#words").wait_for()
    assert await visitor.page.evaluate(paper) == light
    await visitor.press("Theme: light")
    assert await visitor.page.evaluate(paper) == dark


async def test_on_a_phone_the_list_is_a_drawer_and_nothing_is_too_wide(visitor: Visitor, site: Site) -> None:
    await visitor.page.set_viewport_size({"width": 360, "height": 740})
    site.fakes["anthropic"].answer_with(
        think("Hm."), say(MARKDOWN + "\n" + "long" * 100), call("read_file", {"path": "README.md"})
    )
    site.fakes["anthropic"].say("Small enough.")
    await visitor.open()
    await visitor.answered("Does it fit?", "Small enough.")
    assert await visitor.page.evaluate("document.documentElement.scrollWidth") == 360
    assert not await visitor.find("#search").is_visible()
    await visitor.find(".head").get_by_label("Conversations").click()
    await visitor.find("#search").wait_for()
    await visitor.find(".thread", "Does it fit?").first.locator("a").click()
    await visitor.find("#search").wait_for(state="hidden")
    await visitor.sees("Small enough.")


async def test_keys_are_told(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    await visitor.page.locator("h1").click()
    await visitor.page.evaluate("document.activeElement.blur()")
    await visitor.page.keyboard.press("?")
    await visitor.find("dialog", "Search all conversations").wait_for()
    await visitor.page.keyboard.press("Escape")
    await visitor.find("dialog").wait_for(state="detached")
    await visitor.page.keyboard.press("/")
    await visitor.until("document.activeElement.id === 'search'")


async def test_axe_finds_nothing_serious(visitor: Visitor, site: Site, axe: str) -> None:
    found: list[str] = []

    async def look(where: str) -> None:
        await visitor.page.wait_for_timeout(200)  # until nothing fades any more
        result = await visitor.page.evaluate("() => axe.run({ resultTypes: ['violations'] })")
        for one in result["violations"]:
            if one["impact"] in ("serious", "critical"):
                found.append(f"{where}: {one['id']} {[node['html'][:120] for node in one['nodes'][:3]]}")

    await visitor.open()
    await visitor.page.evaluate(axe)
    await look("empty")
    asks_to_write(site, "x\n")
    await visitor.ask("What is it?")
    await visitor.find(".approval").wait_for()
    await look("approval")
    site.fakes["anthropic"].say(MARKDOWN, thinking="Hm.")
    await visitor.press("Allow")
    await visitor.sees("1.0")
    await visitor.settled()
    await visitor.find(".call summary").first.click()
    for theme in ("light", "dark"):
        await visitor.page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        await look(theme)
    await visitor.find(".model-button").click()
    await look("models")
    await visitor.page.keyboard.press("Escape")
    await visitor.press("Show in another format")
    await visitor.find("dialog code").wait_for()
    await look("show as")
    await visitor.page.keyboard.press("Escape")
    await visitor.page.set_viewport_size({"width": 360, "height": 740})
    await look("phone")
    await visitor.page.goto(f"{site.base_url}/#/costs")
    await visitor.find(".plot canvas").wait_for()
    await look("costs")
    assert found == []
