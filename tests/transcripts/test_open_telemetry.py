"""Tests of messages of traces: the output of instrumentations round-trips, and written output matches the conventions."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dragoman import codec, dialects
from dragoman.errors import FormatError, InputError
from dragoman.fidelity.cases import CASES, make_sample
from dragoman.message import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.transcripts import open_telemetry
from dragoman.transcripts.open_telemetry import INPUT, INSTRUCTIONS, OUTPUT
from tests.transcripts.conftest import Judge
from tests.transcripts.mutation import mutate_many
from tests.transcripts.test_laws import FEWER, histories

NOON = datetime(2026, 5, 8, 12, tzinfo=UTC)
Judges = Callable[..., Judge]
WITH_JUDGE = settings(
    FEWER, suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture]
)


def read(wire: Any) -> tuple[Message, ...]:
    return open_telemetry.read_messages(wire, session_id="sess_1", created_at=NOON)


def round_trip(wire: Any) -> Any:
    """Return the output after the messages were stored and loaded."""
    written = open_telemetry.write_messages(codec.decode(codec.encode(message)) for message in read(wire))
    assert written.losses == ()
    return written.wire


def message(role: str, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(parts), **fields}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def call(arguments: Any = None, call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": "look", "arguments": arguments}


def answer(response: Any, call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "tool_call_response", "id": call_id, "response": response}


def make_message(role: Role, *blocks: Any, number: int = 1, **metadata: Any) -> Message:
    return Message(f"01HZ{number:022d}", "sess_1", role, blocks, MessageMetadata(**metadata), NOON)


# --- against the packages --------------------------------------------------------------------------------------------


def test_messages_built_from_opentelemetry_types_round_trip(judge: Judges) -> None:
    conversations = judge("open-telemetry").ask("generate", {"first": 0, "count": 400})
    assert len(conversations) == 400
    assert [wire for wire in conversations if json.dumps(round_trip(wire)) != json.dumps(wire)] == []


def test_schema_accepts_messages_built_from_opentelemetry_types(judge: Judges) -> None:
    for wire in judge("open-telemetry").ask("generate", {"first": 0, "count": 100}):
        assert judge("open-telemetry").ask("find_violations", {"attribute": INPUT, "value": wire}) == []


@pytest.mark.parametrize(
    "part", [{"content": "a"}, {"type": "text"}, {"type": "tool_call"}, {"type": "blob", "content": "YQ=="}]
)
def test_schema_rejects_an_invalid_part_of_a_known_type(judge: Judges, part: dict[str, Any]) -> None:
    assert judge("open-telemetry").ask("find_violations", {"attribute": INPUT, "value": [message("user", part)]})


def test_span_attributes_of_an_agent_round_trip(judge: Judges) -> None:
    spans = judge("open-telemetry").ask("traces")
    assert len(spans) == 20  # two of each version, with and without content
    assert [span for span in spans if json.dumps(round_trip(span)) != json.dumps(span)] == []


def test_span_attributes_are_read_as_messages(judge: Judges) -> None:
    span = judge("open-telemetry").ask("traces")[-3]  # the second of version 6, with content
    messages = read(span)
    assert [(each.role.value, [block.type for block in each.content]) for each in messages] == [
        ("system", ["text"]),
        ("system", ["text"]),
        ("user", ["text", "image", "document", "opaque", "audio", "document"]),
        ("assistant", ["thinking", "text", "tool_use", "tool_use", "opaque", "opaque"]),
        ("tool", ["tool_result"]),
        ("tool", ["tool_result"]),
        ("assistant", ["text", "opaque"]),
    ]
    usage = messages[-1].metadata.usage
    assert usage is not None
    assert usage.output_tokens == span["gen_ai.usage.output_tokens"]
    assert (usage.cost_usd, usage.pricing_version) == (None, "not-recorded")
    assert messages[-1].metadata.model == f"{span['gen_ai.provider.name']}:{span['gen_ai.response.model']}"


def test_output_from_every_dialect_matches_the_conventions(judge: Judges) -> None:
    violations = []
    for name in dialects.callable_names():
        dialect: Any = dialects.load(name)
        for case in CASES:
            wire = make_sample(dialect, case) if case.answer is None else None
            if wire is None:
                continue
            written = open_telemetry.write_messages(dialect.read_request(wire).messages).wire
            found = judge("open-telemetry").ask("find_violations", {"attribute": INPUT, "value": written})
            violations.extend(f"{name}, {case.name}: {violation}" for violation in found)
    assert violations == []


@WITH_JUDGE
@given(history=histories)
def test_any_output_matches_the_conventions(judge: Judges, history: list[Message]) -> None:
    wire = open_telemetry.write_messages(history).wire
    assert judge("open-telemetry").ask("find_violations", {"attribute": INPUT, "value": wire}) == []


def test_opentelemetry_types_accept_every_block_type(judge: Judges) -> None:
    history = [
        make_message(Role.SYSTEM, TextBlock("Be brief."), number=1),
        make_message(
            Role.USER,
            TextBlock("What is this?"),
            ImageBlock(ImageSource("base64", "iVBORw=="), "image/png"),
            ImageBlock(ImageSource("url", "https://example.com/a"), "image/*"),
            DocumentBlock(ImageSource("url", "https://example.com/a.pdf"), "application/pdf", "report.pdf"),
            number=2,
            user_id="u",
        ),
        make_message(
            Role.ASSISTANT,
            ThinkingBlock("I have to look.", "sig"),
            RedactedThinkingBlock("blob"),
            TextBlock("I look."),
            ToolUseBlock("tu_01", "look", {"path": "a"}),
            InvalidToolUseBlock("tu_02", "look", '{"path": 1}', "path is a text"),
            number=3,
            model="anthropic:claude-sonnet-4-6",
            extra={"x": 1},
        ),
        make_message(Role.TOOL, ToolResultBlock("tu_01", (TextBlock("a"), TextBlock("b")), True), number=4),
        make_message(Role.TOOL, ToolResultBlock("tu_02", ()), number=5),
        make_message(Role.ASSISTANT, number=6, status=MessageStatus.ERROR),
    ]
    written = open_telemetry.write_messages(history)
    assert written.losses == ()
    assert judge("open-telemetry").ask("find_violations", {"attribute": OUTPUT, "value": written.wire}) == []
    bare = remove_own_fields(written.wire)
    assert judge("open-telemetry").ask("read_types", bare) == [
        ["TextPart"],
        ["TextPart", "BlobPart", "UriPart", "UriPart"],
        ["ReasoningPart", "ReasoningPart", "TextPart", "ToolCallRequestPart", "ToolCallRequestPart"],
        ["ToolCallResponsePart"],
        ["ToolCallResponsePart"],
        [],
    ]
    assert list(read(written.wire)) == history


def remove_own_fields(wire: Any) -> Any:
    """Return the wire without the key of Dragoman and the finish reason, which the types do not accept."""
    if isinstance(wire, list):
        return [remove_own_fields(item) for item in wire]
    if not isinstance(wire, dict):
        return wire
    return {key: remove_own_fields(item) for key, item in wire.items() if key not in ("dragoman", "finish_reason")}


# --- conversion ------------------------------------------------------------------------------------------------------


def test_tool_results_are_split_on_read_and_joined_on_write() -> None:
    wire = [
        message("assistant", text("I look."), call({"path": "a"}), call({}, "call_2")),
        message("user", answer("# Foo"), answer({"rows": [1]}, "call_2"), text("Go on.")),
    ]
    messages = read(wire)
    assert [each.role.value for each in messages] == ["assistant", "tool", "tool", "user"]
    first, second = messages[0].content[1:]
    assert messages[1].content == (ToolResultBlock(first.id, (TextBlock("# Foo"),)),)  # type: ignore[union-attr]
    assert messages[2].content == (ToolResultBlock(second.id, (TextBlock('{"rows":[1]}'),)),)  # type: ignore[union-attr]
    assert messages[1].metadata.parent_tool_use_id == first.id  # type: ignore[union-attr]
    assert round_trip(wire) == wire
    changed = messages[2].replace(metadata=messages[2].metadata.replace(stage="late"))
    separate = open_telemetry.write_messages([*messages[:2], changed, messages[3]]).wire
    assert [item["role"] for item in separate] == ["assistant", "user", "tool"]
    assert read(separate)[2].metadata.stage == "late"


@pytest.mark.parametrize("response", ["", None, [], {}, 0, [1], [{"type": "text", "content": "a"}], [{"type": "x"}]])
def test_every_tool_response_round_trips(response: Any) -> None:
    wire = [message("assistant", call({})), message("tool", answer(response))]
    assert round_trip(wire) == wire


@pytest.mark.parametrize("arguments", ['{"path": "RE', "[1]", [1], 3])
def test_invalid_call_round_trips(arguments: Any) -> None:
    wire = [message("assistant", call(arguments))]
    (block,) = read(wire)[0].content
    assert isinstance(block, InvalidToolUseBlock)
    assert round_trip(wire) == wire
    foreign = make_message(Role.ASSISTANT, InvalidToolUseBlock("tu_01", "look", '{"path": 1}', "path is a text"))
    assert read(open_telemetry.write_messages([foreign]).wire) == (foreign,)


def test_role_names_of_providers_are_mapped_and_preserved() -> None:
    wire = [message("developer", text("a")), message("model", text("b")), message("critic", text("c"))]
    assert [each.role.value for each in read(wire)] == ["system", "assistant", "critic"]
    assert json.dumps(open_telemetry.write_messages(read(wire)).wire) == json.dumps(wire)


def test_span_round_trips_and_new_messages_join_the_last_attribute() -> None:
    span = {
        "gen_ai.request.model": "gpt-5",
        OUTPUT: json.dumps([message("assistant", text("Hi."), finish_reason="stop")]),
        INPUT: [message("user", text("Hello."))],
        INSTRUCTIONS: [text("Be brief.")],
    }
    messages = read(span)
    assert [each.role.value for each in messages] == ["system", "user", "assistant"]
    assert json.dumps(round_trip(span)) == json.dumps(span)
    edited = messages[0].replace(content=[TextBlock("Be kind.")])
    more = make_message(Role.USER, TextBlock("And?"), number=9)
    again = open_telemetry.write_messages([edited, *messages[1:], more]).wire
    assert again[INSTRUCTIONS] == [text("Be kind.")]
    assert [item["role"] for item in json.loads(again[OUTPUT])] == ["assistant", "user"]
    assert again["gen_ai.request.model"] == "gpt-5"


@pytest.mark.parametrize("span", [{INPUT: "[]"}, {OUTPUT: [], "x": 1}, {INSTRUCTIONS: "[]", INPUT: []}])
def test_span_without_messages_round_trips(span: dict[str, Any]) -> None:
    assert round_trip(span) == span


# --- rejected input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "where"),
    [
        (1, "$"),
        ({"gen_ai.system": "openai"}, "$"),
        ([1], "$[0]"),
        ([{"parts": []}], "$[0].role"),
        ([{"role": "user"}], "$[0].parts"),
        ([message("user", {"content": "a"})], "$[0].parts[0].type"),
        ([message("user", {"type": "text", "content": 1})], "$[0].parts[0].content"),
        ([message("assistant", text("a"), {"type": "tool_call"})], "$[0].parts[1].name"),
        ([message("user", text("half \ud83d"))], "$[0].parts[0]"),
        ([message("user", text("a"), dragoman={"id": 1})], "$[0]"),
        ({INPUT: "[{"}, f"$['{INPUT}']"),
        ({OUTPUT: [message("assistant"), {"role": "user"}]}, f"$['{OUTPUT}'][1].parts"),
    ],
)
def test_invalid_input_is_rejected_with_its_path(wire: Any, where: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(wire)
    assert caught.value.where == where


def test_mutated_trace_round_trips_or_is_rejected_with_its_path(judge: Judges) -> None:
    package = judge("open-telemetry")
    paths, changed, count = [], [], 0
    for wire in [*package.ask("generate", {"first": 400, "count": 15}), *map(unpack_span, package.ask("traces")[:5])]:
        for other in mutate_many(wire, 50):
            count += 1
            try:
                written = open_telemetry.write_messages(read(other))
            except InputError as error:
                paths.append(error.where)
                continue
            if json.dumps(written.wire) != json.dumps(other) or written.losses:
                changed.append(other)
    assert changed == []
    assert all(path.startswith("$") for path in paths)
    assert 0 < len(paths) < count == 1000


def unpack_span(span: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span with parsed messages."""
    return {key: json.loads(value) if key in (INPUT, INSTRUCTIONS) else value for key, value in span.items()}
