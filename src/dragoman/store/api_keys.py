"""Keys of a server's callers: whose they are and what they allow. A key itself is never here, only a hash of it.

    await store.create_key(public_id, secret_hash, user_id=…, scopes=…)
    await store.find_key(public_id)        or none
    await store.revoke_key(public_id)      from now on it is not good any more

The one rule: nothing that comes in here, or goes out, could be used as a key.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import ConflictError, UnknownNameError
from dragoman.store.message_rows import from_micros, to_micros
from dragoman.store.operation import Operation, Rows, Statement, VolatileOperation, operation

_KEY: Final = "public_id, secret_hash, name, user_id, team_id, scopes, created_at, expires_at, revoked_at, last_used_at"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key."""

    public_id: str  # the part of it that may be shown
    secret_hash: bytes
    name: str | None = None  # what people call it
    user_id: str  # whose it is, as a pseudonym
    team_id: str | None = None
    scopes: tuple[str, ...] = ()
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None  # not to the minute

    def __repr__(self) -> str:
        return f"ApiKey({self.public_id!r}, user_id={self.user_id!r})"

    def is_valid(self, now: datetime) -> bool:
        """Whether it opens anything."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class KeyMethods:
    """What a store can do with keys."""

    if TYPE_CHECKING:
        clock: Callable[[], datetime]

        async def _read(self, operation: Operation[Any]) -> Any: ...
        async def _write(self, operation: Operation[Any]) -> Any: ...

    async def create_key(
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
        """Keep a key; ``ConflictError`` if there is one of that public id."""
        key = ApiKey(
            public_id=public_id,
            secret_hash=secret_hash,
            name=name,
            user_id=user_id,
            team_id=team_id,
            scopes=tuple(scopes),
            created_at=self.clock(),
            expires_at=expires_at,
        )
        await self._write(create_key(key))
        return key

    async def list_keys(self, *, user_id: str | None = None) -> list[ApiKey]:
        """Every key, or those of one user, the oldest first; revoked ones as well."""
        found: list[ApiKey] = await self._read(list_keys(user_id))
        return found

    async def find_key(self, public_id: str) -> ApiKey | None:
        """The key of that public id, good or not."""
        found: ApiKey | None = await self._read(find_key(public_id))
        return found

    async def revoke_key(self, public_id: str) -> ApiKey:
        """Take a key back. One that was taken back before stays so."""
        found: ApiKey = await self._write(revoke_key(public_id, self.clock()))
        return found

    async def note_key_used(self, public_id: str) -> None:
        """Remember that a key was used now."""
        now = to_micros(self.clock())
        statement = "UPDATE api_keys SET last_used_at = ? WHERE public_id = ? AND coalesce(last_used_at, 0) < ?"
        await self._write(VolatileOperation(lambda: _single_statement(statement, (now, public_id, now))))


def _single_statement(sql: str, arguments: tuple[Any, ...]) -> Generator[Statement, Rows, None]:
    yield sql, arguments


@operation
def create_key(key: ApiKey) -> Generator[Statement, Rows, None]:
    """Add a key."""
    made = yield (
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
    if not made:
        raise ConflictError("there is one already", where=f"key {key.public_id}", code="id_conflict")


@operation
def list_keys(user_id: str | None) -> Generator[Statement, Rows, list[ApiKey]]:
    """Keys, the oldest first."""
    where, arguments = ("", ()) if user_id is None else (" WHERE user_id = ?", (user_id,))
    rows = yield f"SELECT {_KEY} FROM api_keys{where} ORDER BY created_at, public_id", arguments
    return [_key_from_row(row) for row in rows]


@operation
def find_key(public_id: str) -> Generator[Statement, Rows, ApiKey | None]:
    """One key."""
    rows = yield f"SELECT {_KEY} FROM api_keys WHERE public_id = ?", (public_id,)
    return _key_from_row(rows[0]) if rows else None


@operation
def revoke_key(public_id: str, now: datetime) -> Generator[Statement, Rows, ApiKey]:
    """Take a key back."""
    rows = yield (
        f"UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE public_id = ? RETURNING {_KEY}",
        (to_micros(now), public_id),
    )
    if not rows:
        raise UnknownNameError(
            f"no key has the id {public_id!r}", remedy="See which there are with dragoman keys list", code="unknown_key"
        )
    return _key_from_row(rows[0])


def _key_from_row(row: tuple[Any, ...]) -> ApiKey:
    times = [None if value is None else from_micros(value) for value in row[6:]]
    assert times[0] is not None  # a column that is never empty
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
