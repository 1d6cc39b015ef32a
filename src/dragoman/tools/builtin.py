"""The tools that come with the package: a few, and none of them unless it is asked for by name.

    builtin_tools(["read_file", "list_files", "search_files"])

All but ``ask_user`` work in the workspace of the session. The one rule: a tool belongs here only if nearly every agent
needs it and it can be bounded; the rest comes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dragoman.errors import UnknownToolError
from dragoman.tools.ask_user import ask_user
from dragoman.tools.files import list_files, read_file, search_files, write_file
from dragoman.tools.shell import run_command
from dragoman.tools.tool import Tool

BUILTIN: Final = {tool.name: tool for tool in (list_files, read_file, run_command, search_files, write_file, ask_user)}


def builtin_tools(names: Iterable[str]) -> tuple[Tool, ...]:
    """The tools of these names."""
    requested = list(names)
    for name in requested:
        if name not in BUILTIN:
            remedy = f"There are: {', '.join(BUILTIN)}"
            raise UnknownToolError(f"no tool called {name!r} comes with the package", remedy=remedy)
    return tuple(BUILTIN[name] for name in requested)
