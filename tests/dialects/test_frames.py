"""Tests of the division of a byte stream into frames."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire.frames import (
    SPLITTERS,
    Frame,
    FramingError,
    aws_event_line,
    aws_frame,
    aws_frame_as_json,
    json_line,
    make_splitter,
    sse_frame,
)
from tests import strategies

ENDS = [b"\n", b"\r\n", b"\r"]


def frames_of(framing: str, data: bytes, cuts: list[int] | None = None) -> tuple[list[Frame], bytes]:
    """Feed bytes in pieces and return the frames and the remaining bytes."""
    splitter = make_splitter(framing)
    frames: list[Frame] = []
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or [])})
    for start, end in itertools.pairwise(edges):
        frames += splitter.feed(data[start:end])
    return [*frames, *splitter.close()], splitter.tail


@pytest.mark.parametrize("end", ENDS, ids=["LF", "CRLF", "CR"])
def test_events_are_read_with_any_line_end(end: bytes) -> None:
    lines = [
        b"\xef\xbb\xbfevent: a",
        b": a comment",
        b"data: 1",
        b"data:2",
        b"id: 7",
        b"retry",
        b"",
        b"",
        b"data: 3",
        b"",
        b"",
    ]
    frames, tail = frames_of("sse", end.join(lines))
    assert frames == [Frame(b"1\n2", "a"), Frame(b"3")]
    assert tail == b""


@given(
    st.lists(strategies.plain, max_size=4),
    st.sampled_from(ENDS),
    st.lists(st.integers(0, 10**6), max_size=8),
    st.data(),
)
def test_frames_do_not_depend_on_split_of_bytes(values: list, end: bytes, cuts: list[int], data: st.DataObject) -> None:
    events = b"".join(
        (b"event: x" + end if index % 2 else b": ping" + end) + b"data: " + json_line(value) + end + end
        for index, value in enumerate(values)
    )
    whole = frames_of("sse", events)
    assert frames_of("sse", events, cuts) == whole
    assert frames_of("sse", events, list(range(len(events)))) == whole
    assert [json.loads(frame.data) for frame in whole[0]] == values


@pytest.mark.parametrize(
    "event",
    [
        b"data: 1\n\n",
        b"event: a\ndata: 1\n\n",
        b"event: a\ndata: 1\ndata: 2\n\n",
        b"data: 1\nevent: a\n\n",
        b"data:1\n\n",
        b"data: 1\n\ndata: 2\n\n",
        b"data: 1\r2\n\n",
        b"data: 1\r\n\r\n",
        b"event: a\n\n",
        b": ping\n\n",
        b"data: \n\n",
        b"data: 1\n",
        b"\n\n",
        b"\n",
    ],
)
def test_event_in_one_piece_equals_split_event(event: bytes) -> None:
    data = b"data: 0\n\n" + event * 3 + b"\ndata: 9\n\n"
    size = len(event)
    cuts = [9, 9 + size, 9 + 2 * size, 9 + 3 * size]
    assert frames_of("sse", data, cuts) == frames_of("sse", data) == frames_of("sse", data, list(range(len(data))))


@given(st.lists(strategies.objects, max_size=4), st.lists(st.integers(0, 10**6), max_size=8))
def test_every_framing_round_trips(values: list[dict], cuts: list[int]) -> None:
    written = {
        "sse": b"".join(sse_frame(value, "x") for value in values),
        "ndjson": b"".join(json_line(value) + b"\n" for value in values),
        "json-array": b"[" + b",\r\n".join(json.dumps(value, indent=1).encode() for value in values) + b"]\n",
        "aws-eventstream": b"".join(aws_frame(value, "x") for value in values),
        "aws-eventstream-decoded": b"".join(aws_frame_as_json(value, "x") for value in values),
        "aws-ndjson": b"".join(aws_event_line(value, "x") for value in values),
    }
    assert set(written) == set(SPLITTERS)
    for framing, data in written.items():
        frames, tail = frames_of(framing, data, cuts)
        assert [json.loads(frame.data) for frame in frames] == values
        assert tail == b""


def test_unicode_line_separators_are_escaped() -> None:
    data = sse_frame({"text": "a\u2028b\u2029c\x85d\r\ne"})
    assert data.count(b"\n") == 2
    assert len(data.decode().splitlines()) == 2
    assert json.loads(frames_of("sse", data)[0][0].data) == {"text": "a\u2028b\u2029c\x85d\r\ne"}


@pytest.mark.parametrize("framing", list(SPLITTERS))
def test_cut_leaves_tail_and_no_partial_event(framing: str) -> None:
    value = {"text": "héllo"}
    written = {
        "sse": sse_frame(value),
        "ndjson": json_line(value) + b"\n",
        "json-array": b"[" + json_line(value) + b"]",
        "aws-eventstream": aws_frame(value, "x"),
        "aws-eventstream-decoded": aws_frame_as_json(value, "x"),
        "aws-ndjson": aws_event_line(value, "x"),
    }[framing]
    for cut in range(1, len(written) - 3):
        frames, tail = frames_of(framing, written[:cut])
        assert frames == []
        assert tail or framing == "json-array"


def test_flipped_bit_in_aws_frame_is_detected() -> None:
    good, bad = aws_frame({"a": 1}, "x"), bytearray(aws_frame({"a": 2}, "x"))
    bad[-6] ^= 1
    frames = iter(make_splitter("aws-eventstream").feed(good + bytes(bad)))
    assert json.loads(next(frames).data) == {"a": 1}  # frames before the damage are read
    with pytest.raises(FramingError, match="checksum"):
        next(frames)


def test_unknown_framing_error_lists_framings() -> None:
    with pytest.raises(LookupError, match="sse"):
        make_splitter("morse")


@pytest.mark.parametrize(
    "data",
    [
        b"x[{}]",
        b"[x{}]",
        b'["a"]',
        b"[1]",
        b"[,{}]",
        b"[{} {}]",
        b"[{},,{}]",
        b"[{},]",
        b"[{}x,{}]",
        b"[{}:{}]",
        b"[}]",
    ],
)
def test_invalid_bytes_between_array_items_are_an_error(data: bytes) -> None:
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        splitter = make_splitter("json-array")
        with pytest.raises(FramingError, match="between the items"):
            _ = [frame for piece in pieces for frame in splitter.feed(piece)]


def test_array_items_before_damage_are_read() -> None:
    frames = iter(make_splitter("json-array").feed(b'[{"a":1},[{"b":"]}\\""}] x'))
    assert [next(frames), next(frames)] == [Frame(b'{"a":1}'), Frame(b'[{"b":"]}\\""}]')]
    with pytest.raises(FramingError):
        next(frames)


def test_bytes_after_array_are_not_an_item() -> None:
    for cuts in ([], list(range(30))):
        splitter = make_splitter("json-array")
        data = b'[{"a":1}]\n {"b": 2} x'
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        frames = [frame for start, end in itertools.pairwise(edges) for frame in splitter.feed(data[start:end])]
        assert frames == [Frame(b'{"a":1}')]
        assert (splitter.is_closed, splitter.trailing, splitter.tail) == (True, b'{"b": 2} x', b"")
