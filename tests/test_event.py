"""Tests of stream events, fold and unfold."""

from __future__ import annotations

import logging
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
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
    mark_unusable,
    merge_deltas,
    unfold,
)
from dragoman.exchange import Fault, Reply, StopReason
from dragoman.message import InvalidToolUseBlock, TextBlock, ThinkingBlock, TokenUsage, ToolUseBlock
from tests import strategies

END = MessageComplete(StopReason.END_TURN)
CALL = (ToolUseStart(0, "tu_1", "f"), ToolUseInputDelta(0, '{"a"'), ToolUseInputDelta(0, ":1}"), ToolUseEnd(0))


def test_events_have_the_names_of_the_specification() -> None:
    names = {kind.__struct_config__.tag for kind in get_args(StreamEvent)}
    specified = {
        "text_delta",
        "tool_use_start",
        "tool_use_input_delta",
        "tool_use_end",
        "thinking_delta",
        "message_complete",
        "usage_update",
        "error",
    }
    assert names == specified | {"message_start", "block_complete", "alternative_complete"}


DELTAS = st.lists(
    st.builds(TextDelta, st.integers(0, 1), st.text(max_size=3))
    | st.builds(ThinkingDelta, st.integers(2, 3), st.text(max_size=3), st.none() | st.just("signature"))
    | st.sampled_from(CALL),
    max_size=20,
)


@given(DELTAS)
def test_joined_deltas_fold_to_the_same_reply(events: list[StreamEvent]) -> None:
    joined = merge_deltas([*events, END])
    assert fold(joined) == fold([*events, END])
    assert merge_deltas(joined) == joined


def test_deltas_are_merged_up_to_a_delta_with_raw_fields() -> None:
    with_raw = TextDelta(0, "d", {"dialect": "openai_chat"})
    events = [TextDelta(0, "a"), TextDelta(0, "b"), TextDelta(1, "c"), with_raw, TextDelta(0, "e"), TextDelta(0, "f")]
    assert merge_deltas(events) == [TextDelta(0, "ab"), TextDelta(1, "c"), with_raw, TextDelta(0, "ef")]


@given(strategies.replies)
def test_unfolded_reply_folds_to_an_equal_reply(reply: Reply) -> None:
    again = fold(unfold(reply))
    assert again == mark_unusable(reply)
    assert again.provider_raw == reply.provider_raw
    assert [getattr(b, "provider_raw", None) for b in again.content] == [
        getattr(b, "provider_raw", None) for b in reply.content
    ]


@given(strategies.replies, st.data())
def test_truncated_stream_never_folds_to_a_finished_reply(reply: Reply, data: st.DataObject) -> None:
    events = unfold(reply)
    cut = fold(events[: data.draw(st.integers(0, len(events) - 1))])
    assert cut.fault is not None
    assert cut.stop_reason is StopReason.ERROR


def event_lists() -> st.SearchStrategy[list[Any]]:
    indexes = st.integers(0, 2)
    return st.lists(
        st.one_of(
            st.builds(MessageStart, strategies.optional_texts),
            st.builds(TextDelta, indexes, strategies.texts),
            st.builds(ThinkingDelta, indexes, strategies.texts, strategies.optional_texts),
            st.builds(ToolUseStart, indexes, strategies.tool_ids, strategies.words),
            st.builds(ToolUseInputDelta, indexes, st.sampled_from(["{", "}", '"a":1', "[1]", "", "NaN"])),
            st.builds(ToolUseEnd, indexes),
            st.builds(BlockComplete, indexes, strategies.blocks()),
            st.builds(UsageUpdate, strategies.token_usages),
            st.builds(MessageComplete, st.sampled_from(StopReason)),
            st.builds(StreamError, strategies.faults),
        ),
        max_size=12,
    )


@given(event_lists())
def test_any_events_fold_to_a_reply_with_fault_or_end(events: list[Any]) -> None:
    reply = fold(events)
    ended = any(isinstance(event, MessageComplete) for event in events)
    assert reply.fault is not None or ended
    texts = {kind: "".join(e.text for e in events if type(e) is kind) for kind in (TextDelta, ThinkingDelta)}
    for block in reply.content:
        if isinstance(block, ToolUseBlock):
            assert any(isinstance(event, ToolUseEnd | BlockComplete) for event in events)
        if isinstance(block, TextBlock) and not any(isinstance(event, BlockComplete) for event in events):
            assert set(block.text) <= set(texts[TextDelta])


def test_interleaved_blocks_are_assembled_by_index() -> None:
    reply = fold(
        [
            MessageStart("m"),
            ThinkingDelta(0, "hm"),
            TextDelta(1, "He"),
            ToolUseStart(2, "tu_1", "f"),
            ToolUseStart(3, "tu_2", "g"),
            ToolUseInputDelta(3, '{"b":'),
            ToolUseInputDelta(2, '{"a":1}'),
            TextDelta(1, "llo"),
            ThinkingDelta(0, "m", "signed"),
            ToolUseInputDelta(3, "2}"),
            ToolUseEnd(2),
            ToolUseEnd(3),
            UsageUpdate(TokenUsage(input_tokens=1, output_tokens=2)),
            MessageComplete(StopReason.TOOL_USE),
            UsageUpdate(TokenUsage(input_tokens=1, output_tokens=9)),
        ]
    )
    assert reply == Reply(
        content=(
            ThinkingBlock("hmm", "signed"),
            TextBlock("Hello"),
            ToolUseBlock("tu_1", "f", {"a": 1}),
            ToolUseBlock("tu_2", "g", {"b": 2}),
        ),
        stop_reason=StopReason.TOOL_USE,
        usage=TokenUsage(input_tokens=1, output_tokens=9),
        model="m",
    )


def fault_of(*events: StreamEvent) -> tuple[str, Reply]:
    reply = fold(events)
    assert reply.fault is not None
    assert reply.stop_reason is StopReason.ERROR
    return reply.fault.code, reply


def test_stream_without_end_is_incomplete_and_its_text_is_preserved() -> None:
    code, reply = fault_of(TextDelta(0, "so far"))
    assert code == "stream_incomplete"
    assert reply.fault.retryable
    assert reply.content == (TextBlock("so far"),)
    assert fault_of()[0] == "stream_incomplete"


def test_events_after_an_error_are_ignored() -> None:
    fault = Fault(code="overloaded", message="busy", retryable=True)
    reply = fold([TextDelta(0, "a"), StreamError(fault, {"tail": "x"}), TextDelta(0, "b"), END])
    assert reply.content == (TextBlock("a"),)
    assert reply.fault == fault
    assert reply.provider_raw == {"tail": "x"}


@pytest.mark.parametrize(
    "events",
    [
        [ToolUseInputDelta(0, "{}")],
        [ToolUseEnd(0)],
        [*CALL, ToolUseEnd(0)],
        [*CALL, ToolUseInputDelta(0, "{}")],
        [*CALL, TextDelta(0, "x")],
        [*CALL, CALL[0]],
        [TextDelta(0, "x"), ThinkingDelta(0, "y")],
        [TextDelta(0, "x"), ToolUseStart(0, "tu_1", "f")],
        [TextDelta(0, "x"), BlockComplete(0, TextBlock("y"))],
        [MessageStart("m"), MessageStart("m")],
    ],
)
def test_events_out_of_order_are_a_violation_despite_a_proper_end(events: list[Any]) -> None:
    code, reply = fault_of(TextDelta(1, "kept"), *events, END)
    assert code == "protocol_violation"
    assert TextBlock("kept") in reply.content


@pytest.mark.parametrize(
    "text",
    [
        '{"target":"all","dry_',
        "[1]",
        "null",
        '"x"',
        '{"a":1,"a":2}',
        '{"x":NaN}',
        '{"x":1e400}',
        "{} {}",
        "{'a':1}",
    ],
)
def test_input_that_is_not_an_object_becomes_an_invalid_call(text: str) -> None:
    code, reply = fault_of(CALL[0], ToolUseInputDelta(0, text), ToolUseEnd(0), MessageComplete(StopReason.TOOL_USE))
    assert code == "tool_input_invalid"
    (block,) = reply.content
    assert isinstance(block, InvalidToolUseBlock)
    assert block.input_text == text
    assert block.reason


@pytest.mark.parametrize("end", [(), (ToolUseEnd(0),)])
def test_call_cut_by_the_output_limit_is_truncated(end: tuple[StreamEvent, ...]) -> None:
    code, reply = fault_of(*CALL[:2], *end, MessageComplete(StopReason.MAX_TOKENS))
    assert code == "tool_input_truncated"
    assert reply.content[0].input_text == '{"a"'


@pytest.mark.parametrize("deltas", [(), (ToolUseInputDelta(0, " "),)])
def test_call_with_only_a_name_at_the_output_limit_is_truncated(deltas: tuple[StreamEvent, ...]) -> None:
    code, reply = fault_of(CALL[0], *deltas, ToolUseEnd(0), MessageComplete(StopReason.MAX_TOKENS))
    assert code == "tool_input_truncated"
    assert isinstance(reply.content[0], InvalidToolUseBlock)


def test_missing_block_index_is_a_violation() -> None:
    assert fault_of(TextDelta(0, "a"), TextDelta(2, "c"), END)[0] == "protocol_violation"


def test_split_surrogates_are_joined_and_a_lone_one_is_a_fault() -> None:
    assert fold([TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), END]).content == (TextBlock("a😀b"),)
    code, reply = fault_of(TextDelta(0, "a\ud83d"), TextDelta(0, "b"), END)
    assert code == "bad_event"
    assert reply.content == (TextBlock("ab"),)


def test_events_have_types_and_other_values_are_rejected() -> None:
    assert (TextDelta(0, "x").type, StreamError(Fault(code="x", message="y")).type) == ("text_delta", "error")
    with pytest.raises(TypeError, match="not a stream event"):
        fold(["text_delta"])  # type: ignore[list-item]


def test_call_without_end_is_truncated() -> None:
    code, reply = fault_of(*CALL[:3], MessageComplete(StopReason.TOOL_USE))
    assert code == "tool_input_truncated"
    assert isinstance(reply.content[0], InvalidToolUseBlock)


@pytest.mark.parametrize("text", ["", " ", "{}"])
def test_missing_arguments_are_an_empty_object(text: str) -> None:
    reply = fold([CALL[0], ToolUseInputDelta(0, text), ToolUseEnd(0), MessageComplete(StopReason.TOOL_USE)])
    assert reply.content == (ToolUseBlock("tu_1", "f", {}),)
    assert reply.fault is None


def test_events_after_the_end_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    reply = fold([TextDelta(0, "a"), END, TextDelta(0, "b"), TextDelta(1, "c"), MessageStart()])
    assert reply == Reply(content=(TextBlock("a"),), stop_reason=StopReason.END_TURN)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_reply_with_a_fault_cannot_have_another_stop_reason() -> None:
    fault = Fault(code="x", message="y")
    for fields in (
        {"stop_reason": StopReason.END_TURN, "fault": fault},
        {"stop_reason": StopReason.ERROR},
        {"stop_reason": StopReason.ERROR, "fault": fault, "stop_sequence": "x"},
    ):
        with pytest.raises(ValueError, match="stop_"):
            Reply(**fields)


def test_failed_reply_without_explanation_has_a_fault() -> None:
    assert fault_of(TextDelta(0, "a"), MessageComplete(StopReason.ERROR))[0] == "unexplained_error"


def test_usage_of_a_failed_reply_is_preserved() -> None:
    used = TokenUsage(input_tokens=5, output_tokens=6)
    reply = fold([StreamError(Fault(code="x", message="y")), UsageUpdate(used)])
    assert reply.usage == used


def test_raw_fields_of_several_deltas_are_merged() -> None:
    reply = fold([TextDelta(0, "a", {"x": 1}), TextDelta(0, "b"), TextDelta(0, "", {"y": 2}), END])
    assert reply.content[0].provider_raw == {"x": 1, "y": 2}


def test_package_exports_fold_and_unfold() -> None:
    assert dragoman.fold is fold
    assert dragoman.unfold is unfold


def test_surrogates_split_between_two_input_deltas_are_joined() -> None:
    start, end = ToolUseStart(0, "tu_01KR3ER9E00000000000000QQE", "say"), MessageComplete(StopReason.TOOL_USE)
    pieces = (ToolUseInputDelta(0, '{"words":"\ud83d'), ToolUseInputDelta(0, '\ude00"}'))
    (call,) = fold([MessageStart(), start, *pieces, ToolUseEnd(0), end]).content
    assert isinstance(call, ToolUseBlock)
    assert call.input == {"words": "😀"}
    truncated = fold([MessageStart(), start, pieces[0], ToolUseInputDelta(0, '"}'), ToolUseEnd(0), end])
    assert truncated.fault is not None
    assert truncated.fault.code == "tool_input_invalid"
    assert isinstance(truncated.content[0], InvalidToolUseBlock)
    assert truncated.content[0].input_text == '{"words":""}'
