"""Tests of rules, check and repair. Every rule has a test with its name."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings

import dragoman
from dragoman.errors import ToolSchemaError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.message import (
    NOT_RECORDED,
    Alternative,
    Attachment,
    AudioBlock,
    ContentBlock,
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
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    Usage,
    VideoBlock,
)
from dragoman.repair import RepairResult, repair
from dragoman.rules import RULES, check
from dragoman.toolschema import ToolSchemas
from dragoman.value import RawJson
from tests import strategies
from tests.conftest import scale

MODEL = "anthropic:claude-sonnet-4-6"
ANSWER_METADATA = MessageMetadata(
    model=MODEL,
    provider="anthropic",
    routing=RoutingDecisionRecord(RoutingMode.DEFAULT, MODEL, "workspace default"),
    usage=Usage(
        input_tokens=8, output_tokens=42, cost_usd=Decimal("0.000654"), pricing_version="2026-05-08", latency_ms=820
    ),
)
TEXT, CALL = TextBlock("hi"), ToolUseBlock("tu_01HZ100", "read_file", {"path": "README.md"})
IMAGE_SOURCE = ImageSource("url", "https://example.com/a")
MEDIA = (
    ImageBlock(IMAGE_SOURCE, "image/png"),
    DocumentBlock(IMAGE_SOURCE, "application/pdf"),
    AudioBlock(IMAGE_SOURCE, "audio/wav"),
    VideoBlock(IMAGE_SOURCE, "video/mp4"),
)
OPAQUE = OpaqueBlock("anthropic", {"type": "web_search"})
THOUGHT, REDACTED = ThinkingBlock("hm", "sig"), RedactedThinkingBlock("xx")
INVALID = InvalidToolUseBlock("tu_01HZ300", "read_file", '{"pa', "cut off")
UNKNOWN = UnknownBlock(RawJson(b'{"type":"hologram"}'))
RESULT = ToolResultBlock(CALL.id, (TextBlock("# Project Foo"),))
counter = iter(range(10**6))


def message(role: Role, *blocks: ContentBlock, **metadata: object) -> Message:
    base = ANSWER_METADATA if role is Role.ASSISTANT else MessageMetadata()
    if role is Role.TOOL and "parent_tool_use_id" not in metadata and isinstance(blocks[0], ToolResultBlock):
        metadata["parent_tool_use_id"] = blocks[0].tool_use_id
    created_at = datetime(2026, 5, 8, tzinfo=UTC)
    return Message(f"01HZ{next(counter):03}", "sess_42", role, blocks, base.replace(**metadata), created_at)


def user(*blocks: ContentBlock, **metadata: object) -> Message:
    return message(Role.USER, *blocks, **metadata)


def assistant(*blocks: ContentBlock, **metadata: object) -> Message:
    return message(Role.ASSISTANT, *blocks, **metadata)


def result(tool_use_id: str = CALL.id, **metadata: object) -> Message:
    return message(Role.TOOL, RESULT.replace(tool_use_id=tool_use_id), **metadata)


def find_broken_rules(subject: Message | list[Message], problems: object = None) -> list[str]:
    return [violation.rule for violation in check(subject, problems)]  # type: ignore[arg-type]


def rules_of_repair(history: list[Message], problems: object = None) -> list[str]:
    repaired = repair(history, problems)  # type: ignore[arg-type]
    assert check(repaired.messages, problems) == ()  # type: ignore[arg-type]
    return [action.rule for action in repaired.actions]


def test_every_rule_has_a_test_with_its_name() -> None:
    missing = [rule for rule in RULES if not hasattr(sys.modules[__name__], f"test_{rule.replace('-', '_')}")]
    assert missing == []


def test_every_section_of_the_specification_has_rules() -> None:
    sections = {rule.section for rule in RULES.values() if rule.section}
    assert sections == {
        *("5.1.1", "5.1.2", "5.1.3", "5.1.4", "5.1.5"),
        *("5.2.1", "5.2.2", "5.2.3", "5.2.4"),
        *("5.3.1", "5.3.2", "5.3.3", "5.3.4", "5.3.5"),
        "5.4",
    }


def test_conversation_of_the_specification_breaks_no_rule() -> None:
    history = [user(TEXT), assistant(TEXT, CALL), result(), assistant(TEXT)]
    assert check(history) == ()
    assert all(check(single) == () for single in history)
    assert repair(history) == RepairResult(tuple(history), ())


# --- one message -----------------------------------------------------------------------------------------------------


def test_content_not_empty() -> None:
    for empty in (user(), assistant()):
        assert find_broken_rules(empty) == ["content-not-empty"]
        assert check(empty)[0].where == "$.content"
        assert rules_of_repair([user(TEXT), empty, assistant(TEXT)]) == ["content-not-empty"]
    assert find_broken_rules([user(TEXT), user()]) == ["content-not-empty"]
    assert check([user(TEXT), user()])[0].where == "$[1].content"


def test_system_may_be_empty() -> None:
    assert find_broken_rules(message(Role.SYSTEM)) == []


def test_user_content() -> None:
    assert find_broken_rules(user(TEXT, *MEDIA, OPAQUE, UNKNOWN)) == []
    for block in (CALL, RESULT, THOUGHT, REDACTED, INVALID):
        assert find_broken_rules(user(TEXT, block)) == ["user-content"]
        assert check(user(TEXT, block))[0].where == "$.content[1]"


def test_assistant_content() -> None:
    generated = [block for block in MEDIA if isinstance(block, ImageBlock | AudioBlock)]
    assert find_broken_rules(assistant(THOUGHT, REDACTED, TEXT, CALL, INVALID, OPAQUE, UNKNOWN, *generated)) == []
    for block in (RESULT, *(block for block in MEDIA if block not in generated)):
        assert find_broken_rules(assistant(TEXT, block)) == ["assistant-content"]


def test_tool_content() -> None:
    assert find_broken_rules(result()) == []
    parent = {"parent_tool_use_id": CALL.id}
    assert find_broken_rules(message(Role.TOOL, TEXT, **parent)) == ["tool-content"]
    assert find_broken_rules(message(Role.TOOL, RESULT, RESULT, **parent)) == ["tool-content"]
    assert find_broken_rules(message(Role.TOOL, **parent)) == ["tool-content"]


def test_system_content() -> None:
    assert find_broken_rules(message(Role.SYSTEM, TEXT, TEXT)) == []
    assert find_broken_rules(message(Role.SYSTEM, TEXT, MEDIA[0])) == ["system-content"]
    assert rules_of_repair([message(Role.SYSTEM, TEXT, MEDIA[0])]) == ["system-content"]


def test_result_content() -> None:
    assert find_broken_rules(message(Role.TOOL, RESULT.replace(content=(TEXT, *MEDIA, OPAQUE)))) == []
    assert find_broken_rules(message(Role.TOOL, RESULT.replace(content=()))) == []
    for block in (CALL, RESULT, THOUGHT, INVALID):
        inside = message(Role.TOOL, RESULT.replace(content=(TEXT, block)))
        assert find_broken_rules(inside) == ["result-content"]
        assert check(inside)[0].where == "$.content[0].content[1]"
        assert rules_of_repair([assistant(CALL), inside]) == ["result-content"]


def test_text_says_something() -> None:
    blank = TextBlock(" \n")
    assert [violation.where for violation in check(user(TEXT, blank, TextBlock("")))] == [
        "$.content[1]",
        "$.content[2]",
    ]
    assert find_broken_rules(assistant(blank, status=MessageStatus.CANCELLED)) == ["text-says-something"]
    assert find_broken_rules(assistant(blank, status=MessageStatus.PARTIAL)) == []
    assert find_broken_rules(assistant(ThinkingBlock(""), TEXT)) == []  # some providers send only a signature
    blank_result = message(Role.TOOL, RESULT.replace(content=(blank,)))
    assert [violation.where for violation in check(blank_result)] == ["$.content[0].content[0]"]
    history = [user(blank), assistant(blank, CALL), blank_result, assistant(TEXT)]
    assert rules_of_repair(history) == ["text-says-something"] * 3 + ["content-not-empty"]
    repaired = repair(history).messages
    assert [repaired_message.content for repaired_message in repaired] == [
        (CALL,),
        (RESULT.replace(content=()),),
        (TEXT,),
    ]


PNG = "iVBORw0KGgoAAAAA"  # the first bytes of a PNG file
PDF = "JVBERi0xLjQK"


def media_block(data: str, media_type: str, kind: type = ImageBlock) -> ContentBlock:
    return kind(ImageSource("base64", data), media_type)


@pytest.mark.parametrize(
    ("medium", "field"),
    [
        (media_block("###", "image/png"), "source.data"),
        (media_block("", "image/png"), "source.data"),
        (media_block("iVBORw0KGgoAAAA", "image/png"), "source.data"),
        (media_block("é", "image/png"), "source.data"),
        (media_block("aGVsbG8=", "image/png"), "source.data"),
        (media_block("aGVsbG8=", "application/pdf", DocumentBlock), "source.data"),
        (media_block("###", "audio/wav", AudioBlock), "source.data"),
        (media_block("###", "video/mp4", VideoBlock), "source.data"),
        (media_block(PNG, "image/jpeg"), "media_type"),
        (media_block(PNG, "image/*"), "media_type"),
        (media_block(PNG, "png"), "media_type"),
        (media_block("aGVsbG8=", "picture"), "media_type"),
        (media_block(PDF, "text/plain", DocumentBlock), "media_type"),
    ],
    ids=str,
)
def test_media_is_readable(medium: ContentBlock, field: str) -> None:
    assert [(violation.rule, violation.where) for violation in check(user(medium))] == [
        ("media-is-readable", f"$.content[0].{field}")
    ]
    inside = message(Role.TOOL, RESULT.replace(content=(TEXT, medium)))
    assert [violation.where for violation in check(inside)] == [f"$.content[0].content[1].{field}"]
    assert rules_of_repair([user(TEXT, medium)]) == ["media-is-readable"]


@pytest.mark.parametrize(
    "medium",
    [
        media_block(PNG, "image/png"),
        media_block("aGVsbG8=", "image/bmp"),
        media_block("aGVsbG8=", "text/plain", DocumentBlock),
        media_block(PDF, "application/pdf", DocumentBlock),
        media_block("aGVsbG8=", "audio/wav", AudioBlock),
        *MEDIA,
        ImageBlock(ImageSource("file_ref", "a.png"), "image/png"),
    ],
    ids=str,
)
def test_readable_or_remote_media_break_no_rule(medium: ContentBlock) -> None:
    assert check(user(medium)) == ()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/jpeg"),
        (PNG, "png"),
        ("iVBORw0K GgoA\nAAAA", "image/png"),
        (f"data:image/png;base64,{PNG}", "image/png"),
        ("iVBORw0KGgr_-w", "image/png"),
    ],
)
def test_media_type_is_repaired_if_the_data_identify_it(data: str, media_type: str) -> None:
    (repaired,) = repair([user(TEXT, media_block(data, media_type))]).messages
    assert isinstance(repaired.content[1], ImageBlock)
    assert repaired.content[1].media_type == "image/png"
    (removed,) = repair([user(TEXT, media_block("aGVsbG8=", "image/png"))]).messages
    assert removed.content == (TEXT,)


def test_order_is_kept() -> None:
    blocks = (TextBlock("a"), THOUGHT, TextBlock("b"), CALL, TextBlock("c"))
    answer = assistant(*blocks)
    assert dragoman.decode(dragoman.encode(answer)).content == blocks
    repaired = repair([assistant(*blocks, MEDIA[1]), result()])
    assert repaired.messages[0].content == blocks
    assert dragoman.content_hash(answer) != dragoman.content_hash(answer.replace(content=blocks[::-1]))


def test_partial_is_exempt() -> None:
    partial = MessageStatus.PARTIAL
    for role in Role:
        streaming = message(role, RESULT, CALL, status=partial, model=None, usage=None, parent_tool_use_id=None)
        assert find_broken_rules(streaming) == []
        expected = ["partial-is-last"] if role is Role.ASSISTANT else []
        assert find_broken_rules([user(TEXT), streaming, assistant(TEXT)]) == expected
        assert find_broken_rules(streaming.replace(content=())) == []
        assert (
            find_broken_rules(streaming.replace(metadata=streaming.metadata.replace(status=MessageStatus.COMPLETE)))
            != []
        )


@pytest.mark.parametrize("status", [MessageStatus.CANCELLED, MessageStatus.ERROR])
def test_failed_message_may_be_empty_and_unpriced(status: MessageStatus) -> None:
    failed = message(Role.ASSISTANT, status=status, model=None, provider=None, routing=None, usage=None)
    assert find_broken_rules([user(TEXT), failed, user(TEXT)]) == []


def test_calls_of_a_failed_message_need_results() -> None:
    failed = assistant(CALL, status=MessageStatus.ERROR)
    assert find_broken_rules([failed, user(TEXT)]) == ["call-is-answered"]
    assert rules_of_repair([failed, user(TEXT)]) == ["call-is-answered"]


# --- tool calls ------------------------------------------------------------------------------------------------------


def test_partial_is_last() -> None:
    partial = assistant(TEXT, CALL, status=MessageStatus.PARTIAL, usage=None)
    assert find_broken_rules([user(TEXT), partial]) == []
    assert find_broken_rules([user(TEXT), partial, result()]) == []  # its calls may have results during the stream
    history = [user(TEXT), partial, user(TEXT)]
    assert [(violation.rule, violation.where) for violation in check(history)] == [
        ("partial-is-last", "$[1].metadata.status")
    ]
    assert rules_of_repair(history) == ["partial-is-last", "call-is-answered"]
    closed = repair(history).messages
    assert [closed_message.role for closed_message in closed] == ["user", "assistant", "tool", "user"]
    assert closed[1].metadata.status is MessageStatus.CANCELLED
    assert closed[1].content == partial.content


def test_tool_id_is_ours() -> None:
    for tool_id in ("toolu_01ABC", "call_xyz789", "tu_", "tu_01hz", "tu_" + "0" * 27, "", "tu_01HZI"):
        call = assistant(CALL.replace(id=tool_id))
        assert find_broken_rules(call) == ["tool-id-is-ours"]
        history = [call, result(tool_id), assistant(TEXT)]
        assert "tool-id-is-ours" in rules_of_repair(history)
        repaired = repair(history).messages
        assert len(repaired) == 3
        assert repaired[1].content[0].tool_use_id == repaired[0].content[0].id
        assert repaired[1].content[0].content == RESULT.content


def test_tool_name_is_plain() -> None:
    names = {"read file": "read_file", "functions.read:0": "functions_read_0", "1a": "_1a", "": "_", "é" * 70: "_" * 64}
    for odd, plain in names.items():
        history = [assistant(CALL.replace(name=odd)), result(), assistant(TEXT)]
        assert [(violation.rule, violation.where) for violation in check(history)] == [
            ("tool-name-is-plain", "$[0].content[0].name")
        ]
        assert rules_of_repair(history) == ["tool-name-is-plain"]
        assert repair(history).messages[0].content == (CALL.replace(name=plain),)
    assert find_broken_rules(assistant(CALL.replace(name="mcp__files__read-all"))) == []
    assert find_broken_rules(assistant(INVALID.replace(name="é"))) == ["tool-name-is-plain"]


def test_result_has_call() -> None:
    history = [user(TEXT), result("tu_01HZ999")]
    assert find_broken_rules(history) == ["result-has-call"]
    assert check(history)[0].message_id == history[1].id
    assert rules_of_repair(history) == ["result-has-call"]
    assert repair(history).messages == (history[0],)
    # A result before its call is moved behind it.
    early = [result(), assistant(CALL), user(TEXT)]
    assert find_broken_rules(early) == ["result-has-call", "call-is-answered"]
    assert repair(early).messages == (early[1], early[0], early[2])


def test_one_result_per_call() -> None:
    history = [assistant(CALL), result(), result(), assistant(TEXT)]
    assert find_broken_rules(history) == ["one-result-per-call"]
    assert repair(history).messages == (history[0], history[1], history[3])


def test_call_id_once() -> None:
    history = [assistant(CALL), result(), user(TEXT), assistant(CALL), result(), assistant(TEXT)]
    assert find_broken_rules(history) == ["call-id-once", "one-result-per-call"]
    assert rules_of_repair(history) == ["call-id-once"]
    repaired = repair(history).messages
    assert len(repaired) == 6
    assert repaired[3].content[0].id != CALL.id
    assert repaired[4].metadata.parent_tool_use_id == repaired[3].content[0].id


def test_call_is_answered() -> None:
    for after in (user(TEXT), assistant(TEXT), message(Role.SYSTEM, TEXT)):
        history = [user(TEXT), assistant(TEXT, CALL), after]
        assert find_broken_rules(history) == ["call-is-answered"]
        assert check(history)[0].where == "$[1].content[1]"
        assert rules_of_repair(history) == ["call-is-answered"]
        added = repair(history).messages[2]
        assert added.role is Role.TOOL
        assert added.metadata.status is MessageStatus.CANCELLED
        assert added.content[0].is_error
        assert added.content[0].content[0].text.startswith("cancelled")
    assert find_broken_rules([user(TEXT), assistant(CALL)]) == []  # pending, which is valid
    assert find_broken_rules([assistant(CALL, INVALID), result(), user(TEXT)]) == ["call-is-answered"]


def test_late_result_is_moved_behind_its_call() -> None:
    history = [assistant(CALL), user(TEXT), result(), assistant(TEXT)]
    assert find_broken_rules(history) == ["call-is-answered"]
    assert rules_of_repair(history) == ["call-is-answered"]
    assert repair(history).messages == (history[0], history[2], history[1], history[3])


def test_parallel_calls_have_results_in_any_order() -> None:
    second = CALL.replace(id="tu_01HZ200")
    assert find_broken_rules([assistant(CALL, second), result(second.id), result(), assistant(TEXT)]) == []


READ_FILE = ToolDefinition(
    "read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False},
    SideEffects.READ,
)


def test_tool_input_fits() -> None:
    problems = ToolSchemas([READ_FILE]).problems
    assert find_broken_rules([assistant(CALL)], problems) == []
    invalid = assistant(CALL.replace(input={"file": 1}))
    assert find_broken_rules([invalid, result()], problems) == ["tool-input-fits", "tool-input-fits"]
    repaired = repair([invalid, result()], problems)
    assert check(repaired.messages, problems) == ()
    (block,) = repaired.messages[0].content
    assert isinstance(block, InvalidToolUseBlock)
    assert block.input_text == '{"file":1}'
    assert "required" in block.reason
    assert find_broken_rules([assistant(CALL.replace(name="another", input={"x": 1}))], problems) == []


# --- metadata --------------------------------------------------------------------------------------------------------


def test_assistant_names_model() -> None:
    assert find_broken_rules(assistant(TEXT, model=None)) == ["assistant-names-model"]
    assert find_broken_rules(assistant(TEXT, provider=None)) == ["assistant-names-model"]
    assert find_broken_rules(assistant(TEXT, model="", provider="")) == ["assistant-names-model"] * 2
    assert repair([assistant(TEXT, provider=None)]).messages[0].metadata.provider == "anthropic"
    assert repair([assistant(TEXT, model=None)]).messages[0].metadata.model == f"anthropic:{NOT_RECORDED}"


def test_assistant_has_routing() -> None:
    assert find_broken_rules(assistant(TEXT, routing=None)) == ["assistant-has-routing"]
    filled = repair([assistant(TEXT, routing=None)]).messages[0].metadata.routing
    assert filled == RoutingDecisionRecord(RoutingMode.DEFAULT, MODEL, NOT_RECORDED)


def test_assistant_has_usage() -> None:
    assert find_broken_rules(assistant(TEXT, usage=None)) == ["assistant-has-usage"]
    filled = repair([assistant(TEXT, usage=None)]).messages[0].metadata.usage
    assert filled.pricing_version == NOT_RECORDED  # so that no bill uses its zero as a price


def test_reasoning_names_origin() -> None:
    cancelled = assistant(THOUGHT, TEXT, REDACTED, provider=None, status=MessageStatus.CANCELLED)
    assert [violation.where for violation in check(cancelled)] == ["$.content[0]", "$.content[2]"]
    assert rules_of_repair([cancelled]) == ["reasoning-names-origin"]
    assert repair([cancelled]).messages[0].metadata.provider == "anthropic"  # from its model
    anonymous = assistant(THOUGHT, TEXT, provider=None, model=None)
    assert find_broken_rules(anonymous) == ["reasoning-names-origin", "assistant-names-model", "assistant-names-model"]
    assert repair([anonymous]).messages[0].metadata.provider == NOT_RECORDED
    assert find_broken_rules(assistant(TEXT, provider=None, status=MessageStatus.CANCELLED)) == []


def test_tool_names_parent() -> None:
    assert find_broken_rules(result(parent_tool_use_id=None)) == ["tool-names-parent"]
    other = result(parent_tool_use_id="tu_01HZ555")
    assert find_broken_rules(other) == ["tool-names-parent"]
    assert check(other)[0].where == "$.content[0].tool_use_id"
    for invalid in (other, result(parent_tool_use_id=None)):
        assert rules_of_repair([assistant(CALL), invalid]) == ["tool-names-parent"]
        assert repair([assistant(CALL), invalid]).messages[1].metadata.parent_tool_use_id == CALL.id


def test_provider_raw_is_opaque() -> None:
    raw = {"status": "partial", "model": "\0", "content": []}
    history = [user(TEXT), assistant(TEXT, CALL), user(TEXT, THOUGHT), assistant(model=None)]
    with_raw = [m.replace(metadata=m.metadata.replace(provider_raw=raw)) for m in history]
    assert check(with_raw) == check(history)
    assert repair(with_raw) == repair(history)
    assert all(
        m.metadata.provider_raw == raw for m in repair(with_raw).messages if m.id in {other.id for other in history}
    )


def test_tool_schema_subset() -> None:
    with pytest.raises(ToolSchemaError, match="anyOf"):
        ToolSchemas([READ_FILE.replace(input_schema={"type": "object", "anyOf": []})])


# --- additional rules ------------------------------------------------------------------------------------------------


def test_message_id_once() -> None:
    first = user(TEXT)
    history = [first, first, assistant(TEXT).replace(id=first.id)]
    assert find_broken_rules(history) == ["message-id-once"] * 2
    assert rules_of_repair(history) == ["message-id-once"] * 2
    repaired = repair(history).messages
    assert [m.role for m in repaired] == [Role.USER, Role.ASSISTANT]
    assert repaired[1].id != first.id


def test_one_session() -> None:
    history = [user(TEXT), user(TEXT).replace(session_id="sess_1")]
    assert find_broken_rules(history) == ["one-session"]
    assert repair(history).messages == (history[0],)
    stray = user(TEXT).replace(session_id="sess_1")
    assert repair([stray, *history[:1], user(TEXT)]).messages[0] == history[0]  # the session with most messages counts


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "a\0b"},
        {"model": "a\0:b"},
        {"provider": "a\0"},
        {"extra": {"k": ["\0"]}},
        {"extra": {"\0": 1}},
        {"usage": ANSWER_METADATA.usage.replace(pricing_version="\0")},
        {"usage": ANSWER_METADATA.usage.replace(service_tier="\0")},
        {"usage": ANSWER_METADATA.usage.replace(server_tool_calls={"\0": 1})},
        {"routing": RoutingDecisionRecord(RoutingMode.RULE, MODEL, "r", alternatives_considered=["\0"])},
        {"routing": RoutingDecisionRecord(RoutingMode.RULE, MODEL, "r", rule_name="\0")},
        {"routing": RoutingDecisionRecord(RoutingMode.RULE, MODEL, "\0")},
        {"user_message_attachments": [Attachment("b", "p\0", "image/png")]},
        {"user_id": "\0", "team_id": "\0"},
    ],
    ids=str,
)
def test_names_are_plain(change: dict) -> None:
    odd = assistant(TEXT, **change)
    assert set(find_broken_rules(odd)) == {"names-are-plain"}
    assert check(odd)[0].where.startswith("$.metadata")
    assert rules_of_repair([odd]) == ["names-are-plain"]
    for other in (
        user(TEXT).replace(id="a\0"),
        user(TEXT).replace(session_id="a\0"),
        assistant(CALL.replace(name="\0")),
    ):
        assert find_broken_rules(other) == ["names-are-plain"]
    assert find_broken_rules(user(TextBlock("a\0b"), TextBlock("\0"))) == []


def test_every_text_of_the_metadata_is_checked() -> None:
    """Fails if a new field is missing in the fast check."""
    texts = {
        "model": "a\0:b", "provider": "a\0", "parent_tool_use_id": "\0", "user_id": "\0", "team_id": "\0", "run_id": "\0",
        "stage": "\0", "message_id": "\0", "extra": {"k": "\0"}, "user_message_attachments": Attachment("\0", "p", "m"),
        "routing": RoutingDecisionRecord(RoutingMode.RULE, "\0", "r"), "usage": ANSWER_METADATA.usage.replace(pricing_version="\0"),
        "alternatives": (Alternative(content=(TextBlock("\0"),), stop_reason=StopReason.END_TURN),),
    }  # fmt: skip
    not_texts = {"status", "provider_raw", "latency_ms", "critical", "unknown_fields"}
    assert set(texts) | not_texts == set(MessageMetadata.__struct_fields__)
    for name, value in texts.items():
        assert "names-are-plain" in find_broken_rules(assistant(TEXT, **{name: value})), name


# --- repair ----------------------------------------------------------------------------------------------------------


def test_results_inside_a_user_message_become_tool_messages() -> None:
    second = RESULT.replace(tool_use_id="tu_01HZ200")
    history = [assistant(CALL, CALL.replace(id="tu_01HZ200")), user(RESULT, second, TEXT), assistant(TEXT)]
    repaired = repair(history)
    assert [m.role for m in repaired.messages] == ["assistant", "tool", "tool", "user", "assistant"]
    assert repaired.messages[1].content == (RESULT,)
    assert repaired.messages[3].content == (TEXT,)
    assert check(repaired.messages) == ()


def test_tool_message_with_two_results_is_split() -> None:
    second = RESULT.replace(tool_use_id="tu_01HZ200")
    history = [assistant(CALL, CALL.replace(id="tu_01HZ200")), message(Role.TOOL, RESULT, second)]
    repaired = repair(history).messages
    assert [m.content for m in repaired[1:]] == [(RESULT,), (second,)]
    assert repaired[1].id == history[1].id
    assert check(repaired) == ()


def test_results_of_calls_with_one_id_are_matched_in_order() -> None:
    calls = [CALL.replace(id="call_0", input={"x": number}) for number in (1, 2)]
    answers = [message(Role.TOOL, ToolResultBlock("call_0", (TextBlock(text),))) for text in ("first", "second")]
    repaired = repair([assistant(*calls), *answers, user(TEXT)]).messages
    assert check(repaired) == ()
    texts = {m.metadata.parent_tool_use_id: m.content[0].content[0].text for m in repaired[1:3]}
    assert [texts[call.id] for call in repaired[0].content] == ["first", "second"]


def test_ids_created_by_repair_are_unique() -> None:
    twice = [user(TextBlock("a")).replace(id="01A"), user(TextBlock("b")).replace(id="01A")]
    assert check(repair([*twice, repair(twice).messages[1]]).messages) == ()
    foreign = assistant(CALL.replace(id="call_9"))
    new_id = repair([foreign]).messages[0].content[0].id
    history = [assistant(CALL.replace(id=new_id)), result(new_id), foreign, result("call_9")]
    assert check(repair(history).messages) == ()


def test_result_for_a_call_without_id_is_set_aside() -> None:
    history = [assistant(CALL.replace(id=""), status=MessageStatus.PARTIAL), result("")]
    assert rules_of_repair(history) == ["result-has-call"]


def test_metadata_of_a_message_are_copied_to_its_results() -> None:
    history = [assistant(CALL), user(RESULT, run_id="run_1", extra={"k": 1})]
    moved = repair(history).messages[1]
    assert (moved.role, moved.metadata.run_id, moved.metadata.extra) == (Role.TOOL, "run_1", {"k": 1})
    added = repair([assistant(CALL, RESULT)]).messages[1]
    assert added.metadata.usage is None  # otherwise it is billed twice


def test_keys_that_differ_by_a_nul_are_both_preserved() -> None:
    odd = user(TEXT, extra={"a": "first", "a\0": "second"})
    assert repair([odd]).messages[0].metadata.extra == {"a": "first", "a_": "second"}


def test_model_without_provider_prefix_has_no_recorded_provider() -> None:
    assert repair([assistant(TEXT, model="gpt-5", provider=None)]).messages[0].metadata.provider == NOT_RECORDED


def test_locations_are_those_of_the_blocks() -> None:
    assert [violation.where for violation in check(user(THOUGHT, TEXT, THOUGHT))] == ["$.content[0]", "$.content[2]"]
    odd = message(Role.TOOL, TEXT, RESULT, parent_tool_use_id="tu_01HZ999")
    assert "$.content[1].tool_use_id" in [violation.where for violation in check(odd)]


def test_long_message_of_invalid_blocks_is_checked_in_one_pass() -> None:
    """One pass per block would take minutes at this size."""
    count = scale(2_500, 20_000)
    assert len(check(user(*[CALL] * count))) == count
    many = [assistant(*[CALL.replace(id="call_0")] * 1_500), *[result("call_0") for _ in range(1_500)]]
    assert check(repair(many).messages) == ()


def test_tool_message_with_bare_text_becomes_a_result() -> None:
    history = [assistant(CALL), message(Role.TOOL, TEXT, parent_tool_use_id=CALL.id)]
    assert repair(history).messages[1].content == (ToolResultBlock(CALL.id, (TEXT,)),)


@settings(max_examples=scale(75, 600))
@given(strategies.histories)
def test_repaired_history_breaks_no_rule(history: list[Message]) -> None:
    assert check(repair(history).messages) == ()


@given(strategies.histories)
def test_repair_is_idempotent(history: list[Message]) -> None:
    once = repair(history).messages
    assert repair(once) == RepairResult(once, ())


@given(strategies.histories)
def test_valid_history_is_unchanged_and_an_invalid_history_is_reported(history: list[Message]) -> None:
    repaired = repair(history)
    if check(history):
        assert repaired.actions
        assert repaired.messages != tuple(history)
    else:
        assert repaired.messages == tuple(history)
        assert repaired.actions == ()


def read_texts(messages: Iterable[Message]) -> set[str]:
    texts = set()
    for message in messages:
        for block in message.content:
            inner = block.content if isinstance(block, ToolResultBlock) else ()
            texts |= {piece.text for piece in (block, *inner) if isinstance(piece, TextBlock | ThinkingBlock)}
    return texts


@given(strategies.histories)
def test_every_text_is_in_the_history_or_set_aside(history: list[Message]) -> None:
    repaired = repair(history)
    assert read_texts(history) <= read_texts(repaired.messages) | read_texts(
        entry.message for entry in repaired.set_aside
    )


@given(strategies.histories)
def test_repair_invents_no_texts(history: list[Message]) -> None:
    added = read_texts(repair(history).messages) - read_texts(history)
    texts = {text for text in added if not text.startswith("invalid: the input of this call cannot be used")}
    assert texts <= {"cancelled: this call was never answered"}


@given(strategies.histories)
def test_repair_does_not_change_its_input(history: list[Message]) -> None:
    before = [dragoman.encode(m) for m in history]
    repair(history)
    assert [dragoman.encode(m) for m in history] == before


@given(strategies.histories)
def test_check_of_a_session_includes_the_check_of_each_message(history: list[Message]) -> None:
    alone = [(violation.rule, violation.message_id) for m in history for violation in check(m)]
    together = [(violation.rule, violation.message_id) for violation in check(history)]
    assert [finding for finding in together if finding in alone][: len(alone)] == alone
    assert {violation.rule for violation in check(history)} <= set(RULES)
