"""Versions of the message format and the migrations between them.

A change that only adds (an optional field, a block type, a role) needs no new version: see ``dragoman.value``. A change
that renames, removes or redefines increases ``SCHEMA_VERSION`` and registers one migration from the previous version:

    @FORMAT.migration(from_version=1)
    def rename_words_to_text(message):
        ...
        return message

Migrations receive plain objects and run when a message is read, one step after the other. The result is stored only
when the message is saved. Invariant: a released migration never changes, because stored messages of its version exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.errors import FormatError
from dragoman.message import SCHEMA_VERSION

PlainMessage = dict[str, Any]
Migration = Callable[[PlainMessage], PlainMessage]


class Format:
    """The current version of the message format and the migrations from earlier versions."""

    def __init__(self, current: int = SCHEMA_VERSION) -> None:
        self.current = current
        self._migrations: dict[int, Migration] = {}

    def migration(self, *, from_version: int) -> Callable[[Migration], Migration]:
        """Register the migration from one version to the next."""

        def register(migrate: Migration) -> Migration:
            if not 1 <= from_version < self.current:
                raise ValueError(f"no migration from version {from_version} can lead to version {self.current}")
            if from_version in self._migrations:
                raise ValueError(f"version {from_version} already has a migration")
            self._migrations[from_version] = migrate
            return migrate

        return register

    def upgrade(self, message: PlainMessage, version: int) -> PlainMessage:
        """Return the message in the current version."""
        for step in range(version, self.current):
            migrate = self._migrations.get(step)
            if migrate is None:
                what = f"schema version {step} has no migration to version {self.current}"
                raise FormatError(what, where="$.schema_version", code="unknown_version")
            try:
                message = migrate(message)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                what = f"not a message of version {step} ({type(error).__name__}: {error})"
                raise FormatError(what, where="$.schema_version") from None
        return {**message, "schema_version": self.current}


FORMAT = Format()
