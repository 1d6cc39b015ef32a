"""Canonical sessions and envelopes: there and back again is equal, whichever side one starts from."""

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
    text,
    tool_call,
    tool_result,
)
from dragoman.envelope.difference import difference, restored
from dragoman.errors import EnvelopeError
from dragoman.exchange import Request
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

kinds = st.sampled_from(
    ["text", "tool_call", "tool_result", "input_required", "approval_required", "final_result", "error", "delta"]
    + ["multimodal_part"]
)
names = st.sampled_from(["look", "wiki_upsert", "", "a\0b"])
parts = st.one_of(
    strategies.plain,
    st.builds(lambda words: {"type": "text", "text": words}, strategies.texts),
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


@given(st.lists(rows | envelopes, max_size=5))
def test_envelopes_become_messages_and_the_same_envelopes(said: list[dict[str, Any]]) -> None:
    normal = normalize_many(said)
    back = envelopes_from_messages(messages_from_envelopes(said))
    assert back == normal
    assert msgspec.json.encode(back) == msgspec.json.encode(normal)  # the order of keys too


@given(st.lists(strategies.messages, max_size=4) | strategies.histories)
def test_messages_become_envelopes_and_the_same_messages(said: list[Message]) -> None:
    told = envelopes_from_messages(said)
    assert normalize_many(told) == told
    back = messages_from_envelopes(told)
    assert back == said
    assert [codec.encode(message) for message in back] == [codec.encode(message) for message in said]


@given(st.lists(rows | envelopes, max_size=4), strategies.ulids)
def test_a_message_that_was_an_envelope_and_has_got_a_name_since_is_not_lost_either(
    said: list[dict[str, Any]], name: str
) -> None:
    kept = [
        message.replace(id=f"{name}{number}", session_id="sess_1", created_at=NOON)
        for number, message in enumerate(messages_from_envelopes(said))
    ]
    told = envelopes_from_messages(kept)
    assert messages_from_envelopes(told) == kept
    assert envelopes_from_messages(messages_from_envelopes(told)) == told


@given(st.lists(strategies.messages, min_size=1, max_size=3), st.data())
def test_what_a_host_adds_to_our_envelopes_is_kept(said: list[Message], data: st.DataObject) -> None:
    told = envelopes_from_messages(said)
    for envelope in told:
        if data.draw(st.booleans()):
            envelope["metadata"] = {**envelope["metadata"], "seen": True}
        if data.draw(st.booleans()):
            envelope["content"] = data.draw(contents)
        if data.draw(st.booleans()):
            envelope["updated_at"] = "2026-04-28 12:00:00"
    assert envelopes_from_messages(messages_from_envelopes(told)) == told


@given(st.lists(strategies.messages, max_size=4), st.data())
def test_envelopes_that_got_out_of_order_are_still_kept(said: list[Message], data: st.DataObject) -> None:
    told = data.draw(st.permutations(envelopes_from_messages(said)))
    assert envelopes_from_messages(messages_from_envelopes(told)) == told


@given(strategies.plain, strategies.plain)
def test_a_difference_makes_the_one_out_of_the_other(written: Any, wire: Any) -> None:
    made = restored(written, difference(written, wire))
    assert msgspec.json.encode(made) == msgspec.json.encode(wire)
