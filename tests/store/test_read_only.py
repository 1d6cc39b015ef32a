"""Tests of a store on read-only media: reads succeed and writes raise an error."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.store import open_store
from tests.store.messages import text_message

_READ = """
import asyncio, os, sys
from dragoman.errors import StorageError
from dragoman.store import open_store
from tests.store.messages import text_message

async def main(path):
    async with open_store(f"sqlite:///{path}") as store:
        print([row.message.content[0].text for row in await store.read("s")])
        print([hit.seq for hit in await store.search("two")])
        print(len([line async for line in store.export("s")]) > 3, (await store.verify()).is_sound)
        for write in (store.append("s", text_message("three")), store.create_session("other")):
            try:
                await write
            except StorageError as error:
                print(error.code)

async def warm():
    async with open_store("memory:") as store:  # imports modules before the privileges are dropped
        await store.create_session("s")
        await store.append("s", text_message("two"))
        await store.search("two")
        [line async for line in store.export("s")]
        await store.verify()

asyncio.run(warm())
os.setgid(65534)
os.setuid(65534)
asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def media() -> Iterator[Path]:
    """A folder that other users can read, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change its user")
def test_store_in_read_only_folder_is_read_with_log(tmp_path: Path, media: Path) -> None:
    folder = media / "media"
    asyncio.run(_copy_unclosed_store(tmp_path / "source", folder))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(folder.iterdir())
    command = [sys.executable, "-B", "-c", _READ, str(folder / "store.db")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == ["['one', 'two']", "[2]", "True True", "read_only", "read_only"], result.stderr
    assert "removed the permissions" not in result.stderr  # the private copy is read
    assert sorted(folder.iterdir()) == before


async def _copy_unclosed_store(source: Path, folder: Path) -> None:
    async with open_store(f"sqlite:///{source / 'store.db'}") as store:
        await store.create_session("s")
        await store.append("s", [text_message("one"), text_message("two")])
        folder.mkdir()
        for end in ("", "-wal", "-mark"):  # the state after a power cut
            (folder / f"store.db{end}").write_bytes((source / f"store.db{end}").read_bytes())
