"""Independent check of a store against its acknowledgements.

    log = Log(); log.read(line) …                     the log of the writers
    tables = read_sqlite_tables(path)                 the stored rows, read with plain SQL
    find_problems(tables, blob_of, log) -> list[str]  all violations

This module derives hashes, contents and the other tables independently. Invariant: it uses no code of the store.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import asyncpg  # type: ignore[import-untyped]
import msgspec

from tests.store.faults.traffic import Append, Json, create_append, parse_name

NAMES = ("sessions", "messages", "tool_calls", "usage", "idempotency", "blob_refs")

Tables = dict[str, list[Json]]
BlobOf = Callable[[str], bytes | None]


@dataclass
class Log:
    """The log of the writers about their appends."""

    started: dict[str, int] = field(default_factory=dict)  # name: time of the first request
    stored: dict[str, tuple[int, tuple[int, ...]]] = field(
        default_factory=dict
    )  # name: time of the acknowledgement, numbers
    ended: set[str] = field(default_factory=set)  # the update was acknowledged
    refused: set[str] = field(default_factory=set)
    failed: list[tuple[str, str]] = field(default_factory=list)  # name, code of the error
    contradictions: list[str] = field(default_factory=list)  # lines that contradict earlier lines

    def read(self, line: str) -> None:
        """Read a line of a writer."""
        word, name, time, numbers = line.split(" ")
        match word:
            case "begun":
                self.started.setdefault(name, int(time))
            case "stored":
                found = tuple(int(number_text) for number_text in numbers.split(","))
                if self.stored.setdefault(name, (int(time), found))[1] != found:
                    self.contradictions.append(f"{name} was given the places {self.stored[name][1]} and then {found}")
            case "ended":
                self.ended.add(name)
            case "refused":
                self.refused.add(name)
            case "disk_full" | "storage_failed":
                self.failed.append((name, word))

    def list_unknown(self) -> list[str]:
        """Return the appends whose outcome is unknown or that have not ended."""
        return [name for name in self.started if name not in self.refused and not self._is_settled(name)]

    def _is_settled(self, name: str) -> bool:
        return name in self.stored and (name in self.ended or not create_append(name).ends_as)

    @property
    def acknowledgement_count(self) -> int:
        """Return the number of messages that the store acknowledged."""
        return sum(len(numbers) for _, numbers in self.stored.values())


# --- stored rows -----------------------------------------------------------------------------------------------------


def read_sqlite_tables(path: Path) -> Tables:
    """Return every table after SQLite's own integrity check."""
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # the next writer recovers the log
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        if not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
            return {name: [] for name in NAMES}  # no writer has created the tables yet
        return {name: list(_read_rows(connection, name)) for name in NAMES}
    finally:
        connection.close()


def _read_rows(connection: apsw.Connection, table: str) -> Iterator[Json]:
    cursor = connection.execute(f"SELECT * FROM {table}")
    names: list[str] | None = None
    for row in cursor:
        names = names or [column[0] for column in cursor.get_description()]
        yield dict(zip(names, row, strict=True))


async def read_postgres_tables(server: str, schema: str) -> tuple[Tables, BlobOf]:
    """Return every table and the blobs, which are in a table."""
    for _ in range(1_000):
        try:
            return await _read_postgres_tables(server, schema)
        except _RECOVERING:  # from the kill
            await asyncio.sleep(0.05)
    raise AssertionError("the server does not recover")


_RECOVERING = (
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.CrashShutdownError,
    OSError,
)


async def _read_postgres_tables(server: str, schema: str) -> tuple[Tables, BlobOf]:
    connection = await asyncpg.connect(server)
    try:
        tables: Tables = {}
        for name in NAMES:
            there = await connection.fetchval("SELECT to_regclass($1)", f"{schema}.{name}")
            tables[name] = (
                [dict(row) for row in await connection.fetch(f"SELECT * FROM {schema}.{name}")] if there else []
            )
        there = await connection.fetchval("SELECT to_regclass($1)", f"{schema}.blobs")
        rows = await connection.fetch(f"SELECT sha256, data FROM {schema}.blobs") if there else []
        return tables, {row["sha256"]: bytes(row["data"]) for row in rows}.get
    finally:
        await connection.close()


def create_folder_reader(folder: Path) -> BlobOf:
    """Return a function that reads blobs in a folder."""

    def blob_of(sha256: str) -> bytes | None:
        path = folder / sha256[:2] / sha256
        return path.read_bytes() if path.exists() else None

    return blob_of


# --- rules -----------------------------------------------------------------------------------------------------------


def find_problems(tables: Tables, blob_of: BlobOf, log: Log) -> list[str]:
    """Return all violations."""
    by_session: dict[str, list[Json]] = defaultdict(list)
    for row in sorted(tables["messages"], key=lambda row: (row["session_id"], row["seq"])):
        by_session[row["session_id"]].append(row)
    return [
        *log.contradictions,
        *_check_order(tables["sessions"], by_session),
        *_check_hashes(tables["messages"]),
        *_check_acknowledged(by_session, blob_of, log),
        *_check_order_of_time(by_session, blob_of, log),
        *_check_derived_rows(tables, by_session),
    ]


def _check_order(sessions: list[Json], by_session: dict[str, list[Json]]) -> Iterator[str]:
    for session in sessions:
        rows = by_session.get(session["id"], [])
        if [row["seq"] for row in rows] != list(range(1, session["last_seq"] + 1)):
            yield f"{session['id']}: places {[row['seq'] for row in rows]}, and it counts {session['last_seq']}"
        doubled = [one for one, times in Counter(row["id"] for row in rows).items() if times > 1]
        if doubled:
            yield f"{session['id']}: ids {doubled} stand there more than once"
        if max((row["id"] for row in rows), default="") != session["last_message_id"]:
            yield f"{session['id']}: its newest id is not {session['last_message_id']}"
    for stray in by_session.keys() - {session["id"] for session in sessions}:
        yield f"{stray}: messages of a missing session"


def _check_hashes(messages: Iterable[Json]) -> Iterator[str]:
    columns = (
        "session_id",
        "seq",
        "id",
        "role",
        "created_at",
        "schema_version",
        "status",
        "unknown_json",
        "blobs_json",
    )
    for row in messages:
        values = [row[name] for name in (*columns, "metadata_json", "content_json")]
        if hashlib.sha256(msgspec.msgpack.encode(values)).digest() != bytes(row["hash"]):
            yield f"{row['session_id']} {row['seq']}: its hash is wrong"


def _check_acknowledged(by_session: dict[str, list[Json]], blob_of: BlobOf, log: Log) -> Iterator[str]:
    found: dict[str, list[tuple[str, Json]]] = defaultdict(list)  # name of the append: message number, row
    for rows in by_session.values():
        for row in rows:
            marked = _read_mark(row, blob_of)
            if marked is None:
                yield f"{row['session_id']} {row['seq']}: large content that it names is gone or another one"
            else:
                found[marked.partition("#")[0]].append((marked, row))
    for name in found.keys() - log.started.keys():
        yield f"{name}: stored, and nobody asked for it"
    for name in log.started:
        append, rows_of_it = create_append(name), found.get(name, [])
        marks = [marked for marked, _ in rows_of_it]
        if name in log.refused and marks:
            yield f"{name}: refused, and stored"
        if name in log.stored and not marks:
            yield f"{name}: LOST"
        if marks and marks != [f"{name}#{number}" for number in range(len(append.messages))]:
            yield f"{name}: DOUBLED, torn or out of order: {marks}"
            continue
        for number, (_, row) in enumerate(rows_of_it):
            yield from _check_content(append, number, row, _read_content(row, blob_of), is_ended=name in log.ended)
        if name in log.stored and marks:
            numbers = tuple(row["seq"] for _, row in rows_of_it)
            if numbers != log.stored[name][1]:
                yield f"{name}: acknowledged at {log.stored[name][1]}, and stands at {numbers}"


def _check_content(append: Append, number: int, row: Json, content: Any, *, is_ended: bool) -> Iterator[str]:
    where = f"{append.name} at {row['session_id']} {row['seq']}"
    first = append.messages[number]
    last = append.ends_as[number] if append.ends_as else first
    allowed = [last] if is_ended else [first, last]
    metadata = json.loads(row["metadata_json"])
    if not any((item["content"], item["metadata"]) == (content, metadata) for item in allowed):
        yield f"{where}: it is not what was written"
    if (row["role"], row["session_id"]) != (first["role"], append.session_id):
        yield f"{where}: it is not where it was written, or by another"
    if first["session_id"] and row["id"] != first["id"]:
        yield f"{where}: its id is {row['id']}"
    if row["status"] != metadata.get("status", "complete"):
        yield f"{where}: its status is {row['status']}"


def _read_mark(row: Json, blob_of: BlobOf) -> str | None:
    """Return the name and the number at the beginning of a message's text."""
    content = _read_content(row, blob_of)
    if content is None:
        return None
    first = content[0]
    return parse_name((first["content"][0] if first["type"] == "tool_result" else first)["text"])


def _read_content(row: Json, blob_of: BlobOf) -> list[Json] | None:
    """Return the content with its blobs inserted, or None if a blob is missing."""
    content: list[Json] = json.loads(row["content_json"])
    for _, sha256, form in json.loads(row["blobs_json"] or "[]"):
        data = blob_of(sha256)
        if data is None or hashlib.sha256(data).hexdigest() != sha256:
            return None
        text = base64.b64encode(data).decode() if form == "base64" else data.decode()
        content = json.loads(json.dumps(content).replace(json.dumps(f"sha256:{sha256}"), json.dumps(text)))
    return content


def _check_order_of_time(by_session: dict[str, list[Json]], blob_of: BlobOf, log: Log) -> Iterator[str]:
    """Yield violations of the order: an append that was acknowledged before another began has the lower position."""
    for session_id, rows in by_session.items():
        latest_begun = 0
        for row in rows:
            name = (_read_mark(row, blob_of) or "").partition("#")[0]
            if name in log.stored and log.stored[name][0] < latest_begun:
                yield f"{session_id} {row['seq']}: {name} was acknowledged before one that stands before it began"
            latest_begun = max(latest_begun, log.started.get(name, 0))


def _check_derived_rows(tables: Tables, by_session: dict[str, list[Json]]) -> Iterator[str]:
    """Yield rows of calls, usage, keys and blob references that differ from the messages."""
    calls: dict[tuple[str, str], tuple[Any, ...]] = {}
    usage: dict[tuple[str, int], tuple[Any, ...]] = {}
    refs: set[tuple[str, int, str]] = set()
    for session_id, rows in by_session.items():
        for row in rows:
            for block in json.loads(row["content_json"]):
                if block["type"] == "tool_use":
                    calls[session_id, block["id"]] = (row["id"], row["seq"], block["name"], "pending", None, None)
                elif block["type"] == "tool_result":
                    call = calls.get((session_id, block["tool_use_id"]))
                    if call is None:
                        yield f"{session_id}: message {row['seq']} has the result of an unknown call"
                        continue
                    status = "failed" if block.get("is_error") else "succeeded"
                    calls[session_id, block["tool_use_id"]] = (*call[:3], status, row["id"], row["seq"])
            used = json.loads(row["metadata_json"]).get("usage")
            if used is not None and row["role"] == "assistant":
                usage[session_id, row["seq"]] = (used["input_tokens"], used["output_tokens"], used["cost_usd"])
            refs.update((session_id, row["seq"], sha256) for _, sha256, _ in json.loads(row["blobs_json"] or "[]"))
    stored_calls = {
        (row["session_id"], row["id"]): (
            *(row[name] for name in ("message_id", "seq", "name", "status", "result_message_id", "result_seq")),
        )
        for row in tables["tool_calls"]
    }
    stored_usage = {
        (row["session_id"], row["seq"]): (row["input_tokens"], row["output_tokens"], str(row["cost_usd"]))
        for row in tables["usage"]
    }
    if stored_calls != calls:
        yield f"tool_calls differ: {stored_calls.items() ^ calls.items()}"
    if stored_usage != usage:
        yield f"usage differs: {stored_usage.items() ^ usage.items()}"
    if {(row["session_id"], row["seq"], row["sha256"]) for row in tables["blob_refs"]} != refs:
        yield "blob_refs differ"
    for row in tables["idempotency"]:
        name = row["key"].removeprefix("key ")
        numbers = [item["seq"] for item in by_session[row["session_id"]] if f'"{name}#' in item["content_json"]]
        if numbers and (row["first_seq"], row["last_seq"]) != (numbers[0], numbers[-1]):
            yield f"{name}: its key names other places"
