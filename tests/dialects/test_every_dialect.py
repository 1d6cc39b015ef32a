"""Tests of properties of every dialect. New dialects are included automatically."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from dragoman import dialects
from dragoman.errors import FormatError, InputError
from dragoman.event import BlockComplete, MessageComplete, MessageStart, TextDelta, UsageUpdate, fold, unfold
from dragoman.exchange import FAULT_CODES, Fault, Options, Reply, Request, SideEffects, StopReason, ToolDefinition
from dragoman.message import (
    Citation,
    ContentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenLogprob,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    usage_problems,
)
from tests.conftest import scale
from tests.test_codec import NOW

INTERFACE = (
    "read_request",
    "write_request",
    "read_reply",
    "write_reply",
    "stream_reader",
    "stream_writer",
    "read_error",
    "write_error",
)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def message(role: Role, *blocks: ContentBlock, parent: str | None = None) -> Message:
    return Message("01HZ001", "sess_1", role, blocks, MessageMetadata(parent_tool_use_id=parent), NOW)


CALLS = (
    ToolUseBlock("tu_01KR3ER9E00000000000000QQE", "read_file", {"path": "README.md", "limit": 1}),
    ToolUseBlock("tu_01KR3ER9E00000000000000QQF", "read_file", {"path": "LICENSE"}),
)
REQUEST = Request(
    model="some-model",
    messages=(
        message(Role.SYSTEM, TextBlock("Be brief.")),
        message(Role.USER, TextBlock("Summarize these."), ImageBlock(ImageSource("base64", PIXEL), "image/png")),
        message(Role.ASSISTANT, TextBlock("I'll read them."), *CALLS),
        message(Role.TOOL, ToolResultBlock(CALLS[0].id, (TextBlock("# Project Foo"),)), parent=CALLS[0].id),
        message(Role.TOOL, ToolResultBlock(CALLS[1].id, (TextBlock("Apache-2.0"),)), parent=CALLS[1].id),
        message(Role.ASSISTANT, TextBlock("It is Project Foo.")),
        message(Role.USER, TextBlock("Thanks, é😀\u2028.")),
    ),
    tools=(
        ToolDefinition(
            "read_file",
            "Read a file.",
            {
                "type": "object",
                "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["path"],
            },
            SideEffects.READ,
        ),
    ),
    options=Options(max_output_tokens=100, temperature=0.5),
)


def blocks_of(request: Request) -> list[tuple[Any, ...]]:
    """Return the roles, texts, calls and results, which every translation preserves."""
    found: list[tuple[Any, ...]] = []
    for entry in request.messages:
        for block in entry.content:
            match block:
                case TextBlock(text):
                    found.append((entry.role.value, text))
                case ToolUseBlock(call_id, name, value):
                    found.append(("call", call_id, name, value))
                case ToolResultBlock(call_id, content):
                    found.append(
                        ("result", call_id, "".join(part.text for part in content if isinstance(part, TextBlock)))
                    )
    return found


@pytest.fixture(params=dialects.names())
def dialect(request: pytest.FixtureRequest) -> ModuleType:
    return dialects.load(request.param)


CONVERSATIONS = [name for name in dialects.names() if not getattr(dialects.load(name), "TAKES_PROMPT", False)]


@pytest.fixture(params=CONVERSATIONS)
def chat_dialect(request: pytest.FixtureRequest) -> ModuleType:
    """A dialect whose requests are conversations with calls, not one prompt."""
    return dialects.load(request.param)


def test_dialect_names() -> None:
    assert set(dialects.names()) >= {
        "anthropic",
        "bedrock_converse",
        "cohere",
        "gemini",
        "ollama",
        "openai_chat",
        "openai_responses",
    }
    with pytest.raises(LookupError, match="anthropic"):
        dialects.load("esperanto")


def test_every_dialect_has_the_interface(dialect: ModuleType) -> None:
    assert all(callable(getattr(dialect, name)) for name in INTERFACE)
    assert dialect.NAME in dialects.names()
    assert inspect.getdoc(dialect)


def test_every_dialect_ignores_unknown_quirks(dialect: ModuleType) -> None:
    for name in ("write_request", "stream_reader"):
        parameter = inspect.signature(getattr(dialect, name)).parameters["quirks"]
        assert parameter.default == ()
    theirs = ("unknown_quirk",)
    assert dialect.write_request(REQUEST, theirs) == dialect.write_request(REQUEST)
    reply = Reply(content=(TextBlock("Hi."), CALLS[0]), stop_reason=StopReason.TOOL_USE, model="m")
    writer = dialect.stream_writer()
    data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
    readers = (dialect.stream_reader(None, theirs), dialect.stream_reader())
    with_quirks, without = ([*reader.feed(data), *reader.close()] for reader in readers)
    assert with_quirks == without


def test_texts_calls_and_results_round_trip(chat_dialect: ModuleType) -> None:
    written = chat_dialect.write_request(REQUEST)
    again = chat_dialect.read_request(written.wire)
    expected = blocks_of(REQUEST)
    found = blocks_of(again)
    if all(
        entry[0] != "call" or entry[1] == CALLS[index].id
        for index, entry in enumerate([e for e in found if e[0] == "call"])
    ):
        assert found == expected
    else:  # without ids, or with ids of the wire: results still refer to their calls
        names = {entry[1]: f"c{number}" for number, entry in enumerate(e for e in found if e[0] == "call")}
        ours = {call.id: f"c{number}" for number, call in enumerate(CALLS)}
        assert [rename_ids(entry, names) for entry in found] == [rename_ids(entry, ours) for entry in expected]
    assert [tool.name for tool in again.tools] == ["read_file"]
    assert [tool.input_schema for tool in again.tools] == [REQUEST.tools[0].input_schema]
    assert again.options.max_output_tokens == 100
    assert again.options.temperature == 0.5


def rename_ids(entry: tuple[Any, ...], names: dict[str, str]) -> tuple[Any, ...]:
    return (entry[0], names[entry[1]], *entry[2:]) if entry[0] in ("call", "result") else entry


@pytest.mark.parametrize("source", CONVERSATIONS)
def test_request_converts_to_every_other_dialect(source: str, chat_dialect: ModuleType) -> None:
    read = dialects.load(source).read_request(dialects.load(source).write_request(REQUEST).wire)
    written = chat_dialect.write_request(read)
    texts = [
        entry for entry in blocks_of(chat_dialect.read_request(written.wire)) if entry[0] not in ("call", "result")
    ]
    assert texts == [entry for entry in blocks_of(REQUEST) if entry[0] not in ("call", "result")]


def test_foreign_reasoning_is_a_loss_and_not_written(chat_dialect: ModuleType) -> None:
    other = {"dialect": "another", "own": True}
    foreign = message(
        Role.ASSISTANT,
        ThinkingBlock("secret thoughts", "their-signature", provider_raw=other),
        RedactedThinkingBlock("secret-blob", provider_raw=other),
        OpaqueBlock("another", {"type": "secret_search"}),
        TextBlock("Hello."),
    )
    written = chat_dialect.write_request(REQUEST.replace(messages=(message(Role.USER, TextBlock("Hi.")), foreign)))
    assert "secret" not in str(written.wire)
    assert {loss.block_type for loss in written.losses} == {"thinking", "redacted_thinking", "opaque"}
    assert {(loss.session_id, loss.message_id, loss.adapter) for loss in written.losses} == {
        ("sess_1", "01HZ001", chat_dialect.NAME)
    }


def test_foreign_blocks_in_results_and_system_prompts_are_losses(chat_dialect: ModuleType) -> None:
    foreign = OpaqueBlock("another", {"type": "secret_search"})
    result = ToolResultBlock(CALLS[0].id, (TextBlock("found"), foreign))
    history = (
        message(Role.SYSTEM, TextBlock("Be brief."), foreign),
        message(Role.USER, TextBlock("Hi.")),
        message(Role.ASSISTANT, CALLS[0]),
        message(Role.TOOL, result, parent=CALLS[0].id),
    )
    written = chat_dialect.write_request(REQUEST.replace(messages=history))
    assert "secret" not in str(written.wire)
    assert [loss.block_type for loss in written.losses].count("opaque") == 2


def test_failed_result_is_written_or_its_mark_is_a_loss(chat_dialect: ModuleType) -> None:
    failed = ToolResultBlock(CALLS[0].id, (TextBlock("no such file"),), is_error=True)
    history = (
        message(Role.USER, TextBlock("Go.")),
        message(Role.ASSISTANT, CALLS[0]),
        message(Role.TOOL, failed, parent=CALLS[0].id),
    )
    written = chat_dialect.write_request(REQUEST.replace(messages=history))
    results = [
        block
        for item in chat_dialect.read_request(written.wire).messages
        for block in item.content
        if isinstance(block, ToolResultBlock)
    ]
    assert [block.is_error or [loss.block_type for loss in written.losses] for block in results] in (
        [True],
        [["is_error"]],
    )
    assert "no such file" in str(results[0].content)


def test_tools_added_to_request_without_tools_are_written(chat_dialect: ModuleType) -> None:
    wire = chat_dialect.write_request(REQUEST.replace(tools=())).wire
    read = chat_dialect.read_request({**wire, "tools": []})
    assert "read_file" in str(chat_dialect.write_request(read.replace(tools=REQUEST.tools)).wire)


@pytest.mark.parametrize("part", ["request", "reply"])
def test_wire_may_be_object_or_json_text(dialect: ModuleType, part: str) -> None:
    read, wire = wires_of(dialect)[part]
    tight, loose = json.dumps(wire, separators=(",", ":")), json.dumps(wire, indent=1)
    for text in (tight, tight.encode(), loose, loose.encode()):
        assert read(text) == read(wire)
        assert read(text).provider_raw == read(wire).provider_raw
    twice = tight.replace("{", '{"same":1,"same":2,', 1)
    for text in (twice, twice.encode()):
        with pytest.raises(InputError) as caught:
            read(text)
        assert caught.value.code == "duplicate_key"
    for none in ("[]", b"[]", [], "3", None, 3, b"{", "{", b"\xff{}", ""):
        with pytest.raises(InputError):
            read(none)


DEPTHS = (201, 240, 300, 3_000)
# Calls and tool outputs may be stored as text, which has no depth.
PLACES_OF_TEXTS = {"cohere_v1": 4}


@pytest.mark.parametrize("part", ["request", "reply"])
def test_deeply_nested_wire_is_rejected_with_its_path(dialect: ModuleType, part: str) -> None:
    read, wire = wires_of(dialect)[part]
    write = dialect.write_request if part == "request" else dialect.write_reply
    refused: list[FormatError] = []
    stored = set()
    places = objects_in(wire)
    # The default run tests one of three pairs. Three does not divide the number of depths, so it tests every depth.
    for place, depth in list(itertools.product(places, DEPTHS))[:: scale(3, 1)]:
        text = with_depth(wire, place, depth)
        for value in (text, parse_deep(text)):
            try:
                kept = read(value)
            except FormatError as error:
                refused.append(error)
            else:
                stored.add(str(place))
                assert write(kept).wire == json.loads(text)
    for place in places:
        read(with_depth(wire, place, 50))
    assert len(stored) <= PLACES_OF_TEXTS.get(dialect.NAME, 2)
    assert {error.code for error in refused} == {"too_deep"}
    assert all(error.where.startswith("$") and len(error.where) < 300 for error in refused)


def test_deeply_nested_event_ends_stream(dialect: ModuleType) -> None:
    reply = Reply(content=(TextBlock("Hi."), *CALLS), stop_reason=StopReason.TOOL_USE, model="m")
    framing = {"bedrock_converse": "aws-eventstream-decoded", "bedrock_invoke": "ndjson"}.get(dialect.NAME)
    writer = dialect.stream_writer(framing)
    lines = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()]).decode().split("\n")
    codes = Counter()
    for number, line in enumerate(lines):
        label, text = ("data: ", line[6:]) if line.startswith("data: ") else ("", line)
        if not text.startswith("{"):
            continue
        for place in objects_in(json.loads(text)):
            for depth in (50, *DEPTHS):
                changed = label + with_depth(json.loads(text), place, depth)
                before = [*lines[:number], changed]
                cut = dialect.stream_reader(framing)
                fold([*cut.feed("\n".join([*before, "", ""]).encode()), *cut.close()])
                data = "\n".join([*before, *lines[number + 1 :]]).encode()
                reader = dialect.stream_reader(framing)
                read = fold([*reader.feed(data), *reader.close()])
                dialect.write_reply(read)
                codes[depth > 50, read.fault.code if read.fault is not None else None] += 1
    assert {code for is_deep, code in codes if not is_deep} == {None}
    assert {code for is_deep, code in codes if is_deep} <= {None, "bad_event", "bad_content_type"}
    assert codes[True, "bad_event"] > 0


def wires_of(dialect: ModuleType) -> dict[str, tuple[Callable[[Any], Any], dict[str, Any]]]:
    reply = Reply(content=(TextBlock("Hi."), *CALLS), stop_reason=StopReason.TOOL_USE, model="m")
    return {
        "request": (dialect.read_request, dialect.write_request(REQUEST).wire),
        "reply": (dialect.read_reply, dialect.write_reply(reply).wire),
    }


def objects_in(wire: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every object in a wire."""
    steps = wire.items() if isinstance(wire, dict) else enumerate(wire) if isinstance(wire, list) else ()
    inner = [found for key, value in steps for found in objects_in(value, (*place, key))]
    return [place, *inner] if isinstance(wire, dict) else inner


def with_depth(wire: Any, place: tuple[Any, ...], depth: int) -> str:
    """Return the wire as JSON text, with an additional key of this depth in the object at a path."""
    output = json.loads(json.dumps(wire))
    target = output
    for key in place:
        target = target[key]
    target["zzz"] = "so deep"
    return json.dumps(output).replace('"so deep"', '{"a":' * depth + "{}" + "}" * depth)


def parse_deep(text: str) -> Any:
    """Decode a text without a depth limit."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        return json.loads(text)
    finally:
        sys.setrecursionlimit(limit)


def test_fault_of_reply_is_written_or_a_loss(dialect: ModuleType) -> None:
    fault = Fault(code="stream_incomplete", message="cut")
    written = dialect.write_reply(
        Reply(content=(TextBlock("so far"),), stop_reason=StopReason.ERROR, fault=fault, model="m")
    )
    again = dialect.read_reply(written.wire)
    assert again.fault is not None or "fault" in {loss.block_type for loss in written.losses}


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("1.5", 1.5), ("-1", None), ("abc", None), ("²", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)],
)
def test_retry_after_header_is_case_insensitive(dialect: ModuleType, header: str, seconds: float | None) -> None:
    for name in ("retry-after", "Retry-After"):
        assert dialect.read_error(429, {name: header}, b"\xff not utf-8").retry_after_s == seconds


def test_new_result_has_provider_id_of_its_call(dialect: ModuleType) -> None:
    first_reply = Reply(content=(TextBlock("Reading."), *CALLS), stop_reason=StopReason.TOOL_USE, model="m")
    text = json.dumps(dialect.write_reply(first_reply).wire)
    for number, call in enumerate(CALLS):  # ids of the provider
        for spelled in (call.id, call.id.replace("tu_", "call_")):
            text = text.replace(spelled, f"theirs_{number}")
    reply = dialect.read_reply(json.loads(text))
    calls = [block for block in reply.content if isinstance(block, ToolUseBlock)]
    answers = [
        message(Role.TOOL, ToolResultBlock(call.id, (TextBlock(f"answer {number}"),)), parent=call.id)
        for number, call in enumerate(calls)
    ]
    answer = message(Role.ASSISTANT, *reply.content)
    wire = dialect.write_request(
        REQUEST.replace(messages=(message(Role.USER, TextBlock("Go.")), answer, *answers))
    ).wire
    if "theirs_0" in text:
        assert json.dumps(wire).count("theirs_0") >= 2  # the call and its result
    again = dialect.read_request(wire)
    found = [entry for entry in blocks_of(again) if entry[0] in ("call", "result")]
    assert [entry[1] for entry in found if entry[0] == "call"] == [entry[1] for entry in found if entry[0] == "result"]


def test_edit_is_written(dialect: ModuleType) -> None:
    read = dialect.read_request(dialect.write_request(REQUEST).wire)
    edited = []
    for item in read.messages:
        blocks = [block.replace(text="Changed.") if isinstance(block, TextBlock) else block for block in item.content]
        edited.append(item.replace(content=blocks))
    wire = dialect.write_request(read.replace(messages=tuple(edited))).wire
    assert "Summarize these." not in str(wire)
    assert "Changed." in str(wire)


@pytest.mark.parametrize("count", [10**8 + 1, 10**12 - 1, 2**63, 10**30])
def test_impossible_count_is_dropped(dialect: ModuleType, count: int, caplog: pytest.LogCaptureFixture) -> None:
    usage = TokenUsage(input_tokens=8, output_tokens=count)
    content = (TextBlock("I'll read it."),)
    reply = Reply(content=content, stop_reason=StopReason.END_TURN, usage=usage, model="some-model")
    wire = dialect.write_reply(reply).wire
    whole = dialect.read_reply(wire)
    writer, reader = dialect.stream_writer(), dialect.stream_reader()
    data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
    streamed = fold([*reader.feed(data), *reader.close()])
    for again in (whole, streamed):
        assert (again.fault, [block.text for block in again.content]) == (None, ["I'll read it."])
        assert again.usage is not None
        assert not usage_problems(again.usage)
        assert (again.usage.input_tokens, again.usage.output_tokens, again.usage.estimated) == (8, 0, True)
    assert "impossible usage" in caplog.text
    assert dialect.write_reply(whole).wire == wire


_INVALID_COUNTS = [-5, 1.5, "5", True, [], {}]


@pytest.mark.parametrize("odd", _INVALID_COUNTS, ids=str)
def test_invalid_count_makes_usage_estimated(dialect: ModuleType, odd: Any) -> None:
    usage = TokenUsage(input_tokens=1234, output_tokens=4321)
    reply = Reply(content=(TextBlock("Yes."),), stop_reason=StopReason.END_TURN, usage=usage, model="some-model")
    for figure in ("1234", "4321"):
        text = json.dumps(dialect.write_reply(reply).wire)
        wire = json.loads(re.sub(rf"(?<=: ){figure}\b", json.dumps(odd), text))
        again = dialect.read_reply(wire)
        assert again.usage is not None
        assert again.usage.estimated
        assert int(figure) not in (again.usage.input_tokens, again.usage.output_tokens)
        assert json.dumps(dialect.write_reply(again).wire, sort_keys=True) == json.dumps(wire, sort_keys=True)


def test_part_greater_than_total_makes_usage_estimated(dialect: ModuleType) -> None:
    usage = TokenUsage(input_tokens=1000, output_tokens=50, cached_input_tokens=234, reasoning_tokens=43)
    reply = Reply(content=(TextBlock("Yes."),), stop_reason=StopReason.END_TURN, usage=usage, model="some-model")
    natural = dialect.write_reply(reply).wire
    for figure in ("234", "43"):
        text = json.dumps(natural)
        wire = json.loads(re.sub(rf"(?<=: ){figure}\b", "99999999", text))
        if wire == natural or dialect.NAME in _SEPARATE_COUNTS.get(figure, ()):
            continue
        again = dialect.read_reply(wire)
        assert again.usage is not None
        assert again.usage.estimated
        assert 99_999_999 not in (again.usage.cached_input_tokens, again.usage.reasoning_tokens)
        assert dialect.write_reply(again).wire == wire


# Counts that the wire does not include in the total: cached tokens, and thoughts of Gemini.
_SEPARATE_COUNTS = {
    "234": ("anthropic", "bedrock_converse", "bedrock_invoke"),
    "43": ("gemini", "gemini_interactions"),
}


def test_zero_usage_does_not_replace_earlier_usage() -> None:
    spent, none = TokenUsage(input_tokens=200, output_tokens=100), TokenUsage(input_tokens=0, output_tokens=0)
    assert fold([UsageUpdate(none), UsageUpdate(spent), UsageUpdate(none)]).usage == spent
    assert fold([UsageUpdate(spent), UsageUpdate(spent.replace(output_tokens=101))]).usage.output_tokens == 101
    assert fold([UsageUpdate(none)]).usage == none


def test_empty_usage_of_last_chunk_is_ignored() -> None:
    dialect = dialects.load("openai_chat")
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
    chunks: list[dict[str, Any]] = [{**chunk, "choices": [choice]}]
    for prompt, completion in ((100, 50), (200, 100), (0, 0)):
        chunks.append({**chunk, "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})
    data = "".join(f"data: {json.dumps(item)}\n\n" for item in chunks) + "data: [DONE]\n\n"
    reader = dialect.stream_reader()
    reply = fold([*reader.feed(data.encode()), *reader.close()])
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.estimated) == (200, 100, False)
    assert dialect.write_reply(reply).wire["usage"] == chunks[-1]["usage"]


def test_reply_round_trips_with_and_without_stream(chat_dialect: ModuleType) -> None:
    reply = Reply(
        content=(TextBlock("I'll read é😀."), *CALLS),
        stop_reason=StopReason.TOOL_USE,
        usage=TokenUsage(input_tokens=8, output_tokens=42),
        model="some-model",
    )
    whole = chat_dialect.read_reply(chat_dialect.write_reply(reply).wire)
    writer = chat_dialect.stream_writer()
    data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
    reader = chat_dialect.stream_reader()
    streamed = fold([*reader.feed(data), *reader.close()])
    for again in (whole, streamed):
        assert again.fault is None
        assert again.stop_reason is StopReason.TOOL_USE
        assert "".join(block.text for block in again.content if isinstance(block, TextBlock)) == "I'll read é😀."
        assert [(b.name, b.input) for b in again.content if isinstance(b, ToolUseBlock)] == [
            (c.name, c.input) for c in CALLS
        ]
        assert again.usage is not None
        assert (again.usage.input_tokens, again.usage.output_tokens) == (8, 42)


LOSSY = {
    "calls": Reply(content=CALLS, stop_reason=StopReason.TOOL_USE),
    "an invalid call": Reply(
        content=(InvalidToolUseBlock(CALLS[0].id, "f", "{", "no JSON"),), stop_reason=StopReason.TOOL_USE
    ),
    "an end without its call": Reply(content=(TextBlock("Wait."),), stop_reason=StopReason.TOOL_USE),
    "an image": Reply(
        content=(ImageBlock(ImageSource("base64", PIXEL), "image/png"), TextBlock("There.")),
        stop_reason=StopReason.END_TURN,
    ),
    "foreign reasoning": Reply(
        content=(ThinkingBlock("Hm.", "c2ln", {"dialect": "another"}), TextBlock("Done.")),
        stop_reason=StopReason.STOP_SEQUENCE,
        stop_sequence="END",
    ),
}


@pytest.mark.parametrize("name", LOSSY)
def test_stream_has_the_losses_of_its_reply(name: str, dialect: ModuleType) -> None:
    events, writer = unfold(LOSSY[name]), dialect.stream_writer()
    for event in events:
        writer.feed(event)
    writer.close()
    written = dialect.write_reply(fold(events))
    streamed, whole = (
        {loss for loss in losses if loss.block_type != "fault"} for losses in (writer.losses, written.losses)
    )
    assert streamed == whole  # apart from a fault, which some wires have in streams only


def test_whole_text_in_a_stream_is_written_as_its_deltas_are(dialect: ModuleType) -> None:
    cited, logprobs = Citation(start=0, end=4, url="https://example.com/rome"), (TokenLogprob("Rome", -0.5),)
    block = TextBlock("Rome", citations=(cited,), token_logprobs=logprobs)
    delta = TextDelta(0, block.text, None, block.citations, block.token_logprobs)
    replies, losses = [], []
    for event in (delta, BlockComplete(0, block)):
        writer, reader = dialect.stream_writer(), dialect.stream_reader()
        events = (MessageStart("m"), event, MessageComplete(StopReason.END_TURN))
        data = b"".join([*map(writer.feed, events), writer.close()])
        replies.append(fold([*reader.feed(data), *reader.close()]))
        losses.append(set(writer.losses))
    assert replies[0] == replies[1]
    assert losses[0] == losses[1]


def test_stream_cut_at_any_byte_is_not_complete(dialect: ModuleType) -> None:
    reply = Reply(content=(TextBlock("Héllo."), CALLS[0]), stop_reason=StopReason.TOOL_USE, model="m")
    writer = dialect.stream_writer()
    data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
    whole = dialect.stream_reader()
    finished = fold([*whole.feed(data), *whole.close()])
    for cut in range(0, len(data), scale(3, 1)):
        reader = dialect.stream_reader()
        part = fold([*reader.feed(data[:cut]), *reader.close()])
        if part.fault is None:  # the end was read, and only optional bytes are missing
            assert part.content == finished.content
        else:
            assert not any(isinstance(block, ToolUseBlock) and block.input != CALLS[0].input for block in part.content)


def test_invalid_json_ends_stream_and_keeps_earlier_content(dialect: ModuleType) -> None:
    reader = dialect.stream_reader()
    reply = fold([*reader.feed(b"data: <html>\n\n{]\n[<html>\n\n"), *reader.close()])
    assert reply.fault is not None
    assert reply.stop_reason is StopReason.ERROR


def test_faults_are_read_and_written(dialect: ModuleType) -> None:
    fault = dialect.read_error(
        429, {"retry-after": "3"}, dialect.write_error(Fault(code="rate_limited", message="slow down")).wire
    )
    assert fault.error_class == "rate_limit"
    assert fault.retryable
    assert "slow down" in fault.message
    assert dialect.read_error(500, {}, b"<html>").error_class == "server_error"
    assert dialect.read_error(401, {}, b"").error_class == "auth"
    for status in (None, 200, 400, 401, 403, 404, 408, 413, 429, 499, 500, 503, 529):
        assert dialect.read_error(status, {}, b"{}").code in FAULT_CODES
    for code in FAULT_CODES:
        written = dialect.write_error(Fault(code=code, message="what happened")).wire
        assert dialect.read_error(500, {}, written).code in FAULT_CODES
        assert "what happened" in json.dumps(written)
