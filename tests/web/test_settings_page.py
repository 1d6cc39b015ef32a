"""Tests of the settings of a conversation on the page."""

from __future__ import annotations

from tests.web.conftest import Visitor
from tests.web.site import Site


async def save(visitor: Visitor, notice: str = "Saved") -> None:
    """Save the settings and wait until the dialog is closed. The notice of an earlier save may still be shown."""
    await visitor.press("Save")
    await visitor.find(".settings-form").wait_for(state="detached")
    await visitor.wait_for_text(notice)


async def test_settings_are_set_before_first_message_and_changed_later(visitor: Visitor, site: Site) -> None:
    fake = site.fakes["anthropic"]
    await visitor.open()
    await visitor.press("Settings of this conversation")
    await visitor.page.get_by_role("textbox", name="System prompt").fill("Answer in French.")
    await visitor.page.get_by_label("Temperature").fill("0.25")
    await visitor.page.get_by_label("write_file").uncheck()
    await save(visitor)
    await visitor.page.reload()  # the choice survives
    await visitor.find("#words").wait_for()
    fake.reply("Bonjour.")
    await visitor.ask_and_wait("Hello", "Bonjour.")
    assert "Answer in French." in str(fake.bodies[-1]["system"])
    assert [tool["name"] for tool in fake.bodies[-1]["tools"]] == ["ask_user", "read_file"]

    await visitor.press("Settings of this conversation")
    await visitor.find(".context-meter", "Context of claude-sonnet-5-5: about").wait_for()
    assert await visitor.page.get_by_role("textbox", name="System prompt").input_value() == "Answer in French."
    assert await visitor.page.get_by_label("Temperature").input_value() == "0.25"
    assert not await visitor.page.get_by_label("write_file").is_checked()
    await visitor.page.get_by_role("textbox", name="System prompt").fill("")
    await visitor.press("All on")
    await visitor.page.get_by_label("Effort of thinking").select_option("low")
    await save(visitor)
    fake.reply("Hello.")
    await visitor.ask_and_wait("And now?", "Hello.")
    assert "system" not in fake.bodies[-1]
    assert len(fake.bodies[-1]["tools"]) == 3


async def test_user_defaults_apply_and_invalid_policy_is_explained(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append("422")
    fake = site.fakes["anthropic"]
    await visitor.open()
    await visitor.press("Settings of this conversation")
    await visitor.page.get_by_role("textbox", name="System prompt").fill("Be brief.")
    await visitor.page.get_by_label("Also for my new conversations").check()
    await save(visitor, "Saved, also for new conversations")
    for answer in ("One.", "Two."):
        await visitor.press("New conversation")
        fake.reply(answer)
        await visitor.ask_and_wait("Count", answer)
        assert "Be brief." in str(fake.bodies[-1]["system"])
    await visitor.press("Settings of this conversation")
    await visitor.page.get_by_text("Routing policy of this conversation").click()
    policy = visitor.page.get_by_label("YAML or JSON")
    await policy.fill("rules: nothing")
    await visitor.press("Save")
    await visitor.find(".settings-form .unfinished", "schema_version").wait_for()
    await policy.fill("schema_version: 1\nglobal_default: gemini:gemini-3.8-flash")
    await save(visitor)
    site.fakes["gemini"].reply("By policy.")
    await visitor.ask_and_wait("Who?", "By policy.")
    await visitor.press("Settings of this conversation")
    await visitor.page.get_by_role("textbox", name="System prompt").fill("")
    await visitor.page.get_by_label("Also for my new conversations").check()
    await save(visitor, "Saved, also for new conversations")


async def test_conversation_beyond_context_window_is_truncated_with_notice(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    for number in range(3):
        site.fakes["anthropic"].reply(f"{number} " + "word " * 5_000)
        await visitor.ask_and_wait(f"{number} " + "word " * 2_500, f"{number} word word")
    await visitor.page.keyboard.press("Control+/")
    await visitor.page.get_by_label("Find a model").fill("gemini small")
    await visitor.find("button.model", "small").click()
    await visitor.find("dialog .banner", "This model will not receive the oldest 4 messages.").wait_for()
    await visitor.press("Swap")
    await visitor.wait_for_text("Model changed")
    await visitor.press("Settings of this conversation")
    await visitor.find(".context-meter", "Context of small").wait_for()
    await visitor.find(".context-meter .banner", "The oldest 4 messages will not be sent").wait_for()
    await visitor.page.get_by_text("reserved for the answer").wait_for()
    await visitor.press("Cancel")
    site.fakes["gemini"].reply("Short.")
    await visitor.ask_and_wait("And now?", "Short.")
    await visitor.find(".receipt", "without the oldest 4 messages").wait_for()
    assert "1 word" not in str(site.fakes["gemini"].bodies[-1])
    assert "2 word" in str(site.fakes["gemini"].bodies[-1])
    site.fakes["gemini"].fail(
        400, "The input token count exceeds the maximum number of tokens allowed."
    )  # its real window is smaller
    site.fakes["gemini"].reply("Shorter.")
    await visitor.ask_and_wait("Again?", "Shorter.")
    await visitor.find(".receipt", "without the oldest 6 messages").wait_for()
    await visitor.press("Why this answer?")
    await visitor.wait_for_text("the oldest 6 messages not sent")
    await visitor.wait_for_text("then sent again without the oldest messages")
