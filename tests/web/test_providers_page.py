"""Tests of the providers page."""

from __future__ import annotations

import re

from tests.fake_providers import strict_provider
from tests.web.conftest import Visitor
from tests.web.site import Site

KEY = "sk-a-key-that-works-1234"


async def test_added_server_answers_immediately(visitor: Visitor, site: Site) -> None:
    async with strict_provider("openai_chat") as fake:
        fake.listed, fake.good_key = {"data": [{"id": "llama", "max_model_len": 131072}, {"id": "tiny"}]}, KEY
        await visitor.open()
        await visitor.page.get_by_role("link", name="Add the key of a provider, or your own server").click()
        await visitor.press("Add a server")
        await visitor.page.get_by_label("Name").fill("My Server")
        await visitor.page.get_by_label("Base URL").fill(fake.base_url)
        await visitor.page.get_by_label("API key").fill("sk-wrong-wrong-wrong")
        await visitor.press("Find models")
        await visitor.find(".banner.bad", "The provider rejects this key.").wait_for()
        assert "Incorrect API key provided" in await visitor.find(".banner .details").inner_text()
        await visitor.page.get_by_label("API key").fill(KEY)
        await visitor.press("Find models")
        await visitor.page.get_by_label("tiny").uncheck()
        await visitor.press("Save with 1 model")
        await visitor.wait_for_text("My Server is ready: 1 model")
        await visitor.find(".provider-head", "My Server").get_by_text("key …1234 · 1 model").wait_for()
        await visitor.open("#/")
        await visitor.find(".model-button").click()
        await visitor.find("button.model", "my-server").click()
        fake.reply("I am new here.")
        await visitor.ask_and_wait("Hello", "I am new here.")
        assert fake.received[-1].headers["authorization"] == f"Bearer {KEY}"


async def test_rejected_key_opens_providers_and_server_key_is_kept(visitor: Visitor, site: Site) -> None:
    site.fakes["anthropic"].fail(401, "invalid x-api-key")
    await visitor.open()
    await visitor.ask("Hello?")
    banner = visitor.find(".banner.bad", "The provider rejected the API key.")
    await banner.wait_for()
    assert "invalid x-api-key" in await banner.inner_text()
    await visitor.press("Open providers")
    await visitor.find(".provider-head", "Anthropic").first.click()
    await visitor.wait_for_text("Remove it there to change it here.")


async def test_key_of_known_provider_is_tested_and_stored(visitor: Visitor, site: Site) -> None:
    async with strict_provider("openai_responses") as fake:
        fake.listed, fake.good_key = {"data": [{"id": "gpt-6.1-sol"}]}, KEY
        await visitor.open("#/providers")
        await visitor.page.get_by_label("Find a provider").fill("mistral")
        await visitor.find(".provider-head", re.compile("^Mistral")).click()
        await visitor.page.get_by_text("Another address").click()
        await visitor.page.get_by_label("Base URL").fill(fake.base_url)
        await visitor.page.get_by_label("API key").fill(KEY)
        await visitor.press("Test and save")
        await visitor.wait_for_text("Mistral is ready")
        await visitor.find(".provider-head", re.compile("^Mistral")).get_by_text("key …1234").wait_for()
        await visitor.find(".provider-head", re.compile("^Mistral")).click()
        await visitor.press("Remove")
        await visitor.wait_for_text("Removed")
        row = visitor.find(".provider-head", re.compile("^Mistral"))
        await row.wait_for()
        assert "key" not in await row.inner_text()


async def test_ollama_is_detected_and_its_models_are_offered(visitor: Visitor, site: Site) -> None:
    async with strict_provider("ollama", needs_key=False) as fake:
        fake.listed = {"models": [{"name": "llava:7b"}]}
        fake.shown["llava:7b"] = {"model_info": {"llama.context_length": 4096}, "capabilities": ["vision", "tools"]}
        await visitor.open("#/providers")
        await visitor.find(".provider-head", re.compile("^Ollama(?!,)")).click()
        await visitor.find(".banner.bad", "Nothing answers at this address.").wait_for()
        await visitor.page.get_by_label("Base URL").fill(fake.base_url)
        await visitor.press("Find models")
        await visitor.find(".model-choice label", "llava:7b").get_by_text("4.1k context").wait_for()
        await visitor.press("Save with 1 model")
        await visitor.wait_for_text("Ollama is ready")
        await visitor.open("#/")
        await visitor.find(".model-button").click()
        await visitor.find("button.model", "llava:7b").click()
        fake.reply("I run here.")
        await visitor.ask_and_wait("Hello", "I run here.")
