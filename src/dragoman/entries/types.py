"""Types of trace entries, groups of types, the fields of each type, and their validation.

An entry is a plain dict: ``type``, the fields of the type, and any other fields. The names and strings of this module
belong to the framework's format: they are never changed, only extended.

    find_problems(entry) -> list of texts   empty for a valid entry
    validate_entry(entry) -> a copy         or FormatError: unknown_entry_type, invalid_entry

Filters read entries leniently, because tables of other programs may lack columns; builders and the store validate them.
Undeclared fields may hold any JSON value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard

import msgspec

from dragoman.errors import FormatError
from dragoman.jsontext import validate_json

Entry = dict[str, Any]

# conversation
USER_MESSAGE: Final = "user_message"
ASSISTANT_MESSAGE: Final = "assistant_message"
# execution trace
TASK: Final = "task"
ACTION: Final = "action"
OBSERVATION: Final = "observation"
ERROR: Final = "error"
# completion
FINAL: Final = "final"
SYNTHESIS: Final = "synthesis"
# planning
STRATEGIC_PLAN: Final = "strategic_plan"
SUGGESTED_PLAN: Final = "suggested_plan"
SCRIPT_PLAN: Final = "script_plan"
SCRIPT_INSTRUCTION: Final = "script_instruction"
# delegation
DELEGATION: Final = "delegation"
# global
GLOBAL_OBSERVATION: Final = "global_observation"
# context
DIRECTOR_CONTEXT: Final = "director_context"
INJECTED_CONTEXT: Final = "injected_context"

CONVERSATION_TYPES: Final = (USER_MESSAGE, ASSISTANT_MESSAGE)
EXECUTION_TRACE_TYPES: Final = (TASK, ACTION, OBSERVATION, ERROR)
COMPLETION_TYPES: Final = (FINAL, SYNTHESIS)
TURN_MARKERS: Final = (TASK,)
PLANNING_TYPES: Final = (STRATEGIC_PLAN, SUGGESTED_PLAN, SCRIPT_PLAN, SCRIPT_INSTRUCTION)
CONTEXT_TYPES: Final = (DIRECTOR_CONTEXT, INJECTED_CONTEXT)
GLOBAL_TYPES: Final = (GLOBAL_OBSERVATION, SYNTHESIS)
DELEGATION_TYPES: Final = (DELEGATION,)
AGENT_TYPES: Final = (*EXECUTION_TRACE_TYPES, FINAL, DELEGATION)  # types in the view of one agent

ANY: Final = "any JSON value"
TEXT: Final = "a text"
OBJECT: Final = "an object"
WHOLE: Final = "a whole number"


class Shape(msgspec.Struct, frozen=True):
    """Fields of one entry type, with a description of each. Other fields are allowed."""

    meaning: str
    required: dict[str, str]
    optional: dict[str, str] = {}


_CONTENT: Final = {"content": ANY}

SHAPES: Final = {
    USER_MESSAGE: Shape("a message of the user", _CONTENT),
    ASSISTANT_MESSAGE: Shape("an answer to the user", _CONTENT),
    TASK: Shape("the start of a turn of execution", _CONTENT),
    ACTION: Shape("a tool call", {"tool": TEXT, "args": OBJECT}),
    OBSERVATION: Shape("the result of a tool", _CONTENT),
    ERROR: Shape("a failure", _CONTENT, {"error_type": TEXT}),
    FINAL: Shape("the answer of a finished task", _CONTENT),
    SYNTHESIS: Shape(
        "the combined results of a manager's workers", {**_CONTENT, "from_manager": TEXT}, {"phase_id": WHOLE}
    ),
    STRATEGIC_PLAN: Shape("the plan of an orchestrator or a manager", {"content": OBJECT}),
    SUGGESTED_PLAN: Shape("a plan that an agent may follow", _CONTENT),
    SCRIPT_PLAN: Shape("a plan of steps", {"content": OBJECT}),
    SCRIPT_INSTRUCTION: Shape("the steps that an agent must follow", _CONTENT),
    DELEGATION: Shape("a task that a manager delegates to a worker", {"worker": TEXT, "task": TEXT}),
    GLOBAL_OBSERVATION: Shape("an observation for every agent", _CONTENT, {"from_worker": TEXT, "summary": TEXT}),
    DIRECTOR_CONTEXT: Shape("context from a context builder", _CONTENT),
    INJECTED_CONTEXT: Shape("context of the execution", _CONTENT),
}
TYPES: Final = tuple(SHAPES)


# --- validation ------------------------------------------------------------------------------------------------------


def find_problems(entry: Any) -> list[str]:
    """Return all problems of an entry; empty if it is valid."""
    if not isinstance(entry, Mapping):
        return [f"an entry is an object, not {type(entry).__name__}"]
    kind = entry.get("type")
    if not isinstance(kind, str) or kind not in SHAPES:
        return [f"type: {_type_problem(entry)}"]
    shape = SHAPES[kind]
    missing = [f"{name}: required for {kind}" for name in shape.required if name not in entry]
    wrong = [
        f"{name}: {expected}, not {_describe_value(entry[name])}"
        for name, expected, has_type in _FIELDS[kind]
        if name in entry and not (has_type(entry[name]) or (entry[name] is None and name in shape.optional))
    ]
    return missing + wrong + _common_problems(entry) + _json_problems(entry)


def validate_entry(entry: Any, where: str = "entry") -> Entry:
    """Return a copy of an entry, or raise ``FormatError``."""
    problems = find_problems(entry)
    if not problems:
        return dict(entry)
    if isinstance(entry, Mapping) and entry.get("type") not in TYPES:
        raise FormatError(
            _type_problem(entry),
            where=f"{where}.type",
            remedy=f"Use one of {', '.join(TYPES)}",
            code="unknown_entry_type",
        )
    raise FormatError("; ".join(problems), where=where, code="invalid_entry")


def _type_problem(entry: Mapping[str, Any]) -> str:
    return f"unknown type {entry['type']!r}" if "type" in entry else "the type is missing"


def _common_problems(entry: Mapping[str, Any]) -> list[str]:
    """Problems of fields that every type may have. A row of a table has None for a missing value."""
    problems = []
    time, turn = entry.get("timestamp"), entry.get("turn_id")
    if time is not None and not is_timestamp(time):
        problems.append(f"timestamp: seconds since 1970, not {_describe_value(time)}")
    if turn is not None and not isinstance(turn, str):
        problems.append(f"turn_id: a text, not {_describe_value(turn)}")
    return problems


def is_timestamp(value: Any) -> TypeGuard[float]:
    """Whether a value is a number of seconds; 0 is valid."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _json_problems(entry: Mapping[str, Any]) -> list[str]:
    try:
        validate_json(entry if type(entry) is dict else dict(entry), "it")
    except ValueError as error:
        return [str(error)]
    return []


def _describe_value(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) or value is None else type(value).__name__


_TYPE_CHECKS: Final[dict[str, Callable[[Any], bool]]] = {
    ANY: lambda _: True,
    TEXT: lambda value: isinstance(value, str) and bool(value),
    OBJECT: lambda value: isinstance(value, dict),
    WHOLE: lambda value: isinstance(value, int) and not isinstance(value, bool),
}
_FIELDS: Final = {  # of each type: name, description of the value, and its check
    kind: tuple((name, type_, _TYPE_CHECKS[type_]) for name, type_ in (shape.required | shape.optional).items())
    for kind, shape in SHAPES.items()
}
