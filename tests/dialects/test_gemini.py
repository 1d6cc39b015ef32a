"""Tests of Gemini: options that are losses, and streams that are written event by event."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dragoman import dialects
from dragoman.dialects import gemini
from dragoman.event import (
    BlockComplete,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    fold,
    unfold,
)
from dragoman.exchange import Fault, Options, Reasoning, Reply, ResponseFormat, StopReason
from dragoman.message import (
    ContentBlock,
    DocumentBlock,
    ImageSource,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)
from tests.corpus import records
from tests.dialects.test_every_dialect import CALLS, REQUEST, message

# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reasoning", "thinking", "named"),
    [
        (Reasoning(effort="high"), {"thinkingLevel": "high"}, []),
        (Reasoning(effort="high", budget_tokens=512), {"thinkingBudget": 512}, ["reasoning.effort"]),
        (Reasoning(effort="max"), {"thinkingLevel": "high"}, ["reasoning.effort"]),
        (
            Reasoning(enabled=True, effort="default"),
            {"includeThoughts": True, "thinkingLevel": "medium"},
            ["reasoning.effort"],
        ),
        (Reasoning(effort="none"), {"thinkingBudget": 0}, []),
        (Reasoning(enabled=False, effort="low"), {"thinkingBudget": 0}, ["reasoning.effort"]),
        (Reasoning(enabled=False, budget_tokens=9), {"thinkingBudget": 0}, ["reasoning.budget_tokens"]),
    ],
)
def test_reasoning_options_are_written_or_reported(
    reasoning: Reasoning, thinking: dict[str, Any], named: list[str]
) -> None:
    written = gemini.write_request(REQUEST.replace(options=Options(reasoning=reasoning)))
    assert written.wire["generationConfig"] == {"thinkingConfig": thinking}
    assert [
        *(loss.block_type for loss in written.losses),
        *(adjustment.block_type for adjustment in written.adjustments),
    ] == named


def test_native_level_with_budget_is_not_a_loss() -> None:
    config = {"thinkingConfig": {"thinkingBudget": 512, "thinkingLevel": "HIGH"}}
    wire = {"contents": [{"role": "user", "parts": [{"text": "Hi."}]}], "generationConfig": config}
    written = gemini.write_request(gemini.read_request(wire))
    assert (written.wire, written.losses) == (wire, ())


def test_schema_name_and_user_are_reported_as_losses() -> None:
    asked = ResponseFormat("json_schema", {"type": "object"}, "answer", strict=True)
    options = Options(response_format=asked, user="u1", parallel_tool_calls=False)
    written = gemini.write_request(REQUEST.replace(options=options))
    lost = {loss.block_type for loss in written.losses}
    assert lost == {"response_format.name", "user", "parallel_tool_calls"}


@pytest.mark.parametrize(
    ("tier", "written_tier", "lost"),
    [
        ("flex", "flex", []),
        ("PRIORITY", "priority", []),
        ("default", "standard", []),
        ("auto", None, []),  # the default without a tier
        ("reserved", None, ["service_tier"]),
    ],
)
def test_service_tier_is_mapped_or_a_loss(tier: str, written_tier: str | None, lost: list[str]) -> None:
    written = gemini.write_request(REQUEST.replace(options=Options(service_tier=tier)))
    assert written.wire.get("serviceTier") == written_tier
    assert [loss.block_type for loss in written.losses] == lost


def test_only_name_of_document_is_a_loss() -> None:
    document = DocumentBlock(ImageSource("base64", "JVBERi0="), "application/pdf", "report.pdf")
    history = (
        message(Role.USER, document),
        message(Role.ASSISTANT, CALLS[0]),
        message(Role.TOOL, ToolResultBlock(CALLS[0].id, (TextBlock("found"), document)), parent=CALLS[0].id),
    )
    written = gemini.write_request(REQUEST.replace(messages=history))
    assert [(loss.block_type, loss.message_id) for loss in written.losses] == [("document.name", "01HZ001")] * 2
    assert json.dumps(written.wire).count("JVBERi0=") == 2
    unnamed = message(Role.USER, document.replace(name=None))
    assert gemini.write_request(REQUEST.replace(messages=(unnamed,))).losses == ()


# --- streams ---------------------------------------------------------------------------------------------------------


def write(events: Sequence[StreamEvent], framing: str | None = None) -> list[bytes]:
    """Return the bytes of each event and of the end."""
    writer = gemini.stream_writer(framing)
    return [*map(writer.feed, events), writer.close()]


def chunks(data: bytes) -> list[Any]:
    """Return the chunks of bytes, which must be complete."""
    lines = data.decode().split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def read_stream(data: bytes, framing: str | None = None) -> Reply:
    reader = gemini.stream_reader(framing)
    return fold([*reader.feed(data), *reader.close()])


def test_every_event_is_written_immediately() -> None:
    hint = {"dialect": "gemini", "residue": {"set": {"responseId": "r1"}}}
    thought = {"dialect": "gemini", "form": "thought"}
    signed = {"dialect": "gemini", "residue": {"set": {"thoughtSignature": "cw=="}}}
    call = ToolUseStart(2, CALLS[0].id, "read_file", {"dialect": "gemini", "id": ""})
    events = (
        (MessageStart("m", hint), []),
        (ThinkingDelta(0, "Hm", None, thought), [{"text": "Hm", "thought": True}]),
        (ThinkingDelta(0, "m."), [{"text": "m.", "thought": True}]),
        (ThinkingDelta(0, "", "c2ln", thought), [{"text": "", "thought": True, "thoughtSignature": "c2ln"}]),
        (TextDelta(1, "Hé"), [{"text": "Hé"}]),
        (UsageUpdate(TokenUsage(input_tokens=8, output_tokens=1)), []),
        (TextDelta(1, "llo."), [{"text": "llo."}]),
        (TextDelta(1, "", signed), [{"text": "", "thoughtSignature": "cw=="}]),
        (call, []),
        (ToolUseInputDelta(2, '{"path":'), []),
        (ToolUseInputDelta(2, '"x"}'), []),
        (
            ToolUseEnd(2, call.provider_raw),
            [{"functionCall": {"name": "read_file", "args": {"path": "x"}}}],
        ),
        (UsageUpdate(TokenUsage(input_tokens=8, output_tokens=9)), []),
        (MessageComplete(StopReason.TOOL_USE, None, hint), [{"text": ""}]),
    )
    writer = gemini.stream_writer()
    seen = []
    for event, parts in events:
        output = chunks(writer.feed(event))
        assert [part for chunk_wire in output for part in chunk_wire["candidates"][0]["content"]["parts"]] == parts
        seen += output
    assert writer.close() == b""
    assert {(chunk_wire["responseId"], chunk_wire["modelVersion"]) for chunk_wire in seen} == {("r1", "m")}
    assert [chunk_wire.get("usageMetadata", {}).get("candidatesTokenCount") for chunk_wire in seen] == [
        *[None] * 4,
        1,
        *[None] * 2,
        9,
    ]
    assert [chunk_wire["candidates"][0].get("finishReason") for chunk_wire in seen] == [*[None] * 7, "STOP"]


def test_blocks_after_an_open_call_wait_for_it() -> None:
    first, second = (ToolUseStart(index, call.id, call.name) for index, call in enumerate(CALLS))
    events = [
        first,
        second,
        ToolUseInputDelta(1, '{"n":2}'),
        ToolUseEnd(1),
        TextDelta(2, "Wait."),
        ToolUseInputDelta(0, '{"n":1}'),
        ToolUseEnd(0),
        TextDelta(2, " Go."),
        MessageComplete(StopReason.TOOL_USE),
    ]
    data = write(events)
    assert [len(chunks(chunk_wire)) for chunk_wire in data] == [0, 0, 0, 0, 0, 0, 3, 1, 1, 0]
    assert read_stream(b"".join(data)).content == fold(events).content


def test_call_without_input_is_written_at_end() -> None:
    events = [ToolUseStart(0, CALLS[0].id, "now"), ToolUseEnd(0)]
    for reason, code in ((StopReason.TOOL_USE, None), (StopReason.MAX_TOKENS, "tool_input_invalid")):
        data = write([*events, MessageComplete(reason)])
        assert data[:2] == [b"", b""]
        again = read_stream(b"".join(data))
        assert (again.fault.code if again.fault else None) == code
        assert [block.type for block in again.content] == ["tool_use"] * (code is None)


def test_usage_may_follow_the_end() -> None:
    data = b"".join(
        write(
            [
                TextDelta(0, "Hi."),
                MessageComplete(StopReason.END_TURN),
                UsageUpdate(TokenUsage(input_tokens=3, output_tokens=0)),
            ]
        )
    )
    again = read_stream(data)
    assert again.fault is None
    assert again.usage == TokenUsage(input_tokens=3, output_tokens=0)


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([], "server_error"),
        ([MessageStart("m")], "server_error"),
        ([TextDelta(0, "Hi.")], "server_error"),
        ([TextDelta(0, "Hi."), StreamError(Fault(code="overloaded", message="busy"))], "overloaded"),
        ([TextDelta(0, "Hi."), MessageComplete(StopReason.ERROR)], "server_error"),
        ([TextDelta(0, "Hi."), TextDelta(2, "?"), MessageComplete(StopReason.END_TURN)], "server_error"),
        ([TextDelta(0, "\ud83d"), MessageComplete(StopReason.END_TURN)], "server_error"),
        ([TextDelta(0, "\ud83dx"), MessageComplete(StopReason.END_TURN)], "server_error"),
        ([ToolUseInputDelta(0, "{}"), MessageComplete(StopReason.TOOL_USE)], "server_error"),
        ([TextDelta(0, "Hi."), ToolUseStart(0, "tu_1", "f"), MessageComplete(StopReason.END_TURN)], "server_error"),
        (
            [BlockComplete(0, CALLS[0]), BlockComplete(0, CALLS[1]), MessageComplete(StopReason.TOOL_USE)],
            "server_error",
        ),
        ([ToolUseStart(0, "tu_1", "f"), MessageComplete(StopReason.END_TURN)], "tool_input_invalid"),
        (
            [
                ToolUseStart(0, "tu_1", "f"),
                ToolUseInputDelta(0, "[1]"),
                ToolUseEnd(0),
                TextDelta(1, "more"),
                MessageComplete(StopReason.TOOL_USE),
            ],
            "tool_input_invalid",
        ),
        ([MessageComplete(StopReason.END_TURN)], "empty_response"),
        (
            [
                UsageUpdate(TokenUsage(input_tokens=3, output_tokens=0)),
                StreamError(Fault(code="timeout", message="slow")),
            ],
            "timeout",
        ),
    ],
)
@pytest.mark.parametrize("framing", [None, "json-array"])
def test_unfinished_messages_are_not_written_as_finished(
    events: list[StreamEvent], code: str, framing: str | None
) -> None:
    whole = fold(events)
    assert whole.fault is not None
    again = read_stream(b"".join(write(events, framing)), framing)
    assert again.fault is not None
    assert again.fault.code == code
    assert again.usage == whole.usage
    assert not any(isinstance(block, ToolUseBlock) and block not in whole.content for block in again.content)


def test_split_surrogates_are_joined() -> None:
    events = [TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), MessageComplete(StopReason.END_TURN)]
    assert read_stream(b"".join(write(events))).content == (TextBlock("a😀b"),)


def test_stream_of_reply_without_finish_reason_is_complete() -> None:
    reply = gemini.read_reply({"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi."}]}}]})
    assert reply.stop_reason is StopReason.UNKNOWN
    data = b"".join(write(unfold(reply)))
    assert [chunk["candidates"][0].get("finishReason") for chunk in chunks(data)] == [None, "OTHER"]
    again = read_stream(data)
    assert (again.content, again.fault) == (reply.content, None)


def test_foreign_reasoning_is_never_streamed() -> None:
    foreign = ThinkingBlock("secret", "c2ln", provider_raw={"dialect": "anthropic"})
    reply = Reply(content=(foreign, TextBlock("Hi.")), stop_reason=StopReason.END_TURN)
    data = b"".join(write(unfold(reply)))
    assert b"secret" not in data
    assert read_stream(data).content == (TextBlock("Hi."),)


def read_recorded_streams() -> Iterator[tuple[str, str, list[StreamEvent]]]:
    """Yield recorded streams of every dialect as events."""
    for name, record in records(*dialects.callable_names(), part="stream", sample=15):
        if record["status"] in (200, None):
            reader = dialects.load(name).stream_reader(record["stream_format"])
            events = reader.feed(record["stream"].encode("utf-8", "surrogatepass"))
            yield record["id"], name, [*events, *reader.close()]


def texts_and_calls(content: Sequence[ContentBlock]) -> list[Any]:
    """Return the content that must survive: text and calls; consecutive blocks of one kind are joined."""
    found: list[Any] = []
    for block in content:
        if isinstance(block, TextBlock) and found and isinstance(found[-1], str):
            found[-1] += block.text
        elif isinstance(block, TextBlock) and block.text:
            found.append(block.text)
        elif isinstance(block, ToolUseBlock):
            found.append((block.name, block.input))
    return found


HALF = re.compile("[\ud800-\udfff]")


def test_every_delta_is_written_immediately_for_streams_of_every_dialect() -> None:
    seen: dict[str, int] = {}
    for record, name, events in read_recorded_streams():
        seen[name] = seen.get(name, 0) + 1
        writer = gemini.stream_writer()
        data = []
        calls: set[int] = set()
        own: set[int] = set()
        for event in events:
            output = writer.feed(event)
            data.append(output)
            match event:
                case ToolUseStart(index):
                    calls.add(index)
                case ToolUseEnd(index) if output:
                    calls.discard(index)
                case TextDelta(index, text) if text and not HALF.search(text) and index < min(calls, default=index + 1):
                    parts = [
                        part
                        for chunk_wire in chunks(output)
                        for part in chunk_wire["candidates"][0]["content"]["parts"]
                    ]
                    assert "".join(part["text"] for part in parts) == text, record
                case ThinkingDelta(index, text, _, raw) if text:
                    if (raw or {}).get("dialect") == gemini.NAME:
                        own.add(index)
                    assert bool(output) is (index in own), record
        data.append(writer.close())
        whole, again = fold(events), read_stream(b"".join(data))
        nothing_left = (
            not texts_and_calls(whole.content) and name != gemini.NAME
        )  # reasoning, or content of the source dialect only
        is_silent = nothing_left and whole.stop_reason in (StopReason.END_TURN, StopReason.TOOL_USE, StopReason.UNKNOWN)
        assert (again.fault is None) is (whole.fault is None and not is_silent), record
        assert again.usage is None or whole.usage is not None, record
        if again.fault is None:
            assert texts_and_calls(again.content) == texts_and_calls(whole.content), record
            assert (again.stop_reason is StopReason.TOOL_USE) is any(isinstance(b, ToolUseBlock) for b in whole.content)
    assert set(seen) == set(dialects.callable_names())


# --- stop reasons ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish_reason", ["STOP", "FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_reply_with_calls_stops_for_tool_use(finish_reason: str) -> None:
    part = {"functionCall": {"id": "c1", "name": "read_file", "args": {}}}
    wire = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": finish_reason}]}
    reply = gemini.read_reply(wire)
    assert (reply.stop_reason, reply.fault) == (StopReason.TOOL_USE, None)
    assert gemini.write_reply(reply).wire["candidates"][0]["finishReason"] == finish_reason
