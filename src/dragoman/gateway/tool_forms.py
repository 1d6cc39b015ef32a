"""Tools whose form only the caller's API has, in a form that every provider accepts. Pure.

    forms = ToolForms(request.tools)
    forms.tools                       the tools for the provider
    forms.to_provider(block)          a call of the history, under the name that the provider knows
    forms.to_caller(block)            a call of the reply, in the form that the caller has declared

The Responses API groups tools in namespaces, and has tools that take one text. A provider of another API gets one
function for each tool of a namespace, ``namespace__tool``, and a function with one parameter for a text.

Invariant: a call reaches the caller in the form in which the caller has declared the tool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from dragoman import dialects
from dragoman.exchange import OpaqueTool, ToolDefinition
from dragoman.message import CallBlock, ProviderRaw, ToolUseBlock
from dragoman.wire.residue import get_notes

_MAX_NAME: Final = 64  # of a function in most APIs
_NAMESPACES: Final = "openai_responses"  # the dialect that has them

Tool = ToolDefinition | OpaqueTool


class ToolForms:
    """The tools of one request in both forms."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._members: dict[str, tuple[str, str]] = {}  # by the name for the provider: namespace and name
        self.tools: tuple[Tool, ...] = tuple(flat for tool in tools for flat in self._flatten(tool))
        self._texts = {tool.name for tool in self.tools if isinstance(tool, ToolDefinition) and tool.free_form}

    def _flatten(self, tool: Tool) -> Iterator[Tool]:
        found = _namespace_members(tool)
        if found is None:
            yield tool
            return
        namespace, members = found
        for member in _read_tools(members):
            if not isinstance(member, ToolDefinition):
                yield member
                continue
            name = join_name(namespace, member.name)
            self._members[name] = (namespace, member.name)
            yield member.replace(name=name, provider_raw=None, defer_loading=None)

    def takes_text(self, name: str) -> bool:
        """Whether the caller has declared a tool that takes one text."""
        return name in self._texts

    def to_provider(self, block: CallBlock) -> CallBlock:
        """Return a call of the history with the name that the provider knows."""
        namespace = _get_namespace(block.provider_raw)
        return block if namespace is None else block.replace(name=join_name(namespace, block.name))

    def to_caller(self, block: CallBlock) -> CallBlock:
        """Return a call with the name and the form that the caller has declared."""
        if isinstance(block, ToolUseBlock) and block.name in self._texts:
            return block.replace(free_form=True)
        return block.replace(name=self.caller_name(block.name))

    def caller_name(self, name: str) -> str:
        """Return the name that the caller has declared."""
        return self._members[name][1] if name in self._members else name

    def caller_notes(self, name: str) -> ProviderRaw:
        """Return the notes of a call that the caller's dialect writes beside its name."""
        if name not in self._members:
            return {}
        return {"residue": {"set": {"namespace": self._members[name][0]}}}


def join_name(namespace: str, name: str) -> str:
    """Return one name for a tool of a namespace; a long one ends with a hash."""
    joined = f"{namespace}__{name}"
    if len(joined) <= _MAX_NAME:
        return joined
    return f"{joined[: _MAX_NAME - 9]}_{hashlib.sha256(joined.encode()).hexdigest()[:8]}"


def _namespace_members(tool: Tool) -> tuple[str, list[Any]] | None:
    match tool:
        case OpaqueTool(
            dialect="openai_responses", wire={"type": "namespace", "name": str(name), "tools": list(tools)}
        ):
            return name, tools
        case _:
            return None


def _read_tools(wires: list[Any]) -> tuple[Tool, ...]:
    """Read the tools of a namespace, which have the form of any other tool."""
    body = msgspec.json.encode({"model": "", "input": "", "tools": wires})
    tools: tuple[Tool, ...] = dialects.load(_NAMESPACES).read_request(body).tools
    return tools


def _get_namespace(raw: ProviderRaw | None) -> str | None:
    residue = get_notes(raw, _NAMESPACES).get("residue")
    namespace = residue.get("set", {}).get("namespace") if isinstance(residue, dict) else None
    return namespace if isinstance(namespace, str) else None
