"""Rules, check and repair. Every rule has a test with its name."""

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
SPOKEN = MessageMetadata(
    model=MODEL,
    provider="anthropic",
    routing=RoutingDecisionRecord(RoutingMode.DEFAULT, MODEL, "workspace default"),
    usage=Usage(
        input_tokens=8, output_tokens=42, cost_usd=Decimal("0.000654"), pricing_version="2026-05-08", latency_ms=820
    ),
)
TEXT, CALL = TextBlock("hi"), ToolUseBlock("tu_01HZ100", "read_file", {"path": "README.md"})
PICTURE = ImageSource("url", "https://example.com/a")
MEDIA = (
    ImageBlock(PICTURE, "image/png"),
    DocumentBlock(PICTURE, "application/pdf"),
    AudioBlock(PICTURE, "audio/wav"),
    VideoBlock(PICTURE, "video/mp4"),
)
OPAQUE = OpaqueBlock("anthropic", {"type": "web_search"})
THOUGHT, REDACTED = ThinkingBlock("hm", "sig"), RedactedThinkingBlock("xx")
INVALID = InvalidToolUseBlock("tu_01HZ300", "read_file", '{"pa', "cut off")
UNKNOWN = UnknownBlock(RawJson(b'{"type":"hologram"}'))
RESULT = ToolResultBlock(CALL.id, (TextBlock("# Project Foo"),))
counter = iter(range(10**6))


def message(role: Role, *blocks: ContentBlock, **metadata: object) -> Message:
    base = SPOKEN if role is Role.ASSISTANT else MessageMetadata()
    if role is Role.TOOL and "parent_tool_use_id" not in metadata and isinstance(blocks[0], ToolResultBlock):
        metadata["parent_tool_use_id"] = blocks[0].tool_use_id
    when = datetime(2026, 5, 8, tzinfo=UTC)
    return Message(f"01HZ{next(counter):03}", "sess_42", role, blocks, base.replace(**metadata), when)


def user(*blocks: ContentBlock, **metadata: object) -> Message:
    return message(Role.USER, *blocks, **metadata)


def assistant(*blocks: ContentBlock, **metadata: object) -> Message:
    return message(Role.ASSISTANT, *blocks, **metadata)


def result(tool_use_id: str = CALL.id, **metadata: object) -> Message:
    return message(Role.TOOL, RESULT.replace(tool_use_id=tool_use_id), **metadata)


def broken_rules(subject: Message | list[Message], problems: object = None) -> list[str]:
    return [breach.rule for breach in check(subject, problems)]  # type: ignore[arg-type]


def rules_of_repair(history: list[Message], problems: object = None) -> list[str]:
    repaired = repair(history, problems)  # type: ignore[arg-type]
    assert check(repaired.messages, problems) == ()  # type: ignore[arg-type]
    return [action.rule for action in repaired.actions]


def test_every_rule_has_a_test_of_its_name() -> None:
    missing = [rule for rule in RULES if not hasattr(sys.modules[__name__], f"test_{rule.replace('-', '_')}")]
    assert missing == []


def test_every_section_of_the_specification_has_its_rules() -> None:
    sections = {rule.section for rule in RULES.values() if rule.section}
    assert sections == {
        *("5.1.1", "5.1.2", "5.1.3", "5.1.4", "5.1.5"),
        *("5.2.1", "5.2.2", "5.2.3", "5.2.4"),
        *("5.3.1", "5.3.2", "5.3.3", "5.3.4", "5.3.5"),
        "5.4",
    }


def test_the_specification_s_own_conversation_breaks_no_rule() -> None:
    history = [user(TEXT), assistant(TEXT, CALL), result(), assistant(TEXT)]
    assert check(history) == ()
    assert all(check(one) == () for one in history)
    assert repair(history) == RepairResult(tuple(history), ())


# --- one message -----------------------------------------------------------------------------------------------------


def test_content_not_empty() -> None:
    for empty in (user(), assistant()):
        assert broken_rules(empty) == ["content-not-empty"]
        assert check(empty)[0].where == "$.content"
        assert rules_of_repair([user(TEXT), empty, assistant(TEXT)]) == ["content-not-empty"]
    assert broken_rules([user(TEXT), user()]) == ["content-not-empty"]
    assert check([user(TEXT), user()])[0].where == "$[1].content"


def test_system_may_be_empty() -> None:
    assert broken_rules(message(Role.SYSTEM)) == []


def test_user_content() -> None:
    assert broken_rules(user(TEXT, *MEDIA, OPAQUE, UNKNOWN)) == []
    for block in (CALL, RESULT, THOUGHT, REDACTED, INVALID):
        assert broken_rules(user(TEXT, block)) == ["user-content"]
        assert check(user(TEXT, block))[0].where == "$.content[1]"


def test_assistant_content() -> None:
    generated = [block for block in MEDIA if isinstance(block, ImageBlock | AudioBlock)]
    assert broken_rules(assistant(THOUGHT, REDACTED, TEXT, CALL, INVALID, OPAQUE, UNKNOWN, *generated)) == []
    for block in (RESULT, *(block for block in MEDIA if block not in generated)):
        assert broken_rules(assistant(TEXT, block)) == ["assistant-content"]


def test_tool_content() -> None:
    assert broken_rules(result()) == []
    parent = {"parent_tool_use_id": CALL.id}
    assert broken_rules(message(Role.TOOL, TEXT, **parent)) == ["tool-content"]
    assert broken_rules(message(Role.TOOL, RESULT, RESULT, **parent)) == ["tool-content"]
    assert broken_rules(message(Role.TOOL, **parent)) == ["tool-content"]


def test_system_content() -> None:
    assert broken_rules(message(Role.SYSTEM, TEXT, TEXT)) == []
    assert broken_rules(message(Role.SYSTEM, TEXT, MEDIA[0])) == ["system-content"]
    assert rules_of_repair([message(Role.SYSTEM, TEXT, MEDIA[0])]) == ["system-content"]


def test_result_content() -> None:
    assert broken_rules(message(Role.TOOL, RESULT.replace(content=(TEXT, *MEDIA, OPAQUE)))) == []
    assert broken_rules(message(Role.TOOL, RESULT.replace(content=()))) == []
    for block in (CALL, RESULT, THOUGHT, INVALID):
        inside = message(Role.TOOL, RESULT.replace(content=(TEXT, block)))
        assert broken_rules(inside) == ["result-content"]
        assert check(inside)[0].where == "$.content[0].content[1]"
        assert rules_of_repair([assistant(CALL), inside]) == ["result-content"]


def test_text_says_something() -> None:
    blank = TextBlock(" \n")
    assert [breach.where for breach in check(user(TEXT, blank, TextBlock("")))] == ["$.content[1]", "$.content[2]"]
    assert broken_rules(assistant(blank, status=MessageStatus.CANCELLED)) == ["text-says-something"]
    assert broken_rules(assistant(blank, status=MessageStatus.PARTIAL)) == []
    assert broken_rules(assistant(ThinkingBlock(""), TEXT)) == []  # some providers show nothing but a signature
    silent = message(Role.TOOL, RESULT.replace(content=(blank,)))
    assert [breach.where for breach in check(silent)] == ["$.content[0].content[0]"]
    history = [user(blank), assistant(blank, CALL), silent, assistant(TEXT)]
    assert rules_of_repair(history) == ["text-says-something"] * 3 + ["content-not-empty"]
    repaired = repair(history).messages
    assert [one.content for one in repaired] == [(CALL,), (RESULT.replace(content=()),), (TEXT,)]


PNG = "iVBORw0KGgoAAAAA"  # the first bytes of one
PDF = "JVBERi0xLjQK"


def picture(data: str, media_type: str, kind: type = ImageBlock) -> ContentBlock:
    return kind(ImageSource("base64", data), media_type)


@pytest.mark.parametrize(
    ("medium", "field"),
    [
        (picture("###", "image/png"), "source.data"),
        (picture("", "image/png"), "source.data"),
        (picture("iVBORw0KGgoAAAA", "image/png"), "source.data"),
        (picture("é", "image/png"), "source.data"),
        (picture("aGVsbG8=", "image/png"), "source.data"),
        (picture("aGVsbG8=", "application/pdf", DocumentBlock), "source.data"),
        (picture("###", "audio/wav", AudioBlock), "source.data"),
        (picture("###", "video/mp4", VideoBlock), "source.data"),
        (picture(PNG, "image/jpeg"), "media_type"),
        (picture(PNG, "image/*"), "media_type"),
        (picture(PNG, "png"), "media_type"),
        (picture("aGVsbG8=", "picture"), "media_type"),
        (picture(PDF, "text/plain", DocumentBlock), "media_type"),
    ],
    ids=str,
)
def test_media_is_readable(medium: ContentBlock, field: str) -> None:
    assert [(one.rule, one.where) for one in check(user(medium))] == [("media-is-readable", f"$.content[0].{field}")]
    inside = message(Role.TOOL, RESULT.replace(content=(TEXT, medium)))
    assert [one.where for one in check(inside)] == [f"$.content[0].content[1].{field}"]
    assert rules_of_repair([user(TEXT, medium)]) == ["media-is-readable"]


@pytest.mark.parametrize(
    "medium",
    [
        picture(PNG, "image/png"),
        picture("aGVsbG8=", "image/bmp"),
        picture("aGVsbG8=", "text/plain", DocumentBlock),
        picture(PDF, "application/pdf", DocumentBlock),
        picture("aGVsbG8=", "audio/wav", AudioBlock),
        *MEDIA,
        ImageBlock(ImageSource("file_ref", "a.png"), "image/png"),
    ],
    ids=str,
)
def test_media_that_can_be_read_or_lies_elsewhere_breaks_no_rule(medium: ContentBlock) -> None:
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
def test_what_is_wrong_with_a_picture_is_mended_where_its_data_tells_what_it_is(data: str, media_type: str) -> None:
    (mended,) = repair([user(TEXT, picture(data, media_type))]).messages
    assert isinstance(mended.content[1], ImageBlock)
    assert mended.content[1].media_type == "image/png"
    (lost,) = repair([user(TEXT, picture("aGVsbG8=", "image/png"))]).messages
    assert lost.content == (TEXT,)


def test_order_is_kept() -> None:
    blocks = (TextBlock("a"), THOUGHT, TextBlock("b"), CALL, TextBlock("c"))
    spoken = assistant(*blocks)
    assert dragoman.decode(dragoman.encode(spoken)).content == blocks
    repaired = repair([assistant(*blocks, MEDIA[1]), result()])
    assert repaired.messages[0].content == blocks
    assert dragoman.content_hash(spoken) != dragoman.content_hash(spoken.replace(content=blocks[::-1]))


def test_partial_is_exempt() -> None:
    partial = MessageStatus.PARTIAL
    for role in Role:
        streaming = message(role, RESULT, CALL, status=partial, model=None, usage=None, parent_tool_use_id=None)
        assert broken_rules(streaming) == []
        left_behind = ["partial-is-last"] if role is Role.ASSISTANT else []
        assert broken_rules([user(TEXT), streaming, assistant(TEXT)]) == left_behind
        assert broken_rules(streaming.replace(content=())) == []
        assert broken_rules(streaming.replace(metadata=streaming.metadata.replace(status=MessageStatus.COMPLETE))) != []


@pytest.mark.parametrize("status", [MessageStatus.CANCELLED, MessageStatus.ERROR])
def test_a_message_that_failed_may_be_empty_and_unpriced(status: MessageStatus) -> None:
    failed = message(Role.ASSISTANT, status=status, model=None, provider=None, routing=None, usage=None)
    assert broken_rules([user(TEXT), failed, user(TEXT)]) == []


def test_a_failed_message_s_calls_still_need_their_answers() -> None:
    failed = assistant(CALL, status=MessageStatus.ERROR)
    assert broken_rules([failed, user(TEXT)]) == ["call-is-answered"]
    assert rules_of_repair([failed, user(TEXT)]) == ["call-is-answered"]


# --- tool calls ------------------------------------------------------------------------------------------------------


def test_partial_is_last() -> None:
    left = assistant(TEXT, CALL, status=MessageStatus.PARTIAL, usage=None)
    assert broken_rules([user(TEXT), left]) == []
    assert broken_rules([user(TEXT), left, result()]) == []  # its calls may be answered while it streams
    history = [user(TEXT), left, user(TEXT)]
    assert [(breach.rule, breach.where) for breach in check(history)] == [("partial-is-last", "$[1].metadata.status")]
    assert rules_of_repair(history) == ["partial-is-last", "call-is-answered"]
    closed = repair(history).messages
    assert [one.role for one in closed] == ["user", "assistant", "tool", "user"]
    assert closed[1].metadata.status is MessageStatus.CANCELLED
    assert closed[1].content == left.content


def test_tool_id_is_ours() -> None:
    for tool_id in ("toolu_01ABC", "call_xyz789", "tu_", "tu_01hz", "tu_" + "0" * 27, "", "tu_01HZI"):
        call = assistant(CALL.replace(id=tool_id))
        assert broken_rules(call) == ["tool-id-is-ours"]
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
        assert [(one.rule, one.where) for one in check(history)] == [("tool-name-is-plain", "$[0].content[0].name")]
        assert rules_of_repair(history) == ["tool-name-is-plain"]
        assert repair(history).messages[0].content == (CALL.replace(name=plain),)
    assert broken_rules(assistant(CALL.replace(name="mcp__files__read-all"))) == []
    assert broken_rules(assistant(INVALID.replace(name="é"))) == ["tool-name-is-plain"]


def test_result_has_call() -> None:
    history = [user(TEXT), result("tu_01HZ999")]
    assert broken_rules(history) == ["result-has-call"]
    assert check(history)[0].message_id == history[1].id
    assert rules_of_repair(history) == ["result-has-call"]
    assert repair(history).messages == (history[0],)
    # One that stands before its call is moved behind it.
    early = [result(), assistant(CALL), user(TEXT)]
    assert broken_rules(early) == ["result-has-call", "call-is-answered"]
    assert repair(early).messages == (early[1], early[0], early[2])


def test_one_result_per_call() -> None:
    history = [assistant(CALL), result(), result(), assistant(TEXT)]
    assert broken_rules(history) == ["one-result-per-call"]
    assert repair(history).messages == (history[0], history[1], history[3])


def test_call_id_once() -> None:
    history = [assistant(CALL), result(), user(TEXT), assistant(CALL), result(), assistant(TEXT)]
    assert broken_rules(history) == ["call-id-once", "one-result-per-call"]
    assert rules_of_repair(history) == ["call-id-once"]
    repaired = repair(history).messages
    assert len(repaired) == 6
    assert repaired[3].content[0].id != CALL.id
    assert repaired[4].metadata.parent_tool_use_id == repaired[3].content[0].id


def test_call_is_answered() -> None:
    for after in (user(TEXT), assistant(TEXT), message(Role.SYSTEM, TEXT)):
        history = [user(TEXT), assistant(TEXT, CALL), after]
        assert broken_rules(history) == ["call-is-answered"]
        assert check(history)[0].where == "$[1].content[1]"
        assert rules_of_repair(history) == ["call-is-answered"]
        made = repair(history).messages[2]
        assert made.role is Role.TOOL
        assert made.metadata.status is MessageStatus.CANCELLED
        assert made.content[0].is_error
        assert made.content[0].content[0].text.startswith("cancelled")
    assert broken_rules([user(TEXT), assistant(CALL)]) == []  # pending, not broken
    assert broken_rules([assistant(CALL, INVALID), result(), user(TEXT)]) == ["call-is-answered"]


def test_a_result_that_comes_late_is_moved_behind_its_call() -> None:
    history = [assistant(CALL), user(TEXT), result(), assistant(TEXT)]
    assert broken_rules(history) == ["call-is-answered"]
    assert rules_of_repair(history) == ["call-is-answered"]
    assert repair(history).messages == (history[0], history[2], history[1], history[3])


def test_parallel_calls_may_be_answered_in_any_order() -> None:
    second = CALL.replace(id="tu_01HZ200")
    assert broken_rules([assistant(CALL, second), result(second.id), result(), assistant(TEXT)]) == []


READ_FILE = ToolDefinition(
    "read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False},
    SideEffects.READ,
)


def test_tool_input_fits() -> None:
    problems = ToolSchemas([READ_FILE]).problems
    assert broken_rules([assistant(CALL)], problems) == []
    wrong = assistant(CALL.replace(input={"file": 1}))
    assert broken_rules([wrong, result()], problems) == ["tool-input-fits", "tool-input-fits"]
    repaired = repair([wrong, result()], problems)
    assert check(repaired.messages, problems) == ()
    (block,) = repaired.messages[0].content
    assert isinstance(block, InvalidToolUseBlock)
    assert block.input_text == '{"file":1}'
    assert "required" in block.reason
    assert broken_rules([assistant(CALL.replace(name="another", input={"x": 1}))], problems) == []


# --- metadata --------------------------------------------------------------------------------------------------------


def test_assistant_names_model() -> None:
    assert broken_rules(assistant(TEXT, model=None)) == ["assistant-names-model"]
    assert broken_rules(assistant(TEXT, provider=None)) == ["assistant-names-model"]
    assert broken_rules(assistant(TEXT, model="", provider="")) == ["assistant-names-model"] * 2
    assert repair([assistant(TEXT, provider=None)]).messages[0].metadata.provider == "anthropic"
    assert repair([assistant(TEXT, model=None)]).messages[0].metadata.model == f"anthropic:{NOT_RECORDED}"


def test_assistant_has_routing() -> None:
    assert broken_rules(assistant(TEXT, routing=None)) == ["assistant-has-routing"]
    filled = repair([assistant(TEXT, routing=None)]).messages[0].metadata.routing
    assert filled == RoutingDecisionRecord(RoutingMode.DEFAULT, MODEL, NOT_RECORDED)


def test_assistant_has_usage() -> None:
    assert broken_rules(assistant(TEXT, usage=None)) == ["assistant-has-usage"]
    filled = repair([assistant(TEXT, usage=None)]).messages[0].metadata.usage
    assert filled.pricing_version == NOT_RECORDED  # so that no bill takes its zero for a price


def test_reasoning_names_origin() -> None:
    cancelled = assistant(THOUGHT, TEXT, REDACTED, provider=None, status=MessageStatus.CANCELLED)
    assert [breach.where for breach in check(cancelled)] == ["$.content[0]", "$.content[2]"]
    assert rules_of_repair([cancelled]) == ["reasoning-names-origin"]
    assert repair([cancelled]).messages[0].metadata.provider == "anthropic"  # as its model says
    nobody = assistant(THOUGHT, TEXT, provider=None, model=None)
    assert broken_rules(nobody) == ["reasoning-names-origin", "assistant-names-model", "assistant-names-model"]
    assert repair([nobody]).messages[0].metadata.provider == NOT_RECORDED
    assert broken_rules(assistant(TEXT, provider=None, status=MessageStatus.CANCELLED)) == []


def test_tool_names_parent() -> None:
    assert broken_rules(result(parent_tool_use_id=None)) == ["tool-names-parent"]
    other = result(parent_tool_use_id="tu_01HZ555")
    assert broken_rules(other) == ["tool-names-parent"]
    assert check(other)[0].where == "$.content[0].tool_use_id"
    for wrong in (other, result(parent_tool_use_id=None)):
        assert rules_of_repair([assistant(CALL), wrong]) == ["tool-names-parent"]
        assert repair([assistant(CALL), wrong]).messages[1].metadata.parent_tool_use_id == CALL.id


def test_provider_raw_is_opaque() -> None:
    nonsense = {"status": "partial", "model": "\0", "content": []}
    history = [user(TEXT), assistant(TEXT, CALL), user(TEXT, THOUGHT), assistant(model=None)]
    noted = [one.replace(metadata=one.metadata.replace(provider_raw=nonsense)) for one in history]
    assert check(noted) == check(history)
    assert repair(noted) == repair(history)
    assert all(
        one.metadata.provider_raw == nonsense for one in repair(noted).messages if one.id in {two.id for two in history}
    )


def test_tool_schema_subset() -> None:
    with pytest.raises(ToolSchemaError, match="anyOf"):
        ToolSchemas([READ_FILE.replace(input_schema={"type": "object", "anyOf": []})])


# --- our own ---------------------------------------------------------------------------------------------------------


def test_message_id_once() -> None:
    first = user(TEXT)
    history = [first, first, assistant(TEXT).replace(id=first.id)]
    assert broken_rules(history) == ["message-id-once"] * 2
    assert rules_of_repair(history) == ["message-id-once"] * 2
    repaired = repair(history).messages
    assert [one.role for one in repaired] == [Role.USER, Role.ASSISTANT]
    assert repaired[1].id != first.id


def test_one_session() -> None:
    history = [user(TEXT), user(TEXT).replace(session_id="sess_1")]
    assert broken_rules(history) == ["one-session"]
    assert repair(history).messages == (history[0],)
    stray = user(TEXT).replace(session_id="sess_1")
    assert repair([stray, *history[:1], user(TEXT)]).messages[0] == history[0]  # one stray message is not the session


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "a\0b"},
        {"model": "a\0:b"},
        {"provider": "a\0"},
        {"extra": {"k": ["\0"]}},
        {"extra": {"\0": 1}},
        {"usage": SPOKEN.usage.replace(pricing_version="\0")},
        {"usage": SPOKEN.usage.replace(service_tier="\0")},
        {"usage": SPOKEN.usage.replace(server_tool_calls={"\0": 1})},
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
    assert set(broken_rules(odd)) == {"names-are-plain"}
    assert check(odd)[0].where.startswith("$.metadata")
    assert rules_of_repair([odd]) == ["names-are-plain"]
    for other in (
        user(TEXT).replace(id="a\0"),
        user(TEXT).replace(session_id="a\0"),
        assistant(CALL.replace(name="\0")),
    ):
        assert broken_rules(other) == ["names-are-plain"]
    assert broken_rules(user(TextBlock("a\0b"), TextBlock("\0"))) == []


def test_every_word_of_the_metadata_is_looked_at() -> None:
    """A field that is added and forgotten in the quick look would let a NUL through."""
    texts = {
        "model": "a\0:b", "provider": "a\0", "parent_tool_use_id": "\0", "user_id": "\0", "team_id": "\0", "run_id": "\0",
        "stage": "\0", "message_id": "\0", "extra": {"k": "\0"}, "user_message_attachments": Attachment("\0", "p", "m"),
        "routing": RoutingDecisionRecord(RoutingMode.RULE, "\0", "r"), "usage": SPOKEN.usage.replace(pricing_version="\0"),
        "alternatives": (Alternative(content=(TextBlock("\0"),), stop_reason=StopReason.END_TURN),),
    }  # fmt: skip
    not_texts = {"status", "provider_raw", "latency_ms", "critical", "unknown_fields"}
    assert set(texts) | not_texts == set(MessageMetadata.__struct_fields__)
    for name, value in texts.items():
        assert "names-are-plain" in broken_rules(assistant(TEXT, **{name: value})), name


# --- repair ----------------------------------------------------------------------------------------------------------


def test_results_inside_a_user_message_become_tool_messages() -> None:
    second = RESULT.replace(tool_use_id="tu_01HZ200")
    history = [assistant(CALL, CALL.replace(id="tu_01HZ200")), user(RESULT, second, TEXT), assistant(TEXT)]
    repaired = repair(history)
    assert [one.role for one in repaired.messages] == ["assistant", "tool", "tool", "user", "assistant"]
    assert repaired.messages[1].content == (RESULT,)
    assert repaired.messages[3].content == (TEXT,)
    assert check(repaired.messages) == ()


def test_a_tool_message_with_two_results_is_split() -> None:
    second = RESULT.replace(tool_use_id="tu_01HZ200")
    history = [assistant(CALL, CALL.replace(id="tu_01HZ200")), message(Role.TOOL, RESULT, second)]
    repaired = repair(history).messages
    assert [one.content for one in repaired[1:]] == [(RESULT,), (second,)]
    assert repaired[1].id == history[1].id
    assert check(repaired) == ()


def test_results_of_calls_with_one_id_are_paired_in_their_order() -> None:
    calls = [CALL.replace(id="call_0", input={"x": number}) for number in (1, 2)]
    answers = [message(Role.TOOL, ToolResultBlock("call_0", (TextBlock(text),))) for text in ("first", "second")]
    repaired = repair([assistant(*calls), *answers, user(TEXT)]).messages
    assert check(repaired) == ()
    said = {one.metadata.parent_tool_use_id: one.content[0].content[0].text for one in repaired[1:3]}
    assert [said[call.id] for call in repaired[0].content] == ["first", "second"]


def test_ids_that_repair_makes_are_never_those_of_another() -> None:
    twice = [user(TextBlock("a")).replace(id="01A"), user(TextBlock("b")).replace(id="01A")]
    assert check(repair([*twice, repair(twice).messages[1]]).messages) == ()
    foreign = assistant(CALL.replace(id="call_9"))
    made = repair([foreign]).messages[0].content[0].id
    history = [assistant(CALL.replace(id=made)), result(made), foreign, result("call_9")]
    assert check(repair(history).messages) == ()


def test_a_result_for_a_call_without_an_id_is_set_aside() -> None:
    history = [assistant(CALL.replace(id=""), status=MessageStatus.PARTIAL), result("")]
    assert rules_of_repair(history) == ["result-has-call"]


def test_what_was_known_of_a_message_goes_with_its_results() -> None:
    history = [assistant(CALL), user(RESULT, run_id="run_1", extra={"k": 1})]
    moved = repair(history).messages[1]
    assert (moved.role, moved.metadata.run_id, moved.metadata.extra) == (Role.TOOL, "run_1", {"k": 1})
    spoken = repair([assistant(CALL, RESULT)]).messages[1]
    assert spoken.metadata.usage is None  # else it would be billed twice


def test_keys_that_differ_by_a_nul_are_both_kept() -> None:
    odd = user(TEXT, extra={"a": "first", "a\0": "second"})
    assert repair([odd]).messages[0].metadata.extra == {"a": "first", "a_": "second"}


def test_a_model_without_a_provider_s_name_gives_none() -> None:
    assert repair([assistant(TEXT, model="gpt-5", provider=None)]).messages[0].metadata.provider == NOT_RECORDED


def test_places_are_those_of_the_blocks() -> None:
    assert [breach.where for breach in check(user(THOUGHT, TEXT, THOUGHT))] == ["$.content[0]", "$.content[2]"]
    odd = message(Role.TOOL, TEXT, RESULT, parent_tool_use_id="tu_01HZ999")
    assert "$.content[1].tool_use_id" in [breach.where for breach in check(odd)]


def test_a_long_message_of_wrong_blocks_is_checked_in_one_pass() -> None:
    """A pass for each block would take minutes at this size."""
    count = scale(2_500, 20_000)
    assert len(check(user(*[CALL] * count))) == count
    many = [assistant(*[CALL.replace(id="call_0")] * 1_500), *[result("call_0") for _ in range(1_500)]]
    assert check(repair(many).messages) == ()


def test_a_tool_message_with_bare_text_becomes_a_result() -> None:
    history = [assistant(CALL), message(Role.TOOL, TEXT, parent_tool_use_id=CALL.id)]
    assert repair(history).messages[1].content == (ToolResultBlock(CALL.id, (TEXT,)),)


@settings(max_examples=scale(75, 600))
@given(strategies.histories)
def test_a_repaired_history_breaks_no_rule(history: list[Message]) -> None:
    assert check(repair(history).messages) == ()


@given(strategies.histories)
def test_repairing_again_changes_nothing(history: list[Message]) -> None:
    once = repair(history).messages
    assert repair(once) == RepairResult(once, ())


@given(strategies.histories)
def test_a_valid_history_is_left_alone_and_a_broken_one_is_reported(history: list[Message]) -> None:
    repaired = repair(history)
    if check(history):
        assert repaired.actions
        assert repaired.messages != tuple(history)
    else:
        assert repaired.messages == tuple(history)
        assert repaired.actions == ()


def said(messages: Iterable[Message]) -> set[str]:
    found = set()
    for one in messages:
        for block in one.content:
            inner = block.content if isinstance(block, ToolResultBlock) else ()
            found |= {piece.text for piece in (block, *inner) if isinstance(piece, TextBlock | ThinkingBlock)}
    return found


@given(strategies.histories)
def test_no_words_vanish_they_are_in_the_history_or_set_aside(history: list[Message]) -> None:
    repaired = repair(history)
    assert said(history) <= said(repaired.messages) | said(one.message for one in repaired.set_aside)


@given(strategies.histories)
def test_repair_makes_up_no_words(history: list[Message]) -> None:
    made_up = said(repair(history).messages) - said(history)
    texts = {text for text in made_up if not text.startswith("invalid: the input of this call cannot be used")}
    assert texts <= {"cancelled: this call was never answered"}


@given(strategies.histories)
def test_what_is_given_is_never_touched(history: list[Message]) -> None:
    before = [dragoman.encode(one) for one in history]
    repair(history)
    assert [dragoman.encode(one) for one in history] == before


@given(strategies.histories)
def test_checking_a_session_finds_all_that_checking_each_message_finds(history: list[Message]) -> None:
    alone = [(breach.rule, breach.message_id) for one in history for breach in check(one)]
    together = [(breach.rule, breach.message_id) for breach in check(history)]
    assert [found for found in together if found in alone][: len(alone)] == alone
    assert {breach.rule for breach in check(history)} <= set(RULES)
