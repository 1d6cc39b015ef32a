"""Map messages to places in a file, and our ids to the ids in the file.

Readers assign our ids to messages and tool calls. Reports about a file need the ids and places of the file:
``SourceMap`` maps between them for one conversation.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from typing import Any, Final

from dragoman.conversion.source import Conversation, Source
from dragoman.errors import DragomanError, FormatError
from dragoman.exchange import Request
from dragoman.formats import CANONICAL
from dragoman.formats.reader import read_value
from dragoman.formats.registry import dialect, has_messages, list_key
from dragoman.jsontext import OWN, read_json
from dragoman.message import InvalidToolUseBlock, Message, ToolResultBlock, ToolUseBlock
from dragoman.wire.residue import get_notes

_INDEX: Final = re.compile(r"\$\[(\d+)\](.*)", re.DOTALL)
_QUOTED: Final = re.compile(r"'([^']*)'")
_MAX_READS: Final = 500  # reads of partial conversations to locate a message
_STRING: Final = re.compile(rb'"([^"\\]*)"')


class SourceMap:
    """Places and ids of one conversation in its file."""

    def __init__(self, source: Source, conversation: Conversation, request: Request) -> None:
        self.source = source
        self.conversation = conversation
        self._messages = {message.id: index for index, message in enumerate(request.messages)}
        self.request = request
        self._counts: dict[int, int] = {}  # number of messages by number of items

    def find(self, where: str) -> tuple[str, str]:
        """Return the line or item of a path in the messages that were read, and the path in it."""
        source, fragments = self.source, self.conversation
        match = _INDEX.fullmatch(where)
        if match is None:
            return self._format_place(fragments[0].number), where
        index = int(match[1])
        if source.format == CANONICAL:
            if source.by_message:
                return self._format_place(fragments[index].number), f"${match[2]}"
            return self._format_place(fragments[0].number), where
        try:
            item = self._find_item(index)
        except DragomanError:  # a part of the conversation cannot be read alone
            return self._format_place(fragments[0].number), ""
        if source.by_message:
            return self._format_place(fragments[item or 0].number), ""
        return self._format_place(fragments[0].number), self._item_path(item, index)

    def find_message(self, message_id: str) -> tuple[str, str]:
        """Return the same for a message id, if it was read."""
        index = self._messages.get(message_id)
        place, where = self.find("" if index is None else f"$[{index}]")
        return place, "" if where == "$" else where

    def get_file_id(self, message_id: str) -> str:
        """Return the id of a message in the file; empty if it has none."""
        if self.source.format == CANONICAL:
            return message_id
        index = self._messages.get(message_id)
        file_id = None if index is None else self.request.messages[index].metadata.message_id
        return file_id or (message_id if message_id.encode() in self._strings else "")

    def replace_call_ids(self, text: str) -> str:
        """Return a text about the conversation with the call ids of the file."""
        ids = self._call_ids
        return _QUOTED.sub(lambda match: repr(ids[match[1]]) if match[1] in ids else match[0], text)

    @functools.cached_property
    def _call_ids(self) -> dict[str, str]:
        ids: dict[str, str] = {}
        for message in self.request.messages:
            ids.update(_file_call_ids(message, self.source.format))
        return ids

    @functools.cached_property
    def _strings(self) -> frozenset[bytes]:
        return frozenset(string for fragment in self.conversation for string in _STRING.findall(fragment.data))

    @functools.cached_property
    def _value(self) -> Any:
        values = [read_json(fragment.data, OWN) for fragment in self.conversation]
        return values if self.source.by_message else values[0]

    @functools.cached_property
    def _list_path(self) -> tuple[str, ...]:
        """The keys of the message list in the value."""
        if isinstance(self._value, list) or dialect(self.source.format) is None:
            return ()
        key = list_key(self.source.format)
        path = (key,) if has_messages(self.source.format, self._value) else ("request", key)
        return path if key in functools.reduce(lambda value, name: value[name], path[:-1], self._value) else ()

    @functools.cached_property
    def _items(self) -> list[Any]:
        items = functools.reduce(lambda value, key: value[key], self._list_path, self._value)
        return items if isinstance(items, list) else []

    def _find_item(self, index: int) -> int | None:
        """Return the list item that a message was read from; ``None`` if it is outside the list."""
        if self._ends is not None:
            item = bisect.bisect_right(self._ends, index) - 1
        else:
            item = bisect.bisect_right(range(len(self._items) + 1), index, key=self._count_messages) - 1
        return item if 0 <= item < len(self._items) else None

    @functools.cached_property
    def _ends(self) -> list[int] | None:
        """The number of messages up to each item, if every item can be read alone."""
        try:
            outside = self._read_message_count([])
            ends = [outside, *(self._read_message_count([item]) - outside for item in self._items)]
        except DragomanError:
            return None
        ends = list(itertools.accumulate(ends))
        total = len(self.request.messages) - self._has_response
        return ends if ends[-1] == total else None  # fewer if a reader joins items

    def _count_messages(self, count: int) -> int:
        """Return the number of messages in the first items."""
        if count not in self._counts:
            if len(self._counts) >= _MAX_READS:
                raise FormatError("too many places to search")
            self._counts[count] = self._read_message_count(self._items[:count])
        return self._counts[count]

    def _read_message_count(self, items: list[Any]) -> int:
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
            return 0  # some readers reject an empty list

    @property
    def _has_response(self) -> bool:
        return len(self._list_path) > 1 and isinstance(self._value.get("response"), dict)

    def _item_path(self, item: int | None, index: int) -> str:
        if item is not None:
            return "".join(["$", *(f".{key}" for key in self._list_path), f"[{item}]"])
        is_answer = self._has_response and index == len(self.request.messages) - 1
        return "$.response" if is_answer else "$"

    def _format_place(self, number: int) -> str:
        match self.source.unit:
            case "line":
                return f"{self.source.name}:{number}"
            case "item":
                return f"{self.source.name}[{number}]"
            case _:
                return self.source.name


def _file_call_ids(message: Message, name: str) -> dict[str, str]:
    """Return the call ids of the file by our ids."""
    ids: dict[str, str] = {}
    for block in message.content:
        file_id = get_notes(getattr(block, "provider_raw", None), name).get("id")
        if not isinstance(file_id, str):
            continue
        if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
            ids[block.id] = file_id
        elif isinstance(block, ToolResultBlock):
            ids[block.tool_use_id] = file_id
    return ids
