"""Converting: files of conversations from one format to another, whatever their size.

    opened(path, name, …) -> Source            what is in a file, and one conversation of it after the other
    convert(source, target, to, …) -> Summary  all of it in another format
    Target(path)                               a file that gets its name when it is whole

A file is JSON Lines, or one JSON document; either may be compressed with gzip. Lines are read one at a time, and a long
file is worked on by as many processes as there are cores, in order. The one rule: nothing that has the name of a target
is half of one.
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
