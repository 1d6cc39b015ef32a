"""Owners of leases and runs: which process one is, and whether that process has died.

    owner = make_owner(store.new_id())      names this process, and is unique
    is_dead(owner)                          whether its process has ended, as far as this machine can see

An owner of another machine, of another container or of an earlier version is never dead: its lease expires. A process
is identified by its id and its start time, because process ids are used again. Invariant: an owner whose process runs
is not dead.
"""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path
from typing import Final

from dragoman.store.lease_clock import boot_id

_PROC: Final = Path("/proc")
_ENDED: Final = "ZX"  # states of a process that has ended and that its parent has not noticed


def make_owner(unique: str) -> str:
    """Return an owner of this process."""
    return f"{_own_process(os.getpid())}/{unique}"


def is_dead(owner: str) -> bool:
    """Whether the process of an owner has ended."""
    process, _, _ = owner.partition("/")
    machine, _, rest = process.rpartition("@")
    pid, _, start = rest.partition("-")
    if machine != _machine() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # a process of another user
        return False
    return _start_of(int(pid)) != start


@functools.lru_cache(maxsize=1)
def _own_process(pid: int) -> str:
    return f"{_machine()}@{pid}-{_start_of(pid)}"


@functools.cache
def _machine() -> str:
    """The machine since its last start; in a container, that container."""
    try:
        namespace = os.stat(_PROC / "self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{socket.gethostname()}:{boot_id()}:{namespace}".replace("/", "_").replace("@", "_")


def _start_of(pid: int) -> str:
    """The start time of a process; empty if it has ended, or if the system does not provide it."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in _ENDED else fields[19]
