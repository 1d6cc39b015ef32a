"""Events of tool calls and their confirmation."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from dragoman.bus.types import Actor, Count, Milliseconds, Payload, Sensitivity, Sha256, event
from dragoman.exchange import SideEffects

ToolErrorClass = Literal[
    "timeout",
    "permission_denied",
    "not_found",
    "validation_error",
    "execution_error",
    "cancelled",
    "user_denied",
    "confirmation_timeout",
]


@event("tool.called", Actor.AGENT, Sensitivity.PSEUDONYMOUS)
class ToolCalled(Payload, frozen=True, kw_only=True):
    """A tool starts to run."""

    tool_use_id: str  # id of the call
    tool_name: str  # name of the tool
    input_hash: Sha256  # hash of the input as canonical JSON
    input_size_bytes: Count  # size of the same
    side_effects: SideEffects  # strongest side effect of the tool


@event("tool.completed", Actor.TOOL, Sensitivity.PRIVATE)
class ToolCompleted(Payload, frozen=True, kw_only=True):
    """A tool returned a result."""

    tool_use_id: str  # id of the call
    tool_name: str | None = None  # name of the tool
    success: bool  # the result is not an error
    output_size_bytes: Count  # size of the result
    latency_ms: Milliseconds  # from the call to the result
    files_modified: tuple[str, ...] | None = None  # paths in the workspace
    command_executed: str | None = None  # command without secrets


@event("tool.completed_late", Actor.TOOL, Sensitivity.PRIVATE)
class ToolCompletedLate(Payload, frozen=True, kw_only=True):
    """A tool ended after its call was answered as failed or cancelled. The turn does not use the result."""

    tool_use_id: str  # id of the call
    tool_name: str  # name of the tool
    success: bool  # the result is not an error
    output_size_bytes: Count  # size of the result
    latency_ms: Milliseconds  # from the call to the result


@event("tool.failed", Actor.TOOL, Sensitivity.PRIVATE)
class ToolFailed(Payload, frozen=True, kw_only=True):
    """A tool returned no result."""

    tool_use_id: str  # id of the call
    tool_name: str | None = None  # name of the tool
    error_class: ToolErrorClass  # kind of failure
    error_message: str  # message without secrets
    latency_ms: Milliseconds  # from the call to the failure


@event("tool_input_invalid", Actor.AGENT, Sensitivity.PRIVATE)
class ToolInputInvalid(Payload, frozen=True, kw_only=True):
    """A model called a tool with input that does not match its schema. The tool did not run."""

    tool_name: str  # name of the tool
    validation_errors: tuple[str, ...]  # each starts with its path
    tool_use_id: str | None = None  # id of the call


@event("tool.confirmation_requested", Actor.AGENT, Sensitivity.PRIVATE)
class ToolConfirmationRequested(Payload, frozen=True, kw_only=True):
    """A tool call waits for the approval of a person."""

    tool_use_id: str  # id of the call
    tool_name: str  # name of the tool
    side_effects: SideEffects | None = None  # strongest side effect of the tool
    confirmation_request_id: str  # id of this request
    input_summary: str  # summary of the input without secrets
    projected_modifications: tuple[str, ...] | None = None  # paths that would change
    command_summary: str | None = None  # command that would run, without secrets
    expires_at: datetime | None = None  # the call is denied after this time; none means no time limit


@event("tool.confirmation_resolved", Actor.USER, Sensitivity.PSEUDONYMOUS)
class ToolConfirmationResolved(Payload, frozen=True, kw_only=True):
    """A person approved or denied a tool call, or the request timed out."""

    tool_use_id: str  # id of the call
    tool_name: str | None = None  # name of the tool
    confirmation_request_id: str  # id of the request
    decision: Literal["allow", "deny", "timeout"]  # outcome
    scope: Literal["once", "session"] | None = None  # calls that the decision covers
    latency_ms: Milliseconds | None = None  # from the request to the decision
