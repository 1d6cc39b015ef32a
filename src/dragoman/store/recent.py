"""Messages that were read lately, so that a history that is read at every turn is decoded once.

A message is kept under its place, with the hash of its row, which covers everything that the row says and where it
stands. Who asks brings the hash that the table gives for that place now, so what another process has changed or deleted
meanwhile is never given out, nor what a damaged index takes for the row of another place. What a caller could change (a
message with a dictionary in it) is not kept. The one rule: a hit is exactly what decoding the row again would give.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.message import Message

_MAX_CHARACTERS: Final = 32 * 1024 * 1024  # of JSON; a character takes one to four bytes in memory
_OVERHEAD: Final = 700  # that a message takes beside its texts


class MessageCache:
    """The messages, the oldest of which make way for new ones."""

    def __init__(self, max_size: int = _MAX_CHARACTERS) -> None:
        self._max_size = max_size
        self._entries: dict[tuple[str, int], tuple[bytes, Message, int]] = {}
        self._session_counts: dict[str, int] = {}  # how many
        self._size = 0

    def has_session(self, session_id: str) -> bool:
        """Whether it is worth asking for messages of a session."""
        return session_id in self._session_counts

    def get(self, session_id: str, seq: int, hash_: bytes) -> Message | None:
        """The message at a place, if its row still has this hash."""
        entry = self._entries.get((session_id, seq))
        return entry[1] if entry is not None and entry[0] == hash_ else None

    def put(self, session_id: str, seq: int, hash_: bytes, message: Message, characters: int) -> None:
        """Keep the message of a row that is as it was written, and has so many characters."""
        size = characters + _OVERHEAD
        key = session_id, seq
        if key in self._entries:
            self._drop(key)
        if size > self._max_size // 8 or not _is_immutable(message):
            return
        self._entries[key] = (hash_, message, size)
        self._session_counts[session_id] = self._session_counts.get(session_id, 0) + 1
        self._size += size
        while self._size > self._max_size:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: tuple[str, int]) -> None:
        session_id, _ = key
        _, _, size = self._entries.pop(key)
        self._size -= size
        self._session_counts[session_id] -= 1
        if not self._session_counts[session_id]:
            del self._session_counts[session_id]

    def clear(self) -> None:
        """Forget everything: somebody has asked for something to be gone."""
        self._entries.clear()
        self._session_counts.clear()
        self._size = 0


def _is_immutable(message: Message) -> bool:
    """Whether nobody can change anything in it."""
    return _is_immutable_value(message.content) and _is_immutable_value(message.metadata)


def _is_immutable_value(value: Any) -> bool:
    if isinstance(value, msgspec.Struct):
        return all(_is_immutable_value(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, tuple):
        return all(map(_is_immutable_value, value))
    return not isinstance(value, dict | list | bytearray | set)
