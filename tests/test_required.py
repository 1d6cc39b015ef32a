"""The seven tests that the specification requires (§11.1), one each, in its order.

Dialects are found, never listed: one without cassettes fails the first test. What they answered was recorded; see
``tests/recordings.py``.
"""

from __future__ import annotations

import logging
from decimal import Decimal
from typing import Any

import grimp
import msgspec
import pytest

from dragoman import catalog, check, decode, dialects, encode
from dragoman.adapter import Adapter, RequestContext
from dragoman.errors import ToolSchemaError
from dragoman.event import fold, unfold
from dragoman.exchange import Options, SideEffects, ToolDefinition
from dragoman.handoff import plan_swap
from dragoman.ids import ToolIds
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from dragoman.pricing import price_usage, prices_from_mapping
from dragoman.toolschema import REFUSED, ToolSchemas
from dragoman.versions import Format, PlainMessage
from tests import recordings
from tests.recordings import NOON, READ_FILE, README, SESSION
from tests.test_pricing import SPECIFIED

THOUGHT = "The user wants it short."


# --- 1. round trip per provider --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", dialects.callable_names())
def test_required_1_a_fixed_conversation_goes_out_as_recorded_and_comes_back_as_the_golden_message(
    dialect: str,
) -> None:
    names = recordings.cassette_names(dialect)
    expected = {f"{scene}{how}" for scene in ("text", "call", "result") for how in ("", recordings.STREAMED)}
    assert set(names) >= expected, "make cassettes"
    for name in names:
        body = recordings.cassette(dialect, name).request.body
        assert msgspec.json.encode(recordings.make_request(dialect, name)) == msgspec.json.encode(body), name
    answers = [name for name in names if recordings.scene_of(name) != "error"]
    for name in answers:
        message = recordings.read_answer(dialect, name)
        assert check(message) == (), name
        assert decode(encode(message)) == message, name
    assert recordings.golden(dialect) == (recordings.GOLDEN / f"{dialect}.json").read_bytes()


# --- 2. continuity across providers ----------------------------------------------------------------------------------


class Kept:
    """A session as a store keeps it: bytes, and the map of ids. It is read anew for every step."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.entries: tuple[tuple[str, str, str], ...] = ()
        self.said: list[Message] = []  # what was appended, to compare with

    def append(self, message: Message) -> None:
        self.rows.append(encode(message))
        self.said.append(message)

    @property
    def history(self) -> list[Message]:
        return [decode(row) for row in self.rows]

    @property
    def next_id(self) -> str:
        return f"01KE{len(self.rows):022d}"


def play_turn(kept: Kept, dialect: str, scenes: tuple[str, ...]) -> None:
    """A question, and the recorded answers of a dialect to it; a call gets its result."""
    kept.append(Message(kept.next_id, SESSION, Role.USER, (TextBlock("And now?"),), MessageMetadata(), NOON))
    for scene in scenes:
        ids = ToolIds(kept.entries)
        speaking = recordings.adapter(dialect, ids)
        assert_all_ids_resolve(speaking, kept.history)
        context = RequestContext(
            session_id=SESSION,
            message_id=kept.next_id,
            created_at=NOON,
            routing=RoutingDecisionRecord(RoutingMode.MANUAL, speaking.model.id, "it is its turn"),
            usage=recordings.usage_of(dialect, recordings.reply_of(dialect, scene)),
        )
        spoken = speaking.make_message(recordings.reply_of(dialect, scene), context)
        kept.append(spoken)
        for call in (block for block in spoken.content if isinstance(block, ToolUseBlock)):
            content = (ToolResultBlock(call.id, (TextBlock(README),)),)
            metadata = MessageMetadata(parent_tool_use_id=call.id)
            kept.append(Message(kept.next_id, SESSION, Role.TOOL, content, metadata, NOON))
        kept.entries = ids.entries


def assert_all_ids_resolve(speaking: Adapter, history: list[Message]) -> None:
    """On the wire every result names a call that stands before it, and every call has its result."""
    wire = speaking.to_wire(history, (READ_FILE,), Options(max_output_tokens=64)).wire
    open_calls: list[str] = []
    for message in speaking.dialect.read_request(wire).messages:
        for block in message.content:
            match block:
                case ToolUseBlock(id=call_id):
                    open_calls.append(call_id)
                case ToolResultBlock(tool_use_id=call_id):
                    open_calls.remove(call_id)
    assert open_calls == []


def trios() -> list[tuple[str, str, str]]:
    """Every dialect once in each of three places."""
    names = dialects.callable_names()
    return [(name, names[(at + 1) % len(names)], names[(at + 3) % len(names)]) for at, name in enumerate(names)]


@pytest.mark.parametrize(("first", "second", "third"), trios())
def test_required_2_a_session_alternates_between_providers_is_reloaded_and_goes_on_at_a_third(
    first: str, second: str, third: str
) -> None:
    kept = Kept()
    for number in range(6):
        dialect = (first, second)[number % 2]
        thinks = "thinking" in recordings.cassette_names(dialect)
        play_turn(kept, dialect, ("call-streamed", "result-streamed") if number > 2 else ("call", "result"))
        play_turn(kept, dialect, ("thinking",) if thinks and number < 4 else ("text",))
    assert kept.history == kept.said
    assert [encode(message) for message in kept.history] == kept.rows
    assert check(kept.history) == ()
    calls = [block.id for message in kept.history for block in message.content if isinstance(block, ToolUseBlock)]
    assert len(set(calls)) == len(calls) == 6
    # Turn N + 1, and one more after it: a third provider takes over, also if the map of ids was lost on the way.
    for entries in (kept.entries, ()):
        kept.entries = entries
        play_turn(kept, third, ("call", "result"))
    assert check(kept.history) == ()
    wire = recordings.adapter(third, ToolIds(kept.entries)).to_wire(kept.history, (READ_FILE,)).wire
    assert str(wire).count(repr(README)) == 8
    assert THOUGHT not in str(wire)


# --- 3. capability mismatch ------------------------------------------------------------------------------------------

SOURCE = ImageSource("base64", "aGk=")
FEW_ROWS = """
[providers.acme]
title = "Acme"
dialect = "openai_chat"

[models."acme:modest"]
supports_tools = false
supports_system_prompt = false
max_context_tokens = 1000
"""


def modest() -> Adapter:
    rows = catalog.builtin().overlay(catalog.rows_from_toml(FEW_ROWS))
    return Adapter(rows.provider("acme"), rows.model("acme:modest"))


def said(role: Role, *blocks: ContentBlock) -> Message:
    return Message("01KE0000000000000000000001", SESSION, role, blocks, MessageMetadata(), NOON)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (said(Role.USER, ImageBlock(SOURCE, "image/png")), "session contains images that this model can't process"),
        (
            said(Role.USER, DocumentBlock(SOURCE, "application/pdf")),
            "session contains documents that this model can't process",
        ),
        (said(Role.USER, AudioBlock(SOURCE, "audio/wav")), "session contains audios that this model can't process"),
        (said(Role.USER, VideoBlock(SOURCE, "video/mp4")), "session contains videos that this model can't process"),
        (
            said(Role.ASSISTANT, ToolUseBlock("tu_1", "read_file", {})),
            "session uses tools, and this model does not support tools",
        ),
        (said(Role.SYSTEM, TextBlock("Be brief.")), "session has a system prompt, which this model does not support"),
        (said(Role.USER, TextBlock("Word. " * 1000)), "tokens, and this model accepts 1000"),
    ],
    ids=["image", "document", "audio", "video", "tools", "system prompt", "length"],
)
def test_required_3_a_swap_to_a_model_that_cannot_take_the_history_is_refused_with_a_clear_text(
    message: Message, reason: str
) -> None:
    history = [recordings.QUESTION, message]
    before = [encode(one) for one in history]
    plan = plan_swap(history, modest())
    assert not plan.is_possible
    (blocker,) = plan.blockers
    assert blocker.startswith("Cannot swap to acme:modest: ")
    assert reason in blocker
    assert "Active model unchanged." in blocker
    assert ("'placeholder' or 'describe'" in blocker) is ("can't process" in reason)
    assert plan.fits is ("tokens" not in reason)
    assert [encode(one) for one in history] == before
    assert plan_swap([recordings.QUESTION], modest()).is_possible


# --- 4. schema migration ---------------------------------------------------------------------------------------------


def test_required_4_a_version_1_message_is_migrated_when_it_is_read_under_version_2() -> None:
    written = encode(recordings.QUESTION)
    assert b'"schema_version":1' in written
    version_2 = Format(current=2)
    ran = []

    @version_2.migration(from_version=1)
    def questions_are_marked(message: PlainMessage) -> PlainMessage:
        ran.append(message["id"])
        content = [{**block, "text": f"Q: {block['text']}"} for block in message["content"]]
        return {**message, "content": content}

    read = decode(written, version_2)
    assert ran == [recordings.QUESTION.id]
    assert read == recordings.QUESTION.replace(
        content=(TextBlock(f"Q: {recordings.QUESTION.content[0].text}"),), schema_version=2
    )
    # Saved, it is of version 2 and needs no migration any more; the old row is what it was, and is read again.
    saved = encode(read)
    assert b'"schema_version":2' in saved
    assert decode(saved, version_2) == read
    assert len(ran) == 1
    assert decode(written, version_2) == read
    assert written == encode(recordings.QUESTION)


# --- 5. tool schema validation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("construct", [*REFUSED, "uniqueItems", "$schema"])
def test_required_5_a_tool_whose_schema_leaves_the_subset_cannot_be_registered(construct: str) -> None:
    deep = {"type": "array", "items": {"type": "object", "properties": {"y": {construct: {}}}}}
    schema = {"type": "object", construct: {}, "properties": {"x": {construct: {}}, "z": deep}}
    box = ToolSchemas([READ_FILE])
    with pytest.raises(ToolSchemaError, match="search_files") as caught:
        box.add(ToolDefinition("search_files", "Search.", schema, SideEffects.READ))
    assert caught.value.code == "invalid_tool_schema"
    assert {problem.partition(": ")[0] for problem in caught.value.problems} == {
        "$",
        "$.properties.x",
        "$.properties.z.items.properties.y",
    }
    assert all(repr(construct) in problem for problem in caught.value.problems)
    assert list(box.definitions) == ["read_file"]


# --- 6. lossy projection logging -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["openai:gpt-5", "azure:gpt-5"])
def test_required_6_a_thinking_block_for_openai_is_logged_at_warn_with_its_fields_and_is_no_event(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = catalog.builtin()
    target = Adapter(rows.provider(rows.model(model).provider), rows.model(model))
    spoken = recordings.read_answer("anthropic", "thinking")
    assert any(isinstance(block, ThinkingBlock) for block in spoken.content)
    with caplog.at_level(logging.DEBUG):
        written = target.to_wire([recordings.RIDDLE, spoken])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    usual = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    assert {name: value for name, value in vars(record).items() if name not in usual} == {
        "session_id": SESSION,
        "message_id": spoken.id,
        "block_type": "thinking",
        "adapter": target.dialect.NAME,
        "reason": written.losses[0].reason,
    }
    assert THOUGHT not in str(written.wire)
    assert THOUGHT not in caplog.text
    # It cannot become an event of the bus: nothing that was run here can reach one.
    below = grimp.build_graph("dragoman").find_upstream_modules("dragoman.adapter")
    assert not {name for name in below if name.startswith(("dragoman.bus", "dragoman.store", "dragoman.turn"))}


# --- 7. cost computation ---------------------------------------------------------------------------------------------

# What each provider says it consumed, in its own words, and what that costs in the specification's table.
ANTHROPIC = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [{"type": "text", "text": "One."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 1_000,
        "output_tokens": 500,
        "cache_read_input_tokens": 2_000,
        "cache_creation_input_tokens": 4_000,
    },
}
OPENAI = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1767225600,
    "status": "completed",
    "model": "gpt-5",
    "output": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Two.", "annotations": []}],
        }
    ],
    "usage": {
        "input_tokens": 10_000,
        "input_tokens_details": {"cached_tokens": 4_000},
        "output_tokens": 2_000,
        "output_tokens_details": {"reasoning_tokens": 1_500},
        "total_tokens": 12_000,
    },
}
OLLAMA = {
    "model": "llama-3.3-70b",
    "created_at": "2026-01-01T00:00:00Z",
    "message": {"role": "assistant", "content": "Three."},
    "done": True,
    "done_reason": "stop",
    "prompt_eval_count": 900_000,
    "eval_count": 90_000,
}
CONVERSATION: list[tuple[str, dict[str, Any], str]] = [
    ("anthropic:claude-sonnet-4-6", ANTHROPIC, "0.0261"),  # 0.003 + 0.0075 + 2,000 read at 0.30 + 4,000 written at 3.75
    ("openai:gpt-5", OPENAI, "0.045"),  # 10,000 at 2.50, the cached ones among them; 2,000 at 10, reasoning included
    ("ollama:llama-3.3-70b", OLLAMA, "0"),
    ("anthropic:claude-sonnet-4-6", ANTHROPIC, "0.0261"),
]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_required_7_a_known_conversation_costs_what_the_price_table_says_to_the_last_digit(is_streamed: bool) -> None:
    rows, table = catalog.builtin(), prices_from_mapping(SPECIFIED)
    bill = []
    for model_id, answer, expected in CONVERSATION:
        speaking = Adapter(rows.provider(rows.model(model_id).provider), rows.model(model_id))
        reply = speaking.dialect.read_reply(answer)
        if is_streamed:
            writer, reader = speaking.dialect.stream_writer(), speaking.dialect.stream_reader()
            data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
            reply = fold([*reader.feed(data), *reader.close()])
        assert reply.usage is not None
        usage = price_usage(table, model_id, reply.usage, NOON, latency_ms=1)
        context = RequestContext(session_id=SESSION, message_id="01KE", created_at=NOON, usage=usage)
        message = decode(encode(speaking.make_message(reply, context)))
        assert message.metadata.usage is not None
        assert str(message.metadata.usage.cost_usd) == expected
        assert message.metadata.usage.pricing_version == "2026-05-08"
        bill.append(message.metadata.usage.cost_usd)
    assert sum(bill) == Decimal("0.0972")
    assert round(sum(bill), 2) == Decimal("0.10")
