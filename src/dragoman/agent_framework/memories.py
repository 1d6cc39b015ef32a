"""Memories: what an agent is handed as its history.

    MessageStoreMemory, HierarchicalMessageStoreMemory     read a message store; the application writes it
    WritingMessageStoreMemory                              the same, and ``add`` writes
    InMemoryMemory, SharedInMemoryMemory, HierarchicalSharedMemory    of this process only

``get_history`` gives one history in chronological order, never group after group. What a memory hands out is the
caller's; changing it changes nothing here.

Every method may be called or awaited: ``memory.get_history()`` and ``await memory.get_history()`` give the same list.
The work is done when the call returns, so an entry that was added is safe before anybody awaits.
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
    """A list of entries that may be awaited as well. Awaiting it gives a plain list."""

    def __await__(self) -> Generator[Any, None, list[Entry]]:
        yield from ()  # it waits for nothing
        return list(self)


class Done:
    """What a method returns that has nothing to return: it is done, and may be awaited as well."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


DONE: Final = Done()


class BaseMemory(ABC):
    """What an agent needs of a memory."""

    @abstractmethod
    def add(self, message: Mapping[str, Any]) -> Done | None:
        """Remember an entry."""

    @abstractmethod
    def get_history(self) -> list[Entry]:
        """Everything that the agent may know, in chronological order."""


# --- over a message store --------------------------------------------------------------------------------------------


class MessageStoreMemory(BaseMemory):
    """Reads the conversation, the agent's own doing and what was told to all from a message store."""

    def __init__(self, message_store: Any, location: str, agent_key: str) -> None:
        for name, value in (("message_store", message_store), ("location", location), ("agent_key", agent_key)):
            if value is None or value == "":
                raise ValueError(f"{type(self).__name__} needs a {name}")
        self._message_store = message_store
        self._location = location
        self._agent_key = agent_key
        self._subordinates: tuple[str, ...] = ()

    def add(self, message: Mapping[str, Any]) -> Done:  # noqa: ARG002  as a memory has it
        """Nothing: the application writes its store itself, and an entry added here would be in it twice."""
        return DONE

    def get_history(self) -> Entries:
        store = self._message_store
        read = getattr(store, "get_merged_history", None)
        arguments = (self._location, self._agent_key, self._subordinates)
        return Entries(read(*arguments) if read is not None else history_of(store, *arguments))


class HierarchicalMessageStoreMemory(MessageStoreMemory):
    """The same for a manager, who sees everything that its subordinates wrote as well."""

    def __init__(
        self, message_store: Any, location: str, agent_key: str, subordinates: Sequence[str] | None = None
    ) -> None:
        super().__init__(message_store, location, agent_key)
        self._subordinates = tuple(subordinates or ())


class WritingMessageStoreMemory(HierarchicalMessageStoreMemory):
    """A memory that also writes, for an application that leaves the writing to its agents.

    ``message_store`` is a ``DragomanMessageStore``, or anything else that has its ``add_message``.
    """

    def add(self, message: Mapping[str, Any]) -> Done:
        """Store an entry of this agent; it is safe when this returns."""
        self._message_store.add_message(self._location, message, self._agent_key)
        return DONE

    def add_global(self, update: Mapping[str, Any]) -> Done:
        """Tell something to every agent at this location: a ``global_observation`` or a ``synthesis``."""
        return self.add(update)


# --- of this process -------------------------------------------------------------------------------------------------


class InMemoryMemory(BaseMemory):
    """What one agent added itself, and nobody else sees."""

    def __init__(self, agent_key: str = "default") -> None:
        self.agent_key = agent_key
        self._feed = _Feed()

    def add(self, message: Mapping[str, Any]) -> Done:
        return self._feed.add(self.agent_key, message)

    def get_history(self) -> Entries:
        return self._feed.select(lambda _: True)


class SharedInMemoryMemory(BaseMemory):
    """What agents of one namespace tell each other: the conversation, one's own doing, and what is told to all."""

    def __init__(self, namespace: str, agent_key: str) -> None:
        if not namespace or not agent_key:
            raise ValueError(f"{type(self).__name__} needs a namespace and an agent_key")
        self._feed = _get_feed(namespace)
        self._agent_key = agent_key
        self._subordinates: tuple[str, ...] = ()

    def add(self, message: Mapping[str, Any]) -> Done:
        return self._feed.add(self._agent_key, message)

    def add_global(self, update: Mapping[str, Any]) -> Done:
        """Tell something to every agent of the namespace."""
        return self._feed.add(_ALL_AGENTS, update)

    def add_conversation_turn(self, role: str, content: Any) -> Done:
        """Remember what the ``user`` or the ``assistant`` said, for every agent of the namespace."""
        kind = {"user": USER_MESSAGE, "assistant": ASSISTANT_MESSAGE}.get(role)
        if kind is None:
            raise ValueError(f"a turn is of 'user' or 'assistant', not {role!r}")
        return self._feed.add(_CONVERSATION, {"type": kind, "content": content, "timestamp": time.time()})

    def get_global_updates(self) -> Entries:
        """What was told to every agent of the namespace."""
        return self._feed.select(lambda whose: whose is _ALL_AGENTS)

    def get_history(self) -> Entries:
        owners = (_CONVERSATION, self._agent_key, *self._subordinates, _ALL_AGENTS)
        return self._feed.select(lambda whose: whose in owners)


class HierarchicalSharedMemory(SharedInMemoryMemory):
    """The same for a manager, who sees what its subordinates added as well."""

    def __init__(self, namespace: str, agent_key: str, subordinates: Sequence[str] | None = None) -> None:
        super().__init__(namespace, agent_key)
        self._subordinates = tuple(subordinates or ())


_ALL_AGENTS: Final = object()
_CONVERSATION: Final = object()


class _Feed:
    """Entries in the order in which they came, each with whose it is."""

    def __init__(self) -> None:
        self._entries: list[tuple[object, Entry]] = []

    def add(self, owner: object, entry: Mapping[str, Any]) -> Done:
        self._entries.append((owner, validate_entry(entry)))  # which no other thread can interrupt
        return DONE

    def select(self, matches: Callable[[object], bool]) -> Entries:
        return Entries(dict(entry) for owner, entry in self._entries.copy() if matches(owner))


_feeds: dict[str, _Feed] = {}
_lock = threading.Lock()


def _get_feed(namespace: str) -> _Feed:
    with _lock:
        return _feeds.setdefault(namespace, _Feed())


def forget_namespace(namespace: str) -> None:
    """Let go of what the shared memories of a namespace hold, for a process that lives long. Memories that were made
    before keep what they have."""
    with _lock:
        _feeds.pop(namespace, None)
