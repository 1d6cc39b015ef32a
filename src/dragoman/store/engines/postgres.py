"""PostgreSQL: one database for many servers, power-safe.

Every operation is one transaction on a connection of a pool. An operation that writes to a session locks its row first,
so the writers of one session take turns and those of different sessions run in parallel. An operation that reads uses
one snapshot. An operation that a deadlock or a lost connection rolled back before its commit was sent is retried.

Blobs are stored in a table of the same database unless another location is configured: servers share no folder. Every
key starts with the session, as a database that is distributed by session needs; only ``blobs`` and ``erasures`` belong
to no session.

Servers exchange signals with LISTEN and NOTIFY (``postgres_signals``). Behind a pooler that shares connections between
transactions, such as PgBouncer in transaction mode, no statement is prepared by name, every statement is part of an
explicit transaction, which also sets the schema, and servers poll.

Invariant: nothing is acknowledged before its commit has returned with ``synchronous_commit`` on, from a server that
syncs. A server with unsafe settings is detected at the start, and the store is not opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from dragoman.errors import CorruptDataError, FormatError, StorageError, StoreUnusableError
from dragoman.store.blobs import Blob, Blobs, verify_blob
from dragoman.store.engines import single_statement
from dragoman.store.engines.append_groups import AppendGroups
from dragoman.store.engines.tables import check_version, migrations
from dragoman.store.lease_clock import restart_leases
from dragoman.store.message_writer import Draft, MessageRange, SessionEnd
from dragoman.store.operation import (
    AnyOperation,
    LooseOperation,
    Outcome,
    Rows,
    Statement,
    Steps,
    operation,
    validate_arguments,
)
from dragoman.store.runs import Run, RunEnd
from dragoman.store.store import Store, now_utc

try:
    import asyncpg  # type: ignore[import-untyped]

    from dragoman.store.engines.postgres_signals import NOTIFY, PostgresSignals
except ImportError:
    raise StoreUnusableError(
        "PostgreSQL needs a package that is not installed",
        remedy="Run pip install 'dragoman[postgres]'",
        code="missing_extra",
    ) from None

if TYPE_CHECKING:
    Connection = Any
    Pool = Any

_MIN_VERSION: Final = 14
_CONNECTIONS: Final = 10
_MIGRATION_LOCK: Final = 0x44524147  # "DRAG"
_CLOSE_TIMEOUT_S: Final = 20
_PAUSES_S: Final = (0.02, 0.1, 0.5, 1.5)  # before a retry of an operation
_SAFE_SETTINGS: Final = {"fsync": "on", "full_page_writes": "on", "server_encoding": "UTF8"}
_SAFE_COMMITS: Final = ("on", "remote_apply")
_SETTINGS: Final = (*_SAFE_SETTINGS, "synchronous_commit")
_OPTIONS: Final = ("schema", "connections", "pooler")  # our options in the URL

_ROLLBACK_ERRORS: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_CONNECTION_ERRORS: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised for a connection lost during a query
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    OSError,
)


class PostgresStore(Store):
    """Sessions in a PostgreSQL database."""

    engine = "postgres"
    durability = "power-safe"

    def __init__(self, url: str, blobs: Blobs | None = None, clock: Callable[[], Any] = now_utc) -> None:
        self._dsn, options = _options_from(url)
        self._schema = options.get("schema")
        self._connections = int(options.get("connections", _CONNECTIONS))
        self._pooler = options.get("pooler")  # "none" or "transaction"; detected if unset
        self._setup = ""  # statements at the start of each transaction
        self._pool: Pool | None = None
        self._append_groups = AppendGroups(self._run_statement)
        super().__init__(blobs if blobs is not None else PostgresBlobs(self), clock)
        self.signals: PostgresSignals = PostgresSignals(self._connect_listener, self._send_signal, self._schema or "")

    async def open(self) -> None:
        try:
            pool = await self._open_pool()
        except (asyncpg.PostgresError, *_CONNECTION_ERRORS, ValueError) as error:
            remedy = "Check that the server runs, and the host, port, user and database of the URL"
            raise self._open_error(error, remedy) from None
        try:
            async with pool.acquire() as connection:
                await self._check(connection)
                await self._migrate(connection)
                await self._restart_leases(connection)
        except (asyncpg.PostgresError, *_CONNECTION_ERRORS) as error:
            await pool.close()
            raise self._open_error(error) from None
        except StoreUnusableError:
            await pool.close()
            raise
        self._pool = pool
        if not self.uses_pooler:
            self.signals.start()
        self.search_index.start()

    async def close(self) -> None:
        await self.search_index.stop()
        await self.signals.stop()
        pool, self._pool = self._pool, None
        if pool is not None:
            with contextlib.suppress(TimeoutError):  # do not wait for a server that does not respond
                await asyncio.wait_for(pool.close(), _CLOSE_TIMEOUT_S)

    @property
    def uses_pooler(self) -> bool:
        """Whether a pooler is between this process and the server."""
        return self._pooler == "transaction"

    @property
    def _where(self) -> str:
        """The URL without its password."""
        parts = urlsplit(self._dsn)
        return f"{parts.hostname or 'local server'}{parts.path}{f', schema {self._schema}' if self._schema else ''}"

    # --- opening -----------------------------------------------------------------------------------------------------

    async def _open_pool(self) -> Pool:
        """Open a pool of connections in the way that the server or pooler allows."""
        if self._pooler is None:
            try:
                pool = await self._connect_pool()
            except asyncpg.ProtocolViolationError:  # a pooler may reject the parameter search_path
                self._pooler = "transaction"
            else:
                self._pooler = "transaction" if await _is_pooler(pool) else "none"
                if not self.uses_pooler:
                    return pool
                await pool.close()
        return await self._connect_pool()

    async def _connect_pool(self) -> Pool:
        return await asyncpg.create_pool(
            self._dsn,
            min_size=1,
            max_size=self._connections,
            reset=_skip_reset,
            server_settings=self._server_settings(),
            **({"statement_cache_size": 0} if self.uses_pooler else {}),
        )

    def _server_settings(self) -> dict[str, str]:
        settings = {"application_name": "dragoman"}
        if self._schema is not None and not self.uses_pooler:
            settings["search_path"] = _quote_name(self._schema)
        return settings

    async def _connect_listener(self) -> Connection:
        return await asyncpg.connect(self._dsn, server_settings={"application_name": "dragoman signals"})

    async def _send_signal(self, channel: str, payload: str) -> None:
        async with self._connection() as connection:
            await connection.execute(NOTIFY, channel, payload)

    @contextlib.asynccontextmanager
    async def _transaction(self, connection: Connection) -> AsyncIterator[None]:
        """A transaction with its settings."""
        async with connection.transaction():
            if self._setup:
                await connection.execute(self._setup)
            yield

    async def _check(self, connection: Connection) -> None:
        version = connection.get_server_version()
        if version.major < _MIN_VERSION:
            raise self._unsafe_error(
                f"the server is PostgreSQL {version.major}, and PostgreSQL {_MIN_VERSION} or later is required"
            )
        async with connection.transaction():
            settings = {name: await connection.fetchval(f"SHOW {name}") for name in _SETTINGS}
        for name, expected in _SAFE_SETTINGS.items():
            if settings[name] != expected:
                raise self._unsafe_error(
                    f"{name} is {settings[name]!r} and should be {expected!r}; an answer could be lost"
                )
        setup = []
        if settings["synchronous_commit"] not in _SAFE_COMMITS:
            setup.append("SET LOCAL synchronous_commit = on")
        if self._schema is not None and self.uses_pooler:
            setup.append(f"SET LOCAL search_path = {_quote_name(self._schema)}")
        self._setup = "; ".join(setup)

    def _open_error(self, error: Exception, remedy: str = "") -> StoreUnusableError:
        what = f"it cannot be opened ({error})"
        return StoreUnusableError(what, where=self._where, remedy=remedy, code="cannot_open")

    def _unsafe_error(self, what: str) -> StoreUnusableError:
        return StoreUnusableError(what, where=self._where, remedy="Change the server's settings, or use another server")

    async def _migrate(self, connection: Connection) -> None:
        """Apply the missing migrations in one transaction, which can roll back changes of tables; no copy is needed."""
        steps = migrations("postgres")
        async with self._transaction(connection):
            if await self._version(connection) == len(steps):
                return
        try:
            async with self._transaction(connection):
                await connection.execute(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
                if self._schema is not None:
                    await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quote_name(self._schema)}")
                version = await self._version(connection)
                if version == 0:
                    await connection.execute(
                        "CREATE TABLE dragoman_steps (number BIGINT PRIMARY KEY, taken_at TIMESTAMPTZ NOT NULL)"
                    )
                for number in range(version, len(steps)):
                    await connection.execute(steps[number])
                    await connection.execute("INSERT INTO dragoman_steps VALUES ($1, now())", number + 1)
        except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
            raise StoreUnusableError(
                f"the database has tables of another application ({error})",
                where=self._where,
                remedy="Name another database, or a schema: postgresql://…?schema=dragoman",
                code="not_a_store",
            ) from None

    async def _restart_leases(self, connection: Connection) -> None:
        """Restart the leases, with retries after a rollback: other processes update them in another order."""
        for pause_s in _PAUSES_S:
            with contextlib.suppress(*_ROLLBACK_ERRORS):
                return await self._restart_leases_once(connection)
            await asyncio.sleep(pause_s)
        await self._restart_leases_once(connection)

    async def _restart_leases_once(self, connection: Connection) -> None:
        async with self._transaction(connection):
            await _run_operation(connection, restart_leases(None))

    async def _version(self, connection: Connection) -> int:
        if await connection.fetchval("SELECT to_regclass('dragoman_steps')") is None:
            return 0
        version: int = await connection.fetchval("SELECT coalesce(max(number), 0) FROM dragoman_steps")
        check_version(version, "postgres", self._where)
        return version

    # --- running -----------------------------------------------------------------------------------------------------

    async def _write(self, operation: AnyOperation[Outcome]) -> Outcome:
        return await self._run_with_retries("BEGIN", operation)

    async def _read(self, operation: AnyOperation[Outcome]) -> Outcome:
        if isinstance(operation, LooseOperation) and not self._setup and not self.uses_pooler:
            with contextlib.suppress(_RetryableError, *_ROLLBACK_ERRORS, *_CONNECTION_ERRORS):
                async with self._connection() as connection:
                    return await _run_operation(connection, operation)
        return await self._run_with_retries("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", operation)

    async def _run_with_retries(self, begin: str, operation: AnyOperation[Outcome]) -> Outcome:
        """Run an operation, with retries after a rollback; ``StorageError`` if the last retry fails."""
        for pause in _PAUSES_S:
            try:
                return await self._run_once(begin, operation)
            except _RetryableError as error:
                if isinstance(operation, Generator):  # a started generator cannot run again
                    raise _translate_error(error.cause) from error.cause
                await asyncio.sleep(pause)
        try:
            return await self._run_once(begin, operation)
        except _RetryableError as error:
            raise _translate_error(error.cause) from error.cause

    async def _run_once(self, begin: str, operation: AnyOperation[Outcome]) -> Outcome:
        """Run an operation in one transaction; ``_RetryableError`` if it was rolled back and a retry may succeed."""
        async with self._connection() as connection:
            try:
                await connection.execute(f"{begin}; {self._setup}" if self._setup else begin)
                result = await _run_operation(connection, operation)
            except Exception as error:  # noqa: BLE001  raised again, translated
                with contextlib.suppress(asyncpg.PostgresError, *_CONNECTION_ERRORS):
                    await connection.execute("ROLLBACK")
                if isinstance(error, (*_ROLLBACK_ERRORS, *_CONNECTION_ERRORS)):
                    raise _RetryableError(error) from None
                raise _translate_error(error) from None
            try:
                await connection.execute("COMMIT")
            except (asyncpg.PostgresError, *_CONNECTION_ERRORS) as error:
                if isinstance(error, _ROLLBACK_ERRORS):
                    raise _RetryableError(error) from None
                raise _translate_error(error) from error
        return result

    # --- fast path ---------------------------------------------------------------------------------------------------

    async def _try_append(
        self,
        session_id: str,
        drafts: Sequence[Draft],
        *,
        now: datetime,
        expected_seq: int | None,
        idempotency_key: str | None,
    ) -> MessageRange | None:
        """Append with one statement where this process appended last, with two where another one did."""
        if idempotency_key is not None and not idempotency_key.isascii():
            return None  # the general operation validates it
        fields: dict[str, Any] = {"now": now, "expected_seq": expected_seq, "key": idempotency_key}
        end = self._ends.get(session_id)
        places = None if end is None else await self._append_at(session_id, drafts, end, **fields)
        if places is None and (rows := await self._run_statement(single_statement.end_statement(session_id))):
            places = await self._append_at(session_id, drafts, (rows[0][0], rows[0][1]), **fields)
        return places

    async def _append_at(
        self, session_id: str, drafts: Sequence[Draft], end: SessionEnd, *, expected_seq: int | None, **fields: Any
    ) -> MessageRange | None:
        if not single_statement.can_append(drafts, end, expected_seq):
            return None
        if fields["key"] is None and not any(draft.message.metadata.usage for draft in drafts):
            seqs = await self._append_groups.append(session_id, drafts, end, fields["now"])
        else:
            rows = await self._run_statement(single_statement.append_statement(session_id, drafts, end, **fields))
            seqs = sorted(seq for (seq,) in rows)
        return MessageRange(seqs, (seqs[-1], drafts[-1].columns.id)) if seqs else None

    async def _try_append_events(
        self, run: Run, after: int, events: Sequence[str], end: RunEnd | None = None
    ) -> bool | None:
        if not events:
            return None
        statement = single_statement.append_events_statement(run, after, events, end, self.clock())
        return bool(await self._run_statement(statement)) or None

    async def _run_statement(self, statement: Statement) -> Rows:
        """Run a statement that commits by itself; no rows if it failed, so that the general operation is run.

        If a connection is lost, the statement may have been committed. The general operations notice that.
        """
        sql, arguments = statement
        try:
            if self._setup or self.uses_pooler:
                return await self._write(_query(sql, *arguments))
            async with self._connection() as connection:
                rows = await connection.fetch(_number_placeholders(sql), *validate_arguments(arguments))
        except (asyncpg.PostgresError, *_CONNECTION_ERRORS, _RetryableError, StorageError, UnicodeEncodeError):
            return []
        return [tuple(row) for row in rows]

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """Yield a connection of the pool.

        A cancelled statement can leave its connection in a transaction without the driver noticing, so that connection
        is closed. The server rolls back.
        """
        if self._pool is None:
            raise StoreUnusableError("it is not open", where=self._where, remedy="Use it inside 'async with'")
        try:
            connection = await self._pool.acquire()
        except (asyncpg.PostgresError, *_CONNECTION_ERRORS) as error:
            raise _RetryableError(error) from None
        try:
            yield connection
        except asyncio.CancelledError:
            connection.terminate()
            raise
        finally:
            await self._pool.release(connection)


class _RetryableError(Exception):
    """An operation was rolled back completely, and a retry may succeed."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def _run_operation(connection: Connection, operation: AnyOperation[Outcome]) -> Outcome:
    steps = iter(operation)
    try:
        sql, arguments = next(steps)
        while True:
            rows = await connection.fetch(_number_placeholders(sql), *validate_arguments(arguments))
            sql, arguments = steps.send([tuple(row) for row in rows])
    except StopIteration as stop:
        result: Outcome = stop.value
        return result


@functools.cache
def _number_placeholders(sql: str) -> str:
    """Return the statement with the placeholders of PostgreSQL: $1, $2, …"""
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))


async def _is_pooler(pool: Pool) -> bool:
    """Whether another backend than the connected one executes the statement."""
    async with pool.acquire() as connection, connection.transaction():
        return bool(await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid())


async def _skip_reset(_: Connection) -> None:
    """Skip the reset: no operation changes the state of a connection, so a round trip is saved."""


def _translate_error(error: BaseException) -> BaseException:
    match error:
        case asyncpg.DiskFullError():
            return StorageError(
                "the server's disk is full; nothing was stored", remedy="Make room, and try again", code="disk_full"
            )
        case asyncpg.DeadlockDetectedError() | asyncpg.SerializationError():
            return StorageError("every attempt conflicted with another transaction; nothing was stored")
        case asyncpg.DataError():
            return FormatError(f"the value cannot be stored ({error})")
        case UnicodeEncodeError():
            return FormatError(f"a lone surrogate at character {error.start} of a text")
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return CorruptDataError(f"the database is damaged ({error})")
        case asyncpg.InsufficientResourcesError() | asyncpg.ReadOnlySQLTransactionError():
            return StorageError(f"the server rejected the statement ({error}); nothing was stored")
        case (
            asyncpg.PostgresConnectionError()
            | asyncpg.OperatorInterventionError()
            | asyncpg.InternalClientError()
            | OSError()
        ):
            return _connection_lost_error(error)
        case asyncpg.InterfaceError() if not isinstance(error, ValueError):
            return _connection_lost_error(error)
        case _:
            return error


def _connection_lost_error(error: BaseException) -> StorageError:
    return StorageError(f"the connection to the server was lost ({error}); it is unknown whether the data was stored")


# --- the URL ---------------------------------------------------------------------------------------------------------


def _options_from(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without our own options, and these options."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: options.pop(name) for name in list(options) if name in _OPTIONS}
    if own.get("pooler", "none") not in ("none", "transaction"):
        raise StoreUnusableError(
            f"the option pooler is {own['pooler']!r}", remedy="Use pooler=none or pooler=transaction, or omit it"
        )
    return urlunsplit(parts._replace(query=urlencode(options))), own


def _quote_name(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


# --- blobs -----------------------------------------------------------------------------------------------------------


class PostgresBlobs:
    """Blobs in a table of the same database."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def put(self, sha256: str, data: bytes) -> None:
        await self._store._write(_put_blob(sha256, data))

    async def get(self, sha256: str) -> bytes:
        rows = await self._store._read(_query("SELECT data FROM blobs WHERE sha256 = ?", sha256))
        return verify_blob(sha256, rows[0][0] if rows else None, "table blobs")

    async def delete(self, sha256: str) -> None:
        await self._store._write(_query("DELETE FROM blobs WHERE sha256 = ?", sha256))

    async def list(self) -> AsyncIterator[Blob]:
        last = ""
        page = "SELECT sha256, length(data), touched_at FROM blobs WHERE sha256 > ? ORDER BY sha256 LIMIT 1000"
        while rows := await self._store._read(_query(page, last)):
            for sha256, size, touched_at in rows:
                yield Blob(sha256, size, touched_at)
            last = rows[-1][0]


@operation
def _query(sql: str, *arguments: Any) -> Steps[Rows]:
    return (yield sql, arguments)


@operation
def _put_blob(sha256: str, data: bytes) -> Steps[None]:
    now = "extract(epoch FROM clock_timestamp())"
    rows = yield f"UPDATE blobs SET touched_at = {now} WHERE sha256 = ? RETURNING 1", (sha256,)
    if not rows:
        yield (
            f"INSERT INTO blobs (sha256, data, touched_at) VALUES (?, ?, {now})"
            f" ON CONFLICT (sha256) DO UPDATE SET touched_at = excluded.touched_at",
            (sha256, data),
        )
