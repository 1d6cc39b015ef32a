"""Tests of agent message envelopes: normalization, builders, runner and its result."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.envelope import (
    ConversationCall,
    ConversationResult,
    ToolLoop,
    approval_required,
    delta,
    error,
    final_result,
    input_required,
    multimodal_part,
    normalize,
    normalize_many,
    run_conversation,
    supported_types,
    text,
    to_provider_message,
    to_provider_messages,
    tool_call,
    tool_call_text,
    tool_result,
    tool_result_text,
    type_of,
)
from dragoman.errors import EnvelopeError, InputError
from dragoman.message import Role
from tests import strategies
from tests.conftest import ROOT
from tests.test_envelope_converter import envelopes, kinds, parameters, rows

LEGACY: dict[str, Any] = {
    "role": "assistant",
    "content": "AI ACTION (Turn 1): Executing Wiki Upsert",
    "metadata": {
        "type": "tool_call",
        "tool_name": "wiki_upsert",
        "parameters": {"title": "Example"},
        "turn": 1,
    },
}


# --- examples of the specification -----------------------------------------------------------------------------------


def test_envelope_with_optional_fields_is_unchanged() -> None:
    envelope: dict[str, Any] = {
        "schema": "agents-api.message",
        "version": 1,
        "type": "text",
        "role": "assistant",
        "content": "Message text or provider-neutral content blocks",
        "payload": {},
        "metadata": {},
        "id": "stable-message-id",
        "created_at": "2026-04-28 12:00:00",
        "updated_at": "2026-04-28 12:00:00",
    }
    assert json.dumps(normalize(envelope)) == json.dumps(envelope)
    php_envelope = envelope | {"payload": [], "metadata": []}
    assert json.dumps(normalize(php_envelope)) == json.dumps(envelope)


def test_nine_types_are_supported_in_order() -> None:
    assert supported_types() == [
        "text",
        "tool_call",
        "tool_result",
        "input_required",
        "approval_required",
        "final_result",
        "error",
        "delta",
        "multimodal_part",
    ]


def test_docs_list_the_nine_types_with_roles() -> None:
    lines = [line.split(" | ") for line in (ROOT / "docs" / "envelopes.md").read_text("utf-8").splitlines()]
    documented = {cells[0].strip("| `"): cells[1] for cells in lines if len(cells) == 3 and cells[0].startswith("| `")}
    envelopes = [normalize({"metadata": {"type": kind}}) for kind in supported_types()]
    assert documented == {envelope["type"]: envelope["role"] for envelope in envelopes}


def test_legacy_tool_call_is_normalized_as_documented() -> None:
    expected = {
        "schema": "agents-api.message",
        "version": 1,
        "type": "tool_call",
        "role": "assistant",
        "content": "AI ACTION (Turn 1): Executing Wiki Upsert",
        "payload": {
            "tool_name": "wiki_upsert",
            "parameters": {"title": "Example"},
            "turn": 1,
        },
        "metadata": {
            "type": "tool_call",
            "tool_name": "wiki_upsert",
            "parameters": {"title": "Example"},
            "turn": 1,
        },
    }
    assert json.dumps(normalize(LEGACY)) == json.dumps(expected)
    assert json.dumps(to_provider_message(expected)) == json.dumps(LEGACY)


def test_data_of_the_first_draft_becomes_payload() -> None:
    draft = {"version": 1, "type": "tool_call", "role": "assistant", "content": "", "data": {"tool_name": "look"}}
    assert normalize(draft)["payload"] == {"tool_name": "look"}
    assert "data" not in normalize(draft)
    assert normalize({**draft, "payload": {}})["payload"] == {"tool_name": "look"}
    assert normalize({**draft, "payload": {"turn": 1}})["payload"] == {"turn": 1}


def test_projection_moves_payload_fields_into_metadata() -> None:
    envelope = tool_call("Looking", "look", {"at": "sky"}, 2, {"host": "x"})
    assert to_provider_message(envelope) == {
        "role": "assistant",
        "content": "Looking",
        "metadata": {"host": "x", "type": "tool_call", "tool_name": "look", "parameters": {"at": "sky"}, "turn": 2},
    }


# --- normalize -------------------------------------------------------------------------------------------------------


@given(rows | envelopes)
def test_normalize_is_idempotent(message: dict[str, Any]) -> None:
    once = normalize(message)
    assert json.dumps(normalize(once)) == json.dumps(once)
    assert list(once)[:7] == ["schema", "version", "type", "role", "content", "payload", "metadata"]
    assert type_of(message) == once["type"]


typed_rows = st.builds(
    lambda role, content, kind, more, **fields: {
        "role": role,
        "content": content,
        "metadata": {"type": kind, **fields, **more},
    },
    st.sampled_from(["user", "assistant", "system", "tool"]),
    strategies.texts | st.lists(strategies.objects, max_size=2),
    kinds,
    st.dictionaries(st.sampled_from(["x", "error", "turn"]), strategies.plain),
    tool_name=strategies.texts,
    parameters=parameters,
    turn=st.integers(),
)
plain_rows = st.builds(
    lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "assistant"]), strategies.texts
)


@given(typed_rows | plain_rows)
def test_projection_of_a_legacy_row_is_the_row(row: dict[str, Any]) -> None:
    assert json.dumps(to_provider_message(row)) == json.dumps(row)
    assert json.dumps(to_provider_message(normalize(row))) == json.dumps(row)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"content": "x", "metadata": {"type": "final_result"}}, "final_result"),
        ({"content": "x", "metadata": {"type": "multimodal"}}, "multimodal_part"),
        ({"content": ["x"]}, "multimodal_part"),
        ({"content": ["x"], "metadata": {"error": "e"}}, "multimodal_part"),
        ({"content": "x", "metadata": {"error": ""}}, "error"),
        ({"content": "x", "metadata": {"error": None}}, "text"),
        ({"content": "x", "metadata": {"type": ["tool_call"]}}, "text"),
        ({"content": "x", "metadata": {"type": "song"}}, "text"),
        ({"content": "x", "metadata": "song"}, "text"),
        ({"version": 1, "type": "delta", "content": "x"}, "text"),  # neither schema nor payload: a row
        ({"version": 1, "type": "delta", "schema": "another", "content": "x"}, "delta"),
        ({"version": 1, "type": "delta", "payload": None, "content": "x"}, "delta"),
        ({}, "text"),
    ],
)
def test_type_of_a_message_has_this_precedence(message: dict[str, Any], kind: str) -> None:
    assert type_of(message) == kind


def test_result_copies_only_its_own_fields_into_payload() -> None:
    metadata = {"type": "tool_result", "turn": 1, "error": None, "success": False, "parameters": {}, "x": 1}
    assert normalize({"metadata": metadata})["payload"] == {"success": False, "turn": 1, "error": None}
    assert normalize({"metadata": {**metadata, "type": "final_result"}})["payload"] == {}


@pytest.mark.parametrize("kind", supported_types())
def test_missing_role_follows_from_type(kind: str) -> None:
    role = "tool" if kind in ("tool_result", "input_required", "approval_required") else "assistant"
    assert normalize({"schema": "x", "version": 1, "type": kind})["role"] == role
    assert normalize({"metadata": {"type": kind}})["role"] == role
    assert normalize({"metadata": {"type": kind}, "role": None, "content": None})["content"] == ""


@pytest.mark.parametrize("version", [1, "1", 1.0, "1.0"], ids=repr)
def test_version_may_be_a_number_or_text(version: Any) -> None:
    assert normalize({"schema": "x", "version": version, "type": "text"})["version"] == 1


def test_unknown_top_level_fields_are_dropped() -> None:
    message = {"role": "user", "content": "x", "id": "", "created_at": 5, "updated_at": None, "name": "y"}
    assert list(normalize(message)) == ["schema", "version", "type", "role", "content", "payload", "metadata"]


def nest(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"schema": "x", "version": 2, "type": "text"}, "unsupported version"),
        ({"schema": "x", "version": "one", "type": "text"}, "unsupported version"),
        ({"schema": "x", "version": [1], "type": "text"}, "unsupported version"),
        ({"schema": "x", "version": 1, "type": "song"}, "unsupported type"),
        ({"schema": "x", "version": 1, "type": ["text"]}, "unsupported type"),
        ({"role": "", "content": "x"}, "role must be a non-empty string"),
        ({"role": 5, "content": "x"}, "role must be a non-empty string"),
        ({"role": "user", "content": 5}, "content must be a string or array"),
        ({"role": "user", "content": False}, "content must be a string or array"),
        ({"role": "user", "content": [object()]}, "envelope must be JSON serializable"),
        ({"role": "user", "content": "x", "metadata": {"a": float("nan")}}, "envelope must be JSON serializable"),
        ({"role": "user", "content": "\ud800"}, "envelope must be JSON serializable"),
        ({"role": "user", "content": {"\ud800": 1}}, "envelope must be JSON serializable"),
        ({"role": "user", "content": {(1,): 1}}, "envelope must be JSON serializable"),
        ({"role": "user", "content": [10**5000]}, "envelope must be JSON serializable"),
        ({"role": "user", "content": [nest(300)]}, "envelope must be JSON serializable"),
        ("hello", "message must be an array"),
        (None, "message must be an array"),
    ],
)
def test_invalid_envelope_raises_with_reason(message: Any, reason: str) -> None:
    for attempt in (normalize, to_provider_message, lambda invalid: normalize_many([LEGACY, invalid])):
        with pytest.raises(EnvelopeError) as caught:
            attempt(message)
        assert str(caught.value) == f"invalid_ai_message_envelope: {reason}"
        assert caught.value.code == "invalid_ai_message_envelope"
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_envelope_is_independent_of_its_input() -> None:
    parameters = {"a": [1]}
    envelope = tool_call("x", "look", parameters, 1)
    parameters["a"].append(2)
    assert envelope["payload"]["parameters"] == {"a": [1]}
    projected = to_provider_message(envelope)
    projected["metadata"]["parameters"]["a"].append(3)
    assert envelope["payload"]["parameters"] == {"a": [1]}


def test_python_equivalents_of_json_are_accepted() -> None:
    message = OrderedDict(role=Role.USER, content=({"type": "text"},), metadata={1: (1, 2)})
    assert normalize(message)["role"] == "user"
    assert normalize(message)["content"] == [{"type": "text"}]
    assert normalize(message)["metadata"] == {"1": [1, 2]}


def test_list_in_place_of_an_object_has_numbers_as_keys() -> None:
    envelope = normalize({"schema": "x", "version": 1, "type": "text", "payload": ["a"], "metadata": ["b", "c"]})
    assert (envelope["payload"], envelope["metadata"]) == ({"0": "a"}, {"0": "b", "1": "c"})


def test_normalize_many_preserves_order() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": str(number)} for number in range(3)]
    assert [envelope["content"] for envelope in normalize_many(messages)] == ["0", "1", "2"]
    assert to_provider_messages(messages) == messages


def test_metadata_overrides_payload_in_projection() -> None:
    envelope = tool_call("x", "look", {}, 1, {"turn": 9, "type": "text"})
    assert to_provider_message(envelope)["metadata"] == {
        "turn": 9,
        "type": "tool_call",
        "tool_name": "look",
        "parameters": {},
    }


def test_projection_of_text_with_metadata_has_its_type() -> None:
    assert to_provider_message(text("user", "x", {"a": 1}))["metadata"] == {"a": 1, "type": "text"}
    assert to_provider_message({**text("user", "x"), "id": "1"}) == {"role": "user", "content": "x"}


# --- builders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("envelope", "kind", "role", "payload"),
    [
        (text("user", "x"), "text", "user", {}),
        (text("user", ["x"]), "multimodal_part", "user", {}),
        (text("assistant", "x", {"error": "e"}), "error", "assistant", {}),
        (text("assistant", "x", {"type": "tool_call", "turn": 1}), "tool_call", "assistant", {}),
        (
            tool_call("x", "look", {"a": 1}, 2),
            "tool_call",
            "assistant",
            {"tool_name": "look", "parameters": {"a": 1}, "turn": 2},
        ),
        (
            tool_result("x", "look", {"success": True, "tool_name": "other"}),
            "tool_result",
            "user",
            {"success": True, "tool_name": "look"},
        ),
        (input_required("x", {"field": "name"}), "input_required", "tool", {"field": "name"}),
        (approval_required("x", {"action_id": "a1"}), "approval_required", "tool", {"action_id": "a1"}),
        (final_result("x", {"url": "u"}), "final_result", "assistant", {"url": "u"}),
        (error("x", {"code": 5}), "error", "assistant", {"code": 5}),
        (delta("x"), "delta", "assistant", {}),
        (multimodal_part("user", [{"type": "text", "text": "x"}]), "multimodal_part", "user", {}),
    ],
)
def test_builder_creates_a_canonical_envelope(
    envelope: dict[str, Any], kind: str, role: str, payload: dict[str, Any]
) -> None:
    assert (envelope["type"], envelope["role"], envelope["payload"]) == (kind, role, payload)
    assert json.dumps(normalize(envelope)) == json.dumps(envelope)


def test_every_type_has_a_builder() -> None:
    built = [
        text("user", ""),
        tool_call("", "t", {}, 1),
        tool_result("", "t", {}),
        input_required(""),
        approval_required(""),
        final_result(""),
        error(""),
        delta(""),
        multimodal_part("user", []),
    ]
    assert [envelope["type"] for envelope in built] == supported_types()


def test_texts_of_a_call_and_a_result() -> None:
    assert tool_call_text("wiki_upsert", {}, 1) == LEGACY["content"]
    caption = tool_call_text("wiki_upsert", {"title": "x" * 51, "tags": ["a"]}, 2)
    assert caption == f'AI ACTION (Turn 2): Executing Wiki Upsert with parameters: title: {"x" * 50}..., tags: ["a"]'
    answer = {"success": True, "data": {"id": 1}}
    assert tool_result_text("look", answer, 1) == 'TOOL RESPONSE (Turn 1): SUCCESS: Look completed.\n\n{"id":1}'
    assert (
        tool_result_text("look", answer, 1, is_handler_tool=True) == "TOOL RESPONSE (Turn 1): SUCCESS: Look completed."
    )
    assert tool_result_text("look", {"success": False, "error": "no"}, 0) == "FAILED: Look: no"


# --- result of a conversation ----------------------------------------------------------------------------------------

EXECUTION = {"tool_name": "look", "result": {"success": True}, "parameters": {}, "turn_count": 1}


def test_messages_of_a_result_become_envelopes_and_other_keys_stay() -> None:
    result = ConversationResult.normalize({"messages": [LEGACY, text("user", "x")], "usage": 5, "x": None})
    assert result == {
        "messages": [normalize(LEGACY), text("user", "x")],
        "usage": 5,
        "x": None,
        "tool_execution_results": [],
    }
    executions = [{**EXECUTION, "is_handler_tool": False, "more": 1}, {**EXECUTION, "result": [], "parameters": []}]
    assert ConversationResult.normalize({"messages": [], "tool_execution_results": executions}) == {
        "messages": [],
        "tool_execution_results": executions,
    }


@pytest.mark.parametrize(
    ("result", "where"),
    [
        ("x", "result must be an array"),
        ({}, "messages must be an array"),
        ({"messages": None}, "messages must be an array"),
        ({"messages": [LEGACY, "x"]}, "messages[1] must be an array"),
        (
            {"messages": [{"role": ""}]},
            "messages[0] invalid_ai_message_envelope: role must be a non-empty string",
        ),
        ({"messages": [], "tool_execution_results": None}, "tool_execution_results must be an array"),
        ({"messages": [], "tool_execution_results": [1]}, "tool_execution_results[0] must be an array"),
        (
            {"messages": [], "tool_execution_results": [EXECUTION, {**EXECUTION, "tool_name": ""}]},
            "tool_execution_results[1].tool_name must be a non-empty string",
        ),
        (
            {"messages": [], "tool_execution_results": [{**EXECUTION, "result": "x"}]},
            "tool_execution_results[0].result must be an array",
        ),
        (
            {"messages": [], "tool_execution_results": [{**EXECUTION, "parameters": None}]},
            "tool_execution_results[0].parameters must be an array",
        ),
        (
            {"messages": [], "tool_execution_results": [{**EXECUTION, "is_handler_tool": 1}]},
            "tool_execution_results[0].is_handler_tool must be a boolean",
        ),
        (
            {"messages": [], "tool_execution_results": [{**EXECUTION, "turn_count": True}]},
            "tool_execution_results[0].turn_count must be an integer",
        ),
    ],
)
def test_malformed_result_raises_with_its_location(result: Any, where: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        ConversationResult.normalize(result)
    assert str(caught.value) == f"invalid_agent_conversation_result: {where}"
    assert caught.value.code == "invalid_agent_conversation_result"


# --- runner ----------------------------------------------------------------------------------------------------------


def run(call: ConversationCall, runner: Any = None, loop: Any = None) -> dict[str, Any]:
    def fail(_: ConversationCall) -> Any:
        raise AssertionError("the loop was not expected to run")

    return asyncio.run(run_conversation(call, runner, loop=loop or fail))


CALL_WITH_MESSAGE = ConversationCall(messages=[{"role": "user", "content": "Write it."}])


def test_runner_may_be_sync_or_async() -> None:
    def run_sync(call: ConversationCall) -> dict[str, Any]:
        return {"messages": [*call.messages, LEGACY], "final_content": ""}

    async def run_async(call: ConversationCall) -> dict[str, Any]:
        return {"messages": [*normalize_many(call.messages), normalize(LEGACY)], "final_content": ""}

    expected = {
        "messages": normalize_many([*CALL_WITH_MESSAGE.messages, LEGACY]),
        "final_content": "",
        "tool_execution_results": [],
    }
    assert run(CALL_WITH_MESSAGE, run_sync) == run(CALL_WITH_MESSAGE, run_async) == expected


@pytest.mark.parametrize("returned", [None, "done", 5, True])
def test_runner_without_result_falls_back_to_the_loop(returned: Any) -> None:
    result = run(CALL_WITH_MESSAGE, lambda _: returned, lambda call: {"messages": call.messages})
    assert result["messages"] == normalize_many(CALL_WITH_MESSAGE.messages)


def test_loop_runs_without_a_runner_and_its_result_is_validated() -> None:
    assert run(CALL_WITH_MESSAGE, loop=lambda call: {"messages": call.messages})["messages"] == normalize_many(
        CALL_WITH_MESSAGE.messages
    )
    assert (
        run(CALL_WITH_MESSAGE, loop=lambda _: None)["error"]
        == "invalid_agent_conversation_result: result must be an array"
    )


def test_invalid_result_becomes_an_error_result_with_the_input_messages() -> None:
    result = run(CALL_WITH_MESSAGE, lambda _: {"messages": [LEGACY, {"role": 5}]})
    assert result == {
        "messages": CALL_WITH_MESSAGE.messages,
        "final_content": "",
        "turn_count": 0,
        "completed": False,
        "last_tool_calls": [],
        "tool_execution_results": [],
        "usage": [],
        "error": "invalid_agent_conversation_result: messages[1]"
        " invalid_ai_message_envelope: role must be a non-empty string",
    }
    assert run(CALL_WITH_MESSAGE, lambda _: [])["error"] == "invalid_agent_conversation_result: result must be an array"


def test_exception_of_a_runner_is_raised() -> None:
    def raise_error(_: ConversationCall) -> Any:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run(CALL_WITH_MESSAGE, raise_error)


@pytest.mark.parametrize(("requested", "allowed"), [(0, 1), (-5, 1), (1, 1), (50, 50), (51, 50)])
def test_max_turns_is_limited_to_1_through_50(requested: int, allowed: int) -> None:
    assert ConversationCall(messages=[], max_turns=requested).max_turns == allowed
    assert ConversationCall(messages=[]).max_turns == 25


class Model:
    """Returns its answers in order, and records its requests."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.requests: list[list[dict[str, Any]]] = []

    async def __call__(self, messages: list[dict[str, Any]], _: ConversationCall) -> dict[str, Any]:
        self.requests.append(messages)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


CALL = {"name": "wiki_upsert", "parameters": {"title": "Example"}}


def execute_tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"success": True, "data": {"name": name, **parameters}}


def test_loop_executes_calls_and_sends_results_to_the_model() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    model = Model(
        {"content": "I write.", "tool_calls": [{"name": ""}, CALL], "usage": usage},
        {"content": "Written.", "usage": usage},
    )
    result = run(CALL_WITH_MESSAGE, loop=ToolLoop(model, execute_tool))
    data = {"name": "wiki_upsert", "title": "Example"}
    assert result == {
        "messages": [
            text("user", "Write it."),
            text("assistant", "I write."),
            tool_call(
                "AI ACTION (Turn 1): Executing Wiki Upsert with parameters: title: Example",
                "wiki_upsert",
                {"title": "Example"},
                1,
            ),
            tool_result(
                'TOOL RESPONSE (Turn 1): SUCCESS: Wiki Upsert completed.\n\n{"name":"wiki_upsert","title":"Example"}',
                "wiki_upsert",
                {"success": True, "turn": 1, "tool_data": data},
            ),
            text("assistant", "Written."),
        ],
        "final_content": "Written.",
        "turn_count": 2,
        "completed": True,
        "last_tool_calls": [],
        "tool_execution_results": [
            {
                "tool_name": "wiki_upsert",
                "result": {"success": True, "data": data},
                "parameters": {"title": "Example"},
                "turn_count": 1,
            }
        ],
        "has_pending_tools": False,
        "usage": {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10},
    }
    assert model.requests[1] == to_provider_messages(result["messages"][:-1])


def test_loop_does_not_repeat_a_call() -> None:
    model = Model({"tool_calls": [CALL]}, {"tool_calls": [CALL]}, {"content": "Enough."})
    result = run(CALL_WITH_MESSAGE, loop=ToolLoop(model, execute_tool))
    outcomes = [(message["type"], message["payload"].get("success")) for message in result["messages"]]
    assert outcomes == [
        ("text", None),
        ("tool_call", None),
        ("tool_result", True),
        ("tool_result", False),
        ("text", None),
    ]
    assert len(result["tool_execution_results"]) == 1


def test_loop_ends_after_max_turns() -> None:
    numbers = iter(range(100))
    answer_with_call = {"tool_calls": [CALL]}

    async def ask(_: list[dict[str, Any]], __: ConversationCall) -> dict[str, Any]:
        return {"tool_calls": [{"name": "look", "parameters": {"at": next(numbers)}}]}

    result = run(ConversationCall(messages=[], max_turns=3), loop=ToolLoop(ask, execute_tool))
    assert (result["turn_count"], result["completed"], result["max_turns_reached"]) == (3, False, True)
    once = run(ConversationCall(messages=[], single_turn=True), loop=ToolLoop(Model(answer_with_call), execute_tool))
    assert (once["turn_count"], once["has_pending_tools"], "max_turns_reached" in once) == (1, True, False)


def test_model_error_ends_the_loop_with_the_messages_so_far() -> None:
    result = run(CALL_WITH_MESSAGE, loop=ToolLoop(Model({"error": "overloaded"}), execute_tool))
    assert (result["error"], result["completed"]) == ("overloaded", False)
    assert result["messages"] == normalize_many(CALL_WITH_MESSAGE.messages)


def test_messages_that_are_not_a_list_are_rejected() -> None:
    messages: Any = None
    with pytest.raises(InputError, match="messages is NoneType, not a list"):
        asyncio.run(run_conversation(ConversationCall(messages=messages), lambda call: None, loop=lambda call: {}))
