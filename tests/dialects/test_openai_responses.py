"""The Responses API: what the stream writer writes for each event, and how complete replies round-trip."""

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


def written(events: list[StreamEvent] | tuple[StreamEvent, ...]) -> tuple[list[bytes], bytes]:
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


def said_in(reply: Reply) -> list[Any]:
    """Return the joined text and the calls, which every dialect can express."""
    texts = "".join(block.text for block in reply.content if isinstance(block, TextBlock))
    return [texts, [(block.name, block.input) for block in reply.content if isinstance(block, ToolUseBlock)]]


# --- recorded streams ------------------------------------------------------------------------------------------------


IDS_CHANGE = ("openrouter-1ac637d5ee6bac",)  # its last event calls the reasoning otherwise than the ones before


@pytest.mark.slow
@pytest.mark.parametrize("name", dialects.callable_names())
def test_every_delta_of_any_dialect_is_written_at_once_and_says_the_same(name: str) -> None:
    count = 0
    for _, record in records(name, part="stream", sample=25):
        if record["status"] not in (200, None):
            continue
        count += 1
        events = read(record["stream"].encode("utf-8", "surrogatepass"), dialects.load(name), record["stream_format"])
        reply = fold(events)
        pieces, owed = written(events)
        for event, piece in zip(events, pieces, strict=True):
            match event:
                case TextDelta(text=str(text)) | ToolUseInputDelta(partial_json=str(text)) if text:
                    assert piece, record["id"]
                case ThinkingDelta(text=str(text)) if text and name == "openai_responses":
                    assert piece, record["id"]
        data = b"".join([*pieces, owed])
        again = fold(read(data))
        assert (again.fault is None) == (reply.fault is None), record["id"]
        assert said_in(again) == said_in(reply), record["id"]
        if reply.fault is None and reply.usage is not None:
            assert again.usage is not None
            assert (again.usage.input_tokens, again.usage.output_tokens) == (
                reply.usage.input_tokens,
                reply.usage.output_tokens,
            )
        frames = frames_of(data)
        assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
        begun = [frame["item"].get("id") for frame in frames if frame["type"] == "response.output_item.added"]
        output = frames[-1]["response"]["output"] if frames[-1]["type"] != "error" else []
        assert [item.get("id") for item in output] == begun or record["id"] in IDS_CHANGE
    assert count > 10


# --- what each event gives -------------------------------------------------------------------------------------------


def test_a_stream_is_written_as_its_events_come() -> None:
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
    pieces, owed = written(events)
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
    assert owed == b""
    (message, call) = frames_of(pieces[-1])[0]["response"]["output"]
    assert message["content"][0]["text"] == "I'll look."
    assert call["arguments"] == '{"path": "README.md"}'  # as it was said, piece by piece


def test_the_end_waits_for_what_was_consumed() -> None:
    events = [MessageStart("m"), TextDelta(0, "Hi."), MessageComplete(StopReason.END_TURN), UsageUpdate(USAGE)]
    pieces, owed = written(events)
    assert pieces[2] == b""
    assert kinds_of(pieces[3])[-1] == "completed"
    assert frames_of(pieces[3])[-1]["response"]["usage"]["output_tokens"] == 42
    assert owed == b""
    assert kinds_of(written(events[:3])[1])[-1] == "completed"  # if nobody says it, close does not wait


def test_summaries_of_reasoning_are_parts_of_one_item() -> None:
    reply = Reply(
        content=(ThinkingBlock("One.\n\nTwo.\n\nTwo goes on.", "c2VjcmV0", {**OWN, "cuts": [4, 18]}), TextBlock("Hi.")),
        stop_reason=StopReason.END_TURN,
        usage=USAGE,
        provider_raw=OWN,
    )
    whole = b"".join(written(unfold(reply))[0])
    events = read(whole)
    assert [event.text for event in events if isinstance(event, ThinkingDelta)][:3] == [
        "One.",
        "\n\n",
        "Two.\n\nTwo goes on.",
    ]
    pieces = written(events)[0]
    assert frames_of(b"".join(pieces))[-1]["response"] == frames_of(whole)[-1]["response"]
    item = frames_of(whole)[-1]["response"]["output"][0]
    assert [part["text"] for part in item["summary"]] == ["One.", "Two.\n\nTwo goes on."]
    deltas = [frame for frame in frames_of(whole) if frame["type"] == "response.reasoning_summary_text.delta"]
    assert [(frame["summary_index"], frame["delta"]) for frame in deltas] == [(0, "One."), (1, "Two.\n\nTwo goes on.")]


def test_reasoning_of_another_origin_is_not_written() -> None:
    events = [
        MessageStart("m"),
        ThinkingDelta(0, "secret", "sig"),
        TextDelta(1, "Hi."),
        MessageComplete(StopReason.END_TURN),
    ]
    pieces, owed = written(events)
    assert pieces[1] == b""
    assert b"secret" not in b"".join([*pieces, owed])
    assert said_in(fold(read(b"".join([*pieces, owed])))) == ["Hi.", []]


def test_words_for_a_text_that_is_done_stand_in_an_item_of_their_own() -> None:
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
    pieces, _ = written(events)
    assert kinds_of(pieces[3]) == ["output_item.added", "content_part.added", "output_text.delta"]
    again = fold(read(b"".join(pieces)))
    assert again.fault is None
    assert [block.type for block in again.content] == ["text", "tool_use", "text"]
    assert said_in(again) == ["Before. Between.", [(CALL.name, {})]]


def test_a_character_that_came_in_two_halves_is_written_whole() -> None:
    events = [MessageStart("m"), TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), MessageComplete(StopReason.END_TURN)]
    pieces, owed = written(events)
    deltas = [frame["delta"] for frame in frames_of(b"".join(pieces)) if frame["type"].endswith("text.delta")]
    assert deltas == ["a", "😀b"]
    assert said_in(fold(read(b"".join([*pieces, owed])))) == ["a😀b", []]
    _, owed = written([*events[:2], MessageComplete(StopReason.END_TURN)])
    assert kinds_of(owed) == ["failed"]


def test_a_call_without_input_is_written_when_it_is_clear_that_the_limit_did_not_come_first() -> None:
    call: list[StreamEvent] = [MessageStart("m"), ToolUseStart(0, CALL.id, "now"), ToolUseEnd(0), UsageUpdate(USAGE)]
    made = fold(read(b"".join(written([*call, MessageComplete(StopReason.TOOL_USE)])[0])))
    assert said_in(made) == ["", [("now", {})]]
    cut = fold(read(b"".join(written([*call, MessageComplete(StopReason.MAX_TOKENS)])[0])))
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
def test_what_did_not_end_properly_is_never_written_as_complete(name: str) -> None:
    events = FAILURES[name]
    assert fold(events).fault is not None
    pieces, owed = written(events)
    data = b"".join([*pieces, owed])
    assert "completed" not in kinds_of(data)
    again = fold(read(data))
    assert again.fault is not None
    assert not any(isinstance(block, ToolUseBlock) for block in again.content)
    assert said_in(again)[0] == said_in(fold(events))[0]


def test_a_failure_is_said_in_the_words_of_this_api() -> None:
    pieces, _ = written([MessageStart("m"), TextDelta(0, "so far"), StreamError(FAULT)])
    failed = frames_of(pieces[-1])[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_is_overloaded", "message": "busy"}
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert frames_of(written([StreamError(FAULT)])[0][0]) == [
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
def test_whatever_events_come_nothing_is_raised_and_no_failure_looks_complete(events: list[StreamEvent]) -> None:
    reply = fold(events)
    pieces, owed = written(events)
    again = fold(read(b"".join([*pieces, owed])))
    assert reply.fault is None or again.fault is not None


@given(strategies.replies)
def test_any_reply_can_be_streamed(reply: Reply) -> None:
    again = fold(read(b"".join(written(unfold(reply))[0]) + written(unfold(reply))[1]))
    judged = fold(unfold(reply))
    assert judged.fault is None or again.fault is not None
    if again.fault is None:
        assert said_in(again) == said_in(judged)


# --- whole answers ---------------------------------------------------------------------------------------------------


def body(*output: dict[str, Any], status: str = "completed", **rest: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "model": "gpt-5", "status": status, "output": list(output), **rest}


def called(arguments: str, status: str = "completed") -> dict[str, Any]:
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
    "no object": (body(called("[]")), "tool_input_invalid"),
    "no JSON": (body(called("{")), "tool_input_invalid"),
    "a key twice": (body(called('{"a":1,"a":2}')), "tool_input_invalid"),
    "cut off": (body(called('{"a', "incomplete"), **LIMIT), "tool_input_truncated"),
    "cut off, and it can be read": (body(called("{}", "incomplete"), **LIMIT), "tool_input_truncated"),
    "cut off before its input": (body(called(""), **LIMIT), "tool_input_truncated"),
    "filtered inside of a call": (
        body(called("{"), status="incomplete", incomplete_details={"reason": "content_filter"}),
        "tool_input_invalid",
    ),
    "nothing said": (body(usage=None), "empty_response"),
    "an empty text": (
        body({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}),
        "empty_response",
    ),
    "a failure": (body(status="failed", error={"code": "server_error", "message": "x"}), "server_error"),
    "a failure that nobody explains": (body(status="failed", error=None), "unexplained_error"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_whole_answer_that_cannot_be_used_has_failed_and_comes_back_as_it_was(name: str) -> None:
    wire, code = UNUSABLE[name]
    reply = openai_responses.read_reply(wire)
    assert reply.fault is not None
    assert reply.fault.code == code
    assert not any(isinstance(block, ToolUseBlock) for block in reply.content)
    assert openai_responses.write_reply(reply).wire == wire


def test_an_end_that_says_otherwise_about_an_item_is_what_is_written() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "first"}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
    final = body({**thought, "encrypted_content": "last"}, {**search, "action": {"type": "search"}}, said)
    stream: list[dict[str, Any]] = [{"type": "response.created", "response": body(status="in_progress")}]
    for place, item in enumerate((thought, search, said)):
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


def test_the_start_of_a_message_and_of_a_call_say_what_is_known_then() -> None:
    created = body(status="in_progress", temperature=0.5)
    item = called("", "in_progress")
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
    pieces, _ = written([start, call])
    assert frames_of(pieces[0])[0]["response"] == {**created, "usage": None, "error": None, "incomplete_details": None}
    assert frames_of(pieces[1])[0]["item"] == item
