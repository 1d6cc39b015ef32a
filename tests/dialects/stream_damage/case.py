"""A damaged stream as data: its bytes, and an outcome that does not depend on the division into chunks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import msgspec

from dragoman.event import StreamEvent, fold
from dragoman.exchange import Reply
from dragoman.message import InvalidToolUseBlock, TextBlock, ThinkingBlock, ToolUseBlock

ANY = mock.ANY


class Case(msgspec.Struct, frozen=True):
    """The bytes of a stream and the reply that they produce."""

    data: bytes
    code: str | None = None  # of the fault; None for a complete reply
    text: str = ""  # of the reply
    raw: dict[str, Any] = {}  # head, tail, late and error in provider_raw
    invalid_inputs: tuple[str, ...] = ()  # input texts of invalid calls
    calls: tuple[dict[str, Any], ...] = ()  # inputs of valid calls
    fault: dict[str, Any] = {}  # further fields of the fault
    warnings: int | None = None  # None: one warning if data follows the end
    framing: str | None = None
    quirks: tuple[str, ...] = ()


def split(data: bytes) -> Iterator[list[bytes]]:
    """Yield the bytes in one chunk, byte by byte, and in chunks of pseudo-random sizes."""
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


def events_of(
    dialect: ModuleType, pieces: Iterable[bytes], framing: str | None = None, quirks: tuple[str, ...] = ()
) -> list[StreamEvent]:
    """Return the events of a stream. A closed reader returns no events."""
    reader = dialect.stream_reader(framing, quirks)
    events = [event for piece in pieces for event in reader.feed(piece)]
    events.extend(reader.close())
    assert reader.feed(b"data: {}\n\n{}\n") == []
    assert reader.close() == []
    return events


def reply_of(dialect: ModuleType, case: Case) -> Reply:
    """Return the reply of a case whose bytes arrive in one chunk."""
    return fold(events_of(dialect, [case.data], case.framing, case.quirks))


def text_of(reply: Reply) -> str:
    """Return the text, with reasoning in brackets."""
    return "".join(
        f"[{block.text}]" if isinstance(block, ThinkingBlock) else block.text
        for block in reply.content
        if isinstance(block, TextBlock | ThinkingBlock)
    )


def calls_of(reply: Reply) -> list[Any]:
    """Return the names and inputs of the valid calls."""
    return [(block.name, block.input) for block in reply.content if isinstance(block, ToolUseBlock)]


def invalid_calls_of(reply: Reply) -> list[tuple[str, str]]:
    """Return the names and input texts of the invalid calls."""
    return [(block.name, block.input_text) for block in reply.content if isinstance(block, InvalidToolUseBlock)]
