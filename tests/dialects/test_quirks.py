"""Tests of the quirks of providers: the written request and its losses."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from dragoman import catalog, dialects
from dragoman.event import fold
from dragoman.exchange import (
    Options,
    Reasoning,
    Request,
    ResponseFormat,
    SideEffects,
    ToolChoice,
    ToolDefinition,
)
from dragoman.message import Role
from dragoman.wire.message_builder import make_message
from tests.conftest import IS_FULL
from tests.corpus import records

CHAT = dialects.load("openai_chat")
RESPONSES = dialects.load("openai_responses")
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
STRICT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
LAX = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "f"}}
USAGE_OPTIONS = {"include_usage": True}
EFFORT, BUDGET = Reasoning(effort="low"), Reasoning(budget_tokens=512)
ON, OFF, NONE = Reasoning(enabled=True), Reasoning(enabled=False), Reasoning(effort="none")
THINKING: dict[bool, Any] = {True: {"thinking": {"type": "enabled"}}, False: {"thinking": {"type": "disabled"}}}

# quirks, options, expected wire of Chat Completions, expected wire with the quirks, expected losses
CASES: list[tuple[str, Options, dict[str, Any], dict[str, Any], list[str]]] = [
    ("max_tokens", Options(max_output_tokens=5), {"max_completion_tokens": 5}, {"max_tokens": 5}, []),
    ("random_seed", Options(seed=7), {"seed": 7}, {"random_seed": 7}, []),
    (
        "any_for_required",
        Options(tool_choice=ToolChoice("required")),
        {"tool_choice": "required"},
        {"tool_choice": "any"},
        [],
    ),
    ("any_for_required", Options(tool_choice=ToolChoice("auto")), {"tool_choice": "auto"}, {"tool_choice": "auto"}, []),
    ("top_k", Options(top_k=3), {}, {"top_k": 3}, []),
    (
        "own_service_tiers",
        Options(service_tier="on_demand"),
        {"service_tier": "default"},
        {"service_tier": "on_demand"},
        [],
    ),
    ("usage_when_asked", Options(stream=True), {"stream": True}, {"stream": True, "stream_options": USAGE_OPTIONS}, []),
    ("usage_when_asked", Options(stream=False), {"stream": False}, {"stream": False}, []),
    ("usage_when_asked no_stream_options", Options(stream=True), {"stream": True}, {"stream": True}, []),
    ("reasoning_object", Options(reasoning=EFFORT), {"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}, []),
    (
        "reasoning_object",
        Options(reasoning=BUDGET),
        {"reasoning_effort": "low"},
        {"reasoning": {"max_tokens": 512}},
        [],
    ),
    ("reasoning_object", Options(reasoning=ON), {"reasoning_effort": "medium"}, {"reasoning": {"enabled": True}}, []),
    ("thinking_object", Options(reasoning=ON), {"reasoning_effort": "medium"}, THINKING[True], []),
    ("thinking_object", Options(reasoning=OFF), {}, THINKING[False], []),
    ("thinking_object", Options(reasoning=EFFORT), {"reasoning_effort": "low"}, {"reasoning_effort": "low"}, []),
    ("thinking_object", Options(reasoning=NONE), {"reasoning_effort": "none"}, THINKING[False], []),
    ("thinking_object", Options(reasoning=BUDGET), {"reasoning_effort": "low"}, THINKING[True], ["reasoning"]),
    ("enable_thinking", Options(reasoning=OFF), {}, {"enable_thinking": False}, []),
    ("enable_thinking", Options(reasoning=EFFORT), {"reasoning_effort": "low"}, {"reasoning_effort": "low"}, []),
    (
        "enable_thinking no_effort",
        Options(reasoning=EFFORT),
        {"reasoning_effort": "low"},
        {"enable_thinking": True},
        ["reasoning"],
    ),
    (
        "enable_thinking thinking_budget",
        Options(reasoning=BUDGET),
        {"reasoning_effort": "low"},
        {"enable_thinking": True, "thinking_budget": 512},
        [],
    ),
    ("no_max_output_tokens", Options(max_output_tokens=5), {"max_completion_tokens": 5}, {}, ["max_output_tokens"]),
    ("no_temperature", Options(temperature=0.5), {"temperature": 0.5}, {}, ["temperature"]),
    ("no_user", Options(user="u"), {"user": "u"}, {}, ["user"]),
    (
        "no_openai_options",
        Options(store=False, metadata={"a": "b"}, verbosity="low"),
        {"store": False, "metadata": {"a": "b"}, "verbosity": "low"},
        {},
        ["metadata", "verbosity"],
    ),
    (
        "no_openai_options metadata prompt_cache_key",
        Options(metadata={"a": "b"}, verbosity="low", prompt_cache_key="k"),
        {"metadata": {"a": "b"}, "verbosity": "low", "prompt_cache_key": "k"},
        {"metadata": {"a": "b"}, "prompt_cache_key": "k"},
        ["verbosity"],
    ),
    ("no_service_tier", Options(service_tier="flex"), {"service_tier": "flex"}, {}, ["service_tier"]),
    ("no_stop", Options(stop_sequences=("END",)), {"stop": ["END"]}, {}, ["stop_sequences"]),
    ("no_seed", Options(seed=7), {"seed": 7}, {}, ["seed"]),
    (
        "no_penalties",
        Options(presence_penalty=1, frequency_penalty=2),
        {"presence_penalty": 1, "frequency_penalty": 2},
        {},
        ["presence_penalty", "frequency_penalty"],
    ),
    (
        "no_strict",
        Options(response_format=ResponseFormat("json_schema", SCHEMA, "answer", strict=True)),
        {"response_format": STRICT},
        {"response_format": LAX},
        ["response_format"],
    ),
    (
        "no_json_schema",
        Options(response_format=ResponseFormat("json_schema", SCHEMA, "answer", strict=True)),
        {"response_format": STRICT},
        {"response_format": {"type": "json_object"}},
        ["response_format"],
    ),
    (
        "no_named_tool",
        Options(tool_choice=ToolChoice("tool", "f")),
        {"tool_choice": NAMED},
        {"tool_choice": "required"},
        ["tool_choice"],
    ),
    (
        "auto_tool_choice_only",
        Options(tool_choice=ToolChoice("required")),
        {"tool_choice": "required"},
        {},
        ["tool_choice"],
    ),
    (
        "auto_tool_choice_only",
        Options(tool_choice=ToolChoice("auto")),
        {"tool_choice": "auto"},
        {"tool_choice": "auto"},
        [],
    ),
]
TESTED_BELOW = {"terminal_reason_optional", "no_stream_options", "alternate_roles", "no_prefill"}
TOOL = ToolDefinition("f", "", SCHEMA, SideEffects.READ)
TOOL_WIRE = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def tools_for(options: Options) -> tuple[tuple[ToolDefinition, ...], dict[str, Any]]:
    """Return the tools that a tool choice requires, and their wire."""
    return ((TOOL,), {"tools": [TOOL_WIRE]}) if options.tool_choice is not None else ((), {})


def test_every_quirk_has_a_test() -> None:
    assert {quirk for quirks, *_ in CASES for quirk in quirks.split()} | TESTED_BELOW == set(CHAT.QUIRKS)


@pytest.mark.parametrize(("quirks", "options", "plain", "written", "lost"), CASES)
def test_request_is_written_with_quirk(
    quirks: str, options: Options, plain: dict[str, Any], written: dict[str, Any], lost: list[str]
) -> None:
    tools, tools_wire = tools_for(options)
    request = Request(model="m", messages=(), tools=tools, options=options)
    head = {"model": "m", "messages": [], **tools_wire}
    assert CHAT.write_request(request).wire == {**head, **plain}
    result = CHAT.write_request(request, quirks.split())
    assert result.wire == {**head, **written}
    assert [loss.block_type for loss in result.losses] == lost
    assert all(loss.adapter == "openai_chat" and loss.reason for loss in result.losses)


@pytest.mark.parametrize(("quirks", "options", "plain", "written", "lost"), CASES)
def test_request_that_was_read_is_fitted_to_quirk(
    quirks: str, options: Options, plain: dict[str, Any], written: dict[str, Any], lost: list[str]
) -> None:
    tools, tools_wire = tools_for(options)
    head = {"model": "m", "messages": [], **tools_wire}
    theirs = {**head, **written}
    if not lost:  # supported options are unchanged
        assert CHAT.write_request(CHAT.read_request(theirs), quirks.split()).wire == theirs
    read = CHAT.read_request({**head, **plain})
    result = CHAT.write_request(read, quirks.split())
    alike = Request(model="m", messages=(), tools=tools, options=read.options)
    assert result.wire == CHAT.write_request(alike, quirks.split()).wire
    assert CHAT.write_request(read).wire == {**head, **plain}


def test_roles_alternate_if_chat_template_requires_it() -> None:
    texts = [(Role.USER, "Hi."), (Role.SYSTEM, "Be brief."), (Role.USER, "Well?"), (Role.ASSISTANT, "Yes.")]
    request = Request(model="m", messages=tuple(make_message(role, text) for role, text in texts))
    result = CHAT.write_request(request, ["alternate_roles"])
    assert [message["role"] for message in result.wire["messages"]] == ["system", "user", "assistant"]
    assert [part["text"] for part in result.wire["messages"][1]["content"]] == ["Hi.", "Well?"]
    assert [item.block_type for item in result.adjustments] == ["messages", "messages"]
    assert len(CHAT.write_request(request).wire["messages"]) == 4


def test_prefill_is_omitted_without_support() -> None:
    request = Request(model="m", messages=(make_message(Role.USER, "Hi."), make_message(Role.ASSISTANT, "Yes, ")))
    result = CHAT.write_request(request, ["no_prefill"])
    assert [message["role"] for message in result.wire["messages"]] == ["user", "assistant", "user"]
    assert [item.block_type for item in result.adjustments] == ["messages"]
    assert CHAT.write_request(request).wire["messages"][-1]["content"] == "Yes, "


def test_strict_is_removed_from_tools() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    legacy = {"name": "g", "parameters": SCHEMA, "strict": True}
    wire = {"model": "m", "messages": [], "tools": [tool, {"type": "own", "x": 1}], "functions": [legacy]}
    result = CHAT.write_request(CHAT.read_request(wire), ["no_strict"])
    assert result.wire["tools"] == [
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
        wire["tools"][1],
    ]
    assert result.wire["functions"] == [{"name": "g", "parameters": SCHEMA}]
    assert [loss.block_type for loss in result.losses] == ["tool", "tool"]
    plain = ToolDefinition("f", "", SCHEMA, SideEffects.NONE)
    assert CHAT.write_request(Request(model="m", messages=(), tools=(plain,)), ["no_strict"]).losses == ()


def test_stream_options_are_omitted_with_quirk() -> None:
    wire = {"model": "m", "messages": [], "stream": True, "stream_options": USAGE_OPTIONS}
    result = CHAT.write_request(CHAT.read_request(wire), ["no_stream_options"])
    assert "stream_options" not in result.wire
    assert [loss.block_type for loss in result.losses] == ["stream_options"]


def test_usage_request_keeps_other_stream_options() -> None:
    wire = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": False}}
    assert CHAT.write_request(CHAT.read_request(wire), ["usage_when_asked"]).wire == wire


def test_unknown_fields_inside_options_round_trip() -> None:
    wire = {"model": "m", "messages": [], "thinking": {"type": "enabled", "clear_thinking": False}}
    assert CHAT.write_request(CHAT.read_request(wire), ["thinking_object"]).wire == wire


def test_stream_without_finish_reason_requires_quirk() -> None:
    chunk = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi."}}]}
    stream = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
    for quirks, code in ((["terminal_reason_optional"], None), ([], "stream_incomplete")):
        reader = CHAT.stream_reader(None, quirks)
        reply = fold([*reader.feed(stream), *reader.close()])
        assert (reply.fault and reply.fault.code) == code
        assert reply.content[0].text == "Hi."


def test_responses_providers_have_quirks() -> None:
    options = Options(max_output_tokens=5, temperature=0.5, service_tier="flex", user="u")
    request = Request(model="m", messages=(), options=options)
    plain = RESPONSES.write_request(request)
    assert plain.losses == ()
    assert plain.wire["max_output_tokens"] == 5
    quirks = ["no_max_output_tokens", "no_temperature", "no_service_tier", "no_user", "store_nothing"]
    assert set(quirks) <= set(RESPONSES.QUIRKS)
    result = RESPONSES.write_request(request, quirks)
    assert result.wire == {"model": "m", "input": [], "store": False, "include": ["reasoning.encrypted_content"]}
    assert [loss.block_type for loss in result.losses] == ["max_output_tokens", "temperature", "service_tier", "user"]


def test_unsupported_store_option_is_a_loss() -> None:
    for store, lost in ((True, ["store"]), (False, []), (None, [])):
        wire = {"model": "m", "input": "Hi.", **({"store": store} if store is not None else {})}
        result = RESPONSES.write_request(RESPONSES.read_request(wire), ["store_nothing"])
        assert result.wire == {**wire, "store": False, "include": ["reasoning.encrypted_content"]}
        assert [loss.block_type for loss in result.losses] == lost


def test_quirks_do_not_change_recorded_requests() -> None:
    """A recorded request that is written with the quirks of its provider has no losses and is equal."""
    rows, changed, count = catalog.builtin(), Counter[tuple[str, ...]](), 0
    for name, record in records("openai_chat", "openai_responses", part="request", sample=300):
        if record["provider"] == "other":
            continue
        count += 1
        dialect, before = dialects.load(name), record["request"]
        row = rows.provider(record["provider"], name)
        result = dialect.write_request(dialect.read_request(before), row.quirks)
        assert result.losses == (), record["id"]
        keys = sorted(key for key in {*before, *result.wire} if before.get(key) != result.wire.get(key))
        changed[tuple(keys)] += bool(keys)
    assert count > (5_000 if IS_FULL else 400)
    # Usage is requested. Two requests disable the effort, and one has a newer name for its limit.
    assert {keys for keys, times in changed.items() if times} <= {
        ("stream_options",),
        ("enable_thinking", "reasoning_effort"),
        ("max_completion_tokens", "max_tokens"),
    }
