"""Where a message stands in a file, and what the file itself calls it.

Readers give messages and tool calls ids of our own. A report about a file is of use only with the ids that are in the
file, and with the place there: ``Places`` maps one to the other for one conversation.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from typing import Any, Final

from dragoman.converting.sources import Conversation, Source
from dragoman.dialects.parts.residue import notes_of
from dragoman.errors import DragomanError, FormatError
from dragoman.exchange import Request
from dragoman.formats import CANONICAL
from dragoman.formats.reading import read_value
from dragoman.formats.registry import dialect, list_key
from dragoman.jsontext import OWN, read_json
from dragoman.message import InvalidToolUseBlock, Message, ToolResultBlock, ToolUseBlock

_INDEX: Final = re.compile(r"\$\[(\d+)\](.*)", re.DOTALL)
_QUOTED: Final = re.compile(r"'([^']*)'")
_MAX_READS: Final = 500  # of parts of a conversation, to find out which of them a message comes from
_WORD: Final = re.compile(rb'"([^"\\]*)"')


class Places:
    """Places and ids of one conversation, as its file has them."""

    def __init__(self, source: Source, conversation: Conversation, request: Request) -> None:
        self.source = source
        self.conversation = conversation
        self._messages = {message.id: index for index, message in enumerate(request.messages)}
        self.request = request
        self._counts: dict[int, int] = {}  # how many messages the first so many items are

    def find(self, where: str) -> tuple[str, str]:
        """The line or item of a place in the messages that were read, and the place in that."""
        source, pieces = self.source, self.conversation
        found = _INDEX.fullmatch(where)
        if found is None:
            return self._named(pieces[0].number), where
        index = int(found[1])
        if source.format == CANONICAL:
            if source.by_message:
                return self._named(pieces[index].number), f"${found[2]}"
            return self._named(pieces[0].number), where
        try:
            item = self._item_of(index)
        except DragomanError:  # a part of the conversation cannot be read without the rest
            return self._named(pieces[0].number), ""
        if source.by_message:
            return self._named(pieces[item or 0].number), ""
        return self._named(pieces[0].number), self._path(item, index)

    def find_message(self, message_id: str) -> tuple[str, str]:
        """The same for a message, if it is one that was read."""
        index = self._messages.get(message_id)
        place, where = self.find("" if index is None else f"$[{index}]")
        return place, "" if where == "$" else where

    def id_of(self, message_id: str) -> str:
        """The id that the file gives a message; empty if it gives none."""
        if self.source.format == CANONICAL:
            return message_id
        index = self._messages.get(message_id)
        named = None if index is None else self.request.messages[index].metadata.message_id
        return named or (message_id if message_id.encode() in self._words else "")

    def spell(self, text: str) -> str:
        """A text about the conversation, with the ids that its file gives to calls."""
        ids = self._call_ids
        return _QUOTED.sub(lambda found: repr(ids[found[1]]) if found[1] in ids else found[0], text)

    @functools.cached_property
    def _call_ids(self) -> dict[str, str]:
        theirs: dict[str, str] = {}
        for message in self.request.messages:
            theirs.update(_call_ids_of(message, self.source.format))
        return theirs

    @functools.cached_property
    def _words(self) -> frozenset[bytes]:
        return frozenset(word for piece in self.conversation for word in _WORD.findall(piece.data))

    @functools.cached_property
    def _value(self) -> Any:
        values = [read_json(piece.data, OWN) for piece in self.conversation]
        return values if self.source.by_message else values[0]

    @functools.cached_property
    def _list_path(self) -> tuple[str, ...]:
        """The keys under which the value has its list of messages."""
        if isinstance(self._value, list) or dialect(self.source.format) is None:
            return ()
        key = list_key(self.source.format)
        return (key,) if key in self._value else ("request", key)

    @functools.cached_property
    def _items(self) -> list[Any]:
        items = functools.reduce(lambda value, key: value[key], self._list_path, self._value)
        return items if isinstance(items, list) else []

    def _item_of(self, index: int) -> int | None:
        """Which item of the list a message was read from; ``None`` if it stands beside the list."""
        if self._ends is not None:
            item = bisect.bisect_right(self._ends, index) - 1
        else:
            item = bisect.bisect_right(range(len(self._items) + 1), index, key=self._count) - 1
        return item if 0 <= item < len(self._items) else None

    @functools.cached_property
    def _ends(self) -> list[int] | None:
        """How many messages there are up to each item, if a reader makes the same of each item alone."""
        try:
            beside = self._read([])
            ends = [beside, *(self._read([item]) - beside for item in self._items)]
        except DragomanError:
            return None
        ends = list(itertools.accumulate(ends))
        total = len(self.request.messages) - self._has_response
        return ends if ends[-1] == total else None  # a reader that joins items makes fewer

    def _count(self, count: int) -> int:
        """How many messages a reader makes of the first items."""
        if count not in self._counts:
            if len(self._counts) >= _MAX_READS:
                raise FormatError("too many places to look for")
            self._counts[count] = self._read(self._items[:count])
        return self._counts[count]

    def _read(self, items: list[Any]) -> int:
        value: Any = items
        for depth in range(len(self._list_path), 0, -1):
            outer = functools.reduce(lambda part, key: part[key], self._list_path[: depth - 1], self._value)
            value = {**outer, self._list_path[depth - 1]: value}
        if self._has_response:
            del value["response"]
        try:
            return len(read_value(self.source.format, value, "").messages)
        except DragomanError:
            if items:
                raise
            return 0  # a list without messages is refused by some readers

    @property
    def _has_response(self) -> bool:
        return len(self._list_path) > 1 and isinstance(self._value.get("response"), dict)

    def _path(self, item: int | None, index: int) -> str:
        if item is not None:
            return "".join(["$", *(f".{key}" for key in self._list_path), f"[{item}]"])
        is_answer = self._has_response and index == len(self.request.messages) - 1
        return "$.response" if is_answer else "$"

    def _named(self, number: int) -> str:
        match self.source.unit:
            case "line":
                return f"{self.source.name}:{number}"
            case "item":
                return f"{self.source.name}[{number}]"
            case _:
                return self.source.name


def _call_ids_of(message: Message, name: str) -> dict[str, str]:
    """The ids that a file gives to calls, by ours."""
    found: dict[str, str] = {}
    for block in message.content:
        noted = notes_of(getattr(block, "provider_raw", None), name).get("id")
        if not isinstance(noted, str):
            continue
        if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
            found[block.id] = noted
        elif isinstance(block, ToolResultBlock):
            found[block.tool_use_id] = noted
    return found
