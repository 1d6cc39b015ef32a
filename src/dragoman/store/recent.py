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

_MOST_CHARACTERS: Final = 32 * 1024 * 1024  # of JSON; a character takes one to four bytes in memory
_SURROUNDINGS: Final = 700  # that a message takes beside its texts


class Recent:
    """The messages, the oldest of which make way for new ones."""

    def __init__(self, most: int = _MOST_CHARACTERS) -> None:
        self._most = most
        self._kept: dict[tuple[str, int], tuple[bytes, Message, int]] = {}
        self._of_session: dict[str, int] = {}  # how many
        self._size = 0

    def has_some_of(self, session_id: str) -> bool:
        """Whether it is worth asking for messages of a session."""
        return session_id in self._of_session

    def get(self, session_id: str, seq: int, hash_: bytes) -> Message | None:
        """The message at a place, if its row still has this hash."""
        kept = self._kept.get((session_id, seq))
        return kept[1] if kept is not None and kept[0] == hash_ else None

    def put(self, session_id: str, seq: int, hash_: bytes, message: Message, characters: int) -> None:
        """Keep the message of a row that is as it was written, and has so many characters."""
        size = characters + _SURROUNDINGS
        place = session_id, seq
        if place in self._kept:
            self._drop(place)
        if size > self._most // 8 or not _is_fixed(message):
            return
        self._kept[place] = (hash_, message, size)
        self._of_session[session_id] = self._of_session.get(session_id, 0) + 1
        self._size += size
        while self._size > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, place: tuple[str, int]) -> None:
        session_id, _ = place
        _, _, size = self._kept.pop(place)
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
