"""Formats of whole conversations: reading, writing and detection.

    readable(), writable()                            names of the formats
    detect(values) -> Detection                       the format of some values, and why
    read(format, fragments, session_id) -> Request    read one conversation
    write(format, request) -> Text                    its bytes and losses
    write_like(format, request, original) -> value    in the shape of the value that it was read from
    restore_request(messages) -> Request              the request that canonical messages contain

The formats are the canonical one, envelopes, entries, every dialect, every transcript, and two write-only pages. A
conversation is a ``Request``, because that is the most that a format can contain: messages, model, tools and options.

Invariant: data without a place in a format is reported as a loss, or stored where reading restores it.
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
