"""One event in is one event out, whatever stands in it and whoever reads the stream."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.server.runs.stream_encoder import KEEP_ALIVE, encode_event, encode_frame
from dragoman.wire.frames import SseSplitter
from tests.conftest import scale
from tests.server.runs.conftest import parse_frames

NASTY = st.sampled_from(
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
WORDS = st.lists(NASTY | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=5).map("".join)
VALUES = WORDS | st.integers(-(2**63), 2**63) | st.booleans() | st.lists(WORDS, max_size=2)
EVENTS = st.dictionaries(WORDS.filter(lambda name: name != "type"), VALUES, max_size=3).map(
    lambda fields: {"type": "CUSTOM", **fields}
)


def parse_by_specification(stream: str) -> list[tuple[str, str, str]]:
    """The events of a stream as a browser reads it: id, type and data."""
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


def test_a_frame_has_a_number_a_name_and_one_line_of_data() -> None:
    assert encode_frame(7, encode_event({"type": "RUN_ERROR", "message": "a\nb\u2028c"})) == (
        b'id: 7\nevent: RUN_ERROR\ndata: {"type":"RUN_ERROR","message":"a\\nb\\u2028c"}\n\n'
    )


def parse_lines(stream: str) -> list[dict[str, Any]]:
    """The events of a stream as a reader of lines takes it that knows every line end there is."""
    return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]


@given(st.lists(EVENTS, max_size=3))
@settings(max_examples=scale(30, 100), deadline=None)
def test_one_event_in_is_one_event_out(events: list[dict[str, Any]]) -> None:
    stream = (
        b": \n\n" + b"".join(encode_frame(at, encode_event(event)) for at, event in enumerate(events, 1)) + KEEP_ALIVE
    ).decode()
    told = parse_by_specification(stream)
    assert [(int(number), kind, json.loads(data)) for number, kind, data in told] == [
        (at, "CUSTOM", event) for at, event in enumerate(events, 1)
    ]
    assert [json.loads(one["data"]) for one in parse_frames(stream)] == events
    assert parse_lines(stream) == events
    assert [(one.event, json.loads(one.data)) for one in SseSplitter().feed(stream.encode())] == [
        ("CUSTOM", event) for event in events
    ]
