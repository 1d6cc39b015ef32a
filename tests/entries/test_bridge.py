"""Conversion between entries and canonical messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman import (
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    entries,
)
from dragoman.dialects import anthropic, openai_chat
from dragoman.entries import Entry, entries_from_messages, history_from_entries, messages_from_entries
from dragoman.errors import FormatError
from dragoman.exchange import Request
from tests import strategies
from tests.entries.examples import EVERY, EXAMPLES

NOW = datetime(2026, 5, 8, 12, tzinfo=UTC)
CALL = "tu_01K4Q2000000000000000000AA"


def message(role: Role, *content: Any, at: int = 0, **metadata: Any) -> Message:
    when = NOW + timedelta(seconds=at)
    return Message(f"01HZ{at:03}", "sess_1", role, content, MessageMetadata(**metadata), when)


def again(given_entries: list[Entry], agent_key: str | None = None) -> list[Entry]:
    made: list[Entry] = entries_from_messages(messages_from_entries(given_entries, agent_key=agent_key)).wire
    return made


def spoken(messages: tuple[Message, ...]) -> list[tuple[str, Any]]:
    """Return the texts, calls and results with their roles."""
    return [(one.role.value, _plain(block)) for one in messages for block in one.content]


def _plain(block: Any) -> Any:
    match block:
        case TextBlock():
            return block.text
        case ToolUseBlock():
            return {block.name: block.input}
        case ToolResultBlock():
            return ["failed" if block.is_error else "ok", *(_plain(one) for one in block.content)]


# --- entries, messages, entries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: str(entry["type"]))
def test_an_entry_of_any_type_becomes_a_message_and_the_same_entry_again(entry: Entry) -> None:
    assert again([entry]) == [entry]
    assert again([entry | {"agent_key": "worker_1"}], agent_key="manager") == [entry | {"agent_key": "worker_1"}]


kinds = st.sampled_from(entries.TYPES)
values = {entries.types.ANY: strategies.plain, entries.types.TEXT: st.text("ab\0ü", min_size=1, max_size=4)}
values[entries.types.OBJECT] = strategies.objects
values[entries.types.WHOLE] = st.integers(-1, 3)


@st.composite
def made_entries(draw: st.DrawFn) -> Entry:
    kind = draw(kinds)
    shape = entries.SHAPES[kind]
    required = {name: values[wanted] for name, wanted in shape.required.items()}
    optional = {name: values[wanted] for name, wanted in shape.optional.items()}
    optional |= {
        "timestamp": st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False),
        "turn_id": st.sampled_from(["", "turn_1"]),
        "agent_key": st.sampled_from(["a", "b"]),
        "is_error": st.booleans(),
        "note": strategies.plain.filter(lambda value: value is not None),
    }
    return {"type": kind, **draw(st.fixed_dictionaries(required, optional=optional))}


@given(st.lists(made_entries(), max_size=6), st.sampled_from([None, "a"]))
def test_entries_survive_the_way_through_messages(given_entries: list[Entry], agent_key: str | None) -> None:
    messages = messages_from_entries(given_entries, agent_key=agent_key)
    assert len(messages) == len(given_entries)
    assert [dragoman.decode(dragoman.encode(one)) for one in messages] == list(messages)
    assert entries_from_messages(messages).wire == given_entries


@given(st.lists(made_entries(), max_size=6), st.sampled_from([None, "a"]))
def test_any_entries_make_a_history_that_breaks_no_rule(given_entries: list[Entry], agent_key: str | None) -> None:
    history = history_from_entries(given_entries, session_id="sess_1", agent_key=agent_key)
    assert dragoman.check(history.messages) == ()
    assert history == history_from_entries(given_entries, session_id="sess_1", agent_key=agent_key)
    calls = [block.id for one in history.messages for block in one.content if isinstance(block, ToolUseBlock)]
    results = [one.metadata.parent_tool_use_id for one in history.messages if one.role is Role.TOOL]
    assert sorted(calls) == sorted(str(one) for one in results), "every call is answered"


def test_words_that_were_changed_in_a_message_are_the_words_of_the_entry() -> None:
    (spoke,) = messages_from_entries([EXAMPLES["user_message"]])
    (called,) = messages_from_entries([EXAMPLES["action"]])
    (told,) = messages_from_entries([EXAMPLES["global_observation"]])
    edited = [
        spoke.replace(content=[TextBlock("No, all views")]),
        called.replace(content=[ToolUseBlock(called.content[0].id, "list_views", {})]),  # type: ignore[union-attr]
        told.replace(content=[TextBlock("It was eleven")]),
    ]
    assert entries_from_messages(edited).wire == [
        EXAMPLES["user_message"] | {"content": "No, all views"},
        EXAMPLES["action"] | {"tool": "list_views", "args": {}},
        EXAMPLES["global_observation"] | {"content": "It was eleven"},
    ]


def test_what_is_no_entry_is_refused_with_its_number() -> None:
    with pytest.raises(FormatError, match="entry 1: worker: required for delegation"):
        messages_from_entries([EXAMPLES["task"], {"type": "delegation", "task": "x"}])


# --- as a history for a model ----------------------------------------------------------------------------------------


def test_actions_are_calls_and_observations_their_results_in_order() -> None:
    trace: list[Entry] = [
        {"type": "user_message", "content": "List all"},
        {"type": "task", "content": "List all"},
        {"type": "action", "tool": "list_tables", "args": {"schema": "public"}},
        {"type": "action", "tool": "list_views", "args": {}},
        {"type": "observation", "content": {"tables": ["users"]}},
        {"type": "error", "content": "Connection failed", "error_type": "ConnectionError"},
        {"type": "final", "content": "One table"},
        {"type": "assistant_message", "content": "One table"},
    ]
    history = history_from_entries(trace)
    assert history.losses == ()
    assert spoken(history.messages) == [
        ("user", "List all"),
        ("assistant", {"list_tables": {"schema": "public"}}),
        ("assistant", {"list_views": {}}),
        ("tool", ["ok", '{"tables":["users"]}']),
        ("tool", ["failed", "Connection failed"]),
        ("assistant", "One table"),
    ]
    calls = [block.id for one in history.messages for block in one.content if isinstance(block, ToolUseBlock)]
    assert [one.metadata.parent_tool_use_id for one in history.messages if one.role is Role.TOOL] == calls


def test_a_delegation_is_a_call_and_plans_contexts_syntheses_and_broadcasts_are_words() -> None:
    trace: list[Entry] = [
        EXAMPLES["task"],
        EXAMPLES["director_context"],
        EXAMPLES["strategic_plan"],
        EXAMPLES["delegation"],
        EXAMPLES["observation"],
        EXAMPLES["global_observation"],
        EXAMPLES["synthesis"],
        EXAMPLES["error"],
        EXAMPLES["final"],
    ]
    history = history_from_entries(trace, agent_key="powerbi-analysis")
    assert spoken(history.messages) == [
        ("user", "List all tables"),
        ("user", "Context:\n...context text..."),
        (
            "assistant",
            'Strategic plan:\n{"primary_worker":"powerbi-analysis","task_type":"analysis","phases":["..."]}',
        ),
        ("assistant", {"delegate": {"worker": "powerbi-analysis", "task": "List all tables"}}),
        ("tool", ["ok", '{"tables":["users","orders","..."]}']),
        ("user", 'Broadcast by schema_worker (Found 10 tables):\n{"...observation_data...":true}'),
        ("assistant", 'Synthesis by powerbi-analysis:\n{"...synthesized_data...":true}'),
        ("user", "Error (ConnectionError):\nConnection failed"),
        ("assistant", "Task completed successfully"),
    ]
    (loss,) = history.losses
    assert (loss.block_type, loss.reason) == ("synthesis", "a model does not receive phase_id")


def test_what_other_agents_did_is_told_and_not_taken_for_a_call_of_one_s_own() -> None:
    trace = [EXAMPLES["action"] | {"agent_key": "worker_1"}, EXAMPLES["observation"] | {"agent_key": "worker_1"}]
    assert spoken(history_from_entries(trace, agent_key="manager").messages) == [
        ("user", 'worker_1: Call of list_tables:\n{"schema":"public"}'),
        ("user", 'worker_1: Observation:\n{"tables":["users","orders","..."]}'),
    ]
    assert [one.role for one in history_from_entries(trace).messages] == [Role.ASSISTANT, Role.TOOL]


def test_long_parts_are_cut_as_the_framework_does_and_named_as_losses() -> None:
    trace: list[Entry] = [
        {"type": "task", "content": "t" * 9000},
        {"type": "strategic_plan", "content": {"p": "p" * 3000}},
        {"type": "action", "tool": "read", "args": {"a": "a" * 600}},
        {"type": "observation", "content": "o" * 1600},
        {"type": "director_context", "content": "c" * 5000},
        {"type": "action", "tool": "read", "args": {"a": "a" * 600}, "agent_key": "worker"},
    ]
    history = history_from_entries(trace, agent_key="own")
    texts = [text for _, text in spoken(history.messages)]
    assert texts[0] == "t" * 9000
    assert texts[2] == {"read": {"a": "a" * 600}}, "an input is never cut"
    assert texts[3] == ["ok", "o" * 1500 + "\n[TRUNCATED: 100 chars removed]"]
    assert [(loss.block_type, loss.reason) for loss in history.losses] == [
        ("strategic_plan", "1008 characters are cut: the text is longer than its limit"),
        ("observation", "100 characters are cut: the text is longer than its limit"),
        ("director_context", "1000 characters are cut: the text is longer than its limit"),
        ("action", "108 characters are cut: the text is longer than its limit"),
    ]
    assert history_from_entries(trace, agent_key="own", limits={}).losses == ()


def test_a_call_that_was_never_observed_is_answered_so() -> None:
    history = history_from_entries([EXAMPLES["task"], EXAMPLES["action"]])
    assert spoken(history.messages)[-1] == ("tool", ["failed", "No observation was recorded for this call."])
    open_before = [EXAMPLES["task"], EXAMPLES["action"], EXAMPLES["task"], EXAMPLES["observation"]]
    roles = [one.role.value for one in history_from_entries(open_before).messages]
    assert roles == ["user", "assistant", "tool", "user", "user"], "an observation answers calls of its own turn"


@pytest.mark.parametrize("dialect", [anthropic, openai_chat], ids=["anthropic", "openai_chat"])
def test_a_provider_can_be_given_the_history(dialect: Any) -> None:
    trace: list[Entry] = [
        EXAMPLES["user_message"],
        EXAMPLES["action"],
        EXAMPLES["action"],
        EXAMPLES["observation"],
        EXAMPLES["global_observation"],
        EXAMPLES["observation"],
        EXAMPLES["final"],
    ]
    history = history_from_entries(trace)
    written = dialect.write_request(Request(model="m", messages=history.messages))
    assert written.losses == ()
    read = dialect.read_request(written.wire)
    assert [block for _, block in spoken(read.messages)] == [block for _, block in spoken(history.messages)]


# --- messages as entries ---------------------------------------------------------------------------------------------


def test_a_session_renders_as_the_entries_of_an_agent() -> None:
    session = [
        message(Role.SYSTEM, TextBlock("Be brief"), at=0),
        message(Role.USER, TextBlock("List all"), at=1, run_id="run_1"),
        message(Role.ASSISTANT, TextBlock("I look"), ToolUseBlock(CALL, "list_tables", {}), at=2, model="a:b"),
        message(Role.TOOL, ToolResultBlock(CALL, (TextBlock("users"),)), at=3, parent_tool_use_id=CALL),
        message(Role.ASSISTANT, TextBlock("One table"), at=4),
    ]
    written = entries_from_messages(session, agent_key="orchestrator")
    assert written.losses == ()
    start, own = NOW.timestamp(), {"agent_key": "orchestrator"}
    first = {"timestamp": start + 1, "turn_id": "run_1", "message_id": "01HZ001"}
    second = {"timestamp": start + 2, "message_id": "01HZ002", "model": "a:b"}
    assert written.wire == [
        {"type": "injected_context", "content": "Be brief", "timestamp": start, "message_id": "01HZ000", **own},
        {"type": "user_message", "content": "List all", **first},
        {"type": "task", "content": "List all", **first, **own},
        {"type": "assistant_message", "content": "I look", **second},
        {"type": "action", "tool": "list_tables", "args": {}, "tool_use_id": CALL, **second, **own},
        {
            "type": "observation",
            "content": "users",
            "tool_use_id": CALL,
            "timestamp": start + 3,
            "message_id": "01HZ003",
            **own,
        },
        {"type": "final", "content": "One table", "timestamp": start + 4, "message_id": "01HZ004", **own},
        {"type": "assistant_message", "content": "One table", "timestamp": start + 4, "message_id": "01HZ004"},
    ]
    assert all(entries.find_problems(entry) == [] for entry in written.wire)


def test_what_an_entry_has_no_place_for_is_a_loss() -> None:
    cost = Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal(1), pricing_version="1", latency_ms=1)
    session = [
        message(Role.USER, TextBlock("What is this?"), ImageBlock(ImageSource("url", "https://x/y.png"), "image/png")),
        message(Role.ASSISTANT, ThinkingBlock("hm"), TextBlock("A cat"), at=1, usage=cost),
        message(Role.ASSISTANT, TextBlock("It is a"), at=2, status=MessageStatus.CANCELLED),
    ]
    written = entries_from_messages(session)
    assert [(loss.message_id, loss.block_type) for loss in written.losses] == [
        ("01HZ000", "image"),
        ("01HZ001", "thinking"),
        ("01HZ001", "usage"),
    ]
    assert [entry["type"] for entry in written.wire] == [
        *("user_message", "task", "final", "assistant_message"),
        *("assistant_message", "error"),
    ]


odd_extras = st.sampled_from([None, {"entry": 7}, {"entry": {"type": "action"}}, {"entry": {"type": ["x"]}}])


@given(st.lists(strategies.messages, max_size=4), odd_extras)
def test_any_messages_become_entries_and_those_a_history(messages: list[Message], extra: Any) -> None:
    given_messages = [one.replace(metadata=one.metadata.replace(extra=extra)) for one in messages]
    made = entries_from_messages(given_messages, agent_key="own").wire
    assert [entries.find_problems(entry) for entry in made] == [[]] * len(made)
    assert dragoman.check(history_from_entries(made, session_id="sess_1").messages) == ()


def test_a_call_that_cannot_be_made_is_an_error_with_what_arrived() -> None:
    broken = InvalidToolUseBlock(CALL, "look", '{"at": ', "it was cut off")
    made = entries_from_messages([message(Role.ASSISTANT, broken, ToolUseBlock(CALL, "", {"a": 1}))]).wire
    assert [(entry["type"], entry["content"], entry["input_text"]) for entry in made] == [
        ("error", "it was cut off", '{"at": '),
        ("error", "it names no tool", '{"a":1}'),
    ]


texts = st.sampled_from(["hello", "a\nb", "0"])


@st.composite
def sessions(draw: st.DrawFn) -> list[Message]:
    """Turns in which a user asks, an assistant calls and answers."""
    made: list[Message] = []
    for turn in range(draw(st.integers(1, 3))):
        made.append(message(Role.USER, TextBlock(f"{turn} {draw(texts)}"), at=len(made)))
        for _ in range(draw(st.integers(0, 2))):
            words = [TextBlock(draw(texts))] if draw(st.booleans()) else []
            ids = [f"tu_{len(made):02}{number:02}" for number in range(draw(st.integers(1, 3)))]
            calls = [ToolUseBlock(one, "look", draw(strategies.objects)) for one in ids]
            made.append(message(Role.ASSISTANT, *words, *calls, at=len(made)))
            for one in draw(st.permutations(ids)):
                result = ToolResultBlock(one, (TextBlock(draw(texts)),), draw(st.booleans()))
                made.append(message(Role.TOOL, result, at=len(made), parent_tool_use_id=one))
        made.append(message(Role.ASSISTANT, TextBlock(f"{turn} is {draw(texts)}"), at=len(made)))
    return made


@given(sessions())
def test_words_calls_and_results_survive_the_way_through_entries(session: list[Message]) -> None:
    written = entries_from_messages(session, agent_key="own")
    assert written.losses == ()
    back = history_from_entries(written.wire, agent_key="own", limits={})
    assert back.losses == ()
    assert spoken(back.messages) == spoken(tuple(session))
    ids = [
        [one.metadata.parent_tool_use_id for one in made if one.role is Role.TOOL] for made in (session, back.messages)
    ]
    assert ids[0] == ids[1]


def test_an_answer_with_many_calls_is_written_without_comparing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []

    def compare(one: Any, other: Any) -> bool:
        compared.append(other)
        return one is other

    calls = [ToolUseBlock(f"tu_{at:026d}", "look", {}) for at in range(100)]
    answer = message(Role.ASSISTANT, TextBlock("I look."), *calls)
    monkeypatch.setattr(ToolUseBlock, "__eq__", compare)
    written = entries_from_messages([answer]).wire
    assert [entry["type"] for entry in written].count("action") == 100
    assert compared == []
