"""The seven tests that the specification requires (§11.1), in its order.

Dialects are discovered: a dialect without cassettes fails the first test. ``tests/recordings.py`` contains their answers.
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
def test_required_1_conversation_round_trips_per_provider(
    dialect: str,
) -> None:
    names = recordings.cassette_names(dialect)
    expected = {f"{scene}{suffix}" for scene in ("text", "call", "result") for suffix in ("", recordings.STREAMED)}
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


class StoredSession:
    """A session as a store holds it: bytes, and the map of ids. It is decoded for every step."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.entries: tuple[tuple[str, str, str], ...] = ()
        self.messages: list[Message] = []  # the appended messages, for comparison

    def append(self, message: Message) -> None:
        self.rows.append(encode(message))
        self.messages.append(message)

    @property
    def history(self) -> list[Message]:
        return [decode(row) for row in self.rows]

    @property
    def next_id(self) -> str:
        return f"01KE{len(self.rows):022d}"


def play_turn(session: StoredSession, dialect: str, scenes: tuple[str, ...]) -> None:
    """Append a question and the recorded answers of a dialect; a call gets its result."""
    session.append(Message(session.next_id, SESSION, Role.USER, (TextBlock("And now?"),), MessageMetadata(), NOON))
    for scene in scenes:
        ids = ToolIds(session.entries)
        source = recordings.adapter(dialect, ids)
        assert_all_ids_resolve(source, session.history)
        context = RequestContext(
            session_id=SESSION,
            message_id=session.next_id,
            created_at=NOON,
            routing=RoutingDecisionRecord(RoutingMode.MANUAL, source.model.id, "it is its turn"),
            usage=recordings.usage_of(dialect, recordings.reply_of(dialect, scene)),
        )
        answer = source.make_message(recordings.reply_of(dialect, scene), context)
        session.append(answer)
        for call in (block for block in answer.content if isinstance(block, ToolUseBlock)):
            content = (ToolResultBlock(call.id, (TextBlock(README),)),)
            metadata = MessageMetadata(parent_tool_use_id=call.id)
            session.append(Message(session.next_id, SESSION, Role.TOOL, content, metadata, NOON))
        session.entries = ids.entries


def assert_all_ids_resolve(source: Adapter, history: list[Message]) -> None:
    """Assert that in the request every result has an earlier call, and every call has a result."""
    wire = source.to_wire(history, (READ_FILE,), Options(max_output_tokens=64)).wire
    open_calls: list[str] = []
    for message in source.dialect.read_request(wire).messages:
        for block in message.content:
            match block:
                case ToolUseBlock(id=call_id):
                    open_calls.append(call_id)
                case ToolResultBlock(tool_use_id=call_id):
                    open_calls.remove(call_id)
    assert open_calls == []


def trios() -> list[tuple[str, str, str]]:
    """Return three dialects per case, so that every dialect is once in each position."""
    names = dialects.callable_names()
    return [(name, names[(at + 1) % len(names)], names[(at + 3) % len(names)]) for at, name in enumerate(names)]


@pytest.mark.parametrize(("first", "second", "third"), trios())
def test_required_2_session_continues_across_three_providers(first: str, second: str, third: str) -> None:
    session = StoredSession()
    for number in range(6):
        dialect = (first, second)[number % 2]
        thinks = "thinking" in recordings.cassette_names(dialect)
        play_turn(session, dialect, ("call-streamed", "result-streamed") if number > 2 else ("call", "result"))
        play_turn(session, dialect, ("thinking",) if thinks and number < 4 else ("text",))
    assert session.history == session.messages
    assert [encode(message) for message in session.history] == session.rows
    assert check(session.history) == ()
    calls = [block.id for message in session.history for block in message.content if isinstance(block, ToolUseBlock)]
    assert len(set(calls)) == len(calls) == 6
    # Two more turns with a third provider, the second of them without the map of ids.
    for entries in (session.entries, ()):
        session.entries = entries
        play_turn(session, third, ("call", "result"))
    assert check(session.history) == ()
    wire = recordings.adapter(third, ToolIds(session.entries)).to_wire(session.history, (READ_FILE,)).wire
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


def make_limited_adapter() -> Adapter:
    rows = catalog.builtin().overlay(catalog.rows_from_toml(FEW_ROWS))
    return Adapter(rows.provider("acme"), rows.model("acme:modest"))


def make_message(role: Role, *blocks: ContentBlock) -> Message:
    return Message("01KE0000000000000000000001", SESSION, role, blocks, MessageMetadata(), NOON)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            make_message(Role.USER, ImageBlock(SOURCE, "image/png")),
            "session contains images that this model can't process",
        ),
        (
            make_message(Role.USER, DocumentBlock(SOURCE, "application/pdf")),
            "session contains documents that this model can't process",
        ),
        (
            make_message(Role.USER, AudioBlock(SOURCE, "audio/wav")),
            "session contains audios that this model can't process",
        ),
        (
            make_message(Role.USER, VideoBlock(SOURCE, "video/mp4")),
            "session contains videos that this model can't process",
        ),
        (
            make_message(Role.ASSISTANT, ToolUseBlock("tu_1", "read_file", {})),
            "session uses tools, and this model does not support tools",
        ),
        (
            make_message(Role.SYSTEM, TextBlock("Be brief.")),
            "session has a system prompt, which this model does not support",
        ),
        (make_message(Role.USER, TextBlock("Word. " * 1000)), "tokens, and this model accepts 1000"),
    ],
    ids=["image", "document", "audio", "video", "tools", "system prompt", "length"],
)
def test_required_3_swap_to_an_incapable_model_is_rejected_with_a_reason(message: Message, reason: str) -> None:
    history = [recordings.QUESTION, message]
    before = [encode(stored) for stored in history]
    plan = plan_swap(history, make_limited_adapter())
    assert not plan.is_possible
    (blocker,) = plan.blockers
    assert blocker.startswith("Cannot swap to acme:modest: ")
    assert reason in blocker
    assert "Active model unchanged." in blocker
    assert ("'placeholder' or 'describe'" in blocker) is ("can't process" in reason)
    assert plan.fits is ("tokens" not in reason)
    assert [encode(stored) for stored in history] == before
    assert plan_swap([recordings.QUESTION], make_limited_adapter()).is_possible


# --- 4. schema migration ---------------------------------------------------------------------------------------------


def test_required_4_version_1_message_is_migrated_under_version_2() -> None:
    written = encode(recordings.QUESTION)
    assert b'"schema_version":1' in written
    version_2 = Format(current=2)
    migrated_ids = []

    @version_2.migration(from_version=1)
    def mark_questions(message: PlainMessage) -> PlainMessage:
        migrated_ids.append(message["id"])
        content = [{**block, "text": f"Q: {block['text']}"} for block in message["content"]]
        return {**message, "content": content}

    message_read = decode(written, version_2)
    assert migrated_ids == [recordings.QUESTION.id]
    assert message_read == recordings.QUESTION.replace(
        content=(TextBlock(f"Q: {recordings.QUESTION.content[0].text}"),), schema_version=2
    )
    # Stored again, it has version 2 and needs no migration. The old row is unchanged and can be read again.
    saved = encode(message_read)
    assert b'"schema_version":2' in saved
    assert decode(saved, version_2) == message_read
    assert len(migrated_ids) == 1
    assert decode(written, version_2) == message_read
    assert written == encode(recordings.QUESTION)


# --- 5. tool schema validation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("construct", [*REFUSED, "uniqueItems", "$schema"])
def test_required_5_tool_with_an_unsupported_schema_is_rejected(construct: str) -> None:
    deep = {"type": "array", "items": {"type": "object", "properties": {"y": {construct: {}}}}}
    schema = {"type": "object", construct: {}, "properties": {"x": {construct: {}}, "z": deep}}
    schemas = ToolSchemas([READ_FILE])
    with pytest.raises(ToolSchemaError, match="search_files") as caught:
        schemas.add(ToolDefinition("search_files", "Search.", schema, SideEffects.READ))
    assert caught.value.code == "invalid_tool_schema"
    assert {problem.partition(": ")[0] for problem in caught.value.problems} == {
        "$",
        "$.properties.x",
        "$.properties.z.items.properties.y",
    }
    assert all(repr(construct) in problem for problem in caught.value.problems)
    assert list(schemas.definitions) == ["read_file"]


# --- 6. lossy projection logging -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["openai:gpt-5", "azure:gpt-5"])
def test_required_6_lost_thinking_block_is_logged_as_a_warning(model: str, caplog: pytest.LogCaptureFixture) -> None:
    rows = catalog.builtin()
    target = Adapter(rows.provider(rows.model(model).provider), rows.model(model))
    answer = recordings.read_answer("anthropic", "thinking")
    assert any(isinstance(block, ThinkingBlock) for block in answer.content)
    with caplog.at_level(logging.DEBUG):
        written = target.to_wire([recordings.RIDDLE, answer])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    standard_fields = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    assert {name: value for name, value in vars(record).items() if name not in standard_fields} == {
        "session_id": SESSION,
        "message_id": answer.id,
        "block_type": "thinking",
        "adapter": target.dialect.NAME,
        "reason": written.losses[0].reason,
    }
    assert THOUGHT not in str(written.wire)
    assert THOUGHT not in caplog.text
    # It cannot become an event of the bus: the code that ran imports no bus.
    below = grimp.build_graph("dragoman").find_upstream_modules("dragoman.adapter")
    assert not {name for name in below if name.startswith(("dragoman.bus", "dragoman.store", "dragoman.turn"))}


# --- 7. cost computation ---------------------------------------------------------------------------------------------

# The usage that each provider reports in its own format, and its cost by the table of the specification.
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
def test_required_7_conversation_has_the_exact_cost_of_the_price_table(is_streamed: bool) -> None:
    rows, table = catalog.builtin(), prices_from_mapping(SPECIFIED)
    costs = []
    for model_id, answer, expected in CONVERSATION:
        source = Adapter(rows.provider(rows.model(model_id).provider), rows.model(model_id))
        reply = source.dialect.read_reply(answer)
        if is_streamed:
            writer, reader = source.dialect.stream_writer(), source.dialect.stream_reader()
            data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
            reply = fold([*reader.feed(data), *reader.close()])
        assert reply.usage is not None
        usage = price_usage(table, model_id, reply.usage, NOON, latency_ms=1)
        context = RequestContext(session_id=SESSION, message_id="01KE", created_at=NOON, usage=usage)
        message = decode(encode(source.make_message(reply, context)))
        assert message.metadata.usage is not None
        assert str(message.metadata.usage.cost_usd) == expected
        assert message.metadata.usage.pricing_version == "2026-05-08"
        costs.append(message.metadata.usage.cost_usd)
    assert sum(costs) == Decimal("0.0972")
    assert round(sum(costs), 2) == Decimal("0.10")
