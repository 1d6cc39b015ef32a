"""Tests of the tools of a command: named built-in tools and tools of configured MCP servers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from dragoman import settings
from dragoman.cli.options import open_tools
from dragoman.errors import InputError, SettingsError, ToolSourceError
from dragoman.settings import Settings


def load_settings(folder: Path, text: str) -> Settings:
    file = folder / "config.toml"
    file.write_text(text)
    file.chmod(0o600)
    return settings.load(environment={}, file=file, keyring=lambda _: None)


def read_tool_names(builtin: tuple[str, ...], servers: tuple[str, ...], known: Settings) -> set[str]:
    async def list_tools() -> set[str]:
        async with open_tools(builtin, servers, known) as tools:
            return {tool.name for tool in tools}

    return asyncio.run(list_tools())


def test_tools_of_configured_server_are_offered_beside_built_in_tools(tmp_path: Path) -> None:
    known = load_settings(
        tmp_path,
        f'[mcp_servers.words]\ncommand = "{sys.executable}"\nargs = ["-m", "tests.tools.mcp_server", "stdio"]\n',
    )
    assert read_tool_names((), (), known) == set()
    assert read_tool_names(("read_file",), (), known) == {"read_file"}
    both = read_tool_names(("read_file",), ("words",), known)
    assert {"read_file", "words__echo"} <= both


def test_unknown_or_failing_server_is_reported(tmp_path: Path) -> None:
    known = load_settings(
        tmp_path, f'[mcp_servers.broken]\ncommand = "{sys.executable}"\nargs = ["-c", "raise SystemExit(3)"]\n'
    )
    with pytest.raises(InputError, match=r"no MCP server 'words'.*mcp_servers.words"):
        read_tool_names((), ("words",), known)
    with pytest.raises(ToolSourceError, match="broken"):
        read_tool_names((), ("broken",), known)
    with pytest.raises(SettingsError, match="mcp_servers must be a table of tables"):
        load_settings(tmp_path, 'mcp_servers = "words"\n')
