"""Tests of SSE frames: each event is one frame, for any content and any reader."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.server.runs.stream_encoder import KEEP_ALIVE, encode_event, encode_frame
from dragoman.wire.frames import SseSplitter
from tests.conftest import scale
from tests.server.runs.conftest import parse_frames

SPECIAL_TEXTS = st.sampled_from(
    [
        "\r",
        "\n",
        "\r\n",
        "\n\n",
        "\0",
        "\u2028",
        "\u2029",
        "\x85",
        "\x0b",
        "\x0c",
        "\x1c",
        "data: ",
        "id: 9",
        "event: x",
        ":",
        "\ufeff",
        "\U0001f600",
    ]
)
TEXTS = st.lists(SPECIAL_TEXTS | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=5).map("".join)
VALUES = TEXTS | st.integers(-(2**63), 2**63) | st.booleans() | st.lists(TEXTS, max_size=2)
EVENTS = st.dictionaries(TEXTS.filter(lambda name: name != "type"), VALUES, max_size=3).map(
    lambda fields: {"type": "CUSTOM", **fields}
)


def parse_by_specification(stream: str) -> list[tuple[str, str, str]]:
    """Return id, type and data of each event, parsed as browsers do."""
    found, fields = [], {"id": "", "event": "message", "data": ""}
    for line in stream.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if not line:
            if fields["data"]:
                found.append((fields["id"], fields["event"], fields["data"].removesuffix("\n")))
            fields = {"id": fields["id"], "event": "message", "data": ""}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = fields["data"] + value + "\n" if name == "data" else value
    return found


def test_frame_has_number_name_and_one_data_line() -> None:
    assert encode_frame(7, encode_event({"type": "RUN_ERROR", "message": "a\nb\u2028c"})) == (
        b'id: 7\nevent: RUN_ERROR\ndata: {"type":"RUN_ERROR","message":"a\\nb\\u2028c"}\n\n'
    )


def parse_lines(stream: str) -> list[dict[str, Any]]:
    """Return the events of a stream, parsed by a reader that splits at every Unicode line end."""
    return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]


@given(st.lists(EVENTS, max_size=3))
@settings(max_examples=scale(30, 100), deadline=None)
def test_each_event_is_parsed_as_one_event(events: list[dict[str, Any]]) -> None:
    stream = (
        b": \n\n"
        + b"".join(encode_frame(number, encode_event(event)) for number, event in enumerate(events, 1))
        + KEEP_ALIVE
    ).decode()
    parsed = parse_by_specification(stream)
    assert [(int(number), kind, json.loads(data)) for number, kind, data in parsed] == [
        (number, "CUSTOM", event) for number, event in enumerate(events, 1)
    ]
    assert [json.loads(frame["data"]) for frame in parse_frames(stream)] == events
    assert parse_lines(stream) == events
    assert [(frame.event, json.loads(frame.data)) for frame in SseSplitter().feed(stream.encode())] == [
        ("CUSTOM", event) for event in events
    ]
