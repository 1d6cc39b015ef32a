"""Write the conversations of a source with some of them changed, in the layout of the source.

    open_output(source, target, stream) -> Output
    Output.add(conversation, change)        a conversation, and its change
    Output.close()                          finish

Invariant: an unchanged conversation keeps its bytes; a changed one keeps the bytes of all unchanged values.
"""

from __future__ import annotations

import json
from typing import IO, Any, Protocol

import msgspec

from dragoman.conversion.source import Conversation, Source
from dragoman.conversion.target import Target
from dragoman.formats.layout import rewrite, rewrite_items


class Change(msgspec.Struct, frozen=True):
    """The output of a writer for a conversation before and after a change: a value, or a list with one per message."""

    before: Any
    after: Any


class Output(Protocol):
    """Receives conversations in order."""

    def add(self, conversation: Conversation, change: Change | None) -> None:
        """Add a conversation."""

    def close(self) -> None:
        """Finish the output."""


def open_output(source: Source, target: Target | None, stream: IO[bytes] | None) -> Output:
    """Return an output with lines for lines and a document for a document, unless the target is a ``.jsonl`` file."""
    if target is None or stream is None:
        return _NullOutput()
    if source.unit == "line":
        return _LineOutput(stream, source, preserves_line_ends=True)
    if ".jsonl" in target.path.suffixes:
        return _LineOutput(stream, source, preserves_line_ends=False)
    return _DocumentOutput(stream, source)


class _NullOutput:
    def add(self, _conversation: Conversation, _change: Change | None) -> None:
        """Ignore the conversation."""

    def close(self) -> None:
        """Do nothing."""


class _LineOutput:
    """One line per fragment. ``preserves_line_ends``: with the line ends and empty lines of the source."""

    def __init__(self, stream: IO[bytes], source: Source, *, preserves_line_ends: bool) -> None:
        self._stream = stream
        self._source = source
        self._preserves_line_ends = preserves_line_ends

    def add(self, conversation: Conversation, change: Change | None) -> None:
        if not self._preserves_line_ends:
            for _, text in _make_texts(self._source, conversation, change):
                self._stream.write(b" ".join(text.splitlines()) + b"\n")
        elif change is None:
            self._stream.writelines(
                part for fragment in conversation for part in (fragment.before, fragment.data, fragment.after)
            )
        else:
            self._add_changed(conversation, _make_texts(self._source, conversation, change))

    def _add_changed(self, conversation: Conversation, texts: list[tuple[int | None, bytes]]) -> None:
        first, last = conversation[0], conversation[-1]
        end = first.after if first.after.endswith(b"\n") else b"\n"
        self._stream.write(first.before)
        for number, (place, text) in enumerate(texts, 1):
            if place and number > 1:
                self._stream.write(conversation[place].before)
            self._stream.write(text + (last.after if number == len(texts) else end))

    def close(self) -> None:
        if self._preserves_line_ends:
            self._stream.write(self._source.tail())


class _DocumentOutput:
    """One JSON document, written when all of its conversations are known."""

    def __init__(self, stream: IO[bytes], source: Source) -> None:
        self._stream = stream
        self._source = source
        self._before: list[Any] = []
        self._after: list[Any] = []

    def add(self, conversation: Conversation, change: Change | None) -> None:
        if change is None:
            values = [json.loads(fragment.data) for fragment in conversation]
            change = Change(values, values) if self._source.by_message else Change(values[0], values[0])
        if self._source.by_message:
            self._before += change.before
            self._after += change.after
        else:
            self._before.append(change.before)
            self._after.append(change.after)

    def close(self) -> None:
        is_single = self._source.unit == "document"
        before, after = (self._before[0], self._after[0]) if is_single else (self._before, self._after)
        self._stream.write(self._source.mark + rewrite(self._source.document, before, after))


def _make_texts(source: Source, conversation: Conversation, change: Change | None) -> list[tuple[int | None, bytes]]:
    texts = [fragment.data for fragment in conversation]
    if change is None:
        return list(enumerate(texts))
    if source.by_message:
        return rewrite_items(texts, change.before, change.after)
    return [(0, rewrite(texts[0], change.before, change.after))]
