"""A conversation store for agent runtimes: it accepts rows or envelopes and returns envelopes.

    conversations = EnvelopeStore(store)
    session_id = await conversations.create_session(user_id=7, agent_id=3)
    await conversations.update_session(session_id, messages, provider="anthropic", model="claude-sonnet-4-6")
    session = await conversations.get_session(session_id)      # session["messages"] are envelopes

It uses a store of any engine and stores canonical messages, which can be searched and sent to another model. A message
that was an envelope is returned as that envelope. The store only appends; if a host replaces a list, the history
continues in a fork after the common prefix. Invariant: ``get_session`` returns the envelopes that were stored.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from dragoman.envelope import (
    Envelope,
    envelope_groups,
    envelopes_from_messages,
    messages_from_envelopes,
    normalize_many,
)
from dragoman.errors import ConflictError, UnknownSessionError
from dragoman.message import Message
from dragoman.store import Row, Session, Store

UserId = int | str
Result = TypeVar("Result")

METADATA_KEY: Final = "agents-api.conversation"  # key in the metadata of a session
_ATTEMPTS: Final = 20
_PAGE: Final = 100


class EnvelopeStore:
    """Sessions of envelopes in a store. A session without changes for ``expires_after`` is not returned."""

    def __init__(self, store: Store, *, expires_after: timedelta | None = timedelta(hours=24)) -> None:
        self.store = store
        self.expires_after = expires_after

    async def create_session(
        self,
        user_id: UserId,
        agent_id: int | str = 0,
        metadata: Mapping[str, Any] | None = None,
        context: str = "chat",
        *,
        token: int | str | None = None,
    ) -> str:
        """Create an empty session and return its id, a UUID. ``token`` identifies the login."""
        session_id = str(uuid.uuid4())
        fields = {
            "id": session_id,  # a fork copies these fields and has another id
            "user_id": user_id,
            "agent_id": agent_id,
            "context": context,
            "metadata": dict(metadata or {}),
            "token": token,
        }
        await self.store.create_session(session_id, user_id=str(user_id), metadata={METADATA_KEY: fields})
        return session_id

    async def get_session(self, session_id: str) -> dict[str, Any] | None:
        """Return the session with all its messages, or ``None``."""
        session = await self._find(session_id)
        if session is None:
            return None
        messages = [row.message for row in await self._rows(session)]
        return self._to_row(session, envelopes_from_messages(messages, verbatim=True))

    async def update_session(
        self,
        session_id: str,
        messages: Iterable[Mapping[str, Any]],
        metadata: Mapping[str, Any] | None = None,
        provider: str = "",
        model: str = "",
    ) -> bool:
        """Replace the list of messages and the given fields. False if the session does not exist."""
        envelopes = normalize_many(messages)
        session = await self._find(session_id)
        if session is None:
            return False
        session, branch = await self._retry_on_conflict(session, lambda current: self._replace(current, envelopes))
        changes: dict[str, Any] = {"provider": provider, "model": model}
        changes = {name: value for name, value in changes.items() if value}
        if metadata is not None:
            changes["metadata"] = dict(metadata)
        if branch != _head(session):
            changes |= {"head": branch, "branches": [*_host_fields(session).get("branches", []), branch]}
        await self._change(session, changes)
        return True

    async def append(self, session_id: str, messages: Iterable[Mapping[str, Any]]) -> bool:
        """Append messages, also while others append. False if the session does not exist."""
        envelopes = normalize_many(messages)
        session = await self._find(session_id)
        if session is None:
            return False
        await self._retry_on_conflict(session, lambda current: self._append(current, envelopes))
        return True

    async def delete_session(self, session_id: str) -> bool:
        """Delete a session with all its messages, replaced ones included. A missing session is not an error."""
        try:
            session = await self.store.get_session(session_id)
        except UnknownSessionError:
            return True
        for branch_id in (*_host_fields(session).get("branches", ()), session_id):
            try:
                await self.store.delete_session(branch_id)
            except UnknownSessionError:
                continue
        return True

    async def update_title(self, session_id: str, title: str) -> bool:
        """Set the title of a session. False if it does not exist."""
        if await self._find(session_id) is None:
            return False
        await self.store.rename_session(session_id, title)
        return True

    async def mark_read(self, session_id: str) -> bool:
        """Set the time at which the user last read the session. False if it does not exist."""
        session = await self._find(session_id)
        if session is None:
            return False
        await self._change(session, {"last_read_at": _format_time(self.store.clock())})
        return True

    async def list_sessions(
        self, user_id: UserId, agent_id: int | str = 0, context: str = "chat", limit: int = 50
    ) -> list[dict[str, Any]]:
        """Return the sessions of a user with an agent, the most recently changed first, without messages."""
        rows: list[dict[str, Any]] = []
        async for session in self._user_sessions(user_id):
            fields = session.metadata[METADATA_KEY]
            if fields["agent_id"] == agent_id and fields["context"] == context:
                row = self._to_row(session, [])
                del row["messages"]
                rows.append(row)
            if len(rows) >= limit:
                break
        return rows

    async def get_recent_pending_session(
        self, user_id: UserId, seconds: float = 600, context: str = "chat", token: int | str | None = None
    ) -> dict[str, Any] | None:
        """Return the newest recent session that is empty or processing, for a client that retries.

        A session is processing while its metadata has the ``status`` ``processing``.
        """
        since = self.store.clock() - timedelta(seconds=seconds)
        pending = [
            session
            async for session in self._user_sessions(user_id)
            if session.created_at >= since
            and session.metadata[METADATA_KEY]["context"] == context
            and (token is None or session.metadata[METADATA_KEY]["token"] == token)
            and (
                await self._is_empty(session)
                or session.metadata[METADATA_KEY]["metadata"].get("status") == "processing"
            )
        ]
        newest = max(pending, key=lambda session: session.created_at, default=None)
        return None if newest is None else await self.get_session(newest.id)

    # --- in the store ------------------------------------------------------------------------------------------------

    async def _find(self, session_id: str) -> Session | None:
        try:
            session = await self.store.get_session(session_id)
        except UnknownSessionError:
            return None
        return session if not self._is_expired(session) else None

    async def _user_sessions(self, user_id: UserId) -> AsyncIterator[Session]:
        """Yield the sessions of a user, the most recently changed first."""
        before: Session | None = None
        while page := await self.store.list_sessions(user_id=str(user_id), before=before, limit=_PAGE):
            for session in page:
                if _host_fields(session).get("id") == session.id and not self._is_expired(session):
                    yield session
            before = page[-1]

    async def _rows(self, session: Session) -> list[Row]:
        return [row async for row in self.store.history(_head(session))]

    async def _is_empty(self, session: Session) -> bool:
        return not await self.store.tail(_head(session), limit=1)

    async def _retry_on_conflict(
        self, session: Session, change: Callable[[Session], Awaitable[Result]]
    ) -> tuple[Session, Result]:
        """Apply a change. After a conflict, read the session and apply it again."""
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(ConflictError):
                return session, await change(session)
            session = await self.store.get_session(session.id)
        return session, await change(session)

    async def _append(self, session: Session, envelopes: list[Envelope]) -> None:
        head = _head(session)
        rows = await self.store.tail(head, limit=_PAGE)  # contains the calls that may be answered
        history, last = [row.message for row in rows], rows[-1].seq if rows else 0
        messages = messages_from_envelopes(envelopes, after=history, first=last - len(history))
        await self.store.append(head, _without_session(messages), expected_seq=last)

    async def _replace(self, session: Session, envelopes: list[Envelope]) -> str:
        """Replace the history of a session and return the session of the store that contains it."""
        rows = await self._rows(session)
        history = [row.message for row in rows]
        common, used = _common_prefix(history, envelopes)
        tail = _without_session(messages_from_envelopes(envelopes[used:], after=history[:common]))
        head = _head(session)
        last = rows[-1].seq if rows else 0
        if common == len(rows):
            if tail:
                await self.store.append(head, tail, expected_seq=last)
            return head
        branch = await self.store.fork(head, rows[common - 1].seq if common else 0)
        await self.store.append(branch.id, tail)
        return branch.id

    async def _change(self, session: Session, changes: Mapping[str, Any]) -> None:
        current = await self.store.get_session(session.id)
        await self.store.change_session(
            session.id, metadata={**current.metadata, METADATA_KEY: {**_host_fields(current), **changes}}
        )

    def _is_expired(self, session: Session) -> bool:
        expires_at = self._expires_at(session)
        return expires_at is not None and expires_at <= self.store.clock()

    def _expires_at(self, session: Session) -> datetime | None:
        return None if self.expires_after is None else session.updated_at + self.expires_after

    def _to_row(self, session: Session, messages: list[Envelope]) -> dict[str, Any]:
        fields = _host_fields(session)
        expires_at = self._expires_at(session)
        return {
            "session_id": session.id,
            "user_id": fields.get("user_id", session.user_id),
            "agent_id": fields.get("agent_id", 0),
            "title": session.title,
            "messages": messages,
            "metadata": fields.get("metadata", {}),
            "provider": fields.get("provider", ""),
            "model": fields.get("model", ""),
            "context": fields.get("context", "chat"),
            "created_at": _format_time(session.created_at),
            "updated_at": _format_time(session.updated_at),
            "last_read_at": fields.get("last_read_at"),
            "expires_at": None if expires_at is None else _format_time(expires_at),
        }


def _host_fields(session: Session) -> dict[str, Any]:
    """The fields that the host has set; empty for other sessions."""
    fields: dict[str, Any] = session.metadata.get(METADATA_KEY, {})
    return fields


def _head(session: Session) -> str:
    """The session of the store that contains the history: itself, until the host replaces messages."""
    head: str = _host_fields(session).get("head", session.id)
    return head


def _common_prefix(history: list[Message], envelopes: list[Envelope]) -> tuple[int, int]:
    """The length of the common prefix of a history and a list, in messages and in envelopes."""
    used = 0
    for count, group in enumerate(envelope_groups(history, verbatim=True)):
        if msgspec.json.encode(envelopes[used : used + len(group)]) != msgspec.json.encode(group):
            return count, used
        used += len(group)
    return len(history), used


def _without_session(messages: list[Message]) -> list[Message]:
    """Remove the session id, so that the store assigns new ids."""
    return [message.replace(session_id="") for message in messages]


def _format_time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S}"
