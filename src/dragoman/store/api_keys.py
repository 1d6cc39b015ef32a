"""API keys of the server's callers: their owners and scopes. The store holds the hash of a secret, never a key.

    await store.keys.create(public_id, secret_hash, user_id=…, scopes=…)
    await store.keys.find(public_id)
    await store.keys.revoke(public_id)

Invariant: no argument and no result of this module can be used as a key.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.errors import ConflictError, UnknownNameError
from dragoman.signals import KEYS
from dragoman.store.operation import Facet, Steps, VolatileOperation, from_micros, operation, to_micros

_KEY: Final = "public_id, secret_hash, name, user_id, team_id, scopes, created_at, expires_at, revoked_at, last_used_at"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A stored API key."""

    public_id: str  # the part that may be shown
    secret_hash: bytes
    name: str | None = None  # chosen by its owner
    user_id: str  # a pseudonym
    team_id: str | None = None
    scopes: tuple[str, ...] = ()
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None  # coarse: updated at most once in a while

    def __repr__(self) -> str:
        return f"ApiKey({self.public_id!r}, user_id={self.user_id!r})"

    def is_valid(self, now: datetime) -> bool:
        """Whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class KeyStore(Facet):
    """The API keys of a store: ``store.keys``."""

    async def create(
        self,
        public_id: str,
        secret_hash: bytes,
        *,
        user_id: str,
        team_id: str | None = None,
        name: str | None = None,
        scopes: Iterable[str] = (),
        expires_at: datetime | None = None,
    ) -> ApiKey:
        """Store a key; ``ConflictError`` if its public id exists."""
        key = ApiKey(
            public_id=public_id,
            secret_hash=secret_hash,
            name=name,
            user_id=user_id,
            team_id=team_id,
            scopes=tuple(scopes),
            created_at=self._store.clock(),
            expires_at=expires_at,
        )
        await self._store._write(_create_key(key))
        return key

    async def list(self, *, user_id: str | None = None) -> Sequence[ApiKey]:
        """Return every key, or those of one user, the oldest first, revoked ones included."""
        return await self._store._read(_list_keys(user_id))

    async def find(self, public_id: str) -> ApiKey | None:
        """Return the key of that public id, valid or not, if it exists."""
        return await self._store._read(_find_key(public_id))

    async def revoke(self, public_id: str) -> ApiKey:
        """Revoke a key. A key that was revoked before keeps the time of its revocation."""
        key = await self._store._write(_revoke_key(public_id, self._store.clock()))
        self._store.signals.publish(KEYS, "")
        return key

    async def touch(self, public_id: str) -> None:
        """Store that a key was used now. A power cut may lose this."""
        now = to_micros(self._store.clock())
        await self._store._write(VolatileOperation(functools.partial(_touch_key, public_id, now)))


def _touch_key(public_id: str, now: int) -> Steps[None]:
    yield (
        "UPDATE api_keys SET last_used_at = ? WHERE public_id = ? AND coalesce(last_used_at, 0) < ?",
        (now, public_id, now),
    )


@operation
def _create_key(key: ApiKey) -> Steps[None]:
    rows = yield (
        f"INSERT INTO api_keys ({_KEY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)"
        " ON CONFLICT (public_id) DO NOTHING RETURNING public_id",
        (
            key.public_id,
            key.secret_hash,
            key.name,
            key.user_id,
            key.team_id,
            " ".join(key.scopes),
            to_micros(key.created_at),
            None if key.expires_at is None else to_micros(key.expires_at),
        ),
    )
    if not rows:
        raise ConflictError("this public id exists already", where=f"key {key.public_id}", code="id_conflict")


@operation
def _list_keys(user_id: str | None) -> Steps[list[ApiKey]]:
    where, arguments = ("", ()) if user_id is None else (" WHERE user_id = ?", (user_id,))
    rows = yield f"SELECT {_KEY} FROM api_keys{where} ORDER BY created_at, public_id", arguments
    return [_key_from_row(row) for row in rows]


@operation
def _find_key(public_id: str) -> Steps[ApiKey | None]:
    rows = yield f"SELECT {_KEY} FROM api_keys WHERE public_id = ?", (public_id,)
    return _key_from_row(rows[0]) if rows else None


@operation
def _revoke_key(public_id: str, now: datetime) -> Steps[ApiKey]:
    rows = yield (
        f"UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE public_id = ? RETURNING {_KEY}",
        (to_micros(now), public_id),
    )
    if not rows:
        raise UnknownNameError(
            f"no key has the id {public_id!r}", remedy="List the keys with dragoman keys list", code="unknown_key"
        )
    return _key_from_row(rows[0])


def _key_from_row(row: tuple[Any, ...]) -> ApiKey:
    times = [None if value is None else from_micros(value) for value in row[6:]]
    assert times[0] is not None  # created_at is NOT NULL
    return ApiKey(
        public_id=row[0],
        secret_hash=bytes(row[1]),
        name=row[2],
        user_id=row[3],
        team_id=row[4],
        scopes=tuple(row[5].split()),
        created_at=times[0],
        expires_at=times[1],
        revoked_at=times[2],
        last_used_at=times[3],
    )
