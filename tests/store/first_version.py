"""The store of the first version: code that writes it, and all answers that it must return.

    python -m tests.store.first_version      writes tests/store/fixtures/first-version.db, its blobs, and its answers

Clock and ids are fixed. Once a version with this schema is released, the files never change, and every later version
must open them. Until then they are written again when the first step of the schema changes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import msgspec

from dragoman import codec
from dragoman.ids import UlidSource
from dragoman.message import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    OpaqueBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.store import Store, open_store
from dragoman.store.engines import tables as tables_module
from tests.store.messages import answer_message, message, text_message

FOLDER = Path(__file__).parent / "fixtures"
DATABASE = FOLDER / "first-version.db"
BLOBS = FOLDER / "first-version.db-blobs"
ANSWERS = FOLDER / "first-version.json"

CONVERSATION, FORK, ENTRIES_SESSION, DELETED = "sess_talk", "sess_fork", "sess_quiet", "sess_left"
KEY = "the key of the question"
QUERIES = ("Lissabon", "天气", "frobnicate", "19")
PARTIAL_ID = "01JZZZZZZZZZZZZZZZZZZZZZZZ"  # the partial message


# --- creation --------------------------------------------------------------------------------------------------------


async def write_store(path: Path) -> None:
    """Write the store."""
    async with open_store(f"sqlite:///{path}") as store:
        seconds = itertools.count()
        store.clock = lambda: datetime(2026, 11, 15, 12, tzinfo=UTC) + timedelta(seconds=next(seconds))
        rng = itertools.count(1)
        store._ids = UlidSource(
            lambda: 1_794_744_000_000 + next(rng),
            lambda: int.from_bytes(hashlib.sha256(b"%d" % next(rng)).digest()[:10]),
        )
        await _add_conversation(store)
        await _add_forks(store)
        await _add_deletions(store)
        await _search(store, QUERIES[0])  # completes the index
    connection = apsw.Connection(str(path))
    _revert_schema(connection)
    connection.execute("VACUUM")
    connection.pragma("journal_mode", "delete")  # one file
    connection.close()
    path.with_name(f"{path.name}-lock").unlink(missing_ok=True)


def drop_additions_since(connection: apsw.Connection, version: int) -> None:
    """Drop the tables, columns and indexes that steps of the schema after this version have added."""
    for sql in tables_module.migrations("sqlite")[version:]:
        for index in re.findall(r"^CREATE INDEX IF NOT EXISTS (\w+)", sql, flags=re.MULTILINE):
            connection.execute(f"DROP INDEX IF EXISTS {index}")
        for table, column in re.findall(r"^ALTER TABLE (\w+) ADD COLUMN (\w+)", sql, flags=re.MULTILINE):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        for table in re.findall(r"^CREATE TABLE (\w+)", sql, flags=re.MULTILINE):
            connection.execute(f"DROP TABLE {table}")


def _revert_schema(connection: apsw.Connection) -> None:
    """Remove everything that later steps of the schema added."""
    first = apsw.Connection(":memory:")
    first.execute(tables_module.migrations("sqlite")[0]).fetchall()
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table'"
    known = {name for (name,) in first.execute(tables).fetchall()}
    first.close()
    for (name,) in connection.execute(tables).fetchall():
        if name not in known:
            connection.execute(f"DROP TABLE {name}")
    for name in ("messages_by_name", "sessions_by_time", "sessions_by_user", "sessions_to_index"):
        connection.execute(f"DROP INDEX {name}")
    for name in ("listed_at", "is_behind"):
        connection.execute(f"ALTER TABLE sessions DROP COLUMN {name}")
    connection.execute("ALTER TABLE leases DROP COLUMN length_us")
    for table in ("usage", "past_usage"):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN unpriced")
    connection.execute("ALTER TABLE sessions DROP COLUMN received_at")
    for name in ("tool_calls", "tool_ids", "idempotency"):
        connection.execute(f"ALTER TABLE {name} DROP COLUMN hash")
    connection.pragma("user_version", 1)


async def _add_conversation(store: Store) -> None:
    """Add a conversation with every kind of content."""
    await store.create_session(
        CONVERSATION,
        title="Weather in Lissabon",
        workspace_path="/home/somebody/work",
        active_model="anthropic:claude-sonnet-4-6",
        routing_policy={"mode": "fixed", "weights": [1, 2.5]},
        user_id="user_1",
        team_id="team_1",
        metadata={"tags": ["a", "é"], "n": 9007199254740993},
    )
    await store.append(CONVERSATION, create_question(), idempotency_key=KEY)
    thought = ThinkingBlock("It has to be looked up", "c2lnbmF0dXJl")
    calls = [
        ToolUseBlock(f"tu_{number}", "get_weather", {"city": "Lissabon", "n": number}, {"id": f"toolu_{number}"})
        for number in range(3)
    ]
    invalid = InvalidToolUseBlock("tu_3", "get_weather", '{"city":"Liss', "truncated")
    await store.append(CONVERSATION, message(Role.ASSISTANT, [thought, *calls, invalid], **_metadata("0.0123")))
    await store.save_tool_ids(CONVERSATION, [("anthropic", f"tu_{number}", f"toolu_{number}") for number in range(3)])
    await store.append(
        CONVERSATION, [_result_message("tu_0", "18 °C"), _result_message("tu_1", "no such city", is_error=True)]
    )
    await store.cancel_tool_call(CONVERSATION, "tu_2")
    image = ImageBlock(ImageSource("base64", base64.b64encode(_random_bytes(20_000)).decode()), "image/png")
    document = DocumentBlock(ImageSource("url", "https://example.org/a.pdf"), "application/pdf", "A page")
    await store.append(CONVERSATION, message(Role.USER, [TextBlock("天气怎么样? \x00 \U0001f600"), image, document]))
    await store.append(CONVERSATION, text_message("frobnicate " + "A long text, with ünïcode. " * 900))
    opaque = OpaqueBlock("anthropic", {"type": "server_tool_use", "id": "srv_1"})
    await store.append(CONVERSATION, message(Role.ASSISTANT, [opaque, TextBlock("Done")], **_metadata("1E-7")))
    await store.append(CONVERSATION, create_newer_message())
    await store.append(CONVERSATION, create_partial_message("It is being stre", status="partial"))


def create_question() -> list[Message]:
    """Return the messages that were appended with the idempotency key."""
    return [text_message("Be brief.", Role.SYSTEM), text_message("How is the weather in Lissabon?", user_id="user_1")]


def create_newer_message() -> Message:
    """Return a message of a later version, with a block and fields that the first version does not know."""
    text = {
        "id": "01JZZZZZZZZZZZZZZZZZZZZZZY",
        "session_id": CONVERSATION,
        "role": "assistant",
        "content": [
            {"type": "hologram", "beam": {"n": 12345678901234567890}},
            {"type": "text", "text": "x", "tone": 1e2},
        ],
        "metadata": {"model": "m", "mood": "calm"},
        "created_at": "2026-11-15T12:30:00.123456Z",
        "schema_version": 1,
        "weight": [1.0, None],
    }
    return codec.decode(json.dumps(text))


def create_partial_message(text: str, **metadata: Any) -> Message:
    """Return the partial message."""
    return answer_message(text, **metadata).replace(
        id=PARTIAL_ID, session_id=CONVERSATION, created_at=datetime(2026, 11, 15, 13, tzinfo=UTC)
    )


async def _add_forks(store: Store) -> None:
    """Add a fork and a fork of the fork."""
    fork = await store.fork(CONVERSATION, 3, title="Another way", user_id="user_2")
    await store.append(fork.id, [_result_message("tu_0", "19 °C"), answer_message("It is 19 °C", **_metadata("0.5"))])
    twig = await store.fork(fork.id, title="And another")
    await store.append(twig.id, text_message("Once more"))
    await store.create_session(ENTRIES_SESSION)
    await store.entries.append(
        ENTRIES_SESSION,
        [
            {"type": "user_message", "content": "Go", "timestamp": 1794744000.25},
            {"type": "task", "content": {"n": 1, "what": "look"}, "agent_key": "scout", "future_field": [None]},
        ],
    )
    await store.turns.acquire(ENTRIES_SESSION, "somebody", seconds=60)


async def _add_deletions(store: Store) -> None:
    """Add a deleted session, whose totals remain, and an erased user."""
    await store.create_session(DELETED, user_id="user_9")
    await store.append(DELETED, [text_message("Forget me"), answer_message("I will", **_metadata("0.25"))])
    await store.delete_session(DELETED)
    await store.create_session("sess_erased", user_id="user_8")
    await store.append("sess_erased", text_message("And me"))
    await store.erase_user("user_8")


def _metadata(cost: str) -> dict[str, Any]:
    usage = Usage(
        input_tokens=120,
        output_tokens=34,
        cached_input_tokens=5,
        cache_creation_input_tokens=6,
        reasoning_tokens=7,
        cost_usd=Decimal(cost),
        pricing_version="2026-11-01",
        latency_ms=850,
    )
    return {
        "model": "anthropic:claude-sonnet-4-6",
        "provider": "anthropic",
        "usage": usage,
        "user_id": "user_1",
        "team_id": "team_1",
    }


def _result_message(call_id: str, text: str, *, is_error: bool = False) -> Message:
    return message(Role.TOOL, [ToolResultBlock(call_id, (TextBlock(text),), is_error)], parent_tool_use_id=call_id)


def _random_bytes(size: int) -> bytes:
    return hashlib.shake_256(b"picture").digest(size)


# --- answers ---------------------------------------------------------------------------------------------------------


async def read_answers(store: Store) -> dict[str, Any]:
    """Return the results of all queries as JSON values."""
    listed = sorted(await store.list_sessions(limit=100), key=lambda session: session.id)
    return {
        "sessions": msgspec.to_builtins(listed),
        "messages": {session.id: await _messages(store, session.id) for session in listed},
        "tool_calls": {session.id: msgspec.to_builtins(await store.tool_calls(session.id)) for session in listed},
        "tool_ids": {session.id: [list(tool_id) for tool_id in await store.tool_ids(session.id)] for session in listed},
        "totals": {
            by: msgspec.to_builtins(await store.costs.totals(by)) for by in ("session", "user", "team", "model", "day")
        },
        "entries": {session.id: await _entries(store, session.id) for session in listed},
        "search": {word: await _search(store, word) for word in QUERIES},
        "erasures": msgspec.to_builtins(await store.erasures()),
    }


async def _messages(store: Store, session_id: str) -> list[list[Any]]:
    """Return the number and the canonical JSON of each message, or the hash of a long one."""
    rows = []
    async for row in store.history(session_id):
        text = codec.encode(row.message).decode()
        rows.append([row.seq, text if len(text) < 4_000 else hashlib.sha256(text.encode()).hexdigest()])
    return rows


async def _entries(store: Store, session_id: str) -> list[list[Any]]:
    return [[row.seq, row.agent_key, row.entry] for row in await store.entries.read(session_id)]


async def _search(store: Store, word: str) -> list[list[Any]]:
    return sorted([hit.session_id, hit.seq] for hit in await store.search(word))


async def _main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    await write_store(DATABASE)
    copy = FOLDER / "copy.db"
    shutil.copy(DATABASE, copy)
    shutil.copytree(BLOBS, f"{copy}-blobs")
    async with open_store(f"sqlite:///{copy}") as store:
        text = json.dumps(await read_answers(store), ensure_ascii=False, indent=1)
    ANSWERS.write_text(text + "\n", encoding="utf-8")
    for path in FOLDER.glob("copy.db*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    asyncio.run(_main())
