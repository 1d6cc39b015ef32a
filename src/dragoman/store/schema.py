"""The tables, as numbered steps: each one is a file, and the number of the last one is the version of a store.

A step is never changed once a version with it was released; what has to change is a new step. The one rule: a store of
any earlier version opens, by taking the steps that it lacks.
"""

from __future__ import annotations

import functools
import importlib.resources


@functools.cache
def migrations(engine: str) -> tuple[str, ...]:
    """The SQL of every step for an engine, in order."""
    folder = importlib.resources.files(__package__) / "migrations"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(f"_{engine}.sql"))
    return tuple((folder / name).read_text(encoding="utf-8") for name in names)
