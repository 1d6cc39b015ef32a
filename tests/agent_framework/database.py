"""The example of the specification, as a user pastes it with its import lines changed, and a table for it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any

from dragoman.entries import Entry

EXAMPLES = Path(__file__).parent / "examples"
_TABLE = (
    "CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, location TEXT NOT NULL, agent_key TEXT, type TEXT NOT"
    " NULL, content TEXT, timestamp REAL, turn_id TEXT, tool TEXT, args TEXT, from_worker TEXT, from_manager TEXT,"
    " summary TEXT)"
)
_WRITTEN = ("type", "content", "timestamp", "turn_id", "tool", "args", "from_worker", "from_manager", "summary")

# What each view of the example selects.
COLUMNS: dict[str, tuple[str, ...]] = {
    "get_conversation_messages": ("type", "content", "timestamp", "turn_id"),
    "get_agent_messages": ("type", "content", "timestamp", "turn_id", "tool", "args"),
    "get_global_messages": ("type", "content", "timestamp", "turn_id", "from_worker", "from_manager", "summary"),
    "get_team_messages": ("type", "content", "timestamp", "turn_id", "agent_key"),
}


def example(name: str) -> str:
    """An example as it is printed, but for the package that it imports from."""
    printed = (EXAMPLES / f"{name}.txt").read_text("utf-8")
    return printed.replace("from agent_framework", "from dragoman.agent_framework")


def ran(code: str, **given: Any) -> ModuleType:
    """A module of that code."""
    module = ModuleType("pasted")
    module.__dict__.update(given)
    exec(compile(code, "pasted.py", "exec"), module.__dict__)
    return module


DatabaseMessageStore: Any = ran(
    example("database_store").partition("# Usage in implementation")[0]
).DatabaseMessageStore


def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.execute(_TABLE)
    return connection


def insert(connection: sqlite3.Connection, location: str, agent_key: str | None, entry: Entry) -> None:
    """Insert an entry into the example's table, as an application does."""
    told = [entry.get(name) for name in _WRITTEN]
    values = [json.dumps(value) if isinstance(value, dict | list) else value for value in told]
    marks = ", ".join("?" * (2 + len(values)))
    columns = ", ".join(("location", "agent_key", *_WRITTEN))
    connection.execute(f"INSERT INTO messages ({columns}) VALUES ({marks})", (location, agent_key, *values))
