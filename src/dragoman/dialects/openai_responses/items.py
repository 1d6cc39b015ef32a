"""Partial items of a stream, and the sequence numbers of its events.

The cost of an event does not grow with its item.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from dragoman.dialects.openai_responses.blocks import split_text
from dragoman.errors import JsonError
from dragoman.jsontext import DECODE_ERRORS, OWN, has_lone_surrogate, join_surrogates, read_json
from dragoman.message import ProviderRaw
from dragoman.wire.stream_reader import EventOrderError

EMPTY_PARTS: Final[dict[str, dict[str, Any]]] = {
    "response.output_text.delta": {"type": "output_text", "text": ""},
    "response.refusal.delta": {"type": "refusal", "refusal": ""},
}


class Item:
    """A partial output item: its wire, and what was emitted of it."""

    def __init__(self, place: int, wire: dict[str, Any], index: int) -> None:
        self.place = place
        self.wire = wire
        self.kind = str(wire.get("type", "message"))
        self.indexes = [index]  # block indexes, by part
        self.numbers: dict[int, int] = {}  # type of each part of a message on the wire
        self.started_parts: dict[int, dict[str, Any]] = {}  # the start events of the parts
        self.pieces: dict[int, list[str]] = {}  # emitted text, by part
        self.pending_surrogates: dict[int, str] = {}  # first halves of surrogate pairs
        self.cuts = [0]  # the length of each part of reasoning
        self.closed_parts: set[int] = set()  # parts with an end event
        self.call_id: str | None = None  # our id of a started call
        self.source: str | None = None  # source of the reasoning text: "summary" or "content"
        self.raws: dict[int, ProviderRaw | None] = {}  # emitted residue, by part
        self.detailed_parts: set[int] = set()  # parts with emitted citations and probabilities
        self.is_done = False

    @property
    def parts(self) -> list[Any]:
        """The parts of a message."""
        content = self.wire.get("content") if self.kind == "message" else None
        return content if isinstance(content, list) else []

    def part_number(self, wire: dict[str, Any]) -> int:
        """Return the part of an event. Some servers continue the numbers of the item before, so the order counts."""
        return self.numbers.setdefault(index_or_zero(wire, "content_index"), len(self.numbers))

    def get_text(self, part: int) -> str:
        """Return the emitted text of a part."""
        return "".join(self.pieces.get(part, ()))

    def join_text(self, part: int, text: str) -> str:
        """Return the text with surrogate pairs joined; a high surrogate at its end waits, a lone one is an error."""
        text = self.pending_surrogates.pop(part, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self.pending_surrogates[part], text = text[-1], text[:-1]
        if has_lone_surrogate(text):
            raise ValueError("a lone surrogate in a text")
        return join_surrogates(text)


class SequenceNumbers:
    """The highest sequence number so far, and the gaps below it."""

    def __init__(self) -> None:
        self._highest: int | None = None
        self._first: bytes | None = None  # the first numbered event, until the second arrives
        self._gaps: list[range] = []
        self._is_counting = True

    def is_repeat(self, number: Any, data: bytes) -> bool:
        """Whether the event is a repetition. Some servers send no numbers, or always the same one; then it is not."""
        if type(number) is not int or not self._is_counting:
            return False
        if self._highest is None:
            self._highest, self._first = number, data
            return False
        if number == self._highest and self._first is not None and data != self._first:
            self._is_counting = False
            return False
        if number <= self._highest:
            if any(number in gap for gap in self._gaps):
                raise EventOrderError(f"event {number} came after event {self._highest}")
            return True
        self._first = None
        if number > self._highest + 1:
            self._gaps.append(range(self._highest + 1, number))
        self._highest = number
        return False


def index_or_zero(wire: dict[str, Any], key: str) -> int:
    """Return an index of an event; 0 if it is absent."""
    place = wire.get(key, 0)
    return place if type(place) is int else -1


def item_names(wire: dict[str, Any]) -> set[str]:
    """Return the id and the call id of an item."""
    return {name for key in ("id", "call_id") if isinstance(name := wire.get(key), str)}


def decode_event(data: bytes) -> Any:
    """Return the JSON of an event.

    A surrogate pair may be split between two events, which only the slow decoder accepts.
    """
    try:
        return msgspec.json.decode(data)
    except DECODE_ERRORS:
        if b"\\ud" not in data.lower():
            return None
    try:
        return json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def partial_item(item: Item) -> dict[str, Any]:
    """Return an item that was cut off, in the form of a whole item."""
    if item.kind == "message" and item.pieces:
        return {**item.wire, "content": [_partial_part(item, part) for part in range(len(item.indexes))]}
    if item.kind == "reasoning" and item.source is not None:
        kind = "summary_text" if item.source == "summary" else "reasoning_text"
        return {
            **item.wire,
            item.source: [{"type": kind, "text": text} for text in split_text(item.get_text(0), item.cuts)],
        }
    return item.wire


def _partial_part(item: Item, part: int) -> dict[str, Any]:
    start = item.started_parts.get(part) or EMPTY_PARTS["response.output_text.delta"]
    return {**start, "refusal" if start.get("type") == "refusal" else "text": item.get_text(part)}


def is_same_json(text: Any, other: str) -> bool:
    """Whether two inputs are equal apart from spacing. Some providers send no text for an empty input."""
    if not isinstance(text, str) or text == other:
        return bool(text == other)
    try:
        return bool(read_json(text or "{}", OWN) == read_json(other or "{}", OWN))
    except (JsonError, ValueError):
        return False


def replace_notes(old: ProviderRaw | None, new: ProviderRaw | None) -> ProviderRaw | None:
    """Return the new notes, so that a merge with the old ones leaves nothing of the old ones."""
    return {**dict.fromkeys(old), **(new or {})} if old else new
