"""Message stores: the four views of entries, merged to one history.

    class DatabaseMessageStore(BaseMessageStore): …      over your own table
    with DragomanMessageStore("sqlite:///chats.db"): …   over a Dragoman store, on any engine

The framework calls the views synchronously, and the store is async. A ``DragomanMessageStore`` therefore runs its store
in a thread with its own event loop, and each call waits for that thread. It can be used from any thread; in a coroutine
it blocks the event loop, so an async program uses ``store.entries`` instead. Invariant: an entry is committed when the
call returns.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from dragoman import entries
from dragoman.entries import Entry
from dragoman.errors import InputError, StoreUnusableError, UnknownSessionError
from dragoman.store import Store, open_store

Result = TypeVar("Result")


class BaseMessageStore(ABC):
    """Four views of the entries at a location, in chronological order. A limit selects the newest."""

    @abstractmethod
    def get_conversation_messages(self, location: str, limit: int | None = None) -> list[Entry]:
        """The conversation: ``user_message`` and ``assistant_message``."""

    @abstractmethod
    def get_agent_messages(self, location: str, agent_key: str, limit: int | None = None) -> list[Entry]:
        """The entries of one agent."""

    @abstractmethod
    def get_global_messages(self, location: str, limit: int | None = None) -> list[Entry]:
        """The entries for every agent: ``global_observation`` and ``synthesis``."""

    @abstractmethod
    def get_team_messages(self, location: str, agent_keys: list[str], limit: int | None = None) -> list[Entry]:
        """All entries of several agents; empty for an empty list."""


def history_of(store: Any, location: str, agent_key: str, subordinates: Sequence[str] = ()) -> list[Entry]:
    """The views of one agent merged to one chronological history, for any store with the four views."""
    groups = [store.get_conversation_messages(location), store.get_agent_messages(location, agent_key)]
    if subordinates:
        groups.append(store.get_team_messages(location, list(subordinates)))
    groups.append(store.get_global_messages(location))
    return entries.merge_entries(*groups)


class DragomanMessageStore(BaseMessageStore):
    """Entries in a Dragoman store. A location is a session; an unknown location is empty.

    ``store`` is a URL for ``open_store``, or an unopened store. With ``messages_as``, the messages of a session are
    included as entries of the agent with that key.
    """

    def __init__(self, store: str | Store, *, messages_as: str | None = None) -> None:
        self._store = open_store(store) if isinstance(store, str) else store
        self._messages_as = messages_as
        self._thread = _Thread()
        try:
            self._thread.run(self._store.open())
        except BaseException:
            self._thread.stop()
            raise
        self._finalizer = weakref.finalize(self, self._thread.close_later, self._store.close)
        self._finalizer.atexit = False

    def close(self) -> None:
        """Close the store. Added entries are committed already."""
        if self._finalizer.detach() is not None and not self._thread.is_forked:
            try:
                self._thread.run(self._store.close())
            finally:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing -----------------------------------------------------------------------------------------------------

    def add_message(self, location: str, message: Mapping[str, Any], agent_key: str | None = None) -> int:
        """Store an entry and return its sequence number. An invalid entry raises ``FormatError``."""
        return self.add_messages(location, [message], agent_key)[0]

    def add_messages(
        self, location: str, messages: Iterable[Mapping[str, Any]], agent_key: str | None = None
    ) -> list[int]:
        """Store several entries in one transaction."""
        items = list(messages)
        return self._run(self._store.entries.append(location, items, agent_key=agent_key, create=True))

    # --- the views ---------------------------------------------------------------------------------------------------

    def get_conversation_messages(self, location: str, limit: int | None = None) -> list[Entry]:
        stored = self._run(self._store.entries.conversation(location, limit))
        return self._with_messages(stored, location, limit, lambda entry: entry["type"] in entries.CONVERSATION_TYPES)

    def get_agent_messages(self, location: str, agent_key: str, limit: int | None = None) -> list[Entry]:
        stored = self._run(self._store.entries.agent(location, agent_key, limit))
        if agent_key != self._messages_as:
            return stored
        return self._with_messages(stored, location, limit, lambda entry: entry["type"] in entries.AGENT_TYPES)

    def get_global_messages(self, location: str, limit: int | None = None) -> list[Entry]:
        return self._run(self._store.entries.broadcast(location, limit))

    def get_team_messages(self, location: str, agent_keys: Sequence[str], limit: int | None = None) -> list[Entry]:
        stored = self._run(self._store.entries.team(location, agent_keys, limit))
        if self._messages_as not in agent_keys:
            return stored
        return self._with_messages(stored, location, limit, lambda entry: "agent_key" in entry)

    def get_merged_history(self, location: str, agent_key: str, subordinates: Sequence[str] = ()) -> list[Entry]:
        """The views of one agent merged to one history, in the order of storage, without duplicates."""
        if self._messages_as is not None:
            return history_of(self, location, agent_key, subordinates)
        return self._run(self._store.entries.history(location, agent_key, subordinates))

    def _with_messages(
        self, stored: list[Entry], location: str, limit: int | None, matches: Callable[[Entry], bool]
    ) -> list[Entry]:
        if self._messages_as is None:
            return stored
        converted = [entry for entry in self._run(self._messages_as_entries(location)) if matches(entry)]
        both = entries.merge_entries(converted, stored)
        return both if limit is None else both[max(0, len(both) - limit) :]

    async def _messages_as_entries(self, location: str) -> list[Entry]:
        """The messages of a session as entries."""
        try:
            messages = [row.message async for row in self._store.history(location)]
        except UnknownSessionError:
            return []
        result: list[Entry] = entries.entries_from_messages(messages, agent_key=self._messages_as).wire
        return result

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if not self._finalizer.alive:
            coroutine.close()
            raise StoreUnusableError("the store is closed", where="message store", remedy="Open it again")
        return self._thread.run(coroutine)


# --- the thread ------------------------------------------------------------------------------------------------------


class _Thread:
    """A thread with an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._work, name="dragoman-entries", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result."""
        if self.is_forked:
            coroutine.close()
            raise StoreUnusableError(
                "the store was opened before this process was forked",
                where="message store",
                remedy="Open it in this process",
            )
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise InputError("the call would wait for itself", where="message store", remedy="Use store.entries")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork, without the thread."""
        return os.getpid() != self._process

    def stop(self) -> None:
        """Stop the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def close_later(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close and stop without waiting: the garbage collector may run in any thread, also in this one."""
        if not self.is_forked:
            asyncio.run_coroutine_threadsafe(self._close_and_stop(close), self._loop)

    async def _close_and_stop(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await close()
        finally:
            self._loop.stop()
