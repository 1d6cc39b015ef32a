"""Tool calls, tool sessions and an event log for tests."""

from __future__ import annotations

import itertools
from typing import Any

from dragoman import TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.exchange import SideEffects
from dragoman.tools import ConfirmationPolicy, Tool, ToolRegistry, ToolSession, Workspace, dispatch

ALLOW_ALL = ConfirmationPolicy(side_effects=dict.fromkeys(SideEffects, "auto"))
_numbers = itertools.count(1)


def make_call(name: str, **input: Any) -> ToolUseBlock:  # noqa: A002
    return ToolUseBlock(f"tu_{next(_numbers)}", name, input)


def make_session(workspace: Workspace | None = None, **options: Any) -> ToolSession:
    return ToolSession("sess_1", workspace=workspace, **{"policy": ALLOW_ALL, **options})


async def result_of(tool: Tool, workspace: Workspace | None = None, **input: Any) -> ToolResultBlock:  # noqa: A002
    """Return the result of one call, without approval."""
    (result,) = await dispatch([make_call(tool.name, **input)], ToolRegistry([tool]), make_session(workspace))
    return result


def text_of(result: ToolResultBlock) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextBlock))


class EventLog:
    """The events of a dispatch."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event_type: str, payload: dict[str, Any]) -> None:
        self.events.append((event_type, payload))

    @property
    def types(self) -> list[str]:
        return [event_type for event_type, _ in self.events]

    def payloads(self, event_type: str) -> list[dict[str, Any]]:
        return [payload for kind, payload in self.events if kind == event_type]
