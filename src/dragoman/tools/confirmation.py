"""Approval of tool calls: the policy, the request and the answer.

    auto      the tool runs                default for the side effects none and read
    prompt    a person is asked first      default for write, execute and network
    deny      the tool never runs

A policy decides by the tool's side effects, or by its name. An answer applies to one call, or to the tool until the
session ends. An ``Approval`` is a decision about a pending call. Invariant: without an answer the tool does not run.
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
    """Which tools run without approval. ``BY_SIDE_EFFECTS`` has the defaults."""

    side_effects: Mapping[SideEffects, Decision] = {}
    tools: Mapping[str, Decision] = {}  # by name; takes precedence

    def decision(self, tool: ToolDefinition) -> Decision:
        by_effects = self.side_effects.get(tool.side_effects) or BY_SIDE_EFFECTS[tool.side_effects]
        return self.tools.get(tool.name, by_effects)


class ConfirmationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The question whether a call may run."""

    id: str
    session_id: str
    tool_use_id: str
    tool_name: str
    side_effects: SideEffects
    input: dict[str, Any]
    input_summary: str
    projected_modifications: tuple[str, ...] = ()  # paths that would change
    command_summary: str | None = None
    expires_at: datetime | None  # without an answer until then, the call is rejected; none: no limit


class Confirmation(msgspec.Struct, frozen=True):
    """The answer to a ``ConfirmationRequest``."""

    allow: bool
    scope: Scope = "once"
    reason: str = ""  # for the model


class Approval(msgspec.Struct, frozen=True):
    """The decision about a pending call."""

    call_id: str
    approved: bool
    edited_input: dict[str, Any] | None = None  # run the call with this input instead
    reason: str | None = None  # for the model


Confirm = Callable[[ConfirmationRequest], Awaitable[Confirmation]]
