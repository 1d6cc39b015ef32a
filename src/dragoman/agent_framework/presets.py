"""Memories by name, with a namespace and a key that come from the context: ``standalone``, ``worker``, ``manager``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from dragoman.agent_framework.memories import (
    BaseMemory,
    HierarchicalSharedMemory,
    InMemoryMemory,
    SharedInMemoryMemory,
)

Context = Mapping[str, Any]


def get_memory_preset(preset_name: str, context: Context | None = None) -> BaseMemory:
    """A memory of that name.

    The context may have ``agent_key`` or ``agent_name``; ``namespace``, ``JOB_ID`` or ``job_id``; and, for a manager,
    ``subordinates``. Without a namespace it is the environment's ``JOB_ID``, or "default".
    """
    if preset_name not in _PRESETS:
        raise ValueError(f"there is no memory preset {preset_name!r}; there are {', '.join(_PRESETS)}")
    make, _ = _PRESETS[preset_name]
    return make(context or {})


def list_memory_presets() -> list[str]:
    """The names that there are."""
    return list(_PRESETS)


def describe_preset(preset_name: str) -> str:
    """What a preset is for."""
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
    "standalone": (lambda context: InMemoryMemory(_agent_key(context)), "One agent, which nobody else sees."),
    "worker": (
        lambda context: SharedInMemoryMemory(_namespace(context), _agent_key(context)),
        "An agent of a namespace: the conversation, its own doing, and what is told to all.",
    ),
    "manager": (_manager, "The same, and what its subordinates do."),
}
