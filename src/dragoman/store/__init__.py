"""Store conversations durably and in order.

    async with dragoman.open_store("sqlite:///chats.db") as store:
        session = await store.create_session(title="First")
        await store.append(session.id, messages)
        rows = await store.read(session.id, after_seq=0, limit=50)

``open_store`` takes a URL: ``sqlite:///path`` (three slashes and a relative path, or four and an absolute one),
``postgresql://…``, or ``memory:``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from dragoman.errors import StoreUnusableError
from dragoman.store.api_keys import ApiKey
from dragoman.store.blobs import FolderBlobs, MemoryBlobs, blobs_from_url
from dragoman.store.store import Store
from dragoman.store.types import (
    Damage,
    EntryRow,
    ErasureReceipt,
    Evaluation,
    EvaluationTotals,
    Hit,
    Lease,
    Owners,
    Row,
    Session,
    SizeReport,
    ToolCall,
    Totals,
    TraceEvent,
    Verification,
)

_FILE_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")  # of a path that names a store


def open_store(url: str | Path, *, blobs: str | None = None, strict: bool = False) -> Store:
    """The store at that URL, to be used with ``async with``. The path of a SQLite file (``chats.db``) is a URL, too.

    ``blobs`` names another place for large content than the engine's own, for this store alone: ``file:///folder`` or
    ``s3://bucket/prefix?endpoint=…&region=…``. A ``strict`` store refuses messages that break a rule.
    """
    store = _store_at(_to_url(url), blobs)
    store.strict = strict
    return store


def _to_url(place: str | Path) -> str:
    """The URL of a store that may be named by the path of a SQLite file."""
    is_file = isinstance(place, Path) or (":" not in place and place.endswith(_FILE_SUFFIXES))
    return f"sqlite:///{quote(str(place))}" if is_file else str(place)


def _store_at(url: str, blobs: str | None) -> Store:
    from dragoman.store.engines.sqlite import SqliteStore  # noqa: PLC0415  loaded only to open a store

    outside = blobs_from_url(blobs) if blobs is not None else None
    kind, _, rest = url.partition(":")
    if url == "memory:":
        return SqliteStore(None, outside or MemoryBlobs())
    if kind == "sqlite" and rest.startswith("///") and len(rest) > 3:
        path = Path(unquote(rest[3:]))
        if not path.name:
            raise StoreUnusableError("it is a folder", where=str(path), remedy="Name a file", code="not_a_store")
        return SqliteStore(path, outside or FolderBlobs(path.with_name(f"{path.name}-blobs")))
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        from dragoman.store.engines.postgres import PostgresStore  # noqa: PLC0415  loaded only to open one

        return PostgresStore(url, outside)
    raise StoreUnusableError(
        f"no store can be opened at {url!r}",
        remedy="Use sqlite:///path/to/file.db, postgresql://user@host/database, or memory:",
        code="not_a_store",
    )


__all__ = [
    "ApiKey",
    "Damage",
    "EntryRow",
    "ErasureReceipt",
    "Evaluation",
    "EvaluationTotals",
    "Hit",
    "Lease",
    "Owners",
    "Row",
    "Session",
    "SizeReport",
    "Store",
    "ToolCall",
    "Totals",
    "TraceEvent",
    "Verification",
    "open_store",
]
