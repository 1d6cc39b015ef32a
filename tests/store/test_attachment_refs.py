"""Attachment references and client ids of messages: stored beside the messages, and found without reading them."""

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
from tests.store.conftest import StoreLocation
from tests.store.messages import text_message

ANN = Owners("ann")


def showing(*paths: str, **metadata: Any) -> Message:
    files = tuple(Attachment("b", path, "image/png") for path in paths)
    return text_message("look", user_message_attachments=files, **metadata)


@operation
def rows_of(sql: str, *arguments: Any) -> Generator[Any, Any, Any]:
    return (yield sql, arguments)


async def noted(store: Store) -> set[tuple[str, int, str]]:
    rows = await store._read(rows_of("SELECT session_id, seq, path FROM attachment_refs"))
    return {tuple(row) for row in rows}


async def test_files_are_noted_once_and_go_with_their_session(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()
    await store.append(session.id, [showing("a", "b", "a"), text_message("none"), showing("c")])
    await store.append(other.id, showing("a"))
    wanted = {(session.id, 1, "a"), (session.id, 1, "b"), (session.id, 3, "c"), (other.id, 1, "a")}
    assert await noted(store) == wanted
    await store.delete_session(session.id)
    assert await noted(store) == {(other.id, 1, "a")}


async def test_files_of_what_a_fork_shares_are_the_forks_when_the_other_goes(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [showing("shared"), showing("behind")])
    fork = await store.fork(session.id, 1)
    assert await noted(store) == {(session.id, 1, "shared"), (session.id, 2, "behind")}
    await store.delete_session(session.id)
    assert await noted(store) == {(fork.id, 1, "shared")}
    assert (await store.verify()).is_sound


async def test_files_of_a_message_that_ends_are_those_that_it_ends_with(store: Store) -> None:
    session = await store.create_session()
    (row,) = await store.append(session.id, showing("a", "b", status=MessageStatus.PARTIAL))
    ended = showing("b", "c").replace(id=row.message.id, session_id=session.id)
    await store.update(session.id, ended)
    assert await noted(store) == {(session.id, 1, "b"), (session.id, 1, "c")}
    assert (await store.verify()).is_sound


async def test_files_of_somebody_who_is_erased_are_noted_no_more(store: Store) -> None:
    session = await store.create_session(user_id="bob")
    await store.append(session.id, [showing("hers", user_id="ann"), showing("his", user_id="bob")])
    await store.erase_user("ann")
    assert await noted(store) == {(session.id, 2, "his")}
    assert (await store.verify()).is_sound


@pytest.mark.parametrize("path", ["", "x" * 1_025, "nul\0", "line\n", "图.png", "\U0001f600" * 1_024])
async def test_what_can_be_no_path_is_kept_in_the_message_and_not_noted(store: Store, path: str) -> None:
    session = await store.create_session(user_id="ann")
    await store.append(session.id, showing(path, "fine"))
    assert await noted(store) == {(session.id, 1, "fine")}
    (row,) = await store.read(session.id)
    assert [one.path for one in row.message.metadata.attachments] == [path, "fine"]
    assert (await store.verify()).is_sound


async def test_a_file_that_is_not_noted_is_damage(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, showing("a"))
    await store._write(rows_of("DELETE FROM attachment_refs"))
    assert [(one.session_id, one.seq) for one in (await store.verify()).damage] == [(session.id, 1)]


# --- names -----------------------------------------------------------------------------------------------------------


async def test_a_long_name_is_told_from_one_that_begins_the_same(store: Store) -> None:
    session = await store.create_session()
    names = ["图" * 3_000 + end for end in ("", "a", "b")]
    await store.append(session.id, [text_message("x", message_id=name) for name in names])
    assert [(await store.find_message(session.id, name)).seq for name in names] == [1, 2, 3]
    with pytest.raises(UnknownMessageError):
        await store.find_message(session.id, "图" * 3_000 + "c")


async def test_a_name_is_found_beside_what_an_engine_cannot_hold(store: Store) -> None:
    session = await store.create_session()
    odd = {"nul": "a\0b", "text": "\\u0000", "both": "\\\0"}
    await store.append(session.id, [text_message("x", message_id="m", extra=odd), text_message("y", message_id="n\0")])
    assert (await store.find_message(session.id, "m")).seq == 1
    with pytest.raises(UnknownMessageError):
        await store.find_message(session.id, "n\u2400")


async def test_metadata_that_is_damaged_names_nothing_and_stops_nobody(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message("x", message_id="a"), text_message("y", message_id="b")])
    await store._write(rows_of("""UPDATE messages SET metadata_json = '{"message_id":"a"' WHERE seq = 1"""))
    assert (await store.find_message(session.id, "b")).seq == 2
    with pytest.raises(UnknownMessageError):
        await store.find_message(session.id, "a")


# --- from before -----------------------------------------------------------------------------------------------------


async def taken_back(store_location: StoreLocation) -> None:
    """Convert a store to the schema before files and names."""
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
    async with store_location.open() as store:
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
            await store._write(rows_of(sql))


async def test_what_was_stored_before_is_noted_when_a_store_is_opened(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = await store.create_session(user_id="ann")
        odd = showing("nul", extra={"x": "a\0b"})
        messages = [
            showing("one", message_id="m"),
            showing("a", "b", "a"),
            odd,
            text_message("no"),
            showing("图", "ok", "x" * 2_000),
        ]
        await store.append(session.id, messages)
        before = await noted(store)
    assert {path for _, _, path in before} == {"one", "a", "b", "nul", "ok"}
    await taken_back(database_location)
    async with database_location.open() as store:
        assert await noted(store) == before
        assert (await store.find_message(session.id, "m")).seq == 1
        assert (await store.verify()).is_sound


# --- cost ------------------------------------------------------------------------------------------------------------


async def looks(store_location: StoreLocation, store: Store, asked: Operation[Any]) -> list[int]:
    """Return the cost of each statement: steps of SQLite's machine, rows of PostgreSQL's plans."""
    return await store._read(_explained(asked)) if store.engine == "postgres" else _stepped(store_location, asked)


def _stepped(store_location: StoreLocation, asked: Operation[Any]) -> list[int]:
    connection = apsw.Connection(store_location.url.removeprefix("sqlite:///"))
    steps: list[int] = []
    connection.trace_v2(
        apsw.SQLITE_TRACE_PROFILE, lambda told: steps.append(told["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])
    )
    answered = iter(asked)
    statement = next(answered)
    try:
        while True:
            statement = answered.send(connection.execute(*statement).fetchall())
    except StopIteration:
        return steps
    finally:
        connection.close()


@operation
def _explained(asked: Operation[Any]) -> Generator[Any, Any, list[int]]:
    rows: list[int] = []
    answered = iter(asked)
    statement = next(answered)
    try:
        while True:
            sql, arguments = statement
            plan = yield f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", arguments
            rows.append(_looked_at(json.loads(plan[0][0])[0]["Plan"]))
            statement = answered.send((yield statement))
    except StopIteration:
        return rows


def _looked_at(plan: dict[str, Any]) -> int:
    gone = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
    seen = (plan["Actual Rows"] + gone) * plan["Actual Loops"]
    return int(seen + sum(map(_looked_at, plan.get("Plans", ()))))


async def test_a_name_costs_the_same_in_a_history_of_any_length(database_location: StoreLocation) -> None:
    costs = []
    async with database_location.open() as store:
        for length in (600, 3_000):  # PostgreSQL may read a table of a page or two by any index
            session = await store.create_session()
            await store.append(
                session.id, [text_message("x", message_id=f"m{n}" if n % 2 else None) for n in range(length)]
            )
            assert (await store.find_message(session.id, "m31")).seq == 32
            with_names = await looks(database_location, store, find_message(store.engine, session.id, "m31"))
            without = await looks(database_location, store, _missing(store.engine, session.id))
            costs.append((with_names, without))
    assert costs[0] == costs[1]


@operation
def _missing(engine: str, session_id: str) -> Generator[Any, Any, None]:
    try:
        yield from find_message(engine, session_id, "nobody")
    except UnknownMessageError:
        return


async def test_what_a_thread_names_is_found_without_reading_others(database_location: StoreLocation) -> None:
    costs = []
    async with database_location.open() as store:
        session = await store.create_session(user_id="ann")
        await store.append(session.id, [showing("here/1"), text_message("x")])
        for count in (30, 1_500):
            other = await store.create_session(user_id="ann")
            await store.append(other.id, [showing(f"there/{n}") for n in range(count)])
            found = await store.find_attachment_refs(session.id, ANN, "here/")
            assert (found.exclusive, found.shared) == ({("b", "here/1")}, set())
            costs.append(await looks(database_location, store, find_attachment_refs(session.id, ANN, "here/")))
    # PostgreSQL may count a row in an index and in the table, and does so for one size and not for the other.
    assert costs[0] == costs[1] or (store.engine == "postgres" and max(costs[0] + costs[1]) <= 4)
