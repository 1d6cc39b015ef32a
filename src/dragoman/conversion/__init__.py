"""Convert files of conversations of any size from one format to another.

    open_source(path, format, …) -> Source        the conversations of a file
    convert(source, out, to, …) -> Summary        convert all of them
    Target(path)                                  a file that is renamed into place when it is complete

A file is JSON Lines or one JSON document, optionally compressed with gzip. Lines are read one at a time; a large file
is converted by one process per core, in order. Invariant: a target file is never incomplete.
"""

from dragoman.conversion.pipeline import LossCount, Summary, convert, derive_session_id, read_source
from dragoman.conversion.source import MAX_LINE_MB, Conversation, Source, open_source
from dragoman.conversion.target import Target

__all__ = [
    "MAX_LINE_MB",
    "Conversation",
    "LossCount",
    "Source",
    "Summary",
    "Target",
    "convert",
    "derive_session_id",
    "open_source",
    "read_source",
]
