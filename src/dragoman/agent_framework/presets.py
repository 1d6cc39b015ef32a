"""Memories by name, with namespace and key from the context: ``standalone``, ``worker``, ``manager``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from dragoman.agent_framework.memories import BaseMemory, HierarchicalSharedMemory, InMemoryMemory, SharedInMemoryMemory

Context = Mapping[str, Any]


def get_memory_preset(preset_name: str, context: Context | None = None) -> BaseMemory:
    """Create the memory of a preset.

    The context may have ``agent_key`` or ``agent_name``; ``namespace``, ``JOB_ID`` or ``job_id``; and, for a manager,
    ``subordinates``. The default namespace is the environment variable ``JOB_ID``, or "default".
    """
    if preset_name not in _PRESETS:
        raise ValueError(f"there is no memory preset {preset_name!r}; use one of {', '.join(_PRESETS)}")
    make, _ = _PRESETS[preset_name]
    return make(context or {})


def list_memory_presets() -> list[str]:
    """The names of all presets."""
    return list(_PRESETS)


def describe_preset(preset_name: str) -> str:
    """The description of a preset."""
    return _PRESETS[preset_name][1] if preset_name in _PRESETS else "There is no such preset."


def _namespace(context: Context) -> str:
    name = context.get("namespace") or context.get("JOB_ID") or context.get("job_id") or os.environ.get("JOB_ID")
    return str(name or "default")


def _agent_key(context: Context) -> str:
    return _key(str(context.get("agent_key") or context.get("agent_name") or "agent"))


def _key(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


def _manager(context: Context) -> BaseMemory:
    subordinates = [_key(name) for name in context.get("subordinates") or ()]
    return HierarchicalSharedMemory(_namespace(context), _agent_key(context), subordinates)


_PRESETS: Final[dict[str, tuple[Callable[[Context], BaseMemory], str]]] = {
    "standalone": (lambda context: InMemoryMemory(_agent_key(context)), "One agent, without shared entries."),
    "worker": (
        lambda context: SharedInMemoryMemory(_namespace(context), _agent_key(context)),
        "An agent of a namespace: the conversation, its own entries, and the global entries.",
    ),
    "manager": (_manager, "The same, with the entries of its subordinates."),
}
