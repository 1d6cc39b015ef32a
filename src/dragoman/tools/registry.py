"""The tools of a session, by name.

    registry = ToolRegistry([read_file, weather])      tools, or functions
    registry.definitions                 for the request, always in the same order
    registry.subset(["read_file"])       a registry with fewer tools
    registry.with_foreign(definitions)   a registry with more tools, which the caller runs

Definitions are sorted by name, not by registration: they are the first part of a provider's prompt cache, and MCP
servers start in any order. Invariant: every registered tool fits the schema subset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dragoman.errors import ToolFailedError, ToolSchemaError, UnknownToolError
from dragoman.exchange import ToolDefinition
from dragoman.tools.tool import Tool, ToolContext, to_tool
from dragoman.toolschema import ToolSchemas


class ToolRegistry:
    """Tools, by name."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._schemas = ToolSchemas()
        for tool in tools:
            self._add(to_tool(tool))
        self.definitions = self._sort_definitions()

    def register(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Add a tool or a function, or raise ``ToolSchemaError`` with all its problems."""
        added = to_tool(tool)
        self._add(added)
        self.definitions = self._sort_definitions()
        return added

    def _add(self, tool: Tool, *, is_foreign: bool = False) -> None:
        self._schemas.add(tool.definition, is_foreign=is_foreign)
        self._tools[tool.name] = tool

    def _sort_definitions(self) -> tuple[ToolDefinition, ...]:
        return tuple(tool.definition for tool in self)

    def get(self, name: str) -> Tool | None:
        """The tool with that name, if there is one."""
        return self._tools.get(name)

    def __getitem__(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownToolError(f"no tool is named {name!r}", remedy=f"Use one of: {self.names}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return (self._tools[name] for name in sorted(self._tools))

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def names(self) -> str:
        """The names, as text."""
        return ", ".join(sorted(self._tools)) or "none"

    def subset(self, names: Iterable[str]) -> ToolRegistry:
        """A registry with only these tools; ``UnknownToolError`` for an unknown name."""
        return ToolRegistry(self[name] for name in dict.fromkeys(names))

    def with_foreign(self, foreign: Iterable[ToolDefinition]) -> ToolRegistry:
        """A registry that also has tools of the caller, which cannot be run here."""
        definitions = tuple(foreign)
        if not definitions:
            return self
        registry = ToolRegistry(self)
        for definition in definitions:
            if definition.name in self:
                raise ToolSchemaError(definition.name, ("name: the agent has a tool of that name",))
            registry._add(Tool(definition=definition, run=_reject_foreign), is_foreign=True)
        registry.definitions = registry._sort_definitions()
        return registry

    def problems(self, name: str, input: dict[str, Any]) -> tuple[str, ...]:  # noqa: A002
        """All problems of the input of a call, for ``check`` and ``repair``."""
        return self._schemas.problems(name, input)


async def _reject_foreign(_input: dict[str, Any], _context: ToolContext) -> Any:
    raise ToolFailedError("The caller runs this tool")
