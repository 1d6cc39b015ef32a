"""Tests of the explanation of answers, costs, and comparisons of models on the page."""

from __future__ import annotations

import json

from tests.fake_providers import call_part, text_part
from tests.web.conftest import Visitor
from tests.web.site import Site


async def open_why(visitor: Visitor) -> None:
    """Open the explanation of the last answer."""
    await visitor.page.get_by_role("button", name="Why this answer?").last.click()
    await visitor.find(".why .waterfall").wait_for()


async def test_explanation_of_answer_is_on_one_screen(visitor: Visitor, site: Site) -> None:
    fake = site.fakes["anthropic"]
    fake.answer_with(text_part("I look."), call_part("read_file", {"path": "README.md"}))
    fake.reply("A lantern.")
    await visitor.open()
    await visitor.ask_and_wait("What is in the README?", "A lantern.")
    await open_why(visitor)
    assert "claude-sonnet" in await visitor.find(".why .figure").inner_text()
    assert await visitor.find(".chain li.chose").count() == 1
    assert "unchanged" in await visitor.find(".why-section", "What the model received").inner_text()
    assert "Nothing was lost." in await visitor.find(".why-section", "What the model received").inner_text()
    assert "$" in await visitor.find(".why-section table tr").last.inner_text()
    labels = await visitor.find(".waterfall .label").all_inner_texts()
    assert [label.split()[0] for label in labels] == ["Turn", "Choose", "Call", "Tool", "Call"]
    assert "complete · 2 model calls, 1 tool call" in await visitor.find(".waterfall").inner_text()
    assert "no agent asked" in await visitor.find(".chain").inner_text()
    assert "No attempt was retried." in await visitor.find(".why").inner_text()
    await visitor.find(".why summary", "Sent to the provider").click()
    request = await visitor.find(".why details[open] code").inner_text()
    assert '"A lantern is lit' in request.replace("\\n", "") or "lantern on" in request
    assert "sk-not-a-real-key" not in await visitor.find(".why").inner_text()
    await visitor.page.get_by_role("link", name="Back to the answer").click()
    await visitor.wait_for_text("A lantern.")


async def test_gateway_answer_has_explanation(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply("From the gateway.")
    function = {"name": "read_file", "description": "Read a file.", "parameters": {"type": "object"}}
    body = {
        "model": "sonnet",
        "messages": [{"role": "user", "content": "gateway question"}],
        "tools": [{"type": "function", "function": function}],
        "temperature": 0.25,
    }
    answer = await visitor.context.request.post(f"{site.base_url}/v1/chat/completions", data=body)
    assert answer.status == 200, await answer.text()
    await visitor.open()
    await visitor.find(".thread a", "gateway question").click()
    await visitor.wait_for_text("From the gateway.")
    await open_why(visitor)
    assert "openai_chat" in await visitor.find(".why-section", "Route").inner_text()
    await visitor.find(".why-section summary", "Received from the provider").wait_for()  # loaded without a click
    titles = await visitor.find(".why-section summary").all_inner_texts()
    starts = ("Received from the client", "Sent to the client", "Sent to the provider", "Received from the provider")
    assert all(any(title.startswith(start) for title in titles) for start in starts)
    received = await visitor.find(".why-section", "What the model received").inner_text()
    assert "1 tool: read_file. Options: temperature 0.25." in received
    assert "temperature this model has no such option" in received
    assert "lost in the translation" not in received, "a loss that has its reason above"
    assert "with the tools and options that the client sent" in await visitor.find(".why").inner_text()
    await visitor.find(".why summary", "Sent to the provider").click()
    request = await visitor.find(".why details[open] code").inner_text()
    assert json.loads(request) == site.fakes["anthropic"].bodies[-1]


# --- costs -----------------------------------------------------------------------------------------------------------


async def test_costs_have_date_range_tables_tooltip_and_csv(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].reply("Not much.")
    await visitor.open()
    await visitor.ask_and_wait("What do you cost?", "Not much.")
    await visitor.open("#/costs")
    await visitor.find(".costs .figure", "$").wait_for()
    headings = await visitor.find(".costs-table h2").all_inner_texts()
    assert headings == ["By model", "By conversation", "By day"]
    assert "claude-sonnet" in await visitor.find(".costs-table", "By model").inner_text()
    await visitor.find(".plot .u-over").hover()
    await visitor.find(".tooltip").wait_for()
    async with visitor.page.expect_download() as download:
        await visitor.press("Download CSV")
    lines = (await (await download.value).path()).read_text("utf-8").splitlines()
    assert lines[0].startswith("time,thread,title,model,")
    assert len(lines) > 1
    await visitor.page.get_by_label("People").select_option("all")
    await visitor.find(".costs-table h2", "By person").wait_for()
    await visitor.page.get_by_label("Days").select_option("custom")
    await visitor.page.get_by_label("To", exact=True).fill("2001-01-01")
    await visitor.wait_for_text("No costs in these days.")
    await visitor.page.get_by_label("Days").select_option("all")
    await visitor.find(".costs-table a", "What do you cost?").click()
    await visitor.wait_for_text("Not much.")


# --- several models --------------------------------------------------------------------------------------------------


async def choose_models(visitor: Visitor, *names: str) -> None:
    """Select only these models, and send the question to them."""
    await visitor.find("dialog .choices input").first.wait_for()
    for box in await visitor.find("dialog input[type=checkbox]:checked").all():
        await box.uncheck()
    for name in names[:-1]:
        await visitor.find("dialog .choices label").get_by_text(name, exact=True).first.click()
    await visitor.page.get_by_label("Find a model").fill(names[-1])
    await visitor.page.keyboard.press("Enter")
    await visitor.press(f"Ask {len(names)} models")


async def test_models_answer_side_by_side_and_one_answer_is_kept(visitor: Visitor, site: Site) -> None:
    await visitor.open()
    site.fakes["anthropic"].reply("Before.")
    await visitor.ask_and_wait("First question", "Before.")
    site.fakes["anthropic"].reply("From Anthropic.\n\n```\n" + "wide " * 100 + "\n```\n")
    site.fakes["gemini"].reply("From Google.")
    await visitor.write("Who are you?")
    await visitor.press("Ask several models")
    await choose_models(visitor, "claude-sonnet-5-5", "blind")
    await visitor.wait_for_text("From Anthropic.")
    await visitor.wait_for_text("From Google.")
    assert await visitor.find(".column").count() == 2
    overflow = "[...document.querySelectorAll('.column')].map(it => it.scrollWidth - it.clientWidth)"
    assert await visitor.page.evaluate(overflow) == [0, 0]
    await visitor.page.reload()
    await visitor.wait_for_text("From Google.")
    await visitor.page.get_by_role("button", name="Keep the answer from blind").click()
    await visitor.wait_for_text("The other answers stay as versions")
    await visitor.find(".versions", "2/2").wait_for()
    assert "blind" in await visitor.find(".model-button").inner_text()
    assert await visitor.find(".answer").count() == 2  # with the earlier answer
    await visitor.press("Previous version")
    await visitor.wait_for_text("From Anthropic.")
    assert await visitor.find("#words").input_value() == ""


async def test_comparison_starts_conversation_although_one_model_fails(visitor: Visitor, site: Site) -> None:
    visitor.expected_errors.append("429")
    await visitor.open()
    site.fakes["anthropic"].reply("I am here.")
    site.fakes["gemini"].fail(429, "slow down")
    await visitor.write("Anybody?")
    await visitor.press("Ask several models")
    await choose_models(visitor, "claude-sonnet-5-5", "blind")
    await visitor.wait_for_text("I am here.")
    await visitor.find(".column .banner.bad", "Retry").wait_for()
    assert await visitor.find(".column", "Retry").locator("header button").is_disabled()  # there is no answer to keep
    await visitor.page.get_by_role("button", name="Keep the answer from claude-sonnet-5-5").click()
    await visitor.find(".versions", "1/2").wait_for()
