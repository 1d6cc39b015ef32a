"""Tests of encoding, decoding and hashing of messages."""

from __future__ import annotations

import collections
import copy
import hashlib
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman.errors import FormatError, InputError, JsonError, NewerVersionError, RemoteFaultError, ToolSchemaError
from dragoman.message import (
    Attachment,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    TokenUsage,
    ToolUseBlock,
    UnknownBlock,
    Usage,
)
from dragoman.value import RawJson, UnknownFields
from tests import strategies

NOW = datetime(2026, 5, 8, 12, 30, 15, 250_000, tzinfo=UTC)
HELLO = Message("01HZ001", "sess_42", Role.USER, (TextBlock("What's a ULID?"),), MessageMetadata(), NOW)
HELLO_JSON = (
    b'{"id":"01HZ001","session_id":"sess_42","role":"user","content":[{"type":"text","text":"What\'s a ULID?"}],'
    b'"metadata":{},"created_at":"2026-05-08T12:30:15.250000Z","schema_version":1}'
)


def test_json_of_a_message_is_documented() -> None:
    assert dragoman.encode(HELLO) == HELLO_JSON
    assert dragoman.decode(HELLO_JSON) == HELLO


@given(strategies.messages)
def test_encoded_message_decodes_to_an_equal_message(message: Message) -> None:
    data = dragoman.encode(message)
    again = dragoman.decode(data)
    assert again == message
    assert again.metadata.provider_raw == message.metadata.provider_raw
    assert dragoman.encode(again) == data


@given(strategies.messages)
def test_encoded_message_is_standard_json(message: Message) -> None:
    assert json.loads(dragoman.encode(message))["role"] == message.role


@given(strategies.messages, strategies.messages)
def test_only_equal_messages_have_equal_bytes_and_hashes(first: Message, other: Message) -> None:
    bare = [m.replace(metadata=m.metadata.replace(provider_raw=None)) for m in (first, other)]
    for a, b in [(first, dragoman.decode(dragoman.encode(first))), (first, other), (bare[0], bare[1])]:
        assert (a == b) == (dragoman.message_hash(a) == dragoman.message_hash(b))
        if a == b:
            assert hash(a) == hash(b)
            assert dragoman.content_hash(a) == dragoman.content_hash(b)


@given(strategies.messages, strategies.raws, strategies.raws)
def test_provider_raw_is_ignored_in_comparisons(message: Message, ours: dict | None, theirs: dict | None) -> None:
    def make_message(raw: dict | None) -> Message:
        blocks = (TextBlock("x", provider_raw=raw), *message.content)
        return message.replace(content=blocks, metadata=message.metadata.replace(provider_raw=raw))

    first, other = make_message(ours), make_message(theirs)
    assert first == other
    assert hash(first) == hash(other)
    assert dragoman.content_hash(first) == dragoman.content_hash(other)
    assert dragoman.message_hash(first) == dragoman.message_hash(other)
    assert dragoman.decode(dragoman.encode(first)).content[0].provider_raw == ours


def test_equal_and_unequal_are_opposites() -> None:
    assert TextBlock("x") == TextBlock("x")
    assert not TextBlock("x") != TextBlock("x")  # noqa: SIM202
    assert TextBlock("x") != TextBlock("y")
    assert TextBlock("x") != "x"


@pytest.mark.parametrize(
    ("first", "other"),
    [({"a": 1}, {"a": 1.0}), ({"a": 1}, {"a": True}), ({"a": 0.0}, {"a": -0.0}), ({"a": 1, "b": 2}, {"b": 2, "a": 1})],
)
def test_inputs_with_different_json_are_unequal(first: dict, other: dict) -> None:
    assert ToolUseBlock("tu_1", "f", first) != ToolUseBlock("tu_1", "f", other)


def test_hashes_are_the_same_in_another_process() -> None:
    script = (
        "import sys, dragoman; m = dragoman.decode(sys.stdin.buffer.read());"
        "print(dragoman.content_hash(m), dragoman.message_hash(m))"
    )
    done = subprocess.run([sys.executable, "-c", script], input=HELLO_JSON, capture_output=True, check=True)
    assert done.stdout.split() == [dragoman.content_hash(HELLO).encode(), dragoman.message_hash(HELLO).encode()]


def test_hashes_are_sha_256_of_the_documented_bytes() -> None:
    hashed = b'{"role":"user","content":[{"type":"text","text":"What\'s a ULID?"}]}'
    assert dragoman.content_hash(HELLO) == hashlib.sha256(hashed).hexdigest()
    assert dragoman.message_hash(HELLO) == hashlib.sha256(HELLO_JSON).hexdigest()


def test_content_hash_depends_on_role_and_content_only() -> None:
    moved = HELLO.replace(id="01HZ009", session_id="sess_1", created_at=NOW + timedelta(days=1))
    assert dragoman.content_hash(moved) == dragoman.content_hash(HELLO)
    assert dragoman.message_hash(moved) != dragoman.message_hash(HELLO)
    assert dragoman.content_hash(HELLO.replace(role=Role.SYSTEM)) != dragoman.content_hash(HELLO)


@pytest.mark.parametrize(
    ("when", "text"),
    [
        (datetime(2026, 5, 8, tzinfo=UTC), "2026-05-08T00:00:00.000000Z"),
        (datetime(2026, 5, 8, 1, 2, 3, 4, tzinfo=UTC), "2026-05-08T01:02:03.000004Z"),
        (datetime(2026, 5, 8, 1, 0, tzinfo=timezone(timedelta(hours=2))), "2026-05-07T23:00:00.000000Z"),
    ],
)
def test_times_are_written_in_utc_with_six_digits(when: datetime, text: str) -> None:
    tricky = MessageMetadata(extra={"created_at": "2020-01-01T00:00:00Z", '"created_at":"': 1})
    message = HELLO.replace(created_at=when, metadata=tricky)
    data = dragoman.encode(message)
    assert json.loads(data)["created_at"] == text
    assert dragoman.decode(data).created_at == when
    assert dragoman.decode(data).metadata == tricky


def test_time_in_an_unknown_field_is_unchanged() -> None:
    own = UnknownFields({"reply_to": b'{"created_at":"2020-01-01T00:00:00Z"}', "schema_versions": b"1"})
    message = HELLO.replace(created_at=datetime(2026, 5, 8, tzinfo=UTC), unknown_fields=own)
    data = dragoman.encode(message)
    assert b'"created_at":"2026-05-08T00:00:00.000000Z","schema_version":1,' in data
    assert data.endswith(b'"reply_to":{"created_at":"2020-01-01T00:00:00Z"},"schema_versions":1}')
    assert dragoman.decode(data) == message
    assert dragoman.message_hash(dragoman.decode(data)) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])
def test_time_out_of_range_is_rejected(text: str) -> None:
    with pytest.raises(FormatError, match=r"\$\.created_at"):
        dragoman.decode(HELLO_JSON.replace(b"2026-05-08T12:30:15.250000Z", text.encode()))


def test_time_without_zone_is_rejected() -> None:
    with pytest.raises(ValueError, match="time zone"):
        HELLO.replace(created_at=datetime(2026, 5, 8))  # noqa: DTZ001
    with pytest.raises(FormatError, match=r"\$\.created_at"):
        dragoman.decode(HELLO_JSON.replace(b".250000Z", b""))


@pytest.mark.parametrize("text", ["2026-02-30T00:00:00Z", "10000-01-01T00:00:00Z", "infinity", "2026-05-08T23:59:60Z"])
def test_invalid_time_is_rejected(text: str) -> None:
    with pytest.raises(FormatError, match=r"\$\.created_at"):
        dragoman.decode(HELLO_JSON.replace(b"2026-05-08T12:30:15.250000Z", text.encode()))


def test_money_is_text_and_preserves_every_digit() -> None:
    cost = Decimal("0.0000000000000000000000000001234567890123456789")
    usage = Usage(input_tokens=1, output_tokens=1, cost_usd=cost, pricing_version="v", latency_ms=1)
    message = HELLO.replace(metadata=MessageMetadata(usage=usage))
    assert json.loads(dragoman.encode(message))["metadata"]["usage"]["cost_usd"] == str(cost)
    assert dragoman.decode(dragoman.encode(message)).metadata.usage.cost_usd == cost


@pytest.mark.parametrize("amount", ["NaN", "Infinity", "-Infinity", "sNaN"])
def test_non_finite_cost_is_rejected(amount: str) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal(amount), pricing_version="v", latency_ms=1)
    usage = (
        f'{{"usage":{{"input_tokens":1,"output_tokens":1,"cost_usd":"{amount}","pricing_version":"v","latency_ms":1}}}}'
    )
    with pytest.raises(FormatError, match="cost_usd"):
        dragoman.decode(HELLO_JSON.replace(b'"metadata":{}', b'"metadata":' + usage.encode()))
    usage_with_provider_cost = usage.replace(f'"cost_usd":"{amount}"', f'"cost_usd":"1","provider_cost_usd":"{amount}"')
    with pytest.raises(FormatError, match="cost_usd"):
        dragoman.decode(HELLO_JSON.replace(b'"metadata":{}', b'"metadata":' + usage_with_provider_cost.encode()))


# --- fields of newer versions ----------------------------------------------------------------------------------------


NEWER = (
    b'{"id":"01HZ001","session_id":"sess_42","role":"critic","content":['
    b'{"type":"hologram","frames": [1e2, 1.0],"\\u00e9": null},'
    b'{"type":"text","text":"hi","mood":{ "is" : "good" }},'
    b'{"type":"tool_result","tool_use_id":"tu_1","content":[{"type":"smell"}]}],'
    b'"metadata":{"usage":{"input_tokens":1,"output_tokens":2,"cost_usd":"0","pricing_version":"v","latency_ms":1,'
    b'"joules":1E1},"weather":["rain" ]},'
    b'"created_at":"2026-05-08T12:30:15.250000Z","schema_version":1,"thread":{"a" : 1}}'
)


def test_unknown_parts_preserve_their_bytes(caplog: pytest.LogCaptureFixture) -> None:
    message = dragoman.decode(NEWER)
    assert isinstance(message.content[0], UnknownBlock)
    assert message.content[0].type == "hologram"
    assert message.content[1].text == "hi"
    assert message.role == "critic"
    assert dragoman.encode(message) == NEWER
    assert dragoman.decode(dragoman.encode(message)) == message
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 2  # one per decode


def test_one_warning_names_every_unknown_location(caplog: pytest.LogCaptureFixture) -> None:
    dragoman.decode(NEWER)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message_id == "01HZ001"
    assert record.session_id == "sess_42"
    assert record.places == (
        "$.role (role 'critic')",
        "$.content[0] (block of type 'hologram')",
        "$.content[1].mood",
        "$.content[2].content[0] (block of type 'smell')",
        "$.metadata.usage.joules",
        "$.metadata.weather",
        "$.thread",
    )


def test_known_parts_are_edited_and_unknown_parts_preserved() -> None:
    message = dragoman.decode(NEWER)
    text = message.content[1].replace(text="changed")
    data = dragoman.encode(message.replace(content=(message.content[0], text)))
    assert b'{"type":"hologram","frames": [1e2, 1.0],"\\u00e9": null}' in data
    assert b'{"type":"text","text":"changed","mood":{ "is" : "good" }}' in data
    assert data.endswith(b'"thread":{"a" : 1}}')


def test_edit_replaces_an_unreadable_field() -> None:
    newer = HELLO_JSON.replace(b'"metadata":{}', b'"metadata":{"status":"paused"}').replace(
        b'version":1', b'version":2'
    )
    message = dragoman.decode(newer)
    assert dragoman.encode(message) == newer
    edited = message.replace(metadata=message.metadata.replace(status=MessageStatus.ERROR))
    assert b'"metadata":{"status":"error"}' in dragoman.encode(edited)


def test_unknown_fields_preserve_order_and_hash() -> None:
    newer = HELLO_JSON.replace(b'ULID?"}', b'ULID?","zeta":1,"alpha":2}')
    assert dragoman.encode(dragoman.decode(newer)) == newer
    assert dragoman.message_hash(dragoman.decode(newer)) == hashlib.sha256(newer).hexdigest()


def test_unknown_fields_cannot_corrupt_surrounding_json() -> None:
    with pytest.raises(msgspec.DecodeError):
        UnknownFields({"x": b"}{"})
    forged = TextBlock("x", unknown_fields=UnknownFields({"text": b'"evil"', "type": b'"image"'}))
    assert dragoman.decode(dragoman.encode(HELLO.replace(content=(forged,)))).content[0].text == "x"


def test_many_unknown_parts_are_one_short_log_line(caplog: pytest.LogCaptureFixture) -> None:
    flood = b",".join([b'{"type":"x\\nERROR forged"}'] * 5_000)
    message = dragoman.decode(HELLO_JSON.replace(b'"content":[', b'"content":[' + flood + b","))
    assert len(message.content) == 5_001
    (record,) = caplog.records
    assert "and 4980 more" in record.getMessage()
    assert len(record.getMessage()) < 3_000
    assert "\n" not in record.getMessage()


def test_single_attachment_is_an_object_and_several_are_a_list() -> None:
    first, second = Attachment("b", "p", "image/png"), Attachment("b", "q", "image/png")
    for value, shape in [
        (first, b'{"bucket":"b","path":"p","mime_type":"image/png"}'),
        ([first], b'{"bucket":"b","path":"p","mime_type":"image/png"}'),
        ([first, second], b'[{"bucket":"b","path":"p","mime_type":"image/png"},{"bucket":"b","path":"q",'),
    ]:
        metadata = MessageMetadata(user_message_attachments=value)
        data = dragoman.encode(HELLO.replace(metadata=metadata))
        assert b'"user_message_attachments":' + shape in data
        assert dragoman.decode(data).metadata == metadata
        newer = data.replace(b'"path":"p"', b'"path":"p","size":1')
        assert dragoman.encode(dragoman.decode(newer)).count(b'"size":1') == 1
    assert MessageMetadata(user_message_attachments=first).attachments == (first,)
    assert MessageMetadata(user_message_attachments=[]).attachments == ()


def test_values_and_errors_can_be_pickled_and_copied() -> None:
    for message in (HELLO, dragoman.decode(NEWER)):
        assert pickle.loads(pickle.dumps(message)) == message
        assert copy.deepcopy(message) == copy.copy(message) == message
    for error in (
        JsonError("x", where="y", code="too_deep"),
        NewerVersionError("x", data=b"1", version=9),
        ToolSchemaError("t", ("a", "b")),
        RemoteFaultError(dragoman.Fault(code="c", message="m")),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.code, vars(again)) == (str(error), error.code, vars(error))


def test_known_messages_are_read_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    dragoman.decode(HELLO_JSON)
    dragoman.decode(json.dumps(json.loads(HELLO_JSON), indent=4))
    assert caplog.records == []


def test_role_of_newer_version_is_preserved_but_cannot_be_created() -> None:
    assert dragoman.decode(HELLO_JSON.replace(b'"user"', b'"critic"')).role == "critic"
    with pytest.raises(ValueError, match="critic"):
        Role("critic")


# --- invalid known fields --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("find", "put", "where"),
    [
        (b'"text":"What\'s a ULID?"', b'"text":5', "$.content[0].text"),
        (b',"text":"What\'s a ULID?"', b"", "$.content[0]"),
        (b'"type":"text",', b"", "$.content[0].type"),
        (b'"type":"text",', b'"type":5,', "$.content[0].type"),
        (b'{"type":"text","text":"What\'s a ULID?"}', b"7", "$.content[0]"),
        (b'[{"type":"text","text":"What\'s a ULID?"}]', b'"hi"', "$.content"),
        (b'"role":"user"', b'"role":7', "$.role"),
        (b'"metadata":{}', b'"metadata":{"status":"done"}', "$.metadata.status"),
        (b'"metadata":{}', b'"metadata":{"usage":{"input_tokens":"8"}}', "$.metadata.usage.input_tokens"),
        (b'"metadata":{}', b'"metadata":[]', "$.metadata"),
        (b'"id":"01HZ001",', b"", "$"),
        (b'"schema_version":1', b'"schema_version":"1"', "$.schema_version"),
        (b'"schema_version":1', b'"schema_version":true', "$.schema_version"),
        (
            b'"type":"text","text":"What\'s a ULID?"',
            b'"type":"image","media_type":"image/png","source":{"kind":"fax","data":""}',
            "$.content[0].source.kind",
        ),
    ],
)
def test_malformed_known_part_raises_with_its_location(find: bytes, put: bytes, where: str) -> None:
    assert find in HELLO_JSON
    with pytest.raises(FormatError) as caught:
        dragoman.decode(HELLO_JSON.replace(find, put))
    assert caught.value.where == where
    assert caught.value.code == "invalid_message"


@pytest.mark.parametrize("text", [b"", b"[]", b'"hi"', b"null", b"7", HELLO_JSON[:-1], HELLO_JSON + b"x", b"\xff"])
def test_input_that_is_not_a_message_is_rejected(text: bytes) -> None:
    with pytest.raises(InputError):
        dragoman.decode(text)


def test_duplicate_keys_are_rejected_at_every_level() -> None:
    for find, put in [
        (b'"id":"01HZ001"', b'"id":"01HZ001","id":"01HZ002"'),
        (b'"text":"What', b'"text":"x","text":"What'),
        (b'"metadata":{}', b'"metadata":{"extra":{"a":1,"a":2}}'),
        (b'"metadata":{}', b'"metadata":{"weather":{"a":1,"a":2}}'),
    ]:
        with pytest.raises(JsonError) as caught:
            dragoman.decode(HELLO_JSON.replace(find, put))
        assert caught.value.code == "duplicate_key"


@given(st.data())
def test_decode_raises_only_input_errors(data: st.DataObject) -> None:
    text = bytearray(data.draw(st.sampled_from([HELLO_JSON, NEWER])))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=3))
    try:
        dragoman.decode(bytes(text))
    except InputError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "make",
    [
        lambda: TextBlock("\ud800"),
        lambda: ImageSource("base64", "\ud800"),
        lambda: ToolUseBlock("tu_1", "f", {"a": ["\ud800"]}),
        lambda: ToolUseBlock("tu_1", "f", {"\udc00": 1}),
        lambda: MessageMetadata(run_id="\ud800"),
        lambda: HELLO.replace(id="\ud800"),
    ],
    ids=["text", "source", "value", "key", "metadata", "id"],
)
def test_lone_surrogate_is_rejected_at_construction(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        make()


def test_lone_surrogate_is_rejected_at_encoding() -> None:
    invalid = msgspec.structs.replace(TextBlock("x"), text="\ud800")
    unknown = UnknownBlock(RawJson(b'{"type":"q"}'))
    for content in ((invalid,), (unknown, invalid)):
        with pytest.raises(FormatError) as caught:
            dragoman.encode(HELLO.replace(content=content))
        assert caught.value.code == "invalid_unicode"


def test_every_naughty_string_round_trips(suites: Path) -> None:
    strings = json.loads((suites / "blns.json").read_text("utf-8"))
    assert len(strings) == 515
    for text in strings:
        message = HELLO.replace(content=(TextBlock(text), ToolUseBlock("tu_1", text, {"x": [text]})))
        again = dragoman.decode(dragoman.encode(message))
        assert again.content[0].text == text
        assert again.content[1].input == {"x": [text]}
        assert dragoman.encode(again) == dragoman.encode(message)


# --- values created in code ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": float("nan")}, "nan is not JSON"),
        ({"a": [float("inf")]}, "inf is not JSON"),
        ({1: 2}, "the key 1"),
        ({"a": [{None: 2}]}, "the key None"),
        ({"a": {1, 2}}, "set is not JSON"),
        ({"a": NOW}, "datetime is not JSON"),
    ],
)
def test_value_that_json_cannot_represent_is_rejected(value: dict, reason: str) -> None:
    for make in (
        lambda: ToolUseBlock("tu_1", "f", value),
        lambda: OpaqueBlock("anthropic", value),
        lambda: MessageMetadata(extra=value),
        lambda: ToolUseBlock("tu_1", "f", {}).replace(input=value),
    ):
        with pytest.raises(ValueError, match=reason):
            make()


def test_integers_of_any_size_are_exact() -> None:
    message = HELLO.replace(content=(ToolUseBlock("tu_1", "f", {"a": [2**64 + 1, -(10**40), 9007199254740993]}),))
    for data in (dragoman.encode(message), json.dumps(json.loads(dragoman.encode(message))).encode()):
        assert dragoman.decode(data) == message


def test_input_depth_is_limited_to_200_levels() -> None:
    def nest(levels: int) -> dict:
        value: dict = {}
        for _ in range(levels - 1):
            value = {"a": value}
        return value

    block = ToolUseBlock("tu_1", "f", nest(200))
    message = HELLO.replace(content=(block,), unknown_fields=UnknownFields({"x": b"1"}))
    assert dragoman.decode(dragoman.encode(message)) == message
    with pytest.raises(ValueError, match="deeper than 200"):
        ToolUseBlock("tu_1", "f", nest(201))


def test_role_and_status_texts_become_members() -> None:
    assert HELLO.replace(role="assistant").role is Role.ASSISTANT
    assert MessageMetadata(status="error").status is MessageStatus.ERROR
    assert Role.unknown("assistant") is Role.ASSISTANT
    for make in (lambda: HELLO.replace(role="critic"), lambda: MessageMetadata(status="done")):
        with pytest.raises(ValueError, match="is not a valid"):
            make()


def test_numbers_that_do_not_round_trip_are_rejected() -> None:
    assert RoutingDecisionRecord(RoutingMode.PATTERN, "m", "r", confidence=1).confidence == 1.0
    for make in (
        lambda: MessageMetadata(latency_ms=float("inf")),
        lambda: TokenUsage(input_tokens=-1, output_tokens=0),
        lambda: TokenUsage(input_tokens=1, output_tokens=0, server_tool_calls={"x": -1}),
        lambda: ToolUseBlock("tu_1", "f", collections.OrderedDict(a=1)),
        lambda: ToolUseBlock("tu_1", "f", "abc"),
        lambda: ToolUseBlock("tu_1", "f", {"a": 10**5000}),
    ):
        with pytest.raises(ValueError, match=r"latency_ms|count|input"):
            make()


def test_content_accepts_only_blocks() -> None:
    for content in ("hi", [1], [{"type": "text", "text": "hi"}], [HELLO]):
        with pytest.raises(ValueError, match="is not a block"):
            HELLO.replace(content=content)


def test_provider_raw_that_json_cannot_represent_is_rejected() -> None:
    with pytest.raises(ValueError, match="provider_raw"):
        TextBlock("x", provider_raw={"a": float("nan")})


def test_negative_counts_are_rejected() -> None:
    usage = b'{"input_tokens":-1,"output_tokens":1,"cost_usd":"0","pricing_version":"v","latency_ms":1}'
    with pytest.raises(FormatError, match="input_tokens"):
        dragoman.decode(HELLO_JSON.replace(b'"metadata":{}', b'"metadata":{"usage":' + usage + b"}"))


def test_values_are_frozen_and_lists_become_tuples() -> None:
    message = HELLO.replace(content=[TextBlock("a"), ImageBlock(ImageSource("url", "x"), "image/png")])
    assert isinstance(message.content, tuple)
    assert isinstance(
        RoutingDecisionRecord(RoutingMode.RULE, "m", "r", alternatives_considered=["x"]).alternatives_considered, tuple
    )
    with pytest.raises(AttributeError):
        message.role = Role.TOOL  # type: ignore[misc]
    assert {message: 1}[message] == 1


@pytest.mark.parametrize("confidence", [-0.1, 1.1, float("nan")])
def test_confidence_out_of_range_is_rejected(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        RoutingDecisionRecord(RoutingMode.PATTERN, "m", "r", confidence=confidence)
