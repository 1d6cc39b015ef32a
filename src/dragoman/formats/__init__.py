"""Formats: what whole conversations are written down in, and how each is read, written and recognised.

    readable(), writable()                          their names
    detect(values, …) -> Detected                   which one it is, and why
    read(format, pieces, session_id) -> Request     one conversation
    write(format, request) -> Text                  its bytes, and what they cannot say
    write_like(format, request, original) -> value  in the shape of the value that it was read from
    restore_request(messages) -> Request                   messages of ours, as a conversation

The formats are the canonical one, envelopes, entries, every dialect, every transcript, and two pages for people, which
are only written. They are found, not listed, where they are found elsewhere. A conversation is a ``Request``, because
that is the most that any of them says: messages, and beside them the model, tools and options. The one rule: what a
format has no place for is named as a loss, or kept where the same way back finds it.
"""

from dragoman.formats.detection import Detection, detect, is_single_message
from dragoman.formats.reader import Fragment, read
from dragoman.formats.registry import CANONICAL, PAGES, readable, writable
from dragoman.formats.request_metadata import restore_request
from dragoman.formats.writer import Text, write, write_footer, write_header, write_like, write_message

__all__ = [
    "CANONICAL",
    "PAGES",
    "Detection",
    "Fragment",
    "Text",
    "detect",
    "is_single_message",
    "read",
    "readable",
    "restore_request",
    "writable",
    "write",
    "write_footer",
    "write_header",
    "write_like",
    "write_message",
]
