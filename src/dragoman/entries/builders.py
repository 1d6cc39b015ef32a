"""A builder for each type of entry. The result is validated.

    create_action_entry("list_tables", {"schema": "public"}, timestamp=1234567890.5, turn_id="turn_1")
    {"type": "action", "tool": "list_tables", "args": {"schema": "public"}, "timestamp": 1234567890.5, …}

Additional keys are metadata. They are written last and may replace declared keys. A timestamp of 0 is valid. No builder
reads a clock; ``dragoman.agent_framework`` adds the time. Invariant: a field without a value is absent, never null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dragoman.entries import types
from dragoman.entries.types import Entry, validate_entry


def create_user_message(
    content: Any, timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """Build an entry for a message of the user."""
    return _build({"type": types.USER_MESSAGE, "content": content}, timestamp, turn_id, extra)


def create_assistant_message(
    content: Any, timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """The answer to the user."""
    return _build({"type": types.ASSISTANT_MESSAGE, "content": content}, timestamp, turn_id, extra)


def create_task_entry(content: Any, timestamp: float | None = None, turn_id: str | None = None, **extra: Any) -> Entry:
    """The start of a turn."""
    return _build({"type": types.TASK, "content": content}, timestamp, turn_id, extra)


def create_action_entry(
    tool_name: str,
    tool_args: dict[str, Any],
    timestamp: float | None = None,
    turn_id: str | None = None,
    **extra: Any,
) -> Entry:
    """A tool is called."""
    return _build({"type": types.ACTION, "tool": tool_name, "args": tool_args}, timestamp, turn_id, extra)


def create_observation_entry(
    content: Any, timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """The result of a tool."""
    return _build({"type": types.OBSERVATION, "content": content}, timestamp, turn_id, extra)


def create_error_entry(
    content: Any,
    error_type: str | None = None,
    timestamp: float | None = None,
    turn_id: str | None = None,
    **extra: Any,
) -> Entry:
    """Something failed."""
    entry = {"type": types.ERROR, "content": content, **_drop_empty(error_type=error_type)}
    return _build(entry, timestamp, turn_id, extra)


def create_final_entry(content: Any, timestamp: float | None = None, turn_id: str | None = None, **extra: Any) -> Entry:
    """The task is done, and this is the answer."""
    return _build({"type": types.FINAL, "content": content}, timestamp, turn_id, extra)


def create_synthesis_entry(
    content: Any,
    from_manager: str,
    phase_id: int | None = None,
    timestamp: float | None = None,
    turn_id: str | None = None,
    **extra: Any,
) -> Entry:
    """A manager puts the results of its workers together."""
    entry = {
        "type": types.SYNTHESIS,
        "content": content,
        "from_manager": from_manager,
        **_drop_empty(phase_id=phase_id),
    }
    return _build(entry, timestamp, turn_id, extra)


def create_strategic_plan_entry(
    plan: dict[str, Any], timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """The plan of an orchestrator or a manager."""
    return _build({"type": types.STRATEGIC_PLAN, "content": plan}, timestamp, turn_id, extra)


def create_suggested_plan_entry(
    plan: Any, timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """A plan that an agent was given and may follow."""
    return _build({"type": types.SUGGESTED_PLAN, "content": plan}, timestamp, turn_id, extra)


def create_script_plan_entry(
    plan: dict[str, Any], timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """A plan of steps."""
    return _build({"type": types.SCRIPT_PLAN, "content": plan}, timestamp, turn_id, extra)


def create_script_instruction_entry(
    content: Any, timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """The instructions of an agent."""
    return _build({"type": types.SCRIPT_INSTRUCTION, "content": content}, timestamp, turn_id, extra)


def create_delegation_entry(
    worker: str, task: str, timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """The delegation of a task to a worker."""
    return _build({"type": types.DELEGATION, "worker": worker, "task": task}, timestamp, turn_id, extra)


def create_global_observation_entry(
    content: Any,
    from_worker: str | None = None,
    summary: str | None = None,
    timestamp: float | None = None,
    turn_id: str | None = None,
    **extra: Any,
) -> Entry:
    """An observation for every agent."""
    fields = _drop_empty(from_worker=from_worker, summary=summary)
    return _build({"type": types.GLOBAL_OBSERVATION, "content": content, **fields}, timestamp, turn_id, extra)


def create_director_context_entry(
    content: Any, timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """Context that a context builder put in."""
    return _build({"type": types.DIRECTOR_CONTEXT, "content": content}, timestamp, turn_id, extra)


def create_injected_context_entry(
    content: Any, timestamp: float | None = None, turn_id: str | None = None, **extra: Any
) -> Entry:
    """Context of the execution that was put in."""
    return _build({"type": types.INJECTED_CONTEXT, "content": content}, timestamp, turn_id, extra)


def _drop_empty(**fields: Any) -> Entry:
    return {name: value for name, value in fields.items() if value is not None and value != ""}


def _build(entry: Entry, timestamp: float | None, turn_id: str | None, extra: Entry) -> Entry:
    if timestamp is not None:
        entry["timestamp"] = timestamp
    if turn_id:
        entry["turn_id"] = turn_id
    return validate_entry(entry | extra)


BUILDERS: Final[dict[str, Callable[..., Entry]]] = {
    types.USER_MESSAGE: create_user_message,
    types.ASSISTANT_MESSAGE: create_assistant_message,
    types.TASK: create_task_entry,
    types.ACTION: create_action_entry,
    types.OBSERVATION: create_observation_entry,
    types.ERROR: create_error_entry,
    types.FINAL: create_final_entry,
    types.SYNTHESIS: create_synthesis_entry,
    types.STRATEGIC_PLAN: create_strategic_plan_entry,
    types.SUGGESTED_PLAN: create_suggested_plan_entry,
    types.SCRIPT_PLAN: create_script_plan_entry,
    types.SCRIPT_INSTRUCTION: create_script_instruction_entry,
    types.DELEGATION: create_delegation_entry,
    types.GLOBAL_OBSERVATION: create_global_observation_entry,
    types.DIRECTOR_CONTEXT: create_director_context_entry,
    types.INJECTED_CONTEXT: create_injected_context_entry,
}
