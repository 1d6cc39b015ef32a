"""Tests of thirty turns with changing providers and failed answers in between: no provider rejects the next turn.

Beside the fake of each dialect there are two stricter ones: a Responses API that stores no items, and a server whose chat
template rejects what the templates of vLLM reject.
"""

from __future__ import annotations

import base64
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman import settings
from dragoman.exchange import SideEffects
from dragoman.message import ImageBlock, ImageSource, MessageStatus, TextBlock
from dragoman.store import open_store
from dragoman.tools import tool
from dragoman.turn import Agent
from tests.fake_providers import StrictProvider, call_part, strict_provider, text_part, thinking_part
from tests.turn.fake_agent import DIALECTS, make_agent, open_fake_agent, settings_for
from tests.turn.test_swaps import IMAGE, PIXEL

WITHOUT_STORE, TEMPLATE = "keeps-nothing", "template"
QUIRKS = {WITHOUT_STORE: ["store_nothing"], TEMPLATE: ["alternate_roles", "usage_when_asked"]}
TURNS = 30


@tool(side_effects=SideEffects.NONE)
def look_up(word: str) -> str:
    """Return the meaning of a word."""
    return f"{word} is a word"


def find_unstored_errors(body: Any) -> list[str]:
    """Return the errors of an API that stores no items: reasoning must have its encrypted content."""
    errors = [] if body.get("store") is False else ["store must be false"]
    if "reasoning.encrypted_content" not in body.get("include", ()):
        errors.append("encrypted reasoning is not requested")
    unsealed = [item for item in body["input"] if item.get("type") == "reasoning" and not item.get("encrypted_content")]
    return [*errors, *(f"Item with id '{item.get('id')}' not found." for item in unsealed)]


def find_template_errors(body: Any) -> list[str]:
    """Return the errors of chat templates: roles that do not alternate, later system messages, arguments without keys."""
    errors, before = [], ""
    for index, message in enumerate(body["messages"]):
        role = message["role"]
        if role == "system" and index:
            errors.append("System message must be at the beginning.")
        if role in ("user", "assistant") and role == before:
            errors.append("Conversation roles must alternate user/assistant/user/assistant/...")
        for item in message.get("tool_calls") or ():
            if not isinstance(json.loads(item["function"]["arguments"]), dict):
                errors.append("arguments must be an object")
        before = role if role != "system" else before
    return errors if before != "assistant" else [*errors, "The last message must not be of the assistant."]


async def open_fakes(stack: AsyncExitStack) -> dict[str, StrictProvider]:
    fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in DIALECTS}
    further = {
        WITHOUT_STORE: ("openai_responses", find_unstored_errors),
        TEMPLATE: ("openai_chat", find_template_errors),
    }
    for name, (dialect, rules) in further.items():
        fakes[name] = await stack.enter_async_context(strict_provider(dialect, seed=name, further_rules=rules))
    return fakes


def settings_with_quirks(folder: Path, fakes: dict[str, StrictProvider]) -> settings.Settings:
    settings_for(folder, fakes, DIALECTS[0])
    file = folder / "config.toml"
    text = file.read_text()
    for name, quirks in QUIRKS.items():
        text = text.replace(f"[providers.fake-{name}]\n", f"[providers.fake-{name}]\nquirks = {json.dumps(quirks)}\n")
    file.write_text(text)
    return settings.load(environment={"FAKE_KEY": "sk-fake"}, file=file, keyring=lambda _: None)


async def run_failing_turn(agent: Agent, fake: StrictProvider, session: str, name: str, number: int) -> None:
    """Run one turn with a failing answer: truncated in its text, truncated in a call, or an error of the provider."""
    match number % 3:
        case 0:
            fake.fail(500, "overloaded")
        case 1:
            fake.cut(700, thinking_part(f"broken thought {number}"), text_part("This text is truncated. " * 40))
        case _:
            fake.cut(
                900,
                thinking_part(f"broken thought {number}"),
                call_part("look_up", {"word": "w" * 400, "more": "m" * 400}),
            )
    ended = await agent.run(session, f"broken question {number}", model=name)
    assert ended.fault is not None
    fake.clear_script()


async def test_thirty_turns_with_failed_answers_are_accepted_by_every_provider(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        fakes = await open_fakes(stack)
        store = await stack.enter_async_context(open_store("memory:"))
        session = (await store.create_session()).id
        tools: Any = {"tools": [look_up], "system_prompt": "You know words."}
        agent = await stack.enter_async_context(make_agent(store, settings_with_quirks(tmp_path, fakes), **tools))
        names = list(fakes)
        for number in range(TURNS):
            name = names[number % len(names)]
            fake = fakes[name]
            if number % 2:
                await run_failing_turn(agent, fake, session, name, number)
            fake.answer_with(thinking_part(f"thought {number}"), call_part("look_up", {"word": f"a{number}"}))
            fake.answer_with(thinking_part(f"again {number}"), text_part(f"answer {number}"))
            content = [TextBlock(f"question {number}"), *([IMAGE] if number % 3 == 0 else [])]
            ended = await agent.run(session, content, model=name)
            assert ended.fault is None, (number, name, ended.fault, fake.refusals)
        assert {name: fake.refusals for name, fake in fakes.items()} == {name: [] for name in fakes}
        failed = [row async for row in store.history(session) if row.message.metadata.status is MessageStatus.ERROR]
        assert len(failed) == TURNS // 2
        for name, fake in fakes.items():  # the whole history again, to every provider
            fake.reply("I have read it all.")
            ended = await agent.run(session, "Have you read it all?", model=name)
            assert ended.fault is None, (name, fake.refusals)
            sent = json.dumps(fake.bodies[-1])
            assert all(f"question {number}" in sent and f"answer {number}" in sent for number in range(TURNS))
            assert sum(signature in sent for signature in fake.issued.signatures) >= (3 if '"signature"' in sent else 0)
        sealed = [s for s in fakes[WITHOUT_STORE].issued.signatures if s in json.dumps(fakes[WITHOUT_STORE].bodies[-1])]
        assert len(sealed) >= 6  # its own reasoning, byte for byte
        assert await store.verify() is not None


@pytest.mark.parametrize("stream", [True, False])
async def test_items_that_the_provider_lost_are_omitted(
    stream: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forgotten: list[str] = []

    def rules(body: Any) -> list[str]:
        known = [item["id"] for item in body["input"] if "id" in item]
        return [f"Item with id '{name}' not found." for name in known if name in forgotten]

    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(strict_provider("openai_responses", further_rules=rules))
        store = await stack.enter_async_context(open_store("memory:"))
        session = (await store.create_session()).id
        config = settings_for(tmp_path, {"openai_responses": fake}, "openai_responses")
        agent = await stack.enter_async_context(make_agent(store, config, tools=[look_up], stream=stream))
        fake.answer_with(thinking_part("Hm."), call_part("look_up", {"word": "a"}))
        fake.answer_with(thinking_part("So."), text_part("Foo."))
        assert (await agent.run(session, "Go.")).fault is None
        forgotten.extend(fake.issued.reasoning_ids.values())
        fake.reply("Bar.")
        ended = await agent.run(session, "And now?")
        assert ended.fault is None
        assert len(forgotten) == 2
        assert [body for body in fake.bodies if "And now?" in json.dumps(body)][-1] is fake.bodies[-1]
        sent = json.dumps(fake.bodies[-1])
        assert "Foo." in sent
        assert not any(name in sent for name in forgotten)
        assert "left out a thinking block" in caplog.text


async def test_truncated_call_is_reported_as_invalid_and_never_sent_raw(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat", "anthropic") as harness:
        agent = await harness.agent(tools=[look_up])
        emitted: list[Any] = []
        agent.bus.subscribe("test", emitted.append)
        harness.fakes["openai_chat"].cut(3000, call_part("look_up", {"word": "known", "rest": "r" * 2000}))
        ended = await agent.run(harness.session, "Look it up.", model="openai_chat")
        assert ended.fault is not None
        for name, fake in harness.fakes.items():
            fake.reply("I see.")
            ended = await agent.run(harness.session, "What happened?", model=name)
            assert ended.fault is None, fake.refusals
            sent = json.dumps(fake.bodies[-1])
            assert "invalid: the input of this call cannot be used" in sent
            assert "cancelled" not in sent
            assert "known" in sent
        assert [event.type for event in emitted].count("tool_input_invalid") == 1


async def test_workspace_image_is_sent_to_every_model_with_vision_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "seen.png").write_bytes(base64.b64decode(PIXEL))
    image = ImageBlock(ImageSource("file_ref", "seen.png"), "image/png")
    async with open_fake_agent(tmp_path, *DIALECTS) as harness:
        agent = await harness.agent(workspace=tmp_path, capability_policy="placeholder")
        for name, fake in harness.fakes.items():
            ended = await agent.run(harness.session, [TextBlock("What is this?"), image], model=name)
            assert ended.fault is None, (name, fake.refusals)
            assert PIXEL in json.dumps(fake.bodies[-1])
            ended = await agent.run(harness.session, "And now?", model=f"blind-{name}")
            assert ended.fault is None, (name, fake.refusals)
            assert PIXEL not in json.dumps(fake.bodies[-1])
