"""The specification's example with its import lines changed, and a database table for it."""

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
_COLUMNS = ("type", "content", "timestamp", "turn_id", "tool", "args", "from_worker", "from_manager", "summary")

# The columns that each view of the example selects.
COLUMNS: dict[str, tuple[str, ...]] = {
    "get_conversation_messages": ("type", "content", "timestamp", "turn_id"),
    "get_agent_messages": ("type", "content", "timestamp", "turn_id", "tool", "args"),
    "get_global_messages": ("type", "content", "timestamp", "turn_id", "from_worker", "from_manager", "summary"),
    "get_team_messages": ("type", "content", "timestamp", "turn_id", "agent_key"),
}


def read_example(name: str) -> str:
    """Return an example's code, which imports from Dragoman's package."""
    text = (EXAMPLES / f"{name}.txt").read_text("utf-8")
    return text.replace("from agent_framework", "from dragoman.agent_framework")


def run_code(code: str, **variables: Any) -> ModuleType:
    """Execute the code as a new module and return the module."""
    module = ModuleType("pasted")
    module.__dict__.update(variables)
    exec(compile(code, "pasted.py", "exec"), module.__dict__)
    return module


DatabaseMessageStore: Any = run_code(
    read_example("database_store").partition("# Usage in implementation")[0]
).DatabaseMessageStore


def open_database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.execute(_TABLE)
    return connection


def insert(connection: sqlite3.Connection, location: str, agent_key: str | None, entry: Entry) -> None:
    """Insert an entry into the example's table, as an application does."""
    fields = [entry.get(name) for name in _COLUMNS]
    values = [json.dumps(value) if isinstance(value, dict | list) else value for value in fields]
    marks = ", ".join("?" * (2 + len(values)))
    columns = ", ".join(("location", "agent_key", *_COLUMNS))
    connection.execute(f"INSERT INTO messages ({columns}) VALUES ({marks})", (location, agent_key, *values))
