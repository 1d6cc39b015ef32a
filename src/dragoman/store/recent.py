"""Messages that were read lately, so that a history that is read at every turn is decoded once.

A message is kept under the hash of its row, which covers everything that the row says and where it stands. Who asks
brings the hash that stands in the table now, so what another process has changed or deleted meanwhile is never given
out. What a caller could change (a message with a dictionary in it) is not kept. The one rule: a hit is exactly what
decoding the row again would give.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.message import Message

_MOST_CHARACTERS: Final = 32 * 1024 * 1024  # of JSON; a character takes one to four bytes in memory
_SURROUNDINGS: Final = 700  # that a message takes beside its texts


class Recent:
    """The messages, the oldest of which make way for new ones."""

    def __init__(self, most: int = _MOST_CHARACTERS) -> None:
        self._most = most
        self._kept: dict[bytes, tuple[str, Message, int]] = {}
        self._of_session: dict[str, int] = {}  # how many
        self._size = 0

    def has_some_of(self, session_id: str) -> bool:
        """Whether it is worth asking for messages of a session."""
        return session_id in self._of_session

    def get(self, hash_: bytes) -> Message | None:
        """The message of the row that has this hash."""
        kept = self._kept.get(hash_)
        return kept[1] if kept is not None else None

    def put(self, hash_: bytes, message: Message, characters: int) -> None:
        """Keep a message whose row is as it was written, and has so many characters."""
        size = characters + _SURROUNDINGS
        if size > self._most // 8 or hash_ in self._kept or not _is_fixed(message):
            return
        self._kept[hash_] = (message.session_id, message, size)
        self._of_session[message.session_id] = self._of_session.get(message.session_id, 0) + 1
        self._size += size
        while self._size > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, hash_: bytes) -> None:
        session_id, _, size = self._kept.pop(hash_)
        self._size -= size
        self._of_session[session_id] -= 1
        if not self._of_session[session_id]:
            del self._of_session[session_id]

    def clear(self) -> None:
        """Forget everything: somebody has asked for something to be gone."""
        self._kept.clear()
        self._of_session.clear()
        self._size = 0


def _is_fixed(message: Message) -> bool:
    """Whether nobody can change anything in it."""
    return _is_fixed_value(message.content) and _is_fixed_value(message.metadata)


def _is_fixed_value(value: Any) -> bool:
    if isinstance(value, msgspec.Struct):
        return all(_is_fixed_value(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, tuple):
        return all(map(_is_fixed_value, value))
    return not isinstance(value, dict | list | bytearray | set)
