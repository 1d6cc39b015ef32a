"""The files that messages name, as they stand beside the messages: found by their paths, whoever names them.

    noted(session, seq, message)                  steps that note the files of a message
    find_attachment_refs(session, owners, prefix)    files that only this session names, and those that others name

The one rule: what a message names is noted when the message is written, and moves, ends and goes with it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import msgspec

from dragoman.message import Message
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.types import Owners

File = tuple[str, str]  # its bucket and its path
_MAX_LENGTHS: Final = (100, 1_024)  # names of buckets and paths; an index takes no text of any length
_PATHS_PER_STATEMENT: Final = 100  # paths that are looked for in one statement


class AttachmentRefs(msgspec.Struct, frozen=True):
    """Files that messages name, by bucket and path."""

    exclusive: frozenset[File]  # in one session, and in no other one
    shared: frozenset[File]  # in other sessions of the user, as far as they are of interest for this one


def attachment_files(message: Message) -> set[File]:
    """The files that a message names. No attachment has a path of other signs, or a longer one."""
    files = {(one.bucket, one.path) for one in message.metadata.attachments}
    return {file for file in files if all(map(_is_valid_name, file, _MAX_LENGTHS))}


def _is_valid_name(text: str, max_length: int) -> bool:
    return 0 < len(text) <= max_length and text.isascii() and text.isprintable()


def insert_attachment_refs(session_id: str, seq: int, message: Message) -> Generator[Statement, Rows, None]:
    """Note the files that a message names."""
    for file in sorted(attachment_files(message)) if message.metadata.user_message_attachments is not None else ():
        yield (
            "INSERT INTO attachment_refs (session_id, seq, bucket, path) VALUES (?, ?, ?, ?)",
            (session_id, seq, *file),
        )


@operation
def find_attachment_refs(session_id: str, owners: Owners, prefix: str) -> Generator[Statement, Rows, AttachmentRefs]:
    """The files that a session names; and those that others of the user name, of the same ones or under a prefix.

    In whichever team: a file lies under its user alone, who may show it in all of them.
    """
    rows = yield "SELECT max(parent_seq) FROM sessions WHERE parent_session_id = ?", (session_id,)
    shared_seq = rows[0][0] or 0  # up to here, what is said here is said in a fork as well
    own_rows = yield (
        "SELECT bucket, path FROM attachment_refs WHERE session_id = ? AND seq > ?",
        (session_id, shared_seq),
    )
    own_files = {(str(bucket), str(path)) for bucket, path in own_rows}
    scope = (session_id, shared_seq, owners.user_id)
    user_sql = "(s.user_id = ? OR s.user_id IS NULL)" if owners.is_everywhere else "s.user_id = ?"
    query = (  # a cross join, which SQLite takes in this order: from the path to who names it
        "SELECT DISTINCT r.bucket, r.path FROM attachment_refs AS r CROSS JOIN sessions AS s"
        f" WHERE s.id = r.session_id AND (r.session_id <> ? OR r.seq <= ?) AND {user_sql}"
    )
    other_rows = yield f"{query} AND r.path >= ? AND r.path < ?", (*scope, prefix, prefix + "\x7f")
    own_paths = sorted({path for _, path in own_files})
    for first in range(0, len(own_paths), _PATHS_PER_STATEMENT):
        paths = own_paths[first : first + _PATHS_PER_STATEMENT]
        placeholders = ", ".join("?" * len(paths))
        other_rows += yield f"{query} AND r.path IN ({placeholders})", (*scope, *paths)
    other_files = frozenset((bucket, path) for bucket, path in other_rows)
    return AttachmentRefs(frozenset(own_files) - other_files, other_files)
