"""Agent message envelopes: normalization, builders, runner and its result."""

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


# --- as the specification prints it ----------------------------------------------------------------------------------


def test_the_shape_of_an_envelope_is_kept_with_its_optional_fields() -> None:
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
    as_php_writes_it = envelope | {"payload": [], "metadata": []}
    assert json.dumps(normalize(as_php_writes_it)) == json.dumps(envelope)


def test_the_nine_types_are_supported_in_their_order() -> None:
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


def test_the_page_names_the_nine_types_with_their_roles() -> None:
    lines = [line.split(" | ") for line in (ROOT / "docs" / "envelopes.md").read_text("utf-8").splitlines()]
    told = {cells[0].strip("| `"): cells[1] for cells in lines if len(cells) == 3 and cells[0].startswith("| `")}
    made = [normalize({"metadata": {"type": kind}}) for kind in supported_types()]
    assert told == {envelope["type"]: envelope["role"] for envelope in made}


def test_a_legacy_tool_call_normalizes_as_printed() -> None:
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


def test_the_data_of_the_first_draft_becomes_the_payload() -> None:
    draft = {"version": 1, "type": "tool_call", "role": "assistant", "content": "", "data": {"tool_name": "look"}}
    assert normalize(draft)["payload"] == {"tool_name": "look"}
    assert "data" not in normalize(draft)
    assert normalize({**draft, "payload": {}})["payload"] == {"tool_name": "look"}
    assert normalize({**draft, "payload": {"turn": 1}})["payload"] == {"turn": 1}


def test_new_adapters_put_fields_in_the_payload_and_the_projection_folds_them_into_metadata() -> None:
    made = tool_call("Looking", "look", {"at": "sky"}, 2, {"host": "x"})
    assert to_provider_message(made) == {
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
def test_the_projection_of_a_legacy_row_is_the_row(row: dict[str, Any]) -> None:
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
def test_the_type_of_a_message_is_told_in_this_order(message: dict[str, Any], kind: str) -> None:
    assert type_of(message) == kind


def test_a_result_lifts_its_own_fields_and_no_others() -> None:
    metadata = {"type": "tool_result", "turn": 1, "error": None, "success": False, "parameters": {}, "x": 1}
    assert normalize({"metadata": metadata})["payload"] == {"success": False, "turn": 1, "error": None}
    assert normalize({"metadata": {**metadata, "type": "final_result"}})["payload"] == {}


@pytest.mark.parametrize("kind", supported_types())
def test_a_role_that_is_missing_follows_from_the_type(kind: str) -> None:
    role = "tool" if kind in ("tool_result", "input_required", "approval_required") else "assistant"
    assert normalize({"schema": "x", "version": 1, "type": kind})["role"] == role
    assert normalize({"metadata": {"type": kind}})["role"] == role
    assert normalize({"metadata": {"type": kind}, "role": None, "content": None})["content"] == ""


@pytest.mark.parametrize("version", [1, "1", 1.0, "1.0"], ids=repr)
def test_a_version_is_a_number_however_it_is_written(version: Any) -> None:
    assert normalize({"schema": "x", "version": version, "type": "text"})["version"] == 1


def test_everything_else_at_the_top_is_left_out() -> None:
    message = {"role": "user", "content": "x", "id": "", "created_at": 5, "updated_at": None, "name": "y"}
    assert list(normalize(message)) == ["schema", "version", "type", "role", "content", "payload", "metadata"]


def _deep(levels: int) -> Any:
    made: Any = 1
    for _ in range(levels):
        made = [made]
    return made


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
        ({"role": "user", "content": [_deep(300)]}, "envelope must be JSON serializable"),
        ("hello", "message must be an array"),
        (None, "message must be an array"),
    ],
)
def test_what_is_no_envelope_says_why(message: Any, reason: str) -> None:
    for attempt in (normalize, to_provider_message, lambda given_: normalize_many([LEGACY, given_])):
        with pytest.raises(EnvelopeError) as caught:
            attempt(message)
        assert str(caught.value) == f"invalid_ai_message_envelope: {reason}"
        assert caught.value.code == "invalid_ai_message_envelope"
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_envelope_shares_nothing_with_what_it_was_made_of() -> None:
    parameters = {"a": [1]}
    made = tool_call("x", "look", parameters, 1)
    parameters["a"].append(2)
    assert made["payload"]["parameters"] == {"a": [1]}
    projected = to_provider_message(made)
    projected["metadata"]["parameters"]["a"].append(3)
    assert made["payload"]["parameters"] == {"a": [1]}


def test_what_python_has_for_json_is_taken() -> None:
    message = OrderedDict(role=Role.USER, content=({"type": "text"},), metadata={1: (1, 2)})
    assert normalize(message)["role"] == "user"
    assert normalize(message)["content"] == [{"type": "text"}]
    assert normalize(message)["metadata"] == {"1": [1, 2]}


def test_the_items_of_a_list_in_place_of_an_object_are_kept_under_their_numbers() -> None:
    made = normalize({"schema": "x", "version": 1, "type": "text", "payload": ["a"], "metadata": ["b", "c"]})
    assert (made["payload"], made["metadata"]) == ({"0": "a"}, {"0": "b", "1": "c"})


def test_many_messages_keep_their_order() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": str(number)} for number in range(3)]
    assert [made["content"] for made in normalize_many(messages)] == ["0", "1", "2"]
    assert to_provider_messages(messages) == messages


def test_what_the_metadata_says_wins_over_the_payload() -> None:
    made = tool_call("x", "look", {}, 1, {"turn": 9, "type": "text"})
    assert to_provider_message(made)["metadata"] == {
        "turn": 9,
        "type": "tool_call",
        "tool_name": "look",
        "parameters": {},
    }


def test_words_with_metadata_say_their_type_when_projected() -> None:
    assert to_provider_message(text("user", "x", {"a": 1}))["metadata"] == {"a": 1, "type": "text"}
    assert to_provider_message({**text("user", "x"), "id": "1"}) == {"role": "user", "content": "x"}


# --- builders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "kind", "role", "payload"),
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
def test_a_builder_makes_a_canonical_envelope(
    made: dict[str, Any], kind: str, role: str, payload: dict[str, Any]
) -> None:
    assert (made["type"], made["role"], made["payload"]) == (kind, role, payload)
    assert json.dumps(normalize(made)) == json.dumps(made)


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
    assert [made["type"] for made in built] == supported_types()


def test_what_people_see_of_a_call_and_of_a_result() -> None:
    assert tool_call_text("wiki_upsert", {}, 1) == LEGACY["content"]
    shown = tool_call_text("wiki_upsert", {"title": "x" * 51, "tags": ["a"]}, 2)
    assert shown == f'AI ACTION (Turn 2): Executing Wiki Upsert with parameters: title: {"x" * 50}..., tags: ["a"]'
    answer = {"success": True, "data": {"id": 1}}
    assert tool_result_text("look", answer, 1) == 'TOOL RESPONSE (Turn 1): SUCCESS: Look completed.\n\n{"id":1}'
    assert (
        tool_result_text("look", answer, 1, is_handler_tool=True) == "TOOL RESPONSE (Turn 1): SUCCESS: Look completed."
    )
    assert tool_result_text("look", {"success": False, "error": "no"}, 0) == "FAILED: Look: no"


# --- the result of a conversation ------------------------------------------------------------------------------------

EXECUTED = {"tool_name": "look", "result": {"success": True}, "parameters": {}, "turn_count": 1}


def test_every_message_of_a_result_becomes_an_envelope_and_other_keys_stay() -> None:
    result = ConversationResult.normalize({"messages": [LEGACY, text("user", "x")], "usage": 5, "x": None})
    assert result == {
        "messages": [normalize(LEGACY), text("user", "x")],
        "usage": 5,
        "x": None,
        "tool_execution_results": [],
    }
    executed = [{**EXECUTED, "is_handler_tool": False, "more": 1}, {**EXECUTED, "result": [], "parameters": []}]
    assert ConversationResult.normalize({"messages": [], "tool_execution_results": executed}) == {
        "messages": [],
        "tool_execution_results": executed,
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
            {"messages": [], "tool_execution_results": [EXECUTED, {**EXECUTED, "tool_name": ""}]},
            "tool_execution_results[1].tool_name must be a non-empty string",
        ),
        (
            {"messages": [], "tool_execution_results": [{**EXECUTED, "result": "x"}]},
            "tool_execution_results[0].result must be an array",
        ),
        (
            {"messages": [], "tool_execution_results": [{**EXECUTED, "parameters": None}]},
            "tool_execution_results[0].parameters must be an array",
        ),
        (
            {"messages": [], "tool_execution_results": [{**EXECUTED, "is_handler_tool": 1}]},
            "tool_execution_results[0].is_handler_tool must be a boolean",
        ),
        (
            {"messages": [], "tool_execution_results": [{**EXECUTED, "turn_count": True}]},
            "tool_execution_results[0].turn_count must be an integer",
        ),
    ],
)
def test_a_result_of_the_wrong_shape_names_the_place(result: Any, where: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        ConversationResult.normalize(result)
    assert str(caught.value) == f"invalid_agent_conversation_result: {where}"
    assert caught.value.code == "invalid_agent_conversation_result"


# --- the runner ------------------------------------------------------------------------------------------------------


def run(call: ConversationCall, runner: Any = None, loop: Any = None) -> dict[str, Any]:
    def unexpected(_: ConversationCall) -> Any:
        raise AssertionError("the loop was not asked for")

    return asyncio.run(run_conversation(call, runner, loop=loop or unexpected))


ASKED = ConversationCall(messages=[{"role": "user", "content": "Write it."}])


def test_a_runner_may_return_either_shape() -> None:
    def plain(call: ConversationCall) -> dict[str, Any]:
        return {"messages": [*call.messages, LEGACY], "final_content": ""}

    async def waiting(call: ConversationCall) -> dict[str, Any]:
        return {"messages": [*normalize_many(call.messages), normalize(LEGACY)], "final_content": ""}

    expected = {
        "messages": normalize_many([*ASKED.messages, LEGACY]),
        "final_content": "",
        "tool_execution_results": [],
    }
    assert run(ASKED, plain) == run(ASKED, waiting) == expected


@pytest.mark.parametrize("returned", [None, "done", 5, True])
def test_a_runner_that_returns_no_result_leaves_it_to_the_loop(returned: Any) -> None:
    result = run(ASKED, lambda _: returned, lambda call: {"messages": call.messages})
    assert result["messages"] == normalize_many(ASKED.messages)


def test_without_a_runner_the_loop_runs_and_is_held_to_the_same_contract() -> None:
    assert run(ASKED, loop=lambda call: {"messages": call.messages})["messages"] == normalize_many(ASKED.messages)
    assert run(ASKED, loop=lambda _: None)["error"] == "invalid_agent_conversation_result: result must be an array"


def test_a_breach_of_the_contract_is_an_error_result_with_the_messages_of_the_caller() -> None:
    result = run(ASKED, lambda _: {"messages": [LEGACY, {"role": 5}]})
    assert result == {
        "messages": ASKED.messages,
        "final_content": "",
        "turn_count": 0,
        "completed": False,
        "last_tool_calls": [],
        "tool_execution_results": [],
        "usage": [],
        "error": "invalid_agent_conversation_result: messages[1]"
        " invalid_ai_message_envelope: role must be a non-empty string",
    }
    assert run(ASKED, lambda _: [])["error"] == "invalid_agent_conversation_result: result must be an array"


def test_a_failure_inside_a_runner_is_not_hidden() -> None:
    def failing(_: ConversationCall) -> Any:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run(ASKED, failing)


@pytest.mark.parametrize(("asked", "given_"), [(0, 1), (-5, 1), (1, 1), (50, 50), (51, 50)])
def test_the_turns_are_at_least_one_and_at_most_fifty(asked: int, given_: int) -> None:
    assert ConversationCall(messages=[], max_turns=asked).max_turns == given_
    assert ConversationCall(messages=[]).max_turns == 25


class Model:
    """Answers in turn, and what it was asked."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.asked: list[list[dict[str, Any]]] = []

    async def __call__(self, messages: list[dict[str, Any]], _: ConversationCall) -> dict[str, Any]:
        self.asked.append(messages)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


CALL = {"name": "wiki_upsert", "parameters": {"title": "Example"}}


def executed(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"success": True, "data": {"name": name, **parameters}}


def test_the_loop_asks_runs_and_asks_again() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    model = Model(
        {"content": "I write.", "tool_calls": [{"name": ""}, CALL], "usage": usage},
        {"content": "Written.", "usage": usage},
    )
    result = run(ASKED, loop=ToolLoop(model, executed))
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
    assert model.asked[1] == to_provider_messages(result["messages"][:-1])


def test_the_loop_runs_no_call_a_second_time() -> None:
    model = Model({"tool_calls": [CALL]}, {"tool_calls": [CALL]}, {"content": "Enough."})
    result = run(ASKED, loop=ToolLoop(model, executed))
    kinds_ = [(message["type"], message["payload"].get("success")) for message in result["messages"]]
    assert kinds_ == [
        ("text", None),
        ("tool_call", None),
        ("tool_result", True),
        ("tool_result", False),
        ("text", None),
    ]
    assert len(result["tool_execution_results"]) == 1


def test_the_loop_ends_when_the_turns_are_used_up() -> None:
    numbers = iter(range(100))
    asking = {"tool_calls": [CALL]}

    async def ask(_: list[dict[str, Any]], __: ConversationCall) -> dict[str, Any]:
        return {"tool_calls": [{"name": "look", "parameters": {"at": next(numbers)}}]}

    result = run(ConversationCall(messages=[], max_turns=3), loop=ToolLoop(ask, executed))
    assert (result["turn_count"], result["completed"], result["max_turns_reached"]) == (3, False, True)
    once = run(ConversationCall(messages=[], single_turn=True), loop=ToolLoop(Model(asking), executed))
    assert (once["turn_count"], once["has_pending_tools"], "max_turns_reached" in once) == (1, True, False)


def test_a_model_that_fails_ends_the_loop_with_what_there_is() -> None:
    result = run(ASKED, loop=ToolLoop(Model({"error": "overloaded"}), executed))
    assert (result["error"], result["completed"]) == ("overloaded", False)
    assert result["messages"] == normalize_many(ASKED.messages)


def test_a_conversation_without_a_list_of_messages_is_refused_with_what_to_do() -> None:
    messages: Any = None
    with pytest.raises(InputError, match="messages is NoneType, not a list"):
        asyncio.run(run_conversation(ConversationCall(messages=messages), lambda call: None, loop=lambda call: {}))
