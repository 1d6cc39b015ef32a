"""Tests of PostgreSQL only: server settings, failures, existing tables and the fast path."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from dragoman.errors import ConflictError, FormatError, StorageError, StoreUnusableError
from dragoman.ids import UlidSource
from dragoman.message import Message, MessageMetadata, Role, TextBlock, Usage
from dragoman.store import Store, open_store
from dragoman.store.engines.postgres import PostgresStore
from dragoman.store.engines.tables import migrations
from dragoman.store.operation import operation
from tests.store.conftest import connect
from tests.store.messages import text_message

_numbers = itertools.count(1)


@pytest.fixture
def url(postgres_server: str) -> str:
    """The URL of a new schema."""
    return f"{postgres_server}&schema=only_{next(_numbers)}"


@operation
def run_statement(sql: str, *arguments: Any) -> Generator[Any, Any, Any]:
    return (yield sql, arguments)


# --- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_server_with_unsafe_setting_is_rejected(url: str, setting: str) -> None:
    async with connect(url) as connection:
        await connection.execute(f"ALTER SYSTEM SET {setting} = off")
        await connection.execute("SELECT pg_reload_conf()")
        try:
            while await connection.fetchval(f"SHOW {setting}") != "off":
                await asyncio.sleep(0.01)
            with pytest.raises(StoreUnusableError, match=setting) as caught:
                await open_store(url).open()
            assert caught.value.code == "unsafe_store"
        finally:
            await connection.execute(f"ALTER SYSTEM RESET {setting}")
            await connection.execute("SELECT pg_reload_conf()")
            while await connection.fetchval(f"SHOW {setting}") != "on":
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("default", "expected"), [("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
)
async def test_synchronous_commit_is_at_least_on(url: str, default: str, expected: str) -> None:
    async with open_store(f"{url}&synchronous_commit={default}") as store:
        assert await store._write(run_statement("SHOW synchronous_commit")) == [(expected,)]
        assert store.durability == "power-safe"


async def test_database_without_utf8_is_rejected(postgres_server: str) -> None:
    async with connect(postgres_server) as connection:
        await connection.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(StoreUnusableError, match="server_encoding"):
        await open_store(postgres_server.replace("/postgres?", "/latin?")).open()


async def test_store_of_newer_version_is_rejected(url: str) -> None:
    async with open_store(url):
        pass
    async with connect(url) as connection:
        await connection.execute("INSERT INTO dragoman_steps VALUES (99, now())")
    with pytest.raises(StoreUnusableError, match="newer Dragoman") as caught:
        await open_store(url).open()
    assert caught.value.code == "newer_store"


async def test_negative_schema_number_is_rejected(url: str) -> None:
    async with open_store(url):
        pass
    async with connect(url) as connection:
        await connection.execute("DELETE FROM dragoman_steps; INSERT INTO dragoman_steps VALUES (-1, now())")
    with pytest.raises(StoreUnusableError, match="the header of the store is damaged"):
        await open_store(url).open()


async def _skip(*_: object) -> None:
    """Leave leases unchanged, as the first version did."""


async def _create_tables(url: str) -> None:
    """Create the tables."""
    store = open_store(url)
    await store.open()
    await store.close()


async def test_store_of_first_version_is_migrated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(f"{url}_now") as store:
        session = await store.create_session(user_id="ann")
        rows = await store.append(session.id, text_message("a word"))
    with monkeypatch.context() as earlier:
        earlier.setattr("dragoman.store.engines.postgres.migrations", lambda engine: migrations(engine)[:1])
        earlier.setattr("dragoman.store.engines.postgres.PostgresStore._restart_leases", _skip)
        await _create_tables(url)
    async with connect(url) as connection:
        for table in ("sessions", "messages"):
            columns = await connection.fetch(f"SELECT * FROM information_schema.columns WHERE table_name = '{table}'")
            schema = url.partition("&schema=")[2]
            own_columns = [
                item for item in columns if (item["table_schema"], item["is_generated"]) == (schema, "NEVER")
            ]
            names = ", ".join(item["column_name"] for item in own_columns)
            await connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {schema}_now.{table}")
        await connection.execute("UPDATE sessions SET indexed_seq = 0")
    async with open_store(url) as store:
        assert await store.read(session.id) == rows
        assert await store.list_sessions(user_id="ann") == [await store.get_session(session.id)]
        assert [hit.seq for hit in await store.search("word")] == [1]
        assert await store.trace.events(session.id) == []
        await store.evaluations.record(session.id, score=1)
        assert (await store.verify()).is_sound


async def test_foreign_tables_are_unchanged(url: str) -> None:
    schema = url.partition("&schema=")[2]
    async with connect(url) as connection:
        await connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.messages (mine TEXT)")
        with pytest.raises(StoreUnusableError, match="tables of another application") as caught:
            await open_store(url).open()
        assert caught.value.code == "not_a_store"
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
        assert [table["tablename"] for table in tables] == ["messages"]


async def test_schema_name_is_quoted(postgres_server: str) -> None:
    async with open_store(f"{postgres_server}&schema=a%20%22b%22%3B%20DROP") as store:
        session = await store.create_session()
        assert await store.get_session(session.id) == session


async def test_schemas_are_isolated(postgres_server: str, url: str) -> None:
    async with open_store(url) as first_store, open_store(f"{url}_b") as second_store:
        await first_store.create_session("mine")
        await second_store.create_session("mine")
        await first_store.append("mine", text_message("x"))
        assert await second_store.read("mine") == []


async def test_role_with_row_privileges_opens_existing_store(url: str) -> None:
    schema = url.partition("&schema=")[2]
    async with open_store(url):
        pass
    async with connect(url) as connection:
        await connection.execute(
            f"CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA {schema} TO guest;"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO guest"
        )
    async with open_store(url.replace("postgres:@", "guest:@")) as store:
        session = await store.create_session()
        rows = await store.append(session.id, text_message("x" * 100_000))
        assert await store.read(session.id) == rows
    with pytest.raises(StoreUnusableError, match="permission denied"):
        await open_store(f"{url.replace('postgres:@', 'guest:@')}_other").open()


@pytest.mark.parametrize(
    "url", ["postgresql://nobody@localhost:1/x", "postgresql:///x?host=/nowhere", "postgresql://localhost:port/x"]
)
async def test_unreachable_server_raises_without_password(url: str) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        await open_store(url).open()
    assert caught.value.code == "cannot_open"
    assert "password" not in str(caught.value)


def test_errors_and_repr_do_not_contain_password() -> None:
    store = PostgresStore("postgresql://me:secret@localhost:1/x")
    with pytest.raises(StoreUnusableError) as caught:
        asyncio.run(store.open())
    assert "secret" not in f"{caught.value!r} {store!r}"


def test_missing_extra_error_names_extra() -> None:
    program = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "import dragoman.store\n"
        "dragoman.store.open_store('sqlite:///x')\n"
        "try: dragoman.store.open_store('postgresql:///x')\n"
        "except dragoman.store.StoreUnusableError as error: print(error.code, error)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.startswith("missing_extra ")
    assert "dragoman[postgres]" in output


# --- failures --------------------------------------------------------------------------------------------------------


async def test_terminated_connections_are_replaced(url: str) -> None:
    async with open_store(url) as store, connect(url) as connection:
        session = await store.create_session()
        await asyncio.gather(*(store.append(session.id, text_message("x")) for _ in range(10)))
        for _ in range(3):
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dragoman'"
            )
            await asyncio.gather(*(store.append(session.id, text_message("x")) for _ in range(10)))
        assert [row.seq for row in await store.read(session.id)] == list(range(1, 41))


async def test_operation_is_retried_after_lost_connection(url: str) -> None:
    async with open_store(url) as store, connect(url) as connection:
        session = await store.create_session()
        backend_pids = list[int]()

        @operation
        def update_and_sleep() -> Generator[Any, Any, None]:
            rows = yield (
                "UPDATE sessions SET last_seq = last_seq + 1 WHERE id = ? RETURNING pg_backend_pid()",
                (session.id,),
            )
            backend_pids.append(rows[0][0])
            yield "SELECT pg_sleep(?)", (30.0 if len(backend_pids) == 1 else 0.0,)

        write = asyncio.create_task(store._write(update_and_sleep()))
        while not backend_pids:
            await asyncio.sleep(0.01)
        await connection.execute("SELECT pg_terminate_backend($1)", backend_pids[0])
        await write
        assert len(backend_pids) == 2
        assert (await store.get_session(session.id)).last_seq == 1


async def test_cancelled_statement_leaves_no_transaction(url: str) -> None:
    """The driver prepares a new statement in its own transaction, which a cancellation used to leave open."""
    async with open_store(f"{url}&connections=1") as store:
        for number in range(100):
            task = asyncio.create_task(store._run_statement((f"SELECT count(*), {number} FROM messages", ())))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await store._read(run_statement("SELECT count(*) FROM messages")) == [(0,)]


async def test_deadlock_is_resolved_by_retry(url: str) -> None:
    async with open_store(url) as store:
        sessions = [(await store.create_session()).id for _ in range(2)]
        attempts, holders = list[str](), set[str]()

        @operation
        def update_both(first: str, second: str) -> Generator[Any, Any, None]:
            attempts.append(first)
            yield "UPDATE sessions SET last_seq = last_seq + 1 WHERE id = ?", (first,)
            holders.add(first)
            while len(holders) < 2:  # until each holds the row that the other needs
                yield "SELECT pg_sleep(0.01)", ()
            yield "UPDATE sessions SET last_seq = last_seq + 1 WHERE id = ?", (second,)

        await asyncio.gather(store._write(update_both(*sessions)), store._write(update_both(*reversed(sessions))))
        assert len(attempts) == 3
        assert [(await store.get_session(session_item)).last_seq for session_item in sessions] == [2, 2]


async def test_open_is_retried_after_deadlock(url: str) -> None:
    async with open_store(url), connect(url) as connection:
        await connection.execute(
            "CREATE SEQUENCE attempts;"
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN IF nextval(''attempts'') < 3 THEN RAISE deadlock_detected; END IF; RETURN NULL; END';"
            "CREATE TRIGGER fails BEFORE UPDATE ON outbox EXECUTE FUNCTION fail()"
        )
        async with open_store(url) as store:
            await store.create_session()
        assert await connection.fetchval("SELECT last_value FROM attempts") == 3


@pytest.mark.parametrize(
    ("sqlstate", "code"), [("53100", "disk_full"), ("53200", "storage_failed"), ("25006", "storage_failed")]
)
async def test_failed_write_raises_cause_and_reads_continue(url: str, sqlstate: str, code: str) -> None:
    async with open_store(url) as store, connect(url) as connection:
        session = await store.create_session()
        rows = await store.append(session.id, text_message("1"))
        await connection.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN RAISE EXCEPTION ''could not extend file'' USING ERRCODE = ''{sqlstate}''; END';"
            "CREATE TRIGGER fails BEFORE INSERT ON messages EXECUTE FUNCTION fail()"
        )
        with pytest.raises(StorageError) as caught:
            await store.append(session.id, text_message("2"))
        assert caught.value.code == code
        assert await store.read(session.id) == rows
        await connection.execute("DROP TRIGGER fails ON messages")
        await store.append(session.id, text_message("2"))
        assert [row.seq for row in await store.read(session.id)] == [1, 2]


async def test_store_recovers_after_server_restart(postgres: Any, url: str) -> None:
    async with open_store(url) as store:
        session = await store.create_session()
        await store.append(session.id, text_message("1"))
        await asyncio.to_thread(postgres.stop)
        try:
            with pytest.raises(StorageError) as caught:
                await store.append(session.id, text_message("lost"))
            assert caught.value.code == "storage_failed"
            with pytest.raises(StorageError):
                await store.read(session.id)
        finally:
            await asyncio.to_thread(postgres.ensure_postgres_running)
        await store.append(session.id, text_message("2"))
        assert [row.message.content[0].text for row in await store.read(session.id)] == ["1", "2"]  # type: ignore[union-attr]


async def test_number_out_of_range_is_rejected(url: str) -> None:
    async with open_store(url) as store:
        with pytest.raises(FormatError):
            await store._read(run_statement("SELECT 1 FROM sessions WHERE last_seq = ?", 2**70))


# --- running ---------------------------------------------------------------------------------------------------------


async def test_read_uses_one_snapshot_and_cannot_write(url: str) -> None:
    async with open_store(url) as store:
        session = await store.create_session()
        has_read, is_appended = asyncio.Event(), list[bool]()

        @operation
        def read_twice() -> Generator[Any, Any, tuple[int, int]]:
            before = yield "SELECT last_seq FROM sessions WHERE id = ?", (session.id,)
            has_read.set()
            while not is_appended:
                yield "SELECT pg_sleep(0.01)", ()
            after = yield "SELECT last_seq FROM sessions WHERE id = ?", (session.id,)
            return before[0][0], after[0][0]

        read = asyncio.create_task(store._read(read_twice()))
        await has_read.wait()
        await store.append(session.id, text_message("x"))
        is_appended.append(True)
        assert await read == (0, 0)
        with pytest.raises(StorageError):
            await store._read(run_statement("UPDATE sessions SET title = 'x'"))


async def test_metadata_can_be_queried_as_json(url: str) -> None:
    async with open_store(url) as store:
        session = await store.create_session(metadata={"project": "x", "odd": "a\0b"})
        other = await store.create_session(metadata={"project": "x"})
        await store.append(
            other.id, [text_message("1", run_id="r1"), text_message("2", run_id="r2"), text_message("3", run_id="a\0b")]
        )
        found = await store._read(run_statement("SELECT id FROM sessions WHERE metadata ->> 'project' = 'x'"))
        assert found == [(other.id,)]  # jsonb cannot hold a NUL; the text beside it does
        assert (await store.get_session(session.id)).metadata["odd"] == "a\0b"
        found = await store._read(run_statement("SELECT seq FROM messages WHERE metadata ->> 'run_id' = 'r2'"))
        assert found == [(2,)]


async def test_unique_indexes_start_with_session(url: str) -> None:
    async with open_store(url), connect(url) as connection:
        keys = await connection.fetch(
            "SELECT c.relname AS name, a.attname AS leads FROM pg_index i"
            " JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
            " WHERE i.indisunique AND n.nspname = $1",
            url.partition("&schema=")[2],
        )
    without = {"blobs", "blob_states", "erasures", "past_usage", "api_keys", "preferences", "dragoman_steps"}
    without |= {"shares"}  # a share leads to its session
    without |= {"mail_origins", "lease_clock"}  # tables with one row
    mail = {"letters", "mailboxes", "inbox", "outbox", "dead_letters", "sealed_values"}
    tasks = {"task_states", "task_needs"}
    assert {(key["name"], key["leads"]) for key in keys if key["name"] in mail} == {(n, "recipient_id") for n in mail}
    assert {(key["name"], key["leads"]) for key in keys if key["name"] in tasks} == {(n, "task_id") for n in tasks}
    gateway = {("gateway_transcripts", "hash"), ("gateway_objects", "owner")}  # these lead to a session
    assert {(key["name"], key["leads"]) for key in keys if key["name"].startswith("gateway_")} == gateway
    without |= mail | tasks | {name for name, _ in gateway}  # without a session
    assert {(key["name"], key["leads"]) for key in keys if key["name"] not in without} == {
        (name, "id" if name == "sessions" else "session_id") for name in {key["name"] for key in keys} - without
    }
    assert len(keys) > 8


async def test_concurrent_writers_share_few_connections(url: str) -> None:
    async with open_store(f"{url}&connections=3") as store:
        sessions = [(await store.create_session()).id for _ in range(4)]
        await asyncio.gather(*(store.append(sessions[number % 4], text_message("x")) for number in range(100)))
        assert [(await store.get_session(session_item)).last_seq for session_item in sessions] == [25] * 4


def test_postgres_store_is_store() -> None:
    assert issubclass(PostgresStore, Store)


# --- the fast path ---------------------------------------------------------------------------------------------------


def _create_appends(session_id: str, ids: UlidSource) -> list[tuple[list[Message], str | None]]:
    """Return every kind of append that uses a single statement."""
    usage = Usage(input_tokens=7, output_tokens=3, cost_usd=Decimal("0.0012"), pricing_version="1", latency_ms=5)
    answer = MessageMetadata(model="m", provider="p", user_id="ann", usage=usage)

    def make(role: Role, text: str, metadata: MessageMetadata = MessageMetadata()) -> Message:  # noqa: B008
        at = datetime(2026, 5, 8, tzinfo=UTC)
        return Message(ids.next(), session_id, role, (TextBlock(text),), metadata, at)

    return [
        ([make(Role.USER, "one")], None),
        ([make(Role.ASSISTANT, "two", answer)], None),
        ([make(Role.USER, "three"), make(Role.ASSISTANT, "four", answer), make(Role.USER, "🎉")], "key"),
        ([make(Role.ASSISTANT, "five", answer), make(Role.ASSISTANT, "six", answer)], "other key"),
    ]


async def _read_rows_after(url: str, appends: list[tuple[list[Message], str | None]], *, is_fast: bool) -> list[Any]:
    """Return the rows of all tables after these appends."""
    store = PostgresStore(url, clock=lambda: datetime(2026, 5, 9, tzinfo=UTC))
    await store.open()
    await store.search_index.stop()
    await store.create_session("s")
    with pytest.MonkeyPatch.context() as patch:
        if is_fast:
            patch.setattr(store, "_run_once", None)  # forbid transactions
        else:
            patch.setattr(PostgresStore, "_try_append", Store._try_append)
        for messages, key in appends:
            await store.append("s", messages, idempotency_key=key)
    tables = ("sessions", "messages", "usage", "idempotency")
    rows = [await store._read(run_statement(f"SELECT * FROM {table} ORDER BY 1, 2, 3")) for table in tables]
    assert (await store.verify()).is_sound
    await store.close()
    return rows


async def test_fast_path_stores_same_rows(url: str) -> None:
    appends = _create_appends("s", UlidSource(lambda: 1, lambda: 1))
    rows = await _read_rows_after(f"{url}_fast", appends, is_fast=True)
    assert [len(table) for table in rows] == [1, 7, 4, 2]
    assert rows == await _read_rows_after(f"{url}_general", appends, is_fast=False)


async def test_fast_path_detects_append_of_other_server(url: str) -> None:
    async with open_store(url) as here, open_store(url) as there:
        session = (await here.create_session()).id
        for at in range(6):
            (row,) = await (here, there)[at % 2].append(session, text_message(f"word {at}"))
            assert row.seq == at + 1
        with pytest.raises(ConflictError):
            await here.append(session, text_message("late"), expected_seq=5)
        (repeated,) = await here.append(session, text_message("one"), idempotency_key="k")
        assert [repeated] == await there.append(session, text_message("one"), idempotency_key="k")
        with pytest.raises(ConflictError, match="idempotency key"):
            await there.append(session, text_message("two"), idempotency_key="k")
        assert len(await here.read(session)) == 7


async def test_append_is_stored_once_after_lost_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(url) as store:
        assert isinstance(store, PostgresStore)
        session = (await store.create_session()).id
        run_statement = store._run_statement

        async def lose_response(statement: Any) -> Any:
            await run_statement(statement)
            return []  # committed, but the response is lost

        monkeypatch.setattr(store, "_run_statement", lose_response)
        monkeypatch.setattr(store._append_groups, "_run", lose_response)
        store._ends[session] = (0, "")
        (row,) = await store.append(session, text_message("a word"))
        assert [row] == await store.read(session)


async def test_grouped_appends_share_statement_and_conflict_separately(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(url) as store, open_store(url) as other:
        assert isinstance(store, PostgresStore)
        run_statement, statements = store._run_statement, []

        async def count(statement: Any) -> Any:
            statements.append(statement)
            return await run_statement(statement)

        sessions = [(await store.create_session()).id for _ in range(20)]
        for session in sessions:
            await store.append(session, text_message("first"))
        monkeypatch.setattr(store._append_groups, "_run", count)
        await asyncio.gather(
            *(store.append(session, [text_message("second"), text_message("third")]) for session in sessions)
        )
        assert len(statements) < 20
        await other.append(sessions[10], text_message("by another server"))
        results = await asyncio.gather(
            *(store.append(session, text_message("fourth"), expected_seq=3) for session in sessions),
            return_exceptions=True,
        )
        assert [number for number, result in enumerate(results) if isinstance(result, ConflictError)] == [10]
        assert {(await store.get_session(session)).last_seq for session in sessions} == {4}
        assert [row.seq for row in await other.read(sessions[11])] == [1, 2, 3, 4]
        assert len(await other.search("fourth", limit=50)) == 19
        assert (await store.verify()).is_sound


async def test_cancelled_append_does_not_affect_group(url: str) -> None:
    async with open_store(url) as store:
        sessions = [(await store.create_session()).id for _ in range(8)]
        for session in sessions:
            await store.append(session, text_message("first"))
        tasks = [asyncio.create_task(store.append(session, text_message("second"))) for session in sessions]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, list) for number, result in enumerate(results) if number % 3)
        (row,) = await store.append(sessions[0], text_message("third"))
        assert [row.seq for row in await store.read(sessions[0])] == list(range(1, row.seq + 1))
        assert (await store.verify()).is_sound


async def test_grouped_appends_are_stored_once_after_lost_response(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(url) as store:
        assert isinstance(store, PostgresStore)
        sessions = [(await store.create_session()).id for _ in range(8)]
        for session in sessions:
            await store.append(session, text_message("first"))
        run_statement = store._run_statement

        async def lose_response(statement: Any) -> Any:
            await run_statement(statement)
            return []

        monkeypatch.setattr(store, "_run_statement", lose_response)
        monkeypatch.setattr(store._append_groups, "_run", lose_response)
        await asyncio.gather(*(store.append(session, text_message("second")) for session in sessions))
        assert [len(await store.read(session)) for session in sessions] == [2] * 8
