"""Tests of attachment references and client ids of messages, which are stored in their own index."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import apsw
import pytest

from dragoman.errors import UnknownMessageError
from dragoman.message import Attachment, Message, MessageStatus
from dragoman.store import Owners, Store
from dragoman.store.message_reader import find_attachment_refs, find_message
from dragoman.store.operation import Operation, operation
from tests.store.conftest import StoreLocation, connect
from tests.store.messages import text_message

ANN = Owners("ann")


def message_with_files(*paths: str, **metadata: Any) -> Message:
    files = tuple(Attachment("b", path, "image/png") for path in paths)
    return text_message("look", user_message_attachments=files, **metadata)


@operation
def run_statement(sql: str, *arguments: Any) -> Generator[Any, Any, Any]:
    return (yield sql, arguments)


async def read_refs(store: Store) -> set[tuple[str, int, str]]:
    rows = await store._read(run_statement("SELECT session_id, seq, path FROM attachment_refs"))
    return {tuple(row) for row in rows}


async def test_refs_are_stored_once_and_deleted_with_session(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()
    await store.append(session.id, [message_with_files("a", "b", "a"), text_message("none"), message_with_files("c")])
    await store.append(other.id, message_with_files("a"))
    expected = {(session.id, 1, "a"), (session.id, 1, "b"), (session.id, 3, "c"), (other.id, 1, "a")}
    assert await read_refs(store) == expected
    await store.delete_session(session.id)
    assert await read_refs(store) == {(other.id, 1, "a")}


async def test_fork_inherits_refs_of_deleted_session(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [message_with_files("shared"), message_with_files("behind")])
    fork = await store.fork(session.id, 1)
    assert await read_refs(store) == {(session.id, 1, "shared"), (session.id, 2, "behind")}
    await store.delete_session(session.id)
    assert await read_refs(store) == {(fork.id, 1, "shared")}
    assert (await store.verify()).is_sound


async def test_update_replaces_refs_of_partial_message(store: Store) -> None:
    session = await store.create_session()
    (row,) = await store.append(session.id, message_with_files("a", "b", status=MessageStatus.PARTIAL))
    ended = message_with_files("b", "c").replace(id=row.message.id, session_id=session.id)
    await store.update(session.id, ended)
    assert await read_refs(store) == {(session.id, 1, "b"), (session.id, 1, "c")}
    assert (await store.verify()).is_sound


async def test_erasure_deletes_refs_of_user(store: Store) -> None:
    session = await store.create_session(user_id="bob")
    await store.append(
        session.id, [message_with_files("hers", user_id="ann"), message_with_files("his", user_id="bob")]
    )
    await store.erase_user("ann")
    assert await read_refs(store) == {(session.id, 2, "his")}
    assert (await store.verify()).is_sound


@pytest.mark.parametrize("path", ["", "x" * 1_025, "nul\0", "line\n", "图.png", "\U0001f600" * 1_024])
async def test_invalid_path_is_stored_without_ref(store: Store, path: str) -> None:
    session = await store.create_session(user_id="ann")
    await store.append(session.id, message_with_files(path, "fine"))
    assert await read_refs(store) == {(session.id, 1, "fine")}
    (row,) = await store.read(session.id)
    assert [item.path for item in row.message.metadata.attachments] == [path, "fine"]
    assert (await store.verify()).is_sound


async def test_missing_ref_is_damage(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, message_with_files("a"))
    await store._write(run_statement("DELETE FROM attachment_refs"))
    assert [(found_damage.session_id, found_damage.seq) for found_damage in (await store.verify()).damage] == [
        (session.id, 1)
    ]


# --- client ids-------------------------------------------------------------------------------------------------------


async def test_long_client_ids_with_same_prefix_are_distinct(store: Store) -> None:
    session = await store.create_session()
    names = ["图" * 3_000 + end for end in ("", "a", "b")]
    await store.append(session.id, [text_message("x", message_id=name) for name in names])
    assert [(await store.find_message(session.id, name)).seq for name in names] == [1, 2, 3]
    with pytest.raises(UnknownMessageError):
        await store.find_message(session.id, "图" * 3_000 + "c")


async def test_client_id_is_found_beside_nul_characters(store: Store) -> None:
    session = await store.create_session()
    extra = {"nul": "a\0b", "text": "\\u0000", "both": "\\\0"}
    await store.append(
        session.id, [text_message("x", message_id="m", extra=extra), text_message("y", message_id="n\0")]
    )
    assert (await store.find_message(session.id, "m")).seq == 1
    with pytest.raises(UnknownMessageError):
        await store.find_message(session.id, "n\u2400")


async def test_damaged_metadata_does_not_block_other_client_ids(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message("x", message_id="a"), text_message("y", message_id="b")])
    await store._write(run_statement("""UPDATE messages SET metadata_json = '{"message_id":"a"' WHERE seq = 1"""))
    assert (await store.find_message(session.id, "b")).seq == 2
    with pytest.raises(UnknownMessageError):
        await store.find_message(session.id, "a")


# --- migration -------------------------------------------------------------------------------------------------------


async def revert_schema(store_location: StoreLocation) -> None:
    """Convert a store to the schema before attachment references and client ids."""
    if store_location.url.startswith("sqlite"):
        connection = apsw.Connection(store_location.url.removeprefix("sqlite:///"))
        connection.execute(
            "DROP TABLE attachment_refs; DROP INDEX messages_by_name; DROP INDEX sessions_by_time;"
            " DROP INDEX sessions_by_user; DROP INDEX sessions_to_index; ALTER TABLE sessions DROP COLUMN listed_at;"
            " ALTER TABLE sessions DROP COLUMN is_behind; ALTER TABLE leases DROP COLUMN length_us;"
            " ALTER TABLE sessions DROP COLUMN received_at; ALTER TABLE tool_calls DROP COLUMN hash;"
            " ALTER TABLE tool_ids DROP COLUMN hash; ALTER TABLE idempotency DROP COLUMN hash;"
            " ALTER TABLE runs DROP COLUMN alive_us; ALTER TABLE inbox DROP COLUMN wait_us; DROP TABLE lease_clock;"
            " ALTER TABLE usage DROP COLUMN unpriced; ALTER TABLE past_usage DROP COLUMN unpriced;"
            " ALTER TABLE evaluations DROP COLUMN metrics_json; DROP TABLE gateway_transcripts;"
            " DROP TABLE gateway_objects; DROP TABLE preferences; DROP TABLE shares; DROP INDEX runs_by_end;"
            " DROP TABLE request_parts; ALTER TABLE runs DROP COLUMN has_events; PRAGMA user_version = 5"
        ).fetchall()
        connection.close()
        return
    async with connect(store_location.url) as connection:
        for sql in (
            "DROP TABLE attachment_refs",
            "DROP INDEX messages_by_name",
            "ALTER TABLE sessions DROP COLUMN listed_at, DROP COLUMN is_behind",
            "ALTER TABLE leases DROP COLUMN length_us",
            "ALTER TABLE runs DROP COLUMN alive_us, DROP COLUMN has_events",
            "ALTER TABLE inbox DROP COLUMN wait_us",
            "DROP TABLE lease_clock",
            "DROP FUNCTION lease_now",
            "ALTER TABLE sessions DROP COLUMN received_at",
            "ALTER TABLE tool_calls DROP COLUMN hash",
            "ALTER TABLE tool_ids DROP COLUMN hash",
            "ALTER TABLE idempotency DROP COLUMN hash",
            "DROP FUNCTION call_hash",
            "ALTER TABLE usage DROP COLUMN unpriced",
            "ALTER TABLE past_usage DROP COLUMN unpriced",
            "ALTER TABLE evaluations DROP COLUMN metrics_json",
            "DROP TABLE gateway_transcripts, gateway_objects, preferences, shares, request_parts",
            "DELETE FROM dragoman_steps WHERE number >= 6",
        ):
            await connection.execute(sql)


async def test_migration_creates_refs_of_old_messages(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = await store.create_session(user_id="ann")
        odd = message_with_files("nul", extra={"x": "a\0b"})
        messages = [
            message_with_files("one", message_id="m"),
            message_with_files("a", "b", "a"),
            odd,
            text_message("no"),
            message_with_files("图", "ok", "x" * 2_000),
        ]
        await store.append(session.id, messages)
        before = await read_refs(store)
    assert {path for _, _, path in before} == {"one", "a", "b", "nul", "ok"}
    await revert_schema(database_location)
    async with database_location.open() as store:
        assert await read_refs(store) == before
        assert (await store.find_message(session.id, "m")).seq == 1
        assert (await store.verify()).is_sound


# --- cost ------------------------------------------------------------------------------------------------------------


async def measure_costs(store_location: StoreLocation, store: Store, statements: Operation[Any]) -> list[int]:
    """Return the cost of each statement: steps of SQLite's machine, rows of PostgreSQL's plans."""
    return (
        await store._read(_count_postgres_rows(statements))
        if store.engine == "postgres"
        else _count_sqlite_steps(store_location, statements)
    )


def _count_sqlite_steps(store_location: StoreLocation, statements: Operation[Any]) -> list[int]:
    connection = apsw.Connection(store_location.url.removeprefix("sqlite:///"))
    steps: list[int] = []
    connection.trace_v2(
        apsw.SQLITE_TRACE_PROFILE, lambda event: steps.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])
    )
    steps_of_operation = iter(statements)
    statement = next(steps_of_operation)
    try:
        while True:
            statement = steps_of_operation.send(connection.execute(*statement).fetchall())
    except StopIteration:
        return steps
    finally:
        connection.close()


@operation
def _count_postgres_rows(statements: Operation[Any]) -> Generator[Any, Any, list[int]]:
    rows: list[int] = []
    steps_of_operation = iter(statements)
    statement = next(steps_of_operation)
    try:
        while True:
            sql, arguments = statement
            plan = yield f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", arguments
            rows.append(_count_plan_rows(json.loads(plan[0][0])[0]["Plan"]))
            statement = steps_of_operation.send((yield statement))
    except StopIteration:
        return rows


def _count_plan_rows(plan: dict[str, Any]) -> int:
    removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
    visited = (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    return int(visited + sum(map(_count_plan_rows, plan.get("Plans", ()))))


async def test_client_id_lookup_cost_is_independent_of_history_length(database_location: StoreLocation) -> None:
    costs = []
    async with database_location.open() as store:
        for length in (600, 3_000):  # PostgreSQL may read a table of a page or two by any index
            session = await store.create_session()
            await store.append(
                session.id, [text_message("x", message_id=f"m{n}" if n % 2 else None) for n in range(length)]
            )
            assert (await store.find_message(session.id, "m31")).seq == 32
            with_names = await measure_costs(database_location, store, find_message(store.engine, session.id, "m31"))
            without = await measure_costs(database_location, store, _find_missing_message(store.engine, session.id))
            costs.append((with_names, without))
    assert costs[0] == costs[1]


@operation
def _find_missing_message(engine: str, session_id: str) -> Generator[Any, Any, None]:
    try:
        yield from find_message(engine, session_id, "nobody")
    except UnknownMessageError:
        return


async def test_ref_lookup_does_not_read_other_sessions(database_location: StoreLocation) -> None:
    costs = []
    async with database_location.open() as store:
        session = await store.create_session(user_id="ann")
        await store.append(session.id, [message_with_files("here/1"), text_message("x")])
        for count in (30, 1_500):
            other = await store.create_session(user_id="ann")
            await store.append(other.id, [message_with_files(f"there/{n}") for n in range(count)])
            refs = await store.find_attachment_refs(session.id, ANN, "here/")
            assert (refs.exclusive, refs.shared) == ({("b", "here/1")}, set())
            costs.append(await measure_costs(database_location, store, find_attachment_refs(session.id, ANN, "here/")))
    # PostgreSQL may count a row in an index and in the table, and does so for one size and not for the other.
    assert costs[0] == costs[1] or (store.engine == "postgres" and max(costs[0] + costs[1]) <= 4)
