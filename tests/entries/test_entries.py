"""Tests of trace entries: types, builders and validation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from dragoman import entries
from dragoman.errors import FormatError
from tests.entries.examples import ALL_EXAMPLES, EXAMPLES, UNPRINTED_EXAMPLES

# The arguments with which each builder returns the example of its type.
BUILDER_ARGUMENTS: dict[str, dict[str, Any]] = {
    kind: {name: value for name, value in example.items() if name != "type"} for kind, example in EXAMPLES.items()
}
BUILDER_ARGUMENTS["action"] = {"tool_name": "list_tables", "tool_args": {"schema": "public"}, "timestamp": 1234567890.5}
BUILDER_ARGUMENTS["action"]["turn_id"] = "turn_1"
for plan_type in ("strategic_plan", "script_plan"):
    BUILDER_ARGUMENTS[plan_type]["plan"] = BUILDER_ARGUMENTS[plan_type].pop("content")


def test_types_are_those_of_specification_and_framework() -> None:
    assert sorted(entries.TYPES) == sorted([*EXAMPLES, *UNPRINTED_EXAMPLES])
    assert len(entries.TYPES) == 16
    assert all(getattr(entries, kind.upper()) == kind for kind in entries.TYPES)


def test_collections_equal_those_of_framework() -> None:
    assert entries.CONVERSATION_TYPES == ("user_message", "assistant_message")
    assert entries.EXECUTION_TRACE_TYPES == ("task", "action", "observation", "error")
    assert entries.COMPLETION_TYPES == ("final", "synthesis")
    assert entries.TURN_MARKERS == ("task",)
    assert entries.PLANNING_TYPES == ("strategic_plan", "suggested_plan", "script_plan", "script_instruction")
    assert entries.CONTEXT_TYPES == ("director_context", "injected_context")
    assert entries.GLOBAL_TYPES == ("global_observation", "synthesis")
    assert entries.DELEGATION_TYPES == ("delegation",)


@pytest.mark.parametrize("example", ALL_EXAMPLES, ids=lambda example: str(example["type"]))
def test_specification_examples_are_valid(example: dict[str, Any]) -> None:
    assert entries.find_problems(example) == []
    assert entries.validate_entry(example) == example
    assert entries.validate_entry(example) is not example


@pytest.mark.parametrize("kind", EXAMPLES)
def test_builder_reproduces_example_with_key_order(kind: str) -> None:
    entry = entries.BUILDERS[kind](**BUILDER_ARGUMENTS[kind])
    assert list(entry.items()) == list(EXAMPLES[kind].items())


def test_types_without_example_have_builders() -> None:
    assert entries.create_suggested_plan_entry(["first", "then"], 0) == UNPRINTED_EXAMPLES["suggested_plan"]
    assert (
        entries.create_script_instruction_entry("Step 1", step=1, script=True)
        == UNPRINTED_EXAMPLES["script_instruction"]
    )
    assert entries.create_injected_context_entry({"job": 7}) == UNPRINTED_EXAMPLES["injected_context"]


@pytest.mark.parametrize("build", entries.BUILDERS.values(), ids=entries.BUILDERS)
def test_zero_timestamp_is_stored_and_missing_fields_are_omitted(build: Callable[..., entries.Entry]) -> None:
    required = [
        parameter.name
        for parameter in inspect.signature(build).parameters.values()
        if parameter.default is parameter.empty
    ]
    arguments: dict[str, Any] = {
        name: {} if name in ("tool_args", "plan") else "x" for name in required if name != "extra"
    }
    assert build(**arguments, timestamp=0)["timestamp"] == 0
    entry = build(**arguments, turn_id="", mood="calm")
    assert "turn_id" not in entry
    assert "timestamp" not in entry
    assert None not in entry.values()
    assert entry["mood"] == "calm"


def test_zero_phase_id_is_stored() -> None:
    assert entries.create_synthesis_entry("x", "m", 0)["phase_id"] == 0


def test_extra_keys_are_last_and_override_others() -> None:
    entry = entries.create_observation_entry("x", type="global_observation", from_worker="w")
    assert entry == {"type": "global_observation", "content": "x", "from_worker": "w"}
    with pytest.raises(FormatError, match=r"entry\.type: unknown type 'remark'"):
        entries.create_observation_entry("x", type="remark")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("hello", "an entry is an object, not str"),
        ({}, "type: the type is missing"),
        ({"type": "User_Message", "content": "x"}, "type: unknown type 'User_Message'"),
        ({"type": ["task"], "content": "x"}, "type: unknown type ['task']"),
        ({"type": "task"}, "content: required for task"),
        ({"type": "action", "content": "x", "tool": "t"}, "args: required for action"),
        ({"type": "action", "tool": "t", "args": '{"a": 1}'}, "args: an object, not '{\"a\": 1}'"),
        ({"type": "action", "tool": "", "args": {}}, "tool: a text, not ''"),
        ({"type": "action", "tool": None, "args": {}}, "tool: a text, not None"),
        ({"type": "delegation", "worker": "w"}, "task: required for delegation"),
        ({"type": "synthesis", "content": "x"}, "from_manager: required for synthesis"),
        (
            {"type": "synthesis", "content": "x", "from_manager": "m", "phase_id": True},
            "phase_id: a whole number, not True",
        ),
        ({"type": "strategic_plan", "content": "first"}, "content: an object, not 'first'"),
        ({"type": "error", "content": "x", "error_type": 7}, "error_type: a text, not 7"),
        (
            {"type": "task", "content": "x", "timestamp": "2026-01-01"},
            "timestamp: seconds since 1970, not '2026-01-01'",
        ),
        ({"type": "task", "content": "x", "timestamp": float("inf")}, "timestamp: seconds since 1970, not inf"),
        ({"type": "task", "content": "x", "turn_id": 3}, "turn_id: a text, not 3"),
        ({"type": "task", "content": {"when": object()}}, "it: object is not JSON"),
        ({"type": "task", "content": "\ud800"}, "it: a lone surrogate at character 0"),
    ],
)
def test_invalid_entry_error_names_field(entry: Any, problem: str) -> None:
    assert problem in " | ".join(entries.find_problems(entry))
    with pytest.raises(FormatError) as raised:
        entries.validate_entry(entry)
    assert raised.value.code in ("unknown_entry_type", "invalid_entry")


def test_error_lists_all_problems_and_known_types() -> None:
    with pytest.raises(FormatError) as raised:
        entries.validate_entry({"type": "delegation", "timestamp": "now"}, "entry 3")
    assert str(raised.value) == (
        "entry 3: worker: required for delegation; task: required for delegation; timestamp: seconds since 1970, not 'now'"
    )
    with pytest.raises(FormatError, match=r"Use one of user_message, .*, injected_context") as raised:
        entries.validate_entry({"type": "thought", "content": "x"})
    assert raised.value.code == "unknown_entry_type"


def test_row_with_nulls_is_valid_entry() -> None:
    row = {"type": "error", "content": "x", "error_type": None, "timestamp": None, "turn_id": None, "tool": None}
    assert entries.find_problems(row) == []


def test_truncated_text_states_removed_length() -> None:
    assert entries.truncate("short", 5) == "short"
    truncated = entries.truncate("x" * 1600, entries.LIMITS["observation"])
    assert truncated == "x" * 1500 + "\n[TRUNCATED: 100 chars removed]"
    assert entries.LIMITS == {
        "strategic_plan": 2000,
        "director_context": 4000,
        "data_model": 6000,
        "observation": 1500,
        "tool_args": 500,
        "previous_output": 5000,
        "manifest": 6000,
    }
