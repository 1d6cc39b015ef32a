"""The message store, the memories and the builders of an agent framework, under the names that its users import.

Code that was written for the framework's message store needs only its import lines changed, from ``agent_framework`` to
``dragoman.agent_framework``:

    from dragoman.agent_framework import BaseMessageStore, MessageStoreMemory
    from dragoman.agent_framework.constants import USER_MESSAGE, ASSISTANT_MESSAGE, TASK
    from dragoman.agent_framework.utils.message_builder import create_user_message

Its agents are not here: they are the framework's, and take a memory of this package as one of theirs, because all that
they ask of it is ``get_history``. The one rule: what is pure stays in ``dragoman.entries``; here are names and waiting.
"""

from typing import Any

from dragoman.agent_framework.filters import (
    DefaultHistoryFilter,
    HistoryFilter,
    ManagerHistoryFilter,
    OrchestratorHistoryFilter,
    WorkerHistoryFilter,
)
from dragoman.agent_framework.memories import (
    BaseMemory,
    HierarchicalMessageStoreMemory,
    HierarchicalSharedMemory,
    InMemoryMemory,
    MessageStoreMemory,
    SharedInMemoryMemory,
    WritingMessageStoreMemory,
    forget_namespace,
)
from dragoman.agent_framework.presets import describe_preset, get_memory_preset, list_memory_presets
from dragoman.agent_framework.stores import BaseMessageStore, DragomanMessageStore


def __getattr__(name: str) -> Any:
    if name in ("Agent", "ManagerAgent"):
        raise ImportError(
            f"{name} is the framework's: import it from agent_framework, and give it a memory of this package",
            name=__name__,
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BaseMemory",
    "BaseMessageStore",
    "DefaultHistoryFilter",
    "DragomanMessageStore",
    "HierarchicalMessageStoreMemory",
    "HierarchicalSharedMemory",
    "HistoryFilter",
    "InMemoryMemory",
    "ManagerHistoryFilter",
    "MessageStoreMemory",
    "OrchestratorHistoryFilter",
    "SharedInMemoryMemory",
    "WorkerHistoryFilter",
    "WritingMessageStoreMemory",
    "describe_preset",
    "forget_namespace",
    "get_memory_preset",
    "list_memory_presets",
]
