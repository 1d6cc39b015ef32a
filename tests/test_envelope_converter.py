"""Tests of the conversion between messages and envelopes: both directions are lossless."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import check, codec, dialects, repair
from dragoman.envelope import (
    approval_required,
    delta,
    envelopes_from_messages,
    error,
    final_result,
    input_required,
    messages_from_envelopes,
    multimodal_part,
    normalize_many,
    supported_types,
    text,
    tool_call,
    tool_result,
)
from dragoman.errors import EnvelopeError
from dragoman.exchange import Request
from dragoman.json_diff import apply_diff, diff
from dragoman.message import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from tests import strategies

NOON = datetime(2026, 4, 28, 12, tzinfo=UTC)

# --- laws ------------------------------------------------------------------------------------------------------------

kinds = st.sampled_from(supported_types())
names = st.sampled_from(["look", "wiki_upsert", "", "a\0b"])
parts = st.one_of(
    strategies.plain,
    st.builds(lambda value: {"type": "text", "text": value}, strategies.texts),
    st.builds(
        lambda url, more: {"type": "image_url", "image_url": {"url": url, **more}}, strategies.texts, strategies.objects
    ),
    st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}),
    st.just({"type": "file", "file_path": "a.pdf", "mime_type": "application/pdf", "name": "a"}),
    st.just({"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}}),
    st.just({"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen"}),
    st.just({"type": "unknown_block", "raw": 1}),
)
contents = (
    strategies.texts | st.just("AI ACTION (Turn 3): Executing Look") | st.lists(parts, max_size=3) | strategies.objects
)
parameters = strategies.objects | st.sampled_from(["{}", '{"a": 1}', "{", "[1]", [], [1], None, 5])
payloads = st.fixed_dictionaries(
    {},
    optional={
        "tool_name": names | st.none(),
        "parameters": parameters,
        "turn": st.integers(0, 9),
        "success": st.booleans() | st.none(),
        "error": st.none() | strategies.texts,
        "tool_data": strategies.plain,
        "tool_call_id": st.sampled_from(["call_1", "tu_01HZ100", ""]),
        "input_text": strategies.texts,
    },
)
metadatas = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | st.just("multimodal"),
        "tool_name": names,
        "parameters": parameters,
        "turn": st.integers(0, 9),
        "success": st.booleans(),
        "error": st.none() | strategies.texts,
        "tool_call_id": st.sampled_from(["call_1", "tu_01HZ100", "tu_01HZ200"]),
        "dragoman": strategies.plain
        | st.fixed_dictionaries(
            {},
            optional={
                "ours": st.just(True),
                "part": st.just([1, 2]),
                "left": strategies.objects,
                "whole": st.just("{}"),
            },
        ),
        "x": strategies.plain,
    },
)
optional_fields: dict[str, st.SearchStrategy[Any]] = {
    "id": strategies.texts,
    "created_at": st.sampled_from(
        [
            "2026-04-28 12:00:00",
            "1970-01-01 00:00:00",
            "2026-02-30 12:00:00",
            "2026-04-28T12:00:00Z",
            "0001-01-01 00:00:00",
        ]
    ),
    "updated_at": strategies.texts,
}
roles = st.sampled_from(["user", "assistant", "system", "tool", "developer", "critic"])
rows = st.fixed_dictionaries({"role": roles, "content": contents}, optional={"metadata": metadatas, **optional_fields})
envelopes = st.fixed_dictionaries(
    {"schema": st.just("agents-api.message"), "version": st.just(1), "type": kinds, "role": roles, "content": contents},
    optional={"payload": payloads, "metadata": metadatas, **optional_fields},
)


def has_dragoman_metadata(envelope: dict[str, Any]) -> bool:
    """Return whether an envelope has metadata under the key of Dragoman."""
    return "dragoman" in (envelope.get("metadata") or {})


@given(st.lists(rows | envelopes, max_size=5))
def test_envelopes_round_trip_through_messages(envelopes_in: list[dict[str, Any]]) -> None:
    normal = normalize_many(envelopes_in)
    back = envelopes_from_messages(messages_from_envelopes(envelopes_in))
    assert back == normal
    if not any(map(has_dragoman_metadata, normal)):
        assert msgspec.json.encode(back) == msgspec.json.encode(normal)  # including the order of keys


@given(st.lists(strategies.messages, max_size=4) | strategies.histories)
def test_messages_round_trip_through_envelopes(messages: list[Message]) -> None:
    envelopes_out = envelopes_from_messages(messages)
    assert normalize_many(envelopes_out) == envelopes_out
    back = messages_from_envelopes(envelopes_out)
    assert back == messages
    assert [codec.encode(message) for message in back] == [codec.encode(message) for message in messages]


@given(st.lists(rows | envelopes, max_size=4), strategies.ulids)
def test_message_from_an_envelope_round_trips_after_it_got_an_id(envelopes_in: list[dict[str, Any]], name: str) -> None:
    messages = [
        message.replace(id=f"{name}{number}", session_id="sess_1", created_at=NOON)
        for number, message in enumerate(messages_from_envelopes(envelopes_in))
    ]
    envelopes_out = envelopes_from_messages(messages)
    assert messages_from_envelopes(envelopes_out) == messages
    assert envelopes_from_messages(messages_from_envelopes(envelopes_out)) == envelopes_out


@given(st.lists(strategies.messages, min_size=1, max_size=3), st.data())
def test_changes_of_a_host_to_envelopes_are_preserved(messages: list[Message], data: st.DataObject) -> None:
    envelopes_out = envelopes_from_messages(messages)
    for envelope in envelopes_out:
        if data.draw(st.booleans()):
            envelope["metadata"] = {**envelope["metadata"], "seen": True}
        if data.draw(st.booleans()):
            envelope["content"] = data.draw(contents)
        if data.draw(st.booleans()):
            envelope["updated_at"] = "2026-04-28 12:00:00"
    assert envelopes_from_messages(messages_from_envelopes(envelopes_out)) == envelopes_out


@given(st.lists(strategies.messages, max_size=4), st.data())
def test_reordered_envelopes_are_preserved(messages: list[Message], data: st.DataObject) -> None:
    envelopes_out = data.draw(st.permutations(envelopes_from_messages(messages)))
    assert envelopes_from_messages(messages_from_envelopes(envelopes_out)) == envelopes_out


@given(strategies.plain, strategies.plain)
def test_diff_applies_to_its_target(written: Any, wire: Any) -> None:
    result = apply_diff(written, diff(written, wire, ordered=True), ordered=True)
    assert msgspec.json.encode(result) == msgspec.json.encode(wire)


# --- types of envelopes ----------------------------------------------------------------------------------------------


def read(*envelopes_in: dict[str, Any]) -> list[Message]:
    return messages_from_envelopes(envelopes_in)


def find_broken_rules(messages: list[Message]) -> list[str]:
    """Return the broken rules, except those about models and costs, which hosts do not record."""
    return [violation.rule for violation in check(messages) if not violation.rule.startswith("assistant-")]


def test_result_is_linked_to_its_call_by_tool_name() -> None:
    messages = read(
        text("user", "Write it."),
        tool_call("AI ACTION (Turn 1): Executing Wiki Upsert", "wiki_upsert", {"title": "Example"}, 1),
        tool_call("AI ACTION (Turn 1): Executing Look", "look", {}, 1),
        tool_result("looked", "look", {"success": False}),
        tool_result("written", "wiki_upsert", {"success": True}),
    )
    _, upsert, look, looked, written = messages
    assert upsert.content[0].name == "wiki_upsert"  # type: ignore[union-attr]
    assert upsert.content[0].input == {"title": "Example"}  # type: ignore[union-attr]
    assert [message.role for message in messages[1:]] == [Role.ASSISTANT, Role.ASSISTANT, Role.TOOL, Role.TOOL]
    assert looked.content == (ToolResultBlock(look.content[0].id, (TextBlock("looked"),), is_error=True),)  # type: ignore[union-attr]
    assert written.content == (ToolResultBlock(upsert.content[0].id, (TextBlock("written"),)),)  # type: ignore[union-attr]
    assert written.metadata.parent_tool_use_id == upsert.content[0].id  # type: ignore[union-attr]


def test_result_is_linked_to_its_call_by_id() -> None:
    messages = read(
        tool_call("", "look", {"at": 1}, 1, {"tool_call_id": "call_1"}),
        tool_call("", "look", {"at": 2}, 1, {"tool_call_id": "call_2"}),
        tool_result("second", "look", {"success": True}, {"tool_call_id": "call_2"}),
    )
    assert messages[2].content[0].tool_use_id == messages[1].content[0].id  # type: ignore[union-attr]
    assert find_broken_rules(messages[:1]) == []


def test_orphan_result_is_reported_by_check_and_set_aside_by_repair() -> None:
    messages = read(text("user", "x"), tool_result("seen", "look", {"success": True}))
    assert find_broken_rules(messages) == ["result-has-call"]
    assert find_broken_rules(list(repair(messages).messages)) == []


def test_text_of_a_call_becomes_a_block_and_its_caption_does_not() -> None:
    (caption,) = read(tool_call("AI ACTION (Turn 1): Executing Look", "look", {}, 1))
    assert [type(block) for block in caption.content] == [ToolUseBlock]
    (message,) = read(tool_call("I look it up.", "look", {}, 1))
    assert message.content[0] == TextBlock("I look it up.")


@pytest.mark.parametrize(
    ("value", "block"),
    [
        (None, {}),
        ([], {}),
        ('{"a": 1}', {"a": 1}),
        ("{", "the parameters are not JSON"),
        ("[1]", "the parameters are not an object"),
        ([1], "the parameters are not an object"),
    ],
)
def test_parameters_are_parsed_or_marked_invalid(value: Any, block: Any) -> None:
    (message,) = read({**tool_call("", "look", {}, 1), "payload": {"tool_name": "look", "parameters": value}})
    match message.content:
        case (ToolUseBlock(input=parameters),):
            assert parameters == block
        case (InvalidToolUseBlock(reason=reason),):
            assert reason == block
        case _:
            pytest.fail(repr(message.content))


@pytest.mark.parametrize(
    ("envelope", "role", "status"),
    [
        (text("system", "x"), Role.SYSTEM, MessageStatus.COMPLETE),
        (text("tool", "x"), Role.USER, MessageStatus.COMPLETE),
        (text("critic", "x"), Role.unknown("critic"), MessageStatus.COMPLETE),
        (input_required("x"), Role.ASSISTANT, MessageStatus.COMPLETE),
        (approval_required("x"), Role.ASSISTANT, MessageStatus.COMPLETE),
        (final_result("x"), Role.ASSISTANT, MessageStatus.COMPLETE),
        (error("x"), Role.ASSISTANT, MessageStatus.ERROR),
        (delta("x"), Role.ASSISTANT, MessageStatus.PARTIAL),
        (multimodal_part("user", [{"type": "text", "text": "x"}]), Role.USER, MessageStatus.COMPLETE),
    ],
)
def test_type_determines_role_and_status(envelope: dict[str, Any], role: Role, status: MessageStatus) -> None:
    (message,) = read(envelope)
    assert (message.role, message.metadata.status, message.content) == (role, status, (TextBlock("x"),))


def test_parts_become_typed_blocks() -> None:
    wire = {"type": "hologram", "depth": 3}
    (message,) = read(
        multimodal_part(
            "user",
            [
                "words",
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "file", "file_path": "a.pdf", "mime_type": "application/pdf"},
                {"type": "image", "source": {"kind": "url", "data": "u"}, "media_type": "image/png"},
                wire,
            ],
        )
    )
    assert message.content == (
        TextBlock("words"),
        ImageBlock(ImageSource("base64", "AAAA"), "image/png"),
        ImageBlock(ImageSource("url", "https://example.org/a.png"), "image/*"),
        DocumentBlock(ImageSource("file_ref", "a.pdf"), "application/pdf"),
        ImageBlock(ImageSource("url", "u"), "image/png"),
        OpaqueBlock("agents-api.message", wire),
    )


def test_id_and_time_are_converted() -> None:
    (message,) = read({**text("user", "x"), "id": "m1", "created_at": "2026-04-28 12:00:00"})
    assert message.metadata.message_id == "m1"
    assert message.created_at == NOON


def test_data_of_a_result_without_text_becomes_its_text() -> None:
    (message,) = read(tool_result("", "look", {"success": True, "tool_data": {"found": 3}}))
    assert message.content[0].content == (TextBlock('{"found":3}'),)  # type: ignore[union-attr]


# --- messages as envelopes -------------------------------------------------------------------------------------------

ANSWER = Message(
    "01HZ002",
    "sess_1",
    Role.ASSISTANT,
    (
        ThinkingBlock("I need the file.", "EqQB"),
        TextBlock("I read it."),
        ToolUseBlock("tu_01HZ100", "read_file", {"path": "README.md"}),
        ToolUseBlock("tu_01HZ200", "read_file", {"path": "LICENSE"}),
    ),
    MessageMetadata(model="anthropic:claude-sonnet-4-6", provider="anthropic"),
    NOON,
)


def test_message_becomes_one_envelope_per_text_and_call() -> None:
    written = envelopes_from_messages([ANSWER])
    assert [(envelope["type"], envelope["id"], envelope["created_at"]) for envelope in written] == [
        ("multimodal_part", "01HZ002", "2026-04-28 12:00:00"),
        ("tool_call", "01HZ002#2", "2026-04-28 12:00:00"),
        ("tool_call", "01HZ002#3", "2026-04-28 12:00:00"),
    ]
    assert written[1]["content"] == "AI ACTION (Turn 1): Executing Read File"
    assert written[1]["payload"] == {"tool_name": "read_file", "parameters": {"path": "README.md"}, "turn": 1}
    assert written[1]["metadata"] == {"dragoman": {"part": [2, 3]}, "tool_call_id": "tu_01HZ100"}


def test_envelope_of_a_result_has_the_tool_name() -> None:
    result = ToolResultBlock("tu_01HZ100", (TextBlock("no such file"),), is_error=True)
    answer = Message("01HZ003", "sess_1", Role.TOOL, (result,), MessageMetadata(), NOON)
    envelope = envelopes_from_messages([ANSWER, answer])[-1]
    assert (envelope["type"], envelope["role"], envelope["content"]) == ("tool_result", "tool", "no such file")
    assert envelope["payload"] == {"tool_name": "read_file", "success": False, "turn": 1}


def test_edit_of_an_envelope_changes_the_message() -> None:
    written = envelopes_from_messages([ANSWER])
    written[1]["payload"] = {**written[1]["payload"], "parameters": {"path": "CHANGELOG.md"}}
    (message,) = messages_from_envelopes(written)
    assert message.content[2] == ToolUseBlock("tu_01HZ100", "read_file", {"path": "CHANGELOG.md"})
    assert message.metadata.model == ANSWER.metadata.model
    assert message.content[0] == ANSWER.content[0]


def test_edit_of_a_message_changes_the_envelope() -> None:
    row = {
        "role": "assistant",
        "content": "AI ACTION (Turn 1): Executing Look",
        "metadata": {"type": "tool_call", "tool_name": "look", "parameters": {"at": 1}, "turn": 1},
    }
    (message,) = read(row)
    (call,) = message.content
    edited = message.replace(content=(call.replace(input={"at": 2}),))  # type: ignore[union-attr]
    (envelope,) = envelopes_from_messages([edited], verbatim=True)
    assert envelope["payload"] == {"tool_name": "look", "parameters": {"at": 2}, "turn": 1}
    assert envelope["metadata"] == {"type": "tool_call", **envelope["payload"]}
    assert messages_from_envelopes(envelopes_from_messages([edited])) == [edited]


def test_host_metadata_does_not_change_the_message() -> None:
    written = envelopes_from_messages([ANSWER])
    written[0]["metadata"] = {**written[0]["metadata"], "seen": True}
    (message,) = messages_from_envelopes(written)
    assert message.content == ANSWER.content
    assert (message.id, message.session_id, message.metadata.model) == ("01HZ002", "sess_1", ANSWER.metadata.model)


def test_foreign_extra_under_the_reserved_key_is_preserved() -> None:
    first = ANSWER.replace(
        metadata=ANSWER.metadata.replace(extra={"agents-api.message": [{"left": {"in": 5}}], "x": 1})
    )
    for extra in ({"agents-api.message": "mine"}, {"agents-api.message": []}, {"agents-api.message": [None, {}]}):
        second = first.replace(metadata=first.metadata.replace(extra=extra))
        assert messages_from_envelopes(envelopes_from_messages([first, second])) == [first, second]


def test_input_that_is_too_deep_raises_with_its_location() -> None:
    deep: Any = {}
    for _ in range(220):
        deep = {"in": deep}
    with pytest.raises(EnvelopeError, match=r"messages\[1\] .*nested deeper"):
        read(text("user", "x"), tool_call("", "look", deep, 1))


# --- requests to providers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", dialects.callable_names())
def test_conversation_of_envelopes_is_sent_in_every_dialect(name: str) -> None:
    dialect = dialects.load(name)
    messages = read(
        text("system", "Be brief."),
        text("user", "Write it."),
        tool_call("AI ACTION (Turn 1): Executing Wiki Upsert", "wiki_upsert", {"title": "Example"}, 1),
        tool_result("TOOL RESPONSE (Turn 1): done", "wiki_upsert", {"success": True, "turn": 1}),
        final_result("Written.", {"url": "u"}),
        text("user", "Thanks."),
    )
    assert find_broken_rules(messages) == []
    written = dialect.write_request(Request(model="m", messages=tuple(messages)))
    assert written.losses == ()
    back = dialect.read_request(written.wire).messages
    blocks = [block for message in back for block in message.content]
    assert [block.text for block in blocks if isinstance(block, TextBlock)] == [
        "Be brief.",
        "Write it.",
        "Written.",
        "Thanks.",
    ]
    (call,) = [block for block in blocks if isinstance(block, ToolUseBlock)]
    (result,) = [block for block in blocks if isinstance(block, ToolResultBlock)]
    assert (call.name, call.input, result.tool_use_id) == ("wiki_upsert", {"title": "Example"}, call.id)
    assert messages_from_envelopes(envelopes_from_messages(back)) == list(back)


def test_envelope_is_independent_of_its_message() -> None:
    (_, call, _) = envelopes_from_messages([ANSWER])
    call["payload"]["parameters"]["path"] = "/etc/passwd"
    assert ANSWER.content[2].input == {"path": "README.md"}  # type: ignore[union-attr]
