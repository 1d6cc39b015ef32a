"""Tests of the plan of a model swap."""

from __future__ import annotations

import pytest

import dragoman
from dragoman import catalog, pricing
from dragoman.adapter import Adapter
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.handoff import Policy, plan_swap
from dragoman.message import ImageBlock, ImageSource, Message, Role, TextBlock, ToolResultBlock, ToolUseBlock
from tests.test_adapter import ANSWER, CONTEXT, adapter, result, user
from tests.test_codec import NOW

IMAGE = ImageBlock(ImageSource("base64", "aGk="), "image/png")
TEXT_ONLY = """
[providers.acme]
title = "Acme"
dialect = "openai_chat"

[models."acme:text-only"]
max_context_tokens = 1000

[models."acme:mute"]
supports_tools = false
supports_system_prompt = false
max_context_tokens = 1000
"""


def text_only(name: str = "acme:text-only") -> Adapter:
    rows = catalog.builtin().overlay(catalog.rows_from_toml(TEXT_ONLY))
    return Adapter(rows.provider("acme"), rows.model(name))


def history() -> list[Message]:
    answer = adapter("anthropic:claude-sonnet-4-6").from_wire_response(ANSWER, CONTEXT)
    return [user(TextBlock("What is this?"), IMAGE), answer, result(answer.content[2].id)]


def test_capable_model_is_not_blocked_and_the_plan_lists_omissions() -> None:
    plan = plan_swap(history(), adapter("openai:gpt-5"))
    assert plan.is_possible
    assert plan.fits
    outcomes = {(block.block_type, block.place): block.outcome for block in plan.blocks}
    assert outcomes == {
        ("text", "content[0]"): "kept",
        ("image", "content[1]"): "kept",
        ("thinking", "content[0]"): "left_out",
        ("text", "content[1]"): "kept",
        ("tool_use", "content[2]"): "kept",
        ("tool_result", "content[0]"): "kept",
        ("text", "content[0].content[0]"): "kept",
    }
    assert next(block.reason for block in plan.blocks if block.outcome == "left_out")


@pytest.mark.parametrize("model", ["acme:text-only", "openai:gpt-5", "ollama:llama3.2", "cohere:command-a-03-2025"])
def test_failed_result_without_an_error_flag_is_kept_with_a_note(model: str) -> None:
    target = text_only() if model == "acme:text-only" else adapter(model)
    answered, failed = result("tu_01KR3ER9E00000000000000QQE"), result("tu_01KR3ER9E00000000000000QQF")
    (block,) = failed.content
    failed = failed.replace(id="01HZ004", content=(block.replace(is_error=True),))
    calls = tuple(ToolUseBlock(message.content[0].tool_use_id, "f", {}) for message in (answered, failed))  # type: ignore[union-attr]
    question = user(TextBlock("")).replace(id="01HZ002", role=Role.ASSISTANT, content=calls)
    plan = plan_swap([user(TextBlock("Go.")), question, answered, failed], target, policy="placeholder")
    results = {
        block_plan.message_id: block_plan for block_plan in plan.blocks if block_plan.block_type == "tool_result"
    }
    assert {block_plan.outcome for block_plan in results.values()} == {"kept"}
    assert results[answered.id].reason == ""
    assert "no error flag" in results[failed.id].reason


def test_swap_back_omits_nothing() -> None:
    plan = plan_swap(history(), adapter("anthropic:claude-opus-4-7"))
    assert {block.outcome for block in plan.blocks} == {"kept"}


@pytest.mark.parametrize(("policy", "text"), [("placeholder", "[image (image/png)]"), ("describe", "a red dot")])
def test_placeholder_and_describe_replace_media_with_text(policy: Policy, text: str) -> None:
    before = history()
    plan = plan_swap(before, text_only(), policy=policy, describe=lambda _: "a red dot")
    assert plan.is_possible
    assert plan.messages[0].content == (TextBlock("What is this?"), TextBlock(text))
    assert [block.outcome for block in plan.blocks if block.block_type == "image"] == ["projected"]
    assert before == history()
    assert text in str(text_only().to_wire(plan.messages).wire)
    # A swap back sends the image again: the stored history is unchanged.
    assert "aGk=" in str(adapter("anthropic:claude-sonnet-4-6").to_wire(before).wire)


def test_image_inside_a_result_is_planned() -> None:
    messages = history()
    result_with_image = messages[2].content[0].replace(content=(TextBlock("see"), IMAGE))
    assert isinstance(result_with_image, ToolResultBlock)
    plan = plan_swap(
        [*messages[:2], messages[2].replace(content=(result_with_image,))], text_only(), policy="placeholder"
    )
    assert plan.messages[2].content[0].content == (TextBlock("see"), TextBlock("[image (image/png)]"))


def test_describe_policy_requires_a_describe_function() -> None:
    with pytest.raises(ValueError, match="needs a describe function"):
        plan_swap(history(), text_only(), policy="describe")


def test_tool_definitions_count_as_tool_use() -> None:
    tool = ToolDefinition("f", "F.", {"type": "object"}, SideEffects.NONE)
    assert plan_swap([user(TextBlock("Hi."))], text_only("acme:mute")).is_possible
    assert not plan_swap([user(TextBlock("Hi."))], text_only("acme:mute"), tools=[tool]).is_possible


def test_plan_prices_the_first_turn() -> None:
    prices = pricing.library_prices(catalog.builtin().price_names)
    plan = plan_swap(history(), adapter("anthropic:claude-sonnet-4-6"), prices=prices, at=NOW)
    assert plan.first_turn_usd == plan.estimated_input_tokens * 3 / dragoman.pricing.MILLION
    assert plan_swap(history(), text_only(), prices=prices, at=NOW).first_turn_usd is None


def test_history_that_does_not_fit_loses_its_oldest_turns() -> None:
    messages = [user(TextBlock(f"{number} " + "word " * 200)) for number in range(12)]
    plan = plan_swap(messages, text_only(), prices=pricing.library_prices(), at=NOW)
    assert plan.is_possible
    assert not plan.fits
    assert plan.messages == tuple(messages[plan.omitted_count :])
    assert 0 < text_only().estimate_input_tokens(plan.messages) <= 500 < plan.estimated_input_tokens
    alone = plan_swap([*messages, user(TextBlock("word " * 2_000))], text_only())
    assert alone.failures == ("exceeds_context_window",)
    assert alone.omitted_count == 12
