"""Who is asked before a tool runs: the policy, the question and the answer.

    auto      it runs                      tools that compute or read
    prompt    somebody is asked first      tools that write, execute or change something elsewhere
    deny      it never runs

A policy decides by the tool's declared side effects, or by its name. An answer holds for one call, or for the tool
until the session ends. Whoever cannot be waited for decides later, by an ``Approval`` of the call. The one rule: where
nobody answers, in time or at all, the tool does not run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from dragoman.exchange import SideEffects, ToolDefinition

Decision = Literal["auto", "prompt", "deny"]
Scope = Literal["once", "session"]

BY_SIDE_EFFECTS: Final[Mapping[SideEffects, Decision]] = {
    SideEffects.NONE: "auto",
    SideEffects.READ: "auto",
    SideEffects.WRITE: "prompt",
    SideEffects.EXECUTE: "prompt",
    SideEffects.NETWORK: "prompt",
}


class ConfirmationPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may run without asking. What is not named here is as ``BY_SIDE_EFFECTS`` says."""

    side_effects: Mapping[SideEffects, Decision] = {}
    tools: Mapping[str, Decision] = {}  # by name; goes before

    def decision(self, tool: ToolDefinition) -> Decision:
        by_effects = self.side_effects.get(tool.side_effects) or BY_SIDE_EFFECTS[tool.side_effects]
        return self.tools.get(tool.name, by_effects)


class ConfirmationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A question: may this tool do this?"""

    id: str
    session_id: str
    tool_use_id: str
    tool_name: str
    side_effects: SideEffects
    input: dict[str, Any]
    input_summary: str
    projected_modifications: tuple[str, ...] = ()  # paths that would change
    command_summary: str | None = None
    expires_at: datetime | None  # after which silence means no; none: whoever is asked has all the time


class Confirmation(msgspec.Struct, frozen=True):
    """An answer."""

    allow: bool
    scope: Scope = "once"
    reason: str = ""  # the model is told


class Approval(msgspec.Struct, frozen=True):
    """What somebody decided about a call that was not waited for."""

    call_id: str
    approved: bool
    edited_input: dict[str, Any] | None = None  # run it with this instead
    reason: str | None = None  # the model is told


Confirm = Callable[[ConfirmationRequest], Awaitable[Confirmation]]
