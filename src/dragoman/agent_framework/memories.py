"""Memories: the history of an agent.

    MessageStoreMemory, HierarchicalMessageStoreMemory     read a message store, which the application writes
    WritingMessageStoreMemory                              also writes the message store
    InMemoryMemory, SharedInMemoryMemory, HierarchicalSharedMemory    in this process only

``get_history`` returns one history in chronological order. The list is a copy.

Every method can be called or awaited: ``memory.get_history()`` and ``await memory.get_history()`` return the same list.
The work is done when the call returns, before the await.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final

from dragoman.agent_framework.stores import history_of
from dragoman.entries import ASSISTANT_MESSAGE, USER_MESSAGE, Entry, validate_entry


class Entries(list[Entry]):
    """A list of entries that can also be awaited. Awaiting it returns a plain list."""

    def __await__(self) -> Generator[Any, None, list[Entry]]:
        yield from ()  # does not suspend
        return list(self)


class Done:
    """The return value of a method without a result; it can be awaited."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


DONE: Final = Done()


class BaseMemory(ABC):
    """The interface that an agent uses."""

    @abstractmethod
    def add(self, message: Mapping[str, Any]) -> Done | None:
        """Add an entry."""

    @abstractmethod
    def get_history(self) -> list[Entry]:
        """All entries for the agent, in chronological order."""


# --- over a message store --------------------------------------------------------------------------------------------


class MessageStoreMemory(BaseMemory):
    """Reads the conversation, the agent's own entries and the global entries from a message store."""

    def __init__(self, message_store: Any, location: str, agent_key: str) -> None:
        for name, value in (("message_store", message_store), ("location", location), ("agent_key", agent_key)):
            if value is None or value == "":
                raise ValueError(f"{type(self).__name__} needs a {name}")
        self._message_store = message_store
        self._location = location
        self._agent_key = agent_key
        self._subordinates: tuple[str, ...] = ()

    def add(self, message: Mapping[str, Any]) -> Done:  # noqa: ARG002  the interface of a memory
        """Do nothing: the application writes the store, so the entry would be stored twice."""
        return DONE

    def get_history(self) -> Entries:
        store = self._message_store
        read = getattr(store, "get_merged_history", None)
        arguments = (self._location, self._agent_key, self._subordinates)
        return Entries(read(*arguments) if read is not None else history_of(store, *arguments))


class HierarchicalMessageStoreMemory(MessageStoreMemory):
    """The same for a manager, with all entries of its subordinates."""

    def __init__(
        self, message_store: Any, location: str, agent_key: str, subordinates: Sequence[str] | None = None
    ) -> None:
        super().__init__(message_store, location, agent_key)
        self._subordinates = tuple(subordinates or ())


class WritingMessageStoreMemory(HierarchicalMessageStoreMemory):
    """A memory that also writes to the store.

    ``message_store`` is a ``DragomanMessageStore``, or an object with ``add_message``.
    """

    def add(self, message: Mapping[str, Any]) -> Done:
        """Store an entry of this agent. It is committed when this returns."""
        self._message_store.add_message(self._location, message, self._agent_key)
        return DONE

    def add_global(self, update: Mapping[str, Any]) -> Done:
        """Store an entry for every agent at this location: a ``global_observation`` or a ``synthesis``."""
        return self.add(update)


# --- of this process -------------------------------------------------------------------------------------------------


class InMemoryMemory(BaseMemory):
    """The entries of one agent, not shared."""

    def __init__(self, agent_key: str = "default") -> None:
        self.agent_key = agent_key
        self._feed = _Feed()

    def add(self, message: Mapping[str, Any]) -> Done:
        return self._feed.add(self.agent_key, message)

    def get_history(self) -> Entries:
        return self._feed.select(lambda _: True)


class SharedInMemoryMemory(BaseMemory):
    """Shared by the agents of a namespace: the conversation, the agent's own entries, and the global entries."""

    def __init__(self, namespace: str, agent_key: str) -> None:
        if not namespace or not agent_key:
            raise ValueError(f"{type(self).__name__} needs a namespace and an agent_key")
        self._feed = _get_feed(namespace)
        self._agent_key = agent_key
        self._subordinates: tuple[str, ...] = ()

    def add(self, message: Mapping[str, Any]) -> Done:
        return self._feed.add(self._agent_key, message)

    def add_global(self, update: Mapping[str, Any]) -> Done:
        """Add an entry for every agent of the namespace."""
        return self._feed.add(_ALL_AGENTS, update)

    def add_conversation_turn(self, role: str, content: Any) -> Done:
        """Add a message of the ``user`` or the ``assistant``, for every agent of the namespace."""
        kind = {"user": USER_MESSAGE, "assistant": ASSISTANT_MESSAGE}.get(role)
        if kind is None:
            raise ValueError(f"role must be 'user' or 'assistant', not {role!r}")
        return self._feed.add(_CONVERSATION, {"type": kind, "content": content, "timestamp": time.time()})

    def get_global_updates(self) -> Entries:
        """The global entries of the namespace."""
        return self._feed.select(lambda whose: whose is _ALL_AGENTS)

    def get_history(self) -> Entries:
        owners = (_CONVERSATION, self._agent_key, *self._subordinates, _ALL_AGENTS)
        return self._feed.select(lambda whose: whose in owners)


class HierarchicalSharedMemory(SharedInMemoryMemory):
    """The same for a manager, with the entries of its subordinates."""

    def __init__(self, namespace: str, agent_key: str, subordinates: Sequence[str] | None = None) -> None:
        super().__init__(namespace, agent_key)
        self._subordinates = tuple(subordinates or ())


_ALL_AGENTS: Final = object()
_CONVERSATION: Final = object()


class _Feed:
    """Entries in order, each with its owner."""

    def __init__(self) -> None:
        self._entries: list[tuple[object, Entry]] = []

    def add(self, owner: object, entry: Mapping[str, Any]) -> Done:
        self._entries.append((owner, validate_entry(entry)))  # atomic
        return DONE

    def select(self, matches: Callable[[object], bool]) -> Entries:
        return Entries(dict(entry) for owner, entry in self._entries.copy() if matches(owner))


_feeds: dict[str, _Feed] = {}
_lock = threading.Lock()


def _get_feed(namespace: str) -> _Feed:
    with _lock:
        return _feeds.setdefault(namespace, _Feed())


def forget_namespace(namespace: str) -> None:
    """Forget the entries of a namespace, to free memory. Existing memories keep their entries."""
    with _lock:
        _feeds.pop(namespace, None)
