from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from dragoman.store import open_store
from dragoman.store.engines.sqlite import SqliteStore
from tests import store_template

SETTINGS = ("application_id", "auto_vacuum", "encoding", "journal_mode", "page_size", "user_version")


def _read_all(path: Path) -> dict[str, object]:
    """Return the content of a file without the values that differ between boots."""
    connection = apsw.Connection(str(path))
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    content = {name: connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables}
    content.pop("lease_clock")
    schema = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    settings = {name: connection.pragma(name) for name in SETTINGS}
    connection.close()
    return {"schema": schema, "content": content, "settings": settings}


async def test_copied_store_equals_migrated_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name, migrate in (("migrated", store_template.migrate), ("copied", store_template._migrate_or_copy)):
        monkeypatch.setattr(SqliteStore, "_migrate", migrate)
        async with open_store(f"sqlite:///{tmp_path / name}"):
            pass
        found[name] = _read_all(tmp_path / name)
    assert found["copied"] == found["migrated"]
    assert found["copied"]["schema"]
