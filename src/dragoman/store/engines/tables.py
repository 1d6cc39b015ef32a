"""The tables as numbered migrations. The number of the last one is the version of a store.

A migration never changes after its release. Invariant: a store of any earlier version opens, by applying the migrations
that it lacks.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import Final

from dragoman.errors import StoreUnusableError
from dragoman.store.operation import Steps, operation
from dragoman.store.types import SizeReport

LETTER_COLUMNS: Final = (  # the columns of a letter, in the order of its row
    "recipient_id, team_id, letter_id, sender_id, task_id, type, trace_id, session_id, message_id, turn_id, user_id,"
    " created_at, fingerprint, letter_json, hash"
)


def check_version(version: int, engine: str, where: str) -> None:
    """Raise ``StoreUnusableError`` unless this version of Dragoman knows that version of a store."""
    latest = len(migrations(engine))
    if version < 0:
        raise StoreUnusableError(
            f"the header of the store is damaged: schema {version}",
            where=where,
            remedy="Restore it from a backup; nothing was changed",
        )
    if version > latest:
        raise StoreUnusableError(
            f"a newer Dragoman wrote it (schema {version}; this one knows up to {latest})",
            where=where,
            remedy="Open it with a newer Dragoman; nothing was changed",
            code="newer_store",
        )


@functools.cache
def migrations(engine: str) -> tuple[str, ...]:
    """The SQL of every step for an engine, in order."""
    folder = importlib.resources.files(__package__) / "migrations"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(f"_{engine}.sql"))
    return tuple((folder / name).read_text(encoding="utf-8") for name in names)


@operation
def sizes(engine: str) -> Steps[SizeReport]:
    """Return the sizes of the tables, without blobs."""
    session_rows = yield "SELECT count(*) FROM sessions", ()
    message_rows = yield (
        "SELECT count(*), coalesce(sum(octet_length(content_json) + octet_length(metadata_json)), 0) FROM messages",
        (),
    )
    table_rows = yield _TABLE_SIZES[engine], ()
    total_rows = yield _DATABASE_SIZE[engine], ()
    return SizeReport(
        engine=engine,
        sessions=session_rows[0][0],
        messages=message_rows[0][0],
        content_bytes=int(message_rows[0][1]),
        database_bytes=int(total_rows[0][0]),
        blobs=0,
        blob_bytes=0,
        tables={name: int(size) for name, size in table_rows},
    )


_TABLE_SIZES: Final = {
    "sqlite": "SELECT s.tbl_name, sum(d.pgsize) FROM dbstat AS d JOIN sqlite_schema AS s ON s.name = d.name"
    " WHERE d.aggregate = TRUE GROUP BY s.tbl_name ORDER BY s.tbl_name",
    "postgres": "SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class AS c"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = current_schema() AND c.relkind = 'r' ORDER BY c.relname",
}
_DATABASE_SIZE: Final = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgres": "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class AS c"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'",
}
