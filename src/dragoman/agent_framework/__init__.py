"""The message store, the memories and the builders of an agent framework, under the framework's own names.

To use them, change the imports of your code from ``agent_framework`` to ``dragoman.agent_framework``:

    from dragoman.agent_framework import BaseMessageStore, MessageStoreMemory
    from dragoman.agent_framework.constants import USER_MESSAGE, ASSISTANT_MESSAGE, TASK
    from dragoman.agent_framework.utils.message_builder import create_user_message

``ManagerAgent`` runs a task with your planners and workers, or with ``dragoman.turn.Agent``. The framework's own
``Agent`` is not part of this package; it accepts a memory of this package. Entries without a clock or a store are in
``dragoman.entries``.
"""

from typing import Any

from dragoman.agent_framework.filters import (
    DefaultHistoryFilter,
    HistoryFilter,
    ManagerHistoryFilter,
    OrchestratorHistoryFilter,
    WorkerHistoryFilter,
)
from dragoman.agent_framework.manager import Action, FinalResponse, ManagerAgent
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
    if name == "Agent":
        raise ImportError(
            "Agent is not part of this package: import it from agent_framework and pass it a memory of this package,"
            " or use dragoman.turn.Agent",
            name=__name__,
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Action",
    "BaseMemory",
    "BaseMessageStore",
    "DefaultHistoryFilter",
    "DragomanMessageStore",
    "FinalResponse",
    "HierarchicalMessageStoreMemory",
    "HierarchicalSharedMemory",
    "HistoryFilter",
    "InMemoryMemory",
    "ManagerAgent",
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
