"""Which tools a command offers: the built-in ones that are named, and those of MCP servers that the settings describe."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from dragoman import settings
from dragoman.cli.options import open_tools
from dragoman.errors import InputError, SettingsError, ToolSourceError
from dragoman.settings import Settings


def found(folder: Path, text: str) -> Settings:
    file = folder / "config.toml"
    file.write_text(text)
    file.chmod(0o600)
    return settings.load(environment={}, file=file, keyring=lambda _: None)


def names(builtin: tuple[str, ...], servers: tuple[str, ...], known: Settings) -> set[str]:
    async def offer() -> set[str]:
        async with open_tools(builtin, servers, known) as tools:
            return {tool.name for tool in tools}

    return asyncio.run(offer())


def test_tools_of_a_server_that_the_file_describes_are_offered_beside_built_in_ones(tmp_path: Path) -> None:
    known = found(
        tmp_path,
        f'[mcp_servers.words]\ncommand = "{sys.executable}"\nargs = ["-m", "tests.tools.mcp_server", "stdio"]\n',
    )
    assert names((), (), known) == set()
    assert names(("read_file",), (), known) == {"read_file"}
    both = names(("read_file",), ("words",), known)
    assert {"read_file", "words__echo"} <= both


def test_a_server_that_nobody_described_or_that_does_not_come_up_is_told_of(tmp_path: Path) -> None:
    known = found(
        tmp_path, f'[mcp_servers.broken]\ncommand = "{sys.executable}"\nargs = ["-c", "raise SystemExit(3)"]\n'
    )
    with pytest.raises(InputError, match=r"no MCP server 'words'.*mcp_servers.words"):
        names((), ("words",), known)
    with pytest.raises(ToolSourceError, match="broken"):
        names((), ("broken",), known)
    with pytest.raises(SettingsError, match="mcp_servers must be a table of tables"):
        found(tmp_path, 'mcp_servers = "words"\n')
