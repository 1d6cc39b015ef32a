"""Tests of the Responses API: the output of the stream writer for each event, and round trips of replies."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import dialects
from dragoman.dialects import openai_responses
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
from dragoman.exchange import Fault, Reply, StopReason
from dragoman.message import (
    InvalidToolUseBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from tests import strategies
from tests.corpus import records

USAGE = TokenUsage(input_tokens=8, output_tokens=42)
OWN = {"dialect": "openai_responses"}
CALL = ToolUseBlock("tu_01KR3ER9E00000000000000QQE", "read_file", {"path": "README.md"})


def write_events(events: list[StreamEvent] | tuple[StreamEvent, ...]) -> tuple[list[bytes], bytes]:
    """Return the bytes that the writer writes for each event, and those at the end."""
    writer = openai_responses.stream_writer()
    return [writer.feed(event) for event in events], writer.close()


def frames_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: ")]


def kinds_of(data: bytes) -> list[str]:
    return [frame["type"].removeprefix("response.") for frame in frames_of(data)]


def read(data: bytes, dialect: ModuleType = openai_responses, framing: str | None = None) -> list[StreamEvent]:
    reader = dialect.stream_reader(framing)
    return [*reader.feed(data), *reader.close()]


def text_and_calls(reply: Reply) -> list[Any]:
    """Return the joined text and the calls, which every dialect can express."""
    texts = "".join(block.text for block in reply.content if isinstance(block, TextBlock))
    return [texts, [(block.name, block.input) for block in reply.content if isinstance(block, ToolUseBlock)]]


# --- recorded streams ------------------------------------------------------------------------------------------------


ID_CHANGES = ("openrouter-1ac637d5ee6bac",)  # its last event has another id for the reasoning


@pytest.mark.slow
@pytest.mark.parametrize("name", dialects.callable_names())
def test_every_delta_is_written_immediately(name: str) -> None:
    count = 0
    for _, record in records(name, part="stream", sample=25):
        if record["status"] not in (200, None):
            continue
        count += 1
        events = read(record["stream"].encode("utf-8", "surrogatepass"), dialects.load(name), record["stream_format"])
        reply = fold(events)
        pieces, rest_of_stream = write_events(events)
        for event, piece in zip(events, pieces, strict=True):
            match event:
                case TextDelta(text=str(text)) | ToolUseInputDelta(partial_json=str(text)) if text:
                    assert piece, record["id"]
                case ThinkingDelta(text=str(text)) if text and name == "openai_responses":
                    assert piece, record["id"]
        data = b"".join([*pieces, rest_of_stream])
        again = fold(read(data))
        assert (again.fault is None) == (reply.fault is None), record["id"]
        assert text_and_calls(again) == text_and_calls(reply), record["id"]
        if reply.fault is None and reply.usage is not None:
            assert again.usage is not None
            assert (again.usage.input_tokens, again.usage.output_tokens) == (
                reply.usage.input_tokens,
                reply.usage.output_tokens,
            )
        frames = frames_of(data)
        assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
        started_ids = [frame["item"].get("id") for frame in frames if frame["type"] == "response.output_item.added"]
        output = frames[-1]["response"]["output"] if frames[-1]["type"] != "error" else []
        assert [item.get("id") for item in output] == started_ids or record["id"] in ID_CHANGES
    assert count > 10


# --- output of each event -------------------------------------------------------------------------------------------


def test_stream_is_written_event_by_event() -> None:
    events: list[StreamEvent] = [
        MessageStart("some-model"),
        TextDelta(0, "I'll "),
        TextDelta(0, "look."),
        ToolUseStart(1, CALL.id, CALL.name),
        ToolUseInputDelta(1, '{"path": '),
        ToolUseInputDelta(1, '"README.md"}'),
        ToolUseEnd(1),
        UsageUpdate(USAGE),
        MessageComplete(StopReason.TOOL_USE),
    ]
    pieces, rest_of_stream = write_events(events)
    assert [kinds_of(piece) for piece in pieces] == [
        ["created", "in_progress"],
        ["output_item.added", "content_part.added", "output_text.delta"],
        ["output_text.delta"],
        ["output_text.done", "content_part.done", "output_item.done", "output_item.added"],
        ["function_call_arguments.delta"],
        ["function_call_arguments.delta"],
        ["function_call_arguments.done", "output_item.done"],
        [],
        ["completed"],
    ]
    assert rest_of_stream == b""
    (message, call) = frames_of(pieces[-1])[0]["response"]["output"]
    assert message["content"][0]["text"] == "I'll look."
    assert call["arguments"] == '{"path": "README.md"}'  # joined from the deltas


def test_end_waits_for_usage() -> None:
    events = [MessageStart("m"), TextDelta(0, "Hi."), MessageComplete(StopReason.END_TURN), UsageUpdate(USAGE)]
    pieces, rest_of_stream = write_events(events)
    assert pieces[2] == b""
    assert kinds_of(pieces[3])[-1] == "completed"
    assert frames_of(pieces[3])[-1]["response"]["usage"]["output_tokens"] == 42
    assert rest_of_stream == b""
    assert kinds_of(write_events(events[:3])[1])[-1] == "completed"  # without usage, close does not wait


def test_reasoning_summaries_are_parts_of_one_item() -> None:
    reply = Reply(
        content=(ThinkingBlock("One.\n\nTwo.\n\nTwo goes on.", "c2VjcmV0", {**OWN, "cuts": [4, 18]}), TextBlock("Hi.")),
        stop_reason=StopReason.END_TURN,
        usage=USAGE,
        provider_raw=OWN,
    )
    whole = b"".join(write_events(unfold(reply))[0])
    events = read(whole)
    assert [event.text for event in events if isinstance(event, ThinkingDelta)][:3] == [
        "One.",
        "\n\n",
        "Two.\n\nTwo goes on.",
    ]
    pieces = write_events(events)[0]
    assert frames_of(b"".join(pieces))[-1]["response"] == frames_of(whole)[-1]["response"]
    item = frames_of(whole)[-1]["response"]["output"][0]
    assert [part["text"] for part in item["summary"]] == ["One.", "Two.\n\nTwo goes on."]
    deltas = [frame for frame in frames_of(whole) if frame["type"] == "response.reasoning_summary_text.delta"]
    assert [(frame["summary_index"], frame["delta"]) for frame in deltas] == [(0, "One."), (1, "Two.\n\nTwo goes on.")]


def test_foreign_reasoning_is_not_written() -> None:
    events = [
        MessageStart("m"),
        ThinkingDelta(0, "secret", "sig"),
        TextDelta(1, "Hi."),
        MessageComplete(StopReason.END_TURN),
    ]
    pieces, rest_of_stream = write_events(events)
    assert pieces[1] == b""
    assert b"secret" not in b"".join([*pieces, rest_of_stream])
    assert text_and_calls(fold(read(b"".join([*pieces, rest_of_stream])))) == ["Hi.", []]


def test_text_after_finished_block_starts_new_item() -> None:
    events = [
        MessageStart("m"),
        TextDelta(0, "Before. "),
        ToolUseStart(1, CALL.id, CALL.name),
        TextDelta(0, "Between."),
        ToolUseInputDelta(1, "{}"),
        ToolUseEnd(1),
        UsageUpdate(USAGE),
        MessageComplete(StopReason.TOOL_USE),
    ]
    pieces, _ = write_events(events)
    assert kinds_of(pieces[3]) == ["output_item.added", "content_part.added", "output_text.delta"]
    again = fold(read(b"".join(pieces)))
    assert again.fault is None
    assert [block.type for block in again.content] == ["text", "tool_use", "text"]
    assert text_and_calls(again) == ["Before. Between.", [(CALL.name, {})]]


def test_split_surrogate_pair_is_joined() -> None:
    events = [MessageStart("m"), TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), MessageComplete(StopReason.END_TURN)]
    pieces, rest_of_stream = write_events(events)
    deltas = [frame["delta"] for frame in frames_of(b"".join(pieces)) if frame["type"].endswith("text.delta")]
    assert deltas == ["a", "😀b"]
    assert text_and_calls(fold(read(b"".join([*pieces, rest_of_stream])))) == ["a😀b", []]
    _, rest_of_stream = write_events([*events[:2], MessageComplete(StopReason.END_TURN)])
    assert kinds_of(rest_of_stream) == ["failed"]


def test_call_without_input_waits_for_stop_reason() -> None:
    call: list[StreamEvent] = [MessageStart("m"), ToolUseStart(0, CALL.id, "now"), ToolUseEnd(0), UsageUpdate(USAGE)]
    result = fold(read(b"".join(write_events([*call, MessageComplete(StopReason.TOOL_USE)])[0])))
    assert text_and_calls(result) == ["", [("now", {})]]
    cut = fold(read(b"".join(write_events([*call, MessageComplete(StopReason.MAX_TOKENS)])[0])))
    assert cut.fault is not None
    assert cut.fault.code == "tool_input_truncated"


FAULT = Fault(code="overloaded", message="busy", retryable=True)
FAILURES: dict[str, list[StreamEvent]] = {
    "nothing": [],
    "only a beginning": [MessageStart("m")],
    "no end": [MessageStart("m"), TextDelta(0, "so far")],
    "a call without its end": [MessageStart("m"), ToolUseStart(0, CALL.id, "f"), ToolUseInputDelta(0, '{"a":1}')],
    "a call without its end, and the end of all": [
        MessageStart("m"),
        ToolUseStart(0, CALL.id, "f"),
        ToolUseInputDelta(0, '{"a":1}'),
        MessageComplete(StopReason.TOOL_USE),
    ],
    "an error": [MessageStart("m"), TextDelta(0, "so far"), StreamError(FAULT)],
    "an error at once": [StreamError(FAULT)],
    "an error in a call": [
        MessageStart("m"),
        ToolUseStart(0, CALL.id, "f"),
        ToolUseInputDelta(0, "{}"),
        StreamError(FAULT),
    ],
    "a block that begins twice": [MessageStart("m"), ToolUseStart(0, CALL.id, "f"), ToolUseStart(0, CALL.id, "f")],
    "a message that begins twice": [MessageStart("m"), TextDelta(0, "x"), MessageStart("m")],
    "input for a text": [MessageStart("m"), TextDelta(0, "x"), ToolUseInputDelta(0, "{}")],
    "a block that is missing": [MessageStart("m"), TextDelta(1, "x"), MessageComplete(StopReason.END_TURN)],
    "an end that says it failed": [MessageStart("m"), TextDelta(0, "x"), MessageComplete(StopReason.ERROR)],
}


@pytest.mark.parametrize("name", FAILURES)
def test_unfinished_reply_is_not_written_as_complete(name: str) -> None:
    events = FAILURES[name]
    assert fold(events).fault is not None
    pieces, rest_of_stream = write_events(events)
    data = b"".join([*pieces, rest_of_stream])
    assert "completed" not in kinds_of(data)
    again = fold(read(data))
    assert again.fault is not None
    assert not any(isinstance(block, ToolUseBlock) for block in again.content)
    assert text_and_calls(again)[0] == text_and_calls(fold(events))[0]


def test_failure_has_error_shape_of_responses_api() -> None:
    pieces, _ = write_events([MessageStart("m"), TextDelta(0, "so far"), StreamError(FAULT)])
    failed = frames_of(pieces[-1])[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_is_overloaded", "message": "busy"}
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert frames_of(write_events([StreamError(FAULT)])[0][0]) == [
        {"type": "error", "code": "server_is_overloaded", "message": "busy", "param": None, "sequence_number": 0}
    ]


_deltas = st.lists(
    st.one_of(
        st.builds(MessageStart, st.just("m"), st.sampled_from([None, OWN])),
        st.builds(
            TextDelta, st.integers(0, 2), st.sampled_from(["", "a", "é😀", "\ud83d"]), st.sampled_from([None, OWN])
        ),
        st.builds(
            ThinkingDelta,
            st.integers(0, 2),
            st.sampled_from(["", "x", "\n\n"]),
            st.sampled_from([None, "s"]),
            st.sampled_from([None, OWN, {**OWN, "cuts": [1, 0]}]),
        ),
        st.builds(
            ToolUseStart, st.integers(0, 2), st.just(CALL.id), st.just("f"), st.sampled_from([None, {**OWN, "id": "c"}])
        ),
        st.builds(ToolUseInputDelta, st.integers(0, 2), st.sampled_from(["", "{", "}", "{}", '"\ud83d"'])),
        st.builds(ToolUseEnd, st.integers(0, 2), st.sampled_from([None, {**OWN, "id": "c"}])),
        st.builds(
            BlockComplete,
            st.integers(0, 2),
            st.sampled_from(
                [
                    TextBlock("w"),
                    CALL,
                    InvalidToolUseBlock(CALL.id, "f", "{", "cut"),
                    RedactedThinkingBlock("s", OWN),
                    ThinkingBlock("t", "s", OWN),
                    OpaqueBlock("openai_responses", {"type": "web_search_call", "id": "ws_1"}),
                    OpaqueBlock("openai_responses", {"type": "output_audio"}, {**OWN, "form": "part"}),
                    OpaqueBlock("another", {"type": "x"}),
                ]
            ),
        ),
        st.just(UsageUpdate(USAGE)),
        st.builds(MessageComplete, st.sampled_from(StopReason), st.none(), st.sampled_from([None, OWN])),
        st.just(StreamError(FAULT)),
    ),
    max_size=10,
)


@given(_deltas)
def test_any_events_are_written_and_failures_stay_failures(events: list[StreamEvent]) -> None:
    reply = fold(events)
    pieces, rest_of_stream = write_events(events)
    again = fold(read(b"".join([*pieces, rest_of_stream])))
    assert reply.fault is None or again.fault is not None


@given(strategies.replies)
def test_any_reply_can_be_streamed(reply: Reply) -> None:
    again = fold(read(b"".join(write_events(unfold(reply))[0]) + write_events(unfold(reply))[1]))
    judged = fold(unfold(reply))
    assert judged.fault is None or again.fault is not None
    if again.fault is None:
        assert text_and_calls(again) == text_and_calls(judged)


# --- replies ---------------------------------------------------------------------------------------------------------


def body(*output: dict[str, Any], status: str = "completed", **rest: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "model": "gpt-5", "status": status, "output": list(output), **rest}


def call_item(arguments: str, status: str = "completed") -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "f",
        "arguments": arguments,
        "status": status,
    }


LIMIT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
UNUSABLE = {
    "no object": (body(call_item("[]")), "tool_input_invalid"),
    "no JSON": (body(call_item("{")), "tool_input_invalid"),
    "a key twice": (body(call_item('{"a":1,"a":2}')), "tool_input_invalid"),
    "cut off": (body(call_item('{"a', "incomplete"), **LIMIT), "tool_input_truncated"),
    "cut off, and it can be read": (body(call_item("{}", "incomplete"), **LIMIT), "tool_input_truncated"),
    "cut off before its input": (body(call_item(""), **LIMIT), "tool_input_truncated"),
    "filtered inside of a call": (
        body(call_item("{"), status="incomplete", incomplete_details={"reason": "content_filter"}),
        "tool_input_invalid",
    ),
    "no content": (body(usage=None), "empty_response"),
    "an empty text": (
        body({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}),
        "empty_response",
    ),
    "a failure": (body(status="failed", error={"code": "server_error", "message": "x"}), "server_error"),
    "a failure without an explanation": (body(status="failed", error=None), "unexplained_error"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_reply_is_a_fault_and_round_trips(name: str) -> None:
    wire, code = UNUSABLE[name]
    reply = openai_responses.read_reply(wire)
    assert reply.fault is not None
    assert reply.fault.code == code
    assert not any(isinstance(block, ToolUseBlock) for block in reply.content)
    assert openai_responses.write_reply(reply).wire == wire


def test_items_of_final_event_replace_streamed_items() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "first"}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    final_message = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi."}],
    }
    final = body({**thought, "encrypted_content": "last"}, {**search, "action": {"type": "search"}}, final_message)
    stream: list[dict[str, Any]] = [{"type": "response.created", "response": body(status="in_progress")}]
    for place, item in enumerate((thought, search, final_message)):
        stream.append({"type": "response.output_item.added", "output_index": place, "item": item})
        stream.append({"type": "response.output_item.done", "output_index": place, "item": item})
    stream.append({"type": "response.completed", "response": final})
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in stream)
    reader = openai_responses.stream_reader()
    early = reader.feed(data[: data.index(b"response.completed")])
    assert [type(event) for event in early] == [MessageStart, BlockComplete, BlockComplete, TextDelta]
    reply = fold([*early, *reader.feed(data[data.index(b"response.completed") :]), *reader.close()])
    assert openai_responses.write_reply(reply).wire == final
    edited = reply.replace(content=reply.content[1:])
    assert openai_responses.write_reply(edited).wire["output"] == final["output"][1:]


def test_start_events_contain_known_fields() -> None:
    created = body(status="in_progress", temperature=0.5)
    item = call_item("", "in_progress")
    data = b"".join(
        b"data: " + json.dumps(event).encode() + b"\n\n"
        for event in (
            {"type": "response.created", "response": created},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
        )
    )
    start, call = openai_responses.stream_reader().feed(data)
    assert isinstance(start, MessageStart)
    assert isinstance(call, ToolUseStart)
    pieces, _ = write_events([start, call])
    assert frames_of(pieces[0])[0]["response"] == {**created, "usage": None, "error": None, "incomplete_details": None}
    assert frames_of(pieces[1])[0]["item"] == item
