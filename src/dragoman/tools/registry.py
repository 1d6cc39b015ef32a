"""The registry: the tools of a session, by name, and the checks that each has passed.

    registry = ToolRegistry([read_file, weather])
    registry.definitions                 for the request, always in the same order
    registry.allowed(["read_file"])      a registry with fewer tools
    registry.beside(definitions)         a registry with more, which somebody else runs

Definitions are ordered by name and not by who registered first: a provider's prompt cache begins with the tools, and
servers of tools start up in any order. The one rule: a tool outside the schema subset is refused here, with everything
that is wrong with it, and never in the middle of a conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dragoman.errors import InputError, ToolFailedError, ToolSchemaError, UnknownToolError
from dragoman.exchange import ToolDefinition
from dragoman.tools.tool import Tool, ToolContext
from dragoman.toolschema import ToolSchemas


class ToolRegistry:
    """Tools, by name."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._toolbox = ToolSchemas()
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool) -> Tool:
        """Add a tool, or raise ``ToolSchemaError`` with everything that is wrong with it."""
        if not isinstance(tool, Tool):  # a caller without a type checker passes a function
            raise InputError(
                f"{getattr(tool, '__name__', tool)!r} is not a Tool",
                where="tools",
                remedy="Put @tool (from dragoman.tools) above the function",
                code="not_a_tool",
            )
        self._toolbox.add(tool.definition)
        self._tools[tool.name] = tool
        return tool

    def get(self, name: str) -> Tool | None:
        """The tool of that name, if there is one."""
        return self._tools.get(name)

    def __getitem__(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownToolError(f"no tool is called {name!r}", remedy=f"There are: {self.names}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return (self._tools[name] for name in sorted(self._tools))

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def names(self) -> str:
        """Their names, for people and models to read."""
        return ", ".join(sorted(self._tools)) or "none"

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What a model is told, in an order that depends on the names alone."""
        return tuple(tool.definition for tool in self)

    def subset(self, names: Iterable[str]) -> ToolRegistry:
        """The same tools, but for those that are not named. A name that there is not is an error."""
        return ToolRegistry(self[name] for name in dict.fromkeys(names))

    def with_foreign(self, foreign: Iterable[ToolDefinition]) -> ToolRegistry:
        """These tools and, if there are any, those of somebody else, which nobody can run here."""
        definitions = tuple(foreign)
        if not definitions:
            return self
        registry = ToolRegistry(self)
        for definition in definitions:
            if definition.name in self:
                raise ToolSchemaError(definition.name, ("name: the agent has a tool of that name",))
            registry._toolbox.add(definition, is_foreign=True)
            registry._tools[definition.name] = Tool(definition=definition, run=_reject_foreign)
        return registry

    def problems(self, name: str, input: dict[str, Any]) -> tuple[str, ...]:  # noqa: A002
        """Everything wrong with the input of a call, as ``check`` and ``repair`` want it."""
        return self._toolbox.problems(name, input)


async def _reject_foreign(_input: dict[str, Any], _context: ToolContext) -> Any:
    raise ToolFailedError("This tool is run by somebody else")
