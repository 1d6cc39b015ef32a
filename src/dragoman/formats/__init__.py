"""Formats: what whole conversations are written down in, and how each is read, written and recognised.

    readable(), writable()                          their names
    detect(values, …) -> Detected                   which one it is, and why
    read(format, pieces, session_id) -> Request     one conversation
    write(format, request) -> Text                  its bytes, and what they cannot say
    write_like(format, request, original) -> value  in the shape of the value that it was read from
    asked(messages) -> Request                      messages of ours, as a conversation

The formats are the canonical one, envelopes, entries, every dialect, every transcript, and two pages for people, which
are only written. They are found, not listed, where they are found elsewhere. A conversation is a ``Request``, because
that is the most that any of them says: messages, and beside them the model, tools and options. The one rule: what a
format has no place for is named as a loss, or kept where the same way back finds it.
"""

from dragoman.formats.detecting import Detected, detect, layout_of
from dragoman.formats.heads import with_head as asked
from dragoman.formats.reading import Piece, read
from dragoman.formats.registry import CANONICAL, PAGES, readable, writable
from dragoman.formats.writing import Text, begin, end, write, write_like, write_message

__all__ = [
    "CANONICAL",
    "PAGES",
    "Detected",
    "Piece",
    "Text",
    "asked",
    "begin",
    "detect",
    "end",
    "layout_of",
    "read",
    "readable",
    "writable",
    "write",
    "write_like",
    "write_message",
]
