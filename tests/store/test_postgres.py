"""PostgreSQL only: the server's settings, its failures, and existing tables."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from dragoman.errors import ConflictError, FormatError, StorageError, StoreUnusableError
from dragoman.ids import UlidSource
from dragoman.message import Message, MessageMetadata, Role, TextBlock, Usage
from dragoman.store import Store, open_store
from dragoman.store.engines.postgres import PostgresStore
from dragoman.store.engines.tables import migrations
from dragoman.store.operation import operation
from tests.store.messages import text_message

_numbers = itertools.count(1)


@pytest.fixture
def url(postgres_server: str) -> str:
    """A fresh schema."""
    return f"{postgres_server}&schema=only_{next(_numbers)}"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """A connection to the server, beside every store."""
    connection = await asyncpg.connect(url.partition("&schema=")[0])
    try:
        schema = url.partition("&schema=")[2]
        if schema:
            await connection.execute(f"SET search_path = {schema}")
        yield connection
    finally:
        await connection.close()


@operation
def asked(sql: str, *arguments: Any) -> Generator[Any, Any, Any]:
    return (yield sql, arguments)


# --- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_a_server_that_does_not_keep_what_it_says_is_refused(url: str, setting: str) -> None:
    async with connected(url) as connection:
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
    ("default", "used"), [("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
)
async def test_every_commit_waits_for_the_disk_whatever_the_default_is(url: str, default: str, used: str) -> None:
    async with open_store(f"{url}&synchronous_commit={default}") as store:
        assert await store._write(asked("SHOW synchronous_commit")) == [(used,)]
        assert store.durability == "power-safe"


async def test_a_database_that_cannot_hold_every_character_is_refused(postgres_server: str) -> None:
    async with connected(postgres_server) as connection:
        await connection.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(StoreUnusableError, match="server_encoding"):
        await open_store(postgres_server.replace("/postgres?", "/latin?")).open()


async def test_a_store_of_a_newer_version_is_refused_and_left_alone(url: str) -> None:
    async with open_store(url):
        pass
    async with connected(url) as connection:
        await connection.execute("INSERT INTO dragoman_steps VALUES (99, now())")
    with pytest.raises(StoreUnusableError, match="newer Dragoman") as caught:
        await open_store(url).open()
    assert caught.value.code == "newer_store"


async def test_a_store_whose_schema_number_is_below_zero_is_refused(url: str) -> None:
    async with open_store(url):
        pass
    async with connected(url) as connection:
        await connection.execute("DELETE FROM dragoman_steps; INSERT INTO dragoman_steps VALUES (-1, now())")
    with pytest.raises(StoreUnusableError, match="the header of the store is damaged"):
        await open_store(url).open()


async def _nothing(*_: object) -> None:
    """Do nothing about leases, as the first version did when it opened a store."""


async def _only_made(url: str) -> None:
    """Make the tables."""
    store = open_store(url)
    await store.open()
    await store.close()


async def test_a_store_of_the_first_version_gets_what_it_lacks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(f"{url}_now") as store:
        session = await store.create_session(user_id="ann")
        rows = await store.append(session.id, text_message("a word"))
    with monkeypatch.context() as earlier:
        earlier.setattr("dragoman.store.engines.postgres.migrations", lambda engine: migrations(engine)[:1])
        earlier.setattr("dragoman.store.engines.postgres.PostgresStore._restart_leases", _nothing)
        await _only_made(url)
    async with connected(url) as connection:
        for table in ("sessions", "messages"):
            told = await connection.fetch(f"SELECT * FROM information_schema.columns WHERE table_name = '{table}'")
            schema = url.partition("&schema=")[2]
            kept = [one for one in told if (one["table_schema"], one["is_generated"]) == (schema, "NEVER")]
            names = ", ".join(one["column_name"] for one in kept)
            await connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {schema}_now.{table}")
        await connection.execute("UPDATE sessions SET indexed_seq = 0")
    async with open_store(url) as store:
        assert await store.read(session.id) == rows
        assert await store.list_sessions(user_id="ann") == [await store.get_session(session.id)]
        assert [hit.seq for hit in await store.search("word")] == [1]
        assert await store.trace.events(session.id) == []
        await store.evaluations.record(session.id, score=1)
        assert (await store.verify()).is_sound


async def test_tables_of_another_application_are_left_alone(url: str) -> None:
    schema = url.partition("&schema=")[2]
    async with connected(url) as connection:
        await connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.messages (mine TEXT)")
        with pytest.raises(StoreUnusableError, match="tables of another application") as caught:
            await open_store(url).open()
        assert caught.value.code == "not_a_store"
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
        assert [table["tablename"] for table in tables] == ["messages"]


async def test_a_schema_may_have_any_name(postgres_server: str) -> None:
    async with open_store(f"{postgres_server}&schema=a%20%22b%22%3B%20DROP") as store:
        session = await store.create_session()
        assert await store.get_session(session.id) == session


async def test_stores_in_two_schemas_do_not_meet(postgres_server: str, url: str) -> None:
    async with open_store(url) as one, open_store(f"{url}_b") as two:
        await one.create_session("mine")
        await two.create_session("mine")
        await one.append("mine", text_message("x"))
        assert await two.read("mine") == []


async def test_who_may_only_read_and_write_rows_may_open_a_store_that_is_there(url: str) -> None:
    schema = url.partition("&schema=")[2]
    async with open_store(url):
        pass
    async with connected(url) as connection:
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
async def test_a_server_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        await open_store(url).open()
    assert "password" not in str(caught.value)


def test_a_password_is_in_no_text_about_a_store() -> None:
    store = PostgresStore("postgresql://me:secret@localhost:1/x")
    with pytest.raises(StoreUnusableError) as caught:
        asyncio.run(store.open())
    assert "secret" not in f"{caught.value!r} {store!r}"


def test_without_the_extra_it_is_said_what_to_install() -> None:
    program = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "import dragoman.store\n"
        "dragoman.store.open_store('sqlite:///x')\n"
        "try: dragoman.store.open_store('postgresql:///x')\n"
        "except dragoman.store.StoreUnusableError as error: print(error.code, error)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.startswith("missing_extra ")
    assert "dragoman[postgres]" in told


# --- failures --------------------------------------------------------------------------------------------------------


async def test_connections_that_the_server_ended_are_replaced(url: str) -> None:
    async with open_store(url) as store, connected(url) as connection:
        session = await store.create_session()
        await asyncio.gather(*(store.append(session.id, text_message("x")) for _ in range(10)))
        for _ in range(3):
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dragoman'"
            )
            await asyncio.gather(*(store.append(session.id, text_message("x")) for _ in range(10)))
        assert [row.seq for row in await store.read(session.id)] == list(range(1, 41))


async def test_a_connection_that_is_lost_before_the_commit_costs_nothing(url: str) -> None:
    async with open_store(url) as store, connected(url) as connection:
        session = await store.create_session()
        begun = list[int]()

        @operation
        def interrupted() -> Generator[Any, Any, None]:
            rows = yield (
                "UPDATE sessions SET last_seq = last_seq + 1 WHERE id = ? RETURNING pg_backend_pid()",
                (session.id,),
            )
            begun.append(rows[0][0])
            yield "SELECT pg_sleep(?)", (30.0 if len(begun) == 1 else 0.0,)

        working = asyncio.create_task(store._write(interrupted()))
        while not begun:
            await asyncio.sleep(0.01)
        await connection.execute("SELECT pg_terminate_backend($1)", begun[0])
        await working
        assert len(begun) == 2
        assert (await store.get_session(session.id)).last_seq == 1


async def test_a_cancelled_statement_leaves_no_transaction_on_its_connection(url: str) -> None:
    """The driver prepares a new statement in a transaction of its own, which a cancellation left open."""
    async with open_store(f"{url}&connections=1") as store:
        for number in range(100):
            task = asyncio.create_task(store._run_statement((f"SELECT count(*), {number} FROM messages", ())))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await store._read(asked("SELECT count(*) FROM messages")) == [(0,)]


async def test_a_deadlock_is_resolved_by_doing_one_of_them_again(url: str) -> None:
    async with open_store(url) as store:
        sessions = [(await store.create_session()).id for _ in range(2)]
        attempts, holders = list[str](), set[str]()

        @operation
        def crosswise(first: str, second: str) -> Generator[Any, Any, None]:
            attempts.append(first)
            yield "UPDATE sessions SET last_seq = last_seq + 1 WHERE id = ?", (first,)
            holders.add(first)
            while len(holders) < 2:  # until each holds the row that the other wants
                yield "SELECT pg_sleep(0.01)", ()
            yield "UPDATE sessions SET last_seq = last_seq + 1 WHERE id = ?", (second,)

        await asyncio.gather(store._write(crosswise(*sessions)), store._write(crosswise(*reversed(sessions))))
        assert len(attempts) == 3
        assert [(await store.get_session(one)).last_seq for one in sessions] == [2, 2]


async def test_a_store_opens_although_it_is_the_victim_of_a_deadlock(url: str) -> None:
    async with open_store(url), connected(url) as connection:
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
async def test_a_server_that_cannot_store_says_why_and_reading_goes_on(url: str, sqlstate: str, code: str) -> None:
    async with open_store(url) as store, connected(url) as connection:
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


async def test_a_server_that_is_down_is_named_and_is_used_again_when_it_is_back(postgres: Any, url: str) -> None:
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


async def test_a_number_that_no_column_can_hold_is_refused(url: str) -> None:
    async with open_store(url) as store:
        with pytest.raises(FormatError):
            await store._read(asked("SELECT 1 FROM sessions WHERE last_seq = ?", 2**70))


# --- running ---------------------------------------------------------------------------------------------------------


async def test_a_reader_sees_one_moment_and_can_change_nothing(url: str) -> None:
    async with open_store(url) as store:
        session = await store.create_session()
        has_read, is_appended = asyncio.Event(), list[bool]()

        @operation
        def twice() -> Generator[Any, Any, tuple[int, int]]:
            before = yield "SELECT last_seq FROM sessions WHERE id = ?", (session.id,)
            has_read.set()
            while not is_appended:
                yield "SELECT pg_sleep(0.01)", ()
            after = yield "SELECT last_seq FROM sessions WHERE id = ?", (session.id,)
            return before[0][0], after[0][0]

        reading = asyncio.create_task(store._read(twice()))
        await has_read.wait()
        await store.append(session.id, text_message("x"))
        is_appended.append(True)
        assert await reading == (0, 0)
        with pytest.raises(StorageError):
            await store._read(asked("UPDATE sessions SET title = 'x'"))


async def test_metadata_can_be_asked_for_as_json(url: str) -> None:
    async with open_store(url) as store:
        session = await store.create_session(metadata={"project": "x", "odd": "a\0b"})
        other = await store.create_session(metadata={"project": "x"})
        await store.append(
            other.id, [text_message("1", run_id="r1"), text_message("2", run_id="r2"), text_message("3", run_id="a\0b")]
        )
        found = await store._read(asked("SELECT id FROM sessions WHERE metadata ->> 'project' = 'x'"))
        assert found == [(other.id,)]  # jsonb cannot hold a NUL; the text beside it does
        assert (await store.get_session(session.id)).metadata["odd"] == "a\0b"
        found = await store._read(asked("SELECT seq FROM messages WHERE metadata ->> 'run_id' = 'r2'"))
        assert found == [(2,)]


async def test_every_key_leads_with_the_session(url: str) -> None:
    async with open_store(url), connected(url) as connection:
        keys = await connection.fetch(
            "SELECT c.relname AS name, a.attname AS leads FROM pg_index i"
            " JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
            " WHERE i.indisunique AND n.nspname = $1",
            url.partition("&schema=")[2],
        )
    without = {"blobs", "blob_states", "erasures", "past_usage", "api_keys", "preferences", "dragoman_steps"}
    without |= {"shares"}  # the session is what a share finds
    without |= {"mail_origins", "lease_clock"}  # of which there is one
    mail = {"letters", "mailboxes", "inbox", "outbox", "dead_letters", "sealed_values"}
    tasks = {"task_states", "task_needs"}
    assert {(key["name"], key["leads"]) for key in keys if key["name"] in mail} == {(n, "recipient_id") for n in mail}
    assert {(key["name"], key["leads"]) for key in keys if key["name"] in tasks} == {(n, "task_id") for n in tasks}
    gateway = {("gateway_transcripts", "hash"), ("gateway_objects", "owner")}  # the session is what they find
    assert {(key["name"], key["leads"]) for key in keys if key["name"].startswith("gateway_")} == gateway
    without |= mail | tasks | {name for name, _ in gateway}  # of no session
    assert {(key["name"], key["leads"]) for key in keys if key["name"] not in without} == {
        (name, "id" if name == "sessions" else "session_id") for name in {key["name"] for key in keys} - without
    }
    assert len(keys) > 8


async def test_many_writers_leave_connections_to_others(url: str) -> None:
    async with open_store(f"{url}&connections=3") as store:
        sessions = [(await store.create_session()).id for _ in range(4)]
        await asyncio.gather(*(store.append(sessions[number % 4], text_message("x")) for number in range(100)))
        assert [(await store.get_session(one)).last_seq for one in sessions] == [25] * 4


def test_stores_of_both_kinds_are_stores() -> None:
    assert issubclass(PostgresStore, Store)


# --- the fast path ---------------------------------------------------------------------------------------------------


def _given_messages(session_id: str, ids: UlidSource) -> list[tuple[list[Message], str | None]]:
    """Appends of every kind that one statement does: one message, several, with usage, with a key."""
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


async def _rows_after(url: str, appends: list[tuple[list[Message], str | None]], *, is_fast: bool) -> list[Any]:
    """The rows of all tables after these appends."""
    store = PostgresStore(url, clock=lambda: datetime(2026, 5, 9, tzinfo=UTC))
    await store.open()
    await store.search_index.stop()
    await store.create_session("s")
    with pytest.MonkeyPatch.context() as patch:
        if is_fast:
            patch.setattr(store, "_run_once", None)  # one statement each, and no transaction
        else:
            patch.setattr(PostgresStore, "_try_append", Store._try_append)
        for messages, key in appends:
            await store.append("s", messages, idempotency_key=key)
    tables = ("sessions", "messages", "usage", "idempotency")
    rows = [await store._read(asked(f"SELECT * FROM {table} ORDER BY 1, 2, 3")) for table in tables]
    assert (await store.verify()).is_sound
    await store.close()
    return rows


async def test_the_fast_path_stores_the_same_rows(url: str) -> None:
    appends = _given_messages("s", UlidSource(lambda: 1, lambda: 1))
    rows = await _rows_after(f"{url}_fast", appends, is_fast=True)
    assert [len(table) for table in rows] == [1, 7, 4, 2]
    assert rows == await _rows_after(f"{url}_general", appends, is_fast=False)


async def test_the_fast_path_appends_nothing_after_another_server(url: str) -> None:
    async with open_store(url) as here, open_store(url) as there:
        session = (await here.create_session()).id
        for at in range(6):
            (row,) = await (here, there)[at % 2].append(session, text_message(f"word {at}"))
            assert row.seq == at + 1
        with pytest.raises(ConflictError):
            await here.append(session, text_message("late"), expected_seq=5)
        (again,) = await here.append(session, text_message("one"), idempotency_key="k")
        assert [again] == await there.append(session, text_message("one"), idempotency_key="k")
        with pytest.raises(ConflictError, match="idempotency key"):
            await there.append(session, text_message("two"), idempotency_key="k")
        assert len(await here.read(session)) == 7


async def test_an_append_whose_connection_is_lost_is_stored_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(url) as store:
        assert isinstance(store, PostgresStore)
        session = (await store.create_session()).id
        run_statement = store._run_statement

        async def lose(statement: Any) -> Any:
            await run_statement(statement)
            return []  # committed, and the answer was lost

        monkeypatch.setattr(store, "_run_statement", lose)
        monkeypatch.setattr(store._append_groups, "_run", lose)
        store._ends[session] = (0, "")
        (row,) = await store.append(session, text_message("a word"))
        assert [row] == await store.read(session)


async def test_appends_that_wait_share_a_statement_and_one_that_conflicts_fails_no_other(
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


async def test_an_append_that_nobody_awaits_any_more_harms_no_other(url: str) -> None:
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


async def test_appends_that_share_a_statement_are_stored_once_if_the_answer_is_lost(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(url) as store:
        assert isinstance(store, PostgresStore)
        sessions = [(await store.create_session()).id for _ in range(8)]
        for session in sessions:
            await store.append(session, text_message("first"))
        run_statement = store._run_statement

        async def lose(statement: Any) -> Any:
            await run_statement(statement)
            return []

        monkeypatch.setattr(store, "_run_statement", lose)
        monkeypatch.setattr(store._append_groups, "_run", lose)
        await asyncio.gather(*(store.append(session, text_message("second")) for session in sessions))
        assert [len(await store.read(session)) for session in sessions] == [2] * 8
