"""Options of one dialect are losses in other dialects and round-trip in their own."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import dialects
from dragoman.exchange import Options, Reasoning, Request, ToolChoice
from dragoman.fidelity import measure_conversion

QUESTION = {"role": "user", "parts": [{"text": "Go."}]}
FUNCTIONS = [{"functionDeclarations": [{"name": name, "description": "Does it."} for name in ("a", "b", "c")]}]


def losses_elsewhere(source: str, wire: dict[str, Any]) -> dict[str, list[str]]:
    request = dialects.load(source).read_request(wire)
    assert dialects.load(source).write_request(request).wire == wire
    return {
        name: [loss.block_type for loss in dialects.load(name).write_request(request).losses]
        for name in dialects.callable_names()
        if name != source
    }


@pytest.mark.parametrize("count", [1, 2])
def test_only_count_above_one_is_a_loss(count: int) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "n": count}
    gemini = {"contents": [QUESTION], "generationConfig": {"candidateCount": count}}
    for source, wire in (("openai_chat", chat), ("gemini", gemini)):
        for target, losses in losses_elsewhere(source, wire).items():
            assert losses == ([] if count == 1 or target in ("openai_chat", "gemini") else ["n"])


@pytest.mark.parametrize("mode", ["ANY", "AUTO", "VALIDATED"])
def test_allowed_functions_are_written_in_every_dialect(mode: str) -> None:
    config = {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": ["a", "b"]}}
    request = dialects.load("gemini").read_request({"contents": [QUESTION], "tools": FUNCTIONS, "toolConfig": config})
    for name in set(dialects.callable_names()) - {"gemini"}:
        written = dialects.load(name).write_request(request)
        assert "tool_choice.allowed" not in {loss.block_type for loss in written.losses}
        if name in ("openai_chat", "openai_responses"):
            assert dialects.load(name).read_request(written.wire).options.tool_choice.allowed == ("a", "b")
        else:
            assert "'name': 'c'" not in str(written.wire)
            assert "tool_choice.allowed" in {note.block_type for note in written.notes}


def test_forced_function_is_not_a_loss() -> None:
    config = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a"]}}
    losses = losses_elsewhere("gemini", {"contents": [QUESTION], "tools": FUNCTIONS, "toolConfig": config})
    assert losses["anthropic"] == losses["openai_chat"] == losses["openai_responses"] == []


def test_new_tool_choice_removes_allowed_functions() -> None:
    gemini = dialects.load("gemini")
    config = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a", "b"]}}
    request = gemini.read_request({"contents": [QUESTION], "tools": FUNCTIONS, "toolConfig": config})
    changed = request.replace(options=request.options.replace(tool_choice=ToolChoice("auto")))
    assert gemini.write_request(changed).wire["toolConfig"] == {"functionCallingConfig": {"mode": "AUTO"}}


def test_message_field_of_one_dialect_is_a_loss() -> None:
    messages = [{"role": "user", "content": "Hello.", "name": "bob"}]
    request = dialects.load("openai_chat").read_request({"model": "m", "messages": messages})
    written = dialects.load("anthropic").write_request(request)
    assert [(loss.block_type, loss.reason) for loss in written.losses] == [
        ("message.name", "only openai_chat has such a field")
    ]


def test_foreign_ids_and_states_are_hints() -> None:
    call = {
        "type": "function_call",
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
        "id": "fc_1",
        "status": "completed",
    }
    result = {"type": "function_call_output", "call_id": "c", "output": "done"}
    wire = {"model": "m", "input": [{"role": "user", "content": "Go."}, call, result]}
    request = dialects.load("openai_responses").read_request(wire)
    written = dialects.load("anthropic").write_request(request)
    assert written.losses == ()
    assert {note.block_type for note in written.notes if note.kind == "hint"} == {"tool_use.id", "tool_use.status"}


@pytest.mark.parametrize(
    ("source", "tier", "target", "expected", "reports"),
    [
        ("openai_chat", "default", "anthropic", "standard_only", ["adjusted"]),
        ("anthropic", "standard_only", "openai_chat", "default", ["adjusted"]),
        ("anthropic", "standard_only", "openai_responses", "default", ["adjusted"]),
        ("openai_chat", "priority", "anthropic", "auto", ["adjusted"]),
        ("openai_chat", "auto", "gemini", None, ["adjusted"]),
        ("openai_chat", "default", "ollama", None, ["adjusted"]),
        ("openai_chat", "flex", "anthropic", None, ["loss"]),
        ("openai_chat", "flex", "openai_responses", "flex", []),
    ],
)
def test_service_tier_is_mapped_to_target(
    source: str, tier: str, target: str, expected: str | None, reports: list[str]
) -> None:
    wire = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}], "service_tier": tier}
    written = dialects.load(target).write_request(dialects.load(source).read_request(wire))
    assert written.wire.get("service_tier", written.wire.get("serviceTier")) == expected
    found = (*written.losses, *written.notes)
    assert [report.kind for report in found if report.block_type == "service_tier"] == reports


REASONING = [
    Reasoning(effort=effort, enabled=enabled, budget_tokens=budget)
    for effort in (None, "", "none", "low", "max", "x_new")
    for enabled in (None, True, False)
    for budget in (None, 2_000)
]
MODELS = (
    "m",
    "claude-sonnet-4-5",
    "gemini-3-pro",
    "gpt-5",
    "us.anthropic.claude-opus-4-6-v1",
    "openai.gpt-oss-120b-1:0",
)


@pytest.mark.parametrize("target", dialects.names())
def test_reasoning_is_kept_or_reported_in_every_dialect(target: str) -> None:
    request = dialects.load("openai_chat").read_request({"messages": [{"role": "user", "content": "Go."}]})
    for reasoning in REASONING:
        for model in MODELS:
            asked = Request(model=model, messages=request.messages, options=Options(reasoning=reasoning))
            findings = measure_conversion(asked, dialects.load(target))
            assert [each for each in findings if each.outcome == "silent"] == [], (reasoning, model)


def test_empty_effort_is_left_out() -> None:
    fields = {"output_config": {"effort": ""}}
    wire = {"messages": [{"role": "user", "content": [{"text": "Go."}]}], "additionalModelRequestFields": fields}
    request = dialects.load("bedrock_converse").read_request(wire)
    written = dialects.load("openai_chat").write_request(request)
    assert "reasoning_effort" not in written.wire
    assert [(each.block_type, each.reason) for each in written.adjustments] == [
        ("reasoning.effort", "an empty effort is left out")
    ]


def test_effort_does_not_switch_reasoning_on() -> None:
    wire = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Go."}],
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "high"},
    }
    written = dialects.load("gemini_interactions").write_request(dialects.load("anthropic").read_request(wire))
    assert "thinking_level" not in written.wire["generation_config"]
    assert "reasoning" in {loss.block_type for loss in written.losses}
