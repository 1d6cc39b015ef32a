"""The tables, as numbered steps: each one is a file, and the number of the last one is the version of a store.

A step is never changed once a version with it was released; what has to change is a new step. The one rule: a store of
any earlier version opens, by taking the steps that it lacks.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import Final

from dragoman.errors import StoreUnusableError

LETTER_COLUMNS: Final = (  # the columns of a letter, in the order of its row
    "recipient_id, team_id, letter_id, sender_id, task_id, type, trace_id, session_id, message_id, turn_id, user_id,"
    " created_at, fingerprint, letter_json, hash"
)


def check_version(version: int, engine: str, where: str) -> None:
    """Raise ``StoreUnusableError`` unless this version of Dragoman knows that version of a store."""
    latest = len(migrations(engine))
    if version < 0:
        raise StoreUnusableError(
            f"its header is damaged: it names the schema {version}",
            where=where,
            remedy="Take it from a backup; nothing was changed",
        )
    if version > latest:
        raise StoreUnusableError(
            f"a newer Dragoman wrote it (schema {version}; this one knows up to {latest})",
            where=where,
            remedy="Open it with a newer Dragoman; nothing was changed",
            code="newer_store",
        )


@functools.cache
def migrations(engine: str) -> tuple[str, ...]:
    """The SQL of every step for an engine, in order."""
    folder = importlib.resources.files(__package__) / "migrations"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(f"_{engine}.sql"))
    return tuple((folder / name).read_text(encoding="utf-8") for name in names)
