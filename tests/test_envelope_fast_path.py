"""Tests that the fast path between messages and envelopes is equal to the general path."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import codec
from dragoman.cli.tour import example_conversation
from dragoman.envelope import converter, envelopes_from_messages, messages_from_envelopes
from dragoman.envelope.fast_path import read_plain, write_plain
from dragoman.envelope.writer import CallHistory
from dragoman.message import Message, MessageMetadata, Role, TextBlock, ToolResultBlock, ToolUseBlock
from tests import strategies

raws = st.none() | st.builds(lambda more: {"dialect": "openai_chat", **more}, strategies.objects)
call_ids = strategies.ulids.map("tu_{}".format)
text_blocks = st.builds(TextBlock, strategies.texts)
calls = st.builds(ToolUseBlock, call_ids, st.sampled_from(["look", "wiki_upsert", "", "a\0"]), strategies.objects, raws)
results = st.builds(ToolResultBlock, call_ids, st.tuples(text_blocks), st.booleans(), raws)
metadata = st.builds(
    MessageMetadata,
    model=st.none() | strategies.texts,
    message_id=st.none() | st.sampled_from(["m1", ""]),
    extra=st.none() | strategies.objects,
    provider_raw=raws,
    latency_ms=st.none() | st.just(1.0) | st.integers(0, 9),
)
times = st.datetimes(timezones=st.just(UTC))
times |= st.sampled_from([datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)])


@st.composite
def plain_messages(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(list(Role)[:4]))
    values = draw(metadata)
    if role is Role.TOOL:
        content: tuple[Any, ...] = (draw(results),)
        if draw(st.booleans()):
            values = values.replace(parent_tool_use_id=content[0].tool_use_id)
    else:
        content = tuple(draw(st.lists(text_blocks, max_size=1)) + draw(st.lists(calls, max_size=2)))
    name = draw(st.sampled_from(["0".zfill(26), "1".zfill(26), "a", ""]) | strategies.ulids)
    return Message(name, draw(st.sampled_from(["", "sess_1"])), role, content, values, draw(times))


def encode_envelopes(messages: list[Message]) -> bytes:
    return msgspec.json.encode(envelopes_from_messages(messages))


def read(envelopes: list[dict[str, Any]]) -> list[bytes]:
    return [codec.encode(message) for message in messages_from_envelopes(envelopes)]


@given(st.lists(plain_messages() | strategies.messages, max_size=4))
def test_fast_path_equals_general_path(messages: list[Message]) -> None:
    encoded = encode_envelopes(messages)
    envelopes = msgspec.json.decode(encoded)
    messages_read = read(envelopes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converter, "write_plain", lambda *_: None)
        patch.setattr(converter, "read_plain", lambda *_: None)
        assert encode_envelopes(messages) == encoded
        assert read(envelopes) == messages_read
    assert messages_read == [codec.encode(message) for message in messages]


def test_ordinary_conversation_uses_the_fast_path() -> None:
    history, plain = CallHistory(), []
    for message in example_conversation():
        envelope = write_plain(message, history)
        plain.append(envelope is not None)
        if envelope is not None:
            again = read_plain(envelope, history)
            assert again is not None
            assert codec.encode(again) == codec.encode(message)
        history.add(message)
    assert plain == [True, False, True, True]  # the second message begins with thinking


@given(plain_messages(), st.data())
def test_changed_envelope_is_read_as_by_the_general_path(message: Message, data: st.DataObject) -> None:
    envelopes = msgspec.json.decode(encode_envelopes([message]))
    envelope = data.draw(st.sampled_from(envelopes))
    place = envelope[data.draw(st.sampled_from(["payload", "metadata"]))] if data.draw(st.booleans()) else envelope
    key = data.draw(st.sampled_from([*place, "more"]))
    place[key] = data.draw(st.sampled_from([None, 1, 1.0, True, "tool_call", "user", "", {}, [], {"ours": True}]))
    try:
        expected: Any = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(converter, "write_plain", lambda *_: None)
            patch.setattr(converter, "read_plain", lambda *_: None)
            expected = read(envelopes)
    except Exception as error:  # noqa: BLE001
        with pytest.raises(type(error)):
            read(envelopes)
    else:
        assert read(envelopes) == expected
