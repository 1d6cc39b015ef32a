"""The fast path between messages and envelopes returns the same as the general path."""

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
words = st.builds(TextBlock, strategies.texts)
calls = st.builds(ToolUseBlock, call_ids, st.sampled_from(["look", "wiki_upsert", "", "a\0"]), strategies.objects, raws)
results = st.builds(ToolResultBlock, call_ids, st.tuples(words), st.booleans(), raws)
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
    told = draw(metadata)
    if role is Role.TOOL:
        content: tuple[Any, ...] = (draw(results),)
        if draw(st.booleans()):
            told = told.replace(parent_tool_use_id=content[0].tool_use_id)
    else:
        content = tuple(draw(st.lists(words, max_size=1)) + draw(st.lists(calls, max_size=2)))
    name = draw(st.sampled_from(["0".zfill(26), "1".zfill(26), "a", ""]) | strategies.ulids)
    return Message(name, draw(st.sampled_from(["", "sess_1"])), role, content, told, draw(times))


def told(messages: list[Message]) -> bytes:
    return msgspec.json.encode(envelopes_from_messages(messages))


def read(envelopes: list[dict[str, Any]]) -> list[bytes]:
    return [codec.encode(message) for message in messages_from_envelopes(envelopes)]


@given(st.lists(plain_messages() | strategies.messages, max_size=4))
def test_the_short_way_is_the_long_way(messages: list[Message]) -> None:
    short = told(messages)
    envelopes = msgspec.json.decode(short)
    read_short = read(envelopes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converter, "write_plain", lambda *_: None)
        patch.setattr(converter, "read_plain", lambda *_: None)
        assert told(messages) == short
        assert read(envelopes) == read_short
    assert read_short == [codec.encode(message) for message in messages]


def test_an_ordinary_conversation_goes_the_short_way() -> None:
    passed, plain = CallHistory(), []
    for message in example_conversation():
        made = write_plain(message, passed)
        plain.append(made is not None)
        if made is not None:
            again = read_plain(made, passed)
            assert again is not None
            assert codec.encode(again) == codec.encode(message)
        passed.add(message)
    assert plain == [True, False, True, True]  # the second one begins with a thought


@given(plain_messages(), st.data())
def test_an_envelope_that_somebody_changed_is_read_as_the_long_way_reads_it(
    message: Message, data: st.DataObject
) -> None:
    envelopes = msgspec.json.decode(told([message]))
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
