"""Tests of histories of pydantic-ai: its output round-trips, and it reads the output of Dragoman as intended."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dragoman import codec, dialects
from dragoman.errors import FormatError, InputError
from dragoman.fidelity.cases import CASES, make_sample
from dragoman.message import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.transcripts import pydantic_ai
from tests.conftest import scale
from tests.transcripts.conftest import Judge
from tests.transcripts.mutation import mutate_many
from tests.transcripts.test_laws import FEWER, histories

MUTATIONS = scale(10, 50)  # mutations of a history
NOON = datetime(2026, 5, 8, 12, tzinfo=UTC)
Judges = Callable[..., Judge]
WITH_JUDGE = settings(
    FEWER, suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture]
)


def read(wire: Any) -> tuple[Message, ...]:
    return pydantic_ai.read_messages(wire, session_id="sess_1", created_at=NOON)


def round_trip(wire: Any) -> Any:
    """Return the output after the messages were stored and loaded."""
    written = pydantic_ai.write_messages(codec.decode(codec.encode(message)) for message in read(wire))
    assert written.losses == ()
    return written.wire


def make_message(role: Role, *blocks: Any, number: int = 1, **metadata: Any) -> Message:
    return Message(f"01HZ{number:022d}", "sess_1", role, blocks, MessageMetadata(**metadata), NOON)


def request(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "request", "parts": list(parts), **fields}


def response(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "response", "parts": list(parts), **fields}


def prompt(content: Any, **fields: Any) -> dict[str, Any]:
    return {"part_kind": "user-prompt", "content": content, **fields}


def call(call_id: str = "call_1", args: Any = None) -> dict[str, Any]:
    return {"part_kind": "tool-call", "tool_name": "look", "args": args, "tool_call_id": call_id}


def result(content: Any, call_id: str = "call_1", **fields: Any) -> dict[str, Any]:
    return {"part_kind": "tool-return", "tool_name": "look", "content": content, "tool_call_id": call_id, **fields}


# --- against the package ---------------------------------------------------------------------------------------------


def test_output_of_the_package_round_trips(judge: Judges) -> None:
    histories = judge("pydantic-ai").ask("generate", {"first": 0, "count": 400})
    assert len(histories) == 400
    changed = [wire for wire in histories if json.dumps(round_trip(wire)) != json.dumps(wire)]
    assert changed == []


def test_histories_of_agents_round_trip(judge: Judges) -> None:
    histories = judge("pydantic-ai").ask("runs")
    assert [len(wire) for wire in histories] == [6, 5, 4, 4]
    for wire in histories:
        assert json.dumps(round_trip(wire)) == json.dumps(wire)


def test_agent_history_is_read_as_messages(judge: Judges) -> None:
    messages = read(judge("pydantic-ai").ask("runs")[0])
    assert [(message.role.value, [block.type for block in message.content]) for message in messages] == [
        ("system", ["text"]),
        ("system", ["text"]),
        ("user", ["text"]),
        ("assistant", ["thinking", "tool_use"]),
        ("tool", ["tool_result"]),
        ("assistant", ["tool_use", "tool_use"]),
        ("tool", ["tool_result"]),
        ("tool", ["tool_result"]),
        ("assistant", ["text"]),
    ]
    call_block, answer = messages[3].content[1], messages[4].content[0]
    assert call_block == ToolUseBlock(call_block.id, "look", {"path": "README.md"})  # type: ignore[union-attr]
    assert answer == ToolResultBlock(call_block.id, (TextBlock('{"text":"# Project Foo (README.md)"}'),))  # type: ignore[union-attr]
    assert [block.is_error for message in messages[6:8] for block in message.content] == [True, True]  # type: ignore[union-attr]


def read_samples_of_every_dialect() -> list[tuple[str, tuple[Message, ...]]]:
    """Return the messages of all samples of all dialects."""
    samples = []
    for name in dialects.callable_names():
        dialect: Any = dialects.load(name)
        for case in CASES:
            wire = make_sample(dialect, case) if case.answer is None else None
            if wire is not None:
                samples.append((f"{name}: {case.name}", dialect.read_request(wire).messages))
    return samples


def test_package_round_trips_output_from_every_dialect(judge: Judges) -> None:
    changed = []
    for name, messages in read_samples_of_every_dialect():
        wire = pydantic_ai.write_messages(messages).wire
        result = remove_guesses(judge("pydantic-ai").ask("validate", wire), wire)
        if json.dumps(result) != json.dumps(wire):
            changed.append(name)
    assert changed == []


@WITH_JUDGE
@given(history=histories)
def test_package_round_trips_any_output(judge: Judges, history: list[Message]) -> None:
    wire = pydantic_ai.write_messages(map(set_real_bytes, history)).wire
    result = remove_guesses(judge("pydantic-ai").ask("validate", wire), wire)
    assert json.dumps(result) == json.dumps(wire)


def set_real_bytes(message: Message) -> Message:
    return message.replace(content=[_set_real_bytes(block) for block in message.content])


def _set_real_bytes(block: Any) -> Any:
    """Return a block with valid base64."""
    if isinstance(block, ToolResultBlock):
        return block.replace(content=[_set_real_bytes(inner) for inner in block.content])
    if getattr(block, "source", None) is None or block.source.kind != "base64":
        return block
    return block.replace(source=ImageSource("base64", base64.b64encode(block.source.data.encode()).decode()))


def remove_guesses(output: Any, wire: Any) -> Any:
    """Return the output of the package without the media types that it guesses."""
    if isinstance(output, list):
        return [remove_guesses(*pair) for pair in zip(output, wire, strict=True)]
    if not isinstance(output, dict):
        return output
    cleaned = {key: remove_guesses(item, wire.get(key)) for key, item in output.items()}
    return {**cleaned, "media_type": wire["media_type"]} if wire.get("media_type", "none") in (None, "") else cleaned


def test_package_reads_every_block_type(judge: Judges) -> None:
    usage = Usage(
        input_tokens=100,
        output_tokens=20,
        cached_input_tokens=30,
        cache_creation_input_tokens=10,
        reasoning_tokens=5,
        cost_usd=Decimal("0.00125"),
        pricing_version="2026-05-08",
        latency_ms=900,
    )
    png = base64.b64encode(b"\x89PNG\xff\xfe").decode()
    history = [
        make_message(Role.SYSTEM, TextBlock("Be brief."), TextBlock("Be kind."), number=1),
        make_message(Role.SYSTEM, number=2),
        make_message(
            Role.USER,
            TextBlock("What are these?"),
            ImageBlock(ImageSource("base64", png), "image/png"),
            ImageBlock(ImageSource("url", "https://example.com/a"), "image/*"),
            DocumentBlock(ImageSource("url", "https://example.com/a.pdf"), "application/pdf", "report.pdf"),
            AudioBlock(ImageSource("base64", "UklGRg=="), "audio/wav"),
            number=3,
            extra={"tenant": "a"},
            user_id="u",
        ),
        make_message(
            Role.ASSISTANT,
            ThinkingBlock("I have to look.", "sig"),
            RedactedThinkingBlock("blob"),
            TextBlock("I look."),
            ToolUseBlock("tu_01", "look", {"path": "a"}),
            ToolUseBlock("tu_02", "look", {"INVALID_JSON": "x"}),
            InvalidToolUseBlock("tu_03", "look", '{"path": 1}', "path is a text"),
            number=4,
            model="anthropic:claude-sonnet-4-6",
            provider="anthropic",
            usage=usage,
            run_id="run_1",
            extra={},
        ),
        make_message(Role.TOOL, ToolResultBlock("tu_01", (TextBlock("a"), TextBlock("b"))), number=5),
        make_message(
            Role.TOOL,
            ToolResultBlock("tu_02", (ImageBlock(ImageSource("url", "https://example.com/a.png"), "image/png"),), True),
            number=6,
        ),
        make_message(Role.USER, TextBlock("Thanks."), number=7, status=MessageStatus.CANCELLED),
    ]
    written = pydantic_ai.write_messages(history)
    assert [(loss.message_id, loss.block_type) for loss in written.losses] == [(history[3].id, "invalid_tool_use")]
    assert json.dumps(judge("pydantic-ai").ask("validate", written.wire)) == json.dumps(written.wire)
    assert judge("pydantic-ai").ask("find_files_in_results", written.wire) == ["ImageUrl"]
    again = read(written.wire)
    reason = "marked as invalid JSON"
    calls = [
        block.replace(reason=reason) if block.type == "invalid_tool_use" else block for block in history[3].content
    ]
    history[3] = history[3].replace(content=calls)
    assert list(again) == history


def test_package_has_the_same_defaults(judge: Judges) -> None:
    wire = [request(prompt("Hello.")), response({"part_kind": "text", "content": "Hi."}, call(args={"path": "a"}))]
    kinds = ["UserPromptPart", "TextPart", "ToolCallPart"]
    assert judge("pydantic-ai").ask("validate_sparse", wire) == kinds
    assert round_trip(wire) == wire


# --- conversion ------------------------------------------------------------------------------------------------------


def test_changed_instructions_become_a_system_message() -> None:
    wire = [
        request(prompt("One?"), instructions="Count."),
        response({"part_kind": "text", "content": "One."}),
        request(prompt("Two?"), instructions="Count."),
        response({"part_kind": "text", "content": "Two."}),
        request(prompt("Three?"), instructions="Stop."),
    ]
    messages = read(wire)
    texts = [block.text for message in messages if message.role is Role.SYSTEM for block in message.content]  # type: ignore[union-attr]
    assert texts == ["Count.", "Stop."]
    edited = messages[0].replace(content=[TextBlock("Count slowly.")])
    again = pydantic_ai.write_messages([edited, *messages[1:]]).wire
    assert [item.get("instructions") for item in again if item["kind"] == "request"] == [
        "Count slowly.",
        "Count slowly.",
        "Stop.",
    ]


def test_consecutive_requests_stay_separate_and_new_messages_join() -> None:
    wire = [request(prompt("One.")), request(prompt("Two."), prompt("Three."))]
    assert round_trip(wire) == wire
    messages = [
        make_message(Role.SYSTEM, TextBlock("Be brief.")),
        make_message(Role.USER, TextBlock("Hello."), number=2),
    ]
    (item,) = pydantic_ai.write_messages(messages).wire
    assert [part["part_kind"] for part in item["parts"]] == ["system-prompt", "user-prompt"]


def test_times_are_from_part_request_or_argument() -> None:
    later = NOON + timedelta(seconds=1, microseconds=5)
    wire = [
        request(prompt("a", timestamp=later.isoformat()), {"part_kind": "compaction", "content": "b"}, timestamp="x"),
        request({"part_kind": "compaction", "content": "c"}, timestamp="2026-05-08T14:00:01.000005+02:00"),
        response(timestamp="2026-05-08T12:00:01.000005"),
    ]
    assert [message.created_at for message in read(wire)] == [later, NOON, later, later]
    assert round_trip(wire) == wire


def test_usage_is_split_and_no_price_is_invented() -> None:
    counts = {"input_tokens": 100, "cache_read_tokens": 30, "cache_write_tokens": 10, "output_tokens": 5, "cost": "0.5"}
    (message,) = read([response(usage=counts, model_name="gpt-5", provider_name="openai", run_id="run_1")])
    usage = message.metadata.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens) == (60, 30, 10)
    assert (usage.cost_usd, usage.pricing_version, usage.provider_cost_usd) == (None, "not-recorded", Decimal("0.5"))
    assert (message.metadata.model, message.metadata.provider) == ("openai:gpt-5", "openai")
    assert message.metadata.run_id == "run_1"
    assert read([response(usage={"input_tokens": 0, "output_tokens": 0})])[0].metadata.usage is None


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "complete"),
        ({"state": "interrupted"}, "cancelled"),
        ({"state": "incomplete"}, "partial"),
        ({"state": "suspended"}, "partial"),
        ({"finish_reason": "error"}, "error"),
    ],
)
def test_state_of_a_response_is_its_status(fields: dict[str, str], status: str) -> None:
    (message,) = read([response({"part_kind": "text", "content": "a"}, **fields)])
    assert message.metadata.status == status


@pytest.mark.parametrize("args", ['{"path": "RE', "[1]", "nonsense", {"INVALID_JSON": '{"path": 1}'}])
def test_invalid_call_round_trips(args: Any) -> None:
    (message,) = read([response(call(args=args))])
    (block,) = message.content
    assert isinstance(block, InvalidToolUseBlock)
    foreign = make_message(Role.ASSISTANT, InvalidToolUseBlock("tu_01", "look", block.input_text, "why"))
    (again,) = read(pydantic_ai.write_messages([foreign]).wire)
    assert isinstance(again.content[0], InvalidToolUseBlock)
    assert again.content[0].input_text == block.input_text


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("text", [TextBlock("text")]),
        (None, []),
        ([], []),
        (["a", "b"], [TextBlock("a"), TextBlock("b")]),
        ([1, "b"], [TextBlock('[1,"b"]')]),
        ({"rows": [1]}, [TextBlock('{"rows":[1]}')]),
        (
            [{"kind": "binary", "data": "_-4=", "media_type": "image/png"}, {"n": 1}],
            [ImageBlock(ImageSource("base64", "/+4="), "image/png"), TextBlock('{"n":1}')],
        ),
    ],
)
def test_tool_returns_are_texts_and_files(content: Any, blocks: list[Any]) -> None:
    wire = [response(call()), request(result(content, outcome="failed"))]
    answer = read(wire)[1].content[0]
    assert isinstance(answer, ToolResultBlock)
    assert list(answer.content) == blocks
    assert answer.is_error
    assert round_trip(wire) == wire


def test_tool_json_that_resembles_a_file_is_not_a_file() -> None:
    value = {"kind": "image-url", "url": "https://example.com/a.png", "media_type": "image/png"}
    wire = [response(call()), request(result(value, content_file_digests=[]))]
    answer = read(wire)[1].content[0]
    assert [block.type for block in answer.content] == ["text"]  # type: ignore[union-attr]
    assert round_trip(wire) == wire


def test_new_result_uses_the_call_id_of_the_history() -> None:
    (question,) = read([response(call("call_9", {"path": "a"}))])
    answer = make_message(Role.TOOL, ToolResultBlock(question.content[0].id, (TextBlock("ok"),)))  # type: ignore[union-attr]
    part = pydantic_ai.write_messages([question, answer]).wire[1]["parts"][0]
    assert (part["tool_name"], part["tool_call_id"]) == ("look", "call_9")


def test_provider_tools_are_opaque_and_records_are_not_messages() -> None:
    search = {"part_kind": "builtin-tool-call", "tool_name": "web_search", "args": {}, "tool_call_id": "s"}
    record = {"part_kind": "tool-availability-delta", "tools_added": ["f"]}
    wire = [request(record, prompt("Hi."), record), request(record), response(search)]
    messages = read(wire)
    assert [block for message in messages for block in message.content] == [
        TextBlock("Hi."),
        OpaqueBlock("pydantic_ai", search),
    ]
    assert round_trip(wire) == wire


def test_cache_point_keeps_its_position() -> None:
    wire = [request(prompt(["a", {"kind": "cache-point", "ttl": "1h"}, "b"]))]
    (message,) = read(wire)
    assert message.content == (TextBlock("a"), TextBlock("b"))
    assert round_trip(wire) == wire


def test_edit_is_written_and_its_neighbours_are_unchanged() -> None:
    part = {"part_kind": "text", "content": "Hello.", "id": "msg_1", "provider_name": "openai"}
    structured = {"kind": "structured-content", "content": "a: 1", "value": {"a": 1}}
    question, answer = read([request(prompt([structured, "b"])), response(part)])
    edited = [
        question.replace(content=[question.content[0].replace(text="a: 2"), question.content[1]]),
        answer.replace(content=[answer.content[0].replace(text="Bye.")]),
    ]
    first, second = pydantic_ai.write_messages(edited).wire
    assert first["parts"][0]["content"] == [{"kind": "structured-content", "content": "a: 2", "value": "a: 2"}, "b"]
    assert second["parts"] == [{**part, "content": "Bye."}]


# --- rejected input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "where"),
    [
        ({}, "$"),
        ([1], "$[0]"),
        ([{"kind": "reply", "parts": []}], "$[0].kind"),
        ([request(), {"kind": "response"}], "$[1].parts"),
        ([request({"content": "a"})], "$[0].parts[0].part_kind"),
        ([request(prompt(1))], "$[0].parts[0].content"),
        ([request(prompt(["a", 1]))], "$[0].parts[0].content[1]"),
        ([request({"part_kind": "system-prompt", "content": ["a"]})], "$[0].parts[0].content"),
        ([request({"part_kind": "tool-return", "content": "a"})], "$[0].parts[0].tool_name"),
        ([response({"part_kind": "text"})], "$[0].parts[0].content"),
        ([response({"part_kind": "tool-call"})], "$[0].parts[0].tool_name"),
        ([response(call(args=[1]))], "$[0].parts[0].args"),
        ([request(prompt("a")), request(prompt("half \ud83d"))], "$[1].parts[0]"),
        ([request(prompt("a"), metadata={"dragoman": {"0": {"id": 1}}})], "$[0].parts[0]"),
    ],
)
def test_invalid_input_is_rejected_with_its_path(wire: Any, where: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(wire)
    assert caught.value.where == where


def test_mutated_history_round_trips_or_is_rejected_with_its_path(judge: Judges) -> None:
    paths, changed, count = [], [], 0
    for history in judge("pydantic-ai").ask("generate", {"first": 400, "count": 20}):
        for wire in mutate_many(history, MUTATIONS):
            count += 1
            try:
                written = pydantic_ai.write_messages(read(wire))
            except InputError as error:
                paths.append(error.where)
                continue
            if json.dumps(written.wire) != json.dumps(wire) or written.losses:
                changed.append(wire)
    assert changed == []
    assert all(path.startswith("$[") for path in paths)
    assert 0 < len(paths) < count == 20 * MUTATIONS


def test_time_with_a_lone_surrogate_is_rejected_with_its_path() -> None:
    history = [{"kind": "request", "parts": [], "timestamp": "\ud800"}]
    with pytest.raises(FormatError, match="a lone surrogate") as caught:
        pydantic_ai.read_messages(history, session_id="sess_1", created_at=datetime(2026, 5, 8, tzinfo=UTC))
    assert (caught.value.where, caught.value.code) == ("$[0]", "invalid_unicode")
