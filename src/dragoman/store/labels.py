"""Pins, tags and shares of sessions, stored in the metadata of a session.

    await store.labels.change(session_id, is_pinned=True, tags=("work",))
    await store.labels.sessions(owners, tag="work")         the last changed first
    await store.labels.tags(owners)                          every tag with the number of its sessions
    await store.labels.set_share(session_id, share)          a read-only page; none revokes it
    await store.labels.find_shared(hash)                     the session of a link

A label is not a change of the conversation: it does not move the session in the list. Exports and backups contain
labels, because they are metadata. Invariant: a fork has neither labels nor shares.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.store.operation import Facet, Steps, operation
from dragoman.store.sessions import get_session, merge_metadata, select_sessions
from dragoman.store.types import Owners, Session

LABELS: Final = "labels"  # keys in the metadata of a session
SHARE: Final = "share"
_IS_PINNED: Final = {
    "sqlite": "json_extract(sessions.metadata_json, '$.labels.pinned') = 1",
    "postgres": "sessions.metadata #>> '{labels,pinned}' = 'true'",
}
_HAS_TAG: Final = {
    "sqlite": "EXISTS (SELECT 1 FROM json_each(sessions.metadata_json, '$.labels.tags') AS t WHERE t.value = ?)",
    "postgres": "jsonb_exists(sessions.metadata #> '{labels,tags}', ?)",
}
_TAGS: Final = {
    "sqlite": "SELECT t.value, count(*) FROM sessions, json_each(sessions.metadata_json, '$.labels.tags') AS t",
    "postgres": "SELECT t.value, count(*) FROM sessions,"
    " jsonb_array_elements_text(sessions.metadata #> '{labels,tags}') AS t(value)",
}


class Labels(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pin and the tags of a session."""

    pinned: bool = False
    tags: tuple[str, ...] = ()


def get_labels(session: Session) -> Labels:
    """Return the labels of a session; none if they are damaged."""
    try:
        return msgspec.convert(session.metadata.get(LABELS) or {}, Labels)
    except msgspec.ValidationError:
        return Labels()


class LabelStore(Facet):
    """Pins, tags and shares: ``store.labels``."""

    async def change(
        self, session_id: str, *, is_pinned: bool | None = None, tags: tuple[str, ...] | None = None
    ) -> Session:
        """Pin or unpin a session, or replace its tags."""
        changes: dict[str, Any] = {}
        if is_pinned is not None:
            changes["pinned"] = is_pinned
        if tags is not None:
            changes["tags"] = list(tags)
        return await self._store._write(_change_labels(session_id, changes))

    async def sessions(
        self, owners: Owners, *, is_pinned: bool = False, tag: str | None = None, limit: int = 200
    ) -> list[Session]:
        """Return the sessions with a pin or a tag, the last changed first."""
        return await self._store._read(_select_by_label(self._store.engine, owners, is_pinned, tag, limit))

    async def tags(self, owners: Owners) -> list[tuple[str, int]]:
        """Return every tag with the number of its sessions."""
        return await self._store._read(_count_tags(self._store.engine, owners))

    async def set_share(self, session_id: str, share: dict[str, Any] | None) -> Session:
        """Store how a session is shared; none revokes the share."""
        return await self._store._write(_change_share(session_id, share))

    async def find_shared(self, secret_hash: str) -> Session | None:
        """Return the session that is shared with this hash of a secret."""
        return await self._store._read(_find_shared(secret_hash))


@operation
def _change_labels(session_id: str, changes: dict[str, Any]) -> Steps[Session]:
    def merge(metadata: dict[str, Any]) -> dict[str, Any]:
        labels = {**(metadata.get(LABELS) or {}), **changes}
        return {LABELS: {name: value for name, value in labels.items() if value} or None}

    return (yield from merge_metadata(session_id, merge))


@operation
def _select_by_label(engine: str, owners: Owners, is_pinned: bool, tag: str | None, limit: int) -> Steps[list[Session]]:
    owner_sql, owner_arguments = owners.condition("sessions")
    conditions, arguments = [owner_sql], list[Any](owner_arguments)
    if is_pinned:
        conditions.append(_IS_PINNED[engine])
    if tag is not None:
        conditions.append(_HAS_TAG[engine])
        arguments.append(tag)
    return (yield from select_sessions(conditions, arguments, None, limit))


@operation
def _count_tags(engine: str, owners: Owners) -> Steps[list[tuple[str, int]]]:
    owner_sql, arguments = owners.condition("sessions")
    rows = yield f"{_TAGS[engine]} WHERE {owner_sql} GROUP BY 1 ORDER BY 1", arguments
    return [(str(tag), int(count)) for tag, count in rows]


@operation
def _change_share(session_id: str, share: dict[str, Any] | None) -> Steps[Session]:
    session = yield from merge_metadata(session_id, {SHARE: share})
    yield "DELETE FROM shares WHERE session_id = ?", (session_id,)
    if share is not None:
        yield "INSERT INTO shares (hash, session_id) VALUES (?, ?)", (share["hash"], session_id)
    return session


@operation
def _find_shared(secret_hash: str) -> Steps[Session | None]:
    rows = yield "SELECT session_id FROM shares WHERE hash = ?", (secret_hash,)
    return (yield from get_session(str(rows[0][0]))) if rows else None
