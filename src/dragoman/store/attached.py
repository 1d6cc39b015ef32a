"""The files that messages name, as they stand beside the messages: found by their paths, whoever names them.

    noted(session, seq, message)                  steps that note the files of a message
    named_attachments(session, owners, prefix)    files that only this session names, and those that others name

The one rule: what a message names is noted when the message is written, and moves, ends and goes with it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import msgspec

from dragoman.message import Message
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.values import Owners

File = tuple[str, str]  # its bucket and its path
_LONGEST: Final = (100, 1_024)  # names of buckets and paths; an index takes no text of any length
_AT_ONCE: Final = 100  # paths that are looked for in one statement


class Named(msgspec.Struct, frozen=True):
    """Files that messages name, by bucket and path."""

    here: frozenset[File]  # in one session, and in no other one
    elsewhere: frozenset[File]  # in other sessions of the user, as far as they are of interest for this one


def files_of(message: Message) -> set[File]:
    """The files that a message names. No attachment has a path of other signs, or a longer one."""
    told = {(one.bucket, one.path) for one in message.metadata.attachments}
    return {file for file in told if all(map(_is_name, file, _LONGEST))}


def _is_name(text: str, longest: int) -> bool:
    return 0 < len(text) <= longest and text.isascii() and text.isprintable()


def noted(session_id: str, seq: int, message: Message) -> Generator[Statement, Rows, None]:
    """Note the files that a message names."""
    for file in sorted(files_of(message)) if message.metadata.user_message_attachments is not None else ():
        yield (
            "INSERT INTO attachment_refs (session_id, seq, bucket, path) VALUES (?, ?, ?, ?)",
            (session_id, seq, *file),
        )


@operation
def named_attachments(session_id: str, owners: Owners, prefix: str) -> Generator[Statement, Rows, Named]:
    """The files that a session names; and those that others of the user name, of the same ones or under a prefix.

    In whichever team: a file lies under its user alone, who may show it in all of them.
    """
    rows = yield "SELECT max(parent_seq) FROM sessions WHERE parent_session_id = ?", (session_id,)
    shared = rows[0][0] or 0  # up to here, what is said here is said in a fork as well
    own = yield "SELECT bucket, path FROM attachment_refs WHERE session_id = ? AND seq > ?", (session_id, shared)
    here = {(str(bucket), str(path)) for bucket, path in own}
    whose = (session_id, shared, owners.user_id)
    of_user = "(s.user_id = ? OR s.user_id IS NULL)" if owners.is_everywhere else "s.user_id = ?"
    others = (  # a cross join, which SQLite takes in this order: from the path to who names it
        "SELECT DISTINCT r.bucket, r.path FROM attachment_refs AS r CROSS JOIN sessions AS s"
        f" WHERE s.id = r.session_id AND (r.session_id <> ? OR r.seq <= ?) AND {of_user}"
    )
    elsewhere = yield f"{others} AND r.path >= ? AND r.path < ?", (*whose, prefix, prefix + "\x7f")
    wanted = sorted({path for _, path in here})
    for first in range(0, len(wanted), _AT_ONCE):
        paths = wanted[first : first + _AT_ONCE]
        marks = ", ".join("?" * len(paths))
        elsewhere += yield f"{others} AND r.path IN ({marks})", (*whose, *paths)
    named = frozenset((bucket, path) for bucket, path in elsewhere)
    return Named(frozenset(here) - named, named)
