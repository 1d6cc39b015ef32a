"""A damaged stream as a case: its bytes, and what has to become of them however they are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec

from dragoman.event import StreamEvent, fold
from dragoman.exchange import Reply
from dragoman.message import InvalidToolUseBlock, TextBlock, ThinkingBlock, ToolUseBlock


class Case(msgspec.Struct, frozen=True):
    """What a stream is, and what it has to become."""

    name: str
    data: bytes
    code: str | None  # of the fault; None: it is complete
    text: str = ""  # what was said, and kept
    kept: dict[str, str] = {}  # of what came, in provider_raw
    framing: str | None = None


def splits(data: bytes) -> Iterator[list[bytes]]:
    """The same bytes whole, one by one, and in pieces of any length, the same ones each time."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    draw = random.Random(data)
    for longest in (3, 17, 64):
        pieces, at = [], 0
        while at < len(data):
            step = draw.randint(1, longest)
            pieces.append(data[at : at + step])
            at += step
        yield pieces


def events_of(dialect: ModuleType, pieces: list[bytes], framing: str | None = None) -> list[StreamEvent]:
    """The events of a stream; and none of them comes when it is fed after its end."""
    reader = dialect.stream_reader(framing)
    events = [event for piece in pieces for event in reader.feed(piece)]
    events.extend(reader.close())
    assert reader.feed(b"data: {}\n\n{}\n") == []
    assert reader.close() == []
    return events


def outcome(dialect: ModuleType, case: Case) -> Reply:
    """The reply that a case folds to, the same for every split."""
    first, *others = [events_of(dialect, pieces, case.framing) for pieces in splits(case.data)]
    assert all(events == first for events in others)
    reply = fold(first)
    written_again(dialect, first, reply)
    return reply


def written_again(dialect: ModuleType, events: list[StreamEvent], reply: Reply) -> None:
    """What has failed, or was found to be unusable, still has when it is written and read once more."""
    writer = dialect.stream_writer()
    data = b"".join([*(writer.feed(event) for event in events), writer.close()])
    again = fold(events_of(dialect, [data]))
    assert (again.fault is None) == (reply.fault is None), (again.fault, reply.fault)
    assert text_of(again) == text_of(reply)
    assert calls_of(again) == calls_of(reply)


def text_of(reply: Reply) -> str:
    """The words, and the reasoning in brackets."""
    return "".join(
        f"[{block.text}]" if isinstance(block, ThinkingBlock) else block.text
        for block in reply.content
        if isinstance(block, TextBlock | ThinkingBlock)
    )


def calls_of(reply: Reply) -> list[Any]:
    """The calls that would be made."""
    return [(block.name, block.input) for block in reply.content if isinstance(block, ToolUseBlock)]


def unusable_in(reply: Reply) -> list[tuple[str, str]]:
    """The calls that cannot be made, with what came in place of their input."""
    return [(block.name, block.input_text) for block in reply.content if isinstance(block, InvalidToolUseBlock)]
