"""Tests of the conversion between entries and canonical messages."""

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
from tests.entries.examples import ALL_EXAMPLES, EXAMPLES

NOW = datetime(2026, 5, 8, 12, tzinfo=UTC)
CALL = "tu_01K4Q2000000000000000000AA"


def create_message(role: Role, *content: Any, at: int = 0, **metadata: Any) -> Message:
    created_at = NOW + timedelta(seconds=at)
    return Message(f"01HZ{at:03}", "sess_1", role, content, MessageMetadata(**metadata), created_at)


def round_trip(trace: list[Entry], agent_key: str | None = None) -> list[Entry]:
    converted: list[Entry] = entries_from_messages(messages_from_entries(trace, agent_key=agent_key)).wire
    return converted


def list_blocks(messages: tuple[Message, ...]) -> list[tuple[str, Any]]:
    """Return the texts, tool calls and results with their roles."""
    return [(message.role.value, _to_plain(block)) for message in messages for block in message.content]


def _to_plain(block: Any) -> Any:
    match block:
        case TextBlock():
            return block.text
        case ToolUseBlock():
            return {block.name: block.input}
        case ToolResultBlock():
            return ["failed" if block.is_error else "ok", *(_to_plain(inner) for inner in block.content)]


# --- entries to messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ALL_EXAMPLES, ids=lambda entry: str(entry["type"]))
def test_entry_of_any_type_round_trips_through_message(entry: Entry) -> None:
    assert round_trip([entry]) == [entry]
    assert round_trip([entry | {"agent_key": "worker_1"}], agent_key="manager") == [entry | {"agent_key": "worker_1"}]


kinds = st.sampled_from(entries.TYPES)
field_values = {entries.types.ANY: strategies.plain, entries.types.TEXT: st.text("ab\0ü", min_size=1, max_size=4)}
field_values[entries.types.OBJECT] = strategies.objects
field_values[entries.types.WHOLE] = st.integers(-1, 3)


@st.composite
def random_entries(draw: st.DrawFn) -> Entry:
    kind = draw(kinds)
    shape = entries.SHAPES[kind]
    required = {name: field_values[kind_of_value] for name, kind_of_value in shape.required.items()}
    optional = {name: field_values[kind_of_value] for name, kind_of_value in shape.optional.items()}
    optional |= {
        "timestamp": st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False),
        "turn_id": st.sampled_from(["", "turn_1"]),
        "agent_key": st.sampled_from(["a", "b"]),
        "is_error": st.booleans(),
        "note": strategies.plain.filter(lambda value: value is not None),
    }
    return {"type": kind, **draw(st.fixed_dictionaries(required, optional=optional))}


@given(st.lists(random_entries(), max_size=6), st.sampled_from([None, "a"]))
def test_random_entries_round_trip_through_messages(trace: list[Entry], agent_key: str | None) -> None:
    messages = messages_from_entries(trace, agent_key=agent_key)
    assert len(messages) == len(trace)
    assert [dragoman.decode(dragoman.encode(message)) for message in messages] == list(messages)
    assert entries_from_messages(messages).wire == trace


@given(st.lists(random_entries(), max_size=6), st.sampled_from([None, "a"]))
def test_history_from_random_entries_is_valid(trace: list[Entry], agent_key: str | None) -> None:
    history = history_from_entries(trace, session_id="sess_1", agent_key=agent_key)
    assert dragoman.check(history.messages) == ()
    assert history == history_from_entries(trace, session_id="sess_1", agent_key=agent_key)
    calls = [block.id for message in history.messages for block in message.content if isinstance(block, ToolUseBlock)]
    results = [message.metadata.parent_tool_use_id for message in history.messages if message.role is Role.TOOL]
    assert sorted(calls) == sorted(str(message) for message in results), "every call has a result"


def test_edited_message_changes_its_entry() -> None:
    (user,) = messages_from_entries([EXAMPLES["user_message"]])
    (call,) = messages_from_entries([EXAMPLES["action"]])
    (observation,) = messages_from_entries([EXAMPLES["global_observation"]])
    edited = [
        user.replace(content=[TextBlock("No, all views")]),
        call.replace(content=[ToolUseBlock(call.content[0].id, "list_views", {})]),  # type: ignore[union-attr]
        observation.replace(content=[TextBlock("It was eleven")]),
    ]
    assert entries_from_messages(edited).wire == [
        EXAMPLES["user_message"] | {"content": "No, all views"},
        EXAMPLES["action"] | {"tool": "list_views", "args": {}},
        EXAMPLES["global_observation"] | {"content": "It was eleven"},
    ]


def test_invalid_entry_is_rejected_with_its_index() -> None:
    with pytest.raises(FormatError, match="entry 1: worker: required for delegation"):
        messages_from_entries([EXAMPLES["task"], {"type": "delegation", "task": "x"}])


# --- entries to history ----------------------------------------------------------------------------------------------


def test_actions_become_tool_calls_and_observations_results() -> None:
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
    assert list_blocks(history.messages) == [
        ("user", "List all"),
        ("assistant", {"list_tables": {"schema": "public"}}),
        ("assistant", {"list_views": {}}),
        ("tool", ["ok", '{"tables":["users"]}']),
        ("tool", ["failed", "Connection failed"]),
        ("assistant", "One table"),
    ]
    calls = [block.id for message in history.messages for block in message.content if isinstance(block, ToolUseBlock)]
    assert [message.metadata.parent_tool_use_id for message in history.messages if message.role is Role.TOOL] == calls


def test_delegation_becomes_tool_call_and_other_entries_text() -> None:
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
    assert list_blocks(history.messages) == [
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


def test_actions_of_other_agents_become_text() -> None:
    trace = [EXAMPLES["action"] | {"agent_key": "worker_1"}, EXAMPLES["observation"] | {"agent_key": "worker_1"}]
    assert list_blocks(history_from_entries(trace, agent_key="manager").messages) == [
        ("user", 'worker_1: Call of list_tables:\n{"schema":"public"}'),
        ("user", 'worker_1: Observation:\n{"tables":["users","orders","..."]}'),
    ]
    assert [message.role for message in history_from_entries(trace).messages] == [Role.ASSISTANT, Role.TOOL]


def test_long_texts_are_truncated_with_losses() -> None:
    trace: list[Entry] = [
        {"type": "task", "content": "t" * 9000},
        {"type": "strategic_plan", "content": {"p": "p" * 3000}},
        {"type": "action", "tool": "read", "args": {"a": "a" * 600}},
        {"type": "observation", "content": "o" * 1600},
        {"type": "director_context", "content": "c" * 5000},
        {"type": "action", "tool": "read", "args": {"a": "a" * 600}, "agent_key": "worker"},
    ]
    history = history_from_entries(trace, agent_key="own")
    random_texts = [text for _, text in list_blocks(history.messages)]
    assert random_texts[0] == "t" * 9000
    assert random_texts[2] == {"read": {"a": "a" * 600}}, "an input is never truncated"
    assert random_texts[3] == ["ok", "o" * 1500 + "\n[TRUNCATED: 100 chars removed]"]
    assert [(loss.block_type, loss.reason) for loss in history.losses] == [
        ("strategic_plan", "1008 characters are cut: the text is longer than its limit"),
        ("observation", "100 characters are cut: the text is longer than its limit"),
        ("director_context", "1000 characters are cut: the text is longer than its limit"),
        ("action", "108 characters are cut: the text is longer than its limit"),
    ]
    assert history_from_entries(trace, agent_key="own", limits={}).losses == ()


def test_unobserved_call_gets_error_result() -> None:
    history = history_from_entries([EXAMPLES["task"], EXAMPLES["action"]])
    assert list_blocks(history.messages)[-1] == ("tool", ["failed", "No observation was recorded for this call."])
    open_before = [EXAMPLES["task"], EXAMPLES["action"], EXAMPLES["task"], EXAMPLES["observation"]]
    roles = [message.role.value for message in history_from_entries(open_before).messages]
    assert roles == ["user", "assistant", "tool", "user", "user"], "an observation belongs to a call of its own turn"


@pytest.mark.parametrize("dialect", [anthropic, openai_chat], ids=["anthropic", "openai_chat"])
def test_history_is_written_without_losses(dialect: Any) -> None:
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
    assert [block for _, block in list_blocks(read.messages)] == [block for _, block in list_blocks(history.messages)]


# --- messages to entries ---------------------------------------------------------------------------------------------


def test_session_is_converted_to_agent_entries() -> None:
    session = [
        create_message(Role.SYSTEM, TextBlock("Be brief"), at=0),
        create_message(Role.USER, TextBlock("List all"), at=1, run_id="run_1"),
        create_message(Role.ASSISTANT, TextBlock("I look"), ToolUseBlock(CALL, "list_tables", {}), at=2, model="a:b"),
        create_message(Role.TOOL, ToolResultBlock(CALL, (TextBlock("users"),)), at=3, parent_tool_use_id=CALL),
        create_message(Role.ASSISTANT, TextBlock("One table"), at=4),
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


def test_unsupported_content_is_reported_as_loss() -> None:
    cost = Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal(1), pricing_version="1", latency_ms=1)
    session = [
        create_message(
            Role.USER, TextBlock("What is this?"), ImageBlock(ImageSource("url", "https://x/y.png"), "image/png")
        ),
        create_message(Role.ASSISTANT, ThinkingBlock("hm"), TextBlock("A cat"), at=1, usage=cost),
        create_message(Role.ASSISTANT, TextBlock("It is a"), at=2, status=MessageStatus.CANCELLED),
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


invalid_extras = st.sampled_from([None, {"entry": 7}, {"entry": {"type": "action"}}, {"entry": {"type": ["x"]}}])


@given(st.lists(strategies.messages, max_size=4), invalid_extras)
def test_random_messages_become_valid_entries_and_history(messages: list[Message], extra: Any) -> None:
    with_extra = [message.replace(metadata=message.metadata.replace(extra=extra)) for message in messages]
    converted = entries_from_messages(with_extra, agent_key="own").wire
    assert [entries.find_problems(entry) for entry in converted] == [[]] * len(converted)
    assert dragoman.check(history_from_entries(converted, session_id="sess_1").messages) == ()


def test_invalid_tool_call_becomes_error_with_its_input() -> None:
    broken = InvalidToolUseBlock(CALL, "look", '{"at": ', "it was cut off")
    converted = entries_from_messages([create_message(Role.ASSISTANT, broken, ToolUseBlock(CALL, "", {"a": 1}))]).wire
    assert [(entry["type"], entry["content"], entry["input_text"]) for entry in converted] == [
        ("error", "it was cut off", '{"at": '),
        ("error", "it names no tool", '{"a":1}'),
    ]


random_texts = st.sampled_from(["hello", "a\nb", "0"])


@st.composite
def random_sessions(draw: st.DrawFn) -> list[Message]:
    """Generate sessions of user messages, tool calls, tool results and answers."""
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 3))):
        messages.append(create_message(Role.USER, TextBlock(f"{turn} {draw(random_texts)}"), at=len(messages)))
        for _ in range(draw(st.integers(0, 2))):
            text_blocks = [TextBlock(draw(random_texts))] if draw(st.booleans()) else []
            ids = [f"tu_{len(messages):02}{number:02}" for number in range(draw(st.integers(1, 3)))]
            calls = [ToolUseBlock(call_id, "look", draw(strategies.objects)) for call_id in ids]
            messages.append(create_message(Role.ASSISTANT, *text_blocks, *calls, at=len(messages)))
            for call_id in draw(st.permutations(ids)):
                result = ToolResultBlock(call_id, (TextBlock(draw(random_texts)),), draw(st.booleans()))
                messages.append(create_message(Role.TOOL, result, at=len(messages), parent_tool_use_id=call_id))
        messages.append(create_message(Role.ASSISTANT, TextBlock(f"{turn} is {draw(random_texts)}"), at=len(messages)))
    return messages


@given(random_sessions())
def test_texts_calls_and_results_round_trip_through_entries(session: list[Message]) -> None:
    written = entries_from_messages(session, agent_key="own")
    assert written.losses == ()
    history = history_from_entries(written.wire, agent_key="own", limits={})
    assert history.losses == ()
    assert list_blocks(history.messages) == list_blocks(tuple(session))
    ids = [
        [message.metadata.parent_tool_use_id for message in messages if message.role is Role.TOOL]
        for messages in (session, history.messages)
    ]
    assert ids[0] == ids[1]


def test_answer_with_many_calls_is_written_without_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []

    def compare(left: Any, right: Any) -> bool:
        compared.append(right)
        return left is right

    calls = [ToolUseBlock(f"tu_{at:026d}", "look", {}) for at in range(100)]
    answer = create_message(Role.ASSISTANT, TextBlock("I look."), *calls)
    monkeypatch.setattr(ToolUseBlock, "__eq__", compare)
    written = entries_from_messages([answer]).wire
    assert [entry["type"] for entry in written].count("action") == 100
    assert compared == []
