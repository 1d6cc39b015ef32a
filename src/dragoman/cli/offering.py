"""Which tools a command offers to a model: built-in ones by name, and those of MCP servers that the settings name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from dragoman.cli.terminal import escape_line
from dragoman.settings import Settings
from dragoman.tools import Tool, exposure


def open_tools(
    builtin: Sequence[str], servers: Sequence[str], settings: Settings
) -> AbstractAsyncContextManager[tuple[Tool, ...]]:
    """The tools, while the servers that some of them come from are connected."""
    return exposure.load_tools(builtin, servers, settings, lambda text: sys.stderr.write(f"{escape_line(text)}\n"))
