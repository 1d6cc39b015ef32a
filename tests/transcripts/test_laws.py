"""Tests of invariants of every transcript format: output is read back or reported as a loss; invalid input is rejected."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman import codec
from dragoman.errors import InputError
from dragoman.exchange import Loss
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.rules import CALL
from dragoman.transcripts import FORMATS, detect, get_format
from tests import strategies

NOON = datetime(2026, 5, 8, 12, tzinfo=UTC)
FEWER = settings(max_examples=max(1, settings().max_examples // 8))  # each example runs for every format


def read(name: str, wire: Any) -> tuple[Message, ...]:
    messages: tuple[Message, ...] = get_format(name).read_messages(wire, session_id="sess_1", created_at=NOON)
    return messages


def set_own_ids(history: list[Message]) -> list[Message]:
    """Return the messages with own ids that are used once for their calls: other ids are replaced when they are read.

    Results answer the calls before them, as long as there are any. Fields of a newer version are kept as values, without
    their white space.
    """
    ids, waiting = (f"tu_{number:04d}" for number in itertools.count()), list[str]()
    return [_set_own_ids(message, ids, waiting) for message in history]


def _set_own_ids(message: Message, ids: Iterator[str], waiting: list[str]) -> Message:
    blocks: list[ContentBlock] = []
    for block in codec.decode(msgspec.json.encode(msgspec.json.decode(codec.encode(message)))).content:
        if isinstance(block, ToolResultBlock):
            blocks.append(block.replace(tool_use_id=waiting.pop(0) if waiting else next(ids)))
        elif isinstance(block, CALL):
            blocks.append(block.replace(id=next(ids)))
            waiting.append(blocks[-1].id)  # type: ignore[union-attr]
        else:
            blocks.append(block)
    plain = codec.decode(msgspec.json.encode(msgspec.json.decode(codec.encode(message))))
    first = blocks[0] if blocks else None
    parent = first.tool_use_id if isinstance(first, ToolResultBlock) and message.role is Role.TOOL else None
    return plain.replace(content=blocks, metadata=plain.metadata.replace(parent_tool_use_id=parent))


def turn(question: Message, answer: Message, results: list[ToolResultBlock], rest: list[Message]) -> list[Message]:
    """Return a valid turn: a question, an answer with calls, one result per message, and the rest."""
    calls = [block for block in answer.content if isinstance(block, CALL)]
    tools = [
        question.replace(id=f"7{number:025d}", role=Role.TOOL, content=[result])
        for number, result in enumerate(results[: len(calls)])
    ]
    return [question.replace(role=Role.USER), answer.replace(role=Role.ASSISTANT), *tools, *rest]


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    history = draw(st.lists(strategies.messages, min_size=2, max_size=3, unique_by=lambda message: message.id))
    results = strategies.blocks().filter(lambda block: isinstance(block, ToolResultBlock))
    return turn(history[0], history[1], draw(st.lists(results, max_size=3)), history[2:])


loose = st.lists(strategies.messages, max_size=4, unique_by=lambda message: message.id)
histories = (loose | turns()).map(set_own_ids)


def find_unaccounted(before: Message, after: Message | None, losses: list[Loss]) -> list[str]:
    """Return what is neither read back nor reported as a loss."""
    reported = Counter(loss.block_type for loss in losses if loss.message_id == before.id)
    if after is None:
        return [] if reported["message"] else ["the message"]
    missing = [
        name for name in ("role", "metadata", "created_at", "id") if getattr(before, name) != getattr(after, name)
    ]
    remaining = list(after.content)
    for block in before.content:
        if block in remaining:
            remaining.remove(block)
        elif isinstance(block, ToolResultBlock) and find_result(block, remaining) is not None:
            missing.extend(find_unaccounted_result(block, remaining, reported))
        elif reported[block.type]:
            reported[block.type] -= 1
        else:
            missing.append(block.type)
    return [name for name in missing if not reported[name]]


def find_result(block: ToolResultBlock, remaining: list[ContentBlock]) -> ToolResultBlock | None:
    """Return the result of the same call that was read back."""
    results = (other for other in remaining if isinstance(other, ToolResultBlock))
    return next((other for other in results if other.tool_use_id == block.tool_use_id), None)


def find_unaccounted_result(block: ToolResultBlock, remaining: list[ContentBlock], reported: Counter[str]) -> list[str]:
    found = find_result(block, remaining)
    assert found is not None
    remaining.remove(found)
    missing = [] if found.is_error == block.is_error or reported["is_error"] else ["is_error"]
    inner = list(found.content)
    for part in block.content:
        if part in inner:
            inner.remove(part)
        elif reported[part.type]:
            reported[part.type] -= 1
        else:
            missing.append(f"{part.type} in a result")
    return missing


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("answers", [None, "tu_1", "tu_2"])
def test_lost_block_before_a_result_does_not_change_the_parent_call(name: str, answers: str | None) -> None:
    content = (ImageBlock(ImageSource("file_ref", "a.png"), "image/png"), ToolResultBlock("tu_1", ()))
    metadata = MessageMetadata(parent_tool_use_id=answers)
    message = Message(
        "00000000000000000000000001", "sess_1", Role.TOOL, content, metadata, datetime(2026, 1, 1, tzinfo=UTC)
    )
    written = get_format(name).write_messages([message])
    found = {stored.id: stored for stored in read(name, written.wire)}
    assert find_unaccounted(message, found.get(message.id), list(written.losses)) == []


@pytest.mark.parametrize("name", FORMATS)
@FEWER
@given(history=histories)
def test_written_messages_are_read_back_or_reported_as_losses(name: str, history: list[Message]) -> None:
    written = get_format(name).write_messages(history)
    found = {message.id: message for message in read(name, written.wire)}
    missing = {
        message.id: unaccounted
        for message in history
        if (unaccounted := find_unaccounted(message, found.get(message.id), list(written.losses)))
    }
    assert missing == {}
    if not written.losses:
        assert list(found.values()) == history


@pytest.mark.parametrize("name", FORMATS)
@FEWER
@given(history=histories)
def test_rewriting_a_written_transcript_is_stable(name: str, history: list[Message]) -> None:
    wire = get_format(name).write_messages(history).wire
    again = get_format(name).write_messages(read(name, wire))
    assert json.dumps(again.wire) == json.dumps(wire)
    assert again.losses == ()


@pytest.mark.parametrize("name", FORMATS)
@FEWER
@given(history=histories)
def test_json_text_is_read_like_its_value(name: str, history: list[Message]) -> None:
    wire = get_format(name).write_messages(history).wire
    text = json.dumps(wire)
    assert read(name, text) == read(name, text.encode()) == read(name, json.loads(text))


# Keys and texts of some format, so that values pass the first check.
KEYS = ["role", "id", "type", "content", "parts", "kind", "data", "tool_calls", "toolCalls", "toolCallId", "metadata"]
KEYS += ["response_metadata", "additional_kwargs", "tool_call_id", "usage_metadata", "status", "state", "error"]
TEXTS = ["user", "assistant", "system", "tool", "reasoning", "human", "ai", "request", "response", "text", "file"]
likely = st.sampled_from(TEXTS) | strategies.plain
likely_objects = st.dictionaries(
    st.sampled_from(KEYS),
    likely | st.lists(st.dictionaries(st.sampled_from(KEYS), likely, max_size=4), max_size=2),
    max_size=6,
)


@pytest.mark.parametrize("name", FORMATS)
@FEWER
@given(wire=strategies.plain | st.lists(likely_objects, max_size=2))
def test_any_input_round_trips_or_is_rejected_with_a_path(name: str, wire: Any) -> None:
    try:
        messages = read(name, wire)
    except InputError as error:
        rejected = error
    else:
        assert isinstance(wire, str) or json.dumps(get_format(name).write_messages(messages).wire) == json.dumps(wire)
        return
    assert rejected.what
    assert isinstance(wire, str) or rejected.where.startswith("$")


def test_boolean_is_not_a_token_count() -> None:
    wire = [{"type": "ai", "data": {"content": "Hi.", "usage_metadata": {"input_tokens": 3, "output_tokens": True}}}]
    (message,) = get_format("langchain").read_messages(
        wire, session_id="s", created_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert message.metadata.usage is None
    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("wire", ["", "{", "nope", b"\xff\xfe", "[NaN]", '[{"role": "user", "role": "user"}]'])
def test_invalid_json_is_rejected(name: str, wire: Any) -> None:
    with pytest.raises(InputError):
        read(name, wire)


@pytest.mark.parametrize("name", FORMATS)
def test_too_deep_nesting_is_rejected(name: str) -> None:
    deep: Any = {"x": 1}
    for _ in range(2_000):
        deep = {"x": deep}
    call = ToolUseBlock("tu_01", "f", {"x": 1})
    shallow = Message("01HZ0000000000000000000001", "sess_1", Role.ASSISTANT, [call], MessageMetadata(), NOON)
    text = json.dumps(get_format(name).write_messages([shallow]).wire)
    assert '"tu_01"' in text
    with pytest.raises(InputError):
        read(name, [deep])
    with pytest.raises(InputError):
        read(name, json.loads(text[:-1] + ", " + "[" * 500 + "]" * 500 + "]"))


@pytest.mark.parametrize("name", FORMATS)
def test_edit_is_written(name: str) -> None:
    original = Message(
        "01HZ0000000000000000000001", "sess_1", Role.USER, [TextBlock("Hello.")], MessageMetadata(), NOON
    )
    wire = get_format(name).write_messages([original]).wire
    (message,) = read(name, wire)
    edited = message.replace(content=[message.content[0].replace(text="Good evening.")])
    assert "Good evening." in json.dumps(get_format(name).write_messages([edited]).wire)
    assert "Hello." not in json.dumps(get_format(name).write_messages([edited]).wire)


@pytest.mark.parametrize("name", FORMATS)
@FEWER
@given(history=histories.filter(bool))
def test_written_output_is_detected_as_its_own_format_only(name: str, history: list[Message]) -> None:
    wire = get_format(name).write_messages(history).wire
    if wire:
        assert detect(wire) == name
