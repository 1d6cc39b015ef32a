"""Where a history lies: a fork shares what came before it, so a history is made of stretches of several sessions.

The one rule: every place of a history is in exactly one stretch, or something is damaged.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from dragoman.errors import DamagedError
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.sessions import unknown_session


class Stretch(msgspec.Struct, frozen=True):
    """A part of a history: the messages of one session from ``first`` to ``last``."""

    session_id: str
    first: int
    last: int


@operation
def lineage(session_id: str) -> Generator[Statement, Rows, list[Stretch]]:
    """The stretches that make up a history, oldest first. The last one is the session's own, and may be empty."""
    rows = yield "SELECT parent_session_id, parent_seq, last_seq FROM sessions WHERE id = ?", (session_id,)
    if not rows:
        raise unknown_session(session_id)
    parent, parent_seq, last = rows[0]
    stretches = [Stretch(session_id, parent_seq + 1, last)]
    while parent is not None and parent_seq > 0:
        owner, last = parent, parent_seq
        rows = yield "SELECT parent_session_id, parent_seq FROM sessions WHERE id = ?", (owner,)
        if not rows:
            raise gone(owner, "it shares the history of a session that is not there")
        parent, parent_seq = rows[0]
        stretches.append(Stretch(owner, parent_seq + 1, last))
    if parent_seq:
        raise gone(stretches[-1].session_id, "the beginning of its history is not there")
    for stretch in stretches:
        if stretch.first > 1:  # nothing of its own may hide behind what it shares
            rows = yield "SELECT min(seq) FROM messages WHERE session_id = ?", (stretch.session_id,)
            if rows[0][0] not in (None, stretch.first):
                raise gone(stretch.session_id, "it does not begin where the history that it shares ends")
    return stretches[::-1]


def gone(session_id: str, what: str) -> DamagedError:
    return DamagedError(what, where=f"session {session_id}")
