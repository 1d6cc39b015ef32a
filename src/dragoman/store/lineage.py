"""Where a history lies: a fork shares what came before it, so a history is made of stretches of several sessions.

The one rule: every place of a history is in exactly one stretch, or something is damaged.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from dragoman.errors import CorruptDataError
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.sessions import unknown_session


class Segment(msgspec.Struct, frozen=True):
    """A part of a history: the messages of one session from ``first`` to ``last``."""

    session_id: str
    first: int
    last: int


@operation
def lineage(session_id: str) -> Generator[Statement, Rows, list[Segment]]:
    """The stretches that make up a history, oldest first. The last one is the session's own, and may be empty."""
    rows = yield "SELECT parent_session_id, parent_seq, last_seq FROM sessions WHERE id = ?", (session_id,)
    if not rows:
        raise unknown_session(session_id)
    parent, parent_seq, last = rows[0]
    segments = [Segment(session_id, parent_seq + 1, last)]
    while parent is not None and parent_seq > 0:
        owner, last = parent, parent_seq
        rows = yield "SELECT parent_session_id, parent_seq FROM sessions WHERE id = ?", (owner,)
        if not rows:
            raise damage_error(owner, "it shares the history of a session that is not there")
        parent, parent_seq = rows[0]
        segments.append(Segment(owner, parent_seq + 1, last))
    if parent_seq:
        raise damage_error(segments[-1].session_id, "the beginning of its history is not there")
    for segment in segments:
        if segment.first > 1:  # nothing of its own may hide behind what it shares
            rows = yield "SELECT min(seq) FROM messages WHERE session_id = ?", (segment.session_id,)
            if rows[0][0] not in (None, segment.first):
                raise damage_error(segment.session_id, "it does not begin where the history that it shares ends")
    return segments[::-1]


def damage_error(session_id: str, what: str) -> CorruptDataError:
    return CorruptDataError(what, where=f"session {session_id}")
