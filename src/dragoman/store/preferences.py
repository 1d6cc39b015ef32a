"""Choices of a user that belong to no session, such as the settings of new conversations: ``store.preferences``.

await store.preferences.set("ann", None, "settings", {"temperature": 0.2})
await store.preferences.find("ann", None, "settings")      ``None`` if it is not set
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.store.operation import Facet, Steps, operation


class PreferenceStore(Facet):
    """The preferences of a store."""

    async def find(self, user_id: str, team_id: str | None, name: str) -> Any:
        """Return a preference, or ``None``."""
        return await self._store._read(_find(user_id, team_id or "", name))

    async def set(self, user_id: str, team_id: str | None, name: str, value: Any) -> None:
        """Set a preference to a JSON value."""
        await self._store._write(_set(user_id, team_id or "", name, msgspec.json.encode(value).decode()))


@operation
def _find(user_id: str, team_id: str, name: str) -> Steps[Any]:
    rows = yield (
        "SELECT value_json FROM preferences WHERE user_id = ? AND team_id = ? AND name = ?",
        (user_id, team_id, name),
    )
    return msgspec.json.decode(rows[0][0]) if rows else None


@operation
def _set(user_id: str, team_id: str, name: str, value: str) -> Steps[None]:
    yield (
        "INSERT INTO preferences (user_id, team_id, name, value_json) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (user_id, team_id, name) DO UPDATE SET value_json = excluded.value_json",
        (user_id, team_id, name, value),
    )
